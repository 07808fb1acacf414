//! The completion queue: what it tells of whom, what it drops, and what a device cannot make it do.

use super::super::tests::{Random, keep, keep_all, memory};
use super::*;
use crate::cqe::{CompletedWqe, owner_bit};
use crate::port::{SendDoorbell, Staged};
use crate::queue::{Attach, AttachError, Ledger, SrqLedger, SrqUser};
use crate::queue::{LedgerSlot, RecvQueue, SendQueue, SendQueueInit, SharedRecvQueue, SrqSlot};
use crate::slab::Block;
use crate::wqe::RecvRing;
use crate::wqe::{Nop, Rc, RdmaRead, Send, SrqRing, opcode};
use crate::wr::{Remote, SendFlags};
use std::collections::BTreeSet;
use std::vec::Vec;

mod history;

/// A doorbell that nobody hears.
struct Silent;

// SAFETY: there is no device.
unsafe impl SendDoorbell for Silent {
    fn ring(&mut self, _: &Staged) {}
}

/// A completion queue, and the device that writes to it.
struct Cq {
    queue: CompletionQueue<'static>,
    memory: CqMemory<'static>,
    records: &'static [DoorbellRecord; 2],
    written: u32,
}

impl Cq {
    fn new(count: u32, cqe_size: u32, slots: usize) -> Self {
        // SAFETY: kept, and used by this queue alone.
        let memory = unsafe { CqMemory::new(memory((count * cqe_size) as usize), count, cqe_size) };
        let memory = memory.expect("sizes");
        let records = &*keep(<[DoorbellRecord; 2]>::default());
        let slots = keep_all(slots, QueueSlot::default);
        // SAFETY: the only consumer.
        let queue = unsafe { CompletionQueue::new(memory, slots, records) };
        Self {
            queue,
            memory,
            records,
            written: 0,
        }
    }

    /// Begins at an index that the device would take long to reach.
    fn start_at(&mut self, index: u32) {
        (self.queue.ci, self.written) = (index, index);
        let count = self.memory.count();
        for at in 0..count {
            let at = index.wrapping_add(at);
            // What the lap before has left: read, and not written again.
            let mut entry = Cqe64::requester(CompletedWqe::default(), 0, 0).to_bytes();
            entry[63] |= owner_bit(at, count) ^ 1;
            // SAFETY: within the ring, before anything is polled.
            unsafe { self.memory.entry(at).write(Cqe64::from_bytes(entry)) };
        }
    }

    fn write(&mut self, payload: &[u8; 64], entry: &Cqe64) {
        let owner = owner_bit(self.written, self.memory.count());
        let op_own = entry.op_own() & !1 | owner;
        let place = self.memory.entry(self.written);
        assert!(self.written.wrapping_sub(self.queue.ci) < self.memory.count());
        // SAFETY: free, as was just checked.
        unsafe {
            match self.memory.cqe_size() {
                64 => Cqe64::publish(place, entry, op_own),
                _ => {
                    let wide = Cqe128 {
                        payload: *payload,
                        cqe: *entry,
                    };
                    Cqe128::publish(place, &wide, op_own);
                }
            }
        }
        self.written = self.written.wrapping_add(1);
    }

    /// The send request at `counter` is done; `mark` is in the entry's other half.
    fn sent(&mut self, user_index: UserIndex, counter: u32, mark: u8) {
        let entry = Cqe64::requester(wqe(user_index, counter), opcode::SEND, 0);
        self.write(&[mark; 64], &entry);
    }

    fn poll(&mut self) -> Option<(u32, u64)> {
        let completion = self.queue.poll_one()?;
        assert!(completion.result.is_ok(), "{completion:?}");
        Some((completion.qp_num, completion.wr_id))
    }
}

fn wqe(user_index: UserIndex, counter: u32) -> CompletedWqe {
    CompletedWqe {
        qpn: 0,
        user_index: user_index.get(),
        wqe_counter: counter as u16,
    }
}

/// A queue pair of 8 send blocks and 8 receives, whose requests' `wr_id`s are counters.
struct Qp {
    send: SendQueue<'static, Rc, Silent>,
    recv: RecvQueue<'static, &'static DoorbellRecord>,
    attach: Attach<'static>,
}

