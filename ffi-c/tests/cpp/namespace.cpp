/*
 * `using namespace bellwire` beside the headers of the C library that have the shortest names, link(2)
 * and error(3) among them: no name is ambiguous. No inline function has a cast as in C.
 */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wold-style-cast"
#include <bellwire.hpp>
#pragma GCC diagnostic pop
#include <cstdio>
#include <cstdlib>
#include <error.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <search.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

using namespace bellwire;

#define EXPECT(what)                                                                              \
    do {                                                                                          \
        if (!(what))                                                                              \
            error(EXIT_FAILURE, 0, "line %d: %s", __LINE__, #what);                               \
    } while (0)

int main()
{
    /* The C library's. */
    EXPECT(link("/no such file", "/nor this") == -1);

    device soft(sized<bw_soft_config>());
    pd domain(soft);
    auto [one, other] = reliable_link::pair(domain, link_init(), domain, link_init());
    EXPECT(one && other);
    reliable_link moved = std::move(one);
    EXPECT(moved && !one);
    try {
        device none("no such device");
        EXPECT(!"it is open");
    } catch (const call_error &failed) {
        EXPECT(failed.code() == BW_ENODEV);
    }
    return 0;
}
