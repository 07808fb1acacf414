//! Many links on shared completion queues, and on a shared receive queue, polled once for all.
//!
//! A member is a [`Link`](super::Link) without its completion queue. The set finds the link of each completion by
//! its queue pair's number.
//!
//! - **Lending.** While a link recovers, the set lends it the completion queue: draining, RESET and accounting are
//!   the code of plain links. The link may take completions of other links: the set delivers these before newer
//!   ones.
//! - **`CQ_ERR`** is a fault of every link on the queue. Each link goes as far as the destruction of its queue
//!   pair. When the last one has, the set replaces the queue, and all links go on.
//! - **Bounded work.** A poll drives at most [`LinkSetInit::links_per_poll`] links. Links with something to do come
//!   first (`urgent`). Links that wait for a peer, the device or the time (`patient`) have their turns once in
//!   [`LinkSetInit::check_every`] polls, together with the exchanges.
//! - **Messages.** Exchanges that wake put their slot into a list; the descriptors of the others are in one epoll
//!   (`attention`). So a check costs as much as there are messages.
//! - **Time.** Links that are watched are in a heap, by the time of their next check. Links that wait are in order
//!   of their deadlines (`deadlines`), so a set that sleeps finds the first one at once.
//! - **One descriptor** includes the bell, the epoll of the exchanges, a timer and the completion channel.
//! - **The shared receive queue** belongs to the links of one completion queue, and is replaced with it: its
//!   destruction shows the buffers of receives whose completions were lost. A link that holds more receives than
//!   its limit ends, because a shared queue cannot make one peer wait.
//! - **The count of consumed receives** that a peer is sent is that of the queue pair's completions (see `on_srq`).
//!   If the completion queue failed, or the drain took too long, the count is a lower bound.

mod attention;
mod cancel;
mod deadlines;
mod drive;
mod held;
mod id;
mod init;
mod join;
mod leaving;
mod monitor;
mod noted;
mod queue;
mod slots;
mod srq;

