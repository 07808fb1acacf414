//! A server with very many links in one set, whose clients are in several processes: what a link needs, how
//! fast links come, what an operation costs with few and with many of them, and how long all of them take to
//! recover from one failure of their completion queue.
//!
//! `BELLWIRE_CROWD=8,1250` has so many processes, with so many links each; the figures are worth something
//! with `--release`.

use super::links::{Links, patience};
use bellwire::Device;
use bellwire::connect::RemoteMemory;
use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkId, LinkState};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::RdmaWrite;
use bellwire::wr::Remote;
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{SIGNALED, fabric_name, raise_descriptors, region};
use bellwire_tests::leftovers::{Home, memory_now};
use bellwire_tests::parent::{Parent, number};
use bellwire_tests::patience;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a process of clients is started as.
pub const ROLE: &str = "crowd";

/// Processes, and links of each, in the test command.
const SIZE: [usize; 2] = [4, 60];

/// Memory of a process's clients, all of which the server writes to.
const BYTES: usize = 4096;

const HOST: &str = "127.0.0.1";
const PORT: u16 = 7472;

/// Links that connect at a time.
const HANDSHAKES: u32 = 256;

/// Operations of each measurement, in the test command and in the long form, and how often it is repeated.
const OPERATIONS: [usize; 2] = [1000, 20_000];
const ROUNDS: usize = 5;

/// Bytes that a link of two requests may need at the most: far more than it does.
const SANE: usize = 32 << 10;

fn retry() -> Retry {
    Retry {
        attempts: 30,
        ..patience::retry()
    }
}

/// Takes what has changed, none of which has ended; keeps the number of those that are ready.
fn count_ready(links: &mut Links, ready: &mut usize) {
    for (id, state) in links.changes.drain(..) {
        match state {
            LinkState::Ready => *ready += 1,
            LinkState::Ended(end) => panic!("{id:?}: {end}"),
            _ => *ready -= 1,
        }
    }
}

/// The server's links.
struct Server {
    links: Links,
    ready: usize,
    /// Writes that were reported as done.
    done: usize,
}

impl Server {
    fn turn(&mut self) {
        let done = &mut self.done;
        self.links.poll(|id, completion| {
            assert_eq!(completion.outcome, Outcome::Done, "{id:?}");
            *done += 1;
        });
        count_ready(&mut self.links, &mut self.ready);
    }

    fn serve_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Duration {
        let start = Instant::now();
        let within = patience(self.links.set.capacity());
        while !done(self) {
            self.turn();
            let ready = self.ready;
            assert!(start.elapsed() < within, "{what}: {ready} links are ready");
        }
        start.elapsed()
    }

    fn write(&mut self, id: LinkId) {
        let mut link = self.links.set.link(id).expect("it is in the set");
        let remote = link.peer_memory().expect("it is connected").remote(0);
        let write = RdmaWrite { remote };
        (link.post_inline(1, write, &[7; 8], SIGNALED, Replay::IfSafe)).expect("room");
        link.ring();
    }

    /// Nanoseconds of a WRITE, posted and polled, in turn over these links.
    fn cost(&mut self, ids: &[LinkId], operations: usize) -> f64 {
        let before = self.done;
        let start = Instant::now();
        for &id in ids.iter().cycle().take(operations) {
            let before = self.done;
            self.write(id);
            while self.done == before {
                let done = &mut self.done;
                self.links.set.poll(1, |_, completion| {
                    assert_eq!(completion.outcome, Outcome::Done);
                    *done += 1;
                });
            }
        }
        assert_eq!(self.done, before + operations);
        start.elapsed().as_nanos() as f64 / operations as f64
    }
}

