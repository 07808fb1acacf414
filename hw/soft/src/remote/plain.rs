//! Plain SENDs: of up to 127 bytes, which travel as inline data, without immediate data and not solicited, to a queue
//! pair's own receive queue. They are received straight from the packet, and handed to the poll that looks for packets if
//! their completion queue is the one that it has found empty.
//!
//! The packet's header says that it is such a message, and how long: nothing of its entry is looked at. A peer for which
//! that is not true of what it sends changes only what its own message says.
//!
//! Whatever is otherwise changes nothing here: the packet stays where it is, and [`inline`](super::inline) looks at it next.

use super::super::hca::Hca;
use super::super::polled::Polling;
use super::super::receive::RecvWork;
use super::unlocked::{Head, INLINE, Passed};
use crate::fabric::{CARRIES_ACK, IN_LINE, InPlace, Likely, MOST_SHORT, Owing, Peer};
use bellwire_core::wqe::SEGMENT;

/// Most bytes of data in a packet of one line, which are padded to whole segments.
const IN_FIRST: usize = IN_LINE / SEGMENT * SEGMENT - INLINE;

/// Most bytes of data, with what is in front of them.
const LONGEST: usize = INLINE + MOST_SHORT;

/// What a packet with this [`size`](InPlace::size) makes likely. `None`: it is not such a message.
#[inline(always)]
pub(super) fn likely(size: u32) -> Option<Likely> {
    match InPlace::short(size) {
        0 => None,
        1..=IN_FIRST => Some(Likely::Short),
        _ => Some(Likely::Longer),
    }
}

impl Hca {
    /// Like [`receive_plain`](Self::receive_plain), without its code, and not for a poll.
    #[inline(never)]
    pub(super) fn receive_another_plain<const ONE_LINE: bool>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        owing: &mut Owing,
    ) -> Option<Passed> {
        self.receive_plain::<ONE_LINE, false>(peer, line, owing, None)
    }

    /// Receives the message of the next packet, which begins with this line, and passes it. `ONE_LINE`: if the packet is one
    /// line; otherwise, if it is several. `FIRST`: as for [`RecvWork::receive_plain`].
    #[inline(always)]
    pub(super) fn receive_plain<const ONE_LINE: bool, const FIRST: bool>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        owing: &mut Owing,
        polled: Polling<'_>,
    ) -> Option<Passed> {
        let size = line.size();
        let length = InPlace::short(size);
        let is_such = match ONE_LINE {
            true => length.wrapping_sub(1) < IN_FIRST,
            false => length > IN_FIRST && line.is_whole::<LONGEST>(),
        };
        if !is_such {
            return None;
        }
        let head = Head::of(line, line.to(), size);
        let taken = || (size & CARRIES_ACK != 0).then(|| line.taken());
        let read = self.receive_by(
            peer,
            owing,
            head,
            taken,
            #[inline(always)]
            |_, work, _| {
                // SAFETY: the bytes of a packet, which is there until it is released, or of what is behind it.
                unsafe {
                    let data = line.bytes(INLINE);
                    RecvWork::receive_plain::<ONE_LINE, FIRST>(work, self, data, length, polled)
                }
            },
        );
        Some(Passed {
            asked: read.asked()?,
            next: match ONE_LINE {
                true => line.done_alone(),
                false => line.done(size & 0xffff),
            },
        })
    }
}
