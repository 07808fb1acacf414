//! Access rights of memory regions, memory windows and queue pairs.

use bitflags::bitflags;

bitflags! {
    /// Access rights (`ibv_access_flags`, the same bits).
    ///
    /// A memory region takes all of them. A queue pair (`qp_access_flags`) uses only the three
    /// `REMOTE_` rights, which limit what its peer may do, whatever the region allows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write the memory: received messages, results of RDMA READs and atomics.
        const LOCAL_WRITE = 1;
        /// A peer may RDMA WRITE. The verbs require `LOCAL_WRITE` with it.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may execute atomics. The verbs require `LOCAL_WRITE` with it.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses are offsets from the start of the region or window, not virtual addresses.
        const ZERO_BASED = 1 << 5;
        /// Pages are faulted in on demand instead of pinned.
        const ON_DEMAND = 1 << 6;
        /// The memory consists of huge pages.
        const HUGETLB = 1 << 7;
        /// Writes may reach memory in a different order than they were sent. Ignored by devices
        /// that do not support it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

#[cfg(test)]
mod tests {
    use super::AccessFlags;

    #[test]
    fn bits_are_those_of_the_verbs() {
        let expected = [
            ("LOCAL_WRITE", 1),
            ("REMOTE_WRITE", 2),
            ("REMOTE_READ", 4),
            ("REMOTE_ATOMIC", 8),
            ("MW_BIND", 16),
            ("ZERO_BASED", 32),
            ("ON_DEMAND", 64),
            ("HUGETLB", 128),
            ("RELAXED_ORDERING", 0x10_0000),
        ];
        for (name, bits) in expected {
            assert_eq!(
                AccessFlags::from_name(name).map(|f| f.bits()),
                Some(bits),
                "{name}"
            );
        }
        assert_eq!(AccessFlags::all().iter().count(), expected.len());
    }
}
