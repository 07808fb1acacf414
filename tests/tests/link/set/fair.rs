//! One link of a set has more to report than each poll may pass on. The others connect, recover, are watched and
//! end in a bounded number of polls all the same.

use super::world::{SetWorld, set_init};
use crate::world::{init, line};
use bellwire::QpInit;
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::EndReason;
use bellwire::link::{LinkInit, LinkState};
use bellwire::wqe::{Nop, Send};
use bellwire_tests::fixture::SIGNALED;
use std::time::Duration;

/// Outcomes that one poll passes on, at most.
const LIMITS: [usize; 4] = [1, 3, 16, 64];

/// Requests of one link in flight, more than any limit.
const DEPTH: u32 = 128;

/// Polls within which each thing happens, behind what the queue holds when it begins.
const POLLS: u32 = 10;

fn deep() -> LinkInit {
    LinkInit {
        qp: QpInit {
            max_send_wr: DEPTH,
            max_recv_wr: 16,
            ..QpInit::default()
        },
        ..init()
    }
}

/// A set with one link that works, and is busy from here on.
struct Busy {
    world: SetWorld,
    limit: usize,
    /// Requests of the busy link that were posted and not reported.
    in_flight: u32,
}

impl Busy {
    fn new(limit: usize) -> Self {
        let qp = deep().qp;
        let set_init = bellwire::link::LinkSetInit { qp, ..set_init(4) };
        let mut world = SetWorld::unconnected(1, set_init, &deep());
        world.settle();
        world.all_ready();
        Self {
            world,
            limit,
            in_flight: 0,
        }
    }

    /// Fills the completion queue, and polls everything once. The busy link alone has a full poll to report.
    fn poll(&mut self) {
        let busy = self.world.clients[0].0;
        let mut link = self.world.set.link(busy).unwrap();
        while self.in_flight < DEPTH {
            link.post_empty(7, Nop {}, SIGNALED, Replay::Surface)
                .unwrap();
            self.in_flight += 1;
        }
        link.ring();
        let (log, in_flight) = (&mut self.world.log, &mut self.in_flight);
        let count = self.world.set.poll(self.limit, |id, one| match id == busy {
            true => *in_flight -= one.retired,
            false => log.push((id, line(one))),
        });
        assert_eq!(count, self.limit, "the busy link has more than that");
        let changes = std::iter::from_fn(|| self.world.set.next_change());
        self.world.changes.extend(changes);
        let clients = self.world.clients.iter_mut();
        clients.for_each(|(_, client)| _ = client.poll());
    }

    /// Polls until it is so, for which the link needs nothing from the completion queue.
    fn until(&mut self, what: &str, is_so: impl FnMut(&mut SetWorld) -> bool) {
        self.within(POLLS, what, is_so);
    }

    /// Polls until it is so, which takes what is in the completion queue behind that of the busy link.
    fn until_taken(&mut self, what: &str, is_so: impl FnMut(&mut SetWorld) -> bool) {
        let ahead = DEPTH.div_ceil(self.limit as u32);
        self.within(POLLS + 2 * ahead, what, is_so);
    }

    fn within(&mut self, polls: u32, what: &str, mut is_so: impl FnMut(&mut SetWorld) -> bool) {
        for _ in 0..polls {
            if is_so(&mut self.world) {
                return;
            }
            self.poll();
        }
        panic!("not {what} within {polls} polls of {}", self.limit);
    }

    /// Adds a link, and waits until it works.
    fn join(&mut self, init: &LinkInit) -> usize {
        let id = self.world.join(init);
        self.until("ready", |world| world.set.state(id) == Ok(LinkState::Ready));
        self.world.clients.len() - 1
    }
}

/// Its peer sends as soon as it works, which is before the link of the set does.
#[test]
fn a_link_with_an_early_message_connects() {
    for limit in LIMITS {
        let mut busy = Busy::new(limit);
        let id = busy.world.join(&init());
        busy.world.receive(id, [1, 2]);
        let mut early = false;
        busy.until("ready", |world| {
            let client = &mut world.clients[1].1;
            client.poll();
            if client.state() == LinkState::Ready && !early {
                let connects = world.set.state(id);
                assert_eq!(connects, Ok(LinkState::Recovering), "it is not early");
                early = true;
                client.go(3, Send {}, Replay::Surface);
                client.go(4, Send {}, Replay::Surface);
            }
            world.set.state(id) == Ok(LinkState::Ready)
        });
        busy.until_taken("received", |world| world.received(id).len() == 2);
        let came = [(1, Outcome::Done, 3), (2, Outcome::Done, 4)];
        assert_eq!(busy.world.received(id), came);
        assert!(busy.world.changes.contains(&(id, LinkState::Ready)));
    }
}

#[test]
fn a_link_with_requests_in_flight_recovers() {
    for limit in LIMITS {
        let mut busy = Busy::new(limit);
        let at = busy.join(&init());
        let id = busy.world.clients[at].0;
        for wr_id in 0..4 {
            // The peer has no receive: they are in flight.
            busy.world.send(id, wr_id, Replay::Surface);
        }
        let fault = Fault::Event(EventType::QpFatal);
        busy.world.set.report(id, fault).unwrap();
        assert_eq!(busy.world.set.state(id), Ok(LinkState::Recovering));
        // With all four reported, which one poll at a time does.
        busy.until_taken("ready again", |world| {
            world.set.state(id) == Ok(LinkState::Ready)
        });
        let wr_ids = busy.world.sends(id).into_iter().map(|(wr_id, _)| wr_id);
        assert_eq!(wr_ids.collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}

#[test]
fn a_missed_deadline_is_found() {
    for limit in LIMITS {
        let mut busy = Busy::new(limit);
        let deadline = Duration::from_millis(1);
        let mut watched = init();
        watched.request_deadline = Some(deadline);
        watched.connect.rnr_retry = 7;
        let at = busy.join(&watched);
        let id = busy.world.clients[at].0;
        // The peer has no receive.
        busy.world.send(id, 1, Replay::Surface);
        // It is found within twice the time.
        for _ in 0..8 {
            (0..4).for_each(|_| busy.poll());
            let soft = busy.world.device.as_soft().unwrap();
            soft.advance(deadline / 4);
        }
        busy.until("reported", |world| !world.sends(id).is_empty());
    }
}

#[test]
fn a_link_is_closed() {
    for limit in LIMITS {
        let mut busy = Busy::new(limit);
        let at = busy.join(&init());
        let id = busy.world.clients[at].0;
        busy.world.receive(id, [1, 2, 3]);
        busy.world.set.close(id, Duration::ZERO).unwrap();
        busy.until("ended", |world| {
            matches!(world.set.state(id), Ok(LinkState::Ended(_)))
        });
        assert_eq!(busy.world.received(id).len(), 3);
    }
}

#[test]
fn a_peer_that_closes_is_heard() {
    for limit in LIMITS {
        let mut busy = Busy::new(limit);
        let at = busy.join(&init());
        let (id, client) = &mut busy.world.clients[at];
        let id = *id;
        client.link.close(Duration::ZERO);
        let closed = Some(EndReason::PeerClosed);
        busy.until("ended", |world| {
            world.set.state(id).unwrap().why() == closed
        });
    }
}
