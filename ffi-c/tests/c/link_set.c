/*
 * A set: many links on shared completion queues, polled once for all. Its peers are plain links. What is
 * posted to a link is reported with its handle, also through the failure of the completion queue.
 */
#include "link.h"
#include <poll.h>
#include <unistd.h>

enum { LINKS = 8 };

static bw_device *device;
static bw_pd *pd;
static bw_link_set *set;
static bw_region *region;
static bw_region_info memory;

/* A link of the set, and its peer. */
static struct member {
    bw_link_id id;
    struct side peer;
    uint32_t state;
    uint64_t posted, retired;
    unsigned sent, received;
} members[LINKS];

static struct member *member_of(bw_link_id id)
{
    for (unsigned at = 0; at < LINKS; at++)
        if (members[at].id == id)
            return &members[at];
    EXPECT(!"a handle that the set never gave");
    return NULL;
}

static void take(void *context, const bw_link_set_wc *one)
{
    struct member *of = member_of(one->link);

    (void)context;
    of->retired += one->wc.retired;
    if (one->wc.outcome != BW_OUTCOME_EXECUTED)
        return;
    if (one->wc.opcode & BW_WC_RECV)
        of->received++;
    else
        of->sent++;
}

static int poll_set(void)
{
    bw_link_set_wc wcs[8];
    bw_link_id id;
    uint32_t state;
    int count = bw_link_set_poll(set, wcs, 8);

    EXPECT(count >= 0);
    for (int at = 0; at < count; at++)
        take(NULL, &wcs[at]);
    int changed;
    while ((changed = bw_link_set_next_change(set, &id, &state)) == 1)
        member_of(id)->state = state;
    EXPECT(changed == 0);
    return count;
}

static void poll_all(void)
{
    poll_set();
    for (unsigned at = 0; at < LINKS; at++)
        side_poll(&members[at].peer);
}

static bw_link_info info_of(struct member *member)
{
    bw_link_info info;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_link_set_query_link(set, member->id, &info));
    return info;
}

static bw_link_set_info set_info(void)
{
    bw_link_set_info info;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_link_set_query(set, &info));
    return info;
}

static bw_sge slot(unsigned at)
{
    bw_sge sge;

    sge.addr = memory.addr + at * SLOT;
    sge.length = SLOT;
    sge.lkey = memory.lkey;
    return sge;
}

static void join(struct member *member)
{
    bw_link_init here, there;

    OK(bw_link_init_default(&here, sizeof here));
    here.dump_entries = 4;
    side_memory(&member->peer, pd, &there);
    there.seed = 1;
    OK(bw_link_set_join_pair(set, &here, &member->id, pd, &there, &member->peer.link));
    member->state = BW_LINK_RECOVERING;
    EXPECT(info_of(member).state == BW_LINK_RECOVERING);
    EXPECT(bw_link_set_post_send_inline(set, member->id, 0, "x", 1, 0, 0) == BW_ERECOVERING);
}

static void until_ready(uint64_t epoch)
{
    for (unsigned at = 0; at < LINKS; at++)
        while (members[at].state != BW_LINK_READY || info_of(&members[at]).epoch < epoch ||
               bw_link_get_state(members[at].peer.link) != BW_LINK_READY)
            poll_all();
}

static void make(void)
{
    bw_link_set_init init;
    bw_region_attr attr;

    OK(bw_link_set_init_default(&init, sizeof init));
    init.links = LINKS;
    init.check_every = 1;
    init.links_per_poll = 3;
    init.sleeps = 1;
    OK(bw_link_set_create(pd, &init, &set));
    OK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = SLOT * SLOTS;
    attr.access = BW_ACCESS_LOCAL_WRITE;
    OK(bw_region_create(pd, &attr, &region));
    memory.size = sizeof memory;
    OK(bw_region_query(region, &memory));
    uint64_t empty = set_info().memory;
    for (unsigned at = 0; at < LINKS; at++)
        join(&members[at]);
    EXPECT(set_info().links == LINKS && set_info().capacity == LINKS);
    EXPECT(set_info().completion_queues >= 1 && set_info().memory > empty);
    bw_link_id none;
    bw_link *peer;
    EXPECT(bw_link_set_join_pair(set, NULL, &none, pd, NULL, &peer) == BW_ELIMIT && peer == NULL);
    until_ready(1);
}

