/*
 * bellwire: an RDMA data plane. This is its C interface.
 *
 * A program lists or opens a device, creates a protection domain, memory, completion queues and
 * queue pairs on it, connects queue pairs, and then posts, rings and polls. examples/c/hello.c is all
 * of it on two pages, examples/c/pingpong.c the same between two processes; bellwire.hpp has owners of
 * the handles for C++17. `pkg-config --cflags --libs bellwire` says what to compile and link with,
 * with --static what the static library needs; CMake has bellwire::bellwire and bellwire::static.
 *
 * FOR WHO KNOWS LIBIBVERBS
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
 * - bw_device is the open device, ibv_context. Memory that the library reserves is a bw_region, the
 *   program's own a bw_mr. A bw_slab lends out a region in blocks.
 * - bw_qp_init() and bw_qp_connect() (of datagrams: bw_qp_start()) take a queue pair from RESET to
 *   RTS; bw_qp_modify() does it attribute by attribute. bw_endpoint is what the peer has to know;
 *   bw_tcp_exchange() brings it, or anything else that can carry its bytes. bw_cm_*() connect by
 *   address and port instead, as librdmacm does.
 * - bw_post_send() and bw_post_recv() take an array and not a linked list. For one request
 *   bw_post_write() and its like are quicker, and wait for bw_ring_sq().
 * - A request without BW_SEND_SIGNALED is told as well: by `retired` of a later completion of its
 *   queue. So signal the last of a group, and count `retired`, not completions.
 * - A queue pair reserves completion entries for all that it can have in flight: make the completion
 *   queue of at least so many as bw_qp_cq_entries() says.
 * - The software device of one process executes requests within bw_ring_*() and bw_post_send(), and
 *   what has to wait (for a receive, for a peer) within the polls of either end: poll in a loop.
 *
 * CONVENTIONS
 *
 * Names. Everything begins with bw_ or BW_. Names and numbers are those of libibverbs where it has
 * them: BW_WC_RNR_RETRY_EXC_ERR is IBV_WC_RNR_RETRY_EXC_ERR, and means the same.
 *
 * Results. Functions answer an int: BW_OK, which is 0, or a number of bw_error, which is negative.
 * Where the text says so, an answer of 0 or more is a count, a state or a descriptor. A number, once
 * given, is never used again for something else. bw_strerror() tells what a number means;
 * bw_last_error() tells more about the last failure of a set-up call on this thread. A set-up call
 * that fails has created and changed nothing, unless its text says otherwise.
 *
 * Posting. bw_post_send(), bw_post_recv(), bw_post_srq_recv(), and of one operation each
 * bw_post_writes(), bw_post_writes_inline() and bw_post_reads(), post an array and tell the device of
 * it. The other bw_post_*() post one request, of which the device learns by bw_ring_*(). The same goes
 * for bw_link_post_*() and bw_link_ring_*().
 *
 * Polling. bw_poll_one() and bw_poll() fill in all of a bw_wc. bw_poll_completion() and
 * bw_poll_completions() are quicker: a bw_completion has what most programs look at, and the rest is
 * read when it is asked for.
 *
 * Failures. A request that fails is told by its completion, what concerns a queue, a port or the
 * device by an asynchronous event. bw_classify() says of each what it means: what is broken, whether
 * the peer has executed the request, whether trying again helps, and how to recover.
 *
 * Links. A bw_link is a reliable connection that does all of this itself: when something fails it
 * recovers together with the link at its other end, posts again what may be posted again, and tells of
 * every request exactly once what became of it. Poll it; that is all there is to do. It is made by
 * address and port, by bw_link_connect() at one end and bw_link_accept() at the other, or by
 * bw_link_create() on a TCP connection.
 *
 * Two kinds of functions. The data path is bw_post_*(), bw_ring_*() and bw_poll*(), of slabs
 * bw_slab_take() and bw_slab_return(), of their caches bw_slab_cache_take() and
 * bw_slab_cache_return(), and of links bw_link_post_*() and bw_link_ring_*(): these make no
 * allocation, no system call and no lock of their own, and leave bw_last_error() alone. So does
 * bw_link_poll() while nothing fails. All others are set-up calls, and may do all of that.
 *
 * Handles. Devices, protection domains, memory, slabs and their caches, queues, address handles,
 * channels, ids, events, listeners, connectors, connections and links are pointers to structs that
 * only the library looks into. A function that creates one writes its handle to the last argument,
 * NULL when it fails. It is the caller's until it is given to the function that destroys it, which
 * each has. An object that others use cannot be destroyed: the answer is BW_EBUSY, and nothing has
 * happened. "It keeps X" in the text of a create function says which objects are used so. Destroy
 * in the opposite order of creation and it never happens. Destroying what events name waits until
 * those that the program got are acknowledged: a thread that holds one itself waits for ever.
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
 * Byte order. Integers are the machine's, but for immediate data, which is in network byte order, and
 * GIDs, which are 16 bytes as on the wire.
 *
 * Memory of requests. The bytes that a request names must stay, and must not be written (for a
 * receive, a READ or an atomic: not be touched), from its post until its completion, or the one
 * that retires it, has been polled, or until bw_qp_reset() has told of it. Of a link: until
 * bw_link_poll() or bw_link_drain() has told of it, also while it recovers, for it may be posted
 * again. Bytes that are posted inline, and the structs and lists of the request themselves, may be
 * reused when the post returns.
 *
 * Threads. Functions marked "Thread: any" may be called by any thread at any time, on the same
 * objects too. The queues have no locks and one owner at a time: a thread that alone calls their
 * functions, until it hands them over by something that orders memory (a mutex, a join, a release
 * and an acquire). A completion queue has an owner, and so have a shared receive queue, a queue
 * pair, a memory window, a cache of a slab, a link, a listener for links and a TCP connection. A
 * queue pair's send queue and its receive queue may also be owned by two different threads while
 * only the data path is called; other functions on the queue pair need the owner of both. Two
 * threads in one queue at once are undefined behaviour. A build of the library with debug
 * assertions notices it where they meet on the data path, and answers BW_ETHREADS to the one that
 * came second.
 *
 * Versions. A program asks bw_version_check(BW_VERSION) first. The library's file name has the version
 * of its ABI, libbellwire.so.0.1: the major version, and the minor one while the major is 0. Under one
 * such name functions and numbers are added and never removed or changed, structs with a `size` grow
 * at their end, and others stay as they are. What breaks a program that was compiled has another name.
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

// Characters of an address, its end included.
#define BW_ADDR_MAX 64

// Bytes of private data in an event, at the most.
#define BW_CM_PRIVATE_MAX 256

// Bytes of `bw_link_info.why`.
#define BW_WHY_MAX 256

// What the connections of an id are (`rdma_port_space`).
typedef enum bw_port_space {
    // Datagrams that share their groups and their key with IP over InfiniBand.
    BW_PS_IPOIB = 2,
    // Reliable connections.
    BW_PS_TCP = 262,
    // Datagrams, and multicast.
    BW_PS_UDP = 273,
    // Reliable connections, of services apart from those of BW_PS_TCP.
    BW_PS_IB = 319,
} bw_port_space;

// Options of an id (`rdma_set_option`).
typedef enum bw_cm_option {
    // Type of service of its packets, up to 255, before the address is resolved.
    BW_CM_TOS = 0,
    // Not 0: others may be bound to the same port. Before it is bound.
    BW_CM_REUSEADDR = 1,
    // Not 0: a listener of IPv6 leaves IPv4 to others. Before it is bound.
    BW_CM_AFONLY = 2,
    // Acknowledgement timeout of its connection, a 5-bit code: 4.096 µs · 2^t, 0 is for ever. Before
    // it is connected.
    BW_CM_ACK_TIMEOUT = 3,
} bw_cm_option;

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
    // Objects of different devices or protection domains, or a block of another slab.
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
    // There is no event, or nobody has come, and the call was not to wait, or no longer.
    BW_EAGAIN = -23,
    // The device has failed (BW_EVENT_DEVICE_FATAL), and does nothing any more.
    BW_EFATAL = -24,
    // The time given was up before the peer, or the name service, had answered.
    BW_ETIMEDOUT = -25,
    // No connection: nobody listens there, the port is taken, the host is not known, or the peer has
    // closed it.
    BW_ECONN = -26,
    // The peer sent what makes no sense, or is of another version.
    BW_EPROTO = -27,
    // The device, or its driver, does not have this.
    BW_EUNSUPPORTED = -28,
    // The link is not connected yet, or it recovers: poll it until it is BW_LINK_READY, then call
    // again.
    BW_ERECOVERING = -29,
    // The link was closed, or given up: `bw_link_query` tells why.
    BW_EENDED = -30,
    // Two threads are in one queue at once. Only a build of the library with debug assertions finds
    // that out; in others the behaviour is undefined.
    BW_ETHREADS = -31,
    // All blocks of that length are out: poll for completions, after which some can be returned, or
    // create the slab with more.
    BW_ENOBLOCK = -32,
    // The block was returned before.
    BW_ERETURNED = -33,
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
    // Bind a memory window of type 2.
    BW_WR_BIND_MW = 8,
    // Send, and invalidate a key of the peer's.
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
    // Another error; the vendor's code tells more.
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

// What `bw_mr_reregister` is to change (`ibv_rereg_mr_flags`).
typedef enum bw_rereg_mr_flags {
    // The memory: `addr` and `length`.
    BW_REREG_MR_CHANGE_TRANSLATION = 1,
    // The protection domain.
    BW_REREG_MR_CHANGE_PD = 2,
    // The rights.
    BW_REREG_MR_CHANGE_ACCESS = 4,
} bw_rereg_mr_flags;

// How `bw_xrcd_open` opens the XRC domain of a file (`oflags` of `ibv_xrcd_init_attr`).
typedef enum bw_xrcd_mode {
    // One that somebody has open.
    BW_XRCD_OPEN = 0,
    // The same, or a new one where nobody has (`O_CREAT`).
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

// Which fields of a `bw_qp_attr` are meant (`ibv_qp_attr_mask`).
typedef enum bw_qp_attr_mask {
    // `qp_state`: go to this state. Without it the state stays.
    BW_QP_STATE = 1,
    // `cur_qp_state`: the state that the program takes the queue pair to be in.
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
    // The sizes, `max_send_wr` to `max_inline_data`.
    BW_QP_CAP = 524288,
    // `dest_qp_num`.
    BW_QP_DEST_QPN = 1048576,
    // `rate_limit`.
    BW_QP_RATE_LIMIT = 33554432,
} bw_qp_attr_mask;

// Where path migration stands (`ibv_mig_state`).
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
    // Every queue pair of the protection domain reaches through it. Binding it again replaces what it
    // was bound to.
    BW_MW_TYPE_1 = 1,
    // Only peers of the queue pair that bound it reach through it. It has to be taken away before it
    // is bound again: by LOCAL_INV, or by the peer's SEND_WITH_INV.
    BW_MW_TYPE_2 = 2,
} bw_mw_type;

// A port's state (`ibv_port_state`).
typedef enum bw_port_state {
    // The link is down.
    BW_PORT_DOWN = 1,
    // Packets come and go.
    BW_PORT_ACTIVE = 4,
} bw_port_state;

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

// By whom a device's requests are executed, and how they get there.
typedef enum bw_provider {
    // The software device of this library.
    BW_PROVIDER_SOFT = 0,
    // A device of libibverbs, whose requests and completions go through it.
    BW_PROVIDER_VERBS = 1,
    // A ConnectX device, whose rings the library writes and reads itself.
    BW_PROVIDER_MLX5 = 2,
} bw_provider;

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

// What happened that no completion tells (`ibv_event_type`).
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
    // The send queue is drained: what was started is finished, and nothing else is begun.
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

// What the communication manager tells (`rdma_cm_event_type`).
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

// Who most likely caused a fault.
typedef enum bw_blame {
    // Nobody: it is news, or it follows from another fault.
    BW_BLAME_NOBODY = 0,
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
    // The fault does not tell.
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
    BW_RETRY_DOES_NOT_APPLY = 3,
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
    BW_EXECUTION_DOES_NOT_APPLY = 3,
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
    // Stop, tell all requests, close the device. Teardown may fail, and must not be waited for
    // without a bound.
    BW_RECOVERY_CLOSE_DEVICE = 11,
    // Destroy the communication identifier and all that it has on the device.
    BW_RECOVERY_DESTROY_ID = 12,
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
} bw_fault_family;

// What a link learns from its peer.
typedef enum bw_peer_fault {
    // It asks for a recovery.
    BW_PEER_RECOVERS = 0,
    // It has closed its end, in good order.
    BW_PEER_CLOSED = 1,
    // It cannot be reached any more, or makes no sense.
    BW_PEER_LOST = 2,
} bw_peer_fault;

// The queue that a request was posted to.
typedef enum bw_work_queue {
    // The send queue.
    BW_QUEUE_SEND = 0,
    // The queue pair's own receive queue.
    BW_QUEUE_RECV = 1,
    // A shared receive queue.
    BW_QUEUE_SRQ = 2,
} bw_work_queue;

// Whose `vendor_err` it is.
typedef enum bw_vendor {
    // That of a device whose codes are not known here.
    BW_VENDOR_NONE = 0,
    // That of a ConnectX device.
    BW_VENDOR_CONNECTX = 1,
} bw_vendor;

// What an event is about: which number `bw_async_event_info.number` is.
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

// When a fault strikes. Everything counts from the moment at which the script is given, and over the
// whole device unless the step names a queue pair.
typedef enum bw_soft_trigger {
    // At the `at`-th send request that is executed, from 1; retries are not new ones.
    BW_AT_ENTRY = 0,
    // At the `at`-th request packet, from 1: each attempt to execute a request is one.
    BW_AT_PACKET = 1,
    // When `at` nanoseconds of the device's time have passed.
    BW_AFTER = 2,
    // At the `at`-th change of any queue pair's state or attributes, from 1, before it is made.
    BW_AT_MODIFY = 3,
} bw_soft_trigger;

// What goes wrong. The faults up to BW_FAULT_STATUS, and those from BW_FAULT_STATUS_AFTER to
// BW_FAULT_RECV_CQ_OVERRUN, befall the request at hand, and need BW_AT_ENTRY or BW_AT_PACKET; the others the device, at any trigger.
typedef enum bw_soft_fault {
    // The request is lost on its way.
    BW_FAULT_DROP_REQUEST = 0,
    // The request is executed, and its acknowledgement lost.
    BW_FAULT_DROP_ACK = 1,
    // The request takes `value` nanoseconds longer.
    BW_FAULT_DELAY = 2,
    // The responder finds the key wrong, if the request has one.
    BW_FAULT_REMOTE_ACCESS = 3,
    // The responder says that it is not ready.
    BW_FAULT_RNR = 4,
    // The request completes with the `bw_wc_status` of `value`, without having been executed.
    BW_FAULT_STATUS = 5,
    // The completion queue of number `value` loses an entry.
    BW_FAULT_CQ_OVERRUN = 6,
    // The queue pair of number `value` breaks.
    BW_FAULT_QP_FATAL = 7,
    // The shared receive queue of number `value` breaks.
    BW_FAULT_SRQ_ERR = 8,
    // The device breaks, for good.
    BW_FAULT_DEVICE_FATAL = 9,
    // The port's link goes down.
    BW_FAULT_PORT_DOWN = 10,
    // The port's link comes up.
    BW_FAULT_PORT_UP = 11,
    // The event `event_type` is raised, about what has the number `value`.
    BW_FAULT_RAISE = 12,
    // The request completes with the `bw_wc_status` of `value`, though it was executed.
    BW_FAULT_STATUS_AFTER = 13,
    // The request is executed, and the completion queue of its sends overruns by its completion.
    BW_FAULT_SEND_CQ_OVERRUN = 14,
    // The request is executed, and the completion queue of the receive that it consumes overruns by its
    // completion. Nothing if it takes no receive.
    BW_FAULT_RECV_CQ_OVERRUN = 15,
    // The change of a queue pair's state or attributes that is at hand is refused, and not made. Needs
    // BW_AT_MODIFY.
    BW_FAULT_REFUSE_MODIFY = 16,
    // The communication manager tells the event `value`, a `bw_cm_event_type` that says that something
    // went wrong: BW_CM_EVENT_ADDR_ERROR, _ROUTE_ERROR, _CONNECT_ERROR, _UNREACHABLE and _REJECTED are
    // what becomes of the next call that they could tell of; _ADDR_CHANGE and _DEVICE_REMOVAL are told of
    // all ids on the device, _MULTICAST_ERROR of the members of groups, which they lose.
    BW_FAULT_CM = 17,
} bw_soft_fault;

// How a dump is written.
typedef enum bw_dump_format {
    // A line for each request, completion and note.
    BW_DUMP_TEXT = 0,
    // One JSON object, with the same facts.
    BW_DUMP_JSON = 1,
} bw_dump_format;

// Bits of `bw_dump_attr.flags`.
typedef enum bw_dump_flags {
    // Leave out the bytes that stand in the entries: inline data of sends, and short messages that came
    // within completion entries. They may be user data. No other memory of requests is ever read.
    BW_DUMP_NO_INLINE = 1,
} bw_dump_flags;

// Who carries a link's recovery out.
typedef enum bw_recover_in {
    // Whoever polls the link: a poll does what can be done at once, and never waits.
    BW_RECOVER_IN_POLLER = 0,
    // A thread that lives for as long as the recovery: polls return at once meanwhile, and find
    // nothing. Calls on the link that need more than its queues answer BW_ERECOVERING meanwhile.
    BW_RECOVER_IN_THREAD = 1,
} bw_recover_in;

// What became of a request of a link.
typedef enum bw_outcome {
    // Executed; the result of a READ or atomic has come.
    BW_OUTCOME_DONE = 0,
    // Failed with `bw_told.status`, and not executed as a whole. A WRITE may have changed a part of its
    // target; a READ may have been executed, which leaves nothing.
    BW_OUTCOME_FAILED = 1,
    // Not executed, by no fault of its own: it may be posted again.
    BW_OUTCOME_NOT_EXECUTED = 2,
    // It cannot be known, or its result is lost: `bw_told.doubt` says why.
    BW_OUTCOME_IN_DOUBT = 3,
} bw_outcome;

// Why an outcome stays in doubt.
typedef enum bw_doubt {
    // It is not in doubt.
    BW_DOUBT_NONE = 0,
    // Executed or not: no acknowledgement came, and it stands behind the last request known to be
    // executed and before the first known not to be.
    BW_DOUBT_NO_ANSWER = 1,
    // A READ or atomic that was executed. Its result did not arrive, and an atomic's is lost for good.
    BW_DOUBT_RESULT_LOST = 2,
    // Executed or not: completions of the peer were lost, so that its count is a lower bound.
    BW_DOUBT_PEER_LOST_COUNT = 3,
    // Executed or not: the peer's count contradicts what is known at this end.
    BW_DOUBT_COUNT_CONTRADICTS = 4,
    // Executed or not: the peer cannot be asked any more.
    BW_DOUBT_PEER_GONE = 5,
    // A local operation that was done or not before the queue pair stopped.
    BW_DOUBT_LOCAL = 6,
} bw_doubt;

// What is to be done with a request that did not end well, when the link works again. What was
// executed is told as BW_OUTCOME_DONE, whatever it is.
typedef enum bw_replay {
    // Tell the program.
    BW_REPLAY_SURFACE = 0,
    // Post it again where that cannot be told from posting it once: what was not executed, and READs
    // in doubt behind which nothing was executed.
    BW_REPLAY_IF_SAFE = 1,
    // As BW_REPLAY_IF_SAFE, and WRITEs and READs in doubt as well: their target and source do not
    // change under them, or that does no harm. SENDs, WRITEs with immediate data, and atomics that may
    // have been executed are never posted again.
    BW_REPLAY_ANYWAY = 2,
} bw_replay;

// What a link does.
typedef enum bw_link_state {
    // It connects, for the first time or again. Posts are refused; poll it.
    BW_LINK_RECOVERING = 0,
    // It works.
    BW_LINK_READY = 1,
    // The program has closed it.
    BW_LINK_CLOSED = 2,
    // The peer has closed it, in good order.
    BW_LINK_PEER_CLOSED = 3,
    // It could not be recovered: `bw_link_query` tells why.
    BW_LINK_GAVE_UP = 4,
} bw_link_state;

// How a recovery ended.
typedef enum bw_recovery_end {
    // Everything works again.
    BW_END_RECOVERED = 0,
    // It works, but for `bw_recovery_report.why`.
    BW_END_DEGRADED = 1,
    // It cannot be recovered: the link has ended.
    BW_END_GAVE_UP = 2,
} bw_recovery_end;

// A path to a receiver of datagrams, ready to be named by requests.
typedef struct bw_ah bw_ah;

// An asynchronous event that was got and is to be acknowledged.
typedef struct bw_async_event bw_async_event;

// Where the events of ids come from (`rdma_event_channel`).
typedef struct bw_cm_channel bw_cm_channel;

// An end of a connection, a listener, or a user of datagram services and multicast groups
// (`rdma_cm_id`).
typedef struct bw_cm_id bw_cm_id;

// A completion channel: completion queues that were created on it and armed tell it of their next
// entry.
typedef struct bw_comp_channel bw_comp_channel;

// Makes links with those who listen at one address.
typedef struct bw_connector bw_connector;

// A completion queue.
typedef struct bw_cq bw_cq;

// An open device.
typedef struct bw_device bw_device;

// A reliable connection with its queue pair and completion queue, which recovers from faults together
// with the link at its other end, and tells of every request once what became of it.
typedef struct bw_link bw_link;

// Takes the links that connectors make.
typedef struct bw_listener bw_listener;

// Memory of the program that is registered with a device.
typedef struct bw_mr bw_mr;

// A memory window: a key of its own to a part of registered memory, that is bound and taken away by
// requests.
typedef struct bw_mw bw_mw;

// A protection domain: queue pairs reach only memory of their own.
typedef struct bw_pd bw_pd;

// A queue pair, of any transport.
typedef struct bw_qp bw_qp;

// Memory that the library has reserved, and registered with a device.
typedef struct bw_region bw_region;

// A region cut into blocks.
typedef struct bw_slab bw_slab;

// Free blocks of one length for one thread.
typedef struct bw_slab_cache bw_slab_cache;

// A receive queue that many queue pairs take from.
typedef struct bw_srq bw_srq;

// A TCP connection with a peer.
typedef struct bw_tcp_conn bw_tcp_conn;

// A port on which peers are waited for.
typedef struct bw_tcp_listener bw_tcp_listener;

// The receiving end of an extended reliable connection. It has no queues: each request names a shared
// receive queue of its domain.
typedef struct bw_xrc_target bw_xrc_target;

// An XRC domain: its targets reach its shared receive queues, and no others.
typedef struct bw_xrcd bw_xrcd;

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
    // Memory regions and windows at once.
    uint32_t max_mr;
    // Bytes of one memory region.
    uint64_t max_mr_size;
    // Bytes of one message.
    uint64_t max_msg_sz;
    // Shared receive queues at once.
    uint32_t max_srq;
    // Receives of one shared receive queue.
    uint32_t max_srq_wr;
    // Scatter/gather elements of one of its receives.
    uint32_t max_srq_sge;
    // Queue pairs attached to one multicast group.
    uint32_t max_mcast_qp_attach;
    // Partition keys of a port.
    uint32_t max_pkeys;
    // Ports; they count from 1.
    uint32_t phys_port_cnt;
    // Memory windows at once, of either type; they share the regions' keys.
    uint32_t max_mw;
    // 0.
    uint32_t reserved;
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

// How many objects there are on a device, of each kind.
typedef struct bw_resources {
    // `sizeof(bw_resources)`.
    uint32_t size;
    // Protection domains.
    uint32_t pd;
    // Completion queues.
    uint32_t cq;
    // Queue pairs, targets of XRC among them.
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

// Registered memory.
typedef struct bw_mr_info {
    // `sizeof(bw_mr_info)`.
    uint32_t size;
    // Rights: `bw_access_flags`.
    uint32_t access;
    // Where it starts: the address that requests name it by.
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

// The blocks of one length that a slab is to have.
typedef struct bw_slab_class {
    // Bytes of a block: a multiple of 64.
    uint32_t length;
    // How many.
    uint32_t count;
} bw_slab_class;

// What a slab has.
typedef struct bw_slab_info {
    // `sizeof(bw_slab_info)`.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Its blocks, of all lengths.
    uint64_t blocks;
    // Those that were taken and not returned, and those in caches. Exact when nobody takes or returns meanwhile.
    uint64_t outstanding;
} bw_slab_info;

// A block of a slab, in the order of a `bw_sge`. It is aligned to its length where that is a power of
// two up to 4096, else to 64 bytes.
typedef struct bw_block {
    // Where it starts.
    uint64_t addr;
    // Its bytes.
    uint32_t length;
    // The key for requests of this side. It is the region's, as the key for the peer's requests is:
    // `bw_region_query` tells that one.
    uint32_t lkey;
} bw_block;

// What a port is and does (`ibv_port_attr`, as far as it has a meaning here).
typedef struct bw_port_info {
    // `sizeof(bw_port_info)`.
    uint32_t size;
    // A `bw_port_state`.
    uint32_t state;
    // Largest packet that the port could carry: a `bw_mtu`.
    uint32_t max_mtu;
    // Largest packet that it carries: a `bw_mtu`.
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

// How a completion queue is to be made.
typedef struct bw_cq_attr {
    // `sizeof(bw_cq_attr)`.
    uint32_t size;
    // Entries, at least 1; the queue has a power of two, and some more (`bw_cq_query`).
    // `bw_qp_cq_entries` tells what a queue pair needs.
    uint32_t entries;
    // Queue pairs that can complete here, up to 65536; 0 is 256.
    uint32_t max_qp;
    // 0.
    uint32_t reserved;
    // The channel that it tells of entries when armed (`bw_cq_req_notify`), or NULL.
    const struct bw_comp_channel *channel;
    // Given back with each of its events, `bw_get_cq_event`.
    void *cq_context;
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
    // Its number, by which events name it.
    uint32_t cqn;
    // 0.
    uint32_t reserved;
} bw_cq_info;

// What a shared receive queue is to be able to do (`ibv_srq_init_attr`). `bw_srq_init_attr_default`
// fills it.
typedef struct bw_srq_init_attr {
    // `sizeof(bw_srq_init_attr)`.
    uint32_t size;
    // Receives in flight, at least 1.
    uint32_t max_wr;
    // Scatter/gather elements of a receive.
    uint32_t max_sge;
    // The limit to begin with, as `bw_srq_modify` sets it; 0 for none.
    uint32_t srq_limit;
} bw_srq_init_attr;

// What a shared receive queue is able to do, and its limit (`ibv_srq_attr`).
typedef struct bw_srq_info {
    // `sizeof(bw_srq_info)`.
    uint32_t size;
    // Its number, by which XRC requests name it.
    uint32_t srq_num;
    // Receives in flight: at least as many as asked for.
    uint32_t max_wr;
    // Scatter/gather elements of a receive: at least as many as asked for.
    uint32_t max_sge;
    // The limit; 0 when none is set, or the one that was is reached.
    uint32_t srq_limit;
} bw_srq_info;

// Called by `bw_qp_reset` for each request that was cleared: `context` as given there, and the
// request's identifier. It has to return, and must not use the queue pair or its completion queues.
typedef void (*bw_cleared_fn)(void *context, uint64_t wr_id);

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
    // The transport: a `bw_qp_type`, BW_QPT_RC by default.
    uint32_t qp_type;
    // 0.
    uint32_t reserved;
    // The shared receive queue that it receives from, of the same protection domain and not for
    // XRC. NULL, the default: a receive queue of its own.
    struct bw_srq *srq;
    // Not 0: unsignalled requests that are flushed make no completion of their own, but for the last
    // of those that are rung together, whose `retired` counts those before it. Not on devices driven
    // by libibverbs (`BW_EUNSUPPORTED`), and not of a link.
    uint32_t suppress_flush;
    // 0.
    uint32_t reserved1;
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
    // The port to connect by, from 1.
    uint32_t port_num;
    // The entry of that port's GID table to be reached by, where GIDs address peers (RoCE, routed
    // InfiniBand). Less than 0, the default: the device chooses; on RoCE an entry of version 2, if
    // possible with an IPv4 address. `bw_qp_endpoint_for` gives the peer the right one.
    int32_t gid_index;
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
    // The port's GID: the one that the device prefers, or that was asked for.
    uint8_t gid[16];
} bw_endpoint;

// What the two ends of a connection tell each other beside their endpoints.
typedef struct bw_conn_info {
    // `sizeof(bw_conn_info)`.
    uint32_t size;
    // The largest path MTU that the end can do, a `bw_mtu`: connect with the lesser of both ends'.
    uint32_t mtu;
    // The key of the memory that the other end may work on.
    uint32_t rkey;
    // 0.
    uint32_t reserved;
    // Where that memory starts.
    uint64_t addr;
    // Its bytes; 0: there is no such memory.
    uint64_t length;
} bw_conn_info;

// A path (`ibv_ah_attr`).
typedef struct bw_ah_attr {
    // Destination GID, in the order of the wire. This and the next fields, up to `traffic_class`,
    // are used when `is_global`.
    uint8_t dgid[16];
    // Flow label, 20 bits.
    uint32_t flow_label;
    // Index of the source GID in the port's table.
    uint8_t sgid_index;
    // Routers that the packet may pass.
    uint8_t hop_limit;
    // Traffic class.
    uint8_t traffic_class;
    // Not 0: with a global route, which arrives as the first 40 bytes of a datagram.
    uint8_t is_global;
    // Destination LID.
    uint16_t dlid;
    // Service level, 4 bits.
    uint8_t sl;
    // Which of the port's LIDs is the source, 7 bits.
    uint8_t src_path_bits;
    // Upper bound of the rate (`ibv_rate`); 0 is the port's own.
    uint8_t static_rate;
    // Port, from 1.
    uint8_t port_num;
    // 0.
    uint16_t reserved;
} bw_ah_attr;

// An event (`rdma_cm_event`): a copy, there is nothing to acknowledge. What an event has not is 0.
typedef struct bw_cm_event {
    // `sizeof(bw_cm_event)`.
    uint32_t size;
    // What happened: a `bw_cm_event_type`. `bw_classify` tells what it means, `bw_cm_event_str` its
    // text.
    uint32_t event;
    // 0 where nothing went wrong, else a negative error number, or the reason of a rejection: 28 is
    // the peer's program, 8 that nobody listens.
    int32_t status;
    // Bytes of private data.
    uint32_t private_data_len;
    // Of the id that it happened to; of a request: of the listener.
    void *context;
    // Of a request: the id that it came with, the caller's until `bw_cm_id_destroy`; accept or reject
    // it. Else NULL.
    struct bw_cm_id *request;
    // The peer's queue pair; of a multicast group the one that requests have to name.
    uint32_t qp_num;
    // Of datagrams: the key that requests have to name.
    uint32_t qkey;
    // Of datagrams: the way, for `bw_ah_create`. Of a multicast group `dgid` and `dlid` are its own,
    // for `bw_qp_attach_mcast`.
    struct bw_ah_attr ah_attr;
    // READs and atomics in flight that the peer wants answered by this side.
    uint8_t responder_resources;
    // READs and atomics in flight that the peer answers.
    uint8_t initiator_depth;
    // Not 0: the peer has flow control by the hardware.
    uint8_t flow_control;
    // Retries without an acknowledgement.
    uint8_t retry_count;
    // Retries without a receive.
    uint8_t rnr_retry_count;
    // Not 0: the peer receives from a shared receive queue.
    uint8_t srq;
    // 0.
    uint16_t reserved;
    // The peer's private data, as it came: perhaps with zeroes behind what the peer gave, and not to
    // be trusted.
    uint8_t private_data[BW_CM_PRIVATE_MAX];
} bw_cm_event;

// How to connect (`rdma_conn_param`). `bw_cm_param_default` fills it.
typedef struct bw_cm_param {
    // `sizeof(bw_cm_param)`.
    uint32_t size;
    // Bytes of private data: 56 at the most to connect, 196 to accept.
    uint32_t private_data_len;
    // They go with the peer's event, where zeroes may be behind them.
    const void *private_data;
    // READs and atomics in flight that this side answers; what the device and, at the accepting end,
    // the request have bounds it.
    uint8_t responder_resources;
    // READs and atomics in flight that this side asks for, likewise.
    uint8_t initiator_depth;
    // Not 0: this side has flow control by the hardware.
    uint8_t flow_control;
    // Retries without an acknowledgement, up to 7. Of the connecting end, for both.
    uint8_t retry_count;
    // Retries without a receive at the peer, up to 6; 7 is for ever.
    uint8_t rnr_retry_count;
    // 0.
    uint8_t reserved[3];
} bw_cm_param;

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
    // The local identifier of a received datagram's sender; otherwise 0.
    uint16_t slid;
    // Its service level.
    uint8_t sl;
    // Which of the port's local identifiers it was sent to.
    uint8_t dlid_path_bits;
} bw_wc;

// State and attributes of a queue pair (`ibv_qp_attr`). Where it is given, the mask tells which
// fields are meant; the others are not looked at.
typedef struct bw_qp_attr {
    // `sizeof(bw_qp_attr)`.
    uint32_t size;
    // A `bw_qp_state`: the state to go to, or that it has.
    uint32_t qp_state;
    // A `bw_qp_state`: the state that the program takes it to be in.
    uint32_t cur_qp_state;
    // A `bw_mtu`.
    uint32_t path_mtu;
    // A `bw_mig_state`.
    uint32_t path_mig_state;
    // Of datagrams: the key that senders have to name.
    uint32_t qkey;
    // First packet sequence number expected, 24 bits.
    uint32_t rq_psn;
    // First packet sequence number sent, 24 bits.
    uint32_t sq_psn;
    // The peer's number.
    uint32_t dest_qp_num;
    // What the peer may do: `bw_access_flags`.
    uint32_t qp_access_flags;
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
    // The path to the peer.
    struct bw_ah_attr ah_attr;
    // The alternate path.
    struct bw_ah_attr alt_ah_attr;
    // Index of the partition key in the port's table.
    uint32_t pkey_index;
    // Of the alternate path.
    uint32_t alt_pkey_index;
    // Not 0: raise BW_EVENT_SQ_DRAINED when the send queue has drained.
    uint32_t en_sqd_async_notify;
    // As queried in SQD: not 0 while started sends have not all finished.
    uint32_t sq_draining;
    // READs and atomics in flight to the peer.
    uint32_t max_rd_atomic;
    // READs and atomics in flight from the peer.
    uint32_t max_dest_rd_atomic;
    // How long the peer waits for a receive of this side, a code of 5 bits.
    uint32_t min_rnr_timer;
    // Port, from 1.
    uint32_t port_num;
    // Acknowledgement timeout, a code of 5 bits: 4.096 µs · 2^t; 0 is for ever.
    uint32_t timeout;
    // Retries without an acknowledgement, up to 7.
    uint32_t retry_cnt;
    // Retries without a receive at the peer, up to 6; 7 is for ever.
    uint32_t rnr_retry;
    // Port of the alternate path.
    uint32_t alt_port_num;
    // Acknowledgement timeout of the alternate path.
    uint32_t alt_timeout;
    // Pacing in kbit/s.
    uint32_t rate_limit;
    // As queried: its number.
    uint32_t qp_num;
    // As queried: a `bw_qp_type`.
    uint32_t qp_type;
} bw_qp_attr;

// What a memory window is bound to (`ibv_mw_bind_info`). The memory needs BW_ACCESS_MW_BIND.
typedef struct bw_mw_bind_info {
    // Where the window starts.
    uint64_t addr;
    // Its bytes, up to 2 GiB; 0 takes what it was bound to away.
    uint32_t length;
    // Local key of the memory.
    uint32_t lkey;
    // Rights: the REMOTE ones of `bw_access_flags`, and ZERO_BASED.
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
    // Local key of the memory; of inline data not looked at.
    uint32_t lkey;
} bw_sge;

// A send request (`ibv_send_wr`). Fields that the operation does not have are not looked at.
typedef struct bw_send_wr {
    // The program's identifier, which the completion has.
    uint64_t wr_id;
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
    // Of datagrams: the path to the receiver, within the queue pair's protection domain. It may be
    // destroyed when the post has returned.
    const struct bw_ah *ah;
    // Of datagrams: the receiver's number; 0xffffff for a multicast group.
    uint32_t remote_qpn;
    // Of datagrams: the receiver's key.
    uint32_t remote_qkey;
    // Of XRC: the number of the target's shared receive queue (`bw_srq_query`).
    uint32_t remote_srqn;
    // 0.
    uint32_t reserved;
    // The window, of type 2, to bind (BIND_MW); `bw_mw_rkey` is its new key when this is posted.
    struct bw_mw *mw;
    // What to bind it to.
    struct bw_mw_bind_info bind;
} bw_send_wr;

// A receive (`ibv_recv_wr`).
typedef struct bw_recv_wr {
    // The program's identifier, which the completion has.
    uint64_t wr_id;
    // Where the message goes.
    const struct bw_sge *sg_list;
    // Elements of `sg_list`.
    uint32_t num_sge;
    // 0.
    uint32_t reserved;
} bw_recv_wr;

// An RDMA WRITE or READ of a connection, of one element: smaller than a `bw_send_wr`, and quicker to
// post.
typedef struct bw_rdma_wr {
    // The program's identifier, which the completion has.
    uint64_t wr_id;
    // The local memory.
    struct bw_sge sge;
    // The peer's memory.
    uint64_t remote_addr;
    // The peer's key for it.
    uint32_t rkey;
    // `bw_send_flags`. BW_SEND_INLINE has no effect: the functions' names say it.
    uint32_t send_flags;
} bw_rdma_wr;

// What became of a request, with what most programs ask for: quicker to poll than a `bw_wc`, and
// `bw_completion_wc` makes one of it. `bw_completion_byte_len` says how many bytes came.
typedef struct bw_completion {
    // The program's identifier of the request.
    uint64_t wr_id;
    // Number of the local queue pair.
    uint32_t qp_num;
    // As in `bw_wc`: requests that this tells of.
    uint32_t retired;
    // A `bw_wc_status`.
    uint32_t status;
    // The device's own code of an error.
    uint32_t vendor_err;
    // What completed: a `bw_wc_opcode`. Of an error 0.
    uint8_t opcode;
    // The library's, as all below: `bw_completion_wc` reads them.
    uint8_t entry;
    // The library's.
    uint16_t slid;
    // The library's.
    uint32_t byte_cnt;
    // The library's.
    uint32_t imm;
    // The library's.
    uint32_t source;
} bw_completion;

// What an asynchronous event tells (`ibv_async_event`).
typedef struct bw_async_event_info {
    // `sizeof(bw_async_event_info)`.
    uint32_t size;
    // A `bw_event_type`.
    uint32_t event_type;
    // What it is about: a `bw_element`.
    uint32_t element;
    // The number of that.
    uint32_t number;
} bw_async_event_info;

// What goes into a dump.
typedef struct bw_dump_attr {
    // `sizeof(bw_dump_attr)`.
    uint32_t size;
    // A `bw_dump_format`.
    uint32_t format;
    // Send entries, receives, and completions of each completion queue, at most: the last ones. 0 is 32.
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
    // Its number. Those that this library does not know have a class too.
    int32_t number;
    // Of a completion: the queue pair's `bw_qp_type`. Like all that follows, otherwise not looked
    // at.
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
} bw_fault;

// What a fault means for the program. docs/faults.md has all of them. The texts are static, and
// never NULL.
typedef struct bw_class {
    // `sizeof(bw_class)`.
    uint32_t size;
    // How far it reaches: a `bw_scope`.
    uint32_t scope;
    // Who most likely has to mend it: a `bw_blame`.
    uint32_t blame;
    // Whether the same request can succeed if it is tried again: a `bw_retry`.
    uint32_t retry;
    // What it says of the request at the peer: a `bw_execution`.
    uint32_t execution;
    // What makes work possible again: a `bw_recovery`.
    uint32_t recovery;
    // The fault's name, as `RETRY_EXC_ERR`; `UNKNOWN` for a number that has none.
    const char *name;
    // What happened.
    const char *text;
    // What causes it.
    const char *cause;
    // What the operator should look at.
    const char *advice;
} bw_class;

// What a link is made with. `bw_link_init_default` fills it. Times are nanoseconds of the device's
// clock.
typedef struct bw_link_init {
    // `sizeof(bw_link_init)`.
    uint32_t size;
    // A `bw_recover_in`.
    uint32_t recover_in;
    // What its queue pair is to be able to do; `qp_type` BW_QPT_RC, no `srq`, and `reserve_cq` not
    // looked at. NULL: the default. Like `connect`, read when the link is created.
    const struct bw_qp_init_attr *qp;
    // How it connects; the MTU is the lesser of both ends'. NULL: the default.
    const struct bw_connect_attr *connect;
    // Memory that the peer may work on, told to it with each connection: where it starts.
    uint64_t memory_addr;
    // Its bytes; 0: there is none.
    uint64_t memory_length;
    // Its key.
    uint32_t memory_rkey;
    // Polls that find nothing until the exchange and the asynchronous events are looked at, which
    // takes system calls: once in so many. 0 is 1.
    uint32_t look_every;
    // Steps of a recovery that one poll takes at the most: each may be a call of the device's driver.
    // 0 is 1.
    uint32_t steps_at_once;
    // Entries of the completion queue; 0: room for everything that can be in flight. Fewer overrun it
    // when the program does not poll in time, which is a fault to recover from.
    uint32_t cq_entries;
    // How often a recovery is tried, at least 1.
    uint32_t attempts;
    // Whether the program sleeps where there is nothing to poll, by `bw_link_arm` and `bw_link_fd`: 0 or 1.
    uint32_t sleeps;
    // How long a recovery has to last for the faults before it to be forgotten.
    uint64_t settle_ns;
    // How long flushed requests are waited for.
    uint64_t drain_ns;
    // How long BW_EVENT_QP_LAST_WQE_REACHED is waited for.
    uint64_t last_wqe_ns;
    // How long BW_CM_EVENT_TIMEWAIT_EXIT is waited for.
    uint64_t timewait_ns;
    // How long a port that is down is waited for.
    uint64_t port_ns;
    // How long the peer's answer is waited for.
    uint64_t exchange_ns;
    // How long the peer may take from there on to be ready.
    uint64_t ready_ns;
    // How long any other step may take.
    uint64_t step_ns;
    // The delay before the second attempt; it doubles with each.
    uint64_t backoff_first_ns;
    // The longest delay.
    uint64_t backoff_max_ns;
    // Seed of the delays' jitter: two ends should not have the same.
    uint64_t seed;
    // Send entries, receives and completions, each, of a queue pair whose connection fails that are kept
    // for `bw_link_dump_failure`; 0: none.
    uint32_t dump_entries;
    // Bits of `bw_dump_flags` for that.
    uint32_t dump_flags;
} bw_link_init;

// How long to try to reach the peer of a link, and how often. `bw_link_retry_default` fills it. Times
// are nanoseconds.
typedef struct bw_link_retry {
    // `sizeof(bw_link_retry)`.
    uint32_t size;
    // Attempts, one after the other, that may fail; the link is given up after that. At least 1.
    uint32_t attempts;
    // How long each step of a connection may take: finding the address, finding the route, the answer.
    uint64_t step_ns;
    // The pause after the first attempt that fails; each that follows is twice as long.
    uint64_t pause_ns;
    // The longest pause.
    uint64_t longest_ns;
} bw_link_retry;

// What became of a request of a link. Each signalled request, each receive, and each request that did
// not end well is told once.
typedef struct bw_told {
    // The program's identifier of the request.
    uint64_t wr_id;
    // A `bw_outcome`.
    uint32_t outcome;
    // With BW_OUTCOME_IN_DOUBT why: a `bw_doubt`. Otherwise BW_DOUBT_NONE.
    uint32_t doubt;
    // With BW_OUTCOME_FAILED: a `bw_wc_status`. Otherwise 0.
    uint32_t status;
    // What it was: a `bw_wc_opcode`. All receives have the bit BW_WC_RECV.
    uint32_t opcode;
    // Bytes received, or brought by a READ or atomic; otherwise 0. Also 0 when the request was
    // executed, and its completion did not come.
    uint32_t byte_len;
    // As `bw_wc.imm_data`.
    uint32_t imm_data;
    // `bw_wc_flags`.
    uint32_t wc_flags;
    // Requests that this tells of: itself, and unsignalled ones before it, which were executed. The
    // sum over everything told is what was posted.
    uint32_t retired;
} bw_told;

// Called by `bw_link_drain` for each request: `context` as given there, and what became of the
// request, which is there for the time of the call. It has to return, and must not use the link.
typedef void (*bw_told_fn)(void *context, const struct bw_told *told);

// Called at each fault of a link: what happened, what it means, and to which of its connections, as
// `bw_link_info.epoch` counts them. All that is pointed to is there for the time of the call.
typedef void (*bw_fault_fn)(void *context,
                            const struct bw_fault *fault,
                            const struct bw_class *means,
                            uint64_t epoch);

// A recovery that has ended.
typedef struct bw_recovery_report {
    // Its size, as the library knows it.
    uint32_t size;
    // How: a `bw_recovery_end`.
    uint32_t end;
    // Requests that were posted again.
    uint32_t replayed;
    // Requests that are told because of it, and not as executed.
    uint32_t surfaced;
    // The number of the connection from here on.
    uint64_t epoch;
    // Nanoseconds from the first fault on.
    uint64_t took_ns;
    // Why, unless BW_END_RECOVERED: then NULL.
    const char *why;
} bw_recovery_report;

// Called when a recovery of a link has ended, well or not. What is pointed to is there for the time of
// the call.
typedef void (*bw_recovered_fn)(void *context, const struct bw_recovery_report *report);

// Called with an asynchronous event that concerns no link: its number (`bw_event_type`, or one that
// this library does not know), what it is about (`bw_element`) and the number of that. It has been
// acknowledged. Of an unknown event the latter are 0.
typedef void (*bw_event_fn)(void *context, uint32_t event_type, uint32_t element, uint32_t number);

// How a link stands.
typedef struct bw_link_info {
    // `sizeof(bw_link_info)`.
    uint32_t size;
    // What it does: a `bw_link_state`.
    uint32_t state;
    // Number of its queue pair, 0 while there is none. It may be another after each recovery.
    uint32_t qp_num;
    // Number of its completion queue, likewise.
    uint32_t cqn;
    // The number of the connection, from 1: each recovery makes another one.
    uint64_t epoch;
    // Memory that the peer has opened to this end, as it said at the last connection: where it starts.
    uint64_t peer_addr;
    // Its bytes; 0: there is none, or the link was not connected yet.
    uint64_t peer_length;
    // Its key.
    uint32_t peer_rkey;
    // Requests that were executed, and that nothing was told after: unsignalled ones. They count as
    // retired when the link has ended.
    uint32_t untold;
    // Why it has ended; empty while it has not.
    char why[BW_WHY_MAX];
} bw_link_info;

// How often what happened to a link. What ends well at once is not counted: that would cost the data
// path.
typedef struct bw_link_counters {
    // `sizeof(bw_link_counters)`.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Recoveries after which the link works; the first connection is one.
    uint64_t recovered;
    // Of these, with something that is not as it was.
    uint64_t degraded;
    // One, when the link was given up.
    uint64_t gave_up;
    // Requests that were posted again.
    uint64_t replayed;
    // Receives that were posted again.
    uint64_t reposted;
    // Sends of a failed connection that turned out to have been executed.
    uint64_t done;
    // Sends told as failed.
    uint64_t failed;
    // Sends told as not executed.
    uint64_t not_executed;
    // Sends told as in doubt.
    uint64_t in_doubt;
    // Nanoseconds that the last recovery took, from its first fault on.
    uint64_t last_ns;
    // What the longest took.
    uint64_t longest_ns;
    // What all took.
    uint64_t total_ns;
    // Faults, by `bw_scope`.
    uint64_t faults[9];
    // Receives told as failed.
    uint64_t recv_failed;
    // Receives told as not executed, at the end: no message came for them.
    uint64_t recv_not_executed;
    // Receives told as in doubt: a message may have come for them, and its completion was lost.
    uint64_t recv_in_doubt;
} bw_link_counters;

// One step of a script: a fault, and when it strikes.
typedef struct bw_soft_step {
    // A `bw_soft_trigger`.
    uint32_t trigger;
    // A `bw_soft_fault`.
    uint32_t fault;
    // When: a count, or nanoseconds.
    uint64_t at;
    // What the fault takes: nanoseconds, a status or a number. Not looked at by the others.
    uint64_t value;
    // Of BW_FAULT_RAISE: a `bw_event_type`.
    uint32_t event_type;
    // Of BW_AT_ENTRY and BW_AT_PACKET: the queue pair whose requests count, or 0 for those of all. Of the
    // others: 0.
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
// The data path leaves it as it is: its codes say all.
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
// on the real clock; "auto" is the best that there is. "soft:NAME" is this process's node of the
// fabric of that name: its queue pairs reach those of all processes of the same user that have
// opened it too. Regions that are created on it are memory that these processes map. It does not
// survive a fork: the child opens it anew.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_ENODEV`, `BW_EINVAL` (no fabric can have this name), `BW_EEXHAUSTED` (64 nodes are
// there already), `BW_ENULL`.
// Thread: any.
int bw_device_open(const char *name, struct bw_device **device);

// Opens a software device of one's own: queue pairs of other devices cannot reach it. `config` may
// be NULL: the default.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_EINVAL`, `BW_ELIMIT`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_open_soft(const struct bw_soft_config *config, struct bw_device **device);

// Opens a node of the fabric of this name that is the caller's own: "lab" is the fabric of
// "soft:lab". A process can have several, and queue pairs of one reach those of another as they reach
// another process's; `bw_device_open` gives the one that the process shares. `config` may be NULL: the
// default; a fabric's clock is BW_CLOCK_REAL.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_EINVAL` (no fabric can have this name, or the clock), `BW_ELIMIT`, `BW_EEXHAUSTED` (64
// nodes are there already), `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_join(const char *fabric,
                   const struct bw_soft_config *config,
                   struct bw_device **device);

// Opens the same device once more: another context, with asynchronous events of its own. Objects of
// the two cannot be combined, but their queue pairs reach each other.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_ENULL`.
// Thread: any.
int bw_device_reopen(const struct bw_device *device, struct bw_device **again);

// What the device is and can do. Set `info->size` before.
//
// Errors: `BW_ENODEV` when it is gone, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_query(const struct bw_device *device, struct bw_device_info *info);

// Which way the device is driven: a `bw_provider`, 0 or more. A ConnectX device is BW_PROVIDER_VERBS
// where its rings cannot be had, or BELLWIRE_VERBS_ONLY=1 is in the environment.
//
// Errors: `BW_EOTHER` for a way that this header has no number of, `BW_ENULL`.
// Thread: any.
int bw_device_provider(const struct bw_device *device);

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
// Errors: `BW_EBUSY` while there is anything of it, `BW_ENULL`.
// Thread: any; no other call on the device may be under way or follow.
int bw_device_close(struct bw_device *device);

// Counts what there is on the device, to see that nothing is left: of a software device by all its
// contexts in this process, of a device of libibverbs by this context. Set `resources->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_device_resources(const struct bw_device *device,
                        struct bw_resources *resources);

// Creates a protection domain.
//
// Owner: the caller, until `bw_pd_destroy`. It keeps the device open.
// Errors: `BW_ENULL`.
// Thread: any.
int bw_pd_create(const struct bw_device *device, struct bw_pd **pd);

// Destroys a protection domain.
//
// Errors: `BW_EBUSY` while there are memory, windows, address handles or queues of it, `BW_ENULL`.
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
// Errors: `BW_EBUSY` while memory windows are bound to it, `BW_ENULL`.
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

// Takes the keys of the region back, and its memory. Requests that still name it fail, and so do those
// that name a memory window on it.
//
// Errors: `BW_EBUSY` while there is a slab of it, `BW_ENULL`.
// Thread: any; no other call on the region may be under way or follow, and nobody may use its
// memory any more.
int bw_region_destroy(struct bw_region *region);

// As `bw_mr_create`, memory that requests are to name by addresses from `iova` on, in place of its own
// (`ibv_reg_mr_iova`); `bw_mr_query` gives `iova` as its start then. Devices want `addr` and `iova` to
// lie equally far behind the start of a page.
//
// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
// Errors: those of `bw_mr_create`; `BW_EUNSUPPORTED` on a software HCA.
// Thread: any.
int bw_mr_create_at(const struct bw_pd *pd,
                    void *addr,
                    size_t length,
                    uint64_t iova,
                    uint32_t access_flags,
                    struct bw_mr **mr);

// Registers memory of another device, of a GPU say, that a dma-buf stands for (`ibv_reg_dmabuf_mr`):
// `length` bytes from `offset` on, which requests name by addresses from `iova` on. `fd` may be
// closed afterwards.
//
// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL` (no bytes; an end beyond the address space; unknown rights; REMOTE_WRITE or
// REMOTE_ATOMIC without LOCAL_WRITE; no descriptor), `BW_EUNSUPPORTED` on a software HCA, and where
// the device's driver does not have it, `BW_EOTHER` (no dma-buf), `BW_ENULL`.
// Thread: any.
int bw_mr_create_dmabuf(const struct bw_pd *pd,
                        int fd,
                        uint64_t offset,
                        size_t length,
                        uint64_t iova,
                        uint32_t access_flags,
                        struct bw_mr **mr);

// Changes registered memory in place (`ibv_rereg_mr`): what `flags`, of `bw_rereg_mr_flags`, name, of
// the last arguments; the others are not looked at. Its keys may be others afterwards: `bw_mr_query`.
// Memory that it has from now on is the program's, as with `bw_mr_create`.
//
// When it fails with another error than `BW_EOTHER` nothing has changed; after that the keys may not
// work any more: destroy it.
//
// Errors: those of `bw_mr_create`; `BW_EFOREIGN` for a domain of another device; `BW_EUNSUPPORTED` on a
// software HCA, and where the device's driver does not have it.
// Thread: any; no other call on the memory region may be under way, and no request that names it.
int bw_mr_reregister(struct bw_mr *mr,
                     uint32_t flags,
                     const struct bw_pd *pd,
                     void *addr,
                     size_t length,
                     uint32_t access_flags);

// The bytes of region that the `num` classes of the array `classes` need: what to create a region of.
//
// Errors: `BW_EINVAL` (more than an address space has), `BW_ENULL`.
// Thread: any.
int bw_slab_bytes(const struct bw_slab_class *classes,
                  uint32_t num,
                  uint64_t *bytes);

// Cuts a region into the blocks of the `num` classes of the array `classes`, which are listed from the
// smallest blocks to the largest. A region has one slab at a time. As long as there is the slab, the
// region's memory is used through its blocks only.
//
// Owner: the caller, until `bw_slab_destroy`. It keeps the region.
// Errors: `BW_EINVAL` (no classes; one of no blocks, or whose length is not a positive multiple of 64;
// not ascending; more than the region holds), `BW_EBUSY` (the region has a slab), `BW_ENULL`.
// Thread: any; no other call on the region may be under way.
int bw_slab_create(struct bw_region *region,
                   const struct bw_slab_class *classes,
                   uint32_t num,
                   struct bw_slab **slab);

// How many blocks there are, and how many are out. Set `info->size` before. Slow: it counts.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_slab_query(const struct bw_slab *slab, struct bw_slab_info *info);

// Takes a block of the smallest class that has `length` bytes. Others are not tried when all of that
// one are out. The bytes are what was left there. On failure `block` stays as it was.
//
// Owner: the caller, until `bw_slab_return`.
// Errors: `BW_ENOBLOCK` (all are out), `BW_EINVAL` (more bytes than the largest blocks have),
// `BW_ENULL`.
// Thread: any. Data path.
int bw_slab_take(const struct bw_slab *slab,
                 uint32_t length,
                 struct bw_block *block);

// Returns a block, of which only `block->addr` is looked at. Nobody may use it any more: requests that
// name it have been told of. On failure nothing was returned. Of two threads that return the same
// block one gets the error; a block that somebody has taken again since cannot be told from one that
// is returned for the first time.
//
// Errors: `BW_ERETURNED` (it is not out), `BW_EFOREIGN` (not a block of this slab), `BW_EINVAL` (an
// address within a block, not its start), `BW_ENULL`.
// Thread: any. Data path.
int bw_slab_return(const struct bw_slab *slab,
                   const struct bw_block *block);

// Destroys a slab. The region stays, with the bytes that are there.
//
// Errors: `BW_EBUSY` while blocks are out, or there are caches, `BW_ENULL`.
// Thread: any; no other call on the slab may be under way or follow.
int bw_slab_destroy(struct bw_slab *slab);

// Makes a cache of the blocks that `bw_slab_take` would take for `length` bytes. Taking and returning
// cost no atomic read-modify-write there; 32 blocks at once go between it and the slab when it runs
// empty or full. It is empty at first, and holds 64 blocks at the most, which others cannot take.
//
// Owner: the caller, until `bw_slab_cache_destroy`. It keeps the slab.
// Errors: `BW_EINVAL` (more bytes than the largest blocks have), `BW_ENULL`.
// Thread: any.
int bw_slab_cache_create(const struct bw_slab *slab,
                         uint32_t length,
                         struct bw_slab_cache **cache);

// As `bw_slab_take`, of the cache's blocks.
//
// Owner: the caller, until `bw_slab_cache_return` or `bw_slab_return`, of any cache of the slab.
// Errors: `BW_ENOBLOCK` (all are out, or in other caches), `BW_ENULL`.
// Thread: the cache's owner. Data path.
int bw_slab_cache_take(struct bw_slab_cache *cache, struct bw_block *block);

// As `bw_slab_return`, to the cache; a block of the slab that has another length goes to the slab. Two
// threads that return the same block at once need not be told.
//
// Errors: `BW_ERETURNED`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_ENULL`, as `bw_slab_return`.
// Thread: the cache's owner. Data path.
int bw_slab_cache_return(struct bw_slab_cache *cache,
                         const struct bw_block *block);

// Destroys a cache: its blocks go back to the slab. Those that were taken from it stay the program's.
//
// Errors: `BW_ENULL`.
// Thread: the cache's owner; no other call on it may be under way or follow.
int bw_slab_cache_destroy(struct bw_slab_cache *cache);

// A port's attributes (`ibv_query_port`); ports count from 1. Set `info->size` before.
//
// Errors: `BW_EINVAL` for a port that there is not, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_query_port(const struct bw_device *device, uint32_t port_num, struct bw_port_info *info);

// An entry of a port's GID table (`ibv_query_gid`): 16 bytes, in the order of the wire.
//
// Errors: `BW_EINVAL` for a port or an entry that there is not, `BW_ENULL`.
// Thread: any.
int bw_query_gid(const struct bw_device *device, uint32_t port_num, uint32_t index, uint8_t *gid);

// An entry of a port's partition key table (`ibv_query_pkey`), in the host's byte order.
//
// Errors: `BW_EINVAL` for a port or an entry that there is not, `BW_ENULL`.
// Thread: any.
int bw_query_pkey(const struct bw_device *device,
                  uint32_t port_num,
                  uint32_t index,
                  uint16_t *pkey);

// Creates a completion channel, for `bw_cq_attr.channel`.
//
// Owner: the caller, until `bw_comp_channel_destroy`. It keeps the device open.
// Errors: `BW_EOTHER` when the system has no descriptor left, `BW_ENULL`.
// Thread: any.
int bw_comp_channel_create(const struct bw_device *device, struct bw_comp_channel **channel);

// The channel's descriptor, 0 or more: readable while an event is queued. For poll and epoll, not to
// be read or closed. Whoever sleeps in poll on an inline device calls `bw_device_progress` now and
// then, or requests that wait for their time do not go on.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_comp_channel_fd(const struct bw_comp_channel *channel);

// Whether `bw_get_cq_event` answers `BW_EAGAIN` where it would block: the descriptor's flag
// O_NONBLOCK, which the program may set itself as well.
//
// Errors: `BW_EOTHER` when the system refuses, `BW_ENULL`.
// Thread: any.
int bw_comp_channel_set_nonblocking(const struct bw_comp_channel *channel, int nonblocking);

// Takes the oldest event of the channel (`ibv_get_cq_event`): the number of the completion queue,
// and, unless `cq_context` is NULL, the context that this was created with. Blocks when there is
// none. Each event is to be acknowledged, by `bw_ack_cq_events`.
//
// Errors: `BW_EAGAIN` when there is none and the descriptor does not block, `BW_ENULL`.
// Thread: any.
int bw_get_cq_event(const struct bw_comp_channel *channel, uint32_t *cqn, void **cq_context);

// Acknowledges `count` events of the completion queue of this number that were got
// (`ibv_ack_cq_events`), at the price of one. Destroying the queue waits for it.
//
// Errors: `BW_EINVAL` when fewer were got and not acknowledged: none is then. `BW_ENULL`.
// Thread: any.
int bw_ack_cq_events(const struct bw_comp_channel *channel, uint32_t cqn, uint32_t count);

// Arms a completion queue (`ibv_req_notify_cq`): its next entry raises one event on its channel; or,
// when `solicited_only` is not 0, the next one that tells of an error or of a message that was sent
// with BW_SEND_SOLICITED. An entry that is there already raises nothing: arm, then poll until it is
// empty, then sleep, and nothing is missed.
//
// Errors: `BW_EINVAL` when it has no channel, `BW_ENULL`.
// Thread: the completion queue's owner.
int bw_cq_req_notify(struct bw_cq *cq,
                     int solicited_only);

// Destroys a completion channel.
//
// Errors: `BW_EBUSY` while there are completion queues on it, `BW_ENULL`.
// Thread: any; no other call on the channel may be under way or follow.
int bw_comp_channel_destroy(struct bw_comp_channel *channel);

// Creates a completion queue.
//
// Owner: the caller, until `bw_cq_destroy`. It keeps the device open, and the channel.
// Errors: `BW_ELIMIT` (no entries, or more than the device has), `BW_EINVAL`, `BW_EFOREIGN`,
// `BW_EEXHAUSTED`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_cq_create(const struct bw_device *device, const struct bw_cq_attr *attr, struct bw_cq **cq);

// How the completion queue stands. Set `info->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the completion queue's owner.
int bw_cq_query(const struct bw_cq *cq, struct bw_cq_info *info);

// Destroys a completion queue. What it had not told yet is not told any more. Its events that were
// not got are removed; waits until those that were got are acknowledged.
//
// Errors: `BW_EBUSY` while there are queue pairs, or shared receive queues for XRC, that complete
// here, `BW_ENULL`.
// Thread: the completion queue's owner; no other call on it may be under way or follow.
int bw_cq_destroy(struct bw_cq *cq);

// Fills `attr`, of `size` bytes, with its size and the defaults:
// `bw_srq_init_attr_default(&attr, sizeof(attr))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_srq_init_attr_default(struct bw_srq_init_attr *attr, size_t size);

// Creates a shared receive queue, for `bw_qp_init_attr.srq`. What was received is told by the
// completion queue of the queue pair that received it. `attr` may be NULL: the default.
//
// Owner: the caller, until `bw_srq_destroy`. It keeps the protection domain.
// Errors: `BW_ELIMIT`, `BW_EEXHAUSTED`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_srq_create(const struct bw_pd *pd, const struct bw_srq_init_attr *attr, struct bw_srq **srq);

// Creates a shared receive queue for XRC: initiators that are connected with a target of the domain
// name it by its number. What was received is told by `cq`, which has to have room for one entry more
// than `bw_srq_info.max_wr`. `attr` may be NULL: the default.
//
// Owner: the caller, until `bw_srq_destroy`. It keeps the protection domain, the XRC domain and the
// completion queue.
// Errors: `BW_ELIMIT`, `BW_ECQROOM`, `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the completion queue's owner.
int bw_srq_create_xrc(const struct bw_pd *pd,
                      const struct bw_xrcd *xrcd,
                      struct bw_cq *cq,
                      const struct bw_srq_init_attr *attr,
                      struct bw_srq **srq);

// What it is able to do, its limit, and its number (`ibv_query_srq`). Set `info->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the shared receive queue's owner.
int bw_srq_query(const struct bw_srq *srq, struct bw_srq_info *info);

// Sets the limit (`ibv_modify_srq` with `IBV_SRQ_LIMIT`): when a message takes a receive and leaves
// fewer than `srq_limit`, BW_EVENT_SRQ_LIMIT_REACHED is raised, once, and the limit is 0 then. 0 sets
// none.
//
// Errors: `BW_ELIMIT` above `bw_srq_info.max_wr`, `BW_ENULL`.
// Thread: the shared receive queue's owner.
int bw_srq_modify(struct bw_srq *srq,
                  uint32_t srq_limit);

// Destroys a shared receive queue. What was posted and not told yet is told here: `cleared`, unless
// NULL, is called for each, in no order. Completions of it that were not polled are dropped. Waits
// until its asynchronous events that were got are acknowledged.
//
// Errors: `BW_EBUSY` while there are queue pairs on it, `BW_ENULL`.
// Thread: the owner of the shared receive queue, and of its completion queue where it is for XRC; no
// other call on it may be under way or follow.
int bw_srq_destroy(struct bw_srq *srq,
                   bw_cleared_fn cleared,
                   void *context);

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
// Errors: `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any; with a shared receive queue, the owner of that.
int bw_qp_cq_entries(const struct bw_qp_init_attr *attr, uint32_t *send, uint32_t *recv);

// Fills `attr`, of `size` bytes, with its size and the defaults:
// `bw_connect_attr_default(&attr, sizeof(attr))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_connect_attr_default(struct bw_connect_attr *attr, size_t size);

// Creates a queue pair in RESET. Sends complete on `send_cq`, receives on `recv_cq`, which may be the
// same; an XRC initiator has no receives, and `recv_cq` may be NULL. `attr` may be NULL: the default.
//
// Owner: the caller, until `bw_qp_destroy`. It keeps the protection domain, the completion queues
// and the shared receive queue.
// Errors: `BW_ELIMIT`, `BW_EINVAL`, `BW_ECQROOM`, `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the owner of both completion queues and of the shared receive queue: nobody may poll, or
// post to it, meanwhile.
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

// As `bw_qp_endpoint`, for a peer that is to be connected with in this way: by `attr->port_num` and
// `attr->gid_index`. `attr` may be NULL: the default. Set `endpoint->size` before.
//
// Errors: `BW_EINVAL`, for a port or an entry that there is not, too; `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_endpoint_for(struct bw_qp *qp,
                       const struct bw_connect_attr *attr,
                       struct bw_endpoint *endpoint);

// From RESET to INIT: receives may be posted from here on, and should be before the peer connects.
// `attr` may be NULL: the default.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_init(struct bw_qp *qp, const struct bw_connect_attr *attr);

// From INIT to RTS, connected with `peer`: requests may be posted from here on. The peer of an XRC
// initiator is a `bw_xrc_target`. `attr` may be NULL: the default. When it fails the queue pair is in
// INIT or in RTR: `bw_qp_reset` starts anew.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ETRANSPORT` (datagrams: `bw_qp_start`), `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_connect(struct bw_qp *qp,
                  const struct bw_endpoint *peer,
                  const struct bw_connect_attr *attr);

// From INIT to RTS, of datagrams: they go to whom each request names. `attr` may be NULL: the
// default. When it fails the queue pair is in INIT or in RTR: `bw_qp_reset` starts anew.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ETRANSPORT` (connections: `bw_qp_connect`), `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_start(struct bw_qp *qp, const struct bw_connect_attr *attr);

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

// Destroys a queue pair. What is in flight is flushed, and still told by the completion queues; what
// was posted and not rung is not. Of one that is on an id (`bw_cm_put_qp`) only the handle goes. Waits until its asynchronous events that were got are acknowledged.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner; no other call on it may be under way or follow.
int bw_qp_destroy(struct bw_qp *qp);

// Listens for peers on a port of the host's address, or of all addresses of this host when `host`
// is NULL. Port 0 is one that is free. Whoever reaches the port can connect: nothing is encrypted,
// and nobody has to prove who it is.
//
// Owner: the caller, until `bw_tcp_listener_destroy`.
// Errors: `BW_ECONN` (somebody has the port, or it may not be had), `BW_EINVAL` (no port),
// `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_tcp_listener_create(const char *host, uint32_t port, struct bw_tcp_listener **listener);

// The port that is listened on, more than 0.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_tcp_listener_port(const struct bw_tcp_listener *listener);

// Takes the next peer that connects, within so many milliseconds.
//
// Owner: the caller, until `bw_tcp_conn_destroy`.
// Errors: `BW_ETIMEDOUT`, `BW_EOTHER` when the system has no descriptor left, `BW_ENULL`.
// Thread: any.
int bw_tcp_accept(const struct bw_tcp_listener *listener,
                  uint32_t timeout_ms,
                  struct bw_tcp_conn **conn);

// Connects to the peer that listens on a port of a host, within so many milliseconds.
//
// Owner: the caller, until `bw_tcp_conn_destroy`.
// Errors: `BW_ECONN` (nobody listens there, or the host is not known), `BW_ETIMEDOUT`, `BW_EINVAL`
// (no port), `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_tcp_connect(const char *host, uint32_t port, uint32_t timeout_ms, struct bw_tcp_conn **conn);

// Tells the peer of a queue pair (`bw_qp_endpoint`, `bw_xrc_target_endpoint`) and of memory, and
// gives what the peer tells, within so many milliseconds. What the peer tells is checked: its
// numbers are in their ranges. `info` may be NULL: BW_MTU_4096, and no memory. Set `peer->size` and
// `peer_info->size` before. For each further queue pair, or region of memory, both ends call it once
// more.
//
// When it fails the two ends may be at different steps: destroy the connection, and connect again.
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

// Waits, for so many milliseconds at the most, until the peer has come here too. Before an end sends
// it has to know that the other's queue pair is connected.
//
// Errors: as `bw_tcp_exchange`.
// Thread: the connection's owner.
int bw_tcp_barrier(struct bw_tcp_conn *conn,
                   uint32_t timeout_ms);

// Closes a connection. Queue pairs do not need it any more once they are connected.
//
// Errors: `BW_ENULL`.
// Thread: the connection's owner; no other call on it may be under way or follow.
int bw_tcp_conn_destroy(struct bw_tcp_conn *conn);

// Stops listening. Connections that were accepted stay.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the listener may be under way or follow.
int bw_tcp_listener_destroy(struct bw_tcp_listener *listener);

// Opens an event channel of the provider of this name: "rdma" is librdmacm's, of a library built with
// it; "soft" and "soft:NAME" are the software device's, as for `bw_device_open`; "auto" is "rdma"
// where there is an RDMA device, else "soft".
//
// Owner: the caller, until `bw_cm_channel_destroy`.
// Errors: `BW_ENODEV`, `BW_EUNSUPPORTED`, `BW_EOTHER` when the system has no descriptor left, or no
// rdma_cm, `BW_ENULL`.
// Thread: any.
int bw_cm_channel_create(const char *provider,
                         struct bw_cm_channel **channel);

// As `bw_cm_channel_create`; its ids use this device: what is created on it, and on what
// `bw_cm_id_device` gives, works together. Of librdmacm: where an address leads to it.
//
// Owner: the caller, until `bw_cm_channel_destroy`. It keeps the device open, and not its handle.
// Errors: as there.
// Thread: any.
int bw_cm_channel_create_on(const struct bw_device *device, struct bw_cm_channel **channel);

// The channel's descriptor, 0 or more: readable while an event is queued. For poll and epoll, not to
// be read or closed.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_cm_channel_fd(const struct bw_cm_channel *channel);

// Destroys an event channel.
//
// Errors: `BW_EBUSY` while there are ids on it, `BW_ENULL`.
// Thread: any; no other call on the channel may be under way or follow.
int bw_cm_channel_destroy(struct bw_cm_channel *channel);

// Creates an id of a `bw_port_space`, whose events come by this channel, and bear `context`.
//
// Owner: the caller, until `bw_cm_id_destroy`. It keeps the channel.
// Errors: `BW_EINVAL`, `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_id_create(const struct bw_cm_channel *channel,
                    uint32_t port_space,
                    void *context,
                    struct bw_cm_id **id);

// Changes the context that the id's events bear. Of an id that a request came with it is NULL.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_cm_id_set_context(const struct bw_cm_id *id, void *context);

// Destroys an id: what is connected is disconnected, what was asked for is rejected; events of it that
// were not got are gone. It waits for nothing, and may be called between an event and the next.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the id may be under way or follow.
int bw_cm_id_destroy(struct bw_cm_id *id);

// The device that the id is bound to, another handle of it for each call. Of one channel all ids that
// are bound to one device give the same context.
//
// Owner: the caller, until `bw_device_close`.
// Errors: `BW_ESTATE` when the id is bound to none yet, `BW_ENODEV`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_id_device(const struct bw_cm_id *id,
                    struct bw_device **device);

// Has the id's events come by another channel of the same provider (`rdma_migrate_id`), those that
// were not got yet among them.
//
// Errors: `BW_EFOREIGN` for a channel of another provider, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_migrate(const struct bw_cm_id *id, const struct bw_cm_channel *to);

// Sets a `bw_cm_option` of an id.
//
// Errors: `BW_EINVAL`, `BW_ESTATE` when it is too late, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_set_option(const struct bw_cm_id *id, uint32_t option, uint32_t value);

// Writes the id's address on this side, of `BW_ADDR_MAX` characters at the most, and its port
// (`rdma_get_local_addr`).
//
// Errors: `BW_ESTATE` when it has none yet, `BW_ENULL`.
// Thread: any.
int bw_cm_local_addr(const struct bw_cm_id *id, char *host, uint32_t *port);

// Writes the address of the id's peer, likewise (`rdma_get_peer_addr`).
//
// Errors: `BW_ESTATE` when it has none yet, `BW_ENULL`.
// Thread: any.
int bw_cm_peer_addr(const struct bw_cm_id *id, char *host, uint32_t *port);

// Takes the channel's oldest event, and waits for one for so many milliseconds if need be; 0 waits
// for none, UINT32_MAX for ever. Set `event->size` before.
//
// Errors: `BW_EAGAIN` when there is none, `BW_EOTHER` for one that a newer librdmacm has, `BW_ENULL`,
// `BW_ESIZE`.
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

// Finds the device by which the peer is reached, and binds the id to it (`rdma_resolve_addr`):
// BW_CM_EVENT_ADDR_RESOLVED or _ADDR_ERROR tells. The peer is an address of IPv4 or IPv6, or a name: of
// a host, with the software device one of the programs' choosing. `source` is an address of this side,
// or NULL.
//
// Errors: `BW_ECONN` when there is no route, `BW_ESTATE`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_resolve_addr(const struct bw_cm_id *id,
                       const char *source,
                       const char *host,
                       uint32_t port,
                       uint32_t timeout_ms);

// Finds the path to the peer (`rdma_resolve_route`): BW_CM_EVENT_ROUTE_RESOLVED or _ROUTE_ERROR tells.
//
// Errors: `BW_ESTATE` when the address has not been resolved, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_resolve_route(const struct bw_cm_id *id,
                        uint32_t timeout_ms);

// Gives the id an address of this side (`rdma_bind_addr`): "0.0.0.0" or "::" is all there are, port 0
// one that is free.
//
// Errors: `BW_ECONN` (the port is in use, or the address none of this host's), `BW_ESTATE`,
// `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_bind(const struct bw_cm_id *id,
               const char *host,
               uint32_t port);

// Waits for peers (`rdma_listen`): each is a BW_CM_EVENT_CONNECT_REQUEST. Those that wait to be got
// beyond `backlog` are rejected.
//
// Errors: `BW_ESTATE`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_listen(const struct bw_cm_id *id, uint32_t backlog);

// Takes a queue pair, of BW_QPT_RC and on the id's device, from RESET to INIT: receives may be posted
// from here on, and should be before `bw_cm_connect` or `bw_cm_accept`. `access_flags` are what the
// peer may do.
//
// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_init_qp(const struct bw_cm_id *id,
                  struct bw_qp *qp,
                  uint32_t access_flags);

// Asks the peer to connect with a queue pair that stays in INIT (`rdma_connect`).
// BW_CM_EVENT_CONNECT_RESPONSE, _REJECTED, _UNREACHABLE or _CONNECT_ERROR tells. `param` may be NULL:
// the default. `qp` may be NULL: the one on the id (`bw_cm_put_qp`), of which _ESTABLISHED tells.
//
// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`,
// `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_cm_connect(const struct bw_cm_id *id,
                  struct bw_qp *qp,
                  const struct bw_cm_param *param);

// After BW_CM_EVENT_CONNECT_RESPONSE: takes the queue pair to RTS, and tells the peer, whose
// BW_CM_EVENT_ESTABLISHED it is (`rdma_establish`).
//
// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_establish(const struct bw_cm_id *id, struct bw_qp *qp);

// Accepts the request that the id came with (`rdma_accept`), and takes the queue pair from INIT to RTS.
// BW_CM_EVENT_ESTABLISHED tells that the peer is ready, too: send nothing before. `param` may be NULL:
// the default; and `qp`: the one on the id.
//
// Errors: as `bw_cm_connect`; `BW_ESTATE` when it was accepted or rejected before, or the peer has
// gone.
// Thread: the queue pair's owner.
int bw_cm_accept(const struct bw_cm_id *id,
                 struct bw_qp *qp,
                 const struct bw_cm_param *param);

// Refuses the request that the id came with, and says why by private data, 148 bytes of it at the most
// (`rdma_reject`).
//
// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE` when it was accepted or rejected before,
// `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_reject(const struct bw_cm_id *id,
                 const void *data,
                 uint32_t length);

// Ends the connection, or this end of one whose peer has ended it (`rdma_disconnect`): the queue pair
// goes to ERR, where everything in flight is flushed and told. BW_CM_EVENT_DISCONNECTED tells when the
// peer has ended it, too, BW_CM_EVENT_TIMEWAIT_EXIT when the queue pair can be connected again. `qp`
// may be NULL: the one on the id.
//
// Errors: `BW_ESTATE` when it is not connected: the queue pair is in ERR all the same. `BW_ETRANSPORT`,
// `BW_EOTHER`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_disconnect(const struct bw_cm_id *id,
                     struct bw_qp *qp);

// Puts a queue pair of BW_QPT_RC on an id, which owns it from here on: `bw_cm_connect`,
// `bw_cm_accept` and `bw_cm_disconnect` take it where they get NULL for a queue pair, as librdmacm does
// after rdma_create_qp(3). Put it there in INIT, with receives posted, and take it back by
// `bw_cm_take_qp` when it is connected. Meanwhile `bw_cm_get_event` moves it:
//
// The peer's answer takes it to RTS, and the event is BW_CM_EVENT_ESTABLISHED at this end, too, with
// what the peer said; or BW_CM_EVENT_CONNECT_ERROR when the device refuses that: the queue pair is in
// ERR then, and the peer is told by _REJECTED. BW_CM_EVENT_REJECTED and _UNREACHABLE take it to ERR:
// what was posted is flushed, and told.
//
// One of BW_QPT_UD, on an id of datagrams, is attached to each group whose BW_CM_EVENT_MULTICAST_JOIN is
// got; the event is _MULTICAST_ERROR when that is refused, and the group is to be left.
//
// Owner: the id. The handle stays the caller's, and is good for `bw_cm_take_qp` and `bw_qp_destroy`
// alone; calls other than those that post and ring answer `BW_ESTATE`. What is still on an id that is
// destroyed is destroyed with it, but for the handle.
// Errors: `BW_EBUSY` when another is there, `BW_ESTATE` when this one is on an id, `BW_ETRANSPORT`,
// `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_put_qp(const struct bw_cm_id *id,
                 struct bw_qp *qp);

// Takes a queue pair off the id that it was put on, in whatever state it is. The connection stays as it
// is; from here on the caller moves the queue pair.
//
// Errors: `BW_EFOREIGN` when another queue pair is on the id, `BW_ESTATE` when none is, `BW_ENULL`.
// Thread: any; nobody uses the queue pair's handle meanwhile.
int bw_cm_take_qp(const struct bw_cm_id *id,
                  struct bw_qp *qp);

// Takes a queue pair, of BW_QPT_UD and on the id's device, from RESET to RTS, with the id's port and
// key.
//
// Errors: `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EFOREIGN`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_cm_start_qp(const struct bw_cm_id *id,
                   struct bw_qp *qp);

// Looks for a datagram service, with private data of 180 bytes at the most (`rdma_connect` of an id of
// datagrams): BW_CM_EVENT_ESTABLISHED tells where it is, _REJECTED or _UNREACHABLE that it is not.
//
// Errors: `BW_ELIMIT` (private data too long), `BW_ESTATE`, `BW_ETRANSPORT`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_lookup(const struct bw_cm_id *id,
                 const void *data,
                 uint32_t length);

// Answers a lookup, with private data of 136 bytes at the most: the service is this queue pair's
// (`rdma_accept` of an id of datagrams).
//
// Errors: as `bw_cm_lookup`, and `BW_EFOREIGN`.
// Thread: the queue pair's owner.
int bw_cm_answer(const struct bw_cm_id *id, struct bw_qp *qp, const void *data, uint32_t length);

// Joins a multicast group, by its address (`rdma_join_multicast`); when `send_only` is not 0, only to
// send. BW_CM_EVENT_MULTICAST_JOIN or _MULTICAST_ERROR tells; `bw_qp_attach_mcast` attaches the queue pair
// then.
//
// Errors: `BW_ESTATE` when the id is not bound to a device, `BW_EINVAL`, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_join(const struct bw_cm_id *id,
               const char *group,
               int send_only);

// Leaves a group (`rdma_leave_multicast`).
//
// Errors: `BW_EINVAL`, `BW_ECONN` when it was not joined, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_cm_leave(const struct bw_cm_id *id, const char *group);

// Creates an address handle.
//
// Owner: the caller, until `bw_ah_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL` (a port or a source GID that the device does not have, a field out of range),
// `BW_ENULL`.
// Thread: any.
int bw_ah_create(const struct bw_pd *pd, const struct bw_ah_attr *attr, struct bw_ah **ah);

// The path back to a datagram's sender (`ibv_init_ah_from_wc`): `wc` is how its receive completed,
// `grh` the first 40 bytes of the receive's memory (not looked at without BW_WC_GRH), `port_num` the
// port that it came in by.
//
// Errors: `BW_EINVAL` (not a received datagram, or not a route header), `BW_ENULL`.
// Thread: any.
int bw_ah_init_from_wc(const struct bw_wc *wc,
                       const void *grh,
                       uint32_t port_num,
                       struct bw_ah_attr *attr);

// Creates an address handle to answer a datagram with (`ibv_create_ah_from_wc`), from what
// `bw_ah_init_from_wc` takes.
//
// Owner: the caller, until `bw_ah_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL`, `BW_ENULL`.
// Thread: any.
int bw_ah_create_from_wc(const struct bw_pd *pd,
                         const struct bw_wc *wc,
                         const void *grh,
                         uint32_t port_num,
                         struct bw_ah **ah);

// What an address handle was made of.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_ah_query(const struct bw_ah *ah, struct bw_ah_attr *attr);

// Destroys an address handle. Requests that were posted with it are not touched by that.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call with the address handle, a post neither, may be under way or follow.
int bw_ah_destroy(struct bw_ah *ah);

// Attaches a queue pair of datagrams to a multicast group (`ibv_attach_mcast`): it gets what is sent
// to this MGID, of 16 bytes, and MLID. Attached twice, it still gets one copy. A queue pair that is
// destroyed leaves its groups.
//
// Errors: `BW_ETRANSPORT`, `BW_EINVAL` (not a multicast address), `BW_EEXHAUSTED` (the group is
// full), `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_attach_mcast(struct bw_qp *qp,
                       const uint8_t *gid,
                       uint16_t lid);

// Detaches it (`ibv_detach_mcast`).
//
// Errors: `BW_ETRANSPORT`, `BW_EINVAL` when it is not attached, `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_detach_mcast(struct bw_qp *qp, const uint8_t *gid, uint16_t lid);

// Changes state and attributes (`ibv_modify_qp`): those of `attr` that `mask` names, bits of
// `bw_qp_attr_mask`. `bw_qp_init`, `bw_qp_connect` and `bw_qp_start` do it in fewer words. Going to
// RESET is `bw_qp_reset`.
//
// Errors: `BW_ESTATE` (no such transition; `cur_qp_state` is another; still draining; RESET),
// `BW_EINVAL` (`bw_last_error` names what is missing, not allowed or out of range), `BW_ENULL`,
// `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_modify(struct bw_qp *qp, const struct bw_qp_attr *attr, uint32_t mask);

// State and attributes, as the device has them (`ibv_query_qp`). Set `attr->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: the queue pair's owner.
int bw_qp_query(struct bw_qp *qp, struct bw_qp_attr *attr);

// Creates an XRC domain (`ibv_open_xrcd`, without a file).
//
// Owner: the caller, until `bw_xrcd_destroy`. It keeps the device open.
// Errors: `BW_EUNSUPPORTED` on a device without XRC, `BW_ENULL`.
// Thread: any.
int bw_xrcd_create(const struct bw_device *device, struct bw_xrcd **xrcd);

// Opens the XRC domain of the file `fd` (`ibv_open_xrcd`): whoever names the same file on the device has
// the same domain, on devices of libibverbs other processes too. `mode` is of `bw_xrcd_mode`. The file's
// contents do not matter, and it may be closed afterwards.
//
// Owner: the caller, until `bw_xrcd_destroy`. It keeps the device open.
// Errors: `BW_EBUSY` where there is one and it was to be new, `BW_EINVAL` (there is none, and it was to
// be there; another mode; no descriptor), `BW_EUNSUPPORTED` on a device without XRC, `BW_EOTHER`,
// `BW_ENULL`.
// Thread: any.
int bw_xrcd_open(const struct bw_device *device,
                 int fd,
                 uint32_t mode,
                 struct bw_xrcd **xrcd);

// Destroys an XRC domain.
//
// Errors: `BW_EBUSY` while there are targets or shared receive queues in it, `BW_ENULL`.
// Thread: any; no other call on the domain may be under way or follow.
int bw_xrcd_destroy(struct bw_xrcd *xrcd);

// Creates a target in RESET.
//
// Owner: the caller, until `bw_xrc_target_destroy`. It keeps the XRC domain.
// Errors: `BW_EEXHAUSTED`, `BW_ENULL`.
// Thread: any.
int bw_xrc_target_create(const struct bw_xrcd *xrcd, struct bw_xrc_target **target);

// Opens a target of the domain that somebody else created (`ibv_open_qp`), by its number: by who has
// opened the domain of the same file, in this process or another. Both have the same target then, which
// goes with the last of them; only who created it takes it to RESET.
//
// Owner: the caller, until `bw_xrc_target_destroy`. It keeps the XRC domain.
// Errors: `BW_EINVAL` where the domain has no target of this number, `BW_EOTHER`, `BW_ENULL`.
// Thread: any.
int bw_xrc_target_open(const struct bw_xrcd *xrcd,
                       uint32_t qp_num,
                       struct bw_xrc_target **target);

// What to bring to the initiator, by any means. Set `endpoint->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_xrc_target_endpoint(const struct bw_xrc_target *target, struct bw_endpoint *endpoint);

// From RESET to INIT. `attr` may be NULL: the default.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_xrc_target_init(const struct bw_xrc_target *target, const struct bw_connect_attr *attr);

// From INIT to RTS, connected with the initiator `peer`. `attr` may be NULL: the default.
//
// Errors: `BW_ESTATE`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_xrc_target_connect(const struct bw_xrc_target *target,
                          const struct bw_endpoint *peer,
                          const struct bw_connect_attr *attr);

// Changes state and attributes, as `bw_qp_modify`; RESET too, unless it was opened.
//
// Errors: those of `bw_qp_modify`; `BW_ESTATE` for RESET of one that was opened.
// Thread: any.
int bw_xrc_target_modify(const struct bw_xrc_target *target,
                         const struct bw_qp_attr *attr,
                         uint32_t mask);

// State and attributes, as the device has them. Set `attr->size` before.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_xrc_target_query(const struct bw_xrc_target *target, struct bw_qp_attr *attr);

// Destroys a target. Waits until its asynchronous events that were got are acknowledged.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the target may be under way or follow.
int bw_xrc_target_destroy(struct bw_xrc_target *target);

// Creates a memory window (`ibv_alloc_mw`), bound to nothing. `mw_type` is a `bw_mw_type`.
//
// Owner: the caller, until `bw_mw_destroy`. It keeps the protection domain.
// Errors: `BW_EINVAL`, `BW_EEXHAUSTED`, `BW_ENULL`.
// Thread: any.
int bw_mw_create(const struct bw_pd *pd, uint32_t mw_type, struct bw_mw **mw);

// The window's key for the peer's requests, as the last bind that was posted names it: each bind
// changes it. It opens what it was bound to when that bind has been executed; requests behind the bind
// may use it at once. 0, which is no key, when `mw` is NULL.
//
// Thread: the window's owner.
uint32_t bw_mw_rkey(const struct bw_mw *mw);

// Binds a window of type 1 (`ibv_bind_mw`), or takes away what it was bound to for a length of 0: posts
// the request on the queue pair, and tells the device. `bw_mw_rkey` is the new key at once. What cannot
// be bound completes with BW_WC_MW_BIND_ERR. A window of type 2 is bound by BW_WR_BIND_MW of
// `bw_post_send`.
//
// Errors: `BW_EINVAL` (of type 2; unknown flags), `BW_EFOREIGN`, `BW_ETRANSPORT` (datagrams), `BW_EFULL`,
// `BW_ESTATE`, `BW_ENULL`.
// Thread: the owner of the window and of the queue pair.
int bw_mw_bind(struct bw_qp *qp,
               struct bw_mw *mw,
               uint64_t wr_id,
               const struct bw_mw_bind_info *info,
               uint32_t send_flags);

// Destroys a memory window: when this returns no peer reaches through it any more.
//
// Errors: `BW_ENULL`.
// Thread: the window's owner; no other call on it may be under way or follow.
int bw_mw_destroy(struct bw_mw *mw);

// Posts the `num` send requests of the array `wr`, in order, and tells the device of them, and of
// what was posted one by one before. A software device in BW_SOFT_INLINE executes them here.
//
// When it fails, the requests before the one that was refused are posted; that one and those behind
// it are not, and are left as they are. `bad_wr`, unless NULL, then points to the refused one. A
// NULL in place of the array, or of the queue pair, is not told there.
//
// | transport | operations |
// |---|---|
// | BW_QPT_RC, BW_QPT_XRC_SEND | all |
// | BW_QPT_UC | all but READ and the atomics |
// | BW_QPT_UD | SEND, SEND_WITH_IMM, NOP |
//
// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`, `BW_EOPCODE`
// (unknown, or one that the transport does not have), `BW_EINVAL` (unknown flags; BW_SEND_INLINE of
// an operation that sends no data; elements of one that has none; BIND_MW of a window of type 1),
// `BW_ENULL` (also: a datagram without `ah`, a BIND_MW without `mw`).
// Thread: the send queue's owner. Data path.
int bw_post_send(struct bw_qp *qp,
                 const struct bw_send_wr *wr,
                 uint32_t num,
                 const struct bw_send_wr **bad_wr);

// Posts the `num` receives of the array `wr`, in order, and tells the device of them, and of those
// posted one by one before. `bad_wr` as in `bw_post_send`.
//
// Errors: `BW_EFULL`, `BW_ESTATE`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_ENORQ` (an XRC initiator,
// or a queue pair on a shared receive queue), `BW_ENULL`.
// Thread: the receive queue's owner. Data path.
int bw_post_recv(struct bw_qp *qp,
                 const struct bw_recv_wr *wr,
                 uint32_t num,
                 const struct bw_recv_wr **bad_wr);

// As `bw_post_recv`, to a shared receive queue.
//
// Errors: `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_ENULL`.
// Thread: the shared receive queue's owner. Data path.
int bw_post_srq_recv(struct bw_srq *srq,
                     const struct bw_recv_wr *wr,
                     uint32_t num,
                     const struct bw_recv_wr **bad_wr);

// Posts an RDMA WRITE of the memory that `sge` names; nothing is sent before `bw_ring_sq`. This and
// the next functions are for connections, BW_QPT_RC and BW_QPT_UC, whose requests name no receiver.
// Of the `bw_send_flags` BW_SEND_INLINE has no effect on them: their names say it.
//
// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports.
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

// Posts a SEND of `length` bytes at `data`, as `bw_post_write_inline`.
//
// Errors: those of `bw_post_send`.
// Thread: the send queue's owner. Data path.
int bw_post_send_inline(struct bw_qp *qp,
                        uint64_t wr_id,
                        const void *data,
                        uint32_t length,
                        uint32_t send_flags);

// Posts a receive into the memory that `sge` names. It cannot be used before `bw_ring_rq`.
//
// Errors: those of `bw_post_recv`.
// Thread: the receive queue's owner. Data path.
int bw_post_recv_one(struct bw_qp *qp, uint64_t wr_id, const struct bw_sge *sge);

// Tells the device of the send requests posted one by one since the last ring. A software device in
// BW_SOFT_INLINE executes them here.
//
// Errors: `BW_ENULL`.
// Thread: the send queue's owner. Data path.
int bw_ring_sq(struct bw_qp *qp);

// Tells the device of the receives posted one by one since the last ring.
//
// Errors: `BW_ENULL`.
// Thread: the receive queue's owner. Data path.
int bw_ring_rq(struct bw_qp *qp);

// Posts the `num` RDMA WRITEs of the array `wr`, in order, and tells the device of them, and of what
// was posted one by one before; else as `bw_post_send`.
//
// Errors: those of `bw_post_send`; `BW_EOPCODE` on other transports than BW_QPT_RC and BW_QPT_UC.
// Thread: the send queue's owner. Data path.
int bw_post_writes(struct bw_qp *qp,
                   const struct bw_rdma_wr *wr,
                   uint32_t num,
                   const struct bw_rdma_wr **bad_wr);

// As `bw_post_writes`, of the bytes at `sge.addr`, which travel within the requests: their memory
// need not be registered, and may be reused when this returns. `sge.lkey` is not looked at.
//
// Errors: those of `bw_post_writes`.
// Thread: the send queue's owner. Data path.
int bw_post_writes_inline(struct bw_qp *qp,
                          const struct bw_rdma_wr *wr,
                          uint32_t num,
                          const struct bw_rdma_wr **bad_wr);

// As `bw_post_writes`, of RDMA READs into the memory that `sge` names.
//
// Errors: those of `bw_post_writes`; `BW_EOPCODE` on other transports than BW_QPT_RC.
// Thread: the send queue's owner. Data path.
int bw_post_reads(struct bw_qp *qp,
                  const struct bw_rdma_wr *wr,
                  uint32_t num,
                  const struct bw_rdma_wr **bad_wr);

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

// As `bw_poll_one`, and reads of the completion only what every one has.
//
// Errors: `BW_ENULL`.
// Thread: the completion queue's owner. Data path.
int bw_poll_completion(struct bw_cq *cq, struct bw_completion *completion);

// As `bw_poll`, and reads of the completions only what every one has.
//
// Errors: `BW_ENULL`. A `max` of 0 or less takes none.
// Thread: the completion queue's owner. Data path.
int bw_poll_completions(struct bw_cq *cq, struct bw_completion *completions, int max);

// All that is known of a completion, in the form that `bw_poll` has.
//
// Errors: `BW_ENULL`; `BW_EINVAL` for an `opcode` that no poll has written.
// Thread: any.
int bw_completion_wc(const struct bw_completion *completion, struct bw_wc *wc);

// The descriptor of a device's asynchronous events, 0 or more: readable while one is queued. For poll
// and epoll, not to be read or closed.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_async_fd(const struct bw_device *device);

// Whether `bw_get_async_event` answers `BW_EAGAIN` where it would block: the descriptor's flag
// O_NONBLOCK, which the program may set itself as well.
//
// Errors: `BW_EOTHER` when the system refuses, `BW_ENULL`.
// Thread: any.
int bw_async_set_nonblocking(const struct bw_device *device, int nonblocking);

// Takes the oldest asynchronous event (`ibv_get_async_event`), and tells in `info` what it says; set
// `info->size` before. Blocks when there is none. Events of a queue come to the device that it was
// created on, those of a port or the device to every one that was opened.
//
// Owner: the caller, until `bw_ack_async_event`. It keeps the device open. Destroying the queue that
// it is about waits for the acknowledgement.
// Errors: `BW_EAGAIN` when there is none and the descriptor does not block, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_get_async_event(const struct bw_device *device,
                       struct bw_async_event_info *info,
                       struct bw_async_event **event);

// Acknowledges an asynchronous event (`ibv_ack_async_event`); the handle is gone then.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_ack_async_event(struct bw_async_event *event);

// Writes what the queue pair did last to `buffer`, of `capacity` bytes, as a string with its NUL: its
// last requests with how far each has come, its last completions, its changes of state, and what was
// noted by `bw_qp_note`. It is read from the rings, where a request stays until another is posted over
// it: dump a queue pair that failed before it is used again. `attr` may be NULL: text, the last 32
// of each. Nothing else changes by it. It takes as long as a change of state.
//
// `length`, unless NULL, becomes the length of the string without its NUL. When `capacity` is not more
// than that the answer is `BW_ELIMIT`, `*length` says how long it would have been, and nothing else is
// written: `buffer` may be NULL with a `capacity` of 0, to ask.
//
// Errors: `BW_ELIMIT`, `BW_EINVAL` (a format or flags that there are not), `BW_ENULL`, `BW_ESIZE`.
// Thread: the owner of the queue pair and of its completion queues: nobody may post to it or poll them
// meanwhile.
int bw_qp_dump(struct bw_qp *qp,
               const struct bw_dump_attr *attr,
               char *buffer,
               size_t capacity,
               size_t *length);

// Remembers `text`, with the time, among the queue pair's changes of state, for its dump: an
// asynchronous event that came, a step of a recovery. The last 64 are kept.
//
// Errors: `BW_ENULL`.
// Thread: the queue pair's owner.
int bw_qp_note(struct bw_qp *qp, const char *text);

// Tells what a fault means and what to do about it. Every number of a family has a class.
//
// Errors: `BW_EINVAL` for a family, transport, queue, opcode, vendor or `bw_peer_fault` that there is
// not, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_classify(const struct bw_fault *fault,
                struct bw_class *told);

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

// Makes a link with the one that the peer makes of the other end of the TCP connection. It takes the
// connection over, and connects as it is polled. Receives may be posted at once, and should be. Both
// ends of the connection have to be at the same step. `init` may be NULL: the default.
//
// `conn` is an empty handle from here on, which still has to be destroyed; also when this fails, but
// with BW_ENULL, BW_ESIZE and BW_EINVAL: those leave it as it was.
//
// Links take the asynchronous events of their device: `bw_set_event_hook` is for the rest.
//
// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
// Errors: `BW_ECONN` (a link has the connection already), `BW_ELIMIT`, `BW_EINVAL`, `BW_ETRANSPORT`
// (a queue pair that is not BW_QPT_RC), `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the connection's owner.
int bw_link_create(const struct bw_pd *pd,
                   const struct bw_link_init *init,
                   struct bw_tcp_conn *conn,
                   struct bw_link **link);

// Makes two links of one process that are connected with each other, as `bw_link_create` does without
// TCP: each connects as it is polled, by one thread or by two. Both inits may be NULL: the default.
// When it fails both handles are NULL.
//
// Owner: the caller, of both, until `bw_link_destroy`. They keep their protection domains.
// Errors: as `bw_link_create`.
// Thread: any.
int bw_link_create_pair(const struct bw_pd *pd,
                        const struct bw_link_init *init,
                        struct bw_link **link,
                        const struct bw_pd *peer_pd,
                        const struct bw_link_init *peer_init,
                        struct bw_link **peer);

// Destroys a link, and tells the peer, whose link ends. What was not told then is not told any more:
// `bw_link_drain` before is for that. Waits for the recovery's thread to stop, if there is one.
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

// Fills `retry`, of `size` bytes, with its size and the defaults:
// `bw_link_retry_default(&retry, sizeof(retry))`.
//
// Errors: `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_link_retry_default(struct bw_link_retry *retry, size_t size);

// Makes a connector for links on this device with those of the `bw_listener` at an address of IPv4 or
// IPv6, or a name, and a port. It looks for nobody yet. `retry` may be NULL: the default.
//
// Owner: the caller, until `bw_connector_destroy`. It keeps the device.
// Errors: `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_connector_create(const struct bw_device *device,
                        const char *host,
                        uint32_t port,
                        const struct bw_link_retry *retry,
                        struct bw_connector **connector);

// Destroys a connector. Its links stay, and go on connecting where they have to.
//
// Errors: `BW_ENULL`.
// Thread: any; no other call on the connector may be under way or follow.
int bw_connector_destroy(struct bw_connector *connector);

// Makes a link, as `bw_link_create` does, whose connection the communication manager makes, and makes
// again after a failure. It asks the connector's peer for it as it is polled: whether somebody is there
// shows in `bw_link_get_state`, and when all attempts have failed in `bw_link_query`.
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

// Listens for links on this device, at a port of an address of IPv4 or IPv6, or of a name; "0.0.0.0"
// is all addresses of this host, port 0 one that is free. Up to `backlog` links wait to be accepted,
// at least one: those that come then are to try again. `retry` is how long a link waits for a peer that
// has gone, which should be what the peer has; NULL: the default. A connector's end goes without a word,
// also when it is closed: the link here is given up after that time. The peer of a link that is closed
// here is told when it asks again, by whoever accepts or polls another link of the listener.
//
// Owner: the caller, until `bw_listener_destroy`. It keeps the device.
// Errors: `BW_ECONN` (somebody has the port, or the address is not this host's), `BW_EINVAL`,
// `BW_EUNSUPPORTED` (a device of libibverbs, in a library without librdmacm), `BW_EEXHAUSTED`,
// `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: any.
int bw_listener_create(const struct bw_device *device,
                       const char *host,
                       uint32_t port,
                       uint32_t backlog,
                       const struct bw_link_retry *retry,
                       struct bw_listener **listener);

// The port that is listened at, more than 0.
//
// Errors: `BW_ENULL`.
// Thread: the listener's owner.
int bw_listener_port(const struct bw_listener *listener);

// The descriptor that is readable when `bw_link_accept` should be called, 0 or more: for poll and
// epoll, not to be read or closed. It is that of the listener's links, too: it may be readable and
// nobody has come.
//
// Errors: `BW_ENULL`.
// Thread: the listener's owner.
int bw_listener_fd(const struct bw_listener *listener);

// Makes a link with the next peer that has asked for one, and waits for it for so many milliseconds if
// need be; 0 waits for none, UINT32_MAX for ever. The link connects as it is polled. When it cannot be
// made although a peer has come, that one asks again.
//
// Owner: the caller, until `bw_link_destroy`. It keeps the protection domain.
// Errors: `BW_EAGAIN` when nobody has come in this time, `BW_EFOREIGN`, `BW_ELIMIT`, `BW_EINVAL`,
// `BW_ETRANSPORT`, `BW_EEXHAUSTED`, `BW_EOTHER`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the listener's owner. Its links may have other owners.
int bw_link_accept(struct bw_listener *listener,
                   const struct bw_pd *pd,
                   const struct bw_link_init *init,
                   uint32_t timeout_ms,
                   struct bw_link **link);

// Stops listening. Links that were accepted stay, and work as long as nothing fails: they can be
// connected again only while the listener is there.
//
// Errors: `BW_ENULL`.
// Thread: the listener's owner; no other call on the listener may be under way or follow.
int bw_listener_destroy(struct bw_listener *listener);

// Takes up to `max` outcomes into the array `told`, whose elements have `size` bytes
// (`sizeof *told`), and answers how many there were. Never waits. Connects, recovers, and answers a
// peer that does: a link that is not polled does none of it.
//
// A poll that finds completions does nothing else, and costs what `bw_poll` does. One that finds a
// fault, or carries a recovery on, makes system calls, and calls the hooks.
//
// Errors: `BW_ENULL`; `BW_ESIZE` for a `size` that cannot be one. A `max` of 0 or less takes none.
// Thread: the link's owner.
int bw_link_poll(struct bw_link *link, struct bw_told *told, size_t size, int max);

// Closes the link, and polls until everything has been told, or the time is up: then it ends at once,
// and tells what it knows. What was posted goes on for up to three quarters of the time, a recovery
// included; receives are told as BW_OUTCOME_NOT_EXECUTED. When this returns the memory of all requests
// is the program's again. `told`, unless NULL, is called for each. `retired`, unless NULL, becomes how
// many requests were told of: all that were posted and not told of before, those included that were
// never signalled.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner. Not from a hook.
int bw_link_drain(struct bw_link *link,
                  uint32_t timeout_ms,
                  bw_told_fn told,
                  void *context,
                  uint64_t *retired);

// What a `bw_outcome` means. Never NULL; the text is static.
//
// Thread: any.
const char *bw_outcome_str(uint32_t outcome);

// What a `bw_doubt` means. Never NULL; the text is static.
//
// Thread: any.
const char *bw_doubt_str(uint32_t doubt);

// Posts the `num` send requests of the array `wr`, in order, as `bw_post_send` does. `replay`, a
// `bw_replay`, is for all of them. A window that is bound by BIND_MW belongs to the queue pair, which a
// recovery resets or replaces: create another one then, bind it, and tell the peer its key. So after a
// bind that is told as anything but BW_OUTCOME_DONE, which leaves it open which key the window has.
//
// Errors: `BW_ERECOVERING`, `BW_EENDED`, `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_EINLINE`, `BW_ESGELENGTH`,
// `BW_EOPCODE`, `BW_EINVAL` (unknown flags or `replay`; BW_SEND_INLINE of an operation that sends no
// data; elements of one that has none; BIND_MW of a window of type 1), `BW_ENULL` (also: a BIND_MW
// without `mw`).
// Thread: the link's owner. Data path.
int bw_link_post_send(struct bw_link *link,
                      const struct bw_send_wr *wr,
                      uint32_t num,
                      uint32_t replay,
                      const struct bw_send_wr **bad_wr);

// Posts an RDMA WRITE of the memory that `sge` names; nothing is sent before `bw_link_ring_sq`.
// `replay` is a `bw_replay`. Of the `bw_send_flags` BW_SEND_INLINE has no effect on this and the next
// functions: their names say it.
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

// Posts an RDMA WRITE of `length` bytes at `data`, which travel within the request: the memory need
// not be registered, and may be reused when this returns.
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

// Posts a SEND of `length` bytes at `data`, as `bw_link_post_write_inline` does.
//
// Errors: those of `bw_link_post_send`.
// Thread: the link's owner. Data path.
int bw_link_post_send_inline(struct bw_link *link,
                             uint64_t wr_id,
                             const void *data,
                             uint32_t length,
                             uint32_t send_flags,
                             uint32_t replay);

// Tells the device of the send requests that were posted one by one. Does nothing while the link
// recovers: what was posted before is told.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner. Data path.
int bw_link_ring_sq(struct bw_link *link);

// Posts the `num` receives of the array `wr`, in order, as `bw_post_recv` does. A link posts them
// again when it recovers: each is told once, when a message has come, or when the link ends. They
// may be posted before the link is connected, and should be.
//
// Errors: `BW_ERECOVERING`, `BW_EENDED`, `BW_EFULL`, `BW_ETOOMANYSGE`, `BW_ESGELENGTH`, `BW_ENULL`.
// Thread: the link's owner. Data path.
int bw_link_post_recv(struct bw_link *link,
                      const struct bw_recv_wr *wr,
                      uint32_t num,
                      const struct bw_recv_wr **bad_wr);

// Posts a receive into the memory that `sge` names; of no use to the peer before `bw_link_ring_rq`.
//
// Errors: those of `bw_link_post_recv`.
// Thread: the link's owner. Data path.
int bw_link_post_recv_one(struct bw_link *link, uint64_t wr_id, const struct bw_sge *sge);

// Tells the device of the receives that were posted one by one.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner. Data path.
int bw_link_ring_rq(struct bw_link *link);

// Has `hook` called, with `context`, at each fault of the link, as it is met; NULL: nothing any more. A
// peer that closes its link in good order is none. It is called under no lock, within `bw_link_poll`, `bw_link_report` and `bw_link_drain`, or by the
// recovery's thread with BW_RECOVER_IN_THREAD. It must not use the link, and has to return. While a
// thread recovers the link the hook before may still be called until the thread has looked; `context`
// of that has to be good until the link is BW_LINK_READY or has ended.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_on_fault(struct bw_link *link,
                     bw_fault_fn hook,
                     void *context);

// Has `hook` called, with `context`, when a recovery of the link has ended, well or not, and when it
// is connected for the first time; NULL: nothing any more. Not when the peer closes a link that works:
// `bw_link_get_state` is BW_LINK_PEER_CLOSED then. Otherwise as `bw_link_on_fault`.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_on_recovered(struct bw_link *link,
                         bw_recovered_fn hook,
                         void *context);

// Has `hook` called, with `context`, with each asynchronous event of the device that concerns none of
// its links; NULL: nothing any more. The links of a device take all its events: whoever polls one
// calls the hook, under no lock. `context` has to be good until the device is closed, or another hook
// set and no link polled by others meanwhile.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_set_event_hook(const struct bw_device *device,
                      bw_event_fn hook,
                      void *context);

// Acknowledges an event that the program got itself, by `bw_get_async_event`, and tells the links of
// the device whom it concerns; others go to the hook of `bw_set_event_hook`. The handle is gone then.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_dispatch_async_event(const struct bw_device *device,
                            struct bw_async_event *event);

// Writes what the link's queue pair did last, as `bw_qp_dump` does; faults of the link are among its
// notes. Of a queue pair that has failed and was reset or replaced since little is left:
// `bw_link_dump_failure` is for that.
//
// Errors: `BW_ERECOVERING` while a thread recovers the link, or it has no queue pair, `BW_ELIMIT`,
// `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_dump(struct bw_link *link,
                 const struct bw_dump_attr *attr,
                 char *buffer,
                 size_t capacity,
                 size_t *length);

// Writes what the queue pair of the connection that failed last had done by then. With
// `bw_link_init.dump_entries` such a dump is kept; of `attr` the format alone is looked at. Otherwise as
// `bw_qp_dump`.
//
// Errors: `BW_ESTATE` when none is kept: no connection has failed, or `dump_entries` is 0;
// `BW_ERECOVERING` while a thread recovers the link, `BW_ELIMIT`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_dump_failure(struct bw_link *link,
                         const struct bw_dump_attr *attr,
                         char *buffer,
                         size_t capacity,
                         size_t *length);

// What the link does: a `bw_link_state`, 0 or more. Changes in polls, and when it is closed.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_get_state(const struct bw_link *link);

// Tells how a link stands. Set `info->size` before.
//
// Errors: `BW_ERECOVERING` while a thread recovers it, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_query(struct bw_link *link, struct bw_link_info *info);

// Tells how often what happened to a link. Set `counters->size` before.
//
// Errors: `BW_ERECOVERING` while a thread recovers it, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_query_counters(const struct bw_link *link, struct bw_link_counters *counters);

// The descriptor by which the peer is heard, 0 or more: readable when it says something. For poll and
// epoll, beside `bw_async_fd`; not to be read or closed.
//
// Errors: `BW_EUNSUPPORTED` for a link of `bw_link_create_pair`, `BW_ERECOVERING` while a thread
// recovers it, `BW_ENULL`.
// Thread: the link's owner.
int bw_link_exchange_fd(struct bw_link *link);

// The descriptor that is readable when the link wants to be polled, 0 or more, with
// `bw_link_init.sleeps`: for poll and epoll, not to be read or closed. The same for as long as the link
// lives, whatever it recovers from.
//
// Errors: `BW_EUNSUPPORTED` without `sleeps`, `BW_ENULL`.
// Thread: the link's owner.
int bw_link_fd(const struct bw_link *link);

// Before the program sleeps: from here on the link's next completion makes the descriptor of
// `bw_link_fd` readable, as do asynchronous events of its device and what the peer says over TCP. What is
// there already does not. So arm it, poll it until it finds nothing, and sleep if it is BW_LINK_READY
// then; with BW_RECOVER_IN_THREAD also while it recovers, but not in polls. While it recovers in polls,
// sleep no longer than `bw_link_time_left` says. The peer of
// `bw_link_create_pair` says things without a wake-up: sleep for a limited time only.
//
// Errors: `BW_EUNSUPPORTED` without `bw_link_init.sleeps`, `BW_EOTHER`, `BW_ENULL`.
// Thread: the link's owner.
int bw_link_arm(struct bw_link *link);

// Writes for how many nanoseconds of the device's clock the program may sleep at the most before it
// polls the link: a step of a recovery has to be given up by then, or tried again. UINT64_MAX while
// there is nothing of the kind, as for a link that is BW_LINK_READY or that a thread recovers.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_time_left(const struct bw_link *link, uint64_t *time_left_ns);

// Has the link recover as if `fault` had been seen: what a program knows that the link does not, such
// as an event of the communication manager. Also while a thread recovers it, which takes it in at its
// next look.
//
// Errors: `BW_EINVAL` as `bw_classify`, `BW_ENULL`, `BW_ESIZE`.
// Thread: the link's owner.
int bw_link_report(struct bw_link *link,
                   const struct bw_fault *fault);

// Closes a link: posts are refused from here on. What was posted may go on for so many milliseconds, of
// the device's time, a recovery included; then it is flushed. Poll until the state is BW_LINK_CLOSED, or
// more, and a poll finds nothing: everything is told by then, receives as
// BW_OUTCOME_NOT_EXECUTED. Waits for the recovery's thread to stop, if there is one.
//
// Errors: `BW_ENULL`.
// Thread: the link's owner.
int bw_link_close(struct bw_link *link,
                  uint32_t timeout_ms);

// Lets things go wrong as the `num` steps of the array `steps` say, beside what earlier scripts still
// have to say. Of those with the same trigger the first strikes first; of the faults of one request
// only the first does. While some entry or packet is to be hit, execution is slow. When it fails
// nothing of the script is taken.
//
// Errors: `BW_EINVAL` (an unknown trigger, fault, status or event; a queue pair where none is looked at;
// a fault of a request at BW_AFTER or BW_AT_MODIFY), `BW_ENULL`.
// Thread: any.
int bw_soft_inject(const struct bw_device *device,
                   const struct bw_soft_step *steps,
                   uint32_t num);

// Lets `count` faults strike at random among the next `packets` packets: each is the fault of one of
// the `num` steps of the array `kinds`, whose triggers are not looked at. The same seed gives the same
// faults.
//
// Errors: as `bw_soft_inject`.
// Thread: any.
int bw_soft_inject_seeded(const struct bw_device *device,
                          uint64_t seed,
                          uint64_t packets,
                          uint32_t count,
                          const struct bw_soft_step *kinds,
                          uint32_t num);

// Forgets all scripts, as far as they have not struck.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_soft_clear(const struct bw_device *device);

// Takes the port's link down (0) or up (not 0): BW_EVENT_PORT_ERR and BW_EVENT_PORT_ACTIVE tell. While
// it is down no packet leaves: reliable requests run out of retries, datagrams are dropped.
//
// Errors: `BW_ENULL`.
// Thread: any.
int bw_soft_set_port(const struct bw_device *device,
                     int up);

// Raises an event that nothing caused, about what has this number: of a port from 1, of the device not
// looked at. Only the event: the thing itself goes on as before.
//
// Errors: `BW_EINVAL` when there is no such event or thing, `BW_ENULL`.
// Thread: any.
int bw_soft_raise(const struct bw_device *device,
                  uint32_t event,
                  uint32_t element_number);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BELLWIRE_H */

#ifndef BW_COMPLETION_BYTE_LEN
#define BW_COMPLETION_BYTE_LEN

/* Bytes received, or brought by a READ or atomic; otherwise 0. */
static inline uint32_t bw_completion_byte_len(const bw_completion *completion)
{
    uint32_t count = completion->byte_cnt;
    const unsigned char *bytes = (const unsigned char *)&count;

    switch (completion->opcode) {
    case BW_WC_RECV:
    case BW_WC_RECV_RDMA_WITH_IMM:
    case BW_WC_RDMA_READ:
        return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    case BW_WC_COMP_SWAP:
    case BW_WC_FETCH_ADD:
        return 8;
    default:
        return 0;
    }
}

#endif /* BW_COMPLETION_BYTE_LEN */
