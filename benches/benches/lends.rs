//! Nanoseconds of an exchange between two links of one process, polled in turn: a message and its answer, of 12 bytes each,
//! alone and with a block of 4 KiB that is lent to the peer meanwhile. On the device that `BELLWIRE_VERBS_DEVICE` names, or
//! else the software HCA, in the process and as a node of a fabric. The best of several runs, each of the same number.

use bellwire::Device;
use bellwire_benches::{Lending, Lends};
use std::time::Instant;

const RUNS: u32 = 9;
const EACH: u32 = 2_000;

fn measure(name: &str, device: &Device) {
    let mut lends = Lends::on(device);
    for lending in [Lending::No, Lending::GivenBack, Lending::Ended] {
        let runs = (0..RUNS).map(|_| {
            let start = Instant::now();
            (0..EACH).for_each(|_| lends.exchange(lending));
            start.elapsed() / EACH
        });
        let best = runs.min().unwrap_or_default();
        println!("{name}, {lending:?}: {} ns", best.as_nanos());
    }
}

fn main() {
    match std::env::var("BELLWIRE_VERBS_DEVICE") {
        Ok(name) => {
            let device = Device::open(&name).expect("a device");
            let name = format!("{name} ({:?})", device.provider());
            measure(&name, &device);
        }
        Err(_) => {
            measure("soft", &Device::soft(Default::default()));
            let fabric = format!("soft:lends-{}", std::process::id());
            measure("soft:NAME", &Device::open(&fabric).expect("a fabric"));
        }
    }
}
