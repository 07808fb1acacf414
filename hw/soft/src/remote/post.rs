//! Sends the packet of a request: its header, and the state that changes once it has been sent.

use super::super::hca::Hca;
use super::super::qp::{QpCtx, SendWork};
use super::super::run::Stop;
use super::{ASKS, MORE, Remote, UNRELIABLE};
use crate::fabric::{CarriedAck, Header, Number, Peer, Send, Sending};
use bellwire_core::cqe::Syndrome;
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
    flags: u8,
}

/// The pending acknowledgement of a queue pair: once it is carried, it counts as sent.
pub(super) struct OwnAck(&'static QpCtx);

impl CarriedAck for OwnAck {
    #[inline(always)]
    fn carried(self) -> Option<Number> {
        let pending = self.0.pending_ack()?;
        self.0.acknowledged(pending);
        Some(pending.last)
    }
}

impl<'w> Heading<'w> {
    #[inline(always)]
    pub fn of(remote: &'w Remote, own: &'static QpCtx, flags: u8) -> Self {
        Self { remote, own, flags }
    }

    /// The header of a packet that carries the pending acknowledgement.
    #[inline(always)]
    pub fn header(self) -> Header<OwnAck> {
        self.header_of(0)
    }

    /// The same, of a SEND of which this is [`Header::short`].
    #[inline(always)]
    pub fn header_of(self, short: u8) -> Header<OwnAck> {
        Header {
            name: self.remote.name,
            // Relaxed: only this thread changes it.
            number: self.own.sender.number(Ordering::Relaxed),
            ack: OwnAck(self.own),
            flags: self.flags,
            short,
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
    send: impl FnOnce(Sending<'_>, u64, Heading<'_>) -> Result<(), Send>,
) -> Result<Step, Stop> {
    let reliable = !matches!(work.transport, QpType::Uc);
    let flags = flags | (if reliable { 0 } else { UNRELIABLE }) | (if LAST { 0 } else { MORE });
    match post_packet::<LAST>(hca, work, asks, flags, send) {
        Ok(peer) => {
            if LAST {
                hca.after_send(peer);
            }
            Ok(Step::Sent)
        }
        Err(Send::Full) => Err(Stop::Full),
        Err(Send::Held) => Err(Stop::Held),
        Err(Send::Unread) => Err(Stop::local(Syndrome::LOCAL_PROT)),
        // An unreliable service drops what the peer does not accept.
        Err(Send::Gone) if !reliable && idle => Ok(Step::Done(0)),
        Err(Send::Gone) => Err(Stop::NoAnswer),
    }
}

/// Like [`post`]. The caller then calls [`Hca::after_send`] for the peer, if it was the last part.
#[inline(always)]
pub(super) fn post_packet<const LAST: bool>(
    hca: &Hca,
    work: &mut SendWork,
    asks: bool,
    flags: u8,
    send: impl FnOnce(Sending<'_>, u64, Heading<'_>) -> Result<(), Send>,
) -> Result<&'static Peer, Send> {
    let remote = work.remote.as_mut().ok_or(Send::Gone)?;
    let (own, peer) = (work.own, remote.handle.peer());
    let flags = flags | (if asks { ASKS } else { 0 });
    let heading = Heading::of(remote, own, flags);
    send(hca.sending(peer)?, remote.incarnation, heading)?;
    // The last part carries the same number.
    if LAST {
        own.sender.pass_number();
        remote.asks = false;
    }
    Ok(peer)
}
