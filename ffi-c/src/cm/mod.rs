//! Connections by the communication manager: channels and ids. What goes between them is in `event`
//! and `param`, the steps of a connection in `step`, datagrams in `datagram`.

pub mod event;

pub mod param;

pub mod step;

pub mod on_id;

pub mod datagram;

use crate::code::{BW_EINVAL, BW_ESTATE};
use crate::device::bw_device;
use crate::failure::{Failure, guard};
use crate::handle::{get, give, take};
use crate::port::small;
use crate::used::{Used, User};
use hw::connect::cm::{EventChannel, Id, Peer, PortSpace};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where the events of ids come from (`rdma_event_channel`).
#[derive(Debug)]
pub struct bw_cm_channel {
    channel: EventChannel,
    used: Used,
}

/// An end of a connection, a listener, or a user of datagram services and multicast groups
/// (`rdma_cm_id`).
#[derive(Debug)]
pub struct bw_cm_id {
    id: Id,
    channel: Mutex<User>,
}

/// What the connections of an id are (`rdma_port_space`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_port_space {
    /// Datagrams that share their groups and their key with IP over InfiniBand.
    BW_PS_IPOIB = 0x0002,
    /// Reliable connections.
    BW_PS_TCP = 0x0106,
    /// Datagrams, and multicast.
    BW_PS_UDP = 0x0111,
    /// Reliable connections, of services apart from those of BW_PS_TCP.
    BW_PS_IB = 0x013f,
}

/// Options of an id (`rdma_set_option`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_cm_option {
    /// Type of service of its packets, up to 255, before the address is resolved.
    BW_CM_TOS = 0,
    /// Not 0: others may be bound to the same port. Before it is bound.
    BW_CM_REUSEADDR = 1,
    /// Not 0: a listener of IPv6 leaves IPv4 to others. Before it is bound.
    BW_CM_AFONLY = 2,
    /// Acknowledgement timeout of its connection, a 5-bit code: 4.096 µs · 2^t, 0 is for ever. Before
    /// it is connected.
    BW_CM_ACK_TIMEOUT = 3,
}

/// Characters of an address, its end included.
pub const BW_ADDR_MAX: usize = 64;

/// What programs gave to their ids. An id is in it for as long as its handle is.
fn contexts() -> MutexGuard<'static, HashMap<Id, usize>> {
    static CONTEXTS: LazyLock<Mutex<HashMap<Id, usize>>> = LazyLock::new(Mutex::default);
    // Each change is whole.
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl bw_cm_id {
    fn new(id: Id, channel: &bw_cm_channel, context: *mut c_void) -> Self {
        contexts().insert(id.clone(), context.expose_provenance());
        let channel = Mutex::new(channel.used.by());
        Self { id, channel }
    }
}

impl Drop for bw_cm_id {
    fn drop(&mut self) {
        let mut contexts = contexts();
        let last = contexts.remove_entry(&self.id);
        // A program that has given everything back is to have nothing left.
        if contexts.is_empty() {
            contexts.shrink_to_fit();
        }
        drop(contexts);
        // Its end is not to be under the lock.
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
    // SAFETY: the caller's promise.
    let host = unsafe { CStr::from_ptr(host) }.to_string_lossy();
    Ok(Peer::from((&*host, small("port", port)?)))
}

/// # Safety
/// As [`peer`].
unsafe fn literal(host: *const c_char) -> Result<SocketAddr, Failure> {
    // SAFETY: the caller's promise.
    match unsafe { peer(host, 0)? } {
        Peer::Addr(addr) => Ok(addr),
        Peer::Name { name, .. } => {
            let text = format!("{name:?} is not an address of IPv4 or IPv6");
            Err(Failure::new(BW_EINVAL, text))
        }
    }
}

/// Opens an event channel of the provider of this name: "rdma" is librdmacm's, of a library built with
/// it; "soft" and "soft:NAME" are the software device's, as for `bw_device_open`; "auto" is "rdma"
/// where there is an RDMA device, else "soft".
///
/// Owner: the caller, until `bw_cm_channel_destroy`.
/// Errors: `BW_ENODEV`, `BW_EUNSUPPORTED`, `BW_EOTHER` when the system has no descriptor left, or no
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
    // SAFETY: the header on results.
    unsafe { give(channel, make) }
}

/// As `bw_cm_channel_create`; its ids use this device: what is created on it, and on what
/// `bw_cm_id_device` gives, works together. Of librdmacm: where an address leads to it.
///
/// Owner: the caller, until `bw_cm_channel_destroy`. It keeps the device open, and not its handle.
/// Errors: as there.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_channel_create_on(
    device: *const bw_device,
    channel: *mut *mut bw_cm_channel,
) -> c_int {
    // SAFETY: the header on handles and results.
    unsafe {
        give(channel, || {
            Ok(bw_cm_channel {
                channel: EventChannel::on(&get(device, "device")?.device)?,
                used: Used::default(),
            })
        })
    }
}

/// The channel's descriptor, 0 or more: readable while an event is queued. For poll and epoll, not to
/// be read or closed.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_channel_fd(channel: *const bw_cm_channel) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        let channel = get(channel, "event channel")?;
        Ok(channel.channel.as_fd().as_raw_fd())
    })
}

