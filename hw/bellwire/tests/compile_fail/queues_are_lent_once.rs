//! While a queue is lent its queue pair is not changed, and the queue is not lent again.

use bellwire::{Cq, Qp};

fn main() {}

fn twice(qp: &mut Qp) {
    let mut first = qp.sq();
    let mut second = qp.sq(); //~ E0499
    first.ring();
    second.ring();
}

fn reset(qp: &mut Qp, cq: &mut Cq) {
    let mut sq = qp.sq();
    let _ = qp.reset(cq, |_, _| ()); //~ E0499
    sq.ring();
}

fn moved(qp: &mut Qp) {
    let (mut sq, mut rq) = qp.split();
    let _ = qp.to_error(); //~ E0499
    sq.ring();
    rq.ring();
}
