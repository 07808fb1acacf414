//! The transition table compared cell by cell with tables written independently, and every error.

use super::*;
use crate::wr::QpType;
use QpAttrMask as M;
use std::string::{String, ToString};
use std::vec::Vec;

const TRANSPORTS: [(&str, QpType); 5] = [
    ("RC", QpType::Rc),
    ("UC", QpType::Uc),
    ("UD", QpType::Ud),
    ("XRC_SEND", QpType::XrcSend),
    ("XRC_RECV", QpType::XrcRecv),
];

/// Required attributes from RESET to RTS, as in ibv_modify_qp(3), which has no table for XRC.
const MAN_PAGE: &str = "
UD INIT: STATE PKEY_INDEX PORT QKEY
UD RTR: STATE
UD RTS: STATE SQ_PSN
UC INIT: STATE PKEY_INDEX PORT ACCESS_FLAGS
UC RTR: STATE AV PATH_MTU DEST_QPN RQ_PSN
UC RTS: STATE SQ_PSN
RC INIT: STATE PKEY_INDEX PORT ACCESS_FLAGS
RC RTR: STATE AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER
RC RTS: STATE SQ_PSN MAX_QP_RD_ATOMIC RETRY_CNT RNR_RETRY TIMEOUT
";

/// Every legal transition except those to RESET and ERR: `transport from to: required / optional`,
/// without STATE. Transitions that are not listed are illegal.
const CELLS: &str = "
RC RESET INIT: PKEY_INDEX PORT ACCESS_FLAGS /
RC INIT INIT: / PKEY_INDEX PORT ACCESS_FLAGS
RC INIT RTR: AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER / ALT_PATH ACCESS_FLAGS PKEY_INDEX
RC RTR RTS: TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC / CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RC RTS RTS: / CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
RC RTS SQD: / EN_SQD_ASYNC_NOTIFY
RC SQD RTS: / CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RC SQD SQD: / PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE

UC RESET INIT: PKEY_INDEX PORT ACCESS_FLAGS /
UC INIT INIT: / PKEY_INDEX PORT ACCESS_FLAGS
UC INIT RTR: AV PATH_MTU DEST_QPN RQ_PSN / ALT_PATH ACCESS_FLAGS PKEY_INDEX
UC RTR RTS: SQ_PSN / CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
UC RTS RTS: / CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
UC RTS SQD: / EN_SQD_ASYNC_NOTIFY
UC SQD RTS: / CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
UC SQD SQD: / AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
UC SQE RTS: / CUR_STATE ACCESS_FLAGS

UD RESET INIT: PKEY_INDEX PORT QKEY /
UD INIT INIT: / PKEY_INDEX PORT QKEY
UD INIT RTR: / PKEY_INDEX QKEY
UD RTR RTS: SQ_PSN / CUR_STATE QKEY
UD RTS RTS: / CUR_STATE QKEY
UD RTS SQD: / EN_SQD_ASYNC_NOTIFY
UD SQD RTS: / CUR_STATE QKEY
UD SQD SQD: / PKEY_INDEX QKEY
UD SQE RTS: / CUR_STATE QKEY

XRC_SEND RESET INIT: PKEY_INDEX PORT ACCESS_FLAGS /
XRC_SEND INIT INIT: / PKEY_INDEX PORT ACCESS_FLAGS
XRC_SEND INIT RTR: AV PATH_MTU DEST_QPN RQ_PSN / ALT_PATH ACCESS_FLAGS PKEY_INDEX
XRC_SEND RTR RTS: TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC / CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
XRC_SEND RTS RTS: / CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
XRC_SEND RTS SQD: / EN_SQD_ASYNC_NOTIFY
XRC_SEND SQD RTS: / CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
XRC_SEND SQD SQD: / PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE

XRC_RECV RESET INIT: PKEY_INDEX PORT ACCESS_FLAGS /
XRC_RECV INIT INIT: / PKEY_INDEX PORT ACCESS_FLAGS
XRC_RECV INIT RTR: AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER / ALT_PATH ACCESS_FLAGS PKEY_INDEX
XRC_RECV RTR RTS: TIMEOUT SQ_PSN / CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
XRC_RECV RTS RTS: / CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
XRC_RECV RTS SQD: / EN_SQD_ASYNC_NOTIFY
XRC_RECV SQD RTS: / CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
XRC_RECV SQD SQD: / PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
";

