//! Counters that any thread reads while another one posts and polls.
//!
//! The owner of a queue pair, a link or a set makes a monitor, and gives it to the thread that answers Prometheus.
//! Reading takes no lock of the data path, and the data path executes the same
//! instructions whether there is a monitor or not.
//!
//! | monitor | of | has |
//! |---|---|---|
//! | [`QpMonitor`] | [`Qp::monitor`] | requests and bytes by operation, receives, depths of both queues |
//! | [`LinkMonitor`] | [`Link::monitor`] | the same, faults, recoveries, outcomes, stale entries, state |
//! | [`LinkSetMonitor`] | [`LinkSet::monitor`] | the sums over all links, removed ones included; each link |
//!
//! - **Requests and bytes** count posts of the program, replays, and the link's own keep-alives. They begin with the
//!   first monitor. The poster reads them back from its ring when it reloads its limit. So they lag behind by at most
//!   one lap of the ring, and for a link or a set by the polls between two checks. A recovery counts at once.
//!   [`Qp::count`] brings those of a queue pair up to date.
//! - **Depths** are read from the queues themselves, as they are now.
//! - **Everything else** is stored when it happens, off the data path.
//! - **Not counted**: bytes that were received, and outcomes of a plain queue pair. The completions have them.
//! - Counters are not read at one instant: two of them may differ by what happened in between.
//!
//! ```
//! use bellwire::wr::{Remote, SendFlags, WrOpcode};
//! use bellwire::{ConnectAttr, Device, QpInit};
//!
//! let pd = Device::soft(Default::default()).alloc_pd();
//! let mut cq = pd.device().create_cq(512)?;
//! let mut qp = pd.create_qp(&mut cq, &QpInit::default())?;
//! let connect = ConnectAttr::default();
//! qp.init(&connect)?;
//! qp.connect(&qp.endpoint(), &connect)?;
//!
//! let monitor = qp.monitor();
//! let write = bellwire::wqe::RdmaWrite { remote: Remote::default() };
//! qp.sq().post_empty(1, (), write, SendFlags::SIGNALED)?;
//! qp.sq().ring();
//! qp.count();
//! let counters = std::thread::spawn(move || monitor.read()).join().expect("it reads");
//! assert_eq!(counters.sends(WrOpcode::RdmaWrite).requests, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::qp::QpMemory;
#[cfg(doc)]
use crate::{
    Qp,
    link::{Link, LinkSet},
};
use bellwire_core::queue::Tally;
use bellwire_core::wr::WrOpcode;
use std::sync::{Arc, Weak};

pub use crate::link::{LinkMonitor, LinkSetMonitor};
pub use bellwire_core::queue::Posted;

/// Requests of a queue pair, and depths of its queues. A link has the requests of all its connections, a set the
/// requests of all its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounters {
    sends: [Posted; WrOpcode::ALL.len()],
    /// Receives that were posted; a link's replays count again. Receives of a shared receive queue do not count.
    pub receives: u64,
    /// Basic blocks of 64 bytes that sends may occupy at once. Most requests take one.
    pub send_slots: u64,
    /// Basic blocks of the sends that were rung and are not reported yet.
    pub sends_in_flight: u64,
    /// Receives that may be posted at once; 0 with a shared receive queue.
    pub recv_slots: u64,
    /// Receives that were rung and are not reported yet.
    pub receives_in_flight: u64,
}

impl QueueCounters {
    /// Requests of an operation that were posted, and their bytes.
    pub fn sends(&self, operation: WrOpcode) -> Posted {
        let index = WrOpcode::ALL.iter().position(|one| *one == operation);
        index.map_or_else(Posted::default, |index| self.sends[index])
    }

    /// Adds the counts of `tally`.
    pub(crate) fn add_tally(&mut self, tally: &Tally) {
        for (sum, operation) in self.sends.iter_mut().zip(WrOpcode::ALL) {
            let more = tally.sends(*operation);
            sum.requests = sum.requests.wrapping_add(more.requests);
            sum.bytes = sum.bytes.wrapping_add(more.bytes);
        }
        self.receives = self.receives.wrapping_add(tally.receives());
    }

    /// Adds the depths of the queues, if they exist.
    pub(crate) fn add_depths(&mut self, memory: &Weak<QpMemory>) {
        let depths = memory.upgrade().map(|memory| memory.depths());
        if let Some([sends, receives]) = depths {
            self.send_slots += u64::from(sends.0);
            self.sends_in_flight += u64::from(sends.1);
            self.recv_slots += u64::from(receives.0);
            self.receives_in_flight += u64::from(receives.1);
        }
    }
}

/// Reads the counters of a queue pair, from any thread: see the [module](self). The depths are 0 once the queue pair
/// is gone.
#[derive(Clone, Debug)]
pub struct QpMonitor {
    pub(crate) tally: Arc<Tally>,
    pub(crate) memory: Weak<QpMemory>,
}

impl QpMonitor {
    /// The counters as they are now.
    pub fn read(&self) -> QueueCounters {
        let mut counters = QueueCounters::default();
        counters.add_tally(&self.tally);
        counters.add_depths(&self.memory);
        counters
    }
}
