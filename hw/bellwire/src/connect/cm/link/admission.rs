//! Which links a listener admits: how many wait to be accepted, how many connect at a time, and for how long.

use crate::connect::cm::share::{Shares, Who};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Links that have asked, by their session numbers, until they are connected.
#[derive(Debug)]
pub(super) struct Admission {
    /// Links that wait to be accepted at most.
    pub backlog: usize,
    /// Links that were accepted and are not connected yet, at most.
    pub handshakes: usize,
    /// How long one may take to be connected.
    pub within: Duration,
    /// With the process that each is of, which has a share of the backlog, and one of the handshakes.
    waiting: VecDeque<(u64, Who)>,
    asking: Shares,
    /// With the time at which they were accepted.
    connecting: HashMap<u64, (Instant, Who)>,
    shaking: Shares,
    /// The same, the oldest first. Sessions that are connected by now leave when they are the oldest.
    order: VecDeque<(u64, Instant)>,
    pace: Pace,
    /// When the last that was refused is to ask again.
    last_turn: Option<Instant>,
}

/// How fast links are accepted while others wait.
#[derive(Debug)]
struct Pace {
    /// When one was accepted, if others waited then.
    since: Option<Instant>,
    /// Time that so many have taken.
    time: Duration,
    links: u32,
}

impl Pace {
    /// Of a guess, until some have been accepted.
    fn new() -> Self {
        Self {
            since: None,
            time: Duration::from_millis(1),
            links: 2,
        }
    }

    /// One was accepted.
    fn count(&mut self, now: Instant, others_wait: bool) {
        /// Those long ago weigh less.
        const MANY: u32 = 512;
        if let Some(since) = self.since {
            self.time += now.saturating_duration_since(since);
            self.links += 1;
        }
        if self.links >= MANY {
            (self.time, self.links) = (self.time / 2, self.links / 2);
        }
        self.since = others_wait.then_some(now);
    }

    /// The time of so many.
    fn of(&self, links: usize) -> Duration {
        self.time.mul_f64(links as f64 / f64::from(self.links))
    }
}

impl Admission {
    /// 256 handshakes at a time, of 10 s each at most.
    pub fn new(backlog: usize) -> Self {
        Self {
            backlog: backlog.max(1),
            handshakes: 256,
            within: Duration::from_secs(10),
            waiting: VecDeque::new(),
            asking: Shares::default(),
            connecting: HashMap::new(),
            shaking: Shares::default(),
            order: VecDeque::new(),
            pace: Pace::new(),
            last_turn: None,
        }
    }

    /// A link of this process asks for the first time. `false`: there is no room for it; `is_there` says of a waiting one
    /// whether its connector still asks.
    pub fn ask(&mut self, session: u64, who: Who, mut is_there: impl FnMut(u64) -> bool) -> bool {
        if !self.asking.has_room(who, self.backlog) {
            let asking = &mut self.asking;
            self.waiting.retain(|(waiting, of)| {
                let is_there = is_there(*waiting);
                if !is_there {
                    asking.give(*of);
                }
                is_there
            });
        }
        let memory = self.waiting.try_reserve(1).is_ok();
        let room = memory && self.asking.take(who, self.backlog);
        if room {
            self.waiting.push_back((session, who));
        }
        room
    }

    /// A link has no room. Returns when it is to ask again: each that is refused after the one before, and all
    /// of them as fast as others are accepted. Never later than a handshake may take.
    pub fn refuse(&mut self, now: Instant) -> Duration {
        let first = self.pace.of(self.waiting.len());
        let before = self.last_turn.map(|at| at.saturating_duration_since(now));
        let wait = before.map_or(first, |before| before.max(first)) + self.pace.of(1);
        // However many are refused: by then the present handshakes have ended.
        let wait = wait.min(self.within);
        self.last_turn = now.checked_add(wait);
        wait
    }

