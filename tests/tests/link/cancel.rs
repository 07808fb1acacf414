//! Requests that are cancelled, and deadlines of single requests.

mod storm;

use crate::world::{BLOCK, End, World, init};
use bellwire::fault::Fault as LinkFault;
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::link::{Cancel, CancelError, LinkEnd, LinkInit, LinkState, RecoverIn};
use bellwire::soft::{Fault, Mode, Script, Trigger};
use bellwire::wqe::{AtomicFetchAndAdd, RdmaRead, RdmaWrite, Send};
use bellwire::wr::{Remote, SendFlags};
use bellwire_tests::fixture::{ENGINE, SIGNALED, device};
use std::sync::{Arc, Mutex};
use std::time::Duration;
pub use storm::storm;

const MS: Duration = Duration::from_millis(1);

/// A message for which there is no receive waits for ever.
fn patient() -> LinkInit {
    let mut init = init();
    init.connect.rnr_retry = 7;
    init
}

fn order(world: &World, script: &Script) {
    world.device.as_soft().unwrap().inject(script).unwrap();
}

/// The acknowledgements of the first end's next packets are lost.
fn drop_acks(world: &World, count: u64) {
    let qp_num = world.a.link.qp_num().unwrap();
    let lost = |script: Script, nth| script.with(Trigger::PacketOf { qp_num, nth }, Fault::DropAck);
    order(world, &(1..=count).fold(Script::default(), lost));
}

impl World {
    /// Lets time pass, in which messages are sent again that found no receive, until the first end has reported so much.
    fn until_reported(&mut self, lines: usize) {
        for _ in 0..100_000 {
            self.poll();
            if self.a.log.len() >= lines {
                return;
            }
            self.device.as_soft().unwrap().advance(MS);
        }
        panic!("not all of {lines} reported: {:?}", self.a.log);
    }
}

#[test]
fn one_of_several_is_taken_back_and_the_others_go_on() {
    let mut world = World::with(&patient());
    for wr_id in 1..=4 {
        world.a.go(wr_id, Send {}, Replay::IfSafe);
    }
    world.poll();
    assert_eq!(world.a.link.cancel(2), Ok(Cancel::Requested));
    world.settle();
    assert_eq!(world.a.sends(), [(2, Outcome::NotExecuted)]);
    world.b.receive(10..14);
    world.until_reported(4);
    let done = |wr_id| (wr_id, Outcome::Done);
    let all = [(2, Outcome::NotExecuted), done(1), done(3), done(4)];
    assert_eq!(world.a.sends(), all);
    let words: Vec<_> = world.b.received().iter().map(|&(.., word)| word).collect();
    assert_eq!(words, [1, 3, 4]);
    world.all_reported([0, 1]);
}

#[test]
fn what_is_cancelled_before_a_poll_costs_one_recovery() {
    let mut world = World::with(&patient());
    let faults = Arc::new(Mutex::new(Vec::new()));
    let seen = faults.clone();
    world
        .a
        .link
        .on_fault(move |report| seen.lock().unwrap().push(report.fault));
    for wr_id in 0..8 {
        world.a.go(wr_id, Send {}, Replay::IfSafe);
    }
    world.a.receive(0..4);
    world.poll();
    for wr_id in [1, 5, 6] {
        assert_eq!(world.a.link.cancel(wr_id), Ok(Cancel::Requested));
    }
    assert_eq!(world.a.link.cancel_recv(2), Ok(Cancel::Requested));
    world.settle();
    assert_eq!(world.a.link.epoch(), 2);
    let counters = world.a.link.counters().unwrap();
    assert_eq!((counters.cancelled, counters.deadlines_passed), (4, 0));
    assert_eq!(*faults.lock().unwrap(), [LinkFault::Cancelled]);
    let not = |wr_id| (wr_id, Outcome::NotExecuted);
    assert_eq!(world.a.sends(), [not(1), not(5), not(6)]);
    assert_eq!(world.a.received(), [(2, Outcome::NotExecuted, 0)]);
    world.b.receive(0..8);
    world.until_reported(9);
    assert_eq!(world.a.link.epoch(), 2);
    world.all_reported([3, 3]);
}

#[test]
fn one_that_completes_first_is_executed_and_costs_nothing() {
    let mut world = World::with(&patient());
    world.b.receive([0]);
    world.a.go(1, Send {}, Replay::Surface);
    // Executed by now, and not polled.
    assert_eq!(world.a.link.cancel(1), Ok(Cancel::Requested));
    world.settle();
    assert_eq!(world.a.sends(), [(1, Outcome::Done)]);
    assert_eq!(world.a.link.epoch(), 1);
    world.all_reported([0, 0]);
}

