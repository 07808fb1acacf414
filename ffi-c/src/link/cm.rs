//! Links that connect, and reconnect, by the communication manager.

use super::bw_link;
use super::init::{bw_link_init, nanoseconds};
use super::set::{bw_link_id, bw_link_set};
use crate::cm::{milliseconds, peer};
use crate::code::{BW_EAGAIN, BW_EFOREIGN, BW_EINVAL};
use crate::device::bw_device;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_pd;
use crate::sized::{self, Versioned};
use crate::used::User;
use crate::waits::{self, Owned, wake_owner};
use hw::connect::cm::{Connector, Incoming, Listener, Retry};
use hw::event::Waiters;
use hw::link::JoinError;
use hw::{Device, Pd};
use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Creates links with the listener at one address.
#[derive(Debug)]
pub struct bw_connector {
    connector: Connector,
    device: Device,
    _device: User,
}

/// Accepts the links that connectors create.
#[derive(Debug)]
pub struct bw_listener {
    listener: Listener,
    device: Device,
    _device: User,
}

impl Owned for bw_listener {
    fn waiters(&self) -> &Waiters {
        self.listener.waiters()
    }
}

/// How long, and how often, to try to reach the peer of a link. `bw_link_retry_default` fills it.
/// Times are nanoseconds. If attempts fail at once, for instance because nothing listens, further
/// ones follow until the time of all attempts has passed. That time is `attempts` times `step_ns`,
/// and the pauses.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_link_retry {
    /// `sizeof(bw_link_retry)`.
    pub size: u32,
    /// Number of successive attempts that may fail, each after `step_ns`; then the link is given up. At
    /// least 1.
    pub attempts: u32,
    /// How long each step of a connection may take: resolving the address, resolving the route, the
    /// reply.
    pub step_ns: u64,
    /// The pause after the first failed attempt; each further pause is twice as long.
    pub pause_ns: u64,
    /// The longest pause.
    pub longest_ns: u64,
}

impl Default for bw_link_retry {
    fn default() -> Self {
        let retry = Retry::default();
        Self {
            size: size_of::<Self>() as u32,
            attempts: retry.attempts,
            step_ns: nanoseconds(retry.step),
            pause_ns: nanoseconds(retry.pause),
            longest_ns: nanoseconds(retry.longest),
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_link_retry {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

impl bw_link_retry {
    fn checked(&self) -> Result<Retry, Failure> {
        if self.attempts == 0 {
            return Err(Failure::new(
                BW_EINVAL,
                "attempts is 0, and has to be at least 1: bw_link_retry_default fills the struct",
            ));
        }
        Ok(Retry {
            step: Duration::from_nanos(self.step_ns),
            pause: Duration::from_nanos(self.pause_ns),
            longest: Duration::from_nanos(self.longest_ns),
            attempts: self.attempts,
        })
    }
}

/// Fills `retry`, of `size` bytes, with its size and the defaults:
/// `bw_link_retry_default(&retry, sizeof(retry))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_retry_default(retry: *mut bw_link_retry, size: usize) -> c_int {
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe { sized::fill(retry, size) })
}

/// No address on another device leads to the queue pair.
fn same_device(of: &Device, pd: &Pd) -> Result<(), Failure> {
    if of.is_same_context(pd.device()) {
        return Ok(());
    }
    Err(Failure::new(
        BW_EFOREIGN,
        "the protection domain is of another device",
    ))
}

/// Creates a connector for links on this device with the `bw_listener` at an IPv4 or IPv6 address, or a
/// host name, and a port. It does not contact the peer yet: bw_link_connect resolves a name. If a name has
/// several addresses, they are tried in turn until the listener responds at one of them, where the link stays.
/// A link-local address names its interface, as in "fe80::1%eth0". If `retry` is NULL the defaults are used.
///
/// Owner: the caller, until `bw_connector_destroy`. It keeps the device.
/// Errors: `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_connector_create(
    device: *const bw_device,
    host: *const c_char,
    port: u32,
    retry: *const bw_link_retry,
    connector: *mut *mut bw_connector,
) -> c_int {
    // SAFETY: the header's conventions on handles, strings, sized structs and results.
    unsafe {
        give(connector, || {
            let device = get(device, "device")?;
            let retry = sized::read_or_default(retry)?.checked()?;
            Ok(bw_connector {
                connector: Connector::new(&device.device, peer(host, port)?, retry),
                device: device.device.clone(),
                _device: device.used.by(),
            })
        })
    }
}

/// Destroys a connector. Its links remain, and can still connect and reconnect.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call on the connector may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_connector_destroy(connector: *mut bw_connector) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(connector, "connector", |_| Ok(())) })
}

