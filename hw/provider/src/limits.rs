//! Checks of the values that a program passes.

use crate::error::Error;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState, transition};
use bellwire_core::wr::QpType;

/// Checks the port numbers and the numbers of outstanding READs and atomics against the device's limits.
///
/// # Errors
/// [`Error::TooLarge`].
pub fn check_limits(attr: &QpAttr, mask: QpAttrMask, ports: u8, depth: u8) -> Result<(), Error> {
    for (bit, what, given, max) in [
        (QpAttrMask::PORT, "port_num", attr.port_num, ports),
        (
            QpAttrMask::AV,
            "ah_attr.port_num",
            attr.ah_attr.port_num,
            ports,
        ),
        (
            QpAttrMask::MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic,
            depth,
        ),
        (
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic,
            depth,
        ),
    ] {
        if mask.contains(bit) && given > max {
            return Err(Error::TooLarge {
                what,
                given: given.into(),
                max: max.into(),
            });
        }
    }
    Ok(())
}

/// Checks that a value is between `min` and `max`, inclusive.
///
/// # Errors
/// [`Error::OutOfRange`].
pub fn in_range(what: &'static str, given: u32, min: u32, max: u32) -> Result<(), Error> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        what,
        given,
        min,
        max,
    })
}

/// The attributes that a state transition requires.
pub fn required(transport: QpType, from: QpState, to: QpState) -> QpAttrMask {
    // For an invalid transition modifying the queue pair returns the error.
    transition(transport, from, to).map_or(QpAttrMask::STATE, |step| step.required)
}
