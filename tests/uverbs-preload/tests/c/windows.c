/* Memory windows of both types: bound, used, invalidated; a region that windows are bound to stays. */
#include "stock.h"

static enum ibv_wc_status write_by(struct world *world, struct ibv_qp *qp, struct ibv_cq *cq,
				   uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = world_sge(world, 0, 64);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	};

	post_send(qp, &wr);
	return poll_one(cq).status;
}

static struct ibv_qp *connected(struct world *world, struct ibv_cq *cq)
{
	struct ibv_qp *qp = qp_create(world, IBV_QPT_RC, cq, NULL);

	qp_connect(qp, qp->qp_num, world->lid);
	return qp;
}

int main(void)
{
	struct world world = world_open();
	struct ibv_cq *cq = ibv_create_cq(world.context, 100, NULL, NULL, 0);
	uint64_t place = (uintptr_t)world.bytes + 0x40000;
	struct ibv_mw_bind_info info = {
		.mr = world.mr,
		.addr = place,
		.length = 0x1000,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	CHECK(cq);
	struct ibv_qp *qp = connected(&world, cq);
	struct ibv_mw *one = ibv_alloc_mw(world.pd, IBV_MW_TYPE_1);
	struct ibv_mw *two = ibv_alloc_mw(world.pd, IBV_MW_TYPE_2);
	CHECK(one && two);

	struct ibv_mw_bind bind = { .wr_id = 2, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	CHECK(!ibv_bind_mw(qp, one, &bind));
	CHECK(poll_good(cq, 2).opcode == IBV_WC_BIND_MW);
	memset(world.bytes, 0x77, 64);
	CHECK(write_by(&world, qp, cq, place, one->rkey) == IBV_WC_SUCCESS);
	CHECK(!memcmp(world.bytes, world.bytes + 0x40000, 64));
	CHECK(!ibv_dealloc_mw(one));

	uint32_t key = ibv_inc_rkey(two->rkey);
	struct ibv_send_wr wr = {
		.wr_id = 3,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { .mw = two, .rkey = key, .bind_info = info },
	};
	post_send(qp, &wr);
	CHECK(poll_good(cq, 3).opcode == IBV_WC_BIND_MW);
	CHECK(write_by(&world, qp, cq, place + 64, key) == IBV_WC_SUCCESS);
	struct ibv_send_wr gone = {
		.wr_id = 4,
		.opcode = IBV_WR_LOCAL_INV,
		.send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = key,
	};
	post_send(qp, &gone);
	CHECK(poll_good(cq, 4).opcode == IBV_WC_LOCAL_INV);
	CHECK(write_by(&world, qp, cq, place, key) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_dealloc_mw(two));
	CHECK(!ibv_destroy_cq(cq));
	world_close(&world);
	return 0;
}
