//! Connections of one node, or of several, into one completion queue of another.

use super::{SMALL, clients_and_server, connect, domains};
use bellwire::memory::{Mapping, Pages};
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Cq, Pd, Qp, QpInit, Region, Srq, SrqInit};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Messages that may be on their way, on all connections together: each connection has room for as many.
const WINDOW: u64 = 96;

/// Messages that are rung at a time, on one connection.
const BATCH: u64 = 8;

/// Completions taken at a time.
const POLL: usize = 32;

/// Bytes of a message.
const BYTES: usize = 8;

/// The connections: the queue pairs of the nodes that send, and the receiver's, with one completion queue for all of a node.
/// The receiver's receive into queues of their own, or all into one.
pub struct FanIn {
    from: Vec<Side>,
    to: Side,
    region: Region,
    /// Messages sent so far.
    sent: u64,
}

struct Side {
    qps: Vec<Qp>,
    cq: Cq,
    srq: Option<Srq>,
}

impl Side {
    fn new(pd: &Pd, count: usize, shares: bool) -> Self {
        let init = QpInit {
            max_send_wr: 2 * WINDOW as u32,
            max_recv_wr: WINDOW as u32,
            ..SMALL
        };
        let (sends, receives) = init.cq_entries();
        let entries = (sends + receives) * count as u32;
        let mut cq = pd.device().create_cq(entries).expect("fits");
        let of_window = SrqInit {
            max_wr: WINDOW as u32,
            ..SrqInit::default()
        };
        let srq = shares.then(|| pd.create_srq(&of_window).expect("fits"));
        let qp = |_| match &srq {
            Some(srq) => pd.create_qp_on_srq(&mut cq, srq, &init).expect("fits"),
            None => pd.create_qp(&mut cq, &init).expect("fits"),
        };
        Self {
            qps: (0..count).map(qp).collect(),
            cq,
            srq,
        }
    }
}

/// Posts a receive for the connection of this number.
#[inline(always)]
fn receive(qps: &mut [Qp], srq: &mut Option<Srq>, number: u64, region: &Region) {
    let sges = [region.sge(0, BYTES as u32)];
    let queue = &mut qps[number as usize];
    // SAFETY: the region outlives the queues' use of it; nothing reads the messages.
    let posted = unsafe {
        match srq {
            Some(srq) => srq.post(number, &sges),
            None => queue.rq().post(number, &sges),
        }
    };
    posted.expect("room");
    match srq {
        Some(srq) => srq.ring(),
        None => queue.rq().ring(),
    }
}

impl FanIn {
    /// As many connections between two nodes of a fabric, which receive into one queue if that is `shared`.
    ///
    /// # Panics
    /// When the host has no room for them.
    pub fn new(count: usize, shared: bool) -> Self {
        let [here, there] = domains();
        Self::between(vec![Side::new(&here, count, false)], &there, shared)
    }

    /// One connection of each of so many nodes with another one.
    ///
    /// # Panics
    /// When the host has no room for them.
    pub fn of_nodes(count: usize) -> Self {
        let (clients, there) = clients_and_server(count);
        let from = clients.iter().map(|here| Side::new(here, 1, false));
        Self::between(from.collect(), &there, false)
    }

    fn between(mut from: Vec<Side>, there: &Pd, shared: bool) -> Self {
        let count = from.iter().map(|side| side.qps.len()).sum();
        let mut to = Side::new(there, count, shared);
        let mapping = Mapping::shared("bellwire-bench", 1 << 12)
            .pages(Pages::Base)
            .build();
        let region = Region::new(there, mapping.expect("memory"), AccessFlags::LOCAL_WRITE);
        let region = region.expect("a key");
        let senders = from.iter_mut().flat_map(|side| &mut side.qps);
        for (a, b) in senders.zip(&mut to.qps) {
            let ends = [b.endpoint(), a.endpoint()];
            connect(a, &ends[0]);
            connect(b, &ends[1]);
        }
        for number in 0..if shared { 1 } else { count as u64 } {
            (0..WINDOW).for_each(|_| receive(&mut to.qps, &mut to.srq, number, &region));
        }
        Self {
            from,
            to,
            region,
            sent: 0,
        }
    }

    /// How long it takes until so many messages more have been received, by a thread of its own: whole batches, on the
    /// connections in turn. Each receive is posted again.
    ///
    /// # Panics
    /// When a request fails.
    pub fn run(&mut self, messages: u64) -> Duration {
        self.receive(messages, None)
    }

