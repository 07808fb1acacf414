//! Who a process is, and whose a fabric is: users that change, namespaces, a /proc that shows other processes, and
//! programs that nobody may read.
//!
//! A test's parent only starts processes and carries messages between two of them: an active end, which connects to
//! a passive one, writes to its memory and reads it back.

use crate::Area;
use bellwire::link::{Link, LinkInit, LinkState};
use bellwire::wqe::{RdmaRead, RdmaWrite};
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Device};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{DEADLINE, End, fabric_name, init};
use bellwire_tests::parent::{Parent, card, read_card};
use serde_json::{Value, json};
use std::ffi::CString;
use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

/// The area.
pub const AREA: Area = Area {
    roles: &[("identity", play), ("identity-proc", play_in_wrong_proc)],
    tests: &[
        ("one_user", one_user),
        ("listener_changes_its_user", || with_users([NOBODY, ""])),
        ("caller_changes_its_user", || with_users(["", NOBODY])),
        ("both_change_their_user", || with_users([NOBODY, NOBODY])),
        ("they_become_different_users", || {
            with_users([NOBODY, DAEMON])
        }),
        ("two_users_of_one_name", two_users),
        ("two_names", two_names),
        ("a_user_namespace", user_namespace),
        ("a_pid_namespace", pid_namespace),
        ("proc_of_another_pid_namespace", wrong_proc),
        ("without_proc", without_proc),
        ("a_program_that_nobody_may_read", unreadable_program),
    ],
};

/// Users to change to.
const NOBODY: &str = "user 65534";
const DAEMON: &str = "user 1";

const BYTES: usize = 1 << 16;

fn check(result: libc::c_int) {
    assert!(result >= 0, "{}", io::Error::last_os_error());
}

fn is_root() -> bool {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() == 0 }
}

/// `true`: it cannot run, and says so.
fn lacks_root(what: &str) -> bool {
    if !is_root() {
        println!("ignored: {what} needs root");
    }
    !is_root()
}

/// Does what an order says to this process.
fn suffer(what: &str) {
    match what.split_once(' ').unwrap_or((what, "")) {
        ("user", uid) => {
            let uid = uid.parse().expect("a number");
            // SAFETY: take numbers.
            check(unsafe { libc::setresgid(uid, uid, uid) });
            // SAFETY: as above.
            check(unsafe { libc::setresuid(uid, uid, uid) });
        }
        ("pid", _) => first_of_namespace(),
        ("namespace", _) => {
            // SAFETY: takes flags. Its user has no number in it.
            check(unsafe { libc::unshare(libc::CLONE_NEWUSER) });
        }
        ("root", path) => {
            let path = CString::new(path).expect("a path");
            // SAFETY: a string.
            check(unsafe { libc::chroot(path.as_ptr()) });
            // SAFETY: a string.
            check(unsafe { libc::chdir(c"/".as_ptr()) });
        }
        (what, _) => panic!("no such event: {what}"),
    }
}

/// Goes on as the first process of a PID namespace. The process that has been started waits for it.
fn first_of_namespace() {
    // SAFETY: takes flags.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) });
    if let Some(status) = fork() {
        std::process::exit(status());
    }
}

/// In the parent, the end of the child: its exit code. `None` in the child, which dies with its parent.
fn fork() -> Option<impl FnOnce() -> i32> {
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    check(pid);
    if pid == 0 {
        // SAFETY: takes numbers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) });
        return None;
    }
    Some(move || {
        let mut status = 0;
        // SAFETY: the status is written.
        check(unsafe { libc::waitpid(pid, &raw mut status, 0) });
        match libc::WIFEXITED(status) {
            true => libc::WEXITSTATUS(status),
            false => 1,
        }
    })
}

/// In the environment: what happens to a process before it does anything, a line each.
const BEFORE: &str = "BELLWIRE_TEST_BEFORE";

