//! Datagram services, and multicast groups.

use super::world::{Expect, QUIET, SOON, World, in_both_worlds};
use bellwire::connect::cm::{EventChannel, EventKind, Id, Membership, Multicast, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::soft::Mode;
use bellwire::wqe::{Send, Ud};
use bellwire::wr::WcStatus;
use bellwire::{Ah, Cq, Error, GRH_BYTES, Qp, Region};
use bellwire_tests::fixture::{self, SIGNALED};
use std::net::SocketAddr;

in_both_worlds!(
    a_service_is_found,
    a_service_refuses,
    a_service_that_nobody_has,
    members_of_a_group_hear_it,
    a_group_is_lost_with_the_port,
);

/// A queue pair for datagrams, with a receive posted.
struct Station {
    qp: Qp<Ud>,
    cq: Cq,
    region: Region,
}

impl Station {
    fn new(id: &Id) -> Self {
        let pd = id.device().unwrap().expect("bound").alloc_pd();
        let init = fixture::init();
        let (send, recv) = init.cq_entries_of::<Ud>();
        let mut cq = pd.device().create_cq(send + recv).unwrap();
        let mut qp = pd.create_qp_of::<Ud>(&mut cq, &init).unwrap();
        id.start_qp(&mut qp).unwrap();
        let region = fixture::region(&pd, 4096);
        // SAFETY: the region's own key, and memory that is only copied.
        unsafe { qp.rq().post(1, &[region.sge(0, 256)]) }.unwrap();
        qp.rq().ring();
        Self { qp, cq, region }
    }

    fn send(&mut self, ah: &Ah, qp_num: u32, qkey: u32) {
        self.region.write(1024, b"hello");
        let sge = self.region.sge(1024, 5);
        // SAFETY: the region's own key, and memory that is only copied.
        unsafe { (self.qp.sq()).post(2, ah.to(qp_num, qkey), Send {}, sge, SIGNALED) }.unwrap();
        self.qp.sq().ring();
        assert_eq!(fixture::wait(&mut self.cq).wr_id, 2);
    }

    fn hears(&mut self) {
        let done = fixture::wait(&mut self.cq);
        assert_eq!((done.wr_id, done.status()), (1, WcStatus::Success));
        let mut bytes = [0; 5];
        self.region.read(GRH_BYTES, &mut bytes);
        assert_eq!(&bytes, b"hello");
    }
}

fn a_service_is_found(world: &World) {
    let listener = world.listener(PortSpace::Udp, 8);
    let client = world.caller(PortSpace::Udp, listener.port());
    client.lookup(b"who?").unwrap();
    let event = world.server.expect(&listener, CmEvent::ConnectRequest);
    assert_eq!(event.private_data().len(), 180);
    assert_eq!(&event.private_data()[..5], b"who?\0");
    let EventKind::LookupRequest { id: server, .. } = event.ack() else {
        panic!("not a lookup")
    };
    let mut here = Station::new(&server);
    server.answer(&here.qp, b"me").unwrap();
    let event = world.client.expect(&client, CmEvent::Established);
    let EventKind::Found { peer } = event.ack() else {
        panic!("not found")
    };
    assert_eq!(
        (peer.qp_num, peer.private_data.len()),
        (here.qp.qp_num(), 136)
    );
    assert_eq!(&peer.private_data[..3], b"me\0");
    let mut there = Station::new(&client);
    let ah = there.qp.pd().create_ah(&peer.ah_attr).unwrap();
    there.send(&ah, peer.qp_num, peer.qkey);
    here.hears();
    world.client.nothing();
    world.server.nothing();
    let twice = server.answer(&here.qp, b"me");
    assert!(matches!(twice, Err(Error::CmStep { .. })), "{twice:?}");
}

fn a_service_refuses(world: &World) {
    let listener = world.listener(PortSpace::Udp, 8);
    let client = world.caller(PortSpace::Udp, listener.port());
    client.lookup(&[]).unwrap();
    world.request(&listener).reject(b"no").unwrap();
    let event = world.client.expect(&client, CmEvent::Unreachable);
    assert_eq!(event.status(), 2);
}

fn a_service_that_nobody_has(world: &World) {
    let client = world.caller(PortSpace::Udp, 7);
    client.lookup(&[]).unwrap();
    let event = world.client.expect(&client, CmEvent::Unreachable);
    assert_eq!(event.status(), 1);
}

fn group() -> SocketAddr {
    "239.1.2.3:0".parse().unwrap()
}

/// A member, attached to the group.
fn member(channel: &EventChannel, membership: Membership) -> (Id, Station, Multicast) {
    let id = channel.id(PortSpace::Udp).unwrap();
    id.bind(("0.0.0.0", 0)).unwrap();
    let station = Station::new(&id);
    id.join(group(), membership).unwrap();
    let event = channel.expect(&id, CmEvent::MulticastJoin);
    let EventKind::MulticastJoin { group } = event.ack() else {
        panic!("not joined")
    };
    if membership == Membership::Full {
        let to = &group.ah_attr;
        station.qp.attach_mcast(to.grh.dgid, to.dlid).unwrap();
    }
    (id, station, group)
}

fn members_of_a_group_hear_it(world: &World) {
    let (one, mut first, _) = member(&world.server, Membership::Full);
    let (_other, mut second, _) = member(&world.client, Membership::Full);
    let (_sender, mut sender, way) = member(&world.client, Membership::SendOnly);
    let ah = sender.qp.pd().create_ah(&way.ah_attr).unwrap();
    sender.send(&ah, way.qp_num, way.qkey);
    first.hears();
    second.hears();
    fixture::nothing(&mut sender.cq, Mode::Inline);
    let twice = one.join(group(), Membership::Full);
    assert!(matches!(twice, Err(Error::Address { .. })), "{twice:?}");
    one.leave(group()).unwrap();
    let twice = one.leave(group());
    assert!(matches!(twice, Err(Error::Address { .. })), "{twice:?}");
    let none = one.join("10.0.0.1:0".parse().unwrap(), Membership::Full);
    assert!(matches!(none, Err(Error::NotMulticast { .. })), "{none:?}");
    assert!(
        one.join("[ff05::1]:0".parse().unwrap(), Membership::Full)
            .is_ok()
    );
    world.server.sees(&one, CmEvent::MulticastJoin);
}

/// MULTICAST_ERROR: of members, and of those who want to be.
fn a_group_is_lost_with_the_port(world: &World) {
    let (id, _station, _) = member(&world.client, Membership::Full);
    world.device.as_soft().unwrap().set_port_up(false);
    let event = world.client.expect(&id, CmEvent::MulticastError);
    assert_eq!(event.status(), -libc::ENETRESET);
    id.join(group(), Membership::Full).unwrap();
    let event = world.client.expect(&id, CmEvent::MulticastError);
    assert_eq!(event.status(), -libc::ENETDOWN);
    world.device.as_soft().unwrap().set_port_up(true);
    id.join(group(), Membership::Full).unwrap();
    world.client.sees(&id, CmEvent::MulticastJoin);
}

#[test]
fn nobody_joins_without_an_address() {
    let world = World::alone();
    let id = world.client.id(PortSpace::Udp).unwrap();
    let refused = id.join(group(), Membership::Full);
    assert!(matches!(refused, Err(Error::CmStep { .. })), "{refused:?}");
    id.resolve_addr(None, group(), SOON).unwrap();
    world.client.sees(&id, CmEvent::AddrResolved);
    id.join(group(), Membership::Full).unwrap();
    world.client.sees(&id, CmEvent::MulticastJoin);
    assert!(world.client.get(QUIET).unwrap().is_none());
}
