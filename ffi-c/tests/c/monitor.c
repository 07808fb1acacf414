/* Another thread reads counters, of a queue pair, of links, and of a set, while this one posts and polls. */
#include "link.h"

#include <pthread.h>

static bw_device *device;
static bw_pd *pd;

struct reading {
    bw_monitor *monitor;
    bw_queue_counters queues;
    bw_link_counters link;
    int code;
};

static void *read_all(void *context)
{
    struct reading *reading = (struct reading *)context;

    memset(&reading->queues, 0, sizeof reading->queues);
    memset(&reading->link, 0, sizeof reading->link);
    reading->queues.size = sizeof reading->queues;
    reading->link.size = sizeof reading->link;
    OK(bw_monitor_read_queues(reading->monitor, &reading->queues));
    reading->code = bw_monitor_read_link(reading->monitor, &reading->link);
    return NULL;
}

static struct reading read_in_thread(bw_monitor *monitor)
{
    struct reading reading;
    pthread_t thread;

    memset(&reading, 0, sizeof reading);
    reading.monitor = monitor;
    EXPECT(pthread_create(&thread, NULL, read_all, &reading) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
    return reading;
}

static void queue_pairs(void)
{
    struct end one = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    bw_monitor *monitor;
    struct reading reading;
    bw_wc wc;

    end_connect(&one, &one);
    EXPECT(bw_qp_data_in_order(one.qp, BW_WR_RDMA_WRITE) == 1);
    EXPECT(bw_qp_data_in_order(one.qp, BW_WR_NOP) == 0);
    EXPECT(bw_qp_data_in_order(one.qp, 77) == BW_EINVAL);
    OK(bw_qp_monitor(one.qp, &monitor));
    for (unsigned at = 0; at < 3; at++) {
        OK(bw_post_write_inline(one.qp, at, "words", 5, one.memory.addr, one.memory.rkey, BW_SEND_SIGNALED));
        OK(bw_ring_sq(one.qp));
    }
    EXPECT(read_in_thread(monitor).queues.sends_in_flight == 3);
    while (read_in_thread(monitor).queues.sends_in_flight != 0)
        bw_poll_one(one.cq, &wc);
    OK(bw_qp_count(one.qp));
    reading = read_in_thread(monitor);
    EXPECT(reading.code == BW_EUNSUPPORTED);
    EXPECT(reading.queues.requests[BW_WR_RDMA_WRITE] == 3);
    EXPECT(reading.queues.bytes[BW_WR_RDMA_WRITE] == 15);
    EXPECT(reading.queues.requests[BW_WR_SEND] == 0 && reading.queues.send_slots != 0);
    end_destroy(&one);
    reading = read_in_thread(monitor);
    EXPECT(reading.queues.requests[BW_WR_RDMA_WRITE] == 3 && reading.queues.send_slots == 0);
    OK(bw_monitor_destroy(monitor));
}

static void poll_set(bw_link_set *set, unsigned *reported)
{
    bw_link_set_wc wcs[8];
    int count = bw_link_set_poll(set, wcs, 8);

    EXPECT(count >= 0);
    *reported += (unsigned)count;
}

static void links(void)
{
    struct side peer;
    bw_link_set *set;
    bw_link_id link;
    bw_link_set_init init;
    bw_link_init there;
    bw_monitor *of_set, *of_link, *of_peer;
    bw_device_counters counters;
    struct reading reading;
    uint64_t number = 1;
    unsigned reported = 0;

    OK(bw_link_set_init_default(&init, sizeof init));
    init.check_every = 1;
    OK(bw_link_set_create(pd, &init, &set));
    OK(bw_link_set_monitor(set, &of_set));
    EXPECT(read_in_thread(of_set).queues.links == 0);
    side_memory(&peer, pd, &there);
    OK(bw_link_set_join_pair(set, NULL, &link, pd, &there, &peer.link));
    OK(bw_link_set_monitor_link(set, link, &of_link));
    OK(bw_link_monitor(peer.link, &of_peer));
    reading = read_in_thread(of_set);
    EXPECT(reading.queues.links == 1 && reading.queues.ready == 0);
    while (read_in_thread(of_set).queues.ready == 0 || read_in_thread(of_peer).queues.ready == 0) {
        poll_set(set, &reported);
        side_poll(&peer);
    }
    EXPECT(read_in_thread(of_link).link.recovered == 1 && read_in_thread(of_peer).link.recovered == 1);
    /* The peer has no receive yet. */
    OK(bw_link_set_post_send_inline(set, link, number, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
    OK(bw_link_set_ring_sq(set, link));
    EXPECT(read_in_thread(of_link).queues.sends_in_flight == 1);
    memset(&counters, 0, sizeof counters);
    counters.size = sizeof counters;
    OK(bw_device_query_counters(device, &counters));
    EXPECT(counters.rnr_naks != 0 && counters.rnr_naks != BW_COUNTER_UNKNOWN);
    EXPECT(counters.retries == 0);
    side_receive(&peer);
    while (reported == 0 || peer.received[number] == 0) {
        poll_set(set, &reported);
        side_poll(&peer);
    }
    /* Each check counts a few links, so that counts come some polls later. */
    for (int poll = 0; poll < 100000; poll++) {
        if (read_in_thread(of_set).queues.requests[BW_WR_SEND] == 1 && read_in_thread(of_peer).queues.receives == 1)
            break;
        poll_set(set, &reported);
        side_poll(&peer);
    }
    reading = read_in_thread(of_set);
    EXPECT(reading.code == BW_OK && reading.link.recovered == 1);
    EXPECT(reading.queues.requests[BW_WR_SEND] == 1 && reading.queues.bytes[BW_WR_SEND] == 8);
    EXPECT(read_in_thread(of_link).queues.requests[BW_WR_SEND] == 1);
    EXPECT(read_in_thread(of_peer).queues.receives == 1);
    OK(bw_link_set_remove(set, link));
    side_end(&peer);
    OK(bw_link_set_destroy(set));
    EXPECT(read_in_thread(of_set).queues.requests[BW_WR_SEND] == 1);
    EXPECT(read_in_thread(of_peer).queues.receives == 1);
    OK(bw_monitor_destroy(of_peer));
    OK(bw_monitor_destroy(of_link));
    OK(bw_monitor_destroy(of_set));
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    queue_pairs();
    links();
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
