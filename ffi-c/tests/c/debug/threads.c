/* Two threads in one queue at once, with a library that has debug assertions: one gets an error. */
#include "../program.h"
#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 100000000 };

static struct end end;
static atomic_int met;
static int (*enter)(void);

static int poll_it(void)
{
    bw_completion completion;

    return bw_poll_completion(end.cq, &completion);
}

static int ring_sends(void) { return bw_ring_sq(end.qp); }
static int ring_receives(void) { return bw_ring_rq(end.qp); }

static void *again_and_again(void *none)
{
    for (int i = 0; i < MOST && !met; i++) {
        int code = enter();

        EXPECT(code == 0 || code == BW_ECONCURRENT);
        if (code == BW_ECONCURRENT)
            met = 1;
    }
    return none;
}

int main(void)
{
    int (*const queues[])(void) = {poll_it, ring_sends, ring_receives};
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;

    OK(bw_pd_create(device, &pd));
    end = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        pthread_t other;

        met = 0;
        enter = queues[i];
        EXPECT(pthread_create(&other, NULL, again_and_again, NULL) == 0);
        again_and_again(NULL);
        EXPECT(pthread_join(other, NULL) == 0);
        EXPECT(met);
        OK(enter()); /* the thread that got in has left */
    }
    end_destroy(&end);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
