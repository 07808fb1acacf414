//! Another static library in Rust, with a standard library of its own: linked beside `libbellwire.a`.

use std::{collections::HashMap, panic, thread};

/// Uses what the two standard libraries both have: allocation, threads, panics.
#[unsafe(no_mangle)]
pub extern "C" fn other_works() -> i32 {
    let counted = thread::spawn(|| {
        let words = ["one", "two", "one"];
        let mut counts = HashMap::new();
        for word in words {
            *counts.entry(word.to_owned()).or_insert(0) += 1;
        }
        counts["one"]
    });
    panic::set_hook(Box::new(|_| ()));
    let caught = panic::catch_unwind(|| panic!("to be caught")).is_err();
    i32::from(caught && counted.join().is_ok_and(|count| count == 2))
}
