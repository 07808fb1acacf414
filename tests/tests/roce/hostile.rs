//! Packets of a stranger that knows the protocol, and of one that does not. Whatever arrives, an end neither panics nor
//! grows, and answers one packet by few.

use bellwire_core::qp::Mtu;
use bellwire_roce::opcode::Operation;
use bellwire_roce::packet::{
    Aeth, AtomicEth, Bth, Deth, Header, MAX_HEADER, Packet, Reth, Syndrome, padding,
};
use bellwire_roce::{
    Access, Arrival, Atomic, Payload, Psn, Range, Refusal, Request, Requester, RequesterAttr,
    Responder, ResponderAttr, Results, Target, UcReceiver, Unplaceable, Verb,
};
use bellwire_tests::fixture::Random;
use std::time::Duration;

/// Memory of 64 KiB, which checks each access.
#[derive(Default)]
struct Memory {
    receive: Option<u32>,
    writes: u64,
}

const SIZE: u64 = 1 << 16;

fn inside(addr: u64, rkey: u32, length: u64) -> Result<(), Refusal> {
    let end = addr.checked_add(length).ok_or(Refusal::Access)?;
    (rkey == 1 && end <= SIZE)
        .then_some(())
        .ok_or(Refusal::Access)
}

impl Target for Memory {
    fn take_receive(&mut self) -> Result<(), Refusal> {
        self.receive.get_or_insert(0);
        Ok(())
    }

    fn place(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        assert!(self.receive.is_some() && !data.is_empty());
        let end = offset as usize + data.len();
        (end <= 10_000).then_some(()).ok_or(Refusal::Invalid)
    }

    fn deliver(&mut self, arrival: Arrival) -> Result<(), Refusal> {
        assert!(self.receive.take().is_some(), "each receive completes once");
        assert!(arrival.is_write || arrival.length <= 10_000);
        Ok(())
    }

    fn check(&mut self, range: Range, _: Access) -> Result<(), Refusal> {
        inside(range.addr, range.rkey, range.length.into())
    }

    fn write(&mut self, range: Range, data: &[u8]) -> Result<(), Refusal> {
        assert!(data.len() <= range.length as usize);
        self.writes += 1;
        inside(range.addr, range.rkey, data.len() as u64)
    }

    fn atomic(&mut self, addr: u64, rkey: u32, _: Atomic) -> Result<u64, Refusal> {
        inside(addr, rkey, 8).map(|()| 0)
    }
}

/// A packet that the decoder takes. Its number is close to the expected one.
fn packet(random: &mut Random, around: Psn) -> Vec<u8> {
    let (transport, operation) = loop {
        let opcode = random.below(256) as u8;
        if let Some(meaning) =
            Operation::decode(opcode & if random.below(4) == 0 { 0xff } else { 0x1f })
        {
            break meaning;
        }
    };
    let psn = around.plus(match random.below(4) {
        0 => random.number() as u32,
        1 => (random.below(16) as u32).wrapping_sub(8),
        _ => 0,
    });
    let has = operation.headers(transport);
    let (near, far) = (random.below(2 * SIZE), random.number());
    let addr = if random.below(8) == 0 { far } else { near };
    let rkey = 1 + u32::from(random.below(16) == 0);
    let length = match random.below(8) {
        0 => random.number() as u32,
        _ => random.below(3000) as u32,
    };
    let numbers: [u64; 2] = [random.number(), random.number()];
    let syndrome = match random.below(4) {
        0 => Syndrome::RnrNak(random.below(32) as u8),
        1 => Syndrome::Nak(bellwire_roce::packet::Nak::PsnSequence),
        _ => Syndrome::Ack(random.below(32) as u8),
    };
    let payload = match (operation.has_payload(), random.below(3)) {
        (false, _) => 0,
        (true, 0) => random.below(1100) as usize,
        (true, _) => 1024,
    };
    // A WRITE of one packet, or the first of three.
    let length = match operation {
        Operation::Write(place, _) if random.below(4) > 0 => {
            payload as u32 * if place.ends() { 1 } else { 3 }
        }
        _ => length,
    };
    let header = Header {
        bth: Bth {
            ack_request: random.below(2) == 0,
            ..Bth::new(transport, operation, 17, psn)
        },
        deth: has.deth.then_some(Deth { qkey: 1, src_qp: 2 }),
        reth: has.reth.then_some(Reth { addr, rkey, length }),
        atomic: has.atomic.then_some(AtomicEth {
            addr: addr & !7,
            rkey,
            swap_add: numbers[0],
            compare: numbers[1],
        }),
        aeth: has.aeth.then_some(Aeth {
            syndrome,
            msn: numbers[0] as u32 & 0xff_ffff,
        }),
        original: has.atomic_ack.then_some(numbers[1]),
        imm: has.imm.then_some([1, 2, 3, 4]),
        invalidate: has.ieth.then_some(rkey),
    };
    let mut bytes = [0; MAX_HEADER];
    let length = header.encode(payload, &mut bytes);
    let mut bytes = bytes[..length].to_vec();
    bytes.resize(length + payload + padding(payload), 0);
    bytes
}

