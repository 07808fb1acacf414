/*
 * Links whose connection the communication manager makes, and makes again: both ends in one thread.
 *
 *     link_cm [DEVICE ADDRESS]
 */
#include "link.h"
#include <poll.h>
#include <time.h>

static const char *address = "127.0.0.1";
static bw_device *device;
static bw_pd *pd;
static struct side a, b, c;

/* Gives up soon. */
static bw_link_retry retry_of(uint32_t attempts)
{
    bw_link_retry retry;

    OK(bw_link_retry_default(&retry, sizeof retry));
    EXPECT(retry.attempts > 1 && retry.step_ns >= 1000000000 && retry.pause_ns <= retry.longest_ns);
    retry.attempts = attempts;
    retry.pause_ns = 1000000;
    retry.longest_ns = 20000000;
    return retry;
}

/* Receives of a link that has been polled, and is not connected: what does not fit is refused at once. */
static void early(struct side *side)
{
    bw_sge sges[64];
    bw_recv_wr many;
    const bw_recv_wr *bad = NULL;

    for (unsigned at = 0; at < 64; at++)
        sges[at] = side_sge(side, at, 1);
    memset(&many, 0, sizeof many);
    many.sg_list = sges;
    many.num_sge = 64;
    EXPECT(bw_link_get_state(side->link) == BW_LINK_RECOVERING);
    EXPECT(bw_link_post_recv(side->link, &many, 1, &bad) == BW_ETOOMANYSGE && bad == &many);
    side_receive(side);
    side_receive(side);
    EXPECT(bw_link_get_state(side->link) == BW_LINK_RECOVERING);
}

/* A link that asks, and the one that is made for it. */
static void meet(bw_connector *connector, bw_listener *listener, struct side *client,
                 struct side *server)
{
    bw_link_init init;
    int code;

    side_memory(client, pd, &init);
    OK(bw_link_connect(connector, pd, &init, &client->link));
    side_memory(server, pd, &init);
    do {
        side_poll(client);
        code = bw_link_accept(listener, pd, &init, 0, &server->link);
        EXPECT((server->link == NULL) == (code != BW_OK));
    } while (code == BW_EAGAIN);
    EXPECT(code == BW_OK);
    side_poll(server);
    early(client);
    early(server);
    both_ready(client, server);
    uint64_t left = 0;
    OK(bw_link_time_left(server->link, &left));
    EXPECT(left == UINT64_MAX);
    struct side *sides[] = {client, server};
    for (unsigned at = 0; at < 2; at++) {
        char host[BW_ADDR_MAX] = "";
        uint32_t port = 0;

        OK(bw_link_peer_addr(sides[at]->link, host, &port));
        EXPECT(strcmp(host, address) == 0);
        EXPECT(at != 0 || port == (uint32_t)bw_listener_port(listener));
    }
}

/* A number from one end to the other. */
static void say(struct side *from, struct side *to, uint64_t number)
{
    side_receive(to);
    OK(bw_link_post_send_inline(from->link, number, &number, 8, BW_SEND_SIGNALED,
                                BW_REPLAY_IF_SAFE));
    OK(bw_link_ring_sq(from->link));
    from->posted++;
    while (!from->reported[number] || !to->received[number]) {
        side_poll(from);
        side_poll(to);
    }
    EXPECT(from->last[number].outcome == BW_OUTCOME_EXECUTED && to->received[number] == 1);
}

/* The connection is made again when one end says that it has failed. */
static void again(struct side *fails, struct side *other)
{
    uint64_t epochs[] = {side_info(fails).epoch, side_info(other).epoch};
    bw_fault fault;

    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    fault.number = BW_EVENT_QP_FATAL;
    OK(bw_link_report_fault(fails->link, &fault));
    while (side_info(fails).epoch == epochs[0] || side_info(other).epoch == epochs[1]) {
        side_poll(fails);
        side_poll(other);
    }
    both_ready(fails, other);
    EXPECT(side_counters(fails).recovered >= 2 && side_counters(other).recovered >= 2);
}

/* A link of this connector is given up, and says why. */
static void given_up(bw_connector *connector)
{
    struct side alone;
    bw_link_init init;

    uint64_t left;

    side_memory(&alone, pd, &init);
    OK(bw_link_connect(connector, pd, &init, &alone.link));
    side_poll(&alone);
    early(&alone);
    /* Somebody has to answer in this time. */
    OK(bw_link_time_left(alone.link, &left));
    EXPECT(left <= init.exchange_ns);
    while (bw_link_get_state(alone.link) == BW_LINK_RECOVERING)
        side_poll(&alone);
    EXPECT(bw_link_get_state(alone.link) == BW_LINK_GAVE_UP);
    EXPECT(strlen(side_info(&alone).why) > 0);
    while (alone.retired < alone.posted)
        side_poll(&alone);
    EXPECT(alone.last[RECEIVES].outcome == BW_OUTCOME_NOT_EXECUTED);
    EXPECT(alone.last[RECEIVES + 1].outcome == BW_OUTCOME_NOT_EXECUTED);
    side_end(&alone);
}

