//! Invalid arguments: each gets its code and a text that says what to do, and changes nothing.

use super::*;
use crate::code::*;
use crate::direct::*;
use crate::failure::{Failure, guard};
use crate::modify::*;
use crate::number::{bw_qp_state::*, bw_send_flags::*, bw_wr_opcode::*};
use crate::version::*;
use std::collections::HashSet;

const SIGNALED: u32 = BW_SEND_SIGNALED as u32;

#[test]
fn null_is_refused() {
    let world = World::plain();
    let (a, device, pd) = (&world.a, world.device, world.pd);
    let null_of = BW_ENULL as c_int;
    let mut wc = bw_wc::default();
    let mut bytes = [0u64; 2];
    let start = bytes.as_mut_ptr().cast();
    let sge = a.sge(0, 8);
    let cq_attr = sized!(bw_cq_attr { entries: 8 });
    let region_attr = sized!(bw_region_attr { length: 8 });
    let mut out = 0u32;
    // SAFETY: every pointer is NULL or valid.
    let codes = unsafe {
        [
            bw_device_at(0, null_mut()),
            bw_device_open(null(), &mut null_mut()),
            bw_device_open(c"soft".as_ptr(), null_mut()),
            bw_device_open_soft(null(), null_mut()),
            bw_device_query(null(), &mut sized!(bw_device_info {})),
            bw_device_query(device, null_mut()),
            bw_device_progress(null()),
            bw_device_advance(null(), 1),
            bw_device_close(null_mut()),
            bw_pd_create(null(), &mut null_mut()),
            bw_pd_create(device, null_mut()),
            bw_pd_destroy(null_mut()),
            bw_mr_create(null(), start, 16, 0, &mut null_mut()),
            bw_mr_create(pd, null_mut(), 16, 0, &mut null_mut()),
            bw_mr_create(pd, start, 16, 0, null_mut()),
            bw_mr_query(null(), &mut sized!(bw_mr_info {})),
            bw_mr_destroy(null_mut()),
            bw_region_create(null(), &region_attr, &mut null_mut()),
            bw_region_create(pd, null(), &mut null_mut()),
            bw_region_create(pd, &region_attr, null_mut()),
            bw_region_attr_default(null_mut(), 32),
            bw_region_query(null(), &mut sized!(bw_region_info {})),
            bw_region_query(a.region, null_mut()),
            bw_region_destroy(null_mut()),
            bw_cq_create(null(), &cq_attr, &mut null_mut()),
            bw_cq_create(device, null(), &mut null_mut()),
            bw_cq_create(device, &cq_attr, null_mut()),
            bw_cq_query(null(), &mut sized!(bw_cq_info {})),
            bw_cq_query(a.cq, null_mut()),
            bw_cq_destroy(null_mut()),
            bw_qp_cq_entries(null(), null_mut(), &mut out),
            bw_qp_create(null(), a.cq, a.cq, null(), &mut null_mut()),
            bw_qp_create(pd, null_mut(), a.cq, null(), &mut null_mut()),
            bw_qp_create(pd, a.cq, null_mut(), null(), &mut null_mut()),
            bw_qp_create(pd, null_mut(), null_mut(), null(), &mut null_mut()),
            bw_qp_create(pd, a.cq, a.cq, null(), null_mut()),
            bw_qp_endpoint(null_mut(), &mut sized!(bw_endpoint {})),
            bw_qp_endpoint(a.qp, null_mut()),
            bw_qp_init(null_mut(), null()),
            bw_qp_connect(null_mut(), &sized!(bw_endpoint {}), null()),
            bw_qp_connect(a.qp, null(), null()),
            bw_qp_to_error(null_mut()),
            bw_qp_reset(null_mut(), None, null_mut()),
            bw_qp_get_state(null_mut()),
            bw_qp_query(null_mut(), &mut sized!(bw_qp_attr {})),
            bw_qp_query(a.qp, null_mut()),
            bw_qp_destroy(null_mut()),
            bw_post_send(null_mut(), &nop(), 1, null_mut()),
            bw_post_send(a.qp, null(), 1, null_mut()),
            bw_post_recv(a.qp, null(), 1, null_mut()),
            bw_post_write(null_mut(), 1, &sge, 0, 0, 0),
            bw_post_write(a.qp, 1, null(), 0, 0, 0),
            bw_post_read(a.qp, 1, null(), 0, 0, 0),
            bw_post_write_inline(null_mut(), 1, start, 8, 0, 0, 0),
            bw_post_write_inline(a.qp, 1, null(), 8, 0, 0, 0),
            bw_post_send_one(a.qp, 1, null(), 0),
            bw_post_send_inline(a.qp, 1, null(), 8, 0),
            bw_post_recv_one(null_mut(), 1, &sge),
            bw_post_recv_one(a.qp, 1, null()),
            bw_ring_sq(null_mut()),
            bw_ring_rq(null_mut()),
            bw_poll_one(null_mut(), &mut wc),
            bw_poll_one(a.cq, null_mut()),
            bw_poll(null_mut(), &mut wc, 1),
            bw_poll(a.cq, null_mut(), 1),
        ]
    };
    for (at, code) in codes.into_iter().enumerate() {
        assert_eq!(code, null_of, "call {at}");
    }
    // No request reached the queues.
    assert_eq!((a.poll(), a.state()), (None, BW_QPS_RTS as c_int));
    world.destroy();
}

