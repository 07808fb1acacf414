//! Shared receive queues.

use super::*;
use crate::code::*;
use crate::direct::*;
use crate::event::*;
use crate::modify::*;
use crate::number::bw_qp_type;
use crate::number::bw_send_flags::*;
use crate::srq::*;
use std::ffi::c_void;

unsafe extern "C" fn gather(context: *mut c_void, wr_id: u64) {
    // SAFETY: the test passes a vector.
    unsafe { (*context.cast::<Vec<u64>>()).push(wr_id) };
}

fn receives(sge: &bw_sge, count: u64) -> Vec<bw_recv_wr> {
    let recv = |wr_id| bw_recv_wr {
        wr_id,
        sg_list: sge,
        num_sge: 1,
        reserved: 0,
    };
    (0..count).map(recv).collect()
}

/// Two queue pairs receive from one shared receive queue, which raises its limit event and reports what
/// is left.
#[test]
fn queue_pairs_take_from_one_queue() {
    let world = World::new(&sized!(bw_soft_config {}));
    let (device, pd) = (world.device, world.pd);
    let mut info = sized!(bw_srq_info {});
    let mut left: Vec<u64> = Vec::new();
    // SAFETY: valid handles, structs and memory.
    unsafe {
        let attr = sized!(bw_srq_init_attr { max_wr: 15 });
        let srq = made(|srq| bw_srq_create(pd, &attr, srq));
        let init = sized!(bw_qp_init_attr { srq: srq });
        let ends = [(); 2].map(|()| End::new(device, pd, &init));
        let connect = sized!(bw_connect_attr {});
        world.a.connect(&ends[0], &connect);
        ends[0].connect(&world.a, &connect);
        world.b.connect(&ends[1], &connect);
        ends[1].connect(&world.b, &connect);

        let sge = ends[0].sge(0, 64);
        let mut list = receives(&sge, 4);
        list[2].num_sge = 9;
        let mut bad = null();
        let code = bw_post_srq_recv(srq, list.as_ptr(), 4, &mut bad);
        fails(code, BW_ETOOMANYSGE);
        assert!(std::ptr::eq(bad, &list[2]));
        fails(bw_post_recv_one(ends[0].qp, 1, &sge), BW_ENORQ);
        fails(
            bw_post_recv(ends[0].qp, list.as_ptr(), 1, null_mut()),
            BW_ENORQ,
        );

        ok(bw_srq_query(srq, &mut info));
        assert!(info.max_wr >= 15 && info.srq_limit == 0);
        fails(bw_srq_modify(srq, info.max_wr + 1), BW_ELIMIT);
        ok(bw_srq_modify(srq, 1));
        for (from, to) in [(&world.a, &ends[0]), (&world.b, &ends[1])] {
            ok(bw_post_send_inline(
                from.qp,
                1,
                b"x".as_ptr().cast(),
                1,
                BW_SEND_SIGNALED as u32,
            ));
            ok(bw_ring_sq(from.qp));
            from.succeeded(1);
            assert_eq!(to.wait().byte_len, 1);
        }
        // The second message left fewer than one.
        let mut raised = sized!(bw_async_event_info {});
        let event = made(|event| bw_get_async_event(device, &mut raised, event));
        assert_eq!(
            raised.event_type,
            crate::fault_number::bw_event_type::BW_EVENT_SRQ_LIMIT_REACHED as u32
        );
        assert_eq!(
            (raised.element, raised.number),
            (bw_element::BW_ELEMENT_SRQ as u32, info.srq_num)
        );
        fails(bw_device_close(device), BW_EBUSY);
        ok(bw_ack_async_event(event));

        let list = receives(&sge, 3);
        ok(bw_post_srq_recv(srq, list.as_ptr(), 3, null_mut()));
        fails(bw_srq_destroy(srq, None, null_mut()), BW_EBUSY);
        for end in ends {
            end.destroy();
        }
        ok(bw_srq_destroy(srq, Some(gather), (&raw mut left).cast()));
    }
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2]);
    world.destroy();
}

