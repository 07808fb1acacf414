//! The vocabulary of work requests that every provider speaks. Numbers are those of the verbs
//! (`ibv_wr_opcode`, `ibv_wc_status`, `ibv_wc_opcode`, `ibv_send_flags`), so that the C ABI and
//! libibverbs need no translation.

pub use crate::fault::WcStatus;
use bitflags::bitflags;

/// A scatter/gather element: `length` bytes at `addr`, reached through the local key `lkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address in the address space of the memory region.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

/// A place in the peer's memory: the target of a WRITE, READ or atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Remote {
    /// Address in the address space of the peer's memory region.
    pub addr: u64,
    /// The peer's key for it.
    pub rkey: u32,
}

bitflags! {
    /// What a send request asks for beside its operation (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Start only when all earlier READs and atomics of this queue have completed.
        const FENCE = 1 << 0;
        /// Write a completion entry when done.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// Carry the payload within the entry; its memory may be reused as soon as it is posted.
        const INLINE = 1 << 3;
    }
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $value,)*
        }

        impl $name {
            /// Every value, in the order of their numbers.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The value with this number.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($value => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// The number that the verbs give it.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// Its name in the verbs, without the prefix.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use numbered;

numbered! {
    /// The operation of a send request (`ibv_wr_opcode`; NOP is ours, the verbs have none).
    WrOpcode {
        /// Write to the peer's memory.
        RdmaWrite = 0, "RDMA_WRITE";
        /// Write, and consume a receive at the peer, which completes with the immediate.
        RdmaWriteWithImm = 1, "RDMA_WRITE_WITH_IMM";
        /// Send into the peer's next receive.
        Send = 2, "SEND";
        /// Send with four bytes of immediate data.
        SendWithImm = 3, "SEND_WITH_IMM";
        /// Read the peer's memory.
        RdmaRead = 4, "RDMA_READ";
        /// Compare eight bytes and swap when equal.
        AtomicCmpAndSwp = 5, "ATOMIC_CMP_AND_SWP";
        /// Add to eight bytes.
        AtomicFetchAndAdd = 6, "ATOMIC_FETCH_AND_ADD";
        /// Invalidate a local key.
        LocalInv = 7, "LOCAL_INV";
        /// Bind a memory window.
        BindMw = 8, "BIND_MW";
        /// Send, and invalidate a key at the peer.
        SendWithInv = 9, "SEND_WITH_INV";
        /// Send with TCP segmentation (raw packets).
        Tso = 10, "TSO";
        /// Do nothing, and complete.
        Nop = 255, "NOP";
    }
}

numbered! {
    /// What completed (`ibv_wc_opcode`; NOP is ours).
    WcOpcode {
        /// A SEND, with or without immediate or invalidation.
        Send = 0, "SEND";
        /// An RDMA WRITE, with or without immediate.
        RdmaWrite = 1, "RDMA_WRITE";
        /// An RDMA READ.
        RdmaRead = 2, "RDMA_READ";
        /// A compare and swap.
        CompSwap = 3, "COMP_SWAP";
        /// A fetch and add.
        FetchAdd = 4, "FETCH_ADD";
        /// A memory window bind.
        BindMw = 5, "BIND_MW";
        /// A local invalidate.
        LocalInv = 6, "LOCAL_INV";
        /// A TSO send.
        Tso = 7, "TSO";
        /// A NOP.
        Nop = 127, "NOP";
        /// A receive that a SEND consumed.
        Recv = 128, "RECV";
        /// A receive that an RDMA WRITE with immediate consumed.
        RecvRdmaWithImm = 129, "RECV_RDMA_WITH_IMM";
    }
}

numbered! {
    /// The kind of a memory window (`ibv_mw_type`).
    MwType {
        /// Bound by the protection domain's queue pairs, reached through any of them.
        Type1 = 1, "TYPE_1";
        /// Bound by a queue pair's work request, and reached through that queue pair alone.
        Type2 = 2, "TYPE_2";
    }
}

impl WrOpcode {
    /// What a request with this operation completes as.
    pub const fn completes_as(self) -> WcOpcode {
        match self {
            Self::RdmaWrite | Self::RdmaWriteWithImm => WcOpcode::RdmaWrite,
            Self::Send | Self::SendWithImm | Self::SendWithInv => WcOpcode::Send,
            Self::RdmaRead => WcOpcode::RdmaRead,
            Self::AtomicCmpAndSwp => WcOpcode::CompSwap,
            Self::AtomicFetchAndAdd => WcOpcode::FetchAdd,
            Self::LocalInv => WcOpcode::LocalInv,
            Self::BindMw => WcOpcode::BindMw,
            Self::Tso => WcOpcode::Tso,
            Self::Nop => WcOpcode::Nop,
        }
    }
}

impl WcOpcode {
    /// Whether this belongs to a receive queue (`opcode & IBV_WC_RECV`).
    #[inline]
    pub const fn is_recv(self) -> bool {
        self as u8 & 128 != 0
    }
}

numbered! {
    /// A transport service (`ibv_qp_type`).
    QpType {
        /// Reliable connection.
        Rc = 2, "RC";
        /// Unreliable connection.
        Uc = 3, "UC";
        /// Unreliable datagram.
        Ud = 4, "UD";
        /// Extended reliable connection, initiator.
        XrcSend = 9, "XRC_SEND";
        /// Extended reliable connection, target.
        XrcRecv = 10, "XRC_RECV";
        /// Initiator of the device's dynamically connected service.
        Dci = 255, "DRIVER";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_values_agree() {
        for number in 0..=u8::MAX {
            if let Some(opcode) = WcOpcode::from_number(number) {
                assert_eq!(opcode.number(), number);
            }
        }
        assert!(WcOpcode::RecvRdmaWithImm.is_recv() && !WcOpcode::Nop.is_recv());
    }
}
