/*
 * A backend in memory, of the largest pages there are. Requests are done when they are submitted.
 *
 * Several workers may read and write the same blocks at once. Each logical block is read or written as
 * a whole, as the specification wants, because a lock covers each stretch of memory while it is copied.
 */
#include "target.h"
#include <pthread.h>

enum { STRETCH = 65536, LOCKS = 64 };

struct memory {
    struct backend backend;
    bw_region *region;
    uint8_t *bytes;
    pthread_mutex_t locks[LOCKS];
};

static void copy(struct memory *memory, struct io *io)
{
    uint64_t at = io->offset, end = io->offset + io->length;

    while (at < end) {
        uint64_t stretch = at / STRETCH, until = (stretch + 1) * STRETCH;
        size_t length = (size_t)((until < end ? until : end) - at);
        pthread_mutex_t *lock = &memory->locks[stretch % LOCKS];

        pthread_mutex_lock(lock);
        if (io->op == IO_READ)
            memcpy(io->data + (at - io->offset), memory->bytes + at, length);
        else if (io->op == IO_WRITE)
            memcpy(memory->bytes + at, io->data + (at - io->offset), length);
        else
            memset(memory->bytes + at, 0, length);
        pthread_mutex_unlock(lock);
        at += length;
    }
}

static void submit(struct lane *lane, struct io *io)
{
    if (io->op != IO_FLUSH)
        copy((struct memory *)lane, io);
    io->done(io, 0);
}

/* There is nothing that a lane would have to itself. */
static struct lane *open_lane(struct backend *backend)
{
    return (struct lane *)backend;
}

static void close_lane(struct lane *lane)
{
    (void)lane;
}

static void poll_lane(struct lane *lane)
{
    (void)lane;
}

static int lane_fd(struct lane *lane)
{
    (void)lane;
    return -1;
}

static void close_memory(struct backend *backend)
{
    struct memory *memory = (struct memory *)backend;

    CHECK(bw_region_destroy(memory->region));
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_destroy(&memory->locks[i]);
    free(memory);
}

static const struct backend_ops ops = {open_lane, close_lane, submit, poll_lane, lane_fd, close_memory,
                                       NULL, NULL};

struct backend *memory_open(const bw_pd *pd, uint64_t bytes)
{
    struct memory *memory = must_calloc(1, sizeof *memory);
    bw_region_attr attr;
    bw_region_info info = {.size = sizeof info};

    CHECK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = bytes;
    attr.access = BW_ACCESS_LOCAL_WRITE;
    CHECK(bw_region_create(pd, &attr, &memory->region));
    CHECK(bw_region_query(memory->region, &info));
    printf("namespace: %s\n", info.text);
    memory->bytes = (uint8_t *)(uintptr_t)info.addr;
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&memory->locks[i], NULL);
    memory->backend = (struct backend){.bytes = bytes, .ops = &ops};
    return &memory->backend;
}
