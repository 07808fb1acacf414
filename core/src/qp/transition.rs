//! Which changes of state are legal, with which attributes, and what is wrong with those that are
//! not.

use super::{AhAttr, QpAttr, QpAttrMask, QpState};
use crate::wr::QpType;
use QpAttrMask as M;
use core::fmt;

/// The attributes of one legal change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// What the mask must have. `STATE` is among them where the state changes.
    pub required: QpAttrMask,
    /// What the mask may have beside.
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

// RESET to INIT requires these; INIT to INIT takes them.
const INIT_UD: M = set(&[M::PKEY_INDEX, M::PORT, M::QKEY]);
const INIT_CONNECTED: M = set(&[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]);

// INIT to RTR: the responder's side.
const RTR: M = set(&[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN]);
const RTR_RELIABLE: M = set(&[RTR, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER]);
const RTR_OPTIONAL_UD: M = set(&[M::PKEY_INDEX, M::QKEY]);
const RTR_OPTIONAL: M = set(&[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX]);

// RTR to RTS: the requester's side, of which an XRC target has next to nothing.
const RTS_REQUESTER: M = set(&[
    M::SQ_PSN,
    M::TIMEOUT,
    M::RETRY_CNT,
    M::RNR_RETRY,
    M::MAX_QP_RD_ATOMIC,
]);
const RTS_XRC_RECV: M = set(&[M::SQ_PSN, M::TIMEOUT]);

// What every way into RTS takes.
const LIVE_UD: M = set(&[M::CUR_STATE, M::QKEY]);
const LIVE: M = set(&[
    M::CUR_STATE,
    M::ALT_PATH,
    M::ACCESS_FLAGS,
    M::PATH_MIG_STATE,
]);
const LIVE_RESPONDER: M = set(&[LIVE, M::MIN_RNR_TIMER]);
const LIVE_FROM_SQE_UC: M = set(&[M::CUR_STATE, M::ACCESS_FLAGS]);

// SQD to SQD: a drained queue can take a new path.
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

/// What `transport` needs to go from `from` to `to`; `None` where it cannot.
///
/// The table of IBTA volume 1, chapter 11, Modify Queue Pair, with the attributes that Linux takes
/// (so `CAP`, which resizes the queues, is in no cell). Linux differs in two places: it refuses
/// RESET to ERR with EINVAL, which the specification allows; and it lets the reliable transports
/// go from SQE, where they never are, to RTS. DCI, which the specification does not know, only goes to
/// RESET and ERR here.
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

/// The states that a queue pair of `transport` can go to from `from`. From SQD, RTS is open only
/// once the send queue has drained.
pub fn legal_targets(transport: QpType, from: QpState) -> impl Iterator<Item = QpState> {
    QpState::ALL
        .into_iter()
        .filter(move |&to| transition(transport, from, to).is_some())
}

/// A change of state that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The transport service of the queue pair.
    pub transport: QpType,
    /// The state it is in.
    pub from: QpState,
    /// The state it was to go to.
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

/// Why a queue pair cannot be modified so. Nothing of the request has been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// The state has no such way out; [`legal_targets`] are those it has.
    IllegalTransition(Step),
    /// The mask lacks attributes that the step requires.
    Missing {
        /// The step.
        step: Step,
        /// What the mask lacks.
        attributes: QpAttrMask,
    },
    /// The mask has attributes that the step does not take.
    NotAllowed {
        /// The step.
        step: Step,
        /// What is too much, unknown bits among them.
        attributes: QpAttrMask,
    },
    /// The queue pair is in another state than `cur_qp_state` says.
    CurStateMismatch {
        /// `cur_qp_state`.
        given: QpState,
        /// The state it is in.
        actual: QpState,
    },
    /// SQD to RTS, while started sends have not all finished.
    NotDrained,
    /// An attribute has a value that its field on the wire cannot carry.
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

/// Checks a request to modify a queue pair of `transport` that is in state `current`, and gives the
/// state it goes to: `attr.qp_state`, or `current` when the mask has no `STATE`.
///
/// `drained` counts only in SQD: whether all started sends have finished (true for an XRC target,
/// which has none).
///
/// # Errors
/// The first thing wrong, in the order CUR_STATE, transition, draining, missing attributes,
/// attributes not allowed, values. Limits of the device (ports, table sizes, READ depth) are the
/// device's to check.
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
        // Without a GRH nobody reads it.
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
