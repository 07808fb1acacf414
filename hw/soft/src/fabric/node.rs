//! A process's own place in a fabric.

use super::address;
use super::attention::Attention;
use super::calls::Calls;
use super::export::Export;
use super::hello::{self, Hello};
use super::meeting::{FIRST_KEY, Meetings};
use super::peer::{Link, Memory, Peer};
use super::places::Places;
use super::reading::Reads;
use super::segment::SEGMENT;
use super::window::Mapped;
use super::wire::Sending;
use super::{ACQUAINTED, MAX_NODES, Owner};
use crate::error::Error;
use crate::process::began_here;
use bellwire_memory::fork::Fd;
use bellwire_provider::event::epoll_wait;
use bellwire_provider::pinned::with_room;
use bellwire_provider::quiesce::Barriers;
use bellwire_provider::short::Short;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Keys of the descriptors in a node's epoll: each place has two, of its link's socket and of its process;
/// handshakes use the keys from [`FIRST_KEY`] on.
const PROCESSES: u64 = MAX_NODES as u64;
const WAKE: u64 = 2 * PROCESSES;
const LISTENER: u64 = WAKE + 1;

/// Descriptors that are handled per wait.
const AT_ONCE: usize = 32;

/// Processes that are remembered because they did not leave their sections in time.
const DISTRUSTED: usize = 64;

/// A node of a fabric.
#[derive(Debug)]
pub struct Node {
    /// Whose fabric it is: that of the program when it opened the device.
    pub(super) owner: Owner,
    pub(super) name: Short<64>,
    pub(super) slot: usize,
    /// Distinguishes this node from others that have had its place.
    pub(super) incarnation: u64,
    gid: [u8; 16],
    places: Places,
    pub(super) calls: Calls,
    pub(super) listener: Fd<UnixListener>,
    /// Everything that the node's thread waits for.
    pub(super) epoll: OwnedFd,
    wake: OwnedFd,
    stop: AtomicBool,
    /// Something waits for a peer: the node's thread has to check again soon.
    waiting: AtomicBool,
    /// A response to some peer is pending.
    pending_responses: AtomicBool,
    /// Some requester waits for a response, or for room.
    halted: AtomicBool,
    /// The node's thread polls at intervals.
    awake: AtomicBool,
    /// Numbers of processes that did not leave their sections in time, the last ones.
    distrusted: Mutex<VecDeque<u64>>,
    /// Whether peers have to wake us.
    pub attention: Arc<Attention>,
    export: Arc<Export>,
}

/// A link on which two nodes have agreed.
#[derive(Debug)]
pub struct Agreed {
    pub(super) slot: usize,
    pub(super) link: Link,
    pub(super) memory: Memory,
    /// File of our segment, for the reply that the peer waits for; sent when the link is set up.
    pub(super) reply: Option<OwnedFd>,
}

impl Agreed {
    /// The peer's place.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

/// The turns to read a peer's packets, and to send it some.
pub type Turns<'p> = (Reads<'p>, Sending<'p>);

/// What woke a node's thread.
#[derive(Debug, Default)]
pub struct Woken {
    /// Links that were agreed upon.
    pub agreed: Vec<Agreed>,
    /// Links whose other end is closed, and their places.
    pub gone: Vec<(usize, Arc<Link>)>,
}

impl Node {
    /// Takes a place in the fabric of this name. No links exist yet.
    ///
    /// # Errors
    /// [`Error::FabricName`], [`Error::Exhausted`], [`Error::Io`].
    pub fn claim(
        owner: Owner,
        name: &str,
        incarnation: u64,
        export: Arc<Export>,
    ) -> Result<Self, Error> {
        address::check_name(name)?;
        let distrusted = with_room(DISTRUSTED)?.into();
        let (slot, listener) = address::claim(&owner, name)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("make an event descriptor", error.into()))?;
        let watch = |epoll: &OwnedFd| {
            let add =
                |fd: &dyn AsFd, key| epoll::add(epoll, fd, EventData::new_u64(key), EventFlags::IN);
            add(&wake, WAKE)?;
            add(&listener, LISTENER)
        };
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .and_then(|epoll| watch(&epoll).map(|()| epoll))
            .map_err(|error| Error::io("wait for peers of the fabric", error.into()))?;
        Ok(Self {
            owner,
            name: Short::new(format_args!("{name}")),
            slot,
            incarnation: incarnation.max(1),
            gid: [0; 16],
            places: Places::new()?,
            calls: Calls::new()?,
            listener: listener.into(),
            epoll,
            wake,
            stop: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            pending_responses: AtomicBool::new(false),
            halted: AtomicBool::new(false),
            awake: AtomicBool::new(false),
            distrusted: Mutex::new(distrusted),
            attention: Arc::default(),
            export,
        })
    }

