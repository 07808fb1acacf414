/*
 * The other end of a `replicated` target: does with this target's blocks what its primary says, over a link.
 *
 * While a link is there, or the copy is not complete, hosts are rejected. Once a complete copy is left without
 * its primary, hosts may come; from the first one on no primary is accepted any more, so that there are never
 * two that write.
 */
#include "mirror.h"
#include <errno.h>
#include <poll.h>

enum { SLOTS = 2 * WINDOW, SLOT_DATA = MAX_TRANSFER, HELLO_MS = 5000, DRAIN_MS = 1000 };

/* A message: its receive, what the blocks' lane does for it, and its answer. */
struct slot {
    enum { SLOT_FREE, SLOT_POSTED, SLOT_RUNNING, SLOT_ANSWERS /* is to be sent */, SLOT_SENDING } step;
    struct replica *of;
    struct io io;
    uint8_t *message, *data;
    uint8_t answer[ANSWER];
};

struct replica {
    struct target *target;
    pthread_t thread;
    bw_listener *listener;
    struct lane *lane;
    bw_region *region;
    uint32_t lkey;
    bw_link *link;
    bool greeted, refused;
    bool complete;
    uint64_t name; /* of the complete copy that it has; 0: of none */
    atomic_bool stop;
    struct slot slots[SLOTS];
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

static void answer(struct slot *slot, int error, uint64_t value)
{
    memset(slot->answer, 0, ANSWER);
    put64(slot->answer + ANSWER_TOKEN, get64(slot->message + MESSAGE_TOKEN));
    put32(slot->answer + ANSWER_ERROR, (uint32_t)error);
    put64(slot->answer + ANSWER_VALUE, value);
    slot->step = SLOT_ANSWERS;
}

static void io_done(struct io *io, int error)
{
    answer((struct slot *)((char *)io - offsetof(struct slot, io)), error, 0);
}

/* 0, or why this primary is not accepted. */
static int greet(struct replica *it, uint64_t bytes, uint64_t name, bool keeps)
{
    struct target *target = it->target;
    int before = it->complete ? ROLE_READY : ROLE_EMPTY;

    if (atomic_load(&target->role) == ROLE_PROMOTED)
        return EBUSY;
    if (bytes > target->backend->bytes)
        return ENOSPC;
    /* A primary that has begun with nothing would destroy what it is to copy. */
    if (it->complete && it->name != name && !keeps)
        return EEXIST;
    if (!it->greeted && !atomic_compare_exchange_strong(&target->role, &before, ROLE_LINKED))
        return EBUSY;
    it->greeted = true;
    it->complete = false;
    if (it->name != name)
        it->name = 0;
    printf("a primary is there\n");
    return 0;
}

static void message(struct replica *it, struct slot *slot, uint32_t came)
{
    const uint8_t *at = slot->message;
    uint64_t offset = get64(at + MESSAGE_OFFSET), length = get64(at + MESSAGE_LENGTH);
    uint8_t op = at[MESSAGE_OP];
    int error = 0;

    if (op == MIRROR_HELLO) {
        error = greet(it, offset, length, at[MESSAGE_DURABLE] != 0);
        it->refused = error != 0;
        answer(slot, error, it->name);
        return;
    }
    if (!it->greeted) {
        answer(slot, EPROTO, 0);
        it->refused = true;
        return;
    }
    if (op == MIRROR_COMPLETE) {
        it->name = length;
        it->complete = true;
        printf("the copy is complete\n");
        answer(slot, 0, 0);
        return;
    }
    bool writes = op == MIRROR_WRITE, moves = writes || op == MIRROR_ZERO;
    slot->io = (struct io){
        .op = writes ? IO_WRITE : moves ? IO_ZERO : IO_FLUSH,
        .durable = at[MESSAGE_DURABLE] != 0,
        .offset = moves ? offset : 0,
        .length = moves ? length : 0,
        .data = slot->data,
        .done = io_done,
    };
    /* A completion that was lost, of a message that came, has no length. */
    if ((!moves && op != MIRROR_FLUSH) || (writes && (length > SLOT_DATA || (came != 0 && came - MESSAGE != length))) ||
        (moves && (offset > it->target->backend->bytes || length > it->target->backend->bytes - offset))) {
        answer(slot, EPROTO, 0);
        return;
    }
    slot->step = SLOT_RUNNING;
    it->target->backend->ops->submit(it->lane, &slot->io);
}

static void completed(struct replica *it, const bw_link_wc *wc)
{
    struct slot *slot = &it->slots[wc->wr_id];
    bool executed = wc->outcome == BW_OUTCOME_EXECUTED;

    if (slot->step == SLOT_SENDING)
        slot->step = executed ? SLOT_FREE : SLOT_ANSWERS;
    else if (executed && (wc->byte_len == 0 || wc->byte_len >= MESSAGE))
        message(it, slot, wc->byte_len);
    else
        slot->step = SLOT_FREE;
}

/* What can be posted: receives, and answers. */
static void post(struct replica *it)
{
    bool sends = false, ready = bw_link_get_state(it->link) == BW_LINK_READY;

    for (uint32_t i = 0; i < SLOTS; i++) {
        struct slot *slot = &it->slots[i];
        bw_sge parts[2] = {{(uint64_t)(uintptr_t)slot->message, MESSAGE, it->lkey},
                           {(uint64_t)(uintptr_t)slot->data, SLOT_DATA, it->lkey}};
        bw_recv_wr receive = {i, parts, 2, 0};

        if (slot->step == SLOT_FREE) {
            memset(slot->message, 0, MESSAGE);
            if (bw_link_post_recv(it->link, &receive, 1, NULL) == BW_OK)
                slot->step = SLOT_POSTED;
        } else if (slot->step == SLOT_ANSWERS && ready &&
                   bw_link_post_send_inline(it->link, i, slot->answer, ANSWER, BW_SEND_SIGNALED,
                                            BW_REPLAY_IF_SAFE) == BW_OK) {
            slot->step = SLOT_SENDING;
            sends = true;
        }
    }
    if (sends)
        bw_link_ring_sq(it->link);
}

static bool poll_once(struct replica *it)
{
    bw_link_wc wc[16];
    int count = bw_link_poll(it->link, wc, 16);

    for (int i = 0; i < count; i++)
        completed(it, &wc[i]);
    it->target->backend->ops->poll(it->lane);
    post(it);
    return count > 0;
}

static void drained(void *context, const bw_link_wc *wc)
{
    (void)context;
    (void)wc;
}

/* One primary, until its link ends. */
static void serve(struct replica *it)
{
    const struct backend_ops *backend = it->target->backend->ops;
    uint64_t since = now_ms();
    bw_link_info info;

    it->greeted = it->refused = false;
    for (uint32_t i = 0; i < SLOTS; i++)
        it->slots[i].step = SLOT_FREE;
    post(it);
    while (bw_link_get_state(it->link) < BW_LINK_CLOSED && !atomic_load(&it->stop)) {
        struct pollfd fds[] = {{.fd = bw_link_fd(it->link), .events = POLLIN},
                               {.fd = backend->fd(it->lane), .events = POLLIN}};

        if (poll_once(it) || bw_link_arm(it->link) != BW_OK || poll_once(it))
            continue;
        poll(fds, 2, 50);
        /* Who says nothing, or was refused and has read why. */
        if (!it->greeted && now_ms() - since > (it->refused ? 500 : HELLO_MS))
            break;
    }
    if (it->greeted)
        printf("the primary is gone: %s\n", mirror_why(it->link, &info));
    CHECK(bw_link_drain(it->link, DRAIN_MS, drained, NULL, NULL));
    for (uint32_t i = 0; i < SLOTS; i++)
        while (it->slots[i].step == SLOT_RUNNING)
            backend->poll(it->lane);
    CHECK(bw_link_destroy(it->link));
    it->link = NULL;
    if (it->greeted) {
        atomic_store(&it->target->role, it->complete ? ROLE_READY : ROLE_EMPTY);
        printf(it->complete ? "hosts may come\n" : "the copy is not complete: hosts are rejected\n");
    }
}

static void *run(void *argument)
{
    struct replica *it = argument;

    while (!atomic_load(&it->stop)) {
        bw_qp_init_attr qp;
        bw_connect_attr connect;
        bw_link_init init;

        mirror_link_init(&init, &qp, &connect);
        if (bw_link_accept(it->listener, it->target->pd, &init, 100, &it->link) != BW_OK)
            continue;
        CHECK(bw_link_on_fault(it->link, mirror_fault, NULL));
        serve(it);
    }
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
    int result = bw_listener_create(target->device, address, port, 4, NULL, &it->listener);
    if (result != BW_OK)
        die("%s port %u: %s (%s)", address, port, bw_strerror(result), bw_last_error());
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
    CHECK(bw_listener_destroy(it->listener));
    CHECK(bw_region_destroy(it->region));
    free(it);
}
