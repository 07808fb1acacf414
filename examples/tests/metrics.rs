//! `metrics` as users run it, and as Prometheus reads it.

mod common;
#[expect(dead_code, reason = "tests of other programs use the rest")]
mod processes;

use processes::Listening;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The value of a line of the page.
fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {page}"));
    line.trim().parse().expect("a number")
}

/// Each line is a comment or a sample, and each sample stands below the type of its metric.
fn check(page: &str) {
    let mut metric = String::new();
    for line in page.lines() {
        if let Some(of) = line.strip_prefix("# TYPE ") {
            metric = of.split(' ').next().expect("a name").to_owned();
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            assert_eq!(name.split('{').next(), Some(metric.as_str()), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}

#[test]
fn the_page_has_what_was_done() {
    let ran = common::run("metrics", &["-c", "3", "-n", "500"]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let page = ran.stdout;
    check(&page);
    // One of each message; the link that fails posts its own again.
    let receives = value(&page, "bellwire_receives_total");
    assert!((1500.0..=1502.0).contains(&receives), "{receives}");
    assert_eq!(value(&page, "bellwire_links{state=\"ready\"}"), 3.0);
    assert_eq!(value(&page, "bellwire_connections_total"), 4.0);
    assert!(value(&page, "bellwire_faults_total{scope=\"QP\"}") >= 1.0);
    assert!(value(&page, "bellwire_recovery_seconds_max") > 0.0);
    assert_eq!(value(&page, "bellwire_objects{kind=\"qp\"}"), 6.0);
    assert_eq!(value(&page, "bellwire_rnr_naks_total"), 0.0);
}

#[test]
fn it_is_read_over_tcp_while_links_are_served() {
    let (_listening, line) = Listening::with_line("metrics", &["--listen", "127.0.0.1:0"]);
    let address = line.rsplit(' ').next().expect("an address");
    let get = |path: &str| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, page) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), page.to_owned())
    };
    let receives = || {
        let (head, page) = get("/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        check(&page);
        value(&page, "bellwire_receives_total")
    };
    let first = receives();
    while receives() <= first {}
    assert!(get("/").0.starts_with("HTTP/1.1 404 "));
}