fn nop() -> bw_send_wr {
    bw_send_wr {
        wr_id: 1,
        send_flags: SIGNALED,
        ..NOP
    }
}

#[test]
fn bad_requests_are_refused_one_by_one() {
    let world = World::plain();
    let (a, b) = (&world.a, &world.b);
    let sges = [a.sge(0, 8); 5];
    let long = [bw_sge {
        length: 1 << 31,
        ..sges[0]
    }];
    let nowhere = [bw_sge { addr: 0, ..sges[0] }];
    let list = |opcode: u32, sges: &[bw_sge], send_flags: u32| bw_send_wr {
        opcode,
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as u32,
        send_flags,
        ..nop()
    };
    let (send, read) = (BW_WR_SEND as u32, BW_WR_RDMA_READ as u32);
    let inline = BW_SEND_INLINE as u32;
    let without_list = bw_send_wr {
        num_sge: 1,
        opcode: send,
        ..nop()
    };
    let bad = [
        (list(send, &sges, 0), BW_ETOOMANYSGE),
        (list(send, &sges, inline), BW_ETOOMANYSGE),
        (list(send, &long, 0), BW_ESGELENGTH),
        (list(send, &nowhere, inline), BW_ENULL),
        (without_list, BW_ENULL),
        (list(send, &sges[..1], 16), BW_EINVAL),
        (list(send, &sges[..1], 1 << 31), BW_EINVAL),
        (list(send, &sges[..1], 256), BW_EINVAL),
        (list(read, &sges[..1], inline), BW_EINVAL),
        (
            list(BW_WR_ATOMIC_FETCH_AND_ADD as u32, &sges[..1], inline),
            BW_EINVAL,
        ),
        (list(BW_WR_NOP as u32, &sges[..1], 0), BW_EINVAL),
        (list(BW_WR_LOCAL_INV as u32, &[], inline), BW_EINVAL),
        (list(BW_WR_BIND_MW as u32, &[], 0), BW_ENULL),
        (list(BW_WR_BIND_MW as u32, &sges[..1], 0), BW_EINVAL),
        // TSO, DRIVER1, an unknown opcode, and SEND with a bit above the lowest eight.
        (list(10, &[], 0), BW_EOPCODE),
        (list(11, &[], 0), BW_EOPCODE),
        (list(u32::MAX, &[], 0), BW_EOPCODE),
        (list(256 + send, &[], 0), BW_EOPCODE),
    ];
    // SAFETY: valid handles; the arrays are NULL or as long as they say.
    unsafe {
        for (at, (wr, code)) in bad.iter().enumerate() {
            let mut refused = null();
            let got = bw_post_send(a.qp, wr, 1, &mut refused);
            assert_eq!(
                (got, refused),
                (*code as c_int, &raw const *wr),
                "request {at}"
            );
        }
        let bytes = [0u8; 201];
        let data = bytes.as_ptr().cast();
        let (addr, rkey) = (b.memory.addr, b.memory.rkey);
        fails(
            bw_post_write_inline(a.qp, 1, data, 201, addr, rkey, 0),
            BW_EINLINE,
        );
        fails(bw_post_send_inline(a.qp, 1, data, 201, 0), BW_EINLINE);
        fails(bw_post_write(a.qp, 1, &sges[0], addr, rkey, 32), BW_EINVAL);
        fails(bw_post_send_one(a.qp, 1, &long[0], 0), BW_ESGELENGTH);
        fails(bw_post_recv_one(a.qp, 1, &long[0]), BW_ESGELENGTH);
        ok(bw_post_write_inline(
            a.qp, 9, data, 200, addr, rkey, SIGNALED,
        ));
        ok(bw_ring_sq(a.qp));
    }
    assert_eq!(a.succeeded(9).retired, 1, "none of the others was posted");
    world.destroy();
}