#[test]
fn a_shared_queue_takes_what_it_holds() {
    let world = World::new(&sized!(bw_soft_config {}));
    let sge = world.a.sge(0, 8);
    let mut bad = null();
    // SAFETY: valid handles, structs and memory.
    unsafe {
        for (attr, code) in [
            (sized!(bw_srq_init_attr { max_wr: 0 }), BW_EINVAL),
            (sized!(bw_srq_init_attr { max_wr: u32::MAX }), BW_ELIMIT),
            (sized!(bw_srq_init_attr { max_sge: 1000 }), BW_ELIMIT),
            (sized!(bw_srq_init_attr { srq_limit: 1000 }), BW_ELIMIT),
        ] {
            let mut srq = null_mut();
            fails(bw_srq_create(world.pd, &attr, &mut srq), code);
        }
        let srq = made(|srq| bw_srq_create(world.pd, &sized!(bw_srq_init_attr { max_wr: 7 }), srq));
        let list = receives(&sge, 8);
        fails(bw_post_srq_recv(srq, list.as_ptr(), 8, &mut bad), BW_EFULL);
        assert!(std::ptr::eq(bad, &list[7]));
        ok(bw_srq_destroy(srq, None, null_mut()));
    }
    world.destroy();
}

#[test]
fn a_queue_of_another_domain_is_foreign() {
    let (ours, theirs) = (World::plain(), World::plain());
    // SAFETY: valid handles and structs.
    unsafe {
        let srq = made(|srq| bw_srq_create(theirs.pd, null(), srq));
        let init = sized!(bw_qp_init_attr { srq: srq });
        let cq = made(|cq| bw_cq_create(ours.device, &sized!(bw_cq_attr { entries: 1024 }), cq));
        fails(
            bw_qp_create(ours.pd, cq, cq, &init, &mut null_mut()),
            BW_EFOREIGN,
        );
        ok(bw_cq_destroy(cq));
        ok(bw_srq_destroy(srq, None, null_mut()));
    }
    ours.destroy();
    theirs.destroy();
}

/// `ibv_create_qp(3)`: the limits of receives mean nothing without a receive queue of its own.
#[test]
fn limits_of_receives_are_ignored() {
    let world = World::new(&sized!(bw_soft_config {}));
    let (device, pd) = (world.device, world.pd);
    let kinds = [
        bw_qp_type::BW_QPT_RC,
        bw_qp_type::BW_QPT_UC,
        bw_qp_type::BW_QPT_UD,
        bw_qp_type::BW_QPT_XRC_SEND,
    ];
    // SAFETY: valid handles and structs.
    unsafe {
        let shared = made(|srq| bw_srq_create(pd, null(), srq));
        let attr = sized!(bw_cq_attr { entries: 4096 });
        for kind in kinds {
            let cq = made(|cq| bw_cq_create(device, &attr, cq));
            let xrc = kind == bw_qp_type::BW_QPT_XRC_SEND;
            let srq = if xrc { null_mut() } else { shared };
            for beyond in [0, u32::MAX] {
                let init = sized!(bw_qp_init_attr {
                    max_recv_wr: beyond,
                    max_recv_sge: beyond,
                    qp_type: kind as u32,
                    srq: srq
                });
                let (mut sends, mut receives) = (0, 0);
                ok(bw_qp_cq_entries(&init, &mut sends, &mut receives));
                assert!(receives < 4096, "{receives}");
                let qp = made(|qp| bw_qp_create(pd, cq, cq, &init, qp));
                let mut attr = sized!(bw_qp_attr {});
                ok(bw_qp_query(qp, &mut attr));
                assert_eq!((attr.max_recv_wr, attr.max_recv_sge), (0, 0));
                assert!(attr.max_send_wr >= init.max_send_wr);
                ok(bw_qp_destroy(qp));
            }
            ok(bw_cq_destroy(cq));
        }
        ok(bw_srq_destroy(shared, None, null_mut()));
    }
    world.destroy();
}
