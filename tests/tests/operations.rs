//! What arrives and what is told: every operation of a reliable connection.

use bellwire::be::Be32;
use bellwire::queue::Imm;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, Sge, WcOpcode, WcStatus};
use bellwire::{Cqs, Qp, QpInit, Region};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use std::sync::atomic::Ordering;

in_both_modes! {
    sends_of_every_size, writes_of_every_size, reads_of_every_size, inline_of_every_size,
    atomics, nothing_to_do, empty_messages_need_no_key, solicited_is_told,
    unsignalled_are_retired_by_the_next, every_request_of_sq_sig_all_is_told,
    a_batch_with_one_ring, a_batch_over_the_rings_end, requests_take_effect_in_order,
    both_ends_at_once, many_queue_pairs_on_one_cq, split_cqs, loopback, a_receive_of_more_pieces,
}

const SIZES: [usize; 20] = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    28,
    31,
    32,
    33,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    1 << 20,
];
const IMM: Be32 = Be32::new(0xdead_beef);
/// Where the pieces start: room for the longest message, cut up.
const AREA: usize = 2 << 20;
const FILL: u8 = 0xa5;

/// Two connected ends with large regions: source of the first, target of the second.
fn large(mode: Mode) -> (End, End, Region, Region) {
    let (a, b) = pair(mode);
    let (from, to) = (region(a.qp.pd(), AREA), region(a.qp.pd(), AREA));
    (a, b, from, to)
}

/// Cuts `size` bytes into up to four pieces of odd lengths, with gaps between them.
fn pieces(random: &mut Random, size: usize) -> Vec<(usize, usize)> {
    let mut left = size;
    let mut at = random.below(64) as usize;
    let count = 1 + random.below(4) as usize;
    let mut out = Vec::new();
    for piece in 0..count {
        let length = if piece + 1 == count {
            left
        } else {
            random.below(left as u64 + 1) as usize
        };
        out.push((at, length));
        at += length + 1 + random.below(100) as usize;
        left -= length;
    }
    out
}

fn sges(region: &Region, pieces: &[(usize, usize)]) -> Vec<Sge> {
    pieces
        .iter()
        .map(|&(at, length)| region.sge(at, length as u32))
        .collect()
}

fn put(region: &Region, pieces: &[(usize, usize)], data: &[u8]) {
    let mut done = 0;
    for &(at, length) in pieces {
        region.write(at, &data[done..done + length]);
        done += length;
    }
}

/// Asserts that `data` lies in the pieces, and that nothing else of the region was touched.
fn arrived(region: &Region, pieces: &[(usize, usize)], data: &[u8], what: &str) {
    let end = pieces.last().map_or(0, |(at, length)| at + length) + 256;
    let mut expected = vec![FILL; end];
    let mut done = 0;
    for &(at, length) in pieces {
        let length = length.min(data.len() - done);
        expected[at..at + length].copy_from_slice(&data[done..done + length]);
        done += length;
    }
    assert_eq!(done, data.len(), "{what}");
    let mut actual = vec![0; end];
    region.read(0, &mut actual);
    assert!(actual == expected, "{what}: other bytes than sent");
}

fn clear(region: &Region) {
    region.write(0, &vec![FILL; region.len()]);
}

