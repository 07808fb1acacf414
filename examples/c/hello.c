/*
 * Two queue pairs of one process, a WRITE and a SEND between them.
 *
 * Build: cc -std=c11 hello.c $(pkg-config --cflags --libs bellwire) -o hello
 * Run:   ./hello [DEVICE]
 */
#include <bellwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ANCHOR: check */
/* Ends the program when a call fails, with the reason. */
static void check(int code, const char *call)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, bw_strerror(code), bw_last_error());
        exit(EXIT_FAILURE);
    }
}
#define CHECK(call) check(call, #call)
/* ANCHOR_END: check */

/* One end of the connection. */
struct end {
    bw_cq *cq;
    bw_qp *qp;
    bw_region *region;
    bw_region_info memory;
};

/* ANCHOR: create */
static struct end end_create(const bw_device *device, const bw_pd *pd)
{
    struct end end = {.memory = {.size = sizeof(bw_region_info)}};
    uint32_t sends, receives;

    CHECK(bw_qp_cq_entries(NULL, &sends, &receives));
    bw_cq_attr cq = {.size = sizeof cq, .entries = sends + receives};
    CHECK(bw_cq_create(device, &cq, &end.cq));
    CHECK(bw_qp_create(pd, end.cq, end.cq, NULL, &end.qp));

    bw_region_attr region;
    CHECK(bw_region_attr_default(&region, sizeof region));
    region.length = 4096;
    region.access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE;
    CHECK(bw_region_create(pd, &region, &end.region));
    CHECK(bw_region_query(end.region, &end.memory));
    return end;
}
/* ANCHOR_END: create */

/* ANCHOR: connect */
/* The peer may be in another process: then the endpoint is sent there, by whatever means. */
static void end_connect(struct end *end, struct end *peer)
{
    bw_endpoint endpoint = {.size = sizeof endpoint};

    CHECK(bw_qp_endpoint(peer->qp, &endpoint));
    CHECK(bw_qp_init(end->qp, NULL));
    CHECK(bw_qp_connect(end->qp, &endpoint, NULL));
}
/* ANCHOR_END: connect */

static bw_wc wait_for(bw_cq *cq)
{
    bw_wc wc;
    int count;

    do {
        count = bw_poll_one(cq, &wc);
        CHECK(count);
    } while (count == 0);
    if (wc.status != BW_WC_SUCCESS) {
        fprintf(stderr, "request %llu failed: status %u\n", (unsigned long long)wc.wr_id, wc.status);
        exit(EXIT_FAILURE);
    }
    return wc;
}

static void end_destroy(struct end *end)
{
    CHECK(bw_qp_destroy(end->qp));
    CHECK(bw_cq_destroy(end->cq));
    CHECK(bw_region_destroy(end->region));
}

int main(int argc, char **argv)
{
    static const char written[] = "written without asking";
    static const char sent[] = "sent to the next receive";
    bw_device *device;
    bw_pd *pd;

    CHECK(bw_version_check(BW_VERSION));
    CHECK(bw_device_open(argc > 1 ? argv[1] : "auto", &device));
    CHECK(bw_pd_create(device, &pd));
    struct end a = end_create(device, pd);
    struct end b = end_create(device, pd);
    end_connect(&a, &b);
    end_connect(&b, &a);

    /* ANCHOR: write */
    /* A WRITE goes to the address that it names; b's program does nothing for it. */
    CHECK(bw_post_write_inline(a.qp, 1, written, sizeof written, b.memory.addr, b.memory.rkey,
                               BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(a.qp));
    wait_for(a.cq);
    /* ANCHOR_END: write */
    printf("b has: %s\n", (const char *)(uintptr_t)b.memory.addr);

    /* A SEND goes where the peer's next receive says. */
    bw_sge place = {.addr = b.memory.addr + 1024, .length = 1024, .lkey = b.memory.lkey};
    CHECK(bw_post_recv_one(b.qp, 2, &place));
    CHECK(bw_ring_rq(b.qp));
    memcpy((void *)(uintptr_t)a.memory.addr, sent, sizeof sent);
    bw_sge data = {.addr = a.memory.addr, .length = sizeof sent, .lkey = a.memory.lkey};
    CHECK(bw_post_send_one(a.qp, 3, &data, BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(a.qp));
    wait_for(a.cq);
    bw_wc wc = wait_for(b.cq);
    printf("b received %u bytes: %s\n", wc.byte_len, (const char *)(uintptr_t)place.addr);

    end_destroy(&a);
    end_destroy(&b);
    CHECK(bw_pd_destroy(pd));
    CHECK(bw_device_close(device));
    return EXIT_SUCCESS;
}