fn qp(qp_num: u32) -> Qp {
    let ledger = || &*keep(Ledger::new(keep_all(8, LedgerSlot::default), qp_num).expect("8"));
    let (send_ledger, recv_ledger) = (ledger(), ledger());
    // SAFETY: kept, and used by this queue pair alone.
    unsafe {
        let ring = SendRing::new(memory(8 * 64), 8).expect("sizes");
        let recv_ring = RecvRing::new(memory(8 * 64), 8, 64).expect("sizes");
        let mut send = SendQueue::new(SendQueueInit {
            ring,
            ledger: send_ledger,
            doorbell: Silent,
            max_sge: 4,
            max_inline: 0,
            signal_all: true,
        })
        .expect("a queue");
        let record: &DoorbellRecord = keep(DoorbellRecord::default());
        let mut recv = RecvQueue::new(recv_ring, recv_ledger, record).expect("a queue");
        send.set_postable(true);
        recv.set_postable(true);
        Qp {
            send,
            recv,
            attach: Attach {
                send: Some((send_ledger, ring, QpType::Rc)),
                recv: Some((recv_ledger, recv_ring)),
                srq: None,
            },
        }
    }
}

impl Qp {
    /// Posts a SEND, and gives its counter.
    fn post(&mut self) -> u32 {
        let counter = self.send.counter();
        let posted = self
            .send
            .post_empty(u64::from(counter), (), Send {}, SendFlags::empty());
        posted.expect("room");
        self.send.ring();
        counter
    }
}

/// Queue pairs with receive queues of their own have nothing to tell when they are detached.
fn nothing(wr_id: u64, _: Option<Block<'static>>) {
    panic!("{wr_id}");
}

#[test]
fn each_slot_is_found_again() {
    let mut cq = Cq::new(32, 64, 3);
    let a = qp(1);
    // SAFETY: nothing is polled.
    let mut attach = || unsafe { cq.queue.attach_unreserved(a.attach) };
    let attached: Vec<_> = (0..3).map(|_| attach().expect("a slot")).collect();
    assert!(attach().is_err());
    for order in [[1, 2, 0], [2, 0, 1], [0, 1, 2]] {
        for slot in order {
            let current = cq.queue.slots[slot].current;
            cq.queue.detach(UserIndex(current), |_, _| ());
        }
        // SAFETY: as above.
        let mut attach = || unsafe { cq.queue.attach_unreserved(a.attach) };
        let mut slots: Vec<_> = (0..3).map(|_| attach().expect("a slot").slot()).collect();
        assert!(attach().is_err());
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2]);
    }
    for first in attached {
        assert!(cq.queue.slot(first.get()).is_none(), "of an earlier life");
    }
}

#[test]
fn attached_queues_have_their_entries_reserved() {
    let mut cq = Cq::new(32, 64, 3);
    let (a, b) = (qp(1), qp(2));
    let only_send = Attach {
        send: a.attach.send,
        ..Attach::default()
    };
    // SAFETY: the only poller of these.
    unsafe {
        let first = cq.queue.attach(a.attach).expect("16 of 32");
        assert_eq!((first.get(), cq.queue.unreserved()), (0, 16));
        let second = cq.queue.attach(b.attach).expect("16 of 16");
        assert_eq!((second.get(), cq.queue.unreserved()), (1, 0));
        let error = AttachError::CqTooSmall { needed: 8, free: 0 };
        assert_eq!(cq.queue.attach(only_send), Err(error));
        let third = cq.queue.attach_unreserved(only_send).expect("a slot");
        assert_eq!((third.get(), cq.queue.unreserved()), (2, 0));
        let error = AttachError::TooManyQueues { slots: 3 };
        assert_eq!(cq.queue.attach_unreserved(only_send), Err(error));

        cq.queue.detach(first, nothing);
        assert_eq!(cq.queue.unreserved(), 16);
        cq.queue.detach(first, nothing);
        assert_eq!(cq.queue.unreserved(), 16, "detached twice");
        let again = cq.queue.attach(only_send).expect("8 of 16");
        assert_eq!((again.get(), cq.queue.unreserved()), (1 << 16, 8));
        cq.queue.detach(first, nothing);
        assert_eq!(cq.queue.unreserved(), 8, "of an earlier life");
    }
    assert_eq!(cq.queue.capacity(), 32);
    // SAFETY: not used.
    unsafe {
        assert!(CqMemory::new(memory(64), 1, 64).is_some());
        assert!(CqMemory::new(memory(64), 3, 64).is_none());
        assert!(CqMemory::new(memory(64), 1, 32).is_none());
        assert!(CqMemory::new(memory(128).add(64), 1, 128).is_none());
    }
}

