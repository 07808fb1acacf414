//! Shared receive queues: who takes what, limits, and the end.

use crate::provider::Provider;
use crate::rule::rules;
use bellwire::event::{Element, EventType};
use bellwire::queue::PostError;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{Sge, WcStatus};
use bellwire::{ConnectAttr, Cq, Device, Error, Qp, QpInit, Region, Srq, SrqInit};
use bellwire_tests::fixture::*;
use std::collections::HashSet;

rules! {
    "srq", "Shared receive queues.", needs [Rc, Srq];
    receives_are_taken_in_order: "IBTA vol. 1, 10.2.9.1",
        "Whoever receives takes the oldest; the completion is the receiver's.";
    a_message_lands_where_its_receive_says: "ibv_post_srq_recv(3)",
        "Data goes to the elements of the receive that was taken, inline or not.";
    the_queue_pairs_own_queue_refuses: "ibv_post_recv(3)",
        "A queue pair with a shared receive queue takes no receives of its own.";
    without_a_receive_the_sender_waits: "IBTA vol. 1, 9.7.5.2.8",
        "RNR, until one is posted; whichever queue pair asks first takes it.";
    room_comes_back: "ibv_post_srq_recv(3)",
        "A receive that was reported makes room for another, in any order of completion.";
    a_full_queue_refuses: "ibv_create_srq(3), max_wr",
        "It takes at least as many as asked for, then refuses, and loses nothing.";
    a_list_stops_at_the_first_bad: "ibv_post_srq_recv(3), bad_recv_wr",
        "Those before it are posted, it is named, those behind are untouched.";
    a_bad_receive_breaks_its_taker_alone: "IBTA vol. 1, 10.2.9.4",
        "The queue pair that took it goes to ERR; the others go on with the rest.";
    receives_outlive_a_queue_pair: "IBTA vol. 1, 10.2.9.4",
        "ERR and destruction of a queue pair take none of the shared receives with them.";
    many_queue_pairs_at_once: "IBTA vol. 1, 10.2.9",
        "Threads send through many queue pairs: every receive is reported once.";
    query_returns_what_it_is: "ibv_query_srq(3)",
        "At least what was asked for, and the limit as it stands.";
    the_limit_raises_one_event [AsyncEvents]: "ibv_modify_srq(3), IBV_SRQ_LIMIT",
        "Taking a receive that leaves fewer than the limit raises SRQ_LIMIT_REACHED, once.";
    the_limit_is_set_again [AsyncEvents]: "ibv_modify_srq(3), IBV_SRQ_LIMIT",
        "After the event the limit is zero, and can be set anew.";
    a_limit_beyond_the_queue_is_refused: "ibv_modify_srq(3)",
        "And changes nothing.";
    destroying_reports_what_nobody_took: "ibv_destroy_srq(3)",
        "Every receive that nobody took is given back.";
    destroying_waits_for_its_queue_pairs: "ibv_destroy_srq(3), EBUSY",
        "While queue pairs use it, it stays as it was.";
    sizes_are_checked: "ibv_create_srq(3)",
        "None, or more than the device has, is refused.";
    another_domains_is_refused: "ibv_create_qp(3)",
        "Queue pair and shared receive queue belong to one protection domain.";
    limits_of_receives_are_ignored: "ibv_create_qp(3), max_recv_wr, max_recv_sge",
        "With a shared receive queue both are ignored, whatever they are, and queried as 0.";
}

const OK: WcStatus = WcStatus::Success;

/// Senders, each connected with a queue pair that receives from the one queue.
struct World {
    device: Device,
    srq: Srq,
    memory: Region,
    senders: Vec<End>,
    receivers: Vec<(Qp, Cq)>,
    p: &'static str,
}

impl World {
    fn new(p: &Provider, pairs: usize, max_wr: u32) -> Self {
        let (senders, pd) = p.pds();
        let device = pd.device().clone();
        device.set_async_nonblocking(true).expect("a descriptor");
        let sizes = SrqInit {
            max_wr,
            max_sge: 2,
            srq_limit: 0,
        };
        let srq = pd.create_srq(&sizes).expect("a shared receive queue");
        let mut world = Self {
            memory: region(&pd, 1 << 16),
            device,
            srq,
            senders: Vec::new(),
            receivers: Vec::new(),
            p: p.name,
        };
        let attr = ConnectAttr {
            min_rnr_timer: 1,
            ..ConnectAttr::default()
        };
        for _ in 0..pairs {
            let mut sender = End::new(&senders, p.quiet, &init());
            let mut cq = world.device.create_cq(1024).expect("a queue");
            let made = pd.create_qp_on_srq(&mut cq, &world.srq, &init());
            let mut qp: Qp = made.expect("a queue pair");
            connect_with(&mut sender.qp, &mut qp, &attr);
            world.senders.push(sender);
            world.receivers.push((qp, cq));
        }
        world
    }

