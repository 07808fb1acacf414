//! How a node connects to others. Each handshake has a state of its own, and continues when a message
//! arrives. Nothing here blocks, and handshakes that take too long are dropped.
//!
//! ```text
//!  caller                                 listener
//!  Knocking ── connect ─────────────────► accept: Unheard
//!  Asked ───── hello, descriptors ──────► a link
//!  a link ◄─── hello, descriptors ─────── when its link is set up
//!  Knocking ◄─ refusal: for example, because it is calling us
//!  Awaited ◄── refusal: our user has changed, and the listener calls us back
//! ```
//!
//! The node's thread drives all handshakes, without a lock:
//!
//! - A node listens in the first free of 4096 places, and the place is its LID. The nodes in the first 64
//!   places connect to each other when they join, and wait for all these handshakes together, for half a second
//!   at most. Other nodes connect when a queue pair is connected, when the path of a datagram is made, and, to
//!   all nodes, when a multicast group is used.
//! - A node that does not reply, or is not accepted, delays no other. Of the nodes that have connected and
//!   sent nothing, a few are kept (`callers`), for half a second each. When no descriptors are left, no node
//!   is accepted for a while.
//! - The place that a caller names is a claim. The listener connects to that place, and compares the process that
//!   the kernel reports there with the caller. Where the kernel cannot tell, the listener calls back, as below. A
//!   process has links for 32 nodes at most, and all links that others ask for use at most half of the descriptors.
//! - Requests of a queue pair that is connected to a node before there is a link wait for the link, for as
//!   long as the handshake may take (2 s).
//! - A fabric belongs to the user that opened its devices (`owner`). Both nodes check the other's user
//!   (SO_PEERCRED). Of a listener, the kernel reports the user at the time of listen(2), when its program opened
//!   the device; of a caller, the user at the time of connect(2). So a program that has changed its user since is
//!   recognised as a listener, and not as a caller. The node that it calls refuses, and calls the caller's own
//!   listener instead, with the token of the refused call: only the node that was called has it, so the caller
//!   accepts this call whatever the user is now.
//! - The nodes exchange descriptors of memfds: a segment that one writes and the other reads, and an export with
//!   its table of keys. Both are sealed, so that the peer can neither truncate them nor map them for writing.
//! - A random number, the incarnation, distinguishes nodes that have one place after the other. Connections
//!   are bound to it.

use super::ACQUAINTED;
use super::address::{self, Called, Spare};
use super::callers::{Caller, UNHEARD, has_room, surplus};
use super::export::EXPORT;
use super::hello::{self, Heard, Hello, Refusal};
use super::node::{Agreed, Node, segment};
use super::peer::{DEAF, Link, Memory, Peer};
use super::segment::SEGMENT;
use super::window::Mapped;
use crate::error::Error;
use crate::process::{Credentials, Process};
use bellwire_memory::fork::Fd;
use bellwire_provider::entropy;
use bellwire_provider::pinned::with_room;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a node that has connected to us may take to send its hello.
const TO_SAY: Duration = Duration::from_millis(500);

/// How long a node that we call may take to reply: its thread may have to wait for a processor.
const TO_ANSWER: Duration = Duration::from_secs(2);

/// When to retry a node whose backlog is full, or that refuses a link for now.
const AGAIN: Duration = Duration::from_millis(10);

/// How long no connection is accepted after the system has run out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that are accepted before other work is done.
const AT_ONCE: usize = 32;

/// Handshakes have keys from this one on in the node's epoll.
pub(super) const FIRST_KEY: u64 = 1 << 32;

/// The handshakes of a node. Used by its thread only.
#[derive(Debug)]
pub struct Meetings {
    all: Vec<Handshake>,
    next_key: u64,
    /// Until when no connection is accepted.
    paused: Option<Instant>,
    /// Kept while one place after the other is asked.
    spare: Spare,
    /// Links whose peers are not listened to until these times, with their places.
    deaf: Vec<(Instant, usize, Arc<Link>)>,
}

#[derive(Debug)]
struct Handshake {
    key: u64,
    deadline: Instant,
    at: Stage,
}

/// A call to another place.
#[derive(Clone, Copy, Debug)]
struct Call {
    slot: usize,
    /// Ours, which the node that we call gets.
    token: u128,
    /// That of the node that we call back; zero: we call on our own account.
    proof: u128,
}

