//! Unreliable connections: what arrives, what is dropped without a word, and what fails where.

use super::transports::ends::{NOWHERE, Receives, Service, Stands, Talker, ends, pair};
use crate::provider::Provider;
use crate::rule::rules;
use bellwire::AccessFlags;
use bellwire::be::Be32;
use bellwire::queue::Imm;
use bellwire::state::QpState::{self, *};
use bellwire::state::{QpAttr, QpAttrMask};
use bellwire::wqe::*;
use bellwire::wr::{Remote, Sge, WcOpcode, WcStatus};
use bellwire_tests::fixture::{SIGNALED, init, region, region_with, until};
use std::sync::atomic::Ordering;

rules! {
    "uc", "Unreliable connections: nothing is acknowledged, and what does not fit is dropped.",
        needs [Uc];
    a_send_arrives: "IBTA vol. 1, 9.8.2",
        "A SEND's bytes come to the receive, behind nothing, and both ends complete.";
    a_send_is_scattered_and_gathered: "ibv_post_send(3), sg_list",
        "A SEND is gathered from many elements and scattered over many.";
    a_long_send_arrives_whole: "IBTA vol. 1, 9.8.2",
        "A message of many packets is one message: one receive, one completion, all bytes.";
    send_with_immediate_brings_it: "ibv_poll_cq(3), IBV_WC_WITH_IMM",
        "SEND_WITH_IMM gives the receive its immediate data.";
    a_write_arrives: "IBTA vol. 1, 9.8.2",
        "A WRITE's bytes are in the peer's memory; the peer is not notified.";
    write_with_immediate_consumes_a_receive: "IBTA vol. 1, 9.4.3 and 9.8.2",
        "WRITE_WITH_IMM writes, and completes a receive with immediate data and length.";
    a_send_without_a_receive_is_dropped: "IBTA vol. 1, 9.8.2",
        "A SEND that finds no receive is lost: no retry, no later delivery, no error at either end.";
    a_write_with_immediate_without_a_receive_is_dropped: "IBTA vol. 1, 9.8.2",
        "WRITE_WITH_IMM that finds no receive is lost: both ends stay as they were.";
    a_write_with_a_bad_key_is_dropped: "IBTA vol. 1, 9.8.2",
        "A WRITE by a key of nobody is lost: both ends stay in RTS.";
    a_write_beyond_the_region_is_dropped: "IBTA vol. 1, 9.8.2",
        "A WRITE that leaves the region by one byte writes nothing.";
    a_write_to_memory_not_opened_is_dropped: "IBTA vol. 1, 9.8.2; ibv_reg_mr(3)",
        "A WRITE to a region without REMOTE_WRITE writes nothing.";
    a_write_to_another_domain_is_dropped: "IBTA vol. 1, 9.8.2 and 10.6",
        "A WRITE to memory of another protection domain than the peer's writes nothing.";
    a_write_that_the_peer_does_not_allow_is_dropped: "IBTA vol. 1, 9.8.2; ibv_modify_qp(3)",
        "Without REMOTE_WRITE in the peer's access flags a WRITE writes nothing.";
    a_write_with_immediate_by_a_bad_key_consumes_nothing: "IBTA vol. 1, 9.8.2",
        "A WRITE_WITH_IMM that is dropped for its key leaves the receive for the next message.";
    a_message_to_nobody_is_dropped: "IBTA vol. 1, 9.8.2",
        "A message to a queue pair that is in RESET, in ERR, or gone succeeds at the sender.";
    the_next_message_after_a_dropped_one_arrives: "IBTA vol. 1, 9.8.2",
        "What follows a dropped message is delivered, and to the receive that waits.";
    a_message_too_long_fails_the_receiver: "IBTA vol. 1, 9.8.2 and 11.6.2",
        "A receive that is too short completes with LOC_LEN_ERR and takes its queue pair to ERR.";
    a_message_too_long_succeeds_at_the_sender: "IBTA vol. 1, 9.8.2",
        "The sender of a message that was too long learns nothing of it, and goes on.";
    a_receive_into_bad_memory_fails_the_receiver: "IBTA vol. 1, 11.6.2",
        "A receive by a bad lkey completes with LOC_PROT_ERR, there alone, and the queue pair goes to \
         ERR.";
    a_failed_receiver_flushes_the_others: "IBTA vol. 1, 10.3.1.7",
        "When a receive fails the ones behind it are flushed, and so are sends posted from then on.";
    a_bad_lkey_takes_the_sender_to_sqe: "IBTA vol. 1, 10.3.1.6 and 11.6.2",
        "A SEND from memory of no key fails with LOC_PROT_ERR, and its queue pair goes to SQE.";
    a_bad_lkey_of_a_write_takes_the_sender_to_sqe: "IBTA vol. 1, 10.3.1.6 and 11.6.2",
        "A WRITE from memory of no key fails with LOC_PROT_ERR, and its queue pair goes to SQE.";
    a_senders_error_is_nothing_to_the_peer: "IBTA vol. 1, 10.3.1.6",
        "A sender's local error consumes nothing at the peer, whose state stays.";
    another_connections_messages_are_not_taken: "IBTA vol. 1, 9.6 and 9.8.2",
        "A queue pair takes what its own peer sends, and drops what another sends to its number.";
    each_direction_is_on_its_own: "IBTA vol. 1, 9.8",
        "Both ends send and receive at once, each its own.";
    messages_stay_in_order: "IBTA vol. 1, 9.5",
        "Messages that arrive do so in the order in which they were sent.";
}

