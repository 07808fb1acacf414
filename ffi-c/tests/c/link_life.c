/*
 * Links over TCP; what calls the program; the recovery's thread; how a link ends; and what a program
 * may get wrong.
 */
#include "link.h"
#include <poll.h>

static bw_device *device;
static bw_pd *pd;
static struct side a, b;

/* What the hooks were called with. */
struct seen {
    unsigned faults, recoveries;
    int32_t number;
    uint32_t family, scope, end;
    uint64_t epoch;
};
static struct seen seen;

static void fault_seen(void *context, const bw_fault *fault, const bw_class *what, uint64_t epoch)
{
    struct seen *to = (struct seen *)context;

    EXPECT(epoch >= 1 && what->text[0] != 0);
    /* The first says what it is; others follow from it. */
    if (to->faults++ == 0) {
        to->family = fault->family;
        to->number = fault->number;
        to->scope = what->scope;
    }
}

static void recovery_seen(void *context, const bw_recovery_report *report)
{
    struct seen *to = (struct seen *)context;

    EXPECT(report->size >= sizeof *report);
    EXPECT((report->why == NULL) == (report->end == BW_END_RECOVERED));
    to->recoveries++;
    to->end = report->end;
    to->epoch = report->epoch;
}

static void hooks(struct side *side)
{
    memset(&seen, 0, sizeof seen);
    OK(bw_link_on_fault(side->link, fault_seen, &seen));
    OK(bw_link_on_recovered(side->link, recovery_seen, &seen));
}

static void pair(uint32_t recover_in)
{
    bw_link_init here, there;

    side_memory(&a, pd, &here);
    side_memory(&b, pd, &there);
    here.recover_in = there.recover_in = recover_in;
    OK(bw_link_create_pair(pd, &here, &a.link, pd, &there, &b.link));
    EXPECT(bw_link_exchange_fd(a.link) == BW_EUNSUPPORTED);
}

