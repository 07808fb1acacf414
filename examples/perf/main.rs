//! Latency and message rate of every operation, between two threads or two processes on two cores.
//!
//! ```text
//! cargo run --release --example perf                      every operation, one table
//! cargo run --release --example perf -- lat --op send     one operation's latency
//! cargo run --release --example perf -- bw --size 4k      one operation's rate
//! cargo run --release --example perf -- --listen NAME     the other end of another process's
//! cargo run --release --example perf -- lat --connect NAME
//! cargo run --release --example perf -- lat --clients 1,10,100      requests to a server with a link set
//! cargo run --release --example perf -- serve                       that server, for other processes
//! cargo run --release --example perf -- compare A.json B.json       two documents of --json
//! cargo run --release --example perf -- --help
//! ```

mod args;
mod bench;
mod bounce;
mod clients;
mod clock;
mod compare;
mod devices;
mod duo;
mod flood;
mod links;
mod machine;
mod measure;
mod page;
mod plot;
mod report;
mod run;
mod server;
mod side;
mod stats;
mod workload;

use anyhow::{Context, Result, ensure};
use args::{Bw, Cli, Command, Compare, Lat, Serve, refuse};
use bellwire::Device;
use bellwire_examples::{Listener, Progress, allowed, pick, pin};
use bench::{Bench, PROGRAM, serve};
use clap::Parser;
use clients::{Clients, OfClients};
use devices::{Listing, description};
use machine::Machine;
use measure::{Amount, Effort, ROUNDS};
use report::{ClientsDocument, DeviceFacts, Document, LEGEND, Measured, heading, row};
use server::Server;
use side::Side;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use workload::{Asked, Measure, Op, Workload};

/// Seconds for each line of the default run: latency, and rate.
const DEFAULT_SECONDS: (f64, f64) = (0.7, 0.25);

/// A progress bar, as indicatif's templates are.
const BAR: &str = "{bar:40} {elapsed} of about {duration}  {msg}";

/// The default run: eight bytes in every form, then a page.
const DEFAULT_ROWS: [(Op, u64, Option<bool>); 14] = [
    (Op::Send, 8, Some(true)),
    (Op::Send, 8, Some(false)),
    (Op::SendImm, 8, Some(true)),
    (Op::Write, 8, Some(true)),
    (Op::Write, 8, Some(false)),
    (Op::WriteImm, 8, Some(true)),
    (Op::Read, 8, None),
    (Op::CmpSwap, 8, None),
    (Op::FetchAdd, 8, None),
    (Op::Send, 4096, None),
    (Op::SendImm, 4096, None),
    (Op::Write, 4096, None),
    (Op::WriteImm, 4096, None),
    (Op::Read, 4096, None),
];

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed the pipe: no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn run(cli: &Cli) -> Result<()> {
    match &cli.command {
        Some(Command::Devices) => devices(cli),
        None if cli.listen.is_some() => listen(cli),
        None => Session::start(cli)?.everything(),
        Some(Command::Lat(lat)) if !lat.clients.is_empty() => {
            let alone = lat.server.is_none();
            let device = cli.open_for_clients(alone);
            pin_for_clients(cli, alone)?;
            Session::on(cli, device, pick(&allowed()?))?.clients(lat)
        }
        Some(Command::Lat(lat)) => Session::start(cli)?.latency(lat),
        Some(Command::Serve(serve)) => serve_clients(cli, serve),
        Some(Command::Compare(files)) => compare(cli, files),
        Some(Command::Bw(bw)) => Session::start(cli)?.bandwidth(bw),
    }
}

fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

fn listen(cli: &Cli) -> Result<()> {
    let name = cli.listen.as_deref().unwrap_or_default();
    let device = cli.open().unwrap_or_else(|error| refuse(error));
    let cpus = cli.cpus(false).unwrap_or_else(|error| refuse(error));
    let listener = Listener::bind(PROGRAM, name)?;
    let machine = Machine::find(cpus, cli.mode.threads())?;
    print(&format!(
        "listening: start `perf --connect {name}`, or lat or bw with it"
    ))?;
    serve(listener, &machine, &device.alloc_pd())
}

fn serve_clients(cli: &Cli, serve: &Serve) -> Result<()> {
    let device = cli
        .open_for_clients(false)
        .unwrap_or_else(|error| refuse(error));
    pin_for_clients(cli, false)?;
    let mut server = Server::new(&device, serve.at, serve.links, serve.size as u32)?;
    // With the interface of a link-local address.
    let mut at = serve.at;
    at.set_port(server.port());
    let name = device.name();
    print(&format!(
        "listening: start `perf lat --clients 1,10,100 --server {at} --device {name}`"
    ))?;
    server.serve(&AtomicBool::new(false))
}

fn pin_for_clients(cli: &Cli, alone: bool) -> Result<()> {
    let cpu = cli
        .cpu_for_clients(alone)
        .unwrap_or_else(|error| refuse(error));
    cpu.map_or(Ok(()), pin)
}

