//! Memory keys: a table that the data path reads without a lock.

use crate::error::Error;
use crate::fabric::{Export, Shown};
use crate::generation::Generation;
use crate::pinned::Sparse;
use bellwire_core::access::AccessFlags;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const INDEX_BITS: u32 = 16;

/// Maximum number of memory regions and windows of a device.
pub(super) const MAX_MR: usize = 1 << INDEX_BITS;

/// Number of low bits that are a key's variant. The user of a window chooses them.
const VARIANT_BITS: u32 = 8;
const VARIANT: u32 = (1 << VARIANT_BITS) - 1;

/// One key. `key` is zero while the entry is unused: no key is zero.
#[derive(Debug, Default)]
#[repr(C, align(32))]
struct Entry {
    key: AtomicU32,
    /// A protection domain, or [`of_qp`].
    owner: AtomicU32,
    access: AtomicU32,
    addr: AtomicU64,
    length: AtomicU64,
}

/// The owner of memory that only the peers of one queue pair may access.
pub(super) const fn of_qp(qpn: u32) -> u32 {
    qpn | 1 << 31
}

/// Local reads, which every region allows and no window.
pub(super) const LOCAL_READ: u32 = 1 << 31;

/// Peers of the fabric may map the memory, whatever remote access the key allows.
pub(super) const SHOWN: u32 = 1 << 30;

const ZERO_BASED: u32 = AccessFlags::ZERO_BASED.bits();

/// The memory keys of a device.
///
/// A key consists of an index and random bits, scrambled so that one key does not reveal the next. The entry
/// contains the whole key, which has to match: a key that was never issued gives no access.
#[derive(Debug)]
pub(super) struct MrTable {
    keys: Keys,
    multiplier: u32,
    /// The memory that `keys` points to.
    _memory: Storage,
}

/// Where the keys are kept.
#[derive(Debug)]
enum Storage {
    Own(#[expect(dead_code, reason = "only to be kept")] Sparse),
    /// In memory that other processes can read.
    Shared(#[expect(dead_code, reason = "only to be kept")] Arc<Export>),
}

/// The memory keys of a device, in this process or another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    entries: NonNull<Entry>,
    scramble: Scramble,
}

// SAFETY: it points to atomics.
unsafe impl Send for Keys {}
// SAFETY: it points to atomics.
unsafe impl Sync for Keys {}

/// Finds the entry of a key.
#[derive(Clone, Copy, Debug)]
pub struct Scramble {
    inverse: u32,
    salt: u32,
}

impl Scramble {
    pub fn from_bits(bits: u64) -> Self {
        Self {
            inverse: bits as u32,
            salt: (bits >> 32) as u32,
        }
    }

    pub fn to_bits(self) -> u64 {
        u64::from(self.salt) << 32 | u64::from(self.inverse)
    }

    /// The index of a key's entry.
    #[inline(always)]
    fn index(self, key: u32) -> usize {
        let plain = (key >> VARIANT_BITS ^ self.salt).wrapping_mul(self.inverse);
        plain as usize & (MAX_MR - 1)
    }
}

impl Keys {
    /// The keys of another process's device.
    pub fn of(shown: Shown) -> Self {
        Self {
            entries: shown.keys().cast(),
            scramble: shown.scramble(),
        }
    }

    #[inline(always)]
    fn entry(&self, key: u32) -> &Entry {
        // SAFETY: the mask keeps the index below MAX_MR, the table's length. The table outlives the keys, and
        // any bits are a valid entry.
        unsafe { self.entries.add(self.scramble.index(key)).as_ref() }
    }

    /// Counts the revocations that end a [`Grant`]. Those of windows are not counted.
    #[inline(always)]
    pub fn generation(&self) -> &Generation {
        // SAFETY: within the table; any bits are a count.
        unsafe { self.entries.byte_add(AT_GENERATION).cast().as_ref() }
    }

