//! What a device has done, or has stopped doing, nobody checks: who says so promises it.

use bellwire::cqe::{Cqe64, MiniFormat};
use bellwire::port::{RecvDoorbell, SendDoorbell, Staged, StagedReceives};
use bellwire::queue::{CompletionQueue, SendQueue, UserIndex};
use bellwire::wqe::Rc;

fn main() {}

fn reported(cq: &mut CompletionQueue<'static>, entry: Cqe64) {
    let _ = cq.complete_send(0, 0, 0); //~ E0133
    let _ = cq.complete_recv(0, 0, 0); //~ E0133
    let _ = cq.complete(&entry); //~ E0133
}

fn detached(cq: &mut CompletionQueue<'static>, index: UserIndex) {
    cq.detach(index, |_, _| ()); //~ E0133
}

fn read_as_others(cq: &mut CompletionQueue<'static>) {
    cq.set_mini_format(MiniFormat::Checksum); //~ E0133
}

fn rung(send: &mut impl SendDoorbell, receive: &mut impl RecvDoorbell, all: (Staged, StagedReceives)) {
    send.ring(&all.0); //~ E0133
    receive.ring(&all.1); //~ E0133
}

fn ended<D: SendDoorbell>(queue: &mut SendQueue<'static, Rc, D>) {
    queue.mark(); //~ E0133
    queue.clear(|_| ()); //~ E0133
}
