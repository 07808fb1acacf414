//! Why a request was not taken: the error number of the call that refused it.
//!
//! A driver that checks the request itself does not put it into its queue. Soft-RoCE puts it there, and then calls the
//! kernel. If the kernel refuses that call, the device may still find the request, so it is not known whether the
//! request was executed: it ends as `WR_FLUSH_ERR`, whichever of the two reports it.

use super::super::tag::Kind;
use super::super::wc;
use super::Qp;
use bellwire_core::cqe::Cqe64;
use bellwire_core::wr::WcStatus;
use std::io;
use std::sync::atomic::Ordering;

impl Qp {
    /// Keeps what a call returned that did not take a request; `false`.
    #[cold]
    pub(crate) fn note_answer(&self, answer: i32) -> bool {
        // Some providers return -1, and set errno.
        let answer = match answer {
            -1 => io::Error::last_os_error().raw_os_error().unwrap_or(0),
            answer => answer.saturating_abs(),
        };
        // Relaxed: read by this thread.
        self.answer.store(answer, Ordering::Relaxed);
        false
    }

    /// Keeps why the request with this counter was not taken. `status` is for a request that is not in the device's
    /// queue.
    pub(crate) fn set_refusal(&self, counter: u32, status: WcStatus) {
        let answer = self.answer.swap(0, Ordering::Relaxed);
        // The driver's own answers: a request that it cannot read, and a queue without room.
        let is_drivers = matches!(answer, 0 | libc::EINVAL | libc::ENOMEM | libc::EOPNOTSUPP);
        let status = match self.posts_by_system_call() && !is_drivers {
            true => WcStatus::WrFlushErr,
            false => status,
        };
        let errno = u8::try_from(answer).unwrap_or(0);
        let refusal = u64::from(counter) << 32 | u64::from(status.number()) << 8 | u64::from(errno);
        // Release: pairs with the Acquire in `refusal`.
        self.refusal.store(refusal, Ordering::Release);
    }

    /// The completion of the request that was not taken, if this counter is its own.
    pub(crate) fn refusal(&self, user_index: u32, counter: u32) -> Option<Cqe64> {
        // Acquire: pairs with the Release in `set_refusal`.
        let refusal = self.refusal.load(Ordering::Acquire);
        let [.., status, errno] = refusal.to_be_bytes();
        let status = WcStatus::from_number(status).filter(|status| *status != WcStatus::Success)?;
        let is_it = (refusal >> 32) as u32 == counter;
        is_it.then(|| wc::refused(Kind::Send, user_index, counter, status, errno))
    }
}
