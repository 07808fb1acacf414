/*
 * Fields that are 0: with anything else there the call is refused, and has done nothing.
 */
#include "link.h"

static bw_device *device;
static bw_pd *pd;
static struct end a, b;

#define BAD(call) EXPECT((call) == BW_EINVAL)

/* Requests: the refused one is returned, those before it are posted, it and those behind it are not. */
static void requests(void)
{
    const bw_send_wr *bad_send = NULL;
    const bw_recv_wr *bad_recv = NULL;
    bw_sge from = end_sge(&a, 0, 8), to = end_sge(&b, 0, 8);
    bw_send_wr sends[3] = {send_of(1, &from), send_of(2, &from), send_of(3, &from)};
    bw_recv_wr receives[3] = {recv_of(11, &to), recv_of(12, &to), recv_of(13, &to)};
    bw_srq *srq;

    for (uint32_t reserved = 1; reserved != 0; reserved <<= 1) {
        receives[0].reserved = reserved;
        bad_recv = NULL;
        BAD(bw_post_recv(b.qp, receives, 3, &bad_recv));
        EXPECT(bad_recv == &receives[0]);
        sends[0].reserved = reserved;
        bad_send = NULL;
        BAD(bw_post_send(a.qp, sends, 3, &bad_send));
        EXPECT(bad_send == &sends[0]);
    }
    sends[0].reserved = receives[0].reserved = 0;
    sends[1].reserved = receives[1].reserved = 7;
    BAD(bw_post_recv(b.qp, receives, 3, &bad_recv));
    BAD(bw_post_send(a.qp, sends, 3, &bad_send));
    EXPECT(bad_recv == &receives[1] && bad_send == &sends[1]);
    expect_wc(&a, 1, BW_WC_SUCCESS);
    expect_wc(&b, 11, BW_WC_SUCCESS);
    expect_none(&a);
    expect_none(&b);

    OK(bw_srq_create(pd, NULL, &srq));
    BAD(bw_post_srq_recv(srq, receives, 2, &bad_recv));
    EXPECT(bad_recv == &receives[1]);
    OK(bw_srq_destroy(srq, NULL, NULL));
}

static void windows(void)
{
    bw_send_wr bind = send_of(1, NULL);
    bw_mw *one, *two;
    uint32_t key;

    OK(bw_mw_create(pd, BW_MW_TYPE_1, &one));
    OK(bw_mw_create(pd, BW_MW_TYPE_2, &two));
    key = bw_mw_rkey(two);
    bind.num_sge = 0;
    bind.opcode = BW_WR_BIND_MW;
    bind.mw = two;
    bind.bind.addr = a.memory.addr;
    bind.bind.length = 8;
    bind.bind.lkey = a.memory.lkey;
    bind.bind.reserved = 1;
    BAD(bw_post_send(a.qp, &bind, 1, NULL));
    EXPECT(bw_mw_rkey(two) == key);
    key = bw_mw_rkey(one);
    BAD(bw_mw_bind(a.qp, one, 1, &bind.bind, 0));
    EXPECT(bw_mw_rkey(one) == key);
    expect_none(&a);
    OK(bw_mw_destroy(one));
    OK(bw_mw_destroy(two));
}

static uint64_t none_reported(bw_link *link)
{
    bw_link_wc wc;

    EXPECT(bw_link_poll(link, &wc, 1) == 0);
    return 0;
}

static void links(void)
{
    const bw_send_wr *bad_send = NULL;
    const bw_recv_wr *bad_recv = NULL;
    bw_sge from = end_sge(&a, 0, 8), to = end_sge(&b, 0, 8);
    bw_send_wr send = send_of(1, &from);
    bw_recv_wr receive = recv_of(2, &to);
    bw_link_init init;
    bw_qp_init_attr qp;
    bw_link *one, *other;

    OK(bw_qp_init_attr_default(&qp, sizeof qp));
    OK(bw_link_init_default(&init, sizeof init));
    init.qp = &qp;
    qp.reserved = 1;
    BAD(bw_link_create_pair(pd, &init, &one, pd, NULL, &other));
    OK(bw_link_create_pair(pd, NULL, &one, pd, NULL, &other));
    while (bw_link_get_state(one) != BW_LINK_READY || bw_link_get_state(other) != BW_LINK_READY)
        none_reported(one), none_reported(other);
    send.reserved = receive.reserved = 1;
    BAD(bw_link_post_recv(other, &receive, 1, &bad_recv));
    BAD(bw_link_post_send(one, &send, 1, BW_REPLAY_NEVER, &bad_send));
    EXPECT(bad_recv == &receive && bad_send == &send);
    uint64_t retired = 1;
    OK(bw_link_drain(other, SOON, NULL, NULL, &retired));
    EXPECT(retired == 0);
    OK(bw_link_drain(one, SOON, NULL, NULL, &retired));
    EXPECT(retired == 0);
    OK(bw_link_destroy(one));
    OK(bw_link_destroy(other));
}

