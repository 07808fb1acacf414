//! From what is known at the end of a life of the connection to what became of each request.

use super::status::{Behind, Itself, Kind, says};
use super::{Doubt, Outcome, Replay};
use crate::wr::{WcStatus, WrOpcode};

/// A send request, and its place in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Greater than that of every request posted before it.
    pub sequence: u64,
    /// How many requests that [consume a receive](consumes_receive) were posted before it since the
    /// connection began: the number, from zero, of the receive that it would consume.
    pub ordinal: u64,
    /// What it asks for.
    pub operation: WrOpcode,
    /// Posted with [`SendFlags::FENCE`](crate::wr::SendFlags::FENCE).
    pub fenced: bool,
}

/// Whether an operation consumes a receive at the peer.
pub const fn consumes_receive(operation: WrOpcode) -> bool {
    matches!(Kind::of(operation), Kind::Consuming)
}

/// How many receives of the peer its completions say were consumed, of those that ended well, since
/// the connection began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consumed {
    /// So many.
    Exactly(u64),
    /// So many, or more: completions of the peer were lost.
    AtLeast(u64),
    /// The peer cannot be asked any more.
    Unknown,
}

/// The first completion with an error of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FirstFailure {
    /// Of which request.
    pub sequence: u64,
    /// Its status; not SUCCESS.
    pub status: WcStatus,
}

/// What is known when the queue pairs at both ends have been reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Evidence {
    /// Every request below this sequence was told to have ended well: by a completion of its own, or
    /// by one behind it that ended well.
    pub completed: u64,
    /// The first completion with an error; `None` when there was none.
    pub failed: Option<FirstFailure>,
    /// The completion queue lost entries, or cannot be trusted: it overran.
    pub entries_lost: bool,
    /// What the peer says.
    pub consumed: Consumed,
    /// READs and atomics that the queue pair has outstanding at the most
    /// ([`QpAttr::max_rd_atomic`](crate::qp::QpAttr)); `None` where the device is not known to hold
    /// to it.
    pub read_depth: Option<u8>,
}

/// What the evidence says of every request of one life of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Everything below was executed and acknowledged.
    settled: u64,
    failed: Option<FirstFailure>,
    /// The device has begun nothing from here on.
    not_begun: u64,
    /// The peer has executed nothing from here on.
    not_at_peer: u64,
    consumed: Consumed,
    contradicted: bool,
    /// The last request that may have been executed and that others can notice.
    noticeable: Option<u64>,
}

/// No request has this sequence.
const NEVER: u64 = u64::MAX;

impl Verdict {
    /// The verdict over `requests`: all that were posted and are not below
    /// [`completed`](Evidence::completed), oldest first. Goes over them three times.
    pub fn new<I>(evidence: &Evidence, requests: I) -> Self
    where
        I: IntoIterator<Item = Request>,
        I::IntoIter: Clone,
    {
        let requests = requests.into_iter();
        let told = evidence.failed.filter(|failed| {
            // Where entries were lost, the one that says why the queue pair failed may be among
            // them, and a flush is not the first failure.
            !evidence.entries_lost
                || !matches!(failed.status, WcStatus::WrFlushErr | WcStatus::FatalErr)
        });
        let mut verdict = Self {
            settled: told.map_or(evidence.completed, |failed| {
                failed.sequence.max(evidence.completed)
            }),
            failed: told,
            not_begun: NEVER,
            not_at_peer: NEVER,
            consumed: evidence.consumed,
            contradicted: false,
            noticeable: None,
        };
        // A count that is believed may show more fences that did not open.
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

    /// Finds from where on nothing was begun or executed, and between which numbers the peer's count
    /// has to be.
    fn survey(
        &mut self,
        evidence: &Evidence,
        requests: impl Iterator<Item = Request>,
        consumed: Consumed,
    ) -> (u64, u64) {
        // An entry that was lost may tell of the result that opened a fence: but not of a request that
        // was flushed, nor of one behind it.
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

    /// A count that cannot be is not used: nothing that a peer writes is trusted.
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

    /// Whether the peer's count contradicts what was acknowledged, refused or posted, and was left
    /// out of account.
    pub fn contradicted(&self) -> bool {
        self.contradicted
    }

    /// What became of a request.
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
            // It has no result and never will, and leaves nothing at the peer.
            Itself::Unknown if kind == Kind::Read => Outcome::Failed(failed.status),
            Itself::Unknown | Itself::Silent => match by_order {
                Outcome::NotExecuted if failed.status != WcStatus::WrFlushErr => {
                    Outcome::Failed(failed.status)
                }
                _ => by_order,
            },
        }
    }

    /// What became of a request by its place alone.
    fn by_order(&self, request: &Request) -> Outcome {
        let kind = Kind::of(request.operation);
        let passed = match self.consumed {
            Consumed::Exactly(count) | Consumed::AtLeast(count) => count > request.ordinal,
            Consumed::Unknown => false,
        };
        if passed {
            return match kind {
                Kind::Read | Kind::Atomic => Outcome::InDoubt(Doubt::ResultLost),
                _ => Outcome::Done,
            };
        }
        if request.sequence >= self.not_begun {
            return Outcome::NotExecuted;
        }
        match kind {
            Kind::Nothing => return Outcome::NotExecuted,
            Kind::Local => return Outcome::InDoubt(Doubt::Local),
            _ if request.sequence >= self.not_at_peer => return Outcome::NotExecuted,
            _ => {}
        }
        match self.consumed {
            // The first receive that was not consumed is this request's, or an earlier one's.
            Consumed::Exactly(count) if kind == Kind::Consuming || count < request.ordinal => {
                Outcome::NotExecuted
            }
            Consumed::Exactly(_) => Outcome::InDoubt(Doubt::NoAnswer),
            Consumed::AtLeast(_) => Outcome::InDoubt(Doubt::PeerLostCount),
            Consumed::Unknown if self.contradicted => Outcome::InDoubt(Doubt::CountContradicts),
            Consumed::Unknown => Outcome::InDoubt(Doubt::PeerGone),
        }
    }

    /// Whether the request is to be posted again, in its old place among those that are, rather than
    /// told. See [`Replay`].
    pub fn replays(&self, request: &Request, policy: Replay) -> bool {
        if policy == Replay::Surface {
            return false;
        }
        let kind = Kind::of(request.operation);
        // What a READ brings now is what it would have brought, as far as this end can tell.
        let undisturbed = policy == Replay::Anyway
            || kind != Kind::Read
            || self.noticeable.is_none_or(|last| last < request.sequence);
        match self.of(request) {
            Outcome::Done => false,
            Outcome::NotExecuted => true,
            Outcome::Failed(status) => undisturbed && super::may_succeed(status, request.operation),
            Outcome::InDoubt(_) => match kind {
                Kind::Read => undisturbed,
                Kind::Write => policy == Replay::Anyway,
                _ => false,
            },
        }
    }
}
