//! Initial packet sequence numbers: each life of a queue pair has its own.

use bellwire::soft::Mode;
use bellwire::wqe::{Rc, Uc, Ud, Xrc};
use bellwire::{ConnectAttr, Qp, QpTransport};
use bellwire_tests::fixture::{device, init};

/// The PSNs of several lives, each as the endpoint has it and as it is in the queue pair.
fn lives<T: QpTransport>(start: impl Fn(&mut Qp<T>)) -> Vec<u32> {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let mut cq = device.create_cq(1024).expect("a completion queue");
    let mut qp: Qp<T> = pd.create_qp_of(&mut cq, &init()).expect("a queue pair");
    let life = |_| {
        let endpoint = qp.endpoint();
        assert_eq!(qp.endpoint_for(&ConnectAttr::default()), endpoint);
        qp.init(&ConnectAttr::default()).expect("INIT");
        start(&mut qp);
        let attr = qp.query();
        assert_eq!((attr.sq_psn, qp.endpoint()), (endpoint.psn, endpoint));
        qp.reset(&mut cq, |_, _| ()).expect("RESET");
        endpoint.psn
    };
    (0..8).map(life).collect()
}

#[test]
fn each_life_has_its_own() {
    let attr = ConnectAttr::default();
    let psns = [
        lives::<Rc>(|qp| qp.connect(&qp.endpoint(), &attr).expect("RTS")),
        lives::<Uc>(|qp| qp.connect(&qp.endpoint(), &attr).expect("RTS")),
        lives::<Ud>(|qp| qp.start(&attr).expect("RTS")),
        lives::<Xrc>(|qp| qp.connect(&qp.endpoint(), &attr).expect("RTS")),
    ]
    .concat();
    assert!(psns.iter().all(|psn| *psn < 1 << 24), "{psns:x?}");
    let mut different = psns.clone();
    different.sort_unstable();
    different.dedup();
    // That two of 32 random numbers are equal happens once in 34,000 runs; three or more, hardly.
    assert!(different.len() >= psns.len() - 1, "{psns:x?}");
}
