//! Errors of calls that are not on the data path.

use crate::address::{self, Tried};
use crate::event::{Element, EventType};
use crate::source::{self, Absent};
use bellwire_core::access::AccessFlags;
use bellwire_core::fault::CmEvent;
use bellwire_core::qp::ModifyError;
use bellwire_core::queue::{AttachError, PostError};
use bellwire_core::wr::MwType;
use bellwire_memory::{Advice, MemoryError, ProcessLimit};
use std::{fmt, io};

/// The error of a call that is not on the data path. Nothing was created or changed. It has no `source`:
/// its text includes that of the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no device with this name.
    #[error(fmt = no_device)]
    UnknownDevice {
        /// The name asked for.
        name: Box<str>,
        /// The available devices of libibverbs.
        there: Box<[String]>,
        /// Why there are no further devices, or none at all.
        absent: Box<[Absent]>,
    },
    /// A feature that the device or its driver does not support.
    #[error("the device cannot {what}: {instead}")]
    Unsupported {
        /// The feature.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// An asynchronous event, or an event of the communication manager, that this version does not know. It
    /// was acknowledged.
    #[error("event {number} is not known to this version; it was acknowledged")]
    UnknownEvent {
        /// Its number (`ibv_event_type`, `rdma_cm_event_type`).
        number: u32,
    },
    /// The name is not valid for a fabric.
    #[error(
        "{name:?} names no fabric: take 1 to {max} letters, digits, dots, dashes and \
         underscores"
    )]
    FabricName {
        /// The name asked for.
        name: String,
        /// Maximum length of a name, in bytes.
        max: usize,
    },
    /// The endpoint leads to no device that this one can reach.
    #[error("{reason}")]
    OtherFabric {
        /// What the endpoint is, what this device is, and what to do.
        reason: String,
    },
    /// A node of a fabric has to use the real clock, as its peers do.
    #[error("a virtual clock on a fabric: its nodes share real time, use the real clock")]
    FabricClock,
    /// The queue pair does not exist, or no longer exists.
    #[error("no queue pair {qpn:#x}: it was destroyed")]
    UnknownQp {
        /// Its number.
        qpn: u32,
    },
    /// The key does not exist, or no longer exists.
    #[error("no memory key {key:#x}: it was never given out, or is deregistered")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// All objects of a kind that the device has are in use.
    #[error("all {max} {what} of the device are in use: destroy some first")]
    Exhausted {
        /// The kind of object.
        what: &'static str,
        /// The maximum number of them.
        max: usize,
    },
    /// A value that exceeds a limit of the device, or 0 where at least one is required.
    #[error(fmt = too_large)]
    TooLarge {
        /// The verbs name of the attribute.
        what: &'static str,
        /// The requested value.
        given: u64,
        /// The limit of the device.
        max: u64,
    },
    /// The object is still in use.
    #[error("the {what} is used by {users} queue pairs: destroy those first")]
    Busy {
        /// The object.
        what: &'static str,
        /// The number of its users.
        users: usize,
    },
    /// The region has no bytes, or extends beyond the end of the address space.
    #[error(
        "a region of {length} bytes at {addr:#x}: it needs at least one byte, and an end within \
         the address space"
    )]
    BadRegion {
        /// The start address.
        addr: u64,
        /// The length in bytes.
        length: u64,
    },
    /// REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well: add it to the access flags")]
    AccessWithoutLocalWrite,
    /// Blocks belong to their owner alone, but others could access the region.
    #[error(fmt = not_exclusive)]
    NotExclusive {
        /// The access rights that let peers or windows access it.
        access: AccessFlags,
        /// Whether other processes can map its memory.
        shared: bool,
    },
    /// Objects of different devices or protection domains, or an object that does not belong to this queue
    /// pair.
    #[error("the {what} belongs to another device, protection domain or queue pair")]
    Foreign {
        /// The object.
        what: &'static str,
    },
    /// RESET removes all requests and completions of the queue pair, so it has a call of its own.
    #[error(
        "RESET clears the queues and their completions: use the reset call of the queue pair, \
         which reports the cleared requests"
    )]
    ResetByModify,
    /// The queue pair is not in RESET.
    #[error("the queue pair is not in RESET: reset it first")]
    NotReset,
    /// A zero-based region, which the device does not support.
    #[error(
        "the device has no zero-based regions, only zero-based windows: leave ZERO_BASED out, \
         and bind a window with it"
    )]
    ZeroBasedRegion,
    /// The memory window has the other type.
    #[error(
        "the memory window is of type {}: those of type 1 have a call that binds them, those of \
         type 2 are bound by posting a request",
        .given.number()
    )]
    MwType {
        /// The window's type.
        given: MwType,
    },
    /// Memory windows are bound to the region.
    #[error("{windows} memory windows are bound to the region: take them away first")]
    WindowsBound {
        /// The number of windows.
        windows: usize,
    },
    /// The send queue refused the request.
    #[error("{0}")]
    Post(PostError),
    /// The shared receive queue serves XRC requests only.
    #[error("shared receive queue {srqn:#x} is for XRC: create one without an XRC domain")]
    XrcSrq {
        /// Its number.
        srqn: u32,
    },
    /// The XRC domain of a file exists although it must not, or does not exist although it must.
    #[error("{}", if *.exists {
        "the file has an XRC domain already: open that domain, or name another file"
    } else {
        "no process has an XRC domain of this file: open it with the flag to create one"
    })]
    XrcdOfFile {
        /// Whether it exists.
        exists: bool,
    },
    /// An XRC target that was opened by its number cannot be taken to RESET: only its creator can do that.
    #[error("XRC target {qpn:#x} was opened by its number: only its creator takes it to RESET")]
    ResetOfOpened {
        /// Its number.
        qpn: u32,
    },
    /// The device has failed and executes nothing any more.
    #[error(
        "the device has failed (DEVICE_FATAL): destroy the objects left on it, and open another"
    )]
    DeviceFatal,
    /// A fault script specifies success as a fault.
    #[error("a request cannot fail with the status SUCCESS: name another, or leave the step out")]
    SuccessAsFault,
    /// The device was created without a journal.
    #[error("the device keeps no journal: create it with one")]
    NoJournal,
    /// A fault that affects a request, with a trigger that may fire when there is no request.
    #[error("{fault} affects a request: use a trigger that counts requests or packets")]
    FaultWithoutRequest {
        /// The fault.
        fault: String,
    },
    /// A fault that affects a state transition, with a trigger that counts something else.
    #[error("{fault} affects a change of state: use the trigger that counts those")]
    FaultWithoutModify {
        /// The fault.
        fault: String,
    },
    /// An attribute or a table index is out of range.
    #[error("{what} is {given}, the device has {min} to {max}")]
    OutOfRange {
        /// Its verbs name.
        what: &'static str,
        /// The value.
        given: u32,
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
    /// The completion is not that of a received datagram, or the memory holds no GRH although the completion
    /// reports one.
    #[error(
        "no way back: this is not the completion of a received datagram, or not the first 40 \
         bytes of its receive"
    )]
    NotADatagram,
    /// The GID that a datagram was sent to is that of no device, or of several, so that a reply has no source.
    #[error(
        "no way back: the datagram was sent to {}, which {}",
        std::net::Ipv6Addr::from(*.gid).to_canonical(),
        if *.several {
            "several open devices have: create the address handle from the completion, in a protection \
             domain of the device that received it"
        } else {
            "the device no longer has: see its GID table (`rdma link`, `ip addr`), or name a source"
        }
    )]
    WayBack {
        /// The GID.
        gid: [u8; 16],
        /// Whether several have it.
        several: bool,
    },
    /// The address is not a multicast address.
    #[error(
        "{} is not a multicast address: those begin with ff, or are one of IPv4 (mapped)",
        std::net::Ipv6Addr::from(*.gid)
    )]
    NotMulticast {
        /// The address.
        gid: [u8; 16],
    },
    /// The queue pair is not attached to this multicast group.
    #[error("queue pair {qpn:#x} is not attached to this multicast group")]
    NotAttached {
        /// Its number.
        qpn: u32,
    },
    /// The queue cannot be attached to its completion queue.
    #[error("{0}")]
    Attach(AttachError),
    /// The queue pair cannot make this transition.
    #[error("{0}")]
    Modify(ModifyError),
    /// There is no event, and the descriptor is non-blocking.
    #[error("no event is queued: wait until the descriptor is readable, or let it block")]
    WouldBlock,
    /// A signal handler has interrupted a wait that has no limit.
    #[error("a signal has interrupted the wait: wait again, unless the program is to end")]
    Interrupted,
    /// The waits for the object were ended, and later ones do not sleep.
    #[error("the waits for the object were ended: let them sleep again, or destroy it")]
    Woken,
    /// The private data is longer than a message of the communication manager allows.
    #[error("{given} bytes of private data: the message has room for {max}")]
    PrivateData {
        /// Length given, in bytes.
        given: usize,
        /// Maximum length, in bytes.
        max: usize,
    },
    /// The state of the communication manager's id does not allow this call.
    #[error(
        "cannot {what}: the id is not at that step. An address is resolved or bound, then the \
         route resolved or a request waited for; a request is accepted or rejected once"
    )]
    CmStep {
        /// What the call does.
        what: &'static str,
    },
    /// The call of the communication manager was given no queue pair, and the id has none.
    #[error("cannot {what}: the id has no queue pair; pass one, or attach one to the id")]
    CmNoQp {
        /// What the call does.
        what: &'static str,
    },
    /// A call for reliable connections on a datagram id, or the reverse.
    #[error(
        "reliable connections need an id of port space TCP or IB, datagrams one of UDP or IPOIB"
    )]
    CmSpace,
    /// The completion queue has no completion channel.
    #[error(
        "completion queue {cqn:#x} has no completion channel: create it with one, or the link as \
         one that sleeps"
    )]
    NoChannel {
        /// Its number.
        cqn: u32,
    },
    /// More events were acknowledged than were read and deferred.
    #[error(
        "{given} events of {element} cannot be acknowledged: {deferred} were got, deferred and \
         not acknowledged yet"
    )]
    NotDeferred {
        /// The element that the events are about.
        element: Element,
        /// The number of events to be acknowledged.
        given: u32,
        /// The number of deferred events.
        deferred: u32,
    },
    /// This event of the communication manager cannot be injected: it reports success.
    #[error(
        "{} cannot be injected: it says that something went well, so let it go well",
        .event.name()
    )]
    CmEventAsFault {
        /// The event.
        event: CmEvent,
    },
    /// The event is not about elements of this kind.
    #[error(
        "{event} is not about a {}: name a {}",
        .element.kind(), .event.element_kind()
    )]
    WrongElement {
        /// The event.
        event: EventType,
        /// The element given.
        element: Element,
    },
    /// The device has no such element, or no longer has it.
    #[error("no {element} on this device: it was destroyed, or never created")]
    UnknownElement {
        /// The element.
        element: Element,
    },
    /// A system call failed.
    #[error("cannot {what}: {error}{}", remedy(.error))]
    Io {
        /// What the call was to do.
        what: &'static str,
        /// The error.
        error: io::Error,
    },
    /// An address cannot be used, or none of the addresses of a name.
    #[error("cannot {what} {}", address::list(.tried))]
    Address {
        /// What the call was to do with it.
        what: &'static str,
        /// Each address that was tried, and why it failed.
        tried: Box<[Tried]>,
    },
    /// An RDMA library is missing or cannot be loaded.
    #[error("{reason}")]
    Library {
        /// The library, the cause, and what to do.
        reason: String,
    },
    /// The installed RDMA library is too old for the requested feature.
    #[error(
        "{library} is too old for this: it has no {symbol}; install rdma-core {since} or newer"
    )]
    LibraryTooOld {
        /// The symbol that it lacks.
        symbol: &'static str,
        /// The name of the library.
        library: &'static str,
        /// The version of rdma-core that introduced the symbol.
        since: u32,
    },
    /// Memory cannot be allocated or mapped.
    #[error("{0}")]
    Memory(MemoryError),
    /// The slab cannot be divided as requested.
    #[error("{0}")]
    Slab(bellwire_core::slab::LayoutError),
    /// The slab has no block for a receive.
    #[error("a receive of a shared receive queue takes a block of the slab: {0}")]
    NoBlock(bellwire_core::slab::TakeError),
}