/// Destroys an event channel.
///
/// Errors: `BW_EBUSY` while there are ids on it, `BW_ENULL`.
/// Thread: any; no other call on the channel may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_channel_destroy(channel: *mut bw_cm_channel) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        take(channel, "event channel", |channel| {
            channel.used.check("event channel", "ids")
        })
    })
}

/// Creates an id of a `bw_port_space`, whose events come by this channel, and bear `context`.
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
    // SAFETY: the header on handles and results.
    unsafe {
        give(id, || {
            let channel = get(channel, "event channel")?;
            let id = channel.channel.id(space(port_space)?)?;
            Ok(bw_cm_id::new(id, channel, context))
        })
    }
}

/// Changes the context that the id's events bear. Of an id that a request came with it is NULL.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_id_set_context(id: *const bw_cm_id, context: *mut c_void) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        let id = get(id, "id")?.id.clone();
        let _same = contexts().insert(id, context.expose_provenance());
        Ok(())
    })
}

/// Destroys an id: what is connected is disconnected, what was asked for is rejected; events of it that
/// were not got are gone. It waits for nothing, and may be called between an event and the next.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call on the id may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_id_destroy(id: *mut bw_cm_id) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { take(id, "id", |_| Ok(())) })
}

/// The device that the id is bound to, another handle of it for each call. Of one channel all ids that
/// are bound to one device give the same context.
///
/// Owner: the caller, until `bw_device_close`.
/// Errors: `BW_ESTATE` when the id is bound to none yet, `BW_ENODEV`, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_id_device(
    id: *const bw_cm_id,
    device: *mut *mut bw_device,
) -> c_int {
    // SAFETY: the header on handles and results.
    unsafe {
        give(device, || {
            let device = get(id, "id")?.id.device()?;
            let device = device.ok_or_else(|| {
                let text =
                    "the id is bound to no device yet: resolve an address, or bind it to one";
                Failure::new(BW_ESTATE, text)
            })?;
            Ok(bw_device {
                device,
                used: Used::default(),
            })
        })
    }
}

/// Has the id's events come by another channel of the same provider (`rdma_migrate_id`), those that
/// were not got yet among them.
///
/// Errors: `BW_EFOREIGN` for a channel of another provider, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_migrate(id: *const bw_cm_id, to: *const bw_cm_channel) -> c_int {
    // SAFETY: the header on handles.
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
/// Errors: `BW_EINVAL`, `BW_ESTATE` when it is too late, `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_set_option(id: *const bw_cm_id, option: u32, value: u32) -> c_int {
    use bw_cm_option::*;
    guard(|| {
        // SAFETY: the header on handles.
        let id = unsafe { &get(id, "id")?.id };
        match option {
            o if o == BW_CM_TOS as u32 => id.set_tos(small("the type of service", value)?)?,
            o if o == BW_CM_REUSEADDR as u32 => id.set_reuseaddr(value != 0)?,
            o if o == BW_CM_AFONLY as u32 => id.set_afonly(value != 0)?,
            o if o == BW_CM_ACK_TIMEOUT as u32 => {
                id.set_ack_timeout(small("the timeout", value)?)?;
            }
            other => {
                let text = format!("{other} is not a bw_cm_option");
                return Err(Failure::new(BW_EINVAL, text));
            }
        }
        Ok(())
    })
}

/// # Safety
/// `host` is NULL, or a place for `BW_ADDR_MAX` characters; `port` is NULL or a place.
unsafe fn tell(addr: Option<SocketAddr>, host: *mut c_char, port: *mut u32) -> Result<(), Failure> {
    if host.is_null() || port.is_null() {
        return Err(Failure::null("the place for the address, or for the port,"));
    }
    let addr = addr.ok_or_else(|| Failure::new(BW_ESTATE, "the id has no such address yet"))?;
    let text = crate::device::text::<BW_ADDR_MAX>(&addr.ip().to_string());
    // SAFETY: the caller's promise.
    unsafe {
        host.copy_from_nonoverlapping(text.as_ptr(), BW_ADDR_MAX);
        port.write(addr.port().into());
    }
    Ok(())
}

/// Writes the id's address on this side, of `BW_ADDR_MAX` characters at the most, and its port
/// (`rdma_get_local_addr`).
///
/// Errors: `BW_ESTATE` when it has none yet, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_local_addr(
    id: *const bw_cm_id,
    host: *mut c_char,
    port: *mut u32,
) -> c_int {
    // SAFETY: the header on handles, and the places as the text says.
    guard(|| unsafe { tell(get(id, "id")?.id.local_addr(), host, port) })
}

/// Writes the address of the id's peer, likewise (`rdma_get_peer_addr`).
///
/// Errors: `BW_ESTATE` when it has none yet, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_peer_addr(
    id: *const bw_cm_id,
    host: *mut c_char,
    port: *mut u32,
) -> c_int {
    // SAFETY: as above.
    guard(|| unsafe { tell(get(id, "id")?.id.peer_addr(), host, port) })
}
