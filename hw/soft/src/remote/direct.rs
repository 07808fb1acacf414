//! One-sided operations on memory that both processes have mapped: the requester's thread executes them
//! completely, and the peer may sleep.
//!
//! Within its section the requester checks the responder's face (whether it is connected to this queue pair,
//! and what it allows), the key's entry in the peer's export, and whether the memory behind it is still
//! mapped; then it copies. When the peer removes something, it waits for that section. Such a wait ends after
//! 250 ms and is never under the device's lock, because a section is left by another process. membarrier(2)
//! reaches other processes by its global form; where a process has none, the link has fences.
//!
//! Memory can be mapped if it is a `Region` on `Mapping::shared`, except on huge pages; `Device::mapping`
//! returns the right kind. Other memory, regions registered in parts, memory windows, zero-based keys, the
//! first request of a connection, and whatever else the requester cannot decide, travel in packets, and the
//! peer determines the reason of a failure.

use super::super::copy::copy_short;
use super::super::hca::{Hca, Running};
use super::super::mr::{LOCAL_READ, Reach};
use super::super::one_sided::Transfer;
use super::super::qp::SendWork;
use super::super::record::connection_with;
use super::super::run::{MAX_MESSAGE, Stop, gather, incoming, operate, outgoing, spread};
use super::Remote;
use super::place::For;
use crate::fabric::{Face, Node, Peer};
use bellwire_core::access::AccessFlags;
use bellwire_core::wqe::Request;
use bellwire_core::wr;
use bellwire_provider::quiesce::Section;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a requester checks what the peer allows, and the section in which it does so.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    peer: &'static Peer,
    section: &'static Section,
    /// The responder's face.
    face: &'static Face,
    /// The connection that the responder has to accept.
    name: u64,
}

impl Door {
    /// # Safety
    /// The node outlives the door's last use.
    pub unsafe fn new(node: &Node, slot: usize, src: u32, dst: u32) -> Self {
        // SAFETY: the caller guarantees that the node outlives the door's last use.
        let peer = unsafe { &*std::ptr::from_ref(node.peer(slot)) };
        Self {
            peer,
            section: peer.segments.our_section(src),
            face: peer.segments.their_face(dst),
            name: connection_with(dst, src, node.lid()),
        }
    }
}

impl Door {
    /// The peer's node.
    #[inline(always)]
    pub(super) fn peer(&self) -> &'static Peer {
        self.peer
    }
}

/// Why an operation was not executed.
enum Miss {
    /// It has to be sent in a packet.
    Packet,
    /// The memory is not mapped, but it may be possible to map it.
    NotMapped,
}

/// The peer's memory, if the peer allows an operation of this kind on it. Within the section. The length is not
/// zero.
#[inline(always)]
fn place(
    remote: &Remote,
    door: Door,
    target: wr::Remote,
    length: u64,
    access: AccessFlags,
) -> Result<*mut u8, Miss> {
    let Door {
        peer, face, name, ..
    } = door;
    // Acquire: pairs with the Release in `Hca::show_responder`.
    let taken = face.accepts.load(Ordering::Acquire) == name
        // Relaxed: written before `accepts`.
        && face.access.load(Ordering::Relaxed) & access.bits() != 0
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
        pd: face.pd.load(Ordering::Relaxed),
        qpn: 0,
        addr: target.addr,
        length,
        // Regions have LOCAL_READ, windows do not.
        access: access.bits() | LOCAL_READ,
    };
    if !view.keys().covers(&reach) {
        return Err(Miss::Packet);
    }
    let purpose = match access {
        AccessFlags::REMOTE_READ => For::Reading,
        _ => For::Writing,
    };
    (view.place(target.addr, length, purpose)).ok_or(Miss::NotMapped)
}

/// Writes one piece of inline data of at most [`SHORT`](super::super::copy::SHORT) bytes, as small WRITEs have, if
/// the peer's memory is accessible from here. The queue pair has no outstanding requests.
///
/// # Safety
/// The data is no longer than that.
#[inline(always)]
pub(super) unsafe fn write_inline(remote: &Remote, target: wr::Remote, bytes: &[u8]) -> bool {
    // Read once: what is behind the barrier would be read again.
    let door = remote.door;
    door.section.enter_between(&door.peer.barriers);
    let place = place(
        remote,
        door,
        target,
        bytes.len() as u64,
        AccessFlags::REMOTE_WRITE,
    );
    let reached = place.is_ok();
    if let Ok(place) = place {
        // SAFETY: within a mapping of this process, which lives until the queue pair's own section is left; the
        // caller guarantees the length.
        unsafe { copy_short(bytes.as_ptr(), place, bytes.len()) };
    }
    door.section.leave();
    reached
}

/// Copies to or from the peer's memory, if it is accessible from here. The queue pair has no outstanding requests.
///
/// # Safety
/// The transfer's local memory is valid.
#[inline(always)]
pub(super) unsafe fn transfer(remote: &Remote, transfer: &Transfer) -> bool {
    let door = remote.door;
    door.section.enter_between(&door.peer.barriers);
    let Transfer {
        target,
        access,
        len,
        ..
    } = *transfer;
    let place = place(remote, door, target, len as u64, access);
    let reached = place.is_ok();
    if let Ok(place) = place {
        // SAFETY: within a mapping of this process, which lives until the queue pair's own section is left; the
        // caller guarantees the local side.
        unsafe { transfer.copy(place) };
    }
    door.section.leave();
    reached
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
    match reach(remote, request, length) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Miss::Packet) => Ok(None),
        Err(Miss::NotMapped) => Ok(again(hca, work, request, length)),
    }
}

#[inline(always)]
fn reach(remote: &Remote, request: &Request<'_>, length: u64) -> Result<u32, Miss> {
    let door = remote.door;
    door.section.enter_between(&door.peer.barriers);
    let done = carry_out(remote, door, request, length);
    door.section.leave();
    done
}

#[inline(always)]
fn carry_out(remote: &Remote, door: Door, request: &Request<'_>, length: u64) -> Result<u32, Miss> {
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
    let place = place(remote, door, target, length, access)?;
    let data = request.data();
    // SAFETY: the local side was checked in the queue pair's section; the remote side lies within a mapping
    // of this process, which lives until that section is left.
    unsafe {
        match atomic {
            None if request.operation().has_result() => {
                spread(place, data);
                Ok(length as u32)
            }
            None => {
                gather(data, place);
                Ok(0)
            }
            Some(_) if !place.addr().is_multiple_of(size_of::<u64>()) => Err(Miss::Packet),
            Some(atomic) => {
                let old = operate(atomic, place);
                spread(old.to_ne_bytes().as_ptr(), data);
                Ok(size_of::<u64>() as u32)
            }
        }
    }
}

/// Maps the missing memory, if possible, and tries once more.
#[cold]
#[inline(never)]
fn again(hca: &Hca, work: &mut SendWork, request: &Request<'_>, length: u64) -> Option<u32> {
    let remote = work.remote.as_mut()?;
    let target = request.remote()?;
    remote.view = hca.view(remote.slot, remote.incarnation, target.addr, length);
    remote.view.as_ref()?;
    reach(remote, request, length).ok()
}

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
        let Some(node) = &self.hca.node else { return };
        node.export().hide(self.index);
        node.export().free(self.index);
        // Wakes the peers, so that they unmap it.
        node.live().for_each(Peer::kick);
    }
}