impl Call {
    fn new(slot: usize, proof: u128) -> Self {
        let token = u128::from(entropy::draw()) << 64 | u128::from(entropy::draw());
        // Zero means none.
        let token = token | 1;
        Self { slot, token, proof }
    }
}

/// The other end of a handshake's socket.
#[derive(Debug)]
struct Other {
    stream: Fd<UnixStream>,
    process: Process,
}

/// Whether a process listens in the place that it claims.
enum Claim {
    Proven,
    False,
    /// This cannot be told from here: the node in the place has to prove it by a token.
    Open,
    /// The node in the place has too many callers at present.
    Later,
}

#[derive(Debug)]
enum Stage {
    /// We have to connect; not before `from`.
    Knocking { call: Call, from: Instant },
    /// We have sent our hello, with this proof.
    Asked {
        call: Call,
        sent: u128,
        other: Other,
        ours: Mapped,
    },
    /// The node that we have called calls us back.
    Awaited(Call),
    /// A process has connected to us. `foreign`: its user is not the fabric's owner.
    Unheard { other: Other, foreign: bool },
}

/// Outcome of a step of a handshake.
enum Step {
    Stays(Stage),
    Over,
    Agreed(Agreed),
}

impl Step {
    /// The call is repeated soon.
    fn again(call: Call) -> Self {
        let from = Instant::now() + AGAIN;
        Self::Stays(Stage::Knocking { call, from })
    }
}

impl Stage {
    fn call(&self) -> Option<&Call> {
        match self {
            Self::Knocking { call, .. } | Self::Asked { call, .. } | Self::Awaited(call) => {
                Some(call)
            }
            Self::Unheard { .. } => None,
        }
    }

    /// The place that we call.
    fn slot(&self) -> Option<usize> {
        self.call().map(|call| call.slot)
    }

    /// Who has connected to us, and has not said what it is.
    fn caller(&self) -> Option<Caller> {
        match self {
            Self::Unheard { other, foreign } => Some(Caller::new(&other.process, *foreign)),
            _ => None,
        }
    }

    fn stream(&self) -> Option<&UnixStream> {
        match self {
            Self::Knocking { .. } | Self::Awaited(_) => None,
            Self::Asked { other, .. } | Self::Unheard { other, .. } => Some(&other.stream),
        }
    }
}

