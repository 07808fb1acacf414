/*
 * A listener whose process has no descriptor left for a peer: the error names the limit. Without any, the peer waits in
 * the kernel; with one, which is not enough, the peer is turned away, and reads why. With more, it is accepted.
 */
#define _GNU_SOURCE
#include "../program.h"
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOON = 30000 };

static bw_cm_channel *channel;
static char fabric[64];

static bw_cm_event next(uint32_t expected)
{
    bw_cm_event event;

    memset(&event, 0, sizeof event);
    event.size = sizeof event;
    OK(bw_cm_get_event(channel, &event, SOON));
    if (event.event != expected) {
        fprintf(stderr, "%s (%d)\n", bw_cm_event_str(event.event), event.status);
        exit(EXIT_FAILURE);
    }
    return event;
}

static void tell(int to, uint32_t what)
{
    EXPECT(write(to, &what, sizeof what) == sizeof what);
}

static uint32_t told(int by)
{
    uint32_t what;

    EXPECT(read(by, &what, sizeof what) == sizeof what);
    return what;
}

/* Asks for a connection. */
static bw_cm_id *ask(uint32_t port, bw_device **device, bw_pd **pd, struct end *end)
{
    bw_cm_id *id;

    OK(bw_cm_id_create(channel, BW_PS_TCP, NULL, &id));
    OK(bw_cm_resolve_addr(id, NULL, "127.0.0.1", port, SOON));
    next(BW_CM_EVENT_ADDR_RESOLVED);
    OK(bw_cm_resolve_route(id, SOON));
    next(BW_CM_EVENT_ROUTE_RESOLVED);
    OK(bw_cm_id_device(id, device));
    OK(bw_pd_create(*device, pd));
    *end = end_create(*device, *pd, BW_QPT_RC, NULL, NULL);
    OK(bw_qp_reset(end->qp, NULL, NULL));
    OK(bw_cm_init_qp(id, end->qp, 0));
    OK(bw_cm_connect(id, end->qp, NULL));
    return id;
}

/* The peer, in a process of its own. */
static void peer(int by, int to)
{
    uint32_t port = told(by);
    bw_device *device;
    bw_cm_event event;
    char text[256];

    OK(bw_cm_channel_create(fabric, &channel));
    for (uint32_t spare = told(by); spare < 3; spare = told(by)) {
        struct end end;
        bw_pd *pd;
        bw_cm_id *id = ask(port, &device, &pd, &end);

        tell(to, spare);
        event = next(BW_CM_EVENT_REJECTED);
        EXPECT(bw_cm_why_refused(id, text, sizeof text) == (int)strlen(text));
        /* 3: no resources; 28: the program refuses. */
        EXPECT(event.status == (spare == 1 ? 3 : 28));
        EXPECT((spare == 1) == (strstr(text, "no descriptor or no memory left") != NULL));
        OK(bw_cm_id_destroy(id));
        end_destroy(&end);
        OK(bw_pd_destroy(pd));
        OK(bw_device_close(device));
        tell(to, spare);
    }
    OK(bw_cm_channel_destroy(channel));
}

/* The number of the next descriptor. */
static rlim_t next_descriptor(void)
{
    int fd = dup(2);

    EXPECT(fd >= 0 && close(fd) == 0);
    return (rlim_t)fd;
}

int main(void)
{
    int there[2], back[2], status;
    struct rlimit before, now;
    bw_cm_event event;
    bw_cm_id *listener;
    bw_device *device;
    uint32_t port;
    char host[BW_ADDR_MAX];

    snprintf(fabric, sizeof fabric, "soft:c-unaccepted-%ld", (long)getpid());
    EXPECT(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        peer(there[0], back[1]);
        return 0;
    }
    /* Its end in each. */
    close(there[0]), close(back[1]);
    OK(bw_device_open(fabric, &device));
    OK(bw_cm_channel_create_on(device, &channel));
    OK(bw_cm_id_create(channel, BW_PS_TCP, NULL, &listener));
    OK(bw_cm_bind(listener, "127.0.0.1", 0));
    OK(bw_cm_listen(listener, 4));
    OK(bw_cm_local_addr(listener, host, &port));
    tell(there[1], port);
    OK(getrlimit(RLIMIT_NOFILE, &before));
    for (uint32_t spare = 0; spare < 3; spare++) {
        tell(there[1], spare);
        EXPECT(told(back[0]) == spare);
        now = before;
        now.rlim_cur = next_descriptor() + spare;
        OK(setrlimit(RLIMIT_NOFILE, &now));
        if (spare < 2) {
            memset(&event, 0, sizeof event);
            event.size = sizeof event;
            EXPECT(bw_cm_get_event(channel, &event, SOON) == BW_EOTHER);
            EXPECT(strstr(bw_last_error(), "RLIMIT_NOFILE is ") != NULL);
        }
        if (spare == 0)
            OK(setrlimit(RLIMIT_NOFILE, &before));
        if (spare != 1) {
            event = next(BW_CM_EVENT_CONNECT_REQUEST);
            OK(bw_cm_id_destroy(event.request));
        }
        EXPECT(told(back[0]) == spare);
        OK(setrlimit(RLIMIT_NOFILE, &before));
    }
    tell(there[1], 3);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    OK(bw_cm_id_destroy(listener));
    OK(bw_cm_channel_destroy(channel));
    OK(bw_device_close(device));
    return 0;
}
