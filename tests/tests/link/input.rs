//! Bad input is refused with a reason, and loses nothing.

use crate::world::{BLOCK, World, init};
use bellwire::fault::outcome::Replay;
use bellwire::link::LinkError;
use bellwire::queue::PostError;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::SendFlags;
use std::time::Duration;

const SIGNALED: SendFlags = SendFlags::SIGNALED;

#[test]
fn before_there_is_a_connection() {
    let mut world = World::unconnected(&init());
    let block = world.a.slab.take(BLOCK).unwrap();
    let refused = world
        .a
        .link
        .post_block(1, Send {}, block, 8, SIGNALED, Replay::Surface)
        .unwrap_err();
    assert_eq!(refused.error, LinkError::Recovering);
    assert!(refused.to_string().contains("poll it until"), "{refused}");
    drop(refused.block);
    world.all_reported([0, 0]);
}

#[test]
fn a_full_queue() {
    let mut world = World::new();
    world.b.receive(0..16);
    let block = world.b.slab.take(BLOCK).unwrap();
    let refused = world.b.link.post_recv_block(16, block).unwrap_err();
    assert_eq!(refused.error, LinkError::Post(PostError::QueueFull));
    drop(refused.block);
    let mut posted = 0;
    let refused = loop {
        let block = world.a.slab.take(BLOCK).unwrap();
        let post = world
            .a
            .link
            .post_block(posted, Send {}, block, 8, SIGNALED, Replay::Surface);
        match post {
            Ok(()) => posted += 1,
            Err(refused) => break refused,
        }
    };
    world.a.posted = posted as u32;
    assert!(posted >= 16);
    assert_eq!(refused.error, LinkError::Post(PostError::QueueFull));
    drop(refused.block);
    // A full queue recovers too, and has room for what it had.
    let qpn = world.a.link.qp_num().unwrap();
    let script = Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(qpn));
    world.device.as_soft().unwrap().inject(&script).unwrap();
    world
        .device
        .as_soft()
        .unwrap()
        .advance(Duration::from_nanos(1));
    world.settle();
    assert_eq!(world.a.reported(), world.a.posted);
    world.b.link.report(bellwire::fault::Fault::PeerRecovery);
    world.settle();
    world.all_reported([0, 16]);
}

#[test]
fn requests_that_cannot_be() {
    let mut world = World::new();
    let block = world.a.slab.take(BLOCK).unwrap();
    let refused = world
        .a
        .link
        .post_block(1, Send {}, block, BLOCK + 1, SIGNALED, Replay::Surface)
        .unwrap_err();
    let (given, capacity) = (BLOCK + 1, BLOCK);
    let short = PostError::BlockTooShort { given, capacity };
    assert_eq!(refused.error, LinkError::Post(short));
    drop(refused.block);
    let remote = world.b.memory();
    let refused = world.a.link.post_inline(
        1,
        RdmaWrite { remote },
        &[0; 1000],
        SIGNALED,
        Replay::Surface,
    );
    assert!(matches!(
        refused,
        Err(LinkError::Post(PostError::InlineTooLong { .. }))
    ));
    world.talk();
    world.all_reported([0, 0]);
}
