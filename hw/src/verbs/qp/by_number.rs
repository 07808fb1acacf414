//! Queue pairs, as the program's side names them: by number.

use super::super::context::Context;
use super::super::sys;
use super::Qp;
use crate::error::Error;
use crate::event::Element;
use crate::soft::Life;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Context {
    fn qp(&self, qpn: u32) -> Result<Arc<Qp>, Error> {
        let found = self.tables().qps.get(&qpn).cloned();
        found.ok_or(Error::UnknownQp { qpn })
    }

    pub(crate) fn query_qp(&self, qpn: u32) -> Result<QpAttr, Error> {
        self.qp(qpn)?.query()
    }

    pub(crate) fn modify_qp(
        &self,
        qpn: u32,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<QpState, Error> {
        self.check_alive()?;
        self.qp(qpn)?.modify(attr, mask)
    }

    pub(crate) fn restart(&self, qpn: u32, life: Life) {
        if let Ok(qp) = self.qp(qpn) {
            qp.begin(life);
        }
    }

    pub(crate) fn stop_qp(&self, qpn: u32) {
        if let Ok(qp) = self.qp(qpn) {
            qp.stop();
        }
    }

    pub(crate) fn destroy_qp(&self, qpn: u32) {
        let groups = self.tables().groups.remove(&qpn);
        for (gid, lid) in groups.into_iter().flatten() {
            // Nothing can be done about an error (EIO).
            let _ = self.detach(qpn, gid, lid);
        }
        let qp = self.tables().qps.remove(&qpn);
        if let Some(qp) = qp {
            qp.destroy();
        }
    }

    /// The device said that a completion queue overran. That is the end of the queue pairs on it: what
    /// is told after an entry that was lost could be taken for what that told of. Some devices (rxe)
    /// leave them as they are, and say so for each entry.
    pub(in crate::verbs) fn overran(&self, element: Element) {
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
            // Nothing can be done about an error (EIO).
            let _ = qp.error();
        }
    }

    pub(crate) fn attach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.mcast(qpn, gid, |qp, gid| {
            // SAFETY: alive.
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

    pub(crate) fn detach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
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
            // SAFETY: alive.
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
