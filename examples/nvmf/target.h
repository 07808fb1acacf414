/*
 * What the parts of the target share. Each worker is a thread that owns a completion queue, a shared
 * receive queue, and all queues, controllers and commands of the hosts that were given to it: nothing
 * of a worker is locked but its mailbox.
 */
#ifndef TARGET_H
#define TARGET_H

#include "backend.h"
#include "nvme.h"
#include <bellwire.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECEIVES = 4096,          /* commands of all hosts that a worker may have at once */
    ENTRIES = 3584,           /* of the submission queues of all hosts of a worker */
    BATCH = 64,               /* completions that are polled at once */
    QUEUES = 128,             /* queues of a worker; */
    NEW_QUEUES = 32,          /* of these, without a Connect; */
    NEW_COMMANDS = 8,         /* and the commands of such a queue */
    IO_QUEUES = 4,            /* I/O queues of a controller: more are no quicker, because one thread serves them */
    ADMIN_DEPTH = 32,         /* commands of an admin queue */
    IO_DEPTH = 128,           /* commands of an I/O queue */
    IN_CAPSULE = 4096,        /* bytes of data that come with a command */
    MAX_TRANSFER_SHIFT = 5,   /* of pages: 128 KiB in a command */
    MAX_TRANSFER = PAGE << MAX_TRANSFER_SHIFT,
    MAX_ZERO_SHIFT = 8,       /* of pages: 1 MiB in a Write Zeroes, or in a range to deallocate */
    MAX_ZERO = PAGE << MAX_ZERO_SHIFT,
    DISCARD_RANGES = 16,
    READ_DEPTH = 16,          /* READs in flight to a host */
    ASYNC_EVENTS = 4,         /* commands for asynchronous events that are held */
    BLOCK_SIZES = 3,          /* sizes of blocks for data */
    MAIL = 512,               /* messages to a worker that it has not read; */
    MAIL_REQUESTS = 64,       /* and from how many on requests to connect are rejected */
    CONNECT_SECONDS = 10,     /* from accepting a connection to its Connect */
    DISCOVERY_SECONDS = 120,  /* that a host may look at the discovery log without a keep-alive */
    KEEP_ALIVE_SECONDS = 600, /* the longest time without a command that a host may ask for, and that of one that
                                 asks for none */
    HOST_SECONDS = 10,        /* that a host may take for a response, or to give its data */
    STOP_SECONDS = 5,         /* from SIGTERM to the end of the program */
};

/* The program ends, with the reason. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *must_calloc(size_t count, size_t size);
static inline int check(int code, const char *call)
{
    if (code < 0)
        die("%s: %s (%s)", call, bw_strerror(code), bw_last_error());
    return code;
}
#define CHECK(call) check(call, #call)

uint64_t now_ms(void);

/* Of a target that is another one's replica; others are ROLE_NONE. */
enum role {
    ROLE_NONE,
    ROLE_EMPTY,    /* its copy is not complete */
    ROLE_LINKED,   /* its primary is there */
    ROLE_READY,    /* complete, and left alone: waits for a host, or for its primary */
    ROLE_PROMOTED, /* hosts have come: it is no replica any more */
};

struct target {
    char nqn[NQN_MAX + 1];
    char serial[21];
    uint8_t guid[16]; /* the namespace's, derived from the NQN: the same after a restart */
    bw_device *device;
    bw_pd *pd;
    bw_cm_channel *channel;
    struct backend *backend;
    atomic_int role;
    uint32_t block_shift;
    uint64_t blocks;
    uint32_t spin; /* empty polls before a worker sleeps */
    bool quiet;
    bool inject;          /* `fault`, when the first I/O queue connects; only with one worker */
    bw_soft_step fault;
    uint32_t break_link; /* the link recovers at this message */
    uint32_t overrun;     /* entries of the first completion queue, if it is to overrun */
    uint32_t workers_count;
    struct worker *workers;
};

/* What becomes of a command. */
enum step {
    STEP_FREE,       /* its receive is posted */
    STEP_NEEDS_ROOM, /* waits for blocks, or for room in the send queue, then calls `resume` */
    STEP_READING,    /* its data is on its way */
    STEP_RUNNING,    /* in the backend */
    STEP_HELD,       /* waits for an event to report */
    STEP_SENDING,    /* its response is posted, or is in its queue's list */
};

