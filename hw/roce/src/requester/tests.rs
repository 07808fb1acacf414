use super::*;
use crate::opcode::Place;
use crate::packet::{AtomicEth, Bth, Reth};
use crate::request::Extra;
use std::vec;
use std::vec::Vec;

const FIRST: Psn = Psn::new(0xff_fffe);
const ZERO: Duration = Duration::ZERO;

/// Memory of one request after another, 1,000 bytes each.
#[derive(Default)]
struct Memory {
    placed: Vec<(u64, u32, usize)>,
}

impl Results for Memory {
    fn place(&mut self, id: u64, offset: u32, data: &[u8]) -> Result<(), Unplaceable> {
        self.placed.push((id, offset, data.len()));
        (offset as usize + data.len() <= 1000)
            .then_some(())
            .ok_or(Unplaceable)
    }
}

struct Ends {
    requester: Requester,
    memory: Memory,
}

fn attr() -> RequesterAttr {
    RequesterAttr {
        dest_qp: 9,
        mtu: Mtu::Mtu256,
        sq_psn: FIRST,
        // 1.05 ms.
        timeout: 8,
        retry_cnt: 2,
        rnr_retry: 1,
        max_rd_atomic: 2,
    }
}

const READ: Verb = Verb::Read {
    addr: 1 << 40,
    rkey: 6,
};
const SEND: Verb = Verb::Send(Extra::Nothing);

impl Ends {
    fn new(requests: &[(Verb, u32)]) -> Self {
        let mut ends = Self {
            requester: Requester::new(&attr(), 100).unwrap(),
            memory: Memory::default(),
        };
        for (id, (verb, length)) in requests.iter().enumerate() {
            ends.post(id as u64, *verb, *length, false).unwrap();
        }
        ends
    }

    fn post(&mut self, id: u64, verb: Verb, length: u32, fence: bool) -> Result<(), Refused> {
        let solicited = false;
        self.requester.post(Request {
            id,
            verb,
            length,
            solicited,
            fence,
        })
    }

    /// The packets that are sent, by their number from the first on.
    fn sent(&mut self, now: Duration) -> Vec<u32> {
        let requester = &mut self.requester;
        core::iter::from_fn(|| requester.poll_transmit(now))
            .map(|transmit| transmit.header.bth.psn.since(FIRST).cast_unsigned())
            .collect()
    }

    fn says(&mut self, at: u32, syndrome: Syndrome, now: Duration) {
        let mut header = Header::new(Bth::new(
            Transport::Rc,
            Operation::Acknowledge,
            8,
            FIRST.plus(at),
        ));
        header.aeth = Some(Aeth { syndrome, msn: 0 });
        let packet = Packet {
            header,
            payload: &[],
        };
        self.requester.receive(&packet, now, &mut self.memory);
    }

    fn acks(&mut self, at: u32) {
        self.says(at, Syndrome::Ack(0), ZERO);
    }

    fn answers(&mut self, at: u32, place: Place, length: usize) {
        let psn = FIRST.plus(at);
        let operation = Operation::ReadResponse(place);
        let header = Header::new(Bth::new(Transport::Rc, operation, 8, psn));
        let payload = &[1; 512][..length];
        self.requester
            .receive(&Packet { header, payload }, ZERO, &mut self.memory);
    }

    fn completed(&mut self) -> Vec<(u64, WcStatus)> {
        let requester = &mut self.requester;
        core::iter::from_fn(|| requester.poll_completion())
            .map(|completion| (completion.id, completion.status))
            .collect()
    }
}

use WcStatus::Success;

#[test]
fn an_acknowledgement_speaks_for_all_before_it() {
    let mut ends = Ends::new(&[(SEND, 600), (SEND, 0), (SEND, 1)]);
    assert_eq!(ends.sent(ZERO), [0, 1, 2, 3, 4]);
    ends.acks(1);
    assert_eq!(ends.completed(), []);
    ends.acks(3);
    assert_eq!(ends.completed(), [(0, Success), (1, Success)]);
    // Late ones, and one of a packet that was never sent.
    ends.acks(3);
    ends.acks(5);
    assert_eq!(
        (ends.completed(), ends.requester.counters().stale),
        (vec![], 2)
    );
    ends.acks(4);
    assert_eq!(ends.completed(), [(2, Success)]);
    assert_eq!(ends.requester.poll_timeout(), None);
}

#[test]
fn a_gap_is_sent_again_from_its_start() {
    let mut ends = Ends::new(&[(SEND, 600), (SEND, 1)]);
    assert_eq!(ends.sent(ZERO), [0, 1, 2, 3]);
    ends.says(1, Syndrome::Nak(Nak::PsnSequence), ZERO);
    assert_eq!(ends.sent(ZERO), [1, 2, 3]);
    // The first packets are acknowledged while they are sent again.
    ends.says(1, Syndrome::Nak(Nak::PsnSequence), ZERO);
    ends.acks(2);
    assert_eq!(ends.sent(ZERO), [3]);
    ends.acks(3);
    assert_eq!(ends.completed(), [(0, Success), (1, Success)]);
}

