//! The client of librdmacm's `rping` without verbs: it connects to the communication manager of another host by RoCE v2
//! from an ordinary UDP socket. Then the server reads its memory and writes to it, message by message.
//!
//!     roce_rping LOCAL-ADDRESS SERVER-ADDRESS
//!
//! The server is `rping -s -a SERVER-ADDRESS`.

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use bellwire_core::qp::Mtu;
use bellwire_core::wr::WcStatus;
use bellwire_roce::cm::{self, Ids, IpHeader, Mad, Message, Rep, Req};
use bellwire_roce::packet::Packet;
use bellwire_roce::{
    Access, Arrival, Atomic, Datagram, Extra, Payload, Psn, Range, Refusal, Request, Requester,
    RequesterAttr, Responder, ResponderAttr, Results, Span, Target, Transmit, Unplaceable, Verb,
};
use clap::Parser;
use wire::Wire;

#[path = "shared/wire.rs"]
mod wire;

#[derive(Parser)]
struct Options {
    /// This end's address
    local: IpAddr,
    /// The server's address
    server: IpAddr,
    /// The server's port
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
    /// How often the server reads and writes
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u32,
    /// Bytes that it reads and writes
    #[arg(short = 'S', long, default_value_t = 64)]
    size: u32,
}

/// This end's queue pair, and the keys of its memory.
const QPN: u32 = 0x1234;
const SOURCE: u32 = 1;
const SINK: u32 = 2;

/// Where both kinds of memory begin, in the peer's words.
const BASE: u64 = 1 << 32;

/// The memory that the server reads and writes, and the messages that it sends.
struct Memory {
    source: Vec<u8>,
    sink: Vec<u8>,
    messages: u32,
}

impl Memory {
    fn at(&mut self, range: Range, access: Access) -> Result<&mut [u8], Refusal> {
        let memory = match (range.rkey, access) {
            (SOURCE, Access::Read) => &mut self.source,
            (SINK, Access::Write) => &mut self.sink,
            _ => return Err(Refusal::Access),
        };
        let start = range.addr.checked_sub(BASE).ok_or(Refusal::Access)?;
        let start = usize::try_from(start).map_err(|_| Refusal::Access)?;
        let end = start
            .checked_add(range.length as usize)
            .ok_or(Refusal::Access)?;
        memory.get_mut(start..end).ok_or(Refusal::Access)
    }
}

