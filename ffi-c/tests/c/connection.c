/* One connection: each call of its data path, its attributes, and how it ends. */
#include "program.h"

static uint64_t sum;

static void cleared(void *context, uint64_t wr_id)
{
    EXPECT(context == &sum);
    sum += wr_id;
}

static void devices(bw_device *device)
{
    bw_device_info info;
    bw_device *again;
    uint16_t pkey = 0;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_device_query(device, &info));
    EXPECT(info.max_qp > 0);
    OK(bw_query_pkey(device, 1, 0, &pkey));
    EXPECT(pkey == 0xffff);
    EXPECT(bw_query_pkey(device, 1, 1000000, &pkey) == BW_EINVAL);
    OK(bw_device_reopen(device, &again));
    OK(bw_device_progress(again));
    OK(bw_device_close(again));
}

static void data_path(bw_pd *pd, struct end *a, struct end *b)
{
    static uint64_t word = 0x0123456789abcdef;
    bw_sge data = end_sge(a, 0, 16), back = end_sge(a, 64, 8);
    bw_sge first = end_sge(b, 0, 16), second = end_sge(b, 16, 16);
    bw_mr_info info;
    bw_wc wcs[8];
    bw_mr *mr;

    OK(bw_post_recv_one(b->qp, 1, &first));
    OK(bw_post_recv_one(b->qp, 2, &second));
    OK(bw_ring_rq(b->qp));
    memcpy(end_bytes(a, 0), "from the memory", 16);
    OK(bw_post_send_one(a->qp, 3, &data, BW_SEND_SIGNALED));
    OK(bw_post_send_inline(a->qp, 4, "from the request", 16, BW_SEND_SIGNALED));
    OK(bw_post_write(a->qp, 5, &data, b->memory.addr + 128, b->memory.rkey, 0));
    OK(bw_post_write(a->qp, 6, &data, b->memory.addr + 256, b->memory.rkey, BW_SEND_SIGNALED));
    EXPECT(bw_poll(a->cq, wcs, 8) == 0); /* not rung yet */
    OK(bw_ring_sq(a->qp));
    EXPECT(bw_poll(a->cq, wcs, 2) == 2 && wcs[0].wr_id == 3 && wcs[1].wr_id == 4);
    EXPECT(bw_poll(a->cq, wcs, 8) == 1 && wcs[0].wr_id == 6 && wcs[0].retired == 2);
    EXPECT(bw_poll(a->cq, wcs, 0) == 0 && bw_poll(a->cq, wcs, -1) == 0);
    EXPECT(expect_wc(b, 1, BW_WC_SUCCESS).byte_len == 16 && expect_wc(b, 2, BW_WC_SUCCESS).byte_len == 16);
    EXPECT(memcmp(end_bytes(b, 0), "from the memory\0from the request", 32) == 0);
    EXPECT(strcmp(end_bytes(b, 128), "from the memory") == 0);
    EXPECT(strcmp(end_bytes(b, 256), "from the memory") == 0);

    /* Memory of the program's own: the peer reads it, until it is taken back. */
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_mr_create(pd, &word, sizeof word, BW_ACCESS_REMOTE_READ, &mr));
    OK(bw_mr_query(mr, &info));
    EXPECT(info.addr == (uint64_t)(uintptr_t)&word && info.length == sizeof word);
    OK(bw_post_read(a->qp, 7, &back, info.addr, info.rkey, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a->qp));
    EXPECT(expect_wc(a, 7, BW_WC_SUCCESS).opcode == BW_WC_RDMA_READ);
    EXPECT(memcmp(end_bytes(a, 64), &word, sizeof word) == 0);
    OK(bw_mr_destroy(mr));
    OK(bw_post_read(a->qp, 8, &back, info.addr, info.rkey, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a->qp));
    expect_wc(a, 8, BW_WC_REM_ACCESS_ERR);
    EXPECT(bw_qp_get_state(a->qp) == BW_QPS_ERR);
    OK(bw_post_send_one(a->qp, 9, &data, 0));
    OK(bw_ring_sq(a->qp));
    expect_wc(a, 9, BW_WC_WR_FLUSH_ERR);
}

/* Anew: to RESET, which reports what was not reported, and connected once more. */
static void life(struct end *a, struct end *b)
{
    bw_sge place = end_sge(b, 0, 16);
    bw_qp_attr attr;

    OK(bw_post_recv_one(b->qp, 10, &place));
    OK(bw_post_recv_one(b->qp, 20, &place));
    OK(bw_ring_rq(b->qp));
    OK(bw_qp_reset(b->qp, cleared, &sum));
    EXPECT(sum == 30);
    expect_none(b);
    OK(bw_qp_reset(a->qp, NULL, NULL));
    EXPECT(bw_qp_get_state(a->qp) == BW_QPS_RESET && bw_qp_get_state(b->qp) == BW_QPS_RESET);
    OK(bw_qp_init(a->qp, NULL));
    OK(bw_qp_init(b->qp, NULL));
    end_connect(a, b);
    end_connect(b, a);

    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    OK(bw_qp_query(a->qp, &attr));
    EXPECT(attr.qp_state == BW_QPS_RTS && attr.qp_type == BW_QPT_RC);
    attr.min_rnr_timer = 3;
    OK(bw_qp_modify(a->qp, &attr, BW_QP_MIN_RNR_TIMER));
    attr.min_rnr_timer = 32;
    EXPECT(bw_qp_modify(a->qp, &attr, BW_QP_MIN_RNR_TIMER) == BW_EINVAL);
    OK(bw_qp_query(a->qp, &attr));
    EXPECT(attr.min_rnr_timer == 3);
    attr.qp_state = BW_QPS_INIT;
    EXPECT(bw_qp_modify(a->qp, &attr, BW_QP_STATE) == BW_ESTATE);

    OK(bw_post_recv_one(b->qp, 11, &place));
    OK(bw_ring_rq(b->qp));
    OK(bw_post_send_inline(a->qp, 12, "again", 5, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a->qp));
    expect_wc(a, 12, BW_WC_SUCCESS);
    expect_wc(b, 11, BW_WC_SUCCESS);
    OK(bw_post_recv_one(b->qp, 13, &place));
    OK(bw_ring_rq(b->qp));
    OK(bw_qp_to_error(b->qp));
    expect_wc(b, 13, BW_WC_WR_FLUSH_ERR);
}

