//! A dump as text: a line for each request, completion and note.

use super::{
    CompletionEntry, CqView, Inline, Note, QueueView, ReceiveEntry, Record, Segment, SendEntry,
};
use bellwire_core::wr::WcStatus;
use std::fmt::{Display, Formatter, Result};

impl Display for Record {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "queue pair {} {}", self.qp_num, self.transport)?;
        writeln!(f, ", state {}, peer {}", self.state, self.dest_qp_num)?;
        writeln!(f, "send queue: {}", self.send_queue)?;
        if let Some(queue) = &self.recv_queue {
            writeln!(f, "receive queue: {queue}")?;
        }
        writeln!(f, "completion queue {}", self.send_cq)?;
        if let Some(cq) = &self.recv_cq {
            writeln!(f, "completion queue {cq}")?;
        }
        lines(f, "sends", &self.sends)?;
        lines(f, "receives", &self.receives)?;
        lines(f, "completions", &self.completions)?;
        lines(f, "notes", &self.notes)
    }
}

fn lines(f: &mut Formatter<'_>, of: &str, lines: &[impl Display]) -> Result {
    if lines.is_empty() {
        return writeln!(f, "{of}: none");
    }
    writeln!(f, "{of}:")?;
    lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
}

impl Display for QueueView {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "{} slots, next counter {}, {} in flight",
            self.slots, self.counter, self.in_flight
        )
    }
}

impl Display for CqView {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "{}: {} entries, next index {}, {} dropped",
            self.cqn, self.entries, self.consumer_index, self.stale
        )?;
        f.write_str(if self.overrun { ", OVERRUN" } else { "" })
    }
}

impl Display for Segment {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{:#x}+{} key {:#x}", self.addr, self.length, self.key)
    }
}

impl Display for Inline {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "inline {}", self.length)?;
        match &self.hex {
            Some(hex) => write!(f, " {hex}"),
            None => Ok(()),
        }
    }
}

/// Writes a prefix and a value, if there is a value.
fn maybe(f: &mut Formatter<'_>, before: &str, what: Option<impl Display>) -> Result {
    what.map_or(Ok(()), |what| write!(f, " {before}{what}"))
}

fn status(f: &mut Formatter<'_>, status: Option<WcStatus>) -> Result {
    maybe(f, "", status)
}

impl Display for SendEntry {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "#{} {}", self.counter, self.stage)?;
        status(f, self.status)?;
        write!(f, ": {} wr_id {}", self.operation, self.wr_id)?;
        for (flag, name) in [
            (self.signaled, " signaled"),
            (self.solicited, " solicited"),
            (self.fence, " fence"),
        ] {
            f.write_str(if flag { name } else { "" })?;
        }
        maybe(f, "imm ", self.imm.map(Hex))?;
        maybe(f, "invalidates ", self.invalidates.map(Hex))?;
        maybe(f, "to queue pair ", self.dest_qp_num)?;
        maybe(f, "to SRQ ", self.srq_num)?;
        if let Some(remote) = &self.remote {
            write!(f, " remote {:#x} key {:#x}", remote.addr, remote.key)?;
        }
        if let Some(atomic) = &self.atomic {
            write!(f, " operand {} compare {}", atomic.operand, atomic.compare)?;
        }
        (self.data.iter()).try_for_each(|segment| write!(f, " data {segment}"))?;
        maybe(f, "", self.inline.as_ref())?;
        write!(f, " blocks {}", self.blocks)
    }
}

impl Display for ReceiveEntry {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "#{} {}", self.counter, self.stage)?;
        status(f, self.status)?;
        write!(f, ": RECV wr_id {}", self.wr_id)?;
        (self.data.iter()).try_for_each(|segment| write!(f, " data {segment}"))
    }
}

impl Display for CompletionEntry {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let polled = if self.polled { "polled" } else { "not polled" };
        write!(f, "cq {} [{}] {polled}", self.cqn, self.index)?;
        f.write_str(if self.stale { " stale" } else { "" })?;
        write!(f, ": {}", self.operation)?;
        status(f, self.status)?;
        if self
            .status
            .is_some_and(|status| status != WcStatus::Success)
        {
            write!(
                f,
                " syndrome {:#04x} vendor {:#04x}",
                self.syndrome, self.vendor_err
            )?;
        }
        write!(f, " request #{}", self.counter)?;
        maybe(f, "wr_id ", self.wr_id)?;
        maybe(f, "bytes ", self.byte_len)?;
        maybe(f, "", self.inline.as_ref())
    }
}

impl Display for Note {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        const SECOND: u64 = 1_000_000;
        let at = self.micros();
        write!(f, "{}.{:06} {}", at / SECOND, at % SECOND, self.what)
    }
}

/// A number in hexadecimal.
struct Hex(u32);

impl Display for Hex {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{:#x}", self.0)
    }
}
