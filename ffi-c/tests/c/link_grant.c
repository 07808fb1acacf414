/* Memory that is lent to a peer for one exchange: by a link, and by a link of a set. */
#include "link.h"
#include <stddef.h>

static bw_device *device;
static bw_pd *pd;

enum { MILLISECOND = 1000000, LENT = 60, WRITES = 1000, ANSWERS = 1500 };
static const uint32_t both = BW_ACCESS_REMOTE_READ | BW_ACCESS_REMOTE_WRITE;

struct request {
    uint64_t addr;
    uint32_t rkey;
    uint32_t number;
};

/* Lends the peer a slot. */
static struct request lend(struct side *side, uint32_t number)
{
    bw_sge lent = side_sge(side, LENT, SLOT);
    struct request request = {lent.addr, 0, number};

    memset(side_word(side, LENT), 0, SLOT);
    OK(bw_link_post_send_grant(side->link, number, &lent, both, &request, sizeof request,
                               offsetof(struct request, rkey), 0));
    OK(bw_link_ring_sq(side->link));
    side->posted++;
    EXPECT(request.rkey != 0);
    return request;
}

static void write_to(struct side *side, const struct request *request)
{
    uint64_t word = request->number;

    OK(bw_link_post_write_inline(side->link, WRITES + request->number, &word, sizeof word, request->addr,
                                 request->rkey, BW_SEND_SIGNALED, BW_REPLAY_NEVER));
    OK(bw_link_ring_sq(side->link));
    side->posted++;
}

/* Gives the memory back with the answer. */
static void answer(struct side *side, const struct request *request)
{
    uint64_t word = request->number;
    bw_sge sge = {(uint64_t)(uintptr_t)&word, sizeof word, 0};
    const bw_send_wr *bad;
    bw_send_wr wr;

    memset(&wr, 0, sizeof wr);
    wr.wr_id = ANSWERS + request->number;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = BW_WR_SEND_WITH_INV;
    wr.send_flags = BW_SEND_SIGNALED | BW_SEND_INLINE;
    wr.invalidate_rkey = request->rkey;
    OK(bw_link_post_send(side->link, &wr, 1, BW_REPLAY_NEVER, &bad));
    side->posted++;
}

static void until(struct side *a, struct side *b, const struct side *of, uint64_t number)
{
    while (!of->reported[number]) {
        side_poll(a);
        side_poll(b);
    }
}

static void links(void)
{
    struct side a, b;
    bw_link_init here, there;
    struct request request;
    char *message = (char *)&request;
    bw_sge lent;

    side_memory(&a, pd, &here);
    side_memory(&b, pd, &there);
    there.seed = 1;
    OK(bw_link_create_pair(pd, &here, &a.link, pd, &there, &b.link));
    lent = side_sge(&a, LENT, SLOT);
    EXPECT(bw_link_post_send_grant(a.link, 1, &lent, both, message, sizeof request, 8, 0) ==
           BW_ERECOVERING);
    both_ready(&a, &b);
    EXPECT(bw_link_end_grant(a.link, 1) == BW_ENOREQUEST);

    /* The peer gives it back. */
    side_receive(&a);
    side_receive(&b);
    request = lend(&a, 1);
    until(&a, &b, &b, RECEIVES);
    write_to(&b, &request);
    answer(&b, &request);
    until(&a, &b, &a, 1);
    EXPECT(a.reported[RECEIVES] && a.last[1].outcome == BW_OUTCOME_EXECUTED);
    EXPECT(a.last[1].retired == 1 && *side_word(&a, LENT) == 1);
    EXPECT(bw_link_end_grant(a.link, 1) == BW_ENOREQUEST);

    /* The program takes it back. */
    side_receive(&b);
    request = lend(&a, 2);
    until(&a, &b, &b, RECEIVES + 1);
    EXPECT(!a.reported[2]);
    EXPECT(bw_link_end_grant(a.link, 2) == BW_CANCEL_REQUESTED);
    until(&a, &b, &a, 2);
    EXPECT(a.last[2].outcome == BW_OUTCOME_EXECUTED);

    /* There is no answer. */
    side_receive(&b);
    request = lend(&a, 3);
    until(&a, &b, &b, RECEIVES + 2);
    EXPECT(bw_link_cancel(a.link, 3) == BW_CANCEL_REQUESTED);
    until(&a, &b, &a, 3);
    EXPECT(a.last[3].outcome == BW_OUTCOME_IN_DOUBT && a.last[3].doubt == BW_DOUBT_CANCELLED);
    side_receive(&b);
    request = lend(&a, 4);
    EXPECT(bw_link_cancel_after(a.link, 4, MILLISECOND) == BW_CANCEL_REQUESTED);
    until(&a, &b, &a, 4);
    EXPECT(a.last[4].outcome == BW_OUTCOME_IN_DOUBT && a.last[4].doubt == BW_DOUBT_DEADLINE_PASSED);
    EXPECT(side_info(&a).epoch == 1);

    /* The key of each is invalid. */
    write_to(&b, &request);
    until(&a, &b, &b, WRITES + 4);
    EXPECT(b.last[WRITES + 4].outcome == BW_OUTCOME_FAILED && *side_word(&a, LENT) == 0);
    both_ready(&a, &b);

    /* What cannot be lent. */
    lent = side_sge(&a, LENT, 0);
    EXPECT(bw_link_post_send_grant(a.link, 5, &lent, both, message, sizeof request, 8, 0) == BW_EINVAL);
    lent.length = SLOT;
    EXPECT(bw_link_post_send_grant(a.link, 5, &lent, 0, message, sizeof request, 8, 0) == BW_EINVAL);
    EXPECT(bw_link_post_send_grant(a.link, 5, &lent, BW_ACCESS_LOCAL_WRITE, message, sizeof request, 8,
                                   0) == BW_EINVAL);
    EXPECT(bw_link_post_send_grant(a.link, 5, &lent, both, message, sizeof request, 13, 0) == BW_EINVAL);
    EXPECT(bw_link_post_send_grant(a.link, 5, &lent, both, message, sizeof request, UINT32_MAX, 0) ==
           BW_EINVAL);
    EXPECT(bw_link_post_send_grant(a.link, 5, &lent, both, message, sizeof request, 8, 0x4000) ==
           BW_EINVAL);
    side_end(&a);
    side_end(&b);
}

