//! Moves a file over a connection: WRITEs into fixed blocks of the other end, several in flight, a
//! WRITE_WITH_IMM behind each that announces it, credits for blocks that are free again, and a
//! checksum at the end. The other end is a thread of the same process, or another process.
//!
//! ```text
//!  sender                                  receiver
//!  read ► block ── WRITE ─────────────► block ► output
//!               ── WRITE_WITH_IMM ────► receive: number; header: length
//!         credit ◄──────────── WRITE ── blocks done
//!               ── WRITE_WITH_IMM ────► receive: number; header: length, checksum of all
//!
//!  cargo run --release --example mover -- FILE --output COPY
//!  cargo run --release --example mover -- --generate 1g
//!
//!  cargo run --release --example mover -- --listen NAME --output COPY
//!  cargo run --release --example mover -- --connect NAME FILE
//! ```
//!
//! The connection is a [`Link`](bellwire::link::Link), which recovers from faults. `--fault` has
//! them happen:
//!
//! ```text
//!  cargo run --release --example mover -- --generate 1g --fault cq-err@30% --fault qp-fatal@60%
//! ```
//!
//! What each request is if it was in flight then, and whether it may be posted again:
//!
//! - WRITE of a block: the same bytes to the same place, which nobody else writes to before the request
//!   is reported. Once more does no harm: `Replay::Anyway`. So with credits, which are counts from the
//!   beginning.
//! - WRITE_WITH_IMM of a notice: consumes a receive, so the library posts it again only if it was not
//!   executed. If that is in doubt, because the receiver's completions were lost, the mover posts it
//!   again: notices have numbers, and the receiver passes over one that it has had.

mod blocks;
mod ends;
mod faults;
mod files;
mod incoming;
mod line;
mod log;
mod notice;
mod outgoing;
mod overrun;
mod processes;
mod threads;

use anyhow::{Context, Result, bail};
use bellwire::Device;
use bellwire_examples::{Progress, parse_size};
use blocks::Shape;
use clap::Parser;
use faults::{Faults, Injection};
use files::{Output, generate};
use log::Log;
use notice::{MAX_BLOCK, Trailer};
use processes::Opening;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tempfile::TempDir;

/// Moves a file through RDMA WRITEs to the other end of a connection, which writes it to a file.
///
/// Between two processes: start `mover --listen NAME --output COPY` in one terminal, and
/// `mover --connect NAME FILE` in another.
#[derive(Debug, Parser)]
#[command(name = "mover")]
struct Cli {
    /// The file to move
    #[arg(required_unless_present_any = ["generate", "listen"])]
    file: Option<PathBuf>,
    /// Move a file of this size that is made up, in a temporary folder: 1m, 1g
    #[arg(long, value_name = "SIZE", conflicts_with = "file", value_parser = parse_size)]
    generate: Option<u64>,
    /// Where the other end writes it [default with --generate: the temporary folder]
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["generate", "connect"])]
    output: Option<PathBuf>,
    /// Replace the output if it exists
    #[arg(long)]
    force: bool,
    /// Bytes of a block
    #[arg(long, value_name = "SIZE", default_value = "256k", value_parser = block_size)]
    block: u64,
    /// Blocks of each end, and so in flight at the most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    blocks: u32,
    /// Receive the file from the process that will connect
    #[arg(long, value_name = "NAME", conflicts_with_all = ["file", "generate", "block", "blocks"])]
    listen: Option<String>,
    /// Send the file to the process that listens
    #[arg(long, value_name = "NAME", conflicts_with_all = ["listen", "output", "force"])]
    connect: Option<String>,
    /// The device, one that `perf devices` lists [default: the best there is; between processes
    /// soft:NAME, with the name of --listen]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The receiver's device, if it is another
    #[arg(long, value_name = "NAME", requires = "device", conflicts_with_all = ["listen", "connect"])]
    peer_device: Option<String>,
    /// Have the sender's end fail, when so much of the file was sent: cq-err@30%, qp-fatal@60%,
    /// port-flap, retry-exc (a request that no answer comes to), ack-lost (one whose answer is lost;
    /// between processes as retry-exc). The software device injects them. On other devices only cq-err is
    /// taken, and happens: the completion queue has room for the transfer alone, the end posts more
    /// requests than it holds, and does not poll for a while. For a port's flap there, take its link
    /// down and up (ip link set)
    #[arg(long, value_name = "KIND@PERCENT%", conflicts_with = "listen")]
    fault: Vec<Injection>,
    /// The same of the receiver's end
    #[arg(long, value_name = "KIND@PERCENT%", conflicts_with = "connect")]
    fault_receiver: Vec<Injection>,
}

