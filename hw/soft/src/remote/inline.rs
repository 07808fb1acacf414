//! Messages whose data is inline in the packet's entry, in one piece: SENDs of up to 768 bytes, with or without immediate
//! data, which is what senders make of inline data and of registered memory. They are received straight from the packet,
//! of which nothing is copied before it is checked but what is checked. Whether the receive is of a shared queue is
//! guessed, because the code is not the same: by what became of the peer's last message that was received otherwise. Plain
//! ones of up to 127 bytes to a queue pair's own queue have code of their own: see [`plain`](super::plain).
//!
//! What is not such a message, or is not received with success, changes nothing here: the packet stays where it
//! is, and [`unlocked`](super::unlocked) looks at it next.

use super::super::hca::Hca;
use super::super::polled::PolledQueue;
use super::super::receive::{InlineMessage, RecvWork};
use super::ASKS;
use super::entry::INLINE;
use super::plain;
use super::post::IN_ENTRY;
use super::unlocked::{Head, Passed};
use crate::fabric::{Besides, InPlace, Owing, Peer};
use bellwire_core::be::Be32;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::{INLINE_FLAG, SEGMENT, fm_ce_se, opcode};

/// Most bytes of a packet, whose data is padded to whole segments.
const LONGEST: usize = (INLINE + IN_ENTRY as usize).next_multiple_of(SEGMENT);

/// What a packet may say besides that it has such a message.
const ANY: Besides = Besides::ack_and(ASKS).and_short();

/// A message whose data is in the packet, as the packet has it.
struct CarriedMessage<'p> {
    /// The packet's first line.
    line: InPlace<'p>,
    /// Length of the payload; with other flags, or if it is another message, far too long.
    whole: usize,
    /// Where in the payload the data begins.
    at: usize,
    kind: CqeOpcode,
    /// Bytes of data.
    length: usize,
}

impl Hca {
    /// Like [`receive_inline`](Self::receive_inline), without its code.
    #[inline(never)]
    pub(super) fn receive_another_inline<const SHARED: bool>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        owing: &mut Owing,
    ) -> Option<Passed> {
        self.receive_inline::<SHARED>(peer, line, owing, None)
    }

    /// Receives the message of the next packet, which begins with this line, and passes it. With `SHARED` to a shared
    /// receive queue, otherwise to a queue pair's own, to which [`plain`] receives the plain ones. A plain one without its
    /// entry, of a shared queue, may be handed to the poll.
    #[inline(always)]
    pub(super) fn receive_inline<const SHARED: bool>(
        &self,
        peer: &Peer,
        line: InPlace<'_>,
        owing: &mut Owing,
        polled: Option<&mut PolledQueue>,
    ) -> Option<Passed> {
        let size = line.size();
        if SHARED && let Some(length) = plain::without_entry(size) {
            let packet = CarriedMessage {
                line,
                whole: size.len_if(0, ANY),
                at: plain::DATA,
                kind: CqeOpcode::RespSend,
                length,
            };
            let none = || (Be32::new(0), false);
            return self.receive_carried::<SHARED, true>(peer, owing, &packet, polled, none);
        }
        let packet = CarriedMessage {
            line,
            whole: size.len_if(0, if SHARED { ANY } else { Besides::ack_and(ASKS) }),
            at: INLINE,
            kind: kind(line.at(0).to_ne_bytes()[3])?,
            // Without the flag, far too long.
            length: (u32::from_be(line.at(SEGMENT)) ^ INLINE_FLAG) as usize,
        };
        self.receive_carried::<SHARED, false>(peer, owing, &packet, None, || {
            let solicited = line.at(8).to_ne_bytes()[3] & fm_ce_se::SOLICITED != 0;
            (Be32::from_raw(line.at(12)), solicited)
        })
    }

    /// Like [`receive_inline`](Self::receive_inline), of this message. `imm` is its immediate
    /// data, and whether the completion is solicited. `ONE_LINE`: it has no entry.
    #[inline(always)]
    fn receive_carried<const SHARED: bool, const ONE_LINE: bool>(
        &self,
        peer: &Peer,
        owing: &mut Owing,
        packet: &CarriedMessage<'_>,
        polled: Option<&mut PolledQueue>,
        imm: impl FnOnce() -> (Be32, bool),
    ) -> Option<Passed> {
        let &CarriedMessage {
            line,
            whole,
            at,
            kind,
            length,
        } = packet;
        // Of fewer bytes than that, far too long, too. Whether it is a request at all is a part of the connection's name,
        // below.
        let room = whole.wrapping_sub(at);
        let is_inline =
            room <= LONGEST - at && length.wrapping_sub(1) < room && line.is_whole::<LONGEST>();
        if !is_inline {
            return None;
        }
        // Before anything is checked: see `generation`.
        let generation = (SHARED && ONE_LINE).then(|| self.taken_away.now());
        let head = Head::of(line);
        let taken = || line.taken();
        let mut handed = false;
        let read = self.receive_by(
            peer,
            owing,
            head,
            taken,
            #[inline(always)]
            |ctx, work, _| {
                let message = InlineMessage {
                    kind,
                    length,
                    data: line.bytes(at),
                };
                if !SHARED {
                    // SAFETY: the bytes of a packet, which is there until it is released, and no more of them.
                    return unsafe { RecvWork::receive_inline(work, self, &message, imm) };
                }
                let polled = polled.filter(|polled| {
                    (work.as_ref()).is_some_and(|work| work.hands_shared_to(polled))
                });
                handed = polled.is_some();
                // SAFETY: as above; only a message without its entry may be handed over.
                let received =
                    unsafe { RecvWork::receive_inline_shared(work, self, &message, polled, imm) };
                if let Some(generation) = generation.filter(|_| received) {
                    self.note_checked::<true>(ctx, peer, head, work, generation);
                }
                received
            },
        );
        Some(Passed {
            asked: read.asked()?,
            handed,
            next: line.done(whole),
        })
    }
}

/// Whether a packet, which begins with this line, may have such a message.
#[inline(always)]
pub(super) fn is_send(line: InPlace<'_>) -> bool {
    kind(line.at(0).to_ne_bytes()[3]).is_some()
}

/// The opcode of the completion of a SEND's receive.
#[inline(always)]
fn kind(opcode: u8) -> Option<CqeOpcode> {
    const KINDS: [Option<CqeOpcode>; 2] = [
        CqeOpcode::of_receive(WrOpcode::Send),
        CqeOpcode::of_receive(WrOpcode::SendWithImm),
    ];
    const _: () = assert!(opcode::SEND + 1 == opcode::SEND_IMM);
    // As one comparison.
    match opcode.wrapping_sub(opcode::SEND) {
        with_imm @ 0..=1 => KINDS[usize::from(with_imm)],
        _ => None,
    }
}