impl Target for Memory {
    fn take_receive(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn place(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        (offset as usize + data.len() <= 16)
            .then_some(())
            .ok_or(Refusal::Invalid)
    }

    fn deliver(&mut self, _: Arrival) -> Result<(), Refusal> {
        self.messages += 1;
        Ok(())
    }

    fn check(&mut self, range: Range, access: Access) -> Result<(), Refusal> {
        self.at(range, access).map(|_| ())
    }

    fn write(&mut self, range: Range, data: &[u8]) -> Result<(), Refusal> {
        self.at(range, Access::Write)?[..data.len()].copy_from_slice(data);
        Ok(())
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

/// Messages to and from the peer's communication manager.
struct Manager {
    transaction: u64,
    sent: u32,
}

/// How long to wait for an answer before a message is sent again, and how often.
const ANSWER: Duration = Duration::from_millis(500);
const TRIES: usize = 20;

impl Manager {
    fn send(&mut self, wire: &mut Wire, message: Message) -> std::io::Result<()> {
        let datagram = Datagram {
            dest_qp: cm::QPN,
            src_qp: cm::QPN,
            qkey: cm::QKEY,
            psn: Psn::new(self.sent),
            imm: None,
            solicited: false,
        };
        self.sent += 1;
        let (id, offset, length) = (0, 0, cm::SIZE as u32);
        let transmit = Transmit {
            header: datagram.header(),
            payload: Payload::Request {
                id,
                span: Span { offset, length },
            },
        };
        let transaction = self.transaction;
        wire.send(
            &transmit,
            &Mad {
                transaction,
                message,
            }
            .encode(),
        )
    }

    /// Sends a message until it is answered.
    fn ask(&mut self, wire: &mut Wire, message: Message) -> Result<Message, Box<dyn Error>> {
        let mut datagram = vec![0; 65536];
        for _ in 0..TRIES {
            self.send(wire, message)?;
            let sent = Instant::now();
            while sent.elapsed() < ANSWER {
                let packet = wire.receive(ANSWER.saturating_sub(sent.elapsed()), &mut datagram)?;
                if let Some(answer) = packet.as_ref().and_then(of_manager)
                    && answer.transaction == self.transaction
                {
                    return Ok(answer.message);
                }
            }
        }
        Err("the server's communication manager does not answer".into())
    }
}

/// The message of a packet to queue pair 1.
fn of_manager(packet: &Packet<'_>) -> Option<Mad> {
    let datagram = Datagram::of(packet, cm::QKEY).filter(|datagram| datagram.dest_qp == cm::QPN);
    datagram.and_then(|_| Mad::decode(packet.payload).ok())
}

fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Connects: the server's numbers, and this end's of the connection.
fn connect(
    options: &Options,
    wire: &mut Wire,
    manager: &mut Manager,
    psn: Psn,
) -> Result<(Rep, u32), Box<dyn Error>> {
    let mut private = [0; 92];
    let header = IpHeader {
        port: 40_000,
        source: options.local,
        destination: options.server,
    };
    private[..IpHeader::SIZE].copy_from_slice(&header.encode());
    let local_id = manager.transaction as u32;
    let request = Req {
        local_id,
        service_id: cm::service_id(options.port),
        ca_guid: 0x0200_0000_0000_0001,
        qpn: QPN,
        responder_resources: 1,
        initiator_depth: 1,
        psn,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        unreliable: false,
        retry_count: 7,
        rnr_retry_count: 7,
        pkey: 0xffff,
        mtu: Mtu::Mtu1024,
        max_cm_retries: 15,
        srq: false,
        local_gid: gid(options.local),
        remote_gid: gid(options.server),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
        ack_timeout: 14,
        private,
    };
    match manager.ask(wire, Message::Req(request))? {
        Message::Rep(rep) => {
            let (local, remote) = (local_id, rep.local_id);
            manager.send(wire, Message::Rtu(Ids { local, remote }))?;
            Ok((rep, local_id))
        }
        Message::Rej(_, _, reason, _) => Err(format!("rejected with reason {reason}").into()),
        other => Err(format!("not an answer to a request: {other:?}").into()),
    }
}

/// A message that announces memory to the server: address, key and length.
fn advert(rkey: u32, size: u32) -> Vec<u8> {
    [
        &BASE.to_be_bytes()[..],
        &rkey.to_be_bytes(),
        &size.to_be_bytes(),
    ]
    .concat()
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let now = std::time::UNIX_EPOCH.elapsed()?;
    let mut manager = Manager {
        transaction: u64::from(now.subsec_nanos()),
        sent: 0,
    };
    let psn = Psn::new(now.subsec_nanos());
    let mut wire = Wire::open(options.local, options.server)?;
    let (rep, local) = connect(&options, &mut wire, &mut manager, psn)?;
    let mtu = Mtu::Mtu1024;
    let mut requester = Requester::new(
        &RequesterAttr {
            dest_qp: rep.qpn,
            mtu,
            sq_psn: rep.psn,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
        },
        16,
    )?;
    let mut responder = Responder::new(&ResponderAttr {
        dest_qp: rep.qpn,
        mtu,
        rq_psn: psn,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    })?;
    let size = options.size as usize;
    let mut memory = Memory {
        source: vec![0; size],
        sink: vec![0; size],
        messages: 0,
    };
    let begun = Instant::now();
    let mut datagram = vec![0; 65536];
    // A message has the source, the server reads it and answers; one has the sink, the server writes and answers.
    for step in 0..2 * options.count {
        if step % 2 == 0 {
            // The server takes it for a string.
            let text = (1..size).map(|at| b'A' + ((at as u32 + step) % 50) as u8);
            memory.source = text.chain([0]).collect();
        }
        let rkey = if step % 2 == 0 { SOURCE } else { SINK };
        let message = advert(rkey, options.size);
        let verb = Verb::Send(Extra::Nothing);
        let (id, length) = (step.into(), message.len() as u32);
        let (solicited, fence) = (false, false);
        let posted = requester.post(Request {
            id,
            verb,
            length,
            solicited,
            fence,
        });
        posted.map_err(|refused| format!("a request is refused: {refused:?}"))?;
        while memory.messages <= step {
            while let Some(transmit) = requester.poll_transmit(begun.elapsed()) {
                wire.send(&transmit, &message)?;
            }
            while let Some(transmit) = responder.poll_transmit() {
                let Payload::Memory { addr, rkey, length } = transmit.payload else {
                    wire.send(&transmit, &[])?;
                    continue;
                };
                match memory.at(Range { addr, rkey, length }, Access::Read) {
                    Ok(bytes) => wire.send(&transmit, bytes)?,
                    Err(refusal) => responder.refuse(&transmit, refusal),
                }
            }
            let until = requester.poll_timeout().unwrap_or(Duration::MAX);
            let wait = until
                .saturating_sub(begun.elapsed())
                .min(Duration::from_secs(1));
            if let Some(packet) = wire.receive(wait, &mut datagram)? {
                match packet.header.bth {
                    bth if bth.dest_qp == QPN && bth.operation.is_request() => {
                        let received = responder.receive(&packet, &mut memory);
                        received.map_err(|refusal| format!("a request failed: {refusal:?}"))?;
                    }
                    bth if bth.dest_qp == QPN => {
                        requester.receive(&packet, begun.elapsed(), &mut memory);
                    }
                    _ => match of_manager(&packet).map(|mad| mad.message) {
                        // The confirmation was lost: the server's manager answers again.
                        Some(Message::Rep(again)) if again.local_id == rep.local_id => {
                            let remote = rep.local_id;
                            manager.send(&mut wire, Message::Rtu(Ids { local, remote }))?;
                        }
                        Some(Message::Dreq(..)) => return Err("the server has disconnected".into()),
                        _ => {}
                    },
                }
            }
            requester.handle_timeout(begun.elapsed());
            while let Some(completion) = requester.poll_completion() {
                if completion.status != WcStatus::Success {
                    return Err(format!("message {}: {}", completion.id, completion.status).into());
                }
            }
        }
        if step % 2 == 1 && memory.sink != memory.source {
            return Err("the server wrote other bytes than it read".into());
        }
    }
    while let Some(transmit) = responder.poll_transmit() {
        wire.send(&transmit, &[])?;
    }
    manager.transaction += 1;
    let remote = rep.local_id;
    match manager.ask(&mut wire, Message::Dreq(Ids { local, remote }, rep.qpn))? {
        Message::Drep(_) => println!("{} times {size} bytes, read and written", options.count),
        other => return Err(format!("not an answer to the end: {other:?}").into()),
    }
    Ok(())
}
