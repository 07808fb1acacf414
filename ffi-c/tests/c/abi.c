/*
 * What the header says to a C compiler, in numbers: those of libibverbs' verbs.h, and the layouts
 * that programs were compiled with. None of them may ever change. Some input that only C can give is
 * tried too.
 */
#include <bellwire.h>
/* Once more, as by another header. */
#include <bellwire.h>
#include <stdio.h>
#include <string.h>

#define SAME(a, b) _Static_assert((a) == (b), #a)

/* enum ibv_wr_opcode */
SAME(BW_WR_RDMA_WRITE, 0);
SAME(BW_WR_RDMA_WRITE_WITH_IMM, 1);
SAME(BW_WR_SEND, 2);
SAME(BW_WR_SEND_WITH_IMM, 3);
SAME(BW_WR_RDMA_READ, 4);
SAME(BW_WR_ATOMIC_CMP_AND_SWP, 5);
SAME(BW_WR_ATOMIC_FETCH_AND_ADD, 6);
SAME(BW_WR_LOCAL_INV, 7);
SAME(BW_WR_BIND_MW, 8);
SAME(BW_WR_SEND_WITH_INV, 9);

/* enum ibv_wc_status */
SAME(BW_WC_SUCCESS, 0);
SAME(BW_WC_LOC_LEN_ERR, 1);
SAME(BW_WC_LOC_QP_OP_ERR, 2);
SAME(BW_WC_LOC_EEC_OP_ERR, 3);
SAME(BW_WC_LOC_PROT_ERR, 4);
SAME(BW_WC_WR_FLUSH_ERR, 5);
SAME(BW_WC_MW_BIND_ERR, 6);
SAME(BW_WC_BAD_RESP_ERR, 7);
SAME(BW_WC_LOC_ACCESS_ERR, 8);
SAME(BW_WC_REM_INV_REQ_ERR, 9);
SAME(BW_WC_REM_ACCESS_ERR, 10);
SAME(BW_WC_REM_OP_ERR, 11);
SAME(BW_WC_RETRY_EXC_ERR, 12);
SAME(BW_WC_RNR_RETRY_EXC_ERR, 13);
SAME(BW_WC_LOC_RDD_VIOL_ERR, 14);
SAME(BW_WC_REM_INV_RD_REQ_ERR, 15);
SAME(BW_WC_REM_ABORT_ERR, 16);
SAME(BW_WC_INV_EECN_ERR, 17);
SAME(BW_WC_INV_EEC_STATE_ERR, 18);
SAME(BW_WC_FATAL_ERR, 19);
SAME(BW_WC_RESP_TIMEOUT_ERR, 20);
SAME(BW_WC_GENERAL_ERR, 21);
SAME(BW_WC_TM_ERR, 22);
SAME(BW_WC_TM_RNDV_INCOMPLETE, 23);

/* enum ibv_wc_opcode */
SAME(BW_WC_SEND, 0);
SAME(BW_WC_RDMA_WRITE, 1);
SAME(BW_WC_RDMA_READ, 2);
SAME(BW_WC_COMP_SWAP, 3);
SAME(BW_WC_FETCH_ADD, 4);
SAME(BW_WC_BIND_MW, 5);
SAME(BW_WC_LOCAL_INV, 6);
SAME(BW_WC_TSO, 7);
SAME(BW_WC_RECV, 1 << 7);
SAME(BW_WC_RECV_RDMA_WITH_IMM, (1 << 7) + 1);

