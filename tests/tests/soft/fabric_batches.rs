//! Messages between nodes of a fabric that lie one behind the other when they are received: several of a connection, beside
//! those of others and of other forms, with too few receives, with one that is too short, and with little room for their
//! completions.

use bellwire::be::Be32;
use bellwire::queue::Imm;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, Sge, WcStatus};
use bellwire::{ConnectAttr, Cq, Device, Qp, QpInit, Region};
use bellwire_tests::fixture::*;
use std::collections::VecDeque;
use std::time::Instant;

const CONNECTIONS: usize = 3;
const RECEIVES: usize = 64;

/// Bytes of a receive.
const ROOM: usize = 256;

/// A message, and its immediate data.
pub type Message = (Vec<u8>, Option<u32>);

/// One end of all connections.
struct Side {
    qps: Vec<Qp>,
    cq: Cq,
    region: Region,
    /// Of each connection, the places of the receives that are posted.
    places: Vec<VecDeque<usize>>,
    /// What each was sent, and has not received.
    expected: Vec<VecDeque<Message>>,
    /// Signalled sends that have not completed.
    sends: usize,
}

fn connect(a: &mut Qp, b: &mut Qp) {
    let attr = ConnectAttr {
        timeout: 18,
        rnr_retry: 7,
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    };
    connect_with(a, b, &attr);
}

impl Side {
    /// With a completion queue of so many entries, or with one that holds all.
    fn new(device: &Device, entries: Option<u32>) -> Self {
        let pd = device.alloc_pd();
        let init = QpInit {
            max_send_wr: 128,
            reserve_cq: entries.is_none(),
            ..init()
        };
        let (sends, receives) = init.cq_entries();
        let entries = entries.unwrap_or((sends + receives) * CONNECTIONS as u32);
        let mut cq = device.create_cq(entries).expect("a completion queue");
        let qp = |_| pd.create_qp(&mut cq, &init).expect("a queue pair");
        Self {
            qps: (0..CONNECTIONS).map(qp).collect(),
            cq,
            region: region(&pd, CONNECTIONS * RECEIVES * ROOM),
            places: vec![VecDeque::new(); CONNECTIONS],
            expected: vec![VecDeque::new(); CONNECTIONS],
            sends: 0,
        }
    }

    fn room(&self, connection: usize, place: usize, length: usize) -> Sge {
        let at = (connection * RECEIVES + place) * ROOM;
        self.region.sge(at, length as u32)
    }

    fn receive(&mut self, connection: usize, place: usize, length: usize) {
        let at = (connection * RECEIVES + place) * ROOM;
        self.region.write(at, &[0xee; ROOM]);
        let sge = self.room(connection, place, length);
        let wr_id = (connection * RECEIVES + place) as u64;
        post_recv(&mut self.qps[connection], wr_id, &[sge]).expect("room");
        self.qps[connection].rq().ring();
        self.places[connection].push_back(place);
    }

    /// Polls once. Each receive has to be the next one of its connection, with what was sent; its place is posted again.
    fn poll(&mut self, limit: usize) {
        let mut done = Vec::new();
        self.cq.poll(limit, |completion| done.push(completion));
        for completion in done {
            assert_eq!(completion.status(), WcStatus::Success, "{completion:?}");
            let success = completion.result.expect("just so");
            let Some(length) = success.byte_len() else {
                self.sends -= 1;
                continue;
            };
            let at = completion.wr_id as usize;
            let (connection, place) = (at / RECEIVES, at % RECEIVES);
            assert_eq!(self.places[connection].pop_front(), Some(place), "order");
            let (data, imm) = self.expected[connection].pop_front().expect("one was sent");
            assert_eq!(length as usize, data.len());
            let imm = imm.map_or(Imm::None, |imm| Imm::Data(Be32::new(imm)));
            assert_eq!(success.imm(), imm);
            let mut there = [0; ROOM];
            self.region.read(at * ROOM, &mut there);
            assert!(there.starts_with(&data), "{data:?} came otherwise");
            assert!(there[data.len()..].iter().all(|byte| *byte == 0xee));
            self.receive(connection, place, ROOM);
        }
    }

