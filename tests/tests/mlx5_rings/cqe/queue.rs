//! Runs entries through core's completion queue, with the queues attached that the row names: what
//! is reported of which request, and what arrives in its buffers.
//!
//! To core an entry has to name a request in flight by its whole counter, where the driver only looks
//! at the slot. So the request is posted at the counter that the entry has, in the slot that the row
//! says.

use super::check::{Check, same};
use bellwire_core::cqe::{Cqe64, Cqe128, CqeFormat, CqeOpcode, is_sw_owned};
use bellwire_core::port::{DoorbellRecord, SendDoorbell, Staged};
use bellwire_core::queue::*;
use bellwire_core::wqe::*;
use bellwire_core::wr::{QpType, Remote, SendFlags, Sge, WcOpcode, WcStatus};
use bellwire_tests::replay::{self, Completions, UNTOUCHED};
use bellwire_tests::vectors::{Row, to_hex};

/// What core's queue reported of a row, where it is not what the driver reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The same, of the same request.
    Same,
    /// Nothing was to be reported, and nothing was.
    Nothing,
    /// Dropped and counted: an entry that names no queue, or completes nothing.
    Dropped,
    /// A failure: more payload than the entry has room for. The driver reports success.
    FailedBeyondRoom,
    /// The same, but the bytes of a READ are those of the entry, where the driver's are others.
    ReadResultRight,
    /// What was posted is reported, where the driver reports the entry's operation (unknown to it, UMR, or
    /// TSO, which core does not post).
    OperationOnRecord,
    /// Not taken for payload. What the block stands for the rows do not say.
    Compressed,
    /// Reported, where the driver loses it or does not report it.
    ReportedAfterAll,
}

/// A doorbell that nobody hears.
struct Silent;

// SAFETY: there is no device.
unsafe impl SendDoorbell for Silent {
    unsafe fn ring(&mut self, _: &Staged) {}
}

/// What stands in a row of one entry, or of several.
struct Case<'r> {
    row: &'r Row,
    entry: Cqe64,
    front: [u8; 64],
    ci: u32,
    sizes: (u32, u32),
    user_index: u32,
    qpn: u32,
    lengths: Vec<usize>,
    send: Option<(u32, u64)>,
    recv: Option<(u32, u64)>,
    shared: Option<(u32, u64)>,
}

impl<'r> Case<'r> {
    fn of_entry(row: &'r Row) -> Check<Self> {
        let pair = |has: &str, number: &str, wr_id: &str| -> Check<Option<(u32, u64)>> {
            if !row.has(has) {
                return Ok(None);
            }
            Ok(Some((row.int(number)?, row.int(wr_id)?)))
        };
        Ok(Self {
            row,
            entry: Cqe64::from_bytes(row.bytes("cqe")?),
            front: match row.has("half0") {
                true => row.bytes("half0")?,
                false => [UNTOUCHED; 64],
            },
            ci: row.int("ci")?,
            sizes: (row.int("cqe_cnt")?, row.int("cqe_size")?),
            user_index: row.int("uidx")?,
            qpn: row.int("qpn")?,
            lengths: match row.has("pre.scat_len") {
                true => row.ints("pre.scat_len")?,
                false => Vec::new(),
            },
            send: pair("pre.sq_wrid", "pre.sq_wqe_cnt", "pre.sq_wrid")?,
            recv: pair("pre.rq_wrid", "pre.rq_tail", "pre.rq_wrid")?,
            shared: pair("pre.srq_slot", "pre.srq_slot", "pre.srq_wrid")?,
        })
    }

