//! All changes of state, legal and illegal, with the attributes that they require and take.
//!
//! The table stands here once more, as the specification has it, and is not taken from the
//! library's own.

use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::{TO_INIT, TO_RTR, TO_RTS, attr, bring, modify_error};
use bellwire::Error;
use bellwire::state::QpState::{self, *};
use bellwire::state::{ModifyError, QpAttr, QpAttrMask as M};
use bellwire_tests::fixture::*;

const SOURCE: &str = "IBTA vol. 1, 10.3.1 and chapter 11, Modify Queue Pair; ibv_modify_qp(3)";
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
            ..attr(b.qp.pd().device(), self.to, &b.qp.endpoint())
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
