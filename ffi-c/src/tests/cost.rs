//! The data path allocates nothing.

use super::*;
use crate::ah::*;
use crate::code::*;
use crate::direct::*;
use crate::link::life::*;
use crate::link::outcome::*;
use crate::link::post::*;
use crate::link::*;
use crate::modify::*;
use crate::number::bw_qp_type;
use crate::number::bw_send_flags::BW_SEND_SIGNALED;
use crate::number::bw_wr_opcode::{BW_WR_RDMA_WRITE, BW_WR_SEND};
use crate::slab::*;
use crate::srq::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count for each thread.
struct Counting;

fn count() {
    // While a thread exits its allocations are no longer counted.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(call: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    call();
    ALLOCATIONS.get() - before
}

#[test]
fn the_data_path_allocates_nothing() {
    assert_eq!(allocations(|| drop(Box::new(1))), 2, "the count counts");
    let world = World::plain();
    let (a, b) = (&world.a, &world.b);
    let (addr, rkey) = (b.memory.addr, b.memory.rkey);
    let signaled = BW_SEND_SIGNALED as u32;
    let sge = a.sge(0, 8);
    let place = b.sge(0, 8);
    let wr = bw_send_wr {
        wr_id: 5,
        sg_list: &sge,
        num_sge: 1,
        opcode: BW_WR_RDMA_WRITE as u32,
        send_flags: signaled,
        remote_addr: addr,
        rkey,
        ..NOP
    };
    let data = [0u8; 8];
    let data = data.as_ptr().cast();
    let mut wcs = [bw_wc::default(); 4];
    let mut polled = 0;
    let made = allocations(|| {
        for _ in 0..1000 {
            // SAFETY: valid handles and memory.
            unsafe {
                bw_post_recv_one(b.qp, 1, &place);
                bw_ring_rq(b.qp);
                bw_post_write_inline(a.qp, 2, data, 8, addr, rkey, 0);
                bw_post_write(a.qp, 3, &sge, addr, rkey, 0);
                bw_post_send_one(a.qp, 4, &sge, 0);
                bw_ring_sq(a.qp);
                bw_post_send(a.qp, &wr, 1, null_mut());
                polled += bw_poll(a.cq, wcs.as_mut_ptr(), 4);
                polled += bw_poll_one(b.cq, wcs.as_mut_ptr());
                // A refused post, and a poll that finds nothing.
                bw_post_send_inline(a.qp, 1, null(), 8, 0);
                bw_poll_one(b.cq, wcs.as_mut_ptr());
            }
        }
    });
    assert_eq!((polled, made), (2000, 0));
    world.destroy();
}

/// Slabs allocate nothing either, whether or not a block is free.
#[test]
fn slabs_allocate_nothing() {
    let world = World::plain();
    let class = bw_slab_class {
        length: 64,
        count: 1,
    };
    let mut refused = 0;
    // SAFETY: valid handles and structs.
    unsafe {
        let slab = made(|slab| bw_slab_create(world.a.region, &class, 1, slab));
        let made = allocations(|| {
            let (mut block, mut none) = Default::default();
            for _ in 0..1000 {
                ok(bw_slab_take(slab, 64, &mut block));
                refused += bw_slab_take(slab, 64, &mut none);
                refused += bw_slab_take(slab, 65, &mut none);
                ok(bw_slab_return(slab, &block));
                refused += bw_slab_return(slab, &block);
                refused += bw_slab_return(slab, &none);
            }
        });
        let codes = [BW_ENOBLOCK, BW_EINVAL, BW_ERETURNED, BW_EFOREIGN];
        let sum: c_int = codes.iter().map(|code| *code as c_int).sum();
        assert_eq!((refused, made), (1000 * sum, 0));
        ok(bw_slab_destroy(slab));
    }
    world.destroy();
}

