//! Atomics, loom's or for Miri, of which one ordering at a time can be taken away: a model that passes without an
//! ordering does not need it, or does not see what it is for.

use core::panic::Location;
#[cfg(not(loom))]
use core::sync::atomic as plain;
#[cfg(loom)]
use loom::sync::atomic as plain;
#[cfg(any(test, not(loom)))]
use std::string::String;
#[cfg(all(test, loom))]
use std::vec::Vec;
#[cfg(loom)]
use std::{cell::RefCell, collections::BTreeSet};

pub(crate) use plain::Ordering;

/// A place in the source at which an ordering is used: file and line.
type Place = (&'static str, u32);

/// Names the place whose ordering is weakened under Miri, as the end of the file's name and its line, with a colon
/// between: Miri ends the process at the first race, so another has to look whether it does.
#[cfg(not(loom))]
fn is_weakened((file, line): Place) -> bool {
    static WEAKENED: std::sync::OnceLock<Option<(String, u32)>> = std::sync::OnceLock::new();
    let weakened = WEAKENED.get_or_init(|| {
        let place = std::env::var("BELLWIRE_WEAKEN").ok()?;
        let (file, line) = place.split_once(':').expect("FILE:LINE");
        Some((file.into(), line.parse().expect("a line")))
    });
    (weakened.as_ref()).is_some_and(|(of, at)| *at == line && file.ends_with(of.as_str()))
}

#[cfg(loom)]
#[derive(Default)]
struct State {
    seen: BTreeSet<Place>,
    weakened: Option<Place>,
}

#[cfg(loom)]
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
    match is_weakened((caller.file(), caller.line())) {
        true => Ordering::Relaxed,
        false => wanted,
    }
}

/// Whether the place is weakened in this run of a model.
#[cfg(loom)]
fn is_weakened(place: Place) -> bool {
    STATE.with_borrow_mut(|state| {
        state.seen.insert(place);
        state.weakened == Some(place)
    })
}

/// A fence; weakened, there is none.
#[allow(dead_code, reason = "not each crate uses all")]
#[track_caller]
pub(crate) fn fence(order: Ordering) {
    let order = ordering(order);
    if order != Ordering::Relaxed {
        plain::fence(order);
    }
}

macro_rules! atomic {
    ($name:ident $(<$t:ident>)?, $of:ty) => {
        #[allow(dead_code, reason = "not each crate uses all")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name $(<$t>)? (plain::$name $(<$t>)?);

        #[allow(dead_code, reason = "each has the same")]
        impl $(<$t>)? $name $(<$t>)? {
            #[track_caller]
            pub fn new(value: $of) -> Self {
                Self(plain::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $of {
                self.0.load(ordering(order))
            }

            /// A load that loom does not take for an access.
            ///
            /// # Safety
            /// Nobody else stores at the same time.
            #[cfg(loom)]
            #[track_caller]
            pub unsafe fn unsync_load(&self) -> $of {
                // SAFETY: the caller's.
                unsafe { self.0.unsync_load() }
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

macro_rules! arithmetic {
    ($name:ident, $of:ty: $($fetch:ident),+) => {
        #[allow(dead_code, reason = "not each crate uses all")]
        impl $name {
            $(
                #[track_caller]
                pub fn $fetch(&self, value: $of, order: Ordering) -> $of {
                    self.0.$fetch(value, ordering(order))
                }
            )+

            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                to: impl FnMut($of) -> Option<$of>,
            ) -> Result<$of, $of> {
                self.0.fetch_update(ordering(set), ordering(fetch), to)
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU8, u8);
atomic!(AtomicU16, u16);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
atomic!(AtomicPtr<T>, *mut T);
arithmetic!(AtomicU32, u32: fetch_add, fetch_sub);
arithmetic!(AtomicU64, u64: fetch_add, fetch_or);

/// Runs `model` on a thread of its own with this ordering weakened; returns the orderings seen, or `None`
/// when the model failed.
#[cfg(all(test, loom))]
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
#[cfg(all(test, loom))]
pub(crate) fn needs_orderings(models: &[fn()], file: &str, unseen: &[&str]) {
    let mut places = BTreeSet::new();
    for model in models {
        places.extend(run(*model, None).expect("as it is, the model passes"));
    }
    places.retain(|(path, _)| path.ends_with(file));
    assert!(!places.is_empty(), "no ordering of {file} is used");
    // The compiler names files from the workspace on.
    let crate_root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = |path: &str| {
        let mut places = crate_root.ancestors().map(|root| root.join(path));
        let place = places.find(|place| place.is_file());
        std::fs::read_to_string(place.expect("the source")).expect("the source")
    };
    let passed: Vec<String> = (places.iter())
        .filter(|place| {
            models
                .iter()
                .all(|model| run(*model, Some(**place)).is_some())
        })
        .map(|(path, line)| {
            let text = source(path);
            let line = text.lines().nth(*line as usize - 1).expect("the line");
            line.trim().into()
        })
        .collect();
    assert_eq!(passed, unseen, "not missed, of {}", places.len());
}
