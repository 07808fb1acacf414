//! Structs whose first field is their size: how they grow without breaking programs.
//!
//! A program older than the library gives a shorter struct: what it does not have keeps its default,
//! and is not written back. A newer one gives a longer struct: what the library does not know must be
//! zero, and is zeroed.

use crate::code::{BW_EINVAL, BW_ENULL, BW_ESIZE};
use crate::failure::Failure;
use std::any::type_name;

/// A struct of the header.
///
/// # Safety
/// `repr(C)`, without padding, and any bytes make a value of it. The first field is a `u32`, the
/// size. `FIRST` is the offset of the end of some field.
pub(crate) unsafe trait Versioned: Copy + Default {
    /// Its size in the first version that had it.
    const FIRST: usize;
}

fn name<T>() -> &'static str {
    let name = type_name::<T>();
    name.rsplit("::").next().unwrap_or(name)
}

/// The size that the program gave, within what makes sense.
///
/// # Safety
/// `given` is NULL, or points to a struct that begins with its size.
unsafe fn size<T: Versioned>(given: *const T) -> Result<usize, Failure> {
    if given.is_null() {
        return Err(Failure::new(
            BW_ENULL,
            format!("the {} is NULL", name::<T>()),
        ));
    }
    // SAFETY: every such struct begins with its size.
    let size = unsafe { given.cast::<u32>().read_unaligned() } as usize;
    // Far more than any struct will ever have: a size that was never set.
    let most = T::FIRST.max(size_of::<T>()) + 4096;
    if (T::FIRST..=most).contains(&size) {
        return Ok(size);
    }
    Err(Failure::new(
        BW_ESIZE,
        format!(
            "the {name} says that it has {size} bytes, it has {}: set its size to sizeof({name})",
            size_of::<T>(),
            name = name::<T>(),
        ),
    ))
}

/// Reads what the program gave over the defaults.
///
/// # Safety
/// `given` is NULL, or points to as many readable bytes as its first field says.
pub(crate) unsafe fn read<T: Versioned>(given: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { size(given)? };
    let known = size.min(size_of::<T>());
    let mut value = T::default();
    // SAFETY: `known` bytes are readable and fit; any bytes make a value.
    unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
    }
    // SAFETY: as many bytes as the program said.
    let unknown = (known..size).any(|at| unsafe { given.cast::<u8>().add(at).read() } != 0);
    if unknown {
        return Err(Failure::new(
            BW_ESIZE,
            format!(
                "the {name} has {size} bytes, this library knows {known} of them, and the others \
                 are not zero: the program wants something of a newer library",
                name = name::<T>(),
            ),
        ));
    }
    Ok(value)
}

/// As [`read`]; the defaults for NULL.
///
/// # Safety
/// As there.
pub(crate) unsafe fn read_or_default<T: Versioned>(given: *const T) -> Result<T, Failure> {
    if given.is_null() {
        return Ok(T::default());
    }
    // SAFETY: the caller's promise.
    unsafe { read(given) }
}

/// Whether [`write()`] will be able to.
///
/// # Safety
/// As there.
pub(crate) unsafe fn check<T: Versioned>(to: *mut T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { size(to.cast_const()) }.map(drop)
}

/// Writes as much as the program's struct can take; its size stays as the program set it.
///
/// # Safety
/// `to` is NULL, or points to as many writable bytes as its first field says.
pub(crate) unsafe fn write<T: Versioned>(to: *mut T, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { size(to)? };
    let known = size.min(size_of::<T>());
    let first = size_of::<u32>();
    let from = std::ptr::from_ref(value).cast::<u8>();
    let to = to.cast::<u8>();
    // SAFETY: both have `known` bytes, `to` has `size`; padding there is none.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(first), to.add(first), known - first);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// Writes the defaults into a struct of `size` bytes, and its size.
///
/// # Safety
/// `to` is NULL, or points to `size` writable bytes.
pub(crate) unsafe fn fill<T: Versioned>(to: *mut T, size: usize) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::new(
            BW_ENULL,
            format!("the {} is NULL", name::<T>()),
        ));
    }
    let given = u32::try_from(size).unwrap_or(u32::MAX);
    if size >= size_of::<u32>() {
        // SAFETY: at least these bytes are writable.
        unsafe { to.cast::<u32>().write_unaligned(given) };
    }
    if size < T::FIRST {
        return Err(Failure::new(
            BW_ESIZE,
            format!(
                "{size} bytes are too few for a {name}: give sizeof({name})",
                name = name::<T>()
            ),
        ));
    }
    // SAFETY: the caller's promise.
    unsafe { write(to, &T::default()) }
}

/// Fails when a field that later versions may give a meaning is not zero.
pub(crate) fn zero(what: &str, given: u32) -> Result<(), Failure> {
    if given == 0 {
        return Ok(());
    }
    Err(Failure::new(
        BW_EINVAL,
        format!("{what} is {given}, and must be 0"),
    ))
}