#[test]
fn a_batch_is_told_in_order_and_the_record_has_24_bits() {
    let mut cq = Cq::new(16, 64, 1);
    cq.start_at(0xff_fffd);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    for _ in 0..6 {
        let counter = qp.post();
        cq.sent(index, counter, 0);
    }
    let mut told = Vec::new();
    assert_eq!(cq.queue.poll(4, |c| told.push(c.wr_id)), 4);
    assert_eq!(cq.records[0].load(), 1, "over the end of 24 bits");
    assert_eq!(cq.queue.poll(4, |c| told.push(c.wr_id)), 2);
    assert_eq!((told, cq.records[0].load()), ((0..6).collect(), 3));
    assert_eq!(cq.queue.poll(4, |_| panic!("nothing is left")), 0);

    let word = cq.queue.arm(0x123456, true);
    assert_eq!(word.get(), 0x0100_0003_0012_3456);
    assert_eq!(cq.records[1].load(), 0x0100_0003);
}

#[test]
fn unsignalled_requests_are_told_with_the_next() {
    let mut cq = Cq::new(32, 64, 1);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post());
    cq.sent(index, counters[2], 0);
    let completion = cq.queue.poll_one().expect("told");
    assert_eq!((completion.wr_id, completion.retired), (2, 3));
    assert_eq!(qp.send.free_blocks(), 8);
    // An error too: what was before it succeeded.
    let counters = [(); 2].map(|()| qp.post());
    let wqe = wqe(index, counters[1]);
    let entry = Cqe64::error(
        CqeOpcode::ReqErr,
        wqe,
        opcode::SEND,
        Syndrome::LOCAL_LENGTH,
        9,
    );
    cq.write(&[0; 64], &entry);
    let completion = cq.queue.poll_one().expect("told");
    assert_eq!((completion.wr_id, completion.retired), (4, 2));
    let failure = completion.result.expect_err("failed");
    assert_eq!(
        (failure.status, failure.vendor_err, failure.counter),
        (WcStatus::LocLenErr, 9, counters[1])
    );
}

/// By it the entry is found again, in whichever life and lap.
#[test]
fn failures_tell_the_whole_counter() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let mut index = unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("room");
    for life in 0..3 {
        for lap in 0..10 {
            let counter = qp.post();
            assert_eq!(counter, life << 16 | lap);
            let wr_id = u64::from(lap);
            // SAFETY: no device writes there.
            unsafe { qp.recv.post(wr_id, &[]) }.expect("room");
            qp.recv.ring();
            for (opcode, syndrome) in [
                (CqeOpcode::ReqErr, Syndrome::WR_FLUSH),
                (CqeOpcode::RespErr, Syndrome::LOCAL_PROT),
            ] {
                let entry = Cqe64::error(opcode, wqe(index, counter), 0, syndrome, 0);
                cq.write(&[0; 64], &entry);
                let told = cq.queue.poll_one().expect("told");
                let failure = told.result.expect_err("failed");
                assert_eq!((failure.syndrome, failure.counter), (syndrome, counter));
            }
            assert!(qp.send.entry(counter).is_some() && qp.recv.entry(counter).is_some());
        }
        cq.queue.detach(index, nothing);
        // SAFETY: poster and poller; there is no device.
        unsafe {
            qp.send.clear(|request| panic!("{request:?}"));
            qp.recv.clear(|request| panic!("{request:?}"));
        }
        qp.send.set_postable(true);
        qp.recv.set_postable(true);
        // SAFETY: the only poller.
        index = unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("room");
    }
}

#[test]
fn entries_of_nobody_are_dropped_and_counted() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counter = qp.post();
    // Not posted, of no queue pair, of another generation, not of a send queue.
    cq.sent(index, counter + 1, 0);
    cq.sent(UserIndex(1), counter, 0);
    cq.sent(UserIndex(0xffff), counter, 0);
    cq.sent(UserIndex::new(0, 1), counter, 0);
    cq.write(
        &[0; 64],
        &Cqe64::responder(CqeOpcode::RespSend, wqe(index, 0), 0),
    );
    cq.sent(index, counter, 0);
    cq.sent(index, counter, 0);
    assert_eq!((cq.poll(), cq.queue.stale()), (Some((5, 0)), 5));
    assert_eq!((cq.poll(), cq.queue.stale()), (None, 6));

    // A queue pair that was detached with requests in flight.
    let counter = qp.post();
    cq.queue.detach(index, nothing);
    cq.sent(index, counter, 0);
    assert_eq!((cq.poll(), cq.queue.stale()), (None, 7));
    // Its slot's next owner is not told of it.
    // SAFETY: the only poller.
    let next = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    cq.sent(index, counter, 0);
    cq.sent(next, counter, 0);
    assert_eq!((cq.poll(), cq.queue.stale()), (Some((5, 1)), 8));
}

