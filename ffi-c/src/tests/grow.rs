//! Structs of programs that are older or newer than the library.

use super::*;
use crate::code::*;
use crate::sized::{Versioned, are_sizes, fill, read, write};
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
    const SIZES: &'static [usize] = &[8, 12];
}

fn parse(bytes: &mut [u32]) -> Result<Two, crate::failure::Failure> {
    // SAFETY: the tests pass as many bytes as the sizes say.
    unsafe { read(bytes.as_ptr().cast()) }
}

#[test]
fn an_older_program_gets_the_defaults_of_what_it_does_not_know() {
    let read = parse(&mut [8, 7]).unwrap();
    assert_eq!((read.a, read.b), (7, 2));
}

/// Bytes after the struct are not read: they may be anything.
#[test]
fn sizes_that_no_version_had_are_refused() {
    for size in (0..8)
        .chain(9..12)
        .chain(13..5000)
        .chain([1 << 20, u32::MAX])
    {
        let mut bytes = [size, 7, 8, 0];
        assert!(parse(&mut bytes).is_err(), "{size}");
        let to = bytes.as_mut_ptr().cast::<Two>();
        // SAFETY: four numbers, three of which are a struct.
        unsafe {
            assert!(write(to, &Two::default()).is_err(), "{size}");
            assert!(fill(to, size as usize).is_err(), "{size}");
        }
        assert_eq!(bytes, [size, 7, 8, 0]);
    }
}

#[test]
fn only_what_the_program_has_is_written() {
    let mut older = [8, 0, 55];
    let mut same = [12, 9, 9, 55];
    // SAFETY: as many bytes as the sizes say.
    unsafe {
        write(older.as_mut_ptr().cast::<Two>(), &Two::default()).unwrap();
        write(same.as_mut_ptr().cast::<Two>(), &Two::default()).unwrap();
    }
    assert_eq!(older, [8, 1, 55]);
    assert_eq!(same, [12, 1, 2, 55]);
}

#[test]
fn defaults_fill_structs_of_any_version() {
    let mut older = [0u32, 0, 55];
    let mut same = [0u32, 0, 0, 55];
    // SAFETY: as many bytes as the sizes say.
    unsafe {
        fill(older.as_mut_ptr().cast::<Two>(), 8).unwrap();
        fill(same.as_mut_ptr().cast::<Two>(), 12).unwrap();
    }
    assert_eq!((older, same), ([8, 1, 55], [12, 1, 2, 55]));
}

#[test]
fn versions_end_with_the_struct_as_it_is() {
    macro_rules! versioned {
        ($sizes:expr) => {{
            #[derive(Clone, Copy, Default)]
            #[repr(C)]
            struct Some {
                size: u32,
                a: u32,
            }
            // SAFETY: repr(C), integers only, without padding; not read.
            unsafe impl Versioned for Some {
                const SIZES: &'static [usize] = &$sizes;
            }
            are_sizes(Some::SIZES, size_of::<Some>())
        }};
    }
    assert!(versioned!([8]));
    assert!(!versioned!([]) && !versioned!([4, 8]) && !versioned!([7]) && !versioned!([8, 12]));
    assert!(!versioned!([8, 8]) && !versioned!([8, 6, 8]));
}

/// The first field of each holds the size of the struct.
#[test]
fn structs_know_their_size() {
    fn check<T: Versioned>(size: u32) {
        assert_eq!(size as usize, size_of::<T>());
    }
    check::<bw_device_info>(bw_device_info::default().size);
    check::<bw_region_attr>(bw_region_attr::default().size);
    check::<bw_region_info>(bw_region_info::default().size);
    check::<bw_qp_init_attr>(bw_qp_init_attr::default().size);
    check::<bw_connect_attr>(bw_connect_attr::default().size);
    check::<bw_srq_init_attr>(bw_srq_init_attr::default().size);
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
    // SAFETY: valid structs.
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
