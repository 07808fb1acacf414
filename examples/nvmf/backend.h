/*
 * Where a namespace's blocks are. A backend is shared by all workers; each works through a lane of its
 * own, which has one owner and no lock.
 */
#ifndef BACKEND_H
#define BACKEND_H

#include <bellwire.h>
#include <stdbool.h>
#include <stdint.h>

enum io_op { IO_READ, IO_WRITE, IO_FLUSH, IO_ZERO, IO_DISCARD };

/* One request. It is the submitter's, and must stay until `done` has been called. */
struct io {
    enum io_op op;
    bool durable;    /* a write that has to be on stable storage when it is done */
    uint64_t offset; /* bytes; within the backend's size */
    uint64_t length;
    uint8_t *data; /* aligned to 4096 bytes, for IO_READ and IO_WRITE */
    uint32_t lkey; /* of the data, on the target's protection domain */
    uint64_t since_ms; /* when the command that it is of arrived */
    void (*done)(struct io *io, int error); /* 0, or an errno */
    /* The backend's own. */
    uint64_t moved;
    struct io *next;
};

struct lane;

struct backend {
    uint64_t bytes;
    bool keeps;          /* the blocks outlive the program */
    bool volatile_cache; /* writes are stable only after a flush */
    const struct backend_ops *ops;
};

struct backend_ops {
    /* NULL when there is no memory, or the system refuses. */
    struct lane *(*open_lane)(struct backend *backend);
    void (*close_lane)(struct lane *lane);
    /* Calls `done`, in this call or in a later `poll`. */
    void (*submit)(struct lane *lane, struct io *io);
    /* Passes submitted requests to the system, and reports finished ones. */
    void (*poll)(struct lane *lane);
    /* A descriptor that is readable when `poll` has something to report, or -1. */
    int (*fd)(struct lane *lane);
    void (*close)(struct backend *backend);
    /* What comes after this call, and after a `poll` that follows it, makes `fd` readable. NULL: it is
       always so. */
    void (*arm)(struct lane *lane);
    /* The target ends: what waits for another computer is done at once, with an error, and so are later requests
       that would wait for it. NULL: nothing does. */
    void (*give_up)(struct lane *lane);
};

/* Both end the program, with the reason, when it cannot be opened. */
struct backend *memory_open(const bw_pd *pd, uint64_t bytes);
/* `bytes` is used for a file that is new or shorter; 0: the size that it has. */
struct backend *file_open(const char *path, uint64_t bytes);

struct target;
/* On `inner`, and on the target that takes links at `host` and `port`. It has one lane. `alone`: writes do not
   wait for a replica that is gone. */
struct backend *replicated_open(struct target *target, struct backend *inner, const char *host, uint32_t port,
                                bool alone);

#endif
