//! Compares one recorded row with what core makes of the same bytes.
//!
//! Left out, because only queues can find it: `wr_id`, which [`queue`](super::queue) checks. What a
//! queue has to find it by is checked: the user index, and the slot that the counter in the entry
//! falls on.

use bellwire_core::cqe::{Cqe64, Cqe128, CqeFormat, CqeOpcode, Syndrome, WcFlags};
use bellwire_core::cqe::{is_sw_owned, scatter};
use bellwire_core::op;
use bellwire_core::wr::{Sge, WcOpcode, WcStatus};
use bellwire_tests::vectors::{Row, to_hex};
use std::error::Error;
use std::fmt::Debug;

/// Where the driver does what core does not. The row is then checked for both: that the driver did
/// just this, and that core does the right thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deviation {
    /// READ results in the descriptor of a 128-byte entry are taken from the entry's other half.
    ReadResultFromWrongHalf,
    /// READ results in front of the descriptor are taken from one byte too early.
    ReadResultOneByteEarly,
    /// The entry claims more payload than it has room for, and the driver reads on behind it. To
    /// core the request failed.
    PayloadBeyondRoom,
    /// The head of a compressed block is taken for an entry with payload.
    CompressedAsPayload,
    /// A completed NOP is reported as what the send queue has on record, and so is one of the other operations
    /// that the driver knows by its record alone. So does core's queue; the entry by itself says NOP or nothing.
    OperationAsRecorded,
    /// An opcode that completes nothing gives a completion, of which nothing is set.
    CompletionOfNothing,
    /// `ibv_poll_cq` fails at an entry, and the entry is gone.
    Lost,
    /// The same in `ibv_start_poll`.
    LostExtended,
    /// As `Lost`, and what was polled before in the same call is gone too.
    LostWithOthers,
    /// A failed receive of a shared receive queue is posted again, and not reported.
    PageFaultNotReported,
}

pub type Check<T = ()> = Result<T, Box<dyn Error>>;

/// Checks one row of `cqe.jsonl`.
pub fn check(row: &Row) -> Check<Vec<Deviation>> {
    let mut found = Vec::new();
    match row.str("k")? {
        "cqe" => check_entry(row, &mut found)?,
        "poll" => check_poll(row, &mut found)?,
        "odp_srq" => check_page_fault(row, &mut found)?,
        other => return Err(format!("no check for rows of kind {other:?}").into()),
    }
    Ok(found)
}

pub fn same<T: PartialEq + Debug>(what: &str, ours: T, recorded: T) -> Check {
    if ours == recorded {
        return Ok(());
    }
    Err(format!("{what}: core says {ours:?}, the row {recorded:?}").into())
}

fn consumer_record(row: &Row, field: &str, ci: u32) -> Check {
    let record = (ci & 0xff_ffff).to_be_bytes();
    same(field, record, row.bytes(field)?)
}

/// Whether the driver gives up at this entry: it finds no queue for it, or it is of a kind that was
/// never asked for.
fn driver_fails(cqe: &Cqe64, user_index: u32, extended: bool) -> bool {
    let opcode = cqe.opcode();
    match opcode {
        CqeOpcode::NoPacket | CqeOpcode::SigErr => true,
        _ if cqe.status().is_none() => false,
        _ if cqe.user_index() != user_index => true,
        _ => extended && opcode.is_received() && cqe.app() == 1,
    }
}

fn check_entry(row: &Row, found: &mut Vec<Deviation>) -> Check {
    let cqe = Cqe64::from_bytes(row.bytes("cqe")?);
    let ci = row.int("ci")?;
    if !is_sw_owned(cqe.op_own(), ci, row.int("cqe_cnt")?) {
        same("polled", 0, row.int::<i32>("ret")?)?;
        // ENOENT.
        same("polled, ex", 2, row.int::<i32>("ex.ret")?)?;
        consumer_record(row, "dbr", ci)?;
        return consumer_record(row, "dbr_ex", ci);
    }

    let user_index = row.int("uidx")?;
    let known = row.str("grp")? != "unknown_uidx";
    same("user index", cqe.user_index() == user_index, known)?;
    same("qpn", cqe.qpn(), row.int("qpn")?)?;
    check_slot(row, &cqe)?;
    let payload = check_payload(row, &cqe, found)?;
    let checksums = row.str("scn")? == "raw";

    let lost = driver_fails(&cqe, user_index, false);
    same("polled", if lost { -2 } else { 1 }, row.int::<i32>("ret")?)?;
    same("completion", !lost, row.has("wc"))?;
    consumer_record(row, "dbr", ci + 1)?;
    if lost {
        found.push(Deviation::Lost);
    } else {
        check_completion(&row.row("wc")?, &cqe, &payload, checksums, found)?;
    }

    let lost = driver_fails(&cqe, user_index, true);
    let expected = if lost { -2 } else { 0 };
    same("polled, ex", expected, row.int::<i32>("ex.ret")?)?;
    if lost {
        found.push(Deviation::LostExtended);
        return consumer_record(row, "dbr_ex", ci);
    }
    consumer_record(row, "dbr_ex", ci + 1)?;
    check_readers(&row.row("ex")?, &cqe, &payload, checksums)
}

