//! What is done while an allocation is refused.

use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::connect::tcp::{self, Connection};
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::Replay;
use bellwire::fault::plan::Limits;
use bellwire::link::{
    Exchange, ExchangeError, Link, LinkEnd, LinkInit, LinkSet, LinkSetInit, LinkSetSrq, LinkState,
    RecoverIn, pair,
};
use bellwire::memory::Pages;
use bellwire::soft::{HcaConfig, Mode};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::MwType;
use bellwire::{
    AccessFlags, ClassLayout, ConnectAttr, CqInit, Device, Pd, QpInit, Region, Slab, SrqInit,
};
use bellwire_tests::excused;
use bellwire_tests::fixture::{ALL, SIGNALED};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub type Scenario = fn() -> Result<(), String>;

pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("devices", devices),
    ("engines", engines),
    ("nodes", nodes),
    ("links", || links(RecoverIn::Poll, false)),
    ("links_asleep", || links(RecoverIn::Thread, true)),
    ("loaded", || loaded(EventType::QpFatal)),
    ("loaded_cq", || loaded(EventType::CqErr)),
    ("sets", sets),
    ("cm", cm),
    ("cm_between", cm_between),
    ("several_by_cm", several_by_cm),
    ("tcp", over_tcp),
];

fn text(error: impl std::fmt::Display) -> String {
    // The text of an error is the program's: the error itself needs no memory.
    excused::excused(|| error.to_string())
}

/// How long anything may take.
const LONG: Duration = bellwire_tests::fixture::DEADLINE;

fn small() -> QpInit {
    QpInit {
        max_send_wr: 16,
        max_recv_wr: 16,
        ..QpInit::default()
    }
}

fn until(what: &str, mut so: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let start = Instant::now();
    while !so()? {
        // Whatever is refused, everything ends in time: it is no error.
        assert!(start.elapsed() < LONG, "{what}: not in time");
    }
    Ok(())
}

fn memory(pd: &Pd) -> Result<Region, String> {
    let mapping = pd.device().mapping(4096).pages(Pages::Base).build();
    Region::new(pd, mapping.map_err(text)?, ALL).map_err(text)
}

fn slab(pd: &Pd) -> Result<Slab, String> {
    let layout = [ClassLayout {
        size: 64,
        count: 64,
    }];
    let bytes = Slab::bytes(&layout).map_err(text)?;
    let mapping = pd.device().mapping(bytes).pages(Pages::Base).build();
    let region = Region::new(pd, mapping.map_err(text)?, AccessFlags::LOCAL_WRITE);
    Slab::new(region.map_err(text)?, &layout).map_err(text)
}

/// Every object of a device.
fn objects(device: &Device) -> Result<(), String> {
    let pd = device.alloc_pd();
    let channel = device.create_comp_channel().map_err(text)?;
    let cq = CqInit {
        channel: Some(&channel),
        ..CqInit::new(128)
    };
    let mut cq = device.create_cq_with(&cq).map_err(text)?;
    let srq = SrqInit {
        max_wr: 16,
        ..SrqInit::default()
    };
    let _srq = pd.create_srq(&srq).map_err(text)?;
    let mut qp = pd.create_qp(&mut cq, &small()).map_err(text)?;
    let attr = ConnectAttr::default();
    qp.init(&attr).map_err(text)?;
    qp.connect(&qp.endpoint(), &attr).map_err(text)?;
    let region = memory(&pd)?;
    let _window = pd.alloc_mw(MwType::Type2).map_err(text)?;
    let _slab = slab(&pd)?;
    cq.req_notify(false).map_err(text)?;
    let write = RdmaWrite {
        remote: region.remote(0),
    };
    qp.sq()
        .post_inline(1, (), write, b"eight by", SIGNALED)
        .map_err(text)?;
    qp.sq().ring();
    let event = channel.get_cq_event().map_err(text)?;
    event.ack();
    let mut done = false;
    until("a WRITE", || {
        if let Some(completion) = cq.poll_one() {
            completion.result.map_err(text)?;
            done = true;
        }
        Ok(done)
    })
}

fn devices() -> Result<(), String> {
    objects(&Device::try_soft(HcaConfig::default()).map_err(text)?)
}

fn engines() -> Result<(), String> {
    let config = HcaConfig {
        mode: Mode::Engine { threads: 2 },
        ..HcaConfig::default()
    };
    objects(&Device::try_soft(config).map_err(text)?)
}

/// The name of the fabric, which has its memory before anything is refused.
pub fn fabric() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| format!("allocations-{}", std::process::id()))
}

