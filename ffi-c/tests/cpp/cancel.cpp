/*
 * Cancelled threads in C++, where cancellation unwinds the stack: the destructors of the library's classes run, and no
 * call of the library ends in the middle. Waits that a signal or another thread ends return an empty optional.
 */
#include "../c/program.h"
#include <bellwire.hpp>

#include <atomic>
#include <pthread.h>
#include <unistd.h>

namespace {

std::atomic<int> unwound{0}, begun{0};

/* Counts the objects of a thread that were destroyed after those of the library. */
struct counted {
    ~counted() { unwound++; }
};

void *sets_up(void *)
{
    counted one;
    pthread_cancel(pthread_self());
    bellwire::device device("soft");
    bellwire::pd pd(device);
    bellwire::comp_channel channel(device);
    bellwire::cq cq(device, 64, channel);
    bellwire::cm_channel cm(device);
    bellwire::tcp_listener tcp("127.0.0.1");
    bellwire::listener links(device, "127.0.0.1", 0, 4);
    EXPECT(!cm.get_event(10));
    EXPECT(!bellwire::reliable_link::accept(links, pd, 10));
    begun++;
    pthread_testcancel();
    begun = 100;
    return nullptr;
}

/* Waits for an event of a channel of its own, which another thread wakes. */
void *waits(void *of)
{
    counted one;
    auto *channel = static_cast<bellwire::comp_channel *>(of);
    bellwire::device device("soft");
    bellwire::pd pd(device);
    begun++;
    EXPECT(!channel->get_cq_event());
    pthread_testcancel();
    begun = 100;
    return nullptr;
}

void *watch(void *)
{
    sleep(120);
    fprintf(stderr, "a cancelled thread does not end\n");
    _exit(EXIT_FAILURE);
}

} // namespace

int main()
{
    pthread_t id, watcher;
    void *end;

    EXPECT(pthread_create(&watcher, nullptr, watch, nullptr) == 0);
    for (int round = 1; round <= 10; round++) {
        EXPECT(pthread_create(&id, nullptr, sets_up, nullptr) == 0);
        EXPECT(pthread_join(id, &end) == 0);
        EXPECT(end == PTHREAD_CANCELED && begun == round && unwound == round);
    }
    begun = unwound = 0;
    bellwire::device device("soft");
    bellwire::comp_channel channel(device);
    for (int round = 1; round <= 10; round++) {
        EXPECT(pthread_create(&id, nullptr, waits, &channel) == 0);
        while (begun != round)
            usleep(100);
        EXPECT(pthread_cancel(id) == 0);
        channel.wake();
        EXPECT(pthread_join(id, &end) == 0);
        EXPECT(end == PTHREAD_CANCELED && unwound == round);
        channel.wake(false);
    }

    /* Each object that can be waited for. */
    device.async_wake();
    EXPECT(!device.get_async_event());
    bellwire::cm_channel cm(device);
    cm.wake();
    EXPECT(!cm.get_event(UINT32_MAX));
    bellwire::pd pd(device);
    bellwire::listener links(device, "127.0.0.1", 0, 4);
    links.wake();
    EXPECT(!bellwire::reliable_link::accept(links, pd, UINT32_MAX));
    bellwire::tcp_listener tcp("127.0.0.1");
    tcp.wake();
    try {
        tcp.accept(UINT32_MAX);
        EXPECT(!"accepted");
    } catch (const bellwire::call_error &error) {
        EXPECT(error.code() == BW_EWOKEN);
    }
    EXPECT(pthread_cancel(watcher) == 0 && pthread_join(watcher, nullptr) == 0);
    return 0;
}
