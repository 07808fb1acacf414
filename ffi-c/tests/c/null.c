/*
 * Every function with a NULL where a pointer is needed, and every struct with a size that it cannot
 * have: an error, and nothing has happened.
 */
#include "program.h"

#define NUL(call) EXPECT((call) == BW_ENULL)
#define SIZE(call) EXPECT((call) == BW_ESIZE)

static bw_device *device;
static bw_pd *pd;
static struct end a, b;

/* What a function that creates something left there. */
static void *left = &left;
#define MADE_NONE(type, call)                                                                     \
    do {                                                                                          \
        type *made = (type *)left;                                                                \
        NUL(call);                                                                                \
        EXPECT(made == NULL);                                                                     \
    } while (0)

static void devices(void)
{
    bw_resources resources;
    bw_device_counters counters = {0, 0, 0, 0};
    bw_device_info info;
    bw_soft_config config;
    bw_port_info port;
    uint8_t gid[16];
    uint16_t pkey;

    memset(&info, 0, sizeof info);
    memset(&config, 0, sizeof config);
    memset(&port, 0, sizeof port);
    NUL(bw_device_at(0, NULL));
    SIZE(bw_device_at(0, &info));
    MADE_NONE(bw_device, bw_device_open(NULL, &made));
    NUL(bw_device_open("soft", NULL));
    NUL(bw_device_open_soft(NULL, NULL));
    bw_device *none = device;
    SIZE(bw_device_open_soft(&config, &none));
    EXPECT(none == NULL);
    MADE_NONE(bw_device, bw_device_join(NULL, NULL, &made));
    NUL(bw_device_join("null", NULL, NULL));
    none = device;
    SIZE(bw_device_join("null", &config, &none));
    EXPECT(none == NULL);
    MADE_NONE(bw_device, bw_device_reopen(NULL, &made));
    NUL(bw_device_reopen(device, NULL));
    NUL(bw_device_query(NULL, &info));
    NUL(bw_device_query(device, NULL));
    SIZE(bw_device_query(device, &info));
    NUL(bw_device_provider(NULL));
    EXPECT(*bw_device_choice(NULL) == '\0');
    NUL(bw_device_resources(NULL, &resources));
    NUL(bw_device_resources(device, NULL));
    NUL(bw_device_query_counters(NULL, &counters));
    NUL(bw_device_query_counters(device, NULL));
    SIZE(bw_device_query_counters(device, &counters));
    resources.size = 8;
    SIZE(bw_device_resources(device, &resources));
    NUL(bw_device_progress(NULL));
    NUL(bw_device_advance(NULL, 1));
    NUL(bw_device_close(NULL));
    NUL(bw_query_port(NULL, 1, &port));
    NUL(bw_query_port(device, 1, NULL));
    SIZE(bw_query_port(device, 1, &port));
    NUL(bw_query_gid(NULL, 1, 0, gid));
    NUL(bw_query_gid(device, 1, 0, NULL));
    NUL(bw_query_pkey(NULL, 1, 0, &pkey));
    NUL(bw_query_pkey(device, 1, 0, NULL));
    MADE_NONE(bw_pd, bw_pd_create(NULL, &made));
    NUL(bw_pd_create(device, NULL));
    NUL(bw_pd_destroy(NULL));
}

static void memory(void)
{
    static char bytes[64];
    bw_mr_info mr;
    bw_region_attr attr;
    bw_region_info region;

    memset(&mr, 0, sizeof mr);
    memset(&attr, 0, sizeof attr);
    memset(&region, 0, sizeof region);
    MADE_NONE(bw_mr, bw_mr_create(NULL, bytes, sizeof bytes, 0, &made));
    MADE_NONE(bw_mr, bw_mr_create(pd, NULL, sizeof bytes, 0, &made));
    NUL(bw_mr_create(pd, bytes, sizeof bytes, 0, NULL));
    MADE_NONE(bw_mr, bw_mr_create_iova(NULL, bytes, sizeof bytes, 0, 0, &made));
    MADE_NONE(bw_mr, bw_mr_create_iova(pd, NULL, sizeof bytes, 0, 0, &made));
    NUL(bw_mr_create_iova(pd, bytes, sizeof bytes, 0, 0, NULL));
    MADE_NONE(bw_mr, bw_mr_create_dmabuf(NULL, 0, 0, sizeof bytes, 0, 0, &made));
    NUL(bw_mr_create_dmabuf(pd, 0, 0, sizeof bytes, 0, 0, NULL));
    NUL(bw_mr_reregister(NULL, BW_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0));
    NUL(bw_mr_query(NULL, &mr));
    bw_mr *good;
    OK(bw_mr_create(pd, bytes, sizeof bytes, 0, &good));
    NUL(bw_mr_query(good, NULL));
    SIZE(bw_mr_query(good, &mr));
    NUL(bw_mr_reregister(NULL, BW_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0));
    NUL(bw_mr_reregister(good, BW_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0));
    OK(bw_mr_destroy(good));
    NUL(bw_mr_destroy(NULL));
    MADE_NONE(bw_mr, bw_mr_create_iova(NULL, bytes, sizeof bytes, 0, 0, &made));
    MADE_NONE(bw_mr, bw_mr_create_iova(pd, NULL, sizeof bytes, 0, 0, &made));
    NUL(bw_mr_create_iova(pd, bytes, sizeof bytes, 0, 0, NULL));
    MADE_NONE(bw_mr, bw_mr_create_dmabuf(NULL, 0, 0, sizeof bytes, 0, 0, &made));
    NUL(bw_mr_create_dmabuf(pd, 0, 0, sizeof bytes, 0, 0, NULL));
    NUL(bw_region_attr_default(NULL, sizeof attr));
    SIZE(bw_region_attr_default(&attr, 0));
    SIZE(bw_region_attr_default(&attr, 4));
    MADE_NONE(bw_region, bw_region_create(NULL, &attr, &made));
    MADE_NONE(bw_region, bw_region_create(pd, NULL, &made));
    NUL(bw_region_create(pd, &attr, NULL));
    NUL(bw_region_query(NULL, &region));
    NUL(bw_region_query(a.region, NULL));
    SIZE(bw_region_query(a.region, &region));
    NUL(bw_region_destroy(NULL));
}

