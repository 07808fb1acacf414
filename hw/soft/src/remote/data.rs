//! Request data that is not within one packet: in the requester's memory, if that is mapped here, or in
//! several packets. The responder's side, under the device's lock.
//!
//! Nothing here waits for the requester, or asks the kernel to copy its memory: a page that the requester's
//! process withholds would delay other users of the lock.

use super::super::control::Control;
use super::super::copy::{Span, copy};
use super::super::fetched::{fetched, place_part};
use super::super::hca::Hca;
use super::super::lists::MAX_MESSAGE;
use super::super::qp::SendWork;
use super::super::receive::Fetch;
use super::super::respond::Answer;
use super::super::run::Stop;
use super::arrival::speaks;
use super::packet::IN_PACKET;
use super::{FETCHED_AT_ONCE, PART, PULLED};
use crate::fabric::{Packet, Peer};
use arrayvec::ArrayVec;
use bellwire_core::cqe::Syndrome;
use bellwire_core::op::Carries;
use bellwire_core::wqe::{Data, Rc, Request, SEGMENT, SendWqe, Uc, Xrc};
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

/// Outcome of a request whose data is in the requester's memory, or arrived in parts.
pub(super) enum Pulled {
    Done(Result<(), Stop>),
    /// The memory cannot be mapped here.
    NotMapped,
}

/// How much has arrived of a message whose data is in several packets.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Partial {
    /// The request's number.
    msn: u16,
    /// Bytes that were placed, from the start without gaps.
    placed: u64,
    failed: Option<Failed>,
}

/// Why a part was not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    /// No receive was posted.
    NotReady,
    /// The error occurs again, and is reported, when the whole message is executed.
    Refused,
}

/// The part of the data in a packet, which follows the entry.
struct Part {
    at: u64,
    /// The offset behind the part.
    end: u64,
    /// Length of the whole data.
    total: u64,
    /// Location of the part: in the packet, or in the requester's memory.
    strings: List,
}

impl Part {
    /// `None`: the packet is invalid.
    fn read(packet: &Packet<'_>, request: &Request<'_>) -> Option<Self> {
        let wqe = request.wqe();
        let behind = packet.bytes.get(wqe.ds() as usize * SEGMENT..)?;
        let (at, behind) = behind.split_first_chunk()?;
        let (total, behind) = behind.split_first_chunk()?;
        let [at, total] = [at, total].map(|bytes| u64::from_ne_bytes(*bytes));
        let (strings, length) = match packet.header.flags & PULLED {
            0 => {
                let (addr, length) = (behind.as_ptr().expose_provenance(), behind.len() as u64);
                (List::from_iter([(addr as u64, length)]), length)
            }
            _ => location(request)?,
        };
        let end = at.checked_add(length)?;
        let part = Self {
            at,
            end,
            total,
            strings,
        };
        (length != 0 && end <= total && total <= MAX_MESSAGE).then_some(part)
    }
}

/// Length of a request's data, if it is not in its packet alone.
pub(super) fn data_bytes(packet: &Packet<'_>, transport: QpType, wqe: &SendWqe<'_>) -> Option<u64> {
    match packet.header.flags & (PULLED | PART) {
        0 => None,
        PULLED => Some(location(&wqe.request(transport).ok()?)?.1),
        _ => Some(Part::read(packet, &wqe.request(transport).ok()?)?.total),
    }
}

/// Where the data of a request is in the requester's memory, or that of its part, and its length. `None`: the packet is
/// invalid, or this is more than is fetched at once.
fn location(request: &Request<'_>) -> Option<(List, u64)> {
    let list = (request.data()).map(|data| match data {
        Data::Pointer(sge) => Some((sge.addr, u64::from(sge.length))),
        Data::Inline(..) => None,
    });
    let list = list.collect::<Option<List>>()?;
    let total = list.iter().map(|(_, length)| length).sum();
    (1..=FETCHED_AT_ONCE)
        .contains(&total)
        .then_some((list, total))
}

fn takes_data(request: &Request<'_>) -> bool {
    request.operation().row().carries == Carries::Data
}

impl Hca {
    /// Executes an entry whose data is in the requester's memory. `None`: the packet is invalid.
    pub(super) fn execute_pulled(
        &self,
        control: &mut Control,
        peer: &Peer,
        packet: &Packet<'_>,
        work: &SendWork,
        request: &Request<'_>,
    ) -> Option<Pulled> {
        let (strings, length) = location(request).filter(|_| takes_data(request))?;
        let Some(sources) = self.sources(control, packet.header.name.dst(), &strings) else {
            return Some(Pulled::NotMapped);
        };
        let fetch = |places: &[(u64, u64)]| {
            // SAFETY: the responder has checked the places, under the lock, which revoking a key takes; the
            // sources are mapped while the lock is held.
            let brought = unsafe { bring(&sources, places, 0) };
            // If the requester is still in that life, the memory belonged to the request during the whole
            // copy.
            brought && speaks(peer, work.qpn, packet)
        };
        let done = self.execute_fetched(control, packet, work, request, length, &fetch);
        Some(Pulled::Done(done))
    }

