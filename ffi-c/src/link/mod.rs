//! Links: reliable connections that recover from faults under the running program.

pub mod init;

pub mod cm;

pub mod told;

pub mod post;

pub mod hook;

pub mod dump;

pub mod life;

mod code;

use crate::code::BW_ENULL;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_pd;
use crate::sized;
use crate::tcp::bw_tcp_conn;
use crate::used::User;
use hw::recovery::{Exchange, Link, pair};
use init::{Checked, bw_link_init};
use std::ffi::c_int;

/// A reliable connection with its queue pair and completion queue, which recovers from faults together
/// with the link at its other end, and tells of every request once what became of it.
#[derive(Debug)]
pub struct bw_link {
    pub(crate) link: Link,
    /// Scatter/gather elements of a send request.
    pub(crate) max_send_sge: u32,
    // Behind the link, which goes first.
    _pd: User,
}

impl bw_link {
    fn new(pd: &bw_pd, init: Checked, exchange: impl Exchange + 'static) -> Result<Self, Failure> {
        let max_send_sge = init.0.qp.max_send_sge;
        Ok(Self {
            link: Link::new(&pd.pd, init.0, exchange)?,
            max_send_sge,
            _pd: pd.used.by(),
        })
    }
}

/// Makes a link with the one that the peer makes of the other end of the TCP connection. It takes the
/// connection over, and connects as it is polled. Receives may be posted at once, and should be. Both
/// ends of the connection have to be at the same step. `init` may be NULL: the default.
///
/// `conn` is an empty handle from here on, which still has to be destroyed; also when this fails, but
/// with BW_ENULL, BW_ESIZE and BW_EINVAL: those leave it as it was.
///
/// Links take the asynchronous events of their device: `bw_set_event_hook` is for the rest.
///
/// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
/// Errors: `BW_ECONN` (a link has the connection already), `BW_ELIMIT`, `BW_EINVAL`, `BW_ETRANSPORT`
/// (a queue pair that is not BW_QPT_RC), `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the connection's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_create(
    pd: *const bw_pd,
    init: *const bw_link_init,
    conn: *mut bw_tcp_conn,
    link: *mut *mut bw_link,
) -> c_int {
    // SAFETY: the header on handles, sized structs and results.
    unsafe {
        give(link, || {
            let pd = get(pd, "protection domain")?;
            let init = sized::read_or_default(init)?.checked()?;
            let exchange = get_mut(conn, "connection")?.take()?.into_exchange()?;
            bw_link::new(pd, init, exchange)
        })
    }
}

/// Makes two links of one process that are connected with each other, as `bw_link_create` does without
/// TCP: each connects as it is polled, by one thread or by two. Both inits may be NULL: the default.
/// When it fails both handles are NULL.
///
/// Owner: the caller, of both, until `bw_link_destroy`. They keep their protection domains.
/// Errors: as `bw_link_create`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_create_pair(
    pd: *const bw_pd,
    init: *const bw_link_init,
    link: *mut *mut bw_link,
    peer_pd: *const bw_pd,
    peer_init: *const bw_link_init,
    peer: *mut *mut bw_link,
) -> c_int {
    guard(|| {
        if link.is_null() || peer.is_null() {
            return Err(Failure::new(BW_ENULL, "a place for a handle is NULL"));
        }
        // SAFETY: the header on handles and sized structs; the places are not NULL.
        unsafe {
            link.write(std::ptr::null_mut());
            peer.write(std::ptr::null_mut());
            let pds = (
                get(pd, "protection domain")?,
                get(peer_pd, "peer's domain")?,
            );
            let init = sized::read_or_default(init)?.checked()?;
            let peer_init = sized::read_or_default(peer_init)?.checked()?;
            let (here, there) = pair();
            let made = bw_link::new(pds.0, init, here)?;
            let other = bw_link::new(pds.1, peer_init, there)?;
            link.write(Box::into_raw(Box::new(made)));
            peer.write(Box::into_raw(Box::new(other)));
        }
        Ok(())
    })
}

/// Destroys a link, and tells the peer, whose link ends. What was not told then is not told any more:
/// `bw_link_drain` before is for that. Waits for the recovery's thread to stop, if there is one.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_destroy(link: *mut bw_link) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { take(link, "link", |_| Ok(())) })
}
