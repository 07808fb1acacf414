//! The end of a queue pair on the device's rings: it is in ERR, and whoever destroys it waits until the
//! device has completed everything that was posted.

use super::cq::Cq;
use bellwire_core::cqe::{Cqe64, CqeOpcode};
use std::time::{Duration, Instant};

/// How long a drain may take. Devices flush at once; one that does not never will.
const DRAIN: Duration = Duration::from_secs(1);

/// What is waited for.
pub(crate) struct Pending<'c> {
    pub qp_num: u32,
    /// Where sends complete, and the counter of the entry behind all of them, if one was posted.
    pub sends: (&'c Cq, Option<u16>),
    /// Where receives complete.
    pub receives: &'c Cq,
}

impl Pending<'_> {
    /// Waits until the last send has completed and as many receives as `in_flight` says are in flight;
    /// but not longer than [`DRAIN`]. Others may poll meanwhile.
    pub fn wait(&self, in_flight: impl Fn() -> u32) {
        let end = Instant::now() + DRAIN;
        while !(self.sent() && self.received(in_flight())) && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    fn sent(&self) -> bool {
        let (cq, Some(mark)) = self.sends else {
            return true;
        };
        let is_mark = |cqe: &Cqe64| {
            let of_send = matches!(cqe.opcode(), CqeOpcode::Req | CqeOpcode::ReqErr);
            of_send && cqe.qpn() == self.qp_num && cqe.wqe_counter() == mark
        };
        cq.fold(|| false, |found, cqe| *found |= is_mark(cqe)).0
    }

    /// `count` was told before the entries are looked at: what is polled between is in neither, so that
    /// too few are found, and never too many.
    fn received(&self, count: u32) -> bool {
        let of_it = |cqe: &Cqe64| {
            let of_receive = cqe.opcode().is_received() || cqe.opcode() == CqeOpcode::RespErr;
            of_receive && cqe.qpn() == self.qp_num
        };
        let count_them = |found: &mut u32, cqe: &Cqe64| *found += u32::from(of_it(cqe));
        count == 0 || self.receives.fold(|| 0, count_them).0 >= count
    }
}