fn word(at: &Talker<Uc>, offset: usize) -> u64 {
    at.region.word(offset).load(Ordering::Acquire)
}

/// Sends `value`, and expects it in the receive that is posted for it.
fn talks(a: &mut Talker<Uc>, b: &mut Talker<Uc>, value: u64) {
    b.receive(99, 8);
    a.go(98, Send {}, Inline(&value.to_ne_bytes()));
    a.completes(98, WcStatus::Success);
    b.took(99, WcStatus::Success);
    assert_eq!(word(b, 0), value);
}

/// A message that was dropped was reported to nobody, and both can go on.
fn dropped(a: &mut Talker<Uc>, b: &mut Talker<Uc>) {
    a.completes(1, WcStatus::Success);
    a.nothing();
    b.nothing();
    assert_eq!((a.state(), b.state()), (Rts, Rts));
}

fn a_send_arrives(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    for length in [0, 1, 31, 32, 33, 64, 199] {
        let bytes: Vec<u8> = (1..=length).collect();
        b.region.write(0, &[0; 200]);
        b.receive(70, 200);
        a.go(1, Send {}, Inline(&bytes));
        a.completes(1, WcStatus::Success);
        b.took(70, WcStatus::Success);
        let mut got = [0; 200];
        b.region.read(0, &mut got);
        assert_eq!(got[..bytes.len()], bytes[..]);
        assert!(got[bytes.len()..].iter().all(|&byte| byte == 0));
    }
}

fn a_send_is_scattered_and_gathered(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let bytes: Vec<u8> = (0..100).collect();
    a.region.write(0, &bytes);
    let to = [(1000, 7), (2000, 50), (3000, 0), (4000, 100)];
    let rooms = to.map(|(offset, length)| b.region.sge(offset, length));
    b.post_recv(70, &rooms).expect("room");
    let from = [
        a.region.sge(0, 30),
        a.region.sge(30, 1),
        a.region.sge(31, 69),
    ];
    a.go(1, Send {}, &from[..]);
    a.completes(1, WcStatus::Success);
    b.took(70, WcStatus::Success);
    let mut got = [0; 100];
    b.region.read(1000, &mut got[..7]);
    b.region.read(2000, &mut got[7..57]);
    b.region.read(4000, &mut got[57..]);
    assert_eq!(got[..], bytes[..]);
}

fn a_long_send_arrives_whole(p: &Provider) {
    const LENGTH: usize = 60_001;
    let (mut a, mut b) = pair::<Uc>(p);
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    a.region.write(0, &bytes);
    b.receive(70, LENGTH as u32);
    a.go(1, Send {}, a.region.sge(0, LENGTH as u32));
    a.completes(1, WcStatus::Success);
    let done = b.wait().result.expect("received");
    assert_eq!(done.byte_len(), Some(LENGTH as u32));
    let mut got = vec![0; LENGTH];
    b.region.read(0, &mut got);
    assert!(got == bytes);
    b.nothing();
}