/* A message through a fault of the sender's queue pair. */
static void again(uint64_t number)
{
    bw_soft_step step;

    memset(&step, 0, sizeof step);
    step.trigger = BW_AT_REQUEST;
    step.at = 1;
    step.fault = BW_FAULT_QP_FATAL;
    step.value = side_info(&a).qp_num;
    side_receive(&b);
    OK(bw_soft_inject(device, &step, 1));
    OK(bw_link_post_send_inline(a.link, number, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
    OK(bw_link_ring_sq(a.link));
    a.posted++;
    while (!a.reported[number] || !b.received[number] || !seen.recoveries) {
        side_poll(&a);
        side_poll(&b);
    }
    EXPECT(a.last[number].outcome == BW_OUTCOME_EXECUTED);
    both_ready(&a, &b);
}

/* Whether the descriptor of b wakes within so many milliseconds. */
static int wakes(int milliseconds)
{
    struct pollfd fd;

    memset(&fd, 0, sizeof fd);
    fd.fd = bw_link_fd(b.link);
    EXPECT(fd.fd >= 0);
    fd.events = POLLIN;
    int count = poll(&fd, 1, milliseconds);
    EXPECT(count >= 0);
    return count;
}

/* b sleeps until a message comes. */
static void sleeping(void)
{
    const uint64_t number = 3;
    uint64_t before;

    bw_link_wc none;
    bw_wait wait;

    EXPECT(bw_link_fd(a.link) == BW_EUNSUPPORTED && bw_link_arm(a.link) == BW_EUNSUPPORTED);
    EXPECT(bw_link_wait(a.link, &none, 1, NULL) == BW_EUNSUPPORTED);
    OK(bw_wait_default(&wait, sizeof wait));
    wait.timeout_ns = 1000000;
    EXPECT(bw_link_wait(b.link, &none, 0, &wait) == BW_EINVAL);
    side_receive(&b);
    do {
        before = b.retired;
        OK(bw_link_arm(b.link));
        side_poll(&b);
    } while (b.retired != before || bw_link_get_state(b.link) != BW_LINK_READY);
    EXPECT(!wakes(0));
    EXPECT(bw_link_wait(b.link, &none, 1, &wait) == 0);
    OK(bw_link_post_send_inline(a.link, number, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_NEVER));
    OK(bw_link_ring_sq(a.link));
    a.posted++;
    EXPECT(wakes(SOON));
    while (!b.received[number] || !a.reported[number]) {
        side_poll(&a);
        side_poll(&b);
    }
}

/* The peer recovers, and b does as the header says: it is polled when its descriptor says so, and not else. */
static void recovering_asleep(void)
{
    const uint64_t number = 4;
    bw_fault fault;
    uint64_t before;

    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    fault.number = BW_EVENT_QP_FATAL;
    side_receive(&b);
    OK(bw_link_report_fault(a.link, &fault));
    int posted = 0;
    for (int turn = 0; !b.received[number]; turn++) {
        side_poll(&a);
        if (!posted && bw_link_get_state(a.link) == BW_LINK_READY) {
            OK(bw_link_post_send_inline(a.link, number, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_NEVER));
            OK(bw_link_ring_sq(a.link));
            a.posted++;
            posted = 1;
        }
        if (!wakes(turn < 1000 ? 0 : 1)) {
            EXPECT(turn < 1000 + SOON);
            continue;
        }
        OK(bw_link_arm(b.link));
        do {
            before = b.retired;
            side_poll(&b);
        } while (b.retired != before);
    }
    while (!a.reported[number])
        side_poll(&a);
    both_ready(&a, &b);
}

static void over_tcp(void)
{
    bw_tcp_listener *listener;
    bw_tcp_conn *conns[2];
    bw_link_init here, there, wrong;
    bw_link *none;

    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(listener), SOON, &conns[0]));
    OK(bw_tcp_accept(listener, SOON, &conns[1]));
    side_memory(&a, pd, &here);
    side_memory(&b, pd, &there);
    /* What is wrong with the init is said before the connection is taken. */
    wrong = here;
    wrong.attempts = 0;
    EXPECT(bw_link_create(pd, &wrong, conns[0], &none) == BW_EINVAL && none == NULL);
    there.sleeps = 1;
    OK(bw_link_create(pd, &here, conns[0], &a.link));
    OK(bw_link_create(pd, &there, conns[1], &b.link));
    EXPECT(bw_link_create(pd, &here, conns[0], &none) == BW_ECONN && none == NULL);
    EXPECT(bw_tcp_barrier(conns[0], 1) == BW_ECONN);
    OK(bw_tcp_conn_destroy(conns[0]));
    OK(bw_tcp_conn_destroy(conns[1]));
    OK(bw_tcp_listener_destroy(listener));
    EXPECT(bw_link_exchange_fd(a.link) >= 0);
    both_ready(&a, &b);

    hooks(&a);
    again(1);
    EXPECT(seen.family == BW_FAMILY_EVENT || seen.family == BW_FAMILY_STATUS);
    EXPECT(seen.scope == BW_SCOPE_QP);
    EXPECT(seen.end == BW_END_RECOVERED);
    EXPECT(seen.epoch >= 2);

    sleeping();
    recovering_asleep();

    /* What a program knows that the link does not. */
    bw_fault fault;
    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    fault.number = BW_EVENT_QP_FATAL;
    hooks(&a);
    uint64_t before = side_info(&a).epoch;
    OK(bw_link_report_fault(a.link, &fault));
    EXPECT(seen.faults == 1 && seen.number == BW_EVENT_QP_FATAL);
    EXPECT(bw_link_get_state(a.link) == BW_LINK_RECOVERING);
    both_ready(&a, &b);
    EXPECT(side_info(&a).epoch > before && side_info(&b).epoch > before);
    OK(bw_link_on_fault(a.link, NULL, NULL));
    OK(bw_link_on_recovered(a.link, NULL, NULL));
    OK(bw_link_report_fault(a.link, &fault));
    both_ready(&a, &b);
    EXPECT(seen.faults == 1);

    /* It ends at both sides. */
    side_receive(&b);
    hooks(&b);
    OK(bw_link_close(a.link, SOON));
    EXPECT(bw_link_post_send_inline(a.link, 2, "x", 1, 0, BW_REPLAY_NEVER) < 0);
    while (bw_link_get_state(a.link) < BW_LINK_CLOSED || bw_link_get_state(b.link) < BW_LINK_CLOSED) {
        side_poll(&a);
        side_poll(&b);
    }
    EXPECT(bw_link_get_state(a.link) == BW_LINK_CLOSED);
    EXPECT(bw_link_get_state(b.link) == BW_LINK_PEER_CLOSED);
    EXPECT(seen.faults == 0 && seen.recoveries == 0);
    EXPECT(bw_link_post_send_inline(a.link, 2, "x", 1, 0, BW_REPLAY_NEVER) == BW_EENDED);
    EXPECT(bw_link_post_recv_one(b.link, 2, NULL) == BW_ENULL);
    EXPECT(strlen(side_info(&a).why) > 0 && strlen(side_info(&b).why) > 0);
    side_end(&a);
    side_end(&b);
}

