/*
 * Two processes, a WRITE and a SEND from one to the other: a fabric of the software device.
 *
 * Build: cc -std=c11 -D_GNU_SOURCE processes.c -lbellwire -o processes
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <bellwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Ends the program when a call fails, with the reason. */
static void check(int code, const char *call)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, bw_strerror(code), bw_last_error());
        exit(EXIT_FAILURE);
    }
}
#define CHECK(call) check(call, #call)

/* What each process tells the other. */
struct card {
    bw_endpoint endpoint;
    uint64_t addr;
    uint32_t rkey;
    uint32_t reserved;
};

/* One process's end of the connection. */
struct end {
    bw_device *device;
    bw_pd *pd;
    bw_cq *cq;
    bw_qp *qp;
    bw_region *region;
    bw_region_info memory;
};

static struct end end_create(const char *fabric)
{
    struct end end = {.memory = {.size = sizeof(bw_region_info)}};
    uint32_t sends, receives;

    CHECK(bw_device_open(fabric, &end.device));
    CHECK(bw_pd_create(end.device, &end.pd));
    CHECK(bw_qp_cq_entries(NULL, &sends, &receives));
    bw_cq_attr cq = {.size = sizeof cq, .entries = sends + receives};
    CHECK(bw_cq_create(end.device, &cq, &end.cq));
    CHECK(bw_qp_create(end.pd, end.cq, end.cq, NULL, &end.qp));

    bw_region_attr region;
    CHECK(bw_region_attr_default(&region, sizeof region));
    region.length = 4096;
    region.access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE;
    CHECK(bw_region_create(end.pd, &region, &end.region));
    CHECK(bw_region_query(end.region, &end.memory));
    return end;
}

static void say(int to, const void *what, size_t size)
{
    if (write(to, what, size) != (ssize_t)size) {
        perror("write");
        exit(EXIT_FAILURE);
    }
}

static void hear(int from, void *what, size_t size)
{
    if (read(from, what, size) != (ssize_t)size) {
        fprintf(stderr, "the other process has left\n");
        exit(EXIT_FAILURE);
    }
}

/* Exchanges endpoints with the other process, by whatever means there is: here a socket. */
static struct card end_connect(struct end *end, int peer)
{
    struct card ours, theirs;

    memset(&ours, 0, sizeof ours);
    ours.endpoint.size = sizeof ours.endpoint;
    CHECK(bw_qp_endpoint(end->qp, &ours.endpoint));
    ours.addr = end->memory.addr;
    ours.rkey = end->memory.rkey;
    CHECK(bw_qp_init(end->qp, NULL));
    say(peer, &ours, sizeof ours);
    hear(peer, &theirs, sizeof theirs);
    CHECK(bw_qp_connect(end->qp, &theirs.endpoint, NULL));
    return theirs;
}

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
    CHECK(bw_pd_destroy(end->pd));
    CHECK(bw_device_close(end->device));
}

static int sender(const char *fabric, int peer)
{
    static const char written[] = "written without asking", sent[] = "sent to whoever receives";
    struct end end = end_create(fabric);
    struct card theirs = end_connect(&end, peer);
    char ready;

    hear(peer, &ready, 1);
    CHECK(bw_post_write_inline(end.qp, 1, written, sizeof written, theirs.addr, theirs.rkey, 0));
    CHECK(bw_post_send_inline(end.qp, 2, sent, sizeof sent, BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(end.qp));
    wait_for(end.cq);
    hear(peer, &ready, 1);
    end_destroy(&end);
    return EXIT_SUCCESS;
}

static int receiver(const char *fabric, int peer)
{
    struct end end = end_create(fabric);
    bw_sge place = {.addr = end.memory.addr + 1024, .length = 1024, .lkey = end.memory.lkey};

    end_connect(&end, peer);
    CHECK(bw_post_recv_one(end.qp, 1, &place));
    CHECK(bw_ring_rq(end.qp));
    say(peer, "!", 1);
    bw_wc wc = wait_for(end.cq);
    /* What was written before the message is there. */
    printf("the receiver has: %s\n", (const char *)(uintptr_t)end.memory.addr);
    printf("it received %u bytes: %s\n", wc.byte_len, (const char *)(uintptr_t)place.addr);
    fflush(stdout);
    say(peer, "!", 1);
    end_destroy(&end);
    return EXIT_SUCCESS;
}

int main(void)
{
    char fabric[BW_NAME_MAX];
    int sockets[2], status;

    CHECK(bw_version_check(BW_VERSION));
    snprintf(fabric, sizeof fabric, "soft:c-example-%ld", (long)getpid());
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
        perror("socketpair");
        return EXIT_FAILURE;
    }
    /* Each process opens the device by itself: what is open does not survive a fork. */
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return EXIT_FAILURE;
    }
    close(sockets[child != 0]);
    if (child == 0) {
        return sender(fabric, sockets[1]);
    }
    if (receiver(fabric, sockets[0]) != EXIT_SUCCESS || waitpid(child, &status, 0) != child) {
        return EXIT_FAILURE;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}
