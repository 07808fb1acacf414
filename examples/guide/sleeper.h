/*
 * A queue pair that is connected to itself, and a completion queue with a channel: what an event loop sleeps on.
 */
#include <bellwire.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code, const char *call)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, bw_strerror(code), bw_last_error());
        exit(EXIT_FAILURE);
    }
}
#define CHECK(call) check(call, #call)

struct sleeper {
    bw_device *device;
    bw_pd *pd;
    bw_comp_channel *channel;
    bw_cq *cq;
    bw_qp *qp;
    bw_region *region;
    bw_region_info memory;
};

static struct sleeper sleeper_open(void)
{
    struct sleeper it = {.memory = {.size = sizeof it.memory}};
    bw_cq_attr cq = {.size = sizeof cq};
    bw_endpoint endpoint = {.size = sizeof endpoint};
    bw_region_attr region;
    uint32_t sends, receives;

    CHECK(bw_device_open("soft", &it.device));
    CHECK(bw_pd_create(it.device, &it.pd));
    CHECK(bw_comp_channel_create(it.device, &it.channel));
    CHECK(bw_comp_channel_set_nonblocking(it.channel, 1));
    CHECK(bw_qp_cq_entries(NULL, &sends, &receives));
    cq.entries = sends + receives;
    cq.channel = it.channel;
    CHECK(bw_cq_create(it.device, &cq, &it.cq));
    CHECK(bw_qp_create(it.pd, it.cq, it.cq, NULL, &it.qp));
    CHECK(bw_qp_endpoint(it.qp, &endpoint));
    CHECK(bw_qp_init(it.qp, NULL));
    CHECK(bw_qp_connect(it.qp, &endpoint, NULL));
    CHECK(bw_region_attr_default(&region, sizeof region));
    region.length = 4096;
    region.access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE;
    CHECK(bw_region_create(it.pd, &region, &it.region));
    CHECK(bw_region_query(it.region, &it.memory));
    return it;
}

/* Posts a WRITE. */
static void sleeper_post(struct sleeper *it, uint64_t wr_id)
{
    CHECK(bw_post_write_inline(it->qp, wr_id, "written", 8, it->memory.addr, it->memory.rkey,
                               BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(it->qp));
}

/* ANCHOR: drain */
/* Call it before the loop sleeps, and when the descriptor is readable. Returns how many requests are done. */
static int sleeper_drain(struct sleeper *it)
{
    int done = 0, more;
    uint32_t cqn;
    bw_wc wc;

    while (bw_get_cq_event(it->channel, &cqn, NULL) == BW_OK)
        CHECK(bw_ack_cq_events(it->channel, cqn, 1));
    CHECK(bw_cq_req_notify(it->cq, 0));
    do {
        more = bw_poll_one(it->cq, &wc);
        CHECK(more);
        if (more && wc.status != BW_WC_SUCCESS) {
            fprintf(stderr, "request %llu: status %u\n", (unsigned long long)wc.wr_id, wc.status);
            exit(EXIT_FAILURE);
        }
        done += more;
    } while (more);
    return done;
}
/* ANCHOR_END: drain */

static void sleeper_close(struct sleeper *it)
{
    CHECK(bw_qp_destroy(it->qp));
    CHECK(bw_cq_destroy(it->cq));
    CHECK(bw_comp_channel_destroy(it->channel));
    CHECK(bw_region_destroy(it->region));
    CHECK(bw_pd_destroy(it->pd));
    CHECK(bw_device_close(it->device));
}
