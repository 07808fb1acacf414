//! Queries of a link, and its hooks: the same of a plain link and of a link in a set.

use super::counters::Counters;
use super::exchange::ExchangeError;
use super::handle::{Link, LinkState};
use super::init::{FaultReport, RecoveryReport};
use super::monitor::LinkMonitor;
use super::set::SetLink;
use super::worker::Command;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::recorder::{DumpOptions, Record};
use bellwire_core::link::RemoteMemory;
use bellwire_core::qp::QpAttr;
use bellwire_core::wr::WrOpcode;
use std::net::SocketAddr;

macro_rules! queries {
    ($link:ty) => {
        impl $link {
            /// The link's state. It changes only in polls.
            pub fn state(&self) -> LinkState {
                self.member.state()
            }

            /// Counts of faults, recoveries and outcomes. `None` while the link recovers in a thread; a
            /// [monitor](Self::monitor) has the counts then, too.
            pub fn counters(&self) -> Option<Counters> {
                self.member.here().map(|state| state.published.counters())
            }

            /// A monitor, by which any thread reads the link's counters: see [`monitor`](crate::monitor). From the
            /// first one on, requests are counted by operation.
            pub fn monitor(&mut self) -> LinkMonitor {
                self.member.monitor()
            }

            /// The number of the connection, from 1: each recovery makes a new one.
            pub fn epoch(&self) -> u64 {
                let state = self.member.here();
                state.map_or(0, |state| state.protocol.epoch())
            }

            /// The memory that the peer has opened to this end, as sent for the last connection.
            pub fn peer_memory(&self) -> Option<RemoteMemory> {
                Some(self.member.here()?.protocol.peer_info()?.conn.memory)
            }

            /// Number of the queue pair. `None` while there is none, or a thread has it. A rebuilt queue
            /// pair has another number.
            pub fn qp_num(&self) -> Option<u32> {
                self.member.qp().map(Qp::qp_num)
            }

            /// State and attributes of the queue pair, as queried from the device; `None` as for
            /// [`qp_num`](Self::qp_num).
            pub fn qp_attr(&self) -> Option<QpAttr> {
                self.member.qp().map(Qp::query)
            }

            /// Whether the last bytes of a message of this operation are placed last, see [`Qp::data_in_order`];
            /// `None` as for [`qp_num`](Self::qp_num).
            pub fn data_in_order(&self, operation: WrOpcode) -> Option<bool> {
                Some(self.member.qp()?.data_in_order(operation))
            }

            /// Number of unsignalled requests that were executed but are covered by no reported outcome,
            /// because nothing was reported after them. They count as retired.
            pub fn unreported(&self) -> u32 {
                self.member.here().map_or(0, |state| state.carried)
            }

            /// Why the peer cannot be reached any more; `None` if it can, or if it has closed its link.
            pub fn exchange_error(&self) -> Option<&ExchangeError> {
                self.member.here()?.peer.error()
            }

            /// The peer's address, as its exchange has it: over TCP, or by the communication manager once it is
            /// known. `None` within the process, and while a thread recovers the link.
            pub fn peer_addr(&self) -> Option<SocketAddr> {
                self.member.here()?.peer.addr()
            }

            /// What the queue pair of the last connection that failed had done by then; the queue pair
            /// itself has been reset or replaced since. `None` if none has failed, if
            /// [`LinkInit::dump`](super::LinkInit::dump) does not ask for it, and while a thread has it.
            pub fn failure(&self) -> Option<&Record> {
                self.member.here()?.failure.as_ref()
            }

            /// The protection domain.
            pub fn pd(&self) -> Option<&Pd> {
                self.member.here().map(|state| &state.pd)
            }

            /// Sets the function that is called at each fault when it is detected, under no lock: from a
            /// poll, or from the recovery's thread. Events that break nothing (`PORT_ACTIVE`, `COMM_EST`)
            /// are not faults, nor is a peer that closes its link in good order. Replaces the function
            /// set before; if a thread recovers the link, at the thread's next check. The hook cannot use
            /// the link.
            pub fn on_fault(&mut self, hook: impl FnMut(&FaultReport) + Send + 'static) {
                self.member.ask(Command::OnFault(Box::new(hook)));
                self.member.resume_panics();
            }

            /// Sets the function that is called when a recovery has ended, successfully or not, and when
            /// the first connection is made; otherwise like [`on_fault`](Self::on_fault). It is not
            /// called when the peer closes a link that works: polls then find the link
            /// [`Ended`](LinkState::Ended) with
            /// [`EndReason::PeerClosed`](bellwire_core::fault::plan::EndReason::PeerClosed).
            pub fn on_recovered(&mut self, hook: impl FnMut(&RecoveryReport) + Send + 'static) {
                self.member.ask(Command::OnRecovered(Box::new(hook)));
                self.member.resume_panics();
            }
        }
    };
}

queries!(Link);
queries!(SetLink<'_>);

impl Link {
    /// Number of the completion queue; `None` while there is none, or a thread has it.
    pub fn cqn(&self) -> Option<u32> {
        let cq = (self.cq.as_ref()).or_else(|| self.member.here()?.cq.as_ref());
        cq.map(Cq::cqn)
    }

    /// What the queue pair did last, as returned by [`Qp::dump`]; the link's faults are among the notes.
    /// `None` while there is no queue pair, or a thread has it.
    pub fn dump(&mut self, options: &DumpOptions) -> Option<Record> {
        self.member.dump(self.cq.as_mut(), options)
    }
}
