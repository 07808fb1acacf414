//! Operations on queue pairs, which the layer above identifies by number.

use super::super::context::Context;
use super::super::sys;
use super::Qp;
use crate::error::Error;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wr::WrOpcode;
use bellwire_provider::event::Element;
use bellwire_provider::life::Life;
use bellwire_provider::path::{PathAttr, UdpSport};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Context {
    fn qp(&self, qpn: u32) -> Result<Arc<Qp>, Error> {
        let found = self.tables().qps.get(&qpn).cloned();
        found.ok_or(Error::UnknownQp { qpn })
    }

    /// Queries a queue pair's attributes (`ibv_query_qp`).
    ///
    /// # Errors
    /// [`Error::UnknownQp`]; [`Error::Io`].
    pub fn query_qp(&self, qpn: u32) -> Result<QpAttr, Error> {
        self.qp(qpn)?.query()
    }

    /// Whether the device places the bytes of a message of this operation in order (`ibv_query_qp_data_in_order`).
    /// `false` where libibverbs cannot say.
    pub fn data_in_order(&self, qpn: u32, operation: WrOpcode) -> bool {
        let (Ok(qp), Ok(query)) = (self.qp(qpn), sys::ibv_query_qp_data_in_order()) else {
            return false;
        };
        // NOP is an addition, which the verbs do not have; it places nothing.
        if operation == WrOpcode::Nop {
            return false;
        }
        // The numbers are those of the verbs.
        let number = u32::from(operation.number());
        // SAFETY: the queue pair is alive, and the operation is one of the verbs.
        unsafe { query(qp.handle.as_ptr(), number, 0) == 1 }
    }

    /// Changes state and attributes of a queue pair (`ibv_modify_qp`); returns its state.
    ///
    /// # Errors
    /// [`Error::UnknownQp`]; [`Error::Modify`]; [`Error::Io`]: the device refuses.
    pub fn modify_qp(&self, qpn: u32, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, Error> {
        self.check_alive()?;
        self.qp(qpn)?.modify(attr, mask)
    }

    /// Sets the UDP source port of a queue pair in RTS, on a device that [supports this](Self::udp_sport).
    pub fn set_udp_sport(&self, qpn: u32, port: u16) -> Result<(), Error> {
        let qp = self.qp(qpn)?;
        if self.udp_sport() == Some(UdpSport::Label) {
            // The device derives it from the flow label of the address vector.
            return Ok(());
        }
        // SAFETY: the queue pair is alive, and of an mlx5 device.
        let answer = unsafe { crate::mlx5dv::set_udp_sport(qp.handle, port) };
        drop(qp);
        answer.map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => PathAttr::NO_UDP_SPORT,
            _ => Error::io("set the UDP source port", error),
        })
    }

    /// Begins another life of a queue pair in RESET.
    pub fn restart(&self, qpn: u32, life: Life) {
        if let Ok(qp) = self.qp(qpn) {
            qp.begin(life);
        }
    }

    /// From now on, posted requests are reported as flushed, and not executed.
    pub fn stop_qp(&self, qpn: u32) {
        if let Ok(qp) = self.qp(qpn) {
            qp.stop();
        }
    }

    /// Destroys a queue pair.
    pub fn destroy_qp(&self, qpn: u32) {
        let groups = self.tables().groups.remove(&qpn);
        for (gid, lid) in groups.into_iter().flatten() {
            // An error (EIO) cannot be handled.
            let _ = self.detach(qpn, gid, lid);
        }
        let qp = self.tables().qps.remove(&qpn);
        if let Some(qp) = qp {
            qp.destroy();
        }
    }

    /// The device has reported that a completion queue overran. The queue pairs that use it are moved to ERR:
    /// a completion after a lost entry could be taken for the completion of another request. Some devices
    /// (rxe) leave the queue pairs as they are, and report the overrun for each lost entry.
    pub(crate) fn overran(&self, element: Element) {
        let Element::Cq(cqn) = element else {
            return;
        };
        let on_it = |qp: &&Arc<Qp>| {
            let mut objects = qp.way.objects().into_iter();
            objects.any(|cq| cq.cqn() == cqn && !cq.overrun())
        };
        let qps: Vec<_> = (self.tables().qps.values().filter(on_it).cloned()).collect();
        for cq in qps.iter().flat_map(|qp| qp.way.objects()) {
            if cq.cqn() == cqn {
                cq.set_overrun();
            }
        }
        for qp in &qps {
            qp.failing.store(true, Ordering::Relaxed);
            // An error (EIO) cannot be handled.
            let _ = qp.error();
        }
    }

    /// Attaches a queue pair to a multicast group.
    ///
    /// # Errors
    /// [`Error::UnknownQp`]; [`Error::Io`]: the device refuses.
    pub fn attach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.mcast(qpn, gid, |qp, gid| {
            // SAFETY: the queue pair is alive.
            unsafe { sys::ibv_attach_mcast(qp, gid, lid) }
        })?
        .map_err(|error| Error::io("attach the queue pair to a multicast group", error))?;
        let mut tables = self.tables();
        let groups = tables.groups.entry(qpn).or_default();
        if !groups.contains(&(gid, lid)) {
            groups.push((gid, lid));
        }
        Ok(())
    }

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// Those of [`attach_mcast`](Self::attach_mcast); [`Error::NotAttached`].
    pub fn detach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.detach(qpn, gid, lid)?
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EINVAL | libc::ENOENT) => Error::NotAttached { qpn },
                _ => Error::io("detach the queue pair from a multicast group", error),
            })?;
        if let Some(groups) = self.tables().groups.get_mut(&qpn) {
            groups.retain(|group| *group != (gid, lid));
        }
        Ok(())
    }

    fn detach(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<io::Result<()>, Error> {
        self.mcast(qpn, gid, |qp, gid| {
            // SAFETY: the queue pair is alive.
            unsafe { sys::ibv_detach_mcast(qp, gid, lid) }
        })
    }

    fn mcast(
        &self,
        qpn: u32,
        gid: [u8; 16],
        call: impl FnOnce(*mut sys::ibv_qp, *const sys::ibv_gid) -> i32,
    ) -> Result<io::Result<()>, Error> {
        let qp = self.qp(qpn)?;
        let gid = sys::ibv_gid { raw: gid };
        Ok(sys::check(call(qp.handle.as_ptr(), &raw const gid)))
    }
}
