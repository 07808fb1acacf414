//! A device that writes nonsense: whatever stands in completion entries, nothing is reported that was not in
//! flight, nothing twice, and no byte is written outside of the memory that requests name. Entries are
//! random, or what a device could write with some of it changed; bounded by their number.

use bellwire_core::cqe::{Cqe64, Cqe128, owner_bit};
use bellwire_core::port::{DoorbellRecord, SendDoorbell, Staged};
use bellwire_core::queue::{
    Attach, ByQpNum, CompletionQueue, CqMemory, NumberSlot, QueueSlot, RecvQueue, SendQueue,
    SendQueueInit, SharedRecvQueue, SrqLedger, SrqSlot, SrqUser,
};
use bellwire_core::wqe::{Rc, RdmaRead, RecvRing, SendRing, SrqRing};
use bellwire_core::wr::{QpType, Remote, SendFlags, Sge};
use bellwire_tests::fixture::Random;
use bellwire_tests::replay;
use std::collections::BTreeSet;
use std::ptr::NonNull;

const ROUNDS: u64 = 40_000;
/// Completion queues are used up by entries that make no sense at all.
const WORLDS: u64 = 40;

const ENTRIES: u32 = 64;
const SLOTS: u32 = 8;
const NUMBERS: [u32; 2] = [0x10_0044, 0x20_0044];

/// Bytes of a request's element, and of the places that they have in the arena: between two lie bytes that
/// nobody may touch.
const ELEMENT: usize = 24;
const PLACE: usize = 64;
const PLACES: usize = 64;

struct Silent;

// SAFETY: there is no device but the test.
unsafe impl SendDoorbell for Silent {
    unsafe fn ring(&mut self, _: &Staged) {}
}

/// What is in flight of a queue, by `wr_id`s that count up.
#[derive(Default)]
struct InFlight(BTreeSet<u64>);

struct Pair {
    send: SendQueue<'static, Rc, Silent>,
    sends: InFlight,
    recv: Option<(RecvQueue<'static, &'static DoorbellRecord>, InFlight)>,
}

struct World {
    queue: CompletionQueue<'static, ByQpNum<'static>>,
    memory: CqMemory<'static>,
    written: u32,
    pairs: [Pair; 2],
    srq: SharedRecvQueue<'static>,
    shared: InFlight,
    arena: NonNull<u8>,
    next: u64,
}

fn leak<T>(count: usize, value: impl Fn() -> T) -> &'static mut [T] {
    (0..count).map(|_| value()).collect::<Vec<T>>().leak()
}

