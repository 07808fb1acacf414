//! What goes wrong, at random.

use super::world::World;
use bellwire::event::{Element, ElementKind, EventType};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wr::WcStatus;
use std::time::Duration;

/// Statuses that a device may report for a request that it executed: of the others it would lie.
pub const AFTER: [WcStatus; 9] = [
    WcStatus::RetryExcErr,
    WcStatus::RespTimeoutErr,
    WcStatus::LocAccessErr,
    WcStatus::BadRespErr,
    WcStatus::WrFlushErr,
    WcStatus::FatalErr,
    WcStatus::GeneralErr,
    WcStatus::RemAbortErr,
    WcStatus::RemOpErr,
];

/// Whether completions that were written may never be reported.
fn loses_completions(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::SendCqOverrun
            | Fault::RecvCqOverrun
            | Fault::CqOverrun(_)
            | Fault::DeviceFatal
            | Fault::Raise(EventType::CqErr, _)
    )
}

impl World {
    /// Orders a fault: for now, or for some later point.
    pub fn order_fault(&mut self, now: bool) {
        let script = match self.random.below(100) {
            0..60 if !now => self.fault_of_request(),
            _ => self.fault_of_device(now),
        };
        if let Some(script) = script {
            self.say(|| format!("ordered: {:?}", script.steps()));
            self.tally.faults_ordered += script.steps().len() as u64;
            let ordered = self.inject(&script);
            // A real device cannot be made to have every fault.
            assert!(ordered.is_ok() || self.hca.is_real(), "{ordered:?}");
        }
        if now {
            self.advance(Duration::from_nanos(1));
        }
    }

    pub fn inject(&mut self, script: &Script) -> std::io::Result<()> {
        for &(_, fault) in script.steps() {
            self.completions_lost |= loses_completions(fault);
        }
        let links = self.ends.each_ref().map(|end| &end.link);
        let ours = links.into_iter().map(|link| (link.cqn(), link.qp_num()));
        let cq_of = |cqn| ours.clone().find(|&(of, _)| of == Some(cqn))?.1;
        self.hca.inject(script, cq_of)
    }

    fn qp_num(&mut self) -> Option<u32> {
        let end = self.random.below(2) as usize;
        self.ends[end].link.qp_num()
    }

    /// At some request.
    fn at_entry(&mut self) -> Trigger {
        let nth = 1 + self.random.below(16);
        match (self.random.below(2), self.qp_num()) {
            (1, Some(qp_num)) => Trigger::EntryOf { qp_num, nth },
            _ => Trigger::Entry(nth),
        }
    }

    /// At some request, or when one is tried again.
    fn at_request(&mut self) -> Trigger {
        let nth = 1 + self.random.below(16);
        match (self.random.below(4), self.qp_num()) {
            (0, _) => Trigger::Packet(nth),
            (1, Some(qp_num)) => Trigger::PacketOf { qp_num, nth },
            _ => self.at_entry(),
        }
    }

    fn fault_of_request(&mut self) -> Option<Script> {
        let mut trigger = self.at_request();
        let fault = match self.random.below(20) {
            0..2 => Fault::DropRequest,
            2..5 => Fault::DropAck,
            5 => Fault::Delay(Duration::from_micros(self.random.below(5000))),
            6..8 => Fault::RemoteAccess,
            8..10 => Fault::Rnr,
            10..13 => {
                let statuses = &WcStatus::ALL[1..];
                Fault::Status(statuses[self.random.below(statuses.len() as u64) as usize])
            }
            13..16 => Fault::StatusAfter(AFTER[self.random.below(AFTER.len() as u64) as usize]),
            16..18 => Fault::SendCqOverrun,
            _ => Fault::RecvCqOverrun,
        };
        // One that is tried again may have been executed: a device that says that it never left lies.
        if matches!(fault, Fault::Status(status) if !AFTER.contains(&status)) {
            trigger = self.at_entry();
        }
        let script = Script::default().with(trigger, fault);
        // Until the requester gives up.
        let again = match (fault, trigger) {
            (
                Fault::DropAck | Fault::DropRequest | Fault::Rnr,
                Trigger::PacketOf { qp_num, nth },
            ) => (1..4)
                .map(|more| {
                    (
                        Trigger::PacketOf {
                            qp_num,
                            nth: nth + more,
                        },
                        fault,
                    )
                })
                .collect(),
            _ => Vec::new(),
        };
        Some(again.into_iter().fold(script, |script, (trigger, fault)| {
            script.with(trigger, fault)
        }))
    }

    fn fault_of_device(&mut self, now: bool) -> Option<Script> {
        let later = Duration::from_micros(self.random.below(10_000));
        let trigger = match self.random.below(4) {
            _ if now => Trigger::After(Duration::ZERO),
            0 => self.at_request(),
            1 | 2 => Trigger::Modify(1 + self.random.below(12)),
            _ => Trigger::After(later),
        };
        let end = self.random.below(2) as usize;
        let link = &self.ends[end].link;
        let (qp, cq) = (link.qp_num(), link.cqn());
        let script = Script::default();
        Some(match self.random.below(100) {
            0..30 => script.with(trigger, Fault::QpFatal(qp?)),
            30..55 => script.with(trigger, Fault::CqOverrun(cq?)),
            55..65 => {
                let up = Trigger::After(later + Duration::from_millis(5));
                script
                    .with(trigger, Fault::PortDown)
                    .with(up, Fault::PortUp)
            }
            65..99 => {
                let event = EventType::ALL[self.random.below(EventType::ALL.len() as u64) as usize];
                let element = match event.element_kind() {
                    ElementKind::Cq => Element::Cq(cq?),
                    ElementKind::Qp => Element::Qp(qp?),
                    ElementKind::Port => Element::Port(1),
                    // That ends everything: seldom.
                    ElementKind::Device if self.random.below(4) != 0 => return None,
                    ElementKind::Device => Element::Device,
                    _ => return None,
                };
                script.with(trigger, Fault::Raise(event, element))
            }
            _ => script.with(trigger, Fault::DeviceFatal),
        })
    }
}