    fn is_settled(&self) -> bool {
        self.sends == 0 && self.expected.iter().all(VecDeque::is_empty)
    }
}

fn sides(entries: Option<u32>) -> (Device, Device, Side, Side) {
    let fabric = fabric_name();
    let (here, there) = (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline));
    let (mut a, mut b) = (Side::new(&here, None), Side::new(&there, entries));
    for connection in 0..CONNECTIONS {
        connect(&mut a.qps[connection], &mut b.qps[connection]);
    }
    (here, there, a, b)
}

/// Stages a message, which the other side is to receive.
fn send(from: &mut Side, to: &mut Side, connection: usize, message: Message, signalled: bool) {
    let flags = match signalled {
        true => SIGNALED,
        false => SendFlags::empty(),
    };
    let mut sq = from.qps[connection].sq();
    let posted = match message.1.map(Be32::new) {
        None => sq.post_inline(1, (), Send {}, &message.0, flags),
        Some(imm) => sq.post_inline(1, (), SendWithImm { imm }, &message.0, flags),
    };
    posted.expect("room");
    from.sends += usize::from(signalled);
    to.expected[connection].push_back(message);
}

fn settle(a: &mut Side, b: &mut Side) {
    let start = Instant::now();
    while !a.is_settled() || !b.is_settled() {
        a.poll(7);
        b.poll(7);
        assert!(start.elapsed() < DEADLINE, "something never completes");
    }
}

/// Mostly what is received together, and what is not among it.
pub fn message(random: &mut Random) -> Message {
    let length = match random.below(12) {
        0 => 0,
        1 => 33 + random.below(95),
        2 => 128 + random.below(73),
        _ => 1 + random.below(32),
    };
    let imm = (random.below(12) == 0).then(|| random.number() as u32);
    (random.bytes(length as usize), imm)
}

#[test]
fn batches_of_several_connections() {
    let (_here, _there, mut a, mut b) = sides(None);
    for connection in 0..CONNECTIONS {
        for place in 0..RECEIVES {
            a.receive(connection, place, ROOM);
            b.receive(connection, place, ROOM);
        }
    }
    let random = &mut Random::new(7);
    for _ in 0..if cfg!(debug_assertions) { 1_000 } else { 5_000 } {
        for _ in 0..1 + random.below(6) {
            let connection = random.below(CONNECTIONS as u64) as usize;
            let room = |side: &mut Side| side.qps[connection].sq().free_blocks() >= 80;
            if !room(&mut a) || !room(&mut b) {
                settle(&mut a, &mut b);
            }
            // Now and then in the other direction, so that packets carry acknowledgements.
            let (from, to) = match random.below(6) {
                0 => (&mut b, &mut a),
                _ => (&mut a, &mut b),
            };
            let most = RECEIVES - to.expected[connection].len();
            let count = (1 + random.below(20)).min(most as u64 / 4);
            let one = random.below(2) == 0;
            for left in (0..count).rev() {
                let message = match one {
                    true => (random.bytes(8), None),
                    false => message(random),
                };
                let signalled = left == 0 || random.below(5) == 0;
                send(from, to, connection, message, signalled);
            }
            from.qps[connection].sq().ring();
            (0..random.below(3)).for_each(|_| b.poll(1 + random.below(9) as usize));
            (0..random.below(3)).for_each(|_| a.poll(1 + random.below(9) as usize));
        }
        settle(&mut a, &mut b);
    }
}

/// Sends a batch on the first connection, whose last message is signalled.
fn send_batch(a: &mut Side, b: &mut Side, count: usize, random: &mut Random) {
    for left in (0..count).rev() {
        send(a, b, 0, (random.bytes(8), None), left == 0);
    }
    a.qps[0].sq().ring();
}

