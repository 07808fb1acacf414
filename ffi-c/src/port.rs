//! Ports.

use crate::code::BW_EINVAL;
use crate::device::bw_device;
use crate::failure::{Failure, guard};
use crate::handle::get;
use crate::number::bw_port_state;
use crate::sized::{self, Versioned};
use hw::{PortAttr, PortState};
use std::ffi::c_int;

/// Attributes and state of a port (`ibv_port_attr`, as far as it applies).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_port_info {
    /// `sizeof(bw_port_info)`.
    pub size: u32,
    /// A `bw_port_state`.
    pub state: u32,
    /// Largest path MTU that the port supports: a `bw_mtu`.
    pub max_mtu: u32,
    /// Path MTU in use: a `bw_mtu`.
    pub active_mtu: u32,
    /// Its local identifier.
    pub lid: u32,
    /// Local identifier of the subnet manager.
    pub sm_lid: u32,
    /// Entries of its GID table.
    pub gid_tbl_len: u32,
    /// Entries of its partition key table.
    pub pkey_tbl_len: u32,
    /// Bytes of one message.
    pub max_msg_sz: u64,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_port_info {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

impl From<PortAttr> for bw_port_info {
    fn from(attr: PortAttr) -> Self {
        let state = match attr.state {
            PortState::Down => bw_port_state::BW_PORT_DOWN,
            PortState::Active => bw_port_state::BW_PORT_ACTIVE,
        };
        Self {
            size: 0,
            state: state as u32,
            max_mtu: attr.max_mtu.number().into(),
            active_mtu: attr.active_mtu.number().into(),
            lid: attr.lid.into(),
            sm_lid: attr.sm_lid.into(),
            gid_tbl_len: attr.gid_tbl_len.into(),
            pkey_tbl_len: attr.pkey_tbl_len.into(),
            max_msg_sz: attr.max_msg_sz,
        }
    }
}

pub(crate) fn small<T: TryFrom<u32>>(what: &str, given: u32) -> Result<T, Failure> {
    T::try_from(given).map_err(|_| {
        let text = format!("{what} is {given}, which is out of its range");
        Failure::new(BW_EINVAL, text)
    })
}

/// Queries a port's attributes (`ibv_query_port`); ports count from 1. Set `info->size` before the
/// call.
///
/// Errors: `BW_EINVAL` for a port that does not exist, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_query_port(
    device: *const bw_device,
    port_num: u32,
    info: *mut bw_port_info,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        let found = device.device.query_port(small("port_num", port_num)?)?;
        // SAFETY: the header's conventions on sized structs.
        unsafe { sized::write(info, &found.into()) }
    })
}

/// Reads an entry of a port's GID table (`ibv_query_gid`): 16 bytes, in wire order.
///
/// Errors: `BW_EINVAL` for a port or an entry that does not exist, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_query_gid(
    device: *const bw_device,
    port_num: u32,
    index: u32,
    gid: *mut u8,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        if gid.is_null() {
            return Err(Failure::null("the place for the GID"));
        }
        let (port_num, index) = (small("port_num", port_num)?, small("GID index", index)?);
        let found = device.device.query_gid(port_num, index)?;
        // SAFETY: not NULL, so it points to 16 bytes as the function's documentation requires.
        unsafe { gid.cast::<[u8; 16]>().write(found) };
        Ok(())
    })
}

/// Reads an entry of a port's partition key table (`ibv_query_pkey`), in host byte order.
///
/// Errors: `BW_EINVAL` for a port or an entry that does not exist, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_query_pkey(
    device: *const bw_device,
    port_num: u32,
    index: u32,
    pkey: *mut u16,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        if pkey.is_null() {
            return Err(Failure::null("the place for the P_Key"));
        }
        let (port_num, index) = (small("port_num", port_num)?, small("P_Key index", index)?);
        // SAFETY: not NULL.
        unsafe { pkey.write(device.device.query_pkey(port_num, index)?) };
        Ok(())
    })
}
