//! All changes of state, legal and illegal, with the attributes that they require and take.
//!
//! The table stands here once more, as the specification has it, and is not taken from the
//! library's own.

use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::{TO_INIT, TO_RTR, TO_RTS, attr, bring};
use bellwire::state::QpState::{self, *};
use bellwire::state::{ModifyError, Mtu, QpAttr, QpAttrMask as M};
use bellwire::wqe::{NoPayload, RdmaRead, Send};
use bellwire::wr::WcStatus;
use bellwire::{AccessFlags, Error};
use bellwire_tests::fixture::*;

const SOURCE: &str = "IBTA vol. 1, 10.3.1 and 11.2.5.2; ibv_modify_qp(3)";
/// Needs more than every port has.
const MIGRATION: M = M::ALT_PATH.union(M::PATH_MIG_STATE);
const NONE: M = M::empty();

/// Required and optional attributes of a reliable connection's change of state, beside the state.
fn legal(from: QpState, to: QpState) -> Option<(M, M)> {
    let live = M::CUR_STATE | M::ALT_PATH | M::ACCESS_FLAGS | M::PATH_MIG_STATE | M::MIN_RNR_TIMER;
    Some(match (from, to) {
        (_, Err) => (NONE, NONE),
        (Reset, Init) => (TO_INIT, NONE),
        (Init, Init) => (NONE, TO_INIT),
        (Init, Rtr) => (TO_RTR, M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX),
        (Rtr, Rts) => (TO_RTS, live),
        (Rts | Sqd, Rts) => (NONE, live),
        (Rts, Sqd) => (NONE, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            NONE,
            MIGRATION
                | TO_INIT
                | M::AV
                | M::TIMEOUT
                | M::RETRY_CNT
                | M::RNR_RETRY
                | M::MAX_QP_RD_ATOMIC
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
        ),
        _ => return None,
    })
}

pub fn group() -> Group {
    let mut rules = Vec::new();
    for from in QpState::ALL {
        for to in QpState::ALL {
            pair(&mut rules, from, to);
        }
    }
    rules.extend(more().rules);
    Group {
        name: "transitions::rc",
        about: "Changes of a reliable connection's state: all pairs, with their attributes.",
        rules,
    }
}

fn pair(rules: &mut Vec<Rule>, from: QpState, to: QpState) {
    let names = format!(
        "{}_to_{}",
        from.name().to_lowercase(),
        to.name().to_lowercase()
    );
    let mut needs = vec![Feature::Rc];
    if from == Sqe {
        needs.push(Feature::RcSqe);
    }
    let mut rule = |name: &str, says: String, needs: &[Feature], check: fn(&mut Case)| {
        let name = format!("{names}{name}");
        let check = move |p: &Provider| check(&mut Case { p, from, to });
        rules.push(Rule::new(
            "transitions::rc",
            &name,
            SOURCE,
            says,
            needs,
            check,
        ));
    };
    if to == Reset {
        let says = format!("{from} to RESET is legal, and clears all attributes.");
        return rule("", says, &needs, resets);
    }
    let Some((required, optional)) = legal(from, to) else {
        let says = format!("{from} to {to} is refused, and changes nothing.");
        return rule("_is_refused", says, &needs, is_refused);
    };
    let list = if required.is_empty() {
        "no attributes".to_owned()
    } else {
        required.to_string()
    };
    rule(
        "",
        format!("{from} to {to} is legal, with {list}."),
        &needs,
        is_legal,
    );
    if !required.is_empty() {
        let says = format!("{from} to {to} without one of {required} is refused, and names it.");
        rule(
            "_names_what_is_missing",
            says,
            &needs,
            names_what_is_missing,
        );
    }
    let says = format!("{from} to {to} with any other attribute is refused, and names it.");
    rule(
        "_names_what_is_not_allowed",
        says,
        &needs,
        names_what_is_not_allowed,
    );
    let plain = optional.difference(MIGRATION);
    if !plain.is_empty() {
        let says = format!("{from} to {to} takes {plain}.");
        rule("_takes_options", says, &needs, takes_options);
    }
    let paths = optional.intersection(MIGRATION);
    if !paths.is_empty() {
        needs.push(Feature::PathMigration);
        let says = format!("{from} to {to} takes {paths}.");
        rule(
            "_takes_alternate_paths",
            says,
            &needs,
            takes_alternate_paths,
        );
    }
}

/// A change of state that is put to a provider.
struct Case<'p> {
    p: &'p Provider,
    from: QpState,
    to: QpState,
}

