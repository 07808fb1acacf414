//! Every receive that was recorded from rdma-core, posted by core: entries, links, doorbell record.

use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{
    Attach, PostError, RecvQueue, SharedRecvQueue, SrqLedger, SrqSlot, SrqUser, UserIndex,
};
use bellwire_core::wqe::{RecvRing, SrqRing};
use bellwire_core::wr::Sge;
use bellwire_tests::replay::{self, Completions};
use bellwire_tests::vectors::{Row, to_hex};
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt::Debug;
use std::ptr::NonNull;

const FILE: &str = "recv.jsonl";

type Check<T = ()> = Result<T, Box<dyn Error>>;

fn same<T: PartialEq + Debug>(what: &str, ours: T, recorded: T) -> Check {
    if ours == recorded {
        return Ok(());
    }
    Err(format!("{what}: core says {ours:?}, the row {recorded:?}").into())
}

/// What core made of the requests of a row.
#[derive(Debug, Default)]
struct Made {
    /// Slot and bytes of each entry.
    entries: Vec<(u32, Vec<u8>)>,
    refused: Option<PostError>,
    /// Whether the refused request wrote to the ring.
    strayed: bool,
    /// Counter of a receive queue, head of a shared one.
    next: u32,
    record: [u8; 4],
    /// The `wr_id`s that the completions gave.
    completed: Vec<u64>,
}

fn sges(request: &Row) -> Check<Vec<Sge>> {
    let count = request.value()["sge"].as_array().map_or(0, Vec::len);
    let sge = |at: usize| {
        Ok(Sge {
            addr: request.int(&format!("sge.{at}.0"))?,
            length: request.int(&format!("sge.{at}.1"))?,
            lkey: request.int(&format!("sge.{at}.2"))?,
        })
    };
    (0..count).map(sge).collect()
}

/// Bytes of an entry.
fn entry(memory: NonNull<u8>, slot: u32, stride: usize) -> Vec<u8> {
    // SAFETY: callers give a slot of the ring; nobody writes meanwhile.
    unsafe { replay::snapshot(memory.add(slot as usize * stride), stride) }
}

/// Posts the requests of a row, up to the first that is refused. `post` returns the slot.
fn post_all(
    row: &Row,
    ring: (NonNull<u8>, usize, usize),
    mut post: impl FnMut(u64, &[Sge]) -> Result<u32, PostError>,
) -> Check<Made> {
    let (memory, count, stride) = ring;
    // Without the links of a shared receive queue, which change when completed entries are collected.
    let skip = if row.str("k")? == "srq_recv" { 16 } else { 0 };
    let snapshot = || -> Vec<u8> {
        // SAFETY: the ring's bytes, which only `post` writes.
        let ring = unsafe { replay::snapshot(memory, count * stride) };
        let entries = ring.chunks(stride);
        entries.flat_map(|entry| &entry[skip..]).copied().collect()
    };
    let mut made = Made::default();
    for request in row.rows("wrs")? {
        let before = snapshot();
        match post(request.int("wr_id")?, &sges(&request)?) {
            Ok(slot) => made.entries.push((slot, entry(memory, slot, stride))),
            Err(error) => {
                made.refused = Some(error);
                made.strayed = snapshot() != before;
                break;
            }
        }
    }
    Ok(made)
}

/// Replays a row of a receive queue.
fn replay_recv(row: &Row) -> Check<Made> {
    let (count, stride): (u32, u32) = (row.int("rq_wqe_cnt")?, row.int("stride")?);
    let memory = replay::memory((count * stride) as usize);
    // SAFETY: leaked, and used by this queue alone.
    let ring = unsafe { RecvRing::new(memory, count, stride) }.ok_or("no ring")?;
    same("max_sge", ring.max_sge(), row.int("max_sge")?)?;
    let ledger = replay::ledger(count, row.int("qpn")?);
    let record: &DoorbellRecord = replay::record();
    // SAFETY: the only queue on ring and ledger.
    let queue = unsafe { RecvQueue::new(ring, ledger, record) };
    let mut queue = queue.ok_or("no queue")?;
    queue.set_postable(true);
    let mut completions = Completions::new(64, 64);
    let attached = Attach {
        recv: Some((ledger, ring)),
        ..Attach::default()
    };
    // SAFETY: the only poller.
    let user_index = unsafe { completions.attach(attached) };

    let head: u32 = row.int("head")?;
    for _ in 0..head {
        // SAFETY: no element, so no memory.
        unsafe { queue.post(0, &[]) }?;
        queue.ring();
        // The counter of an entry does not matter.
        let _ = completions.complete_recv(user_index, 0x5555);
    }

    let mut next = head;
    let ring = (memory, count as usize, stride as usize);
    let mut made = post_all(row, ring, |wr_id, sges| {
        // SAFETY: no device uses the entries.
        unsafe { queue.post(wr_id, sges) }?;
        next += 1;
        Ok((next - 1) & (count - 1))
    })?;
    queue.ring();
    made.next = next & 0xffff;
    made.record = replay::record_bytes(record);
    for _ in 0..made.entries.len() {
        let completion = completions.complete_recv(user_index, 0x5555);
        made.completed.push(completion.wr_id);
    }
    Ok(made)
}

