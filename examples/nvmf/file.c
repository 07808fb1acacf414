/*
 * A backend in a file or a block device, by io_uring: each worker has a ring. O_DIRECT where the file
 * system allows it; all memory of requests is aligned for it.
 */
#include "target.h"
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    RING = 256,
    RETRY_MS = 10000, /* from the arrival of a command on, while the system says to try again */
};

struct file {
    struct backend backend;
    int fd;
    int zeroes; /* the mode of fallocate that writes zeroes */
};

struct file_lane {
    struct file *file;
    struct io_uring ring;
    struct io *waiting, **last; /* there was no room in the ring */
};

static bool prepare(struct file_lane *lane, struct io *io)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&lane->ring);
    uint64_t at = io->offset + io->moved;
    unsigned rest = (unsigned)(io->length - io->moved);
    int fd = lane->file->fd;

    if (sqe == NULL)
        return false;
    switch (io->op) {
    case IO_READ:
        io_uring_prep_read(sqe, fd, io->data + io->moved, rest, at);
        break;
    case IO_WRITE:
        io_uring_prep_write(sqe, fd, io->data + io->moved, rest, at);
        if (io->durable)
            sqe->rw_flags = RWF_DSYNC;
        break;
    case IO_FLUSH:
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
        break;
    case IO_ZERO:
        io_uring_prep_fallocate(sqe, fd, lane->file->zeroes, (off_t)at, (off_t)io->length);
        break;
    case IO_DISCARD:
        io_uring_prep_fallocate(sqe, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                                (off_t)io->length);
        break;
    }
    io_uring_sqe_set_data(sqe, io);
    return true;
}

static void start(struct file_lane *lane, struct io *io)
{
    /* Requests that wait go first. */
    if (lane->waiting == NULL && prepare(lane, io))
        return;
    io->next = NULL;
    *lane->last = io;
    lane->last = &io->next;
}

static void submit(struct lane *lane, struct io *io)
{
    io->moved = 0;
    start((struct file_lane *)lane, io);
}

static void finished(struct file_lane *lane, struct io *io, int result)
{
    int error = result < 0 ? -result : 0;

    if ((error == EINTR || error == EAGAIN) && now_ms() - io->since_ms < RETRY_MS) {
        start(lane, io);
        return;
    }
    if (error == 0 && (io->op == IO_READ || io->op == IO_WRITE)) {
        io->moved += (uint32_t)result;
        if (result > 0 && io->moved < io->length) {
            start(lane, io);
            return;
        }
        if (io->moved < io->length)
            error = EIO; /* the file has become shorter */
    }
    /* A hint, which not every file system can follow. */
    if (io->op == IO_DISCARD && error == EOPNOTSUPP)
        error = 0;
    io->done(io, error);
}

static void poll_lane(struct lane *opaque)
{
    struct file_lane *lane = (struct file_lane *)opaque;
    struct io_uring_cqe *cqe;

    if (io_uring_sq_ready(&lane->ring) > 0)
        io_uring_submit(&lane->ring);
    while (io_uring_peek_cqe(&lane->ring, &cqe) == 0) {
        struct io *io = io_uring_cqe_get_data(cqe);
        int result = cqe->res;

        io_uring_cqe_seen(&lane->ring, cqe);
        finished(lane, io, result);
    }
    while (lane->waiting != NULL) {
        struct io *io = lane->waiting;

        if (!prepare(lane, io))
            break;
        lane->waiting = io->next;
        if (lane->waiting == NULL)
            lane->last = &lane->waiting;
    }
    if (io_uring_sq_ready(&lane->ring) > 0)
        io_uring_submit(&lane->ring);
}

static int lane_fd(struct lane *lane)
{
    return ((struct file_lane *)lane)->ring.ring_fd;
}

static struct lane *open_lane(struct backend *backend)
{
    struct file_lane *lane = must_calloc(1, sizeof *lane);
    int error = io_uring_queue_init(RING, &lane->ring, 0);

    if (error != 0) {
        fprintf(stderr, "io_uring: %s: does the kernel allow it (kernel.io_uring_disabled)?\n",
                strerror(-error));
        free(lane);
        return NULL;
    }
    lane->file = (struct file *)backend;
    lane->last = &lane->waiting;
    return (struct lane *)lane;
}

static void close_lane(struct lane *opaque)
{
    struct file_lane *lane = (struct file_lane *)opaque;

    io_uring_queue_exit(&lane->ring);
    free(lane);
}

static void close_file(struct backend *backend)
{
    struct file *file = (struct file *)backend;

    close(file->fd);
    free(file);
}

static const struct backend_ops ops = {open_lane, close_lane, submit, poll_lane, lane_fd, close_file,
                                       NULL, NULL};

struct backend *file_open(const char *path, uint64_t bytes)
{
    struct file *file = must_calloc(1, sizeof *file);
    int flags = O_RDWR | O_CLOEXEC | (bytes > 0 ? O_CREAT : 0);
    struct stat stat;
    uint64_t has = 0;

    file->fd = open(path, flags | O_DIRECT, 0644);
    bool direct = file->fd >= 0;
    if (!direct && errno == EINVAL)
        file->fd = open(path, flags, 0644);
    if (file->fd < 0 || fstat(file->fd, &stat) != 0)
        die("%s: %s", path, strerror(errno));
    file->zeroes = FALLOC_FL_KEEP_SIZE |
                   (S_ISBLK(stat.st_mode) ? FALLOC_FL_ZERO_RANGE : FALLOC_FL_PUNCH_HOLE);
    if (S_ISBLK(stat.st_mode)) {
        if (ioctl(file->fd, BLKGETSIZE64, &has) != 0)
            die("%s: its size: %s", path, strerror(errno));
    } else if (S_ISREG(stat.st_mode)) {
        has = (uint64_t)stat.st_size;
        if (has < bytes && ftruncate(file->fd, (off_t)bytes) != 0)
            die("%s: cannot be made %llu bytes long: %s", path, (unsigned long long)bytes,
                strerror(errno));
        has = has < bytes ? bytes : has;
    } else {
        die("%s: give a file or a block device", path);
    }
    has -= has % PAGE;
    if (has == 0)
        die("%s: it is empty: give its size by --size", path);
    printf("namespace: %s, %llu bytes%s\n", path, (unsigned long long)has, direct ? ", O_DIRECT" : "");
    file->backend = (struct backend){.bytes = has, .keeps = true, .volatile_cache = true, .ops = &ops};
    return &file->backend;
}
