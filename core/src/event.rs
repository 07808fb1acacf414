//! The vocabulary of asynchronous events. What each means is in [`fault`](crate::fault).

pub use crate::fault::EventType;
use core::fmt;

/// What kind of thing an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementKind {
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// A shared receive queue.
    Srq,
    /// A work queue.
    Wq,
    /// A port of the device. Every open context is told.
    Port,
    /// The device itself. Every open context is told.
    Device,
}

impl ElementKind {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cq => "completion queue",
            Self::Qp => "queue pair",
            Self::Srq => "shared receive queue",
            Self::Wq => "work queue",
            Self::Port => "port",
            Self::Device => "device",
        }
    }
}

impl fmt::Display for ElementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl EventType {
    /// What kind of thing it is about: which member of `ibv_async_event.element` has a meaning.
    pub const fn element_kind(self) -> ElementKind {
        match self {
            Self::CqErr => ElementKind::Cq,
            Self::QpFatal
            | Self::QpReqErr
            | Self::QpAccessErr
            | Self::CommEst
            | Self::SqDrained
            | Self::PathMig
            | Self::PathMigErr
            | Self::QpLastWqeReached => ElementKind::Qp,
            Self::SrqErr | Self::SrqLimitReached => ElementKind::Srq,
            Self::WqFatal => ElementKind::Wq,
            Self::PortActive
            | Self::PortErr
            | Self::LidChange
            | Self::PkeyChange
            | Self::SmChange
            | Self::ClientReregister
            | Self::GidChange => ElementKind::Port,
            Self::DeviceFatal => ElementKind::Device,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_kind() {
        for &event in EventType::ALL {
            let kind = match event.name() {
                "DEVICE_FATAL" => ElementKind::Device,
                "WQ_FATAL" => ElementKind::Wq,
                "CQ_ERR" => ElementKind::Cq,
                name if name.starts_with("SRQ_") => ElementKind::Srq,
                name if name.starts_with("QP_") || name.starts_with("PATH_") => ElementKind::Qp,
                "COMM_EST" | "SQ_DRAINED" => ElementKind::Qp,
                _ => ElementKind::Port,
            };
            assert_eq!(event.element_kind(), kind, "{event}");
        }
    }
}