/// The slot of the request, where the row says it. The slot of a receive queue it does not say:
/// receives complete in order.
fn check_slot(row: &Row, cqe: &Cqe64) -> Check {
    let counter = cqe.wqe_counter();
    match cqe.opcode() {
        CqeOpcode::Req | CqeOpcode::ReqErr => {
            let mask = row.int::<u16>("pre.sq_wqe_cnt")? - 1;
            let posted = row.int::<u16>("pre.sq_ctr")?;
            same("send queue slot", counter & mask, posted & mask)
        }
        opcode if (opcode.is_received() || opcode.is_error()) && row.has("pre.srq_slot") => same(
            "shared receive queue slot",
            counter,
            row.int("pre.srq_slot")?,
        ),
        _ => Ok(()),
    }
}

/// The operation on record in the recordings: SEND, which is 0 as a completion's opcode.
const ON_RECORD: Option<u8> = Some(WcOpcode::Send.number());

/// Whether the driver reports the completion as what the send queue has on record, whatever it is: of NOP, SET_PSV,
/// UMR and MMO. Of an opcode that it does not know, it sets nothing.
fn is_known_by_record(cqe: &Cqe64) -> bool {
    const SET_PSV: u8 = 0x20;
    const MMO: u8 = 0x2f;
    let known = [op::opcode::NOP, SET_PSV, op::opcode::UMR, MMO];
    cqe.opcode() == CqeOpcode::Req && known.contains(&cqe.send_opcode())
}

/// What became of payload within the entry.
struct Payload {
    /// The driver found that it did not fit the request's list.
    driver_failed: bool,
}

fn check_payload(row: &Row, cqe: &Cqe64, found: &mut Vec<Deviation>) -> Check<Payload> {
    let group = row.str("grp")?;
    let format = match group {
        _ if group.contains("scatter32") => CqeFormat::Inline32,
        _ if group.contains("scatter64") => CqeFormat::Inline64,
        "compressed" => CqeFormat::Compressed,
        _ => CqeFormat::None,
    };
    same("format", cqe.format(), format)?;
    let front: Option<[u8; 64]> = row.has("half0").then(|| row.bytes("half0")).transpose()?;
    same(
        "size",
        row.int("cqe_size")?,
        64 + 64 * u32::from(front.is_some()),
    )?;
    let wide = front.map(|payload| Cqe128 { payload, cqe: *cqe });
    let ours = wide.as_ref().map_or(cqe.inline_data(), Cqe128::inline_data);
    if format == CqeFormat::None {
        same("payload", ours, &[])?;
        let driver_failed = false;
        return Ok(Payload { driver_failed });
    }

    let front = front.unwrap_or([0; 64]);
    let descriptor = row.bytes::<64>("cqe")?;
    let claimed: usize = row.int("wc.byte_len")?;
    let (room, behind) = match format {
        CqeFormat::Inline64 => (&front[..], &descriptor[..]),
        _ => descriptor.split_at(32),
    };
    let right = &room[..claimed.min(room.len())];
    let requester = cqe.opcode() == CqeOpcode::Req;
    let recorded = row.hexes("scat")?;
    let mut driver = right.to_vec();
    let deviation = match format {
        CqeFormat::Compressed => {
            same("payload of a block's head", ours, &[])?;
            Some(Deviation::CompressedAsPayload)
        }
        _ if claimed > room.len() => {
            driver.extend(&behind[..claimed - room.len()]);
            Some(Deviation::PayloadBeyondRoom)
        }
        CqeFormat::Inline64 if requester => {
            // The byte in front is of the entry before, which the row does not say.
            let early = recorded.iter().flatten().chain(&front);
            driver = early.take(1).chain(&front).take(claimed).copied().collect();
            Some(Deviation::ReadResultOneByteEarly)
        }
        CqeFormat::Inline32 if requester && wide.is_some() => {
            driver = front[..claimed].to_vec();
            Some(Deviation::ReadResultFromWrongHalf)
        }
        _ => None,
    };
    if format != CqeFormat::Compressed {
        same("payload", ours, right)?;
    }

    let lengths = row.ints("pre.scat_len")?;
    let (buffers, left) = distribute(&driver, &lengths);
    let hex = |buffers: &[Vec<u8>]| buffers.iter().map(|b| to_hex(b)).collect::<Vec<_>>();
    same("receive buffers", hex(&buffers), hex(&recorded))?;
    same(
        "receive buffers, ex",
        hex(&buffers),
        hex(&row.hexes("scat_ex")?),
    )?;
    let driver_failed = left != 0;
    let (_, left) = distribute(ours, &lengths);
    let failed = left != 0 || ours.len() < claimed;
    match deviation {
        None => same("payload does not fit", failed, driver_failed)?,
        Some(Deviation::PayloadBeyondRoom) => same("payload is not whole", failed, true)?,
        Some(_) => {}
    }
    found.extend(deviation);
    Ok(Payload { driver_failed })
}