#[test]
fn entries_beside_the_ring_are_told_as_those_in_it() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post());
    let sent = |user_index, counter| Cqe64::requester(wqe(user_index, counter), opcode::SEND, 0);
    cq.sent(index, counters[0], 0);
    assert_eq!(cq.queue.next_index(), 0);
    assert_eq!((cq.poll(), cq.queue.next_index()), (Some((5, 0)), 1));

    let completion = cq.queue.tell(sent(index, counters[2])).expect("told");
    assert_eq!((completion.wr_id, completion.retired), (2, 2));
    assert!(completion.result.is_ok());
    assert_eq!(qp.send.free_blocks(), 8);
    // It took its place in the ring, and gave it back.
    assert_eq!((cq.queue.next_index(), cq.records[0].load()), (2, 2));

    // Told already, of no queue pair, of another generation; and what only a ring can hold.
    let counter = qp.post();
    let with_payload = sent(index, counter).with_inline(&[1]).expect("a byte");
    let nobodys = [
        sent(index, counters[2]),
        sent(UserIndex(1), counter),
        sent(UserIndex::new(0, 1), counter),
        with_payload,
    ];
    for (count, entry) in (1..).zip(nobodys) {
        assert!(cq.queue.tell(entry).is_none());
        assert_eq!(cq.queue.stale(), count);
    }
    let wqe = wqe(index, counter);
    let entry = Cqe64::failed(CqeOpcode::ReqErr, wqe, 0, WcStatus::RetryExcErr, 7);
    let completion = cq.queue.tell(entry).expect("told");
    let failure = completion.result.expect_err("failed");
    assert_eq!((completion.wr_id, failure.vendor_err), (3, 7));
    assert_eq!(failure.status, WcStatus::RetryExcErr);

    let received = Cqe64::responder(CqeOpcode::RespSend, wqe, 9);
    assert!(cq.queue.tell(received).is_none(), "none is posted");
    // SAFETY: nothing is placed.
    unsafe { qp.recv.post(77, &[]) }.expect("room");
    qp.recv.ring();
    let completion = cq.queue.tell(received).expect("told");
    let success = completion.result.expect("placed");
    assert_eq!((completion.wr_id, success.byte_len()), (77, Some(9)));
    assert_eq!(cq.queue.stale(), 5);
}

#[test]
fn reports_without_entries_are_told_with_the_same_checks() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post());
    let mut sent = |index: UserIndex, counter, bytes| {
        let mut refused = 0;
        let told = (cq.queue).tell_sent(index.get(), counter, bytes, |_| {
            refused += 1;
            None
        });
        assert_eq!(refused, u64::from(told.is_none()));
        told.map(|told| {
            (
                told.wr_id,
                told.retired,
                told.result.expect("executed").byte_len(),
            )
        })
    };
    // The oldest, and one that tells of another before it.
    assert_eq!(sent(index, counters[0], 7), Some((0, 1, None)));
    assert_eq!(sent(index, counters[2], 0), Some((2, 2, None)));
    // Told already, of an earlier lap, of no queue pair, of another generation.
    let counter = qp.post();
    assert_eq!(sent(index, counters[2], 0), None);
    assert_eq!(sent(index, counter.wrapping_sub(1 << 16), 0), None);
    assert_eq!(sent(UserIndex(1), counter, 0), None);
    assert_eq!(sent(UserIndex::new(0, 1), counter, 0), None);
    assert_eq!(sent(index, counter, 0), Some((3, 1, None)));
    assert_eq!(qp.send.free_blocks(), 8);
    assert_eq!(cq.queue.stale(), 4);

    let mut received = |index: UserIndex, bytes| {
        let told = cq.queue.tell_received(index.get(), bytes, |_| None);
        told.map(|told| (told.wr_id, told.result.expect("placed").byte_len()))
    };
    assert_eq!(received(index, 9), None, "none is posted");
    // SAFETY: nothing is placed.
    unsafe { qp.recv.post(77, &[]) }.expect("room");
    qp.recv.ring();
    assert_eq!(received(UserIndex::new(0, 1), 9), None);
    assert_eq!(received(index, 9), Some((77, Some(9))));
    assert_eq!(cq.queue.stale(), 6);
    // The ring was left alone.
    assert_eq!((cq.queue.next_index(), cq.records[0].load()), (0, 0));
}

