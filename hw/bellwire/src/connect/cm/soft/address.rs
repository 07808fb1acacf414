//! Addresses of ends: which addresses belong to this host, and the sockets that stand for them. As with
//! rdma_cm (rdma_bind_addr(3)), each address has its own ports, and the unspecified address stands for
//! all addresses.

use super::super::PortSpace;
use crate::error::Error;
use crate::pinned::collected;
use bellwire_provider::address::{is_scoped, scope_of};
use bellwire_provider::short::Short;
use rustix::net::SocketAddrUnix;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Longest address in the abstract namespace, in bytes.
const MAX_BYTES: usize = 107;

/// The addresses that an end is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// One address; a link-local one of the interface with this index, other addresses with zero.
    One(IpAddr, u32),
    /// All IPv4 addresses.
    Any4,
    /// All IPv6 addresses.
    Any6,
    /// All addresses.
    Any,
}

impl At {
    /// `only_v6`: the unspecified IPv6 address does not include IPv4 (`RDMA_OPTION_ID_AFONLY`).
    pub fn new(address: SocketAddr, only_v6: bool) -> Self {
        match address.ip().to_canonical() {
            IpAddr::V4(ip) if ip.is_unspecified() => Self::Any4,
            IpAddr::V6(ip) if ip.is_unspecified() && only_v6 => Self::Any6,
            IpAddr::V6(ip) if ip.is_unspecified() => Self::Any,
            ip => Self::One(ip, scope_of(address)),
        }
    }

    /// The bindings whose listener accepts requests to an address: the most specific first.
    pub fn found_at(address: SocketAddr) -> [Self; 3] {
        let ip = address.ip().to_canonical();
        let family = if ip.is_ipv4() { Self::Any4 } else { Self::Any6 };
        [Self::One(ip, scope_of(address)), family, Self::Any]
    }

    /// The bindings that exclude this one from the same port.
    pub fn rivals(self) -> io::Result<Vec<Self>> {
        let of_family = |v4: bool| -> io::Result<Vec<Self>> {
            let here = if_addrs::get_if_addrs()?.into_iter();
            Ok(here
                .filter(|of| of.ip().is_ipv4() == v4)
                .map(|of| {
                    let interface = of.index.filter(|_| is_scoped(of.ip()));
                    Self::One(of.ip(), interface.unwrap_or(0))
                })
                .collect())
        };
        let both = |two: [Self; 2]| {
            collected(two.into_iter()).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
        };
        Ok(match self {
            Self::One(IpAddr::V4(_), _) => both([Self::Any4, Self::Any])?,
            Self::One(IpAddr::V6(_), _) => both([Self::Any6, Self::Any])?,
            Self::Any4 => [vec![Self::Any], of_family(true)?].concat(),
            Self::Any6 => [vec![Self::Any], of_family(false)?].concat(),
            Self::Any => [
                vec![Self::Any4, Self::Any6],
                of_family(true)?,
                of_family(false)?,
            ]
            .concat(),
        })
    }

    fn text(self) -> Short<48> {
        match self {
            Self::One(IpAddr::V4(ip), _) => Short::new(format_args!("{:08x}", ip.to_bits())),
            Self::One(IpAddr::V6(ip), 0) => Short::new(format_args!("{:032x}", ip.to_bits())),
            // Names of the abstract namespace are those of the network namespace, as are the indices.
            Self::One(IpAddr::V6(ip), interface) => {
                Short::new(format_args!("{:032x}%{interface:x}", ip.to_bits()))
            }
            Self::Any4 => Short::new(format_args!("any4")),
            Self::Any6 => Short::new(format_args!("any6")),
            Self::Any => Short::new(format_args!("any")),
        }
    }
}

