//! How rdma-core's programs exchange the addresses of their queue pairs: a line of text for each.
//!
//! ```text
//!  client                                 server
//!  "0001:000012:abcdef:fe80…0001\0" ────►
//!                                         connects its queue pairs
//!                                  ◄──── "0002:000034:123456:fe80…0002\0"
//!  "done\0" ────────────────────────────►
//!  connects its queue pairs               waits for messages
//!
//!   LID  : QPN  : PSN  : GID              hexadecimal, 4, 6, 6 and 32 digits
//! ```
//!
//! ibv_srq_pingpong's send 256 lines, all zero behind those of the queue pairs that there are.

use anyhow::{Context, Result, bail, ensure};
use bellwire::connect::tcp::Connection;
use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dest {
    pub lid: u16,
    pub qpn: u32,
    pub psn: u32,
    /// All zero: to be reached by its LID.
    pub gid: [u8; 16],
}

/// Bytes of a line, its NUL included.
const LINE: usize = 52;
const DONE: [u8; 5] = *b"done\0";

impl fmt::Display for Dest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid } = self;
        let gid = Ipv6Addr::from(*gid);
        write!(
            f,
            "LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {gid}"
        )
    }
}

impl Dest {
    fn line(&self) -> String {
        let Self { lid, qpn, psn, gid } = self;
        let gid = u128::from_be_bytes(*gid);
        format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0")
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?.strip_suffix('\0')?;
        let fields: Vec<&str> = text.split(':').collect();
        let number = |at: usize, digits: usize| {
            let field = fields.get(at).filter(|field| field.len() == digits)?;
            let good = field.bytes().all(|digit| digit.is_ascii_hexdigit());
            good.then(|| u128::from_str_radix(field, 16).ok()).flatten()
        };
        let dest = Self {
            lid: number(0, 4)? as u16,
            qpn: number(1, 6)? as u32,
            psn: number(2, 6)? as u32,
            gid: number(3, 32)?.to_be_bytes(),
        };
        (fields.len() == 4).then_some(dest)
    }

    /// Whether it is to be reached by its GID: as rdma-core's programs see it.
    pub fn is_global(&self) -> bool {
        self.gid[8..] != [0; 8]
    }
}

/// The exchange, on a connection that is there.
#[derive(Debug)]
pub struct Exchange {
    peer: Connection,
    /// Lines that each side sends.
    lines: usize,
    /// For each step.
    within: Duration,
}

const SAME: &str = "is the peer a pingpong, of the same -t?";

impl Exchange {
    /// `lines`: 1, or 256 with ibv_srq_pingpong's.
    pub fn new(peer: Connection, lines: usize, within: Duration) -> Self {
        Self {
            peer,
            lines,
            within,
        }
    }

    fn send(&mut self, ours: &[Dest]) -> Result<()> {
        let padding = std::iter::repeat(Dest::default());
        let all = ours.iter().copied().chain(padding).take(self.lines);
        let text: String = all.map(|dest| dest.line()).collect();
        let sent = self.peer.send(text.as_bytes(), self.within);
        sent.context("sending the peer our addresses")
    }

    /// The peer's, as many as ours.
    fn hear(&mut self, count: usize) -> Result<Vec<Dest>> {
        let mut text = vec![0; self.lines * LINE];
        let heard = self.peer.receive(&mut text, self.within);
        heard.context(format!("waiting for the peer's addresses ({SAME})"))?;
        let dests = text.chunks_exact(LINE).map(|line| {
            Dest::parse(line).with_context(|| {
                let line = String::from_utf8_lossy(line);
                format!("the peer's address makes no sense, {line:?}: {SAME}")
            })
        });
        let mut dests = dests.collect::<Result<Vec<_>>>()?;
        let theirs = dests.iter().take_while(|dest| dest.qpn != 0).count();
        ensure!(
            theirs != 0,
            "the peer's queue pair is number 0, which there is not: {SAME}"
        );
        ensure!(
            theirs == count,
            "the peer has {theirs} queue pairs, this side {count}: give the same -q to both"
        );
        dests.truncate(count);
        Ok(dests)
    }

    /// The client's part: sends our addresses, and returns the peer's. The peer is connected when
    /// this returns.
    ///
    /// # Errors
    /// A peer that vanishes, is late, or is no such program.
    pub fn ask(mut self, ours: &[Dest]) -> Result<Vec<Dest>> {
        self.send(ours)?;
        let theirs = self.hear(ours.len())?;
        let sent = self.peer.send(&DONE, self.within);
        sent.context("confirming to the peer that its addresses are here")?;
        Ok(theirs)
    }

    /// The server's part. `connect` is given the peer's, before the peer gets ours.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), and those of `connect`.
    pub fn answer(
        mut self,
        ours: &[Dest],
        connect: impl FnOnce(&[Dest]) -> Result<()>,
    ) -> Result<()> {
        let theirs = self.hear(ours.len())?;
        let connected = connect(&theirs);
        let is_other = |error: &anyhow::Error| {
            matches!(
                error.downcast_ref(),
                Some(bellwire::Error::OtherFabric { .. })
            )
        };
        // The peer, too, finds that these two cannot be connected, if it gets ours.
        if connected.as_ref().err().is_none_or(is_other) {
            self.send(ours)?;
        }
        connected?;
        let mut done = [0; DONE.len()];
        let heard = self.peer.receive(&mut done, self.within);
        heard.context(format!("waiting for the peer's \"done\" ({SAME})"))?;
        if done != DONE {
            let done = String::from_utf8_lossy(&done);
            bail!("the peer says {done:?} where \"done\" is due: {SAME}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dest() -> Dest {
        Dest {
            lid: 0xb,
            qpn: 0x12,
            psn: 0xab_cdef,
            gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 0xff],
        }
    }

    /// As their sprintf and gid_to_wire_gid make it.
    #[test]
    fn a_line_is_theirs() {
        let line = "000b:000012:abcdef:fe8000000000000002030405060708ff\0";
        assert_eq!(dest().line(), line);
        assert_eq!(Dest::parse(line.as_bytes()), Some(dest()));
        let none = "0000:000000:000000:00000000000000000000000000000000\0";
        assert_eq!(Dest::default().line(), none);
        assert_eq!(none.len(), LINE);
    }

    #[test]
    fn anything_else_is_no_line() {
        let line = dest().line();
        for (from, to) in [
            ("000b:", "00b:0"),
            ("000b", "+00b"),
            ("abcdef", "abcdeg"),
            ("ff\0", "fff"),
            ("ff\0", "f:\0"),
            ("ff\0", "\u{e9}\0"),
            ("fe80", "f\0 80"),
        ] {
            let wrong = line.replacen(from, to, 1);
            assert_eq!(Dest::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(Dest::parse(b""), None);
        assert_eq!(Dest::parse(&[0xff; LINE]), None);
    }

    #[test]
    fn what_people_read_is_theirs() {
        let text = "LID 0x000b, QPN 0x000012, PSN 0xabcdef, GID fe80::203:405:607:8ff";
        assert_eq!(dest().to_string(), text);
        assert!(dest().is_global() && !Dest::default().is_global());
    }
}
