/*
 * What the test programs of links share: two links of one process, polled in turn, and a ledger of what
 * each has reported. C11 and C++17.
 */
#ifndef LINK_H
#define LINK_H

#include "program.h"

enum { REQUESTS = 4096, SLOT = 64, SLOTS = 64, SOON = 120000 };

/* One end. What it posts has numbers below REQUESTS: receives from RECEIVES on. */
enum { RECEIVES = REQUESTS / 2 };
struct side {
    bw_link *link;
    bw_region *region;
    bw_region_info memory;
    /* How often each request was reported, with which outcome the last time. */
    unsigned reported[REQUESTS];
    bw_link_wc last[REQUESTS];
    /* Requests of both queues, and those that were reported. */
    uint64_t posted, retired;
    /* The next receive, and what was received: how often each number. */
    unsigned receives;
    unsigned received[REQUESTS];
};

static inline void side_memory(struct side *side, bw_pd *pd, bw_link_init *init)
{
    bw_region_attr region;

    memset(side, 0, sizeof *side);
    OK(bw_region_attr_default(&region, sizeof region));
    region.length = SLOT * SLOTS;
    region.access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE | BW_ACCESS_REMOTE_READ |
                    BW_ACCESS_REMOTE_ATOMIC | BW_ACCESS_MW_BIND;
    OK(bw_region_create(pd, &region, &side->region));
    side->memory.size = sizeof side->memory;
    OK(bw_region_query(side->region, &side->memory));
    OK(bw_link_init_default(init, sizeof *init));
    init->memory_addr = side->memory.addr;
    init->memory_length = side->memory.length;
    init->memory_rkey = side->memory.rkey;
    init->check_every = 1;
}

static inline bw_sge side_sge(struct side *side, unsigned slot, uint32_t length)
{
    bw_sge sge;

    sge.addr = side->memory.addr + slot * SLOT;
    sge.length = length;
    sge.lkey = side->memory.lkey;
    return sge;
}

static inline uint64_t *side_word(struct side *side, unsigned slot)
{
    return (uint64_t *)(uintptr_t)(side->memory.addr + slot * SLOT);
}

/* A receive into the slot of its number. */
static inline void side_receive(struct side *side)
{
    unsigned number = RECEIVES + side->receives++;
    bw_sge sge = side_sge(side, number % SLOTS, SLOT);

    EXPECT(number < REQUESTS);
    OK(bw_link_post_recv_one(side->link, number, &sge));
    OK(bw_link_ring_rq(side->link));
    side->posted++;
}

/* Exactly once: nothing is reported that was reported before. */
static inline void side_take(struct side *side, const bw_link_wc *wc)
{
    EXPECT(wc->wr_id < REQUESTS);
    EXPECT(side->reported[wc->wr_id]++ == 0);
    EXPECT((wc->doubt != BW_DOUBT_NONE) == (wc->outcome == BW_OUTCOME_IN_DOUBT));
    EXPECT((wc->status != 0) == (wc->outcome == BW_OUTCOME_FAILED));
    EXPECT((wc->wr_id >= RECEIVES) == ((wc->opcode & BW_WC_RECV) != 0));
    side->last[wc->wr_id] = *wc;
    side->retired += wc->retired;
    if (wc->wr_id >= RECEIVES && wc->outcome == BW_OUTCOME_EXECUTED && wc->byte_len == sizeof(uint64_t)) {
        uint64_t number = *side_word(side, (unsigned)wc->wr_id % SLOTS);

        EXPECT(number < REQUESTS);
        side->received[number]++;
    }
}

static inline void side_poll(struct side *side)
{
    bw_link_wc wcs[8];
    int count = bw_link_poll(side->link, wcs, 8);

    EXPECT(count >= 0);
    for (int at = 0; at < count; at++)
        side_take(side, &wcs[at]);
}

static inline bw_link_info side_info(struct side *side)
{
    bw_link_info info;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_link_query(side->link, &info));
    return info;
}

static inline bw_link_counters side_counters(struct side *side)
{
    bw_link_counters counters;

    memset(&counters, 0, sizeof counters);
    counters.size = sizeof counters;
    OK(bw_link_query_counters(side->link, &counters));
    return counters;
}

/* Until both work. */
static inline void both_ready(struct side *a, struct side *b)
{
    while (bw_link_get_state(a->link) != BW_LINK_READY ||
           bw_link_get_state(b->link) != BW_LINK_READY) {
        EXPECT(bw_link_get_state(a->link) < BW_LINK_CLOSED);
        EXPECT(bw_link_get_state(b->link) < BW_LINK_CLOSED);
        side_poll(a);
        side_poll(b);
    }
}

static inline void side_count(void *side, const bw_link_wc *wc)
{
    side_take((struct side *)side, wc);
}

/* The end of a link: every receive that is left comes back, and every request was reported. */
static inline void side_end(struct side *side)
{
    uint64_t before = side->retired, retired = 0;

    OK(bw_link_drain(side->link, SOON, side_count, side, &retired));
    EXPECT(bw_link_get_state(side->link) >= BW_LINK_CLOSED);
    side->retired += side_info(side).unreported;
    EXPECT(side->retired == side->posted && retired == side->retired - before);
    for (unsigned number = 0; number < side->receives; number++)
        EXPECT(side->reported[RECEIVES + number] == 1);
    OK(bw_link_destroy(side->link));
    OK(bw_region_destroy(side->region));
}

#endif
