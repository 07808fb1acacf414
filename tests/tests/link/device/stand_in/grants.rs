//! Memory that is lent to a peer, on a device: windows that are bound, invalidated by either end, and destroyed. Not on
//! Soft-RoCE, whose statuses are others, and which panics at late answers (docs/conformance.md). There, `kv.c` runs.

use super::super::{device, patient};
use crate::grant::lender;
use crate::modes::{ready, until};
use crate::world::{BLOCK, End};
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::link::{Cancel, pair};
use bellwire::wqe::{RdmaWrite, Send, SendWithInv};
use bellwire::wr::{Remote, SendFlags, WcStatus};
use bellwire::{AccessFlags, Slab};

const ANSWER: u64 = 70;

/// The first end lends a block to the other, which gets the request.
fn lend(slab: &Slab, a: &mut End, b: &mut End, wr_id: u64) -> Remote {
    b.receive([wr_id]);
    let mut block = slab.take(BLOCK).unwrap();
    block.as_mut_slice().fill(0);
    let grant = slab.grant(block, BLOCK, AccessFlags::REMOTE_WRITE).unwrap();
    let mut at = Remote::default();
    let message = |remote| {
        at = remote;
        [0; 12]
    };
    let none = SendFlags::empty();
    (a.link)
        .post_grant(wr_id, grant, Send {}, message, none)
        .unwrap();
    a.link.ring();
    a.posted += 1;
    let before = b.log.len();
    until(a, b, |_, b| b.log.len() > before);
    at
}

#[test]
#[ignore = "on the stand-in for the kernel: cargo xtask test uverbs"]
fn memory_is_lent_and_comes_back() {
    let pd = device().alloc_pd();
    let slab = lender(&pd);
    let (here, there) = pair();
    let mut a = End::new(&pd, patient(), here);
    let mut b = End::new(&pd, patient(), there);
    until(&mut a, &mut b, ready);
    for round in 0..300 {
        let reported = a.sends().len();
        let remote = lend(&slab, &mut a, &mut b, 1);
        match round % 3 {
            0 => {
                a.receive([ANSWER]);
                b.stage(2, RdmaWrite { remote }, SendFlags::empty(), Replay::Surface);
                b.go(3, SendWithInv { rkey: remote.rkey }, Replay::Surface);
            }
            1 => {
                b.go(2, RdmaWrite { remote }, Replay::Surface);
                let before = b.sends().len();
                until(&mut a, &mut b, |_, b| b.sends().len() > before);
                assert_eq!(a.link.end_grant(1), Ok(Cancel::Requested));
            }
            _ => assert_eq!(a.link.cancel(1), Ok(Cancel::Requested)),
        }
        until(&mut a, &mut b, |a, _| a.sends().len() > reported);
        let (outcome, word) = match round % 3 {
            2 => (Outcome::InDoubt(Doubt::Cancelled), 0),
            _ => (Outcome::Done, 2),
        };
        let last = a.log.last().unwrap();
        assert_eq!(
            (last.wr_id, last.outcome, last.word),
            (1, outcome, Some(word)),
            "{round}"
        );
        assert_eq!(slab.outstanding(), 0);
    }
    assert_eq!(a.link.epoch(), 1);
    let kinds = [
        "given back by the peer",
        "taken back by the program",
        "cancelled",
    ];
    for (how, kind) in kinds.iter().enumerate() {
        // The key is dead; the links recover from its use.
        let remote = lend(&slab, &mut a, &mut b, 1);
        let reported = a.sends().len();
        match how {
            0 => {
                a.receive([ANSWER]);
                b.go(3, SendWithInv { rkey: remote.rkey }, Replay::Surface);
            }
            1 => _ = a.link.end_grant(1).unwrap(),
            _ => _ = a.link.cancel(1).unwrap(),
        }
        until(&mut a, &mut b, |a, _| a.sends().len() > reported);
        b.go(4, RdmaWrite { remote }, Replay::Surface);
        let denied = (4, Outcome::Failed(WcStatus::RemAccessErr));
        until(&mut a, &mut b, |_, b| b.sends().last() == Some(&denied));
        until(&mut a, &mut b, |a, b| {
            ready(a, b) && [a.link.epoch(), b.link.epoch()] == [2 + how as u64; 2]
        });
        let block = slab.take(BLOCK).unwrap();
        assert!(block.as_slice()[..8] != 4u64.to_le_bytes(), "{kind}");
    }
    assert_eq!(a.reported(), a.posted);
    assert_eq!(slab.outstanding(), 0);
}
