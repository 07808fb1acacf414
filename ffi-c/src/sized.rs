//! Structs whose first field is their size: how they grow without breaking programs.
//!
//! A program that is older than the library passes a shorter struct: the fields that it does not have
//! keep their defaults, and are not written back. A size that no version of the struct had is refused,
//! that of a newer version too, since a newer program cannot run with this library
//! (`bw_version_check`): a size that was never set must not decide how much of the program's memory is
//! read or written.

use crate::code::{BW_EINVAL, BW_ENULL, BW_ESIZE};
use crate::failure::Failure;
use std::any::type_name;

/// A struct of the header.
///
/// # Safety
/// `repr(C)`, without padding, and any bytes are a valid value. The first field is a `u32`, the size.
/// Each of `SIZES` is the offset of the end of some field.
pub(crate) unsafe trait Versioned: Copy + Default {
    /// The size of each version, from the first to this one: a version appends fields.
    const SIZES: &'static [usize];
}

/// Whether the sizes ascend, from one that holds the size field to that of the struct itself, `last`.
pub(crate) const fn are_sizes(sizes: &[usize], last: usize) -> bool {
    let mut before = size_of::<u32>();
    let mut at = 0;
    while at < sizes.len() {
        if sizes[at] <= before {
            return false;
        }
        before = sizes[at];
        at += 1;
    }
    before == last
}

pub(crate) fn name<T>() -> &'static str {
    let name = type_name::<T>();
    name.rsplit("::").next().unwrap_or(name)
}

fn null<T>() -> Failure {
    Failure::new(BW_ENULL, format!("the {} is NULL", name::<T>()))
}

/// Fails unless some version of the struct had this size.
fn known<T: Versioned>(size: usize) -> Result<usize, Failure> {
    const { assert!(are_sizes(T::SIZES, size_of::<T>())) }
    if T::SIZES.contains(&size) {
        return Ok(size);
    }
    Err(Failure::new(
        BW_ESIZE,
        format!(
            "the size field of the {name} is {size}; the struct has {} bytes, and no earlier version \
             had {size}: set it to sizeof({name})",
            size_of::<T>(),
            name = name::<T>(),
        ),
    ))
}

/// The size that the program gave.
///
/// # Safety
/// `given` is NULL, or points to a struct that begins with its size.
unsafe fn size<T: Versioned>(given: *const T) -> Result<usize, Failure> {
    if given.is_null() {
        return Err(null::<T>());
    }
    // SAFETY: not NULL; the caller guarantees that the struct begins with its size.
    known::<T>(unsafe { given.cast::<u32>().read_unaligned() } as usize)
}

/// Reads what the program passed; fields that it does not have keep their defaults.
///
/// # Safety
/// `given` is NULL, or points to as many readable bytes as its first field says, if that is a size
/// that the struct had.
pub(crate) unsafe fn read<T: Versioned>(given: *const T) -> Result<T, Failure> {
    // SAFETY: the caller guarantees that `given` is NULL or points to a struct that begins with its
    // size.
    let size = unsafe { size(given)? };
    let mut value = T::default();
    // SAFETY: `size` bytes are readable, and no more than the struct has; any bytes are a valid value.
    unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut value).cast::<u8>(), size);
    }
    Ok(value)
}

/// As [`read`]; the defaults if `given` is NULL.
///
/// # Safety
/// That of [`read`].
pub(crate) unsafe fn read_or_default<T: Versioned>(given: *const T) -> Result<T, Failure> {
    if given.is_null() {
        return Ok(T::default());
    }
    // SAFETY: the caller guarantees that as many bytes are readable as the struct's size says.
    unsafe { read(given) }
}

/// Fails if [`write()`] would fail.
///
/// # Safety
/// That of [`write()`].
pub(crate) unsafe fn check<T: Versioned>(to: *mut T) -> Result<(), Failure> {
    // SAFETY: the caller guarantees that `to` is NULL or points to a struct that begins with its size.
    unsafe { size(to.cast_const()) }.map(drop)
}

/// Writes as much as the program's struct has room for; its size stays as the program set it.
///
/// # Safety
/// `to` is NULL, or points to as many writable bytes as its first field says, if that is a size that
/// the struct had.
pub(crate) unsafe fn write<T: Versioned>(to: *mut T, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller guarantees that `to` is NULL or points to a struct that begins with its size.
    let size = unsafe { size(to)? };
    let first = size_of::<u32>();
    let from = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: both have `size` bytes, and there is no padding.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(first), to.cast::<u8>().add(first), size - first);
    }
    Ok(())
}

/// Writes the defaults, and its size, into a struct of `size` bytes.
///
/// # Safety
/// `to` is NULL, or points to `size` writable bytes, if that is a size that the struct had.
pub(crate) unsafe fn fill<T: Versioned>(to: *mut T, size: usize) -> Result<(), Failure> {
    if to.is_null() {
        return Err(null::<T>());
    }
    // The size of every struct fits a u32.
    let given = known::<T>(size)? as u32;
    // SAFETY: not NULL; the caller guarantees that `size` bytes may be written.
    unsafe {
        to.cast::<u32>().write_unaligned(given);
        write(to, &T::default())
    }
}

/// Fails unless a field that later versions may give a meaning is zero.
pub(crate) fn zero(what: &str, given: u32) -> Result<(), Failure> {
    if given == 0 {
        return Ok(());
    }
    Err(Failure::new(
        BW_EINVAL,
        format!("{what} is {given}, and must be 0"),
    ))
}
