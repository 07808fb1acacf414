/*
 * A remote key-value store. The server owns a table in registered memory. Clients GET by an RDMA READ
 * of the key's place in it, for which the server's program calls nothing, and PUT by a SEND to the
 * server, which alone writes the table.
 *
 * A PUT does not carry its value. The client lends the value's memory for this request. The server
 * READs the value, and gives the memory back with its answer, a SEND_WITH_INV. When the PUT is
 * reported the server cannot access the memory any more, whatever became of the request.
 *
 * The server has a set of links: one poll for all clients, one shared receive queue for their
 * messages. A connection that fails is recovered, and a client that is gone leaves the set.
 *
 * A READ may come in the middle of a write: then the entry's checksum is not that of its bytes, and
 * the client reads again.
 *
 * Build: cc -std=c11 -O2 -D_GNU_SOURCE kv.c $(pkg-config --cflags --libs bellwire) -o kv
 * Run:   ./kv serve DEVICE PORT CLIENTS             ends when so many clients have come and gone
 *        ./kv put DEVICE HOST PORT KEY VALUE
 *        ./kv get DEVICE HOST PORT KEY
 *        ./kv check DEVICE HOST PORT ROUNDS         puts and gets, and looks at what comes back
 * Without any argument it is a server and two clients that check, in three processes.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "end.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY_MAX = 47, VALUE_MAX = 184, ENTRIES = 1024, PROBES = 8, CLIENTS_MAX = 64 };

/* What a key is stored as. A READ brings all of it. */
struct entry {
    uint64_t checksum; /* of all that follows */
    uint64_t version;  /* counts the writes; 0: free */
    uint32_t length;   /* of the value */
    uint32_t reserved;
    char key[KEY_MAX + 1];
    char value[VALUE_MAX];
};
_Static_assert(sizeof(struct entry) == 256, "entries are whole cache lines");

/* What a client sends, with the place of its value, and what the server answers. */
enum what { PUT = 1 };
enum answer { STORED = 1, FULL = 2, REFUSED = 3 };
struct message {
    uint32_t what;
    uint32_t length; /* of the value, which has one byte at least */
    uint64_t addr;
    uint32_t rkey;
    uint32_t reserved;
    char key[KEY_MAX + 1];
};

/* How a link connects: its peer may read, and may wait long for its turn on a busy machine. */
static void link_attr(bw_link_init *init, bw_connect_attr *connect)
{
    CHECK(bw_connect_attr_default(connect, sizeof *connect));
    connect->access = BW_ACCESS_REMOTE_READ | BW_ACCESS_REMOTE_WRITE;
    connect->timeout = 18;
    CHECK(bw_link_init_default(init, sizeof *init));
    init->connect = connect;
    init->seed = (uint64_t)getpid();
}

/* FNV-1a. */
static uint64_t hash(const void *bytes, size_t length)
{
    const unsigned char *byte = bytes;
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < length; i++) {
        sum = (sum ^ byte[i]) * 0x100000001b3u;
    }
    return sum;
}

static uint64_t checksum_of(const struct entry *entry)
{
    return hash(&entry->version, sizeof *entry - sizeof entry->checksum);
}

/* The place of a key, `probe` places on where others have those before. */
static size_t place_of(const char *key, size_t entries, size_t probe)
{
    return (hash(key, strlen(key)) + probe) % entries;
}

/* ---- the server ---- */

/* A block holds a message; twice as many as clients, each of which waits for its answer. */
enum { BLOCK = 256, BLOCKS = 2 * CLIENTS_MAX };
_Static_assert(sizeof(struct message) <= BLOCK, "a message fits a block");
_Static_assert(sizeof(((struct entry *)0)->value) <= BLOCK, "a value fits a block");

/* A PUT whose value is on its way, into the block of its message. Its number is that of the READ. */
struct pending {
    bw_link_id link;
    bw_block block; /* addr is 0: there is no PUT */
    struct message message;
};

struct server {
    bw_device *device;
    bw_pd *pd;
    bw_region *region, *messages;
    bw_region_info table, blocks;
    bw_slab *slab;
    bw_link_set *set;
    struct pending pending[BLOCKS];
};

/* Whether to be slow in the middle of a write, so that READs do come there. */
static int dawdle;

