//! The device's own record of what it executed and told, against which tests hold what a program was
//! told. Kept under the device's lock; without it nothing is recorded, and nothing costs anything.

use super::control::Control;
use super::datagram::{Address, MULTICAST_QPN};
use super::hca::Hca;
use super::qp::SendWork;
use super::record::QpRecord;
use super::respond::Blame;
use super::run::Stop;
use bellwire_core::wqe::{SEGMENT, SendWqe, Transport, Ud, fm_ce_se, opcode};
use bellwire_core::wr::{QpType, WcStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which request is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Number of the queue pair that posted it.
    pub qp_num: u32,
    /// LID of the port that it left by: another node's where it came from there.
    pub lid: u16,
    /// Which of the queue pair's lives it was posted in: 1 from its first RTS on, one more after each
    /// RESET.
    pub life: u16,
    /// Its counter in the send queue, as [`SendQueue::counter`](bellwire_core::queue::SendQueue::counter)
    /// was when it was posted; of a request that came from another node the low 16 bits.
    pub counter: u32,
}

/// What became of the receive that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveTold {
    /// The request takes none.
    NotTaken,
    /// Consumed, and its completion was written.
    Written,
    /// Consumed, and its completion was lost: the completion queue was full or broken.
    Lost,
}

/// What a software HCA did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JournalEntry {
    /// A request was executed: memory was written or read, or a message was placed. Once for each time
    /// that it was executed: of a multicast once for each receiver. Only a READ from another node is
    /// ever executed twice (IBTA 9.4.4).
    Executed {
        /// The request.
        request: RequestId,
        /// Number of the queue pair that executed it; zero for work that goes to nobody (NOP, binds,
        /// local invalidation).
        responder: u32,
        /// Its operation, of [`opcode`].
        opcode: u8,
        /// Bytes of its message or result.
        bytes: u64,
        /// Its receive.
        receive: ReceiveTold,
    },
    /// A request consumed a receive, which failed: it did not fit, or its memory is not writable.
    /// Nothing of the message was placed. (A SEND with invalidate has taken its key away.)
    ReceiveFailed {
        /// The request.
        request: RequestId,
        /// Number of the queue pair that took the receive.
        responder: u32,
    },
    /// A request ended, and its requester was to be told: it failed, was flushed, or was executed and
    /// signalled.
    Told {
        /// The request.
        request: RequestId,
        /// How.
        status: WcStatus,
        /// Whether the completion was written. Else it was lost: the completion queue was full or
        /// broken.
        written: bool,
    },
}

/// The entries that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<Vec<JournalEntry>>);

impl Journal {
    fn entries(&self) -> MutexGuard<'_, Vec<JournalEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is there, oldest first.
    pub fn take(&self) -> Vec<JournalEntry> {
        std::mem::take(&mut *self.entries())
    }

    /// A completion was written, or lost.
    pub fn told(&self, request: RequestId, status: WcStatus, written: bool) {
        self.entries().push(JournalEntry::Told {
            request,
            status,
            written,
        });
    }

    /// An entry that asks for it was executed, and completes.
    pub fn executed_and_told(&self, request: RequestId, wqe: &SendWqe<'_>, written: bool) {
        if wqe.fm_ce_se() & fm_ce_se::SIGNALED != 0 {
            self.told(request, WcStatus::Success, written);
        }
    }

    /// Execution of an entry of `bytes` ended so.
    pub fn executed<T>(
        &self,
        request: RequestId,
        responder: u32,
        wqe: &SendWqe<'_>,
        bytes: u64,
        done: &Result<T, Stop>,
    ) {
        let receive = match done {
            Ok(_) if takes_receive(wqe) => ReceiveTold::Written,
            Ok(_) => ReceiveTold::NotTaken,
            Err(stop) => match stop.blames() {
                Some(Blame::Overrun) => ReceiveTold::Lost,
                Some(Blame::Receive) => {
                    let failed = JournalEntry::ReceiveFailed { request, responder };
                    return self.entries().push(failed);
                }
                Some(Blame::Access | Blame::Request) | None => return,
            },
        };
        let local = matches!(wqe.opcode(), opcode::NOP | opcode::UMR);
        self.entries().push(JournalEntry::Executed {
            request,
            responder: if local { 0 } else { responder },
            opcode: wqe.opcode(),
            bytes,
            receive,
        });
    }
}

impl Hca {
    /// A request of this queue pair.
    pub(super) fn request(&self, record: &QpRecord, counter: u32) -> RequestId {
        RequestId {
            qp_num: record.qpn,
            lid: self.port.lid(),
            life: record.lives,
            counter,
        }
    }

    /// Execution of the entry at hand, whose queue pair has this work, ended so.
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
                _ => record.attr.dest_qp_num,
            };
            // What goes to many is recorded where each is delivered.
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
    matches!(
        wqe.opcode(),
        opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVAL | opcode::RDMA_WRITE_IMM
    )
}

/// Bytes of a request's message or result.
pub(super) fn message_bytes(transport: QpType, wqe: &SendWqe<'_>) -> u64 {
    let first = SEGMENT
        + match transport {
            QpType::XrcSend => SEGMENT,
            QpType::Ud => Ud::SEGMENTS,
            _ => 0,
        };
    let data = match wqe.opcode() {
        opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVAL => first,
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM | opcode::RDMA_READ => first + SEGMENT,
        opcode::ATOMIC_CS | opcode::ATOMIC_FA => first + 2 * SEGMENT,
        _ => return 0,
    };
    wqe.data(data).total()
}
