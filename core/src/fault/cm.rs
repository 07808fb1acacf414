//! Events of the RDMA communication manager. What each means is in rdma_get_cm_event(3).

use super::table::faults;

faults! {
    /// An event of the communication manager (`rdma_cm_event_type`).
    CmEvent {
        AddrResolved = 0, "ADDR_RESOLVED", "The address was resolved.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "rdma_resolve_addr succeeded. Threads that wait for it may go on.",
            advice "Nothing.";
        AddrError = 1, "ADDR_ERROR", "The address could not be resolved.",
            Path Configuration Helps DoesNotApply Resolve,
            cause "rdma_resolve_addr failed: no route, no neighbour, or no RDMA device behind the \
                   interface.",
            advice "The address; `ip route get`, `ip neigh`; `rdma link`.";
        RouteResolved = 2, "ROUTE_RESOLVED", "The route was resolved.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "rdma_resolve_route succeeded. Threads that wait for it may go on.",
            advice "Nothing.";
        RouteError = 3, "ROUTE_ERROR", "The route could not be resolved.",
            Path Fabric Helps DoesNotApply Resolve,
            cause "rdma_resolve_route failed: the subnet manager has no path to the peer, or did not \
                   answer.",
            advice "The subnet manager, partitions, the peer's port.";
        ConnectRequest = 4, "CONNECT_REQUEST", "A peer wants to connect.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "A peer called rdma_connect. Accept or reject it.",
            advice "Nothing.";
        ConnectResponse = 5, "CONNECT_RESPONSE", "The peer accepted the connection.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "An identifier without a queue pair of its own got an answer. Take the queue pair to \
                   RTS, then call rdma_establish.",
            advice "Nothing.";
        ConnectError = 6, "CONNECT_ERROR", "The connection could not be made.",
            Connection Unknown Helps DoesNotApply Reconnect,
            cause "An error while connecting, at either end.",
            advice "The event's status; the same event at the peer; the kernel log.";
        Unreachable = 7, "UNREACHABLE", "The peer does not answer.",
            Connection Fabric Helps DoesNotApply Reconnect,
            cause "The peer is down, cannot be reached, or is too slow to answer.",
            advice "Whether the peer lives and its port is active; the event's status.";
        Rejected = 8, "REJECTED", "The peer rejected the connection.",
            Connection RemoteProgram AfterRepair DoesNotApply Reconnect,
            cause "Nobody listens there, the peer's program refused, or the two do not agree about the \
                   connection's parameters.",
            advice "The event's status, which for InfiniBand is the reason that the CM's REJ message \
                    gives; whether the peer's program listens.";
        Established = 9, "ESTABLISHED", "The connection is made.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "Both ends are connected. Threads that wait for it may go on.",
            advice "Nothing.";
        Disconnected = 10, "DISCONNECTED", "The connection is gone.",
            Connection RemoteProgram Helps Unknown Reconnect,
            cause "The peer disconnected, or its program ended, or this side disconnected itself. \
                   Everything that is posted is flushed.",
            advice "The peer's program, if nobody meant to disconnect.";
        DeviceRemoval = 11, "DEVICE_REMOVAL", "The device of the identifier is being removed.",
            Device Configuration AfterRepair Unknown DestroyId,
            cause "An administrator, the driver or the bus takes the device away. It waits until the \
                   identifier is destroyed.",
            advice "Where the device is removed; the kernel log.";
        MulticastJoin = 12, "MULTICAST_JOIN", "A multicast group was joined.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "rdma_join_multicast succeeded. Threads that wait for it may go on.",
            advice "Nothing.";
        MulticastError = 13, "MULTICAST_ERROR", "A multicast group could not be joined, or was lost.",
            Path Fabric Helps DoesNotApply RejoinMulticast,
            cause "The subnet manager or the network refused the group, or took it away.",
            advice "The subnet manager; multicast on the switches; the group's address.";
        AddrChange = 14, "ADDR_CHANGE", "The network interface of the identifier has another hardware address.",
            Path Configuration Helps DoesNotApply Resolve,
            cause "Often a bond that failed over. The connection stays where it is, which may not be \
                   where the network stack now sends.",
            advice "The bond; which port the connection should use.";
        TimewaitExit = 15, "TIMEWAIT_EXIT", "The queue pair may be used again.",
            None Nobody DoesNotApply DoesNotApply None,
            cause "Packets of the last connection can no longer arrive. Threads that wait to use the queue \
                   pair again may go on.",
            advice "Nothing.";
    }
}
