/*
 * A backend whose blocks are on a second target as well, its replica, over a link. A write is done when both
 * have it; a read is served here.
 *
 * The link recovers by itself: writes wait meanwhile. When it ends, because the replica is gone or
 * the cable is cut for too long, the chunks of writes since then, and of writes on their way, are
 * remembered, and a new link is asked for every second. When there is one, the chunks are copied,
 * all of them if the replica does not have this primary's copy any more, and the replica learns
 * that it is complete.
 *
 * A write has one deadline, WAIT_SECONDS after its command has arrived, whatever is tried until then. It fails
 * at the deadline, or, if the target is to go on alone, is done without the replica as soon as the link has
 * ended. An answer is waited for until ANSWER_SECONDS after its message was sent: a message is sent only if
 * that ends before the deadline of its write, so that an old write does not end a new link.
 *
 * One write at a time for each block: both have the same bytes of two writes that overlap.
 */
#include "replicated.h"
#include <errno.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

static void mark(struct replicated *it, const struct part *part)
{
    if (part->op == MIRROR_FLUSH || part->kind == PART_OWN || part->local.length == 0)
        return;
    uint64_t last = (part->local.offset + part->local.length - 1) / CHUNK;
    for (uint64_t at = part->local.offset / CHUNK; at <= last; at++)
        it->dirty[at] = 1;
}

void part_finish(struct part *part)
{
    struct io *io = part->io;
    int error = part->error;

    if (part->kind == PART_FREE || !part->local_done || part->sending || !part->answered)
        return;
    part->kind = PART_FREE;
    if (io != NULL)
        io->done(io, error);
}

static bool overlaps(const struct part *part, uint64_t offset, uint64_t length)
{
    return part->kind != PART_FREE && part->kind != PART_OWN && part->local.offset < offset + length &&
           offset < part->local.offset + part->local.length;
}

/* A part of this kind for these bytes, or NULL: others are at work on them, or on too much. */
struct part *part_take(struct replicated *it, enum kind kind, uint64_t offset, uint64_t length)
{
    struct part *found = NULL;

    for (uint32_t i = 0; i < WINDOW; i++) {
        if (overlaps(&it->parts[i], offset, length))
            return NULL;
        if (it->parts[i].kind == PART_FREE)
            found = &it->parts[i];
    }
    if (found == NULL)
        return NULL;
    memset(found, 0, sizeof *found);
    found->kind = kind;
    found->of = it;
    found->token = ++it->sequence * WINDOW + (uint64_t)(found - it->parts);
    found->local.offset = offset;
    found->local.length = length;
    return found;
}

void part_local_done(struct io *local, int error)
{
    struct part *part = (struct part *)((char *)local - offsetof(struct part, local));
    struct replicated *it = part->of;

    part->local_done = true;
    if (error != 0) {
        /* The two may differ now: that ends with the next copy. */
        part->error = error;
        mark(it, part);
        if (it->state >= GREETING)
            primary_end(it, "a block cannot be read or written here");
        part->answered = true;
    } else if (part->kind == PART_COPY && !part->answered) {
        primary_send(it, part);
    }
    part_finish(part);
}

/* It is over, without the replica. */
void part_fail(struct part *part)
{
    part->error = ENOTCONN;
    part->answered = true;
    part->waits = false;
}

bool io_older_than(const struct io *io, uint64_t ms)
{
    return now_ms() - io->since_ms >= ms;
}

/* Without a link: it waits for one, or is done without. */
void part_without_link(struct replicated *it, struct part *part)
{
    mark(it, part);
    part->waits = part->kind == PART_HOST && !it->alone && !part->answered;
    part->answered |= !part->waits;
    if (part->waits && (it->gives_up || io_older_than(part->io, WAIT_MS)))
        part_fail(part);
}

static bool start(struct replicated *it, struct io *io)
{
    struct part *part = part_take(it, PART_HOST, io->offset, io->length);

    if (part == NULL)
        return false;
    part->io = io;
    part->op = io->op == IO_WRITE ? MIRROR_WRITE : io->op == IO_FLUSH ? MIRROR_FLUSH : MIRROR_ZERO;
    part->local = *io;
    /* What a block holds once it was discarded has to be the same on both. */
    part->local.op = io->op == IO_DISCARD ? IO_ZERO : io->op;
    part->local.done = part_local_done;
    if (it->state >= COPYING)
        primary_send(it, part);
    else
        part_without_link(it, part);
    it->inner->ops->submit(it->inner_lane, &part->local);
    return true;
}

/* A finished request's hook may submit the same request again: it is out of the queue by then. */
static void start_queued(struct replicated *it)
{
    while (it->queue != NULL) {
        struct io *io = it->queue;

        it->queue = io->next;
        if (it->queue == NULL)
            it->last = &it->queue;
        if (start(it, io))
            continue;
        io->next = it->queue;
        it->queue = io;
        if (io->next == NULL)
            it->last = &io->next;
        return;
    }
}

static void submit(struct lane *lane, struct io *io)
{
    struct replicated *it = (struct replicated *)lane;

    if (io->op == IO_READ) {
        it->inner->ops->submit(it->inner_lane, io);
        return;
    }
    if (it->gives_up) {
        io->done(io, ENOTCONN);
        return;
    }
    if (it->queue == NULL && start(it, io))
        return;
    io->next = NULL;
    *it->last = io;
    it->last = &io->next;
}

/* What has waited for a part of its own, or for the end of another write, until it is too late. */
static void fail_queued(struct replicated *it, uint64_t ms)
{
    struct io *all = it->queue, *failed = NULL;

    it->queue = NULL;
    it->last = &it->queue;
    while (all != NULL) {
        struct io *io = all;

        all = io->next;
        if (io_older_than(io, ms)) {
            io->next = failed;
            failed = io;
        } else {
            io->next = NULL;
            *it->last = io;
            it->last = &io->next;
        }
    }
    /* A finished request's hook may submit another request: the queue is in order by then. */
    while (failed != NULL) {
        struct io *io = failed;

        failed = io->next;
        io->done(io, ENOTCONN);
    }
}

