//! The end of a queue pair: it is moved to ERR until every posted request has been reported.

use super::super::attr;
use super::super::calls::Poster;
use super::super::cq::Cq;
use super::super::sys;
use super::super::tag::Kind;
use super::{Qp, Way};
use bellwire_core::qp::QpState;
use bellwire_provider::backoff::Backoff;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest time that a drain may take. Devices flush immediately; one that has not done so by then never
/// will.
const DRAIN: Duration = Duration::from_secs(1);

/// How long a completion queue that has failed is waited for without a completion. Some devices (rxe) go on once there
/// is room, and complete at once; others (ConnectX) write no entry any more. Then the queue pairs on it, which may be
/// thousands, are destroyed one after the other.
const QUIET: Duration = Duration::from_millis(20);

impl Qp {
    /// Notes that one of its requests completed, in error or not. On the first failure, the device is made to
    /// look at the receives again.
    pub(crate) fn note_failure(&self, failed: bool) {
        if failed && !self.failing.swap(true, Ordering::Relaxed) {
            self.flush_again();
        }
    }

    /// Makes the device flush requests that were posted in ERR: some devices (rxe) do not look at receives
    /// posted then.
    #[cold]
    pub(crate) fn flush_again(&self) {
        if self.query().is_ok_and(|attr| attr.qp_state == QpState::Err) {
            // An error (EIO) cannot be handled.
            let _ = self.error();
        }
    }

    /// Makes the device execute requests posted in SQD: some devices (rxe) only look for requests when the
    /// doorbell is rung.
    pub(super) fn resume(&self) {
        if let Some(qp) = self.extended.map(Poster::as_ptr) {
            // SAFETY: the queue pair is alive; its owner calls this, and owns the poster, too. Nothing is
            // posted, so nothing can fail.
            unsafe {
                sys::ibv_wr_start(qp);
                let _ = sys::ibv_wr_complete(qp);
            }
        }
    }

    /// Notes that the last entry of a drain has completed, if it belongs to the present life.
    pub(crate) fn drained(&self, user_index: u32, kind: Kind) {
        let (index, bit) = match kind {
            Kind::LastSend => (self.send_tag().user_index(), 1),
            _ => (self.recv_tag().user_index(), 2),
        };
        if index == user_index {
            self.drained.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Moves the queue pair to ERR, and waits until the device has completed every posted request and the
    /// completions have been fetched, at most for [`DRAIN`].
    pub(crate) fn drain(&self) {
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
        // Devices that look at receives only on a change of state now find both last entries.
        let _ = self.error();
        let start = Instant::now();
        let mut last = start;
        let mut backoff = Backoff::between_polls();
        while self.drained.load(Ordering::Relaxed) & wanted != wanted {
            let found: u32 = self.cqs().map(Cq::fetch_all).sum();
            let now = Instant::now();
            if found != 0 {
                last = now;
                backoff.reset();
            }
            let silent = now - last >= QUIET && self.cqs().any(|cq| cq.overrun());
            if silent || now - start >= DRAIN {
                break;
            }
            backoff.wait();
        }
        self.fetch_completions();
    }

    /// Moves all completions of its queues into the rings of core.
    pub(super) fn fetch_completions(&self) {
        self.cqs().for_each(|cq| _ = cq.fetch_all());
    }

    fn post_last_recv(&self) -> bool {
        let mut wr = sys::ibv_recv_wr {
            wr_id: self.recv_tag().with(Kind::LastRecv).of(0),
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive, and libibverbs locks its receive queue. There is room: see
        // `QpConfig::spare`.
        0 == unsafe { sys::ibv_post_recv(self.handle.as_ptr(), &raw mut wr, &raw mut bad) }
    }

    /// Posts a SEND without data, which is flushed. For datagrams it is addressed to this port: providers
    /// examine its address.
    fn post_last_send(&self) -> bool {
        let mut handle = null_mut();
        if self.is_datagram() {
            let port = self.query().map_or(1, |attr| attr.port_num).max(1);
            let index = self.context.default_gid_index(port, None);
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
        // SAFETY: the queue pair is alive. The receive queue's poster comes here as well, when the device
        // refuses a receive: libibverbs locks the send queue from `ibv_wr_start` to `ibv_wr_complete`, and in
        // `ibv_post_send`. There is room: see `QpConfig::spare`.
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
            // The entry already holds what it needs; it is never sent.
            // SAFETY: the handle was created above.
            let _ = unsafe { sys::ibv_destroy_ah(handle) };
        }
        posted
    }

    /// Stops posting: requests whose doorbell is rung from now on are reported as flushed.
    pub fn stop(&self) {
        let state = self.query().map_or(QpState::Err, |attr| attr.qp_state);
        if state != QpState::Reset && self.set_refused() && self.is_drained_here() {
            self.drain();
        }
    }

    /// Whether libibverbs drains it. The device's own rings are drained by the layer that posts to them:
    /// libibverbs does not know their contents, and would overwrite entries.
    fn is_drained_here(&self) -> bool {
        matches!(self.way, Way::Verbs(_))
    }

    /// Destroys the queue pair after every posted request has been reported. Once this has returned, the
    /// device no longer accesses its memory.
    pub fn destroy(&self) {
        let state = self.query().map_or(QpState::Err, |attr| attr.qp_state);
        if self.is_drained_here() && state != QpState::Reset && !self.refused() {
            self.drain();
        }
        self.fetch_completions();
        // SAFETY: its owner calls this once; the completion queues hold none of its completions. An error
        // (EIO) cannot be handled.
        let _ = unsafe { sys::ibv_destroy_qp(self.handle.as_ptr()) };
        for cq in self.cqs() {
            cq.fetch_all();
            cq.take().users.retain(|user| user.qpn != self.qpn);
        }
    }
}
