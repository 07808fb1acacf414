//! An echo server under 200 clients, in several processes, that connect, exchange and vanish at
//! random, while processes are killed: nothing of them stays, and every request is told.

use crate::child::Child;
use crate::leftovers::{Holdings, Home, sockets};
use crate::parent::{Parent, number};
use bellwire::connect::cm::{EventChannel, Peer};
use bellwire_examples::echo::{Client, Server};
use bellwire_tests::fixture::{Random, fabric_name, until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a process of clients is started as.
pub const ROLE: &str = "clients";

/// Processes, and clients of each.
const PROCESSES: u64 = 10;
const EACH: u64 = 20;

/// Connections that the server has at a time: of those who vanish it has to be told first.
const MOST: u32 = 1024;

/// How long it goes on.
const STORM: Duration = Duration::from_secs(15);

/// Between two processes that are killed, on average.
const KILLED_EVERY: Duration = Duration::from_millis(700);

/// How long a client waits at each step: far longer than it has to, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name and the port of the server.
const NAME: &str = "storm";
const PORT: u16 = 7471;

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

/// The test.
pub fn clients() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let before = Holdings::of(std::process::id());
    let channel = EventChannel::open(&format!("soft:{fabric}")).expect("a channel");
    let at = Peer::from((NAME, PORT));
    let mut server = Server::new(channel, at, MOST).expect("a server");
    let alone = alone(&fabric, &mut server);
    // From here on there is what the first client has made the server make.
    let listening = Holdings::of(std::process::id());
    let start = |seed: u64| {
        let mut child = Child::start(ROLE, format!("clients of seed {seed}"), &home.0);
        child.tell("go", json!({"fabric": fabric, "seed": seed}));
        child
    };
    let mut seeds = 0..;
    let mut next = || start(seeds.next().expect("a number"));
    let mut children: Vec<Child> = (0..PROCESSES).map(|_| next()).collect();
    let mut random = Random::new(1);
    let (begin, mut killed) = (Instant::now(), 0);
    let mut kill_at = begin + KILLED_EVERY;
    while begin.elapsed() < STORM {
        server.turn(Duration::from_millis(5)).expect("a server");
        if Instant::now() >= kill_at {
            let victim = random.below(PROCESSES) as usize;
            children[victim].kill();
            children[victim] = next();
            killed += 1;
            let pause = random.below(2 * KILLED_EVERY.as_millis() as u64);
            kill_at += Duration::from_millis(pause);
        }
    }
    children
        .iter_mut()
        .for_each(|child| child.tell("stop", Value::Null));
    let told = std::thread::scope(|scope| {
        // The last clients want to be served.
        let hearing = scope.spawn(|| {
            let told = children.iter_mut().map(|child| child.hear("told"));
            told.collect::<Vec<_>>()
        });
        while !hearing.is_finished() {
            server.turn(Duration::from_millis(5)).expect("a server");
        }
        hearing.join().expect("what the clients have to tell")
    });
    children.into_iter().for_each(Child::end);
    until("the end of the last connection", || {
        server.turn(Duration::from_millis(5)).expect("a server");
        server.open() == 0
    });
    let served = server.served();
    assert_eq!(server.blocks_out(), 0);
    assert_eq!(served.posted, served.told);
    assert!(killed > 0 && served.vanished > 0, "{served:?}");
    // Peers' windows are given back as their sockets close.
    listening.are_all_of(std::process::id());
    let mut micros: Vec<u64> = (told.iter())
        .flat_map(|told| told["micros"].as_array().expect("a list"))
        .flat_map(Value::as_u64)
        .collect();
    micros.sort_unstable();
    let part = |of: usize| micros[(micros.len() - 1) * of / 100];
    println!(
        "\nreport: {} clients at a time, {} connected, {} vanished while connecting, {killed} processes \
         with {EACH} each killed; to connect took {} us (median) and {} us (99 of 100), without the others {alone} us",
        PROCESSES * EACH,
        served.clients,
        served.vanished,
        part(50),
        part(99),
    );
    drop(server);
    before.are_all_of(std::process::id());
    until("the end of the fabric's sockets", || {
        sockets(&fabric).is_empty()
    });
}

/// Microseconds that one client needs to connect when there is no other, at its median.
fn alone(fabric: &str, server: &mut Server) -> u64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut micros: Vec<u64> = (0..50).map(|_| whole(fabric)).collect();
            micros.sort_unstable();
            // Relaxed: a flag on its own.
            done.store(true, Ordering::Relaxed);
            micros[micros.len() / 2]
        });
        // Relaxed: as above.
        while !(done.load(Ordering::Relaxed) && server.open() == 0) {
            server.turn(Duration::from_millis(5)).expect("a server");
        }
        client.join().expect("a client")
    })
}

/// A client that does all of it: what connecting took.
fn whole(fabric: &str) -> u64 {
    let begin = Instant::now();
    let mut client = ask(fabric);
    client.establish().expect("an answer");
    let micros = begin.elapsed().as_micros() as u64;
    exchange(&mut client, 1);
    client.disconnect().expect("the end");
    micros
}

fn ask(fabric: &str) -> Client {
    let channel = EventChannel::open(&format!("soft:{fabric}")).expect("a channel");
    Client::ask(channel, (NAME, PORT), PATIENCE).expect("a way to the server")
}

fn exchange(client: &mut Client, messages: u64) {
    for message in 0..messages {
        let bytes = message.to_ne_bytes().repeat(8);
        client.send(&bytes).expect("room");
        assert_eq!(client.receive().expect("an echo"), bytes);
    }
}

/// A process of clients.
pub fn play() {
    let parent = Parent::new();
    let order = parent.hear("go");
    let fabric = order["fabric"].as_str().expect("a name");
    let seed = number(&order, "seed");
    let stop = AtomicBool::new(false);
    let micros = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..EACH)
            .map(|client| {
                let (stop, random) = (&stop, Random::new(seed * EACH + client));
                scope.spawn(move || lives(fabric, random, stop))
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
    parent.say("told", json!({ "micros": micros }));
    parent.wait_for_end();
}

/// One client after the other: what connecting took each.
fn lives(fabric: &str, mut random: Random, stop: &AtomicBool) -> Vec<u64> {
    let mut micros = Vec::new();
    // Relaxed: a flag on its own.
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_micros(random.below(2000)));
        let fate = FATES[random.below(FATES.len() as u64) as usize];
        let begin = Instant::now();
        let mut client = ask(fabric);
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
