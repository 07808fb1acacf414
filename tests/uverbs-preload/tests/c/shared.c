/* Shared receive queues: for two queue pairs, with its limit; and for XRC. */
#include "stock.h"

#include <fcntl.h>

static void post_srq(struct ibv_srq *srq, uint64_t wr_id, struct ibv_sge sge)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

static void send_one(struct world *world, struct ibv_qp *qp, struct ibv_cq *cq, uint64_t expected,
		     uint32_t length, uint32_t srqn)
{
	struct ibv_sge sge = world_sge(world, 0, length);
	struct ibv_send_wr wr = {
		.wr_id = 1000,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.qp_type.xrc.remote_srqn = srqn,
	};
	int sends = 0, receives = 0;

	memset(world->bytes, (int)expected + 3, length);
	post_send(qp, &wr);
	while (!sends || !receives) {
		struct ibv_wc wc = poll_one(cq);

		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id == 1000) {
			sends++;
		} else {
			CHECK(wc.wr_id == expected && wc.byte_len == length);
			receives++;
		}
	}
	CHECK(!memcmp(world->bytes, world->bytes + 0x40000 + expected * 256, length));
}

static void limit_reached(struct world *world, struct ibv_srq *srq)
{
	struct ibv_async_event event;

	CHECK(!ibv_get_async_event(world->context, &event));
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
}

static void two_on_one(struct world *world, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 30, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(world->pd, &init);
	struct ibv_srq_attr attr = { .srq_limit = 5 }, queried;

	CHECK(srq);
	struct ibv_qp *a = qp_create(world, IBV_QPT_RC, cq, srq);
	struct ibv_qp *b = qp_create(world, IBV_QPT_RC, cq, srq);
	qp_connect(a, b->qp_num, world->lid);
	qp_connect(b, a->qp_num, world->lid);
	for (uint64_t lap = 0; lap < 20; lap++) {
		for (uint64_t at = 0; at < 10; at++)
			post_srq(srq, at, world_sge(world, 0x40000 + at * 256, 256));
		CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
		CHECK(!ibv_query_srq(srq, &queried) && queried.srq_limit == 5);
		for (uint64_t at = 0; at < 10; at++)
			send_one(world, at % 2 ? a : b, cq, at, lap % 2 ? 16 : 200, 0);
		limit_reached(world, srq);
	}
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	CHECK(!ibv_destroy_srq(srq));
}

static void extended(struct world *world, struct ibv_cq *cq)
{
	struct ibv_xrcd_init_attr of = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(world->context, &of);
	struct ibv_srq_init_attr_ex srq_init = {
		.attr = { .max_wr = 30, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = world->pd,
		.xrcd = xrcd,
		.cq = cq,
	};
	struct ibv_qp_init_attr_ex target_init = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = xrcd,
	};
	struct ibv_srq *srq;
	struct ibv_qp *target, *initiator;
	uint32_t number;

	CHECK(xrcd);
	srq = ibv_create_srq_ex(world->context, &srq_init);
	CHECK(srq && !ibv_get_srq_num(srq, &number));
	target = ibv_create_qp_ex(world->context, &target_init);
	CHECK(target);
	initiator = qp_create(world, IBV_QPT_XRC_SEND, cq, NULL);
	qp_connect(initiator, target->qp_num, world->lid);
	qp_connect(target, initiator->qp_num, world->lid);
	for (uint64_t at = 0; at < 100; at++) {
		post_srq(srq, at % 16, world_sge(world, 0x40000 + at % 16 * 256, 256));
		send_one(world, initiator, cq, at % 16, at % 2 ? 30 : 250, number);
	}
	/* Opened by number: one not in use, an initiator's, another type. (libmlx5 cannot destroy what it opens.) */
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = target->qp_num ^ 0x400000,
		.xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	CHECK(!ibv_open_qp(world->context, &open));
	open.qp_num = initiator->qp_num;
	CHECK(!ibv_open_qp(world->context, &open));
	open.qp_num = target->qp_num;
	open.qp_type = IBV_QPT_XRC_SEND;
	CHECK(!ibv_open_qp(world->context, &open));
	CHECK(ibv_close_xrcd(xrcd));
	CHECK(!ibv_destroy_qp(initiator) && !ibv_destroy_qp(target));
	CHECK(!ibv_destroy_srq(srq) && !ibv_close_xrcd(xrcd));
}

int main(void)
{
	struct world world = world_open();
	struct ibv_cq *cq = ibv_create_cq(world.context, 200, NULL, NULL, 0);

	CHECK(cq);
	two_on_one(&world, cq);
	extended(&world, cq);
	CHECK(!ibv_destroy_cq(cq));
	world_close(&world);
	return 0;
}
