/*
 * bellwire for C++17: owning classes for the handles of the C interface. Header only; link as for
 * bellwire.h, whose conventions hold here too. What a function does is described there, under the name
 * of the C function.
 *
 * Handles. Each class owns one handle, can be moved, and cannot be copied. An object that is
 * default-constructed or moved from is empty. The destructor destroys the handle; members and locals
 * are destroyed in the opposite order of their construction, which is the order that the library
 * requires. In another order (a pd before its qp) the library returns BW_EBUSY: a debug build asserts,
 * a release build leaks the object. destroy() returns the code, and keeps the handle if it is not
 * BW_OK.
 *
 * Errors. Functions that set something up throw bellwire::call_error, which has the code, and the
 * texts of bw_strerror() and bw_last_error(). Data path functions (post_*, ring_*, poll*), poll()
 * and arm() of a link, req_notify(), and take() and return_block() of blocks never throw. They
 * return the C function's result. get_cq_event(), get_async_event(), get_event() and accept() of
 * links return an empty optional if no event is there. They do so too if a signal or wake() has
 * ended the wait (BW_EINTR, BW_EWOKEN). Compiled with -fno-exceptions, functions that would throw
 * print the text to stderr and abort. A program that has to go on calls the C function, and gives
 * the handle to the class:
 *
 *      bw_device *raw;
 *      if (bw_device_open(name, &raw) == BW_OK)
 *          bellwire::device opened(raw);
 *
 * Cancellation (pthread_cancel) is deferred within each call, as in C. It unwinds the stack at the
 * program's own cancellation points, not in a destructor of these classes.
 *
 * Structs, numbers and flags are those of C. sized<bw_..._info>() returns a zeroed struct with its
 * size set; functions without arguments fill structs that have defaults: qp_init_attr(),
 * connect_attr() ...
 *
 * The namespace may be used as a whole (`using namespace bellwire`). No name of it is one of the C
 * library's, so the class of a bw_link is reliable_link.
 */
#ifndef BELLWIRE_HPP
#define BELLWIRE_HPP

#include "bellwire.h"

