//! The object that an event is about.

use bellwire_core::event::ElementKind;
use std::fmt;

/// The object that an event is about (`ibv_async_event.element`), identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// The completion queue with this number (`Cq::cqn`).
    Cq(u32),
    /// The queue pair with this number (`Qp::qp_num`).
    Qp(u32),
    /// The shared receive queue with this number.
    Srq(u32),
    /// The work queue with this number.
    Wq(u32),
    /// The port with this number; ports are numbered from 1.
    Port(u8),
    /// The device.
    Device,
}

impl Element {
    /// The kind of the object.
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
