/*
 * What a worker's hosts may have of it. Nothing that a host says about itself is proved, so that there are two
 * shares: one for each host, by its address, NQN and identifier, which keeps honest hosts apart; and one for
 * each address, which bounds a host that goes by many names. Until its Connect a queue is of the address alone,
 * and there are few of them. A third bound is of the sum.
 */
#include "mirror.h"

enum {
    /* Entries are those of submission queues. */
    HOST_QUEUES = 2 * (1 + IO_QUEUES), /* a host that connects again may be here twice */
    HOST_ENTRIES = 2 * (ADMIN_DEPTH + IO_QUEUES * IO_DEPTH),
    ADDRESS_QUEUES = (QUEUES - NEW_QUEUES) / 2,
    ADDRESS_ENTRIES = ENTRIES / 2,
    ADDRESS_NEW = NEW_QUEUES / 2,
    NEW_LEAST_MS = 100, /* before a queue without a Connect has to make room for another one */
    HOST_BLOCKS = 4,    /* of each size, a quarter; */
    ADDRESS_BLOCKS = 2, /* and of an address a half */
};

static void free_address(struct worker *worker, struct address *address)
{
    struct address **at = &worker->addresses;

    if (address->users > 0)
        return;
    while (*at != address)
        at = &(*at)->next;
    *at = address->next;
    free(address);
}

static struct address *address_of(struct worker *worker, const char *peer)
{
    struct address *at = worker->addresses;

    while (at != NULL && strcmp(at->peer, peer) != 0)
        at = at->next;
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        if (at == NULL)
            return NULL;
        strcpy(at->peer, peer);
        at->nobody.address = at;
        at->nobody.last_waiting = &at->nobody.waiting;
        at->next = worker->addresses;
        worker->addresses = at;
    }
    return at;
}

/* The queue of this address that has waited the longest for its Connect. */
static struct queue *oldest_new(struct worker *worker, const struct address *address)
{
    struct queue *oldest = NULL;

    for (uint32_t i = 0; i < worker->queues_count; i++) {
        struct queue *at = worker->queues[i];

        if (at->state == QUEUE_CONNECTED && at->address == address &&
            (oldest == NULL || at->since_ms < oldest->since_ms))
            oldest = at;
    }
    return oldest;
}

/*
 * Makes room for a queue without a Connect. An address that has its share loses its oldest one, if that has had some
 * time. When all addresses together have too many, the one with the most loses one to an address with fewer.
 */
static const char *make_room(struct worker *worker, struct address *address)
{
    static const char why[] = "others wait for its place, and no Connect came";
    struct address *most = address;

    if (address->new_queues == ADDRESS_NEW) {
        struct queue *oldest = oldest_new(worker, address);

        if (worker->now_ms - oldest->since_ms < NEW_LEAST_MS)
            return "too many queues of its address are without a Connect";
        connection_close(oldest, why);
    }
    if (worker->new_queues < NEW_QUEUES)
        return NULL;
    for (struct address *at = worker->addresses; at != NULL; at = at->next)
        if (at->new_queues > most->new_queues)
            most = at;
    if (most->new_queues <= address->new_queues + 1)
        return "too many queues are without a Connect";
    connection_close(oldest_new(worker, most), why);
    return NULL;
}

const char *share_take_new(struct queue *queue)
{
    struct worker *worker = queue->worker;
    struct address *address = address_of(worker, queue->peer);
    const char *why = address == NULL ? "no memory" : make_room(worker, address);

    if (why != NULL) {
        if (address != NULL)
            free_address(worker, address);
        return why;
    }
    address->users++;
    address->new_queues++;
    worker->new_queues++;
    queue->address = address;
    queue->host = &address->nobody;
    return NULL;
}

static struct host *host_of(struct address *address, const char *nqn, const uint8_t *id)
{
    struct host *at = address->hosts;

    while (at != NULL && (strcmp(at->nqn, nqn) != 0 || memcmp(at->id, id, sizeof at->id) != 0))
        at = at->next;
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        if (at == NULL)
            return NULL;
        at->address = address;
        strcpy(at->nqn, nqn);
        memcpy(at->id, id, sizeof at->id);
        at->last_waiting = &at->waiting;
        at->next = address->hosts;
        address->hosts = at;
    }
    return at;
}

static void free_host(struct host *host)
{
    struct host **at = &host->address->hosts;

    if (host == &host->address->nobody || host->queues > 0)
        return;
    while (*at != host)
        at = &(*at)->next;
    *at = host->next;
    free(host);
}

const char *share_take(struct queue *queue, const char *nqn, const uint8_t *id, uint32_t entries)
{
    struct worker *worker = queue->worker;
    struct address *address = queue->address;
    struct host *host = host_of(address, nqn, id);
    const char *why = host == NULL                                       ? "no memory"
                      : host->queues + 1 > HOST_QUEUES                   ? "its host has all of its queues"
                      : host->entries + entries > HOST_ENTRIES           ? "its host has all of its entries"
                      : address->queues + 1 > ADDRESS_QUEUES             ? "its address has all of its queues"
                      : address->entries + entries > ADDRESS_ENTRIES     ? "its address has all of its entries"
                      : worker->ready_queues + 1 > QUEUES - NEW_QUEUES   ? "there are too many queues"
                      : worker->entries + entries > ENTRIES              ? "there are too many entries"
                                                                         : NULL;

    if (why != NULL) {
        if (host != NULL)
            free_host(host);
        return why;
    }
    share_give_back_new(queue);
    host->queues++;
    host->entries += entries;
    address->queues++;
    address->entries += entries;
    worker->ready_queues++;
    worker->entries += entries;
    queue->host = host;
    queue->entries = entries;
    return NULL;
}