    /// The next link to be accepted: connects from now on.
    pub fn accept(&mut self, now: Instant) -> Option<u64> {
        let next = self.next()?;
        let (session, who) = *self.waiting.get(next)?;
        // Without memory to note it, it goes on waiting.
        let memory = self.order.try_reserve(1).is_ok() && self.connecting.try_reserve(1).is_ok();
        if !memory || !self.shaking.take(who, self.handshakes) {
            return None;
        }
        self.waiting.remove(next);
        self.asking.give(who);
        self.connecting.insert(session, (now, who));
        self.order.push_back((session, now));
        self.pace.count(now, !self.waiting.is_empty());
        Some(session)
    }

    /// Which of the waiting sessions may connect first.
    fn next(&self) -> Option<usize> {
        (self.waiting.iter()).position(|(_, who)| self.shaking.has_room(*who, self.handshakes))
    }

    /// Whether [`accept`](Self::accept) has one.
    pub fn is_ready(&self) -> bool {
        self.next().is_some()
    }

    /// This link is connected, or gone.
    pub fn done(&mut self, session: u64) {
        if let Some((_, who)) = self.connecting.remove(&session) {
            self.shaking.give(who);
            while let Some((of, since)) = self.order.front()
                && self.connecting.get(of).map(|(since, _)| since) != Some(since)
            {
                self.order.pop_front();
            }
        }
    }

    /// A link that has taken too long; it does not count any more.
    pub fn late(&mut self, now: Instant) -> Option<u64> {
        let (session, since) = *self.order.front()?;
        let late = now.saturating_duration_since(since) >= self.within;
        late.then(|| {
            self.done(session);
            session
        })
    }

    /// When the first link will have taken too long.
    pub fn due(&self) -> Option<Instant> {
        let (_, since) = self.order.front()?;
        since.checked_add(self.within)
    }

