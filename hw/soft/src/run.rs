//! The requester: executes send entries in order, up to the first that cannot be executed.
//!
//! One generic body executes all transports. A connection's request goes to `respond`, a datagram to
//! `datagram`; both take a receive by `receive`, from the queue pair's own queue or from a shared one. All of
//! it runs on the thread that executes the request.

use super::copy::{Fault, can_read, copy};
use super::cq::CqCtx;
use super::datagram;
use super::gate::Way;
use super::hca::Hca;
use super::lists::{MAX_MESSAGE, gather, incoming, outgoing, spread};
use super::one_sided::transfer_here;
use super::port;
use super::qp::SendWork;
use super::receive::Message;
use super::remote;
use super::respond::{Answer, Blame, Responder};
use bellwire_core::access::AccessFlags;
use bellwire_core::cqe::{CompletedWqe, CqeOpcode, PlainCqe, Syndrome};
use bellwire_core::guarded::{compare_exchange, fetch_add};
use bellwire_core::op::{Layout, WrOpcode, opcode};
use bellwire_core::wqe::{
    Atomic, Data, FirstBlock, Rc, Request, SendWqe, SgeList, Transport, Uc, Ud, Xrc, data_offset,
    fm_ce_se, operation_offset,
};
use bellwire_core::wr::QpType;

/// Why execution stopped at an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The responder has no receive posted: RNR NAK with this timer code.
    Rnr(u8),
    /// The responder does not respond.
    NoAnswer,
    /// The entry fails; `responder` says what happens to the responder.
    Failed {
        syndrome: Syndrome,
        responder: Option<Blame>,
    },
    /// The completion queue is full: the entry was executed, but its completion is lost.
    Overrun,
    /// The entry was executed as far as the requester of an unreliable service can know, but the responder's
    /// queue pair fails.
    Receiver(Blame),
    /// The entry has to be executed under the device's lock.
    UnderLock,
    /// The entry is the first request of its connection.
    FirstPacket,
    /// The entry waits until another process has acknowledged those before it.
    Unacknowledged,
    /// There is no room for the entry's packet.
    Full,
    /// Another thread holds the turn to send to the peer, which is taken away from it under the device's lock.
    Held,
    /// The requester of an unreliable service sent the entry, and no responder accepted it: it completes with
    /// success nevertheless.
    Dropped,
}

impl Stop {
    pub(super) const fn local(syndrome: Syndrome) -> Self {
        Self::Failed {
            syndrome,
            responder: None,
        }
    }

    /// What happens to the responder.
    pub(super) const fn blames(self) -> Option<Blame> {
        match self {
            Self::Failed { responder, .. } => responder,
            Self::Receiver(blame) => Some(blame),
            _ => None,
        }
    }
}

/// What the requester needs of a transport service.
pub(super) trait Service: Transport {
    /// Whether requests are acknowledged.
    const RELIABLE: bool = matches!(Self::TYPE, QpType::Rc | QpType::XrcSend);
    /// Offset of a SEND's data, or of the remote address segment.
    const FIRST: usize = operation_offset(Self::TYPE);
    /// Offset of the data of a WRITE or READ.
    const SECOND: usize = data_offset(WrOpcode::RdmaWrite, Self::TYPE);

    /// The responder of a connected service.
    #[inline(always)]
    fn responder<'a>(
        hca: &Hca,
        work: &'a SendWork,
        wqe: &SendWqe<'_>,
    ) -> Result<Responder<'a>, Answer> {
        let xrc = matches!(Self::TYPE, QpType::XrcSend).then(|| wqe.xrc_srqn());
        Responder::find(hca, work, xrc)
    }
}

impl Service for Rc {}
impl Service for Uc {}
impl Service for Ud {}
impl Service for Xrc {}

