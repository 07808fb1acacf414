//! Models of a connection whose packets are read by two threads: one without the device's lock, and its holder, who opens
//! the connection, reads, and closes it. The turn, the section, both ends of the wire, and the number of the request that
//! is expected are as they are.

use super::super::name::Name;
use super::super::number::Number;
use super::super::wire::models::{bounded, link, turn};
use super::super::wire::{Header, InPlace, Reader, Writer};
use super::{Barriers, Reading, Section};
use crate::remote::Accepted;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::model::{Arc, UnsafeCell, longer, thread};
use crate::turn::Thread;
use std::any::Any;

/// One after the other. The second one needs the lock.
const MESSAGES: u16 = 3;
const RARE: u16 = 1;

const LIFE: u16 = 1;

/// Bytes of a packet.
const LENGTH: usize = 8;

/// The receive side of a queue pair.
struct Receive {
    /// Messages that it has received.
    count: u16,
    flushed: bool,
}

struct World {
    writer: Writer,
    reader: Reader,
    reading: Reading,
    /// That of the completion queue which the reader polls.
    polls: Section,
    accepted: Accepted,
    accepts: AtomicU32,
    /// Nothing, before the queue pair is in RTR.
    receive: UnsafeCell<Option<Receive>>,
    /// What is missing.
    without: Without,
    // Goes last.
    _memory: Box<dyn Any>,
}

// SAFETY: the models verify that accesses do not conflict.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Who closes does not wait for the reader's section.
    Waiting,
    /// Who holds the lock reads without the turn.
    Turn,
    /// The reader without the lock passes what it cannot handle.
    Order,
    /// The reader without the lock does not look whether a number is expected.
    Number,
}

const NAME: Name = Name::request(7, 5);

const POLLER: usize = 1;
const CONTROL: usize = 2;

impl World {
    /// A connection with its packets in the ring.
    fn new(without: Without, numbers: &[u16]) -> Arc<Self> {
        let (memory, sender, receiver) = link();
        let writer = Writer::new(sender);
        turn(&writer).restart(1, true);
        let world = Self {
            writer,
            reader: Reader::new(receiver),
            reading: Reading::default(),
            polls: Section::default(),
            accepted: Accepted::default(),
            accepts: AtomicU32::new(0),
            receive: UnsafeCell::new(None),
            without,
            _memory: Box::new(memory),
        };
        numbers.iter().for_each(|number| world.send(*number));
        Arc::new(world)
    }

    fn send(&self, msn: u16) {
        let header = Header::of(NAME, Number::new(LIFE, msn));
        let sent = turn(&self.writer).send_line(1, LENGTH, |_| header);
        assert!(sent.is_ok());
    }

    /// The receive side is set up, and the first request would be received under the lock.
    fn open(&self) {
        let fresh = Receive {
            count: 0,
            flushed: false,
        };
        // SAFETY: the models verify that this access does not conflict.
        (self.receive).with_mut(|receive| unsafe { *receive = Some(fresh) });
        (self.accepted.expected).set(Number::new(LIFE, 0), true);
        // Release: pairs with the Acquire in `accepts`.
        self.accepts.store(1, Ordering::Release);
    }

    fn accepts(&self) -> bool {
        // Acquire: pairs with the Release in `open`.
        self.accepts.load(Ordering::Acquire) == 1
    }

    fn receive(&self, msn: u16) {
        self.receive.with_mut(|receive| {
            // SAFETY: the models verify that this access does not conflict.
            let receive = unsafe { &mut *receive }.as_mut().expect("not open yet");
            assert!(!receive.flushed, "received after the flush");
            assert_eq!(receive.count, msn, "received in another order, or twice");
            receive.count += 1;
        });
    }

    /// As `Hca::read_unlocked`.
    fn read_unlocked(&self) {
        self.polls.enter(Barriers::get());
        if let Some(_reads) = self.reading.enter(Thread::of_model(POLLER)) {
            while let Some(line) = self.reader.next_line() {
                if !self.receive_unlocked(line) {
                    break;
                }
                line.done(LENGTH);
            }
            self.reader.publish();
        }
        self.polls.leave();
    }

    /// Waits for the reader.
    fn wait(&self) {
        self.reading.wait();
        self.polls.wait();
    }

    fn receive_unlocked(&self, line: InPlace<'_>) -> bool {
        let (number, expected) = (line.number(), &self.accepted.expected);
        if number.msn() == RARE {
            return self.without == Without::Order;
        }
        if !self.accepts() || !(expected.is_open_for(number) || self.without == Without::Number) {
            return false;
        }
        self.receive(number.msn());
        expected.pass();
        true
    }