    /// The same of the receiver alone: as many messages as may be on their way have arrived before it begins, and time
    /// counts until it has received them.
    ///
    /// # Panics
    /// When a request fails.
    pub fn run_receiver(&mut self, messages: u64) -> Duration {
        self.receive(messages, Some(WINDOW))
    }

    /// How long it takes until so many messages more have been sent, each signalled and on the next connection, received, and
    /// completed, by this thread alone, as many at a time as may be on their way. Of one node, into queues of their own.
    ///
    /// # Panics
    /// When a request fails.
    pub fn run_in_turn(&mut self, messages: u64) -> Duration {
        let [from] = &mut self.from[..] else {
            panic!("of one node");
        };
        let start = Instant::now();
        for count in 0..messages.next_multiple_of(WINDOW) {
            let connections = from.qps.len();
            let mut sq = from.qps[self.sent as usize % connections].sq();
            let posted = sq.post_inline(0, (), Send {}, &[7; BYTES], SendFlags::SIGNALED);
            posted.expect("room");
            sq.ring();
            self.sent += 1;
            if count % WINDOW == WINDOW - 1 {
                let Side { qps, cq, srq } = &mut self.to;
                poll_all(cq, |number| receive(qps, srq, number, &self.region));
                poll_all(&mut from.cq, |_| {});
            }
        }
        start.elapsed()
    }

    /// `rounds`: so many are sent at a time, and received when all of them have arrived.
    fn receive(&mut self, messages: u64, rounds: Option<u64>) -> Duration {
        let round = rounds.unwrap_or(BATCH);
        let messages = messages.next_multiple_of(round);
        let Self {
            from,
            to,
            region,
            sent,
        } = self;
        let first = *sent;
        *sent += messages;
        let (arrived, received) = (&AtomicU64::new(0), &AtomicU64::new(0));
        let failed = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _alarm = Alarm(failed);
            let receiver = scope.spawn(|| {
                let _alarm = Alarm(failed);
                let (mut count, mut took) = (0, Duration::ZERO);
                while count != messages {
                    let until = rounds.map_or(messages, |round| count + round);
                    // Acquire: partner of the release below.
                    while rounds.is_some() && arrived.load(Ordering::Acquire) != until {
                        check(failed);
                        spin_loop();
                    }
                    let start = Instant::now();
                    while count != until {
                        check(failed);
                        let Side { qps, cq, srq } = &mut *to;
                        let polled = cq.poll(POLL, |completion| {
                            assert!(completion.result.is_ok());
                            receive(qps, srq, completion.wr_id, region);
                        });
                        count += polled as u64;
                        // Release: partner of the acquire below; the receives have been posted.
                        received.store(count, Ordering::Release);
                    }
                    took += start.elapsed();
                }
                took
            });
            for count in (0..messages).step_by(BATCH as usize) {
                let at = ((first + count) / BATCH) as usize;
                // Of one node, or one of each.
                let nodes = from.len();
                let Side { qps, cq, .. } = &mut from[at % nodes];
                let each = qps.len();
                let mut sq = qps[at / nodes % each].sq();
                // Acquire: partner of the release above.
                while count - count % round + round > received.load(Ordering::Acquire) + WINDOW
                    || u64::from(sq.free_blocks()) < BATCH
                {
                    check(failed);
                    take(cq);
                    spin_loop();
                }
                for left in (0..BATCH).rev() {
                    let flags = match left {
                        0 => SendFlags::SIGNALED,
                        _ => SendFlags::empty(),
                    };
                    let posted = sq.post_inline(0, (), Send {}, &[7; BYTES], flags);
                    posted.expect("room");
                }
                sq.ring();
                take(cq);
                // Release: partner of the acquire above.
                arrived.store(count + BATCH, Ordering::Release);
            }
            while !receiver.is_finished() {
                from.iter_mut().for_each(|side| take(&mut side.cq));
            }
            receiver.join().expect("no request failed")
        })
    }
}

/// Says so when the thread that has it panics: the other one would wait for ever.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Relaxed: orders nothing.
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn check(failed: &AtomicBool) {
    // Relaxed: as above.
    assert!(!failed.load(Ordering::Relaxed), "the other thread failed");
}

/// Polls until as many requests have completed as may be on their way.
#[inline(always)]
fn poll_all(cq: &mut Cq, mut each: impl FnMut(u64)) {
    let mut left = WINDOW as usize;
    while left != 0 {
        left -= cq.poll(left.min(POLL), |completion| {
            assert!(completion.result.is_ok());
            each(completion.wr_id);
        });
    }
}

/// Takes the completions of sends.
fn take(cq: &mut Cq) {
    cq.poll(POLL, |completion| assert!(completion.result.is_ok()));
}