static void sets(void)
{
    struct side a, b;
    bw_link_set *set = NULL;
    bw_link_id link = 0;
    bw_link_init here, there;
    bw_link_info info;
    struct request request;
    uint64_t number = 0;
    bw_link_set_wc wc;
    bw_sge lent;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    side_memory(&a, pd, &here);
    side_memory(&b, pd, &there);
    there.seed = 1;
    OK(bw_link_set_create(pd, NULL, &set));
    OK(bw_link_set_join_pair(set, &here, &link, pd, &there, &b.link));
    do {
        EXPECT(bw_link_set_poll(set, &wc, 1) == 0);
        side_poll(&b);
        OK(bw_link_set_query_link(set, link, &info));
    } while (info.state != BW_LINK_READY || bw_link_get_state(b.link) != BW_LINK_READY);
    lent = side_sge(&a, LENT, SLOT);
    for (uint32_t round = 1; round <= 3; round++) {
        request.addr = lent.addr;
        request.number = round;
        side_receive(&b);
        OK(bw_link_set_post_send_grant(set, link, round, &lent, both, &request, sizeof request,
                                       offsetof(struct request, rkey), BW_SEND_SIGNALED));
        OK(bw_link_set_ring_sq(set, link));
        while (!b.reported[RECEIVES + round - 1]) {
            EXPECT(bw_link_set_poll(set, &wc, 1) == 0);
            side_poll(&b);
        }
        write_to(&b, &request);
        while (!b.reported[WRITES + round])
            side_poll(&b);
        EXPECT(b.last[WRITES + round].outcome == BW_OUTCOME_EXECUTED && *side_word(&a, LENT) == round);
        while (bw_link_set_end_grant(set, link, round) == BW_CANCEL_REPEATED || number < round) {
            while (bw_link_set_poll(set, &wc, 1) == 1) {
                EXPECT(wc.wc.wr_id == round && wc.wc.outcome == BW_OUTCOME_EXECUTED);
                number = wc.wc.wr_id;
            }
        }
        EXPECT(bw_link_set_end_grant(set, link, round) == BW_ENOREQUEST);
    }
    OK(bw_link_set_remove(set, link));
    EXPECT(bw_link_set_end_grant(set, link, 1) == BW_ENOLINK);
    EXPECT(bw_link_set_post_send_grant(set, link, 1, &lent, both, &request, sizeof request, 8, 0) ==
           BW_ENOLINK);
    side_end(&b);
    OK(bw_link_set_destroy(set));
    OK(bw_region_destroy(a.region));
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
