//! The command line.

use super::measure::{Amount, Effort};
use super::report::SCHEMA;
use super::workload::{Asked, Measure, Op, Workload};
use bellwire::soft::Mode;
use bellwire::{Device, DeviceAttr};
use bellwire_examples::{allowed, parse_size, pick};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Measures every operation between two threads, or two processes, on two cores: latency and message
/// rate.
///
/// Without a command all operations are measured, which takes some fifteen seconds. Between two
/// processes: start `perf --listen NAME` in one terminal, and in another anything else with
/// `--connect NAME`, which says what to measure and prints it.
///
/// perftest's names of options are understood where there is such an option: -s, -n, -D, -t, -l, -Q, -q, -b, -a, -d
/// and -F. There are no ports: processes meet by NAME.
#[derive(Debug, Parser)]
#[command(name = "perf", after_long_help = SCHEMA)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Print one JSON document instead of tables (its form: see --help)
    #[arg(long, global = true)]
    pub json: bool,
    /// Where requests are executed on the software device
    #[arg(long, global = true, value_enum, default_value_t = ModeName::Inline)]
    pub mode: ModeName,
    /// The device, one that `perf devices` lists, or soft:NAME [default between two processes: the
    /// fabric soft:NAME with the name of their meeting; for clients and their server soft:perf, unless
    /// there is another device]
    #[arg(short, long, visible_alias = "ib-dev", global = true, default_value = AUTO)]
    pub device: String,
    /// Be the other end of the process that will connect, until it leaves
    #[arg(long, global = true, value_name = "NAME")]
    pub listen: Option<String>,
    /// Measure between this process and the one that listens
    #[arg(long, global = true, value_name = "NAME")]
    pub connect: Option<String>,
    /// Keep the thread that measures on this processor; in one process, the other end's thread on the second one
    #[arg(long, global = true, value_name = "N[,N]", value_delimiter = ',')]
    pub cpu: Vec<usize>,
    /// No effect: no figure of perf depends on the processor's frequency
    #[arg(short = 'F', long = "CPU-freq", global = true, hide = true)]
    _cpu_freq: bool,
}

const AUTO: &str = "auto";

/// How the software device executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// The thread that rings the doorbell
    Inline,
    /// A thread of the device's own, as a NIC would
    Engine,
}

impl ModeName {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Engine => "engine",
        }
    }

    /// Threads that the device polls with.
    pub const fn threads(self) -> usize {
        match self {
            Self::Inline => 0,
            Self::Engine => 1,
        }
    }

    pub const fn mode(self) -> Mode {
        match self {
            Self::Inline => Mode::Inline,
            Self::Engine => Mode::Engine { threads: 1 },
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the devices, what they can do, and their ports with GIDs and P_Keys: all, or that of
    /// --device
    #[command(after_long_help = SCHEMA)]
    Devices,
    /// Latency of one operation
    #[command(after_long_help = SCHEMA)]
    Lat(Lat),
    /// Message rate and bandwidth of one operation
    #[command(after_long_help = SCHEMA)]
    Bw(Bw),
    /// Compare two documents that were written with --json
    Compare(Compare),
    /// Answer the clients of `lat --clients --server` of other processes, from one set of links, until the
    /// process is ended
    Serve(Serve),
}

#[derive(Debug, Args)]
pub struct Compare {
    /// The first document, whose figures are 100 %
    #[arg(value_name = "BEFORE.json")]
    pub before: PathBuf,
    /// The second document
    #[arg(value_name = "AFTER.json")]
    pub after: PathBuf,
}

/// Bytes of a message of clients, at most.
const MAX_MESSAGE: u64 = 64 << 10;

#[derive(Debug, Args)]
pub struct Serve {
    /// The address to listen at, by the communication manager of the device
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7471")]
    pub at: SocketAddr,
    /// Clients that it has room for at a time
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub links: u32,
    /// Bytes of a message at most, up to 64k
    #[arg(long, value_parser = message_size, default_value = "4k", value_name = "SIZE")]
    pub size: u64,
}

fn message_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size @ 1..=MAX_MESSAGE => Ok(size),
        _ => Err("give 1 to 64k bytes".to_owned()),
    }
}

