//! Completion channels: sleeping until a completion queue has something new.

use super::element::Element;
use super::queue::{EventQueue, Got};
use crate::device::Device;
use crate::error::Error;
use crate::provider::Provider;
#[cfg(feature = "verbs")]
use crate::verbs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A completion channel (`ibv_comp_channel`): completion queues that were created on it and armed
/// tell it of their next entry. Clones are the same one. Any thread may use it.
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
    /// Creates a completion channel. It lives until its last clone and the last completion queue on
    /// it are gone.
    ///
    /// # Errors
    /// [`Error::Io`] when the system has no descriptor left.
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        let queue = match &self.hca {
            Provider::Soft(_) => EventQueue::new()?,
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => {
                let channel = Arc::new(verbs::Channel::new(context)?);
                EventQueue::of_kernel(verbs::Source::Channel(channel), |_| ())
            }
        };
        Ok(CompChannel {
            queue: Arc::new(queue),
            device: self.clone(),
        })
    }
}

impl CompChannel {
    /// Takes the oldest event (ibv_get_cq_event(3)). When there is none it blocks, unless
    /// [`set_nonblocking`](Self::set_nonblocking) said otherwise.
    ///
    /// On an inline device, requests that wait for their time go on meanwhile, as when polling. A
    /// program that sleeps in poll or epoll instead is to call [`Device::progress`] now and then.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is none and the descriptor does not block, [`Error::Io`]
    /// when it cannot be waited for.
    pub fn get_cq_event(&self) -> Result<CqEvent, Error> {
        self.queue.get(|| self.device.idle()).map(CqEvent)
    }

    /// Acknowledges `count` events of a completion queue that were [deferred](CqEvent::defer), at
    /// the price of one (ibv_ack_cq_events(3)).
    ///
    /// # Errors
    /// [`Error::NotDeferred`] when there are fewer; none is acknowledged then.
    pub fn ack_events(&self, cqn: u32, count: u32) -> Result<(), Error> {
        self.queue.ack_deferred(Element::Cq(cqn), count)
    }

    /// Whether [`get_cq_event`](Self::get_cq_event) answers [`Error::WouldBlock`] where it would
    /// block: the descriptor's flag O_NONBLOCK, which the program may set itself as well.
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
    /// [`Error::Io`] when the system refuses.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<(), Error> {
        self.queue.set_nonblocking(nonblocking)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn queue(&self) -> &Arc<EventQueue<()>> {
        &self.queue
    }
}

/// Readable while an event is queued. For poll and epoll, not to be read.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }
}

/// As [`AsFd`].
impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.fd().as_raw_fd()
    }
}

/// A completion queue has a new entry. Acknowledged by [`ack`](Self::ack) or when it is dropped:
/// dropping the completion queue waits for that.
#[derive(Debug)]
#[must_use = "dropping it acknowledges it"]
pub struct CqEvent(Got<()>);

impl CqEvent {
    /// Number of the completion queue.
    pub fn cqn(&self) -> u32 {
        match self.0.element {
            Element::Cq(cqn) => cqn,
            // Nothing else is admitted to a channel.
            _ => 0,
        }
    }

    /// Acknowledges it, as dropping it does.
    pub fn ack(self) {}

    /// Leaves it to be acknowledged with others, by [`CompChannel::ack_events`] or
    /// [`Cq::ack_events`](crate::Cq::ack_events). Dropping the completion queue waits until it is.
    /// Gives the queue's number.
    pub fn defer(self) -> u32 {
        let cqn = self.cqn();
        self.0.defer();
        cqn
    }
}
