/*
 * A worker's loop: completions, the backend, and messages of the main thread; when there is nothing it
 * sleeps. What fails is classified here.
 */
#include "target.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    TICK_MS = 50,
    STOP_MS = 1000, /* until connections that close are made to */
    LOG_LINES = 10, /* a second */
    MAIL_BATCH = 8, /* messages that are read at once */
};

uint64_t now_ms(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

void worker_log(struct worker *worker, struct address *address, FILE *to, const char *format, ...)
{
    struct lines *lines = address != NULL ? &address->lines : &worker->lines;
    uint64_t now = now_ms();
    va_list arguments;

    if (now - lines->since_ms >= 1000) {
        if (lines->count > LOG_LINES)
            fprintf(stderr, "%u lines more were left out\n", lines->count - LOG_LINES);
        lines->since_ms = now;
        lines->count = 0;
    }
    if (++lines->count > LOG_LINES)
        return;
    va_start(arguments, format);
    vfprintf(to, format, arguments);
    va_end(arguments);
}

/* A connection whose request has failed is over. */
static void failed(struct queue *queue, const bw_completion *completion, uint32_t work_queue)
{
    bw_fault fault = {
        .size = sizeof fault,
        .family = BW_FAMILY_STATUS,
        .number = (int32_t)completion->status,
        .transport = BW_QPT_RC,
        .queue = work_queue,
    };
    bw_class means = {.size = sizeof means};

    if (queue == NULL)
        return;
    CHECK(bw_classify(&fault, &means));
    connection_close(queue, means.text);
}

static void completed(struct worker *worker, const bw_completion *completion)
{
    bool succeeded = completion->status == BW_WC_SUCCESS;

    if (completion->wr_id >> 2 >= RECEIVES)
        return;
    struct command *command = &worker->commands[completion->wr_id >> 2];
    struct queue *queue = command->queue;
    switch ((enum wr_kind)(completion->wr_id & 3)) {
    case WR_RECEIVE:
        queue = connection_of(worker, completion->qp_num);
        if (succeeded && queue != NULL) {
            command_received(command, queue, bw_completion_byte_len(completion));
            break;
        }
        if (!succeeded)
            failed(queue, completion, BW_QUEUE_SRQ);
        command_release(command);
        break;
    case WR_READ:
        if (!succeeded)
            failed(queue, completion, BW_QUEUE_SEND);
        command_read(command, succeeded);
        break;
    case WR_WRITE: /* only when it failed */
        failed(queue, completion, BW_QUEUE_SEND);
        if (command->posted == 1)
            command_release(command);
        break;
    case WR_SEND:
        if (!succeeded)
            failed(queue, completion, BW_QUEUE_SEND);
        queue->room += command->posted;
        command_release(command);
        if (queue->waiting != NULL)
            command_resume_queue(queue);
        if (queue->disconnect && queue->commands == 0)
            connection_close(queue, NULL);
        break;
    }
}

static bool poll_completions(struct worker *worker)
{
    bw_completion completions[BATCH];
    int count = bw_poll_completions(worker->cq, completions, BATCH);

    for (int i = 0; i < count; i++)
        completed(worker, &completions[i]);
    return count > 0;
}

/* What a queue's failure means is the library's to say, and is one of three things here. */
static void async_event(struct worker *worker, const bw_async_event_info *event)
{
    bw_fault fault = {
        .size = sizeof fault, .family = BW_FAMILY_EVENT, .number = (int32_t)event->event_type};
    bw_class means = {.size = sizeof means};
    struct queue *queue;

    CHECK(bw_classify(&fault, &means));
    switch (means.scope) {
    case BW_SCOPE_CQ:
        if (event->number == worker->cqn)
            worker_rebuild(worker, means.text);
        break;
    case BW_SCOPE_SRQ:
        if (event->number == worker->srqn && means.recovery == BW_RECOVERY_REBUILD_SRQ)
            worker_rebuild(worker, means.text);
        break;
    case BW_SCOPE_QP:
        queue = connection_of(worker, event->number);
        if (queue != NULL && means.recovery == BW_RECOVERY_RESET_QP)
            connection_close(queue, means.text);
        break;
    default:
        break;
    }
}

void worker_rebuild(struct worker *worker, const char *why)
{
    if (!worker->rebuild)
        fprintf(stderr, "worker %u makes its queues anew: %s\n", worker->number, why);
    worker->rebuild = true;
}

static void close_all(struct worker *worker, const char *why)
{
    for (uint32_t i = 0; i < worker->queues_count; i++)
        connection_close(worker->queues[i], why);
}

/* The target ends: nothing of a worker waits for another computer any more. */
static void give_up_if_stopped(struct worker *worker)
{
    const struct backend_ops *backend = worker->target->backend->ops;

    if (atomic_load(&worker->stop) && backend->give_up != NULL)
        backend->give_up(worker->lane);
}

/*
 * The completion queue or the shared receive queue has failed. All connections end; their hosts connect
 * again. What a host got no response for it sends again, so nothing that was acknowledged is lost; what
 * the backend has begun is waited for, because it uses the commands' memory.
 */
static void rebuild(struct worker *worker)
{
    close_all(worker, NULL);
    command_resume_waiting(worker);
    command_send_all(worker);
    connections_reap(worker, true);
    while (worker->queues_count > 0) {
        give_up_if_stopped(worker);
        struct pollfd backend = {.fd = worker->target->backend->ops->fd(worker->lane), .events = POLLIN};

        poll(&backend, 1, 10);
        worker->target->backend->ops->poll(worker->lane);
        worker->now_ms = now_ms();
        command_resume_waiting(worker);
        command_send_all(worker);
        connections_reap(worker, true);
    }
    queues_destroy(worker);
    worker->rebuild = false;
    worker->overruns = false;
    queues_create(worker);
}

/* Whether there is a message: the oldest. */
static bool next_message(struct worker *worker, struct message *message)
{
    bool any, lost;

    pthread_mutex_lock(&worker->lock);
    any = worker->mail_count > 0;
    lost = worker->mail_lost;
    if (any) {
        *message = worker->mail[worker->mail_first];
        worker->mail_first = (worker->mail_first + 1) % MAIL;
        worker->mail_count--;
    }
    worker->mail_lost = false;
    atomic_store_explicit(&worker->has_mail, worker->mail_count > 0, memory_order_relaxed);
    pthread_mutex_unlock(&worker->lock);
    if (lost)
        worker_rebuild(worker, "there were more events than it can keep");
    return any;
}

/* Some messages, so that hosts that connect do not keep it from connected hosts. */
static void read_mail(struct worker *worker)
{
    struct message message;
    uint64_t count;

    while (read(worker->wake, &count, sizeof count) < 0 && errno == EINTR)
        ;
    for (int i = 0; i < MAIL_BATCH && next_message(worker, &message); i++) {
        if (message.kind == MESSAGE_CM)
            connection_event(worker, &message.cm);
        else
            async_event(worker, &message.async);
    }
}

static void wake(struct worker *worker)
{
    uint64_t one = 1;

    while (write(worker->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

bool worker_tell(struct worker *worker, const struct message *message)
{
    bool request = message->kind == MESSAGE_CM && message->cm.event == BW_CM_EVENT_CONNECT_REQUEST;

    pthread_mutex_lock(&worker->lock);
    bool room = worker->mail_count < (request ? MAIL_REQUESTS : MAIL);
    if (room)
        worker->mail[(worker->mail_first + worker->mail_count++) % MAIL] = *message;
    else if (!request)
        worker->mail_lost = true;
    /* Relaxed: the lock orders the ring; a worker that sees this late is woken by the descriptor. */
    if (room)
        atomic_store_explicit(&worker->has_mail, true, memory_order_relaxed);
    pthread_mutex_unlock(&worker->lock);
    if (room)
        wake(worker);
    return room;
}

void worker_stop(struct worker *worker)
{
    atomic_store(&worker->stop, true);
    wake(worker);
}

/* Whether anything was done. */
static bool turn(struct worker *worker)
{
    bool busy = poll_completions(worker);

    worker->target->backend->ops->poll(worker->lane);
    if (worker->waiting > 0)
        command_resume_waiting(worker);
    command_send_all(worker);
    if (worker->to_post_count > 0 && !worker->rebuild)
        resources_post_receives(worker);
    if (worker->closing)
        connections_reap(worker, false);
    if (atomic_load_explicit(&worker->has_mail, memory_order_relaxed)) {
        read_mail(worker);
        busy = true;
    }
    if (worker->rebuild) {
        rebuild(worker);
        busy = true;
    }
    return busy;
}

/* Until a completion, the backend or the main thread wakes it, or its timers are due. */
static void sleep_until_woken(struct worker *worker)
{
    struct pollfd fds[] = {
        {.fd = bw_comp_channel_fd(worker->channel), .events = POLLIN},
        {.fd = worker->wake, .events = POLLIN},
        {.fd = worker->target->backend->ops->fd(worker->lane), .events = POLLIN},
    };
    uint32_t cqn;

    if (bw_cq_req_notify(worker->cq, 0) != BW_OK) {
        worker_rebuild(worker, bw_last_error());
        return;
    }
    if (worker->target->backend->ops->arm != NULL)
        worker->target->backend->ops->arm(worker->lane);
    /* What came before it was armed raises no event. */
    if (turn(worker))
        return;
    poll(fds, 3, worker->closing ? 1 : TICK_MS);
    /* One, because it was armed once. */
    if (fds[0].revents != 0 && bw_get_cq_event(worker->channel, &cqn, NULL) == BW_OK)
        bw_ack_cq_events(worker->channel, cqn, 1);
}

static void *run(void *argument)
{
    struct worker *worker = argument;
    uint64_t tick = 0, stop_at = UINT64_MAX;
    uint32_t idle = 0;

    while (!worker->stopping || (worker->queues_count > 0 && worker->now_ms < stop_at)) {
        worker->stopping = atomic_load(&worker->stop);
        if (turn(worker)) {
            idle = 0;
        } else if (++idle > worker->target->spin) {
            sleep_until_woken(worker);
            idle = 0;
        }
        worker->now_ms = now_ms();
        if (worker->now_ms >= tick) {
            tick = worker->now_ms + TICK_MS;
            bw_device_progress(worker->target->device);
            connection_timers(worker);
        }
        if (worker->stopping && stop_at == UINT64_MAX) {
            stop_at = worker->now_ms + STOP_MS;
            close_all(worker, NULL);
            give_up_if_stopped(worker);
        }
    }
    while (worker->queues_count > 0)
        rebuild(worker);
    resources_destroy(worker);
    free(worker->mail);
    return NULL;
}

void worker_start(struct target *target, uint32_t number)
{
    struct worker *worker = &target->workers[number];

    worker->target = target;
    worker->number = number;
    worker->next_number = number + target->workers_count;
    worker->mail = must_calloc(MAIL, sizeof *worker->mail);
    worker->now_ms = now_ms();
    worker->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (worker->wake < 0)
        die("eventfd: %s", strerror(errno));
    pthread_mutex_init(&worker->lock, NULL);
    worker->overruns = target->overrun > 0;
    resources_create(worker);
    int error = pthread_create(&worker->thread, NULL, run, worker);
    if (error != 0)
        die("no thread: %s", strerror(error));
}
