/*
 * A worker's shared queues and its memory: a completion queue, a shared receive queue with a receive
 * for each command, and blocks for data.
 */
#include "target.h"

static bw_region *region_of(struct worker *worker, uint64_t bytes)
{
    bw_region *region;
    bw_region_attr attr;

    CHECK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = bytes;
    attr.access = BW_ACCESS_LOCAL_WRITE; /* hosts reach nothing of it by themselves */
    CHECK(bw_region_create(worker->target->pd, &attr, &region));
    return region;
}

void resources_create(struct worker *worker)
{
    uint64_t bytes;

    worker->receives = region_of(worker, (uint64_t)RECEIVES * (IN_CAPSULE + SQE));
    worker->receives_info.size = sizeof worker->receives_info;
    CHECK(bw_region_query(worker->receives, &worker->receives_info));
    worker->commands = must_calloc(RECEIVES, sizeof *worker->commands);
    uint8_t *base = (uint8_t *)(uintptr_t)worker->receives_info.addr;
    for (uint32_t i = 0; i < RECEIVES; i++) {
        struct command *command = &worker->commands[i];

        command->worker = worker;
        command->in_capsule = base + (size_t)i * IN_CAPSULE;
        command->capsule = base + (size_t)RECEIVES * IN_CAPSULE + (size_t)i * SQE;
    }
    CHECK(bw_slab_bytes(share_blocks(), BLOCK_SIZES, &bytes));
    worker->region = region_of(worker, bytes);
    CHECK(bw_slab_create(worker->region, share_blocks(), BLOCK_SIZES, &worker->slab));
    worker->lane = worker->target->backend->ops->open_lane(worker->target->backend);
    if (worker->lane == NULL)
        die("a worker has no way to its blocks");
    queues_create(worker);
}

void resources_destroy(struct worker *worker)
{
    queues_destroy(worker);
    worker->target->backend->ops->close_lane(worker->lane);
    CHECK(bw_slab_destroy(worker->slab));
    CHECK(bw_region_destroy(worker->region));
    CHECK(bw_region_destroy(worker->receives));
    free(worker->commands);
}

/* Afterwards all receives are to be posted. */
void queues_create(struct worker *worker)
{
    bw_device *device = worker->target->device;
    bw_device_info info = {.size = sizeof info};
    bw_srq_init_attr srq;
    bw_srq_info srq_info = {.size = sizeof srq_info};
    bw_cq_info cq_info = {.size = sizeof cq_info};

    CHECK(bw_device_query(device, &info));
    CHECK(bw_comp_channel_create(device, &worker->channel));
    CHECK(bw_comp_channel_set_nonblocking(worker->channel, 1));
    bw_cq_attr cq = {
        .size = sizeof cq,
        .entries = 2 * RECEIVES + QUEUES * 2 * IO_DEPTH,
        .channel = worker->channel,
    };
    if (cq.entries > info.max_cqe)
        cq.entries = info.max_cqe;
    if (worker->overruns)
        cq.entries = worker->target->overrun;
    CHECK(bw_cq_create(device, &cq, &worker->cq));
    CHECK(bw_cq_query(worker->cq, &cq_info));
    CHECK(bw_srq_init_attr_default(&srq, sizeof srq));
    srq.max_wr = RECEIVES;
    srq.max_sge = 2;
    CHECK(bw_srq_create(worker->target->pd, &srq, &worker->srq));
    CHECK(bw_srq_query(worker->srq, &srq_info));
    worker->cqn = cq_info.cqn;
    worker->srqn = srq_info.srq_num;
    for (uint32_t i = 0; i < RECEIVES; i++)
        worker->to_post[i] = i;
    worker->to_post_count = RECEIVES;
    resources_post_receives(worker);
}

void queues_destroy(struct worker *worker)
{
    CHECK(bw_srq_destroy(worker->srq, NULL, NULL));
    CHECK(bw_cq_destroy(worker->cq));
    CHECK(bw_comp_channel_destroy(worker->channel));
}

/*
 * As many as its hosts may have commands: what a few hosts use stays in the processor's caches.
 *
 * The command goes to the first element, the data behind it to the second, where it is aligned.
 */
void resources_post_receives(struct worker *worker)
{
    uint32_t wanted = share_receives(worker);

    while (worker->to_post_count > 0 && RECEIVES - worker->to_post_count < wanted) {
        bw_recv_wr receives[BATCH];
        bw_sge parts[BATCH][2];
        uint32_t count = 0;

        for (; count < BATCH && worker->to_post_count > 0 && RECEIVES - worker->to_post_count < wanted; count++) {
            struct command *command = &worker->commands[worker->to_post[--worker->to_post_count]];
            uint32_t key = worker->receives_info.lkey;

            parts[count][0] = (bw_sge){(uint64_t)(uintptr_t)command->capsule, SQE, key};
            parts[count][1] = (bw_sge){(uint64_t)(uintptr_t)command->in_capsule, IN_CAPSULE, key};
            receives[count] = (bw_recv_wr){wr_id(command, WR_RECEIVE), parts[count], 2, 0};
        }
        int result = bw_post_srq_recv(worker->srq, receives, count, NULL);
        if (result != BW_OK) {
            worker_rebuild(worker, bw_strerror(result));
            return;
        }
    }
}
