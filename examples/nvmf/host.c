/*
 * A small NVMe over RDMA host in user space, for this target and for any other, such as Linux' nvmet:
 *
 *     nvmf-host [OPTION...] check ADDRESS     writes, reads, verifies; then commands that are wrong
 *     nvmf-host [OPTION...] measure ADDRESS   requests a second, and how long one takes
 *     nvmf-host [OPTION...] write ADDRESS     writes one after the other, and says how many were acknowledged,
 *     nvmf-host [OPTION...] verify ADDRESS    and whether all of that number are there: elsewhere, later
 *     nvmf-host [OPTION...] wait ADDRESS      writes in each slot until the target answers Namespace Not Ready
 *
 * The namespace's data is lost. `check` expects of wrong commands what the specification says;
 * `--lenient` leaves them out, and commands that not every target has, such as Compare.
 */
#include "initiator.h"
#include <getopt.h>

struct options {
    struct host host;
    uint32_t rounds, depth, bytes;
    bool write, lenient;
    uint32_t attempts; /* to connect */
};

static uint32_t block_shift;
static uint64_t blocks;
static uint32_t in_capsule_max;

/* Bytes that look random and follow from a seed (splitmix64). */
static void fill(uint8_t *at, uint32_t length, uint64_t seed)
{
    for (uint32_t i = 0; i < length; i += 8) {
        uint64_t x = seed + (i / 8 + 1) * UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        put64(at + i, x ^ x >> 31);
    }
}

static uint64_t draw(void)
{
    static uint64_t state;
    uint8_t word[8];

    fill(word, 8, state += 0x1234567);
    return get64(word);
}

/* What the target is, by Identify. */
static void look(struct queue *admin)
{
    uint16_t status;
    struct slot *slot = nvme_identify(admin, 1, 0, &status);

    if (status != OK)
        die("Identify controller: status %x", status);
    uint32_t capsule = get32(slot->data + 1792) * 16, sgls = get32(slot->data + 536);
    in_capsule_max = (sgls & 1u << 20) != 0 && capsule > SQE ? capsule - SQE : 0;
    if (in_capsule_max > PAGE)
        in_capsule_max = PAGE;
    printf("%.40s: %u bytes in a capsule\n", (char *)slot->data + 24, in_capsule_max);
    slot = nvme_identify(admin, 0, 1, &status);
    if (status != OK)
        die("Identify namespace: status %x", status);
    blocks = get64(slot->data);
    block_shift = slot->data[128 + 4 * (slot->data[26] & 15) + 2];
    if (block_shift < 9 || block_shift > 12 || blocks < 256)
        die("a namespace of %llu blocks of 2^%u bytes", (unsigned long long)blocks, block_shift);
}

static void connect_io(struct queue *io, const struct options *options, uint16_t qid, uint16_t depth,
                       uint16_t controller)
{
    uint64_t result;

    if (!queue_connect_patiently(io, &options->host, qid, depth, options->attempts))
        die("the target rejects queue %u: %u", qid, io->rejected);
    uint16_t status = nvme_connect(io, controller, 0, &result);
    if (status != OK)
        die("Connect of queue %u: status %x", qid, status);
}

/* A command for `count` blocks from `first`, in this slot, which is free. */
static void block_fill(struct queue *io, struct slot *slot, uint8_t opcode, uint64_t first,
                       uint32_t count)
{
    slot_prepare(io, slot, opcode);
    put32(slot->capsule + SQE_NSID, 1);
    put64(slot->capsule + SQE_CDW10, first);
    put16(slot->capsule + SQE_CDW12, (uint16_t)(count - 1));
    slot_keyed(io, slot, count << block_shift);
}

static struct slot *block_command(struct queue *io, uint8_t opcode, uint64_t first, uint32_t count)
{
    struct slot *slot = queue_slot(io, opcode);

    block_fill(io, slot, opcode, first, count);
    return slot;
}

