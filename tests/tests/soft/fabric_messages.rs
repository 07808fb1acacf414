//! Messages between nodes of a fabric, whose data the peer maps or does not: longer than a packet, longer
//! than the ring that packets stand in, longer than what is fetched at once, in pieces, into a shared
//! receive queue, and when no receive is posted.

use bellwire::be::Be32;
use bellwire::memory::Mapping;
use bellwire::queue::{Imm, Success};
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{Remote, Sge, WcStatus};
use bellwire::{ConnectAttr, Cq, Device, Pd, Qp, QpInit, Region, Srq, SrqInit};
use bellwire_tests::fixture::*;
use std::time::Instant;

/// Around a packet, around what the ring holds, around what is fetched at once, and far beyond.
const LENGTHS: [usize; 10] = [
    769,
    4096,
    4097,
    8192,
    100_001,
    262_144,
    700_000,
    MIB,
    MIB + 1,
    3_000_001,
];
const MIB: usize = 1 << 20;
const BYTES: usize = 4 << 20;

/// Most elements of a request: more than are handled without the lock.
const MOST: u32 = 10;

struct Side {
    qp: Qp,
    cq: Cq,
    region: Region,
    pd: Pd,
    srq: Option<Srq>,
}

impl Side {
    /// `mapped`: peers may map its memory.
    fn new(device: &Device, shares: bool, mapped: bool) -> Self {
        let pd = device.alloc_pd();
        let init = QpInit {
            max_send_sge: MOST,
            ..init()
        };
        let mut cq = cq_for(device, &init);
        let of_three = SrqInit {
            max_sge: 3,
            ..SrqInit::default()
        };
        let srq = shares.then(|| pd.create_srq(&of_three).expect("a queue"));
        let qp = match &srq {
            Some(srq) => pd.create_qp_on_srq(&mut cq, srq, &init),
            None => pd.create_qp(&mut cq, &init),
        };
        let mapping = match mapped {
            true => Mapping::shared("messages", BYTES),
            false => Mapping::anonymous(BYTES),
        };
        let mapping = mapping.build().expect("memory");
        Self {
            qp: qp.expect("a queue pair"),
            cq,
            region: Region::new(&pd, mapping, ALL).expect("a region"),
            pd,
            srq,
        }
    }

    fn receive(&mut self, sges: &[Sge]) {
        match &mut self.srq {
            Some(srq) => {
                // SAFETY: the region outlives the queue.
                unsafe { srq.post(7, sges) }.expect("room");
                srq.ring();
            }
            None => {
                post_recv(&mut self.qp, 7, sges).expect("room");
                self.qp.rq().ring();
            }
        }
    }

    fn fill(&self, byte: u8) {
        self.region.write(0, &vec![byte; BYTES]);
    }
}

/// Whether the receiver has a shared receive queue, and whether memory may be mapped.
const KINDS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

fn sides(shares: bool, mapped: bool) -> (Device, Device, Side, Side) {
    let fabric = fabric_name();
    let (here, there) = (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline));
    let (a, b) = connected(&here, &there, shares, mapped);
    (here, there, a, b)
}

fn connected(here: &Device, there: &Device, shares: bool, mapped: bool) -> (Side, Side) {
    let (mut a, mut b) = (
        Side::new(here, false, mapped),
        Side::new(there, shares, mapped),
    );
    let attr = ConnectAttr {
        timeout: 18,
        rnr_retry: 7,
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    };
    connect_with(&mut a.qp, &mut b.qp, &attr);
    (a, b)
}

/// Polls both until one request of `a` and `of_b` of `b` have completed.
fn settle(a: &mut Side, b: &mut Side, of_b: usize) -> Vec<(u64, Option<u32>)> {
    let mut completed = Vec::new();
    settle_all(a, b, of_b, |wr_id, done| {
        completed.push((wr_id, done.byte_len()));
    });
    completed
}

/// Like [`settle`], with everything that the completions say.
fn settle_all(a: &mut Side, b: &mut Side, of_b: usize, mut each: impl FnMut(u64, Success)) {
    let (start, mut left) = (Instant::now(), [1, of_b]);
    while left != [0, 0] {
        for (at, side) in [&mut *a, &mut *b].into_iter().enumerate() {
            side.cq.poll(4, |done| {
                assert_eq!(done.status(), WcStatus::Success, "{done:?}");
                left[at] -= 1;
                each(done.wr_id, done.result.expect("just so"));
            });
        }
        assert!(start.elapsed() < DEADLINE, "{left:?} never complete");
    }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    Random::new(seed).bytes(length)
}

