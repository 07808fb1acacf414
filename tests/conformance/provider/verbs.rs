//! rxe of Linux 6.1, as a device of libibverbs: what it lacks, and what it does otherwise.

#[path = "libmlx5.rs"]
mod libmlx5;
#[path = "mlx5.rs"]
mod mlx5;

use super::{Feature, Kept, NO_CELLS, Provider};
use bellwire::{Device, ProviderKind};
use bellwire_tests::fixture::Quiet;
use std::time::Duration;

/// The device of libibverbs that is to be judged, in place of the others.
const DEVICE: &str = "BELLWIRE_VERBS_DEVICE";

/// What the interface does not offer on devices of libibverbs, nor their kernel.
const DEVICES_LACK: [Feature; 3] = [
    Feature::FaultInjection,
    Feature::PathMigration,
    Feature::VirtualClock,
];

/// What requests of the verbs cannot say.
const VERBS_LACK: [Feature; 2] = [Feature::Nop, Feature::SuppressedFlush];

/// All that rxe lacks.
const LACKS: [&[Feature]; 4] = [&NO_CELLS, &DEVICES_LACK, &VERBS_LACK, &[Feature::Xrc]];

/// What rxe of Linux 6.1 does otherwise than the rules say.
const OTHERWISE: [(&str, &str); 80] = [
    (
        "attributes::rc::query_gives_back",
        "depths of READs are rounded up to powers of two",
    ),
    ("channels::arming::a_failed_request_is", BAD_SOLICITED),
    ("channels::waiting::a_sleeper_is_woken_by", BAD_SOLICITED),
    ("completion::uc::a_failed_send", BAD_LKEY),
    ("completion::uc::errors_complete", BAD_LKEY),
    ("completion::uc::from_sqe", BAD_LKEY),
    ("completion::uc::sends_posted_in_sqe", BAD_LKEY),
    ("completion::uc::sqe_", BAD_LKEY),
    ("completion::uc::the_failed_comes_first", BAD_LKEY),
    ("completion::ud::a_failed_send", BAD_LKEY),
    ("completion::ud::errors_complete", BAD_LKEY),
    ("completion::ud::from_sqe", BAD_LKEY),
    ("completion::ud::sends_complete_in_the_order", NO_MTU),
    ("completion::ud::sends_posted_in_sqe", BAD_LKEY),
    ("completion::ud::sqe_", BAD_LKEY),
    ("completion::ud::the_failed_comes_first", BAD_LKEY),
    (
        "errors::rc::atomic_with_too_little_room",
        "an atomic with too little room fails with LOC_PROT_ERR",
    ),
    (
        "errors::rc::atomic_with_too_much_room",
        "an atomic with too much room is executed",
    ),
    (
        "errors::rc::atomic_without_depth",
        "a READ or an atomic without a depth for it waits for ever",
    ),
    ("errors::rc::inline_message_longer", LONGER),
    ("errors::rc::lkey_", BAD_LKEY),
    ("errors::rc::message_longer", LONGER),
    (
        "errors::rc::read_without_depth",
        "a READ or an atomic without a depth for it waits for ever",
    ),
    ("errors::rc::receive_", BAD_LKEY),
    (
        "errors::rc::rkey_of_nobody_write_with_imm",
        "a WRITE_WITH_IMM with a wrong key fails its receive with REM_ACCESS_ERR",
    ),
    ("errors::rc::send_of_more_than_2_gib", BAD_LKEY),
    ("errors::rc::write_of_more_than_2_gib", BAD_LKEY),
    ("events::caused::a_responder_with_nothing", BAD_LKEY),
    ("events::caused::comm_est", NO_EVENT),
    ("events::caused::cq_err", OVERRUN),
    ("events::caused::port_", LINK),
    ("events::caused::a_port_reports", LINK),
    ("events::caused::qp_", NO_EVENT),
    (
        "events::caused::sq_drained_is_for",
        "SQ_DRAINED is raised without a request for it",
    ),
    (
        "events::caused::sq_drained_when",
        "SQ_DRAINED is raised before the queue has drained",
    ),
    ("gone::an_overrun", OVERRUN),
    (
        "lives::rc::sqd_takes_a_new_depth",
        "after a change of the depth in SQD the sends do not go on",
    ),
    (
        "operations::rc::an_atomic_result_may_be",
        "the result of an atomic in elements of other lengths is written wrong",
    ),
    ("operations::rc::solicited", NO_SOLICITED),
    (
        "packets::rc::a_send_beyond_the_smaller_mtu",
        "packets of a SEND are taken whatever their length is",
    ),
    ("srq::a_bad_receive", BAD_LKEY),
    (
        "states::rc::sqd::outgoing",
        "READs that were started do not go on in SQD",
    ),
    (
        "states::rc::sqd::send_proc",
        "READs that were started do not go on in SQD",
    ),
    ("states::uc::sqe", BAD_LKEY),
    ("states::ud::sqe", BAD_LKEY),
    (
        "statuses::loc_len",
        "there is no LOC_LEN_ERR: an atomic fails with LOC_PROT_ERR, a message longer than its receive \
         with REM_OP_ERR",
    ),
    ("statuses::loc_", BAD_LKEY),
    ("timers::rc::silence_takes", TICKS),
    (
        "transitions::uc::sqd_to_sqd_takes_options",
        "a new path in SQD is refused",
    ),
    ("transitions::uc::sqe", BAD_LKEY),
    ("transitions::ud::sqe", BAD_LKEY),
    ("uc::a_bad_lkey", BAD_LKEY),
    ("uc::a_failed_receiver", BAD_LKEY),
    ("uc::a_message_too_long", BAD_LKEY),
    ("uc::a_receive_into_bad_memory", BAD_LKEY),
    ("uc::a_senders_error", BAD_LKEY),
    (
        "uc::another_connections",
        "a UC queue pair takes messages of every sender",
    ),
    ("uc::each_direction", BAD_LKEY),
    (
        "ud::a_controlled_qkey",
        "a controlled Q_Key is sent as it is, and the receiver drops the datagram",
    ),
    ("ud::a_local_error", BAD_LKEY),
    ("ud::a_message_beyond_the_mtu", NO_MTU),
    ("ud::a_queue_pair_that_fails_itself", BAD_LKEY),
    ("ud::a_receive_", BAD_LKEY),
    ("ud::solicited", NO_SOLICITED),
    (
        "ud::without_a_global_route",
        "a datagram on RoCE needs a global route",
    ),
    (
        "ud::address_handles_are_checked",
        "GID tables are longer than an address can name",
    ),
    ("ud::addresses_are_queried", "RoCE has no LIDs"),
    ("windows::binding::a_window_of_another_domain", REFUSED_BIND),
    (
        "windows::binding::a_window_opens_no_more_than_its_part",
        "an access outside of a window fails with REM_OP_ERR",
    ),
    ("windows::binding::a_failed_bind", REFUSED_BIND),
    (
        "windows::binding::a_zero_based",
        "there are no windows with addresses from zero",
    ),
    ("windows::taking_away", KERNEL),
    ("ud::a_global_route_comes", HEADER),
    ("ud::the_header_spreads", HEADER),
    ("ud::the_way_back", HEADER),
    ("ud::there_is_no_way_back", HEADER),
    (
        "ud::to_another_port",
        "the port of an address is looked up before, and not found",
    ),
    ("windows::binding::type_1_of_length_zero", KERNEL),
    ("windows::binding::the_wrong_type", REFUSED_BIND),
    ("multicast::", NO_LOOP),
];