/// Creates a link, as `bw_link_create` does, that connects by the communication manager, and reconnects
/// by it after a failure. It asks the connector's peer as it is polled: `bw_link_get_state` shows
/// whether the peer replies, and `bw_link_query` whether all attempts have failed. Receives may be
/// posted meanwhile.
///
/// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
/// Errors: `BW_EFOREIGN` (a protection domain of another device), `BW_EUNSUPPORTED` (a device of
/// libibverbs, in a library without librdmacm), `BW_ELIMIT`, `BW_EINVAL`, `BW_ETRANSPORT` (a queue pair
/// that is not BW_QPT_RC), `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_connect(
    connector: *const bw_connector,
    pd: *const bw_pd,
    init: *const bw_link_init,
    link: *mut *mut bw_link,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    unsafe {
        waits::give(link, || {
            let connector = get(connector, "connector")?;
            let pd = get(pd, "protection domain")?;
            let init = sized::read_or_default(init)?.checked()?;
            same_device(&connector.device, &pd.pd)?;
            bw_link::new(pd, init, connector.connector.exchange()?)
        })
    }
}

/// Listens for links on this device, on a port of an IPv4 or IPv6 address, or of a host name.
/// "0.0.0.0" means all addresses of this host, port 0 a free one. Up to `backlog` links, at least
/// one, wait to be accepted; peers beyond that have to try again. `retry` says how long a link
/// waits for a peer that does not connect, and should be the same as the peer's. If it is NULL the
/// defaults are used. When the connecting end closes its link, the accepted one becomes
/// BW_LINK_PEER_CLOSED; when its process ends without closing it, the peer is lost (BW_PEER_LOST).
/// The peer of a link that was closed here is informed when it asks again. A call that accepts a
/// link, or polls another link of the listener, informs it. A peer that asks after this process was
/// restarted gives its link up with BW_PEER_RESTARTED. The port is also used for datagrams, by
/// which connecting ends announce that they close.
///
/// Owner: the caller, until `bw_listener_destroy`. It keeps the device.
/// Errors: `BW_ECONN` (the port is taken, or the address is not one of this host), `BW_EINVAL`,
/// `BW_EUNSUPPORTED` (a device of libibverbs, in a library without librdmacm), `BW_EEXHAUSTED`,
/// `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_create(
    device: *const bw_device,
    host: *const c_char,
    port: u32,
    backlog: u32,
    retry: *const bw_link_retry,
    listener: *mut *mut bw_listener,
) -> c_int {
    // SAFETY: the header's conventions on handles, strings, sized structs and results.
    unsafe {
        waits::give(listener, || {
            let device = get(device, "device")?;
            let retry = sized::read_or_default(retry)?.checked()?;
            Ok(bw_listener {
                listener: Listener::bind(&device.device, peer(host, port)?, backlog, retry)?,
                device: device.device.clone(),
                _device: device.used.by(),
            })
        })
    }
}

/// Limits the links that were accepted and are not connected yet to `handshakes`, at least one.
/// While there are as many, further ones wait in the backlog. One that is not connected within
/// `within_ns` nanoseconds after it was accepted is given up (`BW_LINK_GAVE_UP`), and makes room
/// for the next. An example is a link with a silent peer. By default 256, and 10 s. Links have to
/// be polled to connect.
///
/// Errors: `BW_ENULL`.
/// Thread: the listener's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_limit_handshakes(
    listener: *mut bw_listener,
    handshakes: u32,
    within_ns: u64,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let listener = get_mut(listener, "listener")?;
        let within = Duration::from_nanos(within_ns);
        listener.listener.limit_handshakes(handshakes, within);
        Ok(())
    })
}

/// Returns the port that it listens on, more than 0.
///
/// Errors: `BW_ENULL`.
/// Thread: the listener's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_port(listener: *const bw_listener) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(get(listener, "listener")?.listener.port()) })
}

/// Returns the descriptor that is readable when `bw_link_accept` should be called, 0 or more: for poll
/// and epoll; it must not be read or closed. It may be readable although no peer is there to be
/// accepted, for instance if a link of the listener took what arrived.
///
/// Errors: `BW_ENULL`.
/// Thread: the listener's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_fd(listener: *const bw_listener) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(get(listener, "listener")?.listener.as_fd().as_raw_fd()) })
}

