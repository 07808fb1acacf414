//! Queue pairs. Posting is in `post`, their attributes are in `qp_attr`, state changes in `modify`.

use crate::code::{BW_EINVAL, BW_ESTATE, BW_ETRANSPORT};
use crate::cq::bw_cq;
use crate::entered::Entered;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_pd;
use crate::qp_attr::{bw_connect_attr, bw_endpoint, bw_qp_init_attr};
use crate::sized;
use crate::transport::{AnyQp, AnySq, Kind, each};
use crate::used::User;
use hw::recorder::{DumpOptions, Record};
use hw::wr::WrOpcode;
use hw::{Cqs, Device, Qp, QpRecvQueue, QpTransport};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

// The send queue and the receive queue may be used by two threads at once. So the data path must not
// make a reference to the whole of `qp`: it uses one of the two borrowed queues, which are borrowed
// anew after each call that had such a reference.
/// A queue pair, of any transport.
#[derive(Debug)]
pub struct bw_qp {
    pub(crate) sq: UnsafeCell<Option<AnySq>>,
    pub(crate) rq: UnsafeCell<Option<QpRecvQueue<'static>>>,
    pub(crate) in_sq: Entered,
    pub(crate) in_rq: Entered,
    /// NULL while the queue pair is on an id: then `away` identifies it.
    qp: *mut AnyQp,
    away: Option<Away>,
    send_cq: *mut bw_cq,
    recv_cq: *mut bw_cq,
    users: Arc<Vec<User>>,
}

impl bw_qp {
    /// Its transport, unless the queue pair is on an id.
    pub(crate) fn kind(&self) -> Option<Kind> {
        // SAFETY: NULL, or from `Box::into_raw`; nothing changes it meanwhile.
        unsafe { self.qp.as_ref() }.map(AnyQp::kind)
    }

    /// Runs a call that has exclusive use of the queue pair.
    ///
    /// # Safety
    /// Nothing else uses the queue pair meanwhile.
    pub(crate) unsafe fn alone<R>(
        &mut self,
        call: impl FnOnce(&mut AnyQp) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        /// Borrows the queues again, also when the call panics.
        struct LendAnew<'a>(&'a mut bw_qp);
        impl Drop for LendAnew<'_> {
            fn drop(&mut self) {
                self.0.lend();
            }
        }
        // SAFETY: NULL, or from `Box::into_raw` and freed in `drop`; the caller guarantees exclusive
        // use.
        let Some(qp) = (unsafe { self.qp.as_mut() }) else {
            let text = "the queue pair is on an id: bw_cm_detach_qp takes it back";
            return Err(Failure::new(BW_ESTATE, text));
        };
        let _lend = LendAnew(self);
        call(qp)
    }

    /// Borrows its queues for the data path, while no data path call is in progress.
    fn lend(&mut self) {
        // SAFETY: NULL, or from `Box::into_raw`, where it stays until `drop` or `send_away`; whatever
        // else makes a reference to it borrows the queues anew.
        let halves = unsafe { self.qp.as_mut() }.map(AnyQp::split);
        let (sq, rq) = halves.unzip();
        (*self.sq.get_mut(), *self.rq.get_mut()) = (sq, rq);
    }
}

impl bw_qp {
    /// What the queue pair did last.
    ///
    /// # Safety
    /// Nothing else uses the queue pair and its completion queues meanwhile.
    pub(crate) unsafe fn dump(&mut self, options: &DumpOptions) -> Result<Record, Failure> {
        // SAFETY: both exist for as long as the queue pair uses them; the caller guarantees exclusive
        // use.
        let cqs = unsafe { cqs(self.send_cq, self.recv_cq)? };
        // SAFETY: the caller guarantees exclusive use of the queue pair.
        unsafe { self.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.dump(cqs, options)?))) }
    }

    /// Adds a note to its record.
    ///
    /// # Safety
    /// Nothing else uses the queue pair meanwhile.
    pub(crate) unsafe fn note(&mut self, text: String) -> Result<(), Failure> {
        let note = |qp: &mut AnyQp| {
            each!(AnyQp, qp, qp => qp.note(text));
            Ok(())
        };
        // SAFETY: the caller guarantees exclusive use of the queue pair.
        unsafe { self.alone(note) }
    }
}

