//! Derives the outcome of each request from the evidence that is left when a connection ends.
//!
//! Nothing is allocated: [`Verdict::new`] iterates three times over the requests in flight, and
//! [`Verdict::of`] is a pure function of a request.

use super::status::{Behind, Itself, Kind, says};
use super::{Doubt, Outcome, Replay};
use crate::op::{Repeat, WrOpcode};
use crate::wr::WcStatus;

/// A send request, and its place in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Sequence number; greater than that of every request posted earlier.
    pub sequence: u64,
    /// How many requests that [consume a receive](consumes_receive) were posted before it since the
    /// connection began: the index, from zero, of the receive that it would consume.
    pub ordinal: u64,
    /// The operation.
    pub operation: WrOpcode,
    /// Posted with [`SendFlags::FENCE`](crate::wr::SendFlags::FENCE).
    pub fenced: bool,
}

/// Whether an operation consumes a receive at the peer.
pub const fn consumes_receive(operation: WrOpcode) -> bool {
    operation.consumes_receive()
}

/// How many receives of the peer were consumed and completed successfully since the connection began,
/// according to the peer's completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consumed {
    /// Exactly this many.
    Exactly(u64),
    /// This many or more: the peer lost completions.
    AtLeast(u64),
    /// The peer cannot be asked any more.
    Unknown,
}

/// The first completion with an error of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FirstFailure {
    /// The sequence number of its request.
    pub sequence: u64,
    /// The status; not SUCCESS.
    pub status: WcStatus,
}

/// What is known when the queue pairs at both ends have been reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Evidence {
    /// Every request below this sequence number was reported as successful: by a completion of its own, or by
    /// a later successful one.
    pub completed: u64,
    /// The first completion with an error; `None` when there was none.
    pub failed: Option<FirstFailure>,
    /// Whether the completion queue overran: it lost entries, or cannot be trusted.
    pub entries_lost: bool,
    /// The count that the peer reports.
    pub consumed: Consumed,
    /// The maximum number of outstanding READs and atomics of the queue pair
    /// ([`QpAttr::max_rd_atomic`](crate::qp::QpAttr)); `None` if the device is not known to respect it.
    pub read_depth: Option<u8>,
}

/// What the evidence proves about every request of one life of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Every request below this was executed and acknowledged.
    settled: u64,
    failed: Option<FirstFailure>,
    /// The device began no request from this one on.
    not_begun: u64,
    /// The peer executed no request from this one on.
    not_at_peer: u64,
    consumed: Consumed,
    contradicted: bool,
    /// The last request that may have been executed and whose effect others can notice.
    noticeable: Option<u64>,
}

/// A sequence number that no request has.
const NEVER: u64 = u64::MAX;

impl Verdict {
    /// Computes the verdict for `requests`: all posted requests that are not below
    /// [`completed`](Evidence::completed), oldest first. Iterates over them three times.
    pub fn new<I>(evidence: &Evidence, requests: I) -> Self
    where
        I: IntoIterator<Item = Request>,
        I::IntoIter: Clone,
    {
        let requests = requests.into_iter();
        let reported = evidence.failed.filter(|failed| {
            // If entries were lost, the one with the cause of the queue pair's failure may be among them, and
            // a flush is not the first failure.
            !evidence.entries_lost
                || !matches!(failed.status, WcStatus::WrFlushErr | WcStatus::FatalErr)
        });
        let mut verdict = Self {
            settled: reported.map_or(evidence.completed, |failed| {
                failed.sequence.max(evidence.completed)
            }),
            failed: reported,
            not_begun: NEVER,
            not_at_peer: NEVER,
            consumed: evidence.consumed,
            contradicted: false,
            noticeable: None,
        };
        // A count that is accepted may show further requests that were held back by a fence.
        let bounds = verdict.survey(evidence, requests.clone(), Consumed::Unknown);
        verdict.check_count(bounds);
        verdict.survey(evidence, requests.clone(), verdict.consumed);
        for request in requests {
            if Kind::of(request.operation).noticeable()
                && matches!(verdict.of(&request), Outcome::Done | Outcome::InDoubt(_))
            {
                verdict.noticeable = Some(request.sequence);
            }
        }
        verdict
    }