static void attributes(void)
{
    bw_region_attr region_attr;
    bw_cq_attr cq_attr;
    bw_qp_init_attr init;
    bw_endpoint endpoint;
    bw_conn_info info;
    bw_ah_attr path;
    bw_qp_attr change;
    bw_cm_param param;
    bw_region *region;
    bw_tcp_listener *listener;
    bw_tcp_conn *conn;
    bw_cm_channel *channel;
    bw_cm_id *id;
    bw_cq *cq;
    bw_qp *qp;
    bw_ah *ah;
    uint32_t sends, receives;

    OK(bw_region_attr_default(&region_attr, sizeof region_attr));
    region_attr.length = 4096;
    region_attr.in_core_files = 1;
    OK(bw_region_create(pd, &region_attr, &region));
    OK(bw_region_destroy(region));
    memset(&cq_attr, 0, sizeof cq_attr);
    cq_attr.size = sizeof cq_attr;
    cq_attr.entries = 8;
    cq_attr.reserved = 1;
    BAD(bw_cq_create(device, &cq_attr, &cq));
    for (int second = 0; second < 2; second++) {
        OK(bw_qp_init_attr_default(&init, sizeof init));
        *(second ? &init.reserved1 : &init.reserved) = 1;
        BAD(bw_qp_cq_entries(&init, &sends, &receives));
        BAD(bw_qp_create(pd, a.cq, a.cq, &init, &qp));
    }

    memset(&path, 0, sizeof path);
    path.dlid = 1;
    path.port_num = 1;
    path.reserved = 1;
    BAD(bw_ah_create(pd, &path, &ah));
    memset(&change, 0, sizeof change);
    change.size = sizeof change;
    change.alt_ah_attr = path;
    change.alt_port_num = 1;
    BAD(bw_qp_modify(a.qp, &change, BW_QP_ALT_PATH));
    EXPECT(strstr(bw_last_error(), "reserved") != NULL);
    change.ah_attr = path;
    BAD(bw_qp_modify(a.qp, &change, BW_QP_AV));
    EXPECT(strstr(bw_last_error(), "reserved") != NULL);
    /* What the mask does not name is not looked at. */
    change.qp_access_flags = 0;
    OK(bw_qp_modify(a.qp, &change, BW_QP_ACCESS_FLAGS));

    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    OK(bw_qp_endpoint(a.qp, &endpoint));
    endpoint.reserved = 1;
    BAD(bw_qp_connect(b.qp, &endpoint, NULL));
    EXPECT(strstr(bw_last_error(), "reserved") != NULL);
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    info.mtu = BW_MTU_1024;
    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(listener), 10000, &conn));
    BAD(bw_tcp_exchange(conn, &endpoint, &info, &endpoint, &info, 0));
    endpoint.reserved = 0;
    info.reserved = 1;
    BAD(bw_tcp_exchange(conn, &endpoint, &info, &endpoint, &info, 0));
    OK(bw_tcp_conn_destroy(conn));
    OK(bw_tcp_listener_destroy(listener));

    OK(bw_cm_channel_create_on(device, &channel));
    OK(bw_cm_id_create(channel, BW_PS_TCP, NULL, &id));
    OK(bw_cm_param_default(&param, sizeof param));
    param.reserved[2] = 1;
    BAD(bw_cm_connect(id, a.qp, &param));
    EXPECT(strstr(bw_last_error(), "reserved") != NULL);
    OK(bw_cm_id_destroy(id));
    OK(bw_cm_channel_destroy(channel));
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    requests();
    windows();
    links();
    attributes();
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
