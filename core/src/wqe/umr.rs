//! LOCAL_INV and BIND_MW: the device takes both as memory registration work (UMR).

use super::build::EntryWriter;
use super::operation::{LocalInv, Operation, Sealed};
use super::segment::{BASIC_BLOCK, DataSegment, SEGMENT, opcode};
use super::view::SendWqe;
use crate::be::{Be16, Be32, Be64};
use crate::wr::WcOpcode;
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

/// `IBV_ACCESS_ZERO_BASED`: addresses within the window count from its start.
const ZERO_BASED: u32 = 1 << 5;

const MKEY_FREE: u8 = 1 << 6;

/// What is to change in the key.
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

/// The key's new content.
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

/// What the window lies in, padded to a block.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
struct KlmSegment {
    klm: DataSegment,
    padding: [u64; 6],
}

const_assert_eq!(size_of::<UmrCtrlSegment>(), 3 * SEGMENT);
const_assert_eq!(size_of::<MkeyContextSegment>(), BASIC_BLOCK);
const_assert_eq!(size_of::<KlmSegment>(), BASIC_BLOCK);

/// Bytes of what takes a key away.
const UNBIND_SEGMENTS: usize = size_of::<UmrCtrlSegment>() + size_of::<MkeyContextSegment>();

/// The bits of `qpn_mkey` that say "bound to no queue pair".
const NO_QPN: u32 = 0xffff_ff00;

impl Sealed for LocalInv {}

impl Operation for LocalInv {
    const OPCODE: u8 = opcode::UMR;
    const WC: WcOpcode = WcOpcode::LocalInv;
    const SEGMENTS: usize = UNBIND_SEGMENTS;
    const ADDRESSED: bool = false;
    const CARRIES_DATA: bool = false;
    const FENCES_NEXT: bool = true;

    #[inline(always)]
    fn imm(&self) -> Be32 {
        Be32::new(self.rkey)
    }

    #[inline(always)]
    fn write(&self, _qpn: u32, entry: &mut EntryWriter, offset: usize) {
        write_unbind(0, entry, offset);
    }
}

