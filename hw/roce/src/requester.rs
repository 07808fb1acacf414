//! The requester of a reliable connection: it cuts requests into packets, sends lost packets again, and says when each
//! request has ended.
//!
//! Acknowledgements are cumulative, and a responder keeps no packet that comes out of order. After a loss, the requester
//! sends all packets from the lost one on again ("go back n", IBTA volume 1, 9.7.5).
//!
//! ```text
//!            una                 cursor            sent           next
//!   ----------|--------------------|-----------------|--------------|-->  PSN
//!   finished  |  under way         |  to send again  |  never sent  |  not posted
//! ```

use crate::opcode::{Operation, Transport};
use crate::packet::{Aeth, Header, Nak, Packet, Syndrome};
use crate::psn::Psn;
use crate::request::{Base, Payload, Request, Transmit, Verb};
use crate::window::{self, Window};
use alloc::collections::{TryReserveError, VecDeque};
use bellwire_core::qp::{AckTimeout, Mtu, RNR_RETRY_INFINITE, ack_timeout, rnr_timer};
use bellwire_core::wr::WcStatus;
use core::time::Duration;

/// What a requester knows of its connection: attributes of its queue pair (ibv_modify_qp(3)).
#[derive(Clone, Copy, Debug)]
pub struct RequesterAttr {
    /// The peer's queue pair.
    pub dest_qp: u32,
    /// The path's MTU.
    pub mtu: Mtu,
    /// The first packet's number.
    pub sq_psn: Psn,
    /// How long to wait for an acknowledgement: a code of 5 bits.
    pub timeout: u8,
    /// How often to send again, without progress in between, before the request fails: 0 to 7.
    pub retry_cnt: u8,
    /// The same while the peer has no receive; 7 is for ever.
    pub rnr_retry: u8,
    /// READs and atomics under way at the most.
    pub max_rd_atomic: u8,
}

/// Why a request is not taken; it is not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many requests are outstanding as the requester was made for, or as their packets have numbers.
    Full,
    /// It takes more packets than there are numbers, or is an atomic of a length other than 8.
    Length,
    /// The connection permits no READs and no atomics (`max_rd_atomic` is 0).
    NoReads,
}

/// A request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's number.
    pub id: u64,
    /// How it ended.
    pub status: WcStatus,
}

/// Local memory does not take what a READ or an atomic brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unplaceable;

/// Takes what READs and atomics bring.
pub trait Results {
    /// Writes bytes of a request's local memory, from `offset` on. An atomic brings the number that it found, in the
    /// order of this host.
    ///
    /// # Errors
    /// The memory may not be written: the request fails with LOC_PROT_ERR.
    fn place(&mut self, id: u64, offset: u32, data: &[u8]) -> Result<(), Unplaceable>;
}

/// What happened to the packets of a requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Packets that were sent, repeated ones among them.
    pub sent: u64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// Times that an acknowledgement did not come in time.
    pub timeouts: u64,
    /// NAKs for a gap in the numbers.
    pub sequence_naks: u64,
    /// NAKs for a receive that was not there.
    pub rnr_naks: u64,
    /// Losses of answers that a later answer showed.
    pub lost_responses: u64,
    /// Packets that did not belong to anything outstanding: late ones, duplicates, forged ones.
    pub stale: u64,
}

/// A request that has not been reported.
#[derive(Debug)]
struct Entry {
    request: Request,
    first: Psn,
    /// Numbers that it takes, from `first` on.
    packets: u32,
    /// How many of these were acknowledged or answered.
    done: u32,
    /// Whether the loss of an answer was noticed since the last progress.
    lost: bool,
}

/// A part of a READ that was asked for, or an atomic: its first and its last number. A responder answers a packet again if
/// it is within one part.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: Psn,
    last: Psn,
}

/// Packets of a part at the most. They come back at once, so that a small receive buffer loses some. The requester then
/// asks for the rest of the part again.
const MOST_OF_A_PART: u32 = 64;

/// The next packet to send.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    entry: usize,
    packet: u32,
}

