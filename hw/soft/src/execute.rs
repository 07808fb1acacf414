//! What every doorbell calls, and a short entry that is rung alone: a WRITE of up to 28 bytes inline on a reliable
//! connection, or a SEND of up to 32, or of up to 12 to another process (there with immediate data, too). Others that
//! are frequent are next, in [`one_sided`](super::one_sided) and in `remote::eager`.
//!
//! These have functions of their own, which call nothing on their way, so that there is little to save and
//! restore. They decide nothing that [`run`](super::run) does not: any other entry changes nothing here,
//! and so does every failure. `run` then executes the entry.
//!
//! What these took before, and take now: CHANGELOG.md and `benches/counts`.

use super::copy::{SHORT, copy_short};
use super::gate;
use super::hca::Hca;
use super::qp::{QpCtx, SendWork};
use super::remote::{PLAIN, WITH_IMM};
use super::respond::{deliver_short, takes_own_receives, usual_place};
use super::run::{Stop, complete_signaled, run};
use bellwire_core::access::AccessFlags;
use bellwire_core::op::{WrOpcode, opcode};
use bellwire_core::port::LastEntry;
use bellwire_core::wqe::{BASIC_BLOCK, FirstBlock, data_offset, fm_ce_se, operation_offset};
use bellwire_core::wr::{QpType, Remote};
use std::sync::atomic::Ordering;

/// Offset of a WRITE's remote address, and of its data.
pub(super) const TARGET: usize = operation_offset(QpType::Rc);
pub(super) const DATA: usize = data_offset(WrOpcode::RdmaWrite, QpType::Rc);

/// Whatever fits in the first block behind the segments of a WRITE is copied without a call.
const _: () = assert!(BASIC_BLOCK - DATA <= SHORT);

/// Offset of a SEND's data.
pub(super) const SEND_DATA: usize = data_offset(WrOpcode::Send, QpType::Rc);

/// The current entry of a queue pair, in whose section this thread is. It takes one block.
#[derive(Clone, Copy)]
pub(super) struct Current {
    pub ctx: &'static QpCtx,
    pub block: FirstBlock<'static>,
}

impl Current {
    /// The queue pair's work.
    ///
    /// # Safety
    /// The result is not used after another was made, or after the section was left.
    #[inline(always)]
    pub unsafe fn work(&mut self) -> &mut SendWork {
        // SAFETY: this thread is in the queue pair's section and owns the work; `execute` has found that there is
        // some. The caller guarantees the rest.
        unsafe { (*self.ctx.sender.work.get()).as_mut().unwrap_unchecked() }
    }
}

/// Whether nothing was posted but the current entry, which takes one block.
///
/// # Safety
/// The queue pair is open, its work has a way that is not [`Way::Other`](super::gate::Way::Other), and this thread is in
/// its section.
#[inline(always)]
unsafe fn is_alone(ctx: &'static QpCtx, producer: u32) -> bool {
    // SAFETY: as for `work_of`.
    unsafe { work_of(ctx) }.consumer.wrapping_add(1) == producer
}

