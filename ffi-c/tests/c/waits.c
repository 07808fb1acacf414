/*
 * Waits, signals and threads: a wait with a limit ends in time however many signals come; one without a limit ends
 * with a signal, or when its object is woken; and the threads of the library take no signal of the process.
 * On another device: waits DEVICE ADDRESS.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "program.h"
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_MS = 120, SOON_S = 120, FOR_EVER = -1 };

static volatile sig_atomic_t signals;

static void on_signal(int number)
{
    (void)number;
    signals = signals + 1;
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Ends the program when it hangs. */
static void *watch(void *nothing)
{
    (void)nothing;
    sleep(SOON_S);
    fprintf(stderr, "a wait does not end\n");
    _exit(EXIT_FAILURE);
}

/* A SIGALRM every so many microseconds; 0: none any more. */
static void timer(int us)
{
    struct itimerval every;

    memset(&every, 0, sizeof every);
    every.it_interval.tv_usec = us;
    every.it_value.tv_usec = us;
    setitimer(ITIMER_REAL, &every, NULL);
}

/* Everything that can be waited for. */
static struct things {
    bw_device *device;
    bw_pd *pd;
    bw_comp_channel *channel;
    bw_cm_channel *cm;
    bw_listener *listener;
    bw_tcp_listener *tcp;
    bw_tcp_conn *conn, *silent;
    bw_link *link, *peer;
    bw_link_set *set;
} things;

static int wait_link(int ms, int of_set)
{
    bw_wait how;
    bw_link_wc wc;
    bw_link_set_wc of;

    OK(bw_wait_default(&how, sizeof how));
    how.spin_ns = 0;
    how.timeout_ns = ms == FOR_EVER ? UINT64_MAX : (uint64_t)ms * 1000000u;
    return of_set ? bw_link_set_wait(things.set, &of, 1, &how)
                  : bw_link_wait(things.link, &wc, 1, &how);
}

static int on_link(int ms) { return wait_link(ms, 0); }
static int wake_link(int awake) { return bw_link_wake(things.link, awake); }
static int on_set(int ms) { return wait_link(ms, 1); }
static int wake_set(int awake) { return bw_link_set_wake(things.set, awake); }

static int on_cm(int ms)
{
    bw_cm_event event;

    memset(&event, 0, sizeof event);
    event.size = sizeof event;
    return bw_cm_get_event(things.cm, &event, (uint32_t)ms);
}
static int wake_cm(int awake) { return bw_cm_channel_wake(things.cm, awake); }

static int on_listener(int ms)
{
    bw_link *link;

    return bw_link_accept(things.listener, things.pd, NULL, (uint32_t)ms, &link);
}
static int wake_listener(int awake) { return bw_listener_wake(things.listener, awake); }

static int on_set_accept(int ms)
{
    bw_link_id link;

    return bw_link_set_accept(things.set, things.listener, NULL, (uint32_t)ms, &link);
}

static int on_tcp(int ms)
{
    bw_tcp_conn *conn;

    return bw_tcp_accept(things.tcp, (uint32_t)ms, &conn);
}
static int wake_tcp(int awake) { return bw_tcp_listener_wake(things.tcp, awake); }

static int on_barrier(int ms) { return bw_tcp_barrier(things.conn, (uint32_t)ms); }

static int on_exchange(int ms)
{
    bw_endpoint ours, peer;
    bw_conn_info info;

    memset(&ours, 0, sizeof ours);
    memset(&peer, 0, sizeof peer);
    memset(&info, 0, sizeof info);
    ours.size = peer.size = sizeof ours;
    info.size = sizeof info;
    return bw_tcp_exchange(things.conn, &ours, NULL, &peer, &info, (uint32_t)ms);
}

static int on_channel(int ms)
{
    uint32_t number;

    (void)ms;
    return bw_get_cq_event(things.channel, &number, NULL);
}
static int wake_channel(int awake) { return bw_comp_channel_wake(things.channel, awake); }

static int on_async(int ms)
{
    bw_async_event_info info;
    bw_async_event *event;

    (void)ms;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    return bw_get_async_event(things.device, &info, &event);
}
static int wake_async(int awake) { return bw_device_async_wake(things.device, awake); }