const BAD_LKEY: &str =
    "memory that a local key does not open, or is too short, fails with LOC_QP_OP_ERR";
const BAD_SOLICITED: &str = "a completion in error does not count as solicited";
const HEADER: &str = "a datagram's header is one of IPv4, behind 20 bytes without a meaning";
const KERNEL: &str =
    "taking a window's key away panics the kernel where nothing is bound, or by a bind of no bytes";
const NO_LOOP: &str = "members on the sender's own port get no copy";
const LINK: &str = "only the administrator can take the link down: see tests/rxe";
const LONGER: &str = "a message longer than its receive fails with REM_OP_ERR";
const REFUSED_BIND: &str = "a refused bind fails with LOC_QP_OP_ERR";
const NO_EVENT: &str = "the event is not raised";
const NO_MTU: &str = "a datagram longer than the MTU is sent, and lost";
const NO_SOLICITED: &str = "libibverbs does not report whether a message was solicited";
const OVERRUN: &str =
    "each lost entry raises CQ_ERR, and the queue pairs go to ERR when it is got: see tests/rxe";

const TICKS: &str =
    "timeouts are rounded down to the kernel's ticks, and the first begins within one";

/// What it does otherwise, too, where requests are posted by `ibv_post_send`.
const PLAIN_OTHERWISE: [(&str, &str); 5] = [
    ("errors::rc::misaligned_atomic", NOT_POSTED),
    ("statuses::rem_inv_req_err", NOT_POSTED),
    ("lives::rc::sqd_holds_new_requests_back", NOT_RUNG),
    ("states::uc::sqd::send_processing", NOT_RUNG),
    ("states::ud::sqd::send_processing", NOT_RUNG),
];

