//! A server whose links share a set, and clients that behave: what they wait for their answers while another
//! client is stopped, floods the server, sends what makes no sense, or connects and is silent. All of theirs
//! are answered. `BELLWIRE_NEIGHBOURS=5000` measures for so many milliseconds each; the figures are worth
//! something with `--release`.

use bellwire::connect::cm::{Connector, Listener};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkId, LinkInit, LinkSet, LinkSetInit, LinkState};
use bellwire::memory::Mapping;
use bellwire::wqe::Send;
use bellwire::{AccessFlags, Block, ClassLayout, Device, Pd, QpInit, Region, Slab};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{DEADLINE, Random, SIGNALED, fabric_name};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, number};
use bellwire_tests::patience::{lasting, late, limits, retry};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a process of clients is started as.
pub const ROLE: &str = "neighbour";

/// Links of each process.
const LINKS: usize = 8;

/// Bytes of a message, and of what is sent instead by those that do not care.
const BYTES: usize = 32;
const TOO_MANY: u32 = 256;

/// Requests and receives of each link.
const DEPTH: u32 = 4;

const HOST: &str = "127.0.0.1";
const PORT: u16 = 7473;

/// Links that connect at a time.
const HANDSHAKES: u32 = 4;

/// How long a link may take to connect: longer than one that behaves takes now. One that is silent takes as long.
fn handshake() -> Duration {
    Duration::from_millis(200) + 100 * late()
}

fn init() -> LinkInit {
    LinkInit {
        qp: QpInit {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_inline_data: BYTES as u32,
            ..QpInit::default()
        },
        connect: lasting(),
        limits: limits(),
        ..LinkInit::default()
    }
}

/// Links in a set, and blocks for their messages.
struct Links {
    set: LinkSet,
    slab: Slab,
    ready: Vec<LinkId>,
}

/// Passed to who uses the links: a message, and from whom.
type Messages = Vec<(LinkId, [u8; BYTES])>;

impl Links {
    fn new(pd: &Pd, links: usize) -> Self {
        let set = LinkSetInit {
            links: links as u32,
            qp: init().qp,
            ..LinkSetInit::default()
        };
        // For receives, and for what does not fit in one.
        let layout = [
            (64, links as u32 * 2 * DEPTH),
            (TOO_MANY, LINKS as u32 * DEPTH),
        ];
        let layout = layout.map(|(size, count)| ClassLayout { size, count });
        let bytes = Slab::bytes(&layout).expect("a layout");
        let mapping = Mapping::anonymous(bytes).build().expect("memory");
        let region = Region::new(pd, mapping, AccessFlags::LOCAL_WRITE).expect("a region");
        Self {
            set: LinkSet::new(pd, set).expect("a set"),
            slab: Slab::new(region, &layout).expect("a slab"),
            ready: Vec::new(),
        }
    }

    /// Takes in what has come. Links that have ended are removed.
    fn turn(&mut self) -> Messages {
        let (mut messages, mut again) = (Vec::new(), Vec::new());
        self.set.poll(64, |id, completion| {
            if !completion.is_recv() {
                return;
            }
            if completion.outcome == Outcome::Done
                && let Some(block) = &completion.block
            {
                let mut message = [0; BYTES];
                message.copy_from_slice(&block.as_slice()[..BYTES]);
                messages.push((id, message));
            }
            again.extend(completion.block.map(|block| (id, block)));
        });
        for (id, block) in again {
            self.expect(id, block);
        }
        while let Some((id, state)) = self.set.next_change() {
            self.ready.retain(|ready| *ready != id);
            match state {
                LinkState::Ready => self.ready.push(id),
                LinkState::Ended(_) => self.set.remove(id).expect("it is in the set"),
                _ => {}
            }
        }
        messages
    }

    /// Posts a receive. A link that has ended takes none.
    fn expect(&mut self, id: LinkId, block: Block<'static>) {
        if let Ok(mut link) = self.set.link(id) {
            let _ended = link.post_recv_block(0, block);
            link.ring_recv();
        }
    }

    fn expect_all(&mut self, id: LinkId) {
        for _ in 0..DEPTH {
            let block = self.slab.take(BYTES as u32).expect("a block");
            self.expect(id, block);
        }
    }

    /// `false`: the link has no room, or is not connected.
    fn send(&mut self, id: LinkId, bytes: &[u8; BYTES]) -> bool {
        let Ok(mut link) = self.set.link(id) else {
            return false;
        };
        let sent = link.post_inline(1, Send {}, bytes, SIGNALED, Replay::IfSafe);
        link.ring();
        sent.is_ok()
    }
}

/// Serves until a child has said this.
fn hear_while_serving(turn: &mut dyn FnMut(), child: &mut Child, key: &str) -> Value {
    std::thread::scope(|scope| {
        let hearing = scope.spawn(|| child.hear(key));
        while !hearing.is_finished() {
            turn();
        }
        hearing.join().expect("what it says")
    })
}

