use super::*;
use crate::arrival::Arrival;
use crate::opcode::Trailer;
use std::vec::Vec;

const RKEY: u32 = 5;
const SIZE: u64 = 4096;

/// A responder's program: memory from address 0 on, and a receive of 600 bytes at a time.
#[derive(Default)]
struct Program {
    receives: usize,
    taken: bool,
    arrivals: Vec<Arrival>,
    bytes: usize,
    atomics: u64,
    written: Vec<(u64, usize)>,
}

impl Target for Program {
    fn take_receive(&mut self) -> Result<(), Refusal> {
        if !self.taken {
            self.receives = self.receives.checked_sub(1).ok_or(Refusal::NotReady)?;
            self.taken = true;
        }
        Ok(())
    }

    fn place(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        self.bytes = offset as usize + data.len();
        (self.bytes <= 600).then_some(()).ok_or(Refusal::Invalid)
    }

    fn deliver(&mut self, arrival: Arrival) -> Result<(), Refusal> {
        self.taken = false;
        self.arrivals.push(arrival);
        Ok(())
    }

    fn check(&mut self, range: Range, _: Access) -> Result<(), Refusal> {
        let inside = range.rkey == RKEY && range.addr + u64::from(range.length) <= SIZE;
        inside.then_some(()).ok_or(Refusal::Access)
    }

    fn write(&mut self, range: Range, data: &[u8]) -> Result<(), Refusal> {
        self.written.push((range.addr, data.len()));
        Ok(())
    }

    fn atomic(&mut self, addr: u64, rkey: u32, _: Atomic) -> Result<u64, Refusal> {
        let length = 8;
        self.check(Range { addr, rkey, length }, Access::Atomic)?;
        self.atomics += 1;
        Ok(100 + self.atomics)
    }
}

const FIRST: Psn = Psn::new(0xff_ffff);

struct Ends {
    responder: Responder,
    program: Program,
}

const SEND: Operation = Operation::Send(Place::Only, Trailer::Nothing);

impl Ends {
    fn new() -> Self {
        let attr = ResponderAttr {
            dest_qp: 9,
            mtu: Mtu::Mtu256,
            rq_psn: FIRST,
            max_dest_rd_atomic: 2,
            min_rnr_timer: 6,
        };
        Self {
            responder: Responder::new(&attr).unwrap(),
            program: Program::default(),
        }
    }

    /// Receives the packet `at` of the connection, which asks for an acknowledgement.
    fn receive(&mut self, at: u32, operation: Operation, length: usize) -> Result<(), Refusal> {
        self.receive_with(at, operation, length, |_| ())
    }

    fn receive_with(
        &mut self,
        at: u32,
        operation: Operation,
        length: usize,
        change: impl FnOnce(&mut Header),
    ) -> Result<(), Refusal> {
        let mut header = Header::new(Bth {
            ack_request: true,
            ..Bth::new(Transport::Rc, operation, 8, FIRST.plus(at))
        });
        change(&mut header);
        let payload = &[7; 512][..length];
        self.responder
            .receive(&Packet { header, payload }, &mut self.program)
    }

    fn read(&mut self, at: u32, addr: u64, length: u32) -> Result<(), Refusal> {
        let rkey = RKEY;
        self.receive_with(at, Operation::ReadRequest, 0, |header| {
            header.reth = Some(Reth { addr, rkey, length });
        })
    }

    fn add(&mut self, at: u32, addr: u64) -> Result<(), Refusal> {
        let (rkey, swap_add, compare) = (RKEY, 1, 0);
        self.receive_with(at, Operation::FetchAdd, 0, |header| {
            header.atomic = Some(AtomicEth {
                addr,
                rkey,
                swap_add,
                compare,
            });
        })
    }

    /// The packets that are sent: the number and the content of each.
    fn sent(&mut self) -> Vec<(u32, Said)> {
        core::iter::from_fn(|| self.responder.poll_transmit())
            .map(|transmit| {
                let header = transmit.header;
                let said = match (header.bth.operation, header.aeth, transmit.payload) {
                    (Operation::ReadResponse(place), _, Payload::Memory { addr, length, .. }) => {
                        Said::Read(place, addr, length)
                    }
                    (Operation::ReadResponse(place), ..) => Said::Read(place, 0, 0),
                    (Operation::AtomicAcknowledge, ..) => Said::Atomic(header.original.unwrap()),
                    (_, Some(Aeth { syndrome, .. }), _) => Said::Syndrome(syndrome),
                    (operation, ..) => panic!("{operation:?}"),
                };
                (header.bth.psn.since(FIRST).cast_unsigned(), said)
            })
            .collect()
    }
}

#[derive(Debug, PartialEq)]
enum Said {
    Read(Place, u64, u32),
    Atomic(u64),
    Syndrome(Syndrome),
}

