//! Datagrams: finding the destination of a request, and delivering it there.

use super::connection::datagrams;
use super::hca::Hca;
use super::qp::{QpCtx, SendWork};
use super::receive::{Message, Origin, Unfilled};
use super::remote;
use super::respond::Blame;
use super::run::Stop;
use bellwire_core::cqe::{Source, Syndrome};
use bellwire_core::wqe::{AddressVector, SendWqe};
use std::sync::atomic::Ordering;

/// The destination QP number for all queue pairs that are attached to a multicast group.
pub(super) const MULTICAST_QPN: u32 = 0xff_ffff;

/// In a request's Q_Key: use the queue pair's Q_Key instead (IBTA 10.2.5).
const CONTROLLED_QKEY: u32 = 1 << 31;

/// Sends a datagram. If it cannot be delivered, it is dropped.
pub(super) fn send(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'_>,
    message: &Message<'_>,
) -> Result<(), Stop> {
    let to = Address::read(work, &wqe.address_vector());
    if to.qpn == MULTICAST_QPN {
        // The members of groups are protected by the device's lock.
        return Err(Stop::UnderLock);
    }
    if !hca.port.is_up() {
        return Err(Stop::Dropped);
    }
    if hca.port.is_here(&to.av) {
        return deliver(hca, work.qpn, message, &to, to.qpn);
    }
    if let Some(there) = hca.other_node_of_datagram(&to.av) {
        remote::send_datagram(hca, there, work.qpn, message, &to)?;
    }
    Err(Stop::Dropped)
}

/// The destination of a request.
pub(super) struct Address {
    pub av: AddressVector,
    pub qpn: u32,
    pub qkey: u32,
}

impl Address {
    pub fn read(work: &SendWork, av: &AddressVector) -> Self {
        let qkey = av.qkey.get();
        Self {
            av: *av,
            qpn: av.dqp_dct.get() & 0xff_ffff,
            qkey: if qkey & CONTROLLED_QKEY == 0 {
                qkey
            } else {
                work.qkey
            },
        }
    }
}

/// Delivers a datagram from this port to one queue pair, if that accepts it.
pub(super) fn deliver(
    hca: &Hca,
    src: u32,
    message: &Message<'_>,
    to: &Address,
    qpn: u32,
) -> Result<(), Stop> {
    let grh = hca.port.route_header(&to.av, message.length as usize);
    let origin = Origin {
        source: Source {
            qpn: src,
            slid: hca.port.lid(),
            sl: to.av.stat_rate_sl & 0xf,
            dlid_path_bits: 0,
            grh: grh.is_some(),
        },
        grh,
    };
    deliver_to(hca, message, &origin, to.qkey, qpn)
}

/// Delivers a datagram of any origin to one queue pair, if that accepts it; otherwise drops it.
pub(super) fn deliver_to(
    hca: &Hca,
    message: &Message<'_>,
    origin: &Origin,
    qkey: u32,
    qpn: u32,
) -> Result<(), Stop> {
    // SAFETY: used while the device lives, which this thread's queue pair ensures.
    let Some(peer) = (unsafe { hca.qps.find(qpn) }) else {
        return Err(Stop::Dropped);
    };
    match put(hca, message, origin, qkey, qpn, peer) {
        // Without a receive, the datagram is dropped.
        Ok(()) => Ok(()),
        Err(Unfilled::Empty | Unfilled::Gone) => Err(Stop::Dropped),
        Err(Unfilled::Unread) => Err(Stop::local(Syndrome::LOCAL_PROT)),
        Err(Unfilled::Failed(_)) => Err(Stop::Receiver(Blame::Receive)),
        Err(Unfilled::Overrun) => Err(Stop::Receiver(Blame::Overrun)),
    }
}

fn put(
    hca: &Hca,
    message: &Message<'_>,
    origin: &Origin,
    qkey: u32,
    qpn: u32,
    peer: &QpCtx,
) -> Result<(), Unfilled> {
    // Acquire: pairs with the Release at the transition to RTR, so that the receive side is set up. A thread
    // that takes it away waits for this section.
    let accepts = peer.rights.accepts.load(Ordering::Acquire);
    // Relaxed: written before `accepts`.
    if accepts != datagrams(qpn) || peer.rights.qkey.load(Ordering::Relaxed) != qkey {
        return Err(Unfilled::Gone);
    }
    let _turn = peer.receiver.turn.take();
    // SAFETY: the queue pair accepts datagrams, and this thread has the turn.
    let Some(recv) = (unsafe { &mut *peer.receiver.work.get() }) else {
        return Err(Unfilled::Gone);
    };
    recv.receive_datagram(hca, message, origin)
}
