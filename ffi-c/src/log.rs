//! The hook for a log of the program's own.

use crate::code::BW_EINVAL;
use crate::failure::{Failure, guard};
use hw::log::{Level, clear_hook, set_hook};
use std::ffi::{CString, c_char, c_int, c_void};

/// How urgent a record of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_log_level {
    /// A link could not be recovered.
    BW_LOG_ERROR = 1,
    /// A fault of a link; a link that works again, but not as before; a peer that is refused.
    BW_LOG_WARN = 2,
    /// A device is opened, a connection is made, a link has recovered or was closed.
    BW_LOG_INFO = 3,
    /// A set-up call fails. It returns the same text by `bw_last_error`.
    BW_LOG_DEBUG = 4,
}

/// Called with a record of the log: its `bw_log_level`, and one line of text without the level. The text is
/// valid during the call.
pub type bw_log_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, level: u32, text: *const c_char)>;

/// The program's own pointer, which is passed to each call.
struct Context(*mut c_void);

// SAFETY: only passed on; the header says which threads call.
unsafe impl Send for Context {}
// SAFETY: only passed on; the header says that several threads may call at once.
unsafe impl Sync for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Sets the hook that is called with each record of the log of this level (a `bw_log_level`), and of more
/// urgent levels. NULL removes the hook. It replaces the hook that was set before. Posting, ringing and
/// polling a link that works log nothing.
///
/// The hook runs on the thread of the set-up call or poll that has something to log, or on the recovery
/// thread of a link. Several threads may call it at once. It is called under no lock of the library. It may
/// call the library, except on the object that its thread is in a call on. The hook's own records are
/// dropped. It must not throw, and must not end its thread.
///
/// When this returns, no thread is in the hook that was replaced, unless the hook itself called this. So do
/// not call it with a lock held that the hook takes. A child of fork has no hook until it sets one.
///
/// Errors: `BW_EINVAL` (no such level).
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_set_log_hook(
    level: u32,
    hook: bw_log_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        let level = match level {
            1 => Level::Error,
            2 => Level::Warn,
            3 => Level::Info,
            4 => Level::Debug,
            _ => {
                let text = format!("{level} is no bw_log_level: those are 1 to 4");
                return Err(Failure::new(BW_EINVAL, text));
            }
        };
        let Some(hook) = hook else {
            clear_hook();
            return Ok(());
        };
        let context = Context(context);
        set_hook(level, move |record| {
            // Without the NUL that a name of the program's may contain.
            let text: Vec<u8> = record.text.bytes().filter(|byte| *byte != 0).collect();
            let text = CString::new(text).unwrap_or_default();
            // SAFETY: the program's function, called as the header says.
            unsafe { hook(context.get(), record.level as u32, text.as_ptr()) };
        });
        Ok(())
    })
}
