//! What posting and polling cost from Rust: what `cost.c` does through the C interface. `cargo xtask
//! c-cost` compares them.

use bellwire::queue::{Completion, SendRequest};
use bellwire::soft::HcaConfig;
use bellwire::wqe::{Inline, Rc, RdmaWrite};
use bellwire::wr::{Remote, SendFlags, Sge};
use bellwire::{Cq, Device, Qp};
use bellwire_benches::looped;
use std::{error::Error, hint::black_box, time::Instant};

const BATCH: u64 = 64;
const BATCHES: u32 = 20000;
const BYTES: u32 = 8;
const SIGNALED: SendFlags = SendFlags::SIGNALED;

static DATA: [u8; BYTES as usize] = [0; BYTES as usize];

/// What a `bw_rdma_wr` has.
struct Wr {
    wr_id: u64,
    from: Sge,
    data: &'static [u8],
    remote: Remote,
    flags: SendFlags,
}

impl Wr {
    #[inline(always)]
    fn request<P>(&self, payload: P) -> Option<SendRequest<'_, Rc, RdmaWrite, P>> {
        Some(SendRequest {
            wr_id: self.wr_id,
            address: (),
            operation: RdmaWrite {
                remote: self.remote,
            },
            payload,
            flags: self.flags,
        })
    }
}

struct End {
    qp: Qp,
    cq: Cq,
    to: Remote,
    list: Vec<Wr>,
    completions: [Option<Completion<'static>>; BATCH as usize],
}

impl End {
    fn post_one_by_one(&mut self) {
        let mut sq = self.qp.sq();
        for wr_id in 0..BATCH {
            let write = RdmaWrite {
                remote: black_box(self.to),
            };
            let posted = sq.post_inline(wr_id, (), write, black_box(&DATA), SIGNALED);
            posted.expect("there is room");
        }
    }

    fn poll_one_by_one(&mut self) {
        for wr_id in 0..BATCH {
            let completion = self.cq.poll_one().expect("it is executed");
            assert!(completion.result.is_ok() && completion.wr_id == wr_id);
        }
    }

    /// All are kept, as the C call does.
    fn poll_all(&mut self) {
        let mut count = 0;
        self.cq.poll(BATCH as usize, |completion| {
            self.completions[count] = Some(completion);
            count += 1;
        });
        for (wr_id, completion) in self.completions.iter().enumerate() {
            let completion = completion.as_ref().expect("it is executed");
            assert!(completion.result.is_ok() && completion.wr_id == wr_id as u64);
        }
        assert_eq!(count as u64, BATCH);
    }

    fn ring(&mut self) {
        self.qp.sq().ring();
    }

    fn nothing(&mut self) {}

    fn post_list(&mut self) {
        let mut sq = self.qp.sq();
        // SAFETY: memory of a region that is there until the completion is.
        let posted = unsafe { sq.post_list(&self.list, |wr| wr.request(wr.from)) };
        assert_eq!(posted, Ok(self.list.len()));
        sq.ring();
    }

    fn post_inline_list(&mut self) {
        let mut sq = self.qp.sq();
        // SAFETY: inline.
        let posted = unsafe { sq.post_list(&self.list, |wr| wr.request(Inline(wr.data))) };
        assert_eq!(posted, Ok(self.list.len()));
        sq.ring();
    }
}

type Part = fn(&mut End);

/// What is measured, and what has to be done before and after it.
const CALLS: [(&str, [Part; 5]); 5] = [
    (
        "post",
        [
            End::nothing,
            End::nothing,
            End::post_one_by_one,
            End::ring,
            End::poll_all,
        ],
    ),
    (
        "poll",
        [
            End::post_one_by_one,
            End::ring,
            End::poll_one_by_one,
            End::nothing,
            End::nothing,
        ],
    ),
    (
        "poll-list",
        [
            End::post_one_by_one,
            End::ring,
            End::poll_all,
            End::nothing,
            End::nothing,
        ],
    ),
    (
        "post-list",
        [
            End::nothing,
            End::nothing,
            End::post_list,
            End::nothing,
            End::poll_all,
        ],
    ),
    (
        "post-inline-list",
        [
            End::nothing,
            End::nothing,
            End::post_inline_list,
            End::nothing,
            End::poll_all,
        ],
    ),
];

/// The least nanoseconds of a batch.
fn measure(end: &mut End, parts: &[Part; 5], batches: u32) -> u128 {
    let [before, between, measured, after, last] = parts;
    let mut least = u128::MAX;
    for _ in 0..batches {
        before(end);
        between(end);
        let begun = Instant::now();
        measured(end);
        let took = begun.elapsed().as_nanos();
        after(end);
        last(end);
        least = least.min(took);
    }
    least
}

fn main() -> Result<(), Box<dyn Error>> {
    let bellwire_benches::End { qp, cq, region } = looped(&Device::soft(HcaConfig::default()));
    let mut end = End {
        qp,
        cq,
        to: region.remote(0),
        list: (0..BATCH)
            .map(|wr_id| Wr {
                wr_id,
                from: region.sge(0, BYTES),
                data: &DATA,
                remote: region.remote(0),
                flags: SIGNALED,
            })
            .collect(),
        completions: [const { None }; BATCH as usize],
    };
    let args: Vec<String> = std::env::args().skip(1).collect();
    for (name, parts) in &CALLS {
        match &args[..] {
            [] => {
                let least = measure(&mut end, parts, BATCHES);
                println!("{name} {:.2}", least as f64 / BATCH as f64);
            }
            [call, batches] if call == name => {
                measure(&mut end, parts, batches.parse()?);
            }
            _ => (),
        }
    }
    Ok(())
}
