//! An event as returned by librdmacm.

use crate::connect::cm::{Conn, ConnParam, Multicast, UdPeer};
use crate::memory::fork::Life;
use crate::verbs::ah_from_verbs;
use bellwire_sys::rdmacm::{
    rdma_ack_cm_event, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_get_cm_event, rdma_ud_param,
};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

/// An event that was taken. Dropping it acknowledges it.
pub(super) struct RawEvent(NonNull<rdma_cm_event>, Life);

impl RawEvent {
    /// Takes the oldest event; `None` if there is none. Does not block, as the descriptor is
    /// non-blocking.
    ///
    /// # Safety
    /// The channel is alive, and the lock is held.
    pub unsafe fn get(channel: NonNull<rdma_event_channel>) -> io::Result<Option<Self>> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the caller guarantees that the channel is alive and the lock held; the pointer can be
        // written.
        if unsafe { rdma_get_cm_event(channel.as_ptr(), &raw mut event) } == 0 {
            return Ok(NonNull::new(event).map(|event| Self(event, Life::current())));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        }
    }

    fn event(&self) -> &rdma_cm_event {
        // SAFETY: the event is valid until it is acknowledged, which happens when this is dropped.
        unsafe { self.0.as_ref() }
    }

    /// The type of the event (`rdma_cm_event_type`); newer libraries define more of them.
    pub fn number(&self) -> u32 {
        self.event().event
    }

    pub fn status(&self) -> i32 {
        self.event().status
    }

    pub fn id(&self) -> *mut rdma_cm_id {
        self.event().id
    }

    /// The listener of a request; null for other events.
    pub fn listener(&self) -> *mut rdma_cm_id {
        self.event().listen_id
    }

    fn conn_param(&self) -> &rdma_conn_param {
        // SAFETY: the variant contains only numbers and a pointer, for which every value is valid.
        unsafe { &self.event().param.conn }
    }

    fn ud_param(&self) -> &rdma_ud_param {
        // SAFETY: the variant contains only numbers and a pointer, for which every value is valid.
        unsafe { &self.event().param.ud }
    }

    /// The parameters of an event of a connection.
    ///
    /// # Safety
    /// It is an event of a connection.
    pub unsafe fn conn(&self) -> Conn {
        let param = self.conn_param();
        Conn {
            param: ConnParam {
                // SAFETY: librdmacm has set both the pointer and the length.
                private_data: unsafe { copy(param.private_data, param.private_data_len) },
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                flow_control: param.flow_control != 0,
                retry_count: param.retry_count,
                rnr_retry_count: param.rnr_retry_count,
            },
            qp_num: param.qp_num,
            srq: param.srq != 0,
        }
    }

    /// The parameters of an event of datagrams.
    ///
    /// # Safety
    /// It is an event of datagrams.
    pub unsafe fn ud(&self) -> UdPeer {
        let param = self.ud_param();
        UdPeer {
            // SAFETY: librdmacm has set both the pointer and the length.
            private_data: unsafe { copy(param.private_data, param.private_data_len) },
            ah_attr: ah_from_verbs(&param.ah_attr),
            qp_num: param.qp_num,
            qkey: param.qkey,
        }
    }

    /// The parameters of an event of a multicast group, whose pointer does not refer to private data.
    pub fn group(&self) -> Multicast {
        let param = self.ud_param();
        Multicast {
            ah_attr: ah_from_verbs(&param.ah_attr),
            qp_num: param.qp_num,
            qkey: param.qkey,
        }
    }
}

/// # Safety
/// `data` points to `length` readable bytes, or is null.
unsafe fn copy(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller guarantees that `length` bytes are readable, and the pointer is not null.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.1.is_current() {
            return;
        }
        // SAFETY: the event was taken, and is acknowledged only here. The call fails only for a null
        // pointer.
        let _ = unsafe { rdma_ack_cm_event(self.0.as_ptr()) };
    }
}
