//! Many threads at once, and things taken away under them: nothing hangs, no outcome is lost or reported
//! twice, and memory that is deregistered stays as it is.

use bellwire::memory::Mapping;
use bellwire::queue::Completion;
use bellwire::soft::Mode;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, Sge, WcOpcode, WcStatus};
use bellwire::{ConnectAttr, Cq, Cqs, Endpoint, Pd, Qp, QpInit, Region};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

in_both_modes! {
    everything_is_taken_away_under_traffic, many_producers_on_one_cq, pairs_come_and_go,
}

const TIME: Duration = Duration::from_millis(2500);
/// In flight at most; less than the queues hold.
const DEPTH: usize = 24;

/// What two hammering threads and the one that takes memory away share.
#[derive(Default)]
struct Shared {
    broken: AtomicBool,
    done: AtomicBool,
    arrived: AtomicUsize,
    endpoints: [Mutex<Endpoint>; 2],
    /// Address and key of memory that comes and goes.
    target: (AtomicU64, AtomicU64),
    /// Bytes that were written to it.
    written: AtomicU64,
    lives: AtomicU64,
    outcomes: AtomicU64,
}

impl Shared {
    /// Both threads have to come here.
    fn meet(&self) {
        let turn = self.arrived.fetch_add(1, Ordering::AcqRel) / 2;
        until("the peer", || {
            self.arrived.load(Ordering::Acquire) / 2 > turn || self.done.load(Ordering::Acquire)
        });
    }
}

/// One end: a queue pair, and what was posted and not reported.
struct Hammer<'s> {
    shared: &'s Shared,
    pd: Pd,
    cq: Cq,
    qp: Option<Qp>,
    region: Region,
    random: Random,
    next: u64,
    /// Where the next READ and the next receive put what they bring: no two of those in flight are to do so
    /// at one place.
    places: [usize; 2],
    sends: VecDeque<(u64, bool)>,
    receives: VecDeque<u64>,
}

const RECEIVE: u64 = 1 << 63;

/// What is sent, and where what comes goes.
const SENT: usize = 0;
const BROUGHT: [usize; 2] = [4096, 8192];

