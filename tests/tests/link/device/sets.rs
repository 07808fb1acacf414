//! Sets on a shared receive queue. `BELLWIRE_DEVICE_LINKS` says how many links each has; the guest's tests have some
//! dozens. Two hundred, by the program that `cargo test --no-run` names, take a minute there:
//!
//! ```text
//! cargo xtask vm -- env BELLWIRE_VERBS_DEVICE=rxe0 BELLWIRE_DEVICE_LINKS=200 \
//!     target/optimized/deps/link-HASH device::sets --ignored --test-threads=1
//! ```

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

/// Links of a set where nothing else is asked for.
const LINKS: usize = 3;

fn links() -> usize {
    let given = std::env::var("BELLWIRE_DEVICE_LINKS").ok();
    given.map_or(LINKS, |links| links.parse().expect("a number"))
}

/// Enough for some messages of each link, and more than fit in the completion queue of [`few_entries`], which a device
/// may make four times as large.
fn buffers() -> u32 {
    5 * few_entries()
}

/// Entries of a completion queue that takes a message of each link, and not all that there are buffers for.
fn few_entries() -> u32 {
    links() as u32 + 8
}

fn world(cq_entries: Option<u32>) -> (SetWorld, Slab) {
    let pd = device().alloc_pd();
    let layout = [ClassLayout {
        size: BLOCK,
        count: buffers(),
    }];
    let slab = slab(&pd, &layout);
    let set_init = LinkSetInit {
        cq_entries,
        srq: Some(LinkSetSrq {
            slab: slab.clone(),
            length: BLOCK,
            max_held: Some(buffers()),
        }),
        ..set_init(links() as u32)
    };
    let mut world = SetWorld::unconnected_on(&pd, links(), set_init, &patient());
    work(&mut world);
    (world, slab)
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
        world.set.receives_posted() == buffers()
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
    let (mut world, slab) = world(None);
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
    assert_eq!(slab.outstanding(), 0);
}

/// The shared completion queue overruns in earnest. What is reported as not executed has not come; and the
/// buffers of the receives whose completions were lost come back.
#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn a_shared_completion_queue_overruns() {
    let (mut world, slab) = world(Some(few_entries()));
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
    let epochs: Vec<_> = (world.clients.iter())
        .map(|(id, _)| world.set.link(*id).unwrap().epoch())
        .collect();
    assert!(epochs.iter().all(|epoch| *epoch > 1), "{epochs:?}");
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
    assert_eq!(slab.outstanding(), 0);
}
