//! (being written)
use core::{marker::PhantomData, ptr::NonNull};
/// stub
#[derive(Debug)]
pub struct Block<'s>(NonNull<u8>, PhantomData<&'s u8>);
#[allow(missing_docs)]
impl Block<'_> {
    pub fn capacity(&self) -> u32 { 0 }
    pub fn addr(&self) -> u64 { 0 }
    pub fn lkey(&self) -> u32 { 0 }
}
