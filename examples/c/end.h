/*
 * What the examples of two processes share: checked calls, one end of a connection, and how two ends
 * meet over TCP.
 */
#ifndef END_H
#define END_H

#include <bellwire.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Ends the program when a call fails, with the reason. */
static inline int check(int code, const char *call)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, bw_strerror(code), bw_last_error());
        exit(EXIT_FAILURE);
    }
    return code;
}
#define CHECK(call) check(call, #call)

/* Milliseconds that the other process has for each step. */
enum { SOON = 120000 };

/* Milliseconds of a clock that only goes forward. */
static inline uint64_t now_ms(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000u + (uint64_t)time.tv_nsec / 1000000u;
}

/* One end of a reliable connection, and its memory. */
struct end {
    bw_device *device;
    bw_pd *pd;
    bw_cq *cq;
    bw_qp *qp;
    bw_region *region;
    bw_region_info memory;
};

/* `access` are the rights to its memory. */
static inline struct end end_create(const char *device, uint64_t bytes, uint32_t access)
{
    struct end end = {.memory = {.size = sizeof(bw_region_info)}};
    uint32_t sends, receives;

    CHECK(bw_device_open(device, &end.device));
    CHECK(bw_pd_create(end.device, &end.pd));
    CHECK(bw_qp_cq_entries(NULL, &sends, &receives));
    bw_cq_attr cq = {.size = sizeof cq, .entries = sends + receives};
    CHECK(bw_cq_create(end.device, &cq, &end.cq));
    CHECK(bw_qp_create(end.pd, end.cq, end.cq, NULL, &end.qp));

    bw_region_attr region;
    CHECK(bw_region_attr_default(&region, sizeof region));
    region.length = bytes;
    region.access = access;
    CHECK(bw_region_create(end.pd, &region, &end.region));
    CHECK(bw_region_query(end.region, &end.memory));
    return end;
}

/* The bytes of its memory at an offset, for the program and for the device. */
static inline void *end_at(const struct end *end, uint64_t offset)
{
    return (void *)(uintptr_t)(end->memory.addr + offset);
}
static inline bw_sge end_sge(const struct end *end, uint64_t offset, uint32_t length)
{
    bw_sge sge = {.addr = end->memory.addr + offset, .length = length, .lkey = end->memory.lkey};

    return sge;
}

/*
 * Connects a queue pair in RESET with that of the process at the other end of the TCP connection. Sends
 * it `memory`, and returns the memory that it sends. Receives that have to be there before the other
 * end sends are posted in INIT, by `prepare`, which may be NULL.
 */
static inline bw_conn_info meet(bw_qp *qp, bw_tcp_conn *peer, const bw_region_info *memory,
                                void (*prepare)(void *context), void *context)
{
    bw_endpoint ours = {.size = sizeof ours}, theirs = {.size = sizeof theirs};
    bw_conn_info our_memory = {
        .size = sizeof our_memory,
        .mtu = BW_MTU_4096,
        .addr = memory->addr,
        .length = memory->length,
        .rkey = memory->rkey,
    };
    bw_conn_info their_memory = {.size = sizeof their_memory};
    bw_connect_attr attr;

    CHECK(bw_qp_endpoint(qp, &ours));
    CHECK(bw_tcp_exchange(peer, &ours, &our_memory, &theirs, &their_memory, SOON));
    CHECK(bw_connect_attr_default(&attr, sizeof attr));
    /* 1 s, and 7 retries: the other process may wait long for its turn on a busy machine. */
    attr.timeout = 18;
    attr.access = BW_ACCESS_REMOTE_WRITE | BW_ACCESS_REMOTE_READ;
    attr.path_mtu = their_memory.mtu < our_memory.mtu ? their_memory.mtu : our_memory.mtu;
    CHECK(bw_qp_init(qp, &attr));
    if (prepare != NULL) {
        prepare(context);
    }
    CHECK(bw_qp_connect(qp, &theirs, &attr));
    /* Both are connected: either may send. */
    CHECK(bw_tcp_barrier(peer, SOON));
    return their_memory;
}

/* The next completion, which has to come soon and to be a good one. */
static inline bw_wc end_wait(struct end *end)
{
    uint64_t limit = now_ms() + SOON;
    bw_wc wc;

    for (uint32_t turn = 1; CHECK(bw_poll_one(end->cq, &wc)) == 0; turn++) {
        if (turn % 1024 != 0) {
            continue;
        }
        /* The other process may be waiting for this processor. */
        sched_yield();
        if (now_ms() > limit) {
            fprintf(stderr, "no completion within %d ms: is the other process there?\n", SOON);
            exit(EXIT_FAILURE);
        }
    }
    if (wc.status != BW_WC_SUCCESS) {
        fprintf(stderr, "request %llu failed: status %u\n", (unsigned long long)wc.wr_id, wc.status);
        exit(EXIT_FAILURE);
    }
    return wc;
}

static inline void end_destroy(struct end *end)
{
    CHECK(bw_qp_destroy(end->qp));
    CHECK(bw_cq_destroy(end->cq));
    CHECK(bw_region_destroy(end->region));
    CHECK(bw_pd_destroy(end->pd));
    CHECK(bw_device_close(end->device));
}

/* A number from the command line; the program ends when it is not one, or out of range. */
static inline unsigned long number(const char *text, unsigned long least, unsigned long most)
{
    char *rest;
    unsigned long value = strtoul(text, &rest, 10);

    if (*text < '0' || *text > '9' || *rest != '\0' || value < least || value > most) {
        fprintf(stderr, "%s: give a number, %lu to %lu\n", text, least, most);
        exit(EXIT_FAILURE);
    }
    return value;
}

#endif