/// Executes entries from `work.consumer` up to `producer`.
#[inline(always)]
pub(super) fn run(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
    if work.way == Way::Here {
        run_on::<Rc>(hca, work, producer)
    } else if work.remote.is_some() {
        remote::run(hca, work, producer)
    } else {
        run_other(hca, work, producer)
    }
}

/// Everything but RC within the process, whose peer is in this process: not inlined, because it is less
/// frequent.
#[inline(never)]
fn run_other(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
    match work.transport {
        QpType::Rc => run_on::<Rc>(hca, work, producer),
        QpType::Uc => run_on::<Uc>(hca, work, producer),
        QpType::Ud => run_on::<Ud>(hca, work, producer),
        QpType::XrcSend | QpType::XrcRecv | QpType::Dci => run_on::<Xrc>(hca, work, producer),
    }
}

#[inline(always)]
fn run_on<T: Service>(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
    let mut counter = work.consumer;
    let mut stop = None;
    while counter != producer {
        // SAFETY: the entry was posted and has not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, counter) };
        // The entry's size is zero, or exceeds what was posted.
        if wqe.blocks().wrapping_sub(1) >= producer.wrapping_sub(counter) {
            stop = Some(Stop::local(Syndrome::LOCAL_QP_OP));
            break;
        }
        // SAFETY: as above.
        let block = unsafe { FirstBlock::read(work.ring, counter) };
        let done = if matches!(wqe.opcode(), opcode::RDMA_WRITE | opcode::RDMA_READ)
            && work.way == Way::Here
            && let Some(transfer) = transfer_here(hca, work, block)
        {
            Ok(transfer.bytes())
        } else {
            match execute::<T>(hca, work, &wqe) {
                Err(Stop::Dropped) if !T::RELIABLE => Ok(0),
                done => done,
            }
        };
        match done {
            Ok(byte_len) => {
                if !complete(work, &wqe, counter, byte_len) {
                    stop = Some(Stop::Overrun);
                    break;
                }
            }
            Err(why) => {
                stop = Some(why);
                break;
            }
        }
        counter = counter.wrapping_add(wqe.blocks());
    }
    work.consumer = counter;
    stop
}

/// Executes one entry without completing it.
#[cold]
pub(super) fn execute_one(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    match work.transport {
        QpType::Rc => execute::<Rc>(hca, work, wqe),
        QpType::Uc => execute::<Uc>(hca, work, wqe),
        QpType::Ud => execute::<Ud>(hca, work, wqe),
        QpType::XrcSend | QpType::XrcRecv | QpType::Dci => execute::<Xrc>(hca, work, wqe),
    }
}

/// Completes an executed entry if it is signalled. `false`: the completion queue is full.
#[inline(always)]
#[must_use]
pub(super) fn complete(work: &SendWork, wqe: &SendWqe<'_>, counter: u32, byte_len: u32) -> bool {
    complete_on(work.cq, work.qpn, work.user_index, wqe, counter, byte_len)
}

/// Like [`complete`], for a queue pair whose work belongs to another thread.
#[inline(always)]
#[must_use]
pub(super) fn complete_on(
    cq: &CqCtx,
    qpn: u32,
    user_index: u32,
    wqe: &SendWqe<'_>,
    counter: u32,
    byte_len: u32,
) -> bool {
    if wqe.fm_ce_se() & fm_ce_se::SIGNALED == 0 {
        return true;
    }
    complete_signaled(cq, qpn, user_index, wqe.opcode(), counter, byte_len)
}

/// Like [`complete_on`], for an entry that is signalled.
#[inline(always)]
#[must_use]
pub(super) fn complete_signaled(
    cq: &CqCtx,
    qpn: u32,
    user_index: u32,
    opcode: u8,
    counter: u32,
    byte_len: u32,
) -> bool {
    cq.produce_plain(
        #[inline(always)]
        || {
            let completed = CompletedWqe {
                qpn,
                user_index,
                wqe_counter: counter as u16,
            };
            PlainCqe::requester(completed, opcode, byte_len)
        },
    )
}

