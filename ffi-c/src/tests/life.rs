//! States, clocks, and destruction.

use super::*;
use crate::code::*;
use crate::direct::*;
use crate::fault_number::bw_wc_status::*;
use crate::modify::*;
use crate::number::{bw_qp_state::*, bw_send_flags::*};
use std::ffi::c_void;

const SIGNALED: u32 = BW_SEND_SIGNALED as u32;

fn on_virtual_clock() -> bw_soft_config {
    sized!(bw_soft_config {
        clock: bw_soft_clock::BW_CLOCK_VIRTUAL as u32,
        seed: 1,
    })
}

#[test]
fn states_are_reported() {
    let world = World::new(&sized!(bw_soft_config {}));
    let a = &world.a;
    assert_eq!(a.state(), BW_QPS_RESET as c_int);
    let attr = sized!(bw_connect_attr { retry_cnt: 3 });
    world.a.connect(&world.b, &attr);
    assert_eq!(a.state(), BW_QPS_RTS as c_int);
    let mut info = sized!(bw_qp_attr {});
    let mut peer = sized!(bw_endpoint {});
    // SAFETY: valid handles and structs.
    unsafe {
        ok(bw_qp_query(a.qp, &mut info));
        ok(bw_qp_endpoint(world.b.qp, &mut peer));
        assert_eq!(info.qp_state, BW_QPS_RTS as u32);
        assert_eq!((info.dest_qp_num, info.retry_cnt), (peer.qp_num, 3));
        assert_eq!((info.max_inline_data, info.max_send_sge), (200, 4));
        ok(bw_qp_to_error(a.qp));
    }
    assert_eq!(a.state(), BW_QPS_ERR as c_int);
    world.destroy();
}

#[test]
fn a_virtual_clock_moves_when_advanced() {
    let attr = sized!(bw_connect_attr {
        rnr_retry: 1,
        min_rnr_timer: 1
    });
    let world = World::connected(&on_virtual_clock(), &attr);
    let a = &world.a;
    // SAFETY: valid handles and memory.
    unsafe {
        ok(bw_post_send_inline(a.qp, 1, null(), 0, SIGNALED));
        ok(bw_ring_sq(a.qp));
        // No receive is posted at the peer.
        assert_eq!(a.poll(), None);
        ok(bw_device_progress(world.device));
        assert_eq!(a.poll(), None);
        // One retry, 10 µs later.
        ok(bw_device_advance(world.device, 9_999));
        assert_eq!(a.poll(), None);
        ok(bw_device_advance(world.device, 1));
    }
    assert_eq!(a.wait().status, BW_WC_RNR_RETRY_EXC_ERR as u32);
    world.destroy();
}

#[test]
fn a_real_clock_cannot_be_moved() {
    // SAFETY: a valid handle.
    unsafe {
        let device = made(|device| bw_device_open(c"soft".as_ptr(), device));
        fails(bw_device_advance(device, 1), BW_ECLOCK);
        assert!(
            last_error().contains("BW_CLOCK_VIRTUAL"),
            "{}",
            last_error()
        );
        ok(bw_device_close(device));
    }
}

unsafe extern "C" fn collect(context: *mut c_void, wr_id: u64) {
    // SAFETY: the test passes a vector.
    unsafe { &mut *context.cast::<Vec<u64>>() }.push(wr_id);
}

#[test]
fn reset_reports_what_was_not_reported() {
    let attr = sized!(bw_connect_attr {});
    let world = World::connected(&on_virtual_clock(), &attr);
    let (a, b) = (&world.a, &world.b);
    let mut cleared: Vec<u64> = Vec::new();
    // SAFETY: valid handles and memory.
    unsafe {
        for n in 1..=3 {
            ok(bw_post_send_inline(a.qp, n, null(), 0, SIGNALED));
            ok(bw_post_recv_one(a.qp, 10 + n, &a.sge(0, 8)));
        }
        ok(bw_ring_sq(a.qp));
        ok(bw_ring_rq(a.qp));
        ok(bw_qp_reset(a.qp, Some(collect), (&raw mut cleared).cast()));
        assert_eq!(cleared, [1, 2, 3, 11, 12, 13]);
        assert_eq!((a.poll(), a.state()), (None, BW_QPS_RESET as c_int));
        // Nothing is left to report, and no callback is needed.
        ok(bw_qp_reset(a.qp, None, null_mut()));
        ok(bw_qp_reset(b.qp, None, null_mut()));
        // The queue pair works again.
        a.connect(b, &attr);
        b.connect(a, &attr);
        ok(bw_post_recv_one(b.qp, 4, &b.sge(0, 8)));
        ok(bw_ring_rq(b.qp));
        ok(bw_post_send_inline(a.qp, 5, null(), 0, SIGNALED));
        ok(bw_ring_sq(a.qp));
    }
    a.succeeded(5);
    b.succeeded(4);
    world.destroy();
}

