//! Posting in batches, and polling.

use crate::{Result, ends};
use bellwire::memory::Mapping;
use bellwire::wqe::RdmaWrite;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Device, Region};

pub fn run() -> Result {
    let pd = Device::open("soft")?.alloc_pd();
    let (mut a, _b) = ends::two(&pd)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = Region::new(&pd, Mapping::anonymous(1 << 20).build()?, access)?;

    // ANCHOR: batch
    const BATCH: u64 = 16;
    for wr_id in 0..BATCH {
        // Only the last request of the batch has a completion of its own.
        let flags = match wr_id == BATCH - 1 {
            true => SendFlags::SIGNALED,
            false => SendFlags::empty(),
        };
        let remote = region.remote(wr_id as usize * 64);
        a.qp.sq()
            .post_inline(wr_id, (), RdmaWrite { remote }, &wr_id.to_le_bytes(), flags)?;
    }
    a.qp.sq().ring();
    // ANCHOR_END: batch

    // ANCHOR: poll
    let mut retired = 0;
    while retired < BATCH {
        a.cq.poll(64, |completion| {
            retired += u64::from(completion.retired);
            if let Err(failure) = completion.result {
                println!("request {}: {}", completion.wr_id, failure.status);
            }
        });
        std::hint::spin_loop();
    }
    // ANCHOR_END: poll

    let mut last = [0; 8];
    region.read((BATCH as usize - 1) * 64, &mut last);
    assert_eq!(u64::from_le_bytes(last), BATCH - 1);
    Ok(())
}
