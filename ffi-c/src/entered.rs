//! Whether a queue is entered by two threads at once: found out in builds with debug assertions. In
//! others none of this is there.

use crate::code::bw_error;
use std::marker::PhantomData;

/// Within a queue that has one owner at a time.
#[derive(Debug, Default)]
pub(crate) struct Entered {
    #[cfg(debug_assertions)]
    inside: std::sync::atomic::AtomicBool,
}

/// A call is within the queue.
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
    /// `BW_ETHREADS`: another one has not ended.
    #[inline(always)]
    pub fn enter(&self) -> Result<Inside<'_>, bw_error> {
        // Acquire: partner of the release when the call before ended.
        #[cfg(debug_assertions)]
        if (self.inside).swap(true, std::sync::atomic::Ordering::Acquire) {
            return Err(bw_error::BW_ETHREADS);
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
        // Release: partner of the acquire in `enter`.
        (self.queue.inside).store(false, std::sync::atomic::Ordering::Release);
    }
}