static void slabs(void)
{
    const bw_slab_class blocks = {64, 4};
    bw_slab_info info;
    bw_slab *good;
    bw_block block;
    uint64_t bytes;

    memset(&info, 0, sizeof info);
    NUL(bw_slab_bytes(NULL, 1, &bytes));
    NUL(bw_slab_bytes(&blocks, 1, NULL));
    MADE_NONE(bw_slab, bw_slab_create(NULL, &blocks, 1, &made));
    MADE_NONE(bw_slab, bw_slab_create(a.region, NULL, 1, &made));
    NUL(bw_slab_create(a.region, &blocks, 1, NULL));
    OK(bw_slab_create(a.region, &blocks, 1, &good));
    NUL(bw_slab_query(NULL, &info));
    NUL(bw_slab_query(good, NULL));
    SIZE(bw_slab_query(good, &info));
    NUL(bw_slab_take(NULL, 1, &block));
    NUL(bw_slab_take(good, 1, NULL));
    OK(bw_slab_take(good, 1, &block));
    NUL(bw_slab_return(NULL, &block));
    NUL(bw_slab_return(good, NULL));
    OK(bw_slab_return(good, &block));
    bw_slab_cache *cache;
    MADE_NONE(bw_slab_cache, bw_slab_cache_create(NULL, 1, &made));
    NUL(bw_slab_cache_create(good, 1, NULL));
    OK(bw_slab_cache_create(good, 1, &cache));
    NUL(bw_slab_cache_take(NULL, &block));
    NUL(bw_slab_cache_take(cache, NULL));
    OK(bw_slab_cache_take(cache, &block));
    NUL(bw_slab_cache_return(NULL, &block));
    NUL(bw_slab_cache_return(cache, NULL));
    OK(bw_slab_cache_return(cache, &block));
    NUL(bw_slab_cache_destroy(NULL));
    OK(bw_slab_cache_destroy(cache));
    NUL(bw_slab_destroy(NULL));
    OK(bw_slab_destroy(good));
}

static void completions(void)
{
    bw_cq_attr attr;
    bw_cq_info info;
    bw_wc wc;
    uint32_t cqn;

    memset(&attr, 0, sizeof attr);
    memset(&info, 0, sizeof info);
    MADE_NONE(bw_comp_channel, bw_comp_channel_create(NULL, &made));
    NUL(bw_comp_channel_create(device, NULL));
    NUL(bw_comp_channel_fd(NULL));
    NUL(bw_comp_channel_set_nonblocking(NULL, 1));
    NUL(bw_get_cq_event(NULL, &cqn, NULL));
    NUL(bw_ack_cq_events(NULL, 0, 1));
    bw_comp_channel *channel;
    OK(bw_comp_channel_create(device, &channel));
    NUL(bw_get_cq_event(channel, NULL, NULL));
    OK(bw_comp_channel_destroy(channel));
    NUL(bw_comp_channel_destroy(NULL));
    NUL(bw_cq_req_notify(NULL, 0));
    MADE_NONE(bw_cq, bw_cq_create(NULL, &attr, &made));
    MADE_NONE(bw_cq, bw_cq_create(device, NULL, &made));
    NUL(bw_cq_create(device, &attr, NULL));
    NUL(bw_cq_query(NULL, &info));
    NUL(bw_cq_query(a.cq, NULL));
    SIZE(bw_cq_query(a.cq, &info));
    NUL(bw_cq_destroy(NULL));
    NUL(bw_poll_one(NULL, &wc));
    NUL(bw_poll_one(a.cq, NULL));
    NUL(bw_poll(NULL, &wc, 1));
    NUL(bw_poll(a.cq, NULL, 1));
    bw_completion completion;
    memset(&completion, 0, sizeof completion);
    NUL(bw_poll_completion(NULL, &completion));
    NUL(bw_poll_completion(a.cq, NULL));
    NUL(bw_poll_completions(NULL, &completion, 1));
    NUL(bw_poll_completions(a.cq, NULL, 1));
    NUL(bw_completion_wc(NULL, &wc));
    NUL(bw_completion_wc(&completion, NULL));
    completion.opcode = 77;
    EXPECT(bw_completion_wc(&completion, &wc) == BW_EINVAL);
    bw_rdma_wr rdma;
    memset(&rdma, 0, sizeof rdma);
    rdma.sge.length = 1;
    NUL(bw_post_writes(NULL, &rdma, 1, NULL));
    NUL(bw_post_writes(a.qp, NULL, 1, NULL));
    NUL(bw_post_writes_inline(NULL, &rdma, 1, NULL));
    NUL(bw_post_writes_inline(a.qp, NULL, 1, NULL));
    NUL(bw_post_writes_inline(a.qp, &rdma, 1, NULL));
    NUL(bw_post_reads(NULL, &rdma, 1, NULL));
    NUL(bw_post_reads(a.qp, NULL, 1, NULL));
}

static void shared_queues(void)
{
    bw_srq_init_attr attr;
    bw_srq_info info;
    bw_recv_wr wr;
    bw_endpoint endpoint, sized_endpoint;
    bw_qp_attr qp_attr, sized_attr;

    memset(&attr, 0, sizeof attr);
    memset(&info, 0, sizeof info);
    memset(&wr, 0, sizeof wr);
    memset(&endpoint, 0, sizeof endpoint);
    memset(&qp_attr, 0, sizeof qp_attr);
    sized_endpoint = endpoint;
    sized_endpoint.size = sizeof endpoint;
    sized_attr = qp_attr;
    sized_attr.size = sizeof qp_attr;
    NUL(bw_srq_init_attr_default(NULL, sizeof attr));
    SIZE(bw_srq_init_attr_default(&attr, 0));
    MADE_NONE(bw_srq, bw_srq_create(NULL, NULL, &made));
    NUL(bw_srq_create(pd, NULL, NULL));
    bw_srq *srq;
    SIZE(bw_srq_create(pd, &attr, &srq));
    OK(bw_srq_create(pd, NULL, &srq));
    NUL(bw_srq_query(NULL, &info));
    NUL(bw_srq_query(srq, NULL));
    SIZE(bw_srq_query(srq, &info));
    NUL(bw_srq_modify(NULL, 0));
    NUL(bw_post_srq_recv(NULL, &wr, 1, NULL));
    NUL(bw_post_srq_recv(srq, NULL, 1, NULL));
    wr.num_sge = 1;
    NUL(bw_post_srq_recv(srq, &wr, 1, NULL));
    OK(bw_srq_destroy(srq, NULL, NULL));
    NUL(bw_srq_destroy(NULL, NULL, NULL));

    bw_xrcd *xrcd;
    bw_xrc_target *target;
    MADE_NONE(bw_xrcd, bw_xrcd_create(NULL, &made));
    NUL(bw_xrcd_create(device, NULL));
    MADE_NONE(bw_xrcd, bw_xrcd_open(NULL, 0, 0, &made));
    NUL(bw_xrcd_open(device, 0, 0, NULL));
    OK(bw_xrcd_create(device, &xrcd));
    MADE_NONE(bw_srq, bw_srq_create_xrc(NULL, xrcd, a.cq, NULL, &made));
    MADE_NONE(bw_srq, bw_srq_create_xrc(pd, NULL, a.cq, NULL, &made));
    MADE_NONE(bw_srq, bw_srq_create_xrc(pd, xrcd, NULL, NULL, &made));
    NUL(bw_srq_create_xrc(pd, xrcd, a.cq, NULL, NULL));
    MADE_NONE(bw_xrc_target, bw_xrc_target_create(NULL, &made));
    NUL(bw_xrc_target_create(xrcd, NULL));
    MADE_NONE(bw_xrc_target, bw_xrc_target_open(NULL, 1, &made));
    NUL(bw_xrc_target_open(xrcd, 1, NULL));
    OK(bw_xrc_target_create(xrcd, &target));
    NUL(bw_xrc_target_endpoint(NULL, &sized_endpoint));
    NUL(bw_xrc_target_endpoint(target, NULL));
    SIZE(bw_xrc_target_endpoint(target, &endpoint));
    NUL(bw_xrc_target_init(NULL, NULL));
    NUL(bw_xrc_target_connect(NULL, &sized_endpoint, NULL));
    NUL(bw_xrc_target_connect(target, NULL, NULL));
    NUL(bw_xrc_target_modify(NULL, &sized_attr, 0));
    NUL(bw_xrc_target_modify(target, NULL, 0));
    NUL(bw_xrc_target_query(NULL, &sized_attr));
    NUL(bw_xrc_target_query(target, NULL));
    SIZE(bw_xrc_target_query(target, &qp_attr));
    OK(bw_xrc_target_destroy(target));
    NUL(bw_xrc_target_destroy(NULL));
    OK(bw_xrcd_destroy(xrcd));
    NUL(bw_xrcd_destroy(NULL));
}

