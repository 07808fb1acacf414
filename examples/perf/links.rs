//! The links of a server, or of its clients: in one set, with blocks for their messages.

use anyhow::{Context, Result};
use bellwire::connect::RemoteMemory;
use bellwire::fault::outcome::Replay;
use bellwire::link::{LinkId, LinkInit, LinkSet, LinkSetInit};
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Block, ClassLayout, Pd, QpInit, Region, Slab};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Sends, and receives, of a link: one of each is in use, and one comes back meanwhile.
pub const DEPTH: u32 = 2;

/// Completions of one poll.
pub const AT_ONCE: usize = 64;

/// How long links may take to connect: some milliseconds each, but at least so long.
const TO_CONNECT: Duration = Duration::from_secs(20);

/// The time that so many links have to connect, or to recover together.
pub fn patience(links: u32) -> Duration {
    TO_CONNECT.max(Duration::from_millis(20) * links)
}

pub struct Links {
    pub set: LinkSet,
    slab: Slab,
    init: LinkInit,
    size: u32,
}

impl Links {
    /// Room for `count` links, whose messages have up to `size` bytes.
    pub fn new(pd: &Pd, count: u32, size: u32) -> Result<Self> {
        raise_descriptors();
        let qp = QpInit {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            ..QpInit::default()
        };
        let layout = [ClassLayout {
            // Of whole cache lines, as blocks are.
            size: size.next_multiple_of(64),
            count: 2 * DEPTH * count,
        }];
        let bytes = Slab::bytes(&layout)?;
        let memory = pd.device().mapping(bytes).build();
        let memory = memory.with_context(|| format!("memory for {count} clients"))?;
        let region = Region::new(pd, memory, AccessFlags::LOCAL_WRITE)?;
        let set = LinkSetInit {
            links: count,
            qp,
            waitable: true,
            ..LinkSetInit::default()
        };
        let mut init = LinkInit {
            qp,
            // No memory, but the peer reads here what the receives have room for.
            memory: RemoteMemory {
                length: size.into(),
                ..RemoteMemory::default()
            },
            ..LinkInit::default()
        };
        init.limits.exchange = patience(count);
        init.limits.recovery = patience(count);
        Ok(Self {
            set: LinkSet::new(pd, set)?,
            slab: Slab::new(region, &layout)?,
            init,
            size,
        })
    }

    /// The parameters of a link.
    pub fn init(&self) -> LinkInit {
        self.init.clone()
    }

    /// Bytes of a message at most.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Room for a message.
    pub fn block(&self) -> Result<Block<'static>> {
        Ok(self.slab.take(self.size)?)
    }

    /// Posts a receive. A link that has ended takes none.
    pub fn expect(&mut self, id: LinkId, wr_id: u64) -> Result<()> {
        let block = self.block()?;
        if let Ok(mut link) = self.set.link(id) {
            let _ended = link.post_recv_block(wr_id, block);
            link.ring_recv();
        }
        Ok(())
    }

    pub fn send(&mut self, id: LinkId, block: Block<'static>, length: u32) -> Result<()> {
        let mut link = self.set.link(id)?;
        let (flags, replay) = (SendFlags::SIGNALED, Replay::IfSafe);
        link.post_block(0, Send {}, block, length, flags, replay)
            .map_err(|refused| refused.error)?;
        link.ring();
        Ok(())
    }
}

/// Each link that connects has a descriptor: as many as this process may have.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If it cannot be, an error says later that there are too few.
    let _refused = setrlimit(Resource::Nofile, all);
}
