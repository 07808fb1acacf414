//! What the rules of channels share: queue pairs that are connected with themselves.

use crate::provider::Provider;
use bellwire::event::CompChannel;
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, WcStatus};
use bellwire::{ConnectAttr, Cq, CqInit, Pd, Qp};
use bellwire_tests::fixture::*;
use bellwire_tests::readiness::readable;
use std::time::Duration;

pub const AT_ONCE: Duration = Duration::ZERO;
/// How long something has to hang before it counts as hanging.
pub const WHILE: Duration = Duration::from_millis(30);
pub const PLAIN: SendFlags = SendFlags::empty();
pub const ANY: bool = false;
pub const SOLICITED_ONLY: bool = true;
/// A WRITE of no bytes succeeds wherever it goes: something that completes, and nothing else.
pub const NOTHING: RdmaWrite = RdmaWrite {
    remote: Remote { addr: 0, rkey: 0 },
};

pub fn cq_on(channel: &CompChannel, qps: u32) -> Cq {
    let (send, recv) = init().cq_entries();
    let init = CqInit {
        channel: Some(channel),
        ..CqInit::new((send + recv) * qps)
    };
    channel.device().create_cq_with(&init).unwrap()
}

pub fn connected(qp: &mut Qp) {
    let connect = ConnectAttr::default();
    qp.init(&connect).unwrap();
    qp.connect(&qp.endpoint(), &connect).unwrap();
}

/// A queue pair that is connected with itself, on a channel.
pub fn looped(pd: &Pd, channel: &CompChannel) -> (Cq, Qp) {
    let mut cq = cq_on(channel, 1);
    let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
    connected(&mut qp);
    (cq, qp)
}

pub fn complete(qp: &mut Qp, wr_id: u64) {
    post(qp, wr_id, NOTHING, NoPayload, SIGNALED).unwrap();
    qp.sq().ring();
}

/// A queue pair that is connected with itself. Its sends complete on a queue that has a channel, its
/// receives on one that has none.
pub struct Own {
    pub channel: CompChannel,
    pub cq: Cq,
    pub recv_cq: Cq,
    pub qp: Qp,
    pub quiet: Duration,
}

impl Own {
    pub fn new(p: &Provider) -> Self {
        Self::on(p, &p.device().alloc_pd())
    }

    pub fn on(p: &Provider, pd: &Pd) -> Self {
        let channel = pd.device().create_comp_channel().unwrap();
        let mut cq = cq_on(&channel, 1);
        let mut recv_cq = cq_for(pd.device(), &init());
        let mut qp = pd.create_qp((&mut cq, &mut recv_cq), &init()).unwrap();
        connected(&mut qp);
        Self {
            channel,
            cq,
            recv_cq,
            qp,
            quiet: p.quiet.0,
        }
    }

    /// Armed, completed and raised, but not got.
    pub fn raise(&mut self, wr_id: u64) {
        self.cq.req_notify(ANY).unwrap();
        self.go(wr_id);
        assert!(readable(&self.channel, DEADLINE), "no event");
    }

    pub fn go(&mut self, wr_id: u64) {
        complete(&mut self.qp, wr_id);
    }

    /// Until what was posted has completed, which is not polled.
    pub fn settle(&mut self) {
        post_recv(&mut self.qp, 0, &[]).unwrap();
        self.qp.rq().ring();
        post(&mut self.qp, 0, Send {}, NoPayload, PLAIN).unwrap();
        self.qp.sq().ring();
        let received = wait(&mut self.recv_cq);
        assert_eq!(received.status(), WcStatus::Success);
    }

    pub fn silent(&self) {
        assert!(!readable(&self.channel, self.quiet), "an event");
    }

    pub fn notified(&self) {
        assert!(readable(&self.channel, DEADLINE), "no event");
        let event = self.channel.get_cq_event().unwrap();
        assert_eq!(event.cqn(), self.cq.cqn());
        event.ack();
    }

    pub fn polled(&mut self, wr_id: u64) {
        let done = wait(&mut self.cq);
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::Success));
    }
}
