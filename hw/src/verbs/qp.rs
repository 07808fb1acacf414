//! Queue pairs: their objects and states.

use super::attr;
use super::context::{Context, Tables};
use super::cq::{Cq, User};
use super::memory::Pd;
use super::request::Request;
use super::srq::Srq;
use super::sys;
use super::tag::{Kind, Tag};
use crate::error::Error;
use crate::soft::Life;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState, check_modify};
use bellwire_core::wqe::BindMwInfo;
use bellwire_core::wr::QpType;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What a queue pair's operations are, beside those that all have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ops(u8);

impl Ops {
    pub const ATOMICS: Self = Self(1);
    pub const SEND_INV: Self = Self(2);
    pub const BIND: Self = Self(4);
    pub const LOCAL_INV: Self = Self(8);
    const ALL: Self = Self(15);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, ops: Self) -> bool {
        self.0 & ops.0 == ops.0
    }

    /// In the bits of `ibv_qp_create_send_ops_flags`.
    fn flags(self, transport: QpType) -> u64 {
        use sys::ibv_qp_create_send_ops_flags as F;
        let mut flags = F::IBV_QP_EX_WITH_SEND | F::IBV_QP_EX_WITH_SEND_WITH_IMM;
        if transport != QpType::Ud {
            flags |= F::IBV_QP_EX_WITH_RDMA_WRITE | F::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        }
        if transport == QpType::Rc {
            flags |= F::IBV_QP_EX_WITH_RDMA_READ;
        }
        let more = [
            (Self::ATOMICS, F::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP),
            (Self::ATOMICS, F::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
            (Self::SEND_INV, F::IBV_QP_EX_WITH_SEND_WITH_INV),
            (Self::BIND, F::IBV_QP_EX_WITH_BIND_MW),
            (Self::LOCAL_INV, F::IBV_QP_EX_WITH_LOCAL_INV),
        ];
        for (op, flag) in more {
            if self.has(op) {
                flags |= flag;
            }
        }
        flags.0.into()
    }

    /// What to ask an extended queue pair for: everything at first, then less.
    fn wishes(transport: QpType) -> &'static [Self] {
        const NONE: Ops = Ops(0);
        const WINDOWS: Ops = Ops::SEND_INV.and(Ops::BIND);
        const RC: [Ops; 3] = [Ops::ALL, Ops::ATOMICS, NONE];
        const UC: [Ops; 3] = [WINDOWS.and(Ops::LOCAL_INV), WINDOWS, NONE];
        match transport {
            QpType::Rc => &RC,
            QpType::Uc => &UC,
            _ => &[NONE],
        }
    }
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpConfig {
    pub transport: QpType,
    /// Requests that can be in flight: each entry of the rings may be one.
    pub sends: u32,
    pub receives: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// Entries beside those that are the program's: the last of a drain.
const SPARE: u32 = 1;

/// How long a drain may take. Devices flush at once; one that does not never will.
const DRAIN: Duration = Duration::from_secs(1);

/// The device's queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    handle: NonNull<sys::ibv_qp>,
    extended: Option<NonNull<sys::ibv_qp_ex>>,
    ops: Ops,
    qpn: u32,
    transport: QpType,
    send_cq: &'static Cq,
    recv_cq: &'static Cq,
    srq: Option<Arc<Srq>>,
    /// Counters of the next entries to post; the posters'.
    send_at: AtomicU32,
    recv_at: AtomicU32,
    /// How completions name its queues.
    send_index: AtomicU32,
    recv_index: AtomicU32,
    /// The receive queue begins a new life with the next ring.
    renewed: AtomicBool,
    /// The device did not take a request: nothing is posted any more.
    refused: AtomicBool,
    /// A request failed, or the program took it to ERR.
    failing: AtomicBool,
    /// Which queues are drained: 1 the send queue, 2 the receive queue.
    drained: AtomicU8,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread; who posts is the doorbells' contract.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

fn verbs_type(transport: QpType) -> Option<u32> {
    match transport {
        QpType::Rc => Some(sys::ibv_qp_type::IBV_QPT_RC),
        QpType::Uc => Some(sys::ibv_qp_type::IBV_QPT_UC),
        QpType::Ud => Some(sys::ibv_qp_type::IBV_QPT_UD),
        QpType::XrcSend | QpType::XrcRecv | QpType::Dci => None,
    }
}

type Made = (NonNull<sys::ibv_qp>, Option<NonNull<sys::ibv_qp_ex>>, Ops);

/// Creates a queue pair: an extended one with as many operations as the device has, else a plain one.
///
/// # Safety
/// Everything named is alive.
unsafe fn create(
    context: &Context,
    pd: *mut sys::ibv_pd,
    cqs: [*mut sys::ibv_cq; 2],
    srq: *mut sys::ibv_srq,
    config: &QpConfig,
) -> io::Result<Made> {
    let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    let qp_type = verbs_type(config.transport).ok_or_else(unsupported)?;
    let cap = sys::ibv_qp_cap {
        max_send_wr: config.sends + SPARE,
        max_recv_wr: match srq.is_null() {
            true => config.receives + SPARE,
            false => 0,
        },
        max_send_sge: config.max_send_sge.max(1),
        max_recv_sge: config.max_recv_sge.max(1),
        max_inline_data: config.max_inline_data,
    };
    for &ops in Ops::wishes(config.transport) {
        // SAFETY: numbers and null pointers, which zeroes are values of.
        let mut init: sys::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        init.send_cq = cqs[0];
        init.recv_cq = cqs[1];
        init.srq = srq;
        init.cap = cap;
        init.qp_type = qp_type;
        init.comp_mask = (sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
            | sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
            .0;
        init.pd = pd;
        init.send_ops_flags = ops.flags(config.transport);
        // SAFETY: the caller's promise.
        if let Ok(qp) = unsafe { sys::create_qp_ex(context.handle(), &mut init) } {
            // SAFETY: just made.
            let extended = NonNull::new(unsafe { sys::ibv_qp_to_qp_ex(qp.as_ptr()) });
            return Ok((qp, extended, ops));
        }
    }
    let mut init = sys::ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: cqs[0],
        recv_cq: cqs[1],
        srq,
        cap,
        qp_type,
        sq_sig_all: 0,
    };
    // SAFETY: the caller's promise.
    let qp = sys::made(unsafe { sys::ibv_create_qp(pd, &raw mut init) })?;
    Ok((qp, None, Ops::ALL))
}

/// The most inline bytes that a queue pair can be created with, up to what entries can hold.
pub(super) fn find_inline(context: &Context) -> u32 {
    const STEP: u32 = 4;
    // SAFETY: open.
    let pd = unsafe { sys::ibv_alloc_pd(context.handle().as_ptr()) };
    // SAFETY: as above.
    let cq = unsafe { sys::ibv_create_cq(context.handle().as_ptr(), 1, null_mut(), null_mut(), 0) };
    let takes = |max_inline_data| {
        let config = QpConfig {
            transport: QpType::Rc,
            sends: 1,
            receives: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data,
        };
        // SAFETY: both are there, and stay.
        let made = unsafe { create(context, pd, [cq; 2], null_mut(), &config) };
        made.is_ok_and(|(qp, ..)| {
            // SAFETY: just made.
            let _ = unsafe { sys::ibv_destroy_qp(qp.as_ptr()) };
            true
        })
    };
    let mut found = 0;
    if !pd.is_null() && !cq.is_null() {
        let mut beyond = crate::soft::limits().max_inline_data + STEP;
        while found + STEP < beyond {
            let half = (found + beyond) / 2 / STEP * STEP;
            match takes(half) {
                true => found = half,
                false => beyond = half,
            }
        }
    }
    if !cq.is_null() {
        // SAFETY: made above, and used by nobody any more.
        let _ = unsafe { sys::ibv_destroy_cq(cq) };
    }
    if !pd.is_null() {
        // SAFETY: as above.
        let _ = unsafe { sys::ibv_dealloc_pd(pd) };
    }
    found
}

impl Qp {
    /// Creates a queue pair in RESET. [`begin`](Self::begin) is to be called before anything is
    /// posted.
    ///
    /// # Safety
    /// The completion queues stay until the queue pair is destroyed.
    pub unsafe fn new(
        pd: &Pd,
        cqs: [&'static Cq; 2],
        srq: Option<Arc<Srq>>,
        config: &QpConfig,
    ) -> Result<Arc<Self>, Error> {
        let context = pd.context().clone();
        context.check_alive()?;
        let handles = cqs.map(|cq| cq.handle().as_ptr());
        let shared = srq.as_ref().map_or(null_mut(), |srq| srq.handle().as_ptr());
        // SAFETY: domain and queues are alive.
        let made = unsafe { create(&context, pd.handle().as_ptr(), handles, shared, config) };
        let (handle, extended, ops) =
            made.map_err(|error| Error::io("create a queue pair", error))?;
        let qp = Arc::new(Self {
            handle,
            extended,
            ops,
            // SAFETY: just made.
            qpn: unsafe { handle.as_ref().qp_num },
            transport: config.transport,
            send_cq: cqs[0],
            recv_cq: cqs[1],
            srq,
            send_at: AtomicU32::new(0),
            recv_at: AtomicU32::new(0),
            send_index: AtomicU32::new(0),
            recv_index: AtomicU32::new(0),
            renewed: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            drained: AtomicU8::new(0),
            context: context.clone(),
        });
        context.tables().qps.insert(qp.qpn, qp.clone());
        Ok(qp)
    }

    /// Begins a life of its queues: where its sends start, and how completions name it.
    pub fn begin(self: &Arc<Self>, life: Life) {
        let recv_index = life.recv_user_index;
        // Relaxed: the posters are here, by their owner; completions find it by the locked lists.
        self.send_at.store(life.send_start, Ordering::Relaxed);
        self.send_index
            .store(life.send_user_index, Ordering::Relaxed);
        self.recv_index.store(recv_index, Ordering::Relaxed);
        self.refused.store(false, Ordering::Relaxed);
        self.failing.store(false, Ordering::Relaxed);
        self.drained.store(0, Ordering::Relaxed);
        for cq in self.cqs() {
            cq.with(|inner| {
                inner.users.retain(|user| user.qpn != self.qpn);
                let at = inner.users.partition_point(|user| user.qpn < self.qpn);
                inner.users.insert(
                    at,
                    User {
                        qpn: self.qpn,
                        user_index: recv_index,
                        qp: self.clone(),
                    },
                );
            });
        }
    }

    /// Its completion queues, each once.
    fn cqs(&self) -> impl Iterator<Item = &'static Cq> {
        let second = (!std::ptr::eq(self.send_cq, self.recv_cq)).then_some(self.recv_cq);
        std::iter::once(self.send_cq).chain(second)
    }

    pub(super) fn handle(&self) -> NonNull<sys::ibv_qp> {
        self.handle
    }

    #[inline(always)]
    pub(super) fn extended(&self) -> Option<NonNull<sys::ibv_qp_ex>> {
        self.extended
    }

    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    #[inline(always)]
    pub(super) fn transport(&self) -> QpType {
        self.transport
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.transport == QpType::Ud
    }

    pub(super) fn srq(&self) -> Option<&Srq> {
        self.srq.as_deref()
    }

    #[inline(always)]
    pub(super) fn can(&self, ops: Ops) -> bool {
        self.ops.has(ops)
    }

    pub(super) fn send_cq(&self) -> &'static Cq {
        self.send_cq
    }

    pub(super) fn recv_cq(&self) -> &'static Cq {
        self.recv_cq
    }

    pub(super) fn send_index(&self) -> u32 {
        // Relaxed, here and below: the poster's, see `begin`.
        self.send_index.load(Ordering::Relaxed)
    }

    pub(super) fn recv_index(&self) -> u32 {
        self.recv_index.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn send_tag(&self) -> Tag {
        Tag::new(Kind::Send, self.send_index())
    }

    #[inline(always)]
    pub(super) fn recv_tag(&self) -> Tag {
        let kind = match self.is_datagram() {
            true => Kind::Datagram,
            false => Kind::Recv,
        };
        Tag::new(kind, self.recv_index())
    }

    /// Where the next entries to post begin, which end at `counter`.
    #[inline(always)]
    pub(super) fn send_from(&self, counter: u32) -> u32 {
        let from = self.send_at.load(Ordering::Relaxed);
        self.send_at.store(counter, Ordering::Relaxed);
        from
    }

    /// The same of receives. The first ring of a new life tells only where it begins.
    #[inline(always)]
    pub(super) fn recv_from(&self, counter: u32) -> u32 {
        let from = self.recv_at.load(Ordering::Relaxed);
        self.recv_at.store(counter, Ordering::Relaxed);
        if self.renewed.load(Ordering::Relaxed) {
            self.renewed.store(false, Ordering::Relaxed);
            return counter;
        }
        from
    }

    #[inline(always)]
    pub(super) fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether it was not.
    pub(super) fn set_refused(&self) -> bool {
        !self.refused.swap(true, Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn address_handle(&self, number: u32) -> *mut sys::ibv_ah {
        self.context.ahs.get(number)
    }

    /// The key to invalidate. A window's is the one that it has now: taking it away changed the
    /// program's, and not the device's. rxe (Linux 6.1) brings the kernel down where a window is
    /// bound to nothing; as far as is known here, that is refused.
    pub(super) fn invalidated(&self, rkey: u32) -> Option<u32> {
        let mut tables = self.context.tables();
        let Some(window) = tables.windows.get_mut(&(rkey >> 8)) else {
            return Some(rkey);
        };
        let bound = window.bound.take();
        // SAFETY: in the table, so it is there.
        let key = unsafe { window.mw.as_ref().rkey };
        (bound.is_some() || !self.context.is_rxe).then_some(key)
    }

    /// The window and the region of a bind. A length of zero binds to nothing; libibverbs wants a
    /// region all the same, any of the window's domain. rxe (Linux 6.1) does not get over it: its
    /// kernel side reads through a null pointer.
    pub(super) fn window(
        &self,
        rkey: u32,
        info: &BindMwInfo,
    ) -> Option<(NonNull<sys::ibv_mw>, sys::ibv_mw_bind_info)> {
        if info.length == 0 && self.context.is_rxe {
            return None;
        }
        let mut tables = self.context.tables();
        let Tables { mrs, windows, .. } = &mut *tables;
        let window = windows.get_mut(&(rkey >> 8))?;
        // SAFETY: in the tables, so they are there.
        let same_pd =
            |mr: &&NonNull<sys::ibv_mr>| unsafe { mr.as_ref().pd == window.mw.as_ref().pd };
        let mr = match info.length {
            0 => mrs.values().find(same_pd)?,
            _ => mrs.get(&info.lkey)?,
        };
        window.bound = (info.length != 0).then_some(info.lkey);
        Some((
            window.mw,
            sys::ibv_mw_bind_info {
                mr: mr.as_ptr(),
                addr: info.addr,
                length: info.length.into(),
                mw_access_flags: info.access,
            },
        ))
    }

    /// Binds or unbinds a window of type 1 (`ibv_bind_mw`); whether the device took it.
    pub(super) fn bind_type1(
        &self,
        mw: NonNull<sys::ibv_mw>,
        bind_info: sys::ibv_mw_bind_info,
        request: &Request<'_>,
    ) -> bool {
        let mut bind = sys::ibv_mw_bind {
            wr_id: request.wr_id,
            send_flags: request.flags,
            bind_info,
        };
        // SAFETY: queue pair, window and region are alive.
        0 == unsafe { sys::ibv_bind_mw(self.handle.as_ptr(), mw.as_ptr(), &raw mut bind) }
    }

    /// State and attributes (`ibv_query_qp`).
    pub fn query(&self) -> Result<QpAttr, Error> {
        // SAFETY: numbers and null pointers, which zeroes are values of.
        let (mut attr, mut init) = unsafe {
            (
                MaybeUninit::<sys::ibv_qp_attr>::zeroed().assume_init(),
                MaybeUninit::<sys::ibv_qp_init_attr>::zeroed().assume_init(),
            )
        };
        let all = (QpAttrMask::all() - QpAttrMask::RATE_LIMIT).bits() as i32;
        // SAFETY: alive; both can be written.
        sys::check(unsafe {
            sys::ibv_query_qp(self.handle.as_ptr(), &raw mut attr, all, &raw mut init)
        })
        .map_err(|error| Error::io("query the queue pair", error))?;
        let attr = attr::qp_from_verbs(&attr);
        // Devices leave there what earlier lives had.
        Ok(match attr.qp_state {
            QpState::Reset => QpAttr::default(),
            _ => attr,
        })
    }

    fn verbs_modify(&self, attr: &QpAttr, mask: QpAttrMask) -> io::Result<()> {
        let mut attr = attr::qp_to_verbs(attr);
        // SAFETY: alive.
        sys::check(unsafe {
            sys::ibv_modify_qp(self.handle.as_ptr(), &raw mut attr, mask.bits() as i32)
        })
    }

    /// Changes state and attributes (`ibv_modify_qp`), and gives the new state. Going to RESET wants
    /// [`begin`](Self::begin) next.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, Error> {
        let now = self.query()?;
        let drained = !now.sq_draining;
        let to = check_modify(self.transport, now.qp_state, drained, attr, mask)?;
        if now.qp_state == QpState::Reset && to == QpState::Err {
            // Linux has no such way. Nothing can be in flight.
            let init = QpAttr {
                qp_state: QpState::Init,
                port_num: 1,
                ..QpAttr::default()
            };
            let required = crate::qp::required(self.transport, QpState::Reset, QpState::Init);
            self.verbs_modify(&init, required)
                .map_err(|error| Error::io("modify the queue pair", error))?;
        }
        self.check_limits(attr, mask)?;
        self.verbs_modify(attr, mask)
            .map_err(|error| Error::io("modify the queue pair", error))?;
        if to == QpState::Reset {
            self.renewed.store(true, Ordering::Relaxed);
            // What it told before belongs to the life that ends.
            self.cqs().for_each(Cq::fetch_all);
        }
        if (now.qp_state, to) == (QpState::Sqd, QpState::Rts) {
            self.resume();
        }
        if to == QpState::Err {
            self.failing.store(true, Ordering::Relaxed);
        }
        Ok(to)
    }

    /// What the device would refuse without saying what is wrong.
    fn check_limits(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let device = self.context.attr();
        let (ports, depth) = (device.phys_port_cnt, device.max_qp_rd_atom);
        crate::qp::check_limits(attr, mask, ports, depth)
    }

    fn error(&self) -> io::Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Err,
            ..QpAttr::default()
        };
        self.verbs_modify(&attr, QpAttrMask::STATE)
    }

    /// One of its requests completed, in error or not. The first failure has the device look again
    /// at its receives.
    pub(super) fn note_failure(&self, failed: bool) {
        if failed && !self.failing.swap(true, Ordering::Relaxed) {
            self.flush_again();
        }
    }

    /// Has the device flush what was posted in ERR: some (rxe) do not look at receives that come
    /// then.
    #[cold]
    pub(super) fn flush_again(&self) {
        if self.query().is_ok_and(|attr| attr.qp_state == QpState::Err) {
            // Nothing can be done about an error (EIO).
            let _ = self.error();
        }
    }

    /// Has the device go on with what was posted in SQD: some (rxe) look only when they are rung.
    fn resume(&self) {
        if let Some(qp) = self.extended.map(NonNull::as_ptr) {
            // SAFETY: alive; the poster is here, by its owner. Nothing is posted, so that there is
            // nothing that could fail.
            unsafe {
                sys::ibv_wr_start(qp);
                let _ = sys::ibv_wr_complete(qp);
            }
        }
    }

    /// The last entry of a drain has come, if it is of the present life.
    pub(super) fn drained(&self, user_index: u32, kind: Kind) {
        let (index, bit) = match kind {
            Kind::LastSend => (self.send_index(), 1),
            _ => (self.recv_index(), 2),
        };
        if index == user_index {
            self.drained.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Takes it to ERR, and waits until everything that was posted has been told by the device, and
    /// fetched; but not longer than [`DRAIN`].
    pub(super) fn drain(&self) {
        let end = Instant::now() + DRAIN;
        let mut wanted = 0;
        if self.srq.is_none() && self.post_last_recv() {
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
            let any = self.cqs().fold(false, |any, cq| cq.fetch() | any);
            if !any {
                std::thread::yield_now();
            }
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
        // SAFETY: alive; the poster is here, by its owner. There is room: see `SPARE`.
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
        // SAFETY: alive; the poster is here, by its owner. There is room: see `SPARE`.
        let posted = unsafe {
            match self.extended.map(NonNull::as_ptr) {
                Some(qp) => {
                    sys::ibv_wr_start(qp);
                    (*qp).wr_id = wr_id;
                    (*qp).wr_flags = flags;
                    sys::ibv_wr_send(qp);
                    if !handle.is_null() {
                        sys::ibv_wr_set_ud_addr(qp, handle, self.qpn, 0);
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

    /// Destroys it, after everything posted has been told. When this returns the device does not touch
    /// its memory any more.
    pub fn destroy(&self) {
        let state = self.query().map_or(QpState::Err, |attr| attr.qp_state);
        if state != QpState::Reset && !self.refused() {
            self.drain();
        }
        self.cqs().for_each(Cq::fetch_all);
        // SAFETY: called once, by its owner; the completion queues have been emptied of it. Nothing
        // can be done about an error (EIO).
        let _ = unsafe { sys::ibv_destroy_qp(self.handle.as_ptr()) };
        for cq in self.cqs() {
            cq.fetch_all();
            cq.with(|inner| inner.users.retain(|user| user.qpn != self.qpn));
        }
    }
}

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

    pub(crate) fn destroy_qp(&self, qpn: u32) {
        let qp = self.tables().qps.remove(&qpn);
        if let Some(qp) = qp {
            qp.destroy();
        }
    }

    /// The device said that a completion queue overran.
    pub(super) fn overran(&self, element: crate::event::Element) {
        let crate::event::Element::Cq(cqn) = element else {
            return;
        };
        for qp in self.tables().qps.values() {
            for cq in qp.cqs().filter(|cq| cq.cqn() == cqn) {
                cq.set_overrun();
            }
        }
    }

    pub(crate) fn attach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.mcast(qpn, gid, |qp, gid| {
            // SAFETY: alive.
            unsafe { sys::ibv_attach_mcast(qp, gid, lid) }
        })?
        .map_err(|error| Error::io("attach the queue pair to a multicast group", error))
    }

    pub(crate) fn detach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        let detached = self.mcast(qpn, gid, |qp, gid| {
            // SAFETY: alive.
            unsafe { sys::ibv_detach_mcast(qp, gid, lid) }
        })?;
        detached.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOENT) => Error::NotAttached { qpn },
            _ => Error::io("detach the queue pair from a multicast group", error),
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