#[inline(always)]
fn write_unbind(new_rkey: u32, entry: &mut EntryWriter, offset: usize) {
    entry.put(
        offset,
        UmrCtrlSegment {
            flags: FLAG_INLINE | FLAG_TRANSLATION_OFFSET | FLAG_CHECK_QPN,
            mkey_mask: Be64::new(MASK_FREE | MASK_MKEY | MASK_QPN),
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

/// What a memory window is bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindMwInfo {
    /// Local key of the region that the window lies in.
    pub lkey: u32,
    /// Where the window starts.
    pub addr: u64,
    /// Its bytes, 1 to 2 GiB.
    pub length: u32,
    /// LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC and ZERO_BASED in the bits of
    /// `ibv_access_flags` (1, 4, 2, 8 and 32); others are ignored.
    pub access: u32,
}

/// Bind a type 2 memory window.
#[derive(Clone, Copy, Debug)]
pub struct BindMw {
    /// The window's present key.
    pub mw_rkey: u32,
    /// The key that it is to have: the same but for the low byte.
    pub new_rkey: u32,
    /// What it is bound to.
    pub info: BindMwInfo,
}

impl Sealed for BindMw {}

impl Operation for BindMw {
    const OPCODE: u8 = opcode::UMR;
    const WC: WcOpcode = WcOpcode::BindMw;
    const SEGMENTS: usize = UNBIND_SEGMENTS + size_of::<KlmSegment>();
    const ADDRESSED: bool = false;
    const CARRIES_DATA: bool = false;
    const FENCES_NEXT: bool = true;

    #[inline(always)]
    fn imm(&self) -> Be32 {
        Be32::new(self.mw_rkey)
    }

    #[inline(always)]
    fn write(&self, qpn: u32, entry: &mut EntryWriter, offset: usize) {
        let info = &self.info;
        let zero_based = info.access & ZERO_BASED != 0;
        entry.put(
            offset,
            UmrCtrlSegment {
                flags: FLAG_INLINE | FLAG_TRANSLATION_OFFSET | FLAG_CHECK_FREE,
                klm_octowords: Be16::new(4),
                mkey_mask: Be64::new(
                    MASK_FREE | MASK_MKEY | MASK_QPN | MASK_LEN | MASK_START_ADDR | MASK_ACCESS,
                ),
                ..Default::default()
            },
        );
        entry.put(
            offset + size_of::<UmrCtrlSegment>(),
            MkeyContextSegment {
                access_flags: mkey_access(info.access),
                qpn_mkey: Be32::new(qpn << 8 | self.new_rkey & 0xff),
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
}

/// Unbind a type 2 memory window.
#[derive(Clone, Copy, Debug)]
pub struct UnbindMw {
    /// The window's present key.
    pub mw_rkey: u32,
    /// The key that it is to have: the same but for the low byte.
    pub new_rkey: u32,
}

impl Sealed for UnbindMw {}

impl Operation for UnbindMw {
    const OPCODE: u8 = opcode::UMR;
    const WC: WcOpcode = WcOpcode::BindMw;
    const SEGMENTS: usize = UNBIND_SEGMENTS;
    const ADDRESSED: bool = false;
    const CARRIES_DATA: bool = false;
    const FENCES_NEXT: bool = true;

    #[inline(always)]
    fn imm(&self) -> Be32 {
        Be32::new(self.mw_rkey)
    }

    #[inline(always)]
    fn write(&self, _qpn: u32, entry: &mut EntryWriter, offset: usize) {
        write_unbind(self.new_rkey, entry, offset);
    }
}

/// Registration work, as a device reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Umr {
    /// Take the key away: LOCAL_INV, or unbinding a window.
    Unbind {
        /// The key.
        rkey: u32,
        /// The low byte that the key is to have.
        variant: u8,
    },
    /// Bind a window.
    Bind {
        /// The window's present key.
        rkey: u32,
        /// The low byte that the key is to have.
        variant: u8,
        /// The queue pair that it is to be bound to.
        qpn: u32,
        /// What it is bound to. The access is LOCAL_WRITE, REMOTE_ and ZERO_BASED only.
        info: BindMwInfo,
    },
}

impl SendWqe<'_> {
    /// The registration work of an UMR entry. `None`: it is too short for what it says.
    pub fn umr(&self) -> Option<Umr> {
        const CONTEXT: usize = SEGMENT + size_of::<UmrCtrlSegment>();
        const KLM: usize = SEGMENT + UNBIND_SEGMENTS;
        let bytes = self.ds() as usize * SEGMENT;
        if bytes < KLM {
            return None;
        }
        let rkey = self.imm().get();
        // The context fills the block behind the first one.
        // SAFETY: within the entry; any bytes make one.
        let context = unsafe { self.segment::<MkeyContextSegment>(CONTEXT) };
        let qpn_mkey = context.qpn_mkey.get();
        let variant = qpn_mkey as u8;
        if context.free & MKEY_FREE != 0 {
            return Some(Umr::Unbind { rkey, variant });
        }
        if bytes < KLM + SEGMENT {
            return None;
        }
        // SAFETY: as above.
        let klm = unsafe { self.segment::<DataSegment>(KLM) };
        let zero_based = context.start_addr.get() == 0 && klm.addr.get() != 0;
        let bits = u32::from(context.access_flags);
        let access = bits >> 3 & 1 | bits >> 2 & 4 | bits >> 4 & 2 | bits >> 3 & 8;
        Some(Umr::Bind {
            rkey,
            variant,
            qpn: qpn_mkey >> 8,
            info: BindMwInfo {
                lkey: klm.lkey.get(),
                addr: klm.addr.get(),
                length: klm.byte_count.get(),
                access: access | if zero_based { ZERO_BASED } else { 0 },
            },
        })
    }
}

/// `ibv_access_flags` in the bits of the key context.
const fn mkey_access(access: u32) -> u8 {
    ((access & 1) << 3 | (access & 4) << 2 | (access & 2) << 4 | (access & 8) << 3) as u8
}