fn mask(names: &str) -> M {
    names
        .split_whitespace()
        .map(|name| M::from_name(name).unwrap_or_else(|| panic!("no attribute {name}")))
        .collect()
}

fn rows(table: &'static str) -> impl Iterator<Item = (Vec<&'static str>, &'static str)> {
    table
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, masks)| (key.split_whitespace().collect(), masks))
}

/// Required and optional attributes, without STATE.
fn expected(transport: &str, from: QpState, to: QpState) -> Option<(M, M)> {
    if matches!(to, QpState::Reset | QpState::Err) {
        return Some((M::empty(), M::empty()));
    }
    let key = [transport, from.name(), to.name()];
    let (_, masks) = rows(CELLS).find(|(row, _)| *row == key)?;
    let (required, optional) = masks.split_once('/').unwrap();
    Some((mask(required), mask(optional)))
}

fn every_step() -> impl Iterator<Item = (&'static str, Step)> {
    TRANSPORTS.into_iter().flat_map(|(name, transport)| {
        QpState::ALL.into_iter().flat_map(move |from| {
            QpState::ALL.into_iter().map(move |to| {
                let step = Step {
                    transport,
                    from,
                    to,
                };
                (name, step)
            })
        })
    })
}

/// Attributes with values in range for this step.
fn attr_for(step: Step) -> QpAttr {
    let ah = AhAttr {
        port_num: 1,
        ..AhAttr::default()
    };
    QpAttr {
        qp_state: step.to,
        cur_qp_state: step.from,
        ah_attr: ah,
        alt_ah_attr: ah,
        port_num: 1,
        alt_port_num: 1,
        ..QpAttr::default()
    }
}

fn check(step: Step, mask: M) -> Result<QpState, ModifyError> {
    check_modify(step.transport, step.from, true, &attr_for(step), mask)
}

#[test]
fn table_cell_by_cell() {
    let (mut legal, mut steps) = (0, 0);
    for (name, step) in every_step() {
        let actual = transition(step.transport, step.from, step.to)
            .map(|t| (t.required - M::STATE, t.optional - M::STATE));
        assert_eq!(actual, expected(name, step.from, step.to), "{step}");
        if let Some(t) = transition(step.transport, step.from, step.to) {
            assert_eq!(t.required.contains(M::STATE), step.from != step.to);
            assert_eq!(t.optional.contains(M::STATE), step.from == step.to);
            legal += 1;
        }
        steps += 1;
    }
    // Every row above is a cell, in addition to the 14 to RESET and ERR per transport.
    assert_eq!(
        (steps, legal),
        (5 * 49, 5 * 14 + rows(CELLS).count()),
        "a row of the test's table names no cell"
    );
}

#[test]
fn required_attributes_are_the_man_pages() {
    for (key, names) in rows(MAN_PAGE) {
        let transport = TRANSPORTS.iter().find(|(name, _)| *name == key[0]).unwrap();
        let to = QpState::ALL.into_iter().find(|s| s.name() == key[1]);
        let to = to.unwrap();
        let from = QpState::from_number(to.number() - 1).unwrap();
        let required = transition(transport.1, from, to).unwrap().required;
        assert_eq!(required, mask(names), "{key:?}");
    }
}

#[test]
fn illegal_steps_are_refused_and_the_legal_ones_named() {
    let mut refused = 0;
    for (name, step) in every_step() {
        let targets: Vec<QpState> = legal_targets(step.transport, step.from).collect();
        if expected(name, step.from, step.to).is_some() {
            assert!(targets.contains(&step.to));
            continue;
        }
        refused += 1;
        assert!(!targets.contains(&step.to));
        let error = check(step, M::STATE).unwrap_err();
        assert_eq!(error, ModifyError::IllegalTransition(step));
        let names: Vec<String> = targets.iter().map(QpState::to_string).collect();
        let text = error.to_string();
        assert!(text.ends_with(&names.join(" or ")), "{text}");
        assert!(text.starts_with(&step.to_string()), "{text}");
    }
    assert_eq!(refused, 5 * 35 - rows(CELLS).count());
    let step = Step {
        transport: QpType::Rc,
        from: QpState::Rtr,
        to: QpState::Rtr,
    };
    assert_eq!(
        check(step, M::empty()).unwrap_err().to_string(),
        "RC queue pair, RTR to RTR: no such transition; set STATE, and qp_state to RESET or RTS \
         or ERR"
    );
}