struct command {
    enum step step;
    struct worker *worker;
    struct queue *queue;
    struct command *next; /* in a list */
    /* Its receive: the command, and the data that came with it. */
    uint8_t *capsule, *in_capsule;
    uint32_t received;
    /* The host's memory, as checked. */
    uint64_t remote_addr;
    uint32_t remote_key;
    bool invalidate;
    bool to_host; /* `data` is sent when it succeeds */
    uint32_t length;
    uint8_t *data;
    bw_block block;   /* `length` is 0 if there is none; otherwise it is one of this host's share */
    struct host *block_host;
    uint32_t block_size;
    uint64_t arrived_ms;
    uint64_t host_ms; /* since when it waits for the host: its data, or its response */
    uint32_t posted;  /* requests in the send queue */
    void (*run)(struct command *command); /* with the data in place */
    void (*resume)(struct command *command);
    struct io io;
    uint32_t range; /* of a Dataset Management: the next one; of a Compare: bytes so far */
    uint64_t result;
    uint16_t status;
};

enum queue_state { QUEUE_CONNECTED, QUEUE_READY /* after Connect */, QUEUE_CLOSING };

/* Lines of the log since a time. */
struct lines {
    uint64_t since_ms;
    uint32_t count;
};

/* What a host has of a worker. */
struct host {
    struct host *next;
    struct address *address;
    char nqn[NQN_MAX + 1];
    uint8_t id[16];
    uint32_t queues, entries, blocks[BLOCK_SIZES];
    struct command *waiting, **last_waiting; /* for blocks */
};

/* What the hosts of an address have. */
struct address {
    struct address *next;
    char peer[BW_ADDR_MAX];
    uint32_t users; /* queues, also those that close */
    uint32_t queues, entries, new_queues, blocks[BLOCK_SIZES];
    struct lines lines;
    struct host *hosts;
    struct host nobody; /* of queues without a Connect */
};

/* A connection: an admin queue or an I/O queue of a host. */
struct queue {
    uint64_t number; /* the context of its id */
    enum queue_state state;
    struct worker *worker;
    bw_cm_id *id;
    bw_qp *qp;
    uint32_t qp_num;
    struct queue *same_hash;
    char peer[BW_ADDR_MAX];
    struct address *address;
    struct host *host;
    uint32_t entries;   /* of the host's share */
    bool counted_out;   /* of the queues without a Connect */
    uint64_t since_ms;
    uint16_t qid;       /* as the request to connect had it */
    uint16_t size;      /* entries of the submission queue */
    uint16_t head;      /* of the submission queue */
    bool no_flow;       /* the host does not want to know the head */
    bool disconnect;    /* ends with the response to its Disconnect */
    uint32_t commands;  /* not released */
    uint32_t room;      /* of the send queue, in requests */
    struct command *responses, **last_response; /* to be sent */
    struct command *waiting, **last_waiting;    /* for room in the send queue */
    bool rings;         /* it is in the worker's list `to_ring` */
    struct queue *next_to_ring;
    struct controller *controller;
};

/* What a host sees as an NVMe controller. */
struct controller {
    struct controller *next;
    uint16_t id;
    bool discovery;
    uint8_t host_id[16];
    char host_nqn[NQN_MAX + 1];
    uint32_t keep_alive_ms; /* 0: none */
    uint64_t heard_ms;
    uint32_t configuration; /* property CC */
    bool shut_down;
    uint16_t io_queues; /* that the host has asked for */
    struct queue *queues[IO_QUEUES + 1];
    struct command *events[ASYNC_EVENTS];
    uint32_t features[256];
};

/* What the main thread tells a worker. */
enum message_kind { MESSAGE_CM, MESSAGE_ASYNC };
struct message {
    enum message_kind kind;
    bw_cm_event cm;
    bw_async_event_info async;
};