/* Writes with as many at once as the queue holds; each slot has its own part of the namespace. */
static void verify(struct queue *io, uint32_t rounds)
{
    uint64_t part = blocks / io->depth, seeds[DEPTH_MAX] = {0}, bytes = 0;
    uint32_t counts[DEPTH_MAX], done = 0, open = 0;
    uint64_t firsts[DEPTH_MAX];
    uint8_t *expected = malloc(DATA);
    enum { NOTHING, WRITTEN, READ_BACK } states[DEPTH_MAX] = {NOTHING};

    if (expected == NULL)
        die("no memory");
    while (done < rounds || open > 0) {
        for (uint32_t i = 0; i < io->depth; i++) {
            struct slot *slot = &io->slots[i];

            if (slot->busy || (states[i] == NOTHING && done >= rounds))
                continue;
            if (states[i] != NOTHING && slot->status != OK)
                die("%s %llu+%u: status %x", states[i] == WRITTEN ? "write" : "read",
                    (unsigned long long)firsts[i], counts[i], slot->status);
            if (states[i] == READ_BACK) {
                fill(expected, counts[i] << block_shift, seeds[i]);
                if (memcmp(expected, slot->data, counts[i] << block_shift) != 0)
                    die("%llu+%u: other bytes than were written", (unsigned long long)firsts[i],
                        counts[i]);
                bytes += counts[i] << block_shift;
                states[i] = NOTHING;
                open--;
                continue;
            }
            uint32_t in_capsule = 0;
            if (states[i] == NOTHING) {
                uint32_t limit = (uint32_t)DATA >> block_shift, most = limit < part ? limit : (uint32_t)part;

                counts[i] = 1 + (uint32_t)(draw() % (draw() % 2 == 0 ? most : 8u % (most + 1)));
                firsts[i] = i * part + draw() % (part - counts[i] + 1);
                seeds[i] = draw();
                done++;
                open++;
            }
            block_fill(io, slot, states[i] == NOTHING ? IO_CMD_WRITE : IO_CMD_READ, firsts[i], counts[i]);
            if (states[i] == NOTHING) {
                fill(slot->data, counts[i] << block_shift, seeds[i]);
                if (counts[i] << block_shift <= in_capsule_max && draw() % 4 != 0) {
                    in_capsule = counts[i] << block_shift;
                    memcpy(slot->capsule + SQE, slot->data, in_capsule);
                    slot_in_capsule(slot, in_capsule);
                }
                states[i] = WRITTEN;
            } else {
                memset(slot->data, 0xee, counts[i] << block_shift);
                states[i] = READ_BACK;
            }
            queue_submit(io, slot, in_capsule);
        }
        queue_poll(io);
        if (io->lost)
            die("the connection has ended: %s", io->lost_by);
    }
    free(expected);
    printf("verified %u writes, %llu bytes\n", done, (unsigned long long)bytes);
}

static void expect(const char *what, uint16_t status, uint16_t expected)
{
    if ((status & 0x7ff) != expected)
        die("%s: status %x, not %x", what, status, expected);
}

