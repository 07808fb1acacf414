/*
 * The other end of a `replicated` target: does with this target's blocks what its primary says, over a link.
 *
 * While a link is there, or the copy is not complete, hosts are rejected. Once a complete copy is left without
 * its primary, hosts may come; from the first one on no primary is accepted any more, so that there are never
 * two that write.
 */
#include "mirror.h"
#include <errno.h>

enum { SLOTS = 2 * WINDOW, SLOT_DATA = MAX_TRANSFER, DRAIN_MS = 200, TICK_MS = 50 };

/* A message: its receive, what the blocks' lane does for it, and its answer. */
struct slot {
    enum { SLOT_FREE, SLOT_POSTED, SLOT_RUNNING, SLOT_ANSWERS /* is to be sent */, SLOT_SENDING } step;
    struct replica *of;
    struct io io;
    uint8_t *message, *data;
    uint64_t since_ms; /* its answer is to be sent */
    uint8_t answer[ANSWER];
};

struct replica {
    struct target *target;
    pthread_t thread;
    struct candidates *candidates;
    struct lane *lane;
    bw_region *region;
    uint32_t lkey;
    bw_link *link; /* the primary's, or NULL */
    bool complete;
    uint64_t name; /* of the complete copy that it has; 0: of none */
    atomic_bool stop;
    struct slot slots[SLOTS];
    struct slot hello; /* is only an answer */
};

void mirror_fault(void *context, const bw_fault *fault, const bw_class *means, uint64_t epoch)
{
    (void)context;
    (void)epoch;
    fprintf(stderr, "link: %s: %s\n", means->name, means->text);
    if (fault->family == BW_FAMILY_EVENT && means->scope == BW_SCOPE_DEVICE &&
        means->recovery == BW_RECOVERY_CLOSE_DEVICE)
        die("%s: %s %s", means->name, means->text, means->advice);
}

static void answer(struct slot *slot, int error)
{
    mirror_answer(slot->answer, slot->message, error, 0);
    slot->step = SLOT_ANSWERS;
    slot->since_ms = now_ms();
}

static void io_done(struct io *io, int error)
{
    answer((struct slot *)((char *)io - offsetof(struct slot, io)), error);
}

int replica_greet(struct replica *it, const struct candidate *candidate, uint64_t *has)
{
    struct target *target = it->target;
    const uint8_t *at = candidate->message;
    uint64_t bytes = get64(at + MESSAGE_OFFSET), name = get64(at + MESSAGE_LENGTH);
    int before = it->complete ? ROLE_READY : ROLE_EMPTY;

    *has = it->name;
    if (it->link != NULL)
        return EALREADY;
    if (atomic_load(&target->role) == ROLE_PROMOTED)
        return EBUSY;
    if (bytes > target->backend->bytes)
        return ENOSPC;
    /* A primary that has begun with nothing would destroy what it is to copy. */
    if (it->complete && it->name != name && at[MESSAGE_DURABLE] == 0)
        return EEXIST;
    if (!atomic_compare_exchange_strong(&target->role, &before, ROLE_LINKED))
        return EBUSY;
    it->complete = false;
    if (it->name != name)
        it->name = 0;
    it->link = candidate->link;
    CHECK(bw_link_on_fault(it->link, mirror_fault, NULL));
    for (uint32_t i = 0; i < SLOTS; i++)
        it->slots[i].step = SLOT_FREE;
    mirror_answer(it->hello.answer, at, 0, it->name);
    it->hello.step = SLOT_ANSWERS;
    it->hello.since_ms = now_ms();
    printf("a primary is there\n");
    return 0;
}

