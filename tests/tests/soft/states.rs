//! Lives of a queue pair, one after the other. What it does in each state is in the conformance
//! suite.

use bellwire::ConnectAttr;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;

in_both_modes! { a_thousand_lives, an_old_peer_does_not_reach_the_next_life }

/// Random work, a reset in the middle of it, and never an outcome of another life.
fn a_thousand_lives(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    let mut random = Random::new(4);
    for life in 0..1000u64 {
        let id = |at: u64| life << 8 | at;
        let (sends, receives) = (random.below(20), random.below(20));
        for at in 0..receives {
            b.receive(id(at), &[b.region.sge(0, 64)]);
        }
        for at in 0..sends {
            let bytes = [life as u8; 60];
            let length = random.below(61) as usize;
            a.go(id(at), Send {}, Inline(&bytes[..length]));
        }
        let (mut sent, mut received) = (0, 0);
        for _ in 0..random.below(30) {
            if let Some(done) = a.cq.poll_one() {
                assert_eq!((done.wr_id, done.status()), (id(sent), WcStatus::Success));
                sent += 1;
            }
            if let Some(done) = b.cq.poll_one() {
                assert_eq!(
                    (done.wr_id, done.status()),
                    (id(received), WcStatus::Success)
                );
                received += 1;
            }
        }
        if random.below(2) == 0 {
            a.qp.to_error().unwrap();
        }
        if random.below(3) == 0 {
            b.qp.to_error().unwrap();
        }
        let rest = |from: u64, to: u64| (from..to).map(id).collect::<Vec<_>>();
        assert_eq!(a.reset(), rest(sent, sends));
        assert_eq!(b.reset(), rest(received, receives));
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    }
    assert_eq!((a.cq.stale(), b.cq.stale()), (0, 0));
    a.nothing();
    b.nothing();
}

/// The context of a queue pair that was destroyed goes to the next one. A peer that still sends to
/// the old number must not get through, even when the new one is already connected to it.
fn an_old_peer_does_not_reach_the_next_life(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let attr = ConnectAttr {
        timeout: 8,
        retry_cnt: 1,
        ..ConnectAttr::default()
    };
    let (mut a, mut b) = (End::new(&pd, mode, &init()), End::new(&pd, mode, &init()));
    connect_with(&mut a.qp, &mut b.qp, &attr);
    let old = b.qp.qp_num();
    drop(b);
    let mut b = End::new(&pd, mode, &init());
    assert_eq!(b.qp.qp_num() & 0xffff, old & 0xffff, "the same place");
    assert_ne!(b.qp.qp_num(), old);
    b.qp.init(&attr).unwrap();
    b.qp.connect(&a.qp.endpoint(), &attr).unwrap();
    b.receive(70, &[]);
    a.go(1, Send {}, NoPayload);
    assert_eq!(a.outcome(), (1, WcStatus::RetryExcErr));
    b.nothing();
}