/// The socket address of an end, within a scope of devices that can reach each other.
///
/// # Errors
/// [`Error::TooLarge`]: the fabric's name is too long for it.
pub(super) fn socket_of(
    scope: &str,
    space: PortSpace,
    at: At,
    port: u16,
) -> Result<SocketAddrUnix, Error> {
    let space = space as u32;
    // Linux finds a name by a checksum, which is the same of many ports, and looks at all of these names: a
    // product by an odd number, which is another one of each port, has more different ones.
    let port = u32::from(port).wrapping_mul(0x9e37_79b1);
    let name = Short::<256>::new(format_args!(
        "{scope}/cm/{space}/{port:08x}/{}",
        &*at.text()
    ));
    if name.len() > MAX_BYTES {
        let fabric = scope.rsplit('/').next().unwrap_or(scope).len();
        let rest = name.len() - fabric;
        return Err(Error::TooLarge {
            what: "the length of the fabric's name, for a connection manager at such an address,",
            given: fabric as u64,
            max: MAX_BYTES.saturating_sub(rest) as u64,
        });
    }
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|error| Error::io("name a socket", error.into()))
}

/// Whether an address belongs to this host, or is unspecified.
pub(super) fn is_here(address: SocketAddr) -> io::Result<bool> {
    let ip = address.ip().to_canonical();
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    if ip.is_multicast() || broadcast {
        return Ok(false);
    }
    let mut any_port = address;
    any_port.set_port(0);
    match UdpSocket::bind(any_port) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            // Also for a family that this host does not have, and for a missing interface.
            Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::EINVAL | libc::ENODEV) => {
                Ok(false)
            }
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str) -> SocketAddr {
        bellwire_provider::address::parse(host, 1).unwrap().unwrap()
    }

    fn at(host: &str) -> At {
        At::new(address(host), false)
    }

    #[test]
    fn the_unspecified_address_is_all_of_its_family() {
        assert_eq!(at("0.0.0.0"), At::Any4);
        assert_eq!(at("::"), At::Any);
        assert_eq!(At::new(address("::"), true), At::Any6);
        assert_eq!(at("::ffff:10.1.2.3"), at("10.1.2.3"));
        let found = At::found_at(address("10.1.2.3"));
        assert_eq!(found, [at("10.1.2.3"), At::Any4, At::Any]);
        let found = At::found_at(address("::1"));
        assert_eq!(found, [at("::1"), At::Any6, At::Any]);
    }

    #[test]
    fn who_is_found_at_one_address_has_its_port_alone() {
        let all = ["127.0.0.1", "::1", "0.0.0.0", "::"].map(at);
        for one in all.into_iter().chain([At::Any6]) {
            for other in one.rivals().unwrap() {
                assert!(other.rivals().unwrap().contains(&one), "{one:?} {other:?}");
            }
        }
        assert!(!at("127.0.0.1").rivals().unwrap().contains(&at("::1")));
    }

    #[test]
    fn names_have_room() {
        let name = |long| format!("bellwire/1000/{}", "x".repeat(long));
        let ip = At::One(
            "fe80:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap(),
            u32::MAX,
        );
        socket_of(&name(32), PortSpace::Ipoib, ip, u16::MAX).unwrap();
        let long = socket_of(&name(64), PortSpace::Ipoib, ip, u16::MAX);
        assert!(matches!(long, Err(Error::TooLarge { .. })), "{long:?}");
        socket_of(&name(64), PortSpace::Tcp, at("10.1.2.3"), 1).unwrap();
    }

    #[cfg(not(miri))]
    #[test]
    fn each_interface_has_its_own_link_local_addresses() {
        let [first, second] = ["fe80::1%1", "fe80::1%2"].map(at);
        assert_ne!(first, second);
        assert_eq!(At::found_at(address("fe80::1%2"))[0], second);
        let name = |at| socket_of("x", PortSpace::Tcp, at, 1).unwrap();
        assert_ne!(name(first), name(second));
        // An address that no other interface can have is the same with any.
        let global: [SocketAddr; 2] =
            ["[2001:db8::1%1]:1", "[2001:db8::1%2]:1"].map(|text| text.parse().unwrap());
        assert_eq!(At::new(global[0], false), At::new(global[1], false));
    }

    #[cfg(not(miri))]
    #[test]
    fn addresses_of_this_host_are_here() {
        let is_here = |ip: &str| super::is_here((ip.parse::<IpAddr>().unwrap(), 9).into()).unwrap();
        assert!(is_here("127.0.0.1") && is_here("127.1.2.3") && is_here("0.0.0.0"));
        for not in [
            "8.8.8.8",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "2001:db8::1",
        ] {
            assert!(!is_here(not), "{not}");
        }
    }
}
