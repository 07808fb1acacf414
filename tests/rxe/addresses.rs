//! Addresses that are added and removed: `GID_CHANGE`.

use crate::tests;
use bellwire::event::{Element, EventType};
use bellwire::{ConnectAttr, Device};
use bellwire_tests::cable::Undo;
use bellwire_tests::ends::*;
use bellwire_tests::events::no_event;
use bellwire_tests::fixture::*;
use std::net::Ipv4Addr;

tests! { an_address_is_a_gid_that_can_be_connected_by }

const ADDED: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);

/// Where an address stands in the GID table.
pub fn index_of(device: &Device, address: Ipv4Addr) -> Option<u16> {
    let table = device.query_port(1).expect("port 1").gid_tbl_len;
    (0..table).find(|&index| is_at(device, index, address))
}

/// Whether it stands there.
pub fn is_at(device: &Device, index: u16, address: Ipv4Addr) -> bool {
    let gid = address.to_ipv6_mapped().octets();
    (device.query_gid(1, index)).is_ok_and(|there| there == gid)
}

fn an_address_is_a_gid_that_can_be_connected_by() {
    let device = open(ALONE);
    let other = open(CABLE[0]);
    assert_eq!(index_of(&device, ADDED), None);
    let line = |verb| format!("ip addr {verb} {ADDED}/24 dev dummy0");
    let address = Undo::after(&line("add"), &line("del"));
    gets_event(&device, EventType::GidChange, Element::Port(1));
    let index = index_of(&device, ADDED).expect("in the table");
    let by_it = ConnectAttr {
        gid_index: Some(u8::try_from(index).expect("a short table")),
        ..ConnectAttr::default()
    };
    let (mut a, mut b) = pair_with(&device, QUIET, &by_it);
    assert_eq!(a.qp.query().ah_attr.grh.sgid_index, index as u8);
    works(&mut a, &mut b);
    drop((a, b));
    address.now();
    gets_event(&device, EventType::GidChange, Element::Port(1));
    until("its end", || index_of(&device, ADDED).is_none());
    no_event(&other, QUIET);
}
