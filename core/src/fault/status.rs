//! Completion statuses. Their meanings are defined in the IBTA specification, 11.6.2, and in ibv_poll_cq(3).
//!
//! The rows describe a send request on a reliable connection; `classify` handles the other cases.

use super::table::faults;

faults! {
    /// The status of a completed request (`ibv_wc_status`).
    WcStatus {
        Success = 0, "SUCCESS", "Executed.",
            None Nobody DoesNotApply Executed None,
            cause "Nothing went wrong.",
            advice "Nothing.";
        LocLenErr = 1, "LOC_LEN_ERR", "A length was not allowed, or a message did not fit its receive.",
            Qp LocalProgram Never NotExecuted ResetQp,
            cause "A send is longer than the port or the transport takes. A receive was shorter than \
                   the message that came for it. A READ brought more than its memory holds.",
            advice "Compare the sizes of the sender's messages with those of the receives, and \
                    datagrams with the path MTU.";
        LocQpOpErr = 2, "LOC_QP_OP_ERR", "The queue pair cannot do this, or the entry is malformed.",
            Qp LocalProgram Never NotExecuted ResetQp,
            cause "An operation that the transport or the queue pair's set-up does not have, or an \
                   entry that the device cannot read.",
            advice "Check the opcode, the flags and the number of elements of the request against how \
                    the queue pair was created. If they are right: driver and firmware.";
        LocEecOpErr = 3, "LOC_EEC_OP_ERR", "An end-to-end context error (obsolete).",
            Qp Device AfterRepair Unknown ResetQp,
            cause "Of reliable datagrams, which no device has.",
            advice "Driver and firmware: no device should report it.";
        LocProtErr = 4, "LOC_PROT_ERR", "A local key does not cover the memory named, or does not allow the access.",
            Qp LocalProgram Never NotExecuted ResetQp,
            cause "An element's key is wrong, was deregistered or belongs to another protection domain; or its range \
                   leaves the region. Or the region lacks LOCAL_WRITE, where a receive, a READ or an atomic writes.",
            advice "Compare key, address and length of the request's elements with the registration; look for memory that is deregistered too early.";
        WrFlushErr = 5, "WR_FLUSH_ERR", "Flushed: the queue pair was in an error state before the request was finished.",
            Qp Nobody Helps Unknown ResetQp,
            cause "Another request of the queue pair failed before, an asynchronous event reports \
                   the queue pair's error, or a program took it to ERR. On Soft-RoCE also: the kernel \
                   refused the call that posts, and the vendor code is its error number.",
            advice "The first completion of this queue pair that failed otherwise, and the \
                    asynchronous events: those have the cause. Vendor code 13 (EACCES) on Soft-RoCE: the \
                    process changed its user after it opened the device; open the device afterwards.";
        MwBindErr = 6, "MW_BIND_ERR", "A memory window could not be bound.",
            Qp LocalProgram Never NotExecuted ResetQp,
            cause "The region lacks MW_BIND, or rights that the window is to give; the range leaves \
                   the region; or a window of type 2 was bound already.",
            advice "Compare the region's access rights with the window's, and invalidate a window of \
                    type 2 before it is bound again.";
        BadRespErr = 7, "BAD_RESP_ERR", "The responder sent something that was not expected.",
            Qp Device Helps Unknown ResetQp,
            cause "An answer with an opcode or a length that does not belong to the request. The two \
                   ends may disagree about the connection, or a packet is of an earlier one.",
            advice "Whether both ends connected to each other with the packet sequence numbers that \
                    they exchanged; then firmware at both ends.";
        LocAccessErr = 8, "LOC_ACCESS_ERR", "A local protection error while data came in.",
            Qp LocalProgram AfterRepair Unknown ResetQp,
            cause "Memory of this side that data was being written to is not registered for that, or \
                   not any more.",
            advice "Memory that is deregistered, or whose rights are changed, while requests use it.";
        RemInvReqErr = 9, "REM_INV_REQ_ERR", "The responder found the request invalid.",
            Qp LocalProgram AfterRepair NotExecuted ResetQp,
            cause "The message was longer than the peer's receive, or the peer does not take this operation (rights \
                   of its queue pair, its transport). Or more READs and atomics were under way than it has \
                   resources for.",
            advice "The peer's receives and its QP access flags; max_rd_atomic here against \
                    max_dest_rd_atomic there. The peer has an event or a failed receive of its own.";
        RemAccessErr = 10, "REM_ACCESS_ERR", "The responder's key does not cover the memory named, or does not allow the access.",
            Qp LocalProgram AfterRepair NotExecuted ResetQp,
            cause "The rkey is wrong, was deregistered or invalidated, or belongs to another \
                   protection domain; the range leaves the region; or region or queue pair do not \
                   allow the access.",
            advice "Compare rkey, address and length with what the peer registered and announced; look \
                    for keys of an earlier life of the peer.";
        RemOpErr = 11, "REM_OP_ERR", "The responder could not do it.",
            Qp RemoteProgram AfterRepair Unknown ResetQp,
            cause "The peer failed while it executed the request: a malformed receive, a receive \
                   whose key does not cover its memory, an error of its queue pair.",
            advice "The peer: its failed receives, its asynchronous events, its kernel log.";
        RetryExcErr = 12, "RETRY_EXC_ERR", "The responder did not answer within the retries.",
            Qp Fabric Helps Unknown ResetQp,
            cause "Packets or acknowledgements were lost, the peer's queue pair is gone or in error, \
                   the peer is down, or timeout and retry_cnt are too short for the fabric.",
            advice "Whether the peer lives and its port is active; link error counters; for RoCE the \
                    GID, the MTU and whether loss is prevented (PFC, ECN); timeout and retry_cnt.";
        RnrRetryExcErr = 13, "RNR_RETRY_EXC_ERR", "The responder had no receive posted within the retries.",
            Qp RemoteProgram Helps NotExecuted ResetQp,
            cause "The peer posts receives too late, or not as many as this side takes it to; or \
                   rnr_retry and the peer's min_rnr_timer are too short.",
            advice "How receives and credits are counted at both ends; whether the peer's program is \
                    stuck; rnr_retry 7 tries without a limit.";
        LocRddViolErr = 14, "LOC_RDD_VIOL_ERR", "A local RDD violation (obsolete).",
            Qp Device AfterRepair Unknown ResetQp,
            cause "Of reliable datagrams, which no device has.",
            advice "Driver and firmware: no device should report it.";
        RemInvRdReqErr = 15, "REM_INV_RD_REQ_ERR", "The responder found an invalid RD request (obsolete).",
            Qp Device AfterRepair Unknown ResetQp,
            cause "Of reliable datagrams, which no device has.",
            advice "Driver and firmware: no device should report it.";
        RemAbortErr = 16, "REM_ABORT_ERR", "The responder gave the operation up.",
            Qp Device Helps Unknown ResetQp,
            cause "The device aborted the message halfway: for a receive, because the queue pair or \
                   its shared receive queue failed, or a page was not there.",
            advice "Asynchronous events and kernel logs at both ends; the vendor's code.";
        InvEecnErr = 17, "INV_EECN_ERR", "An invalid end-to-end context number (obsolete).",
            Qp Device AfterRepair Unknown ResetQp,
            cause "Of reliable datagrams, which no device has.",
            advice "Driver and firmware: no device should report it.";
        InvEecStateErr = 18, "INV_EEC_STATE_ERR", "An end-to-end context in the wrong state (obsolete).",
            Qp Device AfterRepair Unknown ResetQp,
            cause "Of reliable datagrams, which no device has.",
            advice "Driver and firmware: no device should report it.";
        FatalErr = 19, "FATAL_ERR", "The device reported a fatal error of the request or of itself.",
            Qp Device AfterRepair Unknown ResetQp,
            cause "The device failed, or an error for which its driver has no other status. A failed \
                   device also raises DEVICE_FATAL, whose recovery then holds.",
            advice "Whether DEVICE_FATAL came; the kernel log; firmware; the vendor's code.";
        RespTimeoutErr = 20, "RESP_TIMEOUT_ERR", "A response timed out.",
            Qp Fabric Helps Unknown ResetQp,
            cause "The peer took the request, as far as is known, and its response did not come in \
                   time.",
            advice "As for RETRY_EXC_ERR: the peer, its port, lost packets.";
        GeneralErr = 21, "GENERAL_ERR", "Another error; the vendor's code says more.",
            Qp Unknown AfterRepair Unknown ResetQp,
            cause "An error for which the verbs have no status.",
            advice "The vendor's code, with the device's documentation; the kernel log; firmware.";
        TmErr = 22, "TM_ERR", "Tag matching failed.",
            Qp LocalProgram Never Unknown ResetQp,
            cause "A request of a tag matching shared receive queue was malformed, or came out of \
                   step with the device.",
            advice "The program's tag matching requests. bellwire itself posts none.";
        TmRndvIncomplete = 23, "TM_RNDV_INCOMPLETE", "Tag matching left a rendezvous to software.",
            Request Nobody DoesNotApply Unknown None,
            cause "The device matched a rendezvous message and could not fetch it: the program has to. \
                   The queue pair works on.",
            advice "Nothing, if the program finishes the rendezvous. bellwire itself starts none.";
    }
}
