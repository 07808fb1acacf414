//! Nodes of a fabric that all come at once: there is one link between two of them, and nothing that is
//! sent over it is lost.

use bellwire::soft::Mode;
use bellwire::wqe::{Inline, Send};
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Device, Endpoint};
use bellwire_tests::fixture::{
    DEADLINE, End, SIGNALED, connect_with, fabric_name, init, node, until,
};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const NODES: usize = 4;
const ROUNDS: usize = 400;

/// Where all wait for all. One that has failed is not waited for without end.
#[derive(Default)]
struct Together(AtomicUsize);

impl Together {
    fn wait(&self) {
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        let all = (before / NODES + 1) * NODES;
        until("the others", || self.0.load(Ordering::Acquire) >= all);
    }
}

/// One node: comes, connects to all others, sends each of them a message, and takes theirs.
fn come(name: &str, us: usize, together: &Together, endpoints: &Mutex<Vec<Vec<Endpoint>>>) {
    // What gets lost is not sent again.
    let attr = ConnectAttr {
        timeout: 0,
        ..ConnectAttr::default()
    };
    together.wait();
    let device = node(name, Mode::Inline);
    let pd = device.alloc_pd();
    let mut ends: Vec<End> = (0..NODES)
        .map(|_| End::new(&pd, Mode::Inline, &init()))
        .collect();
    let ours = ends.iter().map(|end| end.qp.endpoint()).collect();
    endpoints.lock().unwrap()[us] = ours;
    together.wait();
    for (them, end) in ends.iter_mut().enumerate().filter(|(them, _)| *them != us) {
        let theirs = endpoints.lock().unwrap()[them][us];
        end.qp.init(&attr).unwrap();
        end.receive(1, &[]);
        end.qp.connect(&theirs, &attr).unwrap();
    }
    together.wait();
    for (_, end) in ends.iter_mut().enumerate().filter(|(them, _)| *them != us) {
        end.post(2, Send {}, Inline(&[]), SIGNALED).unwrap();
        end.qp.sq().ring();
    }
    for (_, end) in ends.iter_mut().enumerate().filter(|(them, _)| *them != us) {
        for _ in 0..2 {
            assert_eq!(end.wait().status(), WcStatus::Success);
        }
    }
    // The others may still want to be answered.
    together.wait();
}

#[test]
fn all_at_once() {
    for _ in 0..ROUNDS {
        let (name, together) = (fabric_name(), Together::default());
        let endpoints = Mutex::new(vec![Vec::new(); NODES]);
        std::thread::scope(|scope| {
            for us in 0..NODES {
                let (name, together, endpoints) = (&name, &together, &endpoints);
                scope.spawn(move || come(name, us, together, endpoints));
            }
        });
    }
}

/// The address of a place in a fabric.
pub fn place(fabric: &str, slot: usize) -> SocketAddr {
    // SAFETY: takes nothing.
    let user = unsafe { libc::getuid() };
    SocketAddr::from_abstract_name(format!("bellwire/{user}/{fabric}/{slot}")).unwrap()
}

/// A listener at this place accepts nobody, and its backlog is full: connecting to it blocks.
struct Crowded {
    _listener: UnixListener,
    _waiting: Vec<UnixStream>,
}

impl Crowded {
    fn new(fabric: &str, slot: usize) -> Self {
        let at = place(fabric, slot);
        let listener = UnixListener::bind_addr(&at).unwrap();
        // SAFETY: takes numbers only.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        Self {
            _waiting: vec![UnixStream::connect_addr(&at).unwrap()],
            _listener: listener,
        }
    }
}

/// Runs on a thread, and has to end.
fn ends<R: std::marker::Send + 'static>(
    what: &str,
    act: impl FnOnce() -> R + std::marker::Send + 'static,
) -> R {
    let thread = std::thread::spawn(act);
    until(what, || thread.is_finished());
    thread.join().unwrap()
}

/// Two connected ends.
fn connected(a: &Device, b: &Device) -> (End, End) {
    let [mut a, mut b] = [a, b].map(|device| End::new(&device.alloc_pd(), Mode::Inline, &init()));
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    (a, b)
}

