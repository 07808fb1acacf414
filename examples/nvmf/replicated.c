/*
 * A backend whose blocks are on a second target as well, its replica, over a link. A write is done when both
 * have it; a read is served here.
 *
 * The link recovers by itself: writes wait meanwhile. When it ends, because the replica is gone or the cable
 * is cut for too long, what was written since then, or was on its way, is remembered by its chunks, and a new
 * link is asked for every second. When there is one, the chunks are copied, all of them if the replica does
 * not have this primary's copy any more, and the replica learns that it is complete.
 *
 * A write has one deadline, WAIT_SECONDS after its command has arrived, whatever is tried until then. It fails
 * at the deadline, or, if the target is to go on alone, is done without the replica as soon as the link has
 * ended. An answer is waited for until ANSWER_SECONDS after its message was sent: a message is sent only if
 * that ends before the deadline of its write, so that an old write does not end a new link.
 *
 * One write at a time for each block: both have the same bytes of two writes that overlap.
 */
#include "mirror.h"
#include <errno.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    CHUNK = MAX_TRANSFER,
    COPIES = 4,        /* chunks on their way at once */
    WAIT_MS = WAIT_SECONDS * 1000,
    ANSWER_MS = ANSWER_SECONDS * 1000,
    BEGIN_MS = WAIT_MS - ANSWER_MS, /* from the arrival of a command until it is too late to begin */
    RETRY_MS = 1000,
    TICK = 10,         /* ms between looks at the clock for what has taken too long */
};

enum kind { PART_FREE, PART_HOST, PART_COPY, PART_OWN /* Hello, Complete */ };

/* Something that both have to do. */
struct part {
    enum kind kind;
    struct replicated *of;
    enum mirror_op op;
    struct io *io;    /* the host's */
    struct io local;
    uint64_t token;
    uint64_t sent_ms; /* when its message was last handed to the link */
    bool local_done;  /* nothing of it is on its way here, */
    bool sending;     /* in the link, */
    bool waits;       /* to be sent, */
    bool answered;    /* and the replica has done it, or is done without */
    int error;
};

enum state { AWAY, LINKING, GREETING, COPYING, IN_SYNC };

struct replicated {
    struct backend backend;
    struct backend *inner;
    struct target *target;
    bw_connector *connector;
    bool alone;
    bool gives_up;     /* the target ends */
    /* The one lane's. */
    struct lane *inner_lane;
    bw_link *link;
    enum state state;
    int epoll;
    uint64_t name;     /* of the copy that this process makes */
    uint64_t sequence, retry_at, tick_at, unready_ms;
    uint8_t *dirty;    /* a byte for each chunk that the replica may not have */
    uint64_t chunks, next_chunk;
    bw_region *region;
    uint8_t *memory;   /* messages, answers, chunks to copy */
    uint32_t lkey;
    bool unposted[2 * WINDOW], posts; /* receives for answers; whether there are any to be posted */
    char why[BW_WHY_MAX]; /* the replica is gone, as said last */
    struct part parts[WINDOW];
    struct io *queue, **last;  /* what has no part yet */
};

/* Where things are in the memory of the link. */
static uint8_t *message_of(const struct replicated *it, const struct part *part)
{
    return it->memory + (size_t)(part - it->parts) * MESSAGE;
}
static uint8_t *answer_of(const struct replicated *it, uint32_t index)
{
    return it->memory + (size_t)WINDOW * MESSAGE + (size_t)index * ANSWER;
}
enum { COPIES_AT = (WINDOW * MESSAGE + 2 * WINDOW * ANSWER + PAGE - 1) / PAGE * PAGE };

static void link_end(struct replicated *it, const char *why);

static void mark(struct replicated *it, const struct part *part)
{
    if (part->op == MIRROR_FLUSH || part->kind == PART_OWN || part->local.length == 0)
        return;
    uint64_t last = (part->local.offset + part->local.length - 1) / CHUNK;
    for (uint64_t at = part->local.offset / CHUNK; at <= last; at++)
        it->dirty[at] = 1;
}

static void finish(struct part *part)
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
static struct part *take(struct replicated *it, enum kind kind, uint64_t offset, uint64_t length)
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