/// Three pieces of a region.
fn pieces(region: &Region, length: usize) -> [Sge; 3] {
    let cut = [length / 3, length / 2];
    [(0, cut[0]), (cut[0], cut[1]), (cut[1], length)]
        .map(|(from, to)| region.sge(from, (to - from) as u32))
}

fn lands(b: &Side, at: usize, data: &[u8]) {
    let mut there = vec![0; data.len()];
    b.region.read(at, &mut there);
    assert!(there == data, "{} bytes came otherwise", data.len());
    let mut behind = [0; 64];
    b.region.read(at + data.len(), &mut behind);
    assert_eq!(behind, [0xee; 64], "what is behind them was written to");
}

#[test]
fn sends_of_all_lengths() {
    for (shares, mapped) in KINDS {
        let (_here, _there, mut a, mut b) = sides(shares, mapped);
        for (seed, length) in LENGTHS.into_iter().enumerate() {
            let data = pattern(length, seed as u64);
            a.region.write(0, &data);
            b.fill(0xee);
            let room = pieces(&b.region, length + 100);
            // Every other one finds no receive at first.
            if seed % 2 == 0 {
                b.receive(&room);
            }
            let from = pieces(&a.region, length);
            post(&mut a.qp, 1, Send {}, &from[..], SIGNALED).expect("room");
            a.qp.sq().ring();
            if seed % 2 == 1 {
                for _ in 0..100 {
                    assert!(b.cq.poll_one().is_none() && a.cq.poll_one().is_none());
                }
                b.receive(&room);
            }
            let completed = settle(&mut a, &mut b, 1);
            assert!(
                completed.contains(&(7, Some(length as u32))),
                "{completed:?}"
            );
            lands(&b, 0, &data);
        }
    }
}

/// Messages that are received without the device's lock, many times round the ring of packets: of each form
/// and length, into one element or several, in one order with what takes the lock.
#[test]
fn short_messages_of_all_forms() {
    for (shares, mapped) in KINDS {
        short_messages(shares, mapped);
    }
}

/// Where the data of WRITEs goes.
const TARGET: usize = 2 << 20;

fn short_messages(shares: bool, mapped: bool) {
    let (_here, _there, mut a, mut b) = sides(shares, mapped);
    let lengths = (0..=130)
        .chain((131..=4096).step_by(23))
        .chain([4096, 4097, 8192, 65_537, MIB]);
    for (seed, length) in lengths.flat_map(|length| [length; 3]).enumerate() {
        let data = pattern(length, seed as u64);
        a.region.write(0, &data);
        for at in [0, TARGET] {
            b.region.write(at, &vec![0xee; length + 200]);
        }
        let form = seed % if length <= 64 { 7 } else { 4 };
        let writes = matches!(form, 3 | 6);
        match seed % 4 {
            0 if writes => b.receive(&[]),
            0 | 1 => b.receive(&[b.region.sge(0, length as u32 + 100)]),
            2 => b.receive(&pieces(&b.region, length + 100)),
            _ => b.receive(&pieces(&b.region, length)),
        }
        if seed % 7 == 0 {
            // In a packet of its own, which is read under the lock.
            let remote = b.region.remote(BYTES - 64);
            let add = AtomicFetchAndAdd { remote, add: 1 };
            let place = a.region.sge(BYTES - 64, 8);
            post(&mut a.qp, 3, add, place, SIGNALED).expect("room");
            a.qp.sq().ring();
            settle(&mut a, &mut b, 0);
        }
        let imm = Be32::new(seed as u32);
        let (send, with_imm) = (Send {}, SendWithImm { imm });
        let remote = b.region.remote(TARGET);
        let write = RdmaWriteWithImm { remote, imm };
        let (several, one) = (pieces(&a.region, length), a.region.sge(0, length as u32));
        let posted = match form {
            0 => post(&mut a.qp, 1, send, &several[..], SIGNALED),
            1 => post(&mut a.qp, 1, with_imm, &several[..], SIGNALED),
            2 => post(&mut a.qp, 1, send, one, SIGNALED),
            3 => post(&mut a.qp, 1, write, one, SIGNALED),
            4 => a.qp.sq().post_inline(1, (), send, &data, SIGNALED),
            5 => a.qp.sq().post_inline(1, (), with_imm, &data, SIGNALED),
            _ => a.qp.sq().post_inline(1, (), write, &data, SIGNALED),
        };
        posted.expect("room");
        a.qp.sq().ring();
        let mut received = None;
        settle_all(&mut a, &mut b, 1, |wr_id, done| {
            if wr_id == 7 {
                received = Some((done.byte_len(), done.imm()));
            }
        });
        let imm = match form {
            0 | 2 | 4 => Imm::None,
            _ => Imm::Data(imm),
        };
        assert_eq!(
            received,
            Some((Some(length as u32), imm)),
            "{length}, {form}"
        );
        let (full, empty) = if writes { (TARGET, 0) } else { (0, TARGET) };
        lands(&b, full, &data);
        lands(&b, empty, &[]);
    }
}

