//! Where the events of ids come from.

use super::super::event::{Event, EventKind};
use super::super::{PortSpace, PrivateData};
use super::entry::Entry;
use super::hub::{Hub, State, What, new_key};
use super::id::Id;
use super::message::Message;
use crate::device::Device;
use crate::error::Error;
use crate::soft::Running;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A channel: its ids use one context of a software HCA.
#[derive(Debug)]
pub(in crate::connect::cm) struct Channel {
    device: Device,
    /// Among which ends its ids find each other.
    scope: String,
    pub(super) hub: Arc<Hub>,
}

impl Channel {
    pub fn open(device: &Device) -> Result<Arc<Self>, Error> {
        let hca = device.hca.soft("a connection manager of its own")?;
        let scope = match hca.fabric() {
            Some(fabric) => fabric.to_owned(),
            // No fabric's name has a slash.
            None => format!("/{:x}", hca.managers.id()),
        };
        let hub = Arc::new(Hub::new()?);
        hca.managers.add(&hub);
        Ok(Arc::new(Self {
            device: device.clone(),
            scope,
            hub,
        }))
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn hca(&self) -> Result<&Arc<Running>, Error> {
        self.device.hca.soft("a connection manager of its own")
    }

    pub(super) fn scope(&self) -> &str {
        &self.scope
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.hub.fd().as_fd()
    }

    pub fn try_get(self: &Arc<Self>) -> Result<Option<Event>, Error> {
        /// How often to look before the program is let go on: a peer may keep us busy.
        const ROUNDS: usize = 64;
        let mut state = self.hub.state();
        for _ in 0..ROUNDS {
            while let Some((key, what)) = self.hub.pop(&mut state) {
                if let Some(event) = self.event(&mut state, key, what) {
                    return Ok(Some(event));
                }
            }
            if !self.hub.attend(&mut state, &self.device, &self.scope)? {
                break;
            }
        }
        Ok(None)
    }

    /// What the program is given; `None`: whom it was about is just going.
    fn event(self: &Arc<Self>, state: &mut State, key: u64, what: What) -> Option<Event> {
        let id = state.ids.get(&key)?.handle.upgrade()?;
        let kind = match what {
            What::Kind(kind) => kind,
            What::Request(child, message) => {
                self.hub.request_is_off(state, key);
                let entry = state.ids.get_mut(&child)?;
                entry.listener = None;
                let new = Arc::new(Id::new(child, entry.space, self.clone()));
                entry.handle = Arc::downgrade(&new);
                request(entry.space, new, &message)
            }
        };
        Some(Event::new(id.into(), kind))
    }

    pub fn id(self: &Arc<Self>, space: PortSpace) -> Result<Arc<Id>, Error> {
        let key = new_key();
        let id = Arc::new(Id::new(key, space, self.clone()));
        let mut entry = Entry::new(space);
        entry.handle = Arc::downgrade(&id);
        self.hub.insert(&mut self.hub.state(), key, entry);
        Ok(id)
    }
}

fn request(space: PortSpace, id: Arc<Id>, message: &Message) -> EventKind {
    let private_data = message.private.received(PrivateData::Connect, space);
    if space.is_datagram() {
        return EventKind::LookupRequest {
            id: id.into(),
            private_data,
        };
    }
    EventKind::ConnectRequest {
        id: id.into(),
        conn: message.params.told(private_data),
    }
}
