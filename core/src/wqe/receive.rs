//! Receive WQEs, of a queue pair's own receive queue and of a shared one.

use super::PostError;
use super::payload::check_length;
use super::segment::{DataSegment, SEGMENT};
use crate::be::{Be16, Be32, Be64};
use crate::wr::Sge;
use core::marker::PhantomData;
use core::num::NonZeroU32;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};
use static_assertions::const_assert_eq;

/// The lkey that ends a scatter/gather list shorter than the WQE (`MLX5_INVALID_LKEY`).
pub const LIST_END_LKEY: u32 = 0x100;

const LIST_END: DataSegment = DataSegment {
    byte_count: Be32::new(0),
    lkey: Be32::new(LIST_END_LKEY),
    addr: Be64::new(0),
};

/// A receive queue's memory: `count` WQEs of `stride` bytes, both powers of two.
///
/// ```text
///  0        16                    stride
///  │ data   │ data   │ list end │
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RecvRing<'m> {
    base: NonNull<u8>,
    /// Number of WQEs, minus one.
    mask: u32,
    stride: u32,
    max_sge: NonZeroU32,
    memory: PhantomData<&'m [u8]>,
}

// SAFETY: the memory is reached only by unsafe functions, whose callers guarantee who writes it
// when.
unsafe impl Send for RecvRing<'_> {}
// SAFETY: the memory is reached only by unsafe functions, whose callers guarantee who writes it
// when.
unsafe impl Sync for RecvRing<'_> {}

impl<'m> RecvRing<'m> {
    /// Creates a ring over `count` WQEs of `stride` bytes at `base`. `None` unless both are powers
    /// of two, `count` is at most 32768, `stride` between 16 and 2048, and `base` aligned to 16.
    ///
    /// # Safety
    /// The memory is valid for reads and writes for `'m`, and used only by the one queue that posts
    /// to it and the device.
    pub unsafe fn new(base: NonNull<u8>, count: u32, stride: u32) -> Option<Self> {
        let fits = count.is_power_of_two()
            && count <= 1 << 15
            && stride.is_power_of_two()
            && (SEGMENT as u32..=2048).contains(&stride);
        let aligned = base.as_ptr().addr().is_multiple_of(SEGMENT);
        let max_sge = NonZeroU32::new(stride / SEGMENT as u32)?;
        (fits && aligned).then(|| Self {
            base,
            mask: count - 1,
            stride,
            max_sge,
            memory: PhantomData,
        })
    }

    /// Number of WQEs.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.mask + 1
    }

    /// Most scatter/gather elements in a WQE.
    #[inline(always)]
    pub fn max_sge(&self) -> u32 {
        self.max_sge.get()
    }

    #[inline(always)]
    fn segment(&self, index: u32, segment: u32) -> NonNull<DataSegment> {
        let offset =
            (index & self.mask) as usize * self.stride as usize + segment as usize * SEGMENT;
        // SAFETY: callers pass a segment below `max_sge`, and the index is masked.
        unsafe { self.base.add(offset).cast() }
    }

    /// Writes the WQE at `index` and returns its number of scatter/gather elements: those of length
    /// zero are left out.
    ///
    /// # Errors
    /// More elements than the WQE holds, or one of 2 GiB or more: nothing is written then.
    ///
    /// # Safety
    /// The caller is the ring's poster, and the WQE is not in flight.
    #[inline(always)]
    pub unsafe fn write(&self, index: u32, sges: &[Sge]) -> Result<u32, PostError> {
        check(sges, self.max_sge())?;
        let mut at = 0;
        for sge in sges {
            if sge.length != 0 {
                // SAFETY: within the WQE, which the caller guarantees not to be in flight.
                unsafe { self.segment(index, at).write(DataSegment::from(sge)) }
                at += 1;
            }
        }
        if at < self.max_sge() {
            // SAFETY: within the WQE, which the caller guarantees not to be in flight.
            unsafe { self.segment(index, at).write(LIST_END) }
        }
        Ok(at)
    }

    /// The first scatter/gather element of the WQE at `index`. If it has none, one of length zero.
    ///
    /// # Safety
    /// The WQE has been posted, and is not written meanwhile.
    #[inline(always)]
    pub unsafe fn first(&self, index: u32) -> Sge {
        // SAFETY: the caller guarantees that the WQE is posted and not written.
        unsafe { self.segment(index, 0).read() }.into()
    }

    /// The scatter/gather elements of the WQE at `index`, up to the end of its list.
    ///
    /// # Safety
    /// The requirements of [`first`](Self::first).
    #[inline(always)]
    pub unsafe fn read(&self, index: u32) -> impl Iterator<Item = Sge> + use<'m> {
        // SAFETY: the caller guarantees that the WQE is posted and not written.
        unsafe { read_list(self.segment(index, 0), self.max_sge()) }
    }
}

/// A shared receive queue's memory: `count` WQEs of `stride` bytes, linked by index. Links are
/// accessed by atomics: a device may read a link that the poster is overwriting, and then finds
/// that another thread has consumed the WQE (see [`SrqConsumer`](crate::queue::SrqConsumer)).
///
/// ```text
///  0   2                  16       32
///  │ - │ next_wqe_index │ data   │ data │ list end │
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SrqRing<'m> {
    ring: RecvRing<'m>,
}

