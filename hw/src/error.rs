//! Why a call failed that is not on the data path.

use crate::event::{Element, EventType};
use crate::memory::MemoryError;
use crate::soft::Fault;
use bellwire_core::fault::CmEvent;
use bellwire_core::qp::ModifyError;
use bellwire_core::queue::{AttachError, PostError};
use bellwire_core::wr::MwType;
use std::{fmt, io};

/// Why a call failed that is not on the data path. Nothing was created or changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No device of this name.
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The devices of libibverbs that there are.
        there: Vec<String>,
    },
    /// Something that only a software HCA has.
    SoftOnly {
        /// What.
        what: &'static str,
    },
    /// Something that the device, or its driver, does not have.
    Unsupported {
        /// What.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// An asynchronous event, or one of the communication manager, that this version does not know. It
    /// was acknowledged.
    UnknownEvent {
        /// Its number (`ibv_event_type`, `rdma_cm_event_type`).
        number: u32,
    },
    /// No fabric can have this name.
    FabricName {
        /// The name asked for.
        name: String,
        /// Longest name, in bytes.
        max: usize,
    },
    /// A node of a fabric runs on the real clock: its peers do.
    FabricClock,
    /// Memory of a node of a fabric that its peers can neither map nor read.
    FabricMemory {
        /// What keeps them from reading it.
        why: &'static str,
    },
    /// The queue pair does not exist (any more).
    UnknownQp {
        /// Its number.
        qpn: u32,
    },
    /// The key does not exist (any more).
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// All the device has of something are in use.
    Exhausted {
        /// Of what.
        what: &'static str,
        /// How many there are.
        max: usize,
    },
    /// A capability that the device does not have.
    TooLarge {
        /// The attribute's name in the verbs.
        what: &'static str,
        /// What was asked for.
        given: u64,
        /// The most there is.
        max: u64,
    },
    /// An object that others use.
    Busy {
        /// Which object.
        what: &'static str,
        /// How many use it.
        users: usize,
    },
    /// A region of no bytes, or beyond the end of the address space.
    BadRegion {
        /// Where.
        addr: u64,
        /// How long.
        length: u64,
    },
    /// REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE.
    AccessWithoutLocalWrite,
    /// Objects of different devices or protection domains, or not those of this queue pair.
    Foreign {
        /// Which object.
        what: &'static str,
    },
    /// RESET clears both queues and their completions: it has a call of its own.
    ResetByModify,
    /// The queue pair is not in RESET.
    NotReset,
    /// A region whose addresses are to count from its start.
    ZeroBasedRegion,
    /// A memory window of the other type.
    MwType {
        /// The window's type.
        given: MwType,
    },
    /// Windows are bound to the region.
    WindowsBound {
        /// How many.
        windows: usize,
    },
    /// A send queue refused the request.
    Post(PostError),
    /// A shared receive queue that only XRC requests take from.
    XrcSrq {
        /// Its number.
        srqn: u32,
    },
    /// The XRC domain of a file is not as it was to be.
    XrcdOfFile {
        /// Whether there is one.
        exists: bool,
    },
    /// A target that was opened by its number cannot be taken to RESET: that is for who created it.
    ResetOfOpened {
        /// Its number.
        qpn: u32,
    },
    /// The device is broken: it does nothing any more.
    DeviceFatal,
    /// A script asks for success as a fault.
    SuccessAsFault,
    /// The device was not made to keep a journal.
    NoJournal,
    /// A fault that befalls a request, at a time at which there may be none.
    FaultWithoutRequest {
        /// The fault.
        fault: Fault,
    },
    /// A fault that befalls a change of state, at a trigger that counts something else.
    FaultWithoutModify {
        /// The fault.
        fault: Fault,
    },
    /// An attribute, or an index into a table, that is not in its range.
    OutOfRange {
        /// Its name in the verbs.
        what: &'static str,
        /// What was given.
        given: u32,
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
    /// A completion that is not of a received datagram, or memory that holds no route header where
    /// the completion says that there is one.
    NotADatagram,
    /// Not a multicast address.
    NotMulticast {
        /// The address given.
        gid: [u8; 16],
    },
    /// The queue pair is not attached to this multicast group.
    NotAttached {
        /// Its number.
        qpn: u32,
    },
    /// A queue cannot be attached to its completion queue.
    Attach(AttachError),
    /// The queue pair cannot make this change.
    Modify(ModifyError),
    /// There is no event, and the descriptor was told not to block.
    WouldBlock,
    /// More private data than a message of the communication manager has room for.
    PrivateData {
        /// Bytes given.
        given: usize,
        /// The most.
        max: usize,
    },
    /// An id of the communication manager that is not at the step which this call is for.
    CmStep {
        /// To do what.
        what: &'static str,
    },
    /// No queue pair was given to a call of the communication manager, and none is on the id.
    CmNoQp {
        /// To do what.
        what: &'static str,
    },
    /// A reliable connection's call on an id of datagrams, or the other way round.
    CmSpace,
    /// The completion queue has no completion channel to tell.
    NoChannel {
        /// Its number.
        cqn: u32,
    },
    /// More events acknowledged than were got and deferred.
    NotDeferred {
        /// Whose events.
        element: Element,
        /// How many were to be acknowledged.
        given: u32,
        /// How many there are.
        deferred: u32,
    },
    /// An event of the communication manager that cannot be ordered: nothing went wrong.
    CmEventAsFault {
        /// The event.
        event: CmEvent,
    },
    /// The event is not about things of this kind.
    WrongElement {
        /// The event.
        event: EventType,
        /// What it was to be about.
        element: Element,
    },
    /// There is nothing of this name on the device (any more).
    UnknownElement {
        /// What was named.
        element: Element,
    },
    /// The operating system refused.
    Io {
        /// To do what.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Memory cannot be had.
    Memory(MemoryError),
    /// The slab cannot be cut so.
    Slab(bellwire_core::slab::LayoutError),
}

/// What to do when the system refuses.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => ": close descriptors, or raise `ulimit -n`",
        Some(libc::ENFILE) => ": close descriptors, or raise fs.file-max",
        Some(libc::EACCES | libc::EPERM) => {
            ": run as a user who may do that (for RDMA, who may open /dev/infiniband/uverbs*)"
        }
        Some(libc::EADDRINUSE) => ": end who has the port, or take another",
        Some(libc::EADDRNOTAVAIL) => ": give an address of this host",
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            ": check the address, and the route to it (`ip route get`)"
        }
        Some(libc::ENODEV) => {
            ": no RDMA device is there (`rdma link` shows them, and their interfaces)"
        }
        _ => "",
    }
}

