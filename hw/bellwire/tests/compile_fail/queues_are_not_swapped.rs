//! Queues point into their queue pairs' memory, and stay with them.

use bellwire::Qp;
use std::mem::swap;

fn sends(a: &mut Qp, b: &mut Qp) {
    swap(a.sq(), b.sq()); //~ E0308
}

fn receives(a: &mut Qp, b: &mut Qp) {
    swap(a.rq(), b.rq()); //~ E0308
}

fn halves(a: &mut Qp, b: &mut Qp) {
    swap(a.split().0, b.split().0); //~ E0308
}

fn main() {}