static void queue_pairs(void)
{
    bw_qp_init_attr init;
    bw_connect_attr connect;
    bw_endpoint endpoint, sized_endpoint;
    bw_qp_attr attr, sized_attr;
    uint8_t gid[16] = {0xff};
    uint32_t sends, receives;

    memset(&init, 0, sizeof init);
    memset(&connect, 0, sizeof connect);
    memset(&endpoint, 0, sizeof endpoint);
    memset(&attr, 0, sizeof attr);
    sized_endpoint = endpoint;
    sized_endpoint.size = sizeof endpoint;
    sized_attr = attr;
    sized_attr.size = sizeof attr;
    NUL(bw_qp_init_attr_default(NULL, sizeof init));
    SIZE(bw_qp_init_attr_default(&init, 0));
    NUL(bw_connect_attr_default(NULL, sizeof connect));
    SIZE(bw_connect_attr_default(&connect, 0));
    NUL(bw_qp_cq_entries(NULL, NULL, &receives));
    NUL(bw_qp_cq_entries(NULL, &sends, NULL));
    SIZE(bw_qp_cq_entries(&init, &sends, &receives));
    MADE_NONE(bw_qp, bw_qp_create(NULL, a.cq, a.cq, NULL, &made));
    MADE_NONE(bw_qp, bw_qp_create(pd, NULL, a.cq, NULL, &made));
    MADE_NONE(bw_qp, bw_qp_create(pd, a.cq, NULL, NULL, &made));
    NUL(bw_qp_create(pd, a.cq, a.cq, NULL, NULL));
    NUL(bw_qp_endpoint(NULL, &sized_endpoint));
    NUL(bw_qp_endpoint(a.qp, NULL));
    SIZE(bw_qp_endpoint(a.qp, &endpoint));
    NUL(bw_qp_endpoint_for(NULL, NULL, &sized_endpoint));
    NUL(bw_qp_endpoint_for(a.qp, NULL, NULL));
    SIZE(bw_qp_endpoint_for(a.qp, NULL, &endpoint));
    NUL(bw_qp_dump(NULL, NULL, NULL, 0, NULL));
    NUL(bw_qp_dump(a.qp, NULL, NULL, 64, NULL));
    NUL(bw_qp_note(NULL, "text"));
    NUL(bw_qp_note(a.qp, NULL));
    NUL(bw_qp_init(NULL, NULL));
    SIZE(bw_qp_init(a.qp, &connect));
    NUL(bw_qp_connect(NULL, &sized_endpoint, NULL));
    NUL(bw_qp_connect(a.qp, NULL, NULL));
    SIZE(bw_qp_connect(a.qp, &endpoint, NULL));
    NUL(bw_qp_start(NULL, NULL));
    NUL(bw_qp_modify(NULL, &sized_attr, BW_QP_STATE));
    NUL(bw_qp_modify(a.qp, NULL, BW_QP_STATE));
    SIZE(bw_qp_modify(a.qp, &attr, BW_QP_STATE));
    NUL(bw_qp_query(NULL, &sized_attr));
    NUL(bw_qp_query(a.qp, NULL));
    SIZE(bw_qp_query(a.qp, &attr));
    NUL(bw_qp_to_error(NULL));
    NUL(bw_qp_reset(NULL, NULL, NULL));
    NUL(bw_qp_get_state(NULL));
    MADE_NONE(bw_monitor, bw_qp_monitor(NULL, &made));
    NUL(bw_qp_monitor(a.qp, NULL));
    NUL(bw_qp_count(NULL));
    NUL(bw_qp_data_in_order(NULL, BW_WR_SEND));
    NUL(bw_qp_attach_mcast(NULL, gid, 0xc001));
    NUL(bw_qp_attach_mcast(a.qp, NULL, 0xc001));
    NUL(bw_qp_detach_mcast(NULL, gid, 0xc001));
    NUL(bw_qp_detach_mcast(a.qp, NULL, 0xc001));
    NUL(bw_qp_dump(NULL, NULL, (char *)gid, sizeof gid, NULL));
    NUL(bw_qp_dump(a.qp, NULL, NULL, sizeof gid, NULL));
    NUL(bw_qp_note(NULL, "note"));
    NUL(bw_qp_note(a.qp, NULL));
    NUL(bw_qp_destroy(NULL));
    EXPECT(bw_qp_get_state(a.qp) == BW_QPS_RTS);
}

