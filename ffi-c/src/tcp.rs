//! Exchange of endpoints over a TCP connection.

use crate::cm::write_addr;
use crate::code::BW_ECONN;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, peek, take};
use crate::port::small;
use crate::qp_attr::{bw_endpoint, mtu};
use crate::sized::{self, Versioned};
use crate::waits::wake;
use hw::connect::tcp::{Connection, Listener};
use hw::connect::{ConnInfo, RemoteMemory};
use hw::state::Mtu;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// A port that listens for peers.
#[derive(Debug)]
pub struct bw_tcp_listener {
    listener: Listener,
}

/// A TCP connection with a peer.
#[derive(Debug)]
pub struct bw_tcp_conn {
    /// `None` once a link has taken it.
    connection: Option<Connection>,
}

fn taken() -> Failure {
    Failure::new(
        BW_ECONN,
        "a link has taken the connection: destroy this handle, and connect again",
    )
}

impl bw_tcp_conn {
    fn new(connection: Connection) -> Self {
        let connection = Some(connection);
        Self { connection }
    }

    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        self.connection.as_mut().ok_or_else(taken)
    }

    /// Takes the connection, for a link.
    pub(crate) fn take(&mut self) -> Result<Connection, Failure> {
        self.connection.take().ok_or_else(taken)
    }
}

/// Writes the address of the connection's peer, of at most `BW_ADDR_MAX` characters including its NUL, and its
/// port.
///
/// Errors: `BW_ESTATE` if the connection has ended, `BW_ECONN` if a link has taken it, `BW_ENULL`.
/// Thread: the connection's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_peer_addr(
    conn: *const bw_tcp_conn,
    host: *mut c_char,
    port: *mut u32,
) -> c_int {
    // SAFETY: the header's conventions on handles; the program passes the places.
    guard(|| unsafe {
        let connection = get(conn, "connection")?.connection.as_ref();
        write_addr(connection.ok_or_else(taken)?.peer_addr(), host, port)
    })
}

/// What the two ends of a connection exchange besides their endpoints.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_conn_info {
    /// `sizeof(bw_conn_info)`.
    pub size: u32,
    /// The largest path MTU that this end supports, a `bw_mtu`: connect with the smaller of both ends'.
    pub mtu: u32,
    /// The rkey of the memory that the other end may access.
    pub rkey: u32,
    /// 0.
    pub reserved: u32,
    /// The first address of that memory.
    pub addr: u64,
    /// Its length in bytes; 0: there is no such memory.
    pub length: u64,
}

impl Default for bw_conn_info {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            mtu: Mtu::Mtu4096.number().into(),
            rkey: 0,
            reserved: 0,
            addr: 0,
            length: 0,
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_conn_info {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

impl From<&ConnInfo> for bw_conn_info {
    fn from(info: &ConnInfo) -> Self {
        Self {
            mtu: info.mtu.number().into(),
            rkey: info.memory.rkey,
            addr: info.memory.addr,
            length: info.memory.length,
            ..Self::default()
        }
    }
}

impl bw_conn_info {
    fn checked(&self, endpoint: &bw_endpoint) -> Result<ConnInfo, Failure> {
        sized::zero("reserved", self.reserved)?;
        Ok(ConnInfo {
            endpoint: endpoint.checked()?,
            mtu: mtu("mtu", self.mtu)?,
            memory: RemoteMemory {
                addr: self.addr,
                length: self.length,
                rkey: self.rkey,
            },
        })
    }
}

fn milliseconds(timeout_ms: u32) -> Duration {
    Duration::from_millis(timeout_ms.into())
}

/// # Safety
/// `host` is NULL or a C string.
unsafe fn name(host: *const c_char) -> Option<String> {
    if host.is_null() {
        return None;
    }
    // SAFETY: not NULL; the caller guarantees a C string.
    let host = unsafe { CStr::from_ptr(host) };
    Some(host.to_string_lossy().into_owned())
}

/// Listens for peers on a port of the host's address, or of all addresses of this host if `host` is
/// NULL. Port 0 means a free one. Any host that reaches the port can connect: nothing is encrypted
/// or authenticated.
///
/// Owner: the caller, until `bw_tcp_listener_destroy`.
/// Errors: `BW_ECONN` (the port is taken or not available), `BW_EINVAL` (no port), `BW_EOTHER`,
/// `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_listener_create(
    host: *const c_char,
    port: u32,
    listener: *mut *mut bw_tcp_listener,
) -> c_int {
    let make = || {
        // SAFETY: NULL or a C string, by the header's conventions.
        let host = unsafe { name(host) };
        let port = small("port", port)?;
        let listener = Listener::bind(host.as_deref(), port)?;
        Ok(bw_tcp_listener { listener })
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(listener, make) }
}

/// Returns the port that it listens on, more than 0.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_listener_port(listener: *const bw_tcp_listener) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(get(listener, "listener")?.listener.port()) })
}

