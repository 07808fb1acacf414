/*
 * I/O commands: read, write, flush, compare, write zeroes, dataset management.
 */
#include "target.h"
#include <errno.h>

static struct command *command_of(struct io *io)
{
    return (struct command *)((char *)io - offsetof(struct command, io));
}

static void done(struct io *io, int error)
{
    struct command *command = command_of(io);

    if (error == 0)
        command_finish(command, OK);
    else if (error == ENOSPC)
        command_finish(command, CAPACITY_EXCEEDED);
    else if (error == ENOTCONN)
        command_finish(command, NAMESPACE_NOT_READY);
    else
        command_finish(command, io->op == IO_READ ? UNRECOVERED_READ_ERROR : WRITE_FAULT);
}

/* Whether the blocks exist. There may be any number of them. */
static bool within(const struct target *target, uint64_t first, uint64_t count)
{
    return first <= target->blocks && count <= target->blocks - first;
}

static uint64_t offset_of(const struct command *command)
{
    return get64(sqe(command) + SQE_CDW10) << command->worker->target->block_shift;
}

static uint64_t length_of(const struct command *command)
{
    return (get16(sqe(command) + SQE_CDW12) + UINT64_C(1)) << command->worker->target->block_shift;
}

static void run_read(struct command *command)
{
    command_submit(command, IO_READ, offset_of(command), command->length, command->data, done);
}

static void run_write(struct command *command)
{
    command->io.durable = (get32(sqe(command) + SQE_CDW12) & 1u << 30) != 0;
    command_submit(command, IO_WRITE, offset_of(command), command->length, command->data, done);
}

static void run_flush(struct command *command)
{
    command_submit(command, IO_FLUSH, 0, 0, NULL, done);
}

static void run_zeroes(struct command *command)
{
    command_submit(command, IO_ZERO, offset_of(command), length_of(command), NULL, done);
}

/*
 * Compares page by page, and needs no second block for it, which it might have to wait for while it has
 * the first: the memory for data in the capsule is free when the data is in a block.
 */
static void compare_next(struct io *io, int error)
{
    struct command *command = command_of(io);
    uint32_t at = command->range, rest = command->length - at;

    if (error == 0 && io->op == IO_READ) {
        if (memcmp(command->data + at, io->data, io->length) != 0) {
            command_finish(command, COMPARE_FAILURE | DO_NOT_RETRY);
            return;
        }
        at = command->range += (uint32_t)io->length;
        rest = command->length - at;
    }
    if (error != 0 || rest == 0)
        done(io, error);
    else
        command_submit(command, IO_READ, offset_of(command) + at, rest < PAGE ? rest : PAGE,
                       command->data == command->in_capsule
                           ? (uint8_t *)(uintptr_t)command->block.addr
                           : command->in_capsule,
                       compare_next);
}

static void run_compare(struct command *command)
{
    if (command->data == command->in_capsule &&
        !block_take(command, command->length)) {
        command_wait_for_block(command, run_compare);
        return;
    }
    command->range = 0;
    command->io.op = IO_FLUSH; /* nothing has been read yet */
    compare_next(&command->io, 0);
}

/* Deallocates the next range. It is a hint: a range that is too long is left as it is. */
static void discard_next(struct io *io, int error)
{
    struct command *command = command_of(io);
    const struct target *target = command->worker->target;

    while (error == 0 && command->range < command->length / 16) {
        const uint8_t *range = command->data + command->range++ * UINT64_C(16);
        uint64_t first = get64(range + 8), count = get32(range + 4);

        if (count == 0 || count << target->block_shift > MAX_ZERO ||
            command->range > DISCARD_RANGES)
            continue;
        command_submit(command, IO_DISCARD, first << target->block_shift,
                       count << target->block_shift, NULL, discard_next);
        return;
    }
    done(io, error);
}

static void run_dataset(struct command *command)
{
    for (uint32_t at = 0; at < command->length; at += 16) {
        const uint8_t *range = command->data + at;

        if (!within(command->worker->target, get64(range + 8), get32(range + 4))) {
            command_finish(command, LBA_OUT_OF_RANGE | DO_NOT_RETRY);
            return;
        }
    }
    command->range = 0;
    command->io.op = IO_DISCARD;
    /* Of the attributes only Deallocate asks for anything. */
    if ((get32(sqe(command) + SQE_CDW11) & 1u << 2) != 0)
        discard_next(&command->io, 0);
    else
        command_finish(command, OK);
}

void io_command(struct command *command)
{
    const struct target *target = command->worker->target;
    const uint8_t *at = sqe(command);
    uint8_t opcode = at[SQE_OPCODE];
    uint32_t namespace = get32(at + SQE_NSID);
    uint64_t length = length_of(command);

    command->io.durable = false;
    switch (opcode) {
    case IO_CMD_READ:
    case IO_CMD_WRITE:
    case IO_CMD_COMPARE:
    case IO_CMD_WRITE_ZEROES:
    case IO_CMD_FLUSH:
    case IO_CMD_DATASET:
        break;
    default:
        command_finish(command, INVALID_OPCODE | DO_NOT_RETRY);
        return;
    }
    if (namespace != 1 && !(opcode == IO_CMD_FLUSH && namespace == ALL_NAMESPACES)) {
        command_finish(command, INVALID_NAMESPACE | DO_NOT_RETRY);
        return;
    }
    if (opcode == IO_CMD_FLUSH) {
        command_without_data(command, run_flush);
        return;
    }
    if (opcode == IO_CMD_DATASET) {
        /* Linux' host names a whole page, however many ranges it has. */
        command_take(command, ((at[SQE_CDW10] & 0xffu) + 1) * 16, true, run_dataset);
        return;
    }
    if (!within(target, get64(at + SQE_CDW10), length >> target->block_shift)) {
        command_finish(command, LBA_OUT_OF_RANGE | DO_NOT_RETRY);
        return;
    }
    if (length > (opcode == IO_CMD_WRITE_ZEROES ? MAX_ZERO : MAX_TRANSFER)) {
        command_finish(command, INVALID_FIELD | DO_NOT_RETRY);
        return;
    }
    switch (opcode) {
    case IO_CMD_READ:
        command_give(command, (uint32_t)length, run_read);
        break;
    case IO_CMD_WRITE:
        command_take(command, (uint32_t)length, false, run_write);
        break;
    case IO_CMD_COMPARE:
        command_take(command, (uint32_t)length, false, run_compare);
        break;
    default:
        command_without_data(command, run_zeroes);
    }
}