#[test]
fn a_queue_takes_what_it_holds() {
    let world = World::plain();
    let a = &world.a;
    let mut taken = 0;
    // SAFETY: valid handles.
    unsafe {
        let full = loop {
            match bw_post_send(a.qp, &nop(), 1, null_mut()) {
                0 => taken += 1,
                code => break code,
            }
        };
        fails(full, BW_EFULL);
        ok(bw_ring_sq(a.qp));
        assert!(taken >= 128);
        for _ in 0..taken {
            a.succeeded(1);
        }
        ok(bw_post_send(a.qp, &nop(), 1, null_mut()));
        for _ in 0..128 {
            ok(bw_post_recv_one(a.qp, 1, &a.sge(0, 8)));
        }
        fails(bw_post_recv_one(a.qp, 1, &a.sge(0, 8)), BW_EFULL);
    }
    world.destroy();
}

#[test]
fn states_are_kept_to() {
    let world = World::new(&sized!(bw_soft_config {}));
    let a = &world.a;
    let peer = sized!(bw_endpoint { qp_num: 77 });
    // SAFETY: valid handles and structs.
    unsafe {
        fails(bw_post_send(a.qp, &nop(), 1, null_mut()), BW_ESTATE);
        fails(bw_post_recv_one(a.qp, 1, &a.sge(0, 8)), BW_ESTATE);
        fails(bw_qp_connect(a.qp, &peer, null()), BW_ESTATE);
        assert_eq!(a.state(), BW_QPS_RESET as c_int);
        ok(bw_qp_init(a.qp, null()));
        ok(bw_post_recv_one(a.qp, 1, &a.sge(0, 8)));
        fails(bw_post_send(a.qp, &nop(), 1, null_mut()), BW_ESTATE);
        let twice = bw_qp_connect(a.qp, &peer, null());
        ok(twice);
        fails(bw_qp_init(a.qp, null()), BW_ESTATE);
        assert_eq!(a.state(), BW_QPS_RTS as c_int);
    }
    world.destroy();
}

#[test]
fn attributes_out_of_range_are_named() {
    let world = World::new(&sized!(bw_soft_config {}));
    let a = &world.a;
    let mut bad = [bw_connect_attr::default(); 11];
    bad[0].path_mtu = 6;
    bad[1].access = 1 << 30;
    bad[2].timeout = 256;
    bad[3].retry_cnt = 8;
    bad[4].rnr_retry = 300;
    bad[5].sl = 16;
    bad[6].traffic_class = 256;
    bad[7].flow_label = u32::MAX;
    bad[8].pkey_index = 1;
    bad[9].hop_limit = 256;
    bad[10].udp_sport = 1;
    let names = [
        "path_mtu",
        "access",
        "timeout",
        "retry_cnt",
        "rnr_retry",
        "sl",
        "traffic_class",
        "flow_label",
        "pkey_index",
        "hop_limit",
        "udp_sport",
    ];
    let peer = sized!(bw_endpoint { qp_num: 77 });
    // SAFETY: valid handles and structs.
    unsafe {
        for (attr, name) in bad.iter().zip(names) {
            ok(bw_qp_init(a.qp, null()));
            fails(bw_qp_connect(a.qp, &peer, attr), BW_EINVAL);
            assert!(last_error().contains(name), "{}", last_error());
            ok(bw_qp_reset(a.qp, None, null_mut()));
        }
        ok(bw_qp_init(a.qp, null()));
        let beyond = sized!(bw_endpoint { qp_num: 1 << 24 });
        fails(bw_qp_connect(a.qp, &beyond, null()), BW_EINVAL);
        let later = sized!(bw_endpoint {
            qp_num: 77,
            reserved: 1
        });
        fails(bw_qp_connect(a.qp, &later, null()), BW_EINVAL);
    }
    world.destroy();
}