/* What takes too long. */
static void look_at_clock(struct replicated *it)
{
    uint64_t now = now_ms();

    it->tick_at = now + TICK;
    if (it->link == NULL && now >= it->retry_at)
        primary_begin(it);
    if (it->queue != NULL)
        fail_queued(it, BEGIN_MS);
    for (uint32_t i = 0; i < WINDOW; i++) {
        struct part *part = &it->parts[i];
        uint64_t since = part->sent_ms > it->unready_ms ? part->sent_ms : it->unready_ms;

        if (part->kind == PART_FREE || part->answered)
            continue;
        bool sent = it->link != NULL && (part->kind != PART_HOST || it->state >= COPYING) && part->sent_ms != 0;
        /* A link that recovers has its own time for that, but not more than a write. */
        if (sent && (now - since > ANSWER_MS || (part->kind == PART_HOST && io_older_than(part->io, WAIT_MS)))) {
            primary_end(it, "it does not answer");
            return;
        }
        if (part->kind == PART_HOST && !sent && io_older_than(part->io, WAIT_MS)) {
            part_fail(part);
            part_finish(part);
        }
    }
}

static void poll_lane(struct lane *lane)
{
    struct replicated *it = (struct replicated *)lane;

    it->inner->ops->poll(it->inner_lane);
    if (it->link != NULL)
        primary_poll(it);
    if (now_ms() >= it->tick_at)
        look_at_clock(it);
    start_queued(it);
    it->inner->ops->poll(it->inner_lane);
}

static void arm(struct lane *lane)
{
    struct replicated *it = (struct replicated *)lane;

    if (it->link != NULL && bw_link_arm(it->link) != BW_OK)
        primary_end(it, bw_last_error());
}

static int lane_fd(struct lane *lane)
{
    return ((struct replicated *)lane)->epoll;
}

static struct lane *open_lane(struct backend *backend)
{
    struct replicated *it = (struct replicated *)backend;
    struct epoll_event readable = {.events = EPOLLIN};
    bw_region_attr attr;
    bw_region_info info = {.size = sizeof info};

    CHECK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = COPIES_AT + COPIES * CHUNK;
    attr.access = BW_ACCESS_LOCAL_WRITE;
    CHECK(bw_region_create(it->target->pd, &attr, &it->region));
    CHECK(bw_region_query(it->region, &info));
    it->memory = (uint8_t *)(uintptr_t)info.addr;
    it->lkey = info.lkey;
    it->epoll = epoll_create1(EPOLL_CLOEXEC);
    it->inner_lane = it->inner->ops->open_lane(it->inner);
    if (it->epoll < 0 || it->inner_lane == NULL)
        return NULL;
    int fd = it->inner->ops->fd(it->inner_lane);
    if (fd >= 0)
        epoll_ctl(it->epoll, EPOLL_CTL_ADD, fd, &readable);
    return (struct lane *)it;
}

static void give_up(struct lane *lane)
{
    struct replicated *it = (struct replicated *)lane;

    if (it->gives_up)
        return;
    it->gives_up = true;
    primary_end(it, "this target ends");
    for (uint32_t i = 0; i < WINDOW; i++) {
        struct part *part = &it->parts[i];

        if (part->kind == PART_FREE || part->answered)
            continue;
        part_fail(part);
        part_finish(part);
    }
    fail_queued(it, 0);
}

/* No host waits for anything, but a copy may be on its way. */
static void close_lane(struct lane *lane)
{
    struct replicated *it = (struct replicated *)lane;
    bool busy;

    give_up(lane);
    do {
        struct pollfd blocks = {.fd = it->inner->ops->fd(it->inner_lane), .events = POLLIN};

        it->inner->ops->poll(it->inner_lane);
        busy = false;
        for (uint32_t i = 0; i < WINDOW; i++)
            busy |= it->parts[i].kind != PART_FREE;
        if (busy)
            poll(&blocks, 1, 10);
    } while (busy);
    it->inner->ops->close_lane(it->inner_lane);
    close(it->epoll);
    CHECK(bw_region_destroy(it->region));
}

static void close_replicated(struct backend *backend)
{
    struct replicated *it = (struct replicated *)backend;

    it->inner->ops->close(it->inner);
    CHECK(bw_connector_destroy(it->connector));
    free(it->dirty);
    free(it);
}

static const struct backend_ops ops = {open_lane, close_lane, submit, poll_lane, lane_fd, close_replicated, arm,
                                       give_up};

struct backend *replicated_open(struct target *target, struct backend *inner, const char *host, uint32_t port,
                                bool alone)
{
    struct replicated *it = must_calloc(1, sizeof *it);
    bw_link_retry retry;

    it->backend = (struct backend){.bytes = inner->bytes, .volatile_cache = true, .ops = &ops};
    it->inner = inner;
    it->target = target;
    it->alone = alone;
    it->last = &it->queue;
    it->chunks = (inner->bytes + CHUNK - 1) / CHUNK;
    it->dirty = must_calloc(it->chunks, 1);
    if (getrandom(&it->name, sizeof it->name, 0) != sizeof it->name)
        die("no random number: %s", strerror(errno));
    CHECK(bw_link_retry_default(&retry, sizeof retry));
    retry.attempts = 2;
    retry.step_ns = UINT64_C(1000000000);
    CHECK(bw_connector_create(target->device, host, port, &retry, &it->connector));
    return &it->backend;
}