/// # Safety
/// As for [`is_alone`]; the result is not used after the section was left.
#[inline(always)]
unsafe fn work_of(ctx: &'static QpCtx) -> &'static SendWork {
    // SAFETY: this thread owns the work, and there is some, or it would have no way.
    unsafe { (*ctx.sender.work.get()).as_ref().unwrap_unchecked() }
}

impl Hca {
    /// Executes what has been posted and rung. For each queue pair, only one thread at a time may call it.
    pub(super) fn execute_rung(&self, ctx: &'static QpCtx) {
        // Acquire: pairs with the Release in `ring`.
        self.execute(ctx, ctx.sender.producer.load(Ordering::Acquire));
    }

    /// Like [`execute_rung`](Self::execute_rung), of the entries that are posted before `producer`.
    #[inline(never)]
    pub(super) fn execute(&self, ctx: &'static QpCtx, producer: u32) {
        self.execute_by(ctx, producer, || {
            // SAFETY: posted and not completed, so the poster does not write it; called in the section.
            let block = unsafe {
                let work = work_of(ctx);
                FirstBlock::read(work.ring, work.consumer)
            };
            (Current { ctx, block }, last_entry(block))
        });
    }

    /// Like [`execute`](Self::execute), where the last entry before `producer` alone was rung: it is that of this block. The
    /// parameters are in the order in which they are passed on.
    #[inline(never)]
    pub(super) fn execute_last(
        &self,
        ctx: &'static QpCtx,
        block: FirstBlock<'static>,
        last: LastEntry,
        producer: u32,
    ) {
        self.execute_by(ctx, producer, || (Current { ctx, block }, last));
    }

    /// `current` returns the current entry, if that is the last one before `producer` and takes one block, and what its
    /// doorbell was told of it.
    #[inline(always)]
    fn execute_by(
        &self,
        ctx: &'static QpCtx,
        producer: u32,
        current: impl Fn() -> (Current, LastEntry),
    ) {
        let sender = &ctx.sender;
        sender.section.enter_unfenced();
        // Acquire: pairs with the Release with which the holder of the device's lock opened the queue pair.
        let gate = sender.gate.load(Ordering::Acquire);
        if gate == gate::THERE {
            // SAFETY: the gate says so.
            if unsafe { is_alone(ctx, producer) } {
                let (current, last) = current();
                return self.execute_there(current, last);
            }
        } else if gate == gate::HERE {
            // SAFETY: the gate says so.
            if unsafe { is_alone(ctx, producer) } {
                let (current, last) = current();
                return self.execute_here(current, last);
            }
        } else if gate != gate::OTHER {
            return self.execute_fenced(ctx);
        }
        self.execute_any(ctx);
    }

    /// Like [`execute`](Self::execute), where the gate is closed, or has to be checked behind a fence.
    #[cold]
    #[inline(never)]
    fn execute_fenced(&self, ctx: &'static QpCtx) {
        let sender = &ctx.sender;
        self.barriers.light();
        // Acquire: as in `execute_by`.
        if sender.gate.is_closed(Ordering::Acquire) {
            sender.section.leave();
            return self.rung_while_closed(ctx);
        }
        self.execute_any(ctx);
    }

    // Few cases each: more would be a table of jumps, which takes longer than two comparisons.
    #[inline(always)]
    fn execute_here(&self, mut current: Current, last: LastEntry) {
        match last.opcode() {
            opcode::RDMA_WRITE => self.write_here(current, last),
            // SAFETY: used here only.
            opcode::SEND if takes_own_receives(unsafe { current.work() }) => {
                self.send_here(current, last);
            }
            opcode::RDMA_READ => self.transfer_here(current),
            _ => self.execute_any(current.ctx),
        }
    }

    #[inline(always)]
    fn execute_there(&self, current: Current, last: LastEntry) {
        match last.opcode() {
            opcode::RDMA_WRITE => self.write_there(current, last),
            opcode::SEND => self.send_there::<PLAIN>(current, last),
            _ => self.execute_other_there(current, last),
        }
    }

    #[inline(never)]
    fn execute_other_there(&self, current: Current, last: LastEntry) {
        match last.opcode() {
            opcode::RDMA_READ => self.transfer_there(current),
            opcode::SEND_IMM => self.send_there::<WITH_IMM>(current, last),
            opcode::RDMA_WRITE_IMM => self.send_eagerly_there(current),
            _ => self.execute_any(current.ctx),
        }
    }

    /// Executes entries of any kind, and leaves the queue pair's section.
    #[inline(never)]
    pub(super) fn execute_any(&self, ctx: &'static QpCtx) {
        let sender = &ctx.sender;
        // Acquire: pairs with the Release in `ring`.
        let producer = sender.producer.load(Ordering::Acquire);
        // SAFETY: as in `execute`, whose section this is.
        let work = unsafe { &mut *sender.work.get() };
        let stop = work.as_mut().and_then(|work| run(self, work, producer));
        match stop {
            None => sender.section.leave(),
            Some(stop) => self.stop(ctx, stop),
        }
    }

    /// Closes the queue pair at its current entry, and leaves its section.
    #[cold]
    #[inline(never)]
    pub(super) fn stop(&self, ctx: &'static QpCtx, stop: Stop) {
        // SAFETY: as in `execute`, whose section this is.
        if let Some(work) = unsafe { &mut *ctx.sender.work.get() } {
            work.stop = Some(stop);
        }
        // Release: pairs with the Acquire in `Hca::go_on`, which takes the work over.
        ctx.sender.gate.close(Ordering::Release);
        ctx.sender.section.leave();
        self.stopped(ctx);
    }

    /// Executes a WRITE within this process, and leaves the section.
    #[inline(never)]
    fn write_here(&self, mut current: Current, last: LastEntry) {
        let block = current.block;
        // SAFETY: used before the section is left.
        if !wrote_here(self, unsafe { current.work() }, block, last) {
            return self.transfer_here(current);
        }
        self.finish(current, Some(0));
    }

    /// Delivers a SEND within this process, and leaves the section.
    #[inline(never)]
    fn send_here(&self, mut current: Current, last: LastEntry) {
        let block = current.block;
        // SAFETY: used before the section is left.
        let sent = sent_here(self, unsafe { current.work() }, block, last);
        self.finish(current, sent.then_some(0));
    }

    /// Passes the current entry, which takes one block, if it was executed, and completes it with this byte count if it is
    /// signalled. `None`: executes it as any other. Leaves the section.
    #[inline(always)]
    pub(super) fn finish(&self, mut current: Current, bytes: Option<u32>) {
        let Some(bytes) = bytes else {
            return self.execute_any(current.ctx);
        };
        if current.block.fm_ce_se() & fm_ce_se::SIGNALED != 0 {
            return self.complete_one(current, bytes);
        }
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        work.consumer = work.consumer.wrapping_add(1);
        current.ctx.sender.section.leave();
    }

    /// Like [`finish`](Self::finish), for a signalled entry that was executed.
    #[inline(never)]
    fn complete_one(&self, mut current: Current, bytes: u32) {
        let block = current.block;
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        let counter = work.consumer;
        let (cq, qpn, user_index) = (work.cq, work.qpn, work.user_index);
        if !complete_signaled(cq, qpn, user_index, block.opcode(), counter, bytes) {
            return self.stop(current.ctx, Stop::Overrun);
        }
        work.consumer = counter.wrapping_add(1);
        current.ctx.sender.section.leave();
    }
}

#[inline(always)]
fn wrote_here(hca: &Hca, work: &mut SendWork, block: FirstBlock<'static>, last: LastEntry) -> bool {
    let Some((target, bytes)) = short_write(block, last) else {
        return false;
    };
    let length = bytes.len() as u64;
    let place = usual_place(hca, work, target, length, AccessFlags::REMOTE_WRITE);
    // SAFETY: the target was checked in this section; the data is no longer than a block.
    place.is_some_and(|place| unsafe { copy_short(bytes.as_ptr(), place, bytes.len()) }.is_ok())
}

#[inline(always)]
fn sent_here(hca: &Hca, work: &SendWork, block: FirstBlock<'static>, last: LastEntry) -> bool {
    let Some(bytes) = block.data(SEND_DATA, last.inline().into()) else {
        return false;
    };
    let solicited = block.fm_ce_se() & fm_ce_se::SOLICITED != 0;
    deliver_short(hca, work, bytes, solicited)
}

/// Target and data of a short WRITE on a reliable connection: at most [`SHORT`] bytes.
#[inline(always)]
pub(super) fn short_write(
    block: FirstBlock<'static>,
    last: LastEntry,
) -> Option<(Remote, &'static [u8])> {
    let data = block.data(DATA, last.inline().into())?;
    Some((block.remote(TARGET), data))
}

/// What the doorbell would be told of an entry on a reliable connection that takes one block.
#[inline(always)]
pub(super) fn last_entry(block: FirstBlock<'static>) -> LastEntry {
    block.known(match block.opcode() {
        opcode::RDMA_WRITE => DATA,
        _ => SEND_DATA,
    })
}
