//! Receives that cannot take the message: an error is reported on both sides.

use super::{Case, IMM, Peer, World, case, wrong};
use bellwire::wqe::*;
use bellwire::wr::Sge;
use bellwire::wr::WcStatus::{self, *};

const NAK: &str = "IBTA vol. 1, 9.7.5.2 and 11.6.2";

/// A request, and the receive that it finds.
fn receive(
    name: &'static str,
    says: &'static str,
    (status, theirs): (WcStatus, WcStatus),
    receive: fn(&World) -> Sge,
    bad: fn(&mut World),
) -> Case {
    Case {
        source: NAK,
        receive,
        peer: Peer::Failed(theirs),
        ..case(name, says, status, bad)
    }
}

pub fn cases() -> Vec<Case> {
    let long = (RemInvReqErr, LocLenErr);
    let unreachable = (RemOpErr, LocProtErr);
    vec![
        receive(
            "message_longer_than_the_receive",
            "A SEND longer than its receive",
            long,
            |w| w.b.region.sge(0, 100),
            |w| {
                w.send(Send {}, w.here(101));
            },
        ),
        receive(
            "inline_message_longer_than_the_receive",
            "An inline SEND longer than its receive",
            long,
            |w| w.b.region.sge(0, 3),
            |w| {
                w.send(SendWithImm { imm: IMM }, Inline(&[1; 4]));
            },
        ),
        receive(
            "receive_with_the_key_of_nobody",
            "A SEND to a receive with a bad lkey",
            unreachable,
            |w| {
                let sge = w.b.region.sge(0, 9);
                Sge {
                    lkey: wrong(sge.lkey),
                    ..sge
                }
            },
            |w| w.send(Send {}, w.here(8)),
        ),
        receive(
            "receive_into_closed_memory",
            "A SEND to a receive into memory without LOCAL_WRITE",
            unreachable,
            |w| w.closed.sge(0, 100),
            |w| {
                w.send(Send {}, w.here(64));
            },
        ),
        receive(
            "receive_into_another_domain",
            "A SEND to a receive into another protection domain",
            unreachable,
            |w| w.foreign.sge(0, 100),
            |w| {
                w.send(Send {}, w.here(64));
            },
        ),
        receive(
            "receive_into_memory_that_is_gone",
            "A SEND to a receive into deregistered memory",
            unreachable,
            |w| w.gone.0,
            |w| {
                w.send(Send {}, w.here(8));
            },
        ),
        receive(
            "receive_over_the_regions_end",
            "A SEND to a receive beyond its region",
            unreachable,
            |w| w.b.region.sge(w.b.region.len() - 63, 64),
            |w| w.send(Send {}, w.here(64)),
        ),
    ]
}