#[test]
fn detaching_removes_the_queue_pairs_entries_and_no_others() {
    let mut random = Random(7);
    for round in 0..if cfg!(miri) { 4 } else { 500 } {
        let cqe_size = 64 << (round % 2);
        let mut cq = Cq::new(16, cqe_size, 4);
        // Anywhere in a lap, and over the end of the indices.
        cq.start_at((random.next() as u32 & 63).wrapping_sub(32));
        let mut pairs = [qp(0), qp(1), qp(2)];
        // SAFETY: the only poller.
        let mut indices = pairs
            .each_ref()
            .map(|qp| unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("a slot"));
        for _ in 0..5 {
            let mut expected = Vec::new();
            let mut used = [0; 3];
            for _ in 0..random.below(17) {
                let of = random.below(3);
                if used[of] < 8 {
                    used[of] += 1;
                    let counter = pairs[of].post();
                    cq.sent(indices[of], counter, counter as u8);
                    expected.push((of as u32, u64::from(counter)));
                }
            }
            for _ in 0..random.below(expected.len() + 1) {
                assert_eq!(cq.poll(), Some(expected.remove(0)));
            }
            let gone = random.below(3);
            cq.queue.detach(indices[gone], nothing);
            let left = |(of, _): &(u32, u64)| *of as usize != gone;
            let lost: Vec<u64> = expected.iter().filter(|e| !left(e)).map(|e| e.1).collect();
            expected.retain(left);
            for &(of, counter) in &expected {
                // In wide entries the other half comes along.
                if cqe_size == 128 {
                    let entry = cq.memory.entry(cq.queue.ci);
                    // SAFETY: written by the device, and not given back.
                    let front = unsafe { Cqe128::around(entry) }.payload;
                    assert_eq!(front, [counter as u8; 64]);
                }
                assert_eq!(cq.poll(), Some((of, counter)));
            }
            assert_eq!(
                (cq.poll(), cq.queue.stale()),
                (None, 0),
                "of {}",
                expected.len()
            );
            assert_eq!(cq.records[0].load(), cq.written & 0xff_ffff);
            // The next life: what was not told comes back from the queue itself.
            let mut cleared = Vec::new();
            // SAFETY: poster and poller; there is no device.
            unsafe {
                pairs[gone]
                    .send
                    .clear(|request| cleared.push(request.wr_id))
            };
            assert_eq!(cleared, lost);
            pairs[gone].send.set_postable(true);
            // SAFETY: the only poller.
            let index = unsafe { cq.queue.attach_unreserved(pairs[gone].attach) };
            indices[gone] = index.expect("a slot");
        }
    }
}

#[test]
fn detaching_leaves_the_compressed_blocks_of_others() {
    for gone in 0..2 {
        let mut cq = Cq::new(32, 64, 2);
        let mut pairs = [qp(0), qp(1)];
        // SAFETY: the only poller.
        let indices = pairs
            .each_ref()
            .map(|qp| unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("a slot"));
        let counter = pairs[1].post();
        cq.sent(indices[1], counter, 0);
        // Three entries of the first, in one block; all of it is there before its title is.
        let counters = [(); 3].map(|()| pairs[0].post());
        let mut minis = [0; 64];
        for (counter, mini) in counters.iter().zip(minis.chunks_exact_mut(8)) {
            mini[..2].copy_from_slice(&(*counter as u16).to_be_bytes());
            mini[2] = opcode::SEND;
        }
        let title = Cqe64::requester(wqe(indices[0], 0), opcode::SEND, 3).to_bytes();
        let title = Cqe64::from_bytes(core::array::from_fn(|at| {
            title[at] | if at == 63 { 3 << 2 } else { 0 }
        }));
        let array = cq.memory.entry(cq.written + 1);
        // SAFETY: the device's.
        unsafe { array.write(Cqe64::from_bytes(minis)) };
        cq.write(&[0; 64], &title);
        cq.written += 2;
        let counter = pairs[1].post();
        cq.sent(indices[1], counter, 0);

        cq.queue.detach(indices[gone], nothing);
        let told: Vec<_> = core::iter::from_fn(|| cq.poll()).collect();
        let expected = [&[(1, 0), (1, 1)][..], &[(0, 0), (0, 1), (0, 2)]][gone];
        assert_eq!((&told[..], cq.queue.stale()), (expected, 0));
        assert!(!cq.queue.malformed());
    }
}

