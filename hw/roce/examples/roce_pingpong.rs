//! rdma-core's `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong` without verbs: RoCE v2 from an ordinary UDP
//! socket. The other end is a device, or this program.
//!
//!     roce_pingpong LOCAL-ADDRESS                       waits for the other end
//!     roce_pingpong LOCAL-ADDRESS --peer PEER-ADDRESS   begins
//!
//! The other end is `ibv_rc_pingpong -g INDEX [LOCAL-ADDRESS]`, or its like, with the same sizes. It shows how a program drives the
//! protocol: packets, time and memory in; packets, timers and completions out.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bellwire_core::qp::Mtu;
use bellwire_core::wr::WcStatus;
use bellwire_roce::packet::Packet;
use bellwire_roce::{
    Access, Arrival, Atomic, Datagram, Extra, Payload, Psn, Range, Refusal, Request, Requester,
    RequesterAttr, Responder, ResponderAttr, Results, Span, Target, Transmit, UcReceiver, UcSender,
    Unplaceable, Verb,
};
use clap::{Parser, ValueEnum};
use wire::Wire;

#[path = "shared/wire.rs"]
mod wire;

#[derive(Parser)]
struct Options {
    /// This end's address
    local: IpAddr,
    /// The other end, if that waits
    #[arg(long)]
    peer: Option<IpAddr>,
    /// The transport
    #[arg(short, long, value_enum, default_value_t = Transport::Rc)]
    transport: Transport,
    /// Messages each way
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u32,
    /// Bytes of a message
    #[arg(short, long, default_value_t = 4096)]
    size: u32,
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value_t = 1024)]
    mtu: u32,
    /// The port where both exchange their addresses
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagrams, of up to the path MTU
    Ud,
}

/// The Q_Key of rdma-core's example.
const QKEY: u32 = 0x1111_1111;

/// What one end tells the other: the text of rdma-core's examples.
struct Endpoint {
    qp_num: u32,
    psn: u32,
}

impl Endpoint {
    const TEXT: usize = 52;

    fn text(&self, address: IpAddr) -> String {
        let gid = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let Self { qp_num, psn } = self;
        format!("0000:{qp_num:06x}:{psn:06x}:{:032x}\0", gid.to_bits())
    }

    fn read(stream: &mut TcpStream) -> Result<Self, Box<dyn Error>> {
        let mut text = [0; Self::TEXT];
        stream.read_exact(&mut text)?;
        let mut fields = std::str::from_utf8(&text)?.split(':').skip(1);
        let mut number = || {
            let field = fields
                .next()
                .ok_or("the other end's text has too few fields")?;
            Ok::<_, Box<dyn Error>>(u32::from_str_radix(field, 16)?)
        };
        Ok(Self {
            qp_num: number()?,
            psn: number()?,
        })
    }
}

/// The memory of this end: a message that it sends, and one that it receives.
struct Memory {
    receives: u32,
    received: Vec<u8>,
    arrived: u32,
}

impl Target for Memory {
    fn take_receive(&mut self) -> Result<(), Refusal> {
        match self.receives {
            0 => Err(Refusal::NotReady),
            _ => Ok(()),
        }
    }

    fn place(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        let end = offset as usize + data.len();
        let place = self.received.get_mut(offset as usize..end);
        place.ok_or(Refusal::Invalid)?.copy_from_slice(data);
        Ok(())
    }

    fn deliver(&mut self, _: Arrival) -> Result<(), Refusal> {
        self.receives -= 1;
        self.arrived += 1;
        Ok(())
    }

    fn check(&mut self, _: Range, _: Access) -> Result<(), Refusal> {
        Err(Refusal::Access)
    }

    fn write(&mut self, _: Range, _: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::Access)
    }

    fn atomic(&mut self, _: u64, _: u32, _: Atomic) -> Result<u64, Refusal> {
        Err(Refusal::Access)
    }
}

