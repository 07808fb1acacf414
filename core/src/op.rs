//! The operations of a send queue, in one table. What is known of an operation is a column of it, or
//! follows from one: its opcode, its name, the segments of its entries, its completion, the receive that
//! it consumes, whether it may be repeated, and the transports that support it.
//!
//! CONTRIBUTING.md shows what adding an operation takes.

use crate::wr::{QpType, WcOpcode, numbered};

/// Opcodes of send WQEs (`MLX5_OPCODE_*`).
pub mod opcode {
    /// Does nothing.
    pub const NOP: u8 = 0x00;
    /// SEND with invalidate.
    pub const SEND_INVAL: u8 = 0x01;
    /// RDMA WRITE.
    pub const RDMA_WRITE: u8 = 0x08;
    /// RDMA WRITE with immediate data.
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    /// SEND.
    pub const SEND: u8 = 0x0a;
    /// SEND with immediate data.
    pub const SEND_IMM: u8 = 0x0b;
    /// TCP segmentation offload; not posted by bellwire.
    pub const TSO: u8 = 0x0e;
    /// RDMA READ.
    pub const RDMA_READ: u8 = 0x10;
    /// Compare and swap.
    pub const ATOMIC_CS: u8 = 0x11;
    /// Fetch and add.
    pub const ATOMIC_FA: u8 = 0x12;
    /// Local invalidate in the form of older devices; bellwire posts UMR instead.
    pub const LOCAL_INVAL: u8 = 0x1b;
    /// Memory registration: LOCAL_INV and BIND_MW.
    pub const UMR: u8 = 0x25;
}

/// The table, as the arguments of the macro `$then`. For each operation:
///
/// - its number and name in the verbs ([`WrOpcode`]), and the [`opcode`] of its entries;
/// - [`Layout`], [`Carries`] and [`ImmField`] of its entries;
/// - what it completes as, at this end and, where it consumes a receive, at the peer; [`Repeat`];
/// - the transports that support it, and the types of [`wqe`](crate::wqe) by which it is posted.
macro_rules! operations {
    ($then:ident) => {
        $then! {
            /// Write to the peer's memory.
            RdmaWrite = 0, "RDMA_WRITE", RDMA_WRITE;
                Memory, Data, Unused; RdmaWrite, None, IfAllowed;
                [Rc Uc Xrc Dci], [RdmaWrite];

            /// Write, and consume a receive at the peer, whose completion has the immediate data.
            RdmaWriteWithImm = 1, "RDMA_WRITE_WITH_IMM", RDMA_WRITE_IMM;
                Memory, Data, Immediate; RdmaWrite, Some(WcOpcode::RecvRdmaWithImm), Never;
                [Rc Uc Xrc Dci], [RdmaWriteWithImm];

            /// Send to the peer's next receive.
            Send = 2, "SEND", SEND;
                Message, Data, Unused; Send, Some(WcOpcode::Recv), Never;
                [Rc Uc Ud Xrc Dci], [Send];

            /// Send with four bytes of immediate data.
            SendWithImm = 3, "SEND_WITH_IMM", SEND_IMM;
                Message, Data, Immediate; Send, Some(WcOpcode::Recv), Never;
                [Rc Uc Ud Xrc Dci], [SendWithImm];

            /// Read the peer's memory.
            RdmaRead = 4, "RDMA_READ", RDMA_READ;
                Memory, Result, Unused; RdmaRead, None, IfUndisturbed;
                [Rc Xrc Dci], [RdmaRead];

            /// Compare eight bytes and swap when equal.
            AtomicCmpAndSwp = 5, "ATOMIC_CMP_AND_SWP", ATOMIC_CS;
                CompareAndSwap, Result, Unused; CompSwap, None, Never;
                [Rc Xrc Dci], [AtomicCmpAndSwp];

            /// Add to eight bytes.
            AtomicFetchAndAdd = 6, "ATOMIC_FETCH_AND_ADD", ATOMIC_FA;
                FetchAndAdd, Result, Unused; FetchAdd, None, Never;
                [Rc Xrc Dci], [AtomicFetchAndAdd];

            /// Invalidate a local key.
            LocalInv = 7, "LOCAL_INV", UMR;
                Registration, Nothing, LocalKey; LocalInv, None, Never;
                [Rc Uc Xrc], [LocalInv];

            /// Bind a memory window.
            BindMw = 8, "BIND_MW", UMR;
                Registration, Nothing, LocalKey; BindMw, None, Never;
                [Rc Uc Xrc], [BindMw UnbindMw BindMwType1 UnbindMwType1];

            /// Send, and invalidate a key at the peer.
            SendWithInv = 9, "SEND_WITH_INV", SEND_INVAL;
                Message, Data, RemoteKey; Send, Some(WcOpcode::Recv), Never;
                [Rc Uc Xrc Dci], [SendWithInv];

            // Not posted by this crate. On a reliable connection it would be a SEND.
            /// Send with TCP segmentation offload (raw packets).
            Tso = 10, "TSO", TSO;
                Message, Data, Unused; Tso, Some(WcOpcode::Recv), Never;
                [], [];

            /// Do nothing, and complete.
            Nop = 255, "NOP", NOP;
                Control, Nothing, Unused; Nop, None, Harmless;
                [Rc Uc Ud Xrc Dci], [Nop];
        }
    };
}

