//! Events, as `read()` gives them.
//!
//! A descriptor of the program's is a duplicate of the HCA's own, so that poll, epoll and the flag
//! O_NONBLOCK work by themselves; reading takes the HCA's event and gives the kernel's form of it.

use crate::abi::{AsyncEventDesc, CompEventDesc};
use crate::memory;
use crate::object::errno;
use bellwire::Device;
use bellwire::event::{CompChannel, Element};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// The asynchronous events of a context.
#[derive(Debug)]
pub struct Events {
    device: Device,
    named: Mutex<HashMap<Element, Named>>,
}

/// How the program calls something that events are about, and how many it has read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Named {
    user_handle: u64,
    /// Asynchronous events.
    pub async_events: u32,
    /// Completion events.
    pub completions: u32,
}

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    pub channel: CompChannel,
    pub events: Arc<Events>,
}

impl Events {
    pub fn new(device: Device) -> Self {
        Self {
            device,
            named: Mutex::default(),
        }
    }

    fn named(&self) -> MutexGuard<'_, HashMap<Element, Named>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on the program's events call an element so.
    pub fn name(&self, element: Element, user_handle: u64) {
        let named = Named {
            user_handle,
            ..Named::default()
        };
        self.named().insert(element, named);
    }

    /// Forgets an element that is gone; gives what was reported of it.
    pub fn forget(&self, element: Element) -> Named {
        self.named().remove(&element).unwrap_or_default()
    }

    /// Counts an event that is being read; gives how the program calls what it is about.
    fn count(&self, element: Element, counter: fn(&mut Named) -> &mut u32) -> u64 {
        match element {
            Element::Port(port) => port.into(),
            Element::Device => 0,
            _ => {
                let mut named = self.named();
                let named = named.entry(element).or_default();
                *counter(named) += 1;
                named.user_handle
            }
        }
    }

    /// A descriptor for the program.
    pub fn duplicate(&self) -> Result<RawFd, Errno> {
        duplicate(self.device.async_fd())
    }
}

impl Channel {
    /// A descriptor for the program.
    pub fn duplicate(&self) -> Result<RawFd, Errno> {
        duplicate(self.channel.as_fd())
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<RawFd, Errno> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?.into_raw_fd())
}

/// Reads an asynchronous event. The object that the event names cannot be destroyed before the event is
/// counted.
pub fn read_async(events: &Events, to: u64, room: usize) -> Result<usize, Errno> {
    if room < size_of::<AsyncEventDesc>() {
        return Err(Errno::INVAL);
    }
    let event = events.device.get_async_event().map_err(errno)?;
    let desc = AsyncEventDesc {
        element: events.count(event.element(), |named| &mut named.async_events),
        event_type: event.event_type().number().into(),
        reserved: 0,
    };
    drop(event);
    memory::write(to, desc.as_bytes())?;
    Ok(size_of_val(&desc))
}

/// Reads a completion event.
pub fn read_channel(channel: &Channel, to: u64, room: usize) -> Result<usize, Errno> {
    if room < size_of::<CompEventDesc>() {
        return Err(Errno::INVAL);
    }
    let event = channel.channel.get_cq_event().map_err(errno)?;
    let element = Element::Cq(event.cqn());
    let desc = CompEventDesc {
        cq_handle: (channel.events).count(element, |named| &mut named.completions),
    };
    drop(event);
    memory::write(to, desc.as_bytes())?;
    Ok(size_of_val(&desc))
}
