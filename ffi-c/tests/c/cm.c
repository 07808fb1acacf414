/*
 * Connections by the communication manager: both ends of each in one thread, by one channel.
 *
 *     cm [PROVIDER ADDRESS]
 */
#include "program.h"
#include <time.h>

enum { SOON = 10000 };

static const char *address = "127.0.0.1";
static bw_cm_channel *channel;
static int contexts[8];

/* The next event, which has to be this one, of the id with this context. */
static bw_cm_event next(uint32_t expected, int *context)
{
    bw_cm_event event;

    memset(&event, 0, sizeof event);
    event.size = sizeof event;
    OK(bw_cm_get_event(channel, &event, SOON));
    if (event.event != expected) {
        fprintf(stderr, "%s (%d)\n", bw_cm_event_str(event.event), event.status);
        exit(EXIT_FAILURE);
    }
    EXPECT(event.context == context);
    EXPECT((event.request != NULL) == (expected == BW_CM_EVENT_CONNECT_REQUEST));
    return event;
}

/* As expect_wc(), of a device that takes its time. */
static void comes(struct end *end, uint64_t wr_id, uint32_t status)
{
    time_t begun = time(NULL);
    bw_wc wc;
    int polled;

    while ((polled = bw_poll_one(end->cq, &wc)) == 0)
        EXPECT(time(NULL) - begun < SOON / 1000);
    EXPECT(polled == 1 && wc.wr_id == wr_id && wc.status == status);
}

static void silence(void)
{
    bw_cm_event event;

    event.size = sizeof event;
    EXPECT(bw_cm_get_event(channel, &event, 0) == BW_EAGAIN);
}

static bw_cm_id *id_of(uint32_t space, int *context)
{
    bw_cm_id *id;

    OK(bw_cm_id_create(channel, space, context, &id));
    return id;
}

/* A listener, and its port. */
static bw_cm_id *listener_of(uint32_t space, int *context, uint32_t *port)
{
    bw_cm_id *id = id_of(space, context);
    char host[BW_ADDR_MAX];

    OK(bw_cm_bind(id, address, 0));
    OK(bw_cm_listen(id, 4));
    OK(bw_cm_local_addr(id, host, port));
    EXPECT(*port != 0);
    return id;
}

static bw_cm_id *route(uint32_t space, int *context, uint32_t port)
{
    bw_cm_id *id = id_of(space, context);

    OK(bw_cm_resolve_addr(id, NULL, address, port, SOON));
    next(BW_CM_EVENT_ADDR_RESOLVED, context);
    OK(bw_cm_resolve_route(id, SOON));
    next(BW_CM_EVENT_ROUTE_RESOLVED, context);
    return id;
}

/* A queue pair in RESET, on the id's device. */
static struct end end_of(bw_cm_id *id, bw_device **device, bw_pd **pd, uint32_t qp_type)
{
    OK(bw_cm_id_device(id, device));
    OK(bw_pd_create(*device, pd));
    struct end end = end_create(*device, *pd, qp_type, NULL, NULL);
    OK(bw_qp_reset(end.qp, NULL, NULL));
    return end;
}

/* Addresses that cannot be used are named, and those that were tried. */
static void addresses(void)
{
    /* Out of EXPECT, whose text is a format. */
    static const char hint[] = "fe80::1%eth0", nowhere[] = "fe80::1%nowhere", none[] = "fe80::77%lo",
                      named[] = "[fe80::77%lo]:7: ";
    bw_cm_id *id = id_of(BW_PS_TCP, &contexts[0]);
    char text[256], start[5];

    EXPECT(bw_cm_tried(id, text, sizeof text) == 0 && text[0] == '\0');
    EXPECT(bw_cm_tried(id, text, 0) == BW_EINVAL);
    EXPECT(bw_cm_bind(id, "fe80::1", 7) == BW_EINVAL);
    EXPECT(strstr(bw_last_error(), "[fe80::1]:7: ") && strstr(bw_last_error(), hint));
    EXPECT(bw_cm_bind(id, nowhere, 7) == BW_EOTHER);
    EXPECT(strstr(bw_last_error(), "no interface \"nowhere\""));
    EXPECT(bw_cm_bind(id, none, 7) == BW_ECONN);
    EXPECT(strstr(bw_last_error(), named));
    EXPECT(bw_cm_resolve_addr(id, nowhere, address, 7, SOON) == BW_EINVAL);
    EXPECT(bw_cm_resolve_addr(id, "name", address, 7, SOON) == BW_EINVAL);
    EXPECT(bw_cm_resolve_addr(id, NULL, "2001:db8::1", 7, SOON) == BW_OK);
    next(BW_CM_EVENT_ADDR_ERROR, &contexts[0]);
    EXPECT(bw_cm_tried(id, text, sizeof text) == (int)strlen(text));
    EXPECT(strncmp(text, "[2001:db8::1]:7: No route to host", 33) == 0);
    EXPECT(bw_cm_tried(id, start, sizeof start) == (int)strlen(text));
    EXPECT(strcmp(start, "[200") == 0);
    OK(bw_cm_id_destroy(id));
}

