//! A block that is posted is the device's until it comes back.

use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{Block, Qp, SlabCache};

fn main() {}

fn sent(qp: &mut Qp, mut block: Block<'static>) {
    let _ = qp.sq().post_block(1, (), Send {}, block, 8, SendFlags::SIGNALED);
    block.as_mut_slice()[0] = 1; //~ E0382
}

fn received(qp: &mut Qp, block: Block<'static>) {
    let _ = qp.rq().post_block(1, block);
    let _ = block.as_slice(); //~ E0382
}

fn returned(cache: &mut SlabCache, block: Block<'static>) {
    let bytes = block.as_slice();
    cache.put(block); //~ E0505
    let _ = bytes[0];
}