    pub fn set_gid(&mut self, gid: [u8; 16]) {
        self.gid = gid;
    }

    /// The node's LID, which is never zero.
    pub fn lid(&self) -> u16 {
        lid(self.slot)
    }

    /// The memory that peers read to access ours.
    pub fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// Whose fabric it is.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The name of the fabric.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The place that a LID stands for; `None`: no place, or our own.
    pub fn slot_of(&self, lid: u16) -> Option<usize> {
        let slot = usize::from(lid).checked_sub(1)?;
        (slot < MAX_NODES && slot != self.slot).then_some(slot)
    }

    /// The peer in a place that a queue pair or a link was connected to.
    ///
    /// # Panics
    /// [`meet`](Self::meet) was not called for this place.
    #[inline(always)]
    pub fn peer(&self, slot: usize) -> &Peer {
        self.places.get(slot).expect("a place that is known")
    }

    /// The peer in a place; `None`: this node has had nothing to do with that place.
    pub fn existing_peer(&self, slot: usize) -> Option<&Peer> {
        self.places.get(slot)
    }

    /// The peer in a place, with which this node has to do from now on.
    ///
    /// # Errors
    /// [`Error::Io`] when no addresses are left for its memory.
    pub fn meet(&self, slot: usize) -> Result<&Peer, Error> {
        self.places.make(slot)
    }

    /// Whether there is a link with the node in a place.
    pub(super) fn is_linked(&self, slot: usize) -> bool {
        (self.existing_peer(slot)).is_some_and(|peer| peer.incarnation() != 0)
    }

    /// All peers that this node has had to do with, whether there is a link or not.
    pub fn all_peers(&self) -> impl Iterator<Item = &Peer> {
        self.places.all()
    }

    /// The peers with which there is a link. Callers find out from the peer whether it still exists.
    #[inline(always)]
    pub fn live(&self) -> impl Iterator<Item = &Peer> {
        self.places.linked.all()
    }

    /// Like [`live`](Self::live), but only the next of them, if there are many, from the `first` place in the list on, and with
    /// their places: for a thread that polls, which goes on [behind](super::behind) the last one.
    #[inline(always)]
    pub fn some_live(&self, first: usize) -> impl Iterator<Item = (usize, &Peer)> {
        self.places.linked.some(first)
    }

    pub(super) fn hello(&self) -> Hello {
        Hello {
            slot: self.slot,
            incarnation: self.incarnation,
            gid: self.gid,
            began: began_here(),
            refusal: None,
            token: 0,
            proof: 0,
            reaches: Barriers::reach_everywhere(),
        }
    }

    /// Requests a link with the node in a place, if one is there. Returns at once; the node's thread makes
    /// the link.
    pub fn call(&self, slot: usize) {
        self.call_each(slot..slot + 1);
    }

    /// Like [`call`](Self::call), for all places.
    pub fn call_all(&self) {
        self.call_each(0..MAX_NODES);
    }

    /// Like [`call`](Self::call), for the places with which a new node makes links.
    pub fn call_first(&self) {
        if self.slot < ACQUAINTED {
            self.call_each(0..ACQUAINTED);
        }
    }

    fn call_each(&self, slots: Range<usize>) {
        let wanted = slots.filter(|slot| *slot != self.slot && !self.is_linked(*slot));
        if self.calls.want(wanted) {
            self.wake();
        }
    }

    /// Whether a link is being made.
    pub fn is_calling(&self, slot: usize) -> bool {
        self.calls.is_under_way(slot)
    }

    /// Waits until no link is being made, at most for this long.
    pub fn await_links(&self, within: Duration) {
        self.calls.wait(within);
    }

    /// Sets up a link with a place that has none. `turns` takes those of the peer. Under the device's lock.
    pub fn link<'n>(
        &'n self,
        agreed: Agreed,
        turns: impl FnOnce(&'n Peer) -> Turns<'n>,
    ) -> io::Result<usize> {
        let slot = agreed.slot;
        let linked = self.begin(agreed, turns);
        self.calls.end(slot);
        linked.map(|()| slot)
    }