/* A way to wait: the code at the end of a limit, if it takes one; whether it can wait for ever; how it is woken. */
static const struct way {
    const char *name;
    int (*wait)(int ms);
    int (*wake)(int awake);
    int limit;
    int code;
    int endless;
} ways[] = {
    {"bw_get_cq_event", on_channel, wake_channel, 0, 0, 1},
    {"bw_get_async_event", on_async, wake_async, 0, 0, 1},
    {"bw_cm_get_event", on_cm, wake_cm, 1, BW_EAGAIN, 1},
    {"bw_link_accept", on_listener, wake_listener, 1, BW_EAGAIN, 1},
    {"bw_link_set_accept", on_set_accept, wake_listener, 1, BW_EAGAIN, 1},
    {"bw_link_wait", on_link, wake_link, 1, 0, 1},
    {"bw_link_set_wait", on_set, wake_set, 1, 0, 1},
    {"bw_tcp_accept", on_tcp, wake_tcp, 1, BW_ETIMEDOUT, 0},
    {"bw_tcp_barrier", on_barrier, NULL, 1, BW_ETIMEDOUT, 0},
    {"bw_tcp_exchange", on_exchange, NULL, 1, BW_ETIMEDOUT, 0},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* `name` NULL: a software HCA. */
static void set_up(const char *name, const char *address)
{
    bw_link_init init;
    bw_link_set_init set;

    if (name)
        OK(bw_device_open(name, &things.device));
    else
        things.device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(things.device, &things.pd));
    OK(bw_comp_channel_create(things.device, &things.channel));
    OK(bw_cm_channel_create_on(things.device, &things.cm));
    OK(bw_listener_create(things.device, address, 0, 4, NULL, &things.listener));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &things.tcp));
    OK(bw_tcp_connect("localhost", (uint32_t)bw_tcp_listener_port(things.tcp), 60000, &things.conn));
    OK(bw_tcp_accept(things.tcp, 60000, &things.silent));
    OK(bw_link_init_default(&init, sizeof init));
    init.sleeps = 1;
    OK(bw_link_create_pair(things.pd, &init, &things.link, things.pd, NULL, &things.peer));
    while (bw_link_get_state(things.link) != BW_LINK_READY ||
           bw_link_get_state(things.peer) != BW_LINK_READY) {
        bw_link_wc wc;

        EXPECT(bw_link_poll(things.link, &wc, 1) == 0);
        EXPECT(bw_link_poll(things.peer, &wc, 1) == 0);
    }
    OK(bw_link_set_init_default(&set, sizeof set));
    set.links = 2;
    set.sleeps = 1;
    OK(bw_link_set_create(things.pd, &set, &things.set));
}

static void tear_down(void)
{
    OK(bw_link_destroy(things.link));
    OK(bw_link_destroy(things.peer));
    OK(bw_link_set_destroy(things.set));
    OK(bw_tcp_conn_destroy(things.conn));
    OK(bw_tcp_conn_destroy(things.silent));
    OK(bw_tcp_listener_destroy(things.tcp));
    OK(bw_listener_destroy(things.listener));
    OK(bw_cm_channel_destroy(things.cm));
    OK(bw_comp_channel_destroy(things.channel));
    OK(bw_pd_destroy(things.pd));
    OK(bw_device_close(things.device));
}

/* A wait with a limit ends after that time, and not for a signal. */
static void limits(int us)
{
    for (int i = 0; i < WAYS; i++) {
        uint64_t start, took;
        int code;

        if (!ways[i].limit)
            continue;
        signals = 0;
        start = now_ns();
        timer(us);
        code = ways[i].wait(LIMIT_MS);
        timer(0);
        took = now_ns() - start;
        if (code != ways[i].code || took < LIMIT_MS * 1000000u || signals == 0) {
            fprintf(stderr, "%s: %d after %llu ms and %d signals (%s)\n", ways[i].name, code,
                    (unsigned long long)(took / 1000000u), (int)signals, bw_last_error());
            exit(EXIT_FAILURE);
        }
    }
}

/* What waits for its time on an inline device continues while the program waits, however many signals come. */
static void progress(int us)
{
    struct end a, b;
    bw_connect_attr attr;
    bw_endpoint endpoint;
    bw_send_wr wr;
    bw_sge sge;
    uint32_t number;
    int code;

    a = end_create(things.device, things.pd, BW_QPT_RC, things.channel, NULL);
    b = end_create(things.device, things.pd, BW_QPT_RC, NULL, NULL);
    OK(bw_connect_attr_default(&attr, sizeof attr));
    /* The peer has no receive: the third RNR NAK ends it, 10 ms after another. */
    attr.rnr_retry = 2;
    attr.min_rnr_timer = 20;
    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    OK(bw_qp_endpoint(b.qp, &endpoint));
    OK(bw_qp_connect(a.qp, &endpoint, &attr));
    OK(bw_qp_endpoint(a.qp, &endpoint));
    OK(bw_qp_connect(b.qp, &endpoint, &attr));
    sge = end_sge(&a, 0, 8);
    wr = send_of(7, &sge);
    OK(bw_cq_req_notify(a.cq, 0));
    OK(bw_post_send(a.qp, &wr, 1, NULL));
    signals = 0;
    timer(us);
    do
        code = bw_get_cq_event(things.channel, &number, NULL);
    while (code == BW_EINTR);
    timer(0);
    OK(code);
    EXPECT(signals > 0);
    OK(bw_ack_cq_events(things.channel, number, 1));
    expect_wc(&a, 7, BW_WC_RNR_RETRY_EXC_ERR);
    end_destroy(&a);
    end_destroy(&b);
}

