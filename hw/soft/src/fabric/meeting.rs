//! How a node connects to others. Each handshake has a state of its own, and continues when a message
//! arrives. Nothing here blocks, and handshakes that take too long are dropped.
//!
//! ```text
//!  caller                                 listener
//!  Knocking ── connect ─────────────────► accept: Unheard
//!  Asked ───── hello, descriptors ──────► a link
//!  a link ◄─── hello, descriptors ─────── when its link is set up
//!  Knocking ◄─ refusal: for example, because it is calling us
//! ```
//!
//! The node's thread drives all handshakes, without a lock:
//!
//! - A node listens in the first free of 4096 places, and the place is its LID. The nodes in the first 64
//!   places connect to each other when they join, and wait for all these handshakes together, for half a second
//!   at most. Other nodes connect when a queue pair is connected, when the path of a datagram is made, and, to
//!   all nodes, when a multicast group is used.
//! - A node that does not reply, or is not accepted, delays no other. Of the nodes that have connected and
//!   sent nothing, 64 are kept, for half a second each. When no descriptors are left, no node is accepted for
//!   a while.
//! - Requests of a queue pair that is connected to a node before there is a link wait for the link, for as
//!   long as the handshake may take (2 s).
//! - Both nodes check the other's user (SO_PEERCRED) and exchange descriptors of memfds: a segment that one
//!   writes and the other reads, and an export with its table of keys. Both are sealed, so that the peer can
//!   neither truncate them nor map them for writing.
//! - A random number, the incarnation, distinguishes nodes that have one place after the other. Connections
//!   are bound to it.

use super::address::{self, Called, Spare};
use super::export::EXPORT;
use super::hello::{self, Heard, Hello};
use super::node::{Agreed, Node, segment};
use super::peer::{Link, Memory, Peer};
use super::segment::SEGMENT;
use super::window::Mapped;
use crate::process::Process;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a node that has connected to us may take to send its hello.
const TO_SAY: Duration = Duration::from_millis(500);

/// How long a node that we call may take to reply: its thread may have to wait for a processor.
const TO_ANSWER: Duration = Duration::from_secs(2);

/// When to retry a node whose backlog is full, or that refuses a link for now.
const AGAIN: Duration = Duration::from_millis(10);

/// How long no connection is accepted after the system has run out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of connections without a hello: beyond it, the oldest is dropped.
const UNHEARD: usize = 64;

/// Connections that are accepted before other work is done.
const AT_ONCE: usize = 32;

/// Handshakes have keys from this one on in the node's epoll.
pub(super) const FIRST_KEY: u64 = 1 << 32;