impl Error {
    pub(crate) fn io(what: &'static str, error: io::Error) -> Self {
        Self::Io { what, error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDevice { name, there } => {
                write!(
                    f,
                    "no device {name:?}: there is \"soft\" (or \"auto\"), and \"soft:NAME\" for a \
                     fabric of processes"
                )?;
                if !cfg!(feature = "verbs") {
                    return f.write_str(
                        "; devices of libibverbs need a build with the feature \"verbs\"",
                    );
                }
                if there.is_empty() {
                    return f.write_str(
                        "; libibverbs has none: load the device's driver (`rdma link` shows devices)",
                    );
                }
                write!(f, "; libibverbs has {}", there.join(", "))
            }
            Self::SoftOnly { what } => write!(
                f,
                "{what}: only the software HCA has that, open \"soft\" instead"
            ),
            Self::Unsupported { what, instead } => {
                write!(f, "the device cannot {what}: {instead}")
            }
            Self::UnknownEvent { number } => write!(
                f,
                "event {number} is not known to this version; it was acknowledged"
            ),
            Self::FabricName { name, max } => write!(
                f,
                "{name:?} names no fabric: take 1 to {max} letters, digits, dots, dashes and \
                 underscores"
            ),
            Self::FabricMemory { why } => write!(
                f,
                "other processes of the fabric cannot read this memory: {why}. Use a Region on \
                 Device::mapping, which they map"
            ),
            Self::FabricClock => f.write_str(
                "a virtual clock on a fabric: its nodes share real time, use ClockKind::Real",
            ),
            Self::UnknownQp { qpn } => write!(f, "no queue pair {qpn:#x}: it was destroyed"),
            Self::UnknownKey { key } => {
                write!(f, "no memory key {key:#x}: it was never given out, or is deregistered")
            }
            Self::Exhausted { what, max } => {
                write!(f, "all {max} {what} of the device are in use: destroy some first")
            }
            Self::TooLarge { what, given, max } => {
                write!(f, "{what} is {given}, the device has {max} at the most")
            }
            Self::Busy { what, users } => write!(
                f,
                "the {what} is used by {users} queue pairs: drop them first, then destroy it"
            ),
            Self::BadRegion { addr, length } => write!(
                f,
                "a region of {length} bytes at {addr:#x}: it needs at least one byte, and an end \
                 within the address space"
            ),
            Self::AccessWithoutLocalWrite => f.write_str(
                "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well: add it to the access flags",
            ),
            Self::Foreign { what } => write!(
                f,
                "the {what} belongs to another device, protection domain or queue pair"
            ),
            Self::ResetByModify => f.write_str(
                "RESET clears the queues and their completions: call Qp::reset, which takes the \
                 completion queues and tells what was cleared",
            ),
            Self::NotReset => f.write_str("the queue pair is not in RESET: call Qp::reset first"),
            Self::ZeroBasedRegion => f.write_str(
                "the device has no zero-based regions, only zero-based windows: leave ZERO_BASED out, \
                 and bind a window with it",
            ),
            Self::MwType { given } => write!(
                f,
                "the memory window is of {given:?}: those of Type1 are bound by Mw::bind, those of \
                 Type2 by posting Mw::bind_wr"
            ),
            Self::WindowsBound { windows } => write!(
                f,
                "{windows} memory windows are bound to the region: take them away first"
            ),
            Self::Post(error) => error.fmt(f),
            Self::XrcSrq { srqn } => write!(
                f,
                "shared receive queue {srqn:#x} is for XRC: create one with Pd::create_srq"
            ),
            Self::XrcdOfFile { exists: true } => f.write_str(
                "the file has an XRC domain already: open it with XrcdMode::Create, or name another file",
            ),
            Self::XrcdOfFile { exists: false } => f.write_str(
                "nobody has opened an XRC domain of this file: open it with XrcdMode::Create",
            ),
            Self::ResetOfOpened { qpn } => write!(
                f,
                "XRC target {qpn:#x} was opened by its number: only who created it takes it to RESET"
            ),
            Self::DeviceFatal => f.write_str(
                "the device has failed (DEVICE_FATAL): drop what is left on it, and open another",
            ),
            Self::SuccessAsFault => f.write_str(
                "a request cannot fail with the status SUCCESS: name another, or leave the step out",
            ),
            Self::NoJournal => f.write_str(
                "the device keeps no journal: make it with HcaConfig { journal: true, .. }",
            ),
            Self::FaultWithoutRequest { fault } => write!(
                f,
                "{fault:?} befalls a request: give it a trigger that counts requests, as \
                 Entry, EntryOf, Packet and PacketOf do"
            ),
            Self::FaultWithoutModify { fault } => write!(
                f,
                "{fault:?} befalls a change of state: give it the trigger Modify"
            ),
            Self::OutOfRange {
                what,
                given,
                min,
                max,
            } => write!(f, "{what} is {given}, the device has {min} to {max}"),
            Self::NotADatagram => f.write_str(
                "no way back: this is not the completion of a received datagram, or not the first \
                 40 bytes of its receive",
            ),
            Self::NotMulticast { gid } => write!(
                f,
                "{} is not a multicast address: those begin with ff, or are one of IPv4 (mapped)",
                std::net::Ipv6Addr::from(*gid)
            ),
            Self::NotAttached { qpn } => write!(
                f,
                "queue pair {qpn:#x} is not attached to this multicast group"
            ),
            Self::WouldBlock => f.write_str(
                "no event is queued: wait until the descriptor is readable, or let it block",
            ),
            Self::PrivateData { given, max } => write!(
                f,
                "{given} bytes of private data: the message has room for {max}"
            ),
            Self::CmStep { what } => write!(
                f,
                "cannot {what}: the id is not at that step. An address is resolved or bound, then the \
                 route resolved or a request waited for; a request is accepted or rejected once"
            ),
            Self::CmNoQp { what } => write!(
                f,
                "cannot {what}: no queue pair is on the id; give one, or put one there by Id::put_qp"
            ),
            Self::CmSpace => f.write_str(
                "reliable connections have ids of PortSpace::Tcp or Ib, datagrams those of Udp or Ipoib",
            ),
            Self::NoChannel { cqn } => write!(
                f,
                "completion queue {cqn:#x} has no completion channel: create it on one \
                 (CqInit::channel, LinkInit::sleeps)"
            ),
            Self::NotDeferred {
                element,
                given,
                deferred,
            } => write!(
                f,
                "{given} events of {element} cannot be acknowledged: {deferred} were got, deferred \
                 and not acknowledged yet"
            ),
            Self::CmEventAsFault { event } => write!(
                f,
                "{} cannot be injected: it says that something went well, so let it go well",
                event.name()
            ),
            Self::WrongElement { event, element } => write!(
                f,
                "{event} is not about a {}: name a {}",
                element.kind(),
                event.element_kind()
            ),
            Self::UnknownElement { element } => write!(
                f,
                "no {element} on this device: it was destroyed, or never created"
            ),
            Self::Io { what, error } => write!(f, "cannot {what}: {error}{}", remedy(error)),
            Self::Attach(error) => error.fmt(f),
            Self::Modify(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
            Self::Slab(error) => error.fmt(f),
        }
    }
}

// No source: the text has it.
impl std::error::Error for Error {}

macro_rules! from {
    ($($variant:ident: $ty:ty;)*) => {$(
        impl From<$ty> for Error {
            fn from(error: $ty) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}

from! {
    Attach: AttachError;
    Modify: ModifyError;
    Memory: MemoryError;
    Slab: bellwire_core::slab::LayoutError;
}