/* Writes an entry. A client that reads it meanwhile sees a checksum that does not fit. */
static enum answer store_entry(struct entry *table, const struct message *message, const void *value)
{
    enum { HALF = sizeof(struct entry) / 2 };
    struct entry *entry = NULL;

    for (size_t probe = 0; probe < PROBES && entry == NULL; probe++) {
        struct entry *here = &table[place_of(message->key, ENTRIES, probe)];
        if (here->version == 0 || strcmp(here->key, message->key) == 0) {
            entry = here;
        }
    }
    if (entry == NULL) {
        return FULL;
    }
    struct entry next = {.version = entry->version + 1, .length = message->length};
    memcpy(next.key, message->key, sizeof next.key);
    memcpy(next.value, value, message->length);
    next.checksum = checksum_of(&next);
    memcpy(entry, &next, HALF);
    if (dawdle) {
        usleep(20);
    }
    memcpy((char *)entry + HALF, (char *)&next + HALF, sizeof next - HALF);
    /* All of it is there before the client is notified. */
    atomic_thread_fence(memory_order_release);
    return STORED;
}

static bw_region *make_region(bw_pd *pd, uint64_t length, uint32_t access)
{
    bw_region *region;
    bw_region_attr attr;

    CHECK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = length;
    attr.access = access;
    CHECK(bw_region_create(pd, &attr, &region));
    return region;
}

static struct server server_create(const char *device)
{
    const bw_slab_class blocks = {BLOCK, BLOCKS};
    struct server server = {.table = {.size = sizeof(bw_region_info)},
                            .blocks = {.size = sizeof(bw_region_info)}};
    bw_link_set_init init;
    uint64_t bytes;

    CHECK(bw_device_open(device, &server.device));
    CHECK(bw_pd_create(server.device, &server.pd));
    server.region = make_region(server.pd, ENTRIES * sizeof(struct entry),
                                BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_READ);
    CHECK(bw_region_query(server.region, &server.table));
    CHECK(bw_slab_bytes(&blocks, 1, &bytes));
    server.messages = make_region(server.pd, bytes, BW_ACCESS_LOCAL_WRITE);
    CHECK(bw_region_query(server.messages, &server.blocks));
    CHECK(bw_slab_create(server.messages, &blocks, 1, &server.slab));
    CHECK(bw_link_set_init_default(&init, sizeof init));
    init.links = CLIENTS_MAX;
    init.sleeps = 1;
    init.srq_slab = server.slab;
    init.srq_length = sizeof(struct message);
    /* A client that sends more than it may ends its own link, and takes nothing from the others. */
    init.srq_max_held = BLOCKS / CLIENTS_MAX;
    CHECK(bw_link_set_create(server.pd, &init, &server.set));
    return server;
}

static void welcome(struct server *server, bw_tcp_conn *conn)
{
    bw_connect_attr connect;
    bw_link_init init;
    bw_link_id link;

    link_attr(&init, &connect);
    init.memory_addr = server->table.addr;
    init.memory_length = server->table.length;
    init.memory_rkey = server->table.rkey;
    /* A client whose host is gone is missed, although it sends nothing. */
    init.keep_alive_ns = 5000000000u;
    CHECK(bw_link_set_join(server->set, &init, conn, &link));
    CHECK(bw_tcp_conn_destroy(conn));
}

/* Answers, and gives the value's memory back. A client that is just going, or takes no answers, hears nothing: its
 * link ends its request. */
static void reply(struct server *server, bw_link_id link, uint32_t rkey, uint32_t answer)
{
    const bw_sge sge = {.addr = (uint64_t)(uintptr_t)&answer, .length = sizeof answer};
    const bw_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = BW_WR_SEND_WITH_INV,
        .send_flags = BW_SEND_SIGNALED | BW_SEND_INLINE,
        .invalidate_rkey = rkey,
    };
    const bw_send_wr *bad;

    (void)bw_link_set_post_send(server->set, link, &wr, 1, BW_REPLAY_NEVER, &bad);
}

/* What a peer sends is checked before it is used. */
static int is_put(const struct message *message)
{
    return message->what == PUT && message->length >= 1 && message->length <= VALUE_MAX &&
           message->key[0] != '\0' && memchr(message->key, '\0', sizeof message->key) != NULL;
}

