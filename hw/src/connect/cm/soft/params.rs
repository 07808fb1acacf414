//! What an end says of its queue pair, and of the connection that it wants.

use super::super::{Conn, ConnParam};
use crate::device::Device;
use crate::qp::{ConnectAttr, Endpoint};
use bellwire_core::qp::Mtu;

/// The numbers of `rdma_conn_param` (rdma_connect(3)), and where the queue pair is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Params {
    /// The sender's.
    pub endpoint: Endpoint,
    /// Of datagrams.
    pub qkey: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: bool,
}

impl Params {
    /// Of a queue pair of ours.
    pub fn ours(device: &Device, qp_num: u32, srq: bool, param: &ConnParam) -> Self {
        const MAX_RETRIES: u8 = 7;
        let depth = device.attr().max_qp_rd_atom;
        Self {
            endpoint: device.endpoint(qp_num, 1, None),
            qkey: 0,
            responder_resources: param.responder_resources.min(depth),
            initiator_depth: param.initiator_depth.min(depth),
            flow_control: param.flow_control,
            // As the message's three bits have it.
            retry_count: param.retry_count.min(MAX_RETRIES),
            rnr_retry_count: param.rnr_retry_count.min(MAX_RETRIES),
            srq,
        }
    }

    /// What the program is told of a peer that says this: what one end asks for is what the other is
    /// asked for (rdma_get_cm_event(3)).
    pub fn told(&self, private_data: Vec<u8>) -> Conn {
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

    /// How to connect with a peer that says this: `ours` is what we have asked it, if it was us who
    /// asked.
    pub fn connect_attr(&self, ours: Option<&Self>, ack_timeout: Option<u8>) -> ConnectAttr {
        let depth = match ours {
            Some(ours) => ours.initiator_depth.min(self.responder_resources),
            None => self.responder_resources,
        };
        let default = ConnectAttr::default();
        ConnectAttr {
            path_mtu: Mtu::Mtu4096,
            timeout: ack_timeout.unwrap_or(default.timeout),
            // One end's for both; and how often we knock, the peer says.
            retry_cnt: ours.unwrap_or(self).retry_count,
            rnr_retry: self.rnr_retry_count,
            max_rd_atomic: depth,
            ..default
        }
    }

    /// READs and atomics of a peer that says this which are answered at a time.
    pub fn answered(&self, ours: Option<&Self>) -> u8 {
        ours.map_or(self.initiator_depth, |ours| ours.responder_resources)
    }
}
