//! Handshakes among many callers.

use super::super::export::Export;
use super::super::{Owner, node::Woken};
use super::*;

fn claim(name: &str, incarnation: u64) -> (Node, Meetings) {
    let export = Arc::new(Export::new().expect("memory"));
    let node = Node::claim(Owner::of_process(), name, incarnation, export).expect("a place");
    (node, Meetings::new().expect("memory"))
}

/// A turn of a node's thread.
fn turn(node: &Node, meetings: &mut Meetings) -> Woken {
    node.wait(Some(Duration::ZERO), meetings)
}

/// Callers that say nothing are taken in some at a time: what else wakes the node has its turn in between, and the
/// handshake of a node that is behind them in the queue goes on.
#[test]
fn silent_callers_leave_turns_to_others() {
    let name = format!("silent-callers-{}", std::process::id());
    let (node, mut meetings) = claim(&name, 1);
    let (honest, mut of_honest) = claim(&name, 2);
    let address = node.listener.local_addr().expect("an address");
    let call = || UnixStream::connect_addr(&address).expect("room in the queue");
    let unheard = |meetings: &Meetings| {
        let callers = meetings.all.iter().filter_map(|of| of.at.caller());
        callers.count()
    };
    let mut silent: Vec<UnixStream> = (0..AT_ONCE + 3).map(|_| call()).collect();
    honest.call(node.slot);
    // It is behind the silent ones.
    turn(&honest, &mut of_honest);
    assert!(turn(&node, &mut meetings).agreed.is_empty());
    assert_eq!(unheard(&meetings), AT_ONCE);
    let mut turns = 1;
    let mut agreed = 0;
    while agreed == 0 {
        // As many come as are dropped.
        silent.drain(..4);
        silent.extend((0..4).map(|_| call()));
        turns += 1;
        assert!(turns < 10, "{turns} turns");
        agreed += turn(&node, &mut meetings).agreed.len();
        agreed += turn(&honest, &mut of_honest).agreed.len();
    }
}
