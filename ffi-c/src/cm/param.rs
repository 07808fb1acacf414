//! Connection parameters.

use super::event::BW_CM_PRIVATE_MAX;
use crate::code::BW_ELIMIT;
use crate::failure::Failure;
use crate::sized::{self, Versioned};
use hw::connect::cm::ConnParam;
use std::ffi::{c_int, c_void};
use std::ptr::null;

/// Connection parameters (`rdma_conn_param`). `bw_cm_param_default` fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_cm_param {
    /// `sizeof(bw_cm_param)`.
    pub size: u32,
    /// Bytes of private data: at most 56 to connect, 196 to accept.
    pub private_data_len: u32,
    /// The private data, which arrive with the peer's event, where zeroes may follow them.
    pub private_data: *const c_void,
    /// READs and atomics in flight that this side responds to; limited by the device and, at the
    /// accepting end, by the request.
    pub responder_resources: u8,
    /// READs and atomics in flight that this side issues, with the same limits.
    pub initiator_depth: u8,
    /// Not 0: this side has hardware flow control.
    pub flow_control: u8,
    /// Transport retries (no acknowledgement), up to 7. The connecting end sets it for both.
    pub retry_count: u8,
    /// RNR retries (no receive posted at the peer), up to 6; 7 means infinite.
    pub rnr_retry_count: u8,
    /// 0.
    pub reserved: [u8; 3],
}

impl Default for bw_cm_param {
    fn default() -> Self {
        let param = ConnParam::default();
        Self {
            size: size_of::<Self>() as u32,
            private_data_len: 0,
            private_data: null(),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control.into(),
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            reserved: [0; 3],
        }
    }
}

// SAFETY: repr(C), integers and a pointer, without padding; the size is the first field.
unsafe impl Versioned for bw_cm_param {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// The private data that the program gave. The length is checked, as it may never have been set: no
/// message takes more than [`BW_CM_PRIVATE_MAX`].
///
/// # Safety
/// `data` has `length` bytes, if they are no more than that; it may be NULL if `length` is 0.
pub(super) unsafe fn private_data<'a>(
    data: *const c_void,
    length: u32,
) -> Result<&'a [u8], Failure> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::null("the private data")),
        (false, length) if length as usize > BW_CM_PRIVATE_MAX => {
            let text = format!("{length} bytes of private data: no message takes so many");
            Err(Failure::new(BW_ELIMIT, text))
        }
        // SAFETY: not NULL; the caller guarantees `length` bytes.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length as usize) }),
    }
}

/// # Safety
/// `param` is NULL, or points to such a struct whose private data can be read.
pub(super) unsafe fn read(param: *const bw_cm_param) -> Result<ConnParam, Failure> {
    // SAFETY: the caller guarantees that `param` is NULL or points to a sized struct.
    let param = unsafe { sized::read_or_default(param)? };
    param
        .reserved
        .into_iter()
        .try_for_each(|byte| sized::zero("reserved", byte.into()))?;
    Ok(ConnParam {
        // SAFETY: the caller guarantees that the private data can be read.
        private_data: unsafe { private_data(param.private_data, param.private_data_len)? }.to_vec(),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
    })
}

/// Fills `param`, of `size` bytes, with its size and the defaults:
/// `bw_cm_param_default(&param, sizeof(param))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_param_default(param: *mut bw_cm_param, size: usize) -> c_int {
    // SAFETY: the header's conventions on sized structs.
    crate::failure::guard(|| unsafe { sized::fill(param, size) })
}