/// Guarded memory that receives and READs may write to.
struct Buffer(*mut u8);

impl Buffer {
    const LEN: usize = 128;
    const GUARD: usize = 64;

    fn new() -> Self {
        let bytes = keep_all(Self::LEN + 2 * Self::GUARD, || 0xcc_u8);
        Self(bytes.as_mut_ptr())
    }

    fn sges(&self) -> [Sge; 2] {
        let addr = self.0.expose_provenance() + Self::GUARD;
        [(0, 7), (7, Self::LEN - 7)].map(|(at, len)| Sge {
            addr: (addr + at) as u64,
            length: len as u32,
            lkey: 7,
        })
    }

    fn guarded(&self) -> bool {
        let end = Self::GUARD + Self::LEN;
        (0..Self::GUARD).chain(end..end + Self::GUARD).all(|at| {
            // SAFETY: within the kept bytes.
            unsafe { self.0.add(at).read() == 0xcc }
        })
    }
}

/// Bytes as a faulty device could write them, near enough to right ones to be looked at.
fn garbage(random: &mut Random, indices: &[UserIndex], near: u32) -> ([u8; 64], Cqe64) {
    let mut bytes = [0; 64];
    for byte in &mut bytes {
        *byte = random.next() as u8;
    }
    let front = bytes;
    if random.below(8) != 0 {
        let index = indices[random.below(indices.len())].get();
        bytes[32..36].copy_from_slice(&index.to_be_bytes());
    }
    if random.below(4) != 0 {
        let counter = near.wrapping_add(random.below(12) as u32).wrapping_sub(4);
        bytes[60..62].copy_from_slice(&(counter as u16).to_be_bytes());
    }
    if random.below(2) != 0 {
        bytes[44..48].copy_from_slice(&(random.below(200) as u32).to_be_bytes());
    }
    if random.below(4) != 0 {
        // READ, atomics, SEND.
        bytes[56] = [0x10, 0x11, 0x12, 0x0a][random.below(4)];
    }
    if random.below(64) != 0 && bytes[63] >> 2 & 3 == 3 {
        // Seldom compressed: that mostly ends the queue.
        bytes[63] ^= 4;
    }
    if bytes[63] >> 4 == 15 {
        bytes[63] ^= 0x80;
    }
    (front, Cqe64::from_bytes(bytes))
}

/// Two targets of an XRC receive queue complete through one attachment: each entry names its own.
#[test]
fn an_xrc_completion_bears_its_targets_number() {
    let mut cq = Cq::new(8, 64, 1);
    // SAFETY: kept, and used by this queue alone.
    let ring = unsafe { SrqRing::new(memory(4 * 32), 4, 32) }.expect("sizes");
    let ledger = keep(SrqLedger::new(ring, keep_all(4, SrqSlot::default)).expect("four"));
    let record = keep(DoorbellRecord::default());
    // SAFETY: the only queue on ring and ledger.
    let mut srq = unsafe { SharedRecvQueue::new(ledger, record) }.expect("a queue");
    // SAFETY: nothing is placed.
    let posted = unsafe { srq.post_list((0..3).map(|wr_id| (wr_id, &[][..]))) };
    assert_eq!(posted, Ok(()));
    let xrc = Attach {
        srq: Some((ledger, SrqUser::Xrc)),
        ..Attach::default()
    };
    // SAFETY: the only poller.
    let user_index = unsafe { cq.queue.attach(xrc) }.expect("room");
    for (slot, qpn) in [(1, 0xabcdef), (0, 7)] {
        let completed = CompletedWqe {
            qpn,
            ..wqe(user_index, slot)
        };
        cq.write(
            &[0; 64],
            &Cqe64::responder(CqeOpcode::RespSend, completed, 0),
        );
    }
    assert_eq!(cq.poll(), Some((0xabcdef, 1)));
    assert_eq!(cq.poll(), Some((7, 0)));
    let completed = CompletedWqe {
        qpn: 8,
        ..wqe(user_index, 2)
    };
    let failed = Cqe64::error(CqeOpcode::RespErr, completed, 0, Syndrome::LOCAL_LENGTH, 0);
    cq.write(&[0; 64], &failed);
    let told = cq.queue.poll_one().expect("the failed one");
    assert_eq!((told.qp_num, told.wr_id), (8, 2));
    assert_eq!(told.status(), WcStatus::LocLenErr);
    assert_eq!(told.result.expect_err("failed").counter, 2, "its entry");
}