impl Hammer<'_> {
    fn qp(&mut self) -> &mut Qp {
        self.qp.as_mut().expect("there between lives")
    }

    /// A place that no other request in flight has: of a READ's, or of a receive's.
    fn place(&mut self, receive: bool, length: u32) -> Sge {
        let next = &mut self.places[usize::from(receive)];
        *next = (*next + 1) % (DEPTH + 1);
        self.region
            .sge(BROUGHT[usize::from(receive)] + *next * 128, length)
    }

    /// Checks one outcome against what was posted: the next of its queue, each once.
    fn completed(&mut self, done: Completion<'static>) {
        self.shared.outcomes.fetch_add(1, Ordering::Relaxed);
        if done.wr_id & RECEIVE != 0 {
            assert_eq!(Some(done.wr_id), self.receives.pop_front());
            assert_eq!(done.retired, 1);
        } else {
            let mut retired = 0;
            loop {
                let (wr_id, signalled) = self.sends.pop_front().expect("it was posted");
                retired += 1;
                if wr_id == done.wr_id {
                    break;
                }
                assert!(!signalled, "{wr_id} was passed over");
            }
            assert_eq!(retired, done.retired);
        }
        if done.status() != WcStatus::Success {
            self.shared.broken.store(true, Ordering::Release);
        }
    }

    fn poll(&mut self) {
        while let Some(done) = self.cq.poll_one() {
            self.completed(done);
        }
    }

    fn post_one(&mut self) {
        let wr_id = self.next;
        self.next += 1;
        let choice = self.random.below(8);
        let signalled = self.random.below(4) == 0 || self.sends.len() % 8 == 7;
        let flags = if signalled {
            SIGNALED
        } else {
            SendFlags::empty()
        };
        let length = self.random.below(100) as usize;
        let bytes = [0xee; 100];
        let here = self.region.sge(SENT, length as u32);
        let there = self.place(false, length as u32);
        let (addr, rkey) = (&self.shared.target.0, &self.shared.target.1);
        let remote = Remote {
            addr: addr.load(Ordering::Acquire),
            rkey: rkey.load(Ordering::Acquire) as u32,
        };
        let (data, qp) = (&bytes[..length], self.qp.as_mut().expect("there"));
        match choice {
            0..=2 => post(qp, wr_id, RdmaWrite { remote }, Inline(data), flags),
            3 => post(qp, wr_id, RdmaRead { remote }, there, flags),
            4 => post(qp, wr_id, Nop {}, NoPayload, flags),
            5 => post(qp, wr_id, Send {}, here, flags),
            _ => post(qp, wr_id, Send {}, Inline(data), flags),
        }
        .expect("fewer than the queue holds");
        self.sends.push_back((wr_id, signalled));
    }

    /// Traffic, until something breaks.
    fn traffic(&mut self) {
        while !self.shared.broken.load(Ordering::Acquire) {
            while self.receives.len() < DEPTH {
                let wr_id = RECEIVE | self.next;
                self.next += 1;
                let sge = self.place(true, 128);
                post_recv(self.qp(), wr_id, &[sge]).expect("fewer than the queue holds");
                self.receives.push_back(wr_id);
            }
            self.qp().rq().ring();
            for _ in 0..self.random.below(6) {
                if self.sends.len() < DEPTH {
                    self.post_one();
                }
            }
            self.qp().sq().ring();
            self.poll();
            if self.sends.len() == DEPTH && !self.sends.iter().any(|(_, signalled)| *signalled) {
                unreachable!("one in eight is signalled");
            }
            if self.random.below(2000) == 0 {
                self.shared.broken.store(true, Ordering::Release);
            }
        }
    }

    /// Ends a life in one of the ways there are; everything has to be reported.
    fn end_of_life(&mut self, init: &QpInit) {
        self.shared.lives.fetch_add(1, Ordering::Relaxed);
        match self.random.below(3) {
            0 => {
                // The queue pair goes; what was executed unsignalled is not reported.
                self.qp = None;
                self.poll();
                assert!(self.sends.iter().all(|(_, signalled)| !signalled));
                self.sends.clear();
                let qp = self.pd.create_qp(&mut self.cq, init);
                self.qp = Some(qp.expect("its place is free again"));
            }
            1 => {
                // ERR, and a last request behind all others, which retires all of them.
                self.qp().to_error().expect("ERR from any state");
                let last = self.next;
                self.next += 1;
                post(self.qp(), last, Nop {}, NoPayload, SIGNALED).expect("room for one more");
                self.sends.push_back((last, true));
                self.qp().sq().ring();
                let start = Instant::now();
                while !(self.sends.is_empty() && self.receives.is_empty()) {
                    self.poll();
                    assert!(
                        start.elapsed() < DEADLINE,
                        "{} {}",
                        self.sends.len(),
                        self.receives.len()
                    );
                }
                self.reset(&[]);
            }
            _ => {
                // Straight to RESET, which reports the rest.
                let rest: Vec<u64> = self.sends.drain(..).map(|(wr_id, _)| wr_id).collect();
                let rest = [rest, self.receives.drain(..).collect()].concat();
                self.reset(&rest);
            }
        }
        assert!(self.receives.is_empty());
        assert_eq!(self.cq.poll_one().map(|done| done.wr_id), None);
        assert!(!self.cq.overrun());
    }

    fn reset(&mut self, expected: &[u64]) {
        let mut reported = Vec::new();
        let qp = self.qp.as_mut().expect("there");
        qp.reset(&mut self.cq, |wr_id, _| reported.push(wr_id))
            .expect("RESET from any state");
        assert_eq!(reported, expected);
    }

    fn run(mut self, side: usize, init: &QpInit) {
        let attr = ConnectAttr {
            timeout: 5,
            retry_cnt: 3,
            min_rnr_timer: 1,
            ..ConnectAttr::default()
        };
        let start = Instant::now();
        loop {
            self.qp().init(&attr).expect("INIT");
            *self.shared.endpoints[side].lock().unwrap() = self.qp().endpoint();
            self.shared.meet();
            if side == 0 {
                self.shared.broken.store(false, Ordering::Release);
                let (time, written) = (start.elapsed(), &self.shared.written);
                // On a busy machine it may be a while until there was a WRITE in the right moment.
                if time > DEADLINE || time > TIME && written.load(Ordering::Relaxed) > 0 {
                    self.shared.done.store(true, Ordering::Release);
                }
            }
            let peer = *self.shared.endpoints[1 - side].lock().unwrap();
            self.qp().connect(&peer, &attr).expect("RTS");
            self.shared.meet();
            if self.shared.done.load(Ordering::Acquire) {
                return;
            }
            self.traffic();
            self.end_of_life(init);
        }
    }
}

