//! The flags of an entry, for each combination of a request's.

use crate::be::Be32;
use crate::wqe::fm_ce_se;
use crate::wr::SendFlags;

/// The word with the `fm_ce_se` byte for each combination of the lowest bits of [`SendFlags`]. INLINE is
/// not among them: it depends on the payload.
pub(super) type Marks = [Be32; SendFlags::INLINE.bits() as usize];

/// `unsignaled`: the byte of requests that ask for no completion. `fenced`: they wait for registration
/// work before them.
pub(super) fn marks(unsignaled: u8, fenced: bool) -> Marks {
    core::array::from_fn(|bits| {
        let flags = SendFlags::from_bits_truncate(bits as u8);
        let mut mark = match flags.contains(SendFlags::SIGNALED) {
            true => fm_ce_se::SIGNALED,
            false => unsignaled,
        };
        if flags.contains(SendFlags::SOLICITED) {
            mark |= fm_ce_se::SOLICITED;
        }
        // A full fence also waits for registration work.
        if flags.contains(SendFlags::FENCE) {
            mark |= fm_ce_se::FENCE;
        } else if fenced {
            mark |= fm_ce_se::INITIATOR_SMALL_FENCE;
        }
        Be32::new(mark.into())
    })
}