#[test]
fn room_for_a_shared_queue_is_reserved_once() {
    let mut cq = Cq::new(16, 64, 4);
    let shared = || {
        // SAFETY: kept, and used by nobody.
        let ring = unsafe { SrqRing::new(memory(8 * 32), 8, 32) }.expect("sizes");
        &*keep(SrqLedger::new(ring, keep_all(8, SrqSlot::default)).expect("eight"))
    };
    let (first, second) = (shared(), shared());
    let attach = |ledger, qpn| Attach {
        srq: Some((ledger, SrqUser::Qp(qpn))),
        ..Attach::default()
    };
    // SAFETY: nothing is posted.
    unsafe {
        let queue = &mut cq.queue;
        let none = queue.attach_unreserved(attach(first, 1)).expect("a slot");
        let a = queue.attach(attach(first, 2)).expect("room");
        assert_eq!(queue.unreserved(), 8);
        let b = queue.attach(attach(first, 3)).expect("room");
        assert_eq!(queue.unreserved(), 8);
        let c = queue.attach(attach(second, 4)).expect("room");
        assert_eq!(queue.unreserved(), 0);
        queue.detach(a, nothing);
        assert_eq!(queue.unreserved(), 0, "for the other");
        let again = queue.attach(attach(first, 2)).expect("reserved");
        queue.detach(c, nothing);
        assert_eq!(queue.unreserved(), 8);
        queue.detach(b, nothing);
        queue.detach(again, nothing);
        assert_eq!(queue.unreserved(), 16);
        queue.detach(none, nothing);
        assert_eq!(queue.unreserved(), 16);
    }
}

/// The shared receive queue goes on when one of those that receive from it is detached, so that its
/// requests are told there and then, and those of others by a poll.
#[test]
fn detaching_tells_the_shared_requests_that_were_not_polled() {
    let mut cq = Cq::new(16, 64, 2);
    // SAFETY: kept, and used by this queue alone.
    let ring = unsafe { SrqRing::new(memory(8 * 32), 8, 32) }.expect("sizes");
    let ledger = keep(SrqLedger::new(ring, keep_all(8, SrqSlot::default)).expect("eight"));
    let record = keep(DoorbellRecord::default());
    // SAFETY: the only queue on ring and ledger.
    let mut srq = unsafe { SharedRecvQueue::new(ledger, record) }.expect("a queue");
    // SAFETY: nothing is placed.
    let posted = unsafe { srq.post_list((10..17).map(|wr_id| (wr_id, &[][..]))) };
    assert_eq!(posted, Ok(()));
    let mut pairs = [qp(1), qp(2)];
    let indices = [0, 1].map(|of: usize| {
        pairs[of].attach.recv = None;
        pairs[of].attach.srq = Some((ledger, SrqUser::Qp(of as u32 + 1)));
        // SAFETY: one of the pollers of the ledger, and the only one of the rest.
        unsafe { cq.queue.attach_unreserved(pairs[of].attach) }.expect("a slot")
    });
    for (slot, of) in [(0, 0), (1, 1), (2, 0), (3, 0), (4, 1)] {
        let entry = Cqe64::responder(CqeOpcode::RespSend, wqe(indices[of], slot), 0);
        cq.write(&[0; 64], &entry);
    }
    // A send whose counter is that of a receive in flight.
    let counter = pairs[0].post();
    cq.sent(indices[0], counter, 0);
    let lost = wqe(indices[0], 5);
    let lost = Cqe64::error(CqeOpcode::RespErr, lost, 0, Syndrome::LOCAL_PROT, 0);
    cq.write(&[0; 64], &lost);
    assert_eq!(cq.poll(), Some((1, 10)));
    let mut told = Vec::new();
    cq.queue.detach(indices[0], |wr_id, _| told.push(wr_id));
    assert_eq!(told, [12, 13, 15]);
    assert_eq!(
        [cq.poll(), cq.poll(), cq.poll()],
        [Some((2, 11)), Some((2, 14)), None]
    );
    assert_eq!(
        (cq.queue.stale(), srq.free()),
        (0, 6),
        "one is posted still"
    );
    // One that is not read back.
    let entry = Cqe64::responder(CqeOpcode::RespSend, wqe(indices[1], 6), 3);
    let completion = cq.queue.tell(entry).expect("told");
    assert_eq!((completion.qp_num, completion.wr_id), (2, 16));
    assert_eq!(srq.free(), 7);
}

