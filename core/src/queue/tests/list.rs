//! Requests are staged by a list like one by one.

use super::send::{BLOCKS, Queue};
use crate::queue::{BadRequest, PostError, SendRequest};
use crate::random::Random;
use crate::wqe::{Inline, Rc, RdmaWrite};
use crate::wr::{Remote, SendFlags, Sge};
use std::vec::Vec;

/// Inline bytes of a request: more than the queue takes are refused.
const MAX_INLINE: usize = 300;

struct Wr {
    wr_id: u64,
    bytes: Vec<u8>,
    flags: SendFlags,
}

impl Wr {
    fn random(random: &mut Random, wr_id: u64) -> Self {
        let len = random.below(120);
        Self {
            wr_id,
            bytes: random.bytes(len),
            flags: SendFlags::from_bits_truncate(random.below(16) as u8),
        }
    }

    fn operation(&self) -> RdmaWrite {
        let remote = Remote {
            addr: self.wr_id << 32,
            rkey: self.wr_id as u32,
        };
        RdmaWrite { remote }
    }

    fn request(&self) -> Option<SendRequest<'_, Rc, RdmaWrite, Inline<'_>>> {
        Some(SendRequest {
            wr_id: self.wr_id,
            address: (),
            operation: self.operation(),
            payload: Inline(&self.bytes),
            flags: self.flags,
        })
    }
}

/// The contents of the ring and the ledger.
#[derive(Debug, PartialEq)]
struct Staged {
    blocks: u32,
    entries: Vec<Option<Vec<u8>>>,
    unfinished: Vec<(u64, u32)>,
}

fn staged(queue: &mut Queue) -> Staged {
    queue.send.ring();
    let end = queue.send.counter();
    let entries = (end.wrapping_sub(BLOCKS)..end).map(|counter| queue.bytes(counter));
    Staged {
        entries: entries.collect(),
        blocks: queue.send.in_flight(),
        unfinished: queue.clear(),
    }
}

#[test]
fn a_list_is_staged_as_its_requests_one_by_one() {
    let (mut one_by_one, mut listed) = (Queue::new(7), Queue::new(7));
    let mut random = Random(1);
    let rounds = if cfg!(miri) { 6 } else { 300 };
    for round in 0..rounds {
        let list: Vec<_> = (0..random.below(12))
            .map(|at| Wr::random(&mut random, round << 8 | at as u64))
            .collect();
        let expected = list.iter().enumerate().try_for_each(|(index, wr)| {
            let (queue, operation) = (&mut one_by_one.send, wr.operation());
            queue
                .post_inline(wr.wr_id, (), operation, &wr.bytes, wr.flags)
                .map_err(|error| BadRequest { index, error })
        });
        // SAFETY: inline requests refer to no memory.
        let posted = unsafe { listed.send.post_list(&list, Wr::request) };
        assert_eq!(posted, expected.map(|()| list.len()));
        assert_eq!(listed.send.staged(), one_by_one.send.staged());
        assert_eq!(staged(&mut listed), staged(&mut one_by_one));
    }
}

#[test]
fn a_list_ends_with_what_is_refused() {
    let mut queue = Queue::new(7);
    let mut list: Vec<_> = (0..4)
        .map(|wr_id| Wr::random(&mut Random(wr_id), wr_id))
        .collect();
    list[2].bytes = [0; MAX_INLINE + 1].into();
    let error = PostError::InlineTooLong {
        given: MAX_INLINE + 1,
        max: MAX_INLINE as u32,
    };
    // SAFETY: inline requests refer to no memory.
    let posted = unsafe { queue.send.post_list(&list, Wr::request) };
    assert_eq!(posted, Err(BadRequest { index: 2, error }));
    assert_eq!(queue.send.staged(), 2);
    // The list also ends where `request` returns `None`.
    let request = |wr: &'static Wr| wr.request().filter(|_| wr.wr_id != 1);
    let list: &'static [Wr] = list.leak();
    // SAFETY: inline requests refer to no memory.
    let posted = unsafe { queue.send.post_list(list, request) };
    assert_eq!((posted, queue.send.staged()), (Ok(1), 3));
    queue.send.set_postable(false);
    let error = PostError::WrongState;
    // SAFETY: inline requests refer to no memory.
    let posted = unsafe { queue.send.post_list(list, Wr::request) };
    assert_eq!(posted, Err(BadRequest { index: 0, error }));
}

/// Room that was freed since the queue last looked is found in the middle of a list.
#[test]
fn a_list_finds_room_that_has_come_free() {
    let mut queue = Queue::new(7);
    let list: Vec<u64> = (0..u64::from(BLOCKS)).collect();
    let request = |&wr_id: &u64| {
        let sge = Sge {
            addr: 0x1000,
            length: 8,
            lkey: 1,
        };
        let remote = Remote {
            addr: 0x2000,
            rkey: 2,
        };
        Some(SendRequest::<Rc, _, _> {
            wr_id,
            address: (),
            operation: RdmaWrite { remote },
            payload: sge,
            flags: SendFlags::SIGNALED,
        })
    };
    // SAFETY: no device accesses the memory.
    let posted = unsafe { queue.send.post_list(&list, request) };
    assert_eq!(posted, Ok(list.len()));
    queue.retire(4);
    // SAFETY: no device accesses the memory.
    let posted = unsafe { queue.send.post_list(&list, request) };
    let error = PostError::QueueFull;
    assert_eq!(posted, Err(BadRequest { index: 5, error }));
    queue.retire(BLOCKS + 4);
    // SAFETY: no device accesses the memory.
    let posted = unsafe { queue.send.post_list(&list, request) };
    assert_eq!(posted, Ok(list.len()));
}
