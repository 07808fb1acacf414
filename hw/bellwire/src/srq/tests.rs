//! Tests of shared receive queues, in which the test acts as the queue pairs.

use super::*;
use crate::cq::Cq;
use crate::memory::Mapping;
use crate::soft::{HcaConfig, XrcSrq};
use crate::{AccessFlags, ClassLayout, Device, Region, Slab};
use bellwire_core::cqe::{CompletedWqe, Cqe64, CqeOpcode};

fn pd() -> Pd {
    Device::soft(HcaConfig::default()).alloc_pd()
}

/// A slab of eight blocks of 64 bytes.
fn slab(pd: &Pd) -> Slab {
    let layout = [ClassLayout { size: 64, count: 8 }];
    let bytes = Slab::bytes(&layout).expect("a layout");
    let mapping = Mapping::anonymous(bytes).build().expect("memory");
    let region = Region::new(pd, mapping, AccessFlags::LOCAL_WRITE).expect("a region");
    Slab::new(region, &layout).expect("a slab")
}

/// A queue with room for 7 receives, with `count` blocks posted.
fn posted(pd: &Pd, slab: &Slab, count: u64) -> Srq {
    let init = SrqInit {
        max_wr: 7,
        ..SrqInit::default()
    };
    let mut srq = pd.create_srq(&init).expect("a queue");
    post(&mut srq, slab, count);
    srq
}

fn post(srq: &mut Srq, slab: &Slab, count: u64) {
    for wr_id in 0..count {
        let block = slab.take(64).expect("a block");
        srq.post_block(wr_id, block).expect("room");
    }
    srq.ring();
}

fn pop(shared: &SrqShared) -> Option<u16> {
    // SAFETY: the context exists as long as `shared`.
    unsafe { shared.ctx() }
        .unwrap()
        .pop()
        .map(|popped| popped.index)
}

