//! LOCAL_INV and BIND_MW, which the device executes as memory registration work (UMR).

use super::build::EntryWriter;
use super::operation::{LocalInv, Operation, Sealed};
use super::segment::{BASIC_BLOCK, DataSegment, SEGMENT};
use super::view::SendWqe;
use crate::be::{Be16, Be32, Be64};
use crate::op::{WrOpcode, opcode};
use crate::wr::MwType;
use core::mem::offset_of;
use static_assertions::const_assert_eq;

const FLAG_CHECK_QPN: u8 = 1 << 3;
const FLAG_TRANSLATION_OFFSET: u8 = 1 << 4;
const FLAG_CHECK_FREE: u8 = 1 << 5;
const FLAG_INLINE: u8 = 1 << 7;

const MASK_LEN: u64 = 1 << 0;
const MASK_START_ADDR: u64 = 1 << 6;
const MASK_MKEY: u64 = 1 << 13;
const MASK_QPN: u64 = 1 << 14;
const MASK_ACCESS: u64 = 0b1111 << 18;
const MASK_FREE: u64 = 1 << 29;

/// The fields that an unbind of either type changes, and those that a bind changes.
const MASK_UNBIND: u64 = MASK_FREE | MASK_MKEY;
const MASK_BIND: u64 = MASK_UNBIND | MASK_LEN | MASK_START_ADDR | MASK_ACCESS;

const FLAGS: u8 = FLAG_INLINE | FLAG_TRANSLATION_OFFSET;

/// `IBV_ACCESS_ZERO_BASED`: addresses are offsets from the start of the window.
const ZERO_BASED: u32 = 1 << 5;

const MKEY_FREE: u8 = 1 << 6;

/// The fields of the memory key that the UMR changes.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
struct UmrCtrlSegment {
    flags: u8,
    reserved0: [u8; 3],
    klm_octowords: Be16,
    translation_offset: Be16,
    mkey_mask: Be64,
    reserved1: [u8; 32],
}

/// The new values of these fields.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
struct MkeyContextSegment {
    free: u8,
    reserved1: u8,
    access_flags: u8,
    sf: u8,
    qpn_mkey: Be32,
    reserved2: Be32,
    flags_pd: Be32,
    start_addr: Be64,
    len: Be64,
    bsf_octword_size: Be32,
    reserved3: [Be32; 4],
    translations_octword_size: Be32,
    reserved4: [u8; 3],
    log_page_size: u8,
    reserved: Be32,
}

/// The memory that the window covers, padded to a block.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
struct KlmSegment {
    klm: DataSegment,
    padding: [u64; 6],
}

const_assert_eq!(size_of::<UmrCtrlSegment>(), 3 * SEGMENT);
const_assert_eq!(size_of::<MkeyContextSegment>(), BASIC_BLOCK);
const_assert_eq!(size_of::<KlmSegment>(), BASIC_BLOCK);

/// Bytes of the segments of an unbind or invalidation.
const UNBIND_SEGMENTS: usize = size_of::<UmrCtrlSegment>() + size_of::<MkeyContextSegment>();

/// Size of the KLM as given in the WQE, padded.
const KLM_OCTOWORDS: u16 = 4;

/// The bits of `qpn_mkey` that mean "bound to no queue pair".
const NO_QPN: u32 = 0xffff_ff00;

impl Sealed for LocalInv {}

impl Operation for LocalInv {
    const OPERATION: WrOpcode = WrOpcode::LocalInv;
    const SEGMENTS: usize = UNBIND_SEGMENTS;

    #[inline(always)]
    fn imm(&self) -> Be32 {
        Be32::new(self.rkey)
    }

    #[inline(always)]
    fn write(&self, _qpn: u32, entry: &mut EntryWriter, offset: usize) {
        write_unbind(MwType::Type2, 0, entry, offset);
    }
}

/// Only type 2 windows belong to a queue pair.
const fn mask_qpn(mw_type: MwType) -> u64 {
    match mw_type {
        MwType::Type1 => 0,
        MwType::Type2 => MASK_QPN,
    }
}

/// The UMR flags: for type 2 windows with the check `check` by the device.
const fn flags(mw_type: MwType, check: u8) -> u8 {
    match mw_type {
        MwType::Type1 => FLAGS,
        MwType::Type2 => FLAGS | check,
    }
}

#[inline(always)]
fn write_unbind(mw_type: MwType, new_rkey: u32, entry: &mut EntryWriter, offset: usize) {
    entry.put(
        offset,
        UmrCtrlSegment {
            flags: flags(mw_type, FLAG_CHECK_QPN),
            mkey_mask: Be64::new(MASK_UNBIND | mask_qpn(mw_type)),
            ..Default::default()
        },
    );
    entry.put(
        offset + size_of::<UmrCtrlSegment>(),
        MkeyContextSegment {
            free: MKEY_FREE,
            qpn_mkey: Be32::new(NO_QPN | new_rkey & 0xff),
            ..Default::default()
        },
    );
}

