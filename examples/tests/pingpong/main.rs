//! `pingpong` as a user runs it: with itself, and with peers that speak rdma-core's exchange byte for
//! byte, or something else.

#[path = "../common/mod.rs"]
mod common;
mod exchange;
#[path = "../processes/mod.rs"]
mod processes;
mod rdma_core;
mod stock;

use common::{Ran, run};
use processes::{Listening, name};

const KINDS: [&str; 4] = ["rc", "uc", "ud", "srq"];

/// A server on a free port, and that port.
fn server(arguments: &[&str]) -> (Listening, u16) {
    let (listening, said) = Listening::with_line("pingpong", &[&["-p", "0"], arguments].concat());
    let port = said.strip_prefix("listening on port ").expect(&said);
    (listening, port.parse().expect("a port"))
}

/// A server's game with a client, each with arguments of its own.
fn game(device: &str, common: &[&str], server_too: &[&str], client_too: &[&str]) -> [Ran; 2] {
    let device = format!("soft:{device}");
    let common = [&["-d", &device, "--timeout", "20"], common].concat();
    let (listening, port) = server(&[&common, server_too].concat());
    let port = port.to_string();
    let client = [&common, client_too, &["-p", &port, "localhost"]].concat();
    let client = listening.run(&client);
    [listening.end(), client]
}

fn played(of: &str, arguments: &[&str], bytes: u64, iters: u64) {
    for ran in game(&name(of), arguments, &[], &[]) {
        assert_eq!(ran.status, Some(0), "{arguments:?}: {}", ran.stderr);
        right(&ran, bytes, iters);
    }
}

