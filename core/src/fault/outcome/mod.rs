//! The outcome of each request that was in flight when a reliable connection failed.
//!
//! A [`Verdict`] is derived from three facts only: the order of posting, the first completion with an error,
//! and the number of receives that the peer's completions report as consumed. It applies to RC and XRC. On UC
//! and UD a completion only reports that the message was sent, and there is no further evidence.
//!
//! # What follows from the order
//!
//! - The peer executes requests in the order in which they were posted and acknowledges them in that order.
//!   An acknowledgement, including a READ response, also acknowledges all earlier requests (IBTA volume 1,
//!   9.7.5.1, 9.4.4). So completions arrive in the order of posting, and the first one with an error divides
//!   the queue: all requests before it were executed and acknowledged ([`Outcome::Done`]).
//! - **The peer's count.** Each SEND and WRITE_WITH_IMM consumes a receive. When both ends have been reset
//!   nothing is in flight any more, and the peer's count of receives that completed successfully is final.
//!   Let it be `n`. The `n`-th request that consumes a receive was executed, so all requests before it were
//!   executed too. The next one was not executed, so no request behind it was. Only WRITEs, READs and atomics
//!   between the two stay in doubt.
//! - **A fence.** A request with FENCE is not begun until all READs and atomics before it have their results,
//!   and the device keeps at most `max_rd_atomic` of those outstanding. If one of their results never
//!   arrived, because the request was flushed or the count shows that it was not executed, then the first
//!   request that had to wait for it was not begun, nor was any request behind that one.
//! - Both ends are reset with new PSNs, so no late packet is executed afterwards.
//!
//! # By status of the first failed completion
//!
//! | status | its request | those behind it |
//! |---|---|---|
//! | LOC_QP_OP, MW_BIND; LOC_LEN, LOC_PROT of all but READs and atomics | not executed: the error is detected before the whole request has been sent | not begun |
//! | LOC_LEN, LOC_PROT of READs and atomics | may have been executed: the memory of the result is accessed when the response arrives | unknown |
//! | REM_INV_REQ, REM_ACCESS | not executed: NAK | not executed by the peer |
//! | RNR_RETRY_EXC | not executed: no receive was posted at the peer on any retry | not executed by the peer |
//! | REM_OP | unknown: the peer had begun to execute it | not executed by the peer: NAK |
//! | RETRY_EXC, RESP_TIMEOUT | unknown: the request or its acknowledgement was lost | unknown: they may have been in flight with it |
//! | LOC_ACCESS, BAD_RESP | unknown: a response arrived and could not be used | unknown |
//! | WR_FLUSH, FATAL | unknown: the queue pair stopped for another reason | unknown |
//! | GENERAL, REM_ABORT, TM, TM_RNDV_INCOMPLETE, and the obsolete ones (EEC, RDD, RD) | unknown | unknown |
//!
//! A flushed request behind another failure proves nothing by itself: requests are sent before earlier ones
//! are acknowledged, so a flushed request may have been executed. There are two exceptions: an RNR or other
//! NAK also rejects the packets behind its own, and an error that is detected before the request is sent
//! stops the device, which processes its queue in order.
//!
//! # By operation
//!
//! | operation | executed means | not executed, but |
//! |---|---|---|
//! | SEND, SEND_WITH_IMM, SEND_WITH_INV | its receive completed successfully | a flushed receive may hold a part of the message |
//! | WRITE_WITH_IMM | data written, its receive completed successfully | the first one refused may have written a part of its data, or all |
//! | WRITE | data written | one that failed, or is in doubt, may have written a part |
//! | READ | the peer responded; nothing changes there | its local memory may hold a part |
//! | atomics | the peer's memory changed | — |
//! | LOCAL_INV, BIND_MW | the local key changed; the peer is not involved | may be done while earlier requests wait for their acknowledgement |
//! | NOP | nothing | — |
//!
//! Inline requests have no lkey that could fail. Otherwise inline data makes no difference: the WQE holds the
//! data, so the request can be posted again.
//!
//! # When no exact count is available
//!
//! If the peer's receive completion queue failed, the peer knows only a lower bound: requests below it were
//! executed, the others stay in doubt ([`Doubt::PeerLostCount`]). A count that contradicts what was
//! acknowledged, refused or posted is ignored ([`Doubt::CountContradicts`]). If the local completion queue
//! lost entries, a flush is not taken as the first failure, because the first failure may be among the lost
//! entries. The flush still proves that its request, and those behind it, have no result.
//!
//! # Example
//!
//! ```
//! use bellwire_core::fault::WcStatus;
//! use bellwire_core::fault::outcome::*;
//! use bellwire_core::wr::WrOpcode;
//!
//! // A WRITE, a SEND, a WRITE, a SEND; none acknowledged. Ten receives were consumed earlier.
//! let operations = [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::Send];
//! let mut ordinal = 10;
//! let requests: Vec<Request> = (100..).zip(operations).map(|(sequence, operation)| {
//!     let request = Request { sequence, ordinal, operation, fenced: false };
//!     ordinal += u64::from(consumes_receive(operation));
//!     request
//! }).collect();
//! let evidence = Evidence {
//!     completed: 100,
//!     failed: Some(FirstFailure { sequence: 100, status: WcStatus::RetryExcErr }),
//!     entries_lost: false,
//!     // The peer has consumed one more.
//!     consumed: Consumed::Exactly(11),
//!     read_depth: Some(16),
//! };
//! let verdict = Verdict::new(&evidence, requests.iter().copied());
//! let outcomes: Vec<Outcome> = requests.iter().map(|request| verdict.of(request)).collect();
//! assert_eq!(outcomes, [
//!     Outcome::Done,
//!     Outcome::Done,
//!     Outcome::InDoubt(Doubt::NoAnswer),
//!     Outcome::NotExecuted,
//! ]);
//! assert!(verdict.replays(&requests[3], Replay::IfSafe));
//! assert!(!verdict.replays(&requests[2], Replay::IfSafe));
//! ```

