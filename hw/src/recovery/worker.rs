//! A recovery in a thread of its own.

use super::inside::Inside;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Between two looks at what has come.
const PAUSE: Duration = Duration::from_micros(50);

/// A thread that has the inside of a link until it works again, or has ended.
#[derive(Debug)]
pub(super) struct Worker {
    thread: JoinHandle<Box<Inside>>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    /// # Errors
    /// The inside, when the system has no thread.
    pub fn start(inside: Box<Inside>) -> Result<Self, Box<Inside>> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        // A thread that cannot be started drops what it was to have.
        let parcel = Arc::new(std::sync::Mutex::new(Some(inside)));
        let opened = parcel.clone();
        let spawned = Builder::new()
            .name("bellwire-recovery".to_owned())
            .spawn(move || recover(take(&opened).expect("put there before"), &stopped));
        match spawned {
            Ok(thread) => Ok(Self { thread, stop }),
            Err(_) => Err(take(&parcel).expect("not started, so not taken")),
        }
    }

    /// The inside, when it is done.
    ///
    /// # Errors
    /// The worker, when it is not.
    pub fn fetch(self) -> Result<Box<Inside>, Self> {
        if self.thread.is_finished() {
            Ok(self.join())
        } else {
            Err(self)
        }
    }

    /// The inside, done or not.
    pub fn stop(self) -> Box<Inside> {
        // Relaxed: joining orders the rest.
        self.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    fn join(self) -> Box<Inside> {
        match self.thread.join() {
            Ok(inside) => inside,
            // A hook of the program's panicked.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn take(parcel: &std::sync::Mutex<Option<Box<Inside>>>) -> Option<Box<Inside>> {
    parcel
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .take()
}

fn recover(mut inside: Box<Inside>, stop: &AtomicBool) -> Box<Inside> {
    // Relaxed: a flag on its own.
    while !stop.load(Ordering::Relaxed) {
        let now = inside.pd.device().now();
        inside.drive(now);
        if !inside.recovers() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    inside
}