#[test]
fn each_attribute_is_required_optional_or_refused() {
    for (name, step) in every_step() {
        let Some((required, optional)) = expected(name, step.from, step.to) else {
            continue;
        };
        let least = required | M::STATE;
        assert_eq!(check(step, least), Ok(step.to), "{step}");
        assert_eq!(check(step, least | optional), Ok(step.to), "{step}");
        if step.from == step.to {
            assert_eq!(check(step, required | optional), Ok(step.to), "{step}");
        }
        let foreign = M::from_bits_retain(1 << 21);
        for one in M::all().iter().chain([foreign]).filter(|&m| m != M::STATE) {
            let given = if required.contains(one) {
                least - one
            } else {
                least | one
            };
            let expected = if required.contains(one) {
                Err(ModifyError::Missing {
                    step,
                    attributes: one,
                })
            } else if optional.contains(one) {
                Ok(step.to)
            } else {
                Err(ModifyError::NotAllowed {
                    step,
                    attributes: one,
                })
            };
            assert_eq!(check(step, given), expected, "{step}");
        }
    }
}

#[test]
fn all_missing_and_all_extra_attributes_are_named_at_once() {
    let to_init = Step {
        transport: QpType::Ud,
        from: QpState::Reset,
        to: QpState::Init,
    };
    assert_eq!(
        check(to_init, M::STATE | M::PORT).unwrap_err().to_string(),
        "UD queue pair, RESET to INIT: required attributes are missing; set them and add them to \
         the mask: PKEY_INDEX, QKEY"
    );
    let to_reset = Step {
        transport: QpType::XrcRecv,
        from: QpState::Err,
        to: QpState::Reset,
    };
    let extra = M::from_bits_retain((M::STATE | M::AV | M::CAP | M::RATE_LIMIT).bits() | 1 << 22);
    assert_eq!(
        check(to_reset, extra).unwrap_err().to_string(),
        "XRC_RECV queue pair, ERR to RESET: attributes that cannot be set here; take them out of \
         the mask: AV, CAP, RATE_LIMIT, unknown bits 0x400000"
    );
}

#[test]
fn the_callers_idea_of_the_state_must_be_right() {
    for (_, transport) in TRANSPORTS {
        for given in QpState::ALL {
            let attr = QpAttr {
                qp_state: QpState::Rts,
                cur_qp_state: given,
                ..QpAttr::default()
            };
            let mask = M::STATE | M::CUR_STATE;
            let result = check_modify(transport, QpState::Rts, false, &attr, mask);
            if given == QpState::Rts {
                assert_eq!(result, Ok(QpState::Rts));
            } else {
                let actual = QpState::Rts;
                let error = ModifyError::CurStateMismatch { given, actual };
                assert_eq!(result, Err(error));
                let text = error.to_string();
                assert!(text.contains(given.name()) && text.contains("in RTS"));
            }
        }
    }
}

#[test]
fn only_sqd_to_rts_waits_for_the_drain() {
    for (_, step) in every_step() {
        let Some(t) = transition(step.transport, step.from, step.to) else {
            continue;
        };
        let given = t.required | M::STATE;
        let result = check_modify(step.transport, step.from, false, &attr_for(step), given);
        if (step.from, step.to) == (QpState::Sqd, QpState::Rts) {
            assert_eq!(result, Err(ModifyError::NotDrained));
        } else {
            assert_eq!(result, Ok(step.to));
        }
    }
    assert!(ModifyError::NotDrained.to_string().contains("SQ_DRAINED"));
}

/// Sets one field to a value.
type Set = fn(&mut QpAttr, u32);

