//! Posting requests with grants, and revoking their keys.

use super::super::active_queues::ActiveQueues;
use super::super::completion::LinkError;
use super::super::member::{Delivery, Member, StateOwner};
use super::super::state::RecoveryState;
use super::table::{Grants, Key, Phase};
use super::{Grant, GrantError, RefusedGrant};
use crate::error::Error;
use crate::pd::{Mr, Pd};
use crate::pinned::boxed;
use bellwire_core::access::AccessFlags;
use bellwire_core::fault::outcome::{Doubt, Outcome, Replay};
use bellwire_core::wqe::{BindMw, BindMwInfo, LocalInv, Operation, PostError, Rc, Supports};
use bellwire_core::wr::{MwType, Remote, SendFlags};
use std::ptr::NonNull;
use std::time::Duration;

/// Basic blocks of the send queue that a bind takes. A test compares.
pub(super) const BIND_BLOCKS: u32 = 3;
/// Bytes in front of the inline bytes of a request, at most: segments for control and address, and the length.
const PREFIX: usize = 16 + 16 + 4;
const BLOCK: usize = 64;

/// Registers memory for a peer: for devices without windows.
fn register(pd: &Pd, info: &BindMwInfo) -> Result<Mr, Error> {
    let bad = Error::BadRegion {
        addr: info.addr,
        length: info.length.into(),
    };
    let start = std::ptr::with_exposed_provenance_mut(info.addr as usize);
    let access = AccessFlags::from_bits_retain(info.access) | AccessFlags::LOCAL_WRITE;
    // SAFETY: the grant keeps the memory, or its caller does, until the request is reported. The registration is dropped
    // before that. A block is not accessed meanwhile; the caller keeps the promises about other memory.
    unsafe {
        pd.register(
            NonNull::new(start).ok_or(bad)?,
            info.length as usize,
            access,
        )
    }
}

impl Grants {
    /// Makes sure that the next slot has a key for such memory.
    fn prepare(&mut self, pd: &Pd, grant: &Grant) -> Result<u32, GrantError> {
        self.make_room()?;
        let at = self.free.last().copied().unwrap_or_default();
        let registers = self.registers;
        let Some(slot) = self.slots.get_mut(at as usize) else {
            return Ok(at);
        };
        if registers {
            slot.key = None;
        }
        if slot.key.is_none() {
            let window = match registers {
                false => pd.alloc_mw(MwType::Type2).map(Key::Window),
                true => register(pd, &grant.info).map(Key::Registration),
            };
            let key = window.or_else(|error| match registers {
                false => register(pd, &grant.info).map(Key::Registration),
                true => Err(error),
            });
            let key = key.map_err(GrantError::Key)?;
            self.registers |= matches!(key, Key::Registration(_));
            slot.key = Some(key);
        }
        Ok(at)
    }

    /// Revokes the keys of exchanges that are to end: by a request, if the link works and the peer has answered.
    fn revoke_due(&mut self, mut active: Option<&mut ActiveQueues>) {
        while let Some(at) = self.due.pop() {
            let wr_id = self.wr_id(at);
            let Some(slot) = self.slots.get_mut(at as usize) else {
                continue;
            };
            if let (Some(active), Some(Key::Window(_)), false) = (&mut active, &slot.key, slot.shut)
                && slot.phase == Phase::Waiting
                && slot.ended_well()
                && active.invalidate(wr_id, slot.rkey)
            {
                slot.phase = Phase::Revoking;
                continue;
            }
            if !slot.shut {
                // Destroys the window, or deregisters the memory.
                slot.key = None;
                slot.shut = true;
            }
            self.end(at);
        }
    }
}

impl ActiveQueues {
    /// Posts an invalidation. `false`: there is no room for it.
    fn invalidate(&mut self, wr_id: u64, rkey: u32) -> bool {
        let mut sq = self.qp.sq();
        let counter = sq.counter();
        let posted = sq.post_empty(wr_id, (), LocalInv { rkey }, SendFlags::SIGNALED);
        if posted.is_ok() {
            sq.ring();
            self.note::<LocalInv>(counter, Replay::Surface);
        }
        posted.is_ok()
    }
}

impl RecoveryState {
    /// Revokes the keys of exchanges that are to end, and reports those whose keys are invalid; `active`: the queues of a
    /// link that works.
    pub fn revoke_due(&mut self, active: Option<&mut ActiveQueues>) {
        if let Some(grants) = &mut self.grants {
            grants.revoke_due(active);
        }
        while let Some(completion) = self.grants.as_mut().and_then(|grants| grants.next_report()) {
            if completion.outcome != Outcome::Done {
                let outcome = completion.outcome;
                (self.published).update(|counters| counters.outcome(false, outcome));
                self.count_reported(u32::from(self.queues.is_some()));
            }
            self.push(completion);
        }
    }

