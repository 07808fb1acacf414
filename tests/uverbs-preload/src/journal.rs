//! What the device executed, for tests of the software above: [`uverbs_preload_journal`].

use crate::engine;
use crate::object::errno;
use bellwire::soft::{JournalEntry, RecvReport};
use rustix::io::Errno;
use std::ffi::{c_int, c_void};

/// Reports a request that was executed: the number of the queue pair that posted it, its opcode in the
/// entry, the bytes of its message or result, and what became of the receive that it took: 0 it takes none,
/// 1 its completion was written, 2 its completion was lost.
type Each = unsafe extern "C" fn(*mut c_void, u32, u32, u64, u32);

/// Calls `each` with `of` and each request that the device executed since the last call, in that order.
/// Gives zero, or an error number: `EINVAL` where the device keeps no journal (it does with
/// `UVERBS_PRELOAD_JOURNAL=1`), or `each` is null.
///
/// # Safety
/// `each` may be called with `of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uverbs_preload_journal(each: Option<Each>, of: *mut c_void) -> c_int {
    let take = || {
        let each = each.ok_or(Errno::INVAL)?;
        let device = engine::device().map_err(errno)?;
        let entries = device
            .as_soft()
            .ok_or(Errno::OPNOTSUPP)?
            .journal()
            .map_err(errno)?;
        Ok((each, entries))
    };
    let (each, entries) = match crate::hook::guarded(take) {
        Ok(taken) => taken,
        Err(error) => return error.raw_os_error(),
    };
    for entry in entries {
        if let JournalEntry::Executed {
            request,
            opcode,
            bytes,
            receive,
            ..
        } = entry
        {
            let receive = match receive {
                RecvReport::NotTaken => 0,
                RecvReport::Written => 1,
                RecvReport::Lost => 2,
            };
            // SAFETY: the caller guarantees that `each` may be called with `of`.
            unsafe { each(of, request.qp_num, opcode.into(), bytes, receive) };
        }
    }
    0
}
