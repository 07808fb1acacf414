//! Queue pairs on ids: who gets the events moves them.

use super::world::{Expect, Place, World, in_both_worlds};
use bellwire::connect::cm::{ConnParam, EventKind, Id, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::state::QpState;
use bellwire::wqe::Send;
use bellwire::wr::WcStatus::{self, Success, WrFlushErr};
use bellwire::{AccessFlags, Cq, Error, Qp, QpInit, Region, SrqInit};
use bellwire_tests::fixture::{self, SIGNALED, nothing, post, wait};

in_both_worlds!(
    the_answer_connects_it,
    one_that_cannot_be_connected,
    a_refusal_ends_it,
    one_with_a_shared_receive_queue,
    it_goes_with_its_id,
    there_has_to_be_one,
    another_than_was_asked_with_is_left_alone,
    each_connection_has_psns_of_its_own,
);

const QUIET: fixture::Quiet = fixture::Quiet(super::world::QUIET);

/// What a queue pair that is on its id has left with us.
struct Rest {
    cq: Cq,
    region: Region,
}

impl Rest {
    fn outcome(&mut self) -> (u64, WcStatus) {
        let done = wait(&mut self.cq);
        (done.wr_id, done.status())
    }

    fn send(&self, qp: &mut Qp, wr_id: u64) {
        post(qp, wr_id, Send {}, self.region.sge(0, 64), SIGNALED).expect("room");
        qp.sq().ring();
    }
}

/// Puts a queue pair in INIT, with a receive posted, on an id.
fn put(world: &World, id: &Id) -> Rest {
    let fixture::End { qp, cq, region, .. } = world.end(id);
    assert!(id.put_qp(qp).is_none());
    Rest { cq, region }
}

fn the_answer_connects_it(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let mut there = put(world, &client);
    client.connect(None, &ConnParam::default()).unwrap();
    let server = world.request(&listener);
    let mut here = put(world, &server);
    let param = ConnParam {
        private_data: b"welcome".to_vec(),
        ..ConnParam::default()
    };
    server.accept(None, &param).unwrap();
    let mut b = server.take_qp().expect("put there");
    let event = world.client.expect(&client, CmEvent::Established);
    assert!(event.private_data().starts_with(b"welcome"));
    let EventKind::Connected { conn } = event.kind() else {
        panic!("{event:?}")
    };
    assert_eq!(conn.qp_num, b.qp_num());
    world.server.sees(&server, CmEvent::Established);
    let mut a = client.take_qp().expect("put there");
    assert!(client.take_qp().is_none());
    assert_eq!(a.state(), QpState::Rts);
    // What was posted before is received into.
    there.send(&mut a, 1);
    assert_eq!(here.outcome(), (100, Success));
    assert_eq!(there.outcome(), (1, Success));
    here.send(&mut b, 1);
    assert_eq!(there.outcome(), (100, Success));
    assert_eq!(here.outcome(), (1, Success));
    // It may be put back, and ended there.
    client.put_qp(a);
    client.disconnect(None).unwrap();
    world.server.sees(&server, CmEvent::Disconnected);
    world.client.sees(&client, CmEvent::Disconnected);
    server.disconnect(&mut b).unwrap();
    let a = client.take_qp().expect("put there");
    assert_eq!([a.state(), b.state()], [QpState::Err; 2]);
}

/// It was taken to ERR meanwhile. The peer hears of it.
fn one_that_cannot_be_connected(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let mut there = put(world, &client);
    client.connect(None, &ConnParam::default()).unwrap();
    let server = world.request(&listener);
    let mut here = put(world, &server);
    server.accept(None, &ConnParam::default()).unwrap();
    let mut qp = client.take_qp().expect("put there");
    qp.to_error().unwrap();
    assert_eq!(there.outcome(), (100, WrFlushErr));
    // As put there before the request.
    client.put_qp(qp);
    world.client.sees(&client, CmEvent::ConnectResponse);
    assert!(
        client
            .establish(&mut client.take_qp().expect("put there"))
            .is_err()
    );
    drop(client);
    world.server.sees(&server, CmEvent::Rejected);
    assert_eq!(here.outcome(), (100, WrFlushErr));

    let client = world.caller(PortSpace::Tcp, listener.port());
    let mut there = put(world, &client);
    let mut qp = client.take_qp().expect("put there");
    qp.to_error().unwrap();
    client.put_qp(qp);
    client.connect(None, &ConnParam::default()).unwrap();
    let server = world.request(&listener);
    let mut here = put(world, &server);
    server.accept(None, &ConnParam::default()).unwrap();
    let event = world.client.expect(&client, CmEvent::ConnectError);
    assert!(event.status() < 0, "{event:?}");
    let qp = client.take_qp().expect("put there");
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(there.outcome(), (100, WrFlushErr));
    world.server.sees(&server, CmEvent::Rejected);
    let qp = server.take_qp().expect("put there");
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(here.outcome(), (100, WrFlushErr));
    world.client.nothing();
    world.server.nothing();
}

fn a_refusal_ends_it(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let mut there = put(world, &client);
    client.connect(None, &ConnParam::default()).unwrap();
    world.request(&listener).reject(b"full").unwrap();
    let event = world.client.expect(&client, CmEvent::Rejected);
    assert!(event.private_data().starts_with(b"full"));
    assert_eq!(there.outcome(), (100, WrFlushErr));
    let qp = client.take_qp().expect("put there");
    assert_eq!(qp.state(), QpState::Err);
}

fn one_with_a_shared_receive_queue(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let pd = client.device().unwrap().expect("bound").alloc_pd();
    let mut srq = pd.create_srq(&SrqInit::default()).unwrap();
    let mut cq = pd.device().create_cq(1024).unwrap();
    let mut qp = pd
        .create_qp_on_srq(&mut cq, &srq, &QpInit::default())
        .unwrap();
    client.init_qp(&mut qp, AccessFlags::empty()).unwrap();
    let region = fixture::region(&pd, 64);
    // SAFETY: the memory is that of the region, which outlives the queue pair.
    unsafe { srq.post(5, &[region.sge(0, 64)]) }.unwrap();
    srq.ring();
    client.put_qp(qp);
    client.connect(None, &ConnParam::default()).unwrap();
    let event = world.server.expect(&listener, CmEvent::ConnectRequest);
    let EventKind::ConnectRequest { id: server, conn } = event.ack() else {
        panic!("not a request")
    };
    assert!(conn.srq);
    let mut here = world.end(&server);
    server.accept(&mut here.qp, &ConnParam::default()).unwrap();
    world.client.sees(&client, CmEvent::Established);
    world.server.sees(&server, CmEvent::Established);
    let sge = here.place(0);
    here.go(1, Send {}, sge);
    assert_eq!(here.outcome(), (1, Success));
    let done = wait(&mut cq);
    assert_eq!((done.wr_id, done.status()), (5, Success));
}

fn it_goes_with_its_id(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let before = world.device.resources().qp;
    let mut there = put(world, &client);
    assert_eq!(world.device.resources().qp, before + 1);
    drop(client);
    assert_eq!(world.device.resources().qp, before);
    assert_eq!(there.outcome(), (100, WrFlushErr));
}

fn there_has_to_be_one(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let none = |result: Result<(), Error>| assert!(matches!(result, Err(Error::CmNoQp { .. })));
    none(client.connect(None, &ConnParam::default()));
    none(client.accept(None, &ConnParam::default()));
    none(client.disconnect(None));
    // Of another device.
    let other = World::alone();
    let there = other.listener(PortSpace::Tcp, 8);
    let stranger = other.end(&there).qp;
    client.put_qp(stranger);
    let refused = client.connect(None, &ConnParam::default());
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
}

/// The program connects with a queue pair of its own, while another is on the id.
fn another_than_was_asked_with_is_left_alone(world: &World) {
    let listener = world.listener(PortSpace::Tcp, 8);
    let client = world.caller(PortSpace::Tcp, listener.port());
    let mut there = put(world, &client);
    let mut ours = world.end(&client);
    client.connect(&ours.qp, &ConnParam::default()).unwrap();
    let server = world.request(&listener);
    let mut here = world.end(&server);
    server.accept(&mut here.qp, &ConnParam::default()).unwrap();
    world.client.sees(&client, CmEvent::ConnectResponse);
    client.establish(&mut ours.qp).unwrap();
    world.server.sees(&server, CmEvent::Established);
    let qp = client.take_qp().expect("put there");
    assert_eq!(qp.state(), QpState::Init);
    nothing(&mut there.cq, QUIET);
}

/// A late packet of one connection is none of another between the same queue pairs.
fn each_connection_has_psns_of_its_own(world: &World) {
    let mut psns = Vec::new();
    for _ in 0..4 {
        let connection = world.connection();
        let [here, there] = [&connection.here, &connection.there].map(|end| end.qp.query());
        assert_eq!((here.sq_psn, there.sq_psn), (there.rq_psn, here.rq_psn));
        psns.extend([here.sq_psn, there.sq_psn]);
    }
    let mut different = psns.clone();
    different.sort_unstable();
    different.dedup();
    // Two of eight random numbers are equal once in 600,000 runs.
    assert!(different.len() >= psns.len() - 1, "{psns:x?}");
}
