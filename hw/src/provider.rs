//! Who stands behind a device's objects: the software HCA, or a device of libibverbs. A match, never
//! a `dyn`; without the feature `verbs` there is one case, and no match.

use crate::cq::CqSide;
use crate::device::{DeviceAttr, PortAttr};
use crate::error::Error;
use crate::pd::Pd;
use crate::soft::{self, Life, Running};
#[cfg(feature = "verbs")]
use crate::verbs;
use bellwire_core::access::AccessFlags;
#[cfg(feature = "mlx5")]
use bellwire_core::port::DoorbellRecord;
use bellwire_core::port::{self, Staged, StagedReceives};
use bellwire_core::qp::{AhAttr, QpAttr, QpAttrMask, QpState};
#[cfg(feature = "mlx5")]
use bellwire_core::queue::{BlueFlame, Private, Shared};
use bellwire_core::wr::MwType;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// By whom a device's requests are executed, and how they get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderKind {
    /// The software HCA.
    Soft,
    /// A device of libibverbs, by `ibv_wr_*` and `ibv_start_poll`, or `ibv_post_send` and
    /// `ibv_poll_cq`.
    Verbs,
    /// A ConnectX device whose rings are written and read without libibverbs.
    Mlx5,
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Soft => "soft",
            Self::Verbs => "verbs",
            Self::Mlx5 => "mlx5",
        })
    }
}

/// The device behind a context.
#[derive(Clone, Debug)]
pub(crate) enum Provider {
    Soft(Arc<Running>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::Context>),
}

/// Calls what both have under one name.
macro_rules! both {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            Provider::Soft($device) => $call,
            #[cfg(feature = "verbs")]
            Provider::Verbs($device) => $call,
        }
    };
}

