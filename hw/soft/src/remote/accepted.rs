//! What a queue pair keeps of the connection from which it takes requests of another process. It belongs to whoever reads
//! the peer's packets: see [`inbound`](super::inbound).

use super::super::qp::QpCtx;
use crate::fabric::{Name, Number};
use crate::sync::atomic as sync;
use std::cell::UnsafeCell;
use std::ptr::from_ref;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// See the module.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Accepted {
    pub checked: Checked,
    pub expected: Expected,
    /// It is in the peer's list of queue pairs that owe an acknowledgement. Owned by the reader of the peer's packets.
    pub listed: UnsafeCell<bool>,
}

/// What was found when a short message was received: it need not be looked for again while nothing has been taken away.
///
/// ```text
/// reader, in its section                    control path
/// seen()                  load (Acquire)    stop accepting    store
/// is it accepted?         load              forget()          store (Release)
/// set(seen)               exchange          heavy barrier
///                                           wait for the readers
/// ```
///
/// Whoever has seen what is forgotten sees that nothing is accepted; and what was seen before is not there any more, so
/// nothing is set behind it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Checked {
    /// The [peer](whose) of which this was found, or [nobody](NOBODY). Any reader may look at it, that of another peer's
    /// packets, too. Only the reader of this peer's packets looks at the rest.
    peer: sync::AtomicUsize,
    found: UnsafeCell<Found>,
    /// How often it was forgotten. Under the device's lock.
    times: sync::AtomicUsize,
}

/// No address of a peer. Behind it is how often what was found has been forgotten, so that it is another value each time.
const NOBODY: usize = 1 << (usize::BITS - 1);

/// Of whom something had been found before a connection was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Seen(usize);

/// While the generation is [the same](super::super::hca::Hca::taken_away), the queue pair accepts requests of this name, and
/// receives into a queue of its own, whose memory it may write to as far as the queue knows it; or into a shared one.
#[derive(Debug)]
#[repr(C)]
struct Found {
    generation: u64,
    /// The whole name of a request's packet.
    name: Name,
    /// Where the peer says whether the requester still sends, and what it says there as long as it does.
    life: &'static AtomicU32,
    speaks: u32,
}

impl Default for Found {
    fn default() -> Self {
        static NEVER: AtomicU32 = AtomicU32::new(0);
        Self {
            generation: 0,
            name: Name::of_bits(0),
            life: &NEVER,
            speaks: 0,
        }
    }
}

/// A peer, and whether its messages are received into a `SHARED` receive queue: the address is even.
#[inline(always)]
fn whose<const SHARED: bool, P>(peer: &P) -> usize {
    const { assert!(align_of::<P>() > 1) };
    from_ref(peer).addr() + usize::from(SHARED)
}

impl Checked {
    /// Whether the packet of this name is one of the connection, which receives into a queue of its own or, with `SHARED`,
    /// into a shared one, and nothing was taken away since this generation, which is the present one. For the reader of the
    /// peer's packets, in its section.
    #[inline(always)]
    pub fn is<const SHARED: bool, P>(&self, peer: &P, name: Name, generation: u64) -> bool {
        // Relaxed: set by this thread, or by who had the turn before. To other readers it says nothing.
        if self.peer.load(Ordering::Relaxed) != whose::<SHARED, _>(peer) {
            return false;
        }
        // SAFETY: the reader of this peer's packets owns it.
        let found = unsafe { &*self.found.get() };
        found.name == name && found.generation == generation
    }

    /// Whether the requester still sends. For the reader of the peer's packets, in its section, for which
    /// [this is](Self::is) the connection.
    #[inline(always)]
    pub fn speaks(&self) -> bool {
        // SAFETY: as in `is`.
        let found = unsafe { &*self.found.get() };
        // As `Segments::life`.
        fence(Ordering::Acquire);
        found.life.load(Ordering::Acquire) == found.speaks
    }

    /// The number of the responder of the connection. For the reader of the peer's packets, in its section, for which
    /// [this is](Self::is) it.
    #[inline(always)]
    pub fn responder(&self) -> u32 {
        // SAFETY: as in `is`.
        unsafe { &*self.found.get() }.name.dst()
    }

    /// For a reader that finds what is accepted behind this.
    #[inline(always)]
    pub fn seen(&self) -> Seen {
        // Acquire: pairs with the Release in `forget`.
        Seen(self.peer.load(Ordering::Acquire))
    }

