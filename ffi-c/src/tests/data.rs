//! Posted requests arrive, and are reported.

use super::*;
use crate::code::*;
use crate::direct::*;
use crate::fault_number::bw_wc_status::*;
use crate::modify::*;
use crate::number::bw_wr_opcode::*;
use crate::number::{bw_qp_state::*, bw_send_flags::*, bw_wc_flags::*, bw_wc_opcode::*};
use std::ffi::c_void;

const SIGNALED: u32 = BW_SEND_SIGNALED as u32;

fn wr(wr_id: u64, opcode: crate::number::bw_wr_opcode, sges: &[bw_sge]) -> bw_send_wr {
    bw_send_wr {
        wr_id,
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as u32,
        opcode: opcode as u32,
        send_flags: SIGNALED,
        ..NOP
    }
}

/// Sets the request's target: the peer's memory at `offset`.
fn to(wr: bw_send_wr, peer: &End, offset: u64) -> bw_send_wr {
    bw_send_wr {
        remote_addr: peer.memory.addr + offset,
        rkey: peer.memory.rkey,
        ..wr
    }
}

#[track_caller]
fn send(end: &End, wr: &bw_send_wr) {
    // SAFETY: a valid handle and request, whose memory stays.
    ok(unsafe { bw_post_send(end.qp, wr, 1, null_mut()) });
}

fn receive(end: &End, wr_id: u64, sges: &[bw_sge]) {
    let wr = bw_recv_wr {
        wr_id,
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as u32,
        reserved: 0,
    };
    // SAFETY: a valid handle and request, whose memory stays.
    ok(unsafe { bw_post_recv(end.qp, &wr, 1, null_mut()) });
}

fn every_operation(config: &bw_soft_config) {
    let world = World::connected(config, &sized!(bw_connect_attr {}));
    let (a, b) = (&world.a, &world.b);
    a.put(0, b"from a");
    b.put(512, &7u64.to_ne_bytes());

    send(a, &to(wr(1, BW_WR_RDMA_WRITE, &[a.sge(0, 6)]), b, 64));
    let wc = a.succeeded(1);
    let (op, len, flags) = (wc.opcode, wc.byte_len, wc.wc_flags);
    assert_eq!((op, len, flags), (BW_WC_RDMA_WRITE as u32, 0, 0));
    // SAFETY: a valid handle.
    assert_eq!((wc.qp_num, wc.retired), (qp_num(a), 1));
    assert_eq!(b.bytes(64, 6), b"from a");

    receive(b, 20, &[b.sge(1024, 4), b.sge(2048, 100)]);
    let imm_data = 0x0102_0304u32.to_be();
    let with_imm = wr(2, BW_WR_SEND_WITH_IMM, &[a.sge(0, 2), a.sge(2, 4)]);
    send(
        a,
        &bw_send_wr {
            imm_data,
            ..with_imm
        },
    );
    assert_eq!(a.succeeded(2).opcode, BW_WC_SEND as u32);
    let wc = b.succeeded(20);
    assert_eq!((wc.opcode, wc.byte_len), (BW_WC_RECV as u32, 6));
    assert_eq!(
        (wc.wc_flags, wc.imm_data),
        (BW_WC_WITH_IMM as u32, imm_data)
    );
    assert_eq!(
        (b.bytes(1024, 4), b.bytes(2048, 2)),
        (b"from".to_vec(), b" a".to_vec())
    );

    receive(b, 21, &[b.sge(1024, 4)]);
    send(a, &wr(3, BW_WR_SEND, &[]));
    a.succeeded(3);
    let wc = b.succeeded(21);
    assert_eq!((wc.byte_len, wc.wc_flags, wc.imm_data), (0, 0, 0));

    receive(b, 22, &[]);
    let write = wr(4, BW_WR_RDMA_WRITE_WITH_IMM, &[a.sge(0, 6)]);
    send(a, &to(bw_send_wr { imm_data, ..write }, b, 128));
    a.succeeded(4);
    let wc = b.succeeded(22);
    let expected = (BW_WC_RECV_RDMA_WITH_IMM as u32, 6, imm_data);
    assert_eq!((wc.opcode, wc.byte_len, wc.imm_data), expected);
    assert_eq!(b.bytes(128, 6), b"from a");

    send(
        a,
        &to(
            wr(5, BW_WR_RDMA_READ, &[a.sge(256, 3), a.sge(300, 3)]),
            b,
            128,
        ),
    );
    let wc = a.succeeded(5);
    assert_eq!((wc.opcode, wc.byte_len), (BW_WC_RDMA_READ as u32, 6));
    assert_eq!(
        (a.bytes(256, 3), a.bytes(300, 3)),
        (b"fro".to_vec(), b"m a".to_vec())
    );

    let add = wr(6, BW_WR_ATOMIC_FETCH_AND_ADD, &[a.sge(600, 8)]);
    let compare_add = 5;
    send(a, &to(bw_send_wr { compare_add, ..add }, b, 512));
    assert_eq!(a.succeeded(6).opcode, BW_WC_FETCH_ADD as u32);
    let swap = wr(7, BW_WR_ATOMIC_CMP_AND_SWP, &[a.sge(608, 8)]);
    let swap = bw_send_wr {
        compare_add: 12,
        swap: 99,
        ..swap
    };
    send(a, &to(swap, b, 512));
    let wc = a.succeeded(7);
    assert_eq!((wc.opcode, wc.byte_len), (BW_WC_COMP_SWAP as u32, 8));
    let words: Vec<u8> = [7u64, 12].map(u64::to_ne_bytes).concat();
    assert_eq!(a.bytes(600, 16), words);
    assert_eq!(b.bytes(512, 8), 99u64.to_ne_bytes());

    send(a, &wr(8, BW_WR_NOP, &[]));
    assert_eq!(a.succeeded(8).opcode, BW_WC_NOP as u32);
    assert_eq!((a.poll(), b.poll()), (None, None));
    world.destroy();
}

