/*
 * Programs that were compiled with an older header, whose structs in arrays are smaller, and with a newer
 * one, whose structs this library does not know.
 */
#include "program.h"

/* The structs as an older header has them. */
typedef struct {
    uint64_t wr_id;
    uint32_t status, opcode, byte_len, imm_data, qp_num, vendor_err, wc_flags, retired;
} older_wc;

typedef struct {
    uint64_t wr_id;
    uint32_t qp_num, retired, status, vendor_err;
    uint8_t opcode, entry;
    uint16_t slid;
    uint32_t byte_cnt;
} older_completion;

typedef struct {
    uint64_t wr_id;
    const bw_sge *sg_list;
    uint32_t num_sge, opcode, send_flags, imm_data;
    uint64_t remote_addr;
    uint32_t rkey, invalidate_rkey;
    uint64_t compare_add, swap;
    const bw_ah *ah;
    uint32_t remote_qpn, remote_qkey, remote_srqn, reserved;
} older_send_wr;

enum { MANY = 40, ROOM = MANY + 1 };

static struct end a, b;

/* Requests, more than the library converts at a time. */
static void sends(older_send_wr wr[MANY], const bw_sge *sge, uint64_t wr_id)
{
    memset(wr, 0, MANY * sizeof *wr);
    for (uint64_t n = 0; n < MANY; n++) {
        wr[n].wr_id = wr_id + n;
        wr[n].sg_list = sge;
        wr[n].num_sge = 1;
        wr[n].opcode = BW_WR_RDMA_WRITE;
        wr[n].send_flags = BW_SEND_SIGNALED;
        wr[n].remote_addr = b.memory.addr;
        wr[n].rkey = b.memory.rkey;
    }
}

static int post(older_send_wr *wr, uint32_t num, const older_send_wr **bad)
{
    return bw_post_send_sized(a.qp, (bw_send_wr *)(void *)wr, sizeof *wr, num,
                              (const bw_send_wr **)(void *)bad);
}

static void an_older_program(void)
{
    bw_sge sge = end_sge(&a, 0, 8);
    older_send_wr wr[MANY];
    const older_send_wr *bad = NULL;
    older_wc wcs[ROOM];
    older_completion completions[ROOM];

    sends(wr, &sge, 0);
    OK(post(wr, MANY, &bad));
    EXPECT(bad == NULL);
    memset(wcs, 0xa5, sizeof wcs);
    EXPECT(bw_poll_sized(a.cq, (bw_wc *)(void *)wcs, sizeof *wcs, 3) == 3);
    EXPECT(bw_poll_sized(a.cq, (bw_wc *)(void *)(wcs + 3), sizeof *wcs, MANY) == MANY - 3);
    for (uint32_t n = 0; n < MANY; n++) {
        EXPECT(wcs[n].wr_id == n && wcs[n].status == BW_WC_SUCCESS && wcs[n].retired == 1);
        EXPECT(wcs[n].opcode == BW_WC_RDMA_WRITE && wcs[n].qp_num == end_number(&a));
    }
    EXPECT(wcs[MANY].wr_id == 0xa5a5a5a5a5a5a5a5 && wcs[MANY].retired == 0xa5a5a5a5);

    sends(wr, &sge, 100);
    OK(post(wr, MANY, NULL));
    memset(completions, 0xa5, sizeof completions);
    EXPECT(bw_poll_completions_sized(a.cq, (bw_completion *)(void *)completions,
                                     sizeof *completions, ROOM) == MANY);
    for (uint32_t n = 0; n < MANY; n++) {
        bw_wc wc;

        EXPECT(completions[n].wr_id == 100 + n && completions[n].opcode == BW_WC_RDMA_WRITE);
        OK(bw_completion_wc_sized((bw_completion *)(void *)(completions + n), sizeof *completions,
                                  &wc, sizeof wc));
        EXPECT(wc.wr_id == 100 + n && wc.opcode == BW_WC_RDMA_WRITE && wc.src_qp == 0);
    }
    EXPECT(completions[MANY].byte_cnt == 0xa5a5a5a5);
    EXPECT(bw_poll_completions_sized(a.cq, (bw_completion *)(void *)completions,
                                     sizeof *completions, ROOM) == 0);

    /* The refused request is the program's own. */
    sends(wr, &sge, 200);
    wr[20].opcode = 99;
    EXPECT(post(wr, MANY, &bad) == BW_EOPCODE && bad == wr + 20);
    EXPECT(bw_poll_sized(a.cq, (bw_wc *)(void *)wcs, sizeof *wcs, ROOM) == 20);
    EXPECT(wcs[19].wr_id == 219);
    wr[20].opcode = BW_WR_BIND_MW;
    wr[20].num_sge = 0;
    EXPECT(post(wr + 20, 1, &bad) == BW_ENULL && bad == wr + 20);
    OK(post(NULL, 0, NULL));
    EXPECT(post(NULL, 1, NULL) == BW_ENULL);
}

