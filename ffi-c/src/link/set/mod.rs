//! Sets: many links on shared completion queues, polled once for all.

pub mod poll;
pub mod post;

use super::bw_link;
use super::init::{bw_link_init, sleeps};
use super::life::{bw_link_counters, bw_link_info, info};
use crate::cm::write_addr;
use crate::code::{BW_EBUSY, BW_ELIMIT, BW_ENOLINK, BW_ENULL, BW_ETRANSPORT};
use crate::failure::{Failure, guard};
use crate::fault::bw_fault;
use crate::handle::{get, get_mut};
use crate::memory::bw_pd;
use crate::number::bw_qp_type::BW_QPT_RC;
use crate::qp_attr::bw_qp_init_attr;
use crate::sized::{self, Versioned};
use crate::slab::bw_slab;
use crate::tcp::bw_tcp_conn;
use crate::used::User;
use crate::waits::{self, Owned};
use hw::event::Waiters;
use hw::link::{Exchange, JoinError, LinkId, LinkSet, LinkSetInit, LinkSetSrq, NoLink, pair};
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::null;
use std::time::Duration;

/// The handle of a link in a set. Once the link was removed it is of no link: calls with it return
/// BW_ENOLINK, and never reach another link.
pub type bw_link_id = u64;

/// A set of links.
#[derive(Debug)]
pub struct bw_link_set {
    pub(crate) set: LinkSet,
    /// Maximum number of scatter/gather elements of a send request.
    pub(crate) max_send_sge: u32,
    // Declared after the set, which is dropped first.
    _slab: Option<User>,
    _pd: User,
}

impl Owned for bw_link_set {
    fn waiters(&self) -> &Waiters {
        self.set.waiters()
    }
}

/// Attributes that a set of links is created with. `bw_link_set_init_default` fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_link_set_init {
    /// `sizeof(bw_link_set_init)`.
    pub size: u32,
    /// Links that it has room for. A link that has ended takes room until `bw_link_set_remove`.
    pub links: u32,
    /// Attributes of a link's queue pair, by which the completion queues are sized; as
    /// `bw_link_init.qp`. A link may have smaller ones. NULL: the defaults.
    pub qp: *const bw_qp_init_attr,
    /// Entries of the completion queue; 0: enough for everything that can be in flight on all links, in
    /// as few queues as the device allows. With fewer it overruns if the program does not poll in time,
    /// which is a fault of every link that they recover from. Keep-alives take entries, too: one poll posts
    /// up to `links_per_poll` of them.
    pub cq_entries: u32,
    /// Number of polls between two checks of the exchanges and of the asynchronous events, which take
    /// system calls. 0 means 1.
    pub check_every: u32,
    /// Maximum number of links that one poll connects or recovers. 0 means 1.
    pub links_per_poll: u32,
    /// Whether the program sleeps while there is nothing to poll, by `bw_link_set_arm` and
    /// `bw_link_set_fd`: 0 or 1.
    pub sleeps: u32,
    /// Supplies the buffers of a shared receive queue, from which all links receive; NULL: each link has a
    /// receive queue of its own. Of the set's protection domain. All its blocks of this size belong to the
    /// set from here on; those of other sizes are the program's.
    ///
    /// The set posts the receives. The outcome of one has the address of its block as `wr_id`, and a
    /// `retired` of 0, because the program posted no receive. The block is the program's until
    /// `bw_slab_return`, by any thread; then the next polls post it again. While the program holds all
    /// blocks the peers' messages wait, as often as their `rnr_retry` allows.
    pub srq_slab: *const bw_slab,
    /// Bytes of a receive, at least: the blocks of the slab's smallest class that has as many are posted, as
    /// they are. A message that is longer than its block is a fault of its link.
    pub srq_length: u32,
    /// Blocks that the messages of one link may hold, so that no peer takes those of the others; 0: without
    /// a limit. A link whose peer sends more has a fault, BW_RECV_LIMIT_EXCEEDED, and ends. At least the
    /// number of messages that the program's protocol lets a peer have outstanding. How many sends a link
    /// may have in flight is the size of its send queue, `bw_link_init.qp`.
    pub srq_max_held: u32,
}

