//! Queue pairs of every transport: what each supports, and what it refuses.

use super::*;
use crate::ah::*;
use crate::code::*;
use crate::direct::*;
use crate::fault_number::bw_wc_status::*;
use crate::modify::*;
use crate::number::bw_wr_opcode::*;
use crate::number::{bw_qp_attr_mask::*, bw_qp_state::*, bw_qp_type::*, bw_send_flags::*};
use crate::srq::*;
use crate::xrc::*;

const SIGNALED: u32 = BW_SEND_SIGNALED as u32;

fn init_of(qp_type: crate::number::bw_qp_type) -> bw_qp_init_attr {
    sized!(bw_qp_init_attr {
        qp_type: qp_type as u32
    })
}

fn post(end: &End, wr: bw_send_wr) -> c_int {
    // SAFETY: a valid handle; what requests name stays.
    unsafe { bw_post_send(end.qp, &wr, 1, null_mut()) }
}

fn of(opcode: crate::number::bw_wr_opcode, end: &End, peer: &End) -> bw_send_wr {
    bw_send_wr {
        opcode: opcode as u32,
        send_flags: SIGNALED,
        remote_addr: peer.memory.addr,
        rkey: peer.memory.rkey,
        // Leaked: the element is read when the request is posted.
        sg_list: Box::leak(Box::new(end.sge(0, 8))),
        num_sge: 1,
        ..NOP
    }
}

#[test]
fn unreliable_connections_lack_what_needs_an_answer() {
    let world = World::new(&sized!(bw_soft_config {}));
    let init = init_of(BW_QPT_UC);
    let a = End::new(world.device, world.pd, &init);
    let b = End::new(world.device, world.pd, &init);
    let attr = sized!(bw_connect_attr {});
    a.connect(&b, &attr);
    b.connect(&a, &attr);
    for opcode in [
        BW_WR_RDMA_READ,
        BW_WR_ATOMIC_CMP_AND_SWP,
        BW_WR_ATOMIC_FETCH_AND_ADD,
    ] {
        fails(post(&a, of(opcode, &a, &b)), BW_EOPCODE);
    }
    a.put(0, b"eight by");
    ok(post(&a, of(BW_WR_RDMA_WRITE, &a, &b)));
    a.succeeded(0);
    assert_eq!(b.bytes(0, 8), b"eight by");
    let (addr, rkey) = (b.memory.addr, b.memory.rkey);
    // SAFETY: valid handles and memory.
    unsafe {
        fails(
            bw_post_read(a.qp, 1, &a.sge(0, 8), addr, rkey, 0),
            BW_EOPCODE,
        );
        let data = b"inline".as_ptr().cast();
        ok(bw_post_write_inline(a.qp, 2, data, 6, addr, rkey, SIGNALED));
        ok(bw_ring_sq(a.qp));
        fails(bw_qp_start(a.qp, null()), BW_ETRANSPORT);
        fails(
            bw_qp_attach_mcast(a.qp, [0xff; 16].as_ptr(), 1),
            BW_ETRANSPORT,
        );
    }
    a.succeeded(2);
    a.destroy();
    b.destroy();
    world.destroy();
}