impl bw_qp {
    /// Takes the queue pair out of its handle.
    pub(crate) fn send_away(&mut self) -> Result<AnyQp, Failure> {
        // SAFETY: NULL, or from `Box::into_raw`, and the handle is borrowed exclusively.
        let Some(there) = (unsafe { self.qp.as_ref() }) else {
            return Err(Failure::new(BW_ESTATE, "the queue pair is on an id"));
        };
        self.away = Some(each!(AnyQp, there, qp => Away::of(qp)));
        let qp = std::mem::replace(&mut self.qp, null_mut());
        self.lend();
        // SAFETY: from `Box::into_raw`, and the handle no longer has the pointer.
        Ok(*unsafe { Box::from_raw(qp) })
    }

    /// Identifies the queue pair that was taken out.
    pub(crate) fn away(&self) -> Option<&Away> {
        self.away.as_ref()
    }

    /// Puts the queue pair back into its handle.
    pub(crate) fn take_back(&mut self, qp: AnyQp) {
        self.away = None;
        self.qp = Box::into_raw(Box::new(qp));
        self.lend();
    }

    /// The users of what it depends on, to be kept where the queue pair goes.
    pub(crate) fn users(&self) -> Arc<Vec<User>> {
        self.users.clone()
    }
}

/// Identifies a queue pair: numbers are unique only within a device.
#[derive(Debug)]
pub(crate) struct Away {
    device: Device,
    qp_num: u32,
}

impl Away {
    fn of<T: QpTransport>(qp: &Qp<T>) -> Self {
        Self {
            device: qp.pd().device().clone(),
            qp_num: qp.qp_num(),
        }
    }

    pub(crate) fn is<T: QpTransport>(&self, qp: &Qp<T>) -> bool {
        self.qp_num == qp.qp_num() && self.device.is_same_context(qp.pd().device())
    }
}

impl Drop for bw_qp {
    fn drop(&mut self) {
        if !self.qp.is_null() {
            // SAFETY: from `Box::into_raw`, and nothing uses it any more.
            drop(unsafe { Box::from_raw(self.qp) });
        }
    }
}

/// The completion queues as the library takes them: one for both directions, or two.
///
/// # Safety
/// Both are NULL or handles of completion queues that nothing else uses meanwhile.
unsafe fn cqs<'a>(send: *mut bw_cq, recv: *mut bw_cq) -> Result<Cqs<'a>, Failure> {
    // SAFETY: the caller guarantees exclusive use of both; two references are made only to different
    // queues.
    unsafe {
        let first = &mut get_mut(send, "send completion queue")?.cq;
        if send == recv {
            return Ok(Cqs::Shared(first));
        }
        let second = &mut get_mut(recv, "receive completion queue")?.cq;
        Ok(Cqs::Split(first, second))
    }
}

/// Creates a queue pair in RESET. Sends complete on `send_cq`, receives on `recv_cq`, which may be the
/// same; an XRC initiator has no receives, so `recv_cq` may be NULL. If `attr` is NULL the defaults are
/// used.
///
/// Owner: the caller, until `bw_qp_destroy`. It keeps the protection domain, the completion queues
/// and the shared receive queue.
/// Errors: `BW_ELIMIT`, `BW_EINVAL`, `BW_ECQROOM`, `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_EMEMORY`,
/// `BW_ENULL`, `BW_ESIZE`.
/// Thread: the owner of both completion queues and of the shared receive queue: no other thread may
/// poll them, or post to it, meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_create(
    pd: *const bw_pd,
    send_cq: *mut bw_cq,
    recv_cq: *mut bw_cq,
    attr: *const bw_qp_init_attr,
    qp: *mut *mut bw_qp,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on handles and sized structs.
        let (pd, attr) = unsafe { (get(pd, "protection domain")?, sized::read_or_default(attr)?) };
        let (kind, init) = attr.checked()?;
        let recv_cq = if kind == Kind::Xrc { send_cq } else { recv_cq };
        // SAFETY: the header's conventions on handles; the caller owns the queues.
        let (cqs, srq) = unsafe { (cqs(send_cq, recv_cq)?, attr.srq.as_ref()) };
        let made = AnyQp::create(kind, &pd.pd, cqs, srq.map(|srq| &srq.srq), &init)?;
        // SAFETY: handles by the header's conventions, and not NULL: `cqs` has checked them.
        let mut users = unsafe { vec![(*send_cq).used.by(), (*recv_cq).used.by()] };
        users.push(pd.used.by());
        users.extend(srq.map(|srq| srq.used.by()));
        let mut qp = bw_qp {
            sq: UnsafeCell::default(),
            rq: UnsafeCell::default(),
            in_sq: Entered::default(),
            in_rq: Entered::default(),
            qp: Box::into_raw(Box::new(made)),
            away: None,
            send_cq,
            recv_cq,
            users: Arc::new(users),
        };
        qp.lend();
        Ok(qp)
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(qp, make) }
}

