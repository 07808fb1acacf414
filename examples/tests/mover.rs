//! `mover` as a user runs it.

mod common;
mod processes;

use common::{Ran, run};
use processes::Listening;
use std::fs;
use std::path::Path;
use twox_hash::XxHash3_128;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

fn moved(from: &Path, to: &Path, more: &[&str]) -> Ran {
    let mut arguments = vec![text(from), "--output", text(to)];
    arguments.extend(more);
    run("mover", &arguments)
}

#[test]
fn files_of_any_length_arrive_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for length in [0usize, 1, 4097, 3 << 20] {
        let bytes: Vec<u8> = (0..length)
            .map(|n| (n.wrapping_mul(n) % 253) as u8)
            .collect();
        fs::write(&from, &bytes).unwrap();
        for shape in [
            &["--force"][..],
            &["--force", "--block", "1000", "--blocks", "1"],
            &["--force", "--block", "4096", "--blocks", "100"],
        ] {
            let ran = moved(&from, &to, shape);
            assert_eq!(ran.status, Some(0), "{length}: {}", ran.stderr);
            assert_eq!(ran.stderr, "", "no progress bar where there is no terminal");
            assert!(fs::read(&to).unwrap() == bytes, "{length} bytes, {shape:?}");
            let checksum = format!("{:032x}", XxHash3_128::oneshot(&bytes));
            assert!(ran.stdout.contains(&checksum), "{}", ran.stdout);
            assert!(ran.stdout.contains(&format!("moved {length} bytes")));
        }
    }
}

#[test]
fn a_file_is_made_up_and_goes_again() {
    let ran = run("mover", &["--generate", "1m"]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("moved 1048576 bytes"), "{}", ran.stdout);
    assert!(ran.stdout.contains("MB/s"), "{}", ran.stdout);
}

#[test]
fn an_output_is_not_replaced_unless_forced() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, "new").unwrap();
    fs::write(&to, "old").unwrap();
    let ran = moved(&from, &to, &[]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("--force"), "{}", ran.stderr);
    assert_eq!(fs::read(&to).unwrap(), b"old");
    assert_eq!(moved(&from, &to, &["--force"]).status, Some(0));
    assert_eq!(fs::read(&to).unwrap(), b"new");
    // Even onto itself.
    assert_eq!(moved(&from, &from, &["--force"]).status, Some(0));
    assert_eq!(fs::read(&from).unwrap(), b"new");
}