#[test]
fn limits_are_reported() {
    let world = World::new(&sized!(bw_soft_config {}));
    let (device, pd, a) = (world.device, world.pd, &world.a);
    let (mut cq, mut qp) = (null_mut(), null_mut());
    let too_large = [
        sized!(bw_qp_init_attr {
            max_send_wr: u32::MAX
        }),
        sized!(bw_qp_init_attr {
            max_recv_wr: 1 << 20
        }),
        sized!(bw_qp_init_attr { max_send_sge: 31 }),
        sized!(bw_qp_init_attr {
            max_inline_data: 4096
        }),
    ];
    // SAFETY: valid handles and structs.
    unsafe {
        for (count, qps, code) in [
            (0, 0, BW_EINVAL),
            (u32::MAX, 0, BW_ELIMIT),
            (8, 65537, BW_ELIMIT),
        ] {
            let attr = sized!(bw_cq_attr {
                entries: count,
                max_qp: qps
            });
            fails(bw_cq_create(device, &attr, &mut cq), code);
            assert!(cq.is_null());
        }
        let later = sized!(bw_cq_attr {
            entries: 8,
            reserved: 1
        });
        fails(bw_cq_create(device, &later, &mut cq), BW_EINVAL);
        for init in &too_large {
            fails(bw_qp_create(pd, a.cq, a.cq, init, &mut qp), BW_ELIMIT);
            assert!(qp.is_null());
        }
        let cq = made(|cq| bw_cq_create(device, &sized!(bw_cq_attr { entries: 8 }), cq));
        qp = std::ptr::dangling_mut();
        fails(bw_qp_create(pd, cq, cq, null(), &mut qp), BW_ECQROOM);
        assert!(qp.is_null(), "the place is cleared");
        ok(bw_cq_destroy(cq));
    }
    world.destroy();
}

#[test]
fn queues_of_another_device_are_foreign() {
    let (ours, theirs) = (World::plain(), World::plain());
    let attr = sized!(bw_cq_attr { entries: 1024 });
    let mut qp = null_mut();
    // SAFETY: valid handles and structs.
    unsafe {
        let cq = made(|cq| bw_cq_create(ours.device, &attr, cq));
        let foreign = made(|cq| bw_cq_create(theirs.device, &attr, cq));
        fails(
            bw_qp_create(ours.pd, cq, foreign, null(), &mut qp),
            BW_EFOREIGN,
        );
        fails(
            bw_qp_create(ours.pd, foreign, foreign, null(), &mut qp),
            BW_EFOREIGN,
        );
        // The failed calls left neither of them in use.
        ok(bw_cq_destroy(foreign));
        ok(bw_cq_destroy(cq));
    }
    ours.destroy();
    theirs.destroy();
}

#[test]
fn memory_that_cannot_be_registered() {
    let world = World::new(&sized!(bw_soft_config {}));
    let pd = world.pd;
    let mut memory = [0u64; 4];
    let start = memory.as_mut_ptr().cast();
    let mut mr = null_mut();
    let mut region = null_mut();
    // SAFETY: valid handles; nothing is registered.
    unsafe {
        fails(bw_mr_create(pd, start, 0, 0, &mut mr), BW_EINVAL);
        fails(bw_mr_create(pd, start, usize::MAX, 0, &mut mr), BW_EINVAL);
        fails(bw_mr_create(pd, start, 32, 2, &mut mr), BW_EINVAL);
        assert!(last_error().contains("LOCAL_WRITE"), "{}", last_error());
        fails(bw_mr_create(pd, start, 32, 1 << 31, &mut mr), BW_EINVAL);
        let bad = [
            (sized!(bw_region_attr { length: 0 }), BW_EINVAL),
            (sized!(bw_region_attr { length: u64::MAX }), BW_EMEMORY),
            (
                sized!(bw_region_attr {
                    length: 8,
                    pages: 5
                }),
                BW_EINVAL,
            ),
            (
                sized!(bw_region_attr {
                    length: 8,
                    access: 2
                }),
                BW_EINVAL,
            ),
            (
                sized!(bw_region_attr {
                    length: 8,
                    numa_node: 4000
                }),
                BW_EINVAL,
            ),
        ];
        for (attr, code) in &bad {
            fails(bw_region_create(pd, attr, &mut region), *code);
        }
        assert!(mr.is_null() && region.is_null());
    }
    world.destroy();
}

#[test]
fn devices_that_cannot_be_opened() {
    let mut device = null_mut();
    let bad = [
        (sized!(bw_soft_config { mode: 2 }), BW_EINVAL),
        (sized!(bw_soft_config { clock: 2 }), BW_EINVAL),
        (sized!(bw_soft_config { threads: 65 }), BW_ELIMIT),
        (bw_soft_config::default(), BW_ESIZE),
    ];
    // SAFETY: valid structs.
    unsafe {
        fails(bw_device_open(c"mlx9_9".as_ptr(), &mut device), BW_ENODEV);
        assert!(last_error().contains("mlx9_9"), "{}", last_error());
        for (config, code) in &bad {
            fails(bw_device_open_soft(config, &mut device), *code);
        }
    }
    assert!(device.is_null());
}

