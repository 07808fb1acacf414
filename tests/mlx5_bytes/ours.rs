//! bellwire's side: a device by its rings, as programs use it.

use crate::Check;
use crate::request::{Arena, Kind, Op, Request};
use bellwire::be::Be32;
use bellwire::queue::PostError;
use bellwire::wqe::{
    Address, AtomicCmpAndSwp, AtomicFetchAndAdd, BindMw, BindMwInfo, InlineList, LocalInv,
    NoPayload, Operation, Rc, RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm,
    SendWithInv, Supports, Uc, Ud, UdAddress, UnbindMw,
};
use bellwire::{Ah, ConnectAttr, Connected, Qp, QpSendQueue, QpTransport};

/// What requests name beside their own fields: handles of addresses; windows' keys, and that of the
/// memory that they are bound to.
pub struct Named {
    pub ahs: Vec<Ah>,
    pub windows: Vec<u32>,
    pub lkey: u32,
}

/// A transport whose queue pairs are compared.
pub trait Compared: QpTransport + Sized + 'static {
    const KINDS: &'static [Kind];

    /// Takes it from RESET to RTS.
    fn ready(qp: &mut Qp<Self>) -> Check;

    /// Stages a request.
    fn post(
        sq: &mut QpSendQueue<'_, Self>,
        request: &Request,
        arena: &Arena,
        named: &Named,
    ) -> Result<(), PostError>;
}

fn connect<T: Connected>(qp: &mut Qp<T>) -> Check {
    let (peer, attr) = (qp.endpoint(), ConnectAttr::default());
    qp.init(&attr)?;
    Ok(qp.connect(&peer, &attr)?)
}

/// Stages an operation with the request's data, by the call that a program would take.
fn carry<T: QpTransport + Supports<O>, O: Operation>(
    sq: &mut QpSendQueue<'_, T>,
    request: &Request,
    arena: &Arena,
    address: Address<'_, T>,
    operation: O,
) -> Result<(), PostError> {
    let &Request { wr_id, flags, .. } = request;
    // SAFETY: no device executes it; completions that bring bytes write to the arena.
    unsafe {
        match (request.inline, &request.sges[..]) {
            (false, []) => sq.post(wr_id, address, operation, NoPayload, flags),
            (false, &[sge]) => sq.post(wr_id, address, operation, sge, flags),
            (false, sges) => sq.post(wr_id, address, operation, sges, flags),
            (true, [sge]) => sq.post_inline(wr_id, address, operation, arena.bytes(sge), flags),
            (true, sges) => {
                let pieces: Vec<&[u8]> = sges.iter().map(|sge| arena.bytes(sge)).collect();
                sq.post(wr_id, address, operation, InlineList(&pieces), flags)
            }
        }
    }
}

macro_rules! connected {
    ($($transport:ident: $($kind:ident),*; { $($pattern:pat => $operation:expr,)* })*) => {$(
        impl Compared for $transport {
            const KINDS: &'static [Kind] = &[$(Kind::$kind),*];

            fn ready(qp: &mut Qp<Self>) -> Check {
                connect(qp)
            }

            fn post(
                sq: &mut QpSendQueue<'_, Self>,
                request: &Request,
                arena: &Arena,
                named: &Named,
            ) -> Result<(), PostError> {
                match request.op {
                    Op::Send => carry(sq, request, arena, (), Send {}),
                    Op::SendImm(imm) => {
                        let imm = Be32::from_raw(imm);
                        carry(sq, request, arena, (), SendWithImm { imm })
                    }
                    Op::SendInv(rkey) => carry(sq, request, arena, (), SendWithInv { rkey }),
                    Op::Write(remote) => carry(sq, request, arena, (), RdmaWrite { remote }),
                    Op::WriteImm(remote, imm) => {
                        let imm = Be32::from_raw(imm);
                        carry(sq, request, arena, (), RdmaWriteWithImm { remote, imm })
                    }
                    Op::LocalInv(rkey) => {
                        sq.post_empty(request.wr_id, (), LocalInv { rkey }, request.flags)
                    }
                    Op::Bind(_) => bind(sq, request, named),
                    $($pattern => carry(sq, request, arena, (), $operation),)*
                    #[allow(unreachable_patterns, reason = "one transport has all")]
                    other => unreachable!("{other:?} on {}", stringify!($transport)),
                }
            }
        }
    )*};
}

/// Binds a window, or unbinds it.
fn bind<T>(sq: &mut QpSendQueue<'_, T>, request: &Request, named: &Named) -> Result<(), PostError>
where
    T: for<'a> QpTransport<Address<'a> = ()> + Supports<BindMw> + Supports<UnbindMw>,
{
    let &Request {
        wr_id,
        op: Op::Bind(bind),
        flags,
        ..
    } = request
    else {
        unreachable!("another operation");
    };
    let (mw_rkey, new_rkey) = (named.windows[bind.window], bind.new_rkey);
    if bind.length == 0 {
        return sq.post_empty(wr_id, (), UnbindMw { mw_rkey, new_rkey }, flags);
    }
    let info = BindMwInfo {
        lkey: named.lkey,
        addr: bind.addr,
        length: bind.length,
        access: bind.access,
    };
    sq.post_empty(
        wr_id,
        (),
        BindMw {
            mw_rkey,
            new_rkey,
            info,
        },
        flags,
    )
}

connected! {
    Rc: Send, SendImm, SendInv, Write, WriteImm, Read, CmpSwap, FetchAdd, LocalInv, Bind; {
        Op::Read(remote) => RdmaRead { remote },
        Op::CmpSwap(remote, compare, swap) => AtomicCmpAndSwp { remote, compare, swap },
        Op::FetchAdd(remote, add) => AtomicFetchAndAdd { remote, add },
    }
    Uc: Send, SendImm, SendInv, Write, WriteImm, LocalInv, Bind; {}
}

impl Compared for Ud {
    const KINDS: &'static [Kind] = &[Kind::Send, Kind::SendImm];

    fn ready(qp: &mut Qp<Self>) -> Check {
        let attr = ConnectAttr::default();
        qp.init(&attr)?;
        Ok(qp.start(&attr)?)
    }

    fn post(
        sq: &mut QpSendQueue<'_, Self>,
        request: &Request,
        arena: &Arena,
        named: &Named,
    ) -> Result<(), PostError> {
        let to: UdAddress<'_> = named.ahs[request.to.ah].to(request.to.qpn, request.to.qkey);
        match request.op {
            Op::Send => carry(sq, request, arena, to, Send {}),
            Op::SendImm(imm) => {
                let imm = Be32::from_raw(imm);
                carry(sq, request, arena, to, SendWithImm { imm })
            }
            other => unreachable!("{other:?} on UD"),
        }
    }
}