/* A thread in a wait without a limit. */
struct waiting {
    const struct way *way;
    int code;
    int done;
};

static void *wait_for_ever(void *of)
{
    struct waiting *waiting = (struct waiting *)of;

    waiting->code = waiting->way->wait(FOR_EVER);
    __atomic_store_n(&waiting->done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A thread that has to end with this code. `restart`: the handler's SA_RESTART makes no difference. */
static void interrupted(const struct way *way, int restart)
{
    struct waiting waiting = {way, 0, 0};
    struct sigaction action;
    pthread_t thread;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = restart ? SA_RESTART : 0;
    sigaction(SIGUSR1, &action, NULL);
    EXPECT(pthread_create(&thread, NULL, wait_for_ever, &waiting) == 0);
    /* One may come before the thread waits. */
    while (!__atomic_load_n(&waiting.done, __ATOMIC_SEQ_CST)) {
        pthread_kill(thread, SIGUSR1);
        usleep(1000);
    }
    EXPECT(pthread_join(thread, NULL) == 0);
    if (waiting.code != BW_EINTR) {
        fprintf(stderr, "%s: %d after a signal (%s)\n", way->name, waiting.code, bw_last_error());
        exit(EXIT_FAILURE);
    }
}

/* Waking ends the waits that are there, and those that come after it, until it is taken back. */
static void woken(const struct way *way)
{
    for (int round = 0; round < 20; round++) {
        struct waiting waiting = {way, 0, 0};
        pthread_t thread;

        EXPECT(pthread_create(&thread, NULL, wait_for_ever, &waiting) == 0);
        if (round % 2)
            usleep(1000);
        OK(way->wake(1));
        EXPECT(pthread_join(thread, NULL) == 0);
        EXPECT(waiting.code == BW_EWOKEN);
        EXPECT(way->wait(FOR_EVER) == BW_EWOKEN);
        OK(way->wake(0));
        if (way->limit)
            EXPECT(way->wait(1) == way->code);
    }
}

/* How many threads have a name of the library, which they give themselves. No signal of the process is for them. */
static int threads_of_library(void)
{
    const int process[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGPIPE, SIGPROF};
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");
    int found = 0;

    EXPECT(tasks != NULL);
    while ((entry = readdir(tasks)) != NULL) {
        char path[300], line[256], name[64] = "";
        unsigned long long blocked = 0;
        FILE *status;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        status = fopen(path, "r");
        if (status == NULL)
            continue;
        while (fgets(line, sizeof line, status) != NULL) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        fclose(status);
        if (strncmp(name, "bellwire", 8) != 0)
            continue;
        found++;
        for (size_t i = 0; i < sizeof process / sizeof *process; i++)
            EXPECT(blocked >> (process[i] - 1) & 1);
    }
    closedir(tasks);
    return found;
}

static void masks(void)
{
    bw_soft_config config;
    bw_device *device;

    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.mode = BW_SOFT_ENGINE;
    config.threads = 2;
    OK(bw_device_open_soft(&config, &device));
    while (threads_of_library() < 2)
        usleep(1000);
    OK(bw_device_close(device));
}

int main(int argc, char **argv)
{
    int other = argc == 3;
    struct sigaction action;
    pthread_t watcher;
    sigset_t set, before;

    OK(bw_version_check(BW_VERSION));
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigfillset(&set);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    EXPECT(pthread_create(&watcher, NULL, watch, NULL) == 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    set_up(other ? argv[1] : NULL, other ? argv[2] : "127.0.0.1");
    masks();
    for (int us = 1000; us <= 10000; us *= 10) {
        limits(us);
        if (!other)
            progress(us);
    }
    for (int i = 0; i < WAYS; i++) {
        if (ways[i].endless) {
            interrupted(&ways[i], 0);
            interrupted(&ways[i], 1);
        }
        if (ways[i].wake != NULL)
            woken(&ways[i]);
    }
    EXPECT(bw_comp_channel_wake(NULL, 1) == BW_ENULL && bw_device_async_wake(NULL, 1) == BW_ENULL);
    EXPECT(bw_cm_channel_wake(NULL, 1) == BW_ENULL && bw_listener_wake(NULL, 1) == BW_ENULL);
    EXPECT(bw_link_wake(NULL, 1) == BW_ENULL && bw_link_set_wake(NULL, 1) == BW_ENULL);
    EXPECT(bw_tcp_listener_wake(NULL, 1) == BW_ENULL);
    tear_down();
    EXPECT(pthread_cancel(watcher) == 0 && pthread_join(watcher, NULL) == 0);
    return 0;
}
