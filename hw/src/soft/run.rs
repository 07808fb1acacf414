//! The requester: executing send entries, one after the other, up to the first that cannot go on.

use super::copy::copy;
use super::datagram;
use super::hca::Hca;
use super::mr::{LOCAL_READ, Reach};
use super::port;
use super::qp::SendWork;
use super::receive::{Fetch, Message};
use super::remote;
use super::respond::{Answer, Blame, Responder};
use bellwire_core::access::AccessFlags;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Syndrome};
use bellwire_core::wqe::{
    Data, Rc, SEGMENT, SendWqe, SgeList, Transport, Uc, Ud, Xrc, fm_ce_se, opcode,
};
use bellwire_core::wr::QpType;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest message (IBTA: 2 GiB).
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

/// Why execution stopped at an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The responder has no receive posted; wait for its timer of this code.
    Rnr(u8),
    /// The responder does not answer.
    NoAnswer,
    /// The entry fails; and what befalls the responder with it.
    Failed {
        syndrome: Syndrome,
        responder: Option<Blame>,
    },
    /// The completion queue is full: the entry was executed, but cannot be told.
    Overrun,
    /// The entry was executed, as far as an unreliable service can tell; the queue pair that it went
    /// to fails.
    Receiver(Blame),
    /// The entry wants the device's lock.
    UnderLock,
    /// The entry is the first of its connection.
    FirstPacket,
    /// The entry waits until those before it are acknowledged by another process.
    Unacknowledged,
    /// There is no room for the entry's packet.
    Full,
    /// An unreliable service has sent the entry, and nobody here took it: it completes all the same.
    Dropped,
}

impl Stop {
    pub(super) const fn local(syndrome: Syndrome) -> Self {
        Self::Failed {
            syndrome,
            responder: None,
        }
    }

    /// What befalls a responder that it happened to.
    pub(super) const fn blames(self) -> Option<Blame> {
        match self {
            Self::Failed { responder, .. } => responder,
            Self::Receiver(blame) => Some(blame),
            _ => None,
        }
    }
}

/// What a transport service is to the requester.
pub(super) trait Service: Transport {
    /// Whether requests are acknowledged.
    const RELIABLE: bool = matches!(Self::TYPE, QpType::Rc | QpType::XrcSend);
    /// Where a SEND's data, or the remote address, stands.
    const FIRST: usize = SEGMENT + Self::SEGMENTS;
    /// Where the data of a WRITE or READ stands.
    const SECOND: usize = Self::FIRST + SEGMENT;
    /// Where an atomic's data stands.
    const THIRD: usize = Self::SECOND + SEGMENT;

    /// The peer of a connected service.
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
    if work.is_local_rc {
        run_on::<Rc>(hca, work, producer)
    } else {
        run_other(hca, work, producer)
    }
}

/// The others out of line: RC is what a queue pair is unless somebody asks for something else.
#[inline(never)]
fn run_other(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
    match work.transport {
        _ if work.remote.is_some() => remote::run(hca, work, producer),
        QpType::Rc => run_on::<Rc>(hca, work, producer),
        QpType::Uc => run_on::<Uc>(hca, work, producer),
        QpType::Ud => run_on::<Ud>(hca, work, producer),
        _ => run_on::<Xrc>(hca, work, producer),
    }
}

