/*
 * bellwire: an RDMA data plane. This is its C interface.
 *
 * A program lists or opens a device, and creates a protection domain, memory, completion queues and
 * queue pairs on it. It connects queue pairs, and then posts requests, rings doorbells and polls.
 * examples/c/hello.c shows all of this on two pages, examples/c/pingpong.c the same between two
 * processes; bellwire.hpp has owning classes for the handles in C++17.
 * `pkg-config --cflags --libs bellwire` returns the flags to compile and link with, and with --static
 * those for the static library; CMake has bellwire::bellwire and bellwire::static.
 *
 * FOR USERS OF LIBIBVERBS
 *
 *   ibv_get_device_list        bw_device_at()               ibv_reg_mr            bw_mr_create()
 *   ibv_open_device            bw_device_open()             ibv_create_ah         bw_ah_create()
 *   ibv_alloc_pd               bw_pd_create()               ibv_alloc_mw          bw_mw_create()
 *   ibv_create_comp_channel    bw_comp_channel_create()     ibv_post_send, _recv  bw_post_send(), _recv()
 *   ibv_create_cq              bw_cq_create()               ibv_poll_cq           bw_poll()
 *   ibv_create_srq             bw_srq_create()              ibv_req_notify_cq     bw_cq_req_notify()
 *   ibv_create_qp              bw_qp_create()               ibv_get_async_event   bw_get_async_event()
 *   ibv_modify_qp, _query_qp   bw_qp_modify(), _query()     rdma_resolve_addr ... bw_cm_resolve_addr() ...
 *
 * - bw_device is the open device (ibv_context). Memory that the library allocates is a bw_region, the
 *   program's own memory a bw_mr. A bw_slab divides a region into blocks.
 * - bw_qp_init() and bw_qp_connect() (for datagrams: bw_qp_start()) move a queue pair from RESET to
 *   RTS; bw_qp_modify() does it attribute by attribute. bw_endpoint is what the peer has to know;
 *   send it by bw_tcp_exchange(), or by anything else that can carry its bytes. bw_cm_*() connect by
 *   address and port instead, as librdmacm does.
 * - bw_post_send() and bw_post_recv() take an array instead of a linked list. For a single request
 *   bw_post_write() and similar functions are faster; they do not notify the device before
 *   bw_ring_sq().
 * - A request without BW_SEND_SIGNALED is reported as well: by `retired` of a later completion of its
 *   queue. So signal the last request of a group, and count `retired` instead of completions.
 * - A queue pair reserves completion queue entries for everything that it can have in flight.
 *   Create the completion queue with at least as many as bw_qp_cq_entries() returns.
 * - The software device of one process executes requests within bw_ring_*() and bw_post_send().
 *   Requests that have to wait (for a receive, for a peer) are executed within polls of either end.
 *   Poll in a loop.
 *
 * CONVENTIONS
 *
 * Names. All names begin with bw_ or BW_. Names and numbers are those of libibverbs where they exist
 * there: BW_WC_RNR_RETRY_EXC_ERR is IBV_WC_RNR_RETRY_EXC_ERR, and means the same.
 *
 * Results. Functions return an int: BW_OK, which is 0, or a number of bw_error, which is negative.
 * Where the description says so, a result of 0 or more is a count, a state or a descriptor. A number
 * is never reused for another meaning. bw_strerror() returns what a number means; bw_last_error()
 * returns details of the last failed set-up call on this thread. A set-up call that fails has created
 * and changed nothing, unless its description says otherwise.
 *
 * Posting. bw_post_send(), bw_post_recv(), bw_post_srq_recv(), and for one operation each
 * bw_post_writes(), bw_post_writes_inline() and bw_post_reads(), post an array and notify the device.
 * The other bw_post_*() functions post one request, and bw_ring_*() notifies the device of it. The
 * same holds for bw_link_post_*() and bw_link_ring_*().
 *
 * Polling. bw_poll_one() and bw_poll() fill in a complete bw_wc. bw_poll_completion() and
 * bw_poll_completions() are faster: a bw_completion has the fields that most programs use, and the
 * others are decoded on request.
 *
 * Failures. A failed request is reported by its completion; a failure of a queue, a port or the
 * device is reported by an asynchronous event. bw_classify() classifies each: how far it reaches,
 * whether the peer has executed the request, whether a retry helps, and how to recover.
 *
 * Links. A bw_link is a reliable connection that does all of this itself. When something fails it
 * recovers together with the link at its other end, and posts again the requests that may be posted
 * again. It reports the outcome of every request exactly once. The program only has to poll it. It
 * is created by address and port, by bw_link_connect() at one end and bw_link_accept() at the
 * other, or by bw_link_create() on a TCP connection.
 *
 * Two kinds of functions. The data path consists of bw_post_*(), bw_ring_*() and bw_poll*(); for
 * slabs bw_slab_take() and bw_slab_return(), for their caches bw_slab_cache_take() and
 * bw_slab_cache_return(). For links it is bw_link_post_*() and bw_link_ring_*(). These functions
 * allocate no memory, make no system call, take no lock of their own, and do not change
 * bw_last_error(). The same holds for bw_link_poll() while nothing fails. All other functions are
 * set-up calls, which may do all of that.
 *
 * Handles. Devices, protection domains, memory, slabs and their caches, queues, address handles,
 * channels, ids, events, listeners, connectors, connections, links and monitors are pointers to opaque
 * structs. A function that creates one writes its handle to the last argument, or NULL when it
 * fails. The handle belongs to the caller until it is passed to the function that destroys it; each
 * kind has one. An object that others use cannot be destroyed: the result is BW_EBUSY, and nothing
 * has happened. "It keeps X" in the description of a create function says which objects are used in
 * this way. Destroying in the opposite order of creation avoids this. Destroying an object that
 * events are about waits until the events that the program has taken are acknowledged. A thread
 * that holds such an event itself waits forever.
 *
 * NULL. A NULL where a pointer is required results in BW_ENULL. Any other pointer has to be valid.
 * A handle that was destroyed, or that is of another kind, is not detected. Using it, or destroying
 * it a second time, is undefined behaviour.
 *
 * Structs that grow. A struct whose first field is `size` may get more fields in later versions. Set
 * `size` to sizeof the struct before every call, also if the library fills the struct. Fields that the
 * program does not know keep their defaults, and are not written. A size that no version of the struct
 * has had, up to the library's, results in BW_ESIZE, and nothing is read or written. Fields named
 * reserved are 0; where the program passes them they are checked: BW_EINVAL.
 *
 * Arrays. bw_wc, bw_completion, bw_link_wc, bw_send_wr, bw_recv_wr, bw_rdma_wr and bw_soft_step
 * have no `size`, and may grow in the same way. The functions of this header that take them, alone
 * or in arrays, are inline. They pass sizeof the struct to the library's function of the same name
 * with _sized; other languages call the _sized function. Fields that the program's struct does not
 * have are 0 in requests, and are not written to completions; other sizes result in BW_ESIZE.
 * bw_poll_one() and bw_poll_completion(), the shortest way to one completion, have no size. A
 * library whose struct is larger has other functions for it, which its header calls by these names.
 * It keeps these functions for programs of this version. All other structs without a `size` never
 * change.
 *
 * Arguments. Strings are UTF-8 and end with NUL. Pointers are not kept beyond the call, except for
 * handles and registered memory. Integers that stand for an enum, or for its bits, are checked: an
 * unknown value is an error.
 *
 * Byte order. Integers are in host byte order, except for immediate data, which is in network byte
 * order, and GIDs, which are 16 bytes in wire order.
 *
 * Memory of requests. The bytes that a request names must remain valid, and must not be written,
 * from its post until it has been reported. For a receive, a READ or an atomic they must not be
 * accessed either. It is reported when its completion, or the one that retires it, has been polled,
 * or by bw_qp_reset(). For a link: until bw_link_poll() or bw_link_drain() has reported it, also
 * during a recovery, since it may be posted again. Bytes that are posted inline, and the structs
 * and lists of the request itself, may be reused when the post returns.
 *
 * Versions. A program calls bw_version_check(BW_VERSION) first. The library's file name contains the
 * version of its ABI, libbellwire.so.0.1: the major version, and the minor one while the major one is
 * 0. Under one such name functions and numbers are added and never removed or changed. Structs grow
 *    at their end if they grow at all. A version that breaks compiled programs has another name.
 *    The name is also the version of the library's symbols. If a program and its plug-in are linked
 *    with libraries of two ABIs, each gets the functions of its own.
 *
 * Panics. The library is written in Rust. An internal fault in a set-up call is caught: the result is
 * BW_EINTERNAL, and the objects of that call may only be destroyed. The data path has no code that
 * panics; if it did, the process would abort. Nothing unwinds into the program, and callbacks of the
 * program must not unwind (throw, longjmp) into the library.
 *
 * THE PROCESS
 *
 * Threads. Functions marked "Thread: any" may be called by any thread at any time, on the same
 * objects too. The queues have no locks, and have one owner at a time. The owner is the only thread
 * that calls their functions. It passes them on by something that orders memory (a mutex, a join, a
 * release and an acquire). Completion queues, shared receive queues, queue pairs, memory windows
 * and caches of slabs have an owner each. So have links, listeners for links and TCP connections. A
 * queue pair's send queue and its receive queue may also be owned by two different threads while
 * only the data path is called. Other functions on the queue pair require the owner of both. Two
 * threads in one queue at the same time are undefined behaviour. A build of the library with debug
 * assertions detects it on the data path, and returns BW_ECONCURRENT to the thread that came
 * second.
 *
 * Priorities. A thread of any priority may call any function. A wait for another thread spins, then
 * yields, and sleeps after less than a millisecond. So a thread without a real-time priority on the
 * same processor goes on.
 *
 * Signals. The library uses no signal but SIGSEGV and SIGBUS (see Memory that goes away). Its own
 * threads, whose names begin with "bellwire-", take none: every signal is blocked in them. No function
 * is async-signal-safe, except bw_..._wake(). A wait with a limit goes on for the time that is left
 * when a handler interrupts it. A wait without a limit (bw_get_cq_event(), bw_get_async_event(), and
 * others with UINT32_MAX or UINT64_MAX) returns BW_EINTR, also if the handler has SA_RESTART. Nothing
 * is lost: call it again unless the program is to end. For bw_tcp_*() UINT32_MAX is a limit.
 *
 *     while (!stop) {                      // set by the handler
 *         code = bw_get_cq_event(channel, &cqn, NULL);
 *         if (code == BW_EINTR)
 *             continue;
 *         ...
 *
 * A handler that must not be missed also calls bw_..._wake(): a signal that comes between the check of
 * `stop` and the sleep interrupts nothing.
 *
 * Ending waits. bw_comp_channel_wake(), bw_device_async_wake(), bw_cm_channel_wake(),
 * bw_listener_wake(), bw_link_wake(), bw_link_set_wake() and bw_tcp_listener_wake() with 1 end the
 * waits for an object. Waits that sleep, and each later one that would sleep, return BW_EWOKEN
 * until the function is called with 0. So no wake-up is lost. Events that are there are still
 * returned. To stop its threads a program wakes the object, joins them, and destroys the object.
 *
 * Cancellation. pthread_cancel() of a thread is deferred within each call of the library, and acts at
 * the thread's next cancellation point outside of it. It does not end a wait without a limit: cancel
 * the thread, then wake the object. Callbacks run with cancellation deferred. The type has to be
 * PTHREAD_CANCEL_DEFERRED, the default.
 *
 * Fork. A child of fork() starts afresh: it opens devices again, by the same names, and is a
 * process like any other. Handles that it inherits belong to its parent. Functions that destroy,
 * close or acknowledge them return BW_OK without effect, so that exit() and static destructors may
 * run. Other set-up calls return BW_EFORK. The data path does not check: posting to, ringing or
 * polling an inherited handle is undefined behaviour. Memory that is shared with peers is a hole in
 * the child's address space; other memory is a copy. vfork(), posix_spawn(), system() and popen()
 * change nothing, and exec() closes every descriptor. daemon() is a fork: open devices after it. On
 * devices of libibverbs the kernel copies registered pages for the child since Linux 5.12; before,
 * set RDMAV_FORK_SAFE=1 (ibv_fork_init(3)). A child that lives on keeps the kernel's objects of its
 * parent's devices, and librdmacm's own descriptors. It should call exec(), or the parent should
 * use such a device after the fork only.
 *
 * Privileges. The fabric "soft:NAME" belongs to the effective user that opens the device, in its
 * user namespace and network namespace. The user is taken when the device is opened: a program may
 * change its user afterwards, reaches the others and is reached. An endpoint of another name, user
 * or namespace fails with BW_ECONN, and the error says whose fabric it is of. A program that
 * accepts connections of the communication manager on a fabric listens before it changes its user.
 * On Soft-RoCE the kernel refuses each post of a process that changed its user after it opened the
 * device. The request fails with BW_WC_WR_FLUSH_ERR, and its vendor_err is EACCES. Open the device
 * afterwards.
 *
 * Sandboxes. The library does not end the process when a system call is refused or a file is
 * hidden, before start-up or later. It goes on without an optional one. A required one fails the
 * call, with an error that names it. docs/sandboxes.md has the table. Processes in other PID
 * namespaces of one network namespace reach each other, and /proc is optional.
 *
 * Memory that goes away. Registration checks each page, as ibv_reg_mr(3) does, and returns
 * BW_EFAULT for memory that cannot be accessed; bw_last_error() names the first page. On the
 * software HCA it also populates the pages, except with BW_ACCESS_ON_DEMAND. If memory is unmapped,
 * protected or truncated later, or the system has no page for it, the requests that access it fail.
 * The status is BW_WC_REM_ACCESS_ERR or BW_WC_REM_OP_ERR for memory of the peer, BW_WC_LOC_PROT_ERR
 * for memory of this side. For that the first registration installs a handler of SIGSEGV and
 * SIGBUS. It acts on accesses of the library only, and passes on all others to the action before. A
 * handler that the program installs later has to pass on all other signals. A thread that posts or
 * polls must not block these two signals. BELLWIRE_NO_FAULT_HANDLER in the environment leaves the
 * handler out; a fault then ends the process. Not covered are accesses of the program itself, and
 * the rings of a fabric under strict overcommit (vm.overcommit_memory 2).
 *
 * Core files and limits. Regions of the library are not in core files, unless
 * `bw_region_attr.in_core_files` is set; memory of the program stays as it is. Shared memory beyond
 * RLIMIT_FSIZE is an error that names the limit.
 *
 * This file is generated from ffi-c/src by `cargo xtask header`.
 */

#ifndef BELLWIRE_H
#define BELLWIRE_H

#include <stddef.h>
#include <stdint.h>

// Major version of this header.
#define BW_VERSION_MAJOR 0

// Minor version of this header.
#define BW_VERSION_MINOR 1

// Patch version of this header.
#define BW_VERSION_PATCH 0

// All three versions, as 0x00MMmmpp.
#define BW_VERSION (((BW_VERSION_MAJOR << 16) | (BW_VERSION_MINOR << 8)) | BW_VERSION_PATCH)

// Characters of a name, including its NUL.
#define BW_NAME_MAX 64

// Characters of a description, including its NUL.
#define BW_TEXT_MAX 128

// Characters of an address, including its NUL.
#define BW_ADDR_MAX 64

// Maximum bytes of private data in an event.
#define BW_CM_PRIVATE_MAX 256

// Bytes of `bw_link_info.why`.
#define BW_WHY_MAX 256

// Entries of `bw_link_counters.faults`: more than there are scopes, so that scopes can be added.
#define BW_SCOPE_MAX 16

// Entries of `bw_queue_counters.requests` and `bytes`.
#define BW_OPERATION_MAX 16

// The entry of BW_WR_NOP there; each other operation has the entry of its number.
#define BW_OPERATION_NOP 15

// A counter that nothing counts.
#define BW_COUNTER_UNKNOWN UINT64_MAX

// The port space of an id (`rdma_port_space`).
typedef enum bw_port_space {
    // Datagrams that share the multicast groups and the Q_Key of IP over InfiniBand.
    BW_PS_IPOIB = 2,
    // Reliable connections.
    BW_PS_TCP = 262,
    // Datagrams, and multicast.
    BW_PS_UDP = 273,
    // Reliable connections, of other services than those of BW_PS_TCP.
    BW_PS_IB = 319,
} bw_port_space;

// Options of an id (`rdma_set_option`).
typedef enum bw_cm_option {
    // Type of service of its packets, up to 255; set before the address is resolved. It is the traffic
    // class of the connection's packets; an accepting end has that of its peer unless it sets one.
    BW_CM_TOS = 0,
    // Not 0: other ids may be bound to the same port. Set before the id is bound.
    BW_CM_REUSEADDR = 1,
    // Not 0: a listener on IPv6 does not listen on IPv4. Set before the id is bound.
    BW_CM_AFONLY = 2,
    // Acknowledgement timeout of its connection, a 5-bit code: 4.096 µs · 2^t, 0 means infinite. Set
    // before it is connected.
    BW_CM_ACK_TIMEOUT = 3,
    // Service level of this end's packets, up to 15. This and the following options apply to the
    // queue pair of this end, and are set before `bw_cm_init_qp`. 0, the default: as the
    // communication manager determines.
    BW_CM_SL = 4,
    // Flow label, up to 20 bits.
    BW_CM_FLOW_LABEL = 5,
    // The index of the partition key in the port's table; also for datagrams.
    BW_CM_PKEY_INDEX = 6,
    // Hop limit, up to 255.
    BW_CM_HOP_LIMIT = 7,
    // UDP source port of RoCE v2 packets, as `udp_sport` of `bw_connect_attr`.
    BW_CM_UDP_SPORT = 8,
} bw_cm_option;

// The result of a call. A number is never reused for another meaning; later versions may add numbers.
typedef enum bw_error {
    // Success.
    BW_OK = 0,
    // A required pointer is NULL.
    BW_ENULL = -1,
    // The `size` field of a struct is not the size of any version of that struct up to this library's.
    BW_ESIZE = -2,
    // An argument or a field has an invalid value, or a reserved field is not 0.
    BW_EINVAL = -3,
    // The program was compiled with the header of a version that this library cannot serve.
    BW_EVERSION = -4,
    // There is no such device.
    BW_ENODEV = -5,
    // The object is in use by other objects, which have to be destroyed first.
    BW_EBUSY = -6,
    // More than the device supports, or than a buffer or private data can hold.
    BW_ELIMIT = -7,
    // All objects of this kind that the device has are in use.
    BW_EEXHAUSTED = -8,
    // Memory cannot be allocated: no huge pages, a limit is reached, or the NUMA node does not exist.
    BW_EMEMORY = -9,
    // Objects of different devices or protection domains, or a block of another slab.
    BW_EFOREIGN = -10,
    // The completion queue has too few entries for all requests that the queue pair can have in
    // flight.
    BW_ECQROOM = -11,
    // The queue pair's state does not allow it: receives may be posted from INIT on, sends from RTS
    // on.
    BW_ESTATE = -12,
    // The queue is full: poll its completion queue, then post again.
    BW_EFULL = -13,
    // More scatter/gather elements than a request of this queue can have: create the queue pair with
    // more.
    BW_ETOOMANYSGE = -14,
    // More inline bytes than a request of this queue can have: post from registered memory, or create
    // the queue pair with more.
    BW_EINLINE = -15,
    // A scatter/gather element of 2 GiB or more: use several.
    BW_ESGELENGTH = -16,
    // This opcode cannot be posted here.
    BW_EOPCODE = -17,
    // The device runs on the real clock, which cannot be moved.
    BW_ECLOCK = -18,
    // A failure that has no code of its own: `bw_last_error` says more.
    BW_EOTHER = -19,
    // An internal fault of the library. The objects of the call should be destroyed.
    BW_EINTERNAL = -20,
    // The queue pair's transport does not support this.
    BW_ETRANSPORT = -21,
    // The queue pair has no receive queue of its own: it uses a shared receive queue, or does not
    // receive.
    BW_ENORQ = -22,
    // No event or peer has arrived, and the call does not block, or its timeout has expired.
    BW_EAGAIN = -23,
    // The device has failed (BW_EVENT_DEVICE_FATAL) and no longer works.
    BW_EFATAL = -24,
    // The timeout expired before the peer, or the name service, replied.
    BW_ETIMEDOUT = -25,
    // No connection: nothing listens at the address, the port is taken, the host is unknown, or the
    // peer has closed the connection.
    BW_ECONN = -26,
    // The peer sent invalid data, or runs another version.
    BW_EPROTO = -27,
    // The device or its driver does not support this.
    BW_EUNSUPPORTED = -28,
    // The link is not connected yet (receives may be posted all the same), or it is recovering.
    // Poll it until it is BW_LINK_READY, then call again.
    BW_ERECOVERING = -29,
    // The link was closed or given up: `bw_link_query` gives the reason.
    BW_EENDED = -30,
    // Two threads are in one queue at the same time. Only a build of the library with debug assertions
    // detects this; in other builds the behaviour is undefined.
    BW_ECONCURRENT = -31,
    // All blocks of this length are taken: poll for completions so that some can be returned, or
    // create the slab with more.
    BW_ENOBLOCK = -32,
    // The block has already been returned.
    BW_ERETURNED = -33,
    // The handle is of no link in the set: the link was removed.
    BW_ENOLINK = -34,
    // Memory to be registered cannot be accessed: `bw_last_error` names the first page (EFAULT of
    // `ibv_reg_mr`).
    BW_EFAULT = -35,
    // The handle belongs to the process that this one was forked from: a child opens the device again,
    // and makes objects of its own.
    BW_EFORK = -36,
    // A signal handler of the program has interrupted a call that waits without a limit. Call it again, unless
    // the program is to end.
    BW_EINTR = -37,
    // The waits for the object were ended, by the function whose name ends with _wake.
    BW_EWOKEN = -38,
    // The queue is full, and its completion queue has failed (BW_EVENT_CQ_ERR): no poll reports the
    // requests in flight. Destroy the queue pairs on it, which reports the rest, and create it again.
    BW_ECQFAILED = -39,
    // The link has no request with this `wr_id`: none was posted, or it was reported or retired.
    BW_ENOREQUEST = -40,
} bw_error;

// What a send request does (`ibv_wr_opcode`; NOP is bellwire's).
typedef enum bw_wr_opcode {
    // Write to the peer's memory.
    BW_WR_RDMA_WRITE = 0,
    // Write to the peer's memory, and consume a receive there, which completes with the immediate
    // data.
    BW_WR_RDMA_WRITE_WITH_IMM = 1,
    // Send into the peer's next receive.
    BW_WR_SEND = 2,
    // Send with immediate data.
    BW_WR_SEND_WITH_IMM = 3,
    // Read the peer's memory.
    BW_WR_RDMA_READ = 4,
    // Compare eight bytes of the peer's memory, and swap them if equal; the old value is returned.
    BW_WR_ATOMIC_CMP_AND_SWP = 5,
    // Add to eight bytes of the peer's memory; the old value is returned.
    BW_WR_ATOMIC_FETCH_AND_ADD = 6,
    // Invalidate a local key.
    BW_WR_LOCAL_INV = 7,
    // Bind a memory window of type 2.
    BW_WR_BIND_MW = 8,
    // Send, and invalidate a key of the peer.
    BW_WR_SEND_WITH_INV = 9,
    // Do nothing, and complete.
    BW_WR_NOP = 255,
} bw_wr_opcode;

// What became of a request (`ibv_wc_status`).
typedef enum bw_wc_status {
    // Executed.
    BW_WC_SUCCESS = 0,
    // A length was not allowed, or a message did not fit its receive.
    BW_WC_LOC_LEN_ERR = 1,
    // The queue pair cannot do this, or the entry is malformed.
    BW_WC_LOC_QP_OP_ERR = 2,
    // An end-to-end context error (obsolete).
    BW_WC_LOC_EEC_OP_ERR = 3,
    // A local key does not cover the memory named, or does not allow the access.
    BW_WC_LOC_PROT_ERR = 4,
    // Flushed: the queue pair was in an error state before the request was finished.
    BW_WC_WR_FLUSH_ERR = 5,
    // A memory window could not be bound.
    BW_WC_MW_BIND_ERR = 6,
    // The responder sent something that was not expected.
    BW_WC_BAD_RESP_ERR = 7,
    // A local protection error while data came in.
    BW_WC_LOC_ACCESS_ERR = 8,
    // The responder found the request invalid.
    BW_WC_REM_INV_REQ_ERR = 9,
    // The responder's key does not cover the memory named, or does not allow the access.
    BW_WC_REM_ACCESS_ERR = 10,
    // The responder could not do it.
    BW_WC_REM_OP_ERR = 11,
    // The responder did not answer within the retries.
    BW_WC_RETRY_EXC_ERR = 12,
    // The responder had no receive posted within the retries.
    BW_WC_RNR_RETRY_EXC_ERR = 13,
    // A local RDD violation (obsolete).
    BW_WC_LOC_RDD_VIOL_ERR = 14,
    // The responder found an invalid RD request (obsolete).
    BW_WC_REM_INV_RD_REQ_ERR = 15,
    // The responder gave the operation up.
    BW_WC_REM_ABORT_ERR = 16,
    // An invalid end-to-end context number (obsolete).
    BW_WC_INV_EECN_ERR = 17,
    // An end-to-end context in the wrong state (obsolete).
    BW_WC_INV_EEC_STATE_ERR = 18,
    // The device reported a fatal error of the request or of itself.
    BW_WC_FATAL_ERR = 19,
    // A response timed out.
    BW_WC_RESP_TIMEOUT_ERR = 20,
    // Another error; the vendor's code says more.
    BW_WC_GENERAL_ERR = 21,
    // Tag matching failed.
    BW_WC_TM_ERR = 22,
    // Tag matching left a rendezvous to software.
    BW_WC_TM_RNDV_INCOMPLETE = 23,
} bw_wc_status;

// What completed (`ibv_wc_opcode`; NOP is bellwire's).
typedef enum bw_wc_opcode {
    // A SEND, with or without immediate data or invalidation.
    BW_WC_SEND = 0,
    // An RDMA WRITE, with or without immediate data.
    BW_WC_RDMA_WRITE = 1,
    // An RDMA READ.
    BW_WC_RDMA_READ = 2,
    // A compare and swap.
    BW_WC_COMP_SWAP = 3,
    // A fetch and add.
    BW_WC_FETCH_ADD = 4,
    // A memory window bind.
    BW_WC_BIND_MW = 5,
    // A local invalidate.
    BW_WC_LOCAL_INV = 6,
    // A TSO send.
    BW_WC_TSO = 7,
    // A NOP.
    BW_WC_NOP = 127,
    // A receive that a SEND consumed. All receives have this bit.
    BW_WC_RECV = 128,
    // A receive that an RDMA WRITE with immediate data consumed.
    BW_WC_RECV_RDMA_WITH_IMM = 129,
} bw_wc_opcode;

// Bits of `bw_wc.wc_flags` (`ibv_wc_flags`).
typedef enum bw_wc_flags {
    // A datagram's first 40 bytes are the global route header.
    BW_WC_GRH = 1,
    // `imm_data` is immediate data.
    BW_WC_WITH_IMM = 2,
    // `imm_data` is the local key that the peer has invalidated.
    BW_WC_WITH_INV = 8,
} bw_wc_flags;

// Bits of the flags of a send request (`ibv_send_flags`).
typedef enum bw_send_flags {
    // Start only after all earlier READs and atomics of this queue have completed.
    BW_SEND_FENCE = 1,
    // Write a completion queue entry when the request is done. An unsignalled request is reported by a
    // later completion of its queue (`bw_wc.retired`). A failed request always has an entry of its
    // own, and so has a flushed one unless `bw_qp_init_attr.suppress_flush` is set.
    BW_SEND_SIGNALED = 2,
    // Raise a solicited event at the receiver.
    BW_SEND_SOLICITED = 4,
    // Copy the payload into the work queue entry: its memory need not be registered, and may be reused
    // as soon as the post returns. For SENDs and WRITEs, through `bw_post_send`.
    BW_SEND_INLINE = 8,
} bw_send_flags;

// Access rights to memory, and those of a connection's peer (`ibv_access_flags`).
typedef enum bw_access_flags {
    // The device may write the memory: receives, and results of READs and atomics.
    BW_ACCESS_LOCAL_WRITE = 1,
    // The peer may write. Needs LOCAL_WRITE as well.
    BW_ACCESS_REMOTE_WRITE = 2,
    // The peer may read.
    BW_ACCESS_REMOTE_READ = 4,
    // The peer may use atomics. Needs LOCAL_WRITE as well.
    BW_ACCESS_REMOTE_ATOMIC = 8,
    // Memory windows may be bound to the memory.
    BW_ACCESS_MW_BIND = 16,
    // Addresses are offsets from the start of the memory.
    BW_ACCESS_ZERO_BASED = 32,
    // Pages are faulted in on demand.
    BW_ACCESS_ON_DEMAND = 64,
    // The memory is made of huge pages.
    BW_ACCESS_HUGETLB = 128,
    // Writes may reach memory in another order than they were sent in.
    BW_ACCESS_RELAXED_ORDERING = 1048576,
} bw_access_flags;

// What `bw_mr_reregister` changes (`ibv_rereg_mr_flags`).
typedef enum bw_rereg_mr_flags {
    // The memory: `addr` and `length`.
    BW_REREG_MR_CHANGE_TRANSLATION = 1,
    // The protection domain.
    BW_REREG_MR_CHANGE_PD = 2,
    // The access rights.
    BW_REREG_MR_CHANGE_ACCESS = 4,
} bw_rereg_mr_flags;

