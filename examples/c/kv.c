/*
 * A remote key-value store. The server owns a table in registered memory. Clients GET by an RDMA READ
 * of the key's place in it, of which the server's processor knows nothing, and PUT by a SEND to the
 * server, which alone writes the table.
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
 *
 * A client that dies without a word keeps its place until an answer to it fails.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "end.h"
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY_MAX = 47, VALUE_MAX = 184, ENTRIES = 1024, PROBES = 8, CLIENTS_MAX = 16 };

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

/* What a client sends, and what the server answers. */
enum what { PUT = 1, BYE = 2 };
enum answer { STORED = 1, FULL = 2, REFUSED = 3 };
struct message {
    uint32_t what;
    uint32_t length;
    char key[KEY_MAX + 1];
    char value[VALUE_MAX];
};

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

struct client {
    bw_qp *qp;
    bw_tcp_conn *conn;
    struct message *message; /* in the server's memory */
    bw_sge message_sge;
    uint64_t index;
    uint32_t qp_num;
    int leaves;
};

struct server {
    struct end end; /* without a queue pair: each client has one */
    struct client clients[CLIENTS_MAX];
    uint32_t gone;
};

/* Whether to be slow in the middle of a write, so that READs do come there. */
static int dawdle;

/* Writes an entry. A client that reads it meanwhile sees a checksum that does not fit. */
static enum answer store_entry(struct entry *table, const struct message *message)
{
    enum { HALF = sizeof(struct entry) / 2 };
    struct entry *entry = NULL;