impl World {
    fn new(cqe_size: u32) -> Self {
        let bytes = (ENTRIES * cqe_size) as usize;
        // SAFETY: leaked, and used by this queue alone.
        let memory = unsafe { CqMemory::new(replay::memory(bytes), ENTRIES, cqe_size) };
        let memory = memory.expect("sizes");
        let naming = ByQpNum::new(leak(8, NumberSlot::default)).expect("a power of two");
        let records: &[DoorbellRecord; 2] = Box::leak(Box::default());
        // SAFETY: the only consumer.
        let mut queue = unsafe {
            let slots = leak(4, QueueSlot::default);
            CompletionQueue::with_naming(memory, slots, records, naming)
        };
        // SAFETY: leaked, and used by this queue alone.
        let ring = unsafe { SrqRing::new(replay::memory(8 * 64), SLOTS, 64) }.expect("sizes");
        let slots = leak(SLOTS as usize, SrqSlot::default);
        let ledger: &_ = Box::leak(Box::new(SrqLedger::new(ring, slots).expect("as many")));
        // SAFETY: ring, ledger and record are leaked, and used by this queue alone.
        let srq = unsafe { SharedRecvQueue::new(ledger, replay::record()) }.expect("a queue");
        let pairs = NUMBERS.map(|number| {
            let own = number == NUMBERS[0];
            let (send_ledger, recv_ledger) =
                (replay::ledger(SLOTS, number), replay::ledger(SLOTS, number));
            // SAFETY: all memory is leaked, and used by these queues alone; only `queue` polls the ledgers.
            unsafe {
                let ring = SendRing::new(replay::memory(8 * 64), SLOTS).expect("sizes");
                let recv_ring = RecvRing::new(replay::memory(8 * 64), SLOTS, 64).expect("sizes");
                let mut send = SendQueue::new(SendQueueInit {
                    ring,
                    ledger: send_ledger,
                    doorbell: Silent,
                    max_sge: 1,
                    max_inline: 0,
                    signal_all: false,
                })
                .expect("a queue");
                let record: &'static DoorbellRecord = replay::record();
                let mut recv = RecvQueue::new(recv_ring, recv_ledger, record).expect("a queue");
                send.set_postable(true);
                recv.set_postable(true);
                let attach = Attach {
                    send: Some((send_ledger, ring, QpType::Rc)),
                    recv: own.then_some((recv_ledger, recv_ring)),
                    srq: (!own).then_some((ledger, SrqUser::Qp(number))),
                    ..Attach::default()
                };
                queue.attach_unreserved(attach).expect("a slot");
                Pair {
                    send,
                    sends: InFlight::default(),
                    recv: own.then(|| (recv, InFlight::default())),
                }
            }
        });
        Self {
            queue,
            memory,
            written: 0,
            pairs,
            srq,
            shared: InFlight::default(),
            arena: replay::memory(PLACE * PLACES),
            next: 0,
        }
    }

    fn sge(&self, wr_id: u64) -> Sge {
        // SAFETY: within the arena.
        let place = unsafe { self.arena.add(wr_id as usize % PLACES * PLACE) };
        Sge {
            addr: place.as_ptr().expose_provenance() as u64,
            length: ELEMENT as u32,
            lkey: 7,
        }
    }

    /// Posts whatever there is room for.
    fn post(&mut self) {
        for of in 0..2 {
            while self.pairs[of].send.free_blocks() != 0 {
                let (wr_id, sge) = (self.next, self.sge(self.next));
                let read = RdmaRead {
                    remote: Remote { addr: 0, rkey: 0 },
                };
                let pair = &mut self.pairs[of];
                // SAFETY: the arena stays.
                unsafe { pair.send.post(wr_id, (), read, sge, SendFlags::SIGNALED) }.expect("room");
                pair.sends.0.insert(wr_id);
                self.next += 1;
            }
            self.pairs[of].send.ring();
        }
        while (self.pairs[0].recv.as_ref()).is_some_and(|(recv, _)| recv.free() != 0) {
            let (wr_id, sge) = (self.next, self.sge(self.next));
            if let Some((recv, receives)) = &mut self.pairs[0].recv {
                // SAFETY: the arena stays.
                unsafe { recv.post(wr_id, &[sge]) }.expect("room");
                receives.0.insert(wr_id);
                recv.ring();
            }
            self.next += 1;
        }
        while self.srq.free() != 0 {
            let (wr_id, sge) = (self.next, self.sge(self.next));
            // SAFETY: the arena stays.
            unsafe { self.srq.post(wr_id, &[sge]) }.expect("room");
            self.shared.0.insert(wr_id);
            self.next += 1;
        }
        self.srq.ring();
    }

