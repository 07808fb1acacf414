//! The end of a queue pair: to ERR, until everything that was posted has been told.

use super::super::attr;
use super::super::calls::Poster;
use super::super::cq::Cq;
use super::super::sys;
use super::super::tag::Kind;
use super::{Qp, Way};
use bellwire_core::qp::QpState;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a drain may take. Devices flush at once; one that does not never will.
const DRAIN: Duration = Duration::from_secs(1);

impl Qp {
    /// One of its requests completed, in error or not. The first failure has the device look again
    /// at its receives.
    pub(in crate::verbs) fn note_failure(&self, failed: bool) {
        if failed && !self.failing.swap(true, Ordering::Relaxed) {
            self.flush_again();
        }
    }

    /// Has the device flush what was posted in ERR: some (rxe) do not look at receives that come
    /// then.
    #[cold]
    pub(in crate::verbs) fn flush_again(&self) {
        if self.query().is_ok_and(|attr| attr.qp_state == QpState::Err) {
            // Nothing can be done about an error (EIO).
            let _ = self.error();
        }
    }

    /// Has the device go on with what was posted in SQD: some (rxe) look only when they are rung.
    pub(super) fn resume(&self) {
        if let Some(qp) = self.extended.map(Poster::as_ptr) {
            // SAFETY: alive; the poster is here, by its owner. Nothing is posted, so that there is
            // nothing that could fail.
            unsafe {
                sys::ibv_wr_start(qp);
                let _ = sys::ibv_wr_complete(qp);
            }
        }
    }

    /// The last entry of a drain has come, if it is of the present life.
    pub(in crate::verbs) fn drained(&self, user_index: u32, kind: Kind) {
        let (index, bit) = match kind {
            Kind::LastSend => (self.send_tag().user_index(), 1),
            _ => (self.recv_tag().user_index(), 2),
        };
        if index == user_index {
            self.drained.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Takes it to ERR, and waits until everything that was posted has been told by the device, and
    /// fetched; but not longer than [`DRAIN`].
    pub(in crate::verbs) fn drain(&self) {
        let end = Instant::now() + DRAIN;
        let mut wanted = 0;
        if self.srq.is_none() && !self.is_xrc() && self.post_last_recv() {
            wanted |= 2;
        }
        if self.error().is_err() {
            return;
        }
        if self.post_last_send() {
            wanted |= 1;
        }
        // Devices that look at receives only when the state changes have both now.
        let _ = self.error();
        while self.drained.load(Ordering::Relaxed) & wanted != wanted && Instant::now() < end {
            self.cqs().for_each(Cq::fetch_all);
            std::thread::yield_now();
        }
        self.cqs().for_each(Cq::fetch_all);
    }

    fn post_last_recv(&self) -> bool {
        let mut wr = sys::ibv_recv_wr {
            wr_id: self.recv_tag().with(Kind::LastRecv).of(0),
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
        };
        let mut bad = null_mut();
        // SAFETY: alive; the poster is here, by its owner. There is room: see `QpConfig::spare`.
        0 == unsafe { sys::ibv_post_recv(self.handle.as_ptr(), &raw mut wr, &raw mut bad) }
    }

    /// A SEND of nothing, which is flushed. Of datagrams one to this port itself: providers look at
    /// its address.
    fn post_last_send(&self) -> bool {
        let mut handle = null_mut();
        if self.is_datagram() {
            let port = self.query().map_or(1, |attr| attr.port_num).max(1);
            let index = self.context.default_gid_index(port);
            let gid = self
                .context
                .query_gid(port, index.into())
                .unwrap_or_default();
            let lid = self.context.query_port(port).map_or(0, |port| port.lid);
            let way = self.context.way_to(lid, gid, port, None);
            let mut way = attr::ah_to_verbs(&way);
            // SAFETY: the queue pair's domain is alive.
            handle = unsafe { sys::ibv_create_ah(self.handle.as_ref().pd, &raw mut way) };
            if handle.is_null() {
                return false;
            }
        }
        let wr_id = self.send_tag().with(Kind::LastSend).of(0);
        let flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        // SAFETY: alive; the poster is here, by its owner. There is room: see `QpConfig::spare`.
        let posted = unsafe {
            match self.extended.map(Poster::as_ptr) {
                Some(qp) => {
                    sys::ibv_wr_start(qp);
                    (*qp).wr_id = wr_id;
                    (*qp).wr_flags = flags;
                    sys::ibv_wr_send(qp);
                    if !handle.is_null() {
                        sys::ibv_wr_set_ud_addr(qp, handle, self.qpn, 0);
                    }
                    if self.is_xrc() {
                        sys::ibv_wr_set_xrc_srqn(qp, 0);
                    }
                    sys::ibv_wr_set_sge_list(qp, 0, null_mut());
                    sys::ibv_wr_complete(qp) == 0
                }
                None => {
                    let mut wr: sys::ibv_send_wr = std::mem::zeroed();
                    wr.wr_id = wr_id;
                    wr.send_flags = flags;
                    wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
                    wr.wr.ud.ah = handle;
                    let mut bad = null_mut();
                    0 == sys::ibv_post_send(self.handle.as_ptr(), &raw mut wr, &raw mut bad)
                }
            }
        };
        if !handle.is_null() {
            // The entry has what it needs; it is never sent.
            // SAFETY: made above.
            let _ = unsafe { sys::ibv_destroy_ah(handle) };
        }
        posted
    }

    /// Nothing is posted any more: what is rung from here on is told as flushed.
    pub fn stop(&self) {
        let state = self.query().map_or(QpState::Err, |attr| attr.qp_state);
        if state != QpState::Reset && self.set_refused() && self.is_drained_here() {
            self.drain();
        }
    }

    /// Rings of the device's are drained by whoever posts to them: libibverbs knows nothing of what stands
    /// in them, and would post over it.
    fn is_drained_here(&self) -> bool {
        matches!(self.way, Way::Verbs(_))
    }

    /// Destroys it, after everything posted has been told. When this returns the device does not touch
    /// its memory any more.
    pub fn destroy(&self) {
        let state = self.query().map_or(QpState::Err, |attr| attr.qp_state);
        if self.is_drained_here() && state != QpState::Reset && !self.refused() {
            self.drain();
        }
        self.cqs().for_each(Cq::fetch_all);
        // SAFETY: called once, by its owner; the completion queues have been emptied of it. Nothing
        // can be done about an error (EIO).
        let _ = unsafe { sys::ibv_destroy_qp(self.handle.as_ptr()) };
        for cq in self.cqs() {
            cq.fetch_all();
            cq.take().users.retain(|user| user.qpn != self.qpn);
        }
    }
}