    /// One of the entries of a row that polls several. Their counters are of different laps, so
    /// that each stands for itself.
    fn of_several(row: &'r Row, index: u32, bytes: [u8; 64]) -> Check<Self> {
        Ok(Self {
            row,
            entry: Cqe64::from_bytes(bytes),
            front: [UNTOUCHED; 64],
            ci: row.int::<u32>("ci")? + index,
            sizes: (row.int("cqe_cnt")?, 64),
            user_index: row.int("uidx")?,
            qpn: row.int("qpn")?,
            lengths: Vec::new(),
            send: Some((row.int("sq_wqe_cnt")?, row.int("sq_wrid")?)),
            recv: Some((0, row.int("rq_wrid")?)),
            shared: None,
        })
    }

    fn requester(&self) -> bool {
        matches!(self.entry.opcode(), CqeOpcode::Req | CqeOpcode::ReqErr)
    }

    fn wr_id(&self) -> Check<u64> {
        let receive = self.recv.or(self.shared);
        let (_, wr_id) = if self.requester() { self.send } else { receive }.ok_or("no request")?;
        Ok(wr_id)
    }
}

/// What core reported.
struct Polled {
    completion: Option<Completion<'static>>,
    stale: u64,
    buffers: Vec<String>,
}

/// Memory that a request names.
fn buffers(lengths: &[usize]) -> Vec<Sge> {
    let buffer = |&len: &usize| Sge {
        addr: replay::memory(len.max(1)).as_ptr().expose_provenance() as u64,
        length: len as u32,
        lkey: 7,
    };
    lengths.iter().map(buffer).collect()
}

fn content(sge: &Sge) -> String {
    let memory = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
    let memory = std::ptr::NonNull::new(memory).expect("memory");
    // SAFETY: allocated with this length, and nobody writes meanwhile.
    to_hex(&unsafe { replay::snapshot(memory, sge.length as usize) })
}

/// Posts the request that a send completion is of.
fn post_send(
    queue: &mut SendQueue<'static, Rc, Silent>,
    case: &Case,
    wr_id: u64,
    sges: &[Sge],
) -> Check {
    let remote = Remote::default();
    let flags = SendFlags::SIGNALED;
    // SAFETY: the buffers live as long as the process.
    let result = unsafe {
        match case.entry.wc_opcode() {
            Some(WcOpcode::RdmaWrite) => {
                queue.post(wr_id, (), RdmaWrite { remote }, NoPayload, flags)
            }
            Some(WcOpcode::RdmaRead) => queue.post(wr_id, (), RdmaRead { remote }, sges, flags),
            Some(WcOpcode::CompSwap) => {
                let (compare, swap) = (0, 0);
                let operation = AtomicCmpAndSwp {
                    remote,
                    compare,
                    swap,
                };
                queue.post(wr_id, (), operation, sges, flags)
            }
            Some(WcOpcode::FetchAdd) => {
                let operation = AtomicFetchAndAdd { remote, add: 0 };
                queue.post(wr_id, (), operation, sges, flags)
            }
            Some(WcOpcode::LocalInv) => {
                queue.post(wr_id, (), LocalInv { rkey: 0 }, NoPayload, flags)
            }
            Some(WcOpcode::Nop) => queue.post(wr_id, (), Nop {}, NoPayload, flags),
            _ => queue.post(wr_id, (), Send {}, NoPayload, flags),
        }
    };
    queue.ring();
    Ok(result?)
}

