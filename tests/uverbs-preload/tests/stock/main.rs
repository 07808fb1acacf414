//! Stock programs on the stand-in: each C program of `tests/c`, built against the machine's
//! libibverbs, and rdma-core's own, alone and between two processes.
//!
//! What the machine lacks is said, and what wants it is not run.

mod bench;
mod pair;

use bench::Bench;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::process::ExitCode;
use std::sync::Arc;

/// A program of rdma-core's that exchanges messages with another one of itself, and how it is called.
const PAIRS: [(&str, &[&str]); 7] = [
    ("ibv_rc_pingpong", &["-n", "50"]),
    ("ibv_rc_pingpong", &["-n", "50", "-e"]),
    ("ibv_uc_pingpong", &["-n", "50"]),
    ("ibv_ud_pingpong", &["-n", "50", "-s", "1024"]),
    ("ibv_srq_pingpong", &["-n", "50", "-q", "4"]),
    ("ibv_srq_pingpong", &["-n", "50", "-q", "4", "-e"]),
    ("ibv_xsrq_pingpong", &["-n", "20", "-c", "1"]),
];

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Each has threads that poll.
    args.test_threads = args.test_threads.or(Some(1));
    let (bench, lacking) = match Bench::new(args.list) {
        Ok(bench) => (Some(Arc::new(bench)), None),
        Err(lacking) => (None, Some(lacking)),
    };
    if let Some(lacking) = &lacking {
        println!("report: stock programs could not run: {lacking}");
    }
    let trial = |name: String, run: fn(&Bench, &str, &[&str]) -> Result<(), Failed>, what, with| {
        let (bench, lacking) = (bench.clone(), lacking.clone());
        Trial::ignorable_test(name, move || match (&bench, lacking) {
            (Some(bench), None) => run(bench, what, with).map(|()| Completion::Completed),
            (_, lacking) => Ok(Completion::ignored_with(lacking.unwrap_or_default())),
        })
    };
    let mut trials = vec![
        trial("ibv_devices".to_owned(), tool, "ibv_devices", &[]),
        trial("ibv_devinfo".to_owned(), tool, "ibv_devinfo", &["-v"]),
    ];
    for source in bench::sources() {
        trials.push(trial(source.to_owned(), program, source, &[]));
    }
    for (name, with) in PAIRS {
        let shown = format!("{name} {}", with.join(" "));
        trials.push(trial(shown, pair::run, name, with));
    }
    libtest_mimic::run(&args, trials).exit_code()
}

/// One of rdma-core's that looks at the device.
fn tool(bench: &Bench, name: &str, with: &[&str]) -> Result<(), Failed> {
    let mut command = bench.preloaded(name);
    let text = bench::output_of(command.args(with))?;
    if !text.contains("mlx5_0") {
        return Err(format!("{name} does not see the device:\n{text}").into());
    }
    Ok(())
}

/// One of `tests/c`.
fn program(bench: &Bench, name: &str, _: &[&str]) -> Result<(), Failed> {
    let program = bench.build(name)?;
    bench::output_of(&mut bench.preloaded(program))?;
    Ok(())
}
