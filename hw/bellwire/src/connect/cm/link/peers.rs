//! The addresses of a listener's name.

use bellwire_provider::address::Tried;
use std::net::SocketAddr;

/// The addresses, which are tried in turn until the listener has responded at one of them.
#[derive(Debug)]
pub(super) struct Peers {
    addresses: Vec<SocketAddr>,
    /// The place of the present one.
    at: usize,
    /// Why each failed the last time.
    tried: Vec<Option<Tried>>,
}

impl Peers {
    /// At least one address.
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self {
            tried: vec![None; addresses.len()],
            addresses,
            at: 0,
        }
    }

    /// The address to connect to.
    pub fn current(&self) -> SocketAddr {
        self.addresses[self.at]
    }

    /// The addresses of this round, with the present one.
    pub fn left(&self) -> u32 {
        (self.addresses.len() - self.at) as u32
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        self.addresses.len() > 1
    }

    /// The present address failed.
    pub fn failed(&mut self, why: Tried) {
        self.tried[self.at] = Some(why);
    }

    /// Why the present address failed the last time.
    pub fn last_failure(&self) -> Option<&Tried> {
        self.tried[self.at].as_ref()
    }

    /// The listener has responded: what failed before is no reason any more.
    pub fn responded(&mut self) {
        self.tried.fill(None);
    }

    /// Goes on to the next address. Returns `false` if that is the first one again.
    pub fn go_on(&mut self) -> bool {
        self.at = (self.at + 1) % self.addresses.len();
        self.at != 0
    }

    /// The addresses that failed.
    pub fn tried(&self) -> Box<[Tried]> {
        self.tried.iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_turn_and_its_last_reason() {
        let [a, b]: [SocketAddr; 2] = ["[::1]:7", "127.0.0.1:7"].map(|text| text.parse().unwrap());
        let mut peers = Peers::new(vec![a, b]);
        assert_eq!((peers.current(), peers.left()), (a, 2));
        assert!(peers.tried().is_empty());
        peers.failed(Tried::because(a, "first"));
        assert!(peers.go_on());
        assert_eq!((peers.current(), peers.left()), (b, 1));
        peers.failed(Tried::because(b, "second"));
        assert!(!peers.go_on());
        assert_eq!(peers.current(), a);
        peers.failed(Tried::because(a, "third"));
        let reasons: Vec<String> = peers.tried().iter().map(|of| of.reason.clone()).collect();
        assert_eq!(reasons, ["third", "second"]);
    }
}