/* One of the sizes that no version has had, each call with `size` for it. */
#define REFUSES(type, call)                                                                       \
    do {                                                                                          \
        const size_t sizes[] = {0, 4, 8, sizeof(type) - 4, sizeof(type) + 8, 4096, (size_t)-1};   \
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {                             \
            size_t size = sizes[n];                                                               \
            memset(place, 0xa5, sizeof place);                                                    \
            bad = place;                                                                          \
            EXPECT((call) == BW_ESIZE && bad == place);                                           \
            for (size_t at = 0; at < sizeof place; at++)                                          \
                EXPECT(place[at] == 0xa5);                                                        \
        }                                                                                         \
    } while (0)

static unsigned char place[8192];
static void *bad;
#define TO(type) ((type *)(void *)place)
#define BAD(type) ((const type **)(void *)&bad)

static void other_programs(bw_device *device, bw_pd *pd)
{
    bw_link *one, *other;
    bw_link_set *set;
    bw_link_id id;
    bw_srq *srq;
    bw_srq_init_attr attr;
    bw_sge sge = end_sge(&a, 0, 8);
    bw_send_wr wr = send_of(300, &sge);
    bw_ah_attr path;
    bw_ah *ah;
    bw_completion completion;
    bw_wc wc;

    memset(&completion, 0, sizeof completion);
    memset(&wc, 0, sizeof wc);
    /* A completion that must not be lost. */
    wr.opcode = BW_WR_NOP;
    wr.num_sge = 0;
    OK(bw_post_send(a.qp, &wr, 1, NULL));
    REFUSES(bw_wc, bw_poll_sized(a.cq, TO(bw_wc), size, 2));
    REFUSES(bw_completion, bw_poll_completions_sized(a.cq, TO(bw_completion), size, 2));
    expect_wc(&a, 300, BW_WC_SUCCESS);
    REFUSES(bw_completion, bw_completion_wc_sized(TO(bw_completion), size, &wc, sizeof wc));
    REFUSES(bw_wc, bw_completion_wc_sized(&completion, sizeof completion, TO(bw_wc), size));
    REFUSES(bw_send_wr, bw_post_send_sized(a.qp, TO(bw_send_wr), size, 1, BAD(bw_send_wr)));
    REFUSES(bw_recv_wr, bw_post_recv_sized(a.qp, TO(bw_recv_wr), size, 1, BAD(bw_recv_wr)));
    REFUSES(bw_rdma_wr, bw_post_writes_sized(a.qp, TO(bw_rdma_wr), size, 1, BAD(bw_rdma_wr)));
    REFUSES(bw_rdma_wr, bw_post_writes_inline_sized(a.qp, TO(bw_rdma_wr), size, 1, BAD(bw_rdma_wr)));
    REFUSES(bw_rdma_wr, bw_post_reads_sized(a.qp, TO(bw_rdma_wr), size, 1, BAD(bw_rdma_wr)));
    expect_none(&a);

    OK(bw_srq_init_attr_default(&attr, sizeof attr));
    OK(bw_srq_create(pd, &attr, &srq));
    REFUSES(bw_recv_wr, bw_post_srq_recv_sized(srq, TO(bw_recv_wr), size, 1, BAD(bw_recv_wr)));
    OK(bw_srq_destroy(srq, NULL, NULL));
    REFUSES(bw_wc, bw_ah_init_from_wc_sized(TO(bw_wc), size, NULL, 1, &path));
    REFUSES(bw_wc, bw_ah_create_from_wc_sized(pd, TO(bw_wc), size, NULL, 1, &ah));
    REFUSES(bw_soft_step, bw_soft_inject_sized(device, TO(bw_soft_step), size, 1));
    REFUSES(bw_soft_step, bw_soft_inject_seeded_sized(device, 1, 1, 1, TO(bw_soft_step), size, 1));

    OK(bw_link_create_pair(pd, NULL, &one, pd, NULL, &other));
    REFUSES(bw_link_wc, bw_link_poll_sized(one, TO(bw_link_wc), size, 2));
    REFUSES(bw_link_wc, bw_link_wait_sized(one, TO(bw_link_wc), size, 2, NULL));
    REFUSES(bw_send_wr, bw_link_post_send_sized(one, TO(bw_send_wr), size, 1, 0, BAD(bw_send_wr)));
    REFUSES(bw_recv_wr, bw_link_post_recv_sized(one, TO(bw_recv_wr), size, 1, BAD(bw_recv_wr)));
    OK(bw_link_destroy(one));
    OK(bw_link_destroy(other));
    OK(bw_link_set_create(pd, NULL, &set));
    OK(bw_link_set_join_pair(set, NULL, &id, pd, NULL, &other));
    REFUSES(bw_link_set_wc, bw_link_set_poll_sized(set, TO(bw_link_set_wc), size, 2));
    REFUSES(bw_link_set_wc, bw_link_set_wait_sized(set, TO(bw_link_set_wc), size, 2, NULL));
    REFUSES(bw_send_wr,
            bw_link_set_post_send_sized(set, id, TO(bw_send_wr), size, 1, 0, BAD(bw_send_wr)));
    REFUSES(bw_recv_wr,
            bw_link_set_post_recv_sized(set, id, TO(bw_recv_wr), size, 1, BAD(bw_recv_wr)));
    OK(bw_link_set_destroy(set));
    OK(bw_link_destroy(other));
}

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;

    OK(bw_pd_create(device, &pd));
    a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    an_older_program();
    other_programs(device, pd);
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
