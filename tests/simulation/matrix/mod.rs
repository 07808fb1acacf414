//! `docs/fault-matrix.md`: each fault, met by two links with traffic both ways. How it is classified,
//! what the links do, and what becomes of the requests; all held against the device's journal, as
//! every schedule is. `docs/fault-matrix-mlx5.md`: the same on a ConnectX device by its rings.

mod place;

use self::place::Place;
use super::faults::AFTER;
use super::request::{Kind, opened};
use super::world::World;
use bellwire::event::{Element, ElementKind, EventType};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::{self, CmEvent, Recovery, WorkQueue, classify};
use bellwire::link::{LinkEnd, LinkState};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wr::{QpType, SendFlags, WcStatus, WrOpcode};
use bellwire_tests::fixture::SIGNALED;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use std::{env, fs};

/// Operations that the fault befalls.
const VICTIMS: [Kind; 4] = [Kind::Send, Kind::Write, Kind::Read, Kind::FetchAndAdd];

/// Which of the requests it befalls.
const VICTIM: usize = 2;

/// How a fault is caused.
#[derive(Clone, Copy)]
enum Cause<'a> {
    /// At the victim, and at so many attempts to execute it.
    AtVictim(&'a dyn Fn(&World) -> Fault, u64),
    /// The program knows of it.
    Reported(fault::Fault),
}

/// What came of it.
struct Met {
    states: [LinkState; 2],
    epoch: u64,
    /// Of the victim, and of a SEND, a WRITE and a READ behind it.
    outcomes: [Option<Outcome>; 4],
}

fn meet(place: Place, cause: Cause<'_>, kind: Kind, policy: Replay) -> Met {
    let mut world = place.world();
    for end in &mut world.ends {
        end.receive(12);
    }
    world.settle();
    if let Cause::AtVictim(fault, times) = cause {
        let fault = fault(&world);
        arm(&mut world, fault, times);
    }
    let unsignaled = SendFlags::empty();
    let requests = [
        (Kind::Write, unsignaled),
        (Kind::Send, SIGNALED),
        (kind, SIGNALED),
        (Kind::Send, SIGNALED),
        (Kind::Write, SIGNALED),
        (Kind::Read, SIGNALED),
    ];
    let backwards = [(Kind::Send, SIGNALED), (Kind::Write, unsignaled)];
    for (at, requests) in [(1, &backwards[..]), (0, &requests[..])] {
        let peer = opened(&world.ends[1 - at].region);
        for &(kind, flags) in requests {
            let World { ends, random, .. } = &mut world;
            let posted = ends[at].stage_this(random, peer, kind, flags, policy, false);
            posted.expect("it works");
        }
        world.ring(at);
    }
    if let Cause::Reported(fault) = cause {
        world.ends[0].link.report(fault);
    }
    world.push_on();
    world.settle();
    let met = Met {
        states: world.ends.each_ref().map(|end| end.state()),
        epoch: world.ends[0].link.epoch(),
        outcomes: [VICTIM, 3, 4, 5].map(|at| world.ends[0].requests[at].outcome),
    };
    world.hca.clear_faults();
    world.talk();
    if met.states == [LinkState::Ready; 2] {
        assert_eq!(world.tally.talks, 2, "traffic does not flow again");
    }
    world.end();
    met
}

/// Has the fault strike at the victim.
fn arm(world: &mut World, fault: Fault, times: u64) {
    let qp_num = world.ends[0].link.qp_num().expect("it works");
    let nth = VICTIM as u64 + 1;
    let entry = Trigger::EntryOf { qp_num, nth };
    let mut script = Script::default().with(entry, fault);
    for more in 1..times {
        let nth = nth + more;
        script = script.with(Trigger::PacketOf { qp_num, nth }, fault);
    }
    if fault == Fault::PortDown {
        let later = Trigger::After(Duration::from_millis(20));
        script = script.with(later, Fault::PortUp);
    }
    world.inject(&script).expect("a good script");
}

fn outcome(found: Option<Outcome>) -> String {
    match found {
        // Not reported yet, or with a later one.
        None => "—".to_owned(),
        Some(Outcome::Failed(status)) => format!("Failed({})", status.name()),
        Some(found) => format!("{found:?}"),
    }
}

