//! NULL in calls for the queue pairs of other transports, events and faults.

use super::*;
use crate::ah::*;
use crate::channel::*;
use crate::code::*;
use crate::event::*;
use crate::modify::*;
use crate::mw::*;
use crate::port::*;
use crate::soft::*;
use crate::srq::*;
use crate::xrc::*;

#[test]
fn null_is_refused_here_too() {
    let world = World::plain();
    let (a, device, pd) = (&world.a, world.device, world.pd);
    let attr = sized!(bw_qp_attr {});
    let wc = bw_wc::default();
    let path = bw_ah_attr::default();
    let step = bw_soft_step::default();
    let bind = bw_mw_bind_info::default();
    let mut info = sized!(bw_async_event_info {});
    let mut number = 0;
    // SAFETY: every pointer is NULL or valid.
    let codes = unsafe {
        let xrcd = made(|xrcd| bw_xrcd_create(device, xrcd));
        let codes = [
            bw_device_reopen(null(), &mut null_mut()),
            bw_device_reopen(device, null_mut()),
            bw_query_port(null(), 1, &mut sized!(bw_port_info {})),
            bw_query_port(device, 1, null_mut()),
            bw_query_gid(null(), 1, 0, null_mut()),
            bw_query_gid(device, 1, 0, null_mut()),
            bw_query_pkey(null(), 1, 0, null_mut()),
            bw_query_pkey(device, 1, 0, null_mut()),
            bw_qp_start(null_mut(), null()),
            bw_qp_modify(null_mut(), &attr, 1),
            bw_qp_modify(a.qp, null(), 1),
            bw_qp_attach_mcast(null_mut(), [0xff; 16].as_ptr(), 1),
            bw_qp_attach_mcast(a.qp, null(), 1),
            bw_qp_detach_mcast(null_mut(), [0xff; 16].as_ptr(), 1),
            bw_qp_detach_mcast(a.qp, null(), 1),
            bw_ah_create(null(), &path, &mut null_mut()),
            bw_ah_create(pd, null(), &mut null_mut()),
            bw_ah_create(pd, &path, null_mut()),
            bw_ah_init_from_wc(null(), null(), 1, &mut bw_ah_attr::default()),
            bw_ah_init_from_wc(&wc, null(), 1, null_mut()),
            bw_ah_create_from_wc(pd, null(), null(), 1, &mut null_mut()),
            bw_ah_query(null(), &mut bw_ah_attr::default()),
            bw_ah_destroy(null_mut()),
            bw_comp_channel_create(null(), &mut null_mut()),
            bw_comp_channel_create(device, null_mut()),
            bw_comp_channel_fd(null()),
            bw_comp_channel_set_nonblocking(null(), 1),
            bw_comp_channel_destroy(null_mut()),
            bw_get_cq_event(null(), &mut number, null_mut()),
            bw_ack_cq_events(null(), 1, 1),
            bw_cq_req_notify(null_mut(), 0),
            bw_device_async_fd(null()),
            bw_device_async_set_nonblocking(null(), 1),
            bw_get_async_event(null(), &mut info, &mut null_mut()),
            bw_get_async_event(device, null_mut(), &mut null_mut()),
            bw_get_async_event(device, &mut info, null_mut()),
            bw_ack_async_event(null_mut()),
            bw_srq_create(null(), null(), &mut null_mut()),
            bw_srq_create(pd, null(), null_mut()),
            bw_srq_create_xrc(pd, null(), a.cq, null(), &mut null_mut()),
            bw_srq_create_xrc(pd, xrcd, null_mut(), null(), &mut null_mut()),
            bw_srq_query(null(), &mut sized!(bw_srq_info {})),
            bw_srq_modify(null_mut(), 1),
            bw_srq_destroy(null_mut(), None, null_mut()),
            bw_srq_init_attr_default(null_mut(), 16),
            bw_post_srq_recv(null_mut(), null(), 0, null_mut()),
            bw_xrcd_create(null(), &mut null_mut()),
            bw_xrcd_create(device, null_mut()),
            bw_xrcd_open(null(), 0, 0, &mut null_mut()),
            bw_xrcd_open(device, 0, 0, null_mut()),
            bw_xrcd_destroy(null_mut()),
            bw_xrc_target_create(null(), &mut null_mut()),
            bw_xrc_target_create(xrcd, null_mut()),
            bw_xrc_target_open(null(), 1, &mut null_mut()),
            bw_xrc_target_open(xrcd, 1, null_mut()),
            bw_xrc_target_endpoint(null(), &mut sized!(bw_endpoint {})),
            bw_xrc_target_init(null(), null()),
            bw_xrc_target_connect(null(), &sized!(bw_endpoint {}), null()),
            bw_xrc_target_modify(null(), &attr, 1),
            bw_xrc_target_query(null(), &mut sized!(bw_qp_attr {})),
            bw_xrc_target_destroy(null_mut()),
            bw_mw_create(null(), 1, &mut null_mut()),
            bw_mw_create(pd, 1, null_mut()),
            bw_mw_bind(a.qp, null_mut(), 1, &bind, 0),
            bw_mw_bind(null_mut(), null_mut(), 1, &bind, 0),
            bw_mw_destroy(null_mut()),
            bw_soft_inject(null(), &step, 1),
            bw_soft_inject(device, null(), 1),
            bw_soft_inject_seeded(null(), 1, 1, 1, &step, 1),
            bw_soft_inject_seeded(device, 1, 1, 1, null(), 1),
            bw_soft_clear(null()),
            bw_soft_set_port(null(), 0),
            bw_soft_raise(null(), 9, 1),
        ];
        assert_eq!(bw_mw_rkey(null()), 0);
        ok(bw_xrcd_destroy(xrcd));
        codes
    };
    for (at, code) in codes.into_iter().enumerate() {
        assert_eq!(code, BW_ENULL as c_int, "call {at}");
    }
    world.destroy();
}