    fn place(&self, wr_id: u64) -> Sge {
        self.memory.sge(wr_id as usize * 64, 64)
    }

    fn post(&mut self, wr_id: u64) {
        let sge = self.place(wr_id);
        post(&mut self.srq, wr_id, &[sge]).expect("room");
        self.srq.ring();
    }

    /// Sends through a pair; gives the receive that took it.
    fn through(&mut self, pair: usize, bytes: &[u8]) -> u64 {
        self.senders[pair].go(1, Send {}, Inline(bytes));
        assert_eq!(self.senders[pair].outcome(), (1, OK), "{}", self.p);
        let (qp, cq) = &mut self.receivers[pair];
        let done = wait(cq);
        assert_eq!((done.status(), done.qp_num), (OK, qp.qp_num()));
        done.wr_id
    }

    /// Events that are waiting, those of the kind.
    fn events(&self, of: EventType) -> Vec<Element> {
        let mut found = Vec::new();
        while let Ok(event) = self.device.get_async_event() {
            if event.event_type() == of {
                found.push(event.element());
            }
        }
        found
    }
}

fn post(srq: &mut Srq, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
    // SAFETY: the keys are those of regions that outlive the requests, whose memory is only ever
    // copied out.
    unsafe { srq.post(wr_id, sges) }
}

fn receives_are_taken_in_order(p: &Provider) {
    let mut w = World::new(p, 3, 16);
    for round in 0..20 {
        (0..16).for_each(|wr_id| w.post(wr_id));
        for expected in 0..16 {
            let pair = (expected * 7 + round) as usize % 3;
            assert_eq!(w.through(pair, b"message"), expected);
        }
    }
}

fn a_message_lands_where_its_receive_says(p: &Provider) {
    let mut w = World::new(p, 1, 16);
    for length in [0usize, 1, 31, 32, 33, 60, 100, 128] {
        let list = [w.memory.sge(1000, 50), w.memory.sge(3000, 78)];
        post(&mut w.srq, 5, &list).expect("room");
        w.srq.ring();
        let bytes: Vec<u8> = (0..length).map(|at| (at ^ length) as u8).collect();
        assert_eq!(w.through(0, &bytes), 5);
        let mut got = [0; 128];
        w.memory.read(1000, &mut got[..50]);
        w.memory.read(3000, &mut got[50..]);
        assert_eq!(got[..length], bytes);
    }
}

fn the_queue_pairs_own_queue_refuses(p: &Provider) {
    let mut w = World::new(p, 1, 16);
    let refused = post_recv(&mut w.receivers[0].0, 1, &[]);
    assert_eq!(refused, Err(PostError::NoRecvQueue));
}

fn without_a_receive_the_sender_waits(p: &Provider) {
    let mut w = World::new(p, 2, 16);
    w.senders[0].go(1, Send {}, NoPayload);
    w.senders[1].go(1, Send {}, NoPayload);
    w.senders[0].nothing();
    w.post(1);
    w.post(2);
    assert_eq!(w.senders[0].outcome(), (1, OK));
    assert_eq!(w.senders[1].outcome(), (1, OK));
    let taken: HashSet<u64> = (w.receivers.iter_mut().map(|(_, cq)| wait(cq).wr_id)).collect();
    assert_eq!(taken, HashSet::from([1, 2]));
}

fn room_comes_back(p: &Provider) {
    let mut w = World::new(p, 2, 4);
    let capacity = u64::from(w.srq.query().max_wr);
    (0..capacity).for_each(|wr_id| w.post(wr_id));
    for round in 0..200 {
        // Two are taken, and polled the other way round.
        for pair in 0..2 {
            w.senders[pair].go(1, Send {}, NoPayload);
            assert_eq!(w.senders[pair].outcome(), (1, OK));
        }
        for pair in [1, 0] {
            let wr_id = wait(&mut w.receivers[pair].1).wr_id;
            w.post(wr_id);
        }
        assert_eq!(w.srq.free(), 0, "{round}");
    }
}

fn a_full_queue_refuses(p: &Provider) {
    let mut w = World::new(p, 1, 5);
    let capacity = u64::from(w.srq.query().max_wr);
    assert!(capacity >= 5);
    (0..capacity).for_each(|wr_id| w.post(wr_id));
    assert_eq!(post(&mut w.srq, 99, &[]), Err(PostError::QueueFull));
    for expected in 0..capacity {
        assert_eq!(w.through(0, b"message"), expected);
    }
    w.post(7);
    assert_eq!(w.through(0, b"message"), 7);
}

