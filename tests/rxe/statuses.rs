//! Statuses of requests that fail.
//!
//! No request of a reliable connection fails with `LOC_LEN_ERR` here: rxe of Linux 6.1 has no place
//! that says it. What causes it elsewhere, a message longer than its receive, is a bad receive to rxe:
//! see [`a_message_longer_than_its_receive`].

use crate::tests;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{self, *};
use bellwire::wr::{SendFlags, Sge};
use bellwire::{AccessFlags, ConnectAttr, PortState};
use bellwire_tests::cable;
use bellwire_tests::ends::*;
use bellwire_tests::fixture::*;

tests! {
    loc_qp_op_err, loc_prot_err, rem_access_err, rem_inv_req_err, a_message_longer_than_its_receive,
    a_receive_into_memory_that_is_gone, rnr_retry_exc_err, retry_exc_err_by_a_cut_cable,
    retry_exc_err_by_a_peer_that_is_gone, loc_qp_op_err_by_a_port_that_is_down, wr_flush_err,
}

/// One request that fails, number 3, between others.
struct Case {
    connect: ConnectAttr,
    /// Receives of the peer's; number 2 is a SEND and takes the first.
    receives: u64,
    /// The status of request 3.
    status: WcStatus,
    /// The peer's state afterwards.
    peer: QpState,
    /// What becomes of the receive that request 3 took, where it took one.
    taken: Option<WcStatus>,
}

impl Case {
    fn new(status: WcStatus, peer: QpState) -> Self {
        Self {
            connect: impatient(),
            receives: 3,
            status,
            peer,
            taken: None,
        }
    }

    /// Before and behind the request that `bad` posts there are others, all of them rung for at once.
    fn judge(&self, (mut a, mut b): (End, End), bad: impl FnOnce(&mut End, &mut End)) {
        connect_with(&mut a.qp, &mut b.qp, &self.connect);
        for at in 0..3 {
            a.receive(RECEIVES + at, &[a.region.sge(512, 64)]);
        }
        for at in 0..self.receives {
            // The second is short.
            let length = if at == 1 { 4 } else { 64 };
            b.receive(RECEIVES + at, &[b.region.sge(1024, length)]);
        }
        let (here, there) = (a.region.sge(0, 8), b.region.remote(0));
        let silent = SendFlags::empty();
        a.post(1, RdmaWrite { remote: there }, here, SIGNALED)
            .expect("room");
        a.post(2, Send {}, here, SIGNALED).expect("room");
        bad(&mut a, &mut b);
        a.post(4, RdmaWrite { remote: there }, here, silent)
            .expect("room");
        a.post(5, Send {}, here, SIGNALED).expect("room");
        a.qp.sq().ring();
        self.reports(&mut a, &mut b);
        begins_anew(&mut a, &mut b);
    }

    fn reports(&self, a: &mut End, b: &mut End) {
        let flushed = |ids: std::ops::Range<u64>| ids.map(|wr_id| (wr_id, WrFlushErr));
        let sends = [(1, Success), (2, Success), (3, self.status)];
        let sends: Vec<_> = sends.into_iter().chain(flushed(4..6)).collect();
        let own: Vec<_> = flushed(RECEIVES..RECEIVES + 3).collect();
        account(a, &sends, &own);
        assert_eq!(a.qp.state(), QpState::Err);
        // What comes now is flushed, too.
        a.receive(RECEIVES + 3, &[]);
        a.go(6, Send {}, NoPayload);
        account(a, &[(6, WrFlushErr)], &[(RECEIVES + 3, WrFlushErr)]);

        let taken = self.taken.map(|status| (RECEIVES + 1, status));
        let completed = std::iter::once((RECEIVES, Success)).chain(taken);
        let left = RECEIVES + completed.clone().count() as u64..RECEIVES + self.receives;
        if self.peer == QpState::Err {
            account(b, &[], &completed.chain(flushed(left)).collect::<Vec<_>>());
            assert_eq!(b.qp.state(), QpState::Err);
        } else {
            // It goes on waiting.
            account(b, &[], &completed.collect::<Vec<_>>());
            assert_eq!(b.qp.state(), self.peer);
            b.qp.to_error().expect("from any state");
            account(b, &[], &flushed(left).collect::<Vec<_>>());
        }
    }
}

/// Memory that was registered once.
fn gone(end: &End) -> Sge {
    region(end.qp.pd(), 64).sge(0, 8)
}

/// To the rules this is LOC_PROT_ERR; rxe says LOC_QP_OP_ERR of all that it cannot send.
fn loc_qp_op_err() {
    Case::new(LocQpOpErr, QpState::Rts).judge(near(), |a, _| {
        let sge = gone(a);
        a.post(3, Send {}, sge, SendFlags::empty()).expect("room");
    });
}

/// The answer comes, and must not be written there.
fn loc_prot_err() {
    let (a, b) = near();
    let closed = region_with(a.qp.pd(), 64, AccessFlags::REMOTE_READ);
    Case::new(LocProtErr, QpState::Rts).judge((a, b), |a, b| {
        let remote = b.region.remote(0);
        let silent = SendFlags::empty();
        a.post(3, RdmaRead { remote }, closed.sge(0, 8), silent)
            .expect("room");
    });
    let mut bytes = [0; 64];
    closed.read(0, &mut bytes);
    assert_eq!(bytes, [0; 64]);
}

fn rem_access_err() {
    Case::new(RemAccessErr, QpState::Err).judge(near(), |a, b| {
        let remote = region(b.qp.pd(), 64).remote(0);
        let (here, silent) = (a.region.sge(0, 8), SendFlags::empty());
        a.post(3, RdmaWrite { remote }, here, silent).expect("room");
    });
}

