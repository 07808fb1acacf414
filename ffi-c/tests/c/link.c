/* Two links of one process: every operation, and requests that go on through faults. */
#include "link.h"

static bw_device *device;
static bw_pd *pd;
static struct side a, b;

static void make(void)
{
    bw_link_init here, there;

    side_memory(&a, pd, &here);
    side_memory(&b, pd, &there);
    there.seed = 1;
    here.dump_entries = 32;
    here.dump_flags = BW_DUMP_NO_INLINE;
    OK(bw_link_create_pair(pd, &here, &a.link, pd, &there, &b.link));
    EXPECT(bw_link_get_state(a.link) == BW_LINK_RECOVERING);
    EXPECT(bw_link_post_send_inline(a.link, 0, "x", 1, 0, BW_REPLAY_NEVER) == BW_ERECOVERING);
    for (unsigned count = 0; count < 32; count++)
        side_receive(&b);
    both_ready(&a, &b);
    EXPECT(side_info(&a).epoch == 1 && side_info(&a).why[0] == 0);
    EXPECT(side_info(&a).peer_addr == b.memory.addr);
    EXPECT(side_info(&a).peer_length == b.memory.length);
}

/* Polls both until the request is reported, with this outcome. */
static void until_reported(uint64_t wr_id, uint32_t outcome)
{
    while (!a.reported[wr_id]) {
        side_poll(&a);
        side_poll(&b);
    }
    EXPECT(a.last[wr_id].outcome == outcome);
}

