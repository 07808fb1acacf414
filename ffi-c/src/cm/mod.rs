//! Connections by the communication manager: channels and ids. Events and connection parameters are in
//! `event` and `param`, the steps of a connection in `step`, datagrams in `datagram`.

pub mod event;

pub mod param;

pub mod step;

pub mod on_id;

pub mod datagram;

use crate::code::{BW_EINVAL, BW_ESTATE};
use crate::device::{self, bw_device};
use crate::failure::{Failure, guard};
use crate::handle::{get, give, take};
use crate::port::small;
use crate::qp_attr::udp_sport;
use crate::used::{Used, User};
use hw::address;
use hw::connect::cm::{EventChannel, Id, Peer, PortSpace};
use hw::memory::fork::PerProcess;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An event channel for ids (`rdma_event_channel`).
#[derive(Debug)]
pub struct bw_cm_channel {
    channel: EventChannel,
    used: Used,
}

/// A communication identifier (`rdma_cm_id`): an end of a connection, a listener, or a user of datagram
/// services and multicast groups.
#[derive(Debug)]
pub struct bw_cm_id {
    id: Id,
    channel: Mutex<User>,
    /// The users of what the queue pair on the id depends on. Declared after the id, which is dropped
    /// first.
    qp_users: Mutex<Option<Arc<Vec<User>>>>,
}

/// The port space of an id (`rdma_port_space`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_port_space {
    /// Datagrams that share the multicast groups and the Q_Key of IP over InfiniBand.
    BW_PS_IPOIB = 0x0002,
    /// Reliable connections.
    BW_PS_TCP = 0x0106,
    /// Datagrams, and multicast.
    BW_PS_UDP = 0x0111,
    /// Reliable connections, of other services than those of BW_PS_TCP.
    BW_PS_IB = 0x013f,
}

/// Options of an id (`rdma_set_option`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_cm_option {
    /// Type of service of its packets, up to 255; set before the address is resolved. It is the traffic
    /// class of the connection's packets; an accepting end has that of its peer unless it sets one.
    BW_CM_TOS = 0,
    /// Not 0: other ids may be bound to the same port. Set before the id is bound.
    BW_CM_REUSEADDR = 1,
    /// Not 0: a listener on IPv6 does not listen on IPv4. Set before the id is bound.
    BW_CM_AFONLY = 2,
    /// Acknowledgement timeout of its connection, a 5-bit code: 4.096 µs · 2^t, 0 means infinite. Set
    /// before it is connected.
    BW_CM_ACK_TIMEOUT = 3,
    /// Service level of this end's packets, up to 15. This and the following options apply to the
    /// queue pair of this end, and are set before `bw_cm_init_qp`. 0, the default: as the
    /// communication manager determines.
    BW_CM_SL = 4,
    /// Flow label, up to 20 bits.
    BW_CM_FLOW_LABEL = 5,
    /// The index of the partition key in the port's table; also for datagrams.
    BW_CM_PKEY_INDEX = 6,
    /// Hop limit, up to 255.
    BW_CM_HOP_LIMIT = 7,
    /// UDP source port of RoCE v2 packets, as `udp_sport` of `bw_connect_attr`.
    BW_CM_UDP_SPORT = 8,
}

/// Characters of an address, including its NUL.
pub const BW_ADDR_MAX: usize = 64;

