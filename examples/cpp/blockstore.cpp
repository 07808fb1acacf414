/*
 * The write path of a replicated block device, in C++17: each block goes to two replicas, which are
 * threads here, and is acknowledged when both have it. Faults strike meanwhile: a queue pair breaks,
 * and so do a completion queue of the writer and one of a replica. The links recover, the writing goes
 * on, and in the end checksums show that every acknowledged block is on both replicas.
 *
 * A block is written by an RDMA WRITE of its 4 KiB, and then committed by an RDMA WRITE with
 * immediate data of its record (version and checksum) into the replica's table; the immediate data
 * is the block's number. Requests of a connection are executed in order: a replica that has the
 * commit has the block.
 *
 * A fault's traces, and the remedy for each:
 * - The WRITE may be posted again whatever became of it (BW_REPLAY_ANYWAY): nobody else writes the
 *   block, and this program does not before it was acknowledged.
 * - The commit is posted again only if it was not executed (BW_REPLAY_IF_SAFE). Should it be in doubt,
 *   because the replica lost count, the block and its commit are written once more: a commit of the
 *   same version changes nothing. A program whose commits may not be repeated would ask the replica.
 *
 * Build: c++ -std=c++17 blockstore.cpp $(pkg-config --cflags --libs bellwire) -pthread -o blockstore
 * Run:   ./blockstore
 */
#include <array>
#include <bellwire.hpp>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr uint32_t BLOCK = 4096, BLOCKS = 64, ROUNDS = 40, REPLICAS = 2;
/* Blocks that are being written at a time. */
constexpr uint32_t DEPTH = 16;
/* Receives that a replica has posted: more than commits can be on their way. */
constexpr uint32_t RECEIVES = 64;
/* Milliseconds that the end may take. */
constexpr uint32_t SOON = 10000;

/* What a replica has of a block beside the block. */
struct record {
    uint64_t version, checksum;
};

/* Memory of either side: the blocks, and behind them their records. */
constexpr uint64_t RECORDS = uint64_t{BLOCK} * BLOCKS;
constexpr uint64_t BYTES = RECORDS + sizeof(record) * BLOCKS;

/* FNV-1a. */
uint64_t checksum(const void *bytes, size_t length)
{
    uint64_t sum = 0xcbf29ce484222325;
    for (const auto *at = static_cast<const unsigned char *>(bytes); length--; at++)
        sum = (sum ^ *at) * 0x100000001b3;
    return sum;
}

struct memory {
    memory(const bellwire::pd &pd, uint64_t length)
        : region(pd, length, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE), info(region.query())
    {
    }
    char *bytes(uint64_t offset) const
    {
        return reinterpret_cast<char *>(static_cast<uintptr_t>(info.addr + offset));
    }
    char *block(uint32_t number) const { return bytes(uint64_t{BLOCK} * number); }
    bw_sge sge(uint64_t offset, uint32_t length) const
    {
        return {info.addr + offset, length, info.lkey};
    }

    bellwire::region region;
    bw_region_info info;
};

bw_link_init init_of(const memory &open, uint64_t seed)
{
    bw_link_init init = bellwire::link_init();
    init.memory_addr = open.info.addr;
    init.memory_length = open.info.length;
    init.memory_rkey = open.info.rkey;
    init.seed = seed;
    return init;
}

/* A replica: it posts receives for the commits. */
class replica {
public:
    explicit replica(const bellwire::pd &pd) : memory_(pd, BYTES) {}

    const memory &store() const { return memory_; }

    /* Until the writer closes the link. */
    void serve(bellwire::reliable_link link)
    {
        for (uint32_t count = 0; count < RECEIVES; count++)
            receive(link);
        std::array<bw_link_wc, 16> wcs;
        while (link.state() <= BW_LINK_READY) {
            const int count = bellwire::check(link.poll(wcs.data(), wcs.size()), "poll");
            for (int at = 0; at < count; at++)
                missing_ += wcs[at].outcome == BW_OUTCOME_EXECUTED;
            /* While it recovers nothing can be posted. */
            while (missing_ && link.state() == BW_LINK_READY)
                receive(link);
            if (count == 0)
                std::this_thread::yield();
        }
        if (link.state() == BW_LINK_GAVE_UP)
            std::printf("a replica's link has ended: %s\n", link.query().why);
        link.drain(SOON, [](const bw_link_wc &) {});
    }

private:
    /* The data goes where the request says: the receive has no memory. */
    void receive(bellwire::reliable_link &link)
    {
        bw_recv_wr wr{};
        bellwire::check(link.post_recv(&wr, 1), "post_recv");
        missing_ -= missing_ > 0;
    }

    memory memory_;
    /* Receives that are to be posted again. */
    uint32_t missing_ = 0;
};

