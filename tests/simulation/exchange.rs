//! An exchange that takes its time, and that may be cut, or lose messages.

use bellwire::link::{Exchange, ExchangeError, LocalExchange};
use bellwire_tests::fixture::Random;
use std::collections::VecDeque;

/// Brings each message after a random number of looks, in order.
pub struct Slow {
    inner: LocalExchange,
    random: Random,
    /// Looks until a message is seen, at the most.
    longest: u64,
    /// What is under way, and how many looks it still takes.
    waiting: VecDeque<(u64, Vec<u8>)>,
    /// Messages that can still be sent until the exchange is cut; `None`: it is not.
    left: Option<u64>,
    /// One message in so many is lost, which a [`Link`](bellwire::link::Link) does not ask an
    /// exchange to do; it may then be given up, and no more.
    lost_one_in: Option<u64>,
}

impl Slow {
    pub fn new(
        inner: LocalExchange,
        random: Random,
        longest: u64,
        left: Option<u64>,
        lost_one_in: Option<u64>,
    ) -> Self {
        Self {
            lost_one_in,
            inner,
            random,
            longest,
            waiting: VecDeque::new(),
            left,
        }
    }
}

impl Exchange for Slow {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        match &mut self.left {
            Some(0) => return Err(ExchangeError::Closed),
            Some(left) => *left -= 1,
            None => {}
        }
        if let Some(many) = self.lost_one_in
            && self.random.below(many) == 0
        {
            return Ok(());
        }
        self.inner.send(message)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        let mut end = None;
        let mut bytes = [0; 1024];
        loop {
            match self.inner.receive(&mut bytes) {
                Ok(Some(length)) => {
                    let looks = self.random.below(self.longest + 1);
                    self.waiting.push_back((looks, bytes[..length].to_vec()));
                }
                Ok(None) => break,
                Err(error) => {
                    end = Some(error);
                    break;
                }
            }
        }
        match (self.waiting.front_mut(), end) {
            (Some((looks, _)), _) if *looks > 0 => {
                *looks -= 1;
                Ok(None)
            }
            (Some(_), _) => {
                let message = self.waiting.pop_front().map_or(Vec::new(), |(_, it)| it);
                into[..message.len()].copy_from_slice(&message);
                Ok(Some(message.len()))
            }
            (None, Some(_)) => Err(ExchangeError::Closed),
            (None, None) if self.left == Some(0) => Err(ExchangeError::Closed),
            (None, None) => Ok(None),
        }
    }
}
