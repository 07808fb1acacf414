//! The responder of a reliable connection: it executes requests in the order of their numbers, each once, and answers.
//!
//! Answers leave in the order of the requests: an acknowledgement waits for the answers to READs before it. Then it
//! acknowledges all packets up to its number.
//!
//! For duplicates a responder keeps the last `max_dest_rd_atomic` READs and atomics. A READ that comes again reads the
//! memory again, as the specification permits. The result of an atomic is kept (IBTA volume 1, 9.7.5.1.4).

use crate::arrival::{Access, Assembly, Atomic, Range, Refusal, Target};
use crate::opcode::{Operation, Place, Transport};
use crate::packet::{Aeth, AtomicEth, Bth, Header, Nak, Packet, Reth, Syndrome};
use crate::psn::Psn;
use crate::request::{Payload, Transmit};
use alloc::collections::{TryReserveError, VecDeque};
use bellwire_core::qp::Mtu;

/// What a responder knows of its connection: attributes of its queue pair (ibv_modify_qp(3)).
#[derive(Clone, Copy, Debug)]
pub struct ResponderAttr {
    /// The peer's queue pair.
    pub dest_qp: u32,
    /// The path's MTU.
    pub mtu: Mtu,
    /// The number of the first packet.
    pub rq_psn: Psn,
    /// READs and atomics that a requester may have under way.
    pub max_dest_rd_atomic: u8,
    /// How long a requester is to wait when there is no receive: a code of 5 bits.
    pub min_rnr_timer: u8,
}

/// What happened to the packets of a responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderCounters {
    /// Requests' packets that were executed.
    pub executed: u64,
    /// Packets that had come before.
    pub duplicates: u64,
    /// Packets that came too early: others before them were lost.
    pub out_of_sequence: u64,
    /// Times that a request found no receive.
    pub not_ready: u64,
    /// Packets that were dropped for another reason.
    pub dropped: u64,
}

/// A READ or an atomic that was executed, in case that it comes again.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Read {
        first: Psn,
        packets: u32,
        range: Range,
    },
    Atomic {
        psn: Psn,
        request: AtomicEth,
        operation: Operation,
        original: u64,
    },
}

impl Kept {
    const fn is_at(&self, at: Psn) -> bool {
        match self {
            Self::Read { first, packets, .. } => {
                let behind = at.since(*first);
                behind >= 0 && behind < packets.cast_signed()
            }
            Self::Atomic { psn, .. } => at.since(*psn) == 0,
        }
    }
}

/// An answer that has not been sent.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Packets of a READ: those before `at` were sent.
    Read {
        first: Psn,
        packets: u32,
        at: u32,
        range: Range,
        msn: u32,
        /// Whether it was answered before.
        again: bool,
    },
    /// What an atomic found.
    Atomic {
        psn: Psn,
        original: u64,
        msn: u32,
        again: bool,
    },
    /// An acknowledgement of all up to a number, or a NAK.
    Say {
        psn: Psn,
        syndrome: Syndrome,
        msn: u32,
    },
}

impl Answer {
    /// The same answer, which counts as repeated if `other` does. An answer that starts again is still one of the
    /// requests under way.
    const fn counted_as(mut self, other: &Self) -> Self {
        let repeated = match other {
            Self::Read { again, .. } | Self::Atomic { again, .. } => *again,
            Self::Say { .. } => false,
        };
        if let Self::Read { again, .. } | Self::Atomic { again, .. } = &mut self {
            *again = repeated;
        }
        self
    }

    /// The number of its first packet.
    const fn psn(&self) -> Psn {
        match self {
            Self::Read { first, .. } => *first,
            Self::Atomic { psn, .. } | Self::Say { psn, .. } => *psn,
        }
    }
}

/// The responder of a reliable connection. It belongs to one thread at a time.
#[derive(Debug)]
pub struct Responder {
    dest_qp: u32,
    mtu: Mtu,
    min_rnr_timer: u8,
    max_dest_rd_atomic: usize,
    /// The number of the next packet.
    expected: Psn,
    /// Messages that were completed, 24 bits.
    msn: u32,
    assembly: Assembly,
    /// A NAK was sent for a gap, or for a missing receive. The responder sends no second one until the expected packet
    /// has been executed.
    nak_sent: bool,
    kept: VecDeque<Kept>,
    answers: VecDeque<Answer>,
    failure: Option<Refusal>,
    counters: ResponderCounters,
}