/* A refusal says why in words where the event's number does not. */
static void refusal(void)
{
    uint32_t port;
    bw_cm_id *id;
    bw_device *device;
    bw_pd *pd;
    char text[256], start[7];
    struct end end;

    OK(bw_cm_id_destroy(listener_of(BW_PS_TCP, &contexts[0], &port)));
    id = route(BW_PS_TCP, &contexts[0], port);
    EXPECT(bw_cm_why_refused(id, text, sizeof text) == 0 && text[0] == '\0');
    EXPECT(bw_cm_why_refused(id, text, 0) == BW_EINVAL);
    end = end_of(id, &device, &pd, BW_QPT_RC);
    OK(bw_cm_init_qp(id, end.qp, 0));
    OK(bw_cm_connect(id, end.qp, NULL));
    next(BW_CM_EVENT_REJECTED, &contexts[0]);
    EXPECT(bw_cm_why_refused(id, text, sizeof text) == (int)strlen(text));
    EXPECT(strncmp(text, "nobody listens at 127.0.0.1:", 28) == 0);
    EXPECT(bw_cm_why_refused(id, start, sizeof start) == (int)strlen(text));
    EXPECT(strcmp(start, "nobody") == 0);
    OK(bw_cm_id_destroy(id));
    silence();
    end_destroy(&end);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
}

