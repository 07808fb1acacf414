/* Completions in an io_uring loop, beside whatever else it waits for. */
#include "sleeper.h"
#include <liburing.h>
#include <poll.h>

int main(void)
{
    struct sleeper sleeper = sleeper_open();
    struct io_uring ring;
    int done = 0;

    if (io_uring_queue_init(8, &ring, 0) < 0) {
        puts("this kernel, or this container, has no io_uring");
        return EXIT_SUCCESS;
    }
    /* ANCHOR: loop */
    sleeper_drain(&sleeper); /* arms */
    sleeper_post(&sleeper, 1);
    while (done == 0) {
        struct io_uring_sqe *poll = io_uring_get_sqe(&ring);
        struct io_uring_cqe *ready;

        /* One event: post the poll again after each drain. */
        io_uring_prep_poll_add(poll, bw_comp_channel_fd(sleeper.channel), POLLIN);
        io_uring_submit_and_wait(&ring, 1);
        if (io_uring_wait_cqe(&ring, &ready) < 0)
            continue; /* a signal */
        io_uring_cqe_seen(&ring, ready);
        done += sleeper_drain(&sleeper);
    }
    /* ANCHOR_END: loop */
    printf("%d done in io_uring\n", done);
    io_uring_queue_exit(&ring);
    sleeper_close(&sleeper);
    return EXIT_SUCCESS;
}
