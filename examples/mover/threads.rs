//! Both ends in one process: two threads.

use super::blocks::Shape;
use super::ends;
use super::faults::Faults;
use super::files::collecting;
use super::incoming::Incoming;
use super::log::Log;
use super::notice::Trailer;
use super::outgoing::Outgoing;
use anyhow::{Context, Result, anyhow};
use bellwire::Device;
use bellwire::link::pair;
use bellwire_examples::{Alarm, PeerGone, Progress, Wait, start};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use tempfile::NamedTempFile;

/// Moves everything from one file to the other; gives length and checksum. Each end has a device,
/// faults and a log.
///
/// # Errors
/// Those of set-up; that of the end that failed first.
pub fn transfer(
    shape: Shape,
    devices: [&Device; 2],
    [sends, receives]: [(Faults, Log); 2],
    from: &mut File,
    to: &mut NamedTempFile,
    progress: &Progress,
) -> Result<Trailer> {
    let [near, far] = devices.map(Device::alloc_pd);
    let (here, there) = pair();
    let outgoing = Outgoing::new(&near, shape, here, sends)?;
    let incoming = Incoming::new(&far, shape, there, receives)?;
    let gone = &AtomicBool::new(false);
    let wait = Wait {
        // Files are slow beside memory: an end that waits yields its processor.
        crowded: true,
        gone,
    };
    std::thread::scope(|scope| {
        let receive = move || {
            let alarm = Alarm::new(gone);
            let mut to = collecting(to);
            let received = ends::receive(incoming, &mut to, wait)?;
            to.flush().context("writing the output")?;
            alarm.disarm();
            Ok(received)
        };
        let receiver = start(scope, receive)?;
        let alarm = Alarm::new(gone);
        let sent = ends::send(outgoing, from, wait, progress);
        if sent.is_ok() {
            alarm.disarm();
        } else {
            drop(alarm);
        }
        let received = receiver
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the receiving thread panicked")));
        // Of two errors, the cause is the one that does not just report the other end.
        match (sent, received) {
            (Ok(_), received) => received,
            (Err(error), Ok(_)) => Err(error),
            (Err(ours), Err(theirs)) if ours.is::<PeerGone>() => Err(theirs),
            (Err(ours), Err(_)) => Err(ours),
        }
    })
}
