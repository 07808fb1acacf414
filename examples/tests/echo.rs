//! `echo` as users run it: a server and clients, in processes of their own.

mod common;
mod processes;

use processes::{Listening, name};

/// A server on a fabric of its own, and what its clients are started with.
fn server(of: &str, arguments: &[&str]) -> (Listening, [String; 4]) {
    let device = format!("soft:{}", name(of));
    let all = [&["-d", device.as_str(), "-p", "0"], arguments].concat();
    let (listening, line) = Listening::with_line("echo", &all);
    let port = line.rsplit(' ').next().expect("a port").to_owned();
    (listening, ["-d".to_owned(), device, "-p".to_owned(), port])
}

fn with<'a>(client: &'a [String; 4], more: &[&'a str]) -> Vec<&'a str> {
    client
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect()
}

#[test]
fn many_clients_are_served() {
    // At all addresses, of IPv6 and IPv4.
    let (server, client) = server("echo-many", &["-b", "::", "-c", "9"]);
    let ran = server.run(&with(&client, &["127.0.0.1", "-c", "8", "-n", "100"]));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert_eq!(
        ran.stdout
            .matches("100 messages of 64 bytes came back")
            .count(),
        8
    );
    let ran = server.run(&with(&client, &["::1", "-n", "10", "-s", "4096"]));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let ran = server.end();
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let said = "810 messages of 9 clients sent back; 0 vanished\n";
    assert_eq!(ran.stdout, said, "behind its first line");
}

#[test]
fn a_client_without_a_server_gets_an_error() {
    let device = format!("soft:{}", name("echo-nobody"));
    let ran = common::run("echo", &["-d", &device, "127.0.0.1"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("REJECTED (status 8)"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("Nobody listens there"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_client_outlives_its_server() {
    let (server, client) = server("echo-killed", &[]);
    let ran = server.killed_under(&with(&client, &["127.0.0.1", "-n", "1000000000"]));
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

#[test]
fn a_port_in_use_is_refused() {
    let device = format!("soft:{}", name("echo-port"));
    let arguments = ["-d", &device, "-p", "7471"];
    let server = Listening::start("echo", &arguments);
    let ran = server.run(&arguments);
    assert_eq!(ran.status, Some(1));
    assert!(
        ran.stderr.contains("Address already in use"),
        "{}",
        ran.stderr
    );
}