#[test]
fn each_call_has_a_clear_result() {
    let mut world = World::with(&patient());
    let unknown = Err(CancelError::NotFound);
    assert_eq!(world.a.link.cancel(1), unknown);
    assert_eq!(world.a.link.cancel_recv(1), unknown);
    assert_eq!(world.a.link.cancel_after(1, MS), unknown);
    assert_eq!(world.a.link.cancel_recv_after(1, MS), unknown);
    world.b.receive([0]);
    world.a.go(1, Send {}, Replay::Surface);
    world.poll();
    assert_eq!(world.a.link.cancel(1), unknown, "reported");
    world.a.go(2, Send {}, Replay::IfSafe);
    // Of the other queue.
    assert_eq!(world.a.link.cancel_recv(2), unknown);
    assert_eq!(world.a.link.cancel_after(2, MS), Ok(Cancel::Requested));
    assert_eq!(world.a.link.cancel_after(2, 2 * MS), Ok(Cancel::Requested));
    assert_eq!(world.a.link.cancel(2), Ok(Cancel::Requested));
    assert_eq!(world.a.link.cancel(2), Ok(Cancel::Repeated));
    assert_eq!(world.a.link.cancel_after(2, MS), Ok(Cancel::Repeated));
    world.settle();
    assert_eq!(world.a.link.cancel(2), unknown);
    world.a.go(3, Send {}, Replay::IfSafe);
    world.a.link.close(Duration::ZERO);
    world.settle_a();
    world.settle();
    let ended = Err(CancelError::Ended(LinkEnd::Closed));
    assert_eq!(world.a.link.cancel(3), ended);
    assert_eq!(world.a.link.cancel_recv(3), ended);
    let not = |wr_id| (wr_id, Outcome::NotExecuted);
    // Nobody was asked what became of the last one.
    let doubt = (3, Outcome::InDoubt(Doubt::PeerGone));
    assert_eq!(world.a.sends(), [(1, Outcome::Done), not(2), doubt]);
    world.all_reported([0, 0]);
}

/// Several requests may have one identifier: each is taken back, and a deadline is of the last.
#[test]
fn requests_of_one_identifier() {
    let mut world = World::with(&patient());
    for _ in 0..3 {
        world.a.go(7, Send {}, Replay::IfSafe);
    }
    assert_eq!(world.a.link.cancel_after(7, 5 * MS), Ok(Cancel::Requested));
    world.device.as_soft().unwrap().advance(6 * MS);
    world.settle();
    assert_eq!(world.a.sends(), [(7, Outcome::NotExecuted)]);
    assert_eq!(world.a.link.cancel(7), Ok(Cancel::Requested));
    world.settle();
    assert_eq!(world.a.sends(), [(7, Outcome::NotExecuted); 3]);
    assert_eq!(world.a.link.epoch(), 3);
    world.all_reported([0, 0]);
}

/// Executed, and not acknowledged: only the effect at the peer could tell.
#[test]
fn without_an_acknowledgement_the_reason_is_told() {
    for deadline in [false, true] {
        let mut world = World::new();
        let remote = world.b.memory();
        drop_acks(&world, 1);
        let word = Remote {
            addr: remote.addr + 1024,
            ..remote
        };
        world.a.go(1, RdmaWrite { remote }, Replay::Anyway);
        world.a.go(2, RdmaRead { remote }, Replay::Anyway);
        let add = AtomicFetchAndAdd {
            remote: word,
            add: 1,
        };
        let mut block = world.a.slab.take(BLOCK).unwrap();
        block.as_mut_slice().fill(0);
        let posted = world
            .a
            .link
            .post_block(3, add, block, 8, SIGNALED, Replay::Anyway);
        posted.unwrap();
        world.a.posted += 1;
        world.a.link.ring();
        for wr_id in 1..=3 {
            let cancelled = match deadline {
                true => world.a.link.cancel_after(wr_id, Duration::ZERO),
                false => world.a.link.cancel(wr_id),
            };
            assert_eq!(cancelled, Ok(Cancel::Requested));
        }
        world.settle();
        let doubt = match deadline {
            true => Outcome::InDoubt(Doubt::DeadlinePassed),
            false => Outcome::InDoubt(Doubt::Cancelled),
        };
        assert_eq!(world.a.sends(), [(1, doubt), (2, doubt), (3, doubt)]);
        assert_eq!(world.a.link.epoch(), 2);
        world.talk();
        world.all_reported([0, 0]);
    }
}