/* enum ibv_wc_flags, ibv_send_flags, ibv_access_flags, ibv_qp_state, ibv_mtu */
SAME(BW_WC_GRH, 1 << 0);
SAME(BW_WC_WITH_IMM, 1 << 1);
SAME(BW_WC_WITH_INV, 1 << 3);
SAME(BW_SEND_FENCE, 1 << 0);
SAME(BW_SEND_SIGNALED, 1 << 1);
SAME(BW_SEND_SOLICITED, 1 << 2);
SAME(BW_SEND_INLINE, 1 << 3);
SAME(BW_ACCESS_LOCAL_WRITE, 1 << 0);
SAME(BW_ACCESS_REMOTE_WRITE, 1 << 1);
SAME(BW_ACCESS_REMOTE_READ, 1 << 2);
SAME(BW_ACCESS_REMOTE_ATOMIC, 1 << 3);
SAME(BW_ACCESS_MW_BIND, 1 << 4);
SAME(BW_ACCESS_ZERO_BASED, 1 << 5);
SAME(BW_ACCESS_ON_DEMAND, 1 << 6);
SAME(BW_ACCESS_HUGETLB, 1 << 7);
SAME(BW_ACCESS_RELAXED_ORDERING, 1 << 20);
SAME(BW_QPS_RESET, 0);
SAME(BW_QPS_INIT, 1);
SAME(BW_QPS_RTR, 2);
SAME(BW_QPS_RTS, 3);
SAME(BW_QPS_SQD, 4);
SAME(BW_QPS_SQE, 5);
SAME(BW_QPS_ERR, 6);
SAME(BW_MTU_256, 1);
SAME(BW_MTU_4096, 5);

/* enum ibv_qp_type, ibv_qp_attr_mask, ibv_mw_type, ibv_mig_state, ibv_port_state, ibv_event_type */
SAME(BW_QPT_RC, 2);
SAME(BW_QPT_UC, 3);
SAME(BW_QPT_UD, 4);
SAME(BW_QPT_XRC_SEND, 9);
SAME(BW_QPT_XRC_RECV, 10);
SAME(BW_QP_STATE, 1 << 0);
SAME(BW_QP_QKEY, 1 << 6);
SAME(BW_QP_MAX_QP_RD_ATOMIC, 1 << 13);
SAME(BW_QP_DEST_QPN, 1 << 20);
SAME(BW_QP_RATE_LIMIT, 1 << 25);
SAME(BW_MW_TYPE_1, 1);
SAME(BW_MW_TYPE_2, 2);
SAME(BW_MIG_ARMED, 2);
SAME(BW_PORT_DOWN, 1);
SAME(BW_PORT_ACTIVE, 4);
SAME(BW_EVENT_CQ_ERR, 0);
SAME(BW_EVENT_QP_FATAL, 1);
SAME(BW_EVENT_DEVICE_FATAL, 8);
SAME(BW_EVENT_SRQ_LIMIT_REACHED, 15);
SAME(BW_EVENT_WQ_FATAL, 19);

/* enum rdma_cm_event_type */
SAME(BW_CM_EVENT_ADDR_RESOLVED, 0);
SAME(BW_CM_EVENT_ADDR_ERROR, 1);
SAME(BW_CM_EVENT_ROUTE_RESOLVED, 2);
SAME(BW_CM_EVENT_ROUTE_ERROR, 3);
SAME(BW_CM_EVENT_CONNECT_REQUEST, 4);
SAME(BW_CM_EVENT_CONNECT_RESPONSE, 5);
SAME(BW_CM_EVENT_CONNECT_ERROR, 6);
SAME(BW_CM_EVENT_UNREACHABLE, 7);
SAME(BW_CM_EVENT_REJECTED, 8);
SAME(BW_CM_EVENT_ESTABLISHED, 9);
SAME(BW_CM_EVENT_DISCONNECTED, 10);
SAME(BW_CM_EVENT_DEVICE_REMOVAL, 11);
SAME(BW_CM_EVENT_MULTICAST_JOIN, 12);
SAME(BW_CM_EVENT_MULTICAST_ERROR, 13);
SAME(BW_CM_EVENT_ADDR_CHANGE, 14);
SAME(BW_CM_EVENT_TIMEWAIT_EXIT, 15);

