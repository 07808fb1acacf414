//! Detects two threads in one queue at the same time, in builds with debug assertions. Other builds
//! contain none of this.

use crate::code::bw_error;
use std::marker::PhantomData;

/// Part of a queue that has one owner at a time.
#[derive(Debug, Default)]
pub(crate) struct Entered {
    #[cfg(debug_assertions)]
    inside: std::sync::atomic::AtomicBool,
}

/// A call that is in progress on the queue.
#[derive(Debug)]
pub(crate) struct Inside<'q> {
    #[cfg(debug_assertions)]
    queue: &'q Entered,
    lives: PhantomData<&'q Entered>,
}

impl Entered {
    /// A call begins.
    ///
    /// # Errors
    /// `BW_ECONCURRENT`: another call has not ended.
    #[inline(always)]
    pub fn enter(&self) -> Result<Inside<'_>, bw_error> {
        // Acquire: pairs with the Release in `drop`, when the call before ended.
        #[cfg(debug_assertions)]
        if (self.inside).swap(true, std::sync::atomic::Ordering::Acquire) {
            return Err(bw_error::BW_ECONCURRENT);
        }
        Ok(Inside {
            #[cfg(debug_assertions)]
            queue: self,
            lives: PhantomData,
        })
    }
}

#[cfg(debug_assertions)]
impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `enter`.
        (self.queue.inside).store(false, std::sync::atomic::Ordering::Release);
    }
}