fn a_list_stops_at_the_first_bad(p: &Provider) {
    let mut w = World::new(p, 1, 16);
    let good = [w.place(0)];
    let bad = vec![w.place(0); w.srq.query().max_sge as usize + 1];
    let list: [(u64, &[Sge]); 5] = [(1, &good), (2, &good), (3, &bad), (4, &good), (5, &bad)];
    let mut rest = list.into_iter();
    // SAFETY: as in `post`.
    let error = unsafe { w.srq.post_list(&mut rest) }.expect_err("the third is bad");
    assert_eq!(error.index, 2);
    assert!(matches!(error.error, PostError::TooManySges { .. }));
    assert_eq!(rest.next().map(|(wr_id, _)| wr_id), Some(4));
    w.srq.ring();
    assert_eq!(w.through(0, b"message"), 1);
    assert_eq!(w.through(0, b"message"), 2);
    w.senders[0].go(1, Send {}, NoPayload);
    w.senders[0].nothing();
}

fn a_bad_receive_breaks_its_taker_alone(p: &Provider) {
    let mut w = World::new(p, 2, 16);
    let unknown = Sge {
        lkey: w.place(0).lkey ^ 0x100,
        ..w.place(0)
    };
    post(&mut w.srq, 1, &[unknown]).expect("room");
    w.post(2);
    w.senders[0].go(1, Send {}, Inline(b"message"));
    assert_eq!(w.senders[0].outcome(), (1, WcStatus::RemOpErr));
    let done = wait(&mut w.receivers[0].1);
    assert_eq!((done.wr_id, done.status()), (1, WcStatus::LocProtErr));
    assert_eq!(w.receivers[0].0.state(), QpState::Err);
    assert_eq!(w.through(1, b"message"), 2);
}

fn receives_outlive_a_queue_pair(p: &Provider) {
    let mut w = World::new(p, 3, 16);
    (0..10).for_each(|wr_id| w.post(wr_id));
    assert_eq!(w.through(0, b"message"), 0);
    w.receivers[0].0.to_error().expect("ERR");
    nothing(&mut w.receivers[0].1, p.quiet);
    drop(w.receivers.swap_remove(1));
    drop(w.senders.swap_remove(1));
    for expected in 1..10 {
        assert_eq!(w.through(1, b"message"), expected);
    }
}

fn many_queue_pairs_at_once(p: &Provider) {
    const EACH: u64 = 1000;
    let World {
        mut srq,
        memory,
        senders,
        receivers,
        ..
    } = World::new(p, 3, 64);
    let total = EACH * senders.len() as u64;
    let (report, reports) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for mut sender in senders {
            scope.spawn(move || {
                for wr_id in 0..EACH {
                    sender.go(wr_id, Send {}, Inline(&wr_id.to_ne_bytes()));
                    assert_eq!(sender.outcome(), (wr_id, OK));
                }
            });
        }
        for (qp, mut cq) in receivers {
            let report = report.clone();
            scope.spawn(move || {
                for _ in 0..EACH {
                    let done = wait(&mut cq);
                    assert_eq!(done.status(), OK);
                    report.send(done.wr_id).expect("somebody listens");
                }
                drop(qp);
            });
        }
        drop(report);
        let mut flying = HashSet::new();
        let mut next = 0;
        let mut count = 0;
        while count < total {
            while flying.len() < 64 {
                post(&mut srq, next, &[memory.sge(0, 64)]).expect("room");
                srq.ring();
                flying.insert(next);
                next += 1;
            }
            let wr_id = reports.recv().expect("a receive");
            assert!(flying.remove(&wr_id), "{wr_id} twice, or never posted");
            count += 1;
        }
        assert!(reports.recv().is_err(), "more than were sent");
    });
}

fn query_returns_what_it_is(p: &Provider) {
    let mut w = World::new(p, 0, 100);
    let attr = w.srq.query();
    assert!(attr.max_wr >= 100 && attr.max_sge >= 2 && attr.srq_limit == 0);
    w.srq.modify(40).expect("within the queue");
    assert_eq!(w.srq.query().srq_limit, 40);
    w.srq.modify(0).expect("none");
    assert_eq!(w.srq.query().srq_limit, 0);
}

fn the_limit_raises_one_event(p: &Provider) {
    let mut w = World::new(p, 2, 16);
    (0..10).for_each(|wr_id| w.post(wr_id));
    w.srq.modify(6).expect("within the queue");
    for count in 0..8 {
        w.through(count % 2, b"message");
        // Ten less five is the first that is fewer than six.
        let expected = vec![Element::Srq(w.srq.srq_num()); usize::from(count == 4)];
        assert_eq!(w.events(EventType::SrqLimitReached), expected, "{count}");
    }
}