// How `bw_xrcd_open` opens the XRC domain of a file (`oflags` of `ibv_xrcd_init_attr`).
typedef enum bw_xrcd_mode {
    // An XRC domain that is already open.
    BW_XRCD_OPEN = 0,
    // The open one, or a new one if there is none (`O_CREAT`).
    BW_XRCD_CREATE = 1,
    // A new one (`O_CREAT | O_EXCL`).
    BW_XRCD_CREATE_NEW = 2,
} bw_xrcd_mode;

// A transport (`ibv_qp_type`).
typedef enum bw_qp_type {
    // Reliable connection.
    BW_QPT_RC = 2,
    // Unreliable connection.
    BW_QPT_UC = 3,
    // Unreliable datagrams.
    BW_QPT_UD = 4,
    // Extended reliable connection, initiator.
    BW_QPT_XRC_SEND = 9,
    // Extended reliable connection, target: `bw_xrc_target_create`.
    BW_QPT_XRC_RECV = 10,
} bw_qp_type;

// Which fields of a `bw_qp_attr` are given (`ibv_qp_attr_mask`).
typedef enum bw_qp_attr_mask {
    // `qp_state`: move to this state. Without it the state stays.
    BW_QP_STATE = 1,
    // `cur_qp_state`: the state that the program assumes the queue pair to be in.
    BW_QP_CUR_STATE = 2,
    // `en_sqd_async_notify`.
    BW_QP_EN_SQD_ASYNC_NOTIFY = 4,
    // `qp_access_flags`.
    BW_QP_ACCESS_FLAGS = 8,
    // `pkey_index`.
    BW_QP_PKEY_INDEX = 16,
    // `port_num`.
    BW_QP_PORT = 32,
    // `qkey`.
    BW_QP_QKEY = 64,
    // `ah_attr`.
    BW_QP_AV = 128,
    // `path_mtu`.
    BW_QP_PATH_MTU = 256,
    // `timeout`.
    BW_QP_TIMEOUT = 512,
    // `retry_cnt`.
    BW_QP_RETRY_CNT = 1024,
    // `rnr_retry`.
    BW_QP_RNR_RETRY = 2048,
    // `rq_psn`.
    BW_QP_RQ_PSN = 4096,
    // `max_rd_atomic`.
    BW_QP_MAX_QP_RD_ATOMIC = 8192,
    // `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
    BW_QP_ALT_PATH = 16384,
    // `min_rnr_timer`.
    BW_QP_MIN_RNR_TIMER = 32768,
    // `sq_psn`.
    BW_QP_SQ_PSN = 65536,
    // `max_dest_rd_atomic`.
    BW_QP_MAX_DEST_RD_ATOMIC = 131072,
    // `path_mig_state`.
    BW_QP_PATH_MIG_STATE = 262144,
    // The capacities, `max_send_wr` to `max_inline_data`.
    BW_QP_CAP = 524288,
    // `dest_qp_num`.
    BW_QP_DEST_QPN = 1048576,
    // `rate_limit`.
    BW_QP_RATE_LIMIT = 33554432,
} bw_qp_attr_mask;

// The state of path migration (`ibv_mig_state`).
typedef enum bw_mig_state {
    // On the alternate path, or migration was never armed.
    BW_MIG_MIGRATED = 0,
    // Arming, together with the peer.
    BW_MIG_REARM = 1,
    // Ready to migrate.
    BW_MIG_ARMED = 2,
} bw_mig_state;

// The type of a memory window (`ibv_mw_type`).
typedef enum bw_mw_type {
    // Usable through every queue pair of the protection domain. Binding it again replaces the previous
    // binding.
    BW_MW_TYPE_1 = 1,
    // Usable only by peers of the queue pair that bound it. It has to be invalidated before it is
    // bound again: by LOCAL_INV, or by the peer's SEND_WITH_INV.
    BW_MW_TYPE_2 = 2,
} bw_mw_type;

// A port's state (`ibv_port_state`).
typedef enum bw_port_state {
    // The link is down.
    BW_PORT_DOWN = 1,
    // The link is up: packets are sent and received.
    BW_PORT_ACTIVE = 4,
} bw_port_state;

// The state of a queue pair (`ibv_qp_state`).
typedef enum bw_qp_state {
    // As created: nothing may be posted.
    BW_QPS_RESET = 0,
    // Receives may be posted; none is consumed yet.
    BW_QPS_INIT = 1,
    // Ready to receive.
    BW_QPS_RTR = 2,
    // Ready to send: the working state.
    BW_QPS_RTS = 3,
    // Send queue drain: started sends finish, later ones wait.
    BW_QPS_SQD = 4,
    // Send queue error (unreliable transports): a send failed, receiving goes on.
    BW_QPS_SQE = 5,
    // Error: every outstanding request is flushed.
    BW_QPS_ERR = 6,
} bw_qp_state;

// A path MTU (`ibv_mtu`).
typedef enum bw_mtu {
    // 256 bytes.
    BW_MTU_256 = 1,
    // 512 bytes.
    BW_MTU_512 = 2,
    // 1024 bytes.
    BW_MTU_1024 = 3,
    // 2048 bytes.
    BW_MTU_2048 = 4,
    // 4096 bytes.
    BW_MTU_4096 = 5,
} bw_mtu;

// What executes a device's requests, and how they get there.
typedef enum bw_provider {
    // The software device of this library.
    BW_PROVIDER_SOFT = 0,
    // A device of libibverbs: requests and completions go through libibverbs.
    BW_PROVIDER_VERBS = 1,
    // A ConnectX device whose rings the library writes and reads directly.
    BW_PROVIDER_MLX5 = 2,
} bw_provider;

// What executes the requests of a software device.
typedef enum bw_soft_mode {
    // The thread that rings the doorbell: the lowest latency.
    BW_SOFT_INLINE = 0,
    // The device's own threads, as a network adapter would.
    BW_SOFT_ENGINE = 1,
} bw_soft_mode;

// How a software device measures time.
typedef enum bw_soft_clock {
    // By the machine's monotonic clock.
    BW_CLOCK_REAL = 0,
    // By a clock that stands still until `bw_device_advance`. With BW_SOFT_INLINE and one thread
    // everything that the device does is then deterministic.
    BW_CLOCK_VIRTUAL = 1,
} bw_soft_clock;

// The pages that a region is made of.
typedef enum bw_pages {
    // The largest pages available: 1 GiB, 2 MiB, transparent huge pages, base pages. A size is tried
    // only if the region fills at least one page of it. Only valid as a request.
    BW_PAGES_AUTO = 0,
    // 1 GiB hugetlb pages.
    BW_PAGES_HUGE_1G = 1,
    // 2 MiB hugetlb pages.
    BW_PAGES_HUGE_2M = 2,
    // Base pages that the kernel is advised to merge into 2 MiB pages.
    BW_PAGES_TRANSPARENT = 3,
    // The machine's base pages (4 KiB on x86-64).
    BW_PAGES_BASE = 4,
} bw_pages;

// What happened that no completion reports (`ibv_event_type`).
typedef enum bw_event_type {
    // A completion queue failed: it overran, or its memory could not be written.
    BW_EVENT_CQ_ERR = 0,
    // A queue pair went to the error state, and cannot complete with an error why.
    BW_EVENT_QP_FATAL = 1,
    // The responder refused a request as invalid, and went to the error state.
    BW_EVENT_QP_REQ_ERR = 2,
    // The responder refused an access, and went to the error state.
    BW_EVENT_QP_ACCESS_ERR = 3,
    // The first message came while the queue pair was still in RTR.
    BW_EVENT_COMM_EST = 4,
    // The send queue is drained: started requests are finished, and no other is begun.
    BW_EVENT_SQ_DRAINED = 5,
    // The connection moved to the alternate path.
    BW_EVENT_PATH_MIG = 6,
    // The connection could not move to the alternate path.
    BW_EVENT_PATH_MIG_ERR = 7,
    // The device failed; nothing on it works any more.
    BW_EVENT_DEVICE_FATAL = 8,
    // The port's link came up.
    BW_EVENT_PORT_ACTIVE = 9,
    // The port's link went down.
    BW_EVENT_PORT_ERR = 10,
    // The port has another LID.
    BW_EVENT_LID_CHANGE = 11,
    // The port's table of partition keys changed.
    BW_EVENT_PKEY_CHANGE = 12,
    // The port has another subnet manager.
    BW_EVENT_SM_CHANGE = 13,
    // A shared receive queue failed.
    BW_EVENT_SRQ_ERR = 14,
    // A shared receive queue has fewer receives than its limit; the limit is off now.
    BW_EVENT_SRQ_LIMIT_REACHED = 15,
    // A queue pair in the error state takes no more receives from its shared receive queue.
    BW_EVENT_QP_LAST_WQE_REACHED = 16,
    // The subnet manager asks to subscribe and register anew.
    BW_EVENT_CLIENT_REREGISTER = 17,
    // The port's table of GIDs changed.
    BW_EVENT_GID_CHANGE = 18,
    // A work queue failed.
    BW_EVENT_WQ_FATAL = 19,
} bw_event_type;

// What the communication manager reports (`rdma_cm_event_type`).
typedef enum bw_cm_event_type {
    // The address was resolved.
    BW_CM_EVENT_ADDR_RESOLVED = 0,
    // The address could not be resolved.
    BW_CM_EVENT_ADDR_ERROR = 1,
    // The route was resolved.
    BW_CM_EVENT_ROUTE_RESOLVED = 2,
    // The route could not be resolved.
    BW_CM_EVENT_ROUTE_ERROR = 3,
    // A peer wants to connect.
    BW_CM_EVENT_CONNECT_REQUEST = 4,
    // The peer accepted the connection.
    BW_CM_EVENT_CONNECT_RESPONSE = 5,
    // The connection could not be made.
    BW_CM_EVENT_CONNECT_ERROR = 6,
    // The peer does not answer.
    BW_CM_EVENT_UNREACHABLE = 7,
    // The peer rejected the connection.
    BW_CM_EVENT_REJECTED = 8,
    // The connection is made.
    BW_CM_EVENT_ESTABLISHED = 9,
    // The connection is gone.
    BW_CM_EVENT_DISCONNECTED = 10,
    // The device of the identifier is being removed.
    BW_CM_EVENT_DEVICE_REMOVAL = 11,
    // A multicast group was joined.
    BW_CM_EVENT_MULTICAST_JOIN = 12,
    // A multicast group could not be joined, or was lost.
    BW_CM_EVENT_MULTICAST_ERROR = 13,
    // The network interface of the identifier has another hardware address.
    BW_CM_EVENT_ADDR_CHANGE = 14,
    // The queue pair may be used again.
    BW_CM_EVENT_TIMEWAIT_EXIT = 15,
} bw_cm_event_type;

// How far a fault reaches.
typedef enum bw_scope {
    // Nothing is broken.
    BW_SCOPE_NONE = 0,
    // The one request, or call: everything else works on.
    BW_SCOPE_REQUEST = 1,
    // The queue pair, and all that is posted to it. Its completion queues work on.
    BW_SCOPE_QP = 2,
    // The completion queue, all queue pairs on it, and the completions in it.
    BW_SCOPE_CQ = 3,
    // The shared receive queue, and all queue pairs that receive from it.
    BW_SCOPE_SRQ = 4,
    // A path or a group in the fabric: what leads there has to be found anew.
    BW_SCOPE_PATH = 5,
    // A port, and what goes through it.
    BW_SCOPE_PORT = 6,
    // The device, and everything on it.
    BW_SCOPE_DEVICE = 7,
    // A connection: the queue pairs at both of its ends.
    BW_SCOPE_CONNECTION = 8,
} bw_scope;

// The part that most likely caused a fault.
typedef enum bw_blame {
    // Nobody: it is news, or it follows from another fault.
    BW_BLAME_NONE = 0,
    // This program.
    BW_BLAME_LOCAL_PROGRAM = 1,
    // The program at the peer.
    BW_BLAME_REMOTE_PROGRAM = 2,
    // Cables, switches, the subnet manager; or the peer is gone.
    BW_BLAME_FABRIC = 3,
    // The device, its firmware or its driver.
    BW_BLAME_DEVICE = 4,
    // How machines, devices or the fabric are set up.
    BW_BLAME_CONFIGURATION = 5,
    // The fault does not say.
    BW_BLAME_UNKNOWN = 6,
} bw_blame;

// Whether the same request, or call, can succeed if it is tried again after the recovery.
typedef enum bw_retry {
    // It can succeed, as it is.
    BW_RETRY_HELPS = 0,
    // It can succeed when something else was mended first.
    BW_RETRY_AFTER_REPAIR = 1,
    // It cannot succeed as it is: change it.
    BW_RETRY_NEVER = 2,
    // There is nothing to try again.
    BW_RETRY_NOT_APPLICABLE = 3,
} bw_retry;

// What a fault says of the request at the peer.
typedef enum bw_execution {
    // It was executed.
    BW_EXECUTION_EXECUTED = 0,
    // It was not executed as a whole. A WRITE may have changed a part of its target.
    BW_EXECUTION_NOT_EXECUTED = 1,
    // It may have been executed or not.
    BW_EXECUTION_UNKNOWN = 2,
    // Nothing: it is not about a request to the peer.
    BW_EXECUTION_NOT_APPLICABLE = 3,
} bw_execution;

// What makes work possible again.
typedef enum bw_recovery {
    // Nothing has to be recovered.
    BW_RECOVERY_NONE = 0,
    // Poll the flushed sends, then take the queue pair from SQE to RTS. Receiving goes on
    // meanwhile. If it is in ERR: RESET_QP.
    BW_RECOVERY_SQE_TO_RTS = 1,
    // Take the queue pair to ERR, drain it, then RESET, INIT, RTR, RTS together with the peer.
    BW_RECOVERY_RESET_QP = 2,
    // Destroy the queue pairs on it, destroy it, create it, create the queue pairs, connect them
    // again.
    BW_RECOVERY_REBUILD_CQ = 3,
    // Take its queue pairs to ERR, wait for LAST_WQE_REACHED of each with a deadline, rebuild it,
    // post its receives again, reset the queue pairs.
    BW_RECOVERY_REBUILD_SRQ = 4,
    // Post receives to it, then set its limit again.
    BW_RECOVERY_REFILL_SRQ = 5,
    // Wait for PORT_ACTIVE, then probe the path before using it.
    BW_RECOVERY_WAIT_FOR_PORT = 6,
    // Forget the addresses that were looked up, and resolve them again.
    BW_RECOVERY_RESOLVE = 7,
    // Join the multicast groups again.
    BW_RECOVERY_REJOIN_MULTICAST = 8,
    // Load a new alternate path and arm it.
    BW_RECOVERY_LOAD_ALTERNATE_PATH = 9,
    // Connect again, with a growing delay and a limit.
    BW_RECOVERY_RECONNECT = 10,
    // Stop, report all requests, close the device. Teardown may fail, and must not be waited for
    // without a bound.
    BW_RECOVERY_CLOSE_DEVICE = 11,
    // Destroy the communication identifier and all that it has on the device.
    BW_RECOVERY_DESTROY_ID = 12,
    // Report all requests, and end the link.
    BW_RECOVERY_CLOSE_LINK = 13,
} bw_recovery;

// Where the number of a fault comes from.
typedef enum bw_fault_family {
    // A completion: a `bw_wc_status`.
    BW_FAMILY_STATUS = 0,
    // An asynchronous event: a `bw_event_type`.
    BW_FAMILY_EVENT = 1,
    // An event of rdma_cm: a `bw_cm_event_type`.
    BW_FAMILY_CM = 2,
    // The `errno` of a call of libibverbs or librdmacm, whatever its sign.
    BW_FAMILY_ERRNO = 3,
    // What a link learns from its peer: a `bw_peer_fault`.
    BW_FAMILY_PEER = 4,
    // What a link that watches its requests and its peer finds: a `bw_link_fault`.
    BW_FAMILY_LINK = 5,
} bw_fault_family;

// What a link learns from its peer.
typedef enum bw_peer_fault {
    // It asks for a recovery.
    BW_PEER_RECOVERS = 0,
    // It has closed its end in an orderly shutdown.
    BW_PEER_CLOSED = 1,
    // It can no longer be reached, or its messages make no sense.
    BW_PEER_LOST = 2,
    // Another process replies in its place, and does not know the link.
    BW_PEER_RESTARTED = 3,
    // It has given the link up, for the reason in `bw_fault.named_family` and `named_number`.
    BW_PEER_GAVE_UP = 4,
} bw_peer_fault;

// What a link finds that watches its requests and its peer.
typedef enum bw_link_fault {
    // A request did not complete within `bw_link_init.request_deadline_ns`.
    BW_DEADLINE_MISSED = 0,
    // The peer did not acknowledge a keep-alive in time: `bw_link_init.keep_alive_ns`.
    BW_KEEP_ALIVE_MISSED = 1,
    // The peer's messages hold more buffers of a set's shared receive queue than one link may:
    // `bw_link_set_init.srq_max_held`.
    BW_RECV_LIMIT_EXCEEDED = 2,
    // A request in flight was cancelled (`bw_link_cancel`), or has missed a deadline of its own.
    BW_CANCELLED = 3,
} bw_link_fault;

// The queue that a request was posted to.
typedef enum bw_work_queue {
    // The send queue.
    BW_QUEUE_SEND = 0,
    // The queue pair's own receive queue.
    BW_QUEUE_RECV = 1,
    // A shared receive queue.
    BW_QUEUE_SRQ = 2,
} bw_work_queue;

// The vendor of `vendor_err`.
typedef enum bw_vendor {
    // A device whose vendor codes are not known here.
    BW_VENDOR_NONE = 0,
    // A ConnectX device.
    BW_VENDOR_CONNECTX = 1,
} bw_vendor;

// The kind of object that an event is about, and so what `bw_async_event_info.number` is.
typedef enum bw_element {
    // The device; the number is 0.
    BW_ELEMENT_DEVICE = 0,
    // A completion queue (`bw_cq_query`).
    BW_ELEMENT_CQ = 1,
    // A queue pair (`bw_qp_query`).
    BW_ELEMENT_QP = 2,
    // A shared receive queue (`bw_srq_query`).
    BW_ELEMENT_SRQ = 3,
    // A work queue.
    BW_ELEMENT_WQ = 4,
    // A port, from 1.
    BW_ELEMENT_PORT = 5,
} bw_element;

// When a fault is injected. Counts and times start when the script is given, and cover the whole
// device unless the step names a queue pair.
typedef enum bw_soft_trigger {
    // At the `at`-th send request that is executed, from 1; retries do not count.
    BW_AT_REQUEST = 0,
    // At the `at`-th request packet, from 1: each attempt to execute a request is one.
    BW_AT_PACKET = 1,
    // When `at` nanoseconds of the device's time have passed.
    BW_AFTER = 2,
    // Before the `at`-th change of any queue pair's state or attributes, from 1.
    BW_AT_MODIFY = 3,
} bw_soft_trigger;

// Which fault is injected. The faults up to BW_FAULT_STATUS, and those from BW_FAULT_STATUS_AFTER
// to BW_FAULT_RECV_CQ_OVERRUN, affect the current request, and need BW_AT_REQUEST or BW_AT_PACKET.
// The others affect the device, with any trigger.
typedef enum bw_soft_fault {
    // The request is lost on its way to the responder.
    BW_FAULT_DROP_REQUEST = 0,
    // The request is executed, and its acknowledgement is lost.
    BW_FAULT_DROP_ACK = 1,
    // The request takes `value` nanoseconds longer.
    BW_FAULT_DELAY = 2,
    // The responder finds the rkey wrong, if the request has one.
    BW_FAULT_REMOTE_ACCESS = 3,
    // The responder sends an RNR NAK.
    BW_FAULT_RNR = 4,
    // The request completes with the `bw_wc_status` of `value`, without having been executed.
    BW_FAULT_STATUS = 5,
    // The completion queue of number `value` loses an entry.
    BW_FAULT_CQ_OVERRUN = 6,
    // The queue pair of number `value` fails.
    BW_FAULT_QP_FATAL = 7,
    // The shared receive queue of number `value` fails.
    BW_FAULT_SRQ_ERR = 8,
    // The device fails permanently.
    BW_FAULT_DEVICE_FATAL = 9,
    // The port's link goes down.
    BW_FAULT_PORT_DOWN = 10,
    // The port's link comes up.
    BW_FAULT_PORT_UP = 11,
    // The event `event_type` is raised for the object of number `value`.
    BW_FAULT_RAISE = 12,
    // The request completes with the `bw_wc_status` of `value`, though it was executed.
    BW_FAULT_STATUS_AFTER = 13,
    // The request is executed, and its completion overruns the completion queue of its sends.
    BW_FAULT_SEND_CQ_OVERRUN = 14,
    // The request is executed, and the completion of the receive that it consumes overruns that
    // receive's completion queue. Has no effect if it consumes no receive.
    BW_FAULT_RECV_CQ_OVERRUN = 15,
    // The current change of a queue pair's state or attributes is refused, and not made. Needs
    // BW_AT_MODIFY.
    BW_FAULT_REFUSE_MODIFY = 16,
    // The communication manager delivers the event `value`, a `bw_cm_event_type` that reports a
    // failure. BW_CM_EVENT_ADDR_ERROR, _ROUTE_ERROR, _CONNECT_ERROR, _UNREACHABLE and _REJECTED
    // are the outcome of the next call that they can result from. _ADDR_CHANGE and _DEVICE_REMOVAL
    // are delivered to all ids on the device. _MULTICAST_ERROR is delivered to the members of
    // groups, which lose their membership.
    BW_FAULT_CM = 17,
} bw_soft_fault;

// How a dump is written.
typedef enum bw_dump_format {
    // A line for each request, completion and note.
    BW_DUMP_TEXT = 0,
    // One JSON object with the same contents.
    BW_DUMP_JSON = 1,
} bw_dump_format;

// Bits of `bw_dump_attr.flags`.
typedef enum bw_dump_flags {
    // Leave out the bytes held in the queue entries: inline data of sends, and short messages that
    // arrived within completion queue entries. They may be user data. No other memory of requests is
    // ever read.
    BW_DUMP_NO_INLINE = 1,
} bw_dump_flags;

// Where a link's recovery runs.
typedef enum bw_recover_in {
    // In the polls of the link: a poll does what can be done at once, and never waits.
    BW_RECOVER_IN_POLLER = 0,
    // In a thread that exists for as long as the recovery: meanwhile polls return at once and find
    // nothing. Calls on the link that need more than its queues then return BW_ERECOVERING.
    BW_RECOVER_IN_THREAD = 1,
} bw_recover_in;

// The outcome of a request posted to a link.
typedef enum bw_outcome {
    // Executed; the result of a READ or atomic has arrived.
    BW_OUTCOME_EXECUTED = 0,
    // Failed with `bw_link_wc.status`, and not executed as a whole. A WRITE may have changed part of its
    // target; a READ may have been executed, which has no lasting effect.
    BW_OUTCOME_FAILED = 1,
    // Not executed, through no fault of the request: it may be posted again.
    BW_OUTCOME_NOT_EXECUTED = 2,
    // Unknown, or the result is lost: `bw_link_wc.doubt` says why.
    BW_OUTCOME_IN_DOUBT = 3,
} bw_outcome;

// Why an outcome remains in doubt.
typedef enum bw_doubt {
    // It is not in doubt.
    BW_DOUBT_NONE = 0,
    // Executed or not: no acknowledgement arrived. The request is after the last one that was
    // certainly executed and before the first one that certainly was not.
    BW_DOUBT_NO_ANSWER = 1,
    // A READ or atomic that was executed. Its result did not arrive, and that of an atomic is lost for
    // good.
    BW_DOUBT_RESULT_LOST = 2,
    // Executed or not: completions of the peer were lost, so that its count is a lower bound.
    BW_DOUBT_PEER_LOST_COUNT = 3,
    // Executed or not: the peer's count contradicts the record of this end.
    BW_DOUBT_COUNT_CONTRADICTS = 4,
    // Executed or not: the peer can no longer be asked.
    BW_DOUBT_PEER_GONE = 5,
    // A local operation that may have been executed before the queue pair stopped.
    BW_DOUBT_LOCAL = 6,
    // Executed or not: the program cancelled it before an acknowledgement arrived.
    BW_DOUBT_CANCELLED = 7,
    // Executed or not: its deadline passed before an acknowledgement arrived.
    BW_DOUBT_DEADLINE_PASSED = 8,
} bw_doubt;

// What to do, once the link works again, with a request that did not complete successfully. A request
// that was executed is reported as BW_OUTCOME_EXECUTED in any case.
typedef enum bw_replay {
    // Report its outcome to the program.
    BW_REPLAY_NEVER = 0,
    // Post it again if posting it twice has the same effect as posting it once. These are requests
    // that were not executed, and READs in doubt after which nothing was executed.
    BW_REPLAY_IF_SAFE = 1,
    // As BW_REPLAY_IF_SAFE, and also WRITEs and READs in doubt: their target and source do not change
    // meanwhile, or a change does no harm. SENDs, WRITEs with immediate data, and atomics that may
    // have been executed are never posted again.
    BW_REPLAY_ANYWAY = 2,
} bw_replay;

// The state of a link.
typedef enum bw_link_state {
    // It is connecting, for the first time or again. Posts are refused, except for receives while it
    // connects for the first time; poll it.
    BW_LINK_RECOVERING = 0,
    // It is connected.
    BW_LINK_READY = 1,
    // The program has closed it.
    BW_LINK_CLOSED = 2,
    // The peer has closed it, in an orderly shutdown.
    BW_LINK_PEER_CLOSED = 3,
    // It could not be recovered: `bw_link_query` gives the reason.
    BW_LINK_GAVE_UP = 4,
} bw_link_state;

// How urgent a record of the log is.
typedef enum bw_log_level {
    // A link could not be recovered.
    BW_LOG_ERROR = 1,
    // A fault of a link; a link that works again, but not as before; a peer that is refused.
    BW_LOG_WARN = 2,
    // A device is opened, a connection is made, a link has recovered or was closed.
    BW_LOG_INFO = 3,
    // A set-up call fails. It returns the same text by `bw_last_error`.
    BW_LOG_DEBUG = 4,
} bw_log_level;

// What became of a call that cancels a request.
typedef enum bw_cancel {
    // The request is taken back, at once or at its deadline. Polls report it, once.
    BW_CANCEL_REQUESTED = 0,
    // The request has an outcome, which the next polls report. The call changed nothing.
    BW_CANCEL_COMPLETED = 1,
    // The request was taken back before, and is not reported yet. The call changed nothing.
    BW_CANCEL_REPEATED = 2,
    // A thread recovers the link (BW_RECOVER_IN_THREAD), and takes the request back if it has one of this
    // `wr_id`.
    BW_CANCEL_FORWARDED = 3,
} bw_cancel;

// How a recovery ended.
typedef enum bw_recovery_end {
    // Everything works again.
    BW_END_RECOVERED = 0,
    // The link works, except for what `bw_recovery_report.why` says.
    BW_END_DEGRADED = 1,
    // It cannot be recovered: the link has ended.
    BW_END_GAVE_UP = 2,
} bw_recovery_end;

// A path to a receiver of datagrams, for use by requests.
typedef struct bw_ah bw_ah;

// An asynchronous event that was taken and has to be acknowledged.
typedef struct bw_async_event bw_async_event;

// An event channel for ids (`rdma_event_channel`).
typedef struct bw_cm_channel bw_cm_channel;

// A communication identifier (`rdma_cm_id`): an end of a connection, a listener, or a user of datagram
// services and multicast groups.
typedef struct bw_cm_id bw_cm_id;

// A completion channel: a completion queue that was created on it raises an event here for its next
// entry once it is armed.
typedef struct bw_comp_channel bw_comp_channel;

// Creates links with the listener at one address.
typedef struct bw_connector bw_connector;

// A completion queue.
typedef struct bw_cq bw_cq;

// An open device.
typedef struct bw_device bw_device;

// A reliable connection with its queue pair and completion queue. It recovers from faults together
// with the link at its other end, and reports the outcome of every request once.
typedef struct bw_link bw_link;

// A set of links.
typedef struct bw_link_set bw_link_set;

// Accepts the links that connectors create.
typedef struct bw_listener bw_listener;

// Reads the counters of a queue pair, a link or a set, from any thread.
typedef struct bw_monitor bw_monitor;

// Memory of the program that is registered with a device.
typedef struct bw_mr bw_mr;

// A memory window: a key of its own to a part of registered memory, which requests bind and
// invalidate.
typedef struct bw_mw bw_mw;

// A protection domain: queue pairs reach only memory of the same domain.
typedef struct bw_pd bw_pd;

// A queue pair, of any transport.
typedef struct bw_qp bw_qp;

// Memory that the library has allocated and registered with a device.
typedef struct bw_region bw_region;

// A region divided into blocks.
typedef struct bw_slab bw_slab;

// Free blocks of one length, kept for one thread.
typedef struct bw_slab_cache bw_slab_cache;

// A receive queue that several queue pairs share.
typedef struct bw_srq bw_srq;

// A TCP connection with a peer.
typedef struct bw_tcp_conn bw_tcp_conn;

// A port that listens for peers.
typedef struct bw_tcp_listener bw_tcp_listener;

// An XRC target: the responder of an extended reliable connection. It has no queues: each request
// names a shared receive queue of its domain.
typedef struct bw_xrc_target bw_xrc_target;

// An XRC domain: its targets reach only the shared receive queues in it.
typedef struct bw_xrcd bw_xrcd;

