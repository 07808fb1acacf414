/*
 * A host that sends nonsense: private data, commands and lengths that are wrong in every way that a
 * seed can think of. Each of its commands has to get one response, or its connection has to end;
 * and in the end the target has to serve an honest host. With -k it changes no data of the
 * namespace.
 *
 *     nvmf-hostile [-d PROVIDER] [-p PORT] [-n NQN] [-c COUNT] [-s SEED] [-k] ADDRESS
 */
#include "initiator.h"
#include <getopt.h>

static uint64_t state;
static bool keeps; /* what is on the namespace */
static uint64_t sent, connections, lost, rejected;

/* splitmix64 */
static uint64_t draw(void)
{
    uint64_t x = state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
static bool one_in(uint32_t count)
{
    return draw() % count == 0;
}

/* Numbers at which something could go wrong. */
static uint64_t odd_number(void)
{
    static const uint64_t odd[] = {0, 1, 2, 15, 16, 63, 64, 127, 128, 255, 256, 4095, 4096, 4097, 65535,
                                   65536, 131072, 131073, 0x7fffffff, 0x80000000, 0xffffffff,
                                   UINT64_C(0x7fffffffffffffff), UINT64_MAX - 1, UINT64_MAX};

    return one_in(3) ? draw() : odd[draw() % (sizeof odd / sizeof odd[0])];
}

/* A command that is right in most of its fields. */
static uint32_t nonsense(struct queue *queue, struct slot *slot)
{
    static const uint8_t io[] = {IO_CMD_FLUSH, IO_CMD_WRITE, IO_CMD_READ, IO_CMD_COMPARE,
                                 IO_CMD_WRITE_ZEROES, IO_CMD_DATASET, FABRICS};
    static const uint8_t admin[] = {ADMIN_GET_LOG, ADMIN_IDENTIFY, ADMIN_ABORT, ADMIN_SET_FEATURES,
                                    ADMIN_GET_FEATURES, ADMIN_KEEP_ALIVE, FABRICS, FABRICS};
    static const uint32_t lengths[] = {0, 16, 512, 1024, 4096, 8192, DATA};
    uint32_t length = lengths[draw() % 7], in_capsule = 0;
    uint8_t *at = slot->capsule;

    slot_prepare(queue, slot, queue->qid == 0 ? admin[draw() % sizeof admin] : io[draw() % sizeof io]);
    put32(at + SQE_NSID, 1);
    if (at[SQE_OPCODE] == FABRICS)
        at[SQE_FCTYPE] = (uint8_t)(draw() % 9);
    put64(at + SQE_CDW10, draw() % 64);
    if (one_in(2))
        put64(at + SQE_CDW10, odd_number());
    put32(at + SQE_CDW12, length > 0 ? length / 512 - (length >= 512) : 0);
    if (one_in(4))
        put32(at + SQE_CDW12, (uint32_t)odd_number());
    if (one_in(2))
        slot_keyed(queue, slot, length);
    else if (one_in(2))
        slot_in_capsule(slot, in_capsule = length > PAGE ? PAGE : length);
    if (one_in(4))
        at[SQE_SGL_TYPE] = one_in(2) ? SGL_KEYED : (uint8_t)draw();
    if (one_in(4) && at[SQE_SGL_TYPE] == SGL_IN_CAPSULE)
        put64(at + SQE_SGL_ADDR, odd_number());
    if (one_in(8))
        in_capsule = (uint32_t)(draw() % (PAGE + 1));
    /* Any bytes but the command's number, and mostly not the key and the address, with which the
       connection ends. */
    for (uint64_t count = draw() % 4; count > 0; count--) {
        uint32_t byte = 4 + (uint32_t)(draw() % (SQE - 4));

        if ((byte >= SQE_SGL_ADDR && byte < SQE_SGL_TYPE && !one_in(64)) || byte == SQE_SGL_TYPE)
            continue;
        at[byte] = (uint8_t)draw();
    }
    if (one_in(8))
        at[SQE_FLAGS] = (uint8_t)draw();
    if (one_in(16))
        at[SQE_OPCODE] = (uint8_t)draw();
    if (keeps && (at[SQE_OPCODE] == IO_CMD_WRITE || at[SQE_OPCODE] == IO_CMD_WRITE_ZEROES ||
                  at[SQE_OPCODE] == IO_CMD_DATASET))
        at[SQE_OPCODE] = IO_CMD_COMPARE;
    return in_capsule;
}

/* Waits for the responses; those to commands that wait for an event may stay away. */
static void settle(struct queue *queue)
{
    uint64_t limit = now_ns() + PATIENCE_MS * UINT64_C(1000000);

    while (!queue->lost) {
        uint32_t waiting = 0;

        for (uint32_t i = 0; i < queue->depth; i++)
            waiting += queue->slots[i].busy && queue->slots[i].capsule[SQE_OPCODE] != ADMIN_ASYNC_EVENT;
        if (waiting == 0)
            return;
        queue_poll(queue);
        if (now_ns() > limit)
            die("seed: %u commands without a response, on a connection that has not ended", waiting);
    }
}

/* Up to `count` commands on one connection. */
static void attack(struct queue *queue, uint32_t count)
{
    while (count > 0 && !queue->lost) {
        bool any = false;

        for (uint32_t i = 0; i < queue->depth && count > 0 && !queue->lost; i++) {
            struct slot *slot = &queue->slots[i];

            if (slot->busy)
                continue;
            queue_submit(queue, slot, nonsense(queue, slot));
            sent++;
            count--;
            any = true;
        }
        queue_poll(queue);
        if (!any && queue->busy > 0)
            settle(queue);
    }
    settle(queue);
}

/* Another controller, or what its Connect is answered with. */
static void visit(const struct host *host, uint32_t count)
{
    static struct queue admin, io;
    struct host wrong = *host;
    uint8_t request[56];
    uint64_t controller = 0;
    uint16_t qid = (uint16_t)(draw() % 3);

    connections++;
    if (one_in(8)) {
        for (size_t i = 0; i < sizeof request; i++)
            request[i] = one_in(2) ? 0 : (uint8_t)draw();
        wrong.request = request;
        wrong.request_length = (uint32_t)(draw() % 57);
        if (queue_connect(&admin, &wrong, 0, 32))
            attack(&admin, 8);
        else
            rejected++;
        lost += admin.lost;
        queue_destroy(&admin);
        return;
    }
    for (int attempt = 0; !queue_connect(&admin, host, 0, 32); attempt++) {
        /* Without a reason of the target's it was the communication manager, on a busy machine. */
        if (admin.rejected != 0 || attempt == 5)
            die("the target rejects an admin queue: %u, reason %d", admin.rejected, admin.reason);
        queue_destroy(&admin);
    }
    if (one_in(8)) {
        attack(&admin, count / 16 + 1); /* without Connect */
    } else if (nvme_connect(&admin, ANY_CONTROLLER, 60000, &controller) == OK &&
               nvme_set_property(&admin, PROPERTY_CC, 0x460001) == OK) {
        if (qid == 0) {
            attack(&admin, count);
        } else if (queue_connect(&io, host, qid, DEPTH_MAX)) {
            if (one_in(8) || nvme_connect(&io, (uint16_t)controller, 0, &controller) == OK)
                attack(&io, count);
            lost += io.lost;
            queue_destroy(&io);
        } else {
            queue_destroy(&io);
        }
    }
    lost += admin.lost;
    queue_destroy(&admin);
}

int main(int argc, char **argv)
{
    struct host host = {.provider = "rdma", .nqn = "nqn.2014-08.org.nvmexpress:bellwire", .port = 4420};
    uint64_t count = 20000, seed = 1;
    int option;

    while ((option = getopt(argc, argv, "d:p:n:c:s:k")) != -1) {
        if (option == 'd')
            host.provider = optarg;
        else if (option == 'p')
            host.port = (uint32_t)strtoul(optarg, NULL, 10);
        else if (option == 'n')
            host.nqn = optarg;
        else if (option == 'c')
            count = strtoull(optarg, NULL, 10);
        else if (option == 'k')
            keeps = true;
        else if (option == 's')
            seed = strtoull(optarg, NULL, 10);
        else
            optind = argc;
    }
    if (optind + 1 != argc)
        die("usage: nvmf-hostile [-d PROVIDER] [-p PORT] [-n NQN] [-c COUNT] [-s SEED] [-k] ADDRESS");
    host.address = argv[optind];
    state = seed;
    memcpy(host.id, "hostile", 7);
    CHECK(bw_version_check(BW_VERSION));
    while (sent < count)
        visit(&host, 2000);

    static struct queue admin;
    uint16_t status;
    host_connect(&admin, &host, 0, 5);
    nvme_identify(&admin, 1, 0, &status);
    if (status != OK)
        die("an honest host is not served: %x", status);
    queue_destroy(&admin);
    printf("seed %llu: %llu commands on %llu connections, %llu of which were ended and %llu rejected\n",
           (unsigned long long)seed, (unsigned long long)sent, (unsigned long long)connections,
           (unsigned long long)lost, (unsigned long long)rejected);
    return EXIT_SUCCESS;
}
