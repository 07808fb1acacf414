//! Faults to order: what `--fault` and `--fault-receiver` inject, and when.

use super::line::Polled;
use super::overrun::{NOTICED, Overrun};
use anyhow::{Context as _, Result, bail, ensure};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wr::WcStatus;
use bellwire::{Device, QpInit};
use bellwire_examples::Wait;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How long the port stays down.
const FLAP: Duration = Duration::from_millis(20);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    CqErr,
    QpFatal,
    PortFlap,
    RetryExc,
    AckLost,
}

/// Each with its name.
const KINDS: [(&str, Kind); 5] = [
    ("cq-err", Kind::CqErr),
    ("qp-fatal", Kind::QpFatal),
    ("port-flap", Kind::PortFlap),
    ("retry-exc", Kind::RetryExc),
    ("ack-lost", Kind::AckLost),
];

/// A fault, and after how much of the file it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    kind: Kind,
    percent: u8,
}

impl Injection {
    /// Whether it befalls one request, not the queues.
    fn is_of_request(self) -> bool {
        matches!(self.kind, Kind::RetryExc | Kind::AckLost)
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(_, kind)| *kind == self.kind);
        let name = name.map_or("", |(name, _)| name);
        write!(f, "{name}@{}%", self.percent)
    }
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, percent)) = text.split_once('@') else {
            return Err("write KIND@PERCENT%, as cq-err@30%".to_owned());
        };
        let Some(&(_, kind)) = KINDS.iter().find(|(known, _)| *known == name) else {
            let names = KINDS.map(|(name, _)| name).join(", ");
            return Err(format!("there is no fault {name:?}: take one of {names}"));
        };
        let number = percent.strip_suffix('%').and_then(|n| n.parse().ok());
        let percent = number.filter(|percent| *percent <= 100);
        let percent = percent.ok_or_else(|| {
            format!("{percent:?} is no part of the file: write a whole number from 0% to 100%")
        })?;
        Ok(Self { kind, percent })
    }
}

/// The faults that an end still has before it.
#[derive(Debug, Default)]
pub struct Faults {
    due: VecDeque<Injection>,
    total: u64,
}

impl Faults {
    /// Those of a file of `total` bytes.
    pub fn new(injections: &[Injection], total: u64) -> Self {
        let mut due: Vec<_> = injections.to_vec();
        due.sort_by_key(|injection| injection.percent);
        Self {
            due: due.into(),
            total,
        }
    }

    /// How the end's completion queue is to be overrun: `None` where nothing is to fail, or it can be
    /// injected. The queue pair is made larger for it.
    ///
    /// # Errors
    /// Faults that the device cannot be made to have.
    pub fn overrun(&self, device: &Device, qp: &mut QpInit) -> Result<Option<Overrun>> {
        if self.due.is_empty() || device.as_soft().is_some() {
            return Ok(None);
        }
        let name = device.name();
        for injection in &self.due {
            match injection.kind {
                Kind::CqErr => {}
                Kind::PortFlap => bail!(
                    "{injection} cannot be injected into {name}: leave it out, and take its port down \
                     and up meanwhile (ip link set NETDEV down; `rdma link` shows which it is)"
                ),
                Kind::QpFatal | Kind::RetryExc | Kind::AckLost => bail!(
                    "{injection} cannot be injected into {name}: give --device soft, or cq-err, which \
                     overruns the completion queue there"
                ),
            }
        }
        Overrun::new(device, qp).map(Some)
    }

    /// The next, if it is due.
    fn next(&mut self, moved: u64) -> Option<Injection> {
        let percent = self.due.front()?.percent;
        let reached = u128::from(moved) * 100 >= u128::from(self.total) * u128::from(percent);
        reached.then(|| self.due.pop_front()).flatten()
    }
}

/// Injects the faults that are due after so many bytes.
///
/// # Errors
/// A device that takes no faults; those of polling.
pub fn strike_due(end: &mut impl Polled, moved: u64, wait: Wait<'_>) -> Result<()> {
    while let Some(injection) = end.line().faults.next(moved) {
        strike(end, injection, wait)?;
    }
    Ok(())
}

fn strike(end: &mut impl Polled, injection: Injection, wait: Wait<'_>) -> Result<()> {
    let (qp_num, cqn) = wait.until(|| {
        look(end, |end| {
            // Requests that are under way to another process come before the one that is to fail.
            let idle = !injection.is_of_request() || end.is_idle();
            idle.then(|| end.line().numbers()).flatten()
        })
    })??;
    let line = end.line();
    let seen = line.log.struck(injection, line.overrun.is_some());
    if let Some(overrun) = line.overrun {
        overrun.cause(line)?;
        let start = Instant::now();
        let noticed = |end: &mut _| {
            let noticed = Polled::line(end).log.seen() > seen;
            (noticed || start.elapsed() > NOTICED).then_some(noticed)
        };
        let noticed = wait.until(|| look(end, noticed))??;
        ensure!(
            noticed,
            "more completed than the completion queue holds, and {} did not report it",
            end.line().device.name()
        );
        return Ok(());
    }
    let (now, next) = (
        Trigger::After(Duration::ZERO),
        Trigger::EntryOf { qp_num, nth: 1 },
    );
    let script = Script::default();
    let script = match injection.kind {
        Kind::CqErr => script.with(now, Fault::CqOverrun(cqn)),
        Kind::QpFatal => script.with(now, Fault::QpFatal(qp_num)),
        Kind::PortFlap => script
            .with(now, Fault::PortDown)
            .with(Trigger::After(FLAP), Fault::PortUp),
        Kind::RetryExc => script.with(next, Fault::Status(WcStatus::RetryExcErr)),
        Kind::AckLost => script.with(next, Fault::StatusAfter(WcStatus::RetryExcErr)),
    };
    let soft = line.device.as_soft();
    let soft = soft.context("faults are injected on the software HCA only")?;
    soft.inject(&script)?;
    line.device.progress();
    if injection.is_of_request() {
        // It befalls the next request, whose outcome shows it.
        return Ok(());
    }
    // Not two in one: requests in flight are, while it is noticed.
    wait.until(|| look(end, |end| (end.line().log.seen() > seen).then_some(())))?
}

/// Polls, then looks.
fn look<E: Polled, T>(
    end: &mut E,
    mut found: impl FnMut(&mut E) -> Option<T>,
) -> Option<Result<T>> {
    match end.poll() {
        Ok(()) => found(end).map(Ok),
        Err(error) => Some(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_as_it_is_written() {
        for (name, _) in KINDS {
            let text = format!("{name}@30%");
            assert_eq!(text.parse::<Injection>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_none_is_refused_with_advice() {
        for (text, advice) in [
            ("cq-err", "KIND@PERCENT%"),
            ("fire@3%", "qp-fatal"),
            ("cq-err@3", "0% to 100%"),
            ("cq-err@101%", "0% to 100%"),
            ("cq-err@-1%", "0% to 100%"),
            ("cq-err@%", "0% to 100%"),
        ] {
            let error = text.parse::<Injection>().unwrap_err();
            assert!(error.contains(advice), "{text}: {error}");
        }
    }

    #[test]
    fn they_are_due_in_order_of_percent() {
        let [late, early] = ["cq-err@100%", "qp-fatal@30%"].map(|text| text.parse().unwrap());
        let mut faults = Faults::new(&[late, early], 10);
        assert_eq!(faults.next(2), None);
        assert_eq!(faults.next(3), Some(early));
        assert_eq!(faults.next(9), None);
        assert_eq!(faults.next(10), Some(late));
        assert_eq!(faults.next(u64::MAX), None);
    }
}