/* bellwire's own. */
SAME(BW_OK, 0);
SAME(BW_ENULL, -1);
SAME(BW_EINTERNAL, -20);
SAME(BW_EFATAL, -24);
SAME(BW_ETIMEDOUT, -25);
SAME(BW_ECONN, -26);
SAME(BW_EPROTO, -27);
SAME(BW_EUNSUPPORTED, -28);
SAME(BW_ERECOVERING, -29);
SAME(BW_EENDED, -30);
SAME(BW_ECONCURRENT, -31);
SAME(BW_ENOBLOCK, -32);
SAME(BW_ERETURNED, -33);
SAME(BW_ENOLINK, -34);
SAME(BW_EFAULT, -35);
SAME(BW_EFORK, -36);
SAME(BW_WR_NOP, 255);
SAME(BW_WC_NOP, 127);
SAME(BW_SCOPE_CONNECTION, 8);
SAME(BW_BLAME_UNKNOWN, 6);
SAME(BW_RETRY_NOT_APPLICABLE, 3);
SAME(BW_EXECUTION_NOT_APPLICABLE, 3);
SAME(BW_RECOVERY_DESTROY_ID, 12);
SAME(BW_RECOVERY_CLOSE_LINK, 13);
SAME(BW_FAMILY_ERRNO, 3);
SAME(BW_FAMILY_PEER, 4);
SAME(BW_PEER_RECOVERS, 0);
SAME(BW_PEER_CLOSED, 1);
SAME(BW_PEER_LOST, 2);
SAME(BW_PEER_RESTARTED, 3);
SAME(BW_PEER_GAVE_UP, 4);
SAME(BW_FAMILY_LINK, 5);
SAME(BW_DEADLINE_MISSED, 0);
SAME(BW_KEEP_ALIVE_MISSED, 1);
SAME(BW_RECV_LIMIT_EXCEEDED, 2);
SAME(BW_CANCELLED, 3);
SAME(BW_CANCEL_REQUESTED, 0);
SAME(BW_CANCEL_FORWARDED, 3);
SAME(BW_QUEUE_SRQ, 2);
SAME(BW_VENDOR_CONNECTX, 1);
SAME(BW_OUTCOME_EXECUTED, 0);
SAME(BW_OUTCOME_IN_DOUBT, 3);
SAME(BW_DOUBT_NONE, 0);
SAME(BW_DOUBT_LOCAL, 6);
SAME(BW_DOUBT_CANCELLED, 7);
SAME(BW_DOUBT_DEADLINE_PASSED, 8);
SAME(BW_REPLAY_ANYWAY, 2);
SAME(BW_RECOVER_IN_THREAD, 1);
SAME(BW_LINK_RECOVERING, 0);
SAME(BW_LINK_PEER_CLOSED, 3);
SAME(BW_LINK_GAVE_UP, 4);
SAME(BW_END_GAVE_UP, 2);

/* Structs that never change. */
SAME(sizeof(bw_sge), 16);
SAME(offsetof(bw_sge, lkey), 12);
SAME(sizeof(bw_block), sizeof(bw_sge));
SAME(offsetof(bw_block, length), offsetof(bw_sge, length));
SAME(offsetof(bw_block, lkey), offsetof(bw_sge, lkey));
SAME(sizeof(bw_slab_class), 8);
SAME(offsetof(bw_slab_class, count), 4);
SAME(sizeof(bw_wc), 48);
SAME(offsetof(bw_wc, status), 8);
SAME(offsetof(bw_wc, imm_data), 20);
SAME(offsetof(bw_wc, retired), 36);
SAME(offsetof(bw_wc, slid), 44);
SAME(sizeof(bw_completion), 40);
SAME(offsetof(bw_completion, status), 16);
SAME(offsetof(bw_completion, opcode), 24);
SAME(offsetof(bw_completion, byte_cnt), 28);
SAME(sizeof(bw_rdma_wr), 40);
SAME(offsetof(bw_rdma_wr, remote_addr), 24);
SAME(sizeof(bw_mw_bind_info), 24);
SAME(sizeof(bw_ah_attr), 32);
SAME(offsetof(bw_ah_attr, dlid), 24);
SAME(sizeof(bw_soft_step), 32);
SAME(offsetof(bw_soft_step, qp_num), 28);
#if UINTPTR_MAX == UINT64_MAX
SAME(offsetof(bw_send_wr, num_sge), 16);
SAME(offsetof(bw_send_wr, remote_addr), 32);
SAME(offsetof(bw_send_wr, swap), 56);
SAME(offsetof(bw_send_wr, remote_srqn), 80);
SAME(offsetof(bw_send_wr, bind), 96);
SAME(sizeof(bw_send_wr), 120);
SAME(sizeof(bw_recv_wr), 24);
SAME(offsetof(bw_recv_wr, num_sge), 16);
#endif

