/*
 * Admin commands, except for Identify and log pages: features, asynchronous events, abort, keep-alive.
 */
#include "target.h"

enum {
    FEATURE_ARBITRATION = 0x01,
    FEATURE_POWER = 0x02,
    FEATURE_TEMPERATURE = 0x04,
    FEATURE_ERROR_RECOVERY = 0x05,
    FEATURE_WRITE_CACHE = 0x06,
    FEATURE_QUEUES = 0x07,
    FEATURE_WRITE_ATOMICITY = 0x0a,
    FEATURE_ASYNC_EVENTS = 0x0b,
    FEATURE_KEEP_ALIVE = 0x0f,
    FEATURE_HOST_ID = 0x81,
};

static uint32_t queues_granted(const struct controller *controller)
{
    uint32_t most = controller->io_queues - 1u;

    return most | most << 16;
}

/* The host's identifier can be looked at; Connect has set it. */
static void give_host_id(struct command *command)
{
    memcpy(command->data, command->queue->controller->host_id, 16);
    command_finish(command, OK);
}

static void get_features(struct command *command)
{
    struct controller *controller = command->queue->controller;
    uint32_t word = get32(sqe(command) + SQE_CDW10);
    uint8_t feature = (uint8_t)word;
    uint32_t select = word >> 8 & 7;

    switch (feature) {
    case FEATURE_ARBITRATION:
    case FEATURE_POWER:
    case FEATURE_TEMPERATURE:
    case FEATURE_ERROR_RECOVERY:
    case FEATURE_WRITE_ATOMICITY:
    case FEATURE_ASYNC_EVENTS:
        /* Of the values that can be selected, the default is 0, and none is saved. */
        command->result = select == 0 ? controller->features[feature] : select == 3 ? 4 : 0;
        break;
    case FEATURE_WRITE_CACHE:
        command->result = select < 3 && command->worker->target->backend->volatile_cache;
        break;
    case FEATURE_QUEUES:
        command->result = select == 3 ? 4 : queues_granted(controller);
        break;
    case FEATURE_KEEP_ALIVE:
        command->result = select == 0 ? controller->keep_alive_ms : select == 3 ? 4 : 0;
        break;
    case FEATURE_HOST_ID:
        if ((get32(sqe(command) + SQE_CDW11) & 1) == 0)
            command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
        else
            command_give(command, 16, give_host_id);
        return;
    default:
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
        return;
    }
    command_finish(command, select > 3 ? INVALID_FIELD | DO_NOT_RETRY : OK);
}

static void set_features(struct command *command)
{
    struct controller *controller = command->queue->controller;
    uint32_t word = get32(sqe(command) + SQE_CDW10), value = get32(sqe(command) + SQE_CDW11);
    uint8_t feature = (uint8_t)word;
    uint16_t status = OK;

    if ((word & 1u << 31) != 0) {
        command_finish(command, FEATURE_NOT_SAVEABLE | DO_NOT_RETRY);
        return;
    }
    switch (feature) {
    case FEATURE_ARBITRATION:
    case FEATURE_POWER:
    case FEATURE_TEMPERATURE:
    case FEATURE_ERROR_RECOVERY:
    case FEATURE_WRITE_ATOMICITY:
    case FEATURE_ASYNC_EVENTS:
        controller->features[feature] = value;
        break;
    case FEATURE_WRITE_CACHE:
        /* It is what the backend is. */
        if ((value & 1) != command->worker->target->backend->volatile_cache)
            status = FEATURE_NOT_CHANGEABLE | DO_NOT_RETRY;
        break;
    case FEATURE_QUEUES: {
        uint32_t submission = (value & 0xffff) + 1, completion = (value >> 16) + 1;
        uint32_t queues = submission < completion ? submission : completion;

        if (queues > 0xffff) {
            status = INVALID_FIELD | DO_NOT_RETRY;
            break;
        }
        controller->io_queues = (uint16_t)(queues < IO_QUEUES ? queues : IO_QUEUES);
        command->result = queues_granted(controller);
        break;
    }
    case FEATURE_KEEP_ALIVE:
        if (value > KEEP_ALIVE_SECONDS * 1000)
            status = KEEP_ALIVE_INVALID | DO_NOT_RETRY;
        else
            controller->keep_alive_ms = value;
        break;
    case FEATURE_HOST_ID:
        status = COMMAND_SEQUENCE_ERROR | DO_NOT_RETRY; /* over fabrics Connect sets it */
        break;
    default:
        status = INVALID_FIELD | DO_NOT_RETRY;
    }
    command_finish(command, status);
}

/* Held until there is something to report. Nothing of this target changes: that is never. */
static void async_event(struct command *command)
{
    struct controller *controller = command->queue->controller;

    for (int at = 0; at < ASYNC_EVENTS; at++) {
        if (controller->events[at] == NULL) {
            controller->events[at] = command;
            command->step = STEP_HELD;
            return;
        }
    }
    command_finish(command, ASYNC_EVENT_LIMIT | DO_NOT_RETRY);
}

/* Releases held commands, without a response: the controller is reset, or the connection ends. */
void events_forget(struct queue *queue)
{
    struct controller *controller = queue->controller;

    for (int at = 0; at < ASYNC_EVENTS; at++) {
        if (controller->events[at] != NULL)
            command_release(controller->events[at]);
        controller->events[at] = NULL;
    }
}

/* Held commands can be aborted. I/O is about to be done anyway. */
static void abort_command(struct command *command)
{
    struct controller *controller = command->queue->controller;
    uint32_t word = get32(sqe(command) + SQE_CDW10);

    command->result = 1; /* not aborted */
    for (int at = 0; at < ASYNC_EVENTS; at++) {
        struct command *held = controller->events[at];

        if ((word & 0xffff) == 0 && held != NULL && get16(sqe(held) + SQE_CID) == word >> 16) {
            controller->events[at] = NULL;
            command->result = 0;
            command_finish(held, ABORT_REQUESTED);
            break;
        }
    }
    command_finish(command, OK);
}

/* That it came is all: the time of each command is noted when it is received. */
static void keep_alive(struct command *command)
{
    command_finish(command, OK);
}

void admin_command(struct command *command)
{
    struct controller *controller = command->queue->controller;
    uint8_t opcode = sqe(command)[SQE_OPCODE];

    if ((controller->configuration & CC_ENABLE) == 0) {
        command_finish(command, COMMAND_SEQUENCE_ERROR | DO_NOT_RETRY);
        return;
    }
    switch (opcode) {
    case ADMIN_IDENTIFY:
        identify_command(command);
        break;
    case ADMIN_GET_LOG:
        log_command(command);
        break;
    case ADMIN_GET_FEATURES:
        if (get32(sqe(command) + SQE_CDW10) % 256 == FEATURE_HOST_ID)
            get_features(command); /* the only one with data */
        else
            command_without_data(command, get_features);
        break;
    case ADMIN_SET_FEATURES:
        command_without_data(command, set_features);
        break;
    case ADMIN_ASYNC_EVENT:
        command_without_data(command, async_event);
        break;
    case ADMIN_ABORT:
        command_without_data(command, abort_command);
        break;
    case ADMIN_KEEP_ALIVE:
        command_without_data(command, keep_alive);
        break;
    default:
        command_finish(command, INVALID_OPCODE | DO_NOT_RETRY);
    }
}
