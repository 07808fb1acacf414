//! An echo server under many clients, in several processes, that connect, exchange and vanish at
//! random, while processes are killed. Of `processes`, on the software HCA, and of `rdmacm`.

use bellwire::connect::cm::EventChannel;
use bellwire_examples::echo::{Client, Served, Server};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{Random, until};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, number};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a process of clients is started as.
pub const ROLE: &str = "clients";

/// Between two processes that are killed, on average.
const KILLED_EVERY: Duration = Duration::from_millis(700);

/// How long a client waits at each step: far longer than it has to, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server waits for at a time.
const TURN: Duration = Duration::from_millis(5);

/// Where the server is.
#[derive(Clone)]
pub struct Place {
    /// For [`EventChannel::open`].
    pub provider: String,
    pub host: String,
    pub port: u16,
}

pub struct Storm {
    pub place: Place,
    pub processes: u64,
    /// Clients of each process.
    pub each: u64,
    /// How long it goes on.
    pub lasts: Duration,
    /// Connections that one client makes when there is no other.
    pub alone: u64,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// All of it, to the end.
    Disconnects,
    /// Goes when it has asked.
    Asks,
    /// Goes when it is connected.
    Connects,
    /// Goes when it has sent some messages.
    Sends,
    /// Does not want the connection that it is given.
    Rejects,
}

const FATES: [Fate; 8] = [
    Fate::Disconnects,
    Fate::Disconnects,
    Fate::Disconnects,
    Fate::Disconnects,
    Fate::Asks,
    Fate::Connects,
    Fate::Sends,
    Fate::Rejects,
];

/// The median, and what 99 of 100 are not above.
fn parts(mut micros: Vec<u64>) -> [u64; 2] {
    micros.sort_unstable();
    [50, 99].map(|of| micros[(micros.len() - 1) * of / 100])
}

fn serve(server: &mut Server) {
    server.turn(TURN).expect("a server");
}

impl Storm {
    /// Has it rage, to its end. `begun` is called when one client has made the server make what it keeps.
    /// Gives what there is to report.
    pub fn rage<B>(
        &self,
        server: &mut Server,
        home: &Home,
        begun: impl FnOnce() -> B,
    ) -> (B, String) {
        let alone = self.alone(server);
        let begun = begun();
        let mut killed = 0;
        let mut children: Vec<Child> = (0..self.processes)
            .map(|seed| self.start(seed, home))
            .collect();
        let mut random = Random::new(1);
        let begin = Instant::now();
        let mut kill_at = begin + KILLED_EVERY;
        while begin.elapsed() < self.lasts {
            serve(server);
            if Instant::now() >= kill_at {
                let victim = random.below(self.processes) as usize;
                children[victim].kill();
                children[victim] = self.start(self.processes + killed, home);
                killed += 1;
                let pause = random.below(2 * KILLED_EVERY.as_millis() as u64);
                kill_at += Duration::from_millis(pause);
            }
        }
        (children.iter_mut()).for_each(|child| child.send("stop", Value::Null));
        let measured = std::thread::scope(|scope| {
            // The last clients want to be served.
            let hearing = scope.spawn(|| {
                let measured = children.iter_mut().map(|child| child.hear("measured"));
                measured.collect::<Vec<_>>()
            });
            while !hearing.is_finished() {
                serve(server);
            }
            hearing.join().expect("what the clients have measured")
        });
        children.into_iter().for_each(Child::end);
        until("the end of the last connection", || {
            serve(server);
            server.open() == 0
        });
        let served = server.served();
        assert_eq!(server.blocks_out(), 0);
        assert_eq!(served.posted, served.reported);
        assert!(killed > 0 && served.vanished > 0, "{served:?}");
        let micros = (measured.iter())
            .flat_map(|measured| measured["micros"].as_array().expect("a list"))
            .flat_map(Value::as_u64);
        (begun, self.report(&served, killed, alone, micros.collect()))
    }

