//! Posts the requests of a row on a queue of core, and takes down what became of them.

use super::request::{Queue, Recorded, Request};
use bellwire_core::queue::{Attach, BlueFlame, PostError, SendQueueInit};
use bellwire_core::wqe::{SendRing, SendWqe};
use bellwire_tests::replay::{self, Completions, UNTOUCHED};
use bellwire_tests::vectors::{Result, Row};
use std::ptr::NonNull;

/// Bytes of the two halves of a BlueFlame register.
pub const REGISTER: usize = 512;

/// An entry in the ring.
#[derive(Debug)]
pub struct Entry {
    pub counter: u16,
    pub slot: u32,
    pub ds: u32,
    /// Whole blocks, unwrapped.
    pub bytes: Vec<u8>,
    pub request: Request,
}

/// What core made of a row.
#[derive(Debug)]
pub struct Made {
    /// What was posted, in order.
    pub entries: Vec<Entry>,
    /// The request after these, and why it was refused.
    pub refused: Option<(Request, PostError)>,
    /// Whether the last request was accepted although the driver refused it.
    pub beyond: bool,
    /// Bytes of the ring that a refused request changed.
    pub strays: usize,
    pub next: u16,
    pub record: [u8; 4],
    pub register: Vec<u8>,
    /// The inline limit that core's queue was made with: the format's where the row's is longer.
    pub max_inline: u32,
}

/// Replays a row. A last request beyond `max_post`, which core accepts, is posted after the ring for
/// the others; one that is to be refused before it.
pub fn replay<T: Recorded>(row: &Row, vectors: &[[u8; 48]]) -> Result<Made> {
    let blocks: u32 = row.int("sq_wqe_cnt")?;
    let qpn = row.int("qpn")?;
    let ring_bytes = blocks as usize * 64;
    let memory = replay::memory(ring_bytes);
    // SAFETY: leaked, and used by this queue alone.
    let ring = unsafe { SendRing::new(memory, blocks) }.expect("a power of two");
    let ledger = replay::ledger(blocks, qpn);
    let record = replay::record();
    let register = replay::memory(REGISTER);
    let size = row.int("bf_size")?;

    let max_sge = row.int("max_sge")?;
    let fits = |max_inline: &u32| Queue::<T>::longest_entry(max_sge, *max_inline) <= 1008;
    let max_inline = (0..=row.int("max_inline")?).rev().find(fits);
    let max_inline = max_inline.expect("no bytes fit");
    // SAFETY: the only queue on ring and ledger; register and ring are leaked.
    let mut queue: Queue<T> = unsafe {
        Queue::new(SendQueueInit {
            ring,
            ledger,
            doorbell: BlueFlame::new(record, register.cast(), size, ring),
            max_sge,
            max_inline,
            signal_all: row.int::<u8>("sq_sig_all")? != 0,
        })
    }
    .expect("the sizes of a queue");
    queue.set_postable(true);

    let mut requests = Vec::new();
    for request in row.rows("wrs")? {
        requests.push(Request::parse(&request, vectors)?);
    }
    let mut completions = Completions::new(64, 64);
    let attached = Attach {
        send: Some((ledger, ring, T::TYPE)),
        ..Attach::default()
    };
    // SAFETY: the only poller.
    let user_index = unsafe { completions.attach(attached) };
    bring_to(&mut queue, row, &mut completions, user_index, &requests[0])?;

    // SAFETY: nobody writes to the register meanwhile.
    unsafe { register.write_bytes(UNTOUCHED, REGISTER) };
    // SAFETY: nobody writes to the ring while this runs.
    let snapshot = || unsafe { replay::snapshot(memory, ring_bytes) };
    let mut made = Made {
        entries: Vec::new(),
        refused: None,
        beyond: false,
        strays: 0,
        next: 0,
        record: [0; 4],
        register: Vec::new(),
        max_inline,
    };
    let refused_by_driver = row.int::<usize>("good")? < requests.len();
    let last = requests.pop_if(|_| refused_by_driver);
    for request in requests {
        let counter = queue.counter();
        if let Err(error) = T::post(&mut queue, &request) {
            made.refused = Some((request, error));
            break;
        }
        made.entries.push(entry(ring, memory, counter, request));
    }
    let over_max_post = row.has("note") && row.str("note")?.contains("max_post");
    match last {
        // What follows a request that core refuses is not compared.
        _ if made.refused.is_some() => {
            queue.ring();
            take_down(&mut made, &queue, record, register);
        }
        Some(request) if over_max_post => {
            queue.ring();
            take_down(&mut made, &queue, record, register);
            match T::post(&mut queue, &request) {
                Ok(()) => made.beyond = true,
                Err(error) => made.refused = Some((request, error)),
            }
        }
        Some(request) if !request.is_bad() => {
            let before = snapshot();
            match T::post(&mut queue, &request) {
                Ok(()) => made.beyond = true,
                Err(error) => made.refused = Some((request, error)),
            }
            let changed = before.iter().zip(snapshot()).filter(|(a, b)| *a != b);
            made.strays = changed.count();
            queue.ring();
            take_down(&mut made, &queue, record, register);
        }
        _ => {
            queue.ring();
            take_down(&mut made, &queue, record, register);
        }
    }
    Ok(made)
}

