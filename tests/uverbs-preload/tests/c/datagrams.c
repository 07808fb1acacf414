/* Datagrams: by LID, by GID, to a multicast group; and unreliable connections. */
#include "stock.h"

#define GRH 40

static struct ibv_ah *way(struct world *world, int global, const union ibv_gid *gid, uint16_t lid)
{
	struct ibv_ah_attr attr = { .dlid = lid, .port_num = 1, .is_global = (uint8_t)global };
	struct ibv_ah *ah;

	if (global) {
		attr.grh.dgid = *gid;
		attr.grh.hop_limit = 1;
	}
	ah = ibv_create_ah(world->pd, &attr);
	CHECK(ah);
	return ah;
}

static struct ibv_wc datagram(struct world *world, struct ibv_qp *from, struct ibv_qp *to,
			      struct ibv_cq *cq, struct ibv_ah *ah, uint32_t number, uint32_t length)
{
	struct ibv_sge sge = world_sge(world, 0, length);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = number, .remote_qkey = 0x11 },
	};
	struct ibv_wc wc, other;

	for (uint32_t at = 0; at < length; at++)
		world->bytes[at] = (unsigned char)(at * 7 + length);
	memset(world->bytes + 0x40000, 0, 8192);
	post_recv(to, 2, world_sge(world, 0x40000, 8192));
	post_send(from, &wr);
	wc = poll_one(cq);
	other = poll_one(cq);
	if (wc.wr_id == 1) {
		struct ibv_wc swapped = wc;
		wc = other;
		other = swapped;
	}
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 2 && wc.byte_len == length + GRH);
	CHECK(other.status == IBV_WC_SUCCESS && other.wr_id == 1);
	CHECK(wc.src_qp == from->qp_num && wc.slid == world->lid && wc.qp_num == to->qp_num);
	CHECK(!memcmp(world->bytes, world->bytes + 0x40000 + GRH, length));
	return wc;
}

static void unreliable(struct world *world, struct ibv_cq *cq)
{
	struct ibv_qp *a = qp_create(world, IBV_QPT_UC, cq, NULL);
	struct ibv_qp *b = qp_create(world, IBV_QPT_UC, cq, NULL);
	struct ibv_sge sge = world_sge(world, 0, 1000);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htobe32(9),
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {
			.remote_addr = (uintptr_t)world->bytes + 0x40000,
			.rkey = world->mr->rkey,
		},
	};
	int ids = 0;

	qp_connect(a, b->qp_num, world->lid);
	qp_connect(b, a->qp_num, world->lid);
	memset(world->bytes, 0x5a, 1000);
	post_recv(b, 2, world_sge(world, 0x60000, 8));
	post_send(a, &wr);
	for (int at = 0; at < 2; at++) {
		struct ibv_wc wc = poll_one(cq);

		CHECK(wc.status == IBV_WC_SUCCESS);
		ids |= (int)wc.wr_id;
		if (wc.wr_id == 2)
			CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htobe32(9));
	}
	CHECK(ids == 3 && !memcmp(world->bytes, world->bytes + 0x40000, 1000));
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

int main(void)
{
	struct world world = world_open();
	struct ibv_cq *cq = ibv_create_cq(world.context, 200, NULL, NULL, 0);
	union ibv_gid gid, group = { .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 9 } };
	struct ibv_wc wc;

	CHECK(cq);
	CHECK(!ibv_query_gid(world.context, 1, 0, &gid));
	struct ibv_qp *a = qp_create(&world, IBV_QPT_UD, cq, NULL);
	struct ibv_qp *b = qp_create(&world, IBV_QPT_UD, cq, NULL);
	qp_connect(a, 0, world.lid);
	qp_connect(b, 0, world.lid);
	struct ibv_ah *local = way(&world, 0, NULL, world.lid);
	struct ibv_ah *global = way(&world, 1, &gid, world.lid);
	struct ibv_ah *many = way(&world, 1, &group, 0xc001);
	for (uint32_t length = 1; length < 4096; length = length * 3 + 1) {
		wc = datagram(&world, a, b, cq, local, b->qp_num, length);
		CHECK(!(wc.wc_flags & IBV_WC_GRH));
		wc = datagram(&world, a, b, cq, global, b->qp_num, length);
		CHECK(wc.wc_flags & IBV_WC_GRH);
		CHECK(!memcmp(world.bytes + 0x40000 + 8, &gid, sizeof(gid)));
	}
	CHECK(!ibv_attach_mcast(b, &group, 0xc001));
	datagram(&world, a, b, cq, many, 0xffffff, 100);
	CHECK(!ibv_detach_mcast(b, &group, 0xc001));
	CHECK(ibv_detach_mcast(b, &group, 0xc001));
	CHECK(!ibv_destroy_ah(local) && !ibv_destroy_ah(global) && !ibv_destroy_ah(many));
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	unreliable(&world, cq);
	CHECK(!ibv_destroy_cq(cq));
	world_close(&world);
	return 0;
}