#[test]
fn datagrams_take_messages_that_name_a_path() {
    let world = World::new(&sized!(bw_soft_config {}));
    let a = End::new(world.device, world.pd, &init_of(BW_QPT_UD));
    let path = bw_ah_attr {
        dlid: 1,
        port_num: 1,
        ..Default::default()
    };
    // SAFETY: valid handles and structs.
    unsafe {
        ok(bw_qp_init(a.qp, null()));
        fails(
            bw_qp_connect(a.qp, &sized!(bw_endpoint { qp_num: 7 }), null()),
            BW_ETRANSPORT,
        );
        assert!(last_error().contains("bw_qp_start"), "{}", last_error());
        ok(bw_qp_start(a.qp, null()));
        let sge = a.sge(0, 8);
        fails(bw_post_send_one(a.qp, 1, &sge, 0), BW_EOPCODE);
        fails(bw_post_write(a.qp, 1, &sge, 0, 0, 0), BW_EOPCODE);
        fails(bw_post_read(a.qp, 1, &sge, 0, 0, 0), BW_EOPCODE);
        for opcode in [
            BW_WR_RDMA_WRITE,
            BW_WR_RDMA_READ,
            BW_WR_SEND_WITH_INV,
            BW_WR_LOCAL_INV,
            BW_WR_BIND_MW,
        ] {
            fails(post(&a, of(opcode, &a, &a)), BW_EOPCODE);
        }
        fails(post(&a, of(BW_WR_SEND, &a, &a)), BW_ENULL);
        // Without a destination.
        let nop = bw_send_wr {
            send_flags: SIGNALED,
            ..NOP
        };
        ok(post(&a, nop));
        a.succeeded(0);

        let ah = made(|ah| bw_ah_create(world.pd, &path, ah));
        let mut read = bw_ah_attr::default();
        ok(bw_ah_query(ah, &mut read));
        assert_eq!(read, path);
        fails(bw_pd_destroy(world.pd), BW_EBUSY);
        let to_none = bw_send_wr {
            ah,
            remote_qpn: 0xff_fffe,
            ..of(BW_WR_SEND, &a, &a)
        };
        ok(post(&a, to_none));
        // The datagram is lost; the send completes successfully.
        a.succeeded(0);
        ok(bw_ah_destroy(ah));
    }
    a.destroy();
    world.destroy();
}

#[test]
fn paths_and_groups_that_cannot_be() {
    let world = World::new(&sized!(bw_soft_config {}));
    let a = End::new(world.device, world.pd, &init_of(BW_QPT_UD));
    let good = bw_ah_attr {
        port_num: 1,
        ..Default::default()
    };
    let mut bad = [good; 6];
    bad[0].port_num = 0;
    bad[1].port_num = 2;
    bad[2].sgid_index = 1;
    bad[3].sl = 16;
    bad[4].flow_label = 1 << 20;
    bad[5].reserved = 1;
    let group = [0xff; 16];
    let mut ah = null_mut();
    // SAFETY: valid handles and structs.
    unsafe {
        for attr in &bad {
            fails(bw_ah_create(world.pd, attr, &mut ah), BW_EINVAL);
        }
        // The completion of a send, of a failure, and an invalid header.
        let recv = bw_wc {
            opcode: 128,
            ..Default::default()
        };
        let mut wcs = [recv; 3];
        wcs[0].opcode = 0;
        wcs[1].status = 5;
        wcs[2].wc_flags = 1;
        let grh = [0u8; 40];
        for wc in &wcs {
            let code = bw_ah_create_from_wc(world.pd, wc, grh.as_ptr().cast(), 1, &mut ah);
            fails(code, BW_EINVAL);
        }
        fails(
            bw_ah_create_from_wc(world.pd, &wcs[2], null(), 1, &mut ah),
            BW_ENULL,
        );
        fails(
            bw_ah_create_from_wc(world.pd, &recv, null(), 256, &mut ah),
            BW_EINVAL,
        );
        assert!(ah.is_null());
        ok(bw_qp_attach_mcast(a.qp, group.as_ptr(), 0xc000));
        ok(bw_qp_attach_mcast(a.qp, group.as_ptr(), 0xc000));
        ok(bw_qp_detach_mcast(a.qp, group.as_ptr(), 0xc000));
        fails(bw_qp_detach_mcast(a.qp, group.as_ptr(), 0xc000), BW_EINVAL);
        fails(
            bw_qp_attach_mcast(a.qp, [0; 16].as_ptr(), 0xc000),
            BW_EINVAL,
        );
    }
    a.destroy();
    world.destroy();
}