static void datagrams_and_windows(void)
{
    bw_ah_attr path;
    bw_wc wc;
    bw_mw_bind_info part;

    memset(&path, 0, sizeof path);
    memset(&wc, 0, sizeof wc);
    memset(&part, 0, sizeof part);
    MADE_NONE(bw_ah, bw_ah_create(NULL, &path, &made));
    MADE_NONE(bw_ah, bw_ah_create(pd, NULL, &made));
    NUL(bw_ah_create(pd, &path, NULL));
    NUL(bw_ah_init_from_wc(NULL, NULL, 1, &path));
    NUL(bw_ah_init_from_wc(&wc, NULL, 1, NULL));
    MADE_NONE(bw_ah, bw_ah_create_from_wc(NULL, &wc, NULL, 1, &made));
    MADE_NONE(bw_ah, bw_ah_create_from_wc(pd, NULL, NULL, 1, &made));
    NUL(bw_ah_create_from_wc(pd, &wc, NULL, 1, NULL));
    NUL(bw_ah_query(NULL, &path));
    NUL(bw_ah_destroy(NULL));
    bw_mw *window;
    MADE_NONE(bw_mw, bw_mw_create(NULL, BW_MW_TYPE_1, &made));
    NUL(bw_mw_create(pd, BW_MW_TYPE_1, NULL));
    OK(bw_mw_create(pd, BW_MW_TYPE_1, &window));
    EXPECT(bw_mw_rkey(NULL) == 0);
    NUL(bw_mw_bind(NULL, window, 1, &part, 0));
    NUL(bw_mw_bind(a.qp, NULL, 1, &part, 0));
    NUL(bw_mw_bind(a.qp, window, 1, NULL, 0));
    OK(bw_mw_destroy(window));
    NUL(bw_mw_destroy(NULL));
}

static void posting(void)
{
    bw_sge sge = end_sge(&a, 0, 8);
    bw_send_wr send = send_of(1, NULL);
    bw_recv_wr receive = recv_of(1, NULL);
    const bw_send_wr *bad_send = NULL;
    const bw_recv_wr *bad_receive = NULL;

    NUL(bw_post_send(NULL, &send, 1, NULL));
    NUL(bw_post_send(a.qp, NULL, 1, NULL));
    NUL(bw_post_send(a.qp, &send, 1, &bad_send));
    EXPECT(bad_send == &send);
    NUL(bw_post_recv(NULL, &receive, 1, NULL));
    NUL(bw_post_recv(a.qp, NULL, 1, NULL));
    NUL(bw_post_recv(a.qp, &receive, 1, &bad_receive));
    EXPECT(bad_receive == &receive);
    NUL(bw_post_write(NULL, 1, &sge, 0, 0, 0));
    NUL(bw_post_write(a.qp, 1, NULL, 0, 0, 0));
    NUL(bw_post_write_inline(NULL, 1, "x", 1, 0, 0, 0));
    NUL(bw_post_write_inline(a.qp, 1, NULL, 1, 0, 0, 0));
    NUL(bw_post_read(NULL, 1, &sge, 0, 0, 0));
    NUL(bw_post_read(a.qp, 1, NULL, 0, 0, 0));
    NUL(bw_post_send_one(NULL, 1, &sge, 0));
    NUL(bw_post_send_one(a.qp, 1, NULL, 0));
    NUL(bw_post_send_inline(NULL, 1, "x", 1, 0));
    NUL(bw_post_send_inline(a.qp, 1, NULL, 1, 0));
    NUL(bw_post_recv_one(NULL, 1, &sge));
    NUL(bw_post_recv_one(a.qp, 1, NULL));
    NUL(bw_ring_sq(NULL));
    NUL(bw_ring_rq(NULL));
    OK(bw_ring_sq(a.qp));
    OK(bw_ring_rq(a.qp));
    expect_none(&a);
}

static void meeting(void)
{
    bw_endpoint endpoint;
    bw_conn_info info;
    bw_tcp_listener *listener;
    bw_tcp_conn *conn;

    memset(&endpoint, 0, sizeof endpoint);
    memset(&info, 0, sizeof info);
    NUL(bw_tcp_listener_create(NULL, 0, NULL));
    NUL(bw_tcp_listener_port(NULL));
    NUL(bw_tcp_listener_fd(NULL));
    NUL(bw_tcp_listener_wake(NULL, 1));
    MADE_NONE(bw_tcp_conn, bw_tcp_accept(NULL, 1, &made));
    MADE_NONE(bw_tcp_conn, bw_tcp_connect(NULL, 1, 1, &made));
    NUL(bw_tcp_connect("127.0.0.1", 1, 1, NULL));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    NUL(bw_tcp_accept(listener, 1, NULL));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(listener), 10000, &conn));
    NUL(bw_tcp_exchange(NULL, &endpoint, NULL, &endpoint, &info, 1));
    NUL(bw_tcp_exchange(conn, NULL, NULL, &endpoint, &info, 1));
    SIZE(bw_tcp_exchange(conn, &endpoint, NULL, &endpoint, &info, 1));
    endpoint.size = sizeof endpoint;
    NUL(bw_tcp_exchange(conn, &endpoint, NULL, NULL, &info, 1));
    NUL(bw_tcp_exchange(conn, &endpoint, NULL, &endpoint, NULL, 1));
    char host[BW_ADDR_MAX];
    uint32_t port;
    NUL(bw_tcp_peer_addr(NULL, host, &port));
    NUL(bw_tcp_peer_addr(conn, NULL, &port));
    NUL(bw_tcp_peer_addr(conn, host, NULL));
    NUL(bw_tcp_barrier(NULL, 1));
    OK(bw_tcp_conn_destroy(conn));
    NUL(bw_tcp_conn_destroy(NULL));
    OK(bw_tcp_listener_destroy(listener));
    NUL(bw_tcp_listener_destroy(NULL));
}

static void faults(void)
{
    bw_fault fault;
    bw_class found;

    memset(&fault, 0, sizeof fault);
    memset(&found, 0, sizeof found);
    found.size = sizeof found;
    NUL(bw_classify(NULL, &found));
    SIZE(bw_classify(&fault, &found));
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    NUL(bw_classify(&fault, NULL));
    bw_wc wc;
    memset(&wc, 0, sizeof wc);
    NUL(bw_classify_wc(&wc, BW_QPT_RC, BW_QUEUE_SEND, NULL));
    found.size = sizeof found;
    NUL(bw_classify_wc(NULL, BW_QPT_RC, BW_QUEUE_SEND, &found));
    found.size = 0;
    SIZE(bw_classify(&fault, &found));
}

