//! Arming of completion queues, the stores of a ring, and sizes of queues, as recorded from rdma-core.
//!
//! The order of the stores (record before register, BlueFlame in words upwards) takes a single-stepper
//! to see, which recorded `order.jsonl`. Seen here is what the stores left: the record, and in the
//! register the same words at the same places, and nothing else. What keeps the order are the barriers
//! in `BlueFlame::ring` and the volatile stores between them.

use bellwire_core::port::SendDoorbell;
use bellwire_core::queue::{BlueFlame, SendQueue, SendQueueInit};
use bellwire_core::wqe::{
    BASIC_BLOCK, Inline, Payload, Rc, RdmaWrite, RecvRing, SendRing, Transport, Uc, Ud, Xrc,
};
use bellwire_core::wr::{Remote, SendFlags, Sge};
use bellwire_tests::replay::{self, Completions, UNTOUCHED};
use bellwire_tests::vectors::{Row, to_hex};
use std::collections::BTreeMap;
use std::error::Error;

/// Bytes of the longest entry: 63 segments.
const MAX_ENTRY: usize = 63 * 16;

type Check<T = ()> = Result<T, Box<dyn Error>>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, ours: T, recorded: T) -> Check {
    if ours == recorded {
        return Ok(());
    }
    Err(format!("{what}: core says {ours:?}, the row {recorded:?}").into())
}

/// Arms a queue that has consumed and seen what the row says.
fn check_arm(row: &Row) -> Check {
    let mut completions = Completions::new(64, 64);
    completions.skip_to(row.int("ci")?);
    for _ in 0..row.int::<u32>("arm_sn")? {
        completions.queue.event_taken();
    }
    let solicited_only = row.int::<u8>("solicited_only")? != 0;
    let word = completions.queue.arm(row.int("cqn")?, solicited_only);
    let record = replay::record_bytes(&completions.records[1]);
    same("record", record, row.bytes("dbr_arm")?)?;
    let writes = row.rows("mmio")?;
    same("stores to the register", writes.len(), 1)?;
    // MLX5_CQ_DOORBELL.
    same("offset", 0x20, writes[0].int("page_off")?)?;
    same("length", 8, writes[0].int::<u32>("len")?)?;
    same("word", word.to_bytes(), writes[0].bytes("hex")?)
}

#[test]
fn arming_says_what_the_driver_said() {
    for (recording, rows) in super::recordings("arm.jsonl") {
        for row in &rows {
            check_arm(row).unwrap_or_else(|error| panic!("{}: {error}", row.place()));
        }
        let counted = BTreeMap::from([("arm".to_owned(), rows.len())]);
        super::check_tally(&recording, "arm: rows", &counted);
        change(&rows);
    }
}

/// Changes everything in every ninth row; the check notices each.
fn change(rows: &[Row]) {
    for row in rows.iter().step_by(9) {
        for field in ["ci", "arm_sn", "solicited_only", "cqn"] {
            let value: u64 = row.int(field).expect("a number");
            let other = row.with(field, (value ^ 1).into()).expect("is there");
            assert!(check_arm(&other).is_err(), "{} {field}", row.place());
        }
        for field in ["dbr_arm", "mmio.0.hex"] {
            let mut bytes = row.hex(field).expect("hex");
            bytes[3] ^= 1;
            let other = row.with(field, to_hex(&bytes).into()).expect("is there");
            assert!(check_arm(&other).is_err(), "{} {field}", row.place());
        }
    }
}

/// A queue of one of the order file's recordings, from its first row on.
struct Ordered {
    queue: SendQueue<'static, Rc, BlueFlame<'static>>,
    record: &'static bellwire_core::port::DoorbellRecord,
    register: std::ptr::NonNull<u8>,
}

impl Ordered {
    const REGISTER: usize = 512;

