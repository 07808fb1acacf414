//! Making objects: what is refused, and what they say of themselves.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::completes;
use bellwire::memory::Mapping;
use bellwire::queue::{AttachError, PostError};
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{AccessFlags, Cqs, Error, Mr, QpInit, Region};
use bellwire_tests::fixture::*;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

rules! {
    "objects", "Attributes that are refused when objects are made.", needs [Rc];
    a_device_reports_its_limits: "ibv_query_device(3)",
        "Every limit of the device is at least one.";
    cq_of_no_entries_is_refused: "ibv_create_cq(3)",
        "A completion queue of no entries, or of more than `max_cqe`, is refused.";
    cq_has_at_least_what_was_asked_for: "ibv_create_cq(3)",
        "A completion queue has as many entries as were asked for, or more.";
    qp_beyond_the_limits_is_refused: "ibv_create_qp(3)",
        "A queue pair of more than the device has is refused, and the attribute named.";
    qp_takes_the_requests_it_was_made_for: "ibv_create_qp(3), cap",
        "A queue pair takes at least `max_send_wr` sends and `max_recv_wr` receives.";
    a_full_queue_refuses: "ibv_post_send(3), ENOMEM",
        "A full queue refuses a request, loses nothing of the others, and takes more later.";
    qp_on_a_cq_that_is_too_small_is_refused: "bellwire, QpInit::reserve_cq",
        "A queue pair whose flush would overrun its completion queue is refused, saying how much \
         is missing.";
    qp_refused_on_one_cq_leaves_the_other: "bellwire, Cqs::Split",
        "A queue pair that one of two completion queues has no room for takes none on the other.";
    qp_on_a_cq_of_another_device_is_refused: "IBTA vol. 1, chapter 11, Create Queue Pair",
        "A completion queue of another device is refused.";
    cq_serves_no_more_qps_than_it_was_made_for: "bellwire, Device::create_cq_for",
        "A completion queue refuses more queue pairs than it was made for.";
    qps_have_numbers_of_their_own: "IBTA vol. 1, 10.3.1",
        "Queue pairs that exist at once have different numbers, of 24 bits, none of them zero.";
    mr_of_no_bytes_is_refused: "ibv_reg_mr(3)",
        "A region of no bytes, or around the end of the address space, is refused.";
    mr_remote_write_needs_local_write: "ibv_reg_mr(3)",
        "REMOTE_WRITE and REMOTE_ATOMIC without LOCAL_WRITE are refused.";
    mrs_have_keys_of_their_own: "IBTA vol. 1, 10.6",
        "Regions that exist at once have different keys, though they be of one memory.";
    an_mr_shows_what_it_was_made_of: "ibv_reg_mr(3)",
        "A region says its address, length, access and protection domain.";
    the_others_stay_when_an_mr_goes: "ibv_dereg_mr(3)",
        "Deregistering one of two regions of one memory leaves the other.";
}

fn a_device_reports_its_limits(p: &Provider) {
    let attr = p.device().attr();
    for (what, limit) in [
        ("max_qp", attr.max_qp.into()),
        ("max_qp_wr", attr.max_qp_wr.into()),
        ("max_sge", attr.max_sge.into()),
        ("max_cqe", attr.max_cqe.into()),
        ("max_mr", attr.max_mr.into()),
        ("max_mr_size", attr.max_mr_size),
        ("max_msg_sz", attr.max_msg_sz),
        ("max_qp_rd_atom", attr.max_qp_rd_atom.into()),
    ] {
        assert!(limit > 0, "{what}");
    }
}

fn cq_of_no_entries_is_refused(p: &Provider) {
    let device = p.device();
    for entries in [0, device.attr().max_cqe + 1, u32::MAX] {
        match device.create_cq(entries) {
            Err(Error::TooLarge { given, .. }) => assert_eq!(given, u64::from(entries)),
            other => panic!("{entries}: {other:?}"),
        }
    }
}

fn cq_has_at_least_what_was_asked_for(p: &Provider) {
    let device = p.device();
    for entries in [1, 2, 3, 100, 128, 1000] {
        assert!(device.create_cq(entries).unwrap().capacity() >= entries);
    }
}

