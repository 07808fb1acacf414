//! The attributes of a queue pair: values, limits, queries.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{TO_INIT, TO_RTR, TO_RTS, attr, bring, modify_error};
use bellwire::state::QpState::{self, *};
use bellwire::state::{ModifyError, Mtu, QpAttr, QpAttrMask as M};
use bellwire::wqe::{NoPayload, RdmaRead, Send};
use bellwire::wr::WcStatus;
use bellwire::{AccessFlags, Error};
use bellwire_tests::fixture::*;

rules! {
    "attributes::rc", "Attributes of a reliable connection: values, limits, queries.", needs [Rc];
    cur_state_has_to_be_the_state_it_is_in: "IBTA vol. 1, chapter 11, Modify Queue Pair; ibv_modify_qp(3)",
        "With CUR_STATE, another state than `cur_qp_state` refuses the change and says both.";
    cur_state_that_is_right_lets_the_change_through: "ibv_modify_qp(3)",
        "With CUR_STATE and the right `cur_qp_state` the change is made.";
    reset_by_modify_names_the_call_for_it: "bellwire, Qp::reset",
        "Going to RESET by `modify` is refused: the call that also clears the queues is named.";
    query_gives_back_what_was_set: "ibv_query_qp(3)",
        "A query gives state, sizes and attributes as they were set.";
    values_out_of_range_are_refused_and_named: "IBTA vol. 1, chapter 11, Modify Queue Pair",
        "A value that its field cannot carry is refused, and named.";
    depths_beyond_the_device_are_refused: "ibv_query_device(3)",
        "`max_rd_atomic` and `max_dest_rd_atomic` beyond `max_qp_rd_atom` are refused.";
    ports_that_there_are_not_are_refused: "IBTA vol. 1, chapter 11, Modify Queue Pair",
        "A port that the device does not have is refused.";
    access_that_is_taken_away_is_refused_from_then_on: "ibv_modify_qp(3)",
        "Access flags changed in a living queue pair are in force.";
    a_change_without_the_state_keeps_it: "ibv_modify_qp(3)",
        "Without STATE in the mask the state stays.";
}

fn cur_state_has_to_be_the_state_it_is_in(p: &Provider) {
    for actual in [Rtr, Rts, Sqd] {
        for given in QpState::ALL.into_iter().filter(|&given| given != actual) {
            let (mut a, b) = p.ends();
            bring(&mut a.qp, &b.qp.endpoint(), actual);
            let attr = QpAttr {
                cur_qp_state: given,
                ..attr(b.qp.pd().device(), Rts, &b.qp.endpoint())
            };
            let mask = M::STATE | M::CUR_STATE | if actual == Rtr { TO_RTS } else { M::empty() };
            let error = modify_error(a.qp.modify(&attr, mask));
            assert_eq!(error, ModifyError::CurStateMismatch { given, actual });
            assert_eq!(a.qp.state(), actual);
        }
    }
}

fn cur_state_that_is_right_lets_the_change_through(p: &Provider) {
    let (mut a, b) = p.ends();
    bring(&mut a.qp, &b.qp.endpoint(), Rtr);
    let attr = QpAttr {
        cur_qp_state: Rtr,
        ..attr(b.qp.pd().device(), Rts, &b.qp.endpoint())
    };
    a.qp.modify(&attr, M::STATE | M::CUR_STATE | TO_RTS)
        .unwrap();
    assert_eq!(a.qp.state(), Rts);
}

fn reset_by_modify_names_the_call_for_it(p: &Provider) {
    let (mut a, _b) = p.pair();
    let error = a.qp.modify(&QpAttr::default(), M::STATE).unwrap_err();
    assert!(matches!(error, Error::ResetByModify), "{error}");
    assert!(error.to_string().contains("use the reset call"), "{error}");
    assert_eq!(a.qp.state(), Rts);
}

fn query_gives_back_what_was_set(p: &Provider) {
    let (mut a, b) = p.ends();
    let set = QpAttr {
        path_mtu: Mtu::Mtu512,
        rq_psn: 0x12_3456,
        sq_psn: 0x65_4321,
        qp_access_flags: AccessFlags::REMOTE_READ,
        max_rd_atomic: 3,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 7,
        timeout: 9,
        retry_cnt: 6,
        rnr_retry: 4,
        ..attr(b.qp.pd().device(), Init, &b.qp.endpoint())
    };
    for (to, mask) in [(Init, TO_INIT), (Rtr, TO_RTR), (Rts, TO_RTS)] {
        let attr = QpAttr {
            qp_state: to,
            ..set
        };
        a.qp.modify(&attr, mask | M::STATE).unwrap();
    }
    let got = a.qp.query();
    let sizes = init();
    let cap = got.cap;
    assert!(cap.max_send_wr >= sizes.max_send_wr && cap.max_recv_wr >= sizes.max_recv_wr);
    assert!(cap.max_send_sge >= sizes.max_send_sge && cap.max_recv_sge >= sizes.max_recv_sge);
    assert!(cap.max_inline_data >= sizes.max_inline_data);
    let expected = QpAttr {
        qp_state: Rts,
        cur_qp_state: Rts,
        cap,
        // Nobody set it.
        alt_ah_attr: got.alt_ah_attr,
        alt_port_num: got.alt_port_num,
        ..set
    };
    assert_eq!(got, expected);
}

