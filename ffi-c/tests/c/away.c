/*
 * Handles whose object is elsewhere: a queue pair that is on an id of the communication manager, a TCP
 * connection that a link has taken. Every function answers with an error, and what the object uses stays.
 * (`ffi-c/tests/c.rs` sees that no function of queue pairs is left out.)
 */
#include "link.h"

static bw_device *device;
static bw_pd *pd;
static bw_cm_channel *channel;
static struct end a, b;

#define AWAY(call) EXPECT((call) == BW_ESTATE)

static uint32_t never;

static void cleared(void *context, uint64_t wr_id)
{
    (void)wr_id;
    ++*(uint32_t *)context;
}

/* Each function that takes a queue pair; `id` is not the one that it is on. */
static void refused(bw_qp *qp, const bw_cm_id *id)
{
    bw_sge sge = end_sge(&a, 0, 8);
    bw_send_wr send = send_of(1, &sge);
    bw_recv_wr receive = recv_of(1, &sge);
    bw_rdma_wr rdma;
    bw_endpoint endpoint;
    bw_qp_attr attr;
    bw_mw_bind_info bind;
    bw_mw *mw;
    bw_monitor *monitor;
    uint8_t group[16] = {0xff, 0x0e};
    char text[64];
    size_t length;

    memset(&rdma, 0, sizeof rdma);
    memset(&endpoint, 0, sizeof endpoint);
    memset(&attr, 0, sizeof attr);
    memset(&bind, 0, sizeof bind);
    endpoint.size = sizeof endpoint;
    attr.size = sizeof attr;
    rdma.sge = sge;

    AWAY(bw_post_send(qp, &send, 1, NULL));
    AWAY(bw_post_recv(qp, &receive, 1, NULL));
    AWAY(bw_post_write(qp, 1, &sge, 0, 0, 0));
    AWAY(bw_post_write_inline(qp, 1, "x", 1, 0, 0, 0));
    AWAY(bw_post_read(qp, 1, &sge, 0, 0, 0));
    AWAY(bw_post_send_one(qp, 1, &sge, 0));
    AWAY(bw_post_send_inline(qp, 1, "x", 1, 0));
    AWAY(bw_post_recv_one(qp, 1, &sge));
    AWAY(bw_post_writes(qp, &rdma, 1, NULL));
    AWAY(bw_post_writes_inline(qp, &rdma, 1, NULL));
    AWAY(bw_post_reads(qp, &rdma, 1, NULL));
    AWAY(bw_ring_sq(qp));
    AWAY(bw_ring_rq(qp));

    OK(bw_mw_create(pd, BW_MW_TYPE_1, &mw));
    AWAY(bw_mw_bind(qp, mw, 1, &bind, 0));
    OK(bw_mw_destroy(mw));
    AWAY(bw_qp_endpoint(qp, &endpoint));
    AWAY(bw_qp_endpoint_for(qp, NULL, &endpoint));
    AWAY(bw_qp_init(qp, NULL));
    AWAY(bw_qp_connect(qp, &endpoint, NULL));
    AWAY(bw_qp_start(qp, NULL));
    AWAY(bw_qp_to_error(qp));
    AWAY(bw_qp_reset(qp, cleared, &never));
    AWAY(bw_qp_get_state(qp));
    AWAY(bw_qp_monitor(qp, &monitor));
    AWAY(bw_qp_count(qp));
    AWAY(bw_qp_data_in_order(qp, BW_WR_RDMA_WRITE));
    AWAY(bw_qp_modify(qp, &attr, BW_QP_STATE));
    AWAY(bw_qp_query(qp, &attr));
    AWAY(bw_qp_attach_mcast(qp, group, 0xc001));
    AWAY(bw_qp_detach_mcast(qp, group, 0xc001));
    AWAY(bw_qp_dump(qp, NULL, text, sizeof text, &length));
    AWAY(bw_qp_note(qp, "here"));
    AWAY(bw_cm_init_qp(id, qp, 0));
    AWAY(bw_cm_connect(id, qp, NULL));
    AWAY(bw_cm_establish(id, qp));
    AWAY(bw_cm_accept(id, qp, NULL));
    AWAY(bw_cm_disconnect(id, qp));
    AWAY(bw_cm_start_qp(id, qp));
    AWAY(bw_cm_reply(id, qp, NULL, 0));
    AWAY(bw_cm_attach_qp(id, qp));
    AWAY(bw_cm_detach_qp(id, qp));
    EXPECT(never == 0);
}

static bw_cm_id *id_of(uint32_t space)
{
    bw_cm_id *id;

    OK(bw_cm_id_create(channel, space, NULL, &id));
    return id;
}

/* What was there is there when it is taken back: a receive that was posted, and not rung. */
static void and_back(void)
{
    bw_cm_id *on = id_of(BW_PS_TCP), *other = id_of(BW_PS_TCP);
    bw_sge place = end_sge(&b, 0, 8);
    uint32_t reported = 0;

    OK(bw_post_recv_one(b.qp, 7, &place));
    OK(bw_cm_attach_qp(on, b.qp));
    refused(b.qp, other);
    EXPECT(bw_cm_attach_qp(on, a.qp) == BW_EBUSY);
    EXPECT(bw_cm_attach_qp(on, b.qp) == BW_EBUSY);
    EXPECT(bw_cm_detach_qp(on, a.qp) == BW_EFOREIGN);
    EXPECT(bw_qp_get_state(a.qp) == BW_QPS_INIT);
    OK(bw_cm_detach_qp(on, b.qp));
    EXPECT(bw_qp_get_state(b.qp) == BW_QPS_INIT);
    EXPECT(bw_cm_detach_qp(on, b.qp) == BW_ESTATE);
    OK(bw_ring_rq(b.qp));
    OK(bw_qp_reset(b.qp, cleared, &reported));
    EXPECT(reported == 1);
    OK(bw_qp_init(b.qp, NULL));
    OK(bw_cm_id_destroy(on));
    OK(bw_cm_id_destroy(other));
}

