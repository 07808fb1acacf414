//! Devices: which there are, what they can do, and opening one.

use crate::error::Error;
use crate::event::AsyncQueue;
use crate::pd::Pd;
use crate::soft::{HcaConfig, PORTS, Running, limits};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// What a device can do (`ibv_device_attr`, as far as it has a meaning here).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Queue pairs at once.
    pub max_qp: u32,
    /// Requests of one send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of one request.
    pub max_sge: u32,
    /// Inline bytes of one request.
    pub max_inline_data: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions at once.
    pub max_mr: u32,
    /// Bytes of one region.
    pub max_mr_size: u64,
    /// Bytes of one message.
    pub max_msg_sz: u64,
    /// READs and atomics in flight to one peer.
    pub max_qp_rd_atom: u8,
}

/// A device as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// What [`Device::open`] takes.
    pub name: String,
    /// What it is.
    pub description: String,
    /// What it can do.
    pub attr: DeviceAttr,
}

/// An open device (`ibv_context`): what is created through it works together, and its asynchronous
/// events come here. Clones are the same one; it closes when the last object on it goes.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) hca: Arc<Running>,
    pub(crate) events: Arc<AsyncQueue>,
    name: &'static str,
}

const SOFT: &str = "soft";

impl Device {
    /// Opens a device by name. `"soft"` is the software HCA that all of the process shares, inline
    /// and on the real clock; `"auto"` is the best that there is. Each call gives another context.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Io`] when the system has no descriptor left.
    pub fn open(name: &str) -> Result<Self, Error> {
        match name {
            "auto" | SOFT => Self::context(shared_soft()),
            _ => Err(Error::UnknownDevice {
                name: name.to_owned(),
            }),
        }
    }

    fn context(hca: Arc<Running>) -> Result<Self, Error> {
        let events = hca.contexts.open(PORTS)?;
        Ok(Self {
            hca,
            events,
            name: SOFT,
        })
    }

    /// Opens the same device once more: another context, with events of its own.
    ///
    /// # Errors
    /// [`Error::Io`] when the system has no descriptor left.
    pub fn reopen(&self) -> Result<Self, Error> {
        Self::context(self.hca.clone())
    }

    /// Whether both are the same context.
    pub(crate) fn is_same_context(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.events, &other.events)
    }

    /// A software HCA of one's own: queue pairs of other devices cannot reach it.
    ///
    /// # Panics
    /// When the threads of engine mode cannot be started, or the system has no descriptor left.
    pub fn soft(config: HcaConfig) -> Self {
        Self::context(Running::start(config)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The devices that [`open`](Self::open) knows.
    pub fn list() -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            name: SOFT.to_owned(),
            description: "software HCA, within this process".to_owned(),
            attr: limits(),
        }]
    }

    /// The name that it was opened by.
    pub fn name(&self) -> &str {
        self.name
    }

    /// What it can do.
    pub fn attr(&self) -> DeviceAttr {
        limits()
    }

    /// A new protection domain: queue pairs reach only memory of their own.
    pub fn alloc_pd(&self) -> Pd {
        Pd::new(self.clone())
    }

    /// Lets requests go on whose time has come: those that wait for a receive to be posted, or for an
    /// acknowledgement. Polling a completion queue does the same.
    pub fn progress(&self) {
        if self.hca.waiting() {
            self.hca.progress();
        }
    }

    /// Before this thread sleeps for an event: lets requests go on, and tells for how long it may
    /// sleep until it asks again. An inline device has nobody else to do it.
    pub(crate) fn idle(&self) -> Option<Duration> {
        const SOON: Duration = Duration::from_millis(1);
        const LATER: Duration = Duration::from_millis(20);
        if self.hca.has_engine() {
            return None;
        }
        self.progress();
        Some(if self.hca.waiting() { SOON } else { LATER })
    }

    /// Moves a virtual clock on, and lets requests go on whose time has come. `false`: the clock is
    /// the real one, and nothing was done.
    pub fn advance(&self, by: Duration) -> bool {
        self.hca.advance(by)
    }
}

/// The software HCA that all of the process shares.
fn shared_soft() -> Arc<Running> {
    static SHARED: Mutex<Weak<Running>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let hca = Running::start(HcaConfig::default());
        *shared = Arc::downgrade(&hca);
        hca
    })
}
