//! What the two ends of a connection have to agree about, for the responder to take the requester's packets: the first
//! packet sequence number (PSN), and the path MTU. No packets are counted here, because a message is executed whole;
//! both are compared when the first request of a life arrives, under the device's lock.
//!
//! - **PSN** (IBTA 9.7.4.1). A reliable responder that expects another PSN takes none of the requester's packets. One
//!   behind the expected is a duplicate, one ahead is answered by a NAK and sent again. Either way nothing is executed,
//!   and the requester gives up when its retries are used up (`RETRY_EXC_ERR`). An unreliable responder takes the first
//!   packet of a message with any PSN (IBTA 9.8.2.2), so there is nothing to compare.
//! - **A later life of the requester** continues no earlier one: a reliable responder that has taken requests of one life
//!   takes none of another until it is connected again.
//! - **Path MTU** (IBTA 9.7.4.1.6). A message that is longer than the smaller of the two has packets whose length is wrong for
//!   the responder: a reliable one answers `REM_INV_REQ_ERR`, an unreliable one drops it. The responses of such a READ have
//!   other PSNs than the requester expects, so it gives up. Shorter messages pass. Connections whose MTUs are equal need
//!   no check of lengths; the others are never opened to the data path: each of their requests is a first one.

use super::connection::{SPENT, UNTRIED, connection};
use super::control::Control;
use super::hca::Hca;
use super::journal::message_bytes;
use super::qp::QpCtx;
use super::respond::Blame;
use super::run::Stop;
use crate::event::EventType;
use bellwire_core::cqe::Syndrome;
use bellwire_core::qp::{Mtu, QpAttr, QpState};
use bellwire_core::wqe::SendWqe;
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

/// How a requester's packets are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packets {
    /// The PSN of the first one.
    psn: u32,
    /// The path MTU. `None`: what a peer has published is none.
    mtu: Option<Mtu>,
}

/// Where the MTU is in the word that a peer reads.
const MTU_AT: u32 = 24;

impl Packets {
    /// As a requester with these attributes makes them.
    pub fn of(attr: &QpAttr) -> Self {
        Self {
            psn: attr.sq_psn,
            mtu: Some(attr.path_mtu),
        }
    }

    /// For the peer's process.
    pub fn word(self) -> u32 {
        self.psn | u32::from(self.mtu.map_or(0, Mtu::number)) << MTU_AT
    }

    /// As a peer's process has published them.
    pub fn of_word(word: u32) -> Self {
        Self {
            psn: word & ((1 << MTU_AT) - 1),
            mtu: Mtu::from_number((word >> MTU_AT) as u8),
        }
    }
}

/// Whether a responder takes the requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// It does, from here on on the data path. Or another thread has found out, or it is no longer connected so: the
    /// data path looks again.
    Accepted,
    /// It takes nothing.
    Refused,
    /// Only messages of at most as many bytes, one by one under the device's lock.
    UpTo(u32),
}

impl Hca {
    /// Compares the packets of a connection with those that its responder expects, when its first request arrives. In RTR,
    /// this raises `COMM_EST`.
    pub(super) fn first_packet(
        &self,
        control: &mut Control,
        peer: u32,
        taken: u64,
        packets: Packets,
    ) -> First {
        let Some(record) = control.record(peer) else {
            return First::Accepted;
        };
        let accepts = &record.ctx.rights.accepts;
        // Relaxed: changed under the lock.
        if accepts.load(Ordering::Relaxed) != taken | UNTRIED {
            return First::Accepted;
        }
        let reliable = record.parts.transport != QpType::Uc;
        let Some(mtu) = packets.mtu else {
            return First::Refused;
        };
        if reliable && packets.psn != record.attr.rq_psn {
            return First::Refused;
        }
        if record.state == QpState::Rtr && !record.established {
            record.raise(EventType::CommEst);
        }
        record.established = true;
        if mtu != record.attr.path_mtu {
            return First::UpTo(mtu.min(record.attr.path_mtu).bytes());
        }
        // Release: pairs with the Acquire in `Responder::find`.
        accepts.store(taken, Ordering::Release);
        self.show_responder(record);
        First::Accepted
    }

