/* Asynchronous events: a queue pair that breaks when a script says so, and a port that goes down. */
#include "program.h"
#include <poll.h>

static int queued(bw_device *device)
{
    struct pollfd fd;

    memset(&fd, 0, sizeof fd);
    fd.fd = bw_device_async_fd(device);
    EXPECT(fd.fd >= 0);
    fd.events = POLLIN;
    return poll(&fd, 1, 0);
}

static void expect_event(bw_device *device, uint32_t type, uint32_t element, uint32_t number)
{
    bw_async_event *event;
    bw_async_event_info info;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    EXPECT(queued(device) == 1);
    OK(bw_get_async_event(device, &info, &event));
    EXPECT(info.event_type == type && info.element == element && info.number == number);
    EXPECT(strlen(bw_event_type_str(info.event_type)) > 0);
    OK(bw_ack_async_event(event));
}

/* The queue pair's flight recorder: the flushed receive, and the event. */
static void expect_dump(struct end *end)
{
    size_t length;
    char text[4096];

    EXPECT(bw_qp_dump(end->qp, NULL, NULL, 0, &length) == BW_ELIMIT);
    EXPECT(length < sizeof text);
    OK(bw_qp_dump(end->qp, NULL, text, sizeof text, &length));
    EXPECT(strlen(text) == length);
    EXPECT(strstr(text, "#0 retired WR_FLUSH_ERR: RECV wr_id 7") != NULL);
    EXPECT(strstr(text, bw_event_type_str(BW_EVENT_QP_FATAL)) != NULL);
    EXPECT(strstr(text, "state ERR") != NULL);

    bw_dump_attr attr;
    memset(&attr, 0, sizeof attr);
    EXPECT(bw_qp_dump(end->qp, &attr, text, sizeof text, NULL) == BW_ESIZE);
    attr.size = sizeof attr;
    attr.format = BW_DUMP_JSON;
    attr.flags = BW_DUMP_NO_INLINE;
    OK(bw_qp_dump(end->qp, &attr, text, sizeof text, NULL));
    EXPECT(text[0] == '{' && strstr(text, "\"status\":\"WR_FLUSH_ERR\"") != NULL);
}

int main(void)
{
    bw_device *device = soft(BW_CLOCK_VIRTUAL);
    bw_pd *pd;
    OK(bw_pd_create(device, &pd));
    OK(bw_device_async_set_nonblocking(device, 1));
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);

    bw_async_event *event;
    bw_async_event_info info;
    memset(&info, 0, sizeof info);
    EXPECT(bw_get_async_event(device, &info, &event) == BW_ESIZE);
    info.size = sizeof info;
    EXPECT(bw_get_async_event(device, &info, &event) == BW_EAGAIN && event == NULL);

    bw_soft_step steps[2];
    memset(steps, 0, sizeof steps);
    steps[0].trigger = BW_AFTER;
    steps[0].at = 5000;
    steps[0].fault = BW_FAULT_QP_FATAL;
    steps[0].value = end_number(&a);
    steps[1].trigger = BW_AFTER;
    steps[1].at = 6000;
    steps[1].fault = BW_FAULT_PORT_DOWN;
    OK(bw_soft_inject(device, steps, 2));
    bw_sge place = end_sge(&a, 0, 8);
    OK(bw_post_recv_one(a.qp, 7, &place));
    OK(bw_ring_rq(a.qp));
    OK(bw_device_advance(device, 4999));
    EXPECT(queued(device) == 0);

    OK(bw_device_advance(device, 1));
    expect_event(device, BW_EVENT_QP_FATAL, BW_ELEMENT_QP, end_number(&a));
    EXPECT(bw_qp_get_state(a.qp) == BW_QPS_ERR);
    expect_wc(&a, 7, BW_WC_WR_FLUSH_ERR);
    OK(bw_qp_note(a.qp, bw_event_type_str(BW_EVENT_QP_FATAL)));
    expect_dump(&a);

    OK(bw_device_advance(device, 1000));
    expect_event(device, BW_EVENT_PORT_ERR, BW_ELEMENT_PORT, 1);
    OK(bw_soft_set_port(device, 1));
    expect_event(device, BW_EVENT_PORT_ACTIVE, BW_ELEMENT_PORT, 1);
    OK(bw_soft_raise(device, BW_EVENT_COMM_EST, end_number(&b)));
    expect_event(device, BW_EVENT_COMM_EST, BW_ELEMENT_QP, end_number(&b));
    EXPECT(queued(device) == 0);

    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
