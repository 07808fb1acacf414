//! An event as librdmacm gives it.

use crate::connect::cm::{Conn, ConnParam, Multicast, UdPeer};
use crate::verbs::ah_from_verbs;
use rdma_sys::{
    rdma_ack_cm_event, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_get_cm_event, rdma_ud_param,
};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

/// An event that was got. Dropping it acknowledges it.
pub(super) struct RawEvent(NonNull<rdma_cm_event>);

impl RawEvent {
    /// Takes the oldest; `None`: there is none, and the descriptor does not block.
    ///
    /// # Safety
    /// The channel is there, and the lock is held.
    pub unsafe fn get(channel: NonNull<rdma_event_channel>) -> io::Result<Option<Self>> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the caller's promise; the pointer can be written.
        if unsafe { rdma_get_cm_event(channel.as_ptr(), &raw mut event) } == 0 {
            return Ok(NonNull::new(event).map(Self));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        }
    }

    fn event(&self) -> &rdma_cm_event {
        // SAFETY: it stays until it is acknowledged, which is when this goes.
        unsafe { self.0.as_ref() }
    }

    /// What happened (`rdma_cm_event_type`), which newer libraries have more of.
    pub fn number(&self) -> u32 {
        self.event().event
    }

    pub fn status(&self) -> i32 {
        self.event().status
    }

    pub fn id(&self) -> *mut rdma_cm_id {
        self.event().id
    }

    /// Of a request; null else.
    pub fn listener(&self) -> *mut rdma_cm_id {
        self.event().listen_id
    }

    fn conn_param(&self) -> &rdma_conn_param {
        // SAFETY: numbers and a pointer, which every value of the union is of.
        unsafe { &self.event().param.conn }
    }

    fn ud_param(&self) -> &rdma_ud_param {
        // SAFETY: as above.
        unsafe { &self.event().param.ud }
    }

    /// Of an event of a connection.
    ///
    /// # Safety
    /// It is one.
    pub unsafe fn conn(&self) -> Conn {
        let param = self.conn_param();
        Conn {
            param: ConnParam {
                // SAFETY: librdmacm has set both.
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

    /// Of an event of datagrams.
    ///
    /// # Safety
    /// It is one.
    pub unsafe fn ud(&self) -> UdPeer {
        let param = self.ud_param();
        UdPeer {
            // SAFETY: librdmacm has set both.
            private_data: unsafe { copy(param.private_data, param.private_data_len) },
            ah_attr: ah_from_verbs(&param.ah_attr),
            qp_num: param.qp_num,
            qkey: param.qkey,
        }
    }

    /// Of an event of a multicast group, where the pointer is not to data.
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
/// There are so many bytes, or the pointer is null.
unsafe fn copy(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: got, and acknowledged here alone. It fails for a null pointer only.
        let _ = unsafe { rdma_ack_cm_event(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_sys::rdma_addr;
    use std::mem::{align_of, offset_of, size_of};

    /// What `rdma-sys` wrote by hand of rdma_cma.h, beside a C compiler's answers on x86-64.
    #[test]
    fn the_declarations_are_those_of_c() {
        assert_eq!(size_of::<rdma_cm_event>(), 80);
        assert_eq!(align_of::<rdma_cm_event>(), 8);
        assert_eq!(offset_of!(rdma_cm_event, status), 20);
        assert_eq!(offset_of!(rdma_cm_event, param), 24);
        assert_eq!(size_of::<rdma_ud_param>(), 56);
        assert_eq!(offset_of!(rdma_ud_param, ah_attr), 16);
        assert_eq!(offset_of!(rdma_ud_param, qp_num), 48);
        assert_eq!(size_of::<rdma_conn_param>(), 24);
        assert_eq!(size_of::<rdma_cm_id>(), 416);
        assert_eq!(offset_of!(rdma_cm_id, route), 32);
        assert_eq!(size_of::<rdma_addr>(), 296);
        assert_eq!(offset_of!(rdma_addr, dst_addr_union), 128);
    }
}
