//! What may become of requests, found without looking at the device.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A send queue's requests, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Sends {
    /// Identifier, and whether it asks for a completion.
    flying: VecDeque<(u64, bool)>,
}

impl Sends {
    pub fn posted(&mut self, wr_id: u64, signaled: bool) {
        self.flying.push_back((wr_id, signaled));
    }

    /// A completion came: it retires its request and `retired` less one before it, which asked for
    /// nothing and succeeded.
    pub fn completed(&mut self, wr_id: u64, retired: u32, success: bool) {
        let mut count = 0;
        loop {
            let (flew, signaled) = self
                .flying
                .pop_front()
                .expect("completed, and not in flight");
            count += 1;
            if flew == wr_id {
                assert!(
                    signaled || !success,
                    "{wr_id} succeeded and did not ask for a completion"
                );
                break;
            }
            assert!(
                !signaled,
                "{flew} was passed over for {wr_id}, and asked for a completion"
            );
        }
        assert_eq!(count, retired, "requests that {wr_id} retires");
    }

    /// The requests before `wr_id` that its completion retires, `retired` with it.
    pub fn before(&self, wr_id: u64, retired: u32) -> Vec<u64> {
        let ids = self.flying.iter().map(|&(flew, _)| flew);
        let before: Vec<u64> = ids.take_while(|&flew| flew != wr_id).collect();
        assert_eq!(
            before.len() + 1,
            retired as usize,
            "requests that {wr_id} retires"
        );
        before
    }

    /// What is in flight and did not ask for a completion; all of it has to be such.
    pub fn silent(&self) -> impl Iterator<Item = u64> {
        self.flying.iter().map(|&(wr_id, signaled)| {
            assert!(!signaled, "{wr_id} was never reported");
            wr_id
        })
    }

    /// What a reset reports: everything that is left, in order.
    pub fn cleared(&mut self, wr_id: u64) {
        let next = self.flying.pop_front();
        assert_eq!(
            next.map(|(wr_id, _)| wr_id),
            Some(wr_id),
            "reported by a reset"
        );
    }

    pub fn flying(&self) -> usize {
        self.flying.len()
    }
}

/// A receive queue's requests.
#[derive(Debug)]
pub enum Receives {
    /// Completed in order.
    Own(VecDeque<u64>),
    /// Completed in any order.
    Shared(BTreeSet<u64>),
}

impl Receives {
    pub fn posted(&mut self, wr_id: u64) {
        match self {
            Self::Own(flying) => flying.push_back(wr_id),
            Self::Shared(flying) => assert!(flying.insert(wr_id)),
        }
    }

    pub fn completed(&mut self, wr_id: u64) {
        match self {
            Self::Own(flying) => {
                assert_eq!(
                    flying.pop_front(),
                    Some(wr_id),
                    "receives complete in order"
                );
            }
            Self::Shared(flying) => assert!(flying.remove(&wr_id), "{wr_id} is not in flight"),
        }
    }

    pub fn flying(&self) -> usize {
        match self {
            Self::Own(flying) => flying.len(),
            Self::Shared(flying) => flying.len(),
        }
    }
}

/// What has arrived, from each flow of messages.
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    last: BTreeMap<u64, u64>,
}

impl Inbox {
    /// Message `seq` of `flow`; on a reliable connection none is missing before it.
    pub fn message(&mut self, flow: u64, seq: u64, reliable: bool) {
        let last = self.last.insert(flow, seq).unwrap_or(0);
        assert!(
            seq > last,
            "message {seq} of flow {flow:#x} after {last}: twice, or out of order"
        );
        if reliable {
            assert_eq!(
                seq,
                last + 1,
                "messages of flow {flow:#x} are missing before {seq}"
            );
        }
    }

    pub fn last(&self, flow: u64) -> u64 {
        self.last.get(&flow).copied().unwrap_or(0)
    }
}
