//! Short messages between nodes of a fabric into a shared receive queue, of connections that have been received from before:
//! several beside each other, with too few receives, one that is too short, memory that is taken away, and events.

use super::fabric_batches::{Message, message};
use bellwire::be::Be32;
use bellwire::event::{Element, EventType};
use bellwire::queue::Imm;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Cq, CqInit, Device, Error, Pd, Qp, Region, Srq, SrqInit};
use bellwire_tests::fixture::*;
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::time::Instant;

const CONNECTIONS: usize = 3;
const RECEIVES: usize = 31;

/// Bytes of a receive.
const ROOM: usize = 256;

/// The end that receives into one queue.
struct Receiver {
    pd: Pd,
    srq: Srq,
    /// Of each connection; the last one has a completion queue of its own.
    qps: Vec<Qp>,
    cqs: [Cq; 2],
    region: Region,
    /// What each connection was sent, and has not received.
    expected: HashMap<u32, VecDeque<Message>>,
    /// Sends that have not completed.
    left: usize,
}

struct Sender {
    qps: Vec<Qp>,
    cq: Cq,
    region: Region,
    /// Signalled sends, and receives, that have not completed.
    left: usize,
}

struct World {
    from: Sender,
    to: Receiver,
    there: Device,
    _here: Device,
}

fn flags(signalled: bool) -> SendFlags {
    match signalled {
        true => SIGNALED,
        false => SendFlags::empty(),
    }
}

impl World {
    fn new() -> Self {
        let fabric = fabric_name();
        let (here, there) = (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline));
        Self::of(here, there, |there| {
            there.create_cq(512).expect("a completion queue")
        })
    }

    /// `cq` makes the completion queue of all connections but the last.
    fn of(here: Device, there: Device, cq: impl FnOnce(&Device) -> Cq) -> Self {
        let init = init();
        let (pd, far) = (here.alloc_pd(), there.alloc_pd());
        let srq = SrqInit {
            max_wr: RECEIVES as u32,
            ..SrqInit::default()
        };
        let srq = far.create_srq(&srq).expect("a queue");
        let mut cqs = [cq(&there), there.create_cq(512).expect("a queue")];
        let on_srq = |at| {
            let cq = &mut cqs[usize::from(at == CONNECTIONS - 1)];
            far.create_qp_on_srq(cq, &srq, &init).expect("a queue pair")
        };
        let mut to: Vec<Qp> = (0..CONNECTIONS).map(on_srq).collect();
        let mut cq = here.create_cq(512).expect("a completion queue");
        let qp = |_| pd.create_qp(&mut cq, &init).expect("a queue pair");
        let mut from: Vec<Qp> = (0..CONNECTIONS).map(qp).collect();
        let attr = ConnectAttr {
            // Nothing is sent again: each acknowledgement has to arrive.
            timeout: 0,
            rnr_retry: 7,
            min_rnr_timer: 1,
            ..ConnectAttr::default()
        };
        for (a, b) in from.iter_mut().zip(&mut to) {
            connect_with(a, b, &attr);
        }
        let expected = to.iter().map(|qp| (qp.qp_num(), VecDeque::new()));
        let to = Receiver {
            expected: expected.collect(),
            region: region(&far, RECEIVES * ROOM),
            pd: far,
            srq,
            qps: to,
            cqs,
            left: 0,
        };
        let from = Sender {
            qps: from,
            region: region(&pd, ROOM),
            cq,
            left: 0,
        };
        Self {
            from,
            to,
            there,
            _here: here,
        }
    }

    /// Stages a message to this connection.
    fn stage(&mut self, connection: usize, message: Message, signalled: bool) {
        let flags = flags(signalled);
        let mut sq = self.from.qps[connection].sq();
        let posted = match message.1.map(Be32::new) {
            None => sq.post_inline(1, (), Send {}, &message.0, flags),
            Some(imm) => sq.post_inline(1, (), SendWithImm { imm }, &message.0, flags),
        };
        posted.expect("room");
        self.from.left += usize::from(signalled);
        let qp_num = self.to.qps[connection].qp_num();
        let expected = self.to.expected.get_mut(&qp_num).expect("its own");
        expected.push_back(message);
    }

    fn ring(&mut self, connection: usize) {
        self.from.qps[connection].sq().ring();
    }

    fn send(&mut self, connection: usize, message: Message, signalled: bool) {
        self.stage(connection, message, signalled);
        self.ring(connection);
    }

    /// Sends a message in the other direction. If it is not signalled, a packet of a later message carries its
    /// acknowledgement.
    fn send_back(&mut self, connection: usize, signalled: bool) {
        let room = self.from.region.sge(0, 8);
        let qp = &mut self.from.qps[connection];
        post_recv(qp, 2, &[room]).expect("room");
        qp.rq().ring();
        let mut sq = self.to.qps[connection].sq();
        let posted = sq.post_inline(3, (), Send {}, &[7; 8], flags(signalled));
        posted.expect("room");
        sq.ring();
        self.from.left += 1;
        self.to.left += usize::from(signalled);
    }

    /// Polls until everything has arrived; each receive is posted again if it `refills`.
    fn settle(&mut self, refills: bool) {
        let start = Instant::now();
        while self.from.left != 0 || !self.to.is_settled() {
            self.to.poll(7, refills);
            self.from.poll();
            assert!(start.elapsed() < DEADLINE, "something never completes");
        }
    }

    /// Messages of all connections, until they are received by what was checked before. No receive is left.
    fn become_known(&mut self, random: &mut Random) {
        for _ in 0..4 {
            for connection in 0..CONNECTIONS {
                self.to.receive(0, 8);
                self.send(connection, (random.bytes(8), None), true);
                self.settle(false);
            }
        }
    }
}

