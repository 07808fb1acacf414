/*
 * A set on a shared receive queue: its links' messages come into the blocks of a slab, which the program
 * returns. A peer that holds too many loses its link. The queue's failure is recovered by all.
 */
#include "link.h"

enum { LINKS = 4, BLOCKS = 16, HELD = 6 };

static const bw_slab_class classes[] = {{SLOT, BLOCKS}, {4096, 1}};
static bw_device *device;
static bw_pd *pd;
static bw_region *region;
static bw_slab *slab;
static bw_link_set *set;

/* A link of the set, its peer, and the blocks of its messages that were not returned. */
static struct member {
    bw_link_id id;
    struct side peer;
    uint32_t state;
    bw_block held[BLOCKS];
    unsigned num_held;
    uint64_t came;
} members[LINKS];

static void join_with(struct member *member, uint32_t limit)
{
    bw_link_init here, there;

    memset(member, 0, sizeof *member);
    OK(bw_link_init_default(&here, sizeof here));
    here.srq_max_held = limit;
    side_memory(&member->peer, pd, &there);
    there.seed = 1;
    OK(bw_link_set_join_pair(set, &here, &member->id, pd, &there, &member->peer.link));
    member->state = BW_LINK_RECOVERING;
}

static void join(struct member *member)
{
    join_with(member, 0);
}

static void take(void *context, const bw_link_set_wc *one)
{
    (void)context;
    for (struct member *of = members; of < members + LINKS; of++) {
        if (of->id != one->link)
            continue;
        EXPECT(one->wc.outcome == BW_OUTCOME_EXECUTED && one->wc.retired == 0);
        EXPECT((one->wc.opcode & BW_WC_RECV) != 0 && one->wc.byte_len == sizeof(uint64_t));
        EXPECT(of->num_held < BLOCKS);
        of->held[of->num_held++].addr = one->wc.wr_id;
        of->came++;
        return;
    }
    EXPECT(!"a message of a link that there is not");
}

static void return_all(struct member *member)
{
    while (member->num_held > 0)
        OK(bw_slab_return(slab, &member->held[--member->num_held]));
}

static void poll_all(void)
{
    bw_link_set_wc wcs[8];
    bw_link_id id;
    uint32_t state;
    int count = bw_link_set_poll(set, wcs, 8);

    EXPECT(count >= 0);
    for (int at = 0; at < count; at++)
        take(NULL, &wcs[at]);
    while ((count = bw_link_set_next_change(set, &id, &state)) == 1)
        for (unsigned at = 0; at < LINKS; at++)
            if (members[at].id == id)
                members[at].state = state;
    EXPECT(count == 0);
    for (unsigned at = 0; at < LINKS; at++)
        side_poll(&members[at].peer);
}

static void until_ready(uint64_t epoch)
{
    for (unsigned at = 0; at < LINKS; at++)
        while (members[at].state != BW_LINK_READY || side_info(&members[at].peer).epoch < epoch ||
               bw_link_get_state(members[at].peer.link) != BW_LINK_READY)
            poll_all();
}

static void make(void)
{
    bw_link_set_init init;
    bw_region_attr attr;
    bw_link_set *none;
    bw_pd *other;
    uint64_t bytes;

    OK(bw_slab_bytes(classes, 2, &bytes));
    OK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = bytes;
    OK(bw_region_create(pd, &attr, &region));
    OK(bw_slab_create(region, classes, 2, &slab));
    OK(bw_link_set_init_default(&init, sizeof init));
    EXPECT(init.srq_slab == NULL && init.srq_length == 0 && init.srq_max_held == 0);
    init.links = LINKS;
    init.check_every = 1;

    init.srq_length = SLOT;
    EXPECT(bw_link_set_create(pd, &init, &none) == BW_EINVAL && none == NULL);
    EXPECT(strstr(bw_last_error(), "srq_slab") != NULL);
    init.srq_slab = slab;
    init.srq_length = 4097;
    EXPECT(bw_link_set_create(pd, &init, &none) == BW_EINVAL && none == NULL);
    EXPECT(strstr(bw_last_error(), "larger class") != NULL);
    init.srq_length = SLOT;
    OK(bw_pd_create(device, &other));
    EXPECT(bw_link_set_create(other, &init, &none) == BW_EFOREIGN && none == NULL);
    OK(bw_pd_destroy(other));

    init.srq_max_held = HELD;
    OK(bw_link_set_create(pd, &init, &set));
    /* The slab has none left for another. */
    EXPECT(bw_link_set_create(pd, &init, &none) == BW_EINVAL && none == NULL);
    EXPECT(bw_slab_destroy(slab) == BW_EBUSY);
    for (unsigned at = 0; at < LINKS; at++)
        join(&members[at]);
    until_ready(1);
}