/// An end that the parent orders about.
fn play() {
    // Before there is a second thread: some calls are for processes with one.
    for what in std::env::var(BEFORE).unwrap_or_default().lines() {
        suffer(what);
    }
    let parent = Parent::start();
    let order = parent.hear("open");
    let device = Device::open(order["device"].as_str().expect("a name"));
    let device = match device {
        Ok(device) => device,
        Err(error) => return parent.say("opened", json!(error.to_string())),
    };
    parent.say("opened", Value::Null);
    let mut end = End::new(&device.alloc_pd(), bellwire::soft::Mode::Inline, &init());
    for what in parent.hear("after").as_array().into_iter().flatten() {
        suffer(what.as_str().expect("words"));
    }
    parent.say("card", card(&end.qp, end.region.remote(0)));
    let (peer, remote) = read_card(&parent.hear("peer"));
    let attr = ConnectAttr::default();
    let connected = (end.qp.init(&attr)).and_then(|()| end.qp.connect(&peer, &attr));
    let error = connected.err().map(|error| error.to_string());
    parent.say("connected", json!(error));
    while let Some(order) = parent.next("go") {
        if order == json!("link") {
            parent.say("linked", json!(link(&device, &parent)));
            continue;
        }
        // Everything: what is mapped of the peer's memory is written directly, the rest travels in packets.
        let byte = order.as_u64().expect("a byte") as u8;
        end.region.write(0, &[byte; BYTES]);
        let mut done = [WcStatus::Success; 2];
        end.go(1, RdmaWrite { remote }, end.region.sge(0, BYTES as u32));
        done[0] = end.wait().status();
        end.region.write(0, &[0; BYTES]);
        end.go(2, RdmaRead { remote }, end.region.sge(0, BYTES as u32));
        done[1] = end.wait().status();
        let mut read = [0; BYTES];
        end.region.read(0, &mut read);
        let same = read.iter().filter(|read| **read == byte).count();
        parent.say("done", json!({"status": format!("{done:?}"), "same": same}));
    }
}

/// Links by the parent's hands. What the link says of its end.
fn link(device: &Device, parent: &Parent) -> Option<String> {
    let address = parent.hear("address");
    let exchange = match address.as_str() {
        Some(address) => {
            let (host, port) = address.rsplit_once(':').expect("a port");
            let port = port.parse().expect("a number");
            let peer = bellwire::connect::tcp::Connection::connect(host, port, DEADLINE);
            peer.expect("the other end listens")
        }
        None => {
            let listener = bellwire::connect::tcp::Listener::bind(Some("127.0.0.1"), 0);
            let listener = listener.expect("a port");
            parent.say("listens", json!(format!("127.0.0.1:{}", listener.port())));
            listener.accept(DEADLINE).expect("the other end comes")
        }
    };
    let exchange = exchange.into_exchange().expect("a socket");
    let mut link = Link::new(&device.alloc_pd(), LinkInit::default(), exchange).expect("a link");
    let start = Instant::now();
    loop {
        link.poll(1, |_| {});
        match link.state() {
            LinkState::Ready => return None,
            LinkState::Ended(end) => {
                let why = link.exchange_error().map(ToString::to_string);
                return Some(format!("{end}; {}", why.unwrap_or_default()));
            }
            LinkState::Recovering => assert!(start.elapsed() < DEADLINE, "it hangs"),
        }
    }
}

/// What two ends say.
struct Said {
    opened: [Value; 2],
    connected: [Value; 2],
}

/// Two ends that have been told to connect. `before` and `after`: what happens to each before and after it opens its
/// device.
struct Two {
    ends: [Child; 2],
    said: Said,
}

/// A process in a role, to which this happens first.
fn end(name: &str, before: &[&str]) -> Child {
    let home = tempfile::tempdir().expect("a folder");
    let mut program = Command::new(std::env::current_exe().expect("a path"));
    program.env(BEFORE, before.join("\n"));
    Child::start_by(program, "identity", name.to_owned(), home.path())
}

impl Two {
    /// `after`: what happens to each once its device is open.
    fn meet(mut ends: [Child; 2], devices: [&str; 2], after: [&[&str]; 2]) -> Self {
        let mut opened = [Value::Null, Value::Null];
        for (at, end) in ends.iter_mut().enumerate() {
            end.send("open", json!({"device": devices[at]}));
            opened[at] = end.hear("opened");
        }
        assert!(opened.iter().all(Value::is_null), "{opened:?}");
        let mut cards = Vec::new();
        for (end, after) in ends.iter_mut().zip(after) {
            end.send("after", json!(after));
            cards.push(end.hear("card"));
        }
        ends[0].send("peer", cards[1].clone());
        ends[1].send("peer", cards[0].clone());
        let connected = [0, 1].map(|at: usize| ends[at].hear("connected"));
        let said = Said { opened, connected };
        Self { ends, said }
    }

