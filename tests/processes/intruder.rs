//! A process of the same user that speaks the fabric's greeting by itself, without bellwire: it claims what is not its
//! own, and more than its share. Beside it, honest nodes go on.

use crate::heir::{end_of, route, sees};
use crate::kinds;
use crate::shared::Shared;
use crate::wire::section;
use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::soft::Mode;
use bellwire::wqe::{Inline, Send};
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Device};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{
    DEADLINE, End, SIGNALED, connect_with, fabric_name, init, node, raise_descriptors,
};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, card, number, read_card};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// What it is started as.
pub const ROLE: &str = "intruder";

/// As `hw/soft/src/fabric/hello.rs` has it.
const MAGIC: &[u8; 8] = b"bellwr07";
const HELLO: usize = 88;
const REFUSAL: usize = 48;

/// As `hw/soft/src/fabric/meeting.rs` has it: links with nodes of one process.
const NODES_OF_ONE: usize = 32;

/// Places that are claimed at a time.
const CLAIMS: u64 = 100;

/// The address of a place in a fabric.
pub fn place(fabric: &str, slot: u64) -> SocketAddr {
    // SAFETY: takes nothing.
    let user = unsafe { libc::getuid() };
    SocketAddr::from_abstract_name(format!("bellwire/{user}/{fabric}/{slot}")).expect("an address")
}

/// Sends bytes and descriptors in one message.
fn say(stream: &UnixStream, bytes: &mut [u8], fds: &[OwnedFd; 2]) {
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let numbers = fds.each_ref().map(AsRawFd::as_raw_fd);
    let mut space = [0u64; 8];
    // SAFETY: the message's parts are valid while it is sent, and the control message fits in its space.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of_val(&numbers) as u32) as _;
        let header = &mut *libc::CMSG_FIRSTHDR(&raw const message);
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        header.cmsg_len = libc::CMSG_LEN(size_of_val(&numbers) as u32) as _;
        libc::CMSG_DATA(header)
            .cast::<[i32; 2]>()
            .write_unaligned(numbers);
        libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    assert_eq!(sent, bytes.len() as isize);
}

/// Claims a place, and returns the link if it was made.
fn claim(fabric: &str, slot: u64, sizes: [usize; 2]) -> Option<UnixStream> {
    let mut stream = UnixStream::connect_addr(&place(fabric, 0)).expect("a node");
    stream.set_read_timeout(Some(DEADLINE)).expect("a limit");
    let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let files = sizes.map(|bytes| kinds::memory(bytes, 0, fixed).expect("memory"));
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(MAGIC);
    hello[8..16].copy_from_slice(&slot.to_le_bytes());
    hello[16..24].copy_from_slice(&(slot + 1000).to_le_bytes());
    say(&stream, &mut hello, &files);
    let mut reply = [0; HELLO];
    let linked = stream.read_exact(&mut reply).is_ok() && reply[REFUSAL] == 0;
    linked.then_some(stream)
}

/// Where a connection manager listens at all IPv4 addresses, as `connect::cm::soft::address` names it; with its length.
fn manager(fabric: &str, port: u16) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: takes nothing.
    let user = unsafe { libc::getuid() };
    let port = u32::from(port).wrapping_mul(0x9e37_79b1);
    let space = PortSpace::Tcp as u32;
    let name = format!("\0bellwire/{user}/{fabric}/cm/{space}/{port:08x}/any4");
    // SAFETY: zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (2 + name.len()) as libc::socklen_t)
}

/// Connects to a connection manager, and says nothing. `None`: its queue is full.
fn meet(fabric: &str, port: u16) -> Option<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (address, length) = manager(fabric, port);
    // SAFETY: takes numbers; the descriptor is new; an address of this length.
    unsafe {
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, kind, 0));
        let met = libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length);
        (met == 0).then_some(socket)
    }
}

/// Sends a request for a connection with the endpoint that the order names, as `connect::cm::soft::message` has it.
fn ask(fabric: &str, order: &Value) -> OwnedFd {
    let word = |key| number(order, key);
    let gid: Vec<u8> = serde_json::from_value(order["gid"].clone()).expect("bytes");
    let fields: [&[u8]; 8] = [
        b"bwcm\0\0\0\x03",
        // REQ, of status zero.
        &[1, 0, 0, 0],
        &(word("qp_num") as u32).to_be_bytes(),
        &[0; 4],
        &(word("lid") as u16).to_be_bytes(),
        &gid,
        // The key, the numbers, and two addresses.
        &[0; 4 + 6],
        &[0; 2 * 23],
    ];
    let bytes = fields.concat();
    let socket = meet(fabric, word("port") as u16).expect("it listens");
    // SAFETY: as many bytes as there are.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(sent, bytes.len() as isize);
    socket
}

