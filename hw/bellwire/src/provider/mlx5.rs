//! Objects of ConnectX devices whose rings core drives. libibverbs creates them.

use super::data_path::Poll;
use super::verbs::kernel_channel;
use super::{AhSide, CqSide, Provider};
use crate::cq::{Cq, CqShared, NewCq, OldCqe};
use crate::device::Device;
use crate::error::Error;
use crate::mlx5::{self, CI_MASK, Domain, QpRings};
use crate::pd::Pd;
use crate::qp::{Made, QpMemory, QpTransport, Wanted, attach, life};
use crate::srq::{NewSrq, Srq, SrqShared};
use crate::verbs;
use bellwire_core::cqe::{Cqe64, CqeOpcode};
use bellwire_core::qp::AhAttr;
use bellwire_core::queue::{AttachError, ByQpNum, Completion, CompletionQueue};
use bellwire_core::wqe::AddressVector;
use std::collections::HashSet;
use std::sync::Arc;

/// The device writes the entries; their user index is chosen by libmlx5, so queue pairs are found by number.
impl Poll for CompletionQueue<'static, ByQpNum<'static>> {
    type Producer = mlx5::Cq;

    #[inline(always)]
    fn poll_one(&mut self, _: &Arc<CqShared>, _: &Device) -> Option<Completion<'static>> {
        self.poll_one()
    }

    #[inline(always)]
    fn poll(
        &mut self,
        _: &Arc<CqShared>,
        _: &Device,
        limit: usize,
        each: impl FnMut(Completion<'static>),
    ) -> usize {
        self.poll(limit, each)
    }

    fn arm(&mut self, cq: &mlx5::Cq, solicited_only: bool) -> Result<(), Error> {
        cq.arm(self, solicited_only);
        Ok(())
    }

    /// The device may write entries meanwhile: those that it may have overwritten are omitted.
    fn known(&self, mut entries: Vec<OldCqe>, cq: &CqSide) -> Result<Vec<OldCqe>, Error> {
        let (end, count) = (cq.produced(), self.capacity());
        entries.retain(|old| end.wrapping_sub(old.index) & CI_MASK < count);
        Ok(entries)
    }
}

pub fn create_cq(context: &Arc<verbs::Context>, new: &NewCq<'_>) -> Result<Cq, Error> {
    let (channel, events) = (kernel_channel(new.channel)?, new.device.events.clone());
    let cq = Box::new(mlx5::Cq::new(context, new.with_batch(), events, channel)?);
    // SAFETY: `cq` keeps the ring, and this is its only consumer.
    unsafe { new.by_qp_num(cq.ring(), Provider::Mlx5(cq), Provider::Mlx5) }
}

/// Creates an address handle for entries that the device reads.
pub fn create_ah(pd: &Pd, attr: &AhAttr) -> Result<(AddressVector, AhSide), Error> {
    let handle = verbs::Ah::new(pd.verbs()?, attr)?;
    Ok((handle.vector()?, Provider::Mlx5(Arc::new(handle))))
}

/// The entries of a shared receive queue that are posted and have not completed, when it is destroyed.
pub fn left(srq: &SrqShared) -> impl Iterator<Item = u16> {
    let completed = completed(srq);
    (0..srq.memory.count()).filter(move |index| !completed.contains(index))
}

/// The entries whose completions were not polled yet.
fn completed(srq: &SrqShared) -> HashSet<u16> {
    let mut completed = HashSet::new();
    for (qp_num, cq) in srq.users().iter() {
        let cq = cq.upgrade();
        let Some(cq) = cq.as_ref().and_then(|cq| cq.mlx5().ok()) else {
            continue;
        };
        let of_it = |all: &mut HashSet<u16>, cqe: &Cqe64| {
            let of_receive = cqe.opcode().is_received() || cqe.opcode() == CqeOpcode::RespErr;
            if of_receive && cqe.qpn() == *qp_num {
                all.insert(cqe.wqe_counter());
            }
        };
        completed.extend(cq.entries().fold(HashSet::new, of_it).0);
    }
    completed
}

pub fn create_srq(context: &Arc<verbs::Context>, new: &NewSrq<'_, '_>) -> Result<Srq, Error> {
    let (pd, init) = (new.pd, new.init);
    let domain = Arc::new(mlx5::Domain::new(pd.verbs()?, false)?);
    let (handle, events) = (domain.handle(), &pd.device().events);
    let (max_wr, max_sge) = (init.max_wr, init.max_sge);
    // SAFETY: the memory keeps the domain, and the queue keeps the memory.
    let device =
        unsafe { verbs::Srq::new(context, handle, max_wr, max_sge, new.limit, events, None)? };
    let device = Arc::new(device);
    let ring = mlx5::SrqMemory::of(&device, domain, init.count())?;
    let (queue, memory) = new.on_ring(ring)?;
    let number = device.number();
    let side = (Provider::Mlx5(device), number);
    Ok(Srq::new(queue, None, side, memory, None, pd))
}

