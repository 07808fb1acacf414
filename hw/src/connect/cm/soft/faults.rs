//! What a device has to do with its connection managers: it tells them what befalls it, and lets things
//! go wrong that have no other cause here.

use super::super::EventKind;
use super::hub::Hub;
use bellwire_core::fault::CmEvent;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The connection managers of a device.
#[derive(Debug)]
pub(crate) struct Managers {
    /// Tells the device from all others that are not of a fabric.
    id: u64,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    channels: Vec<Weak<Hub>>,
    /// What is to go wrong at the next occasion.
    to_come: Vec<CmEvent>,
}

impl Default for Managers {
    fn default() -> Self {
        Self {
            // The standard library's hasher is seeded by the operating system.
            id: std::hash::RandomState::new().build_hasher().finish(),
            inside: Mutex::default(),
        }
    }
}

impl Managers {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        // Each change is whole.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn add(&self, channel: &Arc<Hub>) {
        let mut inside = self.inside();
        inside
            .channels
            .retain(|channel| channel.strong_count() != 0);
        inside.channels.push(Arc::downgrade(channel));
    }

    /// Whether an event can be ordered: those that say that something went wrong.
    pub fn can_strike(event: CmEvent) -> bool {
        Self::at_next(event) || Self::at_once(event).is_some()
    }

    /// Of a call that is still to come.
    fn at_next(event: CmEvent) -> bool {
        matches!(
            event,
            CmEvent::AddrError
                | CmEvent::RouteError
                | CmEvent::ConnectError
                | CmEvent::Unreachable
                | CmEvent::Rejected
        )
    }

    /// Of ids that are bound to the device, or members of a group.
    fn at_once(event: CmEvent) -> Option<EventKind> {
        match event {
            CmEvent::AddrChange => Some(EventKind::AddrChange),
            CmEvent::DeviceRemoval => Some(EventKind::DeviceRemoval),
            CmEvent::MulticastError => Some(EventKind::MulticastError {
                status: -libc::ENETRESET,
            }),
            _ => None,
        }
    }

    /// It befalls the device, under whose lock this is called perhaps.
    pub fn strike(&self, event: CmEvent) {
        let Some(kind) = Self::at_once(event) else {
            if Self::at_next(event) {
                self.inside().to_come.push(event);
            }
            return;
        };
        let channels = self.inside().channels.clone();
        for channel in channels.iter().filter_map(Weak::upgrade) {
            channel.tell_all(&kind);
        }
    }

    /// Forgets what has not struck yet.
    pub fn clear(&self) {
        self.inside().to_come.clear();
    }

    /// Whether this is to go wrong now.
    pub(super) fn take(&self, event: CmEvent) -> bool {
        let mut inside = self.inside();
        let at = inside.to_come.iter().position(|coming| *coming == event);
        at.map(|at| inside.to_come.remove(at)).is_some()
    }
}