#[inline(always)]
fn run_on<T: Service>(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
    let mut counter = work.consumer;
    let mut stop = None;
    while counter != producer {
        // SAFETY: rung and not completed, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(work.ring, counter) };
        // No size, or more than was rung.
        if wqe.blocks().wrapping_sub(1) >= producer.wrapping_sub(counter) {
            stop = Some(Stop::local(Syndrome::LOCAL_QP_OP));
            break;
        }
        let done = match execute::<T>(hca, work, &wqe) {
            Err(Stop::Dropped) if !T::RELIABLE => Ok(0),
            done => done,
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

/// Executes one entry, and does not tell of it.
#[cold]
pub(super) fn execute_one(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    match work.transport {
        QpType::Rc => execute::<Rc>(hca, work, wqe),
        QpType::Uc => execute::<Uc>(hca, work, wqe),
        QpType::Ud => execute::<Ud>(hca, work, wqe),
        _ => execute::<Xrc>(hca, work, wqe),
    }
}

/// Tells of an executed entry, if it asks for it. `false`: the completion queue is full.
#[inline(always)]
#[must_use]
pub(super) fn complete(work: &SendWork, wqe: &SendWqe<'_>, counter: u32, byte_len: u32) -> bool {
    if wqe.fm_ce_se() & fm_ce_se::SIGNALED == 0 {
        return true;
    }
    let completed = CompletedWqe {
        qpn: work.qpn,
        user_index: work.user_index,
        wqe_counter: counter as u16,
    };
    work.cq
        .produce(&Cqe64::requester(completed, wqe.opcode(), byte_len))
}

/// Executes one entry; gives the bytes that it brought.
#[inline(always)]
fn execute<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    if T::TYPE as u8 == QpType::Ud as u8 {
        return match wqe.opcode() {
            opcode::SEND | opcode::SEND_IMM => {
                let message = outgoing_datagram(hca, work, wqe)?;
                datagram::send(hca, work, wqe, &message).map(|()| 0)
            }
            opcode::NOP => Ok(0),
            _ => Err(Stop::local(Syndrome::LOCAL_QP_OP)),
        };
    }
    match wqe.opcode() {
        opcode::RDMA_WRITE => write_one::<T>(hca, work, wqe),
        opcode::SEND | opcode::SEND_IMM => send::<T>(hca, work, wqe),
        opcode::RDMA_WRITE_IMM => write_with_imm::<T>(hca, work, wqe),
        opcode::RDMA_READ if T::RELIABLE => read::<T>(hca, work, wqe),
        opcode::ATOMIC_CS | opcode::ATOMIC_FA if T::RELIABLE => atomic::<T>(hca, work, wqe),
        opcode::NOP => Ok(0),
        opcode::UMR | opcode::SEND_INVAL => Err(Stop::UnderLock),
        _ => Err(Stop::local(Syndrome::LOCAL_QP_OP)),
    }
}

/// What an answer of the responder is to the requester; an unreliable one gets none, and goes on.
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
    }
}

/// IBTA 9.8.2: an unreliable connection's responder drops what it does not take, without a word; a
/// receive that could not be completed fails there.
#[cold]
fn unanswered(answer: Answer) -> Result<u32, Stop> {
    match answer {
        Answer::Nak(_, blame @ (Blame::Receive | Blame::Overrun)) => Err(Stop::Receiver(blame)),
        Answer::First => Err(Stop::FirstPacket),
        _ => Err(Stop::Dropped),
    }
}

/// Checks that all data of a message may be read, and gives its length.
#[inline(always)]
pub(super) fn outgoing(hca: &Hca, work: &SendWork, data: SgeList<'_>) -> Result<u64, Stop> {
    let mut length = 0;
    for piece in data {
        match piece {
            Data::Inline(head, tail) => length += (head.len() + tail.len()) as u64,
            Data::Pointer(sge) => {
                length += u64::from(sge.length);
                // Any key of ours may be read locally.
                let reach = Reach {
                    key: sge.lkey,
                    pd: work.pd,
                    qpn: 0,
                    addr: sge.addr,
                    length: u64::from(sge.length),
                    access: LOCAL_READ,
                };
                if !hca.mrs.covers(&reach) {
                    return Err(Stop::local(Syndrome::LOCAL_PROT));
                }
            }
        }
    }
    if length > MAX_MESSAGE {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    Ok(length)
}

/// Copies a message's data to contiguous memory.
///
/// # Safety
/// `outgoing` has checked the data in this section; `to` is writable for its length.
#[inline(always)]
pub(super) unsafe fn gather(data: SgeList<'_>, mut to: *mut u8) {
    for piece in data {
        // SAFETY: the caller's promise.
        unsafe {
            match piece {
                Data::Inline(head, tail) => {
                    copy(head.as_ptr(), to, head.len());
                    to = to.add(head.len());
                    copy(tail.as_ptr(), to, tail.len());
                    to = to.add(tail.len());
                }
                Data::Pointer(sge) => {
                    let from = std::ptr::with_exposed_provenance(sge.addr as usize);
                    copy(from, to, sge.length as usize);
                    to = to.add(sge.length as usize);
                }
            }
        }
    }
}

#[inline(always)]
fn write_one<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let mut pieces = wqe.data(T::SECOND);
    // One string of inline data, as small WRITEs have: no keys to check, nothing to gather.
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
    unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
    Ok(0)
}