fn values_out_of_range_are_refused_and_named(p: &Provider) {
    let (mut a, b) = p.ends();
    let good = attr(b.qp.pd().device(), Rtr, &b.qp.endpoint());
    bring(&mut a.qp, &b.qp.endpoint(), Init);
    let refused = |a: &mut End, bad: QpAttr, mask: M, name: &str| match modify_error(
        a.qp.modify(&bad, mask | M::STATE),
    ) {
        ModifyError::OutOfRange { attribute, .. } => assert_eq!(attribute, name),
        other => panic!("{name}: {other}"),
    };
    let big = 1 << 24;
    refused(
        &mut a,
        QpAttr {
            min_rnr_timer: 32,
            ..good
        },
        TO_RTR,
        "min_rnr_timer",
    );
    refused(
        &mut a,
        QpAttr {
            rq_psn: big,
            ..good
        },
        TO_RTR,
        "rq_psn",
    );
    refused(
        &mut a,
        QpAttr {
            dest_qp_num: big,
            ..good
        },
        TO_RTR,
        "dest_qp_num",
    );
    a.qp.modify(&good, TO_RTR | M::STATE).unwrap();
    let good = QpAttr {
        qp_state: Rts,
        ..good
    };
    refused(
        &mut a,
        QpAttr {
            timeout: 32,
            ..good
        },
        TO_RTS,
        "timeout",
    );
    refused(
        &mut a,
        QpAttr {
            retry_cnt: 8,
            ..good
        },
        TO_RTS,
        "retry_cnt",
    );
    refused(
        &mut a,
        QpAttr {
            rnr_retry: 8,
            ..good
        },
        TO_RTS,
        "rnr_retry",
    );
    refused(
        &mut a,
        QpAttr {
            sq_psn: big,
            ..good
        },
        TO_RTS,
        "sq_psn",
    );
    a.qp.modify(&good, TO_RTS | M::STATE).unwrap();
}

fn depths_beyond_the_device_are_refused(p: &Provider) {
    let (mut a, b) = p.ends();
    let Some(deep) = a.qp.pd().device().attr().max_qp_rd_atom.checked_add(1) else {
        return;
    };
    bring(&mut a.qp, &b.qp.endpoint(), Init);
    let good = attr(b.qp.pd().device(), Rtr, &b.qp.endpoint());
    let bad = QpAttr {
        max_dest_rd_atomic: deep,
        ..good
    };
    assert!(a.qp.modify(&bad, TO_RTR | M::STATE).is_err());
    assert_eq!(a.qp.state(), Init);
    a.qp.modify(&good, TO_RTR | M::STATE).unwrap();
    let good = QpAttr {
        qp_state: Rts,
        ..good
    };
    let bad = QpAttr {
        max_rd_atomic: deep,
        ..good
    };
    assert!(a.qp.modify(&bad, TO_RTS | M::STATE).is_err());
    assert_eq!(a.qp.state(), Rtr);
    a.qp.modify(&good, TO_RTS | M::STATE).unwrap();
}

fn ports_that_there_are_not_are_refused(p: &Provider) {
    let (mut a, b) = p.ends();
    for port_num in [0, 255] {
        let bad = QpAttr {
            port_num,
            ..attr(b.qp.pd().device(), Init, &b.qp.endpoint())
        };
        assert!(
            a.qp.modify(&bad, TO_INIT | M::STATE).is_err(),
            "port {port_num}"
        );
        assert_eq!(a.qp.state(), Reset);
    }
}

fn access_that_is_taken_away_is_refused_from_then_on(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let remote = b.region.remote(0);
    a.go(1, RdmaRead { remote }, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    let none = QpAttr {
        qp_access_flags: AccessFlags::REMOTE_WRITE,
        ..QpAttr::default()
    };
    b.qp.modify(&none, M::ACCESS_FLAGS).unwrap();
    a.go(2, RdmaRead { remote }, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (2, WcStatus::RemInvReqErr));
}

fn a_change_without_the_state_keeps_it(p: &Provider) {
    let (mut a, mut b) = p.pair();
    // Whatever `qp_state` says.
    let attr = QpAttr {
        qp_state: Err,
        min_rnr_timer: 3,
        ..QpAttr::default()
    };
    a.qp.modify(&attr, M::MIN_RNR_TIMER).unwrap();
    let query = a.qp.query();
    assert_eq!((query.qp_state, query.min_rnr_timer), (Rts, 3));
    b.receive(70, &[]);
    a.go(1, Send {}, NoPayload);
    assert_eq!(a.outcome(), (1, WcStatus::Success));
}
