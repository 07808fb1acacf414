//! Shared receive queues.

use super::context::Context;
use super::cq::{Cq, CqObject};
use super::recv::{Chain, LENGTH};
use super::sys;
use super::tag::{Kind, Tag};
use super::xrc::Xrcd;
use crate::error::Error;
use crate::pinned::{defaults, with_room};
use bellwire_core::queue::SrqConsumer;
use bellwire_provider::event::{AsyncQueue, Element};
use std::io;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A shared receive queue of the device.
#[derive(Debug)]
pub struct Srq {
    handle: NonNull<sys::ibv_srq>,
    number: Number,
    /// Identifies the queue in the `wr_id` of its receives.
    tag: Tag,
    /// Kept alive until the queue is destroyed.
    _xrcd: Option<Arc<Xrcd>>,
    /// The entries that are posted to the device and not completed, by index.
    given: Box<[AtomicBool]>,
    /// The queue was destroyed.
    gone: AtomicBool,
    context: Arc<Context>,
}

/// The number by which events name the queue.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// The device's own number.
    Reported(u32),
    /// A number of ours, where the device does not report its own.
    Given(u32),
}

/// The attributes of a queue for XRC.
#[derive(Clone, Copy, Debug)]
pub struct XrcSrq<'a> {
    /// The XRC domain that the queue belongs to.
    pub xrcd: &'a Arc<Xrcd>,
    /// The completion queue of its receives.
    pub cq: &'a CqObject,
    /// The user index that its completions carry.
    pub user_index: u32,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Srq {}
// SAFETY: libibverbs may be called from any thread.
unsafe impl Sync for Srq {}

impl Srq {
    /// Creates a queue for `max_wr` receives, in this (parent) domain of `context`. Entries are identified by
    /// their index in a ring of at most `max_wr + 1` entries.
    ///
    /// # Safety
    /// The domain, and for XRC the completion queue, outlive the queue.
    pub unsafe fn new(
        context: &Arc<Context>,
        domain: NonNull<sys::ibv_pd>,
        max_wr: u32,
        max_sge: u32,
        limit: u16,
        events: &AsyncQueue,
        xrc: Option<XrcSrq<'_>>,
    ) -> Result<Self, Error> {
        let context = context.clone();
        context.check_alive()?;
        let attr = sys::ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit: 0,
        };
        let given = defaults(max_wr as usize + 1)?;
        // SAFETY: the caller guarantees that the domain and the completion queue are alive.
        let made = unsafe {
            match xrc {
                None => create(domain, attr),
                Some(xrc) => create_xrc(&context, domain, attr, xrc),
            }
        };
        let handle = made.map_err(|error| Error::io("create a shared receive queue", error))?;
        let number = name(&context, handle, xrc.is_some()).inspect_err(|_| {
            // SAFETY: the queue was just created, and nothing refers to it.
            let _ = unsafe { sys::ibv_destroy_srq(handle.as_ptr()) };
        })?;
        let srq = Self {
            handle,
            number,
            tag: match xrc {
                None => Tag::new(Kind::Shared, 0),
                Some(xrc) => Tag::new(Kind::Xrc, xrc.user_index),
            },
            _xrcd: xrc.map(|xrc| xrc.xrcd.clone()),
            given,
            gone: AtomicBool::new(false),
            context,
        };
        events.admit(Element::Srq(srq.number()))?;
        if limit != 0 {
            srq.set_limit(limit)?;
        }
        Ok(srq)
    }

    /// The handle of libibverbs.
    pub fn handle(&self) -> NonNull<sys::ibv_srq> {
        self.handle
    }

    /// The number by which events name the queue and, for XRC, requests address it: the device's own where
    /// the device reports it.
    pub fn number(&self) -> u32 {
        match self.number {
            Number::Reported(number) | Number::Given(number) => number,
        }
    }

    /// Sets the limit (`ibv_modify_srq`).
    pub fn set_limit(&self, limit: u16) -> Result<(), Error> {
        let mut attr = sys::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: limit.into(),
        };
        let mask = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
        // SAFETY: the queue is alive.
        sys::check(unsafe { sys::ibv_modify_srq(self.handle.as_ptr(), &raw mut attr, mask) })
            .map_err(|error| Error::io("modify the shared receive queue", error))
    }

    /// The limit (`ibv_query_srq`); zero if the query fails.
    pub fn limit(&self) -> u32 {
        let mut attr = sys::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: 0,
        };
        // SAFETY: the queue is alive, and the attributes can be written.
        let answer = unsafe { sys::ibv_query_srq(self.handle.as_ptr(), &raw mut attr) };
        if answer == 0 { attr.srq_limit } else { 0 }
    }

    /// The device has completed this entry.
    pub(super) fn completed(&self, index: u16) {
        if let Some(given) = self.given.get(usize::from(index)) {
            // Relaxed: read once nothing completes any longer.
            given.store(false, Ordering::Relaxed);
        }
    }

    /// The entries that the device has not completed. To be called after the queue was destroyed.
    pub fn left(&self) -> impl Iterator<Item = u16> {
        let left = |(index, given): (usize, &AtomicBool)| {
            // Relaxed: read once nothing completes any longer.
            given.load(Ordering::Relaxed).then_some(index as u16)
        };
        self.given.iter().enumerate().filter_map(left)
    }

    /// Whether the queue was destroyed.
    pub fn is_gone(&self) -> bool {
        // Relaxed: only its sole owner destroys the queue.
        self.gone.load(Ordering::Relaxed)
    }

    /// Destroys the queue; further calls do nothing. `cq`: the completion queue of its receives, if it is for
    /// XRC.
    pub fn destroy(&self, cq: Option<&Cq>) {
        // Relaxed: only its sole owner destroys the queue.
        if self.gone.swap(true, Ordering::Relaxed) {
            return;
        }
        let destroy = || {
            // SAFETY: no queue pair uses the queue any longer. An error (EIO) cannot be handled.
            let _ = unsafe { sys::ibv_destroy_srq(self.handle.as_ptr()) };
        };
        match cq {
            Some(cq) => cq.forget(self.tag.user_index(), destroy),
            None => destroy(),
        }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.context.is_inherited() {
            return;
        }
        self.destroy(None);
        if let Number::Given(number) = self.number {
            self.context.srqns.give_back(number);
        }
    }
}

