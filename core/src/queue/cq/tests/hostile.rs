//! Faulty devices.

use super::*;

/// Guarded memory for receives and RDMA READs.
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

/// Bytes that a faulty device could write, similar enough to valid CQEs to be processed.
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
        // Seldom compressed, because that mostly ends polling.
        bytes[63] ^= 4;
    }
    if bytes[63] >> 4 == 15 {
        bytes[63] ^= 0x80;
    }
    (front, Cqe64::from_bytes(bytes))
}

/// Whatever a device writes: each completion is of a request in flight, each request is reported at
/// most once, memory outside the requests' buffers is not written, and nothing panics.
#[test]
fn garbage_completes_nothing_that_is_not_in_flight() {
    let mut random = Random(8);
    let (mut reported, mut stale, mut ended) = (0, 0, 0);
    for round in 0..if cfg!(miri) { 1 } else { 300 } {
        let mut cq = Cq::new(16, 64 << (round % 2), 4);
        let mut pair = qp(77);
        // SAFETY: kept, and used only by this queue.
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
                // SAFETY: no device has access to the memory.
                _ => unsafe { cq.queue.complete(&entry) },
            };
            while let Some(completion) = first.take().or_else(|| cq.queue.poll_one()) {
                assert!(flying.remove(&completion.wr_id), "{completion:?}");
                assert!(matches!(completion.qp_num, 77 | 78));
                let sent = completion.wr_id.is_multiple_of(3);
                assert!(sent || completion.retired == 1);
                if sent {
                    // The requests before it in the send queue were retired with it.
                    let before = flying.range(..completion.wr_id);
                    let before: Vec<u64> =
                        before.filter(|id| id.is_multiple_of(3)).copied().collect();
                    assert_eq!(completion.retired as usize, before.len() + 1);
                    before
                        .iter()
                        .for_each(|wr_id| assert!(flying.remove(wr_id)));
                }
                reported += 1;
            }
            assert!(buffers.iter().all(Buffer::guarded));
            // A compressed block takes as many entries as it stands for.
            cq.written = cq.queue.next_index();
            dropped = cq.queue.stale();
            if cq.queue.malformed() {
                ended += 1;
                break;
            }
        }
        stale += dropped;
    }
    assert!(
        cfg!(miri) || reported > 1000 && stale > 1000 && ended > 0,
        "{reported} {stale} {ended}"
    );
}
