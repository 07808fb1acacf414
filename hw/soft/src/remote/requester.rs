//! The requester: sends entries as packets. On the poster's thread, within its section.

use super::super::execute::last_entry;
use super::super::gate::Way;
use super::super::hca::Hca;
use super::super::lists::{MAX_MESSAGE, incoming, outgoing};
use super::super::one_sided::transfer_there;
use super::super::qp::SendWork;
use super::super::record::QpRecord;
use super::super::run::{Stop, complete};
use super::super::turn::Thread;
use super::direct;
use super::eager::sent_eagerly;
use super::outgoing::Outgoing;
use super::post::{Step, is_new};
use super::send::{LONGER, ShortSend, WITH_IMM, wrote};
use crate::fabric::{Peer, Send};
use bellwire_core::cqe::Syndrome;
use bellwire_core::op::{Layout, opcode};
use bellwire_core::wqe::{FirstBlock, Request, SendWqe};
use bellwire_core::wr::QpType;
use std::sync::atomic::Ordering;

/// Executes entries from `work.consumer` up to `producer`, like [`run`](super::super::run::run).
#[inline(never)]
pub(in super::super) fn run(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
    let sender = &work.own.sender;
    while work.consumer != producer {
        let counter = work.consumer;
        // SAFETY: posted and not completed, so the poster does not write it.
        let block = unsafe { FirstBlock::read(work.ring, counter) };
        let posted = producer.wrapping_sub(counter);
        if work.way == Way::There {
            // SAFETY: just found.
            match unsafe { sent_message(hca, work, block, posted) } {
                Ok(Some(peer)) => {
                    hca.after_send(peer);
                    continue;
                }
                Ok(None) => {}
                Err(stop) => return Some(stop),
            }
        }
        // SAFETY: posted and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, counter) };
        // Acquire: pairs with the Release in `Hca::acknowledge`, which has completed the entries before.
        let idle = sender.acked.load(Ordering::Acquire) == counter;
        let step = if wqe.blocks().wrapping_sub(1) >= posted {
            // The entry's size is zero, or exceeds what was posted.
            Err(Stop::local(Syndrome::LOCAL_QP_OP))
        } else if idle
            && wqe.opcode() == opcode::RDMA_WRITE
            && work.way == Way::There
            && is_new(work)
            // SAFETY: its way is that.
            && unsafe { wrote::<true>(work, block, last_entry(block)) || wrote::<false>(work, block, last_entry(block)) }
        {
            Ok(Step::Done(0))
        } else if idle
            && matches!(wqe.opcode(), opcode::RDMA_WRITE | opcode::RDMA_READ)
            && work.way == Way::There
            && let Some(transfer) = transfer_there(hca, work, block)
        {
            Ok(Step::Done(transfer.bytes()))
        } else {
            step(hca, work, &wqe, idle)
        };
        let next = counter.wrapping_add(wqe.blocks());
        match step {
            Ok(Step::Sent) => {}
            Ok(Step::Done(bytes)) => {
                // Relaxed: no other thread completes requests while none is outstanding.
                sender.acked.store(next, Ordering::Relaxed);
                if !complete(work, &wqe, counter, bytes) {
                    return Some(Stop::Overrun);
                }
            }
            // These wait for no request.
            Err(why @ (Stop::Full | Stop::Held)) => return Some(why),
            // Outstanding requests come first; the error occurs again once they have completed.
            Err(_) if !idle => return Some(Stop::Unacknowledged),
            Err(why) => return Some(why),
        }
        work.consumer = next;
    }
    None
}

/// Sends the current entry, if it is a message that travels whole in one packet, and passes it. `None`: nothing has
/// changed. A short SEND whose turn another thread holds is not tried otherwise.
///
/// # Safety
/// The work's way is [`Way::There`].
#[inline(always)]
unsafe fn sent_message(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
    posted: u32,
) -> Result<Option<&'static Peer>, Stop> {
    let sent = match block.opcode() {
        // SAFETY: the caller guarantees it.
        opcode::SEND => unsafe { sent_alone::<LONGER>(hca, work, block) }?,
        // SAFETY: likewise.
        opcode::SEND_IMM => unsafe { sent_alone::<WITH_IMM>(hca, work, block) }?,
        opcode::RDMA_WRITE_IMM => None,
        _ => return Ok(None),
    };
    Ok(sent.or_else(|| sent_eagerly(hca, work, block, posted)))
}

