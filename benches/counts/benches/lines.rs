//! How many cache lines posting and polling write and read, as Valgrind sees them: every load and store
//! between two marks, the stack's left out. Held to limits.
//!
//! The program runs itself under Valgrind's lackey and reads its trace.

use bellwire_benches::MemoryDevice;
use bellwire_core::wqe::{Inline, RdmaWrite};
use bellwire_core::wr::{Remote, SendFlags, Sge};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::ptr::{NonNull, from_ref};

/// Set for the one that is traced.
const TRACED: &str = "BELLWIRE_LINES_TRACED";

const LINE: u64 = 64;

/// Bytes around a local variable that are the stack's.
const STACK: u64 = 1 << 20;

/// What is done, and the most lines that it may write. What it reads depends on how it was compiled, and
/// is only reported.
///
/// - A post writes the entry, half a line of ledger, the ledger's counter, the queue's own state, the
///   record, and the register.
/// - A poll reads the entry, the slot of the queue pair, its ledger's poster and record; it writes the
///   ledger's counter and record, the consumer record, and the queue's own state.
const LIMITS: [(&str, usize); 7] = [
    ("post WRITE 28 B inline, ring", 5),
    ("post WRITE by SGE, ring", 5),
    ("post 8 WRITEs by SGE, ring once", 15),
    ("post RECV, ring", 4),
    ("poll one", 3),
    ("poll 8 at once", 2),
    ("poll nothing", 0),
];

/// Behind what is traced.
const NOTHING: usize = LIMITS.len();

/// Read where what is traced begins and ends.
static MARKS: [u8; LIMITS.len() + 1] = [0; LIMITS.len() + 1];

#[inline(never)]
fn mark(index: usize) {
    // SAFETY: a static that is there.
    unsafe { NonNull::from_ref(&MARKS[index]).read_volatile() };
}

const REMOTE: Remote = Remote {
    addr: 0x1000,
    rkey: 1,
};
const SGE: Sge = Sge {
    addr: 0x2000,
    length: 64,
    lkey: 1,
};

fn post(device: &mut MemoryDevice, wr_id: u64) {
    let write = RdmaWrite { remote: REMOTE };
    // SAFETY: no device reads the memory.
    let posted = unsafe { device.sq.post(wr_id, (), write, SGE, SendFlags::SIGNALED) };
    assert!(posted.is_ok());
}

/// Does everything once, between marks.
fn traced() {
    let mut device = MemoryDevice::new(28);
    let local = 0_u8;
    println!("marks {:x}", from_ref(&MARKS).addr());
    println!("stack {:x}", from_ref(black_box(&local)).addr());
    // The limit of the queue is looked at anew from time to time: not now.
    device.complete_sends(4, 1, 1);
    for wr_id in 0..4 {
        post(&mut device, wr_id);
        device.sq.ring();
    }
    device.complete_receives(1, 64);
    // SAFETY: no device writes the memory.
    unsafe { device.rq.post(0, &[SGE]) }.expect("room");
    device.rq.ring();
    while device.cq.poll_one().is_some() {}
    device.complete_sends(10, 1, 1);

    mark(0);
    let write = RdmaWrite { remote: REMOTE };
    // SAFETY: inline.
    let posted = unsafe {
        let bytes = black_box(&[7; 28]);
        (device.sq).post(4, (), write, Inline(bytes), SendFlags::SIGNALED)
    };
    assert!(posted.is_ok());
    device.sq.ring();
    mark(1);
    post(&mut device, 5);
    device.sq.ring();
    mark(2);
    for wr_id in 6..14 {
        post(&mut device, wr_id);
    }
    device.sq.ring();
    mark(3);
    // SAFETY: no device writes the memory.
    let posted = unsafe { device.rq.post(1, black_box(&[SGE])) };
    assert!(posted.is_ok());
    device.rq.ring();
    mark(4);
    let completion = device.cq.poll_one();
    mark(NOTHING);
    assert!(completion.is_some());
    mark(5);
    let polled = device.cq.poll(8, |completion| {
        black_box(completion.wr_id);
    });
    mark(NOTHING);
    assert_eq!(polled, 8);
    while device.cq.poll_one().is_some() {}
    mark(6);
    let completion = device.cq.poll_one();
    mark(NOTHING);
    assert!(completion.is_none());
}

/// What was touched between two marks.
#[derive(Default)]
struct Touched {
    read: BTreeSet<u64>,
    written: BTreeSet<u64>,
}

/// The address that a line of this kind names.
fn named(line: &str, name: &str) -> Option<u64> {
    u64::from_str_radix(line.strip_prefix(name)?.trim(), 16).ok()
}

fn trace() -> Option<Vec<Touched>> {
    let program = std::env::current_exe().ok()?;
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=1"])
        .arg(program)
        .env(TRACED, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let (mut marks, mut stack, mut at) = (None, 0, None);
    let mut touched: Vec<_> = LIMITS.iter().map(|_| Touched::default()).collect();
    for line in BufReader::new(child.stdout.take()?).lines() {
        let line = line.ok()?;
        if let Some(address) = named(&line, "marks ") {
            marks = Some(address);
        } else if let Some(address) = named(&line, "stack ") {
            stack = address;
        }
        // " L 1ffefff3a8,8", loads; " S", stores; " M", both. "I" are instructions.
        let (Some(marks), Some(kind @ (" L" | " S" | " M"))) = (marks, line.get(..2)) else {
            continue;
        };
        let Some((address, bytes)) = line[2..].trim().split_once(',') else {
            continue;
        };
        let (address, bytes) = (
            u64::from_str_radix(address, 16).ok()?,
            bytes.parse::<u64>().ok()?,
        );
        if let Some(mark) = address.checked_sub(marks)
            && mark <= LIMITS.len() as u64
        {
            at = Some(mark as usize);
            continue;
        }
        let Some(touched) = at.and_then(|at: usize| touched.get_mut(at)) else {
            continue;
        };
        if address.abs_diff(stack) < STACK {
            continue;
        }
        for line in address / LINE..=(address + bytes - 1) / LINE {
            if kind != " S" {
                touched.read.insert(line);
            }
            if kind != " L" {
                touched.written.insert(line);
            }
        }
    }
    child.wait().ok()?.success().then_some(touched)
}

fn main() -> ExitCode {
    if std::env::var_os(TRACED).is_some() {
        traced();
        return ExitCode::SUCCESS;
    }
    let Some(touched) = trace() else {
        eprintln!("valgrind could not trace it: apt-get install valgrind");
        return ExitCode::FAILURE;
    };
    let mut good = true;
    for ((what, most), touched) in LIMITS.into_iter().zip(touched) {
        let written = touched.written.len();
        let read = touched.read.difference(&touched.written).count();
        let within = written <= most;
        let verdict = if within { "" } else { ": more than the limit" };
        println!("{what}: {written} lines written (limit {most}), {read} others read{verdict}");
        good &= within;
    }
    match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
