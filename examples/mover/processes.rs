//! The two ends in two processes.

use super::blocks::Shape;
use super::ends;
use super::faults::{Faults, Injection};
use super::files::{Output, collecting};
use super::incoming::Incoming;
use super::log::Log;
use super::notice::Trailer;
use super::outgoing::Outgoing;
use anyhow::{Context, Result, ensure};
use bellwire::{Device, Pd};
use bellwire_examples::{Listener, Peer, Progress, UnixExchange, Wait};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;

/// The program's name at meetings.
const PROGRAM: &str = "mover";

/// The device of this name; without one, the software HCA that both have by the name of the meeting.
fn open(device: Option<&str>, name: &str) -> Result<Pd> {
    ensure!(
        device != Some("soft"),
        "the device soft is within one process: give --device soft:NAME to both, or none"
    );
    let device = device.map_or_else(|| format!("soft:{name}"), str::to_owned);
    Ok(Device::open(&device)?.alloc_pd())
}

/// As between threads: an end that waits yields its processor.
fn wait(peer: &Peer) -> Wait<'_> {
    Wait {
        crowded: true,
        gone: peer,
    }
}

/// Sends the file to the process that listens under this name; gives length and checksum, which are
/// the same there.
///
/// # Errors
/// When nobody listens; those of set-up; that of the end that failed first.
pub fn send(
    name: &str,
    device: Option<&str>,
    opening: Opening,
    order: (Faults, Log),
    from: &mut File,
    progress: &Progress,
) -> Result<Trailer> {
    let pd = open(device, name)?;
    let (mut peer, exchange) = Peer::connect_with_exchange(PROGRAM, name)?;
    peer.send(&opening)?;
    let outgoing = Outgoing::new(&pd, opening.shape, exchange, order);
    let sent = outgoing.and_then(|outgoing| ends::send(outgoing, from, wait(&peer), progress));
    peer.conclude(sent)
}

/// What the sender says first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Opening {
    /// Of both ends' blocks.
    pub shape: Shape,
    /// Bytes of the file.
    pub total: u64,
}

/// A process that has come to send a file.
#[derive(Debug)]
pub struct Sender {
    peer: Peer,
    exchange: UnixExchange,
    pd: Pd,
}

impl Sender {
    /// Waits for one under this name.
    ///
    /// # Errors
    /// When the name is taken; those of set-up.
    pub fn wait(name: &str, device: Option<&str>) -> Result<Self> {
        let pd = open(device, name)?;
        let listener = Listener::bind(PROGRAM, name)?;
        writeln!(
            std::io::stdout(),
            "listening: start `mover --connect {name} FILE`"
        )?;
        let (peer, exchange) = listener.accept_with_exchange()?;
        Ok(Self { peer, exchange, pd })
    }

    /// Receives the file; gives length and checksum, which are the same there, and how it came.
    ///
    /// # Errors
    /// Those of set-up; that of the end that failed first.
    pub fn receive(
        self,
        injections: &[Injection],
        log: Log,
        output: Output,
    ) -> Result<(Trailer, Shape)> {
        let Self {
            mut peer,
            exchange,
            pd,
        } = self;
        let Opening { shape, total } = peer.receive()?;
        let order = (Faults::new(injections, total), log);
        let incoming = Incoming::new(&pd, shape, exchange, order);
        let received = incoming.and_then(|incoming| receive_into(incoming, output, wait(&peer)));
        Ok((peer.report(received)?, shape))
    }
}

fn receive_into(incoming: Incoming, mut output: Output, wait: Wait<'_>) -> Result<Trailer> {
    let mut to = collecting(&mut output.file);
    let received = ends::receive(incoming, &mut to, wait)?;
    to.flush().context("writing the output")?;
    drop(to);
    output.keep()?;
    Ok(received)
}