// What a device is, and what it supports (`ibv_device_attr`, as far as it applies).
typedef struct bw_device_info {
    // `sizeof(bw_device_info)`.
    uint32_t size;
    // READs and atomics in flight to one peer.
    uint32_t max_qp_rd_atom;
    // Its name, for `bw_device_open`.
    char name[BW_NAME_MAX];
    // A description, for people.
    char description[BW_TEXT_MAX];
    // Maximum number of queue pairs.
    uint32_t max_qp;
    // Maximum number of requests in a send or receive queue.
    uint32_t max_qp_wr;
    // Maximum number of scatter/gather elements of a request.
    uint32_t max_sge;
    // Maximum inline bytes of a request.
    uint32_t max_inline_data;
    // Maximum number of entries of a completion queue.
    uint32_t max_cqe;
    // Maximum number of memory regions and windows together.
    uint32_t max_mr;
    // Maximum bytes of a memory region.
    uint64_t max_mr_size;
    // Maximum bytes of a message.
    uint64_t max_msg_sz;
    // Maximum number of shared receive queues.
    uint32_t max_srq;
    // Maximum number of receives in a shared receive queue.
    uint32_t max_srq_wr;
    // Maximum number of scatter/gather elements of such a receive.
    uint32_t max_srq_sge;
    // Maximum number of queue pairs attached to one multicast group.
    uint32_t max_mcast_qp_attach;
    // Maximum number of partition keys of a port.
    uint32_t max_pkeys;
    // Number of ports; they count from 1.
    uint32_t phys_port_cnt;
    // Maximum number of memory windows, of either type; they share the keys of the regions.
    uint32_t max_mw;
    // 0.
    uint32_t reserved;
} bw_device_info;

// How a private software device is made. A struct that is all zero, except for the size, is the
// default.
typedef struct bw_soft_config {
    // `sizeof(bw_soft_config)`.
    uint32_t size;
    // A `bw_soft_mode`.
    uint32_t mode;
    // Threads of BW_SOFT_ENGINE, up to 64; 0 means one.
    uint32_t threads;
    // A `bw_soft_clock`.
    uint32_t clock;
    // Seed of its random-looking keys; 0: taken from the operating system.
    uint64_t seed;
} bw_soft_config;

// How many objects of each kind a device has.
typedef struct bw_resources {
    // `sizeof(bw_resources)`.
    uint32_t size;
    // Protection domains.
    uint32_t pd;
    // Completion queues.
    uint32_t cq;
    // Queue pairs, including XRC targets.
    uint32_t qp;
    // Memory regions.
    uint32_t mr;
    // Memory windows.
    uint32_t mw;
    // Shared receive queues.
    uint32_t srq;
    // 0.
    uint32_t reserved;
} bw_resources;

// Description of registered memory.
typedef struct bw_mr_info {
    // `sizeof(bw_mr_info)`.
    uint32_t size;
    // Access rights: `bw_access_flags`.
    uint32_t access;
    // Its first address, by which requests name it.
    uint64_t addr;
    // Its length in bytes.
    uint64_t length;
    // The key for requests of this side.
    uint32_t lkey;
    // The key for the peer's requests.
    uint32_t rkey;
} bw_mr_info;

// How a region is made. `bw_region_attr_default` fills it.
typedef struct bw_region_attr {
    // `sizeof(bw_region_attr)`.
    uint32_t size;
    // The pages to use: a `bw_pages`.
    uint32_t pages;
    // Length in bytes; rounded up to whole pages.
    uint64_t length;
    // Access rights: `bw_access_flags`.
    uint32_t access;
    // NUMA node that the memory is taken from exclusively; less than 0: any.
    int32_t numa_node;
    // Not 0: locks the memory, see mlock(2).
    uint32_t lock;
    // Not 0: core files contain the memory (as far as coredump_filter, see core(5), lets them). By
    // default they do not, because that takes long and shows what is in the buffers.
    uint32_t in_core_files;
} bw_region_attr;

// Description of a region.
typedef struct bw_region_info {
    // `sizeof(bw_region_info)`.
    uint32_t size;
    // Access rights: `bw_access_flags`.
    uint32_t access;
    // Its first address, aligned to a page.
    uint64_t addr;
    // Its length in bytes: the requested length, in whole pages.
    uint64_t length;
    // The key for requests of this side.
    uint32_t lkey;
    // The key for the peer's requests.
    uint32_t rkey;
    // Bytes of a page; with BW_PAGES_TRANSPARENT the 2 MiB that the region is aligned to.
    uint64_t page_size;
    // The pages that it consists of: a `bw_pages`, but never BW_PAGES_AUTO.
    uint32_t pages;
    // 0.
    uint32_t reserved;
    // For people: "128 MiB in 64 hugetlb pages of 2 MiB".
    char text[BW_TEXT_MAX];
} bw_region_info;

// The number of blocks of one length in a slab.
typedef struct bw_slab_class {
    // Bytes of a block: a multiple of 64.
    uint32_t length;
    // Number of blocks.
    uint32_t count;
} bw_slab_class;

// How many blocks a slab has.
typedef struct bw_slab_info {
    // `sizeof(bw_slab_info)`.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Number of blocks, of all lengths.
    uint64_t blocks;
    // Blocks that were taken and not returned, and those in caches. Exact if no thread takes or
    // returns blocks meanwhile.
    uint64_t outstanding;
} bw_slab_info;

// A block of a slab, with the fields of a `bw_sge`. If its length is a power of two it is aligned to that,
// at most to 4096 bytes; otherwise to 64 bytes.
typedef struct bw_block {
    // Its first address.
    uint64_t addr;
    // Its length in bytes.
    uint32_t length;
    // The lkey, which is that of the region. The rkey is the region's as well: `bw_region_query`
    // returns it.
    uint32_t lkey;
} bw_block;

// Attributes and state of a port (`ibv_port_attr`, as far as it applies).
typedef struct bw_port_info {
    // `sizeof(bw_port_info)`.
    uint32_t size;
    // A `bw_port_state`.
    uint32_t state;
    // Largest path MTU that the port supports: a `bw_mtu`.
    uint32_t max_mtu;
    // Path MTU in use: a `bw_mtu`.
    uint32_t active_mtu;
    // Its local identifier.
    uint32_t lid;
    // Local identifier of the subnet manager.
    uint32_t sm_lid;
    // Entries of its GID table.
    uint32_t gid_tbl_len;
    // Entries of its partition key table.
    uint32_t pkey_tbl_len;
    // Bytes of one message.
    uint64_t max_msg_sz;
} bw_port_info;

// Attributes of a completion queue.
typedef struct bw_cq_attr {
    // `sizeof(bw_cq_attr)`.
    uint32_t size;
    // Entries, at least 1; the queue gets a power of two, and some more (`bw_cq_query`).
    // `bw_qp_cq_entries` returns what a queue pair needs.
    uint32_t entries;
    // Queue pairs that can complete here, up to 65536; 0 means 256.
    uint32_t max_qp;
    // 0.
    uint32_t reserved;
    // The completion channel that it raises its events on when armed (`bw_cq_req_notify`), or NULL.
    const struct bw_comp_channel *channel;
    // Returned with each of its events by `bw_get_cq_event`.
    void *cq_context;
} bw_cq_attr;

// Size and state of a completion queue.
typedef struct bw_cq_info {
    // `sizeof(bw_cq_info)`.
    uint32_t size;
    // Entries.
    uint32_t entries;
    // Entries that are not reserved for a queue pair.
    uint32_t unreserved;
    // Not 0: the queue overran, and the outcome of the requests whose entries were lost is unknown.
    // Does not happen while queue pairs reserve their entries.
    uint32_t overrun;
    // Entries dropped because they belonged to no request in flight.
    uint64_t stale;
    // Its number, which its events carry.
    uint32_t cqn;
    // 0.
    uint32_t reserved;
} bw_cq_info;

// Attributes that a shared receive queue is created with (`ibv_srq_init_attr`).
// `bw_srq_init_attr_default` fills it.
typedef struct bw_srq_init_attr {
    // `sizeof(bw_srq_init_attr)`.
    uint32_t size;
    // Receives in flight, at least 1.
    uint32_t max_wr;
    // Scatter/gather elements of a receive.
    uint32_t max_sge;
    // The initial limit, as `bw_srq_modify` sets it; 0 means none.
    uint32_t srq_limit;
} bw_srq_init_attr;

// Sizes and limit of a shared receive queue (`ibv_srq_attr`).
typedef struct bw_srq_info {
    // `sizeof(bw_srq_info)`.
    uint32_t size;
    // Its number, by which XRC requests name it.
    uint32_t srq_num;
    // Receives in flight: at least as many as requested.
    uint32_t max_wr;
    // Scatter/gather elements of a receive: at least as many as requested.
    uint32_t max_sge;
    // The limit; 0 if none is set, or if it has been reached.
    uint32_t srq_limit;
} bw_srq_info;

// Called by `bw_qp_reset` for each request that was cleared, with the `context` given there and the
// request's identifier. It has to return, and must not use the queue pair or its completion queues.
typedef void (*bw_flushed_fn)(void *context, uint64_t wr_id);

// Attributes that a queue pair is created with (`ibv_qp_init_attr`). `bw_qp_init_attr_default` fills
// it.
typedef struct bw_qp_init_attr {
    // `sizeof(bw_qp_init_attr)`.
    uint32_t size;
    // Send requests in flight.
    uint32_t max_send_wr;
    // Receives in flight. Ignored for a queue pair on a shared receive queue and for an XRC
    // initiator, which have no receive queue of their own. `bw_qp_query` returns 0.
    uint32_t max_recv_wr;
    // Scatter/gather elements of a send request.
    uint32_t max_send_sge;
    // Scatter/gather elements of a receive. Ignored like `max_recv_wr`.
    uint32_t max_recv_sge;
    // Inline bytes of a send request.
    uint32_t max_inline_data;
    // Not 0: every send request is signalled, whatever its flags.
    uint32_t sq_sig_all;
    // Not 0: reserve an entry in the completion queues for everything that can be in flight, so that a
    // flush cannot overrun them. Otherwise an overrun makes the completion queue, and every queue pair
    // on it, fail.
    uint32_t reserve_cq;
    // The transport: a `bw_qp_type`, BW_QPT_RC by default.
    uint32_t qp_type;
    // 0.
    uint32_t reserved;
    // The shared receive queue that it receives from, of the same protection domain and not for XRC.
    // NULL, the default: it has a receive queue of its own.
    struct bw_srq *srq;
    // Not 0: flushed unsignalled requests write no completion of their own. The exception is the
    // last of the requests that are rung together, whose `retired` counts the requests before it.
    // Not supported on devices driven by libibverbs (`BW_EUNSUPPORTED`), nor for a link.
    uint32_t suppress_flush;
    // 0.
    uint32_t reserved1;
} bw_qp_init_attr;

// Attributes of a connection. `bw_connect_attr_default` fills it.
typedef struct bw_connect_attr {
    // `sizeof(bw_connect_attr)`.
    uint32_t size;
    // What the peer may do: the REMOTE bits of `bw_access_flags`.
    uint32_t access;
    // A `bw_mtu`.
    uint32_t path_mtu;
    // Acknowledgement timeout, a 5-bit code: 4.096 µs · 2^t; 0 means infinite.
    uint32_t timeout;
    // Transport retries (no acknowledgement), up to 7.
    uint32_t retry_cnt;
    // RNR retries (no receive posted at the peer), up to 6; 7 means infinite, and is the default.
    // A request whose peer is there and posts no receive then waits without a bound. A smaller
    // number bounds it, as does `request_deadline_ns` on a link.
    uint32_t rnr_retry;
    // RNR NAK timer: how long the peer waits for a receive of this side, a 5-bit code
    // (`ibv_modify_qp`).
    uint32_t min_rnr_timer;
    // READs and atomics in flight, in each direction.
    uint32_t max_rd_atomic;
    // Datagrams only: the Q_Key that senders have to name. The top bit is for privileged users.
    uint32_t qkey;
    // The port to connect through, from 1.
    uint32_t port_num;
    // The entry of that port's GID table to be reached by, if peers are addressed by GIDs (RoCE,
    // routed InfiniBand). Less than 0, the default: the device chooses. On RoCE it chooses an
    // entry of version 2, if possible one whose address an interface of this network namespace
    // has, and an IPv4 address. `bw_qp_endpoint_for` returns the matching endpoint for the peer. A
    // link remembers the GID in this entry when it is made, and finds it again after the table has
    // been filled anew.
    int32_t gid_index;
    // Service level, up to 15. On RoCE the priority of packets with a VLAN tag.
    uint32_t sl;
    // Traffic class, up to 255; for RoCE v2 that of the IP header (DSCP and ECN): 4 times the
    // DSCP. The global route header holds it, along with the flow label and the hop limit. Packets
    // have that header on RoCE, and on other networks if one of the three is not 0.
    uint32_t traffic_class;
    // Flow label, up to 20 bits. Many devices derive the UDP source port of RoCE v2 from it.
    uint32_t flow_label;
    // The index of the partition key in the port's table. Datagrams take the fields around this one
    // from their address handles; the partition key is the queue pair's.
    uint32_t pkey_index;
    // Hop limit, up to 255; 0: the usual one, 64. For RoCE, Linux takes it from the route instead.
    uint32_t hop_limit;
    // UDP source port of RoCE v2 packets, from 0xc000 to 0xffff. RC and UC queue pairs of the
    // software HCA and of ConnectX devices have it. So have those of Soft-RoCE on Linux 5.18 or
    // later, which derives it from the flow label. On other devices: `BW_EUNSUPPORTED`. 0: the
    // device chooses.
    uint32_t udp_sport;
} bw_connect_attr;

// What one end of a connection has to know of the other.
typedef struct bw_endpoint {
    // `sizeof(bw_endpoint)`.
    uint32_t size;
    // Queue pair number.
    uint32_t qp_num;
    // PSN of the first packet that the queue pair sends in this life: random, and another one after each
    // `bw_qp_reset`.
    uint32_t psn;
    // 0.
    uint32_t reserved;
    // Local identifier of the port.
    uint32_t lid;
    // The port's GID: the one that the device prefers, or the one that was requested.
    uint8_t gid[16];
} bw_endpoint;

// What the two ends of a connection exchange besides their endpoints.
typedef struct bw_conn_info {
    // `sizeof(bw_conn_info)`.
    uint32_t size;
    // The largest path MTU that this end supports, a `bw_mtu`: connect with the smaller of both ends'.
    uint32_t mtu;
    // The rkey of the memory that the other end may access.
    uint32_t rkey;
    // 0.
    uint32_t reserved;
    // The first address of that memory.
    uint64_t addr;
    // Its length in bytes; 0: there is no such memory.
    uint64_t length;
} bw_conn_info;

// Attributes of a path (`ibv_ah_attr`).
typedef struct bw_ah_attr {
    // Destination GID, in wire order. This and the next fields, up to `traffic_class`, are used if
    // `is_global` is set.
    uint8_t dgid[16];
    // Flow label, 20 bits.
    uint32_t flow_label;
    // Index of the source GID in the port's table.
    uint8_t sgid_index;
    // Hop limit.
    uint8_t hop_limit;
    // Traffic class.
    uint8_t traffic_class;
    // Not 0: with a global route header, which is received as the first 40 bytes of a datagram.
    uint8_t is_global;
    // Destination LID.
    uint16_t dlid;
    // Service level, 4 bits.
    uint8_t sl;
    // Source path bits: which of the port's LIDs is the source, 7 bits.
    uint8_t src_path_bits;
    // Upper bound of the rate (`ibv_rate`); 0 means the port's own.
    uint8_t static_rate;
    // Port, from 1.
    uint8_t port_num;
    // 0.
    uint16_t reserved;
} bw_ah_attr;

// An event (`rdma_cm_event`). It is a copy, and need not be acknowledged. Fields that it does not have
// are 0.
typedef struct bw_cm_event {
    // `sizeof(bw_cm_event)`.
    uint32_t size;
    // The event: a `bw_cm_event_type`. `bw_classify` returns its meaning, `bw_cm_event_str` its text.
    uint32_t event;
    // 0 if nothing failed, otherwise a negative error number, or the reason of a rejection. 28 is
    // a rejection by the peer's program, 8 means that nothing listens.
    int32_t status;
    // Bytes of private data.
    uint32_t private_data_len;
    // The context of the id that it is for; for a request, that of the listener.
    void *context;
    // For a request: the id that it arrived with, the caller's until `bw_cm_id_destroy`; accept or
    // reject it. Otherwise NULL.
    struct bw_cm_id *request;
    // The peer's queue pair number; for a multicast group the number that requests have to name.
    uint32_t qp_num;
    // Datagrams only: the Q_Key that requests have to name.
    uint32_t qkey;
    // Datagrams only: the path, for `bw_ah_create`. For a multicast group `dgid` and `dlid` are those
    // of the group, for `bw_qp_attach_mcast`.
    struct bw_ah_attr ah_attr;
    // READs and atomics in flight that the peer wants this side to respond to.
    uint8_t responder_resources;
    // READs and atomics in flight that the peer responds to.
    uint8_t initiator_depth;
    // Not 0: the peer has hardware flow control.
    uint8_t flow_control;
    // Transport retries (no acknowledgement).
    uint8_t retry_count;
    // RNR retries (no receive posted).
    uint8_t rnr_retry_count;
    // Not 0: the peer uses a shared receive queue.
    uint8_t srq;
    // 0.
    uint16_t reserved;
    // The peer's private data as received: it may be followed by zeroes, and must not be trusted.
    uint8_t private_data[BW_CM_PRIVATE_MAX];
} bw_cm_event;

// Connection parameters (`rdma_conn_param`). `bw_cm_param_default` fills it.
typedef struct bw_cm_param {
    // `sizeof(bw_cm_param)`.
    uint32_t size;
    // Bytes of private data: at most 56 to connect, 196 to accept.
    uint32_t private_data_len;
    // The private data, which arrive with the peer's event, where zeroes may follow them.
    const void *private_data;
    // READs and atomics in flight that this side responds to; limited by the device and, at the
    // accepting end, by the request.
    uint8_t responder_resources;
    // READs and atomics in flight that this side issues, with the same limits.
    uint8_t initiator_depth;
    // Not 0: this side has hardware flow control.
    uint8_t flow_control;
    // Transport retries (no acknowledgement), up to 7. The connecting end sets it for both.
    uint8_t retry_count;
    // RNR retries (no receive posted at the peer), up to 6; 7 means infinite.
    uint8_t rnr_retry_count;
    // 0.
    uint8_t reserved[3];
} bw_cm_param;

// A work completion (`ibv_wc`). Every posted request is reported exactly once. A completion of its
// own, a later completion that retires it, or `bw_qp_reset` reports it.
//
// If `status` is not BW_WC_SUCCESS the verbs define only `wr_id`, `status`, `vendor_err` and `qp_num`.
// Of the other fields only `retired`, which is bellwire's, is set; the rest is 0.
typedef struct bw_wc {
    // The program's identifier of the request.
    uint64_t wr_id;
    // A `bw_wc_status`.
    uint32_t status;
    // What completed: a `bw_wc_opcode`.
    uint32_t opcode;
    // Bytes received, or returned by a READ or an atomic; otherwise 0.
    uint32_t byte_len;
    // With BW_WC_WITH_IMM: immediate data, in network byte order. With BW_WC_WITH_INV: the key that
    // the peer has invalidated. Otherwise 0.
    uint32_t imm_data;
    // Number of the local queue pair.
    uint32_t qp_num;
    // The device's own error code. For a request that a device of libibverbs did not take, the errno of the call
    // that posts.
    uint32_t vendor_err;
    // `bw_wc_flags`.
    uint32_t wc_flags;
    // How many requests this completion retires: its own, and the unsignalled ones of the same queue
    // that were posted before it and not reported yet. Those succeeded, whatever the status of this
    // one. On a queue pair with `bw_qp_init_attr.suppress_flush`, however, those before a
    // BW_WC_WR_FLUSH_ERR were flushed as well, or executed if they were posted before the first
    // failure.
    uint32_t retired;
    // The sender's queue pair of a received datagram; otherwise 0.
    uint32_t src_qp;
    // The local identifier of a received datagram's sender; otherwise 0.
    uint16_t slid;
    // Its service level.
    uint8_t sl;
    // The port's local identifier, path bits, to which it was sent.
    uint8_t dlid_path_bits;
} bw_wc;

// State and attributes of a queue pair (`ibv_qp_attr`). For `bw_qp_modify` the mask says which fields
// are given; the others are ignored.
typedef struct bw_qp_attr {
    // `sizeof(bw_qp_attr)`.
    uint32_t size;
    // A `bw_qp_state`: the state to move to, or the present state.
    uint32_t qp_state;
    // A `bw_qp_state`: the state that the program assumes the queue pair to be in.
    uint32_t cur_qp_state;
    // A `bw_mtu`.
    uint32_t path_mtu;
    // A `bw_mig_state`.
    uint32_t path_mig_state;
    // Datagrams only: the Q_Key that senders have to name.
    uint32_t qkey;
    // Expected PSN of the first packet received, 24 bits.
    uint32_t rq_psn;
    // PSN of the first packet sent, 24 bits.
    uint32_t sq_psn;
    // The peer's queue pair number.
    uint32_t dest_qp_num;
    // What the peer may do: `bw_access_flags`.
    uint32_t qp_access_flags;
    // Send requests in flight, as in `bw_qp_init_attr`, like the next four fields.
    uint32_t max_send_wr;
    // Receives in flight; 0 without a receive queue of its own.
    uint32_t max_recv_wr;
    // Scatter/gather elements of a send request.
    uint32_t max_send_sge;
    // Scatter/gather elements of a receive; 0 without a receive queue of its own.
    uint32_t max_recv_sge;
    // Inline bytes of a send request.
    uint32_t max_inline_data;
    // The path to the peer.
    struct bw_ah_attr ah_attr;
    // The alternate path.
    struct bw_ah_attr alt_ah_attr;
    // Index of the partition key in the port's table.
    uint32_t pkey_index;
    // Index of the partition key for the alternate path.
    uint32_t alt_pkey_index;
    // Not 0: raise BW_EVENT_SQ_DRAINED when the send queue has drained.
    uint32_t en_sqd_async_notify;
    // Query only, in SQD: not 0 while started sends have not all finished.
    uint32_t sq_draining;
    // READs and atomics in flight as the requester.
    uint32_t max_rd_atomic;
    // READs and atomics in flight as the responder.
    uint32_t max_dest_rd_atomic;
    // RNR NAK timer: how long the peer waits for a receive of this side, a 5-bit code.
    uint32_t min_rnr_timer;
    // Port, from 1.
    uint32_t port_num;
    // Acknowledgement timeout, a 5-bit code: 4.096 µs · 2^t; 0 means infinite.
    uint32_t timeout;
    // Transport retries (no acknowledgement), up to 7.
    uint32_t retry_cnt;
    // RNR retries (no receive posted at the peer), up to 6; 7 means infinite.
    uint32_t rnr_retry;
    // Port of the alternate path.
    uint32_t alt_port_num;
    // Acknowledgement timeout of the alternate path.
    uint32_t alt_timeout;
    // Rate limit in kbit/s.
    uint32_t rate_limit;
    // Query only: the queue pair number.
    uint32_t qp_num;
    // Query only: a `bw_qp_type`.
    uint32_t qp_type;
    // Query only: the UDP source port of RoCE v2 packets, if one was set (`bw_connect_attr`, or
    // BW_CM_UDP_SPORT); otherwise 0.
    uint32_t udp_sport;
} bw_qp_attr;

// What a memory window is bound to (`ibv_mw_bind_info`). The memory needs BW_ACCESS_MW_BIND.
typedef struct bw_mw_bind_info {
    // Where the window starts.
    uint64_t addr;
    // Its length in bytes, up to 2 GiB; 0 unbinds the window.
    uint32_t length;
    // Local key of the memory.
    uint32_t lkey;
    // Access rights: the REMOTE ones of `bw_access_flags`, and ZERO_BASED.
    uint32_t access;
    // 0.
    uint32_t reserved;
} bw_mw_bind_info;

// A scatter/gather element (`ibv_sge`): `length` bytes at `addr`.
typedef struct bw_sge {
    // Address.
    uint64_t addr;
    // Bytes, less than 2 GiB.
    uint32_t length;
    // Local key of the memory; ignored for inline data.
    uint32_t lkey;
} bw_sge;

// A send request (`ibv_send_wr`). Fields that the operation does not use are ignored.
typedef struct bw_send_wr {
    // The program's identifier, which is in the completion.
    uint64_t wr_id;
    // The local memory: source of the data, or its destination (READ, atomics).
    const struct bw_sge *sg_list;
    // Number of elements in `sg_list`.
    uint32_t num_sge;
    // A `bw_wr_opcode`.
    uint32_t opcode;
    // `bw_send_flags`.
    uint32_t send_flags;
    // Immediate data, in network byte order.
    uint32_t imm_data;
    // The peer's memory (WRITE, READ, atomics).
    uint64_t remote_addr;
    // The peer's key for it.
    uint32_t rkey;
    // The key to invalidate: a local one (LOCAL_INV) or one of the peer (SEND_WITH_INV).
    uint32_t invalidate_rkey;
    // The value to compare with (ATOMIC_CMP_AND_SWP) or to add (ATOMIC_FETCH_AND_ADD).
    uint64_t compare_add;
    // The value to write if equal (ATOMIC_CMP_AND_SWP).
    uint64_t swap;
    // Datagrams only: the path to the receiver, in the queue pair's protection domain. It may be
    // destroyed when the post has returned.
    const struct bw_ah *ah;
    // Datagrams only: the receiver's queue pair number; 0xffffff for a multicast group.
    uint32_t remote_qpn;
    // Datagrams only: the receiver's Q_Key.
    uint32_t remote_qkey;
    // XRC only: the number of the target's shared receive queue (`bw_srq_query`).
    uint32_t remote_srqn;
    // 0.
    uint32_t reserved;
    // The window, of type 2, to bind (BIND_MW); after the post `bw_mw_rkey` returns its new key.
    struct bw_mw *mw;
    // What to bind it to.
    struct bw_mw_bind_info bind;
} bw_send_wr;

// A receive (`ibv_recv_wr`).
typedef struct bw_recv_wr {
    // The program's identifier, which is in the completion.
    uint64_t wr_id;
    // The memory for the message.
    const struct bw_sge *sg_list;
    // Number of elements in `sg_list`.
    uint32_t num_sge;
    // 0.
    uint32_t reserved;
} bw_recv_wr;

// An RDMA WRITE or READ on a connection, with one element: smaller than a `bw_send_wr`, and faster to
// post.
typedef struct bw_rdma_wr {
    // The program's identifier, which is in the completion.
    uint64_t wr_id;
    // The local memory.
    struct bw_sge sge;
    // The peer's memory.
    uint64_t remote_addr;
    // The peer's key for it.
    uint32_t rkey;
    // `bw_send_flags`. BW_SEND_INLINE has no effect: the function decides whether the data is inline.
    uint32_t send_flags;
} bw_rdma_wr;

// The completion of a request, with the fields that most programs use: faster to poll than a `bw_wc`.
// `bw_completion_wc` converts it to one; `bw_completion_byte_len` returns how many bytes were
// received.
typedef struct bw_completion {
    // The program's identifier of the request.
    uint64_t wr_id;
    // Number of the local queue pair.
    uint32_t qp_num;
    // As in `bw_wc`: how many requests this completion retires.
    uint32_t retired;
    // A `bw_wc_status`.
    uint32_t status;
    // The device's own error code. For a request that a device of libibverbs did not take, the errno of the call
    // that posts.
    uint32_t vendor_err;
    // What completed: a `bw_wc_opcode`. 0 for an error.
    uint8_t opcode;
    // For the library only, like all fields below: `bw_completion_wc` decodes them.
    uint8_t entry;
    // For the library only.
    uint16_t slid;
    // For the library only.
    uint32_t byte_cnt;
    // For the library only.
    uint32_t imm;
    // For the library only.
    uint32_t source;
} bw_completion;

// The contents of an asynchronous event (`ibv_async_event`).
typedef struct bw_async_event_info {
    // `sizeof(bw_async_event_info)`.
    uint32_t size;
    // A `bw_event_type`.
    uint32_t event_type;
    // The kind of object that it is about: a `bw_element`.
    uint32_t element;
    // The number of the object.
    uint32_t number;
} bw_async_event_info;

// Contents and format of a dump.
typedef struct bw_dump_attr {
    // `sizeof(bw_dump_attr)`.
    uint32_t size;
    // A `bw_dump_format`.
    uint32_t format;
    // Maximum number of send requests, receives, and completions of each completion queue: the last
    // ones. 0 means 32.
    uint32_t entries;
    // Bits of `bw_dump_flags`.
    uint32_t flags;
} bw_dump_attr;

// A fault, for `bw_classify`.
typedef struct bw_fault {
    // `sizeof(bw_fault)`.
    uint32_t size;
    // A `bw_fault_family`.
    uint32_t family;
    // The number within the family. Numbers that this library does not know have a class, too.
    int32_t number;
    // Of a completion: the queue pair's `bw_qp_type`. In other families this field and all that follow
    // are ignored.
    uint32_t transport;
    // A `bw_work_queue`.
    uint32_t queue;
    // Whether `opcode` is set: 0 or 1.
    uint32_t has_opcode;
    // Of a send: the `bw_wr_opcode` that was posted. A READ or an atomic may fail after it was
    // executed.
    uint32_t opcode;
    // A `bw_vendor`.
    uint32_t vendor;
    // `bw_wc.vendor_err`.
    uint32_t vendor_err;
    // Of BW_PEER_GAVE_UP: the `bw_fault_family` of the fault that the peer names as its reason. In other
    // faults this field and the next are ignored.
    uint32_t named_family;
    // The number of that fault.
    int32_t named_number;
} bw_fault;

