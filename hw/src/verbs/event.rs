//! Events that the kernel queues: asynchronous ones of a context, and those of a completion channel.
//!
//! An event is acknowledged to libibverbs as soon as it was read and what it names was looked up.
//! That the program holds it, and that destroying waits until it does not, is
//! [`EventQueue`](crate::event::EventQueue)'s, as with the software HCA.

use super::context::Context;
use super::sys;
use crate::error::Error;
use crate::event::{Element, ElementKind, EventType};
#[cfg(feature = "mlx5")]
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
#[cfg(feature = "mlx5")]
use std::sync::{
    Mutex, PoisonError, Weak,
    atomic::{AtomicU32, Ordering},
};

/// A completion channel (`ibv_comp_channel`).
#[derive(Debug)]
pub(crate) struct Channel {
    handle: NonNull<sys::ibv_comp_channel>,
    /// Where events of completion queues that arm themselves are counted.
    #[cfg(feature = "mlx5")]
    counts: Mutex<HashMap<u32, Weak<AtomicU32>>>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub fn new(context: &Arc<Context>) -> Result<Self, Error> {
        // SAFETY: open.
        let handle = sys::made(unsafe { sys::ibv_create_comp_channel(context.handle().as_ptr()) })
            .map_err(|error| Error::io("create a completion channel", error))?;
        Ok(Self {
            handle,
            #[cfg(feature = "mlx5")]
            counts: Mutex::default(),
            context: context.clone(),
        })
    }

    /// From here on each event of this completion queue counts there.
    #[cfg(feature = "mlx5")]
    pub fn count(&self, cqn: u32, events: &Arc<AtomicU32>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|_, events| events.strong_count() != 0);
        counts.insert(cqn, Arc::downgrade(events));
    }

    #[cfg(feature = "mlx5")]
    fn took(&self, cqn: u32) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = counts.get(&cqn).and_then(Weak::upgrade) {
            // Release: partner of the acquire of whoever arms it again.
            events.fetch_add(1, Ordering::Release);
        }
    }

    pub(super) fn handle(&self) -> NonNull<sys::ibv_comp_channel> {
        self.handle
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw((*self.handle.as_ptr()).fd) }
    }

    /// Reads an event, and acknowledges it.
    fn read(&self) -> io::Result<Element> {
        let (mut cq, mut number) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is open; both can be written.
        let answer =
            unsafe { sys::ibv_get_cq_event(self.handle.as_ptr(), &raw mut cq, &raw mut number) };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        let number = number.addr() as u32;
        #[cfg(feature = "mlx5")]
        self.took(number);
        // SAFETY: the completion queue waits for this before it goes.
        unsafe { sys::ibv_ack_cq_events(cq, 1) };
        Ok(Element::Cq(number))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let _open = &self.context;
        // SAFETY: no completion queue is on it any more. Nothing can be done about an error.
        let _ = unsafe { sys::ibv_destroy_comp_channel(self.handle.as_ptr()) };
    }
}

/// Where the kernel queues events.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Async(Arc<Context>),
    Channel(Arc<Channel>),
}

/// What was read: what it is about, and what happened, by the number that libibverbs gives it. Of
/// channels there is one thing only that can happen.
pub(crate) type Read = (Element, Result<EventType, u32>);

impl Source {
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Async(context) => context.async_fd(),
            Self::Channel(channel) => channel.fd(),
        }
    }

    /// Reads an event. One has to be there: else it blocks, or not, as the descriptor's flags say.
    pub fn read(&self) -> io::Result<Read> {
        match self {
            Self::Async(context) => context.read_event(),
            Self::Channel(channel) => Ok((channel.read()?, Ok(EventType::CqErr))),
        }
    }
}

impl Context {
    fn read_event(&self) -> io::Result<Read> {
        // SAFETY: open.
        let mut event = unsafe { sys::get_async_event(self.handle()) }?;
        let number = event.event_type as u32;
        let known = u8::try_from(number).ok().and_then(EventType::from_number);
        // SAFETY: the kind of the event says which member is meant, and what that points to is not
        // destroyed before the event is acknowledged.
        let element = unsafe { element(known, &event.element) };
        // SAFETY: got, and acknowledged here alone.
        unsafe { sys::ack_async_event(&mut event) };
        match known {
            Some(EventType::DeviceFatal) => self.set_dead(),
            Some(EventType::CqErr) => self.overran(element),
            _ => {}
        }
        Ok((element, known.ok_or(number)))
    }
}

/// What an event is about. One that is not known may be about anything: then the device.
///
/// # Safety
/// The member that the kind of the event means is the one that is there, and what it points to exists.
unsafe fn element(known: Option<EventType>, of: &sys::ibv_async_event_element_t) -> Element {
    // SAFETY: the caller's promise.
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
