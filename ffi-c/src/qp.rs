//! Queue pairs. Posting is in `post`, what they are made of in `qp_attr`, changing them step by step
//! in `modify`.

use crate::code::{BW_ESTATE, BW_ETRANSPORT};
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
use hw::{Cqs, QpRecvQueue};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

// The send queue and the receive queue may be used by two threads at once. So the data path must not
// make a reference to the whole of `qp`: it takes one of the two pointers, which are made anew after
// each call that had such a reference.
/// A queue pair, of any transport.
#[derive(Debug)]
pub struct bw_qp {
    pub(crate) sq: AnySq,
    pub(crate) rq: *mut QpRecvQueue,
    pub(crate) in_sq: Entered,
    pub(crate) in_rq: Entered,
    /// NULL while it is on an id, which is of this number.
    qp: *mut AnyQp,
    away: u32,
    send_cq: *mut bw_cq,
    recv_cq: *mut bw_cq,
    _users: Vec<User>,
}

impl bw_qp {
    /// Of what transport it is, while it is here.
    pub(crate) fn kind(&self) -> Option<Kind> {
        // SAFETY: NULL, or from `Box::into_raw`; nobody changes it meanwhile.
        unsafe { self.qp.as_ref() }.map(AnyQp::kind)
    }

    /// Runs a call that is alone on the queue pair.
    ///
    /// # Safety
    /// It is alone.
    pub(crate) unsafe fn alone<R>(
        &mut self,
        call: impl FnOnce(&mut AnyQp) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        // SAFETY: NULL, or from `Box::into_raw` and freed in `drop`; alone by the caller's promise.
        let Some(qp) = (unsafe { self.qp.as_mut() }) else {
            let text = "the queue pair is on an id: bw_cm_take_qp takes it back";
            return Err(Failure::new(BW_ESTATE, text));
        };
        let result = call(qp);
        (self.sq, self.rq) = qp.split();
        result
    }
}

impl bw_qp {
    /// What it did last.
    ///
    /// # Safety
    /// The call is alone on the queue pair and its completion queues.
    pub(crate) unsafe fn dump(&mut self, options: &DumpOptions) -> Result<Record, Failure> {
        // SAFETY: both are there for as long as the queue pair uses them; alone by the caller's promise.
        let cqs = unsafe { cqs(self.send_cq, self.recv_cq)? };
        // SAFETY: as above.
        unsafe { self.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.dump(cqs, options)?))) }
    }

    /// Remembers what happened to it.
    ///
    /// # Safety
    /// The call is alone on the queue pair.
    pub(crate) unsafe fn note(&mut self, text: String) -> Result<(), Failure> {
        let note = |qp: &mut AnyQp| {
            each!(AnyQp, qp, qp => qp.note(text));
            Ok(())
        };
        // SAFETY: the caller's promise.
        unsafe { self.alone(note) }
    }
}

impl bw_qp {
    /// Takes the queue pair out of its handle.
    pub(crate) fn send_away(&mut self) -> Result<AnyQp, Failure> {
        // SAFETY: NULL, or from `Box::into_raw`, and the handle is here, exclusively.
        let Some(there) = (unsafe { self.qp.as_ref() }) else {
            return Err(Failure::new(BW_ESTATE, "the queue pair is on an id"));
        };
        self.away = each!(AnyQp, there, qp => qp.qp_num());
        let qp = std::mem::replace(&mut self.qp, null_mut());
        (self.sq, self.rq) = (AnySq::Rc(null_mut()), null_mut());
        // SAFETY: from `Box::into_raw`, and forgotten there.
        Ok(*unsafe { Box::from_raw(qp) })
    }

    /// Takes it back; gives one that is another.
    pub(crate) fn take_back(&mut self, qp: AnyQp) -> Result<(), Box<AnyQp>> {
        let number = each!(AnyQp, &qp, qp => qp.qp_num());
        if !self.qp.is_null() || self.away != number {
            return Err(Box::new(qp));
        }
        let qp = Box::into_raw(Box::new(qp));
        self.qp = qp;
        // SAFETY: just made.
        (self.sq, self.rq) = unsafe { (*qp).split() };
        Ok(())
    }
}

