//! Requests that are taken back: the program cancels them, or gives them deadlines that pass.
//!
//! No device gives one request back from a queue of RC. A request that the device has is therefore marked, by its
//! counter. If the next check of a poll finds it still in flight, the link recovers ([`Fault::Cancelled`]). The recovery
//! reads the entries back, reports the marked ones, and posts the others again. Requests that are marked by
//! then cost one recovery together. A request that the link holds while it recovers is taken back there.
//!
//! The data path knows nothing of this: deadlines are in a table of their own, which the first of them allocates.

// `marks` has the marks and deadlines of requests, by their counters. `order` finds the requests that a call is for: in
// the rings, and in the lists of a link that recovers.

mod marks;
mod order;

use super::completion::LinkEnd;
use super::handle::Link;
#[cfg(doc)]
use super::init::LinkInit;
use super::wake::Sleep;
#[cfg(doc)]
use bellwire_core::fault::Fault;
pub(super) use marks::{Cancels, How, Marks, Side, TakeBack, Taking, When};
use std::fmt;
use std::time::Duration;

/// What became of a call that cancels a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The request is taken back, at once or at its deadline. Polls report it, once.
    Requested,
    /// The request has an outcome, which the next polls report. The call changed nothing.
    Completed,
    /// The request was taken back before, and is not reported yet. The call changed nothing.
    Repeated,
    /// A thread recovers the link ([`RecoverIn::Thread`](super::RecoverIn::Thread)), and takes the request back if
    /// it has one of this identifier.
    Forwarded,
}

/// Why no request was cancelled. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelError {
    /// The queue has no request of this identifier: none was posted, or it was reported or retired.
    NotFound,
    /// The link has ended, and everything has been reported.
    Ended(LinkEnd),
    /// The link receives from its set's shared receive queue: a receive there is of no link before a message
    /// comes for it.
    NoRecvQueue,
    /// The set has no such link: it was removed.
    NoLink,
    /// There is no memory for deadlines.
    NoMemory,
}

impl fmt::Display for CancelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => {
                "the queue has no request of this wr_id: none was posted, or it was reported"
            }
            Self::Ended(end) => {
                return write!(f, "the link has ended ({end}), and everything was reported");
            }
            Self::NoRecvQueue => {
                "the receives are the set's, and of no link before a message comes: they cannot be \
                 cancelled"
            }
            Self::NoLink => "the handle is of no link: the link was removed from the set",
            Self::NoMemory => "there is no memory for deadlines of requests",
        })
    }
}

impl std::error::Error for CancelError {}

impl Link {
    /// Takes back each send of this identifier that is not reported. The polls that follow
    /// report it once. From then on neither this device nor the peer's accesses its memory, here or at the peer, also
    /// where the outcome is in doubt.
    ///
    /// - **A send that the device has** makes the link recover ([`Fault::Cancelled`]), because no device gives one
    ///   request back from a queue. Both ends stop their queue pairs and connect again, which takes some messages
    ///   between the ends. Other requests in flight, of both ends, are posted again as their
    ///   [`Replay`](bellwire_core::fault::outcome::Replay) says, or are reported. All requests that are cancelled
    ///   before the next poll cost one recovery. A send that completes before that poll is reported as executed,
    ///   and costs none.
    /// - **A send that the link holds** while it recovers, to be posted again, is not posted again.
    /// - **An unsignalled send** is in flight until a signalled one behind it completes. If it turns out to be
    ///   executed it has no outcome of its own: a later one retires it.
    ///
    /// | operation | [`Done`] | [`NotExecuted`] | [`InDoubt`] with [`Doubt::Cancelled`] |
    /// |---|---|---|---|
    /// | SEND, SEND_WITH_IMM | the peer's program got the message | it did not; a receive there may hold a part | does not happen |
    /// | SEND_WITH_INV | as SEND, and the key is invalid | no message came; the key may be invalid | does not happen |
    /// | WRITE_WITH_IMM | data written, the peer's program was notified | it was not notified; the data may be written, in part or whole | does not happen |
    /// | WRITE | data written | nothing written, if nothing was sent of it; otherwise perhaps a part | not, in part, or wholly written |
    /// | READ | the data is here | nothing changed at the peer; a part of the data may be here | the same |
    /// | atomics | the word changed, and its old value is here | the word did not change | the word changed, or did not; its old value is lost |
    /// | bind, local invalidation | the local key changed | it did not | in doubt with [`Doubt::Local`] |
    ///
    /// Other reasons of doubt tell more, and stay: [`Doubt::ResultLost`] says that a READ or an atomic was executed.
    /// If the peer's program, or its exchange, is lost while the link recovers, the link ends, and the request is in
    /// doubt with [`Doubt::PeerGone`]. Then packets under way may still change the peer's memory, until its own end of the
    /// link has noticed.
    ///
    /// [`Done`]: bellwire_core::fault::outcome::Outcome::Done
    /// [`NotExecuted`]: bellwire_core::fault::outcome::Outcome::NotExecuted
    /// [`InDoubt`]: bellwire_core::fault::outcome::Outcome::InDoubt
    /// [`Doubt::Cancelled`]: bellwire_core::fault::outcome::Doubt::Cancelled
    /// [`Doubt::Local`]: bellwire_core::fault::outcome::Doubt::Local
    /// [`Doubt::ResultLost`]: bellwire_core::fault::outcome::Doubt::ResultLost
    /// [`Doubt::PeerGone`]: bellwire_core::fault::outcome::Doubt::PeerGone
    ///
    /// ```
    /// use bellwire::Device;
    /// use bellwire::fault::outcome::{Outcome, Replay};
    /// use bellwire::link::{Cancel, CancelError, Link, LinkInit, LinkState, pair};
    /// use bellwire::wqe::Send;
    /// use bellwire::wr::SendFlags;
    ///
    /// let pd = Device::soft(Default::default()).alloc_pd();
    /// let (here, there) = pair();
    /// let mut link = Link::new(&pd, LinkInit::default(), here)?;
    /// let mut peer = Link::new(&pd, LinkInit::default(), there)?;
    /// let mut outcomes = Vec::new();
    /// let mut poll = |link: &mut Link, peer: &mut Link| {
    ///     link.poll(16, |completion| outcomes.push((completion.wr_id, completion.outcome)));
    ///     peer.poll(16, |_| ());
    ///     outcomes.len()
    /// };
    /// while [link.state(), peer.state()] != [LinkState::Ready; 2] {
    ///     poll(&mut link, &mut peer);
    /// }
    /// // The peer posts no receive, so the message waits.
    /// link.post_inline(7, Send {}, b"hello", SendFlags::SIGNALED, Replay::IfSafe)?;
    /// link.ring();
    /// assert_eq!(link.cancel(7), Ok(Cancel::Requested));
    /// while poll(&mut link, &mut peer) == 0 {}
    /// assert_eq!(outcomes, [(7, Outcome::NotExecuted)]);
    /// assert_eq!(link.cancel(7), Err(CancelError::NotFound));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CancelError`]; nothing changed.
    pub fn cancel(&mut self, wr_id: u64) -> Result<Cancel, CancelError> {
        self.take_back(Side::Send, wr_id, How::Now)
    }

