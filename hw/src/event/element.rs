//! What an event is about.

use bellwire_core::event::ElementKind;
use std::fmt;

/// What an event is about (`ibv_async_event.element`), by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// The completion queue of this [number](crate::Cq::cqn).
    Cq(u32),
    /// The queue pair of this [number](crate::Qp::qp_num).
    Qp(u32),
    /// The shared receive queue of this number.
    Srq(u32),
    /// The work queue of this number.
    Wq(u32),
    /// The port of this number; ports count from 1.
    Port(u8),
    /// The device.
    Device,
}

impl Element {
    /// What kind of thing it is.
    pub const fn kind(self) -> ElementKind {
        match self {
            Self::Cq(_) => ElementKind::Cq,
            Self::Qp(_) => ElementKind::Qp,
            Self::Srq(_) => ElementKind::Srq,
            Self::Wq(_) => ElementKind::Wq,
            Self::Port(_) => ElementKind::Port,
            Self::Device => ElementKind::Device,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Self::Cq(number) | Self::Qp(number) | Self::Srq(number) | Self::Wq(number) => {
                write!(f, "{kind} {number:#x}")
            }
            Self::Port(number) => write!(f, "{kind} {number}"),
            Self::Device => kind.fmt(f),
        }
    }
}
