//! A storm of links: every client of many processes connects to one server at once, and sends then. Meanwhile a third of
//! the processes are killed, and come back. Every client is served, and each request is answered. New links are ready
//! soon, although the other links leave no poll without outcomes.
//! `BELLWIRE_RUSH=200,1,256` has so many processes, with so many clients each, and a backlog of so many.

use super::links::{Links, patience};
use bellwire::Device;
use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::EndReason;
use bellwire::link::{LinkError, LinkId, LinkState};
use bellwire::wqe::Send;
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{Random, SIGNALED, fabric_name, raise_descriptors};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, number};
use bellwire_tests::patience;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
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

/// Requests of a client that wait for their answers, and all that it sends.
const WINDOW: usize = 2;
const REQUESTS: usize = 100;

/// Buffers that a link's messages may hold: a client has no more requests.
const HELD: u32 = 4;

/// Within which an accepted link is ready on a machine that is quiet, in microseconds. Beside other load all take
/// longer: so many times as long as the median is added.
const READY_WITHIN: u64 = 1_000_000;
const OF_MEDIAN: u64 = 20;

struct Server {
    links: Links,
    /// When each link was accepted that is not ready yet.
    coming: HashMap<LinkId, Instant>,
    /// Links that have been connected.
    connected: HashSet<LinkId>,
    /// Microseconds from when each was accepted until it was ready.
    took: Vec<u64>,
    /// Messages of clients, and the links of those that are not answered yet.
    messages: usize,
    early: Vec<LinkId>,
}

impl Server {
    fn turn(&mut self) {
        let mut asked = Vec::new();
        self.links.poll(|id, completion| {
            if completion.is_recv() && completion.outcome == Outcome::Done {
                asked.push(id);
            }
        });
        self.coming.extend(self.links.accepted.drain(..));
        self.messages += asked.len();
        // A message may come before its link is ready here.
        asked.extend(std::mem::take(&mut self.early));
        for id in asked {
            let Ok(mut link) = self.links.set.link(id) else {
                continue;
            };
            match link.post_empty(0, Send {}, SIGNALED, Replay::IfSafe) {
                Ok(()) => link.ring(),
                Err(LinkError::Recovering) => self.early.push(id),
                // Its process was killed.
                Err(LinkError::Ended(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for (id, state) in self.links.changes.drain(..) {
            match state {
                LinkState::Ready => {
                    self.connected.insert(id);
                    if let Some(accepted) = self.coming.remove(&id) {
                        self.took.push(accepted.elapsed().as_micros() as u64);
                    }
                }
                LinkState::Ended(end) => {
                    // Of a process that was killed, and of no other: no limit ends one.
                    let killed =
                        matches!(end.why(), Some(EndReason::PeerLost | EndReason::PeerClosed));
                    assert!(killed || self.coming.contains_key(&id), "{end}");
                    self.coming.remove(&id);
                    self.links.set.remove(id).expect("it is in the set");
                }
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
    // A killed process may be back before its links have left the set.
    let room = all + processes / 3 * each;
    let mut server = Server {
        links: Links::serving(&device, listener, room, HELD),
        coming: HashMap::new(),
        connected: HashSet::new(),
        took: Vec::new(),
        messages: 0,
        early: Vec::new(),
    };
    let client = |at: usize| {
        let mut child = Child::start(ROLE, format!("clients {at}"), &home.0);
        child.send("join", json!({ "fabric": fabric, "each": each, "of": all }));
        child
    };
    let mut children: Vec<Child> = (0..processes).map(client).collect();
    (children.iter_mut()).for_each(|child| _ = child.hear("ready"));
    let (start, limit) = (Instant::now(), patience(all));
    (children.iter_mut()).for_each(|child| child.send("go", Value::Null));
    let mut random = Random::new(1);
    let mut killed = HashSet::new();
    // Every client, and the first lives of the processes that are killed, as far as these were connected.
    while killed.len() < processes / 3 || server.connected.len() < all {
        server.turn();
        assert!(
            start.elapsed() < limit,
            "{} connected",
            server.connected.len()
        );
        // Spread over the storm.
        let share = server.connected.len() * processes >= killed.len() * 2 * all;
        if killed.len() < processes / 3 && share {
            let victim = random.below(processes as u64) as usize;
            if killed.insert(victim) {
                children[victim].kill();
                // It comes back at once: the server removes its links and accepts the new ones in turn.
                children[victim] = client(victim);
                children[victim].send("go", Value::Null);
            }
        }
    }
    let measured = std::thread::scope(|scope| {
        let (children, killed) = (&mut children, &killed);
        let hearing = scope.spawn(move || {
            let measured = children.iter_mut().enumerate().map(|(at, child)| {
                if killed.contains(&at) {
                    child.hear("ready");
                }
                child.hear("micros")
            });
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
    assert_eq!(micros.len(), all, "clients that were not served");
    let messages = server.messages;
    assert!(messages >= all * REQUESTS, "{messages} messages");
    let slowest = server.took.iter().copied().max().unwrap_or(0);
    let [usual, _] = parts(server.took);
    assert!(
        slowest < READY_WITHIN + OF_MEDIAN * usual,
        "{slowest} us, {usual} us usually"
    );
    let [median, most] = parts(micros);
    println!(
        "\nreport: {all} links asked for at once by {processes} processes, {} of which were killed and came back: all \
         connected in {median} us (median) and {most} us (999 of 1,000), ready {usual} us (median) and {slowest} us (the \
         slowest) after they were accepted, and {messages} messages were answered, in {:.1} s",
        killed.len(),
        took.as_secs_f64()
    );
    children.into_iter().for_each(Child::end);
}

/// A process of clients, each of which sends as soon as it is connected, and again with each answer.
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
    let ids: Vec<LinkId> = links.set.ids().collect();
    for &id in &ids {
        (0..WINDOW).for_each(|_| links.receive(id));
    }
    let mut answered: HashMap<LinkId, usize> = HashMap::new();
    let (mut micros, mut told) = (Vec::new(), false);
    while !parent.is_over() {
        // What is answered, and the requests that follow.
        let mut next = Vec::new();
        links.poll(|id, completion| {
            assert_eq!(completion.outcome, Outcome::Done, "{id:?}");
            if completion.is_recv() {
                next.push(id);
            }
        });
        next.retain(|&id| {
            let count = answered.entry(id).or_default();
            *count += 1;
            *count + WINDOW <= REQUESTS
        });
        for &id in &next {
            links.receive(id);
        }
        let changes = std::mem::take(&mut links.changes);
        for (id, state) in changes {
            match state {
                // Not if it has recovered.
                LinkState::Ready if !answered.contains_key(&id) => {
                    answered.insert(id, 0);
                    micros.push(start.elapsed().as_micros() as u64);
                    next.extend([id; WINDOW]);
                }
                LinkState::Ended(end) => panic!("{end}"),
                _ => {}
            }
        }
        for id in next {
            let mut link = links.set.link(id).expect("it is in the set");
            (link.post_empty(0, Send {}, SIGNALED, Replay::IfSafe)).expect("room");
            link.ring();
        }
        let done = |id: &LinkId| answered.get(id).is_some_and(|count| *count == REQUESTS);
        if !told && ids.iter().all(done) {
            told = true;
            parent.say("micros", json!(micros));
        }
    }
}
