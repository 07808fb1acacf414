//! Packets of a connection that arrive after both of its queue pairs have been connected again.

use crate::packets::Cable;
use crate::tests;
use bellwire::wqe::RdmaWrite;
use bellwire::wr::WcStatus;
use bellwire_tests::ends::*;
use bellwire_tests::fixture::*;

tests! { a_late_write_has_no_effect }

const WORD: [u8; 8] = *b"too late";

/// What the peer's memory has where the WRITE went.
fn written(end: &End) -> [u8; 8] {
    let mut bytes = [0; 8];
    end.region.read(0, &mut bytes);
    bytes
}

/// The first WRITE of a connection is recorded on the cable, and arrives again in the next two connections of the
/// same queue pairs. The first of these has a PSN of its own, as always. The second expects the PSN that the
/// WRITE has, so that the packet is known to be whole.
fn a_late_write_has_no_effect() {
    let [mut leaves, mut arrives] = ["veth1", "veth2"].map(Cable::at);
    let (mut a, mut b) = far();
    connect_patiently(&mut a.qp, &mut b.qp, &patient());
    let psn = a.qp.endpoint_for(&patient()).psn;
    a.region.write(0, &WORD);
    let (payload, remote) = (a.region.sge(0, 8), b.region.remote(0));
    a.go(1, RdmaWrite { remote }, payload);
    let late = arrives.next();
    account(&mut a, &[(1, WcStatus::Success)], &[]);
    assert_eq!(written(&b), WORD);

    b.region.write(0, &[0; 8]);
    begins_anew(&mut a, &mut b);
    assert_ne!(a.qp.endpoint_for(&patient()).psn, psn);
    leaves.send(&late);
    works(&mut a, &mut b);
    assert_eq!(written(&b), [0; 8]);

    for end in [&mut a, &mut b] {
        assert_eq!(end.reset(), [0; 0]);
        end.qp.init(&patient()).expect("INIT");
    }
    let mut peer = a.qp.endpoint_for(&patient());
    peer.psn = psn;
    b.qp.connect(&peer, &patient()).expect("RTS");
    leaves.send(&late);
    until("the packet", || written(&b) == WORD);
}
