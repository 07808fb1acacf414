//! Sets on a shared receive queue.

use super::world::{SetWorld, set_init};
use crate::world::{BLOCK, init};
use bellwire::event::EventType;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::EndReason;
use bellwire::link::{LinkEnd, LinkError, LinkId, LinkSet, LinkSetInit, LinkSetSrq, LinkState};
use bellwire::queue::PostError;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::state::QpState;
use bellwire::wqe::Send;
use bellwire::{Block, ClassLayout, ConnectAttr, Device, Error, Pd, Slab, TakeError};
use bellwire_tests::fixture::{slab, virtual_device};
use std::time::Duration;

/// A world of which the set receives into the blocks of a slab.
struct World {
    world: SetWorld,
    buffers: Slab,
}

fn buffers(pd: &Pd, count: u32) -> Slab {
    slab(pd, &[ClassLayout { size: BLOCK, count }])
}

fn on_srq(links: u32, slab: &Slab) -> LinkSetInit {
    LinkSetInit {
        srq: Some(LinkSetSrq {
            slab: slab.clone(),
            length: BLOCK,
            max_held: None,
        }),
        ..set_init(links)
    }
}

impl World {
    fn new(links: u32, count: u32) -> Self {
        Self::limited(links, count, None)
    }

    fn limited(links: u32, count: u32, max_held: Option<u32>) -> Self {
        let device = virtual_device(1);
        let pd = device.alloc_pd();
        let buffers = buffers(&pd, count);
        let mut set_init = on_srq(links, &buffers);
        if let Some(srq) = &mut set_init.srq {
            srq.max_held = max_held;
        }
        let mut world = SetWorld::unconnected_on(&pd, links as usize, set_init, &init());
        world.settle();
        world.all_ready();
        Self { world, buffers }
    }

    /// Polls all, and keeps the buffers of the messages that came.
    fn poll(&mut self) -> Vec<(LinkId, u64, Block<'static>)> {
        let mut came = Vec::new();
        for _ in 0..32 {
            self.world.set.poll(64, |id, one| {
                if !one.is_recv() {
                    return;
                }
                assert_eq!((one.outcome, one.retired), (Outcome::Done, 0));
                let block = one.block.expect("of the slab");
                assert_eq!(one.wr_id, block.addr());
                let word = block.as_slice()[..8].try_into().unwrap();
                came.push((id, u64::from_le_bytes(word), block));
            });
            self.world
                .clients
                .iter_mut()
                .for_each(|(_, client)| _ = client.poll());
        }
        came
    }

    fn go(&mut self, at: usize, wr_id: u64) {
        self.world.clients[at].1.go(wr_id, Send {}, Replay::IfSafe);
    }

    /// Each client sends a message, and the set sends one back; all come.
    fn talk(&mut self) {
        self.world.forget();
        for at in 0..self.world.clients.len() {
            let (id, client) = &mut self.world.clients[at];
            let (id, mark) = (*id, 1000 * at as u64);
            client.receive([mark]);
            client.go(mark + 1, Send {}, Replay::Surface);
            self.world.send(id, mark + 2, Replay::Surface);
        }
        self.world.poll();
        for at in 0..self.world.clients.len() {
            let (id, client) = &self.world.clients[at];
            let mark = 1000 * at as u64;
            assert_eq!(self.came(*id), [mark + 1]);
            assert_eq!(self.world.sends(*id), [(mark + 2, Outcome::Done)]);
            assert_eq!(client.received(), [(mark, Outcome::Done, mark + 2)]);
        }
        self.world.all_reported();
        self.full();
    }

    /// The messages that came to a link, in order.
    fn came(&self, id: LinkId) -> Vec<u64> {
        let received = self.world.received(id).into_iter();
        let word = |(_, outcome, word)| {
            assert_eq!(outcome, Outcome::Done);
            word
        };
        received.map(word).collect()
    }