#[test]
fn silence_ends_a_request_after_its_retries() {
    let mut ends = Ends::new(&[(SEND, 1), (SEND, 1)]);
    let mut now = ZERO;
    for tried in 1..=3 {
        assert_eq!(ends.sent(now), [0, 1]);
        let end = ends.requester.poll_timeout().unwrap();
        assert_eq!(end - now, Duration::from_nanos(4096 << 8));
        // Early calls do nothing.
        ends.requester.handle_timeout(now);
        assert_eq!(ends.sent(now), []);
        now = end;
        ends.requester.handle_timeout(now);
        assert_eq!(ends.requester.counters().timeouts, tried);
    }
    assert_eq!(ends.sent(now), []);
    assert_eq!(
        ends.completed(),
        [(0, WcStatus::RetryExcErr), (1, WcStatus::WrFlushErr)]
    );
    assert_eq!(ends.requester.poll_timeout(), None);
}

#[test]
fn progress_renews_the_retries() {
    let mut ends = Ends::new(&[(SEND, 1), (SEND, 1)]);
    for at in [0, 1] {
        for _ in 0..2 {
            let _ = ends.sent(ZERO);
            ends.says(at, Syndrome::Nak(Nak::PsnSequence), ZERO);
        }
        let _ = ends.sent(ZERO);
        ends.acks(at);
    }
    assert_eq!(ends.completed(), [(0, Success), (1, Success)]);
}

