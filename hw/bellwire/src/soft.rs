//! The software HCA: its configuration, and what it offers beyond a verbs device. A program asks a device for
//! that by [`Device::as_soft`].

pub use bellwire_soft::{
    ClockKind, Fault, HcaConfig, JournalEntry, Mode, RecvDoorbell, RecvReport, RequestId, Script,
    SendDoorbell, Trigger,
};
pub(crate) use bellwire_soft::{
    CqCtx, PORTS, Polled, QpParts, RecvParts, Running, ShownMemory, SrqCtx, XrcDomain, XrcSrq,
    XrcTarget, address_vector, limits,
};

use crate::device::Device;
use crate::error::Error;
use crate::event::{Element, EventType};
use std::sync::Arc;
use std::time::Duration;

/// What a software HCA offers beyond a verbs device: fault injection, a journal, a link to take down, a
/// virtual clock. For tests.
///
/// ```
/// use bellwire::Device;
/// use bellwire::soft::{ClockKind, HcaConfig};
/// use std::time::Duration;
///
/// let device = Device::soft(HcaConfig { clock: ClockKind::Virtual, ..HcaConfig::default() });
/// let soft = device.as_soft().expect("it is one");
/// assert!(soft.advance(Duration::from_secs(1)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SoftDevice<'d> {
    device: &'d Device,
    hca: &'d Arc<Running>,
}

impl Device {
    /// What only a software HCA offers; `None` on any other device.
    pub fn as_soft(&self) -> Option<SoftDevice<'_>> {
        let hca = self.hca.soft()?;
        Some(SoftDevice { device: self, hca })
    }
}

impl SoftDevice<'_> {
    /// Injects the faults of a script, in addition to those of earlier scripts that have not occurred yet.
    /// While a fault for an entry or a packet is pending, execution is slow.
    ///
    /// # Errors
    /// [`Error::FaultWithoutRequest`], [`Error::SuccessAsFault`], [`Error::WrongElement`], and
    /// [`Error::UnknownElement`] when the element of a fault or of its trigger does not exist: nothing of the
    /// script is applied then.
    pub fn inject(&self, script: &Script) -> Result<(), Error> {
        for &(_, fault) in script.steps() {
            // As in `raise`: work queues cannot be created, so any number is accepted.
            if let Fault::Raise(_, element @ Element::Wq(_)) = fault {
                self.device.events.admit(element)?;
            }
        }
        self.hca.inject(script)
    }

    /// Discards the faults of all scripts that have not occurred yet.
    pub fn clear_faults(&self) {
        self.hca.clear_faults();
    }

    /// Raises an asynchronous event without a cause. Only the event is raised: the element that it names is
    /// not affected.
    ///
    /// The event is delivered to the context of the element, which may not be this one; for a port or the
    /// device, to every open context. The software HCA has no work queue objects: an [`Element::Wq`] may have
    /// any number, and belongs to this context.
    ///
    /// # Errors
    /// [`Error::WrongElement`]: events of this type do not concern elements of this kind;
    /// [`Error::UnknownElement`]: the device has no such element.
    pub fn raise(&self, event: EventType, element: Element) -> Result<(), Error> {
        if element.kind() != event.element_kind() {
            return Err(Error::WrongElement { event, element });
        }
        let taken = if let Element::Wq(_) = element {
            self.device.events.admit(element)?;
            self.device.events.push(element, event)
        } else {
            self.hca.broadcast(element, event)
        };
        taken.then_some(()).ok_or(Error::UnknownElement { element })
    }

    /// Takes the contents of the device's own [journal](HcaConfig::journal): what it executed and reported
    /// since the last call, in order. For tests, which compare it with the completions reported to a program.
    ///
    /// The journal records what happened in this process: executions where the request was executed, and
    /// reports where it was posted. For requests between nodes of a fabric, each node records its part;
    /// requests that a requester executes itself, on memory that both nodes have mapped, are recorded by the
    /// requester. The journal grows until it is taken.
    ///
    /// # Errors
    /// [`Error::NoJournal`].
    pub fn journal(&self) -> Result<Vec<JournalEntry>, Error> {
        self.hca.take_journal().ok_or(Error::NoJournal)
    }

    /// Takes the port's link down or up, which raises the event `PORT_ERR` or `PORT_ACTIVE`. While it is down
    /// no packet is sent: reliable requests exceed their retries, and datagrams are dropped. The link of any
    /// other device is the administrator's (ip-link(8)).
    pub fn set_port_up(&self, up: bool) {
        self.hca.set_port_up(up);
    }

    /// Advances a virtual clock, and makes requests proceed whose time has come. Returns `false`, and does
    /// nothing, if the device has the real clock.
    pub fn advance(&self, by: Duration) -> bool {
        self.hca.advance(by)
    }
}
