//! Event channels.

use super::id::Id;
use super::ids::{self, Ids};
use super::raw::RawEvent;
use crate::connect::cm::{self, Event, EventKind, PortSpace};
use crate::device::Device;
use crate::error::Error;
use crate::event::set_nonblocking;
use crate::memory::fork::Life;
use crate::verbs::not_loaded;
use bellwire_core::fault::CmEvent;
use bellwire_sys::rdmacm::{
    rdma_create_event_channel, rdma_destroy_event_channel, rdma_event_channel,
};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

/// An event channel of librdmacm. Its ids keep it alive.
pub(in crate::connect::cm) struct Channel {
    handle: NonNull<rdma_event_channel>,
    /// Devices that its ids are bound to.
    devices: Mutex<Vec<Device>>,
    /// Of the process that made it.
    life: Life,
}

// SAFETY: all calls of librdmacm are made under the lock, and the descriptor may be used by any thread.
unsafe impl Send for Channel {}
// SAFETY: all calls of librdmacm are made under the lock, and the descriptor may be used by any thread.
unsafe impl Sync for Channel {}

/// An event's contents, after it was acknowledged.
struct Got {
    /// The id that the event is for; `None` after the last handle of the id was dropped.
    id: Option<Arc<Id>>,
    kind: Result<EventKind, u32>,
}

impl Channel {
    pub fn open(device: Option<&Device>) -> Result<Arc<Self>, Error> {
        bellwire_sys::rdmacm::load().map_err(not_loaded)?;
        // SAFETY: the call takes no arguments, and the library is loaded.
        let handle = NonNull::new(unsafe { rdma_create_event_channel() }).ok_or_else(|| {
            let what = "open rdma_cm (`modprobe rdma_ucm` loads it)";
            Error::io(what, io::Error::last_os_error())
        })?;
        let channel = Self {
            handle,
            devices: Mutex::new(device.cloned().into_iter().collect()),
            life: Life::current(),
        };
        set_nonblocking(channel.fd(), true).map_err(|error| Error::io("set O_NONBLOCK", error))?;
        Ok(Arc::new(channel))
    }

    pub(super) fn handle(&self) -> NonNull<rdma_event_channel> {
        self.handle
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw((*self.handle.as_ptr()).fd as RawFd) }
    }

    pub fn id(self: &Arc<Self>, space: PortSpace) -> Result<Arc<Id>, Error> {
        Id::new(self, space)
    }

    /// The device of this name, opened once.
    pub(super) fn device(&self, name: &str) -> Result<Device, Error> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        // A device that was removed and added again has a dead context.
        devices.retain(|device| device.hca.check_alive().is_ok());
        if let Some(device) = devices.iter().find(|device| device.name() == name) {
            return Ok(device.clone());
        }
        let device = Device::open(name)?;
        devices.push(device.clone());
        Ok(device)
    }

    pub fn try_get(self: &Arc<Self>) -> Result<Option<Event>, Error> {
        loop {
            // Its contents are dropped after the lock is released.
            let got = self.read(&mut ids::lock());
            match got.map_err(|error| Error::io("get an event", error))? {
                None => return Ok(None),
                Some(Got {
                    kind: Err(number), ..
                }) => return Err(Error::UnknownEvent { number }),
                Some(Got {
                    id: Some(id),
                    kind: Ok(kind),
                }) => return Ok(Some(Event::new(cm::Id::from(id), kind))),
                Some(_) => {}
            }
        }
    }

    /// Takes an event, and acknowledges it.
    fn read(self: &Arc<Self>, ids: &mut Ids) -> io::Result<Option<Got>> {
        // SAFETY: the channel is alive, and the lock is held.
        let Some(raw) = (unsafe { RawEvent::get(self.handle)? }) else {
            return Ok(None);
        };
        let known = u8::try_from(raw.number())
            .ok()
            .and_then(CmEvent::from_number);
        let whose = match raw.listener() {
            listener if listener.is_null() => raw.id(),
            listener => listener,
        };
        let id = ids.get(whose);
        let request = (known == Some(CmEvent::ConnectRequest))
            .then(|| NonNull::new(raw.id()))
            .flatten()
            // SAFETY: the id was created for this event, and has no other owner.
            .map(|handle| unsafe { Id::of_request(handle, self, ids) });
        // SAFETY: the event keeps its id alive, and the lock is held.
        let datagrams = unsafe { Id::is_datagram(raw.id()) };
        let kind = match known {
            // SAFETY: the event has this type, and `datagrams` is that of its id.
            Some(event) => unsafe { kind(&raw, event, request, datagrams) },
            None => Err(raw.number()),
        };
        Ok(Some(Got { id, kind }))
    }
}

/// # Safety
/// `event` is the event's type, and `datagrams` says whether its id is for datagrams.
unsafe fn kind(
    raw: &RawEvent,
    event: CmEvent,
    request: Option<Arc<Id>>,
    datagrams: bool,
) -> Result<EventKind, u32> {
    let status = raw.status();
    Ok(match event {
        CmEvent::AddrResolved => EventKind::AddrResolved,
        CmEvent::AddrError => EventKind::AddrError { status },
        CmEvent::RouteResolved => EventKind::RouteResolved,
        CmEvent::RouteError => EventKind::RouteError { status },
        CmEvent::ConnectRequest => match (request, datagrams) {
            (Some(id), true) => EventKind::LookupRequest {
                id: id.into(),
                // SAFETY: `datagrams` is true, so the event is one of datagrams.
                private_data: unsafe { raw.ud() }.private_data,
            },
            (Some(id), false) => EventKind::ConnectRequest {
                id: id.into(),
                // SAFETY: `datagrams` is false, so the event is one of a connection.
                conn: unsafe { raw.conn() },
            },
            (None, _) => return Err(raw.number()),
        },
        CmEvent::ConnectResponse => EventKind::ConnectResponse {
            // SAFETY: the event is of a connection: there are no responses for datagrams.
            conn: unsafe { raw.conn() },
        },
        CmEvent::ConnectError => EventKind::ConnectError { status },
        CmEvent::Unreachable => EventKind::Unreachable { status },
        CmEvent::Rejected => EventKind::Rejected {
            reason: status,
            private_data: match datagrams {
                // librdmacm takes it from the wrong place.
                true => Vec::new(),
                // SAFETY: `datagrams` is false, so the event is one of a connection.
                false => unsafe { raw.conn() }.param.private_data,
            },
        },
        CmEvent::Established if datagrams => EventKind::Found {
            // SAFETY: `datagrams` is true, so the event is one of datagrams.
            peer: unsafe { raw.ud() },
        },
        CmEvent::Established => EventKind::Established,
        CmEvent::Disconnected => EventKind::Disconnected,
        CmEvent::DeviceRemoval => EventKind::DeviceRemoval,
        CmEvent::MulticastJoin => EventKind::MulticastJoin { group: raw.group() },
        CmEvent::MulticastError => EventKind::MulticastError { status },
        CmEvent::AddrChange => EventKind::AddrChange,
        CmEvent::TimewaitExit => EventKind::TimewaitExit,
    })
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut channel = f.debug_struct("Channel");
        channel
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        // SAFETY: no id uses the channel any more.
        unsafe { rdma_destroy_event_channel(self.handle.as_ptr()) };
    }
}
