//! Queue pairs on ids, as after rdma_create_qp(3): who gets the events moves them, and CONNECT_ERROR
//! says that the device refused it.

use crate::support::*;
use crate::tests;
use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::state::QpState;
use bellwire::wqe::{NoPayload, Send};
use bellwire::wr::WcStatus::{Success, WrFlushErr};
use bellwire::{Cq, Qp};
use bellwire_tests::ends::{QUIET, RECEIVES};
use bellwire_tests::fixture::*;

tests! {
    the_answer_connects_it,
    one_that_is_in_error_is_not_connected,
    one_that_the_device_refuses_is_not_connected,
    a_refusal_ends_it,
}

/// Puts a queue pair on an id, with a receive posted if it is still in INIT.
fn put(id: &Id) -> Cq {
    let mut end = end_for(id);
    end.receive(RECEIVES, &[]);
    assert!(id.put_qp(end.qp).is_none());
    end.cq
}

fn flushed(cq: &mut Cq) {
    let done = wait(cq);
    assert_eq!((done.wr_id, done.status()), (RECEIVES, WrFlushErr));
    nothing(cq, QUIET);
}

fn request(channel: &EventChannel) -> Id {
    match expect(channel, CmEvent::ConnectRequest).ack() {
        EventKind::ConnectRequest { id, .. } => id,
        kind => panic!("{kind:?}"),
    }
}

fn in_state(id: &Id, state: QpState) -> Qp {
    let qp = id.take_qp().expect("put there");
    assert_eq!(qp.state(), state);
    qp
}

/// One end sends, and the other has it.
fn message(from: &mut Qp, sent: &mut Cq, to: &mut Cq) {
    post(from, 1, Send {}, NoPayload, SIGNALED).expect("room");
    from.sq().ring();
    let done = wait(sent);
    assert_eq!((done.wr_id, done.status()), (1, Success));
    let done = wait(to);
    assert_eq!((done.wr_id, done.status()), (RECEIVES, Success));
}

fn the_answer_connects_it() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let client = route(&channel, PortSpace::Tcp, address(HERE, port));
    let mut there = put(&client);
    client.connect(None, &ConnParam::default()).expect("a step");
    let server = request(&channel);
    let mut here = put(&server);
    let param = ConnParam {
        private_data: b"welcome".to_vec(),
        ..ConnParam::default()
    };
    server.accept(None, &param).expect("a step");
    let event = expect(&channel, CmEvent::Established);
    assert!(*event.id() == client);
    assert!(event.private_data().starts_with(b"welcome"));
    drop(event);
    assert!(*expect(&channel, CmEvent::Established).id() == server);
    let mut a = in_state(&client, QpState::Rts);
    let mut b = in_state(&server, QpState::Rts);
    message(&mut a, &mut there, &mut here);
    message(&mut b, &mut here, &mut there);
    client.put_qp(a);
    client.disconnect(None).expect("connected");
    in_state(&client, QpState::Err);
    assert!(*expect(&channel, CmEvent::Disconnected).id() == server);
    server.disconnect(&mut b).expect("connected");
    assert!(*expect(&channel, CmEvent::Disconnected).id() == client);
}

/// CONNECT_ERROR, and what becomes of both ends.
fn is_not_connected(channel: &EventChannel, client: &Id, there: &mut Cq) {
    let server = request(channel);
    let mut here = put(&server);
    server.accept(None, &ConnParam::default()).expect("a step");
    let event = expect(channel, CmEvent::ConnectError);
    assert!(event.id() == client);
    assert!(event.status() < 0, "{event:?}");
    drop(event);
    in_state(client, QpState::Err);
    flushed(there);
    // The peer hears of it, and does not wait.
    let event = expect(channel, CmEvent::Rejected);
    assert!(*event.id() == server);
    drop(event);
    in_state(&server, QpState::Err);
    flushed(&mut here);
}

/// A fault took it to ERR before the answer came.
fn one_that_is_in_error_is_not_connected() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let client = route(&channel, PortSpace::Tcp, address(HERE, port));
    let mut there = put(&client);
    let mut qp = client.take_qp().expect("put there");
    qp.to_error().expect("ERR");
    client.put_qp(qp);
    client.connect(None, &ConnParam::default()).expect("a step");
    is_not_connected(&channel, &client, &mut there);
    silence(&channel);
}

/// rxe refuses RTR: the queue pair is in RESET, where no connection begins.
fn one_that_the_device_refuses_is_not_connected() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let client = route(&channel, PortSpace::Tcp, address(HERE, port));
    let mut end = End::new(&device_of(&client).alloc_pd(), QUIET, &init());
    assert_eq!(end.reset(), [0; 0]);
    client.put_qp(end.qp);
    client.connect(None, &ConnParam::default()).expect("a step");
    let server = request(&channel);
    let mut here = put(&server);
    server.accept(None, &ConnParam::default()).expect("a step");
    let event = expect(&channel, CmEvent::ConnectError);
    assert_eq!(event.status(), -libc::EINVAL);
    drop(event);
    in_state(&client, QpState::Err);
    assert!(*expect(&channel, CmEvent::Rejected).id() == server);
    flushed(&mut here);
}

fn a_refusal_ends_it() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let client = route(&channel, PortSpace::Tcp, address(HERE, port));
    let mut there = put(&client);
    client.connect(None, &ConnParam::default()).expect("a step");
    request(&channel).reject(b"full").expect("a step");
    let event = expect(&channel, CmEvent::Rejected);
    assert!(event.private_data().starts_with(b"full"));
    drop(event);
    in_state(&client, QpState::Err);
    flushed(&mut there);
}