/// Messages gathered from any number of elements, of two regions, of which the peer may have mapped both, one, or none; some
/// elements are empty.
#[test]
fn messages_of_many_elements() {
    for (shares, mapped) in KINDS {
        let (_here, _there, mut a, mut b) = sides(shares, mapped);
        let other = match mapped {
            true => Mapping::anonymous(BYTES),
            false => Mapping::shared("other", BYTES),
        };
        let other = other.build().expect("memory");
        let other = Region::new(&a.pd, other, ALL).expect("a region");
        let mut random = Random::new(11);
        for seed in 0..600u32 {
            let longest = [20, 300, 900, 3_000, 70_000][seed as usize % 5];
            let (mut list, mut data) = (Vec::new(), Vec::new());
            for at in 0..=random.below(MOST.into()).min(u64::from(MOST) - 1) {
                let length = match random.below(20) {
                    0 => 0,
                    _ => 1 + random.below(longest),
                };
                let bytes = random.bytes(length as usize);
                // Most messages are of one region alone.
                let region = match seed % 4 == 0 && random.below(2) == 0 {
                    true => &other,
                    false => &a.region,
                };
                let place = at as usize * 80_000 + random.below(7) as usize;
                region.write(place, &bytes);
                list.push(region.sge(place, length as u32));
                data.extend(bytes);
            }
            for at in [0, TARGET] {
                b.region.write(at, &vec![0xee; data.len() + 200]);
            }
            let (imm, remote) = (Be32::new(seed), b.region.remote(TARGET));
            let (write, with_imm) = (RdmaWriteWithImm { remote, imm }, SendWithImm { imm });
            let writes = seed % 3 == 1;
            b.receive(&pieces(&b.region, data.len() + 100));
            let posted = match seed % 3 {
                0 => post(&mut a.qp, 1, Send {}, &list[..], SIGNALED),
                1 => post(&mut a.qp, 1, write, &list[..], SIGNALED),
                _ => post(&mut a.qp, 1, with_imm, &list[..], SIGNALED),
            };
            posted.expect("room");
            a.qp.sq().ring();
            let completed = settle(&mut a, &mut b, 1);
            let received = (7, Some(data.len() as u32));
            assert!(completed.contains(&received), "{seed}: {completed:?}");
            let (full, empty) = if writes { (TARGET, 0) } else { (0, TARGET) };
            lands(&b, full, &data);
            lands(&b, empty, &[]);
        }
    }
}

/// One peer's messages go to a shared receive queue and to a queue pair's own, by turns and several in a row: each is
/// received where it should be, in the order of its connection.
#[test]
fn short_messages_to_own_and_shared_queues() {
    let fabric = fabric_name();
    let (here, there) = (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline));
    let mut all = [false, true].map(|shares| connected(&here, &there, shares, false));
    let (mut random, mut sent) = (Random::new(7), [0u32; 2]);
    for _ in 0..1_000 {
        let mut of_each = [0u32; 2];
        for _ in 0..=random.below(4) {
            let at = random.below(2) as usize;
            let (a, b) = &mut all[at];
            b.receive(&[b.region.sge(64 * of_each[at] as usize, 64)]);
            let imm = sent[at] + of_each[at];
            let with_imm = SendWithImm {
                imm: Be32::new(imm),
            };
            let data = &[imm as u8; 40];
            (a.qp.sq().post_inline(1, (), with_imm, data, SIGNALED)).expect("room");
            a.qp.sq().ring();
            of_each[at] += 1;
        }
        for ((a, b), (sent, count)) in all.iter_mut().zip(sent.iter_mut().zip(of_each)) {
            for place in 0..count {
                let done = wait(&mut b.cq).result.expect("received");
                let expected = (Some(40), Imm::Data(Be32::new(*sent)));
                assert_eq!((done.byte_len(), done.imm()), expected);
                let mut bytes = [0; 40];
                b.region.read(64 * place as usize, &mut bytes);
                assert_eq!(bytes, [*sent as u8; 40]);
                *sent += 1;
            }
            (0..count).for_each(|_| assert_eq!(wait(&mut a.cq).status(), WcStatus::Success));
        }
    }
}

