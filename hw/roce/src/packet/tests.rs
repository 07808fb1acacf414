use super::*;
use crate::opcode::{Place, Trailer};
use proptest::prelude::*;
use std::vec::Vec;

/// Headers of any opcode, with any values.
fn headers() -> impl Strategy<Value = Header> {
    let meaning = any::<u8>().prop_filter_map("an opcode of ours", Operation::decode);
    let flags = any::<(bool, bool, bool, bool)>();
    let values = any::<(u64, u64, u64, u32, u32, [u8; 4], u8, u16)>();
    (meaning, flags, values).prop_map(|((transport, operation), flags, values)| {
        let (addr, swap_add, compare, rkey, length, imm, syndrome, pkey) = values;
        let has = operation.headers(transport);
        let (solicited, fecn, becn, ack_request) = flags;
        let psn = Psn::new(length.rotate_left(7));
        let syndrome = Syndrome::decode(syndrome).unwrap_or(Syndrome::Ack(Syndrome::UNLIMITED));
        Header {
            bth: Bth {
                solicited,
                fecn,
                becn,
                ack_request,
                pkey,
                ..Bth::new(transport, operation, rkey & QPN, psn)
            },
            deth: has.deth.then_some(Deth {
                qkey: length,
                src_qp: rkey & QPN,
            }),
            reth: has.reth.then_some(Reth { addr, rkey, length }),
            atomic: has.atomic.then_some(AtomicEth {
                addr,
                rkey,
                swap_add,
                compare,
            }),
            aeth: has.aeth.then_some(Aeth {
                syndrome,
                msn: length & QPN,
            }),
            original: has.atomic_ack.then_some(swap_add),
            imm: has.imm.then_some(imm),
            invalidate: has.ieth.then_some(rkey),
        }
    })
}

/// The bytes of a packet, without a checksum.
fn bytes(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut room = [0; MAX_HEADER];
    let length = header.encode(payload.len(), &mut room);
    let mut bytes = [&room[..length], payload].concat();
    bytes.resize(bytes.len() + padding(payload.len()), 0);
    bytes
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(header in headers(), payload: Vec<u8>) {
        let payload = if header.bth.operation.has_payload() { &payload[..] } else { &[] };
        let bytes = bytes(&header, payload);
        prop_assert_eq!(Packet::decode(&bytes), Ok(Packet { header, payload }));
    }

    #[test]
    fn a_packet_that_is_cut_is_refused(header in headers(), cut in 1..12_usize) {
        let bytes = bytes(&header, &[]);
        // The reserved bytes of a notification are not looked at.
        if header.bth.operation != Operation::CongestionNotification {
            prop_assert!(Packet::decode(&bytes[..bytes.len() - cut]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
        if let Ok(packet) = Packet::decode(&bytes) {
            prop_assert!(packet.payload.len() + Bth::SIZE <= bytes.len());
        }
    }
}

/// A SEND of five bytes, byte for byte.
#[test]
fn the_layout_of_the_specification() {
    let operation = Operation::Send(Place::Only, Trailer::Immediate);
    let mut header = Header::new(Bth {
        solicited: true,
        ack_request: true,
        ..Bth::new(Transport::Rc, operation, 0x12_3456, Psn::new(0xab_cdef))
    });
    header.imm = Some([1, 2, 3, 4]);
    let expected = [
        0x05, 0xf0, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef, // BTH
        1, 2, 3, 4, // immediate data
        b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
    ];
    assert_eq!(bytes(&header, b"hello"), expected);
}

#[test]
fn errors_name_what_is_wrong() {
    let mut packet = bytes(
        &Header::new(Bth::new(
            Transport::Rc,
            Operation::Send(Place::Only, Trailer::Nothing),
            1,
            Psn::new(2),
        )),
        &[1, 2, 3],
    );
    let decode = |packet: &[u8]| Packet::decode(packet).map(|packet| packet.payload.len());
    assert_eq!(decode(&packet), Ok(3));
    assert_eq!(decode(&packet[..14]), Err(Malformed::Length));
    assert_eq!(decode(&packet[..11]), Err(Malformed::Truncated));
    packet[1] |= 3;
    assert_eq!(decode(&packet), Err(Malformed::Version));
    packet[1] = 0x30;
    assert_eq!(
        decode(&packet[..12]),
        Err(Malformed::Length),
        "padding without a payload"
    );
    packet[0] = 0x15;
    assert_eq!(decode(&packet), Err(Malformed::Opcode));
    // An acknowledgement with a reserved syndrome, and one with a payload.
    let mut ack = [0; 20];
    (ack[0], ack[12]) = (0x11, 0x40);
    assert_eq!(decode(&ack[..16]), Err(Malformed::Syndrome));
    ack[12] = 0;
    assert_eq!(decode(&ack[..16]), Ok(0));
    assert_eq!(decode(&ack), Err(Malformed::Length));
}
