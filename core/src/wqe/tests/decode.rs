//! The decoder returns what each operation's builder wrote, and recognizes garbage.

use super::*;
use crate::op::{Carries, WrOpcode};
use crate::wr::QpType;
use std::format;

const IMM: Be32 = Be32::from_raw(0x0102_0304);

/// Posts an operation and returns what `check` finds in the request.
fn decoded<T: Supports<O>, O: Operation, R>(
    address: Address<'_, T>,
    operation: O,
    check: impl Fn(Request<'_>) -> R,
) -> R {
    const FLAGS: u8 = fm_ce_se::SIGNALED | fm_ce_se::FENCE;
    let mut memory = Memory::new(16);
    let ring = memory.send();
    // SAFETY: this is the only poster; nothing is in flight.
    unsafe { build::<T, O, _>(&ring, 15, 7, FLAGS, address, operation, NoPayload) };
    // SAFETY: posted, and not written again.
    let wqe = unsafe { SendWqe::read(ring, 15) };
    for &transport in QpType::ALL {
        let request = wqe.request(transport);
        if transport == T::TYPE {
            assert!(request.is_ok(), "{request:?}");
        } else if !O::OPERATION.runs_on(transport) {
            // An address that is missing may make the entry too short before.
            assert!(matches!(
                request,
                Err(Malformed::Transport(_) | Malformed::Size(_))
            ));
        }
    }
    let request = wqe.request(T::TYPE).expect("just built");
    assert_eq!(request.operation(), O::OPERATION);
    assert!(request.is_signaled() && request.is_fenced() && !request.is_solicited());
    assert!(request.data().is_empty());
    check(request)
}

#[test]
fn every_operation_is_decoded() {
    let words = |request: Request<'_>| (request.imm(), request.invalidates());
    let nothing = |request: Request<'_>| {
        assert_eq!(words(request), (None, None));
        (request.remote(), request.atomic(), request.registration())
    };
    let av = AddressVector::default();
    let (remote, rkey) = (REMOTE, 0x1234_5678);
    assert_eq!(
        decoded::<Rc, _, _>((), Send {}, nothing),
        (None, None, None)
    );
    let (send, write) = (
        SendWithImm { imm: IMM },
        RdmaWriteWithImm { remote, imm: IMM },
    );
    assert_eq!(decoded::<Uc, _, _>((), send, words), (Some(IMM), None));
    assert_eq!(decoded::<Xrc, _, _>(9, write, words), (Some(IMM), None));
    let invalidate = SendWithInv { rkey };
    assert_eq!(
        decoded::<Rc, _, _>((), invalidate, words),
        (None, Some(rkey))
    );
    for found in [
        decoded::<Rc, _, _>((), RdmaWrite { remote }, nothing),
        decoded::<Xrc, _, _>(5, RdmaRead { remote }, nothing),
    ] {
        assert_eq!(found, (Some(REMOTE), None, None));
    }
    let (compare, swap) = (3, 4);
    let operation = AtomicCmpAndSwp {
        remote,
        compare,
        swap,
    };
    let swapped = Some(Atomic::CompareAndSwap { compare, swap });
    let found = decoded::<Rc, _, _>((), operation, nothing);
    assert_eq!(found, (Some(REMOTE), swapped, None));
    let address = DcAddress {
        av: &av,
        dctn: 3,
        dc_key: 4,
    };
    let add = AtomicFetchAndAdd { remote, add: 6 };
    let found = decoded::<Dci, _, _>(address, add, nothing);
    assert_eq!(found, (Some(REMOTE), Some(Atomic::FetchAndAdd(6)), None));
    let found = decoded::<Uc, _, _>((), LocalInv { rkey }, nothing);
    assert_eq!(found, (None, None, Some(Umr::LocalInv { rkey })));
    let to = |request: Request<'_>| request.destination().map(|to| format!("{to:?}"));
    assert_eq!(decoded::<Rc, _, _>((), Nop {}, to), None);
    assert_eq!(
        decoded::<Rc, _, _>((), Send {}, to).as_deref(),
        Some("Peer")
    );
    assert_eq!(
        decoded::<Xrc, _, _>(9, Send {}, to).as_deref(),
        Some("Srq(9)")
    );
    let datagram = UdAddress {
        av: &av,
        remote_qpn: 77,
        remote_qkey: 1,
    };
    decoded::<Ud, _, _>(datagram, SendWithImm { imm: IMM }, |request| {
        let Some(Destination::Address(av)) = request.destination() else {
            panic!("no address")
        };
        assert_eq!(av.dqp_dct.get() & 0xff_ffff, 77);
    });
}

/// Random entries: what is wrong with one is said, and what is not decodes to something within the ring.
#[test]
fn garbage_is_refused_or_bounded() {
    let mut random = Random(11);
    let mut found = [0; 5];
    for _ in 0..if cfg!(miri) { 50 } else { 100_000 } {
        let blocks = 1 << random.below(5);
        let mut memory = Memory::new(blocks);
        for block in &mut memory.0[1..=blocks] {
            block.0.fill_with(|| random.next() as u8);
        }
        let ring = memory.send();
        let counter = random.next() as u32;
        let known = WrOpcode::ALL[random.below(WrOpcode::ALL.len())]
            .row()
            .opcode;
        if random.below(8) != 0 {
            // SAFETY: the last byte of the control segment's first word, which nothing else accesses.
            unsafe { ring.block(counter).add(3).write(known) };
        }
        let transport = QpType::ALL[random.below(QpType::ALL.len())];
        // SAFETY: the ring is initialised, and nothing writes to it.
        let wqe = unsafe { SendWqe::read(ring, counter) };
        match wqe.request(transport) {
            Ok(request) => {
                let operation = request.operation();
                assert_eq!(operation.row().opcode, wqe.opcode());
                assert!(operation.runs_on(transport) && wqe.blocks() as usize <= blocks);
                assert!(request.data_offset() <= wqe.ds() as usize * SEGMENT);
                let (remote, atomic) = (request.remote(), request.atomic());
                assert!(atomic.is_none() || remote.is_some() && operation.has_result());
                if operation.row().carries == Carries::Nothing {
                    assert!(request.data().is_empty());
                }
                core::hint::black_box((request.destination(), request.data().total()));
                found[0] += 1;
            }
            Err(Malformed::Opcode(code)) => {
                assert_eq!((WrOpcode::of_opcode(code), code), (None, wqe.opcode()));
                found[1] += 1;
            }
            Err(Malformed::Transport(operation)) => {
                assert!(!operation.runs_on(transport));
                found[2] += 1;
            }
            Err(Malformed::Size(ds)) => {
                assert_eq!(ds, wqe.ds());
                found[3] += 1;
            }
            Err(Malformed::Registration) => {
                assert_eq!((wqe.opcode(), wqe.umr()), (opcode::UMR, None));
                found[4] += 1;
            }
        }
        assert!(memory.0[0].0 == GUARD.0);
    }
    assert!(
        cfg!(miri) || found.iter().all(|count| *count > 100),
        "{found:?}"
    );
}
