//! Links join and leave.

use super::world::{SetWorld, set_init};
use crate::world::{BLOCK, End, init};
use bellwire::connect::Message;
use bellwire::connect::tcp::{Connection, Listener};
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::EndReason;
use bellwire::link::{
    Exchange, JoinError, LinkEnd, LinkId, LinkSet, LinkSetInit, LinkState, NoLink, pair,
};
use bellwire::wqe::Send;
use bellwire::{Device, Error};
use bellwire_tests::fixture::DEADLINE;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

#[test]
fn each_link_talks_to_its_own_peer() {
    let mut world = SetWorld::unconnected(5, set_init(5), &init());
    let first = world.clients[0].0;
    assert_eq!(world.set.state(first), Ok(LinkState::Recovering));
    // Before there is a connection.
    world.receive(first, [7]);
    world.settle();
    world.all_ready();
    let ready: Vec<_> = world
        .clients
        .iter()
        .map(|(id, _)| (*id, LinkState::Ready))
        .collect();
    world.changes.sort_by_key(|(id, _)| *id);
    assert_eq!(world.changes, ready);
    world.clients[0].1.go(1, Send {}, Replay::Surface);
    world.poll();
    assert_eq!(world.received(first), [(7, Outcome::Done, 1)]);
    world.talk();
    assert_eq!((world.set.len(), world.set.completion_queues()), (5, 1));
}

/// A poll never reports more than it was asked for.
#[test]
fn a_poll_keeps_to_its_limit() {
    let mut world = SetWorld::new(3);
    for at in 0..3 {
        let (id, client) = &mut world.clients[at];
        let id = *id;
        client.receive(0..8);
        for wr_id in 0..8 {
            world.send(id, wr_id, Replay::Surface);
        }
    }
    assert_eq!(world.poll_set(0), 0);
    let mut total = 0;
    loop {
        let count = world.poll_set(5);
        assert!(count <= 5);
        total += count;
        if count == 0 {
            break;
        }
    }
    assert_eq!(total, 24);
}

#[test]
fn the_handle_of_a_removed_link_reaches_no_other() {
    let mut world = SetWorld::new(3);
    let (gone, mut peer) = world.clients.remove(1);
    world.set.remove(gone).unwrap();
    assert_eq!(world.set.remove(gone), Err(NoLink));
    world.poll();
    peer.poll();
    assert_eq!(peer.state().why(), Some(EndReason::PeerClosed));
    world.talk();
    // The slot is used again.
    let next = world.join(&init());
    assert_ne!(next, gone);
    assert_eq!(next.to_raw() as u32, gone.to_raw() as u32);
    world.settle();
    world.all_ready();
    assert!(world.set.link(gone).is_err());
    assert_eq!(world.set.state(gone), Err(NoLink));
    assert_eq!(world.set.close(gone, Duration::ZERO), Err(NoLink));
    let fault = bellwire::fault::Fault::PeerLost;
    assert_eq!(world.set.report(gone, fault), Err(NoLink));
    assert_eq!(world.set.remove(gone), Err(NoLink));
    for raw in [u64::MAX, 3, 1 << 40] {
        assert!(world.set.link(LinkId::from_raw(raw)).is_err());
    }
    world.talk();
}

/// What a removed link had in flight is not reported, and its blocks come back; the others' completions, in
/// the same queue, are.
#[test]
fn a_link_is_removed_with_requests_in_flight() {
    let mut world = SetWorld::new(3);
    let (gone, _peer) = world.clients.remove(1);
    world.receive(gone, 0..4);
    world.send(gone, 5, Replay::Surface);
    let others: Vec<_> = world.clients.iter().map(|(id, _)| *id).collect();
    for (_, client) in &mut world.clients {
        client.receive([1]);
    }
    for &id in &others {
        world.send(id, 2, Replay::Surface);
    }
    // Nothing was polled yet: the completions of all are in the queue.
    world.set.remove(gone).unwrap();
    assert_eq!(world.slab.outstanding(), 2);
    world.poll();
    for &id in &others {
        assert_eq!(world.sends(id), [(2, Outcome::Done)]);
    }
    assert!(world.log.iter().all(|(id, _)| *id != gone));
    world.all_reported();
}

