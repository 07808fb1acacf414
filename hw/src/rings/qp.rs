//! Queue pairs whose rings are somebody else's.

use super::{Cq, Srq, does_not_fit};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::pd::Pd;
use crate::pinned::Pinned;
use crate::soft::{Life, QpParts, RecvDoorbell, RecvParts, SendDoorbell};
use crate::xrcd::Xrcd;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState};
use bellwire_core::wqe::{BASIC_BLOCK, RecvRing, SendRing};
use bellwire_core::wr::QpType;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A ring of entries.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Where it starts.
    pub start: NonNull<u8>,
    /// Entries (of a send queue, basic blocks), a power of two.
    pub count: u32,
}

/// Where a queue pair's receives come from.
#[derive(Clone, Copy, Debug)]
pub enum Receives<'a> {
    /// From nowhere.
    None,
    /// From its own ring, of entries of so many bytes.
    Own(Ring, u32),
    /// From a shared receive queue.
    Shared(&'a Srq),
    /// From the shared receive queue of this domain that each request names: an XRC target.
    Xrc(&'a Xrcd),
}

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Its transport.
    pub transport: QpType,
    /// Its send ring, if it has one.
    pub sends: Option<Ring>,
    /// Its receives.
    pub receives: Receives<'a>,
    /// Two words: receives posted, sends posted.
    pub records: NonNull<[DoorbellRecord; 2]>,
    /// Where sends, and receives, complete. An XRC target completes nowhere, and neither is used.
    pub cqs: Option<(&'a Cq, &'a Cq)>,
    /// How completions name it.
    pub user_index: u32,
}

/// A queue pair as its device has it. Dropping it flushes what was posted, and takes it away.
#[derive(Debug)]
pub struct Qp {
    qpn: u32,
    user_index: u32,
    records: &'static [DoorbellRecord; 2],
    send: SendDoorbell,
    sends: Mutex<Sends>,
    receives: Option<Mutex<Posted>>,
    device: Device,
    // Kept until the queue pair is gone.
    kept: (Option<(Cq, Cq)>, Option<Srq>, Option<Xrcd>),
    _absent: Pinned,
}

/// What the device has been told of the send queue.
#[derive(Debug, Default)]
struct Sends {
    counter: u32,
    /// There is a life that entries can be of.
    open: bool,
}

/// A receive queue's record, as it was last seen while receives are flushed.
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
    /// Sizes that the format does not have; objects of another device; another device than a software
    /// HCA; no number left.
    ///
    /// # Safety
    /// Rings and records are valid for reads and writes until the queue pair is gone. One poster uses
    /// each, as a ConnectX device's are used.
    pub unsafe fn new(pd: &Pd, init: &QpInit<'_>) -> Result<Self, Error> {
        let device = pd.device();
        let hca = device.hca.soft("rings of somebody else's")?;
        check_devices(pd, init)?;
        // SAFETY: the caller's promise.
        let records: &'static [DoorbellRecord; 2] = unsafe { init.records.as_ref() };
        // What is not there is a ring of one entry to which nobody posts, with a record behind it.
        let absent = Pinned::zeroed(2 * BASIC_BLOCK);
        // SAFETY: within the memory, zeroed, aligned; kept below as long as it is used.
        let never: &'static DoorbellRecord =
            unsafe { &*absent.start().add(BASIC_BLOCK).cast().as_ptr() };
        let none = Ring {
            start: absent.start(),
            count: 1,
        };
        let target = init.transport == QpType::XrcRecv;
        let (send, recv) = match init.cqs {
            Some((send, recv)) if !target => {
                // SAFETY: both are kept below.
                let (send, recv) = unsafe { (send.ctx(), recv.ctx()) };
                let sends = init.sends.unwrap_or(none);
                // SAFETY: the caller's promise, or our own memory.
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
                // SAFETY: kept below.
                srq: unsafe { srq.ctx() },
                cq,
            },
            (Receives::Own(..) | Receives::None, Some(cq)) => RecvParts::Own {
                // SAFETY: the caller's promise, or our own memory.
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
        device.events.admit(Element::Qp(qpn));
        // SAFETY: both go with the queue pair, which holds the device.
        let (send, recv) = unsafe {
            (
                SendDoorbell::new(hca, ctx, qpn),
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

    /// Its number.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// Where its sends, and its receives, complete. An XRC target completes nowhere.
    pub fn cqs(&self) -> Option<(&Cq, &Cq)> {
        self.kept.0.as_ref().map(|(send, recv)| (send, recv))
    }

    /// Executes what the send record says was posted since it was last looked at.
    pub fn look_at_sends(&self) {
        let mut sends = self.sends();
        let posted = self.records[SEND].load() as u16;
        let new = posted.wrapping_sub(sends.counter as u16);
        if sends.open && new != 0 {
            sends.counter = sends.counter.wrapping_add(new.into());
            self.send.ring_up_to(sends.counter);
        }
    }

    /// Flushes what was posted to the receive queue since it was last looked at, if the queue pair is
    /// in the error state. Else the device looks by itself.
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

    /// Changes state and attributes (`ibv_modify_qp`); gives the state that it is in. After a RESET
    /// the poster starts again at zero, in rings and records.
    ///
    /// # Errors
    /// [`Error::Modify`] names what is missing, not allowed or out of range.
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

    /// State and attributes (`ibv_query_qp`).
    ///
    /// # Errors
    /// Never, while the queue pair is there.
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.device.hca.query_qp(self.qpn)
    }

    /// Makes it a member of a multicast group (`ibv_attach_mcast`).
    ///
    /// # Errors
    /// No datagrams, no such group, or too many members.
    pub fn attach_mcast(&self, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        self.device.hca.attach_mcast(self.qpn, gid, lid)
    }

    /// Takes it out of a multicast group (`ibv_detach_mcast`).
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
        self.device.hca.destroy_qp(self.qpn);
        self.device.events.retire(Element::Qp(self.qpn));
    }
}

/// Each life starts at zero: the counters of whoever posts have 16 bits.
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