const PSN: Psn = Psn::new(0xff_fff8);

fn responder() -> Responder {
    Responder::new(&ResponderAttr {
        dest_qp: 18,
        mtu: Mtu::Mtu1024,
        rq_psn: PSN,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
    })
    .unwrap()
}

#[test]
fn a_responder_survives_any_packet() {
    let (mut random, mut memory) = (Random::new(1), Memory::default());
    let (mut failed, mut executed) = (0, 0);
    while failed < 2000 {
        let (mut responder, mut uc) = (responder(), UcReceiver::new(Mtu::Mtu1024, PSN));
        let mut expected = PSN;
        memory.receive = None;
        loop {
            let bytes = packet(&mut random, expected);
            let packet = Packet::decode(&bytes).unwrap();
            let _ = uc.receive(&packet, &mut memory);
            memory.receive = None;
            let before = responder.counters().executed;
            let ended = responder.receive(&packet, &mut memory).is_err();
            if responder.counters().executed > before {
                let answered = packet
                    .header
                    .reth
                    .filter(|_| packet.header.bth.operation == Operation::ReadRequest);
                let packets = answered.map_or(1, |reth| reth.length.div_ceil(1024).max(1));
                expected = packet.header.bth.psn.plus(packets);
            }
            // At most 64 KiB may be read at once, by four requests: the others wait for these.
            let mut sent = 0;
            while let Some(transmit) = responder.poll_transmit() {
                if let Payload::Memory { addr, rkey, length } = transmit.payload {
                    inside(addr, rkey, length.into()).unwrap();
                }
                sent += 1;
            }
            assert!(sent <= 5 * 65, "{sent} packets for one");
            if ended {
                assert!(responder.failure().is_some());
                break;
            }
        }
        failed += 1;
        executed += responder.counters().executed;
    }
    assert!(executed > 0 && memory.writes > 0);
    println!("report: {executed} packets executed in {failed} connections");
}

/// Places what it gets, within bounds.
struct Local;

impl Results for Local {
    fn place(&mut self, id: u64, offset: u32, data: &[u8]) -> Result<(), Unplaceable> {
        assert!(offset as usize + data.len() <= 5000, "request {id}");
        Ok(())
    }
}

#[test]
fn a_requester_survives_any_packet() {
    let mut random = Random::new(2);
    let mut ended = [0; 3];
    for _ in 0..2000 {
        let attr = RequesterAttr {
            dest_qp: 18,
            mtu: Mtu::Mtu1024,
            sq_psn: PSN,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 3,
            max_rd_atomic: 2,
        };
        let mut requester = Requester::new(&attr, 8).unwrap();
        let (mut now, mut next, mut reported) = (Duration::ZERO, 0, 0);
        let mut psn = PSN;
        for _ in 0..200 {
            let (addr, rkey) = (0, 1);
            let verb = match random.below(3) {
                0 => Verb::Send(bellwire_roce::Extra::Nothing),
                1 => Verb::Read { addr, rkey },
                _ => Verb::FetchAdd { addr, rkey, add: 1 },
            };
            let length = match verb {
                Verb::FetchAdd { .. } => 8,
                _ => random.below(5001) as u32,
            };
            let request = Request {
                id: next,
                verb,
                length,
                solicited: false,
                fence: false,
            };
            next += u64::from(requester.post(request).is_ok());
            let mut sent = 0;
            while let Some(transmit) = requester.poll_transmit(now) {
                psn = transmit.header.bth.psn;
                sent += 1;
            }
            assert!(sent <= requester.window() + 8, "{sent} packets at once");
            let bytes = packet(&mut random, psn);
            requester.receive(&Packet::decode(&bytes).unwrap(), now, &mut Local);
            now += Duration::from_millis(random.below(100));
            requester.handle_timeout(now);
            while let Some(completion) = requester.poll_completion() {
                assert_eq!(completion.id, reported, "in order, each once");
                ended[usize::from(completion.status != bellwire_core::wr::WcStatus::Success)] += 1;
                reported += 1;
            }
            if requester.has_failed() {
                assert_eq!(reported, next, "each has one outcome");
                ended[2] += 1;
                break;
            }
        }
    }
    assert!(ended.iter().all(|count| *count > 0), "{ended:?}");
}

#[test]
fn bytes_that_are_no_packet_are_refused() {
    let mut random = Random::new(3);
    let mut decoded = 0;
    for _ in 0..300_000 {
        let length = random.below(80) as usize;
        let bytes = random.bytes(length);
        if let Ok(packet) = Packet::decode(&bytes) {
            assert!(packet.payload.len() < length);
            decoded += 1;
        }
    }
    assert!(decoded > 0, "some are packets");
}