    fn new(qpn: u32) -> Self {
        let memory = replay::memory(64 * 64);
        // The rows show what a fresh ring has behind a short entry: zeros.
        // SAFETY: just allocated, of that size.
        unsafe { memory.write_bytes(0, 64 * 64) };
        // SAFETY: leaked, and used by this queue alone.
        let ring = unsafe { SendRing::new(memory, 64) }.expect("a power of two");
        let record = replay::record();
        let register = replay::memory(Self::REGISTER);
        // SAFETY: the only queue on ring and ledger; all is leaked.
        let queue = unsafe {
            SendQueue::new(SendQueueInit {
                ring,
                ledger: replay::ledger(64, qpn),
                doorbell: BlueFlame::new(record, register.cast(), 256, ring),
                max_sge: 4,
                max_inline: 124,
                signal_all: false,
            })
        };
        let mut queue = queue.expect("a queue");
        queue.set_postable(true);
        Self {
            queue,
            record,
            register,
        }
    }

    fn check(&mut self, row: &Row) -> Check {
        let remote = Remote {
            addr: 0x1122_3344_5566_7788,
            rkey: 0x99aa_bbcc,
        };
        let sge = Sge {
            addr: 0xdead_0000_beef_0000,
            length: 64,
            lkey: 0x1234,
        };
        let stores = row.rows("stores")?;
        let words = stores.iter().filter(|store| store.has("val8"));
        let words: Vec<_> = words
            .map(|store| store.hex("val8"))
            .collect::<Result<_, _>>()?;
        let bytes = words.concat();
        // SAFETY: nobody else uses the register.
        unsafe { self.register.write_bytes(UNTOUCHED, Self::REGISTER) };
        match row.str("what")? {
            "1 WR sge" => self.post(remote, sge),
            "1 WR inline 60" => {
                let payload = bytes.get(36..96).ok_or("too few words")?.to_vec();
                self.post(remote, Inline(&payload));
            }
            "2 WRs" => {
                self.post(remote, sge);
                self.post(remote, sge);
            }
            other => return Err(format!("no check for {other:?}").into()),
        }
        self.queue.ring();

        // The record first, the same value at every later store, and the words upwards.
        same("first store", "dbrec_page", stores[0].str("to")?)?;
        let record = replay::record_bytes(self.record);
        for store in &stores {
            same("record", record, store.bytes("dbr")?)?;
        }
        let first: usize = stores.get(1).ok_or("no ring")?.int("off")?;
        for (at, store) in stores[1..].iter().enumerate() {
            same("upwards", first + 8 * at, store.int("off")?)?;
        }
        let half = first - row.int::<usize>("reg_off")?;
        let mut expected = vec![UNTOUCHED; Self::REGISTER];
        let place = expected.get_mut(half..half + bytes.len());
        place.ok_or("no such half")?.copy_from_slice(&bytes);
        // SAFETY: nobody writes meanwhile.
        let register = unsafe { replay::snapshot(self.register, Self::REGISTER) };
        same("register", to_hex(&register), to_hex(&expected))
    }

    fn post(&mut self, remote: Remote, payload: impl Payload) {
        // SAFETY: no device reads the entry.
        let posted = unsafe {
            let write = RdmaWrite { remote };
            self.queue.post(0, (), write, payload, SendFlags::empty())
        };
        posted.expect("room");
    }
}

#[test]
fn a_ring_leaves_what_the_driver_stored() {
    for (recording, rows) in super::recordings("order.jsonl") {
        let mut counted = BTreeMap::new();
        let mut queues = BTreeMap::new();
        for row in &rows {
            let api = row.str("api").expect("an api").to_owned();
            super::count(&mut counted, &api[..]);
            let fresh = !queues.contains_key(&api);
            let queue = queues.entry(api).or_insert_with(|| Ordered::new(qpn(row)));
            let result = queue.check(row);
            result.unwrap_or_else(|error| panic!("{}: {error}", row.place()));
            if fresh {
                change_order(row);
            }
        }
        super::check_tally(&recording, "order: rows", &counted);
    }
}

/// The number of the queue pair in a row's first word.
fn qpn(row: &Row) -> u32 {
    let word = row.hex("stores.1.val8").expect("a word");
    u32::from_be_bytes([0, word[4], word[5], word[6]])
}