/* Sends a number. */
static void post(struct member *member, uint64_t number)
{
    struct side *peer = &member->peer;
    uint64_t wr_id = peer->posted++;

    OK(bw_link_post_send_inline(peer->link, wr_id, &number, sizeof number, BW_SEND_SIGNALED,
                                BW_REPLAY_IF_SAFE));
    OK(bw_link_ring_sq(peer->link));
}

/* Messages of each link come into blocks, in order. */
static void talk(void)
{
    for (unsigned at = 0; at < LINKS; at++) {
        struct member *member = &members[at];
        uint64_t came = member->came;
        bw_sge sge;

        return_all(member);
        for (uint64_t number = 0; number < 4; number++)
            post(member, 100 * at + number);
        while (member->came != came + 4 || member->peer.retired != member->peer.posted)
            poll_all();
        for (unsigned number = 0; number < 4; number++)
            EXPECT(*(uint64_t *)(uintptr_t)member->held[number].addr == 100 * at + number);
        memset(&sge, 0, sizeof sge);
        EXPECT(bw_link_set_post_recv_one(set, member->id, 1, &sge) == BW_ENORQ);
        return_all(member);
        bw_block again = member->held[0];
        EXPECT(bw_slab_return(slab, &again) == BW_ERETURNED);
    }
}

/* More than a link may hold: its link ends, and the others have their buffers. The next link at its place may
 * hold other many. */
static void flood(unsigned limit, uint32_t next)
{
    struct member *member = &members[1];
    bw_link_set_info all;
    bw_link_info info;

    memset(&all, 0, sizeof all);
    memset(&info, 0, sizeof info);
    all.size = sizeof all;
    info.size = sizeof info;
    for (unsigned at = 0; at < LINKS; at++)
        return_all(&members[at]);
    /* What is returned is posted again by polls. */
    do {
        poll_all();
        OK(bw_link_set_query(set, &all));
    } while (all.receives_held != 0);
    EXPECT(all.receives_posted == BLOCKS);
    OK(bw_link_set_query_link(set, member->id, &info));
    EXPECT(info.held == 0);
    uint64_t came = member->came;
    bw_link_id old = member->id;

    for (unsigned number = 0; number < limit; number++)
        post(member, number);
    while (member->came != came + limit)
        poll_all();
    EXPECT(member->state == BW_LINK_READY);
    OK(bw_link_set_query(set, &all));
    OK(bw_link_set_query_link(set, member->id, &info));
    EXPECT(all.receives_held == limit && all.receives_posted == BLOCKS - limit && info.held == limit);
    post(member, limit);
    while (member->state < BW_LINK_CLOSED)
        poll_all();
    EXPECT(member->state == BW_LINK_GAVE_UP);
    EXPECT(member->came == came + limit + 1);
    while (bw_link_get_state(member->peer.link) < BW_LINK_CLOSED)
        poll_all();
    /* The peer learns why. */
    EXPECT(bw_link_get_state(member->peer.link) == BW_LINK_GAVE_UP);
    EXPECT(strstr(side_info(&member->peer).why, "RECV_LIMIT_EXCEEDED") != NULL);
    /* Every message was received: so it is reported. */
    EXPECT(member->peer.retired == member->peer.posted);
    return_all(member);
    side_end(&member->peer);
    OK(bw_link_set_remove(set, old));
    join_with(member, next);
    until_ready(1);
    EXPECT(member->id != old);
}

static void fail(uint64_t epoch)
{
    bw_fault fault;

    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    fault.number = BW_EVENT_SRQ_ERR;
    OK(bw_link_set_report_fault(set, members[2].id, &fault));
    until_ready(epoch);
}

int main(void)
{
    bw_slab_info info;

    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    make();
    talk();
    fail(2);
    talk();
    flood(HELD, HELD - 2);
    talk();
    flood(HELD - 2, 0);
    talk();
    fail(2);
    talk();
    post(&members[0], 7);
    OK(bw_link_set_drain(set, SOON, take, NULL, NULL));
    for (unsigned at = 0; at < LINKS; at++)
        side_end(&members[at].peer);
    OK(bw_link_set_destroy(set));
    /* A block outlives the set. */
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_slab_query(slab, &info));
    EXPECT(info.outstanding == members[0].num_held && info.outstanding == 1);
    return_all(&members[0]);
    OK(bw_slab_destroy(slab));
    OK(bw_region_destroy(region));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
