//! Moves a file over a connection: WRITEs into fixed blocks of the other end, several in flight, a
//! WRITE_WITH_IMM behind each that tells of it, credits for blocks that are free again, and a
//! checksum at the end. The other end is a thread of the same process.
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
//! ```

mod blocks;
mod ends;
mod files;
mod notice;

use anyhow::{Context, Result, anyhow, bail};
use bellwire::Device;
use bellwire_examples::{Alarm, PeerGone, Progress, Wait, parse_size};
use blocks::{Shape, ends};
use clap::Parser;
use files::{Output, generate};
use notice::{MAX_BLOCK, Trailer};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tempfile::{NamedTempFile, TempDir};

/// Moves a file through RDMA WRITEs to the other end of a connection, which writes it to a file.
#[derive(Debug, Parser)]
#[command(name = "mover")]
struct Cli {
    /// The file to move
    #[arg(required_unless_present = "generate")]
    file: Option<PathBuf>,
    /// Move a file of this size that is made up, in a temporary folder: 1m, 1g
    #[arg(long, value_name = "SIZE", conflicts_with = "file", value_parser = parse_size)]
    generate: Option<u64>,
    /// Where the other end writes it [default with --generate: the temporary folder]
    #[arg(short, long, value_name = "FILE", required_unless_present = "generate")]
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
    // Goes, with what is in it, when this returns.
    let folder = cli.generate.map(|_| TempDir::new()).transpose()?;
    let inside = |name: &str| folder.as_ref().map(|folder| folder.path().join(name));
    let input = cli
        .file
        .clone()
        .or_else(|| inside("generated"))
        .context("no file to move")?;
    let output = cli
        .output
        .clone()
        .or_else(|| inside("moved"))
        .context("no output to write to")?;
    if let Some(size) = cli.generate {
        generate(&input, size).with_context(|| format!("writing {}", input.display()))?;
    }
    let named = || format!("cannot read {}", input.display());
    let mut file = File::open(&input).with_context(named)?;
    let meta = file.metadata().with_context(named)?;
    if meta.is_dir() {
        bail!("{} is a folder: name a file", input.display());
    }
    let mut output = Output::new(output, cli.force)?;

    let shape = Shape {
        count: cli.blocks,
        size: usize::try_from(cli.block).context("--block")?,
    };
    let progress = Progress::new(
        meta.len(),
        "{bar:40} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}",
    );
    let start = Instant::now();
    let moved = transfer(shape, &mut file, &mut output.file, &progress)?;
    let seconds = start.elapsed().as_secs_f64();
    drop(progress);
    output.keep()?;
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

/// Moves everything from one file to the other; gives length and checksum.
fn transfer(
    shape: Shape,
    from: &mut File,
    to: &mut NamedTempFile,
    progress: &Progress,
) -> Result<Trailer> {
    let pd = Device::open("auto")?.alloc_pd();
    let (mut outgoing, mut incoming) = ends(&pd, shape)?;
    let gone = &AtomicBool::new(false);
    let wait = Wait {
        // Files are slow beside memory: whoever waits gives its processor away.
        crowded: true,
        gone,
    };
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let alarm = Alarm::new(gone);
            let mut to = BufWriter::with_capacity(1 << 20, to);
            let received = ends::receive(&mut incoming, shape.size, &mut to, wait)?;
            to.flush().context("writing the output")?;
            alarm.disarm();
            Ok(received)
        });
        let alarm = Alarm::new(gone);
        let sent = ends::send(&mut outgoing, from, wait, progress);
        if sent.is_ok() {
            alarm.disarm();
        } else {
            drop(alarm);
        }
        let received = receiver
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the receiving thread panicked")));
        // Of two errors, the cause is the one that does not just tell of the other end.
        match (sent, received) {
            (Ok(_), received) => received,
            (Err(error), Ok(_)) => Err(error),
            (Err(ours), Err(theirs)) if ours.is::<PeerGone>() => Err(theirs),
            (Err(ours), Err(_)) => Err(ours),
        }
    })
}
