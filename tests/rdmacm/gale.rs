//! The storm of clients, on Soft-RoCE: nothing of them stays with the server or in the kernel, and every
//! request is reported.

use crate::storm::{Place, Storm};
use crate::support::*;
use crate::tests;
use bellwire::Device;
use bellwire::connect::cm::EventChannel;
use bellwire_examples::echo::Server;
use bellwire_tests::ends::ALONE;
use bellwire_tests::fixture::until;
use bellwire_tests::leftovers::{Holdings, Home};
use std::process::Command;
use std::time::Duration;

tests! { storm_of_clients }

/// Connections that the server has at a time: it has to learn first of those who vanish.
const MOST: u32 = 512;

/// What the kernel has of a device: `qp 5`, `cm_id 2` and so on.
fn in_kernel() -> Vec<String> {
    let output = Command::new("rdma")
        .args(["resource", "show", ALONE])
        .output();
    let text = String::from_utf8(output.expect("rdma(8)").stdout).expect("text");
    let words: Vec<&str> = text.split_whitespace().collect();
    let of = |kind: &str| words.windows(2).find(|pair| pair[0] == kind);
    ["qp", "cq", "mr", "cm_id"]
        .map(|kind| {
            of(kind)
                .unwrap_or_else(|| panic!("no {kind}: {text}"))
                .join(" ")
        })
        .to_vec()
}

fn storm_of_clients() {
    let before = in_kernel();
    let device = Device::open(ALONE).expect("rxe0");
    let channel = EventChannel::on(&device).expect("a channel");
    let mut server = Server::new(channel, address(HERE, 0), MOST).expect("a server");
    // The guest's processors are emulated, and all clients are on them: with 200, as on the software HCA,
    // connections time out.
    server.wait_for_clients(Duration::from_secs(15));
    let storm = Storm {
        place: Place {
            provider: "rdma".to_owned(),
            host: HERE.to_owned(),
            port: server.port(),
        },
        processes: 10,
        each: 5,
        lasts: Duration::from_secs(10),
        alone: 10,
    };
    let home = Home::new("storm-of-clients");
    let begun = || {
        let mine = Holdings::of(std::process::id());
        (mine, device.resources(), in_kernel())
    };
    let ((listening, there, kernel), report) = storm.rage(&mut server, &home, begun);
    println!("\nreport: on Soft-RoCE, emulated: {report}");
    listening.are_all_of(std::process::id());
    assert_eq!(there.qp, 0);
    assert_eq!(device.resources(), there);
    // The kernel ends the ids of processes that were killed when it comes to it.
    until("the end of what the clients had", || in_kernel() == kernel);
    drop(server);
    assert_eq!(device.resources(), Default::default());
    until("the end of what the server had", || in_kernel() == before);
}
