//! Event channels.

use super::event::Event;
use super::id::Id;
use super::param::PortSpace;
use super::rdma;
use super::soft;
use crate::device::Device;
use crate::error::Error;
use crate::event::Waiters;
use crate::pinned::headroom;
use crate::provider::{Provider, each};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A channel that delivers the events of its ids (`rdma_event_channel`). Clones refer to the same
/// channel. Any thread may use it.
#[derive(Clone, Debug)]
pub struct EventChannel(
    pub(super) Provider<Arc<soft::Channel>, Arc<rdma::Channel>>,
    Waiters,
);

impl EventChannel {
    /// Opens a channel of the provider of this name: `"soft"` and `"soft:NAME"` are those of the software
    /// HCA, within the process and on the fabric of that name, as for [`Device::open`]; `"rdma"` is
    /// librdmacm. `"auto"` selects librdmacm if there is an RDMA device, otherwise `"soft"`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Library`] when librdmacm is not installed; [`Error::Io`] when
    /// the system has no descriptor left, or no rdma_cm.
    pub fn open(provider: &str) -> Result<Self, Error> {
        match provider {
            "rdma" => {
                let channel = Provider::Verbs(rdma::Channel::open(None)?);
                Ok(Self(channel, Waiters::default()))
            }
            _ => Self::on(&Device::open(provider)?),
        }
    }

    /// Opens a channel whose ids use this device: resources created on it can be combined with those
    /// created on the device that [`Id::device`] returns. With librdmacm: only for addresses that lead to
    /// this device.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn on(device: &Device) -> Result<Self, Error> {
        headroom()?;
        let channel = match device.hca.soft() {
            Some(hca) => Provider::Soft(soft::Channel::open(device, hca)?),
            None => Provider::Verbs(rdma::Channel::open(Some(device))?),
        };
        Ok(Self(channel, Waiters::default()))
    }

    /// Takes the oldest event; `None` if there is none. Never blocks.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::UnknownEvent`] for an event that only a newer librdmacm defines; it was
    /// acknowledged. [`Error::Io`] or [`Error::Memory`] when a peer waits at a listener for which this process has no
    /// descriptor or no memory left: the error names the limit. The channel goes on, and its listeners try again each
    /// 0.1 s.
    pub fn try_get(&self) -> Result<Option<Event>, Error> {
        match self.next()? {
            Some(event) => Ok(Some(event)),
            None => self.lack().map_or(Ok(None), Err),
        }
    }

    /// [`try_get`](Self::try_get) for links: the program learns from its listener what a listener lacks.
    pub(super) fn next(&self) -> Result<Option<Event>, Error> {
        while let Some(event) = each!(&self.0, channel => channel.try_get())? {
            if let Some(event) = event.driven() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Takes the oldest event, waiting for one if necessary; `None` if none came within this time.
    /// [`Duration::MAX`] waits forever.
    ///
    /// # Errors
    /// Those of [`try_get`](Self::try_get); [`Error::Interrupted`] when a signal handler has interrupted a wait
    /// without a limit; [`Error::Woken`] by [`waiters`](Self::waiters).
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
            self.1.sleep(&[self.as_fd()], bound, left)?;
        }
    }

    /// The threads that wait in [`get`](Self::get): another thread, or a signal handler, can end their waits.
    ///
    /// ```
    /// use bellwire::Error;
    /// use bellwire::connect::cm::EventChannel;
    /// use std::time::Duration;
    ///
    /// let channel = EventChannel::open("soft")?;
    /// std::thread::scope(|scope| {
    ///     let getter = scope.spawn(|| channel.get(Duration::MAX));
    ///     channel.waiters().wake();
    ///     assert!(matches!(getter.join().unwrap(), Err(Error::Woken)));
    /// });
    /// # Ok::<(), Error>(())
    /// ```
    pub fn waiters(&self) -> &Waiters {
        &self.1
    }

    /// How many processes of peers it has seen end; with librdmacm none, because it does not say.
    pub(super) fn processes_ended(&self) -> u64 {
        let soft = self.0.soft();
        soft.map_or(0, |channel| channel.processes_ended())
    }

    /// Why a peer of a listener could not be accepted, since it was asked last; with librdmacm none, as the kernel
    /// accepts.
    pub(super) fn lack(&self) -> Option<Error> {
        self.0.soft()?.lack()
    }

    /// [`lack`](Self::lack) in words, which stays to be asked for.
    pub(super) fn lack_text(&self) -> Option<String> {
        self.0.soft()?.lack_text()
    }

    /// How long this thread may sleep before it has to check again.
    pub(super) fn idle(&self) -> Option<Duration> {
        self.0.soft()?.device().idle()
    }

    /// Creates an id whose events are delivered here (`rdma_create_id`).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Exhausted`].
    pub fn id(&self, space: PortSpace) -> Result<Id, Error> {
        each!(&self.0, channel => channel.id(space).map(Id::from))
    }
}

/// Readable while an event is queued. For poll and epoll, not to be read.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(&self.0, channel => channel.fd())
    }
}