fn block_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size @ 1..=MAX_BLOCK => Ok(size),
        _ => Err("a block has at least 1 byte and at most 1g".to_owned()),
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if let Some(name) = &cli.listen {
        return receive(cli, name);
    }
    // The folder goes, with its files, when this returns.
    let folder = cli.generate.map(|_| TempDir::new()).transpose()?;
    let inside = |name: &str| folder.as_ref().map(|folder| folder.path().join(name));
    let input = cli.file.clone().or_else(|| inside("generated"));
    let input = input.context("no file to move")?;
    if let Some(size) = cli.generate {
        generate(&input, size).with_context(|| format!("writing {}", input.display()))?;
    }
    let named = || format!("cannot read {}", input.display());
    let mut file = File::open(&input).with_context(named)?;
    let meta = file.metadata().with_context(named)?;
    if meta.is_dir() {
        bail!("{} is a folder: name a file", input.display());
    }
    if !(meta.is_file() || cli.fault.is_empty() && cli.fault_receiver.is_empty()) {
        bail!(
            "{} has no length that a percentage could be taken of: name a regular file",
            input.display()
        );
    }
    let shape = Shape {
        count: cli.blocks,
        size: usize::try_from(cli.block).context("--block")?,
    };
    let progress = || {
        Progress::new(
            meta.len(),
            "{bar:40} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}",
        )
    };
    let total = meta.len();
    let logs = [Log::new("sender"), Log::new("receiver")];
    let [sends, receives] = [(&cli.fault, &logs[0]), (&cli.fault_receiver, &logs[1])]
        .map(|(injections, log)| (Faults::new(injections, total), log.clone()));
    if let Some(name) = &cli.connect {
        let opening = Opening { shape, total };
        let start = Instant::now();
        let moved = processes::send(
            name,
            cli.device.as_deref(),
            opening,
            sends,
            &mut file,
            &progress(),
        )?;
        return say(&moved, shape, start, &logs);
    }
    let near = Device::open(cli.device.as_deref().unwrap_or("auto"))?;
    let far = cli.peer_device.as_deref().map(Device::open).transpose()?;
    let output = cli.output.clone().or_else(|| inside("moved"));
    let mut output = Output::new(output.context("no output to write to")?, cli.force)?;
    let start = Instant::now();
    let moved = threads::transfer(
        shape,
        [&near, far.as_ref().unwrap_or(&near)],
        [sends, receives],
        &mut file,
        &mut output.file,
        &progress(),
    )
    .inspect_err(|_| logs.iter().for_each(|log| eprint!("{log}")))?;
    output.keep()?;
    say(&moved, shape, start, &logs)
}

fn receive(cli: &Cli, name: &str) -> Result<()> {
    let output = cli.output.clone().context("no output to write to")?;
    let output = Output::new(output, cli.force)?;
    let sender = processes::Sender::wait(name, cli.device.as_deref())?;
    let start = Instant::now();
    let log = Log::new("receiver");
    let (moved, shape) = sender.receive(&cli.fault_receiver, log.clone(), output)?;
    say(&moved, shape, start, &[log])
}

/// Prints the bytes moved since then, and the recoveries.
fn say(moved: &Trailer, shape: Shape, start: Instant, logs: &[Log]) -> Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    let mut text = format!(
        "moved {} bytes in {seconds:.3} s, {:.1} MB/s from file to file, in blocks of {} bytes\n\
         xxh3-128 {:032x}, the same on both ends\n",
        moved.length,
        moved.length as f64 / 1e6 / seconds.max(1e-9),
        shape.size,
        moved.checksum,
    );
    for log in logs {
        text += &log.to_string();
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