/* Commands on an I/O queue that are wrong, each in one way. */
static void wrong_io(struct queue *io)
{
    struct slot *slot = block_command(io, 0x55, 0, 1);
    uint32_t block = 1u << block_shift;

    expect("an unknown opcode", queue_execute(io, slot, 0), INVALID_OPCODE);
    slot = block_command(io, IO_CMD_READ, blocks, 1);
    expect("beyond the end", queue_execute(io, slot, 0), LBA_OUT_OF_RANGE);
    slot = block_command(io, IO_CMD_READ, UINT64_MAX, 2);
    expect("a range that wraps", queue_execute(io, slot, 0), LBA_OUT_OF_RANGE);
    slot = block_command(io, IO_CMD_WRITE, blocks - 1, 2);
    expect("half of it beyond", queue_execute(io, slot, 0), LBA_OUT_OF_RANGE);
    slot = block_command(io, IO_CMD_READ, 0, 1);
    put32(slot->capsule + SQE_NSID, 2);
    expect("no such namespace", queue_execute(io, slot, 0), INVALID_NAMESPACE);
    slot = block_command(io, IO_CMD_READ, 0, 1);
    slot->capsule[SQE_FLAGS] = 0;
    expect("PRPs", queue_execute(io, slot, 0), INVALID_FIELD);
    slot = block_command(io, IO_CMD_READ, 0, 1);
    slot->capsule[SQE_FLAGS] |= 1;
    expect("a fused command", queue_execute(io, slot, 0), INVALID_FIELD);
    slot = block_command(io, IO_CMD_READ, 0, 1);
    slot->capsule[SQE_SGL_TYPE] = 0x20;
    expect("an SGL segment", queue_execute(io, slot, 0), SGL_TYPE_INVALID);
    slot = block_command(io, IO_CMD_READ, 0, 1);
    slot_in_capsule(slot, block);
    expect("a READ into the capsule", queue_execute(io, slot, 0), SGL_TYPE_INVALID);
    slot = block_command(io, IO_CMD_READ, 0, 2);
    slot_keyed(io, slot, block);
    expect("too little room", queue_execute(io, slot, 0), DATA_SGL_LENGTH_INVALID);
    slot = block_command(io, IO_CMD_READ, 0, 65536);
    slot_keyed(io, slot, 0xffffff);
    expect("more than the limit", queue_execute(io, slot, 0),
           blocks < 65536 ? LBA_OUT_OF_RANGE : INVALID_FIELD);
    slot = block_command(io, IO_CMD_WRITE, 0, 1);
    slot_in_capsule(slot, block);
    expect("data that is not there", queue_execute(io, slot, block / 2), DATA_SGL_LENGTH_INVALID);
    slot = block_command(io, IO_CMD_WRITE, 0, 1);
    slot_in_capsule(slot, block);
    put64(slot->capsule + SQE_SGL_ADDR, 1);
    expect("data beyond the capsule", queue_execute(io, slot, block), SGL_OFFSET_INVALID);
    slot = block_command(io, IO_CMD_WRITE, 0, 1);
    slot_in_capsule(slot, block);
    put64(slot->capsule + SQE_SGL_ADDR, UINT64_MAX);
    expect("an offset that wraps", queue_execute(io, slot, block), SGL_OFFSET_INVALID);
    slot = queue_slot(io, FABRICS);
    slot->capsule[SQE_FCTYPE] = FABRICS_PROPERTY_GET;
    expect("a property on an I/O queue", queue_execute(io, slot, 0), INVALID_OPCODE);
    uint64_t result;
    expect("a second Connect", nvme_connect(io, 1, 0, &result), COMMAND_SEQUENCE_ERROR);
}

