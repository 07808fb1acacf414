//! Memory windows.

use crate::error::Error;
use crate::pd::Pd;
use crate::pinned::headroom;
use crate::qp::{Binds, Qp, QpSendQueue};
use bellwire_core::queue::PostError;
use bellwire_core::wqe::{Address, BindMw, BindMwInfo, BindMwType1, UnbindMw, UnbindMwType1};
use bellwire_core::wr::{MwType, SendFlags};

/// A memory window (`ibv_mw`): a key of its own to a part of a region, which requests bind and unbind. A
/// window of type 1 is bound by [`bind`](Self::bind), any number of times. A window of type 2 is bound by
/// posting [`bind_wr`](Self::bind_wr), and has to be unbound before it is bound again: by
/// [`unbind_wr`](Self::unbind_wr), by [`LocalInv`](bellwire_core::wqe::LocalInv), or by the peer's
/// [`SendWithInv`](bellwire_core::wqe::SendWithInv). The region needs
/// [`MW_BIND`](crate::AccessFlags::MW_BIND).
///
/// Dropping it invalidates its key: once the drop has returned, no peer accesses memory through it.
///
/// ```
/// use bellwire::memory::Mapping;
/// use bellwire::wqe::{BindMwInfo, RdmaWrite};
/// use bellwire::wr::{MwType, Remote, SendFlags};
/// use bellwire::*;
///
/// let pd = Device::open("auto")?.alloc_pd();
/// let mut cq = pd.device().create_cq(1024)?;
/// let mut qp = pd.create_qp(&mut cq, &QpInit::default())?;
/// let connect = ConnectAttr::default();
/// qp.init(&connect)?;
/// qp.connect(&qp.endpoint(), &connect)?; // with itself
/// let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
/// let region = Region::new(&pd, Mapping::anonymous(4096).build()?, access)?;
///
/// let mut window = pd.alloc_mw(MwType::Type2)?;
/// let part = region.sge(1024, 64);
/// let bind = window.bind_wr(&BindMwInfo {
///     lkey: part.lkey,
///     addr: part.addr,
///     length: part.length,
///     access: AccessFlags::REMOTE_WRITE.bits(),
/// });
/// qp.sq().post_empty(1, (), bind, SendFlags::empty())?;
/// let remote = Remote { addr: part.addr, rkey: window.rkey() };
/// qp.sq().post_inline(2, (), RdmaWrite { remote }, b"hello", SendFlags::SIGNALED)?;
/// qp.sq().ring();
/// cq.poll_one().expect("executed").result?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mw {
    rkey: u32,
    kind: MwType,
    pd: Pd,
}

impl Pd {
    /// Allocates a memory window (`ibv_alloc_mw`), which is not bound.
    ///
    /// # Errors
    /// No key is left.
    pub fn alloc_mw(&self, kind: MwType) -> Result<Mw, Error> {
        headroom()?;
        Ok(Mw {
            rkey: self.device().hca.alloc_mw(self, kind)?,
            kind,
            pd: self.clone(),
        })
    }
}

impl Mw {
    /// Its rkey, as of the last bind that was requested. The key is valid once that bind has been executed;
    /// requests posted after the bind may use it immediately.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.kind
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// A request that binds a window of type 2, under a new rkey: the old one with its low byte incremented
    /// (`ibv_inc_rkey`). Post it on a queue pair of the protection domain. A bind that is not possible
    /// completes with `MW_BIND_ERR`.
    pub fn bind_wr(&mut self, info: &BindMwInfo) -> BindMw {
        let mw_rkey = self.next();
        self.note(info);
        BindMw {
            mw_rkey,
            new_rkey: self.rkey,
            info: *info,
        }
    }

    /// A request that unbinds a window of type 2.
    pub fn unbind_wr(&mut self) -> UnbindMw {
        let mw_rkey = self.next();
        self.note(&BindMwInfo::default());
        UnbindMw {
            mw_rkey,
            new_rkey: self.rkey,
        }
    }

    /// Records what the window is to be bound to, for when that region is deregistered.
    fn note(&self, info: &BindMwInfo) {
        let bound = (info.length != 0).then_some(info.lkey);
        self.pd.device().hca.note_bind(self.rkey, bound);
    }

    /// The rkey that the next bind gives it.
    pub(crate) fn next_rkey(&self) -> u32 {
        self.rkey & !0xff | self.rkey.wrapping_add(1) & 0xff
    }

    /// Records that its key was invalidated, by this end or the peer.
    pub(crate) fn invalidated(&self) {
        self.note(&BindMwInfo::default());
    }

    /// Increments the low byte of the rkey, and returns the previous key.
    fn next(&mut self) -> u32 {
        let next = self.next_rkey();
        std::mem::replace(&mut self.rkey, next)
    }

    /// Binds a window of type 1 (`ibv_bind_mw`): stages a bind, or an unbind if the length is zero, on the
    /// queue pair's send queue. [`rkey`](Self::rkey) returns the new key immediately.
    ///
    /// # Errors
    /// The window is of type 2, or belongs to another protection domain, or the queue refuses the request.
    /// Nothing was staged.
    pub fn bind<T: Binds>(
        &mut self,
        qp: &mut Qp<T>,
        wr_id: u64,
        address: Address<'_, T>,
        info: &BindMwInfo,
        flags: SendFlags,
    ) -> Result<(), Error> {
        if self.kind != MwType::Type1 {
            return Err(Error::MwType { given: self.kind });
        }
        if !qp.pd().is_same(&self.pd) {
            return Err(Error::Foreign {
                what: "memory window",
            });
        }
        self.post_bind(&mut qp.sq(), wr_id, address, info, flags)
            .map_err(Error::Post)
    }

    /// Stages a bind of a window of either type, or an unbind if the length is zero. The key changes only if
    /// the request was staged.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
    #[inline]
    pub fn post_bind<T: Binds>(
        &mut self,
        sq: &mut QpSendQueue<'_, T>,
        wr_id: u64,
        address: Address<'_, T>,
        info: &BindMwInfo,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let mw_rkey = self.next();
        let (new_rkey, info) = (self.rkey, *info);
        let posted = match (self.kind, info.length) {
            (MwType::Type1, 0) => {
                let unbind = UnbindMwType1 { mw_rkey, new_rkey };
                sq.post_empty(wr_id, address, unbind, flags)
            }
            (MwType::Type1, _) => {
                let bind = BindMwType1 {
                    mw_rkey,
                    new_rkey,
                    info,
                };
                sq.post_empty(wr_id, address, bind, flags)
            }
            (MwType::Type2, 0) => {
                let unbind = UnbindMw { mw_rkey, new_rkey };
                sq.post_empty(wr_id, address, unbind, flags)
            }
            (MwType::Type2, _) => {
                let bind = BindMw {
                    mw_rkey,
                    new_rkey,
                    info,
                };
                sq.post_empty(wr_id, address, bind, flags)
            }
        };
        match posted {
            Ok(()) => self.note(&info),
            Err(_) => self.rkey = mw_rkey,
        }
        posted
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.device().is_inherited() {
            return;
        }
        self.pd.device().hca.dealloc_mw(self.rkey);
    }
}
