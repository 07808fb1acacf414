//! The steps of a recovery in their order, and sets of them.

use core::fmt;

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
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
        }
    };
}

steps! {
    /// Refuse new posts.
    StopPosting = "stop posting";
    /// Take the queue pairs to ERR, so that all posted requests are flushed.
    ToError = "to ERR";
    /// Wait until each queue pair takes no more receives from the shared receive queue: LAST_WQE_REACHED ends
    /// the step, reported as a fault or as the step's result. Not every device raises it: after the deadline
    /// the plan continues.
    AwaitLastWqe = "wait for LAST_WQE_REACHED";
    /// Poll until every posted request was reported: signalled requests posted last on both queues have
    /// completed. After the deadline the plan continues, and the ring accounts for the requests that were not
    /// reported.
    Drain = "drain";
    /// Poll until every request in the send queue of a queue pair in SQE was reported.
    DrainSend = "drain the send queue";
    /// Wait for TIMEWAIT_EXIT, after which no late packets of the connection can arrive. After the deadline
    /// the plan continues.
    AwaitTimewait = "wait for TIMEWAIT_EXIT";
    /// Acknowledge every event that was read: a queue cannot be destroyed while it has unacknowledged events.
    AckEvents = "acknowledge events";
    /// Take the queue pairs to RESET, and remove their entries from the completion queue.
    Reset = "RESET";
    /// Destroy all queue pairs on the completion queue, or on the shared receive queue.
    DestroyQp = "destroy queue pairs";
    /// Destroy the completion queue.
    DestroyCq = "destroy the completion queue";
    /// Destroy the shared receive queue, create it, post its receives again, set its limit.
    RebuildSrq = "rebuild the shared receive queue";
    /// Create the completion queue.
    CreateCq = "create the completion queue";
    /// Create the queue pairs.
    CreateQp = "create queue pairs";
    /// Wait until the port is active: PORT_ACTIVE, reported as a fault or as the step's result.
    AwaitPort = "wait for the port";
    /// Forget addresses that were looked up (GID index, LID, P_Key, route), and look them up again. The
    /// result is [`StepResult::Changed`](super::StepResult::Changed) if they have changed.
    Resolve = "resolve addresses";
    /// Send the peer the new endpoint and the count of consumed receives, and receive those of the peer.
    Exchange = "exchange with the peer";
    /// Take the queue pairs to INIT.
    Init = "INIT";
    /// Post the receives that were not consumed again.
    RepostReceives = "post receives again";
    /// Take the queue pairs to RTR and RTS.
    Connect = "RTR, RTS";
    /// Report to the peer that this end is ready, and wait until the peer is.
    Ready = "wait until the peer is ready";
    /// Take the send queue from SQE to RTS.
    ResumeSend = "SQE to RTS";
    /// Check that the path works, by an empty WRITE or a check of the program's own. The port becomes active
    /// before the path works.
    Probe = "probe the path";
    /// Determine the outcomes of the requests that were in flight, post again those that are to be replayed,
    /// in their old order, and report the others.
    Replay = "replay";
    /// Accept posts again.
    Open = "open";
    /// Load a new alternate path, and arm it.
    LoadAlternatePath = "load an alternate path";
    /// Join the multicast groups again.
    RejoinMulticast = "join multicast groups again";
    /// Post receives to the shared receive queue, and set its limit again.
    RefillSrq = "refill the shared receive queue";
    /// Giving up: destroy the objects. This may fail or hang: after its deadline the plan continues.
    Close = "close";
    /// Giving up: determine and report the outcomes of all requests that were not reported, and return all
    /// buffers.
    ReportOutcomes = "report all outcomes";
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