#[derive(Debug, Args)]
pub struct Lat {
    #[command(flatten)]
    common: Common,
    /// Write the latency percentiles as a picture; with --clients, throughput and percentiles over clients
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Write how many operations took how long as a picture
    #[arg(long, value_name = "FILE.svg", conflicts_with = "clients")]
    pub histogram: Option<PathBuf>,
    /// Measure messages to a server, and its answers, with each of these numbers of clients, for example
    /// 1,10,100. Of the other options --size and --seconds apply
    #[arg(
        long, value_name = "N,N", value_delimiter = ',', conflicts_with_all = ["op", "inline", "no_inline",
        "depth", "signal_every", "iters", "warmup"], value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub clients: Vec<u32>,
    /// The server of --clients, a `perf serve` on the same device or one that reaches it [default: a thread]
    #[arg(long, value_name = "HOST:PORT", requires = "clients")]
    pub server: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub struct Bw {
    #[command(flatten)]
    common: Common,
    /// Requests of one doorbell [default: 16]
    #[arg(short = 'l', long, visible_alias = "post_list", value_name = "N")]
    batch: Option<u32>,
    /// Every power of two from 1 to 1m, each for the time or the operations given
    #[arg(short, long, visible_alias = "all", conflicts_with = "size")]
    all_sizes: bool,
    /// Queue pairs by which an end sends, up to 1024
    #[arg(
        short, long, default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    qp: u32,
    /// Both ends send at the same time, each by queue pairs of its own. The figures are the sums
    #[arg(short, long)]
    bidirectional: bool,
    /// Write bandwidth over size as a picture
    #[arg(long, value_name = "FILE.svg", requires = "all_sizes")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Common {
    /// The operation
    #[arg(long, value_enum, default_value_t = Op::Write)]
    op: Op,
    /// Bytes of a message: 8, 4k, 1m
    #[arg(short, long, value_parser = parse_size, default_value = "8", value_name = "SIZE")]
    size: u64,
    /// Carry the message within the request [default: up to 28 bytes]
    #[arg(long, conflicts_with = "no_inline")]
    inline: bool,
    /// Carry the message in registered memory
    #[arg(long)]
    no_inline: bool,
    /// Requests that the queues hold
    #[arg(
        short = 't',
        long,
        visible_alias = "tx-depth",
        default_value_t = 128,
        value_name = "N"
    )]
    depth: u32,
    /// Ask for a completion of one request in N [default: 64, or 1 where each is waited for]
    #[arg(short = 'Q', long, visible_alias = "cq-mod", value_name = "N")]
    signal_every: Option<u32>,
    /// Operations to measure
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// Seconds to measure for
    #[arg(
        short = 'D', long, visible_alias = "duration", default_value_t = 2.0, value_name = "S", value_parser = seconds
    )]
    seconds: f64,
    /// Operations before that [default: some hundredths of a second]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("give seconds, more than 0 and at most a day's 86400".to_owned()),
    }
}

/// Sizes of `--all-sizes`.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 0..=20;

impl Common {
    fn asked(&self, batch: Option<u32>) -> Asked {
        let inline = match (self.inline, self.no_inline) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        Asked {
            op: self.op,
            size: self.size,
            inline,
            depth: self.depth,
            batch,
            signal_every: self.signal_every,
            queue_pairs: 1,
            bidirectional: false,
        }
    }

    fn effort(&self) -> Effort {
        let amount = self
            .iters
            .map_or(Amount::Seconds(self.seconds), Amount::Iters);
        Effort {
            amount,
            warmup: self.warmup,
        }
    }
}

impl Lat {
    /// What to measure.
    pub fn plan(&self, device: &DeviceAttr) -> Result<(Workload, Effort), String> {
        let work = self.common.asked(None).check(Measure::Latency, device)?;
        Ok((work, self.common.effort()))
    }

    /// The largest number of clients.
    pub fn most(&self) -> u32 {
        self.clients.iter().copied().max().unwrap_or(0)
    }

    /// Bytes of a message of clients, and how long to measure.
    pub fn of_clients(&self) -> Result<(u32, Duration), String> {
        let size = self.common.size;
        if !(1..=MAX_MESSAGE).contains(&size) {
            return Err("clients send 1 to 64k bytes: give such a --size".to_owned());
        }
        Ok((size as u32, Duration::from_secs_f64(self.common.seconds)))
    }
}

