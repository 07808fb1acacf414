//! Each event, and what it does.

use crate::support::*;
use crate::tests;
use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, Id, Membership, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::state::QpState;
use bellwire::wqe::{Send, Ud};
use bellwire::wr::SendFlags;
use bellwire::wr::WcStatus::{Success, WrFlushErr};
use bellwire::{Cq, GRH_BYTES, Pd, Qp, QpInit, Region};
use bellwire_tests::cable::{Undo, run};
use bellwire_tests::ends::{QUIET, RECEIVES, account, works};
use bellwire_tests::fixture::*;
use std::time::Duration;
use std::time::Instant;

tests! {
    connections_are_made_used_ended_and_made_again,
    by_ipv6,
    addresses_that_nobody_has,
    addresses_without_an_rdma_device,
    peers_that_reject,
    a_peer_that_does_not_answer,
    a_peer_that_goes,
    datagram_services,
    multicast_groups,
    groups_that_cannot_be_joined,
}

/// The next two events, of different ids, in either order.
fn expect_both(channel: &EventChannel, expected: CmEvent) {
    let first = expect(channel, expected);
    let second = expect(channel, expected);
    assert!(first.id() != second.id());
}

/// Ends it from the first end, and asserts what becomes of what is posted.
fn end(channel: &EventChannel, pair: &mut Pair) {
    let (asked, a) = &mut pair.asked;
    let (took, b) = &mut pair.took;
    a.receive(RECEIVES, &[]);
    b.receive(RECEIVES + 1, &[]);
    b.receive(RECEIVES + 2, &[]);
    asked.disconnect(&mut a.qp).expect("connected");
    account(a, &[], &[(RECEIVES, WrFlushErr)]);
    let event = expect(channel, CmEvent::Disconnected);
    assert!(event.id() == took);
    drop(event);
    // The peer's end is the program's to end.
    assert_eq!(b.qp.state(), QpState::Rts);
    b.nothing();
    took.disconnect(&mut b.qp).expect("connected");
    account(
        b,
        &[],
        &[(RECEIVES + 1, WrFlushErr), (RECEIVES + 2, WrFlushErr)],
    );
    assert!(expect(channel, CmEvent::Disconnected).id() == asked);
    expect_both(channel, CmEvent::TimewaitExit);
    silence(channel);
}

fn connections_are_made_used_ended_and_made_again() {
    let channel = channel();
    let mut pair = connect(&channel, HERE);
    works(&mut pair.asked.1, &mut pair.took.1);
    works(&mut pair.took.1, &mut pair.asked.1);
    end(&channel, &mut pair);
    // The same queue pair, by another id.
    let (_, mut a) = pair.asked;
    drop(pair.took);
    assert_eq!(a.reset(), [0; 0]);
    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    let id = route(&channel, PortSpace::Tcp, address(HERE, port));
    id.init_qp(&mut a.qp, ACCESS).expect("INIT");
    id.connect(&a.qp, &ConnParam::default()).expect("a step");
    let event = expect(&channel, CmEvent::ConnectRequest);
    let EventKind::ConnectRequest { id: request, .. } = event.ack() else {
        panic!("another kind");
    };
    let mut b = end_for(&request);
    request
        .accept(&mut b.qp, &ConnParam::default())
        .expect("a step");
    expect(&channel, CmEvent::ConnectResponse).ack();
    id.establish(&mut a.qp).expect("a step");
    expect(&channel, CmEvent::Established).ack();
    works(&mut a, &mut b);
}

fn by_ipv6() {
    const ADDED: &str = "fd00:77::1";
    let line = |verb| format!("ip -6 addr {verb} {ADDED}/64 dev dummy0");
    let _address = Undo::after(&format!("{} nodad", line("add")), &line("del"));
    let channel = channel();
    let mut pair = connect(&channel, ADDED);
    assert!(pair.asked.0.local_addr().is_some_and(|addr| addr.is_ipv6()));
    works(&mut pair.asked.1, &mut pair.took.1);
    end(&channel, &mut pair);
}

