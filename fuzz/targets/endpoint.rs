//! Endpoints that a peer sent, given to connect.
#![no_main]

use bellwire::state::Mtu;
use bellwire::{ConnectAttr, Device, Endpoint, Pd, QpInit};
use libfuzzer_sys::fuzz_target;
use std::cell::OnceCell;

thread_local! {
    static PD: OnceCell<Pd> = const { OnceCell::new() };
}

fuzz_target!(|input: (u32, u32, u16, [u8; 16], u8)| {
    let (qp_num, psn, lid, gid, mtu) = input;
    PD.with(|pd| {
        let pd = pd.get_or_init(|| Device::soft(Default::default()).alloc_pd());
        let init = QpInit {
            max_send_wr: 1,
            max_recv_wr: 1,
            ..QpInit::default()
        };
        let (sends, receives) = init.cq_entries();
        let mut cq = pd.device().create_cq(sends + receives).expect("a queue");
        let mut qp = pd.create_qp(&mut cq, &init).expect("a queue pair");
        let connect = ConnectAttr {
            path_mtu: Mtu::from_number(mtu).unwrap_or(Mtu::Mtu1024),
            ..ConnectAttr::default()
        };
        qp.init(&connect).expect("INIT");
        let peer = Endpoint {
            qp_num,
            psn,
            lid,
            gid,
        };
        if qp.connect(&peer, &connect).is_ok() {
            assert!(qp_num < 1 << 24 && psn < 1 << 24);
        }
    });
});
