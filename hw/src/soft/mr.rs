//! Memory keys: a table that the data path reads without a lock.

use crate::error::Error;
use bellwire_core::access::AccessFlags;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const INDEX_BITS: u32 = 16;

/// Regions that a device can have registered at once.
pub(super) const MAX_MR: usize = 1 << INDEX_BITS;

/// One key. Zero in `key` means that the entry is free: no key is zero.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Entry {
    key: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    addr: AtomicU64,
    length: AtomicU64,
}

/// The keys of a device.
///
/// A key is an index and some random bits, scrambled so that the next one cannot be told from it. It
/// has to match the whole key in the entry: one that was never given out reaches nothing.
#[derive(Debug)]
pub(super) struct MrTable {
    entries: Box<[Entry]>,
    multiplier: u32,
    inverse: u32,
    salt: u32,
}

/// What memory a request wants to reach, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub key: u32,
    pub pd: u32,
    pub addr: u64,
    pub length: u64,
    pub access: AccessFlags,
}

/// Inverse of an odd number modulo 2^32, by Newton's iteration: each step doubles the right bits.
const fn inverse(odd: u32) -> u32 {
    let mut x = odd;
    let mut step = 0;
    while step < 5 {
        x = x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x)));
        step += 1;
    }
    x
}

impl MrTable {
    pub fn new(seed: u64) -> Self {
        let multiplier = (seed as u32) | 1;
        Self {
            entries: (0..MAX_MR).map(|_| Entry::default()).collect(),
            multiplier,
            inverse: inverse(multiplier),
            salt: (seed >> 32) as u32,
        }
    }

    #[inline(always)]
    fn entry(&self, key: u32) -> &Entry {
        let plain = (key ^ self.salt).wrapping_mul(self.inverse);
        // SAFETY: the mask keeps the index below MAX_MR, the table's length.
        unsafe { self.entries.get_unchecked(plain as usize & (MAX_MR - 1)) }
    }

    /// Registers memory; the lkey and rkey are one. Under the device's lock.
    pub fn register(
        &self,
        index: usize,
        random: u32,
        pd: u32,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> u32 {
        let mut tag = random;
        let key = loop {
            let plain = index as u32 | tag << INDEX_BITS;
            match plain.wrapping_mul(self.multiplier) ^ self.salt {
                // Zero is no key, and 0x100 ends a receive's list.
                0 | bellwire_core::wqe::LIST_END_LKEY => tag = tag.wrapping_add(1),
                key => break key,
            }
        };
        let entry = &self.entries[index];
        entry.pd.store(pd, Ordering::Relaxed);
        entry.access.store(access.bits(), Ordering::Relaxed);
        entry.addr.store(addr, Ordering::Relaxed);
        entry.length.store(length, Ordering::Relaxed);
        // Release: partner of the acquire in `reach`.
        entry.key.store(key, Ordering::Release);
        key
    }

    /// Takes a key back and gives its index. The entry may be used again, and the memory go, once
    /// every section that may have seen it has been left. Under the device's lock.
    pub fn revoke(&self, key: u32) -> Result<usize, Error> {
        let entry = self.entry(key);
        if key == 0 || entry.key.load(Ordering::Relaxed) != key {
            return Err(Error::UnknownKey { key });
        }
        entry.key.store(0, Ordering::Relaxed);
        Ok(((key ^ self.salt).wrapping_mul(self.inverse) as usize) & (MAX_MR - 1))
    }

    /// The memory that a request names, if its key covers it and allows the access.
    ///
    /// Valid until the caller leaves its section (or gives up the device's lock).
    #[inline(always)]
    pub fn reach(&self, reach: Reach) -> Option<*mut u8> {
        let entry = self.entry(reach.key);
        // Acquire: partner of the release in `register`. A key that is being revoked may still be
        // seen; whoever revokes waits for this section.
        let found = entry.key.load(Ordering::Acquire) == reach.key && reach.key != 0;
        let addr = entry.addr.load(Ordering::Relaxed);
        let length = entry.length.load(Ordering::Relaxed);
        let offset = reach.addr.wrapping_sub(addr);
        let within = offset <= length && reach.length <= length - offset;
        let allowed = entry.access.load(Ordering::Relaxed) & reach.access.bits()
            == reach.access.bits()
            && entry.pd.load(Ordering::Relaxed) == reach.pd;
        (found && within && allowed)
            // The registrar exposed the memory's provenance.
            .then(|| std::ptr::with_exposed_provenance_mut(reach.addr as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(key: u32, addr: u64, length: u64) -> Reach {
        Reach {
            key,
            pd: 1,
            addr,
            length,
            access: AccessFlags::REMOTE_WRITE,
        }
    }

    #[test]
    fn a_key_reaches_its_memory_and_nothing_else() {
        let table = MrTable::new(0x1234_5678_9abc_def0);
        let write = AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
        let key = table.register(7, 0x55, 1, 0x1000, 0x100, write);
        assert!(table.reach(reach(key, 0x1000, 0x100)).is_some());
        assert!(table.reach(reach(key, 0x1100, 0)).is_some());
        for (addr, length) in [
            (0xfff, 1),
            (0x1000, 0x101),
            (0x1100, 1),
            (u64::MAX, 2),
            (0, u64::MAX),
        ] {
            assert!(
                table.reach(reach(key, addr, length)).is_none(),
                "{addr:#x} {length:#x}"
            );
        }
        for bit in 0..32 {
            assert!(table.reach(reach(key ^ 1 << bit, 0x1000, 1)).is_none());
        }
        assert!(
            table
                .reach(Reach {
                    pd: 2,
                    ..reach(key, 0x1000, 1)
                })
                .is_none()
        );
        let read = Reach {
            access: AccessFlags::REMOTE_READ,
            ..reach(key, 0x1000, 1)
        };
        assert!(table.reach(read).is_none());
        assert_eq!(table.revoke(key).unwrap(), 7);
        assert!(table.reach(reach(key, 0x1000, 1)).is_none());
        assert!(table.revoke(key).is_err());
        assert!(table.reach(reach(0, 0, 0)).is_none());
    }

    #[test]
    fn neighbouring_keys_differ_in_many_bits() {
        let table = MrTable::new(0x9e37_79b9_7f4a_7c15);
        let keys: Vec<u32> = (0..256)
            .map(|at| table.register(at, at as u32 * 7919, 1, 0, 1, AccessFlags::empty()))
            .collect();
        let mean = keys
            .windows(2)
            .map(|pair| (pair[0] ^ pair[1]).count_ones())
            .sum::<u32>()
            / 255;
        assert!(mean >= 8, "{mean}");
    }
}
