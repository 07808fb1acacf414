//! The completion queue object, without its entries.

use super::super::calls::Poller;
use super::super::context::Context;
use super::super::event::Channel;
use super::super::sys;
use crate::error::Error;
use bellwire_provider::event::{AsyncQueue, Element, EventQueue};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The completion channel that a completion queue reports its events to.
pub type CqChannel = (Arc<EventQueue<()>>, Arc<Channel>);

/// The device's completion queue, whether libibverbs or core polls it.
#[derive(Debug)]
pub struct CqObject {
    handle: NonNull<sys::ibv_cq>,
    /// Present if the queue is an extended one.
    pub(crate) extended: Option<Poller>,
    overrun: AtomicBool,
    cqn: u32,
    events: Arc<AsyncQueue>,
    channel: Option<CqChannel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CqObject {}
// SAFETY: libibverbs may be called from any thread.
unsafe impl Sync for CqObject {}

impl CqObject {
    /// Creates a queue of at least `entries` entries; `plain`: not an extended one, even if the device has
    /// those.
    pub fn new(
        context: &Arc<Context>,
        entries: u32,
        plain: bool,
        events: Arc<AsyncQueue>,
        channel: Option<CqChannel>,
    ) -> Result<Self, Error> {
        context.check_alive()?;
        let cqn = context.cqns.take()?;
        let made = create(context, entries, plain, cqn, channel.as_ref());
        let (handle, extended) = made.map_err(|error| {
            context.cqns.give_back(cqn);
            Error::io("create a completion queue", error)
        })?;
        let cq = Self {
            handle,
            extended,
            overrun: AtomicBool::new(false),
            cqn,
            events,
            channel,
            context: context.clone(),
        };
        let element = Element::Cq(cqn);
        cq.events.admit(element)?;
        if let Some((channel, _)) = &cq.channel {
            channel.admit(element)?;
        }
        Ok(cq)
    }

    /// The handle of libibverbs.
    pub fn handle(&self) -> NonNull<sys::ibv_cq> {
        self.handle
    }

    /// The queue's number.
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// The queue's completion channel.
    pub fn channel(&self) -> Option<&EventQueue<()>> {
        self.channel.as_ref().map(|(queue, _)| &**queue)
    }

    /// Whether the device has reported an overrun: an entry was lost.
    pub fn overrun(&self) -> bool {
        // Relaxed: the flag orders nothing else.
        self.overrun.load(Ordering::Relaxed)
    }

    pub(crate) fn set_overrun(&self) {
        // Relaxed: the flag orders nothing else.
        self.overrun.store(true, Ordering::Relaxed);
    }

    /// Arms the queue (`ibv_req_notify_cq`).
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        // SAFETY: the queue is alive.
        sys::check(unsafe { sys::ibv_req_notify_cq(self.handle.as_ptr(), solicited_only.into()) })
            .map_err(|error| Error::io("arm the completion queue", error))
    }

    /// The program's object is gone: once this has returned, no event names the queue.
    pub fn retire(&self) {
        let element = Element::Cq(self.cqn);
        if let Some((channel, _)) = &self.channel {
            channel.retire(element);
        }
        self.events.retire(element);
    }
}

type Handles = (NonNull<sys::ibv_cq>, Option<Poller>);

/// Creates an extended queue if the device has those and one is wanted, otherwise a plain one. Its
/// `cq_context` is the queue's number.
fn create(
    context: &Context,
    entries: u32,
    plain: bool,
    cqn: u32,
    channel: Option<&CqChannel>,
) -> std::io::Result<Handles> {
    let number = std::ptr::without_provenance_mut(cqn as usize);
    let channel = channel.map_or(std::ptr::null_mut(), |(_, channel)| {
        channel.handle().as_ptr()
    });
    let fields = sys::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN
        | sys::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM
        | sys::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM
        | sys::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SRC_QP
        | sys::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SLID
        | sys::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SL
        | sys::ibv_create_cq_wc_flags::IBV_WC_EX_WITH_DLID_PATH_BITS;
    let mut attr = sys::ibv_cq_init_attr_ex {
        cqe: entries,
        cq_context: number,
        channel,
        comp_vector: 0,
        wc_flags: fields.0.into(),
        comp_mask: 0,
        flags: 0,
        parent_domain: std::ptr::null_mut(),
    };
    if !plain
        // SAFETY: context and channel are open.
        && let Ok(extended) = unsafe { sys::create_cq_ex(context.handle(), &mut attr) }
    {
        // SAFETY: the queue was just created.
        return Ok((extended.cast(), unsafe { Poller::new(extended) }));
    }
    // SAFETY: context and channel are open.
    let plain = sys::made(unsafe {
        sys::ibv_create_cq(
            context.handle().as_ptr(),
            entries as i32,
            number,
            channel,
            0,
        )
    })?;
    Ok((plain, None))
}

impl Drop for CqObject {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: no queue pair uses the queue any longer, and all its events are acknowledged. An error
        // (EIO) cannot be handled.
        let _ = unsafe { sys::ibv_destroy_cq(self.handle.as_ptr()) };
        self.context.cqns.give_back(self.cqn);
    }
}
