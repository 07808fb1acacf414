//! The operations of a send queue, each a type: what it adds to the entry is settled at compile
//! time.

use super::build::EntryWriter;
use super::segment::{AtomicSegment, RaddrSegment, SEGMENT, opcode};
use crate::be::{Be32, Be64};
use crate::wr::{Remote, WcOpcode};

mod sealed {
    pub trait Sealed {}
}
pub(super) use sealed::Sealed;

/// A send operation. Sealed: the device knows no others.
pub trait Operation: Sealed + Copy {
    /// The entry's operation code.
    const OPCODE: u8;
    /// What its completion is called.
    const WC: WcOpcode;
    /// Bytes of its own segments, behind the transport's.
    const SEGMENTS: usize;
    /// Whether the transport's address segments stand before its own. Registration work and NOPs
    /// go to nobody.
    const ADDRESSED: bool = true;
    /// Whether data may follow. Posting registration work with a payload other than
    /// [`NoPayload`](super::NoPayload) does not compile.
    const CARRIES_DATA: bool = true;
    /// Registration work: the next entry waits for it.
    const FENCES_NEXT: bool = false;

    /// Immediate data or key to invalidate, in the control segment.
    #[inline(always)]
    fn imm(&self) -> Be32 {
        Be32::default()
    }

    /// Writes the operation's segments from `offset` on.
    #[doc(hidden)]
    fn write(&self, qpn: u32, entry: &mut EntryWriter, offset: usize);
}

#[inline(always)]
fn raddr(remote: Remote) -> [Be64; 2] {
    RaddrSegment {
        raddr: Be64::new(remote.addr),
        rkey: Be32::new(remote.rkey),
        reserved: Be32::default(),
    }
    .words()
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* }
        = $opcode:ident, $wc:ident, $segments:literal, imm $imm:expr, |$op:ident, $entry:ident, $offset:ident| $write:block;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl Sealed for $name {}

        impl Operation for $name {
            const OPCODE: u8 = opcode::$opcode;
            const WC: WcOpcode = WcOpcode::$wc;
            const SEGMENTS: usize = $segments * SEGMENT;

            #[inline(always)]
            fn imm(&self) -> Be32 {
                let $op = self;
                let _ = $op;
                $imm
            }

            #[inline(always)]
            fn write(&self, _qpn: u32, $entry: &mut EntryWriter, $offset: usize) {
                let $op = self;
                let _ = ($op, &$entry, $offset);
                $write
            }
        }
    )*};
}

operations! {
    /// Send into the peer's next receive.
    Send {} = SEND, Send, 0, imm Be32::default(), |op, entry, offset| {};

    /// Send with immediate data.
    SendWithImm {
        /// Immediate data, in the order in which it is to arrive.
        imm: Be32
    } = SEND_IMM, Send, 0, imm op.imm, |op, entry, offset| {};

    /// Send, and invalidate the peer's key.
    SendWithInv {
        /// The peer's key.
        rkey: u32
    } = SEND_INVAL, Send, 0, imm Be32::new(op.rkey), |op, entry, offset| {};

    /// Write to the peer's memory.
    RdmaWrite {
        /// Where.
        remote: Remote
    } = RDMA_WRITE, RdmaWrite, 1, imm Be32::default(), |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
    };

    /// Write to the peer's memory, and complete its next receive.
    RdmaWriteWithImm {
        /// Where.
        remote: Remote,
        /// Immediate data, in the order in which it is to arrive.
        imm: Be32
    } = RDMA_WRITE_IMM, RdmaWrite, 1, imm op.imm, |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
    };

    /// Read the peer's memory.
    RdmaRead {
        /// From where.
        remote: Remote
    } = RDMA_READ, RdmaRead, 1, imm Be32::default(), |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
    };

    /// Replace eight bytes of the peer's memory if they equal `compare`; the old value comes back.
    AtomicCmpAndSwp {
        /// Where, aligned to eight.
        remote: Remote,
        /// The value expected.
        compare: u64,
        /// The value to put in its place.
        swap: u64
    } = ATOMIC_CS, CompSwap, 2, imm Be32::default(), |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
        entry.put(offset + SEGMENT, AtomicSegment {
            swap_add: Be64::new(op.swap),
            compare: Be64::new(op.compare),
        });
    };

    /// Add to eight bytes of the peer's memory; the old value comes back.
    AtomicFetchAndAdd {
        /// Where, aligned to eight.
        remote: Remote,
        /// What to add, wrapping.
        add: u64
    } = ATOMIC_FA, FetchAdd, 2, imm Be32::default(), |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
        entry.put(offset + SEGMENT, AtomicSegment {
            swap_add: Be64::new(op.add),
            compare: Be64::default(),
        });
    };
}

/// Do nothing, and complete.
#[derive(Clone, Copy, Debug)]
pub struct Nop {}

impl Sealed for Nop {}

impl Operation for Nop {
    const OPCODE: u8 = opcode::NOP;
    const WC: WcOpcode = WcOpcode::Nop;
    const SEGMENTS: usize = 0;
    const ADDRESSED: bool = false;

    #[inline(always)]
    fn write(&self, _qpn: u32, _: &mut EntryWriter, _: usize) {}
}

/// Invalidate a key of this side.
#[derive(Clone, Copy, Debug)]
pub struct LocalInv {
    /// The key.
    pub rkey: u32,
}