/// In a fresh queue the first row holds, and does not when a word or the record differs.
fn change_order(row: &Row) {
    let check = |other: &Row| Ordered::new(qpn(row)).check(other);
    check(row).expect("as recorded");
    let last = row.rows("stores").expect("stores").len() - 1;
    for field in [
        "stores.1.val8",
        &format!("stores.{last}.val8"),
        "stores.0.dbr",
    ] {
        let mut bytes = row.hex(field).expect("hex");
        bytes[2] ^= 1;
        let other = row.with(field, to_hex(&bytes).into()).expect("is there");
        assert!(
            check(&other).is_err(),
            "{} {field}: not noticed",
            row.place()
        );
    }
}

/// Why sizes that the driver chose make no queue of core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unfit {
    /// The driver could not create the queue either.
    Refused,
    /// The driver says 2^32 - 4 inline bytes, for queues without elements and inline bytes.
    InlineUnderflow,
    /// The driver's limits hold for the operations that its caller named (`send_ops_flags`), core's for all of the
    /// transport. An atomic's segments take the room that the last elements or inline bytes would need.
    ForFewerOperations,
    /// A request within the driver's limits has 64 segments or more, which the size field of 6 bits cannot say.
    SizeOverflows,
}

/// What a send queue needs on a transport.
struct Needs {
    transport: &'static str,
    /// Whether core makes a queue of these blocks, elements and inline bytes.
    make: fn(u32, u32, u32) -> bool,
    /// Bytes of the longest entry with these elements and inline bytes.
    longest: fn(u32, u32) -> usize,
    /// Of these, the bytes for the segments of the longest operation.
    operation: usize,
}

impl Needs {
    const fn of<T: Transport>(transport: &'static str) -> Self {
        Self {
            transport,
            make: send_queue::<T>,
            longest: SendQueue::<T, Silent>::longest_entry,
            operation: T::LONGEST_OPERATION,
        }
    }

    const ALL: [Self; 4] = [
        Self::of::<Rc>("RC"),
        Self::of::<Uc>("UC"),
        Self::of::<Ud>("UD"),
        Self::of::<Xrc>("XRC_SEND"),
    ];
}

/// Bytes of the segments that the longest of these operations of RC (`ibv_qp_create_send_ops_flags`) has before its
/// payload; 0 stands for all.
fn operation_bytes(send_ops: u32) -> usize {
    const RDMA: u32 = 1 << 0 | 1 << 1 | 1 << 4;
    const ATOMIC: u32 = 1 << 5 | 1 << 6;
    match send_ops {
        0 => 32,
        ops if ops & ATOMIC != 0 => 32,
        ops if ops & RDMA != 0 => 16,
        _ => 0,
    }
}

/// A doorbell that nobody hears.
struct Silent;

// SAFETY: nothing is posted.
unsafe impl SendDoorbell for Silent {
    unsafe fn ring(&mut self, _: &bellwire_core::port::Staged) {}
}

/// Whether a queue of core has entries long enough.
fn send_queue<T: Transport>(blocks: u32, max_sge: u32, max_inline: u32) -> bool {
    let memory = replay::memory(blocks as usize * 64);
    // SAFETY: leaked, and used by this queue alone.
    let queue = unsafe {
        SendRing::new(memory, blocks).and_then(|ring| {
            SendQueue::<T, _>::new(SendQueueInit {
                ring,
                ledger: replay::ledger(blocks, 1),
                doorbell: Silent,
                max_sge,
                max_inline,
                signal_all: false,
            })
        })
    };
    queue.is_some()
}

