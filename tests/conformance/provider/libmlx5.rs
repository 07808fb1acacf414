//! A ConnectX device by libibverbs: the stock one and libmlx5, on the stand-in for the kernel
//! (`tests/uverbs-preload`), which executes on the software HCA.

use super::super::{Kept, NO_CELLS, Provider};
use super::{DEVICES_LACK, VERBS_LACK};
use bellwire_tests::fixture::Quiet;
use std::time::Duration;

/// What libmlx5, or the stand-in, does otherwise than the rules say.
const OTHERWISE: [(&str, &str); 15] = [
    ("operations::rc::an_atomic_result_may_be", EIGHT),
    ("operations::rc::solicited", NO_SOLICITED),
    ("channels::arming::arming_for_any_widens", THERE),
    (
        "channels::arming::arming_for_solicited_does_not",
        "arming for solicited entries narrows an earlier arming for any",
    ),
    ("channels::arming::what_was_there", THERE),
    (
        "channels::waiting::edge_triggered",
        "an edge-triggered descriptor is armed again when the event was got, and not before",
    ),
    ("events::caused::cq_err", LARGER),
    ("events::caused::qp_fatal", LARGER),
    ("events::caused::a_port_reports", LINK),
    ("events::caused::port_", LINK),
    ("gone::an_overrun", LARGER),
    (
        "ud::the_way_back",
        "an answer has the hop limit that the datagram came with",
    ),
    (
        "ud::there_is_no_way_back",
        "the rule needs a NOP, which the verbs lack",
    ),
    ("ud::solicited", NO_SOLICITED),
    (
        "windows::binding::a_zero_based",
        "ibv_bind_mw refuses a window of type 1 with addresses from zero",
    ),
];

const LARGER: &str =
    "a completion queue has up to twice the entries asked for: the rule does not overrun it";
const LINK: &str = "only the administrator can take the link down";
const NO_SOLICITED: &str = "libibverbs does not report whether a message was solicited";
const THERE: &str = "arming raises an event at once for entries that were not polled";

/// Where its verdicts are kept.
pub const KEPT: Kept = Kept {
    name: "libmlx5",
    renew: "cargo xtask conformance --mlx5",
};

/// What it does otherwise, too, where requests are posted by `ibv_post_send`.
const PLAIN_OTHERWISE: [(&str, &str); 3] = [
    ("errors::rc::atomic_with_too_little_room", EIGHT),
    ("errors::rc::atomic_with_too_much_room", EIGHT),
    ("statuses::loc_len", EIGHT),
];

const EIGHT: &str = "each element of an atomic's result is taken for eight bytes";

const QUIET: Quiet = Quiet(Duration::from_millis(20));

pub static STOCK: [Provider; 1] = [Provider {
    name: "libmlx5",
    about: "a ConnectX device by libibverbs, on the stand-in for the kernel",
    lacks: &[&NO_CELLS, &DEVICES_LACK, &VERBS_LACK],
    otherwise: &[&OTHERWISE],
    quiet: QUIET,
    open: super::open,
    open_two: None,
    open_virtual: None,
}];

/// The same without what newer devices have: `ibv_post_send` and `ibv_poll_cq`.
pub static PLAIN: [Provider; 1] = [Provider {
    name: "libmlx5-plain",
    about: "libmlx5 on the stand-in, by `ibv_post_send` and `ibv_poll_cq`",
    lacks: &[&NO_CELLS, &DEVICES_LACK, &VERBS_LACK],
    otherwise: &[&OTHERWISE, &PLAIN_OTHERWISE],
    quiet: QUIET,
    open: super::open,
    open_two: None,
    open_virtual: None,
}];
