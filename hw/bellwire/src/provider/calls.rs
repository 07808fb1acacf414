//! The calls off the data path that every provider answers by a method of the same name.

use super::{CqSide, Hca, TargetSide, each};
use crate::error::Error;
use crate::event::EventQueue;
use bellwire_core::qp::{AhAttr, QpAttr, QpAttrMask, QpState};
use bellwire_core::wr::WrOpcode;
use bellwire_provider::attr::{DeviceAttr, DeviceCounters, GidEntry, PortAttr, Resources};
use bellwire_provider::life::Life;
use bellwire_provider::path::UdpSport;
use std::time::Duration;

/// Defines methods that call the method of the same name of each provider.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)*) => {
        $($(#[$doc])* pub fn $name(&self $(, $arg: $type)*) $(-> $out)? {
            each!(self, case => case.$name($($arg),*))
        })*
    };
}

pub(super) use calls;

impl Hca {
    calls! {
        fn check_alive(&self) -> Result<(), Error>;
        fn attr(&self) -> DeviceAttr;
        /// The number of objects on the device.
        fn resources(&self) -> Resources;
        /// Counts of RNR NAKs and retries.
        fn counters(&self) -> DeviceCounters;
        /// The most basic blocks that a send queue can have.
        fn max_send_blocks(&self) -> u32;
        /// Time since an arbitrary moment, by the software HCA's clock, which may be virtual, or else by the
        /// machine's.
        fn now(&self) -> Duration;
        fn query_port(&self, port_num: u8) -> Result<PortAttr, Error>;
        fn query_gid(&self, port_num: u8, index: u16) -> Result<[u8; 16], Error>;
        fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16, Error>;
        /// The index of the GID by which peers reach a port, or the peer with this GID, unless the program
        /// chooses one.
        fn default_gid_index(&self, port_num: u8, peer: Option<[u8; 16]>) -> u8;
        /// An entry of a port's GID table; zeroes where there is none.
        fn gid_entry(&self, port_num: u8, index: u8) -> GidEntry;
        /// The current index of an entry that was at this index before.
        fn gid_index_of(&self, port_num: u8, was: &GidEntry, at: u8) -> Option<u8>;
        /// The path to the port with this LID and this GID.
        fn way_to(&self, lid: u16, gid: [u8; 16], port_num: u8, gid_index: Option<u8>) -> AhAttr;
        /// Checks that a path from [`way_to`](Self::way_to) does not end at another device of the same LID.
        fn check_way(&self, gid: [u8; 16], way: &AhAttr) -> Result<(), Error>;
        /// How the device takes the UDP source port of RC and UC queue pairs; `None`: it does not.
        fn udp_sport(&self) -> Option<UdpSport>;
        /// Sets the UDP source port of a queue pair in RTS.
        fn set_udp_sport(&self, qpn: u32, port: u16) -> Result<(), Error>;
        fn deregister_unbound(&self, lkey: u32) -> Result<(), Error>;
        fn deregister_mr(&self, lkey: u32) -> Result<(), Error>;
        fn dealloc_mw(&self, rkey: u32);
        fn query_qp(&self, qpn: u32) -> Result<QpAttr, Error>;
        /// Whether the last bytes of a message of this operation are placed last.
        fn data_in_order(&self, qpn: u32, operation: WrOpcode) -> bool;
        fn modify_qp(&self, qpn: u32, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, Error>;
        fn restart(&self, qpn: u32, life: Life);
        /// Called for a queue pair that is about to be destroyed, and that the device did not move to ERR:
        /// from now on, posted requests are reported as flushed, and not executed.
        fn stop_qp(&self, qpn: u32);
        fn destroy_qp(&self, qpn: u32);
        fn attach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error>;
        fn detach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error>;
    }
}

impl TargetSide {
    calls! {
        fn qp_num(&self) -> u32;
        fn query(&self) -> Result<QpAttr, Error>;
        fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error>;
    }
}

impl CqSide {
    calls! {
        fn cqn(&self) -> u32;
        fn channel(&self) -> Option<&EventQueue<()>>;
        /// Index after the last entry.
        fn produced(&self) -> u32;
        fn polled(&self, index: u32) -> bool;
        fn overrun(&self) -> bool;
        fn retire(&self);
    }
}
