//! The command line: the letters of rdma-core's programs.

use bellwire::state::Mtu;
use bellwire_examples::parse_size;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use std::time::Duration;

/// Plays pingpong with another process: as rdma-core's ibv_rc_pingpong, ibv_uc_pingpong,
/// ibv_ud_pingpong and ibv_srq_pingpong do, and with each of them.
///
/// Start the server without HOST, then the client with the server's. Between two processes of one
/// host, on the software device: `pingpong -d soft:NAME` in one terminal, `pingpong -d soft:NAME
/// localhost` in another. Both sides have to have the same -t, -s, -n and -q.
#[derive(Debug, Parser)]
#[command(name = "pingpong", after_long_help = AFTER)]
struct Cli {
    /// The host on which the server waits; none: be the server
    host: Option<String>,
    /// Whose game to play: ibv_rc_pingpong's, ibv_uc_pingpong's, …
    #[arg(short = 't', long, value_enum, default_value_t = Kind::Rc)]
    transport: Kind,
    /// The TCP port to meet on; as a server 0 is one that is free
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// The device, one that `perf devices` lists, or soft:NAME
    #[arg(short = 'd', long, value_name = "DEV", default_value = "auto")]
    ib_dev: String,
    /// The device's port
    #[arg(short, long, value_name = "PORT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Bytes of a message: 64, 4k, 1m [default: 4096, ud: 1024]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Path MTU, not with ud [default: 1024]
    #[arg(short, long, value_parser = mtu)]
    mtu: Option<Mtu>,
    /// Queue pairs, with srq only [default: 16]
    #[arg(short = 'q', long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    num_qp: Option<u8>,
    /// Receives to post at a time
    #[arg(short, long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rx_depth: u32,
    /// Exchanges of a message each way; with srq those of all queue pairs together
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    iters: u64,
    /// Service level
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    sl: u8,
    /// Sleep until completions come, instead of polling for them
    #[arg(short, long)]
    events: bool,
    /// Index of the port's GID to be reached by, which RoCE needs (`perf devices` lists them)
    #[arg(short, long, value_name = "INDEX")]
    gid_idx: Option<u8>,
    /// Seconds to wait for the peer, at each step
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

const AFTER: &str = "\
The client's messages differ from each other (with srq they do not), and hold 0 at the start of each
4096 bytes, which rdma-core's servers check for with -c. What is received is checked, each byte, while
the time runs; what rdma-core's clients send is known as well.

Exit status: 0 all messages came and were right, 1 failed, 2 the options cannot be.";

/// Which of rdma-core's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagrams
    Ud,
    /// Reliable connections that share a receive queue
    Srq,
}

/// The test to run.
#[derive(Clone, Debug)]
pub struct Game {
    /// Of the server; `None`: this is it.
    pub host: Option<String>,
    pub kind: Kind,
    pub port: u16,
    pub device: String,
    pub ib_port: u8,
    pub size: u32,
    pub mtu: Mtu,
    pub num_qp: usize,
    pub rx_depth: u32,
    pub iters: u64,
    pub sl: u8,
    pub events: bool,
    pub gid_idx: Option<u8>,
    pub timeout: Duration,
}

fn mtu(text: &str) -> Result<Mtu, String> {
    (1..=5)
        .filter_map(Mtu::from_number)
        .find(|mtu| mtu.bytes().to_string() == text)
        .ok_or_else(|| "give 256, 512, 1024, 2048 or 4096".to_owned())
}

impl Cli {
    fn check(self) -> Result<Game, String> {
        let Self {
            transport: kind,
            rx_depth,
            ..
        } = self;
        let size = self.size.unwrap_or(match kind {
            Kind::Ud => 1024,
            _ => 4096,
        });
        let size = u32::try_from(size).ok().filter(|&size| size > 0);
        let num_qp = usize::from(self.num_qp.unwrap_or(match kind {
            Kind::Srq => 16,
            _ => 1,
        }));
        if kind == Kind::Ud && self.mtu.is_some() {
            return Err("a datagram has no path MTU: leave -m out".to_owned());
        }
        if kind != Kind::Srq && self.num_qp.is_some() {
            return Err("there is one queue pair: leave -q out, or give -t srq".to_owned());
        }
        if num_qp > rx_depth as usize {
            return Err(format!(
                "{rx_depth} receives for {num_qp} queue pairs: give -r {num_qp} or more"
            ));
        }
        Ok(Game {
            host: self.host,
            kind,
            port: self.port,
            device: self.ib_dev,
            ib_port: self.ib_port,
            size: size.ok_or("a message has at least 1 byte, and less than 4g: change -s")?,
            mtu: self.mtu.unwrap_or(Mtu::Mtu1024),
            num_qp,
            rx_depth,
            iters: self.iters,
            sl: self.sl,
            events: self.events,
            gid_idx: self.gid_idx,
            timeout: Duration::from_secs(self.timeout),
        })
    }
}

impl Game {
    /// From the command line. Ends the process with status 2 when the options cannot be.
    pub fn parse() -> Self {
        let refuse = |error| {
            Cli::command()
                .error(ErrorKind::ValueValidation, error)
                .exit()
        };
        Cli::parse().check().unwrap_or_else(refuse)
    }

    /// Bytes in front of a received message.
    pub fn grh(&self) -> u32 {
        match self.kind {
            Kind::Ud => bellwire::GRH_BYTES as u32,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn game(line: &str) -> Result<Game, String> {
        let arguments = ["pingpong"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(arguments).map_err(|error| error.to_string())?;
        cli.check()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_programs() {
        let rc = game("").unwrap();
        assert_eq!((rc.size, rc.iters, rc.rx_depth), (4096, 1000, 500));
        assert_eq!((rc.port, rc.mtu, rc.num_qp), (18515, Mtu::Mtu1024, 1));
        assert_eq!(game("-t ud").unwrap().size, 1024);
        assert_eq!(game("-t srq").unwrap().num_qp, 16);
    }

    #[test]
    fn their_letters_are_understood() {
        let line = "-t srq -p 5 -d soft:x -i 1 -s 8k -m 2048 -q 3 -r 7 -n 9 -l 1 -e -g 2 host";
        let game = game(line).unwrap();
        assert_eq!((game.port, game.device.as_str()), (5, "soft:x"));
        assert_eq!((game.size, game.mtu.bytes()), (8192, 2048));
        assert_eq!((game.num_qp, game.rx_depth, game.iters), (3, 7, 9));
        assert_eq!((game.sl, game.events, game.gid_idx), (1, true, Some(2)));
        assert_eq!(game.host.as_deref(), Some("host"));
    }
}
