//! The software HCA fails as the tables say: where a status leaves its queue pair the recovery of its
//! class begins, and after the recovery traffic flows again.

use bellwire::fault::{Fault, Recovery, WcStatus, WorkQueue, classify};
use bellwire::soft::{Fault as Injected, Mode, Script, Trigger};
use bellwire::state::{QpAttr, QpAttrMask, QpState};
use bellwire::wqe::{Inline, Rc, Send, Uc};
use bellwire::wr::{QpType, WrOpcode};
use bellwire::{ConnectAttr, Qp};
use bellwire_tests::fixture::*;

/// Has a SEND complete with each status that is an error, and recovers.
macro_rules! recovers {
    ($test:ident, $transport:ident) => {
        #[test]
        fn $test() {
            let device = device(Mode::Inline);
            let pd = device.alloc_pd();
            let (send, recv) = init().cq_entries_of::<$transport>();
            let mut cq = device.create_cq(send + recv).unwrap();
            let attr = ConnectAttr::default();
            let statuses = WcStatus::ALL.iter().copied();
            // The device takes every status but success for an error; this one is none.
            let errors =
                statuses.filter(|&s| !matches!(s, WcStatus::Success | WcStatus::TmRndvIncomplete));
            for status in errors {
                let mut qp: Qp<$transport> = pd.create_qp_of(&mut cq, &init()).unwrap();
                qp.init(&attr).unwrap();
                qp.connect(&qp.endpoint(), &attr).unwrap();
                let script = Script::default().with(Trigger::Entry(1), Injected::Status(status));
                device.as_soft().unwrap().inject(&script).unwrap();
                for wr_id in [1, 2] {
                    let sent = qp.sq().post_inline(wr_id, (), Send {}, b"lost", SIGNALED);
                    sent.unwrap();
                }
                qp.sq().ring();
                let failure = wait(&mut cq).result.unwrap_err();
                assert_eq!(failure.status, status);
                let flushed = wait(&mut cq);
                assert_eq!((flushed.wr_id, flushed.status()), (2, WcStatus::WrFlushErr));

                let sent = WorkQueue::Send(Some(WrOpcode::Send));
                let fault = Fault::completion(&failure, QpType::$transport, sent);
                match classify(fault).recovery {
                    Recovery::SqeToRts => {
                        assert_eq!(qp.state(), QpState::Sqe, "{status}");
                        let back = QpAttr {
                            qp_state: QpState::Rts,
                            ..QpAttr::default()
                        };
                        qp.modify(&back, QpAttrMask::STATE).unwrap();
                    }
                    Recovery::ResetQp => {
                        assert_eq!(qp.state(), QpState::Err, "{status}");
                        qp.reset(&mut cq, |wr_id, _| panic!("{wr_id} is reported twice"))
                            .unwrap();
                        qp.init(&attr).unwrap();
                        qp.connect(&qp.endpoint(), &attr).unwrap();
                    }
                    other => panic!("{status}: {other}"),
                }

                // SAFETY: no memory is named.
                unsafe { qp.rq().post(3, &[]) }.unwrap();
                qp.rq().ring();
                let sent = qp.sq().post_inline(4, (), Send {}, b"", SIGNALED);
                sent.unwrap();
                qp.sq().ring();
                for _ in 0..2 {
                    assert_eq!(wait(&mut cq).status(), WcStatus::Success, "{status}");
                }
            }
        }
    };
}

recovers!(a_reliable_queue_pair_is_reset, Rc);
recovers!(a_send_queue_of_uc_goes_on_from_sqe, Uc);

/// A receive that fails takes either kind of queue pair to ERR.
#[test]
fn a_receive_that_fails_ends_in_err() {
    let (mut a, mut b) = pair(Mode::Inline);
    b.receive(1, &[b.region.sge(0, 2)]);
    a.go(2, Send {}, Inline(b"longer"));
    let failure = b.wait().result.unwrap_err();
    assert_eq!(failure.status, WcStatus::LocLenErr);
    let fault = Fault::completion(&failure, QpType::Rc, WorkQueue::Recv);
    assert_eq!(classify(fault).recovery, Recovery::ResetQp);
    assert_eq!(b.qp.state(), QpState::Err);
    assert_eq!(a.outcome(), (2, WcStatus::RemInvReqErr));
}