/// The contexts that programs gave to their ids. An id has an entry for as long as its handle exists.
fn contexts() -> MutexGuard<'static, HashMap<Id, usize>> {
    static CONTEXTS: PerProcess<Mutex<HashMap<Id, usize>>> = PerProcess::new(Mutex::default);
    // A lock poisoned by a panic is usable: each change is complete.
    CONTEXTS
        .get()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl bw_cm_id {
    fn new(id: Id, channel: &bw_cm_channel, context: *mut c_void) -> Self {
        contexts().insert(id.clone(), context.expose_provenance());
        let channel = Mutex::new(channel.used.by());
        Self {
            id,
            channel,
            qp_users: Mutex::default(),
        }
    }

    /// Locked while a queue pair is put on the id or taken from it.
    fn qp_users(&self) -> MutexGuard<'_, Option<Arc<Vec<User>>>> {
        // A lock poisoned by a panic is usable: each change is complete.
        self.qp_users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for bw_cm_id {
    fn drop(&mut self) {
        let mut contexts = contexts();
        let last = contexts.remove_entry(&self.id);
        // Once all handles are destroyed no memory is kept.
        if contexts.is_empty() {
            contexts.shrink_to_fit();
        }
        drop(contexts);
        // Dropped after the lock has been released.
        drop(last);
    }
}

fn space(number: u32) -> Result<PortSpace, Failure> {
    use bw_port_space::*;
    [
        (BW_PS_TCP, PortSpace::Tcp),
        (BW_PS_UDP, PortSpace::Udp),
        (BW_PS_IB, PortSpace::Ib),
        (BW_PS_IPOIB, PortSpace::Ipoib),
    ]
    .into_iter()
    .find_map(|(known, space)| (known as u32 == number).then_some(space))
    .ok_or_else(|| {
        let text = format!("{number:#x} is not a bw_port_space");
        Failure::new(BW_EINVAL, text)
    })
}

pub(crate) fn milliseconds(timeout_ms: u32) -> Duration {
    match timeout_ms {
        u32::MAX => Duration::MAX,
        some => Duration::from_millis(some.into()),
    }
}

/// # Safety
/// `host` is NULL or a C string.
pub(crate) unsafe fn peer(host: *const c_char, port: u32) -> Result<Peer, Failure> {
    if host.is_null() {
        return Err(Failure::null("the host"));
    }
    // SAFETY: not NULL; the caller guarantees a C string.
    let host = unsafe { CStr::from_ptr(host) }.to_string_lossy();
    Ok(Peer::from((&*host, small("port", port)?)))
}

/// An address, which a host's name is not.
///
/// # Safety
/// `host` is NULL or a C string.
unsafe fn literal(host: *const c_char) -> Result<SocketAddr, Failure> {
    if host.is_null() {
        return Err(Failure::null("the address"));
    }
    // SAFETY: not NULL; the caller guarantees a C string.
    let host = unsafe { CStr::from_ptr(host) }.to_string_lossy();
    let invalid = |text: String| Failure::new(BW_EINVAL, text);
    address::parse(&host, 0)
        .map_err(|error| invalid(error.to_string()))?
        .ok_or_else(|| invalid(format!("{host:?} is not an address of IPv4 or IPv6")))
}

/// Opens an event channel of the named provider: "rdma" is librdmacm's, in a library built with it.
/// "soft" and "soft:NAME" are channels of the software device, as for `bw_device_open`. "auto" is
/// "rdma" if there is an RDMA device, otherwise "soft".
///
/// Owner: the caller, until `bw_cm_channel_destroy`.
/// Errors: `BW_ENODEV`, `BW_EUNSUPPORTED`, `BW_EOTHER` if the system has no descriptor left, or no
/// rdma_cm, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_channel_create(
    provider: *const c_char,
    channel: *mut *mut bw_cm_channel,
) -> c_int {
    let make = || {
        if provider.is_null() {
            return Err(Failure::null("the provider"));
        }
        // SAFETY: a C string, by the header's conventions.
        let provider = unsafe { CStr::from_ptr(provider) }.to_string_lossy();
        Ok(bw_cm_channel {
            channel: EventChannel::open(&provider)?,
            used: Used::default(),
        })
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(channel, make) }
}

/// As `bw_cm_channel_create`, but the channel's ids use this device: objects that are created on it,
/// and on handles from `bw_cm_id_device`, can be combined. With librdmacm this holds if an address
/// leads to the device.
///
/// Owner: the caller, until `bw_cm_channel_destroy`. It keeps the device open, and not its handle.
/// Errors: those of `bw_cm_channel_create`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_channel_create_on(
    device: *const bw_device,
    channel: *mut *mut bw_cm_channel,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(channel, || {
            Ok(bw_cm_channel {
                channel: EventChannel::on(&get(device, "device")?.device)?,
                used: Used::default(),
            })
        })
    }
}

/// Returns the channel's descriptor, 0 or more: readable while an event is queued. For poll and epoll;
/// it must not be read or closed.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_channel_fd(channel: *const bw_cm_channel) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let channel = get(channel, "event channel")?;
        Ok(channel.channel.as_fd().as_raw_fd())
    })
}

