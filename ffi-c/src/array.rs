//! Arrays of structs that grow: their elements have the size that the program was compiled with.
//!
//! The header's inline functions pass that size along. An element of this library's own size costs one
//! comparison for a whole array. Arrays of an older program, whose elements are smaller, are processed
//! in chunks, in the form of today.

use crate::code::{BW_ENULL, BW_ESIZE, BW_OK, bw_error};
use crate::failure::Failure;
use crate::sized::{are_sizes, name};
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// An element of an array that the program passes.
///
/// # Safety
/// `repr(C)`, and any bytes that the program may pass, or zeroes, are a valid value.
pub(crate) unsafe trait Element: Copy {
    /// The size of an element in each version, from the first to this one: a version appends fields,
    /// which are 0 where the program does not have them.
    const SIZES: &'static [usize];
}

/// Whether elements of this size are those of an older program.
fn is_known<T: Element>(size: usize) -> bool {
    const { assert!(are_sizes(T::SIZES, size_of::<T>())) }
    T::SIZES.contains(&size)
}

/// Elements converted at a time.
const CHUNK: usize = 16;

/// Reads an element.
///
/// # Safety
/// `from` points to `size` readable bytes, a size that the element had.
unsafe fn read<T: Element>(from: *const u8, size: usize) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller guarantees `size` readable bytes, and an element has no fewer; zeroes and what
    // the program passes are a valid value.
    unsafe {
        std::ptr::copy_nonoverlapping(from, value.as_mut_ptr().cast(), size);
        value.assume_init()
    }
}

/// Reads one element, for a call that has no fast path.
///
/// # Safety
/// `from` is NULL or points to `size` readable bytes, if that is a size that the element had.
pub(crate) unsafe fn one<T: Element>(from: *const T, size: usize) -> Result<T, bw_error> {
    if from.is_null() {
        return Err(BW_ENULL);
    }
    if !is_known::<T>(size) {
        return Err(BW_ESIZE);
    }
    // SAFETY: not NULL; the caller guarantees that as many bytes are readable.
    Ok(unsafe { read(from.cast(), size) })
}

/// Writes one element, for a call that has no fast path.
///
/// # Safety
/// `to` is NULL or points to `size` writable bytes, if that is a size that the element had.
pub(crate) unsafe fn write_one<T: Element>(
    to: *mut T,
    size: usize,
    value: impl FnOnce() -> Result<T, bw_error>,
) -> c_int {
    if to.is_null() {
        return BW_ENULL as c_int;
    }
    if !is_known::<T>(size) {
        return BW_ESIZE as c_int;
    }
    match value() {
        Ok(value) => {
            let from = (&raw const value).cast::<u8>();
            // SAFETY: not NULL; the caller guarantees that as many bytes may be written.
            unsafe { std::ptr::copy_nonoverlapping(from, to.cast(), size) };
            BW_OK as c_int
        }
        Err(code) => code as c_int,
    }
}

/// All elements of an array, for a set-up call.
///
/// # Safety
/// `first` is NULL or points to `num` elements of `size` bytes, if that is a size that they had.
pub(crate) unsafe fn all<T: Element>(
    first: *const T,
    size: usize,
    num: u32,
    what: &str,
) -> Result<Vec<T>, Failure> {
    if first.is_null() {
        return Err(Failure::null(what));
    }
    if !is_known::<T>(size) {
        let name = name::<T>();
        let text = format!("an element of {what} cannot have {size} bytes: pass sizeof({name})");
        return Err(Failure::new(BW_ESIZE, text));
    }
    let first = first.cast::<u8>();
    // SAFETY: not NULL; the caller guarantees `num` elements of this size.
    let elements = (0..num as usize).map(|n| unsafe { read(first.add(n * size), size) });
    Ok(elements.collect())
}

/// Posts the requests of an older program, whose size is not this library's, by `post`: the same
/// function for an array of this library's elements.
///
/// # Safety
/// `wr` is NULL or points to `num` requests of `size` bytes, if that is a size that they had; `bad_wr`
/// is NULL or points to writable memory for a pointer. `post` takes an array and its length, and sets
/// its last argument to the refused element.
#[cold]
#[inline(never)]
pub(crate) unsafe fn post_older<T: Element>(
    wr: *const T,
    size: usize,
    num: u32,
    bad_wr: *mut *const T,
    post: &dyn Fn(*const T, u32, *mut *const T) -> c_int,
) -> c_int {
    if !is_known::<T>(size) {
        return BW_ESIZE as c_int;
    }
    if num == 0 || wr.is_null() {
        return post(wr, num, bad_wr);
    }
    let mut chunk = [const { MaybeUninit::<T>::uninit() }; CHUNK];
    let first = wr.cast::<u8>();
    let num = num as usize;
    for done in (0..num).step_by(CHUNK) {
        let count = CHUNK.min(num - done);
        for (n, place) in chunk.iter_mut().take(count).enumerate() {
            // SAFETY: the caller guarantees `num` elements of this size.
            place.write(unsafe { read(first.add((done + n) * size), size) });
        }
        let mut bad = std::ptr::null();
        // A chunk's length fits a u32.
        let code = post(chunk.as_ptr().cast(), count as u32, &mut bad);
        if code == BW_OK as c_int {
            continue;
        }
        if !bad.is_null() && !bad_wr.is_null() {
            let n = (bad.addr() - chunk.as_ptr().addr()) / size_of::<T>();
            // SAFETY: not NULL; the caller guarantees that a pointer may be written. The refused
            // request is one of the chunk's, so its original is one of the program's.
            unsafe { bad_wr.write(first.add((done + n) * size).cast()) };
        }
        return code;
    }
    BW_OK as c_int
}

/// Polls into the array of an older program, whose size is not this library's, by `poll`: the same
/// function for an array of this library's elements.
///
/// # Safety
/// `to` is NULL or points to `max` writable elements of `size` bytes, if that is a size that they had.
/// `poll` takes an array and its length, and returns a code, or the number of elements that it wrote.
#[cold]
#[inline(never)]
pub(crate) unsafe fn poll_older<T: Element>(
    to: *mut T,
    size: usize,
    max: c_int,
    poll: &mut dyn FnMut(*mut T, c_int) -> c_int,
) -> c_int {
    if to.is_null() {
        return BW_ENULL as c_int;
    }
    if !is_known::<T>(size) {
        return BW_ESIZE as c_int;
    }
    let max = usize::try_from(max).unwrap_or(0);
    let mut chunk = [const { MaybeUninit::<T>::uninit() }; CHUNK];
    let mut done = 0;
    loop {
        let room = CHUNK.min(max - done);
        // A chunk's length fits an int.
        let code = poll(chunk.as_mut_ptr().cast(), room as c_int);
        let Ok(count) = usize::try_from(code) else {
            return if done == 0 { code } else { done as c_int };
        };
        for (n, from) in chunk.iter().take(count).enumerate() {
            let place = to.cast::<u8>().wrapping_add((done + n) * size);
            // SAFETY: the caller guarantees `max` elements, and no more are polled; `poll` has written
            // this one of the chunk.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), place, size) };
        }
        done += count;
        if count < room || done == max {
            return done as c_int;
        }
    }
}
