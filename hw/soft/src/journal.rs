//! The device's own record of what it executed and completed. Tests compare it with what the program was
//! reported. It is enabled by `HcaConfig::journal`, taken by `SoftDevice::journal`, and kept under the
//! device's lock; when it is off, nothing is recorded and it costs nothing.

use super::control::Control;
use super::datagram::{Address, MULTICAST_QPN};
use super::hca::Hca;
use super::qp::SendWork;
use super::record::QpRecord;
use super::respond::Blame;
use super::run::Stop;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::{SendWqe, fm_ce_se};
use bellwire_core::wr::{QpType, WcStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Identifies a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Number of the queue pair that posted it.
    pub qp_num: u32,
    /// LID of the port that it was sent from; another node's LID for a request from there.
    pub lid: u16,
    /// The life of the queue pair that it was posted in: 1 from its first RTS on, one more after each RESET.
    pub life: u16,
    /// Its counter in the send queue, as returned by
    /// [`SendQueue::counter`](bellwire_core::queue::SendQueue::counter) when it was posted. For a request
    /// from another node, the low 16 bits.
    pub counter: u32,
}

/// What happened to the receive of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecvReport {
    /// The request consumes no receive.
    NotTaken,
    /// The receive was consumed, and its completion was written.
    Written,
    /// The receive was consumed, and its completion was lost: the completion queue was full or broken.
    Lost,
}

/// One action of a software HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JournalEntry {
    /// A request was executed: memory was written or read, or a message was placed. Recorded once per
    /// execution, and for a multicast once per receiver. Only a READ from another node is ever executed twice
    /// (IBTA 9.4.4).
    Executed {
        /// The request.
        request: RequestId,
        /// Number of the queue pair that executed it; zero for local work (NOP, binds, local invalidation).
        responder: u32,
        /// Its [`opcode`](bellwire_core::op::opcode).
        opcode: u8,
        /// Bytes of its message or result.
        bytes: u64,
        /// What happened to its receive.
        receive: RecvReport,
    },
    /// A request consumed a receive, which failed: the message did not fit, or its memory is not writable.
    /// Nothing of the message was placed. (A SEND with invalidate has already invalidated its rkey.)
    ReceiveFailed {
        /// The request.
        request: RequestId,
        /// Number of the queue pair whose receive was consumed.
        responder: u32,
    },
    /// A request ended in a way that has to be reported: it failed, it was flushed, or it was executed and is
    /// signalled.
    Reported {
        /// The request.
        request: RequestId,
        /// Its completion status.
        status: WcStatus,
        /// Whether the completion was written. Otherwise it was lost: the completion queue was full or
        /// broken.
        written: bool,
    },
}

/// The entries that have not been taken yet.
#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<Vec<JournalEntry>>);

impl Journal {
    fn entries(&self) -> MutexGuard<'_, Vec<JournalEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all entries, oldest first.
    pub fn take(&self) -> Vec<JournalEntry> {
        std::mem::take(&mut *self.entries())
    }

    /// Records that a completion was written, or lost.
    pub fn reported(&self, request: RequestId, status: WcStatus, written: bool) {
        self.entries().push(JournalEntry::Reported {
            request,
            status,
            written,
        });
    }

    /// Records the completion of an entry that was executed, if it is signalled.
    pub fn executed_and_reported(&self, request: RequestId, wqe: &SendWqe<'_>, written: bool) {
        if wqe.fm_ce_se() & fm_ce_se::SIGNALED != 0 {
            self.reported(request, WcStatus::Success, written);
        }
    }

    /// Records how the execution of an entry of `bytes` ended.
    pub fn executed<T>(
        &self,
        request: RequestId,
        responder: u32,
        wqe: &SendWqe<'_>,
        bytes: u64,
        done: &Result<T, Stop>,
    ) {
        let receive = match done {
            Ok(_) if takes_receive(wqe) => RecvReport::Written,
            Ok(_) => RecvReport::NotTaken,
            Err(stop) => match stop.blames() {
                Some(Blame::Overrun) => RecvReport::Lost,
                Some(Blame::Receive) => {
                    let failed = JournalEntry::ReceiveFailed { request, responder };
                    return self.entries().push(failed);
                }
                Some(Blame::Access | Blame::Request) | None => return,
            },
        };
        self.entries().push(JournalEntry::Executed {
            request,
            responder: if is_local(wqe) { 0 } else { responder },
            opcode: wqe.opcode(),
            bytes,
            receive,
        });
    }
}

impl Hca {
    /// Identifies a request of this queue pair.
    pub(super) fn request(&self, record: &QpRecord, counter: u32) -> RequestId {
        RequestId {
            qp_num: record.qpn,
            lid: self.port.lid(),
            life: record.lives,
            counter,
        }
    }

    /// Records how the execution of the current entry ended, given the queue pair's work.
    pub(super) fn note_execution<T>(
        &self,
        control: &mut Control,
        work: &SendWork,
        wqe: &SendWqe<'_>,
        done: &Result<T, Stop>,
    ) {
        if let Some(journal) = &self.journal
            && let Some(record) = control.record(work.qpn)
        {
            let request = self.request(record, work.consumer);
            let responder = match work.transport {
                QpType::Ud => Address::read(work, &wqe.address_vector()).qpn,
                QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv | QpType::Dci => {
                    record.attr.dest_qp_num
                }
            };
            // Multicasts are recorded at each delivery.
            if responder == MULTICAST_QPN {
                return;
            }
            let bytes = message_bytes(work.transport, wqe);
            journal.executed(request, responder, wqe, bytes, done);
        }
    }
}

/// Whether a request consumes a receive.
pub(super) fn takes_receive(wqe: &SendWqe<'_>) -> bool {
    wqe.operation().is_some_and(WrOpcode::consumes_receive)
}

/// Whether a request is executed without a packet.
pub(super) fn is_local(wqe: &SendWqe<'_>) -> bool {
    wqe.operation().is_some_and(|it| it.row().layout.is_local())
}

/// Bytes of a request's message or result.
pub(super) fn message_bytes(transport: QpType, wqe: &SendWqe<'_>) -> u64 {
    wqe.request(transport)
        .map_or(0, |request| request.data().total())
}
