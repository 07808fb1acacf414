//! The storm of clients, on a fabric of software HCAs: nothing of them stays, and every request is reported.

use crate::storm::{Place, Storm};
use bellwire::Device;
use bellwire::connect::cm::EventChannel;
use bellwire_examples::echo::Server;
use bellwire_tests::fixture::{fabric_name, until};
use bellwire_tests::leftovers::{Holdings, Home, sockets};
use std::time::Duration;

/// Connections that the server has at a time: it has to learn first of those who vanish.
const MOST: u32 = 1024;

/// The test.
pub fn clients() {
    let fabric = fabric_name();
    let storm = Storm {
        place: Place {
            provider: format!("soft:{fabric}"),
            host: "127.0.0.1".to_owned(),
            port: 7471,
        },
        processes: 10,
        each: 20,
        lasts: Duration::from_secs(15),
        alone: 50,
    };
    let home = Home::new(&fabric);
    let before = Holdings::of(std::process::id());
    let device = Device::open(&storm.place.provider).expect("a node");
    let nothing = device.resources();
    let channel = EventChannel::on(&device).expect("a channel");
    let at = (storm.place.host.as_str(), storm.place.port);
    let mut server = Server::new(channel, at, MOST).expect("a server");
    // From the first client on there is what it has made the server make.
    let begun = || (Holdings::of(std::process::id()), device.resources());
    let ((listening, there), report) = storm.rage(&mut server, &home, begun);
    // Peers' windows are released as their sockets close.
    listening.are_all_of(std::process::id());
    assert_eq!(there.qp, 0);
    assert_eq!(device.resources(), there);
    println!("\nreport: {report}");
    drop(server);
    assert_eq!(device.resources(), nothing);
    drop(device);
    before.are_all_of(std::process::id());
    until("the end of the fabric's sockets", || {
        sockets(&fabric).is_empty()
    });
}
