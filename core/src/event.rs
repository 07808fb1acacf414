//! Asynchronous event types. What each one means is documented in [`fault`](crate::fault).

pub use crate::fault::EventType;
use core::fmt;

/// The kind of object that an event refers to.
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
    /// A port of the device. The event is delivered to every open context.
    Port,
    /// The device itself. The event is delivered to every open context.
    Device,
}

impl ElementKind {
    /// Its name in plain words.
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
    /// The kind of object that the event refers to, which determines the valid member of
    /// `ibv_async_event.element`.
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
    fn names_show_the_kind() {
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
