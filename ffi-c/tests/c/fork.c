/*
 * What a child of fork() has of its parent's objects: it may destroy them without effect, and opens the
 * device again. The parent's connection goes on. Also by daemon(), a double fork, and programs that are
 * started meanwhile. On another device: fork on DEVICE.
 */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#include "program.h"
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 1000, DEPTH = 16 };

extern char **environ;

/* A child has none of its parent's threads, and nothing that refers to the memory on their stacks: the sanitizer
 * would take that for leaks. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

static char name[64];
static bw_device *device;
static bw_pd *pd;
/* Two ends in the parent, connected with each other. */
static struct end ours, theirs;
/* Both ends of what the parent and its child say to each other. */
static int pair[2];

static void destroy_all(void)
{
    end_destroy(&ours);
    end_destroy(&theirs);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
}

/* What a peer needs to know. */
struct card {
    bw_endpoint endpoint;
};

static void exchange(int socket, struct end *end)
{
    struct card card;
    bw_connect_attr attr;

    /* A second for each try: a child that has just begun may have no processor for long. */
    OK(bw_connect_attr_default(&attr, sizeof attr));
    attr.timeout = 18;
    memset(&card, 0, sizeof card);
    card.endpoint.size = sizeof card.endpoint;
    OK(bw_qp_endpoint(end->qp, &card.endpoint));
    EXPECT(write(socket, &card, sizeof card) == (ssize_t)sizeof card);
    EXPECT(read(socket, &card, sizeof card) == (ssize_t)sizeof card);
    OK(bw_qp_connect(end->qp, &card.endpoint, &attr));
}

static void agree(int socket)
{
    char byte = 'x';

    EXPECT(write(socket, &byte, 1) == 1 && read(socket, &byte, 1) == 1);
}

static void poll_until(struct end *end, bw_wc *wc)
{
    time_t begun = time(NULL);

    while (bw_poll_one(end->cq, wc) == 0)
        EXPECT(time(NULL) - begun < 60);
    EXPECT(wc->status == BW_WC_SUCCESS);
}

static void receives(struct end *end)
{
    bw_wc wc;

    for (uint32_t next = 0; next < MESSAGES; next++) {
        uint32_t number, place = next % DEPTH;
        bw_sge sge = end_sge(end, place * 64, 64);

        poll_until(end, &wc);
        EXPECT(wc.wr_id == place && wc.byte_len == sizeof number);
        memcpy(&number, end_bytes(end, place * 64), sizeof number);
        EXPECT(number == next);
        OK(bw_post_recv_one(end->qp, place, &sge));
        OK(bw_ring_rq(end->qp));
    }
}

static void sends(struct end *end)
{
    bw_wc wc;

    for (uint32_t next = 0; next < MESSAGES; next++) {
        OK(bw_post_send_inline(end->qp, next, &next, sizeof next, BW_SEND_SIGNALED));
        OK(bw_ring_sq(end->qp));
        poll_until(end, &wc);
        EXPECT(wc.wr_id == next);
    }
}

static void prepare(struct end *end)
{
    for (uint32_t at = 0; at < DEPTH; at++) {
        bw_sge sge = end_sge(end, at * 64, 64);

        OK(bw_post_recv_one(end->qp, at, &sge));
    }
    OK(bw_ring_rq(end->qp));
}

/* The parent's side: sends, then receives. */
static void talk_with_child(void)
{
    struct end end = end_create(device, pd, BW_QPT_RC, NULL, NULL);

    prepare(&end);
    exchange(pair[0], &end);
    agree(pair[0]);
    sends(&end);
    receives(&end);
    agree(pair[0]);
    end_destroy(&end);
}

/* A child opens the fabric again, and makes objects of its own. */
static void talk_with_parent(void)
{
    bw_device *again;
    bw_pd *domain;
    struct end end;

    OK(bw_device_open(name, &again));
    OK(bw_pd_create(again, &domain));
    end = end_create(again, domain, BW_QPT_RC, NULL, NULL);
    prepare(&end);
    exchange(pair[1], &end);
    agree(pair[1]);
    receives(&end);
    sends(&end);
    agree(pair[1]);
    end_destroy(&end);
    OK(bw_pd_destroy(domain));
    OK(bw_device_close(again));
}

/* The parent's own connection works. */
static void goes_on(void)
{
    static uint64_t round;
    bw_wc wc;

    for (int many = 0; many < 100; many++) {
        round++;
        OK(bw_post_write_inline(ours.qp, round, &round, 8, theirs.memory.addr, theirs.memory.rkey,
                                BW_SEND_SIGNALED));
        OK(bw_ring_sq(ours.qp));
        poll_until(&ours, &wc);
        EXPECT(wc.wr_id == round && *(uint64_t *)(uintptr_t)theirs.memory.addr == round);
    }
}

