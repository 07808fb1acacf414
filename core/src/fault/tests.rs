//! The rules of the tables, stated independently and checked for every row.

use super::*;
use crate::wr::{QpType, WrOpcode};
use std::format;
use std::string::ToString;
use std::vec::Vec;

const TRANSPORTS: [QpType; 6] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcSend,
    QpType::XrcRecv,
    QpType::Dci,
];

fn queues() -> Vec<WorkQueue> {
    let sends = WrOpcode::ALL.iter().map(|&op| WorkQueue::Send(Some(op)));
    let others = [
        WorkQueue::Send(None),
        WorkQueue::Recv,
        WorkQueue::SharedRecv,
    ];
    sends.chain(others).collect()
}

fn of_status(status: WcStatus, transport: QpType, queue: WorkQueue) -> Class {
    classify(Fault::Status {
        status,
        transport,
        queue,
        vendor: None,
    })
}

/// Every fault that has a name, and some that have none.
fn every_fault() -> Vec<Fault> {
    let mut faults = Vec::new();
    for &status in WcStatus::ALL {
        for transport in [QpType::Rc, QpType::Ud] {
            for queue in [
                WorkQueue::Send(Some(WrOpcode::Send)),
                WorkQueue::Send(None),
                WorkQueue::SharedRecv,
            ] {
                faults.push(Fault::Status {
                    status,
                    transport,
                    queue,
                    vendor: Some(Vendor::ConnectX(0x93)),
                });
            }
        }
    }
    faults.extend(EventType::ALL.iter().map(|&event| Fault::Event(event)));
    faults.extend(CmEvent::ALL.iter().map(|&event| Fault::Cm(event)));
    faults.extend((0..140).map(Fault::Errno));
    faults.extend([Fault::UnknownEvent(20), Fault::UnknownCm(16)]);
    faults.extend([
        Fault::PeerRecovery,
        Fault::PeerClosed,
        Fault::PeerLost,
        Fault::PeerRestarted,
        Fault::PeerGaveUp(Fault::RecvLimitExceeded.without_circumstances()),
        Fault::DeadlineMissed,
        Fault::KeepAliveMissed,
        Fault::RecvLimitExceeded,
        Fault::Cancelled,
    ]);
    faults
}

#[test]
fn families_have_as_many_values_as_the_verbs() {
    assert_eq!(WcStatus::ALL.len(), 24);
    assert_eq!(EventType::ALL.len(), 20);
    assert_eq!(CmEvent::ALL.len(), 16);
    for number in 0..=u8::MAX {
        let named = [
            WcStatus::from_number(number).map(WcStatus::number),
            EventType::from_number(number).map(EventType::number),
            CmEvent::from_number(number).map(CmEvent::number),
            Errno::from_number(number).map(Errno::number),
        ];
        assert!(named.iter().flatten().all(|&actual| actual == number));
    }
}

#[test]
fn every_text_is_a_sentence() {
    for fault in every_fault() {
        let class = classify(fault);
        for text in [
            fault.text(),
            class.cause,
            class.advice,
            class.scope.text(),
            class.blame.text(),
            class.retry.text(),
            class.execution.text(),
            class.recovery.text(),
        ] {
            let good = (5..400).contains(&text.len())
                && text.ends_with('.')
                && !text.contains("  ")
                && !text.contains('\n')
                && !text.starts_with(' ');
            assert!(good, "{fault}: {text:?}");
            assert_eq!(text.as_c_str().to_str(), Ok(text.as_str()));
        }
        let name = fault.name();
        let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        assert!(!name.is_empty() && name.chars().all(upper), "{name}");
    }
}

