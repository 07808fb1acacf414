//! A server whose links share completion queues and receives, and its clients.

use crate::Result;
use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Link, LinkInit, LinkSet, LinkSetInit, LinkSetSrq, LinkState, Wait};
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, ClassLayout, Device, Pd, Region, Slab};
use std::os::fd::AsFd;

const CLIENTS: usize = 4;
const MESSAGE: u32 = 4096;

// ANCHOR: slab
fn slab(pd: &Pd, count: u32) -> Result<Slab> {
    let layout = [ClassLayout {
        size: MESSAGE,
        count,
    }];
    let mapping = pd.device().mapping(Slab::bytes(&layout)?).build()?;
    let region = Region::new(pd, mapping, AccessFlags::LOCAL_WRITE)?;
    Ok(Slab::new(region, &layout)?)
}
// ANCHOR_END: slab

// ANCHOR: server
fn serve(device: &Device, mut listener: Listener) -> Result<usize> {
    let pd = device.alloc_pd();
    let srq = LinkSetSrq {
        slab: slab(&pd, 256)?,
        length: MESSAGE,
        // No client takes all buffers from the others.
        max_held: Some(64),
    };
    let mut set = LinkSet::new(
        &pd,
        LinkSetInit {
            links: 100,
            srq: Some(srq),
            waitable: true,
            ..LinkSetInit::default()
        },
    )?;
    let (mut messages, mut ended) = (0, 0);
    while ended < CLIENTS {
        while let Some(incoming) = listener.accept()? {
            set.join(LinkInit::default(), incoming)?;
        }
        let others = [listener.as_fd()];
        let wait = Wait {
            others: &others,
            ..Wait::default()
        };
        set.wait(64, &wait, |_, completion| {
            if completion.is_recv() && completion.outcome == Outcome::Done {
                messages += 1;
                // The block goes back to the slab when it is dropped, and is posted again.
            }
        })?;
        while let Some((id, state)) = set.next_change() {
            if let LinkState::Ended(_) = state {
                set.remove(id)?;
                ended += 1;
            }
        }
    }
    Ok(messages)
}
// ANCHOR_END: server

// ANCHOR: client
fn call(device: &Device, port: u16) -> Result {
    let pd = device.alloc_pd();
    let connector = Connector::new(device, ("127.0.0.1", port), Retry::default());
    let mut link = Link::new(&pd, LinkInit::default(), connector.exchange()?)?;
    while link.state() != LinkState::Ready {
        link.poll(16, |_| ());
        if let LinkState::Ended(why) = link.state() {
            return Err(format!("the link ended: {why:?}").into());
        }
    }
    link.post_inline(1, Send {}, b"hello", SendFlags::SIGNALED, Replay::IfSafe)?;
    link.ring();
    let mut outcome = None;
    while outcome.is_none() {
        link.poll(16, |completion| outcome = Some(completion.outcome));
    }
    assert_eq!(outcome, Some(Outcome::Done));
    Ok(())
}
// ANCHOR_END: client

pub fn run() -> Result {
    let device = Device::open("soft")?;
    let listener = Listener::bind(&device, ("127.0.0.1", 0), 16, Retry::default())?;
    let port = listener.port();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&device, listener));
        for _ in 0..CLIENTS {
            scope.spawn(|| call(&device, port).expect("a client"));
        }
        let messages = server.join().expect("the server does not panic")?;
        assert_eq!(messages, CLIENTS);
        Ok(())
    })
}