/* Has the link send it, now or when it can. */
static void send_part(struct replicated *it, struct part *part)
{
    uint8_t *message = message_of(it, part);
    bw_sge parts[2] = {{(uint64_t)(uintptr_t)message, MESSAGE, it->lkey},
                       {(uint64_t)(uintptr_t)part->local.data, (uint32_t)part->local.length, part->local.lkey}};
    bw_send_wr wr = {
        .wr_id = (uint64_t)(part - it->parts),
        .sg_list = parts,
        .num_sge = part->op == MIRROR_WRITE ? 2 : 1,
        .opcode = BW_WR_SEND,
        .send_flags = BW_SEND_SIGNALED,
    };

    memset(message, 0, MESSAGE);
    message[MESSAGE_OP] = (uint8_t)part->op;
    message[MESSAGE_DURABLE] = part->local.durable;
    put64(message + MESSAGE_TOKEN, part->token);
    put64(message + MESSAGE_OFFSET, part->local.offset);
    put64(message + MESSAGE_LENGTH, part->local.length);
    part->sending = bw_link_post_send(it->link, &wr, 1, BW_REPLAY_IF_SAFE, NULL) == BW_OK;
    part->waits = !part->sending;
    part->sent_ms = now_ms();
    fault_link(it->target, it->link);
}

static void local_done(struct io *local, int error)
{
    struct part *part = (struct part *)((char *)local - offsetof(struct part, local));
    struct replicated *it = part->of;

    part->local_done = true;
    if (error != 0) {
        /* The two may differ now: that ends with the next copy. */
        part->error = error;
        mark(it, part);
        if (it->state >= GREETING)
            link_end(it, "a block cannot be read or written here");
        part->answered = true;
    } else if (part->kind == PART_COPY && !part->answered) {
        send_part(it, part);
    }
    finish(part);
}

/* It is over, without the replica. */
static void fail(struct part *part)
{
    part->error = ENOTCONN;
    part->answered = true;
    part->waits = false;
}

static bool older_than(const struct io *io, uint64_t ms)
{
    return now_ms() - io->since_ms >= ms;
}

/* Without a link: it waits for one, or is done without. */
static void without_link(struct replicated *it, struct part *part)
{
    mark(it, part);
    part->waits = part->kind == PART_HOST && !it->alone && !part->answered;
    part->answered |= !part->waits;
    if (part->waits && (it->gives_up || older_than(part->io, WAIT_MS)))
        fail(part);
}

static bool start(struct replicated *it, struct io *io)
{
    struct part *part = take(it, PART_HOST, io->offset, io->length);

    if (part == NULL)
        return false;
    part->io = io;
    part->op = io->op == IO_WRITE ? MIRROR_WRITE : io->op == IO_FLUSH ? MIRROR_FLUSH : MIRROR_ZERO;
    part->local = *io;
    /* What a block holds once it was discarded has to be the same on both. */
    part->local.op = io->op == IO_DISCARD ? IO_ZERO : io->op;
    part->local.done = local_done;
    if (it->state >= COPYING)
        send_part(it, part);
    else
        without_link(it, part);
    it->inner->ops->submit(it->inner_lane, &part->local);
    return true;
}

/* What is done may submit the same request again: it is out of the queue by then. */
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

/* A message of the link's own. */
static void say(struct replicated *it, enum mirror_op op, uint64_t offset, uint64_t length)
{
    struct part *part = take(it, PART_OWN, 0, 0);

    if (part == NULL)
        return; /* again with the next poll */
    part->op = op;
    part->local_done = true;
    part->local.offset = offset;
    part->local.length = length;
    part->local.durable = it->inner->keeps;
    send_part(it, part);
    if (op == MIRROR_HELLO)
        it->state = GREETING;
}

static void drained(void *context, const bw_link_wc *wc)
{
    struct replicated *it = context;

    if (wc->wr_id < WINDOW)
        it->parts[wc->wr_id].sending = false;
}

/* Not every second the same. */
static void complain(struct replicated *it, const char *why)
{
    if (strncmp(it->why, why, sizeof it->why - 1) == 0)
        return;
    snprintf(it->why, sizeof it->why, "%s", why);
    fprintf(stderr, "the replica is gone: %s\n", why);
}

/* The link is over: what was on its way goes on without it. */
static void link_end(struct replicated *it, const char *why)
{
    bw_link *link = it->link;

    if (link == NULL)
        return;
    complain(it, why);
    epoll_ctl(it->epoll, EPOLL_CTL_DEL, bw_link_fd(link), NULL);
    /* At once: reads go on meanwhile, and what is on its way is marked, to be copied. */
    CHECK(bw_link_drain(link, 0, drained, it, NULL));
    CHECK(bw_link_destroy(link));
    it->link = NULL;
    it->state = AWAY;
    it->retry_at = now_ms() + RETRY_MS;
    for (uint32_t i = 0; i < WINDOW; i++) {
        struct part *part = &it->parts[i];

        if (part->kind != PART_FREE && !part->answered)
            without_link(it, part);
        finish(part);
    }
}

