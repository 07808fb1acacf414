//! Receives that are posted before a link is connected, also when it has been polled already.

use crate::modes::{over_tcp_ends, ready, until};
use crate::world::{BLOCK, End, World, init, line};
use bellwire::connect::{ConnInfo, Message, RecoveryInfo};
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::EndReason;
use bellwire::link::{
    Exchange, LinkEnd, LinkError, LinkInit, LinkState, LocalExchange, RecoverIn, pair,
};
use bellwire::queue::PostError;
use bellwire::wqe::Send;
use bellwire::wr::{SendFlags, Sge};
use bellwire_tests::fixture::{device, virtual_device};
use std::time::Duration;

/// Receives that the queues here have room for.
const ROOM: u64 = 16;

/// A step in each poll: whatever can be between two steps is seen.
fn slow() -> LinkInit {
    LinkInit {
        max_steps_per_poll: 1,
        ..init()
    }
}

/// One more than there is room for is refused as by a queue.
fn refuses_another(end: &mut End) {
    let block = end.slab.take(BLOCK).unwrap();
    let refused = end.link.post_recv_block(99, block).unwrap_err();
    assert_eq!(refused.error, LinkError::Post(PostError::QueueFull));
}

/// As many messages as there is room for come in the order in which the receives were posted.
fn all_come(world: &mut World) {
    for word in 0..ROOM {
        world.b.go(100 + word, Send {}, Replay::Surface);
        world.poll();
    }
    let expected: Vec<_> = (0..ROOM).map(|at| (at, Outcome::Done, 100 + at)).collect();
    assert_eq!(world.a.received(), expected);
    world.all_reported([0, 0]);
}

/// One between any two polls from the first on; on the way something fails, before each of them in turn.
#[test]
fn at_any_time_in_order() {
    for fault_at in 0..14 {
        let mut world = World::unconnected(&slow());
        for wr_id in 0..ROOM {
            world.a.receive([wr_id]);
            if wr_id == fault_at {
                world.a.link.report(Fault::Event(EventType::QpFatal));
            }
            world.a.poll();
            // The other takes its time.
            if wr_id >= 6 {
                world.b.poll();
            }
        }
        refuses_another(&mut world.a);
        world.settle();
        assert_eq!(world.states(), [LinkState::Ready; 2]);
        refuses_another(&mut world.a);
        all_come(&mut world);
        world.talk();
    }
}

/// All of them behind each number of steps.
#[test]
fn all_at_once_behind_any_step() {
    for polls in 1..20 {
        let mut world = World::unconnected(&slow());
        for _ in 0..polls {
            world.a.poll();
            world.b.poll();
        }
        world.a.receive(0..ROOM);
        refuses_another(&mut world.a);
        world.settle();
        all_come(&mut world);
    }
}

/// The raw path refuses what the queue would, though none takes it yet, and its messages come to where
/// they should.
#[test]
fn into_memory() {
    let mut world = World::unconnected(&init());
    world.a.poll();
    let mr = world.a.region.mr();
    let sge = |at: u64, length| Sge {
        addr: mr.addr() + at,
        length,
        lkey: mr.lkey(),
    };
    let (good, long) = ([sge(0, 64), sge(64, 192)], sge(0, 1 << 31));
    let max = init().qp.max_recv_sge as usize;
    let many = vec![good[0]; max.max(1) * 64];
    // SAFETY: the region outlives the link, and is not touched before the messages have come.
    let mut post = |wr_id, sges: &[Sge]| unsafe { world.a.link.post_recv(wr_id, sges) };
    assert!(matches!(
        post(1, &many),
        Err(LinkError::Post(PostError::TooManySges { given, .. })) if given == many.len()
    ));
    assert_eq!(
        post(1, &[long]),
        Err(LinkError::Post(PostError::SgeTooLong { length: 1 << 31 }))
    );
    post(2, &good[..max.min(2)]).unwrap();
    world.a.posted += 1;
    world.settle();
    world
        .b
        .link
        .post_inline(3, Send {}, b"early", SendFlags::SIGNALED, Replay::Surface)
        .unwrap();
    world.b.link.ring();
    world.b.posted += 1;
    world.poll();
    assert_eq!(world.a.received(), [(2, Outcome::Done, 0)]);
    let mut bytes = [0; 5];
    world.a.region.read(0, &mut bytes);
    assert_eq!(&bytes, b"early");
    world.all_reported([0, 0]);
}

/// A first end whose peer is the test.
fn alone(init: LinkInit) -> (World, LocalExchange) {
    let device = virtual_device(1);
    let pd = device.alloc_pd();
    let (first, peer) = pair();
    let (_, second) = pair();
    let world = World {
        a: End::new(&pd, init.clone(), first),
        b: End::new(&pd, init, second),
        device,
    };
    (world, peer)
}

/// What brings an end that nobody else knows of to where it waits for its peer's Ready.
fn stranger() -> Vec<u8> {
    let info = RecoveryInfo {
        epoch: 1,
        conn: ConnInfo {
            endpoint: bellwire::Endpoint {
                qp_num: 0x00ff_ffff,
                ..Default::default()
            },
            ..Default::default()
        },
        connection: 0,
        consumed: 0,
        exact: true,
    };
    Message::Info(info).to_bytes().to_vec()
}

