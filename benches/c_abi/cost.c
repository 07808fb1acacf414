/*
 * What posting and polling cost through the C interface: what cost.rs does from Rust, on a software
 * device of the program's own and a queue pair that is connected with itself. `cargo xtask c-cost`
 * compares them.
 *
 * cost              for each call the least nanoseconds of one, of many batches
 * cost CALL BATCHES so many batches, to count their instructions
 */
#define _POSIX_C_SOURCE 199309L
#include <bellwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 64, BATCHES = 20000, BYTES = 8 };

static void check(int code, const char *call)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, bw_strerror(code), bw_last_error());
        exit(EXIT_FAILURE);
    }
}
#define CHECK(call) check(call, #call)

static bw_cq *cq;
static bw_qp *qp;
static uint64_t target;
static bw_mr_info memory = {.size = sizeof memory};
static const char data[BYTES];
static bw_rdma_wr inline_wrs[BATCH], wrs[BATCH];
static bw_completion completions[BATCH];

static void post_one_by_one(void)
{
    for (uint64_t i = 0; i < BATCH; i++) {
        CHECK(bw_post_write_inline(qp, i, data, BYTES, memory.addr, memory.rkey, BW_SEND_SIGNALED));
    }
}

static void poll_one_by_one(void)
{
    bw_completion one;

    for (uint64_t i = 0; i < BATCH; i++) {
        if (bw_poll_completion(cq, &one) != 1 || one.status != BW_WC_SUCCESS || one.wr_id != i) {
            fprintf(stderr, "a WRITE failed\n");
            exit(EXIT_FAILURE);
        }
    }
}

static void poll_all(void)
{
    int count = bw_poll_completions(cq, completions, BATCH);

    for (int i = 0; i < count; i++) {
        if (completions[i].status != BW_WC_SUCCESS || completions[i].wr_id != (uint64_t)i) {
            count = 0;
        }
    }
    if (count != BATCH) {
        fprintf(stderr, "a WRITE failed\n");
        exit(EXIT_FAILURE);
    }
}

static void ring(void) { CHECK(bw_ring_sq(qp)); }
static void nothing(void) {}
static void post_list(void) { CHECK(bw_post_writes(qp, wrs, BATCH, NULL)); }
static void post_inline_list(void) { CHECK(bw_post_writes_inline(qp, inline_wrs, BATCH, NULL)); }

/* What is measured, and what has to be done before and after it. */
static const struct call {
    const char *name;
    void (*before)(void), (*between)(void), (*measured)(void), (*after)(void), (*last)(void);
} calls[] = {
    {"post", nothing, nothing, post_one_by_one, ring, poll_all},
    {"poll", post_one_by_one, ring, poll_one_by_one, nothing, nothing},
    {"poll-list", post_one_by_one, ring, poll_all, nothing, nothing},
    {"post-list", nothing, nothing, post_list, nothing, poll_all},
    {"post-inline-list", nothing, nothing, post_inline_list, nothing, poll_all},
};

static uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The least nanoseconds of a batch. */
static uint64_t measure(const struct call *call, int batches)
{
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < batches; i++) {
        call->before();
        call->between();
        uint64_t begun = now();
        call->measured();
        uint64_t took = now() - begun;
        call->after();
        call->last();
        least = took < least ? took : least;
    }
    return least;
}

static void set_up(void)
{
    bw_soft_config config = {.size = sizeof config};
    bw_endpoint endpoint = {.size = sizeof endpoint};
    bw_cq_attr cq_attr = {.size = sizeof cq_attr};
    uint32_t sends, receives;
    bw_device *device;
    bw_pd *pd;
    bw_mr *mr;

    CHECK(bw_version_check(BW_VERSION));
    CHECK(bw_device_open_soft(&config, &device));
    CHECK(bw_pd_create(device, &pd));
    CHECK(bw_mr_create(pd, &target, sizeof target, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE,
                       &mr));
    CHECK(bw_mr_query(mr, &memory));
    CHECK(bw_qp_cq_entries(NULL, &sends, &receives));
    cq_attr.entries = sends + receives;
    CHECK(bw_cq_create(device, &cq_attr, &cq));
    CHECK(bw_qp_create(pd, cq, cq, NULL, &qp));
    CHECK(bw_qp_init(qp, NULL));
    CHECK(bw_qp_endpoint(qp, &endpoint));
    CHECK(bw_qp_connect(qp, &endpoint, NULL));

    for (uint64_t i = 0; i < BATCH; i++) {
        bw_rdma_wr wr = {
            .wr_id = i,
            .sge = {.addr = memory.addr, .length = BYTES, .lkey = memory.lkey},
            .remote_addr = memory.addr,
            .rkey = memory.rkey,
            .send_flags = BW_SEND_SIGNALED,
        };
        wrs[i] = wr;
        wr.sge.addr = (uint64_t)(uintptr_t)data;
        inline_wrs[i] = wr;
    }
}

int main(int argc, char **argv)
{
    set_up();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (argc < 3) {
            printf("%s %.2f\n", calls[i].name, (double)measure(&calls[i], BATCHES) / BATCH);
        } else if (strcmp(argv[1], calls[i].name) == 0) {
            measure(&calls[i], atoi(argv[2]));
            return EXIT_SUCCESS;
        }
    }
    return argc < 3 ? EXIT_SUCCESS : EXIT_FAILURE;
}
