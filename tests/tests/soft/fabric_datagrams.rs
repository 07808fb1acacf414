//! Datagrams between nodes of a fabric, many times round the ring of packets: of all lengths, with and without a GRH,
//! into one element or several, with those among them that nobody receives.

use super::station::{QKEY, Station};
use bellwire::be::Be32;
use bellwire::queue::Imm;
use bellwire::soft::Mode;
use bellwire::state::{AhAttr, GlobalRoute};
use bellwire::wqe::SendWithImm;
use bellwire::wr::WcStatus;
use bellwire::{Ah, GRH_BYTES};
use bellwire_tests::fixture::*;
use std::thread;
use std::time::{Duration, Instant};

const MTU: usize = 4096;

fn send(from: &mut Station, ah: &Ah, qp_num: u32, qkey: u32, length: usize, imm: u32) {
    let op = SendWithImm {
        imm: Be32::new(imm),
    };
    let cut = length / 3;
    let sges =
        [(0, cut), (cut, length - cut)].map(|(at, length)| from.region.sge(at, length as u32));
    // SAFETY: as above.
    unsafe { (from.qp.sq()).post(2, ah.to(qp_num, qkey), op, &sges[..], SIGNALED) }.expect("room");
    from.qp.sq().ring();
    assert_eq!(wait(&mut from.cq).wr_id, 2);
}

#[test]
fn datagrams_of_all_lengths() {
    for shares in [false, true] {
        of_all_lengths(shares);
    }
}

/// Two nodes' stations, the second of which may receive from a shared receive queue.
fn stations(shares: bool) -> (Station, Station) {
    let name = fabric_name();
    let [a, b] = [(); 2].map(|()| node(&name, Mode::Inline));
    (Station::new(&a, false), Station::new(&b, shares))
}

/// The path to a station, without a GRH.
fn way_to(station: &Station) -> AhAttr {
    AhAttr {
        dlid: station.qp.endpoint().lid,
        port_num: 1,
        ..AhAttr::default()
    }
}

/// A datagram that is longer than its receive fails the receiver's queue pair, and the receive is reported once. The
/// sender hears nothing of it.
#[test]
fn datagrams_that_do_not_fit() {
    for shares in [false, true] {
        let (mut here, mut there) = stations(shares);
        let way = way_to(&there);
        let ah = here.qp.pd().create_ah(&way).expect("a path");
        for _ in 0..2 {
            there.receive(&[there.region.sge(0, GRH_BYTES as u32 + 100)]);
        }
        let them = there.qp.qp_num();
        send(&mut here, &ah, them, QKEY, 100, 1);
        assert_eq!(wait(&mut there.cq).status(), WcStatus::Success);
        send(&mut here, &ah, them, QKEY, 101, 2);
        let failed = wait(&mut there.cq);
        assert_eq!((failed.wr_id, failed.status()), (7, WcStatus::LocLenErr));
        nothing(&mut there.cq, Mode::Inline);
    }
}

/// A node ends, while another one polls for what it sent: nothing of that is received once more.
#[test]
fn what_a_node_sent_is_received_once_although_it_ends() {
    for _ in 0..50 {
        let (mut here, mut there) = stations(false);
        let way = way_to(&there);
        let ah = here.qp.pd().create_ah(&way).expect("a path");
        for _ in 0..8 {
            there.receive(&[there.region.sge(0, GRH_BYTES as u32 + 64)]);
        }
        for number in 0..2 {
            send(&mut here, &ah, there.qp.qp_num(), QKEY, 64, number);
            assert_eq!(wait(&mut there.cq).status(), WcStatus::Success);
        }
        let ends = thread::spawn(move || drop((ah, here)));
        let start = Instant::now();
        while !ends.is_finished() || start.elapsed() < Duration::from_millis(20) {
            assert!(there.cq.poll_one().is_none(), "received once more");
        }
        ends.join().expect("it ended");
    }
}