/// Takes as many receives of the first connection, without posting them again.
fn take(side: &mut Side, count: usize) {
    let mut left = count;
    until("what has a receive is received", || {
        if left != 0 {
            left -= side.cq.poll(left, |completion| {
                assert_eq!(completion.status(), WcStatus::Success);
            });
        }
        left == 0
    });
    side.places[0].drain(..count);
    side.expected[0].drain(..count);
}

/// Three messages of the first connection, after which its requests are received without the lock. No receive is left.
fn become_known(a: &mut Side, b: &mut Side, random: &mut Random) {
    for place in 0..3 {
        b.receive(0, place, ROOM);
        send_batch(a, b, 1, random);
        take(b, 1);
        settle(a, b);
    }
}

/// As many as there are receives for are received, and the others when those are posted.
#[test]
fn a_batch_that_finds_too_few_receives() {
    const COUNT: usize = 12;
    let random = &mut Random::new(8);
    for there in 0..COUNT {
        let (_here, _there, mut a, mut b) = sides(None);
        become_known(&mut a, &mut b, random);
        for place in 0..there {
            b.receive(0, place, ROOM);
        }
        send_batch(&mut a, &mut b, COUNT, random);
        take(&mut b, there);
        for _ in 0..100 {
            assert!(b.cq.poll_one().is_none() && a.cq.poll_one().is_none());
        }
        for place in there..COUNT {
            b.receive(0, place, ROOM);
        }
        settle(&mut a, &mut b);
    }
}

/// Those before it are received, and those behind it are flushed.
#[test]
fn a_receive_that_is_too_short_for_its_message() {
    const COUNT: usize = 12;
    let random = &mut Random::new(9);
    for short in 0..COUNT {
        let (_here, _there, mut a, mut b) = sides(None);
        become_known(&mut a, &mut b, random);
        for place in 0..COUNT {
            b.receive(0, place, if place == short { 7 } else { 8 });
        }
        send_batch(&mut a, &mut b, COUNT, random);
        for place in 0..COUNT {
            let status = match place {
                _ if place < short => WcStatus::Success,
                _ if place == short => WcStatus::LocLenErr,
                _ => WcStatus::WrFlushErr,
            };
            let completion = wait(&mut b.cq);
            assert_eq!(
                (completion.wr_id, completion.status()),
                (place as u64, status)
            );
        }
        let at = wait(&mut a.cq);
        assert_eq!(at.status(), WcStatus::RemInvReqErr, "{short}");
    }
}

/// Many times round a completion queue that has room for little more than a batch.
#[test]
fn batches_in_a_small_completion_queue() {
    let (_here, _there, mut a, mut b) = sides(Some(16));
    for place in 0..RECEIVES {
        b.receive(0, place, ROOM);
    }
    let random = &mut Random::new(10);
    for _ in 0..2_000 {
        let count = 1 + random.below(14) as usize;
        send_batch(&mut a, &mut b, count, random);
        settle(&mut a, &mut b);
    }
}

/// The numbers of requests follow each other from one connection to the next, which are not taken for one.
#[test]
fn messages_of_several_connections_in_a_row() {
    let (_here, _there, mut a, mut b) = sides(None);
    let random = &mut Random::new(11);
    for connection in 0..CONNECTIONS {
        for place in 0..RECEIVES {
            b.receive(connection, place, ROOM);
        }
        for _ in 0..2 + connection {
            send(&mut a, &mut b, connection, (random.bytes(8), None), true);
            a.qps[connection].sq().ring();
            settle(&mut a, &mut b);
        }
    }
    for round in 0..200 {
        for connection in 0..CONNECTIONS {
            let message = (random.bytes(8), None);
            send(&mut a, &mut b, connection, message, round % 9 == 0);
            a.qps[connection].sq().ring();
        }
        if round % 4 == 0 {
            settle(&mut a, &mut b);
        }
    }
    settle(&mut a, &mut b);
}
