//! When an armed completion queue notifies its channel.

use super::own::*;
use crate::provider::Provider;
use crate::rule::rules;
use bellwire::be::Be32;
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, WcStatus};
use bellwire::{ConnectAttr, SrqInit};
use bellwire_tests::fixture::*;
use bellwire_tests::readiness::readable;

rules! {
    "channels::arming", "When an armed completion queue notifies its completion channel.",
    needs [Rc, CompletionChannels];
    an_arming_notifies_once: "ibv_req_notify_cq(3)",
        "An armed queue raises an event for its next entry, and for no other until it is armed anew.";
    arming_twice_notifies_once: "ibv_req_notify_cq(3)",
        "Arming what is armed adds nothing: one event comes.";
    it_raises_nothing_unless_armed: "ibv_req_notify_cq(3)",
        "A queue that was never armed raises nothing.";
    what_was_there_raises_nothing: "ibv_req_notify_cq(3)",
        "Entries that were in the queue when it was armed raise nothing; the next one does.";
    what_has_no_entry_raises_nothing: "ibv_req_notify_cq(3)",
        "An unsignalled request that is executed raises nothing.";
    polling_takes_no_event_away: "ibv_get_cq_event(3)",
        "An event stays though its entry was polled before it is got.";
    solicited_only_waits_for_the_solicited: "ibv_req_notify_cq(3), solicited_only",
        "Armed for solicited ones, plain receives raise nothing, and the first solicited one does.";
    every_kind_of_message_can_solicit: "IBTA vol. 1, 9.2.3, solicited event",
        "SEND and WRITE with immediate carry the bit, each with or without data.";
    a_solicited_request_is_no_solicited_completion: "IBTA vol. 1, 11.4.2.2",
        "The flag is for the responder's queue: the requester's own completion is a plain one.";
    any_includes_the_solicited: "ibv_req_notify_cq(3)",
        "Armed for any entry, a solicited one raises the event.";
    a_failed_request_is_solicited: "ibv_req_notify_cq(3), solicited_only",
        "Armed for solicited ones, a send request that fails raises the event.";
    flushed_receives_are_solicited: "ibv_req_notify_cq(3), solicited_only",
        "Armed for solicited ones, a flush raises one event, however many it flushes.";
    arming_for_any_widens: "IBTA vol. 1, 11.4.2.2",
        "Armed for solicited ones and then for any, the next entry raises an event.";
    arming_for_solicited_does_not_narrow: "IBTA vol. 1, 11.4.2.2",
        "Armed for any and then for solicited ones, the next entry still raises an event.";
    both_queues_notify_on_their_own: "ibv_create_qp(3), send_cq and recv_cq",
        "With two completion queues the one that was not armed says nothing.";
    an_event_names_its_queue: "ibv_get_cq_event(3), cq",
        "On a channel of many queues each armed one raises one event that names it, in the order of entries.";
    a_shared_receive_queue_notifies_by_its_queue_pair [Srq]: "IBTA vol. 1, 10.2.9",
        "A receive from a shared queue raises the event of the completion queue of the queue pair that \
         took it.";
}

fn an_arming_notifies_once(p: &Provider) {
    let mut own = Own::new(p);
    for round in 0..5 {
        own.cq.req_notify(ANY).unwrap();
        own.silent();
        own.go(round * 3);
        own.notified();
        own.go(round * 3 + 1);
        own.go(round * 3 + 2);
        own.settle();
        own.silent();
        for at in 0..3 {
            own.polled(round * 3 + at);
        }
    }
}

fn arming_twice_notifies_once(p: &Provider) {
    let mut own = Own::new(p);
    own.cq.req_notify(ANY).unwrap();
    own.cq.req_notify(ANY).unwrap();
    own.go(1);
    own.notified();
    own.go(2);
    own.settle();
    own.silent();
}

fn it_raises_nothing_unless_armed(p: &Provider) {
    let mut own = Own::new(p);
    for wr_id in 0..10 {
        own.go(wr_id);
        own.polled(wr_id);
    }
    own.settle();
    own.silent();
}

fn what_was_there_raises_nothing(p: &Provider) {
    let mut own = Own::new(p);
    own.go(1);
    own.settle();
    own.cq.req_notify(ANY).unwrap();
    own.silent();
    own.go(2);
    own.notified();
    own.polled(1);
    own.polled(2);
}

