//! Events that the kernel queues: asynchronous events of a context, and events of a completion channel.
//!
//! An event is acknowledged to libibverbs as soon as it has been read and its element has been looked up.
//! [`EventQueue`](bellwire_provider::event::EventQueue) keeps track of events that the program holds, and
//! makes destruction wait for them, as for the software HCA.

use super::context::Context;
use super::sys;
use crate::error::Error;
use bellwire_provider::event::KernelEvents;
use bellwire_provider::event::{Element, ElementKind, EventType};
use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::{
    Mutex, PoisonError, Weak,
    atomic::{AtomicU32, Ordering},
};

/// A completion channel (`ibv_comp_channel`).
#[derive(Debug)]
pub struct Channel {
    handle: NonNull<sys::ibv_comp_channel>,
    /// Counters of events, for completion queues that arm themselves; by completion queue number.
    counts: Mutex<HashMap<u32, Weak<AtomicU32>>>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: libibverbs may be called from any thread.
unsafe impl Sync for Channel {}

impl Channel {
    /// Creates a channel on this context (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// [`Error::Io`]: the system has no descriptor left.
    pub fn new(context: &Arc<Context>) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let handle = sys::made(unsafe { sys::ibv_create_comp_channel(context.handle().as_ptr()) })
            .map_err(|error| Error::io("create a completion channel", error))?;
        Ok(Self {
            handle,
            counts: Mutex::default(),
            context: context.clone(),
        })
    }

    /// Counts each event of this completion queue in `events` from now on.
    pub fn count(&self, cqn: u32, events: &Arc<AtomicU32>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|_, events| events.strong_count() != 0);
        counts.insert(cqn, Arc::downgrade(events));
    }

    fn took(&self, cqn: u32) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = counts.get(&cqn).and_then(Weak::upgrade) {
            // Release: pairs with the Acquire of the caller that arms the queue again.
            events.fetch_add(1, Ordering::Release);
        }
    }

    pub(super) fn handle(&self) -> NonNull<sys::ibv_comp_channel> {
        self.handle
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw((*self.handle.as_ptr()).fd) }
    }

    /// Reads an event and acknowledges it.
    fn read(&self) -> io::Result<Element> {
        let (mut cq, mut number) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is open, and both can be written.
        let answer =
            unsafe { sys::ibv_get_cq_event(self.handle.as_ptr(), &raw mut cq, &raw mut number) };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        let number = number.addr() as u32;
        self.took(number);
        // SAFETY: the completion queue is not destroyed before its events are acknowledged.
        unsafe { sys::ibv_ack_cq_events(cq, 1) };
        Ok(Element::Cq(number))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: no completion queue uses the channel any longer. An error cannot be handled.
        let _ = unsafe { sys::ibv_destroy_comp_channel(self.handle.as_ptr()) };
    }
}

/// A source of events that the kernel queues.
#[derive(Clone, Debug)]
pub enum Source {
    /// Asynchronous events of a context.
    Async(Arc<Context>),
    /// Events of a completion channel.
    Channel(Arc<Channel>),
}

/// An event as it was read: its element, and its type, or libibverbs' number of an unknown type. A completion
/// channel has a single type of event.
type Read = (Element, Result<EventType, u32>);

impl KernelEvents for Source {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Async(context) => context.async_fd(),
            Self::Channel(channel) => channel.fd(),
        }
    }

    fn read(&self) -> io::Result<Read> {
        match self {
            Self::Async(context) => context.read_event(),
            Self::Channel(channel) => Ok((channel.read()?, Ok(EventType::CqErr))),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Context {
    fn read_event(&self) -> io::Result<Read> {
        // SAFETY: the context is open.
        let mut event = unsafe { sys::get_async_event(self.handle()) }?;
        let number = event.event_type as u32;
        let known = u8::try_from(number).ok().and_then(EventType::from_number);
        // SAFETY: the type of the event determines which member is valid, and the object that it points to is
        // not destroyed before the event is acknowledged.
        let element = unsafe { element(known, &event.element) };
        // SAFETY: the event was returned by libibverbs, and is acknowledged only here.
        unsafe { sys::ibv_ack_async_event(&raw mut event) };
        match known {
            Some(EventType::DeviceFatal) => self.set_dead(),
            Some(EventType::CqErr) => self.overran(element),
            _ => {}
        }
        Ok((element, known.ok_or(number)))
    }
}

/// The element of an event. An event of an unknown type may concern any object: it is reported for the
/// device.
///
/// # Safety
/// The member that the event's type selects is valid, and the object that it points to exists.
unsafe fn element(known: Option<EventType>, of: &sys::ibv_async_event_element_t) -> Element {
    // SAFETY: the caller guarantees that the selected member is valid and that its object exists.
    unsafe {
        match known.map(EventType::element_kind) {
            Some(ElementKind::Cq) => Element::Cq((*of.cq).cq_context.addr() as u32),
            Some(ElementKind::Qp) => Element::Qp((*of.qp).qp_num),
            Some(ElementKind::Srq) => Element::Srq((*of.srq).srq_context.addr() as u32),
            Some(ElementKind::Wq) => Element::Wq((*of.wq).wq_num),
            Some(ElementKind::Port) => Element::Port(of.port_num as u8),
            Some(ElementKind::Device) | None => Element::Device,
        }
    }
}
