//! A queue that is lent can be neither taken nor replaced: it is its queue pair's.

use bellwire::Qp;

fn main() {}

fn taken(qp: &mut Qp) {
    let _queue = *qp.sq(); //~ E0614
}

fn replaced(a: &mut Qp, b: &mut Qp) {
    *a.rq() = b.rq(); //~ E0614
}

fn cloned(qp: &mut Qp) {
    let _queue = qp.sq().clone(); //~ E0599
}