/// Returns the endpoint to send to the peer, by any means. Set `endpoint->size` before the call.
///
/// Its PSN belongs to one life of the queue pair: call this again after `bw_qp_reset`, and send the result
/// to the peer. A peer that is connected with an old endpoint accepts nothing, and requests posted here end
/// with BW_WC_RETRY_EXC_ERR. So a late packet of an earlier connection does no harm in the next one. If
/// `bw_qp_modify` sets another `sq_psn`, the endpoint has that.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_endpoint(qp: *mut bw_qp, endpoint: *mut bw_endpoint) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let ours =
            get_mut(qp, "queue pair")?.alone(|qp| Ok(each!(AnyQp, qp, qp => qp.endpoint())))?;
        sized::write(endpoint, &ours.into())
    })
}

/// As `bw_qp_endpoint`, for a connection through `attr->port_num` and `attr->gid_index`. If `attr` is
/// NULL the defaults are used. Set `endpoint->size` before the call.
///
/// Errors: `BW_EINVAL`, also for a port or an entry that does not exist; `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_endpoint_for(
    qp: *mut bw_qp,
    attr: *const bw_connect_attr,
    endpoint: *mut bw_endpoint,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        let ours = get_mut(qp, "queue pair")?.alone(|qp| {
            each!(AnyQp, qp, qp => {
                // An endpoint without a GID index has zero.
                let gid_index = attr.gid_index.unwrap_or(0);
                qp.pd().device().query_gid(attr.port_num, gid_index.into())?;
                Ok(qp.endpoint_for(&attr))
            })
        })?;
        sized::write(endpoint, &ours.into())
    })
}

/// Moves the queue pair from RESET to INIT. Receives may be posted from here on, and should be
/// before the peer connects. If `attr` is NULL the defaults are used.
///
/// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_EUNSUPPORTED` (a UDP source port), `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_init(qp: *mut bw_qp, attr: *const bw_connect_attr) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        get_mut(qp, "queue pair")?.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.init(&attr)?)))
    })
}

/// Moves the queue pair from INIT to RTS, connected with `peer`: sends may be posted from here on. The
/// peer of an XRC initiator is a `bw_xrc_target`. If `attr` is NULL the defaults are used. When it
/// fails the queue pair is in INIT, RTR or ERR: start again with `bw_qp_reset`.
///
/// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ETRANSPORT` (datagrams: `bw_qp_start`), `BW_EUNSUPPORTED` (a
/// UDP source port), `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_connect(
    qp: *mut bw_qp,
    peer: *const bw_endpoint,
    attr: *const bw_connect_attr,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        let peer = sized::read(peer)?.checked()?;
        get_mut(qp, "queue pair")?.alone(|qp| match qp {
            AnyQp::Rc(qp) => Ok(qp.connect(&peer, &attr)?),
            AnyQp::Uc(qp) => Ok(qp.connect(&peer, &attr)?),
            AnyQp::Xrc(qp) => Ok(qp.connect(&peer, &attr)?),
            AnyQp::Ud(_) => Err(Failure::new(
                BW_ETRANSPORT,
                "a queue pair of datagrams has no peer: call bw_qp_start",
            )),
        })
    })
}

