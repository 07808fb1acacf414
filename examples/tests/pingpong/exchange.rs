//! Peers that exchange addresses as rdma-core's programs do, or wrongly, and play no game.

use super::common::{Ran, run};
use super::processes::name;
use super::stock::line;
use super::{KINDS, failed, server};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// The server's fate with a peer that does this and goes.
fn server_with(kind: &str, act: impl FnOnce(&mut TcpStream)) -> Ran {
    let device = format!("soft:{}", name("strange"));
    let arguments = ["-t", kind, "-d", &device, "--timeout", "1"];
    let (listening, port) = server(&arguments);
    let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
    act(&mut peer);
    let ran = listening.end();
    drop(peer);
    ran
}

/// The client's, with a server that does this and goes.
fn client_with(act: impl FnOnce(&mut TcpStream) + Send + 'static) -> Ran {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let server = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        act(&mut peer);
        // Until the client has ended.
        let _ = wait.recv();
    });
    let device = format!("soft:{}", name("strange"));
    let arguments = ["-d", &device, "--timeout", "1", "-p", &port, "127.0.0.1"];
    let ran = run("pingpong", &arguments);
    drop(done);
    server.join().unwrap();
    ran
}

fn closes(peer: &mut TcpStream) {
    peer.shutdown(std::net::Shutdown::Both).unwrap();
}

#[test]
fn a_peer_that_vanishes_in_the_exchange_is_reported() {
    let ours = line(1, 0x42, 7, [0; 16]);
    for kind in KINDS {
        failed(&server_with(kind, |_| ()), "sent 0 of");
        failed(&server_with(kind, closes), "has closed the connection");
        let some = |peer: &mut TcpStream| peer.write_all(&ours[..20]).unwrap();
        failed(&server_with(kind, some), "sent 20 of");
    }
    // It hears the server's addresses, and says no more.
    let silent = |peer: &mut TcpStream| peer.write_all(&ours).unwrap();
    failed(
        &server_with("rc", silent),
        "waiting for the peer's \"done\"",
    );
    failed(&client_with(|_| ()), "sent 0 of 52 bytes");
    failed(&client_with(closes), "has closed the connection");
    let half = ours[..51].to_vec();
    let half = move |peer: &mut TcpStream| peer.write_all(&half).unwrap();
    failed(&client_with(half), "sent 51 of 52 bytes");
}

#[test]
fn garbage_in_the_exchange_is_reported() {
    let good = line(1, 0x42, 7, [0; 16]);
    let says = |bytes: &[u8]| {
        let bytes = bytes.to_vec();
        move |peer: &mut TcpStream| peer.write_all(&bytes).unwrap()
    };
    let http = b"GET / HTTP/1.1\r\nHost: somebody.who.is.elsewhere\r\n\r\n....";
    failed(&server_with("rc", says(http)), "makes no sense");
    failed(&client_with(says(http)), "makes no sense");
    for (at, byte) in [(4, b'.'), (0, b'x'), (51, b'0'), (5, 0), (20, 0xff)] {
        let mut wrong = good.clone();
        wrong[at] = byte;
        failed(&server_with("uc", says(&wrong)), "makes no sense");
        failed(&client_with(says(&wrong)), "makes no sense");
    }
    let nobody = line(1, 0, 7, [0; 16]);
    failed(&server_with("ud", says(&nobody)), "number 0");
    let nowhere = line(0, 0x42, 7, [0; 16]);
    failed(&server_with("rc", says(&nowhere)), "neither LID nor GID");
    failed(&client_with(says(&nowhere)), "neither LID nor GID");
    let wrong = [&good[..], b"gone\0"].concat();
    failed(
        &server_with("rc", says(&wrong)),
        "\"gone\\0\" where \"done\" is due",
    );
    // Behind the one queue pair that there is.
    let two = [&good[..], &good, &vec![0; 254 * 52]].concat();
    failed(&server_with("srq", says(&two)), "makes no sense");
    let none = line(0, 0, 0, [0; 16]).repeat(254);
    let two = [&good[..], &good, &none].concat();
    failed(
        &server_with("srq", says(&two)),
        "the peer has 2 queue pairs",
    );
}

/// ibv_srq_pingpong's 256 lines, either way.
#[test]
fn the_exchange_of_srq_is_rdma_cores() {
    let device = format!("soft:{}", name("lines"));
    let arguments = ["-t", "srq", "-q", "2", "-d", &device, "--timeout", "1"];
    let zero = line(0, 0, 0, [0; 16]);
    let ours = [line(1, 0x42, 7, [0; 16]), line(1, 0x43, 8, [0; 16])].concat();
    let ours = [ours, zero.repeat(254)].concat();
    let lines = move |bytes: &[u8]| {
        assert_eq!(bytes.len(), 256 * 52);
        for (n, heard) in bytes.chunks(52).enumerate() {
            assert_eq!(heard == zero, n >= 2, "line {n}");
        }
    };

    let (listening, port) = server(&arguments);
    let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for line in ours.chunks(52) {
        assert_eq!(peer.write(line).unwrap(), 52);
    }
    let mut theirs = vec![0; 256 * 52];
    peer.read_exact(&mut theirs).unwrap();
    lines(&theirs);
    peer.write_all(b"done\0").unwrap();
    // And that is all: it waits for messages now.
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    failed(
        &listening.end(),
        "nothing has come for 1s, after 0 of 1000 messages",
    );

    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let serving = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut theirs = vec![0; 256 * 52];
        peer.read_exact(&mut theirs).unwrap();
        lines(&theirs);
        peer.write_all(&ours).unwrap();
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"done\0");
    });
    let ran = run(
        "pingpong",
        &[&arguments[..], &["-p", &port, "localhost"]].concat(),
    );
    serving.join().unwrap();
    // There are no such queue pairs.
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
}
