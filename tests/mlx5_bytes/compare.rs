//! Compares what an entry was reported as: by bellwire's completion queue, by what core reads in the entry,
//! by `ibv_poll_cq`, and by `ibv_start_poll` with the functions that read.

use crate::Check;
use crate::cqe::{Completes, Entry};
use crate::differ::{Difference, same};
use crate::theirs::{Polled, UNSET, Way, Wc};
use bellwire::cqe::{Cqe64, CqeFormat, CqeOpcode, WcFlags};
use bellwire::queue::{Completion, Imm, Success};
use bellwire::wqe::opcode;
use bellwire::wr::{WcOpcode, WcStatus};

/// What both sides know of an entry.
pub struct Case<'a> {
    pub entry: &'a Entry,
    /// What it is on our side.
    pub cqe: &'a Cqe64,
    /// What was posted, of a send.
    pub posted: Option<WcOpcode>,
    pub wr_id: Option<u64>,
    pub our_qpn: u32,
    pub their_qpn: u32,
}

/// Whether libmlx5 knows what this entry says was executed.
fn knows(cqe: &Cqe64) -> bool {
    let send = cqe.opcode() == CqeOpcode::Req;
    !(send && cqe.send_opcode() == opcode::NOP)
}

/// What a receive completes as.
fn is_receive(opcode: CqeOpcode) -> bool {
    opcode.is_received() || opcode == CqeOpcode::RespErr
}

