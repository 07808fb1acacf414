//! Attributes of the path that packets take to the peer.

use crate::error::Error;
use crate::limits::in_range;
use bellwire_core::qp::AhAttr;

/// The default hop limit of packets with a GRH.
pub const HOP_LIMIT: u8 = 64;

/// The UDP source ports of RoCE v2 (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN` and `_MAX`).
const UDP_SPORTS: std::ops::RangeInclusive<u16> = 0xc000..=0xffff;

/// How a device sets the UDP source port of its RC and UC queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpSport {
    /// The port is set explicitly in RTS.
    Set,
    /// The device computes the port from the flow label (`rdma_get_udp_sport` of Linux).
    Label,
}

/// A flow label from which the device computes this port (`ibv_flow_label_to_udp_sport` combines the lower 14
/// bits with the upper 6 bits by XOR). Never zero, which means no flow label.
pub fn label_of(port: u16) -> u32 {
    const UPPER: u32 = 1 << 14;
    match u32::from(port - UDP_SPORTS.start()) {
        0 => UPPER | 1,
        lower => lower,
    }
}

/// The path attributes of a connection's packets, by which networks distinguish traffic classes and
/// distribute packets over several paths. By default the device or the communication manager chooses all of
/// them.
///
/// Traffic class, flow label and hop limit are fields of the GRH. Packets have a GRH on RoCE, and on other
/// fabrics as soon as one of these fields is set.
///
/// For datagrams only `pkey_index` has a meaning here: each datagram takes its path from its address handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathAttr {
    /// Service level, 0 to 15. On RoCE, the priority of packets with a VLAN tag.
    pub sl: u8,
    /// Traffic class. For RoCE v2, the traffic class of the IP header (DSCP and ECN): 4 times the DSCP.
    pub traffic_class: u8,
    /// Flow label, 20 bits. Many devices compute the UDP source port of RoCE v2 from it
    /// (`ibv_flow_label_to_udp_sport`).
    pub flow_label: u32,
    /// Index of the partition key in the port's P_Key table.
    pub pkey_index: u16,
    /// Hop limit; 0 means the default, 64. For RoCE, Linux takes it from the route instead.
    pub hop_limit: u8,
    /// UDP source port of RoCE v2 packets, 0xc000 to 0xffff. Supported by the software HCA, by ConnectX
    /// devices, and by Soft-RoCE of Linux 5.18 or later, which computes it from the flow label. `None`: the
    /// device chooses.
    pub udp_sport: Option<u16>,
}

impl PathAttr {
    /// The error for a queue pair or a device whose UDP source port cannot be set.
    pub const NO_UDP_SPORT: Error = Error::Unsupported {
        what: "set the UDP source port of this queue pair",
        instead: "only RC and UC queue pairs of ConnectX (RoCE, libmlx5 of rdma-core 33 or later), \
                  Soft-RoCE and the software HCA do; leave udp_sport out, or set flow_label",
    };

    /// Whether a field of the GRH is set.
    pub const fn is_routed(&self) -> bool {
        self.traffic_class != 0 || self.flow_label != 0 || self.hop_limit != 0
    }

    /// Checks the ranges that do not depend on a device.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn check_ranges(&self) -> Result<(), Error> {
        let sport = u32::from(self.udp_sport.unwrap_or(*UDP_SPORTS.end()));
        let (first, last) = (*UDP_SPORTS.start(), *UDP_SPORTS.end());
        in_range("sl", self.sl.into(), 0, 0xf)?;
        in_range("flow_label", self.flow_label, 0, 0xf_ffff)?;
        in_range("udp_sport", sport, first.into(), last.into())
    }

    /// Copies the fields that are set into an address vector; the others stay unchanged.
    pub fn apply(&self, to: &mut AhAttr) {
        const fn said<T: Copy>(said: bool, value: T, to: &mut T) {
            if said {
                *to = value;
            }
        }
        said(self.sl != 0, self.sl, &mut to.sl);
        let (grh, class) = (&mut to.grh, self.traffic_class);
        said(class != 0, class, &mut grh.traffic_class);
        said(self.flow_label != 0, self.flow_label, &mut grh.flow_label);
        said(self.hop_limit != 0, self.hop_limit, &mut grh.hop_limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The port that verbs.h computes from a flow label.
    fn port_of(label: u32) -> u16 {
        (((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) | 0xc000) as u16
    }

    #[test]
    fn a_flow_label_makes_the_port_that_it_is_for() {
        for port in UDP_SPORTS {
            let label = label_of(port);
            assert_eq!(port_of(label), port);
            assert!((1..1 << 20).contains(&label), "{label}");
        }
    }
}
