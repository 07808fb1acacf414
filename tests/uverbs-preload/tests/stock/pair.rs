//! Two processes on one fabric.

use crate::bench::{self, Bench};
use libtest_mimic::Failed;
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs two of a program: one that waits, and one that connects with it by TCP to exchange addresses.
pub fn run(bench: &Bench, name: &str, with: &[&str]) -> Result<(), Failed> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let fabric = format!("stock-{}-{number}", std::process::id());
    // One that is free now.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let one = || {
        let mut command = bench.preloaded(name);
        command
            .env("UVERBS_PRELOAD_FABRIC", &fabric)
            .args(with)
            .args(["-p", &port.to_string()]);
        command
    };
    let (mut first, mut second) = (one(), one());
    let mut server = first.spawn()?;
    second.arg("localhost");
    let client = match connect(&mut second) {
        Ok(text) => text,
        Err(error) => {
            let _ = server.kill();
            let _ = server.wait();
            return Err(error);
        }
    };
    let said = bench::check(&first, bench::finish(server)?)?;
    for text in [&said, &client] {
        if !text.contains("LID") {
            return Err(format!("{name} did not say what it did:\n{text}").into());
        }
    }
    Ok(())
}

/// Runs the second one, again while the first does not listen yet.
fn connect(second: &mut Command) -> Result<String, Failed> {
    for _ in 0..500 {
        let output = bench::finish(second.spawn()?)?;
        let refused = String::from_utf8_lossy(&output.stderr).contains("Couldn't connect");
        if !refused {
            return bench::check(second, output);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Err("nobody listens".into())
}
