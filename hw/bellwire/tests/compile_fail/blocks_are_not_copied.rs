//! A block has one owner: what names its memory is not made a second time.

use bellwire::queue::Completion;
use bellwire::{Block, Mw, Qp, SlabCache};

fn copied<T: Clone>() {}

fn main() {
    copied::<Block<'static>>(); //~ E0277
    copied::<Completion<'static>>(); //~ E0277
    copied::<Qp>(); //~ E0277
    copied::<SlabCache>(); //~ E0277
    copied::<Mw>(); //~ E0277
}
