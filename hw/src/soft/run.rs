//! The requester: executing send entries, one after the other, up to the first that cannot go on.

use super::copy::copy;
use super::hca::Hca;
use super::mr::Reach;
use super::qp::SendWork;
use super::respond::{self, Answer, Message};
use bellwire_core::access::AccessFlags;
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode, Syndrome};
use bellwire_core::wqe::{Data, SEGMENT, SendWqe, SgeList, fm_ce_se, opcode};
use bellwire_core::wr::Remote;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest message (IBTA: 2 GiB).
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

/// Bytes that the first data segment stands at: behind the control segment alone, or a remote
/// address too, or an atomic's operands too.
const DATA: usize = SEGMENT;
const REMOTE_DATA: usize = 2 * SEGMENT;
const ATOMIC_DATA: usize = 3 * SEGMENT;

/// Why execution stopped at an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The responder has no receive posted; wait for its timer of this code.
    Rnr(u8),
    /// The responder does not answer.
    NoAnswer,
    /// The entry fails; and whether the responder goes to the error state with it.
    Failed { syndrome: Syndrome, responder: bool },
    /// The completion queue is full: the entry was executed, but cannot be told.
    Overrun,
}

impl Stop {
    const fn local(syndrome: Syndrome) -> Self {
        Self::Failed {
            syndrome,
            responder: false,
        }
    }
}

