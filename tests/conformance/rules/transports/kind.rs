//! The kinds of queue pairs beside RC, and which changes of state they take.

use crate::provider::Feature;
use crate::support::{TO_RTR, TO_RTS};
use bellwire::state::QpAttrMask as M;
use bellwire::state::QpState::{self, *};

/// A kind of queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Uc,
    Ud,
    XrcSend,
    XrcRecv,
}

const NONE: M = M::empty();

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Uc, Kind::Ud, Kind::XrcSend, Kind::XrcRecv];

    /// As messages have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        }
    }

    /// What there has to be for one of them to be in this state.
    pub fn needs(self, state: QpState) -> Vec<Feature> {
        match (self, state) {
            (Self::Uc, _) => vec![Feature::Uc],
            (Self::Ud, _) => vec![Feature::Ud],
            (_, Sqe) => vec![Feature::Xrc, Feature::Srq, Feature::XrcSqe],
            _ => vec![Feature::Xrc, Feature::Srq],
        }
    }

    /// Required and optional attributes of a change of state, beside the state: as Linux checks
    /// them (`qp_state_table` of drivers/infiniband/core/verbs.c), which has the specification's. RESET
    /// to ERR is the specification's; out of SQE lead only the kinds that get into it.
    pub fn legal(self, from: QpState, to: QpState) -> Option<(M, M)> {
        Some(match (from, to) {
            (_, Err) => (NONE, NONE),
            (Reset, Init) => (self.to_init(), NONE),
            (Init, Init) => (NONE, self.to_init()),
            (Init, Rtr) => self.to_rtr(),
            (Rtr, Rts) => (self.to_rts(), self.live()),
            (Rts | Sqd, Rts) => (NONE, self.live()),
            (Rts, Sqd) => (NONE, M::EN_SQD_ASYNC_NOTIFY),
            (Sqd, Sqd) => (NONE, self.drained()),
            (Sqe, Rts) => match self {
                Self::Uc => (NONE, M::CUR_STATE | M::ACCESS_FLAGS),
                Self::Ud => (NONE, self.live()),
                Self::XrcSend | Self::XrcRecv => return None,
            },
            _ => return None,
        })
    }

    fn to_init(self) -> M {
        let own = match self {
            Self::Ud => M::QKEY,
            _ => M::ACCESS_FLAGS,
        };
        M::PKEY_INDEX | M::PORT | own
    }

    fn to_rtr(self) -> (M, M) {
        let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let options = M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX;
        match self {
            Self::Ud => (NONE, M::PKEY_INDEX | M::QKEY),
            Self::Uc | Self::XrcSend => (connected, options),
            Self::XrcRecv => (TO_RTR, options),
        }
    }

    fn to_rts(self) -> M {
        match self {
            Self::Uc | Self::Ud => M::SQ_PSN,
            Self::XrcSend => TO_RTS,
            Self::XrcRecv => M::SQ_PSN | M::TIMEOUT,
        }
    }

    /// What RTS takes.
    fn live(self) -> M {
        let connected = M::CUR_STATE | M::ALT_PATH | M::ACCESS_FLAGS | M::PATH_MIG_STATE;
        match self {
            Self::Ud => M::CUR_STATE | M::QKEY,
            Self::Uc | Self::XrcSend => connected,
            Self::XrcRecv => connected | M::MIN_RNR_TIMER,
        }
    }

    /// What SQD takes.
    fn drained(self) -> M {
        let path = M::AV | M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX | M::PATH_MIG_STATE;
        let reliable = path | M::PORT | M::TIMEOUT;
        match self {
            Self::Ud => M::PKEY_INDEX | M::QKEY,
            Self::Uc => path,
            Self::XrcSend => reliable | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
            Self::XrcRecv => reliable | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        }
    }
}
