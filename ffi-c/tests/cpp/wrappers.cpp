/* Each class of bellwire.hpp, and what is promised of all of them. */
#include <bellwire.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace bw = bellwire;

#define EXPECT(what)                                                                              \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            std::fprintf(stderr, "%s:%d: " #what " (%s)\n", __FILE__, __LINE__, bw_last_error()); \
            std::exit(EXIT_FAILURE);                                                              \
        }                                                                                         \
    } while (0)
#define OK(call) EXPECT((call) == BW_OK)

namespace {

/* The code that is thrown; BW_OK when nothing is. */
template <class F> int thrown(F call)
{
    try {
        call();
        return BW_OK;
    } catch (const bw::call_error &error) {
        EXPECT(std::strlen(error.what()) > 0);
        return error.code();
    }
}

bw_soft_config config(uint32_t clock)
{
    auto made = bw::sized<bw_soft_config>();
    made.clock = clock;
    return made;
}

struct end {
    end(const bw::device &device, const bw::pd &pd, bw_qp_init_attr attr = bw::qp_init_attr())
        : memory(pd, 4096,
                 BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE | BW_ACCESS_REMOTE_READ |
                     BW_ACCESS_MW_BIND),
          cq(device, bw::entries_of(attr).sum()), qp(pd, cq, cq, attr), info(memory.query())
    {
        qp.init();
    }
    bw_sge sge(uint32_t offset, uint32_t length) const
    {
        return {info.addr + offset, length, info.lkey};
    }
    char *bytes(size_t offset) const { return reinterpret_cast<char *>(info.addr) + offset; }
    bw_wc expect_wc(uint64_t wr_id, uint32_t status = BW_WC_SUCCESS)
    {
        bw_wc wc;
        EXPECT(cq.poll_one(wc) == 1);
        EXPECT(wc.wr_id == wr_id && wc.status == status);
        return wc;
    }

