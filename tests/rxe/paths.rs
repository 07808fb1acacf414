//! Service level, traffic class and the like: as they are read back, and as they stand in packets on the
//! cable.

use crate::packets::{Cable, ETHERNET};
use crate::tests;
use bellwire::wqe::{NoPayload, Send};
use bellwire::wr::WcStatus::Success;
use bellwire::{ConnectAttr, Error, PathAttr};
use bellwire_tests::ends::*;

tests! {
    paths_are_read_back_and_stand_in_packets,
    a_udp_source_port_stands_in_packets,
    what_there_is_not_is_refused,
}

const PATH: PathAttr = PathAttr {
    sl: 3,
    traffic_class: 104,
    flow_label: 0xa_bcde,
    pkey_index: 0,
    hop_limit: 9,
    udp_sport: None,
};

fn by(path: PathAttr) -> ConnectAttr {
    ConnectAttr { path, ..patient() }
}

/// The IPv4 header of a frame, and its UDP source port.
fn addressed(frame: &[u8]) -> ([u8; 20], u16) {
    let (header, udp) = frame[ETHERNET..].split_first_chunk().expect("a packet");
    (*header, u16::from_be_bytes([udp[0], udp[1]]))
}

fn paths_are_read_back_and_stand_in_packets() {
    const TYPE_OF_SERVICE: usize = 1;
    const TIME_TO_LIVE: usize = 8;
    let mut capture = Cable::at("veth2");
    for path in [PATH, PathAttr::default()] {
        let (mut a, mut b) = far();
        connect_patiently(&mut a.qp, &mut b.qp, &by(path));
        let attr = a.qp.query();
        let grh = attr.ah_attr.grh;
        let read = PathAttr {
            sl: attr.ah_attr.sl,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
            pkey_index: attr.pkey_index,
            hop_limit: grh.hop_limit,
            udp_sport: attr.udp_sport,
        };
        // rxe keeps no service level, and of RoCE Linux takes the hop limit from the route.
        let (sl, hop_limit) = (0, 64);
        assert_eq!(
            read,
            PathAttr {
                sl,
                hop_limit,
                ..path
            }
        );
        b.receive(RECEIVES, &[]);
        a.go(1, Send {}, NoPayload);
        assert_eq!(a.outcome(), (1, Success));
        let (header, port) = addressed(&capture.next());
        let said = (header[TYPE_OF_SERVICE], header[TIME_TO_LIVE]);
        assert_eq!(said, (path.traffic_class, hop_limit));
        if path.flow_label != 0 {
            // ibv_flow_label_to_udp_sport
            assert_eq!(port, 0xc000 | (0x3cde ^ 0x2a));
        }
        assert_eq!(b.outcome(), (RECEIVES, Success));
    }
}

/// rxe makes it of the flow label.
fn a_udp_source_port_stands_in_packets() {
    let mut capture = Cable::at("veth2");
    for port in [0xc000, 0xc001, 0xfedc] {
        let (mut a, mut b) = far();
        let path = PathAttr {
            udp_sport: Some(port),
            ..PathAttr::default()
        };
        connect_patiently(&mut a.qp, &mut b.qp, &by(path));
        assert_eq!(a.qp.query().udp_sport, Some(port));
        b.receive(RECEIVES, &[]);
        a.go(1, Send {}, NoPayload);
        assert_eq!(a.outcome(), (1, Success));
        assert_eq!(addressed(&capture.next()).1, port);
        assert_eq!(b.outcome(), (RECEIVES, Success));
    }
}

/// rxe has one P_Key, and one flow label for both.
fn what_there_is_not_is_refused() {
    let (mut a, _) = near();
    let both = by(PathAttr {
        udp_sport: Some(0xc000),
        ..PATH
    });
    let refused = a.qp.init(&both);
    assert!(
        matches!(refused, Err(Error::Unsupported { .. })),
        "{refused:?}"
    );
    let table = open(ALONE).query_port(1).expect("port 1").pkey_tbl_len;
    let key = by(PathAttr {
        pkey_index: table,
        ..PATH
    });
    let refused = a.qp.init(&key);
    let what = "pkey_index";
    assert!(
        matches!(refused, Err(Error::OutOfRange { what: of, .. }) if of == what),
        "{refused:?}"
    );
    let table = open(ALONE).query_port(1).expect("port 1").gid_tbl_len;
    if let Ok(index) = u8::try_from(table) {
        let entry = ConnectAttr {
            gid_index: Some(index),
            ..ConnectAttr::default()
        };
        assert!(a.qp.init(&entry).is_err());
    }
    a.qp.init(&by(PATH)).expect("INIT");
}
