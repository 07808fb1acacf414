//! Registrations that only devices of libibverbs support: a software HCA refuses them. The port and the
//! GID to connect through.

use super::*;
use crate::code::*;
use crate::number::bw_rereg_mr_flags::*;
use crate::registration::*;
use std::os::fd::AsRawFd;

#[test]
fn a_software_hca_says_that_it_has_none_of_it() {
    let world = World::plain();
    let pd = world.pd;
    let mut bytes = [0_u8; 64];
    let addr = (&raw mut bytes).cast();
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: valid handles and pointers; the memory stays.
    unsafe {
        let mut none = null_mut();
        let at = bw_mr_create_iova(pd, addr, 64, 0x1000, ALL_ACCESS, &mut none);
        fails(at, BW_EUNSUPPORTED);
        assert!(
            last_error().contains("register it under its own"),
            "{}",
            last_error()
        );
        let fd = file.as_raw_fd();
        let dmabuf = bw_mr_create_dmabuf(pd, fd, 0, 64, 0, ALL_ACCESS, &mut none);
        fails(dmabuf, BW_EUNSUPPORTED);
        assert!(none.is_null());
        let mr = made(|mr| bw_mr_create(pd, addr, 64, ALL_ACCESS, mr));
        let (mut before, mut after) = (sized!(bw_mr_info {}), sized!(bw_mr_info {}));
        ok(bw_mr_query(mr, &mut before));
        let flags = BW_REREG_MR_CHANGE_ACCESS as u32;
        fails(
            bw_mr_reregister(mr, flags, null(), null_mut(), 0, 0),
            BW_EUNSUPPORTED,
        );
        ok(bw_mr_query(mr, &mut after));
        assert_eq!((before.lkey, before.access), (after.lkey, after.access));
        ok(bw_mr_destroy(mr));
    }
    world.destroy();
}

#[test]
fn what_cannot_be_is_reported_first() {
    let world = World::plain();
    let pd = world.pd;
    let mut bytes = [0_u8; 64];
    let addr = (&raw mut bytes).cast();
    let mut none = null_mut();
    // SAFETY: every pointer is NULL or valid; the memory stays.
    unsafe {
        for (code, error) in [
            (
                bw_mr_create_iova(null(), addr, 64, 0, 0, &mut none),
                BW_ENULL,
            ),
            (
                bw_mr_create_iova(pd, null_mut(), 64, 0, 0, &mut none),
                BW_ENULL,
            ),
            (bw_mr_create_iova(pd, addr, 64, 0, 0, null_mut()), BW_ENULL),
            (bw_mr_create_iova(pd, addr, 0, 0, 0, &mut none), BW_EINVAL),
            (
                bw_mr_create_iova(pd, addr, 64, u64::MAX, 0, &mut none),
                BW_EINVAL,
            ),
            (
                bw_mr_create_iova(pd, addr, 64, 0, 1 << 30, &mut none),
                BW_EINVAL,
            ),
            (
                bw_mr_create_dmabuf(null(), 0, 0, 64, 0, 0, &mut none),
                BW_ENULL,
            ),
            (
                bw_mr_create_dmabuf(pd, 0, 0, 64, 0, 0, null_mut()),
                BW_ENULL,
            ),
            (
                bw_mr_create_dmabuf(pd, -1, 0, 64, 0, 0, &mut none),
                BW_EINVAL,
            ),
            (bw_mr_create_dmabuf(pd, 0, 0, 0, 0, 0, &mut none), BW_EINVAL),
            (
                bw_mr_reregister(null_mut(), 0, null(), null_mut(), 0, 0),
                BW_ENULL,
            ),
        ] {
            fails(code, error);
        }
        assert!(none.is_null());
        let mr = made(|mr| bw_mr_create(pd, addr, 64, ALL_ACCESS, mr));
        let change = |flags, access| bw_mr_reregister(mr, flags, null(), null_mut(), 64, access);
        fails(change(8, 0), BW_EINVAL);
        fails(change(BW_REREG_MR_CHANGE_PD as u32, 0), BW_ENULL);
        fails(change(BW_REREG_MR_CHANGE_TRANSLATION as u32, 0), BW_ENULL);
        fails(change(BW_REREG_MR_CHANGE_ACCESS as u32, 1 << 30), BW_EINVAL);
        ok(bw_mr_destroy(mr));
    }
    world.destroy();
}

#[test]
fn a_port_and_its_gid_are_chosen() {
    let world = World::new(&sized!(bw_soft_config {}));
    let a = &world.a;
    let (mut usual, mut chosen) = (sized!(bw_endpoint {}), sized!(bw_endpoint {}));
    let by = |port_num, gid_index| {
        sized!(bw_connect_attr {
            port_num: port_num,
            gid_index: gid_index
        })
    };
    assert_eq!(
        (by(1, -1).port_num, bw_connect_attr::default().gid_index),
        (1, -1)
    );
    // SAFETY: valid handles and structs.
    unsafe {
        ok(bw_qp_endpoint(a.qp, &mut usual));
        for attr in [by(1, 0), by(1, -1)] {
            ok(bw_qp_endpoint_for(a.qp, &attr, &mut chosen));
            assert_eq!(chosen.gid, usual.gid);
            assert_eq!((chosen.qp_num, chosen.lid), (usual.qp_num, usual.lid));
        }
        ok(bw_qp_endpoint_for(a.qp, null(), &mut chosen));
        for (attr, name) in [
            (by(2, -1), "port_num"),
            (by(0, -1), "port_num"),
            (by(256, -1), "port_num"),
            (by(1, 1), "GID index"),
            (by(1, 256), "gid_index"),
        ] {
            fails(bw_qp_endpoint_for(a.qp, &attr, &mut chosen), BW_EINVAL);
            assert!(last_error().contains(name), "{}", last_error());
        }
        fails(
            bw_qp_endpoint_for(null_mut(), null(), &mut chosen),
            BW_ENULL,
        );
        fails(bw_qp_endpoint_for(a.qp, null(), null_mut()), BW_ENULL);
        ok(bw_qp_init(a.qp, &by(1, 0)));
        ok(bw_qp_connect(a.qp, &usual, &by(1, 0)));
    }
    world.destroy();
}
