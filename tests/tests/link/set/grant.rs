//! Memory that links of a set lend to their peers.

use super::world::{SetWorld, set_init};
use crate::grant::lender;
use crate::world::{BLOCK, init};
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::link::{Cancel, CancelError, LinkInit, LinkSetInit, LinkSetSrq};
use bellwire::wqe::{RdmaWrite, Send, SendWithInv};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{AccessFlags, ClassLayout, Slab};
use bellwire_tests::fixture::{slab, virtual_device};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;

/// A link of the set lends a block to its client.
fn lend(world: &mut SetWorld, blocks: &Slab, of: usize, wr_id: u64) -> Remote {
    let (id, client) = &mut world.clients[of];
    client.receive([wr_id]);
    let grant = blocks
        .grant(blocks.take(BLOCK).unwrap(), BLOCK, WRITE)
        .unwrap();
    let mut at = Remote::default();
    let message = |remote| {
        at = remote;
        [0; 12]
    };
    let mut link = world.set.link(*id).unwrap();
    link.post_grant(wr_id, grant, Send {}, message, SendFlags::empty())
        .unwrap();
    link.ring();
    at
}

#[test]
fn links_of_a_set_lend_memory() {
    for shared in [false, true] {
        let pd = virtual_device(1).alloc_pd();
        let layout = [ClassLayout {
            size: BLOCK,
            count: 64,
        }];
        let messages = slab(&pd, &layout);
        let srq = shared.then(|| LinkSetSrq {
            slab: messages.clone(),
            length: BLOCK,
            max_held: None,
        });
        let set_init = LinkSetInit { srq, ..set_init(2) };
        let mut init = init();
        init.connect.access = WRITE;
        let init = LinkInit { ..init };
        let mut world = SetWorld::unconnected_on(&pd, 2, set_init, &init);
        world.settle();
        let blocks = lender(&pd);
        let ids = [0, 1].map(|of| world.clients[of].0);
        for round in 0..20 {
            world.forget();
            let wr_id = 100 * round;
            // One client gives the memory back with its answer, the other one's is taken back.
            let at = [0, 1].map(|of| lend(&mut world, &blocks, of, wr_id));
            if !shared {
                world.receive(ids[0], [wr_id + 1]);
            }
            let client = &mut world.clients[0].1;
            client.go(wr_id + 2, RdmaWrite { remote: at[0] }, Replay::Surface);
            let rkey = at[0].rkey;
            client.go(wr_id + 3, SendWithInv { rkey }, Replay::Surface);
            world.poll();
            let lines: Vec<_> = world
                .log
                .iter()
                .map(|(id, line)| (*id, line.recv, line.word))
                .collect();
            let answer = (ids[0], true, Some(wr_id + 3));
            let done = (ids[0], false, Some(wr_id + 2));
            assert_eq!(lines, [answer, done], "{shared}");
            assert_eq!(
                world.set.end_grant(ids[1], wr_id + 1),
                Err(CancelError::NotFound)
            );
            let expected = match round % 3 {
                0 => {
                    assert_eq!(world.set.end_grant(ids[1], wr_id), Ok(Cancel::Requested));
                    Outcome::Done
                }
                1 => {
                    assert_eq!(world.set.cancel(ids[1], wr_id), Ok(Cancel::Requested));
                    Outcome::InDoubt(Doubt::Cancelled)
                }
                _ => {
                    let within = world.set.cancel_after(ids[1], wr_id, MS);
                    assert_eq!(within, Ok(Cancel::Requested));
                    world.poll();
                    assert_eq!(world.sends(ids[1]), []);
                    assert!(world.set.time_left().is_some());
                    world.device.as_soft().unwrap().advance(MS);
                    Outcome::InDoubt(Doubt::DeadlinePassed)
                }
            };
            world.poll();
            assert_eq!(world.sends(ids[1]), [(wr_id, expected)], "{shared}");
            assert_eq!(blocks.outstanding(), 0);
            let reported: u32 = world.log.iter().map(|(_, line)| line.retired).sum();
            assert_eq!(reported, 2 + u32::from(!shared));
        }
        let epochs = ids.map(|id| world.set.link(id).unwrap().epoch());
        assert_eq!(epochs, [1; 2]);
        // A link that is removed takes its windows with it.
        lend(&mut world, &blocks, 0, 5000);
        lend(&mut world, &blocks, 1, 5000);
        world.set.remove(ids[0]).unwrap();
        world.poll();
        world.set.drain(MS, |_, _| ());
        drop(world);
        assert_eq!(blocks.outstanding(), 0);
    }
}