/// Compares; gives the differences that there were.
pub fn compare(
    case: &Case<'_>,
    (ours, stale): (Option<&Completion<'static>>, u64),
    theirs: Polled,
    way: Way,
) -> Check<Vec<Difference>> {
    let entry = case.entry;
    match entry.completes {
        Completes::NotWritten => {
            same("reported", ours.is_some(), theirs != Polled::Nothing)?;
            same("dropped", stale, 0)?;
            Ok(Vec::new())
        }
        Completes::Nothing => {
            same("reported, of nothing", ours.is_some(), false)?;
            same("dropped", stale, 1)?;
            match theirs {
                Polled::Failed(_) => {}
                Polled::Completion(wc) => same("status of nothing", UNSET, wc.status)?,
                Polled::Nothing => return Err("libmlx5 saw nothing at all".into()),
            }
            Ok(vec![Difference::CompletesNothing])
        }
        Completes::Send | Completes::Receive => {
            same("dropped", stale, 0)?;
            let ours = ours.ok_or("bellwire reports nothing")?;
            let Polled::Completion(wc) = theirs else {
                return Err(format!("bellwire reports {ours:?}, libmlx5 {theirs:?}").into());
            };
            let mut found = completion(case, ours, &wc, way)?;
            if way == Way::Extended {
                readers(case, ours, &wc)?;
            }
            found.push(Difference::QpNumber);
            Ok(found)
        }
    }
}

/// What our completion says, and what theirs says of the same.
fn completion(
    case: &Case<'_>,
    ours: &Completion<'static>,
    wc: &Wc,
    way: Way,
) -> Check<Vec<Difference>> {
    let opcode = case.cqe.opcode();
    same("wr_id", Some(ours.wr_id), case.wr_id)?;
    same("wr_id", ours.wr_id, wc.wr_id)?;
    same("own qp_num", ours.qp_num, case.our_qpn)?;
    same("own qp_num", case.their_qpn, wc.qp_num)?;
    same("status", u32::from(ours.status().number()), wc.status)?;
    match &ours.result {
        Err(failure) => {
            same("is_recv", failure.is_recv, is_receive(opcode))?;
            if opcode.is_error() {
                same("vendor_err", u32::from(failure.vendor_err), wc.vendor_err)?;
                same("syndrome", failure.syndrome.0, case.entry.syndrome())?;
            } else {
                // Payload that does not fit the request.
                same("status", failure.status, WcStatus::LocLenErr)?;
            }
            Ok(Vec::new())
        }
        Ok(success) if opcode == CqeOpcode::Req => sent(case, success, wc),
        Ok(success) => received(case, success, wc, way),
    }
}

fn sent(case: &Case<'_>, success: &Success, wc: &Wc) -> Check<Vec<Difference>> {
    same("operation", Some(success.opcode), case.posted)?;
    let said = case.cqe.wc_opcode();
    if !knows(case.cqe) {
        return Ok(vec![Difference::OperationUnknown]);
    }
    if said.is_some_and(|said| said != success.opcode) {
        let said = said.map(|said| u32::from(said.number()));
        same("operation of the entry", said, Some(wc.opcode))?;
        return Ok(vec![Difference::OperationOnRecord]);
    }
    // Registration work is known by what was posted, to both; unless something else was.
    let registers = matches!(success.opcode, WcOpcode::LocalInv | WcOpcode::BindMw);
    if said.is_none() && !(registers && case.entry.send_opcode() == opcode::UMR) {
        return Ok(vec![Difference::OperationUnknown]);
    }
    same("opcode", u32::from(success.opcode.number()), wc.opcode)?;
    if let Some(bytes) = success.byte_len() {
        let atomic = matches!(success.opcode, WcOpcode::CompSwap | WcOpcode::FetchAdd);
        // The functions that read give the field, whatever it means.
        if !(atomic && wc.byte_len == case.cqe.byte_cnt()) {
            same("byte_len", bytes, wc.byte_len)?;
        }
    }
    Ok(Vec::new())
}

fn received(case: &Case<'_>, success: &Success, wc: &Wc, way: Way) -> Check<Vec<Difference>> {
    same("opcode", u32::from(success.opcode.number()), wc.opcode)?;
    same("byte_len", success.byte_len(), Some(wc.byte_len))?;
    let (mut flags, imm) = match success.imm() {
        Imm::None => (WcFlags::empty(), None),
        Imm::Data(imm) => (WcFlags::WITH_IMM, Some(imm.to_raw())),
        Imm::Invalidated(rkey) => (WcFlags::WITH_INV, Some(rkey)),
    };
    if let Some(imm) = imm {
        same("imm, or the key", imm, wc.imm)?;
    }
    same("solicited", success.solicited(), case.cqe.solicited())?;
    same("path bits", case.cqe.dlid_path_bits(), wc.path_bits)?;
    if way == Way::Legacy {
        same("pkey_index", case.cqe.pkey_index(), wc.pkey_index)?;
    }
    let Some(source) = success.source() else {
        same("format", case.cqe.format(), CqeFormat::Inline32)?;
        let theirs = wc.flags & !u32::from(WcFlags::GRH.bits());
        same("wc_flags", u32::from(flags.bits()), theirs)?;
        return Ok(vec![Difference::SourceUnderPayload]);
    };
    flags.set(WcFlags::GRH, source.grh);
    same("wc_flags", u32::from(flags.bits()), wc.flags)?;
    same("src_qp", source.qpn, wc.src_qp)?;
    same("slid", u32::from(source.slid), wc.slid)?;
    same("sl", source.sl, wc.sl)?;
    Ok(Vec::new())
}

/// What the functions that read give: the entry's fields as they stand, whether they have a meaning or not;
/// and what core's accessors give.
fn readers(case: &Case<'_>, ours: &Completion<'static>, wc: &Wc) -> Check {
    let cqe = case.cqe;
    same(
        "read: vendor_err",
        u32::from(cqe.vendor_err_synd()),
        wc.vendor_err,
    )?;
    same("read: byte_len", cqe.byte_cnt(), wc.byte_len)?;
    same("read: src_qp", cqe.src_qpn(), wc.src_qp)?;
    same("read: slid", u32::from(cqe.slid()), wc.slid)?;
    same("read: sl", cqe.sl(), wc.sl)?;
    same("read: path bits", cqe.dlid_path_bits(), wc.path_bits)?;
    let imm = match cqe.opcode() {
        CqeOpcode::RespSendInv => cqe.inval_rkey(),
        _ => cqe.imm().to_raw(),
    };
    same("read: imm", imm, wc.imm)?;
    let mut flags = match cqe.opcode().is_received() {
        true => cqe.wc_flags(),
        false => WcFlags::empty(),
    };
    flags.set(WcFlags::GRH, cqe.grh() != 0);
    same("read: wc_flags", u32::from(flags.bits()), wc.flags)?;
    // Of what failed and was received, the status says all there is.
    if ours.result.is_ok()
        && let Some(said) = cqe.wc_opcode()
        && knows(cqe)
    {
        same("read: opcode", u32::from(said.number()), wc.opcode)?;
    }
    Ok(())
}
