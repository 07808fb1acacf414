//! All changes of state of the queue pairs beside RC, legal and illegal, with the attributes that
//! they require and take, as [`Kind::legal`] has them.

use super::ends::{Stands, attr, ends};
use super::kind::Kind;
use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::modify_error;
use bellwire::state::QpState::{self, *};
use bellwire::state::{ModifyError, QpAttr, QpAttrMask as M};
use bellwire::wqe::{Uc, Ud, Xrc};
use bellwire::{Endpoint, Error};

const SOURCE: &str = "IBTA vol. 1, 10.3.1 and chapter 11, Modify Queue Pair; ibv_modify_qp(3)";
/// Needs more than every port has.
const MIGRATION: M = M::ALT_PATH.union(M::PATH_MIG_STATE);

pub fn groups() -> [Group; 4] {
    Kind::ALL.map(group)
}

fn group(kind: Kind) -> Group {
    let (name, about) = match kind {
        Kind::Uc => (
            "transitions::uc",
            "Changes of an unreliable connection's state: all pairs, with their attributes.",
        ),
        Kind::Ud => (
            "transitions::ud",
            "Changes of a datagram queue pair's state: all pairs, with their attributes.",
        ),
        Kind::XrcSend => (
            "transitions::xrc_send",
            "Changes of an XRC initiator's state: all pairs, with their attributes.",
        ),
        Kind::XrcRecv => (
            "transitions::xrc_recv",
            "Changes of an XRC target's state: all pairs, with their attributes.",
        ),
    };
    let mut rules = Vec::new();
    for from in QpState::ALL {
        for to in QpState::ALL {
            rules.extend(step(name, kind, from, to));
        }
    }
    let check = cur_state_has_to_be_the_state_it_is_in;
    rules.push(Rule::new(
        name,
        "cur_state_has_to_be_the_state_it_is_in",
        "IBTA vol. 1, chapter 11, Modify Queue Pair; ibv_modify_qp(3)",
        "With CUR_STATE, another state than `cur_qp_state` refuses the change and says both.",
        &kind.needs(Rts),
        move |p| check(p, kind),
    ));
    Group { name, about, rules }
}

/// The rules of one pair of states.
fn step(group: &str, kind: Kind, from: QpState, to: QpState) -> Vec<Rule> {
    let rule = |name: &str, says: String, more: &[Feature], check: fn(&Case)| {
        let states = [from, to].map(|state| state.name().to_lowercase());
        let name = format!("{}{name}", states.join("_to_"));
        let needs = [&kind.needs(from), more].concat();
        let check = move |p: &Provider| check(&Case { p, kind, from, to });
        Rule::new(group, &name, SOURCE, says, &needs, check)
    };
    let step = format!("{from} to {to}");
    if to == Reset {
        let says = format!("{step} is legal, and clears all attributes.");
        return vec![rule("", says, &[], resets)];
    }
    let Some((required, optional)) = kind.legal(from, to) else {
        let says = format!("{step} is refused, and changes nothing.");
        return vec![rule("_is_refused", says, &[], is_refused)];
    };
    let list = if required.is_empty() {
        "no attributes".to_owned()
    } else {
        required.to_string()
    };
    let mut rules = vec![
        rule("", format!("{step} is legal, with {list}."), &[], is_legal),
        rule(
            "_names_what_is_not_allowed",
            format!("{step} with any other attribute is refused, and names it."),
            &[],
            names_what_is_not_allowed,
        ),
    ];
    if !required.is_empty() {
        rules.push(rule(
            "_names_what_is_missing",
            format!("{step} without one of {required} is refused, and names it."),
            &[],
            names_what_is_missing,
        ));
    }
    let plain = optional.difference(MIGRATION);
    if !plain.is_empty() {
        let says = format!("{step} takes {plain}.");
        rules.push(rule("_takes_options", says, &[], takes_options));
    }
    let paths = optional.intersection(MIGRATION);
    if !paths.is_empty() {
        rules.push(rule(
            "_takes_alternate_paths",
            format!("{step} takes {paths}."),
            &[Feature::PathMigration],
            takes_alternate_paths,
        ));
    }
    rules
}

/// A queue pair of this kind in RESET, what it is connected with, and what keeps that alive.
fn subject(p: &Provider, kind: Kind) -> Subject {
    fn boxed(one: impl Stands + 'static, peer: impl Stands + 'static) -> Subject {
        let to = peer.endpoint();
        (Box::new(one), to, Box::new(peer))
    }
    match kind {
        Kind::Uc => {
            let (tx, rx) = ends::<Uc>(p);
            boxed(tx, rx)
        }
        Kind::Ud => {
            let (tx, rx) = ends::<Ud>(p);
            boxed(tx, rx)
        }
        Kind::XrcSend => {
            let (tx, rx) = ends::<Xrc>(p);
            boxed(tx, rx)
        }
        Kind::XrcRecv => {
            let (tx, rx) = ends::<Xrc>(p);
            boxed(rx, tx)
        }
    }
}