    /// Those of the messages held that came to a link.
    fn came_to(&self, id: LinkId, held: &[(LinkId, u64, Block<'_>)]) -> Vec<u64> {
        let of_it = held.iter().filter(|(of, ..)| *of == id);
        of_it.map(|(_, word, _)| *word).collect()
    }

    /// All buffers are posted.
    fn full(&mut self) {
        self.world.poll();
        let posted = self.world.set.receives_posted() as usize;
        assert_eq!(posted, self.buffers.capacity());
    }

    fn epochs(&mut self) -> Vec<u64> {
        let ids: Vec<_> = self.world.set.ids().collect();
        let epoch = |id: &LinkId| self.world.set.link(*id).unwrap().epoch();
        ids.iter().map(epoch).collect()
    }
}

#[test]
fn messages_of_all_links_come_into_the_slab() {
    let mut world = World::new(3, 16);
    for _ in 0..40 {
        world.talk();
    }
    let id = world.world.clients[0].0;
    let block = world.world.slab.take(BLOCK).unwrap();
    let mut link = world.world.set.link(id).unwrap();
    let refused = link.post_recv_block(1, block).unwrap_err();
    assert_eq!(refused.error, LinkError::Post(PostError::NoRecvQueue));
    // Before it is connected, too.
    let new = {
        world.world.set.remove(id).unwrap();
        world.world.clients.remove(0);
        world.world.join(&init())
    };
    let mut link = world.world.set.link(new).unwrap();
    let refused = link.post_recv_block(1, refused.block).unwrap_err();
    assert_eq!(refused.error, LinkError::Post(PostError::NoRecvQueue));
    drop(refused);
    world.world.settle();
    world.talk();
}

/// The links have no memory for receives.
#[test]
fn links_take_less_memory() {
    let device = virtual_device(1);
    let pd = device.alloc_pd();
    let slab = buffers(&pd, 16);
    let mut init = init();
    init.qp.max_recv_wr = 1024;
    let memory = |set_init| {
        let set_init = LinkSetInit {
            qp: init.qp,
            ..set_init
        };
        let mut world = SetWorld::unconnected_on(&pd, 0, set_init, &init);
        let empty = world.set.memory();
        world.join(&init);
        world.set.memory() - empty
    };
    let (own, shared) = (memory(set_init(1)), memory(on_srq(1, &slab)));
    assert!(shared + 1024 * 16 < own, "{shared}, {own}");
}

/// While the program holds all buffers a message waits; it comes when one is returned.
#[test]
fn a_message_waits_for_a_buffer() {
    let mut world = World::new(2, 4);
    let mut init = init();
    init.connect = ConnectAttr {
        rnr_retry: 7,
        ..init.connect
    };
    world.world.set.remove(world.world.clients[0].0).unwrap();
    world.world.clients.remove(0);
    world.world.join(&init);
    world.world.settle();
    for wr_id in 0..6 {
        world.go(1, wr_id);
    }
    let mut held = world.poll();
    assert_eq!(held.len(), 4);
    let advance = |world: &World, by| world.world.device.as_soft().unwrap().advance(by);
    for _ in 0..100 {
        advance(&world, Duration::from_millis(1));
        assert_eq!(world.poll().len(), 0);
    }
    assert_eq!(world.world.clients[1].1.sends().len(), 4);
    // It need not sleep longer than that to look for buffers.
    let left = world.world.set.time_left().expect("it lacks buffers");
    assert!(left <= Duration::from_millis(1), "{left:?}");
    held.remove(2);
    for left in [5, 6] {
        world.poll();
        advance(&world, Duration::from_secs(1));
        let more = world.poll();
        assert_eq!(more.len(), 1);
        assert_eq!(more[0].1, left - 1);
    }
    drop(held);
    world.poll();
    assert_eq!(world.world.clients[1].1.sends().len(), 6);
    world.full();
    assert_eq!(world.world.set.time_left(), None);
}

/// A link recovers; the receives are left to the others, which go on.
#[test]
fn a_link_recovers_while_the_others_go_on() {
    let mut world = World::new(3, 8);
    world.go(0, 1);
    let number = world.world.qp_num(0);
    world.world.strike(Fault::QpFatal(number));
    world.go(0, 2);
    for round in 0..20 {
        world.world.poll_set(64);
        for at in 1..3 {
            world.go(at, round);
            world.world.clients[at].1.poll();
        }
    }
    world.world.settle();
    world.world.all_ready();
    for at in 1..3 {
        let id = world.world.clients[at].0;
        assert_eq!(world.came(id), (0..20).collect::<Vec<_>>());
    }
    let (id, client) = &world.world.clients[0];
    let done = |wr_id| (wr_id, Outcome::Done);
    assert_eq!(client.sends(), [done(1), done(2)]);
    assert_eq!(world.came(*id), [1, 2]);
    assert_eq!(world.epochs(), [2, 1, 1]);
    world.talk();
}

/// The shared receive queue fails: every link gets another, the completion queue is kept, and each request
/// has its outcome, exactly.
#[test]
fn a_shared_receive_queue_fails() {
    for links in [1, 3, 16] {
        let mut world = World::new(links, 32);
        for round in 0..3 {
            world.world.forget();
            let (cqn, srqn) = (
                world.world.set.cqns().next(),
                world.world.set.srqns().next(),
            );
            for at in 0..links as usize {
                let id = world.world.clients[at].0;
                world.world.clients[at].1.receive([10, 11]);
                world.go(at, 1);
                world.world.send(id, 2, Replay::IfSafe);
            }
            world.world.strike(Fault::SrqErr(srqn.unwrap()));
            for at in 0..links as usize {
                world.go(at, 3);
            }
            world.world.settle();
            world.world.all_ready();
            assert_eq!(world.world.set.cqns().next(), cqn);
            assert_ne!(world.world.set.srqns().next(), srqn);
            assert_eq!(world.epochs(), vec![2 + round; links as usize]);
            for at in 0..links as usize {
                let id = world.world.clients[at].0;
                world.world.send(id, 4, Replay::Surface);
            }
            world.world.poll();
            for (id, client) in &world.world.clients {
                let done = |wr_id| (wr_id, Outcome::Done);
                assert_eq!(client.sends(), [done(1), done(3)]);
                assert_eq!(world.came(*id), [1, 3]);
                assert_eq!(world.world.sends(*id), [done(2), done(4)]);
                let came = [(10, Outcome::Done, 2), (11, Outcome::Done, 4)];
                assert_eq!(client.received(), came);
            }
            world.talk();
        }
    }
}

/// Both queues fail, one after the other.
#[test]
fn both_queues_fail() {
    for polls in 0..24 {
        let mut world = World::new(3, 8);
        for turn in 0..2 {
            let set = &world.world.set;
            let fault = match polls % 2 == turn {
                true => set.cqns().next().map(Fault::CqOverrun),
                false => set.srqns().next().map(Fault::SrqErr),
            };
            // The queue that fails second may just be replaced, too.
            fault
                .into_iter()
                .for_each(|fault| world.world.strike(fault));
            for _ in 0..polls / 2 {
                world.world.poll_set(64);
            }
        }
        world.world.settle();
        world.world.all_ready();
        world.talk();
    }
}

/// A link recovers when the shared receive queue fails, one is being closed, one connects for the first time,
/// and one has been removed.
#[test]
fn it_fails_in_every_state_of_a_link() {
    for polls in 0..12 {
        let mut world = World::new(4, 8);
        let srqn = world.world.set.srqns().next().unwrap();
        let number = world.world.qp_num(0);
        world.world.strike(Fault::QpFatal(number));
        let closed = world.world.clients[1].0;
        world.world.set.close(closed, Duration::ZERO).unwrap();
        let (removed, _) = world.world.clients.remove(3);
        world.world.set.remove(removed).unwrap();
        world.world.join(&init());
        for _ in 0..polls {
            world.world.poll_set(64);
            let clients = &mut world.world.clients;
            clients.iter_mut().for_each(|(_, client)| _ = client.poll());
        }
        world.world.strike(Fault::SrqErr(srqn));
        world.world.settle();
        let ended = LinkState::Ended(LinkEnd::Closed);
        assert_eq!(world.world.set.state(closed), Ok(ended));
        world.world.set.remove(closed).unwrap();
        world.world.clients.remove(1);
        world.world.all_ready();
        world.talk();
    }
}

/// The program reports the failure, by any link: the same.
#[test]
fn a_reported_failure_is_of_all() {
    let mut world = World::new(3, 8);
    let srqn = world.world.set.srqns().next();
    let id = world.world.clients[2].0;
    let fault = bellwire::fault::Fault::Event(EventType::SrqErr);
    world.world.set.report(id, fault).unwrap();
    world.world.settle();
    world.world.all_ready();
    assert_ne!(world.world.set.srqns().next(), srqn);
    assert_eq!(world.epochs(), [2, 2, 2]);
    world.talk();
    // A set without one: the link recovers.
    let mut world = SetWorld::new(2);
    let id = world.clients[0].0;
    world.set.report(id, fault).unwrap();
    world.settle();
    world.all_ready();
    assert_eq!(world.set.srqns().count(), 0);
    assert_eq!(world.set.receives_posted(), 0);
    world.talk();
}

/// Receives whose completions are lost come back with the queues, every time; and no outcome is false.
#[test]
fn buffers_of_lost_completions_come_back() {
    let mut world = World::new(2, 4);
    for _ in 0..6 {
        world.world.forget();
        let script = Script::default().with(Trigger::Entry(1), Fault::RecvCqOverrun);
        world
            .world
            .device
            .as_soft()
            .unwrap()
            .inject(&script)
            .unwrap();
        world.go(0, 1);
        world.world.settle();
        world.world.all_ready();
        let sends = world.world.clients[0].1.sends();
        let is_right = |outcome| matches!(outcome, Outcome::Done | Outcome::InDoubt(_));
        assert!(sends.len() == 1 && is_right(sends[0].1), "{sends:?}");
        // As many messages come as there are buffers, without one being returned.
        world.world.forget();
        (0..4).for_each(|wr_id| world.go(1, wr_id));
        let held = world.poll();
        assert_eq!(held.len(), 4);
        drop(held);
        world.full();
    }
}

/// A message that is too long fails, and its buffer comes back.
#[test]
fn a_message_that_is_too_long_is_a_fault_of_its_link() {
    let device = virtual_device(1);
    let pd = device.alloc_pd();
    let layout = [ClassLayout { size: 64, count: 4 }];
    let slab = slab(&pd, &layout);
    let set_init = LinkSetInit {
        srq: Some(LinkSetSrq {
            slab: slab.clone(),
            length: 64,
            max_held: None,
        }),
        ..set_init(2)
    };
    let mut world = SetWorld::unconnected_on(&pd, 2, set_init, &init());
    world.settle();
    for _ in 0..8 {
        world.clients[0].1.go(1, Send {}, Replay::Surface);
        world.settle();
        world.all_ready();
    }
    let sends = world.clients[0].1.sends();
    let failed = |(_, outcome): &(u64, Outcome)| matches!(outcome, Outcome::Failed(_));
    assert!(sends.len() == 8 && sends.iter().all(failed), "{sends:?}");
    assert_eq!(world.set.link(world.clients[1].0).unwrap().epoch(), 1);
    assert_eq!(world.set.receives_posted(), 4);
    assert!(world.log.is_empty(), "{:?}", world.log);
}

/// A peer that takes more buffers than it may loses its link; the others have theirs.
#[test]
fn a_flooding_peer_loses_its_link() {
    let mut world = World::limited(3, 16, Some(4));
    // As many as it wants, if they are returned.
    for round in 0..20 {
        world.world.forget();
        for wr_id in 0..4 {
            world.go(0, 10 * round + wr_id);
            world.go(1, wr_id);
        }
        drop(world.poll());
    }
    world.talk();
    let (flooding, other) = (world.world.clients[0].0, world.world.clients[1].0);
    world.world.forget();
    for wr_id in 0..4 {
        world.go(0, wr_id);
        world.go(1, wr_id);
    }
    let mut held = world.poll();
    assert_eq!(held.len(), 8);
    world.world.all_ready();
    // One is returned: one more may come, and no further one.
    held.retain(|(id, word, _)| *id != flooding || *word != 2);
    world.go(0, 4);
    held.extend(world.poll());
    world.world.all_ready();
    assert_eq!(held.len(), 8);
    world.go(0, 5);
    held.extend(world.poll());
    let exceeded = bellwire::fault::Fault::RecvLimitExceeded;
    let ended = world.world.set.state(flooding).unwrap();
    assert_eq!(ended.why(), Some(EndReason::Fault(exceeded)));
    assert_eq!(world.world.set.state(other), Ok(LinkState::Ready));
    world.world.settle();
    let (_, client) = world.world.clients.remove(0);
    // Its peer says why.
    let reported = EndReason::PeerGaveUp(exceeded.without_circumstances());
    assert_eq!(client.state().why(), Some(reported));
    // What was received is reported as executed, at both ends.
    assert_eq!(held.len(), 9);
    let done = (0..6).map(|wr_id| (wr_id, Outcome::Done));
    assert_eq!(client.sends(), done.collect::<Vec<_>>());
    assert_eq!(world.came_to(other, &held), [0, 1, 2, 3]);
    drop(held);
    world.world.set.remove(flooding).unwrap();
    // A link in its slot has a count of its own.
    world.world.join(&init());
    world.world.settle();
    world.talk();
}

/// Blocks may outlive the set, and links of it that were removed.
#[test]
fn blocks_outlive_the_set() {
    let mut world = World::new(2, 4);
    world.go(0, 5);
    world.go(1, 6);
    let held = world.poll();
    world.world.set.remove(held[0].0).unwrap();
    let World { world, buffers } = world;
    drop(world);
    assert_eq!(buffers.outstanding(), 2);
    assert_eq!(held[0].2.as_slice()[..8], 5u64.to_le_bytes());
    drop(held);
    assert_eq!(buffers.outstanding(), 0);
}

#[test]
fn what_cannot_supply_it_is_refused() {
    let pd = Device::soft(Default::default()).alloc_pd();
    let refused = |slab: &Slab, length| {
        let set_init = LinkSetInit {
            srq: Some(LinkSetSrq {
                slab: slab.clone(),
                length,
                max_held: None,
            }),
            ..set_init(2)
        };
        LinkSet::new(&pd, set_init).map(drop).unwrap_err()
    };
    let foreign = buffers(&pd.device().alloc_pd(), 4);
    let error = refused(&foreign, BLOCK);
    assert!(matches!(error, Error::Foreign { what: "slab" }), "{error}");
    let slab = buffers(&pd, 4);
    let error = refused(&slab, BLOCK + 1);
    assert!(
        matches!(error, Error::NoBlock(TakeError::TooLarge { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("larger class"), "{error}");
    let taken: Vec<_> = (0..4).map(|_| slab.take(BLOCK).unwrap()).collect();
    let error = refused(&slab, BLOCK);
    assert!(
        matches!(error, Error::NoBlock(TakeError::Empty { .. })),
        "{error}"
    );
    drop(taken);
    // One slab is for one set.
    let first = LinkSet::new(&pd, on_srq(2, &slab)).unwrap();
    let error = refused(&slab, BLOCK);
    assert!(
        matches!(error, Error::NoBlock(TakeError::Empty { .. })),
        "{error}"
    );
    drop(first);
    assert_eq!(slab.outstanding(), 0);
}

/// Acknowledges the events of the device, and delivers them to the links, but no `LAST_WQE_REACHED`: as of a
/// device that does not raise it.
fn without_last_wqe(device: &Device) {
    device.set_async_nonblocking(true).unwrap();
    while let Ok(event) = device.get_async_event() {
        match event.event_type() {
            EventType::QpLastWqeReached => event.ack(),
            _ => device.dispatch(event),
        }
    }
}

/// A queue pair that has failed is not reset before `LAST_WQE_REACHED`, or before the time for it has passed.
#[test]
fn a_queue_pair_may_still_take_receives() {
    let limit = init().limits.last_wqe;
    let mut world = World::new(2, 8);
    let (id, number) = (world.world.clients[0].0, world.world.qp_num(0));
    world.world.strike(Fault::QpFatal(number));
    without_last_wqe(&world.world.device);
    let state = |world: &mut World| {
        let link = world.world.set.link(id).unwrap();
        (link.state(), link.qp_attr().map(|attr| attr.qp_state))
    };
    for _ in 0..4 {
        world.world.poll();
        let waits = (LinkState::Recovering, Some(QpState::Err));
        assert_eq!(state(&mut world), waits);
        world.world.device.as_soft().unwrap().advance(limit / 8);
    }
    world.world.device.as_soft().unwrap().advance(limit / 2);
    world.world.settle();
    world.world.all_ready();
    world.talk();
}

/// The same of a link that is removed: its queue pair is destroyed later, or when the event comes.
#[test]
fn a_removed_link_may_still_take_receives() {
    let limit = init().limits.last_wqe;
    for comes in [false, true] {
        let mut world = World::new(2, 8);
        let device = world.world.device.clone();
        let before = device.resources().qp;
        let number = world.world.qp_num(0);
        world.world.strike(Fault::QpFatal(number));
        without_last_wqe(&device);
        let (id, client) = world.world.clients.remove(0);
        world.world.set.remove(id).unwrap();
        assert!(world.world.set.link(id).is_err());
        drop(client);
        let left = || device.resources().qp;
        assert_eq!(left(), before - 1, "the client's");
        if comes {
            let soft = device.as_soft().unwrap();
            let element = bellwire::event::Element::Qp(number);
            soft.raise(EventType::QpLastWqeReached, element).unwrap();
        } else {
            world.world.poll();
            assert_eq!(left(), before - 1);
            device.as_soft().unwrap().advance(limit);
        }
        world.world.poll();
        assert_eq!(left(), before - 2);
        world.world.join(&init());
        world.world.settle();
        world.talk();
    }
}
