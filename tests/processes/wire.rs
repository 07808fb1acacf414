//! What two nodes share, as `hw/soft/src/fabric/wire.rs` has it: a copy, so that a hostile node can
//! write what looks right.

/// Bytes of a line.
const LINE: usize = 64;
const LINES: u32 = 4096;
/// Where they start.
pub const HEADER: usize = 4096;
/// Where the lines end, and the faces of queue pairs start.
pub const FACES: usize = HEADER + LINES as usize * LINE;
/// Bytes of a face: life, how packets are made, what it accepts, protection domain, access.
pub const FACE: usize = 32;
/// Where the faces end, and the sections start, and bytes of one.
const SECTIONS: usize = FACES + (1 << 16) * FACE;
const SECTION: usize = 128;
/// In a face's life: the queue pair sends.
pub const SPEAKING: u32 = 1 << 16;
/// Bytes of a packet's own header.
pub const FRONT: usize = 24;
/// Beside the size: the last word is set, and is of the other direction. Below it: how long the data of a short SEND is.
const TAKEN: u32 = 1 << 7;

/// Kinds of packets.
pub const REQUEST: u8 = 0x40;
pub const DATAGRAM: u8 = 2;
pub const ANSWER: u8 = 3;
/// Eight bytes for each acknowledgement: life and number of the request, and the requester's queue pair.
pub const ACKS: u8 = 6;

/// What goes before a packet's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub kind: u8,
    pub dst: u32,
    pub msn: u16,
    pub life: u16,
    pub flags: u8,
    pub len: u16,
    /// Life and number of the last request of the other direction that was taken.
    pub taken: Option<(u16, u16)>,
    /// Bytes of data of a short SEND; zero: it is none.
    pub short: u8,
    /// The requester's queue pair.
    pub src: u32,
}

impl Header {
    /// The words behind the sequence.
    pub fn words(&self) -> [u32; 5] {
        let (life, msn) = self.taken.unwrap_or_default();
        let taken = if self.taken.is_some() { TAKEN } else { 0 };
        let short = u32::from(self.short & 0x7f);
        [
            u32::from(self.len) << 8 | u32::from(self.flags) << 24 | taken | short,
            self.src,
            self.dst & 0xff_ffff | u32::from(self.kind) << 24,
            u32::from(msn) << 16 | u32::from(life),
            u32::from(self.msn) << 16 | u32::from(self.life),
        ]
    }
}

/// Where the packet of a position starts, with that position as its first word.
pub fn line(position: u32) -> usize {
    HEADER + (position & (LINES - 1)) as usize * LINE
}

/// Where a byte of a packet's is; behind the last line comes the first.
pub fn place(position: u32, byte: usize) -> usize {
    let from_first = line(position) - HEADER + FRONT + byte;
    HEADER + from_first % (LINES as usize * LINE)
}

/// Where a queue pair's face says how its packets are made.
pub fn packets(qpn: u32) -> usize {
    face(qpn) + 4
}

/// What it says of packets from this PSN on, with the largest path MTU.
pub fn packets_from(psn: u32) -> u32 {
    psn | 5 << 24
}

/// Where the face of a queue pair is.
pub fn face(qpn: u32) -> usize {
    FACES + (qpn as usize & 0xffff) * FACE
}

/// Where it says whether it reaches into the peer's memory.
pub fn section(qpn: u32) -> usize {
    SECTIONS + (qpn as usize & 0xffff) * SECTION
}

/// In a request's flags: where its data is, in memory of the requester's, is in the entry, or follows it.
pub const PULLED: u8 = 2;
/// As well: a part of its data does, behind where that starts and how much there is in all.
pub const PART: u8 = 16;

/// What a node shows of its memory: bytes of its table of keys, of a key's entry, and of that of a
/// piece of memory behind it.
pub const KEYS: usize = 32 << 16;
pub const KEY: usize = 32;
pub const MEMORY: usize = 32;
/// Where they are: behind the keys and the line of their generation.
pub const MEMORIES: usize = KEYS + 64;
/// Where the word is that keys are scrambled with: behind all entries of memory.
pub const SCRAMBLE: usize = MEMORIES + 512 * MEMORY;
