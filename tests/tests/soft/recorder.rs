//! The flight recorder: a dump has what the rings still hold, and its text and JSON say the same.

mod failures;
mod notes;
mod operations;
mod queues;
mod rings;
mod said;

use bellwire::be::Be32;
use bellwire::event::EventType;
use bellwire::recorder::{
    Atomic, CompletionEntry, DumpOptions, Inline, Record, Segment, SendEntry, Stage, Target, What,
};
use bellwire::soft::Mode;
use bellwire::state::QpState;
// The payload; the other is what a dump shows of it.
use bellwire::wqe::Inline as Inline2;
use bellwire::wqe::*;
use bellwire::wr::{QpType, SendFlags, Sge, WcStatus};
use bellwire::{ConnectAttr, Cqs, Error, Qp, QpInit, SrqInit};
use bellwire_tests::fixture::*;
use said::says_the_same;
use std::sync::atomic::{AtomicBool, Ordering};

const UNSIGNALED: SendFlags = SendFlags::empty();

fn dump(end: &mut End) -> Record {
    let record = end.qp.dump(&mut end.cq, &DumpOptions::default());
    let record = record.expect("its own completion queue");
    says_the_same(&record);
    record
}

fn segment(sge: Sge) -> Segment {
    Segment {
        addr: sge.addr,
        length: sge.length,
        key: sge.lkey,
    }
}

fn wr_ids(record: &Record) -> Vec<u64> {
    record.sends.iter().map(|send| send.wr_id).collect()
}

fn stages(record: &Record) -> Vec<(u64, Stage, Option<WcStatus>)> {
    let sends = record.sends.iter();
    sends
        .map(|send| (send.wr_id, send.stage, send.status))
        .collect()
}

fn completion(record: &Record, wr_id: u64) -> &CompletionEntry {
    let mut all = record.completions.iter();
    all.find(|of| of.wr_id == Some(wr_id))
        .expect("a completion")
}