/// The driver chooses sizes by its own rules and bellwire by others, so that all there is to check is
/// that core's limits allow what the driver found possible.
fn check_geometry(row: &Row) -> Check<Option<Unfit>> {
    if row.has("errno") {
        return Ok(Some(Unfit::Refused));
    }
    let (count, stride): (u32, u32) = (row.int("rq_wqe_cnt")?, row.int("rq_stride")?);
    if count != 0 {
        let memory = replay::memory((count * stride) as usize);
        // SAFETY: leaked, and used by this ring alone.
        let ring = unsafe { RecvRing::new(memory, count, stride) }.ok_or("no receive ring")?;
        same("recv_wr", ring.count(), row.int("cap.3")?)?;
        same("recv_sge", ring.max_sge(), row.int("cap.4")?)?;
    }
    let blocks: u32 = row.int("sq_wqe_cnt")?;
    if blocks == 0 {
        return Ok(None);
    }
    let (max_sge, max_inline): (u32, u32) = (row.int("cap.1")?, row.int("cap.2")?);
    let transport = row.str("type")?;
    let needs = Needs::ALL.iter().find(|needs| needs.transport == transport);
    let needs = needs.ok_or_else(|| format!("transport {transport:?}"))?;
    if (needs.make)(blocks, max_sge, max_inline) {
        return Ok(None);
    }
    if max_inline == u32::MAX - 3 && max_sge == 0 {
        return Ok(Some(Unfit::InlineUnderflow));
    }
    let named = operation_bytes(row.int("send_ops")?).min(needs.operation);
    let longest = (needs.longest)(max_sge, max_inline);
    let of_named = longest - (needs.operation - named);
    if of_named > MAX_ENTRY {
        return Ok(Some(Unfit::SizeOverflows));
    }
    let room = MAX_ENTRY.min(blocks as usize * BASIC_BLOCK);
    if longest > room && of_named <= room {
        return Ok(Some(Unfit::ForFewerOperations));
    }
    Err(format!("no send queue of {blocks} blocks, {max_sge} elements, {max_inline} bytes").into())
}

#[test]
fn sizes_that_the_driver_chose_make_queues() {
    for (recording, rows) in super::recordings("geom.jsonl") {
        let mut counted = BTreeMap::new();
        for row in rows {
            let found = check_geometry(&row);
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", row.place()));
            let case = found.map_or("Fits".to_owned(), |found| format!("{found:?}"));
            super::count(&mut counted, case);
        }
        super::check_tally(&recording, "geom: rows", &counted);
    }
}

#[test]
fn limits_hold_for_every_operation_of_the_transport() {
    let found = |transport: &str, send_ops: u32, blocks: u32, max_sge: u32, max_inline: u32| {
        let row = format!(
            r#"{{"k":"geom","type":"{transport}","api":"wr","send_ops":{send_ops},"sq_wqe_cnt":{blocks},
                "rq_wqe_cnt":0,"rq_stride":0,"cap":[1,{max_sge},{max_inline},0,0]}}"#
        );
        let row = Row::parse("by hand", &row).expect("a row");
        check_geometry(&row).map_err(|error| error.to_string())
    };
    const SEND: u32 = 1 << 2;
    const WRITE: u32 = 1 << 0;
    const FETCH_ADD: u32 = 1 << 6;
    // One request of 30 elements takes 512 bytes as a WRITE, and 528 as an atomic.
    let fewer = Ok(Some(Unfit::ForFewerOperations));
    assert_eq!(found("RC", WRITE | SEND, 8, 30, 476), fewer);
    assert_eq!(found("XRC_SEND", SEND, 8, 30, 476), fewer);
    assert_eq!(found("RC", WRITE | SEND, 16, 30, 476), Ok(None));
    // What the driver did not promise is no excuse: an atomic of its own would not fit either.
    assert!(found("RC", FETCH_ADD, 8, 30, 476).is_err());
    assert!(found("RC", 0, 8, 30, 476).is_err());
    // 988 bytes and their length are 62 segments, with control and address segment 64.
    let overflows = Ok(Some(Unfit::SizeOverflows));
    assert_eq!(found("RC", WRITE | SEND, 32, 13, 988), overflows);
    assert_eq!(found("XRC_SEND", SEND, 32, 13, 988), overflows);
    assert_eq!(found("XRC_SEND", WRITE | SEND, 64, 23, 972), overflows);
    assert_eq!(
        found("UC", SEND, 32, 13, 988),
        fewer,
        "63 segments as a SEND"
    );
    assert_eq!(found("UC", SEND, 32, 13, 972), Ok(None), "63 as a WRITE");
}
