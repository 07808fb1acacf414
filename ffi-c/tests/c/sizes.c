/*
 * Every function that takes a struct which begins with its size, and a size that no version of the
 * struct had, as one that was never set: an error, and no byte of the program's is written, nor does
 * it matter what is behind the struct. (`ffi-c/tests/c.rs` sees that no function is left out.)
 */
#include "link.h"

/* A struct, and what a stack has behind it. */
static union {
    uint64_t aligned;
    uint32_t size;
    unsigned char bytes[16384];
} place;
static unsigned char before[sizeof place];

/* Sizes that are wrong: as such, then by so much beyond the struct's. */
static const uint32_t wrong[] = {0, 1, 4, 6, 0xa5a5a5a5, UINT32_MAX};
static const int32_t beyond[] = {-1, 1, 3, 4, 8, 64, 1000, 4095, 4096, 4097};
enum { WRONG = sizeof wrong / sizeof wrong[0], SIZES = WRONG + sizeof beyond / sizeof beyond[0] };

static uint32_t size_at(unsigned n, size_t known)
{
    return n < WRONG ? wrong[n] : (uint32_t)((int32_t)known + beyond[n - WRONG]);
}

/* All bytes are alike; so is the size, or it is given. */
static void *fill(int byte)
{
    memset(&place, byte, sizeof place);
    memcpy(before, &place, sizeof place);
    return &place;
}

static void *sized(int byte, uint32_t size)
{
    fill(byte);
    place.size = size;
    memcpy(before, &place, sizeof place);
    return &place;
}

#define UNTOUCHED() EXPECT(memcmp(&place, before, sizeof place) == 0)

