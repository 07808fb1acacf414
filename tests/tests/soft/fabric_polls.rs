//! Short messages between nodes, which are handed to the poll that finds them, or written to their completion queue:
//! programs see no difference.

use bellwire::be::Be32;
use bellwire::queue::{Completion, Imm};
use bellwire::recorder::DumpOptions;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Cq, CqInit, Cqs, Device, Error, Pd, Qp, QpInit, Region};
use bellwire_tests::fixture::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Receives that are posted, each of this many bytes.
const POSTED: usize = 32;
const ROOM: usize = 256;

/// Around the longest that are handed over, of one line and of several, and that are copied by other code.
const LENGTHS: [usize; 18] = [
    8, 9, 11, 12, 13, 20, 21, 31, 32, 33, 36, 37, 64, 126, 127, 128, 200, 256,
];

/// The receiving end of a connection, whose receives complete on a queue of their own.
struct Receiver {
    qp: Qp,
    sends: Cq,
    cq: Cq,
    region: Region,
    posted: u64,
}

impl Receiver {
    fn new(pd: &Pd, cq: Cq) -> Self {
        let init = init();
        let (mut sends, mut cq) = (cq_for(pd.device(), &init), cq);
        let cqs = Cqs::Split(&mut sends, &mut cq);
        let qp = pd.create_qp(cqs, &init).expect("a queue pair");
        let region = region(pd, POSTED * ROOM);
        Self {
            qp,
            sends,
            cq,
            region,
            posted: 0,
        }
    }

    fn place(&self, wr_id: u64) -> usize {
        wr_id as usize % POSTED * ROOM
    }

    /// Posts the next receive.
    fn post(&mut self) {
        let sge = self.region.sge(self.place(self.posted), ROOM as u32);
        post_recv(&mut self.qp, self.posted, &[sge]).expect("room");
        self.qp.rq().ring();
        self.posted += 1;
    }

    /// Checks that a completion is of the message of this number, and posts its receive again.
    fn check(&mut self, completion: &Completion<'_>, number: u64) {
        let success = completion.result.expect("received");
        let sent = message(number);
        assert_eq!((completion.wr_id, completion.retired), (number, 1));
        assert_eq!(success.byte_len(), Some(sent.len() as u32), "{number}");
        assert_eq!(success.imm(), imm(number), "{number}");
        let mut bytes = vec![0; sent.len()];
        self.region.read(self.place(number), &mut bytes);
        assert_eq!(bytes, sent, "{number}");
        self.post();
    }
}

/// The message of a number.
fn message(number: u64) -> Vec<u8> {
    let length = LENGTHS[number as usize * 5 % LENGTHS.len()];
    let (head, mut random) = (number.to_le_bytes(), Random::new(number));
    let tail = random.bytes(length - head.len());
    [&head[..], &tail].concat()
}

/// Some have immediate data.
fn imm(number: u64) -> Imm {
    match number % 5 {
        0 => Imm::Data(Be32::new(number as u32)),
        _ => Imm::None,
    }
}

/// Sends the message of a number; `false`: there is no room.
fn send(end: &mut End, number: u64, flags: SendFlags) -> bool {
    let data = message(number);
    let posted = match imm(number) {
        Imm::Data(imm) => {
            let send = SendWithImm { imm };
            (end.qp.sq()).post_inline(number, (), send, &data, flags)
        }
        _ => (end.qp.sq()).post_inline(number, (), Send {}, &data, flags),
    };
    if posted.is_ok() {
        end.qp.sq().ring();
    }
    posted.is_ok()
}

/// A connection between two nodes; the sender has room for the longest message inline.
fn connection(here: &Device, there: &Device, cq: Cq) -> (End, Receiver) {
    let init = QpInit {
        max_inline_data: ROOM as u32,
        ..init()
    };
    let mut from = End::new(&here.alloc_pd(), Mode::Inline, &init);
    let mut to = Receiver::new(&there.alloc_pd(), cq);
    connect_with(&mut from.qp, &mut to.qp, &ConnectAttr::default());
    (0..POSTED).for_each(|_| to.post());
    (from, to)
}

fn nodes() -> (Device, Device) {
    let fabric = fabric_name();
    (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline))
}

fn cq(device: &Device) -> Cq {
    cq_for(device, &init())
}

/// Waits until the only request is acknowledged; nothing more is received.
fn acknowledged(a: &mut End, b: &mut Receiver) {
    until("it is acknowledged", || {
        assert!(b.cq.poll_one().is_none());
        a.cq.poll_one().is_some()
    });
}

