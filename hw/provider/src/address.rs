//! Internet addresses as programs write them, with the interface of a link-local address (RFC 4007):
//! `fe80::1%eth0`.

use crate::error::{Error, remedy};
use std::ffi::{CStr, CString};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::{fmt, io};

/// Whether the same address may belong to several interfaces, so that it is complete only with one of them.
pub fn is_scoped(ip: IpAddr) -> bool {
    const INTERFACE_LOCAL: u16 = 1;
    const LINK_LOCAL: u16 = 2;
    let IpAddr::V6(ip) = ip else {
        return false;
    };
    let scope = ip.segments()[0] & 0xf;
    let group = ip.is_multicast() && matches!(scope, INTERFACE_LOCAL | LINK_LOCAL);
    ip.is_unicast_link_local() || group
}

/// The interface of a link-local address; zero for an address without one.
pub fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) if is_scoped(address.ip()) => v6.scope_id(),
        _ => 0,
    }
}

/// An address of this text: IPv4, IPv6, or IPv6 with the name or number of an interface behind a percent sign.
/// `None` for anything else, such as a host's name.
///
/// # Errors
/// The address names an interface that this host does not have, or that the address cannot have.
pub fn parse(host: &str, port: u16) -> io::Result<Option<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(Some((ip, port).into()));
    }
    let Some((Ok(ip), interface)) = host
        .split_once('%')
        .map(|(ip, interface)| (ip.parse(), interface))
    else {
        return Ok(None);
    };
    if !is_scoped(IpAddr::V6(ip)) {
        let text = format!("{ip} is not link-local: leave out \"%{interface}\"");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let scope = index_of(interface).ok_or_else(|| {
        let text = format!("this host has no interface {interface:?} (`ip link` shows them)");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })?;
    Ok(Some(SocketAddrV6::new(ip, port, 0, scope).into()))
}

/// The index of an interface, by name or number.
fn index_of(interface: &str) -> Option<u32> {
    let name = CString::new(interface).ok()?;
    // SAFETY: the name is a C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => interface.parse().ok().filter(|&index| index != 0),
        index => Some(index),
    }
}

/// The name of an interface, or its number if it has gone.
fn name_of(index: u32) -> String {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the call requires.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return index.to_string();
    }
    // SAFETY: the call wrote a C string to the buffer.
    unsafe { CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

/// The text of an address without its port, which [`parse`] reads.
pub fn host_text(address: SocketAddr) -> String {
    match scope_of(address) {
        0 => address.ip().to_string(),
        scope => format!("{}%{}", address.ip(), name_of(scope)),
    }
}

/// Shows an address and its port, with the name of the interface.
#[derive(Clone, Copy, Debug)]
pub struct Shown(pub SocketAddr);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (host_text(self.0), self.0.port());
        match self.0 {
            SocketAddr::V4(_) => write!(f, "{host}:{port}"),
            SocketAddr::V6(_) => write!(f, "[{host}]:{port}"),
        }
    }
}