/// The most queue pairs that are set aside, because completions of destroyed queue pairs with their numbers
/// were not polled yet.
const MAX_ASIDE: usize = 64;

type Rings = (Arc<verbs::Qp>, Arc<QpMemory>);

pub fn create_qp<T: QpTransport>(
    context: &verbs::Context,
    mut wanted: Wanted<'_, '_>,
) -> Result<Made<T>, Error> {
    let mut aside: Vec<Rings> = Vec::new();
    let made = loop {
        let (qp, memory) = match wanted.rings::<T>(context) {
            Ok(made) => made,
            Err(error) => break Err(error),
        };
        match wanted.on_rings::<T>(&qp, &memory) {
            // While this queue pair exists, the next one gets another number.
            Err(Error::Attach(AttachError::NumberTaken { .. })) if aside.len() < MAX_ASIDE => {
                aside.push((qp, memory));
            }
            Err(error) => {
                aside.push((qp, memory));
                break Err(error);
            }
            made => break made,
        }
    };
    for (qp, _memory) in aside {
        context.destroy_qp(qp.qp_num());
    }
    made
}

impl Wanted<'_, '_> {
    /// Creates the device's queue pair, and determines its rings.
    fn rings<T: QpTransport>(&self, context: &verbs::Context) -> Result<Rings, Error> {
        let (send_cq, cq) = (self.shared.0.mlx5()?, self.shared.1.mlx5()?);
        let srq = self.srq.map(|srq| srq.verbs()).transpose()?.cloned();
        // For requests of several blocks, libmlx5 creates a ring with room for as many as are requested; its
        // own entries may take more blocks than core's.
        let config = verbs::QpConfig {
            transport: T::TYPE,
            sends: self.init.max_send_wr.max(1),
            receives: self.sizes.recv_count,
            max_send_sge: self.init.max_send_sge,
            max_recv_sge: self.init.max_recv_sge,
            max_inline_data: self.init.max_inline_data,
            spare: 0,
            plain: true,
        };
        let pd = self.pd.verbs()?;
        let domain = Domain::new(pd, true)?;
        // SAFETY: the queue pair keeps its completion queues until it is destroyed, and its memory keeps the
        // domain.
        let qp = unsafe {
            let cqs = [
                &*std::ptr::from_ref(send_cq.object()),
                &*std::ptr::from_ref(cq.object()),
            ];
            verbs::Qp::new(pd, verbs::Way::Rings(domain.handle(), cqs), srq, &config)?
        };
        // SAFETY: the queue pair is alive, and of an mlx5 device.
        let rings = unsafe { QpRings::of(qp.handle(), domain, &context.registers) };
        let memory = rings.and_then(|rings| {
            let memory = QpMemory::on_rings(rings, self.sizes, qp.qp_num())?;
            memory.ok_or_else(|| self.too_large())
        });
        match memory {
            Ok(memory) => Ok((qp, memory)),
            Err(error) => {
                context.destroy_qp(qp.qp_num());
                Err(error)
            }
        }
    }

    /// Creates the queues on these rings, and attaches them.
    fn on_rings<T: QpTransport>(
        &mut self,
        qp: &Arc<verbs::Qp>,
        memory: &Arc<QpMemory>,
    ) -> Result<Made<T>, Error> {
        // SAFETY: the queue pair and its completion queues keep the memory.
        let parts = unsafe { memory.parts() }.ok_or_else(|| self.too_large())?;
        let rings = memory.rings().ok_or_else(|| self.too_large())?;
        // SAFETY: the queue pair keeps the rings; this is the only doorbell.
        let send = Provider::Mlx5(unsafe { rings.doorbell(parts.send_ring) });
        let recv = Provider::Mlx5(parts.record);
        // SAFETY: these are the only queues on the rings and ledgers; the device accesses the rings as the
        // doorbells require.
        let queues = unsafe { self.queues::<T>(&parts, send, recv) };
        let (sq, rq) = queues.ok_or_else(|| self.too_large())?;
        let user_index = attach::<T>(self.cqs, memory, &parts, self.srq, self.init.reserve_cq)?;
        qp.begin(life(0, user_index));
        if let Some(srq) = self.srq {
            srq.admit(qp.qp_num(), &self.shared.1);
        }
        Ok(Made {
            qpn: qp.qp_num(),
            memory: memory.clone(),
            user_index,
            sq,
            rq,
        })
    }
}
