use super::*;
use crate::connect::{FormatError, RemoteMemory};
use crate::qp::Endpoint;
use bellwire_core::qp::Mtu;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{Shutdown, TcpListener};
use std::thread::{self, sleep};
use std::time::Instant;

/// Far longer than anything takes that must not time out.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

fn info(qp_num: u32) -> ConnInfo {
    ConnInfo {
        endpoint: Endpoint {
            qp_num,
            psn: 5,
            lid: 6,
            gid: [7; 16],
        },
        mtu: Mtu::Mtu1024,
        memory: RemoteMemory {
            addr: 0x1000,
            length: 0x2000,
            rkey: 8,
        },
    }
}

fn listener() -> Listener {
    Listener::bind(Some("127.0.0.1"), 0).unwrap()
}

/// A connection whose other end is a plain socket, which can break the protocol.
fn with_plain() -> (Connection, TcpStream) {
    let listener = listener();
    let plain = TcpStream::connect(("127.0.0.1", listener.port())).unwrap();
    (listener.accept(LONG).unwrap(), plain)
}

/// The error of an exchange with a peer that sends these bytes and nothing more.
fn error_of(bytes: &[u8], then_closes: bool, within: Duration) -> TcpError {
    let (mut ours, mut plain) = with_plain();
    plain.write_all(bytes).unwrap();
    if then_closes {
        plain.shutdown(Shutdown::Write).unwrap();
    }
    ours.exchange(&info(1), within).unwrap_err()
}

#[test]
fn both_receive_what_the_other_sends_as_often_as_they_like() {
    let listener = listener();
    let port = listener.port();
    let client = thread::spawn(move || {
        let mut peer = Connection::connect("localhost", port, LONG).unwrap();
        let heard = [1, 2, 3].map(|n| peer.exchange(&info(n), LONG).unwrap());
        peer.barrier(LONG).unwrap();
        heard
    });
    let mut peer = listener.accept(LONG).unwrap();
    for n in [1, 2, 3] {
        assert_eq!(peer.exchange(&info(0x100 + n), LONG).unwrap(), info(n));
    }
    peer.barrier(LONG).unwrap();
    let heard = client.join().unwrap();
    assert_eq!(heard, [0x101, 0x102, 0x103].map(info));
}

#[test]
fn nobody_passes_a_barrier_alone() {
    let listener = listener();
    let port = listener.port();
    let passed = thread::spawn(move || {
        let mut peer = Connection::connect("127.0.0.1", port, LONG).unwrap();
        peer.barrier(LONG).unwrap();
        Instant::now()
    });
    let mut peer = listener.accept(LONG).unwrap();
    sleep(SHORT);
    let came = Instant::now();
    peer.barrier(LONG).unwrap();
    assert!(passed.join().unwrap() >= came);
}

#[test]
fn every_stage_ends_in_time() {
    let listener = listener();
    let begun = Instant::now();
    let accepted = listener.accept(SHORT).unwrap_err();
    let waited = Waited::Accept {
        port: listener.port(),
    };
    assert!(
        matches!(&accepted, TcpError::TimedOut { waited: what, .. } if *what == waited),
        "{accepted}"
    );
    assert!(begun.elapsed() >= SHORT);
    // An expired limit returns at once.
    assert!(listener.accept(Duration::ZERO).is_err());

    let silent = error_of(b"", false, SHORT).to_string();
    assert!(silent.contains("sent 0 of 64 bytes"), "{silent}");
    assert!(silent.contains("within 100ms"), "{silent}");
    let half = error_of(&info(1).to_bytes()[..40], false, SHORT).to_string();
    assert!(half.contains("sent 40 of 64 bytes"), "{half}");

    let (mut ours, _plain) = with_plain();
    let late = ours.barrier(SHORT).unwrap_err();
    assert!(matches!(late, TcpError::TimedOut { .. }), "{late}");
}

/// However often data arrives, the limit is for the whole.
#[test]
fn a_peer_that_drips_is_given_up_as_well() {
    let (mut ours, mut plain) = with_plain();
    let dripping = thread::spawn(move || {
        let mut dripped = 0;
        for byte in info(1).to_bytes() {
            dripped += usize::from(plain.write_all(&[byte]).is_ok());
            sleep(Duration::from_millis(20));
        }
        dripped
    });
    let late = ours.exchange(&info(1), SHORT).unwrap_err();
    let got = match late {
        TcpError::TimedOut {
            waited: Waited::Receive { got, .. },
            ..
        } => got,
        other => panic!("{other}"),
    };
    assert!(got < ConnInfo::BYTES, "{got}");
    assert!(dripping.join().unwrap() >= got);
}

#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    let (mut ours, _plain) = with_plain();
    let more_than_buffers_hold = vec![0; 64 << 20];
    let late = ours.send(&more_than_buffers_hold, SHORT).unwrap_err();
    assert!(late.to_string().contains("takes no more"), "{late}");
}