fn sends_of_every_size(mode: Mode) {
    let (mut a, mut b, from, to) = large(mode);
    let mut random = Random::new(1);
    for (round, size) in SIZES.into_iter().cycle().take(5 * SIZES.len()).enumerate() {
        let data = random.bytes(size);
        let (source, target) = (pieces(&mut random, size), pieces(&mut random, size));
        put(&from, &source, &data);
        clear(&to);
        b.receive(70, &sges(&to, &target));
        let with_imm = round % 2 == 0;
        let payload = sges(&from, &source);
        if with_imm {
            a.go(7, SendWithImm { imm: IMM }, &payload[..]);
        } else {
            a.go(7, Send {}, &payload[..]);
        }
        let (sent, received) = (a.wait(), b.wait());
        assert_eq!(
            (sent.wr_id, sent.retired, sent.qp_num),
            (7, 1, a.qp.qp_num())
        );
        let sent = sent.result.unwrap();
        assert_eq!((sent.opcode, sent.byte_len()), (WcOpcode::Send, None));
        assert_eq!((received.wr_id, received.qp_num), (70, b.qp.qp_num()));
        let received = received.result.unwrap();
        assert_eq!(received.opcode, WcOpcode::Recv);
        assert_eq!(received.byte_len(), Some(size as u32));
        let imm = if with_imm { Imm::Data(IMM) } else { Imm::None };
        assert_eq!(received.imm(), imm);
        arrived(&to, &target, &data, &format!("SEND of {size}"));
    }
}

fn writes_of_every_size(mode: Mode) {
    let (mut a, mut b, from, to) = large(mode);
    let mut random = Random::new(2);
    for (round, size) in SIZES.into_iter().cycle().take(5 * SIZES.len()).enumerate() {
        let data = random.bytes(size);
        let source = pieces(&mut random, size);
        let at = random.below(999) as usize;
        put(&from, &source, &data);
        clear(&to);
        let payload = sges(&from, &source);
        let remote = to.remote(at);
        if round % 2 == 0 {
            b.receive(70, &[]);
            a.go(7, RdmaWriteWithImm { remote, imm: IMM }, &payload[..]);
            let told = b.wait();
            assert_eq!(told.wr_id, 70);
            let told = told.result.unwrap();
            assert_eq!(
                (told.opcode, told.byte_len(), told.imm()),
                (WcOpcode::RecvRdmaWithImm, Some(size as u32), Imm::Data(IMM))
            );
        } else {
            a.go(7, RdmaWrite { remote }, &payload[..]);
        }
        let done = a.wait();
        assert_eq!(done.wr_id, 7);
        let done = done.result.unwrap();
        assert_eq!((done.opcode, done.byte_len()), (WcOpcode::RdmaWrite, None));
        arrived(&to, &[(at, size)], &data, &format!("WRITE of {size}"));
    }
    b.nothing();
}

fn reads_of_every_size(mode: Mode) {
    let (mut a, mut b, to, from) = large(mode);
    let mut random = Random::new(3);
    for size in SIZES.into_iter().cycle().take(5 * SIZES.len()) {
        let data = random.bytes(size);
        let target = pieces(&mut random, size);
        let at = random.below(999) as usize;
        from.write(at, &data);
        clear(&to);
        let remote = from.remote(at);
        a.go(7, RdmaRead { remote }, &sges(&to, &target)[..]);
        let done = a.wait();
        assert_eq!(done.wr_id, 7);
        let done = done.result.unwrap();
        assert_eq!(
            (done.opcode, done.byte_len()),
            (WcOpcode::RdmaRead, Some(size as u32))
        );
        arrived(&to, &target, &data, &format!("READ of {size}"));
    }
    b.nothing();
}

fn inline_of_every_size(mode: Mode) {
    let (mut a, mut b, _, to) = large(mode);
    let mut random = Random::new(4);
    // Entries of one to four blocks, so that they lie in every way over the ring's end.
    for round in 0..2000usize {
        let size = random.below(201) as usize;
        let data = random.bytes(size);
        clear_head(&to);
        let target = pieces(&mut random, size);
        let at = target[0].0;
        if round % 2 == 0 {
            b.receive(70, &sges(&to, &target));
            a.go(7, Send {}, Inline(&data));
            assert_eq!(b.wait().result.unwrap().byte_len(), Some(size as u32));
            arrived(&to, &target, &data, &format!("inline SEND of {size}"));
        } else {
            let remote = to.remote(at);
            let (head, tail) = data.split_at(size / 3);
            a.go(7, RdmaWrite { remote }, InlineList(&[head, tail]));
            assert_eq!(a.outcome(), (7, WcStatus::Success));
            arrived(
                &to,
                &[(at, size)],
                &data,
                &format!("inline WRITE of {size}"),
            );
            continue;
        }
        assert_eq!(a.outcome(), (7, WcStatus::Success));
    }
}

