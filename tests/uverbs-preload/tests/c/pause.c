/* A device that pauses executes nothing until it goes on; where rings are is known meanwhile. */
#include "stock.h"
#include <unistd.h>

int uverbs_preload_control(const char *command) __attribute__((weak));

struct place {
	unsigned char *ring;
	uint32_t *record;
	unsigned char *page;
	uint32_t count, stride, user_index;
};

int uverbs_preload_place(unsigned int kind, uint32_t qpn, struct place *place)
	__attribute__((weak));

enum { SENDS, RECEIVES, SHARED, SEND_CQ, RECV_CQ };

int main(void)
{
	struct world world = world_open();
	struct ibv_cq *cq = ibv_create_cq(world.context, 100, NULL, NULL, 0);
	struct ibv_sge sge = world_sge(&world, 0, 64);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = sge.addr + 4096, .rkey = world.mr->rkey },
	}, *bad;
	struct place sends, place;
	struct ibv_wc wc;

	CHECK(uverbs_preload_control && uverbs_preload_place && cq);
	memset(world.bytes, 7, 64);
	CHECK(!uverbs_preload_control("pause"));
	CHECK(uverbs_preload_control("pause 1") == EINVAL);
	/* Commands are executed all the same. */
	struct ibv_qp *qp = qp_create(&world, IBV_QPT_RC, cq, NULL);
	uint32_t number = qp->qp_num;

	qp_connect(qp, number, world.lid);
	CHECK(!uverbs_preload_place(SENDS, number, &sends));
	CHECK(sends.stride == 64 && sends.page && !*sends.record);
	CHECK(!uverbs_preload_place(RECEIVES, number, &place) && place.ring < sends.ring);
	CHECK(!uverbs_preload_place(SEND_CQ, number, &place) && place.count == 128);
	CHECK(!uverbs_preload_place(RECV_CQ, number, &place) && place.stride == 64);
	CHECK(uverbs_preload_place(SHARED, number, &place) == ENOENT);
	CHECK(uverbs_preload_place(RECV_CQ + 1, number, &place) == ENOENT);
	CHECK(uverbs_preload_place(SENDS, number + 1, &place) == ENOENT);

	CHECK(!ibv_post_send(qp, &wr, &bad));
	CHECK(be32toh(*sends.record) == 1 && sends.ring[3] == 8);
	usleep(20000);
	CHECK(!ibv_poll_cq(cq, 1, &wc) && !world.bytes[4096]);
	CHECK(!uverbs_preload_control("resume"));
	poll_good(cq, 1);
	CHECK(!memcmp(world.bytes, world.bytes + 4096, 64));

	CHECK(!ibv_destroy_qp(qp));
	CHECK(uverbs_preload_place(SENDS, number, &place) == ENOENT);
	CHECK(!ibv_destroy_cq(cq));
	world_close(&world);
	return 0;
}