static void refused(bw_listener *listener)
{
    bw_link_retry never = retry_of(0);
    uint32_t port = (uint32_t)bw_listener_port(listener);
    bw_device *others = soft(BW_CLOCK_REAL);
    bw_pd *foreign;
    bw_link_init init;
    bw_connector *connector;
    bw_listener *second;
    bw_link *link;
    time_t begun;

    EXPECT(bw_connector_create(device, address, 65536, NULL, &connector) == BW_EINVAL);
    EXPECT(bw_connector_create(device, address, port, &never, &connector) == BW_EINVAL);
    EXPECT(connector == NULL && strstr(bw_last_error(), "attempts"));
    EXPECT(bw_listener_create(device, address, 70000, 1, NULL, &second) == BW_EINVAL);
    EXPECT(bw_listener_create(device, address, 0, 1, &never, &second) == BW_EINVAL);
    EXPECT(bw_listener_create(device, address, port, 1, NULL, &second) == BW_ECONN);
    EXPECT(second == NULL);

    OK(bw_connector_create(device, address, port, NULL, &connector));
    OK(bw_pd_create(others, &foreign));
    EXPECT(bw_link_connect(connector, foreign, NULL, &link) == BW_EFOREIGN && link == NULL);
    EXPECT(bw_link_accept(listener, foreign, NULL, 0, &link) == BW_EFOREIGN && link == NULL);
    OK(bw_link_init_default(&init, sizeof init));
    init.attempts = 0;
    EXPECT(bw_link_connect(connector, pd, &init, &link) == BW_EINVAL && link == NULL);
    EXPECT(bw_link_accept(listener, pd, &init, 0, &link) == BW_EINVAL && link == NULL);
    OK(bw_pd_destroy(foreign));
    OK(bw_device_close(others));
    OK(bw_connector_destroy(connector));

    begun = time(NULL);
    EXPECT(bw_link_accept(listener, pd, NULL, 50, &link) == BW_EAGAIN && link == NULL);
    EXPECT(time(NULL) - begun < SOON / 1000);
    EXPECT(bw_device_close(device) == BW_EBUSY);
}

/* Who waits for somebody by the descriptor. */
static void sleeps(bw_connector *connector, bw_listener *listener)
{
    struct pollfd readable;
    bw_link_init init;
    bw_link *none;
    int code;

    memset(&readable, 0, sizeof readable);
    readable.fd = bw_listener_fd(listener);
    readable.events = POLLIN;
    EXPECT(readable.fd >= 0);
    side_memory(&c, pd, &init);
    OK(bw_link_connect(connector, pd, &init, &c.link));
    side_memory(&a, pd, &init);
    do {
        side_poll(&c);
        code = BW_EAGAIN;
        if (poll(&readable, 1, 1) == 1)
            code = bw_link_accept(listener, pd, &init, 0, &a.link);
    } while (code == BW_EAGAIN);
    EXPECT(code == BW_OK);
    both_ready(&a, &c);
    say(&c, &a, 1);
    /* The listener's end closes in good order. Calls that accept, or poll a link, carry it out. */
    OK(bw_link_close(a.link, 1000));
    while (bw_link_get_state(c.link) < BW_LINK_CLOSED) {
        side_poll(&a);
        side_poll(&c);
        EXPECT(bw_link_accept(listener, pd, &init, 0, &none) == BW_EAGAIN);
    }
    EXPECT(bw_link_get_state(c.link) == BW_LINK_PEER_CLOSED);
    side_end(&a);
    side_end(&c);
}

/* The connector's end is destroyed: the listener's hears it, though it would wait for an hour. */
static void gone(void)
{
    bw_link_retry retry = retry_of(1);
    bw_connector *connector;
    bw_listener *listener;

    retry.step_ns = 3600000000000;
    OK(bw_listener_create(device, address, 0, 1, &retry, &listener));
    OK(bw_connector_create(device, address, (uint32_t)bw_listener_port(listener), NULL, &connector));
    meet(connector, listener, &a, &b);
    say(&a, &b, 1);
    side_end(&a);
    while (bw_link_get_state(b.link) < BW_LINK_CLOSED)
        side_poll(&b);
    EXPECT(bw_link_get_state(b.link) == BW_LINK_PEER_CLOSED);
    side_end(&b);
    OK(bw_connector_destroy(connector));
    OK(bw_listener_destroy(listener));
}

int main(int argc, char **argv)
{
    bw_connector *connector;
    bw_listener *listener;
    bw_link_retry retry = retry_of(3);
    bw_link *none;

    if (argc == 3) {
        OK(bw_device_open(argv[1], &device));
        address = argv[2];
    } else {
        device = soft(BW_CLOCK_REAL);
    }
    OK(bw_pd_create(device, &pd));
    OK(bw_listener_create(device, address, 0, 4, NULL, &listener));
    EXPECT(bw_listener_port(listener) > 0);
    OK(bw_listener_limit_handshakes(listener, 1, 20000000000u));
    OK(bw_connector_create(device, address, (uint32_t)bw_listener_port(listener), NULL, &connector));
    refused(listener);
    sleeps(connector, listener);

    meet(connector, listener, &a, &b);
    say(&a, &b, 1);
    say(&b, &a, 2);
    EXPECT(side_info(&a).peer_rkey == b.memory.rkey && side_info(&b).peer_addr == a.memory.addr);
    again(&a, &b);
    say(&a, &b, 3);
    again(&b, &a);
    say(&b, &a, 4);
    /* The connector is not needed any more. */
    OK(bw_connector_destroy(connector));
    again(&a, &b);
    say(&b, &a, 5);
    /* The same when its link has gone altogether. */
    side_end(&b);
    while (bw_link_get_state(a.link) < BW_LINK_CLOSED) {
        side_poll(&a);
        EXPECT(bw_link_accept(listener, pd, NULL, 0, &none) == BW_EAGAIN);
    }
    EXPECT(bw_link_get_state(a.link) == BW_LINK_PEER_CLOSED);
    side_end(&a);
    gone();

    /* Nobody listens any more. */
    OK(bw_connector_create(device, address, (uint32_t)bw_listener_port(listener), &retry,
                           &connector));
    OK(bw_listener_destroy(listener));
    given_up(connector);
    OK(bw_connector_destroy(connector));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
