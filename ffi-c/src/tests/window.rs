//! Memory windows.

use super::*;
use crate::code::*;
use crate::direct::*;
use crate::fault_number::bw_wc_status::*;
use crate::mw::*;
use crate::number::bw_mw_type::*;
use crate::number::{bw_send_flags::*, bw_wr_opcode::*};

const SIGNALED: u32 = BW_SEND_SIGNALED as u32;

/// Memory that windows may be bound to, in a connected world.
fn bindable(world: &World) -> (*mut bw_mr, bw_mw_bind_info) {
    let memory: &'static mut [u64; 8] = Box::leak(Box::new([0; 8]));
    let addr = memory.as_mut_ptr();
    let access = BW_ACCESS_LOCAL_WRITE as u32 | BW_ACCESS_MW_BIND as u32;
    let mut info = sized!(bw_mr_info {});
    // SAFETY: valid handles; the memory stays.
    let mr = unsafe {
        let mr = made(|mr| bw_mr_create(world.pd, addr.cast(), 64, access, mr));
        ok(bw_mr_query(mr, &mut info));
        mr
    };
    let bind = bw_mw_bind_info {
        addr: info.addr,
        length: 8,
        lkey: info.lkey,
        access: BW_ACCESS_REMOTE_WRITE as u32,
        reserved: 0,
    };
    (mr, bind)
}

/// The status of a WRITE by a through the key.
fn write_through(world: &World, addr: u64, rkey: u32) -> u32 {
    // SAFETY: valid handles and memory.
    unsafe {
        let data = b"through!".as_ptr().cast();
        ok(bw_post_write_inline(
            world.a.qp, 1, data, 8, addr, rkey, SIGNALED,
        ));
        ok(bw_ring_sq(world.a.qp));
    }
    world.a.wait().status
}

#[test]
fn windows_of_type_1_are_bound_by_a_call() {
    let world = World::plain();
    let (mr, bind) = bindable(&world);
    let b = &world.b;
    // SAFETY: valid handles and structs.
    unsafe {
        let mw = made(|mw| bw_mw_create(world.pd, BW_MW_TYPE_1 as u32, mw));
        let before = bw_mw_rkey(mw);
        ok(bw_mw_bind(b.qp, mw, 7, &bind, SIGNALED));
        b.succeeded(7);
        assert_ne!(bw_mw_rkey(mw), before);
        let status = write_through(&world, bind.addr, bw_mw_rkey(mw));
        assert_eq!(status, BW_WC_SUCCESS as u32);
        fails(bw_mr_destroy(mr), BW_EBUSY);
        let mut info = sized!(bw_mr_info {});
        ok(bw_mr_query(mr, &mut info));

        let nothing = bw_mw_bind_info { length: 0, ..bind };
        ok(bw_mw_bind(b.qp, mw, 8, &nothing, SIGNALED));
        b.succeeded(8);
        let status = write_through(&world, bind.addr, bw_mw_rkey(mw));
        assert_eq!(status, BW_WC_REM_ACCESS_ERR as u32);
        ok(bw_mr_destroy(mr));
        ok(bw_mw_destroy(mw));
    }
    world.destroy();
}

#[test]
fn windows_of_type_2_are_bound_by_requests() {
    let world = World::plain();
    let (mr, bind) = bindable(&world);
    let b = &world.b;
    // SAFETY: valid handles and structs.
    unsafe {
        let mw = made(|mw| bw_mw_create(world.pd, BW_MW_TYPE_2 as u32, mw));
        let wr = bw_send_wr {
            wr_id: 7,
            opcode: BW_WR_BIND_MW as u32,
            send_flags: SIGNALED,
            mw,
            bind,
            ..NOP
        };
        ok(bw_post_send(b.qp, &wr, 1, null_mut()));
        b.succeeded(7);
        let rkey = bw_mw_rkey(mw);
        let status = write_through(&world, bind.addr, rkey);
        assert_eq!(status, BW_WC_SUCCESS as u32);
        let invalidate = bw_send_wr {
            wr_id: 8,
            opcode: BW_WR_LOCAL_INV as u32,
            send_flags: SIGNALED,
            invalidate_rkey: rkey,
            ..NOP
        };
        ok(bw_post_send(b.qp, &invalidate, 1, null_mut()));
        b.succeeded(8);
        let status = write_through(&world, bind.addr, rkey);
        assert_eq!(status, BW_WC_REM_ACCESS_ERR as u32);
        ok(bw_mw_destroy(mw));
        ok(bw_mr_destroy(mr));
    }
    world.destroy();
}

#[test]
fn binds_that_cannot_be_leave_the_key() {
    let (world, other) = (World::plain(), World::new(&sized!(bw_soft_config {})));
    let (mr, bind) = bindable(&world);
    let ud = sized!(bw_qp_init_attr {
        qp_type: crate::number::bw_qp_type::BW_QPT_UD as u32
    });
    // SAFETY: valid handles and structs.
    unsafe {
        let datagrams = End::new(world.device, world.pd, &ud);
        for mw_type in [0, 3] {
            fails(bw_mw_create(world.pd, mw_type, &mut null_mut()), BW_EINVAL);
        }
        let one = made(|mw| bw_mw_create(world.pd, BW_MW_TYPE_1 as u32, mw));
        let two = made(|mw| bw_mw_create(world.pd, BW_MW_TYPE_2 as u32, mw));
        let keys = [bw_mw_rkey(one), bw_mw_rkey(two)];
        let (a, later) = (
            &world.a,
            bw_mw_bind_info {
                reserved: 1,
                ..bind
            },
        );
        fails(bw_mw_bind(a.qp, two, 1, &bind, 0), BW_EINVAL);
        fails(bw_mw_bind(a.qp, one, 1, &bind, 1 << 9), BW_EINVAL);
        fails(bw_mw_bind(a.qp, one, 1, &later, 0), BW_EINVAL);
        fails(bw_mw_bind(a.qp, one, 1, null(), 0), BW_ENULL);
        fails(bw_mw_bind(datagrams.qp, one, 1, &bind, 0), BW_ETRANSPORT);
        fails(bw_mw_bind(other.a.qp, one, 1, &bind, 0), BW_EFOREIGN);
        let wr = |mw| bw_send_wr {
            opcode: BW_WR_BIND_MW as u32,
            mw,
            bind,
            ..NOP
        };
        fails(bw_post_send(a.qp, &wr(one), 1, null_mut()), BW_EINVAL);
        // The queue pair is not in RTS.
        fails(bw_post_send(other.a.qp, &wr(two), 1, null_mut()), BW_ESTATE);
        assert_eq!([bw_mw_rkey(one), bw_mw_rkey(two)], keys);
        fails(bw_pd_destroy(world.pd), BW_EBUSY);
        ok(bw_mw_destroy(one));
        ok(bw_mw_destroy(two));
        ok(bw_mr_destroy(mr));
        datagrams.destroy();
    }
    world.destroy();
    other.destroy();
}