impl Bw {
    /// What to measure, one after the other.
    pub fn plan(&self, device: &DeviceAttr) -> Result<(Vec<Workload>, Effort), String> {
        let asked = Asked {
            queue_pairs: self.qp,
            bidirectional: self.bidirectional,
            ..self.common.asked(self.batch)
        };
        let sizes: Vec<u64> = if !self.all_sizes {
            vec![asked.size]
        } else if asked.op.is_atomic() {
            return Err(format!(
                "{} works on 8 bytes only: leave --all-sizes out",
                asked.op.title()
            ));
        } else {
            ALL_SIZES.map(|log| 1 << log).collect()
        };
        let works = sizes
            .into_iter()
            .map(|size| Asked { size, ..asked }.check(Measure::Rate, device))
            .collect::<Result<_, _>>()?;
        Ok((works, self.common.effort()))
    }
}

/// The fabric of clients and their server, if there is no other device.
const FABRIC: &str = "soft:perf";

const SOFT_IS_ALONE: &str =
    "--device soft is within one process: leave it out, or name a fabric, soft:NAME";

impl Cli {
    /// Opens the device for clients, or for their server. `alone`: both are in this process.
    pub fn open_for_clients(&self, alone: bool) -> Result<Device, String> {
        if self.listen.is_some() || self.connect.is_some() {
            return Err(
                "--listen and --connect are for two processes without clients: leave them out; \
                 clients find `perf serve` by --server"
                    .to_owned(),
            );
        }
        if alone {
            return self.open();
        }
        if self.mode == ModeName::Engine {
            return Err("--mode engine is within one process: leave it out between two".to_owned());
        }
        let device = self.open()?;
        match (device.name(), self.named()) {
            ("soft", Some(_)) => Err(SOFT_IS_ALONE.to_owned()),
            ("soft", None) => Device::open(FABRIC).map_err(|error| error.to_string()),
            _ => Ok(device),
        }
    }

    /// The device that was asked for, if one was.
    pub fn named(&self) -> Option<&str> {
        Some(self.device.as_str()).filter(|name| *name != AUTO)
    }

    /// The processors of the two ends: those of `--cpu`, or a pair of allowed ones. `alone`: the other end
    /// is a thread.
    pub fn cpus(&self, alone: bool) -> Result<(usize, usize), String> {
        let allowed = allowed().map_err(|error| format!("{error:#}"))?;
        if let Some(cpu) = self.cpu.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(format!(
                "--cpu {cpu}: this process may run on {allowed:?}; taskset and cgroups say where"
            ));
        }
        match (self.cpu.as_slice(), alone) {
            ([], _) => Ok(pick(&allowed)),
            (&[cpu], false) => Ok((cpu, cpu)),
            (&[leader, follower], true) => Ok((leader, follower)),
            (_, true) => {
                Err("--cpu takes two processors here, one for each end: --cpu 0,1".to_owned())
            }
            (_, false) => {
                Err("--cpu takes one processor here: the other process has its own".to_owned())
            }
        }
    }

    /// The processor of a process that has clients, or of their server, if one was asked for.
    pub fn cpu_for_clients(&self, alone: bool) -> Result<Option<usize>, String> {
        match (self.cpu.is_empty(), alone) {
            (true, _) => Ok(None),
            (_, true) => {
                Err("--cpu goes with --server: start `perf serve --cpu N` for it".to_owned())
            }
            (_, false) => self.cpus(false).map(|cpus| Some(cpus.0)),
        }
    }

    /// The name under which two processes are to meet, if they are.
    fn meeting(&self) -> Result<Option<&str>, String> {
        let (listen, connect) = (self.listen.as_deref(), self.connect.as_deref());
        let Some(name) = listen.or(connect) else {
            return Ok(None);
        };
        let wrong = if listen.is_some() && connect.is_some() {
            "--listen and --connect are for two processes: give each one of them"
        } else if listen.is_some() && self.command.is_some() {
            "--listen goes without a command: the process that connects says what to measure"
        } else if self.mode == ModeName::Engine {
            "--mode engine is within one process: leave it out between two"
        } else {
            return Ok(Some(name));
        };
        Err(wrong.to_owned())
    }

    /// Opens the device that was asked for.
    pub fn open(&self) -> Result<Device, String> {
        let meeting = self.meeting()?;
        let name = match meeting {
            Some(meeting) if self.named().is_none() => &format!("soft:{meeting}"),
            _ => &self.device,
        };
        let opened = Device::open(name).map_err(|error| error.to_string())?;
        if meeting.is_some() && opened.name() == "soft" {
            return Err(SOFT_IS_ALONE.to_owned());
        }
        Ok(match self.mode {
            ModeName::Inline => opened,
            ModeName::Engine => Device::try_soft(bellwire::soft::HcaConfig {
                mode: self.mode.mode(),
                ..Default::default()
            })
            .map_err(|error| error.to_string())?,
        })
    }
}