/* While a thread recovers a link, what needs its inside is refused. */
static void in_a_thread(void)
{
    pair(BW_RECOVER_IN_THREAD);
    while (bw_link_get_state(a.link) != BW_LINK_READY || bw_link_get_state(b.link) != BW_LINK_READY) {
        bw_link_info info;
        int code;

        memset(&info, 0, sizeof info);
        info.size = sizeof info;
        side_poll(&a);
        side_poll(&b);
        code = bw_link_query(a.link, &info);
        EXPECT(code == BW_OK || code == BW_ERECOVERING);
    }
    hooks(&a);
    while (bw_link_get_state(b.link) != BW_LINK_READY)
        side_poll(&b);
    side_receive(&b);
    const uint64_t number = 1;
    bw_fault fault;
    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    fault.number = BW_EVENT_CQ_ERR;
    OK(bw_link_report_fault(a.link, &fault));
    side_poll(&a);
    /* The thread takes it in. */
    OK(bw_link_report_fault(a.link, &fault));
    both_ready(&a, &b);
    EXPECT(seen.faults >= 2 && seen.recoveries >= 1 && seen.end == BW_END_RECOVERED && seen.scope == BW_SCOPE_CQ);
    OK(bw_link_post_send_inline(a.link, 1, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_NEVER));
    OK(bw_link_ring_sq(a.link));
    a.posted++;
    while (!b.received[1])
        side_poll(&b);
    side_end(&a);
    side_end(&b);
}

static void refused_inits(void)
{
    bw_link_init init;
    bw_qp_init_attr qp;
    bw_connect_attr connect;
    bw_link *one = (bw_link *)&seen, *other = (bw_link *)&seen;

    OK(bw_qp_init_attr_default(&qp, sizeof qp));
    OK(bw_connect_attr_default(&connect, sizeof connect));
#define REFUSED(code)                                                                             \
    do {                                                                                          \
        EXPECT(bw_link_create_pair(pd, NULL, &one, pd, &init, &other) == (code));                 \
        EXPECT(one == NULL && other == NULL && strlen(bw_last_error()) > 0);                      \
        OK(bw_link_init_default(&init, sizeof init));                                             \
    } while (0)
    OK(bw_link_init_default(&init, sizeof init));
    init.attempts = 0;
    REFUSED(BW_EINVAL);
    init.recover_in = 2;
    REFUSED(BW_EINVAL);
    init.sleeps = 2;
    REFUSED(BW_EINVAL);
    init.qp = &qp;
    qp.qp_type = BW_QPT_UD;
    REFUSED(BW_ETRANSPORT);
    qp.qp_type = 77;
    init.qp = &qp;
    REFUSED(BW_ETRANSPORT);
    qp.qp_type = BW_QPT_RC;
    qp.size = 3;
    init.qp = &qp;
    REFUSED(BW_ESIZE);
    connect.path_mtu = 9;
    init.connect = &connect;
    REFUSED(BW_EINVAL);
    qp.size = sizeof qp;
    qp.max_send_wr = UINT32_MAX;
    init.qp = &qp;
    REFUSED(BW_ELIMIT);
#undef REFUSED
}