/// What core copies to buffers of these lengths, and how many bytes find no place.
fn distribute(data: &[u8], lengths: &[u32]) -> (Vec<Vec<u8>>, usize) {
    let mut buffers: Vec<_> = lengths.iter().map(|&n| vec![0xcc; n as usize]).collect();
    let list = (0..).zip(lengths).map(|(addr, &length)| Sge {
        addr,
        length,
        lkey: 1,
    });
    let left = scatter(data, list, |sge, bytes| {
        buffers[sge.addr as usize][..bytes.len()].copy_from_slice(bytes);
    });
    (buffers, left)
}

fn status_number(cqe: &Cqe64, payload: &Payload) -> Option<u8> {
    let status = match payload.driver_failed {
        true => Some(WcStatus::LocLenErr),
        false => cqe.status(),
    };
    status.map(WcStatus::number)
}

/// What `ibv_poll_cq` gave; null is a field that the driver left alone.
fn check_completion(
    wc: &Row,
    cqe: &Cqe64,
    payload: &Payload,
    checksums: bool,
    found: &mut Vec<Deviation>,
) -> Check {
    let opcode = cqe.opcode();
    let received = opcode.is_received();
    // The driver returns early when the payload of a receive does not fit.
    let early = received && payload.driver_failed;
    let message = received && !early;

    same("status", status_number(cqe, payload), wc.opt("status")?)?;
    let number = cqe.wc_opcode().map(|opcode| opcode.number());
    if is_known_by_record(cqe) {
        let nop = (cqe.send_opcode() == op::opcode::NOP).then_some(WcOpcode::Nop.number());
        same("opcode of the entry", number, nop)?;
        same("opcode on record", ON_RECORD, wc.opt("opcode")?)?;
        found.push(Deviation::OperationAsRecorded);
    } else {
        same("opcode", number.filter(|_| !early), wc.opt("opcode")?)?;
    }
    if cqe.status().is_none() {
        found.push(Deviation::CompletionOfNothing);
    }
    let vendor_err = opcode.is_error().then(|| cqe.vendor_err_synd());
    same("vendor_err", vendor_err, wc.opt("vendor_err")?)?;
    same("byte_len", cqe.byte_len(), wc.opt("byte_len")?)?;
    same("qp_num", cqe.qpn(), wc.int("qp_num")?)?;

    let mut flags = match early {
        true => WcFlags::empty(),
        false => cqe.wc_flags(),
    };
    flags.set(
        WcFlags::IP_CSUM_OK,
        received && checksums && cqe.checksum_ok(),
    );
    same("wc_flags", flags.bits(), wc.int("wc_flags")?)?;

    let present = |value: u32| message.then_some(value);
    same("src_qp", present(cqe.src_qpn()), wc.opt("src_qp")?)?;
    same("slid", present(cqe.slid().into()), wc.opt("slid")?)?;
    same("sl", present(cqe.sl().into()), wc.opt("sl")?)?;
    let path_bits = present(cqe.dlid_path_bits().into());
    same("dlid_path_bits", path_bits, wc.opt("dlid_path_bits")?)?;
    same(
        "pkey_index",
        present(cqe.pkey_index().into()),
        wc.opt("pkey_index")?,
    )?;

    let imm = message && flags.intersects(WcFlags::WITH_IMM | WcFlags::WITH_INV);
    if imm {
        same("imm or rkey", imm_memory(cqe), wc.bytes("imm_mem")?)
    } else {
        same("no imm", None, wc.opt::<u32>("imm_mem")?)
    }
}

/// The immediate is kept as it was on the wire; an invalidated key is a host value.
fn imm_memory(cqe: &Cqe64) -> [u8; 4] {
    match cqe.opcode() {
        CqeOpcode::RespSendInv => cqe.inval_rkey().to_le_bytes(),
        _ => cqe.imm().to_bytes(),
    }
}

