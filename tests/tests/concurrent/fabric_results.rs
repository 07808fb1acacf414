//! Requests with results, atomics and READs, of a peer that sends on the same connection meanwhile. What its packets
//! acknowledge does not include them: only the response with the result does.

use bellwire::memory::Mapping;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, Sge, WcStatus};
use bellwire::{ConnectAttr, Region};
use bellwire_tests::fixture::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const REQUESTS: u64 = 3_000;

/// Receives that are posted.
const RECEIVES: u64 = 32;

const REQUEST: u64 = 1;
const MESSAGE: u64 = 2;

/// Where a result goes.
const RESULT: usize = 128;

/// Ends the other threads, also when this one fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn receive(end: &mut End) {
    end.receive(MESSAGE, &[end.region.sge(0, 64)]);
}

/// One thread requests, another one sends on the same connection in the other direction, and a third one reads the
/// requests. `post` posts a request, signalled, to memory that holds `before` at first, and whose result of eight bytes is
/// what `expected` returns for the request's number.
fn beside_messages(
    before: u64,
    post: impl Fn(&mut End, Remote, Sge),
    expected: impl Fn(u64) -> u64,
) {
    let fabric = fabric_name();
    let (here, there) = (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline));
    let (pd, other) = (here.alloc_pd(), there.alloc_pd());
    let mut a = End::new(&pd, Mode::Inline, &init());
    let mut b = End::new(&other, Mode::Inline, &init());
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    // The other process cannot map it.
    let memory = Mapping::anonymous(4096).build().expect("memory");
    let memory = Region::new(&other, memory, ALL).expect("a region");
    memory.word(0).store(before, Ordering::Relaxed);
    let (done, received) = (&AtomicBool::new(false), &AtomicU64::new(0));
    // Relaxed, everywhere: only ends the loops, and says how many receives there are.
    let goes_on = move || !done.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let (qp, cq) = (&mut b.qp, &mut b.cq);
        scope.spawn(move || {
            let (mut sent, mut due) = (0, 0);
            while goes_on() {
                while due == 2 || sent == received.load(Ordering::Relaxed) + RECEIVES {
                    if let Some(completion) = cq.poll_one() {
                        assert_eq!(completion.status(), WcStatus::Success);
                        due -= 1;
                    }
                    if !goes_on() {
                        return;
                    }
                    thread::yield_now();
                }
                let signals = sent % 16 == 15;
                let flags = if signals {
                    SIGNALED
                } else {
                    SendFlags::empty()
                };
                (qp.sq())
                    .post_inline(sent, (), Send {}, &[7; 8], flags)
                    .expect("room");
                qp.sq().ring();
                (sent, due) = (sent + 1, due + u64::from(signals));
            }
        });
        scope.spawn(|| {
            while goes_on() {
                there.progress();
                thread::yield_now();
            }
        });
        let _over = Over(done);
        (0..RECEIVES).for_each(|_| receive(&mut a));
        for number in 0..REQUESTS {
            a.region.word(RESULT).store(u64::MAX, Ordering::Relaxed);
            let result = a.region.sge(RESULT, 8);
            post(&mut a, memory.remote(0), result);
            loop {
                let completion = a.wait();
                assert_eq!(completion.status(), WcStatus::Success);
                match completion.wr_id {
                    MESSAGE => {
                        receive(&mut a);
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                    wr_id => {
                        assert_eq!(wr_id, REQUEST);
                        break;
                    }
                }
            }
            let found = a.region.word(RESULT).load(Ordering::Acquire);
            assert_eq!(found, expected(number), "request {number}");
        }
    });
}

#[test]
fn an_atomic_completes_with_its_result() {
    let post = |end: &mut End, remote, result| {
        end.go(REQUEST, AtomicFetchAndAdd { remote, add: 1 }, result);
    };
    beside_messages(1, post, |number| number + 1);
}

#[test]
fn a_read_completes_with_its_data() {
    let post = |end: &mut End, remote, result| end.go(REQUEST, RdmaRead { remote }, result);
    beside_messages(7, post, |_| 7);
}
