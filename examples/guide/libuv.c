/* Completions in a loop of libuv. */
#include "sleeper.h"
#include <uv.h>

/* ANCHOR: loop */
static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct sleeper *sleeper = poll->data;

    if (status == 0 && (events & UV_READABLE) && sleeper_drain(sleeper) > 0) {
        puts("done in libuv");
        uv_close((uv_handle_t *)poll, NULL);
    }
}

static void run(struct sleeper *sleeper)
{
    uv_loop_t loop;
    uv_poll_t poll = {.data = sleeper};

    uv_loop_init(&loop);
    uv_poll_init(&loop, &poll, bw_comp_channel_fd(sleeper->channel));
    uv_poll_start(&poll, UV_READABLE, on_ready);
    sleeper_drain(sleeper); /* arms */
    sleeper_post(sleeper, 1);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
}
/* ANCHOR_END: loop */

int main(void)
{
    struct sleeper sleeper = sleeper_open();

    run(&sleeper);
    sleeper_close(&sleeper);
    return EXIT_SUCCESS;
}