#include <array>
#include <cassert>
#ifndef __cpp_exceptions
#include <cstdio>
#include <cstdlib>
#endif
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace bellwire {

/* A set-up call that failed. */
class call_error : public std::runtime_error {
public:
    call_error(int code, const char *call) : std::runtime_error(text(code, call)), code_(code) {}

    /* A bw_error. */
    int code() const noexcept { return code_; }

private:
    static std::string text(int code, const char *call)
    {
        std::string text = std::string(call) + ": " + bw_strerror(code);
        const char *more = bw_last_error();
        return *more ? text + " (" + more + ")" : text;
    }

    int code_;
};

/* Throws when `code` is negative, otherwise returns it. The error's text begins with `call`. Without
 * exceptions, it prints the text and aborts. */
inline int check(int code, const char *call)
{
    if (code < 0) {
#ifdef __cpp_exceptions
        throw call_error(code, call);
#else
        std::fprintf(stderr, "%s\n", call_error(code, call).what());
        std::abort();
#endif
    }
    return code;
}

/* A zeroed struct with its `size` set. */
template <class S> S sized() noexcept
{
    S made{};
    made.size = sizeof made;
    return made;
}

/* The defaults of structs that have defaults. */
inline bw_region_attr region_attr()
{
    bw_region_attr attr;
    check(bw_region_attr_default(&attr, sizeof attr), "bw_region_attr_default");
    return attr;
}
inline bw_srq_init_attr srq_init_attr()
{
    bw_srq_init_attr attr;
    check(bw_srq_init_attr_default(&attr, sizeof attr), "bw_srq_init_attr_default");
    return attr;
}
inline bw_qp_init_attr qp_init_attr()
{
    bw_qp_init_attr attr;
    check(bw_qp_init_attr_default(&attr, sizeof attr), "bw_qp_init_attr_default");
    return attr;
}
inline bw_connect_attr connect_attr()
{
    bw_connect_attr attr;
    check(bw_connect_attr_default(&attr, sizeof attr), "bw_connect_attr_default");
    return attr;
}
inline bw_link_init link_init()
{
    bw_link_init init;
    check(bw_link_init_default(&init, sizeof init), "bw_link_init_default");
    return init;
}

/* Completion queue entries that a queue pair reserves. */
struct cq_entries {
    uint32_t send, recv;
    uint32_t sum() const noexcept { return send + recv; }
};
inline cq_entries entries_of(const bw_qp_init_attr &attr)
{
    cq_entries entries{};
    check(bw_qp_cq_entries(&attr, &entries.send, &entries.recv), "bw_qp_cq_entries");
    return entries;
}

/* A GID, in wire order. */
using gid = std::array<uint8_t, 16>;

/* Owns a handle, or none. */
template <class T, int (*Destroy)(T *)> class handle {
public:
    handle() noexcept = default;
    /* Takes ownership of a handle that a C function created. */
    explicit handle(T *raw) noexcept : raw_(raw) {}
    handle(handle &&other) noexcept : raw_(other.release()) {}
    handle &operator=(handle &&other) noexcept
    {
        if (this != &other) {
            end();
            raw_ = other.release();
        }
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() { end(); }

    /* The handle, for the C functions; NULL when empty. This object keeps ownership. */
    T *get() const noexcept { return raw_; }
    explicit operator bool() const noexcept { return raw_ != nullptr; }
    /* Releases ownership: the caller has to destroy the handle. */
    T *release() noexcept { return std::exchange(raw_, nullptr); }
    /* Destroys the handle now. Empty afterwards, unless the result is an error. */
    int destroy() noexcept
    {
        int code = raw_ ? Destroy(raw_) : static_cast<int>(BW_OK);
        if (code == BW_OK)
            raw_ = nullptr;
        return code;
    }

private:
    void end() noexcept
    {
        int code = destroy();
        assert(code == BW_OK && "destroyed while in use: see bw_last_error()");
        (void)code;
    }

    T *raw_ = nullptr;
};

namespace detail {

inline int srq_destroy(bw_srq *srq) { return bw_srq_destroy(srq, nullptr, nullptr); }

/* Nothing has come, in the time or before a signal or another thread has ended the wait. */
inline bool nothing_came(int code) noexcept
{
    return code == BW_EAGAIN || code == BW_EINTR || code == BW_EWOKEN;
}

/* Calls a function that creates a handle. */
template <class T, class F> T *made(const char *call, F make)
{
    T *raw = nullptr;
    check(make(&raw), call);
    return raw;
}

/* A struct that the library fills. */
template <class S, class F> S filled(const char *call, F fill)
{
    S info = sized<S>();
    check(fill(&info), call);
    return info;
}

/* A text that the library writes. */
template <class F> std::string text(const char *call, F write)
{
    std::string text(1024, '\0');
    for (;;) {
        size_t length = 0;
        const int code = write(&text[0], text.size(), &length);
        /* The length may change from call to call. */
        if (code == BW_ELIMIT && length >= text.size()) {
            text.resize(length + 1);
            continue;
        }
        check(code, call);
        text.resize(length);
        return text;
    }
}

/* A callable as a bw_flushed_fn and its context. The callable must not throw. */
template <class F> struct flushed {
    static void call(void *context, uint64_t wr_id) noexcept
    {
        (*static_cast<std::remove_reference_t<F> *>(context))(wr_id);
    }
};

/* A callable as a bw_link_wc_fn or bw_link_set_wc_fn, and its context. The callable must not throw. */
template <class F, class Wc = bw_link_wc> struct reported {
    static void call(void *context, const Wc *one) noexcept
    {
        (*static_cast<std::remove_reference_t<F> *>(context))(*one);
    }
};

} // namespace detail

/* An asynchronous event; the destructor acknowledges it. */
class async_event : public handle<bw_async_event, bw_ack_async_event> {
public:
    async_event(bw_async_event *raw, const bw_async_event_info &info) noexcept
        : handle(raw), info_(info)
    {
    }
    const bw_async_event_info &info() const noexcept { return info_; }
    const char *type_str() const noexcept { return bw_event_type_str(info_.event_type); }

private:
    bw_async_event_info info_;
};

/* A device. Opening one checks that the library can serve this header. */
class device : public handle<bw_device, bw_device_close> {
public:
    using handle::handle;

    explicit device(const char *name)
        : handle((check_version(), detail::made<bw_device>("bw_device_open", [&](bw_device **to) {
              return bw_device_open(name, to);
          })))
    {
    }
    explicit device(const std::string &name) : device(name.c_str()) {}
    /* A private software device; `config` by sized<bw_soft_config>(). */
    explicit device(const bw_soft_config &config)
        : handle((check_version(),
                  detail::made<bw_device>("bw_device_open_soft", [&](bw_device **to) {
                      return bw_device_open_soft(&config, to);
                  })))
    {
    }
    /* A private node of the fabric of this name. */
    static device join(const char *fabric, const bw_soft_config &config)
    {
        return device(detail::made<bw_device>("bw_device_join", [&](bw_device **to) {
            return bw_device_join(fabric, &config, to);
        }));
    }
    device reopen() const
    {
        return device(detail::made<bw_device>(
            "bw_device_reopen", [&](bw_device **to) { return bw_device_reopen(get(), to); }));
    }

    /* The devices that bw_device_open() can open by a fixed name. Afterwards bw_last_error() says
     * why there are no more. */
    static std::vector<bw_device_info> list()
    {
        std::vector<bw_device_info> all;
        for (;;) {
            bw_device_info info = sized<bw_device_info>();
            int code = bw_device_at(static_cast<uint32_t>(all.size()), &info);
            if (code == BW_ENODEV)
                return all;
            check(code, "bw_device_at");
            all.push_back(info);
        }
    }
    static void check_version() { check(bw_version_check(BW_VERSION), "bw_version_check"); }

    bw_device_info query() const
    {
        return detail::filled<bw_device_info>(
            "bw_device_query", [&](bw_device_info *to) { return bw_device_query(get(), to); });
    }
    bw_port_info query_port(uint32_t port_num) const
    {
        return detail::filled<bw_port_info>("bw_query_port", [&](bw_port_info *to) {
            return bw_query_port(get(), port_num, to);
        });
    }
    gid query_gid(uint32_t port_num, uint32_t index) const
    {
        gid found{};
        check(bw_query_gid(get(), port_num, index, found.data()), "bw_query_gid");
        return found;
    }
    uint16_t query_pkey(uint32_t port_num, uint32_t index) const
    {
        uint16_t found = 0;
        check(bw_query_pkey(get(), port_num, index, &found), "bw_query_pkey");
        return found;
    }
    /* Why "auto" chose the device; empty if it was opened by its own name. */
    std::string choice() const { return bw_device_choice(get()); }
    /* How the device is driven. */
    bw_provider provider() const
    {
        return static_cast<bw_provider>(check(bw_device_provider(get()), "bw_device_provider"));
    }
    void progress() const { check(bw_device_progress(get()), "bw_device_progress"); }
    void advance(uint64_t nanoseconds) const
    {
        check(bw_device_advance(get(), nanoseconds), "bw_device_advance");
    }

    int async_fd() const { return check(bw_device_async_fd(get()), "bw_device_async_fd"); }
    /* Ends the waits in get_async_event() on it, also from a signal handler, until `awake` is false. */
    void async_wake(bool awake = true) const noexcept { bw_device_async_wake(get(), awake); }
    void async_set_nonblocking(bool nonblocking) const
    {
        check(bw_device_async_set_nonblocking(get(), nonblocking), "bw_device_async_set_nonblocking");
    }
    /* Empty if there is no event and the descriptor does not block. */
    std::optional<async_event> get_async_event() const
    {
        bw_async_event_info info = sized<bw_async_event_info>();
        bw_async_event *raw = nullptr;
        int code = bw_get_async_event(get(), &info, &raw);
        if (detail::nothing_came(code))
            return std::nullopt;
        check(code, "bw_get_async_event");
        return async_event(raw, info);
    }

    /* For events that concern no link of the device. The hook must not throw. */
    void set_event_hook(bw_event_fn hook, void *context = nullptr) const
    {
        check(bw_device_set_event_hook(get(), hook, context), "bw_device_set_event_hook");
    }
    void dispatch(async_event event) const
    {
        check(bw_device_dispatch_async_event(get(), event.release()), "bw_device_dispatch_async_event");
    }

    void soft_inject(const bw_soft_step *steps, uint32_t num) const
    {
        check(bw_soft_inject(get(), steps, num), "bw_soft_inject");
    }
    void soft_inject_seeded(uint64_t seed, uint64_t packets, uint32_t count,
                            const bw_soft_step *kinds, uint32_t num) const
    {
        check(bw_soft_inject_seeded(get(), seed, packets, count, kinds, num),
              "bw_soft_inject_seeded");
    }
    void soft_clear() const { check(bw_soft_clear(get()), "bw_soft_clear"); }
    void soft_set_port(bool up) const { check(bw_soft_set_port(get(), up), "bw_soft_set_port"); }
    void soft_raise(uint32_t event, uint32_t element_number) const
    {
        check(bw_soft_raise(get(), event, element_number), "bw_soft_raise");
    }
};

/* A protection domain. */
class pd : public handle<bw_pd, bw_pd_destroy> {
public:
    using handle::handle;
    explicit pd(const device &on)
        : handle(detail::made<bw_pd>("bw_pd_create",
                                     [&](bw_pd **to) { return bw_pd_create(on.get(), to); }))
    {
    }
};

/* Registered memory of the program. */
class mr : public handle<bw_mr, bw_mr_destroy> {
public:
    using handle::handle;
    mr(const pd &of, void *addr, size_t length, uint32_t access)
        : handle(detail::made<bw_mr>("bw_mr_create", [&](bw_mr **to) {
              return bw_mr_create(of.get(), addr, length, access, to);
          }))
    {
    }
    bw_mr_info query() const
    {
        return detail::filled<bw_mr_info>(
            "bw_mr_query", [&](bw_mr_info *to) { return bw_mr_query(get(), to); });
    }
};

/* Memory that the library allocates and registers. */
class region : public handle<bw_region, bw_region_destroy> {
public:
    using handle::handle;
    region(const pd &of, const bw_region_attr &attr)
        : handle(detail::made<bw_region>("bw_region_create", [&](bw_region **to) {
              return bw_region_create(of.get(), &attr, to);
          }))
    {
    }
    region(const pd &of, uint64_t length, uint32_t access) : region(of, plain(length, access)) {}
    bw_region_info query() const
    {
        return detail::filled<bw_region_info>(
            "bw_region_query", [&](bw_region_info *to) { return bw_region_query(get(), to); });
    }

private:
    static bw_region_attr plain(uint64_t length, uint32_t access)
    {
        bw_region_attr attr = region_attr();
        attr.length = length;
        attr.access = access;
        return attr;
    }
};

/* A block of a slab, or none; the destructor returns it. By then the slab must still exist, and
 * requests that name the block must have been reported. */
class block {
public:
    block() noexcept = default;
    /* Takes ownership of a block that bw_slab_take() returned. */
    block(bw_slab *slab, const bw_block &raw) noexcept : slab_(slab), raw_(raw) {}
    block(block &&other) noexcept : slab_(other.slab_), raw_(other.release()) {}
    block &operator=(block &&other) noexcept
    {
        if (this != &other) {
            end();
            slab_ = other.slab_;
            raw_ = other.release();
        }
        return *this;
    }
    block(const block &) = delete;
    block &operator=(const block &) = delete;
    ~block() { end(); }

    explicit operator bool() const noexcept { return slab_ != nullptr; }
    uint64_t addr() const noexcept { return raw_.addr; }
    uint32_t length() const noexcept { return raw_.length; }
    uint32_t lkey() const noexcept { return raw_.lkey; }
    void *data() const noexcept
    {
        return reinterpret_cast<void *>(static_cast<uintptr_t>(raw_.addr));
    }
    /* Its first `length` bytes, at most all of them. */
    bw_sge sge(uint32_t length) const noexcept
    {
        return {raw_.addr, length < raw_.length ? length : raw_.length, raw_.lkey};
    }
    /* Releases ownership: the caller has to return the block. */
    bw_block release() noexcept
    {
        slab_ = nullptr;
        return std::exchange(raw_, bw_block{});
    }
    /* Returns the block now. Empty afterwards, unless the result is an error. */
    int return_block() noexcept
    {
        int code = slab_ ? bw_slab_return(slab_, &raw_) : static_cast<int>(BW_OK);
        if (code == BW_OK)
            release();
        return code;
    }

private:
    void end() noexcept
    {
        int code = return_block();
        assert(code == BW_OK && "not a block that is out");
        (void)code;
    }

    bw_slab *slab_ = nullptr;
    bw_block raw_{};
};

/* A region divided into blocks. */
class slab : public handle<bw_slab, bw_slab_destroy> {
public:
    using handle::handle;
    slab(const region &of, const std::vector<bw_slab_class> &classes)
        : handle(detail::made<bw_slab>("bw_slab_create", [&](bw_slab **to) {
              return bw_slab_create(of.get(), classes.data(),
                                    static_cast<uint32_t>(classes.size()), to);
          }))
    {
    }
    /* How many bytes of a region these classes need. */
    static uint64_t bytes(const std::vector<bw_slab_class> &classes)
    {
        uint64_t bytes = 0;
        check(bw_slab_bytes(classes.data(), static_cast<uint32_t>(classes.size()), &bytes),
              "bw_slab_bytes");
        return bytes;
    }
    bw_slab_info query() const
    {
        return detail::filled<bw_slab_info>(
            "bw_slab_query", [&](bw_slab_info *to) { return bw_slab_query(get(), to); });
    }
    /* A block that `to` had before is returned to its slab; on an error `to` keeps it. */
    int take(uint32_t length, block &to) const noexcept
    {
        bw_block raw{};
        int code = bw_slab_take(get(), length, &raw);
        if (code == BW_OK)
            to = block(get(), raw);
        return code;
    }
};

/* Free blocks of a slab that have this length, kept for one thread. */
class slab_cache : public handle<bw_slab_cache, bw_slab_cache_destroy> {
public:
    using handle::handle;
    slab_cache(const slab &of, uint32_t length)
        : handle(detail::made<bw_slab_cache>("bw_slab_cache_create", [&](bw_slab_cache **to) {
              return bw_slab_cache_create(of.get(), length, to);
          })),
          slab_(of.get())
    {
    }
    /* As slab::take(). The destructor of the block returns it to the slab, unless it is put() here. */
    int take(block &to) noexcept
    {
        bw_block raw{};
        int code = bw_slab_cache_take(get(), &raw);
        if (code == BW_OK)
            to = block(slab_, raw);
        return code;
    }
    /* Takes a block back. If the result is an error the block stays with `from`. */
    int put(block &from) noexcept
    {
        if (!from)
            return BW_OK;
        const bw_block raw{from.addr(), from.length(), from.lkey()};
        int code = bw_slab_cache_return(get(), &raw);
        if (code == BW_OK)
            from.release();
        return code;
    }

private:
    bw_slab *slab_ = nullptr;
};

/* An event of a completion channel. */
struct cq_event {
    uint32_t cqn;
    void *context;
};

/* A completion channel. */
class comp_channel : public handle<bw_comp_channel, bw_comp_channel_destroy> {
public:
    using handle::handle;
    explicit comp_channel(const device &on)
        : handle(detail::made<bw_comp_channel>("bw_comp_channel_create", [&](bw_comp_channel **to) {
              return bw_comp_channel_create(on.get(), to);
          }))
    {
    }
    int fd() const { return check(bw_comp_channel_fd(get()), "bw_comp_channel_fd"); }
    void set_nonblocking(bool nonblocking) const
    {
        check(bw_comp_channel_set_nonblocking(get(), nonblocking),
              "bw_comp_channel_set_nonblocking");
    }
    /* Ends the waits for it, also from a signal handler, until `awake` is false. */
    void wake(bool awake = true) const noexcept { bw_comp_channel_wake(get(), awake); }
    /* Empty if there is no event and the descriptor does not block, or the wait was ended. Each event
     * has to be acknowledged. */
    std::optional<cq_event> get_cq_event() const
    {
        cq_event event{};
        int code = bw_get_cq_event(get(), &event.cqn, &event.context);
        if (detail::nothing_came(code))
            return std::nullopt;
        check(code, "bw_get_cq_event");
        return event;
    }
    void ack_cq_events(uint32_t cqn, uint32_t count) const
    {
        check(bw_ack_cq_events(get(), cqn, count), "bw_ack_cq_events");
    }
};

/* A completion queue. */
class cq : public handle<bw_cq, bw_cq_destroy> {
public:
    using handle::handle;
    cq(const device &on, const bw_cq_attr &attr)
        : handle(detail::made<bw_cq>(
              "bw_cq_create", [&](bw_cq **to) { return bw_cq_create(on.get(), &attr, to); }))
    {
    }
    cq(const device &on, uint32_t entries) : cq(on, plain(entries)) {}
    /* On a channel, whose events carry `context`. */
    cq(const device &on, uint32_t entries, const comp_channel &channel, void *context = nullptr)
        : cq(on, plain(entries, channel.get(), context))
    {
    }
    bw_cq_info query() const
    {
        return detail::filled<bw_cq_info>(
            "bw_cq_query", [&](bw_cq_info *to) { return bw_cq_query(get(), to); });
    }
    int req_notify(bool solicited_only) noexcept { return bw_cq_req_notify(get(), solicited_only); }
    int poll_one(bw_wc &wc) noexcept { return bw_poll_one(get(), &wc); }
    int poll(bw_wc *wc, int max) noexcept { return bw_poll(get(), wc, max); }
    int poll_one(bw_completion &completion) noexcept { return bw_poll_completion(get(), &completion); }
    int poll(bw_completion *completions, int max) noexcept
    {
        return bw_poll_completions(get(), completions, max);
    }

private:
    static bw_cq_attr plain(uint32_t entries, const bw_comp_channel *channel = nullptr,
                            void *context = nullptr)
    {
        bw_cq_attr attr = sized<bw_cq_attr>();
        attr.entries = entries;
        attr.channel = channel;
        attr.cq_context = context;
        return attr;
    }
};

/* An XRC domain. */
class xrcd : public handle<bw_xrcd, bw_xrcd_destroy> {
public:
    using handle::handle;
    explicit xrcd(const device &on)
        : handle(detail::made<bw_xrcd>("bw_xrcd_create",
                                       [&](bw_xrcd **to) { return bw_xrcd_create(on.get(), to); }))
    {
    }
    /* The XRC domain of a file. */
    xrcd(const device &on, int fd, bw_xrcd_mode mode)
        : handle(detail::made<bw_xrcd>("bw_xrcd_open", [&](bw_xrcd **to) {
              return bw_xrcd_open(on.get(), fd, static_cast<std::uint32_t>(mode), to);
          }))
    {
    }
};

/* A shared receive queue. */
class srq : public handle<bw_srq, detail::srq_destroy> {
public:
    using handle::handle;
    explicit srq(const pd &of, const bw_srq_init_attr &attr = srq_init_attr())
        : handle(detail::made<bw_srq>(
              "bw_srq_create", [&](bw_srq **to) { return bw_srq_create(of.get(), &attr, to); }))
    {
    }
    /* A shared receive queue for XRC. */
    srq(const pd &of, const xrcd &domain, cq &completions, const bw_srq_init_attr &attr = srq_init_attr())
        : handle(detail::made<bw_srq>("bw_srq_create_xrc", [&](bw_srq **to) {
              return bw_srq_create_xrc(of.get(), domain.get(), completions.get(), &attr, to);
          }))
    {
    }
    bw_srq_info query() const
    {
        return detail::filled<bw_srq_info>(
            "bw_srq_query", [&](bw_srq_info *to) { return bw_srq_query(get(), to); });
    }
    void modify(uint32_t limit) { check(bw_srq_modify(get(), limit), "bw_srq_modify"); }
    int post_recv(const bw_recv_wr *wr, uint32_t num, const bw_recv_wr **bad = nullptr) noexcept
    {
        return bw_post_srq_recv(get(), wr, num, bad);
    }

    using handle::destroy;
    /* Destroys it; `cleared(wr_id)` is called for each receive that was not reported, and must not
     * throw. */
    template <class F> int destroy(F &&cleared) noexcept
    {
        if (!get())
            return BW_OK;
        int code = bw_srq_destroy(get(), detail::flushed<F>::call,
                                  const_cast<void *>(static_cast<const void *>(&cleared)));
        if (code == BW_OK)
            release();
        return code;
    }
};

/* An address handle. */
class ah : public handle<bw_ah, bw_ah_destroy> {
public:
    using handle::handle;
    ah(const pd &of, const bw_ah_attr &attr)
        : handle(detail::made<bw_ah>(
              "bw_ah_create", [&](bw_ah **to) { return bw_ah_create(of.get(), &attr, to); }))
    {
    }
    /* For replying to a datagram. */
    ah(const pd &of, const bw_wc &wc, const void *grh, uint32_t port_num)
        : handle(detail::made<bw_ah>("bw_ah_create_from_wc", [&](bw_ah **to) {
              return bw_ah_create_from_wc(of.get(), &wc, grh, port_num, to);
          }))
    {
    }
    static bw_ah_attr attr_from_wc(const bw_wc &wc, const void *grh, uint32_t port_num)
    {
        bw_ah_attr attr{};
        check(bw_ah_init_from_wc(&wc, grh, port_num, &attr), "bw_ah_init_from_wc");
        return attr;
    }
    bw_ah_attr query() const
    {
        bw_ah_attr attr{};
        check(bw_ah_query(get(), &attr), "bw_ah_query");
        return attr;
    }
};

/* A memory window. */
class mw : public handle<bw_mw, bw_mw_destroy> {
public:
    using handle::handle;
    mw(const pd &of, uint32_t mw_type)
        : handle(detail::made<bw_mw>(
              "bw_mw_create", [&](bw_mw **to) { return bw_mw_create(of.get(), mw_type, to); }))
    {
    }
    uint32_t rkey() const noexcept { return bw_mw_rkey(get()); }
};

/* Reads the counters of a queue pair, a link or a set, from any thread; made by their monitor(). */
class monitor : public handle<bw_monitor, bw_monitor_destroy> {
public:
    using handle::handle;
    bw_queue_counters queues() const
    {
        return detail::filled<bw_queue_counters>("bw_monitor_read_queues", [&](bw_queue_counters *to) {
            return bw_monitor_read_queues(get(), to);
        });
    }
    bw_link_counters counters() const
    {
        return detail::filled<bw_link_counters>("bw_monitor_read_link", [&](bw_link_counters *to) {
            return bw_monitor_read_link(get(), to);
        });
    }
};

/* A queue pair. */
class qp : public handle<bw_qp, bw_qp_destroy> {
public:
    using handle::handle;
    qp(const pd &of, cq &send, cq &recv, const bw_qp_init_attr &attr = qp_init_attr())
        : handle(detail::made<bw_qp>("bw_qp_create", [&](bw_qp **to) {
              return bw_qp_create(of.get(), send.get(), recv.get(), &attr, to);
          }))
    {
    }
    class monitor monitor()
    {
        return bellwire::monitor(detail::made<bw_monitor>(
            "bw_qp_monitor", [&](bw_monitor **to) { return bw_qp_monitor(get(), to); }));
    }
    bool data_in_order(uint32_t opcode)
    {
        return check(bw_qp_data_in_order(get(), opcode), "bw_qp_data_in_order") != 0;
    }
    /* Brings what monitors read up to date. */
    void count() { check(bw_qp_count(get()), "bw_qp_count"); }

    bw_endpoint endpoint()
    {
        return detail::filled<bw_endpoint>(
            "bw_qp_endpoint", [&](bw_endpoint *to) { return bw_qp_endpoint(get(), to); });
    }
    void init(const bw_connect_attr &attr = connect_attr())
    {
        check(bw_qp_init(get(), &attr), "bw_qp_init");
    }
    void connect(const bw_endpoint &peer, const bw_connect_attr &attr = connect_attr())
    {
        check(bw_qp_connect(get(), &peer, &attr), "bw_qp_connect");
    }
    void start(const bw_connect_attr &attr = connect_attr())
    {
        check(bw_qp_start(get(), &attr), "bw_qp_start");
    }
    void modify(const bw_qp_attr &attr, uint32_t mask)
    {
        check(bw_qp_modify(get(), &attr, mask), "bw_qp_modify");
    }
    bw_qp_attr query()
    {
        return detail::filled<bw_qp_attr>(
            "bw_qp_query", [&](bw_qp_attr *to) { return bw_qp_query(get(), to); });
    }
    bw_qp_state state()
    {
        return static_cast<bw_qp_state>(check(bw_qp_get_state(get()), "bw_qp_get_state"));
    }
    void to_error() { check(bw_qp_to_error(get()), "bw_qp_to_error"); }
    void reset() { check(bw_qp_reset(get(), nullptr, nullptr), "bw_qp_reset"); }
    /* `cleared(wr_id)` is called for each request that was not reported, and must not throw. */
    template <class F> void reset(F &&cleared)
    {
        check(bw_qp_reset(get(), detail::flushed<F>::call,
                          const_cast<void *>(static_cast<const void *>(&cleared))),
              "bw_qp_reset");
    }
    void attach_mcast(const gid &group, uint16_t lid)
    {
        check(bw_qp_attach_mcast(get(), group.data(), lid), "bw_qp_attach_mcast");
    }
    void detach_mcast(const gid &group, uint16_t lid)
    {
        check(bw_qp_detach_mcast(get(), group.data(), lid), "bw_qp_detach_mcast");
    }

    int post_send(const bw_send_wr *wr, uint32_t num, const bw_send_wr **bad = nullptr) noexcept
    {
        return bw_post_send(get(), wr, num, bad);
    }
    int post_writes(const bw_rdma_wr *wr, uint32_t num, const bw_rdma_wr **bad = nullptr) noexcept
    {
        return bw_post_writes(get(), wr, num, bad);
    }
    int post_writes_inline(const bw_rdma_wr *wr, uint32_t num,
                           const bw_rdma_wr **bad = nullptr) noexcept
    {
        return bw_post_writes_inline(get(), wr, num, bad);
    }
    int post_reads(const bw_rdma_wr *wr, uint32_t num, const bw_rdma_wr **bad = nullptr) noexcept
    {
        return bw_post_reads(get(), wr, num, bad);
    }
    int post_recv(const bw_recv_wr *wr, uint32_t num, const bw_recv_wr **bad = nullptr) noexcept
    {
        return bw_post_recv(get(), wr, num, bad);
    }
    int post_write(uint64_t wr_id, const bw_sge &sge, uint64_t remote_addr, uint32_t rkey,
                   uint32_t send_flags) noexcept
    {
        return bw_post_write(get(), wr_id, &sge, remote_addr, rkey, send_flags);
    }
    int post_write_inline(uint64_t wr_id, const void *data, uint32_t length, uint64_t remote_addr,
                          uint32_t rkey, uint32_t send_flags) noexcept
    {
        return bw_post_write_inline(get(), wr_id, data, length, remote_addr, rkey, send_flags);
    }
    int post_read(uint64_t wr_id, const bw_sge &sge, uint64_t remote_addr, uint32_t rkey,
                  uint32_t send_flags) noexcept
    {
        return bw_post_read(get(), wr_id, &sge, remote_addr, rkey, send_flags);
    }
    int post_send_one(uint64_t wr_id, const bw_sge &sge, uint32_t send_flags) noexcept
    {
        return bw_post_send_one(get(), wr_id, &sge, send_flags);
    }
    int post_send_inline(uint64_t wr_id, const void *data, uint32_t length,
                         uint32_t send_flags) noexcept
    {
        return bw_post_send_inline(get(), wr_id, data, length, send_flags);
    }
    int post_recv_one(uint64_t wr_id, const bw_sge &sge) noexcept
    {
        return bw_post_recv_one(get(), wr_id, &sge);
    }
    /* Binds a window of type 1. */
    int post_bind(mw &window, uint64_t wr_id, const bw_mw_bind_info &info,
                  uint32_t send_flags) noexcept
    {
        return bw_mw_bind(get(), window.get(), wr_id, &info, send_flags);
    }
    int ring_sq() noexcept { return bw_ring_sq(get()); }
    int ring_rq() noexcept { return bw_ring_rq(get()); }
};

/* An XRC target: the responder of an extended reliable connection. */
class xrc_target : public handle<bw_xrc_target, bw_xrc_target_destroy> {
public:
    using handle::handle;
    explicit xrc_target(const xrcd &domain)
        : handle(detail::made<bw_xrc_target>("bw_xrc_target_create", [&](bw_xrc_target **to) {
              return bw_xrc_target_create(domain.get(), to);
          }))
    {
    }
    /* A target that already exists. */
    xrc_target(const xrcd &domain, std::uint32_t qp_num)
        : handle(detail::made<bw_xrc_target>("bw_xrc_target_open", [&](bw_xrc_target **to) {
              return bw_xrc_target_open(domain.get(), qp_num, to);
          }))
    {
    }
    bw_endpoint endpoint() const
    {
        return detail::filled<bw_endpoint>("bw_xrc_target_endpoint", [&](bw_endpoint *to) {
            return bw_xrc_target_endpoint(get(), to);
        });
    }
    void init(const bw_connect_attr &attr = connect_attr())
    {
        check(bw_xrc_target_init(get(), &attr), "bw_xrc_target_init");
    }
    void connect(const bw_endpoint &peer, const bw_connect_attr &attr = connect_attr())
    {
        check(bw_xrc_target_connect(get(), &peer, &attr), "bw_xrc_target_connect");
    }
    void modify(const bw_qp_attr &attr, uint32_t mask)
    {
        check(bw_xrc_target_modify(get(), &attr, mask), "bw_xrc_target_modify");
    }
    bw_qp_attr query() const
    {
        return detail::filled<bw_qp_attr>("bw_xrc_target_query", [&](bw_qp_attr *to) {
            return bw_xrc_target_query(get(), to);
        });
    }
};

/* What the ends of a TCP connection exchange: the endpoint of a queue pair, and its memory. */
struct conn_info {
    bw_endpoint endpoint = sized<bw_endpoint>();
    bw_conn_info memory = sized<bw_conn_info>();
};

/* A TCP connection with a peer. */
class tcp_conn : public handle<bw_tcp_conn, bw_tcp_conn_destroy> {
public:
    using handle::handle;
    tcp_conn(const char *host, uint32_t port, uint32_t timeout_ms)
        : handle(detail::made<bw_tcp_conn>("bw_tcp_connect", [&](bw_tcp_conn **to) {
              return bw_tcp_connect(host, port, timeout_ms, to);
          }))
    {
    }
    conn_info exchange(const bw_endpoint &endpoint, const bw_conn_info &memory,
                       uint32_t timeout_ms)
    {
        conn_info peer;
        check(bw_tcp_exchange(get(), &endpoint, &memory, &peer.endpoint, &peer.memory, timeout_ms),
              "bw_tcp_exchange");
        return peer;
    }
    void barrier(uint32_t timeout_ms) { check(bw_tcp_barrier(get(), timeout_ms), "bw_tcp_barrier"); }
};

/* A port that listens for peers. */
class tcp_listener : public handle<bw_tcp_listener, bw_tcp_listener_destroy> {
public:
    using handle::handle;
    /* `host` may be NULL: all addresses; port 0 means a free one. */
    explicit tcp_listener(const char *host, uint32_t port = 0)
        : handle(detail::made<bw_tcp_listener>("bw_tcp_listener_create", [&](bw_tcp_listener **to) {
              return bw_tcp_listener_create(host, port, to);
          }))
    {
    }
    uint32_t port() const
    {
        return static_cast<uint32_t>(check(bw_tcp_listener_port(get()), "bw_tcp_listener_port"));
    }
    int fd() const { return check(bw_tcp_listener_fd(get()), "bw_tcp_listener_fd"); }
    /* Ends the waits for it, also from a signal handler, until `awake` is false. */
    void wake(bool awake = true) const noexcept { bw_tcp_listener_wake(get(), awake); }
    tcp_conn accept(uint32_t timeout_ms) const
    {
        return tcp_conn(detail::made<bw_tcp_conn>("bw_tcp_accept", [&](bw_tcp_conn **to) {
            return bw_tcp_accept(get(), timeout_ms, to);
        }));
    }
};

/* An id of the communication manager. Its steps are C functions: bw_cm_connect(id.get(), ...). */
class cm_id : public handle<bw_cm_id, bw_cm_id_destroy> {
public:
    using handle::handle;

    class device device() const
    {
        return bellwire::device(detail::made<bw_device>(
            "bw_cm_id_device", [&](bw_device **to) { return bw_cm_id_device(get(), to); }));
    }
};

/* An event channel for ids. Its ids must be destroyed before it, or migrated. */
class cm_channel : public handle<bw_cm_channel, bw_cm_channel_destroy> {
public:
    using handle::handle;
    explicit cm_channel(const char *provider)
        : handle(detail::made<bw_cm_channel>("bw_cm_channel_create", [&](bw_cm_channel **to) {
              return bw_cm_channel_create(provider, to);
          }))
    {
    }
    explicit cm_channel(const device &on)
        : handle(detail::made<bw_cm_channel>("bw_cm_channel_create_on", [&](bw_cm_channel **to) {
              return bw_cm_channel_create_on(on.get(), to);
          }))
    {
    }
    int fd() const { return check(bw_cm_channel_fd(get()), "bw_cm_channel_fd"); }
    /* Ends the waits for it, also from a signal handler, until `awake` is false. */
    void wake(bool awake = true) const noexcept { bw_cm_channel_wake(get(), awake); }
    cm_id id(uint32_t port_space, void *context = nullptr) const
    {
        return cm_id(detail::made<bw_cm_id>("bw_cm_id_create", [&](bw_cm_id **to) {
            return bw_cm_id_create(get(), port_space, context, to);
        }));
    }
    /* Empty if there is no event in this time, or the wait was ended. The id of a request belongs to the caller:
     * cm_id(event.request). */
    std::optional<bw_cm_event> get_event(uint32_t timeout_ms) const
    {
        bw_cm_event event = sized<bw_cm_event>();
        int code = bw_cm_get_event(get(), &event, timeout_ms);
        if (detail::nothing_came(code))
            return std::nullopt;
        check(code, "bw_cm_get_event");
        return event;
    }
};

/* A bw_link_retry with the defaults. */
inline bw_link_retry link_retry()
{
    bw_link_retry retry;
    check(bw_link_retry_default(&retry, sizeof retry), "bw_link_retry_default");
    return retry;
}

/* Creates links with the listener at one address: reliable_link(connector, pd). */
class connector : public handle<bw_connector, bw_connector_destroy> {
public:
    using handle::handle;
    connector(const device &on, const char *host, uint32_t port,
              const bw_link_retry &retry = link_retry())
        : handle(detail::made<bw_connector>("bw_connector_create", [&](bw_connector **to) {
              return bw_connector_create(on.get(), host, port, &retry, to);
          }))
    {
    }
};

/* Accepts the links that connectors create: reliable_link::accept(). */
class listener : public handle<bw_listener, bw_listener_destroy> {
public:
    using handle::handle;
    /* Port 0 means a free one. */
    listener(const device &on, const char *host, uint32_t port, uint32_t backlog,
             const bw_link_retry &retry = link_retry())
        : handle(detail::made<bw_listener>("bw_listener_create", [&](bw_listener **to) {
              return bw_listener_create(on.get(), host, port, backlog, &retry, to);
          }))
    {
    }
    uint32_t port() const
    {
        return static_cast<uint32_t>(check(bw_listener_port(get()), "bw_listener_port"));
    }
    int fd() const { return check(bw_listener_fd(get()), "bw_listener_fd"); }
    /* Ends the waits for it, also from a signal handler, until `awake` is false. */
    void wake(bool awake = true) const noexcept { bw_listener_wake(get(), awake); }
    /* Links that connect at a time, and how long each may take. */
    void limit_handshakes(uint32_t handshakes, uint64_t within_ns)
    {
        check(bw_listener_limit_handshakes(get(), handshakes, within_ns),
              "bw_listener_limit_handshakes");
    }
};

/* A bw_wait with the defaults. */
inline bw_wait wait_init() noexcept
{
    bw_wait wait;
    bw_wait_default(&wait, sizeof wait);
    return wait;
}

/*
 * A reliable connection that recovers from faults. post_*, ring_* and poll() return codes, and never
 * throw.
 */
class reliable_link : public handle<bw_link, bw_link_destroy> {
public:
    using handle::handle;
    /* Takes the connection over; the handle is empty from then on. */
    reliable_link(const pd &of, tcp_conn &conn, const bw_link_init &init = link_init())
        : handle(detail::made<bw_link>("bw_link_create", [&](bw_link **to) {
              return bw_link_create(of.get(), &init, conn.get(), to);
          }))
    {
    }
    /* Connects by the communication manager. */
    reliable_link(const connector &by, const pd &of, const bw_link_init &init = link_init())
        : handle(detail::made<bw_link>("bw_link_connect", [&](bw_link **to) {
              return bw_link_connect(by.get(), of.get(), &init, to);
          }))
    {
    }
    /* Empty if no peer has asked in this time. */
    static std::optional<reliable_link> accept(listener &at, const pd &of, uint32_t timeout_ms,
                                               const bw_link_init &init = link_init())
    {
        bw_link *made = nullptr;
        int code = bw_link_accept(at.get(), of.get(), &init, timeout_ms, &made);
        if (detail::nothing_came(code))
            return std::nullopt;
        check(code, "bw_link_accept");
        return reliable_link(made);
    }
    /* Two links that are connected with each other within the process. */
    static std::pair<reliable_link, reliable_link> pair(const pd &of, const bw_link_init &init,
                                                        const pd &peer_of,
                                                        const bw_link_init &peer_init)
    {
        bw_link *one = nullptr, *other = nullptr;
        check(bw_link_create_pair(of.get(), &init, &one, peer_of.get(), &peer_init, &other),
              "bw_link_create_pair");
        return {reliable_link(one), reliable_link(other)};
    }

    bw_link_state state() const
    {
        return static_cast<bw_link_state>(check(bw_link_get_state(get()), "bw_link_get_state"));
    }
    /* Nanoseconds until it has to be polled; UINT64_MAX: no limit. */
    uint64_t time_left() const
    {
        uint64_t left = 0;
        check(bw_link_time_left(get(), &left), "bw_link_time_left");
        return left;
    }
    bw_link_info query()
    {
        return detail::filled<bw_link_info>(
            "bw_link_query", [&](bw_link_info *to) { return bw_link_query(get(), to); });
    }
    bw_link_counters counters() const
    {
        return detail::filled<bw_link_counters>("bw_link_query_counters", [&](bw_link_counters *to) {
            return bw_link_query_counters(get(), to);
        });
    }
    class monitor monitor()
    {
        return bellwire::monitor(detail::made<bw_monitor>(
            "bw_link_monitor", [&](bw_monitor **to) { return bw_link_monitor(get(), to); }));
    }
    int exchange_fd() { return check(bw_link_exchange_fd(get()), "bw_link_exchange_fd"); }
    /* The hooks must not throw. */
    /* The peer's address and port. */
    std::pair<std::string, uint32_t> peer_addr()
    {
        char host[BW_ADDR_MAX];
        uint32_t port = 0;
        check(bw_link_peer_addr(get(), host, &port), "bw_link_peer_addr");
        return {host, port};
    }
    void on_fault(bw_fault_fn hook, void *context = nullptr)
    {
        check(bw_link_on_fault(get(), hook, context), "bw_link_on_fault");
    }
    void on_recovered(bw_recovered_fn hook, void *context = nullptr)
    {
        check(bw_link_on_recovered(get(), hook, context), "bw_link_on_recovered");
    }
    /* What the queue pair did last; dump_failure(), with bw_link_init.dump_entries, is for the
     * connection that failed last. */
    std::string dump(const bw_dump_attr *attr = nullptr)
    {
        return detail::text("bw_link_dump", [&](char *to, size_t capacity, size_t *length) {
            return bw_link_dump(get(), attr, to, capacity, length);
        });
    }
    std::string dump_failure(const bw_dump_attr *attr = nullptr)
    {
        return detail::text("bw_link_dump_failure", [&](char *to, size_t capacity, size_t *length) {
            return bw_link_dump_failure(get(), attr, to, capacity, length);
        });
    }
    void report(const bw_fault &fault) { check(bw_link_report_fault(get(), &fault), "bw_link_report_fault"); }
    /* Readable when the link has to be polled, with bw_link_init.sleeps: arm(), then poll(), then
     * wait. */
    int fd() { return check(bw_link_fd(get()), "bw_link_fd"); }
    int arm() noexcept { return bw_link_arm(get()); }
    /* Ends the waits for it, also from a signal handler, until `awake` is false. */
    void wake(bool awake = true) const noexcept { bw_link_wake(get(), awake); }
    /* Polls for a while, then arms and sleeps. */
    int wait(bw_link_wc *wc, int max, const bw_wait &how = wait_init()) noexcept
    {
        return bw_link_wait(get(), wc, max, &how);
    }
    /* Take back the requests of this wr_id: at once, or if they are not reported in time. Each returns a
     * bw_cancel, or a code. */
    int cancel(uint64_t wr_id) noexcept { return bw_link_cancel(get(), wr_id); }
    int cancel_recv(uint64_t wr_id) noexcept { return bw_link_cancel_recv(get(), wr_id); }
    int cancel_after(uint64_t wr_id, uint64_t within_ns) noexcept
    {
        return bw_link_cancel_after(get(), wr_id, within_ns);
    }
    int cancel_recv_after(uint64_t wr_id, uint64_t within_ns) noexcept
    {
        return bw_link_cancel_recv_after(get(), wr_id, within_ns);
    }
    /* Lends memory to the peer until the exchange is over: see bw_link_post_send_grant. */
    int post_send_grant(uint64_t wr_id, const bw_sge &lent, uint32_t access, void *message, uint32_t length,
                        uint32_t rkey_at, uint32_t send_flags = BW_SEND_SIGNALED) noexcept
    {
        return bw_link_post_send_grant(get(), wr_id, &lent, access, message, length, rkey_at, send_flags);
    }
    /* The program has the answer: returns a bw_cancel, or a code. */
    int end_grant(uint64_t wr_id) noexcept { return bw_link_end_grant(get(), wr_id); }
    void close(uint32_t timeout_ms) { check(bw_link_close(get(), timeout_ms), "bw_link_close"); }
    /* `report(const bw_link_wc &)` is called for each outcome, and must not throw. Returns how many
     * requests were retired. */
    template <class F> uint64_t drain(uint32_t timeout_ms, F &&report)
    {
        uint64_t retired = 0;
        check(bw_link_drain(get(), timeout_ms, detail::reported<F>::call,
                            const_cast<void *>(static_cast<const void *>(&report)), &retired),
              "bw_link_drain");
        return retired;
    }

    int post_send(const bw_send_wr *wr, uint32_t num, bw_replay replay,
                  const bw_send_wr **bad = nullptr) noexcept
    {
        return bw_link_post_send(get(), wr, num, replay, bad);
    }
    int post_write(uint64_t wr_id, const bw_sge &sge, uint64_t remote_addr, uint32_t rkey,
                   uint32_t send_flags, bw_replay replay) noexcept
    {
        return bw_link_post_write(get(), wr_id, &sge, remote_addr, rkey, send_flags, replay);
    }
    int post_write_inline(uint64_t wr_id, const void *data, uint32_t length, uint64_t remote_addr,
                          uint32_t rkey, uint32_t send_flags, bw_replay replay) noexcept
    {
        return bw_link_post_write_inline(get(), wr_id, data, length, remote_addr, rkey, send_flags,
                                         replay);
    }
    int post_read(uint64_t wr_id, const bw_sge &sge, uint64_t remote_addr, uint32_t rkey,
                  uint32_t send_flags, bw_replay replay) noexcept
    {
        return bw_link_post_read(get(), wr_id, &sge, remote_addr, rkey, send_flags, replay);
    }
    int post_send_one(uint64_t wr_id, const bw_sge &sge, uint32_t send_flags,
                      bw_replay replay) noexcept
    {
        return bw_link_post_send_one(get(), wr_id, &sge, send_flags, replay);
    }
    int post_send_inline(uint64_t wr_id, const void *data, uint32_t length, uint32_t send_flags,
                         bw_replay replay) noexcept
    {
        return bw_link_post_send_inline(get(), wr_id, data, length, send_flags, replay);
    }
    int post_recv(const bw_recv_wr *wr, uint32_t num, const bw_recv_wr **bad = nullptr) noexcept
    {
        return bw_link_post_recv(get(), wr, num, bad);
    }
    int post_recv_one(uint64_t wr_id, const bw_sge &sge) noexcept
    {
        return bw_link_post_recv_one(get(), wr_id, &sge);
    }
    int ring_sq() noexcept { return bw_link_ring_sq(get()); }
    int ring_rq() noexcept { return bw_link_ring_rq(get()); }
    int poll(bw_link_wc *wc, int max) noexcept
    {
        return bw_link_poll(get(), wc, max);
    }
};

/* A bw_link_set_init with the defaults. */
inline bw_link_set_init link_set_init()
{
    bw_link_set_init init;
    check(bw_link_set_init_default(&init, sizeof init), "bw_link_set_init_default");
    return init;
}

/*
 * The same, for a set whose links receive from a shared receive queue. Messages of up to `length`
 * bytes come into blocks of `messages`, of which one link holds up to `max_held`. 0: as many as
 * there are.
 */
inline bw_link_set_init link_set_init(const slab &messages, uint32_t length, uint32_t max_held)
{
    bw_link_set_init init = link_set_init();
    init.srq_slab = messages.get();
    init.srq_length = length;
    init.srq_max_held = max_held;
    return init;
}

/*
 * Links on shared completion queues, polled once for all. A link is named by its bw_link_id. post_*, ring_*
 * and poll() return codes, and never throw.
 */
class link_set : public handle<bw_link_set, bw_link_set_destroy> {
public:
    using handle::handle;
    explicit link_set(const pd &of, const bw_link_set_init &init = link_set_init())
        : handle(detail::made<bw_link_set>("bw_link_set_create", [&](bw_link_set **to) {
              return bw_link_set_create(of.get(), &init, to);
          })),
          messages_(const_cast<bw_slab *>(init.srq_slab))
    {
    }

    /* Takes the connection over; the handle is empty from then on. */
    bw_link_id join(tcp_conn &conn, const bw_link_init &init = link_init())
    {
        bw_link_id link = 0;
        check(bw_link_set_join(get(), &init, conn.get(), &link), "bw_link_set_join");
        return link;
    }
    /* Connects by the communication manager. */
    bw_link_id connect(const connector &by, const bw_link_init &init = link_init())
    {
        bw_link_id link = 0;
        check(bw_link_set_connect(get(), by.get(), &init, &link), "bw_link_set_connect");
        return link;
    }
    /* Empty if no peer has asked in this time. */
    std::optional<bw_link_id> accept(listener &at, uint32_t timeout_ms,
                                     const bw_link_init &init = link_init())
    {
        bw_link_id link = 0;
        int code = bw_link_set_accept(get(), at.get(), &init, timeout_ms, &link);
        if (detail::nothing_came(code))
            return std::nullopt;
        check(code, "bw_link_set_accept");
        return link;
    }
    /* A link of the set, and the plain link that it is connected with in the process. */
    std::pair<bw_link_id, reliable_link> join_pair(const bw_link_init &init, const pd &peer_of,
                                                   const bw_link_init &peer_init)
    {
        bw_link_id link = 0;
        bw_link *peer = nullptr;
        check(bw_link_set_join_pair(get(), &init, &link, peer_of.get(), &peer_init, &peer),
              "bw_link_set_join_pair");
        return {link, reliable_link(peer)};
    }
    /* As of a link. */
    int cancel(bw_link_id link, uint64_t wr_id) noexcept { return bw_link_set_cancel(get(), link, wr_id); }
    int cancel_recv(bw_link_id link, uint64_t wr_id) noexcept
    {
        return bw_link_set_cancel_recv(get(), link, wr_id);
    }
    int cancel_after(bw_link_id link, uint64_t wr_id, uint64_t within_ns) noexcept
    {
        return bw_link_set_cancel_after(get(), link, wr_id, within_ns);
    }
    int cancel_recv_after(bw_link_id link, uint64_t wr_id, uint64_t within_ns) noexcept
    {
        return bw_link_set_cancel_recv_after(get(), link, wr_id, within_ns);
    }
    int post_send_grant(bw_link_id link, uint64_t wr_id, const bw_sge &lent, uint32_t access, void *message,
                        uint32_t length, uint32_t rkey_at, uint32_t send_flags = BW_SEND_SIGNALED) noexcept
    {
        return bw_link_set_post_send_grant(get(), link, wr_id, &lent, access, message, length, rkey_at,
                                           send_flags);
    }
    int end_grant(bw_link_id link, uint64_t wr_id) noexcept
    {
        return bw_link_set_end_grant(get(), link, wr_id);
    }
    void close(bw_link_id link, uint32_t timeout_ms)
    {
        check(bw_link_set_close(get(), link, timeout_ms), "bw_link_set_close");
    }
    void remove(bw_link_id link) { check(bw_link_set_remove(get(), link), "bw_link_set_remove"); }
    /* A link whose state has changed, and its present state; empty if there is none. */
    std::optional<std::pair<bw_link_id, bw_link_state>> next_change()
    {
        bw_link_id link = 0;
        uint32_t state = 0;
        if (check(bw_link_set_next_change(get(), &link, &state), "bw_link_set_next_change") == 0)
            return std::nullopt;
        return std::make_pair(link, static_cast<bw_link_state>(state));
    }
    /* `report(const bw_link_set_wc &)` is called for each outcome, and must not throw. Returns how many
     * requests were retired. */
    template <class F> uint64_t drain(uint32_t timeout_ms, F &&report)
    {
        uint64_t retired = 0;
        check(bw_link_set_drain(get(), timeout_ms, detail::reported<F, bw_link_set_wc>::call,
                                const_cast<void *>(static_cast<const void *>(&report)), &retired),
              "bw_link_set_drain");
        return retired;
    }
    bw_link_set_info query() const
    {
        return detail::filled<bw_link_set_info>(
            "bw_link_set_query", [&](bw_link_set_info *to) { return bw_link_set_query(get(), to); });
    }
    bw_link_info query(bw_link_id link)
    {
        return detail::filled<bw_link_info>("bw_link_set_query_link", [&](bw_link_info *to) {
            return bw_link_set_query_link(get(), link, to);
        });
    }
    bw_link_counters counters(bw_link_id link)
    {
        return detail::filled<bw_link_counters>("bw_link_set_query_counters", [&](bw_link_counters *to) {
            return bw_link_set_query_counters(get(), link, to);
        });
    }
    class monitor monitor()
    {
        return bellwire::monitor(detail::made<bw_monitor>(
            "bw_link_set_monitor", [&](bw_monitor **to) { return bw_link_set_monitor(get(), to); }));
    }
    class monitor monitor(bw_link_id link)
    {
        return bellwire::monitor(detail::made<bw_monitor>(
            "bw_link_set_monitor_link", [&](bw_monitor **to) { return bw_link_set_monitor_link(get(), link, to); }));
    }
    /* The peer's address and port, as bw_link_peer_addr() writes it. */
    std::pair<std::string, uint32_t> peer_addr(bw_link_id link)
    {
        char host[BW_ADDR_MAX];
        uint32_t port = 0;
        check(bw_link_set_peer_addr(get(), link, host, &port), "bw_link_set_peer_addr");
        return {host, port};
    }
    /* A pointer of the program's own. */
    void set_context(bw_link_id link, void *context)
    {
        check(bw_link_set_set_context(get(), link, context), "bw_link_set_set_context");
    }
    template <class T> T *context(bw_link_id link) const noexcept
    {
        return static_cast<T *>(bw_link_set_context(get(), link));
    }
    void on_fault(bw_link_id link, bw_fault_fn hook, void *context = nullptr)
    {
        check(bw_link_set_on_fault(get(), link, hook, context), "bw_link_set_on_fault");
    }
    void on_recovered(bw_link_id link, bw_recovered_fn hook, void *context = nullptr)
    {
        check(bw_link_set_on_recovered(get(), link, hook, context), "bw_link_set_on_recovered");
    }
    /* What the link's queue pair did last; dump_failure(), with bw_link_init.dump_entries, is for the
     * connection that failed last. */
    std::string dump(bw_link_id link, const bw_dump_attr *attr = nullptr)
    {
        return detail::text("bw_link_set_dump", [&](char *to, size_t capacity, size_t *length) {
            return bw_link_set_dump(get(), link, attr, to, capacity, length);
        });
    }
    std::string dump_failure(bw_link_id link, const bw_dump_attr *attr = nullptr)
    {
        return detail::text("bw_link_set_dump_failure", [&](char *to, size_t capacity, size_t *length) {
            return bw_link_set_dump_failure(get(), link, attr, to, capacity, length);
        });
    }
    void report(bw_link_id link, const bw_fault &fault)
    {
        check(bw_link_set_report_fault(get(), link, &fault), "bw_link_set_report_fault");
    }
    /* Readable when the set has to be polled, with bw_link_set_init.sleeps: arm(), then poll(), then
     * wait. */
    int fd() const { return check(bw_link_set_fd(get()), "bw_link_set_fd"); }
    int arm() noexcept { return bw_link_set_arm(get()); }
    /* Ends the waits for it, also from a signal handler, until `awake` is false. */
    void wake(bool awake = true) const noexcept { bw_link_set_wake(get(), awake); }
    /* Polls for a while, then arms and sleeps. */
    int wait(bw_link_set_wc *wc, int max, const bw_wait &how = wait_init()) noexcept
    {
        return bw_link_set_wait(get(), wc, max, &how);
    }
    /* Nanoseconds until it has to be polled; UINT64_MAX: no limit. */
    uint64_t time_left() const
    {
        uint64_t left = 0;
        check(bw_link_set_time_left(get(), &left), "bw_link_set_time_left");
        return left;
    }

    int post_send(bw_link_id link, const bw_send_wr *wr, uint32_t num, bw_replay replay,
                  const bw_send_wr **bad = nullptr) noexcept
    {
        return bw_link_set_post_send(get(), link, wr, num, replay, bad);
    }
    int post_write(bw_link_id link, uint64_t wr_id, const bw_sge &sge, uint64_t remote_addr,
                   uint32_t rkey, uint32_t send_flags, bw_replay replay) noexcept
    {
        return bw_link_set_post_write(get(), link, wr_id, &sge, remote_addr, rkey, send_flags, replay);
    }
    int post_write_inline(bw_link_id link, uint64_t wr_id, const void *data, uint32_t length,
                          uint64_t remote_addr, uint32_t rkey, uint32_t send_flags,
                          bw_replay replay) noexcept
    {
        return bw_link_set_post_write_inline(get(), link, wr_id, data, length, remote_addr, rkey,
                                             send_flags, replay);
    }
    int post_read(bw_link_id link, uint64_t wr_id, const bw_sge &sge, uint64_t remote_addr,
                  uint32_t rkey, uint32_t send_flags, bw_replay replay) noexcept
    {
        return bw_link_set_post_read(get(), link, wr_id, &sge, remote_addr, rkey, send_flags, replay);
    }
    int post_send_one(bw_link_id link, uint64_t wr_id, const bw_sge &sge, uint32_t send_flags,
                      bw_replay replay) noexcept
    {
        return bw_link_set_post_send_one(get(), link, wr_id, &sge, send_flags, replay);
    }
    int post_send_inline(bw_link_id link, uint64_t wr_id, const void *data, uint32_t length,
                         uint32_t send_flags, bw_replay replay) noexcept
    {
        return bw_link_set_post_send_inline(get(), link, wr_id, data, length, send_flags, replay);
    }
    int post_recv(bw_link_id link, const bw_recv_wr *wr, uint32_t num,
                  const bw_recv_wr **bad = nullptr) noexcept
    {
        return bw_link_set_post_recv(get(), link, wr, num, bad);
    }
    int post_recv_one(bw_link_id link, uint64_t wr_id, const bw_sge &sge) noexcept
    {
        return bw_link_set_post_recv_one(get(), link, wr_id, &sge);
    }
    int ring_sq(bw_link_id link) noexcept { return bw_link_set_ring_sq(get(), link); }
    int ring_rq(bw_link_id link) noexcept { return bw_link_set_ring_rq(get(), link); }
    int poll(bw_link_set_wc *wc, int max) noexcept { return bw_link_set_poll(get(), wc, max); }
    /* The message that an outcome brought from the shared receive queue, whose length is the block's. It is
     * received into again once the block is destroyed: call this once for each outcome. Empty for all others. */
    block message(const bw_link_set_wc &of) const noexcept
    {
        if (messages_ == nullptr || (of.wc.opcode & BW_WC_RECV) == 0)
            return {};
        return {messages_, bw_block{of.wc.wr_id, of.wc.byte_len, 0}};
    }

private:
    bw_slab *messages_ = nullptr;
};

} // namespace bellwire

#endif
