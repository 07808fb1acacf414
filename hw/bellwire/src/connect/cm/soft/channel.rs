//! Event channels.

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
use std::sync::{Arc, Weak};

/// A channel, whose ids use one context of a software HCA.
#[derive(Debug)]
pub(in crate::connect::cm) struct Channel {
    device: Device,
    hca: Arc<Running>,
    /// The scope within which its ids find each other.
    scope: String,
    pub(super) hub: Arc<Hub>,
}

impl Channel {
    pub fn open(device: &Device, hca: &Arc<Running>) -> Result<Arc<Self>, Error> {
        let owner = hca.owner();
        let scope = match hca.fabric() {
            Some(fabric) => format!("{}/{fabric}", &*owner.scope()),
            // Unique, because the name of a fabric contains no slash.
            None => format!("{}//{:x}", &*owner.scope(), hca.managers.id()),
        };
        let hub = Arc::new(Hub::new(owner)?);
        let listener: Weak<Hub> = Arc::downgrade(&hub);
        hca.managers.add(listener);
        Ok(Arc::new(Self {
            device: device.clone(),
            hca: hca.clone(),
            scope,
            hub,
        }))
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn hca(&self) -> &Running {
        &self.hca
    }

    pub(super) fn scope(&self) -> &str {
        &self.scope
    }

    pub fn processes_ended(&self) -> u64 {
        self.hub.processes_ended()
    }

    pub fn lack(&self) -> Option<Error> {
        self.hub.lack()
    }

    pub fn lack_text(&self) -> Option<String> {
        self.hub.lack_text()
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.hub.fd().as_fd()
    }

    pub fn try_get(self: &Arc<Self>) -> Result<Option<Event>, Error> {
        /// Rounds before the call returns: a peer may keep the channel busy.
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

    /// Turns a queued event into the program's; `None` if its id is just being destroyed.
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
        let mut state = self.hub.state();
        state.room_for_id()?;
        self.hub.insert(&mut state, key, entry);
        drop(state);
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
        conn: message.params.as_received(private_data),
    }
}
