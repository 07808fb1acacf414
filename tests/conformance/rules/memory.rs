//! Every byte where it belongs, and no other touched: sizes, and lists of elements.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::completes;
use bellwire::be::Be32;
use bellwire::queue::PostError;
use bellwire::wqe::*;
use bellwire::wr::{Sge, WcStatus};
use bellwire::{ConnectAttr, QpInit, Region};
use bellwire_tests::fixture::*;

rules! {
    "memory::rc", "Every byte where it belongs, and no other touched.", needs [Rc];
    sends_of_every_size: "IBTA vol. 1, 9.4.1 and 10.7",
        "SEND gathers from elements and scatters into those of the receive, whatever the sizes.";
    writes_of_every_size: "IBTA vol. 1, 9.4.3 and 10.7",
        "RDMA WRITE gathers from elements and writes contiguous memory, whatever the sizes.";
    reads_of_every_size: "IBTA vol. 1, 9.4.4 and 10.7",
        "RDMA READ reads contiguous memory and scatters into elements, whatever the sizes.";
    inline_of_every_size: "ibv_post_send(3), IBV_SEND_INLINE",
        "Inline data of every length that was asked for arrives, in one string or several.";
    a_receive_of_more_elements_is_filled_in_order: "ibv_post_recv(3)",
        "A message shorter than its receive fills the first elements, and leaves the others.";
    as_many_elements_as_were_asked_for: "ibv_create_qp(3), cap.max_send_sge",
        "Requests have as many elements as the queue pair was made with, on both sides.";
    one_element_more_is_refused: "ibv_post_send(3), EINVAL",
        "A request of more elements than that is refused, and nothing of it is posted.";
    one_inline_byte_more_is_refused: "ibv_create_qp(3), cap.max_inline_data",
        "A request of more inline bytes than the queue pair was made for is refused.";
    an_element_of_2_gib_is_refused: "IBTA vol. 1, 9.4.1",
        "An element of 2 GiB or more is refused when it is posted.";
    large_messages: "IBTA vol. 1, 9.4.3; ibv_query_port(3), max_msg_sz",
        "A message of 64 MiB arrives whole, by WRITE and by READ.";
    a_posted_request_waits_for_its_ring: "bellwire, SendQueue::ring",
        "What is posted and not rung is not executed.";
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
/// Where the elements lie: room for the longest message, cut up.
const AREA: usize = 2 << 20;
const FILL: u8 = 0xa5;

/// Two connected ends with large regions: source of the first, target of the second.
fn large(p: &Provider) -> (End, End, Region, Region) {
    let (a, b) = p.pair();
    let (from, to) = (region(a.qp.pd(), AREA), region(b.qp.pd(), AREA));
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

/// The sizes, a few times over, with fresh data for each.
fn each_size(seed: u64, mut check: impl FnMut(&mut Random, &[u8])) {
    let mut random = Random::new(seed);
    for size in SIZES.into_iter().cycle().take(3 * SIZES.len()) {
        let data = random.bytes(size);
        check(&mut random, &data);
    }
}

fn sends_of_every_size(p: &Provider) {
    let (mut a, mut b, from, to) = large(p);
    each_size(1, |random, data| {
        let (source, target) = (pieces(random, data.len()), pieces(random, data.len()));
        put(&from, &source, data);
        clear(&to);
        b.receive(70, &sges(&to, &target));
        a.go(7, Send {}, &sges(&from, &source)[..]);
        completes(&mut a, 7, WcStatus::Success);
        let received = b.wait().result.unwrap();
        assert_eq!(received.byte_len(), Some(data.len() as u32));
        arrived(&to, &target, data, &format!("SEND of {}", data.len()));
    });
}

fn writes_of_every_size(p: &Provider) {
    let (mut a, mut b, from, to) = large(p);
    let imm = Be32::new(1);
    each_size(2, |random, data| {
        let source = pieces(random, data.len());
        let at = random.below(999) as usize;
        let remote = to.remote(at);
        put(&from, &source, data);
        let payload = sges(&from, &source);
        clear(&to);
        a.go(7, RdmaWrite { remote }, &payload[..]);
        completes(&mut a, 7, WcStatus::Success);
        arrived(
            &to,
            &[(at, data.len())],
            data,
            &format!("WRITE of {}", data.len()),
        );
        clear(&to);
        b.receive(70, &[]);
        a.go(7, RdmaWriteWithImm { remote, imm }, &payload[..]);
        completes(&mut a, 7, WcStatus::Success);
        completes(&mut b, 70, WcStatus::Success);
        arrived(
            &to,
            &[(at, data.len())],
            data,
            &format!("with immediate, {}", data.len()),
        );
    });
}

fn reads_of_every_size(p: &Provider) {
    let (mut a, _b, to, from) = large(p);
    each_size(3, |random, data| {
        let target = pieces(random, data.len());
        let at = random.below(999) as usize;
        from.write(at, data);
        clear(&to);
        let remote = from.remote(at);
        a.go(7, RdmaRead { remote }, &sges(&to, &target)[..]);
        let read = a.wait().result.unwrap();
        assert_eq!(read.byte_len(), Some(data.len() as u32));
        arrived(&to, &target, data, &format!("READ of {}", data.len()));
    });
}

fn inline_of_every_size(p: &Provider) {
    let (mut a, mut b, _, to) = large(p);
    let mut random = Random::new(4);
    let longest = init().max_inline_data as usize;
    // Requests of all lengths, so that they lie in every way over a ring's end.
    for size in (0..=longest).chain((0..=longest).rev()) {
        let data = random.bytes(size);
        let target = pieces(&mut random, size);
        to.write(0, &[FILL; 2048]);
        b.receive(70, &sges(&to, &target));
        a.go(7, Send {}, Inline(&data));
        completes(&mut b, 70, WcStatus::Success);
        completes(&mut a, 7, WcStatus::Success);
        arrived(&to, &target, &data, &format!("inline SEND of {size}"));
        to.write(0, &[FILL; 2048]);
        let remote = to.remote(3);
        let (head, tail) = data.split_at(size / 3);
        a.go(7, RdmaWrite { remote }, InlineList(&[head, tail]));
        completes(&mut a, 7, WcStatus::Success);
        arrived(&to, &[(3, size)], &data, &format!("inline WRITE of {size}"));
    }
}

fn a_receive_of_more_elements_is_filled_in_order(p: &Provider) {
    let (mut a, mut b, from, to) = large(p);
    let mut random = Random::new(9);
    for size in [0usize, 1, 31, 32, 33, 100, 5000] {
        clear(&to);
        let data = random.bytes(size);
        from.write(0, &data);
        let target = [(3, size / 2 + 1), (10_000, 7), (20_000, size), (40_000, 50)];
        b.receive(70, &sges(&to, &target));
        a.go(7, Send {}, from.sge(0, size as u32));
        assert_eq!(b.wait().result.unwrap().byte_len(), Some(size as u32));
        completes(&mut a, 7, WcStatus::Success);
        arrived(&to, &target, &data, &format!("{size}"));
    }
}

fn as_many_elements_as_were_asked_for(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let max = device.attr().max_sge;
    let init = QpInit {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: max,
        max_recv_sge: max,
        ..init()
    };
    let (mut a, mut b) = (End::new(&pd, p.quiet, &init), End::new(&pd, p.quiet, &init));
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    let elements: Vec<_> = (0..max as usize).map(|at| (at * 16, 3)).collect();
    let data = Random::new(1).bytes(max as usize * 3);
    for round in 0..20 {
        put(&a.region, &elements, &data);
        clear(&b.region);
        b.receive(70, &sges(&b.region, &elements));
        a.go(round, Send {}, &sges(&a.region, &elements)[..]);
        completes(&mut a, round, WcStatus::Success);
        completes(&mut b, 70, WcStatus::Success);
        arrived(&b.region, &elements, &data, "SEND");
    }
}

/// Asserts that what was refused has left nothing behind.
fn works(a: &mut End, b: &mut End) {
    a.qp.sq().ring();
    a.qp.rq().ring();
    b.receive(70, &[]);
    a.go(2, Send {}, NoPayload);
    completes(a, 2, WcStatus::Success);
    completes(b, 70, WcStatus::Success);
    a.nothing();
    assert!(a.reset().is_empty());
}

fn one_element_more_is_refused(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let sge = a.region.sge(0, 8);
    let many = Err(PostError::TooManySges { given: 5, max: 4 });
    assert_eq!(a.post(1, Send {}, &[sge; 5][..], SIGNALED), many);
    assert_eq!(post_recv(&mut a.qp, 1, &[sge; 5]), many);
    works(&mut a, &mut b);
}

fn one_inline_byte_more_is_refused(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let remote = b.region.remote(0);
    let (given, max) = (201, 200);
    assert_eq!(
        a.post(1, RdmaWrite { remote }, Inline(&[0; 201]), SIGNALED),
        Err(PostError::InlineTooLong { given, max })
    );
    works(&mut a, &mut b);
}

fn an_element_of_2_gib_is_refused(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let length = 1 << 31;
    let sge = a.region.sge(0, 8);
    let long = Sge { length, ..sge };
    let refused = Err(PostError::SgeTooLong { length });
    assert_eq!(a.post(1, Send {}, long, SIGNALED), refused);
    assert_eq!(post_recv(&mut a.qp, 1, &[sge, long]), refused);
    works(&mut a, &mut b);
}

fn large_messages(p: &Provider) {
    const LENGTH: usize = 64 << 20;
    let (mut a, b) = p.pair();
    let (here, there) = (region(a.qp.pd(), LENGTH), region(b.qp.pd(), LENGTH));
    let data = Random::new(1).bytes(LENGTH / 64);
    for at in 0..64 {
        here.write(at * data.len(), &data);
    }
    // The last byte is not what a repeated part would have.
    here.write(LENGTH - 1, &[!data[data.len() - 1]]);
    let (remote, sge) = (there.remote(0), here.sge(0, LENGTH as u32));
    a.go(1, RdmaWrite { remote }, sge);
    completes(&mut a, 1, WcStatus::Success);
    let same = || {
        let (mut one, mut other) = (vec![0; LENGTH], vec![1; LENGTH]);
        here.read(0, &mut one);
        there.read(0, &mut other);
        one == other
    };
    assert!(same(), "WRITE");
    there.write(LENGTH / 2, &[!data[0], !data[1]]);
    a.go(2, RdmaRead { remote }, sge);
    assert_eq!(a.wait().result.unwrap().byte_len(), Some(LENGTH as u32));
    assert!(same(), "READ");
}

fn a_posted_request_waits_for_its_ring(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for wr_id in 0..32 {
        b.receive(100 + wr_id, &[]);
        a.post(wr_id, Send {}, NoPayload, SIGNALED).unwrap();
    }
    assert_eq!(a.qp.sq().staged(), 32);
    a.nothing();
    b.nothing();
    a.qp.sq().ring();
    assert_eq!(a.qp.sq().staged(), 0);
    for wr_id in 0..32 {
        completes(&mut a, wr_id, WcStatus::Success);
        completes(&mut b, 100 + wr_id, WcStatus::Success);
    }
}
