//! Entries that are read back and reposted: the device reads the same as if the request had been
//! posted from scratch.

use super::send::{BLOCKS, Queue};
use super::{keep, keep_all, memory};
use crate::be::Be32;
use crate::port::DoorbellRecord;
use crate::queue::{Ledger, LedgerSlot, PostError, RecvQueue};
use crate::random::Random;
use crate::slab::Block;
use crate::wqe::*;
use crate::wr::{QpType, Remote, SendFlags, Sge, WrOpcode};
use std::vec::Vec;

const REMOTE: Remote = Remote {
    addr: 0x1122_3344_5566_7788,
    rkey: 0x99aa_bbcc,
};

/// An unsignalled request of a queue that suppresses flush completions has `NO_FLUSH`, except for
/// the last one that is rung. Reposted and rung alone it has no `NO_FLUSH` either, and a signalled
/// one stays signalled.
#[test]
fn only_the_last_that_is_rung_completes_when_it_is_flushed() {
    let (mut quiet, mut other) = (Queue::new(1), Queue::new(2));
    quiet.send.suppress_flush();
    let flags = |queue: &Queue, counter| queue.send.entry(counter).expect("there").fm_ce_se();
    let post = |queue: &mut Queue, flags| {
        let at = queue.send.counter();
        queue.send.post_empty(0, (), Nop {}, flags).expect("room");
        at
    };
    let (none, signaled) = (SendFlags::empty(), SendFlags::SIGNALED);
    let first = post(&mut quiet, none);
    let fenced = post(&mut quiet, SendFlags::FENCE);
    let reported = post(&mut quiet, signaled);
    let last = post(&mut quiet, none);
    let before = [first, fenced, reported, last].map(|at| flags(&quiet, at));
    const NO_FLUSH: u8 = fm_ce_se::NO_FLUSH;
    let fence = fm_ce_se::FENCE | NO_FLUSH;
    assert_eq!(before, [NO_FLUSH, fence, fm_ce_se::SIGNALED, NO_FLUSH]);
    quiet.send.ring();
    let rung = [first, fenced, reported, last].map(|at| flags(&quiet, at));
    assert_eq!(rung, [NO_FLUSH, fence, fm_ce_se::SIGNALED, 0]);
    // A signalled last request keeps its flags.
    let reported_again = post(&mut quiet, signaled);
    quiet.send.ring();
    assert_eq!(flags(&quiet, reported_again), fm_ce_se::SIGNALED);
    // Reposted to another queue, and to this one.
    for (at, expected) in [(reported, fm_ce_se::SIGNALED), (first, 0), (last, 0)] {
        let (head, tail) = quiet.send.entry(at).expect("there").bytes();
        let bytes = [head, tail].concat();
        for queue in [&mut other, &mut quiet] {
            let again = queue.send.counter();
            // SAFETY: a NOP refers to no memory.
            unsafe { queue.send.repost(0, &bytes, None) }.expect("room");
            queue.send.ring();
            assert_eq!(flags(queue, again), expected);
        }
    }
}

/// Posts the request with this number, and returns its operation; `None`: there are no more.
fn post(queue: &mut Queue, number: usize, flags: SendFlags) -> Option<WrOpcode> {
    let imm = Be32::new(0xaabb_ccdd);
    let (remote, rkey) = (REMOTE, 0x1234_5678);
    let sges: [Sge; 8] = core::array::from_fn(|at| Sge {
        addr: 0x1000 * at as u64,
        length: 100 + at as u32,
        lkey: 0x700 + at as u32,
    });
    let sge = sges[0];
    let bytes: Vec<u8> = (0..300u32).map(|at| at as u8).collect();
    let window = BindMwInfo {
        lkey: 0x700,
        addr: 0x1000,
        length: 4096,
        access: 0b1111,
    };
    let (mw_rkey, new_rkey) = (0x4242_4200, 0x4242_4203);
    macro_rules! post {
        ($operation:ident, $made:expr, $payload:expr) => {{
            // SAFETY: no device accesses the memory.
            let posted = unsafe { queue.send.post(number as u64, (), $made, $payload, flags) };
            posted.expect("room");
            Some(WrOpcode::$operation)
        }};
    }
    match number {
        0 => post!(Send, Send {}, sge),
        1 => post!(Send, Send {}, NoPayload),
        2 => post!(Send, Send {}, Inline(&bytes[..44])),
        3 => post!(SendWithImm, SendWithImm { imm }, &sges[..5]),
        4 => post!(SendWithInv, SendWithInv { rkey }, &sges[..2]),
        5 => post!(RdmaWrite, RdmaWrite { remote }, &sges[..]),
        6 => post!(RdmaWrite, RdmaWrite { remote }, Inline(&bytes[..28])),
        7 => post!(RdmaWrite, RdmaWrite { remote }, Inline(&bytes[..300])),
        8 => post!(RdmaWriteWithImm, RdmaWriteWithImm { remote, imm }, sge),
        9 => post!(
            RdmaWriteWithImm,
            RdmaWriteWithImm { remote, imm },
            Inline(&bytes[..204])
        ),
        10 => post!(RdmaRead, RdmaRead { remote }, &sges[..7]),
        11 => {
            let (compare, swap) = (7, 8);
            let made = AtomicCmpAndSwp {
                remote,
                compare,
                swap,
            };
            post!(AtomicCmpAndSwp, made, sge)
        }
        12 => post!(AtomicFetchAndAdd, AtomicFetchAndAdd { remote, add: 9 }, sge),
        13 => post!(LocalInv, LocalInv { rkey }, NoPayload),
        14 => post!(
            BindMw,
            BindMw {
                mw_rkey,
                new_rkey,
                info: window
            },
            NoPayload
        ),
        15 => post!(BindMw, UnbindMw { mw_rkey, new_rkey }, NoPayload),
        16 => post!(
            BindMw,
            BindMwType1 {
                mw_rkey,
                new_rkey,
                info: window
            },
            NoPayload
        ),
        17 => post!(BindMw, UnbindMwType1 { mw_rkey, new_rkey }, NoPayload),
        18 => post!(Nop, Nop {}, NoPayload),
        _ => None,
    }
}

