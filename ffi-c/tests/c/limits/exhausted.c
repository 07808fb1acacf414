/*
 * Set-up where the system has no more memory, descriptors, threads or locked memory: each call gives an
 * error that says what to do, leaves nothing behind, and what was there before goes on.
 *
 * Not with a library under a sanitizer, nor Valgrind: these need address space themselves.
 */
#define _GNU_SOURCE
#include "../program.h"
#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* A user without other processes: root may have as many threads, and lock as much, as it likes. */
enum { NOBODY_ELSE = 61235 };
enum { KIB = 1024, MIB = 1024 * KIB };

/* What was there before: a queue pair that is connected with itself. */
static bw_device *device;
static bw_pd *pd;
static struct end there;
static bw_region *for_slab;
static const bw_slab_class BLOCKS = {64, 1 << 16};

static void is_there(void)
{
    bw_region_attr region;

    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    there = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&there, &there);
    OK(bw_region_attr_default(&region, sizeof region));
    region.pages = BW_PAGES_BASE;
    region.length = 8 * MIB;
    OK(bw_region_create(pd, &region, &for_slab));
}

static void goes_on(void)
{
    static uint64_t written;
    bw_wc wc;

    written++;
    OK(bw_post_write_inline(there.qp, written, &written, sizeof written, there.memory.addr,
                            there.memory.rkey, BW_SEND_SIGNALED));
    OK(bw_ring_sq(there.qp));
    EXPECT(bw_poll_one(there.cq, &wc) == 1);
    EXPECT(wc.status == BW_WC_SUCCESS && wc.wr_id == written);
    EXPECT(memcmp(end_bytes(&there, 0), &written, sizeof written) == 0);
}

/* The steps. What they make they destroy. */

static int open_soft(uint32_t mode, uint32_t threads)
{
    bw_soft_config config;
    bw_device *made;
    int code;

    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.mode = mode;
    config.threads = threads;
    if ((code = bw_device_open_soft(&config, &made)) == BW_OK)
        OK(bw_device_close(made));
    return code;
}

static int a_device(void)
{
    return open_soft(BW_SOFT_INLINE, 0);
}

static int an_engine(void)
{
    return open_soft(BW_SOFT_ENGINE, 3);
}

static int a_node(void)
{
    bw_device *made;
    char name[32];
    int code;

    snprintf(name, sizeof name, "exhausted-c-%d", (int)getpid());
    if ((code = bw_device_join(name, NULL, &made)) == BW_OK)
        OK(bw_device_close(made));
    return code;
}

static int a_completion_queue(void)
{
    bw_cq_attr attr;
    bw_cq *made;
    int code;

    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.entries = 1 << 17;
    if ((code = bw_cq_create(device, &attr, &made)) == BW_OK)
        OK(bw_cq_destroy(made));
    return code;
}

static bw_qp_init_attr large(void)
{
    bw_qp_init_attr init;

    OK(bw_qp_init_attr_default(&init, sizeof init));
    init.max_send_wr = init.max_recv_wr = 8192;
    init.reserve_cq = 0;
    return init;
}

static int a_queue_pair(void)
{
    bw_qp_init_attr init = large();
    bw_qp *made;
    int code;

    if ((code = bw_qp_create(pd, there.cq, there.cq, &init, &made)) == BW_OK)
        OK(bw_qp_destroy(made));
    return code;
}

static int a_shared_receive_queue(void)
{
    bw_srq_init_attr init;
    bw_srq *made;
    int code;

    OK(bw_srq_init_attr_default(&init, sizeof init));
    init.max_wr = 16384;
    if ((code = bw_srq_create(pd, &init, &made)) == BW_OK)
        OK(bw_srq_destroy(made, NULL, NULL));
    return code;
}

static int create_region(uint32_t lock)
{
    bw_region_attr attr;
    bw_region *made;
    int code;

    OK(bw_region_attr_default(&attr, sizeof attr));
    attr.pages = BW_PAGES_BASE;
    attr.length = MIB;
    attr.lock = lock;
    if ((code = bw_region_create(pd, &attr, &made)) == BW_OK)
        OK(bw_region_destroy(made));
    return code;
}

static int a_region(void)
{
    return create_region(0);
}

static int a_locked_region(void)
{
    return create_region(1);
}

static int a_slab(void)
{
    bw_slab *made;
    int code;

    if ((code = bw_slab_create(for_slab, &BLOCKS, 1, &made)) == BW_OK)
        OK(bw_slab_destroy(made));
    return code;
}

static int create_links(const bw_qp_init_attr *qp, uint32_t sleeps)
{
    bw_link *one, *other;
    bw_link_init init;
    int code;

    OK(bw_link_init_default(&init, sizeof init));
    init.qp = qp;
    init.sleeps = sleeps;
    if ((code = bw_link_create_pair(pd, &init, &one, pd, &init, &other)) == BW_OK) {
        OK(bw_link_destroy(one));
        OK(bw_link_destroy(other));
    }
    return code;
}