static void operations(void)
{
    bw_sge data = side_sge(&a, 0, 8), back = side_sge(&a, 1, 8);
    uint64_t to = b.memory.addr + 40 * SLOT;
    uint32_t rkey = b.memory.rkey;
    bw_send_wr wrs[4];
    const bw_send_wr *bad = NULL;
    bw_recv_wr receive;
    bw_sge place = side_sge(&b, b.receives % SLOTS, SLOT);
    const uint64_t inlined = 77;

    *side_word(&a, 0) = 1;
    OK(bw_link_post_send_one(a.link, 1, &data, BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
    OK(bw_link_ring_sq(a.link));
    until_reported(1, BW_OUTCOME_EXECUTED);
    OK(bw_link_post_write(a.link, 2, &data, to, rkey, 0, BW_REPLAY_ANYWAY));
    OK(bw_link_post_write_inline(a.link, 3, &inlined, 8, to + SLOT, rkey, BW_SEND_SIGNALED,
                                 BW_REPLAY_ANYWAY));
    OK(bw_link_ring_sq(a.link));
    until_reported(3, BW_OUTCOME_EXECUTED);
    EXPECT(a.last[3].retired == 2 && !a.reported[2] && a.last[3].opcode == BW_WC_RDMA_WRITE);
    EXPECT(*side_word(&b, 40) == 1 && *side_word(&b, 41) == inlined);
    OK(bw_link_post_read(a.link, 4, &back, to + SLOT, rkey, BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
    OK(bw_link_ring_sq(a.link));
    until_reported(4, BW_OUTCOME_EXECUTED);
    EXPECT(*side_word(&a, 1) == inlined && a.last[4].byte_len == 8);
    const uint64_t number = 5;
    OK(bw_link_post_send_inline(a.link, 5, &number, 8, BW_SEND_SIGNALED, BW_REPLAY_NEVER));
    OK(bw_link_ring_sq(a.link));
    until_reported(5, BW_OUTCOME_EXECUTED);

    /* An array: an atomic, a WRITE with immediate data, and one that cannot be posted. */
    for (unsigned at = 0; at < 4; at++)
        wrs[at] = send_of(6 + at, &back);
    wrs[0].opcode = BW_WR_ATOMIC_FETCH_AND_ADD;
    wrs[0].remote_addr = to;
    wrs[0].rkey = rkey;
    wrs[0].compare_add = 9;
    wrs[1].sg_list = &data;
    wrs[1].opcode = BW_WR_RDMA_WRITE_WITH_IMM;
    wrs[1].remote_addr = to + 2 * SLOT;
    wrs[1].rkey = rkey;
    wrs[1].imm_data = 0x12345678;
    wrs[2].opcode = 99;
    EXPECT(bw_link_post_send(a.link, wrs, 4, BW_REPLAY_NEVER, &bad) == BW_EOPCODE);
    EXPECT(bad == &wrs[2]);
    until_reported(7, BW_OUTCOME_EXECUTED);
    EXPECT(a.reported[6] == 1 && !a.reported[8]);
    EXPECT(*side_word(&a, 1) == 1 && *side_word(&b, 40) == 10 && *side_word(&b, 42) == 1);
    a.posted += 7;

    /* What b has of it: two SENDs of eight bytes, and the immediate data. */
    while (!b.reported[RECEIVES + 2])
        side_poll(&b);
    EXPECT(b.received[1] == 1 && b.received[5] == 1);
    EXPECT(b.last[RECEIVES + 2].opcode == BW_WC_RECV_RDMA_WITH_IMM);
    EXPECT(b.last[RECEIVES + 2].wc_flags == BW_WC_WITH_IMM);
    EXPECT(b.last[RECEIVES + 2].imm_data == 0x12345678);
    /* An array of receives; its number is that of the next one. */
    receive = recv_of(RECEIVES + b.receives++, &place);
    OK(bw_link_post_recv(b.link, &receive, 1, NULL));
    b.posted++;
}

/* A window on the memory of b, through which a writes. */
static void window(void)
{
    const uint64_t word = 99;
    bw_send_wr bind;
    bw_mw *window;

    OK(bw_mw_create(pd, BW_MW_TYPE_2, &window));
    memset(&bind, 0, sizeof bind);
    bind.wr_id = 1;
    bind.opcode = BW_WR_BIND_MW;
    bind.send_flags = BW_SEND_SIGNALED;
    bind.mw = window;
    bind.bind.addr = b.memory.addr + 50 * SLOT;
    bind.bind.length = SLOT;
    bind.bind.lkey = b.memory.lkey;
    bind.bind.access = BW_ACCESS_REMOTE_WRITE;
    OK(bw_link_post_send(b.link, &bind, 1, BW_REPLAY_NEVER, NULL));
    b.posted++;
    while (!b.reported[1])
        side_poll(&b);
    EXPECT(b.last[1].outcome == BW_OUTCOME_EXECUTED && b.last[1].opcode == BW_WC_BIND_MW);
    OK(bw_link_post_write_inline(a.link, 20, &word, 8, bind.bind.addr, bw_mw_rkey(window),
                                 BW_SEND_SIGNALED, BW_REPLAY_NEVER));
    OK(bw_link_ring_sq(a.link));
    a.posted++;
    until_reported(20, BW_OUTCOME_EXECUTED);
    EXPECT(*side_word(&b, 50) == word);
    OK(bw_mw_destroy(window));
}

static void strike(uint32_t fault, uint32_t value)
{
    bw_soft_step step;

    memset(&step, 0, sizeof step);
    step.trigger = BW_AT_REQUEST;
    step.at = 5;
    step.fault = fault;
    step.value = value;
    OK(bw_soft_inject(device, &step, 1));
}

/*
 * Sixteen SENDs of the numbers from `first` on, through a fault: each is reported once, with its
 * true outcome. The numbers are checked at the receiver, whose completion queue stays.
 */
static unsigned through_a_fault(unsigned first, uint32_t fault, uint32_t value, uint32_t replay)
{
    uint64_t epoch = side_info(&a).epoch;
    unsigned done = 0;

    for (unsigned count = 0; count < 16; count++)
        side_receive(&b);
    strike(fault, value);
    for (unsigned count = 0; count < 16; count++) {
        uint64_t number = first + count;

        OK(bw_link_post_send_inline(a.link, number, &number, 8, BW_SEND_SIGNALED, replay));
    }
    a.posted += 16;
    OK(bw_link_ring_sq(a.link));
    for (unsigned count = 0; count < 16; count++)
        while (!a.reported[first + count] || side_info(&a).epoch == epoch) {
            side_poll(&a);
            side_poll(&b);
        }
    both_ready(&a, &b);
    /* What was executed is there. */
    for (unsigned count = 0; count < 100; count++)
        side_poll(&b);
    for (unsigned number = first; number < first + 16; number++) {
        switch (a.last[number].outcome) {
        case BW_OUTCOME_EXECUTED:
            done++;
            EXPECT(b.received[number] == 1);
            break;
        case BW_OUTCOME_IN_DOUBT:
            EXPECT(b.received[number] <= 1);
            break;
        default:
            EXPECT(b.received[number] == 0);
        }
    }
    return done;
}

/* What a's queue pair did, and what the last one did that failed: its SENDs. */
static void dumps(void)
{
    static char text[1 << 16];
    size_t length;

    OK(bw_link_dump(a.link, NULL, text, sizeof text, &length));
    EXPECT(strlen(text) == length && strstr(text, "state RTS"));
    EXPECT(bw_link_dump_failure(a.link, NULL, NULL, 0, &length) == BW_ELIMIT);
    OK(bw_link_dump_failure(a.link, NULL, text, sizeof text, NULL));
    EXPECT(strlen(text) == length && strstr(text, "SEND wr_id"));
    EXPECT(bw_link_dump_failure(b.link, NULL, text, sizeof text, NULL) == BW_ESTATE);
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    make();
    EXPECT(bw_pd_destroy(pd) == BW_EBUSY);
    operations();
    window();

    /* Replayed, all arrive; else those behind the fault are reported as not executed. */
    EXPECT(through_a_fault(100, BW_FAULT_QP_FATAL, side_info(&a).qp_num, BW_REPLAY_IF_SAFE) == 16);
    EXPECT(through_a_fault(200, BW_FAULT_QP_FATAL, side_info(&a).qp_num, BW_REPLAY_NEVER) < 16);
    EXPECT(through_a_fault(300, BW_FAULT_CQ_OVERRUN, side_info(&a).cqn, BW_REPLAY_IF_SAFE) == 16);
    EXPECT(through_a_fault(400, BW_FAULT_QP_FATAL, side_info(&b).qp_num, BW_REPLAY_IF_SAFE) == 16);

    dumps();
    bw_link_counters counters = side_counters(&a);
    EXPECT(counters.recovered == 5 && counters.gave_up == 0 && counters.in_doubt == 0);
    EXPECT(counters.replayed > 0 && counters.not_executed > 0);
    EXPECT(counters.recv_not_executed == 0 && counters.recv_failed == 0 && counters.recv_in_doubt == 0);
    EXPECT(counters.faults[BW_SCOPE_CQ] >= 1 && counters.faults[BW_SCOPE_QP] >= 2);
    EXPECT(counters.longest_ns >= counters.last_ns && counters.total_ns >= counters.longest_ns);
    EXPECT(side_counters(&b).reposted > 0);

    side_end(&a);
    side_end(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
