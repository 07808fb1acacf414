/*
 * The host's side of NVMe over RDMA: queues, and commands on them. host.c and hostile.c are built on it.
 * One thread, which polls.
 */
#ifndef INITIATOR_H
#define INITIATOR_H

#include "nvme.h"
#include <bellwire.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 128,
    DATA = 131072,    /* bytes of a command's data buffer */
    CAPSULE = SQE + PAGE,
    PATIENCE_MS = 30000, /* for anything that has to come */
    LOST = 0xffff,       /* a status: the connection has ended */
};

_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline int check(int code, const char *call)
{
    if (code < 0)
        die("%s: %s (%s)", call, bw_strerror(code), bw_last_error());
    return code;
}
#define CHECK(call) check(call, #call)
uint64_t now_ns(void);

struct host {
    const char *provider, *address, *nqn;
    const char *source; /* an address of this computer, or NULL */
    uint32_t port;
    uint8_t id[16];
    /* Private data of the request to connect; NULL: the right ones. */
    const uint8_t *request;
    uint32_t request_length;
};

/* A command on its way. It is over when its SEND and its response have both come. */
struct slot {
    bool busy, sent, answered;
    uint16_t status;
    uint64_t result;
    uint64_t since_ns;
    uint8_t *capsule; /* SQE bytes, then data that goes with it */
    uint8_t *data;    /* DATA bytes that the target may read and write */
};

struct queue {
    const struct host *host;
    bw_cm_channel *channel;
    bw_cm_id *id;
    bw_device *device;
    bw_pd *pd;
    bw_cq *cq;
    bw_qp *qp;
    bw_region *region;
    bw_region_info memory;
    uint16_t qid, depth;
    bool lost;
    const char *lost_by; /* why, in words */
    bool deaf; /* takes no responses: no receives are posted */
    uint16_t rejected; /* the target's reason */
    int32_t reason;    /* the communication manager's */
    uint32_t busy;
    struct slot slots[DEPTH_MAX];
};

/* Asks for a queue; what the target replies is not waited for. */
void queue_request(struct queue *queue, const struct host *host, uint16_t qid, uint16_t depth);
/* Connects a queue pair for this queue. False: the target has rejected it. */
bool queue_connect(struct queue *queue, const struct host *host, uint16_t qid, uint16_t depth);
/* Another attempt each half second while the target has no resources for it. */
bool queue_connect_patiently(struct queue *queue, const struct host *host, uint16_t qid, uint16_t depth,
                             uint32_t attempts);
void queue_destroy(struct queue *queue);

/* A command without data in this slot, which is free; and in any free slot. */
void slot_prepare(const struct queue *queue, struct slot *slot, uint8_t opcode);
struct slot *queue_slot(struct queue *queue, uint8_t opcode);
/* The slot's data: `length` bytes of its buffer, or of its capsule. */
void slot_keyed(const struct queue *queue, struct slot *slot, uint32_t length);
void slot_in_capsule(struct slot *slot, uint32_t length);
/* Sends the command, with `in_capsule` bytes behind it. */
void queue_submit(struct queue *queue, struct slot *slot, uint32_t in_capsule);
/* Handles what has come; slots that are over have busy == false. */
void queue_poll(struct queue *queue);
/* Submits, and waits for the response: its status, or LOST. */
uint16_t queue_execute(struct queue *queue, struct slot *slot, uint32_t in_capsule);

/* The command Connect, which makes it a queue of a controller. */
uint16_t nvme_connect(struct queue *queue, uint16_t controller, uint32_t keep_alive_ms, uint64_t *result);
uint16_t nvme_set_property(struct queue *queue, uint32_t offset, uint32_t value);
uint16_t nvme_get_property(struct queue *queue, uint32_t offset, bool wide, uint64_t *value);
/* Into the data of the slot, which is free again. */
struct slot *nvme_identify(struct queue *queue, uint8_t cns, uint32_t namespace_id, uint16_t *status);

/* An admin queue with an enabled controller. Ends the program when it cannot be had. */
uint16_t host_connect(struct queue *admin, const struct host *host, uint32_t keep_alive_ms, uint32_t attempts);

#endif