/// What to do when a system call failed with this error.
pub fn remedy(error: &io::Error) -> Remedy {
    Remedy(error.raw_os_error())
}

/// The text of [`remedy`]. It names the limit of the process that is the cause.
#[derive(Clone, Copy, Debug)]
pub struct Remedy(Option<i32>);

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // The error of starting a thread.
            Some(libc::EAGAIN) => write!(
                f,
                ": {}end threads, or raise `ulimit -u` and the cgroup's pids.max",
                ProcessLimit::Threads
            ),
            errno @ Some(libc::ENOMEM | libc::EMFILE) => Advice::of_errno(errno).fmt(f),
            errno => f.write_str(constant(errno)),
        }
    }
}

fn constant(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::ENFILE) => ": close descriptors, or raise fs.file-max",
        Some(libc::EACCES | libc::EPERM) => {
            ": the kernel refuses this to the process: check its user and capabilities, and the container, \
             seccomp filter or security module that it runs under"
        }
        Some(libc::EADDRINUSE) => ": end the process that has the port, or take another one",
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
    /// A failed system call; `what` completes the sentence "cannot …".
    pub fn io(what: &'static str, error: io::Error) -> Self {
        Self::Io { what, error }
    }
}

fn no_device(
    name: &str,
    there: &[String],
    absent: &[Absent],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(
        f,
        "no device {name:?}: there is \"soft\" (or \"auto\"), and \"soft:NAME\" for a fabric of processes"
    )?;
    if !there.is_empty() {
        write!(f, "; libibverbs has {}", there.join(", "))?;
    }
    source::list(f, absent)
}

fn too_large(what: &str, given: &u64, max: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match given {
        0 => write!(f, "{what} is 0: ask for 1 to {max}"),
        _ => write!(f, "{what} is {given}, the device has {max} at the most"),
    }
}

fn not_exclusive(access: &AccessFlags, shared: &bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("blocks are their owner's alone, and others can reach the region: ")?;
    for (at, (name, _)) in access.iter_names().enumerate() {
        let before = if at == 0 {
            "register it without "
        } else {
            " and "
        };
        write!(f, "{before}{name}")?;
    }
    match (shared, access.is_empty()) {
        (true, true) => f.write_str("use memory that no other process can map"),
        (true, false) => f.write_str(", and use memory that no other process can map"),
        (false, _) => Ok(()),
    }
}

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