/// The first segment of a shared receive queue's WQE.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
struct NextSegment {
    reserved0: [u8; 2],
    next_wqe_index: Be16,
    signature: u8,
    reserved1: [u8; 11],
}

const_assert_eq!(size_of::<NextSegment>(), SEGMENT);

impl<'m> SrqRing<'m> {
    /// Creates a ring like [`RecvRing::new`], with a stride of at least 32.
    ///
    /// # Safety
    /// The requirements of [`RecvRing::new`].
    pub unsafe fn new(base: NonNull<u8>, count: u32, stride: u32) -> Option<Self> {
        // SAFETY: the caller guarantees that the memory is valid and used only by one queue and the
        // device.
        let ring = unsafe { RecvRing::new(base, count, stride)? };
        (stride >= 2 * SEGMENT as u32).then_some(Self { ring })
    }

    /// Number of WQEs.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.ring.count()
    }

    /// Most scatter/gather elements in a WQE.
    #[inline(always)]
    pub fn max_sge(&self) -> u32 {
        self.ring.max_sge() - 1
    }

    /// Links the WQE at `index` to its successor `next`.
    ///
    /// # Safety
    /// The caller is the ring's poster, and no successor of `index` was made known to the device.
    #[inline(always)]
    pub unsafe fn link(&self, index: u32, next: u32) {
        // Relaxed: published by the doorbell record.
        self.next_link(index)
            .store(Be16::new(next as u16).to_raw(), Ordering::Relaxed);
    }

    /// The successor of the WQE at `index`, masked to the ring whatever its link contains.
    #[inline(always)]
    pub fn next(&self, index: u32) -> u32 {
        // Relaxed: code that follows the links has loaded the doorbell record before.
        let next = Be16::from_raw(self.next_link(index).load(Ordering::Relaxed));
        u32::from(next.get()) & self.ring.mask
    }

    #[inline(always)]
    fn next_link(&self, index: u32) -> &'m AtomicU16 {
        let place = self.ring.segment(index, 0).cast::<NextSegment>();
        // SAFETY: within a WQE, which is valid for `'m`; the field is aligned and only accessed
        // here.
        unsafe { AtomicU16::from_ptr((&raw mut (*place.as_ptr()).next_wqe_index).cast()) }
    }

    /// Writes the scatter/gather elements of the WQE at `index`. Those of length zero are kept, as
    /// in rdma-core.
    ///
    /// # Errors
    /// Those of [`RecvRing::write`].
    ///
    /// # Safety
    /// The requirements of [`RecvRing::write`].
    #[inline(always)]
    pub unsafe fn write(&self, index: u32, sges: &[Sge]) -> Result<(), PostError> {
        check(sges, self.max_sge())?;
        for (at, sge) in (1..).zip(sges) {
            // SAFETY: within the WQE, which the caller guarantees not to be in flight.
            unsafe { self.ring.segment(index, at).write(DataSegment::from(sge)) }
        }
        if (sges.len() as u32) < self.max_sge() {
            // SAFETY: within the WQE, which the caller guarantees not to be in flight.
            unsafe {
                self.ring
                    .segment(index, 1 + sges.len() as u32)
                    .write(LIST_END)
            }
        }
        Ok(())
    }

    /// The first scatter/gather element of the WQE at `index`. If it has none, one of length zero.
    ///
    /// # Safety
    /// The requirements of [`RecvRing::first`].
    #[inline(always)]
    pub unsafe fn first(&self, index: u32) -> Sge {
        // SAFETY: the caller guarantees that the WQE is posted and not written.
        unsafe { self.ring.segment(index, 1).read() }.into()
    }

    /// The scatter/gather elements of the WQE at `index`, up to the end of its list.
    ///
    /// # Safety
    /// The requirements of [`RecvRing::read`].
    #[inline(always)]
    pub unsafe fn read(&self, index: u32) -> impl Iterator<Item = Sge> + use<'m> {
        // SAFETY: the caller guarantees that the WQE is posted and not written.
        unsafe { read_list(self.ring.segment(index, 1), self.max_sge()) }
    }
}

#[inline(always)]
fn check(sges: &[Sge], max: u32) -> Result<(), PostError> {
    if sges.len() > max as usize {
        return Err(PostError::TooManySges {
            given: sges.len(),
            max,
        });
    }
    sges.iter().try_for_each(check_length)
}

/// # Safety
/// `max` segments from `first` on are readable, and not written meanwhile.
#[inline(always)]
unsafe fn read_list(first: NonNull<DataSegment>, max: u32) -> impl Iterator<Item = Sge> {
    (0..max as usize).map_while(move |at| {
        // SAFETY: the caller guarantees that `max` segments are readable and not written.
        let segment = unsafe { first.add(at).read() };
        (segment.lkey.get() != LIST_END_LKEY).then(|| segment.into())
    })
}
