//! Operations between two processes, of which the peer is stopped. One-sided operations are executed all the same, and
//! messages are sent.

use bellwire::state::{QpAttr, QpAttrMask, QpState};
use bellwire::wqe::{AtomicFetchAndAdd, Inline, RdmaRead, RdmaWrite, Send};
use bellwire::wr::{Remote, SendFlags, WcStatus};
use bellwire::{ConnectAttr, Device, Endpoint, QpInit};
use bellwire_tests::fixture::{End, SIGNALED, fabric_name, init};
use bellwire_tests::patience::{assert_within, lasting};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Makes this program the peer, on the fabric of this name.
const ROLE: &str = "BELLWIRE_TEST_PEER";

/// More requests in succession than it takes until their thread holds the turn to send.
const HABIT: u64 = 200;

fn end(device: &Device) -> End {
    let init = QpInit {
        max_send_wr: HABIT as u32 + 1,
        max_recv_wr: HABIT as u32 + 1,
        ..init()
    };
    End::new(&device.alloc_pd(), bellwire::soft::Mode::Inline, &init)
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

fn cards(ends: &[End]) -> Value {
    json!({"cards": ends.iter().map(card).collect::<Vec<_>>()})
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

/// The peer: connects as many ends as the other process has, and then does what each line says.
#[test]
#[ignore = "what the other tests start"]
fn peer() {
    let name = std::env::var(ROLE).expect("started by another test");
    let device = Device::open(&format!("soft:{name}")).unwrap();
    let mut lines = (std::io::stdin().lines())
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let theirs = lines.next().unwrap();
    let theirs = theirs["cards"].as_array().unwrap();
    let mut ours: Vec<End> = theirs.iter().map(|_| end(&device)).collect();
    println!("\n{}", cards(&ours));
    let attr = ConnectAttr::default();
    for (ours, theirs) in ours.iter_mut().zip(theirs) {
        ours.qp.init(&attr).unwrap();
        ours.receive(1, &[]);
        ours.qp.connect(&endpoint(theirs), &attr).unwrap();
    }
    println!("{}", json!({"connected": true}));
    // The first message of each: polled for, so that the connection is under way.
    for ours in &mut ours {
        assert_eq!(ours.outcome(), (1, WcStatus::Success));
    }
    for line in lines {
        if let Some(last) = line["post"].as_u64() {
            for ours in &mut ours {
                (2..=last).for_each(|wr_id| ours.receive(wr_id, &[]));
            }
        }
        let first = &mut ours[0];
        if let Some(last) = line["receive"].as_u64() {
            for wr_id in 2..=last {
                assert_eq!(first.outcome(), (wr_id, WcStatus::Success));
            }
        }
        let word = (first.region.word(0)).load(std::sync::atomic::Ordering::Acquire);
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

    /// Stops the peer, and waits until all its threads are stopped.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: the child has not been waited for.
        let stopped =
            unsafe { libc::waitpid(self.child.id() as i32, &mut status, libc::WUNTRACED) };
        assert!(stopped == self.child.id() as i32 && libc::WIFSTOPPED(status));
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
    let attr = ConnectAttr {
        timeout: 14,
        retry_cnt: 1,
        ..ConnectAttr::default()
    };
    let (device, [ours], peer, remote) = connected_by(&attr);
    (device, ours, peer, remote)
}

/// So many connections with one peer, and what may be written there by the first.
fn connected_by<const COUNT: usize>(attr: &ConnectAttr) -> (Device, [End; COUNT], Peer, Remote) {
    let name = fabric_name();
    let device = Device::open(&format!("soft:{name}")).unwrap();
    assert_eq!(device.name(), format!("soft:{name}"));
    let mut all = std::array::from_fn(|_| end(&device));
    let mut peer = Peer::start(&name);
    peer.say(&cards(&all));
    let theirs = peer.hear();
    for (at, ours) in all.iter_mut().enumerate() {
        ours.qp.init(attr).unwrap();
        ours.qp
            .connect(&endpoint(&theirs["cards"][at]), attr)
            .unwrap();
    }
    peer.hear();
    for ours in &mut all {
        ours.go(1, Send {}, Inline(b""));
        assert_eq!(ours.outcome(), (1, WcStatus::Success));
    }
    let first = &theirs["cards"][0];
    let remote = Remote {
        addr: number(first, "addr"),
        rkey: number(first, "rkey") as u32,
    };
    (device, all, peer, remote)
}

#[test]
fn a_stopped_peer_is_written_read_and_counted() {
    let (_device, mut ours, mut peer, remote) = connected();
    peer.stop();
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
    peer.stop();
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

/// A thread that sends often keeps the turn to send to the peer. Another thread takes the turn away. It does not wait until
/// the peer has acknowledged its earlier request.
#[test]
fn a_turn_to_send_is_taken_away_behind_an_outstanding_request() {
    let (_device, [mut ours, mut often], mut peer, _) = connected_by(&lasting());
    peer.say(&json!({"post": HABIT}));
    peer.hear();
    peer.stop();
    let send = |end: &mut End, wr_id| {
        end.post(wr_id, Send {}, Inline(b""), SendFlags::empty())
            .unwrap();
        end.qp.sq().ring();
    };
    send(&mut ours, 2);
    std::thread::scope(|scope| {
        scope.spawn(|| (2..HABIT).for_each(|wr_id| send(&mut often, wr_id)));
    });
    send(&mut ours, 3);
    // In SQD, no request is sent that was not sent before.
    let draining = QpAttr {
        qp_state: QpState::Sqd,
        ..QpAttr::default()
    };
    ours.qp.modify(&draining, QpAttrMask::STATE).unwrap();
    peer.signal(libc::SIGCONT);
    peer.say(&json!({"receive": 3}));
    peer.hear();
}
