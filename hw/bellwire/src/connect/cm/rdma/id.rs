//! Ids.

use super::channel::Channel;
use super::ids::{self, Ids};
use super::sockaddr::{self, SockAddr};
use crate::connect::cm::on_id::OnId;
use crate::connect::cm::{ConnParam, Membership, PortSpace};
use crate::device::Device;
use crate::error::Error;
use crate::memory::fork::Life;
use crate::qp::ConnectAttr;
use crate::verbs::{missing, qp_from_verbs};
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_sys::rdmacm::{rdma_cm_id, rdma_conn_param, rdma_port_space};
use bellwire_sys::{ibverbs as verbs, rdmacm as sys};
use std::ffi::{CStr, c_int};
use std::net::SocketAddr;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

/// An id of librdmacm. Dropping it destroys it.
pub(in crate::connect::cm) struct Id {
    /// Replaced when the id starts afresh. Read and changed under the lock.
    handle: AtomicPtr<rdma_cm_id>,
    space: PortSpace,
    /// The options that were set, for when the id starts afresh.
    options: Mutex<Vec<(c_int, Value)>>,
    pub(in crate::connect::cm) on_id: OnId,
    channel: Mutex<Arc<Channel>>,
    /// The request that it came with was accepted. Linux would still let it be rejected for a while.
    accepted: AtomicBool,
    /// Of the process that made it.
    life: Life,
}

// SAFETY: librdmacm is called, and the id's fields are accessed, under the lock.
unsafe impl Send for Id {}
// SAFETY: librdmacm is called, and the id's fields are accessed, under the lock.
unsafe impl Sync for Id {}