#[test]
fn a_full_set_says_what_to_do() {
    let mut world = SetWorld::unconnected(2, set_init(2), &init());
    let (here, mut there) = pair();
    let error = world.set.join(init(), here).unwrap_err();
    assert!(matches!(error, JoinError::Full { links: 2 }), "{error:?}");
    // The peer learns it.
    let mut bytes = [0; Message::MAX_BYTES];
    let length = there.receive(&mut bytes).unwrap().expect("a message");
    let full = Fault::Errno(libc::ENOSPC).without_circumstances();
    let told = Message::from_bytes(&bytes[..length]);
    assert_eq!(told, Ok(Message::GaveUp(full)));
    assert!(error.to_string().contains("remove"), "{error}");
    // One that cannot be created takes no room.
    world.set.remove(world.clients[0].0).unwrap();
    world.clients.remove(0);
    let mut bad = init();
    bad.connect.port_num = 9;
    let error = world.set.join(bad, pair().0).unwrap_err();
    assert!(matches!(error, JoinError::Link(_)), "{error:?}");
    let mut large = init();
    large.qp.max_send_wr = 4096;
    let error = world.set.join(large, pair().0).unwrap_err();
    assert!(
        matches!(error, JoinError::Link(Error::Attach(_))),
        "{error:?}"
    );
    // A set that counts no buffers limits those of no link.
    let mut limited = init();
    limited.max_held = Some(1);
    let error = world.set.join(limited, pair().0).unwrap_err();
    assert!(error.to_string().contains("max_held"), "{error}");
    assert_eq!(world.set.len(), 1);
    world.join(&init());
    world.settle();
    world.talk();
}

/// Closed by the program: everything is reported, and the handle stays valid until the link is removed.
#[test]
fn a_link_is_closed() {
    let mut world = SetWorld::new(3);
    let (id, client) = &mut world.clients[1];
    let id = *id;
    client.receive([1]);
    world.receive(id, [2, 3]);
    world.send(id, 4, Replay::Surface);
    world.set.close(id, Duration::from_secs(1)).unwrap();
    let refused = world.set.link(id).unwrap().post_empty(
        9,
        Send {},
        bellwire::wr::SendFlags::SIGNALED,
        Replay::Surface,
    );
    assert_eq!(refused, Err(bellwire::link::LinkError::Recovering));
    world.settle();
    assert_eq!(world.set.state(id), Ok(LinkState::Ended(LinkEnd::Closed)));
    let last = world.changes.last();
    assert_eq!(last, Some(&(id, LinkState::Ended(LinkEnd::Closed))));
    assert_eq!(world.sends(id), [(4, Outcome::Done)]);
    let none = [(2, Outcome::NotExecuted), (3, Outcome::NotExecuted)];
    let received: Vec<_> = world.received(id).iter().map(|it| (it.0, it.1)).collect();
    assert_eq!(received, none);
    world.all_reported();
    world.set.remove(id).unwrap();
    world.clients.remove(1);
    world.talk();
}

/// The peer closes its link: the set's ends, and the others go on.
#[test]
fn a_peer_closes() {
    let mut world = SetWorld::new(3);
    let (id, _) = world.clients.remove(2);
    world.poll();
    let ended = world.set.state(id).unwrap();
    assert_eq!(ended.why(), Some(EndReason::PeerClosed));
    assert_eq!(world.changes.last(), Some(&(id, ended)));
    world.talk();
}

#[test]
fn a_set_is_drained() {
    let mut world = SetWorld::new(3);
    for at in 0..3 {
        let (id, client) = &mut world.clients[at];
        let id = *id;
        client.receive([1]);
        world.receive(id, [2]);
        world.send(id, 3, Replay::Surface);
    }
    let (mut sends, mut receives) = (0, 0);
    let drained = world
        .set
        .drain(Duration::from_secs(1), |_, one| match one.is_recv() {
            true => receives += u32::from(one.outcome == Outcome::NotExecuted),
            false => sends += u32::from(one.outcome == Outcome::Done),
        });
    assert_eq!((sends, receives), (3, 3));
    assert_eq!((drained.reported, drained.retired), (6, 6));
    assert_eq!(world.slab.outstanding(), 0);
    for (id, _) in &world.clients {
        assert_eq!(world.set.state(*id), Ok(LinkState::Ended(LinkEnd::Closed)));
    }
}