/// Connects queue pairs with a node, says of each that it accesses that node's memory, and never leaves.
fn stay_inside(parent: &Parent, fabric: &str, count: u64) {
    let device = node(fabric, Mode::Inline);
    let pd = device.alloc_pd();
    let mut ends: Vec<End> = (0..count)
        .map(|_| End::new(&pd, Mode::Inline, &init()))
        .collect();
    let cards = ends.iter().map(|end| card(&end.qp, end.region.remote(0)));
    parent.say("cards", cards.collect());
    let order = parent.hear("claim");
    let theirs = order["connect"].as_array().expect("cards");
    for (end, card) in ends.iter_mut().zip(theirs) {
        end.qp.init(&ConnectAttr::default()).expect("INIT");
        end.qp
            .connect(&read_card(card).0, &ConnectAttr::default())
            .expect("RTS");
    }
    let links = Shared::all("memfd:bellwire-link", true);
    for (link, end) in links
        .iter()
        .flat_map(|link| ends.iter().map(move |end| (link, end)))
    {
        link.write(section(end.qp.qp_num()), 1);
    }
    parent.say("inside", Value::Null);
    parent.hear("claim");
}

/// Writes to the sockets of links, as much as they take.
fn flood(parent: &Parent, links: Vec<UnixStream>) {
    let threads: Vec<_> = (links.into_iter())
        .map(|mut link| {
            std::thread::spawn(move || {
                let mut written = 0;
                while let Ok(bytes) = link.write(&[0; 16 << 10]) {
                    written += bytes;
                }
                written
            })
        })
        .collect();
    parent.say("floods", json!(threads.len()));
}

/// Connects to a connection manager so many times at a time, and says nothing; whatever is closed there comes again.
fn be_silent(parent: &Parent, fabric: &str, port: u16, count: usize) {
    let mut sockets: Vec<OwnedFd> = Vec::new();
    let mut said = false;
    while parent.heard("claim").is_none() {
        sockets.retain(|socket| {
            let mut byte = [0u8];
            // SAFETY: a byte that is writable.
            let read = unsafe { libc::recv(socket.as_raw_fd(), byte.as_mut_ptr().cast(), 1, 0) };
            read < 0
        });
        let more = count - sockets.len();
        sockets.extend((0..more).map_while(|_| meet(fabric, port)));
        if !std::mem::replace(&mut said, true) {
            parent.say("silent", json!(sockets.len()));
        }
        std::thread::yield_now();
    }
    parent.say("over", Value::Null);
}

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    // The sizes of what nodes share.
    let own = fabric_name();
    let nodes = [(); 2].map(|()| node(&own, Mode::Inline));
    let sizes = ["memfd:bellwire-link", "memfd:bellwire-keys"]
        .map(|name| Shared::all(name, true).first().expect("it is shared").bytes);
    drop(nodes);
    parent.say("ready", Value::Null);
    let mut held = Vec::new();
    let mut listeners = Vec::new();
    let mut asked = Vec::new();
    while let Some(order) = parent.next("claim") {
        let fabric = order["fabric"].as_str().expect("a name");
        if order["qp_num"].is_number() {
            asked.push(ask(fabric, &order));
            parent.say("asked", Value::Null);
            continue;
        }
        if let Some(count) = order["ends"].as_u64() {
            stay_inside(&parent, fabric, count);
            continue;
        }
        if let Some(count) = order["silent"].as_u64() {
            be_silent(
                &parent,
                fabric,
                number(&order, "port") as u16,
                count as usize,
            );
            continue;
        }
        if order["floods"] == true {
            flood(&parent, std::mem::take(&mut held));
            continue;
        }
        let first = number(&order, "first");
        for slot in first..first + CLAIMS {
            if order["listens"] == true {
                let listener = UnixListener::bind_addr(&place(fabric, slot));
                listeners.push(listener.expect("a free place"));
            }
            held.extend(claim(fabric, slot, sizes));
        }
        parent.say("linked", json!(held.len()));
    }
}