// What a fault means for the program. docs/faults.md lists all of them. The texts are static, and
// never NULL.
typedef struct bw_class {
    // `sizeof(bw_class)`.
    uint32_t size;
    // How far the fault reaches: a `bw_scope`.
    uint32_t scope;
    // Where its cause most likely has to be fixed: a `bw_blame`.
    uint32_t blame;
    // Whether the same request can succeed if it is retried: a `bw_retry`.
    uint32_t retry;
    // What it says about the execution of the request at the peer: a `bw_execution`.
    uint32_t execution;
    // What restores operation: a `bw_recovery`.
    uint32_t recovery;
    // The fault's name, such as `RETRY_EXC_ERR`; `UNKNOWN` for a number that has none.
    const char *name;
    // What happened.
    const char *text;
    // What causes it.
    const char *cause;
    // What the operator should look at.
    const char *advice;
} bw_class;

// Attributes that a link is created with. `bw_link_init_default` fills it. Times are nanoseconds of
// the device's clock.
typedef struct bw_link_init {
    // `sizeof(bw_link_init)`.
    uint32_t size;
    // A `bw_recover_in`.
    uint32_t recover_in;
    // Attributes of its queue pair; `qp_type` is BW_QPT_RC, there is no `srq`, and `reserve_cq` is
    // ignored. NULL: the defaults. Like `connect`, it is read when the link is created.
    const struct bw_qp_init_attr *qp;
    // Attributes of its connection; the path MTU is the smaller of both ends'. NULL: the defaults.
    const struct bw_connect_attr *connect;
    // First address of the memory that the peer may access, which it learns with each connection.
    uint64_t memory_addr;
    // Length of that memory in bytes; 0: there is none.
    uint64_t memory_length;
    // Its rkey.
    uint32_t memory_rkey;
    // Number of polls that find nothing between two checks of the exchange, the asynchronous
    // events and the deadlines. The checks take system calls. 64 polls that find something count
    // as one. 0 means 1.
    uint32_t check_every;
    // Maximum number of recovery steps in one poll: each may be a call of the device's driver. 0 means
    // 1.
    uint32_t steps_per_poll;
    // Entries of the completion queue; 0: enough for everything that can be in flight. With fewer it
    // overruns if the program does not poll in time, which is a fault that the link recovers from.
    uint32_t cq_entries;
    // How often a recovery is attempted, at least 1, within `recovery_ns`.
    uint32_t attempts;
    // Whether the program sleeps while there is nothing to poll, by `bw_link_arm` and `bw_link_fd`: 0
    // or 1.
    uint32_t sleeps;
    // How long a recovered link has to work until earlier faults are forgotten.
    uint64_t stable_ns;
    // How long to wait for flushed requests.
    uint64_t drain_ns;
    // How long to wait for BW_EVENT_QP_LAST_WQE_REACHED.
    uint64_t last_wqe_ns;
    // How long to wait for BW_CM_EVENT_TIMEWAIT_EXIT.
    uint64_t timewait_ns;
    // How long to wait for a port that is down.
    uint64_t port_ns;
    // How long to wait for the peer's reply.
    uint64_t exchange_ns;
    // How long the peer may take after its reply until it is ready.
    uint64_t ready_ns;
    // How long any other step may take.
    uint64_t step_ns;
    // The delay before the second attempt; each further delay is twice as long.
    uint64_t backoff_first_ns;
    // The longest delay.
    uint64_t backoff_max_ns;
    // Seed of the delays' jitter: the two ends should have different ones.
    uint64_t seed;
    // How many send requests, receives and completions, each, of the queue pair of a failed connection
    // are kept for `bw_link_dump_failure`; 0: none.
    uint32_t dump_entries;
    // Bits of `bw_dump_flags` for that dump.
    uint32_t dump_flags;
    // How long a recovery may take in total, with all attempts and delays. After that the link is
    // given up, even if the times above would allow more. Within `recovery_ns + step_ns`, 20 s by
    // default, after the fault the link is BW_LINK_READY again, or has ended and every outcome can
    // be polled. This requires that it is polled meanwhile, or recovers in a thread, and that no
    // hook blocks. A request is not posted again later than `recovery_ns` after a connection first
    // failed with it in flight.
    uint64_t recovery_ns;
    // How long a send may be in flight while the link works; 0: without a limit. One that takes
    // longer is a fault of the link (BW_DEADLINE_MISSED), which then recovers, and posts it again or
    // reports it. The fault is found no earlier, and within twice that time, by a poll that finds
    // nothing. An unsignalled send is in flight until a signalled one behind it completes, and only
    // counts if there is one.
    uint64_t request_deadline_ns;
    // How soon the loss of the peer is detected, at the latest, while nothing is in flight; 0: not
    // before something is posted. A link that was idle for half of this time sends an empty RDMA
    // WRITE. If that is not acknowledged in the other half, the link has a fault
    // (BW_KEEP_ALIVE_MISSED) and recovers. It is not reported, and takes a place in the send queue
    // until it completes.
    uint64_t keep_alive_ns;
    // Of a link of a set with `srq_max_held`: the limit of this link, in its place; 0: the set's. Of no meaning
    // for other links.
    uint32_t srq_max_held;
    // 0.
    uint32_t reserved;
} bw_link_init;

// The handle of a link in a set. Once the link was removed it is of no link: calls with it return
// BW_ENOLINK, and never reach another link.
typedef uint64_t bw_link_id;

// How long, and how often, to try to reach the peer of a link. `bw_link_retry_default` fills it.
// Times are nanoseconds. If attempts fail at once, for instance because nothing listens, further
// ones follow until the time of all attempts has passed. That time is `attempts` times `step_ns`,
// and the pauses.
typedef struct bw_link_retry {
    // `sizeof(bw_link_retry)`.
    uint32_t size;
    // Number of successive attempts that may fail, each after `step_ns`; then the link is given up. At
    // least 1.
    uint32_t attempts;
    // How long each step of a connection may take: resolving the address, resolving the route, the
    // reply.
    uint64_t step_ns;
    // The pause after the first failed attempt; each further pause is twice as long.
    uint64_t pause_ns;
    // The longest pause.
    uint64_t longest_ns;
} bw_link_retry;

// The outcome of a request posted to a link. Each signalled request, each receive, and each request
// that did not complete successfully is reported once.
typedef struct bw_link_wc {
    // The program's identifier of the request.
    uint64_t wr_id;
    // A `bw_outcome`.
    uint32_t outcome;
    // With BW_OUTCOME_IN_DOUBT, the reason: a `bw_doubt`. Otherwise BW_DOUBT_NONE.
    uint32_t doubt;
    // With BW_OUTCOME_FAILED: a `bw_wc_status`. Otherwise 0.
    uint32_t status;
    // The kind of request: a `bw_wc_opcode`. All receives have the bit BW_WC_RECV.
    uint32_t opcode;
    // Bytes received, or returned by a READ or an atomic; otherwise 0. Also 0 if the request was
    // executed, but its completion did not arrive.
    uint32_t byte_len;
    // As `bw_wc.imm_data`.
    uint32_t imm_data;
    // `bw_wc_flags`.
    uint32_t wc_flags;
    // How many requests this outcome retires: its own, and unsignalled ones before it, which were
    // executed. The sum over all outcomes is the number of posted requests.
    uint32_t retired;
} bw_link_wc;

// Called by `bw_link_drain` for each request, with the `context` given there and the outcome of the
// request, which is valid during the call. It has to return, and must not use the link.
typedef void (*bw_link_wc_fn)(void *context, const struct bw_link_wc *wc);

// Called at each fault of a link, with the fault, its meaning, and the number of the connection, as
// `bw_link_info.epoch` counts. The pointers are valid during the call.
typedef void (*bw_fault_fn)(void *context,
                            const struct bw_fault *fault,
                            const struct bw_class *means,
                            uint64_t epoch);

// A recovery that has ended.
typedef struct bw_recovery_report {
    // The size of the struct in this version of the library.
    uint32_t size;
    // How it ended: a `bw_recovery_end`.
    uint32_t end;
    // Requests that were posted again.
    uint32_t replayed;
    // Requests that are reported because of it, other than as executed.
    uint32_t reported;
    // The number of the new connection.
    uint64_t epoch;
    // Nanoseconds since the first fault.
    uint64_t took_ns;
    // The reason, and the fault that the recovery began with; NULL with BW_END_RECOVERED.
    const char *why;
} bw_recovery_report;

// Called when a recovery of a link has ended, whether it succeeded or not. The pointers are valid
// during the call.
typedef void (*bw_recovered_fn)(void *context, const struct bw_recovery_report *report);

// Called with an asynchronous event that concerns no link. The arguments are its number
// (`bw_event_type`, or one that this library does not know), the kind of its object (`bw_element`)
// and the object's number. It has been acknowledged. For an unknown event the last two are 0.
typedef void (*bw_event_fn)(void *context, uint32_t event_type, uint32_t element, uint32_t number);

// State of a link.
typedef struct bw_link_info {
    // `sizeof(bw_link_info)`.
    uint32_t size;
    // Its state: a `bw_link_state`.
    uint32_t state;
    // Number of its queue pair, 0 while there is none. It may change with each recovery.
    uint32_t qp_num;
    // Number of its completion queue. It may change with each recovery.
    uint32_t cqn;
    // The number of the connection, from 1: each recovery makes a new one.
    uint64_t epoch;
    // First address of the memory that the peer lets this end access, as of the last connection.
    uint64_t peer_addr;
    // Length of that memory in bytes; 0: there is none, or the link has not been connected yet.
    uint64_t peer_length;
    // Its rkey.
    uint32_t peer_rkey;
    // Unsignalled requests that were executed, and that no later outcome has retired. They count as
    // retired when the link has ended.
    uint32_t unreported;
    // Why the link has ended; empty while it has not.
    char why[BW_WHY_MAX];
    // Of a link of a set with `srq_max_held`: blocks of the shared receive queue that its messages
    // hold. They include returned blocks that the set has not posted again yet. Otherwise 0.
    uint32_t held;
    // 0.
    uint32_t reserved;
} bw_link_info;

// Counters of a link. Requests that succeed at once are not counted, because that would slow the data
// path: `bw_queue_counters` has the requests that were posted.
typedef struct bw_link_counters {
    // `sizeof(bw_link_counters)`.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Recoveries after which the link works; the first connection counts as one.
    uint64_t recovered;
    // Those after which something is not as it was before.
    uint64_t degraded;
    // 1 if the link was given up, which it is not if the peer closed a link that worked.
    uint64_t gave_up;
    // Requests that were posted again.
    uint64_t replayed;
    // Receives that were posted again.
    uint64_t reposted;
    // Sends of a failed connection that turned out to have been executed.
    uint64_t done;
    // Sends reported as failed.
    uint64_t failed;
    // Sends reported as not executed.
    uint64_t not_executed;
    // Sends reported as in doubt.
    uint64_t in_doubt;
    // Nanoseconds that the last recovery took, from its first fault on.
    uint64_t last_ns;
    // Nanoseconds that the longest recovery took.
    uint64_t longest_ns;
    // Nanoseconds that all recoveries took together.
    uint64_t total_ns;
    // Number of faults by `bw_scope`; 0 for numbers that are no scope.
    uint64_t faults[BW_SCOPE_MAX];
    // Receives reported as failed.
    uint64_t recv_failed;
    // Receives reported as not executed when the link ended: no message arrived for them.
    uint64_t recv_not_executed;
    // Receives reported as in doubt: a message may have arrived for them, and its completion was lost.
    uint64_t recv_in_doubt;
    // Requests of both queues that the program cancelled in time, whatever became of them.
    uint64_t cancelled;
    // Requests of both queues that missed deadlines of their own, whatever became of them.
    uint64_t deadlines_passed;
} bw_link_counters;

// Attributes that a set of links is created with. `bw_link_set_init_default` fills it.
typedef struct bw_link_set_init {
    // `sizeof(bw_link_set_init)`.
    uint32_t size;
    // Links that it has room for. A link that has ended takes room until `bw_link_set_remove`.
    uint32_t links;
    // Attributes of a link's queue pair, by which the completion queues are sized; as
    // `bw_link_init.qp`. A link may have smaller ones. NULL: the defaults.
    const struct bw_qp_init_attr *qp;
    // Entries of the completion queue; 0: enough for everything that can be in flight on all links, in
    // as few queues as the device allows. With fewer it overruns if the program does not poll in time,
    // which is a fault of every link that they recover from. Keep-alives take entries, too: one poll posts
    // up to `links_per_poll` of them.
    uint32_t cq_entries;
    // Number of polls between two checks of the exchanges and of the asynchronous events, which take
    // system calls. 0 means 1.
    uint32_t check_every;
    // Maximum number of links that one poll connects or recovers. 0 means 1.
    uint32_t links_per_poll;
    // Whether the program sleeps while there is nothing to poll, by `bw_link_set_arm` and
    // `bw_link_set_fd`: 0 or 1.
    uint32_t sleeps;
    // Supplies the buffers of a shared receive queue, from which all links receive; NULL: each link has a
    // receive queue of its own. Of the set's protection domain. All its blocks of this size belong to the
    // set from here on; those of other sizes are the program's.
    //
    // The set posts the receives. The outcome of one has the address of its block as `wr_id`, and a
    // `retired` of 0, because the program posted no receive. The block is the program's until
    // `bw_slab_return`, by any thread; then the next polls post it again. While the program holds all
    // blocks the peers' messages wait, as often as their `rnr_retry` allows.
    const struct bw_slab *srq_slab;
    // Bytes of a receive, at least: the blocks of the slab's smallest class that has as many are posted, as
    // they are. A message that is longer than its block is a fault of its link.
    uint32_t srq_length;
    // Blocks that the messages of one link may hold, so that no peer takes those of the others; 0: without
    // a limit. A link whose peer sends more has a fault, BW_RECV_LIMIT_EXCEEDED, and ends. At least the
    // number of messages that the program's protocol lets a peer have outstanding. How many sends a link
    // may have in flight is the size of its send queue, `bw_link_init.qp`.
    uint32_t srq_max_held;
} bw_link_set_init;

// What a set has.
typedef struct bw_link_set_info {
    // `sizeof(bw_link_set_info)`.
    uint32_t size;
    // Links in it, ended ones included.
    uint32_t links;
    // Links that it has room for.
    uint32_t capacity;
    // Completion queues.
    uint32_t completion_queues;
    // Bytes of memory that it uses: completion queues, tables, and the rings, ledgers and states of its
    // links; without what a device's driver allocates.
    uint64_t memory;
    // Receives posted to the shared receive queues, those with a message included that was not polled yet.
    uint32_t receives_posted;
    // Blocks of the shared receive queues that are not posted: the program holds them, or has returned them
    // and the next polls post them.
    uint32_t receives_held;
} bw_link_set_info;

// The outcome of a request posted to a link of a set.
typedef struct bw_link_set_wc {
    // The link's handle.
    bw_link_id link;
    // The outcome.
    struct bw_link_wc wc;
} bw_link_set_wc;

// Called by `bw_link_set_drain` for each request, with the `context` given there, and the outcome, which is
// valid during the call. It has to return, and must not use the set.
typedef void (*bw_link_set_wc_fn)(void *context, const struct bw_link_set_wc *wc);

// How `bw_link_wait` and `bw_link_set_wait` wait. `bw_wait_default` fills it.
//
// A thread that sleeps is woken some microseconds, or tens of them, after a completion. A thread
// that polls takes it at once, and uses its processor up. So the thread polls first, for about as
// long as waking takes.
typedef struct bw_wait {
    // `sizeof(bw_wait)`.
    uint32_t size;
    // Number of `fds`.
    uint32_t num_fds;
    // How many nanoseconds to poll before sleeping, 50,000 by default; 0: sleeps unless there is something at
    // once.
    uint64_t spin_ns;
    // How many nanoseconds to wait in all; UINT64_MAX, the default: for ever.
    uint64_t timeout_ns;
    // Descriptors of the program that end the wait when they are readable, such as a listener's. They are looked
    // at only before sleeping, so a busy program looks at them itself from time to time.
    const int *fds;
} bw_wait;

// Called with a record of the log: its `bw_log_level`, and one line of text without the level. The text is
// valid during the call.
typedef void (*bw_log_fn)(void *context, uint32_t level, const char *text);

// Requests of a queue pair, and depths of its queues. A link has the requests of all its connections. A
// set has the requests of all its links, removed ones included.
typedef struct bw_queue_counters {
    // `sizeof(bw_queue_counters)`.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Requests that were posted since the first monitor was created, by `bw_wr_opcode`; NOP has the entry
    // BW_OPERATION_NOP. Requests that a link posts again count again, and its keep-alives count as
    // BW_WR_RDMA_WRITE. A request is counted when the queue reloads its limit: at the latest one lap of the
    // ring behind its post. Polls of a link or a set count, too, and `bw_qp_count` of a queue pair.
    uint64_t requests[BW_OPERATION_MAX];
    // Bytes that these requests send, or that a READ or an atomic brings. Bytes that were received are not
    // counted.
    uint64_t bytes[BW_OPERATION_MAX];
    // Receives that were posted, counted like requests. Not those of a shared receive queue.
    uint64_t receives;
    // Basic blocks of 64 bytes that sends may occupy at once. Most requests take one.
    uint64_t send_slots;
    // Basic blocks of the sends that were rung and are not reported yet.
    uint64_t sends_in_flight;
    // Receives that may be posted at once; 0 with a shared receive queue.
    uint64_t recv_slots;
    // Receives that were rung and are not reported yet.
    uint64_t receives_in_flight;
    // Late completions of earlier lives of queues, dropped by the completion queues of a link or a set. 0
    // of a queue pair, and of a link of a set.
    uint64_t stale;
    // Of a set: its links, ended ones included.
    uint64_t links;
    // Of a set: links that are BW_LINK_READY. Of a link: 1 if it is. Of a queue pair: 0.
    uint64_t ready;
    // Blocks of the shared receive queue that messages hold, of a set with `srq_max_held`.
    uint64_t held;
} bw_queue_counters;

// Counters of a device, since it was opened, or since the driver of the kernel was loaded.
// BW_COUNTER_UNKNOWN: nothing counts it.
typedef struct bw_device_counters {
    // `sizeof(bw_device_counters)`.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Times that a request of this device waited because the peer had no receive posted (an RNR NAK came).
    uint64_t rnr_naks;
    // Times that a request was sent again, or waited longer, because no acknowledgement came in time.
    uint64_t retries;
} bw_device_counters;

// One step of a script: a fault, and its trigger.
typedef struct bw_soft_step {
    // A `bw_soft_trigger`.
    uint32_t trigger;
    // A `bw_soft_fault`.
    uint32_t fault;
    // A count, or nanoseconds, as the trigger says.
    uint64_t at;
    // The fault's argument: nanoseconds, a status or a number. Ignored by the other faults.
    uint64_t value;
    // With BW_FAULT_RAISE: a `bw_event_type`.
    uint32_t event_type;
    // With BW_AT_REQUEST and BW_AT_PACKET: the queue pair whose requests count, or 0 for all. With the
    // other triggers: 0.
    uint32_t qp_num;
} bw_soft_step;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of the library that the program runs with, in the form of `BW_VERSION`.
//
// Thread: any.
uint32_t bw_version(void);

// Whether the library can serve a program that was compiled with the header of version `header`:
// call `bw_version_check(BW_VERSION)` before anything else. It can if the major versions are equal
// and the library is not older. While the major version is 0, the minor versions have to be equal
// too.
//
// Errors: `BW_EVERSION`.
// Thread: any.
int bw_version_check(uint32_t header);

// The meaning of a result code, and what to do about it. Never NULL; the text is static.
//
// Thread: any.
const char *bw_strerror(int code);

// The name of a result code, such as `BW_EFULL`: under it docs/faults.md has the code. Never NULL; the text
// is static.
//
// Thread: any.
const char *bw_error_name(int code);

// Details of the last set-up call that failed on this thread: the request, the limit, what to do.
// Empty when none has failed. Never NULL; valid until the next set-up call fails on this thread.
//
// The data path does not change it: its codes say everything.
//
// Thread: any; each has a text of its own.
const char *bw_last_error(void);

// Describes the device at `index` of the device list, counting from 0: `for (i = 0; bw_device_at(i,
// &info) == BW_OK; i++) …`. Set `info->size` before the call.
//
// Past the end of the list `bw_last_error` says why there are no more devices. For each source of
// devices, and each device that cannot be used, it names the missing part and what to do.
// Examples: a library was not found, cannot be loaded or is too old; the kernel has no RDMA
// support or no device. Or there is no /dev/infiniband, or no permission for it; or libibverbs has
// no provider for the device.
//
// Errors: `BW_ENODEV` past the end of the list, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_at(uint32_t index, struct bw_device_info *info);

// Opens a device by name. "soft" is the software device that the whole process shares, inline and
// on the real clock. "auto" is the best device available; `bw_device_choice` explains the choice.
// "soft:NAME" is this process's node of the fabric of that name. Its queue pairs reach those of
// all processes of the same user that have opened it as well. Regions that are created on it are
// memory that these processes map. It does not survive a fork: a child that opens it again has a
// node of its own.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_ENODEV`, `BW_EINVAL` (no fabric can have this name), `BW_EEXHAUSTED` (the fabric has 4096
// nodes already), `BW_EMEMORY`, `BW_EOTHER` (no thread or descriptor for it), `BW_ENULL`.
// Thread: any.
int bw_device_open(const char *name,
                   struct bw_device **device);

// Opens a private software device: queue pairs of other devices cannot reach it. If `config` is NULL
// the defaults are used.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_EINVAL`, `BW_ELIMIT`, `BW_EMEMORY`, `BW_EOTHER` (no thread or descriptor for it),
// `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_open_soft(const struct bw_soft_config *config,
                        struct bw_device **device);

// Opens a private node of the fabric of this name: "lab" is the fabric of "soft:lab". A process
// can have several. Queue pairs of one reach those of another as they reach those of another
// process. `bw_device_open` opens the node that the process shares. If `config` is NULL the
// defaults are used; the clock of a fabric is BW_CLOCK_REAL.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_EINVAL` (no fabric can have this name, or this clock), `BW_ELIMIT`, `BW_EEXHAUSTED` (the
// fabric has 4096 nodes already), `BW_EMEMORY`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_join(const char *fabric,
                   const struct bw_soft_config *config,
                   struct bw_device **device);

// Opens the same device again: another context, with asynchronous events of its own. Objects of the
// two contexts cannot be combined, but their queue pairs reach each other.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_ENULL`.
// Thread: any.
int bw_device_reopen(const struct bw_device *device, struct bw_device **again);

// Why "auto" chose this device, for people, and why each other device was passed over. It is the
// first with an active port, or, if there is none, the software device. Empty for a device that
// was opened by its own name, and for NULL. Never NULL; valid until `bw_device_close`.
//
// Thread: any.
const char *bw_device_choice(const struct bw_device *device);

// Describes the device and its capabilities. Set `info->size` before the call.
//
// Errors: `BW_ENODEV` if the device is gone, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_query(const struct bw_device *device, struct bw_device_info *info);

// How the device is driven: a `bw_provider`, 0 or more. A ConnectX device is BW_PROVIDER_VERBS if its
// rings are not available, or if BELLWIRE_VERBS_ONLY=1 is set in the environment.
//
// Errors: `BW_EOTHER` for a provider that this header has no number for, `BW_ENULL`.
// Thread: any.
int bw_device_provider(const struct bw_device *device);

// Executes requests whose time has come: requests that wait for a receive at the peer, or for an
// acknowledgement. Polling a completion queue does the same.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_device_progress(const struct bw_device *device);

// Advances a virtual clock by `nanoseconds`, and executes requests whose time has come.
//
// Errors: `BW_ECLOCK` if the device runs on the real clock, `BW_ENULL`.
// Thread: any.
int bw_device_advance(const struct bw_device *device, uint64_t nanoseconds);

// Closes a device.
//
// Errors: `BW_EBUSY` while any of its objects exist, `BW_ENULL`.
// Thread: any; no other call on the device may be under way or follow.
int bw_device_close(struct bw_device *device);

// Counts the objects on the device, to check that nothing is left. On a software device it counts
// the objects of all its contexts in this process, on a device of libibverbs the objects of this
// context. Set `resources->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_resources(const struct bw_device *device, struct bw_resources *resources);

// Creates a protection domain.
//
// Owner: the caller, until `bw_pd_destroy`. It keeps the device open.
// Errors: `BW_ENULL`.
// Thread: any.
int bw_pd_create(const struct bw_device *device, struct bw_pd **pd);

// Destroys a protection domain.
//
// Errors: `BW_EBUSY` while it has memory, windows, address handles or queues, `BW_ENULL`.
// Thread: any; no other call on the protection domain may be under way or follow.
int bw_pd_destroy(struct bw_pd *pd);

// Registers `length` bytes of the program's memory at `addr`. `access` are `bw_access_flags`.
//
// The memory still belongs to the program. It has to exist until `bw_mr_destroy`, and the peer may
// read and write it at any time as the access rights allow. Memory that may be written
// concurrently has to be accessed by atomics (or volatile accesses), here and in
// `bw_region_create`. Memory whose request a completion has reported, and that nothing may write
// any more, need not.
//
// Every page has to be there: writable if `access` has LOCAL_WRITE, readable otherwise. The
// software HCA populates the pages, as devices do, so that sparse memory takes up its whole
// length. With BW_ACCESS_ON_DEMAND it leaves them until they are accessed. The memory stays in
// core files, because the pages may hold other data of the program, too: call madvise(2),
// MADV_DONTDUMP, to leave it out.
//
// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL` (no bytes; an end beyond the address space; unknown rights; REMOTE_WRITE or
// REMOTE_ATOMIC without LOCAL_WRITE), `BW_EFAULT` (`bw_last_error` names the first page that cannot be
// accessed), `BW_EEXHAUSTED`, `BW_ENULL`.
// Thread: any.
int bw_mr_create(const struct bw_pd *pd,
                 void *addr,
                 size_t length,
                 uint32_t access_flags,
                 struct bw_mr **mr);

// Returns where the memory is, and its keys. Set `info->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_mr_query(const struct bw_mr *mr, struct bw_mr_info *info);

// Deregisters the memory. When this returns the device does not access the memory any more; requests
// that still name it fail.
//
// Errors: `BW_EBUSY` while memory windows are bound to it, `BW_ENULL`.
// Thread: any; no other call on the memory region may be under way or follow.
int bw_mr_destroy(struct bw_mr *mr);

// Fills `attr`, of `size` bytes, with its size and the defaults, except for the length. The
// defaults are the largest pages available, from any NUMA node, not locked, not in core files, for
// local use.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_region_attr_default(struct bw_region_attr *attr, size_t size);

// Allocates zeroed memory, with all pages present, and registers it. Slow, because the kernel zeroes
// all of it. `bw_region_query` returns its address and the pages that it consists of.
//
// Owner: the caller, until `bw_region_destroy`. It keeps the protection domain.
// Errors: `BW_EMEMORY` (`bw_last_error` says what to do), `BW_EINVAL` (no bytes, no such NUMA node),
// `BW_EEXHAUSTED`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_region_create(const struct bw_pd *pd,
                     const struct bw_region_attr *attr,
                     struct bw_region **region);

// Returns where the region is, its keys, and the pages that it consists of. Set `info->size` before
// the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_region_query(const struct bw_region *region, struct bw_region_info *info);

// Deregisters the region and frees its memory. Requests that still name it fail, and so do requests
// that name a memory window bound to it.
//
// Errors: `BW_EBUSY` while it has a slab, `BW_ENULL`.
// Thread: any; no other call on the region may be under way or follow, and nothing may use its memory
// any more.
int bw_region_destroy(struct bw_region *region);

// As `bw_mr_create`, but requests name the memory by addresses from `iova` on instead of its own
// (`ibv_reg_mr_iova`); `bw_mr_query` then returns `iova` as its first address. Devices require that
// `addr` and `iova` have the same offset within a page.
//
// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
// Errors: those of `bw_mr_create`; `BW_EUNSUPPORTED` on a software HCA.
// Thread: any.
int bw_mr_create_iova(const struct bw_pd *pd,
                      void *addr,
                      size_t length,
                      uint64_t iova,
                      uint32_t access_flags,
                      struct bw_mr **mr);

// Registers memory of another device, such as a GPU, by its dma-buf (`ibv_reg_dmabuf_mr`):
// `length` bytes from `offset` on. Requests name them by addresses from `iova` on. `fd` may be
// closed afterwards.
//
// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL` (no bytes; an end beyond the address space; unknown rights; REMOTE_WRITE or
// REMOTE_ATOMIC without LOCAL_WRITE; no descriptor), `BW_EUNSUPPORTED` on a software HCA, and if the
// device's driver does not support it, `BW_EOTHER` (not a dma-buf), `BW_ENULL`.
// Thread: any.
int bw_mr_create_dmabuf(const struct bw_pd *pd,
                        int fd,
                        uint64_t offset,
                        size_t length,
                        uint64_t iova,
                        uint32_t access_flags,
                        struct bw_mr **mr);

// Changes registered memory in place (`ibv_rereg_mr`). `flags`, bits of `bw_rereg_mr_flags`, say which
// of the last arguments are used; the others are ignored. The keys may change: see `bw_mr_query`. For
// new memory the same holds as for that of `bw_mr_create`.
//
// When it fails with an error other than `BW_EOTHER` nothing has changed. After `BW_EOTHER` the keys
// may no longer work: destroy the memory region.
//
// Errors: those of `bw_mr_create`; `BW_EFOREIGN` for a protection domain of another device;
// `BW_EUNSUPPORTED` on a software HCA, and if the device's driver does not support it.
// Thread: any; no other call on the memory region may be under way, and no request that names it.
int bw_mr_reregister(struct bw_mr *mr,
                     uint32_t flags,
                     const struct bw_pd *pd,
                     void *addr,
                     size_t length,
                     uint32_t access_flags);

