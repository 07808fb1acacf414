/* Extended reliable connections: a shared receive queue that requests name; and a memory window that
 * the target's side opens, and that a message takes away. */
#include "program.h"

static void cleared(void *context, uint64_t wr_id)
{
    *(uint64_t *)context += wr_id;
}

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;
    OK(bw_pd_create(device, &pd));
    struct end initiator = end_create(device, pd, BW_QPT_XRC_SEND, NULL, NULL);
    struct end here = end_create(device, pd, BW_QPT_RC, NULL, NULL);

    /* The target, and its queue, which completes where the second end does. */
    bw_xrcd *xrcd;
    bw_xrc_target *target;
    bw_srq *srq;
    bw_cq_attr cq_attr;
    struct end arrivals;
    memset(&arrivals, 0, sizeof arrivals);
    memset(&cq_attr, 0, sizeof cq_attr);
    cq_attr.size = sizeof cq_attr;
    cq_attr.entries = 256;
    OK(bw_cq_create(device, &cq_attr, &arrivals.cq));
    OK(bw_xrcd_create(device, &xrcd));
    OK(bw_xrc_target_create(xrcd, &target));
    OK(bw_srq_create_xrc(pd, xrcd, arrivals.cq, NULL, &srq));
    bw_srq_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_srq_query(srq, &info));

    bw_endpoint endpoint;
    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    OK(bw_qp_endpoint(initiator.qp, &endpoint));
    OK(bw_xrc_target_init(target, NULL));
    OK(bw_xrc_target_connect(target, &endpoint, NULL));
    OK(bw_xrc_target_endpoint(target, &endpoint));
    OK(bw_qp_connect(initiator.qp, &endpoint, NULL));

    /* Three receives; one message takes the first. */
    bw_sge place = end_sge(&here, 0, 64);
    bw_recv_wr receives[3];
    for (uint64_t n = 0; n < 3; n++)
        receives[n] = recv_of(100 + n, &place);
    OK(bw_post_srq_recv(srq, receives, 3, NULL));
    memcpy(end_bytes(&initiator, 0), "to the queue", 12);
    bw_sge data = end_sge(&initiator, 0, 12);
    bw_send_wr send = send_of(1, &data);
    send.remote_srqn = info.srq_num;
    OK(bw_post_send(initiator.qp, &send, 1, NULL));
    expect_wc(&initiator, 1, BW_WC_SUCCESS);
    bw_wc wc = expect_wc(&arrivals, 100, BW_WC_SUCCESS);
    EXPECT(wc.byte_len == 12 && memcmp(end_bytes(&here, 0), "to the queue", 12) == 0);

    /* A queue that does not exist: refused, which the initiator is notified of. */
    OK(bw_srq_destroy(srq, NULL, NULL));
    send.wr_id = 2;
    OK(bw_post_send(initiator.qp, &send, 1, NULL));
    expect_wc(&initiator, 2, BW_WC_REM_INV_REQ_ERR);

    /* A window of type 1, on memory that allows it. */
    struct end peer = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&here, &peer);
    end_connect(&peer, &here);
    bw_region *region;
    bw_region_attr attr;
    bw_region_info memory;
    OK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = 4096;
    attr.access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_MW_BIND;
    OK(bw_region_create(pd, &attr, &region));
    memset(&memory, 0, sizeof memory);
    memory.size = sizeof memory;
    OK(bw_region_query(region, &memory));
    bw_mw *window;
    bw_mw_bind_info part;
    memset(&part, 0, sizeof part);
    part.addr = memory.addr + 512;
    part.length = 64;
    part.lkey = memory.lkey;
    part.access = BW_ACCESS_REMOTE_WRITE;
    OK(bw_mw_create(pd, BW_MW_TYPE_1, &window));
    OK(bw_mw_bind(here.qp, window, 3, &part, BW_SEND_SIGNALED));
    expect_wc(&here, 3, BW_WC_SUCCESS);
    OK(bw_post_write_inline(peer.qp, 4, "through it", 10, part.addr, bw_mw_rkey(window),
                            BW_SEND_SIGNALED));
    OK(bw_ring_sq(peer.qp));
    expect_wc(&peer, 4, BW_WC_SUCCESS);
    EXPECT(memcmp((const char *)(uintptr_t)part.addr, "through it", 10) == 0);
    uint32_t gone = bw_mw_rkey(window);
    OK(bw_mw_destroy(window));
    OK(bw_post_write_inline(peer.qp, 5, "too late", 8, part.addr, gone, BW_SEND_SIGNALED));
    OK(bw_ring_sq(peer.qp));
    expect_wc(&peer, 5, BW_WC_REM_ACCESS_ERR);

    /* A shared queue reports at its end what nobody took. */
    uint64_t sum = 0;
    OK(bw_srq_create(pd, NULL, &srq));
    OK(bw_post_srq_recv(srq, receives, 3, NULL));
    OK(bw_srq_destroy(srq, cleared, &sum));
    EXPECT(sum == 100 + 101 + 102);

    OK(bw_xrc_target_destroy(target));
    OK(bw_xrcd_destroy(xrcd));
    end_destroy(&initiator);
    end_destroy(&here);
    end_destroy(&peer);
    OK(bw_region_destroy(region));
    OK(bw_cq_destroy(arrivals.cq));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