    /// As `Hca::read`, by the holder of the lock, up to the packet of this number: what is not accepted is dropped, and so is a
    /// duplicate.
    fn read_under_lock(&self, last: u16) {
        let _reads = (self.without != Without::Turn).then(|| {
            let turn = (self.reading.turn()).take_away(Thread::of_model(CONTROL), || self.wait());
            self.reading.with(turn)
        });
        while let Some(line) = self.reader.next_line() {
            let (number, expected) = (line.number(), &self.accepted.expected);
            if self.accepts() && expected.get() == Some(number) {
                self.receive(number.msn());
                expected.set(number.next(), true);
            }
            line.done(LENGTH);
            if number.msn() == last {
                break;
            }
        }
        self.reader.publish();
    }

    /// As `Hca::take_out` does: from here on, this thread owns the receive side.
    fn close(&self) {
        // Relaxed: the barrier orders it before what follows.
        self.accepts.store(0, Ordering::Relaxed);
        Barriers::get().heavy();
        if self.without != Without::Waiting {
            self.wait();
        }
        self.receive.with_mut(|receive| {
            // SAFETY: the models verify that this access does not conflict.
            let receive = unsafe { &mut *receive }.as_mut().expect("it was opened");
            receive.flushed = true;
        });
    }

    fn count(&self) -> u16 {
        // SAFETY: the other thread has ended.
        let count = |receive: &Option<Receive>| receive.as_ref().map_or(0, |it| it.count);
        self.receive.with(|receive| count(unsafe { &*receive }))
    }
}

/// A poll of another thread, while the holder of the lock does this.
fn beside(world: &Arc<World>, polls: u32, locked: impl FnOnce(&World)) {
    let poller = {
        let world = world.clone();
        thread::spawn(move || (0..polls).for_each(|_| world.read_unlocked()))
    };
    locked(world);
    poller.join().unwrap();
}

/// All that was sent is received once, and in its order, whoever reads it.
fn both_read(without: Without) {
    bounded(2, move || {
        let world = World::new(without, &[0, RARE]);
        beside(&world, 2, |world| {
            world.open();
            world.read_under_lock(RARE);
            world.send(2);
            world.read_under_lock(MESSAGES);
        });
        // What nobody has read meanwhile is still there.
        world.read_under_lock(MESSAGES);
        assert_eq!(world.count(), MESSAGES, "lost");
    });
}

/// Once the connection is closed and flushed, nothing is received any more.
fn closed(without: Without) {
    bounded(2, move || {
        let world = World::new(without, &[0, RARE]);
        beside(&world, 2, |world| {
            world.open();
            world.read_under_lock(RARE);
            world.send(2);
            world.close();
        });
        let received = world.count();
        world.send(received);
        world.read_unlocked();
        world.read_under_lock(MESSAGES);
        assert_eq!(world.count(), received, "received after the flush");
    });
}

/// A request that is sent again is received once.
fn sent_again(without: Without) {
    bounded(2, move || {
        let world = World::new(without, &[0, 0]);
        beside(&world, 1, |world| {
            world.open();
            world.read_under_lock(MESSAGES);
        });
        world.read_under_lock(MESSAGES);
        assert_eq!(world.count(), 1, "lost");
    });
}

#[test]
fn loom_both_ways_of_reading_keep_one_order() {
    both_read(Without::Nothing);
}

#[test]
fn loom_what_is_closed_receives_nothing() {
    closed(Without::Nothing);
}

#[test]
fn loom_what_is_sent_again_is_received_once() {
    sent_again(Without::Nothing);
}

#[cfg(loom)]
#[test]
fn loom_both_ways_of_reading_need_each_ordering() {
    use crate::sync::needs_orderings;
    let models: [fn(); 2] = [
        loom_both_ways_of_reading_keep_one_order,
        loom_what_is_closed_receives_nothing,
    ];
    needs_orderings(&models, "fabric/reading/models.rs", &[]);
    needs_orderings(&models, "soft/src/turn.rs", &[]);
}

#[test]
#[should_panic]
#[cfg_attr(miri, ignore = "a race, which ends Miri")]
fn loom_closing_has_to_wait_for_the_reader() {
    longer(|| closed(Without::Waiting));
}

#[test]
#[should_panic]
#[cfg_attr(miri, ignore = "a race, which ends Miri")]
fn loom_the_lock_alone_does_not_make_a_reader() {
    longer(|| both_read(Without::Turn));
}

#[test]
#[should_panic(expected = "lost")]
fn loom_what_needs_the_lock_may_not_be_passed() {
    longer(|| both_read(Without::Order));
}

#[test]
#[should_panic]
fn loom_numbers_tell_what_was_sent_again() {
    longer(|| sent_again(Without::Number));
}