/// Polls the entry with everything in flight that the row names.
fn run(case: &Case) -> Check<Polled> {
    let mut completions = Completions::new(case.sizes.0, case.sizes.1);
    let empty = Attach::default();
    for _ in 0..case.user_index {
        // SAFETY: no queue at all.
        unsafe { completions.attach(empty) };
    }
    let (blocks, wr_id) = case.send.ok_or("no send queue")?;
    let memory = replay::memory(blocks as usize * 64);
    // SAFETY: leaked, and used by this queue alone.
    let ring = unsafe { SendRing::new(memory, blocks) }.ok_or("no ring")?;
    let send_ledger = replay::ledger(blocks, case.qpn);
    // SAFETY: the only queue on ring and ledger.
    let send = unsafe {
        SendQueue::<Rc, _>::new(SendQueueInit {
            ring,
            ledger: send_ledger,
            doorbell: Silent,
            max_sge: 32,
            max_inline: 900,
            signal_all: false,
        })
    };
    let mut send = send.ok_or("no send queue")?;
    send.set_postable(true);

    const STRIDE: u32 = 512;
    const COUNT: u32 = 64;
    let memory = replay::memory((COUNT * STRIDE) as usize);
    let record: &DoorbellRecord = replay::record();
    let recv_ledger = replay::ledger(COUNT, case.qpn);
    // SAFETY: leaked, and used by one queue alone.
    let recv_ring = unsafe { RecvRing::new(memory, COUNT, STRIDE) }.ok_or("no ring")?;
    // SAFETY: the only queue on ring and ledger.
    let recv = unsafe { RecvQueue::new(recv_ring, recv_ledger, record) };
    let mut recv = recv.ok_or("no receive queue")?;
    recv.set_postable(true);
    let memory = replay::memory((COUNT * STRIDE) as usize);
    // SAFETY: leaked, and used by one queue alone.
    let srq_ring = unsafe { SrqRing::new(memory, COUNT, STRIDE) }.ok_or("no ring")?;
    let slots: Vec<SrqSlot> = (0..COUNT).map(|_| SrqSlot::default()).collect();
    let srq_ledger = SrqLedger::new(srq_ring, slots.leak()).ok_or("no ledger")?;
    let srq_ledger: &SrqLedger = Box::leak(Box::new(srq_ledger));
    // SAFETY: the only queue on ring and ledger.
    let srq = unsafe { SharedRecvQueue::new(srq_ledger, replay::record()) };
    let mut srq = srq.ok_or("no shared receive queue")?;

    let attached = Attach {
        send: Some((send_ledger, ring, QpType::Rc)),
        recv: case.recv.map(|_| (recv_ledger, recv_ring)),
        srq: case.shared.map(|_| (srq_ledger, SrqUser::Qp(case.qpn))),
        ..Attach::default()
    };
    // SAFETY: the only poller.
    let user_index = unsafe { completions.attach(attached) };
    same("user index", user_index.get(), case.user_index)?;

    let sges = buffers(&case.lengths);
    let counter = case.entry.wqe_counter();
    if case.requester() {
        replay::advance(&mut send, &mut completions, user_index, counter, ());
    }
    post_send(&mut send, case, wr_id, &sges)?;
    if let Some((tail, wr_id)) = case.recv {
        for at in 0..=tail {
            let (wr_id, sges) = if at == tail {
                (wr_id, &sges[..])
            } else {
                (0, &[][..])
            };
            // SAFETY: the buffers live as long as the process.
            unsafe { recv.post(wr_id, sges) }?;
            recv.ring();
            if at != tail {
                let _ = completions.complete_recv(user_index, 0);
            }
        }
    }
    if let Some((slot, wr_id)) = case.shared {
        // A fresh queue posts its slots in order.
        for at in 0..=slot + 1 {
            let (wr_id, sges) = if at == slot {
                (wr_id, &sges[..])
            } else {
                (0, &[][..])
            };
            // SAFETY: the buffers live as long as the process.
            unsafe { srq.post(wr_id, sges) }?;
        }
        srq.ring();
    }

    // Far enough for slot and owner bit to be the row's.
    const LAPS: u32 = 4096;
    let ahead = case.ci.wrapping_sub(completions.written()) % LAPS;
    completions.skip_to(completions.written() + ahead);
    let stale = completions.queue.stale();
    completions.write_as(&case.front, &case.entry, case.entry.op_own());
    let completion = completions.queue.poll_one();
    let owned = is_sw_owned(case.entry.op_own(), case.ci, case.sizes.0);
    if !completions.queue.malformed() {
        let consumed = (case.ci + u32::from(owned)) % LAPS;
        let record = completions.records[0].load() % LAPS;
        same("consumer record", record, consumed)?;
    }
    Ok(Polled {
        completion,
        stale: completions.queue.stale() - stale,
        buffers: sges.iter().map(content).collect(),
    })
}

