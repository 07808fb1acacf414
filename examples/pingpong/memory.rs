//! The memory of messages.

use super::args::Game;
use super::content::POISON;
use anyhow::{Context, Result};
use bellwire::wr::Sge;
use bellwire::{AccessFlags, Pd, Region};

/// Messages in registered memory: one to send for each queue pair, then slots to receive into.
///
/// One queue pair has one slot: the peer sends nothing more before its message has been answered. A
/// shared receive queue has one for each receive, for the messages of its queue pairs come in any
/// order.
#[derive(Debug)]
pub struct Memory {
    region: Region,
    stride: usize,
    /// Messages to send.
    outgoing: usize,
    /// Bytes in front of a received message.
    grh: usize,
    size: usize,
    /// The last message that was taken.
    taken: Vec<u8>,
    /// What a slot holds that no message has come into.
    blank: Vec<u8>,
}

impl Memory {
    /// With slots that hold nothing.
    ///
    /// # Errors
    /// When there is not as much, or it may not be locked.
    pub fn new(pd: &Pd, game: &Game, slots: usize) -> Result<Self> {
        let (grh, size) = (game.grh() as usize, game.size as usize);
        let stride = (grh + size).next_multiple_of(64);
        let bytes = stride.checked_mul(game.num_qp + slots);
        let bytes = bytes.context("more memory than there are addresses: lower -r or -s")?;
        let mapping = pd.device().mapping(bytes).build();
        let mapping = mapping.with_context(|| format!("{bytes} bytes for messages"))?;
        let memory = Self {
            region: Region::new(pd, mapping, AccessFlags::LOCAL_WRITE)?,
            stride,
            outgoing: game.num_qp,
            grh,
            size,
            taken: vec![0; size],
            blank: vec![POISON; grh + size],
        };
        for slot in 0..slots {
            memory.region.write(memory.at(slot), &memory.blank);
        }
        Ok(memory)
    }

    /// Where a slot is.
    fn at(&self, slot: usize) -> usize {
        (self.outgoing + slot) * self.stride
    }

    /// The place for a receive into this slot.
    pub fn place(&self, slot: usize) -> Sge {
        self.region.sge(self.at(slot), self.blank.len() as u32)
    }

    /// The message that has come into a slot, which holds nothing then.
    pub fn take(&mut self, slot: usize) -> &[u8] {
        let at = self.at(slot);
        self.region.read(at + self.grh, &mut self.taken);
        self.region.write(at, &self.blank);
        &self.taken
    }

    /// Queue pair `n`'s message to send.
    pub fn message(&self, n: usize) -> Sge {
        self.region.sge(n * self.stride, self.size as u32)
    }

    /// Writes a part of it.
    pub fn write(&self, n: usize, offset: usize, part: &[u8]) {
        self.region.write(n * self.stride + offset, part);
    }
}