static void message(struct replica *it, struct slot *slot, uint32_t came)
{
    const uint8_t *at = slot->message;
    uint64_t offset = get64(at + MESSAGE_OFFSET), length = get64(at + MESSAGE_LENGTH);
    uint8_t op = at[MESSAGE_OP];

    if (op == MIRROR_COMPLETE) {
        it->name = length;
        it->complete = true;
        printf("the copy is complete\n");
        answer(slot, 0);
        return;
    }
    bool writes = op == MIRROR_WRITE, moves = writes || op == MIRROR_ZERO;
    slot->io = (struct io){
        .op = writes ? IO_WRITE : moves ? IO_ZERO : IO_FLUSH,
        .durable = at[MESSAGE_DURABLE] != 0,
        .offset = moves ? offset : 0,
        .length = moves ? length : 0,
        .data = slot->data,
        .since_ms = now_ms(),
        .done = io_done,
    };
    /* A completion that was lost, of a message that came, has no length. */
    if ((!moves && op != MIRROR_FLUSH) || (writes && (length > SLOT_DATA || (came != 0 && came - MESSAGE != length))) ||
        (moves && (offset > it->target->backend->bytes || length > it->target->backend->bytes - offset))) {
        answer(slot, EPROTO);
        return;
    }
    slot->step = SLOT_RUNNING;
    it->target->backend->ops->submit(it->lane, &slot->io);
}

static void completed(struct replica *it, const bw_link_wc *wc)
{
    struct slot *slot = wc->wr_id < SLOTS ? &it->slots[wc->wr_id] : &it->hello;
    bool executed = wc->outcome == BW_OUTCOME_EXECUTED;

    if (slot->step == SLOT_SENDING)
        slot->step = executed ? SLOT_FREE : SLOT_ANSWERS;
    else if (executed && (wc->byte_len == 0 || wc->byte_len >= MESSAGE))
        message(it, slot, wc->byte_len);
    else
        slot->step = SLOT_FREE;
}

static bool send_answer(struct replica *it, struct slot *slot, uint32_t index)
{
    if (slot->step != SLOT_ANSWERS || bw_link_get_state(it->link) != BW_LINK_READY ||
        bw_link_post_send_inline(it->link, index, slot->answer, ANSWER, BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE) != BW_OK)
        return false;
    slot->step = SLOT_SENDING;
    return true;
}

/* What can be posted: receives, and answers. */
static void post(struct replica *it)
{
    bool sends = false;

    for (uint32_t i = 0; i < SLOTS; i++) {
        struct slot *slot = &it->slots[i];
        bw_sge parts[2] = {{(uint64_t)(uintptr_t)slot->message, MESSAGE, it->lkey},
                           {(uint64_t)(uintptr_t)slot->data, SLOT_DATA, it->lkey}};
        bw_recv_wr receive = {i, parts, 2, 0};

        if (slot->step == SLOT_FREE) {
            memset(slot->message, 0, MESSAGE);
            if (bw_link_post_recv(it->link, &receive, 1, NULL) == BW_OK)
                slot->step = SLOT_POSTED;
        } else {
            sends |= send_answer(it, slot, i);
        }
    }
    /* Behind the receives for what the primary says next. */
    sends |= send_answer(it, &it->hello, SLOTS);
    if (sends)
        bw_link_ring_sq(it->link);
}

/* The primary does not take an answer, although its link works. */
static bool takes_no_answer(const struct replica *it)
{
    uint64_t now = now_ms();
    bool stuck = false;

    for (uint32_t i = 0; i <= SLOTS; i++) {
        const struct slot *slot = i < SLOTS ? &it->slots[i] : &it->hello;

        stuck |= (slot->step == SLOT_SENDING || slot->step == SLOT_ANSWERS) &&
                 now - slot->since_ms > (LINK_SECONDS + ANSWER_SECONDS) * UINT64_C(1000);
    }
    return stuck;
}

static void drained(void *context, const bw_link_wc *wc)
{
    (void)context;
    (void)wc;
}