    /// Each writes to the other's memory, twice, and reads it back.
    fn reach_each_other(mut self) {
        assert!(
            self.said.connected.iter().all(Value::is_null),
            "{:?}",
            self.said.connected
        );
        for round in 1..=2 {
            for end in &mut self.ends {
                end.send("go", json!(round));
                let done = end.hear("done");
                assert_eq!(done["status"], "[Success, Success]");
                assert_eq!(done["same"], BYTES);
            }
        }
        self.end();
    }

    /// Both ends say this, whether they connect queue pairs or links.
    fn are_refused(mut self, words: &str) {
        for connected in &self.said.connected {
            let text = connected.as_str().unwrap_or_default();
            assert!(text.contains(words), "{connected} has no {words:?}");
        }
        let [a, b] = &mut self.ends;
        a.send("go", json!("link"));
        a.send("address", Value::Null);
        let address = a.hear("listens");
        b.send("go", json!("link"));
        b.send("address", address);
        for end in &mut self.ends {
            let linked = end.hear("linked");
            let text = linked.as_str().unwrap_or_default();
            assert!(text.contains(words), "{linked} has no {words:?}");
        }
        self.end();
    }

    fn end(self) {
        let _said = self.said.opened;
        self.ends.into_iter().for_each(Child::end);
    }
}

fn device() -> String {
    format!("soft:{}", fabric_name())
}

/// Nothing happens to either.
const NOTHING: [&[&str]; 2] = [&[], &[]];

/// Two ends of one device, to which this happens before they open it.
fn two(before: [&[&str]; 2]) -> [Child; 2] {
    [end("the first", before[0]), end("the second", before[1])]
}

const OTHER: &str = "the endpoint belongs to another fabric";

fn one_user() {
    let device = device();
    Two::meet(two(NOTHING), [&device, &device], NOTHING).reach_each_other();
}

/// Takes the first places of a fabric, whose nodes connect to each other when they join. The others connect when
/// their queue pairs do.
fn take_first_places(device: &str) -> Vec<UnixListener> {
    let fabric = device.strip_prefix("soft:").expect("a fabric");
    let place = |slot| SocketAddr::from_abstract_name(format!("bellwire/0/{fabric}/{slot}"));
    (0..64)
        .map(|slot| UnixListener::bind_addr(&place(slot).expect("a name")).expect("a place"))
        .collect()
}