/// Nobody answers for an address on the wire, until somebody does.
fn addresses_that_nobody_has() {
    const NOBODY: &str = "10.78.0.99";
    let channel = channel();
    let short = Duration::from_millis(200);
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, address(NOBODY, 7), short)
        .expect("a step");
    let event = expect(&channel, CmEvent::AddrError);
    assert!(*event.id() == id);
    assert!(
        [-libc::ETIMEDOUT, -libc::EHOSTUNREACH].contains(&event.status()),
        "{event:?}"
    );
    drop(event);
    assert!(id.device().expect("none").is_none());
    let line = |verb| format!("ip neigh {verb} {NOBODY} dev veth1");
    let there = format!("{} lladdr 02:00:0a:4e:00:99 nud permanent", line("replace"));
    let _there = Undo::after(&there, &line("del"));
    id.resolve_addr(None, address(NOBODY, 7), STEP)
        .expect("a step");
    expect(&channel, CmEvent::AddrResolved).ack();
    assert_eq!(device_of(&id).name(), "rxe1");
}

/// There is a way, by an interface that has none.
fn addresses_without_an_rdma_device() {
    let _plain = Undo::after("ip link add plain0 type dummy", "ip link del plain0");
    run("ip link set plain0 up arp on");
    run("ip addr add 10.80.0.1/24 dev plain0");
    run("ip neigh add 10.80.0.2 lladdr 02:00:0a:50:00:02 nud permanent dev plain0");
    let channel = channel();
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, address("10.80.0.2", 7), STEP)
        .expect("a step");
    let event = expect(&channel, CmEvent::AddrError);
    assert_eq!(event.status(), -libc::ENODEV);
}

