/*
 * What a primary and its replica say to each other over a link: messages of the primary, each of which the
 * replica answers when it has done what the message says. Integers are little-endian.
 */
#ifndef MIRROR_H
#define MIRROR_H

#include "target.h"

enum {
    WINDOW = 64,          /* messages without an answer */
    MESSAGE = 32,         /* bytes of one, and then those of a write */
    ANSWER = 24,
    LINK_SECONDS = 5,     /* that a link may take to recover; then it ends */
    ANSWER_SECONDS = 10,  /* that a message may wait for its answer while the link works */
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

/* Why a link has ended, or what it is doing. */
static inline const char *mirror_why(bw_link *link, bw_link_info *info)
{
    info->size = sizeof *info;
    if (bw_link_query(link, info) != BW_OK || info->why[0] == '\0')
        return "it was closed";
    return info->why;
}

/* Hook of a link: what is wrong with the device ends the program, as it does without a link. */
void mirror_fault(void *context, const bw_fault *fault, const bw_class *means, uint64_t epoch);

#endif