/* A queue pair of another device that has the same number is another one. */
static void namesake(void)
{
    bw_device *elsewhere = soft(BW_CLOCK_REAL);
    bw_cm_channel *its_channel;
    bw_cm_id *here = id_of(BW_PS_TCP), *there;
    bw_pd *its_pd;
    struct end stranger;

    OK(bw_pd_create(elsewhere, &its_pd));
    OK(bw_cm_channel_create_on(elsewhere, &its_channel));
    OK(bw_cm_id_create(its_channel, BW_PS_TCP, NULL, &there));
    /* Numbers count up on each device. */
    for (;;) {
        stranger = end_create(elsewhere, its_pd, BW_QPT_RC, NULL, NULL);
        if (end_number(&stranger) == end_number(&a))
            break;
        EXPECT(end_number(&stranger) < end_number(&a));
        end_destroy(&stranger);
    }
    OK(bw_cm_attach_qp(here, a.qp));
    OK(bw_cm_attach_qp(there, stranger.qp));
    EXPECT(bw_cm_detach_qp(here, stranger.qp) == BW_EFOREIGN);
    EXPECT(bw_cm_detach_qp(there, a.qp) == BW_EFOREIGN);
    OK(bw_cm_detach_qp(here, a.qp));
    OK(bw_cm_detach_qp(there, stranger.qp));
    end_destroy(&stranger);
    OK(bw_cm_id_destroy(here));
    OK(bw_cm_id_destroy(there));
    OK(bw_cm_channel_destroy(its_channel));
    OK(bw_pd_destroy(its_pd));
    OK(bw_device_close(elsewhere));
}

/* The handle goes, or the id, and the other stays: what the queue pair uses is in use until both went. */
static void orphans(void)
{
    bw_cm_id *on = id_of(BW_PS_UDP);
    bw_qp_init_attr init;
    bw_cq_attr attr;
    bw_srq *srq;
    bw_cq *cq;
    bw_qp *qp;

    OK(bw_srq_create(pd, NULL, &srq));
    OK(bw_qp_init_attr_default(&init, sizeof init));
    init.srq = srq;
    init.qp_type = BW_QPT_UD;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.entries = 4096;
    OK(bw_cq_create(device, &attr, &cq));
    OK(bw_qp_create(pd, cq, cq, &init, &qp));
    OK(bw_cm_attach_qp(on, qp));
    OK(bw_qp_destroy(qp));
    EXPECT(bw_srq_destroy(srq, NULL, NULL) == BW_EBUSY);
    EXPECT(bw_cq_destroy(cq) == BW_EBUSY);
    OK(bw_cm_id_destroy(on));
    OK(bw_srq_destroy(srq, NULL, NULL));

    init.srq = NULL;
    OK(bw_qp_create(pd, cq, cq, &init, &qp));
    on = id_of(BW_PS_UDP);
    bw_cm_id *other = id_of(BW_PS_UDP);
    OK(bw_cm_attach_qp(on, qp));
    OK(bw_cm_id_destroy(on));
    refused(qp, other);
    EXPECT(bw_cq_destroy(cq) == BW_EBUSY);
    OK(bw_qp_destroy(qp));
    OK(bw_cq_destroy(cq));
    OK(bw_cm_id_destroy(other));
}

static void taken_by_a_link(void)
{
    bw_tcp_listener *listener;
    bw_tcp_conn *here, *there;
    bw_endpoint endpoint, peer;
    bw_conn_info info;
    bw_link *link, *second = NULL;

    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    peer = endpoint;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_qp_endpoint(a.qp, &endpoint));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(listener), 10000, &here));
    OK(bw_tcp_accept(listener, 10000, &there));
    OK(bw_link_create(pd, NULL, here, &link));
    EXPECT(bw_tcp_exchange(here, &endpoint, NULL, &peer, &info, 0) == BW_ECONN);
    EXPECT(bw_tcp_barrier(here, 0) == BW_ECONN);
    EXPECT(bw_link_create(pd, NULL, here, &second) == BW_ECONN && second == NULL);
    OK(bw_tcp_conn_destroy(here));
    OK(bw_link_destroy(link));
    OK(bw_tcp_conn_destroy(there));
    OK(bw_tcp_listener_destroy(listener));
}

int main(void)
{
    bw_resources left;

    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    OK(bw_cm_channel_create_on(device, &channel));
    a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    and_back();
    namesake();
    orphans();
    taken_by_a_link();
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_cm_channel_destroy(channel));
    OK(bw_pd_destroy(pd));
    memset(&left, 0, sizeof left);
    left.size = sizeof left;
    OK(bw_device_resources(device, &left));
    EXPECT(left.qp == 0 && left.cq == 0 && left.srq == 0 && left.mr == 0 && left.mw == 0);
    OK(bw_device_close(device));
    return 0;
}
