//! The server, and what its clients have to do.

use crate::client::{self, clock, monotonic};
use crate::message::{HELLO, process_of};
use crate::sleeper::{News, Sleeper};
use bellwire::Pd;
use bellwire::connect::tcp::{Connection, Listener};
use bellwire::fault::plan::EndReason;
use bellwire::link::LinkEnd;
use bellwire::soft::Mode;
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{DEADLINE, fabric_name, node, raise_descriptors};
use bellwire_tests::leftovers::Home;
use serde_json::json;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Processes of clients.
const PROCESSES: u64 = 6;

/// Messages of each link in a burst.
const MESSAGES: u64 = 20;

/// How long the server sleeps before it looks for new connections.
const TURN: Duration = Duration::from_millis(20);

/// Nothing has happened for so long: what links do to be connected is done.
const SETTLED: Duration = Duration::from_millis(300);

/// Nanoseconds within which an end has to be reported.
const SOON: u64 = 1_000_000_000;

fn from_environment(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    let number = text.parse();
    number.unwrap_or_else(|_| panic!("{name} is a number"))
}

/// How a link ended, as the server saw it.
struct Seen {
    name: u64,
    end: LinkEnd,
    at: u64,
}

/// A server that says again what it hears.
struct Server {
    sleeper: Sleeper,
    pd: Pd,
    arriving: Receiver<Connection>,
    /// What the clients call the links.
    names: HashMap<u64, u64>,
    seen: Vec<Seen>,
    answered: u64,
}

impl Server {
    fn turn(&mut self, timeout: Duration) {
        for connection in self.arriving.try_iter() {
            let exchange = connection.into_exchange().expect("an exchange");
            self.sleeper.add(&self.pd, exchange);
        }
        let (names, seen, answered) = (&mut self.names, &mut self.seen, &mut self.answered);
        self.sleeper.turn(timeout, |link, news| match news {
            News::Ready => None,
            News::Ended(end) => {
                seen.push(Seen {
                    name: names.remove(&link).expect("it has said who it is"),
                    end,
                    at: monotonic(),
                });
                None
            }
            News::Message(message) => {
                if message.count == HELLO {
                    names.insert(link, message.name);
                } else {
                    *answered += 1;
                }
                Some(message)
            }
        });
    }

    /// Serves until `done`, which waits for children, say.
    fn serve_while<T: Send>(&mut self, done: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let doing = scope.spawn(done);
            while !doing.is_finished() {
                self.turn(TURN);
            }
            doing.join().expect("what the clients report")
        })
    }

    /// Serves until so many ends were seen.
    fn serve_until_seen(&mut self, ends: usize) {
        let start = Instant::now();
        while self.seen.len() < ends {
            self.turn(TURN);
            let seen = self.seen.len();
            assert!(
                start.elapsed() < DEADLINE,
                "{seen} of {ends} ends are reported"
            );
        }
    }
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

