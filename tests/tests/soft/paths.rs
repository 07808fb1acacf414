//! How packets go to the peer, as programs say it: every attribute is read back, and what cannot be is
//! refused.

use bellwire::link::{Link, LinkInit, LinkState, pair};
use bellwire::soft::Mode;
use bellwire::state::{AhAttr, QpAttr, QpAttrMask, QpState};
use bellwire::wqe::{Send, Uc, Ud, Xrc};
use bellwire::wr::WcStatus::Success;
use bellwire::{ConnectAttr, Device, Endpoint, Error, PathAttr, QpInit};
use bellwire_tests::fixture::*;

const PATH: PathAttr = PathAttr {
    sl: 3,
    traffic_class: 106,
    flow_label: 0xf_edcb,
    pkey_index: 0,
    hop_limit: 17,
    udp_sport: Some(0xc123),
};

fn by(path: PathAttr) -> ConnectAttr {
    ConnectAttr {
        path,
        ..ConnectAttr::default()
    }
}

/// What a queue pair is said to have, of what paths say.
fn said(attr: &QpAttr) -> PathAttr {
    let AhAttr { grh, sl, .. } = attr.ah_attr;
    PathAttr {
        sl,
        traffic_class: grh.traffic_class,
        flow_label: grh.flow_label,
        pkey_index: attr.pkey_index,
        hop_limit: grh.hop_limit,
        udp_sport: attr.udp_sport,
    }
}

fn read_back(device: &Device) {
    let (mut a, mut b) = pair_with(device, Mode::Inline, &by(PATH));
    for end in [&a, &b] {
        let attr = end.qp.query();
        assert_eq!(said(&attr), PATH);
        assert!(attr.ah_attr.is_global);
        let gid = device.query_gid(1, 0).expect("the first");
        assert_eq!(attr.ah_attr.grh.dgid, gid);
    }
    b.receive(100, &[]);
    a.go(1, Send {}, bellwire::wqe::NoPayload);
    assert_eq!(a.outcome(), (1, Success));
    assert_eq!(b.outcome(), (100, Success));
    // The next life has a path of its own.
    a.reset();
    b.reset();
    assert_eq!(said(&a.qp.query()), PathAttr::default());
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    let attr = a.qp.query();
    assert_eq!(said(&attr), PathAttr::default());
    assert!(!attr.ah_attr.is_global);
}

#[test]
fn every_attribute_is_read_back() {
    read_back(&device(Mode::Inline));
    read_back(&node(&fabric_name(), Mode::Inline));
}

/// A service level needs no global route; with one that has no hop limit it is what is usual.
#[test]
fn what_is_not_said_is_as_it_was() {
    let device = device(Mode::Inline);
    let attr_by = |path| pair_with(&device, Mode::Inline, &by(path)).0.qp.query();
    let level = PathAttr {
        sl: 15,
        ..PathAttr::default()
    };
    let attr = attr_by(level);
    assert_eq!((said(&attr), attr.ah_attr.is_global), (level, false));
    let class = PathAttr {
        traffic_class: 1,
        ..PathAttr::default()
    };
    let attr = attr_by(class);
    let usual = PathAttr {
        hop_limit: 64,
        ..class
    };
    assert_eq!((said(&attr), attr.ah_attr.is_global), (usual, true));
}

#[test]
fn other_transports_have_them_too() {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let mut cq = device.create_cq(1024).expect("a queue");
    let mut uc = pd
        .create_qp_of::<Uc>(&mut cq, &QpInit::default())
        .expect("a queue pair");
    uc.init(&by(PATH)).expect("INIT");
    uc.connect(&uc.endpoint(), &by(PATH)).expect("RTS");
    assert_eq!(said(&uc.query()), PATH);

    // Of these the port cannot be passed to any device.
    let path = PathAttr {
        udp_sport: None,
        ..PATH
    };
    let unsupported = |answer: Result<(), Error>| {
        let error = answer.expect_err("a port");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("UDP source port"), "{error}");
    };
    let xrcd = device.open_xrcd().expect("a domain");
    let target = xrcd.create_target().expect("a target");
    unsupported(target.init(&by(PATH)));
    target.init(&by(path)).expect("INIT");
    let peer = Endpoint {
        qp_num: 1,
        ..uc.endpoint()
    };
    unsupported(target.connect(&peer, &by(PATH)));
    target.connect(&peer, &by(path)).expect("RTS");
    assert_eq!(said(&target.query()), path);
    let mut xrc = pd
        .create_qp_of::<Xrc>(&mut cq, &QpInit::default())
        .expect("a queue pair");
    unsupported(xrc.init(&by(PATH)));
    xrc.init(&by(path)).expect("INIT");
    xrc.connect(&target.endpoint(), &by(path)).expect("RTS");
    assert_eq!(said(&xrc.query()), path);
    let mut ud = pd
        .create_qp_of::<Ud>(&mut cq, &QpInit::default())
        .expect("a queue pair");
    unsupported(ud.init(&by(PATH)));
    ud.init(&by(path)).expect("INIT");
    ud.start(&by(path)).expect("RTS");
}