static void connections(void)
{
    bw_device *devices[2];
    bw_pd *pds[2];
    bw_cm_param param;
    bw_cm_event event;
    uint32_t port, number;
    char host[BW_ADDR_MAX];

    bw_cm_id *listener = listener_of(BW_PS_TCP, &contexts[0], &port);
    bw_cm_id *second = id_of(BW_PS_TCP, NULL);
    EXPECT(bw_cm_bind(second, address, port) == BW_ECONN);
    EXPECT(bw_cm_peer_addr(second, host, &number) == BW_ESTATE);
    EXPECT(bw_cm_resolve_route(second, SOON) == BW_ESTATE);
    EXPECT(bw_cm_id_device(second, &devices[0]) == BW_ESTATE && devices[0] == NULL);
    OK(bw_cm_id_destroy(second));

    bw_cm_id *client = route(BW_PS_TCP, &contexts[1], port);
    struct end a = end_of(client, &devices[0], &pds[0], BW_QPT_RC);
    OK(bw_cm_set_option(client, BW_CM_TOS, 104));
    OK(bw_cm_set_option(client, BW_CM_UDP_SPORT, 0xc123));
    OK(bw_cm_init_qp(client, a.qp, BW_ACCESS_REMOTE_WRITE));
    OK(bw_cm_param_default(&param, sizeof param));
    static const char who[57] = "who?";
    param.private_data = who;
    param.private_data_len = sizeof who;
    EXPECT(bw_cm_connect(client, a.qp, &param) == BW_ELIMIT);
    param.private_data_len = 4;
    param.initiator_depth = 2;
    OK(bw_cm_connect(client, a.qp, &param));
    event = next(BW_CM_EVENT_CONNECT_REQUEST, &contexts[0]);
    EXPECT(event.private_data_len >= 4 && memcmp(event.private_data, "who?", 4) == 0);
    EXPECT(event.qp_num == end_number(&a) && event.responder_resources == 2);
    bw_cm_id *server = event.request;
    OK(bw_cm_id_set_context(server, &contexts[2]));
    OK(bw_cm_set_option(server, BW_CM_TOS, 32));
    OK(bw_cm_set_option(server, BW_CM_FLOW_LABEL, 0xabcde));

    struct end b = end_of(server, &devices[1], &pds[1], BW_QPT_RC);
    OK(bw_cm_init_qp(server, b.qp, BW_ACCESS_REMOTE_WRITE));
    OK(bw_cm_accept(server, b.qp, NULL));
    EXPECT(bw_cm_reject(server, NULL, 0) == BW_ESTATE);
    event = next(BW_CM_EVENT_CONNECT_RESPONSE, &contexts[1]);
    EXPECT(event.qp_num == end_number(&b));
    OK(bw_cm_establish(client, a.qp));
    bw_qp_attr attr;
    attr.size = sizeof attr;
    OK(bw_qp_query(a.qp, &attr));
    EXPECT(attr.ah_attr.is_global && attr.ah_attr.traffic_class == 104);
    EXPECT(attr.udp_sport == 0xc123);
    OK(bw_qp_query(b.qp, &attr));
    EXPECT(attr.ah_attr.is_global && attr.ah_attr.traffic_class == 32);
    EXPECT(attr.ah_attr.flow_label == 0xabcde && attr.udp_sport == 0);
    next(BW_CM_EVENT_ESTABLISHED, &contexts[2]);
    OK(bw_cm_peer_addr(client, host, &number));
    EXPECT(strcmp(host, address) == 0 && number == port);

    bw_sge place = end_sge(&b, 0, 64);
    bw_recv_wr receive = recv_of(1, &place);
    OK(bw_post_recv(b.qp, &receive, 1, NULL));
    OK(bw_post_send_inline(a.qp, 2, "here", 5, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a.qp));
    comes(&a, 2, BW_WC_SUCCESS);
    comes(&b, 1, BW_WC_SUCCESS);
    EXPECT(strcmp(end_bytes(&b, 0), "here") == 0);

    /* What is posted is flushed at each end when its program ends the connection. */
    OK(bw_post_recv(b.qp, &receive, 1, NULL));
    OK(bw_cm_disconnect(client, a.qp));
    next(BW_CM_EVENT_DISCONNECTED, &contexts[2]);
    expect_none(&b);
    OK(bw_cm_disconnect(server, b.qp));
    comes(&b, 1, BW_WC_WR_FLUSH_ERR);
    next(BW_CM_EVENT_DISCONNECTED, &contexts[1]);
    OK(bw_cm_id_destroy(client));
    OK(bw_cm_id_destroy(server));

    /* Refused, and said why. */
    client = route(BW_PS_TCP, &contexts[1], port);
    OK(bw_qp_reset(a.qp, NULL, NULL));
    OK(bw_cm_init_qp(client, a.qp, 0));
    OK(bw_cm_connect(client, a.qp, NULL));
    event = next(BW_CM_EVENT_CONNECT_REQUEST, &contexts[0]);
    OK(bw_cm_reject(event.request, "full", 4));
    OK(bw_cm_id_destroy(event.request));
    event = next(BW_CM_EVENT_REJECTED, &contexts[1]);
    EXPECT(event.status == 28 && memcmp(event.private_data, "full", 4) == 0);
    OK(bw_cm_id_destroy(client));
    OK(bw_cm_id_destroy(listener));
    silence();
    end_destroy(&a);
    end_destroy(&b);
    for (int at = 0; at < 2; at++) {
        OK(bw_pd_destroy(pds[at]));
        OK(bw_device_close(devices[at]));
    }
}