    /// Executes the current entry of a connection that takes messages of at most `longest` bytes. `true`: it has been
    /// executed, and the next one may be.
    pub(super) fn execute_up_to(&self, control: &mut Control, qpn: u32, longest: u32) -> bool {
        let Some(record) = control.record(qpn) else {
            return false;
        };
        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the work. It is copied, because the
        // calls below may access the queue pair again.
        let Some(work) = (unsafe { *record.ctx.sender.work.get() }) else {
            return false;
        };
        // SAFETY: posted and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, work.consumer) };
        let done = match too_long(work.transport, &wqe, None, longest) {
            Some(stop) => Err(stop),
            None => accepting(work.peer, work.connection, || {
                self.execute_unreported(control, &work, &wqe)
            }),
        };
        match done {
            Ok(bytes) => self.executed(control, qpn, bytes),
            Err(stop) => self.handle(control, qpn, stop),
        }
    }

    /// A requester's life has ended: a reliable responder that has taken its requests takes none of a later life, as their
    /// PSNs do not continue those. An unreliable one compares anew.
    pub(super) fn end_requests(&self, control: &mut Control, qpn: u32, peer: u32) {
        let taken = connection(peer, qpn);
        if let Some(record) = control.record(peer) {
            let accepts = &record.ctx.rights.accepts;
            // Relaxed, both: changed under the lock, and the requester, who alone looks for it, executes nothing.
            if accepts.load(Ordering::Relaxed) == taken {
                let later = match record.parts.transport {
                    QpType::Uc => UNTRIED,
                    QpType::Rc | QpType::Ud | QpType::XrcSend | QpType::XrcRecv | QpType::Dci => {
                        SPENT
                    }
                };
                accepts.store(taken | later, Ordering::Relaxed);
            }
        }
    }
}

/// Runs `execute` while the responder accepts this connection, which it otherwise has not tried yet. Under the device's
/// lock: readers without it see either.
pub(super) fn accepting<R>(peer: &QpCtx, taken: u64, execute: impl FnOnce() -> R) -> R {
    let accepts = &peer.rights.accepts;
    // Relaxed, all: changed under the lock, which orders what the lock's next holder finds.
    let untried = (taken | UNTRIED, Ordering::Relaxed);
    let _tried = accepts.compare_exchange(untried.0, taken, untried.1, Ordering::Relaxed);
    let done = execute();
    // Unless it was taken away meanwhile.
    let _untried = accepts.compare_exchange(taken, untried.0, untried.1, Ordering::Relaxed);
    done
}

/// What becomes of a request whose message, of `bytes` if they are not in the entry, is longer than the responder takes.
pub(super) fn too_long(
    transport: QpType,
    wqe: &SendWqe<'_>,
    bytes: Option<u64>,
    longest: u32,
) -> Option<Stop> {
    let operation = wqe.operation()?;
    let bytes = bytes.unwrap_or_else(|| message_bytes(transport, wqe));
    if operation.row().layout.is_local() || bytes <= longest.into() {
        return None;
    }
    Some(match transport {
        QpType::Uc => Stop::Dropped,
        _ if operation.has_result() => Stop::NoAnswer,
        QpType::Rc | QpType::Ud | QpType::XrcSend | QpType::XrcRecv | QpType::Dci => Stop::Failed {
            syndrome: Syndrome::REMOTE_INVAL_REQ,
            responder: Some(Blame::Request),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_as_they_were_published() {
        for (psn, mtu) in [
            (0, Mtu::Mtu256),
            (0xff_ffff, Mtu::Mtu4096),
            (0x12_3456, Mtu::Mtu1024),
        ] {
            let packets = Packets {
                psn,
                mtu: Some(mtu),
            };
            assert_eq!(Packets::of_word(packets.word()), packets);
        }
        // What an unused place has, and whatever a peer writes.
        for word in [0, 6 << MTU_AT, u32::MAX] {
            assert_eq!(Packets::of_word(word).mtu, None);
        }
    }
}
