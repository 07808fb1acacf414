/*
 * A command's way from its receive to its response. Its data comes with it, or is read from the host
 * by RDMA READ; data for the host goes out by RDMA WRITE, and the response by a SEND behind it.
 *
 * What the host says of its memory is checked here, once. Its key and address are used for nothing but
 * READs and WRITEs on its own connection, where a wrong one ends that connection.
 */
#include "target.h"

void command_release(struct command *command)
{
    struct worker *worker = command->worker;
    struct queue *queue = command->queue;

    block_return(command);
    command->step = STEP_FREE;
    command->queue = NULL;
    worker->to_post[worker->to_post_count++] = (uint32_t)(command - worker->commands);
    if (queue != NULL)
        queue->commands--;
}

void command_received(struct command *command, struct queue *queue, uint32_t bytes)
{
    command->queue = queue;
    command->received = bytes;
    command->remote_addr = 0;
    command->remote_key = 0;
    command->invalidate = false;
    command->to_host = false;
    command->length = 0;
    command->data = NULL;
    command->posted = 0;
    command->result = 0;
    command->arrived_ms = queue->worker->now_ms;
    queue->commands++;
    if (queue->state == QUEUE_CLOSING) {
        command_release(command);
        return;
    }
    if (bytes < SQE) {
        command_release(command);
        connection_close(queue, "it sent less than a command");
        return;
    }
    /* Its send queue has room for as many responses as a host can wait for. */
    if (queue->commands > (queue->state == QUEUE_CONNECTED ? (uint32_t)NEW_COMMANDS : 2u * queue->size)) {
        command_release(command);
        connection_close(queue, "it sent more commands than its queue holds");
        return;
    }
    queue->head = (uint16_t)((queue->head + 1) % queue->size);
    if (queue->controller != NULL)
        queue->controller->heard_ms = queue->worker->now_ms;
    uint8_t flags = sqe(command)[SQE_FLAGS], opcode = sqe(command)[SQE_OPCODE];
    if ((flags & FLAGS_PSDT) != FLAGS_SGL || (flags & FLAGS_FUSED) != 0)
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
    else if (opcode == FABRICS)
        fabrics_command(command);
    else if (queue->state != QUEUE_READY)
        command_finish(command, COMMAND_SEQUENCE_ERROR | DO_NOT_RETRY);
    else if (queue->qid == 0)
        admin_command(command);
    else
        io_command(command);
}

static void wait_in(struct command *command, struct command ***last, void (*resume)(struct command *command))
{
    command->step = STEP_NEEDS_ROOM;
    command->resume = resume;
    command->next = NULL;
    **last = command;
    *last = &command->next;
}

/* With the other commands of its host: no other host waits behind them. */
void command_wait_for_block(struct command *command, void (*resume)(struct command *command))
{
    wait_in(command, &command->queue->host->last_waiting, resume);
    command->worker->waiting++;
}

/* Until a request of this queue has completed. */
static void wait_for_room(struct command *command, void (*resume)(struct command *command))
{
    wait_in(command, &command->queue->last_waiting, resume);
}

/* There is room in its send queue, or it closes. */
void command_resume_queue(struct queue *queue)
{
    struct command *command = queue->waiting;

    queue->waiting = NULL;
    queue->last_waiting = &queue->waiting;
    while (command != NULL) {
        struct command *next = command->next;

        if (queue->state == QUEUE_CLOSING)
            command_release(command);
        else
            command->resume(command);
        command = next;
    }
}

/* Those of queues that close are released. The others go on in turn, as far as there are blocks. */
static void resume_host(struct worker *worker, struct host *host)
{
    struct command *command = host->waiting;
    bool enough = true;

    host->waiting = NULL;
    host->last_waiting = &host->waiting;
    while (command != NULL) {
        struct command *next = command->next;

        worker->waiting--;
        if (command->queue->state == QUEUE_CLOSING) {
            command_release(command);
        } else if (enough) {
            command->resume(command);
            enough = host->waiting == NULL;
        } else {
            command_wait_for_block(command, command->resume);
            /* The rest stays as it is. */
            if (!worker->closing) {
                *host->last_waiting = next;
                while (*host->last_waiting != NULL)
                    host->last_waiting = &(*host->last_waiting)->next;
                return;
            }
        }
        command = next;
    }
}

void command_resume_waiting(struct worker *worker)
{
    for (struct address *address = worker->addresses; address != NULL; address = address->next) {
        if (address->nobody.waiting != NULL)
            resume_host(worker, &address->nobody);
        for (struct host *host = address->hosts; host != NULL; host = host->next)
            if (host->waiting != NULL)
                resume_host(worker, host);
    }
    /* Another one is the first with the next block. */
    if (worker->addresses != NULL && worker->addresses->next != NULL) {
        struct address *first = worker->addresses, **at = &first->next;

        while (*at != NULL)
            at = &(*at)->next;
        worker->addresses = first->next;
        first->next = NULL;
        *at = first;
    }
}

/*
 * Hosts that do not take a response, or do not give their data: each wait has one deadline, however often the
 * device tries again. With the queue its controller ends. Some of the commands are looked at each time.
 */