/* `call` has `p` for a struct of this type. */
#define REFUSES(type, call)                                                                       \
    do {                                                                                          \
        for (unsigned n = 0; n < 2 * SIZES; n++) {                                                \
            type *p = (type *)sized(n % 2 ? 0 : 0xa5, size_at(n / 2, sizeof(type)));              \
            EXPECT((call) == BW_ESIZE);                                                           \
            EXPECT(strstr(bw_last_error(), #type) != NULL);                                       \
            UNTOUCHED();                                                                          \
        }                                                                                         \
    } while (0)

/* `call` has `size` for the size, too. */
#define FILLS(type, call)                                                                         \
    do {                                                                                          \
        for (unsigned n = 0; n < SIZES; n++) {                                                    \
            type *p = (type *)fill(0xa5);                                                         \
            size_t size = size_at(n, sizeof *p);                                                  \
            EXPECT((call) == BW_ESIZE);                                                           \
            UNTOUCHED();                                                                          \
        }                                                                                         \
        type *p = (type *)fill(0xa5);                                                             \
        size_t size = sizeof *p;                                                                  \
        OK(call);                                                                                 \
        EXPECT(place.size == size);                                                               \
        EXPECT(memcmp(place.bytes + size, before + size, sizeof place - size) == 0);              \
    } while (0)

static bw_device *device;
static bw_pd *pd;
static struct end a, b;

static void devices(void)
{
    bw_device *made;

    REFUSES(bw_device_info, bw_device_at(0, p));
    REFUSES(bw_device_info, bw_device_query(device, p));
    REFUSES(bw_resources, bw_device_resources(device, p));
    REFUSES(bw_device_counters, bw_device_query_counters(device, p));
    REFUSES(bw_soft_config, bw_device_open_soft(p, &made));
    REFUSES(bw_soft_config, bw_device_join("sizes", p, &made));
    REFUSES(bw_port_info, bw_query_port(device, 1, p));
}

static void memory(void)
{
    bw_slab_class of = {64, 4};
    bw_region *region;
    bw_slab *slab;
    bw_mr *mr;

    FILLS(bw_region_attr, bw_region_attr_default(p, size));
    REFUSES(bw_region_attr, bw_region_create(pd, p, &region));
    REFUSES(bw_region_info, bw_region_query(a.region, p));
    OK(bw_mr_create(pd, &of, sizeof of, 0, &mr));
    REFUSES(bw_mr_info, bw_mr_query(mr, p));
    OK(bw_mr_destroy(mr));
    OK(bw_slab_create(a.region, &of, 1, &slab));
    REFUSES(bw_slab_info, bw_slab_query(slab, p));
    OK(bw_slab_destroy(slab));
}

static void queues(void)
{
    struct end datagrams = end_create(device, pd, BW_QPT_UD, NULL, NULL);
    bw_endpoint peer;
    bw_xrcd *xrcd;
    bw_xrc_target *target;
    bw_srq *srq;
    bw_cq *cq;
    bw_qp *qp;
    char text[64];
    size_t length;
    uint32_t sends, receives;

    REFUSES(bw_cq_attr, bw_cq_create(device, p, &cq));
    REFUSES(bw_cq_info, bw_cq_query(a.cq, p));
    OK(bw_xrcd_create(device, &xrcd));
    FILLS(bw_srq_init_attr, bw_srq_init_attr_default(p, size));
    REFUSES(bw_srq_init_attr, bw_srq_create(pd, p, &srq));
    REFUSES(bw_srq_init_attr, bw_srq_create_xrc(pd, xrcd, a.cq, p, &srq));
    OK(bw_srq_create(pd, NULL, &srq));
    REFUSES(bw_srq_info, bw_srq_query(srq, p));
    OK(bw_srq_destroy(srq, NULL, NULL));

    FILLS(bw_qp_init_attr, bw_qp_init_attr_default(p, size));
    REFUSES(bw_qp_init_attr, bw_qp_cq_entries(p, &sends, &receives));
    REFUSES(bw_qp_init_attr, bw_qp_create(pd, a.cq, a.cq, p, &qp));
    FILLS(bw_connect_attr, bw_connect_attr_default(p, size));
    REFUSES(bw_endpoint, bw_qp_endpoint(a.qp, p));
    REFUSES(bw_endpoint, bw_qp_endpoint_for(a.qp, NULL, p));
    memset(&peer, 0, sizeof peer);
    peer.size = sizeof peer;
    REFUSES(bw_connect_attr, bw_qp_endpoint_for(a.qp, p, &peer));
    OK(bw_qp_endpoint(b.qp, &peer));
    REFUSES(bw_connect_attr, bw_qp_init(a.qp, p));
    REFUSES(bw_connect_attr, bw_qp_connect(a.qp, &peer, p));
    REFUSES(bw_endpoint, bw_qp_connect(a.qp, p, NULL));
    REFUSES(bw_connect_attr, bw_qp_start(datagrams.qp, p));
    REFUSES(bw_qp_attr, bw_qp_modify(a.qp, p, BW_QP_STATE));
    REFUSES(bw_qp_attr, bw_qp_query(a.qp, p));
    REFUSES(bw_dump_attr, bw_qp_dump(a.qp, p, text, sizeof text, &length));

    OK(bw_xrc_target_create(xrcd, &target));
    REFUSES(bw_endpoint, bw_xrc_target_endpoint(target, p));
    REFUSES(bw_connect_attr, bw_xrc_target_init(target, p));
    REFUSES(bw_connect_attr, bw_xrc_target_connect(target, &peer, p));
    REFUSES(bw_endpoint, bw_xrc_target_connect(target, p, NULL));
    REFUSES(bw_qp_attr, bw_xrc_target_modify(target, p, BW_QP_STATE));
    REFUSES(bw_qp_attr, bw_xrc_target_query(target, p));
    OK(bw_xrc_target_destroy(target));
    OK(bw_xrcd_destroy(xrcd));
    end_destroy(&datagrams);
}

/* What has a length, or a place of a length that the header names. */
static void lengths(bw_cm_id *id)
{
    char *host = (char *)fill(0xa5);
    uint32_t port;
    bw_cm_param param;

    OK(bw_cm_bind(id, "127.0.0.1", 0));
    OK(bw_cm_local_addr(id, host, &port));
    EXPECT(strcmp(host, "127.0.0.1") == 0);
    EXPECT(memcmp(host + strlen(host) + 1, before, BW_ADDR_MAX) == 0);
    /* Never set, and so not looked at. */
    OK(bw_cm_param_default(&param, sizeof param));
    param.private_data = &port;
    param.private_data_len = UINT32_MAX;
    EXPECT(bw_cm_connect(id, a.qp, &param) == BW_ELIMIT);
    EXPECT(bw_cm_accept(id, a.qp, &param) == BW_ELIMIT);
    EXPECT(bw_cm_reject(id, &port, UINT32_MAX) == BW_ELIMIT);
    EXPECT(bw_cm_lookup(id, &port, UINT32_MAX) == BW_ELIMIT);
}

static void connections(void)
{
    bw_tcp_listener *listener;
    bw_tcp_conn *here, *there;
    bw_endpoint endpoint, peer;
    bw_conn_info info;
    bw_cm_channel *channel;
    bw_cm_id *id;

    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    peer = endpoint;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_qp_endpoint(a.qp, &endpoint));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(listener), 10000, &here));
    OK(bw_tcp_accept(listener, 10000, &there));
    REFUSES(bw_endpoint, bw_tcp_exchange(here, p, NULL, &peer, &info, 0));
    REFUSES(bw_conn_info, bw_tcp_exchange(here, &endpoint, p, &peer, &info, 0));
    REFUSES(bw_endpoint, bw_tcp_exchange(here, &endpoint, NULL, p, &info, 0));
    REFUSES(bw_conn_info, bw_tcp_exchange(here, &endpoint, NULL, &peer, p, 0));
    OK(bw_tcp_conn_destroy(here));
    OK(bw_tcp_conn_destroy(there));
    OK(bw_tcp_listener_destroy(listener));

    OK(bw_cm_channel_create_on(device, &channel));
    OK(bw_cm_id_create(channel, BW_PS_TCP, NULL, &id));
    FILLS(bw_cm_param, bw_cm_param_default(p, size));
    REFUSES(bw_cm_event, bw_cm_get_event(channel, p, 0));
    REFUSES(bw_cm_param, bw_cm_connect(id, a.qp, p));
    REFUSES(bw_cm_param, bw_cm_accept(id, a.qp, p));
    lengths(id);
    OK(bw_cm_id_destroy(id));
    OK(bw_cm_channel_destroy(channel));
}

