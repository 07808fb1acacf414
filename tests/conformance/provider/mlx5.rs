//! A ConnectX device whose rings core drives: below the stock libibverbs and libmlx5, the stand-in for the
//! kernel (`tests/uverbs-preload`), which executes on the software HCA.

use super::super::{Feature, NO_CELLS, Page, Provider};
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
        "arms again when the event was got, and not before",
    ),
    (
        "gone::an_overrun",
        "the overrun is known when CQ_ERR is got",
    ),
    (
        "ud::the_way_back",
        "libibverbs answers with the hop limit that the datagram came with",
    ),
];

const LINK: &str = "the link is the administrator's, the interface cannot take it down";
const THERE: &str = "arming raises an event at once for entries that were not polled";

/// Its page, and what renews it.
pub const PAGE: Page = ("conformance-mlx5.md", "cargo xtask conformance --mlx5");

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
