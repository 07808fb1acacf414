//! A process of clients: links to the server that ask, and hear the answers.

use crate::message::{HELLO, Message, name};
use crate::sleeper::{News, Sleeper};
use bellwire::connect::tcp::Connection;
use bellwire::soft::Mode;
use bellwire_tests::fixture::{DEADLINE, node};
use bellwire_tests::parent::{Parent, number};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

/// What it is started as.
pub const ROLE: &str = "clients";

/// How long it sleeps before it listens to the parent.
const TURN: Duration = Duration::from_millis(5);

/// Nanoseconds since some moment that is the same for all processes.
pub fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of a clock.
pub fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: one entry.
    assert_eq!(unsafe { libc::clock_gettime(clock, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[derive(Default)]
struct Tally {
    met: usize,
    /// Messages of each link that are to be asked, and how many of them were answered.
    to_ask: u64,
    answered: HashMap<u64, u64>,
}

impl Tally {
    fn hear(&mut self, process: u64, link: u64, news: News) -> Option<Message> {
        let ask = |count| {
            Some(Message {
                name: name(process, link),
                count,
            })
        };
        match news {
            News::Ready => ask(HELLO),
            News::Ended(end) => panic!("{link} of {process}: {end}"),
            News::Message(message) => {
                assert_eq!(message.name, name(process, link), "somebody else's answer");
                if message.count == HELLO {
                    self.met += 1;
                    return None;
                }
                let answered = self.answered.entry(link).or_default();
                assert_eq!(message.count, *answered, "an answer of {link} is lost");
                *answered += 1;
                let next = *answered;
                (next < self.to_ask).then(|| ask(next)).flatten()
            }
        }
    }

    fn is_answered(&self, links: usize) -> bool {
        self.answered.len() == links && self.answered.values().all(|count| *count == self.to_ask)
    }
}

pub fn play() {
    let parent = Parent::start();
    parent.say("started", Value::Null);
    let order = parent.hear("open");
    let (process, links) = (number(&order, "process"), number(&order, "links"));
    let port = number(&order, "port") as u16;
    let device = node(order["fabric"].as_str().expect("a name"), Mode::Inline);
    let pd = device.alloc_pd();
    let mut sleeper = Sleeper::new(&pd, links);
    let mut tally = Tally::default();
    for _ in 0..links {
        let connection = Connection::connect("127.0.0.1", port, DEADLINE).expect("the server");
        sleeper.add(&pd, connection.into_exchange().expect("an exchange"));
    }
    while tally.met < links as usize {
        sleeper.turn(TURN, |link, news| tally.hear(process, link, news));
    }
    parent.say("met", Value::Null);
    let mut asking = false;
    loop {
        sleeper.turn(TURN, |link, news| tally.hear(process, link, news));
        if asking && tally.is_answered(sleeper.count()) {
            asking = false;
            let answered: u64 = tally.answered.values().sum();
            parent.say("answered", json!(answered));
        }
        let Some(order) = parent.heard("do") else {
            continue;
        };
        if let Some(messages) = order["ask"].as_u64() {
            asking = true;
            tally.to_ask = messages;
            tally.answered.clear();
            sleeper.say(|link| Message {
                name: name(process, link),
                count: 0,
            });
        }
        if let Some(count) = order["close"].as_u64() {
            let mut closed = Vec::new();
            sleeper.close(count as usize, |link, at| {
                closed.push(json!([name(process, link), at]));
            });
            parent.say("closed", Value::Array(closed));
            if sleeper.count() == 0 {
                return parent.wait_for_end();
            }
        }
    }
}
