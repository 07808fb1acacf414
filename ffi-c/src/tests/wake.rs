//! Events, channels, and faults injected by scripts.

use super::*;
use crate::channel::*;
use crate::code::*;
use crate::direct::*;
use crate::event::*;
use crate::fault_number::{bw_cm_event_type::*, bw_event_type::*, bw_wc_status::*};
use crate::fault_text::bw_event_type_str;
use crate::modify::*;
use crate::number::{bw_port_state::*, bw_send_flags::*};
use crate::port::*;
use crate::soft::bw_soft_fault::*;
use crate::soft::bw_soft_trigger::*;
use crate::soft::*;
use std::collections::HashSet;

const SIGNALED: u32 = BW_SEND_SIGNALED as u32;

fn event(device: *const bw_device) -> Option<(u32, u32, u32)> {
    let mut info = sized!(bw_async_event_info {});
    let mut event = null_mut();
    // SAFETY: valid handles and structs.
    unsafe {
        ok(bw_device_async_set_nonblocking(device, 1));
        match bw_get_async_event(device, &mut info, &mut event) {
            code if code == BW_EAGAIN as c_int => None,
            code => {
                ok(code);
                ok(bw_ack_async_event(event));
                Some((info.event_type, info.element, info.number))
            }
        }
    }
}

/// The status of a WRITE by a.
fn outcome(world: &World) -> u32 {
    // SAFETY: a valid handle.
    unsafe {
        let data = b"data".as_ptr().cast();
        let (addr, rkey) = (world.b.memory.addr, world.b.memory.rkey);
        ok(bw_post_write_inline(
            world.a.qp, 1, data, 4, addr, rkey, SIGNALED,
        ));
        ok(bw_ring_sq(world.a.qp));
    }
    world.a.wait().status
}

#[test]
fn every_event_has_a_text_of_its_own() {
    // SAFETY: static texts.
    let text = |number| unsafe { CStr::from_ptr(bw_event_type_str(number)) };
    let texts: HashSet<_> = (0..=20).map(text).collect();
    assert_eq!(texts.len(), 21, "twenty events, and one that is none");
    assert_eq!(text(20), text(u32::MAX));
    assert_eq!(text(20), text(256), "only the low byte is an event");
}

/// Each event is raised for its object, and no other is raised.
#[test]
fn every_event_can_be_raised() {
    let world = World::plain();
    let device = world.device;
    let mut cq = sized!(bw_cq_info {});
    let mut qp = sized!(bw_qp_attr {});
    // SAFETY: valid handles and structs.
    unsafe {
        ok(bw_cq_query(world.a.cq, &mut cq));
        ok(bw_qp_query(world.a.qp, &mut qp));
        let again = made(|again| bw_device_reopen(device, again));
        for (kind, about, number) in [
            (BW_EVENT_CQ_ERR, bw_element::BW_ELEMENT_CQ, cq.cqn),
            (BW_EVENT_QP_FATAL, bw_element::BW_ELEMENT_QP, qp.qp_num),
            (BW_EVENT_PORT_ERR, bw_element::BW_ELEMENT_PORT, 1),
            (BW_EVENT_DEVICE_FATAL, bw_element::BW_ELEMENT_DEVICE, 0),
            (BW_EVENT_WQ_FATAL, bw_element::BW_ELEMENT_WQ, 5),
        ] {
            ok(bw_soft_raise(device, kind as u32, number));
            let expected = Some((kind as u32, about as u32, number));
            assert_eq!(event(device), expected);
            // Only events that concern all contexts are delivered to all.
            let all = matches!(kind, BW_EVENT_PORT_ERR | BW_EVENT_DEVICE_FATAL);
            assert_eq!(event(again), expected.filter(|_| all));
        }
        for (kind, number) in [
            (20, 0),
            (u32::MAX, 0),
            (0, 0xff_fffe),
            (9, 0),
            (9, 256),
            (14, 9),
        ] {
            fails(bw_soft_raise(device, kind, number), BW_EINVAL);
        }
        assert_eq!(event(device), None);
        assert_eq!(outcome(&world), BW_WC_SUCCESS as u32, "nothing has broken");
        ok(bw_device_close(again));
    }
    world.destroy();
}

