//! The `wr_id` that libibverbs is given: it identifies the request, and says how its completion is to be
//! read. It is never a pointer.
//!
//! ```text
//! 63   56         32              0
//! │ kind │ user index │ counter   │
//! ```

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A send request whose completion has no byte count.
    Send = 0,
    /// A receive of a connected queue pair.
    Recv = 1,
    /// A READ or an atomic operation, whose completion has a byte count.
    Fetch = 2,
    /// A receive of a datagram.
    Datagram = 3,
    /// A receive of a shared receive queue: the completion's queue pair number says which queue pair consumed
    /// it.
    Shared = 4,
    /// The last entry of a send queue that is drained: nothing completes after it.
    LastSend = 5,
    /// The last entry of a receive queue that is drained.
    LastRecv = 6,
    /// A receive of a shared receive queue for XRC: the user index identifies the queue.
    Xrc = 7,
}

/// A `wr_id` without its counter: what all requests of one life of a queue have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub fn new(kind: Kind, user_index: u32) -> Self {
        Self((kind as u64) << 56 | u64::from(user_index & 0xff_ffff) << 32)
    }

    /// The value, to be kept in an atomic.
    #[inline(always)]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The tag with this value, which [`bits`](Self::bits) returned.
    #[inline(always)]
    pub fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The queue's user index.
    pub fn user_index(self) -> u32 {
        parts(self.0).1
    }

    #[inline(always)]
    pub fn of(self, counter: u32) -> u64 {
        self.0 | u64::from(counter)
    }

    /// The tag of the same queue for another kind of request.
    #[inline(always)]
    pub fn with(self, kind: Kind) -> Self {
        Self(self.0 & !(0xff << 56) | (kind as u64) << 56)
    }
}

/// The parts of a completion's `wr_id`: the number of its kind, the user index, and the counter.
#[inline(always)]
pub(super) fn bits(wr_id: u64) -> (u8, u32, u32) {
    let user_index = (wr_id >> 32) as u32 & 0xff_ffff;
    ((wr_id >> 56) as u8, user_index, wr_id as u32)
}

/// The parts of a completion's `wr_id`: its kind, the user index, and the counter.
#[inline(always)]
pub(super) fn parts(wr_id: u64) -> (Option<Kind>, u32, u32) {
    let (kind, user_index, counter) = bits(wr_id);
    let kind = match kind {
        0 => Some(Kind::Send),
        1 => Some(Kind::Recv),
        2 => Some(Kind::Fetch),
        3 => Some(Kind::Datagram),
        4 => Some(Kind::Shared),
        5 => Some(Kind::LastSend),
        6 => Some(Kind::LastRecv),
        7 => Some(Kind::Xrc),
        // Such an identifier is never posted.
        _ => None,
    };
    (kind, user_index, counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_comes_out() {
        for number in 0..=u8::MAX {
            let (kind, index, counter) = parts(u64::from(number) << 56 | 0x00ab_cdef_8765_4321);
            assert_eq!((index, counter), (0xab_cdef, 0x8765_4321));
            assert_eq!(kind.map(|kind| kind as u8), (number < 8).then_some(number));
        }
        let tag = Tag::new(Kind::Recv, 0xff12_3456);
        assert_eq!(parts(tag.of(7)), (Some(Kind::Recv), 0x12_3456, 7));
        let fetch = tag.with(Kind::Fetch);
        assert_eq!(
            parts(fetch.of(u32::MAX)),
            (Some(Kind::Fetch), 0x12_3456, u32::MAX)
        );
    }
}
