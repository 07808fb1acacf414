/* What no completion reports: a request that misses its deadline, a lost peer of an idle link. */
#include "link.h"

static bw_device *device;
static bw_pd *pd;
static struct side a, b;

enum { MILLISECOND = 1000000 };

struct seen {
    unsigned deadline, keep_alive, other;
};

static void on_fault(void *context, const bw_fault *fault, const bw_class *means, uint64_t epoch)
{
    struct seen *seen = (struct seen *)context;

    EXPECT(epoch >= 1);
    if (fault->family == BW_FAMILY_LINK && fault->number == BW_DEADLINE_MISSED) {
        EXPECT(strcmp(means->name, "DEADLINE_MISSED") == 0);
        EXPECT(means->scope == BW_SCOPE_CONNECTION && means->recovery == BW_RECOVERY_RESET_QP);
        seen->deadline++;
    } else if (fault->family == BW_FAMILY_LINK && fault->number == BW_KEEP_ALIVE_MISSED) {
        EXPECT(strcmp(means->name, "KEEP_ALIVE_MISSED") == 0);
        seen->keep_alive++;
    } else {
        seen->other++;
    }
}

static void make(uint64_t deadline_ns, uint64_t keep_alive_ns, struct seen *seen)
{
    bw_link_init here, there;
    bw_connect_attr connect;

    side_memory(&a, pd, &here);
    side_memory(&b, pd, &there);
    there.seed = 1;
    EXPECT(here.request_deadline_ns == 0 && here.keep_alive_ns == 0);
    OK(bw_connect_attr_default(&connect, sizeof connect));
    /* A receive is waited for without end. */
    connect.rnr_retry = 7;
    here.connect = &connect;
    here.request_deadline_ns = deadline_ns;
    here.keep_alive_ns = keep_alive_ns;
    OK(bw_link_create_pair(pd, &here, &a.link, pd, &there, &b.link));
    memset(seen, 0, sizeof *seen);
    OK(bw_link_on_fault(a.link, on_fault, seen));
    both_ready(&a, &b);
}

/* A SEND without a receive is a fault of the link, and reported as not executed. */
static void deadline(void)
{
    struct seen seen;
    const uint64_t number = 1;

    make(20 * MILLISECOND, 0, &seen);
    OK(bw_link_post_send_inline(a.link, 1, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_NEVER));
    OK(bw_link_ring_sq(a.link));
    a.posted++;
    while (!a.reported[1]) {
        side_poll(&a);
        side_poll(&b);
    }
    EXPECT(a.last[1].outcome == BW_OUTCOME_NOT_EXECUTED);
    EXPECT(seen.deadline == 1 && seen.keep_alive == 0 && seen.other == 0);
    both_ready(&a, &b);
    EXPECT(side_info(&a).epoch == 2);
    side_end(&a);
    side_end(&b);
}

/* A keep-alive that is not acknowledged is one, too; one that is acknowledged is not reported. */
static void keep_alive(void)
{
    struct seen seen;
    bw_soft_step step;

    make(0, 20 * MILLISECOND, &seen);
    memset(&step, 0, sizeof step);
    step.trigger = BW_AT_REQUEST;
    /* The third. */
    step.at = 3;
    step.qp_num = side_info(&a).qp_num;
    step.fault = BW_FAULT_DELAY;
    step.value = UINT64_C(3600) * 1000 * MILLISECOND;
    OK(bw_soft_inject(device, &step, 1));
    while (seen.keep_alive == 0) {
        side_poll(&a);
        side_poll(&b);
    }
    both_ready(&a, &b);
    EXPECT(seen.deadline == 0 && a.retired == 0);
    side_end(&a);
    side_end(&b);
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    deadline();
    keep_alive();
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
