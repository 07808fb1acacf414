//! Connecting two queue pairs by an exchange over TCP.

use crate::Result;
use bellwire::connect::ConnInfo;
use bellwire::connect::tcp::{Connection, Listener};
use bellwire::{ConnectAttr, Device, QpInit};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

// ANCHOR: end
fn end(mut peer: Connection) -> Result {
    let pd = Device::open("auto")?.alloc_pd();
    let init = QpInit::default();
    let (sends, receives) = init.cq_entries();
    let mut cq = pd.device().create_cq(sends + receives)?;
    let mut qp = pd.create_qp(&mut cq, &init)?;

    let ours = ConnInfo {
        endpoint: qp.endpoint(),
        mtu: pd.device().query_port(1)?.active_mtu,
        ..ConnInfo::default()
    };
    let theirs = peer.exchange(&ours, SOON)?;
    let connect = ConnectAttr {
        path_mtu: ours.mtu.min(theirs.mtu),
        ..ConnectAttr::default()
    };
    qp.init(&connect)?;
    // Receives are posted here, before the peer may send.
    qp.connect(&theirs.endpoint, &connect)?;
    peer.barrier(SOON)?;
    // Both ends are connected.
    Ok(())
}
// ANCHOR_END: end

pub fn run() -> Result {
    // ANCHOR: meet
    let listener = Listener::bind(Some("localhost"), 0)?;
    let port = listener.port();
    let client = std::thread::spawn(move || end(Connection::connect("localhost", port, SOON)?));
    end(listener.accept(SOON)?)?;
    // ANCHOR_END: meet
    client.join().expect("the client does not panic")
}
