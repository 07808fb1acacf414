//! One's own place in a fabric.

use super::MAX_NODES;
use super::address;
use super::export::{EXPORT, Export};
use super::hello::{self, Hello};
use super::peer::{Link, Peer};
use super::segment::SEGMENT;
use super::window::{Mapped, Windows};
use crate::error::Error;
use crate::soft::Barriers;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A node of a fabric.
#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    slot: usize,
    /// Tells this node from others that have had its place.
    incarnation: u64,
    gid: [u8; 16],
    peers: Box<[Peer]>,
    /// A bit for each peer that there is a link to.
    live: AtomicU64,
    meeting: Mutex<Meeting>,
    listener: UnixListener,
    wake: OwnedFd,
    stop: AtomicBool,
    /// Something waits for a peer: the node's thread is to come round soon.
    waiting: AtomicBool,
    /// Some peer is owed an answer.
    owing: AtomicBool,
    /// The node's thread looks by itself now and then.
    awake: AtomicBool,
    /// Completion queues that are to raise an event.
    armed: Arc<AtomicU32>,
    /// Looks that found nothing.
    pub idle: AtomicU32,
    ours: Windows,
    theirs: Windows,
    shown: Windows,
    export: Arc<Export>,
}

/// The peers that we are about to have a link to: a bit for each.
#[derive(Debug, Default)]
struct Meeting {
    /// We have connected to them.
    connecting: u64,
    /// They have connected to us, and we have agreed.
    answering: u64,
}

/// Two nodes have agreed on a link.
#[derive(Debug)]
pub(crate) struct Agreed {
    slot: usize,
    link: Link,
    ours: Mapped,
    theirs: Mapped,
    shown: Mapped,
    /// What the peer waits to hear: it is told when the link is there.
    reply: Option<OwnedFd>,
}

/// How meeting another node went.
#[derive(Debug)]
pub(crate) enum Met {
    /// Nobody is there.
    Nobody,
    /// There is a link already, or there will be one soon.
    Linked,
    Agreed(Agreed),
}

/// What woke a node's thread.
#[derive(Debug, Default)]
pub(crate) struct Woken {
    /// Links that were agreed upon.
    pub agreed: Vec<Agreed>,
    /// Links whose other end is closed, and their places.
    pub gone: Vec<(usize, Arc<Link>)>,
}

