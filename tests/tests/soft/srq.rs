//! Shared receive queues by themselves: what can be posted, asked, changed, and how they end.

use bellwire::queue::{BadRequest, PostError};
use bellwire::soft::Mode;
use bellwire::wr::Sge;
use bellwire::{ClassLayout, Error, Pd, Slab, Srq, SrqAttr, SrqInit};
use bellwire_tests::fixture::{self, device, region};

fn pd() -> Pd {
    device(Mode::Inline).alloc_pd()
}

fn create(pd: &Pd, max_wr: u32, max_sge: u32) -> Srq {
    let init = SrqInit {
        max_wr,
        max_sge,
        srq_limit: 0,
    };
    pd.create_srq(&init).expect("a queue")
}

#[test]
fn it_has_at_least_what_was_asked_for() {
    let pd = pd();
    let attr = pd.device().attr();
    for max_wr in [1, 2, 3, 7, 8, 100, attr.max_srq_wr] {
        for max_sge in [0, 1, 2, 3, 4, attr.max_srq_sge] {
            let mut srq = create(&pd, max_wr, max_sge);
            let has = srq.query();
            assert!(has.max_wr >= max_wr && has.max_wr <= attr.max_srq_wr);
            assert!(has.max_sge >= max_sge.max(1) && has.max_sge <= attr.max_srq_sge);
            assert_eq!(has.srq_limit, 0);
            assert_eq!(srq.free(), has.max_wr);
            // All of them, and not one more.
            let sges = vec![Sge::default(); max_sge as usize];
            let all = (0..=u64::from(has.max_wr)).map(|wr_id| (wr_id, &sges[..]));
            // SAFETY: no queue pair receives from it.
            let posted = unsafe { srq.post_list(all) };
            let bad = BadRequest {
                index: has.max_wr as usize,
                error: PostError::QueueFull,
            };
            assert_eq!(posted, Err(bad));
            assert_eq!(srq.free(), 0);
            let mut reported = 0;
            assert!(srq.destroy(|_, _| reported += 1).is_ok());
            assert_eq!(reported, has.max_wr);
        }
    }
}

#[test]
fn what_the_device_does_not_have_is_refused() {
    let pd = pd();
    let attr = pd.device().attr();
    let refused = |max_wr, max_sge, srq_limit| {
        let init = SrqInit {
            max_wr,
            max_sge,
            srq_limit,
        };
        match pd.create_srq(&init) {
            Err(Error::TooLarge { what, given, max }) => (what, given, max),
            other => panic!("{other:?}"),
        }
    };
    let max_wr = u64::from(attr.max_srq_wr);
    assert_eq!(refused(0, 1, 0), ("max_wr", 0, max_wr));
    let above = attr.max_srq_wr + 1;
    assert_eq!(refused(above, 1, 0), ("max_wr", max_wr + 1, max_wr));
    let all = u64::from(u32::MAX);
    assert_eq!(refused(u32::MAX, 1, 0), ("max_wr", all, max_wr));
    let max_sge = u64::from(attr.max_srq_sge);
    let above = attr.max_srq_sge + 1;
    assert_eq!(refused(1, above, 0), ("max_sge", max_sge + 1, max_sge));
    assert_eq!(refused(7, 1, 8), ("srq_limit", 8, 7));
    assert_eq!(refused(7, 1, 1 << 16), ("srq_limit", 1 << 16, 7));
}

#[test]
fn the_limit_is_set_and_asked() {
    let pd = pd();
    let init = SrqInit {
        max_wr: 7,
        max_sge: 3,
        srq_limit: 2,
    };
    let mut srq = pd.create_srq(&init).expect("a queue");
    let mut attr = SrqAttr {
        max_wr: 7,
        max_sge: 3,
        srq_limit: 2,
    };
    assert_eq!(srq.query(), attr);
    for limit in [7, 0, 5] {
        srq.modify(limit).expect("as many as there are");
        attr.srq_limit = limit;
        assert_eq!(srq.query(), attr);
    }
    for limit in [8, 1 << 15, 1 << 16, u32::MAX] {
        let error = srq.modify(limit).expect_err("more than there are");
        assert!(matches!(
            error,
            Error::TooLarge { what: "srq_limit", given, max: 7 } if given == u64::from(limit)
        ));
        assert_eq!(srq.query(), attr, "as it was");
    }
}