/// Checks a row of any kind: what became of each of its entries.
pub fn check(row: &Row) -> Check<Vec<Outcome>> {
    match row.str("k")? {
        "cqe" => {
            let case = Case::of_entry(row)?;
            let wc = row.has("wc").then(|| row.row("wc")).transpose()?;
            Ok(vec![check_case(&case, wc)?])
        }
        "poll" => {
            let entries = row.hexes("cqes")?;
            let asked = row.int::<usize>("ne")?.min(entries.len());
            let mut completions = row.rows("wcs")?.into_iter();
            let mut outcomes = Vec::new();
            for (index, bytes) in (0..).zip(&entries[..asked]) {
                let case = Case::of_several(row, index, bytes[..].try_into()?)?;
                outcomes.push(check_case(&case, completions.next())?);
            }
            Ok(outcomes)
        }
        _ => Ok(vec![check_page_fault(row)?]),
    }
}

fn check_page_fault(row: &Row) -> Check<Outcome> {
    let case = Case {
        row,
        entry: Cqe64::from_bytes(row.bytes("cqe")?),
        front: [UNTOUCHED; 64],
        ci: row.int("ci")?,
        sizes: (row.int("cqe_cnt")?, 64),
        user_index: 1,
        qpn: 0xa500ff,
        lengths: Vec::new(),
        send: Some((32, 1)),
        recv: None,
        shared: Some((row.int("srq_slot")?, 2)),
    };
    check_case(&case, None)
}

fn check_case(case: &Case, wc: Option<Row>) -> Check<Outcome> {
    let polled = run(case)?;
    let cqe = &case.entry;
    let owned = is_sw_owned(cqe.op_own(), case.ci, case.sizes.0);
    let untouched = polled
        .buffers
        .iter()
        .all(|buffer| buffer.bytes().all(|b| b == b'c'));
    if cqe.format() == CqeFormat::Compressed && owned {
        same("buffers untouched", untouched, true)?;
        return Ok(Outcome::Compressed);
    }
    let Some(completion) = polled.completion else {
        same("dropped", polled.stale, u64::from(owned))?;
        same("buffers untouched", untouched, true)?;
        if !owned {
            same("nothing reported", false, wc.is_some())?;
            return Ok(Outcome::Nothing);
        }
        let nothing = cqe.status().is_none() || cqe.user_index() != case.user_index;
        same("names no request", nothing, true)?;
        if let Some(wc) = wc {
            same("status", None, wc.opt::<u8>("status")?)?;
        }
        return Ok(Outcome::Dropped);
    };
    same("dropped", polled.stale, 0)?;
    same("retired", completion.retired, 1)?;
    same("wr_id", completion.wr_id, case.wr_id()?)?;
    same("qp_num", completion.qp_num, case.qpn)?;
    same("queue", cqe.user_index(), case.user_index)?;
    let Some(wc) = wc else {
        same("status", Some(completion.status()), cqe.status())?;
        return Ok(Outcome::ReportedAfterAll);
    };
    same("wr_id", completion.wr_id, wc.int("wr_id")?)?;
    same("qp_num", completion.qp_num, wc.int("qp_num")?)?;
    let outcome = check_buffers(case, &polled.buffers, &completion)?;
    if outcome == Outcome::FailedBeyondRoom {
        same("status", completion.status(), WcStatus::LocLenErr)?;
        return Ok(outcome);
    }
    check_result(case, &completion, &wc, outcome)
}