/// The fields of every class are consistent with each other.
#[test]
fn classes_are_consistent() {
    for fault in every_fault() {
        let class = classify(fault);
        let what = format!("{fault}: {class:?}");
        let broken = !matches!(class.scope, Scope::None | Scope::Request);
        assert_eq!(broken, class.recovery != Recovery::None, "{what}");
        let fits = match class.recovery {
            Recovery::None => !broken,
            Recovery::SqeToRts => class.scope == Scope::Qp,
            Recovery::ResetQp => matches!(class.scope, Scope::Qp | Scope::Connection),
            Recovery::RebuildCq => class.scope == Scope::Cq,
            Recovery::RebuildSrq | Recovery::RefillSrq => class.scope == Scope::Srq,
            Recovery::WaitForPort => class.scope == Scope::Port,
            Recovery::Resolve | Recovery::RejoinMulticast => {
                matches!(class.scope, Scope::Path | Scope::Port)
            }
            Recovery::LoadAlternatePath => class.scope == Scope::Path,
            Recovery::Reconnect | Recovery::CloseLink => class.scope == Scope::Connection,
            Recovery::CloseDevice | Recovery::DestroyId => class.scope == Scope::Device,
        };
        assert!(fits, "{what}");
        if class.scope == Scope::None {
            let quiet = matches!(class.blame, Blame::Nobody | Blame::Unknown);
            assert!(quiet && class.retry == Retry::DoesNotApply, "{what}");
        }
        // Only a mistake of this side makes a request fail in every case.
        if class.retry == Retry::Never {
            let mistake = matches!(class.blame, Blame::LocalProgram | Blame::Configuration);
            assert!(mistake, "{what}");
        }
        if class.execution == Execution::Executed {
            let success = matches!(
                fault,
                Fault::Status {
                    status: WcStatus::Success,
                    ..
                }
            );
            assert!(success, "{what}");
        }
    }
}

/// A failed request affects its queue pair, on every queue of every transport; the completion queue keeps
/// working. Only failed sends of UC and UD take the queue pair to SQE.
#[test]
fn failed_requests_are_the_queue_pairs_matter() {
    for &status in WcStatus::ALL {
        for transport in TRANSPORTS {
            for queue in queues() {
                let class = of_status(status, transport, queue);
                let unreliable = ["UC", "UD"].contains(&transport.name());
                let sent = matches!(queue, WorkQueue::Send(_));
                let expected = match status.name() {
                    "SUCCESS" => (Scope::None, Recovery::None),
                    "TM_RNDV_INCOMPLETE" => (Scope::Request, Recovery::None),
                    _ if unreliable && sent => (Scope::Qp, Recovery::SqeToRts),
                    _ => (Scope::Qp, Recovery::ResetQp),
                };
                let actual = (class.scope, class.recovery);
                assert_eq!(actual, expected, "{status} {transport} {queue:?}");
            }
        }
    }
}

#[test]
fn events_reach_as_far_as_the_rules_say() {
    let mut seen = 0;
    for (names, scope, recovery) in [
        ("CQ_ERR", Scope::Cq, Recovery::RebuildCq),
        (
            "QP_FATAL QP_REQ_ERR QP_ACCESS_ERR WQ_FATAL",
            Scope::Qp,
            Recovery::ResetQp,
        ),
        ("SRQ_ERR", Scope::Srq, Recovery::RebuildSrq),
        ("SRQ_LIMIT_REACHED", Scope::Srq, Recovery::RefillSrq),
        ("DEVICE_FATAL", Scope::Device, Recovery::CloseDevice),
        ("PORT_ERR", Scope::Port, Recovery::WaitForPort),
        (
            "GID_CHANGE LID_CHANGE PKEY_CHANGE",
            Scope::Port,
            Recovery::Resolve,
        ),
        (
            "SM_CHANGE CLIENT_REREGISTER",
            Scope::Port,
            Recovery::RejoinMulticast,
        ),
        (
            "PATH_MIG PATH_MIG_ERR",
            Scope::Path,
            Recovery::LoadAlternatePath,
        ),
        (
            "SQ_DRAINED COMM_EST PORT_ACTIVE QP_LAST_WQE_REACHED",
            Scope::None,
            Recovery::None,
        ),
    ] {
        for name in names.split(' ') {
            let mut named = EventType::ALL.iter().filter(|event| event.name() == name);
            let event = *named.next().expect(name);
            let class = classify(Fault::Event(event));
            assert_eq!((class.scope, class.recovery), (scope, recovery), "{event}");
            // Every event that breaks nothing ends a wait.
            let unblocks = class.cause.contains("may go on");
            assert_eq!(unblocks, scope == Scope::None, "{event}");
            seen += 1;
        }
    }
    assert_eq!(seen, EventType::ALL.len());
}

