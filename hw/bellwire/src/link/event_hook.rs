//! A callback of the program that receives each event once, and in order.

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard, atomic::AtomicUsize};
use std::collections::VecDeque;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard, atomic::AtomicUsize};

/// Events that are kept while no hook was set: the newest.
pub(super) const KEPT: usize = 1024;

type Hook<E> = Box<dyn FnMut(E) + Send>;

/// Events that wait to be delivered, and the hook that receives them.
///
/// The hook is called without holding the lock: it may call back into this type, set another hook, or
/// panic. The thread that calls the hook takes it out first, so another thread only queues its events.
/// The first thread puts the hook back, then checks the queue again.
pub(super) struct EventHook<E> {
    state: Mutex<State<E>>,
    /// How many events wait, changed under the lock: a thread that looks and finds none takes no lock.
    waiting: AtomicUsize,
}

struct State<E> {
    /// Oldest first.
    events: VecDeque<E>,
    hook: Option<Hook<E>>,
    /// A hook was set: it is here, or is being called.
    is_set: bool,
}

impl<E> Default for EventHook<E> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                events: VecDeque::new(),
                hook: None,
                is_set: false,
            }),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl<E> fmt::Debug for EventHook<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.state().events.len();
        f.debug_struct("EventHook")
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

impl<E> EventHook<E> {
    fn state(&self) -> MutexGuard<'_, State<E>> {
        // A panic never leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the hook; the new one receives the events not yet delivered.
    pub fn set(&self, hook: impl FnMut(E) + Send + 'static) {
        // The replaced hook is the program's, and is dropped after the lock is released.
        let _replaced = {
            let mut state = self.state();
            state.is_set = true;
            state.hook.replace(Box::new(hook))
        };
    }

    /// Adds an event, to be delivered by the next [`deliver`](Self::deliver). While no hook was set only the
    /// last [`KEPT`] are kept.
    pub fn push(&self, event: E) {
        let mut state = self.state();
        // Without memory the oldest is lost, too.
        let full = !state.is_set && state.events.len() >= KEPT;
        if (full || state.events.try_reserve(1).is_err()) && state.events.pop_front().is_none() {
            return;
        }
        state.events.push_back(event);
        self.note(&state);
    }

    fn note(&self, state: &State<E>) {
        // Release: pairs with the Acquire in `next`. Who finds the hook taken out leaves the event to a thread that
        // takes the lock after it, and so sees it counted.
        self.waiting.store(state.events.len(), Ordering::Release);
    }

    /// Delivers the waiting events, if there is a hook and no other thread is delivering.
    pub fn deliver(&self) {
        while let Some((hook, event)) = self.next() {
            let mut call = Call {
                of: self,
                hook: Some(hook),
            };
            if let Some(hook) = &mut call.hook {
                hook(event);
            }
        }
    }

    fn next(&self) -> Option<(Hook<E>, E)> {
        // Acquire: pairs with the Release in `note`.
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = self.state();
        let State { events, hook, .. } = &mut *state;
        let hook = hook.take_if(|_| !events.is_empty())?;
        let event = events.pop_front()?;
        self.note(&state);
        Some((hook, event))
    }
}

/// A call of the hook. Dropping it puts the hook back, also after a panic.
struct Call<'a, E> {
    of: &'a EventHook<E>,
    hook: Option<Hook<E>>,
}

impl<E> Drop for Call<'_, E> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        // If another hook was set meanwhile it stays, and ours is dropped after the lock is released.
        if state.hook.is_none() {
            state.hook = self.hook.take();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, mpsc};
    use std::thread;

    #[test]
    fn what_came_before_the_hook_is_delivered() {
        let hook = EventHook::default();
        hook.push(1);
        hook.deliver();
        let (send, delivered) = mpsc::channel();
        hook.set(move |event| send.send(event).unwrap());
        hook.push(2);
        hook.deliver();
        hook.deliver();
        assert_eq!(delivered.try_iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_program_without_a_hook_keeps_no_more_than_so_many() {
        let hook = EventHook::default();
        (0..10 * KEPT).for_each(|event| hook.push(event));
        assert!(hook.state().events.capacity() <= 2 * KEPT);
        let (send, delivered) = mpsc::channel();
        hook.set(move |event| send.send(event).unwrap());
        // With a hook each is delivered.
        (0..2 * KEPT).for_each(|event| hook.push(event));
        hook.deliver();
        let before = 9 * KEPT..10 * KEPT;
        assert!(delivered.try_iter().eq(before.chain(0..2 * KEPT)));
    }

    /// Another thread finds the hook busy; the thread that calls the hook delivers its event.
    #[test]
    fn what_comes_while_the_hook_is_called_is_delivered() {
        let hook = Arc::new(EventHook::default());
        let ((entered, is_in), (leave, may_leave)) = (mpsc::channel(), mpsc::channel());
        let (send, delivered) = mpsc::channel();
        hook.set(move |event| {
            entered.send(()).unwrap();
            may_leave.recv().unwrap();
            send.send(event).unwrap();
        });
        hook.push(1);
        let at_it = thread::spawn({
            let hook = hook.clone();
            move || hook.deliver()
        });
        is_in.recv().unwrap();
        hook.push(2);
        hook.deliver();
        assert!(
            delivered.try_recv().is_err(),
            "both are still to be delivered"
        );
        leave.send(()).unwrap();
        leave.send(()).unwrap();
        at_it.join().unwrap();
        assert_eq!(delivered.try_iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_hook_may_come_back_and_set_another() {
        let hook = Arc::new(EventHook::default());
        let (send, delivered) = mpsc::channel();
        let (again, other) = (Arc::downgrade(&hook), send.clone());
        hook.set(move |event| {
            let here = again.upgrade().unwrap();
            send.send(event).unwrap();
            if event == 1 {
                here.push(2);
                here.deliver();
                assert_eq!(here.state().events.len(), 1, "not within this call");
            } else {
                let other = other.clone();
                here.set(move |event| other.send(10 * event).unwrap());
                here.push(3);
                here.deliver();
            }
        });
        hook.push(1);
        hook.deliver();
        assert_eq!(delivered.try_iter().collect::<Vec<_>>(), [1, 2, 30]);
    }

    #[test]
    fn a_hook_that_panics_loses_nothing_else() {
        let hook = EventHook::default();
        let (send, delivered) = mpsc::channel();
        hook.set(move |event| {
            send.send(event).unwrap();
            assert_ne!(event, 1);
        });
        (1..=3).for_each(|event| hook.push(event));
        catch_unwind(AssertUnwindSafe(|| hook.deliver())).unwrap_err();
        hook.deliver();
        assert_eq!(delivered.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    #[test]
    fn loom_each_event_is_delivered_once_by_whoever_is_there() {
        loom::model(|| {
            let hook = Arc::new(EventHook::default());
            let delivered = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            hook.set({
                let delivered = delivered.clone();
                move |event: usize| _ = delivered[event].fetch_add(1, Ordering::Relaxed)
            });
            let other = thread::spawn({
                let hook = hook.clone();
                move || {
                    hook.push(1);
                    hook.deliver();
                }
            });
            hook.push(0);
            hook.deliver();
            other.join().unwrap();
            let delivered = [0, 1].map(|event: usize| delivered[event].load(Ordering::Relaxed));
            assert_eq!(delivered, [1, 1]);
        });
    }
}
