//! Opcodes, statuses and flags of work requests, common to all providers. The numbers are those of
//! the verbs (`ibv_wr_opcode`, `ibv_wc_status`, `ibv_wc_opcode`, `ibv_send_flags`), so that the C
//! ABI and libibverbs need no translation.

pub use crate::fault::WcStatus;
pub use crate::op::WrOpcode;
use bitflags::bitflags;

/// A scatter/gather element: `length` bytes at `addr`, accessed by the local key `lkey`.
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

/// An address in the peer's memory: the target of an RDMA WRITE, RDMA READ or atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Remote {
    /// Address in the address space of the peer's memory region.
    pub addr: u64,
    /// The peer's rkey of this memory.
    pub rkey: u32,
}

bitflags! {
    /// Flags of a send request (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Start only after all earlier RDMA READs and atomics of this queue have completed.
        const FENCE = 1 << 0;
        /// Write a CQE on completion.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// Copy the payload into the WQE; its memory may be reused as soon as the request is
        /// posted.
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

            /// Its number in the verbs.
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
    /// The operation of a completed request (`ibv_wc_opcode`; NOP is an addition).
    WcOpcode {
        /// A SEND, with or without immediate data or invalidation.
        Send = 0, "SEND";
        /// An RDMA WRITE, with or without immediate data.
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
        /// A receive that was consumed by a SEND.
        Recv = 128, "RECV";
        /// A receive that was consumed by an RDMA WRITE with immediate data.
        RecvRdmaWithImm = 129, "RECV_RDMA_WITH_IMM";
    }
}

numbered! {
    /// The type of a memory window (`ibv_mw_type`).
    MwType {
        /// Bound by queue pairs of the protection domain, accessible through any of them.
        Type1 = 1, "TYPE_1";
        /// Bound by a work request of a queue pair, accessible through that queue pair only.
        Type2 = 2, "TYPE_2";
    }
}

impl WcOpcode {
    /// Whether this is the completion of a receive (`opcode & IBV_WC_RECV`).
    #[inline]
    pub const fn is_recv(self) -> bool {
        self as u8 & 128 != 0
    }

    /// Bytes received, or returned by an RDMA READ or atomic, where the CQE says `byte_cnt`. `None` where
    /// the verbs define no length.
    #[inline(always)]
    pub(crate) const fn byte_len(self, byte_cnt: u32) -> Option<u32> {
        match self {
            Self::Recv | Self::RecvRdmaWithImm | Self::RdmaRead => Some(byte_cnt),
            // Atomics return 8 bytes, regardless of the count in the CQE.
            Self::CompSwap | Self::FetchAdd => Some(8),
            Self::Send
            | Self::RdmaWrite
            | Self::BindMw
            | Self::LocalInv
            | Self::Tso
            | Self::Nop => None,
        }
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