/// Whatever a device writes: each completion is of a request in flight, each request is told at most
/// once, memory outside of the requests' buffers is left alone, and nothing panics.
#[test]
fn garbage_tells_of_nothing_that_is_not_in_flight() {
    let mut random = Random(8);
    let (mut told, mut stale, mut ended) = (0, 0, 0);
    for round in 0..if cfg!(miri) { 3 } else { 300 } {
        let mut cq = Cq::new(16, 64 << (round % 2), 4);
        let mut pair = qp(77);
        // SAFETY: kept, and used by this queue alone.
        let ring = unsafe { SrqRing::new(memory(8 * 64), 8, 64) }.expect("sizes");
        let slots = keep_all(8, SrqSlot::default);
        let ledger = keep(SrqLedger::new(ring, slots).expect("eight"));
        let record = keep(DoorbellRecord::default());
        // SAFETY: the only queue on ring and ledger.
        let mut srq = unsafe { SharedRecvQueue::new(ledger, record) }.expect("a queue");
        let shared = Attach {
            srq: Some((ledger, SrqUser::Qp(78))),
            ..Attach::default()
        };
        // SAFETY: the only poller.
        let indices = [pair.attach, shared]
            .map(|queues| unsafe { cq.queue.attach_unreserved(queues) }.expect("a slot"));
        let buffers = [(); 3].map(|()| Buffer::new());
        let mut flying = BTreeSet::new();
        let mut next = 0;
        let mut dropped = 0;
        for _ in 0..if cfg!(miri) { 20 } else { 400 } {
            let remote = Remote::default();
            let flags = SendFlags::SIGNALED;
            // SAFETY: the buffers are kept.
            let posted = unsafe {
                let sges = buffers.each_ref().map(Buffer::sges);
                [
                    match random.below(3) {
                        0 => pair.send.post_empty(next, (), Nop {}, flags),
                        _ => {
                            let read = RdmaRead { remote };
                            pair.send.post(next, (), read, &sges[0][..], flags)
                        }
                    },
                    pair.recv.post(next + 1, &sges[1]),
                    srq.post(next + 2, &sges[2]),
                ]
            };
            pair.send.ring();
            pair.recv.ring();
            srq.ring();
            for (wr_id, posted) in (next..).zip(posted) {
                if posted.is_ok() {
                    flying.insert(wr_id);
                }
            }
            next += 3;
            let near = pair.send.counter().wrapping_sub(4);
            let (front, entry) = garbage(&mut random, &indices, near);
            let mut first = match round % 4 {
                ..2 => {
                    cq.write(&front, &entry);
                    None
                }
                _ => cq.queue.tell(entry),
            };
            while let Some(completion) = first.take().or_else(|| cq.queue.poll_one()) {
                assert!(flying.remove(&completion.wr_id), "{completion:?}");
                assert!(matches!(completion.qp_num, 77 | 78));
                let sent = completion.wr_id.is_multiple_of(3);
                assert!(sent || completion.retired == 1);
                if sent {
                    // What was before it in the send queue went with it.
                    let before = flying.range(..completion.wr_id);
                    let before: Vec<u64> =
                        before.filter(|id| id.is_multiple_of(3)).copied().collect();
                    assert_eq!(completion.retired as usize, before.len() + 1);
                    before
                        .iter()
                        .for_each(|wr_id| assert!(flying.remove(wr_id)));
                }
                told += 1;
            }
            assert!(buffers.iter().all(Buffer::guarded));
            // A compressed block takes as many places as it stands for.
            cq.written = cq.queue.ci;
            dropped = cq.queue.stale();
            if cq.queue.malformed() {
                ended += 1;
                break;
            }
        }
        stale += dropped;
    }
    assert!(
        cfg!(miri) || told > 1000 && stale > 1000 && ended > 0,
        "{told} {stale} {ended}"
    );
}
