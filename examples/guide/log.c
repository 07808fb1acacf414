/*
 * The log of log.rs in C, one record at a time: a replica is killed, the log goes on, and the replica catches up.
 *
 *   log replica FABRIC PORT FILE
 *   log primary FABRIC PORT PORT       each line of the standard input is a record
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <bellwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int code, const char *call)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, bw_strerror(code), bw_last_error());
        exit(EXIT_FAILURE);
    }
}
#define CHECK(call) check(call, #call)

enum { MESSAGE = 512, RECEIVES = 8, SEND = RECEIVES };

/* One end of a link: its memory has places for receives. */
struct end {
    bw_link *link;
    bw_region *region;
    bw_region_info memory;
    int sending; /* a send is not reported */
    int failed;  /* the last one was not executed, or is in doubt */
};

static void receive(struct end *end, uint64_t place)
{
    bw_sge sge = {end->memory.addr + place * MESSAGE, MESSAGE, end->memory.lkey};

    if (bw_link_post_recv_one(end->link, place, &sge) == BW_OK) /* otherwise it has ended */
        bw_link_ring_rq(end->link);
}

static void end_open(struct end *end, const bw_pd *pd, bw_link *link)
{
    bw_region_attr region;

    end->link = link;
    end->sending = end->failed = 0;
    end->memory.size = sizeof end->memory;
    CHECK(bw_region_attr_default(&region, sizeof region));
    region.length = RECEIVES * MESSAGE;
    region.access = BW_ACCESS_LOCAL_WRITE;
    CHECK(bw_region_create(pd, &region, &end->region));
    CHECK(bw_region_query(end->region, &end->memory));
    for (uint64_t place = 0; place < RECEIVES; place++)
        receive(end, place);
}

static void end_close(struct end *end)
{
    CHECK(bw_link_destroy(end->link));
    CHECK(bw_region_destroy(end->region));
    end->link = NULL;
}

/* ANCHOR: hear */
/* Returns 1 and a message if one has come, 0 if not. */
static int hear(struct end *end, char *message, uint32_t *length)
{
    bw_link_wc wc;
    int more = bw_link_poll(end->link, &wc, 1);

    if (more <= 0)
        return 0; /* nothing, or the link has ended: bw_link_get_state says so */
    if (wc.wr_id == SEND) {
        end->sending = 0;
        end->failed = wc.outcome != BW_OUTCOME_EXECUTED;
        return 0;
    }
    if (wc.outcome != BW_OUTCOME_EXECUTED)
        return 0;
    *length = wc.byte_len;
    memcpy(message, (char *)(uintptr_t)end->memory.addr + wc.wr_id * MESSAGE, wc.byte_len);
    receive(end, wc.wr_id);
    return 1;
}
/* ANCHOR_END: hear */

static void say(struct end *end, const void *message, uint32_t length)
{
    /* Refused if the link has ended: the primary connects again. */
    if (bw_link_post_send_inline(end->link, SEND, message, length, BW_SEND_SIGNALED,
                                 BW_REPLAY_IF_SAFE) == BW_OK) {
        bw_link_ring_sq(end->link);
        end->sending = 1;
    }
}

static int has_ended(const struct end *end)
{
    return bw_link_get_state(end->link) > BW_LINK_READY;
}

static void replica(bw_device *device, const bw_pd *pd, uint32_t port, const char *path)
{
    FILE *file = fopen(path, "a+");
    bw_listener *listener;
    char message[MESSAGE];
    uint32_t length;
    uint64_t count = 0;

    for (int c; (c = getc(file)) != EOF;)
        count += c == '\n';
    CHECK(bw_listener_create(device, "127.0.0.1", port, 16, NULL, &listener));
    printf("replica: %llu records, port %d\n", (unsigned long long)count, bw_listener_port(listener));
    fflush(stdout);
    for (;;) {
        struct end end;
        bw_link *link;
        int greeted = 0, code = bw_link_accept(listener, pd, NULL, 1000, &link);

        if (code == BW_ETIMEDOUT)
            continue;
        CHECK(code);
        for (end_open(&end, pd, link); !has_ended(&end);) {
            if (hear(&end, message, &length)) {
                /* A record that comes twice changes nothing. */
                if (memcmp(message, &count, sizeof count) == 0) {
                    fwrite(message + 8, 1, length - 8, file);
                    fflush(file);
                    fdatasync(fileno(file));
                    count += 1;
                }
                say(&end, &count, sizeof count);
            } else if ((!greeted || end.failed) && !end.sending && bw_link_get_state(link) == BW_LINK_READY) {
                say(&end, &count, sizeof count);
                greeted = 1;
                end.failed = 0;
            }
        }
        end_close(&end);
    }
}

/* A replica, as the primary sees it. */
struct follower {
    bw_connector *connector;
    struct end end;
    int64_t has; /* -1: it has not said so since it was connected */
    int64_t asked;
};

static void connect_to(struct follower *it, const bw_pd *pd)
{
    bw_link *link;

    CHECK(bw_link_connect(it->connector, pd, NULL, &link));
    end_open(&it->end, pd, link);
    it->has = it->asked = -1;
}

/* ANCHOR: turn */
static void turn(struct follower *it, const bw_pd *pd, char *const *log, int64_t records)
{
    char message[MESSAGE];
    uint32_t length;

    if (hear(&it->end, message, &length))
        memcpy(&it->has, message, sizeof it->has);
    if (has_ended(&it->end)) {
        puts("primary: a replica is away");
        end_close(&it->end);
        connect_to(it, pd);
    }
    if (it->end.failed)
        it->asked = -1; /* again: a record that comes twice changes nothing */
    it->end.failed = 0;
    if (it->has < 0 || it->has >= records || it->end.sending || it->asked == it->has)
        return;
    memcpy(message, &it->has, 8);
    length = 8 + strlen(log[it->has]);
    memcpy(message + 8, log[it->has], length - 8);
    it->asked = it->has;
    say(&it->end, message, length);
}
/* ANCHOR_END: turn */

static int primary(bw_device *device, const bw_pd *pd, const uint32_t *ports)
{
    struct follower followers[2];
    char **log = NULL, *line = NULL;
    size_t room = 0;
    int64_t records = 0, committed = 0;

    for (int i = 0; i < 2; i++) {
        CHECK(bw_connector_create(device, "127.0.0.1", ports[i], NULL, &followers[i].connector));
        connect_to(&followers[i], pd);
    }
    for (int more = 1; more || followers[0].has < records || followers[1].has < records;) {
        if (more && committed >= records) { /* one at a time */
            more = getline(&line, &room, stdin) > 0;
            if (more) {
                log = realloc(log, (size_t)(records + 1) * sizeof *log);
                log[records++] = strdup(line);
            }
        }
        for (int i = 0; i < 2; i++) {
            turn(&followers[i], pd, log, records);
            if (followers[i].has > committed) {
                committed = followers[i].has;
                printf("primary: %lld committed\n", (long long)committed);
                fflush(stdout);
            }
        }
    }
    printf("primary: both have %lld\n", (long long)records);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    bw_device *device;
    bw_pd *pd;

    if (argc != 5)
        return EXIT_FAILURE;
    CHECK(bw_device_open(argv[2], &device));
    CHECK(bw_pd_create(device, &pd));
    if (strcmp(argv[1], "replica") == 0)
        replica(device, pd, (uint32_t)atoi(argv[3]), argv[4]);
    return primary(device, pd, (uint32_t[]){(uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4])});
}
