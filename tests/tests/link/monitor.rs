//! Another thread reads the counters of links and sets, while this one uses and recovers them.

use crate::set::world::{SetWorld, set_init};
use crate::world::{BLOCK, World, init};
use bellwire::fault::Scope;
use bellwire::fault::outcome::Replay;
use bellwire::monitor::{LinkMonitor, QueueCounters};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::WrOpcode;
use std::time::Duration;

/// Reads in another thread.
fn in_a_thread<R: std::marker::Send + 'static>(
    read: impl FnOnce() -> R + std::marker::Send + 'static,
) -> R {
    std::thread::spawn(read).join().unwrap()
}

fn queues(monitor: &LinkMonitor) -> QueueCounters {
    let monitor = monitor.clone();
    in_a_thread(move || monitor.queues())
}

fn of(queues: &QueueCounters, operation: WrOpcode) -> (u64, u64) {
    let posted = queues.sends(operation);
    (posted.requests, posted.bytes)
}

#[test]
fn requests_count_by_operation_across_laps_and_recoveries() {
    let mut world = World::new();
    world.talk();
    let (a, b) = (world.a.link.monitor(), world.b.link.monitor());
    assert!(a.is_ready() && !a.has_ended());
    let remote = world.b.memory();
    // More than a lap of the ring.
    for wr_id in 0..40 {
        world.b.receive([wr_id]);
        world.a.go(wr_id, Send {}, Replay::IfSafe);
        world
            .a
            .go(100 + wr_id, RdmaWrite { remote }, Replay::IfSafe);
        world.poll();
    }
    let bytes = |requests: u64| (requests, requests * u64::from(BLOCK));
    let read = queues(&a);
    // Requests before the first monitor do not count.
    assert_eq!(of(&read, WrOpcode::Send), bytes(40));
    assert_eq!(of(&read, WrOpcode::RdmaWrite), bytes(40));
    assert_eq!(of(&read, WrOpcode::RdmaRead), (0, 0));
    assert_eq!(
        (queues(&b).receives, queues(&b).receives_in_flight),
        (40, 0)
    );
    assert_eq!((read.sends_in_flight, read.send_slots), (0, 32));

    // In flight: the peer has no receive.
    world.a.go(1000, Send {}, Replay::IfSafe);
    assert_eq!(queues(&a).sends_in_flight, 1);
    let counters = world.device.counters();
    assert!(
        counters.rnr_naks >= Some(1) && counters.retries == Some(0),
        "{counters:?}"
    );
    // It fails on this queue pair, and is posted again on another.
    let qpn = world.a.link.qp_num().unwrap();
    let script = Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(qpn));
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world.device.progress();
    world.b.receive([2000]);
    world.a.poll();
    assert!(!a.is_ready());
    world.settle();
    world.poll();
    assert!(a.is_ready());
    let again = a.counters();
    assert_eq!((again.replayed, again.recovered), (1, 2));
    assert_ne!(again.faults[usize::from(Scope::Qp.number())], 0);
    assert_eq!(Some(again), world.a.link.counters());
    assert_eq!(of(&queues(&a), WrOpcode::Send), bytes(42));
    world.talk();
    assert_eq!(of(&queues(&a), WrOpcode::Send), bytes(43));
    assert_eq!(queues(&b).receives_in_flight, 0);

    // The last counters stay.
    world.b.link.close(Duration::ZERO);
    world.settle();
    assert!(a.has_ended() && b.has_ended());
    drop(world);
    let last = queues(&a);
    assert_eq!(of(&last, WrOpcode::Send), bytes(43));
    assert_eq!((last.sends_in_flight, last.send_slots), (0, 0));
}

#[test]
fn a_link_that_is_not_polled_is_counted_once_a_lap() {
    let mut world = World::new();
    let monitor = world.a.link.monitor();
    for wr_id in 0..10 {
        world.b.receive([wr_id]);
        world.a.go(wr_id, Send {}, Replay::IfSafe);
    }
    // The ring has 32 blocks.
    assert_eq!(of(&queues(&monitor), WrOpcode::Send).0, 0);
    assert_eq!(queues(&monitor).sends_in_flight, 10);
    world.poll();
    assert_eq!(of(&queues(&monitor), WrOpcode::Send).0, 10);
}

#[test]
fn a_set_has_the_sums_of_its_links_and_of_those_that_were_removed() {
    let init = init();
    let mut world = SetWorld::unconnected(3, set_init(4), &init);
    let monitor = world.set.monitor();
    world.settle();
    world.all_ready();
    let ids: Vec<_> = world.clients.iter().map(|(id, _)| *id).collect();
    for round in 0..30 {
        for (index, id) in ids.iter().enumerate() {
            world.clients[index].1.receive([round]);
            world.send(*id, round, Replay::IfSafe);
        }
        world.poll();
    }
    let sum = monitor.clone();
    let (queues, counters, links) =
        in_a_thread(move || (sum.queues(), sum.counters(), sum.links()));
    assert_eq!(of(&queues, WrOpcode::Send), (90, 90 * u64::from(BLOCK)));
    assert_eq!((counters.recovered, links.len()), (3, 3));
    assert_eq!(queues.send_slots, 3 * 32);
    let (id, link) = links.into_iter().find(|(id, _)| *id == ids[1]).unwrap();
    assert_eq!(of(&link.queues(), WrOpcode::Send).0, 30);
    world.set.remove(id).unwrap();
    world.poll();
    assert_eq!(of(&monitor.queues(), WrOpcode::Send).0, 90);
    assert_eq!(
        (monitor.counters().recovered, monitor.links().len()),
        (3, 2)
    );
    assert_eq!(monitor.queues().send_slots, 2 * 32);
    // A link that joins later is counted, too.
    let late = world.join(&init);
    world.settle();
    world.clients[3].1.receive([7]);
    world.send(late, 7, Replay::IfSafe);
    world.poll();
    assert_eq!(of(&monitor.queues(), WrOpcode::Send).0, 91);
}
