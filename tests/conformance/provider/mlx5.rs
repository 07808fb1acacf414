//! A ConnectX device whose rings core drives: below the stock libibverbs and libmlx5, the stand-in for the
//! kernel (`tests/uverbs-preload`), which executes on the software HCA.

use super::super::{Feature, Kept, NO_CELLS, Provider};
use super::DEVICES_LACK;
use bellwire_tests::fixture::Quiet;
use std::time::Duration;

/// What ConnectX devices, or the stand-in, do otherwise than the rules say.
const OTHERWISE: [(&str, &str); 7] = [
    ("channels::arming::arming_for_any_widens", THERE),
    ("channels::arming::what_was_there", THERE),
    ("events::caused::a_port_reports", LINK),
    ("events::caused::port_", LINK),
    (
        "channels::waiting::edge_triggered",
        "an edge-triggered descriptor is armed again when the event was got, and not before",
    ),
    (
        "gone::an_overrun",
        "the overrun is known when CQ_ERR is got",
    ),
    (
        "ud::the_way_back",
        "an answer has the hop limit that the datagram came with",
    ),
];

const LINK: &str = "only the administrator can take the link down";
const THERE: &str = "arming raises an event at once for entries that were not polled";

/// Where its verdicts are kept.
pub const KEPT: Kept = Kept {
    name: "mlx5",
    renew: "cargo xtask conformance --mlx5",
};

pub static RINGS: [Provider; 1] = [Provider {
    name: "mlx5",
    about: "a ConnectX device by its own rings, on the stand-in for the kernel",
    lacks: &[&NO_CELLS, &DEVICES_LACK, &[Feature::Xrc]],
    otherwise: &[&OTHERWISE],
    quiet: Quiet(Duration::from_millis(20)),
    open: super::open,
    open_two: None,
    open_virtual: None,
}];
