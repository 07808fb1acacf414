//! Parameters that an end sends for its queue pair and its connection.

use super::super::{Conn, ConnParam};
use crate::device::Device;
use crate::qp::{ConnectAttr, Endpoint};
use bellwire_core::qp::Mtu;

/// The numbers of `rdma_conn_param` (rdma_connect(3)), and the queue pair's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Params {
    /// The sender's queue pair and port.
    pub endpoint: Endpoint,
    /// For datagrams.
    pub qkey: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: bool,
}

impl Params {
    /// The parameters of a queue pair of this end, whose first packet has this PSN.
    pub fn ours(device: &Device, (qp_num, psn): (u32, u32), srq: bool, param: &ConnParam) -> Self {
        const MAX_RETRIES: u8 = 7;
        let depth = device.attr().max_qp_rd_atom;
        Self {
            endpoint: Endpoint {
                psn,
                ..device.endpoint(qp_num, 1, None)
            },
            qkey: 0,
            responder_resources: param.responder_resources.min(depth),
            initiator_depth: param.initiator_depth.min(depth),
            flow_control: param.flow_control,
            // Limited to the three bits of the field in the message.
            retry_count: param.retry_count.min(MAX_RETRIES),
            rnr_retry_count: param.rnr_retry_count.min(MAX_RETRIES),
            srq,
        }
    }

    /// The parameters of the peer that sent these, as the program gets them: what one end requests is
    /// what the other end has to respond to (rdma_get_cm_event(3)).
    pub fn as_received(&self, private_data: Vec<u8>) -> Conn {
        Conn {
            param: ConnParam {
                private_data,
                responder_resources: self.initiator_depth,
                initiator_depth: self.responder_resources,
                flow_control: self.flow_control,
                retry_count: self.retry_count,
                rnr_retry_count: self.rnr_retry_count,
            },
            qp_num: self.endpoint.qp_num,
            srq: self.srq,
        }
    }

    /// The attributes to connect with the peer that sent these: `ours` are the parameters that this end
    /// requested, if it was the requester.
    pub fn connect_attr(&self, ours: Option<&Self>, ack_timeout: Option<u8>) -> ConnectAttr {
        let depth = match ours {
            Some(ours) => ours.initiator_depth.min(self.responder_resources),
            None => self.responder_resources,
        };
        let default = ConnectAttr::default();
        ConnectAttr {
            path_mtu: Mtu::Mtu4096,
            timeout: ack_timeout.unwrap_or(default.timeout),
            // The requester sets the retry count for both ends; the peer sets how often this end retries
            // after RNR.
            retry_cnt: ours.unwrap_or(self).retry_count,
            rnr_retry: self.rnr_retry_count,
            max_rd_atomic: depth,
            ..default
        }
    }

    /// Number of READs and atomics that this end responds to at a time, for the peer that sent these.
    pub fn answered(&self, ours: Option<&Self>) -> u8 {
        ours.map_or(self.initiator_depth, |ours| ours.responder_resources)
    }
}
