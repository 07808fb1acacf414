//! Sends the packet of a request: its header, and what is known once it has been sent.

use super::super::hca::Hca;
use super::super::qp::{QpCtx, SendWork};
use super::super::run::Stop;
use super::{ASKS, MORE, Remote, UNRELIABLE, taken_of};
use crate::fabric::{Header, Kind, Peer, Send};
use bellwire_core::wqe::fm_ce_se;
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

/// Longest data that travels as inline data of the entry, after its other segments.
pub(super) const IN_ENTRY: u64 = 768;

/// Longest data that travels in one packet. Longer data is fetched by the responder, if it has the memory
/// mapped, or travels in several packets.
pub(super) const IN_PACKET: u64 = 4096;

/// Outcome of an entry.
pub(super) enum Step {
    /// Its packet has been sent.
    Sent,
    /// It was executed without a packet; its byte count.
    Done(u32),
}

/// Whether a message with these flags waits until those before it are acknowledged.
#[inline(always)]
pub(super) fn is_held(work: &SendWork, flags: u8) -> bool {
    let held = flags & fm_ce_se::FENCE == fm_ce_se::FENCE
        || work.remote.as_ref().is_some_and(|remote| remote.asks);
    // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
    held && work.own.sender.acked.load(Ordering::Acquire) != work.consumer
}

/// Whether no packet has been sent for the current entry. Otherwise the peer may have executed it: only its
/// number prevents that it is executed twice, or that the next one is taken for it.
#[inline(always)]
pub(super) fn is_new(work: &SendWork) -> bool {
    work.remote
        .as_ref()
        .is_some_and(|remote| (work.consumer.wrapping_sub(remote.sent_to) as i32) >= 0)
}

/// What the header of a request's packet is made of.
#[derive(Clone, Copy)]
pub(super) struct Heading<'w> {
    remote: &'w Remote,
    own: &'static QpCtx,
    connection: &'w u64,
    /// The acknowledgement that the queue pair's responder owes.
    owed: u64,
    flags: u8,
}

impl Heading<'_> {
    #[inline(always)]
    pub fn header(self) -> Header {
        Header {
            kind: Kind::Request,
            // A requester's connection is named by the two numbers, without a LID.
            dst: (*self.connection >> 32) as u32,
            src: *self.connection as u32,
            msn: self.remote.msn,
            life: self.remote.life,
            taken: owed_ack(self.own, self.owed),
            flags: self.flags,
            short: 0,
        }
    }

    /// The header of a SEND of which this is [`Header::short`].
    #[inline(always)]
    pub fn header_of(self, short: u8) -> Header {
        Header {
            short,
            ..self.header()
        }
    }
}

/// Sends a request's packet by `send`, or one of its parts if it is not `LAST`. `asks`: the request is
/// signalled.
#[inline(always)]
pub(super) fn post<const LAST: bool>(
    hca: &Hca,
    work: &mut SendWork,
    idle: bool,
    asks: bool,
    flags: u8,
    send: impl FnOnce(&Peer, u64, Heading<'_>) -> Result<(), Send>,
) -> Result<Step, Stop> {
    let reliable = !matches!(work.transport, QpType::Uc);
    let flags = flags | (if reliable { 0 } else { UNRELIABLE }) | (if LAST { 0 } else { MORE });
    match post_packet::<LAST>(work, asks, flags, send) {
        Ok(peer) => {
            if LAST {
                hca.after_send(peer);
            }
            Ok(Step::Sent)
        }
        Err(Send::Full) => Err(Stop::Full),
        // An unreliable service drops what the peer does not accept.
        Err(Send::Gone) if !reliable && idle => Ok(Step::Done(0)),
        Err(Send::Gone) => Err(Stop::NoAnswer),
    }
}

/// Like [`post`]. The caller then calls [`Hca::after_send`] for the peer, if it was the last part.
#[inline(always)]
pub(super) fn post_packet<const LAST: bool>(
    work: &mut SendWork,
    asks: bool,
    flags: u8,
    send: impl FnOnce(&Peer, u64, Heading<'_>) -> Result<(), Send>,
) -> Result<&'static Peer, Send> {
    let remote = work.remote.as_mut().ok_or(Send::Gone)?;
    post_to::<LAST>(remote, work.own, &work.connection, asks, flags, send)
}

/// Like [`post_packet`], by the work's parts.
#[inline(always)]
pub(super) fn post_to<const LAST: bool>(
    remote: &mut Remote,
    own: &'static QpCtx,
    connection: &u64,
    asks: bool,
    flags: u8,
    send: impl FnOnce(&Peer, u64, Heading<'_>) -> Result<(), Send>,
) -> Result<&'static Peer, Send> {
    // Relaxed: the value is independent; a repeated acknowledgement does no harm.
    let owed = own.sender.owed.load(Ordering::Relaxed);
    let heading = Heading {
        remote,
        own,
        connection,
        owed,
        flags: flags | (if asks { ASKS } else { 0 }),
    };
    let peer = remote.door.peer();
    send(peer, remote.incarnation, heading)?;
    // The last part carries the same number, and repeats the acknowledgement.
    if LAST {
        remote.msn = remote.msn.wrapping_add(1);
        // Within the section: a thread that sees the response earlier waits until the section is left.
        // Release: pairs with the Acquire in `Hca::take_answer`; the entry comes before.
        (own.sender.sent).store(remote.msn.into(), Ordering::Release);
        remote.asks = false;
        // Relaxed: the value is independent; a repeated acknowledgement does no harm.
        own.sender.ack_sent.store(owed, Ordering::Relaxed);
    }
    Ok(peer)
}

/// The acknowledgement that the queue pair's responder owes, unless a packet has carried it, or the holder of
/// the lock has sent it. It may be sent twice, which does no harm.
#[inline(always)]
fn owed_ack(own: &QpCtx, owed: u64) -> Option<(u16, u16)> {
    // Relaxed: each value is independent.
    let ack_sent = own.sender.ack_sent.load(Ordering::Relaxed);
    (owed != ack_sent).then(|| taken_of(owed))
}
