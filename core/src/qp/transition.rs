//! Which transitions are legal, with which attributes, and the errors of illegal ones.

use super::{AhAttr, QpAttr, QpAttrMask, QpState};
use crate::wr::QpType;
use QpAttrMask as M;
use core::fmt;

/// The attributes of one legal transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The bits that the mask must have. `STATE` is among them where the state changes.
    pub required: QpAttrMask,
    /// The bits that the mask may have in addition.
    pub optional: QpAttrMask,
}

const fn set(flags: &[M]) -> M {
    let mut all = M::empty();
    let mut i = 0;
    while i < flags.len() {
        all = all.union(flags[i]);
        i += 1;
    }
    all
}

const NONE: M = M::empty();

// Required from RESET to INIT, optional from INIT to INIT.
const INIT_UD: M = set(&[M::PKEY_INDEX, M::PORT, M::QKEY]);
const INIT_CONNECTED: M = set(&[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]);

// INIT to RTR: the attributes of the responder.
const RTR: M = set(&[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN]);
const RTR_RELIABLE: M = set(&[RTR, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER]);
const RTR_OPTIONAL_UD: M = set(&[M::PKEY_INDEX, M::QKEY]);
const RTR_OPTIONAL: M = set(&[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX]);

// RTR to RTS: the attributes of the requester; an XRC target has hardly any of them.
const RTS_REQUESTER: M = set(&[
    M::SQ_PSN,
    M::TIMEOUT,
    M::RETRY_CNT,
    M::RNR_RETRY,
    M::MAX_QP_RD_ATOMIC,
]);
const RTS_XRC_RECV: M = set(&[M::SQ_PSN, M::TIMEOUT]);

// Optional in every transition to RTS.
const LIVE_UD: M = set(&[M::CUR_STATE, M::QKEY]);
const LIVE: M = set(&[
    M::CUR_STATE,
    M::ALT_PATH,
    M::ACCESS_FLAGS,
    M::PATH_MIG_STATE,
]);
const LIVE_RESPONDER: M = set(&[LIVE, M::MIN_RNR_TIMER]);
const LIVE_FROM_SQE_UC: M = set(&[M::CUR_STATE, M::ACCESS_FLAGS]);

// SQD to SQD: a drained queue can change its path.
const SQD_UD: M = set(&[M::PKEY_INDEX, M::QKEY]);
const SQD_UC: M = set(&[
    M::AV,
    M::ALT_PATH,
    M::ACCESS_FLAGS,
    M::PKEY_INDEX,
    M::PATH_MIG_STATE,
]);
const SQD_RELIABLE: M = set(&[SQD_UC, M::PORT, M::TIMEOUT]);
const SQD_XRC_SEND: M = set(&[
    SQD_RELIABLE,
    M::RETRY_CNT,
    M::RNR_RETRY,
    M::MAX_QP_RD_ATOMIC,
]);
const SQD_XRC_RECV: M = set(&[SQD_RELIABLE, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER]);
const SQD_RC: M = set(&[SQD_XRC_SEND, SQD_XRC_RECV]);

