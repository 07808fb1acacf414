/* Arrays of requests of one operation, and completions that are read when it is asked for. */
#include "program.h"

static bw_rdma_wr of(uint64_t wr_id, bw_sge sge, struct end *peer, uint32_t offset)
{
    bw_rdma_wr wr;

    memset(&wr, 0, sizeof wr);
    wr.wr_id = wr_id;
    wr.sge = sge;
    wr.remote_addr = peer->memory.addr + offset;
    wr.rkey = peer->memory.rkey;
    wr.send_flags = BW_SEND_SIGNALED;
    return wr;
}

/* Both forms of a completion say the same. */
static bw_wc same(const bw_completion *completion)
{
    bw_wc wc;

    OK(bw_completion_wc(completion, &wc));
    EXPECT(wc.wr_id == completion->wr_id && wc.qp_num == completion->qp_num);
    EXPECT(wc.status == completion->status && wc.retired == completion->retired);
    EXPECT(wc.vendor_err == completion->vendor_err && wc.opcode == completion->opcode);
    EXPECT(wc.byte_len == bw_completion_byte_len(completion));
    return wc;
}

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;
    OK(bw_pd_create(device, &pd));
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end uc = end_create(device, pd, BW_QPT_UC, NULL, NULL);
    end_connect(&a, &b);
    end_connect(&b, &a);
    bw_completion polled[8];
    bw_wc wc;

    /* WRITEs from memory, and of bytes; the first is reported by the second. */
    memcpy(end_bytes(&a, 0), "0123456789abcdef", 16);
    bw_rdma_wr writes[3] = {of(1, end_sge(&a, 0, 8), &b, 0), of(2, end_sge(&a, 8, 8), &b, 8)};
    writes[0].send_flags = 0;
    OK(bw_post_writes(a.qp, writes, 2, NULL));
    EXPECT(bw_poll_completion(a.cq, polled) == 1 && bw_poll_completion(a.cq, &polled[1]) == 0);
    EXPECT(polled[0].wr_id == 2 && polled[0].retired == 2 && polled[0].status == BW_WC_SUCCESS);
    EXPECT(same(polled).opcode == BW_WC_RDMA_WRITE && same(polled).byte_len == 0);
    EXPECT(memcmp(end_bytes(&b, 0), "0123456789abcdef", 16) == 0);
    bw_sge text = {(uint64_t)(uintptr_t) "inline", 7, 0};
    writes[0] = of(3, text, &b, 32);
    writes[1] = of(4, text, &b, 64);
    OK(bw_post_writes_inline(a.qp, writes, 2, NULL));
    EXPECT(bw_poll_completions(a.cq, polled, 1) == 1 && bw_poll_completions(a.cq, &polled[1], 7) == 1);
    EXPECT(polled[0].wr_id == 3 && polled[1].wr_id == 4);
    EXPECT(strcmp(end_bytes(&b, 32), "inline") == 0 && strcmp(end_bytes(&b, 64), "inline") == 0);
    EXPECT(bw_poll_completions(a.cq, polled, 0) == 0 && bw_poll_completions(a.cq, polled, -1) == 0);

    /* READs bring bytes, of memory that may be read. */
    static char readable[8] = "inline";
    bw_mr_info info;
    bw_mr *mr;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_mr_create(pd, readable, sizeof readable, BW_ACCESS_REMOTE_READ, &mr));
    OK(bw_mr_query(mr, &info));
    writes[0] = of(5, end_sge(&a, 128, 7), &b, 0);
    writes[0].remote_addr = info.addr;
    writes[0].rkey = info.rkey;
    OK(bw_post_reads(a.qp, writes, 1, NULL));
    EXPECT(bw_poll_completions(a.cq, polled, 8) == 1);
    EXPECT(same(polled).opcode == BW_WC_RDMA_READ && same(polled).byte_len == 7);
    EXPECT(strcmp(end_bytes(&a, 128), "inline") == 0);

    /* A bad one in the middle: flags, then memory. */
    const bw_rdma_wr *bad = NULL;
    writes[0] = of(6, end_sge(&a, 0, 8), &b, 0);
    writes[1] = of(7, end_sge(&a, 0, 8), &b, 0);
    writes[2] = of(8, end_sge(&a, 0, 8), &b, 0);
    writes[1].send_flags = 1u << 20;
    EXPECT(bw_post_writes(a.qp, writes, 3, &bad) == BW_EINVAL && bad == &writes[1]);
    writes[1].send_flags = BW_SEND_SIGNALED;
    writes[1].sge.length = 1u << 31;
    EXPECT(bw_post_writes(a.qp, &writes[1], 2, &bad) == BW_ESGELENGTH && bad == &writes[1]);
    EXPECT(bw_poll_completions(a.cq, polled, 8) == 1 && polled[0].wr_id == 6);
    EXPECT(bw_post_reads(uc.qp, writes, 1, NULL) == BW_EOPCODE);
    EXPECT(bw_post_writes(uc.qp, writes, 1, NULL) == BW_ESTATE); /* not connected */

    /* What came with a message, and an error. */
    bw_sge place = end_sge(&b, 256, 16), data = end_sge(&a, 0, 16);
    bw_send_wr send = send_of(9, &data);
    send.opcode = BW_WR_SEND_WITH_IMM;
    send.imm_data = 0x12345678;
    OK(bw_post_recv_one(b.qp, 10, &place));
    OK(bw_ring_rq(b.qp));
    OK(bw_post_send(a.qp, &send, 1, NULL));
    EXPECT(bw_poll_completion(b.cq, polled) == 1);
    wc = same(polled);
    EXPECT(wc.opcode == BW_WC_RECV && wc.byte_len == 16 && wc.wr_id == 10);
    EXPECT(wc.wc_flags == BW_WC_WITH_IMM && wc.imm_data == 0x12345678);
    EXPECT(bw_poll_completion(a.cq, polled) == 1 && same(polled).opcode == BW_WC_SEND);
    writes[0] = of(11, end_sge(&a, 0, 8), &b, 0);
    writes[0].rkey ^= 0x100;
    OK(bw_post_writes(a.qp, writes, 1, NULL));
    EXPECT(bw_poll_completion(a.cq, polled) == 1 && polled[0].status == BW_WC_REM_ACCESS_ERR);
    EXPECT(same(polled).wr_id == 11 && bw_completion_byte_len(polled) == 0);

    OK(bw_mr_destroy(mr));
    end_destroy(&a);
    end_destroy(&b);
    end_destroy(&uc);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