fn what_has_no_entry_raises_nothing(p: &Provider) {
    let mut own = Own::new(p);
    own.cq.req_notify(ANY).unwrap();
    for wr_id in 0..5 {
        post(&mut own.qp, wr_id, NOTHING, NoPayload, PLAIN).unwrap();
    }
    own.settle();
    own.silent();
    own.go(6);
    own.notified();
}

fn polling_takes_no_event_away(p: &Provider) {
    let mut own = Own::new(p);
    own.cq.req_notify(ANY).unwrap();
    own.go(1);
    own.polled(1);
    own.notified();
    own.silent();
}

/// Sends of `a`, and receives of `b`, which complete on a channel.
struct Ends {
    a: End,
    b: Own,
}

fn ends(p: &Provider) -> Ends {
    let (sender, pd) = p.pds();
    let device = pd.device().clone();
    let mut a = End::new(&sender, p.quiet, &init());
    let channel = device.create_comp_channel().unwrap();
    let mut cq = cq_on(&channel, 1);
    let mut other = cq_for(&device, &init());
    let mut qp = pd.create_qp((&mut other, &mut cq), &init()).unwrap();
    connect_with(&mut a.qp, &mut qp, &ConnectAttr::default());
    for wr_id in 0..16 {
        post_recv(&mut qp, wr_id, &[]).unwrap();
    }
    qp.rq().ring();
    let quiet = p.quiet.0;
    let b = Own {
        channel,
        cq,
        recv_cq: other,
        qp,
        quiet,
    };
    Ends { a, b }
}

impl Ends {
    fn send(&mut self, flags: SendFlags) {
        self.message(Send {}, flags);
    }

    fn message<O: Operation>(&mut self, operation: O, flags: SendFlags)
    where
        Rc: Supports<O>,
    {
        (self.a)
            .post(7, operation, NoPayload, flags | SIGNALED)
            .unwrap();
        self.a.qp.sq().ring();
        // The receive completes before the send.
        assert_eq!(self.a.outcome(), (7, WcStatus::Success));
    }
}

fn solicited_only_waits_for_the_solicited(p: &Provider) {
    let mut ends = ends(p);
    ends.b.cq.req_notify(SOLICITED_ONLY).unwrap();
    for _ in 0..3 {
        ends.send(PLAIN);
        ends.b.silent();
    }
    ends.send(SendFlags::SOLICITED);
    ends.b.notified();
    ends.send(SendFlags::SOLICITED);
    ends.b.silent();
    for wr_id in 0..5 {
        ends.b.polled(wr_id);
    }
}

fn every_kind_of_message_can_solicit(p: &Provider) {
    let mut ends = ends(p);
    let imm = Be32::new(1);
    let RdmaWrite { remote } = NOTHING;
    for flags in [PLAIN, SendFlags::SOLICITED] {
        for message in 0..3 {
            ends.b.cq.req_notify(SOLICITED_ONLY).unwrap();
            match message {
                0 => ends.message(Send {}, flags),
                1 => ends.message(SendWithImm { imm }, flags),
                _ => ends.message(RdmaWriteWithImm { remote, imm }, flags),
            }
            if flags == PLAIN {
                ends.b.silent();
            } else {
                ends.b.notified();
            }
        }
    }
}

fn a_solicited_request_is_no_solicited_completion(p: &Provider) {
    let mut own = Own::new(p);
    own.cq.req_notify(SOLICITED_ONLY).unwrap();
    post_recv(&mut own.qp, 0, &[]).unwrap();
    own.qp.rq().ring();
    let flags = SIGNALED | SendFlags::SOLICITED;
    post(&mut own.qp, 1, Send {}, NoPayload, flags).unwrap();
    own.qp.sq().ring();
    own.polled(1);
    own.silent();
}

fn any_includes_the_solicited(p: &Provider) {
    let mut ends = ends(p);
    ends.b.cq.req_notify(ANY).unwrap();
    ends.send(SendFlags::SOLICITED);
    ends.b.notified();
}

fn a_failed_request_is_solicited(p: &Provider) {
    let mut own = Own::new(p);
    own.cq.req_notify(SOLICITED_ONLY).unwrap();
    own.go(1);
    own.settle();
    own.silent();
    let bad = RdmaWrite {
        remote: Remote { addr: 0, rkey: 1 },
    };
    post(&mut own.qp, 2, bad, Inline(&[1]), SIGNALED).unwrap();
    own.qp.sq().ring();
    own.notified();
    own.polled(1);
    let done = wait(&mut own.cq);
    assert_eq!((done.wr_id, done.status()), (2, WcStatus::RemAccessErr));
}