#[test]
fn cm_events_reach_as_far_as_the_rules_say() {
    for &event in CmEvent::ALL {
        let class = classify(Fault::Cm(event));
        let expected = match event.name() {
            "DEVICE_REMOVAL" => (Scope::Device, Recovery::DestroyId),
            "DISCONNECTED" | "CONNECT_ERROR" | "UNREACHABLE" | "REJECTED" => {
                (Scope::Connection, Recovery::Reconnect)
            }
            "ADDR_ERROR" | "ROUTE_ERROR" | "ADDR_CHANGE" => (Scope::Path, Recovery::Resolve),
            "MULTICAST_ERROR" => (Scope::Path, Recovery::RejoinMulticast),
            _ => (Scope::None, Recovery::None),
        };
        assert_eq!((class.scope, class.recovery), expected, "{event}");
    }
    let flushed = classify(Fault::Cm(CmEvent::Disconnected));
    assert_eq!(flushed.execution, Execution::Unknown);
}

/// What a status proves about the execution at the peer, for sends of reliable connections.
#[test]
fn execution_is_claimed_only_where_the_status_proves_it() {
    use WcStatus::*;
    for &status in WcStatus::ALL {
        for queue in queues() {
            let actual = of_status(status, QpType::Rc, queue).execution;
            let WorkQueue::Send(opcode) = queue else {
                assert_eq!(actual, Execution::DoesNotApply, "{status} {queue:?}");
                continue;
            };
            use WrOpcode::*;
            let answered = matches!(
                opcode,
                None | Some(RdmaRead | AtomicCmpAndSwp | AtomicFetchAndAdd)
            );
            let expected = match status {
                Success => Execution::Executed,
                // The peer refused the request before it executed anything.
                RemAccessErr | RemInvReqErr | RnrRetryExcErr => Execution::NotExecuted,
                // Detected locally, before the request was sent.
                LocQpOpErr | MwBindErr => Execution::NotExecuted,
                // Detected locally: before the request was sent, or when the response arrived.
                LocLenErr | LocProtErr if answered => Execution::Unknown,
                LocLenErr | LocProtErr => Execution::NotExecuted,
                _ => Execution::Unknown,
            };
            assert_eq!(actual, expected, "{status} {queue:?}");
        }
    }
}

/// Sends of UC and UD are not acknowledged.
#[test]
fn a_send_of_an_unreliable_transport_is_not_known_to_have_arrived() {
    for transport in [QpType::Uc, QpType::Ud] {
        let actual = of_status(WcStatus::Success, transport, WorkQueue::Send(None));
        assert_eq!(actual.execution, Execution::Unknown);
    }
}

/// Requests that need only time or a recovery may be repeated; invalid requests may not.
#[test]
fn trying_again_helps_against_what_passes() {
    use WcStatus::*;
    for status in [
        RetryExcErr,
        RnrRetryExcErr,
        RespTimeoutErr,
        WrFlushErr,
        RemAbortErr,
    ] {
        let class = of_status(status, QpType::Rc, WorkQueue::Send(None));
        assert_eq!(class.retry, Retry::Helps, "{status}");
    }
    for status in [LocLenErr, LocQpOpErr, LocProtErr, MwBindErr] {
        let class = of_status(status, QpType::Rc, WorkQueue::Send(None));
        assert_eq!(class.retry, Retry::Never, "{status}");
        assert_eq!(class.blame, Blame::LocalProgram, "{status}");
    }
    for status in [RemInvReqErr, RemAccessErr, RemOpErr] {
        let class = of_status(status, QpType::Rc, WorkQueue::Send(None));
        assert_eq!(class.retry, Retry::AfterRepair, "{status}");
    }
}