/// A shared receive queue, and which of its entries are free.
struct Shared {
    count: u32,
    queue: SharedRecvQueue<'static>,
    record: &'static DoorbellRecord,
    memory: NonNull<u8>,
    completions: Completions,
    user_index: UserIndex,
    /// Free entries in the order in which they are posted; the last one never is.
    free: VecDeque<u32>,
    /// Completed since, latest last.
    returned: Vec<u32>,
    posted: u32,
}

impl Shared {
    fn new(count: u32, stride: u32) -> Check<Self> {
        let memory = replay::memory((count * stride) as usize);
        // SAFETY: leaked, and used by this queue alone.
        let ring = unsafe { SrqRing::new(memory, count, stride) }.ok_or("no ring")?;
        let slots: Vec<SrqSlot> = (0..count).map(|_| SrqSlot::default()).collect();
        let ledger = SrqLedger::new(ring, Box::leak(slots.into_boxed_slice()));
        let ledger: &SrqLedger = Box::leak(Box::new(ledger.ok_or("no ledger")?));
        let record: &DoorbellRecord = replay::record();
        // SAFETY: the only queue on ring and ledger.
        let queue = unsafe { SharedRecvQueue::new(ledger, record) }.ok_or("no queue")?;
        let mut completions = Completions::new(64, 64);
        let attached = Attach {
            srq: Some((ledger, SrqUser::Qp(7))),
            ..Attach::default()
        };
        // SAFETY: the only poller.
        let user_index = unsafe { completions.attach(attached) };
        Ok(Self {
            count,
            queue,
            record,
            memory,
            completions,
            user_index,
            free: (0..count).collect(),
            returned: Vec::new(),
            posted: 0,
        })
    }

    /// Posts, and says which slot it takes.
    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<u32, PostError> {
        // SAFETY: no device uses the entries.
        unsafe { self.queue.post(wr_id, sges) }?;
        if self.free.len() == 1 {
            self.free.extend(self.returned.drain(..).rev());
        }
        self.posted += 1;
        Ok(self.free.pop_front().expect("was posted"))
    }

    fn complete(&mut self, slot: u32) -> u64 {
        self.returned.push(slot);
        let completion = self.completions.complete_recv(self.user_index, slot as u16);
        completion.wr_id
    }

    /// Posts until nothing is free; the slot that is left.
    fn fill(&mut self) -> u32 {
        while self.post(0, &[]).is_ok() {}
        self.free[0]
    }

    /// Makes `list` the free entries, and all others posted, `posted` of them by the counter.
    fn arrange(&mut self, list: &[u32], posted: u16) {
        // The free list starts with the entry that a full queue leaves over, so that one has to be the
        // first. Filling takes all others, and all once more where it has to be changed.
        let count = self.count;
        let rest = |left: u32| (0..count).filter(move |&slot| slot != left);
        loop {
            let last = self.free.back().expect("one is never posted");
            let left = *self.returned.first().unwrap_or(last);
            let to_fill = if left == list[0] { 1 } else { 2 } * (count - 1);
            if (self.posted + to_fill) as u16 == posted {
                break;
            }
            let slot = self.post(0, &[]).expect("one is free");
            self.queue.ring();
            self.complete(slot);
        }
        let left = self.fill();
        self.queue.ring();
        if left != list[0] {
            self.complete(list[0]);
            for slot in rest(left).filter(|slot| *slot != list[0]) {
                self.complete(slot);
            }
            assert_eq!(self.fill(), list[0]);
            self.queue.ring();
        }
        for &slot in list[1..].iter().rev() {
            self.complete(slot);
        }
    }
}

