/*
 * What a program may get wrong, but for NULL: the wrong state, too much, things of others, things in
 * use, and what is used after it has failed. Each is an error, and loses nothing.
 */
#include "program.h"

static bw_device *device;
static bw_pd *pd;

/* Before RTS nothing may be sent, before INIT nothing received. */
static void states(void)
{
    struct end end = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    bw_sge sge = end_sge(&end, 0, 8);
    bw_endpoint endpoint;
    bw_send_wr send = send_of(1, &sge);
    bw_recv_wr receive = recv_of(1, &sge);

    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    OK(bw_qp_endpoint(end.qp, &endpoint));
    EXPECT(bw_post_send(end.qp, &send, 1, NULL) == BW_ESTATE);
    EXPECT(bw_post_send_one(end.qp, 1, &sge, 0) == BW_ESTATE);
    EXPECT(bw_post_send_inline(end.qp, 1, "x", 1, 0) == BW_ESTATE);
    EXPECT(bw_post_write(end.qp, 1, &sge, 0, 0, 0) == BW_ESTATE);
    EXPECT(bw_post_write_inline(end.qp, 1, "x", 1, 0, 0, 0) == BW_ESTATE);
    EXPECT(bw_post_read(end.qp, 1, &sge, 0, 0, 0) == BW_ESTATE);
    EXPECT(bw_qp_start(end.qp, NULL) == BW_ETRANSPORT);
    OK(bw_qp_to_error(end.qp));
    EXPECT(bw_qp_init(end.qp, NULL) == BW_ESTATE);
    OK(bw_qp_reset(end.qp, NULL, NULL));
    EXPECT(bw_post_recv(end.qp, &receive, 1, NULL) == BW_ESTATE);
    EXPECT(bw_post_recv_one(end.qp, 1, &sge) == BW_ESTATE);
    EXPECT(bw_qp_connect(end.qp, &endpoint, NULL) == BW_ESTATE);
    expect_none(&end);
    end_destroy(&end);
}

/* More than was asked for when the queue pair was created, or than there can be. */
static void too_much(void)
{
    static char bytes[4096];
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    bw_qp_attr attr;
    bw_sge elements[64], huge = end_sge(&a, 0, 0x80000000u);
    bw_send_wr send = send_of(1, elements);
    uint32_t posted = 0;
    int code;

    end_connect(&a, &b);
    end_connect(&b, &a);
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    OK(bw_qp_query(a.qp, &attr));
    EXPECT(attr.max_inline_data < sizeof bytes && attr.max_send_sge < 64);
    EXPECT(bw_post_send_inline(a.qp, 1, bytes, sizeof bytes, 0) == BW_EINLINE);
    EXPECT(bw_post_write_inline(a.qp, 1, bytes, sizeof bytes, 0, 0, 0) == BW_EINLINE);
    EXPECT(bw_post_send_one(a.qp, 1, &huge, 0) == BW_ESGELENGTH);
    EXPECT(bw_post_recv_one(a.qp, 1, &huge) == BW_ESGELENGTH);
    for (int i = 0; i < 64; i++)
        elements[i] = end_sge(&a, 0, 8);
    send.num_sge = 64;
    EXPECT(bw_post_send(a.qp, &send, 1, NULL) == BW_ETOOMANYSGE);
    send.num_sge = 1;
    send.opcode = 77;
    EXPECT(bw_post_send(a.qp, &send, 1, NULL) == BW_EOPCODE);
    send.opcode = BW_WR_SEND;
    send.send_flags = 0x100;
    EXPECT(bw_post_send(a.qp, &send, 1, NULL) == BW_EINVAL);
    EXPECT(bw_post_send_one(a.qp, 1, elements, 0x100) == BW_EINVAL);
    send.opcode = BW_WR_RDMA_READ;
    send.send_flags = BW_SEND_INLINE;
    EXPECT(bw_post_send(a.qp, &send, 1, NULL) == BW_EINVAL);

    /* Until it is full; then one completion makes room again. Nothing of it is lost. */
    while ((code = bw_post_write_inline(a.qp, posted, "x", 1, b.memory.addr, b.memory.rkey,
                                        BW_SEND_SIGNALED)) == BW_OK)
        posted++;
    EXPECT(code == BW_EFULL && posted >= attr.max_send_wr);
    OK(bw_ring_sq(a.qp));
    expect_wc(&a, 0, BW_WC_SUCCESS);
    OK(bw_post_write_inline(a.qp, posted, "x", 1, b.memory.addr, b.memory.rkey, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a.qp));
    for (uint64_t n = 1; n <= posted; n++)
        expect_wc(&a, n, BW_WC_SUCCESS);
    expect_none(&a);
    end_destroy(&a);
    end_destroy(&b);
}