/* Structs that grow: what they had in the first version stays where it was. A size that changes is
   added to `SIZES` of the struct, and the one before stays there. */
SAME(offsetof(bw_soft_config, seed), 16);
SAME(offsetof(bw_device_info, max_msg_sz), 232);
SAME(offsetof(bw_mr_info, rkey), 28);
SAME(offsetof(bw_region_attr, in_core_files), 28);
SAME(offsetof(bw_region_info, text), 48);
SAME(offsetof(bw_slab_info, outstanding), 16);
SAME(offsetof(bw_link_retry, longest_ns), 24);
SAME(BW_PROVIDER_VERBS, 1);
SAME(BW_PROVIDER_MLX5, 2);
SAME(offsetof(bw_cq_attr, reserved), 12);
SAME(offsetof(bw_dump_attr, flags), 12);
SAME(offsetof(bw_cq_info, stale), 16);
SAME(offsetof(bw_qp_init_attr, reserve_cq), 28);
SAME(offsetof(bw_connect_attr, max_rd_atomic), 28);
SAME(offsetof(bw_connect_attr, gid_index), 40);
SAME(offsetof(bw_connect_attr, sl), 44);
SAME(offsetof(bw_endpoint, reserved), 12);
SAME(offsetof(bw_conn_info, length), 24);
SAME(offsetof(bw_qp_attr, ah_attr), 60);
SAME(offsetof(bw_qp_attr, qp_type), 184);
SAME(offsetof(bw_qp_attr, udp_sport), 188);
SAME(offsetof(bw_srq_init_attr, srq_limit), 12);
SAME(offsetof(bw_srq_info, srq_limit), 16);
SAME(offsetof(bw_port_info, max_msg_sz), 32);
SAME(offsetof(bw_async_event_info, number), 12);
SAME(offsetof(bw_fault, vendor_err), 32);
SAME(offsetof(bw_class, recovery), 20);
SAME(offsetof(bw_link_wc, status), 16);
SAME(offsetof(bw_link_wc, retired), 36);
SAME(offsetof(bw_link_info, unreported), 44);
SAME(offsetof(bw_link_info, why), 48);
SAME(offsetof(bw_link_counters, recovered), 8);
SAME(BW_SCOPE_MAX, 16);
SAME(offsetof(bw_link_counters, faults), 104);
SAME(offsetof(bw_link_counters, recv_failed), 232);
SAME(offsetof(bw_recovery_report, took_ns), 24);
SAME(sizeof(bw_soft_config), 24);
SAME(sizeof(bw_device_info), 272);
SAME(sizeof(bw_resources), 32);
SAME(sizeof(bw_mr_info), 32);
SAME(sizeof(bw_region_attr), 32);
SAME(sizeof(bw_region_info), 176);
SAME(sizeof(bw_slab_info), 24);
SAME(sizeof(bw_port_info), 40);
SAME(sizeof(bw_cq_info), 32);
SAME(sizeof(bw_srq_init_attr), 16);
SAME(sizeof(bw_srq_info), 20);
SAME(sizeof(bw_connect_attr), 68);
SAME(sizeof(bw_endpoint), 36);
SAME(sizeof(bw_conn_info), 32);
SAME(sizeof(bw_qp_attr), 192);
SAME(sizeof(bw_async_event_info), 16);
SAME(sizeof(bw_dump_attr), 16);
SAME(offsetof(bw_fault, named_number), 40);
SAME(sizeof(bw_fault), 44);
SAME(sizeof(bw_link_retry), 32);
SAME(sizeof(bw_link_wc), 40);
SAME(offsetof(bw_link_set_wc, wc), 8);
SAME(sizeof(bw_link_set_wc), 48);
SAME(offsetof(bw_wait, spin_ns), 8);
SAME(offsetof(bw_wait, fds), 24);
SAME(offsetof(bw_link_info, held), 304);
SAME(sizeof(bw_link_info), 312);
SAME(offsetof(bw_link_counters, cancelled), 256);
SAME(sizeof(bw_link_counters), 272);
SAME(BW_OPERATION_MAX, 16);
SAME(BW_OPERATION_NOP, 15);
SAME(offsetof(bw_queue_counters, receives), 264);
SAME(sizeof(bw_queue_counters), 336);
SAME(sizeof(bw_device_counters), 24);
#if UINTPTR_MAX == UINT64_MAX
SAME(sizeof(bw_cq_attr), 32);
SAME(sizeof(bw_wait), 32);
SAME(sizeof(bw_qp_init_attr), 56);
SAME(sizeof(bw_cm_event), 336);
SAME(sizeof(bw_cm_param), 24);
SAME(sizeof(bw_class), 56);
SAME(offsetof(bw_link_init, srq_max_held), 184);
SAME(sizeof(bw_link_init), 192);
SAME(offsetof(bw_link_set_info, receives_posted), 24);
SAME(sizeof(bw_recovery_report), 40);
SAME(offsetof(bw_class, advice), 48);
SAME(offsetof(bw_link_init, memory_addr), 24);
SAME(offsetof(bw_link_init, seed), 144);
SAME(offsetof(bw_link_init, request_deadline_ns), 168);
SAME(offsetof(bw_link_init, keep_alive_ns), 176);
#endif

