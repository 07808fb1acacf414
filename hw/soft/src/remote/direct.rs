//! One-sided operations on memory that both processes have mapped: the requester's thread executes them
//! completely, and the peer may sleep.
//!
//! Within its section the requester checks the responder's published words (whether it is connected to this queue pair,
//! and what it allows), the key's entry in the peer's export, and whether the memory behind it is still
//! mapped; then it copies. When the peer removes something, it waits for that section. Such a wait ends after
//! 250 ms and is never under the device's lock, because a section is left by another process; a process that has not
//! left its section by then loses its links, and later ones carry everything in packets. membarrier(2)
//! reaches other processes by its global form; where a process has none, the link has fences.
//!
//! Memory can be mapped if it is a `Region` on `Mapping::shared`, except on huge pages; `Device::mapping`
//! returns the right kind. Other memory, regions registered in parts, memory windows, zero-based keys, the
//! first request of a connection, and whatever else the requester cannot decide, travel in packets, and the
//! peer determines the reason of a failure.

use super::super::connection::{connection_with, in_life};
use super::super::copy::Fault;
use super::super::hca::{Hca, Running};
use super::super::lists::{MAX_MESSAGE, gather, incoming, outgoing, spread};
use super::super::mr::{Grant, LOCAL_READ, Reach};
use super::super::qp::SendWork;
use super::super::run::{Stop, operate};
use super::Remote;
use super::place::For;
use crate::fabric::{Node, Peer, Published};
use bellwire_core::access::AccessFlags;
use bellwire_core::cqe::Syndrome;
use bellwire_core::wqe::Request;
use bellwire_core::wr;
use bellwire_provider::quiesce::Section;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a requester checks what the peer allows, and the section in which it does so.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PeerHandle {
    peer: &'static Peer,
    section: &'static Section,
    /// The responder's published words.
    published: &'static Published,
    /// The connection that the responder has to accept, in this life of the requester.
    name: u64,
}

impl PeerHandle {
    /// # Safety
    /// The node outlives the handle's last use.
    pub unsafe fn new(node: &Node, slot: usize, (src, life): (u32, u16), dst: u32) -> Self {
        // SAFETY: the caller guarantees that the node outlives the handle's last use.
        let peer = unsafe { &*std::ptr::from_ref(node.peer(slot)) };
        Self {
            peer,
            section: peer.segments.our_section(src),
            published: peer.segments.published_by_peer(dst),
            name: in_life(connection_with(dst, src, node.lid()), life),
        }
    }
}

impl PeerHandle {
    /// The peer's node.
    #[inline(always)]
    pub(super) fn peer(&self) -> &'static Peer {
        self.peer
    }
}

/// A grant of a peer's memory to operations of one kind. It ends when the peer revokes a key, or this process unmaps the
/// memory.
#[derive(Clone, Copy, Debug)]
pub struct PeerGrant {
    region: Grant,
    /// Our address of its first byte.
    place: usize,
    /// Of [`Peer::unmapped`].
    mapped: u64,
}

impl PeerGrant {
    pub const NOTHING: Self = Self {
        region: Grant::NOTHING,
        place: 0,
        mapped: 0,
    };
}

/// Calls `access` with our address of the peer's memory, if it is accessible from here. `GRANTED`: by the last grant;
/// otherwise by all checks, which take longer. The queue pair has no outstanding requests. `false` also after a fault.
#[inline(always)]
pub(super) fn reach<const GRANTED: bool>(
    remote: &mut Remote,
    target: wr::Remote,
    length: u64,
    flags: AccessFlags,
    access: impl FnOnce(*mut u8) -> Result<(), Fault>,
) -> bool {
    let section = remote.handle.section;
    let place = if GRANTED {
        section.enter_unfenced();
        granted(remote, target, length, flags)
    } else {
        section.enter_between(&remote.handle.peer.barriers);
        find(remote, target, length, flags)
    };
    let reached = place.is_some_and(|place| access(place).is_ok());
    section.leave();
    reached
}