static void serve_message(struct server *server, const bw_link_set_wc *one)
{
    const bw_block block = {.addr = one->wc.wr_id};
    uint32_t at = 0;
    struct message message = {0};

    /* Longer data fits the block, and is no message. */
    if (one->wc.byte_len == sizeof message) {
        memcpy(&message, (const void *)(uintptr_t)block.addr, sizeof message);
    }
    if (is_put(&message)) {
        const bw_sge to = {.addr = block.addr, .length = message.length, .lkey = server->blocks.lkey};

        /* Each has a block of its own, so there is a place. */
        while (server->pending[at].block.addr != 0) {
            at++;
        }
        server->pending[at] = (struct pending){one->link, block, message};
        if (bw_link_set_post_read(server->set, one->link, at, &to, message.addr, message.rkey,
                                  BW_SEND_SIGNALED, BW_REPLAY_NEVER) == BW_OK) {
            CHECK(bw_link_set_ring_sq(server->set, one->link));
            return;
        }
        server->pending[at].block.addr = 0;
    } else {
        reply(server, one->link, message.rkey, REFUSED);
    }
    /* The place for a further message. */
    CHECK(bw_slab_return(server->slab, &block));
}

/* A value has come, or does not come. */
static void serve_value(struct server *server, const bw_link_set_wc *one)
{
    struct pending *put = &server->pending[one->wc.wr_id];
    const bw_block block = put->block;

    if (one->wc.outcome == BW_OUTCOME_EXECUTED) {
        reply(server, put->link, put->message.rkey,
              store_entry((void *)(uintptr_t)server->table.addr, &put->message,
                          (const void *)(uintptr_t)block.addr));
    }
    put->block.addr = 0;
    CHECK(bw_slab_return(server->slab, &block));
}

/* Removes a client that is gone. */
static void part(struct server *server, bw_link_id link, uint32_t state)
{
    if (state != BW_LINK_PEER_CLOSED) {
        bw_link_info info = {.size = sizeof info};
        CHECK(bw_link_set_query_link(server->set, link, &info));
        fprintf(stderr, "a client is lost: %s\n", info.why);
    }
    CHECK(bw_link_set_remove(server->set, link));
}

static void serve(const char *device, bw_tcp_listener *listener, uint32_t clients)
{
    struct server server = server_create(device);
    uint32_t come = 0, gone = 0, state;
    bw_link_set_wc wcs[16];
    bw_link_id link;
    bw_wait wait;
    const int door = CHECK(bw_tcp_listener_fd(listener));
    int count = 0;

    /* The server polls for a while, then sleeps until a link or the listener wakes it. */
    CHECK(bw_wait_default(&wait, sizeof wait));
    wait.fds = &door;

    for (uint32_t round = 0; gone < clients; round++) {
        const bool has_room = come < clients && come - gone < CLIENTS_MAX;
        /* A wait looks at the listener only before it sleeps, and then returns 0. A busy server looks here. */
        if (has_room && (count == 0 || round % 64 == 0)) {
            bw_tcp_conn *conn;
            int code = bw_tcp_accept(listener, 0, &conn);
            if (code == BW_OK) {
                welcome(&server, conn);
                come++;
            } else if (code != BW_ETIMEDOUT) {
                CHECK(code);
            }
        }
        wait.num_fds = come < clients && come - gone < CLIENTS_MAX ? 1 : 0;
        count = CHECK(bw_link_set_wait(server.set, wcs, 16, &wait));
        for (int at = 0; at < count; at++) {
            if (wcs[at].wc.opcode & BW_WC_RECV) {
                serve_message(&server, &wcs[at]);
            } else if (wcs[at].wc.opcode == BW_WC_RDMA_READ) {
                serve_value(&server, &wcs[at]);
            }
        }
        while (CHECK(bw_link_set_next_change(server.set, &link, &state)) == 1) {
            if (state >= BW_LINK_CLOSED) {
                part(&server, link, state);
                gone++;
            }
        }
    }
    CHECK(bw_link_set_destroy(server.set));
    CHECK(bw_slab_destroy(server.slab));
    CHECK(bw_region_destroy(server.messages));
    CHECK(bw_region_destroy(server.region));
    CHECK(bw_pd_destroy(server.pd));
    CHECK(bw_device_close(server.device));
    CHECK(bw_tcp_listener_destroy(listener));
}

