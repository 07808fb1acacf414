//! By links that recover, and by sets of them.

use super::{REQUESTS, SIGNALED, limit, of_many};
use bellwire::Device;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire_benches::{Lending, Lends, Links, Sets, links};
use bellwire_core::wqe::*;
use gungraun::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};
use std::hint::black_box;

#[library_benchmark(config = limit(359))]
#[bench::run(linked())]
fn link_write_8_inline_and_poll(mut links: Links) -> Links {
    let remote = links.region.remote(64);
    for wr_id in 0..REQUESTS {
        let data: &[u8; 8] = black_box(&[7; 8]);
        let write = RdmaWrite { remote };
        let _ = links
            .a
            .post_inline(wr_id, write, data, SIGNALED, Replay::IfSafe);
        links.a.ring();
        let polled = links.a.poll(16, |completion| {
            assert!(completion.outcome == Outcome::Done);
            black_box(completion.wr_id);
        });
        assert_eq!(polled, 1);
    }
    links
}

/// Two links that have talked.
fn linked() -> Links {
    let mut links = links();
    let remote = links.region.remote(64);
    let write = RdmaWrite { remote };
    let posted = links
        .a
        .post_inline(0, write, &[7; 8], SIGNALED, Replay::IfSafe);
    posted.expect("room");
    links.a.ring();
    while links.a.poll(1, drop) == 0 {}
    links
}

// A message of 12 bytes and its answer, with receives at both ends: alone, and with a block that is lent meanwhile. The
// peer gives the block back with its answer, or the program takes it back.
#[library_benchmark]
#[bench::not_lent(args = (lends(), Lending::No), config = limit(1710))]
#[bench::given_back(args = (lends(), Lending::GivenBack), config = limit(6380))]
#[bench::ended(args = (lends(), Lending::Ended), config = limit(7450))]
fn link_exchange(mut lends: Lends, lending: Lending) -> Lends {
    for _ in 0..REQUESTS {
        lends.exchange(black_box(lending));
    }
    lends
}

fn lends() -> Lends {
    Lends::on(&Device::soft(Default::default()))
}

// The same by links of a set. The limit for many links is 2 % above the limit for one.

/// Instructions of a request with one link in the set, of which each run has one check of its events in it.
mod of_one {
    pub const WRITE: u64 = 508;
    pub const SEND: u64 = 1029;
    pub const SEND_ON_SRQ: u64 = 1738;
}

/// With one link, or with many: whose limit is 2 % above what one takes.
fn set_limit(of_one: u64, many: bool) -> LibraryBenchmarkConfig {
    let mut config = limit(if many { of_one * 102 / 100 } else { of_one });
    config.pass_through_env(MANY_LINKS);
    config
}

/// How many links are many, by this variable; a thousand if it is not set, because ten thousand take some 12 s to
/// connect under Valgrind, in each benchmark.
const MANY_LINKS: &str = "BELLWIRE_SET_LINKS";

fn many_links() -> usize {
    let given = std::env::var(MANY_LINKS).ok();
    given.map_or(1000, |links| links.parse().expect("a number"))
}

#[library_benchmark]
#[bench::of_1(args = (Sets::new(1)), config = set_limit(of_one::WRITE, false))]
#[bench::of_100(args = (Sets::new(100)), config = set_limit(of_one::WRITE, true))]
#[bench::of_many(args = (Sets::new(many_links())), config = set_limit(of_one::WRITE, true))]
fn set_write_8_inline_and_poll(mut sets: Sets) -> Sets {
    for request in 0..REQUESTS {
        sets.write(of_many(request, sets.count()));
    }
    sets
}

#[library_benchmark]
#[bench::of_1(args = (Sets::new(1)), config = set_limit(of_one::SEND, false))]
#[bench::of_100(args = (Sets::new(100)), config = set_limit(of_one::SEND, true))]
#[bench::of_many(args = (Sets::new(many_links())), config = set_limit(of_one::SEND, true))]
fn set_send_8_inline_and_receive(mut sets: Sets) -> Sets {
    for request in 0..REQUESTS {
        sets.send(of_many(request, sets.count()));
    }
    sets
}

// The receive is of a shared receive queue, which polls refill; how many a link holds is limited.
#[library_benchmark]
#[bench::of_1(args = (Sets::on_srq(1)), config = set_limit(of_one::SEND_ON_SRQ, false))]
#[bench::of_100(args = (Sets::on_srq(100)), config = set_limit(of_one::SEND_ON_SRQ, true))]
#[bench::of_many(args = (Sets::on_srq(many_links())), config = set_limit(of_one::SEND_ON_SRQ, true))]
fn set_send_8_inline_and_receive_on_srq(mut sets: Sets) -> Sets {
    for request in 0..REQUESTS {
        sets.send(of_many(request, sets.count()));
    }
    sets
}

library_benchmark_group!(
    name = by_links;
    benchmarks =
        link_write_8_inline_and_poll,
        link_exchange,
        set_write_8_inline_and_poll,
        set_send_8_inline_and_receive,
        set_send_8_inline_and_receive_on_srq
);