    /// Takes back each receive of this identifier that is not reported, as [`cancel`](Self::cancel) does. One that the
    /// device has costs a recovery, too. It is reported as executed if a message came for it, and otherwise as not
    /// executed. A message under way waits for the next receive. This one's memory may hold a part of it. If its completion was lost with a completion queue it is in doubt.
    ///
    /// # Errors
    /// [`CancelError`]; nothing changed. [`CancelError::NoRecvQueue`] of a link that receives from the shared receive
    /// queue of its set: close the link or the set to get the memory back.
    pub fn cancel_recv(&mut self, wr_id: u64) -> Result<Cancel, CancelError> {
        self.take_back(Side::Receive, wr_id, How::Now)
    }

    /// Gives the send of this identifier a deadline of its own, beside
    /// [`request_deadline`](LinkInit::request_deadline). If it is not reported `within` this time of the device's
    /// clock, it is taken back as by [`cancel`](Self::cancel). Its doubt, if any, is
    /// [`Doubt::DeadlinePassed`](bellwire_core::fault::outcome::Doubt::DeadlinePassed). Of several sends of this
    /// identifier it is for the one posted last. Replaces a deadline set before.
    ///
    /// A deadline that has passed is found by the checks of polls ([`LinkInit::check_every`]). While the link recovers
    /// it is found when the request would be posted again: so the request is reported within
    /// [`Limits::max_duration`](bellwire_core::fault::plan::Limits::max_duration) of it.
    ///
    /// Other requests, and the data path, pay nothing for it. The first deadline allocates a table for the queue; the
    /// call finds a request that was just posted at once.
    ///
    /// # Errors
    /// [`CancelError`]; nothing changed.
    pub fn cancel_after(&mut self, wr_id: u64, within: Duration) -> Result<Cancel, CancelError> {
        self.take_back(Side::Send, wr_id, How::Within(within))
    }

    /// Gives the receive of this identifier a deadline, as [`cancel_after`](Self::cancel_after) does for a send.
    ///
    /// # Errors
    /// Those of [`cancel_recv`](Self::cancel_recv).
    pub fn cancel_recv_after(
        &mut self,
        wr_id: u64,
        within: Duration,
    ) -> Result<Cancel, CancelError> {
        self.take_back(Side::Receive, wr_id, How::Within(within))
    }

    /// The program has the answer to a request with a [`Grant`](super::Grant): the link invalidates its key. The polls that
    /// follow report the request as [`Done`](bellwire_core::fault::outcome::Outcome::Done), unless the request itself
    /// failed. Not for answers by SEND_WITH_INV, which do this themselves. Posts a request, and notifies the device. If the send queue
    /// is full, the window is destroyed instead: a call of the kernel, on most devices.
    ///
    /// # Errors
    /// [`CancelError`]; nothing changed. [`CancelError::NotFound`] also for a request without a grant.
    pub fn end_grant(&mut self, wr_id: u64) -> Result<Cancel, CancelError> {
        self.take_back(Side::Send, wr_id, How::Answered)
    }

    fn take_back(&mut self, side: Side, wr_id: u64, how: How) -> Result<Cancel, CancelError> {
        if !self.failed.is_empty() {
            // A panic of the program kept the last poll from taking them in.
            self.fails();
        }
        let result = self.member.take_back(side, wr_id, how);
        if result == Ok(Cancel::Requested) {
            if matches!(how, How::Now) {
                self.check_next_poll();
            }
            let armed = self.sleep.iter().filter(|sleep| sleep.is_armed());
            armed.for_each(Sleep::poll_again);
        }
        result
    }
}