#[test]
fn types_that_there_are_not() {
    let world = World::new(&sized!(bw_soft_config {}));
    let (a, mut qp) = (&world.a, null_mut());
    // SAFETY: valid handles and structs.
    unsafe {
        // RAW_PACKET, an XRC target, and unknown numbers.
        for qp_type in [0, 8, 10, u32::MAX] {
            let init = sized!(bw_qp_init_attr { qp_type: qp_type });
            fails(
                bw_qp_create(world.pd, a.cq, a.cq, &init, &mut qp),
                BW_EINVAL,
            );
            fails(bw_qp_cq_entries(&init, &mut 0, &mut 0), BW_EINVAL);
        }
        for later in [
            sized!(bw_qp_init_attr { reserved: 1 }),
            sized!(bw_qp_init_attr { reserved1: 1 }),
        ] {
            fails(
                bw_qp_create(world.pd, a.cq, a.cq, &later, &mut qp),
                BW_EINVAL,
            );
        }
    }
    assert!(qp.is_null());
    world.destroy();
}

/// Attribute by attribute; the error names what is missing or wrong.
#[test]
fn modify_names_what_is_wrong() {
    let world = World::new(&sized!(bw_soft_config {}));
    let qp = world.a.qp;
    let to = |state: crate::number::bw_qp_state| {
        sized!(bw_qp_attr {
            qp_state: state as u32,
            port_num: 1,
            qkey: 7
        })
    };
    let (state, port) = (BW_QP_STATE as u32, BW_QP_PORT as u32);
    let init = state | port | BW_QP_PKEY_INDEX as u32 | BW_QP_ACCESS_FLAGS as u32;
    let mut found = sized!(bw_qp_attr {});
    // SAFETY: valid handles and structs.
    unsafe {
        fails(bw_qp_modify(qp, &to(BW_QPS_INIT), state), BW_EINVAL);
        assert!(last_error().contains("PORT"), "{}", last_error());
        fails(bw_qp_modify(qp, &to(BW_QPS_RTS), state), BW_ESTATE);
        fails(bw_qp_modify(qp, &to(BW_QPS_RESET), state), BW_ESTATE);
        fails(bw_qp_modify(qp, &to(BW_QPS_INIT), 1 << 31), BW_EINVAL);
        let unknown = sized!(bw_qp_attr { qp_state: 7 });
        fails(bw_qp_modify(qp, &unknown, state), BW_EINVAL);
        assert!(last_error().contains("qp_state"), "{}", last_error());
        let wide = bw_qp_attr {
            port_num: 257,
            ..to(BW_QPS_INIT)
        };
        fails(bw_qp_modify(qp, &wide, init), BW_EINVAL);
        assert!(last_error().contains("port_num"), "{}", last_error());
        fails(bw_qp_modify(qp, &bw_qp_attr::default(), init), BW_ESIZE);
        // Fields that the mask does not name are ignored: the MTU is 0.
        ok(bw_qp_modify(qp, &to(BW_QPS_INIT), init));
        let wrong = bw_qp_attr {
            cur_qp_state: BW_QPS_RTR as u32,
            ..to(BW_QPS_ERR)
        };
        fails(
            bw_qp_modify(qp, &wrong, state | BW_QP_CUR_STATE as u32),
            BW_ESTATE,
        );
        ok(bw_qp_query(qp, &mut found));
    }
    assert_eq!(found.qp_state, BW_QPS_INIT as u32);
    assert_eq!((found.port_num, found.qp_type), (1, BW_QPT_RC as u32));
    world.destroy();
}

