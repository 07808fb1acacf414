//! Requests of links in a set that are cancelled, and deadlines of single requests.

use super::world::{SetWorld, set_init};
use crate::world::{BLOCK, init};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Cancel, CancelError, LinkInit, LinkSetInit, LinkSetSrq};
use bellwire::wqe::Send;
use bellwire::{ClassLayout, Pd};
use bellwire_tests::fixture::{SIGNALED, slab, virtual_device};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Two links whose messages wait for receives without end.
fn world(set_init: LinkSetInit, pd: &Pd, keep_alive: Option<Duration>) -> SetWorld {
    let mut init = init();
    init.connect.rnr_retry = 7;
    let init = LinkInit { keep_alive, ..init };
    let mut world = SetWorld::unconnected_on(pd, 2, set_init, &init);
    world.settle();
    world.all_ready();
    world
}

fn send(world: &mut SetWorld, of: usize, wr_id: u64) {
    let id = world.clients[of].0;
    let mut link = world.set.link(id).unwrap();
    let posted = link.post_inline(wr_id, Send {}, b"12345678", SIGNALED, Replay::IfSafe);
    posted.unwrap();
    link.ring();
}

fn outcomes(world: &SetWorld, of: usize) -> Vec<(u64, Outcome)> {
    let id = world.clients[of].0;
    let lines = world.log.iter().filter(|(from, _)| *from == id);
    lines.map(|(_, line)| (line.wr_id, line.outcome)).collect()
}

#[test]
fn only_the_link_recovers() {
    let pd = virtual_device(1).alloc_pd();
    let mut world = world(set_init(2), &pd, None);
    let ids = [0, 1].map(|of| world.clients[of].0);
    for wr_id in 1..=3 {
        send(&mut world, 0, wr_id);
        send(&mut world, 1, wr_id);
    }
    assert_eq!(world.set.cancel(ids[0], 2), Ok(Cancel::Requested));
    assert_eq!(world.set.cancel(ids[0], 2), Ok(Cancel::Repeated));
    assert_eq!(world.set.cancel(ids[0], 4), Err(CancelError::NotFound));
    let receive = world.set.cancel_recv(ids[0], 2);
    assert_eq!(receive, Err(CancelError::NotFound));
    world.settle();
    assert_eq!(outcomes(&world, 0), [(2, Outcome::NotExecuted)]);
    assert_eq!(outcomes(&world, 1), []);
    let epochs = ids.map(|id| world.set.link(id).unwrap().epoch());
    assert_eq!(epochs, [2, 1]);
    world.set.remove(ids[1]).unwrap();
    assert_eq!(world.set.cancel(ids[1], 1), Err(CancelError::NoLink));
}

/// A later deadline, or a check that is due later, does not hold an earlier deadline up.
#[test]
fn the_earliest_deadline_counts() {
    for keep_alive in [None, Some(Duration::from_secs(100))] {
        let pd = virtual_device(1).alloc_pd();
        let mut world = world(set_init(2), &pd, keep_alive);
        let id = world.clients[0].0;
        for wr_id in 1..=3 {
            send(&mut world, 0, wr_id);
        }
        for (wr_id, within) in [(1, 50 * MS), (2, 10 * MS), (3, 5000 * MS)] {
            let result = world.set.cancel_after(id, wr_id, within);
            assert_eq!(result, Ok(Cancel::Requested));
            world.poll();
        }
        let soft = world.device.clone();
        let soft = soft.as_soft().unwrap();
        soft.advance(9 * MS);
        world.poll();
        assert_eq!(outcomes(&world, 0), []);
        soft.advance(2 * MS);
        world.settle();
        assert_eq!(outcomes(&world, 0), [(2, Outcome::NotExecuted)]);
        soft.advance(50 * MS);
        world.settle();
        let not = |wr_id| (wr_id, Outcome::NotExecuted);
        assert_eq!(outcomes(&world, 0), [not(2), not(1)]);
        assert_eq!(world.set.link(id).unwrap().epoch(), 3);
    }
}

#[test]
fn receives_of_a_shared_receive_queue_are_the_sets() {
    let pd = virtual_device(1).alloc_pd();
    let layout = [ClassLayout {
        size: BLOCK,
        count: 16,
    }];
    let srq = LinkSetSrq {
        slab: slab(&pd, &layout),
        length: BLOCK,
        max_held: None,
    };
    let set_init = LinkSetInit {
        srq: Some(srq),
        ..set_init(2)
    };
    let mut world = world(set_init, &pd, None);
    let id = world.clients[0].0;
    let none = Err(CancelError::NoRecvQueue);
    assert_eq!(world.set.cancel_recv(id, 1), none);
    assert_eq!(world.set.cancel_recv_after(id, 1, MS), none);
    // Sends are its own.
    send(&mut world, 0, 1);
    assert_eq!(world.set.cancel(id, 1), Ok(Cancel::Requested));
    world.settle();
    assert_eq!(outcomes(&world, 0), [(1, Outcome::NotExecuted)]);
}
