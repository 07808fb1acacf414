//! Which bits of an entry the check looks at.
//!
//! A bit is *checked* when flipping it must make the check fail, and *ignored* when it must not.
//! A few are neither, since it depends on the others: the two bits of the routing header (only
//! whether they are 0 counts), the header and checksum bits of raw packets, the operation code of
//! send entries (several are reported alike), `app` (only 1 matters), and the opcode where the entry
//! completes nothing.

use super::check::Check;
use bellwire_core::cqe::{Cqe64, CqeFormat, CqeOpcode, is_sw_owned};
use bellwire_tests::vectors::Row;

/// The bits of one entry of a row.
pub struct Bits {
    /// Where its bytes stand in the row.
    pub field: String,
    checked: [u8; 64],
    ignored: [u8; 64],
}

impl Bits {
    /// All entries of a row.
    pub fn of(row: &Row) -> Check<Vec<Self>> {
        Ok(match row.str("k")? {
            "cqe" => Self::of_entry(row)?,
            "poll" => {
                let polled = usize::try_from(row.int::<i32>("ret")?).unwrap_or(0);
                (0..polled).map(Self::of_polled).collect()
            }
            _ => {
                let mut bits = Self::new("cqe");
                // Vendor's code, syndrome, counter, opcode and owner.
                bits.check(54..56, 0xff);
                bits.check(60..62, 0xff);
                bits.check(63..64, 0xf1);
                bits.ignore(0..54, 0xff);
                bits.ignore(56..60, 0xff);
                bits.ignore(62..63, 0xff);
                vec![bits]
            }
        })
    }

    pub fn is_checked(&self, bit: usize) -> bool {
        self.checked[bit / 8] >> (bit % 8) & 1 != 0
    }

    pub fn is_ignored(&self, bit: usize) -> bool {
        self.ignored[bit / 8] >> (bit % 8) & 1 != 0
    }

    fn new(field: &str) -> Self {
        Self {
            field: field.to_owned(),
            checked: [0; 64],
            ignored: [0; 64],
        }
    }

    fn check(&mut self, bytes: std::ops::Range<usize>, mask: u8) {
        for byte in bytes {
            self.checked[byte] |= mask;
            self.ignored[byte] &= !mask;
        }
    }

    fn ignore(&mut self, bytes: std::ops::Range<usize>, mask: u8) {
        for byte in bytes {
            self.ignored[byte] |= mask & !self.checked[byte];
        }
    }

    fn of_polled(index: usize) -> Self {
        let mut bits = Self::new(&format!("cqes.{index}"));
        // User index, qpn, owner.
        bits.check(33..36, 0xff);
        bits.check(57..60, 0xff);
        bits.check(63..64, 1);
        bits.ignore(0..17, 0xff);
        bits.ignore(62..63, 0xff);
        bits
    }

    fn of_entry(row: &Row) -> Check<Vec<Self>> {
        let cqe = Cqe64::from_bytes(row.bytes("cqe")?);
        let (ci, cqe_cnt) = (row.int("ci")?, row.int("cqe_cnt")?);
        let mut bits = Self::new("cqe");
        if !is_sw_owned(cqe.op_own(), ci, cqe_cnt) {
            bits.ignore(0..63, 0xff);
            bits.ignore(63..64, 0x0e);
            if cqe.opcode() != CqeOpcode::Invalid {
                bits.check(63..64, 1);
            }
            return Ok(vec![bits]);
        }
        // Qpn, owner; signature, solicited event, reserved bytes.
        bits.check(57..60, 0xff);
        bits.check(63..64, 1);
        bits.ignore(62..63, 0xff);
        bits.ignore(63..64, 2);
        bits.ignore(41..44, 0xff);
        let reported = row.int::<i32>("ret")? == 1 && row.int::<i32>("ex.ret")? == 0;
        if !reported || cqe.status().is_none() {
            bits.ignore(0..17, 0xff);
            return Ok(vec![bits]);
        }
        Ok(bits.of_reported(row, &cqe)?.collect())
    }

    /// Of an entry that both calls reported.
    fn of_reported(mut self, row: &Row, cqe: &Cqe64) -> Check<impl Iterator<Item = Self>> {
        let opcode = cqe.opcode();
        let requester = opcode == CqeOpcode::Req;
        // Path bits, slid, sl, src_qp, vlan, user index, imm, byte_cnt, timestamp or syndrome,
        // opcode and format.
        self.check(17..18, 0x7f);
        self.check(22..24, 0xff);
        self.check(24..25, 0x0f);
        self.check(25..28, 0xff);
        self.check(30..32, 0xff);
        self.check(33..40, 0xff);
        self.check(44..56, 0xff);
        self.check(63..64, 0xfc);
        if requester || opcode == CqeOpcode::ReqErr {
            let mask = row.int::<u16>("pre.sq_wqe_cnt")? - 1;
            self.check(60..61, (mask >> 8) as u8);
            self.check(61..62, mask as u8);
        } else if row.has("pre.srq_slot") {
            self.check(60..62, 0xff);
        }
        let front = self.check_payload(row, cqe)?;
        self.ignore(18..22, 0xff);
        self.ignore(24..25, 0xc0);
        if row.str("scn")? != "raw" || !opcode.is_received() {
            self.ignore(28..30, 0xff);
        }
        if !opcode.is_received() {
            self.ignore(40..41, 0xff);
        }
        if !requester {
            self.ignore(56..57, 0xff);
        }
        self.ignore(60..62, 0xff);
        Ok(std::iter::once(self).chain(front))
    }

    /// Payload, as far as it reaches buffers. Returns the bits of the other half.
    fn check_payload(&mut self, row: &Row, cqe: &Cqe64) -> Check<Option<Self>> {
        let mut front = row.has("half0").then(|| Self::new("half0"));
        let requester = cqe.opcode() == CqeOpcode::Req;
        let mut beyond_room = false;
        if cqe.format() != CqeFormat::None {
            let claimed: usize = row.int("wc.byte_len")?;
            let room = row.ints::<usize>("pre.scat_len")?.iter().sum();
            let reach = claimed.min(room);
            match (&mut front, cqe.format()) {
                (Some(front), CqeFormat::Inline64) => {
                    beyond_room = claimed > 64;
                    // The driver puts a foreign byte before a READ's result.
                    front.check(
                        0..(reach - usize::from(requester && reach > 0)).min(64),
                        0xff,
                    );
                }
                // From the wrong half.
                (Some(front), _) if requester => front.check(0..reach, 0xff),
                _ => {
                    beyond_room = claimed > 32;
                    self.check(0..reach.min(32), 0xff);
                }
            }
        }
        // The driver reads the byte behind the room: the first of this entry, or the 33rd.
        let first = usize::from(beyond_room);
        self.ignore(first..17, 0xff);
        self.ignore(17..18, 0x80);
        if !beyond_room {
            self.ignore(32..33, 0xff);
        }
        if let Some(front) = &mut front {
            front.ignore(0..64, 0xff);
        }
        Ok(front)
    }
}