/* ---- a client ---- */

/* Its memory: an entry that was read, a value to be stored, the server's answer. */
enum { ENTRY_AT = 0, VALUE_AT = 256, ANSWER_AT = 512, CLIENT_BYTES = 1024 };
enum { READ = 1, PUTS = 2, ANSWERED = 3 };

struct store {
    bw_device *device;
    bw_pd *pd;
    bw_region *region;
    bw_region_info memory;
    bw_link *link;
    bw_link_info table; /* and its link */
    uint64_t torn;      /* READs that came in the middle of a write */
};

static void *store_at(struct store *store, uint64_t offset)
{
    return (void *)(uintptr_t)(store->memory.addr + offset);
}

static bw_sge store_sge(struct store *store, uint64_t offset, uint32_t length)
{
    bw_sge sge = {.addr = store->memory.addr + offset, .length = length, .lkey = store->memory.lkey};

    return sge;
}

/* The next outcome, or none yet: then whether there can be one. */
static int store_poll(struct store *store, bw_link_wc *wc, uint64_t limit)
{
    int count = CHECK(bw_link_poll(store->link, wc, 1));

    if (count == 0) {
        /* The other process may be waiting for this processor. */
        sched_yield();
        CHECK(bw_link_query(store->link, &store->table));
        if (store->table.state >= BW_LINK_CLOSED || now_ms() > limit) {
            fprintf(stderr, "the server does not answer: %s\n", store->table.why);
            exit(EXIT_FAILURE);
        }
    }
    return count;
}

/* Waits until the link works: requests are refused meanwhile. */
static void store_ready(struct store *store)
{
    uint64_t limit = now_ms() + SOON;
    bw_link_wc wc;

    while (bw_link_get_state(store->link) != BW_LINK_READY) {
        if (store_poll(store, &wc, limit) != 0) {
            fprintf(stderr, "an answer that nobody has asked for\n");
            exit(EXIT_FAILURE);
        }
    }
}

/* Waits until these requests are reported. The outcome of the first that was not executed, or of which that is
 * not known. */
static uint32_t store_wait(struct store *store, unsigned wanted)
{
    uint64_t limit = now_ms() + SOON;
    bw_link_wc wc;

    while (wanted != 0) {
        if (store_poll(store, &wc, limit) == 0) {
            continue;
        }
        if (wc.outcome != BW_OUTCOME_EXECUTED) {
            return wc.outcome;
        }
        wanted &= ~(1u << wc.wr_id);
    }
    return BW_OUTCOME_EXECUTED;
}

static struct store store_open(const char *device, const char *host, uint32_t port)
{
    struct store store = {.memory = {.size = sizeof(bw_region_info)},
                          .table = {.size = sizeof(bw_link_info)}};
    bw_connect_attr connect;
    bw_qp_init_attr qp;
    bw_link_init init;
    bw_tcp_conn *conn;

    CHECK(bw_tcp_connect(host, port, SOON, &conn));
    CHECK(bw_device_open(device, &store.device));
    CHECK(bw_pd_create(store.device, &store.pd));
    store.region = make_region(store.pd, CLIENT_BYTES, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_MW_BIND);
    CHECK(bw_region_query(store.region, &store.memory));
    link_attr(&init, &connect);
    /* A message with a grant is inline. */
    CHECK(bw_qp_init_attr_default(&qp, sizeof qp));
    qp.max_inline_data = sizeof(struct message);
    init.qp = &qp;
    CHECK(bw_link_create(store.pd, &init, conn, &store.link));
    CHECK(bw_tcp_conn_destroy(conn));
    store_ready(&store);
    CHECK(bw_link_query(store.link, &store.table));
    if (store.table.peer_length / sizeof(struct entry) < PROBES) {
        fprintf(stderr, "that is no server of this program\n");
        exit(EXIT_FAILURE);
    }
    return store;
}

