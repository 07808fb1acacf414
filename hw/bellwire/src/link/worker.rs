//! A recovery in a thread of its own.

use super::cancel::{How, Side};
use super::early::Room;
use super::init::{FaultReport, Hook, RecoverIn, RecoveryReport};
use super::monitor::Published;
use super::repost::Receive;
use super::state::RecoveryState;
use crate::event::Bell;
use crate::memory::fork::Own;
use bellwire_core::fault::Fault;
use bellwire_provider::backoff::sleep;
use bellwire_provider::thread;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two checks.
const PAUSE: Duration = Duration::from_micros(50);

/// A request of the program for a link that a thread recovers.
pub(super) enum Command {
    OnFault(Hook<FaultReport>),
    OnRecovered(Hook<RecoveryReport>),
    Report(Fault),
    Receive(Receive),
    /// The arguments of [`Member::take_back`](super::member::Member::take_back).
    TakeBack {
        side: Side,
        wr_id: u64,
        how: How,
    },
}

/// State shared with the thread.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// The thread is about to end: joining it does not take long.
    done: AtomicBool,
    /// The list is taken out before its commands are carried out: hooks are called without holding the
    /// lock.
    commands: Mutex<Vec<Command>>,
    /// What other threads read of the link.
    published: Arc<Published>,
}

impl Shared {
    fn commands(&self) -> MutexGuard<'_, Vec<Command>> {
        // A panic never leaves the list half changed.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out the commands received so far.
    fn answer(&self, state: &mut RecoveryState) {
        let commands = std::mem::take(&mut *self.commands());
        for command in commands {
            state.execute(command);
        }
    }
}

/// A thread that owns the state of a link until the link works again, or has ended.
pub(super) struct Worker {
    thread: Own<JoinHandle<Box<RecoveryState>>>,
    shared: Arc<Shared>,
    /// Room for receives, as [`RecoveryState::room`] returned it.
    pub room: Option<Room>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("thread", &self.thread)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// # Errors
    /// The state, when the system has no thread.
    pub fn start(mut state: Box<RecoveryState>) -> Result<Self, Box<RecoveryState>> {
        let room = state.room();
        // Without memory to keep them, the program posts receives later.
        let room = room.filter(|room| state.keep_receives(room.receives as usize));
        let shared = Arc::new(Shared {
            published: state.published.clone(),
            ..Shared::default()
        });
        let theirs = shared.clone();
        // If the thread cannot be started, its closure is dropped with everything it owns.
        let handover = Arc::new(Mutex::new(Some(state)));
        let opened = handover.clone();
        let recover = move || recover(take(&opened).expect("put there before"), &theirs);
        let spawned = thread::start("bellwire-link", recover);
        match spawned {
            Ok(thread) => Ok(Self {
                thread: thread.into(),
                shared,
                room,
            }),
            Err(_) => Err(take(&handover).expect("not started, so not taken")),
        }
    }

    /// What other threads read of the link.
    pub fn published(&self) -> &Arc<Published> {
        &self.shared.published
    }

    /// Queues a command: the thread carries it out at its next check, or the owner does when it gets the
    /// state back.
    pub fn send(&self, command: Command) {
        self.shared.commands().push(command);
    }

    /// Makes sure that another receive can be queued. `false`: there is no memory for it.
    pub fn keep_receive(&self) -> bool {
        self.shared.commands().try_reserve(1).is_ok()
    }

    /// Queues a receive for which there is room.
    pub fn receive(&mut self, receive: Receive) {
        if let Some(room) = &mut self.room {
            room.receives -= 1;
        }
        self.send(Command::Receive(receive));
    }

    /// Returns the state when the thread is done.
    ///
    /// # Errors
    /// Returns the worker when it is not.
    pub fn fetch(self) -> Result<Box<RecoveryState>, Self> {
        // Acquire: pairs with the Release in `Done`, which rings the bell after it: a poller woken by the
        // bell finds the thread done.
        if self.shared.done.load(Ordering::Acquire) {
            Ok(self.join())
        } else {
            Err(self)
        }
    }

    /// Stops the thread, and returns the state whether or not it was done.
    pub fn stop(self) -> Box<RecoveryState> {
        // Relaxed: joining orders everything else.
        self.shared.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    fn join(self) -> Box<RecoveryState> {
        // A child of fork has no worker of its parent to join: its links stay with their parent.
        let thread = Own::into_inner(self.thread).expect("of this process");
        match thread.join() {
            Ok(mut state) => {
                // Letters that came after the thread's last check.
                self.shared.answer(&mut state);
                state
            }
            // Unexpected: the thread catches panics of everything that it calls.
            Err(panic) => resume_unwind(panic),
        }
    }
}

fn take(handover: &Mutex<Option<Box<RecoveryState>>>) -> Option<Box<RecoveryState>> {
    handover
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
}

/// Marks the thread as done when it ends, also by a panic.
struct Done<'a>(&'a Shared, Option<Arc<Bell>>);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Worker::fetch`.
        self.0.done.store(true, Ordering::Release);
        self.1.iter().for_each(|bell| bell.ring());
    }
}

fn recover(mut state: Box<RecoveryState>, shared: &Shared) -> Box<RecoveryState> {
    let _done = Done(shared, state.wake.as_ref().map(|wake| wake.bell.clone()));
    // Relaxed: the flag publishes no other data.
    while !shared.stop.load(Ordering::Relaxed) {
        let look = AssertUnwindSafe(|| {
            shared.answer(&mut state);
            let now = state.pd.device().now();
            state.drive(now);
        });
        if let Err(panic) = catch_unwind(look) {
            // Not a panic of the program's functions, which are caught where they are called. The poller
            // resumes it, and carries out the recovery itself: the link's state is not lost with the
            // thread.
            state.panics.keep(panic);
            state.init.recover_in = RecoverIn::Poll;
            break;
        }
        if !state.protocol.busy() {
            break;
        }
        sleep(PAUSE);
    }
    state
}
