//! Random requests: what both sides are asked for.

use bellwire::wr::{Remote, SendFlags, Sge, WcOpcode};
use bellwire_tests::fixture::Random;
use std::fmt;

/// What a send request is to do.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Send,
    /// Immediate data as it lies in memory.
    SendImm(u32),
    SendInv(u32),
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    CmpSwap(Remote, u64, u64),
    FetchAdd(Remote, u64),
    LocalInv(u32),
    Bind(Bind),
}

/// Binding a window of type 2; without a length, unbinding it.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// Which of the windows there are.
    pub window: usize,
    pub new_rkey: u32,
    pub addr: u64,
    pub length: u32,
    pub access: u32,
}

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
    LocalInv,
    Bind,
}

impl Op {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Send => Kind::Send,
            Self::SendImm(_) => Kind::SendImm,
            Self::SendInv(_) => Kind::SendInv,
            Self::Write(_) => Kind::Write,
            Self::WriteImm(..) => Kind::WriteImm,
            Self::Read(_) => Kind::Read,
            Self::CmpSwap(..) => Kind::CmpSwap,
            Self::FetchAdd(..) => Kind::FetchAdd,
            Self::LocalInv(_) => Kind::LocalInv,
            Self::Bind(_) => Kind::Bind,
        }
    }
}

impl Kind {
    fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }

    /// Whether bytes come back, which a completion may carry.
    pub fn brings(self) -> bool {
        self == Self::Read || self.is_atomic()
    }

    fn carries_data(self) -> bool {
        !matches!(self, Self::LocalInv | Self::Bind)
    }

    /// What its completion is called.
    pub fn completes_as(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm | Self::SendInv => WcOpcode::Send,
            Self::Write | Self::WriteImm => WcOpcode::RdmaWrite,
            Self::Read => WcOpcode::RdmaRead,
            Self::CmpSwap => WcOpcode::CompSwap,
            Self::FetchAdd => WcOpcode::FetchAdd,
            Self::LocalInv => WcOpcode::LocalInv,
            Self::Bind => WcOpcode::BindMw,
        }
    }

    /// The operation code of its entry.
    pub fn opcode(self) -> u8 {
        use bellwire::wqe::opcode as code;
        match self {
            Self::Send => code::SEND,
            Self::SendImm => code::SEND_IMM,
            Self::SendInv => code::SEND_INVAL,
            Self::Write => code::RDMA_WRITE,
            Self::WriteImm => code::RDMA_WRITE_IMM,
            Self::Read => code::RDMA_READ,
            Self::CmpSwap => code::ATOMIC_CS,
            Self::FetchAdd => code::ATOMIC_FA,
            Self::LocalInv | Self::Bind => code::UMR,
        }
    }
}

/// Where a datagram goes: which of the address handles there are, queue pair, key.
#[derive(Clone, Copy, Debug, Default)]
pub struct To {
    pub ah: usize,
    pub qpn: u32,
    pub qkey: u32,
}

/// A send request.
#[derive(Clone)]
pub struct Request {
    pub wr_id: u64,
    pub op: Op,
    /// Without `INLINE`, which is `inline`.
    pub flags: SendFlags,
    pub sges: Vec<Sge>,
    pub inline: bool,
    pub to: To,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths: Vec<u32> = self.sges.iter().map(|sge| sge.length).collect();
        let inline = if self.inline { " inline" } else { "" };
        let Self { op, flags, .. } = self;
        write!(f, "{op:?} {flags:?}{inline} {lengths:?}")
    }
}

/// Memory that completions of either side may write to, and inline data comes from.
#[derive(Debug)]
pub struct Arena(*mut u8);

impl Arena {
    pub const BYTES: usize = 4096;

    pub fn new() -> Self {
        Self(Box::leak(Box::new([0_u8; Self::BYTES])).as_mut_ptr())
    }

    pub fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), Self::BYTES);
        // SAFETY: the memory, which nobody else uses meanwhile.
        unsafe { self.0.copy_from_nonoverlapping(bytes.as_ptr(), Self::BYTES) };
    }

    pub fn content(&self) -> Vec<u8> {
        // SAFETY: the memory, which nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.0, Self::BYTES) }.to_vec()
    }

    pub fn start(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// The bytes of an element that lies here.
    pub fn bytes(&self, sge: &Sge) -> &[u8] {
        let offset = (sge.addr - self.start()) as usize;
        assert!(offset + sge.length as usize <= Self::BYTES);
        // SAFETY: within the memory, which nobody writes while requests are posted.
        unsafe { std::slice::from_raw_parts(self.0.add(offset), sge.length as usize) }
    }

    /// An element of this length.
    pub fn element(&self, random: &mut Random, length: u32) -> Sge {
        let room = Self::BYTES as u64 - u64::from(length);
        Sge {
            addr: self.start() + random.below(room + 1),
            length,
            lkey: key(random),
        }
    }
}

