//! A queue pair of any transport.

use bellwire::Block;
use bellwire::be::Be32;
use bellwire::queue::PostError;
use bellwire::state::{QpAttr, QpAttrMask, QpState};
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, Sge};
use bellwire::{Ah, ConnectAttr, Cq, Endpoint, Error, Qp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rc,
    Uc,
    Ud,
    Xrc,
}

impl Kind {
    pub fn reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

pub enum AnyQp {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>),
    Xrc(Qp<Xrc>),
}

/// Where a request goes, where it has to say so.
pub enum To<'a> {
    Peer,
    Datagram(&'a Ah, u32, u32),
    Queue(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Send,
    SendImm(u32),
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    Add(Remote),
    Nop,
}

pub enum Data<'a> {
    Inline(&'a [u8]),
    Sge(Sge),
    Block(Block<'static>, u32),
    Nothing,
}

macro_rules! each {
    ($any:expr, $qp:ident => $body:expr) => {
        match $any {
            AnyQp::Rc($qp) => $body,
            AnyQp::Uc($qp) => $body,
            AnyQp::Ud($qp) => $body,
            AnyQp::Xrc($qp) => $body,
        }
    };
}

/// Posts an operation that the transport has.
macro_rules! put {
    ($qp:expr, $wr_id:expr, $to:expr, $op:expr, $data:expr, $flags:expr) => {
        match $data {
            Data::Inline(bytes) => $qp.sq().post_inline($wr_id, $to, $op, bytes, $flags),
            // SAFETY: the memory is a region's, which is only ever copied in and out.
            Data::Sge(sge) => unsafe { $qp.sq().post($wr_id, $to, $op, sge, $flags) },
            Data::Block(block, length) => $qp
                .sq()
                .post_block($wr_id, $to, $op, block, length, $flags)
                .map_err(|rejected| rejected.error),
            Data::Nothing => $qp.sq().post_empty($wr_id, $to, $op, $flags),
        }
    };
}

macro_rules! reliable {
    ($qp:expr, $wr_id:expr, $to:expr, $op:expr, $data:expr, $flags:expr) => {
        match $op {
            Op::Read(remote) => put!($qp, $wr_id, $to, RdmaRead { remote }, $data, $flags),
            Op::Add(remote) => {
                let add = AtomicFetchAndAdd { remote, add: 1 };
                put!($qp, $wr_id, $to, add, $data, $flags)
            }
            op => connected!($qp, $wr_id, $to, op, $data, $flags),
        }
    };
}

macro_rules! connected {
    ($qp:expr, $wr_id:expr, $to:expr, $op:expr, $data:expr, $flags:expr) => {
        match $op {
            Op::Write(remote) => put!($qp, $wr_id, $to, RdmaWrite { remote }, $data, $flags),
            Op::WriteImm(remote, imm) => {
                let write = RdmaWriteWithImm {
                    remote,
                    imm: Be32::new(imm),
                };
                put!($qp, $wr_id, $to, write, $data, $flags)
            }
            op => any!($qp, $wr_id, $to, op, $data, $flags),
        }
    };
}

macro_rules! any {
    ($qp:expr, $wr_id:expr, $to:expr, $op:expr, $data:expr, $flags:expr) => {
        match $op {
            Op::Send => put!($qp, $wr_id, $to, Send {}, $data, $flags),
            Op::SendImm(imm) => {
                let imm = Be32::new(imm);
                put!($qp, $wr_id, $to, SendWithImm { imm }, $data, $flags)
            }
            _ => $qp.sq().post_empty($wr_id, $to, Nop {}, $flags),
        }
    };
}

impl AnyQp {
    pub fn post(
        &mut self,
        wr_id: u64,
        to: &To<'_>,
        op: Op,
        data: Data<'_>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        match (self, to) {
            (Self::Rc(qp), _) => reliable!(qp, wr_id, (), op, data, flags),
            (Self::Uc(qp), _) => connected!(qp, wr_id, (), op, data, flags),
            (Self::Xrc(qp), To::Queue(srqn)) => reliable!(qp, wr_id, *srqn, op, data, flags),
            (Self::Ud(qp), To::Datagram(ah, qpn, qkey)) => {
                any!(qp, wr_id, ah.to(*qpn, *qkey), op, data, flags)
            }
            _ => panic!("the address is another transport's"),
        }
    }

    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: as in `put!`.
        each!(self, qp => unsafe { qp.rq().post(wr_id, sges) })
    }

    pub fn ring(&mut self) {
        each!(self, qp => {
            qp.sq().ring();
            qp.rq().ring();
        });
    }

    pub fn qp_num(&self) -> u32 {
        each!(self, qp => qp.qp_num())
    }

    pub fn endpoint(&self) -> Endpoint {
        each!(self, qp => qp.endpoint())
    }

    pub fn state(&self) -> QpState {
        each!(self, qp => qp.state())
    }

    pub fn fail(&mut self) -> Result<(), Error> {
        each!(self, qp => qp.to_error())
    }

    /// To this state, with nothing but the state.
    pub fn go_to(&mut self, qp_state: QpState) -> Result<(), Error> {
        let attr = QpAttr {
            qp_state,
            ..QpAttr::default()
        };
        each!(self, qp => qp.modify(&attr, QpAttrMask::STATE))
    }

    pub fn reset(
        &mut self,
        cq: &mut Cq,
        each: impl FnMut(u64, Option<Block<'static>>),
    ) -> Result<(), Error> {
        each!(self, qp => qp.reset(cq, each))
    }

    pub fn init(&mut self, attr: &ConnectAttr) -> Result<(), Error> {
        each!(self, qp => qp.init(attr))
    }

    pub fn connect(&mut self, peer: &Endpoint, attr: &ConnectAttr) -> Result<(), Error> {
        match self {
            Self::Rc(qp) => qp.connect(peer, attr),
            Self::Uc(qp) => qp.connect(peer, attr),
            Self::Xrc(qp) => qp.connect(peer, attr),
            Self::Ud(qp) => qp.start(attr),
        }
    }
}
