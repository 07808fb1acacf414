/* xrc [NAME [none]]: extended reliable connections on a device, by default the software one. Two domains
 * of one file; a target that one creates and the other opens, and that goes with the last; messages to
 * two shared receive queues, of which one goes before the target; and what is refused. With `none`: the
 * device has no XRC, and says so. */
#include "program.h"

#include <fcntl.h>
#include <unistd.h>

#define COUNT 200

static bw_device *device;
static bw_pd *pd;

static bw_wc next(bw_cq *cq, uint64_t wr_id, uint32_t status)
{
    bw_wc wc;
    int got;

    do
        got = bw_poll_one(cq, &wc);
    while (got == 0);
    EXPECT(got == 1 && wc.wr_id == wr_id && wc.status == status);
    return wc;
}

static bw_endpoint number_of(const bw_xrc_target *target)
{
    bw_endpoint endpoint;

    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    OK(bw_xrc_target_endpoint(target, &endpoint));
    return endpoint;
}

static uint32_t state_of(const bw_xrc_target *target)
{
    bw_qp_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    OK(bw_xrc_target_query(target, &attr));
    EXPECT(attr.qp_num == number_of(target).qp_num && attr.qp_type == BW_QPT_XRC_RECV);
    return attr.qp_state;
}

static bw_cq *cq_of(uint32_t entries)
{
    bw_cq_attr attr;
    bw_cq *cq;

    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.entries = entries;
    OK(bw_cq_create(device, &attr, &cq));
    return cq;
}

/* Domains of one file, new ones, and those that are there. */
static void files(int one, int other)
{
    bw_xrcd *first, *second = NULL, *third;

    EXPECT(bw_xrcd_open(device, one, BW_XRCD_OPEN, &second) == BW_EINVAL && !second);
    EXPECT(bw_xrcd_open(device, one, BW_XRCD_CREATE_NEW + 1, &second) == BW_EINVAL && !second);
    EXPECT(bw_xrcd_open(device, -1, BW_XRCD_CREATE, &second) == BW_EINVAL && !second);
    EXPECT(bw_xrcd_open(device, 1000000, BW_XRCD_CREATE, &second) == BW_EOTHER && !second);
    OK(bw_xrcd_open(device, one, BW_XRCD_CREATE_NEW, &first));
    EXPECT(bw_xrcd_open(device, one, BW_XRCD_CREATE_NEW, &second) == BW_EBUSY && !second);
    OK(bw_xrcd_open(device, one, BW_XRCD_CREATE, &second));
    OK(bw_xrcd_destroy(first));
    OK(bw_xrcd_open(device, one, BW_XRCD_OPEN, &third));
    EXPECT(bw_xrcd_open(device, other, BW_XRCD_OPEN, &first) == BW_EINVAL);
    OK(bw_xrcd_destroy(second));
    OK(bw_xrcd_destroy(third));
    EXPECT(bw_xrcd_open(device, one, BW_XRCD_OPEN, &first) == BW_EINVAL);
}

