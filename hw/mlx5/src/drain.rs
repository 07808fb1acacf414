//! The end of a queue pair on the device's rings: it is in ERR, and before it is destroyed, its owner waits
//! until the device has completed every posted request. Other threads may poll meanwhile.

use super::cq::Cq;
use bellwire_core::cqe::{Cqe64, CqeOpcode};
use bellwire_provider::backoff::Backoff;
use std::time::{Duration, Instant};

/// The longest time that a drain may take. Devices flush immediately; one that has not done so by then never
/// will.
const DRAIN: Duration = Duration::from_secs(1);

/// Waits until `done`. After a completion queue has failed, nothing completes on it any longer.
fn wait(failed: impl Fn() -> bool, done: impl Fn() -> bool) {
    let end = Instant::now() + DRAIN;
    let mut backoff = Backoff::between_polls();
    while !failed() && !done() && Instant::now() < end {
        backoff.wait();
    }
}

/// Waits until the send with this counter, which is the last one, has completed.
pub fn sends(cq: &Cq, qp_num: u32, mark: u16) {
    let is_mark = |cqe: &Cqe64| {
        let of_send = matches!(cqe.opcode(), CqeOpcode::Req | CqeOpcode::ReqErr);
        of_send && cqe.qpn() == qp_num && cqe.wqe_counter() == mark
    };
    wait(
        || cq.overrun(),
        || {
            cq.entries()
                .fold(|| false, |found, cqe| *found |= is_mark(cqe))
                .0
        },
    );
}

/// Waits until as many receives have completed as are in flight.
pub fn receives(cq: &Cq, qp_num: u32, in_flight: impl Fn() -> u32) {
    let of_it = |cqe: &Cqe64| {
        let of_receive = cqe.opcode().is_received() || cqe.opcode() == CqeOpcode::RespErr;
        of_receive && cqe.qpn() == qp_num
    };
    let count = |found: &mut u32, cqe: &Cqe64| *found += u32::from(of_it(cqe));
    // The number in flight is read before the entries are examined: a receive that is polled in between is
    // among neither, so too few may be found, and never too many.
    wait(
        || cq.overrun(),
        || match in_flight() {
            0 => true,
            wanted => cq.entries().fold(|| 0, count).0 >= wanted,
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_queue_that_failed_is_not_waited_for() {
        let looks = Cell::new(0);
        let never = || {
            looks.set(looks.get() + 1);
            false
        };
        wait(|| true, never);
        assert_eq!(looks.get(), 0);
        // The completion queue fails in the meantime.
        wait(|| looks.get() == 3, never);
        assert_eq!(looks.get(), 3);
    }
}