/// Executes one entry. Returns the byte count for its completion.
#[inline(always)]
fn execute<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let Some(operation) = wqe.operation() else {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    };
    if T::TYPE as u8 == QpType::Ud as u8 {
        return match operation.row().layout {
            Layout::Message if operation.runs_on(T::TYPE) => {
                let message = outgoing_datagram(hca, work, wqe, received_as(operation)?)?;
                datagram::send(hca, work, wqe, &message).map(|()| 0)
            }
            Layout::Control => Ok(0),
            Layout::Message
            | Layout::Registration
            | Layout::Memory
            | Layout::CompareAndSwap
            | Layout::FetchAndAdd => Err(Stop::local(Syndrome::LOCAL_QP_OP)),
        };
    }
    // Only what not every connected transport supports is compared with the table.
    match operation {
        WrOpcode::RdmaWrite => write_one::<T>(hca, work, wqe),
        WrOpcode::Send | WrOpcode::SendWithImm => {
            send::<T>(hca, work, wqe, received_as(operation)?)
        }
        WrOpcode::RdmaWriteWithImm => write_with_imm::<T>(hca, work, wqe),
        WrOpcode::RdmaRead if const { WrOpcode::RdmaRead.runs_on(T::TYPE) } => {
            read::<T>(hca, work, wqe)
        }
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd
            if const { WrOpcode::AtomicFetchAndAdd.runs_on(T::TYPE) } =>
        {
            atomic::<T>(hca, work, wqe, operation)
        }
        WrOpcode::Nop => Ok(0),
        WrOpcode::LocalInv | WrOpcode::BindMw | WrOpcode::SendWithInv => Err(Stop::UnderLock),
        WrOpcode::RdmaRead
        | WrOpcode::AtomicCmpAndSwp
        | WrOpcode::AtomicFetchAndAdd
        | WrOpcode::Tso => Err(Stop::local(Syndrome::LOCAL_QP_OP)),
    }
}

/// The opcode with which the receive completes that an operation consumes.
#[inline(always)]
pub(super) fn received_as(operation: WrOpcode) -> Result<CqeOpcode, Stop> {
    CqeOpcode::of_receive(operation).ok_or(Stop::local(Syndrome::LOCAL_QP_OP))
}

/// Converts the responder's refusal for the requester. A requester of an unreliable service gets no response,
/// and continues.
#[inline(always)]
pub(super) fn answered<T: Service>(result: Result<u32, Answer>) -> Result<u32, Stop> {
    match result {
        Ok(bytes) => Ok(bytes),
        Err(answer) if T::RELIABLE => Err(refused(answer)),
        Err(answer) => unanswered(answer),
    }
}

#[cold]
pub(super) fn refused(answer: Answer) -> Stop {
    match answer {
        Answer::Rnr(code) => Stop::Rnr(code),
        Answer::Silent => Stop::NoAnswer,
        Answer::First => Stop::FirstPacket,
        Answer::Nak(syndrome, blame) => Stop::Failed {
            syndrome,
            responder: Some(blame),
        },
        Answer::Unread => Stop::local(Syndrome::LOCAL_PROT),
    }
}

/// IBTA 9.8.2: the responder of an unreliable connection silently drops requests that it does not accept. If
/// the receive cannot be completed, the responder fails.
#[cold]
fn unanswered(answer: Answer) -> Result<u32, Stop> {
    match answer {
        Answer::Nak(_, blame @ (Blame::Receive | Blame::Overrun)) => Err(Stop::Receiver(blame)),
        Answer::First => Err(Stop::FirstPacket),
        Answer::Unread => Err(Stop::local(Syndrome::LOCAL_PROT)),
        _ => Err(Stop::Dropped),
    }
}

