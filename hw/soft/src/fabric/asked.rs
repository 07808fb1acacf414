//! Requesters that wait for an acknowledgement while more messages arrive.

/// What is known of the last message whose requester waits.
#[derive(Debug, Default)]
pub struct Asked {
    /// The look that found it.
    look: u32,
    /// Position of the packet behind it.
    next: u32,
    /// Requesters that wait for one packet of acknowledgements.
    waiting: u32,
}

impl Asked {
    /// This look has found a message whose requester waits; the next packet has this position. Whether the requester goes on
    /// waiting for those of the next messages, to be acknowledged with them in one packet, up to `most` of them.
    ///
    /// So it does if most looks since the last such message have found one, and there is a next packet. That is looked at
    /// last: the line has to come from the peer's processor, for which a program that answers each message would wait.
    pub fn waits_on(
        &mut self,
        look: u32,
        next: u32,
        most: u32,
        is_next: impl FnOnce() -> bool,
    ) -> bool {
        let looks = look.wrapping_sub(self.look);
        let lines = next.wrapping_sub(self.next);
        let waiting = self.waiting + 1;
        let waits = looks <= lines && waiting < most && is_next();
        *self = Self {
            look,
            next,
            waiting: if waits { waiting } else { 0 },
        };
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 5;

    #[test]
    fn while_messages_go_on_most_wait_for_the_last() {
        let mut asked = Asked::default();
        // Before and behind the end of both ranges.
        let (first, at) = (0_u32.wrapping_sub(20), 0_u32.wrapping_sub(33));
        asked.waits_on(first, at, MOST, || panic!("not looked at"));
        for message in 1..40 {
            let (look, next) = (first.wrapping_add(message), at.wrapping_add(message));
            let waits = asked.waits_on(look, next, MOST, || true);
            assert_eq!(waits, message % MOST != 0, "{message}");
        }
    }

    #[test]
    fn the_last_one_does_not_wait() {
        let mut asked = Asked::default();
        asked.waits_on(100, 99, MOST, || panic!("not looked at"));
        assert!(asked.waits_on(101, 100, MOST, || true));
        assert!(!asked.waits_on(102, 101, MOST, || false));
        // Then nobody waits.
        for message in 102..102 + MOST - 1 {
            assert!(asked.waits_on(message + 1, message, MOST, || true));
        }
        assert!(!asked.waits_on(200, 200, MOST, || true));
    }

    #[test]
    fn behind_looks_in_vain_none_waits() {
        let mut asked = Asked::default();
        for message in 1..40_u32 {
            let look = message * 2;
            assert!(!asked.waits_on(look, message, MOST, || panic!("not looked at")));
        }
        // Looks begin again, or are those of another thread.
        for look in [3, u32::MAX, 1000] {
            assert!(!asked.waits_on(look, 40, MOST, || panic!("not looked at")));
        }
    }

    #[test]
    fn messages_between_that_ask_for_nothing_count() {
        let mut asked = Asked::default();
        asked.waits_on(1008, 8, MOST, || panic!("not looked at"));
        assert!(asked.waits_on(1016, 16, MOST, || true));
        // Then one look is in vain.
        assert!(!asked.waits_on(1025, 24, MOST, || panic!("not looked at")));
    }
}