// Returns how many bytes the `num` classes of the array `classes` need: the length to create a region
// with.
//
// Errors: `BW_EINVAL` (more than an address space), `BW_ENULL`.
// Thread: any.
int bw_slab_bytes(const struct bw_slab_class *classes,
                  uint32_t num,
                  uint64_t *bytes);

// Divides a region into the blocks of the `num` classes of the array `classes`, which are sorted from
// the smallest blocks to the largest. A region has one slab at a time. While the slab exists the
// region's memory is used only through its blocks.
//
// A block belongs to the program alone from when it is taken until it is posted. Then it belongs
// to the device until the request has been reported. Plain loads and stores suffice if the
// region's `access` has none of the BW_ACCESS_REMOTE_ rights and not BW_ACCESS_MW_BIND. Otherwise
// any peer that has the rkey of the region, or of a window, can read or write any of the blocks at
// any time. The program has to prevent that, or use atomics.
//
// Owner: the caller, until `bw_slab_destroy`. It keeps the region.
// Errors: `BW_EINVAL` (no classes; one without blocks, or whose length is not a positive multiple of
// 64; not ascending; more than the region holds), `BW_EBUSY` (the region has a slab), `BW_EMEMORY`,
// `BW_ENULL`.
// Thread: any; no other call on the region may be under way.
int bw_slab_create(struct bw_region *region,
                   const struct bw_slab_class *classes,
                   uint32_t num,
                   struct bw_slab **slab);

// Returns how many blocks there are, and how many are taken. Set `info->size` before the call. Slow,
// because it counts them.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_slab_query(const struct bw_slab *slab,
                  struct bw_slab_info *info);

// Takes a block of the smallest class that has `length` bytes. Larger classes are not tried if all
// blocks of that one are taken. The block holds the bytes that were last written there. On failure
// `block` is unchanged.
//
// Owner: the caller, until `bw_slab_return`.
// Errors: `BW_ENOBLOCK` (all are taken), `BW_EINVAL` (more bytes than the largest blocks have),
// `BW_ENULL`.
// Thread: any. Data path.
int bw_slab_take(const struct bw_slab *slab, uint32_t length, struct bw_block *block);

// Returns a block; only `block->addr` is used. The block must not be in use any more: requests
// that name it have been reported. On failure nothing is returned. If two threads return the same
// block, one gets the error. If the block has been taken again in between, returning it twice
// cannot be detected.
//
// Errors: `BW_ERETURNED` (it is not taken), `BW_EFOREIGN` (not a block of this slab), `BW_EINVAL` (an
// address within a block, not its start), `BW_ENULL`.
// Thread: any. Data path.
int bw_slab_return(const struct bw_slab *slab,
                   const struct bw_block *block);

// Destroys a slab. The region remains, with its contents.
//
// Errors: `BW_EBUSY` while blocks are taken, or caches or a set of links that receives into it exist;
// `BW_ENULL`.
// Thread: any; no other call on the slab may be under way or follow.
int bw_slab_destroy(struct bw_slab *slab);

// Creates a cache of the blocks that `bw_slab_take` would take for `length` bytes. Taking and
// returning blocks there needs no atomic read-modify-write. When the cache runs empty or full, 32
// blocks at once move between it and the slab. It is empty at first, and holds at most 64 blocks,
// which other threads cannot take.
//
// Owner: the caller, until `bw_slab_cache_destroy`. It keeps the slab.
// Errors: `BW_EINVAL` (more bytes than the largest blocks have), `BW_ENULL`.
// Thread: any.
int bw_slab_cache_create(const struct bw_slab *slab, uint32_t length, struct bw_slab_cache **cache);

// As `bw_slab_take`, from the cache.
//
// Owner: the caller, until `bw_slab_cache_return` or `bw_slab_return`, of any cache of the slab.
// Errors: `BW_ENOBLOCK` (all are taken, or in other caches), `BW_ENULL`.
// Thread: the cache's owner. Data path.
int bw_slab_cache_take(struct bw_slab_cache *cache, struct bw_block *block);

// As `bw_slab_return`, to the cache; a block of another length goes back to the slab. If two threads
// return the same block at the same time the error may go undetected.
//
// Errors: `BW_ERETURNED`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_ENULL`, as `bw_slab_return`.
// Thread: the cache's owner. Data path.
int bw_slab_cache_return(struct bw_slab_cache *cache,
                         const struct bw_block *block);

// Destroys a cache: its blocks go back to the slab. Blocks taken from it still belong to the program.
//
// Errors: `BW_ENULL`.
// Thread: the cache's owner; no other call on it may be under way or follow.
int bw_slab_cache_destroy(struct bw_slab_cache *cache);

// Queries a port's attributes (`ibv_query_port`); ports count from 1. Set `info->size` before the
// call.
//
// Errors: `BW_EINVAL` for a port that does not exist, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_query_port(const struct bw_device *device, uint32_t port_num, struct bw_port_info *info);

// Reads an entry of a port's GID table (`ibv_query_gid`): 16 bytes, in wire order.
//
// Errors: `BW_EINVAL` for a port or an entry that does not exist, `BW_ENULL`.
// Thread: any.
int bw_query_gid(const struct bw_device *device, uint32_t port_num, uint32_t index, uint8_t *gid);

// Reads an entry of a port's partition key table (`ibv_query_pkey`), in host byte order.
//
// Errors: `BW_EINVAL` for a port or an entry that does not exist, `BW_ENULL`.
// Thread: any.
int bw_query_pkey(const struct bw_device *device,
                  uint32_t port_num,
                  uint32_t index,
                  uint16_t *pkey);

// Creates a completion channel, for `bw_cq_attr.channel`.
//
// Owner: the caller, until `bw_comp_channel_destroy`. It keeps the device open.
// Errors: `BW_EOTHER` if the system has no descriptor left, `BW_ENULL`.
// Thread: any.
int bw_comp_channel_create(const struct bw_device *device, struct bw_comp_channel **channel);

// Returns the channel's descriptor, 0 or more: readable while an event is queued. For poll and
// epoll; it must not be read or closed. While a program sleeps in poll with an inline device it
// has to call `bw_device_progress` now and then. Otherwise requests that wait for a point in time
// do not continue.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_comp_channel_fd(const struct bw_comp_channel *channel);

// Sets whether `bw_get_cq_event` returns `BW_EAGAIN` instead of blocking. This is the descriptor's
// flag O_NONBLOCK, which the program may also set itself.
//
// Errors: `BW_EOTHER` if the system refuses, `BW_ENULL`.
// Thread: any.
int bw_comp_channel_set_nonblocking(const struct bw_comp_channel *channel, int nonblocking);

// Takes the oldest event of the channel (`ibv_get_cq_event`). Returns the number of the completion
// queue and, unless `cq_context` is NULL, the context that it was created with. Blocks if there is
// none. Each event has to be acknowledged by `bw_ack_cq_events`.
//
// Errors: `BW_EAGAIN` if there is none and the descriptor does not block, `BW_EINTR` when a signal handler has
// interrupted the wait, `BW_EWOKEN` by `bw_comp_channel_wake`, `BW_ENULL`.
// Thread: any.
int bw_get_cq_event(const struct bw_comp_channel *channel,
                    uint32_t *cqn,
                    void **cq_context);

// Acknowledges `count` events of the completion queue of this number (`ibv_ack_cq_events`), at the
// cost of one. Destroying the queue waits for it.
//
// Errors: `BW_EINVAL` if fewer events are unacknowledged: then none is acknowledged. `BW_ENULL`.
// Thread: any.
int bw_ack_cq_events(const struct bw_comp_channel *channel, uint32_t cqn, uint32_t count);

// Arms a completion queue (`ibv_req_notify_cq`): its next entry raises one event on its channel.
// If `solicited_only` is not 0, it is the next entry that reports an error or a message sent with
// BW_SEND_SOLICITED. Entries that are already there raise nothing: arm, then poll until the queue
// is empty, then sleep, so that nothing is missed.
//
// Errors: `BW_EINVAL` if it has no channel, `BW_ENULL`.
// Thread: the completion queue's owner.
int bw_cq_req_notify(struct bw_cq *cq, int solicited_only);

// If `awake` is not 0, ends every wait in `bw_get_cq_event` on the channel, and every later one
// that would sleep, with `BW_EWOKEN`. Events that are queued are still returned. If it is 0, waits
// sleep again. So a program lets its threads return before it destroys the channel, whichever
// comes first.
//
// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_comp_channel_wake(const struct bw_comp_channel *channel,
                         int awake);

// Destroys a completion channel.
//
// Errors: `BW_EBUSY` while there are completion queues on it, `BW_ENULL`.
// Thread: any; no other call on the channel may be under way or follow.
int bw_comp_channel_destroy(struct bw_comp_channel *channel);

// Creates a completion queue.
//
// Owner: the caller, until `bw_cq_destroy`. It keeps the device open, and the channel.
// Errors: `BW_ELIMIT` (more entries than the device supports), `BW_EINVAL` (no entries),
// `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_EMEMORY`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_cq_create(const struct bw_device *device, const struct bw_cq_attr *attr, struct bw_cq **cq);

// Returns the size and state of the completion queue. Set `info->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the completion queue's owner.
int bw_cq_query(const struct bw_cq *cq, struct bw_cq_info *info);

// Destroys a completion queue. Completions that were not polled are lost. Its events that were not
// taken are removed; waits until the events that were taken are acknowledged.
//
// Errors: `BW_EBUSY` while queue pairs, or shared receive queues for XRC, complete here, `BW_ENULL`.
// Thread: the completion queue's owner; no other call on it may be under way or follow.
int bw_cq_destroy(struct bw_cq *cq);

// Fills `attr`, of `size` bytes, with its size and the defaults:
// `bw_srq_init_attr_default(&attr, sizeof(attr))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_srq_init_attr_default(struct bw_srq_init_attr *attr, size_t size);

// Creates a shared receive queue, for `bw_qp_init_attr.srq`. Receives are reported by the completion
// queue of the queue pair that consumed them. If `attr` is NULL the defaults are used.
//
// Owner: the caller, until `bw_srq_destroy`. It keeps the protection domain.
// Errors: `BW_ELIMIT`, `BW_EINVAL` (no receives), `BW_EEXHAUSTED`, `BW_EMEMORY`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_srq_create(const struct bw_pd *pd,
                  const struct bw_srq_init_attr *attr,
                  struct bw_srq **srq);

// Creates a shared receive queue for XRC: initiators that are connected with a target of the domain
// name it by its number. Receives are reported by `cq`, which must have room for one entry more than
// `bw_srq_info.max_wr`. If `attr` is NULL the defaults are used.
//
// Owner: the caller, until `bw_srq_destroy`. It keeps the protection domain, the XRC domain and the
// completion queue.
// Errors: `BW_ELIMIT`, `BW_ECQROOM`, `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_EMEMORY`, `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the completion queue's owner.
int bw_srq_create_xrc(const struct bw_pd *pd,
                      const struct bw_xrcd *xrcd,
                      struct bw_cq *cq,
                      const struct bw_srq_init_attr *attr,
                      struct bw_srq **srq);

// Returns its sizes, its limit, and its number (`ibv_query_srq`). Set `info->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the shared receive queue's owner.
int bw_srq_query(const struct bw_srq *srq, struct bw_srq_info *info);

// Sets the limit (`ibv_modify_srq` with `IBV_SRQ_LIMIT`). When a message consumes a receive and
// fewer than `srq_limit` remain, BW_EVENT_SRQ_LIMIT_REACHED is raised once, and the limit becomes
// 0. 0 sets no limit.
//
// Errors: `BW_ELIMIT` above `bw_srq_info.max_wr`, `BW_ENULL`.
// Thread: the shared receive queue's owner.
int bw_srq_modify(struct bw_srq *srq, uint32_t srq_limit);

// Destroys a shared receive queue. Receives that were posted and not reported yet are reported here:
// `cleared`, unless NULL, is called for each, in no particular order. Completions of it that were not
// polled are dropped. Waits until the asynchronous events that were taken for it are acknowledged.
//
// Errors: `BW_EBUSY` while queue pairs use it, `BW_ENULL`.
// Thread: the owner of the shared receive queue, and of its completion queue if it is for XRC. No
// other call on it may be under way or follow.
int bw_srq_destroy(struct bw_srq *srq,
                   bw_flushed_fn cleared,
                   void *context);

// Fills `attr`, of `size` bytes, with its size and the defaults:
// `bw_qp_init_attr_default(&attr, sizeof(attr))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_qp_init_attr_default(struct bw_qp_init_attr *attr, size_t size);

// Returns the number of entries that a queue pair of these attributes reserves in its completion
// queues, for sends and for receives. A completion queue for both directions needs the sum. If `attr`
// is NULL the defaults are used.
//
// Errors: `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any; with a shared receive queue, its owner.
int bw_qp_cq_entries(const struct bw_qp_init_attr *attr,
                     uint32_t *send,
                     uint32_t *recv);

// Fills `attr`, of `size` bytes, with its size and the defaults:
// `bw_connect_attr_default(&attr, sizeof(attr))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_connect_attr_default(struct bw_connect_attr *attr, size_t size);

// Creates a queue pair in RESET. Sends complete on `send_cq`, receives on `recv_cq`, which may be the
// same; an XRC initiator has no receives, so `recv_cq` may be NULL. If `attr` is NULL the defaults are
// used.
//
// Owner: the caller, until `bw_qp_destroy`. It keeps the protection domain, the completion queues
// and the shared receive queue.
// Errors: `BW_ELIMIT`, `BW_EINVAL`, `BW_ECQROOM`, `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_EMEMORY`,
// `BW_ENULL`, `BW_ESIZE`.
// Thread: the owner of both completion queues and of the shared receive queue: no other thread may
// poll them, or post to it, meanwhile.
int bw_qp_create(const struct bw_pd *pd,
                 struct bw_cq *send_cq,
                 struct bw_cq *recv_cq,
                 const struct bw_qp_init_attr *attr,
                 struct bw_qp **qp);

// Returns the endpoint to send to the peer, by any means. Set `endpoint->size` before the call.
//
// Its PSN belongs to one life of the queue pair: call this again after `bw_qp_reset`, and send the result
// to the peer. A peer that is connected with an old endpoint accepts nothing, and requests posted here end
// with BW_WC_RETRY_EXC_ERR. So a late packet of an earlier connection does no harm in the next one. If
// `bw_qp_modify` sets another `sq_psn`, the endpoint has that.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_endpoint(struct bw_qp *qp,
                   struct bw_endpoint *endpoint);

// As `bw_qp_endpoint`, for a connection through `attr->port_num` and `attr->gid_index`. If `attr` is
// NULL the defaults are used. Set `endpoint->size` before the call.
//
// Errors: `BW_EINVAL`, also for a port or an entry that does not exist; `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_endpoint_for(struct bw_qp *qp,
                       const struct bw_connect_attr *attr,
                       struct bw_endpoint *endpoint);

// Moves the queue pair from RESET to INIT. Receives may be posted from here on, and should be
// before the peer connects. If `attr` is NULL the defaults are used.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_EUNSUPPORTED` (a UDP source port), `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_init(struct bw_qp *qp, const struct bw_connect_attr *attr);

// Moves the queue pair from INIT to RTS, connected with `peer`: sends may be posted from here on. The
// peer of an XRC initiator is a `bw_xrc_target`. If `attr` is NULL the defaults are used. When it
// fails the queue pair is in INIT, RTR or ERR: start again with `bw_qp_reset`.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ETRANSPORT` (datagrams: `bw_qp_start`), `BW_EUNSUPPORTED` (a
// UDP source port), `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_connect(struct bw_qp *qp,
                  const struct bw_endpoint *peer,
                  const struct bw_connect_attr *attr);

// Moves a queue pair for datagrams from INIT to RTS; each request names its destination. If `attr` is
// NULL the defaults are used. When it fails the queue pair is in INIT or RTR: start again with
// `bw_qp_reset`.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ETRANSPORT` (connections: `bw_qp_connect`), `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_start(struct bw_qp *qp,
                const struct bw_connect_attr *attr);

// Moves the queue pair to ERR, from any state: everything in flight is flushed, and reported by the
// completion queues.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_to_error(struct bw_qp *qp);

// Moves the queue pair to RESET, from any state: clears both queues and their completions, as the verbs
// specify. The requests that were not reported yet, rung or not, are reported here: `cleared`, unless
// NULL, is called for each, sends first, oldest first. Whether the peer has received the requests that
// were rung is not known; it has received none of the others. The next connection has another PSN: get
// the endpoint anew (`bw_qp_endpoint`), and have the peer reset its queue pair, too.
//
// Errors: `BW_ECQROOM` if other queue pairs have meanwhile taken completion queue entries that this
// one had not reserved, `BW_EFATAL`, `BW_ENULL`.
// Thread: the owner of the queue pair and of its completion queues: no other thread may poll them
// meanwhile.
int bw_qp_reset(struct bw_qp *qp,
                bw_flushed_fn cleared,
                void *context);

// Returns the device's state of the queue pair: a `bw_qp_state`, 0 or more. A failed request moves it
// to ERR.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_get_state(struct bw_qp *qp);

// Returns whether the last bytes of a message of this operation (a `bw_wr_opcode`) are placed last: 0 or 1. If
// they are, a program may poll for them in the memory that the message goes to: at the peer, or here for a
// READ.
//
// If not, only a completion says that all bytes are there: at the peer of a BW_WR_RDMA_WRITE_WITH_IMM or a
// SEND, and here of a READ. Of two messages, this says nothing. The software device places the last bytes
// last. A device of libibverbs says so by `ibv_query_qp_data_in_order`, which is not in rdma-core before 36:
// the result is 0 then. It is the answer of the local device: ask the device at both ends.
//
// Errors: `BW_EINVAL` (no such operation), `BW_ESTATE` (the queue pair is on an id), `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_data_in_order(struct bw_qp *qp,
                        uint32_t opcode);

// Destroys a queue pair. Requests in flight, rung or not, are flushed, and still reported by the
// completion queues. If the queue pair is on an id (`bw_cm_attach_qp`) only the handle is destroyed.
// Waits until the asynchronous events that were taken for it are acknowledged.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner; no other call on it may be under way or follow.
int bw_qp_destroy(struct bw_qp *qp);

// Writes the address of the connection's peer, of at most `BW_ADDR_MAX` characters including its NUL, and its
// port.
//
// Errors: `BW_ESTATE` if the connection has ended, `BW_ECONN` if a link has taken it, `BW_ENULL`.
// Thread: the connection's owner.
int bw_tcp_peer_addr(const struct bw_tcp_conn *conn,
                     char *host,
                     uint32_t *port);

// Listens for peers on a port of the host's address, or of all addresses of this host if `host` is
// NULL. Port 0 means a free one. Any host that reaches the port can connect: nothing is encrypted
// or authenticated.
//
// Owner: the caller, until `bw_tcp_listener_destroy`.
// Errors: `BW_ECONN` (the port is taken or not available), `BW_EINVAL` (no port), `BW_EOTHER`,
// `BW_ENULL`.
// Thread: any.
int bw_tcp_listener_create(const char *host, uint32_t port, struct bw_tcp_listener **listener);

// Returns the port that it listens on, more than 0.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_tcp_listener_port(const struct bw_tcp_listener *listener);

// Returns the descriptor that is readable when a peer can be accepted, 0 or more. It is for poll
// and epoll, and must not be read or closed. The peer may have left again: `bw_tcp_accept` with
// `timeout_ms` 0 does not wait.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_tcp_listener_fd(const struct bw_tcp_listener *listener);

// Accepts the next peer that connects within `timeout_ms` milliseconds; 0 does not wait. This and the following
// calls wait for the time that is left when a signal handler interrupts them.
//
// Owner: the caller, until `bw_tcp_conn_destroy`.
// Errors: `BW_ETIMEDOUT`, `BW_EWOKEN` by `bw_tcp_listener_wake`, `BW_EOTHER` if the system has no descriptor left, `BW_ENULL`.
// Thread: any.
int bw_tcp_accept(const struct bw_tcp_listener *listener,
                  uint32_t timeout_ms,
                  struct bw_tcp_conn **conn);

// If `awake` is not 0, ends every wait in `bw_tcp_accept` on the listener, and every later one
// that would sleep, with `BW_EWOKEN`. Peers that have connected are still accepted. If it is 0,
// waits sleep again. So a program lets its threads return before it destroys the listener,
// whichever comes first.
//
// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_tcp_listener_wake(const struct bw_tcp_listener *listener,
                         int awake);

// Connects to the peer that listens on a port of a host, within `timeout_ms` milliseconds.
//
// Owner: the caller, until `bw_tcp_conn_destroy`.
// Errors: `BW_ECONN` (nothing listens there, or the host is unknown), `BW_ETIMEDOUT`, `BW_EINVAL` (no
// port), `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_tcp_connect(const char *host,
                   uint32_t port,
                   uint32_t timeout_ms,
                   struct bw_tcp_conn **conn);

// Sends the endpoint of a queue pair (`bw_qp_endpoint`, `bw_xrc_target_endpoint`) and the
// description of memory to the peer. Returns the peer's, within `timeout_ms` milliseconds. What
// the peer sends is checked: its numbers are in their ranges. `info` may be NULL: BW_MTU_4096, and
// no memory. Set `peer->size` and `peer_info->size` before the call. For each further queue pair,
// or region of memory, both ends call it again.
//
// If it fails the two ends may be at different steps: destroy the connection, and connect again.
//
// Errors: `BW_ETIMEDOUT`, `BW_ECONN` (the peer has gone), `BW_EPROTO`, `BW_EINVAL`, `BW_EOTHER`,
// `BW_ENULL`, `BW_ESIZE`.
// Thread: the connection's owner.
int bw_tcp_exchange(struct bw_tcp_conn *conn,
                    const struct bw_endpoint *endpoint,
                    const struct bw_conn_info *info,
                    struct bw_endpoint *peer,
                    struct bw_conn_info *peer_info,
                    uint32_t timeout_ms);

// Waits, up to `timeout_ms` milliseconds, until the peer calls it too. An end must not send before it
// knows that the other end's queue pair is connected.
//
// Errors: those of `bw_tcp_exchange`.
// Thread: the connection's owner.
int bw_tcp_barrier(struct bw_tcp_conn *conn,
                   uint32_t timeout_ms);

// Closes a connection. Queue pairs do not need it once they are connected.
//
// Errors: `BW_ENULL`.
// Thread: the connection's owner; no other call on it may be under way or follow.
int bw_tcp_conn_destroy(struct bw_tcp_conn *conn);

// Stops listening. Connections that were accepted remain.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the listener may be under way or follow.
int bw_tcp_listener_destroy(struct bw_tcp_listener *listener);

// Opens an event channel of the named provider: "rdma" is librdmacm's, in a library built with it.
// "soft" and "soft:NAME" are channels of the software device, as for `bw_device_open`. "auto" is
// "rdma" if there is an RDMA device, otherwise "soft".
//
// Owner: the caller, until `bw_cm_channel_destroy`.
// Errors: `BW_ENODEV`, `BW_EUNSUPPORTED`, `BW_EOTHER` if the system has no descriptor left, or no
// rdma_cm, `BW_ENULL`.
// Thread: any.
int bw_cm_channel_create(const char *provider, struct bw_cm_channel **channel);

// As `bw_cm_channel_create`, but the channel's ids use this device: objects that are created on it,
// and on handles from `bw_cm_id_device`, can be combined. With librdmacm this holds if an address
// leads to the device.
//
// Owner: the caller, until `bw_cm_channel_destroy`. It keeps the device open, and not its handle.
// Errors: those of `bw_cm_channel_create`.
// Thread: any.
int bw_cm_channel_create_on(const struct bw_device *device, struct bw_cm_channel **channel);

// Returns the channel's descriptor, 0 or more: readable while an event is queued. For poll and epoll;
// it must not be read or closed.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_cm_channel_fd(const struct bw_cm_channel *channel);

// Destroys an event channel.
//
// Errors: `BW_EBUSY` while ids use it, `BW_ENULL`.
// Thread: any; no other call on the channel may be under way or follow.
int bw_cm_channel_destroy(struct bw_cm_channel *channel);

// Creates an id of a `bw_port_space`, whose events are delivered to this channel, with `context`.
//
// Owner: the caller, until `bw_cm_id_destroy`. It keeps the channel.
// Errors: `BW_EINVAL`, `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_id_create(const struct bw_cm_channel *channel,
                    uint32_t port_space,
                    void *context,
                    struct bw_cm_id **id);

// Changes the context that the id's events carry. For an id that arrived with a request it is NULL at
// first.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_cm_id_set_context(const struct bw_cm_id *id,
                         void *context);

// Destroys an id: a connection is disconnected, an open request is rejected, and events that were not
// taken are removed. It does not wait, and may be called between two events.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the id may be under way or follow.
int bw_cm_id_destroy(struct bw_cm_id *id);

// Returns a new handle to the device that the id is bound to. All ids of one channel that are bound to
// the same device return the same context.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_ESTATE` if the id is not bound to a device yet, `BW_ENODEV`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_id_device(const struct bw_cm_id *id,
                    struct bw_device **device);

// Moves the id to another channel of the same provider (`rdma_migrate_id`), along with its events that
// were not taken yet.
//
// Errors: `BW_EFOREIGN` for a channel of another provider, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_migrate(const struct bw_cm_id *id,
                  const struct bw_cm_channel *to);

// Sets a `bw_cm_option` of an id.
//
// Errors: `BW_EINVAL`, `BW_ESTATE` if it is too late, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_set_option(const struct bw_cm_id *id, uint32_t option, uint32_t value);

// Writes to `text`, of `size` bytes, the peer's addresses that the id has tried in vain since
// `bw_cm_resolve_addr`, each with port and reason. A longer text is cut off. It is empty if none
// has failed.
// Returns the length of the whole text, without the NUL.
//
// Errors: `BW_EINVAL` if `size` is 0, `BW_ENULL`.
// Thread: any.
int bw_cm_tried(const struct bw_cm_id *id, char *text, size_t size);

// Writes to `text`, of `size` bytes, why the id could not connect, where the number of the event
// `BW_CM_EVENT_REJECTED` or `BW_CM_EVENT_UNREACHABLE` says less. For example, the listener's
// process belongs to another user's fabric. A text that is longer is cut off. It is empty if the
// event says everything that is known.
// Returns the length of the whole text, without the NUL.
//
// Errors: `BW_EINVAL` if `size` is 0, `BW_ENULL`.
// Thread: any.
int bw_cm_why_refused(const struct bw_cm_id *id, char *text, size_t size);

// Writes the id's local address, of at most `BW_ADDR_MAX` characters including its NUL, and its port
// (`rdma_get_local_addr`). A link-local address has its interface, as in "fe80::1%eth0".
//
// Errors: `BW_ESTATE` if it has none yet, `BW_ENULL`.
// Thread: any.
int bw_cm_local_addr(const struct bw_cm_id *id,
                     char *host,
                     uint32_t *port);

// Writes the address of the id's peer, of at most `BW_ADDR_MAX` characters including its NUL, and its
// port (`rdma_get_peer_addr`). A link-local address has its interface, as in "fe80::1%eth0".
//
// Errors: `BW_ESTATE` if it has none yet, `BW_ENULL`.
// Thread: any.
int bw_cm_peer_addr(const struct bw_cm_id *id,
                    char *host,
                    uint32_t *port);

// If `awake` is not 0, ends every wait in `bw_cm_get_event` on the channel, and every later one
// that would sleep, with `BW_EWOKEN`. Events that are queued are still returned. If it is 0, waits
// sleep again. So a program lets its threads return before it destroys the channel, whichever
// comes first.
//
// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_cm_channel_wake(const struct bw_cm_channel *channel,
                       int awake);

// Takes the channel's oldest event, and waits for one up to `timeout_ms` milliseconds. 0 does not
// wait, UINT32_MAX waits forever. Set `event->size` before the call.
//
// A signal handler does not end a wait with a limit, which goes on for the time that is left.
//
// Errors: `BW_EAGAIN` if there is none, `BW_EINTR` when a signal handler has interrupted a wait that has no limit,
// `BW_EWOKEN` by `bw_cm_channel_wake`, `BW_EOTHER` for an event that only a newer librdmacm has, and
// when a peer waits at a listener for which the process has no descriptor or no memory left: the text names the limit,
// and the channel goes on; `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_cm_get_event(const struct bw_cm_channel *channel,
                    struct bw_cm_event *event,
                    uint32_t timeout_ms);

// Fills `param`, of `size` bytes, with its size and the defaults:
// `bw_cm_param_default(&param, sizeof(param))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_cm_param_default(struct bw_cm_param *param, size_t size);

// Finds the device through which the peer is reached, and binds the id to it (`rdma_resolve_addr`).
// The outcome is reported by BW_CM_EVENT_ADDR_RESOLVED or _ADDR_ERROR. The peer is an IPv4 or IPv6
// address, or a host name, which is resolved within this call and the timeout. `source` is a local
// address, or NULL. A link-local address names its interface, as in "fe80::1%eth0".
//
// If a name has several addresses, they are tried in the resolver's order. The next one is tried
// when an address or its route cannot be resolved, or when nothing listens at it. It is also tried
// when no peer responds to `bw_cm_connect` or `bw_cm_lookup`. They share the timeout. The id
// delivers the events of one attempt only, and the failure of the last; `bw_cm_tried` returns all.
// Meanwhile its channel's events have to be got, and the id's addresses change. An address that
// leads to another device than the first one that was resolved is not used.
//
// Errors: `BW_ECONN` if there is no route, or `source` is not an address of this host; `BW_ESTATE`,
// `BW_EINVAL`, `BW_EOTHER` (also for a name that is not resolved), `BW_ENULL`.
// Thread: any.
int bw_cm_resolve_addr(const struct bw_cm_id *id,
                       const char *source,
                       const char *host,
                       uint32_t port,
                       uint32_t timeout_ms);