    /* What a peer sends is checked before it is used. */
    if (message->length > VALUE_MAX || message->key[0] == '\0' ||
        memchr(message->key, '\0', sizeof message->key) == NULL) {
        return REFUSED;
    }
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
    memcpy(next.value, message->value, message->length);
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

static void expect_message(void *context)
{
    struct client *client = context;

    CHECK(bw_post_recv_one(client->qp, client->index, &client->message_sge));
    CHECK(bw_ring_rq(client->qp));
}

static void welcome(struct server *server, uint64_t index, bw_tcp_conn *conn)
{
    struct client *client = &server->clients[index];
    uint64_t offset = ENTRIES * sizeof(struct entry) + index * sizeof(struct message);
    bw_region_info table = server->end.memory;

    CHECK(bw_qp_create(server->end.pd, server->end.cq, server->end.cq, NULL, &client->qp));
    client->conn = conn;
    client->index = index;
    client->leaves = 0;
    bw_endpoint endpoint = {.size = sizeof endpoint};
    CHECK(bw_qp_endpoint(client->qp, &endpoint));
    client->qp_num = endpoint.qp_num;
    client->message = end_at(&server->end, offset);
    client->message_sge = end_sge(&server->end, offset, sizeof(struct message));
    table.length = ENTRIES * sizeof(struct entry);
    meet(client->qp, conn, &table, expect_message, client);
}

/* Its receives are gone with it; what else was in flight is reported, and passed over. */
static void drop(struct server *server, struct client *client)
{
    CHECK(bw_qp_destroy(client->qp));
    CHECK(bw_tcp_conn_destroy(client->conn));
    client->qp = NULL;
    server->gone++;
}

static void serve_message(struct server *server, struct client *client, uint32_t length)
{
    struct message message = {0};
    uint32_t answer;

    memcpy(&message, client->message, length);
    client->leaves = message.what == BYE;
    answer = message.what == PUT   ? store_entry(end_at(&server->end, 0), &message)
             : message.what == BYE ? STORED
                                   : REFUSED;
    /* First the place for its next message: it may come as soon as the answer is there. */
    expect_message(client);
    CHECK(bw_post_send_inline(client->qp, client->index, &answer, sizeof answer, BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(client->qp));
}

static void serve(const char *device, bw_tcp_listener *listener, uint32_t clients)
{
    struct server server = {.gone = 0};
    uint64_t bytes = ENTRIES * sizeof(struct entry) + CLIENTS_MAX * sizeof(struct message);
    uint32_t sends, receives, come = 0;
    uint64_t look = 0;
    bw_wc wc;

    server.end.memory.size = sizeof server.end.memory;
    CHECK(bw_device_open(device, &server.end.device));
    CHECK(bw_pd_create(server.end.device, &server.end.pd));
    CHECK(bw_qp_cq_entries(NULL, &sends, &receives));
    /* Twice the clients: what is destroyed leaves its entries there until they are polled. */
    bw_cq_attr cq = {.size = sizeof cq, .entries = 2 * CLIENTS_MAX * (sends + receives)};
    CHECK(bw_cq_create(server.end.device, &cq, &server.end.cq));
    bw_region_attr region;
    CHECK(bw_region_attr_default(&region, sizeof region));
    region.length = bytes;
    region.access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_READ;
    CHECK(bw_region_create(server.end.pd, &region, &server.end.region));
    CHECK(bw_region_query(server.end.region, &server.end.memory));

    while (server.gone < clients) {
        /* Now and then, whether somebody is at the door. */
        if (come < clients && come - server.gone < CLIENTS_MAX && now_ms() >= look) {
            bw_tcp_conn *conn;
            int code = bw_tcp_accept(listener, 1, &conn);
            if (code == BW_OK) {
                uint64_t index = 0;
                while (server.clients[index].qp != NULL) {
                    index++;
                }
                welcome(&server, index, conn);
                come++;
            } else if (code != BW_ETIMEDOUT) {
                CHECK(code);
            }
            look = now_ms() + 10;
        }
        if (CHECK(bw_poll_one(server.end.cq, &wc)) == 0) {
            sched_yield();
            continue;
        }
        struct client *client = &server.clients[wc.wr_id];
        if (client->qp == NULL || client->qp_num != wc.qp_num) {
            continue; /* of one that has gone */
        }
        if (wc.status != BW_WC_SUCCESS) {
            if (!client->leaves) {
                fprintf(stderr, "client %llu is lost: status %u\n", (unsigned long long)wc.wr_id,
                        wc.status);
            }
            drop(&server, client);
        } else if (wc.opcode & BW_WC_RECV) {
            serve_message(&server, client, wc.byte_len);
        } else if (client->leaves) {
            drop(&server, client); /* it has the answer */
        }
    }
    CHECK(bw_cq_destroy(server.end.cq));
    CHECK(bw_region_destroy(server.end.region));
    CHECK(bw_pd_destroy(server.end.pd));
    CHECK(bw_device_close(server.end.device));
    CHECK(bw_tcp_listener_destroy(listener));
}

/* ---- a client ---- */

/* Its memory: an entry that was read, a message to send, the answer to it. */
enum { ENTRY_AT = 0, MESSAGE_AT = 256, ANSWER_AT = 512, CLIENT_BYTES = 1024 };
enum { READ = 1, SENT = 2, ANSWERED = 3 };

struct store {
    struct end end;
    bw_conn_info table;
    bw_tcp_conn *conn;
    uint64_t torn; /* READs that came in the middle of a write */
};

static void expect_answer(void *context)
{
    struct store *store = context;
    bw_sge place = end_sge(&store->end, ANSWER_AT, sizeof(uint32_t));

    CHECK(bw_post_recv_one(store->end.qp, ANSWERED, &place));
    CHECK(bw_ring_rq(store->end.qp));
}

static struct store store_open(const char *device, const char *host, uint32_t port)
{
    struct store store = {.torn = 0};

    CHECK(bw_tcp_connect(host, port, SOON, &store.conn));
    store.end = end_create(device, CLIENT_BYTES, BW_ACCESS_LOCAL_WRITE);
    store.table = meet(store.end.qp, store.conn, &store.end.memory, expect_answer, &store);
    if (store.table.length / sizeof(struct entry) < PROBES) {
        fprintf(stderr, "that is no server of this program\n");
        exit(EXIT_FAILURE);
    }
    return store;
}

/* Sends a message, and waits for the answer. */
static uint32_t ask(struct store *store, const struct message *message)
{
    bw_sge data = end_sge(&store->end, MESSAGE_AT, sizeof *message);
    uint32_t answer;

    memcpy(end_at(&store->end, MESSAGE_AT), message, sizeof *message);
    CHECK(bw_post_send_one(store->end.qp, SENT, &data, BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(store->end.qp));
    /* The message's completion and the answer come in either order. */
    for (int polled = 0; polled < 2; polled++) {
        end_wait(&store->end);
    }
    memcpy(&answer, end_at(&store->end, ANSWER_AT), sizeof answer);
    expect_answer(store);
    return answer;
}

/* 0, or what the server has against it. */
static const char *store_put(struct store *store, const char *key, const void *value,
                             uint32_t length)
{
    struct message message = {.what = PUT, .length = length};
    uint32_t answer;

    if (strlen(key) > KEY_MAX || *key == '\0' || length > VALUE_MAX) {
        return "keys have 1 to 47 bytes, values up to 184";
    }
    memcpy(message.key, key, strlen(key));
    memcpy(message.value, value, length);
    answer = ask(store, &message);
    return answer == STORED ? NULL : answer == FULL ? "the table is full" : "refused";
}

/* Copies the value, and answers its length; -1 when there is no such key. */
static int store_get(struct store *store, const char *key, void *value)
{
    size_t entries = store->table.length / sizeof(struct entry);
    bw_sge place = end_sge(&store->end, ENTRY_AT, sizeof(struct entry));
    uint64_t limit = now_ms() + SOON;
    struct entry entry;

    for (size_t probe = 0; probe < PROBES;) {
        uint64_t at = store->table.addr + place_of(key, entries, probe) * sizeof(struct entry);
        CHECK(bw_post_read(store->end.qp, READ, &place, at, store->table.rkey, BW_SEND_SIGNALED));
        CHECK(bw_ring_sq(store->end.qp));
        end_wait(&store->end);
        memcpy(&entry, end_at(&store->end, ENTRY_AT), sizeof entry);
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
    struct message bye = {.what = BYE};

    ask(store, &bye);
    CHECK(bw_tcp_conn_destroy(store->conn));
    end_destroy(&store->end);
}

/* ---- what is run ---- */

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

/* A server and two clients. What is open does not survive a fork: the children have the number of the
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