impl Provider {
    /// The software HCA.
    ///
    /// # Errors
    /// [`Error::SoftOnly`], for what others do not have.
    pub fn soft(&self, what: &'static str) -> Result<&Arc<Running>, Error> {
        let _ = what;
        match self {
            Self::Soft(hca) => Ok(hca),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => Err(Error::SoftOnly { what }),
        }
    }

    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Soft(hca), Self::Soft(other)) => Arc::ptr_eq(hca, other),
            #[cfg(feature = "verbs")]
            (Self::Verbs(context), Self::Verbs(other)) => Arc::ptr_eq(context, other),
            #[cfg(feature = "verbs")]
            _ => false,
        }
    }

    /// Whether both are one device, perhaps opened twice.
    pub fn is_alike(&self, other: &Self) -> bool {
        #[cfg(feature = "verbs")]
        if let (Self::Verbs(context), Self::Verbs(other)) = (self, other) {
            return context.name() == other.name();
        }
        self.is_same(other)
    }

    pub fn kind(&self) -> ProviderKind {
        match self {
            Self::Soft(_) => ProviderKind::Soft,
            #[cfg(feature = "verbs")]
            Self::Verbs(context) if context.drives_rings() => ProviderKind::Mlx5,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => ProviderKind::Verbs,
        }
    }

    pub fn attr(&self) -> DeviceAttr {
        match self {
            Self::Soft(_) => soft::limits(),
            #[cfg(feature = "verbs")]
            Self::Verbs(context) => context.attr(),
        }
    }

    /// Basic blocks of a send queue at the most.
    pub fn max_send_blocks(&self) -> u32 {
        match self {
            Self::Soft(_) => 1 << 15,
            #[cfg(feature = "verbs")]
            Self::Verbs(context) => context.max_send_blocks(),
        }
    }

    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, Error> {
        let _ = port_num;
        match self {
            Self::Soft(hca) => Ok(hca.query_port()),
            #[cfg(feature = "verbs")]
            Self::Verbs(context) => context.query_port(port_num),
        }
    }

    pub fn query_gid(&self, port_num: u8, index: u16) -> Result<[u8; 16], Error> {
        let _ = (port_num, index);
        match self {
            Self::Soft(hca) => Ok(hca.gid()),
            #[cfg(feature = "verbs")]
            Self::Verbs(context) => context.query_gid(port_num, index),
        }
    }

    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16, Error> {
        let _ = (port_num, index);
        match self {
            Self::Soft(hca) => Ok(hca.pkey()),
            #[cfg(feature = "verbs")]
            Self::Verbs(context) => context.query_pkey(port_num, index),
        }
    }

    /// The GID by which peers reach a port, where nobody says which.
    pub fn default_gid_index(&self, port_num: u8) -> u8 {
        let _ = port_num;
        match self {
            Self::Soft(_) => 0,
            #[cfg(feature = "verbs")]
            Self::Verbs(context) => context.default_gid_index(port_num),
        }
    }

    /// The way to the port with this LID and this GID.
    pub fn way_to(&self, lid: u16, gid: [u8; 16], port_num: u8, gid_index: Option<u8>) -> AhAttr {
        let _ = (gid, gid_index);
        match self {
            Self::Soft(_) => AhAttr {
                dlid: lid,
                port_num,
                ..AhAttr::default()
            },
            #[cfg(feature = "verbs")]
            Self::Verbs(context) => context.way_to(lid, gid, port_num, gid_index),
        }
    }

    pub fn check_alive(&self) -> Result<(), Error> {
        both!(self, device => device.check_alive())
    }

    /// Time since some moment: the software HCA's, whose clock may be a virtual one, else the
    /// machine's.
    pub fn now(&self) -> Duration {
        match self {
            Self::Soft(hca) => hca.now(),
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => {
                static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
                START.get_or_init(std::time::Instant::now).elapsed()
            }
        }
    }

    /// What a poll that found nothing does with the software HCA: lets requests go on whose time has
    /// come. Whether polling again may find something.
    #[inline(always)]
    pub fn look(&self) -> bool {
        match self {
            Self::Soft(hca) => {
                let waiting = hca.waiting();
                if waiting {
                    hca.progress();
                }
                waiting
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => false,
        }
    }

    /// Runs `look` while the device writes no entry to this completion queue. `look` uses the device no
    /// further. For the control path.
    pub fn hold_still<R>(&self, cq: &CqSide, look: impl FnOnce() -> R) -> R {
        match (self, cq) {
            (Self::Soft(hca), _) => hca.hold_still(look),
            #[cfg(feature = "verbs")]
            (Self::Verbs(_), CqSide::Verbs(cq)) => cq.hold_still(look),
            #[cfg(feature = "mlx5")]
            (Self::Verbs(_), CqSide::Mlx5(cq)) => cq.hold_still(look),
            // There is no such completion queue.
            #[cfg(feature = "verbs")]
            (Self::Verbs(_), CqSide::Soft(_)) => look(),
        }
    }

    /// Registers memory; gives lkey and rkey.
    ///
    /// # Safety
    /// The memory is valid until the region is deregistered, its provenance exposed, and the program
    /// treats it as the access flags say.
    pub unsafe fn register_mr(
        &self,
        pd: &Pd,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<(u32, u32), Error> {
        match self {
            Self::Soft(hca) => {
                // SAFETY: the caller's promise.
                let key = unsafe { hca.register_mr(pd.id(), addr, length, access)? };
                Ok((key, key))
            }
            #[cfg(feature = "verbs")]
            // SAFETY: the caller's promise.
            Self::Verbs(context) => unsafe {
                context.register_mr(pd.verbs()?, addr, length, addr, access)
            },
        }
    }

    pub fn deregister_unbound(&self, lkey: u32) -> Result<(), Error> {
        both!(self, device => device.deregister_unbound(lkey))
    }

    pub fn deregister_mr(&self, lkey: u32) -> Result<(), Error> {
        both!(self, device => device.deregister_mr(lkey))
    }

    pub fn alloc_mw(&self, pd: &Pd, kind: MwType) -> Result<u32, Error> {
        match self {
            Self::Soft(hca) => hca.alloc_mw(pd.id(), kind),
            #[cfg(feature = "verbs")]
            Self::Verbs(context) => context.alloc_mw(pd.verbs()?, kind),
        }
    }

    /// A window is to be bound to the region of this key, or to nothing: asked for on rings that nobody
    /// else reads.
    pub fn note_bind(&self, rkey: u32, lkey: Option<u32>) {
        let _ = (rkey, lkey);
        #[cfg(feature = "mlx5")]
        if let Self::Verbs(context) = self
            && context.drives_rings()
        {
            context.note_bind(rkey, lkey);
        }
    }

    pub fn dealloc_mw(&self, rkey: u32) {
        both!(self, device => device.dealloc_mw(rkey));
    }

    pub fn query_qp(&self, qpn: u32) -> Result<QpAttr, Error> {
        both!(self, device => device.query_qp(qpn))
    }

    pub fn modify_qp(&self, qpn: u32, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, Error> {
        both!(self, device => device.modify_qp(qpn, attr, mask))
    }

    pub fn restart(&self, qpn: u32, life: Life) {
        both!(self, device => device.restart(qpn, life));
    }

    /// A queue pair that is about to be destroyed, and that the device did not take to ERR: what is rung
    /// from here on is told as flushed, and not executed.
    pub fn stop_qp(&self, qpn: u32) {
        both!(self, device => device.stop_qp(qpn));
    }

    pub fn destroy_qp(&self, qpn: u32) {
        both!(self, device => device.destroy_qp(qpn));
    }

    pub fn attach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        both!(self, device => device.attach_mcast(qpn, gid, lid))
    }

    pub fn detach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        both!(self, device => device.detach_mcast(qpn, gid, lid))
    }
}

