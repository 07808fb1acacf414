//! The device, its port, and where its events come.

use super::{NONE, Request};
use crate::abi::{
    AllocUcontext, ExQueryDevice, ExQueryDeviceResp, GetContextResp, Handle, QueryDeviceResp,
    QueryPort, QueryPortResp,
};
use crate::context::{Context, File};
use crate::descriptors::{self, Descriptor};
use crate::events::Channel;
use crate::object::errno;
use crate::{engine, real, sysfs};
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Makes a descriptor of the program's known.
fn give(fd: RawFd, descriptor: Descriptor) -> Result<RawFd, Errno> {
    descriptors::put(fd, descriptor).inspect_err(|_| {
        // SAFETY: a descriptor that was just made.
        unsafe { real::close(fd) };
    })?;
    Ok(fd)
}

pub fn get_context(file: &File, request: &mut Request<'_>) -> Result<(), Errno> {
    let driver: AllocUcontext = request.take_driver();
    request.check_room::<GetContextResp>()?;
    if file.context().is_some() || driver.total_num_bfregs == 0 {
        return Err(Errno::INVAL);
    }
    if driver.comp_mask != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let context = Context::open(driver.total_num_bfregs, driver.num_low_latency_bfregs)?;
    let description = context.describe();
    let events = context.events().clone();
    file.set_context(context)?;
    let async_fd = give(events.duplicate()?, Descriptor::Async(events))?;
    let own = GetContextResp {
        async_fd,
        num_comp_vectors: 1,
    };
    request.answer(&own, &description)
}

pub fn create_comp_channel(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    request.check_room::<Handle>()?;
    let channel = Arc::new(Channel {
        channel: context.device().create_comp_channel().map_err(errno)?,
        events: context.events().clone(),
    });
    let fd = give(channel.duplicate()?, Descriptor::Channel(channel))?;
    let own = Handle { handle: fd as u32 };
    request.answer(&own, &NONE)
}

/// Flags of `device_cap_flags` (`ib_uverbs_device_cap_flags`).
mod cap {
    pub const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub const RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub const MEM_WINDOW: u32 = 1 << 17;
    pub const XRC: u32 = 1 << 20;
    pub const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
}

/// Atomics are atomic among those of this device (`IB_ATOMIC_HCA`).
const ATOMIC_HCA: u32 = 1;

fn device_attr(context: &Context) -> QueryDeviceResp {
    let attr = context.device().attr();
    let [major, minor, sub] = sysfs::FIRMWARE.map(u64::from);
    let guid = engine::guid().to_be_bytes();
    QueryDeviceResp {
        fw_ver: major << 32 | minor << 16 | sub,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: attr.max_mr_size,
        page_size_cap: !0xfff,
        vendor_id: sysfs::VENDOR,
        vendor_part_id: sysfs::PART,
        hw_ver: 0,
        max_qp: attr.max_qp,
        max_qp_wr: attr.max_qp_wr,
        device_cap_flags: cap::PORT_ACTIVE_EVENT
            | cap::SYS_IMAGE_GUID
            | cap::RC_RNR_NAK_GEN
            | cap::MEM_WINDOW
            | cap::XRC
            | cap::MEM_WINDOW_TYPE_2B,
        max_sge: attr.max_sge,
        max_sge_rd: attr.max_sge,
        max_cq: 1 << 16,
        max_cqe: attr.max_cqe - 1,
        max_mr: attr.max_mr,
        max_pd: 1 << 23,
        max_qp_rd_atom: attr.max_qp_rd_atom.into(),
        max_res_rd_atom: u32::from(attr.max_qp_rd_atom).saturating_mul(attr.max_qp),
        max_qp_init_rd_atom: attr.max_qp_rd_atom.into(),
        atomic_cap: ATOMIC_HCA,
        max_mw: attr.max_mw,
        max_mcast_grp: 1 << 16,
        max_mcast_qp_attach: attr.max_mcast_qp_attach,
        max_total_mcast_qp_attach: attr.max_mcast_qp_attach << 8,
        max_ah: i32::MAX as u32,
        max_srq: attr.max_srq,
        max_srq_wr: attr.max_srq_wr,
        max_srq_sge: attr.max_srq_sge,
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: 16,
        phys_port_cnt: attr.phys_port_cnt,
        ..QueryDeviceResp::default()
    }
}

pub fn query_device(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let base = device_attr(context);
    if !request.extended {
        return request.answer(&base, &NONE);
    }
    let asked: ExQueryDevice = request.take()?;
    if asked.comp_mask != 0 || asked.reserved != 0 {
        return Err(Errno::INVAL);
    }
    let own = ExQueryDeviceResp {
        base,
        response_length: size_of::<ExQueryDeviceResp>() as u32,
        device_cap_flags_ex: base.device_cap_flags.into(),
        ..ExQueryDeviceResp::default()
    };
    // What the driver would add, it has none of.
    request.answer(&own, &NONE)
}

pub fn query_port(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    /// `IB_PORT_*` of a port that is up, 4x EDR.
    const WIDTH_4X: u8 = 2;
    const SPEED_EDR: u8 = 32;
    const LINK_UP: u8 = 5;
    const POLLING: u8 = 2;
    const INFINIBAND: u8 = 1;
    let asked: QueryPort = request.take()?;
    let port = context.device().query_port(asked.port_num).map_err(errno)?;
    let up = port.state == bellwire::PortState::Active;
    let own = QueryPortResp {
        max_msg_sz: port.max_msg_sz.min(1 << 30) as u32,
        gid_tbl_len: port.gid_tbl_len.into(),
        pkey_tbl_len: port.pkey_tbl_len,
        lid: port.lid,
        sm_lid: port.sm_lid,
        state: port.state as u8,
        max_mtu: port.max_mtu.number(),
        active_mtu: port.active_mtu.number(),
        max_vl_num: 1,
        subnet_timeout: 18,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: if up { LINK_UP } else { POLLING },
        link_layer: INFINIBAND,
        ..QueryPortResp::default()
    };
    request.answer(&own, &NONE)
}
