/*
 * Connections: a host asks for each of its queues by the communication manager, with private data that
 * say which queue it is to be. A connection ends when its host ends it, when a request on it fails, or
 * when its host breaks a rule; nothing of the other connections changes by that.
 */
#include "target.h"

enum { DRAIN_MS = 5000 };

static struct queue **hash_of(struct worker *worker, uint32_t qp_num)
{
    return &worker->by_number[qp_num % (sizeof worker->by_number / sizeof worker->by_number[0])];
}

struct queue *connection_of(struct worker *worker, uint32_t qp_num)
{
    struct queue *queue = *hash_of(worker, qp_num);

    while (queue != NULL && queue->qp_num != qp_num)
        queue = queue->same_hash;
    return queue;
}

static struct queue *by_context(struct worker *worker, const void *context)
{
    for (uint32_t i = 0; i < worker->queues_count; i++)
        if (worker->queues[i]->number == (uintptr_t)context)
            return worker->queues[i];
    return NULL;
}

/* 0, or why the request is rejected. Its private data may be followed by zeroes. */
static uint16_t judge(const bw_cm_event *event)
{
    const uint8_t *data = event->private_data;
    uint16_t qid = get16(data + 2), entries = get16(data + 6);

    if (event->private_data_len < CM_REQUEST)
        return CM_INVALID_LENGTH;
    if (get16(data) != 0)
        return CM_INVALID_FORMAT;
    if (qid > IO_QUEUES)
        return CM_INVALID_QID;
    if (entries == 0 || entries >= (qid == 0 ? ADMIN_DEPTH : IO_DEPTH))
        return CM_INVALID_HSQSIZE;
    if (get16(data + 4) == 0)
        return CM_INVALID_HRQSIZE;
    /* Its data could not be read. */
    return event->initiator_depth == 0 ? CM_INVALID_IRD : 0;
}

static void reject(struct worker *worker, bw_cm_id *id, uint16_t status, const char *why)
{
    uint8_t data[CM_REJECT] = {0};

    put16(data + 2, status);
    worker_log(worker, NULL, stderr, "rejected: status %u%s%s\n", status, why ? ": " : "", why ? why : "");
    bw_cm_reject(id, data, sizeof data);
    bw_cm_id_destroy(id);
}

static int create_qp(struct worker *worker, struct queue *queue)
{
    bw_qp_init_attr attr;
    bw_qp_attr has = {.size = sizeof has};
    int result = bw_qp_init_attr_default(&attr, sizeof attr);

    /* For each command a response, and the WRITE before it. */
    attr.max_send_wr = 2u * queue->size;
    attr.max_send_sge = 1;
    attr.max_inline_data = CQE;
    attr.srq = worker->srq;
    attr.reserve_cq = !worker->overruns;
    if (result == BW_OK)
        result = bw_qp_create(worker->target->pd, worker->cq, worker->cq, &attr, &queue->qp);
    if (result == BW_OK)
        result = bw_qp_query(queue->qp, &has);
    queue->qp_num = has.qp_num;
    queue->room = attr.max_send_wr;
    return result;
}

static int accept_queue(struct queue *queue, const bw_cm_event *event)
{
    uint8_t reply[CM_REPLY] = {0};
    bw_cm_param param;
    int result = bw_cm_param_default(&param, sizeof param);

    put16(reply + 2, queue->size);
    param.private_data = reply;
    param.private_data_len = sizeof reply;
    param.initiator_depth = event->initiator_depth < READ_DEPTH ? event->initiator_depth : READ_DEPTH;
    param.responder_resources = 0; /* the host may not READ */
    param.rnr_retry_count = 7;
    if (result == BW_OK)
        result = bw_cm_id_set_context(queue->id, (void *)(uintptr_t)queue->number);
    if (result == BW_OK)
        result = bw_cm_init_qp(queue->id, queue->qp, 0);
    if (result == BW_OK)
        result = bw_cm_accept(queue->id, queue->qp, &param);
    return result;
}

/* Whether hosts are served. A replica that is alone with its copy is none from here on. */
static bool serves(struct target *target)
{
    int role = ROLE_READY;

    if (atomic_compare_exchange_strong(&target->role, &role, ROLE_PROMOTED))
        printf("hosts come: this target is no replica any more\n");
    return role == ROLE_READY || role == ROLE_NONE || role == ROLE_PROMOTED;
}