fn came_to(met: &Met) -> String {
    match met.states {
        [LinkState::Ready, LinkState::Ready] if met.epoch == 1 => "works on".to_owned(),
        [LinkState::Ready, LinkState::Ready] => "recovered".to_owned(),
        [
            LinkState::Ended(LinkEnd::GaveUp { .. }),
            LinkState::Ended(LinkEnd::GaveUp { .. }),
        ] => "given up".to_owned(),
        other => panic!("neither works nor given up: {other:?}"),
    }
}

/// What the class says that the links come to.
fn expected(fault: fault::Fault) -> &'static str {
    match classify(fault).recovery {
        // Only of tag matching, which leaves the queue pair as it is. The software HCA breaks it all
        // the same when it is ordered to.
        Recovery::None if matches!(fault, fault::Fault::Status { .. }) => "recovered",
        Recovery::ResetQp | Recovery::Reconnect | Recovery::RebuildCq => "recovered",
        Recovery::CloseDevice | Recovery::DestroyId | Recovery::CloseLink => "given up",
        // The connection is probed, or looked up; a link has no alternate path, no groups and no
        // shared receive queue.
        _ => "works on",
    }
}

/// A page, and what is not as it should be.
struct Page {
    place: Place,
    text: String,
    wrong: Vec<String>,
}

impl Page {
    /// One fault, under every operation and policy.
    fn row(&mut self, name: &str, class: Option<fault::Fault>, cause: Cause<'_>) {
        let (mut cells, mut behind) = (Vec::new(), Vec::new());
        let mut ends = BTreeSet::new();
        for kind in VICTIMS {
            for policy in [Replay::Anyway, Replay::IfSafe, Replay::Surface] {
                let Ok(met) =
                    catch_unwind(AssertUnwindSafe(|| meet(self.place, cause, kind, policy)))
                else {
                    self.wrong
                        .push(format!("{name}, {kind:?}, {policy:?}: see above"));
                    continue;
                };
                ends.insert(came_to(&met));
                if policy == Replay::Surface {
                    cells.push(outcome(met.outcomes[0]));
                    if kind == Kind::Send {
                        behind.extend(met.outcomes[1..].iter().map(|&found| outcome(found)));
                    }
                }
            }
        }
        let end = ends.into_iter().collect::<Vec<_>>().join(", ");
        let (mut scope, mut recovery) = (String::new(), String::new());
        if let Some(fault) = class {
            let class = classify(fault);
            (scope, recovery) = (class.scope.to_string(), class.recovery.to_string());
            let expected = expected(fault);
            if end != expected {
                self.wrong.push(format!("{name}: {end}, not {expected}"));
            }
        }
        cells.append(&mut behind);
        let cells = cells.join(" | ");
        writeln!(
            self.text,
            "| {name} | {scope} | {recovery} | {end} | {cells} |"
        )
        .unwrap();
    }
}