/// What arrived in the request's memory: the entry's bytes, in order, as many as there are.
fn check_buffers(case: &Case, buffers: &[String], completion: &Completion) -> Check<Outcome> {
    let cqe = &case.entry;
    if cqe.format() == CqeFormat::None {
        let untouched = buffers
            .iter()
            .all(|buffer| buffer.bytes().all(|b| b == b'c'));
        same("buffers untouched", untouched, true)?;
        return Ok(Outcome::Same);
    }
    let wide = Cqe128 {
        payload: case.front,
        cqe: *cqe,
    };
    let data = match case.sizes.1 {
        128 => wide.inline_data(),
        _ => cqe.inline_data(),
    };
    let mut left = to_hex(data);
    for (buffer, len) in buffers.iter().zip(&case.lengths) {
        let rest = left.split_off(left.len().min(2 * len));
        let expected = format!("{left}{}", "cc".repeat(len - left.len() / 2));
        same("buffer", buffer, &expected)?;
        left = rest;
    }
    let claimed = cqe.byte_len().unwrap_or(0) as usize;
    let failed = !left.is_empty() || data.len() < claimed;
    same("fits", completion.result.is_err(), failed)?;
    if data.len() < claimed {
        return Ok(Outcome::FailedBeyondRoom);
    }
    let recorded = case.row.hexes("scat")?;
    let recorded: Vec<String> = recorded.iter().map(|buffer| to_hex(buffer)).collect();
    if buffers == recorded {
        return Ok(Outcome::Same);
    }
    // The driver takes them from elsewhere.
    same(
        "a READ in a wide entry",
        (case.requester(), case.sizes.1),
        (true, 128),
    )?;
    Ok(Outcome::ReadResultRight)
}

fn check_result(
    case: &Case,
    completion: &Completion,
    wc: &Row,
    outcome: Outcome,
) -> Check<Outcome> {
    let status = completion.status().number();
    same("status", Some(status), wc.opt("status")?)?;
    let success = match &completion.result {
        Ok(success) => success,
        Err(failure) => {
            let vendor_err = case.entry.opcode().is_error().then_some(failure.vendor_err);
            same("vendor_err", vendor_err, wc.opt("vendor_err")?)?;
            return Ok(outcome);
        }
    };
    let known = case.entry.wc_opcode().filter(|opcode| {
        // The driver reports the completion of a NOP as what is on record.
        !matches!(opcode, WcOpcode::Tso | WcOpcode::Nop)
    });
    if known.is_none() {
        let posted = match case.entry.wc_opcode() {
            Some(WcOpcode::Nop) => WcOpcode::Nop,
            _ => WcOpcode::Send,
        };
        same("operation", success.opcode, posted)?;
        return Ok(Outcome::OperationOnRecord);
    }
    let number = Some(success.opcode.number());
    same("opcode", number, wc.opt("opcode")?)?;
    same("byte_len", success.byte_len(), wc.opt("byte_len")?)?;
    if !case.requester() {
        check_message(case, success, wc)?;
    }
    Ok(outcome)
}

fn check_message(case: &Case, success: &Success, wc: &Row) -> Check {
    let imm = match success.imm() {
        Imm::None => None,
        Imm::Data(imm) => Some((2, imm.to_bytes())),
        // In the host's order of the recording machine.
        Imm::Invalidated(rkey) => Some((8, rkey.to_le_bytes())),
    };
    match imm {
        Some((_, bytes)) => same("imm", bytes, wc.bytes("imm_mem")?)?,
        None => same("no imm", None, wc.opt::<u32>("imm_mem")?)?,
    }
    let flags = imm.map_or(0, |(flag, _)| flag);
    let recorded: u8 = wc.int("wc_flags")?;
    // Payload in the descriptor is where the source would be; the driver reports its bits as that.
    if case.entry.format() == CqeFormat::Inline32 {
        same("flags", flags, recorded & 10)?;
        return same(
            "no source",
            (success.grh(), success.src_qp()),
            (false, None),
        );
    }
    // Checksums are those of raw packets.
    same("flags", flags | u8::from(success.grh()), recorded & 11)?;
    same("src_qp", success.src_qp(), wc.opt("src_qp")?)?;
    same("solicited", success.solicited(), case.entry.solicited())
}
