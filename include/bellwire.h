/*
 * bellwire: an RDMA data plane. This is its C interface.
 *
 * A program lists or opens a device, creates a protection domain, memory, completion queues and
 * queue pairs on it, connects queue pairs, and then posts, rings and polls. examples/c/hello.c is all
 * of it on two pages. Link with -lbellwire; the static library needs -lpthread -ldl -lm as well.
 *
 * CONVENTIONS
 *
 * Names. Everything begins with bw_ or BW_. Names and numbers are those of libibverbs where it has
 * them: BW_WC_RNR_RETRY_EXC_ERR is IBV_WC_RNR_RETRY_EXC_ERR, and means the same.
 *
 * Results. Functions answer an int: BW_OK, which is 0, or a number of bw_error, which is negative.
 * Where the text says so, an answer of 0 or more is a count or a state. A number, once given, is never
 * used again for something else. bw_strerror() tells what a number means; bw_last_error() tells more
 * about the last failure of a set-up call on this thread. A set-up call that fails has created and
 * changed nothing, unless its text says otherwise.
 *
 * Two kinds of functions. The data path is bw_post_*(), bw_ring_*() and bw_poll*(): these make no
 * allocation, no system call and no lock of their own, and leave bw_last_error() alone. All others
 * are set-up calls, and may do all of that.
 *
 * Handles. Devices, protection domains, memory and queues are pointers to structs that only the
 * library looks into. A function that creates one writes its handle to the last argument (NULL when it
 * fails); it is the caller's until it is given to the function that destroys it, which each has. An
 * object that others use cannot be destroyed: the answer is BW_EBUSY, and nothing has happened.
 * "It keeps X" in the text of a create function says which objects are used so. Destroy in the
 * opposite order of creation and it never happens.
 *
 * NULL. A NULL where a pointer is needed is BW_ENULL. Any other pointer has to be good: a handle that
 * was destroyed, or that is of another kind, cannot be told from a good one, and using it, or
 * destroying it a second time, is undefined.
 *
 * Structs that grow. A struct whose first field is `size` may get more fields in later versions. Set
 * `size` to sizeof the struct before every call, also where the library fills it. Fields that the
 * program does not know keep their defaults; fields that the library does not know must be 0, or the
 * answer is BW_ESIZE. Structs without a `size` never change. Fields named reserved are 0.
 *
 * Arguments. Strings are UTF-8 and end with NUL. Pointers that are given are not kept beyond the call,
 * but for handles and for memory that is registered. Integers that stand for an enum, or for the
 * bits of one, are checked: an unknown value is an error.
 *
 * Memory of requests. The bytes that a request names must stay, and must not be written (for a
 * receive, a READ or an atomic: not be touched), from its post until its completion, or the one that
 * retires it, has been polled, or until bw_qp_reset() has told of it. Bytes that are posted inline,
 * and the structs and lists of the request themselves, may be reused when the post returns.
 *
 * Threads. Functions marked "Thread: any" may be called by any thread at any time, on the same
 * objects too. The queues have no locks and one owner at a time: a thread that alone calls their
 * functions, until it hands them over by something that orders memory (a mutex, a join, a release and
 * an acquire). A completion queue has an owner, and so has a queue pair. A queue pair's send queue and
 * its receive queue may also be owned by two different threads while only the data path is called;
 * other functions on the queue pair need the owner of both.
 *
 * Signals and fork. No function is async-signal-safe. A child of fork() must not use the handles.
 *
 * Panics. The library is written in Rust. A fault within a set-up call is caught: the answer is
 * BW_EINTERNAL, and the objects of that call are good for nothing but to be destroyed. The data path
 * has no code that panics; if it did, the process would abort. Nothing unwinds into the program, and
 * callbacks of the program must not unwind (throw, longjmp) into the library.
 *
 * This file is generated from ffi-c/src by `cargo xtask header`.
 */

#ifndef BELLWIRE_H
#define BELLWIRE_H

#include <stddef.h>
#include <stdint.h>

// Version of this header: its major part.
#define BW_VERSION_MAJOR 0

// Its minor part.
#define BW_VERSION_MINOR 1

// Its patch part.
#define BW_VERSION_PATCH 0

// All three, as 0x00MMmmpp.
#define BW_VERSION (((BW_VERSION_MAJOR << 16) | (BW_VERSION_MINOR << 8)) | BW_VERSION_PATCH)

// Characters of a name, its end included.
#define BW_NAME_MAX 64

// Characters of a description, its end included.
#define BW_TEXT_MAX 128