fn qp_num(end: &End) -> u32 {
    let mut info = sized!(bw_qp_attr {});
    // SAFETY: a valid handle.
    ok(unsafe { bw_qp_query(end.qp, &mut info) });
    info.qp_num
}

#[test]
fn every_operation_inline() {
    every_operation(&sized!(bw_soft_config {}));
}

#[test]
fn every_operation_in_an_engine() {
    every_operation(&sized!(bw_soft_config {
        mode: bw_soft_mode::BW_SOFT_ENGINE as u32,
        threads: 2,
    }));
}

#[test]
fn direct_calls_do_the_same() {
    let world = World::plain();
    let (a, b) = (&world.a, &world.b);
    let (addr, rkey) = (b.memory.addr, b.memory.rkey);
    a.put(0, b"memory");
    let inline = b"inline";
    // SAFETY: valid handles and memory.
    unsafe {
        let data = inline.as_ptr().cast::<c_void>();
        ok(bw_post_write_inline(a.qp, 1, data, 6, addr, rkey, 0));
        ok(bw_post_write(a.qp, 2, &a.sge(0, 6), addr + 8, rkey, 0));
        ok(bw_post_read(a.qp, 3, &a.sge(64, 14), addr, rkey, SIGNALED));
        ok(bw_post_recv_one(b.qp, 4, &b.sge(100, 20)));
        ok(bw_post_recv_one(b.qp, 5, &b.sge(200, 20)));
        ok(bw_ring_rq(b.qp));
        ok(bw_post_send_inline(a.qp, 6, data, 6, 0));
        ok(bw_post_send_one(a.qp, 7, &a.sge(0, 6), SIGNALED));
        assert_eq!(a.poll(), None, "nothing is sent before the ring");
        ok(bw_ring_sq(a.qp));
    }
    assert_eq!(a.succeeded(3).retired, 3);
    assert_eq!(a.succeeded(7).retired, 2);
    assert_eq!(a.bytes(64, 14), b"inline\0\0memory");
    b.succeeded(4);
    b.succeeded(5);
    assert_eq!(
        (b.bytes(100, 6), b.bytes(200, 6)),
        (b"inline".to_vec(), b"memory".to_vec())
    );
    world.destroy();
}