/// Two completion queues on one channel, distinguished by number and context.
#[test]
fn a_channel_shows_which_queue() {
    let world = World::plain();
    let device = world.device;
    let (mut number, mut context) = (0, null_mut());
    let contexts = [1u8, 2];
    // SAFETY: valid handles and structs.
    unsafe {
        let channel = made(|channel| bw_comp_channel_create(device, channel));
        ok(bw_comp_channel_set_nonblocking(channel, 1));
        let init = sized!(bw_qp_init_attr {});
        let queues = contexts.each_ref().map(|context| {
            let attr = sized!(bw_cq_attr {
                entries: 1024,
                channel: channel,
                cq_context: std::ptr::from_ref(context).cast_mut().cast(),
            });
            let cq = made(|cq| bw_cq_create(device, &attr, cq));
            (cq, made(|qp| bw_qp_create(world.pd, cq, cq, &init, qp)))
        });
        for (context_of, (cq, qp)) in contexts.iter().zip(queues) {
            ok(bw_qp_init(qp, null()));
            ok(bw_post_recv_one(qp, 1, &world.a.sge(0, 8)));
            ok(bw_ring_rq(qp));
            ok(bw_cq_req_notify(cq, 1));
            // A flush is an error, which counts as solicited.
            ok(bw_qp_to_error(qp));
            ok(bw_get_cq_event(channel, &mut number, &mut context));
            assert!(std::ptr::eq(context.cast(), context_of));
            let mut info = sized!(bw_cq_info {});
            ok(bw_cq_query(cq, &mut info));
            assert_eq!(info.cqn, number);
            fails(bw_ack_cq_events(channel, number, 2), BW_EINVAL);
            ok(bw_ack_cq_events(channel, number, 1));
            fails(bw_ack_cq_events(channel, number, 1), BW_EINVAL);
        }
        fails(
            bw_get_cq_event(channel, &mut number, &mut context),
            BW_EAGAIN,
        );
        fails(bw_get_cq_event(channel, null_mut(), &mut context), BW_ENULL);
        fails(bw_cq_req_notify(world.a.cq, 0), BW_EINVAL);
        fails(bw_comp_channel_destroy(channel), BW_EBUSY);
        for (cq, qp) in queues {
            ok(bw_qp_destroy(qp));
            ok(bw_cq_destroy(cq));
        }
        ok(bw_comp_channel_destroy(channel));
    }
    world.destroy();
}

#[test]
fn a_channel_of_another_device_is_foreign() {
    let (ours, theirs) = (World::plain(), World::plain());
    // SAFETY: valid handles and structs.
    unsafe {
        let channel = made(|channel| bw_comp_channel_create(theirs.device, channel));
        let attr = sized!(bw_cq_attr {
            entries: 8,
            channel: channel
        });
        fails(
            bw_cq_create(ours.device, &attr, &mut null_mut()),
            BW_EFOREIGN,
        );
        ok(bw_comp_channel_destroy(channel));
    }
    ours.destroy();
    theirs.destroy();
}

/// Destroying a completion queue waits until its events are acknowledged.
#[test]
fn destroying_waits_for_the_acknowledgement() {
    let world = World::plain();
    let mut number = 0;
    // SAFETY: valid handles and structs; the two threads use what any thread may.
    unsafe {
        let channel = made(|channel| bw_comp_channel_create(world.device, channel));
        let attr = sized!(bw_cq_attr {
            entries: 1024,
            channel: channel
        });
        let cq = made(|cq| bw_cq_create(world.device, &attr, cq));
        let qp = made(|qp| bw_qp_create(world.pd, cq, cq, null(), qp));
        ok(bw_qp_init(qp, null()));
        ok(bw_post_recv_one(qp, 1, &world.a.sge(0, 8)));
        ok(bw_ring_rq(qp));
        ok(bw_cq_req_notify(cq, 0));
        ok(bw_qp_destroy(qp));
        ok(bw_get_cq_event(channel, &mut number, null_mut()));
        let acknowledged = std::sync::atomic::AtomicBool::new(false);
        let shared = &*channel;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                // SeqCst: speed does not matter here.
                acknowledged.store(true, std::sync::atomic::Ordering::SeqCst);
                ok(bw_ack_cq_events(shared, number, 1));
            });
            ok(bw_cq_destroy(cq));
            assert!(acknowledged.load(std::sync::atomic::Ordering::SeqCst));
        });
        ok(bw_comp_channel_destroy(channel));
    }
    world.destroy();
}