/// The acknowledgement is lost, and the peer's count tells.
#[test]
fn what_the_peers_count_tells_stays() {
    let mut world = World::new();
    world.b.receive([0]);
    drop_acks(&world, 1);
    world.a.go(1, Send {}, Replay::IfSafe);
    assert_eq!(world.a.link.cancel(1), Ok(Cancel::Requested));
    world.settle();
    assert_eq!(world.a.sends(), [(1, Outcome::Done)]);
    assert_eq!(world.b.received(), [(0, Outcome::Done, 1)]);
    world.all_reported([0, 0]);
}

#[test]
fn a_deadline_is_of_one_request() {
    let mut world = World::with(&patient());
    for wr_id in 1..=3 {
        world.a.go(wr_id, Send {}, Replay::IfSafe);
    }
    world.a.receive([20, 21]);
    assert_eq!(world.a.link.cancel_after(2, 10 * MS), Ok(Cancel::Requested));
    assert_eq!(
        world.a.link.cancel_recv_after(20, 10 * MS),
        Ok(Cancel::Requested)
    );
    assert!(world.a.link.deadline().is_some());
    world.device.as_soft().unwrap().advance(9 * MS);
    world.poll();
    assert_eq!(world.a.link.epoch(), 1, "not before");
    world.device.as_soft().unwrap().advance(MS);
    world.settle();
    assert_eq!(world.a.sends(), [(2, Outcome::NotExecuted)]);
    assert_eq!(world.a.received(), [(20, Outcome::NotExecuted, 0)]);
    assert_eq!(world.a.link.epoch(), 2);
    assert_eq!(world.a.link.deadline(), None);
    let counters = world.a.link.counters().unwrap();
    assert_eq!((counters.cancelled, counters.deadlines_passed), (0, 2));
    world.b.receive(0..2);
    world.until_reported(4);
    // The deadline of a request that completes in time is no deadline of the next one in its slot.
    for wr_id in 4..40 {
        world.b.receive([wr_id]);
        world.a.go(wr_id, Send {}, Replay::IfSafe);
        let deadline = world.a.link.cancel_after(wr_id, 10 * MS);
        assert_eq!(deadline, Ok(Cancel::Requested));
        world.poll();
    }
    world.a.go(40, Send {}, Replay::IfSafe);
    world.device.as_soft().unwrap().advance(100 * MS);
    world.poll();
    assert_eq!(world.a.link.epoch(), 2);
    let reported = world.a.log.len();
    world.b.receive([40]);
    world.until_reported(reported + 1);
    world.all_reported([1, 0]);
}

/// A deadline goes with a request that is posted again.
#[test]
fn a_deadline_outlasts_a_recovery() {
    let mut world = World::with(&patient());
    world.a.go(1, Send {}, Replay::IfSafe);
    world.a.go(2, Send {}, Replay::IfSafe);
    world.a.receive([3]);
    let at = 50 * MS;
    assert_eq!(world.a.link.cancel_after(1, at), Ok(Cancel::Requested));
    assert_eq!(world.a.link.cancel_recv_after(3, at), Ok(Cancel::Requested));
    let qp_num = world.a.link.qp_num().unwrap();
    let now = Trigger::After(Duration::ZERO);
    order(&world, &Script::default().with(now, Fault::QpFatal(qp_num)));
    world
        .device
        .as_soft()
        .unwrap()
        .advance(Duration::from_nanos(1));
    world.settle();
    assert_eq!((world.a.link.epoch(), world.a.log.len()), (2, 0));
    world.device.as_soft().unwrap().advance(at);
    world.settle();
    assert_eq!(world.a.link.epoch(), 3);
    assert_eq!(world.a.sends(), [(1, Outcome::NotExecuted)]);
    assert_eq!(world.a.received(), [(3, Outcome::NotExecuted, 0)]);
    world.b.receive([0]);
    world.until_reported(3);
    world.all_reported([0, 0]);
}

