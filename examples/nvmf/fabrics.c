/*
 * Fabrics commands: Connect, which makes a connection an admin queue or an I/O queue of a controller;
 * Property Get and Set, which stand for a controller's registers; Disconnect.
 */
#include "target.h"

/* Where Connect names a field that is wrong: an offset in its command or in its data. */
static void invalid(struct command *command, uint16_t offset, bool in_data, uint16_t status)
{
    command->result = offset | (uint64_t)in_data << 16;
    command_finish(command, status | DO_NOT_RETRY);
}
enum { FIELD_QID = 42, FIELD_SQSIZE = 44 };
enum { DATA_CNTLID = 16, DATA_SUBNQN = 256, DATA_HOSTNQN = 512 };

static bool is_nqn(const uint8_t *field)
{
    const uint8_t *end = memchr(field, 0, NQN_MAX + 1);

    return end != NULL && end > field;
}

static struct controller *controller_of(struct worker *worker, uint16_t id)
{
    struct controller *at = worker->controllers;

    while (at != NULL && at->id != id)
        at = at->next;
    return at;
}

/* Workers have ids of their own: no two controllers of the target have the same. */
static uint16_t new_id(struct worker *worker)
{
    uint32_t step = worker->target->workers_count, most = 0xffef / step;
    uint16_t id;

    do {
        worker->next_controller = (uint16_t)((worker->next_controller + 1u) % most);
        id = (uint16_t)(1 + worker->number + worker->next_controller * step);
    } while (controller_of(worker, id) != NULL);
    return id;
}

/* Whether the host, which is named in the data of Connect, may have one more queue. */
static bool may_have(struct command *command)
{
    struct queue *queue = command->queue;
    const uint8_t *data = command->data;
    uint32_t entries = get16(sqe(command) + FIELD_SQSIZE) + 1u;
    const char *why = share_take(queue, (const char *)data + DATA_HOSTNQN, data, entries);

    if (why == NULL)
        return true;
    worker_log(queue->worker, queue->address, stderr, "queue %u of %s is refused: %s\n", queue->qid, queue->peer, why);
    command_finish(command, CONNECT_BUSY);
    return false;
}

static void connected(struct command *command, struct controller *controller)
{
    struct queue *queue = command->queue;

    queue->controller = controller;
    queue->state = QUEUE_READY;
    queue->size = (uint16_t)(get16(sqe(command) + FIELD_SQSIZE) + 1);
    queue->head = 1;
    queue->no_flow = (sqe(command)[46] & 1 << 2) != 0;
    controller->queues[queue->qid] = queue;
    controller->heard_ms = command->worker->now_ms;
    command->result = controller->id;
    command_finish(command, OK);
}

static void connect_admin(struct command *command)
{
    struct worker *worker = command->worker;
    const uint8_t *data = command->data;
    const char *subsystem = (const char *)data + DATA_SUBNQN;
    bool discovery = strcmp(subsystem, DISCOVERY_NQN) == 0;

    if (!discovery && strcmp(subsystem, worker->target->nqn) != 0) {
        invalid(command, DATA_SUBNQN, true, CONNECT_INVALID);
        return;
    }
    if (get16(data + DATA_CNTLID) != ANY_CONTROLLER) {
        invalid(command, DATA_CNTLID, true, CONNECT_INVALID);
        return;
    }
    if (get32(sqe(command) + 48) > KEEP_ALIVE_SECONDS * 1000) {
        command_finish(command, KEEP_ALIVE_INVALID | DO_NOT_RETRY);
        return;
    }
    struct controller *controller = calloc(1, sizeof *controller);
    if (controller == NULL) {
        command_finish(command, CONNECT_BUSY);
        return;
    }
    if (!may_have(command)) {
        free(controller);
        return;
    }
    controller->id = new_id(worker);
    controller->discovery = discovery;
    memcpy(controller->host_id, data, sizeof controller->host_id);
    strcpy(controller->host_nqn, (const char *)data + DATA_HOSTNQN);
    controller->keep_alive_ms = get32(sqe(command) + 48);
    controller->io_queues = IO_QUEUES;
    controller->next = worker->controllers;
    worker->controllers = controller;
    if (!worker->target->quiet)
        worker_log(worker, command->queue->address, stdout, "controller %u: %s%s\n", controller->id,
                   controller->host_nqn, discovery ? " looks around" : "");
    connected(command, controller);
}

static void connect_io(struct command *command)
{
    const uint8_t *data = command->data;
    struct controller *controller = controller_of(command->worker, get16(data + DATA_CNTLID));
    uint16_t qid = command->queue->qid;

    if (controller == NULL || controller->discovery)
        invalid(command, DATA_CNTLID, true, CONNECT_INVALID);
    else if (strcmp((const char *)data + DATA_SUBNQN, command->worker->target->nqn) != 0)
        invalid(command, DATA_SUBNQN, true, CONNECT_INVALID);
    else if (strcmp((const char *)data + DATA_HOSTNQN, controller->host_nqn) != 0)
        invalid(command, DATA_HOSTNQN, true, CONNECT_INVALID_HOST);
    else if (memcmp(data, controller->host_id, sizeof controller->host_id) != 0)
        invalid(command, 0, true, CONNECT_INVALID_HOST);
    else if ((controller->configuration & CC_ENABLE) == 0)
        command_finish(command, COMMAND_SEQUENCE_ERROR | DO_NOT_RETRY);
    else if (qid > controller->io_queues || controller->queues[qid] != NULL)
        invalid(command, FIELD_QID, false, CONNECT_INVALID);
    else if (may_have(command))
        connected(command, controller);
}