    /// The grant of a key, which was checked in this generation. `None`: the key is not a region's.
    pub fn grant(self, generation: u64, key: u32) -> Option<Grant> {
        let entry = self.entry(key);
        // Relaxed, all: as in `covers`.
        let is_region = entry.access.load(Ordering::Relaxed) & LOCAL_READ != 0;
        is_region.then(|| Grant {
            generation,
            key,
            addr: entry.addr.load(Ordering::Relaxed),
            length: entry.length.load(Ordering::Relaxed),
        })
    }

    /// Whether the key belongs to the protection domain, covers the addresses and allows the access. This is
    /// sufficient for local access; for remote access, [`reach`](MrTable::reach) checks the other cases.
    ///
    /// Valid until the caller leaves its section (or releases the device's lock).
    #[inline(always)]
    pub fn covers(self, reach: &Reach) -> bool {
        let entry = self.entry(reach.key);
        // Acquire: pairs with the Release in `open`. A key that is being revoked may still be seen; the
        // revoking thread waits for this section.
        let found = entry.key.load(Ordering::Acquire) == reach.key && reach.key != 0;
        // Relaxed, here and below: written before the key. One after the other, so that few values are held.
        let allowed = found
            && entry.access.load(Ordering::Relaxed) & (reach.access | ZERO_BASED) == reach.access
            && entry.owner.load(Ordering::Relaxed) == reach.pd;
        if !allowed {
            return false;
        }
        let offset = (reach.addr).wrapping_sub(entry.addr.load(Ordering::Relaxed));
        let length = entry.length.load(Ordering::Relaxed);
        offset <= length && reach.length <= length - offset
    }
}

/// Where the table has its [generation](Keys::generation): a line behind the entries.
pub const AT_GENERATION: usize = MAX_MR * size_of::<Entry>();

/// Size of the table in bytes.
pub const KEYS_BYTES: usize = AT_GENERATION + 64;

/// A range of memory to which a key gives access, as was checked: it holds while the [generation](Keys::generation) is the
/// same.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    generation: u64,
    key: u32,
    pub addr: u64,
    pub length: u64,
}

impl Grant {
    /// Whatever the generation and the key are, it covers no byte.
    pub const NOTHING: Self = Self {
        generation: 0,
        key: 0,
        addr: 0,
        length: 0,
    };

    /// Whether the key gives access to these addresses, in the `generation` that is now. There is at least one.
    #[inline(always)]
    pub fn covers(&self, generation: u64, key: u32, addr: u64, length: u64) -> bool {
        self.generation == generation && self.is_of(key, addr, length)
    }

    /// Like [`covers`](Self::covers), in the generation in which it was checked.
    #[inline(always)]
    fn is_of(&self, key: u32, addr: u64, length: u64) -> bool {
        debug_assert!(length != 0);
        let offset = addr.wrapping_sub(self.addr);
        self.key == key && offset <= self.length && length <= self.length - offset
    }

    /// What of it is in these addresses as well.
    pub fn within(self, addr: u64, length: u64) -> Self {
        let start = self.addr.max(addr);
        let end = (self.addr.saturating_add(self.length)).min(addr.saturating_add(length));
        Self {
            addr: start,
            length: end.saturating_sub(start),
            ..self
        }
    }
}

/// The grant of the local memory that a queue has accessed last in one way.
#[derive(Clone, Copy, Debug)]
pub struct LocalGrant {
    pd: u32,
    /// Access flags, or [`LOCAL_READ`].
    access: u32,
    grant: Grant,
}

impl LocalGrant {
    /// Whether the key gives access to these addresses, of which there is at least one, if the grant still holds.
    #[inline(always)]
    pub fn covers(&self, key: u32, addr: u64, length: u64) -> bool {
        self.grant.is_of(key, addr, length)
    }

    pub fn new(pd: u32, access: u32) -> Self {
        Self {
            pd,
            access,
            grant: Grant::NOTHING,
        }
    }
}

/// The memory that a request accesses, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub key: u32,
    pub pd: u32,
    /// The responder's queue pair.
    pub qpn: u32,
    pub addr: u64,
    pub length: u64,
    /// Access flags, and [`LOCAL_READ`].
    pub access: u32,
}