#[test]
fn inline_lists_are_put_together() {
    let world = World::plain();
    let (a, b) = (&world.a, &world.b);
    let element = |bytes: &[u8]| bw_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: bytes.len() as u32,
        lkey: 0,
    };
    let nothing = bw_sge::default();
    let list = [
        element(b"not "),
        nothing,
        element(b"registered"),
        element(b"!"),
    ];
    let mut inline = to(wr(1, BW_WR_RDMA_WRITE, &list), b, 0);
    inline.send_flags |= BW_SEND_INLINE as u32;
    send(a, &inline);
    a.succeeded(1);
    assert_eq!(b.bytes(0, 16), b"not registered!\0");
    world.destroy();
}

#[test]
fn a_list_is_posted_up_to_the_bad_one() {
    let world = World::plain();
    let (a, b) = (&world.a, &world.b);
    let too_many = [a.sge(0, 1); 5];
    let list = [
        wr(1, BW_WR_NOP, &[]),
        wr(2, BW_WR_SEND, &too_many),
        wr(3, BW_WR_NOP, &[]),
    ];
    let recvs = [1, 5, 1].map(|num_sge| bw_recv_wr {
        wr_id: num_sge.into(),
        sg_list: too_many.as_ptr(),
        num_sge,
        reserved: 0,
    });
    let (mut bad_send, mut bad_recv) = (null(), null());
    // SAFETY: valid handles and lists.
    unsafe {
        let code = bw_post_send(a.qp, list.as_ptr(), 3, &mut bad_send);
        fails(code, BW_ETOOMANYSGE);
        assert!(std::ptr::eq(bad_send, &list[1]));
        // The doorbell was rung, so an inline device has executed it.
        a.succeeded(1);
        assert_eq!(a.poll(), None);
        // With no requests nothing is read.
        ok(bw_post_send(a.qp, null(), 0, &mut bad_send));
        ok(bw_post_recv(b.qp, null(), 0, &mut bad_recv));

        let code = bw_post_recv(b.qp, recvs.as_ptr(), 3, &mut bad_recv);
        fails(code, BW_ETOOMANYSGE);
        assert!(std::ptr::eq(bad_recv, &recvs[1]));
        ok(bw_qp_to_error(b.qp));
    }
    assert_eq!(b.wait().wr_id, 1);
    assert_eq!(b.poll(), None);
    world.destroy();
}

#[test]
fn poll_takes_up_to_what_it_is_asked_for() {
    let world = World::plain();
    let a = &world.a;
    let mut wcs = [bw_wc::default(); 8];
    // SAFETY: valid handles, and enough room for results.
    unsafe {
        for n in 0..5 {
            ok(bw_post_send(a.qp, &wr(n, BW_WR_NOP, &[]), 1, null_mut()));
        }
        ok(bw_ring_sq(a.qp));
        assert_eq!(bw_poll(a.cq, wcs.as_mut_ptr(), 0), 0);
        assert_eq!(bw_poll(a.cq, wcs.as_mut_ptr(), -3), 0);
        assert_eq!(bw_poll(a.cq, wcs.as_mut_ptr(), 3), 3);
        assert_eq!(bw_poll(a.cq, wcs[3..].as_mut_ptr(), 5), 2);
        assert_eq!(bw_poll(a.cq, wcs.as_mut_ptr(), 8), 0);
    }
    let ids: Vec<u64> = wcs[..5].iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
    assert_eq!(wcs[5], bw_wc::default());
    world.destroy();
}

#[test]
fn a_failure_has_the_fields_that_the_verbs_define() {
    let world = World::plain();
    let (a, b) = (&world.a, &world.b);
    let mut unsignalled = wr(1, BW_WR_NOP, &[]);
    unsignalled.send_flags = 0;
    send(a, &unsignalled);
    let beyond = to(wr(2, BW_WR_RDMA_WRITE, &[a.sge(0, 6)]), b, 1 << 16);
    send(a, &beyond);
    let wc = a.wait();
    let expected = bw_wc {
        wr_id: 2,
        status: BW_WC_REM_ACCESS_ERR as u32,
        qp_num: qp_num(a),
        vendor_err: wc.vendor_err,
        retired: 2,
        ..bw_wc::default()
    };
    assert_eq!(wc, expected);
    assert_eq!(a.state(), BW_QPS_ERR as c_int);
    // Posting succeeds until the state is queried; such requests are flushed.
    send(a, &wr(3, BW_WR_NOP, &[]));
    let wc = a.wait();
    assert_eq!((wc.wr_id, wc.status), (3, BW_WC_WR_FLUSH_ERR as u32));
    world.destroy();
}

