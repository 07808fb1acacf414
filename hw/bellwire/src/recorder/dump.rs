//! Reading the rings back.

use super::{
    CompletionEntry, CqView, DumpOptions, QueueView, ReceiveEntry, Record, SendEntry, Stage, What,
};
use crate::cq::{Cq, Cqs, OldCqe};
use crate::error::Error;
use crate::pinned::{collected, push};
use crate::qp::{Qp, QpTransport};
use bellwire_core::cqe::{Cqe64, CqeOpcode};
use bellwire_core::queue::UserIndex;

impl<T: QpTransport> Qp<T> {
    /// Notes something that happened to the queue pair, with the time. A [dump](Self::dump) shows it
    /// among the changes of state, which are noted automatically. The last 64 notes are kept. For the
    /// control path: asynchronous events, steps of a recovery. Allocates.
    pub fn note(&mut self, what: impl Into<What>) {
        self.notes.push(what.into());
    }

    /// What the queue pair did last: its requests, completions and [notes](Self::note). `cqs` are the
    /// completion queues that it was created with; a dump needs exclusive access to all of them.
    ///
    /// A dump changes nothing. It reads the rings, where a request stays until another is posted over it,
    /// and a completion until another is written over it; after a RESET little is left of what came
    /// before. So dump a failed queue pair before using it again. The device cannot complete anything
    /// during the dump, which takes as long as a change of state: it is not for the data path.
    ///
    /// Inline bytes are shown if [asked for](DumpOptions::inline), and may be user data. No other memory
    /// of requests is read.
    ///
    /// # Errors
    /// [`Error::Foreign`] for other completion queues, [`Error::Memory`] when there is no memory for the
    /// record.
    pub fn dump<'a>(
        &mut self,
        cqs: impl Into<Cqs<'a>>,
        options: &DumpOptions,
    ) -> Result<Record, Error> {
        let mut cqs = cqs.into();
        self.check_cqs(&cqs)?;
        let attr = self.query();
        let receives_itself = T::RECEIVES && !self.receives_from_srq();
        let (send_index, recv_index) = self.user_indices();
        let send_queue = QueueView {
            slots: self.sq().slots(),
            counter: self.sq().counter(),
            in_flight: self.sq().in_flight(),
        };
        let recv_queue = receives_itself.then(|| QueueView {
            slots: self.rq().slots(),
            counter: self.rq().counter(),
            in_flight: self.rq().in_flight(),
        });
        // All completions of requests that are still in the rings, and some of older ones.
        let slots = send_queue.slots + recv_queue.map_or(0, |queue| queue.slots);
        let limit = options.entries.saturating_add(slots as usize);
        let read = |cq: &mut Cq, index: UserIndex| {
            let qp_num = self.qp_num();
            // Not every device writes the queue pair number into its entries.
            let ours = |cqe: &Cqe64| match cqe.qpn() {
                0 => cqe.user_index() == index.get(),
                named => named == qp_num,
            };
            let entries = cq.history(limit, ours)?;
            let cqn = cq.cqn();
            let shown = |old: &OldCqe| {
                let stale = !cq.is_of(&old.cqe, index);
                let shown = CompletionEntry::new(cqn, stale, old, options.inline);
                (old.cqe.opcode(), shown)
            };
            Ok::<_, Error>((view(cq), collected(entries.iter().map(shown))?))
        };
        let ((send_cq, mut first), second) = match &mut cqs {
            Cqs::Shared(cq) => (read(cq, send_index)?, None),
            Cqs::Split(send, recv) => (read(send, send_index)?, Some(read(recv, recv_index)?)),
        };
        let (recv_cq, mut second) = second.map_or((None, Vec::new()), |(cq, all)| (Some(cq), all));
        let (mut sends, mut receives, mut room) = (Vec::new(), Vec::new(), Ok(()));
        // SAFETY: nothing is posted or polled meanwhile: the queue pair and its completion queues are
        // borrowed exclusively.
        unsafe {
            let (sq, rq) = self.queues();
            sq.history(|past, wqe| {
                if room.is_ok() {
                    room = push(&mut sends, SendEntry::new::<T>(past, wqe, options.inline));
                }
            });
            if receives_itself {
                rq.history(|past, data| {
                    if room.is_ok() {
                        room = push(&mut receives, ReceiveEntry::new(past, data));
                    }
                });
            }
        }
        room?;
        settle_sends(&mut sends, &mut first);
        let received = if recv_cq.is_some() {
            &mut second
        } else {
            &mut first
        };
        settle_receives(&mut receives, received);
        keep_last(&mut sends, options.entries);
        keep_last(&mut receives, options.entries);
        keep_last(&mut first, options.entries);
        keep_last(&mut second, options.entries);
        let completions = first.into_iter().chain(second);
        Ok(Record {
            qp_num: self.qp_num(),
            transport: T::TYPE,
            state: attr.qp_state,
            dest_qp_num: attr.dest_qp_num,
            send_queue,
            recv_queue,
            send_cq,
            recv_cq,
            sends,
            receives,
            completions: collected(completions.map(|(_, shown)| shown))?,
            notes: self.notes.to_vec(),
        })
    }
}

fn view(cq: &Cq) -> CqView {
    CqView {
        cqn: cq.cqn(),
        entries: cq.capacity(),
        consumer_index: cq.consumer_index(),
        overrun: cq.overrun(),
        stale: cq.stale(),
    }
}

fn keep_last<E>(entries: &mut Vec<E>, count: usize) {
    entries.drain(..entries.len().saturating_sub(count));
}

type Completion = (CqeOpcode, CompletionEntry);

/// Matches requests with their completions by the counter. The device reports its low 16 bits, which are
/// unique within a ring.
fn settle_sends(sends: &mut [SendEntry], completions: &mut [Completion]) {
    for (_, completion) in completions
        .iter_mut()
        .filter(|(opcode, of)| matches!(opcode, CqeOpcode::Req | CqeOpcode::ReqErr) && !of.stale)
    {
        let stage = if completion.polled {
            Stage::Retired
        } else {
            Stage::InFlight
        };
        let request = sends
            .iter_mut()
            .find(|send| send.counter as u16 == completion.counter && send.stage == stage);
        if let Some(send) = request {
            if !completion.polled {
                send.stage = Stage::Completed;
            }
            send.status = completion.status;
            completion.wr_id = Some(send.wr_id);
        }
    }
}

/// Matches receives with their completions: receives complete in order, each with its own completion.
fn settle_receives(receives: &mut [ReceiveEntry], completions: &mut [Completion]) {
    // Of the completed ones, both lists contain the newest; of the outstanding ones, both contain the
    // oldest.
    settle_each(
        receives.iter_mut().rev(),
        completions.iter_mut().rev(),
        true,
    );
    settle_each(receives.iter_mut(), completions.iter_mut(), false);
}

fn settle_each<'a>(
    receives: impl Iterator<Item = &'a mut ReceiveEntry>,
    completions: impl Iterator<Item = &'a mut Completion>,
    polled: bool,
) {
    let of_receive = |opcode: CqeOpcode| opcode.is_received() || opcode == CqeOpcode::RespErr;
    let retired = if polled {
        Stage::Retired
    } else {
        Stage::InFlight
    };
    let receives = receives.filter(|receive| receive.stage == retired);
    let completions =
        completions.filter(|(opcode, of)| of_receive(*opcode) && !of.stale && of.polled == polled);
    for (receive, (_, completion)) in receives.zip(completions) {
        if !polled {
            receive.stage = Stage::Completed;
        }
        receive.status = completion.status;
        completion.wr_id = Some(receive.wr_id);
    }
}
