//! One-sided operations on memory that both processes have mapped: the requester's thread does all
//! of it, and the peer may sleep.
//!
//! What the peer shows is looked at within a section that the peer waits for when it takes something
//! away. Whatever cannot be done here, for whatever reason, travels in a packet: the peer knows why
//! not.

use super::super::copy::copy;
use super::super::hca::{Hca, Running};
use super::super::mr::{Keys, Reach};
use super::super::qp::SendWork;
use super::super::quiesce::Section;
use super::super::record::connection_with;
use super::super::run::{MAX_MESSAGE, Stop, gather, incoming, operate, outgoing, spread};
use super::{Remote, Responder};
use crate::fabric::{Face, Memory, Node, Peer};
use crate::memory::Mapping;
use bellwire_core::access::AccessFlags;
use bellwire_core::wqe::{SEGMENT, SendWqe, opcode};
use bellwire_core::wr;
use std::fs::OpenOptions;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A piece of a peer's memory, and where we have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    memory: Memory,
    /// An address; only good while the peer shows this generation of the memory.
    ours: usize,
    generation: &'static AtomicU32,
    keys: Keys,
}

/// The pieces of peers' memory that this process has mapped.
#[derive(Debug, Default)]
pub(in super::super) struct Views(Mutex<Vec<Mapped>>);

#[derive(Debug)]
struct Mapped {
    slot: usize,
    incarnation: u64,
    memory: Memory,
    /// `None`: it could not be mapped, and is not tried again.
    mapping: Option<Mapping>,
}

impl View {
    /// Where we have these of the peer's addresses; `None`: not here, or not any more.
    #[inline(always)]
    fn place(&self, addr: u64, length: u64) -> Option<*mut u8> {
        // Acquire: partner of the release in `Export::show`; that of `hide` is waited for.
        let there = self.memory.holds(addr, length)
            && self.generation.load(Ordering::Acquire) == self.memory.generation;
        let within = addr.wrapping_sub(self.memory.addr) as usize;
        there.then(|| std::ptr::with_exposed_provenance_mut(self.ours.wrapping_add(within)))
    }
}

impl Views {
    fn all(&self) -> MutexGuard<'_, Vec<Mapped>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a requester looks for what it may do, and says that it is at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door {
    peer: &'static Peer,
    section: &'static Section,
    /// The responder's.
    face: &'static Face,
    /// What that has to accept.
    name: u64,
}

impl Door {
    /// # Safety
    /// Not used after the node has gone.
    pub unsafe fn new(node: &Node, slot: usize, src: u32, dst: u32) -> Self {
        // SAFETY: the caller's promise.
        let peer = unsafe { &*std::ptr::from_ref(node.peer(slot)) };
        Self {
            peer,
            section: peer.segments.our_section(src),
            face: peer.segments.their_face(dst),
            name: connection_with(dst, src, node.lid()),
        }
    }
}

/// Why an operation was not done.
enum Miss {
    /// It has to travel in a packet.
    Packet,
    /// It may be that the memory can be mapped.
    NotMapped,
}

/// Finds memory that the peer has opened to an operation of this kind. Within the section.
#[inline(always)]
fn place(
    remote: &Remote,
    target: wr::Remote,
    length: u64,
    access: AccessFlags,
) -> Result<*mut u8, Miss> {
    let Door {
        peer, face, name, ..
    } = &remote.door;
    // Acquire: partner of the release in `Hca::show_responder`.
    let taken = face.accepts.load(Ordering::Acquire) == *name
        // Relaxed: written before `accepts`.
        && face.access.load(Ordering::Relaxed) & access.bits() != 0
        && peer.incarnation() == remote.incarnation
        && !peer.segments.is_down()
        && length != 0;
    if !taken {
        return Err(Miss::Packet);
    }
    let Some(view) = &remote.view else {
        return Err(Miss::NotMapped);
    };
    let reach = Reach {
        key: target.rkey,
        pd: face.pd.load(Ordering::Relaxed),
        qpn: 0,
        addr: target.addr,
        length,
        access: access.bits(),
    };
    if !view.keys.covers(&reach) {
        return Err(Miss::Packet);
    }
    view.place(target.addr, length).ok_or(Miss::NotMapped)
}

/// Writes one string of inline data, as small WRITEs have, if the peer's memory can be reached from
/// here. Nothing of the queue pair is under way.
#[inline(always)]
pub(super) fn write_inline(hca: &Hca, remote: &Remote, target: wr::Remote, bytes: &[u8]) -> bool {
    let section = remote.door.section;
    section.enter(hca.barriers);
    let place = place(
        remote,
        target,
        bytes.len() as u64,
        AccessFlags::REMOTE_WRITE,
    );
    let reached = place.is_ok();
    if let Ok(place) = place {
        // SAFETY: within a mapping of ours, which stays as long as the queue pair's own section lasts.
        unsafe { copy(bytes.as_ptr(), place, bytes.len()) };
    }
    section.leave();
    reached
}

/// Executes an entry if the peer's memory can be reached from here: gives the bytes that it brought.
/// Nothing of the queue pair is under way.
#[inline(never)]
pub(super) fn execute(
    hca: &Hca,
    work: &mut SendWork,
    wqe: &SendWqe<'_>,
    offset: usize,
) -> Result<Option<u32>, Stop> {
    let length = match wqe.opcode() {
        opcode::RDMA_WRITE => outgoing(hca, work, wqe.data(offset))?,
        _ => incoming(hca, work, wqe.data(offset))?,
    };
    let Some(remote) = &work.remote else {
        return Ok(None);
    };
    if length > MAX_MESSAGE {
        return Ok(None);
    }
    match reach(hca, remote, wqe, offset, length) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Miss::Packet) => Ok(None),
        Err(Miss::NotMapped) => Ok(again(hca, work, wqe, offset, length)),
    }
}

