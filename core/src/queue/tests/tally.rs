//! Requests are counted by operation, however the ring turns.

use super::keep;
use super::send::Queue;
use crate::queue::{Posted, Tally};
use crate::random::Random;
use crate::wqe::{Nop, RdmaWrite, Send};
use crate::wr::{Remote, SendFlags, WrOpcode};

#[test]
fn each_request_is_counted_once() {
    let mut queue = Queue::new(9);
    let tally: &Tally = keep(Tally::default());
    let mut random = Random(4);
    // Before the tally: not counted.
    queue.advance(3);
    queue.send.count_into(tally);
    let operations = [WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::Nop];
    let mut expected = [Posted::default(); 3];
    let mut last = None;
    for wr_id in 0..if cfg!(miri) { 300 } else { 20_000 } {
        let data = [0; 300];
        let kind = random.below(3);
        let data = &data[..if kind == 2 { 0 } else { random.below(300) }];
        let (flags, remote) = (SendFlags::empty(), Remote::default());
        let counter = queue.send.counter();
        let send = &mut queue.send;
        let posted = match kind {
            0 => send.post_inline(wr_id, (), Send {}, data, flags),
            1 => send.post_inline(wr_id, (), RdmaWrite { remote }, data, flags),
            _ => send.post_empty(wr_id, (), Nop {}, flags),
        };
        match posted {
            Ok(()) => {
                expected[kind].requests += 1;
                expected[kind].bytes += data.len() as u64;
                last = Some(counter);
            }
            // All that are in flight complete.
            Err(_) => {
                if let Some(last) = last.take() {
                    queue.retire(last);
                }
            }
        }
        match random.below(500) {
            0 => {
                queue.clear();
                last = None;
            }
            1..5 => queue.send.count(),
            _ => {}
        }
    }
    queue.send.count();
    for (operation, expected) in operations.into_iter().zip(expected) {
        assert!(cfg!(miri) || expected.requests > 1000);
        assert_eq!(tally.sends(operation), expected, "{operation}");
    }
    assert_eq!(tally.sends(WrOpcode::RdmaRead), Posted::default());
}
