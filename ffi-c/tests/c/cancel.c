/*
 * Cancelled threads: cancellation is deferred within every call, and acts at the program's own next cancellation
 * point. A thread that waits is woken to get there. The process goes on, and what the thread has used still works.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "program.h"
#include <pthread.h>
#include <unistd.h>

enum { SOON_S = 120, LIMIT_MS = 20 };

static void *watch(void *nothing)
{
    (void)nothing;
    sleep(SOON_S);
    fprintf(stderr, "a cancelled thread does not end\n");
    _exit(EXIT_FAILURE);
}

static struct things {
    bw_device *device;
    bw_pd *pd;
    bw_comp_channel *channel;
    bw_cm_channel *cm;
    bw_listener *listener;
    bw_tcp_listener *tcp;
    bw_link_set *set;
} things;

static int on_channel(void)
{
    uint32_t number;

    return bw_get_cq_event(things.channel, &number, NULL);
}
static int wake_channel(int awake) { return bw_comp_channel_wake(things.channel, awake); }

static int on_async(void)
{
    bw_async_event_info info;
    bw_async_event *event;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    return bw_get_async_event(things.device, &info, &event);
}
static int wake_async(int awake) { return bw_device_async_wake(things.device, awake); }

static int on_cm(void)
{
    bw_cm_event event;

    memset(&event, 0, sizeof event);
    event.size = sizeof event;
    return bw_cm_get_event(things.cm, &event, UINT32_MAX);
}
static int wake_cm(int awake) { return bw_cm_channel_wake(things.cm, awake); }

static int on_listener(void)
{
    bw_link *link;

    return bw_link_accept(things.listener, things.pd, NULL, UINT32_MAX, &link);
}
static int wake_listener(int awake) { return bw_listener_wake(things.listener, awake); }

static int on_tcp(void)
{
    bw_tcp_conn *conn;

    return bw_tcp_accept(things.tcp, UINT32_MAX, &conn);
}
static int wake_tcp(int awake) { return bw_tcp_listener_wake(things.tcp, awake); }

static int on_set(void)
{
    bw_link_set_wc wc;

    return bw_link_set_wait(things.set, &wc, 1, NULL);
}
static int wake_set(int awake) { return bw_link_set_wake(things.set, awake); }

static const struct way {
    const char *name;
    int (*wait)(void);
    int (*wake)(int awake);
} ways[] = {
    {"bw_get_cq_event", on_channel, wake_channel}, {"bw_get_async_event", on_async, wake_async},
    {"bw_cm_get_event", on_cm, wake_cm},           {"bw_link_accept", on_listener, wake_listener},
    {"bw_tcp_accept", on_tcp, wake_tcp},           {"bw_link_set_wait", on_set, wake_set},
};

/* A thread, how far it has come, and what its wait has returned. */
struct thread {
    const struct way *way;
    int begun, code, finished;
};

static void cleaned(void *of)
{
    ((struct thread *)of)->finished++;
}