impl Meetings {
    /// With room for the handshakes of a node that joins, and for those that others begin meanwhile.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            all: with_room(ACQUAINTED + UNHEARD)?,
            next_key: FIRST_KEY,
            paused: None,
            spare: None,
            deaf: Vec::new(),
        })
    }

    /// Continues the handshakes that can continue without a message.
    pub fn go_on(&mut self, node: &Node, agreed: &mut Vec<Agreed>) {
        let now = Instant::now();
        for slot in node.calls.take().iter() {
            self.call(node, Call::new(slot, 0), now);
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
        self.deaf.retain(|(until, slot, link)| {
            let over = now >= *until;
            if over && node.is_link(*slot, link) {
                node.hear(*slot, link, EventFlags::IN);
            }
            !over
        });
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
        let deaf = self.deaf.iter().map(|(until, ..)| *until);
        (self.all.iter().map(of_one).chain(self.paused).chain(deaf)).min()
    }

    /// Does not listen to a peer for a while, which wakes the node's thread too often.
    pub fn turn_away(&mut self, node: &Node, slot: usize, link: Arc<Link>, now: Instant) {
        if self.deaf.try_reserve(1).is_ok() {
            node.hear(slot, &link, EventFlags::empty());
            self.deaf.push((now + DEAF, slot, link));
        }
    }

    /// Adds a handshake, and returns its index. `None`: there is no memory for it.
    fn add(&mut self, at: Stage, deadline: Instant) -> Option<usize> {
        self.all.try_reserve(1).ok()?;
        let key = self.next_key;
        self.next_key += 1;
        self.all.push(Handshake { key, deadline, at });
        Some(self.all.len() - 1)
    }

    /// Calls the node at another place. Without memory for the handshake the call ends.
    fn call(&mut self, node: &Node, call: Call, now: Instant) {
        let knocking = Stage::Knocking { call, from: now };
        if self.add(knocking, now + TO_ANSWER).is_none() {
            node.calls.end(call.slot);
        }
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
        let other = Credentials::of_peer(&stream).and_then(|peer| {
            let process = Process::behind(&stream, peer)?;
            Ok((process, peer.uid != node.owner.uid()))
        });
        // A process that has ended.
        let Ok((process, foreign)) = other else {
            return;
        };
        self.make_room(Caller::new(&process, foreign));
        let stream = Fd::new(UnixStream::from(stream));
        let other = Other { stream, process };
        let unheard = Stage::Unheard { other, foreign };
        let Some(at) = self.add(unheard, Instant::now() + TO_SAY) else {
            return;
        };
        if self.watch(node, at) {
            // Usually its hello has arrived already.
            self.step(node, at, agreed);
        }
    }

    /// Drops a connection without a hello if there is no room for another one of this caller.
    fn make_room(&mut self, caller: Caller) {
        let mut unheard: Vec<(u64, Caller)> = (self.all.iter())
            .filter_map(|handshake| Some((handshake.key, handshake.at.caller()?)))
            .collect();
        unheard.sort_unstable_by_key(|(key, _)| *key);
        let callers: Vec<Caller> = unheard.iter().map(|(_, caller)| *caller).collect();
        if let Some(at) = surplus(&callers, caller) {
            let key = unheard[at].0;
            self.all.retain(|handshake| handshake.key != key);
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
        let step = match agreed.try_reserve(1) {
            Ok(()) => self.stepped(node, at, agreed).unwrap_or(Step::Over),
            Err(_) => Step::Over,
        };
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

    fn stepped(&mut self, node: &Node, at: Stage, agreed: &[Agreed]) -> io::Result<Step> {
        match at {
            Stage::Knocking { call, .. } => knock(node, call, &mut self.spare),
            Stage::Awaited(call) => Ok(Step::Stays(Stage::Awaited(call))),
            Stage::Asked {
                call,
                sent,
                other,
                ours,
            } => {
                let again = || Ok(Step::again(call));
                let heard = match hello::hear(&other.stream) {
                    Ok(Some(heard)) => heard,
                    Ok(None) => {
                        return Ok(Step::Stays(Stage::Asked {
                            call,
                            sent,
                            other,
                            ours,
                        }));
                    }
                    Err(error) if has_hung_up(&error) => return again(),
                    Err(error) => return Err(error),
                };
                match heard.hello.refusal {
                    None => agree(call.slot, other, heard, ours, None).map(Step::Agreed),
                    Some(Refusal::Again) => again(),
                    Some(Refusal::CallsBack) if sent != 0 => Ok(Step::Over),
                    // The peer's user has changed, too, and it has called us meanwhile.
                    Some(Refusal::CallsBack) if call.proof != 0 => again(),
                    Some(Refusal::CallsBack) => Ok(Step::Stays(Stage::Awaited(call))),
                }
            }
            Stage::Unheard { other, foreign } => match hello::hear(&other.stream)? {
                Some(heard) => self.answer(node, other, foreign, heard, agreed),
                None => Ok(Step::Stays(Stage::Unheard { other, foreign })),
            },
        }
    }

    /// Replies to a process that has connected to us.
    fn answer(
        &mut self,
        node: &Node,
        other: Other,
        foreign: bool,
        heard: Heard,
        agreed: &[Agreed],
    ) -> io::Result<Step> {
        let Hello {
            slot,
            incarnation,
            token,
            proof,
            ..
        } = heard.hello;
        let refuse = |refusal| {
            let no = Hello {
                refusal: Some(refusal),
                ..node.hello()
            };
            hello::say(&other.stream, &no, &[])?;
            Ok(Step::Over)
        };
        // The node that listens in its place got our token, and its user was the owner when it began to listen.
        let is_proven = (self.all.iter().filter_map(|handshake| handshake.at.call()))
            .any(|call| call.slot == slot && call.token == proof);
        if !is_proven {
            match self.claims(node, slot, &other, foreign) {
                Claim::Proven => {}
                Claim::False => return Ok(Step::Over),
                Claim::Later => return refuse(Refusal::Again),
                Claim::Open => {
                    self.call_back(node, slot, token);
                    return refuse(Refusal::CallsBack);
                }
            }
        }
        if !has_room(node, &other.process, agreed) {
            return refuse(Refusal::Again);
        }
        // A place passes to another node only when the previous one has gone; the new node's claim is not
        // sufficient.
        let link = node.existing_peer(slot).and_then(Peer::link);
        // A link that was agreed on in this round counts: with a second one, each end would drop the other's choice.
        let there =
            link.is_some_and(|link| !link.is_gone()) || agreed.iter().any(|link| link.slot == slot);
        let asked = (self.all.iter()).any(
            |handshake| matches!(handshake.at, Stage::Asked { call, .. } if call.slot == slot),
        );
        // If two nodes call each other at once, the call of the one with the lower incarnation is used.
        let ours_goes_first = asked && node.incarnation < incarnation;
        if slot == node.slot || there || ours_goes_first {
            return refuse(Refusal::Again);
        }
        let (file, ours) = segment()?;
        agree(slot, other, heard, ours, Some(file)).map(Step::Agreed)
    }

    /// Whether this process, which has connected to us, listens in this place. A place is a name that the kernel gives to
    /// one listener at a time, and it says who that is.
    fn claims(&mut self, node: &Node, slot: usize, other: &Other, foreign: bool) -> Claim {
        if foreign {
            return Claim::Open;
        }
        if other.process.is_us() {
            return Claim::Proven;
        }
        match address::connect(&node.owner, &node.name, slot, &mut self.spare) {
            Ok(Called::There(stream)) => {
                let there =
                    Credentials::of_peer(&stream).and_then(|peer| Process::behind(&stream, peer));
                match there.map(|there| there.is_same(&other.process)) {
                    Ok(Some(true)) => Claim::Proven,
                    Ok(Some(false)) => Claim::False,
                    Ok(None) => Claim::Open,
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Claim::False,
                    Err(_) => Claim::Later,
                }
            }
            Ok(Called::Nobody) => Claim::False,
            Ok(Called::Crowded) | Err(_) => Claim::Later,
        }
    }

    /// Calls the node in this place, if there is one, because a process that claims to be that node has called us
    /// and is another user now. Only that node can prove by its token that it was called.
    fn call_back(&mut self, node: &Node, slot: usize, token: u128) {
        if slot == node.slot || token == 0 || node.is_linked(slot) {
            return;
        }
        let now = Instant::now();
        // There is one call at a time: this one goes on with the proof.
        let mut calls = self.all.iter_mut().map(|handshake| &mut handshake.at);
        match calls.find(|at| at.slot() == Some(slot)) {
            Some(Stage::Knocking { call, .. } | Stage::Asked { call, .. }) => call.proof = token,
            Some(at) => {
                if let Stage::Awaited(call) = at {
                    let call = Call {
                        proof: token,
                        ..*call
                    };
                    *at = Stage::Knocking { call, from: now };
                }
            }
            None => {
                node.calls.begin(slot);
                self.call(node, Call::new(slot, token), now);
            }
        }
    }
}

/// Whether the node that was called has ended the connection: it had too many callers, or has ended itself.
fn has_hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Drops a handshake without a link.
fn end(node: &Node, gone: &Stage) {
    if let Some(slot) = gone.slot() {
        node.calls.end(slot);
    }
}

fn knock(node: &Node, call: Call, spare: &mut Spare) -> io::Result<Step> {
    let stream = match address::connect(&node.owner, &node.name, call.slot, spare)? {
        Called::There(stream) => Fd::new(stream),
        Called::Nobody => return Ok(Step::Over),
        Called::Crowded => return Ok(Step::again(call)),
    };
    let peer = Credentials::of_peer(&stream)?;
    if peer.uid != node.owner.uid() {
        // Another user has taken the name.
        return Ok(Step::Over);
    }
    let process = Process::behind(&stream, peer)?;
    let (file, ours) = segment()?;
    let hello = Hello {
        token: call.token,
        proof: call.proof,
        ..node.hello()
    };
    match hello::say(&stream, &hello, &[file.as_fd(), node.export().file()]) {
        Err(error) if has_hung_up(&error) => return Ok(Step::again(call)),
        said => said?,
    }
    let other = Other { stream, process };
    Ok(Step::Stays(Stage::Asked {
        call,
        sent: call.proof,
        other,
        ours,
    }))
}

fn agree(
    slot: usize,
    other: Other,
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
    let process = other.process.begun(theirs.began);
    let link = Link {
        stream: other.stream,
        pid: process.pid_in_proc(),
        process,
        gid: theirs.gid,
        incarnation: theirs.incarnation,
        reaches: theirs.reaches,
        idle: Mutex::default(),
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

#[cfg(all(test, not(any(loom, miri))))]
mod tests;
