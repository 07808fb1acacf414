//! One end of a connection, and what the other end has to know of it.

use anyhow::Result;
use bellwire::memory::Mapping;
use bellwire::wr::Remote;
use bellwire::{AccessFlags, ConnectAttr, Cq, Endpoint, Pd, Qp, QpInit, Region};
use serde::{Deserialize, Serialize};

/// Everything that a peer may do.
pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Memory for a device: of a fabric's, such that the peers' processes can have it too.
///
/// # Errors
/// When there is not enough.
pub fn buffer(pd: &Pd, bytes: usize) -> Result<Mapping> {
    Ok(pd.device().mapping(bytes).build()?)
}

/// One end of a connection. Sends and receives complete on queues of their own, so that waiting for
/// a message does not mean sorting out the completions of what was sent.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// Where its sends complete.
    pub send_cq: Cq,
    /// Where its receives complete.
    pub recv_cq: Cq,
}

impl End {
    /// An end that can take receives, and is not connected yet.
    ///
    /// # Errors
    /// Those of creating queue pairs.
    pub fn new(pd: &Pd, init: &QpInit) -> Result<Self> {
        let (sends, recvs) = init.cq_entries();
        let mut send_cq = pd.device().create_cq(sends)?;
        let mut recv_cq = pd.device().create_cq(recvs)?;
        let mut qp = pd.create_qp((&mut send_cq, &mut recv_cq), init)?;
        qp.init(&ConnectAttr::default())?;
        Ok(Self {
            qp,
            send_cq,
            recv_cq,
        })
    }

    /// What the peer has to know to connect, and to work on the region.
    pub fn card(&self, region: &Region) -> Card {
        let Endpoint {
            qp_num,
            psn,
            lid,
            gid,
        } = self.qp.endpoint();
        let Remote { addr, rkey } = region.remote(0);
        Card {
            qp_num,
            psn,
            lid,
            gid,
            addr,
            rkey,
        }
    }

    /// Connects to the peer.
    ///
    /// # Errors
    /// Those of connecting queue pairs.
    pub fn connect(&mut self, peer: &Card) -> Result<()> {
        let endpoint = Endpoint {
            qp_num: peer.qp_num,
            psn: peer.psn,
            lid: peer.lid,
            gid: peer.gid,
        };
        Ok(self.qp.connect(&endpoint, &ConnectAttr::default())?)
    }
}

/// What one end has to know of the other: its queue pair, and a region of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    qp_num: u32,
    psn: u32,
    lid: u16,
    gid: [u8; 16],
    addr: u64,
    rkey: u32,
}

impl Card {
    /// A place in the region.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(offset as u64),
            rkey: self.rkey,
        }
    }
}