fn clear_head(region: &Region) {
    region.write(0, &[FILL; 2048]);
}

fn atomics(mode: Mode) {
    let (mut a, b) = pair(mode);
    let mut random = Random::new(5);
    let mut expected = 0u64;
    for round in 0..200 {
        let remote = b.region.remote(8 * 5);
        // The result in one element, or cut up.
        let cut = random.below(8) as u32;
        let result = [a.region.sge(100, cut), a.region.sge(200, 8 - cut)];
        let add = random.number();
        let old = expected;
        match round % 3 {
            0 => {
                a.go(7, AtomicFetchAndAdd { remote, add }, &result[..]);
                expected = expected.wrapping_add(add);
            }
            1 => {
                let (compare, swap) = (expected, add);
                a.go(
                    7,
                    AtomicCmpAndSwp {
                        remote,
                        compare,
                        swap,
                    },
                    &result[..],
                );
                expected = swap;
            }
            _ => {
                let (compare, swap) = (!expected, add);
                a.go(
                    7,
                    AtomicCmpAndSwp {
                        remote,
                        compare,
                        swap,
                    },
                    &result[..],
                );
            }
        }
        let done = a.wait().result.unwrap();
        let opcode = if round % 3 == 0 {
            WcOpcode::FetchAdd
        } else {
            WcOpcode::CompSwap
        };
        assert_eq!((done.opcode, done.byte_len()), (opcode, Some(8)));
        let mut bytes = [0; 8];
        a.region.read(100, &mut bytes[..cut as usize]);
        a.region.read(200, &mut bytes[cut as usize..]);
        assert_eq!(u64::from_ne_bytes(bytes), old);
        assert_eq!(b.region.word(40).load(Ordering::Acquire), expected);
    }
}

fn nothing_to_do(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    a.go(7, Nop {}, NoPayload);
    let done = a.wait();
    assert_eq!((done.wr_id, done.retired), (7, 1));
    assert_eq!(done.result.unwrap().opcode, WcOpcode::Nop);
    b.nothing();
}

fn empty_messages_need_no_key(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    let remote = bellwire::wr::Remote {
        addr: 0x1234_5678,
        rkey: 0x9abc_def0,
    };
    let empty = Sge {
        addr: 1,
        length: 0,
        lkey: 0x1111,
    };
    a.go(1, RdmaWrite { remote }, NoPayload);
    a.go(2, RdmaRead { remote }, empty);
    a.go(3, RdmaWrite { remote }, Inline(b""));
    b.receive(70, &[]);
    b.receive(71, &[]);
    a.go(4, RdmaWriteWithImm { remote, imm: IMM }, empty);
    a.go(5, Send {}, &[empty, empty][..]);
    for wr_id in 1..=5 {
        assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
    }
    assert_eq!(b.outcome(), (70, WcStatus::Success));
    assert_eq!(b.outcome(), (71, WcStatus::Success));
}

fn solicited_is_told(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    for solicited in [true, false] {
        let flags = if solicited {
            SIGNALED | SendFlags::SOLICITED
        } else {
            SIGNALED
        };
        b.receive(70, &[b.region.sge(0, 8)]);
        b.receive(71, &[]);
        a.post(1, Send {}, Inline(&[1; 8]), flags).unwrap();
        let remote = b.region.remote(0);
        a.post(2, RdmaWriteWithImm { remote, imm: IMM }, NoPayload, flags)
            .unwrap();
        a.qp.sq().ring();
        assert_eq!(b.wait().result.unwrap().solicited(), solicited);
        assert_eq!(b.wait().result.unwrap().solicited(), solicited);
        assert!(!a.wait().result.unwrap().solicited());
        assert!(!a.wait().result.unwrap().solicited());
    }
}

