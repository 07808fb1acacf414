//! Plain completions: which ones are plain, and that they report the same as `poll_one`.

use super::*;
use crate::slab::{ClassLayout, Slab, SlabClass, SlabRegion};

/// A queue pair on its own completion queue.
struct World {
    cq: Cq,
    qp: Qp,
    index: UserIndex,
}

fn world(cqe_size: u32) -> World {
    let mut cq = Cq::new(32, cqe_size, 1);
    let qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    World { cq, qp, index }
}

impl World {
    fn receive(&mut self) -> u32 {
        let counter = self.qp.recv.counter();
        // SAFETY: the request refers to no memory.
        unsafe { self.qp.recv.post(counter.into(), &[]) }.expect("room");
        self.qp.recv.ring();
        counter
    }

    fn received(&mut self, opcode: CqeOpcode, counter: u32) {
        let entry = Cqe64::responder(opcode, wqe(self.index, counter), 77);
        self.cq.write(&[0; 64], &entry);
    }

    /// Posts and executes requests; `what` selects them.
    fn step(&mut self, what: usize) {
        match what {
            // Not completed yet: the next one is plain only if it is the oldest.
            0 => _ = self.qp.post(),
            1 | 2 => {
                let counter = self.qp.post();
                self.cq.sent(self.index, counter, 3);
            }
            3 | 4 => {
                let counter = self.receive();
                let opcodes = [CqeOpcode::RespSend, CqeOpcode::RespWrImm];
                self.received(opcodes[what - 3], counter);
            }
            5 => {
                let counter = self.qp.post();
                let wqe = wqe(self.index, counter);
                let error = Syndrome::LOCAL_LENGTH;
                let entry = Cqe64::error(CqeOpcode::ReqErr, wqe, opcode::SEND, error, 9);
                self.cq.write(&[0; 64], &entry);
            }
            // A CQE of no request in flight.
            _ => {
                let counter = self.qp.send.counter().wrapping_add(3);
                self.cq.sent(self.index, counter, 3);
            }
        }
    }

    /// Polls the next completion; with `plain` as a plain one where it is one.
    fn poll(&mut self, plain: bool) -> Option<(u64, u32, u32, Result<Success, Failure>)> {
        if plain && let Some(next) = self.cq.queue.plain() {
            let (success, head) = (next.success(), (next.wr_id(), next.qp_num(), 1));
            let (opcode, entry, slid) = next.raw().head();
            let words = [next.raw().byte_cnt(), next.raw().imm(), next.raw().source()];
            assert_eq!((opcode, entry, slid, words), success.to_raw());
            next.take();
            return Some((head.0, head.1, head.2, Ok(success)));
        }
        let completion = self.cq.queue.poll_one()?;
        Some((
            completion.wr_id,
            completion.qp_num,
            completion.retired,
            completion.result,
        ))
    }

    fn stands(&self) -> (u32, u32, u32, u32, u64) {
        let (send, recv) = (&self.qp.send, &self.qp.recv);
        let index = self.cq.queue.next_index();
        let record = self.cq.records[0].load();
        (
            index,
            record,
            send.in_flight(),
            recv.in_flight(),
            self.cq.queue.stale(),
        )
    }
}

#[test]
fn they_are_reported_as_all_others() {
    for cqe_size in [64, 128] {
        let mut random = Random(7);
        let (mut one, mut other) = (world(cqe_size), world(cqe_size));
        for round in 0..if cfg!(miri) { 25 } else { 5000 } {
            // Enough blocks for a round.
            for _ in 0..1 + random.below(4) {
                let what = random.below(7);
                if what < 3 && one.qp.send.free_blocks() < 2 {
                    continue;
                }
                one.step(what);
                other.step(what);
            }
            loop {
                let polled = one.poll(false);
                assert_eq!(polled, other.poll(true), "round {round}");
                assert_eq!(one.stands(), other.stands(), "round {round}");
                if polled.is_none() {
                    break;
                }
            }
            // Unsignalled requests are not reported until the next round's completion.
            while one.qp.send.free_blocks() < 6 {
                one.step(1);
                other.step(1);
                assert_eq!(one.poll(false), other.poll(true));
            }
        }
    }
}

#[test]
fn only_the_oldest_that_was_executed_is_plain() {
    let mut world = world(64);
    assert!(world.cq.queue.plain().is_none(), "nothing is there");
    for what in [1, 3, 4] {
        world.step(what);
        let before = world.stands();
        assert!(world.cq.queue.plain().is_some(), "{what}");
        assert_eq!(world.stands(), before, "it was only looked at");
        world.cq.queue.plain().expect("still there").take();
        assert_ne!(world.stands(), before);
        assert!(world.cq.queue.plain().is_none(), "it is gone");
    }
    // An error; a CQE of no request; a completion behind an unsignalled request.
    for steps in [&[5][..], &[6], &[0, 1]] {
        steps.iter().for_each(|&what| world.step(what));
        let before = world.stands();
        assert!(world.cq.queue.plain().is_none(), "{steps:?}");
        assert_eq!(world.stands(), before);
        while world.poll(false).is_some() {}
    }
}

/// A block is returned only by a full poll.
#[test]
fn what_has_a_block_is_not_plain() {
    let layout = [ClassLayout { size: 64, count: 1 }];
    let (metas, classes) = (
        keep_all(1, Default::default),
        keep_all(1, SlabClass::default),
    );
    let twice = memory(2 * 4096);
    let start = twice.as_ptr().addr().next_multiple_of(4096) - twice.as_ptr().addr();
    let region = SlabRegion {
        // SAFETY: the memory of two pages contains a whole one.
        start: unsafe { twice.add(start) },
        length: 4096,
        lkey: 1,
        rkey: 2,
    };
    // SAFETY: kept, and used only by the slab.
    let slab = unsafe { Slab::new(metas, classes, region, &layout) }.expect("fits");
    let slab = keep(slab);
    let mut world = world(64);
    let block = slab.take(64).expect("one");
    let counter = world.qp.send.counter();
    let posted = (world.qp.send).post_block(9, (), Send {}, block, 8, SendFlags::SIGNALED);
    assert!(posted.is_ok());
    world.qp.send.ring();
    world.cq.sent(world.index, counter, 0);
    assert!(world.cq.queue.plain().is_none());
    let completion = world.cq.queue.poll_one().expect("reported");
    assert!(completion.wr_id == 9 && completion.block.is_some());
}
