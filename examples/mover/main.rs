//! Moves a file over a connection: WRITEs into fixed blocks of the other end, several in flight, a
//! WRITE_WITH_IMM behind each that tells of it, credits for blocks that are free again, and a
//! checksum at the end. The other end is a thread of the same process, or another process.
//!
//! ```text
//!  sender                                  receiver
//!  read ► block ── WRITE ─────────────► block ► output
//!               ── WRITE_WITH_IMM ────► receive: length
//!         credit ◄──────────── WRITE ── blocks done
//!               ── WRITE_WITH_IMM ────► receive: end; trailer: length, checksum
//!
//!  cargo run --release --example mover -- FILE --output COPY
//!  cargo run --release --example mover -- --generate 1g
//!
//!  cargo run --release --example mover -- --listen NAME --output COPY
//!  cargo run --release --example mover -- --connect NAME FILE
//! ```

mod blocks;
mod ends;
mod files;
mod notice;
mod processes;
mod threads;

use anyhow::{Context, Result, bail};
use bellwire_examples::{Progress, parse_size};
use blocks::Shape;
use clap::Parser;
use files::{Output, generate};
use notice::{MAX_BLOCK, Trailer};
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
    // Goes, with what is in it, when this returns.
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
    if let Some(name) = &cli.connect {
        let start = Instant::now();
        let moved = processes::send(name, shape, &mut file, &progress())?;
        return say(&moved, shape, start);
    }
    let output = cli.output.clone().or_else(|| inside("moved"));
    let mut output = Output::new(output.context("no output to write to")?, cli.force)?;
    let start = Instant::now();
    let moved = threads::transfer(shape, &mut file, &mut output.file, &progress())?;
    output.keep()?;
    say(&moved, shape, start)
}

fn receive(cli: &Cli, name: &str) -> Result<()> {
    let output = cli.output.clone().context("no output to write to")?;
    let output = Output::new(output, cli.force)?;
    let sender = processes::Sender::wait(name)?;
    let start = Instant::now();
    let (moved, shape) = sender.receive(output)?;
    say(&moved, shape, start)
}

/// Prints what was moved since then.
fn say(moved: &Trailer, shape: Shape, start: Instant) -> Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    let text = format!(
        "moved {} bytes in {seconds:.3} s, {:.1} MB/s from file to file, in blocks of {} bytes\n\
         xxh3-128 {:032x}, the same on both ends\n",
        moved.length,
        moved.length as f64 / 1e6 / seconds.max(1e-9),
        shape.size,
        moved.checksum,
    );
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
