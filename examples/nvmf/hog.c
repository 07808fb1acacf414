/*
 * A host that takes what it can get, in one of several ways, until it is killed:
 *
 *     nvmf-hog [-d PROVIDER] [-p PORT] [-n NQN] [-a SOURCE] WAY ADDRESS
 *
 * silent     queues without a Connect, and another one for each that ends
 * queues     controllers with all I/O queues, of one host, as many as there may be
 * names      the same, each controller with another host identifier
 * deaf       commands whose responses it does not take
 * requests   requests to connect that it does not go on with
 * links      links with a replica, at PORT, on which it says nothing; half of them it does not even finish
 *
 * It says "holding" when it has what it can get. SOURCE is an address of this computer to come from.
 */
#include "initiator.h"
#include <getopt.h>
#include <time.h>

enum { MOST = 160, IO_QUEUES_MOST = 16, LINKS = 40 };

static struct queue queues[MOST];

static void pause_ms(long ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

static void holding(uint32_t count, const char *what)
{
    printf("holding %u %s\n", count, what);
    fflush(stdout);
}

static bool ended(struct queue *queue)
{
    queue_poll(queue);
    return queue->lost;
}

static void silent(const struct host *host)
{
    bool said = false;
    uint32_t count = 0;

    for (;;) {
        for (uint32_t i = 0; i < count;) {
            if (ended(&queues[i])) {
                queue_destroy(&queues[i]);
                queues[i] = queues[--count];
            } else {
                i++;
            }
        }
        while (count < MOST && queue_connect(&queues[count], host, 0, 2))
            count++;
        if (count < MOST)
            queue_destroy(&queues[count]);
        if (!said)
            holding(count, "queues");
        said = true;
        pause_ms(20);
    }
}

/* A controller with all I/O queues that it may have, in the queues from `count` on: how many there are then. */
static uint32_t controller(const struct host *host, uint32_t count)
{
    uint64_t id, result;

    if (count == MOST || !queue_connect(&queues[count], host, 0, 32)) {
        if (count < MOST)
            queue_destroy(&queues[count]);
        return count;
    }
    struct queue *admin = &queues[count];
    if (nvme_connect(admin, ANY_CONTROLLER, 60000, &id) != OK ||
        nvme_set_property(admin, PROPERTY_CC, 0x460001) != OK) {
        queue_destroy(admin);
        return count;
    }
    count++;
    for (uint16_t qid = 1; qid <= IO_QUEUES_MOST && count < MOST; qid++) {
        if (!queue_connect(&queues[count], host, qid, DEPTH_MAX) ||
            nvme_connect(&queues[count], (uint16_t)id, 0, &result) != OK) {
            queue_destroy(&queues[count]);
            break;
        }
        count++;
    }
    return count;
}

static void take_queues(const struct host *own, bool names)
{
    struct host host = *own;
    uint32_t count = 0, before;

    do {
        before = count;
        if (names)
            put32(host.id + 8, get32(host.id + 8) + 1);
        count = controller(&host, count);
    } while (count > before);
    holding(count, "queues");
    for (;;) {
        for (uint32_t i = 0; i < count; i++)
            queue_poll(&queues[i]);
        pause_ms(20);
    }
}

/* Reads in each slot, twice: the second time there is no receive for the response. */
static void deaf(const struct host *host)
{
    for (;;) {
        uint32_t count = controller(host, 0);
        uint64_t since;

        for (uint32_t i = 1; i < count; i++)
            queues[i].deaf = true;
        for (int turn = 0; turn < 2; turn++) {
            for (uint32_t i = 1; i < count; i++) {
                for (uint32_t at = 0; at < queues[i].depth && !queues[i].lost; at++) {
                    struct slot *slot = &queues[i].slots[at];

                    slot_prepare(&queues[i], slot, IO_CMD_READ);
                    put32(slot->capsule + SQE_NSID, 1);
                    put32(slot->capsule + SQE_CDW12, DATA / 512 - 1);
                    slot_keyed(&queues[i], slot, DATA);
                    queue_submit(&queues[i], slot, 0);
                }
                while (turn == 0 && queues[i].busy > 0 && !queues[i].lost)
                    queue_poll(&queues[i]);
            }
        }
        holding(count, "queues without receives");
        since = now_ns();
        for (uint32_t i = 0; i < count; i++)
            while (!ended(&queues[i]))
                ;
        printf("ended after %llu ms\n", (unsigned long long)(now_ns() - since) / 1000000);
        fflush(stdout);
        while (count > 0)
            queue_destroy(&queues[--count]);
    }
}

static void requests(const struct host *host)
{
    uint32_t sent = 0;

    for (;;) {
        struct queue *queue = &queues[sent % 64];

        if (sent >= 64)
            queue_destroy(queue);
        queue_request(queue, host, 0, 2);
        if (++sent == 64)
            holding(64, "requests");
    }
}

static void links(const struct host *host)
{
    static bw_link *held[LINKS];
    static uint8_t once;
    bw_cm_channel *channel;
    bw_cm_id *id;
    bw_device *device;
    bw_pd *pd;
    bw_connector *connector;
    bw_link_init init;
    bw_link_wc wc[4];

    CHECK(bw_cm_channel_create(host->provider, &channel));
    CHECK(bw_cm_id_create(channel, BW_PS_TCP, NULL, &id));
    CHECK(bw_cm_bind(id, host->source != NULL ? host->source : host->address, 0));
    CHECK(bw_cm_id_device(id, &device));
    CHECK(bw_pd_create(device, &pd));
    CHECK(bw_connector_create(device, host->address, host->port, NULL, &connector));
    CHECK(bw_link_init_default(&init, sizeof init));
    for (;;) {
        uint32_t ready = 0;

        for (uint32_t i = 0; i < LINKS; i++) {
            if (held[i] == NULL)
                CHECK(bw_link_connect(connector, pd, &init, &held[i]));
            /* Of every second one only the request goes out. */
            if (i % 2 == 0 || bw_link_get_state(held[i]) != BW_LINK_READY || once < 100)
                bw_link_poll(held[i], wc, 4);
            ready += bw_link_get_state(held[i]) == BW_LINK_READY;
            if (bw_link_get_state(held[i]) >= BW_LINK_CLOSED) {
                CHECK(bw_link_destroy(held[i]));
                held[i] = NULL;
            }
        }
        if (once < 100 && ++once == 100)
            holding(ready, "links");
        pause_ms(5);
    }
}

int main(int argc, char **argv)
{
    struct host host = {.provider = "rdma", .nqn = "nqn.2014-08.org.nvmexpress:bellwire", .port = 4420};
    int option;

    while ((option = getopt(argc, argv, "d:p:n:a:")) != -1) {
        if (option == 'd')
            host.provider = optarg;
        else if (option == 'p')
            host.port = (uint32_t)strtoul(optarg, NULL, 10);
        else if (option == 'n')
            host.nqn = optarg;
        else if (option == 'a')
            host.source = optarg;
        else
            optind = argc;
    }
    if (optind + 2 != argc)
        die("usage: nvmf-hog [-d PROVIDER] [-p PORT] [-n NQN] [-a SOURCE] WAY ADDRESS");
    const char *way = argv[optind];
    host.address = argv[optind + 1];
    memcpy(host.id, "hog", 3);
    CHECK(bw_version_check(BW_VERSION));
    if (strcmp(way, "silent") == 0)
        silent(&host);
    else if (strcmp(way, "queues") == 0)
        take_queues(&host, false);
    else if (strcmp(way, "names") == 0)
        take_queues(&host, true);
    else if (strcmp(way, "deaf") == 0)
        deaf(&host);
    else if (strcmp(way, "requests") == 0)
        requests(&host);
    else if (strcmp(way, "links") == 0)
        links(&host);
    die("%s: there is no such way", way);
}