/* It is no queue without a Connect any more. */
void share_give_back_new(struct queue *queue)
{
    if (queue->host != &queue->address->nobody || queue->counted_out)
        return;
    queue->counted_out = true;
    queue->address->new_queues--;
    queue->worker->new_queues--;
}

/* The queue is destroyed. */
void share_give_back(struct queue *queue)
{
    struct worker *worker = queue->worker;
    struct address *address = queue->address;
    struct host *host = queue->host;

    share_give_back_new(queue);
    if (host != &address->nobody) {
        host->queues--;
        host->entries -= queue->entries;
        address->queues--;
        address->entries -= queue->entries;
        worker->ready_queues--;
        worker->entries -= queue->entries;
        free_host(host);
    }
    address->users--;
    free_address(worker, address);
}

/* Receives that are posted, or whose commands are under way: of each queue twice its entries may be, because
   a host may have its response before this end knows. */
uint32_t share_receives(const struct worker *worker)
{
    uint32_t wanted = 2 * worker->entries + NEW_QUEUES * NEW_COMMANDS;

    return wanted < RECEIVES ? wanted : RECEIVES;
}

static const bw_slab_class classes[BLOCK_SIZES] = {{PAGE, 512}, {8 * PAGE, 128}, {MAX_TRANSFER, 96}};

const bw_slab_class *share_blocks(void)
{
    return classes;
}

/* A block of the smallest size that does, or a larger one if those are all taken. */
bool block_take(struct command *command, uint32_t length)
{
    struct host *host = command->queue->host;
    struct address *address = host->address;

    for (uint32_t at = 0; at < BLOCK_SIZES; at++) {
        if (length > classes[at].length || host->blocks[at] >= classes[at].count / HOST_BLOCKS ||
            address->blocks[at] >= classes[at].count / ADDRESS_BLOCKS ||
            bw_slab_take(command->worker->slab, classes[at].length, &command->block) != BW_OK)
            continue;
        host->blocks[at]++;
        address->blocks[at]++;
        command->block_size = at;
        command->block_host = host;
        return true;
    }
    return false;
}

void block_return(struct command *command)
{
    if (command->block.length == 0)
        return;
    CHECK(bw_slab_return(command->worker->slab, &command->block));
    command->block.length = 0;
    command->block_host->blocks[command->block_size]--;
    command->block_host->address->blocks[command->block_size]--;
}

/* As README.md has them, of which the test compares each. */
void limits_print(void)
{
    static const struct {
        const char *row, *of;
        uint32_t limit;
    } limits[] = {
        {"queues without a Connect", "an address", ADDRESS_NEW},
        {"queues without a Connect", "a worker", NEW_QUEUES},
        {"queues without a Connect", "s for each", CONNECT_SECONDS},
        {"queues", "a host", HOST_QUEUES},
        {"queues", "an address", ADDRESS_QUEUES},
        {"queues", "a worker", QUEUES - NEW_QUEUES},
        {"entries of submission queues", "a host", HOST_ENTRIES},
        {"entries of submission queues", "an address", ADDRESS_ENTRIES},
        {"entries of submission queues", "a worker", ENTRIES},
        {"receives, and so commands", "a queue without a Connect", NEW_COMMANDS},
        {"receives, and so commands", "a worker", RECEIVES},
        {"asynchronous events that are held", "a controller", ASYNC_EVENTS},
        {"requests to connect that a worker has not read", "a worker", MAIL_REQUESTS},
        {"events that a worker has not read", "a worker", MAIL},
        {"time to take a response, or to give the data of a write", "s for each command", HOST_SECONDS},
        {"time without a command", "s", KEEP_ALIVE_SECONDS},
        {"time without a command", "s of a discovery controller", DISCOVERY_SECONDS},
        {"links with a replica, without a Hello", "a replica", CANDIDATES},
        {"links with a replica, without a Hello", "s for each", HELLO_MS / 1000},
        {"answers that a primary does not take", "s for each", LINK_SECONDS + ANSWER_SECONDS},
        {"writes on their way to a replica", "a primary", WINDOW},
        {"writes on their way to a replica", "s for each", WAIT_SECONDS},
        {"answers of a replica", "s for each", ANSWER_SECONDS},
    };

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        uint32_t limit = limits[i].limit;

        printf("%s: ", limits[i].row);
        if (limit >= 1000)
            printf("%u,%03u", limit / 1000, limit % 1000);
        else
            printf("%u", limit);
        printf(": %s\n", limits[i].of);
    }
    for (int at = 0; at < BLOCK_SIZES; at++)
        printf("blocks for data of 4, 32 and 128 KiB: %u: a host\nblocks for data of 4, 32 and 128 KiB: %u: a worker\n",
               classes[at].count / HOST_BLOCKS, classes[at].count);
}