#[inline(always)]
fn reach(
    hca: &Hca,
    remote: &Remote,
    wqe: &SendWqe<'_>,
    offset: usize,
    length: u64,
) -> Result<u32, Miss> {
    let section = remote.door.section;
    section.enter(hca.barriers);
    let done = carry_out(remote, wqe, offset, length);
    section.leave();
    done
}

#[inline(always)]
fn carry_out(remote: &Remote, wqe: &SendWqe<'_>, offset: usize, length: u64) -> Result<u32, Miss> {
    let access = match wqe.opcode() {
        opcode::RDMA_WRITE => AccessFlags::REMOTE_WRITE,
        opcode::RDMA_READ => AccessFlags::REMOTE_READ,
        _ => AccessFlags::REMOTE_ATOMIC,
    };
    let target = wqe.remote(offset - super::address_bytes(wqe.opcode()));
    let place = place(remote, target, length, access)?;
    let data = wqe.data(offset);
    // SAFETY: the local side was checked in the queue pair's section; the other lies within a mapping of
    // ours, which stays as long as that lasts.
    unsafe {
        match wqe.opcode() {
            opcode::RDMA_WRITE => {
                gather(data, place);
                Ok(0)
            }
            opcode::RDMA_READ => {
                spread(place, data);
                Ok(length as u32)
            }
            _ if !place.addr().is_multiple_of(size_of::<u64>()) => Err(Miss::Packet),
            _ => {
                let old = operate(wqe, offset - SEGMENT, place);
                spread(old.to_ne_bytes().as_ptr(), data);
                Ok(size_of::<u64>() as u32)
            }
        }
    }
}

/// Maps what is missing, if it can be, and tries once more.
#[cold]
#[inline(never)]
fn again(
    hca: &Hca,
    work: &mut SendWork,
    wqe: &SendWqe<'_>,
    offset: usize,
    length: u64,
) -> Option<u32> {
    let remote = work.remote.as_mut()?;
    let target = wqe.remote(offset - super::address_bytes(wqe.opcode()));
    remote.view = hca.view(remote.slot, remote.incarnation, target.addr, length);
    remote.view.as_ref()?;
    reach(hca, remote, wqe, offset, length).ok()
}

impl Hca {
    /// Where the memory of a responder's peer is mapped here; `None`: it cannot be. Under the device's
    /// lock, and good as long as that is held.
    pub(super) fn source(
        &self,
        responder: &mut Responder,
        addr: u64,
        length: u64,
    ) -> Option<*const u8> {
        let known = (responder.view).and_then(|view| view.place(addr, length));
        let place = known.or_else(|| {
            responder.view = self.view(responder.slot, responder.incarnation, addr, length);
            responder.view?.place(addr, length)
        });
        place.map(<*mut u8>::cast_const)
    }

    /// The piece of a peer's memory that these addresses are in, mapped.
    fn view(&self, slot: usize, incarnation: u64, addr: u64, length: u64) -> Option<View> {
        let peer = self.node.as_ref()?.peer(slot);
        let shown = peer.shown();
        let memory = shown.find(addr, length)?;
        let link = peer.link().filter(|link| link.incarnation == incarnation)?;
        let mut all = self.views.all();
        let known = all.iter().position(|mapped| {
            (mapped.slot, mapped.incarnation, mapped.memory) == (slot, incarnation, memory)
        });
        let at = known.unwrap_or_else(|| {
            all.push(Mapped {
                slot,
                incarnation,
                memory,
                mapping: map(link.pid, &memory),
            });
            all.len() - 1
        });
        let mapping = all[at].mapping.as_ref()?;
        Some(View {
            memory,
            ours: mapping.as_ptr().expose_provenance(),
            generation: shown.generation_word(memory.index),
            keys: Keys::of(shown),
        })
    }

    /// Unmaps what peers do not show any more.
    pub(super) fn drop_views(&self, control: &super::super::control::Control) {
        let Some(node) = &self.node else { return };
        let gone = |mapped: &Mapped| {
            let peer = node.peer(mapped.slot);
            peer.incarnation() != mapped.incarnation
                || peer.shown().generation(mapped.memory.index) != mapped.memory.generation
        };
        if !self.views.all().iter().any(gone) {
            return;
        }
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut *self.views.all())
            .into_iter()
            .partition(gone);
        self.views.all().extend(kept);
        // Nobody uses them from here on: who did has left its section.
        self.drain(control);
        drop(gone);
    }
}

/// A piece of this process's memory that other nodes may map; not any more when it is dropped.
#[derive(Debug)]
pub(crate) struct ShownMemory {
    hca: Arc<Running>,
    index: usize,
}

impl ShownMemory {
    /// `None`: this is not a node of a fabric, or it shows as much as it can.
    pub fn new(hca: &Arc<Running>, fd: BorrowedFd<'_>, addr: u64, length: u64) -> Option<Self> {
        let index = hca.node.as_ref()?.export().show(fd, addr, length)?;
        let hca = hca.clone();
        Some(Self { hca, index })
    }
}

impl Drop for ShownMemory {
    fn drop(&mut self) {
        let Some(node) = &self.hca.node else { return };
        node.export().hide(self.index);
        node.export().free(self.index);
        // So that they unmap it.
        node.live().for_each(|slot| node.peer(slot).kick());
    }
}

/// Maps a piece of another process's memory, by its descriptor there.
fn map(pid: i32, memory: &Memory) -> Option<Mapping> {
    let path = format!("/proc/{pid}/fd/{}", memory.fd);
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = options
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()?;
    // It has to be a memfd that nobody can cut short.
    Mapping::from_fd(OwnedFd::from(file), usize::try_from(memory.length).ok()?).ok()
}
