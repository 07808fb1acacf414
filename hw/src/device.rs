//! Devices: which there are, what they can do, and opening one.

use crate::error::Error;
use crate::pd::Pd;
use crate::soft::{HcaConfig, Running, limits};
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
    /// Shared receive queues at once.
    pub max_srq: u32,
    /// Receives of one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of one of its receives.
    pub max_srq_sge: u32,
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

/// An open device. Clones are the same one; it closes when the last object on it goes.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) hca: Arc<Running>,
    name: &'static str,
}

const SOFT: &str = "soft";

impl Device {
    /// Opens a device by name. `"soft"` is the software HCA that all of the process shares, inline
    /// and on the real clock; `"auto"` is the best that there is.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn open(name: &str) -> Result<Self, Error> {
        match name {
            "auto" | SOFT => Ok(Self::shared_soft()),
            _ => Err(Error::UnknownDevice {
                name: name.to_owned(),
            }),
        }
    }

    fn shared_soft() -> Self {
        static SHARED: Mutex<Weak<Running>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let hca = shared.upgrade().unwrap_or_else(|| {
            let hca = Running::start(HcaConfig::default());
            *shared = Arc::downgrade(&hca);
            hca
        });
        Self { hca, name: SOFT }
    }

    /// A software HCA of one's own: queue pairs of other devices cannot reach it.
    ///
    /// # Panics
    /// When the threads of engine mode cannot be started.
    pub fn soft(config: HcaConfig) -> Self {
        Self {
            hca: Running::start(config),
            name: SOFT,
        }
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

    /// Moves a virtual clock on, and lets requests go on whose time has come. `false`: the clock is
    /// the real one, and nothing was done.
    pub fn advance(&self, by: Duration) -> bool {
        self.hca.advance(by)
    }
}