/* What cannot be created, and why. */
static void creation(void)
{
    static char bytes[64];
    bw_device *other = soft(BW_CLOCK_REAL);
    bw_cq *cq, *others_cq;
    bw_cq_attr cq_attr;
    bw_qp_init_attr init;
    bw_region_attr region_attr;
    bw_connect_attr connect;
    bw_port_info port;
    uint8_t gid[16];
    bw_region *region;
    bw_comp_channel *channel;
    bw_ah_attr path;
    bw_ah *ah;
    bw_mr *mr;
    bw_mw *mw;
    bw_qp *qp;

    memset(&cq_attr, 0, sizeof cq_attr);
    cq_attr.size = sizeof cq_attr;
    EXPECT(bw_cq_create(device, &cq_attr, &cq) == BW_EINVAL && cq == NULL);
    cq_attr.entries = UINT32_MAX;
    EXPECT(bw_cq_create(device, &cq_attr, &cq) == BW_ELIMIT);
    cq_attr.entries = 1;
    cq_attr.reserved = 1;
    EXPECT(bw_cq_create(device, &cq_attr, &cq) == BW_EINVAL);
    cq_attr.reserved = 0;
    OK(bw_comp_channel_create(other, &channel));
    cq_attr.channel = channel;
    EXPECT(bw_cq_create(device, &cq_attr, &cq) == BW_EFOREIGN);
    cq_attr.channel = NULL;
    OK(bw_cq_create(device, &cq_attr, &cq));
    EXPECT(bw_qp_create(pd, cq, cq, NULL, &qp) == BW_ECQROOM && qp == NULL);
    EXPECT(strlen(bw_last_error()) > 0);
    cq_attr.entries = 1024;
    OK(bw_cq_create(other, &cq_attr, &others_cq));
    EXPECT(bw_qp_create(pd, others_cq, others_cq, NULL, &qp) == BW_EFOREIGN);
    OK(bw_qp_init_attr_default(&init, sizeof init));
    init.qp_type = 3333;
    EXPECT(bw_qp_create(pd, cq, cq, &init, &qp) == BW_EINVAL);
    OK(bw_qp_init_attr_default(&init, sizeof init));
    init.max_send_wr = UINT32_MAX;
    EXPECT(bw_qp_create(pd, others_cq, others_cq, &init, &qp) < 0 && qp == NULL);
    OK(bw_cq_destroy(others_cq));
    OK(bw_cq_destroy(cq));
    OK(bw_comp_channel_destroy(channel));
    OK(bw_device_close(other));

    EXPECT(bw_mr_create(pd, bytes, 0, 0, &mr) == BW_EINVAL && mr == NULL);
    EXPECT(bw_mr_create(pd, bytes, SIZE_MAX, 0, &mr) == BW_EINVAL);
    EXPECT(bw_mr_create(pd, bytes, sizeof bytes, 1u << 30, &mr) == BW_EINVAL);
    EXPECT(bw_mr_create(pd, bytes, sizeof bytes, BW_ACCESS_REMOTE_WRITE, &mr) == BW_EINVAL);
    OK(bw_region_attr_default(&region_attr, sizeof region_attr));
    EXPECT(bw_region_create(pd, &region_attr, &region) < 0 && region == NULL);
    region_attr.length = 4096;
    region_attr.pages = 99;
    EXPECT(bw_region_create(pd, &region_attr, &region) == BW_EINVAL);
    region_attr.pages = BW_PAGES_BASE;
    region_attr.length = UINT64_MAX;
    EXPECT(bw_region_create(pd, &region_attr, &region) == BW_EMEMORY);
    EXPECT(bw_mw_create(pd, 3, &mw) == BW_EINVAL && mw == NULL);
    memset(&path, 0, sizeof path);
    path.port_num = 9;
    EXPECT(bw_ah_create(pd, &path, &ah) == BW_EINVAL && ah == NULL);
    OK(bw_connect_attr_default(&connect, sizeof connect));
    memset(&port, 0, sizeof port);
    port.size = sizeof port;
    EXPECT(bw_query_port(device, 9, &port) == BW_EINVAL);
    EXPECT(bw_query_gid(device, 1, 1000000, gid) == BW_EINVAL);
    EXPECT(bw_device_advance(device, 1) == BW_ECLOCK);
    EXPECT(strlen(bw_strerror(-12345)) > 0 && strlen(bw_event_type_str(12345)) > 0);
}

