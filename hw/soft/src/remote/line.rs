//! Messages that arrive in one line: a SEND of up to 20 bytes inline, with or without immediate data. They are
//! received straight from the line, of which nothing is copied before it is checked but what is checked. (Of 13
//! bytes and more the entry's padding is in a second line, which is not looked at.)
//!
//! What is not such a message, or is not received with success, changes nothing here: the packet stays where it
//! is, and [`unlocked`](super::unlocked) looks at it next.

use super::super::copy::SHORT;
use super::super::hca::Hca;
use super::super::receive::ShortMessage;
use super::unlocked::{ASKED, Head, INLINE, Read};
use crate::fabric::{CARRIES_ACK, IN_LINE, Kind, Owing, Peer};
use bellwire_core::be::Be32;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::{INLINE_FLAG, SEGMENT, fm_ce_se, opcode};

/// Most bytes of data.
const MOST: usize = IN_LINE - INLINE;

const _: () = assert!(MOST <= SHORT);

/// Most bytes of a packet with that much data, which is padded to whole segments.
const LONGEST: usize = (INLINE + MOST).next_multiple_of(SEGMENT);

impl Hca {
    /// Receives the message of the next packet, which is there, and passes it. A function of its own, so that few values
    /// are held meanwhile.
    #[inline(never)]
    pub(super) fn receive_line(&self, peer: &Peer, owing: &mut Owing) -> Read {
        let line = peer.reader.first();
        let (to, size, entry) = (line.to(), line.size(), line.wide(0));
        let Some(kind) = kind((entry >> 24) as u8) else {
            return Read::No;
        };
        // Without the flag, far too long.
        let length = (u32::from_be(line.wide(SEGMENT) as u32) ^ INLINE_FLAG) as usize;
        let in_line = to >> 24 == Kind::Request as u32
            && (size & !(ASKED | CARRIES_ACK)) as usize <= LONGEST
            && length.wrapping_sub(1) < MOST;
        if !in_line {
            return Read::No;
        }
        let head = Head::of(line, to, entry, size);
        let taken = || (size & CARRIES_ACK != 0).then(|| line.taken());
        let read = self.receive_by(
            peer,
            owing,
            head,
            taken,
            #[inline(always)]
            |_, recv| {
                let flags = line.wide(8);
                let message = ShortMessage {
                    kind,
                    imm: Be32::from_raw((flags >> 32) as u32),
                    solicited: (flags >> 24) as u8 & fm_ce_se::SOLICITED != 0,
                    length,
                    data: line.bytes(INLINE),
                };
                // SAFETY: the bytes of a line, which is there until it is released, and no more of them.
                unsafe { recv.receive_short_arrived(self, &message) }
            },
        );
        if read != Read::No {
            line.done(size & 0xffff);
        }
        read
    }
}

/// The opcode of the completion of a SEND's receive.
#[inline(always)]
fn kind(opcode: u8) -> Option<CqeOpcode> {
    match opcode {
        opcode::SEND => const { CqeOpcode::of_receive(WrOpcode::Send) },
        opcode::SEND_IMM => const { CqeOpcode::of_receive(WrOpcode::SendWithImm) },
        _ => None,
    }
}
