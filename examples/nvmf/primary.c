/*
 * A primary's link to its replica: it is asked for, greets, copies what the replica may not have, sends what hosts
 * write, and ends.
 */
#include "replicated.h"
#include <errno.h>
#include <sys/epoll.h>

/* Has the link send it, now or when it can. */
void primary_send(struct replicated *it, struct part *part)
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

/* A message of the link's own. */
static void say(struct replicated *it, enum mirror_op op, uint64_t offset, uint64_t length)
{
    struct part *part = part_take(it, PART_OWN, 0, 0);

    if (part == NULL)
        return; /* again with the next poll */
    part->op = op;
    part->local_done = true;
    part->local.offset = offset;
    part->local.length = length;
    part->local.durable = it->inner->keeps;
    primary_send(it, part);
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

/* The link is over: requests on their way go on without it. */
void primary_end(struct replicated *it, const char *why)
{
    bw_link *link = it->link;

    if (link == NULL)
        return;
    complain(it, why);
    epoll_ctl(it->epoll, EPOLL_CTL_DEL, bw_link_fd(link), NULL);
    /* At once: reads go on meanwhile, and writes on their way are marked, to be copied. */
    CHECK(bw_link_drain(link, 0, drained, it, NULL));
    CHECK(bw_link_destroy(link));
    it->link = NULL;
    it->state = AWAY;
    it->retry_at = now_ms() + RETRY_MS;
    for (uint32_t i = 0; i < WINDOW; i++) {
        struct part *part = &it->parts[i];

        if (part->kind != PART_FREE && !part->answered)
            part_without_link(it, part);
        part_finish(part);
    }
}

void primary_begin(struct replicated *it)
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

/* Receives to post: at first all, later the receives that completed while the link could take none. */
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
        primary_end(it, error == EBUSY    ? "it serves hosts itself: restart it as a replica to give up its blocks"
                     : error == EEXIST ? "it has the copy of an earlier primary, and this target's memory is empty: let "
                                         "hosts use the replica, or start it anew to give up its blocks"
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
            if (io_older_than(waiting->io, BEGIN_MS)) {
                part_fail(waiting);
                part_finish(waiting);
            } else {
                primary_send(it, waiting);
            }
        }
    } else if (part->op == MIRROR_COMPLETE) {
        it->state = IN_SYNC;
        printf("the replica is complete\n");
    }
    part_finish(part);
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
        struct part *part = part_take(it, PART_COPY, offset, rest < CHUNK ? rest : CHUNK);
        if (part == NULL)
            return; /* a host writes there: with one of the next polls */
        any = true;
        it->dirty[it->next_chunk++] = 0;
        part->op = MIRROR_WRITE;
        part->local.op = IO_READ;
        part->local.data = it->memory + COPIES_AT + (size_t)i * CHUNK;
        part->local.lkey = it->lkey;
        part->local.done = part_local_done;
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
        part_finish(part);
    } else if (wc->outcome == BW_OUTCOME_FAILED) {
        primary_end(it, "it does not take a message");
    } else {
        /* It may have come all the same: to do it twice is as good as once. */
        part->waits = wc->outcome != BW_OUTCOME_EXECUTED && !part->answered;
        part_finish(part);
    }
}

void primary_poll(struct replicated *it)
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
        primary_end(it, mirror_why(it->link, &info));
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
            primary_send(it, &it->parts[i]);
    if (it->state == COPYING)
        copy(it);
}