/// Registers memory, lets it be written to, takes it away, and looks that it stays as it is then.
fn take_memory_away(shared: &Shared, pd: &Pd) {
    const BYTES: usize = 4096;
    let mapping = Mapping::anonymous(BYTES).build().unwrap();
    let start = NonNull::new(mapping.as_ptr()).unwrap();
    let (mut written, mut rounds) = (0u64, 0u64);
    while !shared.done.load(Ordering::Acquire) {
        // SAFETY: the mapping outlives the registration, and is accessed by volatile operations.
        let mr = unsafe { pd.register(start, BYTES, ALL) }.unwrap();
        shared.target.0.store(mr.addr(), Ordering::Release);
        shared.target.1.store(mr.rkey().into(), Ordering::Release);
        // Longer until there was a WRITE: on a busy machine the threads that post seldom run.
        let longer = if written == 0 { 1 + rounds / 64 } else { 1 };
        std::thread::sleep(Duration::from_micros(300 * (rounds % 7) * longer.min(100)));
        drop(mr);
        for at in 0..BYTES {
            // SAFETY: within the mapping.
            unsafe {
                written += u64::from(start.add(at).read_volatile() == 0xee);
                start.add(at).write_volatile(0x11);
            }
        }
        for _ in 0..20 {
            for at in 0..BYTES {
                // SAFETY: within the mapping.
                let byte = unsafe { start.add(at).read_volatile() };
                assert_eq!(byte, 0x11, "written after it was deregistered");
            }
        }
        rounds += 1;
        // Relaxed: numbers on their own.
        shared.written.store(written, Ordering::Relaxed);
    }
    assert!(
        written > 0 && rounds > 10,
        "{written} bytes in {rounds} rounds"
    );
}

fn everything_is_taken_away_under_traffic(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let init = QpInit {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_inline_data: 100,
        ..QpInit::default()
    };
    let shared = Shared::default();
    let hammer = |seed| {
        let (send, recv) = init.cq_entries();
        // A destroyed queue pair's entries count until its last completion is polled.
        let mut cq = device.create_cq_for(send + recv, 1).unwrap();
        Hammer {
            shared: &shared,
            qp: Some(pd.create_qp(&mut cq, &init).unwrap()),
            pd: pd.clone(),
            cq,
            region: region(&pd, 1 << 14),
            random: Random::new(seed),
            next: 0,
            places: [0; 2],
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        }
    };
    let ends = [hammer(11), hammer(12)];
    std::thread::scope(|scope| {
        for (side, end) in ends.into_iter().enumerate() {
            let init = &init;
            scope.spawn(move || end.run(side, init));
        }
        scope.spawn(|| take_memory_away(&shared, &pd));
    });
    let (lives, outcomes) = (&shared.lives, &shared.outcomes);
    let (lives, outcomes) = (
        lives.load(Ordering::Relaxed),
        outcomes.load(Ordering::Relaxed),
    );
    assert!(
        lives > 20 && outcomes > 1000,
        "{lives} lives, {outcomes} outcomes"
    );
}