/// At each point of a recovery: the request is not posted again, is reported once, and costs at most one recovery
/// more.
#[test]
fn while_the_link_recovers() {
    let init = LinkInit {
        max_steps_per_poll: 1,
        ..patient()
    };
    let mut epochs = [0, 0];
    for polls in 0..40 {
        let mut world = World::with(&init);
        for wr_id in 1..=3 {
            world.a.go(wr_id, Send {}, Replay::IfSafe);
        }
        world.a.receive(11..=13);
        world.a.link.report(LinkFault::PeerRecovery);
        for _ in 0..polls {
            world.a.poll();
            world.b.poll();
        }
        assert_eq!(world.a.link.cancel(2), Ok(Cancel::Requested), "{polls}");
        let again = world.a.link.cancel_recv(12);
        assert_eq!(again, Ok(Cancel::Requested), "{polls}");
        world.settle();
        assert_eq!(world.a.sends(), [(2, Outcome::NotExecuted)], "{polls}");
        let received = world.a.received();
        assert_eq!(received, [(12, Outcome::NotExecuted, 0)], "{polls}");
        epochs[world.a.link.epoch() as usize - 2] += 1;
        world.b.receive(0..2);
        world.until_reported(4);
        world.all_reported([2, 0]);
        world.talk();
    }
    assert!(epochs[0] > 5 && epochs[1] > 5, "{epochs:?}");
}

/// Receives that were posted before the link was connected.
#[test]
fn before_the_first_connection() {
    let mut world = World::unconnected(&patient());
    world.a.receive([1, 2, 3]);
    assert_eq!(world.a.link.cancel_recv(2), Ok(Cancel::Requested));
    let late = world.a.link.cancel_recv_after(3, 10 * MS);
    assert_eq!(late, Ok(Cancel::Requested));
    world.settle();
    assert_eq!(world.a.received()[0], (2, Outcome::NotExecuted, 0));
    world.device.as_soft().unwrap().advance(10 * MS);
    world.settle();
    let not = Outcome::NotExecuted;
    assert_eq!(world.a.received(), [(2, not, 0), (3, not, 0)]);
    world.all_reported([1, 0]);
    world.talk();
}

/// Staged, and not rung: the device never had it.
#[test]
fn staged_and_not_rung() {
    let mut world = World::new();
    let remote = world.b.memory();
    let write = RdmaWrite { remote };
    world.a.stage(1, write, SIGNALED, Replay::Surface);
    assert_eq!(world.a.link.cancel(1), Ok(Cancel::Requested));
    world.settle();
    assert_eq!(world.a.sends(), [(1, Outcome::NotExecuted)]);
    world.all_reported([0, 0]);
}

/// One that was executed has no outcome of its own; one that was not has.
#[test]
fn unsignalled() {
    let mut world = World::with(&patient());
    let remote = world.b.memory();
    let none = SendFlags::empty();
    world
        .a
        .stage(1, RdmaWrite { remote }, none, Replay::Surface);
    world.a.stage(2, Send {}, none, Replay::Surface);
    world.a.link.ring();
    world.poll();
    assert_eq!(world.a.link.cancel(1), Ok(Cancel::Requested));
    assert_eq!(world.a.link.cancel(2), Ok(Cancel::Requested));
    world.settle();
    assert_eq!(world.a.sends(), [(2, Outcome::NotExecuted)]);
    world.all_reported([0, 0]);
}

/// The link closes, and waits for its requests, but not for a cancelled one.
#[test]
fn while_the_link_closes() {
    let mut world = World::with(&patient());
    world.a.go(1, Send {}, Replay::IfSafe);
    world.a.go(2, Send {}, Replay::IfSafe);
    world.a.receive([5]);
    world.a.link.close(Duration::from_secs(100));
    world.poll();
    assert_eq!(world.a.state(), LinkState::Recovering);
    for wr_id in [1, 2] {
        assert_eq!(world.a.link.cancel(wr_id), Ok(Cancel::Requested));
    }
    world.settle_a();
    assert_eq!(world.a.state(), LinkState::Ended(LinkEnd::Closed));
    let took = world.a.link.counters().unwrap().total;
    assert!(took < Duration::from_secs(50), "{took:?}");
    let not = |wr_id| (wr_id, Outcome::NotExecuted);
    assert_eq!(world.a.sends(), [not(1), not(2)]);
    world.all_reported([0, 0]);
}