/// Messages whose data the receiver copies from the sender's memory: of several regions by turns, of which some go and
/// others come, and more than the receiver remembers.
#[test]
fn messages_of_several_regions() {
    const LENGTH: usize = 5000;
    let (_here, _there, mut a, mut b) = sides(false, true);
    let region = |pd: &Pd, byte: u8| {
        let mapping = Mapping::shared("messages", 1 << 16);
        let mapping = mapping.build().expect("memory");
        let region = Region::new(pd, mapping, ALL).expect("a region");
        region.write(0, &[byte; LENGTH]);
        region
    };
    let mut regions: Vec<Region> = (0..7).map(|byte| region(&a.pd, byte)).collect();
    for turn in 0..60 {
        let at = turn % 7;
        if turn % 11 == 10 {
            regions[at] = region(&a.pd, 100 + turn as u8);
        }
        let mut data = [0; LENGTH];
        regions[at].read(0, &mut data);
        b.region.write(0, &[0xee; LENGTH + 64]);
        b.receive(&[b.region.sge(0, LENGTH as u32)]);
        let sge = regions[at].sge(0, LENGTH as u32);
        post(&mut a.qp, 1, Send {}, sge, SIGNALED).expect("room");
        a.qp.sq().ring();
        settle(&mut a, &mut b, 1);
        lands(&b, 0, &data);
    }
}

/// A WRITE with immediate data that may not be executed writes nothing, and both ends hear why.
#[test]
fn short_writes_with_imm_that_are_refused() {
    let of_key = |b: &Side| Remote {
        rkey: b.region.remote(0).rkey ^ 1,
        ..b.region.remote(TARGET)
    };
    let behind_the_end = |b: &Side| Remote {
        addr: b.region.remote(0).addr + BYTES as u64 - 7,
        ..b.region.remote(0)
    };
    for target in [of_key, behind_the_end] {
        for (mapped, length) in [(false, 8), (true, 8), (true, 4096)] {
            let (_here, _there, mut a, mut b) = sides(false, mapped);
            a.fill(1);
            let write = |a: &mut Side, remote| {
                let write = RdmaWriteWithImm {
                    remote,
                    imm: Be32::new(1),
                };
                let posted = match length {
                    8 => a.qp.sq().post_inline(1, (), write, &[1; 8], SIGNALED),
                    _ => {
                        let sge = a.region.sge(0, length as u32);
                        post(&mut a.qp, 1, write, sge, SIGNALED)
                    }
                };
                posted.expect("room");
                a.qp.sq().ring();
            };
            b.fill(0xee);
            for _ in 0..3 {
                b.receive(&[]);
                write(&mut a, b.region.remote(TARGET));
                settle(&mut a, &mut b, 1);
            }
            lands(&b, TARGET, &vec![1; length]);
            b.fill(0xee);
            b.receive(&[]);
            let remote = target(&b);
            write(&mut a, remote);
            let (start, mut found) = (Instant::now(), Vec::new());
            while found.len() < 2 {
                for side in [&mut a, &mut b] {
                    side.cq
                        .poll(4, |done| found.push((done.wr_id, done.status())));
                }
                assert!(start.elapsed() < DEADLINE, "{found:?}");
            }
            found.sort_by_key(|(wr_id, _)| *wr_id);
            let expected = [(1, WcStatus::RemAccessErr), (7, WcStatus::WrFlushErr)];
            assert_eq!(found, expected);
            lands(&b, TARGET, &[]);
            lands(&b, BYTES - 64, &[]);
        }
    }
}