    fn begin<'n>(
        &'n self,
        agreed: Agreed,
        turns: impl FnOnce(&'n Peer) -> Turns<'n>,
    ) -> io::Result<()> {
        let slot = agreed.slot;
        let peer = self.meet(slot).map_err(io::Error::other)?;
        self.watch(slot, &agreed.link)?;
        peer.set_trusted(!self.distrusts(&agreed.link));
        peer.begin_link(agreed.link, agreed.memory, turns(peer))?;
        if let (Some(file), Some(link)) = (&agreed.reply, peer.link()) {
            // If the peer has stopped waiting for it, it will be found to be gone.
            let files = [file.as_fd(), self.export.file()];
            let _gone = hello::say(&link.stream, &self.hello(), &files);
        }
        // SAFETY: peers live as long as their table, which has the list.
        unsafe { self.places.linked.add(peer) };
        Ok(())
    }

    /// From here on, the thread waits for the end of the link and of the peer's process. The socket was used
    /// for a handshake, so its key changes.
    fn watch(&self, slot: usize, link: &Link) -> io::Result<()> {
        let key = EventData::new_u64(slot as u64);
        epoll::modify(&self.epoll, &link.stream, key, EventFlags::IN)?;
        let key = EventData::new_u64(PROCESSES + slot as u64);
        if let Some(process) = link.process.handle() {
            epoll::add(&self.epoll, process, key, EventFlags::IN)?;
        }
        Ok(())
    }

    /// Accepts connections, or leaves them in the backlog.
    pub(super) fn listen(&self, flags: EventFlags) {
        let key = EventData::new_u64(LISTENER);
        let _watched = epoll::modify(&self.epoll, &self.listener, key, flags);
    }

    /// Listens to the peer of a link for these events: without any, for its end alone.
    pub(super) fn hear(&self, slot: usize, link: &Link, flags: EventFlags) {
        let _watched = epoll::modify(
            &self.epoll,
            &link.stream,
            EventData::new_u64(slot as u64),
            flags,
        );
    }

    /// Whether this is the link with a place, and not one that another has replaced.
    pub fn is_link(&self, slot: usize, link: &Arc<Link>) -> bool {
        let present = self.existing_peer(slot).and_then(Peer::link);
        present.is_some_and(|present| Arc::ptr_eq(&present, link))
    }

    /// Whether the process at the other end of a link is to access no memory of this one by itself.
    fn distrusts(&self, link: &Link) -> bool {
        let distrusted = self
            .distrusted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        distrusted.contains(&link.process.number())
    }

    /// From now on the process of this peer accesses no memory of this one by itself. Returns the places of its nodes,
    /// whose links are to be ended. Another node of the own process keeps its link: its threads are those of the program,
    /// and may only be late. Under the device's lock.
    pub fn distrust(&self, peer: &Peer) -> Vec<usize> {
        let Some(link) = peer.link().filter(|link| !link.process.is_us()) else {
            return Vec::new();
        };
        let number = link.process.number();
        let is_its = |of: &&Peer| {
            let link = of.link();
            of.slot == peer.slot
                || number != 0 && link.is_some_and(|link| link.process.number() == number)
        };
        let mut distrusted = self
            .distrusted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if number != 0 && !distrusted.contains(&number) {
            if distrusted.len() >= DISTRUSTED {
                distrusted.pop_front();
            }
            distrusted.push_back(number);
        }
        self.live().filter(is_its).map(|of| of.slot).collect()
    }

    /// Ends a link, if there is one. `turns` takes those of the peer. Under the device's lock.
    pub fn unlink<'n>(&'n self, slot: usize, turns: impl FnOnce(&'n Peer) -> Turns<'n>) {
        let Some(peer) = self
            .existing_peer(slot)
            .filter(|peer| peer.incarnation() != 0)
        else {
            return;
        };
        self.places.linked.remove(peer);
        if let Some(link) = peer.link() {
            // Closing is not sufficient if a child of this process has the descriptors, too.
            let _watched = epoll::delete(&self.epoll, &link.stream);
            if let Some(process) = link.process.handle() {
                let _watched = epoll::delete(&self.epoll, process);
            }
        }
        peer.end_link(turns(peer));
    }

