//! Every completion entry that was recorded from rdma-core, read by core.

mod bits;
mod check;
mod queue;

use bellwire_tests::fixture::Random;
use bellwire_tests::vectors::{self, Row, to_hex};
use bits::Bits;
use check::{Deviation, check};
use queue::Outcome;
use serde_json::Value;
use std::collections::BTreeMap;

const FILE: &str = "cqe.jsonl";

/// The groups of the file. One that is missing here, or there, fails the test.
const GROUPS: [&str; 23] = [
    "app_tm",
    "ci_wrap24",
    "compressed",
    "csum",
    "filler",
    "multi",
    "odp_pfault",
    "odp_srq",
    "owner",
    "req_bytelen",
    "req_err",
    "req_other_qp",
    "req_scatter32",
    "req_scatter32_cqe128",
    "req_scatter64",
    "req_sop",
    "resp",
    "resp_err",
    "resp_len0",
    "resp_scatter32",
    "resp_scatter32_cqe128",
    "resp_scatter64",
    "unknown_uidx",
];

/// How often the driver deviates, and in what.
const DEVIATIONS: [(Deviation, usize); 10] = [
    (Deviation::ReadResultFromWrongHalf, 14),
    (Deviation::ReadResultOneByteEarly, 14),
    (Deviation::PayloadBeyondRoom, 5),
    (Deviation::CompressedAsPayload, 16),
    (Deviation::NopAsRecorded, 2),
    (Deviation::CompletionOfNothing, 13),
    (Deviation::Lost, 10),
    (Deviation::LostExtended, 14),
    (Deviation::LostWithOthers, 4),
    (Deviation::PageFaultNotReported, 1),
];

fn rows() -> Vec<Row> {
    vectors::load(FILE).unwrap_or_else(|error| panic!("{error}"))
}

fn group(row: &Row) -> String {
    let name = row.str("grp").or_else(|_| row.str("k"));
    name.expect("a group or a kind").to_owned()
}

#[test]
fn every_row_says_what_the_driver_said() {
    let mut groups = BTreeMap::new();
    let mut deviations = BTreeMap::new();
    for row in rows() {
        let found = check(&row).unwrap_or_else(|error| panic!("{}: {error}", row.place()));
        *groups.entry(group(&row)).or_insert(0) += 1;
        for deviation in found {
            *deviations.entry(deviation).or_insert(0) += 1;
        }
    }
    assert_eq!(deviations, BTreeMap::from(DEVIATIONS));

    let path = vectors::folder().join(FILE);
    let text = std::fs::read_to_string(path).expect("was read before");
    let lines = text.lines().filter(|line| line.starts_with('{')).count();
    assert_eq!(groups.values().sum::<usize>(), lines, "rows: {groups:?}");
    assert!(groups.keys().eq(GROUPS.iter()), "groups: {groups:?}");
}

/// What became of the entries in core's completion queue.
const OUTCOMES: [(Outcome, usize); 8] = [
    (Outcome::Same, 883),
    (Outcome::Nothing, 8),
    (Outcome::Dropped, 27),
    (Outcome::FailedBeyondRoom, 5),
    (Outcome::ReadResultRight, 28),
    (Outcome::OperationOnRecord, 12),
    (Outcome::Compressed, 16),
    (Outcome::ReportedAfterAll, 8),
];

#[test]
fn every_entry_completes_the_request_that_the_driver_completes() {
    let mut outcomes = BTreeMap::new();
    for row in rows() {
        let found = queue::check(&row).unwrap_or_else(|error| panic!("{}: {error}", row.place()));
        for outcome in found {
            *outcomes.entry(outcome).or_insert(0) += 1;
        }
    }
    assert_eq!(outcomes, BTreeMap::from(OUTCOMES));
}

#[test]
fn a_completion_of_another_request_is_noticed() {
    let mut changed = 0;
    let same = |row: &Row| matches!(queue::check(row), Ok(found) if found == [Outcome::Same]);
    for row in sample().into_iter().filter(same) {
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
    assert!(changed > 0);
}

/// About one row in eight, and at least one of every group.
fn sample() -> Vec<Row> {
    let mut random = Random::new(0x5eed_c0de);
    let mut seen = std::collections::BTreeSet::new();
    let mut rows = rows();
    rows.retain(|row| random.number().is_multiple_of(8) | seen.insert(group(row)));
    rows
}

#[test]
fn a_flipped_bit_of_an_entry_is_noticed() {
    let (mut noticed, mut ignored) = (0, 0);
    for row in sample() {
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
                    ignored += 1;
                }
            }
        }
    }
    assert!(noticed > 0 && ignored > 0, "{noticed} {ignored}");
}

/// The fields that hold what the driver said.
const SAID: [&str; 7] = ["ret", "wc", "ex", "wcs", "dbr", "dbr_ex", "scat"];

#[test]
fn a_changed_expectation_is_noticed() {
    let mut changed = 0;
    for row in sample() {
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
    assert!(changed > 0);
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
