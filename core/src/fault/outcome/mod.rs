//! What became of the requests that were in flight when a reliable connection failed.
//!
//! [`Verdict`] answers from evidence alone: the order of posting, the first completion with an error,
//! and how many receives the peer's completions say were consumed. It holds for RC and XRC. On UC and
//! UD a completion says that a message left, and nothing says more.
//!
//! # What order says
//!
//! - The peer executes requests in the order in which they were posted, and acknowledges in that
//!   order; an acknowledgement, a READ's response too, stands for everything before it (IBTA volume 1,
//!   9.7.5.1, 9.4.4). So completions come in the order of posting, and the first one with an error
//!   divides the queue: everything before it was executed and acknowledged. [`Outcome::Done`].
//! - **The peer's count.** SENDs and WRITE_WITH_IMM consume a receive each. When both ends have been
//!   reset nothing is under way any more, and the peer's count of receives that ended well is final.
//!   Let it be `n`. The `n`-th request that consumes a receive was executed, so everything before it
//!   was. The next one was not, so nothing behind it was. Only WRITEs, READs and atomics between the
//!   two stay in doubt.
//! - **A fence.** A request with FENCE is not begun before all READs and atomics before it have their
//!   results, and the device keeps no more than `max_rd_atomic` of them outstanding. When the result
//!   of one never came, because it was flushed or the count shows that it was not executed, the first
//!   request that had to wait for it was not begun, and nothing behind it.
//! - Both ends reset with fresh packet numbers, so that no late packet is executed afterwards.
//!
//! # Status by status, of the first failed completion
//!
//! | status | its request | those behind it |
//! |---|---|---|
//! | LOC_QP_OP, MW_BIND; LOC_LEN, LOC_PROT of all but READs and atomics | not executed: found before it left as a whole | not begun |
//! | LOC_LEN, LOC_PROT of READs and atomics | may have been executed: the result's memory is touched when the response comes | unknown |
//! | REM_INV_REQ, REM_ACCESS | not executed: a NAK | not executed by the peer |
//! | RNR_RETRY_EXC | not executed: every try met a peer without a receive | not executed by the peer |
//! | REM_OP | unknown: the peer had begun it | not executed by the peer: a NAK |
//! | RETRY_EXC, RESP_TIMEOUT | unknown: request or acknowledgement was lost | unknown: they may have been under way with it |
//! | LOC_ACCESS, BAD_RESP | unknown: an answer came, and could not be used | unknown |
//! | WR_FLUSH, FATAL | unknown: the queue pair stopped for another reason | unknown |
//! | GENERAL, REM_ABORT, TM, TM_RNDV_INCOMPLETE, and the obsolete ones (EEC, RDD, RD) | unknown | unknown |
//!
//! A flush behind another failure says nothing by itself: requests are sent while earlier ones are
//! not acknowledged yet, so that one which is flushed may have been executed. RNR and the NAKs are the
//! exception, for they refuse the packets behind their own, and so are errors found before the
//! request left, for the device works its queue off in order.
//!
//! # Operation by operation
//!
//! | operation | executed means | not executed, yet |
//! |---|---|---|
//! | SEND, SEND_WITH_IMM, SEND_WITH_INV | its receive completed well | a receive that was flushed may hold a part of the message |
//! | WRITE_WITH_IMM | data written, its receive completed well | the first one refused may have written a part of its data, or all |
//! | WRITE | data written | one that failed, or is in doubt, may have written a part |
//! | READ | the peer answered; nothing there changes | its local memory may hold a part |
//! | atomics | the peer's memory changed | — |
//! | LOCAL_INV, BIND_MW | the local key changed; no peer is asked | may be done while earlier requests wait for their acknowledgement |
//! | NOP | nothing | — |
//!
//! Inline requests have no local key that could fail; apart from that inline data changes nothing: the
//! entry keeps it, so that it can be posted again.
//!
//! # When counts cannot be had
//!
//! A peer whose receive completion queue died knows a lower bound: what is below it was executed, the
//! rest stays in doubt ([`Doubt::PeerLostCount`]). A count that contradicts what was acknowledged,
//! refused or posted is not used at all ([`Doubt::CountContradicts`]). Where the own completion queue
//! lost entries, a flush is not taken for the first failure: the failure may be among those lost. It
//! still says that its request, and those behind it, have no result.
//!
//! # How it is used
//!
//! ```
//! use bellwire_core::fault::WcStatus;
//! use bellwire_core::fault::outcome::*;
//! use bellwire_core::wr::WrOpcode;
//!
//! // A WRITE, a SEND, a WRITE, a SEND; none acknowledged. Ten receives were consumed before.
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
//!     // The peer has one more.
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

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Executed; the result of a READ or atomic has come.
    Done,
    /// Failed with this status, and not executed as a whole. A WRITE may have changed a part of its
    /// target; a READ may have been executed, which leaves nothing.
    Failed(WcStatus),
    /// Not executed, by no fault of its own.
    NotExecuted,
    /// It cannot be known, or its result is lost.
    InDoubt(Doubt),
}

