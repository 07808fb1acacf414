//! What a queue pair holds has to stay for as long as it may be in flight.

use bellwire::queue::Completion;
use bellwire::{Block, Qp};

fn main() {}

fn posted<'m>(qp: &mut Qp, block: Block<'m>) {
    let _ = qp.rq().post_block(1, block); //~ E0521
}

fn polled<'m>(completion: Completion<'m>) -> Completion<'static> {
    completion //~ lifetime may not live long enough
}
