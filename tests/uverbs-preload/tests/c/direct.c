/* What mlx5dv returns to a program that posts to the rings; and thread domains with registers of their
 * own. */
#include "stock.h"

#include <infiniband/mlx5dv.h>

static void look(struct world *world)
{
	struct ibv_cq *cq = ibv_create_cq(world->context, 100, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 15, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(world->pd, &srq_init);
	struct ibv_qp *qp = qp_create(world, IBV_QPT_RC, cq, NULL);
	struct mlx5dv_qp dv_qp = { 0 };
	struct mlx5dv_cq dv_cq = { 0 };
	struct mlx5dv_srq dv_srq = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
	struct mlx5dv_obj obj = {
		.qp = { .in = qp, .out = &dv_qp },
		.cq = { .in = cq, .out = &dv_cq },
		.srq = { .in = srq, .out = &dv_srq },
	};
	struct mlx5dv_context attr = { 0 };

	CHECK(cq && srq);
	CHECK(mlx5dv_is_supported(world->context->device));
	CHECK(!mlx5dv_query_device(world->context, &attr));
	CHECK(attr.flags & MLX5DV_CONTEXT_FLAGS_CQE_V1);
	CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ));
	CHECK(dv_qp.sq.wqe_cnt >= 64 && dv_qp.sq.stride == 64 && dv_qp.rq.wqe_cnt >= 64);
	CHECK(dv_qp.bf.reg && dv_qp.bf.size == 256);
	CHECK(dv_cq.cqe_cnt == 128 && dv_cq.cqe_size == 64 && dv_cq.cq_uar);
	CHECK(dv_srq.stride == 32 && dv_srq.srqn);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
}

/* Queue pairs of one thread each, which do not share a register. */
static void dedicated(struct world *world)
{
	enum { COUNT = 6 };
	struct ibv_cq *cq = ibv_create_cq(world->context, 1000, NULL, NULL, 0);
	struct ibv_td *td[COUNT];
	struct ibv_pd *pd[COUNT];
	struct ibv_qp *qp[COUNT];
	void *registers[COUNT];

	CHECK(cq);
	for (int at = 0; at < COUNT; at++) {
		struct ibv_td_init_attr td_init = { 0 };
		struct ibv_parent_domain_init_attr init = { .pd = world->pd };
		struct ibv_qp_init_attr qp_init_attr = {
			.send_cq = cq,
			.recv_cq = cq,
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 16, .max_send_sge = 1 },
		};
		struct mlx5dv_qp dv = { 0 };
		struct mlx5dv_obj obj = { .qp = { .out = &dv } };

		td[at] = ibv_alloc_td(world->context, &td_init);
		CHECK(td[at]);
		init.td = td[at];
		pd[at] = ibv_alloc_parent_domain(world->context, &init);
		CHECK(pd[at]);
		qp[at] = ibv_create_qp(pd[at], &qp_init_attr);
		CHECK(qp[at]);
		qp_connect(qp[at], qp[at]->qp_num, world->lid);
		obj.qp.in = qp[at];
		CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP));
		registers[at] = dv.bf.reg;
		for (int other = 0; other < at; other++)
			CHECK(registers[other] != dv.bf.reg);
	}
	for (int lap = 0; lap < 200; lap++) {
		struct ibv_sge sge = world_sge(world, 0, 8);
		struct ibv_send_wr wr = {
			.wr_id = (uint64_t)lap,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {
				.remote_addr = (uintptr_t)world->bytes + 64,
				.rkey = world->mr->rkey,
			},
		};

		for (int at = 0; at < COUNT; at++)
			post_send(qp[at], &wr);
		for (int at = 0; at < COUNT; at++)
			poll_good(cq, (uint64_t)lap);
	}
	for (int at = 0; at < COUNT; at++) {
		CHECK(!ibv_destroy_qp(qp[at]));
		CHECK(!ibv_dealloc_pd(pd[at]) && !ibv_dealloc_td(td[at]));
	}
	CHECK(!ibv_destroy_cq(cq));
}

/* Far more queue pairs than registers, and entries of 128 bytes. */
static void many(struct world *world)
{
	enum { COUNT = 100 };
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 1000, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct mlx5dv_cq_init_attr dv = {
		.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
		.cqe_size = 128,
	};
	struct ibv_cq_ex *cq_ex = mlx5dv_create_cq(world->context, &cq_init, &dv);
	struct ibv_qp *qp[COUNT];

	CHECK(cq_ex);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(cq_ex);
	for (int at = 0; at < COUNT; at++) {
		qp[at] = qp_create(world, IBV_QPT_RC, cq, NULL);
		qp_connect(qp[at], qp[at]->qp_num, world->lid);
	}
	for (int lap = 0; lap < 20; lap++) {
		for (int at = 0; at < COUNT; at++) {
			struct ibv_sge sge = world_sge(world, 0, 8);
			struct ibv_send_wr wr = {
				.wr_id = 1,
				.sg_list = &sge,
				.num_sge = 1,
				.opcode = IBV_WR_SEND,
				.send_flags = IBV_SEND_SIGNALED,
			};

			post_recv(qp[at], 1, world_sge(world, 4096, 64));
			post_send(qp[at], &wr);
		}
		for (int at = 0; at < 2 * COUNT; at++)
			poll_good(cq, 1);
	}
	for (int at = 0; at < COUNT; at++)
		CHECK(!ibv_destroy_qp(qp[at]));
	CHECK(!ibv_destroy_cq(cq));
}

int main(void)
{
	struct world world = world_open();

	look(&world);
	dedicated(&world);
	many(&world);
	world_close(&world);
	return 0;
}