void command_look_at_clock(struct worker *worker)
{
    for (uint32_t i = 0; i < RECEIVES / 16; i++) {
        struct command *command = &worker->commands[worker->looked_at];
        struct queue *queue = command->queue;

        worker->looked_at = (worker->looked_at + 1) % RECEIVES;
        if ((command->step != STEP_READING && command->step != STEP_SENDING) || queue == NULL ||
            queue->state == QUEUE_CLOSING || worker->now_ms - command->host_ms <= HOST_SECONDS * 1000)
            continue;
        if (queue->controller != NULL)
            queue = queue->controller->queues[0];
        connection_close(queue, command->step == STEP_READING ? "its host does not give the data of a command"
                                                              : "its host does not take a response");
    }
}

/* The host's memory, if it has the length that the command needs, or is longer where that is allowed. */
static uint16_t keyed(struct command *command, uint32_t length, bool or_longer)
{
    uint32_t has = get24(sqe(command) + SQE_SGL_LENGTH);
    const uint8_t *at = sqe(command);

    if (at[SQE_SGL_TYPE] != SGL_KEYED && at[SQE_SGL_TYPE] != SGL_KEYED_INVALIDATE)
        return SGL_TYPE_INVALID;
    command->invalidate = at[SQE_SGL_TYPE] == SGL_KEYED_INVALIDATE;
    command->remote_addr = get64(at + SQE_SGL_ADDR);
    command->remote_key = get32(at + SQE_SGL_KEY);
    return has == length || (or_longer && has > length) ? OK : DATA_SGL_LENGTH_INVALID;
}

void command_without_data(struct command *command, void (*run)(struct command *command))
{
    const uint8_t *at = sqe(command);
    bool in_capsule = at[SQE_SGL_TYPE] == SGL_IN_CAPSULE;
    uint16_t status;

    if (in_capsule)
        status = get32(at + SQE_SGL_LENGTH) == 0 ? OK : DATA_SGL_LENGTH_INVALID;
    else
        status = keyed(command, 0, false);
    if (status != OK)
        command_finish(command, status | DO_NOT_RETRY);
    else
        run(command);
}

/* The device is notified once of all that a queue has posted by then. */
static void ring_later(struct queue *queue)
{
    struct worker *worker = queue->worker;

    if (queue->rings)
        return;
    queue->rings = true;
    queue->next_to_ring = worker->to_ring;
    worker->to_ring = queue;
}

static void fetch(struct command *command)
{
    struct queue *queue = command->queue;

    if (queue->room < 1) {
        wait_for_room(command, fetch);
        return;
    }
    if (command->block.length == 0 && !block_take(command, command->length)) {
        command_wait_for_block(command, fetch);
        return;
    }
    command->data = (uint8_t *)(uintptr_t)command->block.addr;
    bw_sge sge = {command->block.addr, command->length, command->block.lkey};
    command->step = STEP_READING;
    command->host_ms = command->worker->now_ms;
    int result = bw_post_read(queue->qp, wr_id(command, WR_READ), &sge, command->remote_addr,
                              command->remote_key, BW_SEND_SIGNALED);
    if (result != BW_OK) {
        connection_close(queue, bw_strerror(result));
        command_release(command);
        return;
    }
    command->posted = 1;
    queue->room--;
    ring_later(queue);
}

/* Its data has arrived, or will not. */
void command_read(struct command *command, bool succeeded)
{
    struct queue *queue = command->queue;

    queue->room += command->posted;
    command->posted = 0;
    if (queue->waiting != NULL)
        command_resume_queue(queue);
    if (!succeeded || command->queue->state == QUEUE_CLOSING)
        command_release(command);
    else
        command->run(command);
}

void command_take(struct command *command, uint32_t length, bool or_longer,
                  void (*run)(struct command *command))
{
    const uint8_t *at = sqe(command);
    uint16_t status;

    command->length = length;
    command->run = run;
    if (at[SQE_SGL_TYPE] == SGL_IN_CAPSULE) {
        uint64_t offset = get64(at + SQE_SGL_ADDR);
        uint32_t came = command->received - SQE, has = get32(at + SQE_SGL_LENGTH);

        if ((or_longer ? has < length : has != length) || has > came) {
            command_finish(command, DATA_SGL_LENGTH_INVALID | DO_NOT_RETRY);
        } else if (offset > came - has) {
            command_finish(command, SGL_OFFSET_INVALID | DO_NOT_RETRY);
        } else {
            /* At the start, because backends want it aligned. */
            if (offset > 0)
                memmove(command->in_capsule, command->in_capsule + offset, length);
            command->data = command->in_capsule;
            run(command);
        }
        return;
    }
    status = keyed(command, length, or_longer);
    if (status != OK)
        command_finish(command, status | DO_NOT_RETRY);
    else if (length > MAX_TRANSFER)
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
    else
        fetch(command);
}

static void fill(struct command *command)
{
    if (!block_take(command, command->length)) {
        command_wait_for_block(command, fill);
        return;
    }
    command->data = (uint8_t *)(uintptr_t)command->block.addr;
    command->run(command);
}