mod status;
#[cfg(test)]
mod tests;
mod verdict;

pub use verdict::{Consumed, Evidence, FirstFailure, Request, Verdict, consumes_receive};

use super::{Fault, Retry, WorkQueue, classify};
use crate::wr::{QpType, WcStatus, WrOpcode};

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Executed; the result of a READ or atomic has arrived.
    Done,
    /// Failed with this status, and not executed as a whole. A WRITE may have changed a part of its target; a
    /// READ may have been executed, which changes nothing at the peer.
    Failed(WcStatus),
    /// Not executed, and not itself the cause of the failure.
    NotExecuted,
    /// The outcome cannot be determined, or the result is lost.
    InDoubt(Doubt),
}

/// Why an outcome stays in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// May have been executed: no acknowledgement arrived, and the request lies between the last request
    /// known to be executed and the first known not to be.
    NoAnswer,
    /// A READ or atomic that was executed, but whose result did not arrive. The result of an atomic is lost
    /// for good.
    ResultLost,
    /// May have been executed: the peer lost completions, so its count is a lower bound.
    PeerLostCount,
    /// May have been executed: the peer's count contradicts this end's.
    CountContradicts,
    /// May have been executed: the peer cannot be asked any more.
    PeerGone,
    /// A local operation that may have been done before the queue pair stopped.
    Local,
    /// May have been executed: the program cancelled it before an acknowledgement arrived.
    Cancelled,
    /// May have been executed: its deadline passed before an acknowledgement arrived.
    DeadlinePassed,
}

impl Outcome {
    /// The outcome of a request that was taken back, for the reason `why`. Evidence that tells what became of the
    /// request stays as it is; only a missing acknowledgement is explained.
    #[must_use]
    pub const fn taken_back(self, why: Doubt) -> Self {
        match self {
            Self::InDoubt(Doubt::NoAnswer) => Self::InDoubt(why),
            told => told,
        }
    }
}

impl Doubt {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::NoAnswer,
        Self::ResultLost,
        Self::PeerLostCount,
        Self::CountContradicts,
        Self::PeerGone,
        Self::Local,
        Self::Cancelled,
        Self::DeadlinePassed,
    ];

    /// The reason in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoAnswer => {
                "no acknowledgement came, and no later request shows what became of it"
            }
            Self::ResultLost => "it was executed, and its result did not arrive",
            Self::PeerLostCount => "the peer lost completions of the receives that would show it",
            Self::CountContradicts => "the peer's count of receives contradicts this end's record",
            Self::PeerGone => "the peer is gone and cannot say",
            Self::Local => {
                "a local operation that may have been done before the queue pair stopped"
            }
            Self::Cancelled => "it was cancelled before an acknowledgement came",
            Self::DeadlinePassed => "its deadline passed before an acknowledgement came",
        }
    }
}

/// What to do with a request that did not complete successfully, once the connection works again.
///
/// | outcome | Surface | IfSafe | Anyway |
/// |---|---|---|---|
/// | Done | report | report | report |
/// | NotExecuted | report | replay | replay |
/// | Failed, can succeed later | report | replay | replay |
/// | Failed, cannot succeed | report | report | report |
/// | InDoubt: READ | report | replay, if no SEND, WRITE or atomic behind it may have been executed | replay |
/// | InDoubt: WRITE | report | report: the peer may have seen it, and changed the memory since | replay |
/// | InDoubt: SENDs, WRITE_WITH_IMM, atomics, LOCAL_INV, BIND_MW | report | report | report |
///
/// A SEND behind a READ may inform the peer that the memory is free; a repeated READ would then return
/// different data. So a READ whose [result was lost](Doubt::ResultLost), and which a later request shows to
/// have been executed, is replayed under [`Anyway`](Self::Anyway) only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Replay {
    /// Report the outcome to the program.
    #[default]
    Surface,
    /// Post it again where the effect cannot be distinguished from posting it once.
    IfSafe,
    /// Like [`IfSafe`](Self::IfSafe), and also replay WRITEs and READs in doubt: the program guarantees that
    /// their target and source do not change meanwhile, or that such a change does no harm.
    Anyway,
}

/// Whether a send request that failed with this status can succeed later without a change.
fn may_succeed(status: WcStatus, operation: WrOpcode) -> bool {
    let fault = Fault::Status {
        status,
        transport: QpType::Rc,
        queue: WorkQueue::Send(Some(operation)),
        vendor: None,
    };
    matches!(classify(fault).retry, Retry::Helps | Retry::AfterRepair)
}
