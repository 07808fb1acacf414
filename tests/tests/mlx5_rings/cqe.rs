//! Every completion entry that was recorded from rdma-core, read by core.

mod bits;
mod check;
mod queue;

use bellwire_tests::fixture::Random;
use bellwire_tests::vectors::{Recording, Row, to_hex};
use bits::Bits;
use check::{Deviation, check};
use queue::Outcome;
use serde_json::Value;
use std::collections::BTreeMap;

const FILE: &str = "cqe.jsonl";

fn group(row: &Row) -> String {
    let name = row.str("grp").or_else(|_| row.str("k"));
    name.expect("a group or a kind").to_owned()
}

#[test]
fn every_row_says_what_the_driver_said() {
    for (recording, rows) in super::recordings(FILE) {
        let [mut groups, mut deviations] = [BTreeMap::new(), BTreeMap::new()];
        for row in rows {
            let found = check(&row).unwrap_or_else(|error| panic!("{}: {error}", row.place()));
            super::count(&mut groups, group(&row));
            for deviation in found {
                super::count(&mut deviations, format!("{deviation:?}"));
            }
        }
        super::check_tally(&recording, "cqe: rows", &groups);
        super::check_tally(&recording, "cqe: deviations", &deviations);
    }
}

#[test]
fn every_entry_completes_the_request_that_the_driver_completes() {
    for (recording, rows) in super::recordings(FILE) {
        let mut outcomes = BTreeMap::new();
        for row in rows {
            let found = queue::check(&row);
            for outcome in found.unwrap_or_else(|error| panic!("{}: {error}", row.place())) {
                super::count(&mut outcomes, format!("{outcome:?}"));
            }
        }
        super::check_tally(&recording, "cqe: outcomes", &outcomes);
    }
}

/// A completion of a SEND whose entry says the send opcode `code`; `opcode` is what the driver reports.
fn completed_as(code: u8, opcode: Option<u8>) -> Row {
    let mut cqe = [0; 64];
    cqe[56..64].copy_from_slice(&[code, 0xa5, 0, 0xdd, 0, 5, 0, 0]);
    let cqe = to_hex(&cqe);
    let reported = opcode.map_or("null".to_owned(), |opcode| opcode.to_string());
    let read = opcode.unwrap_or(0);
    let row = format!(
        r#"{{"k":"cqe","grp":"req_sop","scn":"rc","cqe_size":64,"cqe_cnt":32,"ci":0,"uidx":0,"qpn":10813661,
            "cqe":"{cqe}","pre":{{"sq_wqe_cnt":32,"sq_ctr":5,"sq_wrid":77,"sq_op":"SEND"}},"ret":1,
            "wc":{{"wr_id":77,"status":0,"opcode":{reported},"vendor_err":null,"byte_len":null,"qp_num":10813661,
            "src_qp":null,"wc_flags":0,"pkey_index":null,"slid":null,"sl":null,"dlid_path_bits":null,
            "imm_mem":null}},"dbr":"00000001","ex":{{"ret":0,"wr_id":77,"status":0,"opcode":{read},
            "vendor_err":0,"byte_len":0,"qp_num":10813661,"src_qp":0,"wc_flags":0,"slid":0,"sl":0,
            "dlid_path_bits":0,"ts":0,"cvlan":0,"flow_tag":10813661,"inv_rkey":0,"imm_mem":"00000000"}},
            "dbr_ex":"00000001"}}"#
    );
    Row::parse("by hand", &row).expect("a row")
}

#[test]
fn what_bellwire_does_not_post_completes_what_it_posted() {
    const SEND: u8 = 0;
    // The driver looks NOP, SET_PSV, UMR and MMO up in its record.
    for code in [0x00, 0x20, 0x25, 0x2f] {
        let row = completed_as(code, Some(SEND));
        let found = check(&row).unwrap_or_else(|error| panic!("{code:#x}: {error}"));
        assert_eq!(found, [Deviation::OperationAsRecorded], "{code:#x}");
        assert!(
            check(&completed_as(code, Some(6))).is_err(),
            "{code:#x}: LOCAL_INV"
        );
        let outcome = queue::check(&row).unwrap_or_else(|error| panic!("{code:#x}: {error}"));
        assert_eq!(outcome, [Outcome::OperationOnRecord], "{code:#x}");
    }
    // Of these it reports no operation. Core's queue reports what was posted.
    for code in [0x02, 0x14, 0x15, 0x18, 0x19, 0x1b, 0x1f, 0x40, 0xff] {
        let row = completed_as(code, None);
        let found = check(&row).unwrap_or_else(|error| panic!("{code:#x}: {error}"));
        assert_eq!(found, [], "{code:#x}");
        assert!(
            check(&completed_as(code, Some(6))).is_err(),
            "{code:#x}: LOCAL_INV"
        );
        let outcome = queue::check(&row).unwrap_or_else(|error| panic!("{code:#x}: {error}"));
        assert_eq!(outcome, [Outcome::OperationOnRecord], "{code:#x}");
    }
}

#[test]
fn a_completion_of_another_request_is_noticed() {
    for (recording, rows) in samples() {
        assert_changed(&recording, change_requests(rows));
    }
}

