//! Memory that is lent to a peer for one exchange.

use crate::Result;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Link, LinkInit, LinkState, pair};
use bellwire::memory::Mapping;
use bellwire::wqe::{RdmaWrite, Send, SendWithInv};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};

/// The address and the key, as the message carries them.
fn encoded(at: Remote) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&at.addr.to_le_bytes());
    bytes[8..].copy_from_slice(&at.rkey.to_le_bytes());
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Remote> {
    let (addr, rkey) = bytes[..12].split_at(8);
    Ok(Remote {
        addr: u64::from_le_bytes(addr.try_into()?),
        rkey: u32::from_le_bytes(rkey.try_into()?),
    })
}

pub fn run() -> Result {
    let pd = Device::open("soft")?.alloc_pd();
    let layout = [ClassLayout {
        size: 4096,
        count: 4,
    }];
    let mapping = Mapping::anonymous(Slab::bytes(&layout)?).build()?;
    let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE)?;
    let slab = Slab::with_grants(region, &layout)?;
    let (here, there) = pair();
    let mut client = Link::new(&pd, LinkInit::default(), here)?;
    let mut server = Link::new(&pd, LinkInit::default(), there)?;
    client.post_recv_block(1, slab.take(4096)?)?;
    server.post_recv_block(1, slab.take(4096)?)?;
    while [client.state(), server.state()] != [LinkState::Ready; 2] {
        client.poll(16, |_| ());
        server.poll(16, |_| ());
    }

    // ANCHOR: lend
    let grant = slab
        .grant(slab.take(4096)?, 4096, AccessFlags::REMOTE_WRITE)
        .map_err(|(error, _block)| error)?;
    client.post_grant(2, grant, Send {}, encoded, SendFlags::empty())?;
    client.ring();
    // ANCHOR_END: lend

    let mut asked = None;
    while asked.is_none() {
        server.poll(16, |completion| asked = completion.block);
    }
    // ANCHOR: answer
    let remote = decoded(asked.expect("a message").as_slice())?;
    let give_back = SendWithInv { rkey: remote.rkey };
    let (flags, replay) = (SendFlags::SIGNALED, Replay::Surface);
    server.post_inline(
        2,
        RdmaWrite { remote },
        b"value",
        SendFlags::empty(),
        replay,
    )?;
    server.post_inline(3, give_back, b"ok", flags, replay)?;
    server.ring();
    // ANCHOR_END: answer

    let mut value = None;
    while value.is_none() {
        client.poll(16, |completion| {
            if completion.wr_id == 2 {
                assert_eq!(completion.outcome, Outcome::Done);
                value = completion.block;
            }
        });
        server.poll(16, |_| ());
    }
    assert_eq!(&value.expect("the block").as_slice()[..5], b"value");
    Ok(())
}