impl Default for bw_link_set_init {
    fn default() -> Self {
        let init = LinkSetInit::default();
        Self {
            size: size_of::<Self>() as u32,
            links: init.links,
            qp: null(),
            cq_entries: 0,
            check_every: init.check_every,
            links_per_poll: init.links_per_poll,
            sleeps: 0,
            srq_slab: null(),
            srq_length: 0,
            srq_max_held: 0,
        }
    }
}

// SAFETY: repr(C), integers and pointers, without padding; the size is the first field.
unsafe impl Versioned for bw_link_set_init {
    const SIZES: &'static [usize] = &[offset_of!(Self, srq_slab), size_of::<Self>()];
}

impl bw_link_set_init {
    /// # Safety
    /// `srq_slab` is NULL or a slab.
    unsafe fn srq(&self) -> Result<Option<LinkSetSrq>, Failure> {
        // SAFETY: the caller guarantees that it is NULL or a slab.
        let Some(slab) = (unsafe { self.srq_slab.as_ref() }) else {
            sized::zero("srq_length, without srq_slab,", self.srq_length)?;
            sized::zero("srq_max_held, without srq_slab,", self.srq_max_held)?;
            return Ok(None);
        };
        Ok(Some(LinkSetSrq {
            slab: slab.slab.clone(),
            length: self.srq_length,
            max_held: (self.srq_max_held != 0).then_some(self.srq_max_held),
        }))
    }

    /// # Safety
    /// `qp` and `srq_slab` are NULL, or point to what their types say.
    unsafe fn checked(&self) -> Result<LinkSetInit, Failure> {
        let waitable = sleeps(self.sleeps)?;
        // SAFETY: the caller guarantees that the pointer is NULL or points to a sized struct.
        let qp = unsafe { sized::read_or_default(self.qp)? };
        if qp.qp_type != BW_QPT_RC as u32 || !qp.srq.is_null() {
            return Err(Failure::new(
                BW_ETRANSPORT,
                "a link's queue pair is BW_QPT_RC, with a receive queue of its own",
            ));
        }
        let (_, qp) = qp.checked()?;
        Ok(LinkSetInit {
            links: self.links,
            qp,
            cq_entries: (self.cq_entries != 0).then_some(self.cq_entries),
            // SAFETY: the caller guarantees that it is NULL or a slab.
            srq: unsafe { self.srq()? },
            check_every: self.check_every,
            links_per_poll: self.links_per_poll,
            waitable,
        })
    }
}

impl From<NoLink> for Failure {
    fn from(error: NoLink) -> Self {
        Self::new(BW_ENOLINK, error.to_string())
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Link(error) => error.into(),
            JoinError::Full { .. } => Self::new(BW_ELIMIT, error.to_string()),
            error => Self::new(BW_EBUSY, error.to_string()),
        }
    }
}

impl bw_link_set {
    /// # Safety
    /// `init` is NULL or points to a struct as its type says.
    pub(super) unsafe fn join<E: Exchange + 'static>(
        &mut self,
        init: *const bw_link_init,
        id: *mut bw_link_id,
        exchange: impl FnOnce() -> Result<E, Failure>,
    ) -> Result<(), Failure> {
        if id.is_null() {
            return Err(Failure::new(
                BW_ENULL,
                "the place for the link's handle is NULL",
            ));
        }
        // SAFETY: the caller guarantees a sized struct.
        let init = unsafe { sized::read_or_default(init)?.checked()? };
        let joined = self.set.join(init.0, exchange()?)?;
        // SAFETY: not NULL; the header's conventions on results.
        unsafe { id.write(joined.to_raw()) };
        Ok(())
    }
}

/// Fills `init`, of `size` bytes, with its size and the defaults:
/// `bw_link_set_init_default(&init, sizeof(init))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_init_default(
    init: *mut bw_link_set_init,
    size: usize,
) -> c_int {
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe { sized::fill(init, size) })
}