fn node() -> Result<Device, String> {
    Device::join(fabric(), HcaConfig::default()).map_err(text)
}

/// Two nodes, and queue pairs between them.
fn nodes() -> Result<(), String> {
    let devices = [node()?, node()?];
    let end = |device: &Device| {
        let pd = device.alloc_pd();
        let mut cq = device.create_cq(128).map_err(text)?;
        let mut qp = pd.create_qp(&mut cq, &small()).map_err(text)?;
        qp.init(&ConnectAttr::default()).map_err(text)?;
        let region = memory(&pd)?;
        Ok::<_, String>((qp, cq, region))
    };
    let mut ends = [end(&devices[0])?, end(&devices[1])?];
    let endpoints = [ends[0].0.endpoint(), ends[1].0.endpoint()];
    for (end, peer) in ends.iter_mut().zip([1, 0]) {
        end.0
            .connect(&endpoints[peer], &ConnectAttr::default())
            .map_err(text)?;
    }
    let (a, b) = ends.split_at_mut(1);
    let ((qp, cq, region), (peer, peer_cq, target)) = (&mut a[0], &mut b[0]);
    let write = RdmaWrite {
        remote: target.remote(0),
    };
    // SAFETY: the keys are those of regions, whose memory is only copied in and out.
    unsafe { peer.rq().post(2, &[target.sge(0, 4096)]) }.map_err(text)?;
    peer.rq().ring();
    qp.sq()
        .post_inline(1, (), write, b"eight by", SIGNALED)
        .map_err(text)?;
    // SAFETY: as above.
    unsafe { qp.sq().post(1, (), Send {}, region.sge(0, 3000), SIGNALED) }.map_err(text)?;
    qp.sq().ring();
    let mut done = 0;
    until("a WRITE and a message", || {
        for completion in [cq.poll_one(), peer_cq.poll_one()].into_iter().flatten() {
            completion.result.map_err(text)?;
            done += 1;
        }
        Ok(done == 3)
    })
}

fn link_init(recover_in: RecoverIn, waitable: bool) -> LinkInit {
    LinkInit {
        qp: small(),
        recover_in,
        waitable,
        check_every: 1,
        limits: Limits {
            recovery: Duration::from_secs(2),
            step: Duration::from_secs(1),
            ..Limits::default()
        },
        ..LinkInit::default()
    }
}

fn ended(why: LinkEnd, exchange: Option<&ExchangeError>) -> String {
    match exchange {
        Some(error) => format!("ended: {why:?}: {error}"),
        None => format!("ended: {why:?}"),
    }
}

fn is_ready(link: &Link) -> Result<bool, String> {
    match link.state() {
        LinkState::Ready => Ok(true),
        LinkState::Ended(why) => Err(ended(why, link.exchange_error())),
        _ => Ok(false),
    }
}

/// Connects, exchanges a message, recovers, exchanges another, closes.
fn use_links(a: &mut Link, b: &mut Link, slab: &Slab) -> Result<(), String> {
    for round in 1..3 {
        until("links", || {
            for link in [&mut *a, &mut *b] {
                link.poll(16, drop);
                if link.fd().is_some() {
                    link.arm().map_err(text)?;
                }
            }
            let epoch = a.epoch().min(b.epoch());
            Ok(is_ready(a)? && is_ready(b)? && epoch >= round)
        })?;
        let block = slab.take(64).map_err(text)?;
        b.post_recv_block(1, block)
            .map_err(|_| "no room".to_owned())?;
        b.ring_recv();
        a.post_inline(2, Send {}, b"a message", SIGNALED, Replay::IfSafe)
            .map_err(text)?;
        a.ring();
        let mut done = 0;
        until("a message", || {
            let mut count = 0;
            a.poll(16, |_| count += 1);
            b.poll(16, |_| count += 1);
            done += count;
            is_ready(a)?;
            is_ready(b)?;
            Ok(done == 2)
        })?;
        if round == 1 {
            a.report(Fault::Event(EventType::QpFatal));
        }
    }
    a.close(Duration::from_secs(1));
    until("the end", || {
        a.poll(16, drop);
        b.poll(16, drop);
        Ok([&*a, &*b]
            .into_iter()
            .all(|link| matches!(link.state(), LinkState::Ended(_))))
    })
}