/// Reports that the options cannot be, and ends with status 2, as for options that cannot be read.
pub fn refuse(error: String) -> ! {
    Cli::command()
        .error(ErrorKind::ValueValidation, error)
        .exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "x", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    fn bw(arguments: &[&str]) -> Result<Vec<Workload>, String> {
        let line = ["perf", "bw"].iter().chain(arguments);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Some(Command::Bw(bw)) = &cli.command else {
            return Err("not bw".to_owned());
        };
        bw.plan(&cli.open()?.attr()).map(|plan| plan.0)
    }

    #[test]
    fn all_sizes_are_powers_of_two() {
        let works = bw(&["--all-sizes", "--op", "send"]).unwrap();
        let sizes: Vec<_> = works.iter().map(|work| work.size).collect();
        assert_eq!((sizes[0], sizes[20], sizes.len()), (1, 1 << 20, 21));
    }

    #[test]
    fn options_of_perftest_mean_the_same() {
        let line = "-d soft -s 4096 -n 1000 -t 64 -l 8 -Q 4 -q 2 -b -F";
        let work = &bw(&line.split(' ').collect::<Vec<_>>()).unwrap()[0];
        assert_eq!((work.size, work.depth, work.batch), (4096, 64, 8));
        assert_eq!((work.signal_every, work.queue_pairs), (4, 2));
        assert_eq!((work.bidirectional, work.connections()), (true, 4));
        let line =
            "--ib-dev soft --size 4096 --iters 1000 --tx-depth 64 --post_list 8 --cq-mod 4 --qp 2";
        let line = format!("{line} --bidirectional --CPU-freq");
        let long = &bw(&line.split(' ').collect::<Vec<_>>()).unwrap()[0];
        assert_eq!(work, long);
        assert_eq!(bw(&["-a", "-D", "1"]), bw(&["--all", "--duration", "1"]));
    }

    #[test]
    fn processors_are_checked() {
        let cpus = |arguments: &[&str], alone| {
            let cli = Cli::try_parse_from(["perf"].iter().chain(arguments)).unwrap();
            cli.cpus(alone)
        };
        let first = allowed().unwrap()[0];
        let (one, two) = (first.to_string(), format!("{first},{first}"));
        assert_eq!(cpus(&[], true), Ok(pick(&allowed().unwrap())));
        assert_eq!(cpus(&["--cpu", &two], true), Ok((first, first)));
        assert_eq!(cpus(&["--cpu", &one], false), Ok((first, first)));
        for (list, alone, advice) in [
            ("99999", false, "may run on"),
            (&one, true, "two processors"),
            (&two, false, "one processor"),
            (&format!("{two},{first}"), true, "two processors"),
        ] {
            let error = cpus(&["--cpu", list], alone).unwrap_err();
            assert!(error.contains(advice), "{list}: {error}");
        }
    }

    #[test]
    fn options_that_exclude_each_other_are_refused() {
        for arguments in [
            &["--inline", "--no-inline"][..],
            &["--iters", "5", "--seconds", "1"],
            &["--iters", "0"],
            &["--all-sizes", "--size", "8"],
            &["--all-sizes", "--op", "fetch-add"],
            &["--all-sizes", "--inline"],
            &["--plot", "x.svg"],
            &["--device", "mlx5_99"],
            &["-n", "5", "--duration", "1"],
            &["-a", "-s", "8"],
            &["--qp", "0"],
            &["--qp", "1025"],
            &["--qp", "-1"],
        ] {
            assert!(bw(arguments).is_err(), "{arguments:?}");
        }
    }
}
