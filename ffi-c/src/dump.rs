//! The flight recorder: what a queue pair did last, to find out why it failed.

use crate::code::{BW_EINTERNAL, BW_EINVAL, BW_ELIMIT};
use crate::failure::{Failure, guard};
use crate::handle::get_mut;
use crate::qp::bw_qp;
use crate::sized::{self, Versioned};
use hw::recorder::{DumpOptions, Record};
use std::ffi::{CStr, c_char, c_int};
use std::io::{self, Write as _};

/// How a dump is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_dump_format {
    /// A line for each request, completion and note.
    BW_DUMP_TEXT = 0,
    /// One JSON object with the same contents.
    BW_DUMP_JSON = 1,
}

/// Bits of `bw_dump_attr.flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_dump_flags {
    /// Leave out the bytes held in the queue entries: inline data of sends, and short messages that
    /// arrived within completion queue entries. They may be user data. No other memory of requests is
    /// ever read.
    BW_DUMP_NO_INLINE = 1,
}

/// Contents and format of a dump.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_dump_attr {
    /// `sizeof(bw_dump_attr)`.
    pub size: u32,
    /// A `bw_dump_format`.
    pub format: u32,
    /// Maximum number of send requests, receives, and completions of each completion queue: the last
    /// ones. 0 means 32.
    pub entries: u32,
    /// Bits of `bw_dump_flags`.
    pub flags: u32,
}

// SAFETY: repr(C), integers, without padding; the size is the first field.
unsafe impl Versioned for bw_dump_attr {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
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

    /// Whether the format is JSON.
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

/// Writes what the queue pair did last to `buffer`, of `capacity` bytes, as a NUL-terminated
/// string. The text has its last requests and the progress of each, its last completions, its
/// changes of state, and the notes of `bw_qp_note`. It is read from the rings, where a request
/// stays until another one overwrites it. Dump a queue pair that failed before it is used again. If
/// `attr` is NULL it is text with the last 32 of each. The call changes nothing, and takes about as
/// long as a change of state.
///
/// `length`, unless NULL, is set to the length of the string without its NUL. If `capacity` is not
/// larger, `BW_ELIMIT` is returned, `*length` is set all the same, and nothing else is written. To
/// ask for the length, `buffer` may be NULL with a `capacity` of 0.
///
/// Errors: `BW_ELIMIT`, `BW_EINVAL` (an unknown format or unknown flags), `BW_EMEMORY`, `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the owner of the queue pair and of its completion queues: no other thread may post to it or
/// poll them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_dump(
    qp: *mut bw_qp,
    attr: *const bw_dump_attr,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles and sized structs.
        let (qp, attr) = unsafe { (get_mut(qp, "queue pair")?, sized::read_or_default(attr)?) };
        let options = attr.options()?;
        let place = Place::new(&attr, buffer, capacity, length)?;
        // SAFETY: the header's conventions on threads; the buffer and the length are the program's to
        // write.
        unsafe {
            let record = qp.dump(&options)?;
            place.write(&record)
        }
    })
}

/// The destination and the format of a dump.
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
    /// `buffer` has `capacity` bytes; `length` is NULL, or may be written.
    pub(crate) unsafe fn write(&self, record: &Record) -> Result<(), Failure> {
        // The length is computed first: there may be no memory for a copy.
        // SAFETY: nothing is written, as the room is 0.
        let text = unsafe { self.text(record, std::ptr::null_mut(), 0)? };
        // SAFETY: the caller guarantees that `length` is NULL or may be written.
        if let Some(length) = unsafe { self.length.as_mut() } {
            *length = text;
        }
        let capacity = self.capacity;
        if capacity <= text {
            let needed = text + 1;
            let text = format!("the buffer has {capacity} bytes, the dump needs {needed}");
            return Err(Failure::new(BW_ELIMIT, text));
        }
        // SAFETY: not NULL, and longer than the string.
        unsafe {
            self.text(record, self.buffer.cast(), text)?;
            self.buffer.add(text).write(0);
        }
        Ok(())
    }

    /// Writes the first `room` bytes of the text to `to`, and returns the length of the whole text.
    ///
    /// # Safety
    /// `to` has `room` bytes.
    unsafe fn text(&self, record: &Record, to: *mut u8, room: usize) -> Result<usize, Failure> {
        let mut text = Text {
            to,
            room,
            length: 0,
        };
        let written = if self.json {
            serde_json::to_writer(&mut text, record).map_err(|error| error.to_string())
        } else {
            write!(text, "{record}").map_err(|error| error.to_string())
        };
        written.map_err(|error| Failure::new(BW_EINTERNAL, error))?;
        Ok(text.length)
    }
}

/// Keeps the first bytes of a text, and counts all of them.
struct Text {
    to: *mut u8,
    room: usize,
    length: usize,
}

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wanted = bytes.len().min(self.room.saturating_sub(self.length));
        if wanted != 0 {
            // SAFETY: within the room at `to`, which `bytes` does not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.to.add(self.length), wanted)
            };
        }
        self.length += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds `text`, with the time, to the queue pair's changes of state, for its dump. Examples: an
/// asynchronous event that arrived, or a step of a recovery. The last 64 are kept.
///
/// Errors: `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_note(qp: *mut bw_qp, text: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let qp = unsafe { get_mut(qp, "queue pair")? };
        if text.is_null() {
            return Err(Failure::null("the text"));
        }
        // SAFETY: the header's conventions on strings.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        // SAFETY: the header's conventions on threads.
        unsafe { qp.note(text.into_owned()) }
    })
}
