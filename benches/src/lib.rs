//! What the benches share: queues over ordinary memory, with a device that only prepares completion
//! entries; two ends of a connection over the software HCA, as
//! queue pairs and as links, and many.

mod links;
mod many;

pub use links::{Links, links};
pub use many::{Many, SMALL, SetUp};

use bellwire::memory::{Mapping, Pages};
use bellwire::{AccessFlags, ConnectAttr, Cq, Device, Endpoint, Pd, Qp, QpInit, Region};
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
const REGISTER: usize = 256;

/// A queue pair and its completion queue over ordinary memory, the register included. Lives as long
/// as the program.
pub struct MemoryDevice {
    /// The send queue, on a BlueFlame doorbell.
    pub sq: SendQueue<'static, Rc, BlueFlame<'static>>,
    /// The receive queue.
    pub rq: RecvQueue<'static, &'static DoorbellRecord>,
    /// The completion queue of both.
    pub cq: CompletionQueue<'static>,
    memory: CqMemory<'static>,
    user_index: UserIndex,
    produced: u32,
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
            let send_ring = SendRing::new(zeroed(ENTRIES as usize * 64), ENTRIES).expect("ring");
            let recv_ring =
                RecvRing::new(zeroed(ENTRIES as usize * 16), ENTRIES, 16).expect("ring");
            let send_ledger =
                leak(Ledger::new(records::<LedgerSlot<'_>>(ENTRIES), QPN).expect("a power of two"));
            let recv_ledger =
                leak(Ledger::new(records::<LedgerSlot<'_>>(ENTRIES), QPN).expect("a power of two"));
            let doorbell = BlueFlame::new(
                leak(DoorbellRecord::default()),
                zeroed(2 * REGISTER).cast(),
                REGISTER,
                send_ring,
            );
            let init = SendQueueInit {
                ring: send_ring,
                ledger: send_ledger,
                doorbell,
                max_sge: 1,
                max_inline,
                signal_all: false,
            };
            let mut sq = SendQueue::new(init).expect("fits");
            let record = leak(DoorbellRecord::default());
            let mut rq = RecvQueue::new(recv_ring, recv_ledger, record).expect("fits");
            sq.set_postable(true);
            rq.set_postable(true);
            // Half of it is not reserved, so that entries are returned to the device in batches.
            let memory = CqMemory::new(zeroed(4 * ENTRIES as usize * 64), 4 * ENTRIES, 64);
            let memory = memory.expect("fits");
            let mut cq = CompletionQueue::new(
                memory,
                records::<QueueSlot<'_>>(16),
                leak(Default::default()),
            );
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

/// One end of a connection.
pub struct End {
    /// Completion queue of both directions.
    pub cq: Cq,
    /// The queue pair, in RTS.
    pub qp: Qp,
    /// Memory, open to the peer.
    pub region: Region,
}

impl End {
    fn new(pd: &Pd) -> Self {
        Self::with(pd, &QpInit::default())
    }

    fn with(pd: &Pd, init: &QpInit) -> Self {
        let (sends, receives) = init.cq_entries();
        let mut cq = pd.device().create_cq(sends + receives).expect("fits");
        let qp = pd.create_qp(&mut cq, init).expect("fits");
        let mapping = Mapping::shared("bellwire-bench", 1 << 16)
            .pages(Pages::Base)
            .build();
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let region = Region::new(pd, mapping.expect("memory"), access).expect("a key");
        Self { cq, qp, region }
    }
}

/// An end that is connected with itself.
///
/// # Panics
/// When the device has no room for it.
pub fn looped(device: &Device) -> End {
    looped_with(device, QpInit::default().max_inline_data)
}

/// As [`looped`], for requests of up to `max_inline_data` bytes inline.
pub fn looped_with(device: &Device, max_inline_data: u32) -> End {
    let init = QpInit {
        max_inline_data,
        ..QpInit::default()
    };
    let mut end = End::with(&device.alloc_pd(), &init);
    let peer = end.qp.endpoint();
    connect(&mut end.qp, &peer);
    end
}

/// Two connected ends, executing inline.
pub fn ends() -> (End, End) {
    let pd = Device::soft(Default::default()).alloc_pd();
    connected(End::new(&pd), End::new(&pd))
}

/// Two connected ends on two nodes of a fabric, as those of two processes.
pub fn nodes() -> (End, End) {
    let name = format!("bellwire-bench-{}", std::process::id());
    let end = || {
        let device = Device::join(&name, Default::default()).expect("a node");
        End::new(&device.alloc_pd())
    };
    connected(end(), end())
}

fn connected(mut a: End, mut b: End) -> (End, End) {
    let endpoints = [b.qp.endpoint(), a.qp.endpoint()];
    connect(&mut a.qp, &endpoints[0]);
    connect(&mut b.qp, &endpoints[1]);
    (a, b)
}

fn connect(qp: &mut Qp, peer: &Endpoint) {
    let connect = ConnectAttr::default();
    qp.init(&connect).expect("from RESET");
    qp.connect(peer, &connect).expect("from INIT");
}
