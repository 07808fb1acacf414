//! The two ends in two processes.

use super::blocks::{Incoming, Outgoing, Shape};
use super::ends;
use super::files::Output;
use super::notice::Trailer;
use anyhow::{Context, Result};
use bellwire::{Device, Pd};
use bellwire_examples::{Listener, Peer, Progress, Wait};
use std::fs::File;
use std::io::{BufWriter, Write};

/// The program's name at meetings.
const PROGRAM: &str = "mover";

fn open(name: &str) -> Result<Pd> {
    Ok(Device::open(&format!("soft:{name}"))?.alloc_pd())
}

/// As between threads: whoever waits gives its processor away.
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
pub fn send(name: &str, shape: Shape, from: &mut File, progress: &Progress) -> Result<Trailer> {
    let pd = open(name)?;
    let mut peer = Peer::connect(PROGRAM, name)?;
    peer.send(&shape)?;
    let sent = send_to(&mut peer, &pd, shape, from, progress);
    peer.conclude(sent)
}

fn send_to(
    peer: &mut Peer,
    pd: &Pd,
    shape: Shape,
    from: &mut File,
    progress: &Progress,
) -> Result<Trailer> {
    let mut outgoing = Outgoing::new(pd, shape)?;
    outgoing.connect(&peer.exchange_info(&outgoing.info())?)?;
    // Nobody sends before both are connected.
    peer.exchange(&())?;
    let sent = ends::send(&mut outgoing, from, wait(peer), progress)?;
    peer.send(&())?;
    Ok(sent)
}

/// A process that has come to send a file.
#[derive(Debug)]
pub struct Sender {
    peer: Peer,
    pd: Pd,
}

impl Sender {
    /// Waits for one under this name.
    ///
    /// # Errors
    /// When the name is taken; those of set-up.
    pub fn wait(name: &str) -> Result<Self> {
        let pd = open(name)?;
        let listener = Listener::bind(PROGRAM, name)?;
        writeln!(
            std::io::stdout(),
            "listening: start `mover --connect {name} FILE`"
        )?;
        let peer = listener.accept()?;
        Ok(Self { peer, pd })
    }

    /// Receives the file; gives length and checksum, which are the same there, and how it came.
    ///
    /// # Errors
    /// Those of set-up; that of the end that failed first.
    pub fn receive(mut self, output: Output) -> Result<(Trailer, Shape)> {
        let shape = self.peer.receive()?;
        let received = self.receive_as(shape, output);
        Ok((self.peer.report(received)?, shape))
    }

    fn receive_as(&mut self, shape: Shape, mut output: Output) -> Result<Trailer> {
        let Self { peer, pd } = self;
        let mut incoming = Incoming::new(pd, shape)?;
        incoming.connect(&peer.exchange_info(&incoming.info())?)?;
        peer.exchange(&())?;
        let mut to = BufWriter::with_capacity(1 << 20, &mut output.file);
        let received = ends::receive(&mut incoming, &mut to, wait(peer))?;
        to.flush().context("writing the output")?;
        drop(to);
        // It is told that all has arrived as long as this end is there.
        peer.receive::<()>()?;
        output.keep()?;
        Ok(received)
    }
}