/// Replays a row of a shared receive queue.
fn replay_srq(row: &Row) -> Check<Made> {
    let stride = row.int("stride")?;
    // The free list that the row shows: what it posts, what is next, and the tail.
    let good: usize = row.int("good")?;
    let requests = row.rows("wrs")?;
    let mut list: Vec<u32> = Vec::new();
    for request in &requests[..good] {
        list.push(request.int("slot")?);
    }
    for slot in [row.int("next_head")?, row.int("tail")?] {
        if !list.contains(&slot) {
            list.push(slot);
        }
    }
    same("head", list[0], row.int("head")?)?;
    let last = list.iter().max().ok_or("no entries")?;
    let count = (last + 1).next_power_of_two();
    let mut shared = Shared::new(count, stride)?;
    let record = u32::from_be_bytes(row.bytes("dbr")?);
    shared.arrange(&list, (record as u16).wrapping_sub(good as u16));

    let ring = (shared.memory, count as usize, stride as usize);
    let mut made = post_all(row, ring, |wr_id, sges| shared.post(wr_id, sges))?;
    shared.queue.ring();
    made.next = shared.free[0];
    made.record = replay::record_bytes(shared.record);
    // In an order that is not theirs, and the answers back in theirs.
    let mut completed: Vec<_> = made.entries.iter().map(|(slot, _)| (*slot, 0)).collect();
    for (slot, wr_id) in completed.iter_mut().rev() {
        *wr_id = shared.complete(*slot);
    }
    made.completed = completed.into_iter().map(|(_, wr_id)| wr_id).collect();
    Ok(made)
}

/// Compares; says what was refused: the driver's ENOMEM (12) for a full queue, or EINVAL (22) for too many elements.
fn check(row: &Row, made: &Made) -> Check<Option<&'static str>> {
    let requests = row.rows("wrs")?;
    let good: usize = row.int("good")?;
    same("accepted", made.entries.len(), good)?;
    let shared = row.str("k")? == "srq_recv";
    let next = if shared { "next_head" } else { "next" };
    same("next", made.next, row.int(next)?)?;
    same("record", made.record, row.bytes("dbr")?)?;
    same("refused request wrote", made.strayed, false)?;
    for (at, (slot, bytes)) in made.entries.iter().enumerate() {
        let request = &requests[at];
        same("slot", *slot, request.int("slot")?)?;
        same("wr_id", made.completed[at], request.int("wr_id")?)?;
        let mut unwritten = vec![false; bytes.len()];
        for (from, len) in ranges(request)? {
            unwritten[from..from + len].fill(true);
        }
        let recorded = request.hex("wqe")?;
        same("size", bytes.len(), recorded.len())?;
        let differs = |at: &usize| bytes[*at] != recorded[*at] && !unwritten[*at];
        if let Some(byte) = (0..bytes.len()).find(differs) {
            let (ours, recorded) = (to_hex(bytes), to_hex(&recorded));
            return Err(format!("byte {byte}: core\n{ours}, the row\n{recorded}").into());
        }
    }
    let (errno, what) = match made.refused {
        None => (0, None),
        Some(PostError::QueueFull) => (12, Some("full")),
        Some(PostError::TooManySges { given, max }) => {
            let last = requests.last().ok_or("no requests")?;
            same("elements", given, sges(last)?.len())?;
            same("max_sge", max, row.int("max_sge")?)?;
            (22, Some("too many elements"))
        }
        Some(other) => return Err(format!("refused: {other}").into()),
    };
    same("result", errno, row.int::<i32>("ret")?)?;
    Ok(what)
}

fn ranges(request: &Row) -> Check<Vec<(usize, usize)>> {
    let count = request.value()["un"].as_array().map_or(0, Vec::len);
    let range = |at| {
        let range = request.ints::<usize>(&format!("un.{at}"))?;
        Ok((range[0], range[1]))
    };
    (0..count).map(range).collect()
}

