/* Every operation of a reliable connection, by ibv_post_send and by ibv_wr_*, over more than one lap of
 * the rings. */
#include "stock.h"

static void operations(struct world *world, struct ibv_qp *a, struct ibv_qp *b, struct ibv_cq *cq)
{
	const uint32_t lengths[] = { 1, 20, 32, 33, 64, 4096, 100000 };
	uint64_t *word = (uint64_t *)(world->bytes + 0x80000);

	for (unsigned lap = 0; lap < 50; lap++) {
		for (unsigned at = 0; at < sizeof(lengths) / sizeof(*lengths); at++) {
			uint32_t length = lengths[at];
			struct ibv_sge from = world_sge(world, 0, length);
			struct ibv_sge to = world_sge(world, 0x40000, 0x20000);
			struct ibv_send_wr send = {
				.wr_id = 1,
				.sg_list = &from,
				.num_sge = 1,
				.opcode = IBV_WR_SEND_WITH_IMM,
				.imm_data = htobe32(lap),
				.send_flags = IBV_SEND_SIGNALED,
			};
			struct ibv_wc wc, other;

			if (length <= 64 && lap % 2)
				send.send_flags |= IBV_SEND_INLINE;
			memset(world->bytes, (int)(lap + at + 1), length);
			memset(world->bytes + 0x40000, 0, 0x20000);
			post_recv(b, 2, to);
			post_send(a, &send);
			/* The receive and the send complete in either order. */
			wc = poll_one(cq);
			other = poll_one(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && other.status == IBV_WC_SUCCESS);
			if (wc.wr_id == 1) {
				struct ibv_wc swapped = wc;
				wc = other;
				other = swapped;
			}
			CHECK(wc.wr_id == 2 && wc.opcode == IBV_WC_RECV && wc.byte_len == length);
			CHECK(wc.qp_num == b->qp_num && wc.imm_data == htobe32(lap));
			CHECK(other.wr_id == 1 && other.qp_num == a->qp_num);
			CHECK(!memcmp(world->bytes, world->bytes + 0x40000, length));

			memset(world->bytes + 0x40000, 0, 0x20000);
			send.opcode = IBV_WR_RDMA_WRITE;
			send.wr.rdma.remote_addr = to.addr;
			send.wr.rdma.rkey = world->mr->rkey;
			post_send(a, &send);
			poll_good(cq, 1);
			CHECK(!memcmp(world->bytes, world->bytes + 0x40000, length));

			memset(world->bytes, 0, length);
			send.opcode = IBV_WR_RDMA_READ;
			send.send_flags = IBV_SEND_SIGNALED;
			post_send(a, &send);
			wc = poll_good(cq, 1);
			CHECK(wc.opcode == IBV_WC_RDMA_READ);
			CHECK(!memcmp(world->bytes, world->bytes + 0x40000, length));
		}
		struct ibv_sge old = world_sge(world, 0, 8);
		struct ibv_send_wr atomic = {
			.wr_id = 3,
			.sg_list = &old,
			.num_sge = 1,
			.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.atomic = {
				.remote_addr = (uintptr_t)word,
				.compare_add = 5,
				.rkey = world->mr->rkey,
			},
		};
		*word = lap;
		post_send(a, &atomic);
		CHECK(poll_good(cq, 3).opcode == IBV_WC_FETCH_ADD);
		CHECK(*word == lap + 5 && *(uint64_t *)world->bytes == lap);
		atomic.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		atomic.wr.atomic.compare_add = lap + 5;
		atomic.wr.atomic.swap = 77;
		post_send(a, &atomic);
		CHECK(poll_good(cq, 3).opcode == IBV_WC_COMP_SWAP);
		CHECK(*word == 77 && *(uint64_t *)world->bytes == lap + 5);
	}
}

