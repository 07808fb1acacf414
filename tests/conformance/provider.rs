//! The providers, and what each of them lacks.

mod verbs;

use crate::pages::Kept;
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
    /// Flushing unsignalled requests without an entry for each.
    SuppressedFlush = "flushing without entries";
    /// Alternate paths, and migrating to them.
    PathMigration = "path migration";
    /// A clock that moves only when it is advanced, and execution on the poster's thread.
    VirtualClock = "virtual clock";
}

/// What opens devices, and what tests have to know of them.
pub struct Provider {
    /// The column of the matrix.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// What it lacks: rules that need it are reported as not supported.
    pub lacks: &'static [&'static [Feature]],
    /// Rules that it is known to break, by what they begin with, and what it does instead. They are
    /// not put to it. Plain queues have a second list, of what they do beyond the first.
    pub otherwise: &'static [&'static [(&'static str, &'static str)]],
    /// How long nothing has to come before it counts as nothing.
    pub quiet: Quiet,
    open: fn() -> Device,
    /// Of providers whose ends are on two nodes of a fabric.
    open_two: Option<fn() -> (Device, Device)>,
    /// Of providers with [`Feature::VirtualClock`].
    open_virtual: Option<fn() -> Device>,
}

/// Cells that the specification does not have: rules that ask whether a device goes beyond it.
const NO_CELLS: [Feature; 4] = [
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
        lacks: &[&NO_CELLS],
        otherwise: &[],
        quiet: Quiet(Duration::ZERO),
        open: || soft(Mode::Inline, ClockKind::Real),
        open_two: None,
        open_virtual: Some(|| soft(Mode::Inline, ClockKind::Virtual)),
    },
    Provider {
        name: "soft-engine",
        about: "the software HCA, executing on a thread of its own",
        lacks: &[&NO_CELLS, &[Feature::VirtualClock]],
        otherwise: &[],
        quiet: Quiet(Duration::from_millis(5)),
        open: || soft(ENGINE, ClockKind::Real),
        open_two: None,
        open_virtual: None,
    },
    Provider {
        name: "soft-fabric",
        about: "two nodes of a fabric, one end on each where a rule has two",
        lacks: &[&NO_CELLS, &[Feature::VirtualClock]],
        otherwise: &[],
        quiet: Quiet(Duration::from_millis(5)),
        open: || node(&fabric_name(), Mode::Inline),
        open_two: Some(|| two(Mode::Inline)),
        open_virtual: None,
    },
    Provider {
        name: "fabric-engine",
        about: "two nodes of a fabric, executing on threads of their own",
        lacks: &[&NO_CELLS, &[Feature::VirtualClock]],
        otherwise: &[],
        quiet: Quiet(Duration::from_millis(5)),
        open: || node(&fabric_name(), ENGINE),
        open_two: Some(|| two(ENGINE)),
        open_virtual: None,
    },
];

/// Where the verdicts of the software HCA are kept.
const SOFT: Kept = Kept {
    name: "soft",
    renew: "cargo xtask conformance",
};

/// Where the verdicts of this run are kept.
pub fn kept() -> Option<Kept> {
    if verbs::providers().is_some() {
        return verbs::kept();
    }
    Some(SOFT)
}

/// Every provider that may be judged.
pub fn all() -> impl Iterator<Item = &'static Provider> {
    PROVIDERS.iter().chain(verbs::all())
}

/// The providers of this run.
pub fn providers() -> &'static [Provider] {
    if let Some(providers) = verbs::providers() {
        return providers;
    }
    &PROVIDERS
}

/// What is known of providers that stands for no rule any more: one that was renamed would be put to
/// devices that break it, and hang where such a device is, which is not on every machine.
pub fn otherwise_of_no_rule(rules: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for provider in all() {
        for (start, _) in provider.otherwise.iter().copied().flatten() {
            if !rules.iter().any(|rule| rule.starts_with(start)) {
                found.push(format!("{}: {start}", provider.name));
            }
        }
    }
    found
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
        ..HcaConfig::default()
    })
}

impl Provider {
    /// What it does instead of following this rule.
    pub fn otherwise(&self, rule: &str) -> Option<&'static str> {
        let mut known = self.otherwise.iter().copied().flatten();
        let found = known.find(|(start, _)| rule.starts_with(start));
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

    /// A device whose clock moves only when it is advanced.
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