fn rem_inv_req_err() {
    let case = Case {
        connect: ConnectAttr {
            access: AccessFlags::REMOTE_WRITE,
            ..impatient()
        },
        ..Case::new(RemInvReqErr, QpState::Err)
    };
    case.judge(near(), |a, b| {
        let remote = b.region.remote(0);
        let (here, silent) = (a.region.sge(0, 8), SendFlags::empty());
        a.post(3, RdmaRead { remote }, here, silent).expect("room");
    });
}

/// To the rules the receive fails with LOC_LEN_ERR, and the sender with REM_INV_REQ_ERR.
fn a_message_longer_than_its_receive() {
    let case = Case {
        taken: Some(LocQpOpErr),
        ..Case::new(RemOpErr, QpState::Err)
    };
    case.judge(near(), |a, _| {
        let eight = a.region.sge(0, 8);
        a.post(3, Send {}, eight, SendFlags::empty()).expect("room");
    });
}

/// To the rules the receive fails with LOC_PROT_ERR.
fn a_receive_into_memory_that_is_gone() {
    let (mut a, mut b) = near();
    connect_with(&mut a.qp, &mut b.qp, &impatient());
    let sge = gone(&b);
    b.receive(RECEIVES, &[sge]);
    b.receive(RECEIVES + 1, &[]);
    a.go(1, Send {}, a.region.sge(0, 8));
    a.go(2, Send {}, NoPayload);
    account(&mut a, &[(1, RemOpErr), (2, WrFlushErr)], &[]);
    let completed = [(RECEIVES, LocQpOpErr), (RECEIVES + 1, WrFlushErr)];
    account(&mut b, &[], &completed);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
    begins_anew(&mut a, &mut b);
}

fn rnr_retry_exc_err() {
    let case = Case {
        receives: 1,
        ..Case::new(RnrRetryExcErr, QpState::Rts)
    };
    case.judge(near(), |a, _| {
        let here = a.region.sge(0, 8);
        a.post(3, Send {}, here, SendFlags::empty()).expect("room");
    });
}

/// Cut at the other end: this one has its route still, and sends into the dark.
fn retry_exc_err_by_a_cut_cable() {
    cut_at("veth2", RetryExcErr);
}

/// Cut at this end: there is no route any more, and rxe does not retry.
fn loc_qp_op_err_by_a_port_that_is_down() {
    cut_at("veth1", LocQpOpErr);
}

fn cut_at(end: &str, status: WcStatus) {
    let (mut a, mut b) = far();
    connect_patiently(&mut a.qp, &mut b.qp, &impatient());
    works(&mut a, &mut b);
    let (here, remote) = (a.region.sge(0, 8), b.region.remote(0));
    for at in 0..3 {
        a.receive(RECEIVES + at, &[]);
        b.receive(RECEIVES + at, &[]);
    }
    let cable = cable::cut(end);
    cable::until_port(a.qp.pd().device(), PortState::Down);
    a.go(1, RdmaWrite { remote }, here);
    let silent = SendFlags::empty();
    a.post(2, Send {}, here, silent).expect("room");
    a.go(3, RdmaRead { remote }, here);
    let flushed = [0, 1, 2].map(|at| (RECEIVES + at, WrFlushErr));
    let sends = [(1, status), (2, WrFlushErr), (3, WrFlushErr)];
    account(&mut a, &sends, &flushed);
    assert_eq!(a.qp.state(), QpState::Err);
    // Nobody informs the other.
    assert_eq!(b.qp.state(), QpState::Rts);
    b.nothing();
    b.qp.to_error().expect("from any state");
    account(&mut b, &[], &flushed);
    cable.now();
    for end in [&a, &b] {
        cable::until_port(end.qp.pd().device(), PortState::Active);
    }
    begins_anew(&mut a, &mut b);
}

fn retry_exc_err_by_a_peer_that_is_gone() {
    let (mut a, mut b) = near();
    connect_with(&mut a.qp, &mut b.qp, &impatient());
    works(&mut a, &mut b);
    a.receive(RECEIVES, &[]);
    let pd = b.qp.pd().clone();
    drop(b);
    a.go(1, Send {}, NoPayload);
    a.go(2, Send {}, NoPayload);
    let sends = [(1, RetryExcErr), (2, WrFlushErr)];
    account(&mut a, &sends, &[(RECEIVES, WrFlushErr)]);
    assert_eq!(a.qp.state(), QpState::Err);
    let mut other = End::new(&pd, QUIET, &init());
    begins_anew(&mut a, &mut other);
}

/// The program gives up, with requests of every kind outstanding.
fn wr_flush_err() {
    let (mut a, mut b) = near();
    connect_with(&mut a.qp, &mut b.qp, &patient());
    let (here, remote) = (a.region.sge(0, 8), b.region.remote(0));
    a.receive(RECEIVES, &[]);
    a.receive(RECEIVES + 1, &[]);
    a.go(1, RdmaWrite { remote }, here);
    // Waits for a receive.
    a.go(2, Send {}, here);
    a.go(3, RdmaRead { remote }, here);
    let silent = SendFlags::empty();
    a.post(4, RdmaWrite { remote }, here, silent).expect("room");
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (1, Success));
    a.nothing();
    a.qp.to_error().expect("from any state");
    let sends = [2, 3, 4].map(|wr_id| (wr_id, WrFlushErr));
    let receives = [RECEIVES, RECEIVES + 1].map(|wr_id| (wr_id, WrFlushErr));
    account(&mut a, &sends, &receives);
    assert_eq!(a.qp.state(), QpState::Err);
    assert_eq!(b.qp.state(), QpState::Rts);
    begins_anew(&mut a, &mut b);
}
