//! Many connected queue pairs on one inline software HCA.

use bellwire::memory::{Mapping, Pages};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, ConnectAttr, Cq, Device, Pd, Qp, QpInit, Region};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Completion queues that all queue pairs share.
const CQS: usize = 4;

/// Bytes of memory for each queue pair: a line.
const LINE: usize = 64;

/// What each queue pair is made with: 4 sends of 1 block, 4 receives.
pub const SMALL: QpInit = QpInit {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 28,
    sq_sig_all: false,
    reserve_cq: true,
    suppress_flush: false,
};

/// What setting up took.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetUp {
    /// `create_qp` of all.
    pub create: Duration,
    /// RESET to RTS of all.
    pub connect: Duration,
    /// Growth of the resident set by the completion queues, in bytes.
    pub cq_bytes: u64,
    /// Growth of the resident set by the queue pairs, in bytes.
    pub qp_bytes: u64,
}

/// Queue pairs, each in RTS with a receive posted. Its peer is the one half round from it; a single
/// one is connected to itself.
pub struct Many {
    qps: Vec<Qp>,
    cqs: Vec<Cq>,
    region: Region,
    /// What setting them up took.
    pub set_up: SetUp,
}

/// Bytes of this process that are in memory now. 0 where the system does not say.
fn resident() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn receive(qp: &mut Qp, region: &Region, at: usize) {
    let sge = region.sge(at * LINE, LINE as u32);
    // SAFETY: the region outlives the queue pair's use of it.
    unsafe { qp.rq().post(0, &[sge]).expect("room") };
    qp.rq().ring();
}

fn take(cq: &mut Cq) {
    let completion = cq.poll_one().expect("executed");
    assert!(completion.result.is_ok());
    black_box(completion.wr_id);
}

impl Many {
    /// As many, on a device of their own.
    pub fn new(count: usize) -> Self {
        let pd = Device::soft(Default::default()).alloc_pd();
        let region = Self::region(&pd, count);
        let mut set_up = SetUp::default();
        let mut qps: Vec<Qp> = Vec::with_capacity(count);
        let before = resident();

        let (sends, receives) = SMALL.cq_entries();
        let each = count.div_ceil(CQS);
        let entries = each as u32 * (sends + receives);
        let cq = || pd.device().create_cq_for(entries, each).expect("fits");
        let mut cqs: Vec<Cq> = (0..CQS.min(count)).map(|_| cq()).collect();
        set_up.cq_bytes = resident().saturating_sub(before);

        let before = resident();
        let start = Instant::now();
        for at in 0..count {
            qps.push(pd.create_qp(&mut cqs[at % CQS], &SMALL).expect("fits"));
        }
        set_up.create = start.elapsed();
        let start = Instant::now();
        let connect = ConnectAttr::default();
        for qp in &mut qps {
            qp.init(&connect).expect("from RESET");
        }
        for at in 0..count {
            let peer = qps[(at + count / 2) % count].endpoint();
            qps[at].connect(&peer, &connect).expect("from INIT");
        }
        set_up.connect = start.elapsed();
        let mut many = Self {
            qps,
            cqs,
            region,
            set_up,
        };
        for at in 0..count {
            receive(&mut many.qps[at], &many.region, at);
        }
        for at in 0..count {
            // All memory that is used in operation is to be resident.
            (0..4).for_each(|_| many.write(at));
            (0..4).for_each(|_| many.send(at));
        }
        many.set_up.qp_bytes = resident().saturating_sub(before);
        many
    }

    fn region(pd: &Pd, count: usize) -> Region {
        let bytes = (count * LINE).next_multiple_of(1 << 16);
        let mapping = Mapping::anonymous(bytes).pages(Pages::Base).build();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        Region::new(pd, mapping.expect("memory"), access).expect("a key")
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.qps.len()
    }

    fn peer(&self, at: usize) -> usize {
        let peer = at + self.qps.len() / 2;
        if peer < self.qps.len() {
            peer
        } else {
            peer - self.qps.len()
        }
    }

    /// An inline WRITE of 8 bytes by queue pair `at`, and its completion.
    #[inline(always)]
    pub fn write(&mut self, at: usize) {
        let remote = self.region.remote(at * LINE);
        let data: &[u8; 8] = black_box(&[7; 8]);
        let mut sq = self.qps[at].sq();
        let _ = sq.post_inline(0, (), RdmaWrite { remote }, data, SendFlags::SIGNALED);
        sq.ring();
        take(&mut self.cqs[at % CQS]);
    }

    /// An inline SEND of 8 bytes by queue pair `at`, both completions, and the receive posted again.
    #[inline(always)]
    pub fn send(&mut self, at: usize) {
        let peer = self.peer(at);
        let data: &[u8; 8] = black_box(&[7; 8]);
        let mut sq = self.qps[at].sq();
        let _ = sq.post_inline(0, (), Send {}, data, SendFlags::SIGNALED);
        sq.ring();
        // Where both are on one completion queue, it takes both.
        take(&mut self.cqs[peer % CQS]);
        take(&mut self.cqs[at % CQS]);
        receive(&mut self.qps[peer], &self.region, peer);
    }
}