/// Rings a send queue, whoever stands behind it.
#[derive(Debug)]
pub enum SendDoorbell {
    /// Of a software HCA.
    Soft(soft::SendDoorbell),
    /// Of a device of libibverbs.
    #[cfg(feature = "verbs")]
    Verbs(verbs::SendDoorbell),
    /// Of a ConnectX device, on a register of its own.
    #[cfg(feature = "mlx5")]
    Mlx5(BlueFlame<'static, Private>),
    /// The same, on a register that others ring too.
    #[cfg(feature = "mlx5")]
    Mlx5Shared(BlueFlame<'static, Shared<'static>>),
}

// SAFETY: each case keeps the promise.
unsafe impl port::SendDoorbell for SendDoorbell {
    #[inline(always)]
    fn ring(&mut self, staged: &Staged) {
        match self {
            Self::Soft(doorbell) => doorbell.ring(staged),
            #[cfg(feature = "verbs")]
            Self::Verbs(doorbell) => doorbell.ring(staged),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(doorbell) => doorbell.ring(staged),
            #[cfg(feature = "mlx5")]
            Self::Mlx5Shared(doorbell) => doorbell.ring(staged),
        }
    }
}

/// Rings a receive queue, whoever stands behind it.
#[derive(Debug)]
pub enum RecvDoorbell {
    /// Of a software HCA.
    Soft(soft::RecvDoorbell),
    /// Of a device of libibverbs.
    #[cfg(feature = "verbs")]
    Verbs(verbs::RecvDoorbell),
    /// Of a ConnectX device: a record that it reads.
    #[cfg(feature = "mlx5")]
    Mlx5(&'static DoorbellRecord),
}

// SAFETY: each case keeps the promise.
unsafe impl port::RecvDoorbell for RecvDoorbell {
    #[inline(always)]
    fn ring(&mut self, staged: &StagedReceives) {
        match self {
            Self::Soft(doorbell) => doorbell.ring(staged),
            #[cfg(feature = "verbs")]
            Self::Verbs(doorbell) => doorbell.ring(staged),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(record) => record.ring(staged),
        }
    }
}
