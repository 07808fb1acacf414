//! Queue pairs whose rings another library posts to.

use super::{Cq, Srq, UNSUPPORTED, does_not_fit};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::pd::Pd;
use crate::pinned::Pinned;
use crate::soft::{QpParts, RecvDoorbell, RecvParts, SendDoorbell};
use crate::xrcd::Xrcd;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wqe::{BASIC_BLOCK, RecvRing, SendRing};
use bellwire_core::wr::QpType;
use bellwire_provider::life::Life;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A ring of entries.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// The start of the ring.
    pub start: NonNull<u8>,
    /// The number of entries (for a send queue, of basic blocks), a power of two.
    pub count: u32,
}

/// The receive queue that a queue pair takes receives from.
#[derive(Clone, Copy, Debug)]
pub enum Receives<'a> {
    /// None.
    None,
    /// Its own ring, with entries of this many bytes.
    Own(Ring, u32),
    /// A shared receive queue.
    Shared(&'a Srq),
    /// The shared receive queue of this XRC domain that each request names: for an XRC target.
    Xrc(&'a Xrcd),
}

/// The attributes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// The transport.
    pub transport: QpType,
    /// The send ring, if it has one.
    pub sends: Option<Ring>,
    /// The receive queue.
    pub receives: Receives<'a>,
    /// The doorbell records: receives posted, sends posted.
    pub records: NonNull<[DoorbellRecord; 2]>,
    /// The completion queues of sends and of receives. An XRC target has none, and does not use them.
    pub cqs: Option<(&'a Cq, &'a Cq)>,
    /// The user index in its completions.
    pub user_index: u32,
}

/// A queue pair, seen from the device's side. Dropping it flushes posted requests, and destroys it.
#[derive(Debug)]
pub struct Qp {
    qpn: u32,
    user_index: u32,
    records: &'static [DoorbellRecord; 2],
    send: SendDoorbell,
    sends: Mutex<Sends>,
    receives: Option<Mutex<Posted>>,
    device: Device,
    // Kept until the queue pair is destroyed.
    kept: (Option<(Cq, Cq)>, Option<Srq>, Option<Xrcd>),
    _absent: Pinned,
}

/// The progress of the send queue.
#[derive(Debug, Default)]
struct Sends {
    counter: u32,
    /// The queue pair is in a life to which new entries belong.
    open: bool,
}

/// The doorbell record of a receive queue, as last read while receives are flushed.
#[derive(Debug)]
struct Posted {
    seen: u32,
    doorbell: RecvDoorbell,
}

const RECV: usize = 0;
const SEND: usize = 1;

impl Qp {
    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// The format does not support a size; an object belongs to another device; the device is not a software
    /// HCA; no number is left.
    ///
    /// # Safety
    /// Rings and records are valid for reads and writes until the queue pair is destroyed. One poster uses
    /// each of them, as it would use those of a ConnectX device.
    pub unsafe fn new(pd: &Pd, init: &QpInit<'_>) -> Result<Self, Error> {
        let device = pd.device();
        let hca = device.hca.soft().ok_or(UNSUPPORTED)?;
        check_devices(pd, init)?;
        // SAFETY: the caller guarantees that the records are valid until the queue pair is destroyed.
        let records: &'static [DoorbellRecord; 2] = unsafe { init.records.as_ref() };
        // A missing queue is replaced by a ring of one entry, followed by a doorbell record; it is never
        // posted to.
        let absent = Pinned::zeroed(2 * BASIC_BLOCK)?;
        // SAFETY: within the memory, which is zeroed, aligned, and kept below as long as it is used.
        let never: &'static DoorbellRecord =
            unsafe { &*absent.start().add(BASIC_BLOCK).cast().as_ptr() };
        let none = Ring {
            start: absent.start(),
            count: 1,
        };
        let target = init.transport == QpType::XrcRecv;
        let (send, recv) = match init.cqs {
            Some((send, recv)) if !target => {
                // SAFETY: both completion queues are kept below.
                let (send, recv) = unsafe { (send.ctx(), recv.ctx()) };
                let sends = init.sends.unwrap_or(none);
                // SAFETY: the ring is the caller's, and valid by the caller's guarantee, or our own memory.
                let ring = unsafe { SendRing::new(sends.start, sends.count) };
                let ring = ring.ok_or_else(|| does_not_fit("max_send_wr", sends.count, 1 << 15))?;
                (Some((ring, send)), Some(recv))
            }
            _ => (None, None),
        };
        let (own, stride, record) = match init.receives {
            Receives::Own(ring, stride) => (ring, stride, &records[RECV]),
            _ => (none, BASIC_BLOCK as u32, never),
        };
        let parts = match (init.receives, recv) {
            (Receives::Xrc(xrcd), _) => RecvParts::Xrc {
                domain: xrcd.soft()?.id(),
            },
            (_, None) => RecvParts::None,
            (Receives::None, _) if init.transport == QpType::XrcSend => RecvParts::None,
            (Receives::Shared(srq), Some(cq)) => RecvParts::Shared {
                // SAFETY: the shared receive queue is kept below.
                srq: unsafe { srq.ctx() },
                cq,
            },
            (Receives::Own(..) | Receives::None, Some(cq)) => RecvParts::Own {
                // SAFETY: the ring is the caller's, who guarantees that it is valid, or our own memory.
                ring: unsafe { RecvRing::new(own.start, own.count, stride) }
                    .ok_or_else(|| does_not_fit("max_recv_wr", own.count, 1 << 15))?,
                record,
                cq,
            },
        };
        let parts = QpParts {
            transport: init.transport,
            pd: if target { 0 } else { pd.id() },
            send,
            recv: parts,
            events: device.events.clone(),
        };
        let (qpn, ctx) = hca.create_qp(|_| Ok((parts, life(init.user_index))))?;
        (device.events.admit(Element::Qp(qpn))).inspect_err(|_| hca.destroy_qp(qpn))?;
        // SAFETY: both are dropped with the queue pair, which keeps the device.
        let (send, recv) = unsafe {
            (
                SendDoorbell::new(hca, ctx),
                RecvDoorbell::new(hca, ctx, qpn, record),
            )
        };
        let receives = matches!(init.receives, Receives::Own(..)).then(|| {
            Mutex::new(Posted {
                seen: record.load(),
                doorbell: recv,
            })
        });
        Ok(Self {
            qpn,
            user_index: init.user_index,
            records,
            send,
            sends: Mutex::default(),
            receives,
            device: device.clone(),
            kept: (
                init.cqs.map(|(send, recv)| (send.clone(), recv.clone())),
                match init.receives {
                    Receives::Shared(srq) => Some(srq.clone()),
                    _ => None,
                },
                match init.receives {
                    Receives::Xrc(xrcd) => Some(xrcd.clone()),
                    _ => None,
                },
            ),
            _absent: absent,
        })
    }

