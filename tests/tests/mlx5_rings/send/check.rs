//! Compares what core made of a row with what the driver made of it.

use super::replay::{Entry, Made, REGISTER};
use bellwire_core::queue::PostError;
use bellwire_tests::replay::UNTOUCHED;
use bellwire_tests::vectors::{Row, to_hex};
use std::error::Error;
use std::fmt::Debug;

/// Where core does something else than the driver. The row is then checked for both: that the driver
/// did just this, and that core does the right thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deviation {
    /// The driver writes 8 for the length of an atomic's elements, core what the caller says.
    AtomicLengthForced,
    /// The driver refuses a request beyond `max_post` with ENOMEM. Core counts free blocks, and
    /// there are some.
    LimitedByRequests,
    /// The driver refuses an operation that has no type in core.
    NoSuchOperation,
    /// A chain whose last request is refused for its inline length rings with what that request
    /// left in the ring, not with the last entry. Core rings with the last entry.
    StaleEntryRung,
    /// One refused request takes the whole batch of the extended API back. Core refuses that
    /// request alone.
    BatchTakenBack,
    /// Inline bytes make an entry of 64 segments, which its size field of 6 bits cannot say. Core
    /// does not accept so many bytes.
    SizeOverflows,
}

/// In the note of a chain that rang with a stale entry.
pub const STALE: &str = "last WR inline";

pub type Check<T = ()> = Result<T, Box<dyn Error>>;

fn same<T: PartialEq + Debug>(what: &str, ours: T, recorded: T) -> Check {
    if ours == recorded {
        return Ok(());
    }
    Err(format!("{what}: core says {ours:?}, the row {recorded:?}").into())
}

fn same_bytes(what: &str, ours: &[u8], recorded: &[u8], unwritten: &[bool]) -> Check {
    if ours.len() != recorded.len() {
        return Err(format!(
            "{what}: {} bytes, the row has {}",
            ours.len(),
            recorded.len()
        )
        .into());
    }
    let differ = |at: &usize| ours[*at] != recorded[*at] && !unwritten.get(*at).unwrap_or(&false);
    match (0..ours.len()).find(differ) {
        None => Ok(()),
        Some(at) => {
            let (ours, recorded) = (to_hex(ours), to_hex(recorded));
            Err(format!("{what}, byte {at}: core\n{ours}, the row\n{recorded}").into())
        }
    }
}

/// Which bytes of an entry the driver did not write, up to the end of its last block.
fn unwritten(request: &Row, ds: u32) -> Check<Vec<bool>> {
    let mut unwritten = vec![false; ds.div_ceil(4) as usize * 64];
    let count = request.value()["un"].as_array().map_or(0, Vec::len);
    for at in 0..count {
        let range = request.ints::<usize>(&format!("un.{at}"))?;
        let range = range[0]..range[0] + range[1];
        let Some(range) = unwritten.get_mut(range) else {
            return Err("unwritten bytes behind the last block".into());
        };
        range.fill(true);
    }
    Ok(unwritten)
}

/// Checks what core made of a row.
pub fn check(row: &Row, made: &Made) -> Check<Vec<Deviation>> {
    let mut found = Vec::new();
    let requests = row.rows("wrs")?;
    let good: usize = row.int("good")?;
    if good > requests.len() {
        return Err("more requests accepted than there are".into());
    }
    let failed = good < requests.len();
    let before_last = made.entries.len() + usize::from(failed) < requests.len();
    let overflow = made.refused.is_some() && before_last;
    let batch = row.str("api")? == "wr";
    let note = match row.has("note") {
        true => row.str("note")?,
        false => "",
    };

    // EINVAL for what does not exist, ENOMEM for what does not fit.
    let errno = match (failed, note.contains("bad opcode")) {
        (false, _) => 0,
        (true, true) => 22,
        (true, false) => 12,
    };
    same("result", errno, row.int::<i32>("ret")?)?;
    if !(batch && failed) {
        let recorded = good.min(made.entries.len());
        same("requests accepted", made.entries.len(), recorded)?;
    }
    if overflow {
        check_overflow(made, row)?;
    } else {
        check_refusal(row, made, note, &mut found)?;
    }
    for (entry, request) in made.entries.iter().zip(&requests[..good]) {
        check_entry(row, entry, request, &mut found)?;
    }
    if overflow {
        let request = &requests[made.entries.len()];
        // A batch that the driver takes back says no sizes.
        if request.has("ds") {
            same("segments of what core refuses", 64, request.int("ds")?)?;
        }
        found.push(Deviation::SizeOverflows);
        return Ok(found);
    }
    if batch && failed {
        same("requests accepted", 0, good)?;
        same("counter", row.int::<u16>("ctr")?, row.int("next")?)?;
        same("record", row.hex("dbr_before")?, row.hex("dbr")?)?;
        same("registers written", 0, row.rows("mmio")?.len())?;
        if !made.beyond {
            found.push(Deviation::BatchTakenBack);
        }
    } else {
        same("counter", made.next, row.int("next")?)?;
        same("record", made.record, row.bytes("dbr")?)?;
        if good != 0 {
            check_register(row, made, note, &mut found)?;
        } else {
            same("registers written", 0, row.rows("mmio")?.len())?;
        }
    }
    if made.entries.is_empty() {
        let untouched = made.register.iter().all(|&byte| byte == UNTOUCHED);
        same("register without a request", untouched, true)?;
    }
    Ok(found)
}

