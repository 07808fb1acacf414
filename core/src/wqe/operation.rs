//! The operations of a send queue. Each is a type, so that the layout of its WQE is known at
//! compile time.

use super::build::EntryWriter;
use super::segment::{AtomicSegment, RaddrSegment, SEGMENT};
use crate::be::{Be32, Be64};
use crate::op::WrOpcode;
use crate::wr::{Remote, WcOpcode};

mod sealed {
    pub trait Sealed {}
}
pub(super) use sealed::Sealed;

/// A send operation. Sealed.
pub trait Operation: Sealed + Copy {
    /// Its row of the table of operations.
    const OPERATION: WrOpcode;
    /// The opcode of its WQE.
    const OPCODE: u8 = Self::OPERATION.row().opcode;
    /// The opcode of its completion.
    const WC: WcOpcode = Self::OPERATION.completes_as();
    /// Bytes of its own segments, which follow those of the transport.
    const SEGMENTS: usize = Self::OPERATION.row().layout.segments() * SEGMENT;
    /// Whether the transport's address segments come before its own. UMR work and NOPs have no
    /// destination.
    const ADDRESSED: bool = !Self::OPERATION.row().layout.is_local();
    /// Whether data may follow. Posting UMR work with a payload other than
    /// [`NoPayload`](super::NoPayload) does not compile.
    const CARRIES_DATA: bool = !Self::OPERATION.is_registration();
    /// Whether the next WQE has to wait for it, as for UMR work.
    const FENCES_NEXT: bool = Self::OPERATION.is_registration();

    /// Immediate data or key to invalidate, for the control segment.
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
        = imm $imm:expr, |$op:ident, $entry:ident, $offset:ident| $write:block;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl Sealed for $name {}

        impl Operation for $name {
            const OPERATION: WrOpcode = WrOpcode::$name;

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
    /// Send to the peer's next receive.
    Send {} = imm Be32::default(), |op, entry, offset| {};

    /// Send with immediate data.
    SendWithImm {
        /// Immediate data, in network byte order.
        imm: Be32
    } = imm op.imm, |op, entry, offset| {};

    /// Send, and invalidate a key at the peer.
    SendWithInv {
        /// The peer's key.
        rkey: u32
    } = imm Be32::new(op.rkey), |op, entry, offset| {};

    /// Write to the peer's memory.
    RdmaWrite {
        /// The peer's memory.
        remote: Remote
    } = imm Be32::default(), |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
    };

    /// Write to the peer's memory, and consume its next receive.
    RdmaWriteWithImm {
        /// The peer's memory.
        remote: Remote,
        /// Immediate data, in network byte order.
        imm: Be32
    } = imm op.imm, |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
    };

    /// Read the peer's memory.
    RdmaRead {
        /// The peer's memory.
        remote: Remote
    } = imm Be32::default(), |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
    };

    /// Replace eight bytes of the peer's memory if they equal `compare`; returns the old value.
    AtomicCmpAndSwp {
        /// The peer's memory, aligned to eight.
        remote: Remote,
        /// The value to compare with.
        compare: u64,
        /// The value to write.
        swap: u64
    } = imm Be32::default(), |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
        entry.put(offset + SEGMENT, AtomicSegment {
            swap_add: Be64::new(op.swap),
            compare: Be64::new(op.compare),
        });
    };

    /// Add to eight bytes of the peer's memory; returns the old value.
    AtomicFetchAndAdd {
        /// The peer's memory, aligned to eight.
        remote: Remote,
        /// The number to add, wrapping.
        add: u64
    } = imm Be32::default(), |op, entry, offset| {
        entry.put(offset, raddr(op.remote));
        entry.put(offset + SEGMENT, AtomicSegment {
            swap_add: Be64::new(op.add),
            compare: Be64::default(),
        });
    };

    /// Do nothing, and complete.
    Nop {} = imm Be32::default(), |op, entry, offset| {};
}

/// Invalidate a local key.
#[derive(Clone, Copy, Debug)]
pub struct LocalInv {
    /// The key.
    pub rkey: u32,
}
