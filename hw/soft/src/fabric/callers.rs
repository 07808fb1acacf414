//! What one process may have of a node: connections without a hello, and links.

use super::node::{Agreed, Node};
use super::peer::Peer;
use crate::process::Process;
use rustix::process::{Resource, getrlimit};

/// Maximum number of connections without a hello, and of those how many of one process, and of all users but the
/// fabric's owner. Beyond a share its oldest is dropped; beyond the sum, the oldest of the process that has most.
pub(super) const UNHEARD: usize = 64;
const UNHEARD_OF_ONE: usize = 8;

/// Links with nodes of one other process, at most: a caller beyond it is refused.
const NODES_OF_ONE: usize = 32;

/// The part of this process's descriptors that links which others ask for may have, each two: a socket, and the handle
/// of a process. A caller beyond it is refused.
const PART_OF_DESCRIPTORS: usize = 2;

/// Who shares the room for connections without a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// This process, whose nodes are no strangers to each other.
    Us,
    /// The process of this number.
    Process(u64),
    /// All processes of other users.
    Foreign,
}

impl Caller {
    pub fn new(process: &Process, foreign: bool) -> Self {
        match process.number() {
            _ if foreign => Self::Foreign,
            _ if process.is_us() => Self::Us,
            number => Self::Process(number),
        }
    }
}

/// Which of the connections without a hello, the oldest first, is dropped so that another one of this caller has room.
/// `None`: there is room.
pub(super) fn surplus(unheard: &[Caller], caller: Caller) -> Option<usize> {
    let count = |of: Caller| unheard.iter().filter(|other| **other == of).count();
    let oldest = |of: Caller| unheard.iter().position(|other| *other == of);
    if caller != Caller::Us && count(caller) >= UNHEARD_OF_ONE {
        return oldest(caller);
    }
    let most = (unheard.iter()).max_by_key(|of| count(**of));
    most.filter(|_| unheard.len() >= UNHEARD)
        .and_then(|most| oldest(*most))
}

/// Whether a process may have another link with us.
pub(super) fn has_room(node: &Node, process: &Process, agreed: &[Agreed]) -> bool {
    if process.is_us() {
        return true;
    }
    let links = || {
        let linked = node.live().filter_map(Peer::link);
        linked
            .map(|link| link.process.number())
            .chain(agreed.iter().map(|agreed| agreed.link.process.number()))
    };
    let number = process.number();
    // Processes that cannot be told apart are not counted together.
    let of_it = links().filter(|of| *of == number && number != 0).count();
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = usize::try_from(descriptors).unwrap_or(usize::MAX) / PART_OF_DESCRIPTORS / 2;
    of_it < NODES_OF_ONE && links().count() < room
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn silent_callers_take_room_from_themselves() {
        let [a, b] = [1, 2].map(Caller::Process);
        // Within its share, one has room.
        assert_eq!(surplus(&[a; UNHEARD_OF_ONE - 1], a), None);
        // Beyond it, its own oldest goes.
        let mut unheard = vec![b];
        unheard.extend([a; UNHEARD_OF_ONE]);
        assert_eq!(surplus(&unheard, a), Some(1));
        assert_eq!(surplus(&unheard, b), None);
        // Of other users, all have one share together.
        assert_eq!(
            surplus(&[Caller::Foreign; UNHEARD_OF_ONE], Caller::Foreign),
            Some(0)
        );
        // If all together are too many, one of those who have most.
        let mut unheard = vec![b];
        unheard.extend([Caller::Us; UNHEARD - 1]);
        assert_eq!(surplus(&unheard, a), Some(1));
        assert_eq!(surplus(&unheard[..UNHEARD - 1], a), None);
        assert_eq!(surplus(&unheard, Caller::Us), Some(1));
    }
}
