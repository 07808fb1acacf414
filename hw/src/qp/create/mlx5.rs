//! Queue pairs on the device's own rings.

use super::{Made, Wanted, attach, life};
use crate::error::Error;
use crate::mlx5::{Domain, QpRings};
use crate::provider::RecvDoorbell;
use crate::qp::{QpMemory, QpTransport};
use crate::verbs;
use bellwire_core::queue::AttachError;
use std::sync::Arc;

/// Queue pairs that are put aside, at the most, because completions of earlier ones of their numbers wait.
const MAX_ASIDE: usize = 64;

type Rings = (Arc<verbs::Qp>, Arc<QpMemory>);

impl Wanted<'_, '_> {
    /// Of a device whose rings core drives.
    pub(super) fn mlx5<T: QpTransport>(
        mut self,
        context: &verbs::Context,
    ) -> Result<Made<T>, Error> {
        let mut aside: Vec<Rings> = Vec::new();
        let made = loop {
            let (qp, memory) = match self.rings::<T>(context) {
                Ok(made) => made,
                Err(error) => break Err(error),
            };
            match self.on_rings::<T>(&qp, &memory) {
                // As long as this one is there, the next has another number.
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

    /// The device's queue pair, and its rings.
    fn rings<T: QpTransport>(&self, context: &verbs::Context) -> Result<Rings, Error> {
        let (send_cq, cq) = (self.shared.0.ctx.mlx5()?, self.shared.1.ctx.mlx5()?);
        let srq = self.srq.map(|srq| srq.verbs()).transpose()?.cloned();
        // Of requests that take several blocks libmlx5 makes a ring that has room for as many as are asked
        // for; its own may take more.
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
        // SAFETY: the queue pair keeps its completion queues until it is destroyed, and its memory the
        // domain.
        let qp = unsafe {
            let cqs = [
                &*std::ptr::from_ref(send_cq.object()),
                &*std::ptr::from_ref(cq.object()),
            ];
            verbs::Qp::new(pd, verbs::Way::Rings(domain.handle(), cqs), srq, &config)?
        };
        // SAFETY: alive, and of a device of mlx5.
        let rings = unsafe { QpRings::of(qp.handle(), domain, &context.registers) };
        let memory = rings.and_then(|rings| {
            let memory = QpMemory::on_rings(rings, self.sizes, qp.qp_num());
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

    /// The queues on these rings, attached.
    fn on_rings<T: QpTransport>(
        &mut self,
        qp: &Arc<verbs::Qp>,
        memory: &Arc<QpMemory>,
    ) -> Result<Made<T>, Error> {
        // SAFETY: the queue pair and its completion queues keep the memory.
        let parts = unsafe { memory.parts() }.ok_or_else(|| self.too_large())?;
        let rings = memory.rings().ok_or_else(|| self.too_large())?;
        // SAFETY: the queue pair keeps the rings; the only doorbell.
        let send = unsafe { rings.doorbell(parts.send_ring) };
        let recv = RecvDoorbell::Mlx5(parts.record);
        // SAFETY: the only queues on the rings and ledgers; the device follows the doorbells' rules.
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
