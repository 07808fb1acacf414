//! Attributes of devices, ports and the objects on them.

use bellwire_core::qp::Mtu;

/// The limits of a device (the fields of `ibv_device_attr` that bellwire uses).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of work requests of one send or receive queue.
    pub max_qp_wr: u32,
    /// Maximum number of scatter/gather elements of one work request.
    pub max_sge: u32,
    /// Maximum number of inline bytes of one work request.
    pub max_inline_data: u32,
    /// Maximum number of entries of one completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions and windows together.
    pub max_mr: u32,
    /// Maximum number of memory windows, of both types; they use the same keys as the regions.
    pub max_mw: u32,
    /// Maximum length of one region, in bytes.
    pub max_mr_size: u64,
    /// Maximum length of one message, in bytes.
    pub max_msg_sz: u64,
    /// Maximum number of outstanding READs and atomics per queue pair.
    pub max_qp_rd_atom: u8,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of receives of one shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of scatter/gather elements of a receive of a shared receive queue.
    pub max_srq_sge: u32,
    /// Maximum number of queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Maximum number of partition keys of a port.
    pub max_pkeys: u16,
    /// Number of ports; ports are numbered from 1.
    pub phys_port_cnt: u8,
}

/// The attributes of a port (the fields of `ibv_port_attr` that bellwire uses).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether the port sends and receives packets.
    pub state: PortState,
    /// Largest MTU that the port supports.
    pub max_mtu: Mtu,
    /// The MTU in use.
    pub active_mtu: Mtu,
    /// The LID of the port.
    pub lid: u16,
    /// The LID of the subnet manager.
    pub sm_lid: u16,
    /// Number of entries of the GID table.
    pub gid_tbl_len: u16,
    /// Number of entries of the partition key table.
    pub pkey_tbl_len: u16,
    /// Maximum length of one message, in bytes.
    pub max_msg_sz: u64,
}

/// A port's state (`ibv_port_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PortState {
    /// The link is down.
    #[default]
    Down = 1,
    /// The port sends and receives packets.
    Active = 4,
}

/// A device as listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name that `Device::open` takes.
    pub name: String,
    /// A description of the device.
    pub description: String,
    /// The limits of the device.
    pub attr: DeviceAttr,
}

/// An entry of a port's GID table, identified by its contents and not by its index. All zero: no entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: [u8; 16],
    /// The type of the GID (`ibv_gid_type`).
    pub kind: u32,
    /// Index of the network interface that has the address, in that interface's network namespace; zero:
    /// unknown, or none.
    pub ifindex: u32,
}

/// The number of objects of each kind on a device (`rdma resource show`). Used to check for leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// Protection domains.
    pub pd: u32,
    /// Completion queues.
    pub cq: u32,
    /// Queue pairs, including XRC targets.
    pub qp: u32,
    /// Memory regions.
    pub mr: u32,
    /// Memory windows.
    pub mw: u32,
    /// Shared receive queues.
    pub srq: u32,
}

/// Counts of a device since it was opened, or of a device of the kernel since its driver was loaded. `None`: nothing
/// counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Times that a request of this device waited because the peer had no receive posted (an RNR NAK came).
    pub rnr_naks: Option<u64>,
    /// Times that a request was sent again, or waited longer, because no acknowledgement came in time.
    pub retries: Option<u64>,
}

/// How to open the XRC domain of a file (`oflags` of `ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XrcdMode {
    /// Open an existing domain that some process has open (zero).
    Open,
    /// Open an existing domain, or create one (`O_CREAT`).
    Create,
    /// Create a new domain (`O_CREAT | O_EXCL`).
    CreateNew,
}

/// The name of the operation in errors of opening the XRC domain of a file.
pub const OF_FILE: &str = "open the XRC domain of the file";

/// Size in bytes of the global route header (GRH) area in front of a received datagram.
pub const GRH_BYTES: usize = 40;

/// The limits of the rings in core, which apply to every provider; the other limits are zero.
pub fn of_rings() -> DeviceAttr {
    DeviceAttr {
        max_sge: 30,
        max_inline_data: 512,
        max_cqe: 1 << 22,
        // A ring has 32768 entries, and one of them always stays unposted.
        max_srq_wr: (1 << 15) - 1,
        // With the link to the next WQE they fill a WQE of 512 bytes.
        max_srq_sge: 31,
        ..DeviceAttr::default()
    }
}