/// What waits to be reported by a link that has ended.
#[test]
fn after_the_link_has_ended() {
    let mut world = World::with(&patient());
    world.a.receive([5, 6]);
    world.a.go(1, Send {}, Replay::IfSafe);
    world.a.link.close(Duration::ZERO);
    // Nothing is reported by these.
    for _ in 0..32 {
        world.a.link.poll(0, drop);
    }
    assert_eq!(world.a.link.cancel(1), Ok(Cancel::Completed));
    assert_eq!(world.a.link.cancel_recv(6), Ok(Cancel::Completed));
    let unknown = Err(CancelError::NotFound);
    assert_eq!(world.a.link.cancel(5), unknown);
    assert_eq!(world.a.link.cancel_recv(1), unknown);
    world.settle_a();
    let not = Outcome::NotExecuted;
    assert_eq!(world.a.received(), [(5, not, 0), (6, not, 0)]);
    assert_eq!(world.a.sends().len(), 1);
    world.all_reported([0, 0]);
}

#[test]
fn the_peer_is_gone() {
    let mut world = World::new();
    let remote = world.b.memory();
    drop_acks(&world, 1);
    world.a.go(1, RdmaWrite { remote }, Replay::Anyway);
    world.a.go(2, RdmaWrite { remote }, Replay::Anyway);
    assert_eq!(world.a.link.cancel(1), Ok(Cancel::Requested));
    let World { device, mut a, b } = world;
    drop(b);
    for _ in 0..100_000 {
        a.poll();
        if matches!(a.state(), LinkState::Ended(_)) {
            break;
        }
        device.as_soft().unwrap().advance(5 * MS);
    }
    let doubt = Outcome::InDoubt(Doubt::PeerGone);
    assert_eq!(a.sends(), [(1, doubt), (2, doubt)]);
    assert_eq!(a.reported(), a.posted);
    assert_eq!(a.slab.outstanding(), 0);
}

/// In a recovery's thread, which takes it back as the link would.
#[test]
fn while_a_thread_recovers() {
    let init = LinkInit {
        recover_in: RecoverIn::Thread,
        ..patient()
    };
    let ready = |end: &End| end.state() == LinkState::Ready;
    let mut world = World::unconnected(&init);
    // The clock stands still: the threads' deadlines do not come, whenever they run.
    while !ready(&world.a) || !ready(&world.b) {
        world.poll();
        std::thread::yield_now();
    }
    for wr_id in 1..=3 {
        world.a.go(wr_id, Send {}, Replay::IfSafe);
    }
    world.a.receive([4]);
    world.a.link.report(LinkFault::PeerRecovery);
    // The peer does not answer before it is polled: the thread waits for it.
    world.a.poll();
    assert_eq!(world.a.link.counters(), None, "a thread has it");
    assert_eq!(world.a.link.cancel(2), Ok(Cancel::Forwarded));
    assert_eq!(world.a.link.cancel(77), Ok(Cancel::Forwarded));
    let deadline = world.a.link.cancel_recv_after(4, Duration::ZERO);
    assert_eq!(deadline, Ok(Cancel::Forwarded));
    while world.a.log.len() < 2 || !ready(&world.a) || !ready(&world.b) {
        world.poll();
        std::thread::yield_now();
    }
    assert_eq!(world.a.sends(), [(2, Outcome::NotExecuted)]);
    assert_eq!(world.a.received(), [(4, Outcome::NotExecuted, 0)]);
    world.b.receive(0..2);
    world.until_reported(4);
    world.all_reported([0, 0]);
}

/// A link that always has something to report still takes requests back.
#[test]
fn a_busy_link_takes_them_back() {
    let init = LinkInit {
        check_every: 1_000_000,
        ..patient()
    };
    let mut world = World::with(&init);
    let remote = world.b.memory();
    world.a.go(1, RdmaWrite { remote }, Replay::IfSafe);
    world.a.go(2, Send {}, Replay::IfSafe);
    assert_eq!(world.a.link.cancel(2), Ok(Cancel::Requested));
    world.a.link.poll(1, drop);
    assert_ne!(world.a.state(), LinkState::Ready);
    world.a.posted -= 1;
    while world.a.log.is_empty() {
        world.a.poll();
        // The peer rarely looks at its exchange.
        world.b.link.report(LinkFault::PeerRecovery);
        world.b.poll();
    }
    assert_eq!(world.a.sends(), [(2, Outcome::NotExecuted)]);
    world.all_reported([0, 0]);
}

#[test]
fn ten_thousand_in_flight() {
    for mode in [Mode::Inline, ENGINE] {
        let taken_back = storm(&device(mode).alloc_pd(), 256, 10_000);
        assert!(taken_back > 5_000, "{mode:?}: {taken_back}");
    }
}