/* Whatever is asked for first. */
static void none(int file)
{
    bw_xrcd *xrcd = NULL;
    bw_qp_init_attr init;
    bw_qp *qp = NULL;
    bw_cq *cq = cq_of(512);

    EXPECT(bw_xrcd_create(device, &xrcd) == BW_EUNSUPPORTED && !xrcd);
    EXPECT(strstr(bw_last_error(), "XRC"));
    EXPECT(bw_xrcd_open(device, file, BW_XRCD_CREATE, &xrcd) == BW_EUNSUPPORTED && !xrcd);
    OK(bw_qp_init_attr_default(&init, sizeof init));
    init.qp_type = BW_QPT_XRC_SEND;
    EXPECT(bw_qp_create(pd, cq, cq, &init, &qp) == BW_EUNSUPPORTED && !qp);
    OK(bw_cq_destroy(cq));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "soft";
    int here = open("/", O_RDONLY), there = open("/proc", O_RDONLY);
    bw_xrcd *xrcd, *same, *other;
    bw_xrc_target *target, *opened, *no = NULL;
    bw_srq *srqs[2];
    bw_srq_info infos[2];

    OK(bw_device_open(name, &device));
    OK(bw_pd_create(device, &pd));
    EXPECT(here >= 0 && there >= 0);
    if (argc > 2 && strcmp(argv[2], "none") == 0) {
        none(here);
        return 0;
    }
    files(here, there);
    struct end initiator = end_create(device, pd, BW_QPT_XRC_SEND, NULL, NULL);
    bw_cq *arrivals = cq_of(512);
    OK(bw_xrcd_open(device, here, BW_XRCD_CREATE, &xrcd));
    OK(bw_xrcd_open(device, here, BW_XRCD_OPEN, &same));
    OK(bw_xrcd_create(device, &other));
    EXPECT(close(here) == 0 && close(there) == 0);

    /* Created by one, opened by the other, connected by both. */
    bw_endpoint endpoint;
    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    OK(bw_qp_endpoint(initiator.qp, &endpoint));
    OK(bw_xrc_target_create(xrcd, &target));
    const uint32_t qp_num = number_of(target).qp_num;
    EXPECT(bw_xrc_target_open(other, qp_num, &no) == BW_EINVAL && !no);
    EXPECT(bw_xrc_target_open(same, qp_num ^ 0x400000, &no) == BW_EINVAL && !no);
    EXPECT(bw_xrc_target_open(same, endpoint.qp_num, &no) == BW_EINVAL && !no);
    OK(bw_xrc_target_open(same, qp_num, &opened));
    OK(bw_xrc_target_init(target, NULL));
    EXPECT(state_of(opened) == BW_QPS_INIT);
    OK(bw_xrc_target_connect(opened, &endpoint, NULL));
    EXPECT(state_of(target) == BW_QPS_RTS && number_of(opened).qp_num == qp_num);
    bw_qp_attr reset;
    memset(&reset, 0, sizeof reset);
    reset.size = sizeof reset;
    reset.qp_state = BW_QPS_RESET;
    EXPECT(bw_xrc_target_modify(opened, &reset, BW_QP_STATE) == BW_ESTATE);
    OK(bw_xrc_target_destroy(target));
    endpoint = number_of(opened);
    OK(bw_qp_connect(initiator.qp, &endpoint, NULL));

    /* Messages to two queues, by turns. */
    EXPECT(bw_xrcd_destroy(same) == BW_EBUSY);
    for (int at = 0; at < 2; at++) {
        OK(bw_srq_create_xrc(pd, at ? xrcd : same, arrivals, NULL, &srqs[at]));
        memset(&infos[at], 0, sizeof infos[at]);
        infos[at].size = sizeof infos[at];
        OK(bw_srq_query(srqs[at], &infos[at]));
    }
    EXPECT(infos[0].srq_num != infos[1].srq_num);
    bw_sge from = end_sge(&initiator, 0, 64), to = end_sge(&initiator, 1024, 64);
    bw_send_wr send = send_of(1, &from);
    for (uint64_t n = 0; n < COUNT; n++) {
        const int at = n % 3 == 0, immediate = n % 5 == 0;
        bw_recv_wr receive = recv_of(1000 + n, &to);
        OK(bw_post_srq_recv(srqs[at], &receive, 1, NULL));
        memset(end_bytes(&initiator, 0), (int)n + 1, 64);
        send.remote_srqn = infos[at].srq_num;
        from.length = n % 2 ? 16 : 64;
        /* Inline, as registered memory, and with immediate data. */
        send.send_flags = n % 2 ? BW_SEND_SIGNALED | BW_SEND_INLINE : BW_SEND_SIGNALED;
        send.opcode = immediate ? BW_WR_SEND_WITH_IMM : BW_WR_SEND;
        send.imm_data = (uint32_t)n;
        OK(bw_post_send(initiator.qp, &send, 1, NULL));
        next(initiator.cq, 1, BW_WC_SUCCESS);
        bw_wc wc = next(arrivals, 1000 + n, BW_WC_SUCCESS);
        EXPECT(wc.qp_num == qp_num && wc.byte_len == from.length);
        EXPECT(!immediate || wc.imm_data == (uint32_t)n);
        EXPECT(memcmp(end_bytes(&initiator, 0), end_bytes(&initiator, 1024), from.length) == 0);
    }

    /* A queue that has gone: the initiator is notified, and the target is in ERR. */
    OK(bw_srq_destroy(srqs[1], NULL, NULL));
    send.opcode = BW_WR_SEND;
    send.remote_srqn = infos[1].srq_num;
    OK(bw_post_send(initiator.qp, &send, 1, NULL));
    next(initiator.cq, 1, BW_WC_REM_INV_REQ_ERR);
    EXPECT(state_of(opened) == BW_QPS_ERR);

    OK(bw_srq_destroy(srqs[0], NULL, NULL));
    EXPECT(bw_xrcd_destroy(same) == BW_EBUSY);
    OK(bw_xrc_target_destroy(opened));
    EXPECT(bw_xrc_target_open(xrcd, qp_num, &no) == BW_EINVAL && !no);
    OK(bw_xrcd_destroy(same));
    OK(bw_xrcd_destroy(xrcd));
    OK(bw_xrcd_destroy(other));
    end_destroy(&initiator);
    OK(bw_cq_destroy(arrivals));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