/// Nobody listens; the program refuses, and says why; it drops the request.
fn peers_that_reject() {
    const INVALID_SERVICE_ID: i32 = 8;
    const CONSUMER: i32 = 28;
    let channel = channel();
    let rejected = |id: &Id, end: &mut End, by: i32| {
        let event = expect(&channel, CmEvent::Rejected);
        assert!(event.id() == id);
        assert_eq!(event.status(), by);
        let data = event.private_data().to_vec();
        assert_eq!(end.qp.state(), QpState::Init);
        end.receive(RECEIVES + 1, &[]);
        end.qp.to_error().expect("ERR");
        account(
            end,
            &[],
            &[(RECEIVES, WrFlushErr), (RECEIVES + 1, WrFlushErr)],
        );
        data
    };
    let ask = |port| {
        let id = route(&channel, PortSpace::Tcp, address(HERE, port));
        let mut end = end_for(&id);
        end.receive(RECEIVES, &[]);
        id.connect(&end.qp, &ConnParam::default()).expect("a step");
        (id, end)
    };
    let (listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    drop(listener);
    let (id, mut end) = ask(port);
    rejected(&id, &mut end, INVALID_SERVICE_ID);

    let (_listener, port) = listen(&channel, PortSpace::Tcp, HERE);
    for says_why in [true, false] {
        let (id, mut end) = ask(port);
        let event = expect(&channel, CmEvent::ConnectRequest);
        let EventKind::ConnectRequest { id: request, .. } = event.ack() else {
            panic!("another kind");
        };
        if says_why {
            request.reject(b"full").expect("a step");
        }
        drop(request);
        let data = rejected(&id, &mut end, CONSUMER);
        assert_eq!(data.starts_with(b"full"), says_why);
    }
    silence(&channel);
}

/// Its address is known, and nobody is behind it. It would be asked for a minute; when it becomes known
/// that the address is another's, the connection is given up.
fn a_peer_that_does_not_answer() {
    let neighbour = |verb, last| {
        format!("ip neigh {verb} 10.77.0.50 lladdr 02:00:0a:4d:00:{last} nud permanent dev dummy0")
    };
    let neighbour_at = neighbour("add", "50");
    let _there = Undo::after(&neighbour_at, "ip neigh del 10.77.0.50 dev dummy0");
    let channel = channel();
    let id = route(&channel, PortSpace::Tcp, address("10.77.0.50", 7));
    let mut end = end_for(&id);
    end.receive(RECEIVES, &[]);
    id.connect(&end.qp, &ConnParam::default()).expect("a step");
    silence(&channel);
    run(&neighbour("replace", "51"));
    let event = expect(&channel, CmEvent::Unreachable);
    assert!(*event.id() == id);
    assert_eq!(event.status(), -libc::ETIMEDOUT);
    drop(event);
    end.qp.to_error().expect("ERR");
    account(&mut end, &[], &[(RECEIVES, WrFlushErr)]);
    // Nothing waits for the peer, who is asked still.
    let start = Instant::now();
    drop((id, end));
    assert!(start.elapsed() < STEP);
}

/// Its id is dropped, as that of a process that is killed.
fn a_peer_that_goes() {
    let channel = channel();
    let pair = connect(&channel, HERE);
    let (asked, mut a) = pair.asked;
    a.receive(RECEIVES, &[]);
    drop(pair.took);
    let event = expect(&channel, CmEvent::Disconnected);
    assert!(*event.id() == asked);
    drop(event);
    asked.disconnect(&mut a.qp).expect("connected");
    account(&mut a, &[], &[(RECEIVES, WrFlushErr)]);
    assert!(*expect(&channel, CmEvent::TimewaitExit).id() == asked);
    silence(&channel);
}

const INIT: QpInit = QpInit {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 28,
    sq_sig_all: false,
    reserve_cq: true,
    suppress_flush: false,
};

/// A queue pair for datagrams that runs, and memory to receive in.
fn datagrams(id: &Id) -> (Cq, Qp<Ud>, Region, Pd) {
    let pd = device_of(id).alloc_pd();
    let (sends, receives) = INIT.cq_entries_of::<Ud>();
    let mut cq = pd.device().create_cq(sends + receives).expect("room");
    let mut qp = pd.create_qp_of::<Ud>(&mut cq, &INIT).expect("a queue pair");
    id.start_qp(&mut qp).expect("RTS");
    let region = region(&pd, 1 << 12);
    // SAFETY: the memory is that of the region, which outlives the queue pair here, and is copied.
    unsafe { qp.rq().post(RECEIVES, &[region.sge(0, 128)]) }.expect("room");
    qp.rq().ring();
    (cq, qp, region, pd)
}

/// Found, refused, and not there.
fn datagram_services() {
    let channel = channel();
    let (_listener, port) = listen(&channel, PortSpace::Udp, HERE);
    let id = route(&channel, PortSpace::Udp, address(HERE, port));
    let ask = || {
        id.lookup(b"who is there?").expect("a step");
        let event = expect(&channel, CmEvent::ConnectRequest);
        assert!(event.private_data().starts_with(b"who is there?"));
        match event.ack() {
            EventKind::LookupRequest { id, .. } => id,
            kind => panic!("{kind:?}"),
        }
    };
    let request = ask();
    let (mut theirs, service, memory, _) = datagrams(&request);
    request.answer(&service, b"me").expect("a step");
    let event = expect(&channel, CmEvent::Established);
    assert!(event.private_data().starts_with(b"me"));
    let EventKind::Found { peer } = event.kind() else {
        panic!("{event:?}");
    };
    assert_eq!(peer.qp_num, service.qp_num());
    let (mut ours, mut qp, _memory, pd) = datagrams(&id);
    let ah = pd.create_ah(&peer.ah_attr).expect("a way");
    let to = ah.to(peer.qp_num, peer.qkey);
    qp.sq()
        .post_inline(1, to, Send {}, b"a datagram", SendFlags::SIGNALED)
        .expect("room");
    qp.sq().ring();
    assert_eq!(wait(&mut ours).status(), Success);
    let done = wait(&mut theirs);
    assert_eq!((done.wr_id, done.status()), (RECEIVES, Success));
    let mut bytes = [0; 10];
    memory.read(GRH_BYTES, &mut bytes);
    assert_eq!(&bytes, b"a datagram");
    drop(event);
    drop(id);

    // rxe reports refusals of lookups as peers that cannot be reached, with the reason as the status.
    for refused in [true, false] {
        let (listener, port) = listen(&channel, PortSpace::Udp, HERE);
        let id = route(&channel, PortSpace::Udp, address(HERE, port));
        if refused {
            id.lookup(b"who is there?").expect("a step");
            match expect(&channel, CmEvent::ConnectRequest).ack() {
                EventKind::LookupRequest { id, .. } => id.reject(b"").expect("a step"),
                kind => panic!("{kind:?}"),
            }
        } else {
            drop(listener);
            id.lookup(b"who is there?").expect("a step");
        }
        let event = expect(&channel, CmEvent::Unreachable);
        assert!(*event.id() == id);
        assert!(event.status() > 0, "{event:?}");
    }
    silence(&channel);
}

/// One sends, and both members get it; who has left gets nothing.
fn multicast_groups() {
    let channel = channel();
    let group = address("239.77.1.2", 0);
    let member = || {
        let id = channel.id(PortSpace::Udp).expect("an id");
        id.bind(address(HERE, 0)).expect("an address");
        let parts = datagrams(&id);
        id.join(group, Membership::Full).expect("a step");
        let event = expect(&channel, CmEvent::MulticastJoin);
        assert!(*event.id() == id);
        let EventKind::MulticastJoin { group } = *event.kind() else {
            panic!("{event:?}");
        };
        let (gid, lid) = (group.ah_attr.grh.dgid, group.ah_attr.dlid);
        parts.1.attach_mcast(gid, lid).expect("room");
        (id, parts, group)
    };
    let (first, mut one, joined) = member();
    let (second, mut two, _) = member();
    assert_eq!(joined.qp_num, 0xff_ffff);
    let ah = one.3.create_ah(&joined.ah_attr).expect("a way");
    let mut send = |sends: u64| {
        let to = ah.to(joined.qp_num, joined.qkey);
        one.1
            .sq()
            .post_inline(sends, to, Send {}, b"to all", SendFlags::SIGNALED)
            .expect("room");
        one.1.sq().ring();
        let mut completed = [wait(&mut one.0), wait(&mut one.0)];
        completed.sort_by_key(|done| done.wr_id);
        assert_eq!(
            completed.map(|done| (done.wr_id, done.status())),
            [(sends, Success), (RECEIVES, Success)]
        );
        // SAFETY: as in `datagrams`.
        unsafe { one.1.rq().post(RECEIVES, &[one.2.sge(0, 128)]) }.expect("room");
        one.1.rq().ring();
    };
    send(1);
    assert_eq!(wait(&mut two.0).wr_id, RECEIVES);
    // SAFETY: as in `datagrams`.
    unsafe { two.1.rq().post(RECEIVES, &[two.2.sge(0, 128)]) }.expect("room");
    two.1.rq().ring();
    let (gid, lid) = (joined.ah_attr.grh.dgid, joined.ah_attr.dlid);
    two.1.detach_mcast(gid, lid).expect("attached");
    second.leave(group).expect("joined");
    assert!(second.leave(group).is_err());
    send(2);
    nothing(&mut two.0, QUIET);
    first.leave(group).expect("joined");
    silence(&channel);
}

/// The queue pair on the id cannot be attached: the group has as many as rxe takes.
fn groups_that_cannot_be_joined() {
    let channel = channel();
    let group = address("239.77.1.3", 0);
    let join = || {
        let id = channel.id(PortSpace::Udp).expect("an id");
        id.bind(address(HERE, 0)).expect("an address");
        let (cq, qp, region, pd) = datagrams(&id);
        assert!(id.put_ud_qp(qp).is_none());
        id.join(group, Membership::Full).expect("a step");
        (id, cq, region, pd)
    };
    let (first, ..) = join();
    let event = expect(&channel, CmEvent::MulticastJoin);
    assert!(*event.id() == first);
    let EventKind::MulticastJoin { group: joined } = *event.kind() else {
        panic!("{event:?}");
    };
    drop(event);
    // It was attached as the event was got.
    let (gid, lid) = (joined.ah_attr.grh.dgid, joined.ah_attr.dlid);
    let qp = first.take_ud_qp().expect("put there");
    qp.detach_mcast(gid, lid).expect("attached");
    let device = device_of(&first);
    let most = device.attr().max_mcast_qp_attach;
    let pd = device.alloc_pd();
    let mut cq = device.create_cq(1 << 13).expect("room");
    let others: Vec<_> = (0..most)
        .map(|_| {
            let qp = pd.create_qp_of::<Ud>(&mut cq, &INIT).expect("a queue pair");
            qp.attach_mcast(gid, lid).expect("room");
            qp
        })
        .collect();
    let (second, mut cq, ..) = join();
    let event = expect(&channel, CmEvent::MulticastError);
    assert!(*event.id() == second);
    assert!(event.status() < 0, "{event:?}");
    drop(event);
    // It is as it was: nothing is reported, and it can be used.
    nothing(&mut cq, QUIET);
    second.leave(group).expect("joined");
    // They leave the group as they go.
    drop(others);
    second.join(group, Membership::Full).expect("a step");
    expect(&channel, CmEvent::MulticastJoin).ack();
    let qp = second.take_ud_qp().expect("put there");
    qp.detach_mcast(gid, lid).expect("attached");
    silence(&channel);
}