/// Links allocate nothing either, while nothing fails.
#[test]
fn links_allocate_nothing() {
    let world = World::plain();
    let (mut a, mut b) = (null_mut(), null_mut());
    let (addr, rkey) = (world.b.memory.addr, world.b.memory.rkey);
    let (sge, place) = (world.a.sge(0, 8), world.b.sge(64, 8));
    let wr = bw_send_wr {
        wr_id: 5,
        sg_list: &sge,
        num_sge: 1,
        opcode: BW_WR_RDMA_WRITE as u32,
        send_flags: BW_SEND_SIGNALED as u32,
        remote_addr: addr,
        rkey,
        ..NOP
    };
    let data = [0u8; 8];
    let data = data.as_ptr().cast();
    let mut outcomes = [bw_link_wc::default(); 4];
    let to = outcomes.as_mut_ptr();
    // SAFETY: valid handles and memory.
    unsafe {
        ok(bw_link_create_pair(
            world.pd,
            null(),
            &mut a,
            world.pd,
            null(),
            &mut b,
        ));
        let ready = |link| bw_link_get_state(link) == bw_link_state::BW_LINK_READY as c_int;
        while !(ready(a) && ready(b)) {
            ok(bw_link_poll(a, to, 4));
            ok(bw_link_poll(b, to, 4));
        }
    }
    let mut polled = 0;
    let made = allocations(|| {
        for _ in 0..1000 {
            // SAFETY: valid handles and memory.
            unsafe {
                bw_link_post_recv_one(b, 1, &place);
                bw_link_ring_rq(b);
                bw_link_post_write_inline(a, 2, data, 8, addr, rkey, 0, 1);
                bw_link_post_write(a, 3, &sge, addr, rkey, 0, 2);
                bw_link_post_send_one(a, 4, &sge, 0, 0);
                bw_link_ring_sq(a);
                bw_link_post_send(a, &wr, 1, 2, null_mut());
                polled += bw_link_poll(a, to, 4);
                polled += bw_link_poll(b, to, 4);
            }
        }
    });
    assert_eq!((polled, made), (2000, 0));
    // SAFETY: valid handles, which nothing uses any more.
    unsafe {
        ok(bw_link_destroy(a));
        ok(bw_link_destroy(b));
    }
    world.destroy();
}

/// Other transports and shared receive queues allocate nothing either.
#[test]
fn datagrams_and_shared_queues_allocate_nothing() {
    let world = World::plain();
    let init = sized!(bw_qp_init_attr {
        qp_type: bw_qp_type::BW_QPT_UD as u32
    });
    let path = bw_ah_attr {
        dlid: 1,
        port_num: 1,
        ..Default::default()
    };
    let mut attr = sized!(bw_qp_attr {});
    let mut wcs = [bw_wc::default(); 4];
    let mut polled = 0;
    // SAFETY: valid handles, structs and memory.
    unsafe {
        let srq = made(|srq| bw_srq_create(world.pd, null(), srq));
        let on_srq = bw_qp_init_attr { srq, ..init };
        let a = End::new(world.device, world.pd, &init);
        let b = End::new(world.device, world.pd, &on_srq);
        for end in [&a, &b] {
            ok(bw_qp_init(end.qp, null()));
            ok(bw_qp_start(end.qp, null()));
        }
        let ah = made(|ah| bw_ah_create(world.pd, &path, ah));
        ok(bw_qp_query(b.qp, &mut attr));
        let (sge, place) = (a.sge(0, 8), b.sge(0, 64));
        let send = bw_send_wr {
            sg_list: &sge,
            num_sge: 1,
            opcode: BW_WR_SEND as u32,
            send_flags: BW_SEND_SIGNALED as u32,
            ah,
            remote_qpn: attr.qp_num,
            remote_qkey: bw_connect_attr::default().qkey,
            ..NOP
        };
        let recv = bw_recv_wr {
            wr_id: 1,
            sg_list: &place,
            num_sge: 1,
            reserved: 0,
        };
        let made = allocations(|| {
            for _ in 0..1000 {
                bw_post_srq_recv(srq, &recv, 1, null_mut());
                bw_post_send(a.qp, &send, 1, null_mut());
                polled += bw_poll(a.cq, wcs.as_mut_ptr(), 4);
                polled += bw_poll_one(b.cq, wcs.as_mut_ptr());
            }
        });
        assert_eq!((polled, made), (2000, 0));
        ok(bw_ah_destroy(ah));
        a.destroy();
        b.destroy();
        ok(bw_srq_destroy(srq, None, null_mut()));
    }
    world.destroy();
}
