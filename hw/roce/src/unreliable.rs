//! Unreliable connections: a message whose packets do not all arrive in order is dropped, without a report at either end.

use crate::arrival::{Assembly, Refusal, Target};
use crate::opcode::Transport;
use crate::packet::Packet;
use crate::psn::Psn;
use crate::request::{Base, Payload, Request, Transmit, Verb};
use alloc::collections::{TryReserveError, VecDeque};
use bellwire_core::qp::Mtu;

/// The sending half of an unreliable connection.
#[derive(Debug)]
pub struct UcSender {
    base: Base,
    requests: VecDeque<Request>,
    capacity: usize,
    /// The number of the next packet.
    psn: Psn,
    /// Packets of the first request that were sent.
    sent: u32,
}

impl UcSender {
    /// A sender with room for `capacity` requests, whose first packet has the number `sq_psn`.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(
        dest_qp: u32,
        mtu: Mtu,
        sq_psn: Psn,
        capacity: usize,
    ) -> Result<Self, TryReserveError> {
        let mut requests = VecDeque::new();
        requests.try_reserve_exact(capacity)?;
        let transport = Transport::Uc;
        Ok(Self {
            base: Base {
                transport,
                dest_qp,
                mtu,
            },
            requests,
            capacity,
            psn: sq_psn,
            sent: 0,
        })
    }

    /// Takes a request; hands it back if there is no room, or if the transport does not have the operation.
    ///
    /// # Errors
    /// It is not taken.
    pub fn post(&mut self, request: Request) -> Result<(), Request> {
        let invalidates = matches!(request.verb, Verb::Send(crate::Extra::Invalidate(_)));
        if self.requests.len() == self.capacity || request.is_answered() || invalidates {
            return Err(request);
        }
        self.requests.push_back(request);
        Ok(())
    }

    /// The next packet to send, and the request that is complete once the network has it.
    pub fn poll_transmit(&mut self) -> Option<(Transmit, Option<u64>)> {
        let (request, at) = (*self.requests.front()?, self.sent);
        let header = request.header(&self.base, self.psn, at, 1);
        let span = request.span(at, self.base.mtu);
        let payload = Payload::Request {
            id: request.id,
            span,
        };
        self.psn = self.psn.plus(1);
        self.sent += 1;
        let ends = self.sent == request.packets(self.base.mtu);
        if ends {
            self.requests.pop_front();
            self.sent = 0;
        }
        Some((Transmit { header, payload }, ends.then_some(request.id)))
    }
}

/// The receiving half of an unreliable connection.
#[derive(Debug)]
pub struct UcReceiver {
    mtu: Mtu,
    expected: Psn,
    assembly: Assembly,
    dropped: u64,
}

impl UcReceiver {
    /// A receiver whose first packet has the number `rq_psn`.
    pub const fn new(mtu: Mtu, rq_psn: Psn) -> Self {
        let (expected, assembly) = (rq_psn, Assembly::new());
        Self {
            mtu,
            expected,
            assembly,
            dropped: 0,
        }
    }

