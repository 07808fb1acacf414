//! Plain SENDs: of up to 127 bytes, without immediate data and not solicited. The packet's header says that it is one,
//! and how long. Those of up to 32 bytes travel without their entry, of which only the first word is in front of the data,
//! so that they fit in one line. Longer ones take two, and their data is behind the whole entry: where the processors share
//! no cache, 64 bytes took 50 ns more behind one word, of which less is in the second line.
//!
//! To a queue pair's own receive queue they are received straight from the packet, and handed to the poll that looks for
//! packets if their completion queue is the one that it has found empty. A peer that writes another length than its packet
//! has changes only what its own message says.
//!
//! Whatever is otherwise changes nothing here: the packet stays where it is, and [`inline`](super::inline) looks at it next.

use super::super::copy::SHORT;
use super::super::hca::Hca;
use super::super::polled::PolledQueue;
use super::super::qp::QpCtx;
use super::super::receive::{Receives, RecvWork};
use super::SPEAKING;
use super::entry::INLINE;
use super::unlocked::{Head, Passed};
use crate::fabric::{IN_LINE, InPlace, Likely, MOST_SHORT, Owing, Packet, Peer, Size};
use bellwire_core::be::Be32;
use bellwire_core::wqe::{INLINE_FLAG, SEGMENT};
use std::sync::atomic::Ordering;

/// Offset of the data in the packet's payload, of a message without its entry.
pub(super) const DATA: usize = size_of::<Be32>();

/// Most bytes of data that travel without their entry: what [`copy_short`](super::super::copy::copy_short) copies.
pub(super) const MOST_WITHOUT_ENTRY: usize = SHORT;
const _: () = assert!(DATA + MOST_WITHOUT_ENTRY <= IN_LINE);

/// Most bytes of data, with what is in front of them.
const LONGEST: usize = INLINE + MOST_SHORT;

/// Bytes of the longest entry that is left out.
pub(super) const ENTRY: usize = (INLINE + MOST_WITHOUT_ENTRY).next_multiple_of(SEGMENT);

/// The length of the data of a packet of this size, if it has no entry.
#[inline(always)]
pub(super) fn without_entry(size: Size) -> Option<usize> {
    let length = size.short();
    (length.wrapping_sub(1) < MOST_WITHOUT_ENTRY).then_some(length)
}

/// The packet with its entry, which is written to `entry`, if it has none. `None`: not all of its data is there.
pub(super) fn with_entry<'p>(packet: Packet<'p>, entry: &'p mut [u8; ENTRY]) -> Option<Packet<'p>> {
    let length = usize::from(packet.header.short);
    if !(1..=MOST_WITHOUT_ENTRY).contains(&length) {
        return Some(packet);
    }
    let (first, data) = packet.bytes.split_first_chunk::<DATA>()?;
    let data = data.get(..length)?;
    let bytes = (INLINE + length).next_multiple_of(SEGMENT);
    let qpn_ds = packet.header.name.src() << 8 | (bytes / SEGMENT) as u32;
    entry[..DATA].copy_from_slice(first);
    entry[DATA..2 * DATA].copy_from_slice(&qpn_ds.to_be_bytes());
    entry[2 * DATA..SEGMENT].fill(0);
    entry[SEGMENT..INLINE].copy_from_slice(&(length as u32 | INLINE_FLAG).to_be_bytes());
    entry[INLINE..INLINE + length].copy_from_slice(data);
    entry[INLINE + length..bytes].fill(0);
    Some(Packet {
        bytes: &entry[..bytes],
        ..packet
    })
}

