//! Hostile processes, and those of another protocol, at the sockets of the connection manager.

use super::world::{Expect, SOON};
use bellwire::connect::cm::{
    ConnParam, Connector, EventChannel, EventKind, Id, Listener, PortSpace, Retry,
};
use bellwire::fault::CmEvent;
use bellwire::link::{Link, LinkInit, LinkState};
use bellwire_tests::fixture::{self, End, Random, fabric_name, raise_descriptors};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A socket as the connection managers have it.
fn socket() -> OwnedFd {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: just made, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Where somebody on a fabric is found; with its length.
fn address(fabric: &str, port: u16) -> (libc::sockaddr_un, u32) {
    address_of(PortSpace::Tcp, fabric, port)
}

fn address_of(space: PortSpace, fabric: &str, port: u16) -> (libc::sockaddr_un, u32) {
    // SAFETY: takes nothing.
    let user = unsafe { libc::getuid() };
    // As `connect::cm::soft::address` names it.
    let port = u32::from(port).wrapping_mul(0x9e37_79b1);
    let name = format!(
        "\0bellwire/{user}/{fabric}/cm/{}/{port:08x}/any4",
        space as u32
    );
    // SAFETY: zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (2 + name.len()) as u32)
}

fn connect_to((address, length): &(libc::sockaddr_un, u32)) -> OwnedFd {
    let socket = socket();
    // SAFETY: an address of this length.
    let met = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            std::ptr::from_ref(address).cast(),
            *length,
        )
    };
    assert_eq!(met, 0, "{}", io::Error::last_os_error());
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    // SAFETY: as many bytes as are said. Who does not want them has closed.
    unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
        )
    };
}

/// What there is to read, within a while.
fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    // SAFETY: as many bytes are writable.
    let read = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            0,
        )
    };
    bytes.truncate(read.max(0) as usize);
    bytes
}

struct Victim {
    fabric: String,
    channel: EventChannel,
    listener: Id,
}

impl Victim {
    fn new(backlog: u32) -> Self {
        let fabric = fabric_name();
        let channel = EventChannel::open(&format!("soft:{fabric}")).unwrap();
        let listener = channel.id(PortSpace::Tcp).unwrap();
        listener.bind(("0.0.0.0", 0)).unwrap();
        listener.listen(backlog).unwrap();
        Self {
            fabric,
            channel,
            listener,
        }
    }

    fn connect(&self) -> OwnedFd {
        connect_to(&address(&self.fabric, self.listener.port()))
    }

    /// An honest client, and its request.
    fn ask(&self, port: u16) -> (Id, End) {
        let id = self.channel.id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, ("127.0.0.1", port), SOON).unwrap();
        self.channel.sees(&id, CmEvent::AddrResolved);
        id.resolve_route(SOON).unwrap();
        self.channel.sees(&id, CmEvent::RouteResolved);
        let pd = id.device().unwrap().expect("bound").alloc_pd();
        let mut end = End::new(&pd, bellwire::soft::Mode::Inline, &fixture::init());
        id.init_qp(&mut end.qp, bellwire::AccessFlags::empty())
            .unwrap();
        id.connect(&end.qp, &ConnParam::default()).unwrap();
        (id, end)
    }

    /// Honest clients are still heard.
    fn works(&self) {
        let (_id, _end) = self.ask(self.listener.port());
        self.channel.sees(&self.listener, CmEvent::ConnectRequest);
    }
}

/// Somebody who listens where a client asks, and is no connection manager.
struct Impostor(OwnedFd, u16);

impl Impostor {
    fn new(fabric: &str) -> Self {
        Self::at(&address(fabric, 7), 7)
    }

    fn at((address, length): &(libc::sockaddr_un, u32), port: u16) -> Self {
        let socket = socket();
        // SAFETY: an address of this length; numbers.
        let listens = unsafe {
            libc::bind(
                socket.as_raw_fd(),
                std::ptr::from_ref(address).cast(),
                *length,
            ) | libc::listen(socket.as_raw_fd(), 8)
        };
        assert_eq!(listens, 0, "{}", io::Error::last_os_error());
        Self(socket, port)
    }

