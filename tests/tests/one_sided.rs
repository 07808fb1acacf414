//! One-sided operations between two processes: the peer is stopped, and they are done all the same.

use bellwire::wqe::{AtomicFetchAndAdd, Inline, RdmaRead, RdmaWrite, Send};
use bellwire::wr::{Remote, WcStatus};
use bellwire::{ConnectAttr, Device, Endpoint};
use bellwire_tests::fixture::{End, SIGNALED, fabric_name, init};
use bellwire_tests::patience::assert_within;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Makes this program the peer, on the fabric of this name.
const ROLE: &str = "BELLWIRE_TEST_PEER";

fn end(device: &Device) -> End {
    End::new(&device.alloc_pd(), bellwire::soft::Mode::Inline, &init())
}

fn card(end: &End) -> Value {
    let Endpoint {
        qp_num,
        psn,
        lid,
        gid,
        ..
    } = end.qp.endpoint();
    let Remote { addr, rkey } = end.region.remote(0);
    json!({"qp_num": qp_num, "psn": psn, "lid": lid, "gid": gid, "addr": addr, "rkey": rkey})
}

fn number(card: &Value, what: &str) -> u64 {
    card[what]
        .as_u64()
        .unwrap_or_else(|| panic!("{what} of {card}"))
}

fn endpoint(card: &Value) -> Endpoint {
    let byte = |at: usize| card["gid"][at].as_u64().expect("a byte") as u8;
    Endpoint {
        qp_num: number(card, "qp_num") as u32,
        psn: number(card, "psn") as u32,
        lid: number(card, "lid") as u16,
        gid: std::array::from_fn(byte),
    }
}

/// The peer: connects, then does nothing but answer what its memory says.
#[test]
#[ignore = "what the other tests start"]
fn peer() {
    let name = std::env::var(ROLE).expect("started by another test");
    let device = Device::open(&format!("soft:{name}")).unwrap();
    let mut ours = end(&device);
    println!("\n{}", card(&ours));
    let mut lines = std::io::stdin().lines().map(|line| line.unwrap());
    let theirs: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    let attr = ConnectAttr::default();
    ours.qp.init(&attr).unwrap();
    ours.receive(1, &[]);
    ours.qp.connect(&endpoint(&theirs), &attr).unwrap();
    println!("{}", json!({"connected": true}));
    // Its first message: polled for, so that the connection is under way.
    assert_eq!(ours.outcome(), (1, WcStatus::Success));
    while lines.next().is_some() {
        let word = ours
            .region
            .word(0)
            .load(std::sync::atomic::Ordering::Acquire);
        println!("{}", json!({"word": word}));
    }
}

struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    fn start(name: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "peer", "--nocapture"])
            .env(ROLE, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            stdin,
            stdout,
        }
    }

    fn say(&mut self, value: &Value) {
        writeln!(self.stdin, "{value}").unwrap();
    }

    /// The next line that is an object: the harness has its own.
    fn hear(&mut self) -> Value {
        let mut line = String::new();
        while !line.starts_with('{') {
            line.clear();
            assert_ne!(
                self.stdout.read_line(&mut line).unwrap(),
                0,
                "the peer ended"
            );
        }
        serde_json::from_str(&line).unwrap()
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: takes numbers; the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn connected() -> (Device, End, Peer, Remote) {
    let name = fabric_name();
    let device = Device::open(&format!("soft:{name}")).unwrap();
    assert_eq!(device.name(), format!("soft:{name}"));
    let mut ours = end(&device);
    let mut peer = Peer::start(&name);
    let theirs = peer.hear();
    peer.say(&card(&ours));
    let attr = ConnectAttr {
        timeout: 14,
        retry_cnt: 1,
        ..ConnectAttr::default()
    };
    ours.qp.init(&attr).unwrap();
    ours.qp.connect(&endpoint(&theirs), &attr).unwrap();
    peer.hear();
    ours.go(1, Send {}, Inline(b""));
    assert_eq!(ours.outcome(), (1, WcStatus::Success));
    let remote = Remote {
        addr: number(&theirs, "addr"),
        rkey: number(&theirs, "rkey") as u32,
    };
    (device, ours, peer, remote)
}

#[test]
fn a_stopped_peer_is_written_read_and_counted() {
    let (_device, mut ours, mut peer, remote) = connected();
    peer.signal(libc::SIGSTOP);
    ours.go(1, RdmaWrite { remote }, Inline(&41u64.to_ne_bytes()));
    assert_eq!(ours.outcome(), (1, WcStatus::Success));
    let here = ours.region.sge(64, 8);
    ours.go(2, AtomicFetchAndAdd { remote, add: 1 }, here);
    assert_eq!(ours.outcome(), (2, WcStatus::Success));
    let here = ours.region.sge(128, 8);
    ours.go(3, RdmaRead { remote }, here);
    assert_eq!(ours.outcome(), (3, WcStatus::Success));
    let word = |at| {
        ours.region
            .word(at)
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!((word(64), word(128)), (41, 42));
    peer.signal(libc::SIGCONT);
    peer.say(&json!({}));
    assert_eq!(number(&peer.hear(), "word"), 42);
}

#[test]
fn a_stopped_peer_takes_no_message_in_bounded_time() {
    let (_device, mut ours, peer, remote) = connected();
    peer.signal(libc::SIGSTOP);
    let start = Instant::now();
    ours.post(1, Send {}, Inline(b"x"), SIGNALED).unwrap();
    ours.go(2, RdmaWrite { remote }, Inline(b"y"));
    assert_eq!(ours.outcome(), (1, WcStatus::RetryExcErr));
    assert_eq!(ours.outcome(), (2, WcStatus::WrFlushErr));
    // Two time-outs of 67 ms.
    assert_within(start.elapsed(), Duration::from_secs(1));
    peer.signal(libc::SIGCONT);
}

#[test]
fn a_killed_peer_is_found_out() {
    let (_device, mut ours, mut peer, remote) = connected();
    peer.child.kill().unwrap();
    peer.child.wait().unwrap();
    ours.post(1, RdmaWrite { remote }, Inline(b"x"), SIGNALED)
        .unwrap();
    ours.go(2, Send {}, Inline(b"y"));
    let (first, second) = (ours.outcome(), ours.outcome());
    // Its memory outlives it by as long as it takes to hear of its end.
    assert!(
        first == (1, WcStatus::RetryExcErr) || first == (1, WcStatus::Success),
        "{first:?}"
    );
    let behind = if first.1 == WcStatus::Success {
        WcStatus::RetryExcErr
    } else {
        WcStatus::WrFlushErr
    };
    assert_eq!(second, (2, behind));
}
