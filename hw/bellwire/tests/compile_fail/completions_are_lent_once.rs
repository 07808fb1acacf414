//! A completion that is looked at before it is taken keeps its completion queue from being polled.

use bellwire::Cq;
use bellwire::queue::Plain;

fn main() {}

fn polled(cq: &mut Cq) {
    let plain = cq.plain();
    cq.poll_one(); //~ E0499
    drop(plain);
}

fn gone(mut cq: Cq) {
    let plain = cq.plain();
    drop(cq); //~ E0505
    plain.map(Plain::take);
}

fn twice(cq: &mut Cq) {
    if let Some(plain) = cq.plain() {
        plain.take();
        plain.take(); //~ E0382
    }
}
