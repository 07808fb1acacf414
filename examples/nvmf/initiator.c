#include "initiator.h"
#include <sched.h>
#include <stdarg.h>
#include <time.h>

_Noreturn void die(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

uint64_t now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The number of the event, which is one of two. */
static uint32_t expect(struct queue *queue, uint32_t expected, uint32_t other)
{
    bw_cm_event event = {.size = sizeof event};

    CHECK(bw_cm_get_event(queue->channel, &event, PATIENCE_MS));
    queue->reason = event.status;
    if (event.event == BW_CM_EVENT_REJECTED && event.private_data_len >= CM_REJECT)
        queue->rejected = get16(event.private_data + 2);
    if (event.event != expected && event.event != other)
        die("queue %u: %s (%d)", queue->qid, bw_cm_event_str(event.event), event.status);
    return event.event;
}

static void create_memory(struct queue *queue)
{
    bw_region_attr attr;
    uint64_t each = DATA + PAGE + CAPSULE + CQE;

    CHECK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = queue->depth * each;
    attr.access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_READ | BW_ACCESS_REMOTE_WRITE;
    CHECK(bw_region_create(queue->pd, &attr, &queue->region));
    queue->memory.size = sizeof queue->memory;
    CHECK(bw_region_query(queue->region, &queue->memory));
    for (uint32_t i = 0; i < queue->depth; i++) {
        uint8_t *base = (uint8_t *)(uintptr_t)(queue->memory.addr + i * each);

        queue->slots[i].data = base;
        queue->slots[i].capsule = base + DATA + PAGE;
    }
}

/* The queue is of no use any more. The first reason stays. */
static void lose(struct queue *queue, const char *why)
{
    if (!queue->lost)
        queue->lost_by = why;
    queue->lost = true;
}

static uint8_t *response_of(const struct queue *queue, uint64_t index)
{
    return queue->slots[index].capsule + CAPSULE;
}

/* wr_id: the slot, and 1 in front of it for receives, which go by the same memory. */
enum { RECEIVE = DEPTH_MAX };

static void post_receive(struct queue *queue, uint64_t index)
{
    if (queue->deaf)
        return;
    bw_sge sge = {(uint64_t)(uintptr_t)response_of(queue, index), CQE, queue->memory.lkey};
    bw_recv_wr receive = {RECEIVE + index, &sge, 1, 0};

    int result = bw_post_recv(queue->qp, &receive, 1, NULL);
    if (result != BW_OK)
        lose(queue, bw_strerror(result));
}

static void create_qp(struct queue *queue)
{
    bw_qp_init_attr attr;
    uint32_t sends, receives;

    CHECK(bw_qp_init_attr_default(&attr, sizeof attr));
    attr.max_send_wr = queue->depth;
    attr.max_recv_wr = queue->depth;
    CHECK(bw_qp_cq_entries(&attr, &sends, &receives));
    bw_cq_attr cq = {.size = sizeof cq, .entries = sends + receives};
    CHECK(bw_cq_create(queue->device, &cq, &queue->cq));
    CHECK(bw_qp_create(queue->pd, queue->cq, queue->cq, &attr, &queue->qp));
}

void queue_request(struct queue *queue, const struct host *host, uint16_t qid, uint16_t depth)
{
    uint8_t request[CM_REQUEST] = {0};
    bw_cm_param param;

    memset(queue, 0, sizeof *queue);
    queue->host = host;
    queue->qid = qid;
    queue->depth = depth;
    CHECK(bw_cm_channel_create(host->provider, &queue->channel));
    CHECK(bw_cm_id_create(queue->channel, BW_PS_TCP, NULL, &queue->id));
    CHECK(bw_cm_resolve_addr(queue->id, host->source, host->address, host->port, PATIENCE_MS));
    expect(queue, BW_CM_EVENT_ADDR_RESOLVED, BW_CM_EVENT_ADDR_RESOLVED);
    CHECK(bw_cm_resolve_route(queue->id, PATIENCE_MS));
    expect(queue, BW_CM_EVENT_ROUTE_RESOLVED, BW_CM_EVENT_ROUTE_RESOLVED);
    CHECK(bw_cm_id_device(queue->id, &queue->device));
    CHECK(bw_pd_create(queue->device, &queue->pd));
    create_memory(queue);
    create_qp(queue);
    CHECK(bw_cm_init_qp(queue->id, queue->qp, BW_ACCESS_REMOTE_READ | BW_ACCESS_REMOTE_WRITE));
    for (uint32_t i = 0; i < depth; i++)
        post_receive(queue, i);
    put16(request + 2, qid);
    put16(request + 4, depth);
    put16(request + 6, (uint16_t)(depth - 1));
    CHECK(bw_cm_param_default(&param, sizeof param));
    param.private_data = request;
    param.private_data_len = sizeof request;
    if (host->request != NULL) {
        param.private_data = host->request;
        param.private_data_len = host->request_length;
    }
    param.responder_resources = 16; /* READs of the target */
    param.initiator_depth = 0;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    CHECK(bw_cm_connect(queue->id, queue->qp, &param));
}

bool queue_connect(struct queue *queue, const struct host *host, uint16_t qid, uint16_t depth)
{
    queue_request(queue, host, qid, depth);
    if (expect(queue, BW_CM_EVENT_CONNECT_RESPONSE, BW_CM_EVENT_REJECTED) == BW_CM_EVENT_REJECTED)
        return false;
    CHECK(bw_cm_establish(queue->id, queue->qp));
    return true;
}

bool queue_connect_patiently(struct queue *queue, const struct host *host, uint16_t qid, uint16_t depth,
                             uint32_t attempts)
{
    const struct timespec pause = {0, 500000000};

    for (uint32_t attempt = 1; !queue_connect(queue, host, qid, depth); attempt++) {
        if (attempt >= attempts || (queue->rejected != 0 && queue->rejected != CM_NO_RESOURCES))
            return false;
        queue_destroy(queue);
        nanosleep(&pause, NULL);
    }
    return true;
}

void queue_destroy(struct queue *queue)
{
    (void)bw_cm_disconnect(queue->id, queue->qp);
    CHECK(bw_qp_destroy(queue->qp));
    CHECK(bw_cm_id_destroy(queue->id));
    CHECK(bw_cq_destroy(queue->cq));
    CHECK(bw_region_destroy(queue->region));
    CHECK(bw_pd_destroy(queue->pd));
    CHECK(bw_device_close(queue->device));
    CHECK(bw_cm_channel_destroy(queue->channel));
}

void slot_prepare(const struct queue *queue, struct slot *slot, uint8_t opcode)
{
    memset(slot->capsule, 0, SQE);
    slot->capsule[SQE_OPCODE] = opcode;
    slot->capsule[SQE_FLAGS] = FLAGS_SGL;
    slot->capsule[SQE_SGL_TYPE] = SGL_KEYED;
    put16(slot->capsule + SQE_CID, (uint16_t)(slot - queue->slots));
}

struct slot *queue_slot(struct queue *queue, uint8_t opcode)
{
    for (uint32_t i = 0; i < queue->depth; i++) {
        if (!queue->slots[i].busy) {
            slot_prepare(queue, &queue->slots[i], opcode);
            return &queue->slots[i];
        }
    }
    die("queue %u: all of its %u commands are on their way", queue->qid, queue->depth);
}

void slot_keyed(const struct queue *queue, struct slot *slot, uint32_t length)
{
    put64(slot->capsule + SQE_SGL_ADDR, (uint64_t)(uintptr_t)slot->data);
    put24(slot->capsule + SQE_SGL_LENGTH, length);
    put32(slot->capsule + SQE_SGL_KEY, queue->memory.rkey);
    slot->capsule[SQE_SGL_TYPE] = SGL_KEYED;
}

void slot_in_capsule(struct slot *slot, uint32_t length)
{
    put64(slot->capsule + SQE_SGL_ADDR, 0);
    put64(slot->capsule + SQE_SGL_LENGTH, length); /* and what follows it is 0 */
    slot->capsule[SQE_SGL_TYPE] = SGL_IN_CAPSULE;
}

void queue_submit(struct queue *queue, struct slot *slot, uint32_t in_capsule)
{
    bw_sge sge = {(uint64_t)(uintptr_t)slot->capsule, SQE + in_capsule, queue->memory.lkey};

    slot->busy = true;
    slot->sent = slot->answered = false;
    slot->since_ns = now_ns();
    queue->busy++;
    int result = bw_post_send_one(queue->qp, (uint64_t)(slot - queue->slots), &sge, BW_SEND_SIGNALED);
    if (result == BW_OK)
        result = bw_ring_sq(queue->qp);
    if (result != BW_OK)
        lose(queue, bw_strerror(result));
}

/* What the target says is checked: it may name a slot that is not waiting for it. */
static void answered(struct queue *queue, const uint8_t *response, uint32_t length)
{
    uint16_t index = get16(response + CQE_CID);

    if (length != CQE || index >= queue->depth || !queue->slots[index].busy ||
        queue->slots[index].answered)
        die("queue %u: a response to no command: cid %u, %u bytes", queue->qid, index, length);
    struct slot *slot = &queue->slots[index];
    slot->status = get16(response + CQE_STATUS) >> 1;
    slot->result = get64(response + CQE_RESULT);
    slot->answered = true;
}

void queue_poll(struct queue *queue)
{
    bw_wc wc[16];
    int count = bw_poll(queue->cq, wc, 16);

    for (int i = 0; i < count; i++) {
        uint64_t index = wc[i].wr_id % RECEIVE;

        if (wc[i].status != BW_WC_SUCCESS) {
            lose(queue, bw_wc_status_str(wc[i].status));
        } else if (wc[i].wr_id < RECEIVE) {
            queue->slots[index].sent = true;
        } else {
            answered(queue, response_of(queue, index), wc[i].byte_len);
            index = get16(response_of(queue, index) + CQE_CID);
            post_receive(queue, wc[i].wr_id % RECEIVE);
        }
        if (queue->slots[index].busy && queue->slots[index].sent && queue->slots[index].answered) {
            queue->slots[index].busy = false;
            queue->busy--;
        }
    }
    if (count == 0) {
        bw_cm_event event = {.size = sizeof event};

        /* The other process may wait for this processor. */
        sched_yield();
        if (bw_cm_get_event(queue->channel, &event, 0) == BW_OK &&
            event.event == BW_CM_EVENT_DISCONNECTED)
            lose(queue, "the target has disconnected it");
    }
}

uint16_t queue_execute(struct queue *queue, struct slot *slot, uint32_t in_capsule)
{
    uint64_t limit = now_ns() + PATIENCE_MS * UINT64_C(1000000);

    queue_submit(queue, slot, in_capsule);
    while (slot->busy) {
        queue_poll(queue);
        if (queue->lost)
            return LOST;
        if (now_ns() > limit)
            die("queue %u: no response within %d ms", queue->qid, PATIENCE_MS);
    }
    return slot->status;
}

uint16_t nvme_connect(struct queue *queue, uint16_t controller, uint32_t keep_alive_ms, uint64_t *result)
{
    struct slot *slot = queue_slot(queue, FABRICS);
    uint16_t status;

    slot->capsule[SQE_FCTYPE] = FABRICS_CONNECT;
    put16(slot->capsule + 42, queue->qid);
    put16(slot->capsule + 44, (uint16_t)(queue->depth - 1));
    put32(slot->capsule + 48, keep_alive_ms);
    memset(slot->data, 0, CONNECT_DATA);
    memcpy(slot->data, queue->host->id, sizeof queue->host->id);
    put16(slot->data + 16, controller);
    snprintf((char *)slot->data + 256, NQN_FIELD, "%s", queue->host->nqn);
    snprintf((char *)slot->data + 512, NQN_FIELD, "nqn.2014-08.org.nvmexpress:bellwire-host");
    slot_keyed(queue, slot, CONNECT_DATA);
    status = queue_execute(queue, slot, 0);
    *result = slot->result;
    return status;
}

uint16_t nvme_set_property(struct queue *queue, uint32_t offset, uint32_t value)
{
    struct slot *slot = queue_slot(queue, FABRICS);

    slot->capsule[SQE_FCTYPE] = FABRICS_PROPERTY_SET;
    put32(slot->capsule + 44, offset);
    put32(slot->capsule + 48, value);
    return queue_execute(queue, slot, 0);
}

uint16_t nvme_get_property(struct queue *queue, uint32_t offset, bool wide, uint64_t *value)
{
    struct slot *slot = queue_slot(queue, FABRICS);
    uint16_t status;

    slot->capsule[SQE_FCTYPE] = FABRICS_PROPERTY_GET;
    slot->capsule[40] = wide;
    put32(slot->capsule + 44, offset);
    status = queue_execute(queue, slot, 0);
    *value = slot->result;
    return status;
}

struct slot *nvme_identify(struct queue *queue, uint8_t cns, uint32_t namespace_id, uint16_t *status)
{
    struct slot *slot = queue_slot(queue, ADMIN_IDENTIFY);

    put32(slot->capsule + SQE_NSID, namespace_id);
    slot->capsule[SQE_CDW10] = cns;
    slot_keyed(queue, slot, PAGE);
    *status = queue_execute(queue, slot, 0);
    return slot;
}

uint16_t host_connect(struct queue *admin, const struct host *host, uint32_t keep_alive_ms, uint32_t attempts)
{
    uint64_t controller, value = 0;
    uint16_t status;

    if (!queue_connect_patiently(admin, host, 0, 32, attempts))
        die("the target rejects its admin queue: %u", admin->rejected);
    status = nvme_connect(admin, ANY_CONTROLLER, keep_alive_ms, &controller);
    if (status == LOST)
        die("the connection has ended before its Connect was answered: %s", admin->lost_by);
    if (status != OK)
        die("Connect: status %x", status);
    status = nvme_set_property(admin, PROPERTY_CC, 0x460001);
    if (status != OK)
        die("enabling the controller: status %x", status);
    for (int attempt = 0; (value & CSTS_READY) == 0; attempt++)
        if (nvme_get_property(admin, PROPERTY_CSTS, false, &value) != OK || attempt > 1000000)
            die("the controller does not become ready");
    return (uint16_t)controller;
}