void command_give(struct command *command, uint32_t length, void (*run)(struct command *command))
{
    uint16_t status = keyed(command, length, false);

    command->length = length;
    command->run = run;
    command->to_host = true;
    if (status != OK)
        command_finish(command, status | DO_NOT_RETRY);
    else if (length > MAX_TRANSFER)
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
    else
        fill(command);
}

void command_submit(struct command *command, enum io_op op, uint64_t offset, uint64_t length,
                    uint8_t *data, void (*done)(struct io *io, int error))
{
    struct worker *worker = command->worker;

    command->step = STEP_RUNNING;
    command->io.op = op;
    command->io.offset = offset;
    command->io.length = length;
    command->io.data = data;
    command->io.lkey = data == command->in_capsule ? worker->receives_info.lkey : command->block.lkey;
    command->io.since_ms = command->arrived_ms;
    command->io.done = done;
    worker->target->backend->ops->submit(worker->lane, &command->io);
}

/* The response joins those of its queue, which go out together when the worker has handled what came. */
static void respond(struct command *command)
{
    struct queue *queue = command->queue;
    uint32_t requests = command->to_host && command->status == OK && command->length > 0 ? 2 : 1;

    if (queue->room < requests) {
        wait_for_room(command, respond);
        return;
    }
    command->step = STEP_SENDING;
    command->host_ms = command->worker->now_ms;
    command->posted = requests;
    command->next = NULL;
    queue->room -= requests;
    *queue->last_response = command;
    queue->last_response = &command->next;
    ring_later(queue);
}

/* The requests of a response: the WRITE of its data, if it has any, and a SEND. */
static uint32_t build(const struct command *command, uint8_t response[CQE], bw_send_wr *wr, bw_sge *sge)
{
    const struct queue *queue = command->queue;
    uint32_t count = command->posted;

    memset(response, 0, CQE);
    put64(response + CQE_RESULT, command->result);
    put16(response + CQE_SQHD, queue->no_flow ? 0xffff : queue->head);
    put16(response + CQE_SQID, queue->qid);
    memcpy(response + CQE_CID, sqe(command) + SQE_CID, 2);
    put16(response + CQE_STATUS, (uint16_t)(command->status << 1));
    if (count == 2) {
        sge[0] = (bw_sge){(uint64_t)(uintptr_t)command->data, command->length, command->block.lkey};
        wr[0] = (bw_send_wr){
            .wr_id = wr_id(command, WR_WRITE),
            .sg_list = &sge[0],
            .num_sge = 1,
            .opcode = BW_WR_RDMA_WRITE,
            .remote_addr = command->remote_addr,
            .rkey = command->remote_key,
        };
    }
    sge[count - 1] = (bw_sge){(uint64_t)(uintptr_t)response, CQE, 0};
    wr[count - 1] = (bw_send_wr){
        .wr_id = wr_id(command, WR_SEND),
        .sg_list = &sge[count - 1],
        .num_sge = 1,
        .opcode = command->invalidate ? BW_WR_SEND_WITH_INV : BW_WR_SEND,
        .send_flags = BW_SEND_SIGNALED | BW_SEND_INLINE,
        .invalidate_rkey = command->remote_key,
    };
    return count;
}

/* Some responses of a queue, in one call. */
static void send_some(struct queue *queue)
{
    struct command *commands[BATCH];
    uint8_t responses[BATCH][CQE];
    bw_send_wr wr[2 * BATCH];
    bw_sge sge[2 * BATCH];
    const bw_send_wr *bad = wr;
    uint32_t taken = 0, count = 0;

    for (; taken < BATCH && queue->responses != NULL; taken++) {
        commands[taken] = queue->responses;
        queue->responses = commands[taken]->next;
        count += build(commands[taken], responses[taken], wr + count, sge + count);
    }
    if (queue->state != QUEUE_CLOSING) {
        int result = bw_post_send(queue->qp, wr, count, &bad);

        if (result == BW_OK)
            return;
        connection_close(queue, bw_strerror(result));
    }
    /* A request that was not posted is released; a WRITE that was posted alone is flushed, and releases its command. */
    uint32_t posted = (uint32_t)(bad - wr);
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t of_this = commands[i]->posted < posted ? commands[i]->posted : posted;

        posted -= of_this;
        queue->room += commands[i]->posted - of_this;
        commands[i]->posted = of_this;
        if (of_this == 0)
            command_release(commands[i]);
    }
}

void command_send_all(struct worker *worker)
{
    while (worker->to_ring != NULL) {
        struct queue *queue = worker->to_ring;
        bool responds = queue->responses != NULL;

        while (queue->responses != NULL)
            send_some(queue);
        /* READs that no response has followed. */
        if (!responds && queue->state != QUEUE_CLOSING)
            bw_ring_sq(queue->qp);
        queue->last_response = &queue->responses;
        queue->rings = false;
        worker->to_ring = queue->next_to_ring;
    }
}

void command_finish(struct command *command, uint16_t status)
{
    command->status = status;
    if (command->queue->state == QUEUE_CLOSING)
        command_release(command);
    else
        respond(command);
}
