/*
 * Requests that were posted and not rung: a reset reports them like the others, and so does polling
 * when the queue pair is destroyed. And what `retired` counts where flushed requests make no entries.
 */
#include "program.h"

static bw_device *device;
static bw_pd *pd;
static struct end a, b;

struct cleared {
    unsigned count;
    uint64_t wr_id[8];
};

static void clear(void *context, uint64_t wr_id)
{
    struct cleared *cleared = (struct cleared *)context;

    EXPECT(cleared->count < 8);
    cleared->wr_id[cleared->count++] = wr_id;
}

/* A receive and two sends, one of them unsignalled. */
static void stage(void)
{
    bw_sge place = end_sge(&a, 0, 8);

    OK(bw_post_recv_one(a.qp, 3, &place));
    OK(bw_post_send_inline(a.qp, 1, "x", 1, 0));
    OK(bw_post_send_inline(a.qp, 2, "x", 1, BW_SEND_SIGNALED));
}

static void reset(void)
{
    struct cleared cleared;

    memset(&cleared, 0, sizeof cleared);
    stage();
    OK(bw_qp_reset(a.qp, clear, &cleared));
    EXPECT(cleared.count == 3);
    for (uint64_t n = 0; n < 3; n++)
        EXPECT(cleared.wr_id[n] == n + 1);
    expect_none(&a);
    OK(bw_qp_init(a.qp, NULL));
    end_connect(&a, &b);
}

static void destroyed(void)
{
    bw_wc wc[8];
    uint32_t reported = 0;

    stage();
    OK(bw_qp_destroy(a.qp));
    int count = bw_poll(a.cq, wc, 8);
    for (int n = 0; n < count; n++) {
        EXPECT(wc[n].status == BW_WC_WR_FLUSH_ERR);
        reported += wc[n].retired;
    }
    EXPECT(reported == 3);
    OK(bw_cq_destroy(a.cq));
    OK(bw_region_destroy(a.region));
}

/* One entry reports all that were flushed with it: none of them succeeded. */
static void suppressed(void)
{
    bw_qp_init_attr init;
    bw_qp *of_b = b.qp;
    bw_wc wc;

    OK(bw_qp_init_attr_default(&init, sizeof init));
    init.suppress_flush = 1;
    OK(bw_qp_destroy(of_b));
    OK(bw_qp_create(pd, b.cq, b.cq, &init, &b.qp));
    OK(bw_qp_init(b.qp, NULL));
    end_connect(&b, &b);
    OK(bw_qp_to_error(b.qp));
    for (uint64_t n = 0; n < 3; n++)
        OK(bw_post_send_inline(b.qp, n, "x", 1, 0));
    OK(bw_ring_sq(b.qp));
    wc = expect_wc(&b, 2, BW_WC_WR_FLUSH_ERR);
    EXPECT(wc.retired == 3);
    expect_none(&b);
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    reset();
    destroyed();
    suppressed();
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
