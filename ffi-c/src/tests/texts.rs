//! What C programs read when something fails has no words of Rust.

use super::*;
use crate::failure::{Failure, guard};
use crate::fault_text::*;
use crate::link::outcome::{bw_doubt_name, bw_doubt_str, bw_outcome_name, bw_outcome_str};
use hw::Error;
use hw::connect::FormatError;
use hw::connect::tcp::{TcpError, Waited};
use hw::event::Element;
use hw::fault::plan::{EndReason, Step};
use hw::fault::{CmEvent, Errno, EventType, Fault, WcStatus, WorkQueue};
use hw::memory::MemoryError;
use hw::queue::{AttachError, PostError};
use hw::soft::Fault as Injected;
use hw::sources::{Absent, Cause};
use hw::state::{ModifyError, QpAttrMask, QpState};
use hw::wr::{MwType, QpType, WrOpcode};
use std::ffi::c_char;
use std::io;

/// Words with a capital letter after a small one that are not Rust's.
const WORDS: [&str; 8] = [
    "InfiniBand",
    "RoCE",
    "ConnectX",
    "KiB",
    "MiB",
    "GiB",
    "2048kB",
    "1048576kB",
];

#[track_caller]
fn is_plain(text: &str) {
    for rust in ["::", "{ ", "Errno(", "Some(", "None", "Ok(", "Err("] {
        assert!(!text.contains(rust), "{rust} in {text:?}");
    }
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        let letters: Vec<char> = word.chars().collect();
        let camel = letters
            .windows(2)
            .any(|two| two[0].is_lowercase() && two[1].is_uppercase());
        assert!(!camel || WORDS.contains(&word), "{word} in {text:?}");
    }
    assert!(!text.is_empty() && !text.contains("Type1") && !text.contains("Type2"));
}

/// The text of a failure as `bw_last_error` returns it.
#[track_caller]
fn fails_plainly(failure: impl Into<Failure>) {
    assert!(guard(|| Err::<(), _>(failure.into())) < 0);
    is_plain(&last_error());
}

#[test]
fn texts_of_numbers_are_plain() {
    let texts: [extern "C" fn(u32) -> *const c_char; 20] = [
        bw_wc_status_str,
        bw_event_type_str,
        bw_cm_event_str,
        bw_scope_str,
        bw_blame_str,
        bw_retry_str,
        bw_execution_str,
        bw_recovery_str,
        bw_outcome_str,
        bw_doubt_str,
        bw_wc_status_name,
        bw_event_type_name,
        bw_cm_event_name,
        bw_scope_name,
        bw_blame_name,
        bw_retry_name,
        bw_execution_name,
        bw_recovery_name,
        bw_outcome_name,
        bw_doubt_name,
    ];
    for number in 0..300 {
        // SAFETY: static texts.
        let read = |text| unsafe { CStr::from_ptr(text) }.to_str().unwrap();
        texts.iter().for_each(|text| is_plain(read(text(number))));
        is_plain(read(crate::code::bw_strerror(-(number as c_int))));
    }
}

