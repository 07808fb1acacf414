//! What one end of a connection does, step by step: both ends know it, so each can see whether what
//! came is what was sent.

use bellwire_tests::fixture::Random;

/// Longest message: longer than what travels in a packet, or in an entry.
pub const LONGEST: usize = 12 << 10;

/// What a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    /// A WRITE, and a SEND that announces it.
    Write,
    WriteWithImm,
    Read,
    /// Fetch-and-add of one.
    Add,
}

/// All kinds.
pub const KINDS: [Kind; 5] = [
    Kind::Send,
    Kind::Write,
    Kind::WriteWithImm,
    Kind::Read,
    Kind::Add,
];

/// A step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub number: u64,
    pub kind: Kind,
    /// Which of those that take a receive of the peer's it is.
    pub notice: Option<u64>,
    pub length: usize,
    /// Where its memory is cut in two.
    pub cut: usize,
    pub signaled: bool,
    /// Its bytes: see [`pattern`].
    pub key: u64,
}

/// The steps of one end of a connection, without end.
#[derive(Clone, Debug)]
pub struct Script {
    random: Random,
    next: u64,
    notices: u64,
}

/// A number that follows from others.
pub fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |mixed, part| {
        Random::new(mixed ^ part.wrapping_add(0x5851_f42d_4c95_7f2d)).number()
    })
}

impl Script {
    pub fn new(seed: u64, from: u64, to: u64) -> Self {
        Self {
            random: Random::new(mix(&[seed, from, to])),
            next: 0,
            notices: 0,
        }
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        let random = &mut self.random;
        let kind = KINDS[random.below(KINDS.len() as u64) as usize];
        // As they travel: in a completion, an entry, a packet, or not at all.
        let longest = [0, 32, 768, 4096, LONGEST][random.below(5) as usize];
        let length = random.below(longest as u64 + 1) as usize;
        let notice = !matches!(kind, Kind::Read | Kind::Add);
        let step = Step {
            number: self.next,
            kind,
            notice: notice.then_some(self.notices),
            length,
            cut: random.below(length as u64 + 1) as usize,
            // Often enough that the window never waits for one.
            signaled: self.next % 4 == 3 || random.below(2) == 0,
            key: random.number(),
        };
        self.next += 1;
        self.notices += u64::from(notice);
        step
    }

    /// The next step that takes a receive.
    pub fn notice(&mut self) -> Step {
        loop {
            let step = self.step();
            if step.notice.is_some() {
                return step;
            }
        }
    }
}

/// The bytes of a key.
pub fn pattern(key: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(key);
    let words = (0..length.div_ceil(8)).flat_map(|_| random.number().to_le_bytes());
    let mut bytes: Vec<u8> = words.collect();
    bytes.truncate(length);
    bytes
}
