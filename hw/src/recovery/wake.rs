//! Sleeping until a link wants to be polled.

use super::exchange::Exchange;
use crate::device::Device;
use crate::error::Error;
use crate::event::CompChannel;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A descriptor that others make readable.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|error| Error::io("make an eventfd", error.into()))?;
        Ok(Self(fd))
    }

    /// From here on it is readable.
    pub fn ring(&self) {
        // It fails when the count is at its end: then it is readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// It is not any more.
    fn silence(&self) {
        // It fails when there is nothing to read.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// What wakes who sleeps on a link: its completion queue, whichever it is at the time, its exchange, the
/// device's asynchronous events, or whoever took those away.
#[derive(Clone, Debug)]
pub(super) struct Wake {
    all: Arc<OwnedFd>,
    pub channel: CompChannel,
    pub bell: Arc<Bell>,
}

impl Wake {
    pub fn new(device: &Device, exchange: &impl Exchange) -> Result<Self, Error> {
        let channel = device.create_comp_channel()?;
        channel.set_nonblocking(true)?;
        let bell = Arc::new(Bell::new()?);
        let all = epoll::create(epoll::CreateFlags::CLOEXEC);
        let all = all.map_err(|error| Error::io("make an epoll descriptor", error.into()))?;
        let of_each = [
            Some(channel.as_fd()),
            Some(bell.0.as_fd()),
            Some(device.async_fd()),
            exchange.fd(),
        ];
        for fd in of_each.into_iter().flatten() {
            let nothing = epoll::EventData::new_u64(0);
            epoll::add(&all, fd, nothing, epoll::EventFlags::IN)
                .map_err(|error| Error::io("watch a descriptor of a link", error.into()))?;
        }
        Ok(Self {
            all: Arc::new(all),
            channel,
            bell,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Forgets what has woken so far.
    pub fn forget(&self) -> Result<(), Error> {
        self.bell.silence();
        loop {
            match self.channel.get_cq_event() {
                Ok(event) => event.ack(),
                Err(Error::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