#[test]
fn sizes_are_checked_at_every_struct() {
    let world = World::plain();
    let a = &world.a;
    let unset = 0;
    // SAFETY: valid handles and structs.
    unsafe {
        let mut mr = null_mut();
        ok(bw_mr_create(world.pd, a.at(0).cast(), 8, 0, &mut mr));
        for code in [
            bw_device_at(
                0,
                &mut bw_device_info {
                    size: unset,
                    ..Default::default()
                },
            ),
            bw_device_query(
                world.device,
                &mut bw_device_info {
                    size: 100,
                    ..Default::default()
                },
            ),
            bw_mr_query(mr, &mut bw_mr_info::default()),
            bw_region_query(
                a.region,
                &mut bw_region_info {
                    size: 8,
                    ..Default::default()
                },
            ),
            bw_cq_query(a.cq, &mut bw_cq_info::default()),
            bw_cq_create(world.device, &bw_cq_attr::default(), &mut null_mut()),
            bw_qp_query(a.qp, &mut bw_qp_attr::default()),
            bw_qp_endpoint(a.qp, &mut bw_endpoint::default()),
            bw_qp_connect(a.qp, &bw_endpoint::default(), null()),
            bw_qp_init(
                a.qp,
                &bw_connect_attr {
                    size: unset,
                    ..Default::default()
                },
            ),
            bw_qp_cq_entries(
                &bw_qp_init_attr {
                    size: 9,
                    ..Default::default()
                },
                &mut 0,
                &mut 0,
            ),
        ] {
            fails(code, BW_ESIZE);
            assert!(last_error().contains("sizeof"), "{}", last_error());
        }
        ok(bw_mr_destroy(mr));
    }
    world.destroy();
}

#[test]
fn every_code_has_a_text_of_its_own() {
    let text = |code| {
        // SAFETY: a static text.
        unsafe { CStr::from_ptr(bw_strerror(code)) }
            .to_str()
            .unwrap()
    };
    let texts: HashSet<&str> = bw_error::ALL
        .iter()
        .map(|code| text(*code as c_int))
        .collect();
    assert_eq!(texts.len(), bw_error::ALL.len());
    for (at, code) in bw_error::ALL.iter().enumerate() {
        // SAFETY: a static text.
        let name = unsafe { CStr::from_ptr(bw_error_name(*code as c_int)) };
        assert_eq!(name.to_str().unwrap(), format!("{code:?}"));
        assert_eq!(
            *code as c_int,
            -(at as c_int),
            "numbers are never used again"
        );
    }
    for unknown in [1, -(bw_error::ALL.len() as c_int), c_int::MIN] {
        assert_eq!(text(unknown), "not a code of this library");
    }
}

#[test]
fn each_thread_has_a_last_error_of_its_own() {
    fails(
        guard(|| Err::<(), _>(Failure::new(BW_EOTHER, "mine"))),
        BW_EOTHER,
    );
    std::thread::spawn(|| assert_eq!(last_error(), ""))
        .join()
        .unwrap();
    assert_eq!(last_error(), "mine");
    // A success leaves it unchanged; a text that is too long is cut between characters.
    ok(guard(|| Ok(())));
    assert_eq!(last_error(), "mine");
    guard(|| Err::<(), _>(Failure::new(BW_EOTHER, "µ".repeat(2000))));
    assert_eq!(last_error(), "µ".repeat(1023));
}

#[test]
fn a_panic_does_not_cross() {
    fails(
        guard(|| -> Result<(), Failure> { panic!("{} down", "all") }),
        BW_EINTERNAL,
    );
    assert!(last_error().ends_with("all down"), "{}", last_error());
    fails(
        guard(|| -> Result<(), Failure> { panic!("flat") }),
        BW_EINTERNAL,
    );
    assert!(last_error().ends_with("flat"), "{}", last_error());
}

#[test]
fn versions() {
    let parts = [BW_VERSION_MAJOR, BW_VERSION_MINOR, BW_VERSION_PATCH];
    assert_eq!(
        parts.map(|part| part.to_string()).join("."),
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(bw_version(), BW_VERSION);
    ok(bw_version_check(BW_VERSION));
    let other_minor = BW_VERSION ^ 0x200;
    for header in [BW_VERSION + 1, BW_VERSION + 0x1_0000, other_minor] {
        fails(bw_version_check(header), BW_EVERSION);
    }
    assert!(
        last_error().contains(env!("CARGO_PKG_VERSION")),
        "{}",
        last_error()
    );
}
