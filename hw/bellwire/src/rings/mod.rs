//! The software HCA behind rings that another library posts to and polls.
//!
//! A device interface has two sides: the one that posts and polls, and the device, which reads the rings. The
//! crate's own queues are both. This module is the device's side alone, for a process in which another
//! library posts and polls in the ConnectX formats, and takes the software HCA for a NIC
//! (`tests/uverbs-preload` is such a device). Nothing is copied or translated: the HCA reads and writes the
//! entries in place.
//!
//! ```text
//! another library                               this module, and the thread of its user
//!   send entries, doorbell record ────────────► Qp::look_at_sends
//!   receive entries, doorbell record ─────────► the HCA, when a message comes
//!                                               Qp::look_at_receives, in the error state
//!   completion entries ◄──────────────────────  the HCA
//!   consumer record ──────────────────────────► the HCA
//!   arm record ───────────────────────────────► Cq::look_at_arm
//! ```
//!
//! The library's doorbell registers cannot notify this process by themselves: the user of this module watches
//! them, and calls the `look_at_` functions after a register was written, from one thread, which executes the
//! entries if the device is in [`Mode::Inline`](crate::soft::Mode).
//!
//! The contents of the rings are not trusted: sizes are bounded by the ring, and memory is accessed only by
//! keys.
//!
//! ```
//! use bellwire::be::Be32;
//! use bellwire::cqe::{Cqe64, CqeOpcode};
//! use bellwire::port::DoorbellRecord;
//! use bellwire::rings::{Cq, CqInit, Qp, QpInit, Receives, Ring};
//! use bellwire::state::{AhAttr, QpAttr, QpAttrMask, QpState};
//! use bellwire::wqe::{CtrlSegment, fm_ce_se, opcode};
//! use bellwire::{AccessFlags, Device, wr::QpType};
//! use std::ptr::NonNull;
//!
//! #[repr(align(64))]
//! struct Memory([u8; 1024]);
//! let (mut entries, mut sends) = (Memory([0; 1024]), Memory([0; 1024]));
//! let (mut cq_records, mut qp_records) = <([DoorbellRecord; 2], [DoorbellRecord; 2])>::default();
//! let pd = Device::soft(Default::default()).alloc_pd();
//!
//! let completions = NonNull::from(&mut entries.0).cast();
//! let cq_init = CqInit {
//!     ring: completions,
//!     count: 16,
//!     cqe_size: 64,
//!     records: NonNull::from(&mut cq_records),
//!     channel: None,
//! };
//! // SAFETY: the memory is declared before, and so goes after the queue.
//! let cq = unsafe { Cq::new(pd.device(), &cq_init)? };
//! let ring = Ring { start: NonNull::from(&mut sends.0).cast(), count: 16 };
//! let records = NonNull::from(&mut qp_records);
//! let qp_init = QpInit {
//!     transport: QpType::Rc,
//!     sends: Some(ring),
//!     receives: Receives::None,
//!     records,
//!     cqs: Some((&cq, &cq)),
//!     user_index: 77,
//! };
//! // SAFETY: the memory is declared before, and so goes after the queue pair.
//! let qp = unsafe { Qp::new(&pd, &qp_init)? };
//!
//! // As ibv_modify_qp takes it to RTS, connected with itself.
//! let mut attr = QpAttr {
//!     qp_state: QpState::Init,
//!     port_num: 1,
//!     qp_access_flags: AccessFlags::empty(),
//!     dest_qp_num: qp.qp_num(),
//!     ah_attr: AhAttr { port_num: 1, ..AhAttr::default() },
//!     ..QpAttr::default()
//! };
//! let state = QpAttrMask::STATE;
//! qp.modify(&attr, state | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS)?;
//! attr.qp_state = QpState::Rtr;
//! let path = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
//! let depth = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
//! qp.modify(&attr, state | path | depth)?;
//! attr.qp_state = QpState::Rts;
//! let retries = QpAttrMask::TIMEOUT | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY;
//! qp.modify(&attr, state | retries | QpAttrMask::SQ_PSN | QpAttrMask::MAX_QP_RD_ATOMIC)?;
//!
//! // What another library does: an entry, the record, and some bell.
//! let nop = CtrlSegment {
//!     opmod_idx_opcode: Be32::new(opcode::NOP.into()),
//!     qpn_ds: Be32::new(qp.qp_num() << 8 | 1),
//!     signature_flags: Be32::new(fm_ce_se::SIGNALED.into()),
//!     imm: Be32::new(0),
//! };
//! // SAFETY: the first entry, and the record of sends; the device does not look yet.
//! unsafe {
//!     ring.start.cast().write(nop);
//!     records.as_ref()[1].store(1);
//! }
//! qp.look_at_sends();
//! // SAFETY: the first entry of the ring, which was made for 16.
//! let entry = unsafe { Cqe64::read_owned(completions.cast(), 0, 16) }.expect("a completion");
//! assert_eq!((entry.opcode(), entry.user_index()), (CqeOpcode::Req, 77));
//! # Ok::<(), bellwire::Error>(())
//! ```

mod cq;
mod qp;
mod srq;

pub use cq::{Cq, CqInit};
pub use qp::{Qp, QpInit, Receives, Ring};
pub use srq::{Srq, SrqInit};

use crate::error::Error;

/// The error on a device that is not a software HCA.
const UNSUPPORTED: Error = Error::Unsupported {
    what: "use rings that another library writes",
    instead: "open \"soft\", the software HCA, which has them",
};

/// The error for a ring or a size that the format does not support.
fn does_not_fit(what: &'static str, given: u32, max: u32) -> Error {
    Error::TooLarge {
        what,
        given: given.into(),
        max: max.into(),
    }
}
