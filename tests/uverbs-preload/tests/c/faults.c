/* What is ordered to go wrong goes wrong, and libibverbs reports it. */
#include "stock.h"

typedef void each_executed(void *of, uint32_t qp_num, uint32_t opcode, uint64_t bytes,
			   uint32_t receive);

int uverbs_preload_control(const char *command) __attribute__((weak));
int uverbs_preload_journal(each_executed *each, void *of) __attribute__((weak));

static struct ibv_send_wr write_wr(struct world *world, struct ibv_sge *sge)
{
	*sge = world_sge(world, 0, 64);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = sge->addr + 4096, .rkey = world->mr->rkey },
	};
	return wr;
}

static void expect_event(struct world *world, enum ibv_event_type type)
{
	struct ibv_async_event event;

	do {
		CHECK(!ibv_get_async_event(world->context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST);
	if (event.event_type != type)
		fprintf(stderr, "event: %s\n", ibv_event_type_str(event.event_type));
	CHECK(event.event_type == type);
}

static enum ibv_port_state port_state(struct world *world)
{
	struct ibv_port_attr port;

	CHECK(!ibv_query_port(world->context, 1, &port));
	return port.state;
}

static void nothing(void *of, uint32_t qp_num, uint32_t opcode, uint64_t bytes, uint32_t receive)
{
	(void)of, (void)qp_num, (void)opcode, (void)bytes, (void)receive;
}

/* A device that broke stays so for contexts that have it open; those opened later find a new one. */
static void reset_device(struct world *broken)
{
	CHECK(!ibv_create_cq(broken->context, 10, NULL, NULL, 0));
	CHECK(!uverbs_preload_control("reset"));
	CHECK(!ibv_create_cq(broken->context, 10, NULL, NULL, 0));
	struct world works = world_open();
	struct ibv_cq *cq = ibv_create_cq(works.context, 10, NULL, NULL, 0);

	CHECK(cq && !ibv_destroy_cq(cq));
	world_close(&works);
}

int main(void)
{
	static const struct {
		const char *command;
		enum ibv_wc_status status;
	} statuses[] = {
		{ "entry 1 status REM_OP_ERR", IBV_WC_REM_OP_ERR },
		{ "entry 1 status LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR },
		{ "entry 1 status RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR },
		{ "packet 1 remote-access", IBV_WC_REM_ACCESS_ERR },
		{ "packet 1 drop-ack", IBV_WC_SUCCESS },
		{ "packet 1 drop-request", IBV_WC_SUCCESS },
		{ "entry 1 delay 2000", IBV_WC_SUCCESS },
	};
	struct world world = world_open();
	struct ibv_cq *cq = ibv_create_cq(world.context, 100, NULL, NULL, 0);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_wr(&world, &sge);

	CHECK(uverbs_preload_control && cq);
	CHECK(uverbs_preload_control(NULL) == EINVAL);
	CHECK(uverbs_preload_control("") == EINVAL);
	CHECK(uverbs_preload_control("now explode") == EINVAL);
	CHECK(uverbs_preload_control("entry x rnr") == EINVAL);
	CHECK(uverbs_preload_control("entry 1 status SUCCESSFUL") == EINVAL);
	CHECK(uverbs_preload_control("entry 1 status TM_ERR") == EOPNOTSUPP);
	CHECK(uverbs_preload_control("now cq-overrun recv-cq") == EINVAL);
	CHECK(uverbs_preload_control("now cq-overrun recv-cq 16777215") == EINVAL);
	CHECK(uverbs_preload_control("settle now") == EINVAL);
	CHECK(!uverbs_preload_control("settle"));
	/* It keeps none. */
	CHECK(uverbs_preload_journal && uverbs_preload_journal(nothing, NULL) == EINVAL);
	CHECK(uverbs_preload_journal(NULL, NULL) == EINVAL);
	struct ibv_qp *qp = qp_create(&world, IBV_QPT_RC, cq, NULL);
	for (unsigned at = 0; at < sizeof(statuses) / sizeof(*statuses); at++) {
		struct ibv_wc wc;

		CHECK(!ibv_modify_qp(qp, &reset, IBV_QP_STATE));
		qp_connect(qp, qp->qp_num, world.lid);
		CHECK(!uverbs_preload_control(statuses[at].command));
		post_send(qp, &wr);
		wc = poll_one(cq);
		if (wc.status != statuses[at].status)
			fprintf(stderr, "%s: %s\n", statuses[at].command,
				ibv_wc_status_str(wc.status));
		CHECK(wc.wr_id == 1 && wc.status == statuses[at].status);
		CHECK(!uverbs_preload_control("clear"));
	}
	CHECK(!uverbs_preload_control("modify 1 refuse-modify"));
	CHECK(ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	CHECK(!ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	CHECK(!uverbs_preload_control("now port-down"));
	expect_event(&world, IBV_EVENT_PORT_ERR);
	CHECK(port_state(&world) == IBV_PORT_DOWN);
	CHECK(!uverbs_preload_control("now port-up"));
	expect_event(&world, IBV_EVENT_PORT_ACTIVE);
	CHECK(port_state(&world) == IBV_PORT_ACTIVE);
	CHECK(!uverbs_preload_control("now raise LID_CHANGE"));
	expect_event(&world, IBV_EVENT_LID_CHANGE);
	char command[64];
	snprintf(command, sizeof(command), "now cq-overrun send-cq %u", qp->qp_num);
	CHECK(!uverbs_preload_control(command));
	expect_event(&world, IBV_EVENT_CQ_ERR);
	expect_event(&world, IBV_EVENT_QP_FATAL);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	cq = ibv_create_cq(world.context, 100, NULL, NULL, 0);
	qp = qp_create(&world, IBV_QPT_RC, cq, NULL);
	qp_connect(qp, qp->qp_num, world.lid);
	CHECK(!uverbs_preload_control("now device-fatal"));
	expect_event(&world, IBV_EVENT_DEVICE_FATAL);
	CHECK(!ibv_alloc_mw(world.pd, IBV_MW_TYPE_1));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	reset_device(&world);
	world_close(&world);
	return 0;
}