/// Like [`place`], by the last grant alone.
#[inline(always)]
fn granted(
    remote: &Remote,
    target: wr::Remote,
    length: u64,
    flags: AccessFlags,
) -> Option<*mut u8> {
    let handle = &remote.handle;
    let PeerGrant {
        region,
        place,
        mapped,
    } = &remote.grants[purpose(flags) as usize];
    // Acquire: pairs with the Release in `Hca::show_responder`.
    let there = handle.published.accepts.load(Ordering::Acquire) == handle.name
        // There is no grant of a link with fences, and before one is made, this changes.
        && handle.peer.unmapped.now() == *mapped
        && region.covers(handle.peer.shown().keys_generation().now(), target.rkey, target.addr, length);
    let offset = target.addr.wrapping_sub(region.addr) as usize;
    there.then(|| std::ptr::with_exposed_provenance_mut(place.wrapping_add(offset)))
}

/// Like [`place`], and keeps the grant.
#[inline(always)]
fn find(
    remote: &mut Remote,
    target: wr::Remote,
    length: u64,
    access: AccessFlags,
) -> Option<*mut u8> {
    let handle = remote.handle;
    // Both first: see `generation`.
    let mapped = handle.peer.unmapped.now();
    let generation = handle.peer.shown().keys_generation().now();
    let place = place(remote, handle, target, length, access).ok()?;
    if let Some(view) = remote.view
        && handle.peer.barriers.is_unfenced()
        && let Some(region) = view.keys.grant(generation, target.rkey)
    {
        let purpose = purpose(access);
        let (region, place) = view.piece.mapped(region, purpose);
        remote.grants[purpose as usize] = PeerGrant {
            region,
            place,
            mapped,
        };
    }
    Some(place)
}

fn purpose(access: AccessFlags) -> For {
    match access {
        AccessFlags::REMOTE_READ => For::Reading,
        _ => For::Writing,
    }
}

/// Why an operation was not executed.
enum Miss {
    /// It has to be sent in a packet.
    Packet,
    /// The memory is not mapped, but it may be possible to map it.
    NotMapped,
    /// It was executed, but its result cannot be written.
    Unwritten,
}

/// The peer's memory, if the peer allows an operation of this kind on it. Within the section. The length is not
/// zero.
#[inline(always)]
fn place(
    remote: &Remote,
    handle: PeerHandle,
    target: wr::Remote,
    length: u64,
    access: AccessFlags,
) -> Result<*mut u8, Miss> {
    let PeerHandle {
        peer,
        published,
        name,
        ..
    } = handle;
    // Acquire: pairs with the Release in `Hca::show_responder`.
    let taken = published.accepts.load(Ordering::Acquire) == name
        // Relaxed: written before `accepts`.
        && published.access.load(Ordering::Relaxed) & access.bits() != 0
        && peer.incarnation() == remote.incarnation
        && !peer.segments.is_down();
    if !taken {
        return Err(Miss::Packet);
    }
    let Some(view) = &remote.view else {
        return Err(Miss::NotMapped);
    };
    let reach = Reach {
        key: target.rkey,
        pd: published.pd.load(Ordering::Relaxed),
        qpn: 0,
        addr: target.addr,
        length,
        // Regions have LOCAL_READ, windows do not.
        access: access.bits() | LOCAL_READ,
    };
    if !view.keys.covers(&reach) {
        return Err(Miss::Packet);
    }
    (view.piece.place(target.addr, length, purpose(access))).ok_or(Miss::NotMapped)
}

/// Executes an entry if the peer's memory is accessible from here, and returns its byte count. The queue pair
/// has no outstanding requests.
#[inline(never)]
pub(super) fn execute(
    hca: &Hca,
    work: &mut SendWork,
    request: &Request<'_>,
) -> Result<Option<u32>, Stop> {
    let length = match request.operation().has_result() {
        false => outgoing(hca, work, request.data())?,
        true => incoming(hca, work, request.data())?,
    };
    let Some(remote) = &work.remote else {
        return Ok(None);
    };
    if length > MAX_MESSAGE {
        return Ok(None);
    }
    match reach_any(remote, request, length) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Miss::Packet) => Ok(None),
        Err(Miss::NotMapped) => again(hca, work, request, length),
        Err(Miss::Unwritten) => Err(UNWRITTEN),
    }
}