static void requested(struct worker *worker, const bw_cm_event *event)
{
    const uint8_t *data = event->private_data;
    uint16_t status = judge(event);
    uint32_t port;

    if (status != 0 || worker->stopping) {
        reject(worker, event->request, status != 0 ? status : CM_NO_RESOURCES, NULL);
        return;
    }
    if (!serves(worker->target)) {
        reject(worker, event->request, CM_NO_RESOURCES, "this is a replica, whose primary is there or has not come");
        return;
    }
    struct queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL || worker->queues_count == QUEUES) {
        free(queue);
        reject(worker, event->request, CM_NO_RESOURCES, "too many queues");
        return;
    }
    queue->worker = worker;
    queue->id = event->request;
    queue->qid = get16(data + 2);
    queue->size = (uint16_t)(get16(data + 6) + 1);
    queue->since_ms = worker->now_ms;
    queue->last_response = &queue->responses;
    queue->last_waiting = &queue->waiting;
    /* Its remainder is the worker. */
    queue->number = worker->next_number += worker->target->workers_count;
    bw_cm_peer_addr(queue->id, queue->peer, &port);
    const char *why = share_take_new(queue);
    if (why != NULL) {
        reject(worker, queue->id, CM_NO_RESOURCES, why);
        free(queue);
        return;
    }
    int result = create_qp(worker, queue);
    if (result == BW_OK)
        result = accept_queue(queue, event);
    if (result != BW_OK) {
        reject(worker, queue->id, CM_NO_RESOURCES, bw_last_error());
        if (queue->qp != NULL)
            bw_qp_destroy(queue->qp);
        share_give_back(queue);
        free(queue);
        return;
    }
    struct queue **hash = hash_of(worker, queue->qp_num);
    queue->same_hash = *hash;
    *hash = queue;
    worker->queues[worker->queues_count++] = queue;
    fault_inject(queue);
}

void connection_event(struct worker *worker, const bw_cm_event *event)
{
    if (event->event == BW_CM_EVENT_CONNECT_REQUEST) {
        requested(worker, event);
        return;
    }
    struct queue *queue = by_context(worker, event->context);
    if (queue == NULL)
        return; /* it is gone */
    switch (event->event) {
    case BW_CM_EVENT_ESTABLISHED:
    case BW_CM_EVENT_TIMEWAIT_EXIT:
        break;
    case BW_CM_EVENT_DISCONNECTED:
        connection_close(queue, NULL);
        break;
    default:
        connection_close(queue, bw_cm_event_str(event->event));
    }
}

/* The queue pair goes to ERR; requests in flight are flushed and reported, then the queue is destroyed. */
void connection_close(struct queue *queue, const char *why)
{
    if (queue->state == QUEUE_CLOSING)
        return;
    if (why != NULL)
        worker_log(queue->worker, queue->address, stderr, "queue %u of %s ends: %s\n", queue->qid, queue->peer, why);
    queue->state = QUEUE_CLOSING;
    share_give_back_new(queue);
    queue->since_ms = queue->worker->now_ms;
    queue->worker->closing = true;
    if (queue->qid == 0 && queue->controller != NULL)
        events_forget(queue);
    controller_drop_queue(queue);
    /* That it is not connected, or no longer, is as good. */
    (void)bw_cm_disconnect(queue->id, queue->qp);
}

/* Has the device forget the requests of a queue that closes, and releases the commands they were of. */
static void forget_requests(struct queue *queue)
{
    struct worker *worker = queue->worker;

    if (bw_qp_reset(queue->qp, NULL, NULL) != BW_OK)
        worker_log(worker, queue->address, stderr, "queue %u of %s: %s\n", queue->qid, queue->peer, bw_last_error());
    for (uint32_t i = 0; i < RECEIVES; i++) {
        struct command *command = &worker->commands[i];

        if (command->queue == queue &&
            (command->step == STEP_READING || command->step == STEP_SENDING))
            command_release(command);
    }
}

/* Destroys a queue of which nothing is in flight. */
static void destroy(struct queue *queue)
{
    struct worker *worker = queue->worker;
    struct queue **at = hash_of(worker, queue->qp_num);

    while (*at != queue)
        at = &(*at)->same_hash;
    *at = queue->same_hash;
    CHECK(bw_qp_destroy(queue->qp));
    bw_cm_id_destroy(queue->id);
    share_give_back(queue);
    free(queue);
}

/* Destroys the queues that have closed, and forces those to close that take too long. */
void connections_reap(struct worker *worker, bool at_once)
{
    uint32_t kept = 0;

    worker->closing = false;
    for (uint32_t i = 0; i < worker->queues_count; i++) {
        struct queue *queue = worker->queues[i];

        if (queue->state == QUEUE_CLOSING && queue->waiting != NULL)
            command_resume_queue(queue);
        if (queue->state == QUEUE_CLOSING && queue->commands > 0 &&
            (at_once || worker->now_ms - queue->since_ms > DRAIN_MS))
            forget_requests(queue);
        if (queue->state == QUEUE_CLOSING && queue->commands == 0) {
            destroy(queue);
        } else {
            worker->closing |= queue->state == QUEUE_CLOSING;
            worker->queues[kept++] = queue;
        }
    }
    worker->queues_count = kept;
}

/* Hosts that do not go on: no Connect after the connection, or no command within the keep-alive time. */
void connection_timers(struct worker *worker)
{
    uint64_t now = worker->now_ms;

    if (worker->queues_count > 0)
        command_look_at_clock(worker);
    for (uint32_t i = 0; i < worker->queues_count; i++) {
        struct queue *queue = worker->queues[i];

        if (queue->state == QUEUE_CONNECTED && now - queue->since_ms > CONNECT_SECONDS * 1000)
            connection_close(queue, "no Connect came");
    }
    for (struct controller *at = worker->controllers, *next; at != NULL; at = next) {
        uint64_t limit = at->keep_alive_ms;

        next = at->next;
        if (limit == 0)
            limit = (at->discovery ? DISCOVERY_SECONDS : KEEP_ALIVE_SECONDS) * 1000;
        if (now - at->heard_ms > limit + 1000)
            connection_close(at->queues[0], "its keep-alive time is over");
    }
}
