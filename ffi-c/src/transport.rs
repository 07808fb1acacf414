//! Queue pairs of every transport in one enum: the data path uses a match instead of a call through a
//! pointer.

use crate::code::{BW_EINVAL, BW_ETRANSPORT};
use crate::failure::Failure;
use crate::number::bw_qp_type;
use hw::wqe::{Rc, Uc, Ud, Xrc};
use hw::{Cqs, Error, Pd, Qp, QpInit, QpRecvQueue, QpSendQueue, QpTransport, Srq};

/// The transports that a queue pair can be created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    Xrc,
}

impl Kind {
    pub fn from_number(number: u32) -> Result<Self, Failure> {
        use bw_qp_type::*;
        [
            (BW_QPT_RC, Self::Rc),
            (BW_QPT_UC, Self::Uc),
            (BW_QPT_UD, Self::Ud),
            (BW_QPT_XRC_SEND, Self::Xrc),
        ]
        .into_iter()
        .find_map(|(known, kind)| (known as u32 == number).then_some(kind))
        .ok_or_else(|| {
            let text = format!(
                "qp_type is {number}, which is not BW_QPT_RC, _UC, _UD or _XRC_SEND (a target of \
                 XRC is made by bw_xrc_target_create)"
            );
            Failure::new(BW_EINVAL, text)
        })
    }

    pub fn number(self) -> bw_qp_type {
        match self {
            Self::Rc => bw_qp_type::BW_QPT_RC,
            Self::Uc => bw_qp_type::BW_QPT_UC,
            Self::Ud => bw_qp_type::BW_QPT_UD,
            Self::Xrc => bw_qp_type::BW_QPT_XRC_SEND,
        }
    }

    /// Entries that a queue pair reserves in its completion queues, for sends and for receives.
    pub fn cq_entries(self, init: &QpInit) -> (u32, u32) {
        match self {
            Self::Rc => init.cq_entries_of::<Rc>(),
            Self::Uc => init.cq_entries_of::<Uc>(),
            Self::Ud => init.cq_entries_of::<Ud>(),
            Self::Xrc => init.cq_entries_of::<Xrc>(),
        }
    }
}

/// A queue pair of any transport.
#[derive(Debug)]
pub(crate) enum AnyQp {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>),
    Xrc(Qp<Xrc>),
}

/// The send queue of such a queue pair.
#[derive(Debug)]
pub(crate) enum AnySq {
    Rc(QpSendQueue<'static, Rc>),
    Uc(QpSendQueue<'static, Uc>),
    Ud(QpSendQueue<'static, Ud>),
    Xrc(QpSendQueue<'static, Xrc>),
}

/// Runs the same code for a queue pair, or a send queue, of any transport.
macro_rules! each {
    ($enum:ident, $any:expr, $one:ident => $does:expr) => {
        match $any {
            $enum::Rc($one) => $does,
            $enum::Uc($one) => $does,
            $enum::Ud($one) => $does,
            $enum::Xrc($one) => $does,
        }
    };
}
pub(crate) use each;

fn create<T: QpTransport>(
    pd: &Pd,
    cqs: Cqs<'_>,
    srq: Option<&Srq>,
    init: &QpInit,
) -> Result<Qp<T>, Error> {
    match srq {
        Some(srq) => pd.create_qp_on_srq(cqs, srq, init),
        None => pd.create_qp_of(cqs, init),
    }
}

impl AnyQp {
    pub fn create(
        kind: Kind,
        pd: &Pd,
        cqs: Cqs<'_>,
        srq: Option<&Srq>,
        init: &QpInit,
    ) -> Result<Self, Error> {
        Ok(match kind {
            Kind::Rc => Self::Rc(create(pd, cqs, srq, init)?),
            Kind::Uc => Self::Uc(create(pd, cqs, srq, init)?),
            Kind::Ud => Self::Ud(create(pd, cqs, srq, init)?),
            Kind::Xrc => Self::Xrc(create(pd, cqs, srq, init)?),
        })
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Rc(_) => Kind::Rc,
            Self::Uc(_) => Kind::Uc,
            Self::Ud(_) => Kind::Ud,
            Self::Xrc(_) => Kind::Xrc,
        }
    }

    /// Both queues, to be used by two threads.
    pub fn split(&'static mut self) -> (AnySq, QpRecvQueue<'static>) {
        fn halves<T: QpTransport>(
            qp: &'static mut Qp<T>,
            any: fn(QpSendQueue<'static, T>) -> AnySq,
        ) -> (AnySq, QpRecvQueue<'static>) {
            let (sq, rq) = qp.split();
            (any(sq), rq)
        }
        match self {
            Self::Rc(qp) => halves(qp, AnySq::Rc),
            Self::Uc(qp) => halves(qp, AnySq::Uc),
            Self::Ud(qp) => halves(qp, AnySq::Ud),
            Self::Xrc(qp) => halves(qp, AnySq::Xrc),
        }
    }

    /// The queue pair, if it is one for datagrams.
    pub fn datagrams(&mut self) -> Result<&mut Qp<Ud>, Failure> {
        match self {
            Self::Ud(qp) => Ok(qp),
            other => Err(Failure::new(
                BW_ETRANSPORT,
                format!(
                    "the queue pair is {:?}: only those of BW_QPT_UD support this",
                    other.kind().number()
                ),
            )),
        }
    }
}
