/*
 * What libibverbs costs by itself: one request after the other on a queue pair that is connected with
 * itself, posted by ibv_wr_* and polled by ibv_start_poll. `cost.rs` does the same by bellwire;
 * `cargo xtask cost` compares them.
 *
 *   cost DEVICE GID_INDEX
 *
 * Prints for each operation the median of nanoseconds.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCHES = 21, BATCH = 200, BYTES = 8, SIGNALED = IBV_SEND_SIGNALED };

static struct ibv_qp_ex *qp;
static struct ibv_cq_ex *cq;
static struct ibv_mr *mr;
static uint64_t memory[512];

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* Takes the next completion. */
static void poll_one(void)
{
	struct ibv_poll_cq_attr attr = { 0 };

	while (ibv_start_poll(cq, &attr) != 0)
		;
	must(cq->status == IBV_WC_SUCCESS, "a completion");
	ibv_end_poll(cq);
}

static void write_one(uint64_t id)
{
	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = SIGNALED | IBV_SEND_INLINE;
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)&memory[1]);
	ibv_wr_set_inline_data(qp, &memory[0], BYTES);
	must(ibv_wr_complete(qp) == 0, "post a WRITE");
	poll_one();
}

static void read_one(uint64_t id)
{
	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = SIGNALED;
	ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)&memory[1]);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)&memory[0], BYTES);
	must(ibv_wr_complete(qp) == 0, "post a READ");
	poll_one();
}

/* Both ends: the receive posted, the message sent, and two completions. */
static void send_one(uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)&memory[1], BYTES, mr->lkey };
	struct ibv_recv_wr wr = { id, NULL, &sge, 1 }, *bad;

	must(ibv_post_recv(&qp->qp_base, &wr, &bad) == 0, "post a receive");
	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = SIGNALED | IBV_SEND_INLINE;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, &memory[0], BYTES);
	must(ibv_wr_complete(qp) == 0, "post a SEND");
	poll_one();
	poll_one();
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * UINT64_C(1000000000) + time.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void measure(const char *name, void (*one)(uint64_t))
{
	uint64_t took[BATCHES];

	for (int i = 0; i < BATCHES; i++) {
		uint64_t begun = now();

		for (uint64_t id = 0; id < BATCH; id++)
			one(id);
		took[i] = now() - begun;
	}
	qsort(took, BATCHES, sizeof(took[0]), by_value);
	printf("%s %.1f\n", name, (double)took[BATCHES / 2] / BATCH);
}

static void modify(struct ibv_qp_attr *attr, int mask)
{
	must(ibv_modify_qp(&qp->qp_base, attr, mask) == 0, "modify the queue pair");
}

int main(int argc, char **argv)
{
	must(argc == 3, "usage: cost DEVICE GID_INDEX");

	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i]; i++)
		if (strcmp(ibv_get_device_name(list[i]), argv[1]) == 0)
			context = ibv_open_device(list[i]);
	must(context != NULL, "open the device");

	struct ibv_pd *pd = ibv_alloc_pd(context);

	must(pd != NULL, "allocate a protection domain");
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ);
	must(mr != NULL, "register memory");

	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 512, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };

	cq = ibv_create_cq_ex(context, &cq_attr);
	must(cq != NULL, "create a completion queue");

	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { 128, 128, 1, 1, 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *base = ibv_create_qp_ex(context, &init);

	must(base != NULL, "create a queue pair");
	qp = ibv_qp_to_qp_ex(base);

	int gid_index = atoi(argv[2]);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = base->qp_num,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 1,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .sgid_index = gid_index, .hop_limit = 64 } },
	};

	must(ibv_query_gid(context, 1, gid_index, &attr.ah_attr.grh.dgid) == 0, "query the GID");
	modify(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr.qp_state = IBV_QPS_RTR;
	modify(&attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	attr.qp_state = IBV_QPS_RTS;
	modify(&attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);

	measure("WRITE", write_one);
	measure("READ", read_one);
	measure("SEND", send_one);
	return 0;
}
