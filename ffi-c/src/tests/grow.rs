//! Structs of programs that are older or newer than the library.

use super::*;
use crate::code::*;
use crate::event::bw_async_event_info;
use crate::modify::bw_qp_attr;
use crate::port::bw_port_info;
use crate::sized::{Versioned, fill, read, write};
use crate::srq::*;

/// A struct in its second version: the first had `a` only.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Two {
    size: u32,
    a: u32,
    b: u32,
}

impl Default for Two {
    fn default() -> Self {
        Self {
            size: 12,
            a: 1,
            b: 2,
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for Two {
    const FIRST: usize = 8;
}

fn parse(bytes: &mut [u32]) -> Result<Two, crate::failure::Failure> {
    // SAFETY: as many bytes as the sizes of the tests say.
    unsafe { read(bytes.as_ptr().cast()) }
}

#[test]
fn an_older_program_gets_the_defaults_of_what_it_does_not_know() {
    let read = parse(&mut [8, 7]).unwrap();
    assert_eq!((read.a, read.b), (7, 2));
}

#[test]
fn a_newer_program_must_not_want_what_we_do_not_know() {
    let read = parse(&mut [16, 7, 8, 0]).unwrap();
    assert_eq!((read.a, read.b), (7, 8));
    assert!(parse(&mut [16, 7, 8, 1]).is_err());
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for size in [0, 4, 7, u32::MAX, 1 << 20] {
        assert!(parse(&mut [size, 0, 0]).is_err(), "{size}");
    }
}

#[test]
fn only_what_the_program_has_is_written() {
    let mut older = [8, 0, 55];
    let mut newer = [16, 9, 9, 9, 55];
    // SAFETY: as many bytes as the sizes say.
    unsafe {
        write(older.as_mut_ptr().cast::<Two>(), &Two::default()).unwrap();
        write(newer.as_mut_ptr().cast::<Two>(), &Two::default()).unwrap();
    }
    assert_eq!(older, [8, 1, 55]);
    assert_eq!(newer, [16, 1, 2, 0, 55]);
}

#[test]
fn defaults_fill_structs_of_any_version() {
    let mut older = [0u32, 0, 55];
    let mut newer = [0u32, 0, 0, 9];
    let mut short = [55u32, 55];
    // SAFETY: as many bytes as the sizes say.
    unsafe {
        fill(older.as_mut_ptr().cast::<Two>(), 8).unwrap();
        fill(newer.as_mut_ptr().cast::<Two>(), 16).unwrap();
        assert!(fill(short.as_mut_ptr().cast::<Two>(), 4).is_err());
        assert!(fill(short.as_mut_ptr().cast::<Two>(), 0).is_err());
    }
    assert_eq!((older, newer), ([8, 1, 55], [16, 1, 2, 0]));
    assert_eq!(short[1], 55);
}

#[test]
fn no_struct_is_shorter_than_its_first_version() {
    fn check<T: Versioned>(size: u32) {
        assert_eq!(size as usize, size_of::<T>());
        assert!(T::FIRST <= size_of::<T>());
    }
    check::<bw_soft_config>(24);
    check::<bw_device_info>(bw_device_info::default().size);
    check::<bw_mr_info>(32);
    check::<bw_region_attr>(bw_region_attr::default().size);
    check::<bw_region_info>(bw_region_info::default().size);
    check::<bw_cq_attr>(32);
    check::<bw_cq_info>(32);
    check::<bw_qp_init_attr>(bw_qp_init_attr::default().size);
    check::<bw_connect_attr>(bw_connect_attr::default().size);
    check::<bw_endpoint>(36);
    check::<bw_qp_attr>(188);
    check::<bw_srq_init_attr>(bw_srq_init_attr::default().size);
    check::<bw_srq_info>(20);
    check::<bw_port_info>(40);
    check::<bw_async_event_info>(16);
}

#[test]
fn filled_structs_are_the_library_s_defaults() {
    let mut init = bw_qp_init_attr {
        max_inline_data: 0,
        ..Default::default()
    };
    let mut connect = bw_connect_attr {
        timeout: 0,
        ..Default::default()
    };
    // SAFETY: good structs.
    unsafe {
        ok(bw_qp_init_attr_default(&mut init, size_of_val(&init)));
        ok(bw_connect_attr_default(&mut connect, size_of_val(&connect)));
        fails(bw_qp_init_attr_default(&mut init, 8), BW_ESIZE);
        fails(bw_connect_attr_default(null_mut(), 32), BW_ENULL);
    }
    assert_eq!(
        init.max_inline_data,
        bw_qp_init_attr::default().max_inline_data
    );
    assert_eq!(connect.timeout, 14);
}