pub fn play() {
    raise_descriptors();
    let idle = Duration::from_secs(from_environment("BELLWIRE_IDLE_SECONDS", 2));
    let each = from_environment("BELLWIRE_LINKS", 600) / PROCESSES;
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let device = node(&fabric, Mode::Inline);
    let pd = device.alloc_pd();
    let listener = Listener::bind(Some("127.0.0.1"), 0).expect("a port");
    let port = listener.port();
    let (sender, arriving) = channel();
    // It ends with the test.
    std::thread::spawn(move || {
        while let Ok(connection) = listener.accept(Duration::from_secs(3600)) {
            if sender.send(connection).is_err() {
                return;
            }
        }
    });
    let mut server = Server {
        // A process is started anew, perhaps before the ends of its links are seen.
        sleeper: Sleeper::new(&pd, (PROCESSES + 1) * each),
        pd,
        arriving,
        names: HashMap::new(),
        seen: Vec::new(),
        answered: 0,
    };
    let start = |process: u64| {
        let mut child = Child::start(client::ROLE, format!("process {process}"), &home.0);
        child.hear("started");
        child.send(
            "open",
            json!({"fabric": fabric, "port": port, "process": process, "links": each}),
        );
        child
    };
    let mut children: Vec<Child> = (0..PROCESSES).map(start).collect();
    server.serve_while(|| {
        for child in &mut children {
            child.hear("met");
        }
    });
    assert_eq!(server.names.len() as u64, PROCESSES * each);

    // Until all that came of it is seen to.
    let mut seen = None;
    while seen != Some(server.sleeper.wakes) {
        seen = Some(server.sleeper.wakes);
        let begin = Instant::now();
        while begin.elapsed() < SETTLED {
            server.turn(SETTLED.saturating_sub(begin.elapsed()));
        }
    }
    let (wakes, cpu) = (server.sleeper.wakes, cpu_time());
    let begin = Instant::now();
    while begin.elapsed() < idle {
        server.turn(idle.saturating_sub(begin.elapsed()));
    }
    let idle_wakes = server.sleeper.wakes - wakes;
    let idle_cpu = cpu_time() - cpu;

    let (wakes, cpu) = (server.sleeper.wakes, cpu_time());
    for child in &mut children {
        child.send("do", json!({"ask": MESSAGES}));
    }
    let answered = server.serve_while(|| {
        let answered = children.iter_mut().map(|child| child.hear("answered"));
        answered.flat_map(|count| count.as_u64()).sum::<u64>()
    });
    let burst_cpu = cpu_time() - cpu;
    let burst_wakes = server.sleeper.wakes - wakes;
    assert_eq!(answered, PROCESSES * each * MESSAGES);
    assert_eq!(server.answered, answered);

    // Under load: one closes half of its links, one is killed and comes back, and one is killed.
    for child in &mut children[3..] {
        child.send("do", json!({"ask": MESSAGES}));
    }
    children[0].send("do", json!({"close": each / 2}));
    let mut killed = HashMap::new();
    for process in [1, 2] {
        killed.insert(process as u64, monotonic());
        children[process].kill();
    }
    children[1] = start(PROCESSES);
    let (closed, answered) = server.serve_while(|| {
        let closed = children[0].hear("closed");
        children[1].hear("met");
        let answered = children[3..].iter_mut().map(|child| child.hear("answered"));
        (
            closed,
            answered.flat_map(|count| count.as_u64()).sum::<u64>(),
        )
    });
    assert_eq!(answered, (PROCESSES - 3) * each * MESSAGES);
    server.serve_until_seen((each / 2 + 2 * each) as usize);

    let closed: HashMap<u64, u64> = (closed.as_array().expect("a list").iter())
        .map(|of| {
            (
                of[0].as_u64().expect("a name"),
                of[1].as_u64().expect("a time"),
            )
        })
        .collect();
    let (mut slowest_close, mut slowest_death) = (0, 0);
    for Seen { name, end, at } in server.seen.drain(..) {
        match (closed.get(&name), killed.get(&process_of(name))) {
            (Some(began), None) => {
                assert_eq!(end.why(), Some(EndReason::PeerClosed), "{name:#x}");
                slowest_close = slowest_close.max(at.saturating_sub(*began));
            }
            (None, Some(began)) => {
                assert_eq!(end.why(), Some(EndReason::PeerLost), "{name:#x}");
                slowest_death = slowest_death.max(at.saturating_sub(*began));
            }
            _ => panic!("{name:#x} ended, and nobody ended it: {end}"),
        }
    }

    // Tests that are not optimized, beside others, may take longer.
    if cfg!(not(debug_assertions)) {
        let slowest = slowest_close.max(slowest_death);
        assert!(slowest < SOON, "an end is reported within {slowest} ns");
    }

    // Those who are left ask once more, the one who came back too, and go.
    children.remove(2);
    for child in &mut children {
        child.send("do", json!({"ask": MESSAGES}));
    }
    let left = server.names.len() as u64;
    let answered = server.serve_while(|| {
        let answered = children.iter_mut().map(|child| child.hear("answered"));
        answered.flat_map(|count| count.as_u64()).sum::<u64>()
    });
    assert_eq!(answered, left * MESSAGES);
    server.serve_while(|| {
        for mut child in children {
            child.send("do", json!({"close": each}));
            child.hear("closed");
            child.end();
        }
    });
    server.serve_until_seen(left as usize);
    for Seen { name, end, .. } in &server.seen {
        assert_eq!(end.why(), Some(EndReason::PeerClosed), "{name:#x}");
    }
    assert_eq!(server.sleeper.count(), 0);

    let messages = PROCESSES * each * MESSAGES;
    println!(
        "report: {} links in one epoll: idle for {} s with {idle_wakes} wake-ups and {:.1} ms of CPU; then \
         {:.1} us of CPU a message and {:.2} wake-ups, {messages} messages answered; a close is reported \
         within {:.0} ms, a death within {:.0} ms",
        PROCESSES * each,
        idle.as_secs(),
        milliseconds(idle_cpu),
        burst_cpu as f64 / 1e3 / messages as f64,
        burst_wakes as f64 / messages as f64,
        milliseconds(slowest_close),
        milliseconds(slowest_death),
    );
}

fn cpu_time() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}