static int links(void)
{
    bw_qp_init_attr qp = large();

    return create_links(&qp, 0);
}

static int links_that_sleep(void)
{
    return create_links(NULL, 1);
}

static int a_completion_channel(void)
{
    bw_comp_channel *made;
    int code;

    if ((code = bw_comp_channel_create(device, &made)) == BW_OK)
        OK(bw_comp_channel_destroy(made));
    return code;
}

static int a_tcp_listener(void)
{
    bw_tcp_listener *made;
    int code;

    if ((code = bw_tcp_listener_create("127.0.0.1", 0, &made)) == BW_OK)
        OK(bw_tcp_listener_destroy(made));
    return code;
}

static int a_cm_channel(void)
{
    bw_cm_channel *made;
    int code;

    if ((code = bw_cm_channel_create("soft", &made)) == BW_OK)
        OK(bw_cm_channel_destroy(made));
    return code;
}

/* What there is. */
struct left {
    unsigned descriptors, threads;
    bw_resources resources;
};

static unsigned count(const char *folder)
{
    DIR *dir = opendir(folder);
    unsigned count = 0;

    EXPECT(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static struct left what_is_left(void)
{
    struct left left;

    memset(&left, 0, sizeof left);
    left.descriptors = count("/proc/self/fd");
    left.threads = count("/proc/self/task") - 2;
    left.resources.size = sizeof left.resources;
    OK(bw_device_resources(device, &left.resources));
    return left;
}

static rlim_t address_space(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages;

    int read;

    EXPECT(file != NULL);
    read = fscanf(file, "%lu", &pages);
    EXPECT(read == 1);
    fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* The step fails under the limit, and not without it. */
static void step(const char *what, int resource, rlim_t limit, int (*make)(void))
{
    struct rlimit before, under;
    struct left left = what_is_left(), then;
    char text[512];
    int code;

    EXPECT(getrlimit(resource, &before) == 0);
    under = before;
    under.rlim_cur = limit;
    EXPECT(setrlimit(resource, &under) == 0);
    code = make();
    snprintf(text, sizeof text, "%s", bw_last_error());
    goes_on();
    EXPECT(setrlimit(resource, &before) == 0);

    printf("%s: %d (%s)\n", what, code, text);
    EXPECT(code < 0 && code != BW_EINTERNAL);
    EXPECT(strstr(text, "ulimit") != NULL);
    then = what_is_left();
    EXPECT(memcmp(&then, &left, sizeof left) == 0);
    OK(make());
    goes_on();
}

static void no_address_space(void)
{
    static const struct {
        const char *what;
        int (*make)(void);
    } steps[] = {
        {"a device", a_device},
        {"an engine", an_engine},
        {"a node", a_node},
        {"a completion queue", a_completion_queue},
        {"a queue pair", a_queue_pair},
        {"a shared receive queue", a_shared_receive_queue},
        {"a region", a_region},
        {"a slab", a_slab},
        {"links", links},
    };

    is_there();
    /* More than the steps' small change, less than what they ask for. */
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        step(steps[i].what, RLIMIT_AS, address_space() + 512 * KIB, steps[i].make);
}

static void no_descriptor(void)
{
    is_there();
    /* What is open stays open. */
    step("a device", RLIMIT_NOFILE, 0, a_device);
    step("an engine", RLIMIT_NOFILE, 0, an_engine);
    step("a node", RLIMIT_NOFILE, 0, a_node);
    step("a completion channel", RLIMIT_NOFILE, 0, a_completion_channel);
    step("links that sleep", RLIMIT_NOFILE, 0, links_that_sleep);
    step("a TCP listener", RLIMIT_NOFILE, 0, a_tcp_listener);
    step("a CM channel", RLIMIT_NOFILE, 0, a_cm_channel);
}

static int is_somebody_else(void)
{
    if (geteuid() != 0 || setuid(NOBODY_ELSE) == 0)
        return 1;
    printf("left out: cannot become another user\n");
    return 0;
}

static void no_thread(void)
{
    if (!is_somebody_else())
        return;
    is_there();
    step("an engine", RLIMIT_NPROC, what_is_left().threads, an_engine);
    /* Those that did start end again. */
    step("an engine's last thread", RLIMIT_NPROC, what_is_left().threads + 2, an_engine);
    step("a node", RLIMIT_NPROC, what_is_left().threads, a_node);
}

static void no_locked_memory(void)
{
    if (!is_somebody_else())
        return;
    is_there();
    step("a locked region", RLIMIT_MEMLOCK, 64 * KIB, a_locked_region);
}

/* In a process of its own. */
static void in_child(void (*run)(void))
{
    int status;
    pid_t child;

    fflush(stdout);
    child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        run();
        exit(EXIT_SUCCESS);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
}

int main(void)
{
#ifdef __GLIBC__
    /* So that what is large is asked of the system, and not taken from what the allocator keeps. */
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 64 * KIB);
#endif
    in_child(no_address_space);
    in_child(no_descriptor);
    in_child(no_thread);
    in_child(no_locked_memory);
    return 0;
}