struct worker {
    struct target *target;
    uint32_t number;
    pthread_t thread;
    bw_comp_channel *channel;
    bw_cq *cq;
    bw_srq *srq;
    uint32_t cqn, srqn;    /* by which events name them */
    bw_region *receives;   /* capsules, then the data that comes with them */
    bw_region_info receives_info;
    bw_region *region;
    bw_slab *slab;
    struct lane *lane;
    struct command *commands; /* RECEIVES of them: their index is the wr_id */
    uint32_t waiting;      /* commands that wait for blocks, of all hosts */
    struct address *addresses;
    uint32_t ready_queues, new_queues, entries; /* of all addresses */
    uint32_t looked_at;    /* of the commands, when they were last asked for what has taken too long */
    struct queue *to_ring; /* that have responses, or READs of which the device does not know */
    uint32_t to_post[RECEIVES]; /* whose receives are to be posted */
    uint32_t to_post_count;
    struct queue *queues[QUEUES];
    uint32_t queues_count;
    struct queue *by_number[256]; /* by QP number */
    struct controller *controllers;
    uint64_t next_number;
    uint16_t next_controller;
    uint64_t now_ms;
    bool closing; /* there are queues that close */
    bool stopping, rebuild;
    atomic_bool stop;
    bool overruns; /* its completion queue is too small */
    int wake; /* an eventfd */
    struct lines lines;    /* of no address */
    pthread_mutex_t lock;
    struct message *mail; /* a ring of MAIL */
    uint32_t mail_first, mail_count;
    bool mail_lost;
    atomic_bool has_mail;
};

/* worker.c */
void worker_start(struct target *target, uint32_t number);
/* False: it has too many messages already. */
bool worker_tell(struct worker *worker, const struct message *message);
void worker_stop(struct worker *worker);
/* A line for what a host has done. Those of an address beyond a number each second are left out, and counted. */
void worker_log(struct worker *worker, struct address *address, FILE *to, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void worker_rebuild(struct worker *worker, const char *why);

/* queues.c: the shared queues and the memory of a worker */
void resources_create(struct worker *worker);
void resources_destroy(struct worker *worker);
void resources_post_receives(struct worker *worker);
void queues_create(struct worker *worker);
void queues_destroy(struct worker *worker);

/* shares.c: each returns NULL, or why a host has no more of this */
const char *share_take_new(struct queue *queue);
const char *share_take(struct queue *queue, const char *nqn, const uint8_t *id, uint32_t entries);
void share_give_back_new(struct queue *queue);
void share_give_back(struct queue *queue);
uint32_t share_receives(const struct worker *worker);
const bw_slab_class *share_blocks(void);
void limits_print(void);
bool block_take(struct command *command, uint32_t length);
void block_return(struct command *command);

/* connection.c */
void connection_event(struct worker *worker, const bw_cm_event *event);
void connection_close(struct queue *queue, const char *why);
void connections_reap(struct worker *worker, bool at_once);
void connection_timers(struct worker *worker);
struct queue *connection_of(struct worker *worker, uint32_t qp_num);

/* replica.c: takes what a primary writes, at this port; a thread of its own */
struct replica *replica_start(struct target *target, const char *address, uint32_t port);
void replica_stop(struct replica *replica);

/* faults.c */
void fault_parse(struct target *target, const char *text);
void fault_inject(struct queue *queue);
void fault_link(struct target *target, bw_link *link);

/* command.c: a command's way from its receive to its response */
enum wr_kind { WR_RECEIVE = 0, WR_READ = 1, WR_WRITE = 2, WR_SEND = 3 };
static inline uint64_t wr_id(const struct command *command, enum wr_kind kind)
{
    return (uint64_t)(command - command->worker->commands) << 2 | kind;
}
void command_received(struct command *command, struct queue *queue, uint32_t bytes);
void command_read(struct command *command, bool succeeded);
void command_resume_waiting(struct worker *worker);
void command_send_all(struct worker *worker);
void command_release(struct command *command);
/* Each ends with a call of `run`, or with a response. */
void command_without_data(struct command *command, void (*run)(struct command *command));
void command_take(struct command *command, uint32_t length, bool or_longer,
                  void (*run)(struct command *command));
void command_give(struct command *command, uint32_t length, void (*run)(struct command *command));
void command_submit(struct command *command, enum io_op op, uint64_t offset, uint64_t length,
                    uint8_t *data, void (*done)(struct io *io, int error));
void command_look_at_clock(struct worker *worker);
void command_wait_for_block(struct command *command, void (*resume)(struct command *command));
void command_resume_queue(struct queue *queue);
void command_finish(struct command *command, uint16_t status);

/* The commands themselves: fabrics.c, admin.c, identify.c, logs.c, io.c */
void fabrics_command(struct command *command);
void controller_drop_queue(struct queue *queue);
void admin_command(struct command *command);
void events_forget(struct queue *queue);
void identify_command(struct command *command);
void log_command(struct command *command);
void io_command(struct command *command);

static inline const uint8_t *sqe(const struct command *command)
{
    return command->capsule;
}

#endif
