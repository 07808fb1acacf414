/* Arrays of requests with a bad one in the middle. */
#include "program.h"

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;
    OK(bw_pd_create(device, &pd));
    struct end a = end_create(device, pd, BW_QPT_UC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_UC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);

    bw_sge places[2] = {end_sge(&b, 0, 64), end_sge(&b, 64, 64)};
    bw_recv_wr receives[4];
    const bw_recv_wr *bad_receive = NULL;
    for (uint64_t n = 0; n < 4; n++)
        receives[n] = recv_of(n, places);
    receives[2].num_sge = 2;
    bw_recv_wr as_given[4];
    memcpy(as_given, receives, sizeof receives);
    EXPECT(bw_post_recv(b.qp, receives, 4, &bad_receive) == BW_ETOOMANYSGE);
    EXPECT(bad_receive == &receives[2]);
    EXPECT(memcmp(as_given, receives, sizeof receives) == 0);

    /* Two receives are there. An unreliable connection has no READ. */
    bw_sge data = end_sge(&a, 0, 8);
    bw_send_wr sends[4];
    const bw_send_wr *bad_send = NULL;
    for (uint64_t n = 0; n < 4; n++)
        sends[n] = send_of(10 + n, &data);
    sends[1].opcode = BW_WR_RDMA_READ;
    EXPECT(bw_post_send(a.qp, sends, 4, &bad_send) == BW_EOPCODE);
    EXPECT(bad_send == &sends[1]);
    expect_wc(&a, 10, BW_WC_SUCCESS);
    expect_none(&a);
    expect_wc(&b, 0, BW_WC_SUCCESS);
    expect_none(&b);

    /* Posted again from the bad one on, corrected. The last finds no receive, and is lost. */
    sends[1].opcode = BW_WR_SEND;
    OK(bw_post_send(a.qp, bad_send, 3, NULL));
    for (uint64_t n = 11; n < 14; n++)
        expect_wc(&a, n, BW_WC_SUCCESS);
    expect_wc(&b, 1, BW_WC_SUCCESS);
    expect_none(&b);

    /* Nothing is nothing. */
    OK(bw_post_send(a.qp, NULL, 0, NULL));
    EXPECT(bw_post_send(a.qp, NULL, 1, NULL) == BW_ENULL);

    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
