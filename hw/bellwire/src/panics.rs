//! The program's functions, called while an operation is incomplete.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Panics of the program's functions, kept until the operation that called them is complete: then the first
/// one is resumed.
#[derive(Debug, Default)]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Calls a function of the program. `None`: it panicked.
    pub fn catch<R>(&mut self, call: impl FnOnce() -> R) -> Option<R> {
        // Unwind safety: what the function leaves inconsistent belongs to the program, in which the panic is
        // resumed.
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(answer) => Some(answer),
            Err(panic) => {
                self.keep(panic);
                None
            }
        }
    }

    /// Keeps a panic that was caught elsewhere, unless there is one already.
    pub fn keep(&mut self, panic: Box<dyn Any + Send>) {
        match self.0 {
            None => self.0 = Some(panic),
            // The payload may panic when it is dropped; the payload of that panic is not dropped.
            Some(_) => {
                let dropped = catch_unwind(AssertUnwindSafe(|| drop(panic)));
                std::mem::forget(dropped);
            }
        }
    }

    /// Resumes the panic, if there was one.
    pub fn resume(&mut self) {
        if let Some(panic) = self.0.take() {
            resume_unwind(panic);
        }
    }
}
