//! Memory that a node shares with its peers, as somebody finds it who has only the process.

/// A mapping that is shared with a peer.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    pub at: usize,
    pub bytes: usize,
}

impl Shared {
    /// Those of this name that may be written to, or only read.
    pub fn all(name: &str, writable: bool) -> Vec<Self> {
        let access = if writable { "rw-s" } else { "r--s" };
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let named = maps
            .lines()
            .filter(|line| line.contains(name) && line.contains(access));
        let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
        let of = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let at = number(from);
            let bytes = number(to) - at;
            Some(Self { at, bytes })
        };
        named.filter_map(of).collect()
    }

    fn word(&self, at: usize) -> *mut u32 {
        let at = (at % self.bytes) & !3;
        std::ptr::with_exposed_provenance_mut(self.at + at)
    }

    pub fn read(&self, at: usize) -> u32 {
        // SAFETY: aligned, and within the mapping, or the memory that took its place when the peer ended.
        unsafe { self.word(at).read_volatile() }
    }

    pub fn write(&self, at: usize, value: u32) {
        // SAFETY: aligned, and within the mapping, or the memory that took its place when the peer ended;
        // both can be written.
        unsafe { self.word(at).write_volatile(value) };
    }

    /// Puts bytes, of which the first stands at a word.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        for (index, word) in bytes.chunks(4).enumerate() {
            let mut whole = [0; 4];
            whole[..word.len()].copy_from_slice(word);
            self.write(at + 4 * index, u32::from_le_bytes(whole));
        }
    }
}
