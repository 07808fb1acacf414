//! The device, and what requests name of it.

use super::made;
use crate::Check;
use bellwire::state::AhAttr;
use bellwire_sys::ibverbs::*;
use std::ffi::{CStr, c_int};
use std::ptr::{NonNull, null_mut};

/// The device, and what requests name of it.
pub struct Library {
    pub(super) context: NonNull<ibv_context>,
    pub(super) pd: NonNull<ibv_pd>,
    pub(super) mr: NonNull<ibv_mr>,
    pub(super) windows: Vec<NonNull<ibv_mw>>,
    pub(super) ahs: Vec<NonNull<ibv_ah>>,
}

impl Library {
    /// Opens the device of this name.
    pub fn open(name: &str, addresses: &[AhAttr], windows: usize) -> Check<Self> {
        bellwire_sys::load()?;
        // SAFETY: the list is there until it is freed, which it never is; the calls are libibverbs'.
        unsafe {
            let list = ibv_get_device_list(null_mut());
            let mut at = list;
            while !at.is_null() && !(*at).is_null() {
                if CStr::from_ptr(ibv_get_device_name(*at)).to_bytes() == name.as_bytes() {
                    break;
                }
                at = at.add(1);
            }
            if at.is_null() || (*at).is_null() {
                return Err(format!("no device {name}").into());
            }
            let context = made("ibv_open_device", ibv_open_device(*at))?;
            let pd = made("ibv_alloc_pd", ibv_alloc_pd(context.as_ptr()))?;
            let memory = Box::leak(Box::new([0_u8; 4096])).as_mut_ptr();
            let access =
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_MW_BIND;
            let mr = ibv_reg_mr(pd.as_ptr(), memory.cast(), 4096, access.0 as c_int);
            let mr = made("ibv_reg_mr", mr)?;
            let window = |_| {
                let made_one = ibv_alloc_mw(pd.as_ptr(), ibv_mw_type::IBV_MW_TYPE_2);
                made("ibv_alloc_mw", made_one)
            };
            let handle = |attr: &AhAttr| {
                let mut attr = address(attr);
                made("ibv_create_ah", ibv_create_ah(pd.as_ptr(), &raw mut attr))
            };
            Ok(Self {
                context,
                pd,
                mr,
                windows: (0..windows).map(window).collect::<Check<_>>()?,
                ahs: addresses.iter().map(handle).collect::<Check<_>>()?,
            })
        }
    }

    /// Key of the memory that windows are bound to.
    pub fn lkey(&self) -> u32 {
        // SAFETY: alive.
        unsafe { self.mr.as_ref().lkey }
    }

    /// Keys of the windows.
    pub fn windows(&self) -> Vec<u32> {
        // SAFETY: alive.
        let key = |window: &NonNull<ibv_mw>| unsafe { window.as_ref().rkey };
        self.windows.iter().map(key).collect()
    }
}

fn address(attr: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: attr.grh.dgid },
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global.into(),
        port_num: attr.port_num,
    }
}