// Finds the path to the peer (`rdma_resolve_route`). The outcome is reported by
// BW_CM_EVENT_ROUTE_RESOLVED or _ROUTE_ERROR.
//
// Errors: `BW_ESTATE` if the address has not been resolved, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_resolve_route(const struct bw_cm_id *id, uint32_t timeout_ms);

// Binds the id to a local address (`rdma_bind_addr`): "0.0.0.0" or "::" means all addresses, port 0 a
// free one. A name stands for the first of its addresses that the id can be bound to; a link-local address
// names its interface, as in "fe80::1%eth0".
//
// Errors: `BW_ECONN` (the port is in use, or the address is not one of this host), `BW_ESTATE`,
// `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_bind(const struct bw_cm_id *id,
               const char *host,
               uint32_t port);

// Listens for peers (`rdma_listen`): each raises BW_CM_EVENT_CONNECT_REQUEST. Requests that wait to be
// taken beyond `backlog` are rejected.
//
// Errors: `BW_ESTATE`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_listen(const struct bw_cm_id *id,
                 uint32_t backlog);

// Moves a queue pair, of BW_QPT_RC and on the id's device, from RESET to INIT. Receives may be
// posted from here on, and should be before `bw_cm_connect` or `bw_cm_accept`. `access_flags` say
// what the peer may do.
//
// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_init_qp(const struct bw_cm_id *id, struct bw_qp *qp, uint32_t access_flags);

// Asks the peer to connect with a queue pair that stays in INIT (`rdma_connect`). The outcome is
// reported by BW_CM_EVENT_CONNECT_RESPONSE, _REJECTED, _UNREACHABLE or _CONNECT_ERROR. If `param` is
// NULL the defaults are used. If `qp` is NULL the queue pair on the id is used (`bw_cm_attach_qp`), and
// success is reported by _ESTABLISHED.
//
// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`,
// `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_cm_connect(const struct bw_cm_id *id,
                  struct bw_qp *qp,
                  const struct bw_cm_param *param);

// Moves the queue pair to RTS after BW_CM_EVENT_CONNECT_RESPONSE, and informs the peer, which gets
// BW_CM_EVENT_ESTABLISHED (`rdma_establish`).
//
// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_establish(const struct bw_cm_id *id, struct bw_qp *qp);

// Accepts the request that the id arrived with (`rdma_accept`), and moves the queue pair from INIT to
// RTS. BW_CM_EVENT_ESTABLISHED reports that the peer is ready, too: do not send before. If `param` is
// NULL the defaults are used; if `qp` is NULL the queue pair on the id is used.
//
// Errors: those of `bw_cm_connect`; `BW_ESTATE` if the request was accepted or rejected before, or the
// peer has gone.
// Thread: the queue pair's owner.
int bw_cm_accept(const struct bw_cm_id *id,
                 struct bw_qp *qp,
                 const struct bw_cm_param *param);

// Rejects the request that the id arrived with (`rdma_reject`). The private data, at most 148 bytes,
// can say why.
//
// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE` if the request was accepted or rejected
// before, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_reject(const struct bw_cm_id *id,
                 const void *data,
                 uint32_t length);

// Ends the connection, or this end of one that the peer has ended (`rdma_disconnect`). The queue
// pair is moved to ERR, where everything in flight is flushed and reported.
// BW_CM_EVENT_DISCONNECTED reports that the peer has ended it, too, BW_CM_EVENT_TIMEWAIT_EXIT that
// the queue pair can be connected again. If `qp` is NULL the queue pair on the id is used.
//
// Errors: `BW_ESTATE` if it is not connected: the queue pair is moved to ERR all the same.
// `BW_ETRANSPORT`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_disconnect(const struct bw_cm_id *id, struct bw_qp *qp);

// Puts a queue pair of BW_QPT_RC on an id, which owns it from here on. `bw_cm_connect`,
// `bw_cm_accept` and `bw_cm_disconnect` use it if they are called with NULL for the queue pair, as
// librdmacm does after rdma_create_qp(3). Put it on the id in INIT, with receives posted, and take
// it back by `bw_cm_detach_qp` when it is connected. Meanwhile `bw_cm_get_event` changes its
// state:
//
// The peer's reply moves it to RTS, and the event is BW_CM_EVENT_ESTABLISHED at this end, too, with
// the contents of the reply. If the device refuses that change, the event is
// BW_CM_EVENT_CONNECT_ERROR, the queue pair is in ERR, and the peer gets _REJECTED.
// BW_CM_EVENT_REJECTED and _UNREACHABLE move it to ERR: posted requests are flushed, and reported.
//
// A queue pair of BW_QPT_UD, on an id for datagrams, is attached to each group whose
// BW_CM_EVENT_MULTICAST_JOIN is taken. If that is refused the event is _MULTICAST_ERROR, and the
// program has to leave the group.
//
// Owner: the id, which keeps what the queue pair keeps. The handle stays the caller's, and is valid
// only for `bw_cm_detach_qp` and `bw_qp_destroy`: all other calls, posts and rings included, return
// `BW_ESTATE`. A queue pair that is still on an id when the id is destroyed is destroyed with it,
// except for the handle.
// Errors: `BW_EBUSY` if another queue pair is on the id, `BW_ESTATE` if this one is on an id,
// `BW_ETRANSPORT`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_attach_qp(const struct bw_cm_id *id, struct bw_qp *qp);

// Takes a queue pair off the id that it was put on, in any state. The connection is not changed; from
// here on the caller changes the queue pair's state.
//
// Errors: `BW_EFOREIGN` if another queue pair is on the id, which stays there, `BW_ESTATE` if none is,
// `BW_ENULL`.
// Thread: any; no other thread may use the queue pair's handle meanwhile.
int bw_cm_detach_qp(const struct bw_cm_id *id,
                    struct bw_qp *qp);

// Moves a queue pair, of BW_QPT_UD and on the id's device, from RESET to RTS, with the id's port and
// Q_Key.
//
// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_start_qp(const struct bw_cm_id *id,
                   struct bw_qp *qp);

// Looks up a datagram service, with at most 180 bytes of private data (`rdma_connect` of an id for
// datagrams). BW_CM_EVENT_ESTABLISHED reports its address; _REJECTED or _UNREACHABLE reports that
// there is none.
//
// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_lookup(const struct bw_cm_id *id,
                 const void *data,
                 uint32_t length);

// Replies to a lookup, with at most 136 bytes of private data: this queue pair provides the service
// (`rdma_accept` of an id for datagrams).
//
// Errors: those of `bw_cm_lookup`, and `BW_EFOREIGN`.
// Thread: the queue pair's owner.
int bw_cm_reply(const struct bw_cm_id *id, struct bw_qp *qp, const void *data, uint32_t length);

// Joins a multicast group by its address (`rdma_join_multicast`); if `send_only` is not 0, only to
// send. The outcome is reported by BW_CM_EVENT_MULTICAST_JOIN or _MULTICAST_ERROR; then attach the
// queue pair by `bw_qp_attach_mcast`.
//
// Errors: `BW_ESTATE` if the id is not bound to a device, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_join(const struct bw_cm_id *id, const char *group, int send_only);

// Leaves a multicast group (`rdma_leave_multicast`).
//
// Errors: `BW_EINVAL`, `BW_ECONN` if it was not joined, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_leave(const struct bw_cm_id *id, const char *group);

// Creates an address handle.
//
// Owner: the caller, until `bw_ah_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL` (a port or a source GID that the device does not have, a field out of range),
// `BW_ENULL`.
// Thread: any.
int bw_ah_create(const struct bw_pd *pd, const struct bw_ah_attr *attr, struct bw_ah **ah);

// `bw_ah_init_from_wc` for a completion of `size` bytes: writes the path back to a datagram's
// sender to `attr` (`ibv_init_ah_from_wc`). `wc` is the completion of the receive, `grh` the first
// 40 bytes of its memory (ignored without BW_WC_GRH). In these bytes RoCE v2 has an IPv4 or an
// IPv6 header. `port_num` is the port on which the datagram arrived. On RoCE the path begins at
// the GID that the datagram was sent to. Its index is looked for on the devices that the process
// has open. If several devices have that GID, use `bw_ah_create_from_wc`, which looks on one
// device.
//
// Errors: `BW_EINVAL` (not a received datagram, not a global route header, or one to a GID that no device or
// more than one has), `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_ah_init_from_wc_sized(const struct bw_wc *wc,
                             size_t size,
                             const void *grh,
                             uint32_t port_num,
                             struct bw_ah_attr *attr);

// `bw_ah_create_from_wc` for a completion of `size` bytes: creates an address handle for replying to a
// datagram (`ibv_create_ah_from_wc`), from the arguments of `bw_ah_init_from_wc`. The GID that the datagram was
// sent to is looked for on the protection domain's device.
//
// Owner: the caller, until `bw_ah_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL`, `BW_ENULL`.
// Thread: any.
int bw_ah_create_from_wc_sized(const struct bw_pd *pd,
                               const struct bw_wc *wc,
                               size_t size,
                               const void *grh,
                               uint32_t port_num,
                               struct bw_ah **ah);

// Returns the attributes that an address handle was created with.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_ah_query(const struct bw_ah *ah, struct bw_ah_attr *attr);

// Destroys an address handle. Requests that were posted with it are not affected.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call with the address handle, including a post, may be under way or follow.
int bw_ah_destroy(struct bw_ah *ah);

// Attaches a queue pair for datagrams to a multicast group (`ibv_attach_mcast`): it receives
// datagrams to this MGID, of 16 bytes, and MLID. If it is attached twice it still receives one copy.
// A queue pair that is destroyed leaves its groups.
//
// Errors: `BW_ETRANSPORT`, `BW_EINVAL` (not a multicast address), `BW_EEXHAUSTED` (the group is
// full), `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_attach_mcast(struct bw_qp *qp,
                       const uint8_t *gid,
                       uint16_t lid);

// Detaches the queue pair from the group (`ibv_detach_mcast`).
//
// Errors: `BW_ETRANSPORT`, `BW_EINVAL` if it is not attached, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_detach_mcast(struct bw_qp *qp, const uint8_t *gid, uint16_t lid);

// Changes those attributes of `attr` that `mask` names, bits of `bw_qp_attr_mask` (`ibv_modify_qp`).
// `bw_qp_init`, `bw_qp_connect` and `bw_qp_start` do the usual changes in one call. For RESET use
// `bw_qp_reset`.
//
// Errors: `BW_ESTATE` (no such transition; the state is not `cur_qp_state`; still draining; RESET),
// `BW_EINVAL` (`bw_last_error` names each attribute that is missing, not allowed or out of range),
// `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_modify(struct bw_qp *qp,
                 const struct bw_qp_attr *attr,
                 uint32_t mask);

// Queries state and attributes, as the device has them (`ibv_query_qp`). Set `attr->size` before the
// call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_query(struct bw_qp *qp,
                struct bw_qp_attr *attr);

// Creates an XRC domain (`ibv_open_xrcd`, without a file).
//
// Owner: the caller, until `bw_xrcd_destroy`. It keeps the device open.
// Errors: `BW_EUNSUPPORTED` on a device without XRC, `BW_ENULL`.
// Thread: any.
int bw_xrcd_create(const struct bw_device *device, struct bw_xrcd **xrcd);

// Opens the XRC domain of the file `fd` (`ibv_open_xrcd`). All that open it on this device with
// the same file share the domain, on devices of libibverbs also across processes. `mode` is a
// `bw_xrcd_mode`. The file's contents do not matter, and it may be closed afterwards.
//
// Owner: the caller, until `bw_xrcd_destroy`. It keeps the device open.
// Errors: `BW_EBUSY` if the domain exists and a new one was requested, `BW_EINVAL` (the domain does
// not exist, and BW_XRCD_OPEN was requested; an unknown mode; no descriptor), `BW_EUNSUPPORTED` on a
// device without XRC, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_xrcd_open(const struct bw_device *device,
                 int fd,
                 uint32_t mode,
                 struct bw_xrcd **xrcd);

// Destroys an XRC domain.
//
// Errors: `BW_EBUSY` while targets or shared receive queues are in it, `BW_ENULL`.
// Thread: any; no other call on the domain may be under way or follow.
int bw_xrcd_destroy(struct bw_xrcd *xrcd);

// Creates a target in RESET.
//
// Owner: the caller, until `bw_xrc_target_destroy`. It keeps the XRC domain.
// Errors: `BW_EEXHAUSTED`, `BW_ENULL`.
// Thread: any.
int bw_xrc_target_create(const struct bw_xrcd *xrcd, struct bw_xrc_target **target);

// Opens an existing target of the domain by its number (`ibv_open_qp`). It may have been created by
// this process or by another one that has opened the domain of the same file. All openers share the
// target, which is destroyed with its last handle; only its creator can move it to RESET.
//
// Owner: the caller, until `bw_xrc_target_destroy`. It keeps the XRC domain.
// Errors: `BW_EINVAL` if the domain has no target of this number, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_xrc_target_open(const struct bw_xrcd *xrcd, uint32_t qp_num, struct bw_xrc_target **target);

// Returns the endpoint to send to the initiator, by any means. Set `endpoint->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_xrc_target_endpoint(const struct bw_xrc_target *target,
                           struct bw_endpoint *endpoint);

// Moves the target from RESET to INIT. If `attr` is NULL the defaults are used.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_xrc_target_init(const struct bw_xrc_target *target, const struct bw_connect_attr *attr);

// Moves the target from INIT to RTS, connected with the initiator `peer`. If `attr` is NULL the
// defaults are used.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_xrc_target_connect(const struct bw_xrc_target *target,
                          const struct bw_endpoint *peer,
                          const struct bw_connect_attr *attr);

// Changes state and attributes, as `bw_qp_modify` does; also to RESET, unless the target was opened.
//
// Errors: those of `bw_qp_modify`; `BW_ESTATE` for RESET of a target that was opened.
// Thread: any.
int bw_xrc_target_modify(const struct bw_xrc_target *target,
                         const struct bw_qp_attr *attr,
                         uint32_t mask);

// Queries state and attributes, as the device has them. Set `attr->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_xrc_target_query(const struct bw_xrc_target *target, struct bw_qp_attr *attr);

// Destroys a target. Waits until the asynchronous events that were taken for it are acknowledged.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the target may be under way or follow.
int bw_xrc_target_destroy(struct bw_xrc_target *target);

// Creates a memory window (`ibv_alloc_mw`), which is not bound. `mw_type` is a `bw_mw_type`.
//
// Owner: the caller, until `bw_mw_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL`, `BW_EEXHAUSTED`, `BW_ENULL`.
// Thread: any.
int bw_mw_create(const struct bw_pd *pd, uint32_t mw_type, struct bw_mw **mw);

// Returns the window's rkey, as of the last bind that was posted: each bind changes it. It gives
// access once that bind has been executed. Requests posted after the bind may use it at once. 0,
// which is no key, if `mw` is NULL.
//
// Thread: the window's owner.
uint32_t bw_mw_rkey(const struct bw_mw *mw);

// Binds a window of type 1 (`ibv_bind_mw`), or unbinds it if the length is 0. Posts the request on
// the queue pair, and notifies the device. `bw_mw_rkey` returns the new key at once. A bind that
// is not allowed completes with BW_WC_MW_BIND_ERR. A window of type 2 is bound by BW_WR_BIND_MW of
// `bw_post_send`.
//
// Errors: `BW_EINVAL` (of type 2; unknown flags; `reserved` is not 0), `BW_EFOREIGN`, `BW_ETRANSPORT`
// (datagrams), `BW_EFULL`, `BW_ESTATE`, `BW_ENULL`.
// Thread: the owner of the window and of the queue pair.
int bw_mw_bind(struct bw_qp *qp,
               struct bw_mw *mw,
               uint64_t wr_id,
               const struct bw_mw_bind_info *info,
               uint32_t send_flags);

// Destroys a memory window: when this returns no peer can use it any more.
//
// Errors: `BW_ENULL`.
// Thread: the window's owner; no other call on it may be under way or follow.
int bw_mw_destroy(struct bw_mw *mw);

// `bw_post_send` for requests of `size` bytes: posts the `num` send requests of the array `wr`, in
// order. Notifies the device of them and of requests posted before. A software device in
// BW_SOFT_INLINE executes them in this call.
//
// When it fails, the requests before the refused one are posted; the refused one and those after it
// are not, and are left unchanged. `bad_wr`, unless NULL, is then set to the refused one. It is not
// set if the array or the queue pair is NULL.
//
// | transport | operations |
// |---|---|
// | BW_QPT_RC, BW_QPT_XRC_SEND | all |
// | BW_QPT_UC | all but READ and the atomics |
// | BW_QPT_UD | SEND, SEND_WITH_IMM, NOP |
//
// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`, `BW_EOPCODE`
// (unknown, or not supported by the transport), `BW_EINVAL` (unknown flags; BW_SEND_INLINE with an
// operation that sends no data; elements with an operation that has none; BIND_MW of a window of type
// 1; `reserved`, or that of a bind, is not 0), `BW_ENULL` (also: a datagram without `ah`, a BIND_MW
// without `mw`), `BW_ESIZE`.
// Thread: the send queue's owner. Data path.
int bw_post_send_sized(struct bw_qp *qp,
                       const struct bw_send_wr *wr,
                       size_t size,
                       uint32_t num,
                       const struct bw_send_wr **bad_wr);

// `bw_post_recv` for requests of `size` bytes: posts the `num` receives of the array `wr`, in
// order. Notifies the device of them and of receives posted before. `bad_wr` is as in
// `bw_post_send`.
//
// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_EINVAL` (`reserved` is not
// 0), `BW_ENORQ` (an XRC initiator, or a queue pair with a shared receive queue), `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the receive queue's owner. Data path.
int bw_post_recv_sized(struct bw_qp *qp,
                       const struct bw_recv_wr *wr,
                       size_t size,
                       uint32_t num,
                       const struct bw_recv_wr **bad_wr);

// `bw_post_srq_recv` for requests of `size` bytes: as `bw_post_recv`, to a shared receive queue.
//
// Errors: `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_EINVAL` (`reserved` is not 0), `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the shared receive queue's owner. Data path.
int bw_post_srq_recv_sized(struct bw_srq *srq,
                           const struct bw_recv_wr *wr,
                           size_t size,
                           uint32_t num,
                           const struct bw_recv_wr **bad_wr);

// Posts an RDMA WRITE of the memory that `sge` names; the device is not notified before `bw_ring_sq`.
// This and the following functions are for connections, BW_QPT_RC and BW_QPT_UC, whose requests need
// no address. BW_SEND_INLINE in `send_flags` has no effect on them: the function decides whether the
// data is inline.
//
// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports.
// Thread: the send queue's owner. Data path.
int bw_post_write(struct bw_qp *qp,
                  uint64_t wr_id,
                  const struct bw_sge *sge,
                  uint64_t remote_addr,
                  uint32_t rkey,
                  uint32_t send_flags);

// Posts an RDMA WRITE of `length` bytes at `data` inline: the memory need not be registered, and may
// be reused when this returns.
//
// Errors: those of `bw_post_send`.
// Thread: the send queue's owner. Data path.
int bw_post_write_inline(struct bw_qp *qp,
                         uint64_t wr_id,
                         const void *data,
                         uint32_t length,
                         uint64_t remote_addr,
                         uint32_t rkey,
                         uint32_t send_flags);

// Posts an RDMA READ into the memory that `sge` names.
//
// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports than BW_QPT_RC.
// Thread: the send queue's owner. Data path.
int bw_post_read(struct bw_qp *qp,
                 uint64_t wr_id,
                 const struct bw_sge *sge,
                 uint64_t remote_addr,
                 uint32_t rkey,
                 uint32_t send_flags);

// Posts a SEND of the memory that `sge` names.
//
// Errors: those of `bw_post_send`.
// Thread: the send queue's owner. Data path.
int bw_post_send_one(struct bw_qp *qp,
                     uint64_t wr_id,
                     const struct bw_sge *sge,
                     uint32_t send_flags);

// Posts a SEND of `length` bytes at `data` inline, as `bw_post_write_inline` does.
//
// Errors: those of `bw_post_send`.
// Thread: the send queue's owner. Data path.
int bw_post_send_inline(struct bw_qp *qp,
                        uint64_t wr_id,
                        const void *data,
                        uint32_t length,
                        uint32_t send_flags);

// Posts a receive into the memory that `sge` names. The device is not notified before `bw_ring_rq`.
//
// Errors: those of `bw_post_recv`.
// Thread: the receive queue's owner. Data path.
int bw_post_recv_one(struct bw_qp *qp, uint64_t wr_id, const struct bw_sge *sge);

// Notifies the device of the send requests posted one by one since the last ring. A software device in
// BW_SOFT_INLINE executes them in this call.
//
// Errors: `BW_ESTATE` while the queue pair is on an id, `BW_ENULL`.
// Thread: the send queue's owner. Data path.
int bw_ring_sq(struct bw_qp *qp);

// Notifies the device of the receives posted one by one since the last ring.
//
// Errors: `BW_ESTATE` while the queue pair is on an id, `BW_ENULL`.
// Thread: the receive queue's owner. Data path.
int bw_ring_rq(struct bw_qp *qp);

// `bw_post_writes` for requests of `size` bytes: posts the `num` RDMA WRITEs of the array `wr`, in
// order, and notifies the device. Requests posted one by one before are notified too. Otherwise as
// `bw_post_send`.
//
// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports than BW_QPT_RC and BW_QPT_UC.
// Thread: the send queue's owner. Data path.
int bw_post_writes_sized(struct bw_qp *qp,
                         const struct bw_rdma_wr *wr,
                         size_t size,
                         uint32_t num,
                         const struct bw_rdma_wr **bad_wr);

// `bw_post_writes_inline` for requests of `size` bytes: as `bw_post_writes`, with the bytes at
// `sge.addr` inline. Their memory need not be registered, and may be reused when this returns.
// `sge.lkey` is ignored.
//
// Errors: those of `bw_post_writes`.
// Thread: the send queue's owner. Data path.
int bw_post_writes_inline_sized(struct bw_qp *qp,
                                const struct bw_rdma_wr *wr,
                                size_t size,
                                uint32_t num,
                                const struct bw_rdma_wr **bad_wr);

// `bw_post_reads` for requests of `size` bytes: as `bw_post_writes`, for RDMA READs into the memory that `sge` names.
//
// Errors: those of `bw_post_writes`; `BW_EOPCODE` on other transports than BW_QPT_RC.
// Thread: the send queue's owner. Data path.
int bw_post_reads_sized(struct bw_qp *qp,
                        const struct bw_rdma_wr *wr,
                        size_t size,
                        uint32_t num,
                        const struct bw_rdma_wr **bad_wr);

// Polls one completion: returns 1, or 0 if there is none. It has no size: when `bw_wc` grows, a program
// that is compiled with the header of that version calls another function by this name.
//
// Errors: `BW_ENULL`.
// Thread: the completion queue's owner. Data path.
int bw_poll_one(struct bw_cq *cq,
                struct bw_wc *wc);

// `bw_poll` for completions of `size` bytes: polls up to `max` completions into the array `wc`, and
// returns how many there were.
//
// Errors: `BW_ENULL`, `BW_ESIZE`. A `max` of 0 or less polls none.
// Thread: the completion queue's owner. Data path.
int bw_poll_sized(struct bw_cq *cq, struct bw_wc *wc, size_t size, int max);

// As `bw_poll_one`, but decodes only the fields that every completion has. It has no size, as
// `bw_poll_one`.
//
// Errors: `BW_ENULL`.
// Thread: the completion queue's owner. Data path.
int bw_poll_completion(struct bw_cq *cq, struct bw_completion *completion);

// `bw_poll_completions` for completions of `size` bytes: as `bw_poll`, but decodes only the fields that
// every completion has.
//
// Errors: `BW_ENULL`, `BW_ESIZE`. A `max` of 0 or less polls none.
// Thread: the completion queue's owner. Data path.
int bw_poll_completions_sized(struct bw_cq *cq,
                              struct bw_completion *completions,
                              size_t size,
                              int max);

// `bw_completion_wc` for structs of these sizes: converts a completion to the form that `bw_poll`
// writes, with all its details.
//
// Errors: `BW_ENULL`, `BW_ESIZE`; `BW_EINVAL` for an `opcode` that no poll writes.
// Thread: any.
int bw_completion_wc_sized(const struct bw_completion *completion,
                           size_t completion_size,
                           struct bw_wc *wc,
                           size_t wc_size);

// Returns the descriptor of a device's asynchronous events, 0 or more: readable while one is queued.
// For poll and epoll; it must not be read or closed.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_device_async_fd(const struct bw_device *device);

// Sets whether `bw_get_async_event` returns `BW_EAGAIN` instead of blocking. This is the descriptor's
// flag O_NONBLOCK, which the program may also set itself.
//
// Errors: `BW_EOTHER` if the system refuses, `BW_ENULL`.
// Thread: any.
int bw_device_async_set_nonblocking(const struct bw_device *device,
                                    int nonblocking);

// Takes the oldest asynchronous event (`ibv_get_async_event`), and writes its contents to `info`;
// set `info->size` before the call. Blocks if there is none. Events of a queue are delivered to
// the device handle that it was created on. Events of a port or the device are delivered to every
// open handle.
//
// Owner: the caller, until `bw_ack_async_event`. It keeps the device open. Destroying the queue that
// it is about waits for the acknowledgement.
// Errors: `BW_EAGAIN` if there is none and the descriptor does not block, `BW_EINTR` when a signal handler has
// interrupted the wait, `BW_EWOKEN` by `bw_device_async_wake`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_get_async_event(const struct bw_device *device,
                       struct bw_async_event_info *info,
                       struct bw_async_event **event);

// If `awake` is not 0, ends every wait in `bw_get_async_event` on this handle of the device, and
// every later one that would sleep, with `BW_EWOKEN`. Events that are queued are still returned.
// If it is 0, waits sleep again. So a program lets its threads return before it closes the handle,
// whichever comes first.
//
// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_device_async_wake(const struct bw_device *device,
                         int awake);

// Acknowledges an asynchronous event (`ibv_ack_async_event`), and destroys its handle.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_ack_async_event(struct bw_async_event *event);

// Writes what the queue pair did last to `buffer`, of `capacity` bytes, as a NUL-terminated
// string. The text has its last requests and the progress of each, its last completions, its
// changes of state, and the notes of `bw_qp_note`. It is read from the rings, where a request
// stays until another one overwrites it. Dump a queue pair that failed before it is used again. If
// `attr` is NULL it is text with the last 32 of each. The call changes nothing, and takes about as
// long as a change of state.
//
// `length`, unless NULL, is set to the length of the string without its NUL. If `capacity` is not
// larger, `BW_ELIMIT` is returned, `*length` is set all the same, and nothing else is written. To
// ask for the length, `buffer` may be NULL with a `capacity` of 0.
//
// Errors: `BW_ELIMIT`, `BW_EINVAL` (an unknown format or unknown flags), `BW_EMEMORY`, `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the owner of the queue pair and of its completion queues: no other thread may post to it or
// poll them meanwhile.
int bw_qp_dump(struct bw_qp *qp,
               const struct bw_dump_attr *attr,
               char *buffer,
               size_t capacity,
               size_t *length);

// Adds `text`, with the time, to the queue pair's changes of state, for its dump. Examples: an
// asynchronous event that arrived, or a step of a recovery. The last 64 are kept.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_note(struct bw_qp *qp, const char *text);

// Writes what a fault means, and what to do about it, to `class`. Every number of a family has a class.
//
// Errors: `BW_EINVAL` for an unknown family, transport, queue, opcode, vendor, `bw_peer_fault` or
// `bw_link_fault`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_classify(const struct bw_fault *fault,
                struct bw_class *class_);

// Writes what the status of a completion means, and what to do about it, to `class`. It does so as
// `bw_classify` with the fault of `wc`, of a queue pair of this `bw_qp_type` and of this
// `bw_work_queue`. A completion that failed does not name its queue: the program knows it from
// `wr_id`. The vendor's code is not taken into account.
//
// Errors: `BW_EINVAL` for an unknown transport or queue, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_classify_wc(const struct bw_wc *wc,
                   uint32_t transport,
                   uint32_t queue,
                   struct bw_class *class_);

// What a `bw_wc_status` means, in a sentence (`ibv_wc_status_str`). Never NULL; the text is static.
//
// Thread: any.
const char *bw_wc_status_str(uint32_t status);

// What a `bw_event_type` means, in a sentence (`ibv_event_type_str`). Never NULL; the text is static.
//
// Thread: any.
const char *bw_event_type_str(uint32_t event_type);

// What a `bw_cm_event_type` means, in a sentence (`rdma_event_str`). Never NULL; the text is static.
//
// Thread: any.
const char *bw_cm_event_str(uint32_t event);

// What a `bw_scope` means. Never NULL; the text is static.
//
// Thread: any.
const char *bw_scope_str(uint32_t scope);

// What a `bw_blame` means. Never NULL; the text is static.
//
// Thread: any.
const char *bw_blame_str(uint32_t blame);

// What a `bw_retry` means. Never NULL; the text is static.
//
// Thread: any.
const char *bw_retry_str(uint32_t retry);

// What a `bw_execution` means. Never NULL; the text is static.
//
// Thread: any.
const char *bw_execution_str(uint32_t execution);

// What a `bw_recovery` means: what to do. Never NULL; the text is static.
//
// Thread: any.
const char *bw_recovery_str(uint32_t recovery);

// The name of a `bw_wc_status`, without its prefix, for example "RETRY_EXC_ERR". "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_wc_status_name(uint32_t status);

// The name of a `bw_event_type`, without its prefix, for example "QP_FATAL". "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_event_type_name(uint32_t event_type);

