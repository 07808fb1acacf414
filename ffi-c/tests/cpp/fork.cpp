/* Static objects of the wrappers in a child of fork(): exit() destroys them there without effect, and their
 * parent goes on. */
#include <bellwire.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace bw = bellwire;

#define EXPECT(what)                                                                              \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            std::fprintf(stderr, "%s:%d: " #what " (%s)\n", __FILE__, __LINE__, bw_last_error()); \
            std::exit(EXIT_FAILURE);                                                              \
        }                                                                                         \
    } while (0)

/* A child has none of its parent's threads, and nothing that refers to the memory on their stacks: the sanitizer
 * would take that for leaks. */
extern "C" const char *__asan_default_options() { return "detect_leaks=0"; }

namespace {

struct end {
    end(const bw::device &device, const bw::pd &pd, bw_qp_init_attr attr = bw::qp_init_attr())
        : memory(pd, 4096, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE),
          cq(device, bw::entries_of(attr).sum()), qp(pd, cq, cq, attr), info(memory.query())
    {
        qp.init();
    }

    bw::region memory;
    bw::cq cq;
    bw::qp qp;
    bw_region_info info;
};

/* Destroyed by exit(), in the opposite order. */
bw::device &device()
{
    static bw::device opened("soft:cpp-fork-" + std::to_string(getpid()));
    return opened;
}

bw::pd &pd()
{
    static bw::pd made(device());
    return made;
}

end &one()
{
    static end made(device(), pd());
    return made;
}

end &other()
{
    static end made(device(), pd());
    return made;
}

void goes_on()
{
    static uint64_t round;

    round++;
    int posted = bw_post_write_inline(one().qp.get(), round, &round, 8, other().info.addr,
                                      other().info.rkey, BW_SEND_SIGNALED);
    EXPECT(posted == BW_OK && bw_ring_sq(one().qp.get()) == BW_OK);
    bw_wc wc;
    while (one().cq.poll_one(wc) == 0) {
    }
    EXPECT(wc.status == BW_WC_SUCCESS && *reinterpret_cast<uint64_t *>(other().info.addr) == round);
}

} // namespace

int main()
{
    one().qp.connect(other().qp.endpoint());
    other().qp.connect(one().qp.endpoint());
    goes_on();
    for (int child = 0; child < 4; child++) {
        pid_t pid = fork();
        EXPECT(pid >= 0);
        if (pid == 0) {
            alarm(60);
            bool refused = false;
            try {
                bw::pd none(device());
            } catch (const bw::call_error &error) {
                refused = error.code() == BW_EFORK;
            }
            EXPECT(refused);
            /* Of its own, beside those that exit() destroys. */
            bw::device again("soft");
            bw::pd domain(again);
            end here(again, domain);
            std::exit(EXIT_SUCCESS);
        }
        goes_on();
        int status;
        EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
        goes_on();
    }
    return 0;
}