/* Each link sends in every way, its peer sends back, and each hears its own peer. */
static void talk(void)
{
    static unsigned rounds;

    rounds++;
    for (unsigned at = 0; at < LINKS; at++) {
        struct member *member = &members[at];
        struct side *peer = &member->peer;
        bw_sge sge = slot(at), list = slot(LINKS + at);
        uint64_t number = at, to = peer->memory.addr + 40 * SLOT;
        bw_send_wr wr = send_of(5, &sge);
        bw_recv_wr receive = recv_of(6, &list);
        const bw_send_wr *bad_send = NULL;
        const bw_recv_wr *bad_recv = NULL;

        *(uint64_t *)(uintptr_t)sge.addr = at;
        sge.length = 8;
        side_receive(peer);
        side_receive(peer);
        side_receive(peer);
        OK(bw_link_set_post_recv(set, member->id, &receive, 1, &bad_recv));
        OK(bw_link_set_post_recv_one(set, member->id, 7, &list));
        OK(bw_link_set_ring_rq(set, member->id));
        OK(bw_link_set_post_send_one(set, member->id, 1, &sge, BW_SEND_SIGNALED, BW_REPLAY_NEVER));
        OK(bw_link_set_post_send_inline(set, member->id, 2, &number, 8, BW_SEND_SIGNALED,
                                        BW_REPLAY_NEVER));
        OK(bw_link_set_post_write(set, member->id, 3, &sge, to, peer->memory.rkey, BW_SEND_SIGNALED,
                                  BW_REPLAY_ANYWAY));
        OK(bw_link_set_post_write_inline(set, member->id, 4, &number, 8, to + SLOT,
                                         peer->memory.rkey, BW_SEND_SIGNALED, BW_REPLAY_ANYWAY));
        OK(bw_link_set_ring_sq(set, member->id));
        OK(bw_link_set_post_send(set, member->id, &wr, 1, BW_REPLAY_NEVER, &bad_send));
        OK(bw_link_set_post_read(set, member->id, 8, &list, to, peer->memory.rkey, BW_SEND_SIGNALED,
                                 BW_REPLAY_IF_SAFE));
        OK(bw_link_set_ring_sq(set, member->id));
        member->posted += 8;
        uint64_t from = peer->posted - peer->receives;
        for (unsigned n = 0; n < 2; n++)
            OK(bw_link_post_send_inline(peer->link, from + n, "hi", 2, BW_SEND_SIGNALED,
                                        BW_REPLAY_NEVER));
        OK(bw_link_ring_sq(peer->link));
        peer->posted += 2;
    }
    for (unsigned at = 0; at < LINKS; at++) {
        struct member *member = &members[at];
        struct side *peer = &member->peer;

        while (member->retired != member->posted || peer->retired != peer->posted)
            poll_all();
        EXPECT(peer->received[at] == 3 * rounds);
        EXPECT(*side_word(peer, 40) == at && *side_word(peer, 41) == at);
        EXPECT(member->sent == 6 * rounds);
    }
}

static int wakes(int milliseconds)
{
    struct pollfd fd;

    memset(&fd, 0, sizeof fd);
    fd.fd = bw_link_set_fd(set);
    EXPECT(fd.fd >= 0);
    fd.events = POLLIN;
    int count = poll(&fd, 1, milliseconds);
    EXPECT(count >= 0);
    return count;
}

/* One descriptor for all links. */
static void sleeping(void)
{
    uint64_t left;

    for (unsigned at = 0; at < LINKS; at++) {
        struct member *member = &members[at];
        bw_sge sge = slot(at);

        OK(bw_link_set_post_recv_one(set, member->id, 9, &sge));
        OK(bw_link_set_ring_rq(set, member->id));
        member->posted++;
        do
            OK(bw_link_set_arm(set));
        while (poll_set() != 0);
        EXPECT(!wakes(0));
        OK(bw_link_set_time_left(set, &left));
        EXPECT(left == UINT64_MAX);
        uint64_t number = member->peer.posted - member->peer.receives;
        OK(bw_link_post_send_inline(member->peer.link, number, "hi", 2, BW_SEND_SIGNALED,
                                    BW_REPLAY_NEVER));
        OK(bw_link_ring_sq(member->peer.link));
        member->peer.posted++;
        EXPECT(wakes(SOON));
        while (member->retired != member->posted || member->peer.retired != member->peer.posted)
            poll_all();
    }
}