    /// Ends the exchanges of queues that are gone.
    pub fn end_grants(&mut self, all: bool) {
        if let Some(grants) = &mut self.grants
            && (grants.dead || all)
        {
            grants.end_all();
            self.revoke_due(None);
        }
    }

    /// Ends the exchanges of a link that works whose deadlines have passed.
    pub fn expire_grants(&mut self, active: &mut ActiveQueues, now: Duration) {
        if let Some(grants) = &mut self.grants {
            let mut passed = 0;
            grants.expire(now, &mut passed);
            self.published.deadlines_passed(passed);
            self.revoke_due(Some(active));
        }
    }

    /// Checks a grant, and finds a slot for it.
    fn prepare_grant(&mut self, grant: &Grant) -> Result<u32, GrantError> {
        let lacks = AccessFlags::from_bits_retain(grant.info.access) - self.init.connect.access;
        if !lacks.is_empty() {
            return Err(GrantError::NotAllowed { access: lacks });
        }
        if grant.pd != 0 && grant.pd != self.pd.address() {
            return Err(GrantError::Foreign);
        }
        if self.grants.is_none() {
            self.grants = Some(boxed(Grants::new()).map_err(GrantError::Key)?);
        }
        let no_memory = GrantError::Link(LinkError::Recovering);
        let grants = self.grants.as_mut().ok_or(no_memory)?;
        grants.prepare(&self.pd, grant)
    }
}

impl Member {
    /// See [`Link::post_grant`](super::super::Link::post_grant).
    #[inline]
    pub fn post_grant<O: Operation, M: AsRef<[u8]>>(
        &mut self,
        wr_id: u64,
        grant: Grant,
        operation: O,
        message: impl FnOnce(Remote) -> M,
        flags: SendFlags,
    ) -> Result<(), RefusedGrant>
    where
        Rc: Supports<O>,
    {
        const {
            assert!(
                O::OPERATION.consumes_receive(),
                "a request with a grant notifies the peer's program"
            )
        };
        let refuse = |error, grant| Err(RefusedGrant { error, grant });
        let Self {
            active: Some(active),
            delivery,
            recovery: StateOwner::Here(state),
            ..
        } = self
        else {
            return refuse(GrantError::Link(self.refusal()), grant);
        };
        let at = match state.prepare_grant(&grant) {
            Ok(at) => at,
            Err(error) => return refuse(error, grant),
        };
        let Some(grants) = &mut state.grants else {
            return refuse(GrantError::Link(LinkError::Recovering), grant);
        };
        let own = grants.wr_id(at);
        let Some(slot) = grants.slots.get_mut(at as usize) else {
            return refuse(GrantError::Link(LinkError::Recovering), grant);
        };
        let rkey = slot.key.as_ref().map_or(0, Key::next_rkey);
        let addr = grant.info.addr;
        let message = message(Remote { addr, rkey });
        let message = message.as_ref();
        let mut sq = active.qp.sq();
        let (given, max) = (message.len(), sq.limits().max_inline);
        if given > max as usize {
            let error = PostError::InlineTooLong { given, max };
            return refuse(GrantError::Link(error.into()), grant);
        }
        if sq.free_blocks() < BIND_BLOCKS + (PREFIX + given).div_ceil(BLOCK) as u32 {
            let error = LinkError::from(PostError::QueueFull);
            return refuse(GrantError::Link(error), grant);
        }
        let counter = sq.counter();
        let binds = match &mut slot.key {
            Some(Key::Window(window)) => {
                let none = SendFlags::empty();
                if let Err(error) = window.post_bind(&mut sq, own, (), &grant.info, none) {
                    let error = GrantError::Link(self.refused(error));
                    return refuse(error, grant);
                }
                true
            }
            _ => false,
        };
        let request = sq.counter();
        let flags = flags | SendFlags::SIGNALED;
        let posted = sq.post_inline(own, (), operation, message, flags);
        if let (Err(error), false) = (posted, binds) {
            let error = GrantError::Link(self.refused(error));
            return refuse(error, grant);
        }
        // The grant is open from here on.
        slot.memory = grant.memory;
        slot.rkey = rkey;
        slot.wr_id = wr_id;
        slot.binds = binds;
        slot.phase = Phase::Sent;
        *delivery = Delivery::ByState;
        if posted.is_err() {
            // Unexpected: there was room for both. The bind stays, of a window that ends with the next poll.
            slot.phase = Phase::Waiting;
            slot.doubt = Some(Doubt::NoAnswer);
            grants.due.push(at);
        }
        grants.free.pop();
        if binds {
            active.note::<BindMw>(counter, Replay::Surface);
        }
        active.note::<O>(request, Replay::Surface);
        Ok(())
    }
}
