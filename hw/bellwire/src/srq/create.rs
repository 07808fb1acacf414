//! Creation of shared receive queues.

use super::memory::{Ring, SrqMemory};
use super::{Srq, SrqInit, SrqShared, check_limit, too_large};
use crate::cq::{Cq, CqShared, Kept};
use crate::device::Device;
use crate::error::Error;
use crate::mlx5;
use crate::pd::Pd;
use crate::pinned::headroom;
use crate::provider::SrqSide;
use crate::verbs;
use crate::xrcd::Xrcd;
use bellwire_core::queue::{Attach, SharedRecvQueue, SrqConsumer, SrqUser, UserIndex};
use std::sync::{Arc, Mutex};

/// The attributes of a queue to be created, which were checked.
pub(crate) struct NewSrq<'a, 'c> {
    pub pd: &'a Pd,
    pub init: &'a SrqInit,
    pub limit: u16,
    /// The domain and the completion queue of a queue for XRC.
    pub xrc: Option<(&'c Xrcd, &'c mut Cq)>,
}

/// The poster's side of a queue in our own memory, and the consumer of its entries.
pub(crate) struct OwnSrq {
    pub queue: SharedRecvQueue<'static>,
    pub consumer: SrqConsumer<'static>,
    pub memory: Arc<SrqMemory>,
}

impl OwnSrq {
    /// Attaches a queue for XRC to a completion queue, and reserves room for all its receives.
    pub fn attach(&self, cq: &mut Cq) -> Result<UserIndex, Error> {
        // SAFETY: the completion queue keeps the memory.
        let ledger = unsafe { self.memory.ledger() };
        let queues = Attach {
            srq: Some((ledger, SrqUser::Xrc)),
            ..Attach::default()
        };
        // SAFETY: the memory, which is kept, holds the ledger.
        unsafe { cq.attach(Kept::Srq(self.memory.clone()), queues, true) }
    }
}

impl NewSrq<'_, '_> {
    fn too_large(&self) -> Error {
        let max = self.pd.device().attr().max_srq_wr;
        too_large("max_wr", self.init.max_wr, max)
    }

    /// Creates the poster's side and the consumer on a ring in our own memory.
    pub fn on_own_ring(&self) -> Result<OwnSrq, Error> {
        let (count, stride) = (self.init.count(), self.init.stride());
        // `check` rejects sizes that do not fit.
        let memory = SrqMemory::new(count, stride)?.ok_or_else(|| self.too_large())?;
        // SAFETY: queue and context keep the memory; the context is destroyed first.
        let (ledger, parts) = unsafe { (memory.ledger(), memory.ring.parts()) };
        let (ring, record) = parts.ok_or_else(|| self.too_large())?;
        // SAFETY: this is the only queue on the ledger and the record; the device consumes entries as it
        // must.
        let queue = unsafe { SharedRecvQueue::new(ledger, record) };
        Ok(OwnSrq {
            queue: queue.ok_or_else(|| self.too_large())?,
            consumer: SrqConsumer::new(ring, record),
            memory,
        })
    }

    /// Creates the poster's side on the device's own ring.
    pub fn on_ring(
        &self,
        ring: mlx5::SrqMemory,
    ) -> Result<(SharedRecvQueue<'static>, Arc<SrqMemory>), Error> {
        let memory = SrqMemory::over(Ring::Device(ring))?.ok_or_else(|| self.too_large())?;
        // SAFETY: the queue keeps the memory; it is the only one on the ledger and the record.
        let queue = unsafe {
            let parts = memory.ring.parts();
            parts.and_then(|(_, record)| SharedRecvQueue::new(memory.ledger(), record))
        };
        Ok((queue.ok_or_else(|| self.too_large())?, memory))
    }
}

impl Srq {
    /// The queue of these parts; `cq` is the completion queue of its receives, for XRC.
    pub(crate) fn new(
        queue: SharedRecvQueue<'static>,
        doorbell: Option<Box<verbs::SrqDoorbell>>,
        (ctx, number): (SrqSide, u32),
        memory: Arc<SrqMemory>,
        cq: Option<Arc<CqShared>>,
        pd: &Pd,
    ) -> Self {
        let shared = SrqShared {
            ctx,
            number,
            memory,
            cq,
            users: Mutex::default(),
            pd: pd.clone(),
        };
        Self {
            queue,
            doorbell,
            shared: Arc::new(shared),
        }
    }
}

impl Pd {
    /// Creates a shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    /// An attribute exceeds the device's limits, the limit exceeds `max_wr`, or no number is left.
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq, Error> {
        headroom()?;
        self.make_srq(None, init)
    }

    /// Creates a shared receive queue for XRC (`ibv_create_srq_ex` with `IBV_SRQT_XRC`): requesters of the
    /// domain address it by its [number](Srq::srq_num), and its receives complete on `cq`, where room is
    /// reserved for all of them.
    ///
    /// # Errors
    /// Those of [`create_srq`](Self::create_srq); a domain or completion queue of another device or context,
    /// or a completion queue without room.
    pub fn create_xrc_srq(&self, xrcd: &Xrcd, cq: &mut Cq, init: &SrqInit) -> Result<Srq, Error> {
        headroom()?;
        let ours = |device: &Device| device.hca.is_same(&self.device().hca);
        for (what, ours) in [
            ("XRC domain", ours(xrcd.device())),
            ("completion queue", ours(cq.device())),
        ] {
            if !ours {
                return Err(Error::Foreign { what });
            }
        }
        self.make_srq(Some((xrcd, cq)), init)
    }

    fn make_srq(&self, xrc: Option<(&Xrcd, &mut Cq)>, init: &SrqInit) -> Result<Srq, Error> {
        init.check(self)?;
        self.device().hca.create_srq(NewSrq {
            pd: self,
            init,
            limit: check_limit(init.srq_limit, init.count() - 1)?,
            xrc,
        })
    }
}
