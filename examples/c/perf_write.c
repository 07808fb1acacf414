/*
 * How long a small RDMA WRITE takes: 8 bytes inline, one at a time, from post to completion.
 *
 * Build: cc -std=c11 -O2 perf_write.c $(pkg-config --cflags --libs bellwire) -o perf_write
 * Run:   ./perf_write [writes]
 */
#define _POSIX_C_SOURCE 199309L
#include <bellwire.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(int code, const char *call)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, bw_strerror(code), bw_last_error());
        exit(EXIT_FAILURE);
    }
}
#define CHECK(call) check(call, #call)

static uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void connect_to(bw_qp *qp, bw_qp *peer)
{
    bw_endpoint endpoint = {.size = sizeof endpoint};

    CHECK(bw_qp_endpoint(peer, &endpoint));
    CHECK(bw_qp_init(qp, NULL));
    CHECK(bw_qp_connect(qp, &endpoint, NULL));
}

static size_t count_from(const char *text)
{
    char *end;

    errno = 0;
    unsigned long count = strtoul(text, &end, 10);
    if (errno != 0 || *end != '\0' || count == 0 || count > 100000000) {
        fprintf(stderr, "%s: give a number of writes, 1 to 100000000\n", text);
        exit(EXIT_FAILURE);
    }
    return count;
}

int main(int argc, char **argv)
{
    size_t writes = argc > 1 ? count_from(argv[1]) : 200000;
    uint64_t *times = calloc(writes, sizeof *times);
    static uint64_t target;
    bw_device *device;
    bw_pd *pd;
    bw_mr *mr;
    bw_mr_info memory = {.size = sizeof memory};
    bw_cq *cq;
    bw_qp *qp, *peer;
    uint32_t sends, receives;

    if (times == NULL) {
        perror("calloc");
        return EXIT_FAILURE;
    }
    CHECK(bw_version_check(BW_VERSION));
    CHECK(bw_device_open("auto", &device));
    CHECK(bw_pd_create(device, &pd));
    CHECK(bw_mr_create(pd, &target, sizeof target, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE,
                       &mr));
    CHECK(bw_mr_query(mr, &memory));
    CHECK(bw_qp_cq_entries(NULL, &sends, &receives));
    bw_cq_attr attr = {.size = sizeof attr, .entries = 2 * (sends + receives)};
    CHECK(bw_cq_create(device, &attr, &cq));
    CHECK(bw_qp_create(pd, cq, cq, NULL, &qp));
    CHECK(bw_qp_create(pd, cq, cq, NULL, &peer));
    connect_to(qp, peer);
    connect_to(peer, qp);

    for (size_t i = 0; i < writes; i++) {
        uint64_t data = i + 1, start = now();
        int count;
        bw_wc wc;

        CHECK(bw_post_write_inline(qp, i, &data, sizeof data, memory.addr, memory.rkey,
                                   BW_SEND_SIGNALED));
        CHECK(bw_ring_sq(qp));
        do {
            count = bw_poll_one(cq, &wc);
            CHECK(count);
        } while (count == 0);
        times[i] = now() - start;
        if (wc.status != BW_WC_SUCCESS || wc.wr_id != i) {
            fprintf(stderr, "write %zu: status %u of request %llu\n", i, wc.status,
                    (unsigned long long)wc.wr_id);
            return EXIT_FAILURE;
        }
    }
    if (target != writes) {
        fprintf(stderr, "the last write did not arrive\n");
        return EXIT_FAILURE;
    }
    qsort(times, writes, sizeof *times, ascending);
    printf("%zu writes of 8 bytes, ns, two clock readings included: min %llu, median %llu, "
           "99%% %llu, max %llu\n",
           writes, (unsigned long long)times[0], (unsigned long long)times[writes / 2],
           (unsigned long long)times[writes - 1 - writes / 100],
           (unsigned long long)times[writes - 1]);

    CHECK(bw_qp_destroy(qp));
    CHECK(bw_qp_destroy(peer));
    CHECK(bw_cq_destroy(cq));
    CHECK(bw_mr_destroy(mr));
    CHECK(bw_pd_destroy(pd));
    CHECK(bw_device_close(device));
    free(times);
    return EXIT_SUCCESS;
}