/* Sends a message, lends the server the value, and waits for the answer; 0 if it is not known what became of it. */
static uint32_t ask(struct store *store, struct message *message, const void *value)
{
    bw_sge lent = store_sge(store, VALUE_AT, message->length);
    bw_sge place = store_sge(store, ANSWER_AT, sizeof(uint32_t));
    uint32_t answer = 0, outcome;

    memcpy(store_at(store, VALUE_AT), value, message->length);
    message->addr = lent.addr;
    store_ready(store);
    CHECK(bw_link_post_recv_one(store->link, ANSWERED, &place));
    CHECK(bw_link_ring_rq(store->link));
    do {
        store_ready(store);
        CHECK(bw_link_post_send_grant(store->link, PUTS, &lent, BW_ACCESS_REMOTE_READ, message,
                                      sizeof *message, offsetof(struct message, rkey), 0));
        CHECK(bw_link_ring_sq(store->link));
        /* The answer, which ends the exchange, is reported before the request. */
        outcome = store_wait(store, 1u << PUTS | 1u << ANSWERED);
        /* A connection that failed before the server had the message: another key is needed, not another value. */
    } while (outcome == BW_OUTCOME_NOT_EXECUTED);
    if (outcome == BW_OUTCOME_EXECUTED) {
        memcpy(&answer, store_at(store, ANSWER_AT), sizeof answer);
    }
    return answer;
}

/* 0, or what the server has against it. */
static const char *store_put(struct store *store, const char *key, const void *value,
                             uint32_t length)
{
    struct message message = {.what = PUT, .length = length};
    uint32_t answer;

    if (strlen(key) > KEY_MAX || *key == '\0' || length == 0 || length > VALUE_MAX) {
        return "keys have 1 to 47 bytes, values 1 to 184";
    }
    memcpy(message.key, key, strlen(key));
    answer = ask(store, &message, value);
    return answer == STORED    ? NULL
           : answer == FULL    ? "the table is full"
           : answer == REFUSED ? "refused"
                               : "the connection failed: whether it is stored is not known";
}