fn qp_beyond_the_limits_is_refused(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let attr = device.attr();
    let mut cq = device.create_cq(1 << 12).unwrap();
    let mut refused = |name: &str, init: QpInit| match pd.create_qp(&mut cq, &init) {
        Err(Error::TooLarge { what, .. }) => assert_eq!(what, name),
        other => panic!("{name}: {other:?}"),
    };
    let init = init();
    refused(
        "max_send_wr",
        QpInit {
            max_send_wr: attr.max_qp_wr + 1,
            ..init
        },
    );
    refused(
        "max_recv_wr",
        QpInit {
            max_recv_wr: attr.max_qp_wr + 1,
            ..init
        },
    );
    refused(
        "max_recv_wr",
        QpInit {
            max_recv_wr: u32::MAX,
            ..init
        },
    );
    refused(
        "max_send_sge",
        QpInit {
            max_send_sge: attr.max_sge + 1,
            ..init
        },
    );
    refused(
        "max_recv_sge",
        QpInit {
            max_recv_sge: u32::MAX,
            ..init
        },
    );
    let max_inline_data = attr.max_inline_data + 1;
    refused(
        "max_inline_data",
        QpInit {
            max_inline_data,
            ..init
        },
    );
    assert_eq!(cq.unreserved(), cq.capacity(), "nothing half made");
}

fn qp_takes_the_requests_it_was_made_for(p: &Provider) {
    let (mut a, _b) = p.pair();
    for wr_id in 0..u64::from(init().max_send_wr) {
        a.post(wr_id, Send {}, Inline(&[1; 200]), SIGNALED).unwrap();
    }
    let sge = a.region.sge(0, 8);
    for wr_id in 0..u64::from(init().max_recv_wr) {
        post_recv(&mut a.qp, wr_id, &[sge; 4]).unwrap();
    }
}

fn a_full_queue_refuses(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let full = Err(PostError::QueueFull);
    for wr_id in 0..b.qp.rq().free() {
        post_recv(&mut b.qp, wr_id.into(), &[]).unwrap();
    }
    assert_eq!(post_recv(&mut b.qp, 0, &[]), full);
    let remote = b.region.remote(0);
    let mut posted = 0;
    while a
        .post(posted, RdmaWrite { remote }, NoPayload, SIGNALED)
        .is_ok()
    {
        posted += 1;
    }
    for _ in 0..3 {
        assert_eq!(a.post(0, RdmaWrite { remote }, NoPayload, SIGNALED), full);
    }
    a.qp.sq().ring();
    for wr_id in 0..posted {
        completes(&mut a, wr_id, WcStatus::Success);
    }
    b.qp.rq().ring();
    a.go(1, Send {}, NoPayload);
    completes(&mut a, 1, WcStatus::Success);
    completes(&mut b, 0, WcStatus::Success);
    b.receive(1000, &[]);
    assert_eq!(post_recv(&mut b.qp, 0, &[]), full);
}

fn qp_on_a_cq_that_is_too_small_is_refused(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let (send, recv) = init().cq_entries();
    let mut small = device.create_cq((send + recv) / 2).unwrap();
    let (needed, free) = (send + recv, small.capacity());
    for _ in 0..3 {
        let error = pd.create_qp(&mut small, &init()).unwrap_err();
        match &error {
            Error::Attach(attach) => {
                assert_eq!(*attach, AttachError::CqTooSmall { needed, free });
            }
            other => panic!("{other}"),
        }
        assert!(error.to_string().contains(&needed.to_string()), "{error}");
    }
}

fn qp_refused_on_one_cq_leaves_the_other(p: &Provider) {
    let device = p.device();
    let (send, recv) = init().cq_entries();
    let mut sends = device.create_cq(send).unwrap();
    let mut recvs = device.create_cq(recv / 4).unwrap();
    assert!(recvs.unreserved() < recv);
    let error = device
        .alloc_pd()
        .create_qp(Cqs::Split(&mut sends, &mut recvs), &init())
        .unwrap_err();
    assert!(matches!(error, Error::Attach(_)), "{error}");
    assert_eq!(sends.unreserved(), sends.capacity());
}

