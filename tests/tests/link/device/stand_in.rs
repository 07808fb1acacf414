//! What does not happen to a device by itself: the stand-in for the kernel is told to have it.

use super::{ends, patient};
use crate::world::End;
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::recovery::LinkState;
use bellwire::wqe::{RdmaRead, RdmaWrite, Send};
use bellwire::wr::WcOpcode;
use bellwire_tests::fixture::until;
use bellwire_tests::stand_in::StandIn;

fn order(command: &str) {
    let stand_in = StandIn::find().expect("the stand-in");
    stand_in.order(command).expect(command);
}

/// What a device that fails has in its rings is told as it was posted: nobody writes over it.
#[test]
#[ignore = "on the stand-in for the kernel: cargo xtask test uverbs"]
fn entries_are_read_back_from_a_device_that_failed() {
    let (mut a, mut b) = ends(patient(), 4);
    a.receive([7]);
    let remote = b.memory();
    // It stays in flight, and the others behind it.
    let qp_num = a.link.qp_num().unwrap();
    order(&format!("entry-of {qp_num} 1 delay 3600000000"));
    a.go(0, RdmaWrite { remote }, Replay::Surface);
    a.go(1, Send {}, Replay::Surface);
    a.go(2, RdmaRead { remote }, Replay::Surface);
    order("settle");
    order("now raise DEVICE_FATAL");
    let mut told = Vec::new();
    until("both are given up", || {
        let End { link, .. } = &mut a;
        link.poll(64, |one| told.push((one.wr_id, one.opcode, one.outcome)));
        b.poll();
        [a.state(), b.state()]
            .iter()
            .all(|state| matches!(state, LinkState::Ended(_)))
    });
    let gone = Outcome::InDoubt(Doubt::PeerGone);
    let mut sends = told.clone();
    sends.retain(|&(wr_id, ..)| wr_id != 7);
    assert_eq!(
        sends,
        [
            (0, WcOpcode::RdmaWrite, gone),
            (1, WcOpcode::Send, gone),
            (2, WcOpcode::RdmaRead, gone),
        ]
    );
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!(a.slab.outstanding(), 0);
}
