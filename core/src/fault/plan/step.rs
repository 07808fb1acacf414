//! The steps of a recovery in their order, and sets of them.

use core::fmt;

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $advice:literal;)*) => {
        /// A step of a recovery. The steps that are needed are taken in this order. A step may be returned
        /// again after it failed or after another fault, and has to tolerate that.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Step {
            $($(#[$doc])* $name,)*
        }

        impl Step {
            /// Every step, in order.
            pub const ALL: &[Step] = &[$(Step::$name),*];

            /// The step in words.
            pub const fn name(self) -> &'static str {
                match self { $(Step::$name => $text,)* }
            }

            /// What the operator should look at when the step fails or takes too long.
            pub const fn advice(self) -> &'static str {
                match self { $(Step::$name => $advice,)* }
            }
        }
    };
}

steps! {
    /// Refuse new posts.
    StopPosting = "stop posting",
        "Nothing: it cannot fail.";
    /// Take the queue pairs to ERR, so that all posted requests are flushed.
    ToError = "to ERR",
        "The kernel log: the driver or the device's firmware does not carry it out.";
    /// Wait until each queue pair takes no more receives from the shared receive queue: LAST_WQE_REACHED ends
    /// the step, reported as a fault or as the step's result. Not every device raises it: after the deadline
    /// the plan continues.
    AwaitLastWqe = "wait for LAST_WQE_REACHED",
        "Nothing: not every device raises the event, and the recovery goes on.";
    /// Poll until every posted request was reported: signalled requests posted last on both queues have
    /// completed. After the deadline the plan continues, and the ring accounts for the requests that were not
    /// reported.
    Drain = "drain",
        "Nothing: the recovery goes on, and the ring accounts for the requests that were not reported.";
    /// Poll until every request in the send queue of a queue pair in SQE was reported.
    DrainSend = "drain the send queue",
        "Nothing: the recovery goes on.";
    /// Wait for TIMEWAIT_EXIT, after which no late packets of the connection can arrive. After the deadline
    /// the plan continues.
    AwaitTimewait = "wait for TIMEWAIT_EXIT",
        "Nothing: the recovery goes on.";
    /// Acknowledge every event that was read: a queue cannot be destroyed while it has unacknowledged events.
    AckEvents = "acknowledge events",
        "Whether the program acknowledges each event that it got.";
    /// Take the queue pairs to RESET, and remove their entries from the completion queue.
    Reset = "RESET",
        "The kernel log: the driver or the device's firmware does not carry it out.";
    /// Destroy all queue pairs on the completion queue, or on the shared receive queue.
    DestroyQp = "destroy queue pairs",
        "The kernel log: the driver or the device's firmware does not carry it out.";
    /// Destroy the completion queue.
    DestroyCq = "destroy the completion queue",
        "Whether another queue pair is still on it; the kernel log.";
    /// Destroy the shared receive queue, create it, post its receives again, set its limit.
    RebuildSrq = "rebuild the shared receive queue",
        "Whether another queue pair is still on it; the kernel log.";
    /// Create the completion queue.
    CreateCq = "create the completion queue",
        "Limits of memory and of the device (`ulimit -l`, `ibv_devinfo -v`); the kernel log.";
    /// Create the queue pairs.
    CreateQp = "create queue pairs",
        "Limits of memory and of the device (`ulimit -l`, `ibv_devinfo -v`); the kernel log.";
    /// Wait until the port is active: PORT_ACTIVE, reported as a fault or as the step's result.
    AwaitPort = "wait for the port",
        "Cable and switch of the port; `rdma link`, `ip link`; the subnet manager.";
    /// Forget addresses that were looked up (GID index, LID, P_Key, route), and look them up again. The
    /// result is [`StepResult::Changed`](super::StepResult::Changed) if they have changed.
    Resolve = "resolve addresses",
        "The port's addresses: `rdma link`, `ip addr`; the subnet manager.";
    /// Send the peer the new endpoint and the count of consumed receives, and receive those of the peer.
    Exchange = "exchange with the peer",
        "Whether the peer still runs, and polls its link: a process that is stopped (SIGSTOP, a debugger) or busy with other work does not answer. Then the network between the two.";
    /// Take the queue pairs to INIT.
    Init = "INIT",
        "The port number and the access rights of the link's attributes; the kernel log.";
    /// Post the receives that were not consumed again.
    RepostReceives = "post receives again",
        "Whether the receives' memory is still registered; the kernel log.";
    /// Take the queue pairs to RTR and RTS.
    Connect = "RTR, RTS",
        "The GID index, and whether both ends reach each other: `rdma link`, `ip route get`; the kernel log.";
    /// Report to the peer that this end is ready, and wait until the peer is.
    Ready = "wait until the peer is ready",
        "Whether the peer still polls its link; the peer's log.";
    /// Take the send queue from SQE to RTS.
    ResumeSend = "SQE to RTS",
        "The kernel log: the driver or the device's firmware does not carry it out.";
    /// Check that the path works, by an empty WRITE or a check of the program's own. The port becomes active
    /// before the path works.
    Probe = "probe the path",
        "The path to the peer: `ping`, the port's error counters.";
    /// Determine the outcomes of the requests that were in flight, post again those that are to be replayed,
    /// in their old order, and report the others.
    Replay = "replay",
        "Whether the requests' memory is still registered; the kernel log.";
    /// Accept posts again.
    Open = "open",
        "Nothing: it cannot fail.";
    /// Load a new alternate path, and arm it.
    LoadAlternatePath = "load an alternate path",
        "The alternate path's address.";
    /// Join the multicast groups again.
    RejoinMulticast = "join multicast groups again",
        "The subnet manager, and the group's address.";
    /// Post receives to the shared receive queue, and set its limit again.
    RefillSrq = "refill the shared receive queue",
        "Whether the program returns its buffers.";
    /// Giving up: destroy the objects. This may fail or hang: after its deadline the plan continues.
    Close = "close",
        "The kernel log: the driver or the device's firmware does not carry it out.";
    /// Giving up: determine and report the outcomes of all requests that were not reported, and return all
    /// buffers.
    ReportOutcomes = "report all outcomes",
        "Nothing: it cannot fail.";
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of steps to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Steps(u32);

static_assertions::const_assert!(Step::ALL.len() <= 32);

impl Steps {
    /// The steps that the connection works without.
    pub const SIDE: Self = Self::of(&[
        Step::LoadAlternatePath,
        Step::RejoinMulticast,
        Step::RefillSrq,
    ]);

    pub fn is_within(self, of: Self) -> bool {
        self.0 & !of.0 == 0
    }

    pub const fn of(steps: &[Step]) -> Self {
        let mut set = 0;
        let mut at = 0;
        while at < steps.len() {
            set |= 1 << steps[at] as u8;
            at += 1;
        }
        Self(set)
    }

    pub fn add(&mut self, steps: &[Step]) {
        self.0 |= Self::of(steps).0;
    }

    pub fn remove(&mut self, step: Step) {
        self.0 &= !(1 << step as u8);
    }

    pub fn has(self, step: Step) -> bool {
        self.0 & 1 << step as u8 != 0
    }

    pub fn first(self) -> Option<Step> {
        Step::ALL.get(self.0.trailing_zeros() as usize).copied()
    }
}