/// Nothing here reads a peer's memory.
impl Results for Memory {
    fn place(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), Unplaceable> {
        Err(Unplaceable)
    }
}

/// The queues of one end.
enum Queues {
    Rc(Box<Requester>, Box<Responder>),
    Uc(UcSender, UcReceiver, u32),
    /// Both ends, the requests to send, and how many were sent.
    Ud([u32; 2], VecDeque<Request>, u32),
}

impl Queues {
    fn new(
        options: &Options,
        mtu: Mtu,
        here: &Endpoint,
        there: &Endpoint,
    ) -> Result<Self, Box<dyn Error>> {
        let dest_qp = there.qp_num;
        let (sq_psn, rq_psn) = (Psn::new(here.psn), Psn::new(there.psn));
        let requester = RequesterAttr {
            dest_qp,
            mtu,
            sq_psn,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
        };
        let responder = ResponderAttr {
            dest_qp,
            mtu,
            rq_psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        };
        Ok(match options.transport {
            Transport::Rc => Self::Rc(
                Requester::new(&requester, 16)?.into(),
                Responder::new(&responder)?.into(),
            ),
            Transport::Uc => Self::Uc(
                UcSender::new(dest_qp, mtu, sq_psn, 16)?,
                UcReceiver::new(mtu, rq_psn),
                0,
            ),
            Transport::Ud if options.size > mtu.bytes() => {
                return Err("a datagram is not longer than the path MTU".into());
            }
            Transport::Ud => Self::Ud([here.qp_num, dest_qp], VecDeque::new(), 0),
        })
    }

    fn post(&mut self, request: Request) -> Result<(), String> {
        match self {
            Self::Rc(requester, _) => requester
                .post(request)
                .map_err(|refused| format!("a request is refused: {refused:?}")),
            Self::Uc(sender, ..) => sender
                .post(request)
                .map_err(|request| format!("a request is refused: {request:?}")),
            Self::Ud(_, requests, _) => {
                requests.push_back(request);
                Ok(())
            }
        }
    }