    /// Addresses at which pieces of the peer's memory are mapped here. `None`: some are not mapped.
    fn sources(&self, control: &mut Control, qpn: u32, strings: &List) -> Option<List> {
        let record = control.record(qpn)?;
        let (responder, inbound) = (record.responder.as_ref()?, &record.ctx.inbound);
        let source = |&(addr, length): &(u64, u64)| {
            let place = self.source(responder, inbound, addr, length)?;
            Some((place.expose_provenance() as u64, length))
        };
        let sources = strings.iter().map(source).collect::<Option<List>>()?;
        let fetched: u64 = strings.iter().map(|(_, length)| length).sum();
        control.turn = control.turn.saturating_sub((fetched / IN_PACKET) as usize);
        Some(sources)
    }

    /// Places a part of a message; executes the entry if it is the last part. `None`: there is no response
    /// yet, or the packet is invalid.
    pub(super) fn execute_part(
        &self,
        control: &mut Control,
        peer: &Peer,
        packet: &Packet<'_>,
        work: &SendWork,
        request: &Request<'_>,
    ) -> Option<Pulled> {
        let part = Part::read(packet, request).filter(|_| takes_data(request))?;
        let sources = match packet.header.flags & PULLED {
            0 => Some(part.strings),
            _ => self.sources(control, packet.header.name.dst(), &part.strings),
        };
        let Some(sources) = sources else {
            return Some(Pulled::NotMapped);
        };
        let record = control.record(packet.header.name.dst())?;
        let rights = &record.ctx.rights;
        let partial = &mut record.responder.as_mut()?.partial;
        if part.at == 0 {
            *partial = Partial {
                msn: packet.header.number.msn(),
                ..Partial::default()
            };
        }
        // If the message is sent again, it starts with its first part.
        if partial.msn != packet.header.number.msn()
            || partial.failed.is_none() && partial.placed != part.at
        {
            return None;
        }
        if part.end != part.total {
            if partial.failed.is_none() {
                match self.place_part(work, request, part.total, part.at, &sources) {
                    Ok(()) => partial.placed = part.end,
                    Err(Answer::Rnr(_)) => partial.failed = Some(Failed::NotReady),
                    Err(_) => partial.failed = Some(Failed::Refused),
                }
            }
            return None;
        }
        if partial.failed == Some(Failed::NotReady) {
            // Relaxed: the value orders no other data.
            let code = rights.min_rnr_timer.load(Ordering::Relaxed);
            return Some(Pulled::Done(Err(Stop::Rnr(code))));
        }
        let whole = partial.failed.is_none();
        let fetch = |places: &[(u64, u64)]| {
            // SAFETY: the responder has checked the places, under the lock, which revoking a key takes; the
            // sources are the packet, or mapped while the lock is held.
            let brought = whole && unsafe { bring(&sources, places, part.at) };
            // If the requester is still in that life, its memory belonged to the request during all copies,
            // including those of earlier parts: a life that has ended does not return.
            brought && speaks(peer, work.qpn, packet)
        };
        let done = self.execute_fetched(control, packet, work, request, part.total, &fetch);
        Some(Pulled::Done(done))
    }

    fn place_part(
        &self,
        work: &SendWork,
        request: &Request<'_>,
        total: u64,
        mut at: u64,
        sources: &List,
    ) -> Result<(), Answer> {
        let place = match work.transport {
            QpType::Uc => place_part::<Uc>,
            QpType::XrcSend => place_part::<Xrc>,
            QpType::Rc | QpType::Ud | QpType::XrcRecv | QpType::Dci => place_part::<Rc>,
        };
        for &(addr, length) in sources {
            let from = std::ptr::with_exposed_provenance(addr as usize);
            // SAFETY: in the packet, or mapped while the lock is held.
            let bytes = unsafe { Span::new(from, length as usize) };
            place(self, work, request, total, at, bytes)?;
            at += length;
        }
        Ok(())
    }

    /// Executes an entry whose data `fetch` copies.
    fn execute_fetched(
        &self,
        control: &mut Control,
        packet: &Packet<'_>,
        work: &SendWork,
        request: &Request<'_>,
        length: u64,
        fetch: &Fetch<'_>,
    ) -> Result<(), Stop> {
        let key = request.wqe().imm().get();
        let mut invalidate = |pd| {
            self.invalidate(control, pd, packet.header.name.dst(), key)
                .map(drop)
                .ok_or(Syndrome::REMOTE_INVAL_REQ)
        };
        let done = match work.transport {
            QpType::Uc => fetched::<Uc>(self, work, request, length, fetch, &mut invalidate),
            QpType::XrcSend => fetched::<Xrc>(self, work, request, length, fetch, &mut invalidate),
            // Datagrams have no peer that fetches.
            QpType::Rc | QpType::Ud | QpType::XrcRecv | QpType::Dci => {
                fetched::<Rc>(self, work, request, length, fetch, &mut invalidate)
            }
        };
        done.map(drop)
    }
}