/* With its 1,024 bytes of data. */
static void connect_host(struct command *command)
{
    const uint8_t *data = command->data;

    if (command->queue->state != QUEUE_CONNECTED)
        /* Another one came while the data of this one was read. */
        command_finish(command, COMMAND_SEQUENCE_ERROR | DO_NOT_RETRY);
    else if (!is_nqn(data + DATA_SUBNQN))
        invalid(command, DATA_SUBNQN, true, CONNECT_INVALID);
    else if (!is_nqn(data + DATA_HOSTNQN))
        invalid(command, DATA_HOSTNQN, true, CONNECT_INVALID);
    else if (command->queue->qid == 0)
        connect_admin(command);
    else
        connect_io(command);
}

static void connect_command(struct command *command)
{
    const uint8_t *at = sqe(command);
    struct queue *queue = command->queue;
    uint16_t entries = get16(at + FIELD_SQSIZE);
    uint16_t most = queue->qid == 0 ? ADMIN_DEPTH : IO_DEPTH;

    if (queue->state != QUEUE_CONNECTED)
        command_finish(command, COMMAND_SEQUENCE_ERROR | DO_NOT_RETRY);
    else if (get16(at + 40) != 0)
        command_finish(command, CONNECT_INCOMPATIBLE | DO_NOT_RETRY);
    else if (get16(at + FIELD_QID) != queue->qid)
        invalid(command, FIELD_QID, false, CONNECT_INVALID);
    else if (entries == 0 || entries >= most)
        invalid(command, FIELD_SQSIZE, false, CONNECT_INVALID);
    else
        command_take(command, CONNECT_DATA, false, connect_host);
}

static void property_get(struct command *command)
{
    struct controller *controller = command->queue->controller;
    uint32_t offset = get32(sqe(command) + 44);
    bool wide = (sqe(command)[40] & 7) == 1;

    if (wide != (offset == PROPERTY_CAP)) {
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
        return;
    }
    switch (offset) {
    case PROPERTY_CAP: /* queues are contiguous; ready within 5 s; the NVM command set; 4 KiB pages */
        command->result = (IO_DEPTH - 1) | 1u << 16 | 10u << 24 | UINT64_C(1) << 37;
        break;
    case PROPERTY_VS:
        command->result = 0x00010400;
        break;
    case PROPERTY_CC:
        command->result = controller->configuration;
        break;
    case PROPERTY_CSTS:
        command->result = (controller->configuration & CC_ENABLE ? CSTS_READY : 0u) |
                          (controller->shut_down ? CSTS_SHUTDOWN_DONE : 0u);
        break;
    default:
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
        return;
    }
    command_finish(command, OK);
}

static void property_set(struct command *command)
{
    struct controller *controller = command->queue->controller;
    uint32_t offset = get32(sqe(command) + 44), value = get32(sqe(command) + 48);
    /* Page size, command set and arbitration: 0; entries of 64 and 16 bytes, or not set yet. */
    uint32_t settings = value & CC_SETTINGS, sizes = value >> 16 & 0xff;

    if (offset != PROPERTY_CC || (sqe(command)[40] & 7) != 0 || settings != 0 ||
        (sizes != 0x46 && ((value & CC_ENABLE) != 0 || sizes != 0))) {
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
        return;
    }
    bool was_enabled = (controller->configuration & CC_ENABLE) != 0;
    controller->configuration = value;
    if ((value & CC_SHUTDOWN) != 0)
        controller->shut_down = true;
    if (was_enabled && (value & CC_ENABLE) == 0) {
        /* A reset: the I/O queues and held commands end. */
        controller->shut_down = false;
        for (int qid = 1; qid <= IO_QUEUES; qid++)
            if (controller->queues[qid] != NULL)
                connection_close(controller->queues[qid], "its controller is reset");
        events_forget(command->queue);
    }
    command_finish(command, OK);
}

static void disconnect(struct command *command)
{
    if (command->queue->qid == 0) {
        command_finish(command, INVALID_QUEUE_TYPE | DO_NOT_RETRY);
    } else if (get16(sqe(command) + 40) != 0) {
        command_finish(command, CONNECT_INCOMPATIBLE | DO_NOT_RETRY);
    } else {
        command->queue->disconnect = true;
        command_finish(command, OK);
    }
}

void fabrics_command(struct command *command)
{
    uint8_t type = sqe(command)[SQE_FCTYPE];
    struct queue *queue = command->queue;

    if (type == FABRICS_CONNECT)
        connect_command(command);
    else if (queue->state != QUEUE_READY)
        command_finish(command, COMMAND_SEQUENCE_ERROR | DO_NOT_RETRY);
    else if (type == FABRICS_DISCONNECT)
        command_without_data(command, disconnect);
    else if (queue->qid == 0 && type == FABRICS_PROPERTY_GET)
        command_without_data(command, property_get);
    else if (queue->qid == 0 && type == FABRICS_PROPERTY_SET)
        command_without_data(command, property_set);
    else
        command_finish(command, INVALID_OPCODE | DO_NOT_RETRY);
}

/* The queue ends; with the admin queue its controller does, and all queues of that. */
void controller_drop_queue(struct queue *queue)
{
    struct controller *controller = queue->controller, **at = &queue->worker->controllers;

    if (controller == NULL)
        return;
    queue->controller = NULL;
    controller->queues[queue->qid] = NULL;
    if (queue->qid != 0)
        return;
    while (*at != controller)
        at = &(*at)->next;
    *at = controller->next;
    for (int qid = 1; qid <= IO_QUEUES; qid++)
        if (controller->queues[qid] != NULL)
            connection_close(controller->queues[qid], NULL);
    if (!queue->worker->target->quiet)
        worker_log(queue->worker, queue->address, stdout, "controller %u: ended\n", controller->id);
    free(controller);
}
