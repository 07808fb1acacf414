//! Data path operations between two breakpoint instructions, for a debugger that steps through them: the
//! step `aarch64` counts their instructions, and notes in which order stores and barriers come.
//!
//! Before the first breakpoint of each a line says what it is, and where the device reads.

#[path = "../src/memory_device.rs"]
mod memory_device;

use bellwire_core::wqe::RdmaWrite;
use bellwire_core::wr::{Remote, SendFlags, Sge};
use memory_device::{MemoryDevice, REGISTER};
use std::hint::black_box;
use std::io::Write;

/// Stops the program, if a debugger steps through it.
macro_rules! breakpoint {
    () => {
        // SAFETY: whoever runs this program handles the breakpoint.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::asm!("int3", options(nostack));
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!("brk #0", options(nostack));
        }
    };
}

const REMOTE: Remote = Remote {
    addr: 0x1000,
    rkey: 7,
};
const SGE: Sge = Sge {
    addr: 0x2000,
    length: 64,
    lkey: 5,
};

/// Bytes of a ring that are looked at: more than the operations write.
const RING: usize = 1024;

#[inline(never)]
fn measure(name: &str, mut device: MemoryDevice, operation: impl FnOnce(&mut MemoryDevice)) {
    let seen = device.seen;
    let [consumer, arm] = seen.cq_records;
    // Each store to it is seen as a change.
    // SAFETY: the register is memory of this size, and nothing else uses it now.
    unsafe { seen.register.cast::<u8>().write_bytes(0xee, 2 * REGISTER) };
    let places = [
        ("send ring", seen.send_ring.addr().get(), RING),
        ("receive ring", seen.recv_ring.addr().get(), RING),
        (
            "send record",
            std::ptr::from_ref(seen.send_record).addr(),
            4,
        ),
        (
            "receive record",
            std::ptr::from_ref(seen.recv_record).addr(),
            4,
        ),
        ("consumer record", std::ptr::from_ref(consumer).addr(), 4),
        ("arm record", std::ptr::from_ref(arm).addr(), 4),
        ("register", seen.register.addr().get(), 2 * REGISTER),
    ];
    let places = places.map(|(name, start, len)| format!("\t{name}\t{start:x}\t{len:x}"));
    let mut out = std::io::stdout();
    writeln!(out, "{name}{}", places.concat()).expect("a pipe");
    out.flush().expect("a pipe");
    breakpoint!();
    operation(&mut device);
    breakpoint!();
    black_box(&mut device);
}

/// Stages a WRITE.
#[inline(always)]
fn stage(device: &mut MemoryDevice) {
    let write = RdmaWrite {
        remote: black_box(REMOTE),
    };
    // SAFETY: there is no device that would touch the memory.
    let posted = unsafe { (device.sq).post(1, (), write, black_box(SGE), SendFlags::SIGNALED) };
    let _ = posted;
}

#[inline(always)]
fn receive(device: &mut MemoryDevice) {
    // SAFETY: there is no device that would touch the memory.
    let _ = unsafe { device.rq.post(1, &[black_box(SGE)]) };
    device.rq.ring();
}

#[inline(always)]
fn poll(device: &mut MemoryDevice) {
    black_box(device.cq.poll_one().map(|completion| completion.wr_id));
}

/// A device with a completion for each of a few sends.
fn sent() -> MemoryDevice {
    let mut device = MemoryDevice::new(60);
    device.complete_sends(4, 1, 1);
    for _ in 0..4 {
        stage(&mut device);
        device.sq.ring();
    }
    poll(&mut device);
    device
}

fn main() {
    measure("post a WRITE by SGE, ring", sent(), |device| {
        stage(device);
        device.sq.ring();
    });
    measure("post a WRITE of 28 bytes inline, ring", sent(), |device| {
        let write = RdmaWrite {
            remote: black_box(REMOTE),
        };
        let data: &[u8; 28] = black_box(&[7; 28]);
        let _ = (device.sq).post_inline(1, (), write, data, SendFlags::SIGNALED);
        device.sq.ring();
    });
    measure("post two WRITEs, ring once", sent(), |device| {
        stage(device);
        stage(device);
        device.sq.ring();
    });
    measure("post a receive, ring", MemoryDevice::new(60), receive);
    measure("poll a send", sent(), poll);
    let mut received = MemoryDevice::new(60);
    received.complete_receives(2, 64);
    receive(&mut received);
    receive(&mut received);
    poll(&mut received);
    measure("poll a receive", received, poll);
    measure("poll an empty queue", MemoryDevice::new(60), poll);
    measure("arm", sent(), |device| {
        black_box(device.cq.arm(black_box(9), false));
    });
}