/// Both ends blame the requester for an access that is not allowed.
#[test]
fn both_ends_blame_the_requester() {
    for (here, there) in [
        (WcStatus::RemInvReqErr, EventType::QpReqErr),
        (WcStatus::RemAccessErr, EventType::QpAccessErr),
    ] {
        let here = of_status(here, QpType::Rc, WorkQueue::Send(None));
        assert_eq!(here.blame, Blame::LocalProgram);
        assert_eq!(classify(Fault::Event(there)).blame, Blame::RemoteProgram);
    }
}

/// ConnectX's vendor syndrome changes the class only in the documented case.
#[test]
fn a_vendors_code_changes_nothing_but_what_is_known_of_it() {
    for &status in WcStatus::ALL {
        for queue in queues() {
            for code in [0, 0x92, 0x93, 0x94, 0x98, 0x99, 0x9a, 0xff] {
                let refined = classify(Fault::Status {
                    status,
                    transport: QpType::Rc,
                    queue,
                    vendor: Some(Vendor::ConnectX(code)),
                });
                let known = status == WcStatus::RemAbortErr
                    && queue == WorkQueue::SharedRecv
                    && [0x93, 0x99].contains(&code);
                if known {
                    let actual = (refined.scope, refined.recovery, refined.retry);
                    assert_eq!(actual, (Scope::Request, Recovery::None, Retry::Helps));
                } else {
                    let plain = of_status(status, QpType::Rc, queue);
                    assert_eq!(refined, plain, "{status} {queue:?} {code:#x}");
                }
            }
        }
    }
}

#[test]
fn unknown_numbers_are_classified() {
    for number in [24, 100, 255, 256, 256 + 12, u32::MAX] {
        let status = Fault::status(number, QpType::Rc, WorkQueue::Recv, None);
        assert_eq!(status.name().as_str(), "GENERAL_ERR");
    }
    for number in [20, 255, 256, 256 + 8, u32::MAX] {
        assert_eq!(Fault::event(number), Fault::UnknownEvent(number));
    }
    for number in [16, 19, 255, 256 + 11, u32::MAX] {
        assert_eq!(Fault::cm(number), Fault::UnknownCm(number));
    }
    for fault in [Fault::event(77), Fault::cm(77)] {
        let class = classify(fault);
        assert_eq!(fault.to_string(), "UNKNOWN (77)");
        assert_eq!((class.scope, class.blame), (Scope::None, Blame::Unknown));
    }
    for number in [3, -3, 133, 4096, i32::MAX, i32::MIN] {
        let class = classify(Fault::Errno(number));
        assert_eq!((class.scope, class.blame), (Scope::Request, Blame::Unknown));
        assert_eq!(class.execution, Execution::Unknown);
    }
    assert_eq!(classify(Fault::Errno(0)).scope, Scope::None);
}

#[test]
fn error_numbers_may_be_negated() {
    for &errno in Errno::ALL {
        let number = i32::from(errno.number());
        assert_eq!(Errno::from_errno(number), Some(errno));
        assert_eq!(
            classify(Fault::Errno(number)),
            classify(Fault::Errno(-number))
        );
    }
}

/// `classify` can be evaluated at compile time, so it cannot panic or depend on run-time state.
#[test]
fn classes_are_constants() {
    const CLASS: Class = classify(Fault::event(0));
    assert_eq!(CLASS.scope, Scope::Cq);
}