/// A key that ends no list of elements.
fn key(random: &mut Random) -> u32 {
    (random.number() >> 32) as u32 | 0x1_0000
}

/// One of two, the first as often as said in a hundred.
pub fn chance(random: &mut Random, percent: u64) -> bool {
    random.below(100) < percent
}

/// What requests may be like.
#[derive(Clone, Debug)]
pub struct Limits {
    pub kinds: &'static [Kind],
    pub max_sge: u32,
    pub max_inline: u32,
    pub handles: usize,
    pub windows: usize,
}

/// A few lengths that matter, and all others.
fn length(random: &mut Random, max: u32) -> u32 {
    match random.below(6) {
        0 => 0,
        1 => max,
        _ => random.below(u64::from(max) + 1) as u32,
    }
}

fn op(random: &mut Random, limits: &Limits) -> Op {
    let kind = limits.kinds[random.below(limits.kinds.len() as u64) as usize];
    let word = (random.number() >> 32) as u32;
    let remote = Remote {
        addr: random.number(),
        rkey: (random.number() >> 32) as u32,
    };
    match kind {
        Kind::Send => Op::Send,
        Kind::SendImm => Op::SendImm(word),
        Kind::SendInv => Op::SendInv(word),
        Kind::Write => Op::Write(remote),
        Kind::WriteImm => Op::WriteImm(remote, word),
        Kind::Read => Op::Read(remote),
        Kind::CmpSwap => Op::CmpSwap(remote, random.number(), random.number()),
        Kind::FetchAdd => Op::FetchAdd(remote, random.number()),
        Kind::LocalInv => Op::LocalInv(word),
        Kind::Bind => Op::Bind(Bind {
            window: random.below(limits.windows as u64) as usize,
            new_rkey: word,
            addr: remote.addr,
            length: if chance(random, 30) {
                0
            } else {
                1 + length(random, (1 << 31) - 1)
            },
            access: access(random),
        }),
    }
}

/// LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, ZERO_BASED, in any combination.
fn access(random: &mut Random) -> u32 {
    random.below(16) as u32 | (random.below(2) as u32) << 5
}

impl Request {
    pub fn random(random: &mut Random, limits: &Limits, arena: &Arena) -> Self {
        let op = op(random, limits);
        let kind = op.kind();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, chance(random, 60));
        flags.set(SendFlags::SOLICITED, chance(random, 20));
        flags.set(SendFlags::FENCE, chance(random, 20));
        let inline = kind.carries_data() && !kind.brings() && chance(random, 40);
        let sges = match () {
            () if !kind.carries_data() => Vec::new(),
            () if kind.is_atomic() => vec![arena.element(random, 8)],
            () if inline => pieces(random, limits, arena),
            () => {
                let count = length(random, limits.max_sge);
                (0..count)
                    .map(|_| element(random, arena, kind.brings()))
                    .collect()
            }
        };
        Self {
            wr_id: random.number(),
            op,
            flags,
            sges,
            inline,
            to: To {
                ah: random.below(limits.handles.max(1) as u64) as usize,
                qpn: (random.number() >> 40) as u32,
                qkey: (random.number() >> 32) as u32,
            },
        }
    }
}

/// Inline data of any length there may be, in pieces.
fn pieces(random: &mut Random, limits: &Limits, arena: &Arena) -> Vec<Sge> {
    let mut left = length(random, limits.max_inline);
    let count = if chance(random, 60) {
        1
    } else {
        1 + random.below(u64::from(limits.max_sge))
    };
    let mut pieces = Vec::new();
    for at in 0..count {
        let now = if at + 1 == count {
            left
        } else {
            random.below(u64::from(left) + 1) as u32
        };
        pieces.push(arena.element(random, now));
        left -= now;
    }
    pieces
}

/// An element of a request: in memory that may be written, or anywhere.
fn element(random: &mut Random, arena: &Arena, written: bool) -> Sge {
    let short = if chance(random, 10) {
        0
    } else {
        1 + random.below(96) as u32
    };
    if written {
        return arena.element(random, short);
    }
    Sge {
        addr: random.number(),
        length: if chance(random, 50) {
            short
        } else {
            (random.number() >> 33) as u32
        },
        lkey: key(random),
    }
}

/// A receive: identifier and elements.
pub fn receive(random: &mut Random, max_sge: u32, arena: &Arena) -> (u64, Vec<Sge>) {
    let count = length(random, max_sge);
    let sges = (0..count).map(|_| element(random, arena, true)).collect();
    (random.number(), sges)
}