#[inline(always)]
fn write_bind(
    mw_type: MwType,
    qpn: u32,
    new_rkey: u32,
    info: &BindMwInfo,
    entry: &mut EntryWriter,
    offset: usize,
) {
    let zero_based = info.access & ZERO_BASED != 0;
    let owner = match mw_type {
        MwType::Type1 => NO_QPN,
        MwType::Type2 => qpn << 8,
    };
    entry.put(
        offset,
        UmrCtrlSegment {
            flags: flags(mw_type, FLAG_CHECK_FREE),
            klm_octowords: Be16::new(KLM_OCTOWORDS),
            mkey_mask: Be64::new(MASK_BIND | mask_qpn(mw_type)),
            ..Default::default()
        },
    );
    entry.put(
        offset + size_of::<UmrCtrlSegment>(),
        MkeyContextSegment {
            access_flags: mkey_access(info.access),
            qpn_mkey: Be32::new(owner | new_rkey & 0xff),
            start_addr: Be64::new(if zero_based { 0 } else { info.addr }),
            len: Be64::new(u64::from(info.length)),
            ..Default::default()
        },
    );
    entry.put(
        offset + UNBIND_SEGMENTS,
        KlmSegment {
            klm: DataSegment {
                byte_count: Be32::new(info.length),
                lkey: Be32::new(info.lkey),
                addr: Be64::new(info.addr),
            },
            padding: [0; 6],
        },
    );
}

/// The memory to which a memory window is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindMwInfo {
    /// The lkey of the memory region that contains the window.
    pub lkey: u32,
    /// Start address of the window.
    pub addr: u64,
    /// Bytes of the window, 1 to 2 GiB.
    pub length: u32,
    /// LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC and ZERO_BASED in the bits of
    /// `ibv_access_flags` (1, 4, 2, 8 and 32); others are ignored.
    pub access: u32,
}

macro_rules! windows {
    ($($bind:ident, $unbind:ident = $mw_type:ident, $bind_doc:literal, $unbind_doc:literal;)*) => {$(
        #[doc = $bind_doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $bind {
            /// The window's current rkey.
            pub mw_rkey: u32,
            /// Its new rkey, which differs only in the low byte.
            pub new_rkey: u32,
            /// The memory to which it is bound.
            pub info: BindMwInfo,
        }

        impl Sealed for $bind {}

        impl Operation for $bind {
            const OPERATION: WrOpcode = WrOpcode::BindMw;
            const SEGMENTS: usize = UNBIND_SEGMENTS + size_of::<KlmSegment>();

            #[inline(always)]
            fn imm(&self) -> Be32 {
                Be32::new(self.mw_rkey)
            }

            #[inline(always)]
            fn write(&self, qpn: u32, entry: &mut EntryWriter, offset: usize) {
                write_bind(MwType::$mw_type, qpn, self.new_rkey, &self.info, entry, offset);
            }
        }

        #[doc = $unbind_doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $unbind {
            /// The window's current rkey.
            pub mw_rkey: u32,
            /// Its new rkey, which differs only in the low byte.
            pub new_rkey: u32,
        }

        impl Sealed for $unbind {}

        impl Operation for $unbind {
            const OPERATION: WrOpcode = WrOpcode::BindMw;
            const SEGMENTS: usize = UNBIND_SEGMENTS;

            #[inline(always)]
            fn imm(&self) -> Be32 {
                Be32::new(self.mw_rkey)
            }

            #[inline(always)]
            fn write(&self, _qpn: u32, entry: &mut EntryWriter, offset: usize) {
                write_unbind(MwType::$mw_type, self.new_rkey, entry, offset);
            }
        }
    )*};
}

windows! {
    BindMw, UnbindMw = Type2,
        "Bind a type 2 memory window.",
        "Unbind a type 2 memory window. With a low byte of zero in the new key the entry is that of \
         [`LocalInv`], which leaves the key as it is.";
    BindMwType1, UnbindMwType1 = Type1,
        "Bind a type 1 memory window, in place of what it was bound to (`ibv_bind_mw`).",
        "Unbind a type 1 memory window (`ibv_bind_mw` of length zero).";
}

/// Converts `ibv_access_flags` to the access bits of the key context.
const fn mkey_access(access: u32) -> u8 {
    ((access & 1) << 3 | (access & 4) << 2 | (access & 2) << 4 | (access & 8) << 3) as u8
}

/// The inverse of [`mkey_access`].
const fn verbs_access(mkey: u8) -> u32 {
    let mkey = mkey as u32;
    mkey >> 3 & 1 | mkey >> 2 & 4 | mkey >> 4 & 2 | mkey >> 3 & 8
}

