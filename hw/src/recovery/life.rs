//! The queues of a link while it recovers.

use super::live::Live;
use crate::cq::Cq;
use crate::qp::Qp;
use crate::recorder::{DumpOptions, Record};
use bellwire_core::fault::outcome::{Doubt, Replay};
use std::collections::HashMap;

/// The queues of a link while it recovers: from one connection to the next.
#[derive(Debug)]
pub(super) struct Life {
    pub qp: Option<Qp>,
    pub cq: Option<Cq>,
    /// Of each send entry, by the slot that it stands in.
    pub policies: Box<[Replay]>,
    /// Of requests that were posted again though they may have been executed, by their counters.
    pub doubts: HashMap<u32, Doubt>,
    /// Slots of the receive queue.
    pub receives: u32,
    /// The queue pair was taken to ERR: nothing that was rung from here on was executed.
    pub in_error: bool,
    /// Where the entries end that the device was told of while it may have executed them.
    pub rung: u32,
    /// Where the recovery's own sends begin.
    own: Option<u32>,
    /// The last of them is there to end the drain.
    pub beacon: bool,
    /// It is there to see whether the path works.
    pub probe: bool,
    /// Both ends have told each other of these queues.
    pub met_peer: bool,
}

impl Life {
    pub fn of(live: Live) -> Self {
        let Live {
            mut qp,
            cq,
            policies,
            doubts,
            receives,
            ..
        } = live;
        let rung = qp.sq().rung();
        Self {
            qp: Some(qp),
            cq: Some(cq),
            policies,
            doubts,
            receives,
            in_error: false,
            rung,
            own: None,
            beacon: false,
            probe: false,
            met_peer: false,
        }
    }

    /// The queues go on: everything that was this recovery's own has come back.
    pub fn live(self, sent: u64, received: u64) -> Option<Live> {
        Some(Live {
            qp: self.qp?,
            cq: self.cq?,
            policies: self.policies,
            doubts: self.doubts,
            receives: self.receives,
            sent,
            received,
        })
    }

    /// What the queue pair did last, where there is one.
    pub fn dump(&mut self, options: &DumpOptions) -> Option<Record> {
        let (qp, cq) = (self.qp.as_mut()?, self.cq.as_mut()?);
        qp.dump(cq, options).ok()
    }

    /// Another queue pair, or the same one after RESET.
    pub fn renew(&mut self) {
        self.in_error = false;
        self.beacon = false;
        self.met_peer = false;
        self.forget_own();
    }

    /// The recovery's own sends have been told.
    pub fn forget_own(&mut self) {
        self.own = None;
        self.probe = false;
    }

    /// The recovery posts a send of its own, behind everything else.
    pub fn posts_own(&mut self) {
        if let (None, Some(qp)) = (self.own, &mut self.qp) {
            self.own = Some(qp.sq().counter());
        }
    }

    /// Counter of the oldest send that was not told.
    pub fn oldest(&mut self) -> u32 {
        let slots = self.policies.len() as u32;
        self.qp.as_mut().map_or(0, |qp| {
            let in_flight = slots - qp.sq().free_blocks();
            qp.sq().counter().wrapping_sub(in_flight)
        })
    }

    /// Whether the send that was told last is the recovery's own.
    pub fn told_own(&mut self) -> bool {
        let oldest = self.oldest();
        self.own
            .is_some_and(|own| oldest.wrapping_sub(own) as i32 > 0)
    }

    /// Whether everything that was posted has been told.
    pub fn is_empty(&mut self) -> bool {
        let slots = self.policies.len() as u32;
        let receives = self.receives;
        self.qp
            .as_mut()
            .is_none_or(|qp| qp.sq().free_blocks() == slots && qp.rq().free() == receives)
    }

    /// Whether the send at `counter` is the recovery's own.
    pub fn is_own(&self, counter: u32) -> bool {
        self.own
            .is_some_and(|own| counter.wrapping_sub(own) as i32 >= 0)
    }
}