static void faults(void)
{
    bw_async_event *event;
    bw_async_event_info info;
    bw_fault fault;
    bw_class means;

    OK(bw_soft_raise(device, BW_EVENT_SM_CHANGE, 1));
    REFUSES(bw_async_event_info, bw_get_async_event(device, p, &event));
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_get_async_event(device, &info, &event));
    OK(bw_ack_async_event(event));
    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    REFUSES(bw_class, bw_classify(&fault, p));
    bw_wc wc;
    memset(&wc, 0, sizeof wc);
    REFUSES(bw_class, bw_classify_wc(&wc, BW_QPT_RC, BW_QUEUE_SEND, p));
    memset(&means, 0, sizeof means);
    means.size = sizeof means;
    REFUSES(bw_fault, bw_classify(p, &means));
}

static void links(void)
{
    bw_tcp_listener *tcp;
    bw_tcp_conn *here, *there;
    bw_link *one, *other, *link;
    bw_link_set *set;
    bw_link_set_wc none;
    bw_link_wc last;
    bw_link_id id;
    bw_tcp_conn *conn;
    bw_connector *connector;
    bw_listener *listener;
    bw_monitor *monitor;
    char text[64];
    size_t length;

    FILLS(bw_link_init, bw_link_init_default(p, size));
    FILLS(bw_link_set_init, bw_link_set_init_default(p, size));
    REFUSES(bw_link_set_init, bw_link_set_create(pd, p, &set));
    OK(bw_link_set_create(pd, NULL, &set));
    REFUSES(bw_link_set_info, bw_link_set_query(set, p));
    FILLS(bw_wait, bw_wait_default(p, size));
    REFUSES(bw_wait, bw_link_set_wait_sized(set, &none, sizeof none, 1, p));
    REFUSES(bw_link_init, bw_link_set_join_pair(set, p, &id, pd, NULL, &link));
    REFUSES(bw_link_init, bw_link_set_join_pair(set, NULL, &id, pd, p, &link));
    OK(bw_link_set_join_pair(set, NULL, &id, pd, NULL, &link));
    REFUSES(bw_link_info, bw_link_set_query_link(set, id, p));
    REFUSES(bw_dump_attr, bw_link_set_dump(set, id, p, text, sizeof text, &length));
    REFUSES(bw_dump_attr, bw_link_set_dump_failure(set, id, p, text, sizeof text, &length));
    REFUSES(bw_link_counters, bw_link_set_query_counters(set, id, p));
    REFUSES(bw_fault, bw_link_set_report_fault(set, id, p));
    OK(bw_link_set_destroy(set));
    OK(bw_link_destroy(link));
    FILLS(bw_link_retry, bw_link_retry_default(p, size));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &tcp));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(tcp), 10000, &here));
    OK(bw_tcp_accept(tcp, 10000, &there));
    /* The connection is not taken. */
    REFUSES(bw_link_init, bw_link_create(pd, p, here, &link));
    OK(bw_tcp_conn_destroy(here));
    OK(bw_tcp_conn_destroy(there));
    OK(bw_tcp_listener_destroy(tcp));

    REFUSES(bw_link_init, bw_link_create_pair(pd, p, &one, pd, NULL, &other));
    REFUSES(bw_link_init, bw_link_create_pair(pd, NULL, &one, pd, p, &other));
    OK(bw_link_create_pair(pd, NULL, &one, pd, NULL, &other));
    REFUSES(bw_link_info, bw_link_query(one, p));
    REFUSES(bw_link_counters, bw_link_query_counters(one, p));
    OK(bw_link_monitor(one, &monitor));
    REFUSES(bw_link_counters, bw_monitor_read_link(monitor, p));
    REFUSES(bw_queue_counters, bw_monitor_read_queues(monitor, p));
    OK(bw_monitor_destroy(monitor));
    REFUSES(bw_qp_attr, bw_link_query_qp(one, p));
    REFUSES(bw_fault, bw_link_report_fault(one, p));
    REFUSES(bw_wait, bw_link_wait_sized(one, &last, sizeof last, 1, p));
    REFUSES(bw_dump_attr, bw_link_dump(one, p, text, sizeof text, &length));
    REFUSES(bw_dump_attr, bw_link_dump_failure(one, p, text, sizeof text, &length));
    for (unsigned n = 0; n < SIZES; n++) {
        bw_link_wc *wc = (bw_link_wc *)fill(0xa5);

        EXPECT(bw_link_poll_sized(one, wc, size_at(n, sizeof *wc), 2) == BW_ESIZE);
        EXPECT(bw_link_wait_sized(one, wc, size_at(n, sizeof *wc), 2, NULL) == BW_ESIZE);
        UNTOUCHED();
    }

    REFUSES(bw_link_retry, bw_connector_create(device, "127.0.0.1", 1, p, &connector));
    OK(bw_connector_create(device, "127.0.0.1", 1, NULL, &connector));
    REFUSES(bw_link_init, bw_link_connect(connector, pd, p, &link));
    OK(bw_link_set_create(pd, NULL, &set));
    REFUSES(bw_link_init, bw_link_set_connect(set, connector, p, &id));
    OK(bw_connector_destroy(connector));
    REFUSES(bw_link_retry, bw_listener_create(device, "127.0.0.1", 0, 1, p, &listener));
    OK(bw_listener_create(device, "127.0.0.1", 0, 1, NULL, &listener));
    REFUSES(bw_link_init, bw_link_accept(listener, pd, p, 0, &link));
    REFUSES(bw_link_init, bw_link_set_accept(set, listener, p, 0, &id));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &tcp));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(tcp), 10000, &conn));
    REFUSES(bw_link_init, bw_link_set_join(set, p, conn, &id));
    OK(bw_tcp_conn_destroy(conn));
    OK(bw_tcp_listener_destroy(tcp));
    OK(bw_link_set_destroy(set));
    OK(bw_listener_destroy(listener));
    OK(bw_link_destroy(one));
    OK(bw_link_destroy(other));
}

/* What points to another such struct. */
static void within(void)
{
    bw_link *one, *other;
    bw_link_init init;
    bw_link_set_init set_init;
    bw_link_set *set;

    OK(bw_link_set_init_default(&set_init, sizeof set_init));
    REFUSES(bw_qp_init_attr, (set_init.qp = p, bw_link_set_create(pd, &set_init, &set)));
    OK(bw_link_init_default(&init, sizeof init));
    REFUSES(bw_qp_init_attr, (init.qp = p, bw_link_create_pair(pd, &init, &one, pd, NULL, &other)));
    init.qp = NULL;
    REFUSES(bw_connect_attr,
            (init.connect = p, bw_link_create_pair(pd, &init, &one, pd, NULL, &other)));
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    devices();
    memory();
    queues();
    connections();
    faults();
    links();
    within();
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