fn take_down<T: Recorded>(
    made: &mut Made,
    queue: &Queue<T>,
    record: &bellwire_core::port::DoorbellRecord,
    register: NonNull<u8>,
) {
    made.next = queue.counter() as u16;
    made.record = replay::record_bytes(record);
    // SAFETY: nobody writes to the register meanwhile.
    made.register = unsafe { replay::snapshot(register, REGISTER) };
}

/// Brings the queue to the counter, fence and register half that the row starts with.
fn bring_to<T: Recorded>(
    queue: &mut Queue<T>,
    row: &Row,
    completions: &mut Completions,
    user_index: bellwire_core::queue::UserIndex,
    request: &Request,
) -> Result<()> {
    let fence = row.int::<u8>("fence_in")? != 0;
    let counter = row.int::<u16>("ctr")?;
    let address = || T::address(request);
    let fence_blocks = if fence { 2 } else { 0 };
    let nops = counter.wrapping_sub(2 + fence_blocks);
    replay::advance(queue, completions, user_index, nops, address());
    // Each ring so far had its completion, and the halves alternate with every ring.
    let rings = completions.written() + u32::from(fence);
    let half = rings % 2;
    let wanted = match row.rows("mmio")?.first() {
        Some(write) => write.int::<u32>("off")? / 256,
        None => half,
    };
    let signaled = bellwire_core::wr::SendFlags::SIGNALED;
    for _ in 0..2 {
        let nop = bellwire_core::wqe::Nop {};
        queue
            .post_empty(0, address(), nop, signaled)
            .expect("room for a NOP");
        // Two NOPs ring twice, or once.
        if half == wanted {
            queue.ring();
        }
    }
    queue.ring();
    for at in 0..2 {
        let _ = completions.complete_send(user_index, u32::from(nops.wrapping_add(at)));
    }
    if fence {
        assert!(
            T::post_fencing(queue, address()),
            "no fence on {:?}",
            T::TYPE
        );
        queue.ring();
        let _ = completions.complete_send(user_index, u32::from(nops.wrapping_add(2)));
    }
    assert_eq!(queue.counter() as u16, counter);
    assert_eq!(queue.free_blocks(), row.int::<u32>("sq_wqe_cnt")?);
    Ok(())
}

/// The entry that was posted at `counter`.
fn entry(ring: SendRing<'static>, memory: NonNull<u8>, counter: u32, request: Request) -> Entry {
    // SAFETY: posted, and not written again while the view lives.
    let wqe = unsafe { SendWqe::read(ring, counter) };
    let block = |at: u32| {
        // SAFETY: a block of the ring, which nobody writes meanwhile.
        unsafe { replay::snapshot(ring.block(counter.wrapping_add(at)), 64) }
    };
    let place = ring.block(counter).addr().get() - memory.addr().get();
    Entry {
        counter: wqe.index(),
        slot: (place / 64) as u32,
        ds: wqe.ds(),
        bytes: (0..wqe.blocks()).flat_map(block).collect(),
        request,
    }
}
