//! Where events come from.

use super::event::Event;
use super::id::Id;
use super::param::PortSpace;
#[cfg(feature = "cm")]
use super::rdma;
use super::soft;
use crate::device::Device;
use crate::error::Error;
use crate::event::wait;
use crate::provider::Provider;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the events of ids come from (`rdma_event_channel`). Clones are the same one. Any thread may
/// use it.
#[derive(Clone, Debug)]
pub struct EventChannel(pub(super) Source);

/// Who manages the connections.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Soft(Arc<soft::Channel>),
    #[cfg(feature = "cm")]
    Rdma(Arc<rdma::Channel>),
}

impl EventChannel {
    /// A channel of the provider of this name: `"soft"` and `"soft:NAME"` are the software HCA's within
    /// the process, and on the fabric of that name, as for [`Device::open`]; with the feature `cm`,
    /// `"rdma"` is librdmacm's. `"auto"` is that where there is a device of RDMA, else `"soft"`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Io`] when the system has no descriptor left, or no rdma_cm.
    pub fn open(provider: &str) -> Result<Self, Error> {
        match provider {
            #[cfg(feature = "cm")]
            "rdma" => Ok(Self(Source::Rdma(rdma::Channel::open(None)?))),
            // Devices of libibverbs have none.
            #[cfg(not(feature = "cm"))]
            "auto" => Self::on(&Device::open("soft")?),
            _ => Self::on(&Device::open(provider)?),
        }
    }

    /// A channel whose ids use this device: what is created on it and on what [`Id::device`] gives
    /// works together. Of librdmacm: where an address leads to it.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Unsupported`] for a device of libibverbs without the feature
    /// `cm`.
    pub fn on(device: &Device) -> Result<Self, Error> {
        match &device.hca {
            Provider::Soft(_) => Ok(Self(Source::Soft(soft::Channel::open(device)?))),
            #[cfg(feature = "cm")]
            Provider::Verbs(_) => Ok(Self(Source::Rdma(rdma::Channel::open(Some(device))?))),
            #[cfg(all(feature = "verbs", not(feature = "cm")))]
            Provider::Verbs(_) => Err(Error::Unsupported {
                what: "be connected by rdma_cm",
                instead: "build with the feature \"cm\"",
            }),
        }
    }

    /// Takes the oldest event; `None`: there is none. Never blocks.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::UnknownEvent`] for one that a newer librdmacm has, which was
    /// acknowledged.
    pub fn try_get(&self) -> Result<Option<Event>, Error> {
        let event = match &self.0 {
            Source::Soft(channel) => channel.try_get()?,
            #[cfg(feature = "cm")]
            Source::Rdma(channel) => channel.try_get()?,
        };
        Ok(event.map(Event::driven))
    }

    /// Takes the oldest event, and waits for one if need be; `None`: none came within this time.
    /// [`Duration::MAX`] is for ever.
    ///
    /// # Errors
    /// As [`try_get`](Self::try_get).
    pub fn get(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.try_get()? {
                return Ok(Some(event));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let bound = match (left, self.idle()) {
                (Some(left), Some(idle)) => Some(left.min(idle)),
                (left, idle) => left.or(idle),
            };
            wait(self.as_fd(), bound).map_err(|error| Error::io("wait for an event", error))?;
        }
    }

    /// Before this thread sleeps: for how long it may.
    fn idle(&self) -> Option<Duration> {
        match &self.0 {
            Source::Soft(channel) => channel.device().idle(),
            #[cfg(feature = "cm")]
            Source::Rdma(_) => None,
        }
    }

    /// A new id, whose events come here (`rdma_create_id`).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Exhausted`].
    pub fn id(&self, space: PortSpace) -> Result<Id, Error> {
        match &self.0 {
            Source::Soft(channel) => channel.id(space).map(Id::from),
            #[cfg(feature = "cm")]
            Source::Rdma(channel) => channel.id(space).map(Id::from),
        }
    }
}

/// Readable while an event is queued. For poll and epoll, not to be read.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Source::Soft(channel) => channel.fd(),
            #[cfg(feature = "cm")]
            Source::Rdma(channel) => channel.fd(),
        }
    }
}