impl Sender {
    fn poll(&mut self) {
        let left = &mut self.left;
        self.cq.poll(7, |completion| {
            assert_eq!(completion.status(), WcStatus::Success, "{completion:?}");
            *left -= 1;
        });
    }
}

impl Receiver {
    /// Posts a receive of so many bytes at this place.
    fn receive(&mut self, place: usize, length: usize) {
        self.region.write(place * ROOM, &[0xee; ROOM]);
        let sge = self.region.sge(place * ROOM, length as u32);
        // SAFETY: the region outlives the queue.
        unsafe { self.srq.post(place as u64, &[sge]) }.expect("room");
        self.srq.ring();
    }

    fn is_settled(&self) -> bool {
        self.left == 0 && self.expected.values().all(VecDeque::is_empty)
    }

    /// Polls each completion queue once. Each receive has to be of the next message of its connection.
    fn poll(&mut self, limit: usize, refills: bool) {
        let mut done = Vec::new();
        for cq in &mut self.cqs {
            cq.poll(limit, |completion| done.push(completion));
        }
        for completion in done {
            assert_eq!(completion.status(), WcStatus::Success, "{completion:?}");
            let success = completion.result.expect("just so");
            let Some(length) = success.byte_len() else {
                self.left -= 1;
                continue;
            };
            let expected = self.expected.get_mut(&completion.qp_num);
            let next = expected.expect("one of these").pop_front();
            let (data, imm) = next.expect("one was sent");
            assert_eq!(length as usize, data.len());
            let imm = imm.map_or(Imm::None, |imm| Imm::Data(Be32::new(imm)));
            assert_eq!(success.imm(), imm);
            let place = completion.wr_id as usize;
            let mut there = [0; ROOM];
            self.region.read(place * ROOM, &mut there);
            assert!(there.starts_with(&data), "{data:?} came otherwise");
            assert!(there[data.len()..].iter().all(|byte| *byte == 0xee));
            if refills {
                self.receive(place, ROOM);
            }
        }
    }
}

/// Of several connections, on two completion queues, one by one and in batches, and with messages in the other direction, so
/// that packets carry acknowledgements.
#[test]
fn messages_of_several_connections_into_one_queue() {
    let mut world = World::new();
    (0..RECEIVES).for_each(|place| world.to.receive(place, ROOM));
    let random = &mut Random::new(21);
    for _ in 0..if cfg!(debug_assertions) {
        2_000
    } else {
        10_000
    } {
        let connection = random.below(CONNECTIONS as u64) as usize;
        if random.below(4) == 0 {
            let signalled = random.below(3) == 0;
            world.send_back(connection, signalled);
        }
        for left in (0..1 + random.below(4)).rev() {
            let signalled = left == 0 || random.below(3) == 0;
            world.stage(connection, message(random), signalled);
        }
        world.ring(connection);
        match random.below(3) {
            0 => world.to.poll(1 + random.below(9) as usize, true),
            _ => world.settle(true),
        }
    }
    world.settle(true);
}

/// Those that find a receive are received, and the others when one is posted.
#[test]
fn messages_that_find_no_receive() {
    let mut world = World::new();
    let random = &mut Random::new(22);
    world.become_known(random);
    for round in 0..20 {
        for connection in 0..CONNECTIONS {
            for _ in 0..2 {
                world.send(connection, (random.bytes(8), None), false);
            }
        }
        for place in 0..2 * CONNECTIONS {
            if round % 2 == 0 {
                (0..50).for_each(|_| world.to.poll(4, false));
            }
            world.to.receive(place, 8);
        }
        world.settle(false);
    }
}