#[test]
fn a_bad_request_leaves_those_before_it_posted() {
    let pd = pd();
    let region = region(&pd, 4096);
    let mut srq = create(&pd, 7, 2);
    let good = [region.sge(0, 64)];
    let long = [Sge {
        length: 1 << 31,
        ..good[0]
    }];
    let many = [good[0]; 4];
    for (bad, error) in [
        (&long[..], PostError::SgeTooLong { length: 1 << 31 }),
        (&many[..], PostError::TooManySges { given: 4, max: 3 }),
    ] {
        let before = srq.free();
        let mut list = [(1, &good[..]), (2, &good[..]), (3, bad), (4, &good[..])].into_iter();
        // SAFETY: the region outlives the queue.
        let posted = unsafe { srq.post_list(&mut list) };
        assert_eq!(posted, Err(BadRequest { index: 2, error }));
        assert_eq!(list.next(), Some((4, &good[..])));
        assert_eq!(srq.free(), before - 2);
        let text = BadRequest { index: 2, error }.to_string();
        assert!(text.starts_with("request 2 of the list: "), "{text}");
        // The queue goes on behind it.
        srq.ring();
    }
    let mut reported = Vec::new();
    assert!(srq.destroy(|wr_id, _| reported.push(wr_id)).is_ok());
    reported.sort_unstable();
    assert_eq!(reported, [1, 1, 2, 2]);
}

/// A slab of four blocks.
fn slab(pd: &Pd) -> Slab {
    let layout = [ClassLayout { size: 64, count: 4 }];
    fixture::slab(pd, &layout)
}

#[test]
fn destroying_reports_every_request_and_gives_its_block_back() {
    let pd = pd();
    let slab = slab(&pd);
    let mut srq = create(&pd, 3, 1);
    for wr_id in 10..13 {
        let block = slab.take(64).expect("a block");
        srq.post_block(wr_id, block).expect("room");
        if wr_id == 11 {
            srq.ring();
        }
    }
    let block = slab.take(64).expect("a block");
    let rejected = srq.post_block(13, block).expect_err("full");
    assert_eq!(rejected.error, PostError::QueueFull);
    drop(rejected.block);
    assert_eq!(slab.outstanding(), 3);
    let mut reported = Vec::new();
    let destroyed = srq.destroy(|wr_id, block| {
        reported.push(wr_id);
        assert_eq!(block.expect("posted with one").capacity(), 64);
    });
    assert!(destroyed.is_ok());
    reported.sort_unstable();
    assert_eq!(reported, [10, 11, 12]);
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn dropping_gives_blocks_back() {
    let pd = pd();
    let slab = slab(&pd);
    let mut srq = create(&pd, 3, 1);
    for wr_id in 0..3 {
        let block = slab.take(64).expect("a block");
        srq.post_block(wr_id, block).expect("room");
    }
    assert_eq!(slab.outstanding(), 3);
    drop(srq);
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn numbers_run_out_and_come_back() {
    let pd = pd();
    let max = pd.device().attr().max_srq;
    let mut srqs: Vec<Srq> = (0..max).map(|_| create(&pd, 1, 1)).collect();
    let refused = pd.create_srq(&SrqInit::default());
    assert!(
        matches!(refused, Err(Error::Exhausted { what: "shared receive queues", max: all }) if all == max as usize)
    );
    let mut numbers: Vec<u32> = srqs.iter().map(Srq::srq_num).collect();
    srqs.pop();
    let again = create(&pd, 1, 1).srq_num();
    assert!(!numbers.contains(&again), "a number of one that is gone");
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), max as usize);
}