/// What the readers of the extended API gave: the fields as they stand, whether they have a
/// meaning for this completion or not.
fn check_readers(ex: &Row, cqe: &Cqe64, payload: &Payload, checksums: bool) -> Check {
    let received = cqe.opcode().is_received();
    // The driver leaves the status of a completion of nothing as it was.
    if cqe.status().is_some() {
        same("ex status", status_number(cqe, payload), ex.opt("status")?)?;
    }
    // Of one that it does not know the driver gives 0, which is SEND, too.
    let opcode = cqe.wc_opcode().map(|opcode| opcode.number());
    let opcode = opcode.filter(|_| !is_known_by_record(cqe));
    same("ex opcode", opcode.unwrap_or(0), ex.int("opcode")?)?;
    same(
        "ex vendor_err",
        cqe.vendor_err_synd(),
        ex.int("vendor_err")?,
    )?;
    same("ex byte_len", cqe.byte_cnt(), ex.int("byte_len")?)?;
    same("ex qp_num", cqe.qpn(), ex.int("qp_num")?)?;
    same("ex src_qp", cqe.src_qpn(), ex.int("src_qp")?)?;
    let mut flags = match received {
        true => cqe.wc_flags(),
        false => WcFlags::empty(),
    };
    flags.set(WcFlags::GRH, cqe.grh() != 0);
    flags.set(
        WcFlags::IP_CSUM_OK,
        received && checksums && cqe.checksum_ok(),
    );
    same("ex wc_flags", flags.bits(), ex.int("wc_flags")?)?;
    same("ex slid", cqe.slid(), ex.int("slid")?)?;
    same("ex sl", cqe.sl(), ex.int("sl")?)?;
    same("ex path", cqe.dlid_path_bits(), ex.int("dlid_path_bits")?)?;
    same("ex ts", cqe.timestamp(), ex.int("ts")?)?;
    same("ex cvlan", cqe.vlan(), ex.int("cvlan")?)?;
    same("ex flow_tag", cqe.flow_tag(), ex.int("flow_tag")?)?;
    let imm = imm_memory(cqe);
    same("ex imm_mem", imm, ex.bytes("imm_mem")?)?;
    // The same memory, read as a host value of the recording machine.
    same("ex inv_rkey", u32::from_le_bytes(imm), ex.int("inv_rkey")?)
}

/// Several entries, polled in one call.
fn check_poll(row: &Row, found: &mut Vec<Deviation>) -> Check {
    let (ci, cqe_cnt): (u32, u32) = (row.int("ci")?, row.int("cqe_cnt")?);
    let user_index = row.int("uidx")?;
    let entries = row.hexes("cqes")?;
    let asked = row.int::<usize>("ne")?.min(entries.len());
    let completions = row.rows("wcs")?;
    let payload = Payload {
        driver_failed: false,
    };
    let mut polled = 0;
    for (index, bytes) in (ci..).zip(&entries[..asked]) {
        let bytes = <[u8; 64]>::try_from(&bytes[..])?;
        let cqe = Cqe64::from_bytes(bytes);
        let owned = is_sw_owned(cqe.op_own(), index, cqe_cnt);
        same("owned by software", owned, true)?;
        same("qpn", cqe.qpn(), row.int("qpn")?)?;
        if driver_fails(&cqe, user_index, false) {
            found.push(Deviation::LostWithOthers);
            same("polled", -2, row.int::<i32>("ret")?)?;
            same("completions", 0, completions.len())?;
            return consumer_record(row, "dbr", index + 1);
        }
        match completions.get(polled) {
            Some(wc) => check_completion(wc, &cqe, &payload, false, found)?,
            // Lost by the driver with a later entry; core can report it.
            None => same("reported", cqe.status().is_some(), true)?,
        }
        polled += 1;
    }
    same("polled", polled, row.int("ret")?)?;
    same("completions", polled, completions.len())?;
    consumer_record(row, "dbr", ci + polled as u32)
}

/// A page fault in a receive of a shared receive queue.
fn check_page_fault(row: &Row, found: &mut Vec<Deviation>) -> Check {
    let cqe = Cqe64::from_bytes(row.bytes("cqe")?);
    let ci = row.int("ci")?;
    let owned = is_sw_owned(cqe.op_own(), ci, row.int("cqe_cnt")?);
    same("owned by software", owned, true)?;
    same("opcode", cqe.opcode(), CqeOpcode::RespErr)?;
    same("syndrome", cqe.syndrome(), Syndrome::REMOTE_ABORTED)?;
    same("status", cqe.status(), Some(WcStatus::RemAbortErr))?;
    // MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT.
    same("vendor_err", cqe.vendor_err_synd(), 0x93)?;
    same("slot", cqe.wqe_counter(), row.int("srq_slot")?)?;
    same("polled", 0, row.int::<i32>("ret")?)?;
    found.push(Deviation::PageFaultNotReported);
    consumer_record(row, "dbr", ci + 1)
}
