//! Where nodes of a fabric listen: names in the abstract namespace of Unix sockets, which go with
//! the process that has them.

use super::MAX_NODES;
use crate::error::Error;
use rustix::process::getuid;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Longest name of a fabric; a socket's address has room for 107 bytes.
const MAX_NAME: usize = 64;

/// # Errors
/// [`Error::FabricName`].
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(Error::FabricName {
        name: name.to_owned(),
        max: MAX_NAME,
    })
}

fn address(name: &str, slot: usize) -> io::Result<SocketAddr> {
    let user = getuid().as_raw();
    SocketAddr::from_abstract_name(format!("bellwire/{user}/{name}/{slot}"))
}

/// Takes the first free place.
pub(super) fn claim(name: &str) -> Result<(usize, UnixListener), Error> {
    let failed = |error| Error::io("listen for peers of the fabric", error);
    for slot in 0..MAX_NODES {
        match UnixListener::bind_addr(&address(name, slot).map_err(failed)?) {
            Ok(listener) => {
                listener.set_nonblocking(true).map_err(failed)?;
                return Ok((slot, listener));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Error::Exhausted {
        what: "nodes of the fabric",
        max: MAX_NODES,
    })
}

/// Connects to the node in this place; `None`: nobody is there.
pub(super) fn connect(name: &str, slot: usize) -> io::Result<Option<UnixStream>> {
    match UnixStream::connect_addr(&address(name, slot)?) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "storage-1.east_2", &"x".repeat(MAX_NAME)] {
            check_name(good).unwrap();
        }
        for bad in ["", "a/b", "a b", "\0", "ü", &"x".repeat(MAX_NAME + 1)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn places_are_taken_in_order_and_given_back() {
        let name = format!("address-test-{}", std::process::id());
        let first = claim(&name).unwrap();
        let second = claim(&name).unwrap();
        assert_eq!((first.0, second.0), (0, 1));
        assert!(connect(&name, 1).unwrap().is_some());
        assert!(connect(&name, 2).unwrap().is_none());
        drop(first);
        assert!(connect(&name, 0).unwrap().is_none());
        assert_eq!(claim(&name).unwrap().0, 0);
    }
}