/// Core refused a request for inline bytes that the driver allows, although its entry cannot say their size.
fn check_overflow(made: &Made, row: &Row) -> Check {
    let Some((request, error)) = &made.refused else {
        return Err("core refused nothing".into());
    };
    let (given, max) = (request.inline_len(), made.max_inline);
    same("error", *error, PostError::InlineTooLong { given, max })?;
    let allowed = given <= row.int::<usize>("max_inline")?;
    same("inline bytes within the driver's limit", allowed, true)
}

fn check_refusal(row: &Row, made: &Made, note: &str, found: &mut Vec<Deviation>) -> Check {
    same("bytes written by a refused request", made.strays, 0)?;
    let failed = row.int::<usize>("good")? < row.rows("wrs")?.len();
    if !failed {
        same("accepted beyond the row", made.beyond, false)?;
        return same("refused", made.refused.is_some(), false);
    }
    if note.contains("max_post") {
        if made.refused.is_some() {
            check_overflow(made, row)?;
            found.push(Deviation::SizeOverflows);
        } else {
            same("one more accepted", made.beyond, true)?;
        }
        let max_post = row.int::<usize>("max_post")?;
        same("requests", row.rows("wrs")?.len(), max_post + 1)?;
        found.push(Deviation::LimitedByRequests);
        return Ok(());
    }
    same("accepted", made.beyond, false)?;
    if note.contains("bad opcode") {
        same("refused", made.refused.is_none(), true)?;
        let last = row.rows("wrs")?.pop().ok_or("no requests")?;
        same("operation", "BAD", last.str("op")?)?;
        found.push(Deviation::NoSuchOperation);
        return Ok(());
    }
    let Some((request, error)) = &made.refused else {
        return Err("core accepts what the driver refused".into());
    };
    let expected = if note.contains("num_sge") {
        let last = row.rows("wrs")?.pop().ok_or("no requests")?;
        PostError::TooManySges {
            given: last.value()["sge"].as_array().map_or(0, Vec::len),
            max: row.int("max_sge")?,
        }
    } else {
        PostError::InlineTooLong {
            given: request.inline_len(),
            max: made.max_inline,
        }
    };
    same("error", *error, expected)
}

fn check_entry(row: &Row, entry: &Entry, request: &Row, found: &mut Vec<Deviation>) -> Check {
    let place = request.place();
    same(place, entry.request.wr_id(), request.int("wr_id")?)?;
    same(place, entry.counter, request.int("ctr")?)?;
    same(place, entry.slot, request.int("slot")?)?;
    same(place, entry.ds, request.int("ds")?)?;
    let unwritten = unwritten(request, entry.ds)?;
    let (ours, forced) = with_forced_lengths(row, entry)?;
    found.extend((0..forced).map(|_| Deviation::AtomicLengthForced));
    let ours = &ours[..entry.ds as usize * 16];
    same_bytes(place, ours, &request.hex("wqe")?, &unwritten)
}

/// The entry's bytes, with the lengths that the driver writes for atomics; how many differ.
fn with_forced_lengths(row: &Row, entry: &Entry) -> Check<(Vec<u8>, usize)> {
    let mut bytes = entry.bytes.clone();
    let mut forced = 0;
    if entry.request.is_atomic() && row.str("api")? == "post_send" {
        let address = if row.str("type")? == "XRC_SEND" {
            16
        } else {
            0
        };
        let data = &mut bytes[address + 48..entry.ds as usize * 16];
        for segment in data.chunks_exact_mut(16) {
            forced += usize::from(segment[..4] != [0, 0, 0, 8]);
            segment[..4].copy_from_slice(&[0, 0, 0, 8]);
        }
    }
    Ok((bytes, forced))
}

/// What the register holds after the ring.
fn check_register(row: &Row, made: &Made, note: &str, found: &mut Vec<Deviation>) -> Check {
    let writes = row.rows("mmio")?;
    let ([write], Some(last)) = (&writes[..], made.entries.last()) else {
        return Err("expected one ring".into());
    };
    let (offset, len): (usize, usize) = (write.int("off")?, write.int("len")?);
    let recorded = write.hex("hex")?;
    same("length of the ring", recorded.len(), len)?;
    let whole = made.entries.len() == 1 && (2..=16).contains(&last.ds);
    let ours = if whole {
        &last.bytes[..]
    } else {
        &last.bytes[..8]
    };

    let mut register = vec![UNTOUCHED; REGISTER];
    let place = register.get_mut(offset..offset + ours.len());
    place.ok_or("no such half")?.copy_from_slice(ours);
    same_bytes("register", &made.register, &register, &[])?;

    if note.contains(STALE) {
        let stale = recorded[..8] != last.bytes[..8];
        same("rung with a stale entry", stale, true)?;
        found.push(Deviation::StaleEntryRung);
        return Ok(());
    }
    let requests = row.rows("wrs")?;
    let unwritten = unwritten(&requests[made.entries.len() - 1], last.ds)?;
    let (forced, _) = with_forced_lengths(row, last)?;
    same_bytes("ring", &forced[..ours.len()], &recorded, &unwritten)
}
