//! Links: reliable connections that recover from faults while the program runs.
//!
//! Lists of requests are posted as by `bw_post_send`: the trait `Stage` of `post.rs` has an
//! implementation for a queue pair and one for a link with its replay policy. `bw_link_poll` takes the
//! size of an element, so that `bw_link_wc` can grow. It is the only poll that runs in `guard`, because it
//! may recover the link.

pub mod init;

pub mod cancel;

pub mod grant;

pub mod cm;

pub mod outcome;

pub mod post;

pub mod hook;

pub mod dump;

pub mod life;

pub mod set;

pub mod wait;

mod code;

use crate::code::BW_ENULL;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut};
use crate::memory::bw_pd;
use crate::sized;
use crate::tcp::bw_tcp_conn;
use crate::used::User;
use crate::waits::{self, Owned, handle_of};
use hw::event::Waiters;
use hw::link::{Exchange, Link, pair};
use init::{Checked, bw_link_init};
use std::ffi::c_int;

/// A reliable connection with its queue pair and completion queue. It recovers from faults together
/// with the link at its other end, and reports the outcome of every request once.
#[derive(Debug)]
pub struct bw_link {
    pub(crate) link: Link,
    /// Maximum number of scatter/gather elements of a send request.
    pub(crate) max_send_sge: u32,
    // Declared after the link, which is dropped first.
    _pd: User,
}

impl Owned for bw_link {
    fn waiters(&self) -> &Waiters {
        self.link.waiters()
    }
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

/// Creates a link with the one that the peer creates from the other end of the TCP connection. It takes
/// the connection over, and connects as it is polled. Receives may be posted at once, and should be, or
/// at any time until it is connected. Both ends of the connection have to be at the same step. If
/// `init` is NULL the defaults are used.
///
/// `conn` is an empty handle from here on, which still has to be destroyed: other calls on it return
/// `BW_ECONN`. This may also be so when the call fails: destroy it then, too, and connect again.
///
/// Links take the asynchronous events of their device; `bw_device_set_event_hook` delivers the others to the
/// program.
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
    // SAFETY: the header's conventions on handles, sized structs and results.
    unsafe {
        waits::give(link, || {
            let pd = get(pd, "protection domain")?;
            let init = sized::read_or_default(init)?.checked()?;
            let exchange = get_mut(conn, "connection")?.take()?.into_exchange()?;
            bw_link::new(pd, init, exchange)
        })
    }
}

/// Creates two links in one process that are connected with each other, as `bw_link_create` does,
/// but without TCP. Each connects as it is polled, by one thread or by two. Where an init is NULL
/// the defaults are used. When the call fails both handles are NULL.
///
/// Owner: the caller, of both, until `bw_link_destroy`. They keep their protection domains.
/// Errors: those of `bw_link_create`.
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
        // SAFETY: the header's conventions on handles and sized structs; `link` and `peer` are not
        // NULL.
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
            link.write(handle_of(made));
            peer.write(handle_of(other));
        }
        Ok(())
    })
}

/// Destroys a link, and informs the peer, whose link ends. Outcomes that were not reported yet are
/// lost: call `bw_link_drain` first to get them. Waits for the recovery thread to stop, if there is
/// one.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_destroy(link: *mut bw_link) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { waits::take(link, "link") })
}
