//! What bellwire costs on a device of libibverbs: what `cost.c` does by libibverbs itself, one request
//! after the other on a queue pair that is connected with itself. `cargo xtask cost` compares them.
//!
//! `cost DEVICE` prints for each operation the median of nanoseconds.

use bellwire::wqe::{RdmaRead, RdmaWrite, Send};
use bellwire::wr::{Remote, SendFlags, Sge};
use bellwire::{Cq, Device, Qp};
use bellwire_benches::looped;
use std::error::Error;
use std::time::Instant;

const BATCHES: usize = 21;
const BATCH: u64 = 200;
const BYTES: u32 = 8;
const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// What the operations are put to.
struct End {
    qp: Qp,
    cq: Cq,
    from: Sge,
    to: Remote,
    room: Sge,
}

impl End {
    /// Takes the next completion.
    #[inline(always)]
    fn poll_one(&mut self) {
        loop {
            if let Some(completion) = self.cq.poll_one() {
                return assert!(completion.result.is_ok());
            }
        }
    }

    #[inline(always)]
    fn write_one(&mut self, wr_id: u64) {
        let write = RdmaWrite { remote: self.to };
        let posted = (self.qp.sq()).post_inline(wr_id, (), write, &[0; BYTES as usize], SIGNALED);
        posted.expect("there is room");
        self.qp.sq().ring();
        self.poll_one();
    }

    #[inline(always)]
    fn read_one(&mut self, wr_id: u64) {
        let read = RdmaRead { remote: self.to };
        // SAFETY: memory of a region that is there until the completion is.
        let posted = unsafe { (self.qp.sq()).post(wr_id, (), read, self.from, SIGNALED) };
        posted.expect("there is room");
        self.qp.sq().ring();
        self.poll_one();
    }

    /// Both ends: the receive posted, the message sent, and two completions.
    #[inline(always)]
    fn send_one(&mut self, wr_id: u64) {
        // SAFETY: memory of a region that is there until the completion is.
        let posted = unsafe { self.qp.rq().post(wr_id, &[self.room]) };
        posted.expect("there is room");
        self.qp.rq().ring();
        let posted = (self.qp.sq()).post_inline(wr_id, (), Send {}, &[0; BYTES as usize], SIGNALED);
        posted.expect("there is room");
        self.qp.sq().ring();
        self.poll_one();
        self.poll_one();
    }
}

fn measure(name: &str, end: &mut End, one: impl Fn(&mut End, u64)) {
    let mut took = Vec::new();
    for _ in 0..BATCHES {
        let begun = Instant::now();
        for wr_id in 0..BATCH {
            one(end, wr_id);
        }
        took.push(begun.elapsed().as_nanos());
    }
    took.sort_unstable();
    println!("{name} {:.1}", took[BATCHES / 2] as f64 / BATCH as f64);
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: cost DEVICE")?;
    let bellwire_benches::End { qp, cq, region } = looped(&Device::open(&name)?);
    let mut end = End {
        qp,
        cq,
        from: region.sge(0, BYTES),
        to: region.remote(8),
        room: region.sge(8, BYTES),
    };
    measure("WRITE", &mut end, End::write_one);
    measure("READ", &mut end, End::read_one);
    measure("SEND", &mut end, End::send_one);
    Ok(())
}
