//! What a program posts, and what it keeps in mind of it.
//!
//! A request's identity is its length: no two of a schedule are of the same. So the device's journal,
//! which says of each execution how many bytes it had, says which request it was.

use bellwire::Block;
use bellwire::Region;
use bellwire::be::Be32;
use bellwire::connect::RemoteMemory;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Link, LinkError};
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags};
use std::time::Duration;

/// Bytes of a block, and of a place that is written to.
pub const BLOCK: usize = 256;
/// Requests of one end, at the most.
pub const REQUESTS: usize = 112;
/// Places that several requests write to.
pub const SHARED: usize = 3;

const SHORTEST: usize = 16;
/// Where the words of atomics begin, behind the places of each request and the shared ones.
pub const WORDS: usize = (REQUESTS + SHARED) * BLOCK;
/// Bytes of memory that each end opens to the other.
pub const MEMORY: usize = WORDS + REQUESTS * 8;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Send,
    SendWithImm,
    Write,
    WriteWithImm,
    Read,
    FetchAndAdd,
    CompareAndSwap,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Send,
        Self::SendWithImm,
        Self::Write,
        Self::WriteWithImm,
        Self::Read,
        Self::FetchAndAdd,
        Self::CompareAndSwap,
    ];

    pub const fn opcode(self) -> u8 {
        match self {
            Self::Send => opcode::SEND,
            Self::SendWithImm => opcode::SEND_IMM,
            Self::Write => opcode::RDMA_WRITE,
            Self::WriteWithImm => opcode::RDMA_WRITE_IMM,
            Self::Read => opcode::RDMA_READ,
            Self::FetchAndAdd => opcode::ATOMIC_FA,
            Self::CompareAndSwap => opcode::ATOMIC_CS,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendWithImm => "SEND_WITH_IMM",
            Self::Write => "RDMA_WRITE",
            Self::WriteWithImm => "RDMA_WRITE_WITH_IMM",
            Self::Read => "RDMA_READ",
            Self::FetchAndAdd => "FETCH_AND_ADD",
            Self::CompareAndSwap => "CMP_AND_SWP",
        }
    }

    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAndAdd | Self::CompareAndSwap)
    }

    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteWithImm)
    }

    pub const fn consumes(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::WriteWithImm)
    }

    /// Whether its data comes back.
    pub const fn has_result(self) -> bool {
        matches!(self, Self::Read) || self.is_atomic()
    }
}

/// Which request of which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    pub end: usize,
    pub index: usize,
}

impl Id {
    pub const fn length(self) -> usize {
        SHORTEST + 2 * self.index + self.end
    }

    /// Of whom a message of this length is.
    pub fn of_length(length: u64) -> Option<Self> {
        let at = (length as usize).checked_sub(SHORTEST)?;
        Some(Self {
            end: at % 2,
            index: at / 2,
        })
    }

    /// The bytes that it carries.
    pub fn bytes(self) -> Vec<u8> {
        let byte = |at: usize| (self.index * 37 + at * 11 + self.end * 101 + 1) as u8;
        (0..self.length()).map(byte).collect()
    }

    pub fn imm(self) -> Be32 {
        Be32::new(self.length() as u32)
    }

    /// The word that only this atomic works on.
    pub const fn word(self) -> usize {
        WORDS + self.index * 8
    }
}

/// A send request.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: Id,
    pub kind: Kind,
    pub flags: SendFlags,
    pub inline: bool,
    pub policy: Replay,
    /// Where in the peer's memory.
    pub at: usize,
    pub outcome: Option<Outcome>,
    /// How often the device executed it; of atomics see the words.
    pub executed: u32,
    /// Its receive completed with the peer's program.
    pub received: bool,
    /// What a READ found, when last executed.
    pub found: Vec<u8>,
    /// How often it had been executed when it was cancelled.
    pub cancelled: Option<u32>,
    /// When its deadline passes.
    pub deadline: Option<Duration>,
}

impl Request {
    pub fn length(&self) -> usize {
        if self.kind.is_atomic() {
            8
        } else {
            self.id.length()
        }
    }

    pub fn signaled(&self) -> bool {
        self.flags.contains(SendFlags::SIGNALED)
    }

    /// Stages it; `block` for those that are not inline.
    pub fn post(
        &self,
        link: &mut Link,
        memory: RemoteMemory,
        block: Option<Block<'static>>,
    ) -> Result<(), LinkError> {
        let remote = memory.remote(self.at);
        let imm = self.id.imm();
        let mut stage = Stage {
            request: self,
            link,
            block,
        };
        match self.kind {
            Kind::Send => stage.post(Send {}),
            Kind::SendWithImm => stage.post(SendWithImm { imm }),
            Kind::Write => stage.post(RdmaWrite { remote }),
            Kind::WriteWithImm => stage.post(RdmaWriteWithImm { remote, imm }),
            Kind::Read => stage.post(RdmaRead { remote }),
            Kind::FetchAndAdd => stage.post(AtomicFetchAndAdd { remote, add: 1 }),
            Kind::CompareAndSwap => {
                let (compare, swap) = (0, 1);
                stage.post(AtomicCmpAndSwp {
                    remote,
                    compare,
                    swap,
                })
            }
        }
    }
}

struct Stage<'a> {
    request: &'a Request,
    link: &'a mut Link,
    block: Option<Block<'static>>,
}

impl Stage<'_> {
    fn post<O: Operation>(&mut self, operation: O) -> Result<(), LinkError>
    where
        Rc: Supports<O>,
    {
        let Request {
            id, flags, policy, ..
        } = *self.request;
        let wr_id = id.index as u64;
        match self.block.take() {
            Some(mut block) => {
                let bytes = block.as_mut_slice();
                bytes.fill(0xbb);
                if !self.request.kind.has_result() {
                    bytes[..id.length()].copy_from_slice(&id.bytes());
                }
                let length = self.request.length() as u32;
                let posted = self
                    .link
                    .post_block(wr_id, operation, block, length, flags, policy);
                posted.map_err(|refused| refused.error)
            }
            None => self
                .link
                .post_inline(wr_id, operation, &id.bytes(), flags, policy),
        }
    }
}

/// The memory that an end opens, as the other gets it.
pub fn opened(region: &Region) -> RemoteMemory {
    let Remote { addr, rkey } = region.remote(0);
    RemoteMemory {
        addr,
        length: region.len() as u64,
        rkey,
    }
}
