//! The open grants of a link, and what completions mean for them.

use super::super::cancel::{TakeBack, When};
use super::super::completion::LinkCompletion;
use super::{GrantError, Memory};
use crate::mw::Mw;
use crate::pd::Mr;
use bellwire_core::fault::outcome::{Doubt, Outcome};
use bellwire_core::queue::{Imm, Success};
use bellwire_core::wr::{WcOpcode, WcStatus, WrOpcode};
use bellwire_provider::entropy;
use std::collections::VecDeque;
use std::time::Duration;

/// Bits of the link's identifiers that are a slot.
const SLOT_BITS: u32 = 20;

/// What opens the memory of a slot. Dropped, it opens nothing any more: the device does not access the memory.
#[derive(Debug)]
pub(super) enum Key {
    Window(Mw),
    Registration(Mr),
}

impl Key {
    /// The rkey that the next grant has.
    pub fn next_rkey(&self) -> u32 {
        match self {
            Self::Window(window) => window.next_rkey(),
            Self::Registration(mr) => mr.rkey(),
        }
    }
}

/// How far an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is none.
    Free,
    /// The request is in flight.
    Sent,
    /// The peer has the request.
    Waiting,
    /// The invalidation is in flight.
    Revoking,
    /// The memory is the program's: the request is about to be reported.
    Over,
}

/// The completion of the request itself.
#[derive(Clone, Copy, Debug)]
struct Sent {
    opcode: WcOpcode,
    outcome: Outcome,
    success: Option<Success>,
}

/// A place for an open grant.
#[derive(Debug)]
pub(super) struct Slot {
    // Dropped before the memory: it is revoked.
    pub key: Option<Key>,
    pub memory: Memory,
    pub rkey: u32,
    pub wr_id: u64,
    pub phase: Phase,
    /// The bind of its window is retired with the request.
    pub binds: bool,
    bind_failed: Option<WcStatus>,
    /// The program has the answer.
    pub answered: bool,
    /// The key is invalid.
    pub shut: bool,
    /// The peer invalidated it.
    by_peer: bool,
    /// The program waits for no answer any more.
    pub doubt: Option<Doubt>,
    deadline: Option<Duration>,
    sent: Option<Sent>,
}

impl Slot {
    const FREE: Self = Self {
        key: None,
        memory: Memory::Callers,
        rkey: 0,
        wr_id: 0,
        phase: Phase::Free,
        binds: false,
        bind_failed: None,
        answered: false,
        shut: false,
        by_peer: false,
        doubt: None,
        deadline: None,
        sent: None,
    };

    /// The peer has the request, and nothing but the program's answer ended the exchange.
    pub fn ended_well(&self) -> bool {
        let came = self.sent.is_some_and(|sent| sent.success.is_some());
        came && self.answered && self.doubt.is_none()
    }

    fn outcome(&self) -> Outcome {
        let unanswered = Outcome::InDoubt(self.doubt.unwrap_or(Doubt::NoAnswer));
        let Some(sent) = self.sent else {
            return unanswered;
        };
        match (sent.outcome, self.bind_failed) {
            (Outcome::Done | Outcome::InDoubt(_), _) if self.by_peer || self.answered => {
                Outcome::Done
            }
            (Outcome::Done, _) => unanswered,
            (Outcome::NotExecuted, Some(status)) => Outcome::Failed(status),
            (outcome, _) => outcome,
        }
    }
}

/// The grants of a link.
#[derive(Debug)]
pub(in super::super) struct Grants {
    /// The upper bits of the link's identifiers.
    tag: u64,
    pub(super) slots: Vec<Slot>,
    /// Of these: the last one freed, whose window is in the caches, is the next.
    pub(super) free: Vec<u32>,
    /// Slots whose key is to be revoked.
    pub(super) due: Vec<u32>,
    /// Slots whose request is to be reported.
    over: VecDeque<u32>,
    /// The device has no windows.
    pub(super) registers: bool,
    /// The queue pair was reset or replaced.
    pub dead: bool,
    /// No deadline of an exchange whose request the peer has comes before it.
    earliest: Option<Duration>,
}

impl Grants {
    pub fn new() -> Self {
        Self {
            tag: entropy::draw() << SLOT_BITS,
            slots: Vec::new(),
            free: Vec::new(),
            due: Vec::new(),
            over: VecDeque::new(),
            registers: false,
            dead: false,
            earliest: None,
        }
    }