/// The sizes that the driver chose make queues of core, of the same capacity.
fn check_geometry(row: &Row) -> Check {
    let stride: u32 = row.int("stride")?;
    if row.has("rq_wqe_cnt") {
        let count: u32 = row.int("rq_wqe_cnt")?;
        let memory = replay::memory((count * stride) as usize);
        // SAFETY: leaked, and used by nobody else.
        let ring = unsafe { RecvRing::new(memory, count, stride) }.ok_or("no ring")?;
        same("count", ring.count(), row.int("cap_wr")?)?;
        return same("max_sge", ring.max_sge(), row.int("cap_sge")?);
    }
    // The driver's ring has as many entries again, which it keeps for page faults.
    let tail: u32 = row.int("tail")?;
    let count = tail + 1;
    let links: Vec<u32> = row.ints("links")?;
    same("entries of the ring", links.len(), 2 * count as usize)?;
    same("kernel_max_wr", 2 * count - 1, row.int("kernel_max_wr")?)?;
    let memory = replay::memory((count * stride) as usize);
    // SAFETY: leaked, and used by this queue alone.
    let ring = unsafe { SrqRing::new(memory, count, stride) }.ok_or("no ring")?;
    same("max_sge", ring.max_sge(), row.int("cap_sge")?)?;
    let slots: Vec<SrqSlot> = (0..count).map(|_| SrqSlot::default()).collect();
    let ledger = SrqLedger::new(ring, Box::leak(slots.into_boxed_slice())).ok_or("no ledger")?;
    let ledger: &SrqLedger = Box::leak(Box::new(ledger));
    // SAFETY: the only queue on ring and ledger.
    let queue = unsafe { SharedRecvQueue::new(ledger, replay::record()) }.ok_or("no queue")?;
    same("capacity", queue.capacity(), row.int("cap_wr")?)?;
    same("head", 0, row.int::<u32>("head")?)?;
    for (index, &link) in (0..count).zip(&links) {
        same("link", ring.next(index), link)?;
    }
    Ok(())
}

/// What core makes of a row of requests.
fn make(row: &Row) -> Made {
    let made = match row.str("k").expect("a kind") {
        "recv" => replay_recv(row),
        _ => replay_srq(row),
    };
    made.unwrap_or_else(|error| panic!("{}: {error}", row.place()))
}

#[test]
fn every_row_says_what_the_driver_wrote() {
    for (recording, rows) in super::recordings(FILE) {
        let [mut kinds, mut refused] = [BTreeMap::new(), BTreeMap::new()];
        for row in rows {
            let kind = row.str("k").expect("a kind").to_owned();
            let result = match &kind[..] {
                "recv" | "srq_recv" => check(&row, &make(&row)),
                "rq_geometry" | "srq_geometry" => check_geometry(&row).map(|()| None),
                other => panic!("{}: no check for rows of kind {other:?}", row.place()),
            };
            let what = result.unwrap_or_else(|error| panic!("{}: {error}", row.place()));
            if let Some(what) = what {
                super::count(&mut refused, what);
            }
            super::count(&mut kinds, kind);
        }
        super::check_tally(&recording, "recv: rows", &kinds);
        super::check_tally(&recording, "recv: refused", &refused);
    }
}

#[test]
fn a_changed_row_is_noticed() {
    for (recording, rows) in super::recordings(FILE) {
        let (noticed, ignored) = change(&rows);
        let folder = recording.folder().display();
        println!("{folder}: {noticed} noticed, {ignored} ignored");
        assert!(noticed > 0, "{folder}: no row could be changed");
    }
}

/// Changes everything that the driver made in every fourth row: how many changes the check notices, and how many are of
/// bytes that the driver did not write.
fn change(rows: &[Row]) -> (usize, usize) {
    let (mut noticed, mut ignored) = (0, 0);
    let with_requests = rows.iter().filter(|row| row.has("wrs"));
    for row in with_requests.step_by(4) {
        let made = make(row);
        let good: usize = row.int("good").expect("a number");
        for field in ["ret", "good", "next", "next_head", "dbr"] {
            if !row.has(field) {
                continue;
            }
            let other = match row.int::<u64>(field) {
                Ok(value) => row.with(field, (value ^ 1).into()),
                Err(_) => row.with(field, "00010203".into()),
            };
            let result = check(&other.expect("is there"), &made);
            assert!(result.is_err(), "{} {field}: not noticed", row.place());
            noticed += 1;
        }
        for at in 0..good {
            let request = &row.rows("wrs").expect("requests")[at];
            let unwritten = ranges(request).expect("ranges");
            let bytes = request.hex("wqe").expect("bytes");
            for byte in 0..bytes.len() {
                let mut flipped = bytes.clone();
                flipped[byte] ^= 1 << (byte % 8);
                let path = format!("wrs.{at}.wqe");
                let other = row.with(&path, to_hex(&flipped).into()).expect("is there");
                let result = check(&other, &made);
                let place = format!("{} {path} byte {byte}", row.place());
                if unwritten
                    .iter()
                    .any(|&(from, len)| (from..from + len).contains(&byte))
                {
                    assert!(result.is_ok(), "{place}: {result:?}");
                    ignored += 1;
                } else {
                    assert!(result.is_err(), "{place}: not noticed");
                    noticed += 1;
                }
            }
        }
    }
    (noticed, ignored)
}