#define EXPECT(what)                                                                              \
    if (!(what)) {                                                                                \
        fprintf(stderr, "line %d: " #what " (%s)\n", __LINE__, bw_last_error());                  \
        return 1;                                                                                 \
    }

int main(void)
{
    bw_device *device = NULL;

    EXPECT(bw_version() == BW_VERSION);
    EXPECT(bw_version_check(BW_VERSION) == BW_OK);
    EXPECT(bw_version_check(BW_VERSION + 1) == BW_EVERSION);
    EXPECT(strlen(bw_last_error()) > 0);
    EXPECT(bw_device_open("no such device", &device) == BW_ENODEV && device == NULL);
    EXPECT(strstr(bw_last_error(), "no such device") != NULL);
    EXPECT(strcmp(bw_strerror(BW_EFULL), bw_strerror(BW_ESTATE)) != 0);
    EXPECT(strcmp(bw_error_name(BW_ECQFAILED), "BW_ECQFAILED") == 0);
    EXPECT(strcmp(bw_error_name(BW_ENOREQUEST), "BW_ENOREQUEST") == 0);
    EXPECT(strcmp(bw_error_name(1), "UNKNOWN") == 0);

    /* Structs of a program that is older than the library, and of a newer one. */
    struct {
        bw_device_info known;
        uint64_t later;
    } of;
    memset(&of, 0xaa, sizeof of);
    of.known.size = offsetof(bw_device_info, max_srq);
    EXPECT(bw_device_at(0, &of.known) == BW_OK && of.known.size == offsetof(bw_device_info, max_srq));
    EXPECT(of.known.name[0] != (char)0xaa && of.known.max_srq == 0xaaaaaaaa);
    of.known.size = sizeof of;
    of.later = 0;
    EXPECT(bw_device_at(0, &of.known) == BW_ESIZE);
    of.known.size = sizeof of.known;
    EXPECT(bw_device_at(0, &of.known) == BW_OK && of.known.max_srq != 0xaaaaaaaa && of.later == 0);
    EXPECT(bw_device_open_soft(NULL, &device) == BW_OK);
    EXPECT(bw_device_advance(device, 1) == BW_ECLOCK);
    EXPECT(bw_device_close(device) == BW_OK);
    return 0;
}