    /// Whether there are open grants.
    pub fn is_open(&self) -> bool {
        self.free.len() != self.slots.len()
    }

    /// Makes room for one more grant: the first grants that are open at the same time allocate.
    pub(super) fn make_room(&mut self) -> Result<(), GrantError> {
        if !self.free.is_empty() {
            return Ok(());
        }
        let slot = self.slots.len() as u32;
        let lists = [&mut self.free, &mut self.due];
        let no_memory = lists
            .into_iter()
            .any(|list| list.try_reserve(slot as usize + 1 - list.len()).is_err())
            || self.over.try_reserve(slot as usize + 1).is_err()
            || self.slots.try_reserve(1).is_err();
        if no_memory || slot >> SLOT_BITS != 0 {
            let error = crate::Error::Exhausted {
                what: "grants",
                max: self.slots.len(),
            };
            return Err(GrantError::Key(error));
        }
        self.slots.push(Slot::FREE);
        self.free.push(slot);
        Ok(())
    }

    /// The identifier of the entries of a slot.
    pub fn wr_id(&self, slot: u32) -> u64 {
        self.tag | u64::from(slot)
    }

    /// The slot of an identifier that is the link's.
    fn slot_of(&self, wr_id: u64) -> Option<u32> {
        let slot = (wr_id ^ self.tag) as u32;
        let is_own = wr_id >> SLOT_BITS == self.tag >> SLOT_BITS;
        (is_own && (slot as usize) < self.slots.len()).then_some(slot)
    }

    /// A request of the link's own, or with a grant, failed, or its completion is missing. Returns how many entries of
    /// the link's own it retires.
    pub fn failed(&mut self, wr_id: u64, operation: WrOpcode) -> u32 {
        let slot = self.slot_of(wr_id);
        let Some(slot) = slot.and_then(|slot| self.slots.get_mut(slot as usize)) else {
            return 0;
        };
        if operation.completes_as() == WcOpcode::LocalInv {
            return 0;
        }
        // A bind that failed is reported itself.
        let binds = std::mem::take(&mut slot.binds);
        u32::from(binds && operation.completes_as() != WcOpcode::BindMw)
    }

    /// Whether an outcome is of an entry of the link's own, or of a request with a grant.
    pub fn has(&self, completion: &LinkCompletion) -> bool {
        !completion.is_recv() && self.slot_of(completion.wr_id).is_some()
    }

    /// Takes in an outcome; `carried` counts requests that a later one retires. Returns it if it goes to the program.
    pub fn take(
        &mut self,
        completion: LinkCompletion,
        carried: &mut u32,
    ) -> Option<LinkCompletion> {
        if completion.is_recv() {
            if let Some(Imm::Invalidated(key)) = completion.success.as_ref().map(Success::imm) {
                self.invalidated(key);
            }
            return Some(completion);
        }
        let Some(at) = self.slot_of(completion.wr_id) else {
            return Some(completion);
        };
        let Some(slot) = self.slots.get_mut(at as usize) else {
            return Some(completion);
        };
        let mut others = completion.retired.saturating_sub(1);
        match completion.opcode {
            WcOpcode::BindMw => {
                slot.binds = false;
                if let Outcome::Failed(status) = completion.outcome {
                    slot.bind_failed = Some(status);
                }
            }
            WcOpcode::LocalInv => {
                slot.shut = completion.success.is_some();
                self.revoked(at);
            }
            opcode => {
                if std::mem::take(&mut slot.binds) && completion.success.is_some() {
                    others = others.saturating_sub(1);
                }
                slot.sent = Some(Sent {
                    opcode,
                    outcome: completion.outcome,
                    success: completion.success,
                });
                slot.phase = Phase::Waiting;
                let waits = completion.success.is_some();
                if slot.shut {
                    self.end(at);
                } else if !waits || slot.answered || slot.doubt.is_some() {
                    self.due.push(at);
                } else if let Some(deadline) = slot.deadline {
                    self.has_deadline(deadline);
                }
            }
        }
        *carried += others;
        None
    }

    /// The peer invalidated a key.
    fn invalidated(&mut self, rkey: u32) {
        let is_it = |slot: &Slot| {
            let open = !matches!(slot.phase, Phase::Free | Phase::Over);
            open && slot.rkey == rkey && matches!(slot.key, Some(Key::Window(_)))
        };
        let Some(at) = self.slots.iter().position(is_it) else {
            return;
        };
        let slot = &mut self.slots[at];
        (slot.shut, slot.by_peer) = (true, true);
        // Otherwise its own completion is still to come.
        if slot.phase == Phase::Waiting {
            self.end(at as u32);
        }
    }

