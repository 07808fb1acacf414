//! Where the rings of queue pairs are, for who compares what is written there: [`uverbs_preload_place`].

use crate::context::Context;
use bellwire::rings::Ring;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a queue is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Place {
    /// The ring's first byte.
    pub ring: *mut u8,
    /// Its doorbell record; of a completion queue the consumer's, and the one for arming behind it.
    pub record: *mut u8,
    /// Of a send queue: the page (4096 bytes) of its doorbell register, as the device sees it.
    pub page: *mut u8,
    /// Entries of the ring; of a send queue basic blocks.
    pub count: u32,
    /// Bytes of an entry.
    pub stride: u32,
    /// Of a send queue: how completions name the queue pair.
    pub user_index: u32,
}

// SAFETY: addresses, whose use is up to who asks for them.
unsafe impl Send for Place {}

/// Where the queues of a queue pair are: sends, receives, the shared receive queue, the completion queues
/// of both (as they were when it was created). It need not have all.
pub type Places = [Option<Place>; 5];

fn places() -> MutexGuard<'static, BTreeMap<u32, Places>> {
    static PLACES: Mutex<BTreeMap<u32, Places>> = Mutex::new(BTreeMap::new());
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes down where a queue pair's queues are.
pub fn add(qpn: u32, of: Places) {
    places().insert(qpn, of);
}

/// It has gone.
pub fn remove(qpn: u32) {
    places().remove(&qpn);
}

impl Place {
    /// A ring of entries of `stride` bytes.
    pub fn of<R>(ring: NonNull<u8>, count: u32, stride: u32, record: NonNull<R>) -> Self {
        Self {
            ring: ring.as_ptr(),
            record: record.as_ptr().cast(),
            page: null_mut(),
            count,
            stride,
            user_index: 0,
        }
    }

    /// The send queue of a queue pair with these records, rung on this page.
    pub fn of_sends<R>(
        ring: Ring,
        records: NonNull<[R; 2]>,
        (context, page): (&Context, u32),
        user_index: u32,
    ) -> Self {
        const BLOCK: u32 = 64;
        // SAFETY: the second of two.
        let record = unsafe { records.cast::<R>().add(1) };
        Self {
            page: context.uars().at(page),
            user_index,
            ..Self::of(ring.start, ring.count, BLOCK, record)
        }
    }
}

/// Says where a queue of the queue pair of this number is: `kind` 0 for sends, 1 for receives, 2 for the
/// shared receive queue, 3 and 4 for the completion queues of sends and receives. Gives zero, or `ENOENT`
/// where there is no such queue.
///
/// The device reads and writes there, unless it pauses ([`uverbs_preload_control`]).
///
/// # Safety
/// `place` can be written.
///
/// [`uverbs_preload_control`]: crate::control::uverbs_preload_control
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uverbs_preload_place(kind: c_uint, qpn: u32, place: *mut Place) -> c_int {
    let found = places().get(&qpn).and_then(|of| *of.get(kind as usize)?);
    let Some(found) = found else {
        return libc::ENOENT;
    };
    // SAFETY: the caller guarantees that `place` can be written.
    unsafe { place.write(found) };
    0
}