// Why a call failed. Numbers are never used again for something else; a later version may have
// more of them.
typedef enum bw_error {
    // It did not fail.
    BW_OK = 0,
    // A pointer is NULL that must not be.
    BW_ENULL = -1,
    // The `size` of a struct: smaller than its first version, or larger than this library knows and
    // with something other than zero in the part it does not know.
    BW_ESIZE = -2,
    // An argument or a field has a value that it cannot have.
    BW_EINVAL = -3,
    // The program was compiled with the header of another version.
    BW_EVERSION = -4,
    // There is no such device.
    BW_ENODEV = -5,
    // The object is in use by others, which have to be destroyed first.
    BW_EBUSY = -6,
    // More than the device is capable of.
    BW_ELIMIT = -7,
    // All that the device has of something are in use.
    BW_EEXHAUSTED = -8,
    // Memory cannot be had: no huge pages, a limit, a NUMA node that does not exist.
    BW_EMEMORY = -9,
    // Objects of different devices or protection domains.
    BW_EFOREIGN = -10,
    // The completion queue has no room for all that the queue pair could have in flight.
    BW_ECQROOM = -11,
    // The queue pair's state does not allow it: receives are posted from INIT on, sends from RTS
    // on.
    BW_ESTATE = -12,
    // The queue is full: poll its completion queue, then post again.
    BW_EFULL = -13,
    // More scatter/gather elements than the queue holds a request: ask for more when creating the
    // queue pair.
    BW_ETOOMANYSGE = -14,
    // More inline bytes than the queue holds a request: post from registered memory, or ask for
    // more when creating the queue pair.
    BW_EINLINE = -15,
    // A scatter/gather element of 2 GiB or more: use several.
    BW_ESGELENGTH = -16,
    // The opcode is not one that can be posted here.
    BW_EOPCODE = -17,
    // The clock is the real one, and cannot be moved.
    BW_ECLOCK = -18,
    // A failure that has no number of its own; `bw_last_error` tells more.
    BW_EOTHER = -19,
    // A fault within the library. The objects of the call should be destroyed.
    BW_EINTERNAL = -20,
    // The queue pair's transport does not have this.
    BW_ETRANSPORT = -21,
    // The queue pair has no receive queue of its own: it receives from a shared one, or not at all.
    BW_ENORQ = -22,
    // There is no event, and the descriptor was told not to block.
    BW_EAGAIN = -23,
    // The device has failed (BW_EVENT_DEVICE_FATAL), and does nothing any more.
    BW_EFATAL = -24,
} bw_error;

// What a send request does (`ibv_wr_opcode`; NOP is bellwire's).
typedef enum bw_wr_opcode {
    // Write to the peer's memory.
    BW_WR_RDMA_WRITE = 0,
    // Write, and consume a receive at the peer, which completes with the immediate data.
    BW_WR_RDMA_WRITE_WITH_IMM = 1,
    // Send into the peer's next receive.
    BW_WR_SEND = 2,
    // Send with immediate data.
    BW_WR_SEND_WITH_IMM = 3,
    // Read the peer's memory.
    BW_WR_RDMA_READ = 4,
    // Compare eight bytes of the peer's memory and swap when equal; the old value comes back.
    BW_WR_ATOMIC_CMP_AND_SWP = 5,
    // Add to eight bytes of the peer's memory; the old value comes back.
    BW_WR_ATOMIC_FETCH_AND_ADD = 6,
    // Invalidate a key of this side.
    BW_WR_LOCAL_INV = 7,
    // Send, and invalidate a key of the peer's.
    BW_WR_SEND_WITH_INV = 9,
    // Do nothing, and complete.
    BW_WR_NOP = 255,
} bw_wr_opcode;

// What became of a request (`ibv_wc_status`).
typedef enum bw_wc_status {
    // Executed.
    BW_WC_SUCCESS = 0,
    // The receive was shorter than the message, or a length was not allowed.
    BW_WC_LOC_LEN_ERR = 1,
    // The queue pair cannot do this, or the entry is malformed.
    BW_WC_LOC_QP_OP_ERR = 2,
    // An end-to-end context error (obsolete).
    BW_WC_LOC_EEC_OP_ERR = 3,
    // A local key does not cover the memory named, or does not allow the access.
    BW_WC_LOC_PROT_ERR = 4,
    // Not executed: the queue pair was in the error state.
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
    // The device reported a fatal error.
    BW_WC_FATAL_ERR = 19,
    // A response timed out.
    BW_WC_RESP_TIMEOUT_ERR = 20,
    // Another error; `vendor_err` tells more.
    BW_WC_GENERAL_ERR = 21,
    // Tag matching failed.
    BW_WC_TM_ERR = 22,
    // Tag matching went on in software.
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
    // `imm_data` is a key of this side that the peer has invalidated.
    BW_WC_WITH_INV = 8,
} bw_wc_flags;

