use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const V4: Flow = Flow {
    addresses: Addresses::V4(Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)),
    source_port: 49441,
    destination_port: 4791,
};

const V6: Flow = Flow {
    addresses: Addresses::V6(
        Ipv6Addr::LOCALHOST,
        Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4),
    ),
    source_port: 49441,
    destination_port: 4791,
};

/// A datagram with a checksum.
fn sealed(flow: &Flow, identification: u16, packet: &[u8]) -> Vec<u8> {
    let mut datagram = [packet, &[0; SIZE]].concat();
    seal(flow, identification, &mut datagram);
    datagram
}

#[test]
fn the_vector_of_ieee_802_3() {
    assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
    let register = b"123456789".iter().fold(u32::MAX, |register, byte| {
        (register >> 8) ^ BYTE[usize::from(register as u8 ^ byte)]
    });
    assert_eq!(!register, 0xcbf4_3926);
}

#[test]
fn shifts_are_taken_back() {
    for length in [0, 1, 2, 7, 255, 4096, 65535] {
        let mut hasher = Hasher::new_with_initial(!0x1234_5678);
        hasher.update(&vec![0; length]);
        assert_eq!(unshift(!hasher.finalize(), length), 0x1234_5678, "{length}");
    }
}

proptest! {
    #[test]
    fn an_intact_packet_passes(
        packet in proptest::collection::vec(any::<u8>(), 12..300), identification: u16, six: bool,
    ) {
        let flow = if six { V6 } else { V4 };
        let datagram = sealed(&flow, identification, &packet);
        let identification = (!six).then_some(identification);
        prop_assert_eq!(check(&flow, &datagram), Ok(Intact { packet: &packet, identification }));
    }

    #[test]
    fn a_flipped_bit_does_not(
        packet in proptest::collection::vec(any::<u8>(), 12..300), at: proptest::sample::Index, bit in 0..8_u32,
    ) {
        let mut datagram = sealed(&V6, 0, &packet);
        let at = at.index(datagram.len());
        datagram[at] ^= 1_u8 << bit;
        // The reserved byte is not covered.
        prop_assert_eq!(check(&V6, &datagram).is_err(), at != RESERVED);
    }

    #[test]
    fn any_identification_is_solved_for(before: u32, bytes: [u8; 2]) {
        let after = bytes.iter().fold(before, |register, byte| {
            (register >> 8) ^ BYTE[usize::from(register as u8 ^ byte)]
        });
        prop_assert_eq!(identification(before, after), Some(bytes));
        prop_assert_eq!(identification(before, after ^ 1 << 20), None);
    }
}

#[test]
fn of_all_identifications_one_fits() {
    let datagram = sealed(&V4, 0xbeef, &[7; 40]);
    let (packet, icrc) = datagram.split_last_chunk::<SIZE>().unwrap();
    let fits =
        |identification: &u16| sealed(&V4, *identification, packet)[packet.len()..] == icrc[..];
    assert_eq!((0..=u16::MAX).filter(fits).collect::<Vec<_>>(), [0xbeef]);
}

#[test]
fn another_flow_is_noticed() {
    let datagram = sealed(&V4, 0, &[7; 40]);
    let mut other = V4;
    other.source_port ^= 0x100;
    assert_eq!(check(&other, &datagram), Err(WrongIcrc));
}

#[test]
fn short_ones_are_refused() {
    for length in 0..9 {
        assert_eq!(check(&V4, &vec![0; length]), Err(WrongIcrc));
        assert_eq!(check(&V6, &vec![0; length]), Err(WrongIcrc));
    }
    assert_eq!(check(&V4, &vec![0; 70_000]), Err(WrongIcrc));
}

/// 16 bits of protection remain: of 2^16 wrong packets one passes.
#[test]
fn a_flipped_bit_beside_an_unknown_identification() {
    let datagram = sealed(&V4, 0xbeef, &[7; 4096]);
    let bits = (0..datagram.len() * 8).filter(|bit| bit / 8 != RESERVED);
    let passes = |bit: &usize| {
        let mut datagram = datagram.clone();
        datagram[bit / 8] ^= 1 << (bit % 8);
        check(&V4, &datagram).is_ok()
    };
    let passed = bits.step_by(3).filter(passes).count();
    assert!(passed <= 4, "{passed} of {}", datagram.len() * 8 / 3);
}
