//! Waiting for a link, or for a set: awake for a while, then asleep.

use crate::set::world::{SetWorld, set_init};
use crate::sleep::{sleepers, strike_on};
use crate::world::{End, World, init};
use bellwire::Error;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkSet, LinkSetInit, LinkState, Wait, pair};
use bellwire::soft::{Fault, Mode};
use bellwire::wqe::Send;
use bellwire_tests::fixture::{DEADLINE, device};
use std::io::{Write, pipe};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const SOON: Duration = DEADLINE;
const SHORT: Duration = Duration::from_millis(20);

/// Polls for ever, or sleeps at once.
const AWAKE: Wait<'_> = Wait {
    spin: Duration::MAX,
    timeout: Some(SOON),
    others: &[],
};
const ASLEEP: Wait<'_> = Wait {
    spin: Duration::ZERO,
    ..AWAKE
};

fn set_that_sleeps(links: u32) -> LinkSetInit {
    LinkSetInit {
        waitable: true,
        // What is looked at is looked at because it was armed.
        check_every: 1 << 20,
        ..set_init(links)
    }
}

fn set_world(links: usize) -> SetWorld {
    let pd = device(Mode::Inline).alloc_pd();
    let mut world =
        SetWorld::unconnected_on(&pd, links, set_that_sleeps(links as u32), &sleepers());
    let begin = Instant::now();
    while world.clients.iter().any(|(id, client)| {
        (world.set.state(*id), client.state()) != (Ok(LinkState::Ready), LinkState::Ready)
    }) {
        assert!(begin.elapsed() < SOON);
        world.set.arm().unwrap();
        (world.clients.iter_mut()).for_each(|(_, client)| client.link.arm().unwrap());
        world.poll();
    }
    while world.set.next_change().is_some() {}
    world
}

/// How often this thread has given up the processor, by sleeping.
fn slept() -> i64 {
    // SAFETY: numbers, of which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes one struct.
    let got = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    assert_eq!(got, 0);
    usage.ru_nvcsw
}

/// The thread may sleep for a lock of the allocator that another test has: in one try of several it does not.
#[test]
fn what_is_there_is_returned_without_sleep() {
    const TRIES: u64 = 20;
    let mut world = set_world(3);
    for how in [AWAKE, ASLEEP] {
        let id = world.clients[1].0;
        let mut without_sleep = |wr_id| {
            world.clients[1].1.receive([0]);
            world.send(id, wr_id, Replay::Surface);
            let mut came = Vec::new();
            // Posting may sleep for a lock that another thread has.
            let before = slept();
            let found = world
                .set
                .wait(8, &how, |id, one| came.push((id, one.wr_id)));
            let sleeps = slept() - before;
            assert_eq!((found.unwrap(), came), (1, vec![(id, wr_id)]));
            let client = &mut world.clients[1].1.link;
            let mut came = 0;
            let before = slept();
            assert_eq!(client.wait(8, &how, |_| came += 1).unwrap(), 1);
            assert_eq!(came, 1);
            sleeps + slept() - before == 0
        };
        assert!((0..TRIES).any(&mut without_sleep), "it sleeps each time");
    }
}

#[test]
fn it_ends_with_its_time() {
    let mut world = set_world(1);
    let client = &mut world.clients[0].1.link;
    for spin in [Duration::ZERO, Duration::MAX] {
        let (timeout, begin, before) = (Some(SHORT), Instant::now(), slept());
        let how = Wait {
            spin,
            timeout,
            ..Wait::default()
        };
        assert_eq!(
            world.set.wait(8, &how, |_, _| panic!("nothing")).unwrap(),
            0
        );
        assert_eq!(client.wait(8, &how, |_| panic!("nothing")).unwrap(), 0);
        assert!(begin.elapsed() >= 2 * SHORT);
        // Twice, or not at all unless others need the processor.
        assert!(spin != Duration::ZERO || slept() >= before + 2);
    }
}

/// A message of another thread ends the wait, whether the thread polls or sleeps.
#[test]
fn a_message_ends_it() {
    for how in [AWAKE, ASLEEP] {
        let mut world = set_world(2);
        let id = world.clients[0].0;
        world.receive(id, [7]);
        let (_, mut client) = world.clients.remove(0);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(SHORT);
                client.go(1, Send {}, Replay::Surface);
                let mut sent = None;
                let found = client.link.wait(1, &how, |one| sent = Some(one.outcome));
                assert_eq!((found.unwrap(), sent), (1, Some(Outcome::Done)));
            });
            let mut came = Vec::new();
            let found = world
                .set
                .wait(8, &how, |id, one| came.push((id, one.wr_id)));
            assert_eq!((found.unwrap(), came), (1, vec![(id, 7)]));
        });
    }
}

#[test]
fn a_descriptor_of_the_program_ends_it() {
    let mut world = set_world(1);
    let (reader, mut writer) = pipe().unwrap();
    let others = [reader.as_fd()];
    let how = Wait {
        others: &others,
        ..ASLEEP
    };
    let short = Wait {
        timeout: Some(SHORT),
        ..how
    };
    assert_eq!(world.set.wait(8, &short, |_, _| ()).unwrap(), 0);
    writer.write_all(b"x").unwrap();
    let begin = Instant::now();
    assert_eq!(world.set.wait(8, &how, |_, _| ()).unwrap(), 0);
    assert_eq!(world.clients[0].1.link.wait(8, &how, |_| ()).unwrap(), 0);
    assert!(begin.elapsed() < SOON);
}

#[test]
fn a_change_ends_it() {
    let mut world = set_world(2);
    let (id, client) = &mut world.clients[1];
    let id = *id;
    strike_on(&world.device, Fault::QpFatal(client.link.qp_num().unwrap()));
    let before = client.link.epoch();
    for how in [AWAKE, ASLEEP] {
        assert_eq!(client.link.wait(8, &how, |_| ()).unwrap(), 0);
        if client.state() == LinkState::Recovering {
            break;
        }
    }
    assert_eq!(client.state(), LinkState::Recovering);
    // By turns, because both are in this thread.
    let turn = Wait {
        timeout: Some(Duration::from_millis(1)),
        ..ASLEEP
    };
    let mut changes = Vec::new();
    let begin = Instant::now();
    while client.state() != LinkState::Ready || !changes.contains(&(id, LinkState::Ready)) {
        client.link.wait(8, &turn, |_| ()).unwrap();
        assert_eq!(world.set.wait(8, &turn, |_, _| ()).unwrap(), 0);
        changes.extend(std::iter::from_fn(|| world.set.next_change()));
        assert!(begin.elapsed() < SOON);
    }
    assert_eq!(client.link.epoch(), before + 1);
}

#[test]
fn what_was_not_made_to_sleep_cannot_wait() {
    let mut world = World::new();
    let refused = |result| assert!(matches!(result, Err(Error::NoChannel { .. })));
    refused(world.a.link.wait(1, &ASLEEP, |_| ()));
    let pd = device(Mode::Inline).alloc_pd();
    let mut set = LinkSet::new(&pd, set_init(1)).unwrap();
    refused(set.wait(1, &ASLEEP, |_, _| ()));
    // A limit of nothing would never end.
    let (here, there) = pair();
    let mut ends = (End::new(&pd, init(), here), End::new(&pd, init(), there));
    crate::modes::until(&mut ends.0, &mut ends.1, crate::modes::ready);
    ends.1.receive([1]);
    ends.0.go(1, Send {}, Replay::Surface);
    assert_eq!(ends.1.link.wait(0, &ASLEEP, |_| ()).unwrap(), 1);
}
