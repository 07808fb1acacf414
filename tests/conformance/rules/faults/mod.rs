//! Faults to order.

pub mod device;
pub mod request;
pub mod scripts;

use crate::provider::Provider;
use crate::support::completes;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::state::{AckTimeout, ack_timeout};
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Device};
use bellwire_tests::fixture::*;
use std::time::Duration;

const SOURCE: &str = "SoftDevice::inject";

/// Sends again after a millisecond, three times; looks for a receive every 0.01 ms, three times.
fn connect() -> ConnectAttr {
    ConnectAttr {
        timeout: 8,
        retry_cnt: 3,
        rnr_retry: 3,
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    }
}

/// How long such a requester waits for an acknowledgement.
fn timeout() -> Duration {
    match ack_timeout(connect().timeout) {
        Some(AckTimeout::After(time)) => time,
        other => panic!("{other:?}"),
    }
}

/// A device and two ends on it that are connected so.
struct World {
    device: Device,
    a: End,
    b: End,
}

impl World {
    fn new(p: &Provider) -> Self {
        Self::on(p, p.device())
    }

    fn on(p: &Provider, device: Device) -> Self {
        let (a, b) = pair_with(&device, p.quiet, &connect());
        Self { device, a, b }
    }

    fn inject(&self, steps: &[(Trigger, Fault)]) {
        let script = steps
            .iter()
            .fold(Script::default(), |script, &(trigger, fault)| {
                script.with(trigger, fault)
            });
        self.device
            .as_soft()
            .unwrap()
            .inject(&script)
            .expect("a good script");
    }

    /// A request that can be executed once only, and shows how often it was.
    fn add(&mut self, wr_id: u64) {
        let remote = self.b.region.remote(0);
        let here = self.a.region.sge(64, 8);
        self.a.go(wr_id, AtomicFetchAndAdd { remote, add: 1 }, here);
    }

    /// How often.
    fn added(&self) -> u64 {
        self.b
            .region
            .word(0)
            .load(std::sync::atomic::Ordering::Acquire)
    }

    /// Requests like any: everything works.
    fn works(&mut self) {
        for wr_id in 0..5 {
            let before = self.added();
            self.add(wr_id);
            completes(&mut self.a, wr_id, WcStatus::Success);
            assert_eq!(self.added(), before + 1);
            self.b.receive(70, &[]);
            self.a.go(9, Send {}, NoPayload);
            completes(&mut self.a, 9, WcStatus::Success);
            completes(&mut self.b, 70, WcStatus::Success);
        }
    }
}
