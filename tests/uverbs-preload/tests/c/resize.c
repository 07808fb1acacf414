/* Completion queues that grow and shrink, with entries in them. */
#include "stock.h"

static uint64_t posted, polled;

static void write_some(struct world *world, struct ibv_qp *qp, int count)
{
	for (int at = 0; at < count; at++) {
		struct ibv_sge sge = world_sge(world, 0, 8);
		struct ibv_send_wr wr = {
			.wr_id = posted++,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = sge.addr + 64, .rkey = world->mr->rkey },
		};

		post_send(qp, &wr);
	}
}

static void poll_some(struct ibv_cq *cq, int count)
{
	for (int at = 0; at < count; at++)
		poll_good(cq, polled++);
}

int main(void)
{
	struct world world = world_open();
	struct ibv_cq *cq = ibv_create_cq(world.context, 15, NULL, NULL, 0);

	CHECK(cq && cq->cqe == 15);
	struct ibv_cq *receives = ibv_create_cq(world.context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = receives,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(world.pd, &init);
	CHECK(receives && qp);
	qp_connect(qp, qp->qp_num, world.lid);
	for (int lap = 0; lap < 40; lap++) {
		write_some(&world, qp, 10);
		poll_some(cq, 3 + lap % 3);
		CHECK(!ibv_resize_cq(cq, 63) && cq->cqe == 63);
		write_some(&world, qp, 40);
		poll_some(cq, (int)(posted - polled) - 5);
		CHECK(!ibv_resize_cq(cq, 15) && cq->cqe == 15);
		poll_some(cq, 5);
	}
	/* What would not fit stays where it is. The receive says that all before it have completed. */
	struct ibv_sge sge = world_sge(&world, 0, 8);
	struct ibv_send_wr last = {
		.wr_id = posted + 9,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	post_recv(qp, 0, world_sge(&world, 64, 8));
	write_some(&world, qp, 9);
	post_send(qp, &last);
	poll_good(receives, 0);
	CHECK(ibv_resize_cq(cq, 7) && cq->cqe == 15);
	poll_some(cq, 10);
	CHECK(ibv_resize_cq(cq, 1 << 23));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(receives));
	world_close(&world);
	return 0;
}
