/*
 * Two processes, a WRITE and a SEND from one to the other. They meet over TCP, so that they may as
 * well be on two hosts; the device, a fabric of the software device, is on one.
 *
 * Build: cc -std=c11 -D_GNU_SOURCE processes.c $(pkg-config --cflags --libs bellwire) -o processes
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <bellwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Milliseconds that the other process has for each step. */
enum { SOON = 10000 };

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

/* Exchanges endpoints and memory with the other process, and connects. */
static bw_conn_info end_connect(struct end *end, bw_tcp_conn *peer)
{
    bw_endpoint ours = {.size = sizeof ours}, theirs = {.size = sizeof theirs};
    bw_conn_info memory = {
        .size = sizeof memory,
        .mtu = BW_MTU_4096,
        .addr = end->memory.addr,
        .length = end->memory.length,
        .rkey = end->memory.rkey,
    };
    bw_conn_info their_memory = {.size = sizeof their_memory};
    bw_connect_attr attr;

    CHECK(bw_qp_endpoint(end->qp, &ours));
    CHECK(bw_tcp_exchange(peer, &ours, &memory, &theirs, &their_memory, SOON));
    CHECK(bw_connect_attr_default(&attr, sizeof attr));
    /* 1 s, and 7 retries: the other process may wait long for its turn on a busy machine. */
    attr.timeout = 18;
    attr.path_mtu = their_memory.mtu < memory.mtu ? their_memory.mtu : memory.mtu;
    CHECK(bw_qp_init(end->qp, &attr));
    CHECK(bw_qp_connect(end->qp, &theirs, &attr));
    return their_memory;
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

static int sender(const char *fabric, int port)
{
    static const char written[] = "written without asking", sent[] = "sent to whoever receives";
    struct end end = end_create(fabric);
    bw_tcp_conn *peer;

    CHECK(bw_tcp_connect("127.0.0.1", (uint32_t)port, SOON, &peer));
    bw_conn_info theirs = end_connect(&end, peer);
    if (theirs.length < sizeof written) {
        fprintf(stderr, "the other process has no room\n");
        return EXIT_FAILURE;
    }
    CHECK(bw_tcp_barrier(peer, SOON));
    CHECK(bw_post_write_inline(end.qp, 1, written, sizeof written, theirs.addr, theirs.rkey, 0));
    CHECK(bw_post_send_inline(end.qp, 2, sent, sizeof sent, BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(end.qp));
    wait_for(end.cq);
    CHECK(bw_tcp_barrier(peer, SOON));
    CHECK(bw_tcp_conn_destroy(peer));
    end_destroy(&end);
    return EXIT_SUCCESS;
}

static int receiver(const char *fabric, const bw_tcp_listener *listener)
{
    struct end end = end_create(fabric);
    bw_sge place = {.addr = end.memory.addr + 1024, .length = 1024, .lkey = end.memory.lkey};
    bw_tcp_conn *peer;

    CHECK(bw_tcp_accept(listener, SOON, &peer));
    end_connect(&end, peer);
    CHECK(bw_post_recv_one(end.qp, 1, &place));
    CHECK(bw_ring_rq(end.qp));
    /* The receive is there: the other process may send. */
    CHECK(bw_tcp_barrier(peer, SOON));
    bw_wc wc = wait_for(end.cq);
    /* What was written before the message is there. */
    printf("the receiver has: %s\n", (const char *)(uintptr_t)end.memory.addr);
    printf("it received %u bytes: %s\n", wc.byte_len, (const char *)(uintptr_t)place.addr);
    fflush(stdout);
    CHECK(bw_tcp_barrier(peer, SOON));
    CHECK(bw_tcp_conn_destroy(peer));
    end_destroy(&end);
    return EXIT_SUCCESS;
}

int main(void)
{
    char fabric[BW_NAME_MAX];
    static bw_tcp_listener *listener;
    int port, status;

    CHECK(bw_version_check(BW_VERSION));
    snprintf(fabric, sizeof fabric, "soft:c-example-%ld", (long)getpid());
    CHECK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    port = bw_tcp_listener_port(listener);
    CHECK(port);
    /* What is open does not survive a fork: the child has the number of the port only. */
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return EXIT_FAILURE;
    }
    if (child == 0) {
        return sender(fabric, port);
    }
    if (receiver(fabric, listener) != EXIT_SUCCESS || waitpid(child, &status, 0) != child) {
        return EXIT_FAILURE;
    }
    CHECK(bw_tcp_listener_destroy(listener));
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}
