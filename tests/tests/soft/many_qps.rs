//! Thousands of queue pairs on one device: each moves data, and what happens to some of them is
//! nothing to the others.

use bellwire::soft::{Fault, HcaConfig, Mode, Script, Trigger};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Cq, Device, Pd, Qp, QpInit, Region};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

in_both_modes! { some_of_many_fail_and_the_others_go_on }

/// Queue pairs; each is connected to the one next to it.
const COUNT: usize = 2000;
const CQS: usize = 3;

/// Every request has its own identifier: queue pair, and what it is.
const WRITE: u64 = 1 << 32;
const SEND: u64 = 2 << 32;
const RECEIVE: u64 = 3 << 32;
/// What is posted in later rounds.
const LAST_WORDS: [u64; 2] = [2 << 40, 3 << 40];
const AGAIN: u64 = 1 << 40;

fn small() -> QpInit {
    QpInit {
        max_send_wr: 4,
        max_recv_wr: 4,
        ..QpInit::default()
    }
}

struct World {
    qps: Vec<Option<Qp>>,
    cqs: Vec<Cq>,
    region: Region,
    /// What was posted and not reported.
    open: HashSet<u64>,
}

impl World {
    fn new(pd: &Pd) -> Self {
        let init = small();
        let (sends, receives) = init.cq_entries();
        let each = COUNT.div_ceil(CQS);
        let entries = each as u32 * (sends + receives);
        let mut cqs: Vec<Cq> = (0..CQS)
            .map(|_| pd.device().create_cq_for(entries, each).expect("fits"))
            .collect();
        let mut qps: Vec<Qp> = (0..COUNT)
            .map(|at| pd.create_qp(&mut cqs[at % CQS], &init).expect("fits"))
            .collect();
        for pair in qps.chunks_exact_mut(2) {
            let [a, b] = pair else { unreachable!("pairs") };
            // Nobody is to be waited for for long.
            let attr = ConnectAttr {
                timeout: 8,
                retry_cnt: 1,
                ..ConnectAttr::default()
            };
            connect_with(a, b, &attr);
        }
        Self {
            qps: qps.into_iter().map(Some).collect(),
            cqs,
            region: region(pd, COUNT * 16),
            open: HashSet::new(),
        }
    }

    /// Posts a receive, a WRITE of `value` to one's own word, and a SEND of it; those that take it.
    fn post_all(&mut self, value: u64, mark: u64) {
        for at in 0..COUNT {
            let Some(qp) = &mut self.qps[at] else {
                continue;
            };
            let sge = self.region.sge(at * 16 + 8, 8);
            let receive = mark | RECEIVE | at as u64;
            if post_recv(qp, receive, &[sge]).is_ok() {
                assert!(self.open.insert(receive));
            }
            qp.rq().ring();
        }
        for at in 0..COUNT {
            let Some(qp) = &mut self.qps[at] else {
                continue;
            };
            let data = (value + at as u64).to_le_bytes();
            let write = RdmaWrite {
                remote: self.region.remote(at * 16),
            };
            for (kind, posted) in [
                (
                    WRITE,
                    post(qp, mark | WRITE | at as u64, write, Inline(&data), SIGNALED),
                ),
                (
                    SEND,
                    post(
                        qp,
                        mark | SEND | at as u64,
                        Send {},
                        Inline(&data),
                        SIGNALED,
                    ),
                ),
            ] {
                if posted.is_ok() {
                    assert!(self.open.insert(mark | kind | at as u64));
                }
            }
            qp.sq().ring();
        }
    }

    /// Takes all that is reported until nothing is open; gives each outcome. What is reported twice, or was
    /// never posted, is a failure.
    fn outcomes(&mut self) -> HashMap<u64, WcStatus> {
        let mut outcomes = HashMap::new();
        until("the outcome of every request", || {
            for cq in &mut self.cqs {
                while let Some(done) = cq.poll_one() {
                    assert!(
                        self.open.remove(&done.wr_id),
                        "{:#x} was reported and is not open",
                        done.wr_id
                    );
                    outcomes.insert(done.wr_id, done.status());
                }
            }
            self.open.is_empty()
        });
        outcomes
    }

    fn assert_moved(&self, at: usize, value: u64) {
        let word = |offset| u64::from_le(self.region.word(offset).load(Ordering::Acquire));
        assert_eq!(word(at * 16), value + at as u64, "the WRITE of {at}");
        assert_eq!(
            word((at ^ 1) * 16 + 8),
            value + at as u64,
            "the SEND of {at}"
        );
    }
}

