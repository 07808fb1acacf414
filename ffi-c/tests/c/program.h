/*
 * What the test programs share: checked calls, and a queue pair with memory and a completion queue.
 * C11 and C++17.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <bellwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program when something is not as it has to be. */
#define EXPECT(what)                                                                              \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "%s:%d: " #what " (%s)\n", __FILE__, __LINE__, bw_last_error());      \
            exit(EXIT_FAILURE);                                                                   \
        }                                                                                         \
    } while (0)
#define OK(call) EXPECT((call) == BW_OK)

struct end {
    bw_cq *cq;
    bw_qp *qp;
    bw_region *region;
    bw_region_info memory;
};

/* A software device of the program's own. */
static inline bw_device *soft(uint32_t clock)
{
    bw_device *device;
    bw_soft_config config;

    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.clock = clock;
    OK(bw_device_open_soft(&config, &device));
    return device;
}

/* A queue pair of this transport, in INIT. `channel` may be NULL. */
static inline struct end end_create(bw_device *device, bw_pd *pd, uint32_t qp_type,
                                    bw_comp_channel *channel, void *context)
{
    struct end end;
    uint32_t sends, receives;
    bw_qp_init_attr init;
    bw_region_attr region;
    bw_cq_attr cq;

    memset(&end, 0, sizeof end);
    OK(bw_qp_init_attr_default(&init, sizeof init));
    init.qp_type = qp_type;
    OK(bw_qp_cq_entries(&init, &sends, &receives));
    memset(&cq, 0, sizeof cq);
    cq.size = sizeof cq;
    cq.entries = sends + receives;
    cq.channel = channel;
    cq.cq_context = context;
    OK(bw_cq_create(device, &cq, &end.cq));
    OK(bw_qp_create(pd, end.cq, end.cq, &init, &end.qp));
    OK(bw_qp_init(end.qp, NULL));

    OK(bw_region_attr_default(&region, sizeof region));
    region.length = 4096;
    region.access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE;
    OK(bw_region_create(pd, &region, &end.region));
    end.memory.size = sizeof end.memory;
    OK(bw_region_query(end.region, &end.memory));
    return end;
}

static inline void end_connect(struct end *end, struct end *peer)
{
    bw_endpoint endpoint;

    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    OK(bw_qp_endpoint(peer->qp, &endpoint));
    OK(bw_qp_connect(end->qp, &endpoint, NULL));
}

static inline void end_destroy(struct end *end)
{
    OK(bw_qp_destroy(end->qp));
    OK(bw_cq_destroy(end->cq));
    OK(bw_region_destroy(end->region));
}

static inline uint32_t end_number(struct end *end)
{
    bw_qp_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    OK(bw_qp_query(end->qp, &attr));
    return attr.qp_num;
}

static inline bw_sge end_sge(struct end *end, uint32_t offset, uint32_t length)
{
    bw_sge sge;

    sge.addr = end->memory.addr + offset;
    sge.length = length;
    sge.lkey = end->memory.lkey;
    return sge;
}

static inline char *end_bytes(struct end *end, uint32_t offset)
{
    return (char *)(uintptr_t)(end->memory.addr + offset);
}

/* A SEND of one element, signalled. */
static inline bw_send_wr send_of(uint64_t wr_id, const bw_sge *sge)
{
    bw_send_wr wr;

    memset(&wr, 0, sizeof wr);
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.opcode = BW_WR_SEND;
    wr.send_flags = BW_SEND_SIGNALED;
    return wr;
}

static inline bw_recv_wr recv_of(uint64_t wr_id, const bw_sge *sge)
{
    bw_recv_wr wr;

    memset(&wr, 0, sizeof wr);
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    return wr;
}

/* The next completion, which has to be there: an inline device is done when the post returns. */
static inline bw_wc expect_wc(struct end *end, uint64_t wr_id, uint32_t status)
{
    bw_wc wc;

    EXPECT(bw_poll_one(end->cq, &wc) == 1);
    EXPECT(wc.wr_id == wr_id && wc.status == status);
    return wc;
}

static inline void expect_none(struct end *end)
{
    bw_wc wc;

    EXPECT(bw_poll_one(end->cq, &wc) == 0);
}

#endif
