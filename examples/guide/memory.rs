//! Memory and keys: a region that the peer writes to, a slab of blocks, a window that is taken back.

use crate::{Result, ends};
use bellwire::memory::Mapping;
use bellwire::wqe::{BindMwInfo, RdmaWrite, Send};
use bellwire::wr::{MwType, Remote, SendFlags, WcStatus};
use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};

pub fn run() -> Result {
    let pd = Device::open("soft")?.alloc_pd();
    let (mut a, mut b) = ends::two(&pd)?;

    // ANCHOR: region
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::MW_BIND;
    let region = Region::new(&pd, Mapping::anonymous(1 << 20).build()?, access)?;
    // An address and a key: all that the peer needs to write there.
    let remote = region.remote(4096);
    a.qp.sq()
        .post_inline(1, (), RdmaWrite { remote }, b"record", SendFlags::SIGNALED)?;
    a.qp.sq().ring();
    // ANCHOR_END: region
    a.cq.poll_one().expect("executed").result?;

    // ANCHOR: slab
    let layout = [
        ClassLayout {
            size: 512,
            count: 64,
        },
        ClassLayout {
            size: 8192,
            count: 16,
        },
    ];
    let mapping = Mapping::anonymous(Slab::bytes(&layout)?).build()?;
    let slab = Slab::new(
        Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE)?,
        &layout,
    )?;

    b.qp.rq().post_block(2, slab.take(512)?)?;
    b.qp.rq().ring();
    let mut block = slab.take(512)?;
    block.as_mut_slice()[..7].copy_from_slice(b"message");
    a.qp.sq()
        .post_block(3, (), Send {}, block, 7, SendFlags::SIGNALED)?;
    a.qp.sq().ring();

    let received = b.cq.poll_one().expect("received");
    let block = received.block.expect("posted with one");
    let length = received.result?.byte_len().unwrap_or(0) as usize;
    assert_eq!(&block.as_slice()[..length], b"message");
    // ANCHOR_END: slab
    drop((block, a.cq.poll_one()));
    assert_eq!(slab.outstanding(), 0);

    // ANCHOR: window
    let part = region.sge(8192, 4096);
    let mut window = pd.alloc_mw(MwType::Type2)?;
    let bind = window.bind_wr(&BindMwInfo {
        lkey: part.lkey,
        addr: part.addr,
        length: part.length,
        access: AccessFlags::REMOTE_WRITE.bits(),
    });
    b.qp.sq().post_empty(4, (), bind, SendFlags::SIGNALED)?;
    b.qp.sq().ring();
    b.cq.poll_one().expect("bound").result?;

    let remote = Remote {
        addr: part.addr,
        rkey: window.rkey(),
    };
    drop(window);
    // The key is revoked: nothing is written any more.
    a.qp.sq()
        .post_inline(5, (), RdmaWrite { remote }, b"late", SendFlags::SIGNALED)?;
    a.qp.sq().ring();
    let refused = a.cq.poll_one().expect("refused").result.unwrap_err();
    assert_eq!(refused.status, WcStatus::RemAccessErr);
    // ANCHOR_END: window
    Ok(())
}