/* A queue pair on its id: it is connected as the events are got, and refused when it is in ERR. */
static void on_ids(void)
{
    bw_device *device;
    bw_pd *pd;
    uint32_t port;
    bw_cm_event event;
    bw_resources before, now;

    memset(&before, 0, sizeof before);
    before.size = sizeof before;
    now = before;
    bw_cm_id *listener = listener_of(BW_PS_TCP, &contexts[0], &port);
    bw_cm_id *client = route(BW_PS_TCP, &contexts[1], port);
    struct end a = end_of(client, &device, &pd, BW_QPT_RC);
    OK(bw_device_resources(device, &before));
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    OK(bw_device_resources(device, &now));
    EXPECT(now.qp == before.qp + 1 && now.cq == before.cq + 1);
    EXPECT(now.mr == before.mr + 1 && now.pd == before.pd && now.srq == before.srq);
    OK(bw_qp_reset(b.qp, NULL, NULL));
    EXPECT(bw_cm_detach_qp(client, a.qp) == BW_ESTATE);
    EXPECT(bw_cm_connect(client, NULL, NULL) == BW_ENULL);
    OK(bw_cm_init_qp(client, a.qp, 0));
    OK(bw_cm_attach_qp(client, a.qp));
    EXPECT(bw_cm_attach_qp(client, b.qp) == BW_EBUSY);
    EXPECT(bw_cm_attach_qp(listener, a.qp) == BW_ESTATE);
    EXPECT(bw_qp_to_error(a.qp) == BW_ESTATE);
    EXPECT(bw_post_send_inline(a.qp, 1, "away", 5, BW_SEND_SIGNALED) == BW_ESTATE);
    EXPECT(bw_post_recv(a.qp, NULL, 0, NULL) == BW_ESTATE);
    EXPECT(bw_ring_sq(a.qp) == BW_ESTATE && bw_ring_rq(a.qp) == BW_ESTATE);
    EXPECT(bw_cm_detach_qp(client, b.qp) == BW_EFOREIGN);
    OK(bw_cm_connect(client, NULL, NULL));
    bw_cm_id *server = next(BW_CM_EVENT_CONNECT_REQUEST, &contexts[0]).request;
    OK(bw_cm_id_set_context(server, &contexts[2]));
    OK(bw_cm_init_qp(server, b.qp, 0));
    OK(bw_cm_attach_qp(server, b.qp));
    OK(bw_cm_accept(server, NULL, NULL));
    event = next(BW_CM_EVENT_ESTABLISHED, &contexts[1]);
    OK(bw_cm_detach_qp(server, b.qp));
    EXPECT(event.qp_num == end_number(&b));
    next(BW_CM_EVENT_ESTABLISHED, &contexts[2]);
    OK(bw_cm_detach_qp(client, a.qp));
    bw_sge place = end_sge(&b, 0, 64);
    bw_recv_wr receive = recv_of(1, &place);
    OK(bw_post_recv(b.qp, &receive, 1, NULL));
    OK(bw_post_send_inline(a.qp, 2, "here", 5, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a.qp));
    comes(&a, 2, BW_WC_SUCCESS);
    comes(&b, 1, BW_WC_SUCCESS);
    OK(bw_cm_attach_qp(client, a.qp));
    OK(bw_cm_disconnect(client, NULL));
    next(BW_CM_EVENT_DISCONNECTED, &contexts[2]);
    OK(bw_cm_disconnect(server, b.qp));
    next(BW_CM_EVENT_DISCONNECTED, &contexts[1]);
    OK(bw_cm_detach_qp(client, a.qp));
    EXPECT(bw_qp_get_state(a.qp) == BW_QPS_ERR);
    OK(bw_cm_id_destroy(client));
    OK(bw_cm_id_destroy(server));

    /* What the device does not take to RTS is not connected; the peer hears of it. */
    client = route(BW_PS_TCP, &contexts[1], port);
    OK(bw_qp_reset(a.qp, NULL, NULL));
    OK(bw_qp_reset(b.qp, NULL, NULL));
    OK(bw_cm_init_qp(client, a.qp, 0));
    OK(bw_qp_to_error(a.qp));
    OK(bw_cm_attach_qp(client, a.qp));
    OK(bw_cm_connect(client, NULL, NULL));
    server = next(BW_CM_EVENT_CONNECT_REQUEST, &contexts[0]).request;
    OK(bw_cm_id_set_context(server, &contexts[2]));
    OK(bw_cm_init_qp(server, b.qp, 0));
    OK(bw_cm_accept(server, b.qp, NULL));
    EXPECT(next(BW_CM_EVENT_CONNECT_ERROR, &contexts[1]).status < 0);
    EXPECT(next(BW_CM_EVENT_REJECTED, &contexts[2]).status == 28);
    OK(bw_cm_id_destroy(server));
    /* The queue pair goes with the id, the handle does not. */
    OK(bw_cm_id_destroy(client));
    OK(bw_cm_id_destroy(listener));
    silence();
    OK(bw_device_resources(device, &now));
    EXPECT(now.qp == before.qp);
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
}