// Bits of the flags of a send request (`ibv_send_flags`).
typedef enum bw_send_flags {
    // Start only when all earlier READs and atomics of this queue have completed.
    BW_SEND_FENCE = 1,
    // Write a completion entry when done. Without it a later completion of the queue tells of the
    // request too (`bw_wc.retired`); only a failure always has an entry of its own.
    BW_SEND_SIGNALED = 2,
    // Raise a solicited event at the receiver.
    BW_SEND_SOLICITED = 4,
    // Carry the payload within the entry: its memory need not be registered, and may be reused as
    // soon as it is posted. For SENDs and WRITEs, through `bw_post_send`.
    BW_SEND_INLINE = 8,
} bw_send_flags;

// Rights to memory, and of a connection's peer (`ibv_access_flags`).
typedef enum bw_access_flags {
    // The device may write the memory: receives, the results of READs and atomics.
    BW_ACCESS_LOCAL_WRITE = 1,
    // The peer may write. Needs LOCAL_WRITE as well.
    BW_ACCESS_REMOTE_WRITE = 2,
    // The peer may read.
    BW_ACCESS_REMOTE_READ = 4,
    // The peer may use atomics. Needs LOCAL_WRITE as well.
    BW_ACCESS_REMOTE_ATOMIC = 8,
    // Memory windows may be bound to the memory.
    BW_ACCESS_MW_BIND = 16,
    // Addresses count from the start of the memory.
    BW_ACCESS_ZERO_BASED = 32,
    // Pages are faulted in on demand.
    BW_ACCESS_ON_DEMAND = 64,
    // The memory is made of huge pages.
    BW_ACCESS_HUGETLB = 128,
    // Writes may reach memory in another order than they were sent.
    BW_ACCESS_RELAXED_ORDERING = 1048576,
} bw_access_flags;

