/* What cost.rs does by the device's rings, by libibverbs: ibv_post_send and ibv_poll_cq, or ibv_wr_* and
 * ibv_start_poll. A library that cost.rs opens, so that both run in one process. */

#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 64, BATCH = 32, INLINE = 32, BYTES = 64 };

enum kind { INLINE_32, SGE_64, BATCH_32, UNSIGNALED };

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_cq_ex *cq_ex;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qp_ex;
	char *memory;
	struct ibv_sge sge[REQUESTS];
	struct ibv_send_wr wr[REQUESTS];
};

static int connect_with_itself(struct side *side)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	if (ibv_query_port(side->context, 1, &port))
		return -1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	if (ibv_modify_qp(side->qp, &attr,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return -1;
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = side->qp->qp_num;
	attr.ah_attr.dlid = port.lid;
	attr.ah_attr.port_num = 1;
	if (ibv_modify_qp(side->qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return -1;
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	return ibv_modify_qp(side->qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int create(struct side *side, int extended)
{
	struct ibv_qp_init_attr_ex init = {
		.cap = { .max_send_wr = 128, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = INLINE },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = side->pd,
	};
	struct ibv_cq_init_attr_ex cq = { .cqe = 255, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN |
								  IBV_WC_EX_WITH_IMM |
								  IBV_WC_EX_WITH_QP_NUM };

	if (extended) {
		side->cq_ex = ibv_create_cq_ex(side->context, &cq);
		side->cq = side->cq_ex ? ibv_cq_ex_to_cq(side->cq_ex) : NULL;
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	} else {
		side->cq = ibv_create_cq(side->context, 255, NULL, NULL, 0);
	}
	if (!side->cq)
		return -1;
	init.send_cq = init.recv_cq = side->cq;
	side->qp = ibv_create_qp_ex(side->context, &init);
	if (!side->qp)
		return -1;
	side->qp_ex = extended ? ibv_qp_to_qp_ex(side->qp) : NULL;
	return connect_with_itself(side);
}

/* Null when something is lacking. Nothing is given back: the process ends soon. */
struct side *theirs_open(const char *name, int extended)
{
	struct side *side = calloc(1, sizeof(*side));
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!side || !list)
		return NULL;
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			side->context = ibv_open_device(list[i]);
	if (!side->context || !(side->pd = ibv_alloc_pd(side->context)))
		return NULL;
	side->memory = aligned_alloc(4096, 4096);
	side->mr = ibv_reg_mr(side->pd, side->memory, 4096,
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!side->mr || create(side, extended))
		return NULL;
	return side;
}

/* Prepares the requests of a kind: what is measured posts them. */
void theirs_prepare(struct side *side, enum kind kind)
{
	for (int i = 0; i < REQUESTS; i++) {
		struct ibv_send_wr *wr = &side->wr[i];

		side->sge[i] = (struct ibv_sge){ (uintptr_t)side->memory,
						 kind == INLINE_32 ? INLINE : BYTES, side->mr->lkey };
		memset(wr, 0, sizeof(*wr));
		wr->wr_id = i;
		wr->sg_list = &side->sge[i];
		wr->num_sge = 1;
		wr->opcode = IBV_WR_RDMA_WRITE;
		wr->wr.rdma.remote_addr = (uintptr_t)side->memory + 1024;
		wr->wr.rdma.rkey = side->mr->rkey;
		if (kind != UNSIGNALED || i == REQUESTS - 1)
			wr->send_flags = IBV_SEND_SIGNALED;
		if (kind == INLINE_32)
			wr->send_flags |= IBV_SEND_INLINE;
		if (kind == BATCH_32 && i % BATCH != BATCH - 1)
			wr->next = wr + 1;
	}
}

static int post_send(struct side *side, enum kind kind)
{
	struct ibv_send_wr *bad;
	int failed = 0;

	for (int i = 0; i < REQUESTS; i += kind == BATCH_32 ? BATCH : 1)
		failed |= ibv_post_send(side->qp, &side->wr[i], &bad);
	return failed;
}

static int post_wr(struct side *side, enum kind kind)
{
	struct ibv_qp_ex *qp = side->qp_ex;
	int each = kind == BATCH_32 ? BATCH : 1, failed = 0;

	for (int i = 0; i < REQUESTS; i += each) {
		ibv_wr_start(qp);
		for (int j = i; j < i + each; j++) {
			struct ibv_send_wr *wr = &side->wr[j];

			qp->wr_id = wr->wr_id;
			qp->wr_flags = wr->send_flags & IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
			if (kind == INLINE_32)
				ibv_wr_set_inline_data(qp, side->memory, INLINE);
			else
				ibv_wr_set_sge(qp, side->mr->lkey, (uintptr_t)side->memory, BYTES);
		}
		failed |= ibv_wr_complete(qp);
	}
	return failed;
}

__attribute__((noinline)) int measured_theirs_post(struct side *side, enum kind kind)
{
	return side->qp_ex ? post_wr(side, kind) : post_send(side, kind);
}

static int poll_cq(struct side *side, enum kind kind, int count)
{
	struct ibv_wc wc[BATCH];
	int found = 0;

	while (found < count) {
		int n = ibv_poll_cq(side->cq, kind == BATCH_32 ? BATCH : 1, wc);

		if (n <= 0)
			break;
		for (int i = 0; i < n; i++)
			if (wc[i].status != IBV_WC_SUCCESS)
				return -1;
		found += n;
	}
	return found;
}

static int poll_ex(struct side *side, enum kind kind, int count)
{
	struct ibv_poll_cq_attr attr = {};
	struct ibv_cq_ex *cq = side->cq_ex;
	int found = 0;

	while (found < count) {
		int limit = kind == BATCH_32 ? BATCH : 1, n = 0;

		if (ibv_start_poll(cq, &attr))
			break;
		do {
			if (cq->status != IBV_WC_SUCCESS)
				return -1;
			n++;
		} while (n < limit && !ibv_next_poll(cq));
		ibv_end_poll(cq);
		found += n;
	}
	return found;
}

/* How many completions there were, up to count. */
__attribute__((noinline)) int measured_theirs_poll(struct side *side, enum kind kind, int count)
{
	return side->cq_ex ? poll_ex(side, kind, count) : poll_cq(side, kind, count);
}
