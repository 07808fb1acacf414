//! Posting memory by address, and posting an entry's bytes, are promises that nobody checks.

use bellwire::wqe::Send;
use bellwire::wr::{SendFlags, Sge};
use bellwire::{Qp, Srq};

fn main() {}

fn sent(qp: &mut Qp, sge: Sge) {
    let _ = qp.sq().post(1, (), Send {}, sge, SendFlags::SIGNALED); //~ E0133
    let _ = qp.sq().repost(1, &[0; 64], None); //~ E0133
}

fn received(qp: &mut Qp, srq: &mut Srq, sge: Sge) {
    let _ = qp.rq().post(1, &[sge]); //~ E0133
    let _ = srq.post(1, &[sge]); //~ E0133
}