const ACK: Said = Said::Syndrome(Syndrome::Ack(Syndrome::UNLIMITED));

const fn nak(nak: Nak) -> Said {
    Said::Syndrome(Syndrome::Nak(nak))
}

#[test]
fn acknowledgements_that_wait_are_one() {
    let mut ends = Ends::new();
    ends.program.receives = 3;
    for at in 0..3 {
        ends.receive(at, SEND, 10).unwrap();
    }
    assert_eq!(ends.sent(), [(2, ACK)]);
    assert_eq!(ends.program.arrivals.len(), 3);
    // Acknowledged again, and not executed again.
    ends.receive(0, SEND, 10).unwrap();
    assert_eq!(ends.sent(), [(2, ACK)]);
    assert_eq!(
        (
            ends.program.arrivals.len(),
            ends.responder.counters().duplicates
        ),
        (3, 1)
    );
}

#[test]
fn a_gap_is_told_once_until_it_is_filled() {
    let mut ends = Ends::new();
    ends.program.receives = 5;
    ends.receive(1, SEND, 10).unwrap();
    ends.receive(2, SEND, 10).unwrap();
    assert_eq!(ends.sent(), [(0, nak(Nak::PsnSequence))]);
    ends.receive(0, SEND, 10).unwrap();
    ends.receive(2, SEND, 10).unwrap();
    // It acknowledges all before it.
    assert_eq!(ends.sent(), [(1, nak(Nak::PsnSequence))]);
    assert_eq!(ends.program.arrivals.len(), 1);
}

#[test]
fn a_send_waits_for_a_receive() {
    let mut ends = Ends::new();
    ends.receive(0, SEND, 10).unwrap();
    // Those behind it come in vain, and need no answer.
    ends.receive(1, SEND, 10).unwrap();
    assert_eq!(ends.sent(), [(0, Said::Syndrome(Syndrome::RnrNak(6)))]);
    ends.program.receives = 1;
    ends.receive(0, SEND, 10).unwrap();
    assert_eq!(ends.sent(), [(0, ACK)]);
    // A WRITE of two packets whose last one wants a receive: the first is not executed again.
    let write = |place, trailer| Operation::Write(place, trailer);
    let (addr, rkey, length) = (64, RKEY, 300);
    let reth = Some(Reth { addr, rkey, length });
    let first = write(Place::First, Trailer::Nothing);
    ends.receive_with(1, first, 256, |header| header.reth = reth)
        .unwrap();
    let last = write(Place::Last, Trailer::Immediate);
    for _ in 0..2 {
        ends.receive_with(2, last, 44, |header| header.imm = Some([1; 4]))
            .unwrap();
    }
    ends.program.receives = 1;
    ends.receive_with(2, last, 44, |header| header.imm = Some([1; 4]))
        .unwrap();
    assert_eq!(ends.program.written, [(64, 256), (320, 44)]);
    let arrival = ends.program.arrivals[1];
    assert_eq!(
        (arrival.is_write, arrival.length, arrival.imm),
        (true, 300, Some([1; 4]))
    );
}

#[test]
fn requests_against_the_rules_end_the_connection() {
    let send = |place| Operation::Send(place, Trailer::Nothing);
    let write = |place| Operation::Write(place, Trailer::Nothing);
    // Packets before it, its operation and its length, for a WRITE the length of all.
    for (before, operation, length, all) in [
        (&[][..], send(Place::Middle), 256, 0),
        (&[], send(Place::First), 255, 0),
        (&[], send(Place::Only), 257, 0),
        (&[(Place::First, 256)], send(Place::Only), 1, 0),
        (&[(Place::First, 256)], send(Place::Last), 0, 0),
        (&[(Place::First, 256)], write(Place::Last), 1, 0),
        (&[], write(Place::Only), 10, 11),
        (&[], write(Place::Only), 10, 9),
        (&[], write(Place::First), 256, 256),
        // Longer than the receive.
        (
            &[(Place::First, 256), (Place::Middle, 256)],
            send(Place::Last),
            100,
            0,
        ),
    ] {
        let mut ends = Ends::new();
        ends.program.receives = 1;
        for (at, (place, length)) in before.iter().enumerate() {
            ends.receive(at as u32, send(*place), *length).unwrap();
        }
        let at = before.len() as u32;
        let (addr, rkey) = (0, RKEY);
        let reth = matches!(operation, Operation::Write(place, _) if place.begins());
        let reth = reth.then_some(Reth {
            addr,
            rkey,
            length: all,
        });
        let refused = ends.receive_with(at, operation, length, |header| header.reth = reth);
        assert_eq!(refused, Err(Refusal::Invalid), "{operation:?} of {length}");
        assert_eq!(ends.sent().pop(), Some((at, nak(Nak::InvalidRequest))));
        // Nothing has an effect any more.
        ends.receive(at, SEND, 1).unwrap();
        assert_eq!((ends.sent().len(), ends.program.arrivals.len()), (0, 0));
    }
}