fn header(to: &mut Page, title: &str, about: &str) {
    write!(
        to.text,
        "\n## {title}\n\n{about}\n\n\
         | fault | breaks | recovery | the links | SEND | WRITE | READ | FETCH_ADD | SEND behind | \
         WRITE behind | READ behind |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    .unwrap();
}

fn generate(place: Place) -> Page {
    let mut page = Page {
        place,
        text: String::new(),
        wrong: Vec::new(),
    };
    page.text.push_str(place.intro());
    statuses(&mut page);
    causes(&mut page);
    events(&mut page);
    if place == Place::ConnectX {
        place::compare(&mut page);
    }
    page
}

fn statuses(to: &mut Page) {
    header(
        to,
        "Completion statuses",
        "Reported for a request that was not executed; `(executed)`: for one that was, for those statuses \
         that can be.",
    );
    for &status in &WcStatus::ALL[1..] {
        let fault = fault::Fault::Status {
            status,
            transport: QpType::Rc,
            queue: WorkQueue::Send(Some(WrOpcode::Send)),
            vendor: None,
        };
        if !to.place.reports(status) {
            continue;
        }
        let cause = Cause::AtVictim(&|_| Fault::Status(status), 1);
        to.row(status.name(), Some(fault), cause);
        if AFTER.contains(&status) {
            let cause = Cause::AtVictim(&|_| Fault::StatusAfter(status), 1);
            let name = format!("{} (executed)", status.name());
            to.row(&name, Some(fault), cause);
        }
    }
}

fn causes(to: &mut Page) {
    header(
        to,
        "What causes them",
        "The software HCA's own faults, at the third request.",
    );
    type Of<'a> = &'a dyn Fn(&World) -> Fault;
    let causes: [(&str, Of<'_>, u64); 15] = [
        ("acknowledgement lost once", &|_| Fault::DropAck, 1),
        ("every acknowledgement lost", &|_| Fault::DropAck, 4),
        ("request lost once", &|_| Fault::DropRequest, 1),
        ("every request lost", &|_| Fault::DropRequest, 4),
        ("receiver not ready once", &|_| Fault::Rnr, 1),
        ("receiver never ready", &|_| Fault::Rnr, 4),
        ("remote access refused", &|_| Fault::RemoteAccess, 1),
        ("delayed", &|_| Fault::Delay(Duration::from_millis(1)), 1),
        ("send completion overruns", &|_| Fault::SendCqOverrun, 1),
        ("receive completion overruns", &|_| Fault::RecvCqOverrun, 1),
        (
            "completion queue overruns",
            &|world| Fault::CqOverrun(cq(world, 0)),
            1,
        ),
        (
            "the peer's completion queue overruns",
            &|world| Fault::CqOverrun(cq(world, 1)),
            1,
        ),
        ("queue pair breaks", &|world| Fault::QpFatal(qp(world)), 1),
        ("port down, and up", &|_| Fault::PortDown, 1),
        ("device breaks", &|_| Fault::DeviceFatal, 1),
    ];
    for (name, fault, times) in causes {
        to.row(name, None, Cause::AtVictim(fault, times));
    }
}

fn qp(world: &World) -> u32 {
    world.ends[0].link.qp_num().expect("it works")
}

fn cq(world: &World, end: usize) -> u32 {
    world.ends[end].link.cqn().expect("it works")
}

fn events(to: &mut Page) {
    header(
        to,
        "Asynchronous events",
        "Raised at the third request, of an element of the first link. Those of shared receive queues \
         and work queues, of which a link has none, are not here.",
    );
    for &event in EventType::ALL {
        let element: fn(&World) -> Element = match event.element_kind() {
            ElementKind::Cq => |world| Element::Cq(cq(world, 0)),
            ElementKind::Qp => |world| Element::Qp(qp(world)),
            ElementKind::Port => |_| Element::Port(1),
            ElementKind::Device => |_| Element::Device,
            _ => continue,
        };
        let raise = |world: &World| Fault::Raise(event, element(world));
        let cause = Cause::AtVictim(&raise, 1);
        to.row(event.name(), Some(fault::Fault::Event(event)), cause);
    }
    header(
        to,
        "Events of the communication manager",
        "As a program reports them (`Link::report`), when the requests were executed.",
    );
    for &event in CmEvent::ALL {
        let fault = fault::Fault::Cm(event);
        to.row(event.name(), Some(fault), Cause::Reported(fault));
    }
}

/// With `BELLWIRE_BLESS=1` the page is written.
#[test]
fn the_matrix_is_fresh() {
    check(Place::Soft);
}

/// The same, with `UVERBS_PRELOAD_JOURNAL=1`.
#[test]
#[ignore = "on the stand-in for the kernel: cargo xtask test uverbs"]
fn the_matrix_of_connectx_is_fresh() {
    check(Place::ConnectX);
}

fn check(place: Place) {
    let Page {
        text: fresh, wrong, ..
    } = generate(place);
    let page = place.page();
    assert!(wrong.is_empty(), "{wrong:#?}");
    if env::var_os("BELLWIRE_BLESS").is_some_and(|value| value == "1") {
        fs::write(place.path(), &fresh).unwrap();
        return;
    }
    let there = fs::read_to_string(place.path()).unwrap_or_default();
    assert!(
        there == fresh,
        "docs/{page} is stale: run `{}`, or this test with BELLWIRE_BLESS=1",
        place.renew()
    );
}