#[test]
fn texts_of_failures_are_plain() {
    let io = || io::Error::from_raw_os_error(12);
    let (what, name) = ("create a queue", || "name".to_owned());
    let element = Element::Qp(7);
    let errors = [
        Error::UnknownDevice {
            name: "none".into(),
            there: ["rxe0".to_owned()].into(),
            absent: [Absent::verbs(Cause::NoPermission { path: name() })].into(),
        },
        Error::Unsupported {
            what,
            instead: "use another",
        },
        Error::UnknownEvent { number: 99 },
        Error::FabricName {
            name: name(),
            max: 9,
        },
        Error::FabricClock,
        Error::OtherFabric { reason: name() },
        Error::UnknownQp { qpn: 1 },
        Error::UnknownKey { key: 1 },
        Error::Exhausted { what, max: 1 },
        Error::TooLarge {
            what,
            given: 0,
            max: 1,
        },
        Error::TooLarge {
            what,
            given: 2,
            max: 1,
        },
        Error::Busy { what, users: 1 },
        Error::BadRegion { addr: 1, length: 0 },
        Error::AccessWithoutLocalWrite,
        Error::NotExclusive {
            access: hw::AccessFlags::REMOTE_WRITE | hw::AccessFlags::MW_BIND,
            shared: true,
        },
        Error::ResetByModify,
        Error::NotReset,
        Error::ZeroBasedRegion,
        Error::MwType {
            given: MwType::Type1,
        },
        Error::WindowsBound { windows: 1 },
        Error::XrcSrq { srqn: 1 },
        Error::ResetOfOpened { qpn: 1 },
        Error::DeviceFatal,
        Error::SuccessAsFault,
        Error::NoJournal,
        Error::FaultWithoutRequest {
            fault: Injected::Status(WcStatus::RemAccessErr).to_string(),
        },
        Error::FaultWithoutModify {
            fault: Injected::RefuseModify.to_string(),
        },
        Error::OutOfRange {
            what,
            given: 1,
            min: 2,
            max: 3,
        },
        Error::NotADatagram,
        Error::WayBack {
            gid: [1; 16],
            several: true,
        },
        Error::WayBack {
            gid: [1; 16],
            several: false,
        },
        Error::NotMulticast { gid: [1; 16] },
        Error::NotAttached { qpn: 1 },
        Error::WouldBlock,
        Error::Interrupted,
        Error::Woken,
        Error::PrivateData { given: 1, max: 0 },
        Error::CmNoQp { what },
        Error::CmSpace,
        Error::NoChannel { cqn: 1 },
        Error::NotDeferred {
            element,
            given: 2,
            deferred: 1,
        },
        Error::CmEventAsFault {
            event: CmEvent::Established,
        },
        Error::WrongElement {
            event: EventType::PortErr,
            element,
        },
        Error::UnknownElement { element },
        Error::Io { what, error: io() },
        Error::Io { what, error: io() }.at(what, ([127, 0, 0, 1], 1).into()),
    ];
    errors.into_iter().for_each(|error| fails_plainly(error));

    let huge = MemoryError::NoHugePages {
        page: 2 << 20,
        need: 2,
        free: 1,
        wanted: 3,
        node: Some(0),
    };
    let memory = [
        huge,
        MemoryError::ZeroLength,
        MemoryError::TooLarge { len: 1, page: 4096 },
        MemoryError::HugePagesUnsupported { page: 1 << 30 },
        MemoryError::TransparentOff {
            setting: "/sys/kernel",
            wanted: "always",
        },
        MemoryError::BadName,
        MemoryError::NotSealed,
        MemoryError::WrongLength {
            expected: 1,
            actual: 2,
        },
        MemoryError::Os {
            doing: name(),
            source: io(),
        },
    ];
    memory.into_iter().for_each(|error| fails_plainly(error));

    let post = [
        PostError::QueueFull,
        PostError::WrongState,
        PostError::NoRecvQueue,
        PostError::TooManySges { given: 2, max: 1 },
    ];
    let modify = [
        ModifyError::NotDrained,
        ModifyError::CurStateMismatch {
            given: QpState::Init,
            actual: QpState::Reset,
        },
        ModifyError::IllegalTransition(hw::state::Step {
            transport: QpType::Rc,
            from: QpState::Reset,
            to: QpState::Rts,
        }),
        ModifyError::Missing {
            step: hw::state::Step {
                transport: QpType::Ud,
                from: QpState::Reset,
                to: QpState::Init,
            },
            attributes: QpAttrMask::QKEY | QpAttrMask::PKEY_INDEX,
        },
    ];
    let attach = AttachError::CqTooSmall { needed: 2, free: 1 };
    post.into_iter().for_each(|e| fails_plainly(Error::Post(e)));
    modify
        .into_iter()
        .for_each(|e| fails_plainly(Error::Modify(e)));
    fails_plainly(Error::Attach(attach));

    let tcp = [
        TcpError::UnknownHost {
            host: name(),
            error: io(),
        },
        TcpError::TimedOut {
            waited: Waited::Accept { port: 1 },
            within: Duration::from_millis(1500),
        },
        TcpError::Format(FormatError::Version { given: 2, ours: 1 }),
        TcpError::Io { what, error: io() },
    ];
    tcp.into_iter().for_each(|error| fails_plainly(error));
}

/// `bw_link_info.why`.
#[test]
fn texts_of_ended_links_are_plain() {
    let of_status = |status| Fault::Status {
        status,
        transport: QpType::Rc,
        queue: WorkQueue::Send(Some(WrOpcode::RdmaWrite)),
        vendor: None,
    };
    let faults = (WcStatus::ALL.iter().copied().map(of_status))
        .chain(EventType::ALL.iter().copied().map(Fault::Event))
        .chain(CmEvent::ALL.iter().copied().map(Fault::Cm))
        .chain(Errno::ALL.iter().map(|e| Fault::Errno(e.number().into())))
        .chain([Fault::Errno(0), Fault::Errno(999), Fault::UnknownEvent(99)])
        .chain([Fault::PeerClosed, Fault::PeerLost, Fault::PeerRestarted])
        .chain([Fault::PeerGaveUp(
            Fault::RecvLimitExceeded.without_circumstances(),
        )])
        .chain([Fault::DeadlineMissed, Fault::KeepAliveMissed])
        .chain([Fault::RecvLimitExceeded, Fault::Cancelled]);
    for fault in faults {
        is_plain(&EndReason::Fault(fault).to_string());
        for &step in Step::ALL {
            is_plain(&EndReason::Failed(step, fault).to_string());
            is_plain(&EndReason::TimedOut(step).to_string());
        }
    }
}