// The state of a queue pair (`ibv_qp_state`).
typedef enum bw_qp_state {
    // As created: nothing may be posted.
    BW_QPS_RESET = 0,
    // Receives may be posted; none is used yet.
    BW_QPS_INIT = 1,
    // Ready to receive.
    BW_QPS_RTR = 2,
    // Ready to send: the working state.
    BW_QPS_RTS = 3,
    // Send queue drain: started sends finish, later ones wait.
    BW_QPS_SQD = 4,
    // Send queue error (unreliable transports): a send failed, receiving goes on.
    BW_QPS_SQE = 5,
    // Error: everything outstanding completes as flushed.
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

// Who executes requests on a software device.
typedef enum bw_soft_mode {
    // Whoever rings the doorbell, on its own thread: the lowest latency.
    BW_SOFT_INLINE = 0,
    // Threads of the device's own, as a network card would.
    BW_SOFT_ENGINE = 1,
} bw_soft_mode;

// How a software device tells the time.
typedef enum bw_soft_clock {
    // By the machine's monotonic clock.
    BW_CLOCK_REAL = 0,
    // By a clock that stands still until `bw_device_advance`. With BW_SOFT_INLINE and one thread
    // everything that the device does is then deterministic.
    BW_CLOCK_VIRTUAL = 1,
} bw_soft_clock;

// The pages that a region is made of.
typedef enum bw_pages {
    // The largest that can be had: 1 GiB, 2 MiB, transparent huge pages, base pages. A kind is tried
    // only if the region fills at least one page of it. Only to ask for.
    BW_PAGES_AUTO = 0,
    // 1 GiB hugetlb pages.
    BW_PAGES_HUGE_1G = 1,
    // 2 MiB hugetlb pages.
    BW_PAGES_HUGE_2M = 2,
    // Base pages that the kernel is advised to make 2 MiB pages of.
    BW_PAGES_TRANSPARENT = 3,
    // The machine's base pages (4 KiB on x86-64).
    BW_PAGES_BASE = 4,
} bw_pages;

// A completion queue.
typedef struct bw_cq bw_cq;

// An open device.
typedef struct bw_device bw_device;

// Memory of the program that is registered with a device.
typedef struct bw_mr bw_mr;

// A protection domain: queue pairs reach only memory of their own.
typedef struct bw_pd bw_pd;

// A reliable connection's queue pair.
typedef struct bw_qp bw_qp;

// Memory that the library has reserved, and registered with a device.
typedef struct bw_region bw_region;

// What a device is, and what it can do (`ibv_device_attr`, as far as it has a meaning here).
typedef struct bw_device_info {
    // `sizeof(bw_device_info)`.
    uint32_t size;
    // READs and atomics in flight to one peer.
    uint32_t max_qp_rd_atom;
    // What `bw_device_open` takes.
    char name[BW_NAME_MAX];
    // What it is, for people.
    char description[BW_TEXT_MAX];
    // Queue pairs at once.
    uint32_t max_qp;
    // Requests of one send or receive queue.
    uint32_t max_qp_wr;
    // Scatter/gather elements of one request.
    uint32_t max_sge;
    // Inline bytes of one request.
    uint32_t max_inline_data;
    // Entries of one completion queue.
    uint32_t max_cqe;
    // Memory regions at once.
    uint32_t max_mr;
    // Bytes of one memory region.
    uint64_t max_mr_size;
    // Bytes of one message.
    uint64_t max_msg_sz;
} bw_device_info;

// How a software device of one's own is made. All zero but the size is the default.
typedef struct bw_soft_config {
    // `sizeof(bw_soft_config)`.
    uint32_t size;
    // A `bw_soft_mode`.
    uint32_t mode;
    // Threads of BW_SOFT_ENGINE, up to 64; 0 is one.
    uint32_t threads;
    // A `bw_soft_clock`.
    uint32_t clock;
    // Where its random-looking keys come from; 0: from the operating system.
    uint64_t seed;
} bw_soft_config;

// Registered memory.
typedef struct bw_mr_info {
    // `sizeof(bw_mr_info)`.
    uint32_t size;
    // Rights: `bw_access_flags`.
    uint32_t access;
    // Where it starts.
    uint64_t addr;
    // Its bytes.
    uint64_t length;
    // The key for requests of this side.
    uint32_t lkey;
    // The key for the peer's requests.
    uint32_t rkey;
} bw_mr_info;

// How a region is to be made. `bw_region_attr_default` fills it.
typedef struct bw_region_attr {
    // `sizeof(bw_region_attr)`.
    uint32_t size;
    // The pages to use: a `bw_pages`.
    uint32_t pages;
    // Bytes; rounded up to whole pages.
    uint64_t length;
    // Rights: `bw_access_flags`.
    uint32_t access;
    // Takes the memory from this NUMA node, and from no other; from any when less than 0.
    int32_t numa_node;
    // Not 0: locks the memory, mlock(2).
    uint32_t lock;
    // 0.
    uint32_t reserved;
} bw_region_attr;

// What a region is.
typedef struct bw_region_info {
    // `sizeof(bw_region_info)`.
    uint32_t size;
    // Rights: `bw_access_flags`.
    uint32_t access;
    // Where it starts, aligned to a page.
    uint64_t addr;
    // Its bytes: what was asked for, in whole pages.
    uint64_t length;
    // The key for requests of this side.
    uint32_t lkey;
    // The key for the peer's requests.
    uint32_t rkey;
    // Bytes of a page; of BW_PAGES_TRANSPARENT the 2 MiB that the region is aligned to.
    uint64_t page_size;
    // The pages that it got: a `bw_pages`, but not BW_PAGES_AUTO.
    uint32_t pages;
    // 0.
    uint32_t reserved;
    // For people: "128 MiB in 64 hugetlb pages of 2 MiB".
    char text[BW_TEXT_MAX];
} bw_region_info;

// How a completion queue is to be made.
typedef struct bw_cq_attr {
    // `sizeof(bw_cq_attr)`.
    uint32_t size;
    // Entries, at least 1; rounded up to a power of two. `bw_qp_cq_entries` tells what a queue pair
    // needs.
    uint32_t entries;
    // Queue pairs that can complete here, up to 65536; 0 is 256.
    uint32_t max_qp;
    // 0.
    uint32_t reserved;
} bw_cq_attr;

// How a completion queue stands.
typedef struct bw_cq_info {
    // `sizeof(bw_cq_info)`.
    uint32_t size;
    // Entries.
    uint32_t entries;
    // Entries that are not reserved for a queue pair.
    uint32_t unreserved;
    // Not 0: an entry was lost, and what it told of cannot be known. Does not happen while queue
    // pairs reserve their entries.
    uint32_t overrun;
    // Entries dropped because they told of no request in flight.
    uint64_t stale;
} bw_cq_info;

// What a queue pair is to be able to do (`ibv_qp_init_attr`). `bw_qp_init_attr_default` fills it.
typedef struct bw_qp_init_attr {
    // `sizeof(bw_qp_init_attr)`.
    uint32_t size;
    // Send requests in flight.
    uint32_t max_send_wr;
    // Receives in flight.
    uint32_t max_recv_wr;
    // Scatter/gather elements of a send request.
    uint32_t max_send_sge;
    // Scatter/gather elements of a receive.
    uint32_t max_recv_sge;
    // Inline bytes of a send request.
    uint32_t max_inline_data;
    // Not 0: every send request completes with an entry, signalled or not.
    uint32_t sq_sig_all;
    // Not 0: reserve an entry in the completion queues for everything that can be in flight, so that
    // a flush cannot overrun them. Without it an overrun ends the completion queue and every queue
    // pair on it.
    uint32_t reserve_cq;
} bw_qp_init_attr;

// How a connection behaves. `bw_connect_attr_default` fills it.
typedef struct bw_connect_attr {
    // `sizeof(bw_connect_attr)`.
    uint32_t size;
    // What the peer may do: the REMOTE bits of `bw_access_flags`.
    uint32_t access;
    // A `bw_mtu`.
    uint32_t path_mtu;
    // Acknowledgement timeout, a code of 5 bits: 4.096 µs · 2^t; 0 is for ever.
    uint32_t timeout;
    // Retries without an acknowledgement, up to 7.
    uint32_t retry_cnt;
    // Retries without a receive at the peer, up to 6; 7 is for ever.
    uint32_t rnr_retry;
    // How long the peer waits for a receive of this side, a code of 5 bits (`ibv_modify_qp`).
    uint32_t min_rnr_timer;
    // READs and atomics in flight, either way.
    uint32_t max_rd_atomic;
    // Of datagrams: the key that senders have to name. The top bit is for privileged users.
    uint32_t qkey;
} bw_connect_attr;

// How the two ends of a connection find each other.
typedef struct bw_endpoint {
    // `sizeof(bw_endpoint)`.
    uint32_t size;
    // Queue pair number.
    uint32_t qp_num;
    // First packet sequence number.
    uint32_t psn;
    // 0.
    uint32_t reserved;
    // Local identifier of the port.
    uint32_t lid;
    // The port's first GID.
    uint8_t gid[16];
} bw_endpoint;

// Called by `bw_qp_reset` for each request that was cleared: `context` as given there, and the
// request's identifier. It has to return, and must not use the queue pair or its completion queues.
typedef void (*bw_cleared_fn)(void *context, uint64_t wr_id);

// State and attributes of a queue pair, as the device has them.
typedef struct bw_qp_info {
    // `sizeof(bw_qp_info)`.
    uint32_t size;
    // A `bw_qp_state`.
    uint32_t state;
    // Its number.
    uint32_t qp_num;
    // The peer's number.
    uint32_t dest_qp_num;
    // What the peer may do: `bw_access_flags`.
    uint32_t access;
    // A `bw_mtu`.
    uint32_t path_mtu;
    // Acknowledgement timeout, as in `bw_connect_attr`; so are the next four.
    uint32_t timeout;
    // Retries without an acknowledgement.
    uint32_t retry_cnt;
    // Retries without a receive at the peer.
    uint32_t rnr_retry;
    // How long the peer waits for a receive of this side.
    uint32_t min_rnr_timer;
    // READs and atomics in flight to the peer.
    uint32_t max_rd_atomic;
    // Send requests in flight, as in `bw_qp_init_attr`; so are the next four.
    uint32_t max_send_wr;
    // Receives in flight.
    uint32_t max_recv_wr;
    // Scatter/gather elements of a send request.
    uint32_t max_send_sge;
    // Scatter/gather elements of a receive.
    uint32_t max_recv_sge;
    // Inline bytes of a send request.
    uint32_t max_inline_data;
} bw_qp_info;

// A scatter/gather element (`ibv_sge`): `length` bytes at `addr`.
typedef struct bw_sge {
    // Address.
    uint64_t addr;
    // Bytes, less than 2 GiB.
    uint32_t length;
    // Local key of the memory; of inline data not looked at.
    uint32_t lkey;
} bw_sge;

// A send request (`ibv_send_wr`). Fields that the operation does not have are not looked at.
typedef struct bw_send_wr {
    // The program's identifier, which the completion has.
    uint64_t wr_id;
    // The next request of the list, or NULL.
    const struct bw_send_wr *next;
    // The local memory: where data comes from, or goes to (READ, atomics).
    const struct bw_sge *sg_list;
    // Elements of `sg_list`.
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
    // The key to invalidate: of this side (LOCAL_INV) or of the peer's (SEND_WITH_INV).
    uint32_t invalidate_rkey;
    // What to compare with (ATOMIC_CMP_AND_SWP) or to add (ATOMIC_FETCH_AND_ADD).
    uint64_t compare_add;
    // What to put in its place (ATOMIC_CMP_AND_SWP).
    uint64_t swap;
} bw_send_wr;

// A receive (`ibv_recv_wr`).
typedef struct bw_recv_wr {
    // The program's identifier, which the completion has.
    uint64_t wr_id;
    // The next receive of the list, or NULL.
    const struct bw_recv_wr *next;
    // Where the message goes.
    const struct bw_sge *sg_list;
    // Elements of `sg_list`.
    uint32_t num_sge;
    // 0.
    uint32_t reserved;
} bw_recv_wr;

// What became of a request (`ibv_wc`). Every request that was posted and rung is told exactly once:
// by an entry of its own, or as one of those that a later entry retires.
//
// When `status` is not BW_WC_SUCCESS the verbs define no more than `wr_id`, `status`, `vendor_err`
// and `qp_num`: of the others only `retired`, which is bellwire's, is set, the rest is 0.
typedef struct bw_wc {
    // The program's identifier of the request.
    uint64_t wr_id;
    // A `bw_wc_status`.
    uint32_t status;
    // What completed: a `bw_wc_opcode`.
    uint32_t opcode;
    // Bytes received, or brought by a READ or atomic; otherwise 0.
    uint32_t byte_len;
    // With BW_WC_WITH_IMM: immediate data, in network byte order. With BW_WC_WITH_INV: the key that
    // the peer has invalidated. Otherwise 0.
    uint32_t imm_data;
    // Number of the local queue pair.
    uint32_t qp_num;
    // The device's own code of an error.
    uint32_t vendor_err;
    // `bw_wc_flags`.
    uint32_t wc_flags;
    // Requests that this entry tells of: itself, and the unsignalled ones of the same queue that
    // were posted before it and not yet told. Those succeeded, whatever became of this one.
    uint32_t retired;
    // The sender's queue pair of a received datagram; otherwise 0.
    uint32_t src_qp;
    // 0.
    uint32_t reserved;
} bw_wc;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of the library that the program runs with, in the form of `BW_VERSION`.
//
// Thread: any.
uint32_t bw_version(void);

// Whether the library can serve a program that was compiled with the header of version `header`:
// call `bw_version_check(BW_VERSION)` before anything else. It can when the major version is the
// same and the library not older; while the major version is 0, when the minor version is the same
// too.
//
// Errors: `BW_EVERSION`.
// Thread: any.
int bw_version_check(uint32_t header);

// What a result code means, and what to do about it. Never NULL; the text is static.
//
// Thread: any.
const char *bw_strerror(int code);

// What the last set-up call that failed on this thread has to say beyond its code: what was asked
// for, what there is, what to do. Empty when none has failed. Never NULL; it stays until the next
// set-up call fails on this thread.
//
// `bw_post_*`, `bw_ring_*` and `bw_poll*` leave it as it is: their codes say all.
//
// Thread: any; each has a text of its own.
const char *bw_last_error(void);

// Describes the device at `index` of the list of devices, from 0 on:
// `for (i = 0; bw_device_at(i, &info) == BW_OK; i++) …`. Set `info->size` before.
//
// Errors: `BW_ENODEV` behind the end of the list, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_at(uint32_t index, struct bw_device_info *info);

// Opens a device by name. "soft" is the software device that all of the process shares, inline and
// on the real clock; "auto" is the best that there is.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_ENODEV`, `BW_ENULL`.
// Thread: any.
int bw_device_open(const char *name, struct bw_device **device);

// Opens a software device of one's own: queue pairs of other devices cannot reach it. `config` may
// be NULL: the default.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_EINVAL`, `BW_ELIMIT`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_open_soft(const struct bw_soft_config *config, struct bw_device **device);

// What the device is and can do. Set `info->size` before.
//
// Errors: `BW_ENODEV` when it is gone, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_query(const struct bw_device *device, struct bw_device_info *info);

// Lets requests go on whose time has come: those that wait for a receive at the peer, or for an
// acknowledgement. Polling a completion queue does the same.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_device_progress(const struct bw_device *device);

// Moves a virtual clock on by `nanoseconds`, and lets requests go on whose time has come.
//
// Errors: `BW_ECLOCK` when the clock is the real one, `BW_ENULL`.
// Thread: any.
int bw_device_advance(const struct bw_device *device, uint64_t nanoseconds);

// Closes a device.
//
// Errors: `BW_EBUSY` while there are protection domains or completion queues of it, `BW_ENULL`.
// Thread: any; no other call on the device may be under way or follow.
int bw_device_close(struct bw_device *device);

// Creates a protection domain.
//
// Owner: the caller, until `bw_pd_destroy`. It keeps the device open.
// Errors: `BW_ENULL`.
// Thread: any.
int bw_pd_create(const struct bw_device *device, struct bw_pd **pd);

// Destroys a protection domain.
//
// Errors: `BW_EBUSY` while there are memory or queue pairs of it, `BW_ENULL`.
// Thread: any; no other call on the protection domain may be under way or follow.
int bw_pd_destroy(struct bw_pd *pd);

// Registers `length` bytes of the program's memory at `addr`. `access` are `bw_access_flags`.
//
// The memory stays the program's: it has to be there until `bw_mr_destroy`, and the peer may read
// and write it at any time as the rights say.
//
// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL` (no bytes; an end beyond the address space; unknown rights; REMOTE_WRITE or
// REMOTE_ATOMIC without LOCAL_WRITE), `BW_EEXHAUSTED`, `BW_ENULL`.
// Thread: any.
int bw_mr_create(const struct bw_pd *pd,
                 void *addr,
                 size_t length,
                 uint32_t access_flags,
                 struct bw_mr **mr);

// Where the memory is, and its keys. Set `info->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_mr_query(const struct bw_mr *mr, struct bw_mr_info *info);

// Takes the keys of the memory back. When this returns the device does not touch the memory any
// more; requests that still name it fail.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the memory region may be under way or follow.
int bw_mr_destroy(struct bw_mr *mr);

// Fills `attr`, of `size` bytes, with its size and the defaults, which lack a length: the largest
// pages that can be had, of any NUMA node, not locked, for local use.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_region_attr_default(struct bw_region_attr *attr, size_t size);

// Reserves memory, zeroed and all of it present, and registers it. Slow: the kernel zeroes all of
// it. `bw_region_query` tells where it is and which pages it got.
//
// Owner: the caller, until `bw_region_destroy`. It keeps the protection domain.
// Errors: `BW_EMEMORY` (`bw_last_error` tells what to do), `BW_EINVAL`, `BW_EEXHAUSTED`,
// `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_region_create(const struct bw_pd *pd,
                     const struct bw_region_attr *attr,
                     struct bw_region **region);

