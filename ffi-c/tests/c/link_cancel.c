/* Requests that are cancelled, and deadlines of single requests: on a link, and on a link of a set. */
#include "link.h"

static bw_device *device;
static bw_pd *pd;

enum { MILLISECOND = 1000000, FIRST = RECEIVES };

/* A receive is waited for without end. */
static void patient(bw_connect_attr *connect, bw_link_init *init)
{
    OK(bw_connect_attr_default(connect, sizeof *connect));
    connect->rnr_retry = 7;
    init->connect = connect;
}

static void send(struct side *side, uint64_t number)
{
    OK(bw_link_post_send_inline(side->link, number, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
    OK(bw_link_ring_sq(side->link));
    side->posted++;
}

static void links(void)
{
    struct side a, b;
    bw_link_init here, there;
    bw_connect_attr connect;

    side_memory(&a, pd, &here);
    side_memory(&b, pd, &there);
    there.seed = 1;
    patient(&connect, &here);
    OK(bw_link_create_pair(pd, &here, &a.link, pd, &there, &b.link));
    EXPECT(bw_link_cancel(a.link, 1) == BW_ENOREQUEST);
    both_ready(&a, &b);
    side_receive(&a);
    side_receive(&a);
    for (uint64_t number = 1; number <= 4; number++)
        send(&a, number);
    EXPECT(bw_link_cancel(a.link, 2) == BW_CANCEL_REQUESTED);
    EXPECT(bw_link_cancel(a.link, 2) == BW_CANCEL_REPEATED);
    EXPECT(bw_link_cancel(a.link, 5) == BW_ENOREQUEST);
    EXPECT(bw_link_cancel_recv(a.link, 2) == BW_ENOREQUEST);
    EXPECT(bw_link_cancel_recv(a.link, FIRST) == BW_CANCEL_REQUESTED);
    while (!a.reported[2] || !a.reported[FIRST]) {
        side_poll(&a);
        side_poll(&b);
    }
    both_ready(&a, &b);
    EXPECT(side_info(&a).epoch == 2);
    EXPECT(a.last[2].outcome == BW_OUTCOME_NOT_EXECUTED);
    EXPECT(a.last[FIRST].outcome == BW_OUTCOME_NOT_EXECUTED);
    EXPECT(bw_link_cancel(a.link, 2) == BW_ENOREQUEST);
    /* Those with deadlines go; the others wait. */
    EXPECT(bw_link_cancel_after(a.link, 3, MILLISECOND) == BW_CANCEL_REQUESTED);
    EXPECT(bw_link_cancel_after(a.link, 4, UINT64_MAX) == BW_CANCEL_REQUESTED);
    EXPECT(bw_link_cancel_after(a.link, 5, 0) == BW_ENOREQUEST);
    EXPECT(bw_link_cancel_recv_after(a.link, FIRST + 1, MILLISECOND) == BW_CANCEL_REQUESTED);
    EXPECT(bw_link_cancel_recv_after(a.link, FIRST, 0) == BW_ENOREQUEST);
    while (!a.reported[3] || !a.reported[FIRST + 1]) {
        side_poll(&a);
        side_poll(&b);
    }
    EXPECT(a.last[3].outcome == BW_OUTCOME_NOT_EXECUTED);
    both_ready(&a, &b);
    side_receive(&b);
    side_receive(&b);
    while (!a.reported[1] || !a.reported[4]) {
        side_poll(&a);
        side_poll(&b);
    }
    EXPECT(a.last[1].outcome == BW_OUTCOME_EXECUTED && a.last[4].outcome == BW_OUTCOME_EXECUTED);
    EXPECT(b.received[1] == 1 && b.received[2] == 0 && b.received[3] == 0 && b.received[4] == 1);
    EXPECT(side_counters(&a).cancelled == 2 && side_counters(&a).deadlines_passed == 2);
    OK(bw_link_close(a.link, 0));
    while (bw_link_get_state(a.link) < BW_LINK_CLOSED)
        side_poll(&a);
    EXPECT(bw_link_cancel(a.link, 1) == BW_EENDED);
    EXPECT(bw_link_cancel_recv_after(a.link, FIRST, 0) == BW_EENDED);
    side_end(&a);
    side_end(&b);
}

static uint32_t outcomes[8];
static unsigned reported;

static void poll_set(bw_link_set *set, bw_link_id link, struct side *peer)
{
    bw_link_set_wc wcs[8];
    int count = bw_link_set_poll(set, wcs, 8);

    EXPECT(count >= 0);
    for (int at = 0; at < count; at++) {
        EXPECT(wcs[at].link == link && wcs[at].wc.wr_id < 8);
        EXPECT(outcomes[wcs[at].wc.wr_id] == UINT32_MAX);
        outcomes[wcs[at].wc.wr_id] = wcs[at].wc.outcome;
        reported++;
    }
    side_poll(peer);
}

static uint32_t state_of(bw_link_set *set, bw_link_id link)
{
    bw_link_info info;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_link_set_query_link(set, link, &info));
    return info.state;
}

static void sets(void)
{
    struct side peer;
    bw_link_set *set = NULL;
    bw_link_id link = 0;
    bw_link_init here, there;
    bw_connect_attr connect;
    bw_sge sge;

    memset(outcomes, 0xff, sizeof outcomes);
    OK(bw_link_set_create(pd, NULL, &set));
    OK(bw_link_init_default(&here, sizeof here));
    patient(&connect, &here);
    side_memory(&peer, pd, &there);
    there.seed = 1;
    OK(bw_link_set_join_pair(set, &here, &link, pd, &there, &peer.link));
    while (state_of(set, link) != BW_LINK_READY || bw_link_get_state(peer.link) != BW_LINK_READY)
        poll_set(set, link, &peer);
    for (uint64_t number = 1; number <= 3; number++)
        OK(bw_link_set_post_send_inline(set, link, number, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
    OK(bw_link_set_ring_sq(set, link));
    sge = side_sge(&peer, 1, 8);
    for (uint64_t number = 4; number <= 5; number++)
        OK(bw_link_set_post_recv_one(set, link, number, &sge));
    OK(bw_link_set_ring_rq(set, link));
    EXPECT(bw_link_set_cancel(set, link, 1) == BW_CANCEL_REQUESTED);
    EXPECT(bw_link_set_cancel(set, link, 1) == BW_CANCEL_REPEATED);
    EXPECT(bw_link_set_cancel(set, link, 4) == BW_ENOREQUEST);
    EXPECT(bw_link_set_cancel_recv(set, link, 4) == BW_CANCEL_REQUESTED);
    EXPECT(bw_link_set_cancel_after(set, link, 2, MILLISECOND) == BW_CANCEL_REQUESTED);
    EXPECT(bw_link_set_cancel_recv_after(set, link, 5, MILLISECOND) == BW_CANCEL_REQUESTED);
    while (reported < 4)
        poll_set(set, link, &peer);
    EXPECT(outcomes[3] == UINT32_MAX);
    for (unsigned number = 1; number <= 5; number++)
        EXPECT(number == 3 || outcomes[number] == BW_OUTCOME_NOT_EXECUTED);
    while (state_of(set, link) != BW_LINK_READY || bw_link_get_state(peer.link) != BW_LINK_READY)
        poll_set(set, link, &peer);
    side_receive(&peer);
    while (reported < 5)
        poll_set(set, link, &peer);
    EXPECT(outcomes[3] == BW_OUTCOME_EXECUTED && peer.received[3] == 1);
    OK(bw_link_set_remove(set, link));
    EXPECT(bw_link_set_cancel(set, link, 1) == BW_ENOLINK);
    EXPECT(bw_link_set_cancel_recv(set, link, 1) == BW_ENOLINK);
    EXPECT(bw_link_set_cancel_after(set, link, 1, 0) == BW_ENOLINK);
    EXPECT(bw_link_set_cancel_recv_after(set, link, 1, 0) == BW_ENOLINK);
    side_end(&peer);
    OK(bw_link_set_destroy(set));
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    links();
    sets();
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