impl Drop for bw_qp {
    fn drop(&mut self) {
        if !self.qp.is_null() {
            // SAFETY: from `Box::into_raw`, and nobody uses it any more.
            drop(unsafe { Box::from_raw(self.qp) });
        }
    }
}

/// The completion queues as the library takes them: one for both directions, or two.
///
/// # Safety
/// Both are handles of completion queues that nobody else uses meanwhile.
unsafe fn cqs<'a>(send: *mut bw_cq, recv: *mut bw_cq) -> Result<Cqs<'a>, Failure> {
    // SAFETY: the caller's promise; two references only to two of them.
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
/// same; an XRC initiator has no receives, and `recv_cq` may be NULL. `attr` may be NULL: the default.
///
/// Owner: the caller, until `bw_qp_destroy`. It keeps the protection domain, the completion queues
/// and the shared receive queue.
/// Errors: `BW_ELIMIT`, `BW_EINVAL`, `BW_ECQROOM`, `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the owner of both completion queues and of the shared receive queue: nobody may poll, or
/// post to it, meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_create(
    pd: *const bw_pd,
    send_cq: *mut bw_cq,
    recv_cq: *mut bw_cq,
    attr: *const bw_qp_init_attr,
    qp: *mut *mut bw_qp,
) -> c_int {
    let make = || {
        // SAFETY: the header on handles and sized structs.
        let (pd, attr) = unsafe { (get(pd, "protection domain")?, sized::read_or_default(attr)?) };
        sized::zero("reserved", attr.reserved | attr.reserved1)?;
        let kind = Kind::from_number(attr.qp_type)?;
        let recv_cq = if kind == Kind::Xrc { send_cq } else { recv_cq };
        // SAFETY: the header on handles; the caller owns the queues.
        let (cqs, srq) = unsafe { (cqs(send_cq, recv_cq)?, attr.srq.as_ref()) };
        let made = AnyQp::create(kind, &pd.pd, cqs, srq.map(|srq| &srq.srq), &attr.into())?;
        // SAFETY: as above; checked.
        let mut users = unsafe { vec![(*send_cq).used.by(), (*recv_cq).used.by()] };
        users.push(pd.used.by());
        users.extend(srq.map(|srq| srq.used.by()));
        let qp = Box::into_raw(Box::new(made));
        // SAFETY: just made.
        let (sq, rq) = unsafe { (*qp).split() };
        Ok(bw_qp {
            sq,
            rq,
            in_sq: Entered::default(),
            in_rq: Entered::default(),
            qp,
            away: 0,
            send_cq,
            recv_cq,
            _users: users,
        })
    };
    // SAFETY: the header on results.
    unsafe { give(qp, make) }
}

/// What to bring to the peer, by any means. Set `endpoint->size` before.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_endpoint(qp: *mut bw_qp, endpoint: *mut bw_endpoint) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let ours =
            get_mut(qp, "queue pair")?.alone(|qp| Ok(each!(AnyQp, qp, qp => qp.endpoint())))?;
        sized::write(endpoint, &ours.into())
    })
}

/// As `bw_qp_endpoint`, for a peer that is to be connected with in this way: by `attr->port_num` and
/// `attr->gid_index`. `attr` may be NULL: the default. Set `endpoint->size` before.
///
/// Errors: `BW_EINVAL`, for a port or an entry that there is not, too; `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_endpoint_for(
    qp: *mut bw_qp,
    attr: *const bw_connect_attr,
    endpoint: *mut bw_endpoint,
) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        let ours = get_mut(qp, "queue pair")?.alone(|qp| {
            each!(AnyQp, qp, qp => {
                // What there is not an endpoint has as zero.
                let gid_index = attr.gid_index.unwrap_or(0);
                qp.pd().device().query_gid(attr.port_num, gid_index.into())?;
                Ok(qp.endpoint_for(&attr))
            })
        })?;
        sized::write(endpoint, &ours.into())
    })
}