/// Two connected ends.
fn connected(a: &Device, b: &Device) -> [End; 2] {
    let [mut a, mut b] = [a, b].map(|device| End::new(&device.alloc_pd(), Mode::Inline, &init()));
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    [a, b]
}

fn works([a, b]: &mut [End; 2]) {
    b.receive(1, &[]);
    a.post(2, Send {}, Inline(&[]), SIGNALED).expect("room");
    a.qp.sq().ring();
    assert_eq!(a.wait().status(), WcStatus::Success);
    assert_eq!(b.wait().status(), WcStatus::Success);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a list").count()
}

/// It claims places in which it does not listen, among them one that is another node's, and then places in which it
/// does, more than one process may have.
pub fn claims_places() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let victim = node(&fabric, Mode::Inline);
    let mut intruder = Child::start(ROLE, ROLE.to_owned(), &home.0);
    intruder.hear("ready");
    let before = descriptors();
    let mut claim = |first: u64, listens: bool| {
        let order = json!({"fabric": fabric, "first": first, "listens": listens});
        intruder.send("claim", order);
        intruder.hear("linked").as_u64().expect("a count") as usize
    };
    assert_eq!(claim(1, false), 0, "it listens in none of them");
    // The place is still free, and its node has its link.
    let honest = node(&fabric, Mode::Inline);
    let mut pair = connected(&victim, &honest);
    works(&mut pair);
    assert_eq!(claim(1, false), 0, "one is another node's");
    works(&mut pair);
    let linked = claim(1000, true);
    assert_eq!(linked, NODES_OF_ONE);
    // Each link has a socket and the handle of its process; a pair has far fewer than so many others.
    assert!(descriptors() - before < 2 * NODES_OF_ONE + 40);
    works(&mut pair);
    let late = node(&fabric, Mode::Inline);
    works(&mut connected(&victim, &late));
}

/// It asks for a connection in the name of another process's queue pair, which then asks for its own.
pub fn claims_an_endpoint() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let device = node(&fabric, Mode::Inline);
    let channel = EventChannel::on(&device).expect("a channel");
    let listener = channel.id(PortSpace::Tcp).expect("an id");
    listener.bind(("0.0.0.0", 0)).expect("a port");
    listener.listen(8).expect("a listener");
    let port = listener.port();
    let honest = EventChannel::on(&device).expect("a channel");
    let id = route(&honest, port);
    let end = end_of(&id);
    let endpoint = end.qp.endpoint();
    let mut intruder = Child::start(ROLE, ROLE.to_owned(), &home.0);
    intruder.hear("ready");
    let order = json!({
        "fabric": fabric, "port": port, "lid": endpoint.lid, "gid": endpoint.gid, "qp_num": end.qp.qp_num(),
    });
    // The second time the name is the intruder's own, which has a connection: nobody hears of that request.
    for _ in 0..2 {
        intruder.send("claim", order.clone());
        intruder.hear("asked");
    }
    let mut pending = vec![sees(&channel, CmEvent::ConnectRequest)];
    assert!(channel.try_get().expect("events").is_none());
    id.connect(&end.qp, &ConnParam::default()).expect("asked");
    pending.push(sees(&channel, CmEvent::ConnectRequest));
    assert!(
        honest.try_get().expect("events").is_none(),
        "it is not refused"
    );
}