fn compare(cli: &Cli, files: &Compare) -> Result<()> {
    if cli.json {
        refuse("compare reads documents and prints a table: leave --json out".to_owned());
    }
    print(&compare::compare(&files.before, &files.after)?)
}

fn devices(cli: &Cli) -> Result<()> {
    let devices = match cli.named() {
        Some(_) => Listing::one(&cli.open().unwrap_or_else(|error| refuse(error))),
        None => Listing::all(),
    };
    match cli.json {
        true => print(&serde_json::to_string_pretty(&devices)?)?,
        false => print(&devices.to_string())?,
    }
    ensure!(devices.is_whole(), "a device cannot be opened: see above");
    Ok(())
}

/// A device that is open, and a machine that is known.
struct Session<'a> {
    cli: &'a Cli,
    device: DeviceFacts,
    bench: Bench,
}

impl<'a> Session<'a> {
    /// Ends the process when the options cannot be.
    fn start(cli: &'a Cli) -> Result<Self> {
        let device = cli.open();
        let cpus = cli.cpus(cli.connect.is_none());
        Self::on(cli, device, cpus.unwrap_or_else(|error| refuse(error)))
    }

    fn on(cli: &'a Cli, device: Result<Device, String>, cpus: (usize, usize)) -> Result<Self> {
        let device = device.unwrap_or_else(|error| refuse(error));
        Ok(Self {
            cli,
            device: DeviceFacts {
                name: device.name().to_owned(),
                description: description(&device),
                mode: cli.mode.name(),
                choice: device.choice().map(ToString::to_string),
            },
            bench: Bench {
                machine: Machine::find(cpus, cli.mode.threads())?,
                pd: device.alloc_pd(),
                other: None,
            },
        })
    }

    /// Goes to the other process, if it is to be one. Once it is known what to ask of it.
    fn meet(&mut self) -> Result<()> {
        let name = self.cli.connect.as_deref();
        name.map_or(Ok(()), |name| self.bench.connect(name))
    }

    /// A bar for so many measurements.
    fn progress(&self, measurements: usize) -> Progress {
        Progress::new(measurements as u64 * ROUNDS, BAR)
    }

    /// Prints a line, unless a document is wanted.
    fn say(&self, line: &str) -> Result<()> {
        match self.cli.json {
            true => Ok(()),
            false => print(line),
        }
    }

    /// Prints what the figures are of.
    fn say_machine(&self) -> Result<()> {
        let DeviceFacts {
            name,
            description,
            mode,
            choice,
        } = &self.device;
        self.say(&self.bench.machine.to_string())?;
        self.say(&format!("device   {name}: {description}; {mode} mode"))?;
        if let Some(choice) = choice {
            self.say(&format!("chosen   {choice}"))?;
        }
        Ok(())
    }

    fn say_heading(&self, memory: &str) -> Result<()> {
        self.say_machine()?;
        self.say(&format!("memory   {memory} on each end"))?;
        if let Some(warning) = self.bench.machine.warning() {
            self.say(&format!("WARNING  {warning}"))?;
        }
        self.say("")?;
        self.say(&heading())
    }

    /// Prints by how many queue pairs the ends send, if it is not one of them by one.
    fn say_queues(&self, work: &Workload) -> Result<()> {
        let ends = match work.bidirectional {
            true => "both ends send",
            false if work.queue_pairs == 1 => return Ok(()),
            false => "one end sends",
        };
        let pairs = match work.queue_pairs {
            1 => "one queue pair".to_owned(),
            count => format!("{count} queue pairs"),
        };
        self.say(&format!("queues   {ends}, by {pairs}"))
    }

    fn say_row(&self, progress: &Progress, measured: &Measured) -> Result<()> {
        if !self.cli.json {
            progress.line(&row(measured))?;
        }
        Ok(())
    }

    fn finish(&self, results: Vec<Measured>) -> Result<()> {
        if self.cli.json {
            let document = Document::new(&self.bench.machine, &self.device, results);
            return print(&serde_json::to_string_pretty(&document)?);
        }
        print("")?;
        print(LEGEND)
    }

    /// The pages that a workload's memory has.
    fn memory(&self, work: &Workload) -> Result<String> {
        Ok(Side::memory(&self.bench.pd, work.size)?.to_string())
    }

    fn everything(&mut self) -> Result<()> {
        let effort = |seconds| Effort {
            amount: Amount::Seconds(seconds),
            warmup: None,
        };
        self.meet()?;
        let attr = self.bench.pd.device().attr();
        let progress = self.progress(2 * DEFAULT_ROWS.len());
        let mut results = Vec::new();
        for (op, size, inline) in DEFAULT_ROWS {
            let asked = Asked {
                op,
                size,
                inline,
                depth: 128,
                batch: None,
                signal_every: None,
                queue_pairs: 1,
                bidirectional: false,
            };
            let check = |measure| {
                asked
                    .check(measure, &attr)
                    .unwrap_or_else(|error| refuse(error))
            };
            let (lat, bw) = (check(Measure::Latency), check(Measure::Rate));
            let memory = self.memory(&bw)?;
            if results.is_empty() {
                self.say_heading(&memory)?;
            }
            progress.say(op.title().to_owned());
            let mut measured = Measured::new(&bw, memory);
            let (lat_effort, bw_effort) = (effort(DEFAULT_SECONDS.0), effort(DEFAULT_SECONDS.1));
            measured.latency = Some(self.bench.latency(&lat, lat_effort, &progress)?);
            measured.rate = Some(self.bench.rate(&bw, bw_effort, &progress)?);
            self.say_row(&progress, &measured)?;
            results.push(measured);
        }
        drop(progress);
        self.finish(results)
    }