/* Compare, write zeroes, deallocate, flush. */
static void other_io(struct queue *io)
{
    uint32_t block = 1u << block_shift, many = DATA >> block_shift;
    struct slot *slot;
    uint8_t *data;

    for (uint32_t count = 1; count <= many; count += many - 1) {
        slot = block_command(io, IO_CMD_WRITE, 0, count);
        fill(slot->data, count * block, count);
        expect("write", queue_execute(io, slot, 0), OK);
        slot = block_command(io, IO_CMD_COMPARE, 0, count);
        fill(slot->data, count * block, count);
        expect("compare", queue_execute(io, slot, 0), OK);
        slot = block_command(io, IO_CMD_COMPARE, 0, count);
        fill(slot->data, count * block, count);
        slot->data[count * block - 1] ^= 1;
        expect("compare with other bytes", queue_execute(io, slot, 0), COMPARE_FAILURE);
    }
    slot = block_command(io, IO_CMD_COMPARE, 0, 1);
    fill(slot->capsule + SQE, block, many);
    slot_in_capsule(slot, block);
    expect("compare in the capsule", queue_execute(io, slot, block), OK);
    slot = block_command(io, IO_CMD_WRITE_ZEROES, 0, 1);
    slot_keyed(io, slot, 0);
    expect("write zeroes", queue_execute(io, slot, 0), OK);
    slot = queue_slot(io, IO_CMD_DATASET);
    put32(slot->capsule + SQE_NSID, 1);
    slot->capsule[SQE_CDW10] = 1;
    put32(slot->capsule + SQE_CDW11, 4);
    data = slot->data;
    memset(data, 0, 32);
    put32(data + 4, 1);
    put64(data + 8, 1);
    put32(data + 20, 2);
    put64(data + 24, 2);
    slot_keyed(io, slot, PAGE); /* as Linux' host does */
    expect("deallocate", queue_execute(io, slot, 0), OK);
    slot = block_command(io, IO_CMD_READ, 0, 4);
    expect("read", queue_execute(io, slot, 0), OK);
    for (uint32_t i = 0; i < 4 * block; i++)
        if (slot->data[i] != 0)
            die("a byte that was zeroed or deallocated is %u", slot->data[i]);
    slot = queue_slot(io, IO_CMD_FLUSH);
    put32(slot->capsule + SQE_NSID, ALL_NAMESPACES);
    expect("flush", queue_execute(io, slot, 0), OK);
}

static uint16_t admin_command(struct queue *admin, uint8_t opcode, uint32_t cdw10, uint32_t length)
{
    struct slot *slot = queue_slot(admin, opcode);

    put32(slot->capsule + SQE_CDW10, cdw10);
    slot_keyed(admin, slot, length);
    return queue_execute(admin, slot, 0);
}

static void wrong_admin(struct queue *admin, const struct host *host, uint16_t controller)
{
    struct queue other;
    uint64_t value;
    struct host stranger = *host;

    expect("an unknown opcode", admin_command(admin, 0x7e, 0, 0), INVALID_OPCODE);
    expect("an unknown log", admin_command(admin, ADMIN_GET_LOG, 0x42 | 15 << 16, 64), INVALID_LOG_PAGE);
    expect("a log", admin_command(admin, ADMIN_GET_LOG, 2 | 127 << 16, 512), OK);
    expect("an unknown CNS", admin_command(admin, ADMIN_IDENTIFY, 0xee, PAGE), INVALID_FIELD);
    expect("a feature that is saved", admin_command(admin, ADMIN_SET_FEATURES, 1u << 31 | 1, 0),
           FEATURE_NOT_SAVEABLE);
    expect("an unknown feature", admin_command(admin, ADMIN_GET_FEATURES, 0xcc, 0), INVALID_FIELD);
    expect("no such property", nvme_get_property(admin, 0x10, false, &value), INVALID_FIELD);
    expect("a property's length", nvme_get_property(admin, PROPERTY_CAP, false, &value), INVALID_FIELD);
    expect("a property to read only", nvme_set_property(admin, PROPERTY_VS, 1), INVALID_FIELD);

    /* An event that is waited for, and aborted. */
    struct slot *event = queue_slot(admin, ADMIN_ASYNC_EVENT);
    queue_submit(admin, event, 0);
    uint32_t cid = get16(event->capsule + SQE_CID);
    expect("abort", admin_command(admin, ADMIN_ABORT, cid << 16, 0), OK);
    while (event->busy && !admin->lost)
        queue_poll(admin);
    expect("the aborted command", event->status, ABORT_REQUESTED);

    /* Connections that are refused, or whose Connect is. */
    if (queue_connect(&other, host, 77, 32) || other.rejected != CM_INVALID_QID)
        die("queue 77 is rejected with %u", other.rejected);
    queue_destroy(&other);
    if (!queue_connect(&other, host, 0, 32))
        die("a second admin queue is rejected: %u", other.rejected);
    expect("Identify before Connect", admin_command(&other, ADMIN_IDENTIFY, 1, PAGE),
           COMMAND_SEQUENCE_ERROR);
    stranger.nqn = "nqn.2014-08.org.nvmexpress:nobody";
    other.host = &stranger;
    expect("another subsystem", nvme_connect(&other, ANY_CONTROLLER, 0, &value), CONNECT_INVALID);
    other.host = host;
    expect("a controller of the host's choice", nvme_connect(&other, 5, 0, &value), CONNECT_INVALID);
    expect("Connect", nvme_connect(&other, ANY_CONTROLLER, 0, &value), OK);
    expect("Identify before it is enabled", admin_command(&other, ADMIN_IDENTIFY, 1, PAGE),
           COMMAND_SEQUENCE_ERROR);
    queue_destroy(&other);
    if (!queue_connect(&other, host, 2, 32))
        die("queue 2 is rejected: %u", other.rejected);
    expect("no such controller", nvme_connect(&other, 0xfffe, 0, &value), CONNECT_INVALID);
    stranger = *host;
    stranger.id[0] ^= 1;
    other.host = &stranger;
    expect("another host's controller", nvme_connect(&other, controller, 0, &value), CONNECT_INVALID_HOST);
    queue_destroy(&other);
    if (!queue_connect(&other, host, 1, 32))
        die("queue 1 is rejected: %u", other.rejected);
    expect("a queue that there is", nvme_connect(&other, controller, 0, &value), CONNECT_INVALID);
    queue_destroy(&other);
}