static void datagrams(void)
{
    bw_device *device;
    bw_pd *pd;
    bw_ah *ah;
    uint32_t port;

    bw_cm_id *listener = listener_of(BW_PS_UDP, &contexts[0], &port);
    bw_cm_id *client = route(BW_PS_UDP, &contexts[1], port);
    OK(bw_cm_lookup(client, "who?", 4));
    bw_cm_event event = next(BW_CM_EVENT_CONNECT_REQUEST, &contexts[0]);
    struct end end = end_of(event.request, &device, &pd, BW_QPT_UD);
    EXPECT(bw_cm_init_qp(event.request, end.qp, 0) == BW_ETRANSPORT);
    OK(bw_cm_start_qp(event.request, end.qp));
    OK(bw_cm_reply(event.request, end.qp, "me", 2));
    bw_cm_id *server = event.request;
    event = next(BW_CM_EVENT_ESTABLISHED, &contexts[1]);
    EXPECT(event.qp_num == end_number(&end) && memcmp(event.private_data, "me", 2) == 0);
    OK(bw_ah_create(pd, &event.ah_attr, &ah));
    OK(bw_ah_destroy(ah));

    bw_cm_id *member = id_of(BW_PS_UDP, &contexts[3]);
    OK(bw_cm_bind(member, address, 0));
    EXPECT(bw_cm_join(member, "nowhere", 0) == BW_EINVAL);
    OK(bw_cm_join(member, "239.1.2.3", 0));
    event = next(BW_CM_EVENT_MULTICAST_JOIN, &contexts[3]);
    EXPECT(event.qp_num == 0xffffff);
    OK(bw_qp_attach_mcast(end.qp, event.ah_attr.dgid, event.ah_attr.dlid));
    OK(bw_qp_detach_mcast(end.qp, event.ah_attr.dgid, event.ah_attr.dlid));
    OK(bw_cm_leave(member, "239.1.2.3"));
    OK(bw_cm_id_destroy(member));
    OK(bw_cm_id_destroy(client));
    OK(bw_cm_id_destroy(server));
    OK(bw_cm_id_destroy(listener));
    end_destroy(&end);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
}

static void channels(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_cm_channel *one, *other;
    bw_cm_id *id;

    OK(bw_cm_channel_create_on(device, &one));
    OK(bw_cm_channel_create_on(device, &other));
    EXPECT(bw_cm_channel_fd(one) >= 0);
    EXPECT(bw_cm_id_create(one, 7, NULL, &id) == BW_EINVAL && id == NULL);
    OK(bw_cm_id_create(one, BW_PS_TCP, NULL, &id));
    OK(bw_cm_set_option(id, BW_CM_TOS, 8));
    OK(bw_cm_set_option(id, BW_CM_REUSEADDR, 1));
    OK(bw_cm_set_option(id, BW_CM_AFONLY, 1));
    OK(bw_cm_set_option(id, BW_CM_ACK_TIMEOUT, 14));
    EXPECT(bw_cm_set_option(id, BW_CM_ACK_TIMEOUT, 32) == BW_EINVAL);
    EXPECT(bw_cm_set_option(id, BW_CM_TOS, 256) == BW_EINVAL);
    EXPECT(bw_cm_set_option(id, 99, 0) == BW_EINVAL);
    OK(bw_cm_set_option(id, BW_CM_SL, 15));
    EXPECT(bw_cm_set_option(id, BW_CM_SL, 16) == BW_EINVAL);
    EXPECT(bw_cm_set_option(id, BW_CM_FLOW_LABEL, 1 << 20) == BW_EINVAL);
    OK(bw_cm_set_option(id, BW_CM_PKEY_INDEX, 1));
    EXPECT(bw_cm_set_option(id, BW_CM_PKEY_INDEX, 65536) == BW_EINVAL);
    OK(bw_cm_set_option(id, BW_CM_HOP_LIMIT, 255));
    EXPECT(bw_cm_set_option(id, BW_CM_HOP_LIMIT, 256) == BW_EINVAL);
    EXPECT(bw_cm_set_option(id, BW_CM_UDP_SPORT, 4791) == BW_EINVAL);
    EXPECT(bw_cm_set_option(id, BW_CM_UDP_SPORT, 65536) == BW_EINVAL);
    OK(bw_cm_set_option(id, BW_CM_UDP_SPORT, 0));
    EXPECT(bw_cm_channel_destroy(one) == BW_EBUSY);
    OK(bw_cm_migrate(id, other));
    OK(bw_cm_channel_destroy(one));
    EXPECT(bw_cm_channel_destroy(other) == BW_EBUSY);
    OK(bw_cm_id_destroy(id));
    OK(bw_cm_channel_destroy(other));
    OK(bw_device_close(device));
    EXPECT(bw_cm_channel_create("none", &one) == BW_ENODEV && one == NULL);
}

int main(int argc, char **argv)
{
    if (argc == 3)
        address = argv[2];
    OK(bw_cm_channel_create(argc == 3 ? argv[1] : "soft", &channel));
    if (argc != 3)
        addresses(), refusal();
    connections();
    on_ids();
    datagrams();
    channels();
    silence();
    OK(bw_cm_channel_destroy(channel));
    return 0;
}
