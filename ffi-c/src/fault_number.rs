//! The numbers of faults and of their classes. Generated from core's table of faults by
//! `cargo xtask header`.

/// What became of a request (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_wc_status {
    /// Executed.
    BW_WC_SUCCESS = 0,
    /// A length was not allowed, or a message did not fit its receive.
    BW_WC_LOC_LEN_ERR = 1,
    /// The queue pair cannot do this, or the entry is malformed.
    BW_WC_LOC_QP_OP_ERR = 2,
    /// An end-to-end context error (obsolete).
    BW_WC_LOC_EEC_OP_ERR = 3,
    /// A local key does not cover the memory named, or does not allow the access.
    BW_WC_LOC_PROT_ERR = 4,
    /// Flushed: the queue pair was in an error state before the request was finished.
    BW_WC_WR_FLUSH_ERR = 5,
    /// A memory window could not be bound.
    BW_WC_MW_BIND_ERR = 6,
    /// The responder sent something that was not expected.
    BW_WC_BAD_RESP_ERR = 7,
    /// A local protection error while data came in.
    BW_WC_LOC_ACCESS_ERR = 8,
    /// The responder found the request invalid.
    BW_WC_REM_INV_REQ_ERR = 9,
    /// The responder's key does not cover the memory named, or does not allow the access.
    BW_WC_REM_ACCESS_ERR = 10,
    /// The responder could not do it.
    BW_WC_REM_OP_ERR = 11,
    /// The responder did not answer within the retries.
    BW_WC_RETRY_EXC_ERR = 12,
    /// The responder had no receive posted within the retries.
    BW_WC_RNR_RETRY_EXC_ERR = 13,
    /// A local RDD violation (obsolete).
    BW_WC_LOC_RDD_VIOL_ERR = 14,
    /// The responder found an invalid RD request (obsolete).
    BW_WC_REM_INV_RD_REQ_ERR = 15,
    /// The responder gave the operation up.
    BW_WC_REM_ABORT_ERR = 16,
    /// An invalid end-to-end context number (obsolete).
    BW_WC_INV_EECN_ERR = 17,
    /// An end-to-end context in the wrong state (obsolete).
    BW_WC_INV_EEC_STATE_ERR = 18,
    /// The device reported a fatal error of the request or of itself.
    BW_WC_FATAL_ERR = 19,
    /// A response timed out.
    BW_WC_RESP_TIMEOUT_ERR = 20,
    /// Another error; the vendor's code says more.
    BW_WC_GENERAL_ERR = 21,
    /// Tag matching failed.
    BW_WC_TM_ERR = 22,
    /// Tag matching left a rendezvous to software.
    BW_WC_TM_RNDV_INCOMPLETE = 23,
}

/// What happened that no completion reports (`ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_event_type {
    /// A completion queue failed: it overran, or its memory could not be written.
    BW_EVENT_CQ_ERR = 0,
    /// A queue pair went to the error state, and cannot complete with an error why.
    BW_EVENT_QP_FATAL = 1,
    /// The responder refused a request as invalid, and went to the error state.
    BW_EVENT_QP_REQ_ERR = 2,
    /// The responder refused an access, and went to the error state.
    BW_EVENT_QP_ACCESS_ERR = 3,
    /// The first message came while the queue pair was still in RTR.
    BW_EVENT_COMM_EST = 4,
    /// The send queue is drained: started requests are finished, and no other is begun.
    BW_EVENT_SQ_DRAINED = 5,
    /// The connection moved to the alternate path.
    BW_EVENT_PATH_MIG = 6,
    /// The connection could not move to the alternate path.
    BW_EVENT_PATH_MIG_ERR = 7,
    /// The device failed; nothing on it works any more.
    BW_EVENT_DEVICE_FATAL = 8,
    /// The port's link came up.
    BW_EVENT_PORT_ACTIVE = 9,
    /// The port's link went down.
    BW_EVENT_PORT_ERR = 10,
    /// The port has another LID.
    BW_EVENT_LID_CHANGE = 11,
    /// The port's table of partition keys changed.
    BW_EVENT_PKEY_CHANGE = 12,
    /// The port has another subnet manager.
    BW_EVENT_SM_CHANGE = 13,
    /// A shared receive queue failed.
    BW_EVENT_SRQ_ERR = 14,
    /// A shared receive queue has fewer receives than its limit; the limit is off now.
    BW_EVENT_SRQ_LIMIT_REACHED = 15,
    /// A queue pair in the error state takes no more receives from its shared receive queue.
    BW_EVENT_QP_LAST_WQE_REACHED = 16,
    /// The subnet manager asks to subscribe and register anew.
    BW_EVENT_CLIENT_REREGISTER = 17,
    /// The port's table of GIDs changed.
    BW_EVENT_GID_CHANGE = 18,
    /// A work queue failed.
    BW_EVENT_WQ_FATAL = 19,
}