/// Creates a set without links: a server's connections, on shared completion queues. One poll serves all
/// links, and one descriptor wakes for all of them. If
/// `init` is NULL the defaults are used.
///
/// A fault of one link leaves the others as they are. A fault of a completion queue, or of the
/// shared receive queue, is a fault of every link on it. Each link is reported its outcomes, the
/// queue is replaced, and all connect again.
///
/// Owner: the caller, until `bw_link_set_destroy`. It keeps the protection domain, and the slab.
/// Errors: `BW_ELIMIT`, `BW_EINVAL` (also a slab without a free block of that size), `BW_EFOREIGN` (a slab of
/// another protection domain), `BW_ETRANSPORT` (a queue pair that is not BW_QPT_RC), `BW_EEXHAUSTED`,
/// `BW_EMEMORY`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_create(
    pd: *const bw_pd,
    init: *const bw_link_set_init,
    set: *mut *mut bw_link_set,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    unsafe {
        waits::give(set, || {
            let pd = get(pd, "protection domain")?;
            let init = sized::read_or_default(init)?;
            let slab = init.srq_slab.as_ref();
            let init = init.checked()?;
            Ok(bw_link_set {
                max_send_sge: init.qp.max_send_sge,
                set: LinkSet::new(&pd.pd, init)?,
                _slab: slab.map(|slab| slab.used.by()),
                _pd: pd.used.by(),
            })
        })
    }
}

/// Destroys a set with all its links, and informs their peers, whose links end. Outcomes that were not
/// reported yet are lost: call `bw_link_set_drain` first to get them.
///
/// Errors: `BW_ENULL`.
/// Thread: the set's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_destroy(set: *mut bw_link_set) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { waits::take(set, "set") })
}

/// Adds a link to the set, with the one that the peer creates from the other end of the TCP
/// connection, as `bw_link_create` does. The peer's link is a plain link, or one of a set. It
/// connects as the set is polled. `*link` is set to its handle. Of `init`, `recover_in`,
/// `check_every`, `cq_entries` and `sleeps` are ignored: the set decides.
///
/// `conn` is an empty handle from here on, which still has to be destroyed, as after
/// `bw_link_create`. This is not so if the call fails with an error of the arguments.
///
/// Errors: `BW_ELIMIT` (the set has all the links that it was created for), `BW_EBUSY` (its completion
/// queue is being replaced: poll it, then call again), `BW_ECONN` (a link has the connection already),
/// `BW_ECQROOM` (a larger queue pair than the set was created for), `BW_EINVAL`, `BW_ETRANSPORT`,
/// `BW_EEXHAUSTED`, `BW_EFATAL`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the owner of the set and of the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_join(
    set: *mut bw_link_set,
    init: *const bw_link_init,
    conn: *mut bw_tcp_conn,
    link: *mut bw_link_id,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    guard(|| unsafe {
        let set = get_mut(set, "set")?;
        let conn = get_mut(conn, "connection")?;
        set.join(init, link, || Ok(conn.take()?.into_exchange()?))
    })
}

/// Adds a link to the set that is connected with a plain link in the same process, `*peer`, as
/// `bw_link_create_pair` does. When the call fails `*peer` is NULL.
///
/// Owner: the caller, of the peer, until `bw_link_destroy`. It keeps its protection domain.
/// Errors: those of `bw_link_set_join` and `bw_link_create`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_join_pair(
    set: *mut bw_link_set,
    init: *const bw_link_init,
    link: *mut bw_link_id,
    peer_pd: *const bw_pd,
    peer_init: *const bw_link_init,
    peer: *mut *mut bw_link,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    unsafe {
        waits::give(peer, || {
            let set = get_mut(set, "set")?;
            let peer_pd = get(peer_pd, "peer's domain")?;
            let peer_init = sized::read_or_default(peer_init)?.checked()?;
            let (here, there) = pair();
            let peer = bw_link::new(peer_pd, peer_init, there)?;
            set.join(init, link, || Ok(here))?;
            Ok(peer)
        })
    }
}

/// What a set has.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_link_set_info {
    /// `sizeof(bw_link_set_info)`.
    pub size: u32,
    /// Links in it, ended ones included.
    pub links: u32,
    /// Links that it has room for.
    pub capacity: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Bytes of memory that it uses: completion queues, tables, and the rings, ledgers and states of its
    /// links; without what a device's driver allocates.
    pub memory: u64,
    /// Receives posted to the shared receive queues, those with a message included that was not polled yet.
    pub receives_posted: u32,
    /// Blocks of the shared receive queues that are not posted: the program holds them, or has returned them
    /// and the next polls post them.
    pub receives_held: u32,
}

