//! What connections and datagrams differ in: whether a peer is connected to, or named by requests.

use super::dest::Dest;
use anyhow::Result;
use bellwire::state::AhAttr;
use bellwire::wqe::{Rc, Send, Supports, Transport, Uc, Ud};
use bellwire::{Ah, Pd, QpTransport};

/// The key of datagrams, at both ends.
pub const QKEY: u32 = 0x1111_1111;

/// A transport that pingpong is played on.
pub trait Service: QpTransport + Supports<Send> {
    /// The peer, as requests name it.
    type Peer;

    /// The peer behind a path.
    fn peer(pd: &Pd, path: &AhAttr, dest: &Dest) -> Result<Self::Peer>;

    /// For a request.
    fn address(peer: &Self::Peer) -> <Self as Transport>::Address<'_>;
}

impl Service for Rc {
    type Peer = ();

    fn peer(_: &Pd, _: &AhAttr, _: &Dest) -> Result<()> {
        Ok(())
    }

    fn address(&(): &()) {}
}

impl Service for Uc {
    type Peer = ();

    fn peer(_: &Pd, _: &AhAttr, _: &Dest) -> Result<()> {
        Ok(())
    }

    fn address(&(): &()) {}
}

impl Service for Ud {
    type Peer = (Ah, u32);

    fn peer(pd: &Pd, path: &AhAttr, dest: &Dest) -> Result<(Ah, u32)> {
        Ok((pd.create_ah(path)?, dest.qpn))
    }

    fn address((ah, qpn): &(Ah, u32)) -> <Ud as Transport>::Address<'_> {
        ah.to(*qpn, QKEY)
    }
}