/// Executes entries from `work.consumer` up to `producer`.
#[inline(always)]
pub(super) fn run(hca: &Hca, work: &mut SendWork, producer: u32) -> Option<Stop> {
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
        match execute(hca, work, &wqe) {
            Ok(byte_len) => {
                let signaled = wqe.fm_ce_se() & fm_ce_se::SIGNALED != 0;
                if signaled && !complete(work, &wqe, counter, byte_len) {
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

#[inline(always)]
fn complete(work: &SendWork, wqe: &SendWqe<'_>, counter: u32, byte_len: u32) -> bool {
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
fn execute(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    match wqe.opcode() {
        opcode::RDMA_WRITE => write_one(hca, work, wqe).map(|_| 0),
        opcode::SEND | opcode::SEND_IMM => {
            let data = wqe.data(DATA);
            let length = outgoing(hca, work, data)?;
            let kind = if wqe.opcode() == opcode::SEND {
                CqeOpcode::RespSend
            } else {
                CqeOpcode::RespSendImm
            };
            send(hca, work, wqe, kind, data, length)
        }
        opcode::RDMA_WRITE_IMM => {
            // The receive is looked for first: without one nothing is written.
            respond::ready(hca, work).map_err(refused)?;
            let length = write(hca, work, wqe)?;
            send(
                hca,
                work,
                wqe,
                CqeOpcode::RespWrImm,
                wqe.data(usize::MAX),
                length,
            )
        }
        opcode::RDMA_READ => read(hca, work, wqe),
        opcode::ATOMIC_CS | opcode::ATOMIC_FA => atomic(hca, work, wqe),
        opcode::NOP => Ok(0),
        _ => Err(Stop::local(Syndrome::LOCAL_QP_OP)),
    }
}

fn refused(answer: Answer) -> Stop {
    match answer {
        Answer::Rnr(code) => Stop::Rnr(code),
        Answer::Silent => Stop::NoAnswer,
        Answer::Nak {
            syndrome,
            responder,
        } => Stop::Failed {
            syndrome,
            responder,
        },
    }
}

/// Checks that all data of a message may be read, and gives its length.
#[inline(always)]
fn outgoing(hca: &Hca, work: &SendWork, data: SgeList<'_>) -> Result<u64, Stop> {
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
                    addr: sge.addr,
                    length: u64::from(sge.length),
                    access: AccessFlags::empty(),
                };
                if hca.mrs.reach(reach).is_none() {
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

/// Finds the peer's memory; there is none for an empty operation.
#[inline(always)]
fn remote(
    hca: &Hca,
    work: &SendWork,
    remote: Remote,
    length: u64,
    access: AccessFlags,
) -> Result<*mut u8, Stop> {
    respond::allowed(work, access).map_err(refused)?;
    respond::reach(hca, work.peer, remote, length, access).map_err(refused)
}

#[inline(always)]
fn write_one(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u64, Stop> {
    let mut pieces = wqe.data(REMOTE_DATA);
    // One string of inline data, as small WRITEs have: no keys to check, nothing to gather.
    if let (Some(Data::Inline(bytes, [])), None) = (pieces.next(), pieces.next()) {
        let length = bytes.len() as u64;
        let access = AccessFlags::REMOTE_WRITE;
        let to = remote(hca, work, wqe.remote(SEGMENT), length, access)?;
        // SAFETY: the target was checked in this section.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        return Ok(length);
    }
    write(hca, work, wqe)
}

#[inline(never)]
fn write(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u64, Stop> {
    let data = wqe.data(REMOTE_DATA);
    let length = outgoing(hca, work, data)?;
    let access = AccessFlags::REMOTE_WRITE;
    let to = remote(hca, work, wqe.remote(SEGMENT), length, access)?;
    // SAFETY: both sides were checked in this section; elements are not empty, so that nothing is
    // copied to no place.
    unsafe { gather(data, to) };
    Ok(length)
}

/// Hands a message to the responder's receive queue.
#[inline(never)]
fn send(
    hca: &Hca,
    work: &SendWork,
    wqe: &SendWqe<'_>,
    kind: CqeOpcode,
    data: SgeList<'_>,
    length: u64,
) -> Result<u32, Stop> {
    let message = Message {
        kind,
        length,
        imm: wqe.imm(),
        solicited: wqe.fm_ce_se() & fm_ce_se::SOLICITED != 0,
        data,
    };
    respond::receive(hca, work, &message).map_err(refused)?;
    Ok(0)
}

/// Checks that the result of a READ or atomic may be written where the entry says, and that there
/// is room for `length` bytes; gives the room.
fn incoming(hca: &Hca, work: &SendWork, data: SgeList<'_>) -> Result<u64, Stop> {
    let mut room = 0;
    for piece in data {
        let Data::Pointer(sge) = piece else {
            return Err(Stop::local(Syndrome::LOCAL_QP_OP));
        };
        let reach = Reach {
            key: sge.lkey,
            pd: work.pd,
            addr: sge.addr,
            length: u64::from(sge.length),
            access: AccessFlags::LOCAL_WRITE,
        };
        if hca.mrs.reach(reach).is_none() {
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
unsafe fn spread(mut from: *const u8, data: SgeList<'_>) {
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

fn read(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    let data = wqe.data(REMOTE_DATA);
    let length = incoming(hca, work, data)?;
    if length > MAX_MESSAGE {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    if work.max_rd_atomic == 0 {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    }
    let access = AccessFlags::REMOTE_READ;
    let from = remote(hca, work, wqe.remote(SEGMENT), length, access)?;
    // SAFETY: as in `write`.
    unsafe { spread(from, data) };
    Ok(length as u32)
}

fn atomic(hca: &Hca, work: &SendWork, wqe: &SendWqe<'_>) -> Result<u32, Stop> {
    const LENGTH: u64 = size_of::<u64>() as u64;
    let data = wqe.data(ATOMIC_DATA);
    if incoming(hca, work, data)? != LENGTH {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    if work.max_rd_atomic == 0 {
        return Err(Stop::local(Syndrome::LOCAL_QP_OP));
    }
    let target = wqe.remote(SEGMENT);
    let place = remote(hca, work, target, LENGTH, AccessFlags::REMOTE_ATOMIC)?;
    if !target.addr.is_multiple_of(LENGTH) {
        return Err(Stop::Failed {
            syndrome: Syndrome::REMOTE_INVAL_REQ,
            responder: true,
        });
    }
    let (operand, compare) = wqe.atomic(REMOTE_DATA);
    // SAFETY: aligned and within memory that its owner opened to atomics, which others may then
    // touch only by atomics.
    let word = unsafe { AtomicU64::from_ptr(place.cast()) };
    // SeqCst: a device's atomics are a total order over all its memory.
    let old = if wqe.opcode() == opcode::ATOMIC_FA {
        word.fetch_add(operand, Ordering::SeqCst)
    } else {
        match word.compare_exchange(compare, operand, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(old) | Err(old) => old,
        }
    };
    let bytes = old.to_ne_bytes();
    // SAFETY: `incoming` has checked the elements, eight bytes in all.
    unsafe { spread(bytes.as_ptr(), data) };
    Ok(LENGTH as u32)
}
