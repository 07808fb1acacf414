//! Counters as text for Prometheus, read by a thread of its own while another one serves the links.
//!
//! ```text
//! cargo run --release --example metrics                               prints the page after 1000 messages of each client
//! cargo run --release --example metrics -- --listen 127.0.0.1:9464    answers GET /metrics until it is ended
//! ```
//!
//! The server and its clients are in this process. One link fails halfway, and recovers.

mod text;

use anyhow::{Context as _, Result, ensure};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Link, LinkId, LinkInit, LinkSet, LinkSetInit, LinkState, pair};
use bellwire::monitor::LinkSetMonitor;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};
use bellwire_examples::start;
use clap::Parser;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Bytes of a receive, and of a message.
const RECEIVE: u32 = 64;
const BYTES: usize = 24;

/// Serves links, and shows their counters.
#[derive(Debug, Parser)]
#[command(name = "metrics")]
struct Args {
    /// Where to answer GET /metrics; without it, the page is printed at the end.
    #[arg(long)]
    listen: Option<String>,
    /// Clients.
    #[arg(short, default_value_t = 4)]
    clients: u32,
    /// Messages that each client sends; with --listen, it goes on until it is ended.
    #[arg(short = 'n', default_value_t = 1000)]
    messages: u64,
}

/// A server and its clients.
struct World {
    set: LinkSet,
    slab: Slab,
    clients: Vec<(LinkId, Link)>,
}

impl World {
    fn new(device: &Device, clients: u32) -> Result<Self> {
        let pd = device.alloc_pd();
        let layout = [ClassLayout {
            size: RECEIVE,
            count: 2 * clients,
        }];
        let mapping = device.mapping(Slab::bytes(&layout)?).build()?;
        let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE)?;
        let init = LinkSetInit {
            links: clients,
            ..LinkSetInit::default()
        };
        let mut world = Self {
            set: LinkSet::new(&pd, init)?,
            slab: Slab::new(region, &layout)?,
            clients: Vec::new(),
        };
        for _ in 0..clients {
            let (here, there) = pair();
            let id = world.set.join(LinkInit::default(), here)?;
            let client = Link::new(&pd, LinkInit::default(), there)?;
            world.clients.push((id, client));
        }
        Ok(world)
    }

    fn poll(&mut self) -> Result<u64> {
        let mut came = 0;
        let mut failed = None;
        self.set.poll(64, |_, completion| match completion.outcome {
            Outcome::Done => came += u64::from(completion.is_recv()),
            other => failed = Some(other),
        });
        for (_, client) in &mut self.clients {
            client.poll(64, |completion| {
                if completion.outcome != Outcome::Done {
                    failed = Some(completion.outcome);
                }
            });
        }
        ensure!(failed.is_none(), "a request was not executed: {failed:?}");
        Ok(came)
    }

    fn connect(&mut self) -> Result<()> {
        while !self.are_ready() {
            self.poll()?;
        }
        Ok(())
    }

    fn are_ready(&self) -> bool {
        let ready = |(id, client): &(LinkId, Link)| {
            self.set.state(*id) == Ok(LinkState::Ready) && client.state() == LinkState::Ready
        };
        self.clients.iter().all(ready)
    }

    /// One message of each client.
    fn round(&mut self) -> Result<()> {
        self.connect()?;
        for (id, client) in &mut self.clients {
            let mut server = self.set.link(*id)?;
            server.post_recv_block(0, self.slab.take(RECEIVE)?)?;
            server.ring_recv();
            let message = [7; BYTES];
            let (flags, replay) = (SendFlags::SIGNALED, Replay::IfSafe);
            client.post_inline(0, Send {}, &message, flags, replay)?;
            client.ring();
        }
        let mut came = 0;
        while came < self.clients.len() as u64 {
            came += self.poll()?;
        }
        Ok(())
    }
}

/// Answers one request.
fn answer(stream: TcpStream, device: &Device, monitor: &LinkSetMonitor) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = BufReader::new(&stream).lines();
    let request = lines.next().context("no request")??;
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let (status, page) = match request.starts_with("GET /metrics ") {
        true => ("200 OK", text::page(device, monitor)),
        false => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    write!(
        &stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{page}",
        page.len()
    )?;
    Ok(())
}

fn serve(listener: &TcpListener, device: &Device, monitor: &LinkSetMonitor) {
    for stream in listener.incoming() {
        let answered = stream
            .context("accept")
            .and_then(|stream| answer(stream, device, monitor));
        if let Err(error) = answered {
            eprintln!("metrics: {error:#}");
        }
    }
}

/// Has the first link of the set fail.
fn fail(device: &Device, world: &mut World) -> Result<()> {
    let id = world.clients[0].0;
    let number = world.set.link(id)?.qp_num().context("it recovers")?;
    let soft = device.as_soft().context("not a software HCA")?;
    let script = Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(number));
    soft.inject(&script)?;
    device.progress();
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = Device::soft(bellwire::soft::HcaConfig::default());
    let mut world = World::new(&device, args.clients)?;
    // From here on, requests are counted by operation.
    let monitor = world.set.monitor();
    let listener = args.listen.as_ref().map(TcpListener::bind).transpose()?;
    let endless = listener.is_some();
    std::thread::scope(|scope| {
        if let Some(listener) = &listener {
            println!("listening on {}", listener.local_addr()?);
            start(scope, || serve(listener, &device, &monitor))?;
        }
        let mut round = 0;
        while endless || round < args.messages {
            if round == args.messages / 2 {
                fail(&device, &mut world)?;
            }
            if let Err(error) = world.round() {
                eprintln!("metrics: {error:#}");
                // The thread that answers does not end by itself.
                std::process::exit(1);
            }
            round += 1;
        }
        // The checks of these polls bring the counters up to date.
        for _ in 0..10_000 {
            world.poll()?;
        }
        print!("{}", text::page(&device, &monitor));
        Ok(())
    })
}