/* The writer's link to a replica. */
struct path {
    bellwire::reliable_link link;
    /* What the replica has opened, once it is connected. */
    uint64_t addr = 0;
    uint32_t rkey = 0;
    /* Blocks that are to be written again. */
    std::vector<uint32_t> again;
    /* Blocks whose WRITE did not end well: the commit behind it does not count. */
    std::array<bool, BLOCKS> unwritten{};
    uint64_t not_executed = 0;
};

/* Beside the block's number in the wr_id of its commit. */
constexpr uint64_t COMMIT = uint64_t{1} << 32;

/* Reports a fault when it is met; the context is the replica's name. */
void met(void *replica, const bw_fault *, const bw_class *what, uint64_t) noexcept
{
    std::printf("%s: %s: %s\n", static_cast<const char *>(replica), what->name, what->text);
}

class writer {
public:
    writer(const bellwire::pd &pd, std::array<bellwire::reliable_link, REPLICAS> links) : memory_(pd, BYTES)
    {
        for (uint32_t at = 0; at < REPLICAS; at++)
            paths_[at].link = std::move(links[at]);
        static char names[REPLICAS][10] = {"replica 0", "replica 1"};
        for (uint32_t at = 0; at < REPLICAS; at++)
            paths_[at].link.on_fault(met, names[at]);
        for (path &path : paths_)
            while (path.link.state() != BW_LINK_READY)
                poll(path);
        for (path &path : paths_) {
            const bw_link_info info = path.link.query();
            if (info.peer_length < BYTES)
                throw std::runtime_error("the replica has opened less memory than it takes");
            path.addr = info.peer_addr;
            path.rkey = info.peer_rkey;
        }
    }

    std::array<path, REPLICAS> &paths() { return paths_; }
    /* The record of a block's last version: all are acknowledged when `run` returns. */
    const record &acknowledged(uint32_t block) const { return acknowledged_[block]; }

    void run()
    {
        const uint32_t writes = BLOCKS * ROUNDS;
        uint32_t begun = 0, ended = 0, in_flight = 0;
        while (ended < writes) {
            /* A block is free when its last version was acknowledged. */
            while (begun < writes && in_flight < DEPTH && !waits_for_[begun % BLOCKS]) {
                begin(begun % BLOCKS, begun / BLOCKS + 1);
                begun++;
                in_flight++;
            }
            for (path &path : paths_) {
                poll(path);
                std::vector<uint32_t> again;
                again.swap(path.again);
                for (const uint32_t block : again)
                    post(path, block);
            }
            ended += done_;
            in_flight -= done_;
            done_ = 0;
        }
    }

private:
    uint64_t record_at(uint32_t block) const { return RECORDS + sizeof(record) * block; }

    void begin(uint32_t block, uint64_t version)
    {
        auto *bytes = memory_.block(block);
        for (uint32_t at = 0; at < BLOCK; at += sizeof version) {
            const uint64_t word = (version << 32 | block) * 0x9e3779b97f4a7c15 + at;
            std::memcpy(bytes + at, &word, sizeof word);
        }
        const record made{version, checksum(bytes, BLOCK)};
        std::memcpy(memory_.bytes(record_at(block)), &made, sizeof made);
        waits_for_[block] = REPLICAS;
        for (path &path : paths_)
            post(path, block);
    }

    /* The block, and its commit behind it; later when the link recovers or the queue is full. */
    void post(path &path, uint32_t block)
    {
        if (path.link.state() != BW_LINK_READY)
            return path.again.push_back(block);
        /* Unsignalled: it is reported only if it does not end well. */
        const bw_sge data = memory_.sge(uint64_t{BLOCK} * block, BLOCK);
        int code = path.link.post_write(block, data, path.addr + uint64_t{BLOCK} * block, path.rkey,
                                        0, BW_REPLAY_ANYWAY);
        if (code == BW_OK) {
            const bw_sge entry = memory_.sge(record_at(block), sizeof(record));
            bw_send_wr commit{};
            commit.wr_id = COMMIT | block;
            commit.sg_list = &entry;
            commit.num_sge = 1;
            commit.opcode = BW_WR_RDMA_WRITE_WITH_IMM;
            commit.send_flags = BW_SEND_SIGNALED;
            commit.imm_data = block;
            commit.remote_addr = path.addr + record_at(block);
            commit.rkey = path.rkey;
            code = path.link.post_send(&commit, 1, BW_REPLAY_IF_SAFE);
        }
        /* A WRITE without its commit does no harm: it is written again. */
        if (code == BW_EFULL || code == BW_ERECOVERING)
            path.again.push_back(block);
        else
            bellwire::check(code, "post");
    }