#[test]
fn two_threads_own_the_two_queues() {
    const COUNT: u64 = 2000;
    struct Owned<T>(T);
    // SAFETY: the tests hand queues over by spawning and joining threads.
    unsafe impl<T> Send for Owned<T> {}
    let world = World::plain();
    let (a, b) = (&world.a, &world.b);
    std::thread::scope(|scope| {
        // b's receive queue and completion queue, which another thread owns than b's send queue.
        let receiver = Owned((b.qp, b.cq, b.sge(0, 8)));
        scope.spawn(move || {
            let receiver = receiver;
            let (qp, cq, sge) = receiver.0;
            let mut wc = bw_wc::default();
            let (mut got, mut sent) = (0, 0);
            // SAFETY: valid handles; this thread owns the receive and the completion queue.
            unsafe {
                for n in 0..64 {
                    ok(bw_post_recv_one(qp, n, &sge));
                }
                ok(bw_ring_rq(qp));
                // Until both are complete: only polling frees entries of the send queue.
                while got < COUNT || sent < COUNT {
                    if bw_poll_one(cq, &mut wc) == 0 {
                        continue;
                    }
                    assert_eq!(wc.status, BW_WC_SUCCESS as u32);
                    if wc.opcode == BW_WC_RECV as u32 {
                        got += 1;
                        ok(bw_post_recv_one(qp, got, &sge));
                        ok(bw_ring_rq(qp));
                    } else {
                        sent += 1;
                    }
                }
            }
        });
        let sender = Owned(b.qp);
        scope.spawn(move || {
            let sender = sender;
            let nop = wr(1, BW_WR_NOP, &[]);
            let mut left = COUNT;
            // SAFETY: valid handles; this thread owns the send queue.
            unsafe {
                while left > 0 {
                    let code = bw_post_send(sender.0, &nop, 1, null_mut());
                    if code == BW_EFULL as c_int {
                        std::thread::yield_now();
                        continue;
                    }
                    ok(code);
                    ok(bw_ring_sq(sender.0));
                    left -= 1;
                }
            }
        });
        for n in 0..COUNT {
            // SAFETY: valid handles; this thread owns all of `a`.
            unsafe {
                ok(bw_post_send_inline(
                    a.qp,
                    n,
                    [0u8; 8].as_ptr().cast(),
                    8,
                    SIGNALED,
                ));
                ok(bw_ring_sq(a.qp));
            }
            a.succeeded(n);
        }
    });
    world.destroy();
}

/// A flushed request has a completion only if it is signalled, or the last that was rung.
#[test]
fn flushed_requests_need_no_completions() {
    let init = sized!(bw_qp_init_attr { suppress_flush: 1 });
    let world = World::of(&sized!(bw_soft_config {}), &init);
    let attr = sized!(bw_connect_attr {});
    let (a, b) = (&world.a, &world.b);
    a.connect(b, &attr);
    b.connect(a, &attr);
    let (addr, rkey) = (b.memory.addr, b.memory.rkey);
    let data = b"inline".as_ptr().cast::<c_void>();
    // SAFETY: valid handles and memory.
    unsafe {
        // The first has an rkey that does not exist.
        ok(bw_post_write_inline(a.qp, 1, data, 6, addr, !rkey, 0));
        ok(bw_post_write_inline(a.qp, 2, data, 6, addr, rkey, 0));
        ok(bw_post_write_inline(a.qp, 3, data, 6, addr, rkey, SIGNALED));
        ok(bw_post_write_inline(a.qp, 4, data, 6, addr, rkey, 0));
        ok(bw_post_write_inline(a.qp, 5, data, 6, addr, rkey, 0));
        ok(bw_ring_sq(a.qp));
    }
    let wcs = [(); 3].map(|()| a.wait());
    assert_eq!(
        wcs.map(|wc| (wc.wr_id, wc.status, wc.retired)),
        [
            (1, BW_WC_REM_ACCESS_ERR as u32, 1),
            (3, BW_WC_WR_FLUSH_ERR as u32, 2),
            (5, BW_WC_WR_FLUSH_ERR as u32, 2),
        ]
    );
    assert_eq!(a.poll(), None);
    world.destroy();
}