/// # Safety
/// The domain is alive.
unsafe fn create(
    domain: NonNull<sys::ibv_pd>,
    attr: sys::ibv_srq_attr,
) -> io::Result<NonNull<sys::ibv_srq>> {
    let mut init = sys::ibv_srq_init_attr {
        srq_context: null_mut(),
        attr,
    };
    // SAFETY: the caller guarantees that the domain is alive.
    sys::made(unsafe { sys::ibv_create_srq(domain.as_ptr(), &raw mut init) })
}

/// # Safety
/// The protection domain, the XRC domain and the completion queue are alive.
unsafe fn create_xrc(
    context: &Context,
    domain: NonNull<sys::ibv_pd>,
    attr: sys::ibv_srq_attr,
    xrc: XrcSrq<'_>,
) -> io::Result<NonNull<sys::ibv_srq>> {
    let mut init = sys::ibv_srq_init_attr_ex {
        srq_context: null_mut(),
        attr,
        comp_mask: (sys::ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE
            | sys::ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD
            | sys::ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_XRCD
            | sys::ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_CQ)
            .0,
        srq_type: sys::ibv_srq_type::IBV_SRQT_XRC,
        pd: domain.as_ptr(),
        xrcd: xrc.xrcd.handle().as_ptr(),
        cq: xrc.cq.handle().as_ptr(),
        tm_cap: sys::ibv_tm_cap {
            max_num_tags: 0,
            max_ops: 0,
        },
    };
    // SAFETY: the caller guarantees that the domains and the completion queue are alive.
    unsafe { sys::create_srq_ex(context.handle(), &mut init) }
}

/// Determines the number of a queue that was just created, and sets it as the queue's `srq_context`, which
/// events carry.
fn name(context: &Context, handle: NonNull<sys::ibv_srq>, is_xrc: bool) -> Result<Number, Error> {
    // SAFETY: the context is open, and the queue is alive.
    let reported = unsafe { sys::get_srq_num(context.handle(), handle) };
    let number = match reported {
        Ok(number) => Number::Reported(number),
        Err(error) if is_xrc => {
            let what = "ask for the shared receive queue's number";
            return Err(Error::io(what, error));
        }
        Err(_) => Number::Given(context.srqns.take()?),
    };
    let (Number::Reported(context) | Number::Given(context)) = number;
    // SAFETY: the queue was just created, and nothing else refers to it.
    unsafe {
        (*handle.as_ptr()).srq_context = without_provenance_mut(context as usize);
    }
    Ok(number)
}

/// The doorbell of a shared receive queue.
#[derive(Debug)]
pub struct SrqDoorbell {
    srq: Arc<Srq>,
    consumer: SrqConsumer<'static>,
    /// Entries taken from the ring and not yet taken by the device.
    waiting: Vec<u16>,
    chain: Box<Chain>,
}

impl SrqDoorbell {
    /// # Errors
    /// There is no memory for waiting entries.
    ///
    /// # Safety
    /// The consumer's ring and record outlive this.
    pub unsafe fn new(srq: Arc<Srq>, consumer: SrqConsumer<'static>) -> Result<Self, Error> {
        let ring = consumer.ring();
        Ok(Self {
            waiting: with_room(ring.count() as usize)?,
            chain: Box::new(Chain::new(ring.max_sge())?),
            srq,
            consumer,
        })
    }

    /// Posts the receives that the doorbell was rung for. Receives that the device does not take are kept,
    /// and posted by the next ring.
    pub fn ring(&mut self) {
        // Within the capacity: there are no more entries than the ring has.
        while let Some(popped) = self.consumer.pop() {
            self.waiting.push(popped.index);
        }
        let (tag, handle) = (self.srq.tag, self.srq.handle.as_ptr());
        let mut taken = 0;
        while taken < self.waiting.len() {
            let waiting = &self.waiting[taken..];
            let count = waiting.len().min(LENGTH);
            for (place, &index) in waiting[..count].iter().enumerate() {
                // SAFETY: the entry is posted, and is not written before it completes.
                let list = unsafe { self.consumer.ring().read(index.into()) };
                // Relaxed: read once nothing completes any longer. Set before the entry can complete.
                self.srq.given[usize::from(index)].store(true, Ordering::Relaxed);
                self.chain.put(place, tag.of(index.into()), list);
            }
            let posted = self.chain.post(count, |first, bad| {
                // SAFETY: the queue is alive, and the list was just linked.
                unsafe { sys::ibv_post_srq_recv(handle, first, bad) }
            });
            taken += posted;
            if posted != count {
                break;
            }
        }
        self.waiting.drain(..taken);
    }
}