// Where the region is, its keys, and which pages it got. Set `info->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_region_query(const struct bw_region *region, struct bw_region_info *info);

// Takes the keys of the region back, and its memory. Requests that still name it fail.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the region may be under way or follow, and nobody may use its
// memory any more.
int bw_region_destroy(struct bw_region *region);

// Creates a completion queue.
//
// Owner: the caller, until `bw_cq_destroy`. It keeps the device open.
// Errors: `BW_ELIMIT` (no entries, or more than the device has), `BW_EINVAL`, `BW_ENULL`,
// `BW_ESIZE`.
// Thread: any.
int bw_cq_create(const struct bw_device *device, const struct bw_cq_attr *attr, struct bw_cq **cq);

// How the completion queue stands. Set `info->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the completion queue's owner.
int bw_cq_query(const struct bw_cq *cq, struct bw_cq_info *info);

// Destroys a completion queue. What it had not told yet is not told any more.
//
// Errors: `BW_EBUSY` while there are queue pairs that complete here, `BW_ENULL`.
// Thread: the completion queue's owner; no other call on it may be under way or follow.
int bw_cq_destroy(struct bw_cq *cq);

// Fills `attr`, of `size` bytes, with its size and the defaults:
// `bw_qp_init_attr_default(&attr, sizeof(attr))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_qp_init_attr_default(struct bw_qp_init_attr *attr, size_t size);

