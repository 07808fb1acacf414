//! One end of a connection.

use anyhow::Result;
use bellwire::connect::ConnInfo;
use bellwire::memory::Mapping;
use bellwire::state::Mtu;
use bellwire::{AccessFlags, ConnectAttr, Cq, Pd, Qp, QpInit, Region};

/// Everything that a peer may do.
pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// The port that is connected by.
const PORT: u8 = 1;

/// Memory for a device: of a fabric's, such that the peers' processes can have it too.
///
/// # Errors
/// When there is not enough.
pub fn buffer(pd: &Pd, bytes: usize) -> Result<Mapping> {
    Ok(pd.device().mapping(bytes).build()?)
}

/// One end of a connection. Sends and receives complete on queues of their own, so that a wait for a message
/// does not sort out the completions of sends.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// Where its sends complete.
    pub send_cq: Cq,
    /// Where its receives complete.
    pub recv_cq: Cq,
    /// What the port can do.
    mtu: Mtu,
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
            mtu: pd.device().query_port(PORT)?.active_mtu,
        })
    }

    /// What the peer has to know to connect, and to work on the region.
    pub fn info(&self, region: &Region) -> ConnInfo {
        ConnInfo {
            endpoint: self.qp.endpoint(),
            mtu: self.mtu,
            memory: region.into(),
        }
    }

    /// Connects to the peer.
    ///
    /// # Errors
    /// Those of connecting queue pairs.
    pub fn connect(&mut self, peer: &ConnInfo) -> Result<()> {
        let connect = ConnectAttr {
            path_mtu: self.mtu.min(peer.mtu),
            ..ConnectAttr::default()
        };
        Ok(self.qp.connect(&peer.endpoint, &connect)?)
    }
}