fn flushed_receives_are_solicited(p: &Provider) {
    let mut ends = ends(p);
    ends.b.cq.req_notify(SOLICITED_ONLY).unwrap();
    ends.b.qp.to_error().unwrap();
    ends.b.notified();
    for wr_id in 0..16 {
        let done = wait(&mut ends.b.cq);
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::WrFlushErr));
    }
    ends.b.silent();
}

fn arming_for_any_widens(p: &Provider) {
    let mut ends = ends(p);
    ends.b.cq.req_notify(SOLICITED_ONLY).unwrap();
    ends.send(PLAIN);
    ends.b.silent();
    ends.b.cq.req_notify(ANY).unwrap();
    ends.b.silent();
    ends.send(PLAIN);
    ends.b.notified();
    ends.send(SendFlags::SOLICITED);
    ends.b.silent();
}

fn arming_for_solicited_does_not_narrow(p: &Provider) {
    let mut ends = ends(p);
    ends.b.cq.req_notify(ANY).unwrap();
    ends.b.cq.req_notify(SOLICITED_ONLY).unwrap();
    ends.send(PLAIN);
    ends.b.notified();
    ends.send(SendFlags::SOLICITED);
    ends.b.silent();
}

fn both_queues_notify_on_their_own(p: &Provider) {
    let device = p.device();
    let channel = device.create_comp_channel().unwrap();
    let (mut sends, mut receives) = (cq_on(&channel, 1), cq_on(&channel, 1));
    let mut qp = (device.alloc_pd())
        .create_qp((&mut sends, &mut receives), &init())
        .unwrap();
    connected(&mut qp);
    for armed in [0, 1] {
        let cqs = [&mut sends, &mut receives];
        cqs[armed].req_notify(ANY).unwrap();
        post_recv(&mut qp, 70, &[]).unwrap();
        qp.rq().ring();
        post(&mut qp, 7, Send {}, NoPayload, SIGNALED).unwrap();
        qp.sq().ring();
        assert_eq!(channel.get_cq_event().unwrap().cqn(), cqs[armed].cqn());
        let [sends, receives] = cqs;
        assert_eq!((wait(sends).wr_id, wait(receives).wr_id), (7, 70));
        assert!(!readable(&channel, p.quiet.0));
    }
}

fn an_event_names_its_queue(p: &Provider) {
    let pd = p.device().alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut ends = [(); 4].map(|()| looped(&pd, &channel));
    for (cq, _) in &mut ends[..3] {
        cq.req_notify(ANY).unwrap();
    }
    // The last was not armed.
    for at in [3, 1, 0, 2] {
        let (cq, qp) = &mut ends[at];
        complete(qp, 1);
        assert_eq!(wait(cq).wr_id, 1);
    }
    for at in [1, 0, 2] {
        assert_eq!(channel.get_cq_event().unwrap().cqn(), ends[at].0.cqn());
    }
    assert!(!readable(&channel, p.quiet.0));
}

fn a_shared_receive_queue_notifies_by_its_queue_pair(p: &Provider) {
    let pd = p.device().alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut srq = pd.create_srq(&SrqInit::default()).unwrap();
    let init = init();
    let mut ends = [(); 2].map(|()| {
        let mut a = End::new(&pd, p.quiet, &init);
        let mut cq = cq_on(&channel, 2);
        let mut qp = pd.create_qp_on_srq::<Rc>(&mut cq, &srq, &init).unwrap();
        connect_with(&mut a.qp, &mut qp, &ConnectAttr::default());
        cq.req_notify(SOLICITED_ONLY).unwrap();
        (a, cq, qp)
    });
    for wr_id in 0..4 {
        // SAFETY: a receive without memory.
        unsafe { srq.post(wr_id, &[]) }.unwrap();
    }
    srq.ring();
    for (flags, events) in [(PLAIN, false), (SendFlags::SOLICITED, true)] {
        for (a, cq, _) in &mut ends {
            a.post(7, Send {}, NoPayload, flags | SIGNALED).unwrap();
            a.qp.sq().ring();
            assert_eq!(a.outcome(), (7, WcStatus::Success));
            if events {
                assert_eq!(channel.get_cq_event().unwrap().cqn(), cq.cqn());
            }
            assert!(!readable(&channel, p.quiet.0));
        }
    }
}
