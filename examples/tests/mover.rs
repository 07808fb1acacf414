//! `mover` as a user runs it.

mod common;

use common::{Ran, run};
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
        let bytes: Vec<u8> = (0..length).map(|n| (n * n % 253) as u8).collect();
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
    ] {
        let ran = run("mover", arguments);
        assert_eq!(ran.status, Some(2), "{arguments:?}");
        assert!(ran.stderr.contains(advice), "{arguments:?}: {}", ran.stderr);
    }
}
