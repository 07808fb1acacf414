//! The providers under judgement, and what each of them lacks.

use bellwire::soft::{ClockKind, HcaConfig, Mode};
use bellwire::{ConnectAttr, Device, Pd};
use bellwire_tests::fixture::{
    ENGINE, End, Quiet, connect_with, fabric_name, init, node, pair_with,
};
use std::fmt;
use std::time::Duration;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Something that a rule needs and a provider may lack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature { $($(#[$doc])* $name,)* }

        impl fmt::Display for Feature {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

features! {
    /// Reliable connections.
    Rc = "RC";
    /// Unreliable connections.
    Uc = "UC";
    /// Unreliable datagrams.
    Ud = "UD";
    /// Extended reliable connections.
    Xrc = "XRC";
    /// Shared receive queues.
    Srq = "SRQ";
    /// Memory windows, binding and invalidating them.
    MemoryWindows = "memory windows";
    /// Multicast groups.
    Multicast = "multicast";
    /// Completion channels.
    CompletionChannels = "completion channels";
    /// Asynchronous events.
    AsyncEvents = "asynchronous events";
    /// Faults on demand.
    FaultInjection = "fault injection";
    /// The state SQE of a reliable connection, which the specification does not know: it goes to
    /// ERR instead.
    RcSqe = "SQE on RC";
    /// The same of an extended reliable connection.
    XrcSqe = "SQE on XRC";
    /// Taking messages at the initiator of an extended reliable connection, which only sends.
    XrcInitiatorReceives = "receiving at an XRC initiator";
    /// Sends at the target of an extended reliable connection, which only receives.
    XrcTargetSends = "sending at an XRC target";
    /// An operation that does nothing; the verbs have none.
    Nop = "NOP";
    /// Alternate paths, and migrating to them.
    PathMigration = "path migration";
    /// A clock that moves only when told, and execution on the poster's thread.
    VirtualClock = "virtual clock";
}

/// What opens devices, and what is to be known of them.
pub struct Provider {
    /// The column of the matrix.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// What it lacks: rules that need it are reported as not supported.
    pub lacks: &'static [&'static [Feature]],
    /// Rules that it is known to break, by what they begin with, and what it does instead. They are
    /// not put to it; the page says why.
    pub otherwise: &'static [(&'static str, &'static str)],
    /// How long nothing has to come before it counts as nothing.
    pub quiet: Quiet,
    open: fn() -> Device,
    /// Of providers whose ends are on two nodes of a fabric.
    open_two: Option<fn() -> (Device, Device)>,
    /// Of providers with [`Feature::VirtualClock`].
    open_virtual: Option<fn() -> Device>,
}

/// What the software HCA does not do, in either mode.
const SOFT_LACKS: [Feature; 4] = [
    Feature::RcSqe,
    Feature::XrcSqe,
    Feature::XrcInitiatorReceives,
    Feature::XrcTargetSends,
];

/// Those that run everywhere, in the order of the columns.
static PROVIDERS: [Provider; 4] = [
    Provider {
        name: "soft-inline",
        about: "the software HCA, executing on the thread that rings",
        lacks: &[&SOFT_LACKS],
        otherwise: &[],
        quiet: Quiet(Duration::ZERO),
        open: || soft(Mode::Inline, ClockKind::Real),
        open_two: None,
        open_virtual: Some(|| soft(Mode::Inline, ClockKind::Virtual)),
    },
    Provider {
        name: "soft-engine",
        about: "the software HCA, executing on a thread of its own",
        lacks: &[&SOFT_LACKS, &[Feature::VirtualClock]],
        otherwise: &[],
        quiet: Quiet(Duration::from_millis(5)),
        open: || soft(ENGINE, ClockKind::Real),
        open_two: None,
        open_virtual: None,
    },
    Provider {
        name: "soft-fabric",
        about: "two nodes of a fabric, one end on each where a rule has two",
        lacks: &[&SOFT_LACKS, &[Feature::VirtualClock]],
        otherwise: &[],
        quiet: Quiet(Duration::from_millis(5)),
        open: || node(&fabric_name(), Mode::Inline),
        open_two: Some(|| two(Mode::Inline)),
        open_virtual: None,
    },
    Provider {
        name: "fabric-engine",
        about: "the same, executing on threads of their own",
        lacks: &[&SOFT_LACKS, &[Feature::VirtualClock]],
        otherwise: &[],
        quiet: Quiet(Duration::from_millis(5)),
        open: || node(&fabric_name(), ENGINE),
        open_two: Some(|| two(ENGINE)),
        open_virtual: None,
    },
];

/// The device of libibverbs that is to be judged, in place of the others.
#[cfg(feature = "verbs")]
const VERBS_DEVICE: &str = "BELLWIRE_VERBS_DEVICE";

/// What rxe does not do, and the interface does not offer on devices of libibverbs.
#[cfg(feature = "verbs")]
const VERBS_LACKS: [Feature; 8] = [
    Feature::Xrc,
    Feature::FaultInjection,
    Feature::RcSqe,
    Feature::XrcSqe,
    Feature::XrcInitiatorReceives,
    Feature::XrcTargetSends,
    Feature::PathMigration,
    Feature::Nop,
];

/// What rxe of Linux 6.1 does otherwise than the rules say.
#[cfg(feature = "verbs")]
const OTHERWISE: [(&str, &str); 78] = [
    (
        "attributes::rc::query_gives_back",
        "depths of READs are rounded up to powers of two",
    ),
    ("channels::arming::a_failed_request_is", BAD_SOLICITED),
    ("channels::waiting::a_sleeper_is_told_of", BAD_SOLICITED),
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
        "fails with LOC_PROT_ERR",
    ),
    ("errors::rc::atomic_with_too_much_room", "is executed"),
    ("errors::rc::atomic_without_depth", "waits for ever"),
    ("errors::rc::inline_message_longer", "fails with REM_OP_ERR"),
    ("errors::rc::lkey_", BAD_LKEY),
    ("errors::rc::message_longer", "fails with REM_OP_ERR"),
    ("errors::rc::read_without_depth", "waits for ever"),
    ("errors::rc::receive_", BAD_LKEY),
    (
        "errors::rc::rkey_of_nobody_write_with_imm",
        "the receive fails with REM_ACCESS_ERR",
    ),
    ("errors::rc::send_of_more_than_2_gib", BAD_LKEY),
    ("errors::rc::write_of_more_than_2_gib", BAD_LKEY),
    ("events::caused::a_responder_with_nothing", BAD_LKEY),
    ("events::caused::comm_est", NO_EVENT),
    ("events::caused::cq_err", OVERRUN),
    ("events::caused::port_", LINK),
    ("events::caused::a_port_tells", LINK),
    ("events::caused::qp_", NO_EVENT),
    (
        "events::caused::sq_drained_is_for",
        "raises SQ_DRAINED whoever asked",
    ),
    (
        "events::caused::sq_drained_when",
        "raises SQ_DRAINED before that",
    ),
    ("gone::an_overrun", OVERRUN),
    ("lives::rc::sqd_takes_a_new_depth", "the sends do not go on"),
    (
        "operations::rc::an_atomic_result_may_be",
        "elements of other lengths are written wrong",
    ),
    ("operations::rc::solicited", NO_SOLICITED),
    ("srq::a_bad_receive", BAD_LKEY),
    (
        "states::rc::sqd::outgoing",
        "READs that were started do not go on",
    ),
    (
        "states::rc::sqd::send_proc",
        "READs that were started do not go on",
    ),
    ("states::uc::sqe", BAD_LKEY),
    ("states::ud::sqe", BAD_LKEY),
    (
        "statuses::loc_len",
        "there is no LOC_LEN_ERR: an atomic fails with LOC_PROT_ERR, a message longer than its receive \
         with REM_OP_ERR",
    ),
    ("statuses::loc_", BAD_LKEY),
    (
        "transitions::uc::sqd_to_sqd_takes_options",
        "refuses a new path",
    ),
    ("transitions::uc::sqe", BAD_LKEY),
    ("transitions::ud::sqe", BAD_LKEY),
    ("uc::a_bad_lkey", BAD_LKEY),
    ("uc::a_failed_receiver", BAD_LKEY),
    ("uc::a_message_too_long", BAD_LKEY),
    ("uc::a_receive_into_bad_memory", BAD_LKEY),
    ("uc::a_senders_error", BAD_LKEY),
    ("uc::another_connections", "takes anybody's messages"),
    ("uc::each_direction", BAD_LKEY),
    (
        "ud::a_controlled_qkey",
        "sends the Q_Key as it is, and the receiver drops it",
    ),
    ("ud::a_local_error", BAD_LKEY),
    ("ud::a_message_beyond_the_mtu", NO_MTU),
    ("ud::a_queue_pair_that_fails_itself", BAD_LKEY),
    ("ud::a_receive_", BAD_LKEY),
    ("ud::solicited", NO_SOLICITED),
    ("ud::without_a_global_route", "RoCE has no other way"),
    (
        "ud::address_handles_are_checked",
        "has GID tables longer than an address can name",
    ),
    ("ud::addresses_are_queried", "RoCE has no LIDs"),
    (
        "windows::binding::a_window_of_another_domain",
        "fails with LOC_QP_OP_ERR",
    ),
    (
        "windows::binding::a_window_opens_no_more_than_its_part",
        "fails with REM_OP_ERR",
    ),
    (
        "windows::binding::a_failed_bind",
        "fails with LOC_QP_OP_ERR",
    ),
    ("windows::binding::a_zero_based", "has none"),
    ("windows::taking_away", KERNEL),
    ("ud::a_global_route_comes", HEADER),
    ("ud::the_header_spreads", HEADER),
    ("ud::the_way_back", HEADER),
    ("ud::there_is_no_way_back", HEADER),
    (
        "ud::to_another_port",
        "looks for the port before, and finds none",
    ),
    ("windows::binding::type_1_of_length_zero", KERNEL),
    (
        "windows::binding::the_wrong_type",
        "fails with LOC_QP_OP_ERR",
    ),
    ("multicast::", NO_LOOP),
];

#[cfg(feature = "verbs")]
const BAD_LKEY: &str =
    "memory that a local key does not open, or is too short, fails with LOC_QP_OP_ERR";
#[cfg(feature = "verbs")]
const BAD_SOLICITED: &str = "a completion in error does not count as solicited";
#[cfg(feature = "verbs")]
const HEADER: &str = "the header is one of IPv4, behind 20 bytes without a meaning";
#[cfg(feature = "verbs")]
const KERNEL: &str =
    "taking a window's key away panics the kernel where nothing is bound, or by a bind of no bytes";
#[cfg(feature = "verbs")]
const NO_LOOP: &str = "members on the sender's own port get no copy";
#[cfg(feature = "verbs")]
const LINK: &str =
    "the link is the administrator's, the interface cannot take it down: see tests/rxe";
#[cfg(feature = "verbs")]
const NO_EVENT: &str = "the event is not raised";
#[cfg(feature = "verbs")]
const NO_MTU: &str = "a datagram longer than the MTU is sent, and lost";
#[cfg(feature = "verbs")]
const NO_SOLICITED: &str = "libibverbs does not tell whether a message was solicited";
#[cfg(feature = "verbs")]
const OVERRUN: &str = "CQ_ERR comes for each entry that is lost, and the queue pairs go to ERR when it is got: see tests/rxe";

/// A device of libibverbs: rxe, in the guest of `cargo xtask vm`.
#[cfg(feature = "verbs")]
static VERBS: [Provider; 1] = [Provider {
    name: "verbs",
    about: "a device of libibverbs: rxe of Linux 6.1",
    lacks: &[&VERBS_LACKS, &[Feature::VirtualClock]],
    otherwise: &OTHERWISE,
    quiet: Quiet(Duration::from_millis(20)),
    open: || {
        let name = std::env::var(VERBS_DEVICE).expect("the name of a device");
        Device::open(&name).expect("a device of libibverbs")
    },
    open_two: None,
    open_virtual: None,
}];

/// The page with the verdicts, and what renews it.
pub fn page() -> (&'static str, &'static str) {
    #[cfg(feature = "verbs")]
    if std::env::var_os(VERBS_DEVICE).is_some() {
        return ("conformance-verbs.md", "cargo xtask conformance --verbs");
    }
    ("conformance.md", "cargo xtask conformance")
}

/// Who is judged.
pub fn providers() -> &'static [Provider] {
    #[cfg(feature = "verbs")]
    if std::env::var_os(VERBS_DEVICE).is_some() {
        return &VERBS;
    }
    &PROVIDERS
}

fn two(mode: Mode) -> (Device, Device) {
    let name = fabric_name();
    (node(&name, mode), node(&name, mode))
}

fn soft(mode: Mode, clock: ClockKind) -> Device {
    Device::soft(HcaConfig {
        mode,
        clock,
        seed: Some(1),
    })
}

impl Provider {
    /// What it does instead of following this rule.
    pub fn otherwise(&self, rule: &str) -> Option<&'static str> {
        let found = self
            .otherwise
            .iter()
            .find(|(start, _)| rule.starts_with(start));
        found.map(|&(_, instead)| instead)
    }

    /// Every feature that it lacks.
    pub fn lacking(&self) -> impl Iterator<Item = Feature> {
        self.lacks.iter().copied().flatten().copied()
    }

    /// A device, with nothing on it that others use.
    pub fn device(&self) -> Device {
        (self.open)()
    }

    /// Protection domains for two ends: one and the same on a device of their own, or one on each of two
    /// nodes of a fabric.
    pub fn pds(&self) -> (Pd, Pd) {
        match self.open_two {
            Some(open) => {
                let (a, b) = open();
                (a.alloc_pd(), b.alloc_pd())
            }
            None => {
                let pd = self.device().alloc_pd();
                (pd.clone(), pd)
            }
        }
    }

    /// Two ends in RESET on a device of their own.
    pub fn ends(&self) -> (End, End) {
        let (a, b) = self.pds();
        let end = |pd: &Pd| End::new(pd, self.quiet, &init());
        (end(&a), end(&b))
    }

    /// Two connected ends on a device of their own.
    pub fn pair(&self) -> (End, End) {
        self.pair_with(&ConnectAttr::default())
    }

    /// As [`pair`](Self::pair), connected in this way.
    pub fn pair_with(&self, attr: &ConnectAttr) -> (End, End) {
        let (mut a, mut b) = self.ends();
        connect_with(&mut a.qp, &mut b.qp, attr);
        (a, b)
    }

    /// A device whose clock moves only when told.
    pub fn virtual_device(&self) -> Device {
        self.open_virtual
            .expect("the rule needs Feature::VirtualClock")()
    }

    /// As [`pair_with`](Self::pair_with), on such a device.
    pub fn virtual_pair(&self, attr: &ConnectAttr) -> (Device, End, End) {
        let device = self.virtual_device();
        let (a, b) = pair_with(&device, self.quiet, attr);
        (device, a, b)
    }
}