/// A link that ends before it works reports them all, as not executed and in order: some were posted before
/// the first poll, some while nobody answered, some when the queue pair was connected on this side.
#[test]
fn reported_once_where_the_link_ends_unconnected() {
    for (heard, closes) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut world, mut peer) = alone(init());
        world.a.receive(0..2);
        world.a.poll();
        world.a.receive(2..4);
        if heard {
            peer.send(&stranger()).unwrap();
            world.poll();
        }
        world.a.receive(4..6);
        world.poll();
        assert_eq!(world.a.state(), LinkState::Recovering);
        assert_eq!(world.a.log, []);
        if closes {
            world.a.link.close(Duration::from_millis(1));
            let block = world.a.slab.take(BLOCK).unwrap();
            let refused = world.a.link.post_recv_block(99, block).unwrap_err();
            assert_eq!(refused.error, LinkError::Recovering);
        } else {
            drop(peer);
        }
        world.settle_a();
        let state = world.a.state();
        assert_eq!(state == LinkState::Ended(LinkEnd::Closed), closes);
        assert_eq!(state.why(), (!closes).then_some(EndReason::PeerLost));
        let expected: Vec<_> = (0..6)
            .map(|wr_id| (wr_id, Outcome::NotExecuted, 0))
            .collect();
        assert_eq!(world.a.received(), expected);
        world.all_reported([0, 0]);
        let block = world.a.slab.take(BLOCK).unwrap();
        let refused = world.a.link.post_recv_block(99, block).unwrap_err();
        let ended = |end| LinkState::Ended(end) == state;
        assert!(matches!(refused.error, LinkError::Ended(end) if ended(end)));
    }
}

/// Between any two steps of giving up, too.
#[test]
fn reported_once_while_the_link_is_given_up() {
    let (mut world, peer) = alone(slow());
    world.a.poll();
    drop(peer);
    let mut posted = 0;
    loop {
        let block = world.a.slab.take(BLOCK).unwrap();
        match world.a.link.post_recv_block(posted, block) {
            Ok(()) => posted += 1,
            Err(refused) => assert_ne!(refused.error, LinkError::Post(PostError::QueueFull)),
        }
        if matches!(world.a.state(), LinkState::Ended(_)) {
            break;
        }
        world.a.poll();
    }
    assert!(posted > 1, "{posted}");
    let reported: Vec<_> = world.a.received().iter().map(|line| line.0).collect();
    assert_eq!(reported, (0..posted).collect::<Vec<_>>());
    assert_eq!(world.a.slab.outstanding(), 0);
}

/// Dropped, it reports nothing; the blocks are back.
#[test]
fn blocks_come_back_from_a_link_that_is_dropped() {
    for recover_in in [RecoverIn::Poll, RecoverIn::Thread] {
        let (mut world, _peer) = alone(LinkInit {
            recover_in,
            ..init()
        });
        world.a.poll();
        world.a.receive(0..4);
        let End { link, slab, .. } = world.a;
        drop(link);
        assert_eq!(slab.outstanding(), 0);
    }
}

/// A link that has worked refuses them, as all posts, until it works again.
#[test]
fn refused_while_it_recovers() {
    let mut world = World::unconnected(&slow());
    world.a.poll();
    world.a.receive(0..ROOM);
    world.settle();
    world.a.link.report(Fault::Event(EventType::QpFatal));
    while world.a.state() != LinkState::Ready {
        let block = world.a.slab.take(BLOCK).unwrap();
        let refused = world.a.link.post_recv_block(99, block).unwrap_err();
        assert_eq!(refused.error, LinkError::Recovering);
        world.a.poll();
        world.b.poll();
    }
    world.settle();
    all_come(&mut world);
}

/// Some before the first poll, and the rest when a thread may have the link, or the exchange its time.
fn in_real_time(recover_in: RecoverIn, ends: (impl Exchange + 'static, impl Exchange + 'static)) {
    let device = device(bellwire::soft::Mode::Inline);
    let pd = device.alloc_pd();
    let init = LinkInit {
        recover_in,
        ..init()
    };
    let mut a = End::new(&pd, init.clone(), ends.0);
    let mut b = End::new(&pd, init, ends.1);
    a.receive(0..3);
    a.poll();
    a.receive(3..8);
    std::thread::sleep(Duration::from_millis(2));
    a.receive(8..ROOM);
    refuses_another(&mut a);
    until(&mut a, &mut b, ready);
    for word in 0..ROOM {
        b.go(100 + word, Send {}, Replay::Surface);
        until(&mut a, &mut b, |a, b| {
            a.log.len().min(b.log.len()) as u64 > word
        });
    }
    let expected: Vec<_> = (0..ROOM).map(|at| (at, Outcome::Done, 100 + at)).collect();
    assert_eq!(a.received(), expected);
    assert_eq!((a.slab.outstanding(), b.slab.outstanding()), (0, 0));
}

#[test]
fn in_a_thread() {
    in_real_time(RecoverIn::Thread, pair());
}

#[test]
fn over_tcp() {
    in_real_time(RecoverIn::Poll, over_tcp_ends());
}

#[test]
fn over_tcp_in_a_thread() {
    in_real_time(RecoverIn::Thread, over_tcp_ends());
}

/// The thread is done, and the link has ended, when they are posted, or may be.
#[test]
fn reported_once_by_a_link_that_a_thread_gave_up() {
    let device = device(bellwire::soft::Mode::Inline);
    let (first, peer) = pair();
    let init = LinkInit {
        recover_in: RecoverIn::Thread,
        ..init()
    };
    let mut a = End::new(&device.alloc_pd(), init, first);
    a.receive(0..2);
    a.poll();
    a.receive(2..4);
    drop(peer);
    std::thread::sleep(Duration::from_millis(20));
    a.receive(4..6);
    let log = &mut a.log;
    a.link.drain(Duration::from_secs(5), |completion| {
        log.push(line(completion))
    });
    let expected: Vec<_> = (0..6)
        .map(|wr_id| (wr_id, Outcome::NotExecuted, 0))
        .collect();
    assert_eq!(a.received(), expected);
    assert_eq!(a.slab.outstanding(), 0);
}
