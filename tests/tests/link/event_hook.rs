//! Asynchronous events that concern no link: the hook gets each once, whatever it does, and whichever
//! threads look at the device meanwhile.

use crate::world::init;
use bellwire::event::{Element, EventType};
use bellwire::link::{DeviceEvent, Link, LocalExchange, pair};
use bellwire::soft::Mode;
use bellwire::{Device, Pd};
use bellwire_tests::fixture::device;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

/// A link whose polls find nothing of their own, and so look at the device; and its peer's end, of which
/// nothing is ever heard.
fn looker(pd: &Pd) -> (Link, LocalExchange) {
    let (here, there) = pair();
    (Link::new(pd, init(), here).unwrap(), there)
}

/// Of a work queue that no link has.
fn raise(device: &Device, number: u32) {
    let element = Element::Wq(number);
    device
        .as_soft()
        .unwrap()
        .raise(EventType::WqFatal, element)
        .unwrap();
}

fn number(event: DeviceEvent) -> u32 {
    match event {
        DeviceEvent::Known(EventType::WqFatal, Element::Wq(number)) => number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hook_that_polls_a_link_gets_what_that_finds() {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let ((mut outer, _silent), (mut inner, _too)) = (looker(&pd), looker(&pd));
    let (send, got) = mpsc::channel();
    let raises = device.clone();
    device.set_event_hook(move |event| {
        let number = number(event);
        send.send(number).unwrap();
        if number == 1 {
            raise(&raises, 2);
        }
        inner.poll(1, drop);
    });
    raise(&device, 1);
    outer.poll(1, drop);
    outer.poll(1, drop);
    assert_eq!(got.try_iter().collect::<Vec<_>>(), [1, 2]);
    // The hook holds the device that it is set on.
    device.set_event_hook(|_| ());
}

#[test]
fn what_another_thread_finds_while_the_hook_is_called_reaches_it() {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let ((mut here, _silent), (mut there, _too)) = (looker(&pd), looker(&pd));
    let (send, got) = mpsc::channel();
    let ((entered, is_in), (leave, may_leave)) = (mpsc::channel(), mpsc::channel());
    device.set_event_hook(move |event| {
        entered.send(()).unwrap();
        may_leave.recv().unwrap();
        send.send(number(event)).unwrap();
    });
    raise(&device, 1);
    let at_it = std::thread::spawn(move || here.poll(1, drop));
    is_in.recv().unwrap();
    raise(&device, 2);
    there.poll(1, drop);
    for _ in 0..2 {
        leave.send(()).unwrap();
    }
    at_it.join().unwrap();
    // This poll would deliver an event that is still pending.
    there.poll(1, drop);
    assert_eq!(got.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_hook_that_panics_gets_the_rest() {
    let device = device(Mode::Inline);
    let (mut link, _silent) = looker(&device.alloc_pd());
    let (send, got) = mpsc::channel();
    device.set_event_hook(move |event| {
        send.send(number(event)).unwrap();
        assert_ne!(number(event), 1);
    });
    (1..=3).for_each(|number| raise(&device, number));
    catch_unwind(AssertUnwindSafe(|| link.poll(1, drop))).unwrap_err();
    link.poll(1, drop);
    assert_eq!(got.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
}