/// Queue pairs of one process that say that they access the memory of another one, for ever.
pub fn never_leaves() {
    const ENDS: u64 = 32;
    /// As `hw/soft/src/remote/mod.rs` has it.
    const STUCK: Duration = Duration::from_millis(250);
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let [victim, honest] = [(); 2].map(|()| node(&fabric, Mode::Inline));
    let mut pair = connected(&victim, &honest);
    works(&mut pair);
    let mut intruder = Child::start(ROLE, ROLE.to_owned(), &home.0);
    intruder.hear("ready");
    intruder.send("claim", json!({"fabric": fabric, "ends": ENDS}));
    let cards = intruder.hear("cards");
    let pd = victim.alloc_pd();
    let attr = ConnectAttr {
        timeout: 8,
        retry_cnt: 1,
        ..ConnectAttr::default()
    };
    let mut ends: Vec<End> = (cards.as_array().expect("cards").iter())
        .map(|card| {
            let mut end = End::new(&pd, Mode::Inline, &init());
            end.qp.init(&attr).expect("INIT");
            end.qp.connect(&read_card(card).0, &attr).expect("RTS");
            end
        })
        .collect();
    let ours: Value = ends
        .iter()
        .map(|end| card(&end.qp, end.region.remote(0)))
        .collect();
    intruder.send("claim", json!({"connect": ours}));
    intruder.hear("inside");
    works(&mut pair);
    // The first is waited for, and costs that process its link. Each of the others was waited for as long.
    let mut kept = ends.pop().expect("one of them");
    let start = Instant::now();
    drop(ends.pop());
    assert!(start.elapsed() >= STUCK);
    let start = Instant::now();
    drop(ends);
    let rest = start.elapsed();
    assert!(rest < STUCK * (ENDS as u32 - 2) / 2, "{rest:?}");
    works(&mut pair);
    kept.post(3, Send {}, Inline(&[]), SIGNALED).expect("room");
    kept.qp.sq().ring();
    assert_eq!(kept.outcome(), (3, WcStatus::RetryExcErr));
    works(&mut pair);
    drop(intruder);
}

/// Some processes write to the sockets of their links without end. Each time that an honest node joins, connects and
/// sends, the thread that they keep busy has to take part.
pub fn floods() {
    const PROCESSES: u64 = 3;
    const ROUNDS: usize = 10;
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let victim = node(&fabric, Mode::Inline);
    let honest = node(&fabric, Mode::Inline);
    let mut pair = connected(&victim, &honest);
    let mut intruders: Vec<Child> = (0..PROCESSES)
        .map(|at| {
            let mut intruder = Child::start(ROLE, format!("{ROLE} {at}"), &home.0);
            intruder.hear("ready");
            let first = 1000 + at * CLAIMS;
            intruder.send(
                "claim",
                json!({"fabric": fabric, "first": first, "listens": true}),
            );
            intruder.hear("linked");
            intruder.send("claim", json!({"fabric": fabric, "floods": true}));
            assert_eq!(intruder.hear("floods"), json!(NODES_OF_ONE));
            intruder
        })
        .collect();
    for _ in 0..ROUNDS {
        works(&mut pair);
        let late = node(&fabric, Mode::Inline);
        works(&mut connected(&victim, &late));
        works(&mut connected(&late, &victim));
    }
    intruders.iter_mut().for_each(Child::kill);
}

/// Two processes connect to a connection manager, and say nothing, as often as they are closed. An honest request is
/// heard within so many looks at the channel.
pub fn says_nothing() {
    const PROCESSES: usize = 2;
    const EACH: usize = 350;
    /// Each of up to 5 ms: a request may find the queue full, and comes again after 10 ms, and later.
    const LOOKS: usize = 200;
    raise_descriptors();
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let device = node(&fabric, Mode::Inline);
    let channel = EventChannel::on(&device).expect("a channel");
    let listener = channel.id(PortSpace::Tcp).expect("an id");
    listener.bind(("0.0.0.0", 0)).expect("a port");
    listener.listen(4).expect("a listener");
    let port = listener.port();
    let mut intruders: Vec<Child> = (0..PROCESSES)
        .map(|at| Child::start(ROLE, format!("{ROLE} {at}"), &home.0))
        .collect();
    for intruder in &mut intruders {
        intruder.hear("ready");
        intruder.send(
            "claim",
            json!({"fabric": fabric, "port": port, "silent": EACH}),
        );
        assert!(intruder.hear("silent").as_u64() > Some(100));
    }
    let honest = EventChannel::on(&device).expect("a channel");
    let mut kept = Vec::new();
    for round in 0..3 {
        let id = route(&honest, port);
        let end = end_of(&id);
        id.connect(&end.qp, &ConnParam::default()).expect("asked");
        let mut looks = 0;
        let request = loop {
            assert!(
                looks < LOOKS,
                "round {round}: no request after {looks} looks"
            );
            looks += 1;
            assert!(
                honest.try_get().expect("events").is_none(),
                "nobody has answered"
            );
            match channel.try_get().expect("events") {
                Some(event) => break event,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert!(matches!(request.kind(), EventKind::ConnectRequest { .. }));
        kept.push((id, end, request));
    }
    for intruder in &mut intruders {
        intruder.send("claim", Value::Null);
        intruder.hear("over");
    }
}