/// Polls in each way, by turns: one completion, and up to some.
fn polled(cq: &mut Cq, turn: u64, mut each: impl FnMut(Completion<'static>)) {
    match turn % 4 {
        0 => assert_eq!(cq.poll(0, |_| panic!("asked for none")), 0),
        1 => {
            cq.poll(1, &mut each);
        }
        2 => {
            cq.poll(7, &mut each);
        }
        _ => cq.poll_one().into_iter().for_each(each),
    }
}

/// One or several messages wait, of one connection or two on the same queue, and are polled in each way.
#[test]
fn messages_of_all_lengths_by_each_way_of_polling() {
    let (here, there) = nodes();
    let (mut a, mut b) = connection(&here, &there, cq(&there));
    let (mut sent, mut received, mut turn) = (0, 0, 0);
    let mut random = Random::new(5);
    while received < 3_000 {
        for _ in 0..random.below(4) {
            if sent < received + POSTED as u64 && send(&mut a, sent, SIGNALED) {
                sent += 1;
            }
        }
        let mut all = Vec::new();
        polled(&mut b.cq, turn, |completion| all.push(completion));
        for completion in &all {
            b.check(completion, received);
            received += 1;
        }
        a.cq.poll(usize::MAX, |done| {
            assert_eq!(done.status(), WcStatus::Success)
        });
        turn += 1;
    }
}

/// A thread that polls something else reads packets, too: what it receives is written to the completion queue, and nothing
/// that another poll finds is reported before it.
#[test]
fn messages_are_reported_in_order_whoever_reads_them() {
    const MESSAGES: u64 = 20_000;
    let (here, there) = nodes();
    let (mut a, mut b) = connection(&here, &there, cq(&there));
    let mut nothing_here = cq(&there);
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            // Relaxed, here and below: only ends the loop.
            while !done.load(Ordering::Relaxed) {
                assert!(nothing_here.poll_one().is_none());
            }
        });
        let received = scope.spawn(move || {
            for (number, turn) in (0..MESSAGES).zip(0u64..) {
                let mut all = Vec::new();
                while all.is_empty() {
                    b.cq.poll(1, |completion| all.push(completion));
                    assert!(b.sends.poll_one().is_none());
                    if turn % 64 == 0 {
                        thread::yield_now();
                    }
                }
                all.iter()
                    .for_each(|completion| b.check(completion, number));
            }
        });
        let mut sent = 0;
        while !received.is_finished() {
            if sent < MESSAGES && send(&mut a, sent, SIGNALED) {
                sent += 1;
            }
            a.cq.poll(usize::MAX, |done| {
                assert_eq!(done.status(), WcStatus::Success)
            });
        }
        done.store(true, Ordering::Relaxed);
        received.join().expect("all were received in order");
    });
}

/// What is found by the poll of another completion queue stays for its own.
#[test]
fn a_message_is_reported_by_its_own_queue() {
    let (here, there) = nodes();
    let (mut a, mut b) = connection(&here, &there, cq(&there));
    for number in 0..300 {
        assert!(send(&mut a, number, SIGNALED));
        for _ in 0..3 {
            assert!(b.sends.poll_one().is_none());
        }
        let completion = wait(&mut b.cq);
        b.check(&completion, number);
        acknowledged(&mut a, &mut b);
    }
}

/// An armed queue raises its event for a message that its own poll finds, as for any other.
#[test]
fn an_armed_queue_raises_its_event() {
    let (here, there) = nodes();
    let channel = there.create_comp_channel().expect("a channel");
    channel.set_nonblocking(true).expect("its descriptor");
    let on_channel = CqInit {
        channel: Some(&channel),
        ..CqInit::new(128)
    };
    let on_channel = there.create_cq_with(&on_channel).expect("a queue");
    let (mut a, mut b) = connection(&here, &there, on_channel);
    for number in 0..100 {
        let arms = number % 3 == 0;
        if arms {
            b.cq.req_notify(false).expect("it has a channel");
        }
        assert!(send(&mut a, number, SIGNALED));
        let completion = wait(&mut b.cq);
        b.check(&completion, number);
        if arms {
            // Whoever read the packet raises it behind the entry, which may have been polled before.
            until("an event", || channel.get_cq_event().is_ok());
        }
        assert!(matches!(channel.get_cq_event(), Err(Error::WouldBlock)));
        acknowledged(&mut a, &mut b);
    }
}

/// The flight recorder has all of them, in order, whether they were handed to a poll or written to the queue.
#[test]
fn the_flight_recorder_shows_them() {
    let (here, there) = nodes();
    let (mut a, mut b) = connection(&here, &there, cq(&there));
    let total = 50;
    for number in 0..total {
        assert!(send(&mut a, number, SIGNALED));
        if number % 4 == 0 {
            // Written to the queue.
            assert!(b.sends.poll_one().is_none());
        }
        let completion = wait(&mut b.cq);
        b.check(&completion, number);
        acknowledged(&mut a, &mut b);
    }
    let cqs = Cqs::Split(&mut b.sends, &mut b.cq);
    let all = DumpOptions {
        entries: usize::MAX,
        ..DumpOptions::default()
    };
    let record = b.qp.dump(cqs, &all).expect("a dump");
    let shown: Vec<_> = (record.completions.iter())
        .map(|entry| (entry.wr_id, entry.byte_len, entry.polled, entry.stale))
        .collect();
    let known = record.recv_queue.expect("its own").slots as u64;
    let expected: Vec<_> = (0..total)
        .map(|number| {
            let known = number >= b.posted - known;
            let length = message(number).len() as u32;
            (known.then_some(number), Some(length), true, false)
        })
        .collect();
    assert_eq!(shown, expected);
    let done = record.receives.iter().filter(|of| of.status.is_some());
    assert!(done.clone().all(|of| of.status == Some(WcStatus::Success)));
    assert_eq!(done.count() as u64, known - POSTED as u64);
}