fn the_limit_is_set_again(p: &Provider) {
    let mut w = World::new(p, 1, 16);
    for _ in 0..3 {
        (0..4).for_each(|wr_id| w.post(wr_id));
        w.srq.modify(3).expect("within the queue");
        w.through(0, b"message");
        assert!(w.events(EventType::SrqLimitReached).is_empty());
        w.through(0, b"message");
        assert_eq!(w.events(EventType::SrqLimitReached).len(), 1);
        assert_eq!(w.srq.query().srq_limit, 0);
        w.through(0, b"message");
        w.through(0, b"message");
        assert!(w.events(EventType::SrqLimitReached).is_empty());
    }
}

fn a_limit_beyond_the_queue_is_refused(p: &Provider) {
    let mut w = World::new(p, 0, 16);
    w.srq.modify(3).expect("within the queue");
    let refused = w.srq.modify(w.srq.query().max_wr + 1);
    assert!(
        matches!(refused, Err(Error::TooLarge { .. })),
        "{refused:?}"
    );
    assert_eq!(w.srq.query().srq_limit, 3);
}

fn destroying_reports_what_nobody_took(p: &Provider) {
    let mut w = World::new(p, 1, 16);
    (0..10).for_each(|wr_id| w.post(wr_id));
    assert_eq!(w.through(0, b"message"), 0);
    assert_eq!(w.through(0, b"message"), 1);
    drop(std::mem::take(&mut w.receivers));
    let mut reported = Vec::new();
    let World { srq, .. } = w;
    let destroyed = srq.destroy(|wr_id, _| reported.push(wr_id));
    destroyed
        .map_err(|(_, error)| error)
        .expect("nobody uses it");
    reported.sort_unstable();
    assert_eq!(reported, (2..10).collect::<Vec<_>>());
}

fn destroying_waits_for_its_queue_pairs(p: &Provider) {
    let mut w = World::new(p, 2, 16);
    w.post(1);
    let World {
        srq,
        receivers,
        mut senders,
        ..
    } = w;
    let (srq, error) = srq
        .destroy(|_, _| panic!("reported"))
        .expect_err("it is used");
    assert!(matches!(error, Error::Busy { users: 2, .. }), "{error}");
    let mut receivers = receivers;
    senders[0].go(1, Send {}, NoPayload);
    assert_eq!(senders[0].outcome(), (1, OK));
    assert_eq!(wait(&mut receivers[0].1).wr_id, 1);
    drop(receivers);
    srq.destroy(|_, _| panic!("reported"))
        .map_err(|(_, error)| error)
        .expect("nobody uses it");
}

fn sizes_are_checked(p: &Provider) {
    let device = p.device();
    let (pd, attr) = (device.alloc_pd(), device.attr());
    type Change = fn(&mut SrqInit, &bellwire::DeviceAttr);
    let bad: [Change; 4] = [
        |init, _| init.max_wr = 0,
        |init, attr| init.max_wr = attr.max_srq_wr + 1,
        |init, attr| init.max_sge = attr.max_srq_sge + 1,
        |init, _| init.srq_limit = 1 << 20,
    ];
    for change in bad {
        let mut init = SrqInit::default();
        change(&mut init, &attr);
        let refused = pd.create_srq(&init);
        assert!(matches!(refused, Err(Error::TooLarge { .. })), "{init:?}");
    }
    let largest = SrqInit {
        max_wr: attr.max_srq_wr,
        max_sge: attr.max_srq_sge,
        srq_limit: 0,
    };
    pd.create_srq(&largest)
        .expect("what the device says it has");
}

fn another_domains_is_refused(p: &Provider) {
    let w = World::new(p, 0, 16);
    let mut cq = w.device.create_cq(1024).expect("a queue");
    let other = w.device.alloc_pd();
    let refused = other.create_qp_on_srq::<Rc>(&mut cq, &w.srq, &init());
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
}

fn limits_of_receives_are_ignored(p: &Provider) {
    let mut w = World::new(p, 1, 4);
    for beyond in [0, u32::MAX] {
        let init = QpInit {
            max_recv_wr: beyond,
            max_recv_sge: beyond,
            ..init()
        };
        let mut cq = w.device.create_cq(1024).expect("a queue");
        let pd = w.srq.pd().clone();
        let made = pd.create_qp_on_srq(&mut cq, &w.srq, &init);
        let mut qp: Qp = made.unwrap_or_else(|error| panic!("{beyond}: {error}"));
        let cap = qp.query().cap;
        assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0), "{beyond}");
        assert!(cap.max_send_wr >= init.max_send_wr);

        let mut sender = End::new(
            w.senders[0].qp.pd(),
            p.quiet,
            &bellwire_tests::fixture::init(),
        );
        connect_with(&mut sender.qp, &mut qp, &ConnectAttr::default());
        w.post(5);
        sender.go(1, Send {}, Inline(b"here"));
        assert_eq!(sender.outcome(), (1, OK));
        let done = wait(&mut cq);
        assert_eq!((done.wr_id, done.status()), (5, OK));
    }
}