static void events(void)
{
    bw_async_event_info info;
    bw_soft_step step;
    bw_fault fault;
    bw_class means;

    memset(&fault, 0, sizeof fault);
    memset(&means, 0, sizeof means);
    NUL(bw_classify(NULL, &means));
    SIZE(bw_classify(&fault, &means));
    fault.size = sizeof fault;
    fault.transport = BW_QPT_RC;
    NUL(bw_classify(&fault, NULL));
    memset(&info, 0, sizeof info);
    memset(&step, 0, sizeof step);
    NUL(bw_device_async_fd(NULL));
    NUL(bw_device_async_set_nonblocking(NULL, 1));
    MADE_NONE(bw_async_event, bw_get_async_event(NULL, &info, &made));
    MADE_NONE(bw_async_event, bw_get_async_event(device, NULL, &made));
    NUL(bw_get_async_event(device, &info, NULL));
    NUL(bw_device_async_wake(NULL, 1));
    NUL(bw_comp_channel_wake(NULL, 1));
    NUL(bw_cm_channel_wake(NULL, 1));
    NUL(bw_listener_wake(NULL, 1));
    NUL(bw_link_wake(NULL, 1));
    NUL(bw_ack_async_event(NULL));
    NUL(bw_soft_inject(NULL, &step, 1));
    NUL(bw_soft_inject(device, NULL, 1));
    NUL(bw_soft_inject_seeded(NULL, 1, 1, 1, &step, 1));
    NUL(bw_soft_inject_seeded(device, 1, 1, 1, NULL, 1));
    NUL(bw_soft_clear(NULL));
    NUL(bw_soft_set_port(NULL, 1));
    NUL(bw_soft_raise(NULL, BW_EVENT_PORT_ERR, 1));
}

static void link_sets(void)
{
    bw_link_set_init init;
    bw_link_set_info set_info;
    char text[BW_ADDR_MAX];
    uint32_t port;
    bw_link_info info;
    bw_link_counters counters;
    bw_fault fault;
    bw_link_set_wc wc;
    bw_wait wait;
    bw_sge sge = end_sge(&a, 0, 8);
    bw_send_wr send = send_of(1, NULL);
    bw_recv_wr receive = recv_of(1, NULL);
    bw_link_init link_init;
    bw_link_set *set;
    bw_link_id id = 0;
    bw_link *peer;
    uint64_t left_ns;
    uint32_t state;

    memset(&init, 0, sizeof init);
    memset(&link_init, 0, sizeof link_init);
    memset(&set_info, 0, sizeof set_info);
    memset(&info, 0, sizeof info);
    memset(&counters, 0, sizeof counters);
    memset(&fault, 0, sizeof fault);
    NUL(bw_link_set_init_default(NULL, sizeof init));
    SIZE(bw_link_set_init_default(&init, 0));
    MADE_NONE(bw_link_set, bw_link_set_create(NULL, NULL, &made));
    NUL(bw_link_set_create(pd, NULL, NULL));
    SIZE(bw_link_set_create(pd, &init, &set));
    OK(bw_link_set_init_default(&init, sizeof init));
    init.sleeps = 2;
    EXPECT(bw_link_set_create(pd, &init, &set) == BW_EINVAL);
    OK(bw_link_set_create(pd, NULL, &set));

    bw_tcp_listener *listener;
    bw_tcp_conn *conn;
    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(listener), 10000, &conn));
    NUL(bw_link_set_join(NULL, NULL, conn, &id));
    NUL(bw_link_set_join(set, NULL, NULL, &id));
    NUL(bw_link_set_join(set, NULL, conn, NULL));
    SIZE(bw_link_set_join(set, &link_init, conn, &id));
    OK(bw_tcp_conn_destroy(conn));
    OK(bw_tcp_listener_destroy(listener));
    MADE_NONE(bw_link, bw_link_set_join_pair(NULL, NULL, &id, pd, NULL, &made));
    MADE_NONE(bw_link, bw_link_set_join_pair(set, NULL, NULL, pd, NULL, &made));
    MADE_NONE(bw_link, bw_link_set_join_pair(set, NULL, &id, NULL, NULL, &made));
    NUL(bw_link_set_join_pair(set, NULL, &id, pd, NULL, NULL));
    SIZE(bw_link_set_join_pair(set, &link_init, &id, pd, NULL, &peer));
    SIZE(bw_link_set_join_pair(set, NULL, &id, pd, &link_init, &peer));
    OK(bw_link_set_join_pair(set, NULL, &id, pd, NULL, &peer));

    bw_connector *connector;
    bw_listener *host;
    OK(bw_connector_create(device, "127.0.0.1", 1, NULL, &connector));
    OK(bw_listener_create(device, "127.0.0.1", 0, 1, NULL, &host));
    NUL(bw_link_set_connect(NULL, connector, NULL, &id));
    NUL(bw_link_set_connect(set, NULL, NULL, &id));
    NUL(bw_link_set_connect(set, connector, NULL, NULL));
    SIZE(bw_link_set_connect(set, connector, &link_init, &id));
    NUL(bw_link_set_accept(NULL, host, NULL, 0, &id));
    NUL(bw_link_set_accept(set, NULL, NULL, 0, &id));
    NUL(bw_link_set_accept(set, host, NULL, 0, NULL));
    SIZE(bw_link_set_accept(set, host, &link_init, 0, &id));
    OK(bw_connector_destroy(connector));
    OK(bw_listener_destroy(host));

    NUL(bw_link_set_post_send(NULL, id, &send, 1, 0, NULL));
    NUL(bw_link_set_post_send(set, id, NULL, 1, 0, NULL));
    NUL(bw_link_set_post_write(NULL, id, 1, &sge, 0, 0, 0, 0));
    NUL(bw_link_set_post_write(set, id, 1, NULL, 0, 0, 0, 0));
    NUL(bw_link_set_post_write_inline(NULL, id, 1, "x", 1, 0, 0, 0, 0));
    NUL(bw_link_set_post_write_inline(set, id, 1, NULL, 1, 0, 0, 0, 0));
    NUL(bw_link_set_post_read(NULL, id, 1, &sge, 0, 0, 0, 0));
    NUL(bw_link_set_post_read(set, id, 1, NULL, 0, 0, 0, 0));
    NUL(bw_link_set_post_send_one(NULL, id, 1, &sge, 0, 0));
    NUL(bw_link_set_post_send_one(set, id, 1, NULL, 0, 0));
    NUL(bw_link_set_post_send_inline(NULL, id, 1, "x", 1, 0, 0));
    NUL(bw_link_set_post_send_inline(set, id, 1, NULL, 1, 0, 0));
    NUL(bw_link_set_ring_sq(NULL, id));
    NUL(bw_link_set_post_recv(NULL, id, &receive, 1, NULL));
    NUL(bw_link_set_post_recv(set, id, NULL, 1, NULL));
    NUL(bw_link_set_post_recv_one(NULL, id, 1, &sge));
    NUL(bw_link_set_post_recv_one(set, id, 1, NULL));
    NUL(bw_link_set_ring_rq(NULL, id));
    NUL(bw_link_set_poll(NULL, &wc, 1));
    NUL(bw_link_set_wake(NULL, 1));
    NUL(bw_link_set_poll(set, NULL, 1));
    NUL(bw_link_set_wait(NULL, &wc, 1, NULL));
    NUL(bw_link_set_wait(set, NULL, 1, NULL));
    NUL(bw_wait_default(NULL, sizeof wait));
    SIZE(bw_wait_default(&wait, 0));
    memset(&wait, 0, sizeof wait);
    SIZE(bw_link_set_wait(set, &wc, 1, &wait));
    OK(bw_wait_default(&wait, sizeof wait));
    wait.num_fds = 1;
    NUL(bw_link_set_wait(set, &wc, 1, &wait));
    NUL(bw_link_set_next_change(NULL, &id, &state));
    NUL(bw_link_set_next_change(set, NULL, &state));
    NUL(bw_link_set_next_change(set, &id, NULL));
    NUL(bw_link_set_query(NULL, &set_info));
    NUL(bw_link_set_query(set, NULL));
    SIZE(bw_link_set_query(set, &set_info));
    NUL(bw_link_set_on_fault(NULL, id, NULL, NULL));
    NUL(bw_link_set_on_recovered(NULL, id, NULL, NULL));
    NUL(bw_link_set_dump(NULL, id, NULL, NULL, 0, NULL));
    NUL(bw_link_set_dump(set, id, NULL, NULL, 64, NULL));
    NUL(bw_link_set_dump_failure(NULL, id, NULL, NULL, 0, NULL));
    NUL(bw_link_set_dump_failure(set, id, NULL, NULL, 64, NULL));
    NUL(bw_link_set_set_context(NULL, id, NULL));
    EXPECT(bw_link_set_context(NULL, id) == NULL);
    NUL(bw_link_set_peer_addr(NULL, id, text, &port));
    NUL(bw_link_set_peer_addr(set, id, NULL, &port));
    NUL(bw_link_set_peer_addr(set, id, text, NULL));
    NUL(bw_link_peer_addr(NULL, text, &port));
    NUL(bw_link_peer_addr(peer, NULL, &port));
    NUL(bw_link_peer_addr(peer, text, NULL));
    NUL(bw_link_set_query_link(NULL, id, &info));
    NUL(bw_link_set_query_link(set, id, NULL));
    SIZE(bw_link_set_query_link(set, id, &info));
    NUL(bw_link_set_query_counters(NULL, id, &counters));
    MADE_NONE(bw_monitor, bw_link_set_monitor(NULL, &made));
    NUL(bw_link_set_monitor(set, NULL));
    MADE_NONE(bw_monitor, bw_link_set_monitor_link(NULL, id, &made));
    NUL(bw_link_set_monitor_link(set, id, NULL));
    NUL(bw_link_set_query_counters(set, id, NULL));
    SIZE(bw_link_set_query_counters(set, id, &counters));
    NUL(bw_link_set_report_fault(NULL, id, &fault));
    NUL(bw_link_set_report_fault(set, id, NULL));
    SIZE(bw_link_set_report_fault(set, id, &fault));
    NUL(bw_link_set_fd(NULL));
    NUL(bw_link_set_arm(NULL));
    NUL(bw_link_set_time_left(NULL, &left_ns));
    NUL(bw_link_set_time_left(set, NULL));
    NUL(bw_link_set_cancel(NULL, id, 1));
    NUL(bw_link_set_end_grant(NULL, id, 1));
    NUL(bw_link_set_post_send_grant(NULL, id, 1, NULL, BW_ACCESS_REMOTE_READ, NULL, 0, 0, 0));
    NUL(bw_link_set_cancel_recv(NULL, id, 1));
    NUL(bw_link_set_cancel_after(NULL, id, 1, 1));
    NUL(bw_link_set_cancel_recv_after(NULL, id, 1, 1));
    NUL(bw_link_set_close(NULL, id, 0));
    NUL(bw_link_set_remove(NULL, id));
    NUL(bw_link_set_drain(NULL, 0, NULL, NULL, NULL));
    OK(bw_link_set_drain(set, 0, NULL, NULL, NULL));
    NUL(bw_link_set_destroy(NULL));
    OK(bw_link_set_destroy(set));
    OK(bw_link_destroy(peer));
}

