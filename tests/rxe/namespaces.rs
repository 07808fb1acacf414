//! GIDs of other network namespaces: the table has the addresses of every interface above the device's,
//! a container's macvlan among them.

use crate::addresses::{index_of, is_at};
use crate::tests;
use bellwire::{ConnectAttr, Device};
use bellwire_tests::cable::{Undo, run};
use bellwire_tests::ends::*;
use bellwire_tests::fixture::*;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

tests! {
    an_address_of_another_namespace_is_not_chosen,
    of_two_equal_addresses_ours_is_chosen,
}

const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Another namespace that has an interface above dummy0 with this address, which stands in the GID table
/// before ours.
struct Other {
    theirs: Ipv4Addr,
    device: Device,
    namespace: Option<Undo>,
}

impl Other {
    fn with(theirs: Ipv4Addr) -> Self {
        let device = open(ALONE);
        let namespace = Undo::after("ip netns add other", "ip netns del other");
        run("ip link add macvlan0 link dummy0 type macvlan mode bridge");
        run("ip link set macvlan0 netns other");
        // Who comes first has the first place.
        let ours = Undo::after(
            &format!("ip addr del {OURS}/24 dev dummy0"),
            &format!("ip addr add {OURS}/24 dev dummy0"),
        );
        until("our address's end", || index_of(&device, OURS).is_none());
        run(&format!("ip -n other addr add {theirs}/24 dev macvlan0"));
        run("ip -n other link set macvlan0 up");
        until("their address", || index_of(&device, theirs).is_some());
        ours.now();
        until("our address", || {
            entry_of(&device, OURS, "dummy0").is_some()
        });
        Self {
            theirs,
            device,
            namespace: Some(namespace),
        }
    }

    /// By default a queue pair is connected by our entry, and works; although another one is the first
    /// of an IPv4 address.
    fn is_not_chosen(&self) {
        let ours = entry_of(&self.device, OURS, "dummy0").expect("in the table");
        let theirs = entry_of(&self.device, self.theirs, "macvlan0").expect("in the table");
        let is_ipv4 = |gid| Ipv6Addr::from(gid).to_ipv4_mapped().is_some();
        let gid = |index| self.device.query_gid(1, index).expect("an entry");
        let first = (0..=ours).find(|&index| is_ipv4(gid(index)));
        assert_eq!(first, Some(theirs));

        let (mut a, mut b) = pair_with(&self.device, QUIET, &ConnectAttr::default());
        for end in [&a, &b] {
            let way = end.qp.query().ah_attr.grh;
            assert_eq!((u16::from(way.sgid_index), way.dgid), (ours, gid(ours)));
            assert_eq!(end.qp.endpoint().gid, gid(ours));
        }
        works(&mut a, &mut b);
    }
}

impl Drop for Other {
    /// Has the table as it was.
    fn drop(&mut self) {
        let ours = Undo::after(
            &format!("ip addr del {OURS}/24 dev dummy0"),
            &format!("ip addr add {OURS}/24 dev dummy0"),
        );
        drop(self.namespace.take());
        let is_there = |interface| entry_of(&self.device, self.theirs, interface).is_some();
        let gone = || !is_there("macvlan0") && index_of(&self.device, OURS).is_none();
        until("the end of both addresses", gone);
        drop(ours);
        until("our address", || is_at(&self.device, 1, OURS));
    }
}

/// Where an address of this interface stands in the GID table. The kernel names the interface as its
/// own namespace does.
fn entry_of(device: &Device, address: Ipv4Addr, interface: &str) -> Option<u16> {
    let table = device.query_port(1).expect("port 1").gid_tbl_len;
    let is_of = |index| {
        let file = format!(
            "/sys/class/infiniband/{}/ports/1/gid_attrs/ndevs/{index}",
            device.name()
        );
        fs::read_to_string(file).is_ok_and(|name| name.trim() == interface)
    };
    (0..table).find(|&index| is_at(device, index, address) && is_of(index))
}

fn an_address_of_another_namespace_is_not_chosen() {
    Other::with(Ipv4Addr::new(10, 77, 0, 200)).is_not_chosen();
}

fn of_two_equal_addresses_ours_is_chosen() {
    Other::with(OURS).is_not_chosen();
}