    fn latency(&mut self, lat: &Lat) -> Result<()> {
        let (work, effort) = lat
            .plan(&self.bench.pd.device().attr())
            .unwrap_or_else(|error| refuse(error));
        self.meet()?;
        let memory = self.memory(&work)?;
        self.say_heading(&memory)?;
        let progress = self.progress(1);
        let latency = self.bench.latency(&work, effort, &progress)?;
        if let Some(path) = &lat.plot {
            let title = format!("{} of {} bytes: latency", work.op.title(), work.size);
            plot::percentiles(path, &title, &latency.curve)?;
        }
        if let Some(path) = &lat.histogram {
            let title = format!("{} of {} bytes: latency", work.op.title(), work.size);
            plot::histogram(path, &title, &latency.counts)?;
        }
        let (ratio, bounce) = (latency.ratio, latency.bounce_ns);
        let of_rounds = |pick: fn(f64, f64) -> f64, start| {
            let ratios = latency.rounds.iter().map(|r| r.block_ns / r.bounce_ns);
            ratios.fold(start, pick)
        };
        let (low, high) = (of_rounds(f64::min, f64::MAX), of_rounds(f64::max, 0.0));
        let mut measured = Measured::new(&work, memory);
        measured.latency = Some(latency);
        self.say_row(&progress, &measured)?;
        drop(progress);
        if !self.cli.json {
            print(&format!(
                "\nbare cache line, one way: {bounce:.1} ns; ratio {ratio:.2} \
                 (rounds: {low:.2} to {high:.2})"
            ))?;
        }
        self.finish(vec![measured])
    }

    fn clients(&self, lat: &Lat) -> Result<()> {
        let (size, time) = lat.of_clients().unwrap_or_else(|error| refuse(error));
        let results = match lat.server {
            Some(server) => self.measure_clients(lat, server, size, time)?,
            None => {
                let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let mut server = Server::new(self.bench.pd.device(), here, lat.most(), size)?;
                let here = SocketAddr::new(here.ip(), server.port());
                server.serve_while(|| self.measure_clients(lat, here, size, time))??
            }
        };
        if let Some(path) = &lat.plot {
            let title = format!("clients with one message of {size} bytes each");
            plot::clients(path, &title, &results)?;
        }
        if self.cli.json {
            let document = ClientsDocument::new(&self.bench.machine, &self.device, size, results);
            return print(&serde_json::to_string_pretty(&document)?);
        }
        print("")?;
        print(clients::LEGEND)
    }

    fn measure_clients(
        &self,
        lat: &Lat,
        server: SocketAddr,
        size: u32,
        time: Duration,
    ) -> Result<Vec<OfClients>> {
        let device = self.bench.pd.device();
        let progress = Progress::new(lat.most().into(), BAR);
        let mut clients = Clients::connect(device, server, lat.most(), size, &progress)?;
        drop(progress);
        self.say_machine()?;
        self.say("")?;
        self.say(&clients::heading())?;
        let steps = time.as_nanos() / clients::STEP.as_nanos() * lat.clients.len() as u128;
        let progress = Progress::new(steps as u64, BAR);
        let mut results = Vec::new();
        for &count in &lat.clients {
            let of = clients.measure(count, time, &progress)?;
            if !self.cli.json {
                progress.line(&clients::row(&of))?;
            }
            results.push(of);
        }
        Ok(results)
    }

    fn bandwidth(&mut self, bw: &Bw) -> Result<()> {
        let (works, effort) = bw
            .plan(&self.bench.pd.device().attr())
            .unwrap_or_else(|error| refuse(error));
        self.meet()?;
        let progress = self.progress(works.len());
        let mut results: Vec<Measured> = Vec::new();
        for work in &works {
            let memory = self.memory(work)?;
            if results.is_empty() {
                self.say_queues(work)?;
                self.say_heading(&memory)?;
            }
            let mut measured = Measured::new(work, memory);
            measured.rate = Some(self.bench.rate(work, effort, &progress)?);
            self.say_row(&progress, &measured)?;
            results.push(measured);
        }
        drop(progress);
        if let (Some(path), Some(first)) = (&bw.plot, works.first()) {
            let curve: Vec<_> = results
                .iter()
                .filter_map(|m| Some((m.size() as f64, m.rate.as_ref()?.bytes_per_second)))
                .collect();
            let title = format!("{}: bandwidth over message size", first.op.title());
            plot::bandwidth(path, &title, &curve).context("the plot")?;
        }
        self.finish(results)
    }
}