    /// Takes a packet. A receive that was taken for a message that is dropped serves the next one.
    ///
    /// # Errors
    /// This end failed ([`Refusal::Operational`]): the queue pair goes to ERR.
    pub fn receive(
        &mut self,
        packet: &Packet<'_>,
        target: &mut impl Target,
    ) -> Result<(), Refusal> {
        let bth = packet.header.bth;
        if bth.transport != Transport::Uc {
            self.dropped += 1;
            return Ok(());
        }
        if bth.psn != self.expected {
            self.assembly.abandon();
        }
        self.expected = bth.psn.plus(1);
        match self.assembly.take(packet, self.mtu, target) {
            Ok(_) => Ok(()),
            Err(refusal) => {
                // Its other packets have no beginning, and are dropped for that.
                self.assembly.abandon();
                self.dropped += 1;
                match refusal {
                    Refusal::Operational => Err(refusal),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Packets that were dropped.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrival::{Access, Arrival, Atomic, Range};
    use crate::request::Extra;
    use std::vec::Vec;

    /// What arrived, byte by byte; a receive is there as long as `ready`.
    #[derive(Default)]
    struct Program {
        ready: bool,
        bytes: Vec<u8>,
        arrivals: Vec<(Arrival, Vec<u8>)>,
    }

    impl Target for Program {
        fn take_receive(&mut self) -> Result<(), Refusal> {
            self.ready.then_some(()).ok_or(Refusal::NotReady)
        }

        fn place(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal> {
            self.bytes.truncate(offset as usize);
            assert_eq!(self.bytes.len(), offset as usize);
            self.bytes.extend(data);
            Ok(())
        }

        fn deliver(&mut self, arrival: Arrival) -> Result<(), Refusal> {
            let mut bytes = core::mem::take(&mut self.bytes);
            // Behind it are those of a message that was dropped.
            bytes.truncate(arrival.length as usize);
            self.arrivals.push((arrival, bytes));
            Ok(())
        }

        fn check(&mut self, range: Range, _: Access) -> Result<(), Refusal> {
            (range.rkey == 1).then_some(()).ok_or(Refusal::Access)
        }

        fn write(&mut self, _: Range, _: &[u8]) -> Result<(), Refusal> {
            Ok(())
        }

        fn atomic(&mut self, _: u64, _: u32, _: Atomic) -> Result<u64, Refusal> {
            unreachable!("the transport has none")
        }
    }

    fn request(id: u64, verb: Verb, length: u32) -> Request {
        let (solicited, fence) = (false, false);
        Request {
            id,
            verb,
            length,
            solicited,
            fence,
        }
    }

    /// Sends the requests, and loses the packets of these places.
    fn arrived(requests: &[Request], lost: &[usize], ready: bool) -> Vec<u32> {
        let mtu = Mtu::Mtu256;
        let psn = Psn::new(0xff_ffff);
        let mut sender = UcSender::new(3, mtu, psn, 8).unwrap();
        for request in requests {
            sender.post(*request).unwrap();
        }
        let mut receiver = UcReceiver::new(mtu, psn);
        let mut program = Program {
            ready,
            ..Program::default()
        };
        let mut ended = Vec::new();
        for at in 0.. {
            let Some((transmit, ends)) = sender.poll_transmit() else {
                break;
            };
            ended.extend(ends);
            let payload = &[at as u8; 256][..transmit.payload.length() as usize];
            let header = transmit.header;
            if !lost.contains(&at) {
                let packet = Packet { header, payload };
                receiver.receive(&packet, &mut program).unwrap();
            }
        }
        let ids: Vec<_> = requests.iter().map(|request| request.id).collect();
        assert_eq!(ended, ids, "each ends when its last packet is sent");
        let whole = |(arrival, bytes): &(Arrival, Vec<u8>)| {
            assert!(arrival.is_write || bytes.len() as u32 == arrival.length);
            u32::from_be_bytes(arrival.imm.unwrap())
        };
        program.arrivals.iter().map(whole).collect()
    }

    fn send(id: u8, length: u32) -> Request {
        let imm = [0, 0, 0, id];
        request(id.into(), Verb::Send(Extra::Immediate(imm)), length)
    }

    #[test]
    fn a_message_arrives_whole_or_not_at_all() {
        let (addr, imm) = (0, Some([0, 0, 0, 2]));
        let write = |rkey| request(2, Verb::Write { addr, rkey, imm }, 600);
        let requests = [send(0, 600), send(1, 0), write(1), send(3, 700)];
        assert_eq!(arrived(&requests, &[], true), [0, 1, 2, 3]);
        // Packets 0 to 2 are the first message's, 3 the second's, 4 to 6 and 7 to 9 the others'.
        for (lost, expected) in [
            (&[0][..], &[1, 2, 3][..]),
            (&[1], &[1, 2, 3]),
            (&[2], &[1, 2, 3]),
            (&[2, 3, 4], &[3]),
            (&[6, 7], &[0, 1]),
            (&[1, 8], &[1, 2]),
        ] {
            assert_eq!(arrived(&requests, lost, true), expected, "without {lost:?}");
        }
        assert_eq!(arrived(&requests, &[], false), []);
        // A key that does not allow it.
        assert_eq!(
            arrived(&[send(0, 1), write(2), send(1, 1)], &[], true),
            [0, 1]
        );
    }

    #[test]
    fn what_the_transport_does_not_have_is_refused() {
        let mut sender = UcSender::new(3, Mtu::Mtu256, Psn::new(0), 1).unwrap();
        let (addr, rkey) = (0, 1);
        for verb in [
            Verb::Read { addr, rkey },
            Verb::Send(Extra::Invalidate(rkey)),
        ] {
            let read = request(0, verb, 1);
            assert_eq!(sender.post(read), Err(read));
        }
        sender.post(send(0, 1)).unwrap();
        assert_eq!(sender.post(send(1, 1)), Err(send(1, 1)), "it is full");
    }
}
