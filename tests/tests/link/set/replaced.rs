//! What befalls a completion queue while the shared receive queue beside it is replaced.

use super::world::{SetWorld, set_init};
use crate::world::{BLOCK, End, init};
use bellwire::ClassLayout;
use bellwire::event::{Element, EventType};
use bellwire::fault;
use bellwire::link::{LinkSetInit, LinkSetSrq, LinkState, pair};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire_tests::fixture::{slab, virtual_device};
use std::time::Duration;

fn numbers(world: &SetWorld) -> (Vec<u32>, Vec<u32>) {
    (world.set.cqns().collect(), world.set.srqns().collect())
}

/// Another link of the device takes the event of the completion queue's failure, while the last link leaves the
/// shared receive queue: the set, which keeps the completion queue then, gets the event nevertheless.
#[test]
fn a_completion_queue_fails_while_the_shared_receive_queue_is_replaced() {
    let pd = virtual_device(1).alloc_pd();
    let count = 8;
    let set_init = LinkSetInit {
        srq: Some(LinkSetSrq {
            slab: slab(&pd, &[ClassLayout { size: BLOCK, count }]),
            length: BLOCK,
            max_held: None,
        }),
        // Few enough for the test, and more than it takes until the queue is replaced.
        check_every: 50,
        ..set_init(2)
    };
    let mut world = SetWorld::unconnected_on(&pd, 1, set_init, &init());
    world.settle();
    world.all_ready();
    // It looks at the device's events in each poll.
    let mut other = End::new(&pd, init(), pair().0);
    let id = world.clients[0].0;
    let (cqns, srqns) = numbers(&world);

    let srq_err = fault::Fault::Event(EventType::SrqErr);
    world.set.report(id, srq_err).unwrap();
    world.set.remove(id).unwrap();
    // No queue pair is left that would fail with it, and so say it another time.
    let failed = Fault::Raise(EventType::CqErr, Element::Cq(cqns[0]));
    let failed = Script::default().with(Trigger::After(Duration::ZERO), failed);
    let soft = world.device.as_soft().unwrap();
    soft.inject(&failed).unwrap();
    soft.advance(Duration::from_nanos(1));
    other.poll();
    let mut polls = 0;
    while numbers(&world).1 == srqns {
        world.set.poll(1, |_, _| ());
        polls += 1;
        assert!(polls < 40, "it is not replaced");
    }
    for _ in 0..200 {
        world.set.poll(1, |_, _| ());
    }
    assert_ne!(numbers(&world).0, cqns, "a failed completion queue is used");
    world.clients.clear();
    let id = world.join(&init());
    world.settle();
    assert_eq!(world.set.state(id), Ok(LinkState::Ready));
}