/// Moves a queue pair for datagrams from INIT to RTS; each request names its destination. If `attr` is
/// NULL the defaults are used. When it fails the queue pair is in INIT or RTR: start again with
/// `bw_qp_reset`.
///
/// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ETRANSPORT` (connections: `bw_qp_connect`), `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_start(qp: *mut bw_qp, attr: *const bw_connect_attr) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        get_mut(qp, "queue pair")?.alone(|qp| Ok(qp.datagrams()?.start(&attr)?))
    })
}

/// Moves the queue pair to ERR, from any state: everything in flight is flushed, and reported by the
/// completion queues.
///
/// Errors: `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_to_error(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        get_mut(qp, "queue pair")?.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.to_error()?)))
    })
}

/// Called by `bw_qp_reset` for each request that was cleared, with the `context` given there and the
/// request's identifier. It has to return, and must not use the queue pair or its completion queues.
pub type bw_flushed_fn = Option<unsafe extern "C" fn(context: *mut c_void, wr_id: u64)>;

/// Moves the queue pair to RESET, from any state: clears both queues and their completions, as the verbs
/// specify. The requests that were not reported yet, rung or not, are reported here: `cleared`, unless
/// NULL, is called for each, sends first, oldest first. Whether the peer has received the requests that
/// were rung is not known; it has received none of the others. The next connection has another PSN: get
/// the endpoint anew (`bw_qp_endpoint`), and have the peer reset its queue pair, too.
///
/// Errors: `BW_ECQROOM` if other queue pairs have meanwhile taken completion queue entries that this
/// one had not reserved, `BW_EFATAL`, `BW_ENULL`.
/// Thread: the owner of the queue pair and of its completion queues: no other thread may poll them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_reset(
    qp: *mut bw_qp,
    cleared: bw_flushed_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let qp = unsafe { get_mut(qp, "queue pair")? };
        // SAFETY: both exist for as long as the queue pair uses them; the caller owns them.
        let cqs = unsafe { cqs(qp.send_cq, qp.recv_cq)? };
        let report = |wr_id| {
            if let Some(cleared) = cleared {
                // SAFETY: the program's callback, with the context that it gave.
                unsafe { cleared(context, wr_id) }
            }
        };
        // SAFETY: the header's conventions on threads. Requests posted from C have no block of a slab.
        unsafe {
            qp.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.reset(cqs, |wr_id, _| report(wr_id))?)))
        }
    })
}

/// Returns the device's state of the queue pair: a `bw_qp_state`, 0 or more. A failed request moves it
/// to ERR.
///
/// Errors: `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_get_state(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        get_mut(qp, "queue pair")?.alone(|qp| Ok(each!(AnyQp, qp, qp => qp.state())))
    })
}

/// Returns whether the last bytes of a message of this operation (a `bw_wr_opcode`) are placed last: 0 or 1. If
/// they are, a program may poll for them in the memory that the message goes to: at the peer, or here for a
/// READ.
///
/// If not, only a completion says that all bytes are there: at the peer of a BW_WR_RDMA_WRITE_WITH_IMM or a
/// SEND, and here of a READ. Of two messages, this says nothing. The software device places the last bytes
/// last. A device of libibverbs says so by `ibv_query_qp_data_in_order`, which is not in rdma-core before 36:
/// the result is 0 then. It is the answer of the local device: ask the device at both ends.
///
/// Errors: `BW_EINVAL` (no such operation), `BW_ESTATE` (the queue pair is on an id), `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_data_in_order(qp: *mut bw_qp, opcode: u32) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let qp = get_mut(qp, "queue pair")?;
        let operation = u8::try_from(opcode).ok().and_then(WrOpcode::from_number);
        let operation = operation.ok_or_else(|| {
            let text = format!("{opcode} is no bw_wr_opcode");
            Failure::new(BW_EINVAL, text)
        })?;
        qp.alone(|qp| {
            Ok(c_int::from(
                each!(AnyQp, qp, qp => qp.data_in_order(operation)),
            ))
        })
    })
}

/// Destroys a queue pair. Requests in flight, rung or not, are flushed, and still reported by the
/// completion queues. If the queue pair is on an id (`bw_cm_attach_qp`) only the handle is destroyed.
/// Waits until the asynchronous events that were taken for it are acknowledged.
///
/// Errors: `BW_ENULL`.
/// Thread: the queue pair's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_destroy(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(qp, "queue pair", |_| Ok(())) })
}
