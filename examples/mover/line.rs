//! What both ends have of the connection.

use super::faults::Faults;
use super::log::Log;
use super::overrun::{self, Overrun};
use anyhow::{Result, anyhow};
use bellwire::fault::outcome::Outcome;
use bellwire::fault::plan::{EndReason, Limits};
use bellwire::link::{Exchange, Link, LinkCompletion, LinkEnd, LinkError, LinkInit, LinkState};
use bellwire::wr::Remote;
use bellwire::{Device, Pd, QpInit, Region};
use bellwire_examples::PeerGone;
use std::time::Duration;

/// An end that is polled.
pub trait Polled {
    /// Its connection.
    fn line(&mut self) -> &mut Line;

    /// Whether all that was posted has been reported.
    fn is_idle(&self) -> bool;

    /// Takes what there is, and carries a recovery on.
    ///
    /// # Errors
    /// A request that failed, a link that has ended.
    fn poll(&mut self) -> Result<()>;
}

/// A link, and what strikes it.
#[derive(Debug)]
pub struct Line {
    pub link: Link,
    pub device: Device,
    pub faults: Faults,
    pub log: Log,
    /// How its completion queue is overrun, where that cannot be injected.
    pub overrun: Option<Overrun>,
    /// The last poll found nothing: of a link that has ended, all has been reported.
    all_reported: bool,
}

/// Outcomes that one poll takes.
const AT_ONCE: usize = 64;

/// How long the last requests may take to be reported.
const CLOSE: Duration = Duration::from_secs(60);

impl Line {
    /// A link that connects as it is polled; the peer may work on the region.
    ///
    /// # Errors
    /// Those of set-up; faults that the device cannot be made to have.
    pub fn new(
        pd: &Pd,
        mut qp: QpInit,
        region: &Region,
        exchange: impl Exchange + 'static,
        (faults, log): (Faults, Log),
    ) -> Result<Self> {
        let overrun = faults.overrun(pd.device(), &mut qp)?;
        let init = LinkInit {
            qp,
            cq_entries: overrun.map(|overrun| overrun.cq_entries),
            memory: region.into(),
            limits: Limits {
                // As many faults as are ordered, one right behind the other.
                settle: Duration::ZERO,
                // Another for each end.
                seed: region.mr().addr(),
                ..Limits::default()
            },
            ..LinkInit::default()
        };
        let mut link = Link::new(pd, init, exchange)?;
        log.listen(&mut link);
        Ok(Self {
            link,
            device: pd.device().clone(),
            faults,
            log,
            overrun,
            all_reported: false,
        })
    }

    /// Whether it works.
    pub fn is_ready(&self) -> bool {
        self.link.state() == LinkState::Ready
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.link.state(), LinkState::Ended(_))
    }

    /// The peer's memory, once it has sent it.
    pub fn target(&self) -> Option<Remote> {
        Some(self.link.peer_memory()?.remote(0))
    }

    /// Numbers of the queue pair and the completion queue of a link that works.
    pub fn numbers(&mut self) -> Option<(u32, u32)> {
        self.is_ready().then_some(())?;
        Some((self.link.qp_num()?, self.link.cqn()?))
    }

    /// Gives each completion to `each`.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(LinkCompletion)) {
        let filtered = |completion: LinkCompletion| {
            if completion.wr_id != overrun::WR_ID {
                each(completion);
            }
        };
        self.all_reported = self.link.poll(AT_ONCE, filtered) == 0;
        if self.all_reported && !self.is_ready() {
            // What it waits for may wait for the device's time.
            self.device.progress();
        }
    }

    /// Why it has ended, if it has and everything was reported.
    pub fn ended(&self) -> Option<anyhow::Error> {
        if !self.all_reported {
            return None;
        }
        match self.link.state() {
            LinkState::Ended(LinkEnd::GaveUp {
                why: EndReason::PeerClosed | EndReason::PeerLost | EndReason::PeerRestarted,
                ..
            }) => Some(PeerGone.into()),
            LinkState::Ended(end) => Some(anyhow!("the connection has ended: {end}")),
            _ => None,
        }
    }

    /// Ends it, when everything was reported. The peer's link ends with it.
    pub fn close(&mut self) {
        self.link.drain(CLOSE, drop);
    }
}

/// Whether a request was posted. One that is refused now is posted when the link works again; of one
/// that has ended, what it still has to report comes first, and polling says that it has.
///
/// # Errors
/// Any other reason.
pub fn posted(result: Result<(), LinkError>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(LinkError::Recovering | LinkError::Ended(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether a request was executed; `false`: it was not, or that is in doubt.
///
/// # Errors
/// One that failed, and would fail again.
pub fn executed(outcome: Outcome, what: &str) -> Result<bool> {
    match outcome {
        Outcome::Done => Ok(true),
        Outcome::Failed(status) => Err(anyhow!("{what} failed: {}", status.text())),
        Outcome::NotExecuted | Outcome::InDoubt(_) => Ok(false),
    }
}
