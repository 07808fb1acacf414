//! What the two ends share beside the connection: the lines of the bare bounce, and the leader's
//! orders to the follower. Two threads have it in their memory, two processes in a page of both.

use anyhow::{Result, ensure};
use bellwire::memory::Mapping;
use bellwire_examples::{PeerGone, Wait};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word that nothing shares its line, or pair of lines, with.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line(pub AtomicU64);

/// Zeroed memory is a page.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Page {
    /// What the leader, and what the follower, waits for in the bare bounce.
    pub bounce: [Line; 2],
    order: Line,
    /// Orders given so far: only the leader writes it.
    given: Line,
    /// Orders taken so far: only the follower writes it.
    taken: Line,
    /// Orders done so far: only the follower writes it.
    done: Line,
}

/// What the follower is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// So many bounces of the bare line.
    Raw(u64),
    /// So many of the operation.
    Op(u64),
    /// Nothing more.
    End,
}

impl Order {
    fn encode(self) -> u64 {
        match self {
            Self::Raw(count) => count << 2,
            Self::Op(count) => count << 2 | 1,
            Self::End => 2,
        }
    }

    fn decode(word: u64) -> Self {
        match word & 3 {
            0 => Self::Raw(word >> 2),
            1 => Self::Op(word >> 2),
            _ => Self::End,
        }
    }
}

impl Page {
    /// Makes the follower do something. When this returns it has begun, and is polling.
    ///
    /// # Errors
    /// [`PeerGone`].
    pub fn start(&self, order: Order, wait: Wait<'_>) -> Result<(), PeerGone> {
        // Relaxed: only this side writes them.
        let given = self.given.0.load(Ordering::Relaxed) + 1;
        self.order.0.store(order.encode(), Ordering::Relaxed);
        // Release: partner of the acquire in `next`.
        self.given.0.store(given, Ordering::Release);
        // Acquire: partner of the release in `next`.
        wait.until(|| (self.taken.0.load(Ordering::Acquire) == given).then_some(()))
    }

    /// The follower has done what it was ordered to do.
    pub fn done(&self) {
        // Relaxed: only this side writes them.
        let taken = self.taken.0.load(Ordering::Relaxed);
        // Release: partner of the acquire in `until_done`.
        self.done.0.store(taken, Ordering::Release);
    }

    /// Waits until the follower has done what it was ordered to do. `idle` is called until then.
    ///
    /// # Errors
    /// [`PeerGone`].
    pub fn until_done(&self, wait: Wait<'_>, mut idle: impl FnMut()) -> Result<(), PeerGone> {
        // Relaxed: only this side writes it.
        let given = self.given.0.load(Ordering::Relaxed);
        wait.until(|| {
            idle();
            // Acquire: partner of the release in `done`.
            (self.done.0.load(Ordering::Acquire) == given).then_some(())
        })
    }

    /// The follower's next order. `idle` is called while there is none.
    ///
    /// # Errors
    /// [`PeerGone`].
    pub fn next(&self, wait: Wait<'_>, mut idle: impl FnMut()) -> Result<Order, PeerGone> {
        // Relaxed: only this side writes it.
        let taken = self.taken.0.load(Ordering::Relaxed);
        // Polled, not slept for: a thread that has to be woken starts late.
        wait.until(|| {
            // Acquire: partner of the release in `start`.
            let more = self.given.0.load(Ordering::Acquire) != taken;
            if !more {
                idle();
            }
            more.then_some(())
        })?;
        // Relaxed: behind the acquire.
        let order = Order::decode(self.order.0.load(Ordering::Relaxed));
        // Release: partner of the acquire in `start`.
        self.taken.0.store(taken + 1, Ordering::Release);
        Ok(order)
    }
}

/// A page that another process has too.
#[derive(Debug)]
pub struct SharedPage(Mapping);

impl SharedPage {
    /// # Errors
    /// Memory that is too small.
    pub fn new(memory: Mapping) -> Result<Self> {
        ensure!(memory.len() >= size_of::<Page>(), "too small for a page");
        Ok(Self(memory))
    }
}

impl Deref for SharedPage {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: the memory is large enough, aligned to a page of the machine, and there as long as
        // `self`; all that is in it is atomic, and takes any bits.
        unsafe { &*self.0.as_ptr().cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn orders_are_followed_one_by_one() {
        let memory = Mapping::shared("test", 4096).build().unwrap();
        let page = SharedPage::new(memory).unwrap();
        let gone = AtomicBool::new(false);
        let wait = Wait {
            crowded: true,
            gone: &gone,
        };
        let orders = [Order::Raw(3), Order::Op(1 << 60), Order::Op(0), Order::End];
        let seen = std::thread::scope(|scope| {
            let follower = scope.spawn(|| {
                orders.map(|_| {
                    let order = page.next(wait, || ()).unwrap();
                    page.done();
                    order
                })
            });
            for order in orders {
                page.start(order, wait).unwrap();
                page.until_done(wait, || ()).unwrap();
            }
            follower.join().unwrap()
        });
        assert_eq!(seen, orders);
        gone.store(true, Ordering::Relaxed);
        assert!(page.next(wait, || ()).is_err());
        assert!(page.start(Order::End, wait).is_err());
        assert!(page.until_done(wait, || ()).is_err());
    }
}