/// From RESET to INIT: receives may be posted from here on, and should be before the peer connects.
/// `attr` may be NULL: the default.
///
/// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_init(qp: *mut bw_qp, attr: *const bw_connect_attr) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        get_mut(qp, "queue pair")?.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.init(&attr)?)))
    })
}

/// From INIT to RTS, connected with `peer`: requests may be posted from here on. The peer of an XRC
/// initiator is a `bw_xrc_target`. `attr` may be NULL: the default. When it fails the queue pair is in
/// INIT or in RTR: `bw_qp_reset` starts anew.
///
/// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ETRANSPORT` (datagrams: `bw_qp_start`), `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_connect(
    qp: *mut bw_qp,
    peer: *const bw_endpoint,
    attr: *const bw_connect_attr,
) -> c_int {
    // SAFETY: the header on handles and sized structs.
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

/// From INIT to RTS, of datagrams: they go to whom each request names. `attr` may be NULL: the
/// default. When it fails the queue pair is in INIT or in RTR: `bw_qp_reset` starts anew.
///
/// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ETRANSPORT` (connections: `bw_qp_connect`), `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_start(qp: *mut bw_qp, attr: *const bw_connect_attr) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let attr = sized::read_or_default(attr)?.checked()?;
        get_mut(qp, "queue pair")?.alone(|qp| Ok(qp.datagrams()?.start(&attr)?))
    })
}

/// To ERR, from any state: everything in flight is flushed, and told by the completion
/// queues.
///
/// Errors: `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_to_error(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        get_mut(qp, "queue pair")?.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.to_error()?)))
    })
}

/// Called by `bw_qp_reset` for each request that was cleared: `context` as given there, and the
/// request's identifier. It has to return, and must not use the queue pair or its completion queues.
pub type bw_cleared_fn = Option<unsafe extern "C" fn(context: *mut c_void, wr_id: u64)>;

/// To RESET, from any state: clears both queues and their completions, as the verbs have it. The
/// requests that were not told yet are told here: `cleared`, unless NULL, is called for each, sends
/// first, oldest first. What the peer has seen of them is not known.
///
/// Errors: `BW_ECQROOM` when other queue pairs took the room meanwhile that this one had not
/// reserved, `BW_ENULL`.
/// Thread: the owner of the queue pair and of its completion queues: nobody may poll them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_reset(
    qp: *mut bw_qp,
    cleared: bw_cleared_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let qp = unsafe { get_mut(qp, "queue pair")? };
        // SAFETY: both are there for as long as the queue pair uses them; the caller owns them.
        let cqs = unsafe { cqs(qp.send_cq, qp.recv_cq)? };
        let tell = |wr_id| {
            if let Some(cleared) = cleared {
                // SAFETY: the program's own.
                unsafe { cleared(context, wr_id) }
            }
        };
        // SAFETY: the header on threads. What C posts has no block of a slab.
        unsafe { qp.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.reset(cqs, |wr_id, _| tell(wr_id))?))) }
    })
}

/// The device's state of the queue pair: a `bw_qp_state`, 0 or more. A failed request takes it to
/// ERR.
///
/// Errors: `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_get_state(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        get_mut(qp, "queue pair")?.alone(|qp| Ok(each!(AnyQp, qp, qp => qp.state())))
    })
}

/// Destroys a queue pair. What is in flight is flushed, and still told by the completion queues; what
/// was posted and not rung is not. Of one that is on an id (`bw_cm_put_qp`) only the handle goes. Waits until its asynchronous events that were got are acknowledged.
///
/// Errors: `BW_ENULL`.
/// Thread: the queue pair's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_destroy(qp: *mut bw_qp) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { take(qp, "queue pair", |_| Ok(())) })
}
