//! Nodes of a fabric that all come at once: there is one link between two of them, and nothing that is
//! sent over it is lost.

use bellwire::soft::Mode;
use bellwire::wqe::{Inline, Send};
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Endpoint};
use bellwire_tests::fixture::{End, SIGNALED, fabric_name, init, node, until};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const NODES: usize = 4;
const ROUNDS: usize = 400;

/// Where all wait for all. One that has failed is not waited for without end.
#[derive(Default)]
struct Together(AtomicUsize);

impl Together {
    fn wait(&self) {
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        let all = (before / NODES + 1) * NODES;
        until("the others", || self.0.load(Ordering::Acquire) >= all);
    }
}

/// One node: comes, connects to all others, sends each of them a message, and takes theirs.
fn come(name: &str, us: usize, together: &Together, endpoints: &Mutex<Vec<Vec<Endpoint>>>) {
    // What gets lost is not sent again.
    let attr = ConnectAttr {
        timeout: 0,
        ..ConnectAttr::default()
    };
    together.wait();
    let device = node(name, Mode::Inline);
    let pd = device.alloc_pd();
    let mut ends: Vec<End> = (0..NODES)
        .map(|_| End::new(&pd, Mode::Inline, &init()))
        .collect();
    let ours = ends.iter().map(|end| end.qp.endpoint()).collect();
    endpoints.lock().unwrap()[us] = ours;
    together.wait();
    for (them, end) in ends.iter_mut().enumerate().filter(|(them, _)| *them != us) {
        let theirs = endpoints.lock().unwrap()[them][us];
        end.qp.init(&attr).unwrap();
        end.receive(1, &[]);
        end.qp.connect(&theirs, &attr).unwrap();
    }
    together.wait();
    for (_, end) in ends.iter_mut().enumerate().filter(|(them, _)| *them != us) {
        end.post(2, Send {}, Inline(&[]), SIGNALED).unwrap();
        end.qp.sq().ring();
    }
    for (_, end) in ends.iter_mut().enumerate().filter(|(them, _)| *them != us) {
        for _ in 0..2 {
            assert_eq!(end.wait().status(), WcStatus::Success);
        }
    }
    // The others may still want to be answered.
    together.wait();
}

#[test]
fn all_at_once() {
    for _ in 0..ROUNDS {
        let (name, together) = (fabric_name(), Together::default());
        let endpoints = Mutex::new(vec![Vec::new(); NODES]);
        std::thread::scope(|scope| {
            for us in 0..NODES {
                let (name, together, endpoints) = (&name, &together, &endpoints);
                scope.spawn(move || come(name, us, together, endpoints));
            }
        });
    }
}