/// All access bits that [`mkey_access`] can set.
const MKEY_ACCESS: u8 = mkey_access(0b1111);

/// UMR work, as decoded by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Umr {
    /// [`LocalInv`].
    LocalInv {
        /// The key to invalidate.
        rkey: u32,
    },
    /// [`BindMw`], [`BindMwType1`].
    Bind {
        /// The type of the window.
        mw_type: MwType,
        /// The window's current rkey.
        mw_rkey: u32,
        /// Its new rkey, which differs at most in the low byte.
        new_rkey: u32,
        /// The memory to which it is bound. Not checked, except that only the five access bits that
        /// a window can have are set.
        info: BindMwInfo,
    },
    /// [`UnbindMw`], [`UnbindMwType1`].
    Unbind {
        /// The type of the window.
        mw_type: MwType,
        /// The window's current rkey.
        mw_rkey: u32,
        /// Its new rkey, which differs at most in the low byte.
        new_rkey: u32,
    },
}

impl Umr {
    /// The operation that it is.
    pub const fn operation(&self) -> WrOpcode {
        match self {
            Self::LocalInv { .. } => WrOpcode::LocalInv,
            Self::Bind { .. } | Self::Unbind { .. } => WrOpcode::BindMw,
        }
    }

    /// Byte offset of the posting queue pair's number in the WQE, where it is also outside the
    /// control segment.
    pub(super) fn owner_offset(&self) -> Option<usize> {
        let owned = matches!(
            self,
            Self::Bind {
                mw_type: MwType::Type2,
                ..
            }
        );
        let context = SEGMENT + size_of::<UmrCtrlSegment>();
        owned.then_some(context + offset_of!(MkeyContextSegment, qpn_mkey))
    }

    /// Decodes a WQE; `None` where it is none that the builders of this module make.
    pub(super) fn read(wqe: &SendWqe<'_>) -> Option<Self> {
        if wqe.opcode() != opcode::UMR || (wqe.ds() as usize) * SEGMENT < SEGMENT + UNBIND_SEGMENTS
        {
            return None;
        }
        // SAFETY: both segments are plain integers, for which every bit pattern is valid.
        let (ctrl, mkey) = unsafe {
            let ctrl: UmrCtrlSegment = wqe.segment(SEGMENT);
            let mkey: MkeyContextSegment = wqe.segment(SEGMENT + size_of::<UmrCtrlSegment>());
            (ctrl, mkey)
        };
        let mask = ctrl.mkey_mask.get();
        let mw_type = if mask & MASK_QPN == 0 {
            MwType::Type1
        } else {
            MwType::Type2
        };
        let mw_rkey = wqe.imm().get();
        let (owner, variant) = (mkey.qpn_mkey.get() & !0xff, mkey.qpn_mkey.get() & 0xff);
        let new_rkey = mw_rkey & !0xff | variant;
        let octowords = ctrl.klm_octowords.get();
        if mask & !MASK_QPN == MASK_UNBIND {
            let known = ctrl.flags == flags(mw_type, FLAG_CHECK_QPN)
                && (octowords, mkey.free, owner) == (0, MKEY_FREE, NO_QPN);
            return known.then_some(match (mw_type, variant) {
                (MwType::Type2, 0) => Self::LocalInv { rkey: mw_rkey },
                _ => Self::Unbind {
                    mw_type,
                    mw_rkey,
                    new_rkey,
                },
            });
        }
        if (wqe.ds() as usize) * SEGMENT < SEGMENT + UNBIND_SEGMENTS + size_of::<KlmSegment>() {
            return None;
        }
        // SAFETY: the segment is plain integers, for which every bit pattern is valid.
        let klm = unsafe { wqe.segment::<KlmSegment>(SEGMENT + UNBIND_SEGMENTS) }.klm;
        let (addr, start) = (klm.addr.get(), mkey.start_addr.get());
        let expected = match mw_type {
            MwType::Type1 => NO_QPN,
            MwType::Type2 => wqe.qpn() << 8,
        };
        let known = mask & !MASK_QPN == MASK_BIND
            && ctrl.flags == flags(mw_type, FLAG_CHECK_FREE)
            && (octowords, mkey.free, owner) == (KLM_OCTOWORDS, 0, expected)
            && mkey.access_flags & !MKEY_ACCESS == 0
            && mkey.len.get() == u64::from(klm.byte_count.get())
            && (start == 0 || start == addr);
        let zero_based = if start == addr { 0 } else { ZERO_BASED };
        known.then_some(Self::Bind {
            mw_type,
            mw_rkey,
            new_rkey,
            info: BindMwInfo {
                lkey: klm.lkey.get(),
                addr,
                length: klm.byte_count.get(),
                access: verbs_access(mkey.access_flags) | zero_based,
            },
        })
    }
}