#[test]
fn a_destroyed_queue_pair_is_reported_to_the_end() {
    let world = World::connected(&on_virtual_clock(), &sized!(bw_connect_attr {}));
    let World { device, pd, a, b } = world;
    // SAFETY: valid handles and memory.
    unsafe {
        ok(bw_post_send_inline(a.qp, 1, null(), 0, SIGNALED));
        ok(bw_ring_sq(a.qp));
        ok(bw_post_recv_one(a.qp, 2, &a.sge(0, 8)));
        ok(bw_ring_rq(a.qp));
        fails(bw_cq_destroy(a.cq), BW_EBUSY);
        ok(bw_qp_destroy(a.qp));
        let wcs = [a.wait(), a.wait()];
        let mut ids = wcs.map(|wc| wc.wr_id);
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        assert_eq!(wcs.map(|wc| wc.status), [BW_WC_WR_FLUSH_ERR as u32; 2]);
        ok(bw_cq_destroy(a.cq));
        ok(bw_region_destroy(a.region));
        b.destroy();
        ok(bw_pd_destroy(pd));
        ok(bw_device_close(device));
    }
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    let world = World::new(&sized!(bw_soft_config {}));
    // SAFETY: valid handles.
    unsafe {
        fails(bw_device_close(world.device), BW_EBUSY);
        fails(bw_pd_destroy(world.pd), BW_EBUSY);
        assert!(
            last_error().contains("destroy them first"),
            "{}",
            last_error()
        );
        fails(bw_cq_destroy(world.a.cq), BW_EBUSY);
        let mut memory = [0u64; 4];
        let start = memory.as_mut_ptr().cast();
        let pd = made(|pd| bw_pd_create(world.device, pd));
        let mr = made(|mr| bw_mr_create(pd, start, 32, ALL_ACCESS, mr));
        fails(bw_pd_destroy(pd), BW_EBUSY);
        ok(bw_mr_destroy(mr));
        ok(bw_pd_destroy(pd));
    }
    world.destroy();
}

#[test]
fn memory_says_what_it_is() {
    let world = World::plain();
    let (a, b) = (&world.a, &world.b);
    let mut memory = [7u64; 4];
    let mut info = sized!(bw_mr_info {});
    // SAFETY: valid handles; the memory stays until the end.
    unsafe {
        let start = memory.as_mut_ptr();
        let mr = made(|mr| bw_mr_create(world.pd, start.cast(), 32, ALL_ACCESS, mr));
        ok(bw_mr_query(mr, &mut info));
        assert_eq!((info.addr, info.length), (start.addr() as u64, 32));
        assert_eq!((info.access, info.lkey != 0), (ALL_ACCESS, true));
        let sge = bw_sge {
            addr: info.addr,
            length: 8,
            lkey: info.lkey,
        };
        let (addr, rkey) = (b.memory.addr, b.memory.rkey);
        ok(bw_post_write(a.qp, 1, &sge, addr, rkey, SIGNALED));
        ok(bw_ring_sq(a.qp));
        a.succeeded(1);
        assert_eq!(b.bytes(0, 8), 7u64.to_ne_bytes());
        // The keys are invalidated.
        ok(bw_mr_destroy(mr));
        ok(bw_post_write(a.qp, 2, &sge, addr, rkey, SIGNALED));
        ok(bw_ring_sq(a.qp));
        assert_eq!(a.wait().status, BW_WC_LOC_PROT_ERR as u32);

        let attr = sized!(bw_region_attr {
            length: 5000,
            pages: bw_pages::BW_PAGES_BASE as u32,
        });
        let region = made(|region| bw_region_create(world.pd, &attr, region));
        let mut info = sized!(bw_region_info {});
        ok(bw_region_query(region, &mut info));
        assert_eq!(info.pages, bw_pages::BW_PAGES_BASE as u32);
        assert_eq!(info.length, 5000u64.next_multiple_of(info.page_size));
        assert!(info.addr.is_multiple_of(info.page_size));
        let text = CStr::from_ptr(info.text.as_ptr()).to_str().unwrap();
        assert!(text.contains("base page"), "{text}");
        ok(bw_region_destroy(region));
    }
    world.destroy();
}

#[test]
fn a_completion_queue_shows_how_it_stands() {
    let world = World::new(&sized!(bw_soft_config {}));
    let mut info = sized!(bw_cq_info {});
    // SAFETY: valid handles.
    ok(unsafe { bw_cq_query(world.a.cq, &mut info) });
    assert!(info.entries.is_power_of_two() && info.unreserved < info.entries);
    assert_eq!((info.overrun, info.stale), (0, 0));
    world.destroy();
}

#[test]
fn devices_are_listed_and_opened_by_name() {
    let mut info = sized!(bw_device_info {});
    let mut names = Vec::new();
    // SAFETY: valid structs and handles.
    unsafe {
        while bw_device_at(names.len() as u32, &mut info) == BW_OK as c_int {
            names.push(CStr::from_ptr(info.name.as_ptr()).to_owned());
            let device = made(|device| bw_device_open(info.name.as_ptr(), device));
            let mut again = sized!(bw_device_info {});
            ok(bw_device_query(device, &mut again));
            assert_eq!((again.name, again.max_qp), (info.name, info.max_qp));
            assert!(again.max_qp > 0 && again.max_msg_sz > 0);
            ok(bw_device_close(device));
        }
        fails(bw_device_at(names.len() as u32, &mut info), BW_ENODEV);
        let why = CStr::from_ptr(bw_last_error()).to_str().unwrap();
        let has_others = names.len() > 1;
        assert!(
            has_others || why.contains(": there are 1; verbs: "),
            "{why}"
        );

        let text = |device| CStr::from_ptr(bw_device_choice(device)).to_str().unwrap();
        let auto = made(|device| bw_device_open(c"auto".as_ptr(), device));
        let choice = text(auto);
        assert!(
            has_others || choice.starts_with("there is no other device"),
            "{choice}"
        );
        assert!(choice.contains("an active port"), "{choice}");
        ok(bw_device_close(auto));
        let named = made(|device| bw_device_open(c"soft".as_ptr(), device));
        assert_eq!(text(named), "");
        ok(bw_device_close(named));
        assert_eq!(text(null_mut()), "");
    }
    assert!(names.contains(&c"soft".to_owned()));
}