static void *waits(void *of)
{
    struct thread *thread = (struct thread *)of;

    pthread_cleanup_push(cleaned, thread);
    __atomic_store_n(&thread->begun, 1, __ATOMIC_SEQ_CST);
    thread->code = thread->way->wait();
    pthread_testcancel();
    thread->finished = 100;
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled_wait(const struct way *way, int pause)
{
    struct thread thread = {way, 0, 0, 0};
    pthread_t id;
    void *end;

    EXPECT(pthread_create(&id, NULL, waits, &thread) == 0);
    while (!__atomic_load_n(&thread.begun, __ATOMIC_SEQ_CST))
        usleep(100);
    if (pause)
        usleep(2000);
    EXPECT(pthread_cancel(id) == 0);
    OK(way->wake(1));
    EXPECT(pthread_join(id, &end) == 0);
    if (end != PTHREAD_CANCELED || thread.code != BW_EWOKEN || thread.finished != 1) {
        fprintf(stderr, "%s: %d, %d\n", way->name, thread.code, thread.finished);
        exit(EXIT_FAILURE);
    }
    OK(way->wake(0));
}

/* All that a program does, from opening a device to closing it, with limits and completion events. */
static void everything(void)
{
    struct end a, b;
    bw_comp_channel *channel;
    bw_tcp_listener *listener;
    bw_tcp_conn *conn, *peer;
    bw_device *device;
    bw_listener *links;
    bw_cm_channel *cm;
    bw_cm_event event;
    bw_link *here, *there, *none;
    bw_pd *pd;
    bw_send_wr wr;
    bw_recv_wr recv;
    bw_sge sge;
    uint32_t number;
    char name[64];
    int state;

    snprintf(name, sizeof name, "soft:cancel-%ld", (long)getpid());
    OK(bw_device_open(name, &device));
    OK(bw_pd_create(device, &pd));
    OK(bw_comp_channel_create(device, &channel));
    a = end_create(device, pd, BW_QPT_RC, channel, NULL);
    b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    for (uint64_t n = 0; n < 8; n++) {
        bw_wc wc;

        /* An event is raised while this thread posts and polls. */
        OK(bw_cq_req_notify(a.cq, 0));
        sge = end_sge(&b, 0, 8);
        recv = recv_of(n, &sge);
        OK(bw_post_recv(b.qp, &recv, 1, NULL));
        sge = end_sge(&a, 0, 8);
        wr = send_of(n, &sge);
        OK(bw_post_send(a.qp, &wr, 1, NULL));
        OK(bw_get_cq_event(channel, &number, NULL));
        OK(bw_ack_cq_events(channel, number, 1));
        while (bw_poll_one(a.cq, &wc) == 0)
            ;
        EXPECT(wc.status == BW_WC_SUCCESS);
        while (bw_poll_one(b.cq, &wc) == 0)
            ;
        EXPECT(wc.status == BW_WC_SUCCESS);
    }
    end_destroy(&a);
    end_destroy(&b);

    OK(bw_tcp_listener_create("localhost", 0, &listener));
    OK(bw_tcp_connect("localhost", (uint32_t)bw_tcp_listener_port(listener), 60000, &conn));
    OK(bw_tcp_accept(listener, 60000, &peer));
    EXPECT(bw_tcp_barrier(conn, LIMIT_MS) == BW_ETIMEDOUT);
    OK(bw_tcp_conn_destroy(conn));
    OK(bw_tcp_conn_destroy(peer));
    EXPECT(bw_tcp_accept(listener, LIMIT_MS, &conn) == BW_ETIMEDOUT);

    /* Links over TCP connect, and so read and write sockets, while they are polled. */
    OK(bw_tcp_connect("localhost", (uint32_t)bw_tcp_listener_port(listener), 60000, &conn));
    OK(bw_tcp_accept(listener, 60000, &peer));
    OK(bw_link_create(pd, NULL, conn, &here));
    OK(bw_link_create(pd, NULL, peer, &there));
    OK(bw_tcp_conn_destroy(conn));
    OK(bw_tcp_conn_destroy(peer));
    while (bw_link_get_state(here) != BW_LINK_READY || bw_link_get_state(there) != BW_LINK_READY) {
        bw_link_wc wc;

        EXPECT(bw_link_poll(here, &wc, 1) == 0);
        EXPECT(bw_link_poll(there, &wc, 1) == 0);
    }
    OK(bw_link_destroy(here));
    OK(bw_link_destroy(there));
    OK(bw_tcp_listener_destroy(listener));

    memset(&event, 0, sizeof event);
    event.size = sizeof event;
    OK(bw_cm_channel_create_on(device, &cm));
    EXPECT(bw_cm_get_event(cm, &event, LIMIT_MS) == BW_EAGAIN);
    OK(bw_cm_channel_destroy(cm));
    OK(bw_listener_create(device, "127.0.0.1", 0, 4, NULL, &links));
    EXPECT(bw_link_accept(links, pd, NULL, LIMIT_MS, &none) == BW_EAGAIN);
    OK(bw_listener_destroy(links));

    OK(bw_comp_channel_destroy(channel));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    /* Cancellation is as it was before the calls. */
    EXPECT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0);
    EXPECT(state == PTHREAD_CANCEL_ENABLE);
    EXPECT(bw_device_open("nothing", &device) == BW_ENODEV);
    EXPECT(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0);
    EXPECT(state == PTHREAD_CANCEL_DISABLE);
}

/* It is cancelled before it begins, and ends afterwards. */
static void *does_everything(void *of)
{
    struct thread *thread = (struct thread *)of;

    pthread_cleanup_push(cleaned, thread);
    pthread_cancel(pthread_self());
    everything();
    thread->code = 1;
    pthread_testcancel();
    thread->finished = 100;
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    struct thread thread = {NULL, 0, 0, 0};
    bw_link_set_init set;
    pthread_t id, watcher;
    void *end;

    OK(bw_version_check(BW_VERSION));
    EXPECT(pthread_create(&watcher, NULL, watch, NULL) == 0);

    EXPECT(pthread_create(&id, NULL, does_everything, &thread) == 0);
    EXPECT(pthread_join(id, &end) == 0);
    EXPECT(end == PTHREAD_CANCELED && thread.code == 1 && thread.finished == 1);

    things.device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(things.device, &things.pd));
    OK(bw_comp_channel_create(things.device, &things.channel));
    OK(bw_cm_channel_create_on(things.device, &things.cm));
    OK(bw_listener_create(things.device, "127.0.0.1", 0, 4, NULL, &things.listener));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &things.tcp));
    OK(bw_link_set_init_default(&set, sizeof set));
    set.links = 1;
    set.sleeps = 1;
    OK(bw_link_set_create(things.pd, &set, &things.set));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        cancelled_wait(&ways[i], 0);
        cancelled_wait(&ways[i], 1);
    }
    OK(bw_link_set_destroy(things.set));
    OK(bw_tcp_listener_destroy(things.tcp));
    OK(bw_listener_destroy(things.listener));
    OK(bw_cm_channel_destroy(things.cm));
    OK(bw_comp_channel_destroy(things.channel));
    OK(bw_pd_destroy(things.pd));
    OK(bw_device_close(things.device));
    everything();
    EXPECT(pthread_cancel(watcher) == 0 && pthread_join(watcher, NULL) == 0);
    return 0;
}