/// What a key gives access to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// A protection domain, or [`of_qp`].
    pub owner: u32,
    /// Access flags, and [`LOCAL_READ`].
    pub access: u32,
    /// Address of the memory.
    pub addr: u64,
    pub length: u64,
}

/// Inverse of an odd number modulo 2^32, by Newton's iteration: each step doubles the number of correct bits.
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
    /// A table that only this process can read.
    pub fn new(seed: u64) -> Result<Self, Error> {
        // Zero bytes are unused entries, and few of them are ever used.
        let entries = Sparse::zeroed(KEYS_BYTES)?;
        let start = entries.start().cast();
        Ok(Self::at(seed, start, Storage::Own(entries)))
    }

    /// A table that other processes can read.
    pub fn shared(seed: u64, export: Arc<Export>) -> Self {
        let table = Self::at(seed, export.keys().cast(), Storage::Shared(export.clone()));
        export.set_scramble(table.keys.scramble);
        table
    }

    fn at(seed: u64, entries: NonNull<Entry>, memory: Storage) -> Self {
        let multiplier = (seed as u32) | 1;
        let scramble = Scramble {
            inverse: inverse(multiplier),
            salt: (seed >> 32) as u32,
        };
        Self {
            keys: Keys { entries, scramble },
            multiplier,
            _memory: memory,
        }
    }

    /// See [`Keys::grant`].
    pub fn grant(&self, generation: u64, key: u32) -> Option<Grant> {
        self.keys.grant(generation, key)
    }

    /// See [`Keys::generation`].
    #[inline(always)]
    pub fn generation(&self) -> &Generation {
        self.keys.generation()
    }

    /// The index of a key's entry.
    #[inline(always)]
    pub fn index(&self, key: u32) -> usize {
        self.keys.scramble.index(key)
    }

    #[inline(always)]
    fn entry(&self, key: u32) -> &Entry {
        self.keys.entry(key)
    }

    /// A key for this index, which gives no access yet. Under the device's lock.
    pub fn reserve(&self, index: usize, random: u32) -> u32 {
        let variant = random & VARIANT;
        let mut tag = random >> VARIANT_BITS;
        loop {
            let plain = index as u32 | tag << INDEX_BITS;
            let upper = plain.wrapping_mul(self.multiplier) ^ self.keys.scramble.salt;
            match upper & u32::MAX >> VARIANT_BITS {
                // Zero is no key, and lkey 0x100 ends a receive's list of elements.
                0 | 1 => tag = tag.wrapping_add(1),
                upper => return upper << VARIANT_BITS | variant,
            }
        }
    }

    /// Gives an unused key access to memory. Under the device's lock.
    pub fn open(&self, key: u32, opening: Opening) {
        let entry = self.entry(key);
        entry.owner.store(opening.owner, Ordering::Relaxed);
        entry.access.store(opening.access, Ordering::Relaxed);
        entry.addr.store(opening.addr, Ordering::Relaxed);
        entry.length.store(opening.length, Ordering::Relaxed);
        // Release: pairs with the Acquire in `covers` and `reach`.
        entry.key.store(key, Ordering::Release);
    }

    /// Adds [`SHOWN`] to the access of the caller's key.
    pub fn set_shown(&self, key: u32) {
        // Relaxed: it orders no other data; the region has not been returned to its user yet.
        (self.keys.entry(key).access).fetch_or(SHOWN, Ordering::Relaxed);
    }

    /// What a key gives access to. Under the device's lock.
    pub fn opening(&self, key: u32) -> Option<Opening> {
        let entry = self.entry(key);
        // Relaxed: entries are written under the lock, which is held.
        let open = key != 0 && entry.key.load(Ordering::Relaxed) == key;
        open.then(|| Opening {
            owner: entry.owner.load(Ordering::Relaxed),
            access: entry.access.load(Ordering::Relaxed),
            addr: entry.addr.load(Ordering::Relaxed),
            length: entry.length.load(Ordering::Relaxed),
        })
    }

    /// Revokes a key and returns its index. The entry may be reused, and the memory freed, once every section
    /// that may have seen the key has been left. Under the device's lock.
    pub fn revoke(&self, key: u32) -> Result<usize, Error> {
        let entry = self.entry(key);
        if key == 0 || entry.key.load(Ordering::Relaxed) != key {
            return Err(Error::UnknownKey { key });
        }
        entry.key.store(0, Ordering::Relaxed);
        if entry.access.load(Ordering::Relaxed) & LOCAL_READ != 0 {
            self.keys.generation().pass();
        }
        Ok(self.index(key))
    }

    /// See [`Keys::covers`].
    #[inline(always)]
    pub fn covers(&self, reach: &Reach) -> bool {
        self.keys.covers(reach)
    }

    /// Whether the key is that of memory of these addresses, as for [`covers`](Self::covers).
    #[inline(always)]
    pub fn covers_local(&self, local: &mut LocalGrant, key: u32, addr: u64, length: u64) -> bool {
        self.is_granted(local, key, addr, length) || self.look_up(local, key, addr, length)
    }

    /// Like [`covers_local`](Self::covers_local), by the grant alone; calls nothing.
    #[inline(always)]
    pub fn is_granted(&self, local: &LocalGrant, key: u32, addr: u64, length: u64) -> bool {
        (local.grant).covers(self.keys.generation().now(), key, addr, length)
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self, local: &mut LocalGrant, key: u32, addr: u64, length: u64) -> bool {
        // First: see `generation`.
        let generation = self.keys.generation().now();
        let covers = self.covers(&Reach {
            key,
            pd: local.pd,
            qpn: 0,
            addr,
            length,
            access: local.access,
        });
        if covers && let Some(grant) = self.keys.grant(generation, key) {
            local.grant = grant;
        }
        covers
    }

    /// The memory that a peer's request names, if its key covers it and allows the access. In addition to
    /// [`covers`](Self::covers), this handles zero-based addresses, and windows that belong to a queue pair.
    /// Valid for as long as the result of `covers`.
    #[cold]
    pub fn reach(&self, reach: &Reach) -> Option<NonNull<u8>> {
        let entry = self.entry(reach.key);
        // Acquire: pairs with the Release in `open`.
        let found = entry.key.load(Ordering::Acquire) == reach.key && reach.key != 0;
        let addr = entry.addr.load(Ordering::Relaxed);
        let length = entry.length.load(Ordering::Relaxed);
        let access = entry.access.load(Ordering::Relaxed);
        let owner = entry.owner.load(Ordering::Relaxed);
        let offset = if access & ZERO_BASED != 0 {
            reach.addr
        } else {
            reach.addr.wrapping_sub(addr)
        };
        let within = offset <= length && reach.length <= length - offset;
        let owned = owner == reach.pd || owner == of_qp(reach.qpn);
        let allowed = access & reach.access == reach.access && owned;
        // Registration exposed the memory's provenance.
        let place = std::ptr::with_exposed_provenance_mut(addr.wrapping_add(offset) as usize);
        NonNull::new(place).filter(|_| found && within && allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: u32 = AccessFlags::REMOTE_WRITE.bits();

    fn reach(key: u32, addr: u64, length: u64) -> Reach {
        Reach {
            key,
            pd: 1,
            qpn: 9,
            addr,
            length,
            access: WRITE,
        }
    }

    fn opens(table: &MrTable, reach: Reach) -> bool {
        table.covers(&reach) || table.reach(&reach).is_some()
    }

    fn open(table: &MrTable, index: usize, random: u32, opening: Opening) -> u32 {
        let key = table.reserve(index, random);
        table.open(key, opening);
        key
    }

    const OPENING: Opening = Opening {
        owner: 1,
        access: WRITE | AccessFlags::LOCAL_WRITE.bits(),
        addr: 0x1000,
        length: 0x100,
    };

    #[test]
    fn a_key_reaches_its_memory_and_nothing_else() {
        let table = MrTable::new(0x1234_5678_9abc_def0).unwrap();
        let key = open(&table, 7, 0x55, OPENING);
        assert!(opens(&table, reach(key, 0x1000, 0x100)));
        assert!(opens(&table, reach(key, 0x1100, 0)));
        for (addr, length) in [
            (0xfff, 1),
            (0x1000, 0x101),
            (0x1100, 1),
            (u64::MAX, 2),
            (0, u64::MAX),
        ] {
            assert!(
                !opens(&table, reach(key, addr, length)),
                "{addr:#x} {length:#x}"
            );
        }
        for bit in 0..32 {
            assert!(!opens(&table, reach(key ^ 1 << bit, 0x1000, 1)));
        }
        let other_pd = Reach {
            pd: 2,
            ..reach(key, 0x1000, 1)
        };
        assert!(!opens(&table, other_pd));
        for access in [AccessFlags::REMOTE_READ.bits(), LOCAL_READ] {
            let read = Reach {
                access,
                ..reach(key, 0x1000, 1)
            };
            assert!(!opens(&table, read));
        }
        assert_eq!(table.revoke(key).unwrap(), 7);
        assert!(!opens(&table, reach(key, 0x1000, 1)));
        assert!(table.revoke(key).is_err());
        assert!(!opens(&table, reach(0, 0, 0)));
    }

    #[test]
    fn what_belongs_to_a_queue_pair_is_for_its_peers() {
        let table = MrTable::new(3).unwrap();
        let opening = Opening {
            owner: of_qp(9),
            ..OPENING
        };
        let key = open(&table, 7, 0x55, opening);
        assert!(opens(&table, reach(key, 0x1000, 0x100)));
        assert!(!opens(&table, reach(key, 0x1000, 0x101)));
        let other = Reach {
            qpn: 8,
            ..reach(key, 0x1000, 1)
        };
        assert!(!opens(&table, other));
    }

    #[test]
    fn zero_based_addresses_count_from_the_start() {
        let table = MrTable::new(4).unwrap();
        let opening = Opening {
            access: OPENING.access | ZERO_BASED,
            ..OPENING
        };
        let key = open(&table, 7, 0x55, opening);
        let found = table
            .reach(&reach(key, 0xff, 1))
            .map(|place| place.addr().get());
        assert_eq!(found, Some(0x10ff));
        for (addr, length) in [(0x1000, 1), (0x100, 1), (0, 0x101), (u64::MAX, 1)] {
            assert!(!opens(&table, reach(key, addr, length)), "{addr:#x}");
        }
    }

    #[test]
    fn the_low_byte_is_the_users() {
        let table = MrTable::new(5).unwrap();
        for index in [0, 1, 77, MAX_MR - 1] {
            let key = table.reserve(index, index as u32 * 7919);
            for variant in 0..=VARIANT {
                let key = key & !VARIANT | variant;
                table.open(key, OPENING);
                assert!(opens(&table, reach(key, 0x1000, 1)));
                assert!(!opens(&table, reach(key ^ 1, 0x1000, 1)));
                assert_eq!(table.revoke(key).unwrap(), index);
            }
        }
    }

    #[test]
    fn no_key_is_zero_or_ends_a_list() {
        for seed in 0..64u64 {
            let table = MrTable::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
            for random in 0..4096u32 {
                let key = table.reserve(random as usize & 0xff, random << VARIANT_BITS);
                assert!(key > bellwire_core::wqe::LIST_END_LKEY);
            }
        }
    }

    #[test]
    fn neighbouring_keys_differ_in_many_bits() {
        let table = MrTable::new(0x9e37_79b9_7f4a_7c15).unwrap();
        let keys: Vec<u32> = (0..256)
            .map(|at| table.reserve(at, at as u32 * 7919))
            .collect();
        let mean = keys
            .windows(2)
            .map(|pair| (pair[0] ^ pair[1]).count_ones())
            .sum::<u32>()
            / 255;
        assert!(mean >= 8, "{mean}");
    }
}