#[test]
fn it_is_not_destroyed_while_it_is_used() {
    let pd = pd();
    let slab = slab(&pd);
    let srq = posted(&pd, &slab, 2);
    let user = srq.shared.clone();
    let refused = srq.destroy(|wr_id, _| panic!("{wr_id}"));
    let (srq, error) = refused.expect_err("it is used");
    assert!(matches!(error, Error::Busy { users: 1, .. }), "{error}");
    assert!(error.to_string().contains("destroy those first"), "{error}");
    assert_eq!(pop(&user), Some(0), "as it was");
    drop(user);
    let mut reported = Vec::new();
    let destroyed = srq.destroy(|wr_id, block| reported.push((wr_id, block.is_some())));
    assert!(destroyed.is_ok());
    assert_eq!(
        reported,
        [(0, true), (1, true)],
        "taken by the device or not"
    );
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn dropped_while_used_it_goes_on() {
    let pd = pd();
    let slab = slab(&pd);
    let mut srq = posted(&pd, &slab, 2);
    let block = slab.take(64).expect("a block");
    srq.post_block(2, block).expect("room");
    let user = srq.shared.clone();
    let memory = user.memory.clone();
    drop(srq);
    // Receives that were not rung are posted as well.
    assert_eq!([pop(&user), pop(&user)], [Some(0), Some(1)]);
    assert_eq!(slab.outstanding(), 3);
    drop(user);
    assert_eq!(slab.outstanding(), 2, "the third was not taken");
    // Receives that were taken are reported by completion queues, which keep the memory.
    // SAFETY: `memory` is alive, and nothing writes to the blocks.
    let returned = unsafe { memory.ledger().take_back(1) };
    assert_eq!(
        returned.map(|(wr_id, block)| (wr_id, block.is_some())),
        Some((1, true))
    );
    assert_eq!(slab.outstanding(), 1);
    drop(memory);
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn a_limit_that_is_reached_is_zero() {
    let pd = pd();
    let slab = slab(&pd);
    let mut srq = posted(&pd, &slab, 4);
    srq.modify(3).expect("below 7");
    // SAFETY: the context exists as long as `srq`.
    let ctx = unsafe { srq.shared.ctx() }.unwrap();
    let reached = [(); 3].map(|()| ctx.pop().expect("posted").limit_reached);
    assert_eq!(reached, [false, true, false]);
    assert_eq!(srq.query().srq_limit, 0);
}

/// An XRC queue whose receives complete on `cq`, and its XRC attributes in the device.
fn xrc(pd: &Pd, cq: &mut Cq) -> (Srq, XrcSrq) {
    let xrcd = pd.device().open_xrcd().unwrap();
    let init = SrqInit {
        max_wr: 7,
        ..SrqInit::default()
    };
    let srq = pd.create_xrc_srq(&xrcd, cq, &init).expect("a queue");
    // SAFETY: the context exists as long as `srq`.
    let xrc = unsafe { srq.shared.ctx() }.unwrap().xrc.expect("for XRC");
    assert_eq!(xrc.xrcd, xrcd.soft().unwrap().id());
    (srq, xrc)
}

/// Acts as a responder: takes a receive, and completes it for the target `qpn`.
fn complete(srq: &Srq, xrc: &XrcSrq, qpn: u32) {
    let completed = CompletedWqe {
        qpn,
        user_index: xrc.user_index,
        wqe_counter: pop(&srq.shared).expect("posted"),
    };
    let entry = Cqe64::responder(CqeOpcode::RespSend, completed, 0);
    assert!(xrc.cq.produce(&entry));
}

#[test]
fn xrc_receives_complete_at_the_queues_own_cq() {
    let pd = pd();
    let slab = slab(&pd);
    let mut cq = pd.device().create_cq(8).expect("a completion queue");
    assert_eq!(cq.unreserved(), 16);
    let (mut srq, xrc) = xrc(&pd, &mut cq);
    assert_eq!(cq.unreserved(), 8);
    post(&mut srq, &slab, 3);
    complete(&srq, &xrc, 0xabc);
    complete(&srq, &xrc, 0xdef);
    let completion = cq.poll_one().expect("the first");
    assert_eq!((completion.qp_num, completion.wr_id), (0xabc, 0));
    assert!(completion.result.is_ok() && completion.block.is_some());
    drop(completion);
    // The second receive is reported although the queue is destroyed; the third never completed.
    drop(srq);
    assert_eq!(slab.outstanding(), 1);
    assert_eq!(cq.unreserved(), 8);
    let completion = cq.poll_one().expect("the second");
    assert_eq!((completion.qp_num, completion.wr_id), (0xdef, 1));
    drop(completion);
    assert_eq!(slab.outstanding(), 0);
    assert!(cq.poll_one().is_none() && cq.stale() == 0);
    // Its room is available to the next queue.
    let _next = [self::xrc(&pd, &mut cq), self::xrc(&pd, &mut cq)];
    assert_eq!(cq.unreserved(), 0);
}

#[test]
fn what_destroying_reports_no_poll_reports_again() {
    let pd = pd();
    let slab = slab(&pd);
    let mut cq = pd.device().create_cq(16).expect("a completion queue");
    let (mut srq, xrc) = xrc(&pd, &mut cq);
    post(&mut srq, &slab, 2);
    complete(&srq, &xrc, 1);
    let mut reported = Vec::new();
    let destroyed = srq.destroy(|wr_id, _| reported.push(wr_id));
    assert!(destroyed.is_ok());
    assert_eq!(reported, [0, 1]);
    assert!(cq.poll_one().is_none());
    assert_eq!((cq.stale(), slab.outstanding()), (1, 0));
}

#[test]
fn xrc_wants_its_objects_of_one_device() {
    let (pd, other) = (pd(), pd());
    let mut cq = pd.device().create_cq(16).expect("a completion queue");
    let mut foreign = other.device().create_cq(16).expect("a completion queue");
    let (xrcd, foreign_xrcd) = (
        pd.device().open_xrcd().unwrap(),
        other.device().open_xrcd().unwrap(),
    );
    let init = SrqInit {
        max_wr: 7,
        ..SrqInit::default()
    };
    let made = pd.create_xrc_srq(&foreign_xrcd, &mut cq, &init);
    let what = "XRC domain";
    assert!(matches!(made, Err(Error::Foreign { what: named }) if named == what));
    let made = pd.create_xrc_srq(&xrcd, &mut foreign, &init);
    let what = "completion queue";
    assert!(matches!(made, Err(Error::Foreign { what: named }) if named == what));
    let large = SrqInit { max_wr: 32, ..init };
    let made = pd.create_xrc_srq(&xrcd, &mut cq, &large);
    assert!(matches!(made, Err(Error::Attach(_))));
    assert_eq!((cq.unreserved(), foreign.unreserved()), (32, 32));
}
