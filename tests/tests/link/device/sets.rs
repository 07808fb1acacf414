//! Sets on a shared receive queue.

use super::{device, patient};
use crate::set::world::{SetWorld, set_init};
use crate::world::BLOCK;
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkSetInit, LinkSetSrq, LinkState};
use bellwire::wqe::Send;
use bellwire::{ClassLayout, Slab};
use bellwire_tests::fixture::{SIGNALED, slab, until};
use std::time::Duration;

const LINKS: usize = 3;
const BUFFERS: u32 = 64;

fn world(cq_entries: Option<u32>) -> (SetWorld, Slab) {
    let pd = device().alloc_pd();
    let layout = [ClassLayout {
        size: BLOCK,
        count: BUFFERS,
    }];
    let buffers = slab(&pd, &layout);
    let set_init = LinkSetInit {
        cq_entries,
        srq: Some(LinkSetSrq {
            slab: buffers.clone(),
            length: BLOCK,
            max_held: Some(BUFFERS),
        }),
        ..set_init(LINKS as u32)
    };
    let mut world = SetWorld::unconnected_on(&pd, LINKS, set_init, &patient());
    work(&mut world);
    (world, buffers)
}

/// Until all links work, on the same connections at both ends.
fn work(world: &mut SetWorld) {
    until("all links work", || {
        world.poll();
        world.clients.iter().all(|(id, client)| {
            let link = world.set.link(*id).unwrap();
            let states = [link.state(), client.state()];
            states == [LinkState::Ready; 2] && link.epoch() == client.link.epoch()
        })
    });
}

/// All buffers are posted again.
fn full(world: &mut SetWorld) {
    until("the buffers are posted", || {
        world.poll();
        world.set.receives_posted() == BUFFERS
    });
}

/// A message of each client comes.
fn talk(world: &mut SetWorld, number: u64) {
    world.forget();
    for (_, client) in &mut world.clients {
        client.go(number, Send {}, Replay::IfSafe);
    }
    until("the messages come", || {
        world.poll();
        let mut clients = world.clients.iter();
        clients.all(|(id, client)| world.received(*id).len() + client.sends().len() == 2)
    });
    for (id, client) in &world.clients {
        let (_, outcome, word) = world.received(*id)[0];
        assert_eq!((outcome, word), (Outcome::Done, number));
        assert_eq!(client.sends(), [(number, Outcome::Done)]);
    }
    full(world);
}

#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn sets_recover_on_a_shared_receive_queue() {
    let (mut world, buffers) = world(None);
    talk(&mut world, 1);
    let faults = [
        Fault::PeerRecovery,
        Fault::Event(EventType::SrqErr),
        Fault::Event(EventType::CqErr),
    ];
    for (number, fault) in (2..).zip(faults) {
        world.set.report(world.clients[1].0, fault).unwrap();
        work(&mut world);
        talk(&mut world, number);
    }
    let client = world.clients.remove(2).0;
    world.set.remove(client).unwrap();
    talk(&mut world, 9);
    drop(world);
    assert_eq!(buffers.outstanding(), 0);
}

/// The shared completion queue overruns in earnest. What is reported as not executed has not come; and the
/// buffers of the receives whose completions were lost come back.
#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn a_shared_completion_queue_overruns() {
    let (mut world, buffers) = world(Some(8));
    talk(&mut world, 1);
    world.forget();
    for (_, client) in &mut world.clients {
        (0..16).for_each(|wr_id| client.stage(wr_id, Send {}, SIGNALED, Replay::Surface));
        client.link.ring();
    }
    until("all are reported", || {
        world
            .clients
            .iter_mut()
            .for_each(|(_, client)| _ = client.poll());
        // Late, so that it overruns.
        std::thread::sleep(Duration::from_millis(50));
        world.poll();
        let mut clients = world.clients.iter();
        clients.all(|(_, client)| client.sends().len() == 16)
    });
    work(&mut world);
    let overran = |id| world.set.link(id).unwrap().epoch() > 1;
    let ids: Vec<_> = world.clients.iter().map(|(id, _)| *id).collect();
    assert!(ids.into_iter().all(overran));
    for (id, client) in &world.clients {
        let came: Vec<_> = world.received(*id).iter().map(|(.., word)| *word).collect();
        for (wr_id, outcome) in client.sends() {
            let right = match outcome {
                Outcome::NotExecuted | Outcome::Failed(_) => !came.contains(&wr_id),
                Outcome::Done | Outcome::InDoubt(_) => true,
            };
            assert!(right, "{wr_id}: {outcome:?}, {came:?}");
        }
    }
    full(&mut world);
    talk(&mut world, 2);
    drop(world);
    assert_eq!(buffers.outstanding(), 0);
}