/* Batches of which only the last request is signalled. */
static void batches(struct world *world, struct ibv_qp *a, struct ibv_cq *cq)
{
	struct ibv_send_wr wrs[32];
	struct ibv_sge sges[32];

	for (unsigned lap = 0; lap < 100; lap++) {
		for (unsigned at = 0; at < 32; at++) {
			sges[at] = world_sge(world, at * 8, 8);
			*(uint64_t *)(world->bytes + at * 8) = lap * 32 + at;
			wrs[at] = (struct ibv_send_wr){
				.wr_id = at,
				.next = at < 31 ? &wrs[at + 1] : NULL,
				.sg_list = &sges[at],
				.num_sge = 1,
				.opcode = IBV_WR_RDMA_WRITE,
				.send_flags = at < 31 ? 0 : IBV_SEND_SIGNALED,
				.wr.rdma = {
					.remote_addr = (uintptr_t)world->bytes + 0x40000 + at * 8,
					.rkey = world->mr->rkey,
				},
			};
		}
		post_send(a, wrs);
		poll_good(cq, 31);
		CHECK(!memcmp(world->bytes, world->bytes + 0x40000, 256));
	}
}

/* Lives of two requests each, which ring both halves of the register with what they rang it with before. */
static void lives(struct world *world, struct ibv_qp *qp, struct ibv_cq *cq)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

	for (unsigned life = 0; life < 20; life++) {
		CHECK(!ibv_modify_qp(qp, &reset, IBV_QP_STATE));
		qp_connect(qp, qp->qp_num, world->lid);
		for (unsigned at = 0; at < 2; at++) {
			struct ibv_sge sge = world_sge(world, 0, 8);
			struct ibv_send_wr wr = {
				.wr_id = life,
				.sg_list = &sge,
				.num_sge = 1,
				.opcode = IBV_WR_RDMA_WRITE,
				.send_flags = IBV_SEND_SIGNALED,
				.wr.rdma = {
					.remote_addr = sge.addr + 64,
					.rkey = world->mr->rkey,
				},
			};

			post_send(qp, &wr);
			poll_good(cq, life);
		}
	}
}

/* The same by the newer interface. */
static void extended(struct world *world)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 100, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq_ex = ibv_create_cq_ex(world->context, &cq_init);
	struct ibv_poll_cq_attr poll = { 0 };

	CHECK(cq_ex);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(cq_ex);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = world->pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ,
		.cap = { .max_send_wr = 16, .max_send_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(world->context, &init);

	CHECK(qp);
	qp_connect(qp, qp->qp_num, world->lid);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	for (unsigned lap = 0; lap < 100; lap++) {
		int none;

		memset(world->bytes, (int)lap + 1, 48);
		ibv_wr_start(ex);
		ex->wr_id = lap;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(ex, world->mr->rkey, (uintptr_t)world->bytes + 0x40000);
		ibv_wr_set_inline_data(ex, world->bytes, 48);
		CHECK(!ibv_wr_complete(ex));
		while ((none = ibv_start_poll(cq_ex, &poll)) == ENOENT)
			;
		CHECK(!none && cq_ex->status == IBV_WC_SUCCESS && cq_ex->wr_id == lap);
		CHECK(ibv_wc_read_opcode(cq_ex) == IBV_WC_RDMA_WRITE);
		CHECK(ibv_wc_read_qp_num(cq_ex) == qp->qp_num);
		ibv_end_poll(cq_ex);
		CHECK(!memcmp(world->bytes, world->bytes + 0x40000, 48));
	}
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
}

int main(void)
{
	struct world world = world_open();
	struct ibv_cq *cq = ibv_create_cq(world.context, 200, NULL, NULL, 0);

	CHECK(cq);
	struct ibv_qp *a = qp_create(&world, IBV_QPT_RC, cq, NULL);
	struct ibv_qp *b = qp_create(&world, IBV_QPT_RC, cq, NULL);
	CHECK(a->qp_num != b->qp_num);
	qp_connect(a, b->qp_num, world.lid);
	qp_connect(b, a->qp_num, world.lid);
	operations(&world, a, b, cq);
	batches(&world, a, cq);
	/* A second life, whose counters begin anew. */
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(!ibv_modify_qp(a, &reset, IBV_QP_STATE) && !ibv_modify_qp(b, &reset, IBV_QP_STATE));
	qp_connect(a, b->qp_num, world.lid);
	qp_connect(b, a->qp_num, world.lid);
	operations(&world, a, b, cq);
	lives(&world, a, cq);
	/* What something is on does not go before it. */
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	CHECK(!ibv_destroy_cq(cq));
	extended(&world);
	world_close(&world);
	return 0;
}