/// The attributes that `transport` needs to go from `from` to `to`; `None` where the transition is
/// illegal.
///
/// This is the table of IBTA volume 1, chapter 11, Modify Queue Pair, with the attributes that
/// Linux accepts (so `CAP`, which resizes the queues, is never accepted). Linux differs in two
/// transitions: it refuses RESET to ERR with EINVAL, which the specification allows; and it lets
/// the reliable transports, which are never in SQE, go from SQE to RTS. The specification does not
/// define DCI; here it can only go to RESET and ERR.
pub const fn transition(transport: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpState::*;
    use QpType::*;
    let (required, optional) = match (from, to) {
        (_, Reset | Err) => (NONE, NONE),
        (Reset, Init) => match transport {
            Ud => (INIT_UD, NONE),
            Rc | Uc | XrcSend | XrcRecv => (INIT_CONNECTED, NONE),
            Dci => return None,
        },
        (Init, Init) => match transport {
            Ud => (NONE, INIT_UD),
            Rc | Uc | XrcSend | XrcRecv => (NONE, INIT_CONNECTED),
            Dci => return None,
        },
        (Init, Rtr) => match transport {
            Ud => (NONE, RTR_OPTIONAL_UD),
            Uc | XrcSend => (RTR, RTR_OPTIONAL),
            Rc | XrcRecv => (RTR_RELIABLE, RTR_OPTIONAL),
            Dci => return None,
        },
        (Rtr, Rts) => match transport {
            Ud => (M::SQ_PSN, LIVE_UD),
            Uc => (M::SQ_PSN, LIVE),
            Rc => (RTS_REQUESTER, LIVE_RESPONDER),
            XrcSend => (RTS_REQUESTER, LIVE),
            XrcRecv => (RTS_XRC_RECV, LIVE_RESPONDER),
            Dci => return None,
        },
        (Rts | Sqd, Rts) => match transport {
            Ud => (NONE, LIVE_UD),
            Uc | XrcSend => (NONE, LIVE),
            Rc | XrcRecv => (NONE, LIVE_RESPONDER),
            Dci => return None,
        },
        (Rts, Sqd) => (NONE, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => match transport {
            Ud => (NONE, SQD_UD),
            Uc => (NONE, SQD_UC),
            Rc => (NONE, SQD_RC),
            XrcSend => (NONE, SQD_XRC_SEND),
            XrcRecv => (NONE, SQD_XRC_RECV),
            Dci => return None,
        },
        (Sqe, Rts) => match transport {
            Ud => (NONE, LIVE_UD),
            Uc => (NONE, LIVE_FROM_SQE_UC),
            Rc | XrcSend | XrcRecv | Dci => return None,
        },
        _ => return None,
    };
    Some(if from as u8 == to as u8 {
        Transition {
            required,
            optional: optional.union(M::STATE),
        }
    } else {
        Transition {
            required: required.union(M::STATE),
            optional,
        }
    })
}

/// The states to which a queue pair of `transport` can go from `from`. From SQD, it can go to RTS
/// only once the send queue has drained.
pub fn legal_targets(transport: QpType, from: QpState) -> impl Iterator<Item = QpState> {
    QpState::ALL
        .into_iter()
        .filter(move |&to| transition(transport, from, to).is_some())
}

/// A requested transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The transport service of the queue pair.
    pub transport: QpType,
    /// The current state.
    pub from: QpState,
    /// The requested state.
    pub to: QpState,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            transport,
            from,
            to,
        } = self;
        write!(f, "{transport} queue pair, {from} to {to}")
    }
}

/// Why a queue pair cannot be modified. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// The state cannot go to the requested one; [`legal_targets`] lists those to which it can.
    IllegalTransition(Step),
    /// The mask lacks attributes that the transition requires.
    Missing {
        /// The requested transition.
        step: Step,
        /// The attributes that the mask lacks.
        attributes: QpAttrMask,
    },
    /// The mask has attributes that the transition does not accept.
    NotAllowed {
        /// The requested transition.
        step: Step,
        /// The attributes that are not accepted, including unknown bits.
        attributes: QpAttrMask,
    },
    /// The queue pair is in a state other than `cur_qp_state`.
    CurStateMismatch {
        /// `cur_qp_state`.
        given: QpState,
        /// The current state.
        actual: QpState,
    },
    /// SQD to RTS while not all started sends have finished.
    NotDrained,
    /// The value of an attribute does not fit into its field on the wire.
    OutOfRange {
        /// The field of [`QpAttr`].
        attribute: &'static str,
        /// Its value.
        value: u32,
        /// The smallest value.
        min: u32,
        /// The largest value.
        max: u32,
    },
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IllegalTransition(step) => {
                write!(f, "{step}: no such transition; set STATE, and qp_state to")?;
                let mut separator = " ";
                for to in legal_targets(step.transport, step.from) {
                    write!(f, "{separator}{to}")?;
                    separator = " or ";
                }
                Ok(())
            }
            Self::Missing { step, attributes } => write!(
                f,
                "{step}: required attributes are missing; set them and add them to the mask: \
                 {attributes}"
            ),
            Self::NotAllowed { step, attributes } => write!(
                f,
                "{step}: attributes that cannot be set here; take them out of the mask: \
                 {attributes}"
            ),
            Self::CurStateMismatch { given, actual } => write!(
                f,
                "cur_qp_state is {given}, but the queue pair is in {actual}; query the state, or \
                 take CUR_STATE out of the mask"
            ),
            Self::NotDrained => f.write_str(
                "SQD to RTS: the send queue is still draining; wait for the SQ_DRAINED event, or \
                 until a query says sq_draining = 0",
            ),
            Self::OutOfRange {
                attribute,
                value,
                min,
                max,
            } => write!(
                f,
                "{attribute} is {value}; give a value from {min} to {max}"
            ),
        }
    }
}

