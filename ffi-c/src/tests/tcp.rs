//! The exchange over TCP.

use super::*;
use crate::code::*;
use crate::number::bw_mtu;
use crate::tcp::*;
use std::io::Write;
use std::net::TcpStream;

/// Milliseconds: a timeout that never expires here, and one that is meant to expire.
const LONG: u32 = 60_000;
const SHORT: u32 = 50;

const LOCALHOST: *const std::ffi::c_char = c"127.0.0.1".as_ptr();

fn listener() -> (*mut bw_tcp_listener, u32) {
    // SAFETY: a valid string.
    unsafe {
        let listener = made(|listener| bw_tcp_listener_create(LOCALHOST, 0, listener));
        let port = bw_tcp_listener_port(listener);
        (listener, port.try_into().unwrap())
    }
}

/// A connection whose other end is a plain socket.
fn with_plain(listener: *mut bw_tcp_listener, port: u32) -> (*mut bw_tcp_conn, TcpStream) {
    let plain = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    // SAFETY: a valid handle.
    let conn = made(|conn| unsafe { bw_tcp_accept(listener, LONG, conn) });
    (conn, plain)
}

fn endpoint(qp_num: u32) -> bw_endpoint {
    sized!(bw_endpoint {
        qp_num: qp_num,
        psn: 2,
        lid: 3,
        gid: [4; 16],
    })
}

fn info() -> bw_conn_info {
    sized!(bw_conn_info {
        mtu: bw_mtu::BW_MTU_1024 as u32,
        rkey: 5,
        addr: 6,
        length: 7,
    })
}

#[test]
fn ends_exchange_what_queue_pairs_need() {
    let (listener, port) = listener();
    let client = std::thread::spawn(move || {
        let (mut peer, mut peer_info) = (endpoint(0), info());
        // SAFETY: valid strings and structs; the connection is this thread's.
        unsafe {
            let conn = made(|conn| bw_tcp_connect(LOCALHOST, port, LONG, conn));
            let ours = endpoint(10);
            ok(bw_tcp_exchange(
                conn,
                &ours,
                null(),
                &mut peer,
                &mut peer_info,
                LONG,
            ));
            ok(bw_tcp_barrier(conn, LONG));
            ok(bw_tcp_conn_destroy(conn));
        }
        assert_eq!(
            (peer.qp_num, peer.psn, peer.lid, peer.gid),
            (20, 2, 3, [4; 16])
        );
        let bw_conn_info {
            mtu, rkey, addr, ..
        } = peer_info;
        assert_eq!((mtu, rkey, addr), (bw_mtu::BW_MTU_1024 as u32, 5, 6));
        assert_eq!(peer_info.length, 7);
    });
    let (mut peer, mut peer_info) = (endpoint(0), info());
    // SAFETY: valid handles and structs.
    unsafe {
        let conn = made(|conn| bw_tcp_accept(listener, LONG, conn));
        let ours = endpoint(20);
        // Nothing is sent before all arguments have been checked.
        let mut short = bw_endpoint { size: 4, ..ours };
        fails(
            bw_tcp_exchange(conn, &ours, &info(), &mut short, &mut peer_info, LONG),
            BW_ESIZE,
        );
        ok(bw_tcp_exchange(
            conn,
            &ours,
            &info(),
            &mut peer,
            &mut peer_info,
            LONG,
        ));
        ok(bw_tcp_barrier(conn, LONG));
        ok(bw_tcp_conn_destroy(conn));
        ok(bw_tcp_listener_destroy(listener));
    }
    client.join().unwrap();
    assert_eq!(peer.qp_num, 10);
    assert_eq!(
        (peer_info.mtu, peer_info.length),
        (bw_mtu::BW_MTU_4096 as u32, 0)
    );
}

