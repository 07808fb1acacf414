//! Places that several peers share: none of them can keep the others out.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::OnceLock;

/// Whose places they are: a number of a process, or of a host; zero is this process, which shares with nobody.
pub(super) type Who = u64;

/// The number of a host: a hash of its address. Two hosts with one hash share their places; the hash has a secret key, so
/// that no host can choose with whom it shares.
pub(super) fn of_address(address: IpAddr) -> Who {
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    // Zero is this process.
    KEYS.get_or_init(RandomState::new)
        .hash_one(address.to_canonical())
        | 1
}

/// How many of a number of places are taken, and by whom. A peer may take another place while it has no more than are free.
/// So one alone has half of them, two have a third each, and the next one finds room.
#[derive(Debug, Default)]
pub(super) struct Shares {
    taken: usize,
    by: HashMap<Who, usize>,
}

impl Shares {
    /// Whether this peer may take one of so many places.
    pub fn has_room(&self, who: Who, places: usize) -> bool {
        let free = places.saturating_sub(self.taken);
        let has = self.by.get(&who).copied().unwrap_or(0);
        free != 0 && (who == 0 || has <= free)
    }

    /// Takes one of so many places. `false`: there is none for this peer, or no memory to note it.
    pub fn take(&mut self, who: Who, places: usize) -> bool {
        let taken = self.has_room(who, places) && self.by.try_reserve(1).is_ok();
        if taken {
            self.taken += 1;
            *self.by.entry(who).or_default() += 1;
        }
        taken
    }

    /// Gives one back.
    pub fn give(&mut self, who: Who) {
        if let Some(has) = self.by.get_mut(&who) {
            *has -= 1;
            self.taken -= 1;
            if *has == 0 {
                self.by.remove(&who);
            }
        }
    }

    /// How many are taken.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many places of so many this peer takes.
    fn all_of(shares: &mut Shares, who: Who, places: usize) -> usize {
        (0..).take_while(|_| shares.take(who, places)).count()
    }

    #[test]
    fn the_next_peer_finds_room() {
        const PLACES: usize = 64;
        let mut shares = Shares::default();
        let taken: Vec<usize> = (1..=20)
            .map(|who| all_of(&mut shares, who, PLACES))
            .collect();
        assert!(
            taken.iter().all(|of| *of != 0) || shares.taken() == PLACES,
            "{taken:?}"
        );
        assert_eq!(taken[0], PLACES / 2 + 1);
        let most: usize = taken[..4].iter().sum();
        assert!(most < PLACES, "{taken:?}");
        (0..taken[0]).for_each(|_| shares.give(1));
        assert_eq!(shares.taken(), taken[1..].iter().sum::<usize>());
        assert!(shares.take(1, PLACES));
    }

    #[test]
    fn an_address_is_one_peer_however_it_is_written() {
        let of = |text: &str| of_address(text.parse().expect("an address"));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_ne!(of("10.0.0.1"), 0);
    }

    #[test]
    fn this_process_has_all() {
        let mut shares = Shares::default();
        assert_eq!(all_of(&mut shares, 0, 8), 8);
        assert!(!shares.has_room(1, 8));
        assert_eq!(all_of(&mut Shares::default(), 7, 1), 1);
        assert_eq!(all_of(&mut Shares::default(), 7, 2), 2);
    }
}