/* A child that ends with status 0. `with` is what the parent does meanwhile; it may be NULL. */
static void with_child(void (*child)(void), void (*with)(void))
{
    int status;
    pid_t pid = fork();

    EXPECT(pid >= 0);
    if (pid == 0) {
        child();
        exit(EXIT_SUCCESS);
    }
    goes_on();
    if (with)
        with();
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
    goes_on();
}

/* Everything may be destroyed, and every other call says whose the handle is. */
static void inherits(void)
{
    bw_device_info info;
    bw_qp_attr attr;
    bw_pd *none;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    EXPECT(bw_device_query(device, &info) == BW_EFORK);
    EXPECT(strstr(bw_last_error(), "forked") != NULL);
    EXPECT(strstr(bw_strerror(BW_EFORK), "forked") != NULL);
    EXPECT(bw_pd_create(device, &none) == BW_EFORK && none == NULL);
    EXPECT(bw_qp_query(ours.qp, &attr) == BW_EFORK);
    EXPECT(bw_qp_init(theirs.qp, NULL) == BW_EFORK);
    EXPECT(bw_qp_destroy(NULL) == BW_ENULL);
    /* In any order, and whatever uses it. */
    OK(bw_device_close(device));
    destroy_all();
}

/* Nothing but exit(): handlers and destructors run. */
static void leaves(void)
{
    EXPECT(atexit(destroy_all) == 0);
}

static void forks_again(void)
{
    pid_t pid = fork();

    EXPECT(pid >= 0);
    if (pid == 0) {
        talk_with_parent();
        exit(EXIT_SUCCESS);
    }
    /* Its parent does not wait: the grandchild lives on. */
}

static void becomes_a_daemon(void)
{
    EXPECT(daemon(1, 1) == 0);
    destroy_all();
    talk_with_parent();
}

/* Uses the device that a whole process shares. */
static void uses_soft(void)
{
    static struct end a, b;
    bw_device *soft_device;
    bw_pd *domain;
    uint64_t word = 7;
    bw_wc wc;

    OK(bw_device_open("soft", &soft_device));
    OK(bw_pd_create(soft_device, &domain));
    a = end_create(soft_device, domain, BW_QPT_RC, NULL, NULL);
    b = end_create(soft_device, domain, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    OK(bw_post_write_inline(a.qp, 1, &word, 8, b.memory.addr, b.memory.rkey, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a.qp));
    poll_until(&a, &wc);
    EXPECT(*(uint64_t *)(uintptr_t)b.memory.addr == 7);
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(domain));
    OK(bw_device_close(soft_device));
}

static void starts_programs(const char *program)
{
    char self[512], child[] = "child";
    char *args[] = {self, child, NULL};
    int status;
    pid_t pid;

    snprintf(self, sizeof self, "%s", program);
    EXPECT(posix_spawn(&pid, self, NULL, NULL, args, environ) == 0);
    goes_on();
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
    goes_on();
    /* These need a shell. */
    if (access("/bin/sh", X_OK) == 0) {
        char line[64] = "";
        FILE *pipe = popen("echo through a pipe", "r");

        EXPECT(pipe != NULL);
        goes_on();
        EXPECT(fgets(line, sizeof line, pipe) && strcmp(line, "through a pipe\n") == 0);
        EXPECT(pclose(pipe) == 0);
        EXPECT(system("exit 3") != -1);
        goes_on();
    }
}

/* No descriptor of the library is passed on to a program that is started. */
static int started(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        char path[64], target[256];
        ssize_t length;

        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        length = readlink(path, target, sizeof target - 1);
        if (length < 0)
            continue;
        target[length] = 0;
        EXPECT(strstr(target, "memfd") == NULL && strstr(target, "event") == NULL);
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return started();
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    if (argc == 3)
        snprintf(name, sizeof name, "%s", argv[2]);
    else
        snprintf(name, sizeof name, "soft:c-fork-%ld", (long)getpid());
    OK(bw_device_open(name, &device));
    OK(bw_pd_create(device, &pd));
    ours = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    theirs = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&ours, &theirs);
    end_connect(&theirs, &ours);
    goes_on();
    with_child(inherits, NULL);
    with_child(leaves, NULL);
    with_child(uses_soft, NULL);
    for (int round = 0; round < 3; round++)
        with_child(talk_with_parent, talk_with_child);
    with_child(forks_again, talk_with_child);
    with_child(becomes_a_daemon, talk_with_child);
    uses_soft();
    with_child(uses_soft, NULL);
    starts_programs(argv[0]);
    destroy_all();
    return 0;
}