    fn accept(&self) -> OwnedFd {
        // SAFETY: no address is asked for.
        let fd = unsafe {
            libc::accept(
                self.0.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: just made, and nobody else's.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }
}

/// What an honest client asks.
fn request(victim: &Victim) -> Vec<u8> {
    let impostor = Impostor::new(&victim.fabric);
    let (_id, _end) = victim.ask(impostor.1);
    receive(&impostor.accept())
}

#[test]
fn garbage_is_no_request() {
    let victim = Victim::new(4);
    let good = request(&victim);
    assert!(good.len() > 80);
    let mut random = Random::new(7);
    for round in 0..200 {
        let socket = victim.connect();
        let bytes = match round % 4 {
            0 => vec![],
            1 => (0..random.below(1000))
                .map(|_| random.number() as u8)
                .collect(),
            2 => good[..random.below(good.len() as u64) as usize].to_vec(),
            _ => [good.clone(), vec![0; 300]].concat(),
        };
        send(&socket, &bytes);
        assert!(victim.channel.try_get().unwrap().is_none());
    }
    victim.works();
}

/// Those who say nothing have places of their own, and take none from the backlog.
#[test]
fn silence_does_not_keep_others_out() {
    let victim = Victim::new(4);
    let _silent: Vec<_> = (0..8).map(|_| victim.connect()).collect();
    victim.channel.nothing();
    let places = (0..4).map(|_| victim.ask(victim.listener.port()));
    let _asked: Vec<_> = places.collect();
    for _ in 0..4 {
        (victim.channel).sees(&victim.listener, CmEvent::ConnectRequest);
    }
}

/// What follows a good request may be anything.
#[test]
fn a_request_with_garbage_behind_it() {
    let victim = Victim::new(4);
    let good = request(&victim);
    let socket = victim.connect();
    send(&socket, &good);
    let event = victim
        .channel
        .expect(&victim.listener, CmEvent::ConnectRequest);
    let EventKind::ConnectRequest { id, .. } = event.ack() else {
        panic!("not a request")
    };
    send(&socket, &good);
    let event = victim.channel.expect(&id, CmEvent::ConnectError);
    assert_eq!(event.status(), -libc::EPROTO);
    victim.works();
}

#[test]
fn garbage_is_no_answer() {
    let victim = Victim::new(4);
    let impostor = Impostor::new(&victim.fabric);
    let mut random = Random::new(11);
    for round in 0..100 {
        let (id, _end) = victim.ask(impostor.1);
        let socket = impostor.accept();
        let request = receive(&socket);
        let length = random.below(300);
        let bytes: Vec<u8> = match round % 2 {
            0 => (0..length).map(|_| random.number() as u8).collect(),
            // A request is no answer.
            _ => request,
        };
        send(&socket, &bytes);
        if length == 0 && round % 2 == 0 {
            // Nothing at all: the end of it.
            drop(socket);
            victim.channel.sees(&id, CmEvent::Rejected);
            continue;
        }
        let event = victim.channel.expect(&id, CmEvent::ConnectError);
        assert_eq!(event.status(), -libc::EPROTO);
    }
    victim.works();
}

#[test]
fn a_peer_that_keeps_talking_does_not_keep_the_program() {
    let victim = Victim::new(4);
    let impostor = Impostor::new(&victim.fabric);
    let (id, _end) = victim.ask(impostor.1);
    let socket = impostor.accept();
    let mut message = receive(&socket);
    // The Mra, that the program thinks: once is enough.
    message[8] = 2;
    send(&socket, &message);
    assert!(
        victim
            .channel
            .get(Duration::from_millis(5))
            .unwrap()
            .is_none()
    );
    send(&socket, &message);
    victim.channel.sees(&id, CmEvent::ConnectError);
}

/// Runs as another user, on a thread of its own; `None`: this user may not be another.
fn as_another<R: std::marker::Send>(act: impl FnOnce() -> R + std::marker::Send) -> Option<R> {
    const NOBODY: libc::uid_t = 65534;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: numbers; the system call itself, which is the thread's matter alone.
            let is = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            (is == 0).then(act)
        });
        thread.join().expect("the other user")
    })
}

/// Another user is neither listened to nor talked to, though it may find the names.
#[test]
fn other_users_are_refused() {
    let victim = Victim::new(4);
    let good = request(&victim);
    let at = address(&victim.fabric, victim.listener.port());
    let Some(_socket) = as_another(|| {
        let socket = connect_to(&at);
        send(&socket, &good);
        socket
    }) else {
        return;
    };
    victim.channel.nothing();
    // At the name that this user's have.
    let at = address(&victim.fabric, 8);
    let impostor = as_another(|| Impostor::at(&at, 8));
    let impostor = impostor.expect("as before");
    let (id, _end) = victim.ask(impostor.1);
    let event = victim.channel.expect(&id, CmEvent::ConnectError);
    assert_eq!(event.status(), -libc::EACCES);
    victim.works();
}

/// A socket that has sent these bytes, and does not wait.
fn says(at: &(libc::sockaddr_un, u32), bytes: &[u8]) -> OwnedFd {
    let socket = connect_to(at);
    send(&socket, bytes);
    // SAFETY: numbers.
    let set = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(set, 0);
    socket
}

