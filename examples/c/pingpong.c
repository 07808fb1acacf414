/*
 * A message to and fro between two processes, by SEND, and how long that takes. They meet over TCP, so
 * that they may be on two hosts.
 *
 * Build: cc -std=c11 -O2 -D_GNU_SOURCE pingpong.c $(pkg-config --cflags --libs bellwire) -o pingpong
 * Run:   ./pingpong [-d DEVICE] [-p PORT] [-n ROUNDS] [-s BYTES]          waits for the other
 *        ./pingpong [-d DEVICE] [-p PORT] [-n ROUNDS] [-s BYTES] HOST     begins
 * Both with the same ROUNDS and BYTES. Without any argument it is both, in two processes.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "end.h"
#include <sys/wait.h>
#include <unistd.h>

enum { SENT = 1, RECEIVED = 2, PORT = 18516 };

struct game {
    const char *device;
    uint32_t port;
    uint32_t rounds;
    uint32_t bytes;
};

/* Our message is in the first half of the memory, the other's comes into the second. */
struct player {
    struct end end;
    uint32_t bytes;
};

static void expect_message(void *context)
{
    struct player *player = context;
    bw_sge place = end_sge(&player->end, player->bytes, player->bytes);

    CHECK(bw_post_recv_one(player->end.qp, RECEIVED, &place));
    CHECK(bw_ring_rq(player->end.qp));
}

/* Every byte of a message shows which round it is of. */
static void say(struct player *player, uint32_t round)
{
    bw_sge message = end_sge(&player->end, 0, player->bytes);

    memset(end_at(&player->end, 0), (int)(round & 0xff), player->bytes);
    CHECK(bw_post_send_one(player->end.qp, SENT, &message, BW_SEND_SIGNALED));
    CHECK(bw_ring_sq(player->end.qp));
}

/* Waits for one of the two completions of a round. `polled` has the completions that came earlier. */
static void await(struct player *player, uint32_t which, uint32_t *polled)
{
    while ((*polled & which) == 0) {
        bw_wc wc = end_wait(&player->end);
        *polled |= (uint32_t)wc.wr_id;
        if (wc.wr_id == RECEIVED && wc.byte_len != player->bytes) {
            fprintf(stderr, "the other process sends %u bytes, not %u\n", wc.byte_len,
                    player->bytes);
            exit(EXIT_FAILURE);
        }
    }
    *polled &= ~which;
}

static void hear(struct player *player, uint32_t round, uint32_t *polled)
{
    const unsigned char *message = end_at(&player->end, player->bytes);

    await(player, RECEIVED, polled);
    for (uint32_t i = 0; i < player->bytes; i++) {
        if (message[i] != (round & 0xff)) {
            fprintf(stderr, "round %u: byte %u of the message is wrong\n", round, i);
            exit(EXIT_FAILURE);
        }
    }
    /* The place is free: the next message may come there. */
    expect_message(player);
}

static void play(const struct game *game, bw_tcp_conn *peer, int begins)
{
    struct player player = {
        .end = end_create(game->device, 2 * (uint64_t)game->bytes, BW_ACCESS_LOCAL_WRITE),
        .bytes = game->bytes,
    };
    struct timespec from, to;
    uint32_t polled = 0;

    meet(player.end.qp, peer, &player.end.memory, expect_message, &player);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint32_t round = 0; round < game->rounds; round++) {
        if (begins) {
            say(&player, round);
        }
        hear(&player, round, &polled);
        if (!begins) {
            say(&player, round);
        }
        await(&player, SENT, &polled);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (begins) {
        double ns = (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
        printf("%u round trips of %u bytes: %.0f ns each\n", game->rounds, game->bytes,
               ns / game->rounds);
    }
    /* Neither goes while the other still waits. */
    CHECK(bw_tcp_barrier(peer, SOON));
    CHECK(bw_tcp_conn_destroy(peer));
    end_destroy(&player.end);
}

static void begin(const struct game *game, const char *host)
{
    bw_tcp_conn *peer;

    CHECK(bw_tcp_connect(host, game->port, SOON, &peer));
    play(game, peer, 1);
}

/* Waits for the other process, and answers it. */
static void answer(const struct game *game, bw_tcp_listener *listener)
{
    bw_tcp_conn *peer;

    CHECK(bw_tcp_accept(listener, SOON, &peer));
    play(game, peer, 0);
    CHECK(bw_tcp_listener_destroy(listener));
}

/* Both ends. Open objects do not survive a fork: the child has the number of the port only. */
static int both(struct game *game)
{
    char fabric[BW_NAME_MAX];
    static bw_tcp_listener *listener;
    int status;

    snprintf(fabric, sizeof fabric, "soft:pingpong-%ld", (long)getpid());
    game->device = fabric;
    game->rounds = 100;
    CHECK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    game->port = (uint32_t)CHECK(bw_tcp_listener_port(listener));
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return EXIT_FAILURE;
    }
    if (child == 0) {
        begin(game, "127.0.0.1");
        return EXIT_SUCCESS;
    }
    answer(game, listener);
    if (waitpid(child, &status, 0) != child) {
        perror("waitpid");
        return EXIT_FAILURE;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    struct game game = {.device = "auto", .port = PORT, .rounds = 1000, .bytes = 64};
    int option;

    CHECK(bw_version_check(BW_VERSION));
    if (argc == 1) {
        return both(&game);
    }
    while ((option = getopt(argc, argv, "d:p:n:s:")) != -1) {
        switch (option) {
        case 'd':
            game.device = optarg;
            break;
        case 'p':
            game.port = (uint32_t)number(optarg, 1, 65535);
            break;
        case 'n':
            game.rounds = (uint32_t)number(optarg, 1, 1000000000);
            break;
        case 's':
            game.bytes = (uint32_t)number(optarg, 1, 1 << 20);
            break;
        default:
            fprintf(stderr, "usage: %s [-d DEVICE] [-p PORT] [-n ROUNDS] [-s BYTES] [HOST]\n",
                    argv[0]);
            return EXIT_FAILURE;
        }
    }
    if (optind < argc) {
        begin(&game, argv[optind]);
    } else {
        bw_tcp_listener *listener;
        CHECK(bw_tcp_listener_create(NULL, game.port, &listener));
        answer(&game, listener);
    }
    return EXIT_SUCCESS;
}