// Entries that a queue pair of these attributes reserves in its completion queues: for sends, and
// for receives. A completion queue for both directions needs the sum. `attr` may be NULL: the
// default.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_qp_cq_entries(const struct bw_qp_init_attr *attr, uint32_t *send, uint32_t *recv);

// Fills `attr`, of `size` bytes, with its size and the defaults:
// `bw_connect_attr_default(&attr, sizeof(attr))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_connect_attr_default(struct bw_connect_attr *attr, size_t size);

// Creates a queue pair in RESET. Sends complete on `send_cq`, receives on `recv_cq`, which may be the
// same. `attr` may be NULL: the default.
//
// Owner: the caller, until `bw_qp_destroy`. It keeps the protection domain and the completion
// queues.
// Errors: `BW_ELIMIT`, `BW_ECQROOM`, `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the owner of both completion queues: nobody may poll them meanwhile.
int bw_qp_create(const struct bw_pd *pd,
                 struct bw_cq *send_cq,
                 struct bw_cq *recv_cq,
                 const struct bw_qp_init_attr *attr,
                 struct bw_qp **qp);

// What to bring to the peer, by any means. Set `endpoint->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_endpoint(struct bw_qp *qp, struct bw_endpoint *endpoint);

// From RESET to INIT: receives may be posted from here on, and should be before the peer connects.
// `attr` may be NULL: the default.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_init(struct bw_qp *qp, const struct bw_connect_attr *attr);

