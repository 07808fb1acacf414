//! Steps of links.

use crate::world::{World, any, keep, panics, perhaps_panic, take};
use bellwire::fault::outcome::Replay;
use bellwire::link::{Link, LinkInit, pair};
use bellwire::wqe::{Nop, Send};
use bellwire::wr::SendFlags;

impl World<'_> {
    /// Two that connect with each other as they are polled.
    pub fn make_links(&mut self) {
        let Some(pd) = any(&mut self.random, &mut self.pds) else {
            return;
        };
        let (one, other) = pair();
        let made = (
            Link::new(pd, LinkInit::default(), one),
            Link::new(pd, LinkInit::default(), other),
        );
        if let (Ok(one), Ok(other)) = made {
            for link in [one, other] {
                keep(&mut self.random, &mut self.links, 4, link);
            }
        }
    }

    pub fn use_links(&mut self) {
        let Some(mut link) = take(&mut self.random, &mut self.links) else {
            return;
        };
        let (wr_id, signaled) = (self.random.number(), SendFlags::SIGNALED);
        let block = take(&mut self.random, &mut self.blocks).map(|held| held.into_block());
        let left = match (self.random.below(4), block) {
            (0, Some(block)) => link
                .post_block(wr_id, Send {}, block, 8, signaled, Replay::IfSafe)
                .err()
                .map(|refused| refused.block),
            (1, Some(block)) => link
                .post_recv_block(wr_id, block)
                .err()
                .map(|refused| refused.block),
            (2, block) => {
                let _ = link.post_empty(wr_id, Nop {}, signaled, Replay::IfSafe);
                block
            }
            (_, block) => block,
        };
        link.ring();
        link.ring_recv();
        let mut blocks = Vec::from_iter(left);
        let random = &mut self.random;
        let panicked = panics(|| {
            link.poll(4, |completion| {
                blocks.extend(completion.block);
                perhaps_panic(random);
            });
        });
        self.tally.panics += u64::from(panicked);
        keep(&mut self.random, &mut self.links, 4, link);
        for block in blocks {
            self.hold(block);
        }
    }
}
