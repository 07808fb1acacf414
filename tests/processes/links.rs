//! Many links in a set, of a server or of clients, that sleeps on one descriptor while there is nothing to do.

use bellwire::connect::cm::{Connector, Listener};
use bellwire::link::{
    LinkCompletion, LinkId, LinkInit, LinkSet, LinkSetInit, LinkSetSrq, LinkState, Wait,
};
use bellwire::{ClassLayout, Device, Pd, QpInit};
use bellwire_tests::fixture::{DEADLINE, slab};
use bellwire_tests::patience::{late, limits};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The longest sleep: what else a process waits for is looked at in between.
const SLEEP: Duration = Duration::from_millis(10);

/// Outcomes of a poll at the most.
const MAX: usize = 32;

/// How long so many links may take to connect, or to recover at once: 100 ms each, and a thousand times as long as a
/// thread is late now. Only a hang reaches it.
pub fn patience(links: usize) -> Duration {
    DEADLINE.max(Duration::from_millis(100) * links as u32) + 1000 * late()
}

pub struct Links {
    pub set: LinkSet,
    listener: Option<Listener>,
    pub init: LinkInit,
    /// They receive from a shared receive queue.
    shared: bool,
    /// Those that were accepted, and when.
    pub accepted: Vec<(LinkId, Instant)>,
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
        Self::made(&device.alloc_pd(), listener, [links, of], qp, None)
    }

    /// Links of a server on a shared receive queue, whose messages may hold so many buffers each. Each request
    /// has a deadline and each peer a keep-alive, which only a hang reaches.
    pub fn serving(device: &Device, listener: Listener, links: usize, held: u32) -> Self {
        let pd = device.alloc_pd();
        let class = ClassLayout {
            size: 64,
            count: held * links as u32,
        };
        let srq = LinkSetSrq {
            slab: slab(&pd, &[class]),
            length: 64,
            max_held: Some(held),
        };
        let qp = QpInit {
            max_send_wr: 4 * held,
            ..QpInit::default()
        };
        let mut all = Self::made(&pd, Some(listener), [links; 2], qp, Some(srq));
        all.init.request_deadline = Some(DEADLINE);
        all.init.keep_alive = Some(DEADLINE);
        all
    }

    fn made(
        pd: &Pd,
        listener: Option<Listener>,
        [links, of]: [usize; 2],
        qp: QpInit,
        srq: Option<LinkSetSrq>,
    ) -> Self {
        let shared = srq.is_some();
        let set = LinkSetInit {
            links: links as u32,
            qp,
            srq,
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
            set: LinkSet::new(pd, set).expect("a set"),
            listener,
            init,
            shared,
            accepted: Vec::new(),
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
            self.accepted.push((id, Instant::now()));
            if !self.shared {
                self.receive(id);
            }
            accepted += 1;
        }
        accepted
    }

    /// Posts a receive without memory.
    pub fn receive(&mut self, id: LinkId) {
        let mut link = self.set.link(id).expect("it is in the set");
        // SAFETY: no memory.
        unsafe { link.post_recv(0, &[]) }.expect("room for one");
        link.ring_recv();
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
        self.set.wait(MAX, &wait, each).expect("a waitable set");
        let changes = std::iter::from_fn(|| self.set.next_change());
        self.changes.extend(changes);
    }
}