/// Destroys an event channel.
///
/// Errors: `BW_EBUSY` while ids use it, `BW_ENULL`.
/// Thread: any; no other call on the channel may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_channel_destroy(channel: *mut bw_cm_channel) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        take(channel, "event channel", |channel| {
            channel.used.check("event channel", "ids")
        })
    })
}

/// Creates an id of a `bw_port_space`, whose events are delivered to this channel, with `context`.
///
/// Owner: the caller, until `bw_cm_id_destroy`. It keeps the channel.
/// Errors: `BW_EINVAL`, `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_id_create(
    channel: *const bw_cm_channel,
    port_space: u32,
    context: *mut c_void,
    id: *mut *mut bw_cm_id,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(id, || {
            let channel = get(channel, "event channel")?;
            let id = channel.channel.id(space(port_space)?)?;
            Ok(bw_cm_id::new(id, channel, context))
        })
    }
}

/// Changes the context that the id's events carry. For an id that arrived with a request it is NULL at
/// first.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_id_set_context(id: *const bw_cm_id, context: *mut c_void) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let id = get(id, "id")?.id.clone();
        let _same = contexts().insert(id, context.expose_provenance());
        Ok(())
    })
}

/// Destroys an id: a connection is disconnected, an open request is rejected, and events that were not
/// taken are removed. It does not wait, and may be called between two events.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call on the id may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_id_destroy(id: *mut bw_cm_id) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(id, "id", |_| Ok(())) })
}

/// Returns a new handle to the device that the id is bound to. All ids of one channel that are bound to
/// the same device return the same context.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_ESTATE` if the id is not bound to a device yet, `BW_ENODEV`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_id_device(
    id: *const bw_cm_id,
    device: *mut *mut bw_device,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(device, || {
            let device = get(id, "id")?.id.device()?;
            let device = device.ok_or_else(|| {
                let text =
                    "the id is bound to no device yet: resolve an address, or bind it to one";
                Failure::new(BW_ESTATE, text)
            })?;
            Ok(device::handle(device))
        })
    }
}

/// Moves the id to another channel of the same provider (`rdma_migrate_id`), along with its events that
/// were not taken yet.
///
/// Errors: `BW_EFOREIGN` for a channel of another provider, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_migrate(id: *const bw_cm_id, to: *const bw_cm_channel) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let (id, to) = (get(id, "id")?, get(to, "event channel")?);
        let mut user = id.channel.lock().unwrap_or_else(PoisonError::into_inner);
        id.id.migrate(&to.channel)?;
        *user = to.used.by();
        Ok(())
    })
}

/// Sets a `bw_cm_option` of an id.
///
/// Errors: `BW_EINVAL`, `BW_ESTATE` if it is too late, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_set_option(id: *const bw_cm_id, option: u32, value: u32) -> c_int {
    use bw_cm_option::*;
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let id = unsafe { &get(id, "id")?.id };
        match option {
            o if o == BW_CM_TOS as u32 => id.set_tos(small("the type of service", value)?)?,
            o if o == BW_CM_REUSEADDR as u32 => id.set_reuseaddr(value != 0)?,
            o if o == BW_CM_AFONLY as u32 => id.set_afonly(value != 0)?,
            o if o == BW_CM_ACK_TIMEOUT as u32 => {
                id.set_ack_timeout(small("the timeout", value)?)?;
            }
            other => set_path(id, other, value)?,
        }
        Ok(())
    })
}

/// Sets an option of the path to the peer.
fn set_path(id: &Id, option: u32, value: u32) -> Result<(), Failure> {
    use bw_cm_option::*;
    let mut path = id.path();
    match option {
        o if o == BW_CM_SL as u32 => path.sl = small("sl", value)?,
        o if o == BW_CM_FLOW_LABEL as u32 => path.flow_label = value,
        o if o == BW_CM_PKEY_INDEX as u32 => path.pkey_index = small("pkey_index", value)?,
        o if o == BW_CM_HOP_LIMIT as u32 => path.hop_limit = small("hop_limit", value)?,
        o if o == BW_CM_UDP_SPORT as u32 => path.udp_sport = udp_sport(value)?,
        other => {
            let text = format!("{other} is not a bw_cm_option");
            return Err(Failure::new(BW_EINVAL, text));
        }
    }
    Ok(id.set_path(&path)?)
}

