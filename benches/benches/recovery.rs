//! Time to recover: two links on an inline software HCA, polled in turn, and 1,000 times each fault at
//! the first of them, with a WRITE in the queue that was not reported yet. From the moment at which the
//! fault strikes until both ends work again and the WRITE was reported as executed; and what of that the
//! link itself counts, from when it noticed the fault.
#![allow(missing_docs, reason = "a program")]

use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::LinkState;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::RdmaWrite;
use bellwire::wr::SendFlags;
use bellwire_benches::{Links, links};
use std::time::{Duration, Instant};

const TIMES: u64 = 1000;

/// One fault, and how long it took: as the program sees it, and as the link does.
fn once(links: &mut Links, wr_id: u64, fault: Fault) -> (Duration, Duration) {
    let device = links.a.pd().expect("it works").device().clone();
    let epoch = links.a.epoch();
    let remote = links.region.remote(0);
    let bytes = wr_id.to_ne_bytes();
    (links.a)
        .post_inline(
            wr_id,
            RdmaWrite { remote },
            &bytes,
            SendFlags::SIGNALED,
            Replay::Anyway,
        )
        .expect("it works");
    links.a.ring();
    let script = Script::default().with(Trigger::After(Duration::ZERO), fault);
    device
        .as_soft()
        .unwrap()
        .inject(&script)
        .expect("a fault of this device");
    let start = Instant::now();
    device.progress();
    let mut reported = 0;
    while reported == 0
        || links.a.epoch() == epoch
        || [links.a.state(), links.b.state()] != [LinkState::Ready; 2]
    {
        links.a.poll(8, |of| {
            assert_eq!((of.wr_id, of.outcome), (wr_id, Outcome::Done));
            reported += 1;
        });
        links.b.poll(8, |of| panic!("{of:?}"));
    }
    let took = start.elapsed();
    assert_eq!(reported, 1);
    (took, links.a.counters().expect("it works").last)
}

fn measured(name: &str, fault: impl Fn(&Links) -> Fault) {
    let mut links = links();
    let (mut program, mut link): (Vec<_>, Vec<_>) = (0..TIMES)
        .map(|wr_id| {
            let fault = fault(&links);
            once(&mut links, wr_id, fault)
        })
        .unzip();
    let counters = links.a.counters().expect("it works");
    // The first connection is one.
    assert_eq!((counters.recovered, counters.degraded), (1 + TIMES, 0));
    program.sort_unstable();
    link.sort_unstable();
    let micros = |took: &[Duration], at: usize| took[at].as_secs_f64() * 1e6;
    let (middle, last) = (TIMES as usize / 2, TIMES as usize - 1);
    println!(
        "{name}: {TIMES} recoveries; until the program goes on: median {:.1} us, worst {:.1} us; of \
         that the link's: median {:.1} us, worst {:.1} us",
        micros(&program, middle),
        micros(&program, last),
        micros(&link, middle),
        micros(&link, last),
    );
}

fn main() {
    measured("QP_FATAL", |links| {
        Fault::QpFatal(links.a.qp_num().expect("it works"))
    });
    measured("CQ_ERR", |links| {
        Fault::CqOverrun(links.a.cqn().expect("it works"))
    });
}