/// Answers that wait at the most: to READs and atomics, the same again, an acknowledgement or NAK between any two of the
/// former, and two behind them.
const fn answers(max_dest_rd_atomic: usize) -> usize {
    3 * max_dest_rd_atomic + 2
}

impl Responder {
    /// A responder that expects the first packet of a connection.
    ///
    /// # Errors
    /// There is no memory for what it keeps.
    pub fn new(attr: &ResponderAttr) -> Result<Self, TryReserveError> {
        let max_dest_rd_atomic = attr.max_dest_rd_atomic.into();
        let (mut kept, mut ready) = (VecDeque::new(), VecDeque::new());
        kept.try_reserve_exact(max_dest_rd_atomic)?;
        ready.try_reserve_exact(answers(max_dest_rd_atomic))?;
        Ok(Self {
            dest_qp: attr.dest_qp,
            mtu: attr.mtu,
            min_rnr_timer: attr.min_rnr_timer,
            max_dest_rd_atomic,
            expected: attr.rq_psn,
            msn: 0,
            assembly: Assembly::new(),
            nak_sent: false,
            kept,
            answers: ready,
            failure: None,
            counters: ResponderCounters::default(),
        })
    }

    /// Takes a packet of the requester. What there is to answer, [`poll_transmit`](Self::poll_transmit) returns.
    ///
    /// # Errors
    /// The request failed: the queue pair goes to ERR once the answer, a NAK, was sent. Later packets are dropped.
    pub fn receive(
        &mut self,
        packet: &Packet<'_>,
        target: &mut impl Target,
    ) -> Result<(), Refusal> {
        let Bth {
            transport,
            operation,
            psn,
            ..
        } = packet.header.bth;
        if self.failure.is_some() || transport != Transport::Rc || !operation.is_request() {
            self.counters.dropped += 1;
            return Ok(());
        }
        let ahead = psn.since(self.expected);
        if ahead < 0 {
            self.again(packet);
            return Ok(());
        }
        if ahead > 0 {
            self.counters.out_of_sequence += 1;
            if !self.nak_sent {
                self.nak_sent = true;
                self.say(self.expected, Syndrome::Nak(Nak::PsnSequence));
            }
            return Ok(());
        }
        match self.execute(packet, target) {
            Ok(()) => {
                self.nak_sent = false;
                self.counters.executed += 1;
                Ok(())
            }
            Err(refusal) => match refusal.nak() {
                None => {
                    self.nak_sent = true;
                    self.counters.not_ready += 1;
                    self.say(psn, Syndrome::RnrNak(self.min_rnr_timer));
                    Ok(())
                }
                Some(nak) => {
                    self.say(psn, Syndrome::Nak(nak));
                    self.failure = Some(refusal);
                    Err(refusal)
                }
            },
        }
    }

    /// Executes the packet that is expected.
    fn execute(&mut self, packet: &Packet<'_>, target: &mut impl Target) -> Result<(), Refusal> {
        let Header {
            bth, reth, atomic, ..
        } = packet.header;
        match (bth.operation, reth, atomic) {
            (Operation::ReadRequest, Some(Reth { addr, rkey, length }), _) => {
                self.may_answer()?;
                let range = Range { addr, rkey, length };
                // So that all of its answers compare rightly with the next request.
                let packets = length.div_ceil(self.mtu.bytes()).max(1);
                if packets >= Psn::HALF {
                    return Err(Refusal::Invalid);
                }
                if length > 0 {
                    target.check(range, Access::Read)?;
                }
                let (first, msn) = (bth.psn, self.complete(packets));
                self.keep(Kept::Read {
                    first,
                    packets,
                    range,
                });
                self.answers.push_back(Answer::Read {
                    first,
                    packets,
                    at: 0,
                    range,
                    msn,
                    again: false,
                });
            }
            (Operation::CompareSwap | Operation::FetchAdd, _, Some(request)) => {
                self.may_answer()?;
                let AtomicEth {
                    addr,
                    rkey,
                    swap_add,
                    compare,
                } = request;
                let what = match bth.operation {
                    Operation::CompareSwap => Atomic::CompareSwap {
                        compare,
                        swap: swap_add,
                    },
                    _ => Atomic::FetchAdd(swap_add),
                };
                let original = target.atomic(addr, rkey, what)?;
                let (psn, operation, msn) = (bth.psn, bth.operation, self.complete(1));
                self.keep(Kept::Atomic {
                    psn,
                    request,
                    operation,
                    original,
                });
                self.answers.push_back(Answer::Atomic {
                    psn,
                    original,
                    msn,
                    again: false,
                });
            }
            _ => {
                let completes = self.assembly.take(packet, self.mtu, target)?;
                self.expected = self.expected.plus(1);
                self.msn = self.msn.wrapping_add(completes.into()) & 0xff_ffff;
                if bth.ack_request {
                    self.say(bth.psn, Syndrome::Ack(Syndrome::UNLIMITED));
                }
            }
        }
        Ok(())
    }