    /// The invalidation has completed, or failed.
    fn revoked(&mut self, at: u32) {
        match self.slots.get(at as usize) {
            Some(slot) if slot.shut => self.end(at),
            // What became of the key is not known.
            _ => self.due.push(at),
        }
    }

    /// The key of a slot is invalid: its request is reported.
    pub(super) fn end(&mut self, at: u32) {
        if let Some(slot) = self.slots.get_mut(at as usize)
            && !matches!(slot.phase, Phase::Over | Phase::Free)
        {
            if let Some(Key::Window(window)) = &slot.key {
                window.invalidated();
            }
            slot.phase = Phase::Over;
            self.over.push_back(at);
        }
    }

    /// Has the keys of all exchanges revoked that are not over.
    pub(super) fn end_all(&mut self) {
        self.dead = false;
        for (at, slot) in (0..).zip(&mut self.slots) {
            if matches!(slot.phase, Phase::Sent | Phase::Waiting | Phase::Revoking)
                && !self.due.contains(&at)
            {
                self.due.push(at);
            }
        }
    }

    /// The next request to be reported.
    pub(super) fn next_report(&mut self) -> Option<LinkCompletion> {
        let at = self.over.pop_front()?;
        let slot = self.slots.get_mut(at as usize)?;
        let memory = std::mem::replace(&mut slot.memory, Memory::Callers);
        let completion = LinkCompletion {
            wr_id: slot.wr_id,
            opcode: slot.sent.map_or(WcOpcode::Send, |sent| sent.opcode),
            outcome: slot.outcome(),
            retired: 1,
            block: match memory {
                Memory::Block(block) => Some(block),
                _ => None,
            },
            success: slot.sent.and_then(|sent| sent.success),
        };
        let key = slot.key.take();
        *slot = Slot { key, ..Slot::FREE };
        self.free.push(at);
        Some(completion)
    }

    /// Takes in an order for requests with grants. Calls `each` with whether the order changes anything, or with the
    /// link's identifier of a request that is in flight. `each` returns whether there may be others.
    pub(in super::super) fn order(
        &mut self,
        order: &TakeBack,
        mut each: impl FnMut(Result<bool, u64>) -> bool,
    ) {
        // A deadline is for one of several with this identifier.
        for at in (0..self.slots.len()).rev() {
            let wr_id = self.wr_id(at as u32);
            let slot = &mut self.slots[at];
            if slot.wr_id != order.wr_id || matches!(slot.phase, Phase::Free | Phase::Over) {
                continue;
            }
            let before = slot.answered || slot.doubt.is_some() || slot.shut;
            let waits = slot.phase == Phase::Waiting;
            let more = match order.when {
                _ if before => each(Ok(false)),
                When::Answered => {
                    slot.answered = true;
                    if waits {
                        self.due.push(at as u32);
                    }
                    each(Ok(true))
                }
                When::Now => {
                    slot.doubt = Some(Doubt::Cancelled);
                    if waits {
                        self.due.push(at as u32);
                        each(Ok(true))
                    } else {
                        each(Err(wr_id))
                    }
                }
                When::At(deadline) => {
                    slot.deadline = Some(deadline);
                    if waits {
                        self.has_deadline(deadline);
                        each(Ok(true))
                    } else {
                        each(Err(wr_id))
                    }
                }
            };
            if !more {
                return;
            }
        }
    }

    fn has_deadline(&mut self, at: Duration) {
        self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
    }

    /// When the next exchange misses its deadline, or earlier.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.earliest
    }

    /// Ends the exchanges whose deadlines have passed, and counts them in `passed`.
    pub(super) fn expire(&mut self, now: Duration, passed: &mut u64) {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        self.earliest = None;
        let mut next: Option<Duration> = None;
        for (at, slot) in (0..).zip(&mut self.slots) {
            let waits = slot.phase == Phase::Waiting && slot.doubt.is_none() && !slot.answered;
            let Some(deadline) = slot.deadline.filter(|_| waits) else {
                continue;
            };
            if deadline <= now {
                slot.doubt = Some(Doubt::DeadlinePassed);
                *passed += 1;
                self.due.push(at);
            } else {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
        }
        self.earliest = next;
    }
}
