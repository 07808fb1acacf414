//! Links whose connection the communication manager makes, and makes again.

use super::bw_link;
use super::init::{bw_link_init, nanoseconds};
use crate::cm::{milliseconds, peer};
use crate::code::{BW_EAGAIN, BW_EFOREIGN, BW_EINVAL};
use crate::device::bw_device;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_pd;
use crate::sized::{self, Versioned};
use crate::used::User;
use hw::Device;
use hw::connect::cm::{Connector, Listener, Retry};
use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Makes links with those who listen at one address.
#[derive(Debug)]
pub struct bw_connector {
    connector: Connector,
    device: Device,
    _device: User,
}

/// Takes the links that connectors make.
#[derive(Debug)]
pub struct bw_listener {
    listener: Listener,
    device: Device,
    _device: User,
}

/// How long to try to reach the peer of a link, and how often. `bw_link_retry_default` fills it. Times
/// are nanoseconds.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_link_retry {
    /// `sizeof(bw_link_retry)`.
    pub size: u32,
    /// Attempts, one after the other, that may fail; the link is given up after that. At least 1.
    pub attempts: u32,
    /// How long each step of a connection may take: finding the address, finding the route, the answer.
    pub step_ns: u64,
    /// The pause after the first attempt that fails; each that follows is twice as long.
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
    const FIRST: usize = 32;
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
    // SAFETY: the header on sized structs.
    guard(|| unsafe { sized::fill(retry, size) })
}

/// Of another device no address would lead to the queue pair.
fn same_device(of: &Device, pd: &bw_pd) -> Result<(), Failure> {
    if of.is_same_context(pd.pd.device()) {
        return Ok(());
    }
    Err(Failure::new(
        BW_EFOREIGN,
        "the protection domain is of another device",
    ))
}

/// Makes a connector for links on this device with those of the `bw_listener` at an address of IPv4 or
/// IPv6, or a name, and a port. It looks for nobody yet. `retry` may be NULL: the default.
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
    // SAFETY: the header on handles, strings, sized structs and results.
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

/// Destroys a connector. Its links stay, and go on connecting where they have to.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call on the connector may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_connector_destroy(connector: *mut bw_connector) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { take(connector, "connector", |_| Ok(())) })
}

/// Makes a link, as `bw_link_create` does, whose connection the communication manager makes, and makes
/// again after a failure. It asks the connector's peer for it as it is polled: whether somebody is there
/// shows in `bw_link_get_state`, and when all attempts have failed in `bw_link_query`.
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
    // SAFETY: the header on handles, sized structs and results.
    unsafe {
        give(link, || {
            let connector = get(connector, "connector")?;
            let pd = get(pd, "protection domain")?;
            let init = sized::read_or_default(init)?.checked()?;
            same_device(&connector.device, pd)?;
            bw_link::new(pd, init, connector.connector.exchange()?)
        })
    }
}

/// Listens for links on this device, at a port of an address of IPv4 or IPv6, or of a name; "0.0.0.0"
/// is all addresses of this host, port 0 one that is free. Up to `backlog` links wait to be accepted,
/// at least one: those that come then are to try again. `retry` is how long a link waits for a peer that
/// has gone, which should be what the peer has; NULL: the default. A connector's end goes without a word,
/// also when it is closed: the link here is given up after that time. The peer of a link that is closed
/// here is told when it asks again, by whoever accepts or polls another link of the listener.
///
/// Owner: the caller, until `bw_listener_destroy`. It keeps the device.
/// Errors: `BW_ECONN` (somebody has the port, or the address is not this host's), `BW_EINVAL`,
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
    // SAFETY: the header on handles, strings, sized structs and results.
    unsafe {
        give(listener, || {
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

/// The port that is listened at, more than 0.
///
/// Errors: `BW_ENULL`.
/// Thread: the listener's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_port(listener: *const bw_listener) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { Ok(get(listener, "listener")?.listener.port()) })
}

/// The descriptor that is readable when `bw_link_accept` should be called, 0 or more: for poll and
/// epoll, not to be read or closed. It is that of the listener's links, too: it may be readable and
/// nobody has come.
///
/// Errors: `BW_ENULL`.
/// Thread: the listener's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_fd(listener: *const bw_listener) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { Ok(get(listener, "listener")?.listener.as_fd().as_raw_fd()) })
}

/// Makes a link with the next peer that has asked for one, and waits for it for so many milliseconds if
/// need be; 0 waits for none, UINT32_MAX for ever. The link connects as it is polled. When it cannot be
/// made although a peer has come, that one asks again.
///
/// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
/// Errors: `BW_EAGAIN` when nobody has come in this time, `BW_EFOREIGN`, `BW_ELIMIT`, `BW_EINVAL`,
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
    // SAFETY: the header on handles, sized structs and results.
    unsafe {
        give(link, || {
            let listener = get_mut(listener, "listener")?;
            let pd = get(pd, "protection domain")?;
            let init = sized::read_or_default(init)?.checked()?;
            same_device(&listener.device, pd)?;
            let came = listener.listener.accept_within(milliseconds(timeout_ms))?;
            let incoming =
                came.ok_or_else(|| Failure::new(BW_EAGAIN, "no peer has come in this time"))?;
            bw_link::new(pd, init, incoming)
        })
    }
}

/// Stops listening. Links that were accepted stay, and work as long as nothing fails: they can be
/// connected again only while the listener is there.
///
/// Errors: `BW_ENULL`.
/// Thread: the listener's owner; no other call on the listener may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_listener_destroy(listener: *mut bw_listener) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { take(listener, "listener", |_| Ok(())) })
}
