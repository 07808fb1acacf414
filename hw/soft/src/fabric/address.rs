//! Addresses on which the nodes of a fabric listen: names in the abstract namespace of Unix sockets, which
//! disappear with the process that uses them.

use super::{MAX_NODES, Owner};
use crate::error::Error;
use bellwire_provider::short::Short;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::OwnedFd;
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

/// Shorter than a socket's address.
fn place(owner: &Owner, name: &str, slot: usize) -> Short<107> {
    Short::new(format_args!("{}/{name}/{slot}", &*owner.scope()))
}

fn address(owner: &Owner, name: &str, slot: usize) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(place(owner, name, slot).as_bytes())
}

/// Binds to the first free place.
pub(super) fn claim(owner: &Owner, name: &str) -> Result<(usize, UnixListener), Error> {
    let failed = |error| Error::io("listen for peers of the fabric", error);
    for slot in 0..MAX_NODES {
        match UnixListener::bind_addr(&address(owner, name, slot).map_err(failed)?) {
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

/// Outcome of a connection attempt.
#[derive(Debug)]
pub(super) enum Called {
    There(UnixStream),
    Nobody,
    /// The listener's backlog is full: try again later.
    Crowded,
}

/// A socket that has connected to nobody yet: most places are free, and a socket for each would take longer than
/// to ask there.
pub(super) type Spare = Option<OwnedFd>;

/// Connects to the node in this place. Neither the call nor the socket blocks.
pub(super) fn connect(
    owner: &Owner,
    name: &str,
    slot: usize,
    spare: &mut Spare,
) -> io::Result<Called> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = match spare.take() {
        Some(socket) => socket,
        None => socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?,
    };
    let place = SocketAddrUnix::new_abstract_name(place(owner, name, slot).as_bytes())?;
    let called = match rustix::net::connect(&socket, &place) {
        Ok(()) => return Ok(Called::There(socket.into())),
        Err(Errno::CONNREFUSED) => Called::Nobody,
        Err(Errno::AGAIN | Errno::INTR) => Called::Crowded,
        Err(error) => return Err(error.into()),
    };
    *spare = Some(socket);
    Ok(called)
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
        let first = claim(&Owner::now(), &name).unwrap();
        let second = claim(&Owner::now(), &name).unwrap();
        assert_eq!((first.0, second.0), (0, 1));
        let spare = &mut None;
        assert!(matches!(
            connect(&Owner::now(), &name, 2, spare),
            Ok(Called::Nobody)
        ));
        assert!(matches!(
            connect(&Owner::now(), &name, 1, spare),
            Ok(Called::There(_))
        ));
        assert!(spare.is_none());
        drop(first);
        assert!(matches!(
            connect(&Owner::now(), &name, 0, spare),
            Ok(Called::Nobody)
        ));
        assert_eq!(claim(&Owner::now(), &name).unwrap().0, 0);
    }

    /// connect(2) would block while the backlog is full.
    #[test]
    fn a_crowd_is_not_waited_for() {
        let name = format!("address-crowd-{}", std::process::id());
        let (slot, listener) = claim(&Owner::now(), &name).unwrap();
        rustix::net::listen(&listener, 2).unwrap();
        let (mut waiting, mut spare) = (Vec::new(), None);
        let crowded = loop {
            match connect(&Owner::now(), &name, slot, &mut spare).unwrap() {
                Called::There(stream) => waiting.push(stream),
                other => break other,
            }
            assert!(waiting.len() < 100);
        };
        assert!(matches!(crowded, Called::Crowded), "{crowded:?}");
        listener.accept().unwrap();
        let again = connect(&Owner::now(), &name, slot, &mut spare);
        assert!(matches!(again, Ok(Called::There(_))), "{again:?}");
    }
}