    /// An entry of a faulty device.
    fn write(&mut self, random: &mut Random) {
        let mut bytes: [u8; 64] = random.array();
        if random.below(4) != 0 {
            // Plausible: a queue pair that is there, a counter that may be in flight, a length.
            let number = NUMBERS[random.below(2) as usize];
            bytes[57..60].copy_from_slice(&number.to_be_bytes()[1..]);
            let head = self.pairs[random.below(2) as usize].send.counter() as u16;
            let counter = head.wrapping_sub(random.below(12) as u16);
            bytes[60..62].copy_from_slice(&counter.to_be_bytes());
            let length =
                [random.below(80), random.number() & 0xffff_ffff][random.below(8) as usize / 7];
            bytes[44..48].copy_from_slice(&(length as u32).to_be_bytes());
            let opcode = [0, 1, 2, 3, 4, 13, 14, random.below(15)][random.below(8) as usize];
            bytes[63] = (opcode as u8) << 4 | (random.below(3) as u8) << 2;
            bytes[56] = [0x10, 0x08, random.number() as u8][random.below(3) as usize];
        }
        let makes_sense = random.below(300) != 0;
        if makes_sense && bytes[63] & 0xc == 0xc {
            // A compressed block that makes none is the end of the queue.
            bytes[63] &= !0x4;
        }
        if bytes[63] >> 4 == 0xf {
            bytes[63] &= 0x7f;
        }
        let entry = Cqe64::from_bytes(bytes);
        let owner = owner_bit(self.written, ENTRIES);
        let place = self.memory.entry(self.written);
        // SAFETY: everything before was polled.
        unsafe {
            match self.memory.cqe_size() {
                64 => Cqe64::publish(place, &entry, entry.op_own() & !1 | owner),
                _ => {
                    let payload = random.array();
                    let wide = Cqe128 {
                        payload,
                        cqe: entry,
                    };
                    Cqe128::publish(place, &wide, entry.op_own() & !1 | owner);
                }
            }
        }
        self.written = self.written.wrapping_add(1);
    }

    /// Polls everything; each completion is of a request in flight. How many there were.
    fn poll(&mut self) -> u64 {
        // A block stands for no more entries than the ring has.
        for count in 0..=u64::from(ENTRIES) {
            let Some(completion) = self.queue.poll_one() else {
                return count;
            };
            let wr_id = completion.wr_id;
            let number = completion.qp_num;
            assert!(NUMBERS.contains(&number), "{completion:?}");
            let pair = &mut self.pairs[usize::from(number == NUMBERS[1])];
            let mut queues = [
                Some(&mut pair.sends),
                pair.recv.as_mut().map(|(_, all)| all),
            ];
            let mut queues = queues.iter_mut().flatten();
            if let Some(queue) = queues.find(|queue| queue.0.contains(&wr_id)) {
                // In order: those before it are retired with it.
                let before = queue.0.range(..=wr_id).count();
                assert_eq!(completion.retired as usize, before);
                queue.0.retain(|&other| other > wr_id);
            } else {
                assert!(number == NUMBERS[1], "{completion:?}");
                assert!(self.shared.0.remove(&wr_id), "{completion:?}");
            }
        }
        panic!("more completions than the ring has entries");
    }

    fn check_arena(&self) {
        // SAFETY: nobody writes meanwhile.
        let arena = unsafe { replay::snapshot(self.arena, PLACE * PLACES) };
        for place in arena.chunks(PLACE) {
            let between = &place[ELEMENT..];
            assert!(between.iter().all(|&byte| byte == replay::UNTOUCHED));
        }
    }
}

fn run(cqe_size: u32) {
    let mut random = Random::new(cqe_size.into());
    let mut polled = 0;
    for world in 0..WORLDS {
        let mut w = World::new(cqe_size);
        for _ in 0..ROUNDS / WORLDS {
            w.post();
            w.write(&mut random);
            polled += w.poll();
            if w.queue.malformed() {
                assert!(w.queue.poll_one().is_none(), "nothing is polled any more");
                break;
            }
        }
        w.check_arena();
        assert!(w.queue.stale() > 0 || w.queue.malformed(), "world {world}");
    }
    assert!(polled > ROUNDS / 50, "{polled}: the entries are too wild");
}

#[test]
fn nonsense_in_entries_of_64_bytes_completes_nothing_else() {
    run(64);
}

#[test]
fn nonsense_in_entries_of_128_bytes_completes_nothing_else() {
    run(128);
}