#[test]
fn a_peer_without_a_receive_is_left_alone_for_the_time_that_it_says() {
    let mut ends = Ends::new(&[(SEND, 1), (SEND, 1)]);
    assert_eq!(ends.sent(ZERO), [0, 1]);
    // Code 7: 0.12 ms.
    ends.says(1, Syndrome::RnrNak(7), ZERO);
    assert_eq!(ends.completed(), [(0, Success)]);
    let end = Duration::from_micros(120);
    assert_eq!(
        (ends.sent(end / 2), ends.requester.poll_timeout()),
        (vec![], Some(end))
    );
    ends.requester.handle_timeout(end);
    assert_eq!(ends.sent(end), [1]);
    // One retry is all that there is.
    ends.says(1, Syndrome::RnrNak(7), end);
    assert_eq!(ends.completed(), [(1, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn errors_are_of_the_request_that_they_name() {
    for (nak, status) in [
        (Nak::InvalidRequest, WcStatus::RemInvReqErr),
        (Nak::RemoteAccess, WcStatus::RemAccessErr),
        (Nak::RemoteOperational, WcStatus::RemOpErr),
        (Nak::Other(4), WcStatus::RemOpErr),
    ] {
        let mut ends = Ends::new(&[(SEND, 1), (SEND, 600), (SEND, 1)]);
        let _ = ends.sent(ZERO);
        ends.says(2, Syndrome::Nak(nak), ZERO);
        let expected = [(0, Success), (1, status), (2, WcStatus::WrFlushErr)];
        assert_eq!(ends.completed(), expected);
        assert_eq!(
            (ends.sent(ZERO), ends.requester.poll_timeout()),
            (vec![], None)
        );
    }
}

#[test]
fn a_read_takes_a_number_for_each_answer() {
    let mut ends = Ends::new(&[(SEND, 1), (READ, 600), (SEND, 1)]);
    assert_eq!(ends.sent(ZERO), [0, 1, 4]);
    ends.answers(1, Place::First, 256);
    assert_eq!(
        ends.completed(),
        [(0, Success)],
        "an answer acknowledges what is before it"
    );
    ends.answers(2, Place::Middle, 256);
    ends.answers(3, Place::Last, 88);
    ends.acks(4);
    assert_eq!(ends.completed(), [(1, Success), (2, Success)]);
    assert_eq!(
        ends.memory.placed,
        [(1, 0, 256), (1, 256, 256), (1, 512, 88)]
    );
}

#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut ends = Ends::new(&[(READ, 600), (SEND, 1)]);
    assert_eq!(ends.sent(ZERO), [0, 3]);
    ends.answers(0, Place::First, 256);
    // The last came, and the acknowledgement: the second answer is lost.
    ends.answers(2, Place::Last, 88);
    ends.acks(3);
    let again = ends.requester.poll_transmit(ZERO).unwrap().header;
    let (addr, rkey, length) = ((1 << 40) + 256, 6, 344);
    assert_eq!(
        (again.bth.psn, again.reth),
        (FIRST.plus(1), Some(Reth { addr, rkey, length }))
    );
    assert_eq!(ends.sent(ZERO), [3]);
    assert_eq!(ends.requester.counters().lost_responses, 1);
    ends.answers(1, Place::First, 256);
    ends.answers(2, Place::Last, 88);
    ends.acks(3);
    assert_eq!(ends.completed(), [(0, Success), (1, Success)]);
}

#[test]
fn answers_that_do_not_fit_end_the_request() {
    for (place, length, status) in [
        (Place::First, 255, WcStatus::BadRespErr),
        (Place::First, 257, WcStatus::BadRespErr),
        (Place::Only, 0, WcStatus::BadRespErr),
    ] {
        let mut ends = Ends::new(&[(READ, 600)]);
        let _ = ends.sent(ZERO);
        ends.answers(0, place, length);
        assert_eq!(
            (ends.completed(), ends.memory.placed.len()),
            (vec![(0, status)], 0)
        );
    }
    // An answer to a SEND.
    let mut ends = Ends::new(&[(SEND, 1)]);
    let _ = ends.sent(ZERO);
    ends.answers(0, Place::Only, 1);
    assert_eq!(ends.completed(), [(0, WcStatus::BadRespErr)]);
    // Memory that may not be written.
    let mut ends = Ends::new(&[(READ, 1001)]);
    let _ = ends.sent(ZERO);
    for at in 0..3 {
        ends.answers(at, Place::Middle, 256);
    }
    ends.answers(3, Place::Last, 233);
    assert_eq!(ends.completed(), [(0, WcStatus::LocProtErr)]);
}

#[test]
fn no_more_reads_are_under_way_than_agreed() {
    let add = Verb::FetchAdd {
        addr: 8,
        rkey: 6,
        add: 1,
    };
    let mut ends = Ends::new(&[(READ, 1), (add, 8), (add, 8), (SEND, 1)]);
    let first = ends.requester.poll_transmit(ZERO).unwrap();
    assert!(first.header.reth.is_some());
    let second = ends.requester.poll_transmit(ZERO).unwrap();
    let (addr, rkey, swap_add, compare) = (8, 6, 1, 0);
    let expected = AtomicEth {
        addr,
        rkey,
        swap_add,
        compare,
    };
    assert_eq!(second.header.atomic, Some(expected));
    assert_eq!(ends.sent(ZERO), []);
    ends.answers(0, Place::Only, 1);
    assert_eq!(ends.sent(ZERO), [2, 3]);
}

#[test]
fn a_fence_waits_for_reads_and_not_when_it_is_sent_again() {
    let mut ends = Ends::new(&[(READ, 1)]);
    ends.post(1, SEND, 1, true).unwrap();
    ends.post(2, READ, 1, false).unwrap();
    assert_eq!(ends.sent(ZERO), [0]);
    ends.answers(0, Place::Only, 1);
    assert_eq!(ends.sent(ZERO), [1, 2]);
    ends.says(1, Syndrome::Nak(Nak::PsnSequence), ZERO);
    assert_eq!(ends.sent(ZERO), [1, 2]);
}

#[test]
fn a_paused_queue_finishes_what_it_has_begun() {
    let mut ends = Ends::new(&[(SEND, 600), (SEND, 1)]);
    assert!(ends.requester.poll_transmit(ZERO).is_some());
    ends.requester.pause();
    assert_eq!(
        (ends.sent(ZERO), ends.requester.is_drained()),
        (vec![1, 2], false)
    );
    ends.says(1, Syndrome::Nak(Nak::PsnSequence), ZERO);
    assert_eq!(ends.sent(ZERO), [1, 2]);
    ends.acks(2);
    assert!(ends.requester.is_drained());
    ends.requester.resume();
    assert_eq!(ends.sent(ZERO), [3]);
}

#[test]
fn the_window_bounds_what_is_under_way() {
    let mut ends = Ends::new(&[(SEND, 100 * 256)]);
    let window = ends.requester.window();
    let mut sent = Vec::new();
    while let Some(transmit) = ends.requester.poll_transmit(ZERO) {
        sent.push(transmit.header.bth.ack_request);
    }
    assert_eq!((sent.len() as u32, sent.last()), (window, Some(&true)));
    ends.acks(window - 1);
    assert_eq!(ends.requester.window(), 2 * window);
    ends.requester.congested();
    assert_eq!(ends.requester.window(), window);
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let mut ends = Ends::new(&[]);
    assert_eq!(ends.post(0, SEND, u32::MAX, false), Err(Refused::Length));
    assert_eq!(
        ends.post(
            0,
            Verb::FetchAdd {
                addr: 0,
                rkey: 0,
                add: 0
            },
            4,
            false
        ),
        Err(Refused::Length)
    );
    // The numbers of two that are outstanding would not compare rightly.
    ends.post(0, SEND, 1 << 30, false).unwrap();
    assert_eq!(ends.post(1, SEND, 1 << 30, false), Err(Refused::Full));
    for id in 1..100 {
        ends.post(id, SEND, 0, false).unwrap();
    }
    assert_eq!(ends.post(100, SEND, 0, false), Err(Refused::Full));
    let mut attr = attr();
    attr.max_rd_atomic = 0;
    ends.requester = Requester::new(&attr, 1).unwrap();
    assert_eq!(ends.post(0, READ, 1, false), Err(Refused::NoReads));
}

#[test]
fn the_caller_can_end_all() {
    let mut ends = Ends::new(&[(SEND, 1), (SEND, 1)]);
    let _ = ends.sent(ZERO);
    ends.acks(0);
    ends.requester.fail(WcStatus::LocProtErr);
    assert_eq!(ends.completed(), [(0, Success), (1, WcStatus::LocProtErr)]);
    assert!(ends.requester.has_failed());
}
