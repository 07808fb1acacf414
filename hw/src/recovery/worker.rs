//! A recovery in a thread of its own.

use super::init::{FaultReport, Hook, RecoveryReport};
use super::inside::Inside;
use super::wake::Bell;
use bellwire_core::fault::Fault;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Between two looks at what has come.
const PAUSE: Duration = Duration::from_micros(50);

/// What the program asks of a link that a thread has.
pub(super) enum Letter {
    OnFault(Hook<FaultReport>),
    OnRecovered(Hook<RecoveryReport>),
    Report(Fault),
}

/// What the thread looks at.
#[derive(Default)]
struct Desk {
    stop: AtomicBool,
    /// The thread is about to end: it is waited for no longer than that takes.
    done: AtomicBool,
    /// Taken out before it is read: hooks are called under no lock.
    letters: Mutex<Vec<Letter>>,
}

impl Desk {
    fn letters(&self) -> MutexGuard<'_, Vec<Letter>> {
        // Each change is whole.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out what was asked so far.
    fn answer(&self, inside: &mut Inside) {
        let letters = std::mem::take(&mut *self.letters());
        for letter in letters {
            inside.obey(letter);
        }
    }
}

/// A thread that has the inside of a link until it works again, or has ended.
pub(super) struct Worker {
    thread: JoinHandle<Box<Inside>>,
    desk: Arc<Desk>,
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
    /// The inside, when the system has no thread.
    pub fn start(inside: Box<Inside>) -> Result<Self, Box<Inside>> {
        let desk = Arc::new(Desk::default());
        let theirs = desk.clone();
        // A thread that cannot be started drops what it was to have.
        let parcel = Arc::new(Mutex::new(Some(inside)));
        let opened = parcel.clone();
        let spawned = Builder::new()
            .name("bellwire-recovery".to_owned())
            .spawn(move || recover(take(&opened).expect("put there before"), &theirs));
        match spawned {
            Ok(thread) => Ok(Self { thread, desk }),
            Err(_) => Err(take(&parcel).expect("not started, so not taken")),
        }
    }

    /// Asks for something: the thread sees to it at its next look, or whoever gets the inside back.
    pub fn send(&self, letter: Letter) {
        self.desk.letters().push(letter);
    }

    /// The inside, when it is done.
    ///
    /// # Errors
    /// The worker, when it is not.
    pub fn fetch(self) -> Result<Box<Inside>, Self> {
        // Acquire: partner of the release in `Done`. Whoever is woken by that finds it done.
        if self.desk.done.load(Ordering::Acquire) {
            Ok(self.join())
        } else {
            Err(self)
        }
    }

    /// The inside, done or not.
    pub fn stop(self) -> Box<Inside> {
        // Relaxed: joining orders the rest.
        self.desk.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    fn join(self) -> Box<Inside> {
        match self.thread.join() {
            Ok(mut inside) => {
                // What came after its last look.
                self.desk.answer(&mut inside);
                inside
            }
            // A hook of the program's panicked.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn take(parcel: &Mutex<Option<Box<Inside>>>) -> Option<Box<Inside>> {
    parcel.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Tells that the thread is done, also where a hook of the program's panicked.
struct Done<'a>(&'a Desk, Option<Arc<Bell>>);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // Release: partner of the acquire in `Worker::fetch`.
        self.0.done.store(true, Ordering::Release);
        self.1.iter().for_each(|bell| bell.ring());
    }
}

fn recover(mut inside: Box<Inside>, desk: &Desk) -> Box<Inside> {
    let _done = Done(desk, inside.wake.as_ref().map(|wake| wake.bell.clone()));
    // Relaxed: a flag on its own.
    while !desk.stop.load(Ordering::Relaxed) {
        desk.answer(&mut inside);
        let now = inside.pd.device().now();
        inside.drive(now);
        if !inside.recovers() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    inside
}
