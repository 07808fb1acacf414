//! The transports. Each is a type that determines the address of its requests and which operations
//! it supports.

use super::build::EntryWriter;
use super::operation::*;
use super::segment::{AddressVector, SEGMENT, XrcSegment};
use super::umr::{BindMw, BindMwType1, UnbindMw, UnbindMwType1};
use crate::be::Be32;
use crate::op::{WrOpcode, most_segments, operations};
use crate::wr::QpType;

/// A transport service. Sealed.
pub trait Transport: Sealed {
    /// Its number in the verbs.
    const TYPE: QpType;
    /// Bytes of its address segments.
    const SEGMENTS: usize = address_bytes(Self::TYPE);
    /// Bytes of the longest operation's segments, behind the address.
    const LONGEST_OPERATION: usize = most_segments(Self::TYPE) * SEGMENT;
    /// The address of each request: nothing on connected transports.
    type Address<'a>: Copy;

    /// Writes the address segments at `offset`.
    #[doc(hidden)]
    fn write(address: Self::Address<'_>, entry: &mut EntryWriter, offset: usize);
}

/// Bytes of the address segments of requests on a transport.
pub(super) const fn address_bytes(transport: QpType) -> usize {
    match transport {
        QpType::Rc | QpType::Uc | QpType::XrcRecv => 0,
        QpType::XrcSend => size_of::<XrcSegment>(),
        QpType::Ud | QpType::Dci => size_of::<AddressVector>(),
    }
}

/// Implemented where the transport supports the operation (IBTA vol. 1, table "QP transport
/// services").
pub trait Supports<O: Operation>: Transport {}

/// The address of requests on transport `T`.
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

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct UdAddress<'a> {
    /// The path, from an address handle; its queue pair and Q_Key fields are replaced.
    pub av: &'a AddressVector,
    /// The receiver's queue pair number.
    pub remote_qpn: u32,
    /// The receiver's Q_Key.
    pub remote_qkey: u32,
}

/// The target of a dynamically connected request.
#[derive(Clone, Copy, Debug)]
pub struct DcAddress<'a> {
    /// The path, from an address handle; its target and key fields are replaced.
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
    ($($name:ident)*) => {$(
        impl Transport for $name {
            const TYPE: QpType = QpType::$name;
            type Address<'a> = ();

            #[inline(always)]
            fn write((): (), _: &mut EntryWriter, _: usize) {}
        }
    )*};
}

connected! { Rc Uc }

impl Transport for Ud {
    const TYPE: QpType = QpType::Ud;
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
    ($($(#[$doc:meta])* $name:ident = $number:literal, $verbs:literal, $opcode:ident;
        $layout:ident, $carries:ident, $imm:ident; $completes:ident, $receive:expr, $repeat:ident;
        [$($transport:ident)*], $types:tt;)*) => {
        $(supports!(@posts $name $types);)*
        $($(supports!(@on $transport $types);)*)*
    };
    (@posts $name:ident [$($operation:ty)*]) => {
        $(const _: () = assert!(<$operation>::OPERATION as u8 == WrOpcode::$name as u8);)*
    };
    (@on $transport:ident [$($operation:ty)*]) => {
        $(impl Supports<$operation> for $transport {})*
    };
}

operations!(supports);