// From INIT to RTS, connected with `peer`: requests may be posted from here on. `attr` may be NULL:
// the default. When it fails the queue pair is in INIT or in RTR: `bw_qp_reset` starts anew.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_connect(struct bw_qp *qp,
                  const struct bw_endpoint *peer,
                  const struct bw_connect_attr *attr);

// To ERR, from any state: everything in flight is flushed, and told by the completion
// queues.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_to_error(struct bw_qp *qp);

// To RESET, from any state: clears both queues and their completions, as the verbs have it. The
// requests that were not told yet are told here: `cleared`, unless NULL, is called for each, sends
// first, oldest first. What the peer has seen of them is not known.
//
// Errors: `BW_ECQROOM` when other queue pairs took the room meanwhile that this one had not
// reserved, `BW_ENULL`.
// Thread: the owner of the queue pair and of its completion queues: nobody may poll them meanwhile.
int bw_qp_reset(struct bw_qp *qp, bw_cleared_fn cleared, void *context);

// The device's state of the queue pair: a `bw_qp_state`, 0 or more. A failed request takes it to
// ERR.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_get_state(struct bw_qp *qp);

// State and attributes, as the device has them. Set `info->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_query(struct bw_qp *qp, struct bw_qp_info *info);

// Destroys a queue pair. What is in flight is flushed, and still told by the completion queues; what
// was posted and not rung is not.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner; no other call on it may be under way or follow.
int bw_qp_destroy(struct bw_qp *qp);

