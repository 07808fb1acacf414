//! Short SENDs of one connection whose packets lie one behind the other, because they were sent at once, or faster than they
//! are received. Its connection is [known](super::known): what has to be checked of it is checked once for all of them. Their
//! completion entries are claimed by one locked instruction instead of one for each, at which the processor waits until its
//! earlier stores are done.
//!
//! Whatever is otherwise changes nothing here, and [`unlocked`](super::unlocked) looks at the first packet, or at the one
//! behind those that were received.

use super::super::copy::copy_short;
use super::super::hca::Hca;
use super::ASKS;
use super::known::KnownMessage;
use super::plain::{DATA, without_entry};
use super::unlocked::Passed;
use crate::fabric::{InPlace, Owing, Peer, Size};
use bellwire_core::be::Be32;
use bellwire_core::cqe::{CqeOpcode, PlainCqe};

/// Most messages that are received together.
const MOST: u16 = 8;

/// The length of the data of a SEND's packet that has no entry, nor flags but that the requester waits for the response.
#[inline(always)]
fn short_send(size: Size) -> Option<usize> {
    without_entry(size).filter(|_| size.without(ASKS).flags() == 0)
}

impl Hca {
    /// Receives the message of the next packet, which begins with this line, and those behind it that are like it, and passes
    /// them. None waits for a response but the last one, and none carries an acknowledgement but the first one.
    #[inline(never)]
    pub(super) fn receive_several(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        owing: &mut Owing,
    ) -> Option<Passed> {
        let size = line.size();
        let length = short_send(size)?;
        // SAFETY: this thread has the turn, as the list of what is owed shows; this is its only one in this section until it
        // returns.
        let first = unsafe { self.known_message::<true>(peer, line, length) }?;
        let KnownMessage {
            ctx,
            queue,
            place,
            name,
        } = first;
        let accepted = &ctx.receiver.accepted;
        let number = accepted.expected.get()?;
        // SAFETY: the bytes of a packet, which is there until it is released, and no more than it can have; the place was
        // checked in this section.
        unsafe { copy_short(line.bytes(DATA), place, length) };
        let mut lengths = [0; MOST as usize];
        lengths[0] = length as u8;
        let (mut count, mut asks) = (1, size.has(ASKS));
        while count != MOST && !asks {
            let Some(next) = line.line_behind(count.into()) else {
                break;
            };
            let size = next.size();
            let Some(length) = short_send(size).filter(|_| !size.carries_ack()) else {
                break;
            };
            let is_next = next.whole_name() == name
                && next.number() == number.behind(count)
                && accepted.checked.speaks();
            if !is_next {
                break;
            }
            let Some(place) = queue.known_room(count, length) else {
                break;
            };
            // SAFETY: as for the first one.
            unsafe { copy_short(next.bytes(DATA), place, length) };
            lengths[usize::from(count)] = length as u8;
            count += 1;
            asks = size.has(ASKS);
        }
        let produced = queue.cq.produce_several(
            count.into(),
            #[inline(always)]
            |at| {
                let completed = queue.completed_behind(at as u16, name.dst());
                let length = lengths[at as usize % lengths.len()].into();
                PlainCqe::responder(CqeOpcode::RespSend, completed, length, Be32::new(0), false)
            },
        );
        if !produced {
            return None;
        }
        queue.pass_several(count);
        accepted.expected.pass(count);
        Some(Passed {
            asked: !self.owe_ack(peer, owing, ctx) | asks,
            handed: false,
            next: line.done_alone(count.into()),
        })
    }
}
