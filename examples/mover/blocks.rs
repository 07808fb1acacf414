//! The shape of the buffers, and where the receiver has what.

use super::notice::Notice;
use anyhow::{Context, Result};
use bellwire::{AccessFlags, Pd, QpInit, Region};
use bellwire_examples::buffer;
use serde::{Deserialize, Serialize};

/// How many blocks of how many bytes each end has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shape {
    pub count: u32,
    pub size: usize,
}

impl Shape {
    /// What the receiver needs: its blocks, and behind them a header for each, and one for the last
    /// notice.
    pub fn bytes(&self) -> Result<usize> {
        let blocks = self.size.checked_mul(self.count as usize);
        let headers = self.headers() as usize * Notice::SIZE;
        let bytes = blocks.and_then(|bytes| bytes.checked_add(headers));
        bytes.context("blocks larger than the address space: ask for fewer or smaller ones")
    }

    fn headers(&self) -> u64 {
        u64::from(self.count) + 1
    }

    /// Notices that can be on their way.
    pub fn notices(&self) -> usize {
        self.count as usize + 1
    }

    /// Which of as many as there are notices this one is.
    pub fn place(&self, number: u64) -> usize {
        (number % self.headers()) as usize
    }

    /// Where the receiver has the block of this number.
    pub fn block(&self, number: u64) -> usize {
        (number % u64::from(self.count)) as usize * self.size
    }

    /// Where the receiver has the header of this number.
    pub fn header(&self, number: u64) -> usize {
        self.size * self.count as usize + self.place(number) * Notice::SIZE
    }

    /// A queue pair that has room for them.
    pub fn qp(&self) -> QpInit {
        QpInit {
            // Two requests for a block, one for the last notice.
            max_send_wr: 2 * self.count + 1,
            max_recv_wr: self.count + 1,
            ..QpInit::default()
        }
    }
}

/// Memory with a key.
///
/// # Errors
/// When there is not enough.
pub fn region(pd: &Pd, bytes: usize, access: AccessFlags) -> Result<Region> {
    Ok(Region::new(pd, buffer(pd, bytes)?, access)?)
}

/// Of memory that the peer writes to.
pub const OPEN: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);
