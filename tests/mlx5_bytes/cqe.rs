//! Random completion entries, as a device might write them.

use crate::place::Place;
use crate::request::{Kind, chance};
use bellwire::cqe::{CqeFormat, CqeOpcode, Syndrome, owner_bit};
use bellwire_tests::fixture::Random;

/// What an entry completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completes {
    /// A send request.
    Send,
    /// A receive.
    Receive,
    /// No request: its opcode completes nothing, or it names another queue.
    Nothing,
    /// It is not written yet, or of the lap before.
    NotWritten,
}

/// An entry, but for what is each side's own: queue pair, user index, counter and owner.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub completes: Completes,
    pub body: [u8; 64],
    /// The half in front, of entries of 128 bytes.
    pub front: [u8; 64],
    /// Names no queue of either side's.
    pub stray: bool,
}

/// What is each side's own.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub qpn: u32,
    pub user_index: u32,
    pub counter: u16,
}

const USER_INDEX: usize = 33;
const APP: usize = 40;
const BYTE_CNT: usize = 44;
const VENDOR_ERR: usize = 54;
const SYNDROME: usize = 55;
const SEND_OPCODE: usize = 56;
const QPN: usize = 57;
const COUNTER: usize = 60;
const OP_OWN: usize = 63;

/// Tag matching; nobody asked for it.
const TAG_MATCHING: u8 = 1;

impl Entry {
    fn random(
        random: &mut Random,
        completes: Completes,
        opcode: CqeOpcode,
        format: CqeFormat,
    ) -> Self {
        let mut half = || <[u8; 64]>::try_from(random.bytes(64)).expect("64 bytes");
        let (mut body, front) = (half(), half());
        if body[APP] == TAG_MATCHING {
            body[APP] = 0;
        }
        // The owner's bit comes when it is written.
        body[OP_OWN] = opcode.number() << 4 | (format as u8) << 2 | body[OP_OWN] & 2;
        Self {
            completes,
            body,
            front,
            stray: false,
        }
    }

    /// Of a send request that was executed, or failed.
    pub fn of_send(random: &mut Random, kind: Kind, wide: bool) -> Self {
        if chance(random, 30) {
            return Self::failed(random, Completes::Send, CqeOpcode::ReqErr);
        }
        // libmlx5 of rdma-core 44 takes results from elsewhere in entries of 128 bytes.
        let inline = kind.brings() && !wide && chance(random, 50);
        let format = if inline {
            CqeFormat::Inline32
        } else {
            CqeFormat::None
        };
        let mut entry = Self::random(random, Completes::Send, CqeOpcode::Req, format);
        entry.body[SEND_OPCODE] = kind.opcode();
        match inline {
            true => entry.claim(random, 32),
            // A device that lies about what it executed.
            false if chance(random, 10) => entry.body[SEND_OPCODE] = (random.number() >> 32) as u8,
            false => {}
        }
        entry
    }

    /// Of a receive that brought a message, or failed. `room`: no more payload may be in the entry.
    pub fn of_receive(random: &mut Random, wide: bool, room: u64) -> Self {
        if chance(random, 30) {
            return Self::failed(random, Completes::Receive, CqeOpcode::RespErr);
        }
        let opcode = CqeOpcode::from_bits(1 + random.below(4) as u8);
        let (format, most) = match random.below(4) {
            0 => (CqeFormat::Inline32, 32),
            1 if wide => (CqeFormat::Inline64, 64),
            _ => (CqeFormat::None, 0),
        };
        let mut entry = Self::random(random, Completes::Receive, opcode, format);
        if format != CqeFormat::None {
            entry.claim(random, room.min(most));
        }
        entry
    }

    /// No more payload than there is room for: libmlx5 would read on behind the entry.
    fn claim(&mut self, random: &mut Random, room: u64) {
        let bytes = random.below(room + 1) as u32;
        self.body[BYTE_CNT..][..4].copy_from_slice(&bytes.to_be_bytes());
    }

    fn failed(random: &mut Random, completes: Completes, opcode: CqeOpcode) -> Self {
        // Formats mean nothing here, but that of a compressed block.
        let format = CqeFormat::from_bits(random.below(3) as u8);
        let mut entry = Self::random(random, completes, opcode, format);
        if chance(random, 50) {
            let all = Syndrome::ALL;
            entry.body[SYNDROME] = all[random.below(all.len() as u64) as usize].0;
        }
        entry
    }

    /// Of no request.
    pub fn of_nothing(random: &mut Random) -> Self {
        if chance(random, 50) {
            let opcode = [CqeOpcode::Req, CqeOpcode::RespSend, CqeOpcode::ReqErr];
            let opcode = opcode[random.below(3) as usize];
            let mut entry = Self::random(random, Completes::Nothing, opcode, CqeFormat::None);
            entry.stray = true;
            return entry;
        }
        let opcode = CqeOpcode::from_bits(5 + random.below(8) as u8);
        Self::random(random, Completes::Nothing, opcode, CqeFormat::None)
    }

    /// Not written yet.
    pub fn not_written(random: &mut Random) -> Self {
        let opcode = match chance(random, 50) {
            true => CqeOpcode::Invalid,
            false => CqeOpcode::from_bits(random.below(15) as u8),
        };
        Self::random(random, Completes::NotWritten, opcode, CqeFormat::None)
    }

    pub fn opcode(&self) -> CqeOpcode {
        CqeOpcode::from_bits(self.body[OP_OWN] >> 4)
    }

    pub fn format(&self) -> CqeFormat {
        CqeFormat::from_bits(self.body[OP_OWN] >> 2)
    }

    pub fn send_opcode(&self) -> u8 {
        self.body[SEND_OPCODE]
    }

    pub fn syndrome(&self) -> u8 {
        self.body[SYNDROME]
    }

    pub fn vendor_err(&self) -> u8 {
        self.body[VENDOR_ERR]
    }

    /// Makes another error of a page fault in a shared receive queue's entry: libmlx5 posts that receive
    /// again and reports nothing. bellwire reports it (`mlx5_rings::cqe` compares that).
    pub fn is_no_page_fault(&mut self) {
        const PAGE_FAULT: u8 = 0x93;
        let aborted = self.body[SYNDROME] == Syndrome::REMOTE_ABORTED.0;
        if aborted && self.body[VENDOR_ERR] == PAGE_FAULT {
            self.body[VENDOR_ERR] = 0;
        }
    }

    /// A bit of it that makes a difference, whatever it is.
    pub fn bit_that_counts(&self) -> (usize, u8) {
        match self.completes {
            _ if self.opcode().is_error() => (VENDOR_ERR, 1),
            Completes::Send => (COUNTER + 1, 1),
            _ => (BYTE_CNT + 3, 1),
        }
    }

    /// The bytes as one side's device writes them at this index.
    pub fn bytes(&self, own: &Own, index: u32, count: u32) -> [u8; 64] {
        let mut bytes = self.body;
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        if !self.stray {
            put(USER_INDEX, &own.user_index.to_be_bytes()[1..]);
            put(QPN, &own.qpn.to_be_bytes()[1..]);
        }
        put(COUNTER, &own.counter.to_be_bytes());
        let owner = owner_bit(index, count) ^ u8::from(self.completes == Completes::NotWritten);
        bytes[OP_OWN] |= owner;
        bytes
    }

    /// Writes it where the device would.
    pub fn write(&self, place: &Place, index: u32, bytes: &[u8; 64]) {
        let half = place.stride as usize - 64;
        if half != 0 {
            place.write(index, 0, &self.front);
        }
        place.write(index, half, bytes);
    }
}