    /// Finds the requests from which on nothing was begun or executed, and the range in which the peer's
    /// count has to be.
    fn survey(
        &mut self,
        evidence: &Evidence,
        requests: impl Iterator<Item = Request>,
        consumed: Consumed,
    ) -> (u64, u64) {
        // A lost entry may have reported the result that a fence waited for, but not the result of a flushed
        // request or of one behind it.
        let unfinished = match (evidence.entries_lost, evidence.failed) {
            (false, _) => self.settled,
            (true, Some(failed)) => failed.sequence,
            (true, None) => NEVER,
        };
        let mut unanswered = 0;
        let mut least = None;
        let mut most = None;
        let mut posted = 0;
        for request in requests {
            let kind = Kind::of(request.operation);
            posted = request.ordinal + u64::from(kind == Kind::Consuming);
            if request.sequence < self.settled {
                continue;
            }
            least.get_or_insert(request.ordinal);
            let depth_reached = kind.has_result()
                && evidence
                    .read_depth
                    .is_some_and(|depth| unanswered >= u32::from(depth.max(1)));
            let waits = request.fenced && unanswered > 0 || depth_reached;
            if waits {
                self.not_begun = self.not_begun.min(request.sequence);
                most.get_or_insert(request.ordinal);
            }
            let not_executed =
                matches!(consumed, Consumed::Exactly(count) if count < request.ordinal);
            let no_result = request.sequence >= unfinished || not_executed;
            unanswered += u32::from(kind.has_result() && no_result);
            let Some(failed) = self.failed.filter(|f| f.sequence == request.sequence) else {
                continue;
            };
            let (itself, behind) = says(failed.status, kind);
            match behind {
                Behind::NotBegun => self.not_begun = self.not_begun.min(request.sequence + 1),
                Behind::NotAtPeer => self.not_at_peer = request.sequence + 1,
                Behind::Unknown => continue,
            }
            most.get_or_insert(match itself {
                Itself::NotExecuted => request.ordinal,
                Itself::Unknown | Itself::Silent => posted,
            });
        }
        (least.unwrap_or(posted), most.unwrap_or(posted).min(posted))
    }

    /// Discards a count that is impossible: data from the peer is not trusted.
    fn check_count(&mut self, (least, most): (u64, u64)) {
        let possible = match self.consumed {
            Consumed::Exactly(count) => (least..=most).contains(&count),
            Consumed::AtLeast(count) => count <= most,
            Consumed::Unknown => true,
        };
        if !possible {
            self.contradicted = true;
            self.consumed = Consumed::Unknown;
        }
    }

    /// Whether the peer's count contradicted what was acknowledged, refused or posted, and was ignored.
    pub fn contradicted(&self) -> bool {
        self.contradicted
    }

    /// The outcome of a request.
    pub fn of(&self, request: &Request) -> Outcome {
        if request.sequence < self.settled {
            return Outcome::Done;
        }
        let by_order = self.by_order(request);
        let Some(failed) = self.failed.filter(|f| f.sequence == request.sequence) else {
            return by_order;
        };
        let kind = Kind::of(request.operation);
        match says(failed.status, kind).0 {
            Itself::NotExecuted => Outcome::Failed(failed.status),
            // A READ that failed has no result and never will, and changes nothing at the peer.
            Itself::Unknown if kind == Kind::Read => Outcome::Failed(failed.status),
            Itself::Unknown | Itself::Silent => match by_order {
                Outcome::NotExecuted if failed.status != WcStatus::WrFlushErr => {
                    Outcome::Failed(failed.status)
                }
                _ => by_order,
            },
        }
    }

    /// The outcome of a request derived from its position alone.
    fn by_order(&self, request: &Request) -> Outcome {
        let kind = Kind::of(request.operation);
        let passed = match self.consumed {
            Consumed::Exactly(count) | Consumed::AtLeast(count) => count > request.ordinal,
            Consumed::Unknown => false,
        };
        if passed {
            return match kind {
                Kind::Read | Kind::Atomic => Outcome::InDoubt(Doubt::ResultLost),
                Kind::Nothing | Kind::Local | Kind::Write | Kind::Consuming => Outcome::Done,
            };
        }
        if request.sequence >= self.not_begun {
            return Outcome::NotExecuted;
        }
        match kind {
            Kind::Nothing => return Outcome::NotExecuted,
            Kind::Local => return Outcome::InDoubt(Doubt::Local),
            Kind::Read | Kind::Atomic | Kind::Write | Kind::Consuming => {
                if request.sequence >= self.not_at_peer {
                    return Outcome::NotExecuted;
                }
            }
        }
        match self.consumed {
            // The first receive that was not consumed belongs to this request or to an earlier one.
            Consumed::Exactly(count) if kind == Kind::Consuming || count < request.ordinal => {
                Outcome::NotExecuted
            }
            Consumed::Exactly(_) => Outcome::InDoubt(Doubt::NoAnswer),
            Consumed::AtLeast(_) => Outcome::InDoubt(Doubt::PeerLostCount),
            Consumed::Unknown if self.contradicted => Outcome::InDoubt(Doubt::CountContradicts),
            Consumed::Unknown => Outcome::InDoubt(Doubt::PeerGone),
        }
    }

    /// Whether the request is to be posted again, in its old position among the replayed requests, rather
    /// than reported. See [`Replay`].
    pub fn replays(&self, request: &Request, policy: Replay) -> bool {
        if policy == Replay::Surface {
            return false;
        }
        // As far as this end knows, a repeated READ returns what the first one would have returned.
        let undisturbed = policy == Replay::Anyway
            || request.operation.row().repeat != Repeat::IfUndisturbed
            || self.noticeable.is_none_or(|last| last < request.sequence);
        match self.of(request) {
            Outcome::Done => false,
            Outcome::NotExecuted => true,
            Outcome::Failed(status) => undisturbed && super::may_succeed(status, request.operation),
            Outcome::InDoubt(_) => match request.operation.row().repeat {
                Repeat::Harmless => true,
                Repeat::IfUndisturbed => undisturbed,
                Repeat::IfAllowed => policy == Replay::Anyway,
                Repeat::Never => false,
            },
        }
    }
}