    void poll(path &path)
    {
        std::array<bw_link_wc, 16> wcs;
        const int count = bellwire::check(path.link.poll(wcs.data(), wcs.size()), "poll");
        for (int at = 0; at < count; at++) {
            const bw_link_wc &one = wcs[at];
            const auto block = static_cast<uint32_t>(one.wr_id);
            const bool commit = one.wr_id & COMMIT;
            if (one.outcome != BW_OUTCOME_EXECUTED) {
                std::printf("%s of block %u: %s%s%s\n", commit ? "commit" : "WRITE", block,
                            bw_outcome_str(one.outcome), one.doubt ? ": " : "",
                            one.doubt ? bw_doubt_str(one.doubt) : "");
                path.not_executed++;
            }
            if (!commit) {
                path.unwritten[block] = true;
            } else if (std::exchange(path.unwritten[block], false) ||
                       one.outcome != BW_OUTCOME_EXECUTED) {
                path.again.push_back(block);
            } else if (--waits_for_[block] == 0) {
                std::memcpy(&acknowledged_[block], memory_.bytes(record_at(block)), sizeof(record));
                done_++;
            }
        }
        if (path.link.state() > BW_LINK_READY)
            throw std::runtime_error(std::string("a link has ended: ") + path.link.query().why);
        if (count == 0)
            std::this_thread::yield();
    }

    memory memory_;
    std::array<path, REPLICAS> paths_;
    std::array<record, BLOCKS> acknowledged_{};
    /* Replicas whose commit of the block's version is still to come. */
    std::array<uint32_t, BLOCKS> waits_for_{};
    uint32_t done_ = 0;
};

bw_soft_step fault(uint64_t entry, bw_soft_fault what, uint64_t number)
{
    bw_soft_step step{};
    step.trigger = BW_AT_REQUEST;
    step.at = entry;
    step.fault = what;
    step.value = number;
    return step;
}

/* Joined when it ends. */
struct running {
    ~running()
    {
        if (thread.joinable())
            thread.join();
    }
    std::thread thread;
};

int run()
{
    auto config = bellwire::sized<bw_soft_config>();
    const bellwire::device device(config);
    const bellwire::pd pd(device);
    std::array<replica, REPLICAS> replicas{replica(pd), replica(pd)};
    std::array<bellwire::reliable_link, REPLICAS> ours, theirs;
    for (uint32_t at = 0; at < REPLICAS; at++) {
        bw_link_init init = bellwire::link_init();
        init.seed = 2 * at;
        auto made =
            bellwire::reliable_link::pair(pd, init, pd, init_of(replicas[at].store(), 2 * at + 1));
        ours[at] = std::move(made.first);
        theirs[at] = std::move(made.second);
    }

    /* The plan. The device counts the requests of all queue pairs. */
    const std::array<bw_soft_step, 3> script{
        fault(1000, BW_FAULT_QP_FATAL, ours[0].query().qp_num),
        fault(3000, BW_FAULT_CQ_OVERRUN, ours[1].query().cqn),
        fault(5000, BW_FAULT_CQ_OVERRUN, theirs[0].query().cqn),
    };
    device.soft_inject(script.data(), script.size());

    /* Recoveries of each link that this makes, at least. */
    const std::array<uint64_t, REPLICAS> expected{2, 1};

    /* Behind the writer, with whose links those of the replicas end. */
    std::array<running, REPLICAS> threads;
    for (uint32_t at = 0; at < REPLICAS; at++)
        threads[at].thread = std::thread(&replica::serve, &replicas[at], std::move(theirs[at]));
    int status = 0;
    writer writer(pd, std::move(ours));
    writer.run();
    for (uint32_t at = 0; at < REPLICAS; at++) {
        path &path = writer.paths()[at];
        const bw_link_counters counters = path.link.counters();
        /* The first connection counts as one. */
        const uint64_t recovered = counters.recovered - 1;
        std::printf("replica %u: %" PRIu64 " recoveries, the longest %" PRIu64
                    " us; %" PRIu64 " requests posted again, %" PRIu64 " reported to the program\n",
                    at, recovered, counters.longest_ns / 1000, counters.replayed,
                    path.not_executed);
        if (recovered < expected[at]) {
            std::printf("not every fault has struck\n");
            status = 1;
        }
        path.link.drain(SOON, [](const bw_link_wc &) {});
    }
    for (running &replica : threads)
        replica.thread.join();

    uint32_t good = 0;
    for (const replica &replica : replicas)
        for (uint32_t block = 0; block < BLOCKS; block++) {
            record there;
            std::memcpy(&there, replica.store().bytes(RECORDS + sizeof(record) * block),
                        sizeof there);
            const record &ours = writer.acknowledged(block);
            good += ours.version == ROUNDS && there.version == ours.version &&
                    there.checksum == ours.checksum &&
                    checksum(replica.store().block(block), BLOCK) == ours.checksum;
        }
    std::printf("%u writes acknowledged; %u of %u blocks are what was acknowledged last\n",
                BLOCKS * ROUNDS, good, BLOCKS * REPLICAS);
    if (good != BLOCKS * REPLICAS)
        status = 1;
    return status;
}

} // namespace

int main()
{
    try {
        return run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
