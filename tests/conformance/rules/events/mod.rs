//! Asynchronous events.

pub mod caused;
pub mod raised;
pub mod waiting;

use crate::provider::Provider;
use crate::support::{event, no_event};
use bellwire::event::{Element, EventType};
use bellwire::{Cq, Device, Qp};
use bellwire_tests::fixture::*;

/// Two contexts of one device.
struct World {
    own: Device,
    other: Device,
    quiet: Quiet,
}

impl World {
    fn new(p: &Provider) -> Self {
        let own = p.device();
        let other = own.reopen().expect("another context");
        let quiet = p.quiet;
        Self { own, other, quiet }
    }

    /// Asserts that no context has a further event.
    fn silent(&self) {
        no_event(&self.own, self.quiet);
        no_event(&self.other, self.quiet);
    }

    /// Asserts that these are delivered to the own context, in this order, and no more; and to the other
    /// nothing.
    fn delivered(&self, events: &[(EventType, Element)]) {
        for &expected in events {
            assert_eq!(event(&self.own), expected);
        }
        self.silent();
    }

    /// Asserts that these are delivered to each context, in this order, and no more.
    fn delivered_to_all(&self, events: &[(EventType, Element)]) {
        for context in [&self.own, &self.other] {
            for &expected in events {
                assert_eq!(event(context), expected);
            }
        }
        self.silent();
    }
}

/// A queue pair in RESET, by itself.
fn lone(device: &Device) -> (Qp, Cq) {
    let mut cq = cq_for(device, &init());
    let qp = device.alloc_pd().create_qp(&mut cq, &init());
    (qp.expect("a queue pair"), cq)
}
