//! What a packet is, and the queue pairs that it names.

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A request of a connected queue pair. Names of connections have nothing in this bit.
    Request = 0x40,
    /// A datagram.
    Datagram = 2,
    /// The response to a request.
    Answer = 3,
    /// Requests the responses that are pending, now.
    Probe = 4,
    /// Data of a READ response.
    Data = 5,
    /// Acknowledgements of requests of several queue pairs. It names none.
    Acks = 6,
}

impl Kind {
    fn from_bits(bits: u8) -> Option<Self> {
        [
            Self::Request,
            Self::Datagram,
            Self::Answer,
            Self::Probe,
            Self::Data,
            Self::Acks,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == bits)
    }
}

/// Eight bytes of a packet: its kind, the number of the queue pair that it is for, and of a request that of the
/// requester's. Of one that has arrived nothing has been checked.
///
/// ```text
/// 63‥56 kind   55‥32 destination   23‥0 source
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Name(u64);

/// Bits of a queue pair's number.
const NUMBER: u32 = 0xff_ffff;

impl Name {
    /// A packet of this kind for a queue pair.
    #[inline(always)]
    pub const fn new(kind: Kind, dst: u32) -> Self {
        Self((kind as u64) << 56 | ((dst & NUMBER) as u64) << 32)
    }

    /// A request.
    #[inline(always)]
    pub const fn request(dst: u32, src: u32) -> Self {
        Self(Self::new(Kind::Request, dst).0 | (src & NUMBER) as u64)
    }

    #[inline(always)]
    pub const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// `None`: there is no such kind.
    pub fn kind(self) -> Option<Kind> {
        Kind::from_bits((self.0 >> 56) as u8)
    }

    #[inline(always)]
    pub fn is(self, kind: Kind) -> bool {
        self.0 >> 56 == kind as u64
    }

    /// The queue pair that it is for.
    #[inline(always)]
    pub fn dst(self) -> u32 {
        (self.0 >> 32) as u32 & NUMBER
    }

    /// The requester's queue pair.
    #[inline(always)]
    pub fn src(self) -> u32 {
        self.0 as u32 & NUMBER
    }

    /// Its kind and its numbers alone, whatever a peer has written beside them.
    #[inline(always)]
    pub fn without_more(self) -> Self {
        const NUMBERS: u64 = (NUMBER as u64) << 32 | NUMBER as u64;
        Self(self.0 & (0xff << 56 | NUMBERS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_it_was_made_of() {
        let name = Name::request(0x12_3456, 0xab_cdef);
        assert_eq!((name.dst(), name.src()), (0x12_3456, 0xab_cdef));
        assert_eq!(name.kind(), Some(Kind::Request));
        assert!(name.is(Kind::Request) && !name.is(Kind::Answer));
        let answer = Name::new(Kind::Answer, 7);
        assert_eq!(
            (answer.kind(), answer.dst(), answer.src()),
            (Some(Kind::Answer), 7, 0)
        );
        assert_eq!(Name::of_bits(answer.bits()), answer);
    }

    #[test]
    fn what_a_peer_writes_beside_the_numbers_is_left_out() {
        let name = Name::request(1, 2);
        let more = Name::of_bits(name.bits() | 0xff << 24);
        assert_ne!(more, name);
        assert_eq!(more.without_more(), name);
        // Another kind stays another one.
        for kind in [0, 9, 0xbf, 0xff_u64] {
            let other = Name::of_bits(name.bits() & !(0xff << 56) | kind << 56);
            assert_eq!(other.kind(), None);
            assert_ne!(other.without_more(), name);
        }
    }
}