const REQUESTS: usize = 19;

#[test]
fn an_entry_posted_again_is_that_of_the_request_posted_anew() {
    let flags = [
        SendFlags::empty(),
        SendFlags::SIGNALED,
        SendFlags::FENCE.union(SendFlags::SOLICITED),
    ];
    for number in 0..REQUESTS {
        // At every place in the ring. Miri takes the last one: entries go on at the ring's start.
        for from in if cfg!(miri) { BLOCKS - 1 } else { 0 }..BLOCKS {
            let flags = flags[from as usize % 3];
            let (mut first, mut again, mut anew) = (Queue::new(7), Queue::new(9), Queue::new(9));
            first.advance(from);
            let counter = first.send.counter();
            let operation = post(&mut first, number, flags).expect("a request");
            let entry = first.send.entry(counter).expect("posted");
            let request = entry.request(QpType::Rc).expect("posted");
            assert_eq!((request.operation(), entry.qpn()), (operation, 7));
            let bytes = first.bytes(counter).expect("posted");

            let to = (from * 7 + 3) % BLOCKS;
            again.advance(to);
            anew.advance(to);
            // SAFETY: no device accesses the memory.
            unsafe { again.send.repost(5, &bytes, None) }.expect("room");
            post(&mut anew, number, flags);
            assert_eq!(again.bytes(to), anew.bytes(to), "{operation} from {from}");
            assert_eq!(again.send.counter(), anew.send.counter());
            assert_eq!(again.send.staged(), 1);
            // The next request waits for UMR work, as after an ordinary post.
            let (next, flags) = (again.send.counter(), SendFlags::empty());
            post(&mut again, 0, flags);
            post(&mut anew, 0, flags);
            assert_eq!(again.bytes(next), anew.bytes(next), "behind {operation}");
            assert_eq!(again.clear(), [(5, to), (0, next)]);
        }
    }
    assert_eq!(post(&mut Queue::new(7), REQUESTS, SendFlags::empty()), None);
}

#[test]
fn what_is_posted_again_behind_registration_work_waits_for_it() {
    let mut queue = Queue::new(7);
    post(&mut queue, 0, SendFlags::empty());
    post(&mut queue, 0, SendFlags::FENCE);
    let (send, fenced) = (
        queue.bytes(0).expect("posted"),
        queue.bytes(1).expect("posted"),
    );
    for (bytes, fence) in [
        (send, fm_ce_se::INITIATOR_SMALL_FENCE),
        (fenced, fm_ce_se::FENCE),
    ] {
        post(&mut queue, 13, SendFlags::empty());
        let counter = queue.send.counter();
        // SAFETY: no device accesses the memory.
        unsafe { queue.send.repost(0, &bytes, None) }.expect("room");
        let flags = queue.send.entry(counter).expect("posted").fm_ce_se();
        assert_eq!(flags, fence);
    }
}

#[test]
fn one_request_waits_for_registration_work() {
    let mut queue = Queue::new(7);
    post(&mut queue, 13, SendFlags::empty());
    // Elements without a byte take no room, so that it is shorter than its number of elements says.
    let none: &[Sge] = &[Sge::default(); 8];
    let first = queue.send.counter();
    // SAFETY: no device accesses the memory.
    let posted = unsafe { (queue.send).post(1, (), Send {}, none, SendFlags::empty()) };
    posted.expect("room");
    let second = queue.send.counter();
    let posted = queue.send.post_empty(2, (), Nop {}, SendFlags::empty());
    posted.expect("room");
    let entry = |at| queue.send.entry(at).expect("posted");
    let waits = [first, second].map(|at| entry(at).fm_ce_se());
    assert_eq!(waits, [fm_ce_se::INITIATOR_SMALL_FENCE, 0]);
}