    /// When this one will have.
    pub fn due_of(&self, session: u64) -> Option<Instant> {
        self.connecting.get(&session)?.0.checked_add(self.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Admission {
        Admission {
            handshakes: 2,
            within: Duration::from_secs(1),
            ..Admission::new(3)
        }
    }

    #[test]
    fn the_backlog_has_room_for_those_who_are_there() {
        let mut of = admission();
        for session in [1, 2, 3] {
            assert!(of.ask(session, 0, |_| true));
        }
        assert!(!of.ask(4, 0, |_| true));
        assert!(of.ask(5, 0, |session| session != 2));
        let now = Instant::now();
        assert_eq!([of.accept(now), of.accept(now)], [Some(1), Some(3)]);
    }

    #[test]
    fn so_many_connect_at_a_time() {
        let mut of = admission();
        let now = Instant::now();
        assert!(
            [1, 2, 3]
                .into_iter()
                .all(|session| of.ask(session, 0, |_| true))
        );
        assert_eq!([(); 3].map(|()| of.accept(now)), [Some(1), Some(2), None]);
        assert!(!of.is_ready());
        of.done(2);
        assert!(of.is_ready());
        assert_eq!([of.accept(now), of.accept(now)], [Some(3), None]);
    }

    #[test]
    fn those_who_take_too_long_make_room() {
        let mut of = admission();
        let now = Instant::now();
        assert!(
            [1, 2, 3]
                .into_iter()
                .all(|session| of.ask(session, 0, |_| true))
        );
        let half = Duration::from_millis(500);
        assert_eq!(of.accept(now), Some(1));
        assert_eq!(of.accept(now + half), Some(2));
        assert_eq!((of.due(), of.late(now + half)), (of.due_of(1), None));
        assert_eq!(of.late(now + 2 * half), Some(1));
        assert_eq!(of.late(now + 2 * half), None);
        assert_eq!(of.due(), Some(now + 3 * half));
        assert_eq!(of.accept(now + 2 * half), Some(3));
    }

    #[test]
    fn those_who_are_refused_come_one_after_the_other() {
        const MS: Duration = Duration::from_millis(1);
        let mut of = Admission {
            handshakes: 1000,
            ..Admission::new(100)
        };
        let mut now = Instant::now();
        assert!((0..100).all(|session| of.ask(session, 0, |_| true)));
        // One in four milliseconds.
        for _ in 0..51 {
            of.accept(now).expect("it waits");
            now += 4 * MS;
        }
        // After the 49 sessions that wait.
        for before in 49..60 {
            let wait = of.refuse(now).as_millis();
            assert!((4 * before - 8..4 * before + 12).contains(&wait), "{wait}");
        }
        for _ in 0..49 {
            of.accept(now).expect("it waits");
            now += 4 * MS;
        }
        // The time without any does not count.
        now += 1000 * MS;
        assert!(of.ask(100, 0, |_| true));
        of.accept(now).expect("it waits");
        assert!(of.refuse(now) < 8 * MS);
    }

    /// A peer that asks in vain again and again does not make the others wait for ever.
    #[test]
    fn a_refused_link_asks_again_within_the_time_of_a_handshake() {
        let mut of = admission();
        let now = Instant::now();
        for session in [1, 2, 3] {
            assert!(of.ask(session, 0, |_| true));
        }
        for _ in 0..100_000 {
            assert!(of.refuse(now) <= of.within);
        }
        let later = now + of.within;
        assert!(of.refuse(later) <= of.within);
    }

    #[test]
    fn those_who_are_connected_are_never_late() {
        let mut of = admission();
        let now = Instant::now();
        assert!(
            [1, 2, 3]
                .into_iter()
                .all(|session| of.ask(session, 0, |_| true))
        );
        let later = now + Duration::from_millis(500);
        assert_eq!([of.accept(now), of.accept(later)], [Some(1), Some(2)]);
        // The second is connected first: both have left the order when the first is.
        of.done(2);
        assert_eq!((of.due(), of.due_of(2)), (of.due_of(1), None));
        of.done(1);
        assert_eq!((of.due(), of.late(now + 60 * of.within)), (None, None));
        assert_eq!(of.accept(later), Some(3));
        of.done(7);
        assert_eq!(of.due(), of.due_of(3));
    }

    /// Where only the address of a peer is known, the processes at it have one share: they can keep each other out, and
    /// nobody at another address.
    #[test]
    fn processes_at_one_address_have_one_share() {
        use crate::connect::cm::share::of_address;
        let at = |text: &str| of_address(text.parse().expect("an address"));
        let (hog, neighbour, honest) = (at("192.0.2.1"), at("::ffff:192.0.2.1"), at("192.0.2.2"));
        let mut of = Admission {
            handshakes: 16,
            ..Admission::new(16)
        };
        let now = Instant::now();
        let asked = (0..)
            .take_while(|session| of.ask(*session, hog, |_| true))
            .count();
        assert!(asked < 16);
        assert!(!of.ask(100, neighbour, |_| true));
        assert!(of.ask(101, honest, |_| true));
        let mut accepted = Vec::new();
        while let Some(session) = of.accept(now) {
            accepted.push(session);
        }
        assert!(accepted.contains(&101));
        // What one of them gives back, the other may take.
        of.done(0);
        assert!(of.ask(102, neighbour, |_| true));
    }

    /// Links of one process, which never connect, leave room for those of another.
    #[test]
    fn a_process_has_a_share() {
        let mut of = Admission {
            handshakes: 16,
            ..Admission::new(16)
        };
        let now = Instant::now();
        let mut asked = (0..)
            .take_while(|session| of.ask(*session, 1, |_| true))
            .count();
        assert!(asked < 16);
        while of.accept(now).is_some() {
            asked += usize::from(of.ask(asked as u64, 1, |_| true));
        }
        assert!(of.connecting.len() < 16 && !of.waiting.is_empty() && !of.is_ready());
        // Behind others that wait, and before them.
        assert!(of.ask(1000, 2, |_| true) && of.is_ready());
        assert_eq!(of.accept(now), Some(1000));
        // Room that is given back is theirs again.
        of.done(0);
        of.done(1000);
        assert!(of.accept(now).is_some_and(|session| session < 1000));
    }
}
