//! A queue that is lent does not outlive what lends it.

use bellwire::{Qp, QpRecvQueue, QpSendQueue};

fn main() {}

fn dropped(mut qp: Qp) {
    let mut sq = qp.sq();
    drop(qp); //~ E0505
    sq.ring();
}

fn returned(mut qp: Qp) -> QpSendQueue<'static> {
    qp.sq() //~ E0515
}

fn kept(qp: &mut Qp) -> QpRecvQueue<'static> {
    qp.rq() //~ lifetime may not live long enough
}

fn given_to_a_thread(mut qp: Qp) {
    let (mut sq, _rq) = qp.split(); //~ E0597
    std::thread::spawn(move || sq.ring());
}
