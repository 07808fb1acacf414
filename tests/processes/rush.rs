//! A storm of links: every client of many processes connects to one server at once, and a third of the
//! processes are killed meanwhile. Every other client is served. `BELLWIRE_RUSH=100,100,10000` has so many
//! processes, with so many clients each, and a backlog of so many.

use super::links::{Links, patience};
use bellwire::Device;
use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkId, LinkState};
use bellwire::wqe::Send;
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{Random, SIGNALED, fabric_name, raise_descriptors};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, number};
use bellwire_tests::patience;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// What a process of clients is started as.
pub const ROLE: &str = "rush";

/// Processes, clients of each, and links that wait to be accepted, in the test command: far fewer than come.
/// So many processes take far longer where nothing is optimized, as under AddressSanitizer.
const SIZE: [usize; 3] = match cfg!(debug_assertions) {
    true => [12, 20, 64],
    false => [100, 20, 256],
};

const HOST: &str = "127.0.0.1";
const PORT: u16 = 7471;

/// Links that connect at a time.
const HANDSHAKES: u32 = 256;

/// What a client waits for at the most: it is refused while the backlog is full, and comes again. A client that gives an
/// attempt up because it is not served yet would only add to the load.
fn retry() -> Retry {
    Retry {
        longest: Duration::from_secs(5),
        attempts: 60,
        ..patience::retry()
    }
}

struct Server {
    links: Links,
    /// Links that have been connected.
    connected: HashSet<LinkId>,
    /// Messages of clients.
    messages: usize,
}

impl Server {
    fn turn(&mut self) {
        let messages = &mut self.messages;
        self.links.poll(|_, completion| {
            *messages += usize::from(completion.outcome == Outcome::Done);
        });
        for (id, state) in self.links.changes.drain(..) {
            match state {
                LinkState::Ready => _ = self.connected.insert(id),
                LinkState::Ended(_) => self.links.set.remove(id).expect("it is in the set"),
                _ => {}
            }
        }
    }
}

/// The median, and what 999 of 1,000 are not above.
fn parts(mut times: Vec<u64>) -> [u64; 2] {
    times.sort_unstable();
    [500, 999].map(|of| times[(times.len() - 1) * of / 1000])
}

/// The test.
pub fn everybody_is_served() {
    raise_descriptors();
    let given = std::env::var("BELLWIRE_RUSH").ok();
    let [processes, each, backlog] = given.map_or(SIZE, |text| {
        let numbers = text
            .split(',')
            .map(|number| number.parse().expect("a number"));
        let numbers: Vec<usize> = numbers.collect();
        numbers.try_into().expect("PROCESSES,CLIENTS,BACKLOG")
    });
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let mut listener =
        Listener::bind(&device, (HOST, PORT), backlog as u32, retry()).expect("a port");
    listener.limit_handshakes(HANDSHAKES, patience(processes * each));
    let all = processes * each;
    let mut server = Server {
        links: Links::new(&device, Some(listener), all, all),
        connected: HashSet::new(),
        messages: 0,
    };
    let mut children: Vec<Option<Child>> = (0..processes)
        .map(|at| Some(Child::start(ROLE, format!("clients {at}"), &home.0)))
        .collect();
    for child in children.iter_mut().flatten() {
        child.send("join", json!({ "fabric": fabric, "each": each, "of": all }));
    }
    (children.iter_mut().flatten()).for_each(|child| _ = child.hear("ready"));
    let (start, limit) = (Instant::now(), patience(all));
    (children.iter_mut().flatten()).for_each(|child| child.send("go", Value::Null));
    let mut random = Random::new(1);
    let mut killed = 0;
    let survivors = (processes - processes / 3) * each;
    // A client counts when it is served, so the survivors' come last.
    while killed < processes / 3 || server.connected.len() < survivors {
        server.turn();
        assert!(
            start.elapsed() < limit,
            "{} connected",
            server.connected.len()
        );
        // Spread over the storm.
        let share = server.connected.len() * processes >= killed * 2 * survivors;
        if killed < processes / 3 && share {
            let victim = random.below(processes as u64) as usize;
            if let Some(mut child) = children[victim].take() {
                child.kill();
                killed += 1;
            }
        }
    }
    let mut left: Vec<Child> = children.into_iter().flatten().collect();
    let measured = std::thread::scope(|scope| {
        let left = &mut left;
        let hearing = scope.spawn(move || {
            let measured = left.iter_mut().map(|child| child.hear("micros"));
            measured.collect::<Vec<Value>>()
        });
        while !hearing.is_finished() {
            server.turn();
        }
        hearing.join().expect("what the clients have measured")
    });
    let took = start.elapsed();
    let micros: Vec<u64> = (measured.iter())
        .flat_map(|of| of.as_array().expect("a list"))
        .filter_map(Value::as_u64)
        .collect();
    assert_eq!(micros.len(), survivors, "clients that were not served");
    assert!(server.messages >= survivors, "{} messages", server.messages);
    let [median, most] = parts(micros);
    println!(
        "\nreport: {} links asked for at once by {processes} processes, {killed} of which were killed: all \
         {survivors} others connected, and a message of each was received, in {median} us (median) and {most} us (999 of 1,000), all of them in \
         {:.1} s",
        all,
        took.as_secs_f64()
    );
    left.into_iter().for_each(Child::end);
}

/// A process of clients, each of which sends a message when it is connected.
pub fn play() {
    raise_descriptors();
    let parent = Parent::start();
    let order = parent.hear("join");
    let fabric = order["fabric"].as_str().expect("a name");
    let [each, of] = ["each", "of"].map(|key| number(&order, key) as usize);
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let connector = Connector::new(&device, (HOST, PORT), retry());
    let mut links = Links::new(&device, None, each, of);
    parent.say("ready", Value::Null);
    parent.hear("go");
    let start = Instant::now();
    links.connect(&connector);
    let (mut connected, mut micros, mut received) = (HashSet::new(), Vec::new(), 0);
    while received < each {
        links.poll(|id, completion| {
            assert_eq!(completion.outcome, Outcome::Done, "{id:?}");
            received += 1;
        });
        for (id, state) in links.changes.drain(..) {
            match state {
                LinkState::Ready if connected.insert(id) => {
                    micros.push(start.elapsed().as_micros() as u64);
                    let mut link = links.set.link(id).expect("it is in the set");
                    (link.post_empty(0, Send {}, SIGNALED, Replay::IfSafe)).expect("room");
                    link.ring();
                }
                LinkState::Ended(end) => panic!("{end}"),
                _ => {}
            }
        }
    }
    parent.say("micros", json!(micros));
    while !parent.is_over() {
        links.poll(|_, _| ());
    }
}
