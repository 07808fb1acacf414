/* Sleeping in poll(2) until a completion queue has something new. */
#include "program.h"
#include <poll.h>

static int readable(bw_comp_channel *channel, int milliseconds)
{
    struct pollfd fd;

    memset(&fd, 0, sizeof fd);
    fd.fd = bw_comp_channel_fd(channel);
    EXPECT(fd.fd >= 0);
    fd.events = POLLIN;
    int count = poll(&fd, 1, milliseconds);
    EXPECT(count >= 0);
    return count;
}

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_comp_channel *channel;
    bw_pd *pd;
    int ours = 0, rest = 0;
    OK(bw_comp_channel_create(device, &channel));
    OK(bw_comp_channel_set_nonblocking(channel, 1));
    OK(bw_pd_create(device, &pd));
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, channel, &ours);
    end_connect(&a, &b);
    end_connect(&b, &a);
    EXPECT(bw_cq_req_notify(a.cq, 0) == BW_EINVAL);

    bw_sge place = end_sge(&b, 0, 64);
    bw_recv_wr receives[4];
    for (uint64_t n = 0; n < 4; n++)
        receives[n] = recv_of(n, &place);
    OK(bw_post_recv(b.qp, receives, 4, NULL));
    bw_sge data = end_sge(&a, 0, 8);
    bw_send_wr plain = send_of(10, &data), solicited = send_of(11, &data);
    solicited.send_flags |= BW_SEND_SOLICITED;
    uint32_t number = 0;
    void *context = &rest;

    /* Not armed: nothing. */
    OK(bw_post_send(a.qp, &plain, 1, NULL));
    EXPECT(!readable(channel, 0));
    EXPECT(bw_get_cq_event(channel, &number, &context) == BW_EAGAIN);

    /* Armed: once. */
    OK(bw_cq_req_notify(b.cq, 0));
    EXPECT(!readable(channel, 0));
    OK(bw_post_send(a.qp, &plain, 1, NULL));
    EXPECT(readable(channel, 10000));
    OK(bw_get_cq_event(channel, &number, &context));
    EXPECT(context == &ours && !readable(channel, 0));
    bw_cq_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_cq_query(b.cq, &info));
    EXPECT(info.cqn == number);

    /* Armed for solicited messages. */
    OK(bw_cq_req_notify(b.cq, 1));
    OK(bw_post_send(a.qp, &plain, 1, NULL));
    EXPECT(!readable(channel, 0));
    OK(bw_post_send(a.qp, &solicited, 1, NULL));
    EXPECT(readable(channel, 10000));
    OK(bw_get_cq_event(channel, &number, NULL));

    EXPECT(bw_ack_cq_events(channel, number, 3) == BW_EINVAL);
    OK(bw_ack_cq_events(channel, number, 2));
    for (uint64_t n = 0; n < 4; n++)
        expect_wc(&b, n, BW_WC_SUCCESS);
    EXPECT(bw_comp_channel_destroy(channel) == BW_EBUSY);
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_comp_channel_destroy(channel));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
