//! Shared receive queues.

use super::context::Context;
use super::cq::{Cq, CqObject};
use super::recv::{Chain, LENGTH};
use super::sys;
use super::tag::{Kind, Tag};
use super::xrc::Xrcd;
use crate::error::Error;
use crate::event::{AsyncQueue, Element};
use bellwire_core::queue::SrqConsumer;
use std::io;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The device's shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    handle: NonNull<sys::ibv_srq>,
    number: Number,
    /// How its receives are named.
    tag: Tag,
    /// Kept until the queue is gone.
    _xrcd: Option<Arc<Xrcd>>,
    /// Which entries the device has.
    given: Box<[AtomicBool]>,
    /// Destroyed.
    gone: AtomicBool,
    context: Arc<Context>,
}

/// The number by which events name it.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// The device's own.
    Told(u32),
    /// Where the device does not tell.
    Given(u32),
}

/// What a queue for XRC is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XrcSrq<'a> {
    pub xrcd: &'a Arc<Xrcd>,
    /// Where its receives complete, and how completions name it there.
    pub cq: &'a CqObject,
    pub user_index: u32,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// A queue for `max_wr` receives, in this (parent) domain of `context`'s. Entries are told by their
    /// place in a ring of one more, at the most.
    ///
    /// # Safety
    /// The domain, and the completion queue of one for XRC, stay until the queue is destroyed.
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
        // SAFETY: the caller's promise.
        let made = unsafe {
            match xrc {
                None => create(domain, attr),
                Some(xrc) => create_xrc(&context, domain, attr, xrc),
            }
        };
        let handle = made.map_err(|error| Error::io("create a shared receive queue", error))?;
        let number = name(&context, handle, xrc.is_some()).inspect_err(|_| {
            // SAFETY: just made, and known to nobody.
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
            given: (0..=max_wr).map(|_| AtomicBool::new(false)).collect(),
            gone: AtomicBool::new(false),
            context,
        };
        events.admit(Element::Srq(srq.number()));
        if limit != 0 {
            srq.set_limit(limit)?;
        }
        Ok(srq)
    }

    pub(crate) fn handle(&self) -> NonNull<sys::ibv_srq> {
        self.handle
    }

    /// The number by which events name it, and requests where it is for XRC: the device's own, where that
    /// is told.
    pub fn number(&self) -> u32 {
        match self.number {
            Number::Told(number) | Number::Given(number) => number,
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
        // SAFETY: alive.
        sys::check(unsafe { sys::ibv_modify_srq(self.handle.as_ptr(), &raw mut attr, mask) })
            .map_err(|error| Error::io("modify the shared receive queue", error))
    }

    /// The limit (`ibv_query_srq`); zero when the device does not tell.
    pub fn limit(&self) -> u32 {
        let mut attr = sys::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: 0,
        };
        // SAFETY: alive; the attributes can be written.
        let answer = unsafe { sys::ibv_query_srq(self.handle.as_ptr(), &raw mut attr) };
        if answer == 0 { attr.srq_limit } else { 0 }
    }

    /// The device has completed the entry.
    pub(super) fn completed(&self, index: u16) {
        if let Some(given) = self.given.get(usize::from(index)) {
            // Relaxed: looked at when nobody completes any more.
            given.store(false, Ordering::Relaxed);
        }
    }

    /// The entries that the device has not completed. After it was destroyed.
    pub fn left(&self) -> impl Iterator<Item = u16> {
        let left = |(index, given): (usize, &AtomicBool)| {
            // Relaxed: as above.
            given.load(Ordering::Relaxed).then_some(index as u16)
        };
        self.given.iter().enumerate().filter_map(left)
    }

    /// Whether it was destroyed.
    pub fn is_gone(&self) -> bool {
        // Relaxed: whoever destroys it has it alone.
        self.gone.load(Ordering::Relaxed)
    }

    /// Destroys it, once. `cq` is where it completes, if it is for XRC.
    pub fn destroy(&self, cq: Option<&Cq>) {
        // Relaxed: as above.
        if self.gone.swap(true, Ordering::Relaxed) {
            return;
        }
        let destroy = || {
            // SAFETY: no queue pair uses it any more. Nothing can be done about an error (EIO).
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
    // SAFETY: the caller's promise.
    sys::made(unsafe { sys::ibv_create_srq(domain.as_ptr(), &raw mut init) })
}

/// # Safety
/// As [`create`], and so are context and completion queue.
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
    // SAFETY: the caller's promise.
    unsafe { sys::create_srq_ex(context.handle(), &mut init) }
}

/// The number of a queue that was just made, which becomes its context: events bring that.
fn name(context: &Context, handle: NonNull<sys::ibv_srq>, is_xrc: bool) -> Result<Number, Error> {
    // SAFETY: both are open.
    let told = unsafe { sys::get_srq_num(context.handle(), handle) };
    let number = match told {
        Ok(number) => Number::Told(number),
        Err(error) if is_xrc => {
            let what = "ask for the shared receive queue's number";
            return Err(Error::io(what, error));
        }
        Err(_) => Number::Given(context.srqns.take()?),
    };
    let (Number::Told(context) | Number::Given(context)) = number;
    // SAFETY: just made, and known to nobody.
    unsafe {
        (*handle.as_ptr()).srq_context = without_provenance_mut(context as usize);
    }
    Ok(number)
}

/// The poster's side.
#[derive(Debug)]
pub(crate) struct SrqDoorbell {
    srq: Arc<Srq>,
    consumer: SrqConsumer<'static>,
    /// Taken from the ring, and not by the device.
    waiting: Vec<u16>,
    chain: Box<Chain>,
}

impl SrqDoorbell {
    /// # Safety
    /// The consumer's ring and record stay as long as it is rung for.
    pub unsafe fn new(srq: Arc<Srq>, consumer: SrqConsumer<'static>) -> Self {
        let ring = consumer.ring();
        Self {
            waiting: Vec::with_capacity(ring.count() as usize),
            chain: Box::new(Chain::new(ring.max_sge())),
            srq,
            consumer,
        }
    }

    /// Posts what was rung. What the device does not take stays, and is posted by the next ring.
    pub fn ring(&mut self) {
        // Within its capacity: no more entries than the ring has.
        while let Some(popped) = self.consumer.pop() {
            self.waiting.push(popped.index);
        }
        let (tag, handle) = (self.srq.tag, self.srq.handle.as_ptr());
        let mut taken = 0;
        while taken < self.waiting.len() {
            let waiting = &self.waiting[taken..];
            let count = waiting.len().min(LENGTH);
            for (place, &index) in waiting[..count].iter().enumerate() {
                // SAFETY: posted, and not written before it completes.
                let list = unsafe { self.consumer.ring().read(index.into()) };
                // Relaxed: looked at when nobody completes any more. Before it can complete.
                self.srq.given[usize::from(index)].store(true, Ordering::Relaxed);
                self.chain.put(place, tag.of(index.into()), list);
            }
            let posted = self.chain.post(count, |first, bad| {
                // SAFETY: alive; a list that was just linked.
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