/// What the program's function was not given is given to the next one.
#[test]
fn a_panic_loses_nothing() {
    let mut world = SetWorld::new(2);
    for at in 0..2 {
        let (id, client) = &mut world.clients[at];
        let id = *id;
        client.receive(0..4);
        for wr_id in 0..4 {
            world.send(id, wr_id, Replay::Surface);
        }
    }
    let mut given = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        world.set.poll(64, |id, completion| {
            given.push((id, completion.wr_id));
            assert_ne!(given.len(), 3);
        })
    }));
    assert!(panicked.is_err());
    world
        .set
        .poll(64, |id, completion| given.push((id, completion.wr_id)));
    for (id, _) in &world.clients {
        let of_it = given.iter().filter(|(of, _)| of == id).map(|it| it.1);
        assert_eq!(of_it.collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
    assert_eq!(world.slab.outstanding(), 0);
}

#[test]
fn memory_is_reported() {
    let mut world = SetWorld::unconnected(0, set_init(8), &init());
    let empty = world.set.memory();
    world.join(&init());
    let one = world.set.memory();
    world.join(&init());
    let two = world.set.memory();
    assert!(two > one, "{two} {one}");
    // The rings alone: 16 and more entries of 64 and of 16 bytes.
    assert!(one - empty > 16 * (64 + 16), "{}", one - empty);
    let larger = SetWorld::unconnected(0, set_init(800), &init())
        .set
        .memory();
    assert!(larger > 50 * empty, "{larger} {empty}");
}

/// One thread for the set; clients in another, over TCP, that come, talk and leave.
#[test]
fn clients_come_and_go_over_tcp() {
    const CLIENTS: u64 = 6;
    let pd = Device::soft(Default::default()).alloc_pd();
    let listener = Listener::bind(Some("127.0.0.1"), 0).unwrap();
    let port = listener.port();
    let client_pd = pd.clone();
    let clients = std::thread::spawn(move || {
        for mark in 0..CLIENTS {
            let conn = Connection::connect("127.0.0.1", port, DEADLINE).unwrap();
            let mut end = End::new(&client_pd, init(), conn.into_exchange().unwrap());
            end.receive([1]);
            let deadline = Instant::now() + DEADLINE;
            while end.state() != LinkState::Ready {
                end.poll();
                assert!(Instant::now() < deadline);
            }
            end.go(mark, Send {}, Replay::Surface);
            while end.received().is_empty() {
                end.poll();
                assert!(Instant::now() < deadline);
            }
            assert_eq!(end.received(), [(1, Outcome::Done, mark)]);
        }
    });
    let init_set = LinkSetInit {
        waitable: true,
        ..set_init(2)
    };
    let mut set = LinkSet::new(&pd, init_set).unwrap();
    let layout = [bellwire::ClassLayout {
        size: BLOCK,
        count: 64,
    }];
    let slab = bellwire_tests::fixture::slab(&pd, &layout);
    let (mut served, mut ended) = (0, 0);
    for _ in 0..CLIENTS {
        let conn = listener.accept(DEADLINE).unwrap();
        let id = set.join(init(), conn.into_exchange().unwrap()).unwrap();
        let mut link = set.link(id).unwrap();
        link.post_recv_block(1, slab.take(BLOCK).unwrap()).unwrap();
        let deadline = Instant::now() + DEADLINE;
        let mut over = false;
        while !over {
            assert!(Instant::now() < deadline);
            let mut echo = Vec::new();
            set.arm().unwrap();
            let found = set.poll(16, |of, one| {
                if one.is_recv() && one.outcome == Outcome::Done {
                    echo.push((of, one.block.expect("posted with one")));
                }
            });
            for (of, block) in echo {
                let mut link = set.link(of).unwrap();
                let flags = bellwire::wr::SendFlags::SIGNALED;
                link.post_block(2, Send {}, block, BLOCK, flags, Replay::Surface)
                    .unwrap();
                link.ring();
                served += 1;
            }
            while let Some((of, state)) = set.next_change() {
                if let LinkState::Ended(_) = state {
                    set.remove(of).unwrap();
                    ended += 1;
                    over = true;
                }
            }
            if found == 0 && !over {
                crate::sleep::is_readable(set.fd().unwrap(), 1000);
            }
        }
    }
    clients.join().unwrap();
    assert_eq!((served, ended), (CLIENTS, CLIENTS));
    assert!(set.is_empty());
    assert_eq!(slab.outstanding(), 0);
}
