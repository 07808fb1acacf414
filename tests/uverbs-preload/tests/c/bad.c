/* What no library would ask: wrong handles, lengths, addresses and sizes are refused, and the device
 * goes on. */
#include "stock.h"

#include <rdma/ib_user_verbs.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static int command(int fd, void *bytes, size_t length)
{
	errno = 0;
	return write(fd, bytes, length) == (ssize_t)length ? 0 : errno;
}

/* Commands whose headers are right, and that say anything. */
static void anything(struct world *world)
{
	static union {
		unsigned char bytes[512];
		struct ib_uverbs_cmd_hdr header;
		uint64_t words[64];
	} all;
	/* As long as a command can say that it is. */
	static uint64_t response[128];
	int refused = 0;

	for (int lap = 0; lap < 30000; lap++) {
		unsigned number = (unsigned)(next() % 42);
		unsigned words = 4 + (unsigned)(next() % 100);

		/* Those of the end itself would block, or take what the program still needs. */
		if (number == IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL)
			continue;
		for (int at = 0; at < 64; at++)
			all.words[at] = next() % 3 ? next() % 5 : next();
		all.words[1] = next() % 2 ? (uintptr_t)response : next();
		all.header.command = number;
		all.header.in_words = (uint16_t)words;
		all.header.out_words = (uint16_t)(next() % 128);
		if (next() % 8 == 0) {
			/* Extended. */
			all.header.command |= IB_USER_VERBS_CMD_FLAG_EXTENDED;
			all.header.in_words = (uint16_t)(words / 2);
			all.words[2] = 0;
			words = 6 + words / 2 * 2;
		}
		if (next() % 16 == 0)
			words = (unsigned)(next() % 128);
		if (command(world->context->cmd_fd, all.bytes, words * 4))
			refused++;
	}
	CHECK(refused > 20000);
}

/* Each alone, with its own number. */
static void one_by_one(struct world *world)
{
	int fd = world->context->cmd_fd;
	uint32_t response[64];
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_alloc_pd core;
	} pd = {
		.header = { IB_USER_VERBS_CMD_ALLOC_PD, sizeof(pd) / 4, 2 },
		.core.response = (uintptr_t)response,
	};
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_dealloc_pd core;
	} gone = { .header = { IB_USER_VERBS_CMD_DEALLOC_PD, sizeof(gone) / 4, 0 } };

	/* The header says another length than was written. */
	CHECK(command(fd, &pd, sizeof(pd) - 4) == EINVAL);
	CHECK(command(fd, &pd, 0) == EINVAL && command(fd, &pd, 4) == EINVAL);
	/* Nothing is where it is to be read, or the answer to go. */
	CHECK(command(fd, NULL, sizeof(pd)) == EFAULT);
	CHECK(command(fd, &pd, (size_t)1 << 40) == EINVAL);
	pd.core.response = 0;
	CHECK(command(fd, &pd, sizeof(pd)) == EFAULT);
	pd.core.response = (uintptr_t)response;
	pd.header.out_words = 0;
	CHECK(command(fd, &pd, sizeof(pd)) == ENOSPC);
	pd.header.out_words = 2;
	CHECK(!command(fd, &pd, sizeof(pd)));
	/* Gone once. */
	gone.core.pd_handle = response[0];
	CHECK(!command(fd, &gone, sizeof(gone)));
	CHECK(command(fd, &gone, sizeof(gone)) == EINVAL);
	/* A number that nobody has; a second context; another call. */
	pd.header.command = 200;
	CHECK(command(fd, &pd, sizeof(pd)) == EOPNOTSUPP);
	CHECK(read(fd, response, sizeof(response)) == -1 && errno == EINVAL);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 4096L * 1000) == MAP_FAILED);
	CHECK(mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
}

/* By the library, as a program may. */
static void by_the_library(struct world *world)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	unsigned char *hole = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_cq *cq = ibv_create_cq(world->context, 10, NULL, NULL, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	int write = IBV_ACCESS_LOCAL_WRITE;

	CHECK(hole != MAP_FAILED && cq && !munmap(hole + 4096, 4096));
	CHECK(!ibv_reg_mr(world->pd, hole, 8192, 0) && errno == EFAULT);
	CHECK(!ibv_reg_mr(world->pd, hole, 4096, write) && errno == EFAULT);
	CHECK(!ibv_reg_mr(world->pd, NULL, 4096, write) && errno == EFAULT);
	CHECK(!ibv_reg_mr(world->pd, hole, SIZE_MAX, 0));
	struct ibv_mr *mr = ibv_reg_mr(world->pd, hole, 4096, 0);
	CHECK(mr && !ibv_dereg_mr(mr));
	CHECK(!ibv_create_cq(world->context, 1 << 23, NULL, NULL, 0));
	CHECK(!ibv_create_cq(world->context, 10, NULL, NULL, 7));
	init.send_cq = init.recv_cq = cq;
	init.cap.max_send_wr = 1 << 20;
	CHECK(!ibv_create_qp(world->pd, &init));
	init.cap.max_send_wr = 4;
	init.qp_type = IBV_QPT_RAW_PACKET;
	CHECK(!ibv_create_qp(world->pd, &init));
	init.qp_type = IBV_QPT_RC;
	struct ibv_qp *qp = ibv_create_qp(world->pd, &init);
	CHECK(qp);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	CHECK(ibv_query_port(world->context, 2, &(struct ibv_port_attr){ 0 }));
	CHECK(!munmap(hole, 4096));
}

int main(void)
{
	struct world world = world_open();
	struct world wild = world_open();

	one_by_one(&world);
	by_the_library(&world);
	anything(&wild);
	/* Whatever that has made goes with its context; the device goes on. */
	CHECK(!close(wild.context->cmd_fd));
	struct ibv_cq *cq = ibv_create_cq(world.context, 10, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qp = qp_create(&world, IBV_QPT_RC, cq, NULL);
	struct ibv_sge sge = world_sge(&world, 0, 8);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = sge.addr + 64, .rkey = world.mr->rkey },
	};
	qp_connect(qp, qp->qp_num, world.lid);
	post_send(qp, &wr);
	poll_good(cq, 1);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	world_close(&world);
	return 0;
}
