//! The calls of the data path that are entries of a table which the provider fills in. A queue is
//! created for them, and looked at once whether they are there; to look each time, as `rdma-sys` does,
//! is a part of what bellwire adds.

use super::sys;
use bellwire_core::wr::QpType;
use std::ffi::c_void;
use std::ptr::NonNull;

/// An extended queue pair, which has the calls below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poster(NonNull<sys::ibv_qp_ex>);

/// An extended completion queue, which has the calls below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poller(NonNull<sys::ibv_cq_ex>);

macro_rules! calls {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $answer:ty)? = $entry:ident;)*) => {$(
        /// # Safety
        /// The queue is alive; libibverbs on the order of calls.
        #[inline(always)]
        pub unsafe fn $name(self $(, $arg: $ty)*) $(-> $answer)? {
            let queue = self.as_ptr();
            // SAFETY: alive, by the caller's promise; that the entry is there `new` has seen.
            unsafe { (*queue).$entry.unwrap_unchecked()(queue $(, $arg)*) }
        }
    )*};
}

impl Poster {
    /// `None`: a call is not there that queue pairs of this transport have.
    ///
    /// # Safety
    /// The queue pair is alive.
    pub unsafe fn new(qp: NonNull<sys::ibv_qp_ex>, transport: QpType) -> Option<Self> {
        // SAFETY: the caller's promise.
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
    /// It is what [`as_ptr`](Self::as_ptr) gave.
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
    /// `None`: a call is not there.
    ///
    /// # Safety
    /// The queue is alive.
    pub unsafe fn new(cq: NonNull<sys::ibv_cq_ex>) -> Option<Self> {
        // SAFETY: the caller's promise.
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

/// `ibv_post_recv` of a provider.
pub(super) type PostRecv = unsafe extern "C" fn(
    *mut sys::ibv_qp,
    *mut sys::ibv_recv_wr,
    *mut *mut sys::ibv_recv_wr,
) -> i32;

/// # Safety
/// The context is open.
pub(super) unsafe fn post_recv(context: NonNull<sys::ibv_context>) -> Option<PostRecv> {
    // SAFETY: the caller's promise.
    unsafe { context.as_ref().ops.post_recv }
}
