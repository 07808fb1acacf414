//! What an end met, and recovered from.

use super::faults::Injection;
use bellwire::fault::Recovery;
use bellwire::fault::plan::{End, EndReason};
use bellwire::link::{FaultReport, Link, RecoveryReport};
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What an end met. Its clones are the same log.
#[derive(Clone, Debug)]
pub struct Log {
    end: &'static str,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    struck: Vec<Injection>,
    /// What struck was not injected: it happened.
    real: bool,
    /// How many faults the link has met.
    seen: u64,
    /// Faults that are not recovered from yet.
    open: Vec<FaultReport>,
    recoveries: Vec<(Vec<FaultReport>, RecoveryReport)>,
    /// Requests that the program has posted again itself.
    resolved: u64,
}

impl Log {
    /// Of the end with this name.
    pub fn new(end: &'static str) -> Self {
        Self {
            end,
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a link.
    pub fn listen(&self, link: &mut Link) {
        let log = self.clone();
        link.on_fault(move |report| {
            let mut state = log.state();
            state.seen += 1;
            if report.class.recovery != Recovery::None {
                state.open.push(*report);
            }
        });
        let log = self.clone();
        link.on_recovered(move |report| {
            let mut state = log.state();
            let faults = std::mem::take(&mut state.open);
            // The first connection is one from nothing, and the last ends with the peer's.
            let gone = matches!(
                report.end,
                End::GaveUp(
                    EndReason::PeerClosed
                        | EndReason::PeerLost
                        | EndReason::PeerRestarted
                        | EndReason::PeerGaveUp(_)
                )
            );
            if !faults.is_empty() && !gone {
                state.recoveries.push((faults, *report));
            }
        });
    }

    /// A fault is let strike, injected or `real`; gives how many the link has met before.
    pub fn struck(&self, injection: Injection, real: bool) -> u64 {
        let mut state = self.state();
        state.struck.push(injection);
        state.real = real;
        state.seen
    }

    /// How many faults the link has met.
    pub fn seen(&self) -> u64 {
        self.state().seen
    }

    /// The program posts a request in doubt again.
    pub fn resolve(&self) {
        self.state().resolved += 1;
    }
}

/// `CQ_ERR (CQ: REBUILD_CQ)`, each once.
fn names(faults: &[FaultReport]) -> String {
    let mut names = Vec::new();
    for FaultReport { fault, class, .. } in faults {
        // The name that docs/faults.md has a section for.
        let name = format!(
            "{fault} ({}: {})",
            class.scope.name(),
            class.recovery.name()
        );
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// A line for each recovery; nothing when there was none.
impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (end, state) = (self.end, self.state());
        if state.struck.is_empty() && state.recoveries.is_empty() && state.open.is_empty() {
            return Ok(());
        }
        let mut struck = String::new();
        for injection in &state.struck {
            write!(struck, " {injection}")?;
        }
        if !struck.is_empty() {
            let how = if state.real { "caused" } else { "injected" };
            writeln!(f, "{end}: {how}{struck}")?;
        }
        for (faults, report) in &state.recoveries {
            let how = match report.end {
                End::Recovered => "recovered".to_owned(),
                End::Degraded(why) => format!("recovered in part ({why:?})"),
                End::GaveUp(why) => format!("gave up ({why})"),
            };
            writeln!(
                f,
                "{end}: {how} from {} in {:.3} ms: requests posted again {}, reported as not executed \
                 or in doubt {}",
                names(faults),
                report.took.as_secs_f64() * 1e3,
                report.replayed,
                report.reported,
            )?;
        }
        if !state.open.is_empty() {
            writeln!(f, "{end}: not recovered from {}", names(&state.open))?;
        }
        if state.resolved != 0 {
            writeln!(
                f,
                "{end}: posted {} notices in doubt again itself",
                state.resolved
            )?;
        }
        Ok(())
    }
}
