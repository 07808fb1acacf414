//! In which order requests take effect.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::completes;
use bellwire::be::Be32;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

rules! {
    "ordering::rc", "In which order requests take effect.", needs [Rc];
    messages_arrive_in_the_order_they_were_posted: "IBTA vol. 1, 9.5",
        "The SENDs of one queue consume receives in the order in which they were posted.";
    receives_are_consumed_in_the_order_they_were_posted: "IBTA vol. 1, 10.8.3",
        "The receives of one queue are filled in the order in which they were posted.";
    a_write_is_there_before_the_send_behind_it: "IBTA vol. 1, 9.5",
        "When a SEND completes at its receiver, the WRITEs before it are in memory.";
    a_write_with_immediate_is_there_when_it_completes: "IBTA vol. 1, 9.5",
        "When a WRITE with immediate completes at its receiver, its data is in memory.";
    a_read_sees_the_writes_before_it: "IBTA vol. 1, 9.5",
        "A READ returns what the WRITEs before it left.";
    an_atomic_sees_the_writes_before_it: "IBTA vol. 1, 9.5",
        "An atomic finds what the WRITEs before it left.";
    a_fenced_send_carries_what_the_read_before_brought: "IBTA vol. 1, 10.8.3",
        "A fenced SEND starts when earlier READs have completed, and carries what they brought.";
    a_fenced_send_carries_what_the_atomic_before_brought: "IBTA vol. 1, 10.8.3",
        "A fenced SEND starts when earlier atomics have completed, and carries their result.";
    a_fenced_write_carries_what_the_read_before_brought: "IBTA vol. 1, 10.8.3",
        "A fenced WRITE starts when earlier READs have completed, and carries what they brought.";
    the_last_of_two_writes_stays: "IBTA vol. 1, 9.5",
        "Two WRITEs to one place leave the data of the later.";
    batches_are_in_order_over_many_rings: "IBTA vol. 1, 10.8.3",
        "However requests are rung, they take effect in the order in which they were posted.";
}

const SILENT: SendFlags = SendFlags::empty();

fn word(end: &End, offset: usize) -> u64 {
    end.region.word(offset).load(Ordering::Acquire)
}

fn messages_arrive_in_the_order_they_were_posted(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for wr_id in 0..32 {
        b.receive(wr_id, &[b.region.sge(wr_id as usize * 64, 64)]);
    }
    for number in 0..32u64 {
        // Short ones and long ones.
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        let length = if number % 2 == 0 { 8 } else { 64 };
        a.post(number, Send {}, Inline(&bytes[..length]), SIGNALED)
            .unwrap();
    }
    a.qp.sq().ring();
    for number in 0..32 {
        completes(&mut b, number, WcStatus::Success);
        assert_eq!(word(&b, number as usize * 64), number);
    }
}

fn receives_are_consumed_in_the_order_they_were_posted(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let (remote, imm) = (b.region.remote(0), Be32::new(1));
    for wr_id in [5, 3, 9, 1, 7, 2] {
        b.receive(wr_id, &[]);
    }
    for wr_id in 0..3 {
        a.go(wr_id, Send {}, NoPayload);
        a.go(wr_id, RdmaWriteWithImm { remote, imm }, NoPayload);
    }
    for wr_id in [5, 3, 9, 1, 7, 2] {
        completes(&mut b, wr_id, WcStatus::Success);
    }
}

fn a_write_is_there_before_the_send_behind_it(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let remote = b.region.remote(0);
    for round in 1..200u64 {
        b.receive(70, &[]);
        let data = Inline(&round.to_ne_bytes());
        a.post(1, RdmaWrite { remote }, data, SILENT).unwrap();
        a.go(2, Send {}, NoPayload);
        completes(&mut b, 70, WcStatus::Success);
        assert_eq!(word(&b, 0), round);
        completes(&mut a, 2, WcStatus::Success);
    }
}

fn a_write_with_immediate_is_there_when_it_completes(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let imm = Be32::new(1);
    for round in 1..200u64 {
        b.receive(70, &[]);
        a.region.write(0, &[round as u8; 4096]);
        let remote = b.region.remote(0);
        a.go(1, RdmaWriteWithImm { remote, imm }, a.region.sge(0, 4096));
        completes(&mut b, 70, WcStatus::Success);
        let mut bytes = [0; 4096];
        b.region.read(0, &mut bytes);
        assert!(bytes == [round as u8; 4096], "round {round}");
        completes(&mut a, 1, WcStatus::Success);
    }
}

