//! Many links in a set, of a server or of clients, that sleeps on one descriptor while there is nothing to do.

use bellwire::connect::cm::{Connector, Listener};
use bellwire::link::{LinkCompletion, LinkId, LinkInit, LinkSet, LinkSetInit, LinkState};
use bellwire::{Device, QpInit};
use bellwire_tests::fixture::DEADLINE;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The longest sleep, in milliseconds: what else a process waits for is looked at in between.
const SLEEP: i32 = 10;

/// How long so many links may take to connect, or to recover at once: 20 ms each, which is far too long.
pub fn patience(links: usize) -> Duration {
    DEADLINE.max(Duration::from_millis(20) * links as u32)
}

pub struct Links {
    pub set: LinkSet,
    listener: Option<Listener>,
    pub init: LinkInit,
    /// Those that have changed, not yet taken.
    pub changes: Vec<(LinkId, LinkState)>,
}

impl Links {
    /// Room for as many links, of `of` that connect at once. Those of a listener have a receive posted, without
    /// memory.
    pub fn new(device: &Device, listener: Option<Listener>, links: usize, of: usize) -> Self {
        let qp = QpInit {
            max_send_wr: 2,
            max_recv_wr: 2,
            ..QpInit::default()
        };
        let set = LinkSetInit {
            links: links as u32,
            qp,
            waitable: true,
            ..LinkSetInit::default()
        };
        let mut init = LinkInit {
            qp,
            ..LinkInit::default()
        };
        init.limits.exchange = patience(of);
        init.limits.recovery = patience(of);
        Self {
            set: LinkSet::new(&device.alloc_pd(), set).expect("a set"),
            listener,
            init,
            changes: Vec::new(),
        }
    }

    /// Begins to connect as many links as it has room for.
    pub fn connect(&mut self, connector: &Connector) {
        for _ in 0..self.set.capacity() {
            let outgoing = connector.exchange().expect("a channel");
            self.set.join(self.init.clone(), outgoing).expect("room");
        }
    }

    /// Polls once, and returns how much it found.
    fn turn(&mut self, each: &mut impl FnMut(LinkId, LinkCompletion)) -> usize {
        let mut found = 0;
        if let Some(listener) = &mut self.listener {
            while let Some(incoming) = listener.accept().expect("a listener") {
                let id = self.set.join(self.init.clone(), incoming).expect("room");
                let mut link = self.set.link(id).expect("it is in the set");
                // SAFETY: no memory.
                unsafe { link.post_recv(0, &[]) }.expect("room for one");
                link.ring_recv();
                found += 1;
            }
        }
        found += self.set.poll(64, each);
        let changes = std::iter::from_fn(|| self.set.next_change());
        self.changes.extend(changes);
        found + self.changes.len()
    }

    /// Polls; if there is nothing, sleeps until something may have come, or for a while.
    pub fn poll(&mut self, mut each: impl FnMut(LinkId, LinkCompletion)) {
        if self.turn(&mut each) != 0 {
            return;
        }
        self.set.arm().expect("a waitable set");
        if self.turn(&mut each) != 0 {
            return;
        }
        let set = self.set.fd().expect("a waitable set").as_raw_fd();
        let listener = (self.listener.as_ref()).map(|listener| listener.as_fd().as_raw_fd());
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // Entries with negative descriptors are left out.
        let mut fds = [set, listener.unwrap_or(-1)].map(entry);
        // SAFETY: as many entries as it says.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, SLEEP) };
    }
}