/// Threads that send to the same node, now and then so many in succession that one holds the turn to send, and the other one
/// to receive.
#[test]
fn threads_beside_each_other_lose_none() {
    let name = fabric_name();
    let [a, b] = [(); 2].map(|()| node(&name, Mode::Inline));
    thread::scope(|scope| {
        for at in 0..3 {
            let (mut here, mut there) = (Station::new(&a, false), Station::new(&b, false));
            scope.spawn(move || {
                let way = way_to(&there);
                let ah = here.qp.pd().create_ah(&way).expect("a path");
                let (them, mut random) = (there.qp.qp_num(), Random::new(at));
                for round in 0..40 {
                    for number in 0..random.below(200) as u32 {
                        there.receive(&[there.region.sge(0, GRH_BYTES as u32 + 64)]);
                        send(&mut here, &ah, them, QKEY, 64, number);
                        let success = wait(&mut there.cq).result.expect("received");
                        let imm = Imm::Data(Be32::new(number));
                        assert_eq!((success.imm(), success.byte_len()), (imm, Some(104)));
                    }
                    if round % 4 == at {
                        thread::sleep(Duration::from_micros(500));
                    }
                }
            });
        }
    });
}

fn of_all_lengths(shares: bool) {
    let (mut here, mut there) = stations(shares);
    let mut way = way_to(&there);
    let local = here.qp.pd().create_ah(&way).expect("a path");
    way.is_global = true;
    way.grh = GlobalRoute {
        dgid: there.qp.endpoint().gid,
        traffic_class: 3,
        ..GlobalRoute::default()
    };
    let global = here.qp.pd().create_ah(&way).expect("a path");
    let (us, them) = (here.qp.endpoint(), there.qp.qp_num());
    let lengths = (0..=130).chain((131..MTU).step_by(13)).chain([MTU]);
    for (seed, length) in lengths.flat_map(|length| [length; 2]).enumerate() {
        let data = Random::new(seed as u64).bytes(length);
        here.region.write(0, &data);
        there.region.write(0, &vec![0xee; GRH_BYTES + length + 64]);
        let whole = GRH_BYTES + length;
        let cut = [10, whole / 2 + 5];
        match seed % 3 {
            0 => there.receive(&[there.region.sge(0, whole as u32)]),
            _ => there.receive(
                &[(0, cut[0]), (cut[0], cut[1]), (cut[1], whole)]
                    .map(|(from, to)| there.region.sge(from, (to - from) as u32)),
            ),
        }
        if seed % 5 == 0 {
            // Dropped, and whatever is behind it arrives.
            send(&mut here, &local, them, QKEY + 1, length, 0);
        }
        let global = (seed % 2 == 0).then_some(&global);
        send(
            &mut here,
            global.unwrap_or(&local),
            them,
            QKEY,
            length,
            seed as u32,
        );
        let start = Instant::now();
        let done = loop {
            if let Some(done) = there.cq.poll_one() {
                break done;
            }
            assert!(start.elapsed() < DEADLINE, "{length} bytes do not arrive");
        };
        assert_eq!((done.wr_id, done.status()), (7, WcStatus::Success));
        let success = done.result.expect("just so");
        assert_eq!(success.byte_len(), Some(whole as u32));
        assert_eq!(success.imm(), Imm::Data(Be32::new(seed as u32)));
        let source = success.source().expect("of a datagram");
        assert_eq!(
            (source.qpn, source.slid, source.grh),
            (us.qp_num, us.lid, global.is_some())
        );
        let mut bytes = vec![0; whole + 64];
        there.region.read(0, &mut bytes);
        let (grh, rest) = bytes.split_at(GRH_BYTES);
        if global.is_some() {
            assert_eq!(grh[8..24], us.gid, "the sender's");
            assert_eq!(grh[24..], there.qp.endpoint().gid);
        }
        assert!(rest[..length] == data, "{length} bytes came otherwise");
        assert_eq!(rest[length..], [0xee; 64], "what is behind was written to");
    }
}
