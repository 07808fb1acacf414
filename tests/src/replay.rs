//! What replaying recorded rows takes: memory, a send queue at any counter, and the device's hand at
//! a completion queue.

use bellwire_core::cqe::{CompletedWqe, Cqe64, Cqe128, CqeOpcode, owner_bit};
use bellwire_core::port::{DoorbellRecord, SendDoorbell};
use bellwire_core::queue::{
    Attach, Completion, CompletionQueue, CqMemory, Ledger, LedgerSlot, QueueSlot, SendQueue,
    UserIndex,
};
use bellwire_core::wqe::{Address, Inline, Nop, Supports, Transport, opcode};
use bellwire_core::wr::SendFlags;
use std::alloc::{Layout, alloc};
use std::ptr::NonNull;

/// What queue memory is filled with before anything is written to it.
pub const UNTOUCHED: u8 = 0xcc;

/// `len` bytes of [`UNTOUCHED`], aligned to 4096; they stay until the process ends.
pub fn memory(len: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(len, 4096).expect("small");
    // SAFETY: nobody asks for none.
    let memory = NonNull::new(unsafe { alloc(layout) }).expect("memory");
    // SAFETY: just allocated.
    unsafe { memory.write_bytes(UNTOUCHED, len) };
    memory
}

/// A copy of `len` bytes at `from`.
///
/// # Safety
/// They are readable, and nobody writes them meanwhile.
pub unsafe fn snapshot(from: NonNull<u8>, len: usize) -> Vec<u8> {
    // SAFETY: the caller guarantees that the bytes are readable, and that nobody writes them meanwhile.
    unsafe { NonNull::slice_from_raw_parts(from, len).as_ref() }.to_vec()
}

/// A doorbell record of the process' lifetime.
pub fn record() -> &'static DoorbellRecord {
    Box::leak(Box::default())
}

/// The bytes of a doorbell record.
pub fn record_bytes(record: &DoorbellRecord) -> [u8; 4] {
    record.load().to_be_bytes()
}

/// A ledger of the process' lifetime.
///
/// # Panics
/// `slots` is not a power of two, or more than 32768.
pub fn ledger(slots: u32, qpn: u32) -> &'static Ledger<'static> {
    let slots: Vec<LedgerSlot> = (0..slots).map(|_| LedgerSlot::default()).collect();
    let ledger = Ledger::new(Box::leak(slots.into_boxed_slice()), qpn);
    Box::leak(Box::new(ledger.expect("a power of two")))
}

/// A completion queue, and the device that writes to it.
#[derive(Debug)]
pub struct Completions {
    /// The queue.
    pub queue: CompletionQueue<'static>,
    memory: CqMemory<'static>,
    written: u32,
    /// The consumer index and the arm word.
    pub records: &'static [DoorbellRecord; 2],
}

impl Completions {
    /// A queue of `count` entries of `cqe_size` bytes, with room for 16 queue pairs.
    ///
    /// # Panics
    /// These are no sizes of a completion queue.
    pub fn new(count: u32, cqe_size: u32) -> Self {
        // SAFETY: leaked, and used by this queue alone.
        let memory = unsafe { CqMemory::new(memory((count * cqe_size) as usize), count, cqe_size) };
        let memory = memory.expect("sizes of a completion queue");
        let slots: Vec<QueueSlot> = (0..16).map(|_| QueueSlot::default()).collect();
        let records: &[DoorbellRecord; 2] = Box::leak(Box::default());
        // SAFETY: the only consumer.
        let queue = unsafe { CompletionQueue::new(memory, slots.leak(), records) };
        Self {
            queue,
            memory,
            written: 0,
            records,
        }
    }

    /// Entries written by now.
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Attaches queues, without reserving entries for them.
    ///
    /// # Safety
    /// As [`CompletionQueue::attach`].
    ///
    /// # Panics
    /// 16 are attached.
    pub unsafe fn attach(&mut self, queues: Attach<'static>) -> UserIndex {
        // SAFETY: the caller guarantees that this completion queue alone polls the queues' ledgers.
        unsafe { self.queue.attach_unreserved(queues) }.expect("a slot")
    }

    /// Writes an entry, with the owner bit of its place.
    pub fn write(&mut self, entry: &Cqe64) {
        let owner = owner_bit(self.written, self.memory.count());
        self.write_as(&[UNTOUCHED; 64], entry, entry.op_own() & !1 | owner);
    }

    /// Writes an entry as it is, and what stands before it where entries have 128 bytes.
    pub fn write_as(&mut self, payload: &[u8; 64], entry: &Cqe64, op_own: u8) {
        let place = self.memory.entry(self.written);
        // SAFETY: an entry of the ring, returned by the consumer: no test writes more than it polls.
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

    /// Writes and polls entries of no queue until `written` is `count`.
    pub fn skip_to(&mut self, count: u32) {
        let nobody = CompletedWqe {
            user_index: 0xff_ffff,
            ..CompletedWqe::default()
        };
        while self.written != count {
            self.write(&Cqe64::requester(nobody, opcode::NOP, 0));
            assert!(
                self.queue.poll_one().is_none(),
                "reported of nobody's request"
            );
        }
    }

    /// The completion of the send request at `counter`.
    ///
    /// # Panics
    /// It is not reported.
    pub fn complete_send(&mut self, user_index: UserIndex, counter: u32) -> Completion<'static> {
        let wqe = CompletedWqe {
            user_index: user_index.get(),
            wqe_counter: counter as u16,
            ..CompletedWqe::default()
        };
        self.write(&Cqe64::requester(wqe, opcode::NOP, 0));
        self.queue.poll_one().expect("a request in flight")
    }

    /// The completion of the next receive, or of the one in `slot` of a shared receive queue.
    ///
    /// # Panics
    /// It is not reported.
    pub fn complete_recv(&mut self, user_index: UserIndex, slot: u16) -> Completion<'static> {
        let wqe = CompletedWqe {
            user_index: user_index.get(),
            wqe_counter: slot,
            ..CompletedWqe::default()
        };
        self.write(&Cqe64::responder(CqeOpcode::RespSend, wqe, 0));
        self.queue.poll_one().expect("a receive in flight")
    }
}

/// Posts and completes NOPs until the queue's next entry has the counter `counter`.
///
/// # Panics
/// More requests are in flight than leave room for the next.
pub fn advance<T: Transport + Supports<Nop>, D: SendDoorbell>(
    queue: &mut SendQueue<'static, T, D>,
    completions: &mut Completions,
    user_index: UserIndex,
    counter: u16,
    address: Address<'_, T>,
) {
    let inline = vec![0; queue.limits().max_inline as usize];
    loop {
        let (head, free) = (queue.counter(), queue.free_blocks());
        let ahead = u32::from(counter.wrapping_sub(head as u16));
        if ahead == 0 {
            return;
        }
        // As long as it may be: control segment, length, bytes.
        let longest = (ahead.min(free) as usize * 64).saturating_sub(20);
        let bytes = match longest {
            0..64 => &[],
            _ => &inline[..longest.min(inline.len())],
        };
        // SAFETY: an inline entry names no memory.
        unsafe { queue.post(0, address, Nop {}, Inline(bytes), SendFlags::SIGNALED) }
            .expect("room for a NOP");
        queue.ring();
        let _ = completions.complete_send(user_index, head);
    }
}
