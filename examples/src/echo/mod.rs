//! An echo service by the communication manager: a server of many clients, and a client. Both run on
//! the software HCA, and with the feature `cm` on devices of librdmacm.

mod client;
mod server;

pub use client::Client;
pub use server::{Served, Server};

use anyhow::{Result, bail};
use bellwire::connect::cm::{Event, EventChannel, EventKind};
use bellwire::fault::{CmEvent, classify};
use bellwire::{AccessFlags, Pd, QpInit, Region, Slab, blocks::ClassLayout};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Bytes of the longest message.
pub const MESSAGE: u32 = 4096;

/// Messages that a connection may have on their way.
const DEPTH: u32 = 4;

/// What the queue pairs of both ends are made with.
fn init() -> QpInit {
    QpInit {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_inline_data: 0,
        ..QpInit::default()
    }
}

/// Registered memory for so many messages.
fn slab(pd: &Pd, messages: u32) -> Result<Slab> {
    let layout = [ClassLayout {
        size: MESSAGE,
        count: messages,
    }];
    let mapping = pd.device().mapping(Slab::bytes(&layout)?).build()?;
    let region = Region::new(pd, mapping, AccessFlags::LOCAL_WRITE)?;
    Ok(Slab::new(region, &layout)?)
}

/// Sleeps until one of the descriptors is readable, or the time is over. Short: waiting requests of a
/// software HCA that has no threads go on when somebody polls.
fn sleep(on: &[BorrowedFd<'_>], bound: Duration) -> Result<()> {
    const SHORT: Duration = Duration::from_millis(20);
    let bound = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(bound.min(SHORT).subsec_nanos()),
    };
    let mut fds: Vec<_> = (on.iter())
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    match poll(&mut fds, Some(&bound)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits for an event; any other is an error that says what it means.
fn expect(channel: &EventChannel, wanted: CmEvent, deadline: Instant) -> Result<EventKind> {
    let left = deadline.saturating_duration_since(Instant::now());
    match channel.get(left)? {
        Some(event) if event.kind().event() == wanted => Ok(event.ack()),
        Some(event) => bail!("{}", explained(&event)),
        None => bail!("no {} in time: see whether the peer lives", wanted.name()),
    }
}

/// What an event means, and what to look at.
fn explained(event: &Event) -> String {
    let fault = event.fault();
    let class = classify(fault);
    let (text, status) = (fault.text(), event.status());
    // With zeros behind it; the peer's own words, so not more than words.
    let words = event.private_data().split(|&byte| byte == 0).next();
    let words = words.unwrap_or_default().escape_ascii();
    format!(
        "{fault}, status {status}, \"{words}\": {text} {} Look at: {}",
        class.cause, class.advice
    )
}