/// The test.
pub fn are_not_disturbed() {
    let given = std::env::var("BELLWIRE_NEIGHBOURS").ok();
    let millis: u64 = given.map_or(150, |text| text.parse().expect("milliseconds"));
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let mut listener = Listener::bind(&device, (HOST, PORT), 256, retry()).expect("a port");
    listener.limit_handshakes(HANDSHAKES, handshake());
    let pd = device.alloc_pd();
    let mut links = Links::new(&pd, 16 * LINKS);
    let mut turn = move || {
        while let Some(incoming) = listener.accept().expect("a listener") {
            // Of those that never connect there may be more than the set has room for.
            if let Ok(id) = links.set.join(init(), incoming) {
                links.expect_all(id);
            }
        }
        for (id, message) in links.turn() {
            // Who does not take its answers does not get them.
            links.send(id, &message);
        }
    };
    let start = |kind: &str| {
        let mut child = Child::start(ROLE, kind.to_owned(), &home.0);
        child.send("join", json!({ "fabric": fabric, "kind": kind }));
        child
    };
    let mut good = start("good");
    hear_while_serving(&mut turn, &mut good, "ready");
    let measure = |turn: &mut dyn FnMut(), good: &mut Child, what: &str| {
        good.send("go", json!({ "millis": millis }));
        let micros = hear_while_serving(turn, good, "micros");
        let [count, median, most] = ["count", "median", "most"].map(|of| number(&micros, of));
        assert!(count > 0, "{what}: nothing was answered");
        println!("report: {what}: {count} answers, {median} us (median), {most} us (99 of 100)");
    };
    println!();
    measure(&mut turn, &mut good, "clients that behave, alone");
    for kind in ["stopped", "flood", "garbage", "silent"] {
        let mut bad = start(kind);
        hear_while_serving(&mut turn, &mut bad, "ready");
        if kind == "stopped" {
            bad.signal(libc::SIGSTOP);
        }
        measure(
            &mut turn,
            &mut good,
            &format!("beside one of kind {kind:?}"),
        );
        bad.kill();
    }
    measure(&mut turn, &mut good, "when they have been killed");
    good.end();
}

/// A process of clients.
pub fn play() {
    let parent = Parent::start();
    let order = parent.hear("join");
    let fabric = order["fabric"].as_str().expect("a name");
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let connector = Connector::new(&device, (HOST, PORT), retry());
    let mut links = Links::new(&device.alloc_pd(), LINKS);
    let kind = order["kind"].as_str().expect("a kind");
    for _ in 0..LINKS {
        let outgoing = connector.exchange().expect("a channel");
        let id = links.set.join(init(), outgoing).expect("room");
        if kind == "good" || kind == "stopped" {
            links.expect_all(id);
        }
    }
    if kind == "silent" {
        return be_silent(&parent, links);
    }
    let start = Instant::now();
    while links.ready.len() < LINKS {
        links.turn();
        assert!(start.elapsed() < DEADLINE, "{:?}", links.ready);
    }
    parent.say("ready", Value::Null);
    match kind {
        "good" => behave(&parent, links),
        "stopped" => loop {
            ask(&mut links, Duration::from_millis(20));
        },
        "flood" => loop {
            for id in links.ready.clone() {
                while links.send(id, &[7; BYTES]) {}
            }
            links.turn();
        },
        _ => talk_nonsense(links),
    }
}

/// Has each link ask, and ask again when it is answered. How long each answer took, in microseconds.
fn ask(links: &mut Links, time: Duration) -> Vec<u64> {
    let (start, mut micros) = (Instant::now(), Vec::new());
    let mut asked = vec![None; LINKS];
    while start.elapsed() < time || asked.iter().any(Option::is_some) {
        for (at, id) in links.ready.clone().into_iter().enumerate() {
            if asked[at].is_none() && start.elapsed() < time {
                let message = [at as u8; BYTES];
                assert!(links.send(id, &message), "no room for one request");
                asked[at] = Some((id, Instant::now()));
            }
        }
        for (from, message) in links.turn() {
            let (id, since) = asked[usize::from(message[0])].take().expect("it was asked");
            assert_eq!((id, message), (from, [message[0]; BYTES]));
            micros.push(since.elapsed().as_micros() as u64);
        }
        assert_eq!(links.ready.len(), LINKS, "a link has failed");
        assert!(start.elapsed() < time + DEADLINE, "{asked:?}");
    }
    micros
}

fn behave(parent: &Parent, mut links: Links) {
    while let Some(order) = parent.next("go") {
        let time = Duration::from_millis(number(&order, "millis"));
        let mut micros = ask(&mut links, time);
        micros.sort_unstable();
        let at = |part: usize| micros.get((micros.len().max(1) - 1) * part / 100);
        parent.say(
            "micros",
            json!({"count": micros.len(), "median": at(50), "most": at(99)}),
        );
    }
}

/// Messages longer than the receives that they meet, of which the links recover.
fn talk_nonsense(mut links: Links) {
    let mut random = Random::new(1);
    loop {
        for id in links.ready.clone() {
            let Ok(mut block) = links.slab.take(TOO_MANY) else {
                continue;
            };
            let bytes = &mut block.as_mut_slice()[..TOO_MANY as usize];
            bytes.copy_from_slice(&random.bytes(bytes.len()));
            let length = random.below(u64::from(TOO_MANY) + 1) as u32;
            if let Ok(mut link) = links.set.link(id) {
                let _full = link.post_block(1, Send {}, block, length, SIGNALED, Replay::IfSafe);
                link.ring();
            }
        }
        links.turn();
    }
}

/// Asks to be connected, and says nothing more.
fn be_silent(parent: &Parent, mut links: Links) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(5) {
        links.turn();
    }
    parent.say("ready", Value::Null);
    parent.wait_for_end();
}