/* A shared queue's limit, and what queue pairs on it reserve. */
static void limit(bw_pd *pd)
{
    bw_srq_init_attr attr;
    bw_qp_init_attr init;
    bw_srq_info info;
    bw_srq *srq;
    uint32_t sends, receives;

    OK(bw_srq_init_attr_default(&attr, sizeof attr));
    attr.max_wr = 8;
    OK(bw_srq_create(pd, &attr, &srq));
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_srq_query(srq, &info));
    EXPECT(info.max_wr >= 8 && info.srq_limit == 0);
    EXPECT(bw_srq_modify(srq, info.max_wr + 1) == BW_ELIMIT);
    OK(bw_srq_modify(srq, 2));
    OK(bw_srq_query(srq, &info));
    EXPECT(info.srq_limit == 2);

    OK(bw_qp_init_attr_default(&init, sizeof init));
    init.srq = srq;
    OK(bw_qp_cq_entries(&init, &sends, &receives));
    EXPECT(sends > 0 && receives >= info.max_wr);
    OK(bw_srq_destroy(srq, NULL, NULL));
}

/* A group that two queue pairs are in, and that one leaves. */
static void multicast(bw_device *device, bw_pd *pd)
{
    static const uint8_t group[16] = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7};
    struct end a = end_create(device, pd, BW_QPT_UD, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_UD, NULL, NULL);
    bw_sge place = end_sge(&b, 0, 128), data = end_sge(&a, 0, 8);
    bw_send_wr send = send_of(1, &data);
    bw_ah_attr path, found;
    bw_connect_attr defaults;
    bw_ah *ah;

    OK(bw_connect_attr_default(&defaults, sizeof defaults));
    OK(bw_qp_start(a.qp, NULL));
    OK(bw_qp_start(b.qp, NULL));
    memset(&path, 0, sizeof path);
    memcpy(path.dgid, group, sizeof group);
    path.is_global = 1;
    path.dlid = 0xc007;
    path.port_num = 1;
    OK(bw_ah_create(pd, &path, &ah));
    OK(bw_ah_query(ah, &found));
    EXPECT(memcmp(&path, &found, sizeof path) == 0);
    OK(bw_qp_attach_mcast(b.qp, group, 0xc007));
    OK(bw_post_recv_one(b.qp, 2, &place));
    OK(bw_ring_rq(b.qp));
    send.ah = ah;
    send.remote_qpn = 0xffffff;
    send.remote_qkey = defaults.qkey;
    OK(bw_post_send(a.qp, &send, 1, NULL));
    expect_wc(&a, 1, BW_WC_SUCCESS);
    expect_wc(&b, 2, BW_WC_SUCCESS);

    OK(bw_qp_detach_mcast(b.qp, group, 0xc007));
    EXPECT(bw_qp_detach_mcast(b.qp, group, 0xc007) == BW_EINVAL);
    OK(bw_post_recv_one(b.qp, 3, &place));
    OK(bw_ring_rq(b.qp));
    OK(bw_post_send(a.qp, &send, 1, NULL));
    expect_wc(&a, 1, BW_WC_SUCCESS);
    expect_none(&b);
    OK(bw_ah_destroy(ah));
    end_destroy(&a);
    end_destroy(&b);
}

/* What the queue pair did shows in its dump, as text and as JSON, and a buffer that is too short says by
 * how much. */
static void dump(struct end *a)
{
    static char text[1 << 16];
    bw_dump_attr attr;
    size_t length, needed;

    OK(bw_qp_note(a->qp, "a note of the program"));
    OK(bw_qp_dump(a->qp, NULL, text, sizeof text, &length));
    EXPECT(strlen(text) == length && strstr(text, "a note of the program"));
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.format = BW_DUMP_JSON;
    OK(bw_qp_dump(a->qp, &attr, text, sizeof text, &length));
    EXPECT(text[0] == '{' && text[length - 1] == '}' && strstr(text, "a note of the program"));
    EXPECT(bw_qp_dump(a->qp, &attr, NULL, 0, &needed) == BW_ELIMIT && needed >= length);
    attr.format = 7;
    EXPECT(bw_qp_dump(a->qp, &attr, text, sizeof text, &length) == BW_EINVAL);
    attr.format = BW_DUMP_TEXT;
    attr.flags = 1u << 31;
    EXPECT(bw_qp_dump(a->qp, &attr, text, sizeof text, &length) == BW_EINVAL);
}

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;
    OK(bw_pd_create(device, &pd));
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    devices(device);
    data_path(pd, &a, &b);
    dump(&a);
    life(&a, &b);
    limit(pd);
    multicast(device, pd);
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
