//! loom's atomics, of which one ordering at a time can be taken away: a model that passes without an
//! ordering does not need it, or does not see what it is for.

use core::panic::Location;
use std::cell::RefCell;
use std::collections::BTreeSet;
#[cfg(test)]
use std::{string::String, vec::Vec};

pub(crate) use loom::sync::atomic::{Ordering, fence};

/// A place in the source at which an ordering is used: file and line.
type Place = (&'static str, u32);

#[derive(Default)]
struct State {
    seen: BTreeSet<Place>,
    weakened: Option<Place>,
}

std::thread_local! {
    // loom runs all threads of a model on one of the system's.
    static STATE: RefCell<State> = RefCell::default();
}

#[track_caller]
fn ordering(wanted: Ordering) -> Ordering {
    if wanted == Ordering::Relaxed {
        return wanted;
    }
    let caller = Location::caller();
    let place = (caller.file(), caller.line());
    STATE.with_borrow_mut(|state| {
        state.seen.insert(place);
        match state.weakened == Some(place) {
            true => Ordering::Relaxed,
            false => wanted,
        }
    })
}

macro_rules! atomic {
    ($name:ident, $of:ty $(, $also:ident)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "each has the same")]
        impl $name {
            #[track_caller]
            pub fn new(value: $of) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $of {
                self.0.load(ordering(order))
            }

            #[track_caller]
            pub fn store(&self, value: $of, order: Ordering) {
                self.0.store(value, ordering(order));
            }

            #[track_caller]
            pub fn swap(&self, value: $of, order: Ordering) -> $of {
                self.0.swap(value, ordering(order))
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                from: $of,
                to: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                self.0
                    .compare_exchange(from, to, ordering(success), ordering(failure))
            }

            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                from: $of,
                to: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                self.0
                    .compare_exchange_weak(from, to, ordering(success), ordering(failure))
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU16, u16);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

/// Runs `model` on a thread of its own with this ordering weakened; returns the orderings seen, or `None`
/// when the model failed.
#[cfg(test)]
fn run(model: fn(), weakened: Option<Place>) -> Option<BTreeSet<Place>> {
    let run = move || {
        STATE.with_borrow_mut(|state| state.weakened = weakened);
        model();
        STATE.take().seen
    };
    std::thread::spawn(run).join().ok()
}

/// Checks that the models pass, and that for each ordering in the source file `file` that they get to, one
/// of them fails without it. `unseen`: the lines of those for which none does.
#[cfg(test)]
pub(crate) fn needs_orderings(models: &[fn()], file: &str, unseen: &[&str]) {
    let mut places = BTreeSet::new();
    for model in models {
        places.extend(run(*model, None).expect("as it is, the model passes"));
    }
    places.retain(|(path, _)| path.ends_with(file));
    assert!(!places.is_empty(), "no ordering of {file} is used");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let passed: Vec<String> = (places.iter())
        .filter(|place| {
            models
                .iter()
                .all(|model| run(*model, Some(**place)).is_some())
        })
        .map(|(path, line)| {
            let text = std::fs::read_to_string(root.join(path)).expect("the source");
            let line = text.lines().nth(*line as usize - 1).expect("the line");
            line.trim().into()
        })
        .collect();
    assert_eq!(passed, unseen, "not missed, of {}", places.len());
}
