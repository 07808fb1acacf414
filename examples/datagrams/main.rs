//! Datagrams by the communication manager: to a service that is looked up, as rdma-core's udaddy(1) does
//! it, and to a multicast group, as its mckey(1) does.
//!
//! ```text
//! cargo run --release --example datagrams -- ask 10.77.0.1               a stock udaddy
//! cargo run --release --example datagrams -- serve
//! cargo run --release --example datagrams -- group 239.77.1.2 -b 10.77.0.1
//! cargo run --release --example datagrams -- group 239.77.1.2 -b 10.77.0.1 --send
//! ```

mod end;

use anyhow::{Context as _, Result, bail};
use bellwire::connect::cm::{EventChannel, EventKind, Membership, Peer, PortSpace};
use bellwire::fault::CmEvent;
use bellwire_examples::{check, expect, route};
use clap::{Parser, Subcommand};
use end::{End, To};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Datagrams to services and groups, by the communication manager.
#[derive(Debug, Parser)]
#[command(name = "datagrams")]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Datagrams to send, and to receive.
    #[arg(short = 'C', default_value_t = 10, global = true)]
    count: u32,
    /// Bytes of each.
    #[arg(short = 'S', default_value_t = 100, global = true)]
    size: u32,
    /// The service's port.
    #[arg(short, default_value_t = 7174, global = true)]
    port: u16,
    /// The communication manager: rdma, soft, soft:NAME, auto.
    #[arg(long, default_value = "auto", global = true)]
    provider: String,
    /// Seconds after which a peer is given up that does nothing.
    #[arg(long, default_value_t = 60, global = true)]
    timeout: u64,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Looks for a service, sends datagrams to it, and waits for as many.
    Ask {
        /// Its address or name.
        address: String,
    },
    /// Is a service: waits for datagrams, and sends as many back.
    Serve {
        /// Where to listen.
        #[arg(short, default_value = "0.0.0.0")]
        bind: String,
    },
    /// Joins a multicast group, and waits for datagrams.
    Group {
        /// Its address.
        group: IpAddr,
        /// The address of the interface to join by.
        #[arg(short)]
        bind: IpAddr,
        /// Sends datagrams instead.
        #[arg(long)]
        send: bool,
    },
}

impl Args {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    fn ask(&self, channel: &EventChannel, address: &str) -> Result<()> {
        let peer = Peer::from((address, self.port));
        let id = route(channel, PortSpace::Udp, None, &peer)?;
        let mut end = End::new(&id, self.count, self.size, self.timeout())?;
        id.lookup(b"")?;
        let event = expect(channel, CmEvent::Established, self.timeout())?;
        let EventKind::Found { peer } = event.kind() else {
            bail!("a connection");
        };
        let to = To::new(&end, &peer.ah_attr, peer.qp_num, peer.qkey)?;
        println!("initiating data transfers");
        end.send(&to)?;
        println!("receiving data transfers");
        end.receive()?;
        Ok(())
    }

    fn serve(&self, channel: &EventChannel, bind: &str) -> Result<()> {
        let listener = channel.id(PortSpace::Udp)?;
        listener.bind(Peer::from((bind, self.port)))?;
        listener.listen(1)?;
        let event = channel.get(Duration::MAX)?.context("an event")?;
        let EventKind::LookupRequest { id, .. } = check(event, CmEvent::ConnectRequest)?.ack()
        else {
            bail!("a request for a connection");
        };
        let mut end = End::new(&id, self.count, self.size, self.timeout())?;
        id.answer(end.qp(), b"")?;
        println!("receiving data transfers");
        if let Some(received) = end.receive()? {
            println!("sending replies");
            end.send(&end.way_back(&received)?)?;
        }
        Ok(())
    }

    fn group(&self, channel: &EventChannel, group: IpAddr, bind: IpAddr, send: bool) -> Result<()> {
        let id = channel.id(PortSpace::Udp)?;
        id.bind((bind, 0))?;
        let mut end = End::new(&id, self.count, self.size, self.timeout())?;
        let address = (group, 0).into();
        id.join(address, Membership::Full)?;
        let event = expect(channel, CmEvent::MulticastJoin, self.timeout())?;
        let EventKind::MulticastJoin { group } = *event.kind() else {
            bail!("another event");
        };
        if send {
            // For the group's other members, and for switches.
            std::thread::sleep(Duration::from_secs(3));
            println!("initiating data transfers");
            let to = To::new(&end, &group.ah_attr, group.qp_num, group.qkey)?;
            end.send(&to)?;
        } else {
            let (gid, lid) = (group.ah_attr.grh.dgid, group.ah_attr.dlid);
            end.qp().attach_mcast(gid, lid)?;
            println!("receiving data transfers");
            end.receive()?;
            end.qp().detach_mcast(gid, lid)?;
        }
        id.leave(address)?;
        Ok(())
    }

    fn run(&self) -> Result<()> {
        let channel = EventChannel::open(&self.provider)?;
        match &self.what {
            What::Ask { address } => self.ask(&channel, address),
            What::Serve { bind } => self.serve(&channel, bind),
            What::Group { group, bind, send } => self.group(&channel, *group, *bind, *send),
        }?;
        println!("data transfers complete");
        Ok(())
    }
}

fn main() -> ExitCode {
    match Args::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