static void primary_gone(struct replica *it, const char *why)
{
    const struct backend_ops *backend = it->target->backend->ops;

    printf("the primary is gone: %s\n", why);
    CHECK(bw_link_drain(it->link, DRAIN_MS, drained, NULL, NULL));
    for (uint32_t i = 0; i < SLOTS; i++) {
        while (it->slots[i].step == SLOT_RUNNING) {
            struct pollfd blocks = {.fd = backend->fd(it->lane), .events = POLLIN};

            poll(&blocks, 1, 10);
            backend->poll(it->lane);
        }
    }
    CHECK(bw_link_destroy(it->link));
    it->link = NULL;
    atomic_store(&it->target->role, it->complete ? ROLE_READY : ROLE_EMPTY);
    printf(it->complete ? "hosts may come\n" : "the copy is not complete: hosts are rejected\n");
}

static bool poll_primary(struct replica *it)
{
    bw_link_wc wc[16];
    bw_link_info info;
    int count = bw_link_poll(it->link, wc, 16);

    for (int i = 0; i < count; i++)
        completed(it, &wc[i]);
    it->target->backend->ops->poll(it->lane);
    if (count == 0 && bw_link_get_state(it->link) >= BW_LINK_CLOSED) {
        primary_gone(it, mirror_why(it->link, &info));
        return true;
    }
    post(it);
    return count > 0;
}

static bool turn(struct replica *it)
{
    bool busy = candidates_poll(it->candidates, it);

    if (it->link != NULL)
        busy |= poll_primary(it);
    return busy;
}

/* Until there is something to do, but not longer than until the next look at the clock. */
static void wait(struct replica *it)
{
    struct pollfd fds[CANDIDATES + 3];
    nfds_t count = 0;

    if (!candidates_wait(it->candidates, fds, &count))
        return;
    if (it->link != NULL) {
        if (bw_link_arm(it->link) != BW_OK)
            return;
        fds[count++] = (struct pollfd){.fd = bw_link_fd(it->link), .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = it->target->backend->ops->fd(it->lane), .events = POLLIN};
    }
    /* What came before they were armed wakes nobody. */
    if (!turn(it))
        poll(fds, count, TICK_MS);
}

static void *run(void *argument)
{
    struct replica *it = argument;
    uint64_t tick = 0;

    while (!atomic_load(&it->stop)) {
        if (!turn(it))
            wait(it);
        if (now_ms() < tick)
            continue;
        tick = now_ms() + TICK_MS;
        if (it->link != NULL && takes_no_answer(it))
            primary_gone(it, "it does not take an answer");
    }
    if (it->link != NULL)
        primary_gone(it, "this target ends");
    return NULL;
}

struct replica *replica_start(struct target *target, const char *address, uint32_t port)
{
    struct replica *it = must_calloc(1, sizeof *it);
    bw_region_attr attr;
    bw_region_info info = {.size = sizeof info};

    it->target = target;
    atomic_store(&target->role, ROLE_EMPTY);
    CHECK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = (uint64_t)SLOTS * (SLOT_DATA + MESSAGE);
    attr.access = BW_ACCESS_LOCAL_WRITE;
    CHECK(bw_region_create(target->pd, &attr, &it->region));
    CHECK(bw_region_query(it->region, &info));
    it->lkey = info.lkey;
    for (uint32_t i = 0; i < SLOTS; i++) {
        it->slots[i].of = it;
        it->slots[i].data = (uint8_t *)(uintptr_t)info.addr + (size_t)i * SLOT_DATA;
        it->slots[i].message = (uint8_t *)(uintptr_t)info.addr + (size_t)SLOTS * SLOT_DATA + (size_t)i * MESSAGE;
    }
    it->lane = target->backend->ops->open_lane(target->backend);
    if (it->lane == NULL)
        die("a replica has no way to its blocks");
    it->candidates = candidates_create(target, address, port);
    int error = pthread_create(&it->thread, NULL, run, it);
    if (error != 0)
        die("no thread: %s", strerror(error));
    printf("a replica at %s port %u\n", address, port);
    return it;
}

void replica_stop(struct replica *it)
{
    atomic_store(&it->stop, true);
    pthread_join(it->thread, NULL);
    it->target->backend->ops->close_lane(it->lane);
    candidates_destroy(it->candidates);
    CHECK(bw_region_destroy(it->region));
    free(it);
}
