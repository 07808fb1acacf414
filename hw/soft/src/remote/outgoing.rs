//! An entry as packets, whatever its operation and its data.

use super::super::hca::Hca;
use super::super::qp::SendWork;
use super::super::run::Stop;
use super::packet::{Carriage, Form, PIECES, Piece, Pieces, may_map, pieces_of, place_of, pulls};
use super::post::{Step, post_packet};
use super::{MORE, UNRELIABLE};
use crate::fabric::Send;
use arrayvec::ArrayVec;
use bellwire_core::cqe::Syndrome;
use bellwire_core::wqe::{BASIC_BLOCK, Data, DataSegment, FirstBlock, Request, SEGMENT, SgeList};
use bellwire_core::wr::QpType;
use std::ops::Range;

/// An entry to be sent in packets.
pub(super) struct Outgoing<'m> {
    /// Its first block.
    front: [u64; BASIC_BLOCK / 8],
    /// Bytes of its segments in front of the data.
    segments: usize,
    data: SgeList<'m>,
    length: u64,
    carriage: Carriage,
    /// It is signalled.
    asks: bool,
}

impl<'m> Outgoing<'m> {
    pub fn new(hca: &Hca, work: &SendWork, request: &Request<'m>, length: u64) -> Self {
        let mut data = request.data();
        let carriage = match request.operation().has_result() {
            true => Carriage::Result,
            false => Carriage::of(length, false, || {
                let is_shown = |data| match data {
                    Data::Inline(..) => false,
                    Data::Pointer(sge) => may_map(hca, work, &sge),
                };
                pulls(work) && data.all(is_shown)
            }),
        };
        Self {
            // SAFETY: an entry starts with a whole block, which is posted and not completed.
            front: unsafe { FirstBlock::read(work.ring, work.consumer) }.words(),
            segments: request.data_offset(),
            data: request.data(),
            length,
            carriage,
            asks: request.is_signaled(),
        }
    }

    /// For a READ: requests only what follows the first `bytes` bytes.
    pub fn leave_out(&mut self, bytes: u64) {
        let at = (self.segments - SEGMENT) / size_of::<u64>();
        let addr = u64::from_be(self.front[at]);
        self.front[at] = addr.wrapping_add(bytes).to_be();
        self.length = self.length.saturating_sub(bytes);
    }

    /// The pieces of a part of the data.
    fn pieces(&self, part: &Range<u64>) -> impl Iterator<Item = Piece> + use<'m> {
        let (mut skip, mut left) = (part.start as usize, (part.end - part.start) as usize);
        (self.data.flat_map(pieces_of)).filter_map(move |(from, length)| {
            let passed = skip.min(length);
            let now = left.min(length - passed);
            (skip, left) = (skip - passed, left - now);
            (now != 0).then_some((from.wrapping_add(passed), now))
        })
    }

    /// Sends the packet. If one has no room for the data, or for where it is, sends parts of it, from where the ring was
    /// last full. The last part is the request.
    #[inline(never)]
    pub fn send(&self, hca: &Hca, work: &mut SendWork, idle: bool) -> Result<Step, Stop> {
        let most = self.carriage.most();
        let in_parts = self.length > most;
        let carried = work.remote.as_ref().map_or(0, |remote| remote.carried);
        let mut at = if in_parts { carried } else { 0 };
        let step = loop {
            let part = at..at.saturating_add(most).min(self.length);
            match self.post(hca, work, idle, &part, in_parts) {
                Ok(Step::Sent) if part.end != self.length => at = part.end,
                done => break done,
            }
        };
        if let Some(remote) = &mut work.remote {
            let full = matches!(step, Err(Stop::Full));
            match step {
                Ok(Step::Sent) => {
                    remote.asks = self.carriage == Carriage::Result;
                    remote.got = 0;
                    hca.after_send(remote.handle.peer());
                }
                _ if full && at > carried => hca.after_send(remote.handle.peer()),
                _ => {}
            }
            remote.carried = if full { at } else { 0 };
        }
        step
    }

    fn post(
        &self,
        hca: &Hca,
        work: &mut SendWork,
        idle: bool,
        part: &Range<u64>,
        in_parts: bool,
    ) -> Result<Step, Stop> {
        let last = part.end == self.length;
        let which = [part.start, self.length];
        let mut places = ArrayVec::<DataSegment, PIECES>::new();
        let length = match self.carriage {
            Carriage::Place => {
                places.extend(self.pieces(part).map(place_of));
                size_of_val(&places[..])
            }
            _ => (part.end - part.start) as usize,
        };
        let mut form = Form::new(self.carriage, self.segments, length);
        let mut pieces = Pieces::new();
        if in_parts {
            form = form.in_part(self.length);
        }
        let rest = form.take_rest(&self.front);
        pieces.push((rest.as_ptr(), rest.len()));
        pieces.push((places.as_ptr().cast(), size_of_val(&places[..])));
        if in_parts {
            pieces.push((which.as_ptr().cast(), size_of_val(&which)));
        }
        match self.carriage {
            Carriage::Line | Carriage::Entry | Carriage::Packet => pieces.extend(self.pieces(part)),
            Carriage::Nothing | Carriage::Place | Carriage::Result => {}
        }
        let reliable = !matches!(work.transport, QpType::Uc);
        form.flags |= if reliable { 0 } else { UNRELIABLE } | if last { 0 } else { MORE };
        // SAFETY: local bytes, and data that was checked in this section or is within the entry.
        let sent = unsafe {
            post_packet(
                hca,
                work,
                self.asks && last,
                last,
                &form,
                &self.front,
                &pieces,
            )
        };
        match sent {
            Ok(_peer) => Ok(Step::Sent),
            Err(Send::Full) => Err(Stop::Full),
            Err(Send::Held) => Err(Stop::Held),
            Err(Send::Unread) => Err(Stop::local(Syndrome::LOCAL_PROT)),
            // An unreliable service drops what the peer does not accept.
            Err(Send::Gone) if !reliable && idle => Ok(Step::Done(0)),
            Err(Send::Gone) => Err(Stop::NoAnswer),
        }
    }
}