#[test]
fn what_a_peer_does_wrong_has_a_number() {
    let (listener, port) = listener();
    let exchange = |conn| {
        let (mut peer, mut peer_info) = (endpoint(0), info());
        // SAFETY: valid handles and structs.
        unsafe { bw_tcp_exchange(conn, &endpoint(1), null(), &mut peer, &mut peer_info, SHORT) }
    };
    let (silent, plain) = with_plain(listener, port);
    fails(exchange(silent), BW_ETIMEDOUT);
    drop(plain);
    let (gone, plain) = with_plain(listener, port);
    drop(plain);
    fails(exchange(gone), BW_ECONN);
    let (garbled, mut plain) = with_plain(listener, port);
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    fails(exchange(garbled), BW_EPROTO);
    // SAFETY: valid handles.
    unsafe {
        fails(bw_tcp_barrier(gone, SHORT), BW_ECONN);
        for conn in [silent, gone, garbled] {
            ok(bw_tcp_conn_destroy(conn));
        }
        let mut none = null_mut();
        fails(bw_tcp_accept(listener, SHORT, &mut none), BW_ETIMEDOUT);
        assert!(none.is_null());
        let mut second = null_mut();
        fails(
            bw_tcp_listener_create(LOCALHOST, port, &mut second),
            BW_ECONN,
        );
        assert!(last_error().contains("take another port"));
        ok(bw_tcp_listener_destroy(listener));
        fails(bw_tcp_connect(LOCALHOST, port, LONG, &mut none), BW_ECONN);
    }
}

#[test]
fn what_the_program_gives_is_checked_before_it_is_sent() {
    let (listener, port) = listener();
    let (conn, _plain) = with_plain(listener, port);
    let (mut peer, mut peer_info) = (endpoint(0), info());
    let (ours, good) = (endpoint(1), info());
    let mut exchange = |endpoint: &bw_endpoint, info: &bw_conn_info| {
        // SAFETY: valid handles and structs.
        unsafe { bw_tcp_exchange(conn, endpoint, info, &mut peer, &mut peer_info, LONG) }
    };
    let wrong = bw_conn_info { mtu: 0, ..good };
    fails(exchange(&ours, &wrong), BW_EINVAL);
    let wrong = bw_conn_info {
        reserved: 1,
        ..good
    };
    fails(exchange(&ours, &wrong), BW_EINVAL);
    let wrong = bw_endpoint {
        lid: 1 << 16,
        ..ours
    };
    fails(exchange(&wrong, &good), BW_EINVAL);
    // SAFETY: every pointer is NULL or valid.
    unsafe {
        let mut none = null_mut();
        let mut nobody = null_mut();
        fails(bw_tcp_connect(LOCALHOST, 65536, LONG, &mut none), BW_EINVAL);
        fails(
            bw_tcp_listener_create(LOCALHOST, 65536, &mut nobody),
            BW_EINVAL,
        );
        let codes = [
            bw_tcp_listener_create(LOCALHOST, 0, null_mut()),
            bw_tcp_listener_port(null()),
            bw_tcp_listener_fd(null()),
            bw_tcp_accept(null(), 1, &mut none),
            bw_tcp_accept(listener, 1, null_mut()),
            bw_tcp_connect(null(), port, 1, &mut none),
            bw_tcp_connect(LOCALHOST, port, 1, null_mut()),
            bw_tcp_exchange(null_mut(), &ours, &good, &mut peer, &mut peer_info, 1),
            bw_tcp_exchange(conn, null(), &good, &mut peer, &mut peer_info, 1),
            bw_tcp_exchange(conn, &ours, &good, null_mut(), &mut peer_info, 1),
            bw_tcp_exchange(conn, &ours, &good, &mut peer, null_mut(), 1),
            bw_tcp_barrier(null_mut(), 1),
            bw_tcp_conn_destroy(null_mut()),
            bw_tcp_listener_destroy(null_mut()),
        ];
        for (at, code) in codes.into_iter().enumerate() {
            assert_eq!(code, BW_ENULL as c_int, "call {at}");
        }
        ok(bw_tcp_conn_destroy(conn));
        ok(bw_tcp_listener_destroy(listener));
    }
}
