//! Faults to order, of requests to another process.

use bellwire::be::Be32;
use bellwire::soft::{Fault, Mode, Script, Trigger};
use bellwire::wqe::{NoPayload, RdmaWriteWithImm, Send};
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Device};
use bellwire_tests::fixture::*;

/// Requests before the one that is hit. Nothing reports them but a later one.
const BEFORE: u64 = 3;

/// A request that is hit does not report those before it while these are under way: they wait for
/// receives at the peer, and could still be flushed.
#[test]
fn a_request_that_is_hit_waits_for_those_before_it() {
    for (fault, status) in [
        (Fault::Status(WcStatus::LocQpOpErr), WcStatus::LocQpOpErr),
        (Fault::StatusAfter(WcStatus::RemOpErr), WcStatus::RemOpErr),
        (Fault::RemoteAccess, WcStatus::RemAccessErr),
    ] {
        let fabric = fabric_name();
        let (here, there) = (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline));
        let end = |device: &Device| End::new(&device.alloc_pd(), Mode::Inline, &init());
        let (mut a, mut b) = (end(&here), end(&there));
        let attr = ConnectAttr {
            timeout: 18,
            rnr_retry: 7,
            ..ConnectAttr::default()
        };
        connect_with(&mut a.qp, &mut b.qp, &attr);
        let (qp_num, nth) = (a.qp.qp_num(), BEFORE + 1);
        let script = Script::default().with(Trigger::EntryOf { qp_num, nth }, fault);
        here.as_soft()
            .unwrap()
            .inject(&script)
            .expect("a good script");
        for wr_id in 1..=BEFORE {
            a.post(wr_id, Send {}, NoPayload, SendFlags::empty())
                .expect("room");
        }
        let write = RdmaWriteWithImm {
            remote: b.region.remote(0),
            imm: Be32::new(7),
        };
        a.go(4, write, a.region.sge(0, 8));
        a.nothing();
        for wr_id in 1..=BEFORE {
            b.receive(wr_id, &[]);
            assert_eq!(b.outcome(), (wr_id, WcStatus::Success), "{fault:?}");
        }
        let failed = a.wait();
        assert_eq!((failed.wr_id, failed.status()), (4, status), "{fault:?}");
        assert_eq!(u64::from(failed.retired), BEFORE + 1, "{fault:?}");
    }
}