#[test]
fn values_are_held_to_their_fields() {
    let from_to = |from, to| Step {
        transport: QpType::Rc,
        from,
        to,
    };
    let init = from_to(QpState::Reset, QpState::Init);
    let rtr = from_to(QpState::Init, QpState::Rtr);
    let rts = from_to(QpState::Rtr, QpState::Rts);
    let flow_label = (1 << 20) - 1;
    let cases: [(Step, &'static str, u32, u32, Set); 18] = [
        (init, "port_num", 1, 255, |a, v| a.port_num = v as u8),
        (rtr, "dest_qp_num", 0, 0xff_ffff, |a, v| a.dest_qp_num = v),
        (rtr, "rq_psn", 0, 0xff_ffff, |a, v| a.rq_psn = v),
        (rtr, "min_rnr_timer", 0, 31, |a, v| {
            a.min_rnr_timer = v as u8
        }),
        (rtr, "ah_attr.sl", 0, 15, |a, v| a.ah_attr.sl = v as u8),
        (rtr, "ah_attr.src_path_bits", 0, 127, |a, v| {
            a.ah_attr.src_path_bits = v as u8
        }),
        (rtr, "ah_attr.port_num", 1, 255, |a, v| {
            a.ah_attr.port_num = v as u8
        }),
        (rtr, "ah_attr.grh.flow_label", 0, flow_label, |a, v| {
            a.ah_attr.is_global = true;
            a.ah_attr.grh.flow_label = v;
        }),
        (rts, "sq_psn", 0, 0xff_ffff, |a, v| a.sq_psn = v),
        (rts, "timeout", 0, 31, |a, v| a.timeout = v as u8),
        (rts, "retry_cnt", 0, 7, |a, v| a.retry_cnt = v as u8),
        (rts, "rnr_retry", 0, 7, |a, v| a.rnr_retry = v as u8),
        (rts, "alt_ah_attr.sl", 0, 15, |a, v| {
            a.alt_ah_attr.sl = v as u8
        }),
        (rts, "alt_ah_attr.src_path_bits", 0, 127, |a, v| {
            a.alt_ah_attr.src_path_bits = v as u8
        }),
        (rts, "alt_ah_attr.port_num", 1, 255, |a, v| {
            a.alt_ah_attr.port_num = v as u8
        }),
        (rts, "alt_ah_attr.grh.flow_label", 0, flow_label, |a, v| {
            a.alt_ah_attr.is_global = true;
            a.alt_ah_attr.grh.flow_label = v;
        }),
        (rts, "alt_port_num", 1, 255, |a, v| a.alt_port_num = v as u8),
        (rts, "alt_timeout", 0, 31, |a, v| a.alt_timeout = v as u8),
    ];
    for (step, attribute, min, max, set) in cases {
        let t = transition(step.transport, step.from, step.to).unwrap();
        let with = |value| {
            let mut attr = attr_for(step);
            set(&mut attr, value);
            let given = t.required | t.optional;
            check_modify(step.transport, step.from, false, &attr, given)
        };
        assert_eq!(with(min), Ok(step.to), "{attribute}");
        assert_eq!(with(max), Ok(step.to), "{attribute}");
        let below = min.checked_sub(1);
        // The port number uses its whole byte: there is no larger value.
        let above = (max != 255).then(|| max + 1);
        let outside: Vec<u32> = below.into_iter().chain(above).collect();
        assert!(!outside.is_empty());
        for value in outside {
            let error = ModifyError::OutOfRange {
                attribute,
                value,
                min,
                max,
            };
            assert_eq!(with(value), Err(error));
            let text = error.to_string();
            let start = [attribute, " is ", &value.to_string()].concat();
            assert!(text.starts_with(&start), "{text}");
        }
    }
}

#[test]
fn fields_outside_the_mask_are_not_looked_at() {
    let wild = AhAttr {
        sl: 255,
        src_path_bits: 255,
        ..AhAttr::default()
    };
    let attr = QpAttr {
        qp_state: QpState::Err,
        cur_qp_state: QpState::Sqe,
        rq_psn: u32::MAX,
        sq_psn: u32::MAX,
        dest_qp_num: u32::MAX,
        ah_attr: wild,
        alt_ah_attr: wild,
        min_rnr_timer: 255,
        timeout: 255,
        retry_cnt: 255,
        rnr_retry: 255,
        alt_timeout: 255,
        ..QpAttr::default()
    };
    let result = check_modify(QpType::Rc, QpState::Rts, false, &attr, M::STATE);
    assert_eq!(result, Ok(QpState::Err));
    // A flow label that is not sent in any header is not checked either.
    let step = Step {
        transport: QpType::Uc,
        from: QpState::Init,
        to: QpState::Rtr,
    };
    let mut attr = attr_for(step);
    attr.ah_attr.grh.flow_label = u32::MAX;
    let given = transition(QpType::Uc, step.from, step.to).unwrap().required;
    let result = check_modify(QpType::Uc, step.from, false, &attr, given);
    assert_eq!(result, Ok(QpState::Rtr));
}
