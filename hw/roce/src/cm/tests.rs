use super::*;
use proptest::prelude::*;

fn ids() -> impl Strategy<Value = Ids> {
    any::<(u32, u32)>().prop_map(|(local, remote)| Ids { local, remote })
}

fn about() -> impl Strategy<Value = About> {
    prop_oneof![Just(About::Req), Just(About::Rep), Just(About::Other)]
}

fn req() -> impl Strategy<Value = Req> {
    let numbers = any::<(u32, u64, u64, u32, u8, u8, u32, u16)>();
    let codes = (
        0..32_u8,
        0..32_u8,
        0..32_u8,
        0..8_u8,
        0..8_u8,
        0..16_u8,
        1..6_u8,
    );
    let path = any::<([u8; 16], [u8; 16], u32, u8, u8, bool, bool, u8)>();
    (numbers, codes, path).prop_map(|(numbers, codes, path)| Req {
        local_id: numbers.0,
        service_id: numbers.1,
        ca_guid: numbers.2,
        qpn: numbers.3 >> 8,
        responder_resources: numbers.4,
        initiator_depth: numbers.5,
        psn: Psn::new(numbers.6),
        pkey: numbers.7,
        remote_response_timeout: codes.0,
        local_response_timeout: codes.1,
        ack_timeout: codes.2,
        retry_count: codes.3,
        rnr_retry_count: codes.4,
        max_cm_retries: codes.5,
        mtu: Mtu::from_number(codes.6).unwrap(),
        local_gid: path.0,
        remote_gid: path.1,
        flow_label: path.2 >> 12,
        traffic_class: path.3,
        hop_limit: path.4,
        unreliable: path.5,
        srq: path.6,
        private: [path.7; 92],
    })
}

fn rep() -> impl Strategy<Value = Rep> {
    let numbers = any::<(u32, u32, u32, u32, u8, u8, u64, bool, u8)>();
    (numbers, 0..32_u8, 0..8_u8).prop_map(|(numbers, target_ack_delay, rnr_retry_count)| Rep {
        local_id: numbers.0,
        remote_id: numbers.1,
        qpn: numbers.2 >> 8,
        psn: Psn::new(numbers.3),
        responder_resources: numbers.4,
        initiator_depth: numbers.5,
        target_ack_delay,
        rnr_retry_count,
        srq: numbers.7,
        ca_guid: numbers.6,
        private: [numbers.8; 196],
    })
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        req().prop_map(Message::Req),
        rep().prop_map(Message::Rep),
        ids().prop_map(Message::Rtu),
        (ids(), about(), any::<u16>(), any::<u8>())
            .prop_map(|(ids, about, reason, byte)| Message::Rej(ids, about, reason, [byte; 148])),
        (ids(), about(), 0..32_u8).prop_map(|(ids, about, time)| Message::Mra(ids, about, time)),
        (ids(), 0..1_u32 << 24).prop_map(|(ids, qpn)| Message::Dreq(ids, qpn)),
        ids().prop_map(Message::Drep),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(message in message(), transaction: u64) {
        let mad = Mad { transaction, message };
        prop_assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), SIZE), attribute in 0..0x20_u16,
    ) {
        let mut bytes = bytes;
        let _ = Mad::decode(&bytes);
        bytes[..4].copy_from_slice(&CLASS);
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        if let Ok(mad) = Mad::decode(&bytes) {
            let again = Mad::decode(&mad.encode());
            prop_assert_eq!(again, Ok(mad));
        }
        prop_assert_eq!(Mad::decode(&bytes[1..]), Err(NotCm));
    }

    #[test]
    fn addresses_are_read_again(port: u16, source: u128, destination: u128, six: bool) {
        let address = |bits: u128| match six {
            true => IpAddr::V6(Ipv6Addr::from_bits(bits)),
            false => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        };
        let header = IpHeader { port, source: address(source), destination: address(destination) };
        let mut bytes = header.encode();
        prop_assert_eq!(IpHeader::decode(&bytes), Some(header));
        prop_assert_eq!(IpHeader::decode(&bytes[1..]), None);
        bytes[1] = 5 << 4;
        prop_assert_eq!(IpHeader::decode(&bytes), None);
    }
}
