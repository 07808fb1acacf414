/* Completion channels: an event for what comes, for what was there before, for what is solicited; and
 * objects that go while events of theirs wait. */
#include "stock.h"

#include <fcntl.h>
#include <poll.h>

static int readable(int fd, int milliseconds)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	return poll(&poll_fd, 1, milliseconds) == 1;
}

/* A message of the queue pair to itself: two completions, one of them a receive's. */
static void message(struct world *world, struct ibv_qp *qp, unsigned flags)
{
	struct ibv_sge sge = world_sge(world, 0, 8);
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | flags,
	};

	post_recv(qp, 2, world_sge(world, 64, 64));
	post_send(qp, &wr);
}

static void poll_both(struct ibv_cq *cq)
{
	CHECK(poll_one(cq).status == IBV_WC_SUCCESS && poll_one(cq).status == IBV_WC_SUCCESS);
}

static void take_event(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_cq *of;
	void *context;

	CHECK(!ibv_get_cq_event(channel, &of, &context));
	CHECK(of == cq && context == cq->cq_context);
}

int main(void)
{
	struct world world = world_open();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(world.context);
	struct ibv_cq *none;
	void *context;
	char name;

	CHECK(channel);
	struct ibv_cq *cq = ibv_create_cq(world.context, 100, &name, channel, 0);
	CHECK(cq);
	struct ibv_qp *qp = qp_create(&world, IBV_QPT_RC, cq, NULL);
	qp_connect(qp, qp->qp_num, world.lid);

	/* Armed, then rung. */
	for (int lap = 0; lap < 300; lap++) {
		CHECK(!ibv_req_notify_cq(cq, 0));
		message(&world, qp, 0);
		take_event(channel, cq);
		poll_both(cq);
		CHECK(lap % 10 || !readable(channel->fd, 1));
		ibv_ack_cq_events(cq, 1);
	}
	/* Rung, there, then armed: what was not polled raises an event at once. */
	for (int lap = 0; lap < 50; lap++) {
		volatile unsigned char *last = world.bytes + 64;

		world.bytes[0] = (unsigned char)(lap + 1);
		message(&world, qp, 0);
		for (int wait = 0; wait < 1000 && lap % 2; wait++)
			CHECK(*last != 255);
		CHECK(!ibv_req_notify_cq(cq, 0));
		take_event(channel, cq);
		ibv_ack_cq_events(cq, 1);
		poll_both(cq);
	}
	/* Only what is solicited. */
	CHECK(!ibv_req_notify_cq(cq, 1));
	message(&world, qp, 0);
	poll_both(cq);
	CHECK(!readable(channel->fd, 20));
	message(&world, qp, IBV_SEND_SOLICITED);
	take_event(channel, cq);
	poll_both(cq);
	ibv_ack_cq_events(cq, 1);
	/* A descriptor that does not block. */
	CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	CHECK(ibv_get_cq_event(channel, &none, &context) && errno == EAGAIN);
	/* One that nobody gets goes with its queue. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	message(&world, qp, 0);
	CHECK(readable(channel->fd, 10000));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!readable(channel->fd, 0));
	CHECK(!ibv_destroy_comp_channel(channel));
	world_close(&world);
	return 0;
}