use super::active_queues::done;
use super::completion::LinkCompletion;
use super::handle::{Drained, LinkState};
use super::member::{Delivery, Member};
use super::monitor::PublishedSet;
use super::wake::Sleep;
use crate::error::Error;
use crate::event::{Element, Waiters};
use crate::log::failed;
use crate::panics::Panics;
use crate::pd::Pd;
use crate::pinned::headroom;
use crate::pinned::with_room;
use crate::recorder::{DumpOptions, Record};
use crate::srq::SrqInit;
use attention::Attention;
use bellwire_core::fault::Fault;
use bellwire_provider::backoff::Backoff;
use deadlines::{Deadlines, Due};
use held::Held;
pub use id::{LinkId, NoLink};
pub use init::LinkSetInit;
pub use join::JoinError;
use noted::Noted;
use queue::{Division, Make, SharedQueues};
use slots::{Joined, Slots};
pub use srq::LinkSetSrq;
use srq::srq_init;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Links on shared completion queues: one poll serves all of them. One owner at a time: `Send`, not `Sync`.
///
/// Links [join](Self::join) it with an exchange each, connect as the set is polled, and recover as a
/// [`Link`](super::Link) does. They are used by their handles; [`next_change`](Self::next_change) says which
/// are ready, and which have ended. The peer of a link in a set may be a plain link, or in a set itself.
///
/// ```
/// use bellwire::fault::outcome::{Outcome, Replay};
/// use bellwire::link::{Link, LinkInit, LinkSet, LinkSetInit, LinkState, pair};
/// use bellwire::wqe::RdmaWrite;
/// use bellwire::wr::{Remote, SendFlags};
/// use bellwire::Device;
///
/// let pd = Device::soft(Default::default()).alloc_pd();
/// let mut set = LinkSet::new(&pd, LinkSetInit { links: 100, ..Default::default() })?;
/// let mut clients = Vec::new();
/// for _ in 0..3 {
///     let (here, there) = pair();
///     set.join(LinkInit::default(), here)?;
///     clients.push(Link::new(&pd, LinkInit::default(), there)?);
/// }
/// let mut ready = Vec::new();
/// while ready.len() < 3 {
///     set.poll(16, |_, _| ());
///     clients.iter_mut().for_each(|client| _ = client.poll(16, |_| ()));
///     while let Some((id, state)) = set.next_change() {
///         assert_eq!(state, LinkState::Ready);
///         ready.push(id);
///     }
/// }
/// for &id in &ready {
///     let mut link = set.link(id)?;
///     let write = RdmaWrite { remote: Remote::default() };
///     link.post_empty(7, write, SendFlags::SIGNALED, Replay::IfSafe)?;
///     link.ring();
/// }
/// let mut reported = Vec::new();
/// while reported.len() < 3 {
///     set.poll(16, |id, completion| {
///         assert_eq!(completion.outcome, Outcome::Done);
///         reported.push(id);
///     });
/// }
/// set.remove(ready[0])?;
/// assert!(set.link(ready[0]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Shared receives
/// With [`LinkSetInit::srq`] a slab supplies the receives of all links, which no longer have receive queues of
/// their own:
///
/// ```
/// use bellwire::link::{Link, LinkInit, LinkSet, LinkSetInit, LinkSetSrq, LinkState, pair};
/// use bellwire::fault::outcome::Replay;
/// use bellwire::wqe::Send;
/// use bellwire::wr::SendFlags;
/// use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};
///
/// let device = Device::soft(Default::default());
/// let pd = device.alloc_pd();
/// let layout = [ClassLayout { size: 4096, count: 64 }];
/// let mapping = device.mapping(Slab::bytes(&layout)?).build()?;
/// let slab = Slab::new(Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE)?, &layout)?;
/// let srq = LinkSetSrq { slab, length: 4096, max_held: Some(32) };
/// let mut set = LinkSet::new(&pd, LinkSetInit { srq: Some(srq), ..Default::default() })?;
///
/// let (here, there) = pair();
/// let id = set.join(LinkInit::default(), here)?;
/// let mut client = Link::new(&pd, LinkInit::default(), there)?;
/// while [set.state(id)?, client.state()] != [LinkState::Ready; 2] {
///     set.poll(16, |_, _| ());
///     client.poll(16, |_| ());
/// }
/// client.post_inline(1, Send {}, b"hello", SendFlags::SIGNALED, Replay::IfSafe)?;
/// client.ring();
/// let mut message = None;
/// while message.is_none() {
///     set.poll(16, |from, completion| {
///         assert_eq!(from, id);
///         message = completion.block;
///     });
/// }
/// let block = message.expect("it came");
/// assert_eq!(&block.as_slice()[..5], b"hello");
/// // To be posted again.
/// drop(block);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Faults
/// - **Of one link**: it recovers on the shared queue, while the others go on.
/// - **Of a completion queue** (`CQ_ERR`): a fault of every link on it. Each ends its connection, with
///   exact outcomes as far as a lost completion leaves them so; when the last has left the queue the set
///   creates another, and all connect again.
/// - **Of a shared receive queue** (`SRQ_ERR`): the same, with another shared receive queue. It is replaced
///   together with a completion queue that fails, too: the buffers of receives whose completions are lost come
///   back that way.
/// - **Of the device**: all links end, with outcomes.
///
/// # Dropping
/// Dropping the set drops its links as a [`Link`](super::Link) is dropped: [`drain`](Self::drain) first gets
/// all outcomes.
#[derive(Debug)]
pub struct LinkSet {
    // Queue pairs are destroyed before their completion queues.
    slots: Slots,
    /// Room for a list of all links: kept for its memory.
    listed: Vec<u32>,
    /// Links that were removed, and have queue pairs yet.
    leaving: Vec<Joined>,
    queues: Vec<SharedQueues>,
    /// The queue that the next poll begins with.
    turn: usize,
    division: Division,
    /// Attributes of each shared receive queue.
    srq_init: Option<SrqInit>,
    /// Buffers of the shared receive queues.
    buffers: u32,
    /// A shared receive queue lacks buffers.
    short: bool,
    /// Links with outcomes to be reported: those of their own recoveries, and those that were found while another
    /// link was driven. Each poll begins with these, one of each link in turn, so that a busy queue does not hold
    /// them up.
    reporting: VecDeque<LinkId>,
    noted: Noted,
    /// Polls until exchanges and events are checked.
    polls_left: u32,
    /// Links that have something to do.
    urgent: VecDeque<LinkId>,
    /// Links that wait for the peer, the device or the time, and are looked at from time to time.
    patient: VecDeque<LinkId>,
    /// When these have to be looked at.
    deadlines: Deadlines,
    /// Links that are to be looked at at a device time, while they work: those that are watched.
    timers: BinaryHeap<Reverse<(Duration, LinkId)>>,
    /// Links whose state has changed.
    changes: VecDeque<LinkId>,
    attention: Attention,
    /// The mailbox of asynchronous events.
    mailbox: u64,
    sleep: Option<Sleep>,
    pub(super) waiters: Waiters,
    /// Panics of hooks and exchanges, until the poll ends.
    panics: Panics,
    /// What other threads read.
    published: Arc<PublishedSet>,
    /// The slot of the link that is counted next.
    counted: u32,
    init: LinkSetInit,
    pd: Pd,
}

