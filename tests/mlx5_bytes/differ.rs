//! What may differ, and why; and the comparison of what was written, which knows it.

use crate::Check;
use crate::place::{REGISTERS, UNTOUCHED};
use crate::request::{Op, Request};
use bellwire_tests::vectors::to_hex;
use std::fmt::Debug;
use std::ops::Range;

/// Where both sides may differ. Everything else is compared bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// Two queue pairs have two numbers. Each side's own is looked for where it belongs, and replaced.
    QpNumber,
    /// What the device does not look at libmlx5 leaves as it was, and bellwire has zeroes there: the
    /// immediate of requests that have none (`ibv_wr_*`), what FETCH_ADD would compare with
    /// (`ibv_post_send`), and of registration work (LOCAL_INV, BIND_MW) the fields of a key that the mask
    /// leaves out, and padding.
    LeftUnwritten,
    /// Which half of a register is next: others may have rung it before. Halves have to alternate.
    RegisterHalf,
    /// In which order a shared receive queue's entries are free again: libmlx5 takes the one that was
    /// completed first, bellwire the one that was completed last. Entries are compared in the order in which
    /// they are posted, but for the links (2 bytes) that say it.
    FreeList,
    /// The operation code that an entry says was executed is not what was posted: libmlx5 believes the
    /// entry, bellwire its record. What core reads of the entry has to be what libmlx5 reports.
    OperationOnRecord,
    /// The same, where libmlx5 reports nothing (an operation code that it does not know), or, of
    /// registration work, what it has on record itself.
    OperationUnknown,
    /// Payload stands where an entry of 64 bytes names the source: libmlx5 reports payload as source, and
    /// bellwire none.
    SourceUnderPayload,
    /// An opcode that completes nothing, or a queue that is not there: `ibv_poll_cq` fails, or reports a
    /// completion of nothing. bellwire drops the entry, and counts it as stale.
    CompletesNothing,
}

impl Difference {
    pub const ALL: [Self; 8] = [
        Self::QpNumber,
        Self::LeftUnwritten,
        Self::RegisterHalf,
        Self::FreeList,
        Self::OperationOnRecord,
        Self::OperationUnknown,
        Self::SourceUnderPayload,
        Self::CompletesNothing,
    ];
}

/// Bytes of half a register.
const HALF: usize = 256;

/// What posting wrote.
#[derive(Clone, Debug)]
pub struct Written {
    /// Of each entry, up to the end of its last block.
    pub entries: Vec<Vec<u8>>,
    pub record: [u8; 4],
    pub registers: Vec<u8>,
}

pub fn same<T: PartialEq + Debug>(what: &str, ours: T, theirs: T) -> Check {
    if ours == theirs {
        return Ok(());
    }
    Err(format!("{what}: bellwire {ours:x?}, libmlx5 {theirs:x?}").into())
}

pub fn same_bytes(what: &str, ours: &[u8], theirs: &[u8]) -> Check {
    if ours == theirs {
        return Ok(());
    }
    let at = (ours.iter().zip(theirs)).position(|(ours, theirs)| ours != theirs);
    let (ours, theirs) = (to_hex(ours), to_hex(theirs));
    Err(format!("{what}, byte {at:?}: bellwire\n{ours}, libmlx5\n{theirs}").into())
}

/// Replaces the number of libmlx5's queue pair in an entry, or in a copy of its beginning, by ours.
fn renumber(bytes: &mut [u8], request: &Request, ours: u32, theirs: u32) -> Check {
    const CTRL: usize = 4;
    /// Of the context of a key, behind control segments of 16 and of 48 bytes.
    const OWNER: usize = 16 + 48 + 4;
    let bound = matches!(request.op, Op::Bind(bind) if bind.length != 0);
    for at in [CTRL].into_iter().chain(bound.then_some(OWNER)) {
        let Some(number) = bytes.get_mut(at..at + 3) else {
            continue;
        };
        // A write of eight bytes has only the first.
        if at == OWNER && number.iter().all(|&byte| byte == UNTOUCHED) {
            continue;
        }
        same("its own number", &theirs.to_be_bytes()[1..], number)?;
        number.copy_from_slice(&ours.to_be_bytes()[1..]);
    }
    Ok(())
}

/// Where in an entry libmlx5 may leave bytes as they were.
fn left_alone(op: &Op) -> &'static [Range<usize>] {
    const IMM: Range<usize> = 12..16;
    /// Behind the control segment, the remote address and the number that is added.
    const COMPARE: Range<usize> = 40..48;
    /// Behind the control segments of 16 and of 48 bytes: the key's context, and what it is bound to.
    const KEY: Range<usize> = 64..192;
    match op {
        Op::LocalInv(_) | Op::Bind(_) => &[KEY],
        Op::SendImm(_) | Op::SendInv(_) | Op::WriteImm(..) => &[],
        Op::FetchAdd(..) => &[IMM, COMPARE],
        _ => &[IMM],
    }
}

/// Puts zeroes where libmlx5 left bytes as they were and bellwire has zeroes. Whether there were any.
fn complete(ours: &[u8], theirs: &mut [u8], request: &Request) -> bool {
    let mut left = false;
    for at in left_alone(&request.op).iter().flat_map(Range::clone) {
        if let (Some(0), Some(theirs @ &mut UNTOUCHED)) = (ours.get(at), theirs.get_mut(at)) {
            *theirs = 0;
            left = true;
        }
    }
    left
}

/// The half of a register that was written: its index, and its bytes.
fn half(registers: &[u8]) -> Check<(usize, Vec<u8>)> {
    let halves = registers.chunks(HALF).enumerate();
    let mut written = halves.filter(|(_, half)| half.iter().any(|&byte| byte != UNTOUCHED));
    match (written.next(), written.next()) {
        (Some((at, half)), None) => Ok((at, half.to_vec())),
        (None, _) => Err("no register was rung".into()),
        (Some((first, _)), Some((second, _))) => {
            let at = |half: usize| REGISTERS + half * HALF;
            Err(format!("rung at {:#x} and {:#x}", at(first), at(second)).into())
        }
    }
}

/// Compares what posting these requests wrote. Gives the halves that were rung, and whether libmlx5 has
/// left something unwritten.
pub fn posted(
    requests: &[Request],
    (ours, our_qpn): (&Written, u32),
    (theirs, their_qpn): (&Written, u32),
) -> Check<([usize; 2], bool)> {
    let mut unwritten = false;
    for (at, request) in requests.iter().enumerate() {
        let mut entry = theirs.entries[at].clone();
        unwritten |= complete(&ours.entries[at], &mut entry, request);
        renumber(&mut entry, request, our_qpn, their_qpn)
            .and_then(|()| same_bytes("entry", &ours.entries[at], &entry))
            .map_err(|error| format!("request {at} of {}, {request:?}: {error}", requests.len()))?;
    }
    same("record of sends", ours.record, theirs.record)?;
    let (our_half, ours) = half(&ours.registers).map_err(|error| format!("bellwire: {error}"))?;
    let (their_half, mut theirs) =
        half(&theirs.registers).map_err(|error| format!("libmlx5: {error}"))?;
    if let Some(last) = requests.last() {
        complete(&ours, &mut theirs, last);
        renumber(&mut theirs, last, our_qpn, their_qpn)
            .and_then(|()| same_bytes("register", &ours, &theirs))
            .map_err(|error| format!("after {last:?}: {error}"))?;
    }
    Ok(([our_half, their_half], unwritten))
}
