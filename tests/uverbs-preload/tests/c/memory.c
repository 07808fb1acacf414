/* Memory that cannot be accessed: refused with EFAULT, or, if it goes away later, the error of one request. */
#define _GNU_SOURCE
#include "stock.h"
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

#define ALL                                                                                       \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |               \
	 IBV_ACCESS_REMOTE_ATOMIC)

static void refused(struct world *world, char *start, size_t length, int access)
{
	errno = 0;
	CHECK(!ibv_reg_mr(world->pd, start, length, access) && errno == EFAULT);
}

static void registration(struct world *world)
{
	char *start = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(start != MAP_FAILED);
	CHECK(!mprotect(start + 2 * PAGE, PAGE, PROT_READ));
	refused(world, start, 4 * PAGE, ALL);
	CHECK(!mprotect(start + 2 * PAGE, PAGE, PROT_NONE));
	refused(world, start, 4 * PAGE, 0);
	CHECK(!munmap(start + 2 * PAGE, PAGE));
	refused(world, start, 4 * PAGE, 0);
	munmap(start, 4 * PAGE);
}

/* A page that is registered, and then protected, unmapped, or behind the end of its file. */
static struct ibv_mr *gone(struct world *world, int how)
{
	FILE *file = tmpfile();
	char *start;
	struct ibv_mr *mr;

	CHECK(file && !ftruncate(fileno(file), PAGE));
	start = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	CHECK(start != MAP_FAILED);
	mr = ibv_reg_mr(world->pd, start, PAGE, ALL);
	CHECK(mr);
	switch (how) {
	case 0:
		CHECK(!mprotect(start, PAGE, PROT_NONE));
		break;
	case 1:
		CHECK(!munmap(start, PAGE));
		break;
	default:
		CHECK(!ftruncate(fileno(file), 0));
	}
	fclose(file);
	return mr;
}

/* What becomes of a request whose memory is gone here, or at the peer. */
static enum ibv_wc_status status(struct world *world, enum ibv_wr_opcode opcode, int how, int here)
{
	struct ibv_cq *cq = ibv_create_cq(world->context, 100, NULL, NULL, 0);
	struct ibv_qp *qp = qp_create(world, IBV_QPT_RC, cq, NULL);
	struct ibv_mr *mr = gone(world, how);
	struct ibv_sge sge = world_sge(world, 0, 200);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)mr->addr, .rkey = mr->rkey },
	};
	struct ibv_wc wc;

	qp_connect(qp, qp->qp_num, world->lid);
	if (here) {
		sge.addr = (uintptr_t)mr->addr;
		sge.lkey = mr->lkey;
		wr.wr.rdma.remote_addr = (uintptr_t)world->bytes;
		wr.wr.rdma.rkey = world->mr->rkey;
	}
	post_send(qp, &wr);
	wc = poll_one(cq);
	CHECK(wc.wr_id == 1);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
	return wc.status;
}

int main(void)
{
	struct world world = world_open();
	enum ibv_wr_opcode opcodes[2] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };

	registration(&world);
	for (int how = 0; how < 3; how++) {
		for (int at = 0; at < 2; at++) {
			enum ibv_wc_status remote = status(&world, opcodes[at], how, 0);

			CHECK(remote == IBV_WC_REM_ACCESS_ERR || remote == IBV_WC_REM_OP_ERR);
			CHECK(status(&world, opcodes[at], how, 1) == IBV_WC_LOC_PROT_ERR);
		}
	}
	world_close(&world);
	return 0;
}