static void refused_posts(void)
{
    static char bytes[65536];
    bw_link_wc wcs[2];
    bw_sge huge, data, many[64];
    bw_send_wr wr;
    const bw_send_wr *bad = NULL;
    unsigned posted = 0;
    int code;

    pair(BW_RECOVER_IN_POLLER);
    both_ready(&a, &b);
    data = side_sge(&a, 0, 8);
    huge = side_sge(&a, 0, 0x80000000u);
    EXPECT(bw_link_post_send_inline(a.link, 1, "x", 1, 0, 3) == BW_EINVAL);
    EXPECT(bw_link_post_send_inline(a.link, 1, "x", 1, 64, BW_REPLAY_NEVER) == BW_EINVAL);
    EXPECT(bw_link_post_send_inline(a.link, 1, bytes, sizeof bytes, 0, 0) == BW_EINLINE);
    EXPECT(bw_link_post_write_inline(a.link, 1, bytes, sizeof bytes, 0, 0, 0, 0) == BW_EINLINE);
    EXPECT(bw_link_post_send_one(a.link, 1, &huge, 0, 0) == BW_ESGELENGTH);
    EXPECT(bw_link_post_write(a.link, 1, &huge, 0, 0, 0, 0) == BW_ESGELENGTH);
    EXPECT(bw_link_post_read(a.link, 1, &huge, 0, 0, 0, 0) == BW_ESGELENGTH);
    EXPECT(bw_link_post_recv_one(a.link, 1, &huge) == BW_ESGELENGTH);
    wr = send_of(1, &data);
    EXPECT(bw_link_post_send(a.link, &wr, 1, 3, NULL) == BW_EINVAL);
    memset(many, 0, sizeof many);
    wr.sg_list = many;
    wr.num_sge = 64;
    EXPECT(bw_link_post_send(a.link, &wr, 1, 0, &bad) == BW_ETOOMANYSGE && bad == &wr);
    wr.send_flags |= BW_SEND_INLINE;
    EXPECT(bw_link_post_send(a.link, &wr, 1, 0, NULL) == BW_ETOOMANYSGE);
    wr.num_sge = 0;
    wr.send_flags = 0;
    wr.opcode = BW_WR_BIND_MW;
    EXPECT(bw_link_post_send(a.link, &wr, 1, 0, NULL) == BW_ENULL);
    bw_mw *window;
    /* Of type 2 only. */
    OK(bw_mw_create(pd, BW_MW_TYPE_1, &window));
    wr.mw = window;
    EXPECT(bw_link_post_send(a.link, &wr, 1, 0, NULL) == BW_EINVAL);
    OK(bw_mw_destroy(window));

    EXPECT(bw_link_poll_sized(a.link, wcs, 8, 1) == BW_ESIZE);
    EXPECT(bw_link_poll_sized(a.link, wcs, (size_t)-1, 1) == BW_ESIZE);
    EXPECT(bw_link_poll(a.link, wcs, 0) == 0);
    EXPECT(bw_link_poll(a.link, wcs, -1) == 0);
    bw_fault fault;
    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = 99;
    EXPECT(bw_link_report_fault(a.link, &fault) == BW_EINVAL);
    fault.family = BW_FAMILY_PEER;
    fault.number = BW_PEER_GAVE_UP + 1;
    EXPECT(bw_link_report_fault(a.link, &fault) == BW_EINVAL);

    /* Until it is full; nothing of it was reported twice, or lost. */
    while ((code = bw_link_post_send_inline(a.link, 1, "", 0, 0, BW_REPLAY_NEVER)) == BW_OK)
        posted++;
    EXPECT(code == BW_EFULL && posted > 1);
    a.posted += posted;
    /* Not rung. The end reports each of them once, as not executed. */
    uint64_t retired = 0;
    OK(bw_link_drain(a.link, 1000, NULL, NULL, &retired));
    EXPECT(retired == posted);
    OK(bw_link_drain(a.link, 1000, NULL, NULL, NULL));
    OK(bw_link_destroy(a.link));
    OK(bw_region_destroy(a.region));
    side_end(&b);
}

/* No more is written than there are outcomes. */
static void no_further(void)
{
    bw_link_wc wcs[3], before;

    pair(BW_RECOVER_IN_POLLER);
    both_ready(&a, &b);
    OK(bw_link_post_write_inline(a.link, 1, "x", 1, b.memory.addr, b.memory.rkey, BW_SEND_SIGNALED,
                                 BW_REPLAY_NEVER));
    OK(bw_link_post_write_inline(a.link, 2, "y", 1, b.memory.addr, b.memory.rkey, BW_SEND_SIGNALED,
                                 BW_REPLAY_NEVER));
    OK(bw_link_ring_sq(a.link));
    memset(wcs, 0xaa, sizeof wcs);
    before = wcs[2];
    EXPECT(bw_link_poll(a.link, wcs, 3) == 2);
    EXPECT(wcs[0].wr_id == 1 && wcs[1].wr_id == 2);
    EXPECT(memcmp(&wcs[2], &before, sizeof before) == 0);
    OK(bw_link_destroy(a.link));
    OK(bw_region_destroy(a.region));
    side_end(&b);
}