fn unsignalled_are_retired_by_the_next(mode: Mode) {
    let (mut a, b) = pair(mode);
    let remote = b.region.remote(0);
    let free = a.qp.sq().free_blocks();
    let mut random = Random::new(6);
    for round in 0..300 {
        let silent = random.below(40) as u32;
        for at in 0..silent {
            let flags = if at % 3 == 0 {
                SendFlags::FENCE
            } else {
                SendFlags::empty()
            };
            let length = random.below(150) as usize;
            a.post(
                u64::MAX,
                RdmaWrite { remote },
                Inline(&[1; 150][..length]),
                flags,
            )
            .unwrap();
            if random.below(4) == 0 {
                a.qp.sq().ring();
            }
        }
        a.go(round, RdmaWrite { remote }, Inline(&[2; 8]));
        let done = a.wait();
        assert_eq!((done.wr_id, done.retired), (round, silent + 1));
        assert_eq!(a.qp.sq().free_blocks(), free, "slots given back");
    }
    a.nothing();
}

fn every_request_of_sq_sig_all_is_told(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let init = QpInit {
        sq_sig_all: true,
        ..init()
    };
    let (mut a, mut b) = (End::new(&pd, mode, &init), End::new(&pd, mode, &init));
    connect_with(&mut a.qp, &mut b.qp, &bellwire::ConnectAttr::default());
    for wr_id in 0..20 {
        a.post(wr_id, Nop {}, NoPayload, SendFlags::empty())
            .unwrap();
    }
    a.qp.sq().ring();
    for wr_id in 0..20 {
        let done = a.wait();
        assert_eq!((done.wr_id, done.retired), (wr_id, 1));
    }
    a.nothing();
}

fn a_batch_with_one_ring(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    for wr_id in 0..32 {
        post_recv(
            &mut b.qp,
            100 + wr_id,
            &[b.region.sge(wr_id as usize * 64, 64)],
        )
        .unwrap();
    }
    b.qp.rq().ring();
    for wr_id in 0..32u64 {
        a.post(wr_id, Send {}, Inline(&wr_id.to_ne_bytes()), SIGNALED)
            .unwrap();
    }
    assert_eq!(a.qp.sq().staged(), 32);
    a.nothing();
    b.nothing();
    a.qp.sq().ring();
    assert_eq!(a.qp.sq().staged(), 0);
    for wr_id in 0..32 {
        assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
        assert_eq!(b.outcome(), (100 + wr_id, WcStatus::Success));
        let word = b.region.word(wr_id as usize * 64);
        assert_eq!(word.load(Ordering::Acquire), wr_id);
    }
}

fn a_batch_over_the_rings_end(mode: Mode) {
    let (mut a, b) = pair(mode);
    let remote = b.region.remote(0);
    let mut random = Random::new(8);
    let mut next = 0u64;
    let mut told = 0u64;
    for _ in 0..2000 {
        let burst = 1 + random.below(60);
        for _ in 0..burst {
            let length = random.below(200) as usize;
            match a.post(
                next,
                RdmaWrite { remote },
                Inline(&[3; 200][..length]),
                SIGNALED,
            ) {
                Ok(()) => next += 1,
                Err(bellwire::queue::PostError::QueueFull) => break,
                Err(other) => panic!("{other}"),
            }
        }
        a.qp.sq().ring();
        while told < next {
            assert_eq!(a.outcome(), (told, WcStatus::Success));
            told += 1;
        }
    }
}