/// `RDMA_OPTION_ID`, and its options.
const OPTION_ID: c_int = 0;
const TOS: c_int = 0;
const REUSEADDR: c_int = 1;
const AFONLY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS` and `RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS`.
const JOIN_ATTRS: u32 = 1 | 2;

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

/// Checks the result of a call of librdmacm: zero, or -1 and errno.
fn check(what: &'static str, answer: c_int) -> Result<(), Error> {
    if answer == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        // The kernel's errors for calls that the id's state does not allow.
        Some(libc::EINVAL | libc::ENOTCONN | libc::EISCONN) => Error::CmStep { what },
        _ => Error::io(what, error),
    })
}

fn c_space(space: PortSpace) -> rdma_port_space::Type {
    match space {
        PortSpace::Tcp => rdma_port_space::RDMA_PS_TCP,
        PortSpace::Udp => rdma_port_space::RDMA_PS_UDP,
        PortSpace::Ib => rdma_port_space::RDMA_PS_IB,
        PortSpace::Ipoib => rdma_port_space::RDMA_PS_IPOIB,
    }
}

impl Id {
    pub fn new(channel: &Arc<Channel>, space: PortSpace) -> Result<Arc<Self>, Error> {
        let mut ids = ids::lock();
        let handle = create(channel, space)?;
        Ok(Self::keep(handle, channel, space, &mut ids))
    }

    /// Starts afresh: a new id of librdmacm takes the place of the present one, on the same channel and with the
    /// same options. Events of the present one that were not taken are removed.
    pub fn restart(&self) -> Result<(), Error> {
        // Locked in this order everywhere.
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ids = ids::lock();
        let handle = create(&channel, self.space)?;
        let options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        for &(option, value) in &*options {
            if let Err(error) = value.set(handle.as_ptr(), option) {
                // SAFETY: the id was just created, and nothing refers to it.
                let _ = unsafe { sys::rdma_destroy_id(handle.as_ptr()) };
                return Err(error);
            }
        }
        ids.replace(self.handle(), handle);
        // Relaxed: read under the lock.
        let old = self.handle.swap(handle.as_ptr(), Ordering::Relaxed);
        // SAFETY: nothing refers to the old id any more, and all events of it that were taken are acknowledged.
        let _ = unsafe { sys::rdma_destroy_id(old) };
        Ok(())
    }

    fn keep(
        handle: NonNull<rdma_cm_id>,
        channel: &Arc<Channel>,
        space: PortSpace,
        ids: &mut Ids,
    ) -> Arc<Self> {
        let id = Arc::new(Self {
            handle: AtomicPtr::new(handle.as_ptr()),
            space,
            options: Mutex::default(),
            on_id: OnId::default(),
            channel: Mutex::new(channel.clone()),
            accepted: AtomicBool::new(false),
            life: Life::current(),
        });
        ids.insert(&id);
        id
    }

    /// The id that a request came with.
    ///
    /// # Safety
    /// The id was created for a request of this channel, and has no other owner.
    pub(super) unsafe fn of_request(
        handle: NonNull<rdma_cm_id>,
        channel: &Arc<Channel>,
        ids: &mut Ids,
    ) -> Arc<Self> {
        // SAFETY: the caller guarantees that the id is alive and has no other owner.
        let space = match unsafe { handle.as_ref().ps } {
            rdma_port_space::RDMA_PS_UDP => PortSpace::Udp,
            rdma_port_space::RDMA_PS_IB => PortSpace::Ib,
            rdma_port_space::RDMA_PS_IPOIB => PortSpace::Ipoib,
            _ => PortSpace::Tcp,
        };
        Self::keep(handle, channel, space, ids)
    }

    /// Whether an id is for datagrams.
    ///
    /// # Safety
    /// The id is alive, and the lock is held.
    pub unsafe fn is_datagram(id: *mut rdma_cm_id) -> bool {
        // SAFETY: the caller guarantees that the id is alive, and that the lock is held.
        unsafe { (*id).qp_type == verbs::ibv_qp_type::IBV_QPT_UD }
    }

    /// The id of librdmacm; to be used under the lock.
    pub(super) fn handle(&self) -> NonNull<rdma_cm_id> {
        // Relaxed: changed under the lock, and before the id is shared.
        NonNull::new(self.handle.load(Ordering::Relaxed)).expect("never null")
    }

    /// Makes a call under the lock.
    fn call(
        &self,
        what: &'static str,
        call: impl FnOnce(*mut rdma_cm_id) -> c_int,
    ) -> Result<(), Error> {
        let _locked = ids::lock();
        check(what, call(self.handle().as_ptr()))
    }

    /// [`call`](Self::call) for functions that use the id's device without checking that it is bound to
    /// one.
    fn bound_call(
        &self,
        what: &'static str,
        call: impl FnOnce(*mut rdma_cm_id) -> c_int,
    ) -> Result<(), Error> {
        let _locked = ids::lock();
        // SAFETY: `self` keeps the id alive, and the lock is held.
        if unsafe { self.handle().as_ref().verbs.is_null() } {
            return Err(Error::CmStep { what });
        }
        check(what, call(self.handle().as_ptr()))
    }

    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut source = source.map(SockAddr::from);
        let mut peer = SockAddr::from(peer);
        let source = source.as_mut().map_or(null_mut(), SockAddr::as_ptr);
        // SAFETY: the id is alive; the addresses are readable, or null.
        self.call("resolve the address", |id| unsafe {
            sys::rdma_resolve_addr(id, source, peer.as_ptr(), milliseconds(timeout))
        })
    }

    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        // SAFETY: the id is alive, and bound to a device.
        self.bound_call("resolve the route", |id| unsafe {
            sys::rdma_resolve_route(id, milliseconds(timeout))
        })
    }

    pub fn bind(&self, at: SocketAddr) -> Result<(), Error> {
        let mut at = SockAddr::from(at);
        // SAFETY: the id is alive; the address is readable.
        self.call("bind to the address", |id| unsafe {
            sys::rdma_bind_addr(id, at.as_ptr())
        })
    }

    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the id is alive.
        self.call("listen", |id| unsafe { sys::rdma_listen(id, backlog) })
    }

    pub fn device(&self) -> Result<Option<Device>, Error> {
        let name = {
            let _locked = ids::lock();
            // SAFETY: `self` keeps the id alive, and the lock is held; the device of a context has a
            // name.
            unsafe {
                let verbs = self.handle().as_ref().verbs;
                if verbs.is_null() {
                    return Ok(None);
                }
                CStr::from_ptr(verbs::ibv_get_device_name((*verbs).device))
                    .to_string_lossy()
                    .into_owned()
            }
        };
        let channel = self.channel();
        channel.device(&name).map(Some)
    }

    fn channel(&self) -> Arc<Channel> {
        let channel = self.channel.lock();
        channel.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn qp_attr(&self, to: QpState) -> Result<(QpAttr, QpAttrMask), Error> {
        // SAFETY: the structure contains only numbers, for which zero is a valid value.
        let mut attr: verbs::ibv_qp_attr = unsafe { std::mem::zeroed() };
        let what = "take the queue pair to the connection's next state";
        attr.qp_state = to as u32;
        let mut mask = 0;
        let init = sys::rdma_init_qp_attr().map_err(missing)?;
        // SAFETY: the id is alive; the attributes and the mask can be written.
        self.bound_call(what, |id| unsafe { init(id, &raw mut attr, &raw mut mask) })?;
        // Linux sets bits of its own in the mask.
        let mask = QpAttrMask::from_bits_truncate(mask as u32);
        if to == QpState::Rtr && !mask.contains(QpAttrMask::DEST_QPN) {
            // There is no peer yet.
            return Err(Error::CmStep { what });
        }
        let mut attr = qp_from_verbs(&attr);
        // It is left zero, which means 655 ms.
        attr.min_rnr_timer = ConnectAttr::default().min_rnr_timer;
        Ok((attr, mask))
    }

    pub fn connect(&self, qp_num: u32, srq: bool, param: &ConnParam) -> Result<(), Error> {
        let mut param = to_c(qp_num, srq, param);
        // SAFETY: the id is alive, and bound to a device; the private data is readable.
        self.bound_call("connect", |id| unsafe {
            sys::rdma_connect(id, &raw mut param)
        })
    }

    pub fn establish(&self) -> Result<(), Error> {
        let establish = sys::rdma_establish().map_err(missing)?;
        // SAFETY: the id is alive.
        self.bound_call("establish the connection", |id| unsafe { establish(id) })
    }

    pub fn accept(&self, qp_num: u32, srq: bool, param: &ConnParam) -> Result<(), Error> {
        let mut param = to_c(qp_num, srq, param);
        // SAFETY: the id is alive, and bound to a device; the private data is readable.
        self.bound_call("accept", |id| unsafe {
            sys::rdma_accept(id, &raw mut param)
        })?;
        self.accepted.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let length = private_data.len() as u8;
        // Relaxed: the flag publishes no other data.
        if self.accepted.load(Ordering::Relaxed) {
            return Err(Error::CmStep { what: "reject" });
        }
        // SAFETY: the id is alive; the private data is readable.
        self.call("reject", |id| unsafe {
            sys::rdma_reject(id, private_data.as_ptr().cast(), length)
        })
    }

    pub fn disconnect(&self) -> Result<(), Error> {
        // SAFETY: the id is alive.
        self.bound_call("disconnect", |id| unsafe { sys::rdma_disconnect(id) })
    }

    pub fn lookup(&self, private_data: &[u8]) -> Result<(), Error> {
        let param = ConnParam {
            private_data: private_data.to_vec(),
            ..ConnParam::default()
        };
        let mut param = to_c(0, false, &param);
        // SAFETY: the id is alive, and bound to a device; the private data is readable.
        self.bound_call("look for the service", |id| unsafe {
            sys::rdma_connect(id, &raw mut param)
        })
    }

    pub fn answer(&self, qp_num: u32, private_data: &[u8]) -> Result<(), Error> {
        let param = ConnParam {
            private_data: private_data.to_vec(),
            ..ConnParam::default()
        };
        self.accept(qp_num, false, &param)
    }

    pub fn join(&self, group: SocketAddr, membership: Membership) -> Result<(), Error> {
        let mut addr = SockAddr::from(group);
        // SAFETY: the structure contains only numbers and a pointer, for which zero is a valid value.
        let mut attr: sys::rdma_cm_join_mc_attr_ex = unsafe { std::mem::zeroed() };
        attr.comp_mask = JOIN_ATTRS;
        attr.join_flags = match membership {
            Membership::Full => 0,
            Membership::SendOnly => 1,
        };
        attr.addr = addr.as_ptr();
        let join = sys::rdma_join_multicast_ex().map_err(missing)?;
        // SAFETY: the id is alive; the attributes and the address are readable.
        self.bound_call("join the multicast group", |id| unsafe {
            join(id, &raw mut attr, null_mut())
        })
    }

    pub fn leave(&self, group: SocketAddr) -> Result<(), Error> {
        let mut addr = SockAddr::from(group);
        // SAFETY: the id is alive; the address is readable.
        self.call("leave the multicast group", |id| unsafe {
            sys::rdma_leave_multicast(id, addr.as_ptr())
        })
    }

    pub fn migrate(&self, to: &Arc<Channel>) -> Result<(), Error> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the id and the channel are alive.
        self.call("migrate the id", |id| unsafe {
            sys::rdma_migrate_id(id, to.handle().as_ptr())
        })?;
        *channel = to.clone();
        Ok(())
    }

    fn set_option(&self, option: c_int, value: Value) -> Result<(), Error> {
        let _locked = ids::lock();
        value.set(self.handle().as_ptr(), option)?;
        let mut options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        options.retain(|(set, _)| *set != option);
        options.push((option, value));
        Ok(())
    }

    pub fn set_tos(&self, tos: u8) -> Result<(), Error> {
        self.set_option(TOS, Value::Byte(tos))
    }

    pub fn set_ack_timeout(&self, timeout: u8) -> Result<(), Error> {
        self.set_option(ACK_TIMEOUT, Value::Byte(timeout))
    }

    pub fn set_afonly(&self, on: bool) -> Result<(), Error> {
        self.set_option(AFONLY, Value::Flag(on))
    }

    pub fn set_reuseaddr(&self, on: bool) -> Result<(), Error> {
        self.set_option(REUSEADDR, Value::Flag(on))
    }

    pub fn port_space(&self) -> PortSpace {
        self.space
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        let _locked = ids::lock();
        // SAFETY: `self` keeps the id alive, and the lock is held; every value of the union is numbers.
        sockaddr::from_c(unsafe { &self.handle().as_ref().route.addr.src_addr_union.src_storage })
    }

    pub fn peer_addr(&self) -> Option<SocketAddr> {
        let _locked = ids::lock();
        // SAFETY: `self` keeps the id alive, and the lock is held; every value of the union is numbers.
        sockaddr::from_c(unsafe { &self.handle().as_ref().route.addr.dst_addr_union.dst_storage })
    }
}

/// Creates an id of librdmacm, under the lock.
fn create(channel: &Channel, space: PortSpace) -> Result<NonNull<rdma_cm_id>, Error> {
    const CREATE: &str = "create an id";
    let mut handle = null_mut();
    // SAFETY: the channel is alive, and the pointer can be written.
    check(CREATE, unsafe {
        sys::rdma_create_id(
            channel.handle().as_ptr(),
            &raw mut handle,
            null_mut(),
            c_space(space),
        )
    })?;
    NonNull::new(handle).ok_or(Error::CmStep { what: CREATE })
}

/// The value of an option, in its C type.
#[derive(Clone, Copy, Debug)]
enum Value {
    Byte(u8),
    Flag(bool),
}

impl Value {
    /// Sets the option of an id that is alive, under the lock.
    fn set(self, id: *mut rdma_cm_id, option: c_int) -> Result<(), Error> {
        let what = match option {
            TOS => "set the type of service",
            REUSEADDR => "have the address reused",
            AFONLY => "set the address family",
            _ => "set the acknowledgement timeout",
        };
        let (mut byte, mut flag) = match self {
            Self::Byte(byte) => (byte, 0),
            Self::Flag(flag) => (0, c_int::from(flag)),
        };
        let (value, size) = match self {
            Self::Byte(_) => ((&raw mut byte).cast(), size_of_val(&byte)),
            Self::Flag(_) => ((&raw mut flag).cast(), size_of_val(&flag)),
        };
        // SAFETY: the id is alive; the value has the size that is passed.
        check(what, unsafe {
            sys::rdma_set_option(id, OPTION_ID, option, value, size)
        })
    }
}

/// The private data is that of `param`, and its length was checked.
fn to_c(qp_num: u32, srq: bool, param: &ConnParam) -> rdma_conn_param {
    rdma_conn_param {
        private_data: param.private_data.as_ptr().cast(),
        private_data_len: param.private_data.len() as u8,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: srq.into(),
        qp_num,
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut id = f.debug_struct("Id");
        id.field("handle", &self.handle())
            .field("space", &self.space);
        id.finish_non_exhaustive()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        let mut ids = ids::lock();
        ids.remove(self.handle());
        // SAFETY: this is the last handle, and all events of the id are acknowledged. An error cannot be
        // handled here.
        let _ = unsafe { sys::rdma_destroy_id(self.handle().as_ptr()) };
    }
}