/// Changes what the rows say of the request: how often.
fn change_requests(rows: Vec<Row>) -> usize {
    let mut changed = 0;
    let same = |row: &Row| matches!(queue::check(row), Ok(found) if found == [Outcome::Same]);
    for row in rows.into_iter().filter(same) {
        let mut fields: Vec<_> = ["wc.wr_id", "wc.status", "wc.qp_num", "pre.sq_wrid"].into();
        let requester = row.int::<u64>("wc.wr_id").ok() == row.int("pre.sq_wrid").ok();
        if !requester {
            fields.pop();
            fields.extend(["pre.rq_wrid", "pre.srq_wrid"]);
            let success = row.int::<u8>("wc.status").expect("a status") == 0;
            fields.extend(
                success
                    .then_some(["wc.byte_len", "wc.opcode", "wc.imm_mem"])
                    .iter()
                    .flatten(),
            );
        }
        fields.push("scat.0");
        for field in fields.into_iter().filter(|field| row.has(field)) {
            let value = row
                .value()
                .pointer(&format!("/{}", field.replace('.', "/")));
            let Some(other) = other(field, value.expect("is there")) else {
                continue;
            };
            let row = row.with(field, other).expect("is there");
            assert!(!same(&row), "{} {field}: not noticed", row.place());
            changed += 1;
        }
    }
    changed
}

/// About one row in eight of each recording, and at least one of every group.
fn samples() -> Vec<(Recording, Vec<Row>)> {
    let mut random = Random::new(0x5eed_c0de);
    let mut samples = super::recordings(FILE);
    for (_, rows) in &mut samples {
        let mut seen = std::collections::BTreeSet::new();
        rows.retain(|row| random.number().is_multiple_of(8) | seen.insert(group(row)));
    }
    samples
}

/// A test that changes rows has to find some.
fn assert_changed(recording: &Recording, changed: usize) {
    let folder = recording.folder().display();
    println!("{folder}: {changed} changes noticed");
    assert!(changed > 0, "{folder}: no row could be changed");
}

#[test]
fn a_flipped_bit_of_an_entry_is_noticed() {
    for (recording, rows) in samples() {
        assert_changed(&recording, flip_bits(rows));
    }
}

/// Flips each bit of the rows' entries: how often that is noticed. A bit that has no meaning may not be.
fn flip_bits(rows: Vec<Row>) -> usize {
    let mut noticed = 0;
    for row in rows {
        for bits in Bits::of(&row).unwrap_or_else(|error| panic!("{error}")) {
            let bytes = row.hex(&bits.field).expect("an entry");
            for bit in 0..512 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let flipped = row.with(&bits.field, to_hex(&flipped).into());
                let result = check(&flipped.expect("is there"));
                let place = || format!("{} {} bit {bit}", row.place(), bits.field);
                if bits.is_checked(bit) {
                    assert!(result.is_err(), "{}: not noticed", place());
                    noticed += 1;
                } else if bits.is_ignored(bit) {
                    let error = result.err();
                    assert!(error.is_none(), "{}: {error:?}", place());
                }
            }
        }
    }
    noticed
}

/// The fields that hold what the driver said.
const SAID: [&str; 7] = ["ret", "wc", "ex", "wcs", "dbr", "dbr_ex", "scat"];

#[test]
fn a_changed_expectation_is_noticed() {
    for (recording, rows) in samples() {
        assert_changed(&recording, change_expectations(rows));
    }
}

/// Changes each field that holds what the driver said: how often.
fn change_expectations(rows: Vec<Row>) -> usize {
    let mut changed = 0;
    for row in rows {
        for field in SAID.into_iter().filter(|field| row.has(field)) {
            let mut leaves = Vec::new();
            collect_leaves(field, &row.value()[field], &mut leaves);
            for (path, value) in leaves {
                let Some(value) = other(&path, &value) else {
                    continue;
                };
                if !is_compared(&row, &path) {
                    continue;
                }
                let result = check(&row.with(&path, value).expect("is there"));
                assert!(result.is_err(), "{} {path}: not noticed", row.place());
                changed += 1;
            }
        }
    }
    changed
}

fn collect_leaves(path: &str, value: &Value, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                collect_leaves(&format!("{path}.{name}"), value, leaves);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                collect_leaves(&format!("{path}.{index}"), value, leaves);
            }
        }
        leaf => leaves.push((path.to_owned(), leaf.clone())),
    }
}

/// Another value of the same kind.
fn other(path: &str, value: &Value) -> Option<Value> {
    match value {
        Value::Null if path.ends_with("imm_mem") => Some("00000000".into()),
        Value::Null => Some(0.into()),
        Value::Number(number) => match number.as_u64() {
            Some(number) => Some((number ^ 1).into()),
            None => Some(0.into()),
        },
        Value::String(text) => {
            let last = text.chars().last()?;
            let flipped = if last == '0' { '1' } else { '0' };
            Some(format!("{}{flipped}", &text[..text.len() - 1]).into())
        }
        _ => None,
    }
}

/// `wr_id` takes queues to find. The extended status of a completion of nothing is left over from
/// the completion before.
fn is_compared(row: &Row, path: &str) -> bool {
    match path {
        "ex.status" => !row.has("wc.status") || !row.value()["wc"]["status"].is_null(),
        _ => !path.ends_with("wr_id"),
    }
}