static void links(void)
{
    bw_link_init init;
    bw_link_info info;
    bw_link_counters counters;
    bw_queue_counters queues;
    bw_monitor *monitor;
    bw_fault fault;
    bw_link_wc wc;
    bw_sge sge = end_sge(&a, 0, 8);
    bw_send_wr send = send_of(1, NULL);
    bw_recv_wr receive = recv_of(1, NULL);
    bw_qp_attr qp_attr;
    bw_link *link, *peer;
    uint64_t left_ns;

    memset(&qp_attr, 0, sizeof qp_attr);
    memset(&queues, 0, sizeof queues);
    memset(&init, 0, sizeof init);
    memset(&info, 0, sizeof info);
    memset(&counters, 0, sizeof counters);
    memset(&fault, 0, sizeof fault);
    NUL(bw_link_init_default(NULL, sizeof init));
    SIZE(bw_link_init_default(&init, 0));
    bw_tcp_listener *listener;
    bw_tcp_conn *conn;
    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(listener), 10000, &conn));
    MADE_NONE(bw_link, bw_link_create(NULL, NULL, conn, &made));
    MADE_NONE(bw_link, bw_link_create(pd, NULL, NULL, &made));
    NUL(bw_link_create(pd, NULL, conn, NULL));
    SIZE(bw_link_create(pd, &init, conn, &link));
    OK(bw_tcp_conn_destroy(conn));
    OK(bw_tcp_listener_destroy(listener));
    MADE_NONE(bw_link, bw_link_create_pair(NULL, NULL, &made, pd, NULL, &peer));
    MADE_NONE(bw_link, bw_link_create_pair(pd, NULL, &link, NULL, NULL, &made));
    NUL(bw_link_create_pair(pd, NULL, NULL, pd, NULL, &peer));
    NUL(bw_link_create_pair(pd, NULL, &link, pd, NULL, NULL));
    SIZE(bw_link_create_pair(pd, &init, &link, pd, NULL, &peer));
    SIZE(bw_link_create_pair(pd, NULL, &link, pd, &init, &peer));
    EXPECT(link == NULL && peer == NULL);
    OK(bw_link_create_pair(pd, NULL, &link, pd, NULL, &peer));

    NUL(bw_link_post_send(NULL, &send, 1, 0, NULL));
    NUL(bw_link_post_send(link, NULL, 1, 0, NULL));
    NUL(bw_link_post_send(link, &send, 1, 0, NULL));
    NUL(bw_link_post_write(NULL, 1, &sge, 0, 0, 0, 0));
    NUL(bw_link_post_write(link, 1, NULL, 0, 0, 0, 0));
    NUL(bw_link_post_write_inline(NULL, 1, "x", 1, 0, 0, 0, 0));
    NUL(bw_link_post_write_inline(link, 1, NULL, 1, 0, 0, 0, 0));
    NUL(bw_link_post_read(NULL, 1, &sge, 0, 0, 0, 0));
    NUL(bw_link_post_read(link, 1, NULL, 0, 0, 0, 0));
    NUL(bw_link_post_send_one(NULL, 1, &sge, 0, 0));
    NUL(bw_link_post_send_one(link, 1, NULL, 0, 0));
    NUL(bw_link_post_send_inline(NULL, 1, "x", 1, 0, 0));
    NUL(bw_link_post_send_inline(link, 1, NULL, 1, 0, 0));
    NUL(bw_link_ring_sq(NULL));
    NUL(bw_link_post_recv(NULL, &receive, 1, NULL));
    NUL(bw_link_post_recv(link, NULL, 1, NULL));
    NUL(bw_link_post_recv(link, &receive, 1, NULL));
    NUL(bw_link_post_recv_one(NULL, 1, &sge));
    NUL(bw_link_post_recv_one(link, 1, NULL));
    NUL(bw_link_ring_rq(NULL));
    NUL(bw_link_poll(NULL, &wc, 1));
    NUL(bw_link_poll(link, NULL, 1));
    NUL(bw_link_wait(NULL, &wc, 1, NULL));
    NUL(bw_link_wait(link, NULL, 1, NULL));
    NUL(bw_link_get_state(NULL));
    NUL(bw_link_query(NULL, &info));
    NUL(bw_link_query(link, NULL));
    SIZE(bw_link_query(link, &info));
    MADE_NONE(bw_monitor, bw_link_monitor(NULL, &made));
    NUL(bw_link_monitor(link, NULL));
    OK(bw_link_monitor(link, &monitor));
    NUL(bw_monitor_read_queues(NULL, &queues));
    NUL(bw_monitor_read_queues(monitor, NULL));
    SIZE(bw_monitor_read_queues(monitor, &queues));
    NUL(bw_monitor_read_link(NULL, &counters));
    NUL(bw_monitor_read_link(monitor, NULL));
    SIZE(bw_monitor_read_link(monitor, &counters));
    OK(bw_monitor_destroy(monitor));
    NUL(bw_monitor_destroy(NULL));
    NUL(bw_link_query_counters(NULL, &counters));
    NUL(bw_link_query_counters(link, NULL));
    SIZE(bw_link_query_counters(link, &counters));
    NUL(bw_link_exchange_fd(NULL));
    NUL(bw_link_fd(NULL));
    NUL(bw_link_arm(NULL));
    NUL(bw_link_time_left(NULL, &left_ns));
    NUL(bw_link_time_left(link, NULL));
    NUL(bw_link_query_qp(NULL, &qp_attr));
    NUL(bw_link_query_qp(link, NULL));
    SIZE(bw_link_query_qp(link, &qp_attr));
    NUL(bw_link_dump(NULL, NULL, NULL, 0, NULL));
    NUL(bw_link_dump(link, NULL, NULL, 64, NULL));
    NUL(bw_link_dump_failure(NULL, NULL, NULL, 0, NULL));
    NUL(bw_link_dump_failure(link, NULL, NULL, 64, NULL));
    NUL(bw_link_on_fault(NULL, NULL, NULL));
    EXPECT(bw_set_log_hook(0, NULL, NULL) == BW_EINVAL);
    OK(bw_set_log_hook(BW_LOG_INFO, NULL, NULL));
    NUL(bw_link_on_recovered(NULL, NULL, NULL));
    NUL(bw_link_report_fault(NULL, &fault));
    NUL(bw_link_report_fault(link, NULL));
    SIZE(bw_link_report_fault(link, &fault));
    NUL(bw_link_cancel(NULL, 1));
    NUL(bw_link_cancel_recv(NULL, 1));
    NUL(bw_link_cancel_after(NULL, 1, 1));
    NUL(bw_link_cancel_recv_after(NULL, 1, 1));
    NUL(bw_link_end_grant(NULL, 1));
    NUL(bw_link_post_send_grant(NULL, 1, NULL, BW_ACCESS_REMOTE_READ, NULL, 0, 0, 0));
    NUL(bw_link_post_send_grant(link, 1, NULL, BW_ACCESS_REMOTE_READ, &fault, sizeof fault, 0, 0));
    NUL(bw_link_post_send_grant(link, 1, &sge, BW_ACCESS_REMOTE_READ, NULL, 8, 0, 0));
    NUL(bw_link_close(NULL, 1));
    NUL(bw_link_drain(NULL, 1, NULL, NULL, NULL));
    NUL(bw_link_destroy(NULL));
    OK(bw_link_destroy(link));
    OK(bw_link_destroy(peer));
    bw_connector *connector;
    bw_listener *host;
    bw_link_retry retry;
    memset(&retry, 0, sizeof retry);
    NUL(bw_link_retry_default(NULL, sizeof retry));
    SIZE(bw_link_retry_default(&retry, 8));
    retry.size = 0;
    MADE_NONE(bw_connector, bw_connector_create(NULL, "127.0.0.1", 1, NULL, &made));
    MADE_NONE(bw_connector, bw_connector_create(device, NULL, 1, NULL, &made));
    NUL(bw_connector_create(device, "127.0.0.1", 1, NULL, NULL));
    SIZE(bw_connector_create(device, "127.0.0.1", 1, &retry, &connector));
    MADE_NONE(bw_listener, bw_listener_create(NULL, "127.0.0.1", 0, 1, NULL, &made));
    MADE_NONE(bw_listener, bw_listener_create(device, NULL, 0, 1, NULL, &made));
    NUL(bw_listener_create(device, "127.0.0.1", 0, 1, NULL, NULL));
    SIZE(bw_listener_create(device, "127.0.0.1", 0, 1, &retry, &host));
    EXPECT(connector == NULL && host == NULL);
    OK(bw_connector_create(device, "127.0.0.1", 1, NULL, &connector));
    OK(bw_listener_create(device, "127.0.0.1", 0, 1, NULL, &host));
    NUL(bw_listener_port(NULL));
    NUL(bw_listener_fd(NULL));
    NUL(bw_listener_limit_handshakes(NULL, 1, 1));
    MADE_NONE(bw_link, bw_link_connect(NULL, pd, NULL, &made));
    MADE_NONE(bw_link, bw_link_connect(connector, NULL, NULL, &made));
    NUL(bw_link_connect(connector, pd, NULL, NULL));
    SIZE(bw_link_connect(connector, pd, &init, &link));
    MADE_NONE(bw_link, bw_link_accept(NULL, pd, NULL, 0, &made));
    MADE_NONE(bw_link, bw_link_accept(host, NULL, NULL, 0, &made));
    NUL(bw_link_accept(host, pd, NULL, 0, NULL));
    SIZE(bw_link_accept(host, pd, &init, 0, &link));
    NUL(bw_connector_destroy(NULL));
    OK(bw_connector_destroy(connector));
    NUL(bw_listener_destroy(NULL));
    OK(bw_listener_destroy(host));
    NUL(bw_device_set_event_hook(NULL, NULL, NULL));
    NUL(bw_device_dispatch_async_event(NULL, NULL));
    NUL(bw_device_dispatch_async_event(device, NULL));
}

