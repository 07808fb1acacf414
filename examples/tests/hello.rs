//! `hello` as a user runs it.

mod common;

#[test]
fn the_greeting_arrives() {
    let ran = common::run("hello", &[]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("request 1: RECV, 11 bytes came\n"));
    assert!(ran.stdout.contains("request 3: SEND\n"));
    assert!(
        ran.stdout
            .ends_with("Bob's memory says: hello from Alice\n")
    );
}