/// Checks that an address is complete: a link-local address without an interface reaches nothing.
///
/// # Errors
/// The missing part.
pub fn check(address: SocketAddr) -> io::Result<()> {
    if is_scoped(address.ip()) && scope_of(address) == 0 {
        let ip = address.ip();
        let text = format!("{ip} is link-local: name the interface, as in {ip}%eth0");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

/// An address that was tried, and why it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tried {
    /// The address.
    pub address: SocketAddr,
    /// The error number, if the reason has one.
    pub errno: Option<i32>,
    /// The reason, and what to do.
    pub reason: String,
}

impl Tried {
    /// An address that failed with this error.
    pub fn new(address: SocketAddr, error: &io::Error) -> Self {
        Self {
            address,
            errno: error.raw_os_error(),
            reason: format!("{error}{}", remedy(error)),
        }
    }

    /// An address that failed with this error number.
    pub fn with_errno(address: SocketAddr, errno: i32) -> Self {
        Self::new(address, &io::Error::from_raw_os_error(errno))
    }

    /// An address that failed for a reason without an error number.
    pub fn because(address: SocketAddr, reason: impl Into<String>) -> Self {
        Self {
            address,
            errno: None,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Shown(self.address), self.reason)
    }
}

/// Shows each address, and its reason.
pub fn list(tried: &[Tried]) -> String {
    let each: Vec<String> = tried.iter().map(Tried::to_string).collect();
    each.join("; ")
}

impl Error {
    /// The error of a call with this address: `what` and the address complete the sentence "cannot …". Errors
    /// that are not about the address stay as they are.
    pub fn at(self, what: &'static str, address: SocketAddr) -> Self {
        match self {
            Self::Io { error, .. } => Self::Address {
                what,
                tried: [Tried::new(address, &error)].into(),
            },
            other => other,
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn parsed(host: &str) -> SocketAddr {
        let address = parse(host, 7).expect("an interface that exists");
        address.expect("an address")
    }

    #[test]
    fn an_address_has_its_interface_by_name_or_number() {
        let scoped = parsed("fe80::1%lo");
        assert_eq!(scope_of(scoped), 1);
        assert_eq!(scoped, parsed("fe80::1%1"));
        assert_ne!(scoped, parsed("fe80::1%2"));
        assert_eq!(host_text(scoped), "fe80::1%lo");
        assert_eq!(Shown(scoped).to_string(), "[fe80::1%lo]:7");
        assert_eq!(parsed(&host_text(scoped)), scoped);
        assert_eq!(scope_of(parsed("ff02::1%lo")), 1);
        // An interface that has gone is shown by its number.
        assert_eq!(
            host_text(parsed("fe80::1%4294967295")),
            "fe80::1%4294967295"
        );
        for host in ["::1", "2001:db8::1", "127.0.0.1"] {
            assert_eq!(host_text(parsed(host)), host);
        }
        assert_eq!(Shown(parsed("127.0.0.1")).to_string(), "127.0.0.1:7");
    }

    #[test]
    fn what_is_no_address_is_a_name_or_an_error() {
        for name in ["localhost", "", "%lo", "a%lo", "1.2.3.4%lo", "fe80::1 "] {
            assert_eq!(parse(name, 7).expect("a name"), None, "{name}");
        }
        let long = format!("fe80::1%{}", "x".repeat(100));
        for (host, says) in [
            ("fe80::1%", "no interface"),
            ("fe80::1%0", "no interface"),
            ("fe80::1%no-such", "no interface \"no-such\""),
            ("fe80::1%-1", "no interface"),
            ("fe80::1%4294967296", "no interface"),
            ("fe80::1%lo%lo", "no interface"),
            ("fe80::1%l\0o", "no interface"),
            (&long, "no interface"),
            ("::1%lo", "not link-local"),
            ("ff0e::1%lo", "not link-local"),
        ] {
            let error = parse(host, 7).expect_err(host).to_string();
            assert!(error.contains(says), "{host}: {error}");
        }
    }

    #[test]
    fn a_link_local_address_needs_its_interface() {
        for host in ["fe80::1", "ff02::1", "ff01::7"] {
            let error = check(parsed(host)).expect_err(host).to_string();
            assert!(error.contains(&format!("as in {host}%eth0")), "{error}");
        }
        for host in ["fe80::1%lo", "::1", "ff0e::1", "169.254.1.1", "2001:db8::1"] {
            check(parsed(host)).expect(host);
        }
    }

    #[test]
    fn each_address_is_named_with_its_reason() {
        let error = Error::Address {
            what: "reach",
            tried: [
                Tried::with_errno(parsed("fe80::1%lo"), libc::EHOSTUNREACH),
                Tried::because(parsed("127.0.0.1"), "nothing listens there"),
            ]
            .into(),
        };
        let text = error.to_string();
        assert!(
            text.starts_with("cannot reach [fe80::1%lo]:7: No route to host"),
            "{text}"
        );
        assert!(
            text.ends_with("; 127.0.0.1:7: nothing listens there"),
            "{text}"
        );
        let io = Error::io("bind", io::Error::from_raw_os_error(libc::EADDRINUSE));
        let text = io.at("bind an id to", parsed("::1")).to_string();
        assert!(
            text.starts_with("cannot bind an id to [::1]:7: Address already in use"),
            "{text}"
        );
        assert!(matches!(
            Error::CmSpace.at("bind", parsed("::1")),
            Error::CmSpace
        ));
    }
}
