//! A set and its clients, plain links, on one inline device whose clock moves only when it is advanced.

use crate::world::{BLOCK, End, Line, init, line};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkId, LinkInit, LinkSet, LinkSetInit, LinkState, pair};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::Send;
use bellwire::{ClassLayout, Device, Pd, Slab};
use bellwire_tests::fixture::{SIGNALED, slab, virtual_device};
use std::collections::HashMap;
use std::time::Duration;

/// A set of which a poll looks at everything.
pub fn set_init(links: u32) -> LinkSetInit {
    LinkSetInit {
        links,
        qp: init().qp,
        check_every: 1,
        ..LinkSetInit::default()
    }
}

pub struct SetWorld {
    pub device: Device,
    pub pd: Pd,
    pub set: LinkSet,
    pub slab: Slab,
    /// Each link in the set, and its peer.
    pub clients: Vec<(LinkId, End)>,
    pub log: Vec<(LinkId, Line)>,
    posted: HashMap<LinkId, u32>,
    pub changes: Vec<(LinkId, LinkState)>,
}

impl SetWorld {
    pub fn unconnected(links: usize, set_init: LinkSetInit, init: &LinkInit) -> Self {
        let pd = virtual_device(1).alloc_pd();
        Self::unconnected_on(&pd, links, set_init, init)
    }

    /// As [`unconnected`](Self::unconnected), in this protection domain.
    pub fn unconnected_on(pd: &Pd, links: usize, set_init: LinkSetInit, init: &LinkInit) -> Self {
        let layout = [ClassLayout {
            size: BLOCK,
            count: 1024,
        }];
        let mut world = Self {
            set: LinkSet::new(pd, set_init).unwrap(),
            slab: slab(pd, &layout),
            clients: Vec::new(),
            log: Vec::new(),
            posted: HashMap::new(),
            changes: Vec::new(),
            device: pd.device().clone(),
            pd: pd.clone(),
        };
        for _ in 0..links {
            world.join(init);
        }
        world
    }

    /// Connected links.
    pub fn new(links: usize) -> Self {
        let mut world = Self::unconnected(links, set_init(links as u32), &init());
        world.settle();
        world.all_ready();
        world
    }

    pub fn join(&mut self, init: &LinkInit) -> LinkId {
        let (here, there) = pair();
        let id = self.set.join(init.clone(), here).unwrap();
        self.clients
            .push((id, End::new(&self.pd, init.clone(), there)));
        id
    }

    pub fn all_ready(&self) {
        for (id, client) in &self.clients {
            let states = (self.set.state(*id), client.state());
            assert_eq!(states, (Ok(LinkState::Ready), LinkState::Ready));
        }
    }

    pub fn poll_set(&mut self, limit: usize) -> usize {
        let log = &mut self.log;
        let count = self.set.poll(limit, |id, one| log.push((id, line(one))));
        self.changes
            .extend(std::iter::from_fn(|| self.set.next_change()));
        count
    }

    /// Polls all, by turns, until nothing more happens, at the present time.
    pub fn poll(&mut self) {
        for _ in 0..32 {
            self.poll_set(64);
            self.clients
                .iter_mut()
                .for_each(|(_, client)| _ = client.poll());
        }
    }

    /// Polls all, and moves the clock on, until none recovers.
    pub fn settle(&mut self) {
        let soft = |device: &Device| device.as_soft().unwrap().advance(Duration::from_millis(5));
        for _ in 0..100_000 {
            self.poll();
            let recovers = |(id, client): &(LinkId, End)| {
                let here = self.set.state(*id);
                here == Ok(LinkState::Recovering) || client.state() == LinkState::Recovering
            };
            if !self.clients.iter().any(recovers) {
                return;
            }
            soft(&self.device);
        }
        panic!("a link neither recovers nor ends");
    }

