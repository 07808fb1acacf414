//! rdma-core's rping(1), client and server, over the communication manager of any provider.
//!
//! ```text
//! cargo run --release --example rping -- -s --provider soft:here
//! cargo run --release --example rping -- -c --provider soft:here -a localhost -C 10 -V
//! cargo run --release --example rping -- -c -a 10.77.0.1 -C 10 -v    to a stock rping -s
//! ```
//!
//! Each ping: the client says where its text stands, the server reads it; the client says where its sink
//! is, the server writes the text there.

mod client;
mod end;
mod message;
mod server;

use anyhow::{Result, ensure};
use bellwire::connect::cm::Peer;
use clap::Parser;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Pings by RDMA: the client's text is read by the server, and written back.
#[derive(Clone, Debug, Parser)]
#[command(name = "rping")]
struct Args {
    /// Waits for a client.
    #[arg(short, conflicts_with = "client", required_unless_present = "client")]
    server: bool,
    /// Goes to a server.
    #[arg(short, requires = "address")]
    client: bool,
    /// The server's address or name; where the server listens.
    #[arg(short)]
    address: Option<String>,
    /// The client's own address.
    #[arg(short = 'I')]
    source: Option<IpAddr>,
    /// The server's port.
    #[arg(short, default_value_t = 7174)]
    port: u16,
    /// Bytes of a ping.
    #[arg(short = 'S', default_value_t = 64)]
    size: u32,
    /// Pings; 0 is for ever.
    #[arg(short = 'C', default_value_t = 0)]
    count: u64,
    /// Shows the data.
    #[arg(short)]
    verbose: bool,
    /// Compares what comes back.
    #[arg(short = 'V')]
    validate: bool,
    /// Serves clients for ever, many at once.
    #[arg(short = 'P')]
    persistent: bool,
    /// The communication manager: rdma, soft, soft:NAME, auto.
    #[arg(long, default_value = "auto")]
    provider: String,
    /// Seconds after which a peer is given up that does nothing.
    #[arg(long, default_value_t = 60)]
    timeout: u64,
}

impl Args {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    fn peer(&self) -> Peer {
        let address = self.address.as_deref().unwrap_or("0.0.0.0");
        Peer::from((address, self.port))
    }
}

fn run(args: &Args) -> Result<()> {
    ensure!(
        (message::MIN_SIZE..message::MAX_SIZE).contains(&args.size),
        "a ping has {} to {} bytes",
        message::MIN_SIZE,
        message::MAX_SIZE - 1
    );
    match args.client {
        true => client::run(args),
        false => server::run(args),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
