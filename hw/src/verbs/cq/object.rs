//! A completion queue's object: what it is beside its entries.

use super::super::calls::Poller;
use super::super::context::Context;
use super::super::event::Channel;
use super::super::sys;
use crate::error::Error;
use crate::event::{AsyncQueue, Element, EventQueue};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a completion queue tells of its entries.
pub(crate) type CqChannel = (Arc<EventQueue<()>>, Arc<Channel>);

/// The device's completion queue, by whomever its entries are taken.
#[derive(Debug)]
pub(crate) struct CqObject {
    handle: NonNull<sys::ibv_cq>,
    /// Where it is an extended one.
    pub(in crate::verbs) extended: Option<Poller>,
    overrun: AtomicBool,
    cqn: u32,
    events: Arc<AsyncQueue>,
    channel: Option<CqChannel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CqObject {}
// SAFETY: as above.
unsafe impl Sync for CqObject {}

impl CqObject {
    /// A queue of at least `entries` entries; `plain`: not an extended one, though the device has such.
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
        let element = Element::Cq(cqn);
        events.admit(element);
        if let Some((channel, _)) = &channel {
            channel.admit(element);
        }
        Ok(Self {
            handle,
            extended,
            overrun: AtomicBool::new(false),
            cqn,
            events,
            channel,
            context: context.clone(),
        })
    }

    pub(crate) fn handle(&self) -> NonNull<sys::ibv_cq> {
        self.handle
    }

    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    pub fn channel(&self) -> Option<&EventQueue<()>> {
        self.channel.as_ref().map(|(queue, _)| &**queue)
    }

    /// Whether the device said that an entry was lost.
    pub fn overrun(&self) -> bool {
        // Relaxed: a flag on its own.
        self.overrun.load(Ordering::Relaxed)
    }

    pub(in crate::verbs) fn set_overrun(&self) {
        // Relaxed: as above.
        self.overrun.store(true, Ordering::Relaxed);
    }

    /// Arms it (`ibv_req_notify_cq`).
    pub(in crate::verbs) fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        // SAFETY: alive.
        sys::check(unsafe { sys::ibv_req_notify_cq(self.handle.as_ptr(), solicited_only.into()) })
            .map_err(|error| Error::io("arm the completion queue", error))
    }

    /// The program's side is gone: no event names it any more when this returns.
    pub fn retire(&self) {
        let element = Element::Cq(self.cqn);
        if let Some((channel, _)) = &self.channel {
            channel.retire(element);
        }
        self.events.retire(element);
    }
}

type Handles = (NonNull<sys::ibv_cq>, Option<Poller>);

/// An extended queue where the device has such, and it is wanted, a plain one else. The program's number
/// is its context.
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
        // SAFETY: just made.
        return Ok((extended.cast(), unsafe { Poller::new(extended) }));
    }
    // SAFETY: as above.
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
        // SAFETY: no queue pair is on it any more, and no event of it is held by us. Nothing can be
        // done about an error (EIO).
        let _ = unsafe { sys::ibv_destroy_cq(self.handle.as_ptr()) };
        self.context.cqns.give_back(self.cqn);
    }
}