pub(crate) use operations;

/// The segments of an entry before its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The control segment.
    Control,
    /// The control segment and memory registration work, which the requester's device executes alone.
    Registration,
    /// Control segment and the transport's address.
    Message,
    /// Control segment, the transport's address, remote address.
    Memory,
    /// As [`Memory`](Self::Memory), and the two operands of a compare and swap.
    CompareAndSwap,
    /// As [`Memory`](Self::Memory), and the operand of a fetch and add.
    FetchAndAdd,
}

impl Layout {
    /// Segments behind the transport's address, or behind the control segment where there is none. Those of
    /// registration work are counted by the types that post it.
    pub const fn segments(self) -> usize {
        match self {
            Self::Control | Self::Registration | Self::Message => 0,
            Self::Memory => 1,
            Self::CompareAndSwap | Self::FetchAndAdd => 2,
        }
    }

    /// Whether no packet is sent: the requester's device alone executes it.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Control | Self::Registration)
    }
}

/// What an entry's data segments are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// There are none.
    Nothing,
    /// Data for the peer.
    Data,
    /// The result, which comes from the peer.
    Result,
}

/// What the last word of an entry's control segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImmField {
    /// Nothing.
    Unused,
    /// Immediate data for the peer's completion.
    Immediate,
    /// The key that is invalidated at the peer.
    RemoteKey,
    /// The local key that is bound or invalidated.
    LocalKey,
}

/// Whether a request that may have been executed may be posted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Nobody can notice.
    Harmless,
    /// If nothing behind it may have changed what it accesses.
    IfUndisturbed,
    /// If the program guarantees that nobody depends on its target meanwhile.
    IfAllowed,
    /// Executing it twice is not the same as executing it once.
    Never,
}

