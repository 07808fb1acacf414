//! The calls of the data path that are entries of a function table which the provider fills in. The entries
//! are checked once, when the queue is created; checking them in each call, as `rdma-sys` does, would
//! add to the overhead.

use super::sys;
use bellwire_core::wr::QpType;
use std::ffi::c_void;
use std::ptr::NonNull;

/// An extended queue pair, all of whose calls below are present.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poster(NonNull<sys::ibv_qp_ex>);

/// An extended completion queue, all of whose calls below are present.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poller(NonNull<sys::ibv_cq_ex>);

macro_rules! calls {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $answer:ty)? = $entry:ident;)*) => {$(
        /// # Safety
        /// The queue is alive, and the calls are made in the order that libibverbs requires.
        #[inline(always)]
        pub unsafe fn $name(self $(, $arg: $ty)*) $(-> $answer)? {
            let queue = self.as_ptr();
            // SAFETY: the caller guarantees that the queue is alive; `new` has checked that the entry is
            // present.
            unsafe { (*queue).$entry.unwrap_unchecked()(queue $(, $arg)*) }
        }
    )*};
}

impl Poster {
    /// `None`: the table lacks a call that queue pairs of this transport need.
    ///
    /// # Safety
    /// The queue pair is alive.
    pub unsafe fn new(qp: NonNull<sys::ibv_qp_ex>, transport: QpType) -> Option<Self> {
        // SAFETY: the caller guarantees that the queue pair is alive.
        let table = unsafe { qp.as_ref() };
        let all = table.wr_start.is_some()
            && table.wr_complete.is_some()
            && table.wr_send.is_some()
            && table.wr_set_sge.is_some()
            && table.wr_set_inline_data.is_some()
            && (transport == QpType::Ud || table.wr_rdma_write.is_some())
            && (transport != QpType::XrcSend || table.wr_set_xrc_srqn.is_some())
            && (!matches!(transport, QpType::Rc | QpType::XrcSend) || table.wr_rdma_read.is_some());
        all.then_some(Self(qp))
    }

    /// # Safety
    /// The pointer was returned by [`as_ptr`](Self::as_ptr).
    #[inline(always)]
    pub unsafe fn known(qp: NonNull<sys::ibv_qp_ex>) -> Self {
        Self(qp)
    }

    #[inline(always)]
    pub fn as_ptr(self) -> *mut sys::ibv_qp_ex {
        self.0.as_ptr()
    }

    calls! {
        start() = wr_start;
        complete() -> i32 = wr_complete;
        send() = wr_send;
        write(rkey: u32, addr: u64) = wr_rdma_write;
        read(rkey: u32, addr: u64) = wr_rdma_read;
        set_sge(lkey: u32, addr: u64, length: u32) = wr_set_sge;
        set_inline(bytes: *mut c_void, length: usize) = wr_set_inline_data;
    }
}

impl Poller {
    /// `None`: the table lacks a call.
    ///
    /// # Safety
    /// The queue is alive.
    pub unsafe fn new(cq: NonNull<sys::ibv_cq_ex>) -> Option<Self> {
        // SAFETY: the caller guarantees that the queue is alive.
        let table = unsafe { cq.as_ref() };
        let all = table.start_poll.is_some()
            && table.end_poll.is_some()
            && table.read_byte_len.is_some()
            && table.read_wc_flags.is_some();
        all.then_some(Self(cq))
    }

    #[inline(always)]
    pub fn as_ptr(self) -> *mut sys::ibv_cq_ex {
        self.0.as_ptr()
    }

    calls! {
        start(attr: *mut sys::ibv_poll_cq_attr) -> i32 = start_poll;
        end() = end_poll;
        byte_len() -> u32 = read_byte_len;
        wc_flags() -> u32 = read_wc_flags;
    }
}

/// The provider's `ibv_post_recv`.
pub(super) type PostRecv = unsafe extern "C" fn(
    *mut sys::ibv_qp,
    *mut sys::ibv_recv_wr,
    *mut *mut sys::ibv_recv_wr,
) -> i32;

/// # Safety
/// The context is open.
pub(super) unsafe fn post_recv(context: NonNull<sys::ibv_context>) -> Option<PostRecv> {
    // SAFETY: the caller guarantees that the context is open.
    unsafe { context.as_ref().ops.post_recv }
}
