//! The device's connection managers: the device reports events to them, and injects errors that have no other
//! cause here.

use bellwire_core::fault::CmEvent;
use bellwire_provider::entropy;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// A channel of the connection manager, which receives the device's events.
pub trait Listener: fmt::Debug + Send + Sync {
    /// Receives one of `ADDR_CHANGE`, `DEVICE_REMOVAL` and `MULTICAST_ERROR`. The device's lock may be held
    /// during the call.
    fn befallen(&self, event: CmEvent);
}

/// The connection managers of a device.
#[derive(Debug)]
pub struct Managers {
    /// Distinguishes the device from all others that are not in a fabric.
    id: u64,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    channels: Vec<Weak<dyn Listener>>,
    /// Errors for the next calls that can report them.
    to_come: Vec<CmEvent>,
}

impl Default for Managers {
    fn default() -> Self {
        Self {
            id: entropy::draw(),
            inside: Mutex::default(),
        }
    }
}

impl Managers {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        // Poisoning is ignored: each change is made in one step.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Distinguishes the device from all others that are not in a fabric.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Registers a channel; from here on it receives events.
    pub fn add(&self, channel: Weak<dyn Listener>) {
        let mut inside = self.inside();
        inside
            .channels
            .retain(|channel| channel.strong_count() != 0);
        inside.channels.push(channel);
    }

    /// Whether an event can be injected: those that report an error.
    pub fn can_strike(event: CmEvent) -> bool {
        Self::at_next(event) || Self::at_once(event)
    }

    /// Events that become the outcome of a later call.
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

    /// Events for ids that are bound to the device, or that are members of a group.
    fn at_once(event: CmEvent) -> bool {
        matches!(
            event,
            CmEvent::AddrChange | CmEvent::DeviceRemoval | CmEvent::MulticastError
        )
    }

    /// Injects an event. The device's lock may be held during the call.
    pub fn strike(&self, event: CmEvent) {
        if Self::at_next(event) {
            self.inside().to_come.push(event);
        }
        if !Self::at_once(event) {
            return;
        }
        let channels = self.inside().channels.clone();
        for channel in channels.iter().filter_map(Weak::upgrade) {
            channel.befallen(event);
        }
    }

    /// Removes the errors that have not occurred yet.
    pub fn clear(&self) {
        self.inside().to_come.clear();
    }

    /// Whether this error is to occur now; it is then removed.
    pub fn take(&self, event: CmEvent) -> bool {
        let mut inside = self.inside();
        let at = inside.to_come.iter().position(|coming| *coming == event);
        at.map(|at| inside.to_come.remove(at)).is_some()
    }
}
