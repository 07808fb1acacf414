//! The classification of a fault.

use super::Text;
use super::table::terms;

/// What a fault means for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// How far it reaches.
    pub scope: Scope,
    /// What causes it.
    pub cause: Text,
    /// Which party most likely has to fix it.
    pub blame: Blame,
    /// Whether the same request or call can succeed if it is repeated.
    pub retry: Retry,
    /// What it says about the execution of the request at the peer.
    pub execution: Execution,
    /// How to recover.
    pub recovery: Recovery,
    /// What the operator should look at.
    pub advice: Text,
}

terms! {
    /// How far a fault reaches.
    Scope {
        None = 0, "NONE", "Nothing is broken.";
        Request = 1, "REQUEST", "The one request, or call: everything else works on.";
        Qp = 2, "QP", "The queue pair, and all that is posted to it. Its completion queues work on.";
        Cq = 3, "CQ", "The completion queue, all queue pairs on it, and the completions in it.";
        Srq = 4, "SRQ", "The shared receive queue, and all queue pairs that receive from it.";
        Path = 5, "PATH", "A path or a group in the fabric: what leads there has to be found anew.";
        Port = 6, "PORT", "A port, and what goes through it.";
        Device = 7, "DEVICE", "The device, and everything on it.";
        Connection = 8, "CONNECTION", "A connection: the queue pairs at both of its ends.";
    }
}

terms! {
    /// What most likely caused a fault.
    Blame {
        Nobody = 0, "NONE", "Nobody: it is news, or it follows from another fault.";
        LocalProgram = 1, "LOCAL_PROGRAM", "This program.";
        RemoteProgram = 2, "REMOTE_PROGRAM", "The program at the peer.";
        Fabric = 3, "FABRIC", "Cables, switches, the subnet manager; or the peer is gone.";
        Device = 4, "DEVICE", "The device, its firmware or its driver.";
        Configuration = 5, "CONFIGURATION", "How machines, devices or the fabric are set up.";
        Unknown = 6, "UNKNOWN", "The fault does not say.";
    }
}

terms! {
    /// Whether the same request or call can succeed if it is repeated after the recovery.
    Retry {
        Helps = 0, "HELPS", "It can succeed, as it is.";
        AfterRepair = 1, "AFTER_REPAIR", "It can succeed when something else was mended first.";
        Never = 2, "NEVER", "It cannot succeed as it is: change it.";
        DoesNotApply = 3, "NOT_APPLICABLE", "There is nothing to try again.";
    }
}

terms! {
    /// What a fault says about the execution of the request at the peer.
    Execution {
        Executed = 0, "EXECUTED", "It was executed.";
        NotExecuted = 1, "NOT_EXECUTED", "It was not executed as a whole. A WRITE may have changed a \
                                          part of its target.";
        Unknown = 2, "UNKNOWN", "It may have been executed or not.";
        DoesNotApply = 3, "NOT_APPLICABLE", "Nothing: it is not about a request to the peer.";
    }
}

terms! {
    /// How to recover from a fault.
    Recovery {
        None = 0, "NONE", "Nothing has to be recovered.";
        SqeToRts = 1, "SQE_TO_RTS", "Poll the flushed sends, then take the queue pair from SQE to RTS. \
                                     Receiving goes on meanwhile. If it is in ERR: RESET_QP.";
        ResetQp = 2, "RESET_QP", "Take the queue pair to ERR, drain it, then RESET, INIT, RTR, RTS \
                                  together with the peer.";
        RebuildCq = 3, "REBUILD_CQ", "Destroy the queue pairs on it, destroy it, create it, create the \
                                      queue pairs, connect them again.";
        RebuildSrq = 4, "REBUILD_SRQ", "Take its queue pairs to ERR, wait for LAST_WQE_REACHED of each \
                                        with a deadline, rebuild it, post its receives again, reset the \
                                        queue pairs.";
        RefillSrq = 5, "REFILL_SRQ", "Post receives to it, then set its limit again.";
        WaitForPort = 6, "WAIT_FOR_PORT", "Wait for PORT_ACTIVE, then probe the path before using it.";
        Resolve = 7, "RESOLVE", "Forget the addresses that were looked up, and resolve them again.";
        RejoinMulticast = 8, "REJOIN_MULTICAST", "Join the multicast groups again.";
        LoadAlternatePath = 9, "LOAD_ALTERNATE_PATH", "Load a new alternate path and arm it.";
        Reconnect = 10, "RECONNECT", "Connect again, with a growing delay and a limit.";
        CloseDevice = 11, "CLOSE_DEVICE", "Stop, report all requests, close the device. Teardown \
                                           may fail, and must not be waited for without a bound.";
        DestroyId = 12, "DESTROY_ID", "Destroy the communication identifier and all that it has on the \
                                       device.";
        CloseLink = 13, "CLOSE_LINK", "Report all requests, and end the link.";
    }
}