#[inline(always)]
fn write_one<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let mut pieces = wqe.data(T::SECOND);
    // One piece of inline data, as small WRITEs have: no keys to check, nothing to gather.
    if let (Some(Data::Inline(bytes, [])), None) = (pieces.next(), pieces.next()) {
        return answered::<T>(put_inline::<T>(hca, work, wqe, bytes));
    }
    write::<T>(hca, work, wqe)
}

#[inline(always)]
fn put_inline<T: Service>(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'_>,
    bytes: &[u8],
) -> Result<u32, Answer> {
    let to = T::responder(hca, work, wqe)?.reach(
        hca,
        wqe.remote(T::FIRST),
        bytes.len() as u64,
        AccessFlags::REMOTE_WRITE,
    )?;
    // SAFETY: the target was checked in this section.
    let copied = unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
    // The bytes are in the entry.
    copied.map_err(|Fault| Answer::FAULT)?;
    Ok(0)
}

#[inline(never)]
fn write<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let data = wqe.data(T::SECOND);
    let length = outgoing(hca, work, data)?;
    let write = || {
        let access = AccessFlags::REMOTE_WRITE;
        let to = T::responder(hca, work, wqe)?.reach(hca, wqe.remote(T::FIRST), length, access)?;
        // SAFETY: both sides were checked in this section. Elements are not empty, so nothing is copied to a
        // null address.
        unsafe { gather(data, to) }.map_err(|Fault| Answer::after_fault(data))?;
        Ok(0)
    };
    answered::<T>(write())
}

#[inline(never)]
fn write_with_imm<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let data = wqe.data(T::SECOND);
    let length = outgoing(hca, work, data)?;
    let write = || {
        let access = AccessFlags::REMOTE_WRITE;
        let responder = T::responder(hca, work, wqe)?;
        let to = responder.reach(hca, wqe.remote(T::FIRST), length, access)?;
        let message = message(wqe, CqeOpcode::RespWrImm, data, length);
        // The receive is claimed first: without one, nothing is written. It is given back after a fault.
        let mut fault = None;
        let received = responder.receive(hca, &message, || {
            // SAFETY: source and target were checked in this section.
            let gathered = unsafe { gather(data, to) };
            gathered.map_err(|Fault| {
                fault = Some(Answer::after_fault(data));
                Syndrome::WR_FLUSH
            })
        });
        match fault {
            Some(answer) => Err(answer),
            None => received.map(|()| 0),
        }
    };
    answered::<T>(write())
}

#[inline(always)]
pub(super) fn message<'a>(
    wqe: &SendWqe<'_>,
    kind: CqeOpcode,
    data: SgeList<'a>,
    length: u64,
) -> Message<'a> {
    Message {
        kind,
        length,
        imm: wqe.imm(),
        solicited: wqe.fm_ce_se() & fm_ce_se::SOLICITED != 0,
        data,
        fetch: None,
    }
}

/// The message of a SEND, with or without more, whose data is at `offset`.
#[inline(always)]
pub(super) fn outgoing_message<'a>(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'a>,
    kind: CqeOpcode,
    offset: usize,
) -> Result<Message<'a>, Stop> {
    let data = wqe.data(offset);
    let length = outgoing(hca, work, data)?;
    Ok(message(wqe, kind, data, length))
}

/// The message of a datagram, which has to fit in one packet.
pub(super) fn outgoing_datagram<'a>(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'a>,
    kind: CqeOpcode,
) -> Result<Message<'a>, Stop> {
    let message = outgoing_message(hca, work, wqe, kind, Ud::FIRST)?;
    if message.length > port::MTU.bytes().into() {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    Ok(message)
}

/// Delivers a message to the responder's receive queue.
#[inline(never)]
fn send<T: Service>(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'_>,
    kind: CqeOpcode,
) -> Result<u32, Stop> {
    let message = outgoing_message(hca, work, wqe, kind, T::FIRST)?;
    let sent = match T::responder(hca, work, wqe) {
        Ok(responder) => responder.receive(hca, &message, || Ok(())),
        Err(answer) => Err(answer),
    };
    answered::<T>(sent.map(|()| 0))
}