/// Most data segments of an entry.
const PIECES: usize = 63;

/// Addresses and lengths.
type List = ArrayVec<(u64, u64), PIECES>;

/// Copies the pieces `from` to the pieces `to`, starting `skip` bytes into `to`. `false`: there is not enough
/// room, or some of it cannot be accessed any more.
///
/// # Safety
/// `from` is readable. `to` is writable, and not used otherwise meanwhile.
pub(super) unsafe fn bring(from: &[(u64, u64)], to: &[(u64, u64)], mut skip: u64) -> bool {
    let mut to = to.iter().map(|&(addr, length)| {
        let passed = skip.min(length);
        skip -= passed;
        (addr + passed, length - passed)
    });
    let mut at = (0, 0);
    for &(mut from, mut left) in from {
        while left != 0 {
            while at.1 == 0 {
                let Some(next) = to.next() else { return false };
                at = next;
            }
            let now = left.min(at.1);
            let source = std::ptr::with_exposed_provenance(from as usize);
            let place = std::ptr::with_exposed_provenance_mut(at.0 as usize);
            // SAFETY: within both, which the caller guarantees to be readable and writable.
            if unsafe { copy(source, place, now as usize) }.is_err() {
                return false;
            }
            (from, left) = (from + now, left - now);
            at = (at.0 + now, at.1 - now);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::packet::place_of;
    use super::*;
    use crate::pinned::Pinned;
    use bellwire_core::be::Be32;
    use bellwire_core::wqe::{BASIC_BLOCK, CtrlSegment, INLINE_FLAG, SendRing, opcode};

    fn at(bytes: &[u8]) -> (u64, u64) {
        (
            bytes.as_ptr().expose_provenance() as u64,
            bytes.len() as u64,
        )
    }

    #[test]
    fn strings_are_put_together_and_apart() {
        let (a, b) = (*b"hello, ", *b"world");
        for (skip, expected) in [(0, &b"hello, world..."[..]), (2, b"..hello, world.")] {
            let mut to = *b"...............";
            let (head, tail) = to.split_at_mut(4);
            let places = [at(head), at(&[]), at(tail)];
            // SAFETY: both are local arrays, which are borrowed meanwhile.
            assert!(unsafe { bring(&[at(&a), at(&b)], &places, skip) });
            assert_eq!(&to, expected);
        }
        let to = [0u8; 12];
        // SAFETY: both are local arrays, which are borrowed meanwhile.
        assert!(!unsafe { bring(&[at(&a), at(&b)], &[at(&to)], 1) });
    }

    /// The limit on what is fetched while the device's lock is held applies to any packet of a peer.
    #[test]
    fn no_more_is_fetched_at_once_than_others_wait_for() {
        // An entry of 63 segments, and room for its ring's alignment.
        let memory = Pinned::zeroed(16 * BASIC_BLOCK).expect("some memory");
        let location = |pieces: &[u64]| {
            let ctrl = CtrlSegment {
                opmod_idx_opcode: Be32::new(opcode::SEND.into()),
                qpn_ds: Be32::new(1 + pieces.len() as u32),
                ..CtrlSegment::default()
            };
            // SAFETY: within the memory, which nothing else uses.
            let wqe = unsafe {
                memory.start().cast().write(ctrl);
                for (at, length) in pieces.iter().enumerate() {
                    let piece = (std::ptr::without_provenance(4096), *length as usize);
                    let to = memory.start().add((1 + at) * SEGMENT);
                    to.cast().write(place_of(piece));
                }
                SendWqe::read(SendRing::new(memory.start(), 16).expect("aligned"), 0)
            };
            super::location(&wqe.request(QpType::Rc).expect("a SEND"))
        };
        let most = FETCHED_AT_ONCE;
        for pieces in [&[1][..], &[most], &[most - 1, 1]] {
            let (found, length) = location(pieces).expect("it makes sense");
            assert_eq!(found.len(), pieces.len());
            assert_eq!(length, pieces.iter().sum::<u64>());
        }
        let inline = u64::from(INLINE_FLAG | 1);
        let many = [most; 62];
        for pieces in [&[][..], &[0], &[most + 1], &[most, 1], &[1, inline], &many] {
            assert!(location(pieces).is_none(), "{pieces:?}");
        }
    }
}
