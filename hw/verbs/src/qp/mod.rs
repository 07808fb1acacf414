//! Queue pairs: the objects, and their states.

mod bind;
mod by_number;
mod create;
mod drain;
mod refusal;
mod states;

pub use create::QpConfig;
pub(super) use create::{Ops, find_inline};
pub(super) use states::States;

use super::ah;
use super::calls::{self, PostRecv, Poster};
use super::context::Context;
use super::cq::{Cq, CqObject, User};
use super::memory::Pd;
use super::srq::Srq;
use super::sys;
use super::tag::{Kind, Tag};
use crate::error::Error;
use bellwire_core::cqe::Cqe64;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wr::QpType;
use bellwire_provider::life::Life;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};

/// How requests are posted to the device and completions polled; with the completion queues of sends and of
/// receives.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// Through libibverbs.
    Verbs([&'static Cq; 2]),
    /// Through the device's rings, which core writes and reads; the queue pair is created in this (parent)
    /// domain.
    Rings(NonNull<sys::ibv_pd>, [&'static CqObject; 2]),
}

// SAFETY: the domain belongs to the queue pair, and is only passed to libibverbs.
unsafe impl Send for Way {}
// SAFETY: the domain belongs to the queue pair, and is only passed to libibverbs.
unsafe impl Sync for Way {}

impl Way {
    fn objects(&self) -> [&'static CqObject; 2] {
        match self {
            Self::Verbs([send, recv]) => [send, recv],
            Self::Rings(_, objects) => *objects,
        }
    }
}

/// A queue pair of the device.
#[derive(Debug)]
pub struct Qp {
    handle: NonNull<sys::ibv_qp>,
    post_recv: PostRecv,
    extended: Option<Poster>,
    /// `extended`, if requests of RC and UC may be posted through it: null once a request was refused.
    direct: AtomicPtr<sys::ibv_qp_ex>,
    ops: Ops,
    qpn: u32,
    transport: QpType,
    way: Way,
    srq: Option<Arc<Srq>>,
    /// Present if it posts datagrams.
    ah_poster: Option<ah::Poster>,
    /// Counter of the next entry to post; written by the poster.
    send_at: AtomicU32,
    /// The `wr_id` of its requests, without the counter.
    send_tag: AtomicU64,
    recv_tag: AtomicU64,
    /// The device did not take a request: nothing is posted any longer.
    refused: AtomicBool,
    /// What the call returned that did not take a request.
    answer: AtomicI32,
    /// The request that was not taken: its counter, its status, and the error number of the call. Zero if each
    /// was taken.
    refusal: AtomicU64,
    /// A request failed, or the program moved the queue pair to ERR.
    failing: AtomicBool,
    /// Which queues are drained: 1 the send queue, 2 the receive queue.
    drained: AtomicU8,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread; the doorbells' contract allows one poster only.
unsafe impl Send for Qp {}
// SAFETY: libibverbs may be called from any thread; the doorbells' contract allows one poster only.
unsafe impl Sync for Qp {}

impl Qp {
    /// Creates a queue pair in RESET. [`begin`](Self::begin) must be called before anything is posted.
    ///
    /// # Safety
    /// The completion queues, and the domain of its rings, stay until the queue pair is destroyed.
    pub unsafe fn new(
        pd: &Pd,
        way: Way,
        srq: Option<Arc<Srq>>,
        config: &QpConfig,
    ) -> Result<Arc<Self>, Error> {
        let context = pd.context().clone();
        context.check_alive()?;
        if config.transport == QpType::XrcSend {
            context.check_xrc()?;
        }
        // SAFETY: the context is open.
        let post_recv = unsafe { calls::post_recv(context.handle()) };
        let post_recv = post_recv.ok_or_else(|| {
            let error = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            Error::io("create a queue pair", error)
        })?;
        let ah_poster = match config.transport {
            QpType::Ud => Some(context.ahs.poster()?),
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv | QpType::Dci => None,
        };
        let handles = way.objects().map(|cq| cq.handle().as_ptr());
        let domain = match way {
            Way::Verbs(_) => pd.handle(),
            Way::Rings(domain, _) => domain,
        };
        let shared = srq.as_ref().map_or(null_mut(), |srq| srq.handle().as_ptr());
        // SAFETY: domain and queues are alive.
        let made = unsafe { create::create(&context, domain.as_ptr(), handles, shared, config) };
        let (handle, extended, ops) =
            made.map_err(|error| Error::io("create a queue pair", error))?;
        let qp = Arc::new(Self {
            handle,
            post_recv,
            extended,
            direct: AtomicPtr::new(null_mut()),
            ops,
            // SAFETY: the queue pair was just created.
            qpn: unsafe { handle.as_ref().qp_num },
            transport: config.transport,
            way,
            srq,
            ah_poster,
            send_at: AtomicU32::new(0),
            send_tag: AtomicU64::new(0),
            recv_tag: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            answer: AtomicI32::new(0),
            refusal: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            drained: AtomicU8::new(0),
            context: context.clone(),
        });
        context.tables().qps.insert(qp.qpn, qp.clone());
        Ok(qp)
    }

    /// Begins a life of its queues, which sets the counter of its first send and the user indices in its
    /// completions.
    pub fn begin(self: &Arc<Self>, life: Life) {
        let recv_index = life.recv_user_index;
        // Relaxed: the owner calls this, and owns the posters, too; pollers find the queue pair through the
        // lists, which are locked.
        self.send_at.store(life.send_start, Ordering::Relaxed);
        let recv_kind = match self.is_datagram() {
            true => Kind::Datagram,
            false => Kind::Recv,
        };
        let send_tag = Tag::new(Kind::Send, life.send_user_index);
        let recv_tag = Tag::new(recv_kind, recv_index);
        self.send_tag.store(send_tag.bits(), Ordering::Relaxed);
        self.recv_tag.store(recv_tag.bits(), Ordering::Relaxed);
        self.refused.store(false, Ordering::Relaxed);
        self.refusal.store(0, Ordering::Relaxed);
        let direct = self.extended.filter(|_| self.is_connected());
        let direct = direct.map_or(null_mut(), Poster::as_ptr);
        self.direct.store(direct, Ordering::Relaxed);
        self.failing.store(false, Ordering::Relaxed);
        self.drained.store(0, Ordering::Relaxed);
        for cq in self.cqs() {
            let users = &mut cq.take().users;
            users.retain(|user| user.qpn != self.qpn);
            let at = users.partition_point(|user| user.qpn < self.qpn);
            users.insert(
                at,
                User {
                    qpn: self.qpn,
                    user_index: recv_index,
                    qp: self.clone(),
                },
            );
        }
    }

    /// Its completion queues, each once, if libibverbs polls them.
    fn cqs(&self) -> impl Iterator<Item = &'static Cq> {
        let (first, second) = match self.way {
            Way::Verbs([send, recv]) => (Some(send), (!std::ptr::eq(send, recv)).then_some(recv)),
            Way::Rings(..) => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The handle of libibverbs.
    pub fn handle(&self) -> NonNull<sys::ibv_qp> {
        self.handle
    }

    #[inline(always)]
    pub(super) fn extended(&self) -> Option<Poster> {
        self.extended
    }

    /// The extended form through which requests are posted in the ordinary case: on a connected queue pair
    /// that has `ibv_wr_*`, none of whose requests was refused.
    #[inline(always)]
    pub(super) fn direct(&self) -> Option<Poster> {
        // Relaxed: a flag that orders nothing else.
        let direct = NonNull::new(self.direct.load(Ordering::Relaxed))?;
        // SAFETY: the pointer is null, or that of `extended`.
        Some(unsafe { Poster::known(direct) })
    }

    /// The provider's `ibv_post_recv`.
    #[inline(always)]
    pub(super) fn post_recv(&self) -> PostRecv {
        self.post_recv
    }

    /// The queue pair number.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    #[inline(always)]
    pub(super) fn is_datagram(&self) -> bool {
        self.transport == QpType::Ud
    }

    #[inline(always)]
    pub(super) fn is_xrc(&self) -> bool {
        self.transport == QpType::XrcSend
    }

    /// Whether its requests carry no address: those of the other transports do.
    #[inline(always)]
    pub(super) fn is_connected(&self) -> bool {
        !self.is_datagram() && !self.is_xrc()
    }

    pub(super) fn srq(&self) -> Option<&Srq> {
        self.srq.as_deref()
    }

    #[inline(always)]
    pub(super) fn can(&self, ops: Ops) -> bool {
        self.ops.has(ops)
    }

    /// Reports a request that libibverbs did not take, on the completion queue of sends or of receives. There
    /// is room: `reserve_cq` rules out an overrun.
    pub(super) fn produce(&self, is_recv: bool, cqe: &Cqe64) {
        if let Way::Verbs(cqs) = self.way {
            let _room = cqs[usize::from(is_recv)].produce(cqe);
        }
    }

    /// The tag of send requests whose completions have no byte count.
    #[inline(always)]
    pub(super) fn send_tag(&self) -> Tag {
        // Relaxed, here and below: read by the poster; see `begin`.
        Tag::of_bits(self.send_tag.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn recv_tag(&self) -> Tag {
        Tag::of_bits(self.recv_tag.load(Ordering::Relaxed))
    }

    /// The counter of the next entry to post; moves it on to `counter`.
    #[inline(always)]
    pub(super) fn send_from(&self, counter: u32) -> u32 {
        let from = self.send_at.load(Ordering::Relaxed);
        self.posts_up_to(counter);
        from
    }

    /// Whether posting sends is a system call of the C library, as on Soft-RoCE.
    pub(super) fn posts_by_system_call(&self) -> bool {
        self.context.is_rxe
    }

    /// The counter after the last entry that was posted.
    pub(super) fn posted(&self) -> u32 {
        self.send_at.load(Ordering::Relaxed)
    }

    /// Sets the counter of the next entry to post.
    #[inline(always)]
    pub(super) fn posts_up_to(&self, counter: u32) {
        self.send_at.store(counter, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Stops posting after a refused request; returns whether this was the first.
    pub(super) fn set_refused(&self) -> bool {
        self.direct.store(null_mut(), Ordering::Relaxed);
        !self.refused.swap(true, Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Address handles that are looked up exist as long as the returned value does. Called by the poster.
    #[inline(always)]
    pub(super) fn uses_address_handles(&self) -> Option<ah::Posting<'_>> {
        self.ah_poster.as_ref().map(ah::Poster::enter)
    }

    /// The handle with this name. Only to be used while the result of
    /// [`uses_address_handles`](Self::uses_address_handles) is held.
    #[inline(always)]
    pub(super) fn address_handle(&self, name: ah::Name) -> *mut sys::ibv_ah {
        self.context.ahs.get(name)
    }

    /// Its state and attributes in libibverbs.
    fn states(&self) -> States<'_> {
        States {
            qp: self.handle,
            transport: self.transport,
            context: &self.context,
        }
    }

    /// Queries state and attributes (`ibv_query_qp`).
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.states().query()
    }

    /// Changes state and attributes (`ibv_modify_qp`), and returns the new state. After a transition to
    /// RESET, [`begin`](Self::begin) must be called.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, Error> {
        let (from, to) = self.states().modify(attr, mask)?;
        if to == QpState::Reset {
            // Completions that were already reported belong to the life that ends.
            self.fetch_completions();
        }
        if (from, to) == (QpState::Sqd, QpState::Rts) {
            self.resume();
        }
        if to == QpState::Err {
            self.failing.store(true, Ordering::Relaxed);
        }
        Ok(to)
    }

    fn error(&self) -> io::Result<()> {
        self.states().error()
    }
}
