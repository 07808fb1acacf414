//! Queues over ordinary memory, with a device that only prepares completion entries.

use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, owner_bit};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{
    Attach, BlueFlame, CompletionQueue, CqMemory, Ledger, LedgerSlot, QueueSlot, RecvQueue,
    SendQueue, SendQueueInit, UserIndex,
};
use bellwire_core::wqe::{Rc, RecvRing, SendRing};
use bellwire_core::wr::QpType;
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;

/// Number of the queue pair.
const QPN: u32 = 0x1234;

/// Blocks and receives of the rings.
pub const ENTRIES: u32 = 256;

/// Bytes of one half of the register.
pub const REGISTER: usize = 256;

/// A queue pair and its completion queue over ordinary memory, the register included. Lives as long
/// as the program.
pub struct MemoryDevice {
    /// The send queue, on a BlueFlame doorbell.
    pub sq: SendQueue<'static, Rc, BlueFlame<'static>>,
    /// The receive queue.
    pub rq: RecvQueue<'static, &'static DoorbellRecord>,
    /// The completion queue of both.
    pub cq: CompletionQueue<'static>,
    /// The memory that the device reads.
    pub seen: Seen,
    memory: CqMemory<'static>,
    user_index: UserIndex,
    produced: u32,
}

/// Where the device reads what the queues write.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The send ring, of [`ENTRIES`] blocks.
    pub send_ring: NonNull<u8>,
    /// The receive ring, of [`ENTRIES`] entries of 16 bytes.
    pub recv_ring: NonNull<u8>,
    /// The doorbell record of the send queue.
    pub send_record: &'static DoorbellRecord,
    /// The doorbell record of the receive queue.
    pub recv_record: &'static DoorbellRecord,
    /// The consumer record and the arm record of the completion queue.
    pub cq_records: &'static [DoorbellRecord; 2],
    /// The register, both halves.
    pub register: NonNull<u64>,
}

fn zeroed(bytes: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(bytes, 4096).expect("a size");
    // SAFETY: not of size zero.
    NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory")
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn records<T: Default>(count: u32) -> &'static mut [T] {
    Box::leak((0..count).map(|_| T::default()).collect())
}

impl MemoryDevice {
    /// A device for requests of up to `max_inline` bytes inline, in RTS.
    pub fn new(max_inline: u32) -> Self {
        // SAFETY: memory of the right sizes that is never freed, used by these queues alone.
        unsafe {
            let (sends, receives) = (zeroed(ENTRIES as usize * 64), zeroed(ENTRIES as usize * 16));
            let send_ring = SendRing::new(sends, ENTRIES).expect("ring");
            let recv_ring = RecvRing::new(receives, ENTRIES, 16).expect("ring");
            let send_ledger =
                leak(Ledger::new(records::<LedgerSlot<'_>>(ENTRIES), QPN).expect("a power of two"));
            let recv_ledger =
                leak(Ledger::new(records::<LedgerSlot<'_>>(ENTRIES), QPN).expect("a power of two"));
            let send_record = leak(DoorbellRecord::default());
            let register = zeroed(2 * REGISTER).cast();
            let doorbell = BlueFlame::new(send_record, register, REGISTER, send_ring);
            let init = SendQueueInit {
                ring: send_ring,
                ledger: send_ledger,
                doorbell,
                max_sge: 1,
                max_inline,
                signal_all: false,
            };
            let mut sq = SendQueue::new(init).expect("fits");
            let recv_record = leak(DoorbellRecord::default());
            let mut rq = RecvQueue::new(recv_ring, recv_ledger, recv_record).expect("fits");
            sq.set_postable(true);
            rq.set_postable(true);
            // Half of it is not reserved, so that entries are returned to the device in batches.
            let memory = CqMemory::new(zeroed(4 * ENTRIES as usize * 64), 4 * ENTRIES, 64);
            let memory = memory.expect("fits");
            let cq_records = leak(Default::default());
            let mut cq = CompletionQueue::new(memory, records::<QueueSlot<'_>>(16), cq_records);
            let both = Attach {
                send: Some((send_ledger, send_ring, QpType::Rc)),
                recv: Some((recv_ledger, recv_ring)),
                ..Attach::default()
            };
            let user_index = cq.attach(both).expect("room");
            Self {
                sq,
                rq,
                cq,
                seen: Seen {
                    send_ring: sends,
                    recv_ring: receives,
                    send_record,
                    recv_record,
                    cq_records,
                    register,
                },
                memory,
                user_index,
                produced: 0,
            }
        }
    }

    fn produce(&mut self, entry: Cqe64) {
        let (index, count) = (self.produced, self.memory.count());
        let op_own = entry.op_own() | owner_bit(index, count);
        // SAFETY: the consumer has passed the entry's last use: no more are produced than posted.
        unsafe { Cqe64::publish(self.memory.entry(index), &entry, op_own) };
        self.produced = self.produced.wrapping_add(1);
    }

    fn completed(&self, counter: u32) -> CompletedWqe {
        CompletedWqe {
            qpn: QPN,
            user_index: self.user_index.get(),
            wqe_counter: counter as u16,
        }
    }

    /// Prepares completions for the next `requests` requests of `blocks` blocks each, of which each
    /// `every`-th has one.
    pub fn complete_sends(&mut self, requests: u32, blocks: u32, every: u32) {
        let first = self.sq.counter();
        for at in (every - 1..requests).step_by(every as usize) {
            let completed = self.completed(first.wrapping_add(at * blocks));
            self.produce(Cqe64::requester(completed, 0x08, 0));
        }
    }

    /// Prepares completions for the next `requests` receives, of messages of `bytes` bytes that the
    /// device has placed itself.
    pub fn complete_receives(&mut self, requests: u32, bytes: u32) {
        for _ in 0..requests {
            let completed = self.completed(0);
            self.produce(Cqe64::responder(CqeOpcode::RespSend, completed, bytes));
        }
    }
}
