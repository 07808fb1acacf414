//! What a queue pair keeps of the connection from which it takes requests of another process. It belongs to whoever reads
//! the peer's packets: see [`inbound`](super::inbound).

use super::super::qp::QpCtx;
use crate::fabric::Number;
use crate::sync::atomic as sync;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;

/// See the module.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Accepted {
    pub expected: Expected,
    /// It is in the peer's list of queue pairs whose acknowledgements are pending. Owned by the reader of the peer's packets.
    pub listed: UnsafeCell<bool>,
}

/// The number of the request that a responder takes next: no more, in the usual case. Every request before it was taken, so
/// it also says what may be acknowledged. All of that is in one word, because the thread that sends the acknowledgement may
/// be another one than that which takes requests.
#[derive(Debug)]
#[repr(transparent)]
pub struct Expected(sync::AtomicU64);

/// There has been no request.
const UNKNOWN: u64 = 1 << 32;
/// The next one is read under the device's lock. The queue pair is no RC queue pair, or its pending response is more
/// than an acknowledgement.
const CLOSED: u64 = 1 << 33;
/// The last request needs no acknowledgement. There was none, or its own response acknowledges it, and all before it.
/// An acknowledgement that is faster than that would complete a READ or an atomic without its result.
const ANSWERED: u64 = 1 << 34;

/// No request has arrived.
const NONE_YET: u64 = UNKNOWN | CLOSED | ANSWERED;

/// It has never been acknowledged: nothing is expected so.
const NEVER: u64 = u64::MAX;

/// What a responder [expected](Expected) when its requester was last sent an acknowledgement. If two threads write it at once,
/// an acknowledgement may be sent twice.
#[derive(Debug)]
#[repr(transparent)]
pub struct Acknowledged(sync::AtomicU64);

impl Default for Acknowledged {
    fn default() -> Self {
        Self(sync::AtomicU64::new(NONE_YET))
    }
}

impl Default for Expected {
    fn default() -> Self {
        Self(sync::AtomicU64::new(NONE_YET))
    }
}

impl Expected {
    /// Relaxed, here and below: each has one owner at a time, and what passes it on orders it. Other threads read it for the
    /// acknowledgement that they carry, which may be an old one.
    #[inline(always)]
    fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn get(&self) -> Option<Number> {
        let word = self.word();
        (word & UNKNOWN == 0).then_some(Number::of_word(word as u32))
    }

    /// The request before this one was taken, and is to be acknowledged. `opens`: this one may be received without the
    /// device's lock.
    pub fn set(&self, number: Number, opens: bool) {
        let closed = if opens { 0 } else { CLOSED };
        (self.0).store(closed | u64::from(number.word()), Ordering::Relaxed);
    }

    /// The next request is this one, and is read under the lock. A response of its own acknowledges those before it, or there
    /// are none.
    pub fn set_answered(&self, number: Number) {
        let word = CLOSED | ANSWERED | u64::from(number.word());
        self.0.store(word, Ordering::Relaxed);
    }

    /// Whether it is the request of this number, and may be received without the device's lock.
    #[inline(always)]
    pub fn is_open_for(&self, number: Number) -> bool {
        self.word() == u64::from(number.word())
    }

    /// The request for which it [is open](Self::is_open_for) was received, and the next one may be as well.
    #[inline(always)]
    pub fn pass(&self) {
        let next = Number::of_word(self.word() as u32).next();
        (self.0).store(next.word().into(), Ordering::Relaxed);
    }

    /// The next request is still expected, but read under the lock; a response of its own acknowledges those before it.
    pub fn close(&self) {
        (self.0).store(self.word() | CLOSED | ANSWERED, Ordering::Relaxed);
    }

    /// No request has arrived yet.
    pub fn forget(&self) {
        self.0.store(NONE_YET, Ordering::Relaxed);
    }
}

/// An acknowledgement that a responder has not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingAck {
    /// The last request that was taken.
    pub last: Number,
    expected: u64,
}

/// Relaxed, all: each value is independent. An acknowledgement that is sent twice does no harm.
impl Acknowledged {
    /// The acknowledgement of the requests before the `expected` one, unless it has been sent.
    #[inline(always)]
    fn pending(&self, expected: &Expected) -> Option<PendingAck> {
        let expected = expected.word();
        let pending = expected != self.0.load(Ordering::Relaxed) && expected & ANSWERED == 0;
        pending.then(|| PendingAck {
            last: Number::of_word(expected as u32).previous(),
            expected,
        })
    }
}

