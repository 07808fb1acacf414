//! Socket addresses in their C form.

use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address to pass to C.
pub(super) struct SockAddr(libc::sockaddr_storage);

impl SockAddr {
    /// librdmacm only reads it, though its declarations may lack `const`.
    pub fn as_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(addr: SocketAddr) -> Self {
        // SAFETY: the structure contains only numbers, for which zero is a valid value.
        let mut storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        let at = &raw mut storage;
        match addr {
            SocketAddr::V4(addr) => {
                let value = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*addr.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is large enough, and aligned for every kind of address.
                unsafe { at.cast::<libc::sockaddr_in>().write(value) };
            }
            SocketAddr::V6(addr) => {
                let value = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: addr.ip().octets(),
                    },
                    sin6_scope_id: addr.scope_id(),
                };
                // SAFETY: the storage is large enough, and aligned for every kind of address.
                unsafe { at.cast::<libc::sockaddr_in6>().write(value) };
            }
        }
        Self(storage)
    }
}

/// Converts an address from C; `None` if it is unset, or not an IP address.
pub(super) fn from_c(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    const {
        assert!(size_of::<libc::sockaddr_in6>() <= size_of::<libc::sockaddr_storage>());
    }
    let at = std::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the address has this family, and the storage is large enough and aligned for it.
            let addr = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(addr.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the address has this family, and the storage is large enough and aligned for it.
            let addr = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
            let port = u16::from_be(addr.sin6_port);
            Some(SocketAddrV6::new(ip, port, addr.sin6_flowinfo, addr.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in [
            "10.1.2.3:4791",
            "[fe80::1%7]:1",
            "[2001:db8::5]:65535",
            "0.0.0.0:0",
        ] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_c(&SockAddr::from(addr).0), Some(addr));
        }
        // SAFETY: the structure contains only numbers, for which zero is a valid value.
        let unset = unsafe { MaybeUninit::zeroed().assume_init() };
        assert_eq!(from_c(&unset), None);
    }
}