    /// The connection was checked, since this generation, and behind what was [seen](Self::seen). For the reader of the peer's
    /// packets, in its section, whose requests the queue pair accepts.
    pub fn set<const SHARED: bool, P>(
        &self,
        Seen(seen): Seen,
        peer: &P,
        name: Name,
        generation: u64,
        (life, speaks): (&'static AtomicU32, u32),
    ) {
        // SAFETY: the reader of the packets of the peer that is accepted owns it.
        unsafe {
            *self.found.get() = Found {
                generation,
                name,
                life,
                speaks,
            };
        }
        let whose = whose::<SHARED, _>(peer);
        if seen != whose {
            // If it is taken away meanwhile, it stays so. Relaxed, both: see `is`.
            let _set =
                (self.peer).compare_exchange(seen, whose, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The connection is taken away, under the device's lock: it is not accepted any more. The caller waits for all readers,
    /// behind a heavy barrier, before any peer is accepted.
    pub fn forget(&self) {
        // Relaxed, both: under the lock.
        let times = self.times.load(Ordering::Relaxed).wrapping_add(1);
        self.times.store(times, Ordering::Relaxed);
        // Release: pairs with the Acquire in `seen`. No store: loom takes one for older than an exchange that came before.
        self.peer.swap(NOBODY | times, Ordering::Release);
    }
}

/// The number of the request that a responder takes next: no more, in the usual case. Every request before it was taken, so
/// it also says what may be acknowledged. All of that is in one word, because the thread that sends the acknowledgement may
/// be another one than that which takes requests.
#[derive(Debug)]
#[repr(transparent)]
pub struct Expected(sync::AtomicU64);

/// There has been no request.
const UNKNOWN: u64 = 1 << 32;
/// The next one is read under the device's lock: the queue pair is no RC queue pair, or owes a response that is more
/// than an acknowledgement.
const CLOSED: u64 = 1 << 33;
/// What was taken last needs no acknowledgement: nothing was, or a response of its own acknowledges it, and all before it.
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

/// An acknowledgement that a responder owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The last request that was taken.
    pub taken: Number,
    expected: u64,
}

/// So that two conditions stay two branches.
#[cold]
#[inline(always)]
fn seldom() {}

/// Relaxed, all: each value is independent. An acknowledgement that is sent twice does no harm.
impl Acknowledged {
    /// The acknowledgement of what was taken before the request that is `expected`, unless it has been sent.
    #[inline(always)]
    fn owed(&self, expected: &Expected) -> Option<Owed> {
        let expected = expected.word();
        if expected == self.0.load(Ordering::Relaxed) {
            return None;
        }
        if expected & ANSWERED != 0 {
            seldom();
            return None;
        }
        Some(Owed {
            taken: Number::of_word(expected as u32).previous(),
            expected,
        })
    }
}

impl QpCtx {
    /// The acknowledgement that the responder owes its requester, unless it has been sent.
    #[inline(always)]
    pub fn owed(&self) -> Option<Owed> {
        (self.sender.acknowledged).owed(&self.receiver.accepted.expected)
    }

    /// This one has been sent.
    #[inline(always)]
    pub fn acknowledged(&self, owed: Owed) {
        (self.sender.acknowledged.0).store(owed.expected, Ordering::Relaxed);
    }

    /// The last acknowledgement is sent once more.
    pub fn owes_again(&self) {
        (self.sender.acknowledged.0).store(NEVER, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::qp::QpTable;
    use super::*;

    #[test]
    fn what_was_taken_is_owed_until_it_was_acknowledged() {
        let table = QpTable::new().unwrap();
        // SAFETY: not used after the table.
        let ctx = unsafe { table.get(7) };
        let expected = &ctx.receiver.accepted.expected;
        assert_eq!(ctx.owed(), None, "no request has arrived");
        expected.set_answered(Number::new(3, 0));
        assert_eq!(ctx.owed(), None, "nothing has been taken");
        expected.set(Number::new(3, 1), true);
        let owed = ctx.owed().expect("one was taken");
        assert_eq!(owed.taken, Number::new(3, 0));
        assert!(
            expected.is_open_for(Number::new(3, 1)) && !expected.is_open_for(Number::new(4, 1))
        );
        expected.pass();
        ctx.acknowledged(owed);
        let owed = ctx.owed().expect("another was taken meanwhile");
        assert_eq!(owed.taken, Number::new(3, 1));
        ctx.acknowledged(owed);
        assert_eq!(ctx.owed(), None);
        // A duplicate.
        ctx.owes_again();
        assert_eq!(ctx.owed(), Some(owed));
        ctx.acknowledged(owed);
        // A response says that this one is not taken.
        expected.close();
        assert_eq!(
            (ctx.owed(), expected.get()),
            (None, Some(Number::new(3, 2)))
        );
        assert!(!expected.is_open_for(Number::new(3, 2)));
        // One brings its result.
        expected.set_answered(Number::new(3, 3));
        ctx.owes_again();
        assert_eq!(ctx.owed(), None);
        expected.set(Number::new(3, 4), false);
        assert!(!expected.is_open_for(Number::new(3, 4)));
        let owed = ctx.owed().expect("that behind it was taken");
        assert_eq!(owed.taken, Number::new(3, 3));
        expected.forget();
        assert_eq!((ctx.owed(), expected.get()), (None, None));
    }

    #[test]
    fn what_is_taken_away_meanwhile_is_not_noted() {
        static LIFE: AtomicU32 = AtomicU32::new(7);
        const NAME: Name = Name::request(2, 3);
        let (checked, peer) = (Checked::default(), 0u64);
        let set = |seen| checked.set::<false, _>(seen, &peer, NAME, 1, (&LIFE, 7));
        let is = || checked.is::<false, _>(&peer, NAME, 1);
        // Also of one that has been forgotten before.
        for _ in 0..2 {
            let seen = checked.seen();
            checked.forget();
            set(seen);
            assert!(!is());
        }
        set(checked.seen());
        assert!(is() && checked.speaks());
        // While something is noted, it is replaced.
        set(checked.seen());
        assert!(is());
        checked.forget();
        assert!(!is());
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
                    if let Some(owed) = world.acknowledged.owed(&world.expected) {
                        // The response is sent behind this: who took the request has not come that far.
                        let early =
                            owed.taken == atomic && world.answered.load(Ordering::Acquire) == 0;
                        assert!(!early, "completed without its result");
                        assert!(owed.taken == plain || owed.taken == atomic);
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
                assert_eq!(world.acknowledged.owed(&world.expected), None);
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