    bw::region memory;
    bw::cq cq;
    bw::qp qp;
    bw_region_info info;
};

bw_qp_init_attr of_type(uint32_t qp_type)
{
    auto attr = bw::qp_init_attr();
    attr.qp_type = qp_type;
    return attr;
}

void connect(end &a, end &b)
{
    a.qp.connect(b.qp.endpoint());
    b.qp.connect(a.qp.endpoint());
}

bw_send_wr send_of(uint64_t wr_id, const bw_sge &sge)
{
    bw_send_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = BW_WR_SEND;
    wr.send_flags = BW_SEND_SIGNALED;
    return wr;
}

/* Moves, ends, and the order of them. */
void handles()
{
    static_assert(!std::is_copy_constructible<bw::qp>::value, "");
    static_assert(std::is_nothrow_move_constructible<bw::qp>::value, "");
    static_assert(std::is_nothrow_move_assignable<bw::qp>::value, "");
    EXPECT(thrown([] { bw::device("no such device"); }) == BW_ENODEV);
    EXPECT(thrown([] { bw::device(std::string("no such device")); }) == BW_ENODEV);

    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    bw::pd moved(std::move(pd));
    EXPECT(!pd && moved && pd.destroy() == BW_OK);
    EXPECT(thrown([&] { bw::cq(device, 0u); }) == BW_EINVAL);
    EXPECT(device.destroy() == BW_EBUSY && device);
    pd = std::move(moved);
    bw::pd &same = pd;
    pd = std::move(same);
    EXPECT(pd);
    pd = bw::pd(device);
    bw_pd *raw = pd.release();
    EXPECT(!pd && raw != nullptr);
    pd = bw::pd(raw);
    EXPECT(pd.get() == raw && pd.destroy() == BW_OK && !pd);
    EXPECT(device.destroy() == BW_OK && !device);
    /* An empty one is a NULL: an error, not a crash. */
    bw_wc wc;
    EXPECT(bw::cq().poll_one(wc) == BW_ENULL && bw::qp().ring_sq() == BW_ENULL);
    EXPECT(thrown([] { bw::qp().init(); }) == BW_ENULL);
}

void devices()
{
    const auto all = bw::device::list();
    EXPECT(!all.empty() && bw::device(all[0].name));
    bw::device device(config(BW_CLOCK_VIRTUAL));
    EXPECT(device.query().max_qp > 0);
    EXPECT(device.query_port(1).state == BW_PORT_ACTIVE);
    EXPECT(thrown([&] { device.query_port(0); }) == BW_EINVAL);
    EXPECT(device.query_gid(1, 0) != bw::gid{});
    EXPECT(device.query_pkey(1, 0) == 0xffff);
    device.progress();
    EXPECT(device.provider() == BW_PROVIDER_SOFT);
    EXPECT(device.choice().empty() && !bw::device("auto").choice().empty());
    EXPECT(thrown([] { bw::device::join("no/name", config(BW_CLOCK_REAL)); }) == BW_EINVAL);
    EXPECT(thrown([] { bw::device::join("a", config(BW_CLOCK_VIRTUAL)); }) == BW_EINVAL);
    bw::device again = device.reopen();
    EXPECT(again && again.get() != device.get());

    /* Events and faults. */
    EXPECT(device.async_fd() >= 0);
    device.async_set_nonblocking(true);
    EXPECT(!device.get_async_event());
    device.soft_set_port(false);
    {
        auto event = device.get_async_event();
        EXPECT(event && event->info().event_type == BW_EVENT_PORT_ERR);
        EXPECT(std::strlen(event->type_str()) > 0);
    }
    device.soft_set_port(true);
    EXPECT(device.get_async_event()->info().element == BW_ELEMENT_PORT);
    bw_soft_step step{};
    step.trigger = BW_AFTER;
    step.at = 1000;
    step.fault = BW_FAULT_PORT_DOWN;
    device.soft_inject(&step, 1);
    device.soft_clear();
    device.advance(2000);
    EXPECT(!device.get_async_event());
    step = bw_soft_step{};
    step.fault = BW_FAULT_DROP_REQUEST;
    device.soft_inject_seeded(7, 100, 2, &step, 1);
    device.soft_clear();
    device.soft_raise(BW_EVENT_PORT_ACTIVE, 1);
    EXPECT(device.get_async_event());
}

void connection()
{
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    end a(device, pd), b(device, pd);
    EXPECT(a.qp.state() == BW_QPS_INIT);
    connect(a, b);
    EXPECT(a.qp.state() == BW_QPS_RTS && a.cq.query().overrun == 0);
    EXPECT(a.qp.monitor().queues().send_slots != 0);
    a.qp.count();
    EXPECT(a.qp.data_in_order(BW_WR_RDMA_WRITE));

    static uint64_t word = 1;
    bw::mr word_mr(pd, &word, sizeof word, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_READ);
    const bw_mr_info word_info = word_mr.query();
    EXPECT(word_info.addr == reinterpret_cast<uintptr_t>(&word));

    OK(b.qp.post_recv_one(1, b.sge(0, 64)));
    OK(b.qp.ring_rq());
    const bw_sge place = b.sge(64, 64);
    bw_recv_wr receive{};
    receive.wr_id = 2;
    receive.sg_list = &place;
    receive.num_sge = 1;
    OK(b.qp.post_recv(&receive, 1));

    std::memcpy(a.bytes(0), "by address", 11);
    OK(a.qp.post_write(10, a.sge(0, 11), b.info.addr + 128, b.info.rkey, BW_SEND_SIGNALED));
    OK(a.qp.post_write_inline(11, "inline", 7, b.info.addr + 256, b.info.rkey, BW_SEND_SIGNALED));
    OK(a.qp.post_read(12, a.sge(64, 8), word_info.addr, word_info.rkey, BW_SEND_SIGNALED));
    OK(a.qp.post_send_one(13, a.sge(0, 11), BW_SEND_SIGNALED));
    OK(a.qp.post_send_inline(14, "sent", 5, BW_SEND_SIGNALED));
    OK(a.qp.ring_sq());
    bw_wc wcs[8];
    EXPECT(a.cq.poll(wcs, 8) == 5);
    EXPECT(std::strcmp(b.bytes(128), "by address") == 0 && std::strcmp(b.bytes(256), "inline") == 0);
    EXPECT(std::memcmp(a.bytes(64), &word, sizeof word) == 0);
    EXPECT(b.expect_wc(1).byte_len == 11 && b.expect_wc(2).byte_len == 5);
    EXPECT(std::strcmp(b.bytes(64), "sent") == 0);

    const bw_sge data = a.sge(0, 8);
    bw_send_wr bad = send_of(15, data);
    bad.opcode = 200;
    const bw_send_wr *refused = nullptr;
    EXPECT(a.qp.post_send(&bad, 1, &refused) == BW_EOPCODE && refused == &bad);

    /* A window of type 1. */
    bw::mw window(pd, BW_MW_TYPE_1);
    bw_mw_bind_info part{};
    part.addr = b.info.addr + 512;
    part.length = 64;
    part.lkey = b.info.lkey;
    part.access = BW_ACCESS_REMOTE_WRITE;
    OK(b.qp.post_bind(window, 20, part, BW_SEND_SIGNALED));
    b.expect_wc(20);
    OK(a.qp.post_write_inline(21, "window", 7, part.addr, window.rkey(), BW_SEND_SIGNALED));
    OK(a.qp.ring_sq());
    a.expect_wc(21);
    EXPECT(std::strcmp(b.bytes(512), "window") == 0);
    OK(window.destroy());

    /* Attributes, the error state, and what RESET reports. */
    auto attr = a.qp.query();
    EXPECT(attr.qp_type == BW_QPT_RC && attr.qp_state == BW_QPS_RTS);
    attr.min_rnr_timer = 7;
    a.qp.modify(attr, BW_QP_MIN_RNR_TIMER);
    EXPECT(a.qp.query().min_rnr_timer == 7);
    OK(a.qp.post_recv_one(30, a.sge(0, 8)));
    OK(a.qp.ring_rq());
    a.qp.to_error();
    a.expect_wc(30, BW_WC_WR_FLUSH_ERR);
    OK(b.qp.post_recv_one(31, b.sge(0, 8)));
    OK(b.qp.ring_rq());
    uint64_t cleared = 0;
    b.qp.reset([&](uint64_t wr_id) { cleared += wr_id; });
    EXPECT(cleared == 31);
    b.qp.reset();
    EXPECT(b.qp.state() == BW_QPS_RESET);
}

/* Blocks: their owners, and use by requests. */
void slabs()
{
    static_assert(!std::is_copy_constructible<bw::block>::value, "");
    static_assert(std::is_nothrow_move_constructible<bw::block>::value, "");
    static_assert(std::is_nothrow_move_assignable<bw::block>::value, "");
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    end a(device, pd), b(device, pd);
    connect(a, b);
    const std::vector<bw_slab_class> classes{{64, 2}, {4096, 1}};
    bw::region memory(pd, bw::slab::bytes(classes), BW_ACCESS_LOCAL_WRITE);
    EXPECT(thrown([&] { bw::slab(memory, {{100, 1}}); }) == BW_EINVAL);
    bw::slab slab(memory, classes);
    EXPECT(thrown([&] { bw::slab(memory, classes); }) == BW_EBUSY);
    EXPECT(memory.destroy() == BW_EBUSY && slab.query().blocks == 3);
    {
        bw::block one, two, three;
        EXPECT(!one && one.return_block() == BW_OK);
        OK(slab.take(8, one));
        OK(slab.take(64, two));
        EXPECT(one && one.length() == 64 && one.sge(100).length == 64 && one.sge(5).length == 5);
        EXPECT(slab.take(1, three) == BW_ENOBLOCK && !three);
        EXPECT(slab.take(4097, three) == BW_EINVAL && slab.query().outstanding == 2);
        /* Moved: still one owner. What there was goes back. */
        three = std::move(one);
        EXPECT(!one && three && slab.query().outstanding == 2);
        two = std::move(three);
        EXPECT(slab.query().outstanding == 1);
        bw::block &same = two;
        two = std::move(same);
        bw::block four(std::move(two));
        EXPECT(!two && four && slab.destroy() == BW_EBUSY && slab);
        std::memcpy(four.data(), "of a slab", 10);
        OK(a.qp.post_write(1, four.sge(10), b.info.addr, b.info.rkey, BW_SEND_SIGNALED));
        OK(a.qp.ring_sq());
        a.expect_wc(1);
        EXPECT(std::strcmp(b.bytes(0), "of a slab") == 0);
        /* Taken into the place of another, which goes back. */
        OK(slab.take(4096, four));
        EXPECT(four.lkey() == memory.query().lkey && slab.query().outstanding == 1);
        const bw_block raw = four.release();
        EXPECT(!four && raw.length == 4096);
        four = bw::block(slab.get(), raw);
        EXPECT(four.addr() == raw.addr);
        /* Its slab may be moved meanwhile. */
        bw::slab moved(std::move(slab));
        OK(four.return_block());
        EXPECT(!four);
        OK(moved.take(1, four));
        slab = std::move(moved);
    }
    EXPECT(slab.query().outstanding == 0);
    {
        bw::slab_cache cache(slab, 64);
        bw::block one, two, three;
        EXPECT(thrown([&] { bw::slab_cache(slab, 4097); }) == BW_EINVAL);
        OK(cache.take(one));
        OK(cache.take(two));
        EXPECT(one && one.length() == 64 && cache.take(three) == BW_ENOBLOCK && !three);
        OK(cache.put(one));
        OK(cache.put(one));
        EXPECT(!one && slab.destroy() == BW_EBUSY);
        EXPECT(bw::slab_cache().put(two) == BW_ENULL && two);
    }
    EXPECT(slab.query().outstanding == 0);
    bw::block none;
    EXPECT(bw::slab().take(1, none) == BW_ENULL);
}

void datagrams()
{
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    end a(device, pd, of_type(BW_QPT_UD)), b(device, pd, of_type(BW_QPT_UD));
    a.qp.start();
    b.qp.start();
    bw_ah_attr path{};
    path.dlid = static_cast<uint16_t>(device.query_port(1).lid);
    path.port_num = 1;
    bw::ah to_b(pd, path);
    EXPECT(to_b.query().dlid == path.dlid);
    OK(b.qp.post_recv_one(1, b.sge(0, 128)));
    OK(b.qp.ring_rq());
    const bw_sge data = a.sge(0, 8);
    bw_send_wr send = send_of(2, data);
    send.ah = to_b.get();
    send.remote_qpn = b.qp.query().qp_num;
    send.remote_qkey = bw::connect_attr().qkey;
    OK(a.qp.post_send(&send, 1));
    a.expect_wc(2);
    const bw_wc wc = b.expect_wc(1);
    EXPECT(bw::ah::attr_from_wc(wc, b.bytes(0), 1).dlid == path.dlid);
    bw::ah back(pd, wc, b.bytes(0), 1);
    EXPECT(back);

    bw::gid group{};
    EXPECT(thrown([&] { a.qp.attach_mcast(group, 0xc001); }) == BW_EINVAL);
    group[0] = 0xff;
    group[1] = 0x0e;
    group[15] = 1;
    a.qp.attach_mcast(group, 0xc001);
    a.qp.detach_mcast(group, 0xc001);
    EXPECT(thrown([&] { a.qp.detach_mcast(group, 0xc001); }) == BW_EINVAL);
}

void shared_queues()
{
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    bw::srq srq(pd);
    EXPECT(srq.query().max_wr > 0);
    srq.modify(1);
    EXPECT(srq.query().srq_limit == 1);
    auto on_srq = bw::qp_init_attr();
    on_srq.srq = srq.get();
    {
        end a(device, pd), b(device, pd, on_srq);
        connect(a, b);
        const bw_sge place = b.sge(0, 64);
        bw_recv_wr receives[2] = {};
        for (uint64_t n = 0; n < 2; n++) {
            receives[n].wr_id = 100 + n;
            receives[n].sg_list = &place;
            receives[n].num_sge = 1;
        }
        OK(srq.post_recv(receives, 2));
        OK(a.qp.post_send_inline(1, "x", 1, BW_SEND_SIGNALED));
        OK(a.qp.ring_sq());
        a.expect_wc(1);
        b.expect_wc(100);
        EXPECT(srq.destroy([](uint64_t) {}) == BW_EBUSY && srq);
    }
    uint64_t cleared = 0;
    OK(srq.destroy([&](uint64_t wr_id) { cleared += wr_id; }));
    EXPECT(cleared == 101 && !srq && srq.destroy([](uint64_t) {}) == BW_OK);

    /* XRC. */
    end initiator(device, pd, of_type(BW_QPT_XRC_SEND));
    bw::cq arrivals(device, 1024u);
    bw::xrcd domain(device, 0, BW_XRCD_CREATE);
    bw::xrcd same(device, 0, BW_XRCD_OPEN);
    bw::xrcd another(device);
    bw::xrc_target created(domain);
    bw::xrc_target target(same, created.endpoint().qp_num);
    bw::srq queue(pd, domain, arrivals);
    target.init();
    target.connect(initiator.qp.endpoint());
    initiator.qp.connect(target.endpoint());
    auto attr = target.query();
    EXPECT(attr.qp_type == BW_QPT_XRC_RECV && attr.qp_state == BW_QPS_RTS);
    attr.min_rnr_timer = 9;
    target.modify(attr, BW_QP_MIN_RNR_TIMER);
    const bw_sge place = initiator.sge(64, 64), data = initiator.sge(0, 8);
    bw_recv_wr receive{};
    receive.wr_id = 7;
    receive.sg_list = &place;
    receive.num_sge = 1;
    OK(queue.post_recv(&receive, 1));
    bw_send_wr send = send_of(8, data);
    send.remote_srqn = queue.query().srq_num;
    OK(initiator.qp.post_send(&send, 1));
    initiator.expect_wc(8);
    bw_wc wc;
    EXPECT(arrivals.poll_one(wc) == 1 && wc.wr_id == 7);
}

void sleeping()
{
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    bw::comp_channel channel(device);
    channel.set_nonblocking(true);
    EXPECT(channel.fd() >= 0 && !channel.get_cq_event());
    int context = 0;
    const auto entries = bw::entries_of(bw::qp_init_attr()).sum();
    bw::cq cq(device, entries, channel, &context);
    bw::qp qp(pd, cq, cq);
    OK(cq.req_notify(false));
    qp.init();
    OK(qp.post_recv(nullptr, 0));
    bw_recv_wr receive{};
    receive.wr_id = 1;
    OK(qp.post_recv(&receive, 1));
    qp.to_error();
    const auto event = channel.get_cq_event();
    EXPECT(event && event->context == &context && event->cqn == cq.query().cqn);
    EXPECT(thrown([&] { channel.ack_cq_events(event->cqn, 2); }) == BW_EINVAL);
    channel.ack_cq_events(event->cqn, 1);
    bw_wc wc;
    EXPECT(cq.poll_one(wc) == 1 && wc.status == BW_WC_WR_FLUSH_ERR);
    EXPECT(channel.destroy() == BW_EBUSY && channel);
    EXPECT(bw::cq(device, 1u).req_notify(false) == BW_EINVAL);
}

void meeting()
{
    enum { SOON = 10000 };
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    end a(device, pd), b(device, pd);
    const bw::tcp_listener listener("127.0.0.1");
    EXPECT(thrown([&] { listener.accept(1); }) == BW_ETIMEDOUT);
    auto ours = bw::sized<bw_conn_info>();
    ours.mtu = BW_MTU_4096;
    std::thread other([&] {
        bw::tcp_conn conn("127.0.0.1", listener.port(), SOON);
        b.qp.connect(conn.exchange(b.qp.endpoint(), ours, SOON).endpoint);
        conn.barrier(SOON);
    });
    bw::tcp_conn conn = listener.accept(SOON);
    const bw::conn_info peer = conn.exchange(a.qp.endpoint(), ours, SOON);
    EXPECT(peer.endpoint.qp_num == b.qp.query().qp_num && peer.memory.mtu == BW_MTU_4096);
    a.qp.connect(peer.endpoint);
    conn.barrier(SOON);
    other.join();
    EXPECT(thrown([&] { conn.barrier(SOON); }) == BW_ECONN);
}

/* Ids, their events and their devices. */
void managed()
{
    enum { SOON = 10000 };
    bw::device device(config(BW_CLOCK_REAL));
    bw::cm_channel channel(device);
    EXPECT(channel.fd() >= 0 && !channel.get_event(0));
    int context = 0;
    bw::cm_id listener = channel.id(BW_PS_TCP), id = channel.id(BW_PS_TCP, &context);
    EXPECT(thrown([&] { id.device(); }) == BW_ESTATE);
    bw::check(bw_cm_bind(listener.get(), "127.0.0.1", 7), "bw_cm_bind");
    bw::check(bw_cm_listen(listener.get(), 1), "bw_cm_listen");
    bw::check(bw_cm_resolve_addr(id.get(), nullptr, "127.0.0.1", 7, SOON), "bw_cm_resolve_addr");
    const auto event = channel.get_event(SOON);
    EXPECT(event && event->event == BW_CM_EVENT_ADDR_RESOLVED && event->context == &context);
    EXPECT(std::strcmp(id.device().query().name, device.query().name) == 0);
    EXPECT(channel.destroy() == BW_EBUSY && channel);
    EXPECT(thrown([] { bw::cm_channel("none"); }) == BW_ENODEV);
}

/* Links over TCP, and a pair. */
void links()
{
    enum { SOON = 10000 };
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    bw::region memory(
        pd, 4096, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE | BW_ACCESS_REMOTE_READ);
    const bw_region_info info = memory.query();
    auto sge = [&](uint32_t offset, uint32_t length) {
        return bw_sge{info.addr + offset, length, info.lkey};
    };
    auto init = bw::link_init();
    init.memory_addr = info.addr;
    init.memory_length = info.length;
    init.memory_rkey = info.rkey;
    init.dump_entries = 200;
    init.sleeps = 1;
    auto work = [&](bw::reliable_link &a, bw::reliable_link &b) {
        unsigned faults = 0;
        a.on_fault([](void *count, const bw_fault *, const bw_class *,
                      uint64_t) { ++*static_cast<unsigned *>(count); },
                   &faults);
        a.on_recovered(nullptr);
        bw_link_wc reported;
        auto ready = [&] {
            while (a.state() != BW_LINK_READY || b.state() != BW_LINK_READY) {
                EXPECT(a.poll(&reported, 1) == 0);
                EXPECT(b.poll(&reported, 1) == 0);
            }
        };
        OK(b.post_recv_one(1, sge(1024, 64)));
        OK(b.ring_rq());
        ready();
        auto fault = bw::sized<bw_fault>();
        fault.family = BW_FAMILY_EVENT;
        fault.number = BW_EVENT_QP_FATAL;
        a.report(fault);
        ready();
        EXPECT(faults == 1 && a.query().epoch == 2 && a.counters().recovered == 2);
        EXPECT(a.monitor().counters().recovered == 2 && a.monitor().queues().ready == 1);
        EXPECT(a.dump().find("state RTS") != std::string::npos);
        EXPECT(a.dump_failure().find("QP_FATAL") != std::string::npos);
        OK(a.arm());
        EXPECT(a.fd() >= 0 && a.time_left() == UINT64_MAX);
        OK(a.post_write_inline(2, "written", 8, info.addr + 512, info.rkey, 0, BW_REPLAY_ANYWAY));
        OK(a.post_write(3, sge(512, 8), info.addr + 600, info.rkey, 0, BW_REPLAY_ANYWAY));
        OK(a.post_read(4, sge(700, 8), info.addr + 600, info.rkey, 0, BW_REPLAY_IF_SAFE));
        OK(a.post_send_one(5, sge(512, 8), BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
        OK(a.ring_sq());
        while (a.poll(&reported, 1) == 0)
            ;
        EXPECT(reported.wr_id == 5 && reported.outcome == BW_OUTCOME_EXECUTED && reported.retired == 4);
        while (b.poll(&reported, 1) == 0)
            ;
        EXPECT(reported.wr_id == 1 && reported.byte_len == 8 && reported.opcode == BW_WC_RECV);
        EXPECT(std::strcmp(reinterpret_cast<const char *>(info.addr) + 700, "written") == 0);
        OK(b.post_recv_one(6, sge(1024, 64)));
        EXPECT(a.cancel(5) == BW_ENOREQUEST && a.cancel_after(5, 1) == BW_ENOREQUEST);
        EXPECT(b.cancel_recv(1) == BW_ENOREQUEST);
        char message[8] = {0};
        EXPECT(a.end_grant(5) == BW_ENOREQUEST);
        EXPECT(a.post_send_grant(5, sge(512, 8), 0, message, sizeof message, 0) == BW_EINVAL);
        EXPECT(b.cancel_recv_after(6, UINT64_MAX) == BW_CANCEL_REQUESTED);
        unsigned left = 0;
        EXPECT(b.drain(SOON, [&](const bw_link_wc &one) {
            EXPECT(one.wr_id == 6 && one.outcome == BW_OUTCOME_NOT_EXECUTED);
            left++;
        }) == 1);
        EXPECT(left == 1 && b.state() == BW_LINK_CLOSED);
        EXPECT(a.post_send_inline(7, "x", 1, 0, BW_REPLAY_NEVER) != BW_OK || a.ring_sq() == BW_OK);
        a.close(1);
    };
    {
        auto [a, b] = bw::reliable_link::pair(pd, init, pd, init);
        EXPECT(thrown([&a = a] { a.exchange_fd(); }) == BW_EUNSUPPORTED);
        work(a, b);
    }
    {
        bw::listener host(device, "127.0.0.1", 0, 4);
        EXPECT(host.fd() >= 0 && !bw::reliable_link::accept(host, pd, 0, init));
        const bw::connector connector(device, "127.0.0.1", host.port());
        bw::reliable_link a(connector, pd, init);
        std::optional<bw::reliable_link> b;
        bw_link_wc none;
        while (!b) {
            EXPECT(a.poll(&none, 1) == 0);
            b = bw::reliable_link::accept(host, pd, 1, init);
        }
        work(a, *b);
    }
    const bw::tcp_listener listener("127.0.0.1");
    bw::tcp_conn conn("127.0.0.1", listener.port(), SOON), other = listener.accept(SOON);
    bw::reliable_link a(pd, conn, init), b(pd, other, init);
    EXPECT(thrown([&] { conn.barrier(1); }) == BW_ECONN);
    EXPECT(a.exchange_fd() >= 0);
    work(a, b);
}

/* Links on shared queues. */
void link_sets()
{
    enum { SOON = 10000 };
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    auto init = bw::link_set_init();
    init.links = 2;
    init.sleeps = 1;
    bw::link_set set(pd, init);
    bw::region memory(
        pd, 4096, BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE | BW_ACCESS_REMOTE_READ);
    const bw_region_info info = memory.query();
    auto sge = [&](uint32_t offset, uint32_t length) {
        return bw_sge{info.addr + offset, length, info.lkey};
    };
    auto kept = bw::link_init();
    kept.dump_entries = 200;
    auto joined = set.join_pair(kept, pd, bw::link_init());
    const bw_link_id link = joined.first;
    bw::reliable_link &peer = joined.second;
    const bw::tcp_listener listener("127.0.0.1");
    bw::tcp_conn conn("127.0.0.1", listener.port(), SOON), other = listener.accept(SOON);
    const bw_link_id second = set.join(conn);
    bw::reliable_link far(pd, other);
    EXPECT(thrown([&] { set.join_pair(bw::link_init(), pd, bw::link_init()); }) == BW_ELIMIT);
    bw::listener host(device, "127.0.0.1", 0, 4);
    const bw::connector connector(device, "127.0.0.1", host.port());
    bw::link_set another(pd);
    EXPECT(!another.accept(host, 0));
    EXPECT(another.connect(connector) != another.connect(connector));
    EXPECT(set.query().links == 2 && set.query().memory > 0);
    bw_link_wc wc;
    bw_link_set_wc one;
    auto ready = [&](unsigned links) {
        while (links != 0 || peer.state() != BW_LINK_READY || far.state() != BW_LINK_READY) {
            EXPECT(set.poll(&one, 1) == 0);
            EXPECT(peer.poll(&wc, 1) == 0);
            EXPECT(far.poll(&wc, 1) == 0);
            while (auto change = set.next_change())
                links -= change->second == BW_LINK_READY;
        }
    };
    unsigned faults = 0, recoveries = 0;
    set.on_fault(
        link,
        [](void *count, const bw_fault *, const bw_class *, uint64_t) { ++*static_cast<unsigned *>(count); },
        &faults);
    set.on_recovered(
        link, [](void *count, const bw_recovery_report *) { ++*static_cast<unsigned *>(count); }, &recoveries);
    set.set_context(link, &faults);
    EXPECT(set.context<unsigned>(link) == &faults && set.context<unsigned>(second) == nullptr);
    const auto server = std::make_pair(std::string("127.0.0.1"), uint32_t{listener.port()});
    EXPECT(set.peer_addr(second) == server && far.peer_addr().first == server.first);
    ready(2);
    auto fault = bw::sized<bw_fault>();
    fault.family = BW_FAMILY_EVENT;
    fault.number = BW_EVENT_QP_FATAL;
    set.report(link, fault);
    ready(1);
    EXPECT(set.query(link).epoch == 2 && set.query(second).epoch == 1);
    EXPECT(set.counters(link).recovered == 2);
    EXPECT(set.monitor(link).counters().recovered == 2 && set.monitor().queues().links == 2);
    EXPECT(faults == 1 && recoveries >= 1);
    EXPECT(set.dump(link).find("state RTS") != std::string::npos);
    EXPECT(set.dump_failure(link).find("QP_FATAL") != std::string::npos);
    OK(set.arm());
    EXPECT(set.fd() >= 0 && set.time_left() == UINT64_MAX);
    auto wait = bw::wait_init();
    EXPECT(wait.timeout_ns == UINT64_MAX && wait.spin_ns != 0);
    wait.timeout_ns = 1000000;
    EXPECT(set.wait(&one, 1, wait) == 0);
    EXPECT(peer.wait(&wc, 1) == BW_EUNSUPPORTED);
    OK(peer.post_recv_one(1, sge(1024, 64)));
    OK(peer.ring_rq());
    OK(set.post_write_inline(link, 2, "written", 8, info.addr + 512, info.rkey, 0, BW_REPLAY_ANYWAY));
    OK(set.post_write(link, 3, sge(512, 8), info.addr + 600, info.rkey, 0, BW_REPLAY_ANYWAY));
    OK(set.post_read(link, 4, sge(700, 8), info.addr + 600, info.rkey, 0, BW_REPLAY_IF_SAFE));
    OK(set.post_send_one(link, 5, sge(512, 8), BW_SEND_SIGNALED, BW_REPLAY_IF_SAFE));
    OK(set.ring_sq(link));
    while (set.wait(&one, 1) == 0)
        ;
    EXPECT(!set.message(one));
    EXPECT(one.link == link && one.wc.wr_id == 5 && one.wc.outcome == BW_OUTCOME_EXECUTED);
    EXPECT(one.wc.retired == 4);
    EXPECT(std::strcmp(reinterpret_cast<const char *>(info.addr) + 700, "written") == 0);
    OK(set.post_recv_one(link, 6, sge(1024, 64)));
    OK(set.ring_rq(link));
    EXPECT(set.cancel(link, 5) == BW_ENOREQUEST && set.cancel_after(link, 5, 1) == BW_ENOREQUEST);
    EXPECT(set.cancel_recv(link, 1) == BW_ENOREQUEST);
    char message[8] = {0};
    EXPECT(set.end_grant(link, 5) == BW_ENOREQUEST);
    EXPECT(set.post_send_grant(link, 5, sge(512, 8), 0, message, sizeof message, 0) == BW_EINVAL);
    EXPECT(set.cancel_recv_after(link, 6, UINT64_MAX) == BW_CANCEL_REQUESTED);
    EXPECT(set.post_send_inline(link, 7, "x", 1, 99, BW_REPLAY_NEVER) == BW_EINVAL);
    set.close(second, 1);
    unsigned left = 0;
    EXPECT(set.drain(SOON, [&](const bw_link_set_wc &last) {
        EXPECT(last.link == link && last.wc.outcome == BW_OUTCOME_NOT_EXECUTED);
        left++;
    }) == 1);
    EXPECT(left == 1);
    set.remove(second);
    EXPECT(set.ring_sq(second) == BW_ENOLINK);
    EXPECT(thrown([&] { set.remove(second); }) == BW_ENOLINK);
}

/* Links that receive from a shared receive queue. */
void shared_receives()
{
    enum { BLOCKS = 4, BYTES = 64 };
    bw::device device(config(BW_CLOCK_REAL));
    bw::pd pd(device);
    const std::vector<bw_slab_class> classes = {{BYTES, BLOCKS}};
    const bw::region memory(pd, bw::slab::bytes(classes), BW_ACCESS_LOCAL_WRITE);
    const bw::slab slab(memory, classes);
    auto init = bw::link_set_init(slab, BYTES, BLOCKS);
    init.links = 2;
    init.sleeps = 1;
    bw::link_set made(pd, init), set(std::move(made));
    auto joined = set.join_pair(bw::link_init(), pd, bw::link_init());
    bw::reliable_link &peer = joined.second;
    bw_link_set_wc one;
    bw_link_wc wc;
    while (peer.state() != BW_LINK_READY || set.query(joined.first).state != BW_LINK_READY) {
        EXPECT(set.poll(&one, 1) == 0);
        EXPECT(peer.poll(&wc, 1) == 0);
    }
    while (set.next_change())
        ;
    EXPECT(slab.query().outstanding == BLOCKS);
    EXPECT(set.post_recv_one(joined.first, 1, bw_sge{}) == BW_ENORQ);
    bw::block kept;
    for (uint64_t number = 0; number < 3 * BLOCKS; number++) {
        OK(peer.post_send_inline(number, &number, sizeof number, BW_SEND_SIGNALED, BW_REPLAY_NEVER));
        OK(peer.ring_sq());
        EXPECT(set.wait(&one, 1) == 1);
        EXPECT(one.link == joined.first && one.wc.outcome == BW_OUTCOME_EXECUTED);
        bw::block message = set.message(one);
        EXPECT(message && message.length() == sizeof number);
        EXPECT(std::memcmp(message.data(), &number, sizeof number) == 0);
        /* The one before goes back. */
        kept = std::move(message);
        while (peer.poll(&wc, 1) == 0)
            ;
        EXPECT(wc.outcome == BW_OUTCOME_EXECUTED);
    }
    OK(kept.return_block());
    set = bw::link_set();
    EXPECT(slab.query().outstanding == 0);
}

} // namespace

int main()
{
    try {
        handles();
        devices();
        connection();
        slabs();
        datagrams();
        shared_queues();
        sleeping();
        meeting();
        managed();
        links();
        link_sets();
        shared_receives();
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
