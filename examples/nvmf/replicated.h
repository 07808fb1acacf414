/*
 * What the two halves of a replicated backend share: replicated.c has the requests of hosts, and their deadlines;
 * primary.c has the link to the replica. One thread, the worker's, owns all of it.
 */
#ifndef REPLICATED_H
#define REPLICATED_H

#include "mirror.h"

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
static inline uint8_t *message_of(const struct replicated *it, const struct part *part)
{
    return it->memory + (size_t)(part - it->parts) * MESSAGE;
}
static inline uint8_t *answer_of(const struct replicated *it, uint32_t index)
{
    return it->memory + (size_t)WINDOW * MESSAGE + (size_t)index * ANSWER;
}
enum { COPIES_AT = (WINDOW * MESSAGE + 2 * WINDOW * ANSWER + PAGE - 1) / PAGE * PAGE };

/* replicated.c */
struct part *part_take(struct replicated *it, enum kind kind, uint64_t offset, uint64_t length);
void part_local_done(struct io *local, int error);
void part_without_link(struct replicated *it, struct part *part);
void part_fail(struct part *part);
void part_finish(struct part *part);
bool io_older_than(const struct io *io, uint64_t ms);

/* primary.c */
void primary_send(struct replicated *it, struct part *part);
void primary_begin(struct replicated *it);
void primary_end(struct replicated *it, const char *why);
void primary_poll(struct replicated *it);

#endif
