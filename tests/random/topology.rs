//! What there is in a world: queue pairs of all transports, connected or not.

use super::actor::{AnyQp, Kind};
use super::model::{Inbox, Receives, Sends};
use super::world::{Actor, World};
use bellwire::{Pd, QpInit, SrqInit};
use std::collections::BTreeMap;

impl World {
    pub fn populate(&mut self, pd: &Pd) {
        for _ in 0..1 + self.random.below(3) {
            let kind = [Kind::Rc, Kind::Rc, Kind::Uc][self.random.below(3) as usize];
            let at = self.actors.len();
            self.create(pd, kind, Some(at + 1));
            self.create(pd, kind, Some(at));
            self.introduce(at);
        }
        for _ in 0..self.random.below(4) {
            let at = self.actors.len();
            self.create(pd, Kind::Ud, None);
            self.introduce(at);
        }
        if self.random.below(2) == 0 {
            let xrcd = self.device.open_xrcd().expect("an XRC domain");
            let cq = self.cqs.len();
            let mut arrivals = self.device.create_cq(64).expect("a queue");
            let sizes = SrqInit {
                max_wr: 16,
                ..SrqInit::default()
            };
            let srq = pd.create_xrc_srq(&xrcd, &mut arrivals, &sizes);
            self.cqs.push(arrivals);
            let target = xrcd.create_target().expect("a target");
            self.xrc = Some((target, srq.expect("a shared queue"), cq));
            let at = self.actors.len();
            self.create(pd, Kind::Xrc, None);
            self.introduce(at);
        }
    }

    pub fn create(&mut self, pd: &Pd, kind: Kind, peer: Option<usize>) {
        let init = QpInit {
            max_send_wr: 4 << self.random.below(3),
            max_recv_wr: 4 << self.random.below(3),
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
            sq_sig_all: self.random.below(5) == 0,
            reserve_cq: true,
            suppress_flush: false,
        };
        let shared = kind != Kind::Xrc && self.random.below(3) == 0;
        if self.cqs.is_empty() || self.random.below(2) == 0 {
            self.cqs.push(self.device.create_cq(2048).expect("a queue"));
        }
        let cq = self.random.below(self.cqs.len() as u64) as usize;
        // The target's arrivals have room for their own.
        let cq = if self.cqs[cq].capacity() < 2048 {
            0
        } else {
            cq
        };
        let (srq, on) = (&self.srq, &mut self.cqs[cq]);
        macro_rules! qp {
            ($kind:ident) => {
                AnyQp::$kind(if shared {
                    pd.create_qp_on_srq(on, srq, &init).expect("a queue pair")
                } else {
                    pd.create_qp_of(on, &init).expect("a queue pair")
                })
            };
        }
        let qp = match kind {
            Kind::Rc => qp!(Rc),
            Kind::Uc => qp!(Uc),
            Kind::Ud => qp!(Ud),
            Kind::Xrc => AnyQp::Xrc(pd.create_qp_of(on, &init).expect("a queue pair")),
        };
        self.actors.push(Actor {
            kind,
            qp,
            cq,
            signals_all: init.sq_sig_all,
            shared,
            peer,
            sends: Sends::default(),
            receives: Receives::Own(Default::default()),
            inbox: Inbox::default(),
            failed: false,
            life: 0,
            seq: BTreeMap::new(),
            wrote: 0,
            written: 0,
            added: (0, 0, 0),
            acknowledged: BTreeMap::new(),
        });
    }

    /// Brings an actor (and its peer) from RESET to RTS.
    pub fn introduce(&mut self, at: usize) {
        let attr = self.connect;
        self.tally.lives += 1;
        match self.actors[at].peer {
            Some(peer) => {
                let ends = [(at, peer), (peer, at)];
                for (one, _) in ends {
                    self.actors[one].qp.init(&attr).expect("INIT");
                }
                for (one, other) in ends {
                    let endpoint = self.actors[other].qp.endpoint();
                    self.actors[one].qp.connect(&endpoint, &attr).expect("RTS");
                }
            }
            None if self.actors[at].kind == Kind::Xrc => {
                let (target, ..) = self.xrc.as_ref().expect("there is a target");
                let qp = &mut self.actors[at].qp;
                qp.init(&attr).expect("INIT");
                target.init(&attr).expect("INIT");
                qp.connect(&target.endpoint(), &attr).expect("RTS");
                target.connect(&qp.endpoint(), &attr).expect("RTS");
            }
            None => {
                let qp = &mut self.actors[at].qp;
                qp.init(&attr).expect("INIT");
                qp.connect(&Default::default(), &attr).expect("RTS");
            }
        }
    }
}