// Posts an RDMA WRITE of the memory that `sge` names. Of the `bw_send_flags` BW_SEND_INLINE has no
// effect on these functions: their names say it.
//
// Errors: those of `bw_post_send`.
// Thread: the send queue's owner. Data path.
int bw_post_write(struct bw_qp *qp,
                  uint64_t wr_id,
                  const struct bw_sge *sge,
                  uint64_t remote_addr,
                  uint32_t rkey,
                  uint32_t send_flags);

// Posts an RDMA WRITE of `length` bytes at `data`, which travel within the request: the memory need
// not be registered, and may be reused when this returns.
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
// Errors: those of `bw_post_send`.
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

// Posts a SEND of `length` bytes at `data`, as `bw_post_write_inline`.
//
// Errors: those of `bw_post_send`.
// Thread: the send queue's owner. Data path.
int bw_post_send_inline(struct bw_qp *qp,
                        uint64_t wr_id,
                        const void *data,
                        uint32_t length,
                        uint32_t send_flags);

// Posts a receive into the memory that `sge` names.
//
// Errors: those of `bw_post_recv`.
// Thread: the receive queue's owner. Data path.
int bw_post_recv_one(struct bw_qp *qp, uint64_t wr_id, const struct bw_sge *sge);

// Posts a list of send requests, in order. Nothing is sent before `bw_ring_sq`.
//
// When it fails, the requests before the one that was refused are posted; that one and those behind
// it are not. `bad_wr`, unless NULL, then points to the refused one.
//
// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`, `BW_EOPCODE`,
// `BW_EINVAL` (unknown flags; BW_SEND_INLINE of an operation that sends no data; elements of one
// that has none), `BW_ENULL`.
// Thread: the send queue's owner. Data path.
int bw_post_send(struct bw_qp *qp, const struct bw_send_wr *wr, const struct bw_send_wr **bad_wr);

// Posts a list of receives, in order. None can be used before `bw_ring_rq`. `bad_wr` as in
// `bw_post_send`.
//
// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_ENULL`.
// Thread: the receive queue's owner. Data path.
int bw_post_recv(struct bw_qp *qp, const struct bw_recv_wr *wr, const struct bw_recv_wr **bad_wr);

// Tells the device of the send requests posted since the last ring. A software device in
// BW_SOFT_INLINE executes them here.
//
// Errors: `BW_ENULL`.
// Thread: the send queue's owner. Data path.
int bw_ring_sq(struct bw_qp *qp);

// Tells the device of the receives posted since the last ring.
//
// Errors: `BW_ENULL`.
// Thread: the receive queue's owner. Data path.
int bw_ring_rq(struct bw_qp *qp);

// Takes one completion: 1 when there was one, 0 when there was none.
//
// Errors: `BW_ENULL`.
// Thread: the completion queue's owner. Data path.
int bw_poll_one(struct bw_cq *cq, struct bw_wc *wc);

// Takes up to `max` completions into the array `wc`, and answers how many there were.
//
// Errors: `BW_ENULL`. A `max` of 0 or less takes none.
// Thread: the completion queue's owner. Data path.
int bw_poll(struct bw_cq *cq, struct bw_wc *wc, int max);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BELLWIRE_H */