#[inline(always)]
fn reach_any(remote: &Remote, request: &Request<'_>, length: u64) -> Result<u32, Miss> {
    let handle = remote.handle;
    handle.section.enter_between(&handle.peer.barriers);
    let done = carry_out(remote, handle, request, length);
    handle.section.leave();
    done
}

#[inline(always)]
fn carry_out(
    remote: &Remote,
    handle: PeerHandle,
    request: &Request<'_>,
    length: u64,
) -> Result<u32, Miss> {
    let atomic = request.atomic();
    let access = match (atomic, request.operation().has_result()) {
        (Some(_), _) => AccessFlags::REMOTE_ATOMIC,
        (None, true) => AccessFlags::REMOTE_READ,
        (None, false) => AccessFlags::REMOTE_WRITE,
    };
    let target = request.remote().ok_or(Miss::Packet)?;
    if length == 0 {
        return Err(Miss::Packet);
    }
    let place = place(remote, handle, target, length, access)?;
    let data = request.data();
    // SAFETY: the local side was checked in the queue pair's section; the remote side lies within a mapping
    // of this process, which lives until that section is left.
    let done = unsafe {
        match atomic {
            None if request.operation().has_result() => spread(place, data).map(|()| length as u32),
            None => gather(data, place).map(|()| 0),
            Some(_) if !place.addr().is_multiple_of(size_of::<u64>()) => return Err(Miss::Packet),
            Some(atomic) => match operate(atomic, place) {
                Ok(old) => {
                    let spread = spread(old.to_ne_bytes().as_ptr(), data);
                    return spread.map(|()| 8).map_err(|Fault| Miss::Unwritten);
                }
                Err(fault) => Err(fault),
            },
        }
    };
    // In a packet it fails as it does where nothing is mapped.
    done.map_err(|Fault| Miss::Packet)
}

/// Maps the missing memory, if possible, and tries once more.
#[cold]
#[inline(never)]
fn again(
    hca: &Hca,
    work: &mut SendWork,
    request: &Request<'_>,
    length: u64,
) -> Result<Option<u32>, Stop> {
    let (Some(remote), Some(target)) = (work.remote.as_mut(), request.remote()) else {
        return Ok(None);
    };
    remote.view = hca.view(remote.slot, remote.incarnation, target.addr, length);
    if remote.view.is_none() {
        return Ok(None);
    }
    match reach_any(remote, request, length) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Miss::Unwritten) => Err(UNWRITTEN),
        Err(Miss::Packet | Miss::NotMapped) => Ok(None),
    }
}

/// The result of an operation cannot be written to the requester's memory.
const UNWRITTEN: Stop = Stop::local(Syndrome::LOCAL_PROT);

/// A piece of this process's memory that other nodes may map, until it is dropped.
#[derive(Debug)]
pub struct ShownMemory {
    hca: Arc<Running>,
    index: usize,
}

impl ShownMemory {
    /// `None`: this is not a node of a fabric, or it has reached the limit of pieces.
    pub fn new(hca: &Arc<Running>, fd: BorrowedFd<'_>, addr: u64, length: u64) -> Option<Self> {
        let index = hca.node.as_ref()?.export().show(fd, addr, length)?;
        let hca = hca.clone();
        Some(Self { hca, index })
    }
}

impl Drop for ShownMemory {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.hca.is_inherited() {
            return;
        }
        let Some(node) = &self.hca.node else { return };
        node.export().hide(self.index);
        self.hca.mrs.generation().pass();
        node.export().free(self.index);
        // Wakes the peers, so that they unmap it.
        node.live().for_each(Peer::kick);
    }
}