type Subject = (Box<dyn Stands>, Endpoint, Box<dyn Stands>);

/// A change of state that is put to a provider.
struct Case<'p> {
    p: &'p Provider,
    kind: Kind,
    from: QpState,
    to: QpState,
}

impl Case<'_> {
    /// A queue pair in the first state.
    fn start(&self) -> Subject {
        let mut made = subject(self.p, self.kind);
        made.0.bring(&made.1, self.from);
        made
    }

    /// The change with these attributes. Every one has a good value, in the mask or not.
    fn change(&self, (qp, peer, _): &mut Subject, mask: M) -> Result<(), Error> {
        let attr = QpAttr {
            cur_qp_state: self.from,
            ..attr(qp.device(), self.to, peer)
        };
        qp.modify(&attr, mask | M::STATE)
    }

    fn legal(&self) -> (M, M) {
        let legal = self.kind.legal(self.from, self.to);
        legal.expect("only for legal changes")
    }

    fn takes_each(&self, of: M) {
        let (required, optional) = self.legal();
        for one in optional.intersection(of) {
            let mut made = self.start();
            self.change(&mut made, required | one)
                .unwrap_or_else(|error| panic!("{one}: {error}"));
            assert_eq!(made.0.state(), self.to, "{one}");
        }
    }

    /// The change is refused, changes nothing, and names these attributes at the end of its error.
    fn refused(&self, made: &mut Subject, mask: M, named: M) -> ModifyError {
        let error = modify_error(self.change(made, mask));
        let text = error.to_string();
        assert!(text.ends_with(&format!(": {named}")), "{text}");
        assert!(
            text.starts_with(&format!("{} ", self.kind.name())),
            "{text}"
        );
        assert_eq!(made.0.state(), self.from, "{named}");
        error
    }
}

fn resets(case: &Case) {
    let (mut qp, _, _peer) = case.start();
    assert!(qp.reset().is_empty(), "nothing was posted");
    let query = qp.query();
    assert_eq!(query.qp_state, Reset);
    assert_eq!((query.dest_qp_num, query.timeout, query.qkey), (0, 0, 0));
    assert_eq!(query.port_num, 0);
}

fn is_refused(case: &Case) {
    let mut made = case.start();
    let on_the_way = [(Reset, Init), (Init, Rtr), (Rtr, Rts)];
    let masks = on_the_way.map(|(from, to)| case.kind.legal(from, to).expect("legal").0);
    for mask in [M::empty()].into_iter().chain(masks) {
        match modify_error(case.change(&mut made, mask)) {
            ModifyError::IllegalTransition(step) => {
                assert_eq!((step.from, step.to), (case.from, case.to));
            }
            other => panic!("{other}"),
        }
        assert_eq!(made.0.state(), case.from);
    }
}

fn is_legal(case: &Case) {
    let mut made = case.start();
    case.change(&mut made, case.legal().0).expect("it is legal");
    assert_eq!(made.0.state(), case.to);
}

fn names_what_is_missing(case: &Case) {
    let mut made = case.start();
    let (required, _) = case.legal();
    for one in required {
        match case.refused(&mut made, required.difference(one), one) {
            ModifyError::Missing { attributes, .. } => assert_eq!(attributes, one),
            other => panic!("{one}: {other}"),
        }
    }
    // Had one of them changed anything, this would not do.
    case.change(&mut made, required).expect("it is legal");
}

fn names_what_is_not_allowed(case: &Case) {
    let mut made = case.start();
    let (required, optional) = case.legal();
    for one in M::all().difference(required | optional | M::STATE) {
        match case.refused(&mut made, required | one, one) {
            ModifyError::NotAllowed { attributes, .. } => assert_eq!(attributes, one),
            other => panic!("{one}: {other}"),
        }
    }
    case.change(&mut made, required).expect("it is legal");
}

fn takes_options(case: &Case) {
    case.takes_each(M::all().difference(MIGRATION));
}

fn takes_alternate_paths(case: &Case) {
    case.takes_each(MIGRATION);
}

fn cur_state_has_to_be_the_state_it_is_in(p: &Provider, kind: Kind) {
    for actual in [Rtr, Rts, Sqd] {
        for given in QpState::ALL.into_iter().filter(|&given| given != actual) {
            let (mut qp, peer, _keep) = subject(p, kind);
            qp.bring(&peer, actual);
            let attr = QpAttr {
                cur_qp_state: given,
                ..attr(qp.device(), Rts, &peer)
            };
            let (required, _) = kind.legal(actual, Rts).expect("legal");
            let changed = qp.modify(&attr, required | M::STATE | M::CUR_STATE);
            let error = modify_error(changed);
            assert_eq!(error, ModifyError::CurStateMismatch { given, actual });
            assert_eq!(qp.state(), actual);
        }
    }
}
