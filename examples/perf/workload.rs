//! A workload: an operation and how it is posted, checked against what the device can do.

use bellwire::DeviceAttr;
use bellwire_examples::Size;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// An operation, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Op {
    /// Send into the peer's next receive
    Send,
    /// SEND with four bytes of immediate data
    SendImm,
    /// Write to the peer's memory, which polls it
    Write,
    /// Write to the peer's memory, and complete a receive there
    WriteImm,
    /// Read the peer's memory
    Read,
    /// Compare eight bytes and swap when equal
    CmpSwap,
    /// Add to eight bytes
    FetchAdd,
}

impl Op {
    /// Its name in the verbs.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND_WITH_IMM",
            Self::Write => "RDMA_WRITE",
            Self::WriteImm => "RDMA_WRITE_WITH_IMM",
            Self::Read => "RDMA_READ",
            Self::CmpSwap => "CMP_AND_SWP",
            Self::FetchAdd => "FETCH_AND_ADD",
        }
    }

    /// Whether it brings data from the peer: it has no inline form, and its latency is the whole
    /// operation's, seen by the requester.
    pub const fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::CmpSwap | Self::FetchAdd)
    }

    /// Whether it works on exactly eight bytes.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }
}

/// Whether latency or rate is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// One operation after the other.
    Latency,
    /// As many as the queue holds.
    Rate,
}

/// An operation and how it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// The operation.
    pub op: Op,
    /// Bytes of a message.
    pub size: usize,
    /// The message travels within the request.
    pub inline: bool,
    /// Requests in flight at the most, and receives posted ahead.
    pub depth: u32,
    /// Requests of one doorbell.
    pub batch: u32,
    /// One in so many requests is signalled.
    pub signal_every: u32,
    /// Queue pairs by which an end sends.
    pub queue_pairs: u32,
    /// Both ends send, each by queue pairs of its own.
    pub bidirectional: bool,
}

impl Workload {
    /// Receives posted ahead: one more than a message, so that the one that was taken can be posted
    /// again after the answer.
    pub fn receives(&self) -> u32 {
        self.depth.max(2)
    }

    /// How many ends send.
    pub fn ways(&self) -> u64 {
        1 + u64::from(self.bidirectional)
    }

    /// Queue pairs of an end.
    pub fn connections(&self) -> usize {
        self.queue_pairs as usize * self.ways() as usize
    }
}

/// What the command line asks for; `None` where it says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub op: Op,
    pub size: u64,
    pub inline: Option<bool>,
    pub depth: u32,
    pub batch: Option<u32>,
    pub signal_every: Option<u32>,
    pub queue_pairs: u32,
    pub bidirectional: bool,
}

/// Inline bytes that fit, with the address of a WRITE, into one 64-byte block of the send queue.
const ONE_BLOCK: u64 = 28;
/// Three buffers of it are kept on each end.
const MAX_SIZE: u64 = 1 << 30;
const DEFAULT_BATCH: u32 = 16;
const DEFAULT_SIGNAL: u32 = 64;

