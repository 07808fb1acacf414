//! The completion queue: what it reports for which queue pair, what it drops, and its behaviour
//! with a faulty device.

use super::super::tests::{keep, keep_all, memory};
use super::*;
use crate::cqe::{CompletedWqe, Cqe128, CqeOpcode, Syndrome, owner_bit};
use crate::port::{SendDoorbell, Staged};
use crate::queue::{Attach, AttachError, Failure, Ledger, SrqLedger, SrqUser};
use crate::queue::{LedgerSlot, RecvQueue, SendQueue, SendQueueInit, SharedRecvQueue, SrqSlot};
use crate::random::Random;
use crate::slab::Block;
use crate::wqe::RecvRing;
use crate::wqe::{Nop, Rc, RdmaRead, Send, SendRing, SrqRing, opcode};
use crate::wr::{QpType, Remote, SendFlags, Sge, WcStatus};
use std::collections::BTreeSet;
use std::vec::Vec;

mod batch;
mod detaching;
mod history;
mod hostile;
mod naming;
mod panics;
mod plain;
mod received;
mod reporting;
mod shared;

/// A doorbell without a device.
struct Silent;

// SAFETY: there is no device.
unsafe impl SendDoorbell for Silent {
    unsafe fn ring(&mut self, _: &Staged) {}
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
        // SAFETY: kept, and used only by this queue.
        let memory = unsafe { CqMemory::new(memory((count * cqe_size) as usize), count, cqe_size) };
        let memory = memory.expect("sizes");
        let records = &*keep(<[DoorbellRecord; 2]>::default());
        let slots = keep_all(slots, QueueSlot::default);
        // SAFETY: this is the only consumer.
        let queue = unsafe { CompletionQueue::new(memory, slots, records) };
        Self {
            queue,
            memory,
            records,
            written: 0,
        }
    }

    /// Starts at an index that the device would take long to reach.
    fn start_at(&mut self, index: u32) {
        self.queue.next = Cursor::at(&self.memory, index);
        self.written = index;
        let count = self.memory.count();
        for at in 0..count {
            let at = index.wrapping_add(at);
            // A CQE of the previous lap: read, and not overwritten.
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
        assert!(self.written.wrapping_sub(self.queue.next_index()) < self.memory.count());
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

    /// Completes the send request at `counter`; `mark` is in the other half of the CQE.
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

/// A queue pair of 8 send blocks and 8 receives. The `wr_id`s of its requests are their counters.
struct Qp {
    send: SendQueue<'static, Rc, Silent>,
    recv: RecvQueue<'static, &'static DoorbellRecord>,
    attach: Attach<'static>,
}

fn qp(qp_num: u32) -> Qp {
    let ledger = || &*keep(Ledger::new(keep_all(8, LedgerSlot::default), qp_num).expect("8"));
    let (send_ledger, recv_ledger) = (ledger(), ledger());
    // SAFETY: kept, and used only by this queue pair.
    unsafe {
        let ring = SendRing::new(memory(8 * 64), 8).expect("sizes");
        let recv_ring = RecvRing::new(memory(8 * 64), 8, 64).expect("sizes");
        let mut send = SendQueue::new(SendQueueInit {
            ring,
            ledger: send_ledger,
            doorbell: Silent,
            max_sge: 4,
            max_inline: 0,
            signal_all: false,
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
                ..Attach::default()
            },
        }
    }
}

/// A shared receive queue of as many entries, a power of two.
fn shared_queue(count: u32) -> (&'static SrqLedger<'static>, SharedRecvQueue<'static>) {
    // SAFETY: kept, and used only by this queue.
    let ring = unsafe { SrqRing::new(memory(count as usize * 32), count, 32) }.expect("sizes");
    let slots = keep_all(count as usize, SrqSlot::default);
    let ledger = &*keep(SrqLedger::new(ring, slots).expect("as many"));
    let record = keep(DoorbellRecord::default());
    // SAFETY: the only queue on ring and ledger.
    let queue = unsafe { SharedRecvQueue::new(ledger, record) }.expect("a queue");
    (ledger, queue)
}

/// Queue pairs 1 and 2, which receive from it.
fn sharing(cq: &mut Cq, ledger: &'static SrqLedger<'static>) -> ([Qp; 2], [UserIndex; 2]) {
    let mut pairs = [qp(1), qp(2)];
    let indices = [0, 1].map(|of: usize| {
        pairs[of].attach.recv = None;
        pairs[of].attach.srq = Some((ledger, SrqUser::Qp(of as u32 + 1)));
        // SAFETY: one of the pollers of the shared ledger, and the only poller of the others.
        unsafe { cq.queue.attach_unreserved(pairs[of].attach) }.expect("a slot")
    });
    (pairs, indices)
}

impl Qp {
    /// Posts a signalled SEND, and returns its counter.
    fn post(&mut self) -> u32 {
        self.post_with(SendFlags::SIGNALED)
    }

    fn post_with(&mut self, flags: SendFlags) -> u32 {
        let counter = self.send.counter();
        let posted = self.send.post_empty(u64::from(counter), (), Send {}, flags);
        posted.expect("room");
        self.send.ring();
        counter
    }
}

/// For queue pairs with their own receive queues, where detaching reports nothing.
fn nothing(wr_id: u64, _: Option<Block<'static>>) {
    panic!("{wr_id}");
}