/// Sends a message that its receive does not take, and returns the statuses of both.
fn refused(world: &mut World, connection: usize) -> [WcStatus; 2] {
    let mut sq = world.from.qps[connection].sq();
    let none = SendFlags::empty();
    let posted = sq.post_inline(1, (), Send {}, &[7; 8], none);
    posted.expect("room");
    sq.ring();
    let received = wait(&mut world.to.cqs[0]);
    [wait(&mut world.from.cq).status(), received.status()]
}

/// The other connections go on with the receives behind it.
#[test]
fn a_receive_that_is_too_short_for_its_message() {
    let mut world = World::new();
    let random = &mut Random::new(23);
    world.become_known(random);
    world.to.receive(0, 7);
    let statuses = refused(&mut world, 0);
    assert_eq!(statuses, [WcStatus::RemInvReqErr, WcStatus::LocLenErr]);
    for connection in 1..CONNECTIONS {
        world.to.receive(1, 8);
        world.send(connection, (random.bytes(8), None), false);
        world.settle(false);
    }
}

/// What was known of a key is not used once it is taken away: nothing is written there.
#[test]
fn memory_that_is_taken_away() {
    let mut world = World::new();
    let random = &mut Random::new(24);
    world.become_known(random);
    let memory = NonNull::new(world.to.region.mapping().as_ptr()).expect("mapped");
    // SAFETY: the region outlives it.
    let mr = unsafe { world.to.pd.register(memory, RECEIVES * ROOM, ALL) }.expect("a key");
    let mut sge = world.to.region.sge(0, 8);
    sge.lkey = mr.lkey();
    let post = |world: &mut World| {
        // SAFETY: as above.
        unsafe { world.to.srq.post(0, &[sge]) }.expect("room");
        world.to.srq.ring();
    };
    for _ in 0..4 {
        world.to.region.write(0, &[0xee; ROOM]);
        post(&mut world);
        world.send(0, (random.bytes(8), None), false);
        world.settle(false);
    }
    world.to.region.write(0, &[0xee; ROOM]);
    post(&mut world);
    assert!(mr.deregister().is_ok());
    let statuses = refused(&mut world, 0);
    assert_eq!(statuses, [WcStatus::RemOpErr, WcStatus::LocProtErr]);
    let mut there = [0; ROOM];
    world.to.region.read(0, &mut there);
    assert_eq!(there, [0xee; ROOM]);
}

/// The receive that leaves fewer than the limit raises the event, whichever way it is consumed.
#[test]
fn the_limit_is_reached() {
    let mut world = World::new();
    world
        .there
        .set_async_nonblocking(true)
        .expect("its descriptor");
    let random = &mut Random::new(25);
    world.become_known(random);
    (0..8).for_each(|place| world.to.receive(place, 8));
    world.to.srq.modify(6).expect("a limit");
    for sent in 1..=8 {
        world.send(sent % CONNECTIONS, (random.bytes(8), None), false);
        world.settle(false);
        let event = world.there.get_async_event();
        if sent == 3 {
            let event = event.expect("it is reached");
            let srq = Element::Srq(world.to.srq.srq_num());
            assert_eq!(
                (event.event_type(), event.element()),
                (EventType::SrqLimitReached, srq)
            );
        } else {
            assert!(matches!(event, Err(Error::WouldBlock)), "{sent}: {event:?}");
        }
    }
}

/// An armed completion queue raises its event for such a message.
#[test]
fn an_armed_queue_raises_its_event() {
    let fabric = fabric_name();
    let (here, there) = (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline));
    let channel = there.create_comp_channel().expect("a channel");
    channel.set_nonblocking(true).expect("its descriptor");
    let mut world = World::of(here, there, |there| {
        let on_channel = CqInit {
            channel: Some(&channel),
            ..CqInit::new(512)
        };
        there.create_cq_with(&on_channel).expect("a queue")
    });
    let random = &mut Random::new(26);
    world.become_known(random);
    for number in 0..60 {
        let arms = number % 3 == 0;
        if arms {
            world.to.cqs[0].req_notify(false).expect("it has a channel");
        }
        world.to.receive(0, 8);
        world.send(number % 2, (random.bytes(8), None), number % 7 == 0);
        world.settle(false);
        if arms {
            until("an event", || channel.get_cq_event().is_ok());
        }
        assert!(matches!(channel.get_cq_event(), Err(Error::WouldBlock)));
    }
}