    /// Whether there is room for a READ or an atomic. A requester that has more under way breaks the rules; one that is
    /// within a message does, too.
    fn may_answer(&self) -> Result<(), Refusal> {
        let count = self.waiting(false);
        match count < self.max_dest_rd_atomic && !self.assembly.has_begun() {
            true => Ok(()),
            false => Err(Refusal::Invalid),
        }
    }

    /// READs and atomics that are answered, for the first time or again. A late duplicate of a request does not keep a
    /// requester from the next one.
    fn waiting(&self, repeated: bool) -> usize {
        let counts = |answer: &&Answer| match answer {
            Answer::Read { again, .. } | Answer::Atomic { again, .. } => *again == repeated,
            Answer::Say { .. } => false,
        };
        self.answers.iter().filter(counts).count()
    }

    /// The message of the expected packet is complete. Returns how many are.
    fn complete(&mut self, packets: u32) -> u32 {
        self.expected = self.expected.plus(packets);
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
        self.msn
    }

    fn keep(&mut self, kept: Kept) {
        if self.kept.len() == self.max_dest_rd_atomic {
            self.kept.pop_front();
        }
        self.kept.push_back(kept);
    }

    /// Answers a packet that was executed before.
    fn again(&mut self, packet: &Packet<'_>) {
        self.counters.duplicates += 1;
        let Header {
            bth, reth, atomic, ..
        } = packet.header;
        let found = self.kept.iter().find(|kept| kept.is_at(bth.psn)).copied();
        let msn = self.msn;
        let answer = match (bth.operation, found) {
            (
                Operation::ReadRequest,
                Some(Kept::Read {
                    first,
                    packets,
                    range,
                }),
            ) => {
                let Some(at) = reth.and_then(|reth| self.same_read(bth.psn, first, range, reth))
                else {
                    return self.drop();
                };
                let count = at.length.div_ceil(self.mtu.bytes()).max(1);
                debug_assert!(count <= packets);
                Answer::Read {
                    first: bth.psn,
                    packets: count,
                    at: 0,
                    range: at,
                    msn,
                    again: true,
                }
            }
            (
                _,
                Some(Kept::Atomic {
                    psn,
                    request,
                    operation,
                    original,
                }),
            ) if operation == bth.operation && atomic == Some(request) => {
                let again = true;
                Answer::Atomic {
                    psn,
                    original,
                    msn,
                    again,
                }
            }
            (Operation::Send(..) | Operation::Write(..), None) => {
                // Everything before the expected packet was received.
                let last = self.expected.before();
                return self.say(last, Syndrome::Ack(Syndrome::UNLIMITED));
            }
            _ => return self.drop(),
        };
        // A requester asks again after a loss, so the answer starts again.
        let psn = bth.psn;
        let same = |one: &&mut Answer| match one {
            Answer::Read { first, packets, .. } => {
                psn.since(*first) >= 0 && psn.since(*first) < packets.cast_signed()
            }
            Answer::Atomic { psn: one, .. } => *one == psn,
            Answer::Say { .. } => false,
        };
        if let Some(one) = self.answers.iter_mut().find(same) {
            *one = answer.counted_as(one);
        } else if self.waiting(true) < self.max_dest_rd_atomic {
            // In the order of their numbers: a later answer would tell that this one is lost.
            let later = |one: &Answer| one.psn().since(psn) > 0;
            let at = (self.answers.iter().position(later)).unwrap_or(self.answers.len());
            self.answers.insert(at, answer);
        } else {
            self.drop();
        }
    }