fn send_with_immediate_brings_it(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let imm = Be32::new(0x0102_0304);
    b.receive(70, 8);
    a.go(1, SendWithImm { imm }, Inline(&7u64.to_ne_bytes()));
    a.completes(1, WcStatus::Success);
    let done = b.wait().result.expect("received");
    assert_eq!((done.opcode, done.byte_len()), (WcOpcode::Recv, Some(8)));
    assert!(matches!(done.imm(), Imm::Data(data) if data == imm));
    assert_eq!(word(&b, 0), 7);
}

fn a_write_arrives(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    b.receive(70, 8);
    let remote = b.region.remote(1000);
    a.region.write(0, &[9; 5000]);
    a.go(1, RdmaWrite { remote }, a.region.sge(0, 5000));
    a.completes(1, WcStatus::Success);
    until("the bytes", || word(&b, 5992) == u64::from_ne_bytes([9; 8]));
    let mut got = [0; 5000];
    b.region.read(1000, &mut got);
    assert_eq!(got, [9; 5000]);
    b.nothing();
}

fn write_with_immediate_consumes_a_receive(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let (remote, imm) = (b.region.remote(1000), Be32::new(5));
    b.receive(70, 0);
    a.go(1, RdmaWriteWithImm { remote, imm }, Inline(&[9; 64]));
    a.completes(1, WcStatus::Success);
    let done = b.wait();
    assert_eq!(done.wr_id, 70);
    let done = done.result.expect("received");
    assert_eq!(done.opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!(done.byte_len(), Some(64));
    assert!(matches!(done.imm(), Imm::Data(data) if data == imm));
    let mut got = [0; 64];
    b.region.read(1000, &mut got);
    assert_eq!(got, [9; 64]);
}

fn a_send_without_a_receive_is_dropped(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    a.go(1, Send {}, Inline(&7u64.to_ne_bytes()));
    dropped(&mut a, &mut b);
    b.receive(70, 8);
    b.nothing();
    assert_eq!(word(&b, 0), 0);
}

fn a_write_with_immediate_without_a_receive_is_dropped(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let (remote, imm) = (b.region.remote(0), Be32::new(5));
    a.go(1, RdmaWriteWithImm { remote, imm }, Inline(&[9; 8]));
    dropped(&mut a, &mut b);
    b.receive(70, 8);
    b.nothing();
}

/// A WRITE to there is dropped: what `word` gives stays zero.
fn write_is_dropped(
    a: &mut Talker<Uc>,
    b: &mut Talker<Uc>,
    remote: Remote,
    word: impl Fn() -> u64,
) {
    a.go(1, RdmaWrite { remote }, Inline(&[9; 16]));
    dropped(a, b);
    assert_eq!(word(), 0);
    talks(a, b, 5);
}

fn a_write_with_a_bad_key_is_dropped(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let target = region(b.qp.pd(), 4096);
    let remote = Remote {
        rkey: target.remote(0).rkey ^ 0xff,
        ..target.remote(0)
    };
    let word = || target.word(0).load(Ordering::Acquire);
    write_is_dropped(&mut a, &mut b, remote, word);
}

fn a_write_beyond_the_region_is_dropped(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let target = region(b.qp.pd(), 4096);
    let last = target.len() - 16;
    let remote = target.remote(last);
    let beyond = Remote {
        addr: remote.addr + 1,
        ..remote
    };
    let word = || target.word(last + 8).load(Ordering::Acquire);
    write_is_dropped(&mut a, &mut b, beyond, word);
    // And one that just fits is not.
    a.go(1, RdmaWrite { remote }, Inline(&[9; 16]));
    a.completes(1, WcStatus::Success);
    until("the bytes", || word() != 0);
}

fn a_write_to_memory_not_opened_is_dropped(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let target = region_with(b.qp.pd(), 4096, access);
    let word = || target.word(0).load(Ordering::Acquire);
    write_is_dropped(&mut a, &mut b, target.remote(0), word);
}

fn a_write_to_another_domain_is_dropped(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let target = region(&b.qp.pd().device().alloc_pd(), 4096);
    let word = || target.word(0).load(Ordering::Acquire);
    write_is_dropped(&mut a, &mut b, target.remote(0), word);
}

fn a_write_that_the_peer_does_not_allow_is_dropped(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let target = region(b.qp.pd(), 4096);
    let none = QpAttr {
        qp_access_flags: AccessFlags::empty(),
        ..QpAttr::default()
    };
    b.modify(&none, QpAttrMask::ACCESS_FLAGS).expect("in RTS");
    let word = || target.word(0).load(Ordering::Acquire);
    write_is_dropped(&mut a, &mut b, target.remote(0), word);
}

fn a_write_with_immediate_by_a_bad_key_consumes_nothing(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let imm = Be32::new(5);
    let remote = Remote { addr: 0, rkey: 1 };
    b.receive(70, 8);
    a.go(1, RdmaWriteWithImm { remote, imm }, Inline(&[9; 8]));
    dropped(&mut a, &mut b);
    a.go(2, Send {}, Inline(&7u64.to_ne_bytes()));
    a.completes(2, WcStatus::Success);
    b.took(70, WcStatus::Success);
    assert_eq!(word(&b, 0), 7);
}

fn a_message_to_nobody_is_dropped(p: &Provider) {
    let sends = |a: &mut Talker<Uc>, remote| {
        a.go(1, Send {}, Inline(&[9; 8]));
        a.go(2, RdmaWrite { remote }, Inline(&[9; 8]));
        a.completes(1, WcStatus::Success);
        a.completes(2, WcStatus::Success);
        a.nothing();
        assert_eq!(a.state(), Rts);
    };
    for state in [Reset, Init, Err] {
        let (mut a, mut b) = ends::<Uc>(p);
        a.bring(&b.endpoint(), Rts);
        b.bring(&a.endpoint(), state);
        sends(&mut a, b.region.remote(0));
        assert_eq!(word(&b, 0), 0, "{state}");
        assert_eq!(b.state(), state);
    }
    let (mut a, b) = pair::<Uc>(p);
    let Talker { qp, region, .. } = b;
    drop(qp);
    sends(&mut a, region.remote(0));
    assert_eq!(region.word(0).load(Ordering::Acquire), 0);
}

fn the_next_message_after_a_dropped_one_arrives(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    let bad = Remote { addr: 0, rkey: 1 };
    let imm = Be32::new(5);
    for value in 1..20 {
        a.post(1, RdmaWrite { remote: bad }, Inline(&[9; 8]), SIGNALED)
            .expect("room");
        let op = RdmaWriteWithImm { remote: bad, imm };
        a.post(2, op, Inline(&[9; 8]), SIGNALED).expect("room");
        a.go(3, Send {}, Inline(&[9; 8]));
        for wr_id in 1..4 {
            a.completes(wr_id, WcStatus::Success);
        }
        b.nothing();
        talks(&mut a, &mut b, value);
    }
}

/// B's first receive, 70, has failed with this; two more were posted.
fn receiver_fails(p: &Provider, status: WcStatus) -> (Talker<Uc>, Talker<Uc>) {
    let (mut a, mut b) = pair::<Uc>(p);
    let room = match status {
        WcStatus::LocLenErr => b.region.sge(0, 63),
        _ => Sge {
            length: 64,
            ..NOWHERE
        },
    };
    b.post_recv(70, &[room]).expect("room");
    b.receive(71, 100);
    b.receive(72, 100);
    a.go(1, Send {}, Inline(&[9; 64]));
    a.completes(1, WcStatus::Success);
    b.took(70, status);
    (a, b)
}

fn is_in(end: &Talker<Uc>, state: QpState) {
    until("the state", || end.state() == state);
}

fn a_message_too_long_fails_the_receiver(p: &Provider) {
    let (_a, b) = receiver_fails(p, WcStatus::LocLenErr);
    is_in(&b, Err);
    assert_eq!(word(&b, 64), 0, "nothing behind the receive is written");
}

fn a_message_too_long_succeeds_at_the_sender(p: &Provider) {
    let (mut a, _b) = receiver_fails(p, WcStatus::LocLenErr);
    a.nothing();
    assert_eq!(a.state(), Rts);
    a.go(2, Send {}, Inline(&[9; 64]));
    a.completes(2, WcStatus::Success);
}

fn a_receive_into_bad_memory_fails_the_receiver(p: &Provider) {
    let (mut a, b) = receiver_fails(p, WcStatus::LocProtErr);
    is_in(&b, Err);
    a.nothing();
    assert_eq!(a.state(), Rts);
}

fn a_failed_receiver_flushes_the_others(p: &Provider) {
    for status in [WcStatus::LocLenErr, WcStatus::LocProtErr] {
        let (_a, mut b) = receiver_fails(p, status);
        b.took(71, WcStatus::WrFlushErr);
        b.took(72, WcStatus::WrFlushErr);
        b.go(1, Send {}, NoPayload);
        b.completes(1, WcStatus::WrFlushErr);
        b.nothing();
    }
}

fn a_bad_lkey_takes_the_sender_to_sqe(p: &Provider) {
    let (mut a, _b) = pair::<Uc>(p);
    a.go(1, Send {}, NOWHERE);
    a.completes(1, WcStatus::LocProtErr);
    is_in(&a, Sqe);
}

fn a_bad_lkey_of_a_write_takes_the_sender_to_sqe(p: &Provider) {
    let (mut a, b) = pair::<Uc>(p);
    let remote = b.region.remote(0);
    a.go(1, RdmaWrite { remote }, NOWHERE);
    a.completes(1, WcStatus::LocProtErr);
    is_in(&a, Sqe);
}

fn a_senders_error_is_nothing_to_the_peer(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    b.receive(70, 8);
    a.go(1, Send {}, NOWHERE);
    a.completes(1, WcStatus::LocProtErr);
    b.nothing();
    assert_eq!(b.state(), Rts);
    // It is still there.
    a.go_to(Rts);
    a.go(2, Send {}, NoPayload);
    b.took(70, WcStatus::Success);
}

fn another_connections_messages_are_not_taken(p: &Provider) {
    let pds = p.pds();
    let (mut a, mut b) = Uc::ends_on((&pds.0, &pds.1), p, &init());
    a.bring(&b.endpoint(), Rts);
    b.bring(&a.endpoint(), Rts);
    let (mut stranger, _own) = Uc::ends_on((&pds.0, &pds.1), p, &init());
    stranger.bring(&b.endpoint(), Rts);
    let remote = b.region.remote(8);
    // Before the peer has said a word, and after.
    for value in [7, 8] {
        b.receive(70, 8);
        stranger.go(1, Send {}, Inline(&[9; 8]));
        stranger.go(2, RdmaWrite { remote }, Inline(&[9; 8]));
        stranger.completes(1, WcStatus::Success);
        stranger.completes(2, WcStatus::Success);
        b.nothing();
        assert_eq!(word(&b, 8), 0);
        a.go(1, Send {}, Inline(&u64::to_ne_bytes(value)));
        a.completes(1, WcStatus::Success);
        b.took(70, WcStatus::Success);
        assert_eq!(word(&b, 0), value);
    }
}

fn each_direction_is_on_its_own(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    for value in 1..50 {
        talks(&mut a, &mut b, value);
        talks(&mut b, &mut a, value ^ 0xff);
    }
    // One that fails sends nothing any more, and is still sent to.
    a.fail_a_send();
    talks(&mut b, &mut a, 1000);
}

fn messages_stay_in_order(p: &Provider) {
    let (mut a, mut b) = pair::<Uc>(p);
    for round in 0..20 {
        for at in 0..50 {
            let room = b.region.sge(at * 8, 8);
            b.post_recv(at as u64, &[room]).expect("room");
        }
        for at in 0..50u64 {
            let bytes = (round << 8 | at).to_ne_bytes();
            a.post(at, Send {}, Inline(&bytes), SIGNALED).expect("room");
        }
        a.qp.sq().ring();
        for at in 0..50 {
            a.completes(at, WcStatus::Success);
            b.took(at, WcStatus::Success);
            assert_eq!(word(&b, at as usize * 8), round << 8 | at);
        }
    }
}