#[test]
fn memory_is_accessed_as_its_key_allows() {
    let mut ends = Ends::new();
    assert_eq!(ends.read(0, SIZE - 5, 6), Err(Refusal::Access));
    assert_eq!(ends.sent(), [(0, nak(Nak::RemoteAccess))]);
    let mut ends = Ends::new();
    assert_eq!(ends.add(0, SIZE), Err(Refusal::Access));
    assert_eq!(
        (ends.sent(), ends.program.atomics),
        (Vec::from([(0, nak(Nak::RemoteAccess))]), 0)
    );
    // Without bytes there is nothing to check.
    let mut ends = Ends::new();
    ends.read(0, SIZE + 1, 0).unwrap();
    assert_eq!(ends.sent(), [(0, Said::Read(Place::Only, 0, 0))]);
}

#[test]
fn reads_are_answered_in_order_and_again() {
    let mut ends = Ends::new();
    ends.program.receives = 1;
    ends.read(0, 100, 600).unwrap();
    ends.add(3, 8).unwrap();
    ends.receive(4, SEND, 1).unwrap();
    let answers = [
        (0, Said::Read(Place::First, 100, 256)),
        (1, Said::Read(Place::Middle, 356, 256)),
        (2, Said::Read(Place::Last, 612, 88)),
        (3, Said::Atomic(101)),
        (4, ACK),
    ];
    assert_eq!(ends.sent(), answers);
    // The rest of the READ again, and a packet of it.
    ends.read(1, 356, 344).unwrap();
    assert_eq!(
        ends.sent(),
        [
            (1, Said::Read(Place::First, 356, 256)),
            (2, Said::Read(Place::Last, 612, 88))
        ]
    );
    ends.read(1, 356, 256).unwrap();
    assert_eq!(ends.sent(), [(1, Said::Read(Place::Only, 356, 256))]);
    // The atomic is answered again, and not executed.
    ends.add(3, 8).unwrap();
    assert_eq!(
        (ends.sent(), ends.program.atomics),
        (Vec::from([(3, Said::Atomic(101))]), 1)
    );
    // A request that differs from the executed one is not answered: more bytes, another address, another operation.
    ends.read(1, 356, 345).unwrap();
    ends.read(1, 357, 344).unwrap();
    ends.read(1, 356, 255).unwrap();
    ends.add(3, 16).unwrap();
    ends.add(1, 8).unwrap();
    assert_eq!(
        (ends.sent().len(), ends.responder.counters().dropped),
        (0, 5)
    );
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut ends = Ends::new();
    ends.read(0, 0, 10).unwrap();
    ends.add(1, 0).unwrap();
    assert_eq!(ends.read(2, 0, 10), Err(Refusal::Invalid));
    let last = ends.sent().pop();
    assert_eq!(
        last,
        Some((2, nak(Nak::InvalidRequest))),
        "behind the answers before it"
    );
}

#[test]
fn memory_that_goes_away_is_said() {
    let mut ends = Ends::new();
    ends.read(0, 0, 600).unwrap();
    ends.responder.poll_transmit().unwrap();
    let second = ends.responder.poll_transmit().unwrap();
    ends.responder.refuse(&second, Refusal::Access);
    assert_eq!(ends.sent(), [(1, nak(Nak::RemoteAccess))]);
    assert_eq!(ends.responder.failure(), Some(Refusal::Access));
}

/// A duplicate that comes late is answered again beside as many requests as may be under way.
#[test]
fn a_late_duplicate_takes_the_place_of_no_request() {
    let mut ends = Ends::new();
    ends.read(0, 0, 10).unwrap();
    ends.read(1, 0, 10).unwrap();
    assert_eq!(ends.sent().len(), 2);
    ends.read(1, 0, 10).unwrap();
    ends.read(2, 0, 10).unwrap();
    ends.read(3, 0, 10).unwrap();
    let numbers: Vec<_> = ends.sent().into_iter().map(|(at, _)| at).collect();
    assert_eq!(numbers, [1, 2, 3]);
    // Duplicates are bounded, too, and do not make room.
    ends.read(4, 0, 10).unwrap();
    ends.read(5, 0, 10).unwrap();
    for _ in 0..3 {
        ends.read(4, 0, 10).unwrap();
        ends.read(5, 0, 10).unwrap();
    }
    assert_eq!(ends.read(6, 0, 10), Err(Refusal::Invalid));
    assert_eq!(ends.sent().len(), 3);
}