    fn poll_transmit(&mut self, now: Duration) -> Option<Transmit> {
        match self {
            Self::Rc(requester, responder) => {
                (requester.poll_transmit(now)).or_else(|| responder.poll_transmit())
            }
            Self::Uc(sender, _, completed) => {
                let (transmit, ended) = sender.poll_transmit()?;
                *completed += u32::from(ended.is_some());
                Some(transmit)
            }
            Self::Ud([src_qp, dest_qp], requests, sent) => {
                let Request { id, length, .. } = requests.pop_front()?;
                let datagram = Datagram {
                    dest_qp: *dest_qp,
                    src_qp: *src_qp,
                    qkey: QKEY,
                    psn: Psn::new(*sent),
                    imm: None,
                    solicited: false,
                };
                *sent += 1;
                let (offset, header) = (0, datagram.header());
                let span = Span { offset, length };
                let payload = Payload::Request { id, span };
                Some(Transmit { header, payload })
            }
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        match self {
            Self::Rc(requester, _) => requester.poll_timeout(),
            _ => None,
        }
    }

    fn receive(
        &mut self,
        packet: &Packet<'_>,
        now: Duration,
        memory: &mut Memory,
    ) -> Result<(), String> {
        let received = match self {
            Self::Rc(_, responder) if packet.header.bth.operation.is_request() => {
                responder.receive(packet, memory)
            }
            Self::Rc(requester, _) => {
                requester.receive(packet, now, memory);
                Ok(())
            }
            Self::Uc(_, receiver, _) => receiver.receive(packet, memory),
            Self::Ud(..) if Datagram::of(packet, QKEY).is_some() => {
                memory.arrived += 1;
                Target::place(memory, 0, packet.payload)
            }
            Self::Ud(..) => Ok(()),
        };
        received.map_err(|refusal| format!("a request failed: {refusal:?}"))
    }

    /// Requests that have succeeded since the last call.
    fn completed(&mut self, now: Duration) -> Result<u32, String> {
        let requester = match self {
            Self::Rc(requester, _) => requester,
            Self::Uc(_, _, completed) | Self::Ud(_, _, completed) => {
                return Ok(std::mem::take(completed));
            }
        };
        requester.handle_timeout(now);
        let mut completed = 0;
        while let Some(completion) = requester.poll_completion() {
            if completion.status != WcStatus::Success {
                return Err(format!("request {}: {}", completion.id, completion.status));
            }
            completed += 1;
        }
        Ok(completed)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mtu = (1..=5)
        .filter_map(Mtu::from_number)
        .find(|mtu| mtu.bytes() == options.mtu);
    let mtu = mtu.ok_or("the path MTU is 256, 512, 1024, 2048 or 4096")?;
    let seed = std::time::UNIX_EPOCH.elapsed()?.subsec_nanos();
    let here = Endpoint {
        qp_num: 0x11 + seed % 0xffff,
        psn: seed & 0xff_ffff,
    };

    let mut stream = match options.peer {
        Some(peer) => TcpStream::connect((peer, options.port))?,
        None => {
            TcpListener::bind((options.local, options.port))?
                .accept()?
                .0
        }
    };
    let peer = stream.peer_addr()?.ip();
    let mut wire = Wire::open(options.local, peer)?;
    let there = if options.peer.is_some() {
        stream.write_all(here.text(options.local).as_bytes())?;
        let there = Endpoint::read(&mut stream)?;
        stream.write_all(b"done\0")?;
        there
    } else {
        let there = Endpoint::read(&mut stream)?;
        stream.write_all(here.text(options.local).as_bytes())?;
        stream.read_exact(&mut [0; 5])?;
        there
    };

    let mut queues = Queues::new(&options, mtu, &here, &there)?;
    let message: Vec<_> = (0..options.size).map(|at| at as u8).collect();
    let mut memory = Memory {
        receives: 500,
        received: vec![0; options.size as usize],
        arrived: 0,
    };
    let request = |id| Request {
        id,
        verb: Verb::Send(Extra::Nothing),
        length: options.size,
        solicited: false,
        fence: false,
    };

    let begun = Instant::now();
    let (mut sent, mut completed) = (0, 0);
    let mut datagram = vec![0; 65536];
    // The other end may wait for the last acknowledgement.
    let mut quiet = 0;
    while completed < options.iters || memory.arrived < options.iters || quiet < 10 {
        let turn = if options.peer.is_some() {
            memory.arrived + 1
        } else {
            memory.arrived
        };
        while sent < turn.min(options.iters) {
            queues.post(request(sent.into()))?;
            sent += 1;
        }
        while let Some(transmit) = queues.poll_transmit(begun.elapsed()) {
            let payload = match transmit.payload {
                Payload::Request { span, .. } => {
                    &message[span.offset as usize..(span.offset + span.length) as usize]
                }
                _ => &[],
            };
            wire.send(&transmit, payload)?;
        }
        let until = queues.poll_timeout().unwrap_or(Duration::MAX);
        let wait = until
            .saturating_sub(begun.elapsed())
            .min(Duration::from_millis(50));
        match wire.receive(wait, &mut datagram)? {
            Some(packet) => {
                if packet.header.bth.dest_qp != here.qp_num {
                    continue;
                }
                queues.receive(&packet, begun.elapsed(), &mut memory)?;
                memory.receives = memory.receives.max(100);
                quiet = 0;
            }
            None => quiet += 1,
        }
        completed += queues.completed(begun.elapsed())?;
    }
    if memory.received != message && memory.received.iter().any(|byte| *byte != 0) {
        return Err("the last message has other bytes".into());
    }
    println!("{completed} messages of {} bytes each way", options.size);
    if let Queues::Rc(requester, responder) = &queues {
        println!("{:?}\n{:?}", requester.counters(), responder.counters());
    }
    Ok(())
}