    /// Posts receives of these identifiers to a link of the set.
    pub fn receive(&mut self, id: LinkId, wr_ids: impl IntoIterator<Item = u64>) {
        let mut link = self.set.link(id).unwrap();
        for wr_id in wr_ids {
            let block = self.slab.take(BLOCK).unwrap();
            link.post_recv_block(wr_id, block).unwrap();
            *self.posted.entry(id).or_default() += 1;
        }
        link.ring_recv();
    }

    /// Sends a block that begins with the request's identifier.
    pub fn send(&mut self, id: LinkId, wr_id: u64, replay: Replay) {
        let mut block = self.slab.take(BLOCK).unwrap();
        block.as_mut_slice()[..8].copy_from_slice(&wr_id.to_le_bytes());
        let mut link = self.set.link(id).unwrap();
        link.post_block(wr_id, Send {}, block, BLOCK, SIGNALED, replay)
            .unwrap();
        link.ring();
        *self.posted.entry(id).or_default() += 1;
    }

    /// Outcomes of a link's sends, in order.
    pub fn sends(&self, id: LinkId) -> Vec<(u64, Outcome)> {
        let of_it = self.log.iter().filter(|(of, line)| *of == id && !line.recv);
        of_it.map(|(_, line)| (line.wr_id, line.outcome)).collect()
    }

    /// Outcomes of a link's receives and the words that came, in order.
    pub fn received(&self, id: LinkId) -> Vec<(u64, Outcome, u64)> {
        let of_it = self.log.iter().filter(|(of, line)| *of == id && line.recv);
        of_it
            .map(|(_, line)| (line.wr_id, line.outcome, line.word.unwrap_or(0)))
            .collect()
    }

    /// Begins new logs: everything has been reported.
    pub fn forget(&mut self) {
        self.log.clear();
        self.posted.clear();
        for (_, client) in &mut self.clients {
            client.log.clear();
            client.posted = 0;
        }
    }

    /// A message goes each way on each link, and comes, at the link that it was sent to.
    pub fn talk(&mut self) {
        self.forget();
        for at in 0..self.clients.len() {
            let (id, client) = &mut self.clients[at];
            let (id, mark) = (*id, 1000 * at as u64);
            client.receive([mark]);
            self.receive(id, [mark + 2]);
            self.clients[at].1.go(mark + 1, Send {}, Replay::Surface);
            self.send(id, mark + 3, Replay::Surface);
        }
        self.poll();
        for at in 0..self.clients.len() {
            let (id, client) = &self.clients[at];
            let mark = 1000 * at as u64;
            assert_eq!(self.sends(*id), [(mark + 3, Outcome::Done)]);
            let came = [(mark + 2, Outcome::Done, mark + 1)];
            assert_eq!(self.received(*id), came);
            assert_eq!(client.received(), [(mark, Outcome::Done, mark + 3)]);
        }
        self.all_reported();
    }

    /// Everything that was posted has been reported, once, and all blocks are back.
    pub fn all_reported(&self) {
        for (id, client) in &self.clients {
            let of_it = self.log.iter().filter(|(of, _)| of == id);
            let reported: u32 = of_it.map(|(_, line)| line.retired).sum();
            let posted = self.posted.get(id).copied().unwrap_or(0);
            assert_eq!(reported, posted, "{id:?}: {:?}", self.log);
            assert_eq!(client.reported(), client.posted, "{:?}", client.log);
        }
        assert_eq!(self.slab.outstanding(), 0);
    }

    /// Lets a fault strike now.
    pub fn strike(&self, fault: Fault) {
        let script = Script::default().with(Trigger::After(Duration::ZERO), fault);
        let soft = self.device.as_soft().unwrap();
        soft.inject(&script).unwrap();
        soft.advance(Duration::from_nanos(1));
    }

    /// The number of a link's queue pair.
    pub fn qp_num(&mut self, at: usize) -> u32 {
        let id = self.clients[at].0;
        self.set.link(id).unwrap().qp_num().unwrap()
    }
}
