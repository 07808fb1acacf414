//! A completion queue that overruns, on devices that no fault can be injected into. It has room for what
//! the end posts in its work, and no more. To overrun it the end posts requests beyond that, and does not
//! poll for a while.

use super::line::Line;
use anyhow::{Context, Result, ensure};
use bellwire::fault::outcome::Replay;
use bellwire::wqe::RdmaWrite;
use bellwire::wr::SendFlags;
use bellwire::{Device, QpInit};
use std::time::Duration;

/// What the requests beyond are known by, when they are reported.
pub const WR_ID: u64 = u64::MAX;

/// How long nobody polls: far longer than the device takes for them.
const PAUSE: Duration = Duration::from_millis(300);

/// How long the device may take to report it.
pub const NOTICED: Duration = Duration::from_secs(10);

/// Requests beyond, and the completion queue that they are too many for.
#[derive(Clone, Copy, Debug)]
pub struct Overrun {
    pub cq_entries: u32,
    requests: u32,
}

impl Overrun {
    /// For a queue pair of this size, which gets room for the requests.
    ///
    /// # Errors
    /// When the device has no queue that long.
    pub fn new(device: &Device, qp: &mut QpInit) -> Result<Self> {
        // Sizes are rounded up to a power of two, by the library and by the device.
        let cq_entries = (qp.max_send_wr + qp.max_recv_wr).next_power_of_two();
        let requests = 2 * cq_entries + 1;
        let most = device.attr().max_qp_wr;
        ensure!(
            qp.max_send_wr + requests <= most,
            "to overrun its completion queue takes a send queue of {} requests, and {} has {most} at \
             the most: give fewer --blocks",
            qp.max_send_wr + requests,
            device.name()
        );
        qp.max_send_wr += requests;
        Ok(Self {
            cq_entries,
            requests,
        })
    }

    /// Lets it happen, on a line that works.
    ///
    /// # Errors
    /// Those of posting.
    pub fn cause(self, line: &mut Line) -> Result<()> {
        let remote = line.target().context("the other end has sent no memory")?;
        for _ in 0..self.requests {
            // Of no bytes: the other end does not notice it.
            let (write, flags) = (RdmaWrite { remote }, SendFlags::SIGNALED);
            line.link
                .post_inline(WR_ID, write, &[], flags, Replay::Surface)?;
        }
        line.link.ring();
        std::thread::sleep(PAUSE);
        Ok(())
    }
}