/// # Safety
/// `host` is NULL or has room for `BW_ADDR_MAX` characters; `port` is NULL or may be written.
pub(crate) unsafe fn write_addr(
    addr: Option<SocketAddr>,
    host: *mut c_char,
    port: *mut u32,
) -> Result<(), Failure> {
    if host.is_null() || port.is_null() {
        return Err(Failure::null("the place for the address, or for the port,"));
    }
    let addr = addr
        .ok_or_else(|| Failure::new(BW_ESTATE, "there is no such address yet, or not any more"))?;
    let text = crate::device::text::<BW_ADDR_MAX>(&address::host_text(addr));
    // The NUL is always there: `text` leaves room for it.
    let length = text.iter().take_while(|byte| **byte != 0).count() + 1;
    // SAFETY: not NULL; the caller guarantees that both may be written.
    unsafe {
        host.copy_from_nonoverlapping(text.as_ptr(), length);
        port.write(addr.port().into());
    }
    Ok(())
}

/// Writes to `text`, of `size` bytes, the peer's addresses that the id has tried in vain since
/// `bw_cm_resolve_addr`, each with port and reason. A longer text is cut off. It is empty if none
/// has failed.
/// Returns the length of the whole text, without the NUL.
///
/// Errors: `BW_EINVAL` if `size` is 0, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_tried(id: *const bw_cm_id, text: *mut c_char, size: usize) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let tried = address::list(&unsafe { get(id, "id")? }.id.tried());
        // SAFETY: the caller guarantees `size` bytes.
        unsafe { put_text(&tried, text, size) }
    })
}

/// Writes to `text`, of `size` bytes, why the id could not connect, where the number of the event
/// `BW_CM_EVENT_REJECTED` or `BW_CM_EVENT_UNREACHABLE` says less. For example, the listener's
/// process belongs to another user's fabric. A text that is longer is cut off. It is empty if the
/// event says everything that is known.
/// Returns the length of the whole text, without the NUL.
///
/// Errors: `BW_EINVAL` if `size` is 0, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_why_refused(
    id: *const bw_cm_id,
    text: *mut c_char,
    size: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let why = unsafe { get(id, "id")? }.id.why_refused();
        // SAFETY: the caller guarantees `size` bytes.
        unsafe { put_text(why.as_deref().unwrap_or_default(), text, size) }
    })
}

/// Writes as much of the text as there is room for, and its NUL. Returns the length of the whole text.
///
/// # Safety
/// `to` is NULL, or `size` bytes may be written.
unsafe fn put_text(text: &str, to: *mut c_char, size: usize) -> Result<c_int, Failure> {
    if to.is_null() {
        return Err(Failure::null("the place for the text"));
    }
    let room = size
        .checked_sub(1)
        .ok_or_else(|| Failure::new(BW_EINVAL, "size is 0: the NUL needs room"))?;
    let mut end = text.len().min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: not NULL; the caller guarantees `size` bytes, of which at most `room` and the NUL are written.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), end);
        to.add(end).write(0);
    }
    Ok(i32::try_from(text.len()).unwrap_or(i32::MAX))
}

/// Writes the id's local address, of at most `BW_ADDR_MAX` characters including its NUL, and its port
/// (`rdma_get_local_addr`). A link-local address has its interface, as in "fe80::1%eth0".
///
/// Errors: `BW_ESTATE` if it has none yet, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_local_addr(
    id: *const bw_cm_id,
    host: *mut c_char,
    port: *mut u32,
) -> c_int {
    // SAFETY: the header's conventions on handles; the function's documentation on `host` and `port`.
    guard(|| unsafe { write_addr(get(id, "id")?.id.local_addr(), host, port) })
}

/// Writes the address of the id's peer, of at most `BW_ADDR_MAX` characters including its NUL, and its
/// port (`rdma_get_peer_addr`). A link-local address has its interface, as in "fe80::1%eth0".
///
/// Errors: `BW_ESTATE` if it has none yet, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_peer_addr(
    id: *const bw_cm_id,
    host: *mut c_char,
    port: *mut u32,
) -> c_int {
    // SAFETY: the header's conventions on handles; the function's documentation on `host` and `port`.
    guard(|| unsafe { write_addr(get(id, "id")?.id.peer_addr(), host, port) })
}
