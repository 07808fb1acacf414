//! How links come to a set.

use super::super::active_queues::ActiveQueues;
use super::super::exchange::{Exchange, refuse};
use super::super::handle::LinkState;
use super::super::init::{LinkInit, RecoverIn};
use super::super::member::Member;
use super::super::state::{Events, RecoveryState};
use super::attention::Heard;
use super::deadlines::Due;
use super::held::Holding;
use super::queue::SharedQueues;
use super::slots::Joined;
use super::{LinkId, LinkSet};
use crate::error::Error;
use crate::event::Element;
use crate::log::failed;
use crate::pinned::{boxed, headroom, no_memory, place, room_for, room_in_queue};
use bellwire_core::fault::Fault;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Why a link cannot join a set.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The set has as many links as it was created for.
    Full {
        /// That many.
        links: usize,
    },
    /// A completion queue has failed, or is still used by a link that was removed, and the others are full.
    Recovering,
    /// The link cannot be created.
    Link(Error),
}

impl JoinError {
    /// What the peer is told.
    fn fault(&self) -> Fault {
        match self {
            Self::Full { .. } => Fault::Errno(libc::ENOSPC),
            Self::Recovering => Fault::Errno(libc::EBUSY),
            Self::Link(error) => RecoveryState::fault_of(error),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { links } => write!(
                f,
                "the set has all {links} links that it was created for: remove links that have ended, or \
                 create a larger set"
            ),
            Self::Recovering => f.write_str(
                "the set's completion queue has failed and is being replaced, or is still used by a link that was \
                 removed: poll the set, then try again",
            ),
            Self::Link(error) => error.fmt(f),
        }
    }
}

// No `source`: the text includes it.
impl std::error::Error for JoinError {}

impl From<Error> for JoinError {
    fn from(error: Error) -> Self {
        Self::Link(error)
    }
}

impl LinkSet {
    /// Makes room in every list for one more link, so that polls and removals need none.
    fn make_room(&mut self) -> Result<(), Error> {
        let links = self.slots.len() + 1;
        // Those of removed links stay listed until there are twice as many as there is room for.
        let lists = [
            &mut self.urgent,
            &mut self.patient,
            &mut self.changes,
            &mut self.reporting,
        ];
        for list in lists {
            let removed = list.len();
            room_in_queue(list, (removed + links).min(2 * self.slots.capacity() + 2))?;
        }
        room_for(&mut self.listed, links)?;
        let leaving = self.leaving.len() + links;
        room_for(&mut self.leaving, leaving)?;
        let most = (2 * links).saturating_sub(self.timers.len());
        let timers = self.timers.try_reserve(most);
        timers.map_err(|_| no_memory(most * size_of::<(Duration, LinkId)>()))?;
        self.pd.device().links.make_room(self.mailbox, links)
    }

    /// Adds a link that connects, as the set is polled, with the link at the other end of `exchange`.
    /// Receives may be posted at once, as with [`Link::new`](super::super::Link::new).
    ///
    /// Its completion queue, `check_every`, `waitable` and where it recovers (in polls) are those of the
    /// set, whatever `init` says.
    ///
    /// # Errors
    /// [`JoinError`]; the peer is told, and the exchange is dropped.
    pub fn join(
        &mut self,
        init: LinkInit,
        mut exchange: impl Exchange + 'static,
    ) -> Result<LinkId, JoinError> {
        let room = place().map_err(JoinError::Link);
        let room = room.inspect_err(|error| refuse(&mut exchange, error.fault()))?;
        let exchange = Box::write(room, exchange);
        let mut exchange: Option<Box<dyn Exchange>> = Some(exchange);
        failed("a link of a set", self.join_boxed(init, &mut exchange)).inspect_err(|error| {
            if let Some(exchange) = &mut exchange {
                refuse(&mut **exchange, error.fault());
            }
        })
    }

    /// Takes the exchange when nothing but memory for the link can be missing any more.
    fn join_boxed(
        &mut self,
        init: LinkInit,
        given: &mut Option<Box<dyn Exchange>>,
    ) -> Result<LinkId, JoinError> {
        headroom()?;
        self.make_room()?;
        let links = self.slots.capacity();
        let index = self.slots.next_free().ok_or(JoinError::Full { links })?;
        let init = LinkInit {
            recover_in: RecoverIn::Poll,
            ..init
        };
        let most = self.noted.held.as_ref().map(|held| held.limit);
        if init.max_held.is_some() && most.is_none() {
            return Err(JoinError::Link(Error::Unsupported {
                what: "limit the receives of one link of a set that counts none",
                instead: "create the set with LinkSetSrq::max_held (srq_max_held)",
            }));
        }
        let max_held = init.max_held.or(most);
        let accepting = |queue: &&SharedQueues| queue.accepts(&self.division);
        let least = (0..)
            .zip(&self.queues)
            .filter(|(_, queue)| accepting(queue));
        let least = least.min_by_key(|(_, queue)| queue.attached);
        let (queue, _) = least.ok_or(JoinError::Recovering)?;
        let port = init.connect.port_num;
        let reserve = self.division.reserve;
        let SharedQueues { cq, srq, .. } = &mut self.queues[queue];
        let Some(cq) = cq else {
            return Err(JoinError::Recovering);
        };
        let srq = srq.as_ref();
        let dispatcher = &self.pd.device().links;
        dispatcher.watch_also(self.mailbox, Element::Port(port))?;
        let active = ActiveQueues::new(&self.pd, &init, cq, srq, reserve)?;
        let own = Element::Qp(active.qp.qp_num());
        // At once: another thread of the device may look for events at any time.
        if let Err(error) = dispatcher.watch_also(self.mailbox, own) {
            let mut qp = active.qp;
            qp.end(cq, drop);
            return Err(JoinError::Link(error));
        }
        let mut exchange = given.take().expect("given by the caller");
        let heard = self.attention.listen(index, &mut *exchange);
        let events = Events::OfSet {
            mailbox: self.mailbox,
            reserve,
            on_srq: srq.is_some(),
        };
        let state = RecoveryState::new(&self.pd, init, exchange, None, events).and_then(boxed);
        let (heard, state) = match (heard, state) {
            (Ok(heard), Ok(state)) => (heard, state),
            (heard, state) => {
                if let Ok(Heard::ByDescriptor) = heard {
                    self.attention.forget(None);
                }
                // Nothing was posted yet, so nothing is reported.
                let mut qp = active.qp;
                qp.end(cq, drop);
                dispatcher.unwatch(self.mailbox, own);
                return Err(JoinError::Link(
                    heard.err().or(state.err()).unwrap_or(Error::DeviceFatal),
                ));
            }
        };
        self.queues[queue].attached += 1;
        let added = self.slots.add(Joined {
            member: Member::new(active, state),
            queue,
            urgent: true,
            patient: false,
            due: Due::default(),
            timed: None,
            waiting: VecDeque::new(),
            reporting: false,
            noted: LinkState::Recovering,
            change_waits: false,
            unheard: heard == Heard::Not,
            watched: heard == Heard::ByDescriptor,
            held: Holding {
                count: 0,
                limit: max_held.unwrap_or(u32::MAX),
            },
            context: 0,
        });
        let id = match added {
            Ok(id) => id,
            Err(joined) => {
                self.end(*joined);
                return Err(JoinError::Full { links });
            }
        };
        if let Some(joined) = self.slots.get_mut(id) {
            if self.published.counts() {
                joined.member.monitor();
            }
            self.published.add(id, &joined.member.published());
        }
        self.urgent.push_back(id);
        self.has_work();
        Ok(id)
    }
}
