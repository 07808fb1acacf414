//! Why a connection was refused, in words: what was seen, where the number of an event says less.

use super::super::PortSpace;
use super::address::{At, socket_of};
use rustix::process::geteuid;
use std::fs;
use std::net::SocketAddr;

/// The listener has said so.
pub(super) const NO_RESOURCES: &str = "the listener's process has no descriptor or no memory left for the \
     connection: an error there names the limit";

/// The listener's channel has not read the request.
pub(super) const UNREAD: &str = "the listener has not read the request: its program does not ask for events, or its \
     process has no descriptor or no memory left for the connection (an error there names the limit)";

/// The kernel queues no more peers at the listener.
pub(super) const CROWDED: &str = "too many peers wait at the listener: its program does not ask for events, or its \
     process has no descriptor or no memory left for them (an error there names the limit)";

/// The user and the fabric of a scope, as a sentence names them.
fn of(scope: &str) -> String {
    let mut parts = scope.splitn(3, '/').skip(1);
    let user = parts.next().unwrap_or_default();
    match parts.next() {
        Some(fabric) if !fabric.starts_with('/') => {
            format!("the fabric soft:{fabric} of {}", user_of(user))
        }
        _ => format!("this device of {}", user_of(user)),
    }
}

/// A user, as `Owner::scope` writes it.
fn user_of(text: &str) -> String {
    match text.split_once('+') {
        None => format!("user {text}"),
        Some((uid, namespace)) => {
            let number = u64::from_str_radix(namespace, 16).unwrap_or(0);
            format!("user {uid} of user namespace {number}")
        }
    }
}

/// Nobody listens at this address. If others do, outside of the scope, they are named.
pub(super) fn nobody(scope: &str, space: PortSpace, peer: SocketAddr) -> String {
    let none = format!("nobody listens at {peer} in {}", of(scope));
    // Sockets of other network namespaces are not in it; without /proc nothing is known of others.
    let table = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let ends: Vec<String> = (At::found_at(peer).into_iter())
        .filter_map(|at| {
            let address = socket_of("", space, at, peer.port()).ok()?;
            String::from_utf8(address.abstract_name()?.to_vec()).ok()
        })
        .collect();
    let mut others: Vec<String> = (table.lines())
        .filter_map(|line| {
            let name = line.split_ascii_whitespace().nth(7)?.strip_prefix('@')?;
            let end = ends.iter().find_map(|end| name.strip_suffix(end.as_str()));
            end.filter(|other| other.starts_with("bellwire/") && *other != scope)
                .map(of)
        })
        .collect();
    others.sort();
    others.dedup();
    match others.is_empty() {
        true => none,
        false => format!(
            "{none}, but in {}: open the same fabric, as the same user, at both ends",
            others.join(", and in ")
        ),
    }
}

/// The listener at this address belongs to another user.
pub(super) fn foreign_listener(scope: &str, peer: SocketAddr, uid: u32) -> String {
    format!(
        "the listener at {peer} began to listen as user {uid}, which is not the owner of {}: listen before the \
         program changes its user, or run both ends as the same user",
        of(scope)
    )
}

/// The listener does not accept this process.
pub(super) fn foreign_connector(scope: &str) -> String {
    format!(
        "the listener does not accept user {}, as which this process runs now: its device is {}: connect before \
         the program changes its user, or run both ends as the same user",
        geteuid().as_raw(),
        of(scope)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_named() {
        assert_eq!(of("bellwire/7/a.b"), "the fabric soft:a.b of user 7");
        assert_eq!(of("bellwire/7//1f"), "this device of user 7");
        assert_eq!(
            of("bellwire/0+f0000010/a"),
            "the fabric soft:a of user 0 of user namespace 4026531856"
        );
    }
}
