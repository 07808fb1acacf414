//! The data path allocates nothing.

use super::*;
use crate::direct::*;
use crate::number::bw_send_flags::BW_SEND_SIGNALED;
use crate::number::bw_wr_opcode::BW_WR_RDMA_WRITE;
use crate::post::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count for each thread.
struct Counting;

fn count() {
    // At the end of a thread nobody counts any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
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
    let mut told = 0;
    let made = allocations(|| {
        for _ in 0..1000 {
            // SAFETY: good handles and memory.
            unsafe {
                bw_post_recv_one(b.qp, 1, &place);
                bw_ring_rq(b.qp);
                bw_post_write_inline(a.qp, 2, data, 8, addr, rkey, 0);
                bw_post_write(a.qp, 3, &sge, addr, rkey, 0);
                bw_post_send_one(a.qp, 4, &sge, 0);
                bw_ring_sq(a.qp);
                bw_post_send(a.qp, &wr, 1, null_mut());
                told += bw_poll(a.cq, wcs.as_mut_ptr(), 4);
                told += bw_poll_one(b.cq, wcs.as_mut_ptr());
                // Refused, and none there.
                bw_post_send_inline(a.qp, 1, null(), 8, 0);
                bw_poll_one(b.cq, wcs.as_mut_ptr());
            }
        }
    });
    assert_eq!((told, made), (2000, 0));
    world.destroy();
}