static int compare_times(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static void measure(struct queue *io, const struct options *options)
{
    uint32_t count = options->bytes >> block_shift, done = 0, begun = 0;
    uint64_t *times = calloc(options->rounds, sizeof *times), start = now_ns();
    bool started[DEPTH_MAX] = {false};

    if (times == NULL)
        die("no memory");
    while (done < options->rounds) {
        for (uint32_t i = 0; i < options->depth && !io->lost; i++) {
            struct slot *slot = &io->slots[i];

            if (slot->busy)
                continue;
            if (started[i]) {
                times[done++] = now_ns() - slot->since_ns;
                expect("a request", slot->status, OK);
                started[i] = false;
            }
            if (begun == options->rounds)
                continue;
            slot = block_command(io, options->write ? IO_CMD_WRITE : IO_CMD_READ,
                                 draw() % (blocks / count) * count, count);
            uint32_t in_capsule = 0;
            if (options->write && options->bytes <= in_capsule_max) {
                in_capsule = options->bytes;
                slot_in_capsule(slot, in_capsule);
            }
            started[slot - io->slots] = true;
            begun++;
            queue_submit(io, slot, in_capsule);
        }
        queue_poll(io);
        if (io->lost)
            die("the connection has ended: %s", io->lost_by);
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    qsort(times, done, sizeof *times, compare_times);
    printf("%s of %u bytes, depth %u: %.0f a second; median %.1f us, 99 %% %.1f us\n",
           options->write ? "writes" : "reads", options->bytes, options->depth, done / seconds,
           (double)times[done / 2] / 1e3, (double)times[done - 1 - done / 100] / 1e3);
    free(times);
}

/* The n-th piece, as pieces are written one after the other, from the first blocks to the last ones and
   again from the first. */
static struct slot *piece(struct queue *io, uint8_t opcode, uint32_t n, uint32_t bytes)
{
    uint32_t count = bytes >> block_shift;

    return block_command(io, opcode, n % (blocks / count) * count, count);
}

static void write_pieces(struct queue *io, const struct options *options)
{
    uint32_t done = 0;

    for (; done < options->rounds; done++) {
        uint16_t status = NAMESPACE_NOT_READY;

        /* As often as Linux' host. */
        for (int attempt = 0; attempt < 5 && status == NAMESPACE_NOT_READY; attempt++) {
            struct slot *slot = piece(io, IO_CMD_WRITE, done, options->bytes);

            fill(slot->data, options->bytes, done);
            status = queue_execute(io, slot, 0);
        }
        if (status == LOST)
            break;
        expect("a write", status, OK);
        if (done == 0) {
            printf("writing\n");
            fflush(stdout);
        }
    }
    printf("acknowledged %u\n", done);
}

/*
 * Writes in each slot until the target answers Namespace Not Ready, as when its replica is gone; reads go on.
 * It says how long a write has taken at most.
 */
static void wait_for_not_ready(struct queue *io, const struct options *options)
{
    uint32_t depth = options->depth < DEPTH_MAX ? options->depth : DEPTH_MAX - 1u;
    uint32_t written = 0, waiting = depth, reads = 0;
    bool told[DEPTH_MAX] = {false}, started[DEPTH_MAX] = {false}, reading = false;
    uint64_t longest = 0, longest_read = 0;
    struct slot *reader = &io->slots[depth];

    while (waiting > 0) {
        for (uint32_t i = 0; i < depth; i++) {
            struct slot *slot = &io->slots[i];

            if (slot->busy || told[i])
                continue;
            if (started[i]) {
                uint64_t took = now_ns() - slot->since_ns;

                longest = took > longest ? took : longest;
                told[i] = slot->status == NAMESPACE_NOT_READY;
                if (!told[i])
                    expect("a write", slot->status, OK);
                waiting -= told[i];
                written += !told[i];
                if (written == 100) {
                    printf("writing\n");
                    fflush(stdout);
                }
                if (told[i])
                    continue;
            }
            block_fill(io, slot, IO_CMD_WRITE, i * 8u, 4096u >> block_shift);
            started[i] = true;
            queue_submit(io, slot, 0);
        }
        if (!reader->busy) {
            uint64_t took = now_ns() - reader->since_ns;

            if (reading) {
                expect("a read", reader->status, OK);
                longest_read = took > longest_read ? took : longest_read;
                reads++;
            }
            reading = true;
            block_fill(io, reader, IO_CMD_READ, 0, 1);
            queue_submit(io, reader, 0);
        }
        queue_poll(io);
        if (io->lost)
            die("the connection has ended: %s", io->lost_by);
    }
    printf("waited %llu ms at most; %u reads, the longest took %llu ms\n", (unsigned long long)longest / 1000000,
           reads, (unsigned long long)longest_read / 1000000);
}

/* Of each place the last piece that was acknowledged, or the one that was on its way. */
static void verify_pieces(struct queue *io, const struct options *options)
{
    uint32_t places = (uint32_t)(blocks / (options->bytes >> block_shift)), total = options->rounds;
    uint8_t *expected = malloc(options->bytes);

    if (expected == NULL)
        die("no memory");
    for (uint32_t n = total > places ? total - places : 0; n < total; n++) {
        struct slot *slot = piece(io, IO_CMD_READ, n, options->bytes);

        expect("a read", queue_execute(io, slot, 0), OK);
        fill(expected, options->bytes, n);
        bool same = memcmp(expected, slot->data, options->bytes) == 0;
        if (!same && total - n == places) {
            fill(expected, options->bytes, total);
            same = memcmp(expected, slot->data, options->bytes) == 0;
        }
        if (!same)
            die("piece %u of %u is not what was acknowledged", n, total);
    }
    printf("verified %u\n", total);
    free(expected);
}

static const char usage[] =
    "usage: nvmf-host [OPTION...] check|measure|write|verify|wait ADDRESS\n"
    "\n"
    "  -p, --port PORT        4420\n"
    "  -n, --nqn NQN          nqn.2014-08.org.nvmexpress:bellwire\n"
    "  -d, --device PROVIDER  rdma; soft:NAME for the software device; rdma\n"
    "  -c, --count COUNT      requests; 2000\n"
    "  -i, --iodepth COUNT    at once, up to 128; 16\n"
    "  -s, --size BYTES       of a request that is measured; 4096\n"
    "  -w, --write            measure writes\n"
    "  -l, --lenient          check reads and writes only\n"
    "  -r, --retry COUNT      attempts to connect, each half second, while the target has no resources; 1\n"
    "  -a, --source ADDRESS   an address of this computer to come from\n";

static uint32_t number(const char *text, uint32_t least, uint32_t most)
{
    char *rest;
    unsigned long value = strtoul(text, &rest, 10);

    if (*text < '0' || *text > '9' || *rest != '\0' || value < least || value > most)
        die("%s: give a number from %u to %u", text, least, most);
    return (uint32_t)value;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"port", 1, NULL, 'p'},    {"nqn", 1, NULL, 'n'},   {"device", 1, NULL, 'd'},
        {"count", 1, NULL, 'c'},   {"iodepth", 1, NULL, 'i'}, {"size", 1, NULL, 's'},
        {"write", 0, NULL, 'w'},   {"lenient", 0, NULL, 'l'},
        {"retry", 1, NULL, 'r'},   {"source", 1, NULL, 'a'}, {NULL, 0, NULL, 0},
    };
    struct options options = {
        .host = {.provider = "rdma", .nqn = "nqn.2014-08.org.nvmexpress:bellwire", .port = 4420},
        .rounds = 2000,
        .depth = 16,
        .bytes = 4096,
        .attempts = 1,
    };
    int option;

    while ((option = getopt_long(argc, argv, "p:n:d:c:i:s:wlr:a:", names, NULL)) != -1) {
        switch (option) {
        case 'p':
            options.host.port = number(optarg, 1, 65535);
            break;
        case 'n':
            options.host.nqn = optarg;
            break;
        case 'd':
            options.host.provider = optarg;
            break;
        case 'c':
            options.rounds = number(optarg, 1, 100000000);
            break;
        case 'i':
            options.depth = number(optarg, 1, DEPTH_MAX);
            break;
        case 's':
            options.bytes = number(optarg, 512, DATA);
            break;
        case 'w':
            options.write = true;
            break;
        case 'r':
            options.attempts = number(optarg, 1, 1000);
            break;
        case 'a':
            options.host.source = optarg;
            break;
        case 'l':
            options.lenient = true;
            break;
        default:
            die("%s", usage);
        }
    }
    const char *command = optind + 2 == argc ? argv[optind] : "";
    bool checks = strcmp(command, "check") == 0, writes = strcmp(command, "write") == 0;
    bool verifies = strcmp(command, "verify") == 0, waits = strcmp(command, "wait") == 0;
    if (!checks && !writes && !verifies && !waits && strcmp(command, "measure") != 0)
        die("%s", usage);
    options.host.address = argv[optind + 1];
    memcpy(options.host.id, "bellwire", 8);
    put32(options.host.id + 8, (uint32_t)now_ns());
    CHECK(bw_version_check(BW_VERSION));
    setvbuf(stdout, NULL, _IOLBF, 0);

    static struct queue admin, io;
    uint16_t controller = host_connect(&admin, &options.host, 30000, options.attempts);
    look(&admin);
    /* A queue has two entries at least; `wait` reads in one more. */
    uint16_t depth = (uint16_t)(options.depth + (waits && options.depth < DEPTH_MAX));
    if (depth < 2)
        depth = 2;
    connect_io(&io, &options, 1, depth, controller);
    printf("connected\n");
    if (checks) {
        verify(&io, options.rounds);
        if (!options.lenient) {
            other_io(&io);
            wrong_io(&io);
            wrong_admin(&admin, &options.host, controller);
            verify(&io, options.rounds / 10 + 1);
        }
    } else if (writes) {
        write_pieces(&io, &options);
    } else if (waits) {
        wait_for_not_ready(&io, &options);
    } else if (verifies) {
        verify_pieces(&io, &options);
    } else {
        measure(&io, &options);
    }
    queue_destroy(&io);
    queue_destroy(&admin);
    return EXIT_SUCCESS;
}