/// An operation's row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The opcode of its entries, one of [`opcode`]. LOCAL_INV and BIND_MW have the same.
    pub opcode: u8,
    /// The segments of its entries before the data.
    pub layout: Layout,
    /// What the data is for.
    pub carries: Carries,
    /// What the last word of the control segment is.
    pub imm: ImmField,
    /// The opcode of its completion.
    pub completes_as: WcOpcode,
    /// The opcode of the completion of the peer's receive that it consumes, if it does.
    pub receive: Option<WcOpcode>,
    /// Whether it may be posted again where it may have been executed.
    pub repeat: Repeat,
}

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $verbs:literal, $opcode:ident;
        $layout:ident, $carries:ident, $imm:ident; $completes:ident, $receive:expr, $repeat:ident;
        [$($transport:ident)*], $types:tt;)*) => {
        numbered! {
            /// The operation of a send request (`ibv_wr_opcode`; NOP is an addition, the verbs have none).
            WrOpcode {
                $($(#[$doc])* $name = $number, $verbs;)*
            }
        }

        impl WrOpcode {
            /// Its row of the table. A match, so that the compiler knows the columns of a known operation.
            #[inline(always)]
            pub const fn row(self) -> Row {
                match self {
                    $(Self::$name => Row {
                        opcode: opcode::$opcode,
                        layout: Layout::$layout,
                        carries: Carries::$carries,
                        imm: ImmField::$imm,
                        completes_as: WcOpcode::$completes,
                        receive: $receive,
                        repeat: Repeat::$repeat,
                    },)*
                }
            }

            /// Whether the transport supports it (IBTA vol. 1, table "QP transport services").
            #[inline(always)]
            pub const fn runs_on(self, transport: QpType) -> bool {
                use transports::*;
                let transport = transport as u8;
                match self {
                    $(Self::$name => false $(|| transport == $transport)*,)*
                }
            }

            /// The operation of an entry with this opcode. [`BindMw`](Self::BindMw) for all registration
            /// work, whose segments say the rest. `None`: none has it.
            #[inline(always)]
            pub const fn of_opcode(code: u8) -> Option<Self> {
                match code {
                    $(opcode::$opcode if !matches!(Self::$name, Self::LocalInv) => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

/// The transports by their names in the table.
#[allow(non_upper_case_globals, reason = "the names of the transports' types")]
mod transports {
    use super::QpType;

    pub const Rc: u8 = QpType::Rc as u8;
    pub const Uc: u8 = QpType::Uc as u8;
    pub const Ud: u8 = QpType::Ud as u8;
    pub const Xrc: u8 = QpType::XrcSend as u8;
    pub const Dci: u8 = QpType::Dci as u8;
}

operations!(rows);

impl WrOpcode {
    /// The opcode of the completion of a request with this operation.
    #[inline(always)]
    pub const fn completes_as(self) -> WcOpcode {
        self.row().completes_as
    }

    /// Whether it consumes a receive at the peer.
    #[inline(always)]
    pub const fn consumes_receive(self) -> bool {
        self.row().receive.is_some()
    }

    /// Whether it brings data to the requester.
    #[inline(always)]
    pub const fn has_result(self) -> bool {
        matches!(self.row().carries, Carries::Result)
    }

    /// Whether it is memory registration work.
    #[inline(always)]
    pub const fn is_registration(self) -> bool {
        matches!(self.row().layout, Layout::Registration)
    }
}

/// The most segments behind the address that an operation on this transport has.
pub(crate) const fn most_segments(transport: QpType) -> usize {
    let (mut at, mut most) = (0, 0);
    while at < WrOpcode::ALL.len() {
        let operation = WrOpcode::ALL[at];
        let segments = operation.row().layout.segments();
        if operation.runs_on(transport) && segments > most {
            most = segments;
        }
        at += 1;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn an_opcode_names_the_operation_that_has_it() {
        for code in 0..=u8::MAX {
            let all = WrOpcode::ALL.iter().copied();
            let have: Vec<_> = all
                .filter(|operation| operation.row().opcode == code)
                .collect();
            match WrOpcode::of_opcode(code) {
                Some(WrOpcode::BindMw) => assert_eq!(have, [WrOpcode::LocalInv, WrOpcode::BindMw]),
                found => assert!(found.iter().eq(&have)),
            }
        }
    }

    /// What the columns say of each other.
    #[test]
    fn the_columns_agree() {
        for &operation in WrOpcode::ALL {
            let row = operation.row();
            let nothing = matches!(row.carries, Carries::Nothing);
            assert_eq!(row.layout.is_local(), nothing, "{operation}");
            assert!(!row.completes_as.is_recv(), "{operation}");
            if let Some(receive) = row.receive {
                assert!(receive.is_recv() && !operation.has_result(), "{operation}");
                assert_eq!(row.repeat, Repeat::Never, "{operation}");
            }
            let gives = matches!(row.imm, ImmField::Immediate | ImmField::RemoteKey);
            assert!(!gives || row.receive.is_some(), "{operation}");
            assert_eq!(row.imm == ImmField::LocalKey, operation.is_registration());
        }
    }
}
