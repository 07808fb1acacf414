//! A storm of links: every client of many processes connects to one server at once, and a third of the
//! processes are killed meanwhile. Every other client is served. `BELLWIRE_RUSH=100,100,10000` has so many
//! processes, with so many clients each, and a backlog of so many.

use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::link::{Link, LinkInit, LinkState};
use bellwire::{Device, QpInit};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{DEADLINE, Random, fabric_name};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, number};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a process of clients is started as.
pub const ROLE: &str = "rush";

/// Processes, clients of each, and links that wait to be accepted, in the test command: far fewer than come.
const SIZE: [usize; 3] = [12, 20, 64];

const HOST: &str = "127.0.0.1";
const PORT: u16 = 7471;

/// What a client waits for at the most.
fn retry() -> Retry {
    Retry {
        step: Duration::from_secs(10),
        attempts: 60,
        ..Retry::default()
    }
}

/// How long so many links may take to connect: twenty milliseconds each, which is far too long.
fn patience(links: usize) -> Duration {
    DEADLINE.max(Duration::from_millis(20) * links as u32)
}

fn init(links: usize) -> LinkInit {
    let mut init = LinkInit {
        qp: QpInit {
            max_send_wr: 2,
            max_recv_wr: 2,
            ..QpInit::default()
        },
        check_every: 1,
        ..LinkInit::default()
    };
    init.limits.exchange = patience(links);
    init.limits.recovery = patience(links);
    init
}

fn poll(link: &mut Link) {
    link.poll(4, |_| ());
}

/// The links of a server: those that connect are polled always, the others in turn.
struct Server {
    device: Device,
    listener: Listener,
    connecting: Vec<Link>,
    served: Vec<Link>,
    turn: usize,
    /// How many links ask.
    links: usize,
}

impl Server {
    fn turn(&mut self) {
        let pd = self.device.alloc_pd();
        while let Some(incoming) = self.listener.accept().expect("a listener") {
            let link = Link::new(&pd, init(self.links), incoming).expect("a link");
            self.connecting.push(link);
        }
        self.connecting.iter_mut().for_each(poll);
        let done = self
            .connecting
            .extract_if(.., |link| link.state() == LinkState::Ready);
        self.served.extend(done);
        let ended = |link: &mut Link| !matches!(link.state(), LinkState::Ended(_));
        self.connecting.retain_mut(ended);
        if !self.served.is_empty() {
            self.turn = (self.turn + 1) % self.served.len();
            poll(&mut self.served[self.turn]);
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
    let listener = Listener::bind(&device, (HOST, PORT), backlog as u32, retry()).expect("a port");
    let mut server = Server {
        device,
        listener,
        connecting: Vec::new(),
        served: Vec::new(),
        turn: 0,
        links: processes * each,
    };
    let mut children: Vec<Option<Child>> = (0..processes)
        .map(|at| Some(Child::start(ROLE, format!("clients {at}"), &home.0)))
        .collect();
    for child in children.iter_mut().flatten() {
        child.send(
            "join",
            json!({ "fabric": fabric, "each": each, "of": processes * each }),
        );
    }
    (children.iter_mut().flatten()).for_each(|child| _ = child.hear("ready"));
    let start = Instant::now();
    (children.iter_mut().flatten()).for_each(|child| child.send("go", Value::Null));
    let mut random = Random::new(1);
    let mut killed = 0;
    let survivors = (processes - processes / 3) * each;
    // A client counts when it is served, so the survivors' come last.
    while killed < processes / 3 || server.served.len() < survivors {
        server.turn();
        assert!(
            start.elapsed() < patience(processes * each),
            "{} served",
            server.served.len()
        );
        // Spread over the storm.
        let share = server.served.len() * processes >= killed * 2 * survivors;
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
    let [median, most] = parts(micros);
    println!(
        "\nreport: {} links asked for at once by {processes} processes, {killed} of which were killed: all \
         {survivors} others connected, in {median} us (median) and {most} us (999 of 1,000), all of them in \
         {:.1} s",
        processes * each,
        took.as_secs_f64()
    );
    left.into_iter().for_each(Child::end);
}

/// A process of clients.
pub fn play() {
    let parent = Parent::start();
    let order = parent.hear("join");
    let fabric = order["fabric"].as_str().expect("a name");
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let pd = device.alloc_pd();
    let connector = Connector::new(&device, (HOST, PORT), retry());
    parent.say("ready", Value::Null);
    parent.hear("go");
    let start = Instant::now();
    let of = number(&order, "of") as usize;
    let mut links: Vec<Link> = (0..number(&order, "each"))
        .map(|_| connector.exchange().expect("a channel"))
        .map(|exchange| Link::new(&pd, init(of), exchange).expect("a link"))
        .collect();
    let mut micros = vec![None; links.len()];
    while micros.contains(&None) {
        for (link, micros) in links.iter_mut().zip(&mut micros) {
            if micros.is_some() {
                continue;
            }
            poll(link);
            match link.state() {
                LinkState::Ready => *micros = Some(start.elapsed().as_micros() as u64),
                LinkState::Ended(end) => panic!("{end}"),
                _ => {}
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    parent.say("micros", json!(micros));
    parent.wait_for_end();
}