/// The places to which links are wanted. Any thread may use it.
#[derive(Debug, Default)]
pub(super) struct Calls {
    state: Mutex<CallState>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct CallState {
    /// The node's thread does not know of them yet.
    new: Vec<usize>,
    /// These, and the ones that the node's thread is calling.
    under_way: BTreeSet<usize>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, CallState> {
        // Poisoning is ignored: each change is made in one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests links to these places. `true`: some are new to the node's thread.
    pub fn want(&self, places: impl Iterator<Item = usize>) -> bool {
        let mut state = self.state();
        let CallState { new, under_way } = &mut *state;
        new.extend(places.filter(|place| under_way.insert(*place)));
        !new.is_empty()
    }

    fn take(&self) -> Vec<usize> {
        std::mem::take(&mut self.state().new)
    }

    /// The link is made, or will not be made.
    pub fn end(&self, slot: usize) {
        let mut state = self.state();
        // Who waits, waits for all.
        if state.under_way.remove(&slot) && state.under_way.is_empty() {
            drop(state);
            self.over.notify_all();
        }
    }

    pub fn is_under_way(&self, slot: usize) -> bool {
        self.state().under_way.contains(&slot)
    }

    /// Waits until no link is being made, at most for this long.
    pub fn wait(&self, within: Duration) {
        let waits = |state: &mut CallState| !state.under_way.is_empty();
        let _over = (self.over)
            .wait_timeout_while(self.state(), within, waits)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// The handshakes of a node. Used by its thread only.
#[derive(Debug)]
pub struct Meetings {
    all: Vec<Handshake>,
    next_key: u64,
    /// Until when no connection is accepted.
    paused: Option<Instant>,
    /// Kept while one place after the other is asked.
    spare: Spare,
}

#[derive(Debug)]
struct Handshake {
    key: u64,
    deadline: Instant,
    at: Stage,
}

#[derive(Debug)]
enum Stage {
    /// We have to connect; not before `from`.
    Knocking { slot: usize, from: Instant },
    /// We have sent our hello.
    Asked {
        slot: usize,
        stream: UnixStream,
        process: Process,
        ours: Mapped,
    },
    /// A node has connected to us.
    Unheard {
        stream: UnixStream,
        process: Process,
    },
}

/// Outcome of a step of a handshake.
enum Step {
    Stays(Stage),
    Over,
    Agreed(Agreed),
}

impl Stage {
    /// The place that we call.
    fn slot(&self) -> Option<usize> {
        match self {
            Self::Knocking { slot, .. } | Self::Asked { slot, .. } => Some(*slot),
            Self::Unheard { .. } => None,
        }
    }

    fn stream(&self) -> Option<&UnixStream> {
        match self {
            Self::Knocking { .. } => None,
            Self::Asked { stream, .. } | Self::Unheard { stream, .. } => Some(stream),
        }
    }
}

impl Default for Meetings {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            next_key: FIRST_KEY,
            paused: None,
            spare: None,
        }
    }
}

impl Meetings {
    /// Continues the handshakes that can continue without a message.
    pub fn go_on(&mut self, node: &Node, agreed: &mut Vec<Agreed>) {
        let now = Instant::now();
        for slot in node.calls.take() {
            self.add(Stage::Knocking { slot, from: now }, now + TO_ANSWER);
        }
        for at in (0..self.all.len()).rev() {
            let handshake = &self.all[at];
            let linked = |slot| node.is_linked(slot);
            let over = now >= handshake.deadline || handshake.at.slot().is_some_and(linked);
            let knocks =
                matches!(handshake.at, Stage::Knocking { from, .. } if now >= from) && !over;
            if over {
                let gone = self.all.swap_remove(at);
                end(node, &gone.at);
            } else if knocks {
                self.step(node, at, agreed);
            }
        }
        self.spare = None;
        if self.paused.is_some_and(|until| now >= until) {
            self.paused = None;
            node.listen(EventFlags::IN);
        }
    }

    /// When `go_on` has to be called at the latest.
    pub fn due(&self) -> Option<Instant> {
        let of_one = |handshake: &Handshake| match handshake.at {
            Stage::Knocking { from, .. } => from.min(handshake.deadline),
            _ => handshake.deadline,
        };
        self.all.iter().map(of_one).chain(self.paused).min()
    }

    fn add(&mut self, at: Stage, deadline: Instant) -> usize {
        let key = self.next_key;
        self.next_key += 1;
        self.all.push(Handshake { key, deadline, at });
        self.all.len() - 1
    }

    /// Accepts the nodes that have connected.
    pub fn accept(&mut self, node: &Node, agreed: &mut Vec<Agreed>) {
        for _ in 0..AT_ONCE {
            match accept_with(&node.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(stream) => self.take_in(node, stream, agreed),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // They stay in the backlog until there are descriptors and memory again.
                Err(_) => {
                    self.paused = Some(Instant::now() + PAUSE);
                    return node.listen(EventFlags::empty());
                }
            }
        }
    }

    fn take_in(&mut self, node: &Node, stream: OwnedFd, agreed: &mut Vec<Agreed>) {
        let unheard = |handshake: &Handshake| handshake.at.slot().is_none();
        if self.all.iter().filter(|of| unheard(of)).count() >= UNHEARD {
            let oldest = (0..self.all.len())
                .filter(|at| unheard(&self.all[*at]))
                .min_by_key(|at| self.all[*at].key);
            if let Some(at) = oldest {
                self.all.swap_remove(at);
            }
        }
        // Another user's process, or one that has ended.
        let Ok(process) = Process::behind(&stream) else {
            return;
        };
        let stream = UnixStream::from(stream);
        let at = self.add(Stage::Unheard { stream, process }, Instant::now() + TO_SAY);
        if self.watch(node, at) {
            // Usually its hello has arrived already.
            self.step(node, at, agreed);
        }
    }

    /// `false`: the system has no room for it, and the handshake is dropped.
    fn watch(&mut self, node: &Node, at: usize) -> bool {
        let handshake = &self.all[at];
        let key = EventData::new_u64(handshake.key);
        let watched = match handshake.at.stream() {
            Some(stream) => epoll::add(&node.epoll, stream, key, EventFlags::IN).is_ok(),
            None => true,
        };
        if !watched {
            let gone = self.all.swap_remove(at);
            end(node, &gone.at);
        }
        watched
    }

    /// A message has arrived for the handshake of this key.
    pub fn ready(&mut self, node: &Node, key: u64, agreed: &mut Vec<Agreed>) {
        if let Some(at) = self.all.iter().position(|handshake| handshake.key == key) {
            self.step(node, at, agreed);
        }
    }

    fn step(&mut self, node: &Node, at: usize, agreed: &mut Vec<Agreed>) {
        let Handshake { key, deadline, at } = self.all.swap_remove(at);
        let (slot, was_watched) = (at.slot(), at.stream().is_some());
        // On invalid messages, and when there is no memory, no link is made.
        let step = self.stepped(node, at).unwrap_or(Step::Over);
        match step {
            Step::Stays(at) => {
                let watch = !was_watched && at.stream().is_some();
                self.all.push(Handshake { key, deadline, at });
                if watch {
                    self.watch(node, self.all.len() - 1);
                }
            }
            Step::Over => {
                if let Some(slot) = slot {
                    node.calls.end(slot);
                }
            }
            Step::Agreed(link) => agreed.push(link),
        }
    }

    fn stepped(&mut self, node: &Node, at: Stage) -> io::Result<Step> {
        match at {
            Stage::Knocking { slot, .. } => knock(node, slot, &mut self.spare),
            Stage::Asked {
                slot,
                stream,
                process,
                ours,
            } => {
                let heard = match hello::hear(&stream) {
                    Ok(Some(heard)) => heard,
                    Ok(None) => {
                        return Ok(Step::Stays(Stage::Asked {
                            slot,
                            stream,
                            process,
                            ours,
                        }));
                    }
                    // It had too many callers, or has ended.
                    Err(error)
                        if matches!(
                            error.kind(),
                            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                        ) =>
                    {
                        let from = Instant::now() + AGAIN;
                        return Ok(Step::Stays(Stage::Knocking { slot, from }));
                    }
                    Err(error) => return Err(error),
                };
                check(&heard, &process)?;
                if heard.hello.incarnation == 0 {
                    let from = Instant::now() + AGAIN;
                    return Ok(Step::Stays(Stage::Knocking { slot, from }));
                }
                agree(slot, stream, process, heard, ours, None).map(Step::Agreed)
            }
            Stage::Unheard { stream, process } => {
                let Some(heard) = hello::hear(&stream)? else {
                    return Ok(Step::Stays(Stage::Unheard { stream, process }));
                };
                check(&heard, &process)?;
                self.answer(node, stream, process, heard)
            }
        }
    }

    /// Replies to a node that has connected to us.
    fn answer(
        &self,
        node: &Node,
        stream: UnixStream,
        process: Process,
        heard: Heard,
    ) -> io::Result<Step> {
        let Hello {
            slot, incarnation, ..
        } = heard.hello;
        // A place passes to another node only when the previous one has gone; the new node's claim is not
        // sufficient.
        let link = node.known(slot).and_then(Peer::link);
        let there = link.is_some_and(|link| !link.is_gone());
        let asked = (self.all.iter())
            .any(|handshake| matches!(handshake.at, Stage::Asked { slot: of, .. } if of == slot));
        // If two nodes call each other at once, the call of the one with the lower incarnation is used.
        let ours_goes_first = asked && node.incarnation < incarnation;
        if slot == node.slot || there || ours_goes_first {
            let no = Hello {
                incarnation: 0,
                ..node.hello()
            };
            hello::say(&stream, &no, &[])?;
            return Ok(Step::Over);
        }
        let (file, ours) = segment()?;
        agree(slot, stream, process, heard, ours, Some(file)).map(Step::Agreed)
    }
}

/// Drops a handshake without a link.
fn end(node: &Node, gone: &Stage) {
    if let Some(slot) = gone.slot() {
        node.calls.end(slot);
    }
}

fn knock(node: &Node, slot: usize, spare: &mut Spare) -> io::Result<Step> {
    let stream = match address::connect(&node.name, slot, spare)? {
        Called::There(stream) => stream,
        Called::Nobody => return Ok(Step::Over),
        Called::Crowded => {
            let from = Instant::now() + AGAIN;
            return Ok(Step::Stays(Stage::Knocking { slot, from }));
        }
    };
    let process = Process::behind(&stream)?;
    let (file, ours) = segment()?;
    hello::say(
        &stream,
        &node.hello(),
        &[file.as_fd(), node.export().file()],
    )?;
    Ok(Step::Stays(Stage::Asked {
        slot,
        stream,
        process,
        ours,
    }))
}

/// Checks whether a link with the sender of this hello is possible.
fn check(heard: &Heard, process: &Process) -> io::Result<()> {
    if !process.has_begun(heard.hello.began) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

fn agree(
    slot: usize,
    stream: UnixStream,
    process: Process,
    heard: Heard,
    ours: Mapped,
    reply: Option<OwnedFd>,
) -> io::Result<Agreed> {
    let Heard {
        hello: theirs,
        files,
    } = heard;
    let Some([link_file, keys]) = files.filter(|_| theirs.incarnation != 0 && theirs.slot == slot)
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let link = Link {
        stream,
        pid: process.pid(),
        process,
        gid: theirs.gid,
        incarnation: theirs.incarnation,
        reaches: theirs.reaches,
    };
    Ok(Agreed {
        slot,
        link,
        memory: Memory {
            ours,
            theirs: Mapped::new(link_file.as_fd(), SEGMENT, false)?,
            shown: Mapped::new(keys.as_fd(), EXPORT, false)?,
        },
        reply,
    })
}
