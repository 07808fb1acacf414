/* Two nodes of a fabric in one process, each of its own making, and which cannot be. */
#include "program.h"
#include <time.h>
#include <unistd.h>

static bw_device *nodes[2];
static bw_pd *pds[2];
static struct end ends[2];

/* As expect_wc(), of a peer that has to look. */
static void comes(struct end *end, struct end *other, uint64_t wr_id)
{
    time_t begun = time(NULL);
    bw_wc wc;
    int polled;

    while ((polled = bw_poll_one(end->cq, &wc)) == 0) {
        EXPECT(bw_poll_one(other->cq, &wc) == 0);
        EXPECT(time(NULL) - begun < 30);
    }
    EXPECT(polled == 1 && wc.wr_id == wr_id && wc.status == BW_WC_SUCCESS);
}

int main(void)
{
    bw_soft_config config;
    bw_device *none = NULL;
    bw_device_info info;
    char name[64], whole[70];

    snprintf(name, sizeof name, "c-test-%ld", (long)getpid());
    snprintf(whole, sizeof whole, "soft:%s", name);
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    EXPECT(bw_device_join("", &config, &none) == BW_EINVAL && none == NULL);
    EXPECT(bw_device_join("no/name", NULL, &none) == BW_EINVAL && none == NULL);
    config.clock = BW_CLOCK_VIRTUAL;
    EXPECT(bw_device_join(name, &config, &none) == BW_EINVAL && none == NULL);
    config.clock = 7;
    EXPECT(bw_device_join(name, &config, &none) == BW_EINVAL && none == NULL);
    config.clock = BW_CLOCK_REAL;
    config.threads = 65;
    EXPECT(bw_device_join(name, &config, &none) == BW_ELIMIT && none == NULL);

    /* One that is the program's, and the one that the process shares. */
    config.threads = 0;
    OK(bw_device_join(name, &config, &nodes[0]));
    OK(bw_device_open(whole, &nodes[1]));
    for (int at = 0; at < 2; at++) {
        EXPECT(bw_device_provider(nodes[at]) == BW_PROVIDER_SOFT);
        OK(bw_device_query(nodes[at], &info));
        EXPECT(strcmp(info.name, whole) == 0 && info.max_cqe > 0);
        OK(bw_pd_create(nodes[at], &pds[at]));
        ends[at] = end_create(nodes[at], pds[at], BW_QPT_RC, NULL, NULL);
    }
    end_connect(&ends[0], &ends[1]);
    end_connect(&ends[1], &ends[0]);
    for (uint64_t round = 0; round < 4; round++) {
        struct end *from = &ends[round % 2], *to = &ends[1 - round % 2];

        OK(bw_post_write_inline(from->qp, round, &round, 8, to->memory.addr, to->memory.rkey,
                                BW_SEND_SIGNALED));
        OK(bw_ring_sq(from->qp));
        comes(from, to, round);
        EXPECT(*(uint64_t *)(uintptr_t)to->memory.addr == round);
    }
    for (int at = 0; at < 2; at++) {
        end_destroy(&ends[at]);
        OK(bw_pd_destroy(pds[at]));
        OK(bw_device_close(nodes[at]));
    }
    return 0;
}
