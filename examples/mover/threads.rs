//! Both ends in one process: two threads.

use super::blocks::{Incoming, Outgoing, Shape};
use super::ends;
use super::notice::Trailer;
use anyhow::{Context, Result, anyhow};
use bellwire::{Device, Pd};
use bellwire_examples::{Alarm, PeerGone, Progress, Wait};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::atomic::AtomicBool;
use tempfile::NamedTempFile;

/// Two connected ends.
///
/// # Errors
/// Those of set-up.
pub fn connected(pd: &Pd, shape: Shape) -> Result<(Outgoing, Incoming)> {
    let (mut outgoing, mut incoming) = (Outgoing::new(pd, shape)?, Incoming::new(pd, shape)?);
    outgoing.connect(&incoming.info())?;
    incoming.connect(&outgoing.info())?;
    Ok((outgoing, incoming))
}

/// Moves everything from one file to the other; gives length and checksum.
///
/// # Errors
/// Those of set-up; that of the end that failed first.
pub fn transfer(
    shape: Shape,
    from: &mut File,
    to: &mut NamedTempFile,
    progress: &Progress,
) -> Result<Trailer> {
    let pd = Device::open("auto")?.alloc_pd();
    let (mut outgoing, mut incoming) = connected(&pd, shape)?;
    let gone = &AtomicBool::new(false);
    let wait = Wait {
        // Files are slow beside memory: whoever waits gives its processor away.
        crowded: true,
        gone,
    };
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let alarm = Alarm::new(gone);
            let mut to = BufWriter::with_capacity(1 << 20, to);
            let received = ends::receive(&mut incoming, &mut to, wait)?;
            to.flush().context("writing the output")?;
            alarm.disarm();
            Ok(received)
        });
        let alarm = Alarm::new(gone);
        let sent = ends::send(&mut outgoing, from, wait, progress);
        if sent.is_ok() {
            alarm.disarm();
        } else {
            drop(alarm);
        }
        let received = receiver
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the receiving thread panicked")));
        // Of two errors, the cause is the one that does not just tell of the other end.
        match (sent, received) {
            (Ok(_), received) => received,
            (Err(error), Ok(_)) => Err(error),
            (Err(ours), Err(theirs)) if ours.is::<PeerGone>() => Err(theirs),
            (Err(ours), Err(_)) => Err(ours),
        }
    })
}
