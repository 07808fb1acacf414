//! What does not happen to a device by itself: the stand-in for the kernel injects it.

mod grants;

use super::{device, ends, patient};
use crate::world::End;
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::link::LinkState;
use bellwire::state::QpState;
use bellwire::wqe::{RdmaRead, RdmaWrite, Send};
use bellwire::wr::WcOpcode;
use bellwire::{ConnectAttr, Error, PathAttr};
use bellwire_tests::fixture::{self, Quiet, until};
use bellwire_tests::stand_in::StandIn;
use std::time::Duration;

fn order(command: &str) {
    let stand_in = StandIn::find().expect("the stand-in");
    stand_in.order(command).expect(command);
}

/// What a device that fails has in its rings is reported as it was posted: nobody writes over it.
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
    let mut reported = Vec::new();
    until("both are given up", || {
        let End { link, .. } = &mut a;
        link.poll(64, |one| {
            reported.push((one.wr_id, one.opcode, one.outcome))
        });
        b.poll();
        [a.state(), b.state()]
            .iter()
            .all(|state| matches!(state, LinkState::Ended(_)))
    });
    let gone = Outcome::InDoubt(Doubt::PeerGone);
    let mut sends = reported.clone();
    sends.retain(|&(wr_id, ..)| wr_id != 7);
    assert_eq!(
        sends,
        [
            (0, WcOpcode::RdmaWrite, gone),
            (1, WcOpcode::Send, gone),
            (2, WcOpcode::RdmaRead, gone),
        ]
    );
    assert_eq!(reported.len(), 4, "{reported:?}");
    assert_eq!(a.slab.outstanding(), 0);
}

/// libmlx5 can set a UDP source port, but not of a port of InfiniBand: the device says so when it is to.
#[test]
#[ignore = "on the stand-in for the kernel: cargo xtask test uverbs"]
fn a_udp_source_port_is_refused_by_the_device() {
    let quiet = Quiet(Duration::from_millis(20));
    let (mut a, mut b) = fixture::ends(&device(), quiet);
    let connect = ConnectAttr {
        path: PathAttr {
            udp_sport: Some(0xc000),
            ..PathAttr::default()
        },
        ..ConnectAttr::default()
    };
    a.qp.init(&connect).expect("INIT");
    let refused = a.qp.connect(&b.qp.endpoint(), &connect);
    assert!(
        matches!(refused, Err(Error::Unsupported { .. })),
        "{refused:?}"
    );
    let attr = a.qp.query();
    assert_eq!((attr.qp_state, attr.udp_sport), (QpState::Err, None));
    a.reset();
    fixture::connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
}
