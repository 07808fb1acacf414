//! An echo service by the communication manager: a server of many clients, and a client. Both run on
//! the software HCA, and on devices of librdmacm.

mod client;
mod server;

pub use client::Client;
pub use server::{Served, Server};

use anyhow::Result;
use bellwire::{AccessFlags, Pd, QpInit, Region, Slab, blocks::ClassLayout};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::Duration;

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
