/*
 * Two processes, a WRITE and a SEND from one to the other. They meet over TCP, so that they may as
 * well be on two hosts; the device, a fabric of the software device, is on one.
 *
 * Build: cc -std=c11 -D_GNU_SOURCE processes.c $(pkg-config --cflags --libs bellwire) -o processes
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "end.h"
#include <sys/wait.h>
#include <unistd.h>

enum { RIGHTS = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE, RECEIVED_AT = 1024 };

static void sender(const char *fabric, uint32_t port)
{
    static const char written[] = "written without asking", sent[] = "sent to whoever receives";
    struct end end = end_create(fabric, 4096, RIGHTS);
    bw_tcp_conn *peer;

    CHECK(bw_tcp_connect("127.0.0.1", port, SOON, &peer));
    bw_conn_info theirs = meet(end.qp, peer, &end.memory, NULL, NULL);
    if (theirs.length < sizeof written) {
        fprintf(stderr, "the other process has no room\n");
        exit(EXIT_FAILURE);
    }
    CHECK(bw_post_write_inline(end.qp, 1, written, sizeof written, theirs.addr, theirs.rkey, 0));
    CHECK(bw_post_send_inline(end.qp, 2, sent, sizeof sent, BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(end.qp));
    end_wait(&end);
    CHECK(bw_tcp_barrier(peer, SOON));
    CHECK(bw_tcp_conn_destroy(peer));
    end_destroy(&end);
}

static void expect_message(void *context)
{
    struct end *end = context;
    bw_sge place = end_sge(end, RECEIVED_AT, 1024);

    CHECK(bw_post_recv_one(end->qp, 1, &place));
    CHECK(bw_ring_rq(end->qp));
}

static void receiver(const char *fabric, const bw_tcp_listener *listener)
{
    struct end end = end_create(fabric, 4096, RIGHTS);
    bw_tcp_conn *peer;

    CHECK(bw_tcp_accept(listener, SOON, &peer));
    meet(end.qp, peer, &end.memory, expect_message, &end);
    bw_wc wc = end_wait(&end);
    /* Data that was written before the message is there. */
    printf("the receiver has: %s\n", (const char *)end_at(&end, 0));
    printf("it received %u bytes: %s\n", wc.byte_len, (const char *)end_at(&end, RECEIVED_AT));
    fflush(stdout);
    CHECK(bw_tcp_barrier(peer, SOON));
    CHECK(bw_tcp_conn_destroy(peer));
    end_destroy(&end);
}

int main(void)
{
    char fabric[BW_NAME_MAX];
    static bw_tcp_listener *listener;
    uint32_t port;
    int status;

    CHECK(bw_version_check(BW_VERSION));
    snprintf(fabric, sizeof fabric, "soft:c-example-%ld", (long)getpid());
    CHECK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    port = (uint32_t)CHECK(bw_tcp_listener_port(listener));
    /* Open objects do not survive a fork: the child has the number of the port only. */
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return EXIT_FAILURE;
    }
    if (child == 0) {
        sender(fabric, port);
        return EXIT_SUCCESS;
    }
    receiver(fabric, listener);
    if (waitpid(child, &status, 0) != child) {
        perror("waitpid");
        return EXIT_FAILURE;
    }
    CHECK(bw_tcp_listener_destroy(listener));
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}