/// The ends open the device as root, and change to these users before they connect: also where their nodes do not
/// know each other before.
fn with_users(users: [&'static str; 2]) {
    if lacks_root("changing the user") {
        return;
    }
    for known in [true, false] {
        let device = device();
        let _taken = (!known).then(|| take_first_places(&device));
        change_users(&device, users);
    }
}

fn change_users(device: &str, users: [&'static str; 2]) {
    let after = [&users[..1], &users[1..]].map(|of| if of[0].is_empty() { &[] } else { of });
    Two::meet(two(NOTHING), [device, device], after).reach_each_other();
}

fn two_users() {
    if lacks_root("changing the user") {
        return;
    }
    let device = device();
    Two::meet(two([&[], &[NOBODY]]), [&device, &device], NOTHING).are_refused(OTHER);
    Two::meet(two([&[NOBODY], &[DAEMON]]), [&device, &device], NOTHING).are_refused(OTHER);
}

fn two_names() {
    let (a, b) = (device(), device());
    Two::meet(two(NOTHING), [&a, &b], NOTHING).are_refused(OTHER);
}

fn user_namespace() {
    if lacks_root("making a user namespace") {
        return;
    }
    let device = device();
    Two::meet(two([&[], &["namespace"]]), [&device, &device], NOTHING).are_refused(OTHER);
}

/// An end that is the first process of its own PID namespace, and has the outer /proc.
fn pid_namespace() {
    if lacks_root("making a PID namespace") {
        return;
    }
    let device = device();
    for before in [[&["pid"][..], &[]], [&[], &["pid"]], [&["pid"], &["pid"]]] {
        Two::meet(two(before), [&device, &device], NOTHING).reach_each_other();
    }
}

fn without_proc() {
    if lacks_root("changing the root") {
        return;
    }
    let device = device();
    let home = tempfile::tempdir().expect("a folder");
    let root = format!("root {}", home.path().display());
    let root = &[&*root][..];
    Two::meet(two([root, &[]]), [&device, &device], NOTHING).reach_each_other();
    Two::meet(two([root, root]), [&device, &device], NOTHING).reach_each_other();
    Two::meet(two(NOTHING), [&device, &device], [root, &[]]).reach_each_other();
}

/// A program that its user may not read is not dumpable: /proc shows its descriptors to root alone.
fn unreadable_program() {
    if lacks_root("starting a program as another user") {
        return;
    }
    let home = tempfile::tempdir().expect("a folder");
    let program = home.path().join("program");
    std::fs::copy(std::env::current_exe().expect("a path"), &program).expect("a copy");
    for (path, mode) in [(home.path(), 0o755), (&program, 0o111)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    }
    let device = device();
    let ends = ["the first", "the second"].map(|name| {
        let mut command = Command::new(&program);
        command.uid(65534).gid(65534);
        Child::start_by(command, "identity", name.to_owned(), home.path())
    });
    Two::meet(ends, [&device, &device], NOTHING).reach_each_other();
}

/// The /proc of the ends shows another process by the pid of the passive one, which has other memory of the same
/// length, sealed alike, behind each descriptor.
fn wrong_proc() {
    if lacks_root("making a PID namespace") {
        return;
    }
    let home = tempfile::tempdir().expect("a folder");
    let mut world = Child::start("identity-proc", "the other process".to_owned(), home.path());
    assert_eq!(world.hear("ended"), 0, "an end failed");
    assert_eq!(
        world.hear("changed"),
        0,
        "the memory of another process was written"
    );
    world.end();
}

fn play_in_wrong_proc() {
    let decoys: Vec<OwnedFd> = (0..64).map(|_| decoy()).collect();
    let fabric = fabric_name();
    let (ours, theirs) = UnixStream::pair().expect("two");
    // SAFETY: takes nothing.
    let pid = unsafe { libc::getpid() };
    // SAFETY: takes flags.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) });
    let Some(ended) = fork() else {
        // The first process of the namespace: its descriptors are low, as those of the decoys are.
        drop(decoys);
        let passive = child_with_pid(pid);
        let (stream, peer) = if passive {
            (theirs, ours)
        } else {
            (ours, theirs)
        };
        drop(peer);
        let ended = std::panic::catch_unwind(|| alone(&format!("soft:{fabric}"), passive, stream));
        std::process::exit(ended.is_err().into());
    };
    drop((ours, theirs));
    // By this thread: another one cannot be started until the namespace's first process has been.
    println!("{}", json!({"ended": ended()}));
    let changed = decoys.into_iter().map(|decoy| {
        let mut bytes = Vec::new();
        File::from(decoy).read_to_end(&mut bytes).expect("bytes");
        bytes.iter().filter(|byte| **byte != 0).count()
    });
    println!("{}", json!({"changed": changed.sum::<usize>()}));
}

/// Memory as regions of the ends have it.
fn decoy() -> OwnedFd {
    // SAFETY: a string.
    let fd = unsafe { libc::memfd_create(c"decoy".as_ptr(), libc::MFD_ALLOW_SEALING) };
    check(fd);
    // SAFETY: takes numbers.
    check(unsafe { libc::ftruncate(fd, BYTES as i64) });
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: takes numbers.
    check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) });
    // SAFETY: just made.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A fork, whose child has this pid: `true` in the child. It ends by a signal when its parent has ended.
fn child_with_pid(pid: i32) -> bool {
    // SAFETY: zeroes are arguments.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.set_tid = (&raw const pid).expose_provenance() as u64;
    args.set_tid_size = 1;
    // SAFETY: like fork(2), in a process with one thread; the arguments outlive the call.
    let made = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    check(made as i32);
    made == 0
}

/// The ends of `play_in_wrong_proc`, which exchange their cards by themselves.
fn alone(device: &str, passive: bool, mut stream: UnixStream) {
    let device = Device::open(device).expect("a node");
    let mut end = End::new(&device.alloc_pd(), bellwire::soft::Mode::Inline, &init());
    writeln!(stream, "{}", card(&end.qp, end.region.remote(0))).expect("a peer");
    let mut lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
    let line = lines.next().expect("a peer").expect("a line");
    let (peer, remote) = read_card(&serde_json::from_str(&line).expect("JSON"));
    let attr = ConnectAttr::default();
    end.qp.init(&attr).expect("INIT");
    end.qp.connect(&peer, &attr).expect("a connection");
    if passive {
        // Until the active end is done.
        assert!(lines.next().is_none());
        let mut bytes = [0; BYTES];
        end.region.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 2), "not all was written");
        return;
    }
    for round in 1..=2 {
        end.region.write(0, &[round; BYTES]);
        end.go(1, RdmaWrite { remote }, end.region.sge(0, BYTES as u32));
        assert_eq!(end.wait().status(), WcStatus::Success);
    }
}