// The name of a `bw_cm_event_type`, without its prefix, for example "REJECTED". "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_cm_event_name(uint32_t event);

// The name of a `bw_scope`, without its prefix. "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_scope_name(uint32_t scope);

// The name of a `bw_blame`, without its prefix. "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_blame_name(uint32_t blame);

// The name of a `bw_retry`, without its prefix. "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_retry_name(uint32_t retry);

// The name of a `bw_execution`, without its prefix. "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_execution_name(uint32_t execution);

// The name of a `bw_recovery`, without its prefix. "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_recovery_name(uint32_t recovery);

// Creates a link with the one that the peer creates from the other end of the TCP connection. It takes
// the connection over, and connects as it is polled. Receives may be posted at once, and should be, or
// at any time until it is connected. Both ends of the connection have to be at the same step. If
// `init` is NULL the defaults are used.
//
// `conn` is an empty handle from here on, which still has to be destroyed: other calls on it return
// `BW_ECONN`. This may also be so when the call fails: destroy it then, too, and connect again.
//
// Links take the asynchronous events of their device; `bw_device_set_event_hook` delivers the others to the
// program.
//
// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
// Errors: `BW_ECONN` (a link has the connection already), `BW_ELIMIT`, `BW_EINVAL`, `BW_ETRANSPORT`
// (a queue pair that is not BW_QPT_RC), `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the connection's owner.
int bw_link_create(const struct bw_pd *pd,
                   const struct bw_link_init *init,
                   struct bw_tcp_conn *conn,
                   struct bw_link **link);

// Creates two links in one process that are connected with each other, as `bw_link_create` does,
// but without TCP. Each connects as it is polled, by one thread or by two. Where an init is NULL
// the defaults are used. When the call fails both handles are NULL.
//
// Owner: the caller, of both, until `bw_link_destroy`. They keep their protection domains.
// Errors: those of `bw_link_create`.
// Thread: any.
int bw_link_create_pair(const struct bw_pd *pd,
                        const struct bw_link_init *init,
                        struct bw_link **link,
                        const struct bw_pd *peer_pd,
                        const struct bw_link_init *peer_init,
                        struct bw_link **peer);

// Destroys a link, and informs the peer, whose link ends. Outcomes that were not reported yet are
// lost: call `bw_link_drain` first to get them. Waits for the recovery thread to stop, if there is
// one.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner; no other call on it may be under way or follow.
int bw_link_destroy(struct bw_link *link);

// Fills `init`, of `size` bytes, with its size and the defaults:
// `bw_link_init_default(&init, sizeof(init))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_link_init_default(struct bw_link_init *init, size_t size);

// Takes back each send with this `wr_id` that is not reported. Returns a `bw_cancel`, 0 or more. The polls that follow
// report the send once. From then on neither this device nor the peer's accesses its memory, here or at the peer,
// also where the outcome is in doubt.
//
// A send that the device has makes the link recover (BW_CANCELLED), because no device gives one request back from a
// queue. Both ends stop their queue pairs and connect again, which takes some messages between the ends. Other
// requests in flight, of both ends, are posted again as their `bw_replay` says, or are reported. All requests that
// are cancelled before the next poll cost one recovery. A send that completes before that poll is reported as
// executed, and costs none. A send that the link holds while it recovers is not posted again. An unsignalled send
// that turns out to be executed has no outcome of its own.
//
// What may have happened at the peer, by outcome (E: BW_OUTCOME_EXECUTED, N: BW_OUTCOME_NOT_EXECUTED, D:
// BW_OUTCOME_IN_DOUBT with BW_DOUBT_CANCELLED):
//
// - SEND, with or without immediate data: E: its program got the message. N: it did not; a receive there may hold a
//   part. D does not happen.
// - SEND_WITH_INV: as SEND. E: the key is invalid. N: the key may be invalid.
// - WRITE_WITH_IMM: E: data written, and its program was notified. N: it was not notified; the data may be written,
//   in part or whole. D does not happen.
// - WRITE: E: data written. N: nothing, or a part. D: not, in part or wholly written.
// - READ: nothing changes at the peer. N, D: the memory here may hold a part of the data.
// - Atomics: E: the word changed, and its old value is here. N: it did not change. D: either; the old value is lost.
// - Bind, local invalidation: the peer is not involved. The doubt is BW_DOUBT_LOCAL.
//
// Other reasons of doubt tell more, and stay: BW_DOUBT_RESULT_LOST says that a READ or an atomic was executed. If the
// peer is lost while the link recovers, the link ends, and the doubt is BW_DOUBT_PEER_GONE. Then packets under way may
// still change the peer's memory, until its end of the link has noticed.
//
// Errors: `BW_ENOREQUEST`, `BW_EENDED` if the link has ended and everything was reported, `BW_ENULL`.
// Thread: the link's owner.
int bw_link_cancel(struct bw_link *link,
                   uint64_t wr_id);

// Takes back each receive with this `wr_id` that is not reported, as `bw_link_cancel` does a send. Returns a
// `bw_cancel`, 0 or more. One that the device has costs a recovery, too. It is reported as BW_OUTCOME_EXECUTED if a
// message came for it, otherwise as BW_OUTCOME_NOT_EXECUTED. A message under way waits for the next receive; this one's
// memory may hold a part of it. If its completion was lost with a completion queue it is in doubt.
//
// Errors: those of `bw_link_cancel`.
// Thread: the link's owner.
int bw_link_cancel_recv(struct bw_link *link,
                        uint64_t wr_id);

// Gives the send with this `wr_id` a deadline of its own, beside `bw_link_init.request_deadline_ns`. If the send is not
// reported within `within_ns` nanoseconds of the device's clock, it is taken back as by `bw_link_cancel`. Its doubt, if
// any, is BW_DOUBT_DEADLINE_PASSED. Returns a `bw_cancel`, 0 or more. Of several sends with this `wr_id` the
// deadline is of the one posted last. Replaces a deadline set before.
//
// A deadline that has passed is found by the checks of polls (`bw_link_init.check_every`). While the link recovers it
// is found when the request would be posted again. So the request is reported within the time that a recovery may
// take. Other requests, and the data path, pay nothing for it. The first deadline of a queue allocates memory; the
// call finds a request that was just posted at once.
//
// Errors: those of `bw_link_cancel`, `BW_EMEMORY`.
// Thread: the link's owner.
int bw_link_cancel_after(struct bw_link *link,
                         uint64_t wr_id,
                         uint64_t within_ns);

// Gives the receive with this `wr_id` a deadline, as `bw_link_cancel_after` does a send. Returns a `bw_cancel`, 0 or
// more.
//
// Errors: those of `bw_link_cancel_after`.
// Thread: the link's owner.
int bw_link_cancel_recv_after(struct bw_link *link,
                              uint64_t wr_id,
                              uint64_t within_ns);

// Takes back sends of a link of the set, as `bw_link_cancel` does. Returns a `bw_cancel`, 0 or more.
//
// Errors: those of `bw_link_cancel`, `BW_ENOLINK`.
// Thread: the set's owner.
int bw_link_set_cancel(struct bw_link_set *set,
                       bw_link_id link,
                       uint64_t wr_id);

// Takes back receives of a link of the set, as `bw_link_cancel_recv` does. Returns a `bw_cancel`, 0 or more.
//
// Errors: those of `bw_link_cancel`, `BW_ENOLINK`; `BW_ENORQ` with `bw_link_set_init.srq_slab`: a receive there is of no
// link before a message comes for it.
// Thread: the set's owner.
int bw_link_set_cancel_recv(struct bw_link_set *set,
                            bw_link_id link,
                            uint64_t wr_id);

// Gives a send of a link of the set a deadline, as `bw_link_cancel_after` does. Returns a `bw_cancel`, 0 or more.
//
// Errors: those of `bw_link_cancel_after`, `BW_ENOLINK`.
// Thread: the set's owner.
int bw_link_set_cancel_after(struct bw_link_set *set,
                             bw_link_id link,
                             uint64_t wr_id,
                             uint64_t within_ns);

// Gives a receive of a link of the set a deadline, as `bw_link_cancel_recv_after` does. Returns a `bw_cancel`, 0 or
// more.
//
// Errors: those of `bw_link_set_cancel_recv`, `BW_EMEMORY`.
// Thread: the set's owner.
int bw_link_set_cancel_recv_after(struct bw_link_set *set,
                                  bw_link_id link,
                                  uint64_t wr_id,
                                  uint64_t within_ns);

// Posts a SEND that lends memory to the peer until the exchange is over. `lent` names the memory; the `length` bytes at
// `message` are sent inline. The device is not notified before `bw_link_ring_sq`. `access` has the peer's rights:
// BW_ACCESS_REMOTE_READ, BW_ACCESS_REMOTE_WRITE and BW_ACCESS_REMOTE_ATOMIC. The region needs BW_ACCESS_MW_BIND, and
// BW_ACCESS_LOCAL_WRITE if the peer may write. The function stores the rkey of the grant in the message, at byte
// `rkey_at`, as a `uint32_t`. The peer accesses the memory by that rkey and by its own address, `lent->addr`.
//
// The request is reported when the exchange is over and the rkey is invalid. So no peer accesses the memory by this
// grant after the report, whatever became of the request. Until then the program does not access memory that the peer
// may write, and does not write memory that the peer may read. The exchange is over, whichever comes first, when
//
// - the peer answers by a SEND_WITH_INV of the rkey. The receive is reported before the request;
// - the program has the answer by other means, and calls `bw_link_end_grant`;
// - the program cancels the request (`bw_link_cancel`), or its deadline passes (`bw_link_cancel_after`);
// - the link recovers, or ends. A request with a grant is never posted again.
//
// Outcomes: BW_OUTCOME_EXECUTED: the exchange was answered. BW_OUTCOME_NOT_EXECUTED, BW_OUTCOME_FAILED: the peer's program
// did not get the request. BW_OUTCOME_IN_DOUBT: the peer may have got it, and did not answer in time (BW_DOUBT_CANCELLED,
// BW_DOUBT_DEADLINE_PASSED), or the connection failed before the answer (other reasons). Then the memory may have been
// written, in part or whole, and an answer may still come. A peer that uses the rkey afterwards gets REM_ACCESS_ERR, or
// REM_INV_REQ_ERR for a SEND_WITH_INV, and both links recover.
//
// The rkey is that of a memory window of type 2. The link binds and invalidates the window among the program's sends.
// These entries are neither reported nor counted. A device without windows registers the memory instead, for each request. The
// first requests with grants that are open at the same time allocate, and create a window each.
//
// Errors: those of `bw_link_post_send`, `BW_EINVAL` (also: no or other rights; rights that the link's
// `bw_connect_attr.access` lacks; no bytes; the rkey is not within the message), those of `bw_mw_create`. The rkey in the
// message may have been stored.
// Thread: the link's owner.
int bw_link_post_send_grant(struct bw_link *link,
                            uint64_t wr_id,
                            const struct bw_sge *lent,
                            uint32_t access,
                            void *message,
                            uint32_t length,
                            uint32_t rkey_at,
                            uint32_t send_flags);

// The program has the answer to a request that lent memory (`bw_link_post_send_grant`): the link invalidates its rkey.
// The polls that follow report the request as BW_OUTCOME_EXECUTED, unless the request itself failed. Not for answers by
// SEND_WITH_INV, which do this themselves. Returns a `bw_cancel`, 0 or more. Posts a request, and notifies the device.
//
// Errors: those of `bw_link_cancel`; `BW_ENOREQUEST` also for a request that lent no memory.
// Thread: the link's owner.
int bw_link_end_grant(struct bw_link *link,
                      uint64_t wr_id);

// Posts a SEND that lends memory to a link of the set, as `bw_link_post_send_grant` does.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_send_grant`.
// Thread: the set's owner.
int bw_link_set_post_send_grant(struct bw_link_set *set,
                                bw_link_id link,
                                uint64_t wr_id,
                                const struct bw_sge *lent,
                                uint32_t access,
                                void *message,
                                uint32_t length,
                                uint32_t rkey_at,
                                uint32_t send_flags);

// Ends an exchange of a link of the set, as `bw_link_end_grant` does.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_end_grant`.
// Thread: the set's owner.
int bw_link_set_end_grant(struct bw_link_set *set, bw_link_id link, uint64_t wr_id);

// Fills `retry`, of `size` bytes, with its size and the defaults:
// `bw_link_retry_default(&retry, sizeof(retry))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_link_retry_default(struct bw_link_retry *retry, size_t size);

// Creates a connector for links on this device with the `bw_listener` at an IPv4 or IPv6 address, or a
// host name, and a port. It does not contact the peer yet: bw_link_connect resolves a name. If a name has
// several addresses, they are tried in turn until the listener responds at one of them, where the link stays.
// A link-local address names its interface, as in "fe80::1%eth0". If `retry` is NULL the defaults are used.
//
// Owner: the caller, until `bw_connector_destroy`. It keeps the device.
// Errors: `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_connector_create(const struct bw_device *device,
                        const char *host,
                        uint32_t port,
                        const struct bw_link_retry *retry,
                        struct bw_connector **connector);

// Destroys a connector. Its links remain, and can still connect and reconnect.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the connector may be under way or follow.
int bw_connector_destroy(struct bw_connector *connector);

// Creates a link, as `bw_link_create` does, that connects by the communication manager, and reconnects
// by it after a failure. It asks the connector's peer as it is polled: `bw_link_get_state` shows
// whether the peer replies, and `bw_link_query` whether all attempts have failed. Receives may be
// posted meanwhile.
//
// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
// Errors: `BW_EFOREIGN` (a protection domain of another device), `BW_EUNSUPPORTED` (a device of
// libibverbs, in a library without librdmacm), `BW_ELIMIT`, `BW_EINVAL`, `BW_ETRANSPORT` (a queue pair
// that is not BW_QPT_RC), `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_link_connect(const struct bw_connector *connector,
                    const struct bw_pd *pd,
                    const struct bw_link_init *init,
                    struct bw_link **link);

// Listens for links on this device, on a port of an IPv4 or IPv6 address, or of a host name.
// "0.0.0.0" means all addresses of this host, port 0 a free one. Up to `backlog` links, at least
// one, wait to be accepted; peers beyond that have to try again. `retry` says how long a link
// waits for a peer that does not connect, and should be the same as the peer's. If it is NULL the
// defaults are used. When the connecting end closes its link, the accepted one becomes
// BW_LINK_PEER_CLOSED; when its process ends without closing it, the peer is lost (BW_PEER_LOST).
// The peer of a link that was closed here is informed when it asks again. A call that accepts a
// link, or polls another link of the listener, informs it. A peer that asks after this process was
// restarted gives its link up with BW_PEER_RESTARTED. The port is also used for datagrams, by
// which connecting ends announce that they close.
//
// Owner: the caller, until `bw_listener_destroy`. It keeps the device.
// Errors: `BW_ECONN` (the port is taken, or the address is not one of this host), `BW_EINVAL`,
// `BW_EUNSUPPORTED` (a device of libibverbs, in a library without librdmacm), `BW_EEXHAUSTED`,
// `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_listener_create(const struct bw_device *device,
                       const char *host,
                       uint32_t port,
                       uint32_t backlog,
                       const struct bw_link_retry *retry,
                       struct bw_listener **listener);

// Limits the links that were accepted and are not connected yet to `handshakes`, at least one.
// While there are as many, further ones wait in the backlog. One that is not connected within
// `within_ns` nanoseconds after it was accepted is given up (`BW_LINK_GAVE_UP`), and makes room
// for the next. An example is a link with a silent peer. By default 256, and 10 s. Links have to
// be polled to connect.
//
// Errors: `BW_ENULL`.
// Thread: the listener's owner.
int bw_listener_limit_handshakes(struct bw_listener *listener,
                                 uint32_t handshakes,
                                 uint64_t within_ns);

// Returns the port that it listens on, more than 0.
//
// Errors: `BW_ENULL`.
// Thread: the listener's owner.
int bw_listener_port(const struct bw_listener *listener);

// Returns the descriptor that is readable when `bw_link_accept` should be called, 0 or more: for poll
// and epoll; it must not be read or closed. It may be readable although no peer is there to be
// accepted, for instance if a link of the listener took what arrived.
//
// Errors: `BW_ENULL`.
// Thread: the listener's owner.
int bw_listener_fd(const struct bw_listener *listener);

// If `awake` is not 0, ends every wait of `bw_link_accept` and `bw_link_set_accept` on the
// listener, and every later one that would sleep, with `BW_EWOKEN`. Peers that have asked for a
// link are still accepted. If it is 0, waits sleep again. So a program lets the listener's owner
// return before it destroys the listener, whichever comes first.
//
// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
//
// Errors: `BW_ENULL`.
// Thread: any; the listener has to exist, and its owner may be in a call.
int bw_listener_wake(const struct bw_listener *listener,
                     int awake);

// Creates a link with the next peer that has asked for one, and waits for one up to `timeout_ms`
// milliseconds. 0 does not wait, UINT32_MAX waits forever. The link connects as it is polled. If a
// peer cannot be accepted for want of descriptors or memory, the error names the limit, and the peer
// asks again. If the link cannot be created, the peer's link ends, with the error number. A signal
// handler does not end a wait with a limit, which goes on for the time that is left.
//
// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
// Errors: `BW_EAGAIN` if no peer has asked in this time, `BW_EINTR` when a signal handler has interrupted a wait
// that has no limit, `BW_EWOKEN` by `bw_listener_wake`, `BW_EFOREIGN`, `BW_ELIMIT`, `BW_EINVAL`,
// `BW_ETRANSPORT`, `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the listener's owner. Its links may have other owners.
int bw_link_accept(struct bw_listener *listener,
                   const struct bw_pd *pd,
                   const struct bw_link_init *init,
                   uint32_t timeout_ms,
                   struct bw_link **link);

// Adds a link to the set that connects by the communication manager, as `bw_link_connect` does. `*link` is
// set to its handle. Of `init`, the set ignores what `bw_link_set_join` says.
//
// Errors: those of `bw_link_set_join` and `bw_link_connect`.
// Thread: the set's owner.
int bw_link_set_connect(struct bw_link_set *set,
                        const struct bw_connector *connector,
                        const struct bw_link_init *init,
                        bw_link_id *link);

// Adds a link to the set with the next peer that has asked for one, as `bw_link_accept` does. `*link` is
// set to its handle. Of `init`, the set ignores what `bw_link_set_join` says. While the set is full no peer
// is taken from the listener.
//
// Errors: `BW_EAGAIN` if no peer has asked in this time; those of `bw_link_set_join` and
// `bw_link_accept`.
// Thread: the owner of the set and of the listener.
int bw_link_set_accept(struct bw_link_set *set,
                       struct bw_listener *listener,
                       const struct bw_link_init *init,
                       uint32_t timeout_ms,
                       bw_link_id *link);

// Stops listening. Links that were accepted remain, and work as long as nothing fails: they can
// reconnect only while the listener exists.
//
// Errors: `BW_ENULL`.
// Thread: the listener's owner; no other call on the listener may be under way or follow.
int bw_listener_destroy(struct bw_listener *listener);

// `bw_link_poll` for outcomes of `size` bytes: polls up to `max` outcomes into the array `wc`, and
// returns how many there were. Never waits. Polls also connect and recover the link, and reply to
// a peer that connects or recovers: without polls none of this happens.
//
// A poll that finds completions does nothing else, and costs as much as `bw_poll`. A poll that finds a
// fault, or continues a recovery, makes system calls, and calls the hooks.
//
// Errors: `BW_ENULL`, `BW_ESIZE`. A `max` of 0 or less polls none.
// Thread: the link's owner.
int bw_link_poll_sized(struct bw_link *link,
                       struct bw_link_wc *wc,
                       size_t size,
                       int max);

// Closes the link, and polls until everything has been reported, or the timeout expires: then the link
// ends at once, and reports what it knows. Posted requests continue for up to three quarters of the
// time, including a recovery; receives are reported as BW_OUTCOME_NOT_EXECUTED. When this returns the
// memory of all requests belongs to the program again. `report`, unless NULL, is called for each
// outcome. `retired`, unless NULL, is set to the number of requests that were reported: all that were
// posted and not reported before, including unsignalled ones.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner. Not from a hook.
int bw_link_drain(struct bw_link *link,
                  uint32_t timeout_ms,
                  bw_link_wc_fn report,
                  void *context,
                  uint64_t *retired);

// What a `bw_outcome` means. Never NULL; the text is static.
//
// Thread: any.
const char *bw_outcome_str(uint32_t outcome);

// The name of a `bw_outcome`, without its prefix, for example "IN_DOUBT". "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_outcome_name(uint32_t outcome);

// What a `bw_doubt` means. Never NULL; the text is static.
//
// Thread: any.
const char *bw_doubt_str(uint32_t doubt);

// The name of a `bw_doubt`, without its prefix, for example "NO_ANSWER". "UNKNOWN" for other numbers.
// Never NULL; the text is static.
//
// Thread: any.
const char *bw_doubt_name(uint32_t doubt);

// `bw_link_post_send` for requests of `size` bytes: posts the `num` send requests of the array
// `wr`, in order, as `bw_post_send` does. `replay`, a `bw_replay`, applies to all of them. A
// window bound by BIND_MW belongs to the queue pair, which a recovery resets or replaces. Create
// another window then, bind it, and send the peer its key. Do the same after a bind whose outcome
// is not BW_OUTCOME_EXECUTED, as the window's key is then unknown.
//
// Errors: `BW_ERECOVERING`, `BW_EENDED`, `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`,
// `BW_EOPCODE`, `BW_EINVAL` (unknown flags or `replay`; BW_SEND_INLINE with an operation that sends no
// data; elements with an operation that has none; BIND_MW of a window of type 1; `reserved`, or that
// of a bind, is not 0), `BW_ENULL` (also: a BIND_MW without `mw`), `BW_ESIZE`.
// Thread: the link's owner. Data path.
int bw_link_post_send_sized(struct bw_link *link,
                            const struct bw_send_wr *wr,
                            size_t size,
                            uint32_t num,
                            uint32_t replay,
                            const struct bw_send_wr **bad_wr);

// Posts an RDMA WRITE of the memory that `sge` names; the device is not notified before
// `bw_link_ring_sq`. `replay` is a `bw_replay`. BW_SEND_INLINE in `send_flags` has no effect on this
// and the following functions: the function decides whether the data is inline.
//
// Errors: those of `bw_link_post_send`.
// Thread: the link's owner. Data path.
int bw_link_post_write(struct bw_link *link,
                       uint64_t wr_id,
                       const struct bw_sge *sge,
                       uint64_t remote_addr,
                       uint32_t rkey,
                       uint32_t send_flags,
                       uint32_t replay);

// Posts an RDMA WRITE of `length` bytes at `data` inline: the memory need not be registered, and may
// be reused when this returns.
//
// Errors: those of `bw_link_post_send`.
// Thread: the link's owner. Data path.
int bw_link_post_write_inline(struct bw_link *link,
                              uint64_t wr_id,
                              const void *data,
                              uint32_t length,
                              uint64_t remote_addr,
                              uint32_t rkey,
                              uint32_t send_flags,
                              uint32_t replay);

// Posts an RDMA READ into the memory that `sge` names.
//
// Errors: those of `bw_link_post_send`.
// Thread: the link's owner. Data path.
int bw_link_post_read(struct bw_link *link,
                      uint64_t wr_id,
                      const struct bw_sge *sge,
                      uint64_t remote_addr,
                      uint32_t rkey,
                      uint32_t send_flags,
                      uint32_t replay);

// Posts a SEND of the memory that `sge` names, into the peer's next receive.
//
// Errors: those of `bw_link_post_send`.
// Thread: the link's owner. Data path.
int bw_link_post_send_one(struct bw_link *link,
                          uint64_t wr_id,
                          const struct bw_sge *sge,
                          uint32_t send_flags,
                          uint32_t replay);

// Posts a SEND of `length` bytes at `data` inline, as `bw_link_post_write_inline` does.
//
// Errors: those of `bw_link_post_send`.
// Thread: the link's owner. Data path.
int bw_link_post_send_inline(struct bw_link *link,
                             uint64_t wr_id,
                             const void *data,
                             uint32_t length,
                             uint32_t send_flags,
                             uint32_t replay);

// Notifies the device of the send requests that were posted one by one. Does nothing while the link
// recovers: requests posted before are reported.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner. Data path.
int bw_link_ring_sq(struct bw_link *link);

// `bw_link_post_recv` for requests of `size` bytes: posts the `num` receives of the array `wr`, in
// order, as `bw_post_recv` does. A link posts them again when it recovers: each is reported once,
// when a message has arrived, or when the link ends. They may be posted before the link is
// connected for the first time, and should be. They may be posted at any time, even after it has
// been polled, and as many as the receive queue has room for. Until then the link rings the
// doorbell for them itself. During later recoveries they are refused, as sends are.
//
// Errors: `BW_ERECOVERING`, `BW_EENDED`, `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_EINVAL`
// (`reserved` is not 0), `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner. Data path.
int bw_link_post_recv_sized(struct bw_link *link,
                            const struct bw_recv_wr *wr,
                            size_t size,
                            uint32_t num,
                            const struct bw_recv_wr **bad_wr);

// Posts a receive into the memory that `sge` names; the device is not notified before
// `bw_link_ring_rq`.
//
// Errors: those of `bw_link_post_recv`.
// Thread: the link's owner. Data path.
int bw_link_post_recv_one(struct bw_link *link, uint64_t wr_id, const struct bw_sge *sge);

// Notifies the device of the receives that were posted one by one.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner. Data path.
int bw_link_ring_rq(struct bw_link *link);

// Sets the function `hook` that is called, with `context`, at each fault of the link when it is
// found; NULL: none. A peer that closes its link in an orderly shutdown is not a fault. The hook
// is called without a lock held, within `bw_link_poll`, `bw_link_report_fault` and
// `bw_link_drain`, or by the recovery thread with BW_RECOVER_IN_THREAD. It must not use the link,
// and has to return. While a thread recovers the link the previous hook may still be called until
// the thread checks. Its `context` has to stay valid until the link is BW_LINK_READY or has ended.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_on_fault(struct bw_link *link, bw_fault_fn hook, void *context);

// As `bw_link_on_fault`, of a link of a set: called within the polls of the set, `bw_link_set_report_fault`
// and `bw_link_set_drain`. The hook must not use the set.
//
// Errors: `BW_ENOLINK`, `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_on_fault(struct bw_link_set *set,
                         bw_link_id link,
                         bw_fault_fn hook,
                         void *context);

// Sets the function `hook` that is called, with `context`, when a recovery of the link has ended,
// whether it succeeded or not. It is also called when the link is connected for the first time.
// NULL: none. It is not called when the peer closes a link that works: `bw_link_get_state` then
// returns BW_LINK_PEER_CLOSED. Otherwise as `bw_link_on_fault`.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_on_recovered(struct bw_link *link, bw_recovered_fn hook, void *context);

// As `bw_link_on_recovered`, of a link of a set. Otherwise as `bw_link_set_on_fault`.
//
// Errors: `BW_ENOLINK`, `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_on_recovered(struct bw_link_set *set,
                             bw_link_id link,
                             bw_recovered_fn hook,
                             void *context);

// Sets the function `hook` that is called, with `context`, for each asynchronous event of the device
// that concerns none of its links; NULL: none. The links of a device take all its events: a poll of
// any of them calls the hook, without a lock held. `context` has to stay valid until the device is
// closed, or until another hook has been set while no other thread polled a link.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_device_set_event_hook(const struct bw_device *device,
                             bw_event_fn hook,
                             void *context);

// Acknowledges an event that the program took itself by `bw_get_async_event`, and passes it to the
// links of the device that it concerns. Other events go to the hook of `bw_device_set_event_hook`.
// The handle is destroyed.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_device_dispatch_async_event(const struct bw_device *device, struct bw_async_event *event);

// Queries state and attributes of the link's queue pair, as the device has them, as `bw_qp_query`
// does. Set `attr->size` before the call.
//
// Errors: `BW_ERECOVERING` while a thread recovers the link, or if it has no queue pair, `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_query_qp(struct bw_link *link,
                     struct bw_qp_attr *attr);

// Writes what the link's queue pair did last, as `bw_qp_dump` does; faults of the link are among its
// notes. Little is left of a queue pair that has failed and was reset or replaced since: use
// `bw_link_dump_failure` for that.
//
// Errors: `BW_ERECOVERING` while a thread recovers the link, or if it has no queue pair, `BW_ELIMIT`,
// `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_dump(struct bw_link *link,
                 const struct bw_dump_attr *attr,
                 char *buffer,
                 size_t capacity,
                 size_t *length);

// Writes what the queue pair of the connection that failed last had done until it failed. With
// `bw_link_init.dump_entries` such a dump is kept; only the format in `attr` is used. Otherwise as
// `bw_qp_dump`.
//
// Errors: `BW_ESTATE` if none is kept: no connection has failed, or `dump_entries` is 0;
// `BW_ERECOVERING` while a thread recovers the link, `BW_ELIMIT`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_dump_failure(struct bw_link *link,
                         const struct bw_dump_attr *attr,
                         char *buffer,
                         size_t capacity,
                         size_t *length);

// As `bw_link_dump`, of a link of a set.
//
// Errors: `BW_ENOLINK`, `BW_ERECOVERING` if the link has no queue pair, `BW_ELIMIT`, `BW_EINVAL`, `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the set's owner.
int bw_link_set_dump(struct bw_link_set *set,
                     bw_link_id link,
                     const struct bw_dump_attr *attr,
                     char *buffer,
                     size_t capacity,
                     size_t *length);

