//! Events of the queue pair that a link of a set creates anew, while its turn in the set's poll still lasts.

use super::world::{SetWorld, set_init};
use crate::world::{End, init};
use bellwire::connect::Message;
use bellwire::link::{DeviceEvent, Exchange, ExchangeError, LinkState, LocalExchange, pair};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::{Device, Pd};
use bellwire_tests::fixture::virtual_device;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Has the queue pair of the message in which an epoch begins fail before the peer hears of it, and another link of
/// the device take the event.
struct Striking {
    inner: LocalExchange,
    epoch: u64,
    device: Device,
    other: End,
    struck: Arc<AtomicU32>,
}

impl Exchange for Striking {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        if let Ok(Message::Info(info)) = Message::from_bytes(message)
            && info.epoch == self.epoch
        {
            self.epoch = u64::MAX;
            let qp_num = info.conn.endpoint.qp_num;
            self.struck.store(qp_num, Ordering::Relaxed);
            let fault =
                Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(qp_num));
            let soft = self.device.as_soft().unwrap();
            soft.inject(&fault).unwrap();
            soft.advance(Duration::from_nanos(1));
            self.other.poll();
        }
        self.inner.send(message)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        self.inner.receive(into)
    }

    fn needs_new_qp(&self) -> bool {
        true
    }
}

/// The queue pair of this epoch fails so early; the link gets the event, and works.
fn strikes(pd: &Pd, epoch: u64) {
    let mut world = SetWorld::unconnected_on(pd, 0, set_init(2), &init());
    let (send, unclaimed) = mpsc::channel();
    world
        .device
        .set_event_hook(move |event| send.send(event).unwrap());
    let (here, there) = pair();
    let struck = Arc::new(AtomicU32::new(0));
    let here = Striking {
        inner: here,
        epoch,
        device: world.device.clone(),
        other: End::new(pd, init(), pair().0),
        struck: struck.clone(),
    };
    let id = world.set.join(init(), here).unwrap();
    world.clients.push((id, End::new(pd, init(), there)));
    world.settle();
    for _ in 1..epoch {
        world.all_ready();
        let first = world.set.link(id).unwrap().qp_num().unwrap();
        let fault = Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(first));
        let soft = world.device.as_soft().unwrap();
        soft.inject(&fault).unwrap();
        soft.advance(Duration::from_nanos(1));
        world.poll();
        world.settle();
    }
    let qp_num = struck.load(Ordering::Relaxed);
    assert_ne!(qp_num, 0, "it was not struck");
    let events: Vec<DeviceEvent> = unclaimed.try_iter().collect();
    assert_eq!(events, [], "of a queue pair of the set");
    assert_eq!(world.set.state(id), Ok(LinkState::Ready));
    assert_ne!(world.set.link(id).unwrap().qp_num(), Some(qp_num));
    // The exchange holds a link of the device that the hook is set on.
    world.device.set_event_hook(|_| ());
}

#[test]
fn a_new_queue_pair_is_watched_from_its_creation_on() {
    strikes(&virtual_device(1).alloc_pd(), 2);
}

#[test]
fn the_first_queue_pair_is_watched_from_its_creation_on() {
    strikes(&virtual_device(1).alloc_pd(), 1);
}
