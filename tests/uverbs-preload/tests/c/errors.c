/* What goes wrong: completions with their syndromes, flushes, asynchronous events, a completion queue
 * that overruns. */
#include "stock.h"

static struct ibv_send_wr write_wr(struct world *world, struct ibv_sge *sge, uint64_t wr_id)
{
	*sge = world_sge(world, 0, 64);
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {
			.remote_addr = (uintptr_t)world->bytes + 0x40000,
			.rkey = world->mr->rkey,
		},
	};
	return wr;
}

static void expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = poll_one(cq);

	if (wc.wr_id != wr_id || wc.status != status)
		fprintf(stderr, "wr_id %llu, %s; expected %llu, %s\n",
			(unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status),
			(unsigned long long)wr_id, ibv_wc_status_str(status));
	CHECK(wc.wr_id == wr_id && wc.status == status);
}

static void expect_event(struct world *world, enum ibv_event_type type, struct ibv_qp *qp)
{
	struct ibv_async_event event;

	do {
		CHECK(!ibv_get_async_event(world->context, &event));
		if (event.event_type == IBV_EVENT_COMM_EST)
			ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST);
	if (event.event_type != type)
		fprintf(stderr, "event: %s\n", ibv_event_type_str(event.event_type));
	CHECK(event.event_type == type && (!qp || event.element.qp == qp));
	ibv_ack_async_event(&event);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init));
	CHECK(attr.cap.max_send_sge >= 2);
	return attr.qp_state;
}

static void again(struct world *world, struct ibv_qp *qp)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

	CHECK(!ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	qp_connect(qp, qp->qp_num, world->lid);
}

static void overrun(struct world *world)
{
	struct ibv_cq *cq = ibv_create_cq(world->context, 7, NULL, NULL, 0);
	struct ibv_async_event event;

	CHECK(cq && cq->cqe == 7);
	struct ibv_qp *qp = qp_create(world, IBV_QPT_RC, cq, NULL);
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_wr(world, &sge, 1);
	struct ibv_wc wc;

	qp_connect(qp, qp->qp_num, world->lid);
	for (int at = 0; at < 20; at++)
		post_send(qp, &wr);
	do {
		CHECK(!ibv_get_async_event(world->context, &event));
		CHECK(event.event_type == IBV_EVENT_CQ_ERR ? event.element.cq == cq
							    : event.element.qp == qp);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_CQ_ERR);
	/* What was there before is still to be polled. */
	for (int at = 0; at < 8; at++)
		CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 1);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

int main(void)
{
	struct world world = world_open();
	struct ibv_cq *cq = ibv_create_cq(world.context, 300, NULL, NULL, 0);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_sge sge, other;
	struct ibv_send_wr wr, more;

	CHECK(cq);
	struct ibv_qp *qp = qp_create(&world, IBV_QPT_RC, cq, NULL);
	CHECK(state_of(qp) == IBV_QPS_RESET);
	qp_connect(qp, qp->qp_num, world.lid);
	CHECK(state_of(qp) == IBV_QPS_RTS);

	/* A key that opens nothing at the peer. */
	wr = write_wr(&world, &sge, 1);
	wr.wr.rdma.rkey ^= 0x1000;
	more = write_wr(&world, &other, 2);
	wr.next = &more;
	post_recv(qp, 3, world_sge(&world, 0, 8));
	post_send(qp, &wr);
	expect(cq, 1, IBV_WC_REM_ACCESS_ERR);
	for (int ids = 0; ids != 5;) {
		struct ibv_wc wc = poll_one(cq);

		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && (wc.wr_id == 2 || wc.wr_id == 3));
		ids += (int)wc.wr_id;
	}
	CHECK(state_of(qp) == IBV_QPS_ERR);

	/* In the error state: what is posted is flushed. */
	post_recv(qp, 4, world_sge(&world, 0, 8));
	expect(cq, 4, IBV_WC_WR_FLUSH_ERR);
	wr = write_wr(&world, &sge, 5);
	post_send(qp, &wr);
	expect(cq, 5, IBV_WC_WR_FLUSH_ERR);

	/* Keys of this side. */
	again(&world, qp);
	wr = write_wr(&world, &sge, 6);
	sge.lkey ^= 0x1000;
	post_send(qp, &wr);
	expect(cq, 6, IBV_WC_LOC_PROT_ERR);

	/* A receive that is too short. */
	again(&world, qp);
	post_recv(qp, 7, world_sge(&world, 0x40000, 16));
	wr = write_wr(&world, &sge, 8);
	wr.opcode = IBV_WR_SEND;
	post_send(qp, &wr);
	for (int ids = 0; ids != 15;) {
		struct ibv_wc wc = poll_one(cq);

		CHECK(wc.wr_id == 7 ? wc.status == IBV_WC_LOC_LEN_ERR
				    : wc.status == IBV_WC_REM_INV_REQ_ERR);
		ids += (int)wc.wr_id;
	}

	/* A peer that is notified by an event, for it has no receive that could complete. */
	struct ibv_qp *peer = qp_create(&world, IBV_QPT_RC, cq, NULL);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(!ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	qp_connect(qp, peer->qp_num, world.lid);
	qp_connect(peer, qp->qp_num, world.lid);
	wr = write_wr(&world, &sge, 20);
	wr.wr.rdma.rkey ^= 0x1000;
	post_send(qp, &wr);
	expect(cq, 20, IBV_WC_REM_ACCESS_ERR);
	expect_event(&world, IBV_EVENT_QP_ACCESS_ERR, peer);
	CHECK(!ibv_destroy_qp(peer));

	/* Receives that never come, and a queue pair that is taken to the error state. */
	again(&world, qp);
	wr = write_wr(&world, &sge, 8);
	wr.opcode = IBV_WR_SEND;
	post_send(qp, &wr);
	CHECK(!ibv_modify_qp(qp, &error, IBV_QP_STATE));
	expect(cq, 8, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(qp));

	/* A peer that is not there. */
	qp = qp_create(&world, IBV_QPT_RC, cq, NULL);
	qp_connect(qp, 0xabcde, world.lid);
	struct ibv_qp_attr impatient = { .qp_state = IBV_QPS_RESET };
	CHECK(!ibv_modify_qp(qp, &impatient, IBV_QP_STATE));
	qp_init(qp);
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = 0xabcde,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = { .dlid = world.lid, .port_num = 1 },
	};
	CHECK(!ibv_modify_qp(qp, &rtr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER));
	rtr.qp_state = IBV_QPS_RTS;
	rtr.timeout = 8;
	rtr.retry_cnt = 1;
	CHECK(!ibv_modify_qp(qp, &rtr,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	wr = write_wr(&world, &sge, 9);
	post_send(qp, &wr);
	expect(cq, 9, IBV_WC_RETRY_EXC_ERR);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	overrun(&world);
	world_close(&world);
	return 0;
}