/// Senders on threads of their own, all of whose receivers complete on one queue.
fn many_producers_on_one_cq(mode: Mode) {
    const SENDERS: usize = 4;
    const COUNT: u64 = 20_000;
    let device = device(mode);
    let pd = device.alloc_pd();
    let init = init();
    let (send, recv) = init.cq_entries();
    let mut recvs = device.create_cq(recv * SENDERS as u32).unwrap();
    let mut idle = device.create_cq(send * SENDERS as u32).unwrap();
    let attr = ConnectAttr {
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    };
    let memory = region(&pd, 1 << 16);
    let mut receivers = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..SENDERS {
        let mut to = pd
            .create_qp(Cqs::Split(&mut idle, &mut recvs), &init)
            .unwrap();
        let mut from = End::new(&pd, mode, &init);
        connect_with(&mut from.qp, &mut to, &attr);
        receivers.push(to);
        senders.push(from);
    }
    std::thread::scope(|scope| {
        for mut from in senders {
            scope.spawn(move || {
                let (mut sent, mut completed) = (0, 0);
                until("all completed", || {
                    while sent < COUNT && sent - completed < 32 {
                        from.go(sent, Send {}, Inline(&sent.to_ne_bytes()));
                        sent += 1;
                    }
                    while let Some(done) = from.cq.poll_one() {
                        assert_eq!((done.wr_id, done.status()), (completed, WcStatus::Success));
                        completed += 1;
                    }
                    completed == COUNT
                });
            });
        }
        let mut next = [0u64; SENDERS];
        let mut receive = |at: usize, wr_id: u64| {
            let place = (at * 64 + wr_id as usize % 64) * 8;
            let wr_id = (at as u64) << 32 | wr_id;
            post_recv(&mut receivers[at], wr_id, &[memory.sge(place, 8)]).unwrap();
            receivers[at].rq().ring();
        };
        for at in 0..SENDERS {
            for wr_id in 0..40 {
                receive(at, wr_id);
            }
        }
        for _ in 0..COUNT * SENDERS as u64 {
            let done = wait(&mut recvs);
            assert_eq!(done.result.as_ref().map(|ok| ok.opcode), Ok(WcOpcode::Recv));
            let (at, wr_id) = ((done.wr_id >> 32) as usize, done.wr_id as u32);
            assert_eq!(u64::from(wr_id), next[at], "in order, each once");
            let place = (at * 64 + next[at] as usize % 64) * 8;
            assert_eq!(memory.word(place).load(Ordering::Acquire), next[at]);
            receive(at, next[at] + 40);
            next[at] += 1;
        }
        assert_eq!(next, [COUNT; SENDERS]);
    });
    assert!(!recvs.overrun());
    assert_eq!(recvs.stale(), 0);
}

/// Threads that create, connect, use and drop, each for itself, on one device.
fn pairs_come_and_go(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (device, pd) = (&device, &pd);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..150 {
                    let (mut a, mut b) = (End::new(pd, mode, &init()), End::new(pd, mode, &init()));
                    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
                    let count = 1 + random.below(20);
                    for wr_id in 0..count {
                        b.receive(wr_id, &[b.region.sge(0, 64)]);
                        a.go(wr_id, Send {}, Inline(&[1; 40]));
                    }
                    if random.below(2) == 0 {
                        for wr_id in 0..count {
                            assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
                            assert_eq!(b.outcome(), (wr_id, WcStatus::Success));
                        }
                    }
                    match random.below(3) {
                        0 => drop((a, b)),
                        1 => drop((b, a)),
                        _ => {
                            b.qp.to_error().unwrap();
                            assert_eq!(b.qp.state(), QpState::Err);
                            a.reset();
                        }
                    }
                    device.progress();
                }
            });
        }
    });
}