/// The address that a READ from another process may fetch its data from.
pub(super) fn read_from(hca: &Hca, work: &SendWork, request: &Request<'_>) -> Result<u64, Stop> {
    let find = match work.transport {
        QpType::XrcSend => Xrc::responder(hca, work, request.wqe()),
        // No others have READs.
        QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcRecv | QpType::Dci => {
            Rc::responder(hca, work, request.wqe())
        }
    };
    let Some(remote) = request.remote() else {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    };
    let from = find.and_then(|responder| {
        let length = request.data().total();
        let from = responder.reach(hca, remote, length, AccessFlags::REMOTE_READ)?;
        // Now, while the responder can still refuse the request.
        match can_read(from, length.min(remote::READ_AT_ONCE) as usize) {
            true => Ok(from),
            false => Err(Answer::FAULT),
        }
    });
    Ok(from.map_err(refused)?.expose_provenance() as u64)
}

fn read<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let data = wqe.data(T::SECOND);
    let length = incoming(hca, work, data)?;
    if length > MAX_MESSAGE {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    if work.max_rd_atomic == 0 {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    }
    let from = T::responder(hca, work, wqe)
        .and_then(|responder| {
            let access = AccessFlags::REMOTE_READ;
            responder.reach(hca, wqe.remote(T::FIRST), length, access)
        })
        .map_err(refused)?;
    // SAFETY: the source and the elements were checked in this section.
    let spread = unsafe { spread(from, data) };
    spread.map_err(|Fault| match can_read(from, length as usize) {
        true => Stop::local(Syndrome::LOCAL_PROT),
        false => refused(Answer::FAULT),
    })?;
    Ok(length as u32)
}

/// Executes an atomic. Returns the previous value.
///
/// # Errors
/// The word cannot be accessed any more.
///
/// # Safety
/// `place` is aligned and points to eight bytes whose owner allows remote atomics; meanwhile they may be
/// accessed only atomically.
pub(super) unsafe fn operate(atomic: Atomic, place: *mut u8) -> Result<u64, Fault> {
    // SAFETY: the caller guarantees that `place` is aligned and accessed only atomically.
    unsafe {
        match atomic {
            Atomic::FetchAndAdd(add) => fetch_add(place.cast(), add),
            Atomic::CompareAndSwap { compare, swap } => {
                compare_exchange(place.cast(), compare, swap)
            }
        }
    }
}

fn atomic<T: Service>(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'_>,
    operation: WrOpcode,
) -> Result<u32, Stop> {
    const LENGTH: u64 = size_of::<u64>() as u64;
    let request = wqe.request_of(operation, T::TYPE);
    let data = request.data();
    let (Some(target), Some(atomic)) = (request.remote(), request.atomic()) else {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    };
    if incoming(hca, work, data)? != LENGTH {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    if work.max_rd_atomic == 0 {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    }
    let place = T::responder(hca, work, wqe)
        .and_then(|responder| responder.reach(hca, target, LENGTH, AccessFlags::REMOTE_ATOMIC))
        .map_err(refused)?;
    // Checks the resulting address, because addresses in a zero-based region count from its start.
    if !place.addr().is_multiple_of(LENGTH as usize) {
        return Err(Stop::Failed {
            syndrome: Syndrome::REMOTE_INVAL_REQ,
            responder: Some(Blame::Access),
        });
    }
    // SAFETY: aligned, and within memory whose owner allows remote atomics.
    let old = unsafe { operate(atomic, place) }.map_err(|Fault| refused(Answer::FAULT))?;
    // SAFETY: `incoming` has checked the elements, eight bytes in all.
    unsafe { spread(old.to_ne_bytes().as_ptr(), data) }
        .map_err(|Fault| Stop::local(Syndrome::LOCAL_PROT))?;
    Ok(LENGTH as u32)
}

#[cfg(test)]
mod tests;