/// What a receive without the lock cannot do is reported as ever.
#[test]
fn short_sends_that_do_not_fit() {
    for shares in [false, true] {
        do_not_fit(shares);
    }
}

fn do_not_fit(shares: bool) {
    let (_here, _there, mut a, mut b) = sides(shares, false);
    let send = |a: &mut Side, length: usize| {
        let data = vec![1; length];
        let posted = a.qp.sq().post_inline(1, (), Send {}, &data, SIGNALED);
        posted.expect("room");
        a.qp.sq().ring();
    };
    for _ in 0..3 {
        b.receive(&[b.region.sge(0, 64)]);
        send(&mut a, 8);
        settle(&mut a, &mut b, 1);
    }
    b.receive(&[b.region.sge(0, 7)]);
    send(&mut a, 8);
    let (start, mut found) = (Instant::now(), Vec::new());
    while found.len() < 2 {
        for side in [&mut a, &mut b] {
            side.cq
                .poll(4, |done| found.push((done.wr_id, done.status())));
        }
        assert!(start.elapsed() < DEADLINE, "{found:?}");
    }
    found.sort_by_key(|(wr_id, _)| *wr_id);
    let expected = [(1, WcStatus::RemInvReqErr), (7, WcStatus::LocLenErr)];
    assert_eq!(found, expected);
}

#[test]
fn writes_and_reads_of_all_lengths() {
    for mapped in [false, true] {
        writes_and_reads(mapped);
    }
}

fn writes_and_reads(mapped: bool) {
    let (_here, _there, mut a, mut b) = sides(false, mapped);
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        let data = pattern(length, 100 + seed as u64);
        let remote = b.region.remote(64);
        a.region.write(0, &data);
        for imm in [false, true] {
            b.fill(0xee);
            let from = pieces(&a.region, length);
            if imm {
                b.receive(&[]);
                let write = RdmaWriteWithImm {
                    remote,
                    imm: Be32::new(5),
                };
                post(&mut a.qp, 1, write, &from[..], SIGNALED).expect("room");
            } else {
                post(&mut a.qp, 1, RdmaWrite { remote }, &from[..], SIGNALED).expect("room");
            }
            a.qp.sq().ring();
            settle(&mut a, &mut b, imm.into());
            lands(&b, 64, &data);
        }
        a.fill(0xee);
        let into = pieces(&a.region, length);
        post(&mut a.qp, 1, RdmaRead { remote }, &into[..], SIGNALED).expect("room");
        a.qp.sq().ring();
        let completed = settle(&mut a, &mut b, 0);
        assert_eq!(completed, [(1, Some(length as u32))]);
        lands(&a, 0, &data);
    }
}

/// A packet says that it has no data where the ring holds data of packets before.
#[test]
fn reads_of_nothing_at_each_place_of_the_ring() {
    let (_here, _there, mut a, mut b) = sides(false, false);
    a.region.write(0, &pattern(4096, 1));
    // More than twice round the ring, which has 4096 lines.
    for _ in 0..140 {
        let remote = b.region.remote(64);
        let (from, into) = ([a.region.sge(0, 4096)], [a.region.sge(0, 0)]);
        post(&mut a.qp, 1, RdmaWrite { remote }, &from[..], SIGNALED).expect("room");
        a.qp.sq().ring();
        settle(&mut a, &mut b, 0);
        post(&mut a.qp, 2, RdmaRead { remote }, &into[..], SIGNALED).expect("room");
        a.qp.sq().ring();
        assert_eq!(settle(&mut a, &mut b, 0), [(2, Some(0))]);
    }
}

/// Nothing is written where not all may be.
#[test]
fn a_long_write_beyond_the_end_is_refused_whole() {
    for mapped in [false, true] {
        is_refused_whole(mapped);
    }
}

fn is_refused_whole(mapped: bool) {
    let (_here, _there, mut a, mut b) = sides(false, mapped);
    a.fill(1);
    b.fill(0xee);
    let remote = b.region.remote(BYTES - 2 * MIB);
    let write = RdmaWrite { remote };
    post(
        &mut a.qp,
        1,
        write,
        a.region.sge(0, 2 * MIB as u32 + 1),
        SIGNALED,
    )
    .expect("room");
    a.qp.sq().ring();
    let start = Instant::now();
    let failed = loop {
        let _flushed = b.cq.poll_one();
        if let Some(done) = a.cq.poll_one() {
            break done.status();
        }
        assert!(start.elapsed() < DEADLINE);
    };
    assert_eq!(failed, WcStatus::RemAccessErr);
    let mut there = vec![0; BYTES];
    b.region.read(0, &mut there);
    assert!(there.iter().all(|byte| *byte == 0xee));
}

