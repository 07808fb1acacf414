//! A send queue without a device.

use super::{keep, keep_all, memory};
use crate::port::{SendDoorbell, Staged};
use crate::queue::{Ledger, LedgerSlot, SendQueue, SendQueueInit, Standing};
use crate::random::Random;
use crate::wqe::{BASIC_BLOCK, Nop, Rc, Send, SendRing};
use crate::wr::SendFlags;
use std::collections::VecDeque;
use std::vec::Vec;

/// Basic blocks of the ring.
pub const BLOCKS: u32 = 16;

/// A doorbell without a device.
pub struct Silent;

// SAFETY: there is no device.
unsafe impl SendDoorbell for Silent {
    unsafe fn ring(&mut self, _: &Staged) {}
}

pub struct Queue {
    pub send: SendQueue<'static, Rc, Silent>,
    pub ledger: &'static Ledger<'static>,
}

impl Queue {
    pub fn new(qp_num: u32) -> Self {
        let slots = keep_all(BLOCKS as usize, LedgerSlot::default);
        let ledger = &*keep(Ledger::new(slots, qp_num).expect("a power of two"));
        // SAFETY: kept, and used only by this queue.
        let send = unsafe {
            let ring = SendRing::new(memory(BLOCKS as usize * BASIC_BLOCK), BLOCKS);
            SendQueue::new(SendQueueInit {
                ring: ring.expect("sizes"),
                ledger,
                doorbell: Silent,
                max_sge: 8,
                max_inline: 300,
                signal_all: false,
            })
        };
        let mut send = send.expect("fits");
        send.set_postable(true);
        Self { send, ledger }
    }

    /// Advances the head by `blocks`, as requests that have completed.
    pub fn advance(&mut self, blocks: u32) {
        for _ in 0..blocks {
            let counter = self.send.counter();
            let posted = self.send.post_empty(0, (), Nop {}, SendFlags::empty());
            posted.expect("room");
            self.retire(counter);
        }
    }

    /// Completes the request at `counter`.
    pub fn retire(&mut self, counter: u32) {
        self.send.ring();
        // SAFETY: this is the only poller.
        unsafe {
            let located = self.ledger.locate(counter as u16).expect("in flight");
            drop(self.ledger.release::<true>(&self.ledger.take(located)));
        }
    }

    pub fn clear(&mut self) -> Vec<(u64, u32)> {
        let mut unfinished = Vec::new();
        // SAFETY: the only poster and poller; there is no device.
        unsafe {
            self.send
                .clear(|request| unfinished.push((request.wr_id, request.counter)));
        }
        self.send.set_postable(true);
        unfinished
    }

    pub fn bytes(&self, counter: u32) -> Option<Vec<u8>> {
        let (head, tail) = self.send.entry(counter)?.bytes();
        Some([head, tail].concat())
    }
}

/// Lengths of inline data of requests of one to five blocks, in many laps of the ring.
#[test]
fn unreported_requests_come_from_the_last_to_the_first() {
    let mut queue = Queue::new(7);
    let mut random = Random(1);
    let mut posted: VecDeque<(u64, u32)> = VecDeque::new();
    let mut rung = 0;
    for wr_id in 0..if cfg!(miri) { 300 } else { 5000 } {
        let data = [0; 256];
        let counter = queue.send.counter();
        let length = random.below(256);
        let (flags, data) = (SendFlags::empty(), &data[..length]);
        if queue
            .send
            .post_inline(wr_id, (), Send {}, data, flags)
            .is_ok()
        {
            posted.push_back((wr_id, counter));
        } else {
            rung = posted.len();
            let done = random.below(posted.len());
            // It retires those before it.
            queue.retire(posted[done].1);
            posted.drain(..=done);
            rung -= done + 1;
        }
        if random.below(3) == 0 {
            queue.send.ring();
            rung = posted.len();
        }
        let mut found = Vec::new();
        let most = random.below(8);
        // SAFETY: nobody polls.
        unsafe {
            queue.send.unreported(|past| {
                found.push((past.wr_id, past.counter, past.standing));
                found.len() <= most
            });
        }
        let standing = |at| match at < rung {
            true => Standing::InFlight,
            false => Standing::Staged,
        };
        let all = posted.iter().enumerate().rev();
        let expected = all.map(|(at, &(wr_id, counter))| (wr_id, counter, standing(at)));
        assert!(expected.take(most + 1).eq(found));
    }
}
