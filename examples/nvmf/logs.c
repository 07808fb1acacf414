/*
 * Log pages: the pages that a controller has to have, and the discovery log.
 */
#include "target.h"

enum {
    LOG_ERRORS = 0x01,
    LOG_HEALTH = 0x02,
    LOG_FIRMWARE = 0x03,
    LOG_EFFECTS = 0x05,
    LOG_DISCOVERY = 0x70,
};
enum { LOG_MAX = 4096, RECORD = 1024 };

static void health(uint8_t *at)
{
    put16(at + 1, 300); /* kelvin */
    at[3] = 100;        /* spare, percent */
    at[4] = 10;         /* from which it is too little */
}

/* Commands that exist, and commands that change data. */
static void effects(uint8_t *at)
{
    static const uint8_t admin[] = {ADMIN_GET_LOG, ADMIN_IDENTIFY, ADMIN_ABORT, ADMIN_SET_FEATURES,
                                    ADMIN_GET_FEATURES, ADMIN_ASYNC_EVENT, ADMIN_KEEP_ALIVE};
    static const uint8_t reads[] = {IO_CMD_FLUSH, IO_CMD_READ, IO_CMD_COMPARE};
    static const uint8_t writes[] = {IO_CMD_WRITE, IO_CMD_WRITE_ZEROES, IO_CMD_DATASET};

    for (size_t i = 0; i < sizeof admin; i++)
        put32(at + 4 * admin[i], 1);
    for (size_t i = 0; i < sizeof reads; i++)
        put32(at + 1024 + 4 * reads[i], 1);
    for (size_t i = 0; i < sizeof writes; i++)
        put32(at + 1024 + 4 * writes[i], 1 | 1 << 1);
}

/* One record: the subsystem, at the address by which this host has come. */
static void discovery(const struct command *command, uint8_t *at)
{
    const struct target *target = command->worker->target;
    char host[BW_ADDR_MAX] = "", port[8];
    uint32_t number = 0;

    bw_cm_local_addr(command->queue->id, host, &number);
    snprintf(port, sizeof port, "%u", number & 0xffff);
    put64(at, 1);     /* GENCTR: it never changes */
    put64(at + 8, 1); /* NUMREC */
    at += RECORD;
    at[0] = 1;                             /* TRTYPE: RDMA */
    at[1] = strchr(host, ':') ? 2 : 1;     /* ADRFAM */
    at[2] = 2;                             /* SUBTYPE: a subsystem with namespaces */
    at[3] = 2;                             /* TREQ: no secure channel needed */
    put16(at + 4, 1);                      /* PORTID */
    put16(at + 6, ANY_CONTROLLER);         /* CNTLID */
    put16(at + 8, ADMIN_DEPTH);            /* ASQSZ */
    put_text(at + 32, port, 32);           /* TRSVCID */
    strcpy((char *)at + 256, target->nqn); /* SUBNQN */
    put_text(at + 512, host, 256);         /* TRADDR */
    at[768] = 1;                           /* TSAS: connected queue pairs, */
    at[769] = 1;                           /* no provider specified, */
    at[770] = 1;                           /* by RDMA_CM */
}

static uint32_t length_of(const struct command *command)
{
    uint32_t words = get16(sqe(command) + SQE_CDW10 + 2) | (uint32_t)get16(sqe(command) + SQE_CDW11) << 16;

    /* More than any log has, and than the limit of a transfer: it is refused by that. */
    return words < MAX_TRANSFER ? (words + 1) * 4 : 2 * MAX_TRANSFER;
}

static void run(struct command *command)
{
    uint64_t offset = get64(sqe(command) + SQE_CDW12);
    uint8_t log[LOG_MAX] = {0};
    uint32_t size = 512;

    switch (sqe(command)[SQE_CDW10]) {
    case LOG_ERRORS:
        size = 64;
        break;
    case LOG_HEALTH:
        health(log);
        break;
    case LOG_FIRMWARE:
        log[0] = 1;
        put_text(log + 8, "0.1", 8);
        break;
    case LOG_EFFECTS:
        effects(log);
        size = 4096;
        break;
    default:
        discovery(command, log);
        size = 2 * RECORD;
    }
    if (offset % 4 != 0 || offset > size) {
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
        return;
    }
    /* Bytes beyond its end are 0. */
    uint32_t there = size - (uint32_t)offset;
    if (there > command->length)
        there = command->length;
    memcpy(command->data, log + offset, there);
    memset(command->data + there, 0, command->length - there);
    command_finish(command, OK);
}

void log_command(struct command *command)
{
    uint8_t log = sqe(command)[SQE_CDW10];
    bool discovery = command->queue->controller->discovery;
    bool known = discovery ? log == LOG_DISCOVERY
                           : log == LOG_ERRORS || log == LOG_HEALTH || log == LOG_FIRMWARE ||
                                 log == LOG_EFFECTS;

    if (!known)
        command_finish(command, INVALID_LOG_PAGE | DO_NOT_RETRY);
    else
        command_give(command, length_of(command), run);
}