    /// The queue pair number.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// The completion queues of sends and of receives. An XRC target has none.
    pub fn cqs(&self) -> Option<(&Cq, &Cq)> {
        self.kept.0.as_ref().map(|(send, recv)| (send, recv))
    }

    /// Executes the sends that were posted, according to the doorbell record, since the last call.
    pub fn look_at_sends(&self) {
        let mut sends = self.sends();
        let posted = self.records[SEND].load() as u16;
        let new = posted.wrapping_sub(sends.counter as u16);
        if sends.open && new != 0 {
            sends.counter = sends.counter.wrapping_add(new.into());
            self.send.ring_up_to(sends.counter);
        }
    }

    /// If the queue pair is in ERR, flushes the receives that were posted since the last call. In other
    /// states the device reads the receive queue itself.
    pub fn look_at_receives(&self) {
        let Some(receives) = &self.receives else {
            return;
        };
        let mut posted = receives.lock().unwrap_or_else(PoisonError::into_inner);
        if posted.doorbell.flushes() {
            let now = self.records[RECV].load();
            if now != posted.seen {
                posted.seen = now;
                posted.doorbell.flush();
            }
        }
    }

    /// Changes state and attributes (`ibv_modify_qp`); returns the state. After a transition to RESET, the
    /// poster starts again at zero, in rings and records.
    ///
    /// # Errors
    /// [`Error::Modify`] says which attribute is missing, not allowed, or out of range.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, Error> {
        let mut sends = self.sends();
        let state = self.device.hca.modify_qp(self.qpn, attr, mask)?;
        match state {
            QpState::Reset => {
                self.device.hca.restart(self.qpn, life(self.user_index));
                *sends = Sends::default();
            }
            QpState::Init | QpState::Rtr => {}
            _ => sends.open = true,
        }
        Ok(state)
    }

    /// Queries state and attributes (`ibv_query_qp`).
    ///
    /// # Errors
    /// None, as long as the queue pair exists.
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.device.hca.query_qp(self.qpn)
    }

    /// Attaches the queue pair to a multicast group (`ibv_attach_mcast`).
    ///
    /// # Errors
    /// The queue pair is not for datagrams, the group is invalid, or it has too many members.
    pub fn attach_mcast(&self, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.device.hca.attach_mcast(self.qpn, gid, lid)
    }

    /// Detaches the queue pair from a multicast group (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// [`Error::NotAttached`].
    pub fn detach_mcast(&self, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.device.hca.detach_mcast(self.qpn, gid, lid)
    }

    fn sends(&self) -> MutexGuard<'_, Sends> {
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.device.is_inherited() {
            return;
        }
        self.device.hca.destroy_qp(self.qpn);
        self.device.events.retire(Element::Qp(self.qpn));
    }
}

/// Each life starts at zero: the poster's counters have 16 bits.
fn life(user_index: u32) -> Life {
    Life {
        send_start: 0,
        send_user_index: user_index,
        recv_user_index: user_index,
    }
}

fn check_devices(pd: &Pd, init: &QpInit<'_>) -> Result<(), Error> {
    let device = pd.device();
    let what = match (init.cqs, init.receives) {
        (Some((a, b)), _) if !(a.is_of(device) && b.is_of(device)) => "completion queue",
        (_, Receives::Shared(srq)) if !srq.is_of(pd) => "shared receive queue",
        (_, Receives::Xrc(xrcd)) if !xrcd.device().hca.is_same(&device.hca) => "XRC domain",
        _ => return Ok(()),
    };
    Err(Error::Foreign { what })
}
