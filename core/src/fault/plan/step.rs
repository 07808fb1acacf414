//! The steps of a recovery, in their order, and sets of them.

use core::fmt;

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A step of a recovery. Steps that are wanted are taken in this order. Each may be named
        /// again after it failed, or after a fault, and has to bear that.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Step {
            $($(#[$doc])* $name,)*
        }

        impl Step {
            /// Every step, in order.
            pub const ALL: &[Step] = &[$(Step::$name),*];

            /// In words.
            pub const fn name(self) -> &'static str {
                match self { $(Step::$name => $text,)* }
            }
        }
    };
}

steps! {
    /// Refuse new posts.
    StopPosting = "stop posting";
    /// Take the queue pairs to ERR, so that everything posted is flushed.
    ToError = "to ERR";
    /// Wait until each queue pair takes no more receives from the shared receive queue: its
    /// LAST_WQE_REACHED, as a fault or as the answer. Not every device raises it: past the deadline the
    /// plan goes on.
    AwaitLastWqe = "wait for LAST_WQE_REACHED";
    /// Poll until everything posted was told: signalled requests posted last on both queues came back.
    /// Past the deadline the plan goes on; what was not told by then is accounted for by the ring.
    Drain = "drain";
    /// Poll until everything in the send queue of a queue pair in SQE was told.
    DrainSend = "drain the send queue";
    /// Wait until late packets of the connection have died out: TIMEWAIT_EXIT. Past the deadline the
    /// plan goes on.
    AwaitTimewait = "wait for TIMEWAIT_EXIT";
    /// Acknowledge every event that was got: a queue cannot be destroyed before.
    AckEvents = "acknowledge events";
    /// Take the queue pairs to RESET; what the completion queue still holds of them is purged.
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
    /// Wait until the port is up: PORT_ACTIVE as a fault, or as the answer.
    AwaitPort = "wait for the port";
    /// Forget addresses that were looked up (GID index, LID, partition key, route), and look them up
    /// again. [`StepResult::Changed`](super::StepResult::Changed) if they are others than before.
    Resolve = "resolve addresses";
    /// Tell the peer the new endpoint and the count of consumed receives, and get its own.
    Exchange = "exchange with the peer";
    /// Take the queue pairs to INIT.
    Init = "INIT";
    /// Post the receives again that were not consumed.
    RepostReceives = "post receives again";
    /// Take the queue pairs to RTR and RTS.
    Connect = "RTR, RTS";
    /// Tell the peer that this end is ready, and wait until it is.
    Ready = "wait until the peer is ready";
    /// Take the send queue from SQE to RTS.
    ResumeSend = "SQE to RTS";
    /// See whether the path works: an empty WRITE, or what the program has for it. The port is up
    /// before the path is.
    Probe = "probe the path";
    /// Settle the outcomes of what was in flight; post again, in the old order, what is to be; tell
    /// the rest.
    Replay = "replay";
    /// Take posts again.
    Open = "open";
    /// Load a new alternate path, and arm it.
    LoadAlternatePath = "load an alternate path";
    /// Join the multicast groups again.
    RejoinMulticast = "join multicast groups again";
    /// Post receives to the shared receive queue, and set its limit again.
    RefillSrq = "refill the shared receive queue";
    /// Giving up: destroy what there is. It may fail or hang: past its deadline the plan goes on.
    Close = "close";
    /// Giving up: settle and tell the outcomes of everything that was not told, and give all buffers
    /// back.
    Surface = "tell all outcomes";
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Steps to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps(u32);

static_assertions::const_assert!(Step::ALL.len() <= 32);

impl Steps {
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