const NOT_POSTED: &str = "libibverbs refuses a misaligned atomic: LOC_QP_OP_ERR";
const NOT_RUNG: &str = "requests posted in SQD wait in RTS until more are posted";

fn open() -> Device {
    let name = std::env::var(DEVICE).expect("the name of a device");
    Device::open(&name).expect("a device of libibverbs")
}

const QUIET: Quiet = Quiet(Duration::from_millis(20));

/// rxe, in the guest of `cargo xtask vm`.
static BEST: [Provider; 1] = [Provider {
    name: "verbs",
    about: "a device of libibverbs: rxe of Linux 6.1",
    lacks: &LACKS,
    otherwise: &[&OTHERWISE],
    quiet: QUIET,
    open,
    open_two: None,
    open_virtual: None,
}];

/// The same without what newer devices have: `ibv_post_send` and `ibv_poll_cq`.
static PLAIN: [Provider; 1] = [Provider {
    name: "verbs-plain",
    about: "rxe of Linux 6.1, by `ibv_post_send` and `ibv_poll_cq`",
    lacks: &LACKS,
    otherwise: &[&OTHERWISE, &PLAIN_OTHERWISE],
    quiet: QUIET,
    open,
    open_two: None,
    open_virtual: None,
}];

/// Whether devices opened are to have plain queues.
fn is_plain() -> bool {
    std::env::var_os("BELLWIRE_VERBS_PLAIN").is_some_and(|value| value == "1")
}

/// Whether the device is a ConnectX, by libibverbs.
fn is_libmlx5(device: &Device) -> bool {
    device.name().starts_with("mlx5")
}

/// The device that is to be judged in place of the others, if there is one.
pub fn providers() -> Option<&'static [Provider]> {
    std::env::var_os(DEVICE)?;
    let device = open();
    Some(match device.provider() {
        ProviderKind::Mlx5 => &mlx5::RINGS,
        _ if is_libmlx5(&device) && is_plain() => &libmlx5::PLAIN,
        _ if is_libmlx5(&device) => &libmlx5::STOCK,
        _ if is_plain() => &PLAIN,
        _ => &BEST,
    })
}

/// All that may be judged in place of the others.
pub fn all() -> impl Iterator<Item = &'static Provider> {
    [
        &BEST,
        &PLAIN,
        &mlx5::RINGS,
        &libmlx5::STOCK,
        &libmlx5::PLAIN,
    ]
    .into_iter()
    .flatten()
}

/// Where its verdicts are kept. Those of plain queues are not: they differ in a few rules from the others.
pub fn kept() -> Option<Kept> {
    let device = open();
    match device.provider() {
        ProviderKind::Mlx5 => Some(mlx5::KEPT),
        _ if is_plain() => None,
        _ if is_libmlx5(&device) => Some(libmlx5::KEPT),
        _ => Some(Kept {
            name: "verbs",
            renew: "cargo xtask conformance --verbs",
        }),
    }
}
