//! Asynchronous events. Their meanings are defined in ibv_get_async_event(3) and the IBTA specification,
//! 11.6.3.

use super::table::faults;

faults! {
    /// An event that is not reported by a completion (`ibv_event_type`).
    EventType {
        CqErr = 0, "CQ_ERR", "A completion queue failed: it overran, or its memory could not be written.",
            Cq LocalProgram Helps Unknown RebuildCq,
            cause "More completions than entries: queue pairs were attached to it with more requests \
                   than it has room for, or it was not polled. Completions are lost, and those still \
                   in it cannot be trusted.",
            advice "The completion queue's size against the sum of the send and receive queues on it.";
        QpFatal = 1, "QP_FATAL", "A queue pair went to the error state, and cannot complete with an error why.",
            Qp Device Helps Unknown ResetQp,
            cause "The device could not read or process the queue pair's entries, or its completion \
                   queue failed, which CQ_ERR reports.",
            advice "Whether CQ_ERR came too; the kernel log; firmware.";
        QpReqErr = 2, "QP_REQ_ERR", "The responder refused a request as invalid, and went to the error state.",
            Qp RemoteProgram Helps Unknown ResetQp,
            cause "The peer sent what this queue pair does not take: an operation it does not have, a \
                   wrong length, too many READs and atomics at once.",
            advice "What the peer posts: it has REM_INV_REQ_ERR. Access flags and max_dest_rd_atomic \
                    here, max_rd_atomic there.";
        QpAccessErr = 3, "QP_ACCESS_ERR", "The responder refused an access, and went to the error state.",
            Qp RemoteProgram Helps Unknown ResetQp,
            cause "The peer used a key, an address or a right that it does not have.",
            advice "Which keys the peer uses: it has REM_ACCESS_ERR. Memory that is deregistered \
                    before the peer knows.";
        CommEst = 4, "COMM_EST", "The first message came while the queue pair was still in RTR.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "The peer began to send before this side went to RTS. Threads that wait for the connection may go on.",
            advice "Nothing.";
        SqDrained = 5, "SQ_DRAINED", "The send queue is drained: started requests are finished, and no other is begun.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "A program took the queue pair to SQD. Threads that wait for the drain may go on.",
            advice "Nothing.";
        PathMig = 6, "PATH_MIG", "The connection moved to the alternate path.",
            Path Fabric DoesNotApply DoesNotApply LoadAlternatePath,
            cause "The primary path failed, or a program or the peer asked for the move. Requests go \
                   on over the other path, and no second one is left.",
            advice "The path that was left: cables, switches, ports.";
        PathMigErr = 7, "PATH_MIG_ERR", "The connection could not move to the alternate path.",
            Path Configuration DoesNotApply DoesNotApply LoadAlternatePath,
            cause "The alternate path is not loaded, not armed at both ends, or does not lead to the \
                   peer. The connection stays on its path.",
            advice "The alternate path's address, port and P_Key at both ends.";
        DeviceFatal = 8, "DEVICE_FATAL", "The device failed; nothing on it works any more.",
            Device Device AfterRepair Unknown CloseDevice,
            cause "Hardware, firmware, driver or the bus; or an administrator reset the device.",
            advice "The kernel log; PCI errors; temperature; firmware. Open the device again when it \
                    is back.";
        PortActive = 9, "PORT_ACTIVE", "The port's link came up.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "The link trained, and for InfiniBand the subnet manager activated the port. Threads that wait for the port may go on, but probes the path first: addresses may have \
                   changed, and packets may not pass yet.",
            advice "Nothing, if it is not often.";
        PortErr = 10, "PORT_ERR", "The port's link went down.",
            Port Fabric Helps DoesNotApply WaitForPort,
            cause "A cable, the switch or the interface is down, or an administrator took it down. \
                   Requests under way go on if the link is back within their retries; else each \
                   completes with RETRY_EXC_ERR.",
            advice "Cable, transceiver, switch port; `ip link`, `ibstat`, `rdma link`.";
        LidChange = 11, "LID_CHANGE", "The port has another LID.",
            Port Fabric Helps DoesNotApply Resolve,
            cause "The subnet manager gave the port another address. Peers that use the old one do not \
                   reach it.",
            advice "Why the subnet manager renumbered: a restart, two of them, a lost cache.";
        PkeyChange = 12, "PKEY_CHANGE", "The port's table of partition keys changed.",
            Port Configuration Helps DoesNotApply Resolve,
            cause "The subnet manager or an administrator changed partitions. An index that was looked \
                   up may now name another key.",
            advice "The subnet manager's partitions.";
        SmChange = 13, "SM_CHANGE", "The port has another subnet manager.",
            Port Fabric Helps DoesNotApply RejoinMulticast,
            cause "The subnet manager moved to another node. What it knew of multicast members may be \
                   lost.",
            advice "Why the master subnet manager changed.";
        SrqErr = 14, "SRQ_ERR", "A shared receive queue failed.",
            Srq Device Helps Unknown RebuildSrq,
            cause "The device could not read or process its entries. No queue pair can receive from it \
                   any more.",
            advice "The kernel log; firmware; whether something overwrote the queue's memory.";
        SrqLimitReached = 15, "SRQ_LIMIT_REACHED", "A shared receive queue has fewer receives than its limit; the limit is off now.",
            Srq LocalProgram DoesNotApply DoesNotApply RefillSrq,
            cause "Messages came faster than receives were posted. Nothing has failed yet.",
            advice "If it is often: post earlier, or more; a larger queue.";
        QpLastWqeReached = 16, "QP_LAST_WQE_REACHED", "A queue pair in the error state takes no more receives from its shared receive queue.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "It follows when such a queue pair goes to ERR. Threads that wait to reset or destroy it, \
                   or to rebuild the queue, may go on.",
            advice "What took the queue pair to ERR, if nobody here did.";
        ClientReregister = 17, "CLIENT_REREGISTER", "The subnet manager asks to subscribe and register anew.",
            Port Fabric Helps DoesNotApply RejoinMulticast,
            cause "The subnet manager lost, or may have lost, what clients had registered with it.",
            advice "Whether the subnet manager was restarted.";
        GidChange = 18, "GID_CHANGE", "The port's table of GIDs changed.",
            Port Configuration Helps DoesNotApply Resolve,
            cause "For RoCE, an IP address or a VLAN was added or removed, often with the link; for \
                   InfiniBand, the subnet manager. An index that was looked up may now name another \
                   address, or none.",
            advice "Addresses of the network interface; what manages them.";
        WqFatal = 19, "WQ_FATAL", "A work queue failed.",
            Qp Device Helps Unknown ResetQp,
            cause "A receive work queue, as packet queue pairs use them, went to its error state. \
                   bellwire creates none.",
            advice "The kernel log; firmware.";
    }
}