    fn drop(&mut self) {
        self.counters.dropped += 1;
    }

    /// The range of a READ that was executed, from the packet `psn` on, if the request that comes again has it.
    fn same_read(&self, psn: Psn, first: Psn, range: Range, again: Reth) -> Option<Range> {
        let skipped = psn.since(first).cast_unsigned() * self.mtu.bytes();
        let left = range.length.checked_sub(skipped)?;
        let addr = range.addr.wrapping_add(skipped.into());
        // Of a part of it, the last packet alone may be shorter than the MTU.
        let whole = again.length == left
            || again.length < left && again.length.is_multiple_of(self.mtu.bytes());
        let same = again.addr == addr && again.rkey == range.rkey && whole;
        same.then_some(Range {
            length: again.length,
            addr,
            ..range
        })
    }

    /// Has an acknowledgement or a NAK sent behind all answers before it. An acknowledgement that waits speaks for this
    /// number, too.
    fn say(&mut self, psn: Psn, syndrome: Syndrome) {
        let msn = self.msn;
        let answer = Answer::Say { psn, syndrome, msn };
        if let Some(Answer::Say {
            syndrome: Syndrome::Ack(_),
            ..
        }) = self.answers.back()
        {
            self.answers.pop_back();
        }
        if self.answers.len() < answers(self.max_dest_rd_atomic) {
            self.answers.push_back(answer);
        } else {
            self.drop();
        }
    }

    /// The next packet to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let mtu = self.mtu.bytes();
        let bth = |operation, psn| Bth::new(Transport::Rc, operation, self.dest_qp, psn);
        let ack = |msn| {
            Some(Aeth {
                syndrome: Syndrome::Ack(Syndrome::UNLIMITED),
                msn,
            })
        };
        let (header, payload) = match self.answers.front_mut()? {
            Answer::Read {
                first,
                packets,
                at,
                range,
                msn,
                ..
            } => {
                let (number, ends) = (*at, *at + 1 == *packets);
                *at += 1;
                let place = Place::of(number == 0, ends);
                let length = (range.length - number * mtu).min(mtu);
                let addr = range.addr.wrapping_add(u64::from(number * mtu));
                let payload = match length {
                    0 => Payload::Nothing,
                    _ => Payload::Memory {
                        addr,
                        rkey: range.rkey,
                        length,
                    },
                };
                let psn = first.plus(number);
                let mut header = Header::new(bth(Operation::ReadResponse(place), psn));
                header.aeth = ack(*msn).filter(|_| place != Place::Middle);
                if !ends {
                    return Some(Transmit { header, payload });
                }
                (header, payload)
            }
            Answer::Atomic {
                psn, original, msn, ..
            } => {
                let mut header = Header::new(bth(Operation::AtomicAcknowledge, *psn));
                (header.aeth, header.original) = (ack(*msn), Some(*original));
                (header, Payload::Nothing)
            }
            Answer::Say { psn, syndrome, msn } => {
                let mut header = Header::new(bth(Operation::Acknowledge, *psn));
                header.aeth = Some(Aeth {
                    syndrome: *syndrome,
                    msn: *msn,
                });
                (header, Payload::Nothing)
            }
        };
        self.answers.pop_front();
        Some(Transmit { header, payload })
    }

    /// Memory that a READ was to bring is not there any more: the requester reads a NAK instead, and the queue pair goes
    /// to ERR. Call it instead of sending the packet `sent`.
    pub fn refuse(&mut self, sent: &Transmit, refusal: Refusal) {
        self.answers.clear();
        self.failure = Some(refusal);
        let nak = refusal.nak().unwrap_or(Nak::RemoteOperational);
        self.say(sent.header.bth.psn, Syndrome::Nak(nak));
    }

    /// Why the queue pair has to go to ERR, if it has to.
    pub const fn failure(&self) -> Option<Refusal> {
        self.failure
    }

    /// What happened so far.
    pub const fn counters(&self) -> ResponderCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