/// Returns the descriptor that is readable when a peer can be accepted, 0 or more. It is for poll
/// and epoll, and must not be read or closed. The peer may have left again: `bw_tcp_accept` with
/// `timeout_ms` 0 does not wait.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_listener_fd(listener: *const bw_tcp_listener) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(get(listener, "listener")?.listener.as_fd().as_raw_fd()) })
}

/// Accepts the next peer that connects within `timeout_ms` milliseconds; 0 does not wait. This and the following
/// calls wait for the time that is left when a signal handler interrupts them.
///
/// Owner: the caller, until `bw_tcp_conn_destroy`.
/// Errors: `BW_ETIMEDOUT`, `BW_EWOKEN` by `bw_tcp_listener_wake`, `BW_EOTHER` if the system has no descriptor left, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_accept(
    listener: *const bw_tcp_listener,
    timeout_ms: u32,
    conn: *mut *mut bw_tcp_conn,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(conn, || {
            let listener = &get(listener, "listener")?.listener;
            let connection = listener.accept(milliseconds(timeout_ms))?;
            Ok(bw_tcp_conn::new(connection))
        })
    }
}

/// If `awake` is not 0, ends every wait in `bw_tcp_accept` on the listener, and every later one
/// that would sleep, with `BW_EWOKEN`. Peers that have connected are still accepted. If it is 0,
/// waits sleep again. So a program lets its threads return before it destroys the listener,
/// whichever comes first.
///
/// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_listener_wake(
    listener: *const bw_tcp_listener,
    awake: c_int,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    let listener = unsafe { peek(listener) };
    wake(listener.map(|listener| listener.listener.waiters()), awake)
}

/// Connects to the peer that listens on a port of a host, within `timeout_ms` milliseconds.
///
/// Owner: the caller, until `bw_tcp_conn_destroy`.
/// Errors: `BW_ECONN` (nothing listens there, or the host is unknown), `BW_ETIMEDOUT`, `BW_EINVAL` (no
/// port), `BW_EOTHER`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_connect(
    host: *const c_char,
    port: u32,
    timeout_ms: u32,
    conn: *mut *mut bw_tcp_conn,
) -> c_int {
    let make = || {
        // SAFETY: NULL or a C string, by the header's conventions.
        let host = unsafe { name(host) }.ok_or_else(|| Failure::null("the host"))?;
        let port = small("port", port)?;
        let connection = Connection::connect(&host, port, milliseconds(timeout_ms))?;
        Ok(bw_tcp_conn::new(connection))
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(conn, make) }
}

/// Sends the endpoint of a queue pair (`bw_qp_endpoint`, `bw_xrc_target_endpoint`) and the
/// description of memory to the peer. Returns the peer's, within `timeout_ms` milliseconds. What
/// the peer sends is checked: its numbers are in their ranges. `info` may be NULL: BW_MTU_4096, and
/// no memory. Set `peer->size` and `peer_info->size` before the call. For each further queue pair,
/// or region of memory, both ends call it again.
///
/// If it fails the two ends may be at different steps: destroy the connection, and connect again.
///
/// Errors: `BW_ETIMEDOUT`, `BW_ECONN` (the peer has gone), `BW_EPROTO`, `BW_EINVAL`, `BW_EOTHER`,
/// `BW_ENULL`, `BW_ESIZE`.
/// Thread: the connection's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_exchange(
    conn: *mut bw_tcp_conn,
    endpoint: *const bw_endpoint,
    info: *const bw_conn_info,
    peer: *mut bw_endpoint,
    peer_info: *mut bw_conn_info,
    timeout_ms: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let connection = get_mut(conn, "connection")?.connection()?;
        let ours = sized::read_or_default(info)?.checked(&sized::read(endpoint)?)?;
        sized::check(peer)?;
        sized::check(peer_info)?;
        let theirs = connection.exchange(&ours, milliseconds(timeout_ms))?;
        sized::write(peer, &theirs.endpoint.into())?;
        sized::write(peer_info, &(&theirs).into())
    })
}

/// Waits, up to `timeout_ms` milliseconds, until the peer calls it too. An end must not send before it
/// knows that the other end's queue pair is connected.
///
/// Errors: those of `bw_tcp_exchange`.
/// Thread: the connection's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_barrier(conn: *mut bw_tcp_conn, timeout_ms: u32) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let connection = get_mut(conn, "connection")?.connection()?;
        Ok(connection.barrier(milliseconds(timeout_ms))?)
    })
}

/// Closes a connection. Queue pairs do not need it once they are connected.
///
/// Errors: `BW_ENULL`.
/// Thread: the connection's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_conn_destroy(conn: *mut bw_tcp_conn) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(conn, "connection", |_| Ok(())) })
}

/// Stops listening. Connections that were accepted remain.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call on the listener may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_tcp_listener_destroy(listener: *mut bw_tcp_listener) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(listener, "listener", |_| Ok(())) })
}