/* The set polls for a while, then sleeps, until a message, a descriptor, or the end of the time. */
static void waits(void)
{
    struct member *member = &members[0];
    bw_sge sge = slot(0);
    bw_link_set_wc one;
    bw_wait wait;
    int ends[2];

    OK(bw_wait_default(&wait, sizeof wait));
    EXPECT(wait.num_fds == 0 && wait.timeout_ns == UINT64_MAX && wait.fds == NULL);
    EXPECT(bw_link_set_wait(set, &one, 0, &wait) == BW_EINVAL);
    for (wait.spin_ns = 0; wait.spin_ns < 3000000; wait.spin_ns += 2000000) {
        wait.timeout_ns = 1000000;
        EXPECT(bw_link_set_wait(set, &one, 1, &wait) == 0);
        OK(bw_link_set_post_recv_one(set, member->id, 9, &sge));
        OK(bw_link_set_ring_rq(set, member->id));
        uint64_t number = member->peer.posted - member->peer.receives;
        OK(bw_link_post_send_inline(member->peer.link, number, "hi", 2, BW_SEND_SIGNALED,
                                    BW_REPLAY_NEVER));
        OK(bw_link_ring_sq(member->peer.link));
        member->peer.posted++;
        wait.timeout_ns = UINT64_MAX;
        EXPECT(bw_link_set_wait(set, &one, 1, &wait) == 1);
        EXPECT(one.link == member->id && one.wc.wr_id == 9);
        EXPECT(one.wc.outcome == BW_OUTCOME_EXECUTED);
        while (member->peer.retired != member->peer.posted)
            poll_all();
    }
    EXPECT(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    wait.spin_ns = 0;
    wait.fds = ends;
    wait.num_fds = 1;
    EXPECT(bw_link_set_wait(set, &one, 1, &wait) == 0);
    close(ends[0]);
    close(ends[1]);
    ends[0] = -1;
    EXPECT(bw_link_set_wait(set, &one, 1, &wait) == BW_EINVAL);
}

static struct {
    unsigned faults, recoveries;
    int32_t number;
    uint32_t end;
} seen;

static void on_fault(void *context, const bw_fault *fault, const bw_class *means, uint64_t epoch)
{
    EXPECT(context == &seen && epoch == 1);
    EXPECT(means->scope == BW_SCOPE_QP && fault->family == BW_FAMILY_EVENT);
    seen.faults++;
    seen.number = fault->number;
}

static void on_recovered(void *context, const bw_recovery_report *report)
{
    EXPECT(context == &seen);
    seen.recoveries++;
    seen.end = report->end;
}

/* What is dumped of a link, now or of the connection that failed. */
static char *dumped(bw_link_id link, int failure)
{
    static char text[1 << 16];
    size_t length = 0;
    int code = failure ? bw_link_set_dump_failure(set, link, NULL, text, sizeof text, &length)
                       : bw_link_set_dump(set, link, NULL, text, sizeof text, &length);

    OK(code);
    EXPECT(length == strlen(text) && length > 0);
    return text;
}

/* A link of the set has what a plain link has. */
static void watch(struct member *member)
{
    char host[BW_ADDR_MAX];
    uint32_t port;
    size_t length;

    EXPECT(bw_link_set_context(set, member->id) == NULL);
    OK(bw_link_set_set_context(set, member->id, member));
    EXPECT(bw_link_set_context(set, member->id) == member);
    EXPECT(bw_link_set_context(set, members[2].id) == NULL);
    OK(bw_link_set_on_fault(set, member->id, on_fault, &seen));
    OK(bw_link_set_on_recovered(set, member->id, on_recovered, &seen));
    EXPECT(bw_link_set_dump_failure(set, member->id, NULL, NULL, 0, &length) == BW_ESTATE);
    EXPECT(bw_link_set_peer_addr(set, member->id, host, &port) == BW_ESTATE);
    dumped(member->id, 0);
}

/* Of one link, then of the queue of all. */
static void faults(void)
{
    bw_fault fault;
    bw_link_counters counters;

    watch(&members[3]);
    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = BW_FAMILY_EVENT;
    fault.number = BW_EVENT_QP_FATAL;
    OK(bw_link_set_report_fault(set, members[3].id, &fault));
    while (info_of(&members[3]).epoch != 2 || members[3].state != BW_LINK_READY)
        poll_all();
    EXPECT(info_of(&members[2]).epoch == 1);
    until_ready(1);
    EXPECT(seen.faults == 1 && seen.number == BW_EVENT_QP_FATAL);
    EXPECT(seen.recoveries == 1 && seen.end == BW_END_RECOVERED);
    EXPECT(strstr(dumped(members[3].id, 1), "QP_FATAL") != NULL);
    OK(bw_link_set_on_fault(set, members[3].id, NULL, NULL));
    OK(bw_link_set_on_recovered(set, members[3].id, NULL, NULL));
    fault.number = BW_EVENT_CQ_ERR;
    OK(bw_link_set_report_fault(set, members[0].id, &fault));
    until_ready(2);
    EXPECT(info_of(&members[3]).epoch == 3);
    counters.size = sizeof counters;
    OK(bw_link_set_query_counters(set, members[0].id, &counters));
    EXPECT(counters.recovered == 2 && counters.faults[BW_SCOPE_CQ] == 1);
}

/* A handle of a link that was removed reaches no other. */
static void stale(void)
{
    struct member *member = &members[5];
    bw_link_id old = member->id;
    bw_link_info info;
    bw_sge sge = slot(0);

    OK(bw_link_set_close(set, old, 1000));
    while (member->state != BW_LINK_CLOSED)
        poll_all();
    EXPECT(bw_link_set_ring_sq(set, old) == BW_OK);
    EXPECT(bw_link_set_post_send_inline(set, old, 0, "x", 1, 0, 0) == BW_EENDED);
    EXPECT(member->retired + info_of(member).unreported == member->posted);
    OK(bw_link_set_remove(set, old));
    while (bw_link_get_state(member->peer.link) != BW_LINK_PEER_CLOSED)
        side_poll(&member->peer);
    side_end(&member->peer);
    memset(member, 0, sizeof *member);
    join(member);
    EXPECT(member->id != old);
    until_ready(1);
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    EXPECT(bw_link_set_remove(set, old) == BW_ENOLINK);
    EXPECT(bw_link_set_close(set, old, 0) == BW_ENOLINK);
    EXPECT(bw_link_set_query_link(set, old, &info) == BW_ENOLINK);
    EXPECT(bw_link_set_post_send_inline(set, old, 0, "x", 1, 0, 0) == BW_ENOLINK);
    EXPECT(bw_link_set_post_recv_one(set, old, 0, &sge) == BW_ENOLINK);
    EXPECT(bw_link_set_ring_sq(set, old) == BW_ENOLINK);
    EXPECT(bw_link_set_ring_rq(set, old) == BW_ENOLINK);
    EXPECT(bw_link_set_on_fault(set, old, NULL, NULL) == BW_ENOLINK);
    EXPECT(bw_link_set_on_recovered(set, old, NULL, NULL) == BW_ENOLINK);
    EXPECT(bw_link_set_set_context(set, old, set) == BW_ENOLINK);
    EXPECT(bw_link_set_context(set, old) == NULL && bw_link_set_context(set, member->id) == NULL);
}

/* Links of two sets, by TCP. */
static void over_tcp(void)
{
    bw_link_set *sets[2];
    bw_link_id ids[2];
    bw_tcp_conn *conns[2];
    bw_tcp_listener *listener;
    bw_link_set_init init;
    uint32_t state[2] = {BW_LINK_RECOVERING, BW_LINK_RECOVERING};

    OK(bw_link_set_init_default(&init, sizeof init));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    OK(bw_tcp_connect("127.0.0.1", (uint32_t)bw_tcp_listener_port(listener), 10000, &conns[0]));
    OK(bw_tcp_accept(listener, 10000, &conns[1]));
    char host[BW_ADDR_MAX];
    uint32_t port = 0;
    OK(bw_tcp_peer_addr(conns[0], host, &port));
    EXPECT(strcmp(host, "127.0.0.1") == 0 && port == (uint32_t)bw_tcp_listener_port(listener));
    for (int at = 0; at < 2; at++) {
        OK(bw_link_set_create(pd, &init, &sets[at]));
        OK(bw_link_set_join(sets[at], NULL, conns[at], &ids[at]));
        EXPECT(bw_tcp_peer_addr(conns[at], host, &port) == BW_ECONN);
        OK(bw_tcp_conn_destroy(conns[at]));
    }
    port = 0;
    OK(bw_link_set_peer_addr(sets[0], ids[0], host, &port));
    EXPECT(strcmp(host, "127.0.0.1") == 0 && port == (uint32_t)bw_tcp_listener_port(listener));
    while (state[0] != BW_LINK_READY || state[1] != BW_LINK_READY)
        for (int at = 0; at < 2; at++) {
            bw_link_set_wc wc;
            bw_link_id id;

            EXPECT(bw_link_set_poll(sets[at], &wc, 1) == 0);
            if (bw_link_set_next_change(sets[at], &id, &state[at]) == 1)
                EXPECT(id == ids[at]);
        }
    OK(bw_link_set_destroy(sets[0]));
    while (state[1] != BW_LINK_PEER_CLOSED) {
        bw_link_set_wc wc;
        bw_link_id id;

        EXPECT(bw_link_set_poll(sets[1], &wc, 1) == 0);
        bw_link_set_next_change(sets[1], &id, &state[1]);
    }
    EXPECT(bw_link_set_fd(sets[1]) == BW_EUNSUPPORTED);
    EXPECT(bw_link_set_arm(sets[1]) == BW_EUNSUPPORTED);
    bw_link_set_wc none;
    EXPECT(bw_link_set_wait(sets[1], &none, 1, NULL) == BW_EUNSUPPORTED);
    OK(bw_link_set_destroy(sets[1]));
    OK(bw_tcp_listener_destroy(listener));
}

/* A set connects by the communication manager, another accepts. */
static void by_cm(void)
{
    bw_link_set *sets[2];
    bw_link_id ids[2];
    bw_connector *connector;
    bw_listener *listener;
    bw_link_set_init init;
    uint32_t state[2] = {BW_LINK_RECOVERING, BW_LINK_RECOVERING};
    int code = BW_EAGAIN;

    OK(bw_link_set_init_default(&init, sizeof init));
    init.links = 1;
    init.check_every = 1;
    OK(bw_listener_create(device, "127.0.0.1", 0, 4, NULL, &listener));
    OK(bw_connector_create(device, "127.0.0.1", (uint32_t)bw_listener_port(listener), NULL, &connector));
    for (int at = 0; at < 2; at++)
        OK(bw_link_set_create(pd, &init, &sets[at]));
    EXPECT(bw_link_set_accept(sets[1], listener, NULL, 0, &ids[1]) == BW_EAGAIN);
    OK(bw_link_set_connect(sets[0], connector, NULL, &ids[0]));
    EXPECT(bw_link_set_connect(sets[0], connector, NULL, &ids[1]) == BW_ELIMIT);
    while (state[0] != BW_LINK_READY || state[1] != BW_LINK_READY) {
        if (code == BW_EAGAIN)
            code = bw_link_set_accept(sets[1], listener, NULL, 0, &ids[1]);
        EXPECT(code == BW_EAGAIN || code == BW_OK);
        for (int at = 0; at < 2; at++) {
            bw_link_set_wc wc;
            bw_link_id id;

            EXPECT(bw_link_set_poll(sets[at], &wc, 1) == 0);
            if (bw_link_set_next_change(sets[at], &id, &state[at]) == 1)
                EXPECT(id == ids[at]);
        }
    }
    EXPECT(bw_link_set_accept(sets[1], listener, NULL, 0, &ids[1]) == BW_ELIMIT);
    for (int at = 0; at < 2; at++)
        OK(bw_link_set_destroy(sets[at]));
    OK(bw_connector_destroy(connector));
    OK(bw_listener_destroy(listener));
}

int main(void)
{
    uint64_t retired = 0, left = 0;

    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    make();
    talk();
    sleeping();
    waits();
    faults();
    talk();
    stale();
    for (unsigned at = 0; at < LINKS; at++) {
        bw_sge sge = slot(at);

        OK(bw_link_set_post_recv_one(set, members[at].id, 9, &sge));
        members[at].posted++;
    }
    for (unsigned at = 0; at < LINKS; at++)
        left += members[at].posted - members[at].retired;
    OK(bw_link_set_drain(set, SOON, take, NULL, &retired));
    EXPECT(retired == left && left == LINKS);
    for (unsigned at = 0; at < LINKS; at++) {
        EXPECT(members[at].retired == members[at].posted);
        side_end(&members[at].peer);
    }
    EXPECT(bw_pd_destroy(pd) == BW_EBUSY);
    OK(bw_link_set_destroy(set));
    OK(bw_region_destroy(region));
    over_tcp();
    by_cm();
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
