//! The flight recorder: what a queue pair did last, for whoever has to find out why it failed.

use crate::code::{BW_EINTERNAL, BW_EINVAL, BW_ELIMIT};
use crate::failure::{Failure, guard};
use crate::handle::get_mut;
use crate::qp::bw_qp;
use crate::sized::{self, Versioned};
use hw::recorder::{DumpOptions, Record};
use std::ffi::{CStr, c_char, c_int};

/// How a dump is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_dump_format {
    /// A line for each request, completion and note.
    BW_DUMP_TEXT = 0,
    /// One JSON object, with the same facts.
    BW_DUMP_JSON = 1,
}

/// Bits of `bw_dump_attr.flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_dump_flags {
    /// Leave out the bytes that stand in the entries: inline data of sends, and short messages that came
    /// within completion entries. They may be user data. No other memory of requests is ever read.
    BW_DUMP_NO_INLINE = 1,
}

/// What goes into a dump.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_dump_attr {
    /// `sizeof(bw_dump_attr)`.
    pub size: u32,
    /// A `bw_dump_format`.
    pub format: u32,
    /// Send entries, receives, and completions of each completion queue, at most: the last ones. 0 is 32.
    pub entries: u32,
    /// Bits of `bw_dump_flags`.
    pub flags: u32,
}

// SAFETY: repr(C), integers, without padding; the size is the first field.
unsafe impl Versioned for bw_dump_attr {
    const FIRST: usize = 16;
}

impl bw_dump_attr {
    pub(crate) fn options(&self) -> Result<DumpOptions, Failure> {
        let no_inline = bw_dump_flags::BW_DUMP_NO_INLINE as u32;
        if self.flags & !no_inline != 0 {
            let text = format!("flags are {:#x}, only BW_DUMP_NO_INLINE is one", self.flags);
            return Err(Failure::new(BW_EINVAL, text));
        }
        let default = DumpOptions::default();
        Ok(DumpOptions {
            entries: match self.entries {
                0 => default.entries,
                given => given as usize,
            },
            inline: self.flags & no_inline == 0,
        })
    }

    /// Whether it is to be JSON.
    fn is_json(&self) -> Result<bool, Failure> {
        match self.format {
            f if f == bw_dump_format::BW_DUMP_TEXT as u32 => Ok(false),
            f if f == bw_dump_format::BW_DUMP_JSON as u32 => Ok(true),
            other => {
                let text = format!("format is {other}, which is not BW_DUMP_TEXT or _JSON");
                Err(Failure::new(BW_EINVAL, text))
            }
        }
    }
}

/// Writes what the queue pair did last to `buffer`, of `capacity` bytes, as a string with its NUL: its
/// last requests with how far each has come, its last completions, its changes of state, and what was
/// noted by `bw_qp_note`. It is read from the rings, where a request stays until another is posted over
/// it: dump a queue pair that failed before it is used again. `attr` may be NULL: text, the last 32
/// of each. Nothing else changes by it. It takes as long as a change of state.
///
/// `length`, unless NULL, becomes the length of the string without its NUL. When `capacity` is not more
/// than that the answer is `BW_ELIMIT`, `*length` says how long it would have been, and nothing else is
/// written: `buffer` may be NULL with a `capacity` of 0, to ask.
///
/// Errors: `BW_ELIMIT`, `BW_EINVAL` (a format or flags that there are not), `BW_ENULL`, `BW_ESIZE`.
/// Thread: the owner of the queue pair and of its completion queues: nobody may post to it or poll them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_dump(
    qp: *mut bw_qp,
    attr: *const bw_dump_attr,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header on handles and sized structs.
        let (qp, attr) = unsafe { (get_mut(qp, "queue pair")?, sized::read_or_default(attr)?) };
        let options = attr.options()?;
        let place = Place::new(&attr, buffer, capacity, length)?;
        // SAFETY: the header on threads, and on what is the program's to write.
        unsafe {
            let record = qp.dump(&options)?;
            place.write(&record)
        }
    })
}

/// Where a dump goes, and how.
pub(crate) struct Place {
    json: bool,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
}

impl Place {
    pub(crate) fn new(
        attr: &bw_dump_attr,
        buffer: *mut c_char,
        capacity: usize,
        length: *mut usize,
    ) -> Result<Self, Failure> {
        if buffer.is_null() && capacity != 0 {
            return Err(Failure::null("the buffer"));
        }
        Ok(Self {
            json: attr.is_json()?,
            buffer,
            capacity,
            length,
        })
    }

    /// # Safety
    /// `buffer` has as many bytes; `length` is NULL, or may be written to.
    pub(crate) unsafe fn write(&self, record: &Record) -> Result<(), Failure> {
        let text = if self.json {
            serde_json::to_string(record)
                .map_err(|error| Failure::new(BW_EINTERNAL, error.to_string()))?
        } else {
            record.to_string()
        };
        // SAFETY: the caller's promise.
        if let Some(length) = unsafe { self.length.as_mut() } {
            *length = text.len();
        }
        let capacity = self.capacity;
        if capacity <= text.len() {
            let needed = text.len() + 1;
            let text = format!("the buffer has {capacity} bytes, the dump needs {needed}");
            return Err(Failure::new(BW_ELIMIT, text));
        }
        // SAFETY: not NULL, and longer than the string; the text is no part of it.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.buffer.cast(), text.len());
            self.buffer.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// Remembers `text`, with the time, among the queue pair's changes of state, for its dump: an
/// asynchronous event that came, a step of a recovery. The last 64 are kept.
///
/// Errors: `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_note(qp: *mut bw_qp, text: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let qp = unsafe { get_mut(qp, "queue pair")? };
        if text.is_null() {
            return Err(Failure::null("the text"));
        }
        // SAFETY: the header on strings.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        // SAFETY: the header on threads.
        unsafe { qp.note(text.into_owned()) }
    })
}
