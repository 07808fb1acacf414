/*
 * Two queue pairs of one process, a WRITE and a SEND between them, in C++17.
 *
 * Build: c++ -std=c++17 hello.cpp $(pkg-config --cflags --libs bellwire) -o hello
 * Run:   ./hello [device]
 */
#include <bellwire.hpp>
#include <cstdio>
#include <cstring>

namespace {

/* One end of the connection. The last declared member goes first. */
struct end {
    end(const bellwire::device &device, const bellwire::pd &pd)
        : memory(pd, 4096, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE),
          cq(device, bellwire::entries_of(bellwire::qp_init_attr()).sum()), qp(pd, cq, cq),
          info(memory.query())
    {
        qp.init();
    }
    char *bytes(size_t offset) const { return reinterpret_cast<char *>(info.addr) + offset; }
    bw_sge sge(uint32_t offset, uint32_t length) const
    {
        return {info.addr + offset, length, info.lkey};
    }
    /* The next completion, which has to be a good one. */
    bw_wc wait()
    {
        bw_wc wc;
        while (bellwire::check(cq.poll_one(wc), "bw_poll_one") == 0)
            ;
        if (wc.status != BW_WC_SUCCESS)
            throw std::runtime_error("a request failed: status " + std::to_string(wc.status));
        return wc;
    }

    bellwire::region memory;
    bellwire::cq cq;
    bellwire::qp qp;
    bw_region_info info;
};

void run(const char *name)
{
    const bellwire::device device(name);
    const bellwire::pd pd(device);
    end a(device, pd), b(device, pd);
    a.qp.connect(b.qp.endpoint());
    b.qp.connect(a.qp.endpoint());

    /* A WRITE goes to the address that it names; b's program does nothing for it. Posting answers a code. */
    static const char written[] = "written without asking";
    bellwire::check(a.qp.post_write_inline(1, written, sizeof written, b.info.addr, b.info.rkey,
                                           BW_SEND_SIGNALED),
                    "post_write_inline");
    bellwire::check(a.qp.ring_sq(), "ring_sq");
    a.wait();
    std::printf("b has: %s\n", b.bytes(0));

    /* A SEND goes where the peer's next receive says. */
    static const char sent[] = "sent to whoever receives";
    bellwire::check(b.qp.post_recv_one(2, b.sge(1024, 1024)), "post_recv_one");
    bellwire::check(b.qp.ring_rq(), "ring_rq");
    std::memcpy(a.bytes(0), sent, sizeof sent);
    bellwire::check(a.qp.post_send_one(3, a.sge(0, sizeof sent), BW_SEND_SIGNALED),
                    "post_send_one");
    bellwire::check(a.qp.ring_sq(), "ring_sq");
    a.wait();
    const bw_wc wc = b.wait();
    std::printf("b received %u bytes: %s\n", wc.byte_len, b.bytes(1024));
}

} // namespace

int main(int argc, char **argv)
{
    try {
        run(argc > 1 ? argv[1] : "auto");
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
