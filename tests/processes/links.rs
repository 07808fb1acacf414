//! Many links in a set, of a server or of clients, that sleeps on one descriptor while there is nothing to do.

use bellwire::connect::cm::{Connector, Listener};
use bellwire::link::{LinkCompletion, LinkId, LinkInit, LinkSet, LinkSetInit, LinkState, Wait};
use bellwire::{Device, QpInit};
use bellwire_tests::fixture::DEADLINE;
use bellwire_tests::patience::{late, limits};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The longest sleep: what else a process waits for is looked at in between.
const SLEEP: Duration = Duration::from_millis(10);

/// How long so many links may take to connect, or to recover at once: 100 ms each, and a thousand times as long as a
/// thread is late now. Only a hang reaches it.
pub fn patience(links: usize) -> Duration {
    DEADLINE.max(Duration::from_millis(100) * links as u32) + 1000 * late()
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
        // All of them are served in the end, each when its turn comes.
        init.limits = limits();
        init.limits.exchange = patience(of);
        init.limits.ready = patience(of);
        init.limits.recovery = 4 * patience(of);
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

    /// Accepts the links that wait for it; how many there were.
    fn accept(&mut self) -> usize {
        let mut accepted = 0;
        while let Some(listener) = &mut self.listener
            && let Some(incoming) = listener.accept().expect("a listener")
        {
            let id = self.set.join(self.init.clone(), incoming).expect("room");
            let mut link = self.set.link(id).expect("it is in the set");
            // SAFETY: no memory.
            unsafe { link.post_recv(0, &[]) }.expect("room for one");
            link.ring_recv();
            accepted += 1;
        }
        accepted
    }

    /// Polls; if there is nothing, sleeps until something may have come, or for a while.
    pub fn poll(&mut self, each: impl FnMut(LinkId, LinkCompletion)) {
        let timeout = match self.accept() {
            0 => SLEEP,
            _ => Duration::ZERO,
        };
        let others: Vec<BorrowedFd<'_>> = self.listener.iter().map(AsFd::as_fd).collect();
        let wait = Wait {
            spin: Duration::ZERO,
            timeout: Some(timeout),
            others: &others,
        };
        self.set.wait(64, &wait, each).expect("a waitable set");
        let changes = std::iter::from_fn(|| self.set.next_change());
        self.changes.extend(changes);
    }
}