/// A message for which there is too little room fails at both ends.
#[test]
fn a_long_message_without_room_fails() {
    for (shares, mapped) in KINDS {
        let (_here, _there, mut a, mut b) = sides(shares, mapped);
        b.receive(&[b.region.sge(0, 2 * MIB as u32)]);
        let from = a.region.sge(0, 2 * MIB as u32 + 1);
        post(&mut a.qp, 1, Send {}, from, SIGNALED).expect("room");
        a.qp.sq().ring();
        let (mut at_a, mut at_b) = (None, None);
        let start = Instant::now();
        while at_a.is_none() || at_b.is_none() {
            at_a = at_a.or(a.cq.poll_one().map(|done| done.status()));
            at_b = at_b.or(b.cq.poll_one().map(|done| done.status()));
            assert!(start.elapsed() < DEADLINE);
        }
        assert_eq!(at_a, Some(WcStatus::RemInvReqErr));
        assert_eq!(at_b, Some(WcStatus::LocLenErr));
    }
}

/// A receive that holds a part of a message is reported when the connection ends before the rest.
#[test]
fn a_part_of_a_message_holds_its_receive_no_longer_than_the_connection() {
    for shares in [false, true] {
        let (_here, _there, mut a, mut b) = sides(shares, false);
        b.receive(&[b.region.sge(0, BYTES as u32)]);
        // More than the ring holds: the rest waits for room.
        post(&mut a.qp, 1, Send {}, a.region.sge(0, 3 << 20), SIGNALED).expect("room");
        a.qp.sq().ring();
        assert!(b.cq.poll_one().is_none());
        a.qp.to_error().expect("from any state");
        b.qp.to_error().expect("from any state");
        assert_eq!(wait(&mut a.cq).status(), WcStatus::WrFlushErr);
        assert_eq!(wait(&mut b.cq).status(), WcStatus::WrFlushErr);
    }
}

/// A request of an unreliable connection completes when the peer has all of it: the sender may go then.
#[test]
fn a_long_unreliable_message_is_there_when_it_is_completed() {
    const LENGTH: usize = 1_000_001;
    let fabric = fabric_name();
    let [here, there] = [0, 1].map(|_| node(&fabric, Mode::Inline));
    let memory = |device: &Device| {
        let pd = device.alloc_pd();
        let mapping = Mapping::anonymous(BYTES).build().expect("memory");
        (Region::new(&pd, mapping, ALL).expect("a region"), pd)
    };
    let ((from, pd), (to, peers_pd)) = (memory(&here), memory(&there));
    for round in 0..20 {
        let mut cqs = [&here, &there].map(|device| cq_for(device, &init()));
        let [cq, peers_cq] = &mut cqs;
        let mut a = pd
            .create_qp_of::<Uc>(&mut *cq, &init())
            .expect("a queue pair");
        let mut b = peers_pd
            .create_qp_of::<Uc>(&mut *peers_cq, &init())
            .expect("a queue pair");
        let attr = ConnectAttr::default();
        a.init(&attr).expect("INIT");
        b.init(&attr).expect("INIT");
        a.connect(&b.endpoint(), &attr).expect("RTS");
        b.connect(&a.endpoint(), &attr).expect("RTS");
        let data = pattern(LENGTH, round);
        from.write(0, &data);
        let [into, out] = [&to, &from].map(|region| [region.sge(0, LENGTH as u32)]);
        // SAFETY: the regions outlive the queue pairs.
        unsafe { b.rq().post(7, &into) }.expect("room");
        b.rq().ring();
        // SAFETY: the regions outlive the queue pairs.
        unsafe { a.sq().post(1, (), Send {}, &out[..], SIGNALED) }.expect("room");
        a.sq().ring();
        // Only the peer's own thread reads.
        assert_eq!(wait(cq).status(), WcStatus::Success);
        drop(a);
        assert_eq!(wait(peers_cq).status(), WcStatus::Success, "round {round}");
        let mut came = vec![0; LENGTH];
        to.read(0, &mut came);
        assert!(came == data, "round {round}");
    }
}