impl Node {
    /// Takes a place in the fabric of this name. Nobody is connected yet.
    ///
    /// # Errors
    /// [`Error::FabricName`], [`Error::Exhausted`], [`Error::Io`].
    pub fn claim(name: &str, incarnation: u64, export: Arc<Export>) -> Result<Self, Error> {
        address::check_name(name)?;
        let (slot, listener) = address::claim(name)?;
        let failed = |what| move |error: io::Error| Error::io(what, error);
        let reserve = || Windows::reserve(MAX_NODES, SEGMENT);
        let ours = reserve().map_err(failed("reserve addresses for peers"))?;
        let theirs = reserve().map_err(failed("reserve addresses for peers"))?;
        let shown =
            Windows::reserve(MAX_NODES, EXPORT).map_err(failed("reserve addresses for peers"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("make an event descriptor", error.into()))?;
        Ok(Self {
            name: name.to_owned(),
            slot,
            incarnation: incarnation.max(1),
            gid: [0; 16],
            peers: (0..MAX_NODES)
                .map(|slot| Peer::new(&ours, &theirs, &shown, slot))
                .collect(),
            live: AtomicU64::new(0),
            meeting: Mutex::default(),
            listener,
            wake,
            stop: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            owing: AtomicBool::new(false),
            awake: AtomicBool::new(false),
            armed: Arc::default(),
            idle: AtomicU32::new(0),
            ours,
            theirs,
            shown,
            export,
        })
    }

    pub fn set_gid(&mut self, gid: [u8; 16]) {
        self.gid = gid;
    }

    /// The node's local identifier. Zero is not one.
    pub fn lid(&self) -> u16 {
        lid(self.slot)
    }

    /// What peers may know of our memory.
    pub fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// The name of the fabric.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The place that an identifier stands for; `None`: no place, or our own.
    pub fn slot_of(&self, lid: u16) -> Option<usize> {
        let slot = usize::from(lid).checked_sub(1)?;
        (slot < MAX_NODES && slot != self.slot).then_some(slot)
    }

    pub fn peer(&self, slot: usize) -> &Peer {
        &self.peers[slot]
    }

    /// The places that there is a link to.
    #[inline(always)]
    pub fn live(&self) -> impl Iterator<Item = usize> + use<> {
        // Relaxed: who looks at a peer finds out whether it is there.
        let mut live = self.live.load(Ordering::Relaxed);
        std::iter::from_fn(move || {
            (live != 0).then(|| {
                let slot = live.trailing_zeros() as usize;
                live &= live - 1;
                slot
            })
        })
    }

    fn hello(&self) -> Hello {
        Hello {
            slot: self.slot,
            incarnation: self.incarnation,
            gid: self.gid,
            asymmetric: Barriers::get().is_asymmetric(),
        }
    }

    /// Connects to the node in a place, if there is one, and there is no link yet.
    pub fn connect(&self, slot: usize) -> io::Result<Met> {
        let bit = 1 << slot;
        {
            let mut meeting = self.meeting();
            let meet = (meeting.connecting | meeting.answering) & bit != 0;
            if meet || self.peers[slot].incarnation() != 0 {
                return Ok(Met::Linked);
            }
            meeting.connecting |= bit;
        }
        let met = self.shake(slot);
        if !matches!(met, Ok(Met::Agreed(_))) {
            self.meeting().connecting &= !bit;
        }
        met
    }

    fn shake(&self, slot: usize) -> io::Result<Met> {
        let Some(stream) = address::connect(&self.name, slot)? else {
            return Ok(Met::Nobody);
        };
        let (file, ours) = segment()?;
        hello::say(&stream, &self.hello(), &[file.as_fd(), self.export.file()])?;
        let heard = hello::hear(&stream, hello::TO_ANSWER)?;
        if heard.0.asymmetric != Barriers::get().is_asymmetric() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if heard.0.incarnation == 0 {
            return Ok(Met::Linked);
        }
        agree(slot, stream, heard, ours, None).map(Met::Agreed)
    }

    /// Answers a node that has connected to us.
    fn answer(&self, stream: UnixStream) -> io::Result<Option<Agreed>> {
        let heard = hello::hear(&stream, hello::TO_SAY)?;
        let (slot, incarnation) = (heard.0.slot, heard.0.incarnation);
        if heard.0.asymmetric != Barriers::get().is_asymmetric() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let bit = 1 << slot;
        // A place is another node's when the one before has gone, and not when somebody says so.
        let there = (self.peers[slot].link()).is_some_and(|link| !is_gone(&link.stream));
        let agrees = {
            let mut meeting = self.meeting();
            // Of two that connect to each other at once, one gives way.
            let ours_goes_first = meeting.connecting & bit != 0 && self.incarnation < incarnation;
            let agrees = slot != self.slot && !there && !ours_goes_first;
            // From here on we do not connect to it: a second link would end this one.
            meeting.answering |= if agrees { bit } else { 0 };
            agrees
        };
        if !agrees {
            let no = Hello {
                incarnation: 0,
                ..self.hello()
            };
            hello::say(&stream, &no, &[])?;
            return Ok(None);
        }
        let agreed = segment()
            .and_then(|(file, ours)| agree(slot, stream, heard, ours, Some(file)).map(Some));
        if agreed.is_err() {
            self.meeting().answering &= !bit;
        }
        agreed
    }

    /// Begins a link. By the lock's holder.
    pub fn link(&self, agreed: Agreed) -> io::Result<usize> {
        let slot = agreed.slot;
        let linked = self.begin(agreed);
        // Late enough that nobody connects meanwhile.
        let mut meeting = self.meeting();
        meeting.connecting &= !(1 << slot);
        meeting.answering &= !(1 << slot);
        linked.map(|()| slot)
    }

    fn begin(&self, agreed: Agreed) -> io::Result<()> {
        let slot = agreed.slot;
        self.unlink(slot);
        self.ours.show(slot, agreed.ours)?;
        self.theirs.show(slot, agreed.theirs)?;
        self.shown.show(slot, agreed.shown)?;
        self.peers[slot].set_link(Some(agreed.link));
        if let (Some(file), Some(link)) = (&agreed.reply, self.peers[slot].link()) {
            // One that has not waited for it is found to be gone.
            let files = [file.as_fd(), self.export.file()];
            let _gone = hello::say(&link.stream, &self.hello(), &files);
        }
        // Relaxed: as in `live`.
        self.live.fetch_or(1 << slot, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a link whose other end is closed, unless another has taken its place. By the lock's holder.
    pub fn unlink_gone(&self, slot: usize, gone: &Arc<Link>) {
        if (self.peers[slot].link()).is_some_and(|link| Arc::ptr_eq(&link, gone)) {
            self.unlink(slot);
        }
    }

    /// Ends a link, if there is one. By the lock's holder.
    pub fn unlink(&self, slot: usize) {
        if self.peers[slot].incarnation() == 0 {
            return;
        }
        // Relaxed: as in `live`.
        self.live.fetch_and(!(1 << slot), Ordering::Relaxed);
        self.peers[slot].set_link(None);
        // What cannot be cleared stays a peer's memory that nobody looks at.
        let _cleared = self.ours.clear(slot);
        let _cleared = self.theirs.clear(slot);
        let _cleared = self.shown.clear(slot);
    }

    /// Waits until a peer wants something, somebody [wakes](Self::wake) us, or the time is over.
    pub fn wait(&self, bound: Option<Duration>) -> Woken {
        let links: Vec<(usize, Arc<Link>)> = (0..MAX_NODES)
            .filter_map(|slot| Some((slot, self.peers[slot].link()?)))
            .collect();
        let mut fds = vec![
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        fds.extend((links.iter()).map(|(_, link)| PollFd::new(&link.stream, PollFlags::IN)));
        let bound = bound.map(|bound| Timespec {
            tv_sec: bound.as_secs() as i64,
            tv_nsec: bound.subsec_nanos().into(),
        });
        let mut woken = Woken::default();
        // Interrupted: the caller comes back.
        if poll(&mut fds, bound.as_ref()).is_err() {
            return woken;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            let _drained = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        drop(fds);
        let mut ready_links = ready[2..].iter();
        woken.gone = links;
        (woken.gone).retain(|(_, link)| ready_links.next() == Some(&true) && is_gone(&link.stream));
        if ready[1]
            && let Ok((stream, _)) = self.listener.accept()
        {
            // A peer that makes no sense gets no link.
            woken.agreed.extend(self.answer(stream).ok().flatten());
        }
        woken
    }

    /// Wakes the node's thread. A system call.
    pub fn wake(&self) {
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Whether something waits for a peer.
    pub fn is_waiting(&self) -> bool {
        // Relaxed: a hint, under the device's lock where it counts.
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn set_waiting(&self, waiting: bool) {
        // Relaxed: as above.
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Whether some peer is owed an answer.
    #[inline(always)]
    pub fn is_owing(&self) -> bool {
        // Relaxed: a hint, under the device's lock where it counts.
        self.owing.load(Ordering::Relaxed)
    }

    pub fn set_owing(&self, owing: bool) {
        // Relaxed: as above.
        self.owing.store(owing, Ordering::Relaxed);
    }

    /// Whether the node's thread looks by itself now and then, whether packets that nobody asks for
    /// are answered.
    #[inline(always)]
    pub fn is_awake(&self) -> bool {
        // Relaxed: ordered by the callers' barriers.
        self.awake.load(Ordering::Relaxed)
    }

    pub fn set_awake(&self, awake: bool) {
        // Relaxed: as above.
        self.awake.store(awake, Ordering::Relaxed);
    }

    /// Lets the thread look by itself. A system call.
    #[cold]
    pub fn rouse(&self) {
        self.set_awake(true);
        self.wake();
    }

    /// The count of completion queues that are to raise an event.
    pub fn armed(&self) -> &Arc<AtomicU32> {
        &self.armed
    }

    /// Whether some completion queue is to raise an event.
    pub fn is_armed(&self) -> bool {
        // Relaxed: whoever arms counts first, and asks for attention under the device's lock.
        self.armed.load(Ordering::Relaxed) != 0
    }

    pub fn stop(&self) {
        // Relaxed: a flag on its own.
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub fn is_stopped(&self) -> bool {
        // Relaxed: as above.
        self.stop.load(Ordering::Relaxed)
    }

    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The identifier of the node in a place.
pub(crate) fn lid(slot: usize) -> u16 {
    slot as u16 + 1
}

/// Memory that we write to and a peer reads.
fn segment() -> io::Result<(OwnedFd, Mapped)> {
    let file = hello::file("bellwire-link", SEGMENT)?;
    let ours = Mapped::new(file.as_fd(), SEGMENT, true)?;
    hello::seal(file.as_fd())?;
    Ok((file, ours))
}

fn agree(
    slot: usize,
    stream: UnixStream,
    (theirs, pid, files): (Hello, i32, Option<[OwnedFd; 2]>),
    ours: Mapped,
    reply: Option<OwnedFd>,
) -> io::Result<Agreed> {
    let Some([link_file, keys]) = files.filter(|_| theirs.incarnation != 0 && theirs.slot == slot)
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    stream.set_nonblocking(true)?;
    let link = Link {
        stream,
        pid,
        gid: theirs.gid,
        incarnation: theirs.incarnation,
    };
    Ok(Agreed {
        slot,
        link,
        ours,
        theirs: Mapped::new(link_file.as_fd(), SEGMENT, false)?,
        shown: Mapped::new(keys.as_fd(), EXPORT, false)?,
        reply,
    })
}

/// Reads away what woke us; whether the other end is closed.
fn is_gone(stream: &UnixStream) -> bool {
    let mut kicks = [0; 256];
    loop {
        match rustix::io::read(stream, &mut kicks) {
            Ok(0) => return true,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return error != rustix::io::Errno::AGAIN,
        }
    }
}