#[inline(never)]
fn write<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let data = wqe.data(T::SECOND);
    let length = outgoing(hca, work, data)?;
    let write = || {
        let access = AccessFlags::REMOTE_WRITE;
        let to = T::responder(hca, work, wqe)?.reach(hca, wqe.remote(T::FIRST), length, access)?;
        // SAFETY: both sides were checked in this section; elements are not empty, so that nothing
        // is copied to no place.
        unsafe { gather(data, to) };
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
        // The receive is claimed first: without one nothing is written.
        responder.receive(hca, &message, || {
            // SAFETY: as in `write`.
            unsafe { gather(data, to) };
            Ok(())
        })?;
        Ok(0)
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

/// The message of a SEND whose data stands at `offset`.
#[inline(always)]
pub(super) fn outgoing_message<'a>(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'a>,
    offset: usize,
) -> Result<Message<'a>, Stop> {
    let data = wqe.data(offset);
    let length = outgoing(hca, work, data)?;
    let kind = match wqe.opcode() {
        opcode::SEND => CqeOpcode::RespSend,
        opcode::SEND_INVAL => CqeOpcode::RespSendInv,
        _ => CqeOpcode::RespSendImm,
    };
    Ok(message(wqe, kind, data, length))
}

/// A datagram, which is one packet.
pub(super) fn outgoing_datagram<'a>(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'a>,
) -> Result<Message<'a>, Stop> {
    let message = outgoing_message(hca, work, wqe, Ud::FIRST)?;
    if message.length > port::MTU.bytes().into() {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    Ok(message)
}

/// Hands a request over whose data is `length` bytes that `fetch` brings from another process.
/// `invalidate` takes the key away that a SEND with invalidate names.
pub(super) fn fetched<T: Service>(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'_>,
    length: u64,
    fetch: &Fetch<'_>,
    invalidate: &mut dyn FnMut(u32) -> Result<(), Syndrome>,
) -> Result<u32, Stop> {
    let nothing = wqe.data(wqe.ds() as usize * SEGMENT);
    let mut run = || {
        let responder = T::responder(hca, work, wqe)?;
        if matches!(wqe.opcode(), opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM) {
            let access = AccessFlags::REMOTE_WRITE;
            let to = responder.reach(hca, wqe.remote(T::FIRST), length, access)?;
            let places = [(to.expose_provenance() as u64, length)];
            if wqe.opcode() == opcode::RDMA_WRITE {
                return fetch(&places).then_some(0).ok_or(Answer::Silent);
            }
            let message = message(wqe, CqeOpcode::RespWrImm, nothing, length);
            responder.receive(hca, &message, || {
                fetch(&places).then_some(()).ok_or(Syndrome::WR_FLUSH)
            })?;
            return Ok(0);
        }
        let kind = match wqe.opcode() {
            opcode::SEND => CqeOpcode::RespSend,
            opcode::SEND_INVAL => CqeOpcode::RespSendInv,
            _ => CqeOpcode::RespSendImm,
        };
        let message = Message {
            fetch: Some(fetch),
            ..message(wqe, kind, nothing, length)
        };
        responder.receive(hca, &message, || match kind {
            CqeOpcode::RespSendInv => invalidate(responder.pd()),
            _ => Ok(()),
        })?;
        Ok(0)
    };
    answered::<T>(run())
}

/// Hands a message to the responder's receive queue.
#[inline(never)]
fn send<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let message = outgoing_message(hca, work, wqe, T::FIRST)?;
    let sent = match T::responder(hca, work, wqe) {
        Ok(responder) => responder.receive(hca, &message, || Ok(())),
        Err(answer) => Err(answer),
    };
    answered::<T>(sent.map(|()| 0))
}