/// Likewise, if it is a short SEND: see [`send`](super::send).
///
/// # Safety
/// That of [`sent_message`].
#[inline(always)]
unsafe fn sent_alone<const KIND: u8>(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
) -> Result<Option<&'static Peer>, Stop> {
    let own = work.own;
    // SAFETY: the caller guarantees it.
    let Some(send) = (unsafe { ShortSend::<KIND>::of(work, own, block, last_entry(block)) }) else {
        return Ok(None);
    };
    let peer = send.peer();
    let to = match peer.writer.held(Thread::current()) {
        Some(to) => Ok(to),
        None => hca.sending(peer),
    };
    match to.and_then(|to| send.through(to)) {
        Ok(()) => Ok(Some(peer)),
        Err(Send::Held) => Err(Stop::Held),
        Err(_) => Ok(None),
    }
}

#[inline(never)]
fn step(hca: &Hca, work: &mut SendWork, wqe: &SendWqe<'_>, idle: bool) -> Result<Step, Stop> {
    let Ok(request) = wqe.request(work.transport) else {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    };
    let operation = request.operation();
    match operation.row().layout {
        Layout::Control | Layout::Registration if !idle => return Err(Stop::Unacknowledged),
        Layout::Control => return Ok(Step::Done(0)),
        Layout::Registration => return Err(Stop::UnderLock),
        Layout::Message | Layout::Memory | Layout::CompareAndSwap | Layout::FetchAndAdd => {}
    }
    // A response acknowledges all requests before it, but carries the data of only one READ or atomic.
    if !idle && work.remote.as_ref().is_some_and(|remote| remote.asks) {
        return Err(Stop::Unacknowledged);
    }
    // Fence: the data to be sent may be the result of an earlier READ or atomic.
    if request.is_fenced() && !idle {
        return Err(Stop::Unacknowledged);
    }
    // A result is written as it arrives, so all earlier requests have to be acknowledged before.
    if operation.has_result() && !idle {
        return Err(Stop::Unacknowledged);
    }
    if idle
        && one_sided(work, &request)
        && is_new(work)
        && let Some(bytes) = direct::execute(hca, work, &request)?
    {
        return Ok(Step::Done(bytes));
    }
    if !operation.has_result() {
        let length = outgoing(hca, work, request.data())?;
        return Outgoing::new(hca, work, &request, length).send(hca, work, idle);
    }
    let length = incoming(hca, work, request.data())?;
    let fits = match operation.row().layout {
        Layout::CompareAndSwap | Layout::FetchAndAdd => length == size_of::<u64>() as u64,
        Layout::Control | Layout::Registration | Layout::Message | Layout::Memory => {
            length <= MAX_MESSAGE
        }
    };
    if !fits {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    if work.max_rd_atomic == 0 {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    }
    let mut packet = Outgoing::new(hca, work, &request, length);
    if request.atomic().is_none() {
        // What has arrived of a READ is not requested again.
        packet.leave_out(work.remote.as_ref().map_or(0, |remote| remote.got));
    }
    packet.send(hca, work, idle)
}

/// Whether the entry may be executed without the peer: the transport supports it, its length is permitted,
/// and the peer queue pair's own protection domain applies to it.
#[inline(always)]
fn one_sided(work: &SendWork, request: &Request<'_>) -> bool {
    let operation = request.operation();
    let own_domain = matches!(work.transport, QpType::Rc | QpType::Uc);
    let reads = operation.has_result();
    own_domain
        && !operation.consumes_receive()
        && (!reads || work.max_rd_atomic != 0)
        && match operation.row().layout {
            Layout::Memory => true,
            Layout::CompareAndSwap | Layout::FetchAndAdd => {
                request.data().total() == size_of::<u64>() as u64
            }
            Layout::Control | Layout::Registration | Layout::Message => false,
        }
}

impl QpRecord {
    /// Whether no packet has been sent to another process for the current entry.
    pub(in super::super) fn is_new(&mut self) -> bool {
        (self.runnable()).is_some_and(|(work, _)| work.remote.is_none() || is_new(work))
    }
}