    fn report(&self, served: &Served, killed: u64, alone: u64, micros: Vec<u64>) -> String {
        let [median, most] = parts(micros);
        format!(
            "{} clients at a time, {} connected, {} vanished while connecting, {killed} processes with {} \
             each killed; to connect took {median} us (median) and {most} us (99 of 100), without the \
             others {alone} us",
            self.processes * self.each,
            served.clients,
            served.vanished,
            self.each,
        )
    }

    fn start(&self, seed: u64, home: &Home) -> Child {
        let mut child = Child::start(ROLE, format!("clients of seed {seed}"), &home.0);
        let Place {
            provider,
            host,
            port,
        } = &self.place;
        child.send(
            "go",
            json!({"provider": provider, "host": host, "port": port, "each": self.each, "seed": seed}),
        );
        child
    }

    /// Microseconds that one client needs to connect when there is no other, at its median.
    fn alone(&self, server: &mut Server) -> u64 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let micros = (0..self.alone).map(|_| self.place.whole()).collect();
                // Relaxed: a flag on its own.
                done.store(true, Ordering::Relaxed);
                parts(micros)[0]
            });
            // Relaxed: a flag on its own.
            while !(done.load(Ordering::Relaxed) && server.open() == 0) {
                serve(server);
            }
            client.join().expect("a client")
        })
    }
}

fn exchange(client: &mut Client, messages: u64) {
    for message in 0..messages {
        let bytes = message.to_ne_bytes().repeat(8);
        client.send(&bytes).expect("room");
        assert_eq!(client.receive().expect("an echo"), bytes);
    }
}

impl Place {
    fn ask(&self) -> Client {
        let channel = EventChannel::open(&self.provider).expect("a channel");
        let server = (self.host.as_str(), self.port);
        Client::ask(channel, server, PATIENCE).expect("a way to the server")
    }

    /// A client that does all of it: what connecting took.
    fn whole(&self) -> u64 {
        let begin = Instant::now();
        let mut client = self.ask();
        client.establish().expect("an answer");
        let micros = begin.elapsed().as_micros() as u64;
        exchange(&mut client, 1);
        client.disconnect().expect("the end");
        micros
    }

    /// One client after the other: what connecting took each.
    fn lives(&self, mut random: Random, stop: &AtomicBool) -> Vec<u64> {
        let mut micros = Vec::new();
        // Relaxed: a flag on its own.
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(random.below(2000)));
            let fate = FATES[random.below(FATES.len() as u64) as usize];
            let begin = Instant::now();
            let mut client = self.ask();
            match fate {
                Fate::Asks => continue,
                Fate::Rejects => {
                    client.await_response().expect("an answer");
                    client.reject().expect("somebody who has answered");
                    continue;
                }
                Fate::Disconnects | Fate::Connects | Fate::Sends => {}
            }
            client.establish().expect("an answer");
            micros.push(begin.elapsed().as_micros() as u64);
            match fate {
                Fate::Disconnects => {
                    exchange(&mut client, random.below(8));
                    client.disconnect().expect("the end");
                }
                Fate::Sends => {
                    exchange(&mut client, random.below(3));
                    client.send(b"is not waited for").expect("room");
                }
                _ => {}
            }
        }
        micros
    }
}

/// A process of clients.
pub fn play() {
    let parent = Parent::start();
    let order = parent.hear("go");
    let text = |key: &str| order[key].as_str().expect("a name").to_owned();
    let place = Place {
        provider: text("provider"),
        host: text("host"),
        port: number(&order, "port") as u16,
    };
    let (seed, each) = (number(&order, "seed"), number(&order, "each"));
    let stop = AtomicBool::new(false);
    let micros = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..each)
            .map(|client| {
                let (place, stop) = (&place, &stop);
                let random = Random::new(seed * each + client);
                scope.spawn(move || place.lives(random, stop))
            })
            .collect();
        parent.hear("stop");
        // Relaxed: a flag on its own.
        stop.store(true, Ordering::Relaxed);
        let micros = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a client"));
        micros.collect::<Vec<u64>>()
    });
    parent.say("measured", json!({ "micros": micros }));
    parent.wait_for_end();
}