fn works((a, b): &mut (End, End)) {
    b.receive(1, &[]);
    a.post(2, Send {}, Inline(&[]), SIGNALED).unwrap();
    a.qp.sq().ring();
    assert_eq!(a.wait().status(), WcStatus::Success);
    assert_eq!(b.wait().status(), WcStatus::Success);
}

/// Places where nobody answers, with room for who connects and without, are no matter of the others.
#[test]
fn nodes_that_do_not_answer_are_not_waited_for() {
    let name = fabric_name();
    let crowded = [0, 1].map(|slot| Crowded::new(&name, slot));
    let silent = [2, 3].map(|slot| UnixListener::bind_addr(&place(&name, slot)).unwrap());
    let [a, b] = [(); 2].map(|()| {
        let name = name.clone();
        ends("opening", move || node(&name, Mode::Inline))
    });
    let mut pair = connected(&a, &b);
    works(&mut pair);
    // Queue pairs that are connected with them wait for their requests only, which run out of retries.
    for slot in 0..4 {
        let mut end = End::new(&a.alloc_pd(), Mode::Inline, &init());
        let endpoint = Endpoint {
            lid: slot + 1,
            qp_num: 7,
            ..Endpoint::default()
        };
        let mut end = ends("connecting", move || {
            let attr = ConnectAttr {
                timeout: 10,
                retry_cnt: 1,
                ..ConnectAttr::default()
            };
            end.qp.init(&attr).unwrap();
            end.qp.connect(&endpoint, &attr).unwrap();
            end
        });
        end.post(1, Send {}, Inline(&[]), SIGNALED).unwrap();
        end.qp.sq().ring();
        works(&mut pair);
        assert_eq!(end.outcome(), (1, WcStatus::RetryExcErr));
    }
    drop((crowded, silent));
}

/// Those who connect to a node and say nothing: more than it keeps, and for longer than it waits for them.
#[test]
fn silent_connections_are_not_waited_for() {
    let name = fabric_name();
    let a = node(&name, Mode::Inline);
    let silent: Vec<_> = (0..200)
        .map(|_| UnixStream::connect_addr(&place(&name, 0)).unwrap())
        .collect();
    let b = node(&name, Mode::Inline);
    works(&mut connected(&a, &b));
    // They are let go of, too.
    for mut stream in silent {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

/// One that ends each connection at once, as a node with too many callers does, is called again and again: whether the
/// caller had sent its hello by then or not.
#[test]
fn a_node_that_hangs_up_is_called_again() {
    const CALLS: usize = 10;
    let name = fabric_name();
    let listener = UnixListener::bind_addr(&place(&name, 0)).unwrap();
    let hangs_up = std::thread::spawn(move || {
        for _ in 0..CALLS {
            listener.accept().unwrap();
        }
    });
    let _caller = node(&name, Mode::Inline);
    until("the calls", || hangs_up.is_finished());
}

/// Queue pairs that were connected with a node before there was a link with it have one when it comes.
#[test]
fn requests_wait_for_a_link_that_comes() {
    let name = fabric_name();
    let crowded = Crowded::new(&name, 0);
    let a = node(&name, Mode::Inline);
    // The first of any node has this number.
    let first = |device: &Device| End::new(&device.alloc_pd(), Mode::Inline, &init());
    let qp_num = first(&node(&fabric_name(), Mode::Inline)).qp.qp_num();
    // Sent again after a second: the queue pair there is connected when the link has come.
    let attr = ConnectAttr {
        timeout: 18,
        ..ConnectAttr::default()
    };
    let mut early = first(&a);
    early.qp.init(&attr).unwrap();
    let lid = 1;
    let endpoint = Endpoint {
        lid,
        qp_num,
        ..Endpoint::default()
    };
    early.qp.connect(&endpoint, &attr).unwrap();
    early.post(1, Send {}, Inline(b"early"), SIGNALED).unwrap();
    early.qp.sq().ring();
    drop(crowded);
    let b = node(&name, Mode::Inline);
    let mut late = first(&b);
    assert_eq!((late.qp.endpoint().lid, late.qp.qp_num()), (lid, qp_num));
    late.qp.init(&attr).unwrap();
    late.receive(2, &[late.region.sge(0, 64)]);
    late.qp.connect(&early.qp.endpoint(), &attr).unwrap();
    assert_eq!(late.wait().status(), WcStatus::Success);
    assert_eq!(early.wait().status(), WcStatus::Success);
}