static void link_begin(struct replicated *it)
{
    bw_qp_init_attr qp;
    bw_connect_attr connect;
    bw_link_init init;
    struct epoll_event readable = {.events = EPOLLIN};

    mirror_link_init(&init, &qp, &connect);
    it->retry_at = now_ms() + RETRY_MS;
    if (it->gives_up)
        return;
    if (bw_link_connect(it->connector, it->target->pd, &init, &it->link) != BW_OK) {
        complain(it, bw_last_error());
        return;
    }
    CHECK(bw_link_on_fault(it->link, mirror_fault, NULL));
    epoll_ctl(it->epoll, EPOLL_CTL_ADD, bw_link_fd(it->link), &readable);
    it->state = LINKING;
    for (uint32_t i = 0; i < 2 * WINDOW; i++)
        it->unposted[i] = true;
}

/* Receives that are not posted: all at first, and those that came while the link could take none. */
static void post_receives(struct replicated *it)
{
    bool any = false;

    for (uint32_t i = 0; i < 2 * WINDOW; i++) {
        bw_sge sge = {(uint64_t)(uintptr_t)answer_of(it, i), ANSWER, it->lkey};

        if (!it->unposted[i])
            continue;
        memset(answer_of(it, i), 0, ANSWER);
        it->unposted[i] = bw_link_post_recv_one(it->link, WINDOW + i, &sge) != BW_OK;
        any = true;
    }
    it->posts = false;
    if (any)
        bw_link_ring_rq(it->link);
}

/* The replica's answer. One that came twice, or is of no message, is of no interest. */
static void answered(struct replicated *it, const uint8_t *answer)
{
    uint64_t token = get64(answer + ANSWER_TOKEN), value = get64(answer + ANSWER_VALUE);
    struct part *part = &it->parts[token % WINDOW];
    int error = (int)get32(answer + ANSWER_ERROR);
    bool hello = part->op == MIRROR_HELLO;

    if (part->kind == PART_FREE || part->token != token || part->answered)
        return;
    if (error != 0) {
        link_end(it, error == EBUSY    ? "it serves hosts itself: restart it as a replica to give up its blocks"
                     : error == EEXIST ? "it has the copy of an earlier primary, and this target's memory is empty: let hosts "
                                         "use the replica, or start it anew to give up its blocks"
                     : error == EALREADY ? "it has another primary"
                     : error == ENOSPC ? "it has fewer blocks than this target"
                                       : strerror(error));
        return;
    }
    part->answered = true;
    if (hello) {
        it->why[0] = '\0';
        if (value != it->name)
            memset(it->dirty, 1, it->chunks);
        it->next_chunk = 0;
        it->state = COPYING;
        for (uint32_t i = 0; i < WINDOW; i++) {
            struct part *waiting = &it->parts[i];

            if (!waiting->waits)
                continue;
            /* Its chunk is marked: it is copied. */
            if (older_than(waiting->io, BEGIN_MS)) {
                fail(waiting);
                finish(waiting);
            } else {
                send_part(it, waiting);
            }
        }
    } else if (part->op == MIRROR_COMPLETE) {
        it->state = IN_SYNC;
        printf("the replica is complete\n");
    }
    finish(part);
}

/* The chunks that the replica may not have, some at a time; then it is complete. */
static void copy(struct replicated *it)
{
    bool used[COPIES] = {false}, any = false;

    for (uint32_t i = 0; i < WINDOW; i++) {
        any |= it->parts[i].kind == PART_OWN || it->parts[i].kind == PART_COPY;
        if (it->parts[i].kind == PART_COPY)
            used[(it->parts[i].local.data - it->memory - COPIES_AT) / CHUNK] = true;
    }
    for (uint32_t i = 0; i < COPIES; i++) {
        while (!used[i] && it->next_chunk < it->chunks && !it->dirty[it->next_chunk])
            it->next_chunk++;
        if (used[i] || it->next_chunk == it->chunks)
            continue;
        uint64_t offset = it->next_chunk * CHUNK, rest = it->backend.bytes - offset;
        struct part *part = take(it, PART_COPY, offset, rest < CHUNK ? rest : CHUNK);
        if (part == NULL)
            return; /* a host writes there: with one of the next polls */
        any = true;
        it->dirty[it->next_chunk++] = 0;
        part->op = MIRROR_WRITE;
        part->local.op = IO_READ;
        part->local.data = it->memory + COPIES_AT + (size_t)i * CHUNK;
        part->local.lkey = it->lkey;
        part->local.done = local_done;
        it->inner->ops->submit(it->inner_lane, &part->local);
        if (it->state != COPYING)
            return;
    }
    if (!any && it->next_chunk == it->chunks)
        say(it, MIRROR_COMPLETE, 0, it->name);
}

