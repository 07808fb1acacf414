//! Datagrams: what arrives, what is dropped, and the way back.

mod arriving;
mod dropped;
mod parties;

use super::transports::ends::{NOWHERE, QKEY, Receives, Service, Stands, Talker, pair};
use crate::provider::Provider;
use crate::rule::rules;
use bellwire::be::Be32;
use bellwire::queue::{Imm, Success};
use bellwire::state::{AhAttr, GlobalRoute, QpState};
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{self, LocLenErr, LocProtErr};
use bellwire::{Device, Error, GRH_BYTES, Pd, ah_attr_from_wc};
use bellwire_tests::fixture::*;

use arriving::*;
use dropped::*;
use parties::*;

rules! {
    "ud", "Unreliable datagrams: SEND to whom each request names.", needs [Ud];
    a_message_arrives: "IBTA vol. 1, 9.8.3",
        "A datagram lands behind the first 40 bytes of the receive, whatever its length.";
    immediate_data_arrives: "IBTA vol. 1, 9.8.3; ibv_post_send(3)",
        "The immediate comes with it, as the sender's memory had it.";
    byte_len_counts_the_header: "ibv_poll_cq(3), byte_len",
        "The length is that of the message and of the 40 bytes in front of it.";
    the_sender_is_named: "ibv_poll_cq(3), src_qp and slid",
        "The completion names the sender's queue pair and port.";
    without_a_global_route_there_is_no_header: "ibv_poll_cq(3), IBV_WC_GRH",
        "Sent to a local address: no GRH is announced, and the first 40 bytes stay as they were.";
    a_global_route_comes_as_a_header: "IBTA vol. 1, 8.3; ibv_poll_cq(3), IBV_WC_GRH",
        "The header is in the first 40 bytes: version, class, flow, length, hop limit, both GIDs.";
    an_answer_finds_its_way: "ibv_create_ah_from_wc(3)",
        "A handle made of a completion and its header leads back to the sender, whatever header it is.";
    the_way_back_leads_to_the_sender: "ibv_init_ah_from_wc(3), ibv_create_ah_from_wc(3)",
        "An address handle made from a completion answers it, with and without a global route.";
    there_is_no_way_back_from_anything_else: "ibv_init_ah_from_wc(3)",
        "A header that is not one is refused.";
    the_header_spreads_over_the_elements: "ibv_post_recv(3)",
        "A receive of many elements takes header and message one behind the other.";
    another_qkey_is_dropped: "IBTA vol. 1, 9.8.3.1; 10.2.5",
        "A datagram with a Q_Key that is not the receiver's is dropped, unseen.";
    a_controlled_qkey_is_the_senders_own: "IBTA vol. 1, 10.2.5",
        "With its top bit set the request's Q_Key gives way to the queue pair's.";
    a_new_qkey_holds_at_once: "ibv_modify_qp(3), IBV_QP_QKEY",
        "What is changed in RTS is in force for the next datagram.";
    without_a_receive_it_is_dropped: "IBTA vol. 1, 9.8.3.2",
        "Nothing is reported, nothing waits, and the next one arrives.";
    to_nobody_it_is_dropped: "IBTA vol. 1, 9.8.3.2",
        "A number of no queue pair: the sender succeeds.";
    to_another_transport_it_is_dropped: "IBTA vol. 1, 9.8.3.1",
        "A connected queue pair takes no datagrams.";
    to_another_port_it_is_dropped: "IBTA vol. 1, 9.6",
        "A LID or a GID that is not here: the sender succeeds.";
    a_message_of_the_mtu_arrives: "IBTA vol. 1, 9.8.3.1; ibv_query_port(3), active_mtu",
        "One packet's payload is the longest message.";
    a_message_beyond_the_mtu_fails: "IBTA vol. 1, 9.8.3.1",
        "One byte more completes LOC_LEN_ERR, and the send queue goes to SQE.";
    a_receive_that_is_too_short_fails: "IBTA vol. 1, 10.10.2.3",
        "It completes LOC_LEN_ERR, its queue pair goes to ERR, and the sender succeeds.";
    a_receive_needs_room_for_the_header: "ibv_post_recv(3)",
        "The 40 bytes count, though no header comes.";
    a_local_error_stops_the_send_queue_alone: "IBTA vol. 1, 10.3.1.6",
        "LOC_PROT_ERR, the rest flushed, SQE; receiving goes on, RTS leads out.";
    many_send_to_one: "IBTA vol. 1, 9.8.3",
        "Each sender's datagrams arrive in their order, none twice.";
    one_sends_to_many: "IBTA vol. 1, 9.8.3",
        "Each request names its receiver.";
    a_queue_pair_sends_to_itself: "IBTA vol. 1, 9.8.3",
        "Its own datagram arrives.";
    a_queue_pair_that_fails_itself_reports_each_request_once: "IBTA vol. 1, 10.3.1",
        "Its own datagram does not fit its receive: each request is reported, once.";
    solicited_is_reported: "ibv_post_send(3), IBV_SEND_SOLICITED",
        "The receiver sees that the sender asked for an event.";
    address_handles_are_checked: "ibv_create_ah(3)",
        "Ports, source GIDs and fields that there are not are refused, with their range.";
    addresses_are_queried: "ibv_query_port(3), ibv_query_gid(3), ibv_query_pkey(3)",
        "Port, GID and P_Key tables report their sizes, and refuse what is beyond them.";
}

const OK: WcStatus = WcStatus::Success;
const HEAD: u32 = GRH_BYTES as u32;

fn two(p: &Provider) -> (Talker<Ud>, Talker<Ud>) {
    pair::<Ud>(p)
}

fn here(device: &Device) -> AhAttr {
    device.way_to(&device.endpoint(0, 1, None), 1, None)
}

fn routed(device: &Device) -> AhAttr {
    let here = here(device);
    AhAttr {
        is_global: true,
        grh: GlobalRoute {
            dgid: device.endpoint(0, 1, None).gid,
            flow_label: 0x12345,
            sgid_index: here.grh.sgid_index,
            hop_limit: 9,
            traffic_class: 0x5a,
        },
        ..here
    }
}

/// Sends to this address, not to the pair's other end.
fn send_to(tx: &mut Talker<Ud>, wr_id: u64, attr: &AhAttr, qpn: u32, qkey: u32, bytes: &[u8]) {
    let ah = tx.qp.pd().create_ah(attr).expect("an address handle");
    tx.qp
        .sq()
        .post_inline(wr_id, ah.to(qpn, qkey), Send {}, bytes, SIGNALED)
        .expect("room in the send queue");
    tx.qp.sq().ring();
}

fn arrives(rx: &mut Talker<Ud>, wr_id: u64) -> Success {
    let done = rx.wait();
    assert_eq!(done.wr_id, wr_id);
    done.result.expect("received")
}

fn message(rx: &Talker<Ud>, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rx.region.read(GRH_BYTES, &mut bytes);
    bytes
}