#[test]
fn entries_are_there_until_they_are_overwritten() {
    let mut queue = Queue::new(7);
    assert!(queue.send.entry(0).is_none() && queue.send.entry(u32::MAX).is_none());
    queue.advance(3);
    // Three entries of four blocks each, the last one across the end of the ring.
    let counters = [(); 3].map(|()| {
        let counter = queue.send.counter();
        post(&mut queue, 9, SendFlags::empty());
        counter
    });
    assert_eq!(counters, [3, 7, 11]);
    queue.send.ring();
    for counter in 0..20 {
        let began = counter < 3 || counters.contains(&counter);
        // The later blocks of an entry have no control segment of their own.
        assert_eq!(queue.send.entry(counter).is_some(), began, "{counter}");
    }
    let bytes = queue.bytes(11);
    queue.retire(3);
    let unfinished = queue.clear();
    assert_eq!(unfinished, [(9, 7), (9, 11)]);
    // The next life has begun, and nothing is posted yet.
    assert_eq!(queue.send.counter(), 0x1_0000);
    assert_eq!(queue.bytes(11), bytes);
    // A life in which nothing was posted has overwritten nothing either.
    assert!(queue.clear().is_empty());
    assert_eq!(queue.send.counter(), 0x2_0000);
    assert_eq!(queue.bytes(11), bytes);
    post(&mut queue, 18, SendFlags::empty());
    assert!(queue.send.entry(11).is_none() && queue.send.entry(7).is_none());
    assert!(queue.send.entry(0x2_0000).is_some() && queue.send.entry(0x1_ffff).is_none());
    // A lap later.
    queue.retire(0x2_0000);
    queue.advance(BLOCKS);
    assert!(queue.send.entry(0x2_0000).is_none() && queue.send.entry(0x2_0001).is_some());
}

#[test]
fn what_is_no_entry_is_refused() {
    let mut queue = Queue::new(7);
    post(&mut queue, 5, SendFlags::empty());
    let good = queue.bytes(0).expect("posted");
    let mut random = Random(1);
    let mut bad: Vec<Vec<u8>> = [0, 1, 8, 15, 17].map(|len| good[..len].to_vec()).into();
    bad.push([&good[..], &[0; 16]].concat());
    bad.push(good[..good.len() - 16].to_vec());
    bad.push([0; 1024].to_vec());
    for opcode in [0x0e, 0x1b, 0x25, 0xff] {
        bad.push(good.clone());
        bad.last_mut().expect("pushed")[3] = opcode;
    }
    for _ in 0..if cfg!(miri) { 20 } else { 10_000 } {
        let len = 16 * (1 + random.below(12));
        let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        // The length is right, but the opcode is none.
        (bytes[3], bytes[7]) = (0x30 | bytes[3] & 0x4f, (len / 16) as u8);
        bad.push(bytes);
    }
    for bytes in bad {
        let before = queue.send.counter();
        // SAFETY: no device accesses the memory.
        let refused = unsafe { queue.send.repost(1, &bytes, None) };
        assert_eq!(refused.map_err(|r| r.error), Err(PostError::NoEntry));
        assert_eq!((queue.send.counter(), queue.send.staged()), (before, 1));
    }
    // The queue's own limits.
    let entry = |queue: &mut Queue| {
        // SAFETY: no device accesses the memory.
        unsafe { queue.send.repost(1, &good, None::<Block<'static>>) }.map_err(|r| r.error)
    };
    while entry(&mut queue).is_ok() {}
    assert_eq!(entry(&mut queue), Err(PostError::QueueFull));
    queue.send.set_postable(false);
    assert_eq!(entry(&mut queue), Err(PostError::WrongState));
}

#[test]
fn receives_are_read_back() {
    let slots = keep_all(4, LedgerSlot::default);
    let ledger = &*keep(Ledger::new(slots, 7).expect("a power of two"));
    let record: &DoorbellRecord = keep(DoorbellRecord::default());
    // SAFETY: kept, and used only by this queue.
    let queue = unsafe {
        let ring = RecvRing::new(memory(4 * 64), 4, 64).expect("sizes");
        RecvQueue::new(ring, ledger, record)
    };
    let mut queue = queue.expect("fits");
    queue.set_postable(true);
    let list = |number: u32| -> Vec<Sge> {
        let sge = |at| Sge {
            addr: u64::from(number * 10 + at),
            length: 1 + at,
            lkey: 5,
        };
        (0..number % 5).map(sge).collect()
    };
    assert!(queue.entry(0).is_none());
    for number in 0..4 {
        // SAFETY: no device accesses the memory.
        unsafe { queue.post(u64::from(number), &list(number)) }.expect("room");
    }
    queue.ring();
    let mut unfinished = Vec::new();
    // SAFETY: the only poster and poller; there is no device.
    unsafe { queue.clear(|request| unfinished.push((request.wr_id, request.counter))) };
    assert_eq!(unfinished, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    let read: Vec<Vec<Sge>> = (0..4)
        .map(|counter| queue.entry(counter).expect("there").collect())
        .collect();
    assert_eq!(read, [0, 1, 2, 3].map(list));
    assert!(queue.entry(4).is_none());
    queue.set_postable(true);
    for sges in &read {
        // SAFETY: no device accesses the memory.
        unsafe { queue.post(0, sges) }.expect("room");
    }
    assert!(queue.entry(3).is_none());
    let again: Vec<Sge> = queue.entry(0x1_0003).expect("there").collect();
    assert_eq!(again, list(3));
}
