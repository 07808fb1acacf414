//! A ConnectX device by libibverbs: the stock one and libmlx5, on the stand-in for the kernel
//! (`tests/uverbs-preload`), which executes on the software HCA.

use super::super::{Feature, Page, Provider};
use bellwire_tests::fixture::Quiet;
use std::time::Duration;

/// What the interface does not offer on devices of libibverbs, and what the software HCA does not do.
const LACKS: [Feature; 8] = [
    Feature::FaultInjection,
    Feature::RcSqe,
    Feature::XrcSqe,
    Feature::XrcInitiatorReceives,
    Feature::XrcTargetSends,
    Feature::PathMigration,
    Feature::Nop,
    Feature::VirtualClock,
];

/// What libmlx5, or the stand-in, does otherwise than the rules say.
const OTHERWISE: [(&str, &str); 0] = [];

/// Its page, and what renews it.
pub const PAGE: Page = ("conformance-libmlx5.md", "cargo xtask conformance --mlx5");

pub static STOCK: [Provider; 1] = [Provider {
    name: "libmlx5",
    about: "a ConnectX device by libibverbs, on the stand-in for the kernel",
    lacks: &[&LACKS],
    otherwise: &[&OTHERWISE],
    quiet: Quiet(Duration::from_millis(20)),
    open: super::open,
    open_two: None,
    open_virtual: None,
}];
