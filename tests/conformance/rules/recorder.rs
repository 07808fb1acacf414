//! The flight recorder: what a dump of a queue pair shows.

use crate::provider::Provider;
use crate::rule::rules;
use bellwire::recorder::{DumpOptions, Record, Stage};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{Cqs, Qp};
use bellwire_tests::fixture::*;

rules! {
    "recorder", "What a dump of a queue pair shows.", needs [Rc];
    what_was_reported_is_shown: "Qp::dump",
        "Requests that were reported are shown with their status, those before them without; and so are the \
         completions.";
    the_failed_and_the_flushed_are_shown: "Qp::dump",
        "Of a queue pair that failed the failed request and those flushed behind it are shown, polled or \
         not.";
    a_dump_takes_nothing_away: "Qp::dump",
        "After a dump everything is reported that would have been, once.";
    queues_that_complete_apart_are_both_shown: "Qp::dump",
        "With two completion queues the completions of both are shown.";
}

fn dump(end: &mut End) -> Record {
    let options = DumpOptions::default();
    end.qp.dump(&mut end.cq, &options).expect("a dump")
}

fn sends(record: &Record) -> Vec<(u64, Stage, Option<WcStatus>)> {
    let sends = record.sends.iter();
    sends
        .map(|send| (send.wr_id, send.stage, send.status))
        .collect()
}

fn completions(record: &Record) -> Vec<(Option<u64>, bool, Option<WcStatus>)> {
    let completions = record.completions.iter();
    completions
        .map(|of| (of.wr_id, of.polled, of.status))
        .collect()
}

const SUCCESS: Option<WcStatus> = Some(WcStatus::Success);

fn what_was_reported_is_shown(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let remote = b.region.remote(0);
    b.receive(70, &[b.region.sge(0, 64)]);
    let sge = a.region.sge(0, 8);
    a.post(1, RdmaWrite { remote }, sge, SendFlags::empty())
        .expect("room");
    a.go(2, Send {}, sge);
    assert_eq!(a.outcome(), (2, WcStatus::Success));
    assert_eq!(b.outcome(), (70, WcStatus::Success));
    let record = dump(&mut a);
    let expected = [(1, Stage::Retired, None), (2, Stage::Retired, SUCCESS)];
    assert_eq!(sends(&record), expected, "{record}");
    assert_eq!(completions(&record), [(Some(2), true, SUCCESS)], "{record}");
    let remote_at = record.sends[0].remote.expect("it has one");
    assert_eq!((remote_at.addr, remote_at.key), (remote.addr, remote.rkey));
    let record = dump(&mut b);
    let receive = &record.receives[0];
    let shown = (receive.wr_id, receive.stage, receive.status);
    assert_eq!(shown, (70, Stage::Retired, SUCCESS), "{record}");
    assert_eq!(
        completions(&record),
        [(Some(70), true, SUCCESS)],
        "{record}"
    );
}

fn the_failed_and_the_flushed_are_shown(p: &Provider) {
    let (mut a, b) = p.pair();
    let mut remote = b.region.remote(0);
    remote.rkey ^= 0xff00;
    let sge = a.region.sge(0, 8);
    a.post(1, RdmaWrite { remote }, sge, SIGNALED)
        .expect("room");
    a.post(2, RdmaWrite { remote }, sge, SendFlags::empty())
        .expect("room");
    a.qp.sq().ring();
    until("the failure", || a.qp.state() == QpState::Err);
    assert_eq!(a.outcome(), (1, WcStatus::RemAccessErr));
    assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr));
    let record = dump(&mut a);
    assert_eq!(record.state, QpState::Err);
    assert_eq!(record.dest_qp_num, b.qp.qp_num());
    let failed = Some(WcStatus::RemAccessErr);
    let flushed = Some(WcStatus::WrFlushErr);
    let expected = [(1, Stage::Retired, failed), (2, Stage::Retired, flushed)];
    assert_eq!(sends(&record), expected, "{record}");
    let both = [(Some(1), true, failed), (Some(2), true, flushed)];
    assert_eq!(completions(&record), both, "{record}");
}

fn a_dump_takes_nothing_away(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for wr_id in 0..20 {
        b.receive(wr_id, &[b.region.sge(0, 64)]);
        a.go(wr_id, Send {}, a.region.sge(0, 8));
        assert_eq!(dump(&mut a).sends.len() as u64, wr_id + 1);
        assert_eq!(dump(&mut b).receives.len() as u64, wr_id + 1);
    }
    for wr_id in 0..20 {
        assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
        dump(&mut a);
        assert_eq!(b.outcome(), (wr_id, WcStatus::Success));
        dump(&mut b);
    }
    a.nothing();
    b.nothing();
}

fn queues_that_complete_apart_are_both_shown(p: &Provider) {
    let pd = p.device().alloc_pd();
    let init = init();
    let (sends, receives) = init.cq_entries();
    let mut send_cq = pd.device().create_cq(sends).expect("a queue");
    let mut recv_cq = pd.device().create_cq(receives).expect("a queue");
    let cqs = Cqs::Split(&mut send_cq, &mut recv_cq);
    let mut qp: Qp = pd.create_qp(cqs, &init).expect("a queue pair");
    let connect = bellwire::ConnectAttr::default();
    qp.init(&connect).expect("INIT");
    let own = qp.endpoint();
    qp.connect(&own, &connect).expect("RTS");
    // SAFETY: no memory.
    unsafe { qp.rq().post(70, &[]).expect("room") };
    qp.rq().ring();
    qp.sq().post_empty(1, (), Send {}, SIGNALED).expect("room");
    qp.sq().ring();
    assert_eq!(wait(&mut send_cq).wr_id, 1);
    assert_eq!(wait(&mut recv_cq).wr_id, 70);
    let cqs = Cqs::Split(&mut send_cq, &mut recv_cq);
    let record = qp.dump(cqs, &DumpOptions::default()).expect("a dump");
    let both = [(Some(1), true, SUCCESS), (Some(70), true, SUCCESS)];
    assert_eq!(completions(&record), both, "{record}");
    let cqns: Vec<_> = record.completions.iter().map(|of| of.cqn).collect();
    assert_eq!(cqns, [send_cq.cqn(), recv_cq.cqn()]);
}