#[test]
fn what_cannot_be_read_or_written_is_named_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (absent, to) = (folder.path().join("absent"), folder.path().join("to"));
    let ran = moved(&absent, &to, &[]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains(text(&absent)), "{}", ran.stderr);
    let ran = moved(folder.path(), &to, &[]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("folder"), "{}", ran.stderr);
    fs::write(&absent, "there now").unwrap();
    let nowhere = folder.path().join("no/such/folder");
    let ran = moved(&absent, &nowhere, &[]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains(text(&nowhere)), "{}", ran.stderr);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn options_that_cannot_be_end_with_status_2_and_advice() {
    for (arguments, advice) in [
        (&[][..], "<FILE>"),
        (&["some.file"], "--output"),
        (&["--generate", "much"], "not a size"),
        (&["--generate", "1m", "--block", "0"], "at least 1 byte"),
        (&["--generate", "1m", "--block", "2g"], "at most 1g"),
        (&["--generate", "1m", "--blocks", "0"], "1..=1024"),
        (&["some.file", "--generate", "1m"], "cannot be used with"),
        (&["--listen", "x"], "--output"),
        (&["--listen", "x", "some.file"], "cannot be used with"),
        (&["--connect", "x"], "<FILE>"),
        (&["--generate", "1m", "--peer-device", "soft"], "--device"),
        (
            &[
                "--connect",
                "x",
                "y",
                "--device",
                "soft:x",
                "--peer-device",
                "soft:x",
            ],
            "cannot be used with",
        ),
        (&["--generate", "1m", "--fault", "cq-err"], "KIND@PERCENT%"),
        (&["--generate", "1m", "--fault", "rain@5%"], "qp-fatal"),
        (
            &["--generate", "1m", "--fault-receiver", "cq-err@101%"],
            "0% to 100%",
        ),
        (
            &["--listen", "x", "--output", "y", "--fault", "cq-err@1%"],
            "cannot be used with",
        ),
        (
            &["--connect", "x", "y", "--fault-receiver", "cq-err@1%"],
            "cannot be used with",
        ),
        (
            &["--connect", "x", "some.file", "--output", "copy"],
            "cannot be used with",
        ),
    ] {
        let ran = run("mover", arguments);
        assert_eq!(ran.status, Some(2), "{arguments:?}");
        assert!(ran.stderr.contains(advice), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn a_device_that_will_not_do_is_named() {
    let name = processes::name("devices");
    for (arguments, advice) in [
        (&["--generate", "1m", "--device", "none0"][..], "\"none0\""),
        (
            &[
                "--generate",
                "1m",
                "--device",
                "soft",
                "--peer-device",
                "none0",
            ],
            "\"none0\"",
        ),
        (
            &["--generate", "1m", "--connect", &name, "--device", "soft"],
            "--device soft:NAME",
        ),
    ] {
        let ran = run("mover", arguments);
        assert_eq!(ran.status, Some(1), "{arguments:?}");
        assert!(ran.stderr.contains(advice), "{arguments:?}: {}", ran.stderr);
    }
    let ran = run(
        "mover",
        &[
            "--generate",
            "1m",
            "--device",
            "soft",
            "--peer-device",
            "soft",
        ],
    );
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
}

#[test]
fn a_file_arrives_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for length in [0usize, 1, 4097, 3 << 20] {
        let bytes: Vec<u8> = (0..length)
            .map(|n| (n.wrapping_mul(n) % 253) as u8)
            .collect();
        fs::write(&from, &bytes).unwrap();
        let name = processes::name("arrives");
        let arguments = ["--listen", &name, "--output", text(&to), "--force"];
        let listening = Listening::start("mover", &arguments);
        let sent = listening.run(&["--connect", &name, text(&from), "--block", "10000"]);
        let received = listening.end();
        assert_eq!(sent.status, Some(0), "{length}: {}", sent.stderr);
        assert_eq!(received.status, Some(0), "{length}: {}", received.stderr);
        assert!(fs::read(&to).unwrap() == bytes, "{length} bytes");
        let checksum = format!("{:032x}", XxHash3_128::oneshot(&bytes));
        for ran in [sent, received] {
            assert!(ran.stdout.contains(&checksum), "{}", ran.stdout);
        }
    }
}

#[test]
fn a_process_that_fails_reports_why_to_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let name = processes::name("fails");
    let arguments = ["--listen", &name, "--output", text(&to)];
    let ran = run("mover", &["--connect", &name, "--generate", "1"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("--listen"), "{}", ran.stderr);

    let listening = Listening::start("mover", &arguments);
    // It may not be replaced, and comes while it is received.
    fs::write(&to, "old").unwrap();
    let sent = listening.run(&["--connect", &name, "--generate", "1m"]);
    assert_eq!(sent.status, Some(1));
    assert!(sent.stderr.contains("cannot write"), "{}", sent.stderr);
    let received = listening.end();
    assert_eq!(received.status, Some(1));
    assert!(
        received.stderr.contains("cannot write"),
        "{}",
        received.stderr
    );
    assert_eq!(fs::read(&to).unwrap(), b"old");
    fs::remove_file(&to).unwrap();

    // A file without an end.
    let listening = Listening::start("mover", &arguments);
    let killed = listening.killed_under(&["--connect", &name, "/dev/zero"]);
    assert_eq!(killed.status, Some(1));
    assert!(killed.stderr.contains("has left"), "{}", killed.stderr);
    assert!(!to.exists());
}

/// The report of an end: every fault injected, and that it was recovered from.
fn recovered(ran: &Ran, end: &str, injected: &str, faults: &[&str]) {
    let said = |what: &str| ran.stdout.contains(what);
    assert!(
        said(&format!("{end}: injected {injected}\n")),
        "{}",
        ran.stdout
    );
    for fault in faults {
        let reported = |line: &str| {
            line.starts_with(&format!("{end}: recovered from ")) && line.contains(fault)
        };
        assert!(ran.stdout.lines().any(reported), "{fault}: {}", ran.stdout);
    }
    assert!(!said("gave up") && !said("not recovered"), "{}", ran.stdout);
}

const FAULTS: [&str; 4] = ["--fault", "cq-err@30%", "--fault", "qp-fatal@60%"];

/// A file of a few hundred blocks.
fn large(path: &Path) -> Vec<u8> {
    let bytes: Vec<u8> = (0..4u32 << 20)
        .map(|n| (n.wrapping_mul(n) % 253) as u8)
        .collect();
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn faults_are_recovered_from_between_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes = large(&from);
    let checksum = format!("{:032x}", XxHash3_128::oneshot(&bytes));
    let mut more = vec!["--block", "16k", "--force"];
    more.extend(FAULTS);
    let ran = moved(&from, &to, &more);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(fs::read(&to).unwrap() == bytes);
    assert!(ran.stdout.contains(&checksum), "{}", ran.stdout);
    recovered(
        &ran,
        "sender",
        "cq-err@30% qp-fatal@60%",
        &["CQ_ERR (CQ: REBUILD_CQ)", "QP_FATAL (QP: RESET_QP)"],
    );

    // The other kinds, and the receiver's end, whose completions are lost with its completion queue.
    more.extend([
        "--fault",
        "retry-exc@0%",
        "--fault",
        "ack-lost@45%",
        "--fault",
        "port-flap@100%",
    ]);
    more.extend([
        "--fault-receiver",
        "qp-fatal@20%",
        "--fault-receiver",
        "cq-err@50%",
    ]);
    let ran = moved(&from, &to, &more);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(fs::read(&to).unwrap() == bytes);
    recovered(
        &ran,
        "sender",
        "retry-exc@0% cq-err@30% ack-lost@45% qp-fatal@60% port-flap@100%",
        &[
            "RETRY_EXC_ERR (QP: RESET_QP)",
            "CQ_ERR",
            "QP_FATAL",
            "PORT_ERR (PORT: WAIT_FOR_PORT)",
        ],
    );
    recovered(
        &ran,
        "receiver",
        "qp-fatal@20% cq-err@50%",
        &["QP_FATAL", "CQ_ERR", "PEER"],
    );
}

#[test]
fn faults_are_recovered_from_between_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes = large(&from);
    let checksum = format!("{:032x}", XxHash3_128::oneshot(&bytes));
    let name = processes::name("recovers");
    let arguments = [
        "--listen",
        &name,
        "--output",
        text(&to),
        "--fault-receiver",
        "cq-err@50%",
    ];
    let listening = Listening::start("mover", &arguments);
    let mut arguments = vec!["--connect", &name, text(&from), "--block", "16k"];
    arguments.extend(FAULTS);
    arguments.extend(["--fault", "retry-exc@80%"]);
    let sent = listening.run(&arguments);
    let received = listening.end();
    assert_eq!(sent.status, Some(0), "{}", sent.stderr);
    assert_eq!(received.status, Some(0), "{}", received.stderr);
    assert!(fs::read(&to).unwrap() == bytes);
    for ran in [&sent, &received] {
        assert!(ran.stdout.contains(&checksum), "{}", ran.stdout);
    }
    recovered(
        &sent,
        "sender",
        "cq-err@30% qp-fatal@60% retry-exc@80%",
        &["CQ_ERR", "QP_FATAL", "RETRY_EXC_ERR", "PEER"],
    );
    recovered(&received, "receiver", "cq-err@50%", &["CQ_ERR", "PEER"]);
}

#[test]
fn a_percentage_is_of_a_file_with_a_length() {
    let ran = run(
        "mover",
        &[
            "/dev/zero",
            "--output",
            "/nowhere/at/all",
            "--fault",
            "cq-err@30%",
        ],
    );
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("regular file"), "{}", ran.stderr);
}