/// Paths that no queue pair of the software HCA can have, and what is named as wrong.
fn wrong() -> [(PathAttr, &'static str); 5] {
    let path = PathAttr::default();
    [
        (PathAttr { sl: 16, ..path }, "sl is 16"),
        (
            PathAttr {
                flow_label: 1 << 20,
                ..path
            },
            "flow_label is 1048576",
        ),
        (
            PathAttr {
                pkey_index: 1,
                ..path
            },
            "pkey_index is 1",
        ),
        (
            PathAttr {
                udp_sport: Some(0xbfff),
                ..path
            },
            "udp_sport is 49151",
        ),
        (
            PathAttr {
                udp_sport: Some(0),
                ..path
            },
            "udp_sport is 0",
        ),
    ]
}

fn refused<T>(answer: Result<T, Error>, what: &str) {
    let error = answer.err().expect("a wrong attribute");
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn what_is_out_of_range_is_refused_and_changes_nothing() {
    let device = device(Mode::Inline);
    let (mut a, mut b) = ends(&device, Mode::Inline);
    for (path, what) in wrong() {
        refused(a.qp.init(&by(path)), what);
        assert_eq!(a.qp.state(), QpState::Reset);
    }
    let second = ConnectAttr {
        gid_index: Some(1),
        ..ConnectAttr::default()
    };
    refused(a.qp.init(&second), "gid_index is 1");
    a.qp.init(&ConnectAttr::default()).expect("INIT");
    for (path, what) in wrong() {
        refused(a.qp.connect(&b.qp.endpoint(), &by(path)), what);
        assert_eq!(a.qp.state(), QpState::Init);
    }
    refused(a.qp.connect(&b.qp.endpoint(), &second), "gid_index is 1");
    a.reset();
    connect_with(&mut a.qp, &mut b.qp, &by(PATH));
}

/// The same by single attributes, of which the device has but one in each table.
#[test]
fn tables_have_one_entry() {
    let device = device(Mode::Inline);
    let (mut a, b) = ends(&device, Mode::Inline);
    let required =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    let attr = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        pkey_index: 1,
        ..QpAttr::default()
    };
    refused(a.qp.modify(&attr, required), "pkey_index is 1");
    a.qp.init(&ConnectAttr::default()).expect("INIT");
    let mut attr = QpAttr {
        qp_state: QpState::Rtr,
        ah_attr: device.way_to(&b.qp.endpoint(), 1, Some(1)),
        ..QpAttr::default()
    };
    let required = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    refused(a.qp.modify(&attr, required), "sgid_index is 1");
    attr.ah_attr.grh.sgid_index = 0;
    a.qp.modify(&attr, required).expect("RTR");
}

#[test]
fn links_connect_by_them_each_time() {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let init = LinkInit {
        connect: ConnectAttr {
            gid_index: Some(0),
            ..by(PATH)
        },
        check_every: 1,
        ..LinkInit::default()
    };
    let (here, there) = pair();
    let mut links = [
        Link::new(&pd, init.clone(), here).expect("a link"),
        Link::new(&pd, init, there).expect("a link"),
    ];
    for epoch in 1..=3 {
        until("both ends", || {
            for link in &mut links {
                link.poll(8, drop);
            }
            let is_ready = |link: &Link| link.state() == LinkState::Ready && link.epoch() == epoch;
            links.iter().all(is_ready)
        });
        for link in &links {
            let attr = link.qp_attr().expect("a queue pair");
            assert_eq!((attr.qp_state, said(&attr)), (QpState::Rts, PATH));
        }
        links[0].report(bellwire::fault::Fault::PeerRecovery);
    }
    for (path, what) in wrong() {
        let init = LinkInit {
            connect: by(path),
            ..LinkInit::default()
        };
        refused(Link::new(&pd, init, pair().0), what);
    }
}
