/* What the programs here share: they use libibverbs as it is, and end with 1 and a line on stderr at
 * the first thing that is not as it should be. */
#ifndef STOCK_H
#define STOCK_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                          \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "%s:%d: not so: %s (errno %d: %s)\n", __FILE__, __LINE__,  \
				#condition, errno, strerror(errno));                              \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

/* An open device, with a domain and registered memory. */
struct world {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	unsigned char *bytes;
	size_t size;
	uint16_t lid;
};

static inline struct world world_open(void)
{
	struct world world = { .size = 1 << 20 };
	struct ibv_port_attr port;
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	CHECK(list && count == 1);
	world.context = ibv_open_device(list[0]);
	CHECK(world.context);
	ibv_free_device_list(list);
	CHECK(!ibv_query_port(world.context, 1, &port));
	CHECK(port.state == IBV_PORT_ACTIVE);
	world.lid = port.lid;
	world.pd = ibv_alloc_pd(world.context);
	CHECK(world.pd);
	world.bytes = aligned_alloc(4096, world.size);
	CHECK(world.bytes);
	memset(world.bytes, 0, world.size);
	world.mr = ibv_reg_mr(world.pd, world.bytes, world.size,
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
				      IBV_ACCESS_MW_BIND);
	CHECK(world.mr);
	return world;
}

static inline void world_close(struct world *world)
{
	CHECK(!ibv_dereg_mr(world->mr));
	CHECK(!ibv_dealloc_pd(world->pd));
	CHECK(!ibv_close_device(world->context));
	free(world->bytes);
}

static inline struct ibv_sge world_sge(const struct world *world, size_t offset, uint32_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)world->bytes + offset,
		.length = length,
		.lkey = world->mr->lkey,
	};
	return sge;
}

/* Takes one completion, and gives up after a time that is ample. */
static inline struct ibv_wc poll_one(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int got = 0;

	for (long tries = 0; !got && tries < 2000000000L; tries++)
		got = ibv_poll_cq(cq, 1, &wc);
	CHECK(got == 1);
	return wc;
}

/* Takes one completion, which is a success. */
static inline struct ibv_wc poll_good(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc = poll_one(cq);

	if (wc.status != IBV_WC_SUCCESS || wc.wr_id != wr_id)
		fprintf(stderr, "wr_id %llu: %s\n", (unsigned long long)wc.wr_id,
			ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id);
	return wc;
}

static inline void qp_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = 0x11,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	CHECK(!ibv_modify_qp(qp, &attr, mask));
}

/* From RESET to RTS, connected with a queue pair of this port. */
static inline void qp_connect(struct ibv_qp *qp, uint32_t peer, uint16_t lid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 16,
		.max_rd_atomic = 16,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .dlid = lid, .port_num = 1 },
	};
	int rtr = IBV_QP_STATE, rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
	int reliable = qp->qp_type != IBV_QPT_UC && qp->qp_type != IBV_QPT_UD;

	qp_init(qp);
	if (qp->qp_type != IBV_QPT_UD)
		rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (reliable && qp->qp_type != IBV_QPT_XRC_SEND)
		rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(!ibv_modify_qp(qp, &attr, rtr));
	attr.qp_state = IBV_QPS_RTS;
	if (reliable)
		rts |= IBV_QP_TIMEOUT;
	if (reliable && qp->qp_type != IBV_QPT_XRC_RECV)
		rts |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(!ibv_modify_qp(qp, &attr, rts));
}

static inline struct ibv_qp *qp_create(const struct world *world, enum ibv_qp_type type,
				       struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.qp_type = type,
		.cap = {
			.max_send_wr = 64,
			.max_recv_wr = 64,
			.max_send_sge = 2,
			.max_recv_sge = 2,
			.max_inline_data = 64,
		},
	};
	struct ibv_qp *qp = ibv_create_qp(world->pd, &init);

	CHECK(qp);
	return qp;
}

static inline void post_recv(struct ibv_qp *qp, uint64_t wr_id, struct ibv_sge sge)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static inline void post_send(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	CHECK(!ibv_post_send(qp, wr, &bad));
}

#endif
