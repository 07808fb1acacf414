//! Big-endian integers, as the device reads and writes them.
//!
//! A field of one of these types cannot be taken for a host value: [`Be32::new`] and
//! [`Be32::get`] are the only ways in and out.

macro_rules! big_endian {
    ($($name:ident($int:ty);)*) => {$(
        #[doc = concat!("A `", stringify!($int), "` stored in network byte order.")]
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// Stores a host value.
            #[inline(always)]
            pub const fn new(host: $int) -> Self {
                Self(host.to_be())
            }

            /// The host value.
            #[inline(always)]
            pub const fn get(self) -> $int {
                <$int>::from_be(self.0)
            }

            /// The stored word, as an integer whose bytes in memory are the big-endian ones.
            #[inline(always)]
            pub const fn to_raw(self) -> $int {
                self.0
            }

            /// The value stored as `raw`.
            #[inline(always)]
            pub const fn from_raw(raw: $int) -> Self {
                Self(raw)
            }

            /// The value whose bytes in memory are `bytes`.
            #[inline(always)]
            pub const fn from_bytes(bytes: [u8; size_of::<$int>()]) -> Self {
                Self(<$int>::from_ne_bytes(bytes))
            }

            /// The bytes in memory order.
            #[inline(always)]
            pub const fn to_bytes(self) -> [u8; size_of::<$int>()] {
                self.0.to_ne_bytes()
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.get())
            }
        }

        impl From<$int> for $name {
            #[inline(always)]
            fn from(host: $int) -> Self {
                Self::new(host)
            }
        }
    )*};
}

big_endian! {
    Be16(u16);
    Be32(u32);
    Be64(u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_network_order() {
        assert_eq!(Be16::new(0x0102).to_bytes(), [1, 2]);
        assert_eq!(Be32::new(0x0102_0304).to_bytes(), [1, 2, 3, 4]);
        assert_eq!(Be64::from_bytes([0, 0, 0, 0, 0, 0, 1, 2]).get(), 0x0102);
    }
}