/// Checks that the result of a READ or atomic may be written where the entry says, and that there
/// is room for `length` bytes; gives the room.
pub(super) fn incoming(hca: &Hca, work: &SendWork, data: SgeList<'_>) -> Result<u64, Stop> {
    let mut room = 0;
    for piece in data {
        let Data::Pointer(sge) = piece else {
            return Err(Stop::local(Syndrome::LOCAL_QP_OP));
        };
        let reach = Reach {
            key: sge.lkey,
            pd: work.pd,
            qpn: 0,
            addr: sge.addr,
            length: u64::from(sge.length),
            access: AccessFlags::LOCAL_WRITE.bits(),
        };
        if !hca.mrs.covers(&reach) {
            return Err(Stop::local(Syndrome::LOCAL_PROT));
        }
        room += u64::from(sge.length);
    }
    Ok(room)
}

/// Copies contiguous memory over an entry's elements.
///
/// # Safety
/// `incoming` has checked the elements in this section; `from` is readable for all of them.
pub(super) unsafe fn spread(mut from: *const u8, data: SgeList<'_>) {
    for piece in data {
        if let Data::Pointer(sge) = piece {
            let to = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
            // SAFETY: the caller's promise.
            unsafe {
                copy(from, to, sge.length as usize);
                from = from.add(sge.length as usize);
            }
        }
    }
}

/// Where a READ from another process may fetch its data.
pub(super) fn read_from(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u64, Stop> {
    let find = match work.transport {
        QpType::XrcSend => Xrc::responder(hca, work, wqe),
        _ => Rc::responder(hca, work, wqe),
    };
    let (first, second) = match work.transport {
        QpType::XrcSend => (Xrc::FIRST, Xrc::SECOND),
        _ => (Rc::FIRST, Rc::SECOND),
    };
    let from = find.and_then(|responder| {
        let length = wqe.data(second).total();
        responder.reach(hca, wqe.remote(first), length, AccessFlags::REMOTE_READ)
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
    // SAFETY: as in `write`.
    unsafe { spread(from, data) };
    Ok(length as u32)
}

/// Does an atomic whose operands stand at `operands`; gives what was there.
///
/// # Safety
/// `place` is aligned, and eight bytes of memory whose owner has opened it to atomics: others may
/// then touch it only by atomics.
pub(super) unsafe fn operate(wqe: &SendWqe<'_>, operands: usize, place: *mut u8) -> u64 {
    let (operand, compare) = wqe.atomic(operands);
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(place.cast()) };
    // SeqCst: a device's atomics are a total order over all its memory.
    if wqe.opcode() == opcode::ATOMIC_FA {
        return word.fetch_add(operand, Ordering::SeqCst);
    }
    match word.compare_exchange(compare, operand, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(old) | Err(old) => old,
    }
}

fn atomic<T: Service>(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    const LENGTH: u64 = size_of::<u64>() as u64;
    let data = wqe.data(T::THIRD);
    if incoming(hca, work, data)? != LENGTH {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    if work.max_rd_atomic == 0 {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    }
    let target = wqe.remote(T::FIRST);
    let place = T::responder(hca, work, wqe)
        .and_then(|responder| responder.reach(hca, target, LENGTH, AccessFlags::REMOTE_ATOMIC))
        .map_err(refused)?;
    // The address itself: a zero-based region's counts from its start.
    if !place.addr().is_multiple_of(LENGTH as usize) {
        return Err(Stop::Failed {
            syndrome: Syndrome::REMOTE_INVAL_REQ,
            responder: Some(Blame::Access),
        });
    }
    // SAFETY: aligned and within memory that its owner opened to atomics.
    let bytes = unsafe { operate(wqe, T::SECOND, place) }.to_ne_bytes();
    // SAFETY: `incoming` has checked the elements, eight bytes in all.
    unsafe { spread(bytes.as_ptr(), data) };
    Ok(LENGTH as u32)
}