/* Copies the value, and answers its length; -1 when there is no such key. */
static int store_get(struct store *store, const char *key, void *value)
{
    size_t entries = store->table.peer_length / sizeof(struct entry);
    bw_sge place = store_sge(store, ENTRY_AT, sizeof(struct entry));
    uint64_t limit = now_ms() + SOON;
    struct entry entry;

    for (size_t probe = 0; probe < PROBES;) {
        uint64_t at = store->table.peer_addr + place_of(key, entries, probe) * sizeof(struct entry);
        store_ready(store);
        CHECK(bw_link_post_read(store->link, READ, &place, at, store->table.peer_rkey,
                                BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
        CHECK(bw_link_ring_sq(store->link));
        if (store_wait(store, 1u << READ) != BW_OUTCOME_EXECUTED) {
            continue; /* a READ may be repeated */
        }
        memcpy(&entry, store_at(store, ENTRY_AT), sizeof entry);
        if (entry.version == 0 && entry.checksum == 0) {
            return -1;
        }
        if (checksum_of(&entry) != entry.checksum) {
            store->torn++;
            if (now_ms() > limit) {
                fprintf(stderr, "no whole entry within %d ms: has the server died?\n", SOON);
                exit(EXIT_FAILURE);
            }
            continue;
        }
        if (strncmp(entry.key, key, sizeof entry.key) == 0 && entry.length <= VALUE_MAX) {
            memcpy(value, entry.value, entry.length);
            return (int)entry.length;
        }
        probe++;
    }
    return -1;
}

static void store_close(struct store *store)
{
    CHECK(bw_link_drain(store->link, SOON, NULL, NULL, NULL));
    CHECK(bw_link_destroy(store->link));
    CHECK(bw_region_destroy(store->region));
    CHECK(bw_pd_destroy(store->pd));
    CHECK(bw_device_close(store->device));
}

/* ---- the programs ---- */

/* Fills a value with its number, which is how a torn one would be known. */
static void fill(uint64_t value[VALUE_MAX / 8], uint64_t number_of)
{
    for (size_t i = 0; i < VALUE_MAX / 8; i++) {
        value[i] = number_of;
    }
}

static void expect(int what, const char *text)
{
    if (!what) {
        fprintf(stderr, "check: %s\n", text);
        exit(EXIT_FAILURE);
    }
}

/* All clients write one key and one of their own. */
static void check_store(struct store *store, uint64_t rounds)
{
    uint64_t value[VALUE_MAX / 8], found[VALUE_MAX / 8], others = 0;
    char own[KEY_MAX + 1], too_long[KEY_MAX + 2];

    snprintf(own, sizeof own, "client %ld", (long)getpid());
    memset(too_long, 'x', sizeof too_long);
    too_long[KEY_MAX + 1] = '\0';
    expect(store_get(store, "nobody has put this", found) == -1, "a key that there is not");
    expect(store_put(store, too_long, "", 0) != NULL, "a key that is too long");
    for (uint64_t round = 1; round <= rounds; round++) {
        fill(value, round);
        expect(store_put(store, "shared", value, sizeof value) == NULL, "a PUT");
        expect(store_put(store, own, value, sizeof value) == NULL, "a PUT of one's own");
        expect(store_get(store, own, found) == (int)sizeof value, "the length of one's own");
        expect(memcmp(found, value, sizeof value) == 0, "what was put last is got");
        expect(store_get(store, "shared", found) == (int)sizeof value, "the length of the shared");
        fill(value, found[0]);
        expect(memcmp(found, value, sizeof value) == 0, "a value that is whole");
        others += found[0] != round;
    }
    printf("%llu rounds: all values whole, %llu of the other client, %llu torn reads repeated\n",
           (unsigned long long)rounds, (unsigned long long)others, (unsigned long long)store->torn);
    fflush(stdout);
}

/* A server and two clients. Open objects do not survive a fork: the children have the number of the
 * port only. */
static int all(void)
{
    enum { CLIENTS = 2, ROUNDS = 200 };
    static bw_tcp_listener *listener;
    char fabric[BW_NAME_MAX];
    pid_t children[CLIENTS];
    int status, good = 1;

    dawdle = 1;
    snprintf(fabric, sizeof fabric, "soft:kv-%ld", (long)getpid());
    CHECK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    uint32_t port = (uint32_t)CHECK(bw_tcp_listener_port(listener));
    for (int i = 0; i < CLIENTS; i++) {
        children[i] = fork();
        if (children[i] < 0) {
            perror("fork");
            return EXIT_FAILURE;
        }
        if (children[i] == 0) {
            struct store store = store_open(fabric, "127.0.0.1", port);
            check_store(&store, ROUNDS);
            store_close(&store);
            return EXIT_SUCCESS;
        }
    }
    serve(fabric, listener, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        good &= waitpid(children[i], &status, 0) == children[i] && status == 0;
    }
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s serve DEVICE PORT CLIENTS\n"
            "       %s put DEVICE HOST PORT KEY VALUE\n"
            "       %s get DEVICE HOST PORT KEY\n"
            "       %s check DEVICE HOST PORT ROUNDS\n",
            name, name, name, name);
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    CHECK(bw_version_check(BW_VERSION));
    if (argc == 1) {
        return all();
    }
    if (argc == 5 && strcmp(argv[1], "serve") == 0) {
        bw_tcp_listener *listener;
        uint32_t clients = (uint32_t)number(argv[4], 1, 1000000);
        CHECK(bw_tcp_listener_create(NULL, (uint32_t)number(argv[3], 1, 65535), &listener));
        serve(argv[2], listener, clients);
        return EXIT_SUCCESS;
    }
    if (argc != 6 && !(argc == 7 && strcmp(argv[1], "put") == 0)) {
        return usage(argv[0]);
    }
    struct store store = store_open(argv[2], argv[3], (uint32_t)number(argv[4], 1, 65535));
    int result = EXIT_SUCCESS;
    if (strcmp(argv[1], "put") == 0 && argc == 7) {
        const char *against = store_put(&store, argv[5], argv[6], (uint32_t)strlen(argv[6]));
        if (against != NULL) {
            fprintf(stderr, "%s\n", against);
            result = EXIT_FAILURE;
        }
    } else if (strcmp(argv[1], "get") == 0) {
        char value[VALUE_MAX];
        int length = store_get(&store, argv[5], value);
        if (length < 0) {
            fprintf(stderr, "there is no such key\n");
            result = EXIT_FAILURE;
        } else {
            printf("%.*s\n", length, value);
        }
    } else if (strcmp(argv[1], "check") == 0) {
        check_store(&store, number(argv[5], 1, 1000000000));
    } else {
        result = usage(argv[0]);
    }
    store_close(&store);
    return result;
}
