//! Instructions of both ends, in one thread, so that there is no waiting among them.

use std::fmt::Write as _;

use anyhow::Result;

use super::{SIZES, table_head};
use crate::callgrind;

/// How many messages a program sends to begin with, and how many more the second time: the difference counts.
const BEFORE: u64 = 10_000;
const MORE: u64 = 20_000;

/// Of longer messages there is nothing to count but copies.
const COUNTED: [(&str, u64); 3] = [SIZES[0], SIZES[1], SIZES[2]];

const PROGRAMS: [(&str, &str); 6] = [
    ("bellwire WRITE", "target/rivals/release/rivals count write"),
    ("UCX put", "target/rivals/ucx put"),
    ("bellwire SEND", "target/rivals/release/rivals count send"),
    ("UCX am", "target/rivals/ucx am"),
    ("UCX tag", "target/rivals/ucx tag"),
    ("iceoryx2", "target/rivals/release/rivals count iceoryx"),
];

/// The table of instructions.
///
/// # Errors
/// A program failed.
pub fn table() -> Result<String> {
    let mut text = String::new();
    table_head(&mut text, "instructions of both ends", &COUNTED);
    for (name, program) in PROGRAMS {
        let counts: Vec<String> = (COUNTED.iter())
            .map(|&(_, size)| Ok(format!("{:.0}", count(program, size)?)))
            .collect::<Result<_>>()?;
        let _ = writeln!(text, "| {name} | {} |", counts.join(" | "));
    }
    let _ = writeln!(text);
    Ok(text)
}

/// Instructions of a message.
fn count(program: &str, size: u64) -> Result<f64> {
    let total = |messages: u64| {
        callgrind::total(|valgrind| {
            valgrind
                .args(program.split_whitespace())
                .args([size.to_string(), messages.to_string()])
                .env("UCX_TLS", "posix");
        })
    };
    Ok((total(BEFORE + MORE)? as f64 - total(BEFORE)? as f64) / MORE as f64)
}
