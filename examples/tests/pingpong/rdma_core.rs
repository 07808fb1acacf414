//! rdma-core's ibv_rc_pingpong as the other side.

use super::common::run;
use super::processes::name;
use super::stock::Stock;
use super::{failed, right, server};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// rdma-core's client, as its source has it: what it sends and when, byte for byte.
#[test]
fn rdma_cores_client_is_served() {
    for marked in [false, true] {
        let fabric = name("client");
        let device = format!("soft:{fabric}");
        let (listening, port) = server(&["-d", &device, "-s", "9000", "-n", "30", "-r", "10"]);
        let mut stock = Stock::new(&fabric, 9000);
        stock.fill(0x7b, marked);
        let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(peer.write(&stock.line()).unwrap(), 52);
        let mut theirs = [0; 52];
        // Theirs does one read.
        assert_eq!(peer.read(&mut theirs).unwrap(), 52);
        assert_eq!(peer.write(b"done\0").unwrap(), 5);
        drop(peer);
        stock.connect(&theirs);
        stock.play(true, 30);
        let ran = listening.end();
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        right(&ran, 2 * 30 * 9000, 30);
    }
}

/// A client of whom the server does not know what it sends, and one that changes its mind.
#[test]
fn wrong_data_is_reported() {
    for (fill, later, advice) in [
        (0x11, 0x11, "the first message is of no pingpong's client"),
        (0x7b, 0x7c, "the data is wrong"),
    ] {
        let fabric = name("wrong");
        let device = format!("soft:{fabric}");
        let arguments = ["-d", &device, "-s", "100", "-n", "30", "--timeout", "5"];
        let (listening, port) = server(&arguments);
        let mut stock = Stock::new(&fabric, 100);
        stock.fill(fill, false);
        let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
        peer.write_all(&stock.line()).unwrap();
        let mut theirs = [0; 52];
        peer.read_exact(&mut theirs).unwrap();
        peer.write_all(b"done\0").unwrap();
        stock.connect(&theirs);
        stock.send();
        if later != fill {
            stock.take_both();
            stock.fill(later, false);
            stock.send();
        }
        failed(&listening.end(), advice);
    }
}

/// rdma-core's server, likewise.
#[test]
fn rdma_cores_server_is_played_with() {
    let fabric = name("server");
    let device = format!("soft:{fabric}");
    let mut stock = Stock::new(&fabric, 9000);
    stock.fill(0x7b, false);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let serving = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut theirs = [0; 52];
        assert_eq!(peer.read(&mut theirs).unwrap(), 52);
        stock.connect(&theirs);
        assert_eq!(peer.write(&stock.line()).unwrap(), 52);
        // Theirs has room for a line, and wants five bytes of one read.
        let mut done = [0; 52];
        assert_eq!(peer.read(&mut done).unwrap(), 5);
        assert_eq!(&done[..5], b"done\0");
        drop(peer);
        stock.play(false, 30);
        stock.memory()
    });
    let arguments = [
        "-d",
        &device,
        "-s",
        "9000",
        "-n",
        "30",
        "-p",
        &port,
        "localhost",
    ];
    let ran = run("pingpong", &arguments);
    let memory = serving.join().unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    right(&ran, 2 * 30 * 9000, 30);
    // What it checks for with -c.
    assert_eq!([memory[0], memory[4096], memory[8192]], [0; 3]);
}