/* What others use stays. */
static void in_use(void)
{
    struct end end = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    bw_srq_init_attr attr;
    bw_srq_info info;
    bw_xrcd *xrcd;
    bw_xrc_target *target;
    bw_qp_attr state;
    bw_cq_attr cq_attr;
    bw_cq *cq;
    bw_srq *srq;

    EXPECT(bw_cq_destroy(end.cq) == BW_EBUSY);
    EXPECT(bw_pd_destroy(pd) == BW_EBUSY);
    EXPECT(bw_device_close(device) == BW_EBUSY);
    OK(bw_xrcd_create(device, &xrcd));
    OK(bw_xrc_target_create(xrcd, &target));
    EXPECT(bw_xrcd_destroy(xrcd) == BW_EBUSY);
    memset(&state, 0, sizeof state);
    state.size = sizeof state;
    state.qp_state = BW_QPS_RTS;
    EXPECT(bw_xrc_target_modify(target, &state, BW_QP_STATE) == BW_ESTATE);
    OK(bw_xrc_target_init(target, NULL));
    OK(bw_xrc_target_query(target, &state));
    EXPECT(state.qp_state == BW_QPS_INIT && state.qp_type == BW_QPT_XRC_RECV);
    OK(bw_srq_init_attr_default(&attr, sizeof attr));
    attr.max_wr = 4;
    memset(&cq_attr, 0, sizeof cq_attr);
    cq_attr.size = sizeof cq_attr;
    cq_attr.entries = 64;
    OK(bw_cq_create(device, &cq_attr, &cq));
    OK(bw_srq_create_xrc(pd, xrcd, cq, &attr, &srq));
    EXPECT(bw_cq_destroy(cq) == BW_EBUSY);
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_srq_query(srq, &info));
    bw_recv_wr receive = recv_of(1, NULL);
    receive.num_sge = 0;
    for (uint32_t n = 0; n < info.max_wr; n++)
        OK(bw_post_srq_recv(srq, &receive, 1, NULL));
    const bw_recv_wr *bad = NULL;
    EXPECT(bw_post_srq_recv(srq, &receive, 1, &bad) == BW_EFULL && bad == &receive);
    OK(bw_srq_destroy(srq, NULL, NULL));
    OK(bw_cq_destroy(cq));
    OK(bw_xrc_target_destroy(target));
    OK(bw_xrcd_destroy(xrcd));

    /* Of a queue pair that has none of this. */
    EXPECT(bw_cq_req_notify(end.cq, 0) == BW_EINVAL);
    uint8_t group[16] = {0xff, 0x0e};
    EXPECT(bw_qp_attach_mcast(end.qp, group, 0xc001) == BW_ETRANSPORT);
    EXPECT(bw_qp_detach_mcast(end.qp, group, 0xc001) == BW_ETRANSPORT);
    bw_wc wc;
    bw_ah_attr path;
    memset(&wc, 0, sizeof wc);
    EXPECT(bw_ah_init_from_wc(&wc, NULL, 1, &path) == BW_EINVAL);
    end_destroy(&end);
}

/* Faults by script and by seed; and a device that has failed does nothing any more. */
static void failed(void)
{
    bw_device *dying = soft(BW_CLOCK_VIRTUAL);
    bw_pd *its_pd;
    bw_soft_step step;

    OK(bw_pd_create(dying, &its_pd));
    struct end a = end_create(dying, its_pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(dying, its_pd, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    memset(&step, 0, sizeof step);
    step.trigger = 9;
    EXPECT(bw_soft_inject(dying, &step, 1) == BW_EINVAL);
    step.trigger = BW_AT_REQUEST;
    step.fault = 99;
    EXPECT(bw_soft_inject_seeded(dying, 1, 10, 1, &step, 1) == BW_EINVAL);
    EXPECT(bw_soft_raise(dying, 1234, 1) == BW_EINVAL);
    step.at = 1;
    step.fault = BW_FAULT_STATUS;
    step.value = BW_WC_REM_OP_ERR;
    OK(bw_soft_inject(dying, &step, 1));
    OK(bw_soft_clear(dying));
    OK(bw_post_send_inline(a.qp, 1, "x", 1, BW_SEND_SIGNALED));
    bw_sge place = end_sge(&b, 0, 8);
    OK(bw_post_recv_one(b.qp, 2, &place));
    OK(bw_ring_rq(b.qp));
    OK(bw_ring_sq(a.qp));
    expect_wc(&a, 1, BW_WC_SUCCESS);
    expect_wc(&b, 2, BW_WC_SUCCESS);
    /* The same seed, the same fault: of one packet, the one. */
    OK(bw_soft_inject_seeded(dying, 42, 1, 1, &step, 1));
    OK(bw_post_send_inline(a.qp, 3, "x", 1, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a.qp));
    expect_wc(&a, 3, BW_WC_REM_OP_ERR);

    OK(bw_post_recv_one(b.qp, 4, &place));
    OK(bw_ring_rq(b.qp));
    memset(&step, 0, sizeof step);
    step.trigger = BW_AFTER;
    step.fault = BW_FAULT_DEVICE_FATAL;
    step.at = 10;
    OK(bw_soft_inject(dying, &step, 1));
    OK(bw_device_advance(dying, 10));
    expect_wc(&b, 4, BW_WC_FATAL_ERR);
    bw_cq *no_cq;
    bw_cq_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.entries = 8;
    EXPECT(bw_cq_create(dying, &attr, &no_cq) == BW_EFATAL && no_cq == NULL);
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(its_pd));
    OK(bw_device_close(dying));
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    states();
    too_much();
    creation();
    in_use();
    failed();
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