fn some_of_many_fail_and_the_others_go_on(mode: Mode) {
    let pd = device(mode).alloc_pd();
    let mut world = World::new(&pd);
    world.post_all(1_000, 0);
    let outcomes = world.outcomes();
    assert_eq!(outcomes.len(), 3 * COUNT);
    assert!(outcomes.values().all(|status| *status == WcStatus::Success));
    (0..COUNT).for_each(|at| world.assert_moved(at, 1_000));

    // A third fails, each with receives in flight that nothing came for.
    let mut random = Random::new(7);
    let mut failed = vec![false; COUNT];
    while failed.iter().filter(|failed| **failed).count() < COUNT / 3 {
        let at = random.below(COUNT as u64) as usize;
        if failed[at] {
            continue;
        }
        failed[at] = true;
        let qp = world.qps[at].as_mut().expect("not failed yet");
        for mark in LAST_WORDS {
            let receive = mark | RECEIVE | at as u64;
            post_recv(qp, receive, &[]).expect("room");
            world.open.insert(receive);
        }
        // A request that was not rung is reported as well.
        let staged = LAST_WORDS[0] | WRITE | at as u64;
        if random.below(2) == 0 {
            post(qp, staged, Nop {}, NoPayload, SendFlags::empty()).expect("room");
            world.open.insert(staged);
            world.qps[at] = None;
        } else {
            qp.rq().ring();
            qp.to_error().expect("from any state");
            assert_eq!(qp.state(), QpState::Err);
        }
    }
    let outcomes = world.outcomes();
    assert!(
        outcomes
            .values()
            .all(|status| *status == WcStatus::WrFlushErr)
    );

    // Those whose peer failed give up; the others go on as before.
    world.post_all(2_000_000, AGAIN);
    let outcomes = world.outcomes();
    let mut others = 0;
    for at in 0..COUNT {
        let status = |kind| outcomes.get(&(AGAIN | kind | at as u64)).copied();
        let all = [WRITE, SEND, RECEIVE].map(status);
        if failed[at] {
            let none = world.qps[at].is_none();
            let expected = (!none).then_some(WcStatus::WrFlushErr);
            assert_eq!(all, [expected; 3], "{at}");
        } else if failed[at ^ 1] {
            let expected = [
                WcStatus::RetryExcErr,
                WcStatus::WrFlushErr,
                WcStatus::WrFlushErr,
            ];
            assert_eq!(all, expected.map(Some), "{at}");
        } else {
            assert_eq!(all, [Some(WcStatus::Success); 3], "{at}");
            world.assert_moved(at, 2_000_000);
            others += 1;
        }
    }
    assert!(others > COUNT / 3, "{others} have gone on");

    // Their places are free for as many new ones.
    drop(std::mem::take(&mut world.qps));
    let mut polled = 0;
    for cq in &mut world.cqs {
        polled += cq.poll(usize::MAX, drop);
        assert_eq!((cq.stale(), cq.overrun()), (0, false));
    }
    assert_eq!(polled, 0, "everything was reported before");
    let again = small();
    for at in 0..COUNT {
        let made = pd.create_qp(&mut world.cqs[at % CQS], &again);
        world.qps.push(Some(made.expect("the place of one before")));
    }
    let (sends, receives) = again.cq_entries();
    for (first, cq) in world.cqs.iter().enumerate() {
        let attached = (first..COUNT).step_by(CQS).count() as u32;
        let free = cq.capacity() - attached * (sends + receives);
        assert_eq!(cq.unreserved(), free, "none of those before is kept");
    }
}

/// The failure of a completion queue is that of all queue pairs on it, however many: on a small stack, too.
#[test]
fn all_on_one_queue_fail() {
    let fail = || {
        let device = Device::soft(HcaConfig::default());
        let pd = device.alloc_pd();
        let (sends, receives) = small().cq_entries();
        let entries = COUNT as u32 * (sends + receives);
        let mut cq = device.create_cq_for(entries, COUNT).expect("fits");
        let mut qps: Vec<Qp> = (0..COUNT)
            .map(|_| pd.create_qp(&mut cq, &small()).expect("fits"))
            .collect();
        for pair in qps.chunks_exact_mut(2) {
            let [a, b] = pair else { unreachable!("pairs") };
            connect_with(a, b, &ConnectAttr::default());
        }
        let overrun = Fault::CqOverrun(cq.cqn());
        let script = Script::default().with(Trigger::After(Duration::ZERO), overrun);
        let soft = device.as_soft().expect("a software device");
        soft.inject(&script).expect("a script");
        let start = Instant::now();
        while qps.iter().any(|qp| qp.state() != QpState::Err) {
            assert_eq!(cq.poll_one().map(|completion| completion.wr_id), None);
            assert!(start.elapsed() < DEADLINE, "some work");
        }
    };
    let small = std::thread::Builder::new().stack_size(256 << 10);
    small
        .spawn(fail)
        .expect("a thread")
        .join()
        .expect("no panic");
}
