//! Each status that requests of a link can fail with there: what is reported of the request and of those
//! around it, held against what came to the peer.

use super::{device, ends, patient};
use crate::modes::{ready, until};
use crate::world::End;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::LinkInit;
use bellwire::wqe::{
    AtomicFetchAndAdd, Operation, Payload, Rc, RdmaRead, RdmaWrite, Send, Supports,
};
use bellwire::wr::{Remote, WcStatus};
use bellwire::{AccessFlags, ConnectAttr, ProviderKind};
use bellwire_tests::fixture::{SIGNALED, region, region_with};
use std::sync::mpsc;

/// A connection with these rights, on which a peer without a receive is given up soon.
fn with(access: AccessFlags) -> LinkInit {
    let connect = ConnectAttr {
        access,
        rnr_retry: 2,
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    };
    LinkInit {
        connect,
        ..patient()
    }
}

/// Stages request 3.
fn stage<O: Operation, P: Payload>(a: &mut End, operation: O, payload: P)
where
    Rc: Supports<O>,
{
    // SAFETY: its memory stays until it is reported, or is gone already.
    unsafe { (a.link).post(3, operation, payload, SIGNALED, Replay::IfSafe) }.unwrap();
    a.posted += 1;
}

/// Fails request 3 of five. The others are executed, once: those before it, and those that it took along.
fn judge(status: WcStatus, access: AccessFlags, receives: u64, bad: impl FnOnce(&mut End, Remote)) {
    let (mut a, mut b) = ends(with(access), receives);
    let (faults, met) = mpsc::channel();
    a.link.on_fault(move |report| {
        let _ = faults.send(report.fault);
    });
    let remote = b.memory();
    let at = |offset| Remote {
        addr: remote.addr + offset,
        ..remote
    };
    let epoch = a.link.epoch();
    (a).stage(1, RdmaWrite { remote: at(0) }, SIGNALED, Replay::Surface);
    a.stage(2, Send {}, SIGNALED, Replay::Surface);
    bad(&mut a, at(512));
    // Without a receive it would fail as well.
    let send = receives > 1;
    if send {
        a.stage(4, Send {}, SIGNALED, Replay::IfSafe);
    }
    (a).stage(5, RdmaWrite { remote: at(256) }, SIGNALED, Replay::Anyway);
    a.link.ring();
    until(&mut a, &mut b, |a, b| {
        ready(a, b) && a.link.epoch() > epoch && a.reported() == a.posted
    });

    let mut sends = a.sends();
    sends.sort_by_key(|&(wr_id, _)| wr_id);
    let mut expected = vec![
        (1, Outcome::Done),
        (2, Outcome::Done),
        (3, Outcome::Failed(status)),
        (4, Outcome::Done),
        (5, Outcome::Done),
    ];
    expected.retain(|&(wr_id, _)| wr_id != 4 || send);
    assert_eq!(sends, expected);
    let first = met.try_recv().expect("a fault");
    assert!(
        matches!(first, Fault::Status { status: of, .. } if of == status),
        "{first:?}"
    );

    // As the peer has it: both messages once and in order, both WRITEs, and nothing of request 3.
    let words = if send { &[2, 4][..] } else { &[2] };
    until(&mut a, &mut b, |_, b| came(b).len() >= words.len());
    assert_eq!(came(&b), words);
    let word = |offset| {
        let mut bytes = [0; 8];
        b.region.read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    assert_eq!([word(0), word(256), word(512)], [1, 5, 0]);

    // Traffic flows both ways.
    a.receive([100]);
    b.receive([101]);
    a.go(6, Send {}, Replay::Surface);
    b.go(7, Send {}, Replay::Surface);
    until(&mut a, &mut b, |a, b| {
        came(b).ends_with(&[6]) && came(a) == [7]
    });
}

/// The words of the messages that came.
fn came(end: &End) -> Vec<u64> {
    let received = end.received().into_iter();
    let whole = received.filter(|(_, outcome, _)| *outcome == Outcome::Done);
    whole.map(|(.., word)| word).collect()
}

const ALL: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// What rxe says, and what others do, as the specification has it.
fn of_rxe(rxe: WcStatus, others: WcStatus) -> WcStatus {
    match device().provider() {
        ProviderKind::Verbs => rxe,
        _ => others,
    }
}

/// A key that opens nothing: of the same memory, with another low byte.
fn closed(remote: Remote) -> Remote {
    Remote {
        rkey: remote.rkey ^ 0x55,
        ..remote
    }
}

#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn rem_access_err_of_a_write() {
    judge(WcStatus::RemAccessErr, ALL, 16, |a, remote| {
        let remote = closed(remote);
        stage(a, RdmaWrite { remote }, a.region.sge(0, 8));
    });
}

#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn rem_access_err_of_a_read() {
    judge(WcStatus::RemAccessErr, ALL, 16, |a, remote| {
        let remote = closed(remote);
        stage(a, RdmaRead { remote }, a.region.sge(0, 8));
    });
}

#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn rem_access_err_of_an_atomic() {
    judge(WcStatus::RemAccessErr, ALL, 16, |a, remote| {
        let remote = closed(remote);
        stage(a, AtomicFetchAndAdd { remote, add: 7 }, a.region.sge(0, 8));
    });
}

#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn rem_inv_req_err() {
    let access = AccessFlags::REMOTE_WRITE;
    judge(WcStatus::RemInvReqErr, access, 16, |a, remote| {
        stage(a, RdmaRead { remote }, a.region.sge(0, 8));
    });
}

/// A message that is longer than its receive.
#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn longer_than_the_receive() {
    let status = of_rxe(WcStatus::RemOpErr, WcStatus::RemInvReqErr);
    judge(status, ALL, 16, |a, _| {
        stage(a, Send {}, a.region.sge(0, 512));
    });
}

/// Memory that cannot be sent from.
#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn from_memory_that_is_gone() {
    let status = of_rxe(WcStatus::LocQpOpErr, WcStatus::LocProtErr);
    judge(status, ALL, 16, |a, _| {
        let gone = region(a.link.pd().unwrap(), 64).sge(0, 8);
        stage(a, Send {}, gone);
    });
}

/// An answer to memory that must not be written.
#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn loc_prot_err() {
    let mut kept = None;
    judge(WcStatus::LocProtErr, ALL, 16, |a, remote| {
        let closed = region_with(a.link.pd().unwrap(), 64, AccessFlags::REMOTE_READ);
        stage(a, RdmaRead { remote }, kept.insert(closed).sge(0, 8));
    });
}

/// A SEND that finds no receive.
#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn rnr_retry_exc_err() {
    judge(WcStatus::RnrRetryExcErr, ALL, 1, |a, _| {
        stage(a, Send {}, a.region.sge(0, 8));
    });
}
