//! What rules share beside the fixture: queue pairs brought to any state, step by step.

use bellwire::soft::{Fault, Script, Trigger};
use bellwire::state::{ModifyError, Mtu, QpAttr, QpAttrMask, QpState};
use bellwire::wr::WcStatus;
use bellwire::{AccessFlags, ConnectAttr, Device, Endpoint, Error, Qp};
pub use bellwire_tests::events::{event, no_event};
use bellwire_tests::fixture::{End, until};
use std::time::Duration;

/// 67 ms, and how often that: the rules wait for silent peers, but a peer that is only slow, for its
/// processor was taken away, is not to be given up.
const TIMEOUT: u8 = 14;
const RETRY_CNT: u8 = 3;

/// Gives up on a silent peer soon.
pub fn impatient() -> ConnectAttr {
    ConnectAttr {
        timeout: TIMEOUT,
        retry_cnt: RETRY_CNT,
        ..ConnectAttr::default()
    }
}

/// Looks again for a receive every 0.01 ms.
pub fn quick_rnr() -> ConnectAttr {
    ConnectAttr {
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    }
}

/// Every attribute with a value that a reliable connection of this device to `peer` can have, but for `sq_psn`.
pub fn attr(device: &Device, state: QpState, peer: &Endpoint) -> QpAttr {
    let ah_attr = device.way_to(peer, 1, None);
    QpAttr {
        qp_state: state,
        path_mtu: Mtu::Mtu1024,
        dest_qp_num: peer.qp_num,
        rq_psn: peer.psn,
        qp_access_flags: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        timeout: TIMEOUT,
        retry_cnt: RETRY_CNT,
        rnr_retry: 7,
        port_num: 1,
        ah_attr,
        alt_ah_attr: ah_attr,
        alt_port_num: 1,
        ..QpAttr::default()
    }
}

/// What RESET to INIT requires of a reliable connection, beside the state.
pub const TO_INIT: QpAttrMask = QpAttrMask::PKEY_INDEX
    .union(QpAttrMask::PORT)
    .union(QpAttrMask::ACCESS_FLAGS);

/// What INIT to RTR requires.
pub const TO_RTR: QpAttrMask = QpAttrMask::AV
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);

/// What RTR to RTS requires.
pub const TO_RTS: QpAttrMask = QpAttrMask::SQ_PSN
    .union(QpAttrMask::TIMEOUT)
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);

/// Takes a queue pair in RESET to `state`, towards `peer`.
pub fn bring(qp: &mut Qp, peer: &Endpoint, state: QpState) {
    use QpState::*;
    let way: &[(QpState, QpAttrMask)] = match state {
        Reset => &[],
        Init => &[(Init, TO_INIT)],
        Rtr => &[(Init, TO_INIT), (Rtr, TO_RTR)],
        Rts => &[(Init, TO_INIT), (Rtr, TO_RTR), (Rts, TO_RTS)],
        Sqd | Err | Sqe => {
            bring(qp, peer, Rts);
            &[(state, QpAttrMask::empty())]
        }
    };
    for &(to, mask) in way {
        let attr = QpAttr {
            sq_psn: qp.endpoint().psn,
            ..attr(qp.pd().device(), to, peer)
        };
        qp.modify(&attr, mask | QpAttrMask::STATE)
            .unwrap_or_else(|error| panic!("to {to}: {error}"));
    }
    assert_eq!(qp.state(), state);
    // Nothing is in flight, and yet a device may take its time.
    until("the drain", || !qp.query().sq_draining);
}

/// Changes the state alone.
pub fn go_to(end: &mut End, state: QpState) {
    let attr = QpAttr {
        qp_state: state,
        ..QpAttr::default()
    };
    end.qp
        .modify(&attr, QpAttrMask::STATE)
        .unwrap_or_else(|error| panic!("to {state}: {error}"));
}

/// Asserts the end's next outcome.
pub fn completes(end: &mut End, wr_id: u64, status: WcStatus) {
    assert_eq!(end.outcome(), (wr_id, status));
}

/// Why a change was refused.
pub fn modify_error(result: Result<(), Error>) -> ModifyError {
    match result {
        Err(Error::Modify(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// To SQD, with a request started that cannot finish: goes back and tries again while none was.
pub fn drain_started(end: &mut End) {
    until("a started request", || {
        go_to(end, QpState::Sqd);
        let started = end.qp.query().sq_draining;
        if !started {
            go_to(end, QpState::Rts);
        }
        started
    });
}

/// Lets something go wrong with the device at once.
pub fn strike(device: &Device, fault: Fault) {
    let at_once = Trigger::After(Duration::ZERO);
    device
        .as_soft()
        .unwrap()
        .inject(&Script::default().with(at_once, fault))
        .expect("a good script");
    device.progress();
}