/// Requests beyond the backlog wait in the kernel, however many they are, until the program takes those before them.
/// Another listener of the channel is served meanwhile.
#[test]
fn requests_beyond_the_backlog_are_not_read() {
    const BACKLOG: usize = 4;
    let victim = Victim::new(BACKLOG as u32);
    let good = request(&victim);
    let at = address(&victim.fabric, victim.listener.port());
    let asked: Vec<OwnedFd> = (0..3 * BACKLOG as u32)
        .map(|number| {
            // Of queue pairs of their own.
            let mut bytes = good.clone();
            bytes[12..16].copy_from_slice(&(0x1000 + number).to_be_bytes());
            says(&at, &bytes)
        })
        .collect();
    // The channel responds to each request that it has read: with an Mra.
    let read = || {
        let answers = asked.iter().map(receive);
        answers.filter(|bytes| bytes.get(8) == Some(&2)).count()
    };
    let other = victim.channel.id(PortSpace::Tcp).unwrap();
    other.bind(("0.0.0.0", 0)).unwrap();
    other.listen(1).unwrap();
    let channel = EventChannel::open(&format!("soft:{}", victim.fabric)).unwrap();
    let honest = Victim {
        fabric: victim.fabric.clone(),
        listener: channel.id(PortSpace::Tcp).unwrap(),
        channel,
    };
    let (_honest, _end) = honest.ask(other.port());
    let mut kept = Vec::new();
    let mut others = 0;
    let mut answered = 0;
    while kept.len() < asked.len() || others == 0 {
        let event = victim.channel.get(SOON).unwrap().expect("a request");
        let of_other = event.id() == &other;
        let EventKind::ConnectRequest { id, .. } = event.ack() else {
            panic!("not a request")
        };
        match of_other {
            true => others += 1,
            false => kept.push(id),
        }
        answered += read();
        // This one was taken, so that one more may have been read.
        assert!(answered <= kept.len() + BACKLOG, "{answered}");
        assert!(
            others == 1 || kept.len() <= BACKLOG,
            "the other listener waits"
        );
    }
    assert_eq!(answered, asked.len());
}

/// A listener of links handles so many events before it returns; the honest link is accepted by one of the next calls.
#[test]
fn a_listener_of_links_handles_some_events_at_a_time() {
    const AT_ONCE: usize = 256;
    const LOOKUPS: usize = 2 * AT_ONCE;
    raise_descriptors();
    let fabric = fabric_name();
    let device = fixture::node(&fabric, bellwire::soft::Mode::Inline);
    let mut listener =
        Listener::bind(&device, ("0.0.0.0", 0), 4, Retry::default()).expect("a listener");
    // What a connector sends when it closes its link: a lookup.
    let lookup = {
        let channel = EventChannel::on(&device).unwrap();
        let impostor = Impostor::at(&address_of(PortSpace::Udp, &fabric, 7), 7);
        let id = channel.id(PortSpace::Udp).unwrap();
        id.resolve_addr(None, ("127.0.0.1", impostor.1), SOON)
            .unwrap();
        channel.sees(&id, CmEvent::AddrResolved);
        id.resolve_route(SOON).unwrap();
        channel.sees(&id, CmEvent::RouteResolved);
        id.lookup(b"bwl").unwrap();
        receive(&impostor.accept())
    };
    let at = address_of(PortSpace::Udp, &fabric, listener.port());
    let connector = Connector::new(&device, ("127.0.0.1", listener.port()), Retry::default());
    let init = || LinkInit::default();
    let mut client = Link::new(&device.alloc_pd(), init(), connector.exchange().unwrap()).unwrap();
    let (mut calls, mut sockets) = (0, Vec::<OwnedFd>::new());
    let incoming = loop {
        sockets.resize_with(LOOKUPS, || says(&at, &lookup));
        client.poll(16, drop);
        let accepted = listener.accept().unwrap();
        // Each is answered once it is handled.
        sockets.retain(|socket| receive(socket).is_empty());
        let handled = LOOKUPS - sockets.len();
        assert!(handled <= AT_ONCE, "{handled} events in one call");
        calls += 1;
        assert!(calls < 50, "the honest link is not accepted");
        if let Some(incoming) = accepted {
            break incoming;
        }
    };
    let mut server = Link::new(&device.alloc_pd(), init(), incoming).unwrap();
    fixture::until("the link", || {
        client.poll(16, drop);
        server.poll(16, drop);
        client.state() == LinkState::Ready && server.state() == LinkState::Ready
    });
}
