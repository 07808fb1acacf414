//! Whether peers have to wake this node for the packets that they send.
//!
//! ```text
//! sleeping thread                 the node's thread
//! counts its queue      store     clears `asked`        store
//! fence                           fence
//! still `asked`?        load      any queue counted?    load
//! ```
//!
//! At least one of the two sees the other's store: either the sleeping thread asks the peers again, which
//! takes a barrier in all their processes and a check of each, or the node's thread leaves them asked.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// Whether peers are asked to wake this node, and for how many completion queues. Peers are asked, all of
/// them at once, or released, under the device's lock.
#[derive(Debug)]
pub struct Attention {
    /// Number of armed completion queues.
    armed: AtomicU32,
    /// All peers are asked to wake this node for whatever they send.
    asked: AtomicBool,
}

impl Default for Attention {
    fn default() -> Self {
        Self {
            armed: AtomicU32::new(0),
            asked: AtomicBool::new(false),
        }
    }
}

impl Attention {
    /// Counts another armed completion queue.
    pub fn count_up(&self) {
        // Relaxed: the fence in `is_asked` orders it before the load there.
        self.armed.fetch_add(1, Ordering::Relaxed);
    }

    /// An armed completion queue has raised its event, or is being destroyed.
    pub fn count_down(&self) {
        // Relaxed: if it is seen late, peers wake us once more than necessary.
        self.armed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether peers are asked, and remain asked while the completion queues that this thread counted are
    /// armed.
    pub fn is_asked(&self) -> bool {
        // Orders the count before the load. Pairs with the fence in `let_go`.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release in `asked`; all peers were asked before it.
        self.asked.load(Ordering::Acquire)
    }

    /// Whether peers are asked. A hint, for a thread that does not sleep next.
    #[inline(always)]
    pub fn are_asked(&self) -> bool {
        // Relaxed: a hint.
        self.asked.load(Ordering::Relaxed)
    }

    /// All peers have been asked. Under the device's lock.
    pub fn asked(&self) {
        // Release: pairs with the Acquire in `is_asked`.
        self.asked.store(true, Ordering::Release);
    }

    /// Whether all peers may be released, because no completion queue is armed. Under the device's lock.
    pub fn let_go(&self) -> bool {
        // Relaxed, both: `asked` changes only under the lock; `armed` is checked again below.
        if !self.asked.load(Ordering::Relaxed) || self.armed.load(Ordering::Relaxed) != 0 {
            return false;
        }
        // Relaxed: the fence orders it before the load below.
        self.asked.store(false, Ordering::Relaxed);
        // Pairs with the fence in `is_asked`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.armed.load(Ordering::Relaxed) != 0 {
            self.asked();
            return false;
        }
        true
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::model::{Arc, Mutex, check, longer, thread};

    /// A node with one peer, which sends a single packet.
    struct World {
        attention: Attention,
        lock: Mutex<()>,
        /// The flag that the peer checks.
        wanted: AtomicBool,
        sent: AtomicBool,
        woken: AtomicBool,
    }

    impl World {
        fn new(wanted: bool) -> Self {
            Self {
                attention: Attention::default(),
                lock: Mutex::new(()),
                wanted: AtomicBool::new(wanted),
                sent: AtomicBool::new(false),
                woken: AtomicBool::new(false),
            }
        }

        /// Whether there is a packet already; else it has to wake.
        fn sleep(&self) -> bool {
            self.attention.count_up();
            if !self.attention.is_asked() {
                let _held = self.lock.lock().unwrap();
                self.wanted.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                self.attention.asked();
            }
            self.sent.load(Ordering::Relaxed)
        }

        fn let_go(&self, may: impl FnOnce(&Attention) -> bool) {
            let _held = self.lock.lock().unwrap();
            if may(&self.attention) {
                self.wanted.store(false, Ordering::Relaxed);
            }
        }

        fn send(&self) {
            self.sent.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.wanted.load(Ordering::Relaxed) {
                self.woken.store(true, Ordering::Relaxed);
            }
        }
    }

    fn who_sleeps_is_woken(may: fn(&Attention) -> bool) {
        check(move || {
            let world = Arc::new(World::new(true));
            // Asked by a thread that no longer sleeps.
            world.attention.asked();
            let thread = {
                let world = world.clone();
                thread::spawn(move || world.let_go(may))
            };
            let slept = !world.sleep();
            thread.join().unwrap();
            world.send();
            let woken = world.woken.load(Ordering::Relaxed);
            assert!(woken || !slept, "slept through");
        });
    }

    #[test]
    fn loom_a_packet_wakes_who_sleeps() {
        who_sleeps_is_woken(Attention::let_go);
    }

    /// Of two threads that sleep, one asks the peer; the other relies on it.
    #[test]
    fn loom_a_packet_wakes_whoever_sleeps() {
        check(|| {
            let world = Arc::new(World::new(false));
            let [sleeper, peer] = [
                |world: &World| world.sleep(),
                |world: &World| {
                    world.send();
                    true
                },
            ]
            .map(|run| {
                let world = world.clone();
                thread::spawn(move || run(&world))
            });
            let found = world.sleep();
            let found = found & sleeper.join().unwrap();
            peer.join().unwrap();
            let woken = world.woken.load(Ordering::Relaxed);
            assert!(woken || found, "slept through");
        });
    }

    #[cfg(loom)]
    #[test]
    fn loom_sleeping_needs_each_ordering() {
        let models: [fn(); 2] = [
            loom_a_packet_wakes_who_sleeps,
            loom_a_packet_wakes_whoever_sleeps,
        ];
        crate::sync::needs_orderings(&models, "fabric/attention.rs", &[]);
    }

    /// The model detects a missing second check of the count.
    #[test]
    #[should_panic(expected = "slept through")]
    fn loom_letting_go_needs_its_second_look() {
        longer(|| {
            who_sleeps_is_woken(|attention| {
                let may = attention.armed.load(Ordering::Relaxed) == 0;
                attention.asked.store(!may, Ordering::Relaxed);
                may
            });
        });
    }
}
