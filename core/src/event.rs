//! The vocabulary of asynchronous events. Numbers are those of the verbs (`ibv_event_type`); what
//! each means is in ibv_get_async_event(3) and the IBTA specification, 11.6.3.

use crate::wr::numbered;
use core::fmt;

numbered! {
    /// What happened that no completion tells (`ibv_event_type`).
    EventType {
        /// A completion queue overran: it takes no more entries.
        CqErr = 0, "CQ_ERR";
        /// A queue pair went to the error state, and cannot complete with an error why.
        QpFatal = 1, "QP_FATAL";
        /// The responder refused a request as invalid, and went to the error state.
        QpReqErr = 2, "QP_REQ_ERR";
        /// The responder refused an access, and went to the error state.
        QpAccessErr = 3, "QP_ACCESS_ERR";
        /// The first message came while the queue pair was still in RTR.
        CommEst = 4, "COMM_EST";
        /// The send queue is drained: what was started is finished, and nothing else is begun.
        SqDrained = 5, "SQ_DRAINED";
        /// The connection moved to the alternate path.
        PathMig = 6, "PATH_MIG";
        /// The connection could not move to the alternate path.
        PathMigErr = 7, "PATH_MIG_ERR";
        /// The device failed; nothing on it works any more.
        DeviceFatal = 8, "DEVICE_FATAL";
        /// The port's link came up.
        PortActive = 9, "PORT_ACTIVE";
        /// The port's link went down.
        PortErr = 10, "PORT_ERR";
        /// The port has another LID.
        LidChange = 11, "LID_CHANGE";
        /// The port's table of partition keys changed.
        PkeyChange = 12, "PKEY_CHANGE";
        /// The port has another subnet manager.
        SmChange = 13, "SM_CHANGE";
        /// A shared receive queue failed.
        SrqErr = 14, "SRQ_ERR";
        /// A shared receive queue has fewer receives than its limit; the limit is off now.
        SrqLimitReached = 15, "SRQ_LIMIT_REACHED";
        /// A queue pair in the error state takes no more receives from its shared receive queue.
        QpLastWqeReached = 16, "QP_LAST_WQE_REACHED";
        /// The subnet manager asks to subscribe and register anew.
        ClientReregister = 17, "CLIENT_REREGISTER";
        /// The port's table of GIDs changed.
        GidChange = 18, "GID_CHANGE";
        /// A work queue failed.
        WqFatal = 19, "WQ_FATAL";
    }
}

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
    use std::vec::Vec;

    #[test]
    fn numbers_are_those_of_the_verbs() {
        let names: Vec<_> = (0..=u8::MAX)
            .map_while(EventType::from_number)
            .map(EventType::name)
            .collect();
        // The order in which `enum ibv_event_type` has them.
        assert_eq!(
            names,
            [
                "CQ_ERR",
                "QP_FATAL",
                "QP_REQ_ERR",
                "QP_ACCESS_ERR",
                "COMM_EST",
                "SQ_DRAINED",
                "PATH_MIG",
                "PATH_MIG_ERR",
                "DEVICE_FATAL",
                "PORT_ACTIVE",
                "PORT_ERR",
                "LID_CHANGE",
                "PKEY_CHANGE",
                "SM_CHANGE",
                "SRQ_ERR",
                "SRQ_LIMIT_REACHED",
                "QP_LAST_WQE_REACHED",
                "CLIENT_REREGISTER",
                "GID_CHANGE",
                "WQ_FATAL",
            ]
        );
        for number in 0..=u8::MAX {
            let event = EventType::from_number(number);
            assert_eq!(event.is_some(), usize::from(number) < EventType::ALL.len());
            assert!(event.is_none_or(|event| event.number() == number));
        }
    }

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
