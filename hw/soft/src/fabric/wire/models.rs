//! Models of the wire: both of its ends as they are, on a ring of few lines.

use super::super::shared::Words;
use super::*;
use crate::sync::atomic::{AtomicBool, fence};
use crate::sync::model::{Arc, longer, thread};

/// Goes round the ring, so that lines are written again.
const PACKETS: u16 = LINES as u16 + 2;

const NAME_OF_ALL: Name = Name::request(7, 5);

/// Two nodes, of which one sends.
struct World {
    writer: Writer,
    reader: Reader,
    sender: Segments,
    receiver: Segments,
    woken: AtomicBool,
    // Goes last.
    _memory: Arc<[Words; 2]>,
}

/// The memory of a link, and what two nodes make of it, which must not outlive that.
pub(in super::super) fn link() -> (Arc<[Words; 2]>, Segments, Segments) {
    let memory = Arc::new([Words::new(), Words::new()]);
    let [ours, theirs] = [memory[0].at(), memory[1].at()];
    let sender = Segments { ours, theirs };
    let receiver = Segments {
        ours: theirs,
        theirs: ours,
    };
    (memory, sender, receiver)
}

/// The turn to send, of the one thread that does.
pub(in super::super) fn turn(writer: &Writer) -> Sending<'_> {
    let turn = writer.turn().try_take(Thread::of_model(1));
    writer.with(turn.expect("one thread sends"))
}

impl World {
    fn new() -> Arc<Self> {
        let (memory, sender, receiver) = link();
        let writer = Writer::new(sender);
        turn(&writer).restart(1, true);
        Arc::new(Self {
            writer,
            reader: Reader::new(receiver),
            sender,
            receiver,
            woken: AtomicBool::new(false),
            _memory: memory,
        })
    }

    fn send(&self, msn: u16) -> bool {
        let number = Number::new(1, msn);
        let header = Header {
            ack: Some(number),
            ..Header::of(NAME_OF_ALL, number)
        };
        let sent = turn(&self.writer).send_line(1, 40, |front| {
            (0..5).for_each(|at| front.set(at, u64::from(msn) << 32 | at as u64));
            header
        });
        sent.is_ok()
    }

    fn take(&self, msn: u16) -> bool {
        let Some(line) = self.reader.next_line() else {
            return false;
        };
        let number = Number::new(1, msn);
        let header = (line.name(), line.number(), line.size().len());
        assert_eq!(header, (NAME_OF_ALL, number, 40));
        assert_eq!(line.ack(), Some(number));
        for at in 0..5 {
            assert_eq!(line.wide(at * 8), u64::from(msn) << 32 | at as u64);
        }
        line.done(40);
        self.reader.publish();
        true
    }
}

/// Runs a model. With so many preemptions what is missing shows in loom.
pub(in super::super) fn bounded(
    #[cfg_attr(miri, expect(unused, reason = "Miri runs it by chance"))] preemptions: usize,
    model: impl Fn() + Sync + std::marker::Send + 'static,
) {
    #[cfg(miri)]
    crate::sync::model::check(model);
    #[cfg(loom)]
    {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }
}

#[test]
fn loom_packets_arrive_whole_and_in_order() {
    bounded(1, || {
        let world = World::new();
        let sender = {
            let world = world.clone();
            thread::spawn(move || {
                for msn in 0..PACKETS {
                    while !world.send(msn) {
                        thread::yield_now();
                    }
                }
            })
        };
        for msn in 0..PACKETS {
            while !world.take(msn) {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
        assert!(!world.reader.ready() && world.writer.all_read());
    });
}

#[cfg(loom)]
#[test]
fn loom_packets_need_each_ordering() {
    use crate::sync::needs_orderings;
    let models: [fn(); 1] = [loom_packets_arrive_whole_and_in_order];
    needs_orderings(&models, "fabric/wire.rs", &[]);
    needs_orderings(&models, "fabric/segment.rs", &[]);
}

/// A packet, and a node that is about to sleep.
fn a_packet_wakes(light: bool, heavy: bool) {
    bounded(1, move || {
        let world = World::new();
        let sender = {
            let world = world.clone();
            thread::spawn(move || {
                assert!(world.send(0));
                // As `after_send` does.
                if light {
                    fence(Ordering::SeqCst);
                }
                if world.sender.wants_attention() {
                    world.woken.store(true, Ordering::Relaxed);
                }
            })
        };
        // As `attend` does.
        world.receiver.set_attention(true);
        if heavy {
            fence(Ordering::SeqCst);
        }
        let taken = world.take(0);
        sender.join().unwrap();
        let woken = world.woken.load(Ordering::Relaxed);
        assert!(taken || woken, "slept through");
    });
}

#[test]
fn loom_a_packet_wakes_who_is_about_to_sleep() {
    a_packet_wakes(true, true);
}

/// The model detects a sender without a barrier.
#[test]
#[should_panic(expected = "slept through")]
fn loom_sending_needs_its_barrier() {
    longer(|| a_packet_wakes(false, true));
}

/// The model detects a sleeper without a barrier.
#[test]
#[should_panic(expected = "slept through")]
fn loom_sleeping_needs_its_barrier() {
    longer(|| a_packet_wakes(true, false));
}
