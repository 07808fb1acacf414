//! Completion channels: sleeping until a completion queue has a new completion.

use super::{Bell, Element, EventQueue, Got, Waiters};
use crate::device::Device;
use crate::error::Error;
use crate::pinned::headroom;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A completion channel (`ibv_comp_channel`): a completion queue that was created with it and is armed
/// reports its next completion there, as an event. Clones are the same channel. Any thread may use it.
///
/// ```
/// use bellwire::wqe::{NoPayload, Nop};
/// use bellwire::wr::SendFlags;
/// use bellwire::{ConnectAttr, CqInit, Device, QpInit};
///
/// let pd = Device::open("auto")?.alloc_pd();
/// let channel = pd.device().create_comp_channel()?;
/// let init = QpInit::default();
/// let (sends, receives) = init.cq_entries();
/// let mut cq = pd.device().create_cq_with(&CqInit {
///     channel: Some(&channel),
///     ..CqInit::new(sends + receives)
/// })?;
/// let mut qp = pd.create_qp(&mut cq, &init)?;
/// let connect = ConnectAttr::default();
/// qp.init(&connect)?;
/// qp.connect(&qp.endpoint(), &connect)?;
///
/// cq.req_notify(false)?;
/// // SAFETY: a NOP names no memory.
/// unsafe { qp.sq().post(7, (), Nop {}, NoPayload, SendFlags::SIGNALED)? };
/// qp.sq().ring();
///
/// let event = channel.get_cq_event()?;
/// assert_eq!(event.cqn(), cq.cqn());
/// event.ack();
/// // Armed anew before it is polled, so that nothing is missed.
/// cq.req_notify(false)?;
/// assert_eq!(cq.poll_one().map(|completion| completion.wr_id), Some(7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CompChannel {
    queue: Arc<EventQueue<()>>,
    device: Device,
}

impl Device {
    /// Creates a completion channel. It exists until its last clone and the last completion queue on it are
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Io`]: the system has no descriptor left.
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        headroom()?;
        self.comp_channel(None)
    }

    /// Creates a channel for a thread that sleeps on a bell. If the channel's events are queued in this
    /// process, they ring the bell; otherwise the channel has a descriptor of its own.
    pub(crate) fn create_comp_channel_ringing(
        &self,
        bell: &Arc<Bell>,
    ) -> Result<CompChannel, Error> {
        self.comp_channel(Some(bell))
    }

    fn comp_channel(&self, bell: Option<&Arc<Bell>>) -> Result<CompChannel, Error> {
        Ok(CompChannel {
            queue: Arc::new(self.hca.cq_events(bell)?),
            device: self.clone(),
        })
    }
}

impl CompChannel {
    /// Whether its descriptor is that of the bell.
    pub(crate) fn rings(&self, bell: &Bell) -> bool {
        self.as_raw_fd() == bell.as_fd().as_raw_fd()
    }

    /// Gets the oldest event; `None` if there is none. Never blocks.
    pub(crate) fn next(&self) -> Result<Option<CqEvent>, Error> {
        Ok(self.queue.get_now()?.map(CqEvent))
    }

    /// Gets the oldest event (ibv_get_cq_event(3)). If there is none, it blocks, unless the channel is
    /// [nonblocking](Self::set_nonblocking).
    ///
    /// On an inline device, requests that wait for their time proceed meanwhile, as they do when the program
    /// polls. A program that sleeps in poll or epoll instead has to call [`Device::progress`] from time to
    /// time.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: there is no event, and the descriptor is nonblocking; [`Error::Interrupted`]: a signal
    /// handler has interrupted the wait; [`Error::Woken`] by [`waiters`](Self::waiters); [`Error::Io`]: waiting for
    /// an event failed.
    pub fn get_cq_event(&self) -> Result<CqEvent, Error> {
        self.queue.get(|| self.device.idle()).map(CqEvent)
    }

    /// Acknowledges `count` events of a completion queue that were [deferred](CqEvent::defer), at the cost of
    /// one acknowledgement (ibv_ack_cq_events(3)).
    ///
    /// # Errors
    /// [`Error::NotDeferred`]: fewer events were deferred, and none is acknowledged.
    pub fn ack_events(&self, cqn: u32, count: u32) -> Result<(), Error> {
        self.queue.ack_deferred(Element::Cq(cqn), count)
    }

    /// Sets whether [`get_cq_event`](Self::get_cq_event) returns [`Error::WouldBlock`] where it would block:
    /// the descriptor's flag O_NONBLOCK, which the program may also set itself.
    ///
    /// ```
    /// let device = bellwire::Device::open("soft")?;
    /// let channel = device.create_comp_channel()?;
    /// channel.set_nonblocking(true)?;
    /// assert!(matches!(channel.get_cq_event(), Err(bellwire::Error::WouldBlock)));
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`]: the system refuses.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<(), Error> {
        self.queue.set_nonblocking(nonblocking)
    }

    /// The threads that wait in [`get_cq_event`](Self::get_cq_event): another thread, or a signal handler, can end
    /// their waits.
    ///
    /// ```
    /// use bellwire::{Device, Error};
    ///
    /// let channel = Device::soft(Default::default()).create_comp_channel()?;
    /// std::thread::scope(|scope| {
    ///     let getter = scope.spawn(|| channel.get_cq_event());
    ///     channel.waiters().wake();
    ///     assert!(matches!(getter.join().unwrap(), Err(Error::Woken)));
    /// });
    /// # Ok::<(), Error>(())
    /// ```
    pub fn waiters(&self) -> &Waiters {
        self.queue.waiters()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn queue(&self) -> &Arc<EventQueue<()>> {
        &self.queue
    }
}

/// The descriptor is readable while an event is queued. For poll and epoll; it must not be read.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }
}

/// The descriptor of [`AsFd`].
impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.fd().as_raw_fd()
    }
}

/// The event that a completion queue has a new completion. It is acknowledged by [`ack`](Self::ack) or when
/// it is dropped; dropping the completion queue waits for that.
#[derive(Debug)]
#[must_use = "dropping it acknowledges it"]
pub struct CqEvent(Got<()>);

impl CqEvent {
    /// The completion queue number.
    pub fn cqn(&self) -> u32 {
        match self.0.element {
            Element::Cq(cqn) => cqn,
            // A channel has events of completion queues only.
            _ => 0,
        }
    }

    /// Acknowledges the event, as dropping it does.
    pub fn ack(self) {}

    /// Defers the acknowledgement, so that the event is acknowledged together with others, by
    /// [`CompChannel::ack_events`] or [`Cq::ack_events`](crate::Cq::ack_events). Dropping the completion
    /// queue waits for that. Returns the completion queue number.
    pub fn defer(self) -> u32 {
        let cqn = self.cqn();
        self.0.defer();
        cqn
    }
}
