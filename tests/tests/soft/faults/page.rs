//! `docs/faults.md`: its contents, and what stands between two lines of it, are made of the tables.

use super::texts;
use bellwire::fault::plan::{EndReason, Step};
use bellwire::fault::{
    Blame, Class, CmEvent, Errno, EventType, Execution, Fault, Recovery, Retry, Scope, Vendor,
    WcStatus, WorkQueue, classify,
};
use bellwire::wr::{QpType, WrOpcode};
use std::fmt::Write;
use std::{env, fs};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/faults.md");
const BEGIN: &str = "<!-- faults: written by cargo xtask faults -->\n";
const END: &str = "<!-- faults: end -->\n";
const CONTENTS: &str = "<!-- contents: written by cargo xtask faults -->\n";
const CONTENTS_END: &str = "<!-- contents: end -->\n";

/// With `BELLWIRE_BLESS=1` the page is written.
#[test]
fn the_page_is_fresh() {
    let there = fs::read_to_string(PAGE).expect(PAGE);
    let (before, rest) = there.split_once(BEGIN).expect(BEGIN);
    let (_, after) = rest.split_once(END).expect(END);
    let body = generate();
    let (top, rest) = before.split_once(CONTENTS).expect(CONTENTS);
    let (_, middle) = rest.split_once(CONTENTS_END).expect(CONTENTS_END);
    let contents = contents(&format!("{middle}{body}"));
    let fresh =
        format!("{top}{CONTENTS}\n{contents}\n{CONTENTS_END}{middle}{BEGIN}\n{body}{END}{after}");
    if env::var_os("BELLWIRE_BLESS").is_some_and(|value| value == "1") {
        fs::write(PAGE, &fresh).unwrap();
        return;
    }
    assert!(
        there == fresh,
        "docs/faults.md is stale: run `cargo xtask faults`, or this test with BELLWIRE_BLESS=1"
    );
}

/// A line for each section, with the names of its faults.
fn contents(page: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for heading in page.lines() {
        let (level, title) = heading.split_once(' ').unwrap_or_default();
        let name = title.split_once([' ', ':']).map_or(title, |(name, _)| name);
        let is_fault = !name.is_empty() && name.chars().all(|c| !c.is_ascii_lowercase());
        match (level, lines.last_mut()) {
            ("##", _) => lines.push(format!("- [{title}](#{})", anchor(title))),
            ("###", Some(line)) if is_fault && !title.contains(": any") => {
                write!(line, " [{name}](#{})", anchor(title)).unwrap();
            }
            _ => {}
        }
    }
    lines.join("\n") + "\n"
}

