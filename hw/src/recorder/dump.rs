//! Reading the rings back.

use super::{
    CompletionEntry, CqView, DumpOptions, QueueView, ReceiveEntry, Record, SendEntry, Stage, What,
};
use crate::cq::{Cq, Cqs, OldCqe};
use crate::error::Error;
use crate::qp::{Qp, QpTransport};
use bellwire_core::cqe::{Cqe64, CqeOpcode};
use bellwire_core::queue::UserIndex;

impl<T: QpTransport> Qp<T> {
    /// Remembers something that happened to the queue pair, with the time: shown in its
    /// [dump](Self::dump) among its changes of state, which are noted by themselves. The last 64 are
    /// kept. For the control path: asynchronous events, steps of a recovery. Allocates.
    pub fn note(&mut self, what: impl Into<What>) {
        self.notes.push(what.into());
    }

    /// What the queue pair did last: its requests, completions and what was [noted](Self::note). `cqs`
    /// are the completion queues that it was created with: whoever dumps owns all of them.
    ///
    /// Nothing changes by it. It is read from the rings, where a request stays until another is posted
    /// over it, a completion until another is written over it; after a RESET little of the life before
    /// is left. So dump a queue pair that failed before it is used again. The device is kept from
    /// completing anything meanwhile: that takes as long as a change of state, and is not for the data
    /// path.
    ///
    /// Inline bytes are shown if [asked for](DumpOptions::inline), and may be user data. No other memory
    /// of requests is read.
    ///
    /// # Errors
    /// [`Error::Foreign`] for other completion queues.
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
        // No more than these can be of requests that are still there; and some for those that are not.
        let slots = send_queue.slots + recv_queue.map_or(0, |queue| queue.slots);
        let limit = options.entries.saturating_add(slots as usize);
        let read = |cq: &mut Cq, index: UserIndex| {
            let qp_num = self.qp_num();
            // Not every device's entries name the queue pair.
            let ours = |cqe: &Cqe64| match cqe.qpn() {
                0 => cqe.user_index() == index.get(),
                named => named == qp_num,
            };
            let entries = cq.history(limit, ours);
            let cqn = cq.cqn();
            let shown = |old: &OldCqe| {
                let stale = !cq.is_of(&old.cqe, index);
                let shown = CompletionEntry::new(cqn, stale, old, options.inline);
                (old.cqe.opcode(), shown)
            };
            (view(cq), entries.iter().map(shown).collect::<Vec<_>>())
        };
        let ((send_cq, mut first), second) = match &mut cqs {
            Cqs::Shared(cq) => (read(cq, send_index), None),
            Cqs::Split(send, recv) => (read(send, send_index), Some(read(recv, recv_index))),
        };
        let (recv_cq, mut second) = second.map_or((None, Vec::new()), |(cq, all)| (Some(cq), all));
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        // SAFETY: nobody posts or polls: this has the queue pair and its completion queues exclusively.
        unsafe {
            self.sq().history(|past, wqe| {
                sends.push(SendEntry::new::<T>(past, wqe, options.inline));
            });
            if receives_itself {
                (self.rq()).history(|past, data| receives.push(ReceiveEntry::new(past, data)));
            }
        }
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
            completions: completions.map(|(_, shown)| shown).collect(),
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

/// Brings requests and their completions together: by the counter, of which the device has 16 bits and
/// a ring's worth differs in them.
fn settle_sends(sends: &mut [SendEntry], completions: &mut [Completion]) {
    for (_, completion) in completions
        .iter_mut()
        .filter(|(opcode, of)| matches!(opcode, CqeOpcode::Req | CqeOpcode::ReqErr) && !of.stale)
    {
        let stage = if completion.polled {
            Stage::Told
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

/// As [`settle_sends`]: receives complete in order, each with a completion of its own.
fn settle_receives(receives: &mut [ReceiveEntry], completions: &mut [Completion]) {
    let mut settle = |polled: bool, newest_first: bool| {
        let of_receive = |opcode: CqeOpcode| opcode.is_received() || opcode == CqeOpcode::RespErr;
        let told = if polled { Stage::Told } else { Stage::InFlight };
        let mut completions: Vec<_> = completions
            .iter_mut()
            .map(|(opcode, of)| (*opcode, of))
            .filter(|(opcode, of)| of_receive(*opcode) && !of.stale && of.polled == polled)
            .map(|(_, of)| of)
            .collect();
        let mut receives: Vec<_> = receives
            .iter_mut()
            .filter(|receive| receive.stage == told)
            .collect();
        if newest_first {
            completions.reverse();
            receives.reverse();
        }
        for (receive, completion) in receives.into_iter().zip(completions) {
            if !polled {
                receive.stage = Stage::Completed;
            }
            receive.status = completion.status;
            completion.wr_id = Some(receive.wr_id);
        }
    };
    settle(true, true);
    settle(false, false);
}