impl QpCtx {
    /// The acknowledgement that the responder has not sent its requester yet.
    #[inline(always)]
    pub fn pending_ack(&self) -> Option<PendingAck> {
        (self.sender.acknowledged).pending(&self.receiver.accepted.expected)
    }

    /// This one has been sent.
    #[inline(always)]
    pub fn acknowledged(&self, pending: PendingAck) {
        (self.sender.acknowledged.0).store(pending.expected, Ordering::Relaxed);
    }

    /// The last acknowledgement is sent once more.
    pub fn acknowledge_again(&self) {
        (self.sender.acknowledged.0).store(NEVER, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::qp::QpTable;
    use super::*;

    #[test]
    fn a_request_is_pending_until_it_is_acknowledged() {
        let table = QpTable::new().unwrap();
        table.make(7).unwrap();
        // SAFETY: not used after the table.
        let ctx = unsafe { table.find(7) }.unwrap();
        let expected = &ctx.receiver.accepted.expected;
        assert_eq!(ctx.pending_ack(), None, "no request has arrived");
        expected.set_answered(Number::new(3, 0));
        assert_eq!(ctx.pending_ack(), None, "nothing has been taken");
        expected.set(Number::new(3, 1), true);
        let pending = ctx.pending_ack().expect("one was taken");
        assert_eq!(pending.last, Number::new(3, 0));
        assert!(
            expected.is_open_for(Number::new(3, 1)) && !expected.is_open_for(Number::new(4, 1))
        );
        expected.pass();
        ctx.acknowledged(pending);
        let pending = ctx.pending_ack().expect("another was taken meanwhile");
        assert_eq!(pending.last, Number::new(3, 1));
        ctx.acknowledged(pending);
        assert_eq!(ctx.pending_ack(), None);
        // A duplicate.
        ctx.acknowledge_again();
        assert_eq!(ctx.pending_ack(), Some(pending));
        ctx.acknowledged(pending);
        // A response says that this one is not taken.
        expected.close();
        assert_eq!(
            (ctx.pending_ack(), expected.get()),
            (None, Some(Number::new(3, 2)))
        );
        assert!(!expected.is_open_for(Number::new(3, 2)));
        // One brings its result.
        expected.set_answered(Number::new(3, 3));
        ctx.acknowledge_again();
        assert_eq!(ctx.pending_ack(), None);
        expected.set(Number::new(3, 4), false);
        assert!(!expected.is_open_for(Number::new(3, 4)));
        let pending = ctx.pending_ack().expect("that behind it was taken");
        assert_eq!(pending.last, Number::new(3, 3));
        expected.forget();
        assert_eq!((ctx.pending_ack(), expected.get()), (None, None));
    }

    #[test]
    fn numbers_go_round() {
        let expected = Expected::default();
        expected.set(Number::new(9, u16::MAX), true);
        expected.pass();
        assert_eq!(expected.get(), Some(Number::new(9, 0)));
        assert!(expected.is_open_for(Number::new(9, 0)));
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::model::{Arc, check, thread};

    #[derive(Default)]
    struct World {
        expected: Expected,
        acknowledged: Acknowledged,
        /// The result has been sent.
        answered: AtomicU32,
    }

    /// A request with a result is taken behind another one, while a thread sends an acknowledgement. `answered`: the
    /// request is not acknowledged before its response is sent.
    fn result(answered: bool) {
        check(move || {
            let world = Arc::new(World::default());
            let [plain, atomic, next] = [0, 1, 2].map(|msn| Number::new(1, msn));
            world.expected.set(atomic, true);
            let sender = {
                let world = world.clone();
                thread::spawn(move || {
                    if let Some(pending) = world.acknowledged.pending(&world.expected) {
                        // The response is sent behind this: who took the request has not come that far.
                        let early =
                            pending.last == atomic && world.answered.load(Ordering::Acquire) == 0;
                        assert!(!early, "completed without its result");
                        assert!(pending.last == plain || pending.last == atomic);
                    }
                })
            };
            match answered {
                true => world.expected.set_answered(next),
                false => world.expected.set(next, false),
            }
            world.answered.store(1, Ordering::Release);
            sender.join().unwrap();
            if answered {
                assert_eq!(world.acknowledged.pending(&world.expected), None);
            }
        });
    }

    #[test]
    fn loom_a_result_is_not_overtaken_by_its_acknowledgement() {
        result(true);
    }

    /// The model detects that the request counts as any other.
    #[test]
    #[should_panic]
    #[cfg_attr(miri, ignore = "by chance only")]
    fn loom_a_request_with_a_result_has_to_be_answered() {
        result(false);
    }
}
