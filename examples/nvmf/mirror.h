/*
 * What a primary and its replica say to each other over a link: messages of the primary, each of which the
 * replica answers when it has done what the message says. Integers are little-endian.
 */
#ifndef MIRROR_H
#define MIRROR_H

#include "target.h"
#include <poll.h>

enum {
    WINDOW = 64,          /* messages without an answer */
    MESSAGE = 32,         /* bytes of one, and then those of a write */
    ANSWER = 24,
    LINK_SECONDS = 5,     /* that a link may take to recover; then it ends */
    ANSWER_SECONDS = 5,   /* that a message, or an answer, may wait while the link works */
    WAIT_SECONDS = 10,    /* that a host's write may wait for the replica, from the arrival of its command on */
    CANDIDATES = 16,      /* links that have not said Hello */
    CANDIDATE_LEAST_MS = 250, /* before a candidate has to make room for another one */
    HELLO_MS = 3000,      /* from accepting a link to its Hello */
    REFUSED_MS = 500,     /* for the answer to a Hello that is refused */
};

enum mirror_op {
    MIRROR_HELLO = 1, /* the first: `offset` is the size of the namespace, `length` the name of the copy that
                         the primary makes, `durable` whether its blocks outlive its program */
    MIRROR_WRITE,
    MIRROR_ZERO,
    MIRROR_FLUSH,
    MIRROR_COMPLETE,  /* all blocks are the same: the replica may serve hosts when the primary is gone.
                         `length` is the copy's name, with which it answers the next Hello */
};

enum { MESSAGE_OP = 0, MESSAGE_DURABLE = 1, MESSAGE_TOKEN = 8, MESSAGE_OFFSET = 16, MESSAGE_LENGTH = 24 };
enum { ANSWER_TOKEN = 0, ANSWER_ERROR = 8 /* an errno */, ANSWER_VALUE = 16 };

/* What a link is made with; `qp` and `connect` have to stay until it is. */
static inline void mirror_link_init(bw_link_init *init, bw_qp_init_attr *qp, bw_connect_attr *connect)
{
    CHECK(bw_link_init_default(init, sizeof *init));
    CHECK(bw_qp_init_attr_default(qp, sizeof *qp));
    CHECK(bw_connect_attr_default(connect, sizeof *connect));
    qp->max_send_wr = 2 * WINDOW;
    qp->max_recv_wr = 2 * WINDOW;
    qp->max_send_sge = 2;
    qp->max_recv_sge = 2;
    qp->max_inline_data = ANSWER;
    connect->rnr_retry = 7;
    init->qp = qp;
    init->connect = connect;
    init->sleeps = 1;
    init->recovery_ns = LINK_SECONDS * UINT64_C(1000000000);
    init->seed = now_ms();
}

/* The answer to this message. */
static inline void mirror_answer(uint8_t answer[ANSWER], const uint8_t *message, int error, uint64_t value)
{
    memset(answer, 0, ANSWER);
    put64(answer + ANSWER_TOKEN, get64(message + MESSAGE_TOKEN));
    put32(answer + ANSWER_ERROR, (uint32_t)error);
    put64(answer + ANSWER_VALUE, value);
}

/* Why a link has ended, or what it is doing. */
static inline const char *mirror_why(bw_link *link, bw_link_info *info)
{
    info->size = sizeof *info;
    if (bw_link_query(link, info) != BW_OK || info->why[0] == '\0')
        return "it was closed";
    return info->why;
}

/* Hook of a link: a device's failure ends the program, as it does without a link. */
void mirror_fault(void *context, const bw_fault *fault, const bw_class *means, uint64_t epoch);

/* A link without a Hello. */
struct candidate {
    bw_link *link; /* NULL: the place is free */
    uint64_t since_ms;
    bool greets;   /* its Hello is in `message`, and not answered */
    bool refused;
    uint8_t *message;
    uint8_t answer[ANSWER];
};

/* candidates.c; the replica's thread owns them */
struct candidates {
    const bw_pd *pd;
    bw_listener *listener;
    bw_region *region;
    uint32_t lkey;
    uint64_t accepts_at, pause_ms; /* the pause after links could not be created */
    char why[BW_WHY_MAX];          /* as said last */
    struct candidate table[CANDIDATES];
};
struct candidates *candidates_create(struct target *target, const char *address, uint32_t port);
void candidates_destroy(struct candidates *all);
bool candidates_poll(struct candidates *all, struct replica *replica);
bool candidates_wait(struct candidates *all, struct pollfd *fds, nfds_t *count);

/* replica.c: 0, and the link is the primary's from then on; or an errno, EALREADY if there is a primary. */
int replica_greet(struct replica *it, const struct candidate *candidate, uint64_t *name);

#endif