/// What a packet of this size makes likely. `None`: it is not such a message.
#[inline(always)]
pub(super) fn likely(size: Size) -> Option<Likely> {
    match size.short() {
        0 => None,
        1..=MOST_WITHOUT_ENTRY => Some(Likely::Short),
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

    /// Receives the message of the next packet, which begins with this line, and passes it. `ONE_LINE`: if it is in one
    /// line, without its entry; otherwise, if it is in several, with it. `FIRST`: as for [`RecvWork::receive_plain`].
    #[inline(always)]
    pub(super) fn receive_plain<const ONE_LINE: bool, const FIRST: bool>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        owing: &mut Owing,
        polled: Option<&mut PolledQueue>,
    ) -> Option<Passed> {
        let size = line.size();
        let length = size.short();
        let is_such = match ONE_LINE {
            true => without_entry(size).is_some(),
            false => length > MOST_WITHOUT_ENTRY && line.is_whole::<LONGEST>(),
        };
        if !is_such {
            return None;
        }
        // Before anything is checked: see `generation`.
        let generation = self.taken_away.now();
        let head = Head::of(line);
        let mut handed = false;
        let read = self.receive_by(
            peer,
            owing,
            head,
            || line.taken(),
            #[inline(always)]
            |ctx, work, _| {
                // SAFETY: the bytes of a packet, which is there until it is released, or of what is behind it.
                let received = unsafe {
                    let data = line.bytes(if ONE_LINE { DATA } else { INLINE });
                    RecvWork::receive_plain::<ONE_LINE, FIRST>(work, self, data, length, polled)
                };
                if ONE_LINE && received.is_some() {
                    self.note_checked::<false>(ctx, peer, head, work, generation);
                }
                handed = received == Some(true);
                received.is_some()
            },
        );
        Some(Passed {
            asked: read.asked()?,
            handed,
            next: match ONE_LINE {
                true => line.done_alone(),
                false => line.done(size.len()),
            },
        })
    }

    /// Notes what has been checked of the connection from which a message was received, since this generation. For the
    /// thread that has the turn to read the peer's packets. `SHARED`: into a shared receive queue.
    #[inline(always)]
    pub(super) fn note_checked<const SHARED: bool>(
        &self,
        ctx: &QpCtx,
        peer: &Peer,
        head: Head,
        work: &Option<RecvWork>,
        generation: u64,
    ) {
        let checked = &ctx.receiver.accepted.checked;
        if !checked.is::<SHARED, _>(peer, head.name, generation) {
            self.checked::<SHARED>(ctx, peer, head, work, generation);
        }
    }

    #[cold]
    #[inline(never)]
    fn checked<const SHARED: bool>(
        &self,
        ctx: &QpCtx,
        peer: &Peer,
        head: Head,
        work: &Option<RecvWork>,
        generation: u64,
    ) {
        let is_known = match work.as_ref().map(|work| &work.source) {
            Some(Receives::Own(queue)) => !SHARED && self.mrs.knows_now(&queue.local),
            Some(Receives::Shared(_)) => SHARED,
            Some(Receives::Xrc { .. }) | None => false,
        };
        if is_known {
            let life = &peer.segments.their_face(head.name.src()).life;
            let speaks = u32::from(head.number.life()) | SPEAKING;
            let checked = &ctx.receiver.accepted.checked;
            let seen = checked.seen();
            // Acquire: ordered behind that.
            let accepts = ctx.face.accepts.load(Ordering::Acquire);
            if peer.is_accepted(accepts, head.name) {
                checked.set::<SHARED, _>(seen, peer, head.name, generation, (life, speaks));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fabric::{Header, Kind, Name, Number};

    const FIRST: [u8; DATA] = [0, 0x12, 0x34, 0x0a];

    /// A packet of this data, whose header says that it is so long.
    fn packet(bytes: &[u8], short: u8) -> Packet<'_> {
        let name = Name::request(0x12_3456, 0x65_4321);
        let header = Header {
            short,
            ..Header::of(name, Number::new(1, 0))
        };
        Packet {
            kind: Kind::Request,
            header,
            bytes,
        }
    }

    #[test]
    fn the_entry_is_put_together_again() {
        for length in 1..=MOST_WITHOUT_ENTRY {
            let data: Vec<u8> = (0..length).map(|at| 100 + at as u8).collect();
            // Senders may write more than the data.
            let bytes = [&FIRST[..], &data, &[0xff; 2]].concat();
            let mut entry = [0xff; ENTRY];
            let whole = with_entry(packet(&bytes, length as u8), &mut entry).expect("all is there");
            let (ctrl, inline) = whole.bytes.split_at(SEGMENT);
            let segments = (INLINE + length).div_ceil(SEGMENT);
            assert_eq!(whole.bytes.len(), segments * SEGMENT);
            assert_eq!(ctrl[..DATA], FIRST);
            assert_eq!(ctrl[DATA..8], [0x65, 0x43, 0x21, segments as u8]);
            assert_eq!(ctrl[8..], [0; 8], "no flags, no immediate data");
            assert_eq!(inline[..4], (length as u32 | INLINE_FLAG).to_be_bytes());
            assert_eq!(inline[4..4 + length], data);
            assert!(inline[4 + length..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn what_is_not_all_there_is_no_message() {
        for length in 1..=MOST_WITHOUT_ENTRY {
            for there in 0..DATA + length {
                let bytes = vec![0x0a; there];
                let packet = packet(&bytes, length as u8);
                assert!(
                    with_entry(packet, &mut [0; ENTRY]).is_none(),
                    "{there} of {length}"
                );
            }
        }
    }

    #[test]
    fn other_packets_stay_as_they_are() {
        let bytes = [7; 3];
        for short in [0, MOST_WITHOUT_ENTRY + 1, MOST_SHORT] {
            let mut entry = [0; ENTRY];
            let same = with_entry(packet(&bytes, short as u8), &mut entry);
            assert_eq!(same.expect("not looked at").bytes, bytes);
        }
    }
}