fn requests_take_effect_in_order(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    for round in 1..500u64 {
        let remote = b.region.remote(0);
        b.receive(70, &[b.region.sge(64, 8)]);
        a.post(
            0,
            RdmaWrite { remote },
            Inline(&round.to_ne_bytes()),
            SendFlags::empty(),
        )
        .unwrap();
        a.post(
            1,
            AtomicFetchAndAdd { remote, add: 1 },
            a.region.sge(0, 8),
            SendFlags::empty(),
        )
        .unwrap();
        a.post(2, RdmaRead { remote }, a.region.sge(8, 8), SendFlags::FENCE)
            .unwrap();
        // What the READ brought is sent.
        a.post(3, Send {}, a.region.sge(8, 8), SIGNALED | SendFlags::FENCE)
            .unwrap();
        a.qp.sq().ring();
        let done = a.wait();
        assert_eq!((done.wr_id, done.retired), (3, 4));
        assert_eq!(b.outcome(), (70, WcStatus::Success));
        assert_eq!(a.region.word(0).load(Ordering::Acquire), round);
        assert_eq!(a.region.word(8).load(Ordering::Acquire), round + 1);
        assert_eq!(b.region.word(64).load(Ordering::Acquire), round + 1);
    }
}

/// Sends and receives numbered messages, both ways at once.
fn hammer(mut end: End, count: u64) {
    let (mut sent, mut acknowledged, mut posted, mut received) = (0u64, 0u64, 0u64, 0u64);
    until("the last message", || {
        while posted < count && posted < received + 32 {
            let at = (posted % 32) as usize * 64;
            end.receive(1 << 32 | posted, &[end.region.sge(at, 64)]);
            posted += 1;
        }
        while sent < count && sent < acknowledged + 16 {
            let length = 8 + (sent % 57) as usize;
            let mut bytes = [0; 64];
            bytes[..8].copy_from_slice(&sent.to_ne_bytes());
            end.go(sent, Send {}, Inline(&bytes[..length]));
            sent += 1;
        }
        while let Some(done) = end.cq.poll_one() {
            assert_eq!(done.status(), WcStatus::Success);
            if done.wr_id >> 32 == 0 {
                assert_eq!(done.wr_id, acknowledged);
                acknowledged += 1;
            } else {
                assert_eq!(done.wr_id, 1 << 32 | received);
                let word = end.region.word((received % 32) as usize * 64);
                assert_eq!(word.load(Ordering::Acquire), received);
                received += 1;
            }
        }
        (acknowledged, received) == (count, count)
    });
    end.nothing();
}

fn both_ends_at_once(mode: Mode) {
    let (a, b) = pair(mode);
    std::thread::scope(|scope| {
        scope.spawn(|| hammer(a, 20_000));
        scope.spawn(|| hammer(b, 20_000));
    });
}

fn many_queue_pairs_on_one_cq(mode: Mode) {
    const QPS: usize = 10;
    let device = device(mode);
    let pd = device.alloc_pd();
    let memory = region(&pd, 1 << 16);
    let (send, recv) = init().cq_entries();
    let mut cq = device.create_cq((send + recv) * 2 * QPS as u32).unwrap();
    let mut qps: Vec<Qp> = (0..2 * QPS)
        .map(|_| pd.create_qp(&mut cq, &init()).unwrap())
        .collect();
    for at in 0..QPS {
        let (left, right) = qps.split_at_mut(QPS);
        connect_with(
            &mut left[at],
            &mut right[at],
            &bellwire::ConnectAttr::default(),
        );
    }
    for round in 0..100u64 {
        for at in 0..QPS {
            let id = round << 8 | at as u64;
            post_recv(&mut qps[QPS + at], id, &[memory.sge(at * 64, 64)]).unwrap();
            qps[QPS + at].rq().ring();
            post(
                &mut qps[at],
                id,
                Send {},
                Inline(&id.to_ne_bytes()),
                SIGNALED,
            )
            .unwrap();
            qps[at].sq().ring();
        }
        let mut told = vec![0; 2 * QPS];
        for _ in 0..2 * QPS {
            let done = wait(&mut cq);
            let at = (done.wr_id & 0xff) as usize;
            assert_eq!((done.wr_id >> 8, done.status()), (round, WcStatus::Success));
            let end = match done.result.unwrap().opcode {
                WcOpcode::Recv => QPS + at,
                _ => at,
            };
            assert_eq!(done.qp_num, qps[end].qp_num());
            told[end] += 1;
        }
        assert_eq!(told, vec![1; 2 * QPS]);
    }
    nothing(&mut cq, mode);
}