static uint32_t last_event[3];

static void event_seen(void *context, uint32_t event_type, uint32_t element, uint32_t number)
{
    EXPECT(context == &last_event);
    last_event[0] = event_type;
    last_event[1] = element;
    last_event[2] = number;
}

/* Links take the device's events; what is of none of them comes to the hook. */
static void events(void)
{
    bw_async_event_info info;
    bw_async_event *event;
    struct end end = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    uint32_t number = end_number(&end);

    OK(bw_device_set_event_hook(device, event_seen, &last_event));
    pair(BW_RECOVER_IN_POLLER);
    both_ready(&a, &b);
    OK(bw_soft_raise(device, BW_EVENT_COMM_EST, number));
    while (last_event[2] != number)
        side_poll(&a);
    EXPECT(last_event[0] == BW_EVENT_COMM_EST && last_event[1] == BW_ELEMENT_QP);

    /* One that the program got itself: the link whom it concerns recovers. */
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_device_async_set_nonblocking(device, 1));
    OK(bw_soft_raise(device, BW_EVENT_QP_FATAL, side_info(&b).qp_num));
    OK(bw_get_async_event(device, &info, &event));
    OK(bw_device_dispatch_async_event(device, event));
    while (side_info(&a).epoch == 1 || side_info(&b).epoch == 1) {
        side_poll(&a);
        side_poll(&b);
    }
    both_ready(&a, &b);
    OK(bw_device_set_event_hook(device, NULL, NULL));
    side_end(&a);
    side_end(&b);
    end_destroy(&end);
}

static void texts(void)
{
    for (uint32_t number = 0; number < 4; number++)
        EXPECT(strncmp(bw_outcome_str(number), "not an", 6) != 0);
    EXPECT(strcmp(bw_outcome_str(4), "not an outcome of this library") == 0);
    EXPECT(strcmp(bw_outcome_name(BW_OUTCOME_EXECUTED), "EXECUTED") == 0);
    EXPECT(strcmp(bw_outcome_name(BW_OUTCOME_FAILED), "FAILED") == 0);
    EXPECT(strcmp(bw_outcome_name(BW_OUTCOME_NOT_EXECUTED), "NOT_EXECUTED") == 0);
    EXPECT(strcmp(bw_outcome_name(BW_OUTCOME_IN_DOUBT), "IN_DOUBT") == 0);
    EXPECT(strcmp(bw_outcome_name(4), "UNKNOWN") == 0);
    for (uint32_t number = 0; number < 9; number++) {
        EXPECT(strncmp(bw_doubt_str(number), "not a", 5) != 0 && strlen(bw_doubt_str(number)) > 8);
        for (uint32_t other = 0; other < number; other++)
            EXPECT(strcmp(bw_doubt_str(number), bw_doubt_str(other)) != 0);
    }
    EXPECT(strcmp(bw_doubt_str(9), "not a doubt of this library") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_NONE), "NONE") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_NO_ANSWER), "NO_ANSWER") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_RESULT_LOST), "RESULT_LOST") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_PEER_LOST_COUNT), "PEER_LOST_COUNT") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_COUNT_CONTRADICTS), "COUNT_CONTRADICTS") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_PEER_GONE), "PEER_GONE") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_LOCAL), "LOCAL") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_CANCELLED), "CANCELLED") == 0);
    EXPECT(strcmp(bw_doubt_name(BW_DOUBT_DEADLINE_PASSED), "DEADLINE_PASSED") == 0);
    EXPECT(strcmp(bw_doubt_name(9), "UNKNOWN") == 0);
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    texts();
    over_tcp();
    in_a_thread();
    refused_inits();
    refused_posts();
    no_further();
    events();
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
