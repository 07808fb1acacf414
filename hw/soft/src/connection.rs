//! The names of connections: what a responder accepts, and what requests name.
//!
//! ```text
//!  63       no request has arrived yet       62       the requester's life has ended
//!  61‥56    upper bits of the LID of the requester's node, if that is another one
//!  55‥32    the responder's queue pair
//!  31‥25    lower bits of that LID
//!  24       the responder accepts all datagrams
//!  23‥0     the requester's queue pair
//! ```

/// Bits of a LID in the lower part.
const LOW_LID: u32 = 7;

/// Where a name has a LID.
const LID: u64 = 0x7f << 25 | 0x3f << 56;

/// The name of a connection, for its responder and its requester. Queue pair numbers have 24 bits.
#[inline(always)]
pub fn connection(responder: u32, requester: u32) -> u64 {
    u64::from(responder) << 32 | u64::from(requester)
}

/// Like [`connection`], for a requester in another process, whose node has this LID: below 8192.
#[inline(always)]
pub fn connection_with(responder: u32, requester: u32, lid: u16) -> u64 {
    let lid = u64::from(lid);
    connection(responder, requester) | (lid << 25 | lid >> LOW_LID << 56) & LID
}

/// The number of the responder that a connection names.
#[inline(always)]
pub fn responder(connection: u64) -> u32 {
    (connection >> 32) as u32 & 0xff_ffff
}

/// The number of the requester in this process that a connection names.
pub fn requester(connection: u64) -> Option<u32> {
    const DATAGRAMS: u64 = datagrams(0);
    (connection & (LID | DATAGRAMS) == 0).then_some(connection as u32)
}

/// In [`Rights::accepts`](super::qp::Rights::accepts): no request has arrived on the connection yet.
pub const UNTRIED: u64 = 1 << 63;

/// In [`Rights::accepts`](super::qp::Rights::accepts): requests have arrived, and the life of the requester that sent them has
/// ended.
pub const SPENT: u64 = 1 << 62;

/// The name of a connection, as the responder shows it to the requester in another process: in the requester's present
/// life. Where it is shown depends on the lower half of the responder's number, so that half is free.
#[inline(always)]
pub const fn in_life(connection: u64, life: u16) -> u64 {
    connection ^ (life as u64) << 32
}

/// The value with which a responder accepts all datagrams.
pub const fn datagrams(responder: u32) -> u64 {
    (responder as u64) << 32 | 1 << 24
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{MAX_NODES, lid};

    #[test]
    fn names_are_different() {
        let lids = (0..MAX_NODES).map(|slot| Some(lid(slot)));
        let mut names = std::collections::BTreeSet::new();
        for lid in lids.chain([None]) {
            for (responder, own) in [(2, 2), (3, 2), (2, 3), (0xff_ffff, 0xff_ffff)] {
                let name = match lid {
                    Some(lid) => connection_with(responder, own, lid),
                    None => connection(responder, own),
                };
                assert!(names.insert(name), "{lid:?} {responder} {own}");
                assert_eq!(name & (UNTRIED | SPENT), 0);
                assert_eq!(requester(name | SPENT), lid.is_none().then_some(own));
                // Of one place, i.e. one lower half of the responder's number, no two are equal.
                for (life, other) in [(1, 0x30_0000), (u16::MAX, 0x1_0000), (1, 0)] {
                    let there = match lid {
                        Some(lid) => connection_with(responder ^ other, own, lid),
                        None => connection(responder ^ other, own),
                    };
                    assert_ne!(in_life(there, life), name);
                }
                assert_eq!(self::responder(name | UNTRIED), responder);
                assert_eq!(requester(name), lid.is_none().then_some(own));
                assert_ne!(name, datagrams(responder));
            }
        }
        assert_eq!(requester(datagrams(7)), None);
    }
}