// A program may hand it to the thread that serves it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<LinkSet>();
    is_send::<super::Link>();
};

impl LinkSet {
    /// Creates a set without links.
    ///
    /// # Errors
    /// Those of [`Device::create_cq`](crate::Device::create_cq) and, with [`LinkSetInit::srq`], of
    /// [`Pd::create_srq`]; [`Error::Foreign`] and [`Error::NoBlock`] for a slab that cannot supply it;
    /// [`Error::Io`] without a descriptor left.
    pub fn new(pd: &Pd, init: LinkSetInit) -> Result<Self, Error> {
        failed("a set of links", Self::create(pd, init))
    }

    fn create(pd: &Pd, init: LinkSetInit) -> Result<Self, Error> {
        // Here, so that no check has to.
        let init = LinkSetInit {
            check_every: init.check_every.max(1),
            links_per_poll: init.links_per_poll.max(1),
            ..init
        };
        headroom()?;
        let device = pd.device();
        let max_cqe = device.attr().max_cqe;
        let buffers = init.srq.as_ref().map(|srq| srq.blocks(pd)).transpose()?;
        let of_srq = |queues| {
            let buffers = buffers.as_ref()?;
            Some(srq_init(pd, buffers.len(), queues))
        };
        let entries = of_srq(1).map(|init| init.cq_entries());
        let division = Division::new(&init, max_cqe, entries);
        let srq_init = of_srq(division.queues);
        let limit = init.srq.as_ref().and_then(|srq| srq.max_held);
        let held = limit.zip(buffers.as_ref());
        let held = held.map(|(limit, buffers)| Held::new(limit, buffers));
        let held = held.transpose()?;
        let count = buffers.as_ref().map_or(0, Vec::len) as u32;
        // The set posts them.
        drop(buffers);
        let mut sleep = match init.waitable {
            true => Some(Sleep::new(device)?),
            false => None,
        };
        let wake = sleep.as_ref().map(|sleep| sleep.wake.clone());
        let make = Make {
            division: &division,
            srq: srq_init.as_ref(),
            wake: wake.as_ref(),
        };
        let mut queues = with_room(division.queues as usize)?;
        for _ in 0..division.queues {
            queues.push(SharedQueues::new(pd, &make)?);
        }
        let slots = Slots::new(init.links)?;
        let bell = wake.as_ref().map(|wake| wake.bell.clone());
        let attention = Attention::new(init.links, bell)?;
        if let Some(sleep) = &mut sleep {
            sleep.watch(attention.fd())?;
        }
        let mailbox = match &wake {
            Some(wake) => device.links.join_asleep(device, wake.bell.clone())?,
            None => device.links.join()?,
        };
        let mut set = Self {
            slots,
            leaving: Vec::new(),
            listed: Vec::new(),
            queues,
            turn: 0,
            division,
            srq_init,
            buffers: count,
            short: false,
            reporting: VecDeque::new(),
            noted: Noted::new(srq_init.as_ref(), division.queues, held)?,
            polls_left: 1,
            urgent: VecDeque::new(),
            patient: VecDeque::new(),
            deadlines: Deadlines::default(),
            timers: BinaryHeap::new(),
            changes: VecDeque::new(),
            attention,
            mailbox,
            sleep,
            waiters: Waiters::default(),
            panics: Panics::default(),
            published: Arc::default(),
            counted: 0,
            init,
            pd: pd.clone(),
        };
        // Dropping the set removes the mailbox.
        device.links.watch_also(mailbox, Element::Device)?;
        for element in set.queues.iter().flat_map(SharedQueues::elements) {
            device.links.watch_also(mailbox, element)?;
        }
        set.refill();
        Ok(set)
    }