fn a_read_sees_the_writes_before_it(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    for round in 1..200u64 {
        let data = Inline(&round.to_ne_bytes());
        a.post(1, RdmaWrite { remote }, data, SILENT).unwrap();
        a.go(2, RdmaRead { remote }, a.region.sge(0, 8));
        completes(&mut a, 2, WcStatus::Success);
        assert_eq!(word(&a, 0), round);
    }
}

fn an_atomic_sees_the_writes_before_it(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    for round in 1..200u64 {
        let data = Inline(&round.to_ne_bytes());
        a.post(1, RdmaWrite { remote }, data, SILENT).unwrap();
        a.go(2, AtomicFetchAndAdd { remote, add: 1 }, a.region.sge(0, 8));
        completes(&mut a, 2, WcStatus::Success);
        assert_eq!((word(&a, 0), word(&b, 0)), (round, round + 1));
    }
}

/// Brings eight bytes to offset 0 by `bring`, and sends them on behind a fence.
fn fenced(p: &Provider, bring: impl Fn(&mut End, bellwire::wr::Remote)) {
    let (mut a, mut b) = p.pair();
    for round in 1..200u64 {
        b.region.word(0).store(round, Ordering::Release);
        b.receive(70, &[b.region.sge(64, 8)]);
        bring(&mut a, b.region.remote(0));
        let fenced = SIGNALED | SendFlags::FENCE;
        a.post(2, Send {}, a.region.sge(0, 8), fenced).unwrap();
        a.qp.sq().ring();
        completes(&mut b, 70, WcStatus::Success);
        assert_eq!(word(&b, 64), round);
        completes(&mut a, 2, WcStatus::Success);
    }
}

fn a_fenced_send_carries_what_the_read_before_brought(p: &Provider) {
    fenced(p, |a, remote| {
        a.post(1, RdmaRead { remote }, a.region.sge(0, 8), SILENT)
            .unwrap();
    });
}

fn a_fenced_send_carries_what_the_atomic_before_brought(p: &Provider) {
    fenced(p, |a, remote| {
        let operation = AtomicFetchAndAdd { remote, add: 1 };
        a.post(1, operation, a.region.sge(0, 8), SILENT).unwrap();
    });
}

fn a_fenced_write_carries_what_the_read_before_brought(p: &Provider) {
    let (mut a, b) = p.pair();
    for round in 1..200u64 {
        b.region.word(0).store(round, Ordering::Release);
        let (remote, there) = (b.region.remote(0), b.region.remote(64));
        a.post(1, RdmaRead { remote }, a.region.sge(0, 8), SILENT)
            .unwrap();
        let fenced = SIGNALED | SendFlags::FENCE;
        a.post(2, RdmaWrite { remote: there }, a.region.sge(0, 8), fenced)
            .unwrap();
        a.qp.sq().ring();
        completes(&mut a, 2, WcStatus::Success);
        assert_eq!(word(&b, 64), round);
    }
}

fn the_last_of_two_writes_stays(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    for round in 1..200u64 {
        a.post(1, RdmaWrite { remote }, Inline(&[0xff; 64]), SILENT)
            .unwrap();
        a.go(2, RdmaWrite { remote }, Inline(&round.to_ne_bytes()));
        completes(&mut a, 2, WcStatus::Success);
        assert_eq!(word(&b, 0), round);
    }
}

fn batches_are_in_order_over_many_rings(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    let mut random = Random::new(8);
    let mut next = 0u64;
    for _ in 0..300 {
        let burst = 1 + random.below(40);
        for at in 0..burst {
            let flags = if at + 1 == burst { SIGNALED } else { SILENT };
            // Adds only when every one before has.
            let (compare, swap) = (next, next + 1);
            let operation = AtomicCmpAndSwp {
                remote,
                compare,
                swap,
            };
            a.post(next, operation, a.region.sge(0, 8), flags).unwrap();
            if random.below(4) == 0 {
                a.qp.sq().ring();
            }
            next += 1;
        }
        a.qp.sq().ring();
        completes(&mut a, next - 1, WcStatus::Success);
        assert_eq!(word(&b, 0), next);
    }
}