impl Asked {
    /// Fills in the defaults, and checks all values.
    ///
    /// # Errors
    /// A text for people that says what to change.
    pub fn check(self, measure: Measure, device: &DeviceAttr) -> Result<Workload, String> {
        let Self {
            op, size, depth, ..
        } = self;
        let name = op.title();
        if op.is_atomic() && size != 8 {
            return Err(format!(
                "{name} works on 8 bytes: --size {size} cannot be, leave it out"
            ));
        }
        if size == 0 && op == Op::Write && measure == Measure::Latency {
            return Err(format!(
                "the peer of {name} polls the last byte, and --size 0 has none: \
                 give at least 1, or use --op write-imm"
            ));
        }
        let max = MAX_SIZE.min(device.max_msg_sz);
        if size > max {
            return Err(format!(
                "--size is {size}, at most {max} ({}) is possible",
                Size(max)
            ));
        }
        let inline = self.inline.unwrap_or(!op.fetches() && size <= ONE_BLOCK);
        if inline && op.fetches() {
            return Err(format!(
                "{name} brings data, it cannot carry any: leave --inline out"
            ));
        }
        if inline && size > u64::from(device.max_inline_data) {
            return Err(format!(
                "--inline with --size {size}: the device carries at most {} bytes within a \
                 request, leave --inline out or send less",
                device.max_inline_data
            ));
        }
        if depth == 0 || depth > device.max_qp_wr {
            return Err(format!(
                "--depth is {depth}, it has to be between 1 and {}",
                device.max_qp_wr
            ));
        }
        let batch = self.batch.unwrap_or(DEFAULT_BATCH.min(depth));
        if batch == 0 || batch > depth {
            return Err(format!(
                "--batch is {batch}, it has to be between 1 and the queue's --depth, {depth}"
            ));
        }
        // A latency run waits for each fetch before it posts the next.
        let each = op.fetches() && measure == Measure::Latency;
        if each && self.signal_every.is_some_and(|n| n != 1) {
            return Err(format!(
                "the latency of {name} ends with its completion: --signal-every can only be 1"
            ));
        }
        let default = if each { 1 } else { DEFAULT_SIGNAL.min(depth) };
        let signal_every = self.signal_every.unwrap_or(default);
        if signal_every == 0 || signal_every > depth {
            return Err(format!(
                "--signal-every is {signal_every}, it has to be between 1 and the queue's --depth, \
                 {depth}: otherwise the queue is full before anything completes"
            ));
        }
        Ok(Workload {
            op,
            size: usize::try_from(size).map_err(|_| format!("--size {size} is too large"))?,
            inline,
            depth,
            batch,
            signal_every,
            queue_pairs: self.queue_pairs,
            bidirectional: self.bidirectional,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellwire::Device;

    fn asked(op: Op, size: u64) -> Asked {
        Asked {
            op,
            size,
            inline: None,
            depth: 128,
            batch: None,
            signal_every: None,
            queue_pairs: 1,
            bidirectional: false,
        }
    }

    fn check(asked: Asked, measure: Measure) -> Result<Workload, String> {
        asked.check(measure, &Device::open("auto").unwrap().attr())
    }

    #[test]
    fn what_is_not_said_is_filled_in() {
        let write = check(asked(Op::Write, 28), Measure::Rate).unwrap();
        assert!(write.inline);
        assert_eq!((write.batch, write.signal_every), (16, 64));
        assert!(!check(asked(Op::Write, 29), Measure::Rate).unwrap().inline);
        let read = check(asked(Op::Read, 8), Measure::Latency).unwrap();
        assert_eq!((read.inline, read.signal_every), (false, 1));
        let shallow = Asked {
            depth: 4,
            ..asked(Op::Send, 8)
        };
        let shallow = check(shallow, Measure::Rate).unwrap();
        assert_eq!((shallow.batch, shallow.signal_every), (4, 4));
    }

    #[test]
    fn what_cannot_be_is_refused_with_advice() {
        use Measure::{Latency, Rate};
        let base = asked(Op::Write, 8);
        let inline = Some(true);
        for (asked, measure, advice) in [
            (asked(Op::CmpSwap, 0), Latency, "works on 8 bytes"),
            (asked(Op::FetchAdd, 16), Rate, "works on 8 bytes"),
            (asked(Op::Write, 0), Latency, "at least 1"),
            (asked(Op::Write, 1 << 31), Rate, "at most"),
            (
                Asked {
                    inline,
                    ..asked(Op::Read, 8)
                },
                Latency,
                "leave --inline out",
            ),
            (
                Asked {
                    inline,
                    ..asked(Op::Send, 513)
                },
                Latency,
                "at most 512",
            ),
            (Asked { depth: 0, ..base }, Rate, "between 1 and"),
            (
                Asked {
                    depth: 1 << 20,
                    ..base
                },
                Rate,
                "between 1 and",
            ),
            (
                Asked {
                    batch: Some(0),
                    ..base
                },
                Rate,
                "between 1 and",
            ),
            (
                Asked {
                    batch: Some(129),
                    ..base
                },
                Rate,
                "--depth, 128",
            ),
            (
                Asked {
                    signal_every: Some(129),
                    ..base
                },
                Latency,
                "--depth, 128",
            ),
            (
                Asked {
                    signal_every: Some(2),
                    ..asked(Op::Read, 8)
                },
                Latency,
                "only be 1",
            ),
        ] {
            let error = check(asked, measure).unwrap_err();
            assert!(error.contains(advice), "{asked:?}: {error}");
        }
    }

    #[test]
    fn empty_messages_are_fine_where_a_completion_reports_them() {
        for op in [Op::Send, Op::SendImm, Op::WriteImm, Op::Read] {
            check(asked(op, 0), Measure::Latency).unwrap();
        }
        check(asked(Op::Write, 0), Measure::Rate).unwrap();
    }
}