/// What rdma-core's programs print.
#[track_caller]
fn right(ran: &Ran, bytes: u64, iters: u64) {
    let out = &ran.stdout;
    let address = |of: &str| {
        let start = format!("  {of} address:");
        let line = out.lines().find(|line| line.starts_with(&start));
        line.expect(out).to_owned()
    };
    for of in ["local", "remote"] {
        let line = address(of);
        let digits = |field: &str, count: usize| {
            let (_, value) = line.split_once(&format!("{field} 0x")).expect(&line);
            let (value, _) = value.split_once(',').expect(&line);
            value.len() == count && value.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        assert!(
            digits("LID", 4) && digits("QPN", 6) && digits("PSN", 6),
            "{line}"
        );
        assert!(line.contains(", GID "), "{line}");
    }
    let last: Vec<&str> = out.lines().rev().take(2).collect();
    assert!(last[1].starts_with(&format!("{bytes} bytes in ")), "{out}");
    assert!(last[1].ends_with(" Mbit/sec"), "{out}");
    assert!(last[0].starts_with(&format!("{iters} iters in ")), "{out}");
    assert!(last[0].ends_with(" usec/iter"), "{out}");
}

#[track_caller]
fn failed(ran: &Ran, advice: &str) {
    assert_eq!(ran.status, Some(1), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains(advice), "{}", ran.stderr);
}

#[test]
fn every_kind_is_played_polling_and_sleeping() {
    for kind in KINDS {
        for events in [&[][..], &["-e"]] {
            let arguments = [&["-t", kind, "-n", "200", "-s", "1000"], events].concat();
            played("kinds", &arguments, 400_000, 200);
        }
    }
}

#[test]
fn one_side_may_sleep_while_the_other_polls() {
    for kind in KINDS {
        let arguments = ["-t", kind, "-n", "100"];
        for (server, client) in [(&["-e"][..], &[][..]), (&[], &["-e"])] {
            for ran in game(&name("mixed"), &arguments, server, client) {
                assert_eq!(ran.status, Some(0), "{kind}: {}", ran.stderr);
            }
        }
    }
}

#[test]
fn messages_of_any_size_come_whole() {
    for kind in KINDS {
        // A datagram is a packet.
        let largest = if kind == "ud" { "4096" } else { "1000001" };
        for size in ["1", "2", "33", "4096", largest] {
            let arguments = ["-t", kind, "-s", size, "-n", "20", "-r", "16"];
            let bytes = size.parse::<u64>().unwrap() * 40;
            played("sizes", &arguments, bytes, 20);
        }
    }
}

#[test]
fn queues_of_any_depth_and_number_come_to_an_end() {
    for (arguments, iters) in [
        (&["-r", "1", "-n", "50"][..], 50),
        (&["-r", "2", "-n", "1"], 1),
        (&["-t", "ud", "-r", "1", "-n", "50"], 50),
        (&["-t", "uc", "-r", "3", "-n", "50"], 50),
        (&["-t", "srq", "-q", "1", "-r", "1", "-n", "50"], 50),
        (&["-t", "srq", "-q", "16", "-r", "16", "-n", "500"], 500),
        (&["-t", "srq", "-q", "255", "-r", "300", "-n", "1000"], 1000),
        // Fewer messages than queue pairs.
        (&["-t", "srq", "-n", "3"], 3),
    ] {
        played(
            "depths",
            &[arguments, &["-s", "64"]].concat(),
            iters * 128,
            iters,
        );
    }
}

#[test]
fn the_path_is_what_is_asked_for() {
    for kind in KINDS {
        played(
            "gid",
            &["-t", kind, "-g", "0", "-l", "3", "-s", "8", "-n", "9"],
            144,
            9,
        );
    }
    played("mtu", &["-m", "4096", "-s", "10000", "-n", "9"], 180_000, 9);
}

#[test]
fn options_that_cannot_be_end_with_status_2_and_advice() {
    for (arguments, advice) in [
        (&["-t", "xrc"][..], "possible values"),
        (&["-s", "0"], "at least 1 byte"),
        (&["-s", "4g"], "less than 4g"),
        (&["-s", "much"], "not a size"),
        (&["-m", "1500"], "256, 512, 1024, 2048 or 4096"),
        (&["-t", "ud", "-m", "1024"], "leave -m out"),
        (&["-q", "2"], "leave -q out"),
        (&["-t", "srq", "-q", "256"], "not in 1..=255"),
        (&["-t", "srq", "-q", "8", "-r", "7"], "give -r 8"),
        (&["-n", "0"], "not in 1"),
        (&["-r", "0"], "not in 1"),
        (&["-l", "16"], "not in 0..16"),
        (&["-i", "0"], "not in 1..=255"),
        (&["-p", "65536"], "not in 0..=65535"),
        (&["--timeout", "0"], "not in 1"),
        (&["one", "two"], "unexpected argument"),
    ] {
        let ran = run("pingpong", arguments);
        assert_eq!(ran.status, Some(2), "{arguments:?}");
        assert!(ran.stderr.contains(advice), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
}

#[test]
fn what_the_device_does_not_have_is_reported() {
    let device = format!("soft:{}", name("lacks"));
    for (arguments, advice) in [
        (&["-d", "auto"][..], "give -d soft:NAME"),
        (&["-d", "mlx5_99"], "no device \"mlx5_99\""),
        (&["-d", &device, "-i", "2"], "port_num is 2"),
        (&["-d", &device, "-g", "1"], "GID index is 1"),
        (&["-d", &device, "-t", "ud", "-s", "4097"], "lower -s"),
        (&["-d", &device, "-s", "3g"], "lower -s"),
        (&["-d", &device, "-r", "4000000000"], "lower -r"),
        (&["-d", &device, "-t", "srq", "-r", "1000000"], "lower -r"),
    ] {
        let ran = run("pingpong", &[arguments, &["-p", "0"]].concat());
        failed(&ran, advice);
    }
}

#[test]
fn sides_that_differ_get_advice_on_what_to_give() {
    let differ = |common: &[&str], server: &[&str], client: &[&str]| {
        let common = [&["--timeout", "3"], common].concat();
        let device = format!("soft:{}", name("differ"));
        let common = [&["-d", &device], common.as_slice()].concat();
        let (listening, port) = self::server(&[&common, server].concat());
        let port = port.to_string();
        let client = listening.run(&[&common, client, &["-p", &port, "127.0.0.1"]].concat());
        [listening.end(), client]
    };
    for kind in KINDS {
        let [server, client] = differ(&["-t", kind], &["-s", "64"], &["-s", "65"]);
        assert_eq!((server.status, client.status), (Some(1), Some(1)), "{kind}");
        // The end that gets the message sees it; datagrams and unreliable connections may drop the message.
        if ["rc", "srq"].contains(&kind) {
            failed(&server, "give the same -s");
            failed(&client, "give the same -s");
        }
        let [server, client] = differ(&["-t", kind], &["-s", "65"], &["-s", "64"]);
        failed(&server, "give the same -s");
        assert_eq!(client.status, Some(1), "{kind}: {}", client.stderr);
    }
    let [server, client] = differ(&["-t", "srq"], &["-q", "4"], &["-q", "5"]);
    failed(&server, "the peer has 5 queue pairs, this side 4");
    failed(&client, "closed the connection");
    let [server, client] = differ(&[], &["-t", "srq"], &["-t", "rc"]);
    failed(&server, "52 of 13312 bytes");
    failed(&client, "of the same -t?");
    let [server, client] = differ(&[], &["-t", "rc"], &["-t", "srq"]);
    failed(&server, "of the same -t?");
    failed(&client, "of the same -t?");
    for kind in KINDS {
        // On this device each end says its GID, with -g or without.
        let [server, client] = differ(&["-t", kind], &[], &["-g", "0"]);
        let ended = (server.status, client.status);
        assert_eq!(
            ended,
            (Some(0), Some(0)),
            "{} {}",
            server.stderr,
            client.stderr
        );
    }
}

#[test]
fn whoever_is_alone_gets_advice_on_what_to_do() {
    let device = format!("soft:{}", name("alone"));
    let device = ["-d", &device, "--timeout", "1"];
    let alone = Listening::start("pingpong", &[&device[..], &["-p", "0"]].concat());
    failed(&alone.end(), "start the other end");

    let (listening, port) = server(&device);
    let port = port.to_string();
    let second = listening.run(&[&device[..], &["-p", &port]].concat());
    failed(&second, "take another port");
    drop(listening);
    let nobody = run(
        "pingpong",
        &[&device[..], &["-p", &port, "localhost"]].concat(),
    );
    failed(&nobody, "start the other end first");
    let nowhere = run("pingpong", &[&device[..], &["no host has spaces"]].concat());
    failed(&nowhere, "no address of host");
}

#[test]
fn a_process_that_is_killed_ends_the_other() {
    for kind in KINDS {
        let device = format!("soft:{}", name("killed"));
        let arguments = [
            "-t",
            kind,
            "-d",
            &device,
            "--timeout",
            "3",
            "-n",
            "1000000000",
        ];
        let (listening, port) = server(&arguments);
        let port = port.to_string();
        let ran = listening.killed_under(&[&arguments[..], &["-p", &port, "localhost"]].concat());
        assert_eq!(ran.status, Some(1), "{kind}: {}", ran.stderr);
        let causes = ["does not answer", "the peer has stopped"];
        assert!(
            causes.iter().any(|cause| ran.stderr.contains(cause)),
            "{}",
            ran.stderr
        );
    }
}