    /// The link of a handle, to post to it and to query it.
    ///
    /// # Errors
    /// [`NoLink`] once the link was removed.
    #[inline(always)]
    pub fn link(&mut self, id: LinkId) -> Result<SetLink<'_>, NoLink> {
        let joined = self.slots.get_mut(id).ok_or(NoLink)?;
        Ok(SetLink {
            member: &mut joined.member,
        })
    }

    /// The state of a link, which changes only in polls.
    ///
    /// # Errors
    /// [`NoLink`] once the link was removed.
    pub fn state(&self, id: LinkId) -> Result<LinkState, NoLink> {
        Ok(self.slots.get(id).ok_or(NoLink)?.member.state())
    }

    /// Notes a number of the program's own with a link, such as the address of what it keeps for the peer.
    ///
    /// # Errors
    /// [`NoLink`] once the link was removed.
    pub fn set_context(&mut self, id: LinkId, context: u64) -> Result<(), NoLink> {
        self.slots.get_mut(id).ok_or(NoLink)?.context = context;
        Ok(())
    }

    /// The number of [`set_context`](Self::set_context); 0 until it was set.
    ///
    /// # Errors
    /// [`NoLink`] once the link was removed.
    #[inline(always)]
    pub fn context(&self, id: LinkId) -> Result<u64, NoLink> {
        Ok(self.slots.get(id).ok_or(NoLink)?.context)
    }

    /// Buffers of the shared receive queue that the link's messages hold, returned ones included that the set
    /// has not posted again yet. 0 without a limit ([`LinkSetSrq::max_held`]).
    ///
    /// # Errors
    /// [`NoLink`] once the link was removed.
    pub fn held(&self, id: LinkId) -> Result<u32, NoLink> {
        Ok(self.slots.get(id).ok_or(NoLink)?.held.count)
    }

    /// A link whose state has changed since this last returned it, and its present state: ready for the
    /// first time or again, recovering, or ended. `None` when there is none.
    pub fn next_change(&mut self) -> Option<(LinkId, LinkState)> {
        while let Some(id) = self.changes.pop_front() {
            if let Some(joined) = self.slots.get_mut(id) {
                joined.change_waits = false;
                return Some((id, joined.noted));
            }
        }
        None
    }

    /// Whether [`next_change`](Self::next_change) may have something.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Passes up to `limit` outcomes to `each`, with the handles of their links, and returns their number.
    /// Connects and recovers links, and never blocks; while a link connects or recovers the set has to be
    /// polled from time to time.
    ///
    /// # Panics
    /// When `each` panics: the outcomes that it was not given are reported by the next poll. When a hook or
    /// an exchange panicked in this poll; an exchange that panicked is not called again, and its peer is
    /// lost. The set goes on in either case.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(LinkId, LinkCompletion)) -> usize {
        let mut count = 0;
        if !self.reporting.is_empty() {
            count = self.report_found(limit, &mut each);
        }
        for _ in 0..self.queues.len() {
            if count >= limit {
                break;
            }
            count += self.poll_queue(limit - count, &mut each);
        }
        self.polls_left = self.polls_left.wrapping_sub(1);
        if self.noted.busy || self.polls_left == 0 {
            count += self.poll_slow(limit - count, &mut each);
        }
        count
    }

    /// Polls the next completion queue.
    #[inline(always)]
    fn poll_queue(&mut self, limit: usize, mut each: impl FnMut(LinkId, LinkCompletion)) -> usize {
        let turn = self.turn;
        self.turn = if turn + 1 < self.queues.len() {
            turn + 1
        } else {
            0
        };
        let Self {
            queues,
            slots,
            noted,
            ..
        } = self;
        let Some(cq) = queues.get_mut(turn).and_then(|queue| queue.cq.as_mut()) else {
            return 0;
        };
        let mut unreported = 0;
        let count = cq.poll(limit, |completion| {
            // A link that was removed has no completions left.
            let Some((id, joined)) = slots.of_qp(completion.qp_num) else {
                unreported += 1;
                return;
            };
            match completion.result {
                Ok(success) if joined.member.delivery == Delivery::Direct => {
                    joined.member.received += u64::from(success.opcode.is_recv());
                    each(id, done(completion, success));
                }
                _ => {
                    let reported = noted.take(id, joined, completion, &mut each);
                    unreported += usize::from(!reported);
                }
            }
        });
        count - unreported
    }

    /// Makes a link recover as if it had detected `fault` itself; see
    /// [`Link::report`](super::Link::report). `CQ_ERR` and `SRQ_ERR` are reported to every link on the same
    /// queue.
    ///
    /// # Errors
    /// [`NoLink`] once the link was removed.
    pub fn report(&mut self, id: LinkId, fault: Fault) -> Result<(), NoLink> {
        self.slots.get(id).ok_or(NoLink)?;
        self.fault(id.index(), fault);
        self.finish();
        Ok(())
    }

    /// Closes a link; see [`Link::close`](super::Link::close). Its outcomes are reported by polls, until
    /// its state is [`Ended`](LinkState::Ended).
    ///
    /// # Errors
    /// [`NoLink`] once the link was removed.
    pub fn close(&mut self, id: LinkId, within: Duration) -> Result<(), NoLink> {
        let joined = self.slots.get_mut(id).ok_or(NoLink)?;
        if joined.member.close(within) {
            self.begin(id.index(), Vec::new());
        }
        self.list(id.index());
        self.finish();
        Ok(())
    }

    /// Removes a link, at once: its handle is of no link from here on, and its slot is free. Outcomes not yet
    /// reported are lost, and blocks go back to their slabs: [`close`](Self::close) the link first, and poll
    /// until it has ended, to get them. The peer is sent a closing message.
    ///
    /// # Errors
    /// [`NoLink`] if it was removed before.
    pub fn remove(&mut self, id: LinkId) -> Result<(), NoLink> {
        let joined = self.slots.remove(id).ok_or(NoLink)?;
        let index = id.index();
        self.deadlines.replace(id, joined.due, Due::default());
        // Empty, unless the program panicked in the last poll.
        self.noted.aside.retain(|(at, _)| *at != index);
        for list in [
            &mut self.urgent,
            &mut self.patient,
            &mut self.changes,
            &mut self.reporting,
        ] {
            self.slots.tidy(list);
        }
        self.tidy_timers();
        self.end(joined);
        self.finish();
        Ok(())
    }

    /// [Closes](Self::close) all links, and polls until each has ended and everything has been reported, or
    /// the time is up: then the rest ends at once, and the known outcomes are reported. When this returns all
    /// buffers have come back. The links stay in the set, ended.
    ///
    /// The time is both the machine's and the device's: a virtual clock stands still meanwhile.
    ///
    /// # Panics
    /// Those of [`poll`](Self::poll): call it again for the rest.
    pub fn drain(
        &mut self,
        within: Duration,
        mut each: impl FnMut(LinkId, LinkCompletion),
    ) -> Drained {
        let start = Instant::now();
        let ids: Vec<_> = self.slots.ids().collect();
        for &id in &ids {
            // The last quarter is for the flush.
            let _ = self.close(id, within / 4 * 3);
        }
        let mut drained = Drained::default();
        let mut count = |id, completion: LinkCompletion| {
            drained.reported += 1;
            drained.retired += u64::from(completion.retired);
            each(id, completion);
        };
        let ended = |joined: &Joined| matches!(joined.member.state(), LinkState::Ended(_));
        let mut backoff = Backoff::between_polls();
        loop {
            if self.poll(usize::MAX, &mut count) != 0 {
                backoff.reset();
            } else if self.slots.iter().all(ended) {
                break;
            }
            if start.elapsed() >= within {
                for id in &ids {
                    if let Some(state) = self.slots.get_mut(*id).and_then(Joined::state) {
                        state.protocol.close_now();
                        self.list(id.index());
                    }
                }
            }
            backoff.wait();
        }
        let left = (self.slots.iter())
            .filter_map(|joined| joined.member.here())
            .map(|state| u64::from(state.carried));
        drained.retired += left.sum::<u64>();
        drained
    }

    /// What a link's queue pair did last; see [`Link::dump`](super::Link::dump).
    ///
    /// # Errors
    /// [`NoLink`] once the link was removed.
    pub fn dump(&mut self, id: LinkId, options: &DumpOptions) -> Result<Option<Record>, NoLink> {
        let joined = self.slots.get_mut(id).ok_or(NoLink)?;
        let cq = self.queues[joined.queue].cq.as_mut();
        Ok(joined.member.dump(cq, options))
    }

    /// Number of links, ended ones included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it has no links.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of links that it has room for.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Handles of all links, ended ones included.
    pub fn ids(&self) -> impl Iterator<Item = LinkId> {
        self.slots.ids()
    }

    /// Number of completion queues.
    pub fn completion_queues(&self) -> usize {
        self.queues.len()
    }

    /// Numbers of its completion queues; one that has failed and is not replaced yet has none. A queue that
    /// replaces another has another number.
    pub fn cqns(&self) -> impl Iterator<Item = u32> {
        let queues = self.queues.iter().filter_map(|queue| queue.cq.as_ref());
        queues.map(crate::cq::Cq::cqn)
    }

    /// Bytes of memory that it uses: completion queues, tables, and the rings, ledgers and states of its
    /// links. Without exchanges, what the links' recoveries use while they last, and what a device's driver
    /// allocates.
    pub fn memory(&self) -> usize {
        let queues = self.queues.iter().filter_map(|queue| queue.cq.as_ref());
        let queues: usize = queues.map(crate::cq::Cq::bytes).sum();
        let links: usize = self.slots.iter().map(|joined| joined.member.bytes()).sum();
        size_of::<Self>() + queues + self.slots.bytes() + links
    }

    /// A descriptor for poll(2) and epoll(7), not to be read: with [`LinkSetInit::waitable`], and once the
    /// set was [armed](Self::arm), it is readable when the set has to be polled. There is one for all
    /// links, and it stays the same for the life of the set.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleep.as_ref().map(Sleep::fd)
    }

    /// Prepares the set for sleep, as [`Link::arm`](super::Link::arm) does for one link: arm it, poll it
    /// until a poll finds nothing, and sleep until [`fd`](Self::fd) is readable. Its cost does not grow with
    /// the number of links.
    ///
    /// # Errors
    /// [`Error::NoChannel`] without [`LinkSetInit::waitable`]; [`Error::Io`].
    pub fn arm(&mut self) -> Result<(), Error> {
        let cqs = self.queues.iter_mut().filter_map(|queue| queue.cq.as_mut());
        let Some(sleep) = &mut self.sleep else {
            let cqn = cqs.map(|cq| cq.cqn()).next().unwrap_or(0);
            return Err(Error::NoChannel { cqn });
        };
        // The next poll checks everything.
        self.polls_left = 1;
        sleep.arm(cqs)
    }

    /// How long a program that sleeps on something other than [`fd`](Self::fd) may sleep before it polls.
    /// `None` while nothing has a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        if !(self.urgent.is_empty() && self.reporting.is_empty()) {
            return Some(Duration::ZERO);
        }
        let device = self.pd.device();
        let now = device.now();
        let links = self.deadlines.time_left(now);
        let watched = self.timers.peek();
        let watched = watched.map(|Reverse((at, _))| at.saturating_sub(now));
        let returned = (self.short || !self.leaving.is_empty()).then_some(srq::PAUSE);
        let device = device.has_to_be_polled();
        let all = [links, watched, returned, device];
        all.into_iter().flatten().min()
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

impl Drop for LinkSet {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.device().is_inherited() {
            return;
        }
        self.pd.device().links.leave(self.mailbox);
    }
}

/// A link of a set, to post to it and to query it: for as long as the set is borrowed.
#[derive(Debug)]
pub struct SetLink<'a> {
    pub(super) member: &'a mut Member,
}