fn qp_on_a_cq_of_another_device_is_refused(p: &Provider) {
    let pd = p.device().alloc_pd();
    let mut foreign = p.device().create_cq(1024).unwrap();
    let refused = pd.create_qp(&mut foreign, &init());
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
}

fn cq_serves_no_more_qps_than_it_was_made_for(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let mut few = device.create_cq_for(1 << 12, 2).unwrap();
    let _kept = [(); 2].map(|()| pd.create_qp(&mut few, &init()).unwrap());
    match pd.create_qp(&mut few, &init()) {
        Err(Error::Attach(AttachError::TooManyQueues { slots: 2 })) => {}
        other => panic!("{other:?}"),
    }
}

fn qps_have_numbers_of_their_own(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let ends: Vec<End> = (0..50)
        .map(|_| End::new(&pd, p.quiet, &QpInit::default()))
        .collect();
    let mut numbers: Vec<u32> = ends.iter().map(|end| end.qp.qp_num()).collect();
    assert!(numbers.iter().all(|number| (1..1 << 24).contains(number)));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 50);
}

/// Memory, and where it starts.
fn memory() -> (Mapping, NonNull<u8>) {
    let mapping = Mapping::anonymous(4096).build().unwrap();
    let start = NonNull::new(mapping.as_ptr()).unwrap();
    (mapping, start)
}

fn mr_of_no_bytes_is_refused(p: &Provider) {
    let (_mapping, start) = memory();
    let pd = p.device().alloc_pd();
    for length in [0, usize::MAX] {
        // SAFETY: refused, so nothing is reached by it.
        let refused = unsafe { pd.register(start, length, ALL) };
        assert!(matches!(refused, Err(Error::BadRegion { .. })), "{length}");
    }
}

fn mr_remote_write_needs_local_write(p: &Provider) {
    let pd = p.device().alloc_pd();
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
        let refused = Region::new(&pd, memory().0, access);
        assert!(
            matches!(refused, Err(Error::AccessWithoutLocalWrite)),
            "{access:?}"
        );
        Region::new(&pd, memory().0, access | AccessFlags::LOCAL_WRITE).unwrap();
    }
}

/// Registers `memory` as often.
fn registered(p: &Provider, start: NonNull<u8>, count: usize) -> Vec<Mr> {
    let pd = p.device().alloc_pd();
    // SAFETY: the mapping outlives the regions, and nobody refers to its bytes.
    let register = |_| unsafe { pd.register(start, 4096, ALL) }.unwrap();
    (0..count).map(register).collect()
}

fn mrs_have_keys_of_their_own(p: &Provider) {
    let (_mapping, start) = memory();
    let mrs = registered(p, start, 100);
    let mut keys: Vec<u32> = mrs.iter().map(Mr::rkey).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 100);
}

fn an_mr_shows_what_it_was_made_of(p: &Provider) {
    let (_mapping, start) = memory();
    let mr = registered(p, start, 1).remove(0);
    assert_eq!(
        (mr.addr(), mr.length()),
        (start.as_ptr().addr() as u64, 4096)
    );
    assert_eq!(mr.access(), ALL);
}

fn the_others_stay_when_an_mr_goes(p: &Provider) {
    let (mut a, b) = p.pair();
    let start = NonNull::new(b.region.mapping().as_ptr()).unwrap();
    // SAFETY: the end's region outlives it, and nobody refers to its bytes.
    let second = unsafe { b.qp.pd().register(start, b.region.len(), ALL) }.unwrap();
    let (first, gone) = (b.region.remote(0), second.rkey());
    drop(second);
    a.go(1, RdmaWrite { remote: first }, Inline(&7u64.to_ne_bytes()));
    completes(&mut a, 1, WcStatus::Success);
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 7);
    let remote = bellwire::wr::Remote {
        rkey: gone,
        ..first
    };
    a.go(2, RdmaWrite { remote }, Inline(&[1; 8]));
    completes(&mut a, 2, WcStatus::RemAccessErr);
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 7);
}