/// What the communication manager reports (`rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_cm_event_type {
    /// The address was resolved.
    BW_CM_EVENT_ADDR_RESOLVED = 0,
    /// The address could not be resolved.
    BW_CM_EVENT_ADDR_ERROR = 1,
    /// The route was resolved.
    BW_CM_EVENT_ROUTE_RESOLVED = 2,
    /// The route could not be resolved.
    BW_CM_EVENT_ROUTE_ERROR = 3,
    /// A peer wants to connect.
    BW_CM_EVENT_CONNECT_REQUEST = 4,
    /// The peer accepted the connection.
    BW_CM_EVENT_CONNECT_RESPONSE = 5,
    /// The connection could not be made.
    BW_CM_EVENT_CONNECT_ERROR = 6,
    /// The peer does not answer.
    BW_CM_EVENT_UNREACHABLE = 7,
    /// The peer rejected the connection.
    BW_CM_EVENT_REJECTED = 8,
    /// The connection is made.
    BW_CM_EVENT_ESTABLISHED = 9,
    /// The connection is gone.
    BW_CM_EVENT_DISCONNECTED = 10,
    /// The device of the identifier is being removed.
    BW_CM_EVENT_DEVICE_REMOVAL = 11,
    /// A multicast group was joined.
    BW_CM_EVENT_MULTICAST_JOIN = 12,
    /// A multicast group could not be joined, or was lost.
    BW_CM_EVENT_MULTICAST_ERROR = 13,
    /// The network interface of the identifier has another hardware address.
    BW_CM_EVENT_ADDR_CHANGE = 14,
    /// The queue pair may be used again.
    BW_CM_EVENT_TIMEWAIT_EXIT = 15,
}

/// How far a fault reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_scope {
    /// Nothing is broken.
    BW_SCOPE_NONE = 0,
    /// The one request, or call: everything else works on.
    BW_SCOPE_REQUEST = 1,
    /// The queue pair, and all that is posted to it. Its completion queues work on.
    BW_SCOPE_QP = 2,
    /// The completion queue, all queue pairs on it, and the completions in it.
    BW_SCOPE_CQ = 3,
    /// The shared receive queue, and all queue pairs that receive from it.
    BW_SCOPE_SRQ = 4,
    /// A path or a group in the fabric: what leads there has to be found anew.
    BW_SCOPE_PATH = 5,
    /// A port, and what goes through it.
    BW_SCOPE_PORT = 6,
    /// The device, and everything on it.
    BW_SCOPE_DEVICE = 7,
    /// A connection: the queue pairs at both of its ends.
    BW_SCOPE_CONNECTION = 8,
}

/// The part that most likely caused a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_blame {
    /// Nobody: it is news, or it follows from another fault.
    BW_BLAME_NONE = 0,
    /// This program.
    BW_BLAME_LOCAL_PROGRAM = 1,
    /// The program at the peer.
    BW_BLAME_REMOTE_PROGRAM = 2,
    /// Cables, switches, the subnet manager; or the peer is gone.
    BW_BLAME_FABRIC = 3,
    /// The device, its firmware or its driver.
    BW_BLAME_DEVICE = 4,
    /// How machines, devices or the fabric are set up.
    BW_BLAME_CONFIGURATION = 5,
    /// The fault does not say.
    BW_BLAME_UNKNOWN = 6,
}

/// Whether the same request, or call, can succeed if it is tried again after the recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_retry {
    /// It can succeed, as it is.
    BW_RETRY_HELPS = 0,
    /// It can succeed when something else was mended first.
    BW_RETRY_AFTER_REPAIR = 1,
    /// It cannot succeed as it is: change it.
    BW_RETRY_NEVER = 2,
    /// There is nothing to try again.
    BW_RETRY_NOT_APPLICABLE = 3,
}

/// What a fault says of the request at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_execution {
    /// It was executed.
    BW_EXECUTION_EXECUTED = 0,
    /// It was not executed as a whole. A WRITE may have changed a part of its target.
    BW_EXECUTION_NOT_EXECUTED = 1,
    /// It may have been executed or not.
    BW_EXECUTION_UNKNOWN = 2,
    /// Nothing: it is not about a request to the peer.
    BW_EXECUTION_NOT_APPLICABLE = 3,
}

/// What makes work possible again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_recovery {
    /// Nothing has to be recovered.
    BW_RECOVERY_NONE = 0,
    /// Poll the flushed sends, then take the queue pair from SQE to RTS. Receiving goes on
    /// meanwhile. If it is in ERR: RESET_QP.
    BW_RECOVERY_SQE_TO_RTS = 1,
    /// Take the queue pair to ERR, drain it, then RESET, INIT, RTR, RTS together with the peer.
    BW_RECOVERY_RESET_QP = 2,
    /// Destroy the queue pairs on it, destroy it, create it, create the queue pairs, connect them
    /// again.
    BW_RECOVERY_REBUILD_CQ = 3,
    /// Take its queue pairs to ERR, wait for LAST_WQE_REACHED of each with a deadline, rebuild it,
    /// post its receives again, reset the queue pairs.
    BW_RECOVERY_REBUILD_SRQ = 4,
    /// Post receives to it, then set its limit again.
    BW_RECOVERY_REFILL_SRQ = 5,
    /// Wait for PORT_ACTIVE, then probe the path before using it.
    BW_RECOVERY_WAIT_FOR_PORT = 6,
    /// Forget the addresses that were looked up, and resolve them again.
    BW_RECOVERY_RESOLVE = 7,
    /// Join the multicast groups again.
    BW_RECOVERY_REJOIN_MULTICAST = 8,
    /// Load a new alternate path and arm it.
    BW_RECOVERY_LOAD_ALTERNATE_PATH = 9,
    /// Connect again, with a growing delay and a limit.
    BW_RECOVERY_RECONNECT = 10,
    /// Stop, report all requests, close the device. Teardown may fail, and must not be waited for
    /// without a bound.
    BW_RECOVERY_CLOSE_DEVICE = 11,
    /// Destroy the communication identifier and all that it has on the device.
    BW_RECOVERY_DESTROY_ID = 12,
    /// Report all requests, and end the link.
    BW_RECOVERY_CLOSE_LINK = 13,
}
