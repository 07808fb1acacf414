//! Transports, each a type: what a request has to name beside its operation, and which operations
//! exist on it.

use super::build::EntryWriter;
use super::operation::{
    AtomicCmpAndSwp, AtomicFetchAndAdd, LocalInv, Nop, Operation, RdmaRead, RdmaWrite,
    RdmaWriteWithImm, Sealed, Send, SendWithImm, SendWithInv,
};
use super::segment::{AddressVector, SEGMENT, XrcSegment};
use super::umr::{BindMw, BindMwType1, UnbindMw, UnbindMwType1};
use crate::be::Be32;
use crate::wr::QpType;

/// A transport service. Sealed.
pub trait Transport: Sealed {
    /// Its number in the verbs.
    const TYPE: QpType;
    /// Bytes of its address segments.
    const SEGMENTS: usize;
    /// Bytes of the longest operation's segments, behind the address.
    const LONGEST_OPERATION: usize;
    /// What each request names: nothing on connected transports.
    type Address<'a>: Copy;

    /// Writes the address segments at `offset`.
    #[doc(hidden)]
    fn write(address: Self::Address<'_>, entry: &mut EntryWriter, offset: usize);
}

/// Implemented where the transport has the operation (IBTA vol. 1, table "QP transport services").
pub trait Supports<O: Operation>: Transport {}

/// The address that requests of transport `T` name.
pub type Address<'a, T> = <T as Transport>::Address<'a>;

/// Reliable connection.
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connection.
#[derive(Clone, Copy, Debug)]
pub struct Uc;

/// Unreliable datagram.
#[derive(Clone, Copy, Debug)]
pub struct Ud;

/// Extended reliable connection, initiator.
#[derive(Clone, Copy, Debug)]
pub struct Xrc;

/// Dynamically connected, initiator.
#[derive(Clone, Copy, Debug)]
pub struct Dci;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct UdAddress<'a> {
    /// The path, from an address handle; its own queue pair and key fields are replaced.
    pub av: &'a AddressVector,
    /// The receiver's queue pair number.
    pub remote_qpn: u32,
    /// The receiver's Q_Key.
    pub remote_qkey: u32,
}

/// The target of a dynamically connected request.
#[derive(Clone, Copy, Debug)]
pub struct DcAddress<'a> {
    /// The path, from an address handle; its own target and key fields are replaced.
    pub av: &'a AddressVector,
    /// The target's number.
    pub dctn: u32,
    /// The target's access key.
    pub dc_key: u64,
}

impl Sealed for Rc {}
impl Sealed for Uc {}
impl Sealed for Ud {}
impl Sealed for Xrc {}
impl Sealed for Dci {}

macro_rules! connected {
    ($($name:ident = $ty:ident, $longest:literal;)*) => {$(
        impl Transport for $name {
            const TYPE: QpType = QpType::$ty;
            const SEGMENTS: usize = 0;
            const LONGEST_OPERATION: usize = $longest * SEGMENT;
            type Address<'a> = ();

            #[inline(always)]
            fn write((): (), _: &mut EntryWriter, _: usize) {}
        }
    )*};
}

connected! {
    Rc = Rc, 2;
    Uc = Uc, 1;
}

impl Transport for Ud {
    const TYPE: QpType = QpType::Ud;
    const SEGMENTS: usize = 3 * SEGMENT;
    const LONGEST_OPERATION: usize = 0;
    type Address<'a> = UdAddress<'a>;

    #[inline(always)]
    fn write(address: UdAddress<'_>, entry: &mut EntryWriter, offset: usize) {
        entry.put(
            offset,
            AddressVector {
                qkey: Be32::new(address.remote_qkey),
                reserved: Be32::default(),
                dqp_dct: Be32::new(address.remote_qpn & 0xff_ffff | AddressVector::EXTENDED),
                ..*address.av
            },
        );
    }
}

impl Transport for Dci {
    const TYPE: QpType = QpType::Dci;
    const SEGMENTS: usize = 3 * SEGMENT;
    const LONGEST_OPERATION: usize = 2 * SEGMENT;
    type Address<'a> = DcAddress<'a>;

    #[inline(always)]
    fn write(address: DcAddress<'_>, entry: &mut EntryWriter, offset: usize) {
        entry.put(
            offset,
            AddressVector {
                qkey: Be32::new((address.dc_key >> 32) as u32),
                reserved: Be32::new(address.dc_key as u32),
                dqp_dct: Be32::new(address.dctn & 0xff_ffff | AddressVector::EXTENDED),
                ..*address.av
            },
        );
    }
}

impl Transport for Xrc {
    const TYPE: QpType = QpType::XrcSend;
    const SEGMENTS: usize = SEGMENT;
    const LONGEST_OPERATION: usize = 2 * SEGMENT;
    /// The number of the shared receive queue at the target.
    type Address<'a> = u32;

    #[inline(always)]
    fn write(srqn: u32, entry: &mut EntryWriter, offset: usize) {
        entry.put(
            offset,
            XrcSegment {
                xrc_srqn: Be32::new(srqn & 0xff_ffff),
                reserved: [0; 12],
            },
        );
    }
}

macro_rules! supports {
    ($($transport:ty: $($operation:ty),*;)*) => {$($(impl Supports<$operation> for $transport {})*)*};
}

supports! {
    Rc: Send, SendWithImm, SendWithInv, RdmaWrite, RdmaWriteWithImm, RdmaRead, AtomicCmpAndSwp,
        AtomicFetchAndAdd, LocalInv, BindMw, UnbindMw, BindMwType1,
        UnbindMwType1, Nop;
    Xrc: Send, SendWithImm, SendWithInv, RdmaWrite, RdmaWriteWithImm, RdmaRead, AtomicCmpAndSwp,
        AtomicFetchAndAdd, LocalInv, BindMw, UnbindMw, BindMwType1,
        UnbindMwType1, Nop;
    Dci: Send, SendWithImm, SendWithInv, RdmaWrite, RdmaWriteWithImm, RdmaRead, AtomicCmpAndSwp,
        AtomicFetchAndAdd, Nop;
    Uc: Send, SendWithImm, SendWithInv, RdmaWrite, RdmaWriteWithImm, LocalInv, BindMw, UnbindMw, BindMwType1,
        UnbindMwType1, Nop;
    Ud: Send, SendWithImm, Nop;
}
