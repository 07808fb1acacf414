/* The hook of the log: what it is called with, on which threads, and that it may call the library. */
#include "link.h"

#include <pthread.h>

static bw_device *device;
static bw_pd *pd;
static bw_pd *other;

struct lines {
    unsigned count[BW_LOG_DEBUG + 1];
    char last[BW_LOG_DEBUG + 1][1024];
};

static struct lines seen;

static void note(void *context, uint32_t level, const char *text)
{
    struct lines *lines = (struct lines *)context;

    EXPECT(level >= BW_LOG_ERROR && level <= BW_LOG_DEBUG && text != NULL);
    EXPECT(strchr(text, '\n') == NULL);
    lines->count[level]++;
    snprintf(lines->last[level], sizeof lines->last[level], "%s", text);
}

/* Calls the library from the hook: another link connects, fails and ends there. */
static void nested(void *context, uint32_t level, const char *text)
{
    struct side a, b;
    bw_link_init here, there;
    bw_device *another;

    note(context, level, text);
    another = soft(BW_CLOCK_REAL);
    OK(bw_device_close(another));
    side_memory(&a, other, &here);
    side_memory(&b, other, &there);
    there.seed = 1;
    OK(bw_link_create_pair(other, &here, &a.link, other, &there, &b.link));
    both_ready(&a, &b);
    side_end(&a);
    side_end(&b);
    /* Its own records are dropped. */
    OK(bw_set_log_hook(BW_LOG_DEBUG, note, context));
}

static void fail(struct side *side)
{
    bw_fault fault;

    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    fault.number = BW_EVENT_QP_FATAL;
    OK(bw_link_report_fault(side->link, &fault));
}

static void *open_device(void *unused)
{
    bw_device *another = soft(BW_CLOCK_REAL);

    (void)unused;
    OK(bw_device_close(another));
    return NULL;
}

int main(void)
{
    struct side a, b;
    bw_link_init here, there;
    bw_link *none;
    bw_device *another;
    pthread_t thread;
    uint64_t number = 1;

    EXPECT(bw_set_log_hook(0, note, &seen) == BW_EINVAL);
    EXPECT(bw_set_log_hook(BW_LOG_DEBUG + 1, NULL, NULL) == BW_EINVAL);
    OK(bw_set_log_hook(BW_LOG_INFO, note, &seen));
    device = soft(BW_CLOCK_REAL);
    EXPECT(seen.count[BW_LOG_INFO] == 1 && strstr(seen.last[BW_LOG_INFO], "device soft") != NULL);
    EXPECT(bw_device_open("nothing", &another) != BW_OK && seen.count[BW_LOG_DEBUG] == 0);
    OK(bw_pd_create(device, &pd));
    OK(bw_pd_create(device, &other));
    side_memory(&a, pd, &here);
    side_memory(&b, pd, &there);
    there.seed = 1;
    OK(bw_link_create_pair(pd, &here, &a.link, pd, &there, &b.link));
    both_ready(&a, &b);
    EXPECT(seen.count[BW_LOG_INFO] == 3 && strstr(seen.last[BW_LOG_INFO], "connected") != NULL);
    /* The data path logs nothing. */
    side_receive(&b);
    OK(bw_link_post_send_inline(a.link, 1, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
    OK(bw_link_ring_sq(a.link));
    a.posted++;
    while (!a.reported[1])
        side_poll(&a);
    EXPECT(seen.count[BW_LOG_INFO] == 3 && seen.count[BW_LOG_WARN] == 0);
    /* A fault, under the name of docs/faults.md. */
    OK(bw_set_log_hook(BW_LOG_DEBUG, nested, &seen));
    fail(&a);
    EXPECT(seen.count[BW_LOG_WARN] == 1);
    EXPECT(strstr(seen.last[BW_LOG_WARN], "QP_FATAL") != NULL);
    EXPECT(seen.count[BW_LOG_INFO] == 3);
    do {
        side_poll(&a);
        side_poll(&b);
    } while (side_info(&a).epoch != 2 || side_info(&b).epoch != 2);
    both_ready(&a, &b);
    EXPECT(strstr(seen.last[BW_LOG_INFO], "recovered from") != NULL);
    EXPECT(seen.count[BW_LOG_ERROR] == 0);
    /* A set-up call that fails. */
    memset(&here, 0, sizeof here);
    OK(bw_link_init_default(&here, sizeof here));
    bw_connect_attr connect;
    OK(bw_connect_attr_default(&connect, sizeof connect));
    connect.port_num = 77;
    here.connect = &connect;
    EXPECT(bw_link_create_pair(pd, &here, &none, pd, NULL, &none) != BW_OK);
    EXPECT(seen.count[BW_LOG_DEBUG] >= 1 && strstr(seen.last[BW_LOG_DEBUG], "a link: ") != NULL);
    /* Records of less urgent levels are not passed on, from another thread either. */
    memset(&seen, 0, sizeof seen);
    OK(bw_set_log_hook(BW_LOG_WARN, note, &seen));
    EXPECT(pthread_create(&thread, NULL, open_device, NULL) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(seen.count[BW_LOG_INFO] == 0);
    OK(bw_set_log_hook(BW_LOG_INFO, note, &seen));
    EXPECT(pthread_create(&thread, NULL, open_device, NULL) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(seen.count[BW_LOG_INFO] == 1);
    OK(bw_link_close(a.link, 0));
    while (bw_link_get_state(a.link) < BW_LINK_CLOSED || bw_link_get_state(b.link) < BW_LINK_CLOSED) {
        side_poll(&a);
        side_poll(&b);
    }
    EXPECT(seen.count[BW_LOG_INFO] == 3 && seen.count[BW_LOG_ERROR] == 0);
    OK(bw_set_log_hook(BW_LOG_INFO, NULL, NULL));
    side_end(&a);
    side_end(&b);
    EXPECT(seen.count[BW_LOG_INFO] == 3);
    OK(bw_pd_destroy(other));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