/// Why an outcome stays in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// Executed or not: no acknowledgement came, and it stands behind the last request known to be
    /// executed and before the first known not to be.
    NoAnswer,
    /// A READ or atomic that was executed. Its result did not arrive, and an atomic's is lost for good.
    ResultLost,
    /// Executed or not: completions of the peer were lost, so that its count is a lower bound.
    PeerLostCount,
    /// Executed or not: the peer's count contradicts what is known at this end.
    CountContradicts,
    /// Executed or not: the peer cannot be asked any more.
    PeerGone,
    /// A local operation that was done or not before the queue pair stopped.
    Local,
}

impl Doubt {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::NoAnswer,
        Self::ResultLost,
        Self::PeerLostCount,
        Self::CountContradicts,
        Self::PeerGone,
        Self::Local,
    ];

    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoAnswer => {
                "no acknowledgement came, and no later request shows what became of it"
            }
            Self::ResultLost => "it was executed, and its result did not arrive",
            Self::PeerLostCount => "the peer lost completions of the receives that would tell",
            Self::CountContradicts => "the peer's count of receives contradicts what is known here",
            Self::PeerGone => "the peer is gone and cannot tell",
            Self::Local => {
                "a local operation that may have been done before the queue pair stopped"
            }
        }
    }
}

/// What is to be done with a request that did not end well, when the connection works again.
///
/// | outcome | Surface | IfSafe | Anyway |
/// |---|---|---|---|
/// | Done | tell | tell | tell |
/// | NotExecuted | tell | again | again |
/// | Failed, can succeed later | tell | again | again |
/// | Failed, cannot | tell | tell | tell |
/// | InDoubt: READ | tell | again, if no SEND, WRITE or atomic behind it may have been executed | again |
/// | InDoubt: WRITE | tell | tell: the peer may have seen it, and changed the memory since | again |
/// | InDoubt: SENDs, WRITE_WITH_IMM, atomics, LOCAL_INV, BIND_MW | tell | tell | tell |
///
/// A SEND behind a READ may be what tells the peer that the memory is free: reading it again then
/// gives something else. So a READ whose [result was lost](Doubt::ResultLost), which a later request
/// shows to have been executed, is run again under [`Anyway`](Self::Anyway) only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Replay {
    /// Tell the program.
    #[default]
    Surface,
    /// Post it again where that cannot be told from posting it once.
    IfSafe,
    /// As [`IfSafe`](Self::IfSafe), and WRITEs and READs in doubt as well: their target and source do
    /// not change under them, or that does no harm.
    Anyway,
}

/// Whether a send request that failed with this status can succeed later as it is.
fn may_succeed(status: WcStatus, operation: WrOpcode) -> bool {
    let fault = Fault::Status {
        status,
        transport: QpType::Rc,
        queue: WorkQueue::Send(Some(operation)),
        vendor: None,
    };
    matches!(classify(fault).retry, Retry::Helps | Retry::AfterRepair)
}
