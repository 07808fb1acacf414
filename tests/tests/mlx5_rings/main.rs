//! Queues of a ConnectX device by themselves: what core writes and reads is what was recorded from rdma-core,
//! and what no device should write does no harm. Queues borrow their memory for good: `xtask/lsan.supp` has
//! this program's name.

mod arm;
mod cqe;
mod garbage;
mod recv;
mod send;

use bellwire_tests::vectors::{self, Recording, Row};
use std::collections::BTreeMap;

/// The rows of the file `name` in each recording.
fn recordings(name: &str) -> Vec<(Recording, Vec<Row>)> {
    let all = vectors::recordings().unwrap_or_else(|error| panic!("{error}"));
    let load = |recording: Recording| {
        let rows = recording.load(name);
        let rows = rows.unwrap_or_else(|error| panic!("{error}"));
        (recording, rows)
    };
    all.into_iter().map(load).collect()
}

/// Panics where the recording is known to have other numbers.
fn check_tally(recording: &Recording, test: &str, counted: &BTreeMap<String, usize>) {
    let checked = recording.check_tally(test, counted);
    checked.unwrap_or_else(|error| panic!("{error}"));
}

/// One `case` more.
fn count(counted: &mut BTreeMap<String, usize>, case: impl Into<String>) {
    *counted.entry(case.into()).or_insert(0) += 1;
}