/// An initiator, a target, and two shared receive queues, one of which each request names.
#[test]
fn xrc_requests_name_a_shared_receive_queue() {
    let world = World::new(&sized!(bw_soft_config {}));
    let (device, pd) = (world.device, world.pd);
    let initiator = End::new(device, pd, &init_of(BW_QPT_XRC_SEND));
    let receiver = &world.b;
    let mut endpoint = sized!(bw_endpoint {});
    let mut info = sized!(bw_srq_info {});
    let mut wc = bw_wc::default();
    // SAFETY: valid handles and structs.
    unsafe {
        let cq_attr = sized!(bw_cq_attr { entries: 1024 });
        let cq = made(|cq| bw_cq_create(device, &cq_attr, cq));
        let xrcd = made(|xrcd| bw_xrcd_create(device, xrcd));
        let target = made(|target| bw_xrc_target_create(xrcd, target));
        let srqs = [(); 2].map(|()| made(|srq| bw_srq_create_xrc(pd, xrcd, cq, null(), srq)));
        // A shared receive queue for XRC cannot be used by a queue pair.
        let on_it = sized!(bw_qp_init_attr { srq: srqs[0] });
        fails(bw_qp_create(pd, cq, cq, &on_it, &mut null_mut()), BW_EINVAL);
        ok(bw_xrc_target_endpoint(target, &mut endpoint));
        ok(bw_qp_init(initiator.qp, null()));
        ok(bw_qp_connect(initiator.qp, &endpoint, null()));
        ok(bw_qp_endpoint(initiator.qp, &mut endpoint));
        ok(bw_xrc_target_init(target, null()));
        ok(bw_xrc_target_connect(target, &endpoint, null()));
        fails(bw_xrc_target_init(target, null()), BW_ESTATE);
        fails(
            bw_xrc_target_modify(target, &sized!(bw_qp_attr {}), 1 << 31),
            BW_EINVAL,
        );
        let mut attr = sized!(bw_qp_attr {});
        ok(bw_xrc_target_query(target, &mut attr));
        assert_eq!(attr.qp_type, BW_QPT_XRC_RECV as u32);
        assert_eq!(attr.qp_state, BW_QPS_RTS as u32);

        fails(
            bw_post_recv_one(initiator.qp, 1, &initiator.sge(0, 8)),
            BW_ENORQ,
        );
        fails(
            bw_post_send_one(initiator.qp, 1, &initiator.sge(0, 8), 0),
            BW_EOPCODE,
        );
        for (at, &srq) in srqs.iter().enumerate() {
            let sge = receiver.sge(at as u64 * 64, 64);
            let recv = bw_recv_wr {
                wr_id: 70 + at as u64,
                sg_list: &sge,
                num_sge: 1,
                reserved: 0,
            };
            ok(bw_post_srq_recv(srq, &recv, 1, null_mut()));
            ok(bw_srq_query(srq, &mut info));
            initiator.put(0, &[at as u8 + 1; 8]);
            let send = bw_send_wr {
                remote_srqn: info.srq_num,
                ..of(BW_WR_SEND, &initiator, receiver)
            };
            ok(post(&initiator, send));
            initiator.succeeded(0);
            assert_eq!(bw_poll_one(cq, &mut wc), 1);
            assert_eq!((wc.wr_id, wc.qp_num), (70 + at as u64, attr.qp_num));
            assert_eq!(receiver.bytes(at as u64 * 64, 8), [at as u8 + 1; 8]);
        }
        fails(bw_xrcd_destroy(xrcd), BW_EBUSY);
        fails(bw_cq_destroy(cq), BW_EBUSY);
        ok(bw_xrc_target_destroy(target));
        for srq in srqs {
            ok(bw_srq_destroy(srq, None, null_mut()));
        }
        ok(bw_xrcd_destroy(xrcd));
        ok(bw_cq_destroy(cq));
    }
    initiator.destroy();
    world.destroy();
}

#[test]
fn a_failed_send_of_an_unreliable_connection_can_be_mended() {
    let world = World::new(&sized!(bw_soft_config {}));
    let init = init_of(BW_QPT_UC);
    let a = End::new(world.device, world.pd, &init);
    let attr = sized!(bw_connect_attr {});
    a.connect(&world.b, &attr);
    let sge = bw_sge {
        lkey: 1,
        ..a.sge(0, 8)
    };
    let bad = bw_send_wr {
        sg_list: &sge,
        ..of(BW_WR_SEND, &a, &a)
    };
    ok(post(&a, bad));
    assert_eq!(a.wait().status, BW_WC_LOC_PROT_ERR as u32);
    assert_eq!(a.state(), BW_QPS_SQE as c_int);
    let on = sized!(bw_qp_attr {
        qp_state: BW_QPS_RTS as u32
    });
    // SAFETY: a valid handle and struct.
    ok(unsafe { bw_qp_modify(a.qp, &on, BW_QP_STATE as u32) });
    ok(post(&a, of(BW_WR_SEND, &a, &a)));
    a.succeeded(0);
    a.destroy();
    world.destroy();
}