fn split_cqs(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let memory = region(&pd, 1 << 16);
    let (send, recv) = init().cq_entries();
    let mut sends = device.create_cq(2 * send).unwrap();
    let mut recvs = device.create_cq(2 * recv).unwrap();
    let mut create = || {
        pd.create_qp(Cqs::Split(&mut sends, &mut recvs), &init())
            .unwrap()
    };
    let (mut a, mut b) = (create(), create());
    assert_eq!((sends.unreserved(), recvs.unreserved()), (0, 0));
    connect_with(&mut a, &mut b, &bellwire::ConnectAttr::default());
    for (from, to) in [(0, 1), (1, 0)] {
        let both = [&mut a, &mut b];
        post_recv(both[to], 70, &[memory.sge(0, 8)]).unwrap();
        both[to].rq().ring();
        post(both[from], 7, Send {}, Inline(&[9; 8]), SIGNALED).unwrap();
        both[from].sq().ring();
        let (sent, received) = (wait(&mut sends), wait(&mut recvs));
        assert_eq!((sent.wr_id, sent.qp_num), (7, both[from].qp_num()));
        assert_eq!((received.wr_id, received.qp_num), (70, both[to].qp_num()));
        assert_eq!(received.status(), WcStatus::Success);
    }
    nothing(&mut sends, mode);
    nothing(&mut recvs, mode);
    // Each completion queue tells of its own side, and can be used again then.
    post_recv(&mut a, 71, &[]).unwrap();
    a.rq().ring();
    a.to_error().unwrap();
    post(&mut a, 8, Send {}, NoPayload, SIGNALED).unwrap();
    a.sq().ring();
    let (sent, received) = (wait(&mut sends), wait(&mut recvs));
    assert_eq!((sent.wr_id, sent.status()), (8, WcStatus::WrFlushErr));
    assert_eq!(
        (received.wr_id, received.status()),
        (71, WcStatus::WrFlushErr)
    );
    a.reset(Cqs::Split(&mut sends, &mut recvs), |_, _| {
        panic!("told already")
    })
    .unwrap();
}

fn loopback(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let mut a = End::new(&pd, mode, &init());
    let attr = bellwire::ConnectAttr::default();
    a.qp.init(&attr).unwrap();
    let own = a.qp.endpoint();
    a.qp.connect(&own, &attr).unwrap();
    for round in 0..100u64 {
        a.receive(70, &[a.region.sge(0, 8)]);
        a.go(7, Send {}, Inline(&round.to_ne_bytes()));
        let mut told = [a.outcome(), a.outcome()];
        told.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(told, [(7, WcStatus::Success), (70, WcStatus::Success)]);
        assert_eq!(a.region.word(0).load(Ordering::Acquire), round);
    }
    // Its own NAK takes it to ERR once.
    a.receive(71, &[]);
    let remote = bellwire::wr::Remote { addr: 0, rkey: 1 };
    a.go(8, RdmaWrite { remote }, Inline(&[1]));
    let mut told = [a.outcome(), a.outcome()];
    told.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(
        told,
        [(8, WcStatus::RemAccessErr), (71, WcStatus::WrFlushErr)]
    );
    a.nothing();
}

/// A receive has room for more pieces than the message fills.
fn a_receive_of_more_pieces(mode: Mode) {
    let (mut a, mut b, from, to) = large(mode);
    let mut random = Random::new(9);
    for size in [0usize, 1, 31, 32, 33, 100, 5000] {
        clear(&to);
        let data = random.bytes(size);
        from.write(0, &data);
        let target = [(3, size / 2 + 1), (10_000, 7), (20_000, size), (40_000, 50)];
        b.receive(70, &sges(&to, &target));
        a.go(7, Send {}, from.sge(0, size as u32));
        assert_eq!(b.wait().result.unwrap().byte_len(), Some(size as u32));
        assert_eq!(a.outcome(), (7, WcStatus::Success));
        arrived(&to, &target, &data, &format!("{size}"));
    }
}