// As `bw_link_dump_failure`, of a link of a set.
//
// Errors: `BW_ENOLINK`, `BW_ESTATE` if none is kept, `BW_ELIMIT`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the set's owner.
int bw_link_set_dump_failure(struct bw_link_set *set,
                             bw_link_id link,
                             const struct bw_dump_attr *attr,
                             char *buffer,
                             size_t capacity,
                             size_t *length);

// Returns the link's state: a `bw_link_state`, 0 or more. It changes in polls, and when the link is
// closed.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_get_state(const struct bw_link *link);

// Returns the state of a link. Set `info->size` before the call.
//
// Errors: `BW_ERECOVERING` while a thread recovers it, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_query(struct bw_link *link, struct bw_link_info *info);

// Writes the address of the link's peer, of at most `BW_ADDR_MAX` characters including its NUL,
// and its port. It is the address of its end of the TCP connection, or the address that the
// communication manager connects with.
//
// Errors: `BW_ESTATE` for a link of `bw_link_create_pair`, or if it is not known yet or not any more,
// `BW_ERECOVERING` while a thread recovers the link, `BW_ENULL`.
// Thread: the link's owner.
int bw_link_peer_addr(struct bw_link *link,
                      char *host,
                      uint32_t *port);

// Returns the counters of a link; `bw_link_monitor` lets other threads read them. Set `counters->size`
// before the call.
//
// Errors: `BW_ERECOVERING` while a thread recovers it, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_query_counters(const struct bw_link *link,
                           struct bw_link_counters *counters);

// Returns the descriptor on which messages of the peer arrive, 0 or more: readable when there is one.
// For poll and epoll, along with `bw_device_async_fd`; it must not be read or closed.
//
// Errors: `BW_EUNSUPPORTED` for a link of `bw_link_create_pair`, `BW_ERECOVERING` while a thread
// recovers it, `BW_ENULL`.
// Thread: the link's owner.
int bw_link_exchange_fd(struct bw_link *link);

// Returns the descriptor that becomes readable when the link has to be polled, 0 or more. It requires
// `bw_link_init.sleeps`, and the link has to be armed by `bw_link_arm`. For poll and epoll; it must
// not be read or closed. It stays the same for as long as the link exists, across recoveries. Any
// number of links may be in one epoll instance, which may itself be in others.
//
// Errors: `BW_EUNSUPPORTED` without `sleeps`, `BW_ENULL`.
// Thread: the link's owner.
int bw_link_fd(const struct bw_link *link);

// Arms the link, so that the program can sleep. Arm it, poll it until a poll finds nothing, then
// sleep until the descriptor of `bw_link_fd` is readable, whatever the link's state. From this
// call on, completions, messages of the peer and asynchronous events make the descriptor readable,
// or those polls find them. So does the end of a recovery in a thread. So does a poll that leaves
// something to do, such as the poll in which the link becomes BW_LINK_READY. So does a deadline
// that has passed (`bw_link_time_left`), unless the device's clock is virtual. Completions and
// events from before the call do not.
// Errors: `BW_EUNSUPPORTED` without `bw_link_init.sleeps`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the link's owner.
int bw_link_arm(struct bw_link *link);

// Writes for how many nanoseconds of the device's clock the program may sleep before it polls the
// link. It is for programs that sleep on something other than `bw_link_fd`. By then a step of a
// recovery has to be given up or retried, or the device needs attention. UINT64_MAX if there is no
// such deadline, as for a link that a thread recovers.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_time_left(const struct bw_link *link, uint64_t *time_left_ns);

// Makes the link recover as if it had found `fault` itself. This is for faults that only the
// program can notice, such as an event of the communication manager. While a thread recovers the
// link, that thread takes the fault into account when it next checks.
//
// Errors: `BW_EINVAL` as for `bw_classify`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_report_fault(struct bw_link *link, const struct bw_fault *fault);

// Closes a link: posts are refused from here on. Posted requests may continue for `timeout_ms`
// milliseconds of the device's time, including a recovery; then they are flushed. Poll until the state
// is BW_LINK_CLOSED or a greater one and a poll finds nothing: everything has been reported by then,
// receives as BW_OUTCOME_NOT_EXECUTED. Waits for the recovery thread to stop, if there is one.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_close(struct bw_link *link,
                  uint32_t timeout_ms);

// Fills `init`, of `size` bytes, with its size and the defaults:
// `bw_link_set_init_default(&init, sizeof(init))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_link_set_init_default(struct bw_link_set_init *init, size_t size);

// Creates a set without links: a server's connections, on shared completion queues. One poll serves all
// links, and one descriptor wakes for all of them. If
// `init` is NULL the defaults are used.
//
// A fault of one link leaves the others as they are. A fault of a completion queue, or of the
// shared receive queue, is a fault of every link on it. Each link is reported its outcomes, the
// queue is replaced, and all connect again.
//
// Owner: the caller, until `bw_link_set_destroy`. It keeps the protection domain, and the slab.
// Errors: `BW_ELIMIT`, `BW_EINVAL` (also a slab without a free block of that size), `BW_EFOREIGN` (a slab of
// another protection domain), `BW_ETRANSPORT` (a queue pair that is not BW_QPT_RC), `BW_EEXHAUSTED`,
// `BW_EMEMORY`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_link_set_create(const struct bw_pd *pd,
                       const struct bw_link_set_init *init,
                       struct bw_link_set **set);

// Destroys a set with all its links, and informs their peers, whose links end. Outcomes that were not
// reported yet are lost: call `bw_link_set_drain` first to get them.
//
// Errors: `BW_ENULL`.
// Thread: the set's owner; no other call on it may be under way or follow.
int bw_link_set_destroy(struct bw_link_set *set);

// Adds a link to the set, with the one that the peer creates from the other end of the TCP
// connection, as `bw_link_create` does. The peer's link is a plain link, or one of a set. It
// connects as the set is polled. `*link` is set to its handle. Of `init`, `recover_in`,
// `check_every`, `cq_entries` and `sleeps` are ignored: the set decides.
//
// `conn` is an empty handle from here on, which still has to be destroyed, as after
// `bw_link_create`. This is not so if the call fails with an error of the arguments.
//
// Errors: `BW_ELIMIT` (the set has all the links that it was created for), `BW_EBUSY` (its completion
// queue is being replaced: poll it, then call again), `BW_ECONN` (a link has the connection already),
// `BW_ECQROOM` (a larger queue pair than the set was created for), `BW_EINVAL`, `BW_ETRANSPORT`,
// `BW_EEXHAUSTED`, `BW_EFATAL`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the owner of the set and of the connection.
int bw_link_set_join(struct bw_link_set *set,
                     const struct bw_link_init *init,
                     struct bw_tcp_conn *conn,
                     bw_link_id *link);

// Adds a link to the set that is connected with a plain link in the same process, `*peer`, as
// `bw_link_create_pair` does. When the call fails `*peer` is NULL.
//
// Owner: the caller, of the peer, until `bw_link_destroy`. It keeps its protection domain.
// Errors: those of `bw_link_set_join` and `bw_link_create`.
// Thread: the set's owner.
int bw_link_set_join_pair(struct bw_link_set *set,
                          const struct bw_link_init *init,
                          bw_link_id *link,
                          const struct bw_pd *peer_pd,
                          const struct bw_link_init *peer_init,
                          struct bw_link **peer);

// Returns what a set has. Set `info->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the set's owner.
int bw_link_set_query(struct bw_link_set *set, struct bw_link_set_info *info);

// Returns the state of a link of the set; `cqn` is 0 in it. Set `info->size` before the call.
//
// Errors: `BW_ENOLINK`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the set's owner.
int bw_link_set_query_link(struct bw_link_set *set, bw_link_id link, struct bw_link_info *info);

// As `bw_link_peer_addr`, of a link of the set.
//
// Errors: `BW_ENOLINK`, `BW_ESTATE` as for `bw_link_peer_addr`, `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_peer_addr(struct bw_link_set *set, bw_link_id link, char *host, uint32_t *port);

// Notes a pointer of the program's own with a link of the set: to what it keeps for the peer.
//
// Errors: `BW_ENOLINK`, `BW_ENULL` (the set).
// Thread: the set's owner.
int bw_link_set_set_context(struct bw_link_set *set, bw_link_id link, void *context);

// Returns the pointer of `bw_link_set_set_context`; NULL until one was set, and if the handle is of no link.
// For the data path: it is found without a search, and nothing else is checked.
//
// Thread: the set's owner.
void *bw_link_set_context(const struct bw_link_set *set,
                          bw_link_id link);

// Returns the counters of a link of the set. Set `counters->size` before the call.
//
// Errors: `BW_ENOLINK`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the set's owner.
int bw_link_set_query_counters(struct bw_link_set *set,
                               bw_link_id link,
                               struct bw_link_counters *counters);

// Makes a link of the set recover as `bw_link_report_fault` does. BW_EVENT_CQ_ERR and BW_EVENT_SRQ_ERR are
// reported to every link on the same queue.
//
// Errors: `BW_ENOLINK`, `BW_EINVAL` as for `bw_classify`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the set's owner.
int bw_link_set_report_fault(struct bw_link_set *set,
                             bw_link_id link,
                             const struct bw_fault *fault);

// Closes a link of the set, as `bw_link_close` does: its outcomes are reported by polls, until
// `bw_link_set_next_change` returns it as BW_LINK_CLOSED or a greater state.
//
// Errors: `BW_ENOLINK`, `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_close(struct bw_link_set *set, bw_link_id link, uint32_t timeout_ms);

// Removes a link from the set, at once: its handle is of no link from here on. Outcomes that were
// not reported yet are lost, and the memory of its requests belongs to the program again. To get
// them, close it first, and poll until it has ended. Blocks of a shared receive queue that the
// program holds stay its own. The peer's link ends.
//
// Errors: `BW_ENOLINK`, `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_remove(struct bw_link_set *set, bw_link_id link);

// `bw_link_set_poll` for outcomes of `size` bytes: polls up to `max` outcomes of all links of the
// set into the array `wc`. Returns how many there were. Never waits. Polls also connect and
// recover the links, a few in each: without polls none of this happens.
//
// The link of a completion is found by a table, whatever the number of links.
//
// Errors: `BW_ENULL`, `BW_ESIZE`. A `max` of 0 or less polls none.
// Thread: the set's owner.
int bw_link_set_poll_sized(struct bw_link_set *set,
                           struct bw_link_set_wc *wc,
                           size_t size,
                           int max);

// Returns 1, and sets `*link` to a link whose state has changed since this last returned it, and
// `*state` to its present state, a `bw_link_state`. The state is connected, for the first time or
// again, recovering, or ended.
// Returns 0 if there is none. Call it after polls; a link that has ended takes room until it is removed.
//
// Errors: `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_next_change(struct bw_link_set *set,
                            bw_link_id *link,
                            uint32_t *state);

// Closes all links of the set, and polls until each has ended and everything has been reported, or
// the timeout expires. Then the rest ends at once, and the known outcomes are reported. When this
// returns the memory of all requests belongs to the program again. The links stay in the set.
// `report` and `retired` as for `bw_link_drain`.
//
// Errors: `BW_ENULL`.
// Thread: the set's owner. Not from a hook.
int bw_link_set_drain(struct bw_link_set *set,
                      uint32_t timeout_ms,
                      bw_link_set_wc_fn report,
                      void *context,
                      uint64_t *retired);

// Returns the descriptor that becomes readable when the set has to be polled, 0 or more. It requires
// `bw_link_set_init.sleeps`, and the set has to be armed by `bw_link_set_arm`. For poll and epoll; it must
// not be read or closed. It is the same for the life of the set.
//
// Errors: `BW_EUNSUPPORTED`, `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_fd(const struct bw_link_set *set);

// Prepares the set for sleep, as `bw_link_arm` does for one link. Arm it, poll it until a poll
// finds nothing, and sleep until the descriptor is readable. Once for all links.
//
// Errors: `BW_EUNSUPPORTED`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_arm(struct bw_link_set *set);

// Returns in `*time_left_ns` for how many nanoseconds the program may sleep until it polls the set, if it
// sleeps on something other than `bw_link_set_fd`. UINT64_MAX if nothing has a deadline.
//
// Errors: `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_time_left(const struct bw_link_set *set,
                          uint64_t *time_left_ns);

// `bw_link_set_post_send` for requests of `size` bytes: as `bw_link_post_send`, on a link of the set.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
// Thread: the set's owner. Data path.
int bw_link_set_post_send_sized(struct bw_link_set *set,
                                bw_link_id link,
                                const struct bw_send_wr *wr,
                                size_t size,
                                uint32_t num,
                                uint32_t replay,
                                const struct bw_send_wr **bad_wr);

// Posts an RDMA WRITE to a link of the set, as `bw_link_post_write` does.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
// Thread: the set's owner. Data path.
int bw_link_set_post_write(struct bw_link_set *set,
                           bw_link_id link,
                           uint64_t wr_id,
                           const struct bw_sge *sge,
                           uint64_t remote_addr,
                           uint32_t rkey,
                           uint32_t send_flags,
                           uint32_t replay);

// Posts an RDMA WRITE of inline data to a link of the set, as `bw_link_post_write_inline` does.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
// Thread: the set's owner. Data path.
int bw_link_set_post_write_inline(struct bw_link_set *set,
                                  bw_link_id link,
                                  uint64_t wr_id,
                                  const void *data,
                                  uint32_t length,
                                  uint64_t remote_addr,
                                  uint32_t rkey,
                                  uint32_t send_flags,
                                  uint32_t replay);

// Posts an RDMA READ to a link of the set, as `bw_link_post_read` does.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
// Thread: the set's owner. Data path.
int bw_link_set_post_read(struct bw_link_set *set,
                          bw_link_id link,
                          uint64_t wr_id,
                          const struct bw_sge *sge,
                          uint64_t remote_addr,
                          uint32_t rkey,
                          uint32_t send_flags,
                          uint32_t replay);

// Posts a SEND to a link of the set, as `bw_link_post_send_one` does.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
// Thread: the set's owner. Data path.
int bw_link_set_post_send_one(struct bw_link_set *set,
                              bw_link_id link,
                              uint64_t wr_id,
                              const struct bw_sge *sge,
                              uint32_t send_flags,
                              uint32_t replay);

// Posts a SEND of inline data to a link of the set, as `bw_link_post_send_inline` does.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_send`.
// Thread: the set's owner. Data path.
int bw_link_set_post_send_inline(struct bw_link_set *set,
                                 bw_link_id link,
                                 uint64_t wr_id,
                                 const void *data,
                                 uint32_t length,
                                 uint32_t send_flags,
                                 uint32_t replay);

// Notifies the device of the send requests of a link of the set that were posted one by one.
//
// Errors: `BW_ENOLINK`, `BW_ENULL`.
// Thread: the set's owner. Data path.
int bw_link_set_ring_sq(struct bw_link_set *set, bw_link_id link);

// `bw_link_set_post_recv` for requests of `size` bytes: as `bw_link_post_recv`, on a link of the set.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_recv`.
// Thread: the set's owner. Data path.
int bw_link_set_post_recv_sized(struct bw_link_set *set,
                                bw_link_id link,
                                const struct bw_recv_wr *wr,
                                size_t size,
                                uint32_t num,
                                const struct bw_recv_wr **bad_wr);

// Posts a receive to a link of the set, as `bw_link_post_recv_one` does.
//
// Errors: `BW_ENOLINK`, and those of `bw_link_post_recv`.
// Thread: the set's owner. Data path.
int bw_link_set_post_recv_one(struct bw_link_set *set,
                              bw_link_id link,
                              uint64_t wr_id,
                              const struct bw_sge *sge);

// Notifies the device of the receives of a link of the set that were posted one by one.
//
// Errors: `BW_ENOLINK`, `BW_ENULL`.
// Thread: the set's owner. Data path.
int bw_link_set_ring_rq(struct bw_link_set *set, bw_link_id link);

// Fills `wait`, of `size` bytes, with its size and the defaults: `bw_wait_default(&wait, sizeof(wait))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_wait_default(struct bw_wait *wait,
                    size_t size);

// `bw_link_wait` for outcomes of `size` bytes: polls the link, and waits until there is an
// outcome, or the link's state has changed. It polls for a while, then arms the link and sleeps,
// and so on until the time is over.
// Returns the number of outcomes, as `bw_link_poll` does. It is 0 when the state has changed, a
// descriptor of the program is readable, or the time is over. It requires `bw_link_init.sleeps`.
// If `wait` is NULL the defaults are used.
//
// Errors: `BW_EINVAL` (a `max` of 0 or less, a negative descriptor), `BW_EUNSUPPORTED` (a link that was not made
// to sleep on), `BW_EINTR` when a signal handler has interrupted the sleep of a wait that has no limit (one with a
// limit goes on for the time that is left), `BW_EWOKEN` by `bw_link_wake`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_wait_sized(struct bw_link *link,
                       struct bw_link_wc *wc,
                       size_t size,
                       int max,
                       const struct bw_wait *wait);

// If `awake` is not 0, ends every wait of `bw_link_wait` on the link, and every later one that
// would sleep, with `BW_EWOKEN`. Outcomes that are there are still returned. If it is 0, waits
// sleep again. So a program lets the link's owner return before it destroys the link, whichever
// comes first.
//
// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
//
// Errors: `BW_ENULL`.
// Thread: any; the link has to exist, and its owner may be in a call.
int bw_link_wake(const struct bw_link *link,
                 int awake);

// `bw_link_set_wait` for outcomes of `size` bytes: as `bw_link_wait`, for all links of the set. It returns 0 also
// when `bw_link_set_next_change` has something, at once as long as that is not taken. It requires
// `bw_link_set_init.sleeps`.
//
// Errors: those of `bw_link_wait`; `BW_EWOKEN` by `bw_link_set_wake`.
// Thread: the set's owner.
int bw_link_set_wait_sized(struct bw_link_set *set,
                           struct bw_link_set_wc *wc,
                           size_t size,
                           int max,
                           const struct bw_wait *wait);

// If `awake` is not 0, ends every wait of `bw_link_set_wait` on the set, and every later one that
// would sleep, with `BW_EWOKEN`. Outcomes and changes that are there are still returned. If it is
// 0, waits sleep again. So a program lets the set's owner return before it destroys the set,
// whichever comes first.
//
// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
//
// Errors: `BW_ENULL`.
// Thread: any; the set has to exist, and its owner may be in a call.
int bw_link_set_wake(const struct bw_link_set *set,
                     int awake);

// Sets the hook that is called with each record of the log of this level (a `bw_log_level`), and of more
// urgent levels. NULL removes the hook. It replaces the hook that was set before. Posting, ringing and
// polling a link that works log nothing.
//
// The hook runs on the thread of the set-up call or poll that has something to log, or on the recovery
// thread of a link. Several threads may call it at once. It is called under no lock of the library. It may
// call the library, except on the object that its thread is in a call on. The hook's own records are
// dropped. It must not throw, and must not end its thread.
//
// When this returns, no thread is in the hook that was replaced, unless the hook itself called this. So do
// not call it with a lock held that the hook takes. A child of fork has no hook until it sets one.
//
// Errors: `BW_EINVAL` (no such level).
// Thread: any.
int bw_set_log_hook(uint32_t level,
                    bw_log_fn hook,
                    void *context);

// Creates a monitor of a queue pair. From the first one on, its requests are counted by operation. Posting
// takes no instruction more for that; each request takes some once a lap of the ring.
//
// Owner: the caller, until `bw_monitor_destroy`. It may outlive the queue pair.
// Errors: `BW_ESTATE` (the queue pair is on an id), `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_monitor(struct bw_qp *qp,
                  struct bw_monitor **monitor);

// Brings what monitors of the queue pair read up to date: counts the requests and receives that were
// posted so far.
//
// Errors: `BW_ESTATE` (the queue pair is on an id), `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_count(struct bw_qp *qp);

// Creates a monitor of a link, as `bw_qp_monitor` does of a queue pair. It stays with the link through
// recoveries, also while a thread recovers the link.
//
// Owner: the caller, until `bw_monitor_destroy`. It may outlive the link, and has its last counters then.
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_monitor(struct bw_link *link,
                    struct bw_monitor **monitor);

// Creates a monitor of a set: its counters are the sums over all links. With the first one, the requests
// of all links are counted by operation.
//
// Owner: the caller, until `bw_monitor_destroy`. It may outlive the set.
// Errors: `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_monitor(struct bw_link_set *set,
                        struct bw_monitor **monitor);

// Creates a monitor of a link of the set, as `bw_link_monitor` does.
//
// Owner: the caller, until `bw_monitor_destroy`. It may outlive the link and the set.
// Errors: `BW_ENOLINK`, `BW_ENULL`.
// Thread: the set's owner.
int bw_link_set_monitor_link(struct bw_link_set *set, bw_link_id link, struct bw_monitor **monitor);

// Reads the counters of requests, and the depths of the queues, not at one instant. While the counters of a
// set are added up, a join or a removal of a link waits. Set `counters->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any, also while the owner uses the object.
int bw_monitor_read_queues(const struct bw_monitor *monitor,
                           struct bw_queue_counters *counters);

// Reads faults, recoveries and outcomes of a link, or their sums over all links of a set, removed ones
// included. Of a set, `last_ns` and `longest_ns` are the longest of any link. Set `counters->size` before
// the call.
//
// Errors: `BW_EUNSUPPORTED` (it is a monitor of a queue pair), `BW_ENULL`, `BW_ESIZE`.
// Thread: any, also while the owner uses the object.
int bw_monitor_read_link(const struct bw_monitor *monitor,
                         struct bw_link_counters *counters);

// Destroys a monitor.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on it may be under way or follow.
int bw_monitor_destroy(struct bw_monitor *monitor);

// Returns counters of a device. On a software device they are of all its contexts in this process. On a
// device of libibverbs they are of all processes, as its driver shows them in
// `/sys/class/infiniband/DEVICE/ports/N/hw_counters`. Set `counters->size` before the call.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_query_counters(const struct bw_device *device,
                             struct bw_device_counters *counters);

// `bw_soft_inject` for steps of `size` bytes: injects the faults of the `num` steps of the array
// `steps`. Steps that remain of earlier scripts stay. Steps with the same trigger are applied in
// order; a request gets only the first of its faults. Execution is slow while a request or packet
// is still to be hit. If the call fails no step is taken.
//
// Errors: `BW_EINVAL` (an unknown trigger, fault, status or event; a queue pair with a trigger that
// takes none; a fault of a request at BW_AFTER or BW_AT_MODIFY), `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_soft_inject_sized(const struct bw_device *device,
                         const struct bw_soft_step *steps,
                         size_t size,
                         uint32_t num);

// `bw_soft_inject_seeded` for steps of `size` bytes: injects `count` faults at random among the
// next `packets` packets. Each is the fault of one of the `num` steps of the array `kinds`, whose
// triggers are ignored. The same seed gives the same faults.
//
// Errors: those of `bw_soft_inject`.
// Thread: any.
int bw_soft_inject_seeded_sized(const struct bw_device *device,
                                uint64_t seed,
                                uint64_t packets,
                                uint32_t count,
                                const struct bw_soft_step *kinds,
                                size_t size,
                                uint32_t num);

// Removes all scripts: faults that are still to come are not injected.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_soft_clear(const struct bw_device *device);

// Takes the port's link down (0) or up (not 0), which raises BW_EVENT_PORT_ERR or
// BW_EVENT_PORT_ACTIVE. While it is down no packet leaves: reliable requests exceed their retries,
// datagrams are dropped.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_soft_set_port(const struct bw_device *device, int up);

// Raises an event without a cause, for the object of this number: for a port its number from 1;
// ignored for the device. Only the event is raised: the object continues to work.
//
// Errors: `BW_EINVAL` if there is no such event or object, `BW_ENULL`.
// Thread: any.
int bw_soft_raise(const struct bw_device *device, uint32_t event, uint32_t element_number);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BELLWIRE_H */

#ifndef BELLWIRE_INLINE_H
#define BELLWIRE_INLINE_H

/*
 * Functions on structs that grow and have no `size`. Each passes the struct's size in this header
 * to the function of its name with `_sized`, which has the description.
 */

static inline int bw_poll(bw_cq *cq, bw_wc *wc, int max)
{
    return bw_poll_sized(cq, wc, sizeof(bw_wc), max);
}

static inline int bw_poll_completions(bw_cq *cq, bw_completion *completions, int max)
{
    return bw_poll_completions_sized(cq, completions, sizeof(bw_completion), max);
}

static inline int bw_completion_wc(const bw_completion *completion, bw_wc *wc)
{
    return bw_completion_wc_sized(completion, sizeof(bw_completion), wc, sizeof(bw_wc));
}

static inline int bw_post_send(bw_qp *qp, const bw_send_wr *wr, uint32_t num,
                               const bw_send_wr **bad_wr)
{
    return bw_post_send_sized(qp, wr, sizeof(bw_send_wr), num, bad_wr);
}

static inline int bw_post_recv(bw_qp *qp, const bw_recv_wr *wr, uint32_t num,
                               const bw_recv_wr **bad_wr)
{
    return bw_post_recv_sized(qp, wr, sizeof(bw_recv_wr), num, bad_wr);
}

static inline int bw_post_srq_recv(bw_srq *srq, const bw_recv_wr *wr, uint32_t num,
                                   const bw_recv_wr **bad_wr)
{
    return bw_post_srq_recv_sized(srq, wr, sizeof(bw_recv_wr), num, bad_wr);
}

static inline int bw_post_writes(bw_qp *qp, const bw_rdma_wr *wr, uint32_t num,
                                 const bw_rdma_wr **bad_wr)
{
    return bw_post_writes_sized(qp, wr, sizeof(bw_rdma_wr), num, bad_wr);
}

static inline int bw_post_writes_inline(bw_qp *qp, const bw_rdma_wr *wr, uint32_t num,
                                        const bw_rdma_wr **bad_wr)
{
    return bw_post_writes_inline_sized(qp, wr, sizeof(bw_rdma_wr), num, bad_wr);
}

static inline int bw_post_reads(bw_qp *qp, const bw_rdma_wr *wr, uint32_t num,
                                const bw_rdma_wr **bad_wr)
{
    return bw_post_reads_sized(qp, wr, sizeof(bw_rdma_wr), num, bad_wr);
}

static inline int bw_ah_init_from_wc(const bw_wc *wc, const void *grh, uint32_t port_num,
                                     bw_ah_attr *attr)
{
    return bw_ah_init_from_wc_sized(wc, sizeof(bw_wc), grh, port_num, attr);
}

static inline int bw_ah_create_from_wc(const bw_pd *pd, const bw_wc *wc, const void *grh,
                                       uint32_t port_num, bw_ah **ah)
{
    return bw_ah_create_from_wc_sized(pd, wc, sizeof(bw_wc), grh, port_num, ah);
}

static inline int bw_link_poll(bw_link *link, bw_link_wc *wc, int max)
{
    return bw_link_poll_sized(link, wc, sizeof(bw_link_wc), max);
}

static inline int bw_link_wait(bw_link *link, bw_link_wc *wc, int max, const bw_wait *wait)
{
    return bw_link_wait_sized(link, wc, sizeof(bw_link_wc), max, wait);
}

static inline int bw_link_post_send(bw_link *link, const bw_send_wr *wr, uint32_t num,
                                    uint32_t replay, const bw_send_wr **bad_wr)
{
    return bw_link_post_send_sized(link, wr, sizeof(bw_send_wr), num, replay, bad_wr);
}

static inline int bw_link_post_recv(bw_link *link, const bw_recv_wr *wr, uint32_t num,
                                    const bw_recv_wr **bad_wr)
{
    return bw_link_post_recv_sized(link, wr, sizeof(bw_recv_wr), num, bad_wr);
}

static inline int bw_link_set_poll(bw_link_set *set, bw_link_set_wc *wc, int max)
{
    return bw_link_set_poll_sized(set, wc, sizeof(bw_link_set_wc), max);
}

static inline int bw_link_set_wait(bw_link_set *set, bw_link_set_wc *wc, int max,
                                   const bw_wait *wait)
{
    return bw_link_set_wait_sized(set, wc, sizeof(bw_link_set_wc), max, wait);
}

static inline int bw_link_set_post_send(bw_link_set *set, bw_link_id link, const bw_send_wr *wr,
                                        uint32_t num, uint32_t replay, const bw_send_wr **bad_wr)
{
    return bw_link_set_post_send_sized(set, link, wr, sizeof(bw_send_wr), num, replay, bad_wr);
}

static inline int bw_link_set_post_recv(bw_link_set *set, bw_link_id link, const bw_recv_wr *wr,
                                        uint32_t num, const bw_recv_wr **bad_wr)
{
    return bw_link_set_post_recv_sized(set, link, wr, sizeof(bw_recv_wr), num, bad_wr);
}

static inline int bw_soft_inject(const bw_device *device, const bw_soft_step *steps, uint32_t num)
{
    return bw_soft_inject_sized(device, steps, sizeof(bw_soft_step), num);
}

static inline int bw_soft_inject_seeded(const bw_device *device, uint64_t seed, uint64_t packets,
                                        uint32_t count, const bw_soft_step *kinds, uint32_t num)
{
    return bw_soft_inject_seeded_sized(device, seed, packets, count, kinds, sizeof(bw_soft_step), num);
}

/* Bytes received, or returned by a READ or an atomic; otherwise 0. */
static inline uint32_t bw_completion_byte_len(const bw_completion *completion)
{
    switch (completion->opcode) {
    case BW_WC_RECV:
    case BW_WC_RECV_RDMA_WITH_IMM:
    case BW_WC_RDMA_READ:
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        return __builtin_bswap32(completion->byte_cnt);
#else
        return completion->byte_cnt;
#endif
    case BW_WC_COMP_SWAP:
    case BW_WC_FETCH_ADD:
        return 8;
    default:
        return 0;
    }
}

#endif /* BELLWIRE_INLINE_H */
