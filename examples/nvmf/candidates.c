/*
 * Links that ask a replica for its blocks, until their Hello. Any process that reaches the port can ask, and
 * then say nothing: a candidate has little memory and little time, and all of them are waited for at once.
 * When the table is full, the oldest candidate makes room for the next one.
 */
#include "mirror.h"
#include <errno.h>

enum { PAUSE_MS = 100, PAUSE_MAX_MS = 2000 };
enum { HELLO, REFUSAL };

struct candidates *candidates_create(struct target *target, const char *address, uint32_t port)
{
    struct candidates *all = must_calloc(1, sizeof *all);
    bw_region_attr attr;
    bw_region_info info = {.size = sizeof info};

    all->pd = target->pd;
    CHECK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = CANDIDATES * MESSAGE;
    attr.access = BW_ACCESS_LOCAL_WRITE;
    CHECK(bw_region_create(target->pd, &attr, &all->region));
    CHECK(bw_region_query(all->region, &info));
    all->lkey = info.lkey;
    for (uint32_t i = 0; i < CANDIDATES; i++)
        all->table[i].message = (uint8_t *)(uintptr_t)info.addr + (size_t)i * MESSAGE;
    int result = bw_listener_create(target->device, address, port, CANDIDATES, NULL, &all->listener);
    if (result != BW_OK)
        die("%s port %u: %s (%s)", address, port, bw_strerror(result), bw_last_error());
    return all;
}

static void drop(struct candidate *candidate)
{
    CHECK(bw_link_destroy(candidate->link));
    candidate->link = NULL;
}

void candidates_destroy(struct candidates *all)
{
    for (uint32_t i = 0; i < CANDIDATES; i++)
        if (all->table[i].link != NULL)
            drop(&all->table[i]);
    CHECK(bw_listener_destroy(all->listener));
    CHECK(bw_region_destroy(all->region));
    free(all);
}

/* A place in the table, or NULL: every candidate is younger than it may expect. */
static struct candidate *place(struct candidates *all, uint64_t now)
{
    struct candidate *oldest = NULL;

    for (uint32_t i = 0; i < CANDIDATES; i++) {
        struct candidate *at = &all->table[i];

        if (at->link == NULL)
            return at;
        /* A primary that waits for its predecessor's link to end keeps its place until its time is over. */
        if (!at->greets && (oldest == NULL || at->since_ms < oldest->since_ms))
            oldest = at;
    }
    if (oldest == NULL || now - oldest->since_ms < CANDIDATE_LEAST_MS)
        return NULL;
    return oldest;
}

/* When no link can be created, for example because no descriptor is left, it is tried again after a pause. */
static void pause_accepting(struct candidates *all, uint64_t now)
{
    const char *why = bw_last_error();

    all->pause_ms = all->pause_ms == 0 ? PAUSE_MS : 2 * all->pause_ms;
    if (all->pause_ms > PAUSE_MAX_MS)
        all->pause_ms = PAUSE_MAX_MS;
    all->accepts_at = now + all->pause_ms;
    if (strncmp(all->why, why, sizeof all->why - 1) == 0)
        return;
    snprintf(all->why, sizeof all->why, "%s", why);
    fprintf(stderr, "no link can be accepted, it is tried again every %d s: %s\n", PAUSE_MAX_MS / 1000, why);
}

static bool accept_one(struct candidates *all)
{
    uint64_t now = now_ms();
    struct candidate *at = now < all->accepts_at ? NULL : place(all, now);
    bw_sge sge;
    bw_qp_init_attr qp;
    bw_connect_attr connect;
    bw_link_init init;
    bw_link *link;

    if (at == NULL)
        return false;
    mirror_link_init(&init, &qp, &connect);
    int result = bw_link_accept(all->listener, all->pd, &init, 0, &link);
    if (result == BW_EAGAIN)
        return false;
    if (result != BW_OK) {
        pause_accepting(all, now);
        return false;
    }
    all->pause_ms = 0;
    all->why[0] = '\0';
    if (at->link != NULL)
        drop(at);
    at->link = link;
    at->since_ms = now;
    at->greets = at->refused = false;
    memset(at->message, 0, MESSAGE);
    sge = (bw_sge){(uint64_t)(uintptr_t)at->message, MESSAGE, all->lkey};
    if (bw_link_post_recv_one(link, HELLO, &sge) != BW_OK)
        drop(at);
    return true;
}

/* It learns why, if it takes the answer soon. */
static void refuse(struct candidate *candidate, int error, uint64_t name)
{
    mirror_answer(candidate->answer, candidate->message, error, name);
    candidate->greets = false;
    candidate->refused = true;
    candidate->since_ms = now_ms();
    if (bw_link_post_send_inline(candidate->link, REFUSAL, candidate->answer, ANSWER, BW_SEND_SIGNALED,
                                 BW_REPLAY_IF_SAFE) == BW_OK)
        bw_link_ring_sq(candidate->link);
    else
        drop(candidate);
}

static bool came(struct candidate *candidate)
{
    bw_link_wc wc[4];
    int count = bw_link_poll(candidate->link, wc, 4);

    for (int i = 0; i < count; i++) {
        /* A completion that was lost, of a message that came, has no length. */
        bool whole = wc[i].outcome == BW_OUTCOME_EXECUTED && (wc[i].byte_len == MESSAGE || wc[i].byte_len == 0);

        if (wc[i].wr_id == HELLO)
            candidate->greets = whole && candidate->message[MESSAGE_OP] == MIRROR_HELLO;
        if (wc[i].wr_id == REFUSAL || !candidate->greets) {
            drop(candidate);
            return true;
        }
    }
    return count > 0;
}

/* Whether anything has come. */
bool candidates_poll(struct candidates *all, struct replica *replica)
{
    bool busy = accept_one(all);

    for (uint32_t i = 0; i < CANDIDATES; i++) {
        struct candidate *at = &all->table[i];

        if (at->link == NULL)
            continue;
        busy |= came(at);
        if (at->link == NULL)
            continue;
        bool over = now_ms() - at->since_ms > (at->refused ? REFUSED_MS : HELLO_MS);
        if (bw_link_get_state(at->link) >= BW_LINK_CLOSED || (over && !at->greets)) {
            drop(at);
        } else if (at->greets) {
            uint64_t name;
            int error = replica_greet(replica, at, &name);

            /* The link of the primary before this one may be about to end. */
            if (error == 0)
                at->link = NULL;
            else if (error != EALREADY || over)
                refuse(at, error, name);
        }
    }
    return busy;
}

/* Adds the descriptors to wait for, and arms the queues behind them. Whether it may be waited. */
bool candidates_wait(struct candidates *all, struct pollfd *fds, nfds_t *count)
{
    uint64_t now = now_ms();

    if (now >= all->accepts_at && place(all, now) != NULL)
        fds[(*count)++] = (struct pollfd){.fd = bw_listener_fd(all->listener), .events = POLLIN};
    for (uint32_t i = 0; i < CANDIDATES; i++) {
        bw_link *link = all->table[i].link;

        if (link == NULL)
            continue;
        if (bw_link_arm(link) != BW_OK)
            return false;
        fds[(*count)++] = (struct pollfd){.fd = bw_link_fd(link), .events = POLLIN};
    }
    return true;
}
