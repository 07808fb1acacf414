//! What worlds have met: a run that meets too little compares less than it says.

use crate::Check;
use crate::cqe::{Completes, Entry};
use crate::differ::{Difference, Written};
use crate::place::UNTOUCHED;
use crate::request::{Kind, Request};
use crate::theirs::Shape;
use bellwire::cqe::{CqeFormat, CqeOpcode};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

#[derive(Debug, Default)]
pub struct Tally {
    worlds: u64,
    signal_all: u64,
    /// Those whose register others have too.
    sharing: u64,
    sends: u64,
    receives: u64,
    shared_receives: u64,
    completions: u64,
    kinds: BTreeSet<Kind>,
    inline_lengths: BTreeSet<u32>,
    blocks: BTreeSet<u32>,
    /// Rings of the doorbell with an entry, and with eight bytes.
    whole: u64,
    eight_bytes: u64,
    /// Wraps of the device's counter of 16 bits.
    wraps: u64,
    opcodes: BTreeSet<u8>,
    /// Of failed sends, and of failed receives.
    syndromes: [BTreeSet<u8>; 2],
    vendor_errs: BTreeSet<u8>,
    inline: [u64; 2],
    differences: BTreeMap<Difference, u64>,
}

impl Tally {
    pub fn world(&mut self, shape: &Shape, shares: bool) {
        self.sharing += u64::from(shares);
        self.worlds += 1;
        self.signal_all += u64::from(shape.sig_all);
    }

    pub fn differs(&mut self, difference: Difference) {
        *self.differences.entry(difference).or_insert(0) += 1;
    }

    pub fn posted(&mut self, requests: &[Request], blocks: Range<u32>, written: &Written) {
        self.sends += requests.len() as u64;
        for (request, entry) in requests.iter().zip(&written.entries) {
            self.kinds.insert(request.op.kind());
            self.blocks.insert(entry.len() as u32 / 64);
            if request.inline {
                let length = request.sges.iter().map(|sge| sge.length).sum();
                self.inline_lengths.insert(length);
            }
        }
        self.wraps += u64::from(blocks.start >> 16 != blocks.end >> 16);
        let bytes = written.registers.iter().filter(|&&byte| byte != UNTOUCHED);
        match bytes.count() {
            0..=8 => self.eight_bytes += 1,
            _ => self.whole += 1,
        }
    }

    pub fn received(&mut self, count: usize, shared: bool) {
        match shared {
            true => self.shared_receives += count as u64,
            false => self.receives += count as u64,
        }
    }

    pub fn completed(&mut self, entry: &Entry) {
        self.completions += 1;
        let opcode = entry.opcode();
        self.opcodes.insert(opcode.number());
        if !matches!(entry.completes, Completes::Send | Completes::Receive) {
            return;
        }
        match opcode {
            CqeOpcode::ReqErr => {
                self.syndromes[0].insert(entry.syndrome());
            }
            CqeOpcode::RespErr => {
                self.syndromes[1].insert(entry.syndrome());
            }
            _ => match entry.format() {
                CqeFormat::Inline32 => self.inline[0] += 1,
                CqeFormat::Inline64 => self.inline[1] += 1,
                _ => {}
            },
        }
        if opcode.is_error() {
            self.vendor_errs.insert(entry.vendor_err());
        }
    }

    /// One line.
    pub fn line(&self) -> String {
        format!(
            "{} worlds, {} sends, {} receives, {} of shared queues, {} completion entries equal \
             libmlx5's, by two ways each",
            self.worlds, self.sends, self.receives, self.shared_receives, self.completions
        )
    }

    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.signal_all += other.signal_all;
        self.sharing += other.sharing;
        self.sends += other.sends;
        self.receives += other.receives;
        self.shared_receives += other.shared_receives;
        self.completions += other.completions;
        self.kinds.extend(other.kinds);
        self.inline_lengths.extend(other.inline_lengths);
        self.blocks.extend(other.blocks);
        self.whole += other.whole;
        self.eight_bytes += other.eight_bytes;
        self.wraps += other.wraps;
        self.opcodes.extend(other.opcodes);
        let [sends, receives] = other.syndromes;
        self.syndromes[0].extend(sends);
        self.syndromes[1].extend(receives);
        self.vendor_errs.extend(other.vendor_errs);
        self.inline[0] += other.inline[0];
        self.inline[1] += other.inline[1];
        for (difference, count) in other.differences {
            *self.differences.entry(difference).or_insert(0) += count;
        }
    }

    /// What a whole run has to have met.
    pub fn idles_nowhere(&self) -> Check {
        let counts = [
            ("worlds with sq_sig_all", self.signal_all),
            ("worlds that share a register", self.sharing),
            ("entries in the register", self.whole),
            ("eight bytes in the register", self.eight_bytes),
            ("wraps of the counter", self.wraps),
            ("payload of up to 32 bytes in entries", self.inline[0]),
            ("payload of up to 64 bytes in entries", self.inline[1]),
        ];
        let kinds = self.kinds.len();
        let sizes = [
            ("kinds of operations", kinds, 10),
            ("inline lengths", self.inline_lengths.len(), 200),
            ("sizes of entries, in blocks", self.blocks.len(), 8),
            ("opcodes of entries", self.opcodes.len(), 16),
            ("syndromes of sends", self.syndromes[0].len(), 256),
            ("syndromes of receives", self.syndromes[1].len(), 256),
            ("vendor's codes", self.vendor_errs.len(), 256),
        ];
        if let Some((what, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("{what}: never met").into());
        }
        for (what, met, wanted) in sizes {
            if met < wanted {
                return Err(format!("{what}: {met} met, not {wanted}").into());
            }
        }
        let never = |of: &&Difference| !self.differences.contains_key(of);
        match Difference::ALL.iter().find(never) {
            Some(never) => {
                Err(format!("{never:?}: never met, so nothing is to be said of it").into())
            }
            None => Ok(()),
        }
    }
}