#[test]
fn a_peer_that_vanishes_is_reported_at_once() {
    let bytes = info(1).to_bytes();
    for got in [0, 1, 16, 63] {
        let gone = error_of(&bytes[..got], true, LONG);
        assert!(
            matches!(gone, TcpError::Closed { got: at, due: 64 } if at == got),
            "{gone}"
        );
    }
    let (mut ours, plain) = with_plain();
    drop(plain);
    let gone = ours.barrier(LONG).unwrap_err();
    assert!(matches!(gone, TcpError::Closed { .. }), "{gone}");
    // By now the system has noticed as well.
    sleep(SHORT);
    let sent = (0..100).find_map(|_| ours.send(&[0; 1000], LONG).err());
    assert!(matches!(sent, Some(TcpError::Closed { due: 0, .. })));
}

#[test]
fn garbage_is_reported_before_more_of_it_is_waited_for() {
    let format = |bytes: &[u8]| match error_of(bytes, false, LONG) {
        TcpError::Format(error) => error,
        other => panic!("{other}"),
    };
    assert_eq!(
        format(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        FormatError::Foreign
    );
    let mut header = [0; HEADER];
    header.copy_from_slice(&info(1).to_bytes()[..HEADER]);
    let mut newer = header;
    newer[9] = 9;
    let version = format(&newer);
    assert_eq!(version, FormatError::Version { given: 9, ours: 1 });
    assert!(version.to_string().contains("same version"), "{version}");
    for length in [0u32, 49, 1 << 20, u32::MAX] {
        let mut wrong = header;
        wrong[12..].copy_from_slice(&length.to_be_bytes());
        let (given, needed) = (length as usize, 48);
        assert_eq!(format(&wrong), FormatError::Length { given, needed });
    }
    let mut bytes = info(1).to_bytes();
    bytes[26] = 77;
    let (field, given) = ("MTU", 77);
    assert_eq!(format(&bytes), FormatError::Field { field, given });
}

#[test]
fn ends_at_different_steps_are_an_error() {
    assert!(matches!(
        error_of(&Kind::Barrier.header(), false, LONG),
        TcpError::Format(FormatError::OutOfStep)
    ));
    // One message too many arrives where the barrier is expected.
    let (mut ours, mut plain) = with_plain();
    plain.write_all(&info(1).to_bytes()).unwrap();
    plain.write_all(&info(2).to_bytes()).unwrap();
    assert_eq!(ours.exchange(&info(3), LONG).unwrap(), info(1));
    let out = ours.barrier(LONG).unwrap_err();
    assert!(
        matches!(out, TcpError::Format(FormatError::OutOfStep)),
        "{out}"
    );
}

#[test]
fn a_port_is_listened_on_once() {
    for host in [None, Some("127.0.0.1")] {
        let first = Listener::bind(host, 0).unwrap();
        let second = Listener::bind(host, first.port()).unwrap_err().to_string();
        assert!(second.contains("take another port"), "{second}");
        let port = first.port();
        drop(first);
        Listener::bind(host, port).unwrap();
    }
    let elsewhere = Listener::bind(Some("192.0.2.1"), 0).unwrap_err();
    assert!(elsewhere.to_string().contains("of this host"));
}

#[test]
fn where_nobody_listens_nobody_is_waited_for() {
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let nobody = Connection::connect("127.0.0.1", port, LONG).unwrap_err();
    assert!(matches!(nobody, TcpError::Connect { .. }), "{nobody}");
    assert!(nobody.to_string().contains("start the other end first"));

    for host in ["", "no host has spaces"] {
        let unknown = Connection::connect(host, 1, LONG).unwrap_err().to_string();
        assert!(unknown.contains("no address of host"), "{host}: {unknown}");
    }
    let none = Connection::connect("localhost", port, Duration::ZERO).unwrap_err();
    assert!(matches!(none, TcpError::TimedOut { .. }), "{none}");
}

/// A listener whose queue is full does not respond, and neither does a missing host.
#[test]
fn a_host_that_does_not_answer_is_given_up() {
    let listener = listener();
    let mut waiting = Vec::new();
    let late = loop {
        match Connection::connect("127.0.0.1", listener.port(), SHORT) {
            Ok(connection) => waiting.push(connection),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10_000, "the queue has no end");
    };
    assert!(
        late.to_string().contains("no answer from 127.0.0.1"),
        "{late}"
    );
}

#[test]
fn a_listener_is_waited_for_by_its_descriptor() {
    let listener = listener();
    let peers = || {
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap()
    };
    let none = listener.accept(Duration::ZERO).unwrap_err();
    assert!(matches!(none, TcpError::TimedOut { .. }), "{none}");
    assert_eq!(peers(), 0);
    let _peer = Connection::connect("127.0.0.1", listener.port(), LONG).unwrap();
    assert_eq!(peers(), 1);
    listener.accept(Duration::ZERO).unwrap();
    assert_eq!(peers(), 0);
}

#[test]
fn all_addresses_are_tried() {
    // IPv4 only, while the name may have an address of each family.
    let listener = Listener::bind(Some("127.0.0.1"), 0).unwrap();
    Connection::connect("localhost", listener.port(), LONG).unwrap();
    let listener = Listener::bind(None, 0).unwrap();
    Connection::connect("127.0.0.1", listener.port(), LONG).unwrap();
}