static void managed(void)
{
    bw_cm_channel *channel;
    bw_cm_id *id;
    bw_cm_param param;
    bw_cm_event event;
    char host[BW_ADDR_MAX];
    uint32_t port;

    memset(&param, 0, sizeof param);
    memset(&event, 0, sizeof event);
    MADE_NONE(bw_cm_channel, bw_cm_channel_create(NULL, &made));
    NUL(bw_cm_channel_create("soft", NULL));
    MADE_NONE(bw_cm_channel, bw_cm_channel_create_on(NULL, &made));
    NUL(bw_cm_channel_create_on(device, NULL));
    OK(bw_cm_channel_create_on(device, &channel));
    NUL(bw_cm_channel_fd(NULL));
    event.size = sizeof event;
    NUL(bw_cm_get_event(NULL, &event, 0));
    NUL(bw_cm_get_event(channel, NULL, 0));
    event.size = 0;
    SIZE(bw_cm_get_event(channel, &event, 0));
    MADE_NONE(bw_cm_id, bw_cm_id_create(NULL, BW_PS_TCP, NULL, &made));
    NUL(bw_cm_id_create(channel, BW_PS_TCP, NULL, NULL));
    OK(bw_cm_id_create(channel, BW_PS_TCP, NULL, &id));
    NUL(bw_cm_id_set_context(NULL, NULL));
    MADE_NONE(bw_device, bw_cm_id_device(NULL, &made));
    NUL(bw_cm_id_device(id, NULL));
    NUL(bw_cm_migrate(NULL, channel));
    NUL(bw_cm_migrate(id, NULL));
    NUL(bw_cm_set_option(NULL, BW_CM_TOS, 0));
    NUL(bw_cm_tried(NULL, host, sizeof host));
    NUL(bw_cm_tried(id, NULL, 1));
    NUL(bw_cm_why_refused(NULL, host, sizeof host));
    NUL(bw_cm_why_refused(id, NULL, 1));
    NUL(bw_cm_local_addr(NULL, host, &port));
    NUL(bw_cm_local_addr(id, NULL, &port));
    NUL(bw_cm_local_addr(id, host, NULL));
    NUL(bw_cm_peer_addr(NULL, host, &port));
    NUL(bw_cm_peer_addr(id, NULL, &port));
    NUL(bw_cm_peer_addr(id, host, NULL));
    NUL(bw_cm_param_default(NULL, sizeof param));
    SIZE(bw_cm_param_default(&param, 4));
    NUL(bw_cm_resolve_addr(NULL, NULL, "127.0.0.1", 1, 1));
    NUL(bw_cm_resolve_addr(id, NULL, NULL, 1, 1));
    NUL(bw_cm_resolve_route(NULL, 1));
    NUL(bw_cm_bind(NULL, "127.0.0.1", 0));
    NUL(bw_cm_bind(id, NULL, 0));
    NUL(bw_cm_listen(NULL, 1));
    NUL(bw_cm_init_qp(NULL, a.qp, 0));
    NUL(bw_cm_init_qp(id, NULL, 0));
    NUL(bw_cm_connect(NULL, a.qp, NULL));
    NUL(bw_cm_connect(id, NULL, NULL));
    SIZE(bw_cm_connect(id, a.qp, &param));
    OK(bw_cm_param_default(&param, sizeof param));
    param.private_data_len = 1;
    NUL(bw_cm_connect(id, a.qp, &param));
    NUL(bw_cm_establish(NULL, a.qp));
    NUL(bw_cm_establish(id, NULL));
    NUL(bw_cm_accept(NULL, a.qp, NULL));
    NUL(bw_cm_accept(id, NULL, NULL));
    NUL(bw_cm_reject(NULL, NULL, 0));
    NUL(bw_cm_reject(id, NULL, 1));
    NUL(bw_cm_disconnect(NULL, a.qp));
    NUL(bw_cm_disconnect(id, NULL));
    NUL(bw_cm_attach_qp(NULL, a.qp));
    NUL(bw_cm_attach_qp(id, NULL));
    NUL(bw_cm_detach_qp(NULL, a.qp));
    NUL(bw_cm_detach_qp(id, NULL));
    NUL(bw_cm_start_qp(NULL, a.qp));
    NUL(bw_cm_start_qp(id, NULL));
    NUL(bw_cm_lookup(NULL, NULL, 0));
    NUL(bw_cm_lookup(id, NULL, 1));
    NUL(bw_cm_reply(NULL, a.qp, NULL, 0));
    NUL(bw_cm_reply(id, NULL, NULL, 0));
    NUL(bw_cm_join(NULL, "239.1.2.3", 0));
    NUL(bw_cm_join(id, NULL, 0));
    NUL(bw_cm_leave(NULL, "239.1.2.3"));
    NUL(bw_cm_leave(id, NULL));
    OK(bw_cm_id_destroy(id));
    NUL(bw_cm_id_destroy(NULL));
    OK(bw_cm_channel_destroy(channel));
    NUL(bw_cm_channel_destroy(NULL));
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    devices();
    memory();
    slabs();
    completions();
    shared_queues();
    queue_pairs();
    datagrams_and_windows();
    posting();
    meeting();
    managed();
    faults();
    events();
    links();
    link_sets();
    /* Nothing has happened: all that there is goes, in one turn. */
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