    /// Waits until a peer needs attention, another thread calls [`wake`](Self::wake), or the time is over,
    /// and continues the handshakes. Called by the node's thread.
    pub fn wait(&self, bound: Option<Duration>, meetings: &mut Meetings) -> Woken {
        let mut woken = Woken::default();
        meetings.go_on(self, &mut woken.agreed);
        let due = (meetings.due()).map(|at| at.saturating_duration_since(Instant::now()));
        let bound = match woken.agreed.is_empty() {
            true => bound.into_iter().chain(due).min(),
            false => Some(Duration::ZERO),
        };
        let mut room = [const { MaybeUninit::uninit() }; AT_ONCE];
        // Interrupted: the caller calls again.
        let Ok(ready) = epoll_wait(self.epoll.as_fd(), &mut room, bound) else {
            return woken;
        };
        let now = Instant::now();
        for event in &*ready {
            match event.data.u64() {
                WAKE => {
                    let _drained = rustix::io::read(&self.wake, &mut [0; 8]);
                }
                LISTENER => meetings.accept(self, &mut woken.agreed),
                key @ FIRST_KEY.. => meetings.ready(self, key, &mut woken.agreed),
                key => {
                    let slot = key as usize % MAX_NODES;
                    let Some(peer) = self.existing_peer(slot) else {
                        continue;
                    };
                    let Some(link) = peer.link() else { continue };
                    // Whatever is unread of what has woken us.
                    let flags = event.flags;
                    let hung_up = flags.intersects(EventFlags::HUP | EventFlags::ERR);
                    if hung_up || link.is_gone() {
                        // Without memory for the list, the next wait finds it again.
                        if woken.gone.try_reserve(1).is_ok() {
                            woken.gone.push((slot, link));
                        }
                    } else if link.is_restless(now, peer.reader.ready()) {
                        meetings.turn_away(self, slot, link, now);
                    }
                }
            }
        }
        woken
    }

    /// Wakes the node's thread. A system call.
    pub fn wake(&self) {
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Whether something waits for a peer.
    pub fn is_waiting(&self) -> bool {
        // Relaxed: a hint; where it matters, it is read under the device's lock.
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn set_waiting(&self, waiting: bool) {
        // Relaxed: a hint, as in `is_waiting`.
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Whether a response to some peer is pending.
    #[inline(always)]
    pub fn has_pending_responses(&self) -> bool {
        // Relaxed: a hint; where it matters, it is read under the device's lock.
        self.pending_responses.load(Ordering::Relaxed)
    }

    pub fn set_pending_responses(&self, pending_responses: bool) {
        // Relaxed: a hint, as in `has_pending_responses`.
        self.pending_responses
            .store(pending_responses, Ordering::Relaxed);
    }

    /// A response to some peer is pending, which is sent when there is nothing more urgent.
    #[inline(always)]
    pub fn add_pending_response(&self) {
        self.set_pending_responses(true);
        if !self.is_awake() {
            self.rouse();
        }
    }

    /// Whether some requester waits for a response, or for room.
    #[inline(always)]
    pub fn is_halted(&self) -> bool {
        // Relaxed: a hint; where it matters, it is read under the device's lock.
        self.halted.load(Ordering::Relaxed)
    }

    pub fn set_halted(&self, halted: bool) {
        // Relaxed: a hint, as in `is_halted`.
        self.halted.store(halted, Ordering::Relaxed);
    }

    /// Whether the node's thread polls at intervals, so that packets are answered even if no other thread
    /// polls.
    #[inline(always)]
    pub fn is_awake(&self) -> bool {
        // Relaxed: ordered by the callers' barriers.
        self.awake.load(Ordering::Relaxed)
    }

    pub fn set_awake(&self, awake: bool) {
        // Relaxed: ordered by the callers' barriers.
        self.awake.store(awake, Ordering::Relaxed);
    }

    /// Makes the thread poll at intervals. A system call.
    #[cold]
    pub fn rouse(&self) {
        self.set_awake(true);
        self.wake();
    }

    pub fn stop(&self) {
        // Relaxed: the flag orders no other data.
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub fn is_stopped(&self) -> bool {
        // Relaxed: the flag orders no other data.
        self.stop.load(Ordering::Relaxed)
    }
}

/// The LID of the node in a place.
pub fn lid(slot: usize) -> u16 {
    slot as u16 + 1
}

/// Makes a segment, which we write and a peer reads.
pub(super) fn segment() -> io::Result<(OwnedFd, Mapped)> {
    let file = hello::file("bellwire-link", SEGMENT)?;
    let ours = Mapped::new(file.as_fd(), SEGMENT, true)?;
    hello::seal(file.as_fd())?;
    Ok((file, ours))
}
