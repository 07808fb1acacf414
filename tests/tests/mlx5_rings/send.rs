//! Every send that was recorded from rdma-core, posted by core.
//!
//! Entries, counters, doorbell record and register are compared byte by byte, but for those that
//! the driver did not write.

mod check;
mod path;
mod replay;
mod request;

use super::count;
use bellwire_core::wqe::{Dci, Rc, Uc, Ud, Xrc};
use bellwire_tests::vectors::{Recording, Row, to_hex};
use check::{Deviation, STALE, check};
use replay::{Made, replay};
use std::collections::BTreeMap;

const FILE: &str = "send.jsonl";

/// Raw packets have an Ethernet segment, and headers to cut; core has no such transport.
const NOT_SUPPORTED: &str = "RAW_PACKET";

/// The rows of each recording.
fn recordings() -> Vec<(Recording, Vec<Row>)> {
    super::recordings(FILE)
}

/// The address vectors of the file, by number.
fn address_vectors(rows: &[Row]) -> Vec<[u8; 48]> {
    let mut vectors = Vec::new();
    for row in rows.iter().filter(|row| row.str("k").ok() == Some("ah")) {
        let number: usize = row.int("ah").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(number, vectors.len(), "{}", row.place());
        vectors.push(row.bytes("av").unwrap_or_else(|error| panic!("{error}")));
    }
    vectors
}

/// What core makes of a row; `None` where it has no such transport.
fn make(row: &Row, vectors: &[[u8; 48]]) -> Option<Made> {
    let transport = row.str("type").unwrap_or_else(|error| panic!("{error}"));
    let made = match transport {
        "RC" => replay::<Rc>(row, vectors),
        "UC" => replay::<Uc>(row, vectors),
        "UD" => replay::<Ud>(row, vectors),
        "XRC_SEND" => replay::<Xrc>(row, vectors),
        "DCI" => replay::<Dci>(row, vectors),
        NOT_SUPPORTED => return None,
        other => panic!("{}: transport {other:?}", row.place()),
    };
    Some(made.unwrap_or_else(|error| panic!("{error}")))
}

/// Checks the rows of a recording: how many there are of each kind, interface and transport, and how often core
/// deviates in what.
fn check_rows(rows: &[Row]) -> [BTreeMap<String, usize>; 2] {
    let vectors = address_vectors(rows);
    let [mut kinds, mut deviations] = [BTreeMap::new(), BTreeMap::new()];
    for row in rows {
        let kind = match row.str("k").expect("a kind") {
            "meta" => "meta".to_owned(),
            "ah" => {
                path::check(row).unwrap_or_else(|error| panic!("{}: {error}", row.place()));
                "ah".to_owned()
            }
            "send" => {
                if let Some(made) = make(row, &vectors) {
                    let found = check(row, &made);
                    let found = found.unwrap_or_else(|error| panic!("{}: {error}", row.place()));
                    for deviation in found {
                        count(&mut deviations, format!("{deviation:?}"));
                    }
                }
                let (api, transport) = (row.str("api"), row.str("type"));
                format!("{} {}", api.expect("an api"), transport.expect("a type"))
            }
            other => panic!("{}: no check for rows of kind {other:?}", row.place()),
        };
        count(&mut kinds, kind);
    }
    [kinds, deviations]
}

#[test]
fn every_row_says_what_the_driver_wrote() {
    for (recording, rows) in recordings() {
        let [kinds, deviations] = check_rows(&rows);
        for (kind, count) in &kinds {
            if kind.ends_with(NOT_SUPPORTED) {
                println!("not supported by core: {kind}, {count} rows");
            }
        }
        super::check_tally(&recording, "send: rows", &kinds);
        super::check_tally(&recording, "send: deviations", &deviations);
    }
}