fn links(recover_in: RecoverIn, waitable: bool) -> Result<(), String> {
    let pd = Device::try_soft(HcaConfig::default())
        .map_err(text)?
        .alloc_pd();
    let (here, there) = pair();
    let init = link_init(recover_in, waitable);
    let slab = slab(&pd)?;
    let mut a = Link::new(&pd, init.clone(), here).map_err(text)?;
    let mut b = Link::new(&pd, init, there).map_err(text)?;
    use_links(&mut a, &mut b, &slab)
}

/// Links with so many requests that the lists of a recovery, and of the end, are large: each has one outcome.
fn loaded(fails: EventType) -> Result<(), String> {
    const SENDS: u32 = 100;
    const RECEIVES: u32 = 200;
    let pd = Device::try_soft(HcaConfig::default())
        .map_err(text)?
        .alloc_pd();
    let layout = [ClassLayout {
        size: 64,
        count: RECEIVES,
    }];
    let bytes = Slab::bytes(&layout).map_err(text)?;
    let mapping = pd.device().mapping(bytes).pages(Pages::Base).build();
    let region = Region::new(&pd, mapping.map_err(text)?, AccessFlags::LOCAL_WRITE);
    let slab = Slab::new(region.map_err(text)?, &layout).map_err(text)?;
    let mut init = link_init(RecoverIn::Poll, false);
    init.qp.max_send_wr = SENDS;
    init.qp.max_recv_wr = RECEIVES;
    let (here, there) = pair();
    let mut a = Link::new(&pd, init.clone(), here).map_err(text)?;
    let mut b = Link::new(&pd, init, there).map_err(text)?;
    // Kept until the connection is made.
    for at in 0..RECEIVES {
        let block = slab.take(64).map_err(text)?;
        b.post_recv_block(at.into(), block).map_err(text)?;
    }
    b.ring_recv();
    let (mut sent, mut received, mut reported) = (0, 0, 0);
    for round in 1..3 {
        until("links", || {
            a.poll(16, |done| sent += done.retired);
            b.poll(16, |done| received += done.retired);
            let epoch = a.epoch().min(b.epoch());
            Ok(is_ready(&a)? && is_ready(&b)? && epoch >= round)
        })?;
        if round == 1 {
            // They are read back, and posted again.
            let write = RdmaWrite {
                remote: bellwire::wr::Remote::default(),
            };
            for at in 0..SENDS {
                a.post_empty(at.into(), write, SIGNALED, Replay::Anyway)
                    .map_err(text)?;
            }
            a.report(Fault::Event(fails));
        }
    }
    until("the outcomes", || {
        a.poll(16, |done| sent += done.retired);
        b.poll(16, drop);
        is_ready(&a)?;
        Ok(sent == SENDS)
    })?;
    a.close(Duration::from_secs(1));
    until("the end", || {
        a.poll(16, |_| reported += 1);
        b.poll(16, |done| received += done.retired);
        Ok([&a, &b]
            .into_iter()
            .all(|link| matches!(link.state(), LinkState::Ended(_))))
    })?;
    assert_eq!((sent, received, reported), (SENDS, RECEIVES, 0));
    Ok(())
}

fn set(pd: &Pd, srq: bool) -> Result<LinkSet, String> {
    let srq = match srq {
        true => Some(LinkSetSrq {
            slab: slab(pd)?,
            length: 64,
            max_held: Some(8),
        }),
        false => None,
    };
    let init = LinkSetInit {
        links: 4,
        qp: small(),
        srq,
        waitable: true,
        check_every: 1,
        ..LinkSetInit::default()
    };
    LinkSet::new(pd, init).map_err(text)
}

/// A link that is in a set, and a link of its own.
fn use_set(
    set: &mut LinkSet,
    here: impl Exchange + 'static,
    client: &mut Link,
) -> Result<(), String> {
    let id = set
        .join(link_init(RecoverIn::Poll, false), here)
        .map_err(text)?;
    for round in 1..3 {
        until("a link of a set", || {
            set.poll(16, |_, _| ());
            set.arm().map_err(text)?;
            client.poll(16, drop);
            while let Some((id, state)) = set.next_change() {
                if let LinkState::Ended(why) = state {
                    let link = set.link(id).map_err(text)?;
                    return Err(ended(why, link.exchange_error()));
                }
            }
            let ready = set.state(id).map_err(text)? == LinkState::Ready;
            Ok(ready && is_ready(client)? && client.epoch() >= round)
        })?;
        let mut link = set.link(id).map_err(text)?;
        let write = RdmaWrite {
            remote: bellwire::wr::Remote::default(),
        };
        link.post_empty(7, write, SIGNALED, Replay::IfSafe)
            .map_err(text)?;
        link.ring();
        let mut done = 0;
        until("a WRITE", || {
            done += set.poll(16, |_, _| ());
            client.poll(16, drop);
            is_ready(client)?;
            Ok(done != 0)
        })?;
        if round == 1 {
            set.report(id, Fault::Event(EventType::CqErr))
                .map_err(text)?;
        }
    }
    client.close(Duration::from_secs(1));
    until("the end", || {
        set.poll(16, |_, _| ());
        client.poll(16, drop);
        let ended = matches!(client.state(), LinkState::Ended(_));
        Ok(ended && matches!(set.state(id).map_err(text)?, LinkState::Ended(_)))
    })?;
    set.remove(id).map_err(text)
}

