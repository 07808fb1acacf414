//! One thread at a time polls, or has a front on a slab. Queues are changed by `&mut` only.

use bellwire::{Cq, SlabCache};

fn shared<T: Sync>() {}

fn main() {
    shared::<Cq>(); //~ E0277
    shared::<SlabCache>(); //~ E0277
}