/// The anchor that GitHub gives a heading.
fn anchor(title: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let lower = title.to_lowercase();
    lower
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn generate() -> String {
    let mut page = String::new();
    terms(&mut page);
    statuses(&mut page);
    families(&mut page);
    ends(&mut page);
    texts::codes(&mut page);
    texts::texts(&mut page);
    page.truncate(page.trim_end().len());
    page.push_str("\n\n");
    page
}

/// What the capital words of the faults mean.
fn terms(to: &mut String) {
    macro_rules! terms {
        ($($family:ident $title:literal)*) => {$(
            write!(to, "### {}\n\n| | |\n|---|---|\n", $title).unwrap();
            for term in $family::ALL {
                writeln!(to, "| {} | {} |", term.name(), term.text()).unwrap();
            }
            to.push('\n');
        )*};
    }
    to.push_str("## The words\n\n");
    terms! {
        Scope "Breaks: how far it reaches"
        Blame "To blame: the part that most likely caused it"
        Retry "Again: whether the same request, or call, can succeed if it is tried again"
        Execution "At the peer: what it says of the request there"
        Recovery "Recovery: what makes work possible again"
    }
}

fn fault(to: &mut String, what: Fault, number: &str) {
    let class = classify(what);
    write!(to, "### {}{number}\n\n{}\n\n", what.name(), what.text()).unwrap();
    writeln!(to, "- **Cause:** {}", class.cause).unwrap();
    writeln!(
        to,
        "- **Breaks:** {}. **To blame:** {}. **Again:** {}. **At the peer:** {}. **Recovery:** {}.",
        class.scope, class.blame, class.retry, class.execution, class.recovery
    )
    .unwrap();
    writeln!(to, "- **Look at:** {}", class.advice).unwrap();
}

/// What is otherwise than `usual`; nothing if nothing is.
fn otherwise(to: &mut String, who: &str, usual: &Class, here: &Class) {
    let mut differences = Vec::new();
    macro_rules! differs {
        ($($field:ident $title:literal)*) => {$(
            if usual.$field != here.$field {
                differences.push(format!("**{}:** {}", $title, here.$field));
            }
        )*};
    }
    differs! {
        scope "Breaks" blame "To blame" retry "Again" execution "At the peer" recovery "Recovery"
        cause "Cause" advice "Look at"
    }
    if !differences.is_empty() {
        let differences = differences.join(". ");
        let end = if differences.ends_with('.') { "" } else { "." };
        let differences = differences.replace(".. ", ". ");
        writeln!(to, "- {who}: {differences}{end}").unwrap();
    }
}

fn statuses(to: &mut String) {
    to.push_str(
        "## Completion statuses\n\n\
         `ibv_wc_status`: `IBV_WC_…`, `BW_WC_…`, `fault::WcStatus`. First what holds for a SEND or \
         WRITE on a reliable connection (RC, XRC, DC), then the differences. Of receives it says \
         nothing about the peer's request: its sender has a status of its own. A number that is not \
         here is taken for GENERAL_ERR.\n\n",
    );
    for &status in WcStatus::ALL {
        let of = |transport, queue, vendor| Fault::Status {
            status,
            transport,
            queue,
            vendor,
        };
        let sent = WorkQueue::Send(Some(WrOpcode::Send));
        let read = WorkQueue::Send(Some(WrOpcode::RdmaRead));
        let what = of(QpType::Rc, sent, None);
        fault(to, what, &format!(" ({})", status.number()));
        let usual = classify(what);
        let connectx = Some(Vendor::ConnectX(0x93));
        for (who, other) in [
            ("A READ or an atomic", of(QpType::Rc, read, None)),
            ("A send of UC or UD", of(QpType::Ud, sent, None)),
            ("A receive", of(QpType::Rc, WorkQueue::Recv, None)),
        ] {
            let mut here = classify(other);
            // The page says it once.
            if here.execution == Execution::DoesNotApply {
                here.execution = usual.execution;
            }
            otherwise(to, who, &usual, &here);
        }
        let shared = classify(of(QpType::Rc, WorkQueue::SharedRecv, None));
        let there = classify(of(QpType::Rc, WorkQueue::SharedRecv, connectx));
        let who = "A receive of a shared receive queue of a ConnectX device, with the vendor's code \
                   0x93 or 0x99";
        otherwise(to, who, &shared, &there);
        to.push('\n');
    }
}

/// How links end, and what a step of a recovery needs.
fn ends(to: &mut String) {
    to.push_str(
        "## Ends of links\n\n\
         Why a link was given up: `EndReason`, `bw_link_info.why`, `bw_recovery_report.why`. Behind it \
         stands the fault that the recovery began with: look that up first.\n\n\
         | text | look at |\n|---|---|\n",
    );
    let fault = Fault::RecvLimitExceeded;
    writeln!(to, "| FAULT cannot be recovered from: … | That fault. |").unwrap();
    for why in [
        EndReason::FaultsKeepComing(fault),
        EndReason::PeerClosed,
        EndReason::PeerLost,
        EndReason::PeerRestarted,
        EndReason::PeerGaveUp(fault.without_circumstances()),
    ] {
        let text = why.to_string().replace(&*fault.text(), "…");
        let text = text.replace(&*fault.name(), "FAULT");
        writeln!(to, "| {text} | {} |", why.advice()).unwrap();
    }
    to.push_str(
        "\nA step that failed (`the step \"…\" failed: FAULT: …`), or took longer than it may \
         (`the step \"…\" did not end in time`):\n\n| step | look at |\n|---|---|\n",
    );
    for step in Step::ALL {
        writeln!(to, "| {step} | {} |", step.advice()).unwrap();
    }
    to.push('\n');
}

fn families(to: &mut String) {
    macro_rules! family {
        ($family:ident, $title:literal, $about:literal, $fault:expr) => {
            write!(to, "## {}\n\n{}\n\n", $title, $about).unwrap();
            for &row in $family::ALL {
                fault(to, $fault(row), &format!(" ({})", row.number()));
                to.push('\n');
            }
        };
    }
    family!(
        EventType,
        "Asynchronous events",
        "`ibv_event_type`: `IBV_EVENT_…`, `BW_EVENT_…`, `fault::EventType`. Each has to be \
         acknowledged (ibv_ack_async_event(3)), or destroying what it is about waits for ever.",
        Fault::Event
    );
    fault(to, Fault::UnknownEvent(20), ": any other number");
    to.push('\n');
    family!(
        CmEvent,
        "Events of the communication manager",
        "`rdma_cm_event_type`: `RDMA_CM_EVENT_…`, `BW_CM_EVENT_…`, `fault::CmEvent`. Each has to be \
         acknowledged (rdma_ack_cm_event(3)), or destroying its identifier waits for ever. Where the \
         event's status is a negative error number, that has a class too.",
        Fault::Cm
    );
    fault(to, Fault::UnknownCm(16), ": any other number");
    to.push('\n');
    family!(
        Errno,
        "Error numbers",
        "What calls of libibverbs and librdmacm return or leave in `errno`; `fault::Errno`. Numbers \
         are those of Linux on x86, ARM, POWER and RISC-V. About the request: that of the call.",
        |errno: Errno| Fault::Errno(errno.number().into())
    );
    fault(to, Fault::Errno(i32::MAX), ": any other number");
    to.push_str("\n## Reported by the peer\n\n");
    for reported in [
        Fault::PeerRecovery,
        Fault::PeerClosed,
        Fault::PeerLost,
        Fault::PeerRestarted,
        Fault::PeerGaveUp(Fault::RecvLimitExceeded.without_circumstances()),
    ] {
        fault(to, reported, "");
    }
    to.push_str(
        "\n## Found by links\n\n`LinkInit::request_deadline` and `keep_alive`, `LinkSetSrq::max_held`, `Link::cancel`; `BW_FAMILY_LINK`.\n\n",
    );
    for found in [
        Fault::DeadlineMissed,
        Fault::KeepAliveMissed,
        Fault::RecvLimitExceeded,
        Fault::Cancelled,
    ] {
        fault(to, found, "");
    }
    to.push('\n');
}