/// If `awake` is not 0, ends every wait of `bw_link_accept` and `bw_link_set_accept` on the
/// listener, and every later one that would sleep, with `BW_EWOKEN`. Peers that have asked for a
/// link are still accepted. If it is 0, waits sleep again. So a program lets the listener's owner
/// return before it destroys the listener, whichever comes first.
///
/// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
///
/// Errors: `BW_ENULL`.
/// Thread: any; the listener has to exist, and its owner may be in a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_wake(listener: *const bw_listener, awake: c_int) -> c_int {
    // SAFETY: the header's conventions on handles.
    unsafe { wake_owner(listener, awake) }
}

/// Creates a link with the next peer that has asked for one, and waits for one up to `timeout_ms`
/// milliseconds. 0 does not wait, UINT32_MAX waits forever. The link connects as it is polled. If a
/// peer cannot be accepted for want of descriptors or memory, the error names the limit, and the peer
/// asks again. If the link cannot be created, the peer's link ends, with the error number. A signal
/// handler does not end a wait with a limit, which goes on for the time that is left.
///
/// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
/// Errors: `BW_EAGAIN` if no peer has asked in this time, `BW_EINTR` when a signal handler has interrupted a wait
/// that has no limit, `BW_EWOKEN` by `bw_listener_wake`, `BW_EFOREIGN`, `BW_ELIMIT`, `BW_EINVAL`,
/// `BW_ETRANSPORT`, `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the listener's owner. Its links may have other owners.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_accept(
    listener: *mut bw_listener,
    pd: *const bw_pd,
    init: *const bw_link_init,
    timeout_ms: u32,
    link: *mut *mut bw_link,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    unsafe {
        waits::give(link, || {
            let listener = get_mut(listener, "listener")?;
            let pd = get(pd, "protection domain")?;
            let init = sized::read_or_default(init)?.checked()?;
            same_device(&listener.device, &pd.pd)?;
            bw_link::new(pd, init, accepted(listener, timeout_ms)?)
        })
    }
}

/// The next peer that has asked for a link.
fn accepted(listener: &mut bw_listener, timeout_ms: u32) -> Result<Incoming, Failure> {
    let came = listener.listener.accept_within(milliseconds(timeout_ms))?;
    came.ok_or_else(|| Failure::new(BW_EAGAIN, "no peer has come in this time"))
}

/// Adds a link to the set that connects by the communication manager, as `bw_link_connect` does. `*link` is
/// set to its handle. Of `init`, the set ignores what `bw_link_set_join` says.
///
/// Errors: those of `bw_link_set_join` and `bw_link_connect`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_connect(
    set: *mut bw_link_set,
    connector: *const bw_connector,
    init: *const bw_link_init,
    link: *mut bw_link_id,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    guard(|| unsafe {
        let set = get_mut(set, "set")?;
        let connector = get(connector, "connector")?;
        same_device(&connector.device, set.set.pd())?;
        set.join(init, link, || Ok(connector.connector.exchange()?))
    })
}

/// Adds a link to the set with the next peer that has asked for one, as `bw_link_accept` does. `*link` is
/// set to its handle. Of `init`, the set ignores what `bw_link_set_join` says. While the set is full no peer
/// is taken from the listener.
///
/// Errors: `BW_EAGAIN` if no peer has asked in this time; those of `bw_link_set_join` and
/// `bw_link_accept`.
/// Thread: the owner of the set and of the listener.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_accept(
    set: *mut bw_link_set,
    listener: *mut bw_listener,
    init: *const bw_link_init,
    timeout_ms: u32,
    link: *mut bw_link_id,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    guard(|| unsafe {
        let set = get_mut(set, "set")?;
        let listener = get_mut(listener, "listener")?;
        same_device(&listener.device, set.set.pd())?;
        let links = set.set.capacity();
        if set.set.len() == links {
            return Err(JoinError::Full { links }.into());
        }
        set.join(init, link, || accepted(listener, timeout_ms))
    })
}

/// Stops listening. Links that were accepted remain, and work as long as nothing fails: they can
/// reconnect only while the listener exists.
///
/// Errors: `BW_ENULL`.
/// Thread: the listener's owner; no other call on the listener may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_destroy(listener: *mut bw_listener) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { waits::take(listener, "listener") })
}
