//! Real time: the device's own threads, recovery in a thread, and an exchange over TCP.

use crate::world::{End, init};
use bellwire::connect::tcp::{Connection, Listener, TcpExchange};
use bellwire::fault::Scope;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Exchange, LinkInit, LinkState, RecoverIn, pair};
use bellwire::soft::{Fault, Mode, Script, Trigger};
use bellwire::wqe::Send;
use bellwire_tests::fixture::{DEADLINE, ENGINE, device};
use std::time::{Duration, Instant};

const SOON: Duration = DEADLINE;

/// Until both are at `done`.
pub fn until(a: &mut End, b: &mut End, mut done: impl FnMut(&End, &End) -> bool) {
    let start = Instant::now();
    while !done(a, b) {
        a.poll();
        b.poll();
        assert!(start.elapsed() < SOON, "{:?} {:?}", a.state(), b.state());
        std::thread::yield_now();
    }
}

pub fn ready(a: &End, b: &End) -> bool {
    [a.state(), b.state()] == [LinkState::Ready; 2]
}

fn recover(
    mode: Mode,
    recover_in: RecoverIn,
    ends: (impl Exchange + 'static, impl Exchange + 'static),
) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let init = LinkInit {
        recover_in,
        ..init()
    };
    let mut a = End::new(&pd, init.clone(), ends.0);
    let mut b = End::new(&pd, init, ends.1);
    b.receive(0..10);
    until(&mut a, &mut b, ready);
    for round in 0..10u64 {
        a.go(100 + round, Send {}, Replay::IfSafe);
        let qpn = a.link.qp_num().unwrap();
        let cqn = b.link.cqn().unwrap();
        let fault = if round % 2 == 0 {
            Fault::QpFatal(qpn)
        } else {
            Fault::CqOverrun(cqn)
        };
        let epoch = a.link.epoch();
        let script = Script::default().with(Trigger::After(Duration::ZERO), fault);
        device.as_soft().unwrap().inject(&script).unwrap();
        device.progress();
        until(&mut a, &mut b, |a, b| {
            ready(a, b) && a.link.epoch() > epoch && a.log.len() > round as usize
        });
    }
    let expected = |at: u64| (at, Outcome::Done, 100 + at);
    // Where a completion queue died its receive's completion may have died with it.
    for (wr_id, outcome, word) in b.received() {
        assert_eq!(outcome, Outcome::Done);
        assert!(
            word >= expected(wr_id).2,
            "{wr_id} {word}: {:?} {:?} {:?}",
            a.log,
            b.log,
            b.link.counters()
        );
    }
    for (wr_id, outcome) in a.sends() {
        assert!(
            matches!(outcome, Outcome::Done | Outcome::InDoubt(_)),
            "{wr_id}: {outcome:?}"
        );
    }
    let drained = a.link.drain(SOON, drop);
    assert_eq!(drained.reported, 0);
    b.link.drain(SOON, drop);
    assert_eq!((a.slab.outstanding(), b.slab.outstanding()), (0, 0));
}

#[test]
fn by_the_poller() {
    recover(Mode::Inline, RecoverIn::Poll, pair());
}

#[test]
fn in_a_thread() {
    recover(Mode::Inline, RecoverIn::Thread, pair());
}

#[test]
fn on_an_engine() {
    recover(ENGINE, RecoverIn::Poll, pair());
}

#[test]
fn on_an_engine_in_a_thread() {
    recover(ENGINE, RecoverIn::Thread, pair());
}

/// The two ends of a connection.
pub fn over_tcp_ends() -> (TcpExchange, TcpExchange) {
    let listener = Listener::bind(Some("localhost"), 0).unwrap();
    let port = listener.port();
    let client = std::thread::spawn(move || Connection::connect("localhost", port, SOON).unwrap());
    (
        listener.accept(SOON).unwrap().into_exchange().unwrap(),
        client.join().unwrap().into_exchange().unwrap(),
    )
}

#[test]
fn over_tcp() {
    recover(Mode::Inline, RecoverIn::Poll, over_tcp_ends());
}

/// The peer does not answer, so that the thread would go on for long.
#[test]
fn a_link_that_a_thread_recovers_can_be_closed_and_dropped() {
    for drain in [false, true] {
        let pd = device(Mode::Inline).alloc_pd();
        let (here, there) = pair();
        let init = LinkInit {
            recover_in: RecoverIn::Thread,
            ..init()
        };
        let mut a = End::new(&pd, init.clone(), here);
        let mut b = End::new(&pd, init, there);
        a.receive(0..3);
        until(&mut a, &mut b, ready);
        a.link.report(bellwire::fault::Fault::PeerRecovery);
        a.poll();
        assert_eq!(a.state(), LinkState::Recovering);
        // Away.
        assert_eq!(a.link.counters(), None);
        assert_eq!(a.poll(), 0);
        let start = Instant::now();
        if drain {
            let drained = a.link.drain(Duration::from_millis(50), drop);
            assert_eq!(drained.retired, 3);
        }
        let slab = a.slab.clone();
        drop(a);
        assert!(start.elapsed() < SOON / 4);
        assert_eq!(slab.outstanding(), 0);
    }
}

/// The thread calls the hooks as things happen, takes in new ones, and what the program reports; nobody
/// polls meanwhile.
#[test]
fn the_program_is_called_while_a_thread_recovers() {
    let pd = device(Mode::Inline).alloc_pd();
    let (here, there) = pair();
    let init = LinkInit {
        recover_in: RecoverIn::Thread,
        ..init()
    };
    let mut a = End::new(&pd, init.clone(), here);
    let mut b = End::new(&pd, init, there);
    until(&mut a, &mut b, ready);
    let (send, calls) = std::sync::mpsc::channel();
    let caller = || std::thread::current().name().map(str::to_owned);
    let said = send.clone();
    a.link
        .on_recovered(move |report| said.send((format!("{:?}", report.end), caller())).unwrap());
    a.link.report(bellwire::fault::Fault::PeerRecovery);
    a.poll();
    assert_eq!(a.link.counters(), None, "away");
    // The peer is not polled, so that the thread goes on.
    a.link
        .on_fault(move |report| send.send((report.fault.to_string(), caller())).unwrap());
    let cq_err = bellwire::event::EventType::CqErr;
    a.link.report(bellwire::fault::Fault::Event(cq_err));
    let thread = Some("bellwire-link".to_owned());
    let call = calls.recv_timeout(SOON).unwrap();
    assert_eq!(call, ("CQ_ERR".to_owned(), thread.clone()));
    // Now it is.
    let start = Instant::now();
    let call = loop {
        b.poll();
        if let Ok(call) = calls.try_recv() {
            break call;
        }
        assert!(start.elapsed() < SOON);
    };
    assert_eq!(call, ("Recovered".to_owned(), thread));
    until(&mut a, &mut b, ready);
    let of_cq = usize::from(Scope::Cq.number());
    assert_eq!(a.link.counters().unwrap().faults[of_cq], 1);
}
