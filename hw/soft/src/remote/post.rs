//! Sends the packet of a request: its header, and the state that changes once it has been sent.

use super::super::hca::Hca;
use super::super::qp::{QpCtx, SendWork};
use super::packet::{Form, Piece};
use super::{ASKS, Remote};
use crate::fabric::{CarriedAck, Header, Number, Peer, Send};
use bellwire_core::wqe::{BASIC_BLOCK, fm_ce_se};
use std::sync::atomic::Ordering;

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

    /// The header of a packet that carries the pending acknowledgement. Of a SEND this is [`Header::short`].
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

/// Sends a request's packet, or that of a part of it if it is not the `last`. The caller then calls [`Hca::after_send`] for
/// the peer, if it was the last one. `asks`: the request is signalled.
///
/// # Safety
/// Each piece is readable.
#[inline(always)]
pub(super) unsafe fn post_packet(
    hca: &Hca,
    work: &mut SendWork,
    asks: bool,
    last: bool,
    form: &Form,
    front: &[u64; BASIC_BLOCK / 8],
    pieces: &[Piece],
) -> Result<&'static Peer, Send> {
    let remote = work.remote.as_mut().ok_or(Send::Gone)?;
    let (own, peer) = (work.own, remote.handle.peer());
    let heading = Heading::of(remote, own, form.flags | if asks { ASKS } else { 0 });
    let to = hca.sending(peer)?;
    // SAFETY: as the caller guarantees.
    unsafe { form.send(to, remote.incarnation, heading, front, pieces) }?;
    // The last part carries the same number.
    if last {
        own.sender.pass_number();
        remote.asks = false;
    }
    Ok(peer)
}