/// The requester of a reliable connection.
///
/// It has no clock: `now` is any time that does not run backwards. It belongs to one thread at a time.
#[derive(Debug)]
pub struct Requester {
    base: Base,
    timeout: Option<Duration>,
    retry_cnt: u8,
    rnr_retry: u8,
    max_rd_atomic: usize,
    /// Requests in their order; the first `finished` have succeeded.
    entries: VecDeque<Entry>,
    finished: usize,
    capacity: usize,
    /// READs and atomics under way.
    parts: VecDeque<Part>,
    /// The number of the next request.
    next: Psn,
    /// All before this number were sent at least once.
    sent: Psn,
    cursor: Cursor,
    /// Packets since one asked for an acknowledgement.
    unasked: u32,
    window: Window,
    retries: u8,
    rnr_retries: u8,
    /// When the wait for an acknowledgement ends.
    deadline: Option<Duration>,
    /// Until when the peer wants to be left alone.
    quiet_until: Option<Duration>,
    paused: bool,
    failed: Option<WcStatus>,
    counters: RequesterCounters,
}

impl Requester {
    /// A requester with room for `capacity` outstanding requests.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(attr: &RequesterAttr, capacity: usize) -> Result<Self, TryReserveError> {
        let (mut entries, mut parts) = (VecDeque::new(), VecDeque::new());
        entries.try_reserve_exact(capacity)?;
        parts.try_reserve_exact(attr.max_rd_atomic.into())?;
        Ok(Self {
            base: Base {
                transport: Transport::Rc,
                dest_qp: attr.dest_qp,
                mtu: attr.mtu,
            },
            timeout: match ack_timeout(attr.timeout) {
                Some(AckTimeout::After(time)) => Some(time),
                _ => None,
            },
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic.into(),
            entries,
            finished: 0,
            capacity,
            parts,
            next: attr.sq_psn,
            sent: attr.sq_psn,
            cursor: Cursor::default(),
            unasked: 0,
            window: Window::new(),
            retries: attr.retry_cnt,
            rnr_retries: attr.rnr_retry,
            deadline: None,
            quiet_until: None,
            paused: false,
            failed: None,
            counters: RequesterCounters::default(),
        })
    }

    /// Takes a request, which [`poll_completion`](Self::poll_completion) reports once.
    ///
    /// # Errors
    /// It is not taken, and nothing is sent.
    pub fn post(&mut self, request: Request) -> Result<(), Refused> {
        let packets = request.packets(self.base.mtu);
        let atomic = matches!(
            request.verb,
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. }
        );
        let outstanding = self.next.since(self.una()).cast_unsigned();
        if packets >= Psn::HALF || atomic && request.length != 8 {
            return Err(Refused::Length);
        }
        if request.is_answered() && self.max_rd_atomic == 0 {
            return Err(Refused::NoReads);
        }
        if self.entries.len() == self.capacity || outstanding + packets >= Psn::HALF {
            return Err(Refused::Full);
        }
        let first = self.next;
        self.next = first.plus(packets);
        let (done, lost) = (0, false);
        self.entries.push_back(Entry {
            request,
            first,
            packets,
            done,
            lost,
        });
        Ok(())
    }

    /// Reports the next request that has ended, in the order in which they were posted. After a failure those behind
    /// it end with WR_FLUSH_ERR.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        let status = match self.finished {
            0 => self.failed?,
            _ => WcStatus::Success,
        };
        let Entry { request, .. } = self.entries.pop_front()?;
        if self.finished > 0 {
            self.finished -= 1;
            self.cursor.entry -= 1;
        } else {
            self.failed = Some(WcStatus::WrFlushErr);
        }
        Some(Completion {
            id: request.id,
            status,
        })
    }

    /// The next packet to send, if one may be sent now. Call it until it returns `None`: after
    /// [`post`](Self::post), [`receive`](Self::receive) and [`handle_timeout`](Self::handle_timeout).
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Transmit> {
        if self.failed.is_some() || self.quiet_until.is_some_and(|end| now < end) {
            return None;
        }
        self.quiet_until = None;
        let entry = self.entries.get(self.cursor.entry)?;
        let at = self.cursor.packet;
        let psn = entry.first.plus(at);
        let begins = at == 0 && psn.since(self.sent) >= 0;
        if begins && (self.paused || entry.request.fence && !self.parts.is_empty()) {
            return None;
        }
        let under_way = psn.since(self.una()).cast_unsigned();
        let room = self.window.size().saturating_sub(under_way);
        if room == 0 {
            return None;
        }
        let request = entry.request;
        let count = match request.is_answered() {
            true => self.part(psn, entry.packets - at, room)?,
            false => 1,
        };
        let mut header = request.header(&self.base, psn, at, count);
        let payload = match request.is_answered() {
            true => Payload::Nothing,
            false => Payload::Request {
                id: request.id,
                span: request.span(at, self.base.mtu),
            },
        };
        let ends = at + count == self.entries[self.cursor.entry].packets;
        self.unasked += 1;
        // The last that the window takes asks, so that the window moves.
        if !request.is_answered() && (ends || room == 1 || self.unasked > self.window.size() / 4) {
            header.bth.ack_request = true;
            self.unasked = 0;
        }
        self.cursor = match ends {
            true => Cursor {
                entry: self.cursor.entry + 1,
                packet: 0,
            },
            false => Cursor {
                packet: at + count,
                ..self.cursor
            },
        };
        self.counters.sent += 1;
        let end = psn.plus(count);
        if end.since(self.sent) > 0 {
            self.sent = end;
        } else {
            self.counters.retransmitted += 1;
        }
        if self.deadline.is_none() {
            self.deadline = self.timeout.map(|time| now + time);
        }
        Some(Transmit { header, payload })
    }

    /// How many packets of a READ to ask for from `psn` on. It is the rest of a part that was asked for before, or a new
    /// part of up to `room`. `None` if as many parts are under way as may be.
    ///
    /// A part that is asked for again ends where it ended before: a responder answers again only within a request that
    /// it has executed.
    fn part(&mut self, psn: Psn, left: u32, room: u32) -> Option<u32> {
        let within = |part: &&Part| psn.since(part.first) >= 0 && part.last.since(psn) >= 0;
        if let Some(part) = self.parts.iter().find(within) {
            return Some(part.last.since(psn).cast_unsigned() + 1);
        }
        if self.parts.len() == self.max_rd_atomic {
            return None;
        }
        let count = left.min(room).min(MOST_OF_A_PART);
        let last = psn.plus(count - 1);
        self.parts.push_back(Part { first: psn, last });
        Some(count)
    }

    /// The first number that is neither acknowledged nor answered.
    fn una(&self) -> Psn {
        match self.entries.get(self.finished) {
            Some(entry) => entry.first.plus(entry.done),
            None => self.next,
        }
    }

    /// Takes a packet of the responder: an acknowledgement or an answer. Other packets are not for a requester, and
    /// are counted as stale.
    pub fn receive(&mut self, packet: &Packet<'_>, now: Duration, results: &mut impl Results) {
        if self.failed.is_some() {
            return;
        }
        let Header {
            bth,
            aeth,
            original,
            ..
        } = packet.header;
        // A packet that was never sent cannot be answered. A NAK may name the packet behind the last.
        let (ahead, sent) = (bth.psn.since(self.una()), self.sent.since(self.una()));
        let nak = matches!(
            aeth,
            Some(Aeth {
                syndrome: Syndrome::Nak(Nak::PsnSequence),
                ..
            })
        );
        if bth.transport != Transport::Rc || ahead < 0 || ahead >= sent + i32::from(nak) {
            self.counters.stale += 1;
            return;
        }
        let ahead = ahead.cast_unsigned();
        match (bth.operation, aeth) {
            (Operation::Acknowledge, Some(Aeth { syndrome, .. })) => {
                self.acknowledged(syndrome, ahead, now);
            }
            (Operation::ReadResponse(_), _) => {
                self.answered(ahead, now, |entry, mtu| {
                    let span = entry.request.span(entry.done, mtu);
                    let is_read = matches!(entry.request.verb, Verb::Read { .. });
                    let fits = packet.payload.len() == span.length as usize;
                    if !is_read || !fits {
                        return Err(WcStatus::BadRespErr);
                    }
                    let placed = match span.length {
                        0 => Ok(()),
                        _ => results.place(entry.request.id, span.offset, packet.payload),
                    };
                    placed.map_err(|Unplaceable| WcStatus::LocProtErr)
                });
            }
            (Operation::AtomicAcknowledge, _) => {
                self.answered(ahead, now, |entry, _| {
                    match (entry.request.verb, original) {
                        (Verb::CompareSwap { .. } | Verb::FetchAdd { .. }, Some(original)) => {
                            results
                                .place(entry.request.id, 0, &original.to_ne_bytes())
                                .map_err(|Unplaceable| WcStatus::LocProtErr)
                        }
                        _ => Err(WcStatus::BadRespErr),
                    }
                });
            }
            _ => self.counters.stale += 1,
        }
    }

    fn acknowledged(&mut self, syndrome: Syndrome, ahead: u32, now: Duration) {
        match syndrome {
            Syndrome::Ack(_) => {
                if !self.advance(ahead + 1, now) {
                    self.response_lost(now);
                }
            }
            Syndrome::RnrNak(timer) => {
                self.advance(ahead, now);
                self.counters.rnr_naks += 1;
                if self.rnr_retry != RNR_RETRY_INFINITE {
                    let Some(left) = self.rnr_retries.checked_sub(1) else {
                        return self.fail(WcStatus::RnrRetryExcErr);
                    };
                    self.rnr_retries = left;
                }
                self.go_back();
                self.quiet_until = rnr_timer(timer).map(|time| now + time);
            }
            Syndrome::Nak(Nak::PsnSequence) => {
                self.advance(ahead, now);
                self.counters.sequence_naks += 1;
                self.window.lost(self.sent);
                self.retry(WcStatus::RetryExcErr);
            }
            Syndrome::Nak(nak) => {
                let status = match nak {
                    Nak::InvalidRequest => WcStatus::RemInvReqErr,
                    Nak::RemoteAccess => WcStatus::RemAccessErr,
                    _ => WcStatus::RemOpErr,
                };
                // An error is of the request that it names, so all before it have ended.
                match self.advance(ahead, now) {
                    true => self.fail(status),
                    false => self.response_lost(now),
                }
            }
        }
    }

    /// An answer came that is `ahead` of the first number under way. `take` checks and places it.
    fn answered(
        &mut self,
        ahead: u32,
        now: Duration,
        take: impl FnOnce(&Entry, Mtu) -> Result<(), WcStatus>,
    ) {
        // It acknowledges all before it.
        if !self.advance(ahead, now) {
            return self.response_lost(now);
        }
        let (Some(entry), Some(part)) = (self.entries.get(self.finished), self.parts.front())
        else {
            return self.fail(WcStatus::BadRespErr);
        };
        let (part, psn) = (*part, entry.first.plus(entry.done));
        if !entry.request.is_answered() || psn.since(part.first) < 0 {
            return self.fail(WcStatus::BadRespErr);
        }
        if let Err(status) = take(entry, self.base.mtu) {
            return self.fail(status);
        }
        if psn == part.last {
            self.parts.pop_front();
        }
        self.step(1);
        self.progressed(1, now);
    }

    /// The next `count` packets were received, as an acknowledgement says. Whether it could say so: an answer is
    /// missing if not.
    fn advance(&mut self, count: u32, now: Duration) -> bool {
        let mut left = count;
        while left > 0 {
            let Some(entry) = self.entries.get(self.finished) else {
                break;
            };
            if entry.request.is_answered() {
                break;
            }
            let part = left.min(entry.packets - entry.done);
            self.step(part);
            left -= part;
        }
        if left < count {
            self.progressed(count - left, now);
        }
        left == 0
    }

    /// Counts packets of the first request that has not finished.
    fn step(&mut self, count: u32) {
        let entry = &mut self.entries[self.finished];
        entry.done += count;
        entry.lost = false;
        let (finished, done) = (self.finished, entry.done);
        if done == entry.packets {
            self.finished += 1;
        }
        // The packets that are being sent again have arrived by now.
        if self.cursor.entry < self.finished {
            self.cursor = Cursor {
                entry: self.finished,
                packet: 0,
            };
        } else if self.cursor.entry == finished && self.cursor.packet < done {
            self.cursor.packet = done;
        }
    }

    fn progressed(&mut self, packets: u32, now: Duration) {
        self.retries = self.retry_cnt;
        self.rnr_retries = self.rnr_retry;
        let una = self.una();
        self.window.acknowledged(packets, una);
        let under_way = self.sent.since(una) > 0;
        self.deadline = self.timeout.filter(|_| under_way).map(|time| now + time);
    }

    /// A later packet than the answer that is awaited came, so that answer is lost. It is asked for again once; if that
    /// is lost, too, the time-out asks.
    fn response_lost(&mut self, now: Duration) {
        let Some(entry) = self.entries.get_mut(self.finished) else {
            return;
        };
        if !core::mem::replace(&mut entry.lost, true) {
            self.counters.lost_responses += 1;
            self.window.lost(self.sent);
            self.go_back();
            self.deadline = self.timeout.map(|time| now + time);
        }
    }

    /// Sends again from the first packet that is not acknowledged, unless that was done often enough.
    fn retry(&mut self, exceeded: WcStatus) {
        match self.retries.checked_sub(1) {
            Some(left) => {
                self.retries = left;
                self.go_back();
            }
            None => self.fail(exceeded),
        }
    }

    fn go_back(&mut self) {
        let packet = self
            .entries
            .get(self.finished)
            .map_or(0, |entry| entry.done);
        self.cursor = Cursor {
            entry: self.finished,
            packet,
        };
        self.deadline = None;
        self.unasked = 0;
    }

    /// The time at which to call [`handle_timeout`](Self::handle_timeout), unless a packet arrives before.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.failed.is_some() {
            return None;
        }
        match (self.deadline, self.quiet_until) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Does what the time demands. Calls before [`poll_timeout`](Self::poll_timeout) have no effect.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.quiet_until.is_some_and(|end| now >= end) {
            self.quiet_until = None;
        }
        if self.failed.is_none() && self.deadline.is_some_and(|end| now >= end) {
            self.counters.timeouts += 1;
            self.window.timed_out(self.sent);
            if let Some(entry) = self.entries.get_mut(self.finished) {
                entry.lost = false;
            }
            self.retry(WcStatus::RetryExcErr);
        }
    }

    /// The network says that packets of this requester meet congestion.
    pub fn congested(&mut self) {
        self.window.lost(self.sent);
    }

    /// Ends the first request that has not finished with `status`, and all behind it. For errors that the caller finds:
    /// local memory that cannot be read, a queue pair that is taken to ERR.
    pub fn fail(&mut self, status: WcStatus) {
        self.failed.get_or_insert(status);
        self.deadline = None;
        self.quiet_until = None;
    }

    /// Whether a request failed, or [`fail`](Self::fail) was called: nothing is sent any more.
    pub const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Begins no further request until [`resume`](Self::resume). Requests that have begun end as ever: SQD.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Begins requests again after [`pause`](Self::pause).
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Whether all requests that have begun have finished.
    pub fn is_drained(&self) -> bool {
        self.sent.since(self.una()) <= 0
    }

    /// What happened so far.
    pub const fn counters(&self) -> RequesterCounters {
        self.counters
    }

    /// Packets that may be under way at this time: at least 2, at most 4,096.
    pub const fn window(&self) -> u32 {
        self.window.size()
    }
}

// All that are under way have numbers that compare rightly.
const _: () = assert!(window::MOST < Psn::HALF);

#[cfg(test)]
mod tests;
