//! An echo server of many clients, and its clients, by the communication manager.

use anyhow::{Result, ensure};
use bellwire::connect::cm::EventChannel;
use bellwire_examples::echo::{Client, MESSAGE, Server};
use clap::Parser;
use std::time::{Duration, Instant};

/// Sends back whatever its clients send, or is as many clients.
///
/// Start the server without HOST, then the clients with the server's. Between two processes of one
/// host, on the software device: `echo -d soft:NAME` in one terminal, `echo -d soft:NAME localhost` in
/// another. On RDMA devices: `echo -d rdma`, and `echo -d rdma ADDRESS`.
#[derive(Debug, Parser)]
#[command(name = "echo")]
struct Args {
    /// The host, or the name, at which the server listens; none: be the server
    host: Option<String>,
    /// The name, or the address, to listen at
    #[arg(short, long, default_value = "0.0.0.0", conflicts_with = "host")]
    bind: String,
    /// The port; as a server 0 is one that is free
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    /// The communication manager: soft:NAME, rdma, or auto
    #[arg(short, long, default_value = "auto")]
    device: String,
    /// Clients: as a server, to serve before it ends [default: without end]; else, to be at a time
    /// [default: 1]
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..))]
    clients: Option<u64>,
    /// Clients that a server takes at a time
    #[arg(short, long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    most: u32,
    /// Messages of a client
    #[arg(short = 'n', long, default_value_t = 1000)]
    messages: u64,
    /// Bytes of a message
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(MESSAGE)))]
    size: u32,
    /// Seconds that a client waits, at each step
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match &args.host {
        None => serve(&args),
        Some(host) => std::thread::scope(|scope| {
            let clients = 0..args.clients.unwrap_or(1);
            let args = &args;
            let threads: Vec<_> = clients
                .map(|client| scope.spawn(move || call(args, host, client)))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("a client panicked"))
        }),
    }
}

fn serve(args: &Args) -> Result<()> {
    let events = EventChannel::open(&args.device)?;
    let mut server = Server::new(events, (args.bind.as_str(), args.port), args.most)?;
    println!("listening on port {}", server.port());
    let wanted = args.clients.unwrap_or(u64::MAX);
    while server.served().clients < wanted || server.open() != 0 {
        server.turn(Duration::MAX)?;
    }
    let served = server.served();
    println!(
        "{} messages of {} clients sent back; {} vanished",
        served.messages, served.clients, served.vanished
    );
    Ok(())
}

/// One client.
fn call(args: &Args, host: &str, number: u64) -> Result<()> {
    let begin = Instant::now();
    let events = EventChannel::open(&args.device)?;
    let patience = Duration::from_secs(args.timeout);
    let mut client = Client::ask(events, (host, args.port), patience)?;
    client.establish()?;
    let connected = begin.elapsed();
    let begin = Instant::now();
    for message in 0..args.messages {
        // Another one each time, so that an old echo is seen to be one.
        let byte = |at: u32| (number ^ message ^ u64::from(at)) as u8;
        let bytes: Vec<u8> = (0..args.size).map(byte).collect();
        client.send(&bytes)?;
        ensure!(
            client.receive()? == bytes,
            "message {message} came back as another"
        );
    }
    let exchanged = begin.elapsed();
    client.disconnect()?;
    println!(
        "connected in {connected:.1?}; {} messages of {} bytes came back, in {exchanged:.1?}",
        args.messages, args.size
    );
    Ok(())
}