#[test]
fn scripts_strike_when_they_say() {
    let world = World::plain();
    let device = world.device;
    let step = |trigger: bw_soft_trigger, at, fault: bw_soft_fault, value| bw_soft_step {
        trigger: trigger as u32,
        fault: fault as u32,
        at,
        value,
        ..Default::default()
    };
    let script = [
        step(BW_AT_REQUEST, 2, BW_FAULT_DROP_ACK, 0),
        step(BW_AT_REQUEST, 3, BW_FAULT_STATUS, BW_WC_GENERAL_ERR as u64),
    ];
    // SAFETY: valid handles and structs.
    unsafe {
        ok(bw_soft_inject(device, script.as_ptr(), 2));
        assert_eq!(outcome(&world), BW_WC_SUCCESS as u32);
        ok(bw_soft_clear(device));
        assert_eq!(outcome(&world), BW_WC_SUCCESS as u32);
        assert_eq!(outcome(&world), BW_WC_SUCCESS as u32, "it was cleared");
        // Requests of other queue pairs do not count, and the queue pair has to exist.
        let mut aimed = step(
            BW_AT_REQUEST,
            1,
            BW_FAULT_STATUS_AFTER,
            BW_WC_REM_OP_ERR as u64,
        );
        aimed.qp_num = u32::MAX;
        fails(bw_soft_inject(device, &aimed, 1), BW_EINVAL);
        let mut other = sized!(bw_endpoint {});
        ok(bw_qp_endpoint(world.b.qp, &mut other));
        aimed.qp_num = other.qp_num;
        ok(bw_soft_inject(device, &aimed, 1));
        assert_eq!(outcome(&world), BW_WC_SUCCESS as u32);
        ok(bw_soft_clear(device));

        ok(bw_soft_inject(device, &script[1], 1));
        for expected in [BW_WC_SUCCESS, BW_WC_SUCCESS, BW_WC_GENERAL_ERR] {
            assert_eq!(outcome(&world), expected as u32);
        }
        let kinds = [step(BW_AT_REQUEST, 0, BW_FAULT_DELAY, 1)];
        ok(bw_soft_inject_seeded(device, 1, 10, 3, kinds.as_ptr(), 1));
        ok(bw_soft_clear(device));
        let mut port = sized!(bw_port_info {});
        ok(bw_soft_set_port(device, 0));
        ok(bw_query_port(device, 1, &mut port));
        assert_eq!(port.state, BW_PORT_DOWN as u32);
        ok(bw_soft_set_port(device, 1));
        ok(bw_query_port(device, 1, &mut port));
        assert_eq!(port.state, BW_PORT_ACTIVE as u32);

        let mut bad = [script[0]; 14];
        bad[0].trigger = 4;
        bad[1].fault = 18;
        bad[2].trigger = BW_AFTER as u32;
        bad[3].trigger = BW_AT_MODIFY as u32;
        bad[3].qp_num = 1;
        bad[4] = step(BW_AT_REQUEST, 1, BW_FAULT_STATUS, 24);
        bad[5] = step(BW_AFTER, 1, BW_FAULT_QP_FATAL, 1 << 32);
        bad[6] = step(BW_AFTER, 1, BW_FAULT_RAISE, 1);
        bad[6].event_type = 20;
        bad[7] = step(BW_AFTER, 1, BW_FAULT_RAISE, 256);
        bad[7].event_type = BW_EVENT_PORT_ERR as u32;
        bad[8] = step(BW_AT_MODIFY, 1, BW_FAULT_SEND_CQ_OVERRUN, 0);
        bad[9] = step(BW_AFTER, 1, BW_FAULT_RECV_CQ_OVERRUN, 0);
        bad[10] = step(BW_AT_REQUEST, 1, BW_FAULT_STATUS_AFTER, 0);
        bad[11] = step(BW_AT_REQUEST, 1, BW_FAULT_REFUSE_MODIFY, 0);
        bad[12] = step(BW_AFTER, 1, BW_FAULT_CM, BW_CM_EVENT_ESTABLISHED as u64);
        bad[13] = step(BW_AFTER, 1, BW_FAULT_CM, 16);
        for (at, step) in bad.iter().enumerate() {
            // A valid step before it is not taken either.
            let script = [script[1], *step];
            let code = bw_soft_inject(device, script.as_ptr(), 2);
            assert_eq!(code, BW_EINVAL as c_int, "step {at}");
        }
        fails(
            bw_soft_inject_seeded(device, 1, 1, 1, &bad[1], 1),
            BW_EINVAL,
        );
    }
    world.destroy();
}

#[test]
fn tables_of_the_port() {
    let world = World::plain();
    let device = world.device;
    let (mut gid, mut pkey) = ([0u8; 16], 0);
    let mut port = sized!(bw_port_info {});
    // SAFETY: valid handles, structs and pointers.
    unsafe {
        ok(bw_query_port(device, 1, &mut port));
        assert_eq!((port.gid_tbl_len, port.pkey_tbl_len), (1, 1));
        ok(bw_query_gid(device, 1, 0, gid.as_mut_ptr()));
        assert_eq!(gid[..2], [0xfe, 0x80]);
        ok(bw_query_pkey(device, 1, 0, &mut pkey));
        assert_eq!(pkey, 0xffff);
        for port_num in [0, 2, 256] {
            fails(bw_query_port(device, port_num, &mut port), BW_EINVAL);
            fails(
                bw_query_gid(device, port_num, 0, gid.as_mut_ptr()),
                BW_EINVAL,
            );
        }
        for index in [1, 65536] {
            fails(bw_query_gid(device, 1, index, gid.as_mut_ptr()), BW_EINVAL);
            fails(bw_query_pkey(device, 1, index, &mut pkey), BW_EINVAL);
        }
        fails(
            bw_query_port(device, 1, &mut bw_port_info::default()),
            BW_ESIZE,
        );
        fails(
            bw_get_async_event(device, &mut bw_async_event_info::default(), &mut null_mut()),
            BW_ESIZE,
        );
    }
    world.destroy();
}