/// A few rows of every queue.
fn sample(rows: &[Row]) -> Vec<&Row> {
    let mut seen = BTreeMap::new();
    let mut sample = Vec::new();
    for row in rows.iter().filter(|row| row.has("qp")) {
        let seen = seen.entry(row.str("qp").expect("a queue")).or_insert(0);
        *seen += 1;
        // Refusals come first in each queue's rows.
        let short = row.value()["wrs"].as_array().is_some_and(|w| w.len() < 8);
        if short && matches!(*seen, 2 | 8 | 14 | 21 | 24) {
            sample.push(row);
        }
    }
    sample
}

#[test]
fn a_changed_row_is_noticed() {
    for (recording, rows) in recordings() {
        let (noticed, ignored) = change(&rows);
        let folder = recording.folder().display();
        println!("{folder}: {noticed} noticed, {ignored} ignored");
        assert!(noticed > 0, "{folder}: no row could be changed");
    }
}

/// Changes everything in a sample of the rows that the driver made: how many changes the check notices, and how many
/// are of bytes that the driver did not write.
fn change(rows: &[Row]) -> (usize, usize) {
    let vectors = address_vectors(rows);
    let (mut noticed, mut ignored) = (0, 0);
    for row in sample(rows) {
        let Some(made) = make(row, &vectors) else {
            continue;
        };
        let found = check(row, &made).expect("as recorded");
        if found.contains(&Deviation::SizeOverflows) {
            // What follows such a request is not compared.
            continue;
        }
        for (path, value) in numbers(row) {
            let other = row.with(&path, (value ^ 1).into()).expect("is there");
            let place = format!("{} {path}", row.place());
            assert!(check(&other, &made).is_err(), "{place}: not noticed");
            noticed += 1;
        }
        for (path, unwritten) in strings(row) {
            let bytes = row.hex(&path).expect("hex");
            for at in 0..bytes.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                let other = row.with(&path, to_hex(&flipped).into()).expect("is there");
                let place = format!("{} {path} byte {at}", row.place());
                let result = check(&other, &made);
                if unwritten.iter().any(|range| range.contains(&at)) {
                    assert!(result.is_ok(), "{place}: {result:?}");
                    ignored += 1;
                } else {
                    assert!(result.is_err(), "{place}: not noticed");
                    noticed += 1;
                }
            }
        }
    }
    (noticed, ignored)
}

/// The numbers that the driver made.
fn numbers(row: &Row) -> Vec<(String, u64)> {
    let mut paths = vec!["ret".to_owned(), "good".to_owned(), "next".to_owned()];
    let good: usize = row.int("good").expect("a number");
    for at in 0..good {
        for field in ["ctr", "slot", "ds"] {
            paths.push(format!("wrs.{at}.{field}"));
        }
    }
    if row.has("mmio.0") {
        paths.push("mmio.0.len".to_owned());
    }
    let value = |path: String| {
        let value = row.int(&path).expect("a number");
        (path, value)
    };
    paths.into_iter().map(value).collect()
}

type Ranges = Vec<std::ops::Range<usize>>;

/// The bytes that the driver wrote, and which of them it did not.
fn strings(row: &Row) -> Vec<(String, Ranges)> {
    let ranges = |at: usize| -> Ranges {
        let list = row.value()["wrs"][at]["un"].as_array().expect("a list");
        let range = |at_range| {
            let range = row.ints::<usize>(&format!("wrs.{at}.un.{at_range}"));
            let range = range.expect("a range");
            range[0]..range[0] + range[1]
        };
        (0..list.len()).map(range).collect()
    };
    let good: usize = row.int("good").expect("a number");
    let mut strings = vec![("dbr".to_owned(), Ranges::new())];
    for at in 0..good {
        strings.push((format!("wrs.{at}.wqe"), ranges(at)));
    }
    // What rang with a stale entry is compared with nothing: it is only not the last entry.
    let stale = row.str("note").is_ok_and(|note| note.contains(STALE));
    if row.has("mmio.0") && !stale {
        strings.push(("mmio.0.hex".to_owned(), ranges(good - 1)));
    }
    strings
}
