//! The path of the packets of an id's connection.
//!
//! librdmacm accepts only a traffic class. The other attributes are written into the attributes that
//! `rdma_init_qp_attr` returns, by which the queue pair goes to RTR and RTS. So each end has a path of its
//! own, and attributes that are not set keep the communication manager's values. The software HCA has all of
//! the path in its attributes.

use super::id::Id;
use crate::error::Error;
use crate::provider::each;
use crate::qp::PathAttr;

impl Id {
    /// Sets the path attributes of the connection's packets, for this end; the peer sets those of its own
    /// packets. Attributes left at their default are chosen by the communication manager: on RoCE it
    /// computes a flow label from the addresses, and takes the hop limit from the route. Call it before
    /// [`init_qp`](Self::init_qp), and before the address is resolved if the traffic class is to apply to
    /// the manager's own messages too, from which the accepting end takes it. It also does what
    /// [`set_tos`](Self::set_tos) does.
    ///
    /// For datagrams only `pkey_index` has a meaning: the rest is given by the address handle of each
    /// datagram.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Io`]. Attributes that the device does not have are reported by
    /// `init_qp`. [`connect`](Self::connect) or [`accept`](Self::accept) return [`Error::Unsupported`]
    /// when the route on InfiniBand has no place for a traffic class, a flow label or a hop limit.
    pub fn set_path(&self, path: &PathAttr) -> Result<(), Error> {
        path.check_ranges()?;
        if path.traffic_class != self.path().traffic_class {
            each!(&self.0, id => id.set_tos(path.traffic_class))?;
        }
        *self.on_id().path() = *path;
        Ok(())
    }

    /// The attributes that were [set](Self::set_path).
    pub fn path(&self) -> PathAttr {
        *self.on_id().path()
    }

    /// Sets the type of service of its packets (`RDMA_OPTION_ID_TOS`), before the address is resolved:
    /// the traffic class of its [path](Self::set_path).
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn set_tos(&self, tos: u8) -> Result<(), Error> {
        each!(&self.0, id => id.set_tos(tos))?;
        self.on_id().path().traffic_class = tos;
        Ok(())
    }
}
