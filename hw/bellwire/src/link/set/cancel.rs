//! Taking requests of a set's links back.

use super::super::cancel::{Cancel, CancelError, How, Side};
use super::{LinkId, LinkSet};
use std::time::Duration;

impl LinkSet {
    /// Takes back each send of this identifier of a link; see [`Link::cancel`](super::super::Link::cancel).
    ///
    /// # Errors
    /// [`CancelError`]; nothing changed. [`CancelError::NoLink`] once the link was removed.
    pub fn cancel(&mut self, id: LinkId, wr_id: u64) -> Result<Cancel, CancelError> {
        self.take_back(id, Side::Send, wr_id, How::Now)
    }

    /// Takes back each receive of this identifier of a link; see
    /// [`Link::cancel_recv`](super::super::Link::cancel_recv).
    ///
    /// # Errors
    /// [`CancelError`]; nothing changed. [`CancelError::NoRecvQueue`] with [`LinkSetInit::srq`](super::LinkSetInit::srq).
    pub fn cancel_recv(&mut self, id: LinkId, wr_id: u64) -> Result<Cancel, CancelError> {
        self.take_back(id, Side::Receive, wr_id, How::Now)
    }

    /// Gives a send of a link a deadline; see [`Link::cancel_after`](super::super::Link::cancel_after).
    ///
    /// # Errors
    /// Those of [`cancel`](Self::cancel).
    pub fn cancel_after(
        &mut self,
        id: LinkId,
        wr_id: u64,
        within: Duration,
    ) -> Result<Cancel, CancelError> {
        self.take_back(id, Side::Send, wr_id, How::Within(within))
    }

    /// Gives a receive of a link a deadline; see
    /// [`Link::cancel_recv_after`](super::super::Link::cancel_recv_after).
    ///
    /// # Errors
    /// Those of [`cancel_recv`](Self::cancel_recv).
    pub fn cancel_recv_after(
        &mut self,
        id: LinkId,
        wr_id: u64,
        within: Duration,
    ) -> Result<Cancel, CancelError> {
        self.take_back(id, Side::Receive, wr_id, How::Within(within))
    }

    /// Ends the exchange of a request with a grant; see [`Link::end_grant`](super::super::Link::end_grant).
    ///
    /// # Errors
    /// Those of [`cancel`](Self::cancel).
    pub fn end_grant(&mut self, id: LinkId, wr_id: u64) -> Result<Cancel, CancelError> {
        self.take_back(id, Side::Send, wr_id, How::Answered)
    }

    fn take_back(
        &mut self,
        id: LinkId,
        side: Side,
        wr_id: u64,
        how: How,
    ) -> Result<Cancel, CancelError> {
        // Not empty only if the program panicked in the last poll.
        self.take_aside();
        let joined = self.slots.get_mut(id).ok_or(CancelError::NoLink)?;
        let result = joined.member.take_back(side, wr_id, how);
        let is_it = |completion: &bellwire_core::queue::Completion<'static>| {
            let success = completion.result.ok();
            let is_recv = success.is_some_and(|success| success.opcode.is_recv());
            completion.wr_id == wr_id && is_recv == (side == Side::Receive)
        };
        if result == Err(CancelError::NotFound) && joined.waiting.iter().any(is_it) {
            return Ok(Cancel::Completed);
        }
        if result == Ok(Cancel::Requested) {
            // A deadline only if it is the first that the set waits for.
            let at = joined.state().and_then(|state| state.next_check());
            let known = joined
                .timed
                .filter(|timed| at.is_none_or(|at| *timed <= at));
            if !matches!(how, How::Within(_)) || known.is_none() {
                self.list(id.index());
                self.finish();
            }
        }
        result
    }
}
