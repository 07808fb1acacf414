//! One thread at a time polls, or has a ring's half or a front on a slab. Queues are changed by `&mut` only.

use bellwire::ring::{mpsc, spsc};
use bellwire::{Cq, SlabCache};

fn shared<T: Sync>() {}

fn main() {
    shared::<Cq>(); //~ E0277
    shared::<SlabCache>(); //~ E0277
    shared::<spsc::Producer<'static, u64>>(); //~ E0277
    shared::<spsc::Consumer<'static, u64>>(); //~ E0277
    shared::<mpsc::Consumer<'static, u64>>(); //~ E0277
}