impl core::error::Error for ModifyError {}

/// Checks a request to modify a queue pair of `transport` that is in state `current`, and returns
/// its new state: `attr.qp_state`, or `current` when the mask has no `STATE`.
///
/// `drained` matters only in SQD: whether all started sends have finished (true for an XRC target,
/// which has none).
///
/// # Errors
/// The first error found, in the order CUR_STATE, transition, draining, missing attributes,
/// attributes not allowed, values. The limits of the device (ports, table sizes, RDMA READ depth)
/// are left to the device.
pub fn check_modify(
    transport: QpType,
    current: QpState,
    drained: bool,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<QpState, ModifyError> {
    if mask.contains(M::CUR_STATE) && attr.cur_qp_state != current {
        return Err(ModifyError::CurStateMismatch {
            given: attr.cur_qp_state,
            actual: current,
        });
    }
    let to = if mask.contains(M::STATE) {
        attr.qp_state
    } else {
        current
    };
    let step = Step {
        transport,
        from: current,
        to,
    };
    let Some(Transition { required, optional }) = transition(transport, current, to) else {
        return Err(ModifyError::IllegalTransition(step));
    };
    if (current, to) == (QpState::Sqd, QpState::Rts) && !drained {
        return Err(ModifyError::NotDrained);
    }
    let missing = required.difference(mask);
    if !missing.is_empty() {
        return Err(ModifyError::Missing {
            step,
            attributes: missing,
        });
    }
    let extra = mask.difference(required.union(optional));
    if !extra.is_empty() {
        return Err(ModifyError::NotAllowed {
            step,
            attributes: extra,
        });
    }
    check_values(attr, mask)?;
    Ok(to)
}

fn check_values(attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyError> {
    const BITS_24: u32 = (1 << 24) - 1;
    let check = |flag, attribute, value: u32, min, max| {
        if mask.contains(flag) && !(min..=max).contains(&value) {
            return Err(ModifyError::OutOfRange {
                attribute,
                value,
                min,
                max,
            });
        }
        Ok(())
    };
    let small = |flag, attribute, value: u8, max| check(flag, attribute, value.into(), 0, max);
    let port = |flag, attribute, value: u8| check(flag, attribute, value.into(), 1, 255);
    let path = |flag, names: [&'static str; 4], ah: &AhAttr| {
        small(flag, names[0], ah.sl, 15)?;
        small(flag, names[1], ah.src_path_bits, 127)?;
        port(flag, names[2], ah.port_num)?;
        // Without a GRH the flow label is not used.
        let flow_label = if ah.is_global { ah.grh.flow_label } else { 0 };
        check(flag, names[3], flow_label, 0, (1 << 20) - 1)
    };

    port(M::PORT, "port_num", attr.port_num)?;
    path(
        M::AV,
        [
            "ah_attr.sl",
            "ah_attr.src_path_bits",
            "ah_attr.port_num",
            "ah_attr.grh.flow_label",
        ],
        &attr.ah_attr,
    )?;
    check(M::DEST_QPN, "dest_qp_num", attr.dest_qp_num, 0, BITS_24)?;
    check(M::RQ_PSN, "rq_psn", attr.rq_psn, 0, BITS_24)?;
    check(M::SQ_PSN, "sq_psn", attr.sq_psn, 0, BITS_24)?;
    small(M::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 31)?;
    small(M::TIMEOUT, "timeout", attr.timeout, 31)?;
    small(M::RETRY_CNT, "retry_cnt", attr.retry_cnt, 7)?;
    small(M::RNR_RETRY, "rnr_retry", attr.rnr_retry, 7)?;
    path(
        M::ALT_PATH,
        [
            "alt_ah_attr.sl",
            "alt_ah_attr.src_path_bits",
            "alt_ah_attr.port_num",
            "alt_ah_attr.grh.flow_label",
        ],
        &attr.alt_ah_attr,
    )?;
    port(M::ALT_PATH, "alt_port_num", attr.alt_port_num)?;
    small(M::ALT_PATH, "alt_timeout", attr.alt_timeout, 31)
}