static void completed(struct replicated *it, const bw_link_wc *wc)
{
    struct part *part = &it->parts[wc->wr_id % WINDOW];

    if (wc->wr_id >= WINDOW) {
        uint32_t index = (uint32_t)wc->wr_id - WINDOW;

        it->unposted[index] = it->posts = true;
        if (wc->outcome == BW_OUTCOME_EXECUTED && it->link != NULL)
            answered(it, answer_of(it, index));
        return;
    }
    /* Also when an outcome before this one was the link's end. */
    part->sending = false;
    if (it->link == NULL) {
        finish(part);
    } else if (wc->outcome == BW_OUTCOME_FAILED) {
        link_end(it, "it does not take a message");
    } else {
        /* It may have come all the same: to do it twice is as good as once. */
        part->waits = wc->outcome != BW_OUTCOME_EXECUTED && !part->answered;
        finish(part);
    }
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
        if (older_than(io, ms)) {
            io->next = failed;
            failed = io;
        } else {
            io->next = NULL;
            *it->last = io;
            it->last = &io->next;
        }
    }
    /* What is done may submit another request: the queue is in order by then. */
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
        link_begin(it);
    if (it->queue != NULL)
        fail_queued(it, BEGIN_MS);
    for (uint32_t i = 0; i < WINDOW; i++) {
        struct part *part = &it->parts[i];
        uint64_t since = part->sent_ms > it->unready_ms ? part->sent_ms : it->unready_ms;

        if (part->kind == PART_FREE || part->answered)
            continue;
        bool sent = it->link != NULL && (part->kind != PART_HOST || it->state >= COPYING) && part->sent_ms != 0;
        /* A link that recovers has its own time for that, but not more than a write. */
        if (sent && (now - since > ANSWER_MS || (part->kind == PART_HOST && older_than(part->io, WAIT_MS)))) {
            link_end(it, "it does not answer");
            return;
        }
        if (part->kind == PART_HOST && !sent && older_than(part->io, WAIT_MS)) {
            fail(part);
            finish(part);
        }
    }
}

static void poll_link(struct replicated *it)
{
    bw_link_wc wc[16];
    bw_link_info info;
    int count = 1;

    /* A replica that answers without end does not keep this thread from its hosts. */
    for (int turn = 0; turn < WINDOW && count > 0 && it->link != NULL; turn++) {
        count = bw_link_poll(it->link, wc, 16);
        for (int i = 0; i < count; i++)
            completed(it, &wc[i]);
    }
    if (it->link == NULL)
        return;
    int state = bw_link_get_state(it->link);
    if (state >= BW_LINK_CLOSED) {
        link_end(it, mirror_why(it->link, &info));
        return;
    }
    if (it->state == LINKING || it->posts)
        post_receives(it);
    if (state != BW_LINK_READY) {
        it->unready_ms = now_ms();
        return;
    }
    if (it->state == LINKING)
        say(it, MIRROR_HELLO, it->backend.bytes, it->name);
    for (uint32_t i = 0; i < WINDOW; i++)
        if (it->parts[i].waits && (it->state >= COPYING || it->parts[i].kind == PART_OWN))
            send_part(it, &it->parts[i]);
    if (it->state == COPYING)
        copy(it);
}

static void poll_lane(struct lane *lane)
{
    struct replicated *it = (struct replicated *)lane;

    it->inner->ops->poll(it->inner_lane);
    if (it->link != NULL)
        poll_link(it);
    if (now_ms() >= it->tick_at)
        look_at_clock(it);
    start_queued(it);
    it->inner->ops->poll(it->inner_lane);
}

static void arm(struct lane *lane)
{
    struct replicated *it = (struct replicated *)lane;

    if (it->link != NULL && bw_link_arm(it->link) != BW_OK)
        link_end(it, bw_last_error());
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
    link_end(it, "this target ends");
    for (uint32_t i = 0; i < WINDOW; i++) {
        struct part *part = &it->parts[i];

        if (part->kind == PART_FREE || part->answered)
            continue;
        fail(part);
        finish(part);
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
