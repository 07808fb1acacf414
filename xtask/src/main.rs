//! The project's own commands: `cargo xtask test` and what it is made of.

fn main() {}