impl Default for bw_link_set_info {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            links: 0,
            capacity: 0,
            completion_queues: 0,
            memory: 0,
            receives_posted: 0,
            receives_held: 0,
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_link_set_info {
    const SIZES: &'static [usize] = &[offset_of!(Self, receives_posted), size_of::<Self>()];
}

/// Returns what a set has. Set `info->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_query(
    set: *mut bw_link_set,
    info: *mut bw_link_set_info,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let filled = bw_link_set_info {
            receives_posted: set.receives_posted(),
            receives_held: set.receives_held(),
            links: set.len() as u32,
            capacity: set.capacity() as u32,
            completion_queues: set.completion_queues() as u32,
            memory: set.memory() as u64,
            ..Default::default()
        };
        sized::write(info, &filled)
    })
}

/// Returns the state of a link of the set; `cqn` is 0 in it. Set `info->size` before the call.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_query_link(
    set: *mut bw_link_set,
    link: bw_link_id,
    info: *mut bw_link_info,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let id = LinkId::from_raw(link);
        let held = set.held(id)?;
        let link = set.link(id)?;
        sized::write(info, &info!(&link, None, held))
    })
}

/// As `bw_link_peer_addr`, of a link of the set.
///
/// Errors: `BW_ENOLINK`, `BW_ESTATE` as for `bw_link_peer_addr`, `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_peer_addr(
    set: *mut bw_link_set,
    link: bw_link_id,
    host: *mut c_char,
    port: *mut u32,
) -> c_int {
    // SAFETY: the header's conventions on handles; the program passes the places.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let peer = set.link(LinkId::from_raw(link))?.peer_addr();
        write_addr(peer, host, port)
    })
}

/// Notes a pointer of the program's own with a link of the set: to what it keeps for the peer.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL` (the set).
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_set_context(
    set: *mut bw_link_set,
    link: bw_link_id,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let number = context.expose_provenance() as u64;
        Ok::<_, Failure>(set.set_context(LinkId::from_raw(link), number)?)
    })
}

/// Returns the pointer of `bw_link_set_set_context`; NULL until one was set, and if the handle is of no link.
/// For the data path: it is found without a search, and nothing else is checked.
///
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_context(
    set: *const bw_link_set,
    link: bw_link_id,
) -> *mut c_void {
    // SAFETY: the header's conventions on handles.
    let set = unsafe { set.as_ref() };
    let number = set.and_then(|set| set.set.context(LinkId::from_raw(link)).ok());
    std::ptr::with_exposed_provenance_mut(number.unwrap_or(0) as usize)
}

/// Returns the counters of a link of the set. Set `counters->size` before the call.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_query_counters(
    set: *mut bw_link_set,
    link: bw_link_id,
    counters: *mut bw_link_counters,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let link = set.link(LinkId::from_raw(link))?;
        sized::write(counters, &link.counters().unwrap_or_default().into())
    })
}

/// Makes a link of the set recover as `bw_link_report_fault` does. BW_EVENT_CQ_ERR and BW_EVENT_SRQ_ERR are
/// reported to every link on the same queue.
///
/// Errors: `BW_ENOLINK`, `BW_EINVAL` as for `bw_classify`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_report_fault(
    set: *mut bw_link_set,
    link: bw_link_id,
    fault: *const bw_fault,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let fault = sized::read(fault)?.checked()?;
        Ok::<_, Failure>(set.report(LinkId::from_raw(link), fault)?)
    })
}

/// Closes a link of the set, as `bw_link_close` does: its outcomes are reported by polls, until
/// `bw_link_set_next_change` returns it as BW_LINK_CLOSED or a greater state.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_close(
    set: *mut bw_link_set,
    link: bw_link_id,
    timeout_ms: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let within = Duration::from_millis(timeout_ms.into());
        Ok::<_, Failure>(set.close(LinkId::from_raw(link), within)?)
    })
}

/// Removes a link from the set, at once: its handle is of no link from here on. Outcomes that were
/// not reported yet are lost, and the memory of its requests belongs to the program again. To get
/// them, close it first, and poll until it has ended. Blocks of a shared receive queue that the
/// program holds stay its own. The peer's link ends.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_remove(set: *mut bw_link_set, link: bw_link_id) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        Ok::<_, Failure>(set.remove(LinkId::from_raw(link))?)
    })
}