/// The test.
pub fn of_links() {
    raise_descriptors();
    let given = std::env::var("BELLWIRE_CROWD").ok();
    let operations = OPERATIONS[usize::from(given.is_some())];
    let [processes, each] = given.map_or(SIZE, |text| {
        let (processes, each) = text.split_once(',').expect("PROCESSES,LINKS");
        [processes, each].map(|number| number.parse().expect("a number"))
    });
    let links = processes * each;
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let mut listener =
        Listener::bind(&device, (HOST, PORT), links as u32, retry()).expect("a port");
    listener.limit_handshakes(HANDSHAKES, patience(links));
    let mut server = Server {
        links: Links::new(&device, Some(listener), links, links),
        ready: 0,
        done: 0,
    };
    let empty = (server.links.set.memory(), memory_now(std::process::id()));
    let mut children: Vec<Child> = (0..processes)
        .map(|at| Child::start(ROLE, format!("clients {at}"), &home.0))
        .collect();
    for child in &mut children {
        child.send(
            "join",
            json!({ "fabric": fabric, "links": each, "of": links }),
        );
    }
    children
        .iter_mut()
        .for_each(|child| _ = child.hear("ready"));
    children
        .iter_mut()
        .for_each(|child| child.send("go", Value::Null));
    let took = server.serve_until("connecting", |server| server.ready == links);
    let of_set = (server.links.set.memory() - empty.0) / links;
    let resident = memory_now(std::process::id()).saturating_sub(empty.1) as usize / links;
    assert!(of_set < SANE, "{of_set} bytes");
    println!(
        "\nreport: {links} links of {processes} processes in one set: {:.0} a second are made; {of_set} bytes \
         of the set's for each, {resident} of the process's, of which {} for the set's queues and tables",
        links as f64 / took.as_secs_f64(),
        empty.0
    );

    let ids: Vec<LinkId> = server.links.set.ids().collect();
    // The first of each finds the peer's memory.
    for &id in &ids {
        let before = server.done;
        server.write(id);
        server.serve_until("a first WRITE", |server| server.done > before);
    }
    let few = [1, 100.min(links), links];
    let mut costs = few.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (costs, few) in costs.iter_mut().zip(few) {
            costs.push(server.cost(&ids[..few], operations));
        }
    }
    let medians = costs.map(|mut of| {
        of.sort_by(f64::total_cmp);
        of[ROUNDS / 2]
    });
    let [one, some, all] = medians;
    println!(
        "report: a WRITE of 8 bytes, posted and polled: {one:.0} ns on one of them, {some:.0} in turn over \
         {}, {all:.0} in turn over all",
        few[1]
    );

    let (mut before, numbers) = (server.done, server.links.set.cqns().collect::<Vec<_>>());
    ids.iter().for_each(|id| server.write(*id));
    before += links;
    let mut script = Script::default();
    for &cqn in &numbers {
        script = script.with(Trigger::After(Duration::ZERO), Fault::CqOverrun(cqn));
    }
    let soft = device.as_soft().expect("a software device");
    soft.inject(&script).expect("a script");
    let start = Instant::now();
    server.serve_until("the fault", |server| {
        server.links.set.cqns().ne(numbers.iter().copied())
    });
    let left = start.elapsed();
    server.serve_until("recovery", |server| {
        server.ready == links && server.done == before
    });
    let took = start.elapsed();
    let replaced = server.links.set.cqns().all(|cqn| !numbers.contains(&cqn));
    assert!(replaced && server.links.set.ids().eq(ids.iter().copied()));
    println!(
        "report: {links} links recover from the failure of their {} completion queue(s), a WRITE on each of \
         them with one outcome, in {:.2} s, {:.2} s of it until all have left the queue and there is another",
        numbers.len(),
        took.as_secs_f64(),
        left.as_secs_f64()
    );
    for &id in &ids {
        server.write(id);
        before += 1;
        server.serve_until("a WRITE after it", |server| server.done == before);
    }
    children.into_iter().for_each(Child::end);
}

/// A process of clients.
pub fn play() {
    raise_descriptors();
    let parent = Parent::start();
    let order = parent.hear("join");
    let fabric = order["fabric"].as_str().expect("a name");
    let count = number(&order, "links") as usize;
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let connector = Connector::new(&device, (HOST, PORT), retry());
    let mut links = Links::new(&device, None, count, number(&order, "of") as usize);
    let region = region(links.set.pd(), BYTES);
    let Remote { addr, rkey } = region.remote(0);
    links.init.memory = RemoteMemory {
        addr,
        length: BYTES as u64,
        rkey,
    };
    parent.say("ready", Value::Null);
    parent.hear("go");
    links.connect(&connector);
    let mut ready = 0;
    while !parent.is_over() {
        links.poll(|id, _| panic!("{id:?} has no requests"));
        count_ready(&mut links, &mut ready);
    }
}
