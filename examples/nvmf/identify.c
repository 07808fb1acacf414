/*
 * Identify: what the controller and its namespace are. The numbers in brackets are offsets of the
 * structures in the specification.
 */
#include "target.h"

enum {
    CNS_NAMESPACE = 0x00,
    CNS_CONTROLLER = 0x01,
    CNS_NAMESPACES = 0x02,
    CNS_DESCRIPTORS = 0x03,
    CNS_CONTROLLER_OF_SET = 0x06,
};

static void controller(struct command *command)
{
    const struct target *target = command->worker->target;
    const struct controller *controller = command->queue->controller;
    uint8_t *at = command->data;

    put_text(at + 4, target->serial, 20);
    put_text(at + 24, "bellwire nvmf target", 40);
    put_text(at + 64, "0.1", 8);
    at[76] = 1 << 1;                           /* CMIC: other controllers of the subsystem exist */
    at[77] = MAX_TRANSFER_SHIFT;               /* MDTS */
    put16(at + 78, controller->id);            /* CNTLID */
    put32(at + 80, 0x00010400);                /* VER */
    put32(at + 96, 1u << 0 | 1u << 6);         /* CTRATT: 128-bit host id, traffic keeps it alive */
    at[111] = controller->discovery ? 2 : 1;   /* CNTRLTYPE */
    at[258] = 3;                               /* ACL: aborts at once, from 0 */
    at[259] = ASYNC_EVENTS - 1;                /* AERL */
    at[260] = 1 << 1 | 1;                      /* FRMW: one slot, read-only */
    at[261] = 1 << 1 | 1 << 2;                 /* LPA: log of effects, pages by offset */
    put16(at + 320, 10);                       /* KAS: in 100 ms */
    put16(at + 514, IO_DEPTH);                 /* MAXCMD */
    put32(at + 536, 1u << 0 | 1u << 2 | 1u << 20); /* SGLS: keyed, and offsets in the capsule */
    memcpy(at + 768, controller->discovery ? DISCOVERY_NQN : target->nqn,
           strlen(controller->discovery ? DISCOVERY_NQN : target->nqn));
    put32(at + 1796, CQE / 16);                /* IORCSZ */
    at[1803] = 1;                              /* MSDBD: descriptors of a command */
    if (controller->discovery) {
        put32(at + 1792, SQE / 16); /* IOCCSZ */
        return;
    }
    at[512] = 0x66;                                    /* SQES */
    at[513] = 0x44;                                    /* CQES */
    put32(at + 516, 1);                                /* NN */
    put16(at + 520, 1u << 0 | 1u << 2 | 1u << 3);      /* ONCS: compare, dataset, zeroes */
    at[525] = (uint8_t)(3 << 1 | target->backend->volatile_cache); /* VWC: flush of all, too */
    put32(at + 540, 1);                                /* MNAN */
    put32(at + 1792, (SQE + IN_CAPSULE) / 16);         /* IOCCSZ */
    put16(at + 1804, 1);                               /* OFCS: Disconnect */
}

static void controller_of_set(struct command *command)
{
    command->data[1] = MAX_ZERO_SHIFT;                  /* WZSL */
    command->data[3] = DISCARD_RANGES;                  /* DMRL */
    put32(command->data + 4, MAX_ZERO >> command->worker->target->block_shift); /* DMRSL */
}

static void namespace(struct command *command)
{
    const struct target *target = command->worker->target;
    uint8_t *at = command->data;

    put64(at, target->blocks);
    put64(at + 8, target->blocks);
    put64(at + 16, target->blocks);
    at[30] = 1;               /* NMIC: several hosts may use it */
    at[33] = 1;               /* DLFEAT: what is deallocated reads as zeroes */
    memcpy(at + 104, target->guid, 16);
    at[130] = (uint8_t)target->block_shift; /* LBADS of the only format */
}

static void descriptors(struct command *command)
{
    command->data[0] = 2;  /* an NGUID */
    command->data[1] = 16;
    memcpy(command->data + 4, command->worker->target->guid, 16);
}

static void run(struct command *command)
{
    uint32_t namespace_id = get32(sqe(command) + SQE_NSID);
    uint8_t set = sqe(command)[SQE_CDW11 + 3];
    uint16_t status = OK;

    memset(command->data, 0, PAGE);
    switch (sqe(command)[SQE_CDW10]) {
    case CNS_NAMESPACE:
        /* That of all has what they share. There is one. */
        if (namespace_id != 1 && namespace_id != ALL_NAMESPACES)
            status = INVALID_NAMESPACE | DO_NOT_RETRY;
        else
            namespace(command);
        break;
    case CNS_CONTROLLER:
        controller(command);
        break;
    case CNS_NAMESPACES:
        if (namespace_id >= ALL_NAMESPACES - 1)
            status = INVALID_NAMESPACE | DO_NOT_RETRY;
        else if (namespace_id < 1)
            put32(command->data, 1);
        break;
    case CNS_DESCRIPTORS:
        if (namespace_id != 1)
            status = INVALID_NAMESPACE | DO_NOT_RETRY;
        else
            descriptors(command);
        break;
    case CNS_CONTROLLER_OF_SET:
        if (set == 0)
            controller_of_set(command);
        else
            status = INVALID_FIELD | DO_NOT_RETRY;
        break;
    default:
        status = INVALID_FIELD | DO_NOT_RETRY;
    }
    command_finish(command, status);
}

void identify_command(struct command *command)
{
    /* A discovery controller has no namespaces. */
    if (command->queue->controller->discovery && sqe(command)[SQE_CDW10] != CNS_CONTROLLER)
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
    else
        command_give(command, PAGE, run);
}