impl Case<'_> {
    /// An end in the first state, and its peer.
    fn start(&self) -> (End, End) {
        let (mut a, b) = self.p.ends();
        bring(&mut a.qp, &b.qp.endpoint(), self.from);
        (a, b)
    }

    /// The change with these attributes. Every one has a good value, in the mask or not.
    fn change(&self, a: &mut End, b: &End, mask: M) -> Result<(), Error> {
        let attr = QpAttr {
            cur_qp_state: self.from,
            ..attr(self.to, &b.qp.endpoint())
        };
        a.qp.modify(&attr, mask | M::STATE)
    }

    fn legal(&self) -> (M, M) {
        legal(self.from, self.to).expect("only for legal changes")
    }

    fn takes_each(&self, of: M) {
        let (required, optional) = self.legal();
        for one in optional.intersection(of) {
            let (mut a, b) = self.start();
            self.change(&mut a, &b, required | one)
                .unwrap_or_else(|error| panic!("{one}: {error}"));
            assert_eq!(a.qp.state(), self.to, "{one}");
        }
    }
}

fn modify_error(result: Result<(), Error>) -> ModifyError {
    match result {
        Result::Err(Error::Modify(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn resets(case: &mut Case) {
    let (mut a, _b) = case.start();
    assert!(a.reset().is_empty(), "nothing was posted");
    assert_eq!(a.qp.state(), Reset);
    let query = a.qp.query();
    assert_eq!((query.dest_qp_num, query.timeout), (0, 0));
}

fn is_refused(case: &mut Case) {
    let (mut a, b) = case.start();
    for mask in [NONE, TO_INIT, TO_RTR, TO_RTS] {
        match modify_error(case.change(&mut a, &b, mask)) {
            ModifyError::IllegalTransition(step) => {
                assert_eq!((step.from, step.to), (case.from, case.to));
            }
            other => panic!("{other}"),
        }
        assert_eq!(a.qp.state(), case.from);
    }
}

fn is_legal(case: &mut Case) {
    let (mut a, b) = case.start();
    case.change(&mut a, &b, case.legal().0)
        .expect("it is legal");
    assert_eq!(a.qp.state(), case.to);
}

fn names_what_is_missing(case: &mut Case) {
    let (mut a, b) = case.start();
    let (required, _) = case.legal();
    for one in required {
        let error = modify_error(case.change(&mut a, &b, required.difference(one)));
        match error {
            ModifyError::Missing { attributes, .. } => assert_eq!(attributes, one),
            other => panic!("{one}: {other}"),
        }
        assert!(error.to_string().ends_with(&format!(": {one}")), "{error}");
        assert_eq!(a.qp.state(), case.from, "without {one}");
    }
    // Had one of them changed anything, this would not do.
    case.change(&mut a, &b, required).expect("it is legal");
}

fn names_what_is_not_allowed(case: &mut Case) {
    let (mut a, b) = case.start();
    let (required, optional) = case.legal();
    for one in M::all().difference(required | optional | M::STATE) {
        let error = modify_error(case.change(&mut a, &b, required | one));
        match error {
            ModifyError::NotAllowed { attributes, .. } => assert_eq!(attributes, one),
            other => panic!("{one}: {other}"),
        }
        assert!(error.to_string().ends_with(&format!(": {one}")), "{error}");
        assert_eq!(a.qp.state(), case.from, "with {one}");
    }
    case.change(&mut a, &b, required).expect("it is legal");
}

fn takes_options(case: &mut Case) {
    case.takes_each(M::all().difference(MIGRATION));
}

fn takes_alternate_paths(case: &mut Case) {
    case.takes_each(MIGRATION);
}

mod of_attributes {
    use super::*;
    use crate::rule::rules;

    rules! {
        "transitions::rc", "", needs [Rc];
        cur_state_has_to_be_the_state_it_is_in: "IBTA vol. 1, 11.2.5.2; ibv_modify_qp(3)",
            "With CUR_STATE, another state than `cur_qp_state` refuses the change and says both.";
        cur_state_that_is_right_lets_the_change_through: "ibv_modify_qp(3)",
            "With CUR_STATE and the right `cur_qp_state` the change is made.";
        query_gives_back_what_was_set: "ibv_query_qp(3)",
            "A query gives state, sizes and attributes as they were set.";
        values_out_of_range_are_refused_and_named: "IBTA vol. 1, 11.2.5.2",
            "A value that its field cannot carry is refused, and named.";
        depths_beyond_the_device_are_refused: "ibv_query_device(3)",
            "`max_rd_atomic` and `max_dest_rd_atomic` beyond `max_qp_rd_atom` are refused.";
        ports_that_there_are_not_are_refused: "IBTA vol. 1, 11.2.5.2",
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
                    ..attr(Rts, &b.qp.endpoint())
                };
                let mask = M::STATE | M::CUR_STATE | if actual == Rtr { TO_RTS } else { NONE };
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
            ..attr(Rts, &b.qp.endpoint())
        };
        a.qp.modify(&attr, M::STATE | M::CUR_STATE | TO_RTS)
            .unwrap();
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
            ..attr(Init, &b.qp.endpoint())
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
        let good = attr(Rtr, &b.qp.endpoint());
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
        let good = attr(Rtr, &b.qp.endpoint());
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
                ..attr(Init, &b.qp.endpoint())
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
}
use of_attributes::group as more;