fn sets() -> Result<(), String> {
    let pd = Device::try_soft(HcaConfig::default())
        .map_err(text)?
        .alloc_pd();
    for srq in [false, true] {
        let mut set = set(&pd, srq)?;
        let (here, there) = pair();
        let mut client = Link::new(&pd, link_init(RecoverIn::Poll, false), there).map_err(text)?;
        use_set(&mut set, here, &mut client)?;
    }
    Ok(())
}

/// A server's set and a client, by the communication manager.
fn by_cm(server: &Device, client: &Device) -> Result<(), String> {
    let at = ("127.0.0.1", 7471);
    let mut listener = Listener::bind(server, at, 4, Retry::default()).map_err(text)?;
    let connector = Connector::new(client, at, Retry::default());
    let pd = server.alloc_pd();
    let mut set = set(&pd, true)?;
    let exchange = connector.exchange().map_err(text)?;
    let init = link_init(RecoverIn::Poll, false);
    let mut client = Link::new(&client.alloc_pd(), init, exchange).map_err(text)?;
    let mut incoming = None;
    until("a request", || {
        client.poll(16, drop);
        is_ready(&client)?;
        incoming = listener.accept().map_err(text)?;
        Ok(incoming.is_some())
    })?;
    use_set(&mut set, incoming.expect("accepted"), &mut client)
}

fn cm() -> Result<(), String> {
    let device = Device::try_soft(HcaConfig::default()).map_err(text)?;
    by_cm(&device, &device)
}

fn cm_between() -> Result<(), String> {
    by_cm(&node()?, &node()?)
}

/// Several links of one listener in one set.
fn several_by_cm() -> Result<(), String> {
    let device = Device::try_soft(HcaConfig::default()).map_err(text)?;
    let at = ("127.0.0.1", 7471);
    let mut listener = Listener::bind(&device, at, 4, Retry::default()).map_err(text)?;
    let connector = Connector::new(&device, at, Retry::default());
    let pd = device.alloc_pd();
    let mut set = set(&pd, false)?;
    let client = || {
        let exchange = connector.exchange().map_err(text)?;
        Link::new(&pd, link_init(RecoverIn::Poll, false), exchange).map_err(text)
    };
    let mut clients = [client()?, client()?];
    let mut ready = 0;
    until("links of one listener", || {
        for client in &mut clients {
            client.poll(16, drop);
            is_ready(client)?;
        }
        if let Some(incoming) = listener.accept().map_err(text)? {
            let init = link_init(RecoverIn::Poll, false);
            set.join(init, incoming).map_err(text)?;
        }
        set.poll(16, |_, _| ());
        while let Some((id, state)) = set.next_change() {
            match state {
                LinkState::Ready => ready += 1,
                LinkState::Ended(why) => {
                    let link = set.link(id).map_err(text)?;
                    return Err(ended(why, link.exchange_error()));
                }
                _ => {}
            }
        }
        Ok(ready == 2)
    })
}

fn over_tcp() -> Result<(), String> {
    let pd = Device::try_soft(HcaConfig::default())
        .map_err(text)?
        .alloc_pd();
    let listener = tcp::Listener::bind(Some("127.0.0.1"), 0).map_err(text)?;
    let there = Connection::connect("127.0.0.1", listener.port(), LONG).map_err(text)?;
    let here = listener.accept(LONG).map_err(text)?;
    let init = link_init(RecoverIn::Poll, true);
    let slab = slab(&pd)?;
    let here = here.into_exchange().map_err(text)?;
    let there = there.into_exchange().map_err(text)?;
    let mut a = Link::new(&pd, init.clone(), here).map_err(text)?;
    let mut b = Link::new(&pd, init, there).map_err(text)?;
    use_links(&mut a, &mut b, &slab)
}
